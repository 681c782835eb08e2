"""`balance` against a random subset of equal size: the effective number of entries, on a pool of the lab.

The effective number is exp(entropy) of how many kept captions contain each entry: k for k equally frequent ones.
Ranges are over five seeds of both.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

import tamis
from benchmarks.measure import Case, finish, options
from tamis.lab import make_pool
from tamis.lab.world import OBJECTS
from tamis.math.balance import effective_number

#: Shares of the tail: the shipped recipe's, and a larger one.
TAILS = (0.06, 0.2)
SEEDS = range(5)


def entries_of(run: tamis.Run) -> list[list[str]]:
    """Returns the entries of each row's caption."""
    table = run.table()
    cells = [
        cell for block in range(len(table.sizes)) for cell in table.read(block, ["entries"])["entries"].to_pylist()
    ]
    return [(cell or "").split("\t") if cell else [] for cell in cells]


def effective(subset: tamis.Subset, entries: list[list[str]]) -> float:
    kept = [entry for row in np.flatnonzero(subset.keep) for entry in entries[row]]
    return effective_number(np.unique(np.array(kept), return_counts=True)[1])


def compared(run: tamis.Run, name: str, tail: float) -> Case:
    """Compares subsets of one tail with random ones."""
    entries, ours, random, kept = entries_of(run), [], [], []
    for seed in SEEDS:
        some = tamis.select(run, {"select": [{"balance": {"tail": tail, "seed": seed, "missing": "drop"}}]})
        equal = {"random_fraction": {"fraction": some.kept / len(run), "seed": seed}}
        ours.append(effective(some, entries))
        random.append(effective(tamis.select(run, {"select": [equal]}), entries))
        kept.append(some.kept)
    settings = {
        "pairs kept": f"{min(kept):,} to {max(kept):,} of {len(run):,}",
        "ours": f"{min(ours):.1f} to {max(ours):.1f}",
        "random": f"{min(random):.1f} to {max(random):.1f}",
    }
    means = float(np.mean(ours)), float(np.mean(random))
    return Case(f"{name}, tail {tail:.0%}", "entries", *means, means[0] / means[1], "above 1", settings)


def main() -> None:
    asked = options(__doc__ or "")
    with tempfile.TemporaryDirectory(dir=asked.folder) as temporary:
        folder = Path(temporary)
        make_pool(folder / "pool", pairs=2_000 if asked.quick else 10_000)
        names = [word for noun in OBJECTS.values() for word in (noun.one, noun.many)]
        (folder / "objects.txt").write_text("\n".join(names), "utf-8")
        cases = []
        for name, settings in (("objects", {"entries_from": str(folder / "objects.txt")}), ("words of the pool", {})):
            scored = tamis.score(folder / "pool", run=folder / name, signals=["caption_length"], quiet=True)
            run = tamis.derive(scored, [{"entries": settings}])
            cases += [compared(run, name, tail) for tail in TAILS]
        finish("balance", cases, asked.json)


if __name__ == "__main__":
    main()
