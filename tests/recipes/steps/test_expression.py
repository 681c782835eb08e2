"""Score expressions: what they mean, and what they refuse."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.core.errors import RecipeError
from tamis.runs.expression import parse
from tamis.runs.table import MemoryTable

NAN = np.nan
A = np.array([0.5, NAN, 0.25, 0.25, 1.0, 0.0], np.float32)
B = np.array([2.0, 3.0, -1.0, NAN, 8.0, 0.5], np.float32)


def value(text: str, **columns: Any) -> np.ndarray:
    return parse(text).values(MemoryTable(columns or {"a": A, "b": B, "clip_l14.clip": A}))


def ranked(column: np.ndarray) -> np.ndarray:
    judged = column[~np.isnan(column)]
    below = np.array([(judged < x).sum() + 0.5 * ((judged == x).sum() - 1) for x in column])
    return np.where(np.isnan(column), NAN, below / (judged.size - 1))


def scaled(column: np.ndarray) -> np.ndarray:
    return (column - np.nanmin(column)) / (np.nanmax(column) - np.nanmin(column))


a, b = A.astype(np.float64), B.astype(np.float64)
REFERENCE: dict[str, Callable[[], np.ndarray]] = {
    "a": lambda: a,
    "(a + b) * 2": lambda: (a + b) * 2,
    "-a ** 2": lambda: -(a**2),
    "2 ** 3 ** a": lambda: 2 ** (3**a),
    "a - b / 2": lambda: a - b / 2,
    "+a - -b": lambda: a + b,
    "0.5*minmax(a) + 0.5*minmax(b)": lambda: 0.5 * scaled(a) + 0.5 * scaled(b),
    "zscore(a)": lambda: (a - np.nanmean(a)) / np.nanstd(a),
    "rank(b) - rank(a)": lambda: ranked(b) - ranked(a),
    "minmax(rank(a) + zscore(b))": lambda: scaled(ranked(a) + (b - np.nanmean(b)) / np.nanstd(b)),
    "rank(minmax(zscore(b)))": lambda: ranked(b),
    "max(a, b)": lambda: np.maximum(a, b),
    "min(abs(b), 1)": lambda: np.minimum(np.abs(b), 1),
    "sqrt(exp(2*log(abs(b))))": lambda: np.abs(b),
    "logit(0.5*a + 0.25)": lambda: np.log((0.5 * a + 0.25) / (0.75 - 0.5 * a)),
    "clip_l14.clip * 2": lambda: a * 2,
    "1e-3 * b": lambda: 0.001 * b,
}


@pytest.mark.parametrize("text", REFERENCE)
def test_expressions_equal_numpy(text: str) -> None:
    np.testing.assert_allclose(value(text), REFERENCE[text](), rtol=1e-12, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), st.permutations(range(12)), st.sampled_from(sorted(REFERENCE)))
def test_neither_blocks_nor_row_order_change_a_value(block: int, order: list[int], text: str) -> None:
    columns = {"a": np.tile(A, 2), "b": np.concatenate([B, B[::-1]]), "clip_l14.clip": np.tile(A, 2)}
    whole = parse(text).values(MemoryTable(columns))
    shuffled = {name: column[order] for name, column in columns.items()}
    found = parse(text).values(MemoryTable(shuffled, block=block))
    np.testing.assert_allclose(found, whole[order], rtol=1e-9, atol=1e-9)


def test_pool_wide_functions_look_at_the_whole_pool_not_at_the_candidates() -> None:
    table = MemoryTable({"a": np.array([0.0, 1.0, 2.0, 4.0])}).with_candidates(np.array([False, True, True, False]))
    assert parse("minmax(a)").values(table).tolist() == [0.0, 0.25, 0.5, 1.0]
    np.testing.assert_allclose(parse("rank(a)").values(table), [0, 1 / 3, 2 / 3, 1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 / a", [NAN, 1, 0.5, 0]),
        ("sqrt(-a)", [0, NAN, NAN, NAN]),
        ("log(a)", [NAN, 0, np.log(2), NAN]),
        ("exp(1000 * a)", [1, NAN, NAN, NAN]),
        ("max(1 / a, 0)", [NAN, 1, 0.5, 0]),
        ("1 / (1 / a)", [NAN, 1, 2, NAN]),
        ("minmax(a)", [0, 0.5, 1, NAN]),
        # The order of an infinite score is well defined.
        ("-a", [0, -1, -2, -np.inf]),
        ("rank(a)", [0, 1 / 3, 2 / 3, 1]),
    ],
)
def test_an_infinite_result_is_missing_and_leaves_the_others_alone(text: str, expected: list[float]) -> None:
    np.testing.assert_allclose(value(text, a=np.array([0, 1, 2, np.inf], np.float32)), expected, atol=1e-12)


def test_an_expression_knows_the_columns_it_reads() -> None:
    assert parse("0.5*minmax(sieve) + clip_l14.clip - max(sieve, 1)").columns == {"sieve", "clip_l14.clip"}
    assert parse("(clip_l14.clip)").column == "clip_l14.clip"
    assert parse("-clip").column is None
    assert parse("min + rank(rank)").columns == {"min", "rank"}  # a column may be called like a function
    assert value("rank(rank)", rank=np.array([3.0, 1.0])).tolist() == [1.0, 0.0]


ERRORS = {
    "minmx(a)": r"unknown function 'minmx' .*did you mean 'minmax'",
    "__import__('os')": r"unknown function '__import__'.*known: abs, exp",
    "minmax(a, b)": r"minmax takes 1 value\(s\), got 'minmax\(a, b\)'",
    "max(a)": r"max takes 2 value\(s\)",
    "minmax(x=a)": r"minmax takes 1 value",
    "a + 'text'": r"'text' in the score expression .* is not a number",
    "a * True": r"true in the score expression .* is not a number",
    "a * 1e400": r"too large",
    "a +": r"cannot read the score expression 'a \+'",
    "a * 0x10": r"'0x10' in the score expression 'a \* 0x10' is not a decimal number",
    **dict.fromkeys(["0B1 + a", "a * 0xg"], "is not a decimal number"),
    "max(1, 2)": r"names no score column",
    **dict.fromkeys(["a * None", "a + 2j", "a + ..."], "is not a number"),
    **dict.fromkeys(["a; b", "a = b", "import os", "", "   ", "a\0", "clip-l14 $"], "cannot read"),
    **dict.fromkeys(
        [
            *("max(*a, b)", "a.__class__.__mro__", "a.minmax(b)", "lambda: a", "(a, b)", "a[0]", "a if b else 0"),
            *("a > 0.5", "not a", "a // 2", "(x := a)", "f'{a}'", "[x for x in a]"),
        ],
        "is not allowed in the score expression",
    ),
}


@pytest.mark.parametrize("text", sorted(ERRORS))
def test_anything_else_is_an_error_that_names_the_part(text: str) -> None:
    with pytest.raises(RecipeError, match=ERRORS[text]):
        parse(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("-tmars.text_area", ("tmars.text_area", -1, 0)),
        ("1 - clip / 2", ("clip", -0.5, 1)),
        ("2 * (clip + 3) - 1", ("clip", 2, 5)),
        ("+(clip * 0.5) * 4", ("clip", 2, 0)),
        ("clip - clip", None),
        ("clip + 2 * clip", ("clip", 3, 0)),
        ("clip + sieve", None),
        ("clip * clip", None),
        ("1 / clip", None),
        ("clip / 0", None),
        ("minmax(clip)", None),
        ("1e299 * 1e299 * clip", None),
    ],
)
def test_a_straight_line_of_one_column_has_a_factor_and_an_offset(
    text: str, line: tuple[str, float, float] | None
) -> None:
    assert parse(text).line == line
    if line is not None:
        table = MemoryTable({line[0]: np.array([0.25, -4, 7], np.float32)})
        assert parse(text).values(table) == pytest.approx(line[1] * np.array([0.25, -4, 7]) + line[2])
