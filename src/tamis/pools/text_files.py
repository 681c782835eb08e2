"""Files of texts: word norms, rated captions, captions with their teachers' scores, captions made elsewhere."""

from __future__ import annotations

import csv
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.core.errors import PoolError, RecipeError, SampleError, UnreachedError
from tamis.core.files.find import open_file
from tamis.core.ids import parse_uid
from tamis.pools.rows import (
    CAPTION_COLUMNS,
    PROBLEM,
    TEXT,
    check_texts,
    choose_column,
    column_kinds,
    list_columns,
    open_error,
    table_rows,
)
from tamis.pools.source import first_of, text_in, utf8

log = logging.getLogger(__name__)

#: Usual names of a column of texts.
TEXT_COLUMNS = (*CAPTION_COLUMNS, "word", "Word", "sentence")

TABLES = (".parquet", ".csv", ".tsv", ".jsonl")
ENDINGS = (*TABLES, ".txt")


@dataclass(frozen=True)
class Texts:
    """Texts in the order of their file.

    Attributes:
        texts: n texts; empty rows are left out, and so are rows that are broken or not UTF-8, with a warning.
        numbers: (n,) float64 for each requested column, NaN where a cell holds no number.
        rows: (n,) row number of each text in the file, counted from 0.
    """

    texts: list[str]
    numbers: Mapping[str, NDArray[np.float64]]
    rows: NDArray[np.int64]


def read_texts(path: str | Path, *, text: str | None = None, numbers: Sequence[str] = ()) -> Texts:
    """Reads a table of texts."""
    path, chosen = str(path), ""
    try:
        if kinds := _kinds(path):
            chosen = choose_column("text", text, TEXT_COLUMNS, list(kinds), path)
            check_texts(chosen, kinds, path)
            for name in numbers:
                choose_column("number", name, (), list(kinds), path)
            return _texts(path, table_rows(path, [chosen, *numbers]), chosen, numbers)
        if numbers:
            raise PoolError(f"{path} has one text per line and no columns: {', '.join(numbers)} cannot be read")
        return _texts(path, ({chosen: line} for line in _lines(path)), chosen, numbers)
    except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
        raise open_error(path, None, error) from error


def _texts(path: str, rows: Iterable[Mapping[str, Any]], column: str, numbers: Sequence[str]) -> Texts:
    texts: list[str] = []
    columns: dict[str, list[float]] = {name: [] for name in numbers}
    numbers_of_rows: list[int] = []
    unread: list[tuple[int, str]] = []
    where = f"column {column!r}"
    for number, row in enumerate(rows):
        problem = row.get(PROBLEM)
        try:
            found = text_in(first_of(row.get(column), where), where)
        except SampleError as error:
            found, problem = None, problem or error.reason
        assert not isinstance(found, bytes), "no column of bytes passes `check_texts`"
        if not problem and found is not None and utf8(found) != found:  # a lone surrogate
            problem = "the text is not valid UTF-8"
        if problem:
            unread.append((number, str(problem)))
        elif found is not None and found.strip():
            texts.append(found)
            numbers_of_rows.append(number)
            for name in numbers:
                columns[name].append(_number(row.get(name)))
    if unread:
        number, problem = unread[0]
        log.warning("%s: %d rows cannot be read and were left out; row %d: %s", path, len(unread), number, problem)
    arrays = {name: np.array(cells, np.float64) for name, cells in columns.items()}
    return Texts(texts, arrays, np.array(numbers_of_rows, np.int64))


def write_to_label(path: Path, captions: Sequence[str]) -> None:
    """Writes a CSV of captions with an empty column `label`, for people to fill in."""
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["caption", "label"])
        rows.writerows([caption, ""] for caption in captions)


def columns_of(path: str | Path) -> list[str]:
    """Returns the columns of a table of texts; none for a file of one text per line."""
    try:
        return list(_kinds(str(path)))
    except OSError as error:
        raise PoolError(f"{path} cannot be read: {error}") from error


def _kinds(path: str) -> dict[str, str]:
    """Returns what each column holds; {} for a file of one text per line."""
    if not path.endswith(ENDINGS):
        raise PoolError(f"{path} is not a file of texts: expected one of {', '.join(ENDINGS)}")
    if not path.endswith(".txt"):
        return column_kinds(path)
    header = next(_lines(path), "")
    return dict.fromkeys(header.split("\t"), TEXT) if "\t" in header else {}


def _lines(path: str) -> Iterator[str]:
    with open_file(path) as raw:
        for line in raw:
            yield line.decode("utf-8-sig", "replace").strip()


def _number(cell: Any) -> float:
    with suppress(TypeError, ValueError):
        if math.isfinite(found := float(cell)):
            return found
    return math.nan


def read_captions_file(path: Path) -> tuple[Literal["uid", "key"], dict[str, list[str]]]:
    """Reads captions made elsewhere: Parquet, CSV, TSV or JSON lines."""
    if path.suffix not in TABLES:
        raise RecipeError(f"captions_from: {path} must end with one of {', '.join(TABLES)}")
    try:
        names = list(column_kinds(str(path)))
        by: Literal["uid", "key"] = "uid" if "uid" in names else "key"
        column = "captions" if "captions" in names else "caption"
        if not {by, column} <= set(names):
            raise RecipeError(f"captions_from: {path} needs uid or key, and captions; has {list_columns(names)}")
        found: dict[str, list[str]] = {}
        for number, row in enumerate(table_rows(str(path), [by, column]), 1):
            value = row.get(column)
            texts = _list_of_texts(value if column == "captions" else [value])
            problem = row.get(PROBLEM)
            if texts is None:
                problem = f"{column} is not a list of texts"
            if not isinstance(row.get(by), str):
                problem = f"{by} is not text: write numbers as text, with their leading zeros"
            elif by == "uid" and parse_uid(row[by].lower()) is None:
                problem = "the uid does not have 32 hex digits"
            if problem or texts is None:
                raise RecipeError(f"captions_from: {path}, row {number}: {problem}")
            found.setdefault(row[by].lower() if by == "uid" else row[by], []).extend(text for text in texts if text)
    except (OSError, ValueError, pa.ArrowException, csv.Error, PoolError, UnreachedError) as error:
        # The error's own text may quote a row, so it is not shown.
        cause = error.__cause__ or error
        what = cause.strerror if isinstance(cause, OSError) and cause.strerror else type(cause).__name__
        raise RecipeError(f"captions_from: {path} cannot be read as {path.suffix[1:]}: {what}") from error
    return by, found


def _list_of_texts(value: Any) -> list[str | None] | None:
    """Returns a list of texts, or one written as JSON; None for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value else None
        except ValueError:
            return None
    if value is None:
        return []
    return value if isinstance(value, list) and all(text is None or isinstance(text, str) for text in value) else None
