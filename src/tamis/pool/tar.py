"""WebDataset tars: consecutive files of one key are one sample.

Read front to back in one pass, compressed or not, with the byte range of every member noted, so that later
readers (export, report) fetch single samples without reading the rest.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO, cast

from tamis.data import Member, Sample
from tamis.errors import ShardError, UnreachedError, nearest
from tamis.pool.files import RangeError, RangeFile, open_file, read_head, read_ranges, stamp
from tamis.pool.members import COMPRESSIONS, Ending, File, walk
from tamis.pool.source import (
    MAX_TEXT_BYTES,
    PoolSpec,
    Problem,
    SampleFiles,
    ShardReader,
    bounded,
    read_json,
    set_caption,
    set_identity,
)
from tamis.remote import unreached

# As many members as a group may have before its dotted names must be understood.
_LOOKAHEAD = 64

# Bytes of members that are held until it is known which sample they make; and how many members a sample may have.
_HELD_BYTES = 256 << 20
_MOST_MEMBERS = 10_000

#: Names that a reason lists.
_MOST_LISTED = 20


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
        return next((name for magic, name in COMPRESSIONS.items() if head.startswith(magic)), None)

    def samples(self) -> Iterator[Sample]:
        return bounded(self._samples(), self.url)

    def _samples(self) -> Iterator[Sample]:
        seen: set[str] = set()
        ended = Ending()
        known = _known_extensions(self.spec)
        members = _Counted(known)
        for key, files in _grouped(self._members(known, ended), known):
            if ended.unreached:  # the rest of this sample may well be there
                break
            members.add(key, files, self.url)
            sample = self._sample(key, files)
            if ended.error and ended.cut and sample.status in ("image_missing", "caption_missing"):
                sample.status, sample.reason = "shard_cut", "the shard ends in the middle of this sample"
            if key in seen:
                sample.mark("duplicate_key", f"an earlier sample of this shard has the key {key[:200]!r} too")
            seen.add(key)
            yield sample
        if ended.error:
            kind = UnreachedError if ended.unreached else ShardError
            raise kind(f"{self.url}: {ended.error}; {len(seen):,} keys before that were read")

    def _sample(self, key: str, files: dict[str, File]) -> Sample:
        sample = Sample(
            uid=(0, 0), key=key, members=tuple(Member(ext, file.offset, file.size) for ext, file in files.items())
        )
        if any(file.cut for file in files.values()):
            sample.mark("shard_cut", "the shard ends in the middle of this sample")
        image_ext = next((ext.lower() for ext in self.spec.image_extensions if ext.lower() in files), None)
        if image_ext is None:
            others = ", ".join(ext[:20] for ext in itertools.islice(files, 20)) or "none"
            sample.mark("image_missing", f"no member is an image; the sample's members: {others}")
        image = files[image_ext].data if image_ext else None
        sample.image = image
        sample.image_bytes = files[image_ext].size if image_ext else 0
        caption = _caption(self.spec)
        for ext, status in ((image_ext, "image_too_large"), ("json", "json_broken"), (caption, "caption_missing")):
            if ext in files and (problem := files[ext].problem):
                status = "image_refused" if ext == image_ext and not files[ext].too_large else status
                sample.mark(status, f"the .{ext} member {problem}")
        meta = read_json(sample, files["json"].data if "json" in files else None)
        if caption.startswith("json:"):
            raw, where = meta.get(caption.removeprefix("json:")), f"json field {caption.removeprefix('json:')!r}"
        else:
            raw, where = (files[caption].data if caption in files else None), f".{caption} member"
        absent = None
        if raw is None:
            absent = _absent(caption, _names(files), _names(meta))
        set_caption(sample, raw, where, absent)
        raw_bytes = raw
        if not isinstance(raw, bytes):
            raw_bytes = None if sample.shown_caption is None else sample.shown_caption.encode()
        set_identity(sample, meta, image, raw_bytes, self.spec.fields)
        return sample

    def _members(self, wanted: set[str], ended: Ending) -> Iterator[File]:
        try:
            with open_file(self.url) as raw:
                exts = wanted | {"txt", "json", _caption(self.spec)}
                yield from walk(raw, {ext: self._limit(ext) for ext in exts}, ended)
        except OSError as error:
            ended.error = f"cannot be read: {error}"
            ended.unreached = unreached(error)
        except Exception as error:  # remote file systems raise errors of their own making
            ended.error = f"cannot be read: {type(error).__name__}: {error}"

    def image_member(self, members: Sequence[Member]) -> Member | None:
        by_ext = {member.ext: member for member in reversed(members)}
        return next((by_ext[ext.lower()] for ext in self.spec.image_extensions if ext.lower() in by_ext), None)

    def text_members(self, members: Sequence[Member]) -> Sequence[Member]:
        wanted = ("json", _caption(self.spec))
        return [member for member in members if member.ext in wanted and member.size <= self._limit(member.ext)]

    def reader(self, *, whole: bool, keep_open: bool) -> ShardReader:
        return _Ranges(self, keep_open) if self.compression() is None else _Through(self)

    def together(self, members: Sequence[Member], data: Sequence[bytes | Problem]) -> SampleFiles | Problem:
        """Returns a sample of members that were read again, or what is wrong with the first that could not be."""
        parts: dict[str, bytes] = {}
        files: dict[str, File] = {}
        for member, one in zip(members, data, strict=True):
            if isinstance(one, Problem):
                return one
            parts[member.ext] = one
            known = one if member.size <= self._limit(member.ext) else None
            files[member.ext] = File("", member.offset, member.size, known)
        return SampleFiles(self._sample("", files), parts)

    def _limit(self, ext: str) -> int:
        """Returns how many bytes of a member are read at most."""
        text = ext in ("txt", "json", _caption(self.spec))
        return min(self.spec.max_bytes, MAX_TEXT_BYTES) if text else self.spec.max_bytes


@functools.lru_cache(256)  # the samples of a pool mostly have the same members and fields
def _absent(caption: str, members: tuple[str, ...], fields: tuple[str, ...]) -> str:
    """Returns why a sample has no caption: what was asked for, what is most like it, and what there is."""
    name = caption.removeprefix("json:")
    what = f"no .{caption} member" if name == caption else f"no text in the json field {name!r}"
    present = [*(member for member in members if member != "json"), *(f"json:{field}" for field in fields)]
    if caption in present:
        return f"there is {what}"
    return f"there is {what}{nearest(caption, present)}; the sample has: {', '.join(present[:_MOST_LISTED])}"


def _names(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(name[:60] for name in itertools.islice(found, 100))


class _Ranges:
    """A plain tar, read by the byte ranges of its members."""

    sequential = False

    def __init__(self, shard: TarShard, keep_open: bool) -> None:
        self._shard, self._url = shard, shard.url
        self._file = RangeFile(shard.url) if keep_open else None

    def read(self, rows: Sequence[int], members: Sequence[Sequence[Member]]) -> list[SampleFiles | Problem]:
        ranges = [(member.offset, member.size) for some in members for member in some]
        data: Sequence[bytes | OSError]
        try:
            data = self._file.read(ranges) if self._file is not None else read_ranges(self._url, ranges)
        except RangeError as error:
            data = error.parts
        left = (Problem("cut", str(one)) if isinstance(one, OSError) else one for one in data)
        return [self._shard.together(some, [next(left) for _ in some]) for some in members]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class _Through:
    """A compressed tar, read from the front: nothing can be reached without reading what lies before it."""

    sequential = True

    def __init__(self, shard: TarShard) -> None:
        self._shard, self._url = shard, shard.url
        self._lock = threading.Lock()
        self._raw: BinaryIO | None = None
        self._walk: Iterator[File] = iter(())
        self._only: set[int] = set()
        self._ended = Ending()
        self._passed = -1  # offset of the last member that was read
        self._end: int | None = None  # offset from which on nothing can be read, once that is known
        self._problem = Problem("cut", "")  # why

    def read(self, rows: Sequence[int], members: Sequence[Sequence[Member]]) -> list[SampleFiles | Problem]:
        with self._lock:
            data = self._fetch({member.offset for some in members for member in some})
        return [
            self._shard.together(some, [data.get(member.offset, self._problem) for member in some]) for some in members
        ]

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
                self._problem = Problem("changed", f"{self._url} has changed: a member of the index is not in it")
                if self._ended.error:
                    self._problem = Problem("cut", f"{self._url}: {self._ended.error}")
                self.close()
                break
            found[file.offset] = file.data
            self._passed = file.offset
        return found

    def _start(self) -> None:
        self.close()
        self._raw, self._ended, self._only, self._passed = open_file(self._url), Ending(), set(), -1
        self._walk = walk(self._raw, None, self._ended, only=self._only)


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


class _Groups:
    """Groups consecutive members into samples.

    A name is split at the first dot of its last part, so "7.seg.png" is a further member of sample "7". Where a key
    itself has dots ("photo.v2.jpg", "photo.v2.txt"), that rule finds no plain extension at all; such names are
    split at the last dot instead. Pools by people who never heard of the rule then lose nothing.
    """

    def __init__(self, known: set[str]) -> None:
        self._known = known
        self._start("")

    def _start(self, stem: str) -> None:
        self._stem = stem
        self._files: list[File] = []
        self._dotted = False  # names are split at the last dot
        self._plain = False  # one of them has a known extension behind its first dot: they are not
        self._exts: dict[str, File] = {}  # the files of the sample that the last one belongs to
        self._held = 0  # bytes of the files

    def add(self, member: File) -> Iterator[tuple[str, dict[str, File]]]:
        """Takes the next member; yields the samples that are complete with that."""
        stem, ext = _split(member.name)
        plain = ext in self._known
        if stem != self._stem:
            yield from self.complete()
            self._start(stem)
        elif self._dotted:
            ext = _last_ext(member.name)
            if ext in self._exts or not self._goes_with(member):
                yield from self._flush()
        elif not self._plain and (len(self._files) >= _LOOKAHEAD or self._held >= _HELD_BYTES):
            *_, last = done = list(_flush(self._files, self._known, True))
            yield from done[:-1]
            self._files, self._dotted = list(last[1].values()), True
            self._exts, ext = dict(last[1]), _last_ext(member.name)
            if ext in self._exts or not self._goes_with(member):
                yield from self._flush()
        elif ext in self._exts or len(self._files) >= _MOST_MEMBERS:  # another sample begins
            self._exts = {}
            if self._plain or len(self._files) >= _MOST_MEMBERS:
                yield from self._flush()
        self._append(member, ext, plain)

    def complete(self) -> Iterator[tuple[str, dict[str, File]]]:
        """Yields the samples that are left: no member follows."""
        if self._plain and not self._dotted and len(self._exts) == len(self._files):
            yield self._stem, self._exts  # one sample, as almost always
        else:
            yield from _flush(self._files, self._known, self._dotted or None)

    def _goes_with(self, member: File) -> bool:
        return member.name.rpartition(".")[0] == self._files[0].name.rpartition(".")[0]

    def _flush(self) -> Iterator[tuple[str, dict[str, File]]]:
        yield from self.complete()
        self._files, self._exts, self._held = [], {}, 0

    def _append(self, member: File, ext: str, plain: bool) -> None:
        size = len(member.data or b"")
        if self._held and self._held + size > _HELD_BYTES:
            problem = f"has {size:,} bytes, with other members of the sample more than the limit of {_HELD_BYTES:,}"
            member, size = replace(member, data=None, problem=problem, too_large=True), 0
        self._files.append(member)
        self._exts[ext] = member
        self._held += size
        self._plain = self._plain or plain


class _Counted:
    """Counts the members of a sample, with those that stand alone behind it under its key."""

    def __init__(self, known: set[str]) -> None:
        self._known = known
        self._key: str | None = None
        self._count = 0

    def add(self, key: str, files: Mapping[str, File], url: str) -> None:
        """Counts what is of one sample, or goes on with it.

        Raises:
            ShardError: there are more than any sample has; a tar can hold millions of them.
        """
        goes_on = key == self._key and self._known.isdisjoint(files)
        self._key, self._count = key, len(files) + (self._count if goes_on else 0)
        if self._count > _MOST_MEMBERS:
            raise ShardError(
                f"{url}: more than {_MOST_MEMBERS:,} members have the key {key[:200]!r}: what follows was not read"
            )


def _grouped(members: Iterator[File], known: set[str]) -> Iterator[tuple[str, dict[str, File]]]:
    groups = _Groups(known)
    for member in members:
        yield from groups.add(member)
    yield from groups.complete()


def _flush(files: list[File], known: set[str], dotted: bool | None) -> Iterator[tuple[str, dict[str, File]]]:
    if not files:
        return
    if dotted is None:
        dotted = not any(_split(file.name)[1] in known for file in files) and any(
            _last_ext(file.name) in known for file in files
        )
    key, group = "", cast(dict[str, File], {})
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
