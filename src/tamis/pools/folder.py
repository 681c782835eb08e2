"""Folders of images with a caption next to each: `a.jpg` and `a.txt`, or `a.json`; also in folders below.

A new run cuts the sorted pairs every `SHARD_PAIRS`. The names of the shards have hashes of their first keys, so the
cuts stay when files are added: these belong to the shard that they are within.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar, cast

import xxhash

from tamis.core.errors import PoolError, SampleError, UnreachedError
from tamis.core.files.find import HIDDEN, is_side_file
from tamis.core.files.remote import is_unreached
from tamis.core.types import Member, Sample
from tamis.pools.images import is_image
from tamis.pools.rows import CAPTION_COLUMNS
from tamis.pools.source import Pool, PoolSpec, SampleFault, SampleFiles, SampleReader, read_json, say_left_out, utf8
from tamis.pools.table_shards import read_file
from tamis.pools.tar import File, TarShard, caption_ext

SHARD_PAIRS = 5_000

_TRIED = 20  # json files that are read to find the field with captions


def files_in(root: str) -> tuple[list[str], Counter[str]]:
    """Returns the relative paths of the files in a folder and below, and how many others are left out.

    Those are side files (`is_side_file`), and links to folders, which may lead anywhere or back here.
    """

    def stop(error: OSError) -> None:
        raise PoolError(f"cannot list {root!r}: {error}") from error

    found: list[str] = []
    left_out = Counter[str]()
    for folder, below, names in os.walk(root, onerror=stop):
        below[:] = [name for name in below if not is_side_file(name)]
        inner = folder[len(root) :].lstrip("/")
        own = [os.path.join(inner, name) for name in names if not is_side_file(name)]
        found += own
        left_out[HIDDEN] += len(names) - len(own)
        left_out["linked folder"] += sum(os.path.islink(os.path.join(folder, name)) for name in below)
    return found, +left_out


def folder_pool(
    spec: PoolSpec, found: Sequence[str], stem: str, names: Mapping[str, str], left_out: Mapping[str, int]
) -> Pool:
    """Returns the pool of a folder's files. `stem`: the first shard's name; `names`: the shards of a run."""
    root, images, problem = spec.paths[0], {ext.lower() for ext in spec.image_extensions}, ""
    endings = {*images, "txt", "json", caption_ext(spec)}
    files = sorted((name for name in found if _ending(name) in endings), key=lambda name: name.rpartition(".")[::2])
    groups = [list(group) for _, group in itertools.groupby(files, _stem)]
    having = Counter(frozenset(map(_ending, group)) for group in groups)  # few different ones

    def count(ending: str) -> int:
        return sum(number for has, number in having.items() if ending in has and not images.isdisjoint(has))

    if spec.caption is None and not count("txt"):
        whole, blank = FolderShard(name=stem, url=root, spec=spec, listing="", pairs=0), Sample(uid=(0, 0), key="")
        some = (name for group in groups if len(group) > 1 for name in group if _ending(name) == "json")
        tried = list(map(whole.file, itertools.islice(some, _TRIED)))
        facts = [read_json(blank, file.data) for file in tried]
        problem = next((f"; a .json {file.problem}" for file in tried if file.problem), "")
        usual = (field for field in CAPTION_COLUMNS if any(isinstance(one.get(field), str | list) for one in facts))
        spec = replace(spec, caption=next((f"json:{field}" for field in usual), None))
    caption = caption_ext(spec)
    ending = caption.partition(":")[0]
    pictured = sum(number for has, number in having.items() if not images.isdisjoint(has))
    if not count(ending):
        what = f"{pictured:,} image{'s' * (pictured != 1)} without captions" if pictured else "no image, tar or table"
        words = say_left_out(left_out)
        raise PoolError(f"no pool at {root!r}: it holds {what}{problem}{words and f'; {words}'}")
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
    # Of a shard whose first pair was deleted, the one before has the other pairs now. They can still be read.
    lost = set(known.values()) - set(cuts.values())
    shards += [FolderShard(name=name, url=root, spec=spec, listing="", pairs=0) for name in lost]
    lacks = {"a caption": pictured - count(ending), "an image": len(kept) - pictured}
    about = f"{root}: a folder of {pictured:,} images; captions: {caption}"
    about += "".join(f"; without {what}: {number:,}" for what, number in lacks.items() if number)
    about += f"; {words}" if (words := say_left_out(left_out)) else ""
    return Pool(spec=spec, kind="folder", shards=tuple(shards), about=about)


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _ending(name: str) -> str:
    return name.rpartition(".")[2].lower()


# Where git-annex and DVC keep the files of a project; they may put links in their places.
_KEPT_IN = ("/.git/annex/objects/", "/.dvc/cache/")


def _keeps(link: str, root: str) -> bool:
    """Whether a link leads into the folder `root`, or where a tool keeps the files of the project with this folder."""
    target, root = os.path.realpath(link), os.path.realpath(root)
    # In the cache of Hugging Face, all files are links into a folder next to `snapshots`.
    projects = [target.partition(inner)[0] for inner in _KEPT_IN if inner in target]
    inside = target.startswith(f"{root.partition('/snapshots/')[0]}/")
    return inside or any(f"{root}/".startswith(f"{project}/") for project in projects)


def _place(name: str) -> int:
    """Returns the offset of a file's member in the index: a hash of its path, which stays when files are added."""
    return xxhash.xxh3_64_intdigest(os.fsencode(name)) >> 1


@functools.lru_cache(maxsize=1)
def _places(root: str) -> dict[int, str]:
    return {_place(name): name for name in files_in(root)[0]}


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
        for key, group in itertools.groupby(filter(None, self.listing.split("\0")), _stem):
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
        path, file = os.path.join(self.url, name), File("", _ending(name), _place(name), 0)
        try:
            file.size = os.stat(path).st_size
            if reads:
                data = read_file(path, self.limit(file.ext))
                # A link may name any file of this machine, and a caption is shown and exported.
                if os.path.islink(path) and not is_image(data) and not _keeps(path, self.url):
                    raise SampleError("image_missing", "is a link to a file outside the folder: copy it with 'cp -rL'")
                file.data, file.size = data, len(data)
        except SampleError as error:
            file.status, file.problem = error.status, error.reason
        except OSError as error:
            if is_unreached(error):
                raise UnreachedError(f"{self.url}: {name!r} cannot be read: {error}") from error
            file.status, file.problem = "image_missing", f"cannot be read: {error.strerror}"
        return file

    def reader(self, *, whole: bool, keep_open: bool) -> SampleReader:
        return cast(SampleReader, self)

    def read(
        self, rows: Sequence[int], members: Sequence[Sequence[Member]], captions: Sequence[str | None]
    ) -> list[SampleFiles | SampleFault]:
        names = {_place(name): name for name in self.listing.split("\0")}
        if not {member.offset for some in members for member in some} <= names.keys():
            names = _places(self.url)  # another shard may have them now

        def again(members: Sequence[Member], caption: str | None) -> SampleFiles | SampleFault:
            found: dict[Member, bytes] = {}
            for member in members:
                name = names.get(member.offset)
                file = File("", "", 0, 0, problem="is no longer there") if name is None else self.file(name)
                if file.data is not None:
                    found[Member(member.ext, member.offset, file.size)] = file.data
                elif member is self.image_member(members):
                    kind = "changed" if name is None else file.status
                    return SampleFault(kind, f"{self.url}: the .{member.ext} file {file.problem}")
            return self.assemble(list(found), list(found.values()), caption)

        return list(map(again, members, captions))

    def close(self) -> None:
        """Nothing is open."""
