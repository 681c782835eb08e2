"""Steps in an order in which expensive columns are needed of fewer rows. The same rows stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from tamis.selectors.outcome import NotAskedError, Outcome, Step, run_steps
from tamis.store.table import Table

#: Columns that every row has.
_ALWAYS = {"status", "key"}


def flattened(steps: Sequence[Any]) -> list[Step]:
    """Returns steps with the last pointwise steps of parts of `all_of` moved behind it.

    Every part judges the whole pool, and only rows that all parts keep stay: what a part says of single rows need not
    be known of rows that others drop.
    """
    found: list[Step] = []
    for step in steps:
        if step.name != "all_of":
            found.append(step)
            continue
        ends = [len(part) - len(list(takewhile(_is_pointwise, reversed(part)))) for part in step.parts]
        if any(ends):  # a part without steps stays: rows count once in it
            heads = tuple(part[:end] for part, end in zip(step.parts, ends, strict=True))
            found.append(replace(step, parts=heads))
        found += flattened([one for part, end in zip(step.parts, ends, strict=True) for one in part[end:]])
    return found


def arranged(steps: Sequence[Step], rank: Callable[[Step], float]) -> list[Step]:
    """Returns flattened steps, those that commute in the order of a rank."""
    left, found = flattened(steps), list[Step]()
    while left:
        group = left[: _group(left, 0)]
        best = min(group, key=rank)
        found.append(best)
        left.pop(next(place for place, step in enumerate(left) if step is best))
    return found


def run_asked(table: Table, steps: Sequence[Step]) -> Outcome:
    """Applies steps as `run_steps` does, in another order if rows lack what nobody asked for."""
    try:
        return run_steps(table, steps)
    except NotAskedError:
        order = flattened(steps)
    place = tried = 0
    while True:
        try:
            return run_steps(table, order)
        except NotAskedError as error:
            at = next((number for number, step in enumerate(order) if step is error.step), None)
            if at is None:  # in a group
                raise
            place, tried = at, tried + 1 if at == place else 1
            end = at + _group(order, at)
            if tried >= end - at:  # each of them was tried here
                raise
            order.insert(end - 1, order.pop(at))


def _group(steps: Sequence[Step], start: int) -> int:
    """Returns how many steps from one on can be applied in any order."""
    if not _is_pointwise(steps[start]):
        return 1
    return 1 + len(list(takewhile(_may_come_first, steps[start + 1 :])))


def _is_pointwise(step: Any) -> bool:
    return getattr(step, "pointwise", False)


def _may_come_first(step: Any) -> bool:
    """Whether a step says the same of a row at an earlier place, where it also meets rows that others drop."""
    return _is_pointwise(step) and (getattr(step, "missing", "drop") == "drop" or step.reads <= _ALWAYS)
