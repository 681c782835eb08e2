"""Rows that are kept several times: through steps and groups of steps, and drawn by the step `sample`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from tamis.selectors import AllOf, AnyOf, AtLeast, NoneOf, Selection, run_steps
from tamis.selectors.outcome import Drops
from tamis.store.table import Table


@dataclass(frozen=True, kw_only=True)
class Given:
    """Keeps rows that are written down; `times` or `captions` are by row."""

    name: ClassVar[str] = "given"
    reads: ClassVar[frozenset[str]] = frozenset()
    times: Sequence[int] | None = None
    captions: Sequence[int] | None = None

    def select(self, table: Table) -> Selection:
        drops, often = Drops(table.candidates()), np.array(self.times or [1] * len(table), np.uint16)
        drops.drop(often > 0, "not given", others=True)
        found = drops.selection()
        return replace(
            found,
            times=None if self.times is None else often * found.keep,
            caption=None if self.captions is None else np.array(self.captions, np.uint8) * found.keep,
        )


def test_a_later_step_drops_rows_or_replaces_their_copies_and_captions() -> None:
    table = Table.of({"x": np.arange(4, dtype=np.float32)})
    often, named = Given(times=[3, 0, 2, 1]), Given(captions=[1, 1, 0, 1])
    drop = AtLeast(score="x", value=1)
    outcome = run_steps(table, [often, drop, named])
    assert outcome.times is not None is not outcome.caption
    assert (outcome.times.tolist(), outcome.caption.tolist()) == ([0, 0, 2, 1], [0, 0, 0, 1])
    assert [line["times"] for line in outcome.funnel] == [6, 3, 3]
    other = run_steps(table, [often, Given(times=[5, 5, 5, 0])])
    assert other.times is not None
    assert other.times.tolist() == [5, 0, 5, 0]
    plain = run_steps(table, [drop])
    assert (plain.times, plain.caption, "times" in plain.funnel[0]) == (None, None, False)


def test_groups_of_steps_combine_copies_and_captions_as_subsets_do() -> None:
    table = Table.of({"x": np.arange(4, dtype=np.float32)})
    parts = ((Given(times=[3, 0, 2, 1]),), (Given(times=[1, 5, 4, 0], captions=[1, 1, 0, 0]),), (Given(),))
    some = replace(table, only=np.array([1, 1, 1, 0], bool))
    for group, times, caption in (
        (AllOf(parts=parts[:2]), [1, 0, 2, 0], [1, 0, 0, 0]),
        (AnyOf(parts=parts[:2]), [3, 5, 4, 0], [0, 1, 0, 0]),  # row 0 carries the caption of the first part
        (AllOf(parts=parts), [1, 0, 1, 0], [1, 0, 0, 0]),  # the last part keeps every row once
        (AnyOf(parts=parts[2:] + parts[:2]), [3, 5, 4, 0], [0, 0, 0, 0]),
    ):
        found = group.select(some)
        assert found.times is not None is not found.caption
        assert (found.times.tolist(), found.caption.tolist()) == (times, caption)
    for group in (AllOf(parts=parts[2:]), AnyOf(parts=parts[2:]), NoneOf(parts=parts[:1])):
        assert (group.select(some).times, group.select(some).caption) == (None, None)
