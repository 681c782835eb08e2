"""Steps by hand: float32 thresholds, shares of the pool, thresholds drawn on scores, and what is refused.

`test_recipes.py` compares every step with a slow interpreter.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tamis.core.errors import RecipeError
from tamis.recipes.steps import (
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
from tamis.recipes.steps.best import Best, by_row
from tamis.recipes.steps.outcome import check_columns, describe
from tamis.runs.reasons import widen
from tamis.runs.table import MemoryTable, Table

NAN = np.nan


def random_uids(rows: int, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    high, low = np.random.default_rng(seed).integers(0, 2**64, (2, rows), dtype=np.uint64)
    return high, low


def table(rows: int = 0, *, candidates: Sequence[int] | None = None, **columns: Any) -> Table:
    """A table of float32 columns, with random uids; lists that hold a word or None become word columns."""
    count = rows or (len(next(iter(columns.values()))) if columns else 0)
    typed = {
        name: list(values) if any(isinstance(v, str | None) for v in values) else np.asarray(values, np.float32)
        for name, values in columns.items()
    }
    made = MemoryTable(typed, uids=random_uids(count), block=4)
    return made if candidates is None else made.with_candidates(np.array(candidates, bool))


def kept(selection: Selection) -> list[int]:
    return np.flatnonzero(selection.keep).tolist()


def test_the_step_for_readable_pairs_is_called_so() -> None:
    usable = Equals(score="status", value=("ok", "json_broken", "duplicate_key"))
    outcome = run_steps(table(status=["ok", "image_broken", "duplicate_key"]), [usable])
    assert outcome.dropped_by.tolist() == [0, 1, 0]
    assert (usable.described, outcome.reasons[0].text) == ("readable", "not readable")
    assert Equals(score="status", value="ok").described == "status is ok"


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        (AtLeast(score="a", value=1e300), []),
        (AtMost(score="a", value=1e300), [0, 1, 2, 3, 4]),
        (Equals(score="a", value=(0.1, 1e300)), [0]),
        (Equals(score="w", value=""), [4]),
    ],
    ids=lambda value: describe(value) if isinstance(value, Step) else "",
)
def test_values_beyond_float32_and_empty_words_by_hand(step: Step, wanted: list[int]) -> None:
    assert kept(step.select(table(a=[0.1, 0.3, 0.5, -1.0, 0.9], w=["en", "de", "fr", "en", ""]))) == wanted


@pytest.mark.parametrize("value", [0.281, 0.28, 1 / 3])
def test_a_score_stored_as_the_threshold_itself_is_kept(value: float) -> None:
    """0.281 is not a float32: the stored score is slightly below it."""
    for step in (
        AtLeast(score="a", value=value),
        AtMost(score="a", value=value),
        Between(score="a", low=value, high=value),
        Equals(score="a", value=value),
    ):
        outcome = run_steps(table(a=[value]), [step])
        assert outcome.keep.tolist() == [True]
        assert all(cut.distance(np.array([np.float32(value)], np.float64)) >= 0 for cut in outcome.cuts)
    just_below = np.nextafter(np.float32(value), np.float32(-1))
    assert kept(AtLeast(score="a", value=value).select(table(a=[just_below]))) == []


def test_random_shares_nest_and_another_seed_draws_independently() -> None:
    asked = table(10_000)
    one, two, larger = (
        RandomFraction(fraction=fraction, seed=seed).select(asked).keep
        for fraction, seed in [(0.3, 1), (0.3, 2), (0.7, 1)]
    )
    assert (one.sum(), larger.sum()) == (3000, 7000)
    assert not (one & ~larger).any()
    assert (one & two).sum() == pytest.approx(900, abs=100)


def test_groups_nest_and_a_part_may_have_several_steps_or_none() -> None:
    asked = table(a=[1, 2, 3, 4], b=[4, 3, 2, 1])
    inner = AnyOf(parts=((AtLeast(score="a", value=4),), (AtLeast(score="b", value=4),)))
    assert kept(NoneOf(parts=((inner,),)).select(asked)) == [1, 2]
    assert kept(NoneOf(parts=((),)).select(asked)) == []
    parts = ((AtLeast(score="a + b", value=2), Equals(score="w", value="x")), (RandomFraction(fraction=0.5),))
    assert AllOf(parts=parts).reads == {"a", "b", "w"}


def by_hand() -> Table:
    return MemoryTable({"x": np.array([1, 2, 3, 4, 5, NAN], np.float32), "w": ["a", "b", "a", "b", None, "a"]}, block=4)


X = (AtLeast(score="x", value=3, missing="drop"),)
W = (Equals(score="w", value="a", missing="drop"),)


@pytest.mark.parametrize(
    ("group", "wanted"),
    [
        (AllOf, ["not in x >= 3", "not in x >= 3", "", "not in w is a", "not in w is a", "not in x >= 3"]),
        (AnyOf, ["", "in none of x >= 3, w is a", "", "", "", ""]),
        (NoneOf, ["in w is a", "", "in x >= 3", "in x >= 3", "in x >= 3", "in w is a"]),
    ],
)
def test_parts_without_labels_are_named_by_their_steps(group: Callable[..., Step], wanted: list[str]) -> None:
    outcome = run_steps(by_hand(), [group(parts=(X, W))])
    assert [["", *(reason.text for reason in outcome.reasons)][code] for code in outcome.dropped_by] == wanted


@pytest.mark.parametrize(
    ("step", "score", "ends"),
    [
        (AtMost(score="x", value=1e300, missing="drop"), "x", (None, np.inf)),  # beyond what a stored score can be
        (Between(score="x", low=2, high=4, missing="drop"), "x", (2, 4)),
        (TopN(score="x", n=2, missing="drop"), "x", (4, None)),
        (TopFraction(score="2*x", fraction=0.5, of="pool", missing="drop"), "2*x", (6, None)),
        (TopN(score="x", n=1, per="w", missing="drop"), "x", None),  # each group has its own
        (Equals(score="w", value="a", missing="drop"), None, None),
        (Equals(score="x", value=1.0, missing="drop"), "x", None),
        (AnyOf(parts=(X, W)), "x", (3, None)),
        (AnyOf(parts=(X, (AtMost(score="-x", value=9, missing="drop"),))), None, (3, None)),
        (NoneOf(parts=(X,)), "x", None),  # there the rows inside are dropped
    ],
    ids=lambda value: describe(value) if isinstance(value, Step) else "",
)
def test_a_reason_names_its_score_and_a_cut_has_ends(step: Any, score: str | None, ends: Any) -> None:
    outcome = run_steps(by_hand(), [step])
    assert outcome.reasons[-1].score == score
    assert [(cut.low, cut.high) for cut in outcome.cuts][:1] == ([] if ends is None else [ends])
    for cut in outcome.cuts:
        assert outcome.reasons[cut.code - 1].step == 1
        assert cut.dropped == int((outcome.dropped_by == cut.code).sum()) or isinstance(step, AnyOf)


def test_thresholds_of_parts_have_the_code_of_the_part_that_decided() -> None:
    first = Equals(score="x", value=(1.0, 2.0, 4.0), missing="drop")
    outcome = run_steps(by_hand(), [first, AllOf(parts=(W, X))])
    (cut,) = outcome.cuts
    assert outcome.reasons[cut.code - 1].sentence == "Step 2: not in x >= 3"
    assert outcome.dropped_by.tolist() == [cut.code, cut.code - 1, 1, cut.code - 1, 1, 2]


def test_many_reasons_take_two_bytes_per_row_and_more_are_refused() -> None:
    count = 300
    many = MemoryTable({"x": np.arange(count, dtype=np.float32)})
    parts = tuple((Between(score="x", low=n, high=n),) for n in range(count - 1))
    outcome = run_steps(many, [NoneOf(parts=parts)])
    assert (outcome.dropped_by.dtype, outcome.dropped_by.tolist()) == (np.uint16, [*range(1, count), 0])
    with pytest.raises(RecipeError, match="65,536 reasons"):
        widen(np.zeros(1, np.uint16), 65_536)


EVERY: list[tuple[Step, str]] = [
    (AtMost(score="minmax(a)", value=0.1234567, missing="drop"), "minmax(a) <= 0.1234567"),
    (Between(score="a", low=-1_000_001, high=1e-7, missing="drop"), "-1000001 <= a <= 1e-07"),
    (TopFraction(score="a", fraction=0.3, of="pool", per="w", missing="drop"), "top 30 % of the pool by a per w"),
    (TopN(score="a", n=3000, per="w", cap=2, missing="drop"), "top 3,000 by a, at most 2 per w"),
    (RandomFraction(fraction=0.3, seed=4), "random 30 % of the survivors (seed 4)"),
    (NoneOf(parts=((TopN(score="a", n=2, missing="drop"),), ())), "none of: top 2 by a, every row"),
]


def test_a_funnel_has_a_line_for_every_step() -> None:
    asked = table(a=[0.1, 0.2, 0.3, NAN, 0.5], w=["en", "de", "en", "en", "en"])
    steps = [Equals(score="w", value="en"), AtLeast(score="a", value=0.2, missing="drop"), TopN(score="a", n=1)]
    outcome = run_steps(asked, steps)
    assert np.flatnonzero(outcome.keep).tolist() == [4]
    assert list(outcome.funnel) == [
        {"step": "w is en", "before": 5, "kept": 4, "dropped": {"w is not en": 1}, "cut": None},
        {"step": "a >= 0.2", "before": 4, "kept": 2, "dropped": {"a below 0.2": 1, "missing": 1}, "cut": 0.2},
        {"step": "top 1 by a", "before": 2, "kept": 1, "dropped": {"a below the cut": 1}, "cut": 0.5},
    ]
    assert run_steps(asked, []).keep.all()
    assert [describe(step) for step, _ in EVERY] == [line for _, line in EVERY]


@pytest.mark.parametrize(
    ("make", "names"),
    [
        *((lambda step=step: step(score="a", value=NAN), "nan") for step in (AtLeast, AtMost)),
        (lambda: Between(score="a", low=0.5, high=0.1), r"low 0\.5 and high 0\.1"),
        *((lambda f=f: TopFraction(score="a", fraction=f), "between 0 and 1") for f in (-0.1, 1.01, NAN)),
        (lambda: RandomFraction(fraction=30), r"did you mean 0\.3"),
        (lambda: TopN(score="a", n=-1), "-1"),
        (lambda: TopN(score="a", n=1, cap=3), "cap 3"),
        (lambda: Equals(score="2*a", value=1.0), r"'2\*a'"),
        (lambda: Equals(score="a", value=()), "empty"),
        *((lambda value=value: Equals(score="a", value=value), "got nan") for value in (NAN, (1.0, NAN))),
        (lambda: Equals(score="a", value=2**53 + 1), "more than 15 digits: put them in quotes"),
    ],
)
def test_wrong_settings_are_refused(make: Callable[[], Step], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        make()


@pytest.mark.parametrize(
    ("step", "names"),
    [
        (TopN(score="minmax(w)", n=1), "'w' holds words.*'equals'"),
        (Equals(score="a", value="en"), "'en'.*'a' holds numbers"),
        (Equals(score="w", value=1.0), r"1\.0.*'w' holds words"),
        (TopN(score="a", n=1, per="v"), "'v' holds vectors"),
        (AnyOf(parts=((AtLeast(score="2*w", value=0),),)), "'w' holds words"),
    ],
)
def test_wrong_columns_are_refused_by_the_check_and_by_the_step(step: Step, names: str) -> None:
    asked = MemoryTable({"a": np.array([0, 1], np.float32), "w": ["a", "b"], "v": np.ones((2, 3), np.float16)})
    for refuses in (lambda: check_columns([step], asked), lambda: run_steps(asked, [step])):
        with pytest.raises(RecipeError, match=names):
            refuses()


def test_rows_below_the_cut_have_no_further_keys() -> None:
    values = np.arange(12, dtype=np.float32)

    def ranked(place: slice, columns: dict[str, Any], candidates: Any) -> Any:
        return columns["a"].astype(np.float64), None, candidates

    pool = MemoryTable({"a": values}, block=4)
    best = Best(pool, ["a"], ranked, lambda most: np.array([3]), 12, (by_row,))
    *_, (_, _, inside) = best._levels(slice(0, 4), *ranked(slice(0, 4), {"a": values[:4]}, np.ones(4, bool)))
    assert not inside.any()


def test_of_equal_rows_with_one_uid_the_first_of_each_group_stays() -> None:
    uids = (np.full(4, 2**63, np.uint64), np.full(4, 2**64 - 1, np.uint64))  # float64 has no such numbers
    table = MemoryTable({"x": np.ones(4, np.float32), "w": ["en", "de", "en", "de"]}, uids=uids, block=3)
    assert np.flatnonzero(TopN(score="x", n=1, per="w").select(table).keep).tolist() == [0, 1]
