"""The harness of every benchmark: sides that take turns, ratios of the turns, peak memory, one line of JSON."""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import logging
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

GIB = 2**30


@dataclass
class Case:
    """One measurement: ratio above 1 means that ours is better."""

    case: str
    unit: str
    ours: float
    baseline: float | None = None
    ratio: float | None = None
    target: str = "-"
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass
class Spent:
    """What some work took: seconds on the clock and of all cores, children included, and its peak memory."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    result: Any = None


def spend(work: Callable[[], Any]) -> Spent:
    """Runs the work in this process and measures it. The peak is that of the process so far, plus its largest child."""
    gc.collect()
    start, before = time.perf_counter(), _cpu_seconds()
    result = work()
    seconds, cpu = time.perf_counter() - start, _cpu_seconds() - before
    children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return Spent(seconds, cpu, _peak_bytes() + children, result)


def _cpu_seconds() -> float:
    # Not os.times, which counts in hundredths.
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _peak_bytes() -> int:
    # Not getrusage, whose peak of a new process begins with that of the process which started it.
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def child(function: Callable[..., Any], *arguments: Any, tree: Path | None = None, limit: float | None = None) -> Spent:
    """Calls a function of a benchmark in a new process. Imports are not measured.

    Arguments and result travel as JSON, paths as text. A function that returns `Spent` has measured itself.

    Args:
        tree: another checkout, whose `src` is measured in place of this one's.
        limit: seconds after which the process is killed.
    """
    main = sys.modules["__main__"].__spec__
    module = main.name if function.__module__ == "__main__" and main else function.__module__
    call = json.dumps([module, function.__name__, *arguments], default=str)
    # Not `-m`, which would load this module twice, with two classes `Spent`.
    command = [sys.executable, "-c", "from benchmarks.measure import answer; answer()", call]
    environment = os.environ | ({} if tree is None else {"PYTHONPATH": str(tree.resolve() / "src")})
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=limit)
    except subprocess.TimeoutExpired as error:
        raise SystemExit(f"the measured process was stopped after {limit:,.0f} s") from error
    if done.returncode < 0:
        raise SystemExit(f"the measured process was killed by signal {-done.returncode}")
    if done.returncode:
        raise SystemExit(f"the measured process failed:\n{done.stderr[-3000:]}")
    return Spent(**json.loads(done.stdout.strip().splitlines()[-1]))


def in_turn(rounds: int, **sides: Callable[[], Any]) -> dict[str, list[Spent]]:
    """Runs every side once a round, in reverse order in every second round. A side may return `Spent` itself."""
    spent: dict[str, list[Spent]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, work in list(sides.items())[:: -1 if number % 2 else 1]:
            measured = spend(work)
            spent[name].append(measured.result if isinstance(measured.result, Spent) else measured)
    return spent


def versus(
    name: str, ours: Sequence[Spent], theirs: Sequence[Spent], *, target: str = "-", by: str = "seconds",
    count: float | None = None, unit: str = "seconds", **settings: Any,
) -> Case:  # fmt: skip
    """Compares the turns of two sides: medians of each, and the median of the ratios of the pairs.

    Args:
        by: what is compared: seconds, cpu_seconds or peak_bytes.
        count: of the things done in each turn; the figures are then things per second.
    """
    left, right = ([getattr(one, by) / (GIB if by == "peak_bytes" else 1) for one in side] for side in (ours, theirs))
    ratios = [other / mine for mine, other in zip(left, right, strict=True)]
    figures = [count / statistics.median(side) if count else statistics.median(side) for side in (left, right)]
    settings |= {
        "ratio of each pair": [round(ratio, 2) for ratio in ratios],
        "CPU seconds, ours and theirs": [round(statistics.median(x.cpu_seconds for x in s), 4) for s in (ours, theirs)],
        "peak GiB, ours and theirs": [round(max(x.peak_bytes for x in s) / GIB, 2) for s in (ours, theirs)],
    }
    return Case(name, unit, *figures, statistics.median(ratios), target, settings)


def alone(name: str, spent: Spent, *, target: str = "-", **settings: Any) -> Case:
    """The time of a side that has nothing to compare with."""
    settings |= {"CPU seconds": round(spent.cpu_seconds, 1), "peak GiB": round(spent.peak_bytes / GIB, 2)}
    return Case(name, "seconds", spent.seconds, target=target, settings=settings)


def benchmark(about: str | None, parts: Mapping[str, Callable[[Path, Any], Iterable[Case]]], **settings: Any) -> None:
    """Runs the parts that the command line asks for, each with a folder and the options, and prints their cases.

    Args:
        settings: further options by name, each with its default: a whole number, or None for text.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="a smaller, honest size")
    parser.add_argument("--json", action="store_true", help="print the results as one line of JSON at the end")
    parser.add_argument("--folder", help="where to put the data, and keep it; a temporary folder by default")
    parser.add_argument("--only", choices=list(parts), help="one part alone")
    for name, default in settings.items():
        kind = int if isinstance(default, int) else str
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"default: {default}")
    given = parser.parse_args()
    logging.disable(logging.WARNING)
    cases = []
    print(processor(), flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        for name, part in parts.items():
            if given.only not in (None, name):
                continue
            folder = Path(given.folder or temporary) / name
            folder.mkdir(parents=True, exist_ok=True)
            for case in part(folder, given):
                cases.append(case)
                baseline = "" if case.baseline is None else f", baseline {case.baseline:,.4g}"
                ratio = "" if case.ratio is None else f", ratio {case.ratio:.2f}"
                print(f"{case.case}: {case.ours:,.4g} {case.unit}{baseline}{ratio} (target {case.target})", flush=True)
                for key, setting in case.settings.items():
                    print(f"    {key}: {setting}")
    if given.json:
        facts = {"name": Path(sys.argv[0]).stem, "cases": [asdict(case) for case in cases], "processor": processor()}
        print(json.dumps(facts, default=str))


def processor() -> str:
    """Returns the processor's name and its vector units (Linux)."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    facts = {key.strip(): text.strip() for key, _, text in (line.partition(":") for line in lines)}
    flags = facts.get("flags", "").split()
    units = [name for name in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16") if name in flags]
    return f"{os.cpu_count()} cores of {facts.get('model name', platform.machine())}, {' '.join(units) or 'no AVX'}"


def read_bytes() -> int:
    """Returns the bytes that this process has read so far (Linux; memory-mapped files not counted)."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar")))


def answer() -> None:
    """Does what `child` asks for."""
    logging.disable(logging.WARNING)
    module, name, *arguments = json.loads(sys.argv[1])
    function = getattr(importlib.import_module(module), name)
    spent = spend(lambda: function(*arguments))
    if isinstance(spent.result, Spent):
        spent = replace(spent.result, peak_bytes=spent.peak_bytes)
    print("\n" + json.dumps(asdict(spent), default=float))
