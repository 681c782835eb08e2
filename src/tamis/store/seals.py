"""Seals: whose rows a part holds, and whether a byte of it has changed.

A part is bound to its place: its file says the shard and the folder that it is written for, how many rows it has, and a
hash of the shard's uids. A part of another shard, of other rows or in another order of rows is told from its own so.

Its bytes are hashed with xxh3, which is faster than memory: of Parquet each column by itself, so that who reads one
column hashes no other, and the footer, which also holds the hashes of the columns; of `.npy` the whole. (Parquet's own
checksums cover neither the footer nor the headers of pages, where a single bit can change how values are read.)

Seals find damage and mix-ups. They are no signatures: who can write to a run can seal what they write.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tamis.arrays import U64
from tamis.errors import DamageError
from tamis.store.atomic import denied

_SEAL = b"tamis.seal"
_DIGITS = 16  # hex digits of a 64-bit hash

#: Where the words of a `.npy` seal end.
_TRAILER = b"tamis.seal.1\n"

#: `.npy` files that this process has found whole: path, inode, size and time.
_whole: set[tuple[str, int, int, int]] = set()


@dataclass(frozen=True)
class Owner:
    """The shard that a part must belong to.

    Attributes:
        rows: of the shard's index.
        uids: hash of its uids, see `uids_digest`; "" where nobody has noted it (runs of older versions).
        sealed: whether a part without a seal is damage; older versions wrote none.
    """

    rows: int
    uids: str
    sealed: bool


def uids_digest(high: U64, low: U64) -> str:
    """Returns the xxh3-64 of the uids of all rows in order: 16 hex digits."""
    total = xxhash.xxh3_64()
    for half in (high, low):
        total.update(np.ascontiguousarray(half, "<u8").data)
    return total.hexdigest()


def binding(path: Path, rows: int, uids: str) -> dict[str, str]:
    """Returns what a part says of whose it is."""
    return {"tamis.shard": path.stem, "tamis.maker": path.parent.name, "tamis.rows": str(rows), "tamis.uids": uids}


def damaged(path: Path, what: str) -> DamageError:
    """Returns the error for a file of a run that is not as it was written."""
    return DamageError(
        f"{path} is damaged, or not the file that belongs there: {what}; delete it and repeat `tamis score` "
        "(`tamis doctor RUN` finds whatever else is so, `--repair` deletes it)",
        what,
    )


def check_binding(path: Path, said: dict[str, str], owner: Owner | None) -> None:
    """Checks that a part is of the shard and the folder where it lies, and of its owner's rows.

    Raises:
        DamageError: it is not.
    """
    for key, here in (("tamis.shard", path.stem), ("tamis.maker", path.parent.name)):
        if said.get(key) != here:
            what = key.removeprefix("tamis.")
            raise damaged(path, f"it was written for the {what} {said.get(key)!r}, and lies at that of {here!r}")
    if owner is None:
        return
    if said.get("tamis.rows") != str(owner.rows):
        raise damaged(path, f"it has {said.get('tamis.rows')} rows, the index {owner.rows}")
    if owner.uids and said.get("tamis.uids") != owner.uids:
        raise damaged(path, "its rows are other samples than those of the index (their uids differ)")


class SealedParquet:
    """A Parquet file of a run, mapped into memory, its footer checked.

    Attributes:
        metadata: the footer as pyarrow reads it.
        said: the footer's texts.
    """

    def __init__(self, path: Path, *, sealed_only_as_written: bool = False) -> None:
        """Opens it.

        Args:
            path: of the file.
            sealed_only_as_written: take a file that another program wrote anew for one without a seal, though that
                took its text along.

        Raises:
            DamageError: it is no Parquet file, or its footer has changed since it was sealed.
        """
        self.path = path
        try:
            with pa.memory_map(os.fspath(path)) as source:
                self._buffer = source.read_buffer()
            self._bytes = memoryview(self._buffer)
            self._file = pq.ParquetFile(pa.BufferReader(self._buffer))
            self.metadata = self._file.metadata
            self.said = {key.decode(): text.decode() for key, text in (self.metadata.metadata or {}).items()}
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise denied(path, error) or damaged(path, f"it cannot be read ({_short(error)})") from error
        self._seal = self.said.get(_SEAL.decode(), "")
        if sealed_only_as_written and self.rewritten:
            self._seal = ""
        if self.sealed:
            self._check_footer()

    @property
    def sealed(self) -> bool:
        """Whether there is a seal."""
        return bool(self._seal)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns as Arrow has them."""
        try:
            return self._file.schema_arrow
        except (OSError, pa.ArrowException) as error:
            raise damaged(self.path, f"its columns cannot be read ({_short(error)})") from error

    @property
    def digest(self) -> str:
        """The hash of the footer, and so of everything: 16 hex digits; "" where there is no seal."""
        digits: str = self._seal[-_DIGITS:]
        return digits

    @property
    def rewritten(self) -> bool:
        """Whether another program has written the file anew and took the seal's text along."""
        return self.sealed and self._seal[:_DIGITS] != f"{_footer_start(self._bytes):0{_DIGITS}x}"

    def _check_footer(self) -> None:
        leaves = self.metadata.num_columns
        if self.rewritten:
            raise damaged(self.path, "another program has written it anew")
        if (
            len(self._seal) != (leaves + 2) * _DIGITS
            or _footer_digest(self._bytes, self._seal) != self._seal[-_DIGITS:]
        ):
            raise damaged(self.path, "its footer is not what was written")

    def read(self, names: Sequence[str] | None) -> pa.Table:
        """Returns some columns, or all, after checking the bytes of these columns.

        Raises:
            DamageError: they have changed, or cannot be read.
        """
        try:
            if self.sealed:
                self._check_columns(names)
            return self._file.read(columns=list(names) if names is not None else None, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise denied(self.path, error) or damaged(self.path, f"it cannot be read ({_short(error)})") from error

    def _check_columns(self, names: Sequence[str] | None) -> None:
        start = 0
        for field in self.schema:
            stop = start + _leaves(field.type)
            if names is None or field.name in names:
                for leaf in range(start, stop):
                    place = (leaf + 1) * _DIGITS
                    if _column_digest(self._bytes, self.metadata, leaf) != self._seal[place : place + _DIGITS]:
                        raise damaged(self.path, f"the bytes of the column {field.name!r} are not those written")
            start = stop


def unwritten_seal(schema: pa.Schema) -> dict[bytes, bytes]:
    """Returns what the footer must hold for `seal_parquet` to fill in."""
    return {_SEAL: b"?" * (_DIGITS * (2 + sum(_leaves(field.type) for field in schema)))}


def seal_parquet(path: Path) -> None:
    """Writes the hashes of a Parquet file into the place that `unwritten_seal` has kept in its footer."""
    with open(path, "r+b") as file:
        with pa.memory_map(os.fspath(path)) as source:
            content = memoryview(source.read_buffer())
            metadata = pq.read_metadata(path)
            start = _footer_start(content)
            columns = [_column_digest(content, metadata, leaf) for leaf in range(metadata.num_columns)]
            seal = f"{start:0{_DIGITS}x}" + "".join(columns) + "0" * _DIGITS
            place = bytes(content[start:]).index(b"?" * len(seal)) + start
        file.seek(place)
        file.write(seal.encode())
        file.flush()
        with pa.memory_map(os.fspath(path)) as source:
            digest = _footer_digest(memoryview(source.read_buffer()), seal)
        file.seek(place + len(seal) - _DIGITS)
        file.write(digest.encode())


def _footer_start(content: memoryview) -> int:
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


def _footer_digest(content: memoryview, seal: str) -> str:
    """Returns the hash of what is not in a column: magic bytes, and the footer with zeros for this hash itself."""
    footer = bytes(content[_footer_start(content) :])
    ours = seal[:-_DIGITS].encode()
    before, found, after = footer.partition(ours)
    return xxhash.xxh3_64_hexdigest(b"".join((content[:4], before, found, after[_DIGITS:])))


def _column_digest(content: memoryview, metadata: pq.FileMetaData, leaf: int) -> str:
    total = xxhash.xxh3_64()
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(leaf)
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and chunk.dictionary_page_offset:
            start = min(start, chunk.dictionary_page_offset)
        total.update(content[start : start + chunk.total_compressed_size])
    return total.hexdigest()


def _leaves(kind: pa.DataType) -> int:
    """Returns how many columns of Parquet a column of Arrow is."""
    return sum(_leaves(kind.field(number).type) for number in range(kind.num_fields)) if kind.num_fields else 1


def array_trailer(path: Path, pieces: Iterable[Any], rows: int, uids: str) -> bytes:
    """Returns what follows an array in its `.npy` file, where readers of NumPy's format do not look.

    Args:
        path: of the file.
        pieces: the bytes before it.
        rows, uids: see `Owner`.
    """
    total = xxhash.xxh3_64()
    said = json.dumps(binding(path, rows, uids), ensure_ascii=False).encode()
    words = said + f"{len(said):08x}".encode()
    for piece in (*pieces, words):
        total.update(piece)
    return words + total.hexdigest().encode() + _TRAILER


def check_array(path: Path, owner: Owner | None) -> bool:
    """Checks the seal of a `.npy` file; returns whether it has one. A process hashes a file once until it changes.

    Raises:
        DamageError: its bytes are not those that were written, or it is not its owner's.
    """
    with open(path, "rb") as file:
        facts = os.fstat(file.fileno())
        end = facts.st_size - len(_TRAILER)
        file.seek(max(0, end - _DIGITS - 8))
        tail = file.read()
        if not tail.endswith(_TRAILER) or len(tail) != len(_TRAILER) + _DIGITS + 8:
            return False
        try:
            size = int(tail[:8], 16)
            file.seek(end - _DIGITS - 8 - size)
            said = json.loads(file.read(size))
        except (OSError, ValueError) as error:
            raise damaged(path, "its seal cannot be read") from error
    key = (os.fspath(path), facts.st_ino, facts.st_size, facts.st_mtime_ns)
    if key not in _whole:
        content = np.memmap(path, np.uint8, "r")
        if xxhash.xxh3_64_hexdigest(content[: end - _DIGITS].data).encode() != tail[8 : 8 + _DIGITS]:
            raise damaged(path, "its bytes are not those that were written")
        _whole.add(key)
    check_binding(path, said if isinstance(said, dict) else {}, owner)
    return True


def _short(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
