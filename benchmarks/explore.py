"""A slider of the explorer moves: how soon are count, funnel and histograms there?

The rule of `benchmarks.select`, its first line moved by a little each time, on a run of three scores; the answer holds
the kept of each bar of all three. Ours is the explorer, which holds columns in memory and has each row's bar worked
out; the baseline is what one had before: the same choice from disk, and the report's histograms of it. Both choose the
same rows. "first" is what opening the page costs once: columns read, bars worked out.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Case, child, finish, options
from benchmarks.select import write_run

MOVES = 8

OURS = """
import json, resource, sys, time
from tamis import api
from tamis.explore.columns import HeldRun
from tamis.explore.queries import Explorer
from benchmarks.explore import MOVES, moved
explorer = Explorer(HeldRun(sys.argv[1]), (), lambda run, recipe: api.select(run, recipe))
names = ["first", "second", "third"]
begun = time.perf_counter()
explorer.histograms(names)
explorer.chosen(moved(0), names)
first = time.perf_counter() - begun
begun = time.perf_counter()
kept = [explorer.chosen(moved(move), names)["kept"] for move in range(1, MOVES + 1)]
move = (time.perf_counter() - begun) / MOVES
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"first": first, "move": move, "kept": kept, "peak_bytes": peak}))
"""

BEFORE = """
import json, resource, sys, time
from tamis import api
from tamis.reporting.histogram import histograms
from benchmarks.explore import moved
begun = time.perf_counter()
subset = api.select(sys.argv[1], moved(1))
histograms(subset.run.table(), ["first", "second", "third"], [subset.keep])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"move": time.perf_counter() - begun, "kept": [len(subset)], "peak_bytes": peak}))
"""


def moved(by: int) -> dict[str, object]:
    """Returns the rule with its line moved by some steps."""
    return {
        "name": "fusion",
        "select": [
            {"at_least": {"score": "third", "value": 0.1 + 0.01 * by}},
            {"top_fraction": {"score": "0.5*minmax(first) + 0.5*minmax(second)", "fraction": 0.2, "of": "pool"}},
        ],
    }


def main() -> None:
    asked = options(__doc__ or "")
    cases = []
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        for rows, target in ((1_000_000, 0.2), *(() if asked.quick else ((10_000_000, 1.0),))):
            place = Path(folder) / str(rows)
            print(f"writing {rows:,} rows under {place}", file=sys.stderr)
            write_run(place, rows)
            mine, before = child(OURS, str(place)), child(BEFORE, str(place))
            ours, theirs = (json.loads(run.output.strip().splitlines()[-1]) for run in (mine, before))
            cases.append(
                Case(
                    "a slider moves",
                    "seconds",
                    ours["move"],
                    theirs["move"],
                    theirs["move"] / ours["move"],
                    f"<= {target} s",
                    {
                        "rows": rows,
                        "same count": ours["kept"][0] == theirs["kept"][0],
                        "first": round(ours["first"], 2),
                        "our peak GiB": round(mine.peak_bytes / 2**30, 2),
                        "peak target": "<= 1.5 GiB",
                    },
                )
            )
    finish("explore", cases, asked.json)


if __name__ == "__main__":
    main()
