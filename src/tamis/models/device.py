"""Where networks run, in which precision, and how many cores and how much memory this process may use."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_args

from tamis.core.compute import Precision
from tamis.core.errors import StopError, TamisError, nearest, plural
from tamis.core.types import Device

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

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


def at_once(works: Sequence[Callable[[], Result]]) -> list[Result]:
    """Does independent works of a CPU at the same time, each with its share of torch's threads; returns their results.

    Cores that share every product wait for one another at its end, and in all that is done by one of them.
    """
    import torch

    threads = torch.get_num_threads()
    if len(works) < 2:
        return [work() for work in works]
    try:
        with ThreadPoolExecutor(len(works), "", torch.set_num_threads, (max(1, threads // len(works)),)) as pool:
            return [done.result() for done in [pool.submit(work) for work in works]]
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


def fast_bf16() -> bool:
    """Whether this CPU has bf16 instructions (AMX or AVX512-BF16)."""
    flags = _text(Path("/proc/cpuinfo"))
    return "amx_bf16" in flags or "avx512_bf16" in flags


def cores() -> int:
    """Returns how many cores this process may use, by its affinity and its container's limit."""
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([here, *(math.ceil(share) for share in _processor_shares())]))


def memory() -> int:
    """Returns how many bytes of memory this process may use: all, or its container's limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(_number(group, *_LIMIT) or machine for group in _groups("memory"))])


def free_memory(kind: str) -> int:
    """Returns how many more bytes this process may allocate, on a GPU or in memory."""
    if kind != "cpu":
        import torch

        unused = torch.cuda.memory_reserved(kind) - torch.cuda.memory_allocated(kind)
        return int(torch.cuda.mem_get_info(kind)[0]) + unused
    available = re.search(r"MemAvailable:\s+(\d+) kB", _text(Path("/proc/meminfo")))
    free = [int(available[1]) << 10 if available else memory()]
    for group in _groups("memory"):
        cached = re.search(r"^inactive_file (\d+)", _text(group / "memory.stat"), re.M)  # given back when needed
        used = _number(group, "memory.current", "memory.usage_in_bytes") - (int(cached[1]) if cached else 0)
        if limit := _number(group, *_LIMIT):
            free.append(limit - used)
    return max(0, min(free))


# ---- control groups (Linux), versions 2 and 1

_LIMIT = ("memory.max", "memory.limit_in_bytes")


def _processor_shares() -> list[float]:
    """Returns the limits of this process's control groups, in cores."""
    shares = []
    for group in _groups("cpu"):
        version_2 = re.fullmatch(r"(\d+) (\d+)\s*", _text(group / "cpu.max"))  # "max PERIOD" for none
        quota = int(version_2[1]) if version_2 else _number(group, "cpu.cfs_quota_us")
        period = int(version_2[2]) if version_2 else _number(group, "cpu.cfs_period_us")
        if quota and period:
            shares.append(quota / period)
    return shares


def _groups(controller: str, root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[Path]:
    """Returns the folders of this process's control groups and their parents."""
    groups: list[Path] = []
    for line in _text(own).splitlines():
        _, names, inside = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        base = root / controller if names else root
        # In a container the path may be the host's, while the container's own group is at the root.
        path = base / inside.strip("/")
        groups += [one for one in (path, *path.parents) if one.is_relative_to(base)]
    return groups


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _number(group: Path, *names: str) -> int:
    """Returns the first number in a group's files, 0 if there is none."""
    texts = (_text(group / name).strip() for name in names)
    return next((int(text) for text in texts if text.isdecimal()), 0)
