"""What every benchmark shares: options, child processes with their peak memory, the last line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Case:
    """One measurement: ratio above 1 means that ours is better."""

    case: str
    unit: str
    ours: float
    baseline: float | None
    ratio: float | None
    target: str
    settings: dict[str, Any] = field(default_factory=dict)


def options(about: str, parts: Sequence[str] = (), *, pool: bool = False, **numbers: int) -> argparse.Namespace:
    """Reads the options that every benchmark takes, `--only` for one of the parts, and whole numbers by name."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="a smaller, honest size")
    parser.add_argument("--json", action="store_true", help="print the results as one line of JSON at the end")
    parser.add_argument("--folder", default=None, help="where to put the data; a temporary folder by default")
    if pool:
        parser.add_argument("--pool", help="a pool of your own to measure")
    if parts:
        parser.add_argument("--only", choices=parts, help="one part alone")
    for name, usual in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=usual, help=f"{usual:,} by default")
    return parser.parse_args()


def finish(name: str, cases: Sequence[Case], as_json: bool) -> None:
    """Prints the cases as a table and, if asked, as JSON on the last line."""
    for case in cases:
        baseline = "-" if case.baseline is None else f"{case.baseline:,.4g}"
        ratio = "-" if case.ratio is None else f"{case.ratio:.2f}"
        print(
            f"{case.case}: ours {case.ours:,.4g} {case.unit}, baseline {baseline}, ratio {ratio} (target {case.target})"
        )
        for key, value in case.settings.items():
            print(f"    {key}: {value}")
    if as_json:
        machine = {"cpus": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
        print(json.dumps({"name": name, "cases": [asdict(case) for case in cases], "machine": machine}))


def processor() -> str:
    """Returns what the processor is called and which vector units it has (Linux)."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    told = {key.strip(): text.strip() for key, text in told.items()}
    flags = told.get("flags", "").split()
    units = [name for name in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if name in flags]
    return f"{os.cpu_count()} cores of {told.get('model name', platform.machine())}, {' '.join(units) or 'no AVX'}"


@dataclass
class Child:
    """What a child process took."""

    seconds: float
    peak_bytes: int
    output: str


def child(code: str, *arguments: str) -> Child:
    """Runs Python code in a process of its own. The code measures itself: see `self_measured`."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *arguments], check=False, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"the measured process failed:\n{done.stderr[-3000:]}")
    lines = done.stdout.strip().splitlines()
    facts = json.loads(lines[-1])
    return Child(facts.get("seconds", seconds), facts["peak_bytes"], done.stdout)


def self_measured(work: Callable[[], Any]) -> None:
    """Runs the work in this process and prints its seconds, CPU seconds and peak memory, its children's included."""
    start, before = time.perf_counter(), sum(os.times()[:4])
    extra = work()
    seconds, cpu = time.perf_counter() - start, sum(os.times()[:4]) - before
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    facts = {"seconds": seconds, "cpu_seconds": cpu, "peak_bytes": own + children}
    print(json.dumps(facts | (extra if isinstance(extra, dict) else {})))
