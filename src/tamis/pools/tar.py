"""WebDataset tars: consecutive members of one key are one sample.

A tar is read from the front. The index gets the byte range of each member, so that single samples can be read again.
"""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import itertools
import lzma
import re
import shlex
import sys
import tarfile
import threading
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, ClassVar, cast
from zlib import adler32

from tamis.core.errors import ScatteredError, ShardError, UnreachedError, nearest
from tamis.core.files.find import HIDDEN, is_remote, is_side_file, open_file, read_head, read_ranges
from tamis.core.files.remote import is_unreached
from tamis.core.types import Member, Sample
from tamis.pools.source import (
    MAX_TEXT_BYTES,
    PoolSpec,
    SampleFault,
    SampleFiles,
    SampleReader,
    Shard,
    own_texts,
    read_json,
    rows_of,
    too_many_bytes,
)

#: Most bytes of a long name or a pax header; real ones have a few hundred.
MAX_HEADER = 64 << 10

_HELD_BYTES, _MOST_MEMBERS = 256 << 20, 10_000  # limits for one sample
_MOST_SORTED = 200_000  # samples of a tar that are sorted: their headers take about 1 KB each

# A compressed tar may unpack to this many bytes, plus this many per compressed byte. Tars of captions unpack to about
# twenty times their size, a gzip bomb to 1,000 times.
_FREELY_UNPACKED, _UNPACKED_PER_BYTE = 256 << 20, 200
_XZ_MEMORY = 256 << 20  # `xz -9` needs 65 MB, the format allows 4 GiB
_MAX_PADDING = 64 << 20  # most zeros after the end marker; real padding has 10 KB
_CHUNK = 1 << 20
_MOST_LISTED = 20  # names in a message
_CUT = "the shard ends in the middle of this sample"

_XZ = b"\xfd7zXZ"
_OPENERS: Mapping[bytes, Callable[[Any], Any]] = {
    b"\x1f\x8b": lambda raw: gzip.GzipFile(fileobj=raw),
    b"BZh": bz2.BZ2File,
    _XZ: lzma.LZMAFile,
}
_ZSTD = b"\x28\xb5\x2f\xfd"

# The header of a regular file as tarfile and GNU tar write it where its name fits: name, size and checksum.
_USUAL = re.compile(
    rb"([^\0].{99})(?:[0-7]{7}[\0 ]){3}([0-7]{11})[\0 ][0-7]{11}[\0 ]([0-7]{6})\0 0.{100}(?:ustar\x0000|ustar  \0).{64}"
    rb"(?:[0-7]{7}[\0 ]|\0{8}){2}\0{155}.{12}",
    re.DOTALL,
)
_EXTENDED = frozenset((b"L", b"K", b"x", b"X", b"g"))  # long names and pax headers


@dataclass(frozen=True, kw_only=True)
class TarShard(Shard):
    """One WebDataset tar."""

    part: ClassVar[str] = "member"  # what messages call a file of a sample

    def is_compressed(self) -> bool:
        """Whether the tar is compressed, so that its members cannot be read by their byte ranges."""
        return read_head(self.url, 8).startswith((_ZSTD, *_OPENERS))

    def _samples(self) -> Iterator[Sample]:
        for key, files, cut in self._groups():
            for sample in self._rows(key, files):
                if cut and sample.status in ("image_missing", "caption_missing"):
                    sample.status, sample.reason = "shard_cut", _CUT
                yield sample

    def _groups(self) -> Iterator[_Group]:
        """Yields the samples of the tar. A sample's files should be neighbours. Of the first sample without image or
        caption the rest may come later: if the tar is local and not compressed, we look through all headers, and sort
        if it is so.

        Raises ScatteredError if files of a sample that was already yielded come later.
        """
        images, caption = [*map(str.lower, self.spec.image_extensions)], caption_ext(self.spec).partition(":")[0]
        limits = {ext: self.limit(ext) for ext in (*images, "txt", "json", caption)}
        self.left_out.clear()
        before: dict[str, tuple[str, ...]] = {}  # the extensions of each key
        same: dict[tuple[str, ...], tuple[str, ...]] = {}  # few different ones: each is held once
        looked = False
        for number, (key, group, cut) in enumerate(self._grouped(walk(self.url, limits, left_out=self.left_out))):
            if not looked and (caption not in group or group.keys().isdisjoint(images)):
                looked = True
                if not is_remote(self.url) and not self.is_compressed() and (rest := self._sorted(limits, number)):
                    yield from self._grouped(rest)
                    return
            exts = tuple(group)
            if group.keys().isdisjoint(earlier := before.setdefault(key, same.setdefault(exts, exts))):
                raise self._scattered(key, earlier, exts)
            yield key, group, cut

    def _sorted(self, limits: Mapping[str, int], done: int) -> Iterator[File] | None:
        """Returns the files of a local tar sample by sample, without the first `done`; None if they are in order."""
        groups: list[dict[str, File]] = []
        places: dict[str, list[int]] = {}
        ending: ShardError | None = None
        try:
            for number, (key, group, _) in enumerate(self._grouped(walk(self.url, limits, reads=False))):
                if number == _MOST_SORTED:
                    return None
                groups.append(group)
                some = places.setdefault(key, [])
                first = next((place for place in some if groups[place].keys().isdisjoint(group)), None)
                if first is None:
                    some.append(number)
                elif first < done:
                    raise self._scattered(key, groups[first], group)
                else:
                    groups[first] |= group
                    groups[number] = {}
        except _CutError as error:
            ending = error

        def files() -> Iterator[File]:
            with open(self.url, "rb") as raw:
                for file in itertools.chain.from_iterable(group.values() for group in groups[done:]):
                    data = None
                    if file.ext in limits and not (file.problem or file.cut):
                        raw.seek(file.offset)
                        data = raw.read(file.size)
                    yield replace(file, data=data)  # a copy: `groups` would keep all data
            if ending is not None:
                raise ending

        return files() if not all(groups) else None

    def _scattered(self, key: str, *exts: Iterable[str]) -> ScatteredError:
        found = ", and later ".join(", ".join(f".{ext[:20]}" for ext in itertools.islice(some, 5)) for some in exts)
        remedy = f"mkdir sorted; tar -xf {shlex.quote(self.url.rpartition('/')[2])} -C sorted; "
        remedy += "tar --sort=name -cf sorted.tar -C sorted ."
        return ScatteredError(
            f"{self.url}: files of a sample must be neighbours: {key[:200]!r} has {found}. Sort the tar: {remedy}"
        )

    def _grouped(self, files: Iterator[File]) -> Iterator[_Group]:
        """Joins neighbours of one key."""
        key, group, held = "", cast(dict[str, File], {}), 0
        try:
            for file in files:
                if group and (file.key != key or file.ext in group):
                    yield key, group, False
                    group, held = {}, 0
                key = file.key
                size = len(file.data or b"")
                if held and held + size > _HELD_BYTES:
                    file.problem = f"has, with the others of the sample, {too_many_bytes(held + size, _HELD_BYTES)}"
                    file.data, size = None, 0
                group[file.ext] = file
                held += size
                if len(group) > _MOST_MEMBERS:
                    raise _CutError(f"{self.url}: more than {_MOST_MEMBERS:,} members have the key {key[:200]!r}")
        except ShardError as error:
            if group and not isinstance(error, UnreachedError):  # if the store did not answer, the rest may be fine
                yield key, group, isinstance(error, _CutError)
            raise
        if group:
            yield key, group, False

    def _rows(self, key: str, files: dict[str, File], only: Sequence[str | None] = ()) -> Iterator[Sample]:
        sample = Sample(
            uid=(0, 0),
            key=key,
            members=tuple(Member(ext, file.offset, file.size) for ext, file in files.items() if file.offset >= 0),
        )
        if any(file.cut for file in files.values()):
            sample.mark("shard_cut", _CUT)
        image_ext = next((ext.lower() for ext in self.spec.image_extensions if ext.lower() in files), None)
        if image_ext is None:
            others = ", ".join(ext[:20] for ext in itertools.islice(files, 20)) or "none"
            dotted = any(ext.rpartition(".")[2] in self.spec.image_extensions for ext in files)
            hint = "; a key ends at the first dot of a file name, as in webdataset" if dotted else ""
            sample.mark("image_missing", f"no {self.part} is an image; the sample's {self.part}s: {others}{hint}")
        image = files[image_ext].data if image_ext is not None else None
        sample.image = image
        sample.image_bytes = files[image_ext].size if image_ext is not None else 0
        caption = caption_ext(self.spec)
        for ext, status in ((image_ext, ""), ("json", "json_broken"), (caption, "caption_missing")):
            if ext in files and (problem := files[ext].problem):
                status = files[ext].status if ext == image_ext else status
                sample.mark(status, f"the .{ext} {self.part} {problem}")
        meta = read_json(sample, files["json"].data if "json" in files else None)
        if caption.startswith("json:"):
            raw, where = meta.get(caption.removeprefix("json:")), f"json field {caption.removeprefix('json:')!r}"
        else:
            raw, where = (files[caption].data if caption in files else None), f".{caption} {self.part}"
        absent = None
        if raw is None and caption in files:
            absent = f"the .{caption} {self.part} {files[caption].problem}"
        elif raw is None:
            absent = _absent(caption, self.part, _names(files), _names(meta))
        return rows_of(sample, raw, where, meta, self.spec, image=image, absent=absent, only=only)

    def image_member(self, members: Sequence[Member]) -> Member | None:
        by_ext = {member.ext: member for member in reversed(members)}
        return next((by_ext[ext.lower()] for ext in self.spec.image_extensions if ext.lower() in by_ext), None)

    def text_members(self, members: Sequence[Member]) -> Sequence[Member]:
        wanted = ("json", caption_ext(self.spec))
        return [member for member in members if member.ext in wanted and member.size <= self.limit(member.ext)]

    def reader(self, *, whole: bool, keep_open: bool) -> SampleReader:
        return _Through(self) if self.is_compressed() else _Ranges(self, keep_open)

    def assemble(
        self, members: Sequence[Member], data: Sequence[bytes | SampleFault], caption: str | None
    ) -> SampleFiles | SampleFault:
        """Returns the sample whose members were read again, or the problem of the first unreadable one."""
        parts, files = cast(dict[str, bytes], {}), cast(dict[str, File], {})
        for member, one in zip(members, data, strict=True):
            if isinstance(one, SampleFault):
                return one
            parts[member.ext] = one
            known = one if member.size <= self.limit(member.ext) else None
            files[member.ext] = File("", member.ext, member.offset, member.size, known)
        sample, ext = next(self._rows("", files, [caption])), caption_ext(self.spec)
        own_texts(parts, sample, self.spec, "txt" if ext.startswith("json:") else ext)
        return SampleFiles(sample, parts)

    def limit(self, ext: str) -> int:
        """Returns the most bytes to read of a member."""
        text = ext in ("txt", "json", caption_ext(self.spec))
        return min(self.spec.max_bytes, MAX_TEXT_BYTES) if text else self.spec.max_bytes


def caption_ext(spec: PoolSpec) -> str:
    """Returns the caption's extension in lower case, or "json:FIELD"."""
    caption = spec.caption or "txt"
    return caption if caption.startswith("json:") else caption.lower()


@functools.lru_cache(256)  # the samples of a pool mostly have the same members and fields
def _absent(caption: str, part: str, members: tuple[str, ...], fields: tuple[str, ...]) -> str:
    """Returns why a sample has no caption: the name asked for, the nearest one, and all that it has."""
    name = caption.removeprefix("json:")
    what = f"no .{caption} {part}" if name == caption else f"no text in the json field {name!r}"
    present = [*(member for member in members if member != "json"), *(f"json:{field}" for field in fields)]
    return f"there is {what}{nearest(caption, present)}; the sample has: {', '.join(present[:_MOST_LISTED])}"


def _names(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(name[:60] for name in itertools.islice(found, 100))


# ---- members ---------------------------------------------------------------------------------------------------------


class _CutError(ShardError):
    """The tar ends, or cannot be read further, in the middle."""


@dataclass(slots=True)
class File:
    """One regular member, its name split at the first dot of the file name as webdataset does.

    `data` is None if it is not wanted, is cut off, or has a problem ("has 9 bytes, more than ..."). `status` is the
    sample's if this is its image and has a problem. `offset` is -1 for a link, which has no bytes in the tar.
    """

    key: str
    ext: str
    offset: int
    size: int
    data: bytes | None = None
    cut: bool = False
    problem: str = ""
    status: str = "image_too_large"


#: The key and the files of a sample, and whether the tar ends inside it.
_Group = tuple[str, dict[str, File], bool]


class _Info(tarfile.TarInfo):
    """`tarfile`'s header, with a limit on long names, and a quicker way to read the usual header of a file."""

    @classmethod
    def fromtarfile(cls, tarfile_: Any) -> _Info:
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:  # `tarfile` would treat it as the end of the archive
            if tarfile_.fileobj.tell() <= tarfile.BLOCKSIZE:
                raise tarfile.ReadError(f"this is not a tar file ({error})") from error
            raise tarfile.ReadError("the tar ends without its end marker: cut off, or a damaged header") from error

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> _Info:
        if (usual := _USUAL.fullmatch(buf)) is not None:
            name, size, checksum = usual.groups()
            # The checksum is the sum of all bytes, with spaces for its own eight. The low half of Adler-32 is one plus
            # the sum of up to 256 bytes, and is faster than `sum`.
            total = sum(adler32(part) & 0xFFFF for part in (buf[:148], buf[156:330], buf[330:]))
            if total - 3 + 8 * 32 == int(checksum, 8):
                info = cls(name.partition(b"\0")[0].decode(encoding, errors))
                info.size = int(size, 8)
                return info
        info = super().frombuf(buf, encoding, errors)
        if info.size < 0:
            raise tarfile.HeaderError("a size below zero")
        if info.type in _EXTENDED and info.size > MAX_HEADER:
            raise tarfile.ReadError(f"a long name or a pax header has {too_many_bytes(info.size, MAX_HEADER)}")
        return info

    def _sparse(self, *_: Any) -> Any:
        raise tarfile.ReadError("a member is stored as a sparse file, whose bytes are not in one place")

    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _sparse


class _Unpacked:
    """Reads a compressed tar forwards; raises if it is a decompression bomb."""

    def __init__(self, raw: BinaryIO, open_stream: Callable[[Any], Any]) -> None:
        self._raw, self._stream, self._at = raw, open_stream(raw), 0

    def read(self, size: int) -> bytes:
        parts = []
        while size > 0 and (part := self._stream.read(min(size, _CHUNK))):
            parts.append(part)
            size -= len(part)
            self._at += len(part)
            if self._at > _FREELY_UNPACKED + _UNPACKED_PER_BYTE * (taken := self._raw.tell()):
                raise tarfile.ReadError(f"a decompression bomb: its first {taken:,} bytes unpack to {self._at:,}")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int) -> None:
        while self._at < offset and self.read(min(offset - self._at, _CHUNK)):
            pass


def walk(
    url: str,
    limits: Mapping[str, int] | None,
    only: set[int] | None = None,
    *,
    reads: bool = True,
    left_out: Counter[str] | None = None,
) -> Generator[File, None, None]:
    """Yields the regular members of a tar, or `only` the ones at these offsets; raises a `ShardError` if it ends early.

    `limits`: the most bytes to read of a member, by extension; others are not read. None: read every member whole.
    `reads`: False reads headers alone. `left_out` counts what is no file of the pool.
    """
    member: File | None = None
    problem = ""
    try:
        with open_file(url) as raw:
            stream, end = _unpack(raw)
            tar = tarfile.TarFile(fileobj=stream, tarinfo=_Info, encoding="utf-8", errors="backslashreplace")
            while (info := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep every header in memory
                if tar.offset < info.offset_data:
                    raise tarfile.ReadError("a member's size is below zero")
                # Folders, devices and a Mac's side files are no files of the pool; a link is named, without bytes.
                links = info.islnk() or info.issym()
                if not (info.isreg() or links) or (only is not None and info.offset_data not in only):
                    continue
                if limits is not None and is_side_file(info.name):
                    if left_out is not None:
                        left_out[HIDDEN] += 1
                    continue
                if links:
                    link = _link(info)
                    if limits is not None and link.ext in limits:
                        yield link
                    continue
                # A member is read, or skipped up to its end, to know that the file goes on so far.
                member = _member(info, limits)
                if reads and not member.problem and (limits is None or member.ext in limits):
                    member.data = stream.read(info.size)
                    found = len(member.data)
                elif end is None:
                    stream.seek(info.offset_data + info.size)
                    found = stream.tell() - info.offset_data
                else:
                    found = end - info.offset_data
                if found < info.size:
                    raise tarfile.ReadError(f"unexpected end of data: {info.size:,} bytes claimed, {found:,} follow")
                yield member
                member = None
            if only is None:
                problem = _after_the_end(stream)
    except Exception as error:  # whatever a library or a remote store raises
        if is_unreached(error):
            raise UnreachedError(f"{url}: cannot be read further: {error}") from error
        if member is not None:
            member.data, member.cut = None, True
            yield member
        what = str(error) if isinstance(error, tarfile.TarError) else f"cannot be read further: {error!r}"
        raise _CutError(f"{url}: {what}") from error
    if problem:
        raise ShardError(f"{url}: {problem}")


def _unpack(raw: BinaryIO) -> tuple[Any, int | None]:
    """Returns a stream of the unpacked tar, and its size if it is not compressed."""
    head = raw.read(4096)
    raw.seek(0)
    if not head:
        raise tarfile.ReadError("the file has no bytes")
    if head.startswith(_ZSTD):
        raise tarfile.ReadError("the tar is compressed with zstd, which cannot be read here; unpack it or use gzip")
    for magic, open_stream in _OPENERS.items():
        if head.startswith(magic):
            if magic == _XZ:  # LZMAFile has no limit on memory; this raises if the header asks for more
                lzma.LZMADecompressor(memlimit=_XZ_MEMORY).decompress(head, 1)
            return _Unpacked(raw, open_stream), None
    end = raw.seek(0, 2)
    raw.seek(0)
    return raw, end


def _member(info: tarfile.TarInfo, limits: Mapping[str, int] | None) -> File:
    """Returns a member without its bytes."""
    folder, slash, base = info.name.rpartition("/")
    stem, _, ext = base.partition(".")
    member = File(folder + slash + stem, ext.lower(), info.offset_data, info.size)
    if limits is not None and info.size > (limit := limits.get(member.ext, info.size)):
        member.problem = f"has {too_many_bytes(info.size, limit)}"
    return member


def _link(info: tarfile.TarInfo) -> File:
    """Returns a link, whose problem names it: webdataset does not follow links, nor do we."""
    link = _member(info, None)
    link.offset, link.size, link.status = -1, 0, "image_missing"
    link.problem = f"is a link to {info.linkname[:200]!r}, without bytes of its own; "
    link.problem += "make the tar with 'tar --dereference --hard-dereference'"
    return link


def _after_the_end(stream: Any) -> str:
    """Returns what is wrong after the end marker; "" if only padding follows."""
    passed = 0
    with suppress(EOFError):  # an xz file may be padded
        while block := stream.read(_CHUNK):
            if block.count(0) != len(block):
                return "data after the end of the archive was ignored: join tars with 'tar --concatenate', not cat"
            passed += len(block)
            if passed > _MAX_PADDING:
                return f"more than {_MAX_PADDING:,} zeros after the end of the archive; data after them was ignored"
    return ""


# ---- reading again ---------------------------------------------------------------------------------------------------


class _Ranges:
    """A plain tar, read by the byte ranges of its members."""

    sequential = False

    def __init__(self, shard: TarShard, keep_open: bool) -> None:
        self._shard = shard
        self._file: io.RawIOBase | None = None
        if keep_open and not is_remote(shard.url):
            self._file = open(shard.url, "rb", buffering=0)  # noqa: SIM115  # `close` does

    def read(
        self, rows: Sequence[int], members: Sequence[Sequence[Member]], captions: Sequence[str | None]
    ) -> list[SampleFiles | SampleFault]:
        ranges = [(member.offset, member.size) for some in members for member in some]
        data = read_ranges(self._shard.url, ranges, self._file)
        following = (SampleFault("cut", str(one)) if isinstance(one, OSError) else one for one in data)
        return [
            self._shard.assemble(some, [next(following) for _ in some], caption)
            for some, caption in zip(members, captions, strict=True)
        ]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Through:
    """A compressed tar, read from the front: to reach a member, everything before it is unpacked."""

    sequential = True

    def __init__(self, shard: TarShard) -> None:
        self._shard, self._lock = shard, threading.Lock()
        self._walk: Generator[File, None, None] | None = None
        self._only: set[int] = set()
        self._passed = -1  # offset of the last member that was read
        self._end = sys.maxsize  # nothing can be read from this offset on
        self._problem = SampleFault("cut", "")  # why
        self._last: dict[int, bytes] = {}  # members of the last row, by offset

    def read(
        self, rows: Sequence[int], members: Sequence[Sequence[Member]], captions: Sequence[str | None]
    ) -> list[SampleFiles | SampleFault]:
        with self._lock:
            wanted = {member.offset for some in members for member in some if member.offset < self._end}
            data = {offset: self._last[offset] for offset in wanted & set(self._last)}
            data |= self._fetch(wanted - set(data))
            last = {member.offset for member in members[-1]}  # the next row may be another caption of this sample
            self._last = {offset: one for offset, one in data.items() if offset in last}
        return [
            self._shard.assemble(some, [data.get(member.offset, self._problem) for member in some], caption)
            for some, caption in zip(members, captions, strict=True)
        ]

    def close(self) -> None:
        if self._walk is not None:
            self._walk.close()
        self._walk = None

    def _fetch(self, wanted: set[int]) -> dict[int, bytes]:
        url, found = self._shard.url, cast(dict[int, bytes], {})
        if wanted and (self._walk is None or min(wanted) <= self._passed):
            self.close()
            self._only, self._passed = set(), -1
            self._walk = walk(url, None, self._only)
        self._only.clear()
        self._only |= wanted  # `_walk` looks at it for each member
        problem = SampleFault("changed", f"{url} has changed: a member of the index is not in it")
        while self._walk is not None and len(found) < len(wanted):
            try:
                file = next(self._walk, None)
            except ShardError as error:
                file, problem = None, SampleFault("cut", str(error))
            if file is None:
                self._end, self._problem = min(wanted - set(found)), problem
                self.close()
            elif file.data is not None:  # a member that is cut off has no data: the error comes next
                found[file.offset] = file.data
                self._passed = file.offset
        return found
