"""Rows that are kept several times: through steps and groups of steps, and drawn by the step `sample`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest

from tamis.core.errors import RecipeError
from tamis.core.ids import seed_of_epoch
from tamis.recipes.steps import AllOf, AnyOf, AtLeast, NoneOf, Sample, Selection, run_steps
from tamis.recipes.steps.outcome import verdict
from tamis.runs.table import MemoryTable, Table


@dataclass(frozen=True, kw_only=True)
class Given:
    """Keeps rows that are written down; `times` or `captions` are by row."""

    name: ClassVar[str] = "given"
    reads: ClassVar[frozenset[str]] = frozenset()
    times: Sequence[int] | None = None
    captions: Sequence[int] | None = None

    def select(self, table: Table) -> Selection:
        often, none = np.array(self.times or [1] * len(table), np.uint16), np.zeros(len(table), bool)
        found = verdict(self, often > 0, none, table.candidates, "not given")
        return replace(
            found,
            times=None if self.times is None else often * found.keep,
            caption=None if self.captions is None else np.array(self.captions, np.uint8) * found.keep,
        )


def test_a_later_step_drops_rows_or_replaces_their_copies_and_captions() -> None:
    table = MemoryTable({"x": np.arange(4, dtype=np.float32)})
    often, named = Given(times=[3, 0, 2, 1]), Given(captions=[1, 1, 0, 1])
    drop = AtLeast(score="x", value=1)
    outcome = run_steps(table, [often, drop, named])
    assert (outcome.times.tolist(), outcome.caption.tolist()) == ([0, 0, 2, 1], [0, 0, 0, 1])
    assert [line["times"] for line in outcome.funnel] == [6, 3, 3]
    other = run_steps(table, [often, Given(times=[5, 5, 5, 0])])
    assert other.times.tolist() == [5, 0, 5, 0]
    plain = run_steps(table, [drop])
    assert (plain.times, plain.caption, "times" in plain.funnel[0]) == (None, None, False)


def test_groups_of_steps_combine_copies_and_captions_as_subsets_do() -> None:
    table = MemoryTable({"x": np.arange(4, dtype=np.float32)})
    parts = ((Given(times=[3, 0, 2, 1]),), (Given(times=[1, 5, 4, 0], captions=[1, 1, 0, 0]),), (Given(),))
    some = table.with_candidates(np.array([1, 1, 1, 0], bool))
    for group, times, caption in (
        (AllOf(parts=parts[:2]), [1, 0, 2, 0], [1, 0, 0, 0]),
        (AnyOf(parts=parts[:2]), [3, 5, 4, 0], [0, 1, 0, 0]),  # row 0 carries the caption of the first part
        (AllOf(parts=parts), [1, 0, 1, 0], [1, 0, 0, 0]),  # the last part keeps every row once
        (AnyOf(parts=parts[2:] + parts[:2]), [3, 5, 4, 0], [0, 0, 0, 0]),
    ):
        found = group.select(some)
        assert (found.times.tolist(), found.caption.tolist()) == (times, caption)
    for group in (AllOf(parts=parts[2:]), AnyOf(parts=parts[2:]), NoneOf(parts=parts[:1])):
        assert (group.select(some).times, group.select(some).caption) == (None, None)


def scored(*values: float) -> Table:
    return MemoryTable({"x": np.array(values, np.float32)})


def often(step: Sample, table: Table) -> list[int]:
    found = step.select(table)
    return found.times.tolist()


def test_the_scale_of_scores_does_not_matter_unless_asked() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    step = Sample(score="x", n=900)
    usual = often(step, scored(*x))
    assert (sum(usual), usual.count(0) > 50, max(usual) > 20) == (900, True, True)
    assert often(step, scored(*(0.03 * x + 0.2))) == pytest.approx(usual, abs=1)  # the spread of CLIP's cosines
    plain = often(replace(step, std=None), scored(*(0.03 * x + 0.2)))
    assert (min(plain), max(plain)) == (2, 4)  # with alpha .15 all are much alike
    assert often(replace(step, std=None), scored(*(2.5 * x / x.std()))) == pytest.approx(usual, abs=1)
    assert often(replace(step, seed=1), scored(*x)) != usual


def test_weights_are_drawn_in_proportion_up_to_the_limit() -> None:
    by_weight = Sample(score="log(x)", n=6, cap="hard", std=None)
    assert often(by_weight, scored(4, 2, 6)) == [2, 1, 3]
    assert often(replace(by_weight, limit=2), scored(4, 2, 6)) == [2, 2, 2]
    with pytest.raises(RecipeError, match=r"7 copies of 3 rows need more than 2 of one row: raise limit"):
        often(replace(by_weight, n=7, limit=2), scored(4, 2, 6))


def test_n_and_fraction_may_exceed_the_rows_and_two_bytes_may_not_be_exceeded() -> None:
    table = scored(0.1, 0.5, 0.5, 0.9, np.nan, 9).with_candidates(np.array([1, 1, 1, 1, 1, 0], bool))
    assert sum(often(Sample(score="x", fraction=2.5, missing="drop"), table)) == 13  # 12.5, halves upwards
    assert sum(often(Sample(score="x", fraction=2.5, of="pool", missing="drop"), table)) == 15
    found = Sample(score="x", n=100_000, missing="drop").select(table)
    assert (found.times.sum(), found.counts) == (100_000, {"kept": 4, "missing": 1, "not drawn": 0})
    for n in (262_130, 300_000):  # the best row needs too many, or all rows do
        with pytest.raises(RecipeError, match="need more than 65,535 of one row: raise alpha, lower std"):
            Sample(score="x", n=n, missing="drop").select(table)
    with pytest.raises(RecipeError, match=r"need more than 65,535 of one row: .* or limit"):
        Sample(score="x", n=300_000, cap="hard", limit=100_000, missing="drop").select(table)


def test_rounding_does_not_refuse_as_many_copies_as_two_bytes_hold() -> None:
    for alpha in np.linspace(0.01, 2, 300):  # one in six gives the row 65,535.000000000007 copies
        assert often(Sample(score="x", n=65_535, alpha=alpha), scored(1)) == [65_535]


def test_its_facts_say_how_far_it_went() -> None:
    x = np.random.default_rng(3).normal(0.25, 0.03, 200).astype(np.float32)
    found = Sample(score="x", n=500).select(scored(*x))
    assert found.facts == {"most_copies_of_a_row": found.times.max(), "lowest_score": x[found.times > 0].min()}
    assert x[~found.keep].max() <= x[found.times > 1].min()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "n .copies in all. or fraction"),
        ({"n": 3, "fraction": 1.0}, "and not both"),
        ({"n": -1}, "n must be above 0"),
        ({"fraction": float("nan")}, "fraction must be above 0"),
        ({"n": 3, "alpha": 0.0}, "alpha must be above 0"),
        ({"n": 3, "std": -1.0}, "std must be above 0"),
        ({"n": 3, "cap": "sfot"}, "did you mean 'soft'"),
        ({"n": 3, "cap": "hard", "limit": 0}, "limit must be above 0"),
        ({"n": 3, "limit": 5}, "cap: soft does not read it: leave out limit=5"),
        ({"n": 3, "cap": "hard", "alpha": 0.3}, "leave out alpha=0.3"),
        ({"n": 3, "of": "pool"}, "leave out of='pool'"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sample(score="x", **settings)


def test_large_scores_are_drawn_exactly() -> None:
    step = Sample(score="x", n=20, cap="hard", std=None)
    assert often(step, scored(0, 1e30, -1e30, 5e29)) == [0, 15, 0, 5]
    assert often(step, scored(0, 1e30, -1e30, 0)) in ([2, 15, 0, 3], [3, 15, 0, 2])


def test_an_infinite_score_is_none() -> None:
    table = MemoryTable({"a": np.float32([1, np.inf, -np.inf, 2])})
    found = Sample(score="a", n=3, missing="drop").select(table)
    assert found.counts["missing"] == 2
    assert found.times.tolist()[1:3] == [0, 0]
    assert found.times.sum() == 3


def test_epochs_are_drawn_anew_with_exact_counts_and_one_after_the_other() -> None:
    scores = np.random.default_rng(1).normal(size=300).astype(np.float32)
    table = MemoryTable({"x": scores})
    step = Sample(score="x", n=120, epochs=4, seed=7)
    found = run_steps(table, [step])
    alone = [run_steps(table, [replace(step, epochs=1, seed=seed_of_epoch(7, epoch))]).times for epoch in range(4)]
    assert found.times.tolist() == np.sum(alone, axis=0).tolist()
    assert found.funnel[0]["times"] == found.order.size == 480
    epochs = np.split(found.order, 4)
    assert [np.bincount(epoch, minlength=300).tolist() for epoch in epochs] == [times.tolist() for times in alone]
    assert len({tuple(np.flatnonzero(times)) for times in alone}) == 4  # rows that are rounded up differ
    assert all((np.diff(epoch) < 0).any() for epoch in epochs)  # each is shuffled
    assert run_steps(table, [replace(step, epochs=1)]).order is None
    blocks = run_steps(MemoryTable({"x": scores}, block=17), [step])
    assert blocks.order.tolist() == found.order.tolist()


def test_too_many_epochs_for_the_counter_are_an_error() -> None:
    table = MemoryTable({"x": np.zeros(2, np.float32)})
    with pytest.raises(RecipeError, match="take fewer"):
        run_steps(table, [Sample(score="x", n=40_000, epochs=4)])
