"""WebDataset tars: consecutive files of one key are one sample.

Read front to back in one pass, compressed or not, with the byte range of every member noted, so that later
readers (export, report) fetch single samples without reading the rest.
"""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, cast

from tamis.data import Member, Sample
from tamis.errors import ShardError
from tamis.pool.files import open_file, read_head, read_ranges, stamp
from tamis.pool.source import PoolSpec, read_json, set_caption, set_identity

_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}

# Samples fetched by one request: stores far away answer many ranges at once.
_AT_ONCE = 32

# As many members as a group may have before its dotted names must be understood.
_LOOKAHEAD = 64


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
    """One regular member: where it lies and, where somebody wants them, its bytes (None: cut off)."""

    name: str
    offset: int
    size: int
    data: bytes | None
    cut: bool = False


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
        for key, files in _groups(self._members(known, ended), known):
            sample = self._sample(key, files)
            if ended.error and sample.status in ("image_missing", "caption_missing"):
                sample.status, sample.reason = "shard_cut", "the shard ends in the middle of this sample"
            if key in seen:
                sample.mark("duplicate_key", f"an earlier sample of this shard has the key {key!r} too")
            seen.add(key)
            yield sample
        if ended.error:
            raise ShardError(f"{self.url}: {ended.error}; {len(seen):,} keys before that were read")

    def _sample(self, key: str, files: dict[str, _File]) -> Sample:
        sample = Sample(
            uid=(0, 0), key=key, members=tuple(Member(ext, file.offset, file.size) for ext, file in files.items())
        )
        if any(file.cut for file in files.values()):
            sample.mark("shard_cut", "the shard ends in the middle of this sample")
        image_ext = next((ext for ext in self.spec.image_extensions if ext in files), None)
        if image_ext is None:
            others = ", ".join(files) or "none"
            sample.mark("image_missing", f"no member is an image; the sample's members: {others}")
        image = files[image_ext].data if image_ext else None
        sample.image = image
        sample.image_bytes = files[image_ext].size if image_ext else 0
        meta = read_json(sample, files["json"].data if "json" in files else None)
        caption = self.spec.caption or "txt"
        raw: bytes | str | None
        if caption.startswith("json:"):
            field = caption.removeprefix("json:")
            value = meta.get(field)
            raw = value if isinstance(value, str) else None
            where = f"text in the json field {field!r}"
        else:
            raw = files[caption].data if caption in files else None
            where = f".{caption} member"
        set_caption(sample, raw, where)
        raw_bytes = (sample.shown_caption or "").encode() if isinstance(raw, str) else raw
        set_identity(sample, meta, image, raw_bytes, self.spec.fields)
        return sample

    def _members(self, wanted: set[str], ended: _Ending) -> Iterator[_File]:
        try:
            with open_file(self.url) as raw:
                yield from _walk(raw, wanted, ended)
        except OSError as error:
            ended.error = f"cannot be read: {error}"
        except Exception as error:  # remote file systems raise errors of their own making
            ended.error = f"cannot be read: {type(error).__name__}: {error}"

    def files(self, rows: Sequence[int], members: Sequence[Sequence[Member]]) -> Iterator[dict[str, bytes]]:
        if self.compression() is None:
            for start in range(0, len(members), _AT_ONCE):
                some = members[start : start + _AT_ONCE]
                data = iter(read_ranges(self.url, [(part.offset, part.size) for parts in some for part in parts]))
                for parts in some:
                    yield {part.ext: next(data) for part in parts}
            return
        # Compressed: nothing can be reached without reading what lies before it.
        pending = {
            member.offset: (row, member.ext) for row, parts in zip(rows, members, strict=True) for member in parts
        }
        counts = {row: len(parts) for row, parts in zip(rows, members, strict=True)}
        gathered: dict[int, dict[str, bytes]] = {row: {} for row in rows}
        ended = _Ending()
        with open_file(self.url) as raw:
            for file in _walk(raw, None, ended, only=set(pending)):
                row, ext = pending[file.offset]
                assert file.data is not None
                gathered[row][ext] = file.data
                if len(gathered[row]) == counts[row]:
                    yield gathered.pop(row)
        if gathered:
            raise ShardError(f"{self.url}: {len(gathered)} samples of the index are not in the tar; has it changed?")


@dataclass
class _Ending:
    """Why a tar ended early; "" where it ended as it should."""

    error: str = ""


def _walk(raw: Any, wanted: set[str] | None, ended: _Ending, only: set[int] | None = None) -> Iterator[_File]:
    """Yields the regular members of a tar stream; bytes only for the wanted extensions (None: for all)."""
    head = raw.read(8)
    raw.seek(0)
    if not head:
        ended.error = "the file has no bytes"
        return
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        ended.error = "the tar is compressed with zstd, which Python's tarfile cannot read; unpack it or use gzip"
        return
    info = None
    unread: _File | None = None  # a member whose bytes nobody wants is whole if something can be read after it
    try:
        with tarfile.open(fileobj=raw, mode="r|*", bufsize=1 << 20, tarinfo=_Info) as tar:
            for info in tar:
                tar.members = []  # type: ignore[attr-defined]  # else every header stays in memory
                if unread is not None:
                    yield unread
                    unread = None
                if not info.isreg() or (only is not None and info.offset_data not in only):
                    continue
                if wanted is None or _last_ext(info.name) in wanted:
                    handle = tar.extractfile(info)
                    assert handle is not None  # only links have none
                    yield _File(_shown(info.name), info.offset_data, info.size, handle.read())
                else:
                    unread = _File(_shown(info.name), info.offset_data, info.size, None)
                info = None
            if unread is not None:
                yield unread
                unread = None
            how = getattr(tar, "ended_by", "EmptyHeaderError")
        if how != "EOFHeaderError":
            ended.error = "the tar ends without its end marker: it was cut off, or a header is damaged"
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        if unread is not None:
            yield replace(unread, cut=True)
        elif info is not None and info.isreg():
            yield _File(_shown(info.name), info.offset_data, info.size, None, cut=True)
        what = str(error) or type(error).__name__
        ended.error = f"the tar cannot be read further: {what}"


def _shown(name: str) -> str:
    """Returns a member's name with bytes that are not UTF-8 written as escapes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _last_ext(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _known_extensions(spec: PoolSpec) -> set[str]:
    caption = spec.caption or "txt"
    return {*spec.image_extensions, "json", "txt", *(() if caption.startswith("json:") else (caption,))}


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
