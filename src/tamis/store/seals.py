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
import re
from collections.abc import Iterable, Iterator, Sequence
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
from tamis.store import mirror
from tamis.store.atomic import denied

_SEAL = b"tamis.seal"
_DIGITS = 16  # hex digits of a 64-bit hash

_TAIL = 16 << 10  # bytes that hold the footers of most parts

_PIECE = 4 << 20  # bytes read and hashed at once

#: Where the words of a `.npy` seal end.
_TRAILER = b"tamis.seal.1\n"

#: Arrays that this process has found whole: file, place in it, inode, size and time.
_whole: set[tuple[Any, ...]] = set()


def forget_whole() -> None:
    """Has every array be hashed again when it is opened next: for who must not believe that it is as it was."""
    _whole.clear()


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
    do = "delete it and repeat `tamis score` (`tamis doctor RUN` finds whatever else is so, `--repair` deletes it)"
    return DamageError(f"{mirror.named(path)} is damaged, or not the file that belongs there: {what}; {do}", what)


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
    """A Parquet file of a run, its footer checked.

    It is read and not mapped: a mapped file that becomes shorter, or whose sector cannot be read, ends the process.
    Only the footer and the columns that are asked for are read, each into its place in memory of the file's size.

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
            RunError: the disk does not give its bytes.
        """
        self.path = path
        try:
            self._source = _Source(path)
            content = np.empty(self._source.size, np.uint8)  # a page of it is taken when something is read there
            self._bytes = content.data
            self._read_footer()
            self._file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(content)))
            self.metadata = self._file.metadata
            self.said = {key.decode(): text.decode() for key, text in (self.metadata.metadata or {}).items()}
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise denied(path, error) or damaged(path, f"it cannot be read ({_short(error)})") from error
        self._seal = self.said.get(_SEAL.decode(), "")
        if sealed_only_as_written and self.rewritten:
            self._seal = ""
        if self.sealed:
            self._check_footer()
        else:
            self._fill(0, self._source.size)

    def _read_footer(self) -> None:
        size = self._source.size
        self._fill(max(0, size - _TAIL), size)
        footer = int.from_bytes(self._bytes[-8:-4], "little") + 8
        if _TAIL < footer <= size:
            self._fill(size - footer, size - _TAIL)
        self._fill(0, min(4, size))  # the format's name

    def _fill(self, start: int, stop: int) -> None:
        """Reads bytes into their place.

        Raises:
            DamageError: the file ends before them.
            RunError: the disk does not give them.
        """
        try:
            self._source.read_into(self._bytes[start:stop], start)
        except OSError as error:
            raise denied(self.path, error) or damaged(self.path, f"it cannot be read ({_short(error)})") from error
        except EOFError as error:
            raise damaged(self.path, "it became shorter while it was read") from error

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
                    for begin, end in _column_ranges(self.metadata, leaf):
                        self._fill(begin, end)
                    place = (leaf + 1) * _DIGITS
                    if _column_digest(self._bytes, self.metadata, leaf) != self._seal[place : place + _DIGITS]:
                        raise damaged(self.path, f"the bytes of the column {field.name!r} are not those written")
            start = stop


def sealed_texts(path: Path) -> dict[str, str] | None:
    """Returns the texts of a sealed footer, and reads nothing else: several times as fast as `SealedParquet`.

    Returns:
        None where there is no seal, or the footer is not as it was written: `SealedParquet` then says more.

    Raises:
        FileNotFoundError: the part is not there.
        OSError: it cannot be read.
    """
    return sealed_texts_of_file(os.fspath(mirror.local(path)))


def sealed_texts_of_file(file: str) -> dict[str, str] | None:
    """Returns what `sealed_texts` does, of a file on this disk: for who looks at very many of them.

    Args:
        file: its path; a string, since a `Path` for each of many files costs as much as reading them.

    Raises:
        FileNotFoundError: there is no such file here; it may lie at the store of its run.
        OSError: it cannot be read.
    """
    handle = os.open(file, os.O_RDONLY)
    try:
        return _texts_of(*_ends(handle, os.lseek(handle, 0, os.SEEK_END)))
    finally:
        os.close(handle)


def _texts_of(start: bytes, footer: bytes) -> dict[str, str] | None:
    """Returns the texts of a footer if its seal is right.

    Args:
        start, footer: as of `_ends`.
    """
    for match in _TEXTS.finditer(footer):
        texts = _texts_at(footer, match.end() - 1, match[1])
        seal = (texts or {}).get(_SEAL.decode(), "")
        if texts and len(seal) > _DIGITS and _digest(start[:4], footer, seal) == seal[-_DIGITS:]:
            return texts if seal[:_DIGITS] == start[4:].decode() else None
    return None


#: Where the texts of a footer begin, in Thrift's compact protocol: the fifth field, a list of so many structures, and
#: the first field of the first of them, a string.
_TEXTS = re.compile(
    rb"\x19([\x1c\x2c\x3c\x4c\x5c\x6c\x7c\x8c\x9c\xac\xbc\xcc\xdc\xec]|\xfc[\x80-\xff]*[\x00-\x7f])\x18"
)


def _texts_at(footer: bytes, place: int, size: bytes) -> dict[str, str] | None:
    count = size[0] >> 4 if len(size) == 1 else _varint(size, 1)[0]
    texts: dict[str, str] = {}
    try:
        # Without a loop over the two strings, and without a call for each: a run has 100,000 such footers.
        for _ in range(count):
            length, begin = footer[place + 1], place + 2
            if length > 127:
                length, begin = _varint(footer, place + 1)
            middle = begin + length
            size_of_text, begin_of_text = footer[middle + 1], middle + 2
            if size_of_text > 127:
                size_of_text, begin_of_text = _varint(footer, middle + 1)
            end = begin_of_text + size_of_text
            # Strings, and the end of the structure; where a length lies, these are elsewhere, or past the footer's end.
            if footer[place] != 0x18 or footer[middle] != 0x18 or footer[end]:
                return None
            texts[footer[begin:middle].decode()] = footer[begin_of_text:end].decode()
            place = end + 1
    except (IndexError, UnicodeDecodeError):
        return None
    return texts


def _varint(content: bytes, place: int) -> tuple[int, int]:
    """Returns a number of Thrift's, and where it ends."""
    value, shift = 0, 0
    while True:
        byte = content[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place


def _ends(handle: int, size: int) -> tuple[bytes, bytes]:
    """Returns a Parquet file's first four bytes with the hex digits of where its footer starts, and that footer.

    Args:
        handle: the open file.
        size: in bytes.
    """
    tail = min(size, _TAIL)
    end = os.pread(handle, tail, size - tail)
    footer = int.from_bytes(end[-8:-4], "little") + 8
    if footer > size:
        return b"", b""
    magic = end[:4] if tail == size else os.pread(handle, 4, 0)
    if footer > tail:
        end = os.pread(handle, footer, size - footer)
    return magic + b"%0*x" % (_DIGITS, size - footer), end[-footer:]


class _Source:
    """An open part.

    Attributes:
        size: in bytes.
        key: what tells whether it has changed: file, inode, size and time.
    """

    def __init__(self, path: Path) -> None:
        self._handle = -1  # for `__del__`, where the next line raises
        self._handle = os.open(mirror.local(path), os.O_RDONLY)
        facts = os.fstat(self._handle)
        self.size = facts.st_size
        self.key = (os.fspath(path), facts.st_ino, facts.st_size, facts.st_mtime_ns)

    def __del__(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)

    def read_into(self, target: memoryview, start: int) -> None:
        """Fills `target` with the bytes from `start` on.

        Raises:
            EOFError: there are not as many.
            OSError: the disk does not give them.
        """
        done = 0
        while done < len(target):
            got = os.preadv(self._handle, [target[done:]], start + done)
            if not got:
                raise EOFError
            done += got

    def read(self, start: int, stop: int) -> bytes:
        """Returns some bytes; raises as `read_into` does."""
        target = bytearray(max(0, stop - start))
        self.read_into(memoryview(target), start)
        return bytes(target)

    def digest(self, stop: int) -> str:
        """Returns the xxh3-64 of all bytes before `stop`, in memory of a few MiB; raises as `read_into` does."""
        total = xxhash.xxh3_64()
        piece = memoryview(bytearray(min(max(0, stop), _PIECE)))
        for start in range(0, stop, _PIECE):
            here = piece[: min(_PIECE, stop - start)]
            self.read_into(here, start)
            total.update(here)
        return total.hexdigest()


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
    return _digest(bytes(content[:4]), bytes(content[_footer_start(content) :]), seal)


def _digest(magic: bytes, footer: bytes, seal: str) -> str:
    before, found, after = footer.partition(seal[:-_DIGITS].encode())
    return xxhash.xxh3_64_hexdigest(b"".join((magic, before, found, after[_DIGITS:])))


def _column_digest(content: memoryview, metadata: pq.FileMetaData, leaf: int) -> str:
    total = xxhash.xxh3_64()
    for start, stop in _column_ranges(metadata, leaf):
        total.update(content[start:stop])
    return total.hexdigest()


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


def seal_array(file: Path, path: Path, rows: int, uids: str) -> None:
    """Writes the seal behind an array that was written through a memory map.

    Args:
        file: the array, still under a temporary name.
        path: of the file to be.
        rows, uids: see `Owner`.
    """
    with open(file, "r+b") as handle:
        trailer = array_trailer(path, iter(lambda: handle.read(_PIECE), b""), rows, uids)
        handle.seek(0, os.SEEK_END)
        handle.write(trailer)


def check_array(path: Path, owner: Owner | None) -> bool:
    """Checks the seal of a `.npy` file; returns whether it has one. A process hashes a file once until it changes.

    It is read for that, not mapped: see `SealedParquet`.

    Raises:
        DamageError: its bytes are not those that were written, or it is not its owner's.
        RunError: the disk does not give its bytes.
        FileNotFoundError: it is not there.
    """
    source = _Source(path)
    try:
        said = _said_of_array(path, source)
    except OSError as error:
        raise denied(path, error) or damaged(path, f"it cannot be read ({_short(error)})") from error
    except EOFError as error:
        raise damaged(path, "it became shorter while it was read") from error
    if said is None:
        return False
    check_binding(path, said if isinstance(said, dict) else {}, owner)
    return True


def _said_of_array(path: Path, source: _Source) -> Any:
    """Returns what the seal of an array says, after a look whether it is whole; None where there is no seal."""
    end = source.size - len(_TRAILER)
    words = end - _DIGITS - 8
    tail = source.read(max(0, words), source.size)
    if not tail.endswith(_TRAILER) or len(tail) != len(_TRAILER) + _DIGITS + 8:
        return None
    try:
        said = json.loads(source.read(max(0, words - int(tail[:8], 16)), words))
    except ValueError as error:
        raise damaged(path, "its seal cannot be read") from error
    if source.key not in _whole:
        if source.digest(end - _DIGITS).encode() != tail[8 : 8 + _DIGITS]:
            raise damaged(path, "its bytes are not those that were written")
        _whole.add(source.key)
    return said if said is not None else {}


def _short(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
