"""What a training step costs: memory, which decides the number of pieces, and operations, for the utilisation."""

from __future__ import annotations

import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tamis.compute import Precision
from tamis.errors import StopError
from tamis.models.device import free_memory
from tamis.train.loop import autocast
from tamis.train.losses import backward, contrastive_loss
from tamis.train.step import Task, embedding
from tamis.train.towers import Towers, needs_whole_batch

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

_SHARE = 0.8  # of the free memory may be used
_MEASURED = 16  # pairs in the measured step, at most
#: On a CPU a step of ViT-B-32 took 1.12 times what its tensors do: kernels and the allocator need some too.
_OVERHEAD = 1.25
#: Most bytes of a piece on a CPU: larger ones are no faster (ViT-B-32: 16 pairs as 64), and others need memory too.
_ENOUGH_ON_A_CPU = 2 << 30
_READ_AHEAD = 7  # batches of images that are decoded, waiting or in use at a time
_CACHED_IMAGE = 1 << 20  # bytes of a decoded image that is kept: 600 x 600 pixels
_LOGITS = 6  # matrices of the loss that are as large as its logits
_CAPTIONS = 10_000  # sampled to find the longest

#: Floating-point operations per second on dense bf16 matrices, by NVIDIA's data sheets.
PEAKS = {"H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "A10": 125e12}


def choose_pieces(task: Task, towers: Towers, *, cached: bool) -> int:
    """The number of pieces that each process's part of a batch is cut into, which the log explains."""
    training, how, size = task.training, task.how, task.training.batch // task.processes.count
    free = free_memory(how.device.kind) // how.trainings
    if how.device.kind == "cpu":  # torchrun says how many processes share this machine
        free //= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    usable = int(_SHARE * free)
    fixed = _fixed(task, towers)
    pair = _per_pair(task, towers, cached, usable - fixed) if usable > fixed else 0
    needs = (
        f"{f'a pair takes {_gib(pair)}, ' if pair else ''}gradients, AdamW and images read ahead {_gib(fixed)}; "
        f"{_gib(usable)} may be used, {_SHARE:.0%} of the free memory"
    )
    fitting, whole = (usable - fixed) // pair if pair else 0, needs_whole_batch(towers.model)
    if fitting < 1 or (whole and fitting < size):
        cut = f" {training.model} normalises over the batch, so it cannot be cut into pieces." if whole else ""
        raise StopError(
            f"{training.model} does not fit into memory: {needs}.{cut} Use a smaller --train-batch or model"
        )
    if how.device.kind == "cpu" and not whole:
        fitting = min(fitting, max(1, _ENOUGH_ON_A_CPU // pair))
    pieces = math.ceil(size / fitting)
    log.info("a batch of %d is computed in pieces of at most %d pairs: %s", size, math.ceil(size / pieces), needs)
    return pieces


def _fixed(task: Task, towers: Towers) -> int:
    """Bytes that do not depend on the pieces: gradients, AdamW's two moments, the loss, images."""
    size = task.training.batch // task.processes.count
    trained = sum(one.nbytes for one in towers.model.parameters() if one.requires_grad)
    fixed: int = 3 * trained + 4 * _LOGITS * size * task.training.batch
    if task.how.device.kind == "cpu":
        fixed += min(task.how.cache, task.rows.rows.size * _CACHED_IMAGE) + _READ_AHEAD * size * 3 * towers.side**2
    return fixed


def _per_pair(task: Task, towers: Towers, cached: bool, room: int) -> int:
    """Bytes that a pair of a batch takes, from a step on two pairs and, if that fits, on some more."""
    import torch

    model = towers.model
    buffers = {name: one.clone() for name, one in model.named_buffers()}  # batch normalisation counts what it sees
    ids, mask = towers.tokens(list(task.captions(_CAPTIONS)))
    longest = int(mask.sum(1).argmax())
    embed = embedding(task, towers, cached=cached)
    context = partial(autocast, task.how.device.precision, towers.device.type)

    def step(count: int) -> None:
        pixels = torch.zeros(count, towers.side, towers.side, 3, dtype=torch.uint8)
        text: Sequence[torch.Tensor] = [one[[longest] * count] for one in (ids, mask)]
        if cached:
            text = [torch.zeros(count, model.text_projection.in_features)]
        backward(
            embed, [(pixels, *text)], lambda one, other: contrastive_loss(one, other, model.logit_scale.exp()), context
        )

    model.train()
    step(2)  # one pair has no variance for batch normalisation; gradients exist afterwards
    size = peak_bytes(lambda: step(2)) / 2
    count = min(_MEASURED, task.training.batch // task.processes.count)
    if count * size < room:
        size = peak_bytes(lambda: step(count)) / count
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, one in model.named_buffers():
            one.copy_(buffers[name])
    return math.ceil(_OVERHEAD * size)


def peak_bytes(call: Callable[[], Any]) -> int:
    """The most bytes of tensors that a call makes and that exist at once, in the backward pass too."""
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


def _gib(size: float) -> str:
    return f"{size / 2**30:.3g} GiB"


def flops_per_pair(task: Task, towers: Towers, cached: bool) -> float:
    """Operations for one pair: those of a forward pass, three times for each part that learns.

    Source: the backward pass has two products for each forward one (Chowdhery et al. 2022, "PaLM", appendix B).
    Recomputation to save memory does not count.
    """
    import torch

    towers.model.eval()
    pixels = torch.zeros(2, towers.side, towers.side, 3, dtype=torch.uint8, device=towers.device)
    total = 3 * forward_flops(lambda: towers.images(pixels)) / 2
    if not cached:
        captions = list(task.captions(16))
        tokens = [one.to(towers.device) for one in towers.tokens(captions)]
        forward = forward_flops(lambda: towers.texts(*tokens)) / len(captions)
        total += forward * (1 if task.training.freeze_text else 3)
    return total


def forward_flops(call: Callable[[], Any]) -> int:
    """Floating-point operations of a call's matrix products, without gradients."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counted:
        call()
    return int(counted.get_total_flops())


def peak_rate(device: torch.device, precision: Precision) -> float:
    """Floating-point operations per second that a device could do, by which MFU divides.

    From the data sheet in bf16 on a GPU of `PEAKS`, else what a large matrix product reaches.
    """
    import torch

    if device.type == "cuda" and precision == "bf16":
        name = torch.cuda.get_device_name(device)
        for known, number in PEAKS.items():
            if all(part in name for part in known.split()):
                return number
    return product_rate(device, precision, side=4096 if device.type == "cuda" else 768)


def product_rate(device: torch.device, precision: Precision, *, side: int, rounds: int = 4) -> float:
    """Floating-point operations per second of a product of square matrices, the best of some rounds."""
    import torch

    one = torch.ones(side, side, dtype=torch.bfloat16 if precision == "bf16" else torch.float32, device=device)
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        float((one @ one)[0, 0])
        best = min(best, time.perf_counter() - start)
    return float(2 * side**3 / best)
