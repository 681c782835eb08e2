"""`tamis train clip`: a CLIP on the pairs of a run or of a subset, to be compared with others or used as a filter.

The loop is `train.loop`'s; this file gives it a model (`towers`), its loss (`losses`), its data (`batches`) and what
happens between two steps: the temperature's bounds, a line of metrics, a checkpoint.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from tamis.errors import ModelError, RunError, StopError, require
from tamis.fingerprint import fingerprint
from tamis.models.device import use_threads
from tamis.models.folder import TRAINING, complete
from tamis.models.reference import resolve
from tamis.pool import Pool, PoolSpec
from tamis.storage import sweep, write_json
from tamis.store.claims import locked
from tamis.store.records import TrainingFile, TrainingResult, read_checked, with_hash
from tamis.store.run import Run
from tamis.store.subset import Subset
from tamis.store.targets import check_own
from tamis.train.batches import Batches, TrainingRows
from tamis.train.checkpoint import load_checkpoint
from tamis.train.clip_loop import (
    BEST,
    How,
    Preparation,
    Step,
    Task,
    Watch,
    adamw,
    checkpoint_layers,
    flops_per_pair,
    text_states,
)
from tamis.train.held_out import HeldOut, split
from tamis.train.loop import Settings, fit
from tamis.train.memory import choose_pieces
from tamis.train.processes import started
from tamis.train.scales import ClipTraining
from tamis.train.towers import Towers, build, learn_tokenizer, needs_tokenizer, needs_whole_batch, pretrained

log = logging.getLogger(__name__)

#: Statuses of the index whose image cannot be trained on.
_NO_IMAGE = ("image_missing", "image_broken", "image_too_large", "image_refused", "shard_cut")

_MANIFEST, _CHECKPOINT = "training.json", "checkpoint.safetensors"
_TO_LEARN_FROM = 1_000_000  # captions that a tokenizer is learned from
_GO, _DONE, _STOPPED = 0, 1, 2  # what the first process found, in rising order of weight


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What came of a training.

    Attributes:
        folder: the model's: `transformers` loads it, and so does every scorer that takes a CLIP.
        steps: batches, of this and earlier calls.
        samples: pairs seen, repeats counted.
        pairs: distinct pairs that it trained on.
        unreadable: samples that were to be seen and could not be decoded.
        seconds: that the steps took, those of earlier calls until their last checkpoint among them.
        losses: of the steps of this call; of this process's share where there are several.
        samples_per_second: of all processes together, of this call; 0 where it had nothing to do.
        utilisation: share of the hardware's operations that the model used (MFU), see `throughput`.
    """

    folder: Path
    steps: int
    samples: int
    pairs: int
    unreadable: int
    seconds: float
    losses: Sequence[float]
    samples_per_second: float
    utilisation: float


def train_clip(
    source: Subset | Run,
    *,
    pool: Pool,
    out: str | Path,
    training: ClipTraining,
    how: How,
    epochs: float | None = None,
    tokenizer: str | None = None,
) -> Trained:
    """Trains a CLIP and writes its folder. The same call again goes on where it stopped, or finds it done.

    Under torchrun every process calls it; the first one writes, and all must see the folder. A training that goes on
    has the losses of one that never stopped, to the bit on the same CPU with as many processes and threads.

    Args:
        source: the pairs: a subset's, each as often in an epoch as its multiplicity says, or all of a run.
        pool: the files that the run was made from.
        out: the folder; `training/` in it holds settings, metrics (JSON lines) and the checkpoint.
        training: the model and how it learns, see `scales.at_scale`.
        how: where, and in which pieces.
        epochs: times through the pairs, in place of the training's samples.
        tokenizer: a checkpoint whose tokenizer a CLIP from scratch takes; None learns one from the captions.

    Raises:
        RunError: there is nothing to train on; the folder is in use, or holds something else; a shard is gone.
        ModelError: a model is not here, or of another kind.
        DiskFullError: no space is left; the last checkpoint stays.
        StopError: a loss is not finite (the last checkpoint stays), the processes do not fit the batch, or a pair does
            not fit into memory.
    """
    require("torch", "transformers", "safetensors", extra="clip")
    run = source.run if isinstance(source, Subset) else source
    folder = Path(out).expanduser()
    rows, left_out = _readable(source, pool)
    rows, aside = split(rows, training.hold_out)
    if tokenizer and not needs_tokenizer(training):
        raise ModelError(f"{training.model} brings its tokenizer with its text tower: leave --tokenizer out")
    if epochs is not None:
        training = as_long_as(training, rows, epochs)
    if rows.epoch_size < training.batch:
        log.warning(
            "an epoch has %d pairs and a batch %d: a batch holds some of them twice, and calls them different",
            rows.epoch_size, training.batch,
        )  # fmt: skip
    with started(how.device.kind) as processes, ExitStack() as held:
        if training.batch % processes.count or training.batch // processes.count < (how.pieces or 1):
            raise StopError(
                f"a batch of {training.batch} does not divide into {processes.count} processes of {how.pieces or 1} "
                "pieces"
            )
        state, problem = _GO, None
        if processes.first:
            try:
                check_folder(folder)
                identity = _identity(training, run, rows, tokenizer)  # a model that is not here leaves no trace
                held.enter_context(locked(folder / TRAINING, what="training folder", option="--out"))
                _remove_unfinished(folder / TRAINING)
                state = _begin(folder, identity)
                if left_out:
                    log.warning("%d pairs are left out: their image or caption cannot be read", left_out)
            except BaseException as error:  # the others wait for this process and are told first
                state, problem = _STOPPED, error
        state = processes.largest(state)
        if problem is not None:
            raise problem
        if state == _STOPPED:
            raise StopError("the first process could not begin; its message says why")
        if state == _DONE:
            _check_whole(folder, training, rows, how)
            log.info("%s is done already", folder)
            return _result(folder, [])
        return _carried_out(Task(run, pool, rows, folder, training, how, processes, aside), tokenizer)


def check_folder(folder: Path) -> None:
    """Makes sure, before anything is written, that a folder is new, empty, or of a training of ours.

    Raises:
        RunError: something else is in it.
    """
    check_own(folder, what="training", marks=[f"{TRAINING}/{_MANIFEST}"], also=[TRAINING])
    # An index is there before the training is, and a lock.
    check_own(folder / TRAINING, what="training", marks=[_MANIFEST], also=["run", "lock"])


def check_training(source: Subset | Run, *, pool: Pool, out: str | Path, training: ClipTraining) -> None:
    """Makes sure, before any work and without a trace, that `train_clip` could begin with these, or go on.

    Raises:
        RunError, ModelError: as of `train_clip`.
    """
    folder = Path(out).expanduser()
    rows, _ = split(_readable(source, pool)[0], training.hold_out)
    check_folder(folder)
    if (folder / TRAINING / _MANIFEST).is_file():
        _compared(folder, _identity(training, source.run if isinstance(source, Subset) else source, rows, None))


def _readable(source: Subset | Run, pool: Pool) -> tuple[TrainingRows, int]:
    """Returns what `training_rows` does, after a look whether the pool has the shards."""
    if not pool.has_images:
        raise RunError(f"{pool.spec.paths[0]} is metadata without image files: there is nothing to train on")
    rows, left_out = training_rows(source)
    _check_pool(source.run if isinstance(source, Subset) else source, pool, rows)
    return rows, left_out


def training_rows(source: Subset | Run) -> tuple[TrainingRows, int]:
    """Returns the pairs to train on, and how many are left out since the index says that they cannot be read.

    Raises:
        RunError: there are none.
    """
    run = source.run if isinstance(source, Subset) else source
    asked = np.ones(len(run), np.int64) if isinstance(source, Run) else _times(source)
    good, highs, lows = [], [], []
    for shard in run.shards:
        index = run.index(shard, ["uid_hi", "uid_lo", "status", "caption_judged"])
        status = index.column("status").cast("string")
        no_image = pc.is_in(status, value_set=pa.array(_NO_IMAGE))
        good.append(~no_image.to_numpy() & index.column("caption_judged").to_numpy())
        highs.append(index.column("uid_hi").to_numpy())
        lows.append(index.column("uid_lo").to_numpy())
    usable = np.concatenate(good) if good else np.empty(0, bool)
    rows = np.flatnonzero((asked > 0) & usable)
    if not rows.size:
        raise RunError(f"{source!r} has no pair whose image and caption can be read: there is nothing to train on")
    high, low = np.concatenate(highs)[rows], np.concatenate(lows)[rows]
    return TrainingRows(rows=rows, times=asked[rows], high=high, low=low), int(((asked > 0) & ~usable).sum())


def as_long_as(training: ClipTraining, rows: TrainingRows, epochs: float) -> ClipTraining:
    """Returns a training that goes so many times through the pairs, repeats counted.

    Raises:
        ValueError: epochs is not above 0, or without end.
    """
    if not 0 < epochs < math.inf:
        raise ValueError(f"epochs must be above 0 and finite, got {epochs}")
    return replace(training, samples=max(1, round(epochs * rows.epoch_size)))


def _check_pool(run: Run, pool: Pool, rows: TrainingRows) -> None:
    """Makes sure, before any work, that the pool has all shards that are read, and that their files are there.

    Raises:
        RunError: it lacks one.
    """
    there = {shard.name: shard for shard in pool.shards}
    needed = np.diff(np.searchsorted(rows.rows, np.cumsum([0, *run.sizes]))) > 0
    for name in (name for name, want in zip(run.shards, needed, strict=True) if want):
        if name not in there:
            raise RunError(f"the pool has no shard {name!r}, from which pairs are to be trained on: it is another pool")
        try:
            there[name].stamp()
        except Exception as error:  # every store has errors of its own
            raise RunError(f"{there[name].url} cannot be read: {error}") from error


def _times(subset: Subset) -> NDArray[np.int64]:
    """Returns how often each row of the run is in the subset."""
    times = getattr(subset, "times", None)
    return (subset.keep if times is None else np.asarray(times)).astype(np.int64)


def read_as(run: Run) -> dict[str, Any]:
    """Returns the settings of a run's pool that decide what its captions and images are, where they are not the usual.

    The same rows of the same files are other pairs under another of them: another column of captions, say.
    """
    usual = PoolSpec(path="")
    names = ("caption", "image", "image_extensions", "max_pixels", "max_bytes", "transparency")
    found = {}
    for name in names:
        here, was = run.facts["pool"].get(name), getattr(usual, name)
        if here is not None and here != (list(was) if isinstance(was, tuple) else was):
            found[name] = here
    return found


def _identity(training: ClipTraining, run: Run, rows: TrainingRows, tokenizer: str | None) -> dict[str, Any]:
    """Returns what decides the outcome: another training may not go on in its folder."""
    pairs = xxhash.xxh3_128()
    for part in (rows.rows, rows.times, rows.high, rows.low):
        pairs.update(np.ascontiguousarray(part).tobytes())
    weights = pretrained(training)
    if tokenizer:
        weights["tokenizer"] = resolve(tokenizer).digest
    return {
        **asdict(training),
        "tokenizer": tokenizer or "",
        "weights": weights,
        "pairs": pairs.hexdigest(),
        "run": fingerprint({"stamps": run.stamps, "shards": run.shards}),
        "pool": read_as(run),
    }


def _remove_unfinished(state: Path) -> None:
    """Removes the files that a killed training was writing: ours, and those that safetensors renames itself."""
    sweep(state)
    for path in state.glob(".tmp*"):
        path.unlink(missing_ok=True)


def _begin(folder: Path, identity: Mapping[str, Any]) -> int:
    """Begins a training in the folder, or makes sure that it is this one that began in it.

    Raises:
        RunError: it is another one.
    """
    manifest = folder / TRAINING / _MANIFEST
    if not manifest.is_file():
        write_json(manifest, with_hash({"format": 1, "settings": dict(identity)}))
        return _GO
    return _DONE if _compared(folder, identity).get("result") else _GO


def _compared(folder: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the manifest of a folder says, if its training is the given one.

    Raises:
        RunError: it is another one, or the manifest is damaged.
    """
    facts = read_checked(folder / TRAINING / _MANIFEST, TrainingFile)
    before = facts["settings"]
    for name, value in identity.items():
        if before.get(name) != value:
            raise RunError(f"{folder} holds another training: {_differs(name, before.get(name), value)}")
    return facts


def _check_whole(folder: Path, training: ClipTraining, rows: TrainingRows, how: How) -> None:
    """Makes sure that what a training that is done has left is still there.

    Raises:
        RunError: the model is not, or the models of its epochs, which are asked for.
    """
    if not (any(folder.glob("model*.safetensors")) and complete(folder)):
        raise RunError(
            f"{folder} says that its training is done, and holds no whole model: restore its files, or delete the "
            "folder and repeat the command"
        )
    _check_epochs(folder, training.steps, training, rows, how)


def _check_epochs(folder: Path, step: int, training: ClipTraining, rows: TrainingRows, how: How) -> None:
    """Makes sure that the models of the epochs that ended until a step are there, if they are asked for.

    Raises:
        RunError: one is not: the training was begun without keeping them.
    """
    ended = step * training.batch // rows.epoch_size if how.keep_epochs else 0
    for epoch in range(1, ended + 1):
        if not complete(folder / f"epoch-{epoch}"):
            raise RunError(
                f"{folder} has come to step {step} without a model of its epoch {epoch}: it was begun without keeping "
                "them (--keep-epochs), or it was removed since. Choose another folder (--out), or delete this one"
            )


def _differs(name: str, before: Any, now: Any) -> str:
    end = "choose another folder (--out), or delete it"
    if name in ("pairs", "run"):
        return f"of other pairs; {end}"
    if name == "pool":
        return f"of a pool that was read otherwise (settings {before or 'as usual'}, now {now or 'as usual'}); {end}"
    if name == "weights":
        return f"of models with other weights; {end}"
    return f"its {name} was {before!r} and is now {now!r}; {end}"


def _result(folder: Path, losses: Sequence[float]) -> Trained:
    facts = TrainingResult(**read_checked(folder / TRAINING / _MANIFEST, TrainingFile)["result"])
    return Trained(folder=folder, losses=losses, **{name: getattr(facts, name) for name in TrainingResult.model_fields})


def _carried_out(task: Task, tokenizer: str | None) -> Trained:
    """Trains from the last checkpoint to the end and writes the model."""
    of, how, processes = task.training, task.how, task.processes
    use_threads(how.device)
    towers = _at_start(task, tokenizer)
    if needs_whole_batch(towers.model) and ((how.pieces or 1) > 1 or processes.count > 1):
        raise StopError(
            f"{of.model} normalises over the whole batch: a batch that is cut into {processes.count} processes of "
            f"{how.pieces or 1} pieces would make another model of it. Train it in one, or take convnet"
        )
    optimiser = adamw(towers.model, of)
    facts = load_checkpoint(task.state / _CHECKPOINT, towers.model, optimiser) or {"step": 0}
    first = int(facts["step"])
    if processes.largest(first) != first or -processes.largest(-first) != first:
        raise StopError(
            f"the processes see different checkpoints in {task.state}: name a folder that all of them share"
        )
    if processes.first:
        _check_epochs(task.folder, first, of, task.rows, how)
    if first:
        log.info("going on after step %d of %d", first, of.steps)
    states = text_states(task, towers) if of.freeze_text else None
    if how.checkpointing:
        checkpoint_layers(towers.model)
    if how.pieces is None:
        task = replace(task, how=replace(how, pieces=_pieces(task, towers, facts, cached=states is not None)))
    held = HeldOut(task, towers, facts) if task.held is not None and processes.first else None
    watch = Watch(task, towers, optimiser, facts, flops_per_pair(task, towers, states is not None), held)
    step = Step(task, towers, watch, states, first)
    batches = Batches(
        run=task.run, pool=task.pool, rows=task.rows, batch=of.batch, side=towers.side, smallest=of.crop,
        resample=towers.resample, seed=of.seed, processes=processes, threads=how.threads, cache=how.cache,
    )  # fmt: skip
    reader = batches(first, of.steps, Preparation(task, towers, states))
    # open_clip's schedule. `Watch` writes the log's lines with the metrics, so the loop writes none.
    schedule = Settings(
        steps=of.steps, warmup=of.warmup, floor=0.0, clip_norm=of.clip_norm or math.inf, report_every=None
    )
    try:
        losses = fit(
            towers.model, step.loss, reader, schedule,
            precision=how.device.precision, after_step=watch, chosen=[optimiser], backward=step.backward, first=first,
        )  # fmt: skip
    except FloatingPointError as error:
        kept = f"what step {watch.saved} had reached stays in {task.state}" if watch.saved else "nothing was saved yet"
        raise StopError(f"{error}; {kept}") from error
    finally:
        reader.close()
    result = watch.result()
    if processes.first:
        if held is not None and of.keep_best:
            load_checkpoint(task.state / BEST, towers.model, optimiser)
            held.say_which()
        towers.save(task.folder)
        manifest = task.state / _MANIFEST
        write_json(manifest, with_hash({**read_checked(manifest, TrainingFile), "result": result}))
        for name in (_CHECKPOINT, BEST, "text-states.npy"):
            (task.state / name).unlink(missing_ok=True)
    processes.wait()
    return Trained(folder=task.folder, losses=losses, **result)


def _pieces(task: Task, towers: Towers, facts: Mapping[str, Any], *, cached: bool) -> int:
    """Returns the number of pieces: the checkpoint's, since another one rounds differently, or by free memory."""
    if facts["step"]:
        return int(facts["pieces"])
    return task.processes.largest(choose_pieces(task, towers, cached=cached))


def _at_start(task: Task, tokenizer: str | None) -> Towers:
    """Returns the untrained model where it is to be trained, the same in every process."""
    import torch

    path = None
    if needs_tokenizer(task.training):
        path = resolve(tokenizer).path if tokenizer else task.state / "tokenizer"
        if task.processes.first and not path.is_dir():
            learn_tokenizer(task.captions(0, _TO_LEARN_FROM), task.training, path)
        task.processes.wait()
    towers = build(task.training, tokenizer=path)
    # Convolutions are faster so, and pictures come so.
    towers.model.to(task.torch_device, memory_format=torch.channels_last)
    task.processes.same_start([*towers.model.parameters(), *towers.model.buffers()])
    return towers
