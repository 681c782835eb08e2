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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from tamis.arrays import U64
from tamis.errors import DamageError
from tamis.store import packs
from tamis.store.atomic import denied

_SEAL = b"tamis.seal"
_DIGITS = 16  # hex digits of a 64-bit hash

_TAIL = 16 << 10  # bytes that hold the footers of most parts

_PIECE = 4 << 20  # bytes read and hashed at once

#: Where the words of a `.npy` seal end.
_TRAILER = b"tamis.seal.1\n"

#: Arrays that this process has found whole: file, place in it, inode, size and time.
_whole: set[tuple[Any, ...]] = set()


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
    if not path.exists() and path.parent.joinpath(packs.PACKED).is_dir():  # no file that one could delete
        do = "`tamis doctor RUN --repair` takes it out of its pack, `tamis score` makes it again"
    return DamageError(f"{path} is damaged, or not the file that belongs there: {what}; {do}", what)


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
            self._buffer = packs.opened(path, _mapped)
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


def sealed_texts(path: Path) -> dict[str, str] | None:
    """Returns the texts of a sealed footer, and reads nothing else: several times as fast as `SealedParquet`.

    Returns:
        None where there is no seal, or the footer is not as it was written: `SealedParquet` then says more.

    Raises:
        FileNotFoundError: the part is not there.
        OSError: it cannot be read.
    """
    return _texts_of(*packs.opened(path, _magic_and_footer))


def sealed_texts_of_file(file: str) -> dict[str, str] | None:
    """Returns what `sealed_texts` does, of a part that is a file of its own: for who looks at very many of them.

    Args:
        file: its path; a string, since a `Path` for each of many files costs as much as reading them.

    Raises:
        FileNotFoundError: there is no such file; the part may lie in a pack.
        OSError: it cannot be read.
    """
    handle = os.open(file, os.O_RDONLY)
    try:
        return _texts_of(*_ends(handle, 0, os.lseek(handle, 0, os.SEEK_END)))
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
        for _ in range(count):
            words = []
            for _ in ("key", "value"):
                kind, length, begin = footer[place], footer[place + 1], place + 2
                if length > 127:
                    length, begin = _varint(footer, place + 1)
                if kind != 0x18:  # not a string
                    return None
                place = begin + length
                words.append(footer[begin:place].decode())
            if footer[place]:  # not the end of a structure; or, where a length lies, past that of the footer
                return None
            place += 1
            texts[words[0]] = words[1]
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


def _magic_and_footer(place: packs.Place) -> tuple[bytes, bytes]:
    handle = os.open(place.file, os.O_RDONLY)
    try:
        return _ends(handle, place.begin, place.size)
    finally:
        os.close(handle)


def _ends(handle: int, begin: int, size: int) -> tuple[bytes, bytes]:
    """Returns a Parquet file's first four bytes with the hex digits of where its footer starts, and that footer.

    Args:
        handle: an open file.
        begin, size: where the Parquet file lies in it.
    """
    tail = min(size, _TAIL)
    end = os.pread(handle, tail, begin + size - tail)
    footer = int.from_bytes(end[-8:-4], "little") + 8
    if footer > size:
        return b"", b""
    magic = end[:4] if tail == size else os.pread(handle, 4, begin)
    if footer > tail:
        end = os.pread(handle, footer, begin + size - footer)
    return magic + b"%0*x" % (_DIGITS, size - footer), end[-footer:]


def _mapped(place: packs.Place) -> pa.Buffer:
    with pa.memory_map(os.fspath(place.file)) as source:
        return source.read_buffer().slice(place.begin, place.size)


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

    Raises:
        DamageError: its bytes are not those that were written, or it is not its owner's.
    """
    place, content, key = packs.opened(path, _mapped_array)
    end = place.size - len(_TRAILER)
    tail = content[max(0, end - _DIGITS - 8) :].tobytes()
    if not tail.endswith(_TRAILER) or len(tail) != len(_TRAILER) + _DIGITS + 8:
        return False
    try:
        size = int(tail[:8], 16)
        said = json.loads(content[max(0, end - _DIGITS - 8 - size) : end - _DIGITS - 8].tobytes())
    except ValueError as error:
        raise damaged(path, "its seal cannot be read") from error
    if key not in _whole:
        if xxhash.xxh3_64_hexdigest(content[: end - _DIGITS].data).encode() != tail[8 : 8 + _DIGITS]:
            raise damaged(path, "its bytes are not those that were written")
        _whole.add(key)
    check_binding(path, said if isinstance(said, dict) else {}, owner)
    return True


def _mapped_array(place: packs.Place) -> tuple[packs.Place, NDArray[np.uint8], tuple[Any, ...]]:
    with open(place.file, "rb") as file:
        facts = os.fstat(file.fileno())
        key = (os.fspath(place.file), place.begin, facts.st_ino, facts.st_size, facts.st_mtime_ns)
        if not place.size:  # nothing to map
            return place, np.empty(0, np.uint8), key
        return place, np.memmap(file, np.uint8, "r", place.begin, (place.size,)), key


def _short(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]
