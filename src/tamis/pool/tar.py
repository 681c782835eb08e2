"""WebDataset tars: consecutive files of one key are one sample.

Read front to back in one pass, compressed or not, with the byte range of every member noted, so that later
readers (export, report) fetch single samples without reading the rest.
"""

from __future__ import annotations

import bz2
import logging
import lzma
import tarfile
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Self, cast

from tamis.data import Member, Sample
from tamis.errors import ShardError, nearest
from tamis.pool.files import RangeError, RangeFile, open_file, read_head, read_ranges, stamp
from tamis.pool.source import (
    MAX_TEXT_BYTES,
    PoolSpec,
    Problem,
    ShardReader,
    read_json,
    set_caption,
    set_identity,
    too_many_bytes,
)

log = logging.getLogger(__name__)

_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}

# As many members as a group may have before its dotted names must be understood.
_LOOKAHEAD = 64

# A shard of fewer samples may well have none with the caption asked for.
_ENOUGH_TO_JUDGE = 20


class _Info(tarfile.TarInfo):
    """A header reader that remembers how the archive ended: tarfile itself takes most cuts for a normal end."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:  # the name is the parent's
        try:
            return super().fromtarfile(tarfile)
        except Exception as error:
            tarfile.ended_by = type(error).__name__  # type: ignore[attr-defined]
            raise


@dataclass(frozen=True)
class _File:
    """One regular member: where it lies and, where somebody wants them, its bytes.

    Attributes:
        data: None where nobody wants it, where it is cut off, and where it is larger than `limit`.
        limit: the most bytes that would have been read; 0 where it was not exceeded.
    """

    name: str
    offset: int
    size: int
    data: bytes | None
    cut: bool = False
    limit: int = 0


@dataclass(frozen=True, kw_only=True)
class TarShard:
    """One WebDataset tar."""

    name: str
    url: str
    spec: PoolSpec

    def stamp(self) -> str:
        return stamp(self.url)

    def compression(self) -> str | None:
        """Returns "gzip", "bzip2", "xz", "zstd", or None for a plain tar."""
        head = read_head(self.url, 8)
        return next((name for magic, name in _COMPRESSIONS.items() if head.startswith(magic)), None)

    def samples(self) -> Iterator[Sample]:
        seen: set[str] = set()
        ended = _Ending()
        known = _known_extensions(self.spec)
        fields: set[str] = set()
        captions = 0
        for key, files in _groups(self._members(known, ended), known):
            sample = self._sample(key, files, fields)
            captions += sample.shown_caption is not None
            if ended.error and ended.cut and sample.status in ("image_missing", "caption_missing"):
                sample.status, sample.reason = "shard_cut", "the shard ends in the middle of this sample"
            if key in seen:
                sample.mark("duplicate_key", f"an earlier sample of this shard has the key {key!r} too")
            seen.add(key)
            yield sample
        if self.spec.caption and not captions and len(seen) >= _ENOUGH_TO_JUDGE:
            self._warn_of_captions(len(seen), fields)
        if ended.error:
            raise ShardError(f"{self.url}: {ended.error}; {len(seen):,} keys before that were read")

    def _warn_of_captions(self, samples: int, found: set[str]) -> None:
        asked = _caption(self.spec)
        what, listed = "json field" if asked.startswith("json:") else "member", sorted(found)
        name = asked.removeprefix("json:")
        log.warning(
            "%s: none of its %s samples has the caption asked for, the %s %r%s; the %ss that they have: %s",
            *(self.url, f"{samples:,}", what, name, nearest(name, listed), what, ", ".join(listed[:50]) or "none"),
        )

    def _sample(self, key: str, files: dict[str, _File], found: set[str]) -> Sample:
        """Returns a sample; adds to `found` what could have been the caption: fields of its json, or its members."""
        sample = Sample(
            uid=(0, 0), key=key, members=tuple(Member(ext, file.offset, file.size) for ext, file in files.items())
        )
        if any(file.cut for file in files.values()):
            sample.mark("shard_cut", "the shard ends in the middle of this sample")
        image_ext = next((ext.lower() for ext in self.spec.image_extensions if ext.lower() in files), None)
        if image_ext is None:
            others = ", ".join(files) or "none"
            sample.mark("image_missing", f"no member is an image; the sample's members: {others}")
        image = files[image_ext].data if image_ext else None
        sample.image = image
        sample.image_bytes = files[image_ext].size if image_ext else 0
        caption = _caption(self.spec)
        for ext, status in ((image_ext, "image_too_large"), ("json", "json_broken"), (caption, "caption_missing")):
            if ext in files and files[ext].limit:
                sample.mark(status, f"the .{ext} member has {too_many_bytes(files[ext].size, files[ext].limit)}")
        meta = read_json(sample, files["json"].data if "json" in files else None)
        raw: bytes | str | None
        if caption.startswith("json:"):
            field = caption.removeprefix("json:")
            value = meta.get(field)
            raw = value if isinstance(value, str) else None
            found.update(meta)
            where = f"text in the json field {field!r}"
        else:
            raw = files[caption].data if caption in files else None
            found.update(files)
            where = f".{caption} member"
        set_caption(sample, raw, where)
        raw_bytes = (sample.shown_caption or "").encode() if isinstance(raw, str) else raw
        set_identity(sample, meta, image, raw_bytes, self.spec.fields)
        return sample

    def _members(self, wanted: set[str], ended: _Ending) -> Iterator[_File]:
        try:
            with open_file(self.url) as raw:
                limits = dict.fromkeys(wanted, self.spec.max_bytes)
                for ext in ("txt", "json", _caption(self.spec)):
                    limits[ext] = min(self.spec.max_bytes, MAX_TEXT_BYTES)
                yield from _walk(raw, limits, ended)
        except OSError as error:
            ended.error = f"cannot be read: {error}"
        except Exception as error:  # remote file systems raise errors of their own making
            ended.error = f"cannot be read: {type(error).__name__}: {error}"

    def image_member(self, members: Sequence[Member]) -> Member | None:
        by_ext = {member.ext: member for member in reversed(members)}
        return next((by_ext[ext.lower()] for ext in self.spec.image_extensions if ext.lower() in by_ext), None)

    def holds(self, keys: Sequence[str], members: Sequence[Sequence[Member]]) -> bool:
        if self.compression() is not None:
            return True  # its headers cannot be reached without reading all of it
        where = [(key, part) for key, some in zip(keys, members, strict=True) for part in some]
        block = tarfile.BLOCKSIZE
        headers = read_ranges(self.url, [(part.offset - block, block) for _, part in where])
        return all(_is_header(data, *one) for data, one in zip(headers, where, strict=True))

    def reader(self, *, whole: bool, keep_open: bool) -> ShardReader:
        return _Ranges(self.url, keep_open) if self.compression() is None else _Through(self.url)


Parts = list[Mapping[str, bytes] | Problem]


class _Ranges:
    """A plain tar, read by the byte ranges of its members."""

    sequential = False

    def __init__(self, url: str, keep_open: bool) -> None:
        self._url = url
        self._file = RangeFile(url) if keep_open else None

    def read(self, rows: Sequence[int], members: Sequence[Sequence[Member]]) -> Parts:
        ranges = [(member.offset, member.size) for some in members for member in some]
        data: Sequence[bytes | OSError]
        try:
            data = self._file.read(ranges) if self._file is not None else read_ranges(self._url, ranges)
        except RangeError as error:
            data = error.parts
        left = iter(data)
        return [_together(some, [next(left) for _ in some]) for some in members]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Through:
    """A compressed tar, read from the front: nothing can be reached without reading what lies before it."""

    sequential = True

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._raw: BinaryIO | None = None
        self._walk: Iterator[_File] = iter(())
        self._only: set[int] = set()
        self._ended = _Ending()
        self._passed = -1  # offset of the last member that was read
        self._end: int | None = None  # offset from which on nothing can be read, once that is known
        self._problem = ""  # why

    def read(self, rows: Sequence[int], members: Sequence[Sequence[Member]]) -> Parts:
        with self._lock:
            data = self._fetch({member.offset for some in members for member in some})
        lost = OSError(f"{self._url}: {self._problem}")
        return [_together(some, [data.get(member.offset, lost) for member in some]) for some in members]

    def close(self) -> None:
        self._walk = iter(())
        if self._raw is not None:
            self._raw.close()
        self._raw = None

    def _fetch(self, offsets: set[int]) -> dict[int, bytes]:
        wanted = {offset for offset in offsets if self._end is None or offset < self._end}
        found: dict[int, bytes] = {}
        if wanted and (self._raw is None or min(wanted) <= self._passed):
            self._start()
        self._only.clear()
        self._only |= wanted  # the walk looks at it at each member
        while len(found) < len(wanted):
            file = next(self._walk, None)
            if file is None or file.data is None:  # the tar has ended, in the middle of a member or after one
                self._end = min(wanted - set(found))
                self._problem = self._ended.error or "a member of the index is not in the tar; has it changed?"
                self.close()
                break
            found[file.offset] = file.data
            self._passed = file.offset
        return found

    def _start(self) -> None:
        self.close()
        self._raw, self._ended, self._only, self._passed = open_file(self._url), _Ending(), set(), -1
        self._walk = _walk(self._raw, None, self._ended, only=self._only)


def _together(members: Sequence[Member], data: Sequence[bytes | OSError]) -> Mapping[str, bytes] | Problem:
    """Returns the files of a sample, or what is wrong with the first that could not be read."""
    files: dict[str, bytes] = {}
    for member, one in zip(members, data, strict=True):
        if isinstance(one, OSError):
            return Problem("cut", str(one))
        files[member.ext] = one
    return files


def _is_header(data: bytes, key: str, member: Member) -> bool:
    try:
        info = tarfile.TarInfo.frombuf(data, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    name = _shown(info.name).lower()
    wanted = f"{key}.{member.ext}".lower()
    # Long names stand in a record of their own and are cut off here; pax does so with names that are not ASCII too.
    same = len(info.name) >= 99 or name in (wanted, wanted.encode("ascii", "replace").decode())
    return same and info.size == member.size


@dataclass
class _Ending:
    """Why a tar ended early; "" where it ended as it should.

    Attributes:
        cut: False where all members before the end are whole.
    """

    error: str = ""
    cut: bool = True


class _Unpacked:
    """Reads a compressed stream, however many streams were put together in it, within bounded memory.

    tarfile's own reader stops after the first of several gzip streams (pigz, `cat`), and unpacks whole blocks: 1 MB of
    gzip can be 1 GB of zeros. What was unpacked before the data turned out to be damaged is handed out first.
    """

    def __init__(self, raw: Any, fresh: Callable[[], Any]) -> None:
        self._raw, self._fresh = raw, fresh
        self._stream = fresh()
        self._pending = b""

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        left = size
        while left:
            if not self._pending and (self._stream.eof or getattr(self._stream, "needs_input", True)):
                self._pending = self._raw.read(1 << 16)
                if not self._pending and self._stream.eof:
                    break
            if self._stream.eof:
                self._pending = self._pending.lstrip(b"\0")  # padding between and after streams
                if not self._pending:
                    continue
                self._stream = self._fresh()
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
        return b"".join(parts)


_UNPACK: Mapping[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ": lzma.LZMADecompressor,
}


def _walk(raw: Any, wanted: Mapping[str, int] | None, ended: _Ending, only: set[int] | None = None) -> Iterator[_File]:
    """Yields the regular members of a tar stream.

    Args:
        wanted: extensions of which the bytes are wanted, and the most bytes to read of one; None: all of all.
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
    info = None
    unread: _File | None = None  # a member whose bytes nobody wants is whole if something can be read after it
    try:
        stream: Any = _Unpacked(raw, unpack) if unpack else raw
        with tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20, tarinfo=_Info) as tar:
            for info in tar:
                tar.members = []  # type: ignore[attr-defined]  # else every header stays in memory
                if unread is not None:
                    yield unread
                    unread = None
                if not info.isreg() or (only is not None and info.offset_data not in only):
                    continue
                limit = info.size if wanted is None else wanted.get(_last_ext(info.name), -1)
                if info.size <= limit:
                    handle = tar.extractfile(info)
                    assert handle is not None  # only links have none
                    yield _File(_shown(info.name), info.offset_data, info.size, handle.read())
                else:
                    unread = _File(_shown(info.name), info.offset_data, info.size, None, limit=max(limit, 0))
                info = None
            if unread is not None:
                yield unread
                unread = None
            how = getattr(tar, "ended_by", "EmptyHeaderError")
            if how != "EOFHeaderError":
                ended.error = "the tar ends without its end marker: it was cut off, or a header is damaged"
            elif only is None and _has_more(tar.fileobj):
                ended.cut = False
                ended.error = (
                    "something follows the tar's end marker, and was not read; tars put together with cat must be "
                    "put together with 'tar --concatenate', or be left as several shards"
                )
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        if unread is not None:
            yield replace(unread, cut=True)
        elif info is not None and info.isreg():
            yield _File(_shown(info.name), info.offset_data, info.size, None, cut=True)
        what = str(error) or type(error).__name__
        ended.error = f"the tar cannot be read further: {what}"


def _has_more(stream: Any) -> bool:
    """Tells whether anything but padding is left."""
    while block := stream.read(1 << 20):
        if block.strip(b"\0"):
            return True
    return False


def _shown(name: str) -> str:
    """Returns a member's name with bytes that are not UTF-8 written as escapes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _last_ext(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _caption(spec: PoolSpec) -> str:
    """Returns the caption's extension as `_split` gives it, or "json:FIELD"."""
    caption = spec.caption or "txt"
    return caption if caption.startswith("json:") else caption.lower()


def _known_extensions(spec: PoolSpec) -> set[str]:
    caption = _caption(spec)
    images = (ext.lower() for ext in spec.image_extensions)
    return {*images, "json", "txt", *(() if caption.startswith("json:") else (caption,))}


def _split(name: str) -> tuple[str, str]:
    """Splits a path at the first dot of its file name, as webdataset does."""
    folder, slash, base = name.rpartition("/")
    stem, _, ext = base.partition(".")
    return folder + slash + stem, ext.lower()


def _groups(members: Iterator[_File], known: set[str]) -> Iterator[tuple[str, dict[str, _File]]]:
    """Groups consecutive members into samples.

    A name is split at the first dot of its last part, so "7.seg.png" is a further member of sample "7". Where a key
    itself has dots ("photo.v2.jpg", "photo.v2.txt"), that rule finds no plain extension at all; such names are
    split at the last dot instead. Pools by people who never heard of the rule then lose nothing.
    """
    buffer: list[_File] = []
    stem: str | None = None
    dotted = False
    for member in members:
        key, _ = _split(member.name)
        if key != stem:
            yield from _flush(buffer, known, dotted or None)
            buffer, stem, dotted = [], key, False
        elif dotted:
            if member.name.rpartition(".")[0] != buffer[0].name.rpartition(".")[0]:
                yield from _flush(buffer, known, True)
                buffer = []
        elif len(buffer) >= _LOOKAHEAD and not any(_split(file.name)[1] in known for file in buffer):
            *_, last = done = list(_flush(buffer, known, True))
            yield from done[:-1]
            buffer, dotted = list(last[1].values()), True
            if member.name.rpartition(".")[0] != buffer[0].name.rpartition(".")[0]:
                yield last
                buffer = []
        buffer.append(member)
    yield from _flush(buffer, known, dotted or None)


def _flush(files: list[_File], known: set[str], dotted: bool | None) -> Iterator[tuple[str, dict[str, _File]]]:
    if not files:
        return
    if dotted is None:
        dotted = not any(_split(file.name)[1] in known for file in files) and any(
            _last_ext(file.name) in known for file in files
        )
    key, group = "", cast(dict[str, _File], {})
    for file in files:
        if dotted:
            here, _, ext = file.name.rpartition(".")
            ext = ext.lower()
        else:
            here, ext = _split(file.name)
        if group and (here != key or ext in group):
            yield key, group
            group = {}
        key = here
        group[ext] = file
    yield key, group
