"""Folders of images with a caption next to each: `a.jpg` and `a.txt`, or `a.json`; also in folders below.

A shard is a range of the sorted names. A new run cuts a folder every `SHARD_PAIRS` pairs. The name of a shard has a
hash of its first key, so a run that goes on finds its cuts again: new files belong to the shard that they are within.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import xxhash

from tamis.data import Member
from tamis.errors import PoolError, UnreachedError
from tamis.pool.files import read_head
from tamis.pool.images import is_image
from tamis.pool.rows import CAPTION_COLUMNS
from tamis.pool.source import Pool, PoolSpec, Problem, SampleFiles, SampleReader, too_many_bytes, utf8
from tamis.pool.tar import File, TarShard, caption_ext
from tamis.remote import unreached

SHARD_PAIRS = 5_000

_TRIED = 20  # json files that are read to find the field with captions


def files_in(root: str) -> list[str]:
    """Returns the relative paths of the files in a folder and below. Hidden files and links to folders are left out."""

    def stop(error: OSError) -> None:
        raise PoolError(f"cannot list {root!r}: {error}") from error

    found: list[str] = []
    for folder, below, names in os.walk(root, onerror=stop):
        below[:] = [name for name in below if not name.startswith(".")]
        inner = folder[len(root) :].lstrip("/")
        found += [os.path.join(inner, name) for name in names if not name.startswith(".")]
    return found


def folder_pool(spec: PoolSpec, found: Sequence[str], stem: str, names: Mapping[str, str]) -> Pool:
    """Returns the pool of a folder's files; `stem` is its first shard's name, `names` are the shards of a run.

    Raises PoolError if there is no image, or none has a caption.
    """
    root, images = spec.paths[0], {ext.lower() for ext in spec.image_extensions}
    endings = {*images, "txt", "json", caption_ext(spec)}
    files = sorted((name for name in found if _ending(name) in endings), key=lambda name: name.rpartition(".")[::2])
    groups = [list(group) for _, group in itertools.groupby(files, _stem)]
    having = Counter(frozenset(map(_ending, group)) for group in groups)  # few different ones

    def count(ending: str) -> int:
        return sum(number for has, number in having.items() if ending in has and not images.isdisjoint(has))

    if spec.caption is None and not count("txt"):
        facts = (name for group in groups if len(group) > 1 for name in group if _ending(name) == "json")
        reader = FolderShard(name=stem, url=root, spec=spec, listing="", pairs=0)
        spec = replace(spec, caption=_json_caption(reader, itertools.islice(facts, _TRIED)))
    caption = caption_ext(spec)
    ending = caption.partition(":")[0]
    pictured = sum(number for has, number in having.items() if not images.isdisjoint(has))
    if not count(ending):
        what = f"{pictured:,} images, and no captions of them" if pictured else "no images, tars or tables"
        raise PoolError(f"no pool at {root!r}: it holds {what}")
    kept = [group for group in groups if not {*images, ending}.isdisjoint(map(_ending, group))]
    known = {name.rpartition("-")[2]: name for name in names if name.startswith(f"{stem}-rows")}
    cuts = {0: stem}
    for number in range(1, len(kept)) if stem in names else range(SHARD_PAIRS, len(kept), SHARD_PAIRS):
        cut = xxhash.xxh3_64_hexdigest(os.fsencode(_stem(kept[number][0])))[:12]
        if stem not in names or cut in known:
            cuts[number] = known.get(cut, f"{stem}-rows{number:09d}-{cut}")
    shards = []
    for first, last in itertools.pairwise([*cuts, len(kept)]):
        listing = "\0".join(itertools.chain.from_iterable(kept[first:last]))
        shards.append(FolderShard(name=cuts[first], url=root, spec=spec, listing=listing, pairs=last - first))
    lacks = {"a caption": pictured - count(ending), "an image": len(kept) - pictured}
    about = f"{root}: a folder of {pictured:,} images; captions: {caption}"
    about += "".join(f"; without {what}: {number:,}" for what, number in lacks.items() if number)
    return Pool(spec=spec, kind="folder", shards=tuple(shards), about=about)


def _json_caption(shard: FolderShard, names: Iterable[str]) -> str | None:
    """Returns "json:FIELD" for the first field of a usual name that holds text, or a list, in some json files."""
    for name in names:
        with suppress(ValueError, RecursionError):
            facts = json.loads(shard.file(name).data or b"{}")
            for column in CAPTION_COLUMNS if isinstance(facts, dict) else ():
                if isinstance(facts.get(column), str | list):
                    return f"json:{column}"
    return None


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _ending(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _place(name: str) -> int:
    """Returns the offset of a file's member in the index: a hash of its path, which stays when files are added."""
    return xxhash.xxh3_64_intdigest(os.fsencode(name)) >> 1


@dataclass(frozen=True, kw_only=True)
class FolderShard(TarShard):
    """Files of a folder in a range of names. It reads single samples itself, in any order."""

    part: ClassVar[str] = "file"
    sequential: ClassVar[bool] = False

    listing: str = field(repr=False)  # relative paths, sorted by key, with NUL between them
    pairs: int

    def is_compressed(self) -> bool:
        return False

    def stamp(self) -> str:
        digest = xxhash.xxh3_64()
        for name in self.listing.split("\0"):
            with suppress(OSError):  # a link to nothing, or deleted since the folder was listed
                facts = os.stat(os.path.join(self.url, name))
                digest.update(b"%b\0%d:%d\0" % (os.fsencode(name), facts.st_size, facts.st_mtime_ns))
        return f"{self.pairs}:{digest.hexdigest()}"

    def _groups(self) -> Iterator[tuple[str, dict[str, File], bool]]:
        for key, group in itertools.groupby(self.listing.split("\0"), _stem):
            names: dict[str, str] = {}
            for name in [*group, ""]:
                if _ending(name) in names or not name:  # a.jpg and a.JPG are two samples
                    image = next((ext.lower() for ext in self.spec.image_extensions if ext.lower() in names), "")
                    read = (image, "json", caption_ext(self.spec))
                    yield utf8(key), {ext: self.file(one, reads=ext in read) for ext, one in names.items()}, False
                    names = {}
                names[_ending(name)] = name

    def file(self, name: str, *, reads: bool = True) -> File:
        """Reads a file, or says what is wrong with it. What is no image is not read from outside the folder."""
        path, limit = os.path.join(self.url, name), self.limit(_ending(name))
        file = File("", _ending(name), _place(name), 0, status="image_missing")
        try:
            facts = os.stat(path)
            file.size = facts.st_size
            if not stat.S_ISREG(facts.st_mode):  # a pipe would wait for ever
                file.problem = "is not a regular file"
            elif facts.st_size > limit:
                file.problem, file.status = f"has {too_many_bytes(facts.st_size, limit)}", "image_too_large"
            elif reads:
                data = read_head(path, limit)
                if self._leads_out(path) and not is_image(data):
                    file.problem = "is a link to a file outside the folder"
                else:
                    file.data, file.size = data, len(data)
        except OSError as error:
            if unreached(error):
                raise UnreachedError(f"{self.url}: {name!r} cannot be read: {error}") from error
            file.problem = f"cannot be read: {error.strerror}"
        return file

    def _leads_out(self, path: str) -> bool:
        # In the cache of Hugging Face, all files are links into a folder next to `snapshots`.
        root = os.path.realpath(self.url).partition("/snapshots/")[0]
        return os.path.islink(path) and not os.path.realpath(path).startswith(f"{root}/")

    def reader(self, *, whole: bool, keep_open: bool) -> SampleReader:
        return cast(SampleReader, self)

    def read(
        self, rows: Sequence[int], members: Sequence[Sequence[Member]], captions: Sequence[str | None]
    ) -> list[SampleFiles | Problem]:
        names = {_place(name): name for name in self.listing.split("\0")}
        return [self._again(some, caption, names) for some, caption in zip(members, captions, strict=True)]

    def _again(self, members: Sequence[Member], caption: str | None, names: Mapping[int, str]) -> SampleFiles | Problem:
        found: dict[Member, bytes] = {}
        for member in members:
            name = names.get(member.offset)
            file = None if name is None else self.file(name)
            if file is not None and file.data is not None:
                found[Member(member.ext, member.offset, file.size)] = file.data
            elif member is self.image_member(members):
                gone = f"its .{member.ext} file is no longer in {self.url}"
                return Problem("changed", gone) if file is None else Problem(file.status, f"{name!r} {file.problem}")
        return self.assembled(list(found), list(found.values()), caption)

    def close(self) -> None:
        """Nothing is open."""
