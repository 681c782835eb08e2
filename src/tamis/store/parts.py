"""Parts: the files of one shard. Rows of every part stand in the order of the shard's samples.

Each is sealed as it is written, and read through its seal (`tamis.store.seals`).
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tamis.arrays import Floats, array_errors
from tamis.data import Column, Sample
from tamis.store.atomic import denied, writing
from tamis.store.seals import (
    Owner,
    SealedParquet,
    array_trailer,
    binding,
    check_array,
    check_binding,
    damaged,
    seal_parquet,
    sealed_texts,
    sealed_texts_of_file,
    uids_digest,
    unwritten_seal,
)

WORDS = pa.dictionary(pa.int32(), pa.string())

MEMBERS = pa.list_(pa.struct([("ext", WORDS), ("offset", pa.int64()), ("size", pa.int64())]))

INDEX_FIELDS = [
    pa.field("uid_hi", pa.uint64(), nullable=False),
    pa.field("uid_lo", pa.uint64(), nullable=False),
    pa.field("key", pa.string(), nullable=False),
    pa.field("caption", pa.string()),
    pa.field("caption_judged", pa.bool_(), nullable=False),
    pa.field("width", pa.int32()),
    pa.field("height", pa.int32()),
    pa.field("original_width", pa.int32()),
    pa.field("original_height", pa.int32()),
    pa.field("image_bytes", pa.int64()),
    pa.field("members", MEMBERS),
    pa.field("status", WORDS, nullable=False),
    pa.field("reason", pa.string()),
]

#: What the footer of an index calls how many rows have a status: with the status behind it.
_STATUS = "tamis.status."

# Row groups small enough that reading one column of one of them needs little memory.
_ROW_GROUP = 131_072


def write_index(path: Path, table: pa.Table, *, source: str, stamp: str) -> None:
    """Writes an index part.

    Args:
        path: where.
        table: a row per sample, in the shard's order: `INDEX_FIELDS` and the fields that the pool carries.
        source, stamp: the shard's file, and what tells whether it has changed.
    """
    facts = {"tamis.source": source, "tamis.stamp": stamp}
    counts = Counter(table.column("status").to_pylist())
    facts |= {f"{_STATUS}{status}": str(count) for status, count in counts.items()}
    plain = {"uid_hi", "uid_lo"}  # random bits: neither a dictionary nor a compressor finds anything in them
    paths = [name for name in table.schema.names if name not in plain]
    write_sealed(
        path,
        table.replace_schema_metadata(facts),
        uids=uids_digest(table.column("uid_hi").to_numpy(), table.column("uid_lo").to_numpy()),
        row_group_size=_ROW_GROUP,
        use_dictionary=["status", "members.list.element.ext"],
        compression={name: "NONE" if name in plain else "ZSTD" for name in [*plain, *_leaves(paths)]},
    )


def write_sealed(
    path: Path, table: pa.Table, *, uids: str | None, row_group_size: int, durable: bool = False, **how: Any
) -> None:
    """Writes a table as sealed Parquet, bound to its place.

    Args:
        path: where.
        table: its rows.
        uids: hash of the uids of the shard's rows; None for a file that is of no shard, and bound to no place.
        row_group_size: rows.
        durable: as of `writing`.
        how: it is encoded, as pyarrow takes it.
    """
    said = binding(path, table.num_rows, uids) if uids is not None else {}
    facts = {key.encode(): text.encode() for key, text in said.items()}
    with writing(path, durable=durable) as temporary:
        with pq.ParquetWriter(temporary, table.schema, **how) as writer:
            writer.write_table(table, row_group_size=row_group_size)
            writer.add_key_value_metadata(facts | unwritten_seal(table.schema))
        seal_parquet(temporary)


def _leaves(names: Sequence[str]) -> list[str]:
    return [
        leaf
        for name in names
        for leaf in (
            [f"members.list.element.{part}" for part in ("ext", "offset", "size")] if name == "members" else [name]
        )
    ]


@dataclass(frozen=True)
class IndexFacts:
    """What the footer of an index part tells.

    Attributes:
        rows: of the shard.
        statuses: how many rows have which status.
        stamp: size and time of the shard's file when it was read.
        uids: hash of the rows' uids; "" in a part of an older version.
        sealed: whether the part has a seal.
    """

    rows: int
    statuses: Counter[str]
    stamp: str
    uids: str
    sealed: bool


def index_facts(path: Path) -> IndexFacts:
    """Returns what the footer of an index part tells.

    Raises:
        DamageError: the part is missing or damaged.
    """
    try:
        said, rows, sealed = sealed_texts(path), 0, True
    except OSError:
        said = None
    if said is None:
        part = SealedParquet(path)
        said, rows, sealed = part.said, part.metadata.num_rows, part.sealed
    if sealed:
        check_binding(path, said, None)
    try:
        return _facts_told(said, rows, sealed=sealed)
    except (KeyError, ValueError) as error:
        raise damaged(path, f"its footer counts rows by status with something else than numbers ({error})") from error


def all_index_facts(folder: Path, shards: Sequence[str]) -> Iterator[IndexFacts]:
    """Yields what `index_facts` returns for each of many shards, at half the cost where parts are on this disk.

    Args:
        folder: of the index.
        shards: whose.

    Raises:
        DamageError: a part is missing or damaged.
    """
    start, maker = os.path.join(folder, ""), folder.name
    for shard in shards:
        try:
            said = sealed_texts_of_file(f"{start}{shard}.parquet")
            if said and (said["tamis.shard"], said["tamis.maker"]) == (shard, maker):
                yield _facts_told(said, 0, sealed=True)
                continue
        except (OSError, KeyError, ValueError):
            pass
        yield index_facts(folder / f"{shard}.parquet")  # it is at a store, has no seal, or has what this tells


def _facts_told(said: Mapping[str, str], rows: int, *, sealed: bool) -> IndexFacts:
    """Returns what the texts of an index's footer tell.

    Raises:
        KeyError, ValueError: they lack a number, or have something else for one.
    """
    counts: Counter[str] = Counter()
    for key, text in said.items():
        if key.startswith(_STATUS):
            counts[key[len(_STATUS) :]] = int(text)
    rows = int(said["tamis.rows"]) if sealed else rows
    return IndexFacts(rows, counts, said.get("tamis.stamp", ""), said.get("tamis.uids", ""), sealed)


def uids_of(path: Path) -> str:
    """Returns the hash of the uids of an index part: as its footer tells, else (of an older version) from its rows."""
    return index_facts(path).uids or uids_in(path)


def uids_in(path: Path) -> str:
    """Returns the hash of the uids of an index part, from its rows."""
    rows = read_columns(path, ["uid_hi", "uid_lo"])
    return uids_digest(rows.column("uid_hi").to_numpy(), rows.column("uid_lo").to_numpy())


def _check(part: SealedParquet, owner: Owner | None) -> None:
    """Checks that a part is whole and its owner's, as far as its footer tells."""
    if not part.sealed:
        if owner is not None and owner.sealed:
            raise damaged(part.path, "it has no seal, as every part of this run has")
        if owner is not None and part.metadata.num_rows != owner.rows:
            raise damaged(part.path, f"it has {part.metadata.num_rows} rows, the index {owner.rows}")
        return
    check_binding(part.path, part.said, owner)


def read_samples(path: Path, fields: Sequence[str]) -> list[Sample]:
    """Returns the samples of a shard as its index knows them: everything but the image."""
    rows = read_columns(path, None)
    samples = []
    for row in rows.select([name for name in rows.column_names if name != "members"]).to_pylist():
        sample = Sample(
            uid=(row["uid_hi"], row["uid_lo"]),
            key=row["key"],
            caption=row["caption"] if row["caption_judged"] else None,
            shown_caption=row["caption"],
            width=row["width"] or 0,
            height=row["height"] or 0,
            original_width=row["original_width"] or 0,
            original_height=row["original_height"] or 0,
            image_bytes=row["image_bytes"] or 0,
            status=row["status"],
            reason=row["reason"],
        )
        sample.given = {name: row[name] for name in fields if row.get(name) is not None}
        samples.append(sample)
    return samples


def write_scores(
    path: Path, columns: Sequence[Column], values: Mapping[str, Any], reasons: Sequence[str | None], *, uids: str
) -> None:
    """Writes one score part: the scorer's columns, float32 or words, null = not judged, and the reason why.

    Args:
        path: where.
        columns: the scorer's.
        values: (n,) per column: floats with NaN, or words with None, where a row is not judged.
        reasons: n sentences, None where every column is judged.
        uids: hash of the uids of the shard's index.
    """
    arrays, names = [], []
    for column in columns:
        if column.kind == "word":
            arrays.append(pa.array(values[column.name], pa.string()).dictionary_encode())
        else:
            numbers = np.asarray(values[column.name], np.float32)
            arrays.append(pa.array(numbers, pa.float32(), mask=np.isnan(numbers)))
        names.append(column.name)
    arrays.append(pa.array(reasons, pa.string()).dictionary_encode())
    names.append("reason")
    words = {column.name for column in columns if column.kind == "word"}
    # Mantissas of scores hardly compress, and a plain column is read several times as fast: selection reads them all.
    write_sealed(
        path,
        pa.table(arrays, names=names),
        uids=uids,
        row_group_size=_ROW_GROUP * 8,
        compression={name: "ZSTD" if name in words else "NONE" for name in names},
        use_dictionary=["reason", *sorted(words)],
    )


def read_columns(path: Path, names: Sequence[str] | None, owner: Owner | None = None) -> pa.Table:
    """Returns some columns of a part, or all.

    Args:
        path: the part.
        names: of the columns; None: all.
        owner: whose rows it must hold; None: nobody knows, as of the index, which says it itself.

    Raises:
        DamageError: the part is missing or damaged, is another's, or has other columns.
    """
    part = SealedParquet(path)
    _check(part, owner)
    if names is not None:
        there = part.schema.names
        for name in names:
            if name not in there:
                raise damaged(path, f"it has no column {name!r}; it has {', '.join(there)}")
    return part.read(names)


def of_kind(path: Path, name: str, column: pa.ChunkedArray, kind: str) -> pa.ChunkedArray:
    """Returns a column of a part if it holds what it should: numbers or words.

    Raises:
        DamageError: it does not.
    """
    held = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    right = pa.types.is_floating(held) or pa.types.is_integer(held) if kind == "number" else pa.types.is_string(held)
    if not right:
        raise damaged(path, f"its column {name!r} holds {held}, not {kind}s")
    return column


def numbers(column: pa.ChunkedArray) -> NDArray[np.float32]:
    """Returns a score column as float32 with NaN for null."""
    parts = []
    for chunk in column.chunks:
        values = np.asarray(chunk.to_numpy(zero_copy_only=False), np.float32)
        parts.append(values)
    return cast(NDArray[np.float32], np.concatenate(parts) if len(parts) != 1 else parts[0])


def write_rows(path: Path, rows: Sequence[Floats], *, uids: str) -> None:
    """Writes stored features: the batches of a shard, as one float16 `.npy` that can be memory-mapped."""
    write_array(path, np.concatenate(rows).astype(np.float16, copy=False), uids=uids)


def write_array(path: Path, values: Floats, *, uids: str = "") -> None:
    """Writes one array as a `.npy` file, with a seal after it."""
    values = np.ascontiguousarray(values)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(values))
    pieces = [header.getvalue(), values.data.cast("B") if values.size else b""]
    with writing(path) as temporary, open(temporary, "wb") as file:
        # np.save writes through C's stdio, which forgets why it failed: a full disk must be told from a bad shard.
        for piece in (*pieces, array_trailer(path, pieces, len(values), uids)):
            file.write(piece)


def write_text_lists(path: Path, rows: Sequence[Sequence[str] | None], *, uids: str) -> None:
    """Writes texts of which a row has several (generated captions, lines read in the image), null where it has none."""
    table = pa.table({"texts": pa.array(rows, pa.list_(pa.string()))})
    write_sealed(path, table, uids=uids, row_group_size=_ROW_GROUP, compression="ZSTD")


def read_text_lists(path: Path, owner: Owner | None = None) -> list[list[str] | None]:
    """Returns stored texts: for each row a list, None where there is none.

    Raises:
        DamageError: the part is missing or damaged, or another's.
    """
    column = read_columns(path, ["texts"], owner).column("texts")
    if column.type != pa.list_(pa.string()):
        raise damaged(path, f"its texts are {column.type}, not lists of strings")
    rows: list[list[str] | None] = column.to_pylist()
    return rows


def read_rows(path: Path, owner: Owner | None = None) -> Floats:
    """Returns stored features, memory-mapped: (rows, d) float16.

    Args:
        path: the part. A process hashes the whole of it when it first opens it.
        owner: whose rows it must hold; None: nobody knows.

    Raises:
        DamageError: the part is missing or damaged, or another's.
    """
    found = read_array(path, owner)
    if found.ndim != 2 or found.dtype.kind != "f":
        raise damaged(path, f"it holds {found.dtype} of shape {found.shape}, not a row of floats per sample")
    if owner is not None and len(found) != owner.rows:
        raise damaged(path, f"it has {len(found)} rows, the index {owner.rows}")
    return cast(Floats, found)


def _mapped(path: Path) -> NDArray[Any]:
    """Maps an array of NumPy's own format into memory."""
    with open(path, "rb") as file, array_errors():
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"it has version {version} of NumPy's format, 1.0 was expected")
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.hasobject:
            raise ValueError("it holds pickled objects")
        order: Literal["C", "F"] = "F" if by_columns else "C"
        if not dtype.itemsize * np.prod(shape, dtype=np.int64):  # nothing can be mapped of no bytes
            return np.empty(shape, dtype, order)
        return np.memmap(file, dtype, "r", file.tell(), shape, order)


def is_sealed(path: Path) -> bool:
    """Tells whether a `.npy` file has a seal."""
    return check_array(path, None)


def read_array(path: Path, owner: Owner | None = None) -> NDArray[Any]:
    """Returns an array of a run, memory-mapped.

    Raises:
        DamageError: it is missing or damaged, or another's.
    """
    try:
        sealed = check_array(path, owner)
        found = _mapped(path)
    except (OSError, ValueError) as error:
        raise denied(path, error) or damaged(path, f"it cannot be read ({error})") from error
    if owner is not None and owner.sealed and not sealed:
        raise damaged(path, "it has no seal, as every part of this run has")
    return found
