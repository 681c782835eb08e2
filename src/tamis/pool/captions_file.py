"""Captions made elsewhere: a table of uid or key, and captions."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from tamis.errors import RecipeError
from tamis.pool.rows import listed_columns
from tamis.uid import parse_uid


def read_captions_file(path: Path) -> tuple[Literal["uid", "key"], dict[str, list[str]]]:
    """Reads captions made elsewhere.

    Returns:
        What identifies them, and the captions of each uid (lower case) or key.

    Raises:
        RecipeError: the file is not there, is of another kind, or lacks a column; the message says which it has.
    """
    table = _table(path)
    names = list(table.column_names)
    by: Literal["uid", "key"] = "uid" if "uid" in names else "key"
    column = "captions" if "captions" in names else "caption"
    for name in (by, column):
        if names.count(name) != 1:
            raise RecipeError(
                f"captions_from: {path} has the columns {listed_columns(names)}; it needs one called uid or key, and "
                "one called captions (lists) or caption"
            )
    if pa.types.is_integer(table.schema.field(by).type):
        raise RecipeError(f"captions_from: {path}: the column {by} holds numbers; write it as text, zeros in front too")
    found: dict[str, list[str]] = {}
    try:
        rows = table.select([by, column]).to_pylist()
    except ValueError as error:
        raise RecipeError(f"captions_from: {path} holds words that are not UTF-8") from error
    for number, row in enumerate(rows, 1):
        name = str(row[by])
        texts = _texts(row[column] if column == "captions" else [row[column]])
        if texts is None:
            raise RecipeError(f"captions_from: {path}, row {number}: {column} is not a list of texts")
        if by == "uid" and parse_uid(name.lower()) is None:
            raise RecipeError(f"captions_from: {path}, row {number}: the uid is not one of 32 hex digits")
        found.setdefault(name.lower() if by == "uid" else name, []).extend(text for text in texts if text)
    return by, found


def _table(path: Path) -> pa.Table:
    # As text: a key of digits would lose its leading zeros.
    as_text = dict.fromkeys(("uid", "key", "captions", "caption"), pa.string())
    quoted = pyarrow.csv.ParseOptions(newlines_in_values=True)
    options = pyarrow.csv.ConvertOptions(
        column_types=as_text, strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    readers: dict[str, Callable[[Path], pa.Table]] = {
        ".parquet": pyarrow.parquet.read_table,
        ".csv": lambda path: pyarrow.csv.read_csv(path, parse_options=quoted, convert_options=options),
        ".jsonl": pyarrow.json.read_json,
    }
    if path.suffix not in readers:
        raise RecipeError(f"captions_from: {path} is none of {', '.join(readers)}")
    try:
        table = readers[path.suffix](path)
        _ = table.column_names  # raises if they are not UTF-8
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        # Arrow's own message may quote a row.
        what = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise RecipeError(f"captions_from: {path} cannot be read as {path.suffix[1:]}: {what}") from error
    return table


def _texts(value: Any) -> list[str | None] | None:
    """Returns a list of texts, or one written as JSON; None for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if value is None:
        return []
    return value if isinstance(value, list) and all(text is None or isinstance(text, str) for text in value) else None
