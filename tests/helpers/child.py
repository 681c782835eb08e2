"""One hostile input in a process of its own: how it ended, how long it took, how much memory it took at its height.

    python child.py READER PATH

prints one line of JSON. A reader may end in one of our own errors; anything else is a traceback, and an attack that
succeeded. The process kills itself where it takes more than `LIMIT_BYTES` of address space or `LIMIT_SECONDS` of time.
"""

import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

#: What a worker may take, whatever it is given.
MEMORY = 1536 << 20

#: Past these a process is stopped: an attack that succeeded must not take the machine with it.
LIMIT_BYTES = 12 << 30
LIMIT_SECONDS = 240


class Measured(NamedTuple):
    """How a hostile input ended: "rows: ok 3", "refused: ..." (one of our errors), or what went wrong."""

    outcome: str
    survived: bool  # it ended in rows, or in one of our own errors
    peak: int  # most bytes held at once, those of the interpreter and our imports included
    seconds: float  # of the reading alone


def measured(reader: str, path: Path | str) -> Measured:
    """Reads a file in a process of its own."""
    command = [sys.executable, __file__, reader, str(path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    start = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=LIMIT_SECONDS)
        return Measured(**json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        what = f"no end within {LIMIT_SECONDS} s"
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or [""])[-1]
        what = f"died with {done.returncode}: {last[:200]}"
    return Measured(what, False, 0, time.perf_counter() - start)


def _decode(path: str) -> str:
    from tamis.core.errors import SampleError
    from tamis.pools.images import decode

    try:
        pixels = decode(Path(path).read_bytes(), max_pixels=100_000_000)
    except SampleError as error:
        return f"refused: {error.status}: {error.reason}"
    return f"{pixels.shape[1]} x {pixels.shape[0]}"


def _score(path: str) -> str:
    """Scores a pool from the front to the end, as `tamis score` does, with one worker."""
    import tempfile

    import tamis

    with tempfile.TemporaryDirectory() as folder:
        run = tamis.score(path, run=Path(folder) / "run", signals=["image_size", "caption_length"], quiet=True)
        rows = ", ".join(f"{name} {count}" for name, count in sorted(run.statuses.items())) or "none"
        return f"rows: {rows}" + "".join(f"; refused: {ending}" for ending in run.failures.values())


def _recipe(path: str) -> str:
    from tamis.recipes import recipe

    made = recipe.load(path)
    return f"read: {len(made.steps)} steps"


READERS: dict[str, Callable[[str], str]] = {"decode": _decode, "score": _score, "recipe": _recipe}


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    reader, path = sys.argv[1:]
    from tamis.core.errors import TamisError

    start = time.perf_counter()
    try:
        outcome, survived = READERS[reader](path), True
    except TamisError as error:
        outcome, survived = f"refused: {error}", True
    except Exception as error:
        outcome, survived = f"traceback: {type(error).__name__}: {error}", False
    seconds = time.perf_counter() - start
    # Not `ru_maxrss`, which begins with that of the process that started this one.
    peak = int(re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[0]) << 10
    facts = {"outcome": outcome[:2000], "survived": survived, "peak": peak, "seconds": seconds}
    print(json.dumps(facts))  # noqa: T201


if __name__ == "__main__":
    main()
