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
from tamis.pool.table import listed_columns
from tamis.uid import parse_uid


def read_captions_file(path: Path) -> tuple[Literal["uid", "key"], dict[str, list[str]]]:
    """Reads captions made elsewhere.

    Returns:
        By what they are known, and the captions of each uid (lower case) or key.

    Raises:
        RecipeError: the file is not there, is of another kind, or lacks a column; the message says which it has.
    """
    # As text, or a key of digits would lose its leading zeros.
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
        names = list(table.column_names)
    except OSError as error:
        raise RecipeError(f"captions_from: {path} cannot be read: {error.strerror or type(error).__name__}") from error
    except (pa.ArrowException, UnicodeDecodeError) as error:  # whose message quotes the row that is not as it should be
        size = path.stat().st_size
        raise RecipeError(
            f"captions_from: {path} ({size:,} bytes) cannot be read as {path.suffix[1:]} ({type(error).__name__})"
        ) from error
    by: Literal["uid", "key"] = "uid" if "uid" in names else "key"
    what = "captions" if "captions" in names else "caption"
    for name in (by, what):
        if name not in names:
            raise RecipeError(
                f"captions_from: {path} has the columns {listed_columns(names)}; it needs uid or key, and "
                "captions (lists) or caption"
            )
        if names.count(name) > 1:
            raise RecipeError(f"captions_from: {path} has {names.count(name)} columns called {name}")
    if pa.types.is_integer(table.schema.field(by).type):
        raise RecipeError(f"captions_from: {path}: the column {by} holds numbers; write it as text, zeros in front too")
    found: dict[str, list[str]] = {}
    try:
        rows = table.select([by, what]).to_pylist()
    except ValueError as error:
        raise RecipeError(f"captions_from: {path} holds words that are not UTF-8") from error
    for number, row in enumerate(rows, 1):
        name = str(row[by])
        texts = _texts(row[what] if what == "captions" else [row[what]])
        if texts is None:
            raise RecipeError(f"captions_from: {path}, row {number}: {what} is not a list of texts")
        if by == "uid" and parse_uid(name.lower()) is None:
            raise RecipeError(f"captions_from: {path}, row {number}: the uid is not one of 32 hex digits")
        found.setdefault(name.lower() if by == "uid" else name, []).extend(text for text in texts if text)
    return by, found


def _texts(value: Any) -> list[str | None] | None:
    """Returns a list of texts, given as such or as JSON; None where it is neither."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if value is None:
        return []
    return value if isinstance(value, list) and all(text is None or isinstance(text, str) for text in value) else None
