"""Parquet and `.npy` files that say whose rows they hold, and in which every changed bit is found.

Parquet pages have checksums, which are verified when read. The footer holds the shard and the folder that the part was
written for, its rows, a hash of the shard's uids, and a hash of all these texts and the columns' types: with them, no
changed bit of a footer or page header gave other values without an error (of 74,000 tried, pyarrow 26). A file without
checksums would pass unverified, so the footer says that it has them. pyarrow keeps the footer's texts when it rewrites
a table, but writes format 2.6 unless asked: a file of another format than 1.0 was rewritten. A `.npy` file ends with
the same facts and an xxh3.

The hashes find damage and mix-ups. They are no signatures: a program that can write to a run can write hashes too.
Other readers (DuckDB, polars) do not verify page checksums.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from tamis.arrays import U64, Floats, array_errors
from tamis.errors import DamageError
from tamis.storage import denied, local, writing

#: In a Parquet footer: that pages have checksums, and the hash of the schema and of our texts.
_CHECKSUMS = "tamis.checksums"

_HASH = "tamis.xxh3"
_PIECE = 4 << 20  # bytes hashed at once

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


def _short(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


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
    if owner is None:
        return
    if facts.get("tamis.rows") != str(owner.rows):
        raise damaged(path, f"it has {facts.get('tamis.rows')} rows, the index {owner.rows}")
    if facts.get("tamis.uids") != owner.uids:
        raise damaged(path, "its rows are other samples than those of the index (their uids differ)")


# ---- Parquet


#: Arguments of pyarrow's writer for a file that says `checksum_facts`.
CHECKSUMS: Mapping[str, Any] = {"write_page_checksum": True, "version": "1.0"}


def checksum_facts(schema: pa.Schema, facts: Mapping[str, str]) -> dict[str, str]:
    """Returns what the footer of a file written with `CHECKSUMS` says about it: a hash of its columns and our texts."""
    text = "\n".join(map(str, schema)).replace("<item: ", "<element: ")  # Parquet's name for what a list holds
    text += json.dumps(sorted(item for item in facts.items() if item[0].startswith("tamis.") and item[0] != _CHECKSUMS))
    return {_CHECKSUMS: f"pages crc32, footer {xxhash.xxh3_64_hexdigest(text.encode())}"}


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
    """Writes a table with page checksums.

    Args:
        path: of the file.
        table: its rows.
        uids: hash of the uids of the shard's rows; None for a file that is no part of a shard.
        row_group_size: rows.
        facts: texts for the footer.
        durable: as for `writing`.
        encoding: arguments of pyarrow's writer.
    """
    texts = {**(facts or {}), **(_binding(path, table.num_rows, uids) if uids is not None else {})}
    texts |= checksum_facts(table.schema, texts)
    with (
        writing(path, durable=durable) as temporary,
        pq.ParquetWriter(temporary, table.schema, **CHECKSUMS, **encoding) as writer,
    ):
        writer.write_table(table, row_group_size=row_group_size)
        writer.add_key_value_metadata(texts)


class CheckedParquet:
    """A Parquet file of a run. Its footer is checked when it is opened, its pages when they are read.

    It is not memory-mapped: a mapped file that becomes shorter, or whose sector cannot be read, ends the process.

    Attributes:
        facts: the footer's texts.
        schema: its columns.
    """

    def __init__(self, path: Path, *, may_lack_checksums: bool = False) -> None:
        """Opens it.

        Args:
            path: of the file.
            may_lack_checksums: accept a file that another program wrote.

        Raises:
            DamageError: it is no Parquet file, or its footer is not as it was written.
            RunError: the disk does not give its bytes.
        """
        self.path = path
        try:
            self._file = pq.ParquetFile(pa.OSFile(os.fspath(local(path))), page_checksum_verification=True)
            self.schema: pa.Schema = self._file.schema_arrow
            texts = self._file.metadata.metadata or {}
            self.facts = {key.decode(): text.decode() for key, text in texts.items()}
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise denied(path, error) or damaged(path, f"it cannot be read ({_short(error)})") from error
        if self._is_ours():
            if self.facts[_CHECKSUMS] != checksum_facts(self.schema, self.facts)[_CHECKSUMS]:
                raise damaged(path, "its footer is not what was written")
        elif not may_lack_checksums:
            raise damaged(path, "it has no checksums")
        self.rows: int = self._file.metadata.num_rows
        if self.facts.get("tamis.rows", str(self.rows)) != str(self.rows):
            raise damaged(path, f"it has {self.rows} rows and was written with {self.facts['tamis.rows']}")

    def _is_ours(self) -> bool:
        """Whether the file has checksums, and is not the copy of one that another program rewrote."""
        # Facts of single columns would say more, but a damaged one ends the process in pyarrow's bindings.
        return _CHECKSUMS in self.facts and self._file.metadata.format_version == CHECKSUMS["version"]

    def read(self, names: Sequence[str] | None) -> pa.Table:
        """Returns some columns, or all.

        Raises:
            DamageError: their pages have changed, or cannot be read.
            RunError: the disk does not give their bytes.
        """
        try:
            table = self._file.read(columns=list(names) if names is not None else None, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise denied(self.path, error) or damaged(self.path, f"it cannot be read ({_short(error)})") from error
        if table.num_rows != self.rows:
            raise damaged(self.path, f"{table.num_rows} rows of {self.rows} could be read")
        return table


# ---- arrays


def write_array(path: Path, values: Floats, *, uids: str = "") -> None:
    """Writes one array as a `.npy` file, followed by whose it is and its hash."""
    values = np.ascontiguousarray(values)
    with writing(path) as temporary:
        with open(temporary, "wb") as file:
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(values))
            if values.size:  # np.save writes through C's stdio, which forgets that the disk was full
                file.write(values.data.cast("B"))
        finish_array(temporary, path, len(values), uids)


def finish_array(file: Path, path: Path, rows: int, uids: str) -> None:
    """Appends to an array's file whose it is and its hash.

    Args:
        file: the array, under a temporary name.
        path: where it will be.
        rows, uids: see `Owner`.
    """
    with open(file, "r+b") as handle:
        facts = _binding(path, rows, uids)
        total = _hash_of(iter(lambda: handle.read(_PIECE), b""), facts)
        handle.write(_FACTS + json.dumps({**facts, _HASH: total}).encode())


def _hash_of(pieces: Iterator[bytes], facts: Mapping[str, str]) -> str:
    total = xxhash.xxh3_64()
    for piece in pieces:
        total.update(piece)
    total.update(json.dumps(facts).encode())
    return total.hexdigest()


def read_array(path: Path, owner: Owner | None = None) -> NDArray[Any]:
    """Returns an array of a run, memory-mapped. A process verifies a file's hash once, until the file changes.

    Raises:
        DamageError: it is missing or damaged, or another's.
        RunError: the disk does not give its bytes.
    """
    try:
        with open(local(path), "rb") as file:
            check_binding(path, _verified_facts(path, file), owner)
            return _mapped(file)
    except (OSError, ValueError) as error:
        raise denied(path, error) or damaged(path, f"it cannot be read ({error})") from error


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
        file.seek(0)
        end = about.st_size - len(text) - len(_FACTS)
        pieces = (file.read(min(_PIECE, end - start)) for start in range(0, end, _PIECE))
        if _hash_of(pieces, facts) != digest:
            raise damaged(path, "its bytes are not those that were written")
        _verified.add(key)
    return cast("dict[str, str]", facts)


def verify_again() -> None:
    """Has the hash of every array be verified when it is next opened."""
    _verified.clear()


def _mapped(file: Any) -> NDArray[Any]:
    file.seek(0)
    with array_errors():
        version = np.lib.format.read_magic(file)
        if version != (1, 0):
            raise ValueError(f"it has version {version} of NumPy's format, 1.0 was expected")
        shape, by_columns, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.hasobject:
            raise ValueError("it holds pickled objects")
        order: Literal["C", "F"] = "F" if by_columns else "C"
        if not dtype.itemsize * np.prod(shape, dtype=np.int64):  # there are no bytes to map
            return np.empty(shape, dtype, order)
        return np.memmap(file, dtype, "r", file.tell(), shape, order)
