"""Every step against a slow, literal one: counts, ties, missing scores, order and blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.errors import RecipeError
from tamis.selectors import (
    AllOf,
    AnyOf,
    AtLeast,
    AtMost,
    Between,
    Equals,
    NoneOf,
    RandomFraction,
    Selection,
    Step,
    TopFraction,
    TopN,
    run_steps,
)
from tamis.selectors.steps import describe
from tamis.store.table import Table
from tamis.uid import scramble

NAN = np.nan


def random_uids(rows: int, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    high, low = np.random.default_rng(seed).integers(0, 2**64, (2, rows), dtype=np.uint64)
    return high, low


def table(rows: int = 0, *, block: int = 4, alive: Sequence[bool] | None = None, **columns: Any) -> Table:
    """A table of float32 columns, with random uids; lists that hold a word or None become word columns."""
    count = rows or (len(next(iter(columns.values()))) if columns else 0)
    typed = {
        name: list(values) if any(isinstance(v, str | None) for v in values) else np.asarray(values, np.float32)
        for name, values in columns.items()
    }
    made = Table.of(typed, uids=random_uids(count), block=block)
    return made if alive is None else made.among(np.array(alive, bool))


def kept(selection: Selection) -> list[int]:
    return np.flatnonzero(selection.keep).tolist()


def assert_adds_up(selection: Selection, asked: Table) -> None:
    alive = asked.living()
    assert sum(selection.counts.values()) == int(alive.sum())
    assert selection.counts["kept"] == int(selection.keep.sum())
    assert min(selection.counts.values()) >= 0
    assert not (selection.keep & ~alive).any()


# ---- thresholds


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        (AtLeast(score="a", value=0.3), [1, 2, 4]),
        (AtMost(score="a", value=0.3), [0, 1, 3]),
        (Between(score="a", low=0.1, high=0.3), [0, 1]),
        (Between(score="a", low=0.3, high=0.3), [1]),
        (AtLeast(score="2*a", value=0.61), [2, 4]),
        (AtMost(score="-a", value=-0.4), [2, 4]),
        (AtLeast(score="a", value=-np.inf), [0, 1, 2, 3, 4]),
        (AtLeast(score="a", value=np.inf), []),
        (AtLeast(score="a", value=1e300), []),
        (AtMost(score="a", value=1e300), [0, 1, 2, 3, 4]),
    ],
    ids=lambda value: describe(value) if not isinstance(value, list) else "",
)
def test_thresholds_by_hand(step: Step, wanted: list[int]) -> None:
    asked = table(a=[0.1, 0.3, 0.5, -1.0, 0.9])
    selection = step.select(asked)
    assert kept(selection) == wanted
    assert_adds_up(selection, asked)


@pytest.mark.parametrize("value", [0.281, 0.28, 0.1, 0.3, 1 / 3])
def test_a_score_stored_as_the_threshold_itself_is_kept(value: float) -> None:
    asked = table(a=[value])
    assert kept(AtLeast(score="a", value=value).select(asked)) == [0]
    assert kept(AtMost(score="a", value=value).select(asked)) == [0]
    assert kept(Between(score="a", low=value, high=value).select(asked)) == [0]
    assert kept(Equals(score="a", value=value).select(asked)) == [0]
    just_below = np.nextafter(np.float32(value), np.float32(-1))
    assert kept(AtLeast(score="a", value=value).select(table(a=[just_below]))) == []


def test_thresholds_say_where_the_line_fell() -> None:
    assert AtLeast(score="a", value=0.25).select(table(a=[1.0])).cut == 0.25
    assert AtMost(score="a", value=0.25).select(table(a=[1.0])).cut == 0.25
    assert Between(score="a", low=0, high=1).select(table(a=[1.0])).cut is None


def test_reasons_name_the_rule() -> None:
    asked = table(a=[0.1, 0.5, NAN])
    step = AtLeast(score="a", value=0.3, missing="drop")
    assert step.select(asked).counts == {"kept": 1, "a below 0.3": 1, "missing": 1}


@pytest.mark.parametrize("step", [AtLeast, AtMost])
def test_a_threshold_that_is_no_number_is_refused(step: Callable[..., Step]) -> None:
    with pytest.raises(ValueError, match="needs a number, got nan"):
        step(score="a", value=NAN)


def test_between_needs_its_ends_in_order() -> None:
    with pytest.raises(ValueError, match=r"low <= high, got low 0\.5 and high 0\.1"):
        Between(score="a", low=0.5, high=0.1)
    with pytest.raises(ValueError, match="low <= high"):
        Between(score="a", low=NAN, high=0.1)


# ---- top k

MANY = st.lists(st.sampled_from([0.0, 0.25, 0.25, 0.5, NAN]), max_size=25)


def best(asked: Table, column: str, n: int) -> set[int]:
    """The n best living rows by sorting Python tuples."""
    values = np.concatenate([asked.read(block, [column])[column] for block in range(len(asked.sizes))] or [[]])
    rows = np.flatnonzero(asked.living())
    ties = dict(zip(rows.tolist(), scramble(*asked.uids(rows)).tolist(), strict=True))
    judged = [row for row in rows.tolist() if not np.isnan(values[row])]
    return set(sorted(judged, key=lambda row: (-values[row], ties[row]))[:n])


@settings(deadline=None)
@given(MANY, st.integers(0, 100), st.sampled_from(["pool", "survivors"]), st.data())
def test_top_fraction_equals_sorting(values: list[float], percent: int, of: str, data: st.DataObject) -> None:
    alive = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    asked = table(a=values, alive=alive, block=data.draw(st.integers(1, 9)))
    step = TopFraction(score="a", fraction=percent / 100, of=of, missing="drop")  # type: ignore[arg-type]
    selection = step.select(asked)
    rows = len(values) if of == "pool" else sum(alive)
    n = (Fraction(percent, 100) * rows + Fraction(1, 2)).__floor__()
    assert set(kept(selection)) == best(asked, "a", n)
    assert_adds_up(selection, asked)
    if n and kept(selection):
        assert selection.cut == min(values[row] for row in kept(selection))
    else:
        assert selection.cut is None


@settings(deadline=None)
@given(MANY, st.integers(0, 30))
def test_top_n_equals_sorting(values: list[float], n: int) -> None:
    asked = table(a=values)
    selection = TopN(score="a", n=n, missing="drop").select(asked)
    assert set(kept(selection)) == best(asked, "a", n)
    assert_adds_up(selection, asked)


@pytest.mark.parametrize(
    ("fraction", "rows", "wanted"), [(0.29, 100, 29), (0.5, 5, 3), (0.0, 9, 0), (1.0, 9, 9), (0.3, 1, 0), (0.5, 1, 1)]
)
def test_fractions_keep_exactly_the_rounded_count_though_all_are_tied(fraction: float, rows: int, wanted: int) -> None:
    asked = table(a=np.full(rows, 0.5))
    assert TopFraction(score="a", fraction=fraction).select(asked).counts["kept"] == wanted
    assert RandomFraction(fraction=fraction).select(asked).counts["kept"] == wanted


def test_a_fraction_of_the_pool_counts_unjudged_and_dropped_rows_too() -> None:
    values = [0.9, 0.8, 0.7, NAN, NAN, 0.6, 0.5, 0.4, 0.3, 0.2]
    alive = [True] * 8 + [False] * 2
    pool = TopFraction(score="a", fraction=0.5, of="pool", missing="drop").select(table(a=values, alive=alive))
    survivors = TopFraction(score="a", fraction=0.5, missing="drop").select(table(a=values, alive=alive))
    assert kept(pool) == [0, 1, 2, 5, 6]
    assert kept(survivors) == [0, 1, 2, 5]
    assert pool.cut == np.float32(0.5)


def test_a_fraction_of_the_pool_keeps_no_more_than_there_are() -> None:
    selection = TopFraction(score="a", fraction=0.9, of="pool").select(table(a=[1, 2, 3, 4], alive=[1, 0, 0, 1]))
    assert kept(selection) == [0, 3]


def test_top_n_keeps_all_where_there_are_fewer() -> None:
    assert kept(TopN(score="a", n=99).select(table(a=[3.0, 1.0]))) == [0, 1]


def test_infinite_scores_of_a_column_take_their_places() -> None:
    asked = table(a=[-np.inf, 1.0, np.inf])
    assert kept(TopN(score="a", n=2).select(asked)) == [1, 2]
    assert kept(TopN(score="-a", n=2).select(asked)) == [0, 1]
    assert kept(AtLeast(score="a", value=1).select(asked)) == [1, 2]


@pytest.mark.parametrize("fraction", [-0.1, 1.01, 30, NAN])
@pytest.mark.parametrize("step", [lambda f: TopFraction(score="a", fraction=f), lambda f: RandomFraction(fraction=f)])
def test_a_fraction_outside_zero_to_one_is_refused(step: Callable[[float], Step], fraction: float) -> None:
    with pytest.raises(ValueError, match="a fraction must be between 0 and 1, got"):
        step(fraction)


def test_a_negative_n_is_refused() -> None:
    with pytest.raises(ValueError, match="n >= 0, got -1"):
        TopN(score="a", n=-1)


# ---- random


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_a_larger_random_share_holds_the_smaller_one(seed: int) -> None:
    asked = table(1000)
    smaller = RandomFraction(fraction=0.2, seed=seed).select(asked).keep
    larger = RandomFraction(fraction=0.7, seed=seed).select(asked).keep
    assert (smaller.sum(), larger.sum()) == (200, 700)
    assert not (smaller & ~larger).any()


def test_shares_of_other_seeds_are_independent() -> None:
    asked = table(10_000, block=999)
    one, two = (RandomFraction(fraction=0.3, seed=seed).select(asked).keep for seed in (1, 2))
    assert (one & two).sum() == pytest.approx(900, abs=100)


def test_a_random_share_does_not_depend_on_what_else_is_in_the_pool_order() -> None:
    high, low = random_uids(50)
    order = np.random.default_rng(0).permutation(50)
    straight = RandomFraction(fraction=0.4, seed=9).select(Table.of({}, uids=(high, low), block=7))
    shuffled = RandomFraction(fraction=0.4, seed=9).select(Table.of({}, uids=(high[order], low[order]), block=50))
    assert sorted(low[straight.keep].tolist()) == sorted(low[order][shuffled.keep].tolist())


def test_a_random_share_of_the_pool_is_drawn_from_the_survivors() -> None:
    asked = table(10, alive=[True] * 6 + [False] * 4)
    assert RandomFraction(fraction=0.5, of="pool").select(asked).counts == {"kept": 5, "not drawn": 1, "missing": 0}
    assert RandomFraction(fraction=0.5).select(asked).counts == {"kept": 3, "not drawn": 3, "missing": 0}
    assert RandomFraction(fraction=0.9, of="pool").select(asked).counts["kept"] == 6


# ---- equals

WORDS = ["en", "de", None, "en", "fr", "", "en"]


@pytest.mark.parametrize(
    ("value", "wanted"), [("en", [0, 3, 6]), (("en", "fr"), [0, 3, 4, 6]), ("", [5]), ("nb", []), (("nb", "de"), [1])]
)
def test_equals_with_words(value: Any, wanted: list[int]) -> None:
    asked = table(language=WORDS, block=3)
    selection = Equals(score="language", value=value, missing="drop").select(asked)
    assert kept(selection) == wanted
    assert selection.counts["missing"] == 1
    assert_adds_up(selection, asked)


def test_equals_with_dictionary_coded_words() -> None:
    import pyarrow as pa

    coded = pa.array(WORDS).dictionary_encode()
    asked = Table([7], lambda block, names: {"w": coded}, lambda block: random_uids(7), lambda name: "word")
    assert kept(Equals(score="w", value="en", missing="drop").select(asked)) == [0, 3, 6]


@pytest.mark.parametrize(("value", "wanted"), [(0.1, [0]), ((0.1, 7.0), [0, 2]), (8.0, []), (1e300, [])])
def test_equals_with_numbers(value: Any, wanted: list[int]) -> None:
    asked = table(a=[0.1, NAN, 7.0, 0.2])
    selection = Equals(score="a", value=value, missing="drop").select(asked)
    assert kept(selection) == wanted
    assert_adds_up(selection, asked)


def test_equals_names_what_it_wanted() -> None:
    selection = Equals(score="a", value=(1.0, 2.0)).select(table(a=[1, 2, 3]))
    assert selection.counts == {"kept": 2, "a is not 1.0 or 2.0": 1, "missing": 0}


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ({"a": [1.0]}, "en", "the column 'a' holds numbers, got 'en'"),
        ({"a": ["en"]}, 1.0, r"the column 'a' holds words, got 1\.0"),
    ],
)
def test_equals_with_the_wrong_kind_is_an_error(column: dict[str, Any], value: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Equals(score="a", value=value).select(table(**column))


def test_equals_takes_a_column_not_an_expression() -> None:
    with pytest.raises(ValueError, match=r"looks at one column, got the expression '2\*a'"):
        Equals(score="2*a", value=1.0)


def test_equals_to_nothing_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least one value"):
        Equals(score="a", value=())


@pytest.mark.parametrize(
    "step",
    [
        AtLeast(score="language", value=1),
        AtMost(score="language + 1", value=1),
        TopN(score="minmax(language)", n=1),
        TopFraction(score="language", fraction=0.5),
    ],
)
def test_words_in_arithmetic_are_an_error_that_names_equals(step: Step) -> None:
    with pytest.raises(RecipeError, match="the column 'language' holds words: compare it with 'equals'"):
        step.select(table(language=["en", "de"]))


# ---- rows without a score

SCORED: list[Callable[..., Any]] = [
    lambda **more: AtLeast(score="a", value=0.3, **more),
    lambda **more: AtMost(score="a", value=0.3, **more),
    lambda **more: Between(score="a", low=0.3, high=0.4, **more),
    lambda **more: TopFraction(score="a", fraction=0.5, **more),
    lambda **more: TopN(score="a", n=1, **more),
    lambda **more: Equals(score="a", value=0.3, **more),
    lambda **more: AtLeast(score="a/a", value=0.3, **more),
]


@pytest.mark.parametrize("make", SCORED)
def test_rows_without_a_score_are_an_error_that_says_what_to_do(make: Callable[..., Step]) -> None:
    asked = table(a=[0.3, NAN, 0.5, NAN], alive=[True, True, True, False])
    with pytest.raises(RecipeError, match=r"1 of 3 rows have no value for 'a.*missing: drop"):
        make().select(asked)


@pytest.mark.parametrize("make", SCORED)
def test_rows_without_a_score_are_dropped_and_counted_where_the_step_says_so(make: Callable[..., Step]) -> None:
    asked = table(a=[0.3, NAN, 0.5, NAN], alive=[True, True, True, False])
    selection = make(missing="drop").select(asked)
    assert selection.counts["missing"] == 1
    assert_adds_up(selection, asked)


@pytest.mark.parametrize("make", SCORED)
def test_rows_that_are_out_already_may_lack_a_score(make: Callable[..., Step]) -> None:
    asked = table(a=[0.3, NAN, 0.5], alive=[True, False, True])
    assert make().select(asked).counts["missing"] == 0


@pytest.mark.parametrize("score", ["a/a", "1/a", "log(a)", "minmax(1/a)", "zscore(b)"])
def test_infinite_results_are_missing(score: str) -> None:
    asked = table(a=[0.0, 1.0, 2.0], b=[np.inf, 1.0, 2.0])
    for step in (AtLeast, TopFraction):
        settings = {"value": 0} if step is AtLeast else {"fraction": 0.3}
        with pytest.raises(RecipeError, match=re.escape(f"1 of 3 rows have no value for {score!r} (not judged, not a")):
            step(score=score, **settings).select(asked)
        assert step(score=score, missing="drop", **settings).select(asked).counts["missing"] == 1


# ---- together

EVERY: list[Step] = [
    AtLeast(score="a", value=0.3, missing="drop"),
    AtMost(score="minmax(a)", value=0.5, missing="drop"),
    Between(score="a", low=0.2, high=0.5, missing="drop"),
    TopFraction(score="a", fraction=0.3, missing="drop"),
    TopFraction(score="rank(a) + 0*a", fraction=0.3, of="pool", missing="drop"),
    TopN(score="zscore(a)", n=3, missing="drop"),
    Equals(score="w", value="en", missing="drop"),
    Equals(score="a", value=(0.25, 0.5), missing="drop"),
    RandomFraction(fraction=0.3, seed=4),
    AllOf(parts=((TopN(score="a", n=9, missing="drop"),), (RandomFraction(fraction=0.7),))),
    AnyOf(parts=((TopN(score="a", n=2, missing="drop"),), (RandomFraction(fraction=0.2),))),
    NoneOf(parts=((TopN(score="a", n=2, missing="drop"),), (RandomFraction(fraction=0.2),))),
]


@pytest.mark.parametrize("step", EVERY, ids=describe)
@settings(deadline=None, max_examples=25)
@given(order=st.permutations(range(20)), block=st.integers(1, 21), seed=st.integers(0, 9))
def test_row_order_and_blocks_do_not_matter(step: Step, order: list[int], block: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.choice(np.array([0.0, 0.25, 0.5, 0.75, NAN], np.float32), 20)
    w = rng.choice(["en", "de", "fr"], 20).tolist()
    alive = rng.random(20) < 0.8
    high, low = random_uids(20)

    def choose(rows: list[int], block: int) -> set[int]:
        columns = {"a": a[rows], "w": [w[row] for row in rows]}
        asked = Table.of(columns, uids=(high[rows], low[rows]), block=block).among(alive[rows])
        selection = step.select(asked)
        assert_adds_up(selection, asked)
        return {rows[place] for place in kept(selection)}

    assert choose(order, block) == choose(list(range(20)), 20)


@pytest.mark.parametrize("step", EVERY, ids=describe)
@pytest.mark.parametrize("a", [[], [0.5], [0.5] * 6, [NAN] * 6], ids=["no rows", "one row", "all tied", "no score"])
def test_degenerate_pools_are_judged(step: Step, a: list[float]) -> None:
    asked = table(a=a, w=["en" if value == 0.5 else None for value in a])
    if not a:
        asked = Table.of({"a": np.empty(0, np.float32), "w": []})
    selection = step.select(asked)
    assert selection.keep.shape == (len(a),)
    assert_adds_up(selection, asked)


@pytest.mark.parametrize("step", EVERY, ids=describe)
def test_a_step_reads_exactly_the_columns_it_declares(step: Step) -> None:
    seen: set[str] = set()
    inner = table(a=[0.1, 0.5, 0.9], w=["en", "de", "en"], c=[1, 2, 3])

    def read(block: int, names: Sequence[str]) -> dict[str, Any]:
        seen.update(names)
        return inner.read(block, names)

    step.select(Table(inner.sizes, read, inner.read_uids, inner.kind))
    assert seen == set(step.reads)


def test_a_step_does_not_change_the_table() -> None:
    alive = np.array([True, True, False])
    asked = table(a=[1.0, 2.0, 3.0]).among(alive)
    for step in EVERY[:6]:
        step.select(asked).keep[:] = False
    assert alive.tolist() == [True, True, False]


# ---- groups


def test_groups_by_hand() -> None:
    asked = table(a=[1, 2, 3, 4], b=[4, 3, 2, 1])
    parts = ((AtLeast(score="a", value=2),), (AtLeast(score="b", value=2),))
    assert kept(AllOf(parts=parts).select(asked)) == [1, 2]
    assert kept(AnyOf(parts=parts).select(asked)) == [0, 1, 2, 3]
    assert kept(NoneOf(parts=((AtLeast(score="a", value=4),), (AtLeast(score="b", value=4),))).select(asked)) == [1, 2]


def test_parts_are_judged_on_the_whole_pool_not_on_the_survivors() -> None:
    asked = table(a=[1, 2, 3, 4], alive=[True, True, True, False])
    # The best half of the pool is rows 2 and 3; of the survivors it would be rows 1 and 2.
    part = ((TopFraction(score="a", fraction=0.5),),)
    assert kept(AllOf(parts=part).select(asked)) == [2]
    assert kept(AnyOf(parts=part).select(asked)) == [2]
    assert kept(NoneOf(parts=part).select(asked)) == [0, 1]


def test_the_steps_of_one_part_follow_each_other() -> None:
    asked = table(a=[1, 2, 3, 4])
    part = (AtMost(score="a", value=3), TopN(score="a", n=1))
    assert kept(AllOf(parts=(part,)).select(asked)) == [2]


def test_a_part_without_steps_keeps_every_row() -> None:
    asked = table(a=[1, 2])
    assert kept(AllOf(parts=((),)).select(asked)) == [0, 1]
    assert kept(NoneOf(parts=((),)).select(asked)) == []


@pytest.mark.parametrize("group", [AllOf, NoneOf])
def test_equal_parts_are_counted_together(group: Callable[..., Step]) -> None:
    """Two parts of one label must not overwrite each other's count."""
    asked = table(a=[1, 2, 3, 4])
    part = (AtLeast(score="a", value=3),)
    for parts in [(part, part), (part, (AtLeast(score="a", value=3.0000001),))]:
        assert_adds_up(group(parts=parts).select(asked), asked)


def test_a_group_reads_what_its_parts_read() -> None:
    parts = ((AtLeast(score="a + b", value=2), Equals(score="w", value="x")), (RandomFraction(fraction=0.5),))
    assert AllOf(parts=parts).reads == {"a", "b", "w"}


def test_groups_nest() -> None:
    asked = table(a=[1, 2, 3, 4], b=[4, 3, 2, 1])
    inner = AnyOf(parts=((AtLeast(score="a", value=4),), (AtLeast(score="b", value=4),)))
    assert kept(NoneOf(parts=((inner,),)).select(asked)) == [1, 2]


# ---- a whole recipe


def test_a_funnel_tells_every_step() -> None:
    asked = table(a=[0.1, 0.2, 0.3, NAN, 0.5], w=["en", "de", "en", "en", "en"])
    outcome = run_steps(
        asked, [Equals(score="w", value="en"), AtLeast(score="a", value=0.2, missing="drop"), TopN(score="a", n=1)]
    )
    assert np.flatnonzero(outcome.keep).tolist() == [4]
    assert outcome.kept == 1
    assert [(line.before, line.kept) for line in outcome.funnel] == [(5, 4), (4, 2), (2, 1)]
    assert outcome.funnel[1].dropped == {"a below 0.2": 1, "missing": 1}
    assert outcome.funnel[2].cut == pytest.approx(0.5)
    for line in outcome.funnel:
        assert line.before == line.kept + sum(line.dropped.values())
        assert line.as_json()["step"] == line.step


def test_no_steps_keep_every_row() -> None:
    outcome = run_steps(table(a=[NAN, 1.0]), [])
    assert outcome.keep.tolist() == [True, True]
    assert outcome.funnel == ()


def test_steps_are_described_in_one_line_each() -> None:
    assert [describe(step) for step in EVERY] == [
        "a >= 0.3",
        "minmax(a) <= 0.5",
        "0.2 <= a <= 0.5",
        "top 30 % of the survivors by a",
        "top 30 % of the pool by rank(a) + 0*a",
        "top 3 by zscore(a)",
        "w is en",
        "a is 0.25 or 0.5",
        "random 30 % of the survivors (seed 4)",
        "all of: top 9 by a, random 70 % of the survivors (seed 0)",
        "any of: top 2 by a, random 20 % of the survivors (seed 0)",
        "none of: top 2 by a, random 20 % of the survivors (seed 0)",
    ]


def test_thresholds_are_told_with_all_their_digits() -> None:
    assert AtLeast(score="a", value=1_000_001).described == "a >= 1000001"
    assert AtMost(score="a", value=0.1234567).described == "a <= 0.1234567"
    assert Between(score="a", low=-1_000_001, high=1e-7).described == "-1000001 <= a <= 1e-07"


@pytest.mark.parametrize("fraction", [0, 0.01, 0.3, 0.5, 0.99, 1])
def test_a_random_share_is_what_a_stable_sort_draws(fraction: float) -> None:
    rng = np.random.default_rng(5)
    high, low = rng.integers(0, 12, (2, 500), dtype=np.uint64)  # every uid stands several times
    alive = rng.random(500) < 0.8
    rows = np.flatnonzero(alive)
    n = RandomFraction(fraction=fraction, seed=2).select(Table.of({}, uids=(high, low), block=64).among(alive))
    order = np.argsort(scramble(high[rows], low[rows], seed=2), kind="stable")
    assert kept(n) == sorted(rows[order[: n.counts["kept"]]].tolist())
    assert n.counts["kept"] == int(np.floor(fraction * rows.size + 0.5))


def test_what_to_do_about_missing_scores_is_told_for_parts_too() -> None:
    with pytest.raises(RecipeError, match="in the same part, where it stands in all_of"):
        run_steps(table(a=[1.0, NAN]), [AnyOf(parts=((AtLeast(score="a", value=0),),))])
