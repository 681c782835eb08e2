"""Compacting a run: many small parts into few packs, byte for byte, so that no answer changes.

It works beside commands that read the run or score into it. A pack is there whole before a part leaves the folder, so
whoever looks finds each part at every moment, and a kill costs nothing: what lies twice is the same, and the next
`tamis compact` clears it up. A new pack is hidden until it has been looked whether a part was forgotten meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tamis.data import KEEPS
from tamis.errors import DamageError, RunError
from tamis.store import packs, parts
from tamis.store.atomic import sweep, write_json
from tamis.store.formats import sealed
from tamis.store.lock import claimed, locked
from tamis.store.mirror import bring_everything, named
from tamis.store.packs import Place
from tamis.store.run import FORMAT_OF_PACKS, Run, read_manifest

#: A pack is closed before it gets larger.
PACK_BYTES = 1 << 30

#: The claim that keeps two of them apart. No name of a shard begins with a dot.
COMPACTS = ".compact"

#: What tells that a file is the one that was packed.
_Version = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """What became of a run's parts.

    Attributes:
        run: the folder.
        before, after: files that hold parts.
        parts: parts that were put into packs by this call.
        bytes: of these.
        left: parts that lie as files of their own, since a process is at their shards.
    """

    run: Path
    before: int
    after: int
    parts: int
    bytes: int
    left: int


def compact(path: str | os.PathLike[str], *, pack_bytes: int = PACK_BYTES) -> Compacted:
    """Puts the parts of a run into packs. Every part is checked to its last byte before.

    New shards may be scored later, also while this works: they are files, until the next call puts them into packs too.

    Args:
        path: the run folder, or its URL: its parts are then brought down, and packs put up.
        pack_bytes: a pack is closed before it gets larger; a larger part has one to itself.

    Raises:
        RunError: it is no run folder, its parts have no seals, or another `tamis compact` is at it.
        DamageError: a part is damaged; what was packed before stays so.
        DiskFullError: there is no room for one more pack beside the parts that go into it.
    """
    run = Run(path, partial=True)
    path, name = run.path, named(run.path)
    if not run.sealed:
        raise RunError(
            f"{name} was begun by an older version: seal its parts first with `tamis doctor {name} --repair`"
        )
    with claimed(path, COMPACTS) as mine:
        if not mine:
            raise RunError(f"another process compacts {name}: wait for it")
        bring_everything(path)
        before = _files(run)
        _say_so(path)
        work = _Work(run, pack_bytes)
        for folder, ending in _folders(path):
            work.do(folder, ending)
        return Compacted(run=path, before=before, after=_files(run), parts=work.parts, bytes=work.bytes, left=work.left)


def _folders(path: Path) -> Iterator[tuple[Path, str]]:
    yield path / "index", ".parquet"
    for kind in ("scores", *KEEPS):
        for folder in sorted((path / kind).glob("*")):
            if folder.is_dir():
                yield folder, ".npy" if kind == "embeddings" else ".parquet"


def _files(run: Run) -> int:
    return sum(len(_loose(folder, ending)) + len(packs.packs_in(folder)) for folder, ending in _folders(run.path))


def _loose(folder: Path, ending: str) -> list[str]:
    """Returns the names of the parts that are files of their own."""
    there = (entry.name for entry in os.scandir(folder)) if folder.is_dir() else ()
    return sorted(name for name in there if name.endswith(ending) and not name.startswith("."))


def _say_so(path: Path) -> None:
    """Raises the format of the run, so that older versions, which know no packs, refuse it."""
    with locked(path):
        facts = read_manifest(path)
        if facts is not None and facts["format"] < FORMAT_OF_PACKS:
            write_json(path / "run.json", sealed({**facts, "format": FORMAT_OF_PACKS}))


class _Work:
    """Packs one folder after the other, and counts."""

    def __init__(self, run: Run, pack_bytes: int) -> None:
        self.run, self.pack_bytes = run, pack_bytes
        self.listed = frozenset(run.urls)
        self.parts = self.bytes = self.left = 0

    def do(self, folder: Path, ending: str) -> None:
        """Packs what lies loose in a folder of parts, together with packs that have room, or holes."""
        sweep(folder / packs.PACKED)
        for pack in filter(packs.is_hidden, packs.packs_in(folder)):  # its maker was killed: all of it lies elsewhere
            packs.drop_pack(pack)
        stems = {name: name.removesuffix(ending) for name in _loose(folder, ending)}
        loose = {name for name, stem in stems.items() if stem in self.listed}
        old = [pack for pack in packs.packs_in(folder) if self._has_room(pack)]
        if not loose and len(old) < 2 and not any(packs.markers(pack) for pack in old):
            return
        names = loose.union(*(set(packs.contents(pack)) - packs.markers(pack) for pack in old))
        moved: set[str] = set()
        for group in self._groups(folder, sorted(names)):
            moved |= self._pack(folder, ending, group, loose)
        for pack in old:
            if set(packs.contents(pack)) <= moved | packs.markers(pack):
                packs.drop_pack(pack)

    def _has_room(self, pack: Path) -> bool:
        return pack.stat().st_size < self.pack_bytes // 2 or bool(packs.markers(pack))

    def _groups(self, folder: Path, names: list[str]) -> Iterator[list[tuple[str, Place]]]:
        group: list[tuple[str, Place]] = []
        size = 0
        for name in names:
            place = packs.located(folder / name)
            if place is None:  # removed meanwhile
                continue
            if group and size + place.size > self.pack_bytes:
                yield group
                group, size = [], 0
            group.append((name, place))
            size += place.size
        if group:
            yield group

    def _pack(self, folder: Path, ending: str, group: list[tuple[str, Place]], loose: set[str]) -> set[str]:
        """Makes a pack of some parts; returns those that may now leave where they lay."""
        versions = {name: _version(place.file) for name, place in group if not place.packed}
        facts = {name: told for name, _ in group if (told := self._checked(folder, name, ending)) is not None}
        before = packs.packs_in(folder)
        there = [(name, place) for name, place in group if name in facts]
        try:
            new = packs.write_pack(folder, there, facts)
        except FileNotFoundError:  # a part was forgotten before it was copied
            if all(place.file.exists() for _, place in there):
                raise
            return self._pack(folder, ending, [(name, place) for name, place in there if place.file.exists()], loose)
        group = there
        moved = _leave_what_went(self.run.path, ending, new, group, versions)
        packs.show(new)
        for name, place in group:
            if place.packed:
                continue
            with claimed(self.run.path, name.removesuffix(ending)) as mine:
                if not mine:  # it lies twice, until the next call
                    self.left += 1
                    continue
                moved.add(name)
                version = _version(place.file)
                if version is None or version != versions[name]:
                    packs.leave(new, name)
                    continue
                for pack in before:  # what the file stood in place of must not come back when it goes
                    packs.leave(pack, name)
                packs.unlink(place.file)
        self.parts += len(group)
        self.bytes += sum(place.size for _, place in group)
        return moved

    def _checked(self, folder: Path, name: str, ending: str) -> Mapping[str, object] | None:
        """Checks a part to its last byte; returns what the pack's list shall tell of it, None where it has gone."""
        try:
            return self._facts(folder / name, name.removesuffix(ending), ending)
        except DamageError:
            if packs.exists(folder / name) and packs.exists(self.run.index_path(name.removesuffix(ending))):
                raise
            return None

    def _facts(self, path: Path, shard: str, ending: str) -> Mapping[str, object]:
        if ending == ".npy":
            parts.read_array(path, self.run.owner(shard))
            return {}
        if path.parent.name != "index":
            parts.read_columns(path, None, self.run.owner(shard))
            return {}
        parts.read_columns(path, None)
        return parts.index_facts(path).as_json()


def _leave_what_went(
    run: Path, ending: str, new: Path, group: Sequence[tuple[str, Place]], versions: Mapping[str, _Version | None]
) -> set[str]:
    """Takes the parts out of a pack that is still hidden which left the run before it was there; returns those of
    other packs that it stands for now.

    Who removes a part removes its file, looks which packs there are, and takes it out of each. So a file that is there
    still will be taken out of the new pack too. Of a part in a pack that is not known while somebody is at its shard.
    """
    stand_for = set()
    for name, place in group:
        if not place.packed:
            if versions[name] is None or _version(place.file) != versions[name]:
                packs.leave(new, name)
            continue
        with claimed(run, name.removesuffix(ending)) as mine:
            if mine:
                stand_for.add(name)
            if not mine or name in packs.markers(place.file):
                packs.leave(new, name)
    return stand_for


def renew(run: Path, pack: Path) -> bool:
    """Writes what is found in a pack into a new one, since its list is damaged; the old one goes. Nothing is checked.

    The caller holds the claim `COMPACTS`.

    Returns:
        Whether it did: not while another process is at a shard of which the pack holds a part.

    Raises:
        DiskFullError: no space is left.
        RunError: the folder cannot be read or written to.
    """
    folder = pack.parent.parent
    ending = ".npy" if folder.parent.name == "embeddings" else ".parquet"
    gone = packs.markers(pack)
    group = [(name, place) for name, place in packs.salvaged(pack).items() if name not in gone]
    if group:
        new = packs.write_pack(folder, group, {name: place.facts for name, place in group})
        if len(_leave_what_went(run, ending, new, group, {})) < len(group):
            packs.drop_pack(new)
            return False
        packs.show(new)
    packs.drop_pack(pack)
    return True


def _version(file: Path) -> _Version | None:
    try:
        facts = file.stat()
    except FileNotFoundError:
        return None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns
