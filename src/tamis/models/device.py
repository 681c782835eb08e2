"""Where networks run, in which precision, and on how many cores."""

from __future__ import annotations

import importlib.util
import logging
import math
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar, get_args

from tamis.core.compute import Precision
from tamis.core.errors import StopError, TamisError, nearest, plural
from tamis.core.machine import fast_bf16
from tamis.core.machine import free_memory as free_here
from tamis.core.types import Device

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

_DEVICE = re.compile(r"cpu|cuda(:\d+)?")


def device_for(
    device: str | None = None,
    precision: str | None = None,
    batch_size: int | None = None,
    threads: int | None = None,
    *,
    away: bool = False,
    networks: bool = True,
) -> Device:
    """Chooses where networks run: on a GPU if torch sees one, and in bf16 if the hardware has it.

    `away`: on other machines, whose devices we cannot check. `networks` False: nothing runs on a device, so we spare
    the seconds that importing torch takes. Raises StopError for an unknown or unavailable device, or settings that
    contradict each other.
    """
    kind = device or ("cuda" if networks and _gpus() else "cpu")
    if not _DEVICE.fullmatch(kind):
        raise StopError(f"unknown device {kind!r}{nearest(kind, ['cpu', 'cuda'])}; known: cpu, cuda, cuda:0, ...")
    gpus = 0 if kind == "cpu" else _gpus()
    here = kind == "cpu" or int(kind.partition(":")[2] or 0) < gpus
    if not here and not away:
        raise StopError(f"the device {kind!r} is not available: torch sees {plural(gpus, 'GPU')}; use --device cpu")
    if precision is None:
        fast = fast_bf16() if kind == "cpu" else not here or all(map(_has_bf16, visible_devices(Device(kind=kind))))
        precision = "bf16" if fast else "float32"
    if precision not in get_args(Precision):
        raise StopError(f"unknown precision {precision!r}; known: {', '.join(get_args(Precision))}")
    for name, value in (("batch size", batch_size), ("number of threads", threads)):
        if value is not None and value < 1:
            raise StopError(f"the {name} must be at least 1, got {value}")
    size = batch_size or (64 if kind == "cpu" else 256)
    return Device(kind=kind, precision=precision, batch_size=size, threads=threads)  # type: ignore[arg-type]


def dtype_of(device: Device) -> torch.dtype:
    """Returns the type of a network's weights."""
    import torch

    return torch.bfloat16 if device.precision == "bf16" else torch.float32


def use_threads(device: Device) -> None:
    """Sets torch's number of CPU threads, if the device has one."""
    import torch

    if device.threads and device.kind == "cpu":
        torch.set_num_threads(device.threads)


def each_core(
    items: Sequence[Item], work: Callable[[Sequence[Item]], Result], batch: int, device: str, *, least: int = 1
) -> list[Result]:
    """Does work on batches of at most `batch` items, in order.

    On a CPU each core has batches of its own, of at least `least` items, and torch does not share products: cores that
    do wait for one another at the end of each, and in all that one of them does alone.
    """
    import torch

    threads = torch.get_num_threads() if device == "cpu" else 1
    cores = max(1, min(threads, len(items) // least))
    rounds = math.ceil(len(items) / (batch * cores))
    size = math.ceil(len(items) / max(1, cores * rounds)) or 1
    batches = [items[start : start + size] for start in range(0, len(items), size)]
    if cores < 2:
        return [work(one) for one in batches]
    try:
        with ThreadPoolExecutor(cores, "", torch.set_num_threads, (threads // cores,)) as pool:
            return list(pool.map(work, batches))
    finally:
        torch.set_num_threads(threads)  # the number is also what new threads begin with


def _gpus() -> int:
    """Returns how many GPUs torch sees: NVIDIA's, also in WSL2, or AMD's with a ROCm build of torch."""
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _has_bf16(kind: str) -> bool:
    """Whether a GPU has bf16 instructions. NVIDIA's before Ampere (T4, V100) only emulate them."""
    import torch

    with torch.cuda.device(kind):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


#: How cuBLAS, ONNX Runtime and torch's allocator on a CPU say that memory ran out.
_MEMORY_RAN_OUT = re.compile(r"out of memory|ALLOC_FAILED|allocate memory")


def memory_ran_out(error: Exception) -> bool:
    """Whether a network failed because its batch did not fit into the device's memory."""
    named = type(error).__name__ == "OutOfMemoryError" or _MEMORY_RAN_OUT.search(str(error))
    return bool(named) and not isinstance(error, TamisError | OSError)


def halve_batch(device: Device, rows: int, what: str) -> Device:
    """Returns the device with half the batch size, after `what` ran out of memory with a batch of `rows`.

    Raises StopError if the batch was halved before, or cannot be.
    """
    size = min(rows, device.batch_size)
    if device.halved or size < 2:
        smaller = f"a --batch-size below {size}, or a smaller model" if size > 1 else "a smaller model"
        raise StopError(f"{what}: {device.kind} has no memory for a batch of {size}: use {smaller}")
    log.warning("%s: %s has no memory for a batch of %d, so we go on with %d", what, device.kind, size, size // 2)
    return replace(device, batch_size=size // 2, halved=True)


def visible_devices(device: Device) -> list[str]:
    """Returns every visible GPU for "cuda", else the device itself."""
    gpus = _gpus() if device.kind == "cuda" else 0
    return [f"cuda:{number}" for number in range(gpus)] or [device.kind]


def free_memory(kind: str) -> int:
    """Returns how many more bytes this process may allocate, on a GPU or in memory."""
    if kind == "cpu":
        return free_here()
    import torch

    unused = torch.cuda.memory_reserved(kind) - torch.cuda.memory_allocated(kind)
    return int(torch.cuda.mem_get_info(kind)[0]) + unused
