"""Parts on disk: Parquet and `.npy` files that say whose rows they hold, and in which every changed bit is found.

A part says the shard and the folder that it was written for, how many rows it has and a hash of the shard's uids, so a
part of another shard, or of rows in another order, is told from the right one. Its bytes are hashed with xxh3: of
Parquet each column and the footer, so that reading one column hashes no other; of `.npy` the whole.

Parquet's own page checksums do not suffice: they cover neither page headers nor the footer. Of the 10,392 bits of a
small part, 229 gave other values without an error when flipped (pyarrow 26), one an index outside its dictionary.

The hashes find damage and mix-ups. They are no signatures: whoever can write to a run can write hashes too.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from tamis.arrays import U64, Floats, array_errors
from tamis.errors import DamageError
from tamis.store import mirror
from tamis.store.atomic import denied, writing

#: The key of the hashes in a Parquet footer: where the footer starts, a hash of each column, and one of the footer.
_HASHES = b"tamis.xxh3"
_DIGITS = 16  # hex digits of a 64-bit hash

_TAIL = 16 << 10  # bytes that hold most footers
_PIECE = 4 << 20  # bytes hashed at once

#: What separates an array from what is said of it, at the end of its `.npy` file; NumPy reads only the array.
_SAYS = b"\ntamis "
_MOST_SAID = 4096  # bytes

#: Arrays that this process has found whole: file, inode, size and time.
_whole: set[tuple[Any, ...]] = set()


@dataclass(frozen=True)
class Owner:
    """The shard that a part must belong to.

    Attributes:
        rows: of the shard's index.
        uids: hash of its uids, see `uids_digest`.
    """

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
    return DamageError(f"{mirror.named(path)} is damaged, or not the file that belongs there: {what}; {do}", what)


def _short(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


def _binding(path: Path, rows: int, uids: str) -> dict[str, str]:
    return {"tamis.shard": path.stem, "tamis.maker": path.parent.name, "tamis.rows": str(rows), "tamis.uids": uids}


def check_binding(path: Path, said: Mapping[str, str], owner: Owner | None) -> None:
    """Checks that a part was written for the shard and the folder where it lies, and for its owner's rows.

    Raises:
        DamageError: it was not.
    """
    for key, here in (("tamis.shard", path.stem), ("tamis.maker", path.parent.name)):
        if said.get(key) != here:
            what = key.removeprefix("tamis.")
            raise damaged(path, f"it was written for the {what} {said.get(key)!r}, and lies at that of {here!r}")
    if owner is None:
        return
    if said.get("tamis.rows") != str(owner.rows):
        raise damaged(path, f"it has {said.get('tamis.rows')} rows, the index {owner.rows}")
    if said.get("tamis.uids") != owner.uids:
        raise damaged(path, "its rows are other samples than those of the index (their uids differ)")


# ---- Parquet


def write_parquet(
    path: Path, table: pa.Table, *, uids: str | None, row_group_size: int, durable: bool = False, **how: Any
) -> None:
    """Writes a table with its hashes.

    Args:
        path: where.
        table: its rows.
        uids: hash of the uids of the shard's rows; None for a file of no shard, which says no owner.
        row_group_size: rows.
        durable: as of `writing`.
        how: it is encoded, as pyarrow takes it.
    """
    said = _binding(path, table.num_rows, uids) if uids is not None else {}
    facts = {key.encode(): text.encode() for key, text in said.items()}
    with writing(path, durable=durable) as temporary:
        with pq.ParquetWriter(temporary, table.schema, **how) as writer:
            writer.write_table(table, row_group_size=row_group_size)
            writer.add_key_value_metadata(facts | room_for_hashes(table.schema))
        write_hashes(temporary)


def room_for_hashes(schema: pa.Schema) -> dict[bytes, bytes]:
    """Returns what the footer must hold for `write_hashes` to fill in."""
    return {_HASHES: b"?" * (_DIGITS * (2 + sum(_leaves(field.type) for field in schema)))}


def write_hashes(path: Path) -> None:
    """Writes the hashes of a Parquet file into the place that `room_for_hashes` kept in its footer."""
    with open(path, "r+b") as file:
        metadata = pq.read_metadata(path)
        size = file.seek(0, os.SEEK_END)
        file.seek(size - 8)
        start = size - 8 - int.from_bytes(file.read(4), "little")
        columns = [_column_digest(_pieces(file, metadata, leaf)) for leaf in range(metadata.num_columns)]
        hashes = f"{start:0{_DIGITS}x}" + "".join(columns) + "0" * _DIGITS
        file.seek(0)
        magic = file.read(4)
        file.seek(start)
        footer = file.read()
        place = footer.index(b"?" * len(hashes))
        footer = footer[:place] + hashes.encode() + footer[place + len(hashes) :]
        digest = _footer_digest(magic, footer, hashes)
        file.seek(start + place)
        file.write(hashes[:-_DIGITS].encode() + digest.encode())


def _pieces(file: Any, metadata: pq.FileMetaData, leaf: int) -> Iterator[bytes]:
    for start, stop in _column_ranges(metadata, leaf):
        file.seek(start)
        for begin in range(start, stop, _PIECE):
            yield file.read(min(_PIECE, stop - begin))


def _column_digest(pieces: Iterable[Any]) -> str:
    total = xxhash.xxh3_64()
    for piece in pieces:
        total.update(piece)
    return total.hexdigest()


def _footer_digest(magic: bytes, footer: bytes, hashes: str) -> str:
    """Returns the hash of what is in no column: magic bytes, and the footer without this hash itself."""
    before, found, after = footer.partition(hashes[:-_DIGITS].encode())
    return xxhash.xxh3_64_hexdigest(b"".join((magic, before, found, after[_DIGITS:])))


def _column_ranges(metadata: pq.FileMetaData, leaf: int) -> Iterator[tuple[int, int]]:
    """Yields where the bytes of a column lie: their start and end in each row group."""
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(leaf)
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and chunk.dictionary_page_offset:
            start = min(start, chunk.dictionary_page_offset)
        yield start, start + chunk.total_compressed_size


def _leaves(kind: pa.DataType) -> int:
    """Returns how many columns of Parquet a column of Arrow is."""
    return sum(_leaves(kind.field(number).type) for number in range(kind.num_fields)) if kind.num_fields else 1


class CheckedParquet:
    """A Parquet file of a run, its footer checked; columns are checked as they are read.

    It is read and not mapped: a mapped file that becomes shorter, or whose sector cannot be read, ends the process.

    Attributes:
        metadata: the footer as pyarrow reads it.
        said: the footer's texts.
        digest: the hash of the footer, and so of everything: 16 hex digits; "" without hashes.
    """

    def __init__(self, path: Path, *, may_lack_hashes: bool = False) -> None:
        """Opens it.

        Args:
            path: of the file.
            may_lack_hashes: take a file without hashes, or one that another program wrote anew with our texts in it.

        Raises:
            DamageError: it is no Parquet file, or its footer is not as it was written.
            RunError: the disk does not give its bytes.
        """
        self.path = path
        try:
            self._file = pa.OSFile(os.fspath(mirror.local(path)))  # which closes itself
            self._size = self._file.size()
            footer = self._read_footer()
            self.metadata = pq.read_metadata(pa.BufferReader(footer))
            self.said = {key.decode(): text.decode() for key, text in (self.metadata.metadata or {}).items()}
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise denied(path, error) or damaged(path, f"it cannot be read ({_short(error)})") from error
        self._hashes = self.said.get(_HASHES.decode(), "")
        start = f"{self._size - len(footer):0{_DIGITS}x}"
        if may_lack_hashes and self._hashes[:_DIGITS] != start:
            self._hashes = ""
        elif not self._hashes:
            raise damaged(path, "it has no hashes")
        elif (
            self._hashes[:_DIGITS] != start
            or len(self._hashes) != (self.metadata.num_columns + 2) * _DIGITS
            or _footer_digest(self._read(0, 4), footer, self._hashes) != self._hashes[-_DIGITS:]
        ):
            raise damaged(path, "its footer is not what was written")
        self.digest = self._hashes[-_DIGITS:]

    def _read(self, start: int, stop: int) -> bytes:
        self._file.seek(start)
        return bytes(self._file.read(stop - start))

    def _read_footer(self) -> bytes:
        tail = self._read(max(0, self._size - _TAIL), self._size)
        length = int.from_bytes(tail[-8:-4], "little") + 8
        return tail[-length:] if length <= len(tail) else self._read(max(0, self._size - length), self._size)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns as Arrow has them."""
        try:
            return self.metadata.schema.to_arrow_schema()
        except (OSError, pa.ArrowException) as error:
            raise damaged(self.path, f"its columns cannot be read ({_short(error)})") from error

    def read(self, names: Sequence[str] | None) -> pa.Table:
        """Returns some columns, or all, after checking the bytes of these columns.

        Raises:
            DamageError: they have changed, or cannot be read.
            RunError: the disk does not give their bytes.
        """
        # Of the file's size; memory is taken where something is read into it.
        content = np.empty(self._size, np.uint8).data
        try:
            footer = len(self._read_footer())
            for start, stop in ((0, min(4, self._size)), (self._size - footer, self._size)):
                self._fill(content, start, stop)
            self._fill_columns(content, names)
            file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(content)))
            return file.read(columns=list(names) if names is not None else None, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise denied(self.path, error) or damaged(self.path, f"it cannot be read ({_short(error)})") from error

    def _fill_columns(self, content: memoryview, names: Sequence[str] | None) -> None:
        fields = [field.name for field in self.schema for _ in range(_leaves(field.type))]
        for leaf, field in enumerate(fields):
            if names is not None and field not in names:
                continue
            ranges = list(_column_ranges(self.metadata, leaf))
            for start, stop in ranges:
                self._fill(content, start, stop)
            told = self._hashes[(leaf + 1) * _DIGITS : (leaf + 2) * _DIGITS]
            if told and _column_digest(content[start:stop] for start, stop in ranges) != told:
                raise damaged(self.path, f"the bytes of the column {field!r} are not those written")

    def _fill(self, content: memoryview, start: int, stop: int) -> None:
        self._file.seek(start)
        if self._file.readinto(content[start:stop]) < stop - start:
            raise damaged(self.path, "it is shorter than its footer says")


# ---- arrays


def write_array(path: Path, values: Floats, *, uids: str = "") -> None:
    """Writes one array as a `.npy` file, and behind it whose it is and its hash."""
    values = np.ascontiguousarray(values)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(values))
    pieces = [header.getvalue(), values.data.cast("B") if values.size else b""]
    with writing(path) as temporary, open(temporary, "wb") as file:
        # np.save writes through C's stdio, which forgets why it failed: a full disk must be told from a bad shard.
        for piece in (*pieces, _said_of(path, pieces, len(values), uids)):
            file.write(piece)


def finish_array(file: Path, path: Path, rows: int, uids: str) -> None:
    """Writes what `write_array` writes behind an array that was filled through a memory map.

    Args:
        file: the array, still under a temporary name.
        path: of the file to be.
        rows, uids: see `Owner`.
    """
    with open(file, "r+b") as handle:
        said = _said_of(path, iter(lambda: handle.read(_PIECE), b""), rows, uids)
        handle.seek(0, os.SEEK_END)
        handle.write(said)


def _said_of(path: Path, pieces: Iterable[Any], rows: int, uids: str) -> bytes:
    total = xxhash.xxh3_64()
    said = _binding(path, rows, uids)
    for piece in pieces:
        total.update(piece)
    total.update(json.dumps(said).encode())
    return _SAYS + json.dumps({**said, _HASHES.decode(): total.hexdigest()}).encode()


def read_array(path: Path, owner: Owner | None = None) -> NDArray[Any]:
    """Returns an array of a run, memory-mapped. A process hashes a file once, until it changes.

    Raises:
        DamageError: it is missing or damaged, or another's.
        RunError: the disk does not give its bytes.
    """
    try:
        with open(mirror.local(path), "rb") as file:
            check_binding(path, _checked_said(path, file), owner)
            return _mapped(file)
    except (OSError, ValueError) as error:
        raise denied(path, error) or damaged(path, f"it cannot be read ({error})") from error


def _checked_said(path: Path, file: Any) -> dict[str, str]:
    """Returns what stands behind an array, after comparing its hash."""
    facts = os.fstat(file.fileno())
    file.seek(max(0, facts.st_size - _MOST_SAID))
    text = file.read().rpartition(_SAYS)
    try:
        said = json.loads(text[2]) if text[1] else {}
        digest = said.pop(_HASHES.decode())
    except (ValueError, KeyError, AttributeError) as error:
        raise damaged(path, "no hash stands behind the array") from error
    key = (os.fspath(path), facts.st_ino, facts.st_size, facts.st_mtime_ns)
    if key not in _whole:
        file.seek(0)
        end = facts.st_size - len(text[2]) - len(_SAYS)
        total = xxhash.xxh3_64()
        for start in range(0, end, _PIECE):
            total.update(file.read(min(_PIECE, end - start)))
        total.update(json.dumps(said).encode())
        if total.hexdigest() != digest:
            raise damaged(path, "its bytes are not those that were written")
        _whole.add(key)
    return cast("dict[str, str]", said)


def forget_whole() -> None:
    """Has every array be hashed again when it is opened next."""
    _whole.clear()


def _mapped(file: Any) -> NDArray[Any]:
    """Maps an array of NumPy's own format into memory."""
    file.seek(0)
    with array_errors():
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
