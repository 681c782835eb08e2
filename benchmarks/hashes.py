"""What trust costs: scoring and selecting with checksums and with files brought to the disk, beside the same without.

Both sides run the same code in processes of their own, in turn; on the other side the hash of bytes is a constant, when
parts are written and when they are read, and nothing waits for the disk. The shards are scored with the two cheapest
signals, so that the parts weigh as much as they can; the choice is that of `benchmarks.select`. What stays on both
sides is the room for the hashes and plain reads in place of mapped ones. Processor seconds and seconds on the clock.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.feed import pool_of
from benchmarks.measure import Case, child, finish, options
from benchmarks.select import RECIPE

SIDES = ("with", "without")
#: At most 3 % slower.
TARGET = "0.97"

SCORE = """
import sys
from benchmarks.hashes import measured, score
measured(sys.argv[1], lambda: score(sys.argv[2], sys.argv[3]))
"""
SELECT = """
import sys
from benchmarks.hashes import measured, select
measured(sys.argv[1], lambda: select(sys.argv[2]))
"""
WRITE = """
import sys
from pathlib import Path
from benchmarks.hashes import measured
from benchmarks.select import write_run
measured(sys.argv[1], lambda: write_run(Path(sys.argv[2]), int(sys.argv[3]), 100_000))
"""


class _Constant:
    """Stands in place of xxhash: takes everything and says one thing."""

    def xxh3_64(self, *_: Any) -> _Constant:
        return self

    def update(self, *_: Any) -> None:
        return None

    def hexdigest(self) -> str:
        return "0" * 16

    def xxh3_64_hexdigest(self, *_: Any) -> str:
        return "0" * 16


def measured(side: str, work: Callable[[], object]) -> None:
    """Does the work on one side and prints what it took."""
    from benchmarks.measure import self_measured

    if side == "without":
        from tamis import storage
        from tamis.store import checked

        checked.xxhash = _Constant()  # type: ignore[attr-defined]
        writer = checked.pq.ParquetWriter
        checked.pq.ParquetWriter = lambda *given, **how: writer(*given, **{**how, "write_page_checksum": False})
        storage.to_disk = lambda path: None

    def timed() -> dict[str, float]:
        work()
        return {"processor": time.process_time()}

    self_measured(timed)


def score(pool: str, run: str) -> None:
    """Scores a pool as the command does with one worker."""
    import tamis

    tamis.score(pool, run=run, signals=["caption_length", "image_size"], quiet=True)


def select(run: str) -> None:
    """Chooses from a run, and writes the subset."""
    import tamis

    tamis.select(run, RECIPE).save(Path(run) / "subsets" / "chosen.parquet")


def in_turn(rounds: int, begin: Callable[[str], tuple[str, ...]]) -> dict[str, dict[str, list[float]]]:
    """Runs both sides in turn, each first as often as the other; `begin` says what a side runs."""
    import json

    found: dict[str, dict[str, list[float]]] = {side: {"processor": [], "clock": []} for side in SIDES}
    for number in range(rounds):
        for side in SIDES if number % 2 else SIDES[::-1]:
            code, *arguments = begin(side)
            done = child(code, side, *arguments)
            facts = json.loads(done.output.strip().splitlines()[-1])
            found[side]["processor"].append(facts["processor"])
            found[side]["clock"].append(done.seconds)
    return found


def cases(name: str, found: dict[str, dict[str, list[float]]]) -> list[Case]:
    """Returns a line for processor seconds and one for the clock: medians, and the ratio of the smallest beside."""
    rows = []
    for what, unit in (("processor", "processor seconds"), ("clock", "seconds")):
        ours, plain = found["with"][what], found["without"][what]
        middle, other = statistics.median(ours), statistics.median(plain)
        best = {"ratio of the smallest": round(min(plain) / min(ours), 3), "rounds": len(ours)}
        rows.append(Case(f"{name}, {unit}", unit, middle, other, other / middle, TARGET, best))
    return rows


def main() -> None:
    asked = options(__doc__ or "", ["score", "select"])
    pairs, rows, rounds = (2_000, 2_000_000, 7) if asked.quick else (10_000, 12_800_000, 9)
    with tempfile.TemporaryDirectory(dir=asked.folder) as root:
        folder, found = Path(root), []
        if asked.only in (None, "score"):
            pool = pool_of(folder, pairs, 1)

            def scored(side: str) -> tuple[str, ...]:
                shutil.rmtree(folder / "scored", ignore_errors=True)
                return SCORE, str(pool), str(folder / "scored")

            found += cases(f"scoring {pairs:,} pairs with the cheapest signals", in_turn(rounds, scored))
        if asked.only in (None, "select"):
            for side in SIDES:
                child(WRITE, side, str(folder / side), str(rows))
            chosen = in_turn(rounds, lambda side: (SELECT, str(folder / side)))
            found += cases(f"choosing from {rows:,} rows", chosen)
        finish("hashes", found, asked.json)


if __name__ == "__main__":
    main()
