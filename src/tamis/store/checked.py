"""Parquet and `.npy` files that say whose rows they hold, and in which every changed bit is found.

Each file names its shard and folder and holds its number of rows and a hash of the shard's uids. Parquet pages have
checksums, verified when they are read. The footer holds a *seal*: a hash of the footer, verified when the file is
opened, and one of all bytes before it, verified by `tamis check` and for subsets. A `.npy` file ends with the same
facts and a hash.

The hashes find damage and mix-ups. They are not signatures: a program that can write to a run can write hashes too.
Other readers (DuckDB, polars) do not verify page checksums.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from tamis.arrays import U64, Floats
from tamis.errors import DamageError
from tamis.storage import denied, local, writing

_HASH = "tamis.xxh3"
_PIECE = 4 << 20  # bytes hashed at once
_TAIL = 8 << 10  # bytes that are read at once, since most footers are shorter

#: The key of the seal in a Parquet footer, and how Thrift writes it before a text of 32 characters.
_SEAL = "tamis.seal"
_SEAL_PLACE = _SEAL.encode() + b"\x18\x20"

#: Version of our Parquet files. Other writers choose a newer one: a file of another version was rewritten.
_PARQUET = "1.0"

#: Separates an array from its facts, at the end of its `.npy` file; NumPy reads only the array.
_FACTS = b"\ntamis "
_LONGEST_FACTS = 4096  # bytes

#: Arrays whose hash this process has verified: file, inode, size and time.
_verified: set[tuple[Any, ...]] = set()


@dataclass(frozen=True)
class Owner:
    """The shard that a part must belong to: the rows of its index, and the hash of their uids (`uids_digest`)."""

    rows: int
    uids: str


def uids_digest(high: U64, low: U64) -> str:
    """Returns the xxh3-64 of the uids of all rows in order: 16 hex digits."""
    total = xxhash.xxh3_64()
    for half in (high, low):
        total.update(np.ascontiguousarray(half, "<u8").data)
    return total.hexdigest()


def damaged(path: Path, what: str) -> DamageError:
    """Returns the error for a file of a run that is not as it was written."""
    do = "delete it and repeat `tamis score` (`tamis check RUN` finds all damage, `--delete` deletes it)"
    return DamageError(f"{path} is damaged, or not the file that belongs there: {what}; {do}", what)


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    """Raises DamageError for a file whose content is wrong, RunError where the disk does not give its bytes."""
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        short = str(error).partition("\n")[0][:200]
        raise denied(path, error) or damaged(path, f"it cannot be read ({short})") from error


def _binding(path: Path, rows: int, uids: str) -> dict[str, str]:
    return {"tamis.shard": path.stem, "tamis.maker": path.parent.name, "tamis.rows": str(rows), "tamis.uids": uids}


def check_binding(path: Path, facts: Mapping[str, str], owner: Owner | None) -> None:
    """Checks that a part was written for its shard and folder, and for its owner's rows.

    Raises:
        DamageError: it was not.
    """
    for key, here in (("tamis.shard", path.stem), ("tamis.maker", path.parent.name)):
        if facts.get(key) != here:
            what = key.removeprefix("tamis.")
            raise damaged(path, f"it was written for the {what} {facts.get(key)!r}, not for {here!r}")
    if owner is not None and facts.get("tamis.rows") != str(owner.rows):
        raise damaged(path, f"it has {facts.get('tamis.rows')} rows, the index {owner.rows}")
    if owner is not None and facts.get("tamis.uids") != owner.uids:
        raise damaged(path, "its rows are other samples than those of the index (their uids differ)")


# ---- Parquet


@contextmanager
def parquet_writer(
    path: Path, schema: pa.Schema, *, durable: bool = False, **encoding: Any
) -> Iterator[tuple[pq.ParquetWriter, pa.NativeFile]]:
    """Gives a writer of a sealed Parquet file with page checksums, and the file that it writes to.

    Args:
        path: of the file.
        schema: its columns.
        durable: as for `writing`.
        encoding: arguments of pyarrow's writer.
    """
    with writing(path, durable=durable) as temporary:
        with (
            pa.OSFile(os.fspath(temporary), "wb") as sink,
            pq.ParquetWriter(sink, schema, write_page_checksum=True, version=_PARQUET, **encoding) as writer,
        ):
            yield writer, sink
            writer.add_key_value_metadata({_SEAL: "0" * 32})
        with open(temporary, "r+b") as file:
            start, footer = _footer(file)
            body = _hash_of(file, start).hexdigest()
            place = footer.rindex(_SEAL_PLACE) + len(_SEAL_PLACE)
            file.seek(start + place)
            file.write((_hash_of_footer(footer, place, body) + body).encode())


def write_parquet(
    path: Path,
    table: pa.Table,
    *,
    uids: str | None,
    row_group_size: int,
    facts: Mapping[str, str] | None = None,
    durable: bool = False,
    **encoding: Any,
) -> None:
    """Writes a table as a sealed Parquet file.

    Args:
        path: of the file.
        table: its rows.
        uids: hash of the uids of the shard's rows; None for a file that is no part of a shard.
        row_group_size: rows.
        facts: texts for the footer.
        durable: as for `writing`.
        encoding: arguments of pyarrow's writer.
    """
    with parquet_writer(path, table.schema, durable=durable, **encoding) as (writer, _):
        writer.write_table(table, row_group_size=row_group_size)
        binding = _binding(path, table.num_rows, uids) if uids is not None else {}
        writer.add_key_value_metadata({**(facts or {}), **binding})


def _footer(file: Any) -> tuple[int, bytes]:
    """Returns where a Parquet file's footer starts, and the footer with its length and the closing magic."""
    size = file.seek(0, os.SEEK_END)
    end = max(0, size - _TAIL)
    file.seek(end)
    tail: bytes = file.read()
    start = max(0, size - 8 - int.from_bytes(tail[-8:-4], "little"))
    if start >= end:
        return start, tail[start - end :]
    file.seek(start)
    return start, file.read()


def _hash_of(file: Any, stop: int) -> Any:
    """Returns the xxh3-64 of the bytes before `stop`."""
    file.seek(0)
    total = xxhash.xxh3_64()
    for start in range(0, stop, _PIECE):
        total.update(file.read(min(_PIECE, stop - start)))
    return total


def _hash_of_footer(footer: bytes, place: int, body: str) -> str:
    return xxhash.xxh3_64_hexdigest(footer[:place] + body.encode() + footer[place + 32 :])


class CheckedParquet:
    """A Parquet file of a run. Its footer is checked when it is opened, its pages when they are read.

    It is not memory-mapped: a mapped file that becomes shorter, or whose sector cannot be read, ends the process.

    Attributes:
        facts: the footer's texts.
        rows: how many it has.
        sealed: whether Tamis wrote it; only with `may_be_foreign` it may be False.
    """

    def __init__(self, path: Path, *, may_be_foreign: bool = False) -> None:
        """Opens it.

        Args:
            path: of the file.
            may_be_foreign: accept a file that another program wrote.

        Raises:
            DamageError: it is no Parquet file, or its footer is not as it was written.
            RunError: the disk does not give its bytes.
        """
        self.path = path
        with _read_errors(path):
            self._bytes = pa.OSFile(os.fspath(local(path)))
            self._start, footer = _footer(self._bytes)
            self._file = pq.ParquetFile(self._bytes, page_checksum_verification=True)
            texts = self._file.metadata.metadata or {}
            self.facts = {key.decode(): text.decode() for key, text in texts.items()}
            self.rows: int = self._file.metadata.num_rows
        # Facts of single columns would say more, but a damaged one ends the process in pyarrow's bindings.
        self.sealed = _SEAL in self.facts and self._file.metadata.format_version == _PARQUET
        if self.sealed:
            seal, place = self.facts[_SEAL], footer.rfind(_SEAL_PLACE) + len(_SEAL_PLACE)
            if _hash_of_footer(footer, place, seal[16:]) != seal[:16]:
                raise damaged(path, "its footer is not what was written")
        elif not may_be_foreign:
            raise damaged(path, "it has no checksums")

    @cached_property
    def schema(self) -> pa.Schema:
        """Returns its columns. Read late: status opens each part for its facts alone."""
        with _read_errors(self.path):
            return self._file.schema_arrow

    def verify(self) -> None:
        """Hashes the whole file.

        Raises:
            DamageError: some byte has changed.
        """
        with _read_errors(self.path):
            if _hash_of(self._bytes, self._start).hexdigest() != self.facts[_SEAL][16:]:
                raise damaged(self.path, "its bytes are not those that were written")

    def read(self, names: Sequence[str] | None) -> pa.Table:
        """Returns some columns, or all.

        Raises:
            DamageError: their pages have changed, or cannot be read.
            RunError: the disk does not give their bytes.
        """
        with _read_errors(self.path):
            table = self._file.read(columns=list(names) if names is not None else None, use_threads=False)
        if table.num_rows != self.rows:
            raise damaged(self.path, f"{table.num_rows} rows of {self.rows} could be read")
        return table


# ---- arrays


def write_array(path: Path, values: Floats, *, uids: str = "") -> None:
    """Writes one array as a `.npy` file, followed by its owner facts and hash."""
    values = np.ascontiguousarray(values)
    with writing(path) as temporary:
        with open(temporary, "wb") as file:
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
            if values.size:  # np.save writes through C's stdio, which forgets that the disk was full
                file.write(values.data.cast("B"))
        finish_array(temporary, path, len(values), uids)


def finish_array(file: Path, path: Path, rows: int, uids: str) -> None:
    """Appends its owner facts and hash to an array's file.

    Args:
        file: the array, under a temporary name.
        path: where it will be.
        rows, uids: see `Owner`.
    """
    facts = _binding(path, rows, uids)
    with open(file, "r+b") as handle:
        total = _hash_of(handle, file.stat().st_size)
        total.update(json.dumps(facts).encode())
        handle.write(_FACTS + json.dumps({**facts, _HASH: total.hexdigest()}).encode())


def read_array(path: Path, owner: Owner | None = None) -> NDArray[Any]:
    """Returns an array of a run, memory-mapped. A process verifies a file's hash once, until the file changes.

    Raises:
        DamageError: it is missing or damaged, or another's.
        RunError: the disk does not give its bytes.
    """
    with _read_errors(path):
        with open(local(path), "rb") as file:
            facts = _verified_facts(path, file)
        check_binding(path, facts, owner)
        found: NDArray[Any] = np.load(local(path), mmap_mode="r" if facts["tamis.rows"] != "0" else None)
        return found


def _verified_facts(path: Path, file: Any) -> dict[str, str]:
    about = os.fstat(file.fileno())
    file.seek(max(0, about.st_size - _LONGEST_FACTS))
    _, mark, text = file.read().rpartition(_FACTS)
    try:
        facts = json.loads(text) if mark else {}
        digest = facts.pop(_HASH)
    except (ValueError, KeyError, AttributeError) as error:
        raise damaged(path, "no hash follows the array") from error
    key = (str(path), about.st_ino, about.st_size, about.st_mtime_ns)
    if key not in _verified:
        total = _hash_of(file, about.st_size - len(text) - len(_FACTS))
        total.update(json.dumps(facts).encode())
        if total.hexdigest() != digest:
            raise damaged(path, "its bytes are not those that were written")
        _verified.add(key)
    return cast("dict[str, str]", facts)


def verify_again() -> None:
    """Makes every array's hash be verified again when it is next opened."""
    _verified.clear()
