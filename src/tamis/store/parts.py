"""Parts: the files of one shard. Rows of every part stand in the order of the shard's samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tamis.arrays import Floats
from tamis.data import Column, Sample
from tamis.errors import RunError
from tamis.store.atomic import writing

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
    facts |= {f"tamis.status.{status}": str(count) for status, count in counts.items()}
    plain = {"uid_hi", "uid_lo"}  # random bits: neither a dictionary nor a compressor finds anything in them
    paths = [name for name in table.schema.names if name not in plain]
    with writing(path) as temporary:
        pq.write_table(
            table.replace_schema_metadata(facts),
            temporary,
            row_group_size=_ROW_GROUP,
            use_dictionary=["status", "members.list.element.ext"],
            compression={name: "NONE" if name in plain else "ZSTD" for name in [*plain, *_leaves(paths)]},
        )


def _leaves(names: Sequence[str]) -> list[str]:
    return [
        leaf
        for name in names
        for leaf in (
            [f"members.list.element.{part}" for part in ("ext", "offset", "size")] if name == "members" else [name]
        )
    ]


def index_facts(path: Path) -> tuple[int, Counter[str], str]:
    """Returns rows, rows by status, and the source's stamp of an index part, from its footer alone."""
    try:
        facts = pq.read_metadata(path)
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path} is damaged ({error}); delete it and repeat `tamis score`") from error
    extra = {key.decode(): value.decode() for key, value in (facts.metadata or {}).items()}
    counts = {
        key.removeprefix("tamis.status."): int(value) for key, value in extra.items() if key.startswith("tamis.status.")
    }
    return facts.num_rows, Counter(counts), extra.get("tamis.stamp", "")


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
    path: Path, columns: Sequence[Column], values: Mapping[str, Any], reasons: Sequence[str | None]
) -> None:
    """Writes one score part: the scorer's columns, float32 or words, null = not judged, and the reason why.

    Args:
        path: where.
        columns: the scorer's.
        values: (n,) per column: floats with NaN, or words with None, where a row is not judged.
        reasons: n sentences, None where every column is judged.
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
    # Mantissas of scores hardly compress, and a plain column is read several times as fast: selection reads them all.
    with writing(path) as temporary:
        pq.write_table(
            pa.table(arrays, names=names),
            temporary,
            row_group_size=_ROW_GROUP * 8,
            compression="NONE",
            use_dictionary=["reason", *(column.name for column in columns if column.kind == "word")],
        )


def read_columns(path: Path, names: Sequence[str] | None) -> pa.Table:
    """Returns some columns of a part, or all.

    Raises:
        RunError: the part is missing, damaged or has other columns.
    """
    try:
        with pq.ParquetFile(path, memory_map=True) as file:
            if names is not None and (lacking := set(names) - set(file.schema_arrow.names)):
                raise RunError(
                    f"{path} has no column {sorted(lacking)[0]!r}; it has {', '.join(file.schema_arrow.names)}"
                )
            return file.read(columns=list(names) if names is not None else None, use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise RunError(f"{path} cannot be read ({error}); delete it and repeat `tamis score`") from error


def numbers(column: pa.ChunkedArray) -> NDArray[np.float32]:
    """Returns a score column as float32 with NaN for null."""
    parts = []
    for chunk in column.chunks:
        values = np.asarray(chunk.to_numpy(zero_copy_only=False), np.float32)
        parts.append(values)
    return cast(NDArray[np.float32], np.concatenate(parts) if len(parts) != 1 else parts[0])


def write_rows(path: Path, rows: Sequence[Floats]) -> None:
    """Writes stored features: the batches of a shard, as one float16 `.npy` that can be memory-mapped."""
    write_array(path, np.concatenate(rows).astype(np.float16, copy=False))


def write_array(path: Path, values: Floats) -> None:
    """Writes one array as a `.npy` file."""
    values = np.ascontiguousarray(values)
    with writing(path) as temporary, open(temporary, "wb") as file:
        # np.save writes through C's stdio, which forgets why it failed: a full disk must be told from a bad shard.
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
        file.write(values.data)


def write_text_lists(path: Path, rows: Sequence[Sequence[str] | None]) -> None:
    """Writes texts of which a row has several (generated captions, lines read in the image), null where it has none."""
    table = pa.table({"texts": pa.array(rows, pa.list_(pa.string()))})
    with writing(path) as temporary:
        pq.write_table(table, temporary, row_group_size=_ROW_GROUP, compression="ZSTD")


def read_text_lists(path: Path) -> list[list[str] | None]:
    """Returns stored texts: for each row a list, None where there is none.

    Raises:
        RunError: the part is missing or damaged.
    """
    rows: list[list[str] | None] = read_columns(path, ["texts"]).column("texts").to_pylist()
    return rows


def read_rows(path: Path) -> Floats:
    """Returns stored features, memory-mapped.

    Raises:
        RunError: the part is missing or damaged.
    """
    try:
        return cast(Floats, np.load(path, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise RunError(f"{path} cannot be read ({error}); delete it and repeat `tamis score`") from error
