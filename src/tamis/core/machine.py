"""The cores, the memory and the instructions of this machine that this process may use."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path


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


def free_memory() -> int:
    """Returns how many more bytes this process may allocate."""
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
