"""Reads and writes parts, the files of one shard. Row i of each part belongs to sample i of the shard.

*Side files* are stored once, next to a signal's parts of all shards, such as the embeddings of its class names.
`Signal.side_files` returns them by file name: arrays for names that end in .npy, anything that JSON holds for .json.
They are written before the folder's first part; `signal.json` holds a note of their content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.core.arrays import U64, Floats, Mask
from tamis.core.errors import DamageError
from tamis.core.files.checked import (
    CheckedParquet,
    Owner,
    check_binding,
    damage_error,
    read_array,
    uids_digest,
    write_array,
    write_parquet,
)
from tamis.core.files.storage import read_json, write_json
from tamis.core.ids import json_digest
from tamis.core.types import INDEX, INDEX_NUMBERS, Column, Device, Node, Sample, Signal, short_reason
from tamis.runs.manifest import SIGNAL, read_description, sign_description

WORDS = pa.dictionary(pa.int32(), pa.string())

MEMBERS = pa.list_(pa.struct([("ext", WORDS), ("offset", pa.int64()), ("size", pa.int64())]))

_TYPES = {"word": WORDS, "members": MEMBERS}

INDEX_FIELDS = [
    pa.field(name, _TYPES.get(one.type) or pa.type_for_alias(one.type), nullable=not one.required)
    for name, one in INDEX.items()
]

#: Prefix of the footer keys of an index that hold the row count of each status.
_STATUS = "tamis.status."

#: The reason of rows that a score part does not cover begins so; the footer of such a part says how many it covers.
NOT_REQUESTED = "not asked"
_REQUESTED = "tamis.asked"

_RANDOM = [name for name, column in INDEX.items() if column.type == "uint64"]  # ids and hashes: incompressible
_TEXT_LISTS = pa.list_(pa.string())

# Reading one column of one row group needs little memory.
_ROW_GROUP = 131_072


def write_index(path: Path, table: pa.Table, *, source: str, stamp: str) -> None:
    """Writes an index part: a row per sample, in the shard's order, with `INDEX_FIELDS` and the pool's fields.

    `source` is the shard's file, and `stamp` its version.
    """
    counts = Counter(table.column("status").to_pylist())
    leaves = [name for name in table.schema.names if name != "members"]
    leaves += [f"members.list.element.{part}" for part in ("ext", "offset", "size")]
    statuses = {f"{_STATUS}{status}": str(count) for status, count in counts.items()}
    write_parquet(
        path,
        table,
        uids=uids_digest(*uids_of(table)),
        facts={"tamis.source": source, "tamis.stamp": stamp, **statuses},
        row_group_size=_ROW_GROUP,
        use_dictionary=["status", "members.list.element.ext"],
        compression={name: "NONE" if name in _RANDOM else "ZSTD" for name in leaves},
    )


def uids_of(index: pa.Table) -> tuple[U64, U64]:
    """Returns the high and low halves of the uids of an index."""
    return index.column("uid_hi").to_numpy(), index.column("uid_lo").to_numpy()


@dataclass(frozen=True)
class IndexFacts(Owner):
    """Facts in the footer of an index part."""

    statuses: Counter[str]  # rows by status
    stamp: str  # version of the shard's file when it was read


def index_facts(path: Path) -> IndexFacts:
    """Returns the facts in the footer of an index part; raises DamageError if it is missing or damaged."""
    facts = CheckedParquet(path).facts
    check_binding(path, facts, None)
    if "tamis.stamp" not in facts:
        raise damage_error(path, "it is not an index")
    counts = {key[len(_STATUS) :]: int(text) for key, text in sorted(facts.items()) if key.startswith(_STATUS)}
    return IndexFacts(int(facts["tamis.rows"]), facts["tamis.uids"], Counter(counts), facts["tamis.stamp"])


def read_samples(path: Path, fields: Sequence[str]) -> list[Sample]:
    """Returns the samples of a shard from its index, without their images."""
    rows = read_columns(path, None)
    samples = []
    for row in rows.select([name for name in rows.column_names if name != "members"]).to_pylist():
        numbers: dict[str, Any] = {name: row[name] or 0 for name in INDEX_NUMBERS}
        sample = Sample(
            uid=(row["uid_hi"], row["uid_lo"]),
            key=row["key"],
            caption=row["caption"] if row["caption_judged"] else None,
            shown_caption=row["caption"],
            status=row["status"],
            reason=row["reason"],
            **numbers,
        )
        sample.given = {name: row[name] for name in fields if row.get(name) is not None}
        samples.append(sample)
    return samples


def write_scores(
    path: Path,
    columns: Sequence[Column],
    values: Mapping[str, Any],
    reasons: Sequence[str | None],
    *,
    uids: str,
    requested: int | None = None,
    more: Mapping[str, pa.Array] = {},
    facts: Mapping[str, str] = {},
) -> None:
    """Writes a score part: the signal's columns, float32 or words, null = not judged, and the reason.

    `values` holds (n,) per column: floats with NaN or words. `uids` is the hash of the index's uids, `requested`
    the number of rows that the part covers. `more`: columns that are not the signal's, and `facts` for the footer.
    """
    arrays = dict(more)
    for column in columns:
        if column.kind == "word":
            arrays[column.name] = pa.array(values[column.name], pa.string()).dictionary_encode()
        else:
            numbers = np.asarray(values[column.name], np.float32)
            arrays[column.name] = pa.array(numbers, pa.float32(), mask=np.isnan(numbers))
    arrays["reason"] = pa.array(
        [reason and short_reason(reason) for reason in reasons], pa.string()
    ).dictionary_encode()
    words = sorted(column.name for column in columns if column.kind == "word")
    # Scores hardly compress, and plain columns are read several times as fast: selection reads every row.
    write_parquet(
        path,
        pa.table(arrays),
        uids=uids,
        facts={**facts, **({} if requested in (None, len(reasons)) else {_REQUESTED: str(requested)})},
        row_group_size=_ROW_GROUP * 8,
        compression={name: "ZSTD" if name in words else "NONE" for name in arrays},
        use_dictionary=["reason", *words],
    )


def requested_in(path: Path) -> int | None:
    """Returns how many rows a score part covers; None: all."""
    requested = CheckedParquet(path).facts.get(_REQUESTED)
    return None if requested is None else int(requested)


def covered_rows(path: Path, owner: Owner | None = None) -> Mask | None:
    """Returns the rows that a score part covers, (rows,) bool; None: all."""
    if requested_in(path) is None:
        return None
    import pyarrow.compute as pc

    reasons = read_columns(path, ["reason"], owner).column("reason").cast(pa.string())
    outside: Mask = pc.starts_with(reasons, NOT_REQUESTED).fill_null(False).to_numpy().astype(bool)
    return ~outside


def merge_rows(path: Path, table: pa.Table, rows: Mask, outside: str, *, uids: str) -> tuple[pa.Table, int]:
    """Puts scores of some `rows` of a shard into its part, which keeps what it covers; returns all rows, and how many
    are covered. The others are null, with a reason that names what they are `outside` of."""
    nothing = pa.table({field.name: pa.nulls(1, field.type) for field in table.schema})
    reason = pa.array([f"{NOT_REQUESTED}: outside {outside}"])
    pieces = [nothing.set_column(nothing.schema.get_field_index("reason"), "reason", reason), table]
    positions, requested, owner = np.zeros(rows.size, np.int64), rows, Owner(rows.size, uids)
    if path.is_file():
        pieces.append(read_columns(path, table.column_names, owner).cast(table.schema))
        before = covered_rows(path, owner)
        before = np.ones(rows.size, bool) if before is None else before
        positions[before], requested = 1 + table.num_rows + np.flatnonzero(before), rows | before
    positions[rows] = 1 + np.arange(table.num_rows)
    return pa.concat_tables(pieces).take(pa.array(positions)), int(np.count_nonzero(requested))


def read_columns(path: Path, names: Sequence[str] | None, owner: Owner | None = None) -> pa.Table:
    """Returns some columns of a part, or all; raises DamageError if it is missing, damaged or another shard's.

    Without an `owner` the hash of the uids is not checked: the index has nothing to compare it with.
    """
    part = CheckedParquet(path)
    check_binding(path, part.facts, owner)
    return part.read(names)


def of_kind(path: Path, name: str, column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """Returns a column of a part; raises DamageError if it has the wrong type."""
    held = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    right = pa.types.is_floating(held) or pa.types.is_integer(held) if kind == "number" else pa.types.is_string(held)
    if not right:
        raise damage_error(path, f"its column {name!r} holds {held}, not {kind}s")
    return column


def numbers(column: pa.ChunkedArray) -> NDArray[np.float32]:
    """Returns a number column as float32, NaN for null."""
    return np.asarray(column.to_numpy(), np.float32)


def write_rows(path: Path, rows: Sequence[Floats], *, uids: str) -> None:
    """Writes the embeddings of a shard, given in batches, as one float16 `.npy` file that can be memory-mapped."""
    write_array(path, np.concatenate(rows).astype(np.float16, copy=False), uids=uids)


def read_rows(path: Path, owner: Owner | None = None) -> Floats:
    """Returns the embeddings of a shard, memory-mapped: (rows, d) float16; raises DamageError like `read_array`."""
    found = read_array(path, owner)
    if found.ndim != 2 or found.dtype.kind != "f":
        raise damage_error(path, f"it holds {found.dtype} of shape {found.shape}, not a row of floats per sample")
    return cast(Floats, found)


def write_text_lists(path: Path, rows: Sequence[Sequence[str] | None], *, uids: str) -> None:
    """Writes a list of texts per row (generated captions, lines read in the image), or null."""
    table = pa.table({"texts": pa.array(rows, _TEXT_LISTS)})
    write_parquet(path, table, uids=uids, row_group_size=_ROW_GROUP, compression="ZSTD")


def read_text_lists(path: Path, owner: Owner | None = None) -> list[list[str] | None]:
    """Returns stored texts: for each row a list, or None; raises DamageError like `read_columns`."""
    rows: list[list[str] | None] = read_columns(path, ["texts"], owner).column("texts").to_pylist()
    return rows


# ---- side files


def _has_side_files(node: Node | None) -> TypeGuard[Signal]:
    return isinstance(node, Signal) and type(node).side_files is not Signal.side_files


def write_side_files(folder: Path, node: Node | None, device: Device) -> None:
    """Writes a signal's side files that are missing or damaged, and notes them in `signal.json`.

    Several workers may do so at once. Their embeddings may differ by rounding, so an array's note holds its shape, not
    its hash.
    """
    if not _has_side_files(node):
        return
    notes = {}
    for name, content in node.side_files(device).items():
        path = folder / name
        notes[name] = note(path, content)
        if not _is_whole(path, notes[name]):
            write_array(path, content) if path.suffix == ".npy" else write_json(path, content)
    if (folder / SIGNAL).is_file():
        facts = read_description(folder / SIGNAL)
        if facts.get("side_files") != notes:
            write_json(folder / SIGNAL, sign_description(folder, {**facts, "side_files": notes}))


def lacks_side_files(folder: Path, node: Node | None) -> bool:
    """Whether a side file of a signal is missing, damaged or not yet noted in its description."""
    if not _has_side_files(node):
        return False
    notes = read_description(folder / SIGNAL).get("side_files") if (folder / SIGNAL).is_file() else None
    return notes is None or not all(_is_whole(folder / name, noted) for name, noted in notes.items())


def read_side_file(path: Path, noted: Mapping[str, Any] | None = None) -> Any:
    """Returns the array or JSON in a side file; None if there is no file and no note of it (`noted`).

    Raises DamageError if the file is damaged, or missing or different although it was noted.
    """
    if not path.is_file():
        if noted is None:
            return None
        raise damage_error(path, "it is missing although it was written", "repeat `tamis score`")
    try:
        content = read_array(path) if path.suffix == ".npy" else read_json(path)
        changed = noted is not None and note(path, content) != dict(noted)
    except (DamageError, ValueError) as error:  # ValueError: NaN or infinity in JSON
        raise damage_error(path, getattr(error, "what", "") or str(error)) from error
    if changed:
        raise damage_error(path, "its content has changed")
    return content


def _is_whole(path: Path, noted: Mapping[str, Any]) -> bool:
    try:
        return read_side_file(path, noted) is not None
    except DamageError:
        return False


def note(path: Path, content: Any) -> dict[str, Any]:
    """Returns the note of a side file in `signal.json`: the shape of an array, the digest of JSON."""
    return {"shape": list(content.shape)} if path.suffix == ".npy" else {"digest": json_digest(content)}
