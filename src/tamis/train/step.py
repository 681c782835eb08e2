"""A step of a training: prepares a batch, computes loss and gradients.

Also measures a step's memory, which decides the number of pieces, and its operations, for the utilisation.
"""

from __future__ import annotations

import copy
import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Floats
from tamis.core.compute import Precision
from tamis.core.errors import DamageError, RunError, StopError, at_least_one
from tamis.core.files.checked import Owner, finish_array
from tamis.core.files.storage import writing
from tamis.core.types import Device
from tamis.models.clip import DUAL
from tamis.models.device import free_memory
from tamis.models.reference import TRAINING
from tamis.runs.parts import read_rows
from tamis.runs.run import Run
from tamis.runs.subset import OtherCaptions, captions_of
from tamis.train.batches import Batch, TrainingRows
from tamis.train.loop import ProcessGroup, autocast
from tamis.train.scales import ClipTraining, Training
from tamis.train.towers import Towers, needs_whole_batch

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

MOST_STATES = 4_000_000  # keep the text states of at most so many captions: 6 GB at width 384
_STATES_AT_ONCE = 1 << 16

_SHARE = 0.8  # use at most this share of the free memory
_MEASURED = 16  # measure a step of at most so many pairs
#: On a CPU a step of ViT-B-32 used 1.12 times the memory of its tensors: kernels and the allocator need some too.
_OVERHEAD = 1.25
#: Largest piece in bytes on a CPU: larger ones are no faster (ViT-B-32: 64 pairs take 4 times as long as 16).
_ENOUGH_ON_A_CPU = 2 << 30
_READ_AHEAD = 7  # batches of images in memory: being decoded, waiting or in use
_CACHE_SHARE = 8  # decoded images take at most one part in so many of the free memory
_CACHED_IMAGE = 1 << 20  # estimated bytes of a cached image: 600 x 600 pixels
_LOGITS = 6  # the loss has so many matrices as large as its logits
_CAPTIONS = 10_000  # sampled to find the longest

#: Floating-point operations per second on dense bf16 matrices, by NVIDIA's data sheets.
PEAKS = {"H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "A10": 125e12}


@dataclass(frozen=True, kw_only=True)
class How:
    """Where and in how many pieces to train. Changes results only by rounding."""

    device: Device
    pieces: Annotated[int | None, "Pieces that each process's batch is cut into; by default as memory allows."] = None
    checkpointing: Annotated[bool, "Recompute layers in the backward pass: less memory, a third slower."] = False
    local_loss: bool = True  # see `losses.loss_over_processes`
    threads: Annotated[int, "Threads that read and decode, per process."] = 2
    save_every: Annotated[int | None, "Steps between checkpoints; by default a twentieth of all, 50 to 1,000."] = None
    report_every: Annotated[int | None, "Steps between lines of metrics; by default a hundredth, at most 100."] = None
    keep_epochs: Annotated[bool, "Keep the model at the end of each epoch."] = False
    cache: int | None = None  # bytes of decoded images that each process keeps; None: see `with_cache`
    #: file for the frozen text tower's states of the run's captions, which trainings share; written if it is missing
    text_states: Path | None = None
    trainings: int = 1  # number of trainings that share this machine's memory

    def __post_init__(self) -> None:
        at_least_one(pieces=self.pieces or 1, threads=self.threads, trainings=self.trainings)
        at_least_one(save_every=self.save_every or 1, report_every=self.report_every or 1)


@dataclass(frozen=True)
class TrainingContext:
    """A training, as one of its processes sees it."""

    run: Run
    rows: TrainingRows
    folder: Path
    training: Training
    how: How
    processes: ProcessGroup
    held: TrainingRows | None = None  # held-out pairs

    @property
    def state(self) -> Path:
        """The folder with settings, metrics and checkpoint."""
        return self.folder / TRAINING

    def captions(self, count: int) -> Iterator[str]:
        """Yields the captions of the first pairs."""
        return captions_of(self.run, self.rows.rows[:count], self.rows.others)


@dataclass(frozen=True)
class Prepared:
    """This process's share of a batch, in pieces."""

    #: each has (b, side, side, 3) uint8 pixels, then ids and mask, or the states of a frozen text tower
    pieces: Sequence[tuple[torch.Tensor, ...]]
    usable: torch.Tensor  # (n,) bool, for the pairs in the pieces
    unreadable: int  # pairs of the batch that could not be read


def with_cache(context: TrainingContext) -> TrainingContext:
    """Returns the context with room for decoded images, unless it is set: an eighth of the free memory if more
    pairs are shown than there are, else none.
    """
    how = context.how
    if how.cache is None and context.training.steps * context.training.batch <= context.rows.rows.size:
        how = replace(how, cache=0)
    elif how.cache is None:
        sharing = how.trainings * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        room = free_memory("cpu") // _CACHE_SHARE // sharing
        how = replace(how, cache=room)
        log.info(
            "decoded images are kept to be shown again, up to %.3g GiB: an eighth of the free memory", room / 2**30
        )
    return replace(context, how=how)


def preparation(context: TrainingContext, towers: Towers, states: Floats | None) -> Callable[[Batch], Prepared]:
    """Returns the function that splits batches into pieces and tokenizes captions, for the reading thread."""
    import torch

    # Two threads must not share a tokenizer.
    towers = replace(towers, tokenizer=copy.deepcopy(towers.tokenizer))

    def prepare(batch: Batch) -> Prepared:
        unreadable = int((~batch.usable).sum())
        # Batch normalisation must not see the black images that stand for unreadable ones. Several processes need
        # batches of one size, so they keep these images; they refuse models with batch normalisation.
        if context.processes.count == 1 and 0 < unreadable < len(batch.captions):
            batch = batch.readable()
        size = len(batch.captions)
        pieces = []
        for part in np.array_split(np.arange(size), min(context.how.pieces or 1, size)):
            some = slice(int(part[0]), int(part[-1]) + 1)
            if states is not None:
                text: tuple[torch.Tensor, ...] = (torch.from_numpy(states[batch.indices[some]]),)
            else:
                text = towers.tokens(batch.captions[some])
            piece = (batch.pixels[some], *text)
            pieces.append(piece if context.how.device.kind == "cpu" else tuple(one.pin_memory() for one in piece))
        return Prepared(pieces, batch.usable, unreadable)

    return prepare


class TrainingStep:
    """Computes loss and gradients of each step, for `loop.fit`."""

    def __init__(self, context: TrainingContext, towers: Towers, first: int) -> None:
        self._context = context
        self._towers = towers
        self._step = first
        self.unreadable = 0  # pairs in this process since `Watch` last counted them

    def __call__(self, batch: Prepared) -> torch.Tensor:
        """Sets the gradients, the same in every process, and returns this process's loss."""
        import torch

        context, towers = self._context, self._towers
        if not context.processes.largest(int(batch.usable.any())):
            raise StopError(f"no image of step {self._step + 1} can be read: restore {context.run.pool.spec.paths[0]}")
        # Dropout depends on seed, step and process only, so checkpoints need no random state.
        torch.manual_seed(hash((context.training.seed, self._step, context.processes.rank)) % (1 << 62))
        self._step += 1
        self.unreadable += batch.unreadable
        if _freezes_text(context.training):
            towers.model.text_model.eval()
        cast = partial(autocast, context.how.device.precision, towers.device.type)
        value = towers.gradients(
            batch.pieces, batch.usable.to(towers.device), cast, local=context.how.local_loss,
            processes=context.processes,
        )  # fmt: skip
        context.processes.average_gradients(towers.model.parameters())
        return value


def _freezes_text(training: Training) -> bool:
    return isinstance(training, ClipTraining) and training.freeze_text


def text_states(context: TrainingContext, towers: Towers) -> Floats | None:
    """Returns what the frozen text tower makes of each caption, (n, width) float32, memory-mapped from a file.

    None if the tower must run in every step: it is not frozen, or there are several processes or too many captions.
    """
    rows, run = context.rows.rows, context.run
    if not _freezes_text(context.training) or context.processes.count > 1 or rows.size > MOST_STATES:
        return None
    shared = context.how.text_states
    path = shared or context.state / "text-states.npy"
    embedded = np.arange(len(run)) if shared else rows
    if not path.is_file():
        others = OtherCaptions() if shared else context.rows.others
        write_text_states(run, embedded, others, towers, context.how.device.batch_size, path)
    try:
        states: Floats = read_rows(path, Owner(embedded.size, ""))
    except DamageError as error:
        raise RunError(f"{path} is damaged: {error.what}; delete it and repeat the command") from error
    return states[rows] if shared else states


def write_text_states(
    run: Run, rows: NDArray[np.int64], others: OtherCaptions, towers: Towers, batch: int, path: Path
) -> None:
    """Writes the frozen text tower's states of some rows' captions, (rows, width) float32."""
    import torch

    log.info("embedding %d captions with the frozen text tower", rows.size)
    towers.model.eval()
    width = int(towers.model.text_projection.in_features)
    with writing(path) as temporary, torch.inference_mode():
        with temporary.open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (rows.size, width)}
            np.lib.format.write_array_header_1_0(file, header)
            for start in range(0, rows.size, _STATES_AT_ONCE):
                captions = list(captions_of(run, rows[start : start + _STATES_AT_ONCE], others))
                order = sorted(range(len(captions)), key=lambda number: len(captions[number]))
                states = np.empty((len(captions), width), np.float32)
                for low in range(0, len(order), batch):
                    some = order[low : low + batch]
                    tokens = towers.tokens([captions[number] for number in some])
                    states[some] = towers.states(*(one.to(towers.device) for one in tokens)).float().cpu().numpy()
                file.write(states.tobytes())
        finish_array(temporary, path, rows.size, "")


def recompute_layers(towers: Towers) -> None:
    """Makes the model recompute its layers in the backward pass, to save memory."""
    model = towers.model
    dual = model.config.model_type == DUAL
    for part in [model.vision_model, model.text_model] if dual else [model]:
        if any(one.requires_grad for one in part.parameters()):
            if not part.supports_gradient_checkpointing:
                other = "a smaller --train-batch" if needs_whole_batch(model) else "--pieces"
                raise StopError(f"{type(part).__name__} cannot recompute its layers: use {other}, not --checkpointing")
            # transformers 6 drops the older name.
            enable = getattr(part, "activation_checkpointing_enable", None) or part.gradient_checkpointing_enable
            enable()


def choose_pieces(context: TrainingContext, towers: Towers, states: Floats | None) -> int:
    """Returns the number of pieces into which each process splits its share of a batch, and logs why."""
    training, how, size = context.training, context.how, context.training.batch // context.processes.count
    free = free_memory(how.device.kind) // how.trainings
    if how.device.kind == "cpu":  # torchrun says how many processes share this machine
        free //= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    usable = int(_SHARE * free)
    fixed = _fixed_bytes(context, towers)
    pair = _per_pair(context, towers, states, usable - fixed) if usable > fixed else 0
    gib = 2**30
    needs = (
        f"{f'a pair takes {pair / gib:.3g} GiB, ' if pair else ''}gradients, AdamW and images read ahead "
        f"{fixed / gib:.3g} GiB; {usable / gib:.3g} GiB may be used, {_SHARE:.0%} of the free memory"
    )
    fitting, whole = (usable - fixed) // pair if pair else 0, needs_whole_batch(towers.model)
    if fitting < 1 or (whole and fitting < size):
        cut = f" {training.model} normalises over the batch, so it cannot be cut into pieces." if whole else ""
        raise StopError(f"{training.model} does not fit into memory: {needs}.{cut} Use a smaller --train-batch")
    if how.device.kind == "cpu" and not whole:
        fitting = min(fitting, max(1, _ENOUGH_ON_A_CPU // pair))
    pieces = math.ceil(size / fitting)
    log.info("a batch of %d is computed in pieces of at most %d pairs: %s", size, math.ceil(size / pieces), needs)
    return pieces


def _fixed_bytes(context: TrainingContext, towers: Towers) -> int:
    """Bytes needed whatever the number of pieces: gradients, AdamW's two moments, the loss, images."""
    size = context.training.batch // context.processes.count
    trained = sum(one.nbytes for one in towers.model.parameters() if one.requires_grad)
    fixed: int = 3 * trained + 4 * _LOGITS * size * context.training.batch
    if context.how.device.kind == "cpu":
        fixed += min(context.how.cache or 0, context.rows.rows.size * _CACHED_IMAGE)
        fixed += _READ_AHEAD * size * 3 * towers.side**2
    return fixed


def _per_pair(context: TrainingContext, towers: Towers, states: Floats | None, room: int) -> int:
    """Bytes per pair of a batch, measured in a step on two pairs and, if they fit, on up to 16."""
    import torch

    model = towers.model
    buffers = {
        name: one.clone() for name, one in model.named_buffers()
    }  # the measured steps change batch normalisation's statistics
    ids, mask = towers.tokens(list(context.captions(_CAPTIONS)))
    longest = int(mask.sum(1).argmax())
    cast = partial(autocast, context.how.device.precision, towers.device.type)

    def step(count: int) -> None:
        pixels = torch.zeros(count, towers.side, towers.side, 3, dtype=torch.uint8)
        text: Sequence[torch.Tensor] = [one[[longest] * count] for one in (ids, mask)]
        if states is not None:
            text = [torch.zeros(count, states.shape[1])]
        towers.gradients([(pixels, *text)], torch.ones(count, dtype=torch.bool, device=towers.device), cast)

    model.train()
    step(2)  # batch normalisation needs two pairs; this also allocates the gradients
    size = peak_bytes(lambda: step(2)) / 2
    count = min(_MEASURED, context.training.batch // context.processes.count)
    if count * size < room:
        size = peak_bytes(lambda: step(count)) / count
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, one in model.named_buffers():
            one.copy_(buffers[name])
    return math.ceil(_OVERHEAD * size)


def peak_bytes(call: Callable[[], Any]) -> int:
    """Peak bytes of the tensors that a call creates, including its backward pass."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        now: int = 0
        top: int = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            inputs = {id(one.untyped_storage()) for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
            made = function(*args, **(kwargs or {}))
            for one in tree_leaves(made):
                if isinstance(one, torch.Tensor):
                    storage = one.untyped_storage()
                    if id(storage) not in inputs and storage not in known:
                        known.add(storage)
                        weakref.finalize(storage, self.freed, storage.nbytes())
                        self.now += storage.nbytes()
                        self.top = max(self.top, self.now)
            return made

        def freed(self, size: int) -> None:
            self.now -= size

    known: weakref.WeakSet[Any] = weakref.WeakSet()
    counting = Counting()  # type: ignore[no-untyped-call]
    with counting:
        call()
    return counting.top


def flops_per_pair(context: TrainingContext, towers: Towers, states: Floats | None) -> float:
    """Operations per pair: a forward pass, times three for each tower that learns.

    Source: the backward pass has two products for each forward one (Chowdhery et al. 2022, "PaLM", appendix B).
    Recomputation to save memory does not count.
    """
    import torch

    towers.model.eval()
    pixels = torch.zeros(2, towers.side, towers.side, 3, dtype=torch.uint8, device=towers.device)
    total = 3 * forward_flops(lambda: towers.images(pixels)) / 2
    if states is None:
        captions = list(context.captions(16))
        tokens = [one.to(towers.device) for one in towers.tokens(captions)]
        forward = forward_flops(lambda: towers.texts(*tokens)) / len(captions)
        total += forward * (1 if _freezes_text(context.training) else 3)
    return total


def forward_flops(call: Callable[[], Any]) -> int:
    """Floating-point operations of a call's matrix products, without gradients."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counted:
        call()
    return int(counted.get_total_flops())


def peak_rate(device: torch.device, precision: Precision) -> float:
    """Floating-point operations per second of the device at best; MFU is relative to it.

    The data sheet's number in bf16 on a GPU of `PEAKS`; otherwise what a large matrix product reaches.
    """
    import torch

    if device.type == "cuda" and precision == "bf16":
        name = torch.cuda.get_device_name(device)
        for known, number in PEAKS.items():
            if all(part in name for part in known.split()):
                return number
    return product_rate(device, precision, side=4096 if device.type == "cuda" else 768)


def product_rate(device: torch.device, precision: Precision, *, side: int, rounds: int = 4) -> float:
    """Floating-point operations per second of a product of square matrices; the best of `rounds`."""
    import torch

    one = torch.ones(side, side, dtype=torch.bfloat16 if precision == "bf16" else torch.float32, device=device)
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        float((one @ one)[0, 0])
        best = min(best, time.perf_counter() - start)
    return float(2 * side**3 / best)
