"""Folders of images with a caption next to each: `a.jpg` and `a.txt`, or `a.json`; also in folders below.

A shard is a range of the sorted names. A new run cuts a folder every `SHARD_PAIRS` pairs. A shard's name has a hash of
the key that it begins with, so when a run goes on, the cuts stay where they were: new files belong to the shard
between whose cuts they are, and change its stamp.
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
from typing import ClassVar

import xxhash

from tamis.data import Member
from tamis.errors import PoolError, UnreachedError
from tamis.pool.files import read_head
from tamis.pool.images import is_image
from tamis.pool.members import File, GroupedShard, caption_ext, caption_place
from tamis.pool.rows import CAPTION_COLUMNS
from tamis.pool.source import Pool, PoolSpec, Problem, SampleFiles, SampleReader, too_many_bytes, utf8
from tamis.remote import unreached

SHARD_PAIRS = 5_000

_MOST = 30_000_000  # files of a folder and of those below it
_TRIED = 20  # json files that are read to find the field with captions


def files_in(root: str) -> list[str]:
    """Returns the files of a folder and of those below it, as relative paths, without hidden ones.

    Links to folders are not followed: they may form a loop. Raises PoolError if a folder cannot be listed.
    """
    found: list[str] = []
    folders = [""]
    try:
        while folders:
            folder = folders.pop()
            with os.scandir(os.path.join(root, folder)) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(f"{folder}{entry.name}/")
                    elif not entry.is_symlink() or not os.path.isdir(entry.path):
                        found.append(folder + entry.name)
            if len(found) > _MOST:
                raise PoolError(f"{root!r} holds more than {_MOST:,} files: name one of the folders in it")
    except OSError as error:
        raise PoolError(f"cannot list {root!r}: {error}") from error
    return found


def folder_pool(spec: PoolSpec, found: Sequence[str], stem: str, names: Mapping[str, str]) -> Pool:
    """Returns the pool of a folder's images and captions.

    Args:
        spec: its settings; the path is the folder.
        found: what `files_in` found.
        stem: the name of the first shard, with which the names of the others begin.
        names: the shards of an existing run.

    Raises:
        PoolError: there is no image, or none has a caption.
    """
    root, images = spec.paths[0], {ext.lower() for ext in spec.image_extensions}
    endings = {*images, "txt", "json", caption_ext(spec)}
    files = sorted((name for name in found if _ending(name) in endings), key=lambda name: name.rpartition(".")[::2])
    groups = [list(group) for _, group in itertools.groupby(files, key=_stem)]
    pictured = [group for group in groups if not images.isdisjoint(map(_ending, group))]
    if not pictured:
        raise PoolError(f"no pool at {root!r}: it holds no images, tars or tables")
    matched = Counter(ending for group in pictured for ending in {*map(_ending, group)})
    if spec.caption is None and not matched["txt"]:
        reader = FolderShard(name=stem, url=root, spec=spec, listing="", pairs=0)
        facts = (name for group in pictured for name in group if _ending(name) == "json")
        spec = replace(spec, caption=_json_caption(reader, itertools.islice(facts, _TRIED)))
    where = caption_ext(spec)
    ending = "json" if where.startswith("json:") else where
    if not matched[ending]:
        raise PoolError(f"no pool at {root!r}: it holds {len(pictured):,} images, and no captions of them")
    kept = [group for group in groups if any(one in images or one == ending for one in map(_ending, group))]
    # Of a run that goes on, the cuts are where they were; each is known by its hash.
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
    about = f"{root} is a folder of {len(pictured):,} images, captions in {caption_place(spec, 'files')}"
    lacks = {"a caption": len(pictured) - matched[ending], "an image": len(kept) - len(pictured)}
    about += "".join(f"; without {what}: {count:,}" for what, count in lacks.items() if count)
    return Pool(spec=spec, kind="folder", shards=tuple(shards), about=about)


def _json_caption(shard: FolderShard, names: Iterable[str]) -> str | None:
    """Returns "json:FIELD" for the first usual field with a text, or list of texts, in some json files."""
    for name in names:
        try:
            facts = json.loads(shard.file(name).data or b"{}")
        except (ValueError, RecursionError):
            continue
        for column in CAPTION_COLUMNS if isinstance(facts, dict) else ():
            if isinstance(facts.get(column), str | list):
                return f"json:{column}"
    return None


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _ending(name: str) -> str:
    return name.rpartition(".")[2].lower()


def _place(name: str) -> int:
    """Returns a number for a file, which its member in the index has as its offset. It stays if others are added."""
    return xxhash.xxh3_64_intdigest(os.fsencode(name)) >> 1


@dataclass(frozen=True, kw_only=True)
class FolderShard(GroupedShard):
    """Images and captions of a folder, in a range of names."""

    part: ClassVar[str] = "file"

    listing: str = field(repr=False)  # relative paths, sorted by key; NUL, which no path has, is between them
    pairs: int

    def names(self) -> list[str]:
        """Returns the paths of the files, relative to the folder."""
        return self.listing.split("\0")

    def stamp(self) -> str:
        digest = xxhash.xxh3_64()
        for name in self.names():
            with suppress(OSError):  # a link to nothing, or deleted since the folder was listed
                facts = os.stat(os.path.join(self.url, name))
                digest.update(b"%b\0%d:%d\0" % (os.fsencode(name), facts.st_size, facts.st_mtime_ns))
        return f"{self.pairs}:{digest.hexdigest()}"

    def _groups(self) -> Iterator[tuple[str, dict[str, File], bool]]:
        for key, group in itertools.groupby(self.names(), key=_stem):
            files: dict[str, str] = {}
            for name in group:
                if _ending(name) in files:  # a.jpg and a.JPG
                    yield utf8(key), self._read(files), False
                    files = {}
                files[_ending(name)] = name
            yield utf8(key), self._read(files), False

    def _read(self, names: Mapping[str, str]) -> dict[str, File]:
        """Reads image, caption and json of a sample; of other files only the size."""
        image = next((ext.lower() for ext in self.spec.image_extensions if ext.lower() in names), None)
        wanted = (image, caption_ext(self.spec), "json")
        return {ext: self.file(name, reads=ext in wanted) for ext, name in names.items()}

    def file(self, name: str, *, reads: bool = True) -> File:
        """Reads a file, up to the limit for its ending, or says what is wrong with it."""
        ext, path = _ending(name), os.path.join(self.url, name)
        file = File("", ext, _place(name), 0, status="image_missing")
        try:
            facts = os.stat(path)
            file.size = facts.st_size
            if not stat.S_ISREG(facts.st_mode):  # a pipe would wait for ever
                file.problem = "is not a regular file"
            elif facts.st_size > (limit := self.limit(ext)):
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
        """Whether a path is a link to outside the folder, which may be any file of this machine.

        A dataset in the cache of Hugging Face has all its files as links into the folder above `snapshots`.
        """
        if not os.path.islink(path):
            return False
        root = os.path.realpath(self.url).partition("/snapshots/")[0]
        return not os.path.realpath(path).startswith(f"{root}/")

    def reader(self, *, whole: bool, keep_open: bool) -> SampleReader:
        return _ByName(self)


class _ByName:
    """Reads files of a folder in any order."""

    sequential = False

    def __init__(self, shard: FolderShard) -> None:
        self._shard = shard
        self._names = {_place(name): name for name in shard.names()}

    def read(
        self, rows: Sequence[int], members: Sequence[Sequence[Member]], captions: Sequence[str | None]
    ) -> list[SampleFiles | Problem]:
        return [self._one(some, caption) for some, caption in zip(members, captions, strict=True)]

    def _one(self, members: Sequence[Member], caption: str | None) -> SampleFiles | Problem:
        shard, image = self._shard, self._shard.image_member(members)
        found: dict[Member, bytes] = {}
        for member in members:
            name = self._names.get(member.offset)
            file = None if name is None else shard.file(name)
            if file is not None and file.data is not None:
                found[Member(member.ext, member.offset, file.size)] = file.data
            elif member is image:
                gone = f"the .{member.ext} file of a sample is no longer in {shard.url}"
                return Problem("changed", gone) if file is None else Problem(file.status, f"{name!r} {file.problem}")
        return shard.assembled(list(found), list(found.values()), caption)

    def close(self) -> None:
        """Nothing is open."""
