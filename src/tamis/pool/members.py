"""Samples that are groups of files with one name: what tars and folders have in common."""

from __future__ import annotations

import functools
import itertools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

from tamis.data import Member, Sample
from tamis.errors import nearest
from tamis.pool.source import MAX_TEXT_BYTES, PoolSpec, Problem, SampleFiles, Shard, own_texts, read_json, rows_of

_MOST_LISTED = 20  # names in a message
_CUT = "the shard ends in the middle of this sample"


@dataclass(slots=True)
class File:
    """One file of a sample.

    `data` is None if it is not wanted, is cut off, or has a problem ("has 9 bytes, more than ..."). `status`: of the
    sample, if this is its image and has a problem.
    """

    key: str
    ext: str
    offset: int
    size: int
    data: bytes | None = None
    cut: bool = False
    problem: str = ""
    status: str = "image_refused"


@dataclass(frozen=True, kw_only=True)
class GroupedShard(Shard):
    """A shard whose samples are groups of files."""

    part: ClassVar[str] = "member"  # what messages call a file

    def _samples(self) -> Iterator[Sample]:
        for key, files, cut in self._groups():
            for sample in self._rows(key, files):
                if cut and sample.status in ("image_missing", "caption_missing"):
                    sample.status, sample.reason = "shard_cut", _CUT
                yield sample

    @abstractmethod
    def _groups(self) -> Iterator[tuple[str, dict[str, File], bool]]:
        """Yields the key and the files of each sample, and whether the shard ends inside it."""

    def _rows(self, key: str, files: dict[str, File], only: Sequence[str | None] = ()) -> Iterator[Sample]:
        sample = Sample(
            uid=(0, 0), key=key, members=tuple(Member(ext, file.offset, file.size) for ext, file in files.items())
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
        absent = _absent(caption, self.part, _names(files), _names(meta)) if raw is None else None
        return rows_of(sample, raw, where, meta, self.spec, image=image, absent=absent, only=only)

    def image_member(self, members: Sequence[Member]) -> Member | None:
        by_ext = {member.ext: member for member in reversed(members)}
        return next((by_ext[ext.lower()] for ext in self.spec.image_extensions if ext.lower() in by_ext), None)

    def text_members(self, members: Sequence[Member]) -> Sequence[Member]:
        wanted = ("json", caption_ext(self.spec))
        return [member for member in members if member.ext in wanted and member.size <= self.limit(member.ext)]

    def assembled(
        self, members: Sequence[Member], data: Sequence[bytes | Problem], caption: str | None
    ) -> SampleFiles | Problem:
        """Returns the sample whose members were read again, or the problem of the first unreadable one."""
        parts, files = cast(dict[str, bytes], {}), cast(dict[str, File], {})
        for member, one in zip(members, data, strict=True):
            if isinstance(one, Problem):
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


def caption_place(spec: PoolSpec, files: str) -> str:
    """Returns where captions are, in words: ".txt files", or "the field 'text' of .json files"."""
    caption = caption_ext(spec)
    field = caption.removeprefix("json:")
    return f".{caption} {files}" if field == caption else f"the field {field!r} of .json {files}"


@functools.lru_cache(256)  # the samples of a pool mostly have the same members and fields
def _absent(caption: str, part: str, members: tuple[str, ...], fields: tuple[str, ...]) -> str:
    """Returns why a sample has no caption: the name asked for, the nearest one, and all that it has."""
    name = caption.removeprefix("json:")
    what = f"no .{caption} {part}" if name == caption else f"no text in the json field {name!r}"
    present = [*(member for member in members if member != "json"), *(f"json:{field}" for field in fields)]
    if caption in present:
        return f"there is {what}"
    return f"there is {what}{nearest(caption, present)}; the sample has: {', '.join(present[:_MOST_LISTED])}"


def _names(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(name[:60] for name in itertools.islice(found, 100))
