"""`scores_from`: the columns of a file of scores that were made elsewhere."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.core.errors import RecipeError, brief, first_line, unknown_message
from tamis.core.types import Column, FileRef
from tamis.pools.scores_files import scores_file, uid_texts
from tamis.recipes.derived import Derived, Saved
from tamis.runs.table import Table, as_numbers

log = logging.getLogger(__name__)

_LOOK_AT = 1_000  # records whose text is looked at for numbers


class _Columns:
    """`ScoresFrom.columns`: those of the file; none for the class."""

    def __get__(self, signal: ScoresFrom | None, cls: type[ScoresFrom]) -> tuple[Column, ...]:
        return () if signal is None else tuple(column for _, column in signal._wanted)


@dataclass(frozen=True, kw_only=True)
class ScoresFrom(Derived):
    """The columns of a file, joined to the rows by uid or key: scores of other tools, such as M-FLYT's twelve.

    In the run's columns, characters that recipes cannot read in a name become `_`: `CLIP B/32` is `CLIP_B_32`.

    Attributes:
        path: a Parquet, CSV or TSV file, a folder of them, or a .npy array of records: the uid as two u8, then numbers.
        by: the column that identifies the row of a record: "uid" (32 hex digits) or "key".
        scores: the columns to take, numbers or words; None: all with numbers. Text of which most is a number, alone or
            on its first line, is numbers (MLM-Filter's answers "85" and "85\\nbecause ...").

    Cost: about 4 s and 250 MB per million rows, once. Rows without a record get no value; records of other pools are
        counted and skipped; two records of one row are an error.

    Source: M-FLYT's scores of DataComp's pool (huggingface.co/formll/M-FLYT-input-scores; arXiv 2503.08805).
    """

    name: ClassVar[str] = "scores_from"
    version: ClassVar[int] = 2
    columns: ClassVar[tuple[Column, ...]] = _Columns()  # type: ignore[assignment]
    lacking: ClassVar[str] = "the file has no score of the row"
    path: FileRef
    by: Literal["uid", "key"] = "uid"
    scores: tuple[str, ...] | None = None

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({"key"} if self.by == "key" else ())

    def contents(self) -> Mapping[str, str]:
        vars(self).pop("_wanted", None)  # an unchanged object may name a file that has changed
        return super().contents()

    def _refused(self, reason: str) -> RecipeError:
        return RecipeError(f"scores_from: {self.path}: {reason}")

    def _read(self, columns: list[str] | None = None, rows: int | None = None) -> Any:
        """Returns columns of the first rows, or of all, as Arrow's table; without columns what has the schema."""
        try:
            file = scores_file(Path(self.path).expanduser(), empty=columns is None)
            if columns is None or isinstance(file, pa.Table):
                return file
            return file.to_table(columns) if rows is None else file.head(rows, columns)
        except (OSError, pa.ArrowException) as error:
            raise self._refused(f"it cannot be read ({first_line(error)})") from error
        except ValueError as error:
            raise self._refused(str(error)) from error

    @cached_property
    def _wanted(self) -> list[tuple[str, Column]]:
        """Returns the columns to take: the name in the file, and the column of the run."""
        schema = self._read().schema
        if self.by not in schema.names:
            other = next((f"; it has {one!r}: set by: {one}" for one in ("uid", "key") if one in schema.names), "")
            raise self._refused(f"it has no column {self.by!r}{other or f' among {brief(schema.names)}'}")
        indices = ("", "__index_level_0__")  # pandas numbers the rows
        columns = [one for one in schema if one.name not in ("uid", "key", *indices)]
        kinds = {one.name: kind for one in columns if (kind := _kind(one.type)) is not None}
        texts = [name for name in self.scores or kinds if kinds.get(name) == "word"]
        head = self._read(texts, _LOOK_AT) if texts else {}
        kinds |= {name: "number" for name in texts if _are_numbers(head[name])}
        names = self.scores or [name for name, kind in kinds.items() if kind == "number"]
        for name in names:
            if name not in kinds:
                if name in schema.names and pa.types.is_binary(schema.field(name).type):
                    raise self._refused(f"the column {name!r} is not UTF-8 text: save the file as UTF-8")
                raise self._refused(unknown_message("column of numbers or words", name, kinds))
        if not names:
            raise self._refused(f"it has no column of numbers; list columns of words under scores: {brief([*kinds])}")
        words = [re.sub(r"^(?=\d)", "_", re.sub(r"\W", "_", name)) for name in names]
        if len({*words}) < len(words) or "reason" in words:
            raise self._refused(f"its columns would be called {', '.join(words)}: rename equal ones, and 'reason'")
        about = f"from {Path(self.path).name}"
        return [
            (name, Column(name=word, unit="", better="neither", kind=kinds[name], about=about))
            for name, word in zip(names, words, strict=True)
        ]

    def compute(self, table: Table, saved: Saved) -> Mapping[str, Any]:
        try:
            file = self._read([self.by, *(name for name, _ in self._wanted)])
            ids = file[self.by].cast(pa.large_string())  # more than 2 GB of them
        except (OSError, pa.ArrowException) as error:
            raise self._refused(f"it cannot be read ({first_line(error)})") from error
        ids = pc.utf8_lower(ids) if self.by == "uid" else ids
        if repeated := len(ids) - ids.null_count - pc.count_distinct(ids).as_py():
            counts = pc.value_counts(ids.drop_null())
            first = counts.field("values").filter(pc.greater(counts.field("counts"), 1))[0]
            raise self._refused(f"{repeated:,} of {len(ids):,} records repeat a {self.by}, such as {first}")
        rows = self._ids_of(table)
        place = pc.index_in(rows, ids)  # (rows,) the record of each
        unknown, without = len(ids) - pc.count_distinct(place).as_py(), place.null_count
        if without == len(table) and unknown:
            seen = f"its {self.by}s are like {ids[0]}, those of the run like {rows[0] if len(rows) else 'nothing'}"
            raise self._refused(f"no record matches a row of the run: {seen}")
        if unknown or without:
            text = "scores_from: %s: %s of %s records match no row of the run; %s of %s rows have no record"
            log.warning(text, self.path, *(f"{count:,}" for count in (unknown, len(ids), without, len(table))))
        return {column.name: _values(file[name], place, column.kind) for name, column in self._wanted}

    def _ids_of(self, table: Table) -> pa.ChunkedArray:
        """Returns the uid or the key of every row, as text."""
        if self.by == "uid":
            blocks = [uid_texts(*table.read_uids(block)) for block in range(len(table.sizes))]
            return pa.chunked_array(blocks, pa.large_string())
        blocks = [table.read(block, ["key"])["key"].cast(pa.large_string()) for block in range(len(table.sizes))]
        keys = pa.chunked_array(blocks, pa.large_string())
        if sum(len(pc.unique(block)) for block in blocks) > len(pc.unique(keys)):  # captions of one image share its key
            raise self._refused("shards of the run have the same keys: join by uid")
        return keys


def _kind(held: pa.DataType) -> Literal["number", "word"] | None:
    if pa.types.is_floating(held) or pa.types.is_integer(held) or pa.types.is_boolean(held):
        return "number"
    held = held.value_type if pa.types.is_dictionary(held) else held
    return "word" if pa.types.is_string(held) or pa.types.is_large_string(held) else None


def _are_numbers(texts: pa.ChunkedArray) -> bool:
    """Whether most of some texts are numbers, with no more digits than float32 has: not ids."""
    return bool(2 * np.count_nonzero(np.abs(as_numbers(texts)) < 2**24) > len(texts) - texts.null_count)


def _values(column: pa.ChunkedArray, place: pa.Array, kind: str) -> Any:
    """Returns a column's values at some places, nothing where a place is null."""
    if kind == "word":
        return column.cast(pa.string()).take(place)
    if _kind(column.type) == "word":
        stored = as_numbers(column).astype(np.float32)
    else:
        with np.errstate(over="ignore"):  # a number beyond float32's range has no score
            stored = np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), np.float32)
    numbers = np.append(np.where(np.isinf(stored), np.float32(np.nan), stored), np.float32(np.nan))
    return numbers[place.fill_null(len(column)).to_numpy()]
