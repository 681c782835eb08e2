"""Choosing from several runs at once: one table of their rows, on which a recipe decides as if they were one run.

A pair (a uid) that stands in several runs counts once, in the first run that was named: budgets, shares and ranges are
over distinct pairs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.arrays import U64, Mask
from tamis.errors import RecipeError, RunError
from tamis.selectors.outcome import Outcome, Step, StepCount, run_steps
from tamis.store.mirror import named
from tamis.store.reasons import Codes, Reason, widened
from tamis.store.run import Run
from tamis.store.table import Table

#: Bits of the sieve for each row of the earlier runs: with 16, some 6 % of the other rows are looked at closer.
_BITS_PER_ROW = 16


@dataclass(frozen=True)
class Together:
    """What a recipe leaves of several runs.

    Attributes:
        outcome: over all distinct rows: the funnel of the whole.
        each: of each run, over its own rows. Cuts are those of the whole.
        repeated: rows of each run whose pair stands in an earlier one.
    """

    outcome: Outcome
    each: tuple[Outcome, ...]
    repeated: tuple[int, ...]


def select_together(runs: Sequence[Run], names: Sequence[Mapping[str, str]], steps: Sequence[Step]) -> Together:
    """Applies steps to the rows of several runs as if they were one.

    Memory: 3 bytes for each row, and 2 for each while repeated pairs are looked for; beside what the steps take.

    Args:
        runs: in the order in which a pair that stands in several is looked for.
        names: of each run, the recipe's own names for columns, to those of the run.
        steps: the recipe's.

    Raises:
        RecipeError: the runs have other scores under one name, or a step meets rows without a score.
        RunError: a run lacks a column or shards, or is named twice.
    """
    paths = [os.path.realpath(run.path) for run in runs]
    if len(set(paths)) < len(paths):
        raise RunError(f"a run is named twice: {', '.join(named(run.path) for run in runs)}")
    for name in sorted({name for step in steps for name in step.reads}):
        _check_alike(name, runs, names)
    tables = [run.table(one) for run, one in zip(runs, names, strict=True)]
    fresh = [~mask for mask in repeated(tables)]
    outcome = run_steps(joined(tables, fresh), steps)
    ends = np.cumsum([0, *(int(np.count_nonzero(mask)) for mask in fresh)]).tolist()
    each = tuple(_of_one(outcome, slice(ends[number], ends[number + 1]), mask) for number, mask in enumerate(fresh))
    return Together(outcome, each, tuple(mask.size - int(np.count_nonzero(mask)) for mask in fresh))


def _check_alike(name: str, runs: Sequence[Run], names: Sequence[Mapping[str, str]]) -> None:
    """Checks that a column means the same in all runs: the same scorer, settings, weights and precision made it."""
    meant = {}
    for run, own in zip(runs, names, strict=True):
        inner, group, column = run.locate(own.get(name, name))
        maker = group.folder.name if group is not None else inner if column.kind == "vector" else "index"
        meant[run.path] = (maker, inner, column.kind)
    if len(set(meant.values())) > 1:
        told = "; ".join(f"{path} has it from {maker}" for path, (maker, _, _) in meant.items())
        raise RecipeError(
            f"{name!r} is not the same in all runs, and cannot be compared: {told}. Score them with the same settings, "
            f"models and --precision, or say which column is meant with --set columns.{name}=LABEL.COLUMN"
        )


def joined(tables: Sequence[Table], rows: Sequence[Mask]) -> Table:
    """Returns one table of some rows of several, one after the other; what it knows of columns is the first's.

    Args:
        tables: of the same columns.
        rows: of each, which of its rows: (n,) bool.
    """
    blocks: list[tuple[Table, int, Mask | None]] = []
    sizes = []
    for table, wanted in zip(tables, rows, strict=True):
        for block, size in enumerate(table.sizes):
            start = int(table.starts[block])
            mask = wanted[start : start + size]
            kept = int(np.count_nonzero(mask))
            blocks.append((table, block, mask if kept < size else None))
            sizes.append(kept)

    def read(number: int, names: Sequence[str]) -> dict[str, Any]:
        table, block, mask = blocks[number]
        found = table.read(block, names)
        if mask is None:
            return found
        return {
            name: value[mask] if isinstance(value, np.ndarray) else value.filter(pa.array(mask))
            for name, value in found.items()
        }

    def read_uids(number: int) -> tuple[U64, U64]:
        table, block, mask = blocks[number]
        high, low = table.read_uids(block)
        return (high, low) if mask is None else (high[mask], low[mask])

    first = tables[0]
    return Table(sizes, read, read_uids, first.kind, about=first.about, side_file=first.side_file)


def repeated(tables: Sequence[Table]) -> list[Mask]:
    """Returns of each table which of its rows have a uid that stands in an earlier one: (rows,) bool.

    Two bytes for each row of the earlier tables make a sieve (a Bloom filter of one hash): what of the later ones
    passes it is compared exactly with what of the earlier ones has such a hash. All uids are read two or three times;
    repeated pairs take 50 bytes each.
    """
    masks = [np.zeros(len(table), bool) for table in tables]
    earlier = sum(len(table) for table in tables[:-1])
    if len(tables) < 2 or not earlier:
        return masks
    shift = np.uint64(64 - max(10, math.ceil(math.log2(earlier * _BITS_PER_ROW))))
    seen, asked = _Bits(shift), _Bits(shift)
    maybe: list[list[NDArray[np.int64]]] = [[] for _ in tables]
    for number, table in enumerate(tables):
        if number:
            for start, some in _hashes(table):
                passed = np.flatnonzero(seen.has(some))
                asked.add(some[passed])
                maybe[number].append(passed + start)
        if number < len(tables) - 1:
            for _, some in _hashes(table):
                seen.add(some)
    if not any(some.size for each in maybe for some in each):
        return masks
    rows = []
    for number, table in enumerate(tables):
        found = maybe[number]
        if number < len(tables) - 1:
            found = [*found, *(np.flatnonzero(asked.has(some)) + start for start, some in _hashes(table))]
        rows.append(np.unique(np.concatenate([np.empty(0, np.int64), *found])))
    _mark(tables, rows, masks)
    return masks


def _mark(tables: Sequence[Table], rows: Sequence[NDArray[np.int64]], masks: Sequence[Mask]) -> None:
    """Marks of some rows of each table those whose uid stands in an earlier table."""
    uids = [table.uids(some) for table, some in zip(tables, rows, strict=True)]
    high, low = (np.concatenate([pair[half] for pair in uids]) for half in (0, 1))
    which = np.repeat(np.arange(len(tables)), [some.size for some in rows])
    row = np.concatenate(rows)
    order = np.lexsort((which, low, high))
    high, low, which, row = high[order], low[order], which[order], row[order]
    begins = np.ones(high.size, bool)
    begins[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    first = which[begins][np.cumsum(begins) - 1]  # the first table that has the uid
    for number, mask in enumerate(masks):
        mask[row[(which == number) & (first < number)]] = True


class _Bits:
    """A set of hashes, of which the leading bits are looked at."""

    def __init__(self, shift: np.uint64) -> None:
        self._shift = shift
        self._bits = np.zeros(1 << max(0, 61 - int(shift)), np.uint8)

    def _places(self, hashes: U64) -> tuple[U64, NDArray[np.uint8]]:
        places = hashes >> self._shift
        return places >> np.uint64(3), np.uint8(1) << (places & np.uint64(7)).astype(np.uint8)

    def add(self, hashes: U64) -> None:
        place, bit = self._places(hashes)
        np.bitwise_or.at(self._bits, place, bit)

    def has(self, hashes: U64) -> Mask:
        place, bit = self._places(hashes)
        return np.asarray(self._bits[place] & bit, bool)


def _hashes(table: Table) -> Iterator[tuple[int, U64]]:
    """Yields of each block its first row, and a hash of each uid: not all uids are hashes themselves."""
    for block in range(len(table.sizes)):
        high, low = table.read_uids(block)
        mixed = (high ^ (low >> np.uint64(32)) ^ (low << np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
        mixed ^= mixed >> np.uint64(29)
        yield int(table.starts[block]), mixed * np.uint64(0xBF58476D1CE4E5B9)


def _of_one(outcome: Outcome, place: slice, fresh: Mask) -> Outcome:
    """Returns what is left of one run: its rows of an outcome over all, and why the repeated ones are not kept.

    Args:
        outcome: over the distinct rows of all runs.
        place: those of this run.
        fresh: (rows,) which of the run's rows these are.
    """
    reasons = (*outcome.reasons, Reason(text="the pair stands in a run that was named before"))
    keep = np.zeros(fresh.size, bool)
    keep[fresh] = outcome.keep[place]
    kind = widened(np.empty(0, outcome.dropped_by.dtype), len(reasons)).dtype
    codes: Codes = np.full(fresh.size, len(reasons), kind)
    codes[fresh] = outcome.dropped_by[place]
    counts = np.bincount(codes, minlength=len(reasons) + 1)
    before = int(np.count_nonzero(fresh))
    funnel = []
    for number, line in enumerate(outcome.funnel, start=1):
        dropped: dict[str, int] = {}
        for code, reason in enumerate(outcome.reasons, start=1):
            if reason.step == number and counts[code]:
                dropped[reason.text] = dropped.get(reason.text, 0) + int(counts[code])
        kept = before - sum(dropped.values())
        funnel.append(StepCount(line.step, before, kept, dropped, line.cut))
        before = kept
    return replace(outcome, keep=keep, dropped_by=codes, funnel=tuple(funnel), reasons=reasons)
