"""Captions made elsewhere: a table of uid or key, and captions."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from tamis.errors import PoolError, RecipeError, UnreachedError
from tamis.pool.rows import PROBLEM, column_kinds, listed_columns, table_rows
from tamis.uid import parse_uid


def read_captions_file(path: Path) -> tuple[Literal["uid", "key"], dict[str, list[str]]]:
    """Reads captions made elsewhere: Parquet, CSV, TSV or JSON lines."""
    if path.suffix not in (".parquet", ".csv", ".tsv", ".jsonl"):
        raise RecipeError(f"captions_from: {path} is none of .parquet, .csv, .tsv, .jsonl")
    try:
        names = list(column_kinds(str(path)))
        by: Literal["uid", "key"] = "uid" if "uid" in names else "key"
        column = "captions" if "captions" in names else "caption"
        if not {by, column} <= set(names):
            raise RecipeError(
                f"captions_from: {path} has the columns {listed_columns(names)}; it needs uid or key, and captions "
                "(lists) or caption"
            )
        found: dict[str, list[str]] = {}
        for number, row in enumerate(table_rows(str(path), [by, column]), 1):
            value = row.get(column)
            texts = _texts(value if column == "captions" else [value])
            problem = row.get(PROBLEM)
            if texts is None:
                problem = f"{column} is not a list of texts"
            if not isinstance(row.get(by), str):
                problem = f"{by} is not text: write numbers as text, with their leading zeros"
            elif by == "uid" and parse_uid(row[by].lower()) is None:
                problem = "the uid is not one of 32 hex digits"
            if problem or texts is None:
                raise RecipeError(f"captions_from: {path}, row {number}: {problem}")
            found.setdefault(row[by].lower() if by == "uid" else row[by], []).extend(text for text in texts if text)
    except (OSError, ValueError, pa.ArrowException, csv.Error, PoolError, UnreachedError) as error:
        # The message may quote a row.
        cause = error.__cause__ or error
        what = cause.strerror if isinstance(cause, OSError) and cause.strerror else type(cause).__name__
        raise RecipeError(f"captions_from: {path} cannot be read as {path.suffix[1:]}: {what}") from error
    return by, found


def _texts(value: Any) -> list[str | None] | None:
    """Returns a list of texts, or one written as JSON; None for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value else None
        except ValueError:
            return None
    if value is None:
        return []
    return value if isinstance(value, list) and all(text is None or isinstance(text, str) for text in value) else None
