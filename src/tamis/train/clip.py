"""`tamis train clip`, `tamis train captioner`: a model on the pairs of a run or of a subset, to compare subsets with.

This file checks the request, starts or resumes a training in its folder, and calls the loop (`loop.fit`) with a model
(`towers`, `captioner`), a loss (`step`, `losses`), data (`batches`), and a callback that logs and saves after each step
(`watch`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.core.errors import ModelError, RunError, StopError, at_least_one, require
from tamis.core.files.checked import read_record, write_record
from tamis.core.files.storage import sweep
from tamis.core.files.targets import check_own
from tamis.core.ids import fingerprint
from tamis.core.types import STATUSES
from tamis.models.device import use_threads
from tamis.models.reference import TRAINING, complete, resolve
from tamis.pools import PoolSpec
from tamis.runs.claims import lock_run
from tamis.runs.run import Run
from tamis.runs.subset import OtherCaptions, Subset, other_captions
from tamis.train import captioner
from tamis.train.batches import Batches, TrainingRows, split
from tamis.train.loop import fit, join_group, new_optimisers
from tamis.train.scales import ARCHITECTURES, CaptionTraining, ClipTraining, Training
from tamis.train.step import (
    How,
    TrainingContext,
    TrainingStep,
    choose_pieces,
    flops_per_pair,
    preparation,
    recompute_layers,
    text_states,
    with_cache,
)
from tamis.train.towers import Towers, build, digests, learn_tokenizer, needs_tokenizer, needs_whole_batch
from tamis.train.watch import BEST, CHECKPOINT, HeldOut, Watch, load_checkpoint

log = logging.getLogger(__name__)

#: Statuses (in the index) of samples without an image to train on.
_NO_IMAGE = [name for name, status in STATUSES.items() if status.no_image]

#: Folder names of C-RHO's two models.
CLEAN, POOL = "clean", "pool"

_WARMUP_SHARE = 0.1  # C-SSFT and C-RHO warm up for at most this share: short trainings should reach their full rate
TrainingT = TypeVar("TrainingT", bound=Training)

_MANIFEST = "training.json"
_TO_LEARN_FROM = 1_000_000  # a tokenizer is learned from at most so many captions


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The result of a training."""

    folder: Path  # holds the model: `transformers` loads it, and so does every signal that takes a CLIP
    steps: int  # batches, including earlier calls
    samples: int  # pairs seen, repeats counted
    pairs: int  # distinct pairs
    unreadable: int  # samples that could not be decoded during the training
    seconds: float  # training time, including earlier calls up to their last checkpoint
    losses: Sequence[float]  # this process's loss in each step of this call
    samples_per_second: float  # over all processes, in this call; 0 if it had nothing to do
    utilisation: float  # model FLOPs utilisation (MFU) in [0, 1], see `step.peak_rate`


def train_clip(
    source: Subset | Run,
    *,
    out: str | Path,
    training: Training,
    how: How,
    epochs: float | None = None,
    tokenizer: str | None = None,
) -> Trained:
    """Trains a CLIP, or a captioner, on the pairs of a subset or run and writes its folder. The same call resumes.

    `training/` in the folder has settings, metrics (JSON lines) and the checkpoint. `epochs` overrides the training's
    `samples`. `tokenizer` is a checkpoint whose tokenizer a CLIP from scratch uses; None learns one from the captions.

    Under torchrun every process calls it. The first one writes, and all must see the folder. A resumed training has the
    same losses as one that never stopped: bit for bit on the same CPU with as many processes and threads.
    """
    require("torch", "transformers", "safetensors", extra="clip")
    run = _run_of(source)
    folder = Path(out).expanduser()
    rows, left_out = _readable(source)
    rows, held = split(rows, training.hold_out)
    if tokenizer and not needs_tokenizer(training):
        raise ModelError(f"{training.model} has a tokenizer of its own: leave --tokenizer out")
    if epochs is not None:
        training = as_long_as(training, rows, epochs)
    if rows.epoch_size < training.batch and isinstance(training, ClipTraining):
        log.warning(
            "the epoch has %d pairs and the batch %d: batches hold duplicates, and those act as negatives",
            rows.epoch_size, training.batch,
        )  # fmt: skip
    with join_group(how.device.kind) as processes, ExitStack() as lock:
        pieces = how.pieces or 1
        if training.batch % processes.count or training.batch // processes.count < pieces:
            raise StopError(f"a batch of {training.batch} does not divide into {processes.count} x {pieces} pieces")
        context = TrainingContext(run, rows, folder, training, how, processes, held)
        done = False
        if processes.first:  # torchrun ends the others if this one fails
            check_folder(folder)
            identity = _identity(training, run, rows, tokenizer)  # a missing model must not leave a folder
            lock.enter_context(lock_run(context.state))
            sweep(context.state)
            for path in context.state.glob(".tmp*"):  # safetensors' own temporary files
                path.unlink(missing_ok=True)
            facts = _resume(folder, identity)
            if facts is None:
                write_record(context.state / _MANIFEST, {"format": 1, "settings": identity})
            done = facts is not None and "result" in facts
            if left_out:
                log.warning("%d pairs are left out: their image or caption cannot be read", left_out)
        if processes.largest(done):
            if not complete(folder):
                raise RunError(f"{folder}: the training is done, but its model is incomplete. Delete it and repeat")
            _check_epochs(context, training.steps)
            log.info("%s is done already", folder)
            return Trained(folder=folder, losses=[], **read_record(context.state / _MANIFEST)["result"])
        return _train(context, tokenizer)


def check_folder(folder: Path) -> None:
    """Raises RunError unless a folder is new, empty, or holds a training of ours."""
    folder = folder.expanduser()
    check_own(folder, what="training", marks=[f"{TRAINING}/{_MANIFEST}"], also=[TRAINING])
    # The run and the lock are written before the manifest.
    check_own(folder / TRAINING, what="training", marks=[_MANIFEST], also=["run", "lock"])


def training_rows(source: Subset | Run) -> tuple[TrainingRows, int]:
    """Returns the pairs to train on, and how many are left out because the index marks them as unreadable."""
    run = _run_of(source)
    rows = source.rows() if isinstance(source, Subset) else np.arange(len(run))
    times = np.bincount(rows, minlength=len(run))
    good, highs, lows = [np.empty(0, bool)], [], []
    for shard in run.shards:
        index = run.index(shard, ["uid_hi", "uid_lo", "status", "caption_judged"])
        no_image = pc.is_in(index.column("status").cast("string"), value_set=pa.array(_NO_IMAGE))
        text = index.column("caption_judged").to_numpy()
        if isinstance(source, Subset) and source.caption is not None:  # pairs without an alt-text may have another
            text = text | (source.caption[run.row_ranges[shard]] > 0)
        good.append(~no_image.to_numpy() & text)
        highs.append(index.column("uid_hi").to_numpy())
        lows.append(index.column("uid_lo").to_numpy())
    others = other_captions(source) if isinstance(source, Subset) else OtherCaptions()
    usable = np.concatenate(good)
    rows = np.flatnonzero((times > 0) & usable)
    if not rows.size:
        raise RunError(f"{source!r} has no pair whose image and caption can be read: there is nothing to train on")
    high, low = np.concatenate(highs)[rows], np.concatenate(lows)[rows]
    left_out = int(((times > 0) & ~usable).sum())
    order = source.order if isinstance(source, Subset) else None
    if order is not None:
        order = np.searchsorted(rows, order[usable[order]])
    found = TrainingRows(rows=rows, times=times[rows], high=high, low=low, others=others, order=order)
    return found, left_out


def as_long_as(training: TrainingT, rows: TrainingRows, epochs: float) -> TrainingT:
    """Returns the training with as many samples as `epochs` epochs have, repeats counted."""
    if not 0 < epochs < math.inf:
        raise ValueError(f"epochs must be above 0 and finite, got {epochs}")
    return replace(training, samples=max(1, round(epochs * rows.epoch_size)))


def pool_reading_settings(run: Run) -> dict[str, Any]:
    """Returns the pool settings of a run that change its captions or images and differ from the defaults.

    With other settings (another column of captions, say) the same rows of the same files are other pairs.
    """
    default = PoolSpec(path="")
    changed = {}
    names = ("caption", "captions", "image", "image_extensions", "max_pixels", "max_bytes", "transparency")
    for name in (*names, "orientation"):
        value, usual = run.facts["pool"].get(name), getattr(default, name)
        if value is not None and value != (list(usual) if isinstance(usual, tuple) else usual):
            changed[name] = value
    return changed


def fine_tuning(
    model: str, *, learning_rate: float = 1e-5, batch: int = 1024, warmup: int = 200, seed: int = 0
) -> ClipTraining:
    """C-SSFT's training, without its length.

    The paper trains 5 epochs on CC3M at 1e-5 from a pretrained OpenCLIP model (Maini et al. 2024, T-MARS, section 4.2)
    and leaves the rest open. We take batch and warm-up from its other trainings (section 5.1).
    """
    if model in ARCHITECTURES:
        raise ModelError(f"{model} is an architecture: C-SSFT fine-tunes a pretrained CLIP, so name a checkpoint")
    return ClipTraining(model=model, samples=batch, learning_rate=learning_rate, batch=batch, warmup=warmup, seed=seed)


def train_c_ssft(
    source: Subset | Run, *, out: str | Path, training: ClipTraining, how: How, epochs: int = 5
) -> Trained:
    """Fine-tunes a CLIP and keeps the model of each epoch as `out/epoch-1` and so on. The same call again resumes."""
    training = over_epochs(training, source, epochs)
    return train_clip(source, out=out, training=training, how=replace(how, keep_epochs=True))


@dataclass(frozen=True)
class TrainingSet:
    """The pairs of a training and the number of epochs."""

    source: Subset | Run
    epochs: int


def train_c_rho(
    clean: TrainingSet | None, pool: TrainingSet, *, out: str | Path, training: ClipTraining, how: How
) -> dict[str, Trained]:
    """Trains the same model on clean pairs and on the pool, into `out/clean` and `out/pool`. The same call resumes.

    T-MARS trains 32 epochs on CC3M and 1 on the pool (Maini et al. 2024, section 4.2 and appendix A.2). ClipCov takes a
    pretrained CLIP instead of the clean one (`clean` is None) and 5 epochs of the pool (Joshi et al. 2024, section 5).
    T-MARS names neither the model nor the hyperparameters.
    """
    parts = {POOL: pool} if clean is None else {CLEAN: clean, POOL: pool}
    trainings = {name: over_epochs(training, part.source, part.epochs) for name, part in parts.items()}
    for name, part in parts.items():  # check both trainings before starting the first
        rows, _ = split(_readable(part.source)[0], training.hold_out)
        check_folder(Path(out) / name)
        identity = _identity(trainings[name], _run_of(part.source), rows, None)
        _resume((Path(out) / name).expanduser(), identity)
    with join_group(how.device.kind):
        return {
            name: train_clip(part.source, out=Path(out) / name, training=trainings[name], how=how)
            for name, part in parts.items()
        }


def over_epochs(training: ClipTraining, source: Subset | Run, epochs: int) -> ClipTraining:
    """Returns the training for `epochs` epochs of the pairs, with a warm-up of at most a tenth of the steps."""
    at_least_one(epochs=epochs)
    rows, _ = training_rows(source)
    if rows.epoch_size < training.batch:
        raise RunError(f"{source!r} has {rows.epoch_size:,} pairs, less than one --train-batch of {training.batch:,}")
    training = replace(training, samples=epochs * rows.epoch_size)
    return replace(training, warmup=min(training.warmup, int(_WARMUP_SHARE * training.steps)))


def _run_of(source: Subset | Run) -> Run:
    return source.run if isinstance(source, Subset) else source


def _readable(source: Subset | Run) -> tuple[TrainingRows, int]:
    """Returns `training_rows`. RunError if the pool has no images or lacks a shard that is needed."""
    run = _run_of(source)
    if not run.pool.has_images:
        raise RunError(f"{run.pool.spec.paths[0]} holds no images: there is nothing to train on")
    rows, left_out = training_rows(source)
    shards = {shard.name: shard for shard in run.pool.shards}
    needed = np.diff(np.searchsorted(rows.rows, np.cumsum([0, *run.sizes]))) > 0
    for name, is_needed in zip(run.shards, needed, strict=True):
        if is_needed:
            if name not in shards:
                raise RunError(f"the pool has no shard {name!r}, which holds some of the pairs to train on")
            try:
                shards[name].stamp()
            except OSError as error:
                raise RunError(f"{shards[name].url} cannot be read: {error}") from error
    return rows, left_out


def _identity(training: Training, run: Run, rows: TrainingRows, tokenizer: str | None) -> dict[str, Any]:
    """Everything that affects the model. A training resumes only in a folder with the same identity."""
    weights = digests(training)
    if tokenizer:
        weights["tokenizer"] = resolve(tokenizer).digest
    return {
        **asdict(training),
        "tokenizer": tokenizer or "",
        "weights": weights,
        "pairs": rows.digest,
        "run": fingerprint({"stamps": run.stamps, "shards": run.shards}),
        "pool": pool_reading_settings(run),
    }


def _resume(folder: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """Reads the manifest in a folder; None if there is none, RunError if its identity differs."""
    manifest = folder / TRAINING / _MANIFEST
    if not manifest.is_file():
        return None
    facts = read_record(manifest)
    before = facts["settings"]
    for name, value in identity.items():
        if before.get(name) != value:
            hashed = name in ("pairs", "run", "weights")
            change = "" if hashed else f" (then {before.get(name)!r}, now {value!r})"
            raise RunError(f"{folder} holds a training with other {name}{change}; choose another --out, or delete it")
    return facts


def _check_epochs(context: TrainingContext, step: int) -> None:
    """Raises RunError if each epoch's model should be kept and one before this step is missing."""
    ended = step * context.training.batch // context.rows.epoch_size if context.how.keep_epochs else 0
    for epoch in range(1, ended + 1):
        if not complete(context.folder / f"epoch-{epoch}"):
            raise RunError(f"{context.folder} lacks the model of epoch {epoch}: it was begun without --keep-epochs")


def _train(context: TrainingContext, tokenizer: str | None) -> Trained:
    """Trains from the last checkpoint to the end and writes the model."""
    import torch

    context = with_cache(context)
    training, how, processes = context.training, context.how, context.processes
    use_threads(how.device)
    towers = _initial_model(context, tokenizer)
    if needs_whole_batch(towers.model) and ((how.pieces or 1) > 1 or processes.count > 1):
        raise StopError(f"{training.model} normalises over the whole batch: train it in one process and one piece")
    (optimiser,) = new_optimisers(towers.model, training.loop)
    # The last checkpoint decides where to go on, and all processes must see the same one.
    facts = load_checkpoint(context.state / CHECKPOINT, towers.model, optimiser) or {"step": 0}
    first = int(facts["step"])
    if processes.largest(first) != first or -processes.largest(-first) != first:
        raise StopError(f"the processes see different checkpoints in {context.state}: they must share the folder")
    if processes.first:
        _check_epochs(context, first)
    if first:
        log.info("resuming after step %d of %d", first, training.steps)
    # What is the same in every step: states of the frozen text tower, and how a batch is cut to fit into memory.
    states = text_states(context, towers)
    if how.checkpointing:
        recompute_layers(towers)
    if how.pieces is None:  # a resumed training keeps its number, since another one rounds differently
        pieces = int(facts["pieces"]) if first else processes.largest(choose_pieces(context, towers, states))
        context = replace(context, how=replace(how, pieces=pieces))
    held = HeldOut(context, towers, facts) if context.held is not None and processes.first else None
    step = TrainingStep(context, towers, first)
    watch = Watch(context, towers, optimiser, step, facts, flops_per_pair(context, towers, states), held)
    batches = Batches(
        run=context.run, rows=context.rows, batch=training.batch, side=towers.side,
        smallest=training.crop, resample=towers.steps.resample, seed=training.seed, processes=processes,
        threads=how.threads, cache=how.cache or 0,
    )  # fmt: skip
    reader = batches(first, training.steps, preparation(context, towers, states))
    try:
        losses = fit(towers.model, step, reader, training.loop, optimisers=[optimiser], after_step=watch, first=first)
    except FloatingPointError as error:
        raise StopError(f"{error}; the last checkpoint was saved after step {watch.saved}") from error
    except torch.OutOfMemoryError as error:
        smaller = f"--pieces {2 * (context.how.pieces or 1)}, or a smaller --train-batch"
        raise StopError(f"no memory for a step: use {smaller}; the last checkpoint is of step {watch.saved}") from error
    finally:
        reader.close()
    result = watch.result()
    # The first process writes the model and takes away what only a resumed training needs.
    if processes.first:
        if held is not None and training.keep_best:
            load_checkpoint(context.state / BEST, towers.model, optimiser)
            best, lowest = held.facts["best_step"], held.facts["best"]
            log.info("kept the model of step %d, whose held-out loss of %.3f is the lowest", best, lowest)
        towers.save(context.folder)
        manifest = context.state / _MANIFEST
        write_record(manifest, {**read_record(manifest), "result": result})
        for name in (CHECKPOINT, BEST, "text-states.npy"):
            (context.state / name).unlink(missing_ok=True)
    processes.wait()
    return Trained(folder=context.folder, losses=losses, **result)


def _initial_model(context: TrainingContext, tokenizer: str | None) -> Towers:
    """The model before its first step, on its device, the same in every process."""
    import torch

    path, training = None, context.training
    if isinstance(training, ClipTraining):
        if needs_tokenizer(training):
            path = resolve(tokenizer).path if tokenizer else context.state / "tokenizer"
            if context.processes.first and not path.is_dir():
                learn_tokenizer(context.captions(_TO_LEARN_FROM), training, path)
            context.processes.wait()
        towers = build(training, tokenizer=path)
    else:
        assert isinstance(training, CaptionTraining)
        towers = captioner.build(training)
    kind = context.how.device.kind
    device = f"cuda:{context.processes.local_rank}" if kind == "cuda" and context.processes.count > 1 else kind
    towers.model.to(device, memory_format=torch.channels_last)  # faster for convolutions; images have this layout
    context.processes.same_start([*towers.model.parameters(), *towers.model.buffers()])
    return towers
