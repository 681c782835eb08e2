"""The reason of every row, beside a slow interpreter of recipes that goes through the rows one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis import selectors as sel
from tamis.errors import RecipeError
from tamis.selectors import SELECTORS, Step, run_steps
from tamis.selectors.outcome import Drops
from tamis.store.reasons import widened
from tamis.store.table import Table
from tamis.uid import scramble

NAN = float("nan")
Row = dict[str, Any]


def rows_of(seed: int, count: int, *, scored: bool = True) -> list[Row]:
    """Rows with ties, NaN, missing words, missing embeddings and repeated hashes, or with no score at all."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        vector = np.round(rng.normal(size=3), 1).astype(np.float16) + np.float16(0.01)
        lost = rng.random() < 0.2
        rows.append(
            {
                "a": float(rng.choice([0.25, 0.5, 0.5, 0.75, NAN])) if scored else NAN,
                "b": float(rng.choice([0.0, 1.0, 2.0, NAN])) if scored else NAN,
                "w": [None, "en", "en", "de"][int(rng.integers(4))] if scored else None,
                "h": None if lost else f"{1 << int(rng.integers(0, 6)):016x}",
                "i": np.full(3, np.nan, np.float16) if lost else vector,
                "t": np.full(3, np.nan, np.float16) if lost else vector[::-1].copy(),
                "uid": tuple(int(half) for half in rng.integers(0, 2**64, 2, dtype=np.uint64)),
            }
        )
    return rows


def table_of(rows: Sequence[Row], block: int = 4) -> Table:
    columns: dict[str, Any] = {name: np.array([row[name] for row in rows], np.float32) for name in "ab"}
    columns |= {name: [row[name] for row in rows] for name in "wh"}
    columns |= {name: np.array([row[name] for row in rows], np.float16).reshape(-1, 3) for name in "it"}
    high, low = np.array([row["uid"] for row in rows], np.uint64).reshape(-1, 2).T
    return Table.of(columns, uids=(high, low), block=block)


def tie(row: Row, seed: int = 0) -> int:
    return int(scramble(np.array([row["uid"][0]], np.uint64), np.array([row["uid"][1]], np.uint64), seed)[0])


def half_up(share: float, rows: int) -> int:
    return int(np.floor(round(share * rows, 9) + 0.5))


Why = dict[int, str]  # of every row that a step drops, the reason


def lacking(step: Any, rows: Sequence[Row], alive: set[int], names: Sequence[str], what: str | None = None) -> Why:
    def missing(value: Any) -> bool:
        return value is None or bool(np.any(np.isnan(value)) if not isinstance(value, str) else False)

    said = f"no value for {what or ' and '.join(names)}"
    return {n: said for n in alive if any(missing(rows[n][name]) for name in names)}


def slow_threshold(step: Any, rows: Sequence[Row], alive: set[int]) -> Why:
    why = lacking(step, rows, alive, [step.score])
    for n in alive - set(why):
        value = rows[n][step.score]
        if isinstance(step, sel.AtLeast) and value < step.value:
            why[n] = f"{step.score} below {step.value:g}"
        if isinstance(step, sel.AtMost) and value > step.value:
            why[n] = f"{step.score} above {step.value:g}"
        if isinstance(step, sel.Between) and not step.low <= value <= step.high:
            why[n] = f"{step.score} outside {step.low:g} to {step.high:g}"
        if isinstance(step, sel.Equals) and value not in (
            step.value if isinstance(step.value, tuple) else [step.value]
        ):
            why[n] = f"{step.score} is not {step.value}"
    return why


def slow_top(step: Any, rows: Sequence[Row], alive: set[int]) -> Why:
    per = [step.per] if step.per else []
    why = lacking(step, rows, alive, [step.score, *per])
    left = sorted(alive - set(why), key=lambda n: (-rows[n][step.score], tie(rows[n])))
    share = getattr(step, "fraction", None)
    if step.per and step.cap is None:
        kept, reason = set(), f"below the cut of its {step.per}"
        for group in {rows[n][step.per] for n in left}:
            members = [n for n in left if rows[n][step.per] == group]
            kept |= set(members[: step.n if share is None else half_up(share, len(members))])
    else:
        reason = f"{step.score} below the cut"
        if step.per:
            taken: Counter[Any] = Counter()
            inside = []
            for n in left:
                inside += [n] if taken[rows[n][step.per]] < step.cap else []
                taken[rows[n][step.per]] += 1
            left = inside
        whole = len(rows) if getattr(step, "of", "survivors") == "pool" else len(alive)
        kept = set(left[: step.n if share is None else half_up(share, whole)])
    return why | dict.fromkeys(alive - set(why) - kept, reason)


def slow_random(step: Any, rows: Sequence[Row], alive: set[int]) -> Why:
    order = sorted(alive, key=lambda n: tie(rows[n], step.seed))
    return dict.fromkeys(order[half_up(step.fraction, len(alive)) :], "not drawn")


def slow_embedded(step: Any, rows: Sequence[Row], alive: set[int]) -> Why:
    """One cluster: of SemDeDup a row goes where it is near one before it, of the image-based rule none goes."""
    why = lacking(step, rows, alive, [step.embedding])
    order = sorted(alive - set(why), key=lambda n: tie(rows[n], step.seed))
    if isinstance(step, sel.ImageBased):
        return why
    units = {n: rows[n][step.embedding].astype(np.float64) / np.linalg.norm(rows[n][step.embedding].astype(float))
             for n in order}  # fmt: skip
    for place, n in enumerate(order):
        if any(units[n] @ units[other] > 1 - step.epsilon for other in order[:place]):
            why[n] = "repeats another"
    return why


def slow_distinct(step: Any, rows: Sequence[Row], alive: set[int]) -> Why:
    why = lacking(step, rows, alive, [step.hash])
    kept: list[int] = []
    for n in sorted(alive - set(why), key=lambda n: tie(rows[n])):
        bits = int(rows[n][step.hash], 16)
        if any((bits ^ int(rows[other][step.hash], 16)).bit_count() <= step.distance for other in kept):
            why[n] = "repeats another"
        else:
            kept.append(n)
    return why


def slow_clipcov(step: Any, rows: Sequence[Row], alive: set[int]) -> Why:
    """Which rows it takes is tests/math/test_clipcov.py's matter; here it is who lacks what."""
    why = lacking(step, rows, alive, [step.image, step.text, step.per])
    among = np.array([n in alive for n in range(len(rows))], bool)
    found = step.rank(table_of(rows).among(among))
    taken = set(found.rows[found.stays].tolist())
    return why | dict.fromkeys(alive - set(why) - taken, "adds less")


def slow_group(step: Any, rows: Sequence[Row], alive: set[int]) -> Why:
    everything = set(range(len(rows)))
    kept = {name: everything - set(slow_steps(part, rows)) for name, part in zip(step.labels, step.parts, strict=True)}
    why: Why = {}
    for n in alive:
        inside = [name for name in kept if n in kept[name]]
        outside = [name for name in kept if n not in kept[name]]
        if isinstance(step, sel.AllOf) and outside:
            why[n] = f"not in {outside[0]}"
        if isinstance(step, sel.NoneOf) and inside:
            why[n] = f"in {inside[0]}"
        if isinstance(step, sel.AnyOf) and not inside:
            why[n] = f"in none of {', '.join(kept)}"
    return why


SLOW: dict[str, Any] = {
    **dict.fromkeys(("at_least", "at_most", "between", "equals"), slow_threshold),
    **dict.fromkeys(("top_fraction", "top_n"), slow_top),
    **dict.fromkeys(("semdedup", "image_based"), slow_embedded),
    **dict.fromkeys(("all_of", "any_of", "none_of"), slow_group),
    "random_fraction": slow_random,
    "distinct": slow_distinct,
    "clipcov": slow_clipcov,
}


def slow_steps(steps: Sequence[Any], rows: Sequence[Row], *, numbered: bool = False) -> Why:
    alive, why = set(range(len(rows))), {}
    for number, step in enumerate(steps, start=1):
        fallen = SLOW[step.name](step, rows, alive)
        why |= {n: f"Step {number}: {text}" if numbered else text for n, text in fallen.items()}
        alive -= set(fallen)
    return why


@pytest.fixture(scope="module", autouse=True)
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "reference.npy"
    np.save(path, np.ones((2, 3), np.float16))
    IMAGE_BASED[0] = sel.ImageBased(reference=str(path), embedding="i", clusters=1, missing="drop")
    return path


IMAGE_BASED: list[Step] = [sel.ImageBased(reference="made by the fixture")]

PART_A: tuple[Step, ...] = (sel.AtLeast(score="a", value=0.5, missing="drop"),)
PART_W: tuple[Step, ...] = (sel.Equals(score="w", value="en", missing="drop"), sel.TopN(score="b", n=9, missing="drop"))
LABELS = ("the high ones", "the english ones")

STEPS: dict[str, list[Step]] = {
    "at_least": [sel.AtLeast(score="a", value=0.5, missing="drop")],
    "at_most": [sel.AtMost(score="b", value=1, missing="drop")],
    "between": [sel.Between(score="a", low=0.5, high=0.6, missing="drop")],
    "top_fraction": [
        sel.TopFraction(score="a", fraction=0.3, of="pool", missing="drop"),
        sel.TopFraction(score="b", fraction=0.5, per="w", missing="drop"),
    ],
    "top_n": [
        sel.TopN(score="a", n=4, missing="drop"),
        sel.TopN(score="a", n=1, per="b", missing="drop"),
        sel.TopN(score="b", n=7, per="w", cap=2, missing="drop"),
    ],
    "equals": [sel.Equals(score="w", value="en", missing="drop"), sel.Equals(score="a", value=0.25, missing="drop")],
    "random_fraction": [sel.RandomFraction(fraction=0.6, seed=3)],
    "clipcov": [sel.ClipCov(n=5, image="i", text="t", per="w", terms=("cov", "class_reg", "inter"), missing="drop")],
    "semdedup": [sel.SemDeDup(epsilon=0.3, embedding="i", clusters=1, keep="random", missing="drop")],
    "distinct": [sel.Distinct(hash="h", distance=1, colours=None, lightness=None, missing="drop")],
    "image_based": IMAGE_BASED,
    "all_of": [sel.AllOf(parts=(PART_A, PART_W), labels=LABELS)],
    "any_of": [sel.AnyOf(parts=(PART_A, PART_W), labels=LABELS)],
    "none_of": [sel.NoneOf(parts=(PART_A, PART_W), labels=LABELS)],
}

KINDS = [(name, number) for name, steps in STEPS.items() for number in range(len(steps))]


def assert_reasons(steps: Sequence[Step], rows: Sequence[Row], block: int = 4) -> None:
    """The codes are the slow interpreter's, and funnel, cuts and codes agree with one another."""
    outcome = run_steps(table_of(rows, block), steps)
    why = slow_steps(steps, rows, numbered=True)
    said = ["", *(reason.sentence for reason in outcome.reasons)]
    assert [said[code] for code in outcome.dropped_by.tolist()] == [why.get(n, "") for n in range(len(rows))]
    assert (outcome.dropped_by == 0).tolist() == outcome.keep.tolist()
    assert outcome.dropped_by.dtype == np.uint8
    for number, line in enumerate(outcome.funnel, start=1):
        mine = [code for code, reason in enumerate(outcome.reasons, start=1) if reason.step == number]
        assert sum(line.dropped.values()) == int(np.isin(outcome.dropped_by, mine).sum())
    for cut in outcome.cuts:
        assert said[cut.code].startswith("Step ")


def test_every_step_has_a_slow_one() -> None:
    assert set(STEPS) == set(SLOW) == set(SELECTORS)


@pytest.mark.parametrize(("name", "number"), KINDS)
@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10**6), count=st.integers(0, 24), block=st.integers(1, 25))
def test_reasons_are_what_a_loop_over_rows_says(name: str, number: int, seed: int, count: int, block: int) -> None:
    assert_reasons([STEPS[name][number]], rows_of(seed, count) if count else [], block)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), kinds=st.lists(st.sampled_from(KINDS), max_size=5))
def test_reasons_of_whole_recipes_too(seed: int, kinds: list[tuple[str, int]]) -> None:
    assert_reasons([STEPS[name][number] for name, number in kinds], rows_of(seed, 30))


@pytest.mark.parametrize(("name", "number"), KINDS)
def test_degenerate_pools_have_reasons(name: str, number: int) -> None:
    one = rows_of(1, 1)[0]
    tied = [{**one, "a": 0.5, "b": 1.0, "w": "en", "uid": (0, n)} for n in range(12)]
    for rows in ([], [one], tied, rows_of(5, 9, scored=False)):
        assert_reasons([STEPS[name][number]], rows)


@pytest.mark.parametrize(("name", "number"), KINDS)
def test_counts_and_codes_of_one_step_agree(name: str, number: int) -> None:
    rows = rows_of(8, 40)
    alive = np.random.default_rng(2).random(40) < 0.8
    found = STEPS[name][number].select(table_of(rows).among(alive))
    counted = {"missing": 0, **{reason.text: 0 for reason in found.reasons if not reason.text.startswith("no value")}}
    for code, reason in enumerate(found.reasons, start=1):
        key = "missing" if reason.text.startswith("no value") else reason.text
        counted[key] += int((found.dropped_by == code).sum())
    assert found.counts == {"kept": int(found.keep.sum()), **counted}
    assert not found.dropped_by[~alive].any()
    assert not (found.keep & (found.dropped_by > 0)).any()


def by_hand() -> Table:
    return Table.of({"x": np.array([1, 2, 3, 4, 5, NAN], np.float32), "w": ["a", "b", "a", "b", None, "a"]}, block=4)


def sentences(*steps: Step) -> list[str]:
    outcome = run_steps(by_hand(), steps)
    return [["", *(reason.sentence for reason in outcome.reasons)][code] for code in outcome.dropped_by.tolist()]


def test_every_dropped_row_has_its_step_and_reason() -> None:
    steps = [sel.Equals(score="w", value="a", missing="drop"), sel.AtLeast(score="x", value=2.5, missing="drop")]
    assert sentences(*steps) == [
        "Step 2: x below 2.5", "Step 1: w is not a", "", "Step 1: w is not a",
        "Step 1: no value for w", "Step 2: no value for x",
    ]  # fmt: skip


X = (sel.AtLeast(score="x", value=3, missing="drop"),)
W = (sel.Equals(score="w", value="a", missing="drop"),)


def test_parts_of_groups_say_which_part_decided() -> None:
    assert sentences(sel.AllOf(parts=(X, W))) == [
        "Step 1: not in x >= 3", "Step 1: not in x >= 3", "", "Step 1: not in w is a", "Step 1: not in w is a",
        "Step 1: not in x >= 3",
    ]  # fmt: skip
    assert sentences(sel.AnyOf(parts=(X, W))) == ["", "Step 1: in none of x >= 3, w is a", "", "", "", ""]
    assert sentences(sel.NoneOf(parts=(X, W))) == [
        "Step 1: in w is a", "", "Step 1: in x >= 3", "Step 1: in x >= 3", "Step 1: in x >= 3", "Step 1: in w is a",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("step", "ends"),
    [
        (sel.AtLeast(score="x", value=2.5, missing="drop"), (2.5, None)),
        (sel.AtMost(score="x", value=2.5, missing="drop"), (None, 2.5)),
        (sel.AtMost(score="x", value=1e300, missing="drop"), (None, np.inf)),  # past what a stored score can be
        (sel.Between(score="x", low=2, high=4, missing="drop"), (2, 4)),
        (sel.TopN(score="x", n=2, missing="drop"), (4, None)),
        (sel.TopFraction(score="2*x", fraction=0.5, of="pool", missing="drop"), (6, None)),
    ],
)
def test_steps_that_rank_draw_a_line(step: Step, ends: tuple[float | None, float | None]) -> None:
    (cut,) = run_steps(by_hand(), [step]).cuts
    assert (cut.low, cut.high) == ends
    assert (cut.step, cut.score, cut.dropped) == (
        step.described, step.score, int((run_steps(by_hand(), [step]).dropped_by == cut.code).sum())  # type: ignore[attr-defined]
    )  # fmt: skip


def test_a_row_on_the_line_in_float32_lies_inside() -> None:
    values = np.array([0.281, 0.1, 0.5], np.float32)
    outcome = run_steps(Table.of({"x": values}), [sel.AtLeast(score="x", value=0.281)])
    assert outcome.keep.tolist() == [True, False, True]
    assert (outcome.cuts[0].distance(values.astype(np.float64)) >= 0).tolist() == [True, False, True]


def test_no_line_is_drawn_where_nothing_is_kept_or_each_group_has_its_own() -> None:
    none = sel.TopN(score="x", n=0, missing="drop")
    quota = sel.TopN(score="x", n=1, per="w", missing="drop")
    assert run_steps(by_hand(), [none]).cuts == run_steps(by_hand(), [quota]).cuts == ()


def test_lines_of_parts_have_the_code_of_the_part_that_decided() -> None:
    outcome = run_steps(
        by_hand(), [sel.Equals(score="x", value=(1.0, 2.0, 4.0), missing="drop"), sel.AllOf(parts=(W, X))]
    )
    (cut,) = outcome.cuts
    assert outcome.reasons[cut.code - 1].sentence == "Step 2: not in x >= 3"
    assert outcome.dropped_by.tolist() == [cut.code, cut.code - 1, 2, cut.code - 1, 2, 1]
    assert run_steps(by_hand(), [sel.NoneOf(parts=(X,))]).cuts == ()  # there the line lies the other way round


@pytest.mark.parametrize(
    ("step", "score"),
    [
        (sel.TopN(score="x", n=1, per="w", missing="drop"), "x"),
        (sel.Equals(score="w", value="a", missing="drop"), None),
        (sel.Equals(score="x", value=1.0, missing="drop"), "x"),
        (sel.RandomFraction(fraction=0.5), None),
        (sel.AllOf(parts=(X, W)), None),
        (sel.AllOf(parts=(W, X)), "x"),
        (sel.AnyOf(parts=(X, W)), "x"),
        (sel.AnyOf(parts=(X, (sel.AtMost(score="-x", value=0, missing="drop"),))), None),
        (sel.NoneOf(parts=(X,)), "x"),
    ],
)
def test_a_reason_names_the_score_that_was_judged_by(step: Step, score: str | None) -> None:
    assert run_steps(by_hand(), [step]).reasons[-1].score == score


def test_many_reasons_take_two_bytes_per_row() -> None:
    count = 300
    table = Table.of({"x": np.arange(count, dtype=np.float32)})
    parts = tuple((sel.Between(score="x", low=n, high=n),) for n in range(count - 1))
    outcome = run_steps(table, [sel.NoneOf(parts=parts)])
    assert outcome.dropped_by.dtype == np.uint16
    assert outcome.dropped_by.tolist() == [*range(1, count), 0]
    several = run_steps(
        table, [sel.AtLeast(score="x", value=0.5), sel.NoneOf(parts=parts[:254]), sel.AtMost(score="x", value=280)]
    )
    assert several.dropped_by.dtype == np.uint16
    assert several.dropped_by.tolist() == [1, *range(3, 256), *[0] * 27, *[256] * 19]


def test_more_reasons_than_two_bytes_hold_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"65,536 reasons to drop a pair, at most 65,535"):
        widened(np.zeros(1, np.uint16), 65_536)


def test_dropping_leaves_the_rows_in_question_as_they_were() -> None:
    alive = np.array([True, True, False])
    drops = Drops(alive)
    assert drops.drop(np.array([True, False, True]), "first") == 1
    assert drops.drop(np.array([True, False, True]), "second", others=True) == 1
    found = drops.selection()
    assert alive.tolist() == [True, True, False]
    assert found.keep.tolist() == [False, False, False]
    assert found.dropped_by.tolist() == [1, 2, 0]
    assert found.counts == {"kept": 0, "first": 1, "second": 1, "missing": 0}
