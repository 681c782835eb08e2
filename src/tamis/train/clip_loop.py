"""What happens in a step of CLIP's training, and between two: preparing, loss, metrics, checkpoints."""

from __future__ import annotations

import copy
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.arrays import Floats
from tamis.data import Device
from tamis.errors import DamageError, RunError, StopError, at_least_one
from tamis.models.folder import TRAINING
from tamis.pool import Pool
from tamis.storage import explained, writing
from tamis.store.checked import Owner, finish_array, uids_digest
from tamis.store.parts import read_rows
from tamis.store.run import Run
from tamis.train.batches import Batch, TrainingRows
from tamis.train.checkpoint import check_finite, save_checkpoint
from tamis.train.loop import multiplying
from tamis.train.losses import Contrastive, Embed
from tamis.train.processes import Processes
from tamis.train.scales import ClipTraining
from tamis.train.throughput import forward_flops, peak
from tamis.train.towers import Towers

if TYPE_CHECKING:
    import torch

    from tamis.train.held_out import HeldOut

log = logging.getLogger(__name__)

#: The highest factor of the cosines is 100 (Radford et al. 2021, section 2.5).
_MOST = math.log(100)

#: The checkpoint of the lowest held-out loss.
BEST = "best.safetensors"

_MOST_STATES = 4_000_000  # captions whose states are kept: 6 GB at 384 numbers
_STATES_AT_ONCE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class How:
    """Where and in which pieces a training is done; it changes results by rounding only.

    Attributes:
        device: where, and in which precision.
        pieces: that each process's part of a batch is cut into, so that one fits into memory; None: as many as the
            memory that is free asks for, see `memory.choose_pieces`.
        checkpointing: recompute what layers made on the way back instead of keeping it: less memory, a third slower.
        local_loss: see `losses.loss_over_processes`.
        threads: that read and decode, in each process.
        save_every: steps between two checkpoints; None: a twentieth of all, but 50 at least and 1,000 at most.
        report_every: steps between two lines of metrics; None: a hundred in all, and at most 100 steps.
        keep_epochs: whether the model of each epoch's end is kept, as `epoch-1`, `epoch-2`, ...
        cache: bytes of decoded pictures that each process keeps.
        text_states: what `write_text_states` wrote of the run, for trainings that share a frozen text tower; None: it
            is computed for this one.
        trainings: that run on this machine at a time and share its memory.
    """

    device: Device
    pieces: int | None = None
    checkpointing: bool = False
    local_loss: bool = True
    threads: int = 2
    save_every: int | None = None
    report_every: int | None = None
    keep_epochs: bool = False
    cache: int = 1 << 30
    text_states: Path | None = None
    trainings: int = 1

    def __post_init__(self) -> None:
        at_least_one(pieces=self.pieces or 1, threads=self.threads, trainings=self.trainings)
        at_least_one(save_every=self.save_every or 1, report_every=self.report_every or 1)


@dataclass(frozen=True)
class Task:
    """One training: of what, where to, how, and which process of it this is."""

    run: Run
    pool: Pool
    rows: TrainingRows
    folder: Path
    training: ClipTraining
    how: How
    processes: Processes
    held: TrainingRows | None = None

    @property
    def state(self) -> Path:
        """The folder of settings, metrics and checkpoint."""
        return self.folder / TRAINING

    @property
    def torch_device(self) -> str:
        """Where this process computes."""
        kind = self.how.device.kind
        return f"cuda:{self.processes.local_rank}" if kind == "cuda" and self.processes.count > 1 else kind

    def captions(self, start: int, stop: int) -> Iterator[str]:
        """Yields the captions of the training's rows number start to stop - 1."""
        rows = self.rows.rows[start:stop]
        first = 0
        for shard, size in zip(self.run.shards, self.run.sizes, strict=True):
            low, high = np.searchsorted(rows, [first, first + size])
            if high > low:
                column = self.run.index(shard, ["caption"]).column("caption")
                yield from column.take(pa.array(rows[low:high] - first)).to_pylist()
            first += size


@dataclass(frozen=True)
class Prepared:
    """This process's part of a batch, in pieces.

    Attributes:
        pieces: each (b, side, side, 3) uint8 pixels, then ids and mask, or the states of a frozen text tower.
        usable: (n,) bool, of the pairs in the pieces.
        unreadable: pairs of the batch that could not be read.
    """

    pieces: Sequence[tuple[torch.Tensor, ...]]
    usable: torch.Tensor
    unreadable: int


class Preparation:
    """Cuts batches into pieces and captions into tokens, in the thread that reads ahead."""

    def __init__(self, task: Task, towers: Towers, states: Floats | None) -> None:
        # A tokenizer of its own: two threads must not use one.
        self._towers = replace(towers, tokenizer=copy.deepcopy(towers.tokenizer))
        self._states = states
        self._how = task.how
        self._alone = task.processes.count == 1

    def __call__(self, batch: Batch) -> Prepared:
        """Returns the batch prepared."""
        import torch

        pin = self._how.device.kind != "cpu"
        unreadable = int((~batch.usable).sum())
        # Batch normalisation must not see the black images that stand for unreadable ones. Several processes need
        # batches of one size and refuse such models, so they keep them.
        if self._alone and 0 < unreadable < len(batch.captions):
            batch = batch.readable()
        size = len(batch.captions)
        pieces = []
        for part in np.array_split(np.arange(size), min(self._how.pieces or 1, size)):
            start, stop = int(part[0]), int(part[-1]) + 1
            text: tuple[torch.Tensor, ...]
            if self._states is not None:
                text = (torch.from_numpy(self._states[batch.places[start:stop]]),)
            else:
                text = self._towers.tokens(batch.captions[start:stop])
            piece = (batch.pixels[start:stop], *text)
            pieces.append(tuple(one.pin_memory() for one in piece) if pin else piece)
        return Prepared(pieces, batch.usable, unreadable)


class Step:
    """The loss and the gradients of a step, as `loop.fit` asks for them."""

    def __init__(self, task: Task, towers: Towers, watch: Watch, states: Floats | None, first: int) -> None:
        self._task = task
        self._towers = towers
        self._watch = watch
        self._step = first
        self._contrastive = Contrastive(
            embedding(task, towers, cached=states is not None),
            lambda: towers.model.logit_scale.exp(),
            local=task.how.local_loss,
            processes=task.processes,
            precision=partial(multiplying, task.how.device.precision, towers.device.type),
        )

    def loss(self, batch: Prepared) -> torch.Tensor:
        """Returns the loss of a batch."""
        import torch

        processes = self._task.processes
        if not processes.largest(int(batch.usable.any())):  # of all processes: a loss of no pair is no number
            raise StopError(
                f"not one of the {self._task.training.batch} images of step {self._step + 1} can be read, and the run "
                f"says that all can: {self._task.pool.spec.paths[0]} has changed since. Restore it and repeat the "
                "command, or score it into a new run"
            )
        # What dropout draws is a function of seed, step and process: a checkpoint need not hold it.
        torch.manual_seed(hash((self._task.training.seed, self._step, processes.rank)) % (1 << 62))
        self._step += 1
        if self._task.training.freeze_text:
            self._towers.model.text_model.eval()
        value = self._contrastive.loss(batch.pieces, batch.usable.to(self._towers.device))
        self._watch.saw(value, batch.unreadable)
        return value

    def backward(self, loss: torch.Tensor) -> None:
        """Puts the gradients of the last loss into the parameters, the same in every process."""
        self._contrastive.backward(loss)
        self._task.processes.average_gradients(self._towers.model.parameters())


def embedding(task: Task, towers: Towers, *, cached: bool) -> Embed:
    """Returns the function that embeds a piece of a batch; `cached` says that its texts are a frozen tower's states."""
    import torch

    def embed(piece: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, torch.Tensor]:
        pixels, *text = (one.to(towers.device, non_blocking=True) for one in piece)
        images = towers.images(pixels)
        if cached:
            return images, towers.model.text_projection(text[0])
        if not task.training.freeze_text:
            return images, towers.texts(*text)
        with torch.no_grad():
            states = towers.states(*text)
        return images, towers.model.text_projection(states)

    return embed


class Watch:
    """What is done after each step: the temperature's bounds, metrics, the models of epochs, checkpoints."""

    def __init__(
        self,
        task: Task,
        towers: Towers,
        optimiser: torch.optim.Optimizer,
        facts: Mapping[str, Any],
        flops: float,
        held: HeldOut | None,
    ) -> None:
        """Prepares.

        Args:
            task, towers, optimiser: of the training.
            facts: of the checkpoint that it goes on from.
            flops: floating-point operations of the model for one pair, forwards and backwards.
            held: the pairs that are held out, in the first process; None where there are none.
        """
        self._task = task
        self._towers = towers
        self._optimiser = optimiser
        self._flops = flops
        self._held = held
        self._since_check: list[float] = []
        self._peak = peak(towers.device, task.how.device.precision) * task.processes.count
        self._first = self.saved = int(facts["step"])
        self._unreadable = int(facts.get("unreadable", 0))  # of all processes, until the last report
        self._new_unreadable = 0
        self._loss = 0.0
        self._reported = self._first
        self._start = self._began = self._last = time.monotonic()
        self._seconds_before = float(facts.get("seconds", 0.0))
        self._counted_from = self._first
        steps = task.training.steps
        self._report_every = task.how.report_every or max(1, min(100, steps // 100))
        self._save_every = task.how.save_every or max(50, min(1000, steps // 20))
        self._metrics = task.state / "metrics.jsonl"
        if task.processes.first:
            self._forget_later_lines()

    def saw(self, loss: torch.Tensor, unreadable: int) -> None:
        """Takes note of a step's loss and of what could not be read of its batch."""
        self._loss += float(loss.detach())
        self._since_check.append(float(loss.detach()))
        self._new_unreadable += unreadable

    def __call__(self, step: int) -> None:
        """Does what is due after a step, counted from 1."""
        import torch

        if step == self._first + 1:  # the first step waits for the first pictures; speed is that of the others
            self._began, self._counted_from = time.monotonic(), step
        with torch.no_grad():
            self._towers.model.logit_scale.clamp_(0, _MOST)
        of = self._task.training
        last = step == of.steps
        if self._held is not None and self._held.is_due(step):
            lowest = self._held.check(step, sum(self._since_check) / len(self._since_check))
            self._since_check.clear()
            if lowest and of.keep_best:
                save_checkpoint(self._task.state / BEST, self._towers.model, self._optimiser, {"step": step})
        if step % self._report_every == 0 or last:
            self._report(step)
        epoch = step * of.batch // self._task.rows.epoch_size
        ended = epoch > (step - 1) * of.batch // self._task.rows.epoch_size
        if ended and self._task.how.keep_epochs and self._task.processes.first:
            check_finite(self._towers.model, step)
            self._towers.save(self._task.folder / f"epoch-{epoch}")
        if step % self._save_every == 0 or last:
            self._count_unreadable()
            if self._task.processes.first:
                facts = {
                    "step": step,
                    "pieces": self._task.how.pieces,
                    "unreadable": self._unreadable,
                    "seconds": self._seconds(),
                    **(self._held.facts() if self._held else {}),
                }
                save_checkpoint(self._task.state / "checkpoint.safetensors", self._towers.model, self._optimiser, facts)
            self.saved = step

    def result(self) -> dict[str, Any]:
        """Returns what came of the training, for `training.json`."""
        self._count_unreadable()
        steps = self._task.training.steps
        seconds = time.monotonic() - self._began
        counted = steps - self._counted_from
        speed = counted * self._task.training.batch / seconds if counted and seconds else 0.0
        return {
            "steps": steps,
            "samples": steps * self._task.training.batch,
            "pairs": int(self._task.rows.rows.size),
            "unreadable": self._unreadable,
            "seconds": self._seconds(),
            "samples_per_second": speed,
            "utilisation": speed * self._flops / self._peak,
        }

    def _seconds(self) -> float:
        """Seconds that the steps have taken, those of earlier calls until their last checkpoint among them."""
        return self._seconds_before + time.monotonic() - self._start

    def _report(self, step: int) -> None:
        import torch

        of, processes = self._task.training, self._task.processes
        now = time.monotonic()
        steps = step - self._reported
        total = processes.total(torch.tensor([self._loss], dtype=torch.float64, device=self._towers.device))
        self._count_unreadable()
        speed = steps * of.batch / max(1e-9, now - self._last)
        line = {
            "step": step,
            "samples": step * of.batch,
            "epoch": step * of.batch / self._task.rows.epoch_size,
            "loss": float(total[0]) / processes.count / steps,
            "learning_rate": self._optimiser.param_groups[0]["lr"],
            "scale": math.exp(float(self._towers.model.logit_scale.detach())),
            "unreadable": self._unreadable,
            "samples_per_second": speed,
            "utilisation": speed * self._flops / self._peak,
        }
        held = ""
        if self._held is not None and self._held.last is not None:
            line["held_out_loss"] = self._held.last
            held = f", held-out loss {self._held.last:.3f}"
        self._loss, self._last, self._reported = 0.0, now, step
        if not processes.first:
            return
        with explained(self._metrics), open(self._metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        log.info(
            "step %d of %d: mean loss of the last %d steps %.3f%s, scale %.1f, %.0f samples/s, MFU %.1f %%",
            step, of.steps, steps, line["loss"], held, line["scale"], speed, 100 * line["utilisation"],
        )  # fmt: skip

    def _count_unreadable(self) -> None:
        import torch

        found = torch.tensor([self._new_unreadable], dtype=torch.float64, device=self._towers.device)
        self._unreadable += round(float(self._task.processes.total(found)[0]))
        self._new_unreadable = 0

    def _forget_later_lines(self) -> None:
        """Drops the lines of steps that are done again."""
        if not self._metrics.is_file():
            return
        lines = []
        for line in self._metrics.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                if json.loads(line)["step"] <= self._first:
                    lines.append(line + "\n")
            except (ValueError, TypeError, LookupError):  # cut by the end of its process, or damaged since
                continue
        with writing(self._metrics) as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")


def adamw(model: torch.nn.Module, training: ClipTraining) -> torch.optim.AdamW:
    """Returns AdamW on everything that wants a gradient, with weight decay on what has two dimensions or more."""
    import torch

    wanted = [one for one in model.parameters() if one.requires_grad]
    groups = [
        {"params": [one for one in wanted if one.ndim >= 2], "weight_decay": training.weight_decay},
        {"params": [one for one in wanted if one.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (training.beta1, training.beta2)
    return torch.optim.AdamW(groups, lr=training.learning_rate, betas=betas, eps=training.epsilon)


def checkpoint_layers(model: Any) -> None:
    """Lets layers be recomputed on the way back.

    Raises:
        StopError: the model cannot.
    """
    parts = [model] if model.supports_gradient_checkpointing else [model.vision_model, model.text_model]
    for part in parts:
        if not any(one.requires_grad for one in part.parameters()):
            continue
        if not part.supports_gradient_checkpointing:
            raise StopError(
                f"{type(part).__name__} cannot recompute its layers: leave --checkpointing out, and cut batches "
                "into --pieces instead"
            )
        # transformers 6 drops the older name.
        enable = getattr(part, "activation_checkpointing_enable", None) or part.gradient_checkpointing_enable
        enable()


def flops_per_pair(task: Task, towers: Towers, cached: bool) -> float:
    """Returns the operations that the model needs for one pair: three times those of a pass forwards, where it learns.

    Source: the way back is two products for each one forwards (Chowdhery et al. 2022, appendix B). What is recomputed
    to save memory does not count.
    """
    import torch

    towers.model.eval()
    pixels = torch.zeros(2, towers.side, towers.side, 3, dtype=torch.uint8, device=towers.device)
    total = 3 * forward_flops(lambda: towers.images(pixels)) / 2
    if not cached:
        captions = list(task.captions(0, 16))
        tokens = [one.to(towers.device) for one in towers.tokens(captions)]
        forward = forward_flops(lambda: towers.texts(*tokens)) / len(captions)
        total += forward * (1 if task.training.freeze_text else 3)
    return total


def text_states(task: Task, towers: Towers) -> Floats | None:
    """Returns what a frozen text tower makes of every caption, (n, width) float32, memory-mapped.

    It is computed once, each process its share, into a file that a training that goes on reads again. None where there
    are too many captions: then the tower runs in every step.
    """
    import torch

    rows, processes = task.rows.rows.size, task.processes
    width = int(towers.model.text_projection.in_features)
    if rows > _MOST_STATES:
        return None
    if task.how.text_states is not None:
        shared: Floats = _mapped(task.how.text_states, Owner(len(task.run), ""), width)[task.rows.rows]
        return shared
    path = task.state / "text-states.npy"
    owner = Owner(rows, uids_digest(task.rows.high, task.rows.low))
    if processes.largest(int(path.is_file())):
        return _mapped(path, owner, width)
    unfinished = path.with_name(".text-states.npy.tmp")
    if processes.first:
        with explained(path):
            empty = np.lib.format.open_memmap(unfinished, "w+", np.float32, (rows, width))
            with open(unfinished, "r+b") as file:  # or a full disk would end the process when a page is written
                os.posix_fallocate(file.fileno(), 0, unfinished.stat().st_size)
            del empty
        log.info("reading %d captions with the frozen text tower", rows)
    processes.wait()
    out = np.lib.format.open_memmap(unfinished, "r+")
    towers.model.eval()
    share = np.linspace(0, rows, processes.count + 1).astype(int)
    with torch.inference_mode():
        for start in range(share[processes.rank], share[processes.rank + 1], _STATES_AT_ONCE):
            stop = min(start + _STATES_AT_ONCE, share[processes.rank + 1])
            out[start:stop] = _states(towers, list(task.captions(start, stop)), task.how.device.batch_size)
    out.flush()
    processes.wait()
    if processes.first:
        finish_array(unfinished, path, rows, owner.uids)
        unfinished.replace(path)
    processes.wait()
    return _mapped(path, owner, width)


def write_text_states(run: Run, towers: Towers, batch: int, path: Path) -> bool:
    """Writes what a frozen text tower makes of every caption of a run, for all trainings on parts of it.

    Args:
        run: whose captions.
        towers: whose text tower; its device is where it runs.
        batch: captions at once.
        path: the file, (rows, width) float32; rows without a caption have that of "".

    Returns:
        Whether it was written; not where there are too many captions to keep.
    """
    import torch

    if len(run) > _MOST_STATES:
        return False
    log.info("reading %d captions with the frozen text tower", len(run))
    towers.model.eval()
    with writing(path) as temporary, torch.inference_mode():
        out = np.lib.format.open_memmap(
            temporary, "w+", np.float32, (len(run), int(towers.model.text_projection.in_features))
        )
        first = 0
        for shard, size in zip(run.shards, run.sizes, strict=True):
            captions = [text or "" for text in run.index(shard, ["caption"]).column("caption").to_pylist()]
            for start in range(0, size, _STATES_AT_ONCE):
                part = captions[start : start + _STATES_AT_ONCE]
                out[first + start : first + start + len(part)] = _states(towers, part, batch)
            first += size
        out.flush()
        finish_array(temporary, path, len(run), "")
    return True


def _states(towers: Towers, captions: Sequence[str], batch: int) -> NDArray[np.float32]:
    order = sorted(range(len(captions)), key=lambda number: len(captions[number]))
    found: list[NDArray[np.float32]] = []
    for start in range(0, len(order), batch):
        tokens = towers.tokens([captions[number] for number in order[start : start + batch]])
        found.append(towers.states(*(one.to(towers.device) for one in tokens)).float().cpu().numpy())
    out = np.concatenate(found)
    out[order] = out.copy()
    return out


def _mapped(path: Path, owner: Owner, width: int) -> Floats:
    """Returns states that are kept, (rows, width), memory-mapped.

    Raises:
        RunError: they are not those that were written, or of another tower.
    """
    try:
        found = read_rows(path, owner)
    except DamageError as error:
        raise RunError(f"{path} is damaged: {error.what}; delete it and repeat the command") from error
    if found.shape[1] != width:
        raise RunError(
            f"{path} holds {found.shape[1]} numbers for a caption, the text tower makes {width}: delete it and repeat "
            "the command"
        )
    return found
