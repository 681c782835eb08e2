"""A step of CLIP's training: preparing a batch, embedding it, its loss and gradients."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.arrays import Floats
from tamis.data import Device
from tamis.errors import DamageError, RunError, StopError, at_least_one
from tamis.models.reference import TRAINING
from tamis.pool import Pool
from tamis.storage import writing
from tamis.store.checked import Owner, finish_array
from tamis.store.parts import read_rows
from tamis.store.run import Run
from tamis.train.batches import Batch, TrainingRows
from tamis.train.loop import Processes, autocast
from tamis.train.losses import Embed, backward, loss_over_processes
from tamis.train.scales import ClipTraining
from tamis.train.towers import Towers

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

_MOST_STATES = 4_000_000  # captions whose states are kept: 6 GB at 384 numbers
_STATES_AT_ONCE = 1 << 16


@dataclass(frozen=True, kw_only=True)
class How:
    """Where and in how many pieces to train. It changes results by rounding only."""

    device: Device
    pieces: Annotated[int | None, "Pieces that each process's batch is cut into; by default as memory allows."] = None
    checkpointing: Annotated[bool, "Recompute layers in the backward pass: less memory, a third slower."] = False
    local_loss: bool = True  # see `losses.loss_over_processes`
    threads: Annotated[int, "Threads that read and decode, per process."] = 2
    save_every: Annotated[int | None, "Steps between checkpoints; by default a twentieth of all, 50 to 1,000."] = None
    report_every: Annotated[int | None, "Steps between lines of metrics; by default a hundredth, at most 100."] = None
    keep_epochs: Annotated[bool, "Keep the model at the end of each epoch."] = False
    cache: int = 1 << 30  # bytes of decoded images that each process keeps
    #: file of `write_text_states` for all rows of the run, shared by trainings; None: computed for this training
    text_states: Path | None = None
    trainings: int = 1  # number of trainings that share this machine's memory

    def __post_init__(self) -> None:
        at_least_one(pieces=self.pieces or 1, threads=self.threads, trainings=self.trainings)
        at_least_one(save_every=self.save_every or 1, report_every=self.report_every or 1)


@dataclass(frozen=True)
class Task:
    """One training, in one of its processes."""

    run: Run
    pool: Pool
    rows: TrainingRows
    folder: Path
    training: ClipTraining
    how: How
    processes: Processes
    held: TrainingRows | None = None  # held-out pairs

    @property
    def state(self) -> Path:
        """The folder of settings, metrics and checkpoint."""
        return self.folder / TRAINING

    def captions(self, stop: int) -> Iterator[str]:
        """Yields the captions of the first rows."""
        return captions_of(self.run, self.rows.rows[:stop])


def captions_of(run: Run, rows: NDArray[np.int64]) -> Iterator[str]:
    """Yields the captions of ascending rows of a run; "" for none."""
    first = 0
    for shard, size in zip(run.shards, run.sizes, strict=True):
        low, high = np.searchsorted(rows, [first, first + size])
        if high > low:
            column = run.index(shard, ["caption"]).column("caption")
            yield from (text or "" for text in column.take(pa.array(rows[low:high] - first)).to_pylist())
        first += size


@dataclass(frozen=True)
class Prepared:
    """This process's part of a batch, in pieces."""

    #: each (b, side, side, 3) uint8 pixels, then ids and mask, or the states of a frozen text tower
    pieces: Sequence[tuple[torch.Tensor, ...]]
    usable: torch.Tensor  # (n,) bool, of the pairs in the pieces
    unreadable: int  # pairs of the batch that could not be read


def preparation(task: Task, towers: Towers, states: Floats | None) -> Callable[[Batch], Prepared]:
    """The function that cuts batches into pieces and captions into tokens, for the thread that reads ahead."""
    import torch

    # A tokenizer of its own: two threads must not share one.
    towers = replace(towers, tokenizer=copy.deepcopy(towers.tokenizer))

    def prepare(batch: Batch) -> Prepared:
        unreadable = int((~batch.usable).sum())
        # Batch normalisation must not see the black images in place of unreadable ones. Several processes need batches
        # of one size and refuse such models, so they keep them.
        if task.processes.count == 1 and 0 < unreadable < len(batch.captions):
            batch = batch.readable()
        size = len(batch.captions)
        pieces = []
        for part in np.array_split(np.arange(size), min(task.how.pieces or 1, size)):
            some = slice(int(part[0]), int(part[-1]) + 1)
            if states is not None:
                text: tuple[torch.Tensor, ...] = (torch.from_numpy(states[batch.places[some]]),)
            else:
                text = towers.tokens(batch.captions[some])
            piece = (batch.pixels[some], *text)
            pieces.append(piece if task.how.device.kind == "cpu" else tuple(one.pin_memory() for one in piece))
        return Prepared(pieces, batch.usable, unreadable)

    return prepare


def embedding(task: Task, towers: Towers, *, cached: bool) -> Embed:
    """The function that embeds a piece of a batch; `cached`: its texts are states of the frozen text tower."""
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


class Step:
    """The loss and the gradients of each step, for `loop.fit`."""

    def __init__(self, task: Task, towers: Towers, *, cached: bool, first: int) -> None:
        self._task = task
        self._towers = towers
        self._step = first
        self._embed = embedding(task, towers, cached=cached)
        self.unreadable = 0  # pairs in this process; the reader resets it

    def __call__(self, batch: Prepared) -> torch.Tensor:
        """Sets the gradients, the same in every process, and returns this process's loss."""
        import torch

        task, model = self._task, self._towers.model
        if not task.processes.largest(int(batch.usable.any())):
            raise StopError(
                f"none of the {task.training.batch} images of step {self._step + 1} can be read: "
                f"{task.pool.spec.paths[0]} has changed since it was scored. Restore it and repeat the command"
            )
        # Dropout depends on seed, step and process only, so checkpoints need no generator's state.
        torch.manual_seed(hash((task.training.seed, self._step, task.processes.rank)) % (1 << 62))
        self._step += 1
        self.unreadable += batch.unreadable
        if task.training.freeze_text:
            model.text_model.eval()
        usable = batch.usable.to(self._towers.device)

        def loss(images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
            return loss_over_processes(
                images, texts, model.logit_scale.exp(), usable=usable, local=task.how.local_loss,
                processes=task.processes,
            )  # fmt: skip

        context = partial(autocast, task.how.device.precision, self._towers.device.type)
        value = backward(self._embed, batch.pieces, loss, context)
        task.processes.average_gradients(model.parameters())
        return value


def text_states(task: Task, towers: Towers) -> Floats | None:
    """The frozen text tower's states of every caption, (n, width) float32, memory-mapped from a file.

    None if the tower runs in every step: it is not frozen, there are several processes, or too many captions.
    """
    rows = task.rows.rows
    if not task.training.freeze_text or task.processes.count > 1 or rows.size > _MOST_STATES:
        return None
    shared = task.how.text_states
    path = shared or task.state / "text-states.npy"
    if not path.is_file():
        write_text_states(task.run, rows, towers, task.how.device.batch_size, path)
    try:
        states: Floats = read_rows(path, Owner(len(task.run) if shared else rows.size, ""))
    except DamageError as error:
        raise RunError(f"{path} is damaged: {error.what}; delete it and repeat the command") from error
    return states[rows] if shared else states


def write_text_states(run: Run, rows: NDArray[np.int64], towers: Towers, batch: int, path: Path) -> bool:
    """Writes what a frozen text tower makes of the captions of some rows, (rows, width) float32, unless too many."""
    import torch

    if rows.size > _MOST_STATES:
        return False
    log.info("embedding %d captions with the frozen text tower", rows.size)
    towers.model.eval()
    width = int(towers.model.text_projection.in_features)
    with writing(path) as temporary, torch.inference_mode():
        with temporary.open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows.size, width)}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, rows.size, _STATES_AT_ONCE):
                captions = list(captions_of(run, rows[start : start + _STATES_AT_ONCE]))
                order = sorted(range(len(captions)), key=lambda number: len(captions[number]))
                states = np.empty((len(captions), width), np.float32)
                for low in range(0, len(order), batch):
                    some = order[low : low + batch]
                    tokens = towers.tokens([captions[number] for number in some])
                    states[some] = towers.states(*(one.to(towers.device) for one in tokens)).float().cpu().numpy()
                file.write(states.tobytes())
        finish_array(temporary, path, rows.size, "")
    return True


def checkpoint_layers(towers: Towers) -> None:
    """Recomputes layers in the backward pass."""
    model = towers.model
    for part in [model] if model.supports_gradient_checkpointing else [model.vision_model, model.text_model]:
        if any(one.requires_grad for one in part.parameters()):
            if not part.supports_gradient_checkpointing:
                raise StopError(
                    f"{type(part).__name__} cannot recompute its layers: leave --checkpointing out, and use --pieces"
                )
            # transformers 6 drops the older name.
            enable = getattr(part, "activation_checkpointing_enable", None) or part.gradient_checkpointing_enable
            enable()
