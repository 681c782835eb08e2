"""What every selector promises."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.errors import RecipeError
from tamis.selectors import AllOf, AnyOf, NoneOf, Selection, Step
from tamis.selectors.steps import describe
from tamis.store.table import Table
from tamis.testing import promises
from tamis.testing.promises import RECORD_PROMISES, Promise, expect, name_is_a_word, title

Kind = Literal["number", "word", "vector"]

#: Rows of the table that is drawn where no values are given.
_ROWS = 23


@dataclass(frozen=True, kw_only=True)
class SelectorCase:
    """A selector, and what its promises are checked with.

    Attributes:
        record: the selector. Where it has a setting `missing`, it must say `missing="drop"`.
        columns: what it reads: a kind, of which values are drawn ("number": with ties and NaN; "word": with None;
            "vector": (rows, 3) float16 with a row of NaN and two equal rows), or the values, equally many of each
            column. A column that it reads and that is not named here holds drawn numbers.
        documented: whether the docstring must begin with "Keeps", as those of Tamis do.
    """

    record: Step
    columns: Mapping[str, Kind | Sequence[Any] | NDArray[Any]] = dataclasses.field(default_factory=dict)
    documented: bool = False

    @property
    def title(self) -> str:
        """What messages call it."""
        return title("selector", self.record)

    @cached_property
    def values(self) -> dict[str, Any]:
        """The values of every column: arrays of numbers and vectors, lists of words."""
        given = {name: value for name, value in self.columns.items() if not isinstance(value, str)}
        rows = len(next(iter(given.values()))) if given else _ROWS
        rng = np.random.default_rng(2)
        kinds = {name: value for name, value in self.columns.items() if isinstance(value, str)}
        kinds |= dict.fromkeys(sorted({*self.record.reads, "unread"} - {*self.columns}), "number")
        return given | {name: _drawn(rng, kind, rows) for name, kind in kinds.items()}

    @cached_property
    def rows(self) -> int:
        """How many rows the table has."""
        return len(next(iter(self.values.values())))

    def table(self, order: Sequence[int] | None = None, block: int = 5) -> Table:
        """Returns the table: about four in five of its rows are in question.

        Args:
            order: of the rows; None: as drawn.
            block: rows per block, as shards cut a run.
        """
        rng = np.random.default_rng(3)
        high, low = rng.integers(0, 2**64, (2, self.rows), dtype=np.uint64)
        alive = rng.random(self.rows) < 0.8
        rows = list(range(self.rows)) if order is None else list(order)
        return Table.of(_taken(self.values, rows), uids=(high[rows], low[rows]), block=block).among(alive[rows])

    def select(self, table: Table) -> Selection:
        """Returns the selector's verdict."""
        return self.record.select(table)

    @cached_property
    def straight(self) -> Selection:
        """The verdict on the table as drawn."""
        return self.select(self.table())


def _drawn(rng: np.random.Generator, kind: str, rows: int) -> Any:
    if kind == "word":
        return [[None, "en", "en", "de", "fr"][number] for number in rng.integers(0, 5, rows)]
    if kind == "vector":
        vectors = np.round(rng.normal(size=(rows, 3)), 1).astype(np.float16)
        vectors[5], vectors[4] = vectors[6], np.nan
        return vectors
    expect(kind == "number", f"columns are of the kind number, word or vector, not {kind!r}")
    numbers = np.round(rng.normal(size=rows), 1).astype(np.float32)
    numbers[rng.choice(rows, max(rows // 5, 1), replace=False)] = np.nan
    numbers[rows // 2 : rows // 2 + 4] = 0.5  # ties
    return numbers


def _taken(values: Mapping[str, Any], rows: Sequence[int]) -> dict[str, Any]:
    return {
        name: value[list(rows)] if isinstance(value, np.ndarray) else [value[row] for row in rows]
        for name, value in values.items()
    }


def it_declares_itself(case: SelectorCase) -> None:
    """It has a name, the columns that it reads, and one line for funnels."""
    step = case.record
    expect(isinstance(step, Step), "it has no name, reads or select(table)")
    name_is_a_word(step.name, "its name")
    words = isinstance(step.reads, frozenset) and all(isinstance(name, str) for name in step.reads)
    expect(words, f"reads must be a frozenset of column names, got {step.reads!r}")
    line = describe(step)
    expect(line.strip() and "\n" not in line, f"`described` must be one line of a funnel, got {line!r}")


def its_settings_can_be_written(case: SelectorCase) -> None:
    """Settings written as JSON, as recipes hold them, make an equal step."""
    if not isinstance(case.record, AllOf | AnyOf | NoneOf):  # recipes write these as a list
        promises.its_settings_stand_in_a_recipe(case)


def its_counts_add_up(case: SelectorCase) -> None:
    """`keep` is a mask of the table, within the rows in question; the counts add up to these."""
    asked, found = case.table(), case.straight
    _check_verdict(found, asked)


def _check_verdict(found: Selection, asked: Table) -> None:
    expect(isinstance(found, Selection), f"select() must return a Selection, it returned a {type(found).__name__}")
    keep = np.asarray(found.keep)
    expect(
        keep.dtype == bool and keep.shape == (len(asked),),
        f"keep must be ({len(asked)},) bool, got {keep.shape} {keep.dtype}",
    )
    alive = asked.living()
    stray = np.flatnonzero(keep & ~alive).tolist()
    expect(not stray, f"it keeps the rows {stray}, which are not in question")
    for word in ("kept", "missing"):
        expect(word in found.counts, f"its counts lack {word!r}: {dict(found.counts)}")
    kept, total, asked_of = int(keep.sum()), sum(found.counts.values()), int(alive.sum())
    expect(found.counts["kept"] == kept, f"it keeps {kept} rows and counts {found.counts['kept']} as kept")
    expect(total == asked_of, f"its counts {dict(found.counts)} add up to {total}, of {asked_of} rows in question")
    expect(min(found.counts.values()) >= 0, f"it counts fewer than no rows: {dict(found.counts)}")
    fell = np.asarray(found.dropped_by) > 0
    expect(np.array_equal(fell, alive & ~keep), "dropped_by must have a code for exactly the rows that fall")
    most = int(np.max(found.dropped_by, initial=0))
    expect(most <= len(found.reasons), f"dropped_by has the code {most}, of {len(found.reasons)} reasons")


def it_reads_exactly_what_it_declares(case: SelectorCase) -> None:
    """`reads` names every column that it looks at, and no other: runs are checked for these before any work."""
    asked = case.table()
    inner, seen = asked.read, set[str]()

    def read(block: int, names: Sequence[str]) -> dict[str, Any]:
        seen.update(names)
        return inner(block, names)

    asked.read = read
    case.select(asked)
    declared = set(case.record.reads)
    expect(seen <= declared, f"it reads {_listed(seen - declared)}, which `reads` does not name")
    expect(declared <= seen, f"`reads` names {_listed(declared - seen)}, which it does not look at")


def row_order_does_not_matter(case: SelectorCase) -> None:
    """Rows are judged by their values and uids, wherever they stand and however shards cut the table."""
    order = np.random.default_rng(3).permutation(case.rows).tolist()
    straight = case.straight
    for block in (1, 4, 100):
        moved = case.select(case.table(order, block))
        back = np.empty(case.rows, bool)
        back[order] = moved.keep
        other = np.flatnonzero(back != straight.keep).tolist()
        how = f"in another order, in blocks of {block},"
        expect(not other, f"{how} the rows {other} fare otherwise")
        expect(
            dict(moved.counts) == dict(straight.counts),
            f"{how} the counts are {dict(moved.counts)}, were {dict(straight.counts)}",
        )
        expect(moved.cut == straight.cut, f"{how} the cut is {moved.cut!r}, was {straight.cut!r}")


def a_selection_can_be_repeated(case: SelectorCase) -> None:
    """The same table is judged alike again, and stays as it was."""
    asked = case.table()
    before = asked.living().copy()
    one, two = case.select(asked), case.select(asked)
    other = np.flatnonzero(one.keep != two.keep).tolist()
    expect(not other, f"the rows {other} fare otherwise the second time")
    expect(np.array_equal(asked.living(), before), "it changes which rows of the table are in question")


def it_judges_alike_after_pickling(case: SelectorCase) -> None:
    """A copy of it keeps the same rows."""
    again = pickle.loads(pickle.dumps(case.record))
    expect(np.array_equal(again.select(case.table()).keep, case.straight.keep), "its copy keeps other rows")


def it_judges_an_empty_table(case: SelectorCase) -> None:
    """A run without rows, and one of which nothing is left to judge, are judged too."""
    empty = Table.of(_taken(case.values, []))
    nothing_left = case.table().among(np.zeros(case.rows, bool))
    for asked in (empty, nothing_left):
        _check_verdict(case.select(asked), asked)


def it_refuses_rows_without_a_score_unless_told(case: SelectorCase) -> None:
    """A step with the setting `missing` raises at rows that lack a value, or counts them as missing."""
    step: Any = case.record
    if "missing" not in {setting.name for setting in dataclasses.fields(step)}:
        return
    expect(step.missing == "drop", f"check it with missing='drop', not {step.missing!r}")
    alive = case.table().living()
    lacking = np.zeros(case.rows, bool)
    for name in step.reads:
        lacking |= [_missing(value) for value in case.values[name]]
    lacking &= alive
    if not lacking.any():
        return
    kept = np.flatnonzero(case.straight.keep & lacking).tolist()
    expect(not kept, f"it keeps the rows {kept}, which lack a value, and was told to drop them")
    expect(case.straight.counts["missing"] > 0, f"rows lack a value, and it counts none: {dict(case.straight.counts)}")
    try:
        dataclasses.replace(step, missing="error").select(case.table())
    except RecipeError as error:
        expect("have no value for" in str(error), f"`missing: error` must tell which value rows lack; it said: {error}")
        return
    expect(
        False, "with `missing: error` it must raise a RecipeError where rows lack a value; tamis.selectors.verdict does"
    )


def what_it_tells_can_be_stored(case: SelectorCase) -> None:
    """The cut is a number or None, the counts are plain numbers, the facts are what JSON holds."""
    found = case.straight
    expect(found.cut is None or isinstance(found.cut, float | int), f"cut must be a number or None, got {found.cut!r}")
    try:
        json.dumps([dict(found.counts), dict(found.facts), found.cut])
    except (TypeError, ValueError) as error:
        expect(False, f"its counts and facts must be what JSON holds ({error}): {found.counts!r}, {found.facts!r}")


def its_docstring_tells_what_it_keeps(case: SelectorCase) -> None:
    """It begins with "Keeps"."""
    if case.documented:
        text = inspect.getdoc(type(case.record)) or ""
        expect(text.startswith("Keeps "), "its docstring must begin with 'Keeps '")


#: What every selector promises; each is called with a `SelectorCase`.
SELECTOR_PROMISES: tuple[Promise[SelectorCase], ...] = tuple(
    Promise(check)
    for check in (
        it_declares_itself,
        *RECORD_PROMISES,
        its_settings_can_be_written,
        its_counts_add_up,
        it_reads_exactly_what_it_declares,
        row_order_does_not_matter,
        a_selection_can_be_repeated,
        it_judges_alike_after_pickling,
        it_judges_an_empty_table,
        it_refuses_rows_without_a_score_unless_told,
        what_it_tells_can_be_stored,
        its_docstring_tells_what_it_keeps,
    )
)


def check_selector(
    step: Step,
    *,
    columns: Mapping[str, Kind | Sequence[Any] | NDArray[Any]] | None = None,
    documented: bool = False,
) -> None:
    """Checks all that a selector promises, on a drawn table. The arguments are told of at `SelectorCase`.

    Raises:
        AssertionError: a promise is broken; the sentence says which, and with which values.
        DependencyError: a package that it needs is not here.
    """
    if inspect.isclass(step):
        raise TypeError(f"check_selector takes a selector, not its class: {step.__name__}()")
    made: Any = step
    if getattr(made, "missing", None) == "error" and dataclasses.is_dataclass(made):
        made = dataclasses.replace(made, missing="drop")  # type: ignore[type-var]  # the drawn table has such rows
    case = SelectorCase(record=made, columns=columns or {}, documented=documented)
    for promise in SELECTOR_PROMISES:
        promise(case)


def _listed(names: set[str]) -> str:
    return ", ".join(map(repr, sorted(names)))


def _missing(value: Any) -> bool:
    return value is None or bool(np.any(value != value))
