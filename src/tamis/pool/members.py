"""The members of a tar, front to back, in bounded memory and time whatever its headers claim.

Headers are parsed one by one by `tarfile.TarInfo.frombuf`; what stands around that call is ours. `tarfile.open` reads a
long name or a pax header of any size into memory, calls itself for each header that stands before a member, and walks
a size of 2^62 bytes block by block though the file has ended.
"""

from __future__ import annotations

import bz2
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from zlib import adler32

from tamis.pool.source import too_many_bytes
from tamis.remote import unreached

#: How compressed tars begin.
COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}

#: No long name and no pax header of a member has more bytes; real ones have some hundred.
MAX_HEADER = 1 << 20

#: No padding is longer, behind the end marker or between compressed streams; real padding has 10 KB.
_MAX_PADDING = 64 << 20

# What a compressed tar may unpack to: so many bytes whatever its size, and so many for each of its own. Tars of images
# unpack to about their size, tars of captions alone to some twenty times as much; a bomb of gzip to 1,000 times, of
# bzip2 to a million times, which takes hours to walk through.
_FREELY_UNPACKED = 256 << 20
_UNPACKED_PER_BYTE = 200

# The dictionary of `xz -9` takes 65 MB; the format allows 4 GiB.
_XZ_MEMORY = 256 << 20

_CHUNK = 1 << 20

_BLOCK = tarfile.BLOCKSIZE

# The header of a regular file as tarfile and GNU tar write it where its name fits: name, size and checksum. What is
# not exactly so (links, other ways of writing numbers, names in two pieces) is left to `tarfile`, which takes longer.
_USUAL = re.compile(
    rb"([^\0].{99})(?:[0-7]{7}[\0 ]){3}([0-7]{11})[\0 ][0-7]{11}[\0 ]([0-7]{6})\0 0.{100}(?:ustar\x0000|ustar  \0).{64}"
    rb"(?:[0-7]{7}[\0 ]|\0{8}){2}\0{155}.{12}",
    re.DOTALL,
)

# Headers that say more of the member behind them: long names, and pax records.
_LONG = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_PAX = (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE)


@dataclass(slots=True)
class File:
    """One regular member: where it lies and, where somebody wants them, its bytes.

    Attributes:
        data: None where nobody wants it, where it is cut off, and where it cannot be had, which `problem` says.
        problem: why a member that somebody wants has no bytes: what follows "the .jpg member"; "" where it has.
        too_large: whether it has none because it is larger than allowed.
    """

    name: str
    offset: int
    size: int
    data: bytes | None
    cut: bool = False
    problem: str = ""
    too_large: bool = False


@dataclass
class Ending:
    """Why a tar ended early; "" where it ended as it should.

    Attributes:
        cut: False where all members before the end are whole.
        unreached: whether it lies on a store that could not be read further; the tar itself may be whole.
    """

    error: str = ""
    cut: bool = True
    unreached: bool = False


class _Plain:
    """A tar that is not compressed: what nobody wants is passed over without being read."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._left = raw.seek(0, 2)
        raw.seek(0)

    def read(self, size: int) -> bytes:
        data: bytes = self._raw.read(min(size, self._left))
        self._left -= len(data)
        return data

    def skip(self, size: int) -> int:
        """Passes over so many bytes, fewer where the file ends before; returns how many."""
        size = min(size, self._left)
        self._left -= size
        self._raw.seek(size, 1)
        return size


class _Unpacked:
    """Reads a compressed stream, however many streams were put together in it, within bounded memory.

    tarfile's own reader stops after the first of several gzip streams (pigz, `cat`), and unpacks whole blocks: 1 MB of
    gzip can be 1 GB of zeros. What was unpacked before the data turned out to be damaged is handed out first.
    """

    def __init__(self, raw: Any, fresh: Callable[[], Any]) -> None:
        self._raw, self._fresh = raw, fresh
        self._stream = fresh()
        self._pending = b""
        self._taken = self._given = self._padding = 0  # bytes read, unpacked, and passed over between streams

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        left = size
        while left:
            if not self._pending and (self._stream.eof or getattr(self._stream, "needs_input", True)):
                self._pending = self._raw.read(1 << 16)
                self._taken += len(self._pending)
                if not self._pending and self._stream.eof:
                    break
            if self._stream.eof and not self._next_stream():
                continue
            stream, given = self._stream, self._pending
            try:
                part = stream.decompress(given, min(left, 1 << 16))
            except (zlib.error, lzma.LZMAError, OSError) as error:
                if parts:
                    break  # the same error comes at the next call
                raise tarfile.ReadError(f"the compressed data are damaged: {error}") from error
            # zlib hands back what it did not take; the others keep it.
            self._pending = stream.unused_data if stream.eof else getattr(stream, "unconsumed_tail", b"")
            if not part and not given and not stream.eof:
                break  # the file ends in the middle
            parts.append(part)
            left -= len(part)
            self._given += len(part)
            if self._given > _FREELY_UNPACKED + _UNPACKED_PER_BYTE * self._taken:
                raise tarfile.ReadError(
                    f"it is a decompression bomb: the first {self._taken:,} bytes unpack to {self._given:,}"
                )
        return b"".join(parts)

    def skip(self, size: int) -> int:
        passed = 0
        while passed < size and (part := self.read(min(size - passed, _CHUNK))):
            passed += len(part)
        return passed

    def _next_stream(self) -> bool:
        """Passes over padding between and after streams; tells whether another stream begins."""
        self._padding += len(self._pending)
        self._pending = self._pending.lstrip(b"\0")
        self._padding -= len(self._pending)
        if self._padding > _MAX_PADDING:
            raise tarfile.ReadError(f"more than {_MAX_PADDING:,} zeros follow the compressed data")
        if self._pending:
            self._stream = self._fresh()
        return bool(self._pending)


_UNPACK: Mapping[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ": lambda: lzma.LZMADecompressor(memlimit=_XZ_MEMORY),
}


@dataclass(slots=True)
class _Header:
    """A regular member's header, with what stood before it."""

    name: str
    size: int
    sparse: bool


class _Tar:
    """The headers of a tar, and passing over what lies between them.

    Attributes:
        at: how many bytes of the (unpacked) tar have been read or passed over.
        error: why there are no more headers; "" where the tar has ended as it should.
    """

    def __init__(self, stream: _Plain | _Unpacked) -> None:
        self._stream = stream
        self.at = 0
        self.error = ""
        self._extended = False  # of the last header, where it is a sparse file's: its map goes on in further blocks

    def next_header(self) -> _Header | None:
        """Returns the header of the next regular member; None at the end of the tar, or where a header is damaged.

        Raises:
            ReadError: the file is no tar, ends in the middle, or a header is larger than allowed.
        """
        long_name: bytes | None = None
        pax: dict[str, bytes] = {}
        while True:
            block = self._exactly(_BLOCK)
            if long_name is None and not pax and (usual := _usual(block)) is not None:
                return usual
            if (info := self._header(block)) is None:
                break
            if info.type in _LONG:
                name = self._extra(info.size).split(b"\0", 1)[0]
                long_name = name if info.type == tarfile.GNUTYPE_LONGNAME else long_name
                continue
            if info.type in _PAX:
                records = _pax_records(self._extra(info.size))
                pax |= {} if info.type == tarfile.XGLTYPE else records  # what holds for all members names none of them
                continue
            size = info.size
            if "size" in pax:
                size = _whole_number(pax["size"])
            sparse = info.type == tarfile.GNUTYPE_SPARSE or any(key.startswith("GNU.sparse.") for key in pax)
            if info.type == tarfile.GNUTYPE_SPARSE:
                self._pass_sparse_blocks()
            if info.isreg():
                raw = pax.get("GNU.sparse.name", pax.get("path", b"").rstrip(b"/") or long_name)
                raw = info.name.encode("utf-8", "surrogateescape") if raw is None else raw
                return _Header(raw.decode("utf-8", "backslashreplace"), size, sparse)
            if info.type not in tarfile.SUPPORTED_TYPES:  # links, folders and devices have no bytes, whatever they say
                self.skip(size)
            long_name, pax = None, {}
        if (long_name is not None or pax) and not self.error:
            raise tarfile.ReadError("a long name or a pax header stands before no member")
        return None

    def read(self, size: int) -> bytes:
        """Returns the next bytes, which are a member's.

        Raises:
            ReadError: there are fewer.
        """
        data = self._exactly(size)
        self._check(size, len(data))
        self._pass_padding(size)
        return data

    def skip(self, size: int) -> None:
        """Passes over as many bytes, a member's. Raises as `read`."""
        passed = self._stream.skip(size)
        self.at += passed
        self._check(size, passed)
        self._pass_padding(size)

    def after_the_end(self) -> str:
        """Returns what is wrong with what follows the end marker; "" where that is padding."""
        passed = 0
        while block := self._stream.read(_CHUNK):
            if block.strip(b"\0"):
                return (
                    "something follows the tar's end marker, and was not read; tars put together with cat must be "
                    "put together with 'tar --concatenate', or be left as several shards"
                )
            passed += len(block)
            if passed > _MAX_PADDING:
                return f"more than {_MAX_PADDING:,} zeros follow the tar's end marker; what is behind them was not read"
        return ""

    def _header(self, block: bytes) -> tarfile.TarInfo | None:
        if len(block) == _BLOCK and not block.strip(b"\0"):
            return None
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
            if info.size < 0:
                raise tarfile.HeaderError("a size below zero")
            self._extended = bool(block[482])
        except tarfile.HeaderError as error:
            if self.at <= _BLOCK:
                raise tarfile.ReadError(f"its first header is none of a tar's: {error}") from error
            self.error = "the tar ends without its end marker: it was cut off, or a header is damaged"
            return None
        return info

    def _extra(self, size: int) -> bytes:
        if size > MAX_HEADER:
            raise tarfile.ReadError(f"a long name or a pax header has {too_many_bytes(size, MAX_HEADER)}")
        return self.read(size)

    def _pass_sparse_blocks(self) -> None:
        """Passes over what continues the map of a sparse file, in GNU's old format."""
        more, passed = self._extended, 0
        while more:
            block = self._exactly(_BLOCK)
            self._check(_BLOCK, len(block))
            more = bool(block[504])
            passed += _BLOCK
            if passed > MAX_HEADER:
                raise tarfile.ReadError(f"the map of a sparse file has {too_many_bytes(passed, MAX_HEADER)}")

    def _exactly(self, size: int) -> bytes:
        data = self._stream.read(size)
        if 0 < len(data) < size:  # what ended the stream there is told at the next call
            data += self._stream.read(size - len(data))
        self.at += len(data)
        return data

    def _check(self, size: int, found: int) -> None:
        if found < size:
            raise tarfile.ReadError(f"unexpected end of data: a header claims {size:,} bytes, {found:,} follow it")

    def _pass_padding(self, size: int) -> None:
        self.at += self._stream.skip(-size % _BLOCK)


def _usual(block: bytes) -> _Header | None:
    """Returns a regular member's header that is written as almost all are; None for any other block."""
    found = _USUAL.fullmatch(block)
    if found is None:
        return None
    name, size, checksum = found.groups()
    # The checksum is the sum of all bytes, its own eight taken for spaces. Adler-32 holds the sum of up to 256.
    total = (adler32(block[:148]) & 0xFFFF) + (adler32(block[156:330]) & 0xFFFF) + (adler32(block[330:]) & 0xFFFF)
    if total - 3 + 8 * 32 != int(checksum, 8):
        return None
    return _Header(name.partition(b"\0")[0].decode("utf-8", "backslashreplace"), int(size, 8), False)


def _pax_records(data: bytes) -> dict[str, bytes]:
    """Returns those records of a pax header ("LENGTH KEY=VALUE\\n") that say a member's name, size and sparseness."""
    found = {}
    at = 0
    while at < len(data) and data[at]:
        length, space, _ = data[at : at + 20].partition(b" ")
        stop = at + _whole_number(length) if space else 0
        key, sign, value = data[at + len(length) + 1 : max(stop - 1, 0)].partition(b"=")
        if not sign or stop > len(data):
            raise tarfile.ReadError("a pax header is damaged")
        if key in (b"path", b"size") or key.startswith(b"GNU.sparse."):
            found[key.decode("utf-8", "backslashreplace")] = value
        at = stop
    return found


def _whole_number(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 20:
        raise tarfile.ReadError("a pax header is damaged: a number was expected")
    return int(digits)


def walk(raw: Any, wanted: Mapping[str, int] | None, ended: Ending, only: set[int] | None = None) -> Iterator[File]:
    """Yields the regular members of a tar.

    Args:
        raw: an open file.
        wanted: extensions of which the bytes are wanted, and the most bytes to read of one; None: all of all.
        ended: is told why the tar ended early, before this returns.
        only: offsets of the members to yield; None: all.
    """
    head = raw.read(8)
    raw.seek(0)
    if not head:
        ended.error = "the file has no bytes"
        return
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        ended.error = "the tar is compressed with zstd, which Python's tarfile cannot read; unpack it or use gzip"
        return
    unpack = next((fresh for magic, fresh in _UNPACK.items() if head.startswith(magic)), None)
    tar = _Tar(_Unpacked(raw, unpack) if unpack else _Plain(raw))
    member: File | None = None
    try:
        while (header := tar.next_header()) is not None:
            if only is not None and tar.at not in only:
                tar.skip(header.size)
                continue
            member, reads = _member(header, tar.at, wanted)
            if reads:
                member.data = tar.read(header.size)
            else:
                tar.skip(header.size)
            yield member
            member = None
        ended.error = tar.error
        if not ended.error and only is None:
            ended.error = tar.after_the_end()
            ended.cut = not ended.error
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        ended.error = f"the tar cannot be read further: {str(error) or type(error).__name__}"
        ended.unreached = unreached(error)
        if member is not None and not ended.unreached:
            yield replace(member, data=None, cut=True)


def _member(header: _Header, offset: int, wanted: Mapping[str, int] | None) -> tuple[File, bool]:
    """Returns a member without its bytes, and whether they are to be read."""
    member = File(header.name, offset, header.size, None)
    limit = header.size
    if wanted is not None:  # everything after the first dot is the extension, as webdataset has it; or the last piece
        ext = header.name.rpartition("/")[2].partition(".")[2].lower()
        limit = wanted.get(ext, wanted.get(ext.rpartition(".")[2], -1))
    if limit < 0:
        return member, False
    if header.size > limit:
        member.problem, member.too_large = f"has {too_many_bytes(header.size, limit)}", True
        return member, False
    if header.sparse:
        member.problem = "is stored as a sparse file, whose bytes do not lie together"
        return member, False
    return member, True
