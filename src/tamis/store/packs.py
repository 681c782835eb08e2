"""Packs: many parts of one folder in one file, byte for byte as they were written, so that a run has few files.

The path of a part is its name: `index/00000.parquet` names the part of the shard 00000 whether it lies there as a file
or in a pack, `index/packed/<word>.pack`. `located` is the one way from the name to the bytes. A file wins over a pack:
what is written anew counts at once. Packs never change: a part leaves one by a marker beside it, `<word>-<part>.gone`;
the next `tamis compact` leaves it out.

A pack is its parts one after the other, each at a multiple of 64 bytes, then a list of them as JSON, then the list's
length (16 hex digits), its xxh3-64 (16 hex digits) and `tamis.pack.1` with a line feed. The parts keep their own seals.
The list stands before the parts too, behind `tamis.pack.list` with a line feed, its length and its xxh3-64: one that
does not match its hash is not believed, the other is then. Packs of older versions have it behind the parts alone.

A pack that has the marker `<word>-all.gone` counts as empty: it has just been written, and nobody has looked yet which
of its parts left the run meanwhile.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import pydantic
import xxhash

from tamis.errors import DamageError
from tamis.store import mirror
from tamis.store.atomic import denied, remove_file, to_disk, write_json, writing

T = TypeVar("T")

#: The folder beside the parts where packs lie.
PACKED = "packed"

PACK, GONE = ".pack", ".gone"

#: In place of a part's name in a marker: every part. Names of parts end in .parquet or .npy.
_ALL = "all"

_TRAILER = b"tamis.pack.1\n"
_FRONT = b"tamis.pack.list\n"
_DIGITS = 16
_ALIGNED = 64  # arrays are mapped into memory where they lie
_PIECE = 8 << 20


@dataclass(frozen=True, slots=True)
class Place:
    """Where the bytes of a part lie.

    Attributes:
        file: the part's own, or a pack.
        begin, size: in bytes.
        facts: what the pack's list tells of the part beside its place; {} for a file of its own.
    """

    file: Path
    begin: int
    size: int
    facts: Mapping[str, Any]

    @property
    def packed(self) -> bool:
        return self.file.suffix == PACK


class _Entry(pydantic.BaseModel):
    """A part in a pack's list."""

    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    begin: int = pydantic.Field(ge=0)
    size: int = pydantic.Field(ge=0)
    facts: dict[str, Any] = {}


class _List(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", strict=True)

    parts: dict[str, _Entry]


#: Lists of packs that this process has read: by path and inode.
_known: dict[tuple[str, int], Mapping[str, Place]] = {}

#: What lies in the packs of a folder: by the folder, with the time when its packs last changed.
_listed: dict[str, tuple[int, Mapping[str, Place]]] = {}

# Two changes within a tick of the file system's clock leave one time: it is believed when it is old enough.
_SETTLED_NANOSECONDS = 3_000_000_000

_TRIES = 5  # of opening a part that is being packed: files and packs change places once per `tamis compact`


def forget_lists() -> None:
    """Has the list of every pack be read again: for who must not believe that it is as it was."""
    _known.clear()
    _listed.clear()


def packs_in(folder: Path) -> list[Path]:
    """Returns the packs of a folder of parts, by name."""
    mirror.bring_packs(folder / PACKED)
    try:
        return sorted(Path(entry.path) for entry in os.scandir(folder / PACKED) if entry.name.endswith(PACK))
    except FileNotFoundError:
        return []


def contents(pack: Path) -> Mapping[str, Place]:
    """Returns the parts of a pack by file name, those that are gone among them.

    Raises:
        DamageError: it is no pack, or its list is damaged.
        FileNotFoundError: it is not there (any more).
        RunError: it cannot be read.
    """
    try:
        with open(pack, "rb") as file:
            key = (os.fspath(pack), os.fstat(file.fileno()).st_ino)
            if key not in _known:
                _known[key] = _read_list(pack, file)
            return _known[key]
    except FileNotFoundError:
        raise
    except OSError as error:
        raise denied(pack, error) or _damaged(pack, str(error)) from error


def _read_list(pack: Path, file: BinaryIO) -> Mapping[str, Place]:
    try:
        return _listed_behind(pack, file)
    except DamageError:
        in_front = _listed_in_front(pack, file)
        if in_front is None:
            raise
        return in_front


def _listed_behind(pack: Path, file: BinaryIO) -> Mapping[str, Place]:
    """Returns what the list behind the parts tells.

    Raises:
        DamageError: it is damaged.
    """
    end = os.fstat(file.fileno()).st_size - len(_TRAILER) - 2 * _DIGITS
    file.seek(max(0, end))
    tail = file.read()
    if end < 0 or not tail.endswith(_TRAILER):
        raise _damaged(pack, "it is not a pack, or is cut off")
    try:
        size = int(tail[:_DIGITS], 16)
        file.seek(end - size)
        return _checked_list(pack, file.read(size) if size <= end else b"", tail[_DIGITS : 2 * _DIGITS])
    except (ValueError, OSError) as error:
        raise _damaged(pack, f"its list cannot be read ({str(error)[:200]})") from error


def _listed_in_front(pack: Path, file: BinaryIO) -> Mapping[str, Place] | None:
    """Returns what the list before the parts tells; None where it is damaged, or the pack is of an older version."""
    file.seek(0)
    head = file.read(len(_FRONT) + 2 * _DIGITS)
    try:
        size = int(head[len(_FRONT) : -_DIGITS], 16)
        if not head.startswith(_FRONT) or size > os.fstat(file.fileno()).st_size:
            return None
        return _checked_list(pack, file.read(size), head[-_DIGITS:])
    except (ValueError, DamageError):
        return None


def _checked_list(pack: Path, raw: bytes, digest: bytes) -> Mapping[str, Place]:
    if xxhash.xxh3_64_hexdigest(raw).encode() != digest:
        raise _damaged(pack, "its list is not what was written")
    listed = _List.model_validate_json(raw)
    return {name: Place(pack, one.begin, one.size, one.facts) for name, one in listed.parts.items()}


def spare_is_damaged(pack: Path) -> bool:
    """Tells whether one of the two copies of a pack's list is damaged; the other is whole.

    Raises:
        DamageError: none is.
        FileNotFoundError: it is not there (any more).
        RunError: it cannot be read.
    """
    places = contents(pack)
    try:
        with open(pack, "rb") as file:
            try:
                _listed_behind(pack, file)
            except DamageError:
                return True
            # In packs of older versions, which have no list there, the first part begins at 0.
            return min(place.begin for place in places.values()) > 0 and _listed_in_front(pack, file) is None
    except FileNotFoundError:
        raise
    except OSError as error:
        raise denied(pack, error) or _damaged(pack, str(error)) from error


#: How the list tells of a part.
_ENTRY = re.compile(rb'"((?:[^"\\]|\\.){1,400})": \{"begin": (\d{1,18}), "size": (\d{1,18})')

#: How the files of parts begin, and how those end: whole Parquet, and a sealed array.
_ENDS = {b"PAR1": b"PAR1", b"\x93NUM": b".1\n"}


def salvaged(pack: Path) -> dict[str, Place]:
    """Returns the parts that can be found in a pack, also where every copy of its list is damaged.

    An entry of a list is believed where a part's file begins and ends where it says. What a part holds, its own seal
    tells. It reads the whole pack.

    Raises:
        OSError: it cannot be read.
    """
    try:
        listed: Mapping[str, Place] = contents(pack)
    except DamageError:
        listed = {}
    found: dict[str, Place] = {}
    with open(pack, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return {}
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:

            def holds(place: Place) -> bool:
                end = _ENDS.get(data[place.begin : place.begin + 4])
                last = place.begin + place.size
                return end is not None and last <= len(data) and data[last - len(end) : last] == end

            if listed:
                return {name: place for name, place in listed.items() if place.begin + place.size <= len(data)}
            for entry in _ENTRY.finditer(data):
                try:
                    name = str(json.loads(b'"' + entry[1] + b'"'))
                except ValueError:
                    continue
                place = Place(pack, int(entry[2]), int(entry[3]), {})
                if name == os.path.basename(name) and holds(place):
                    found.setdefault(name, place)
    return found


def _damaged(pack: Path, what: str) -> DamageError:
    return DamageError(
        f"{mirror.named(pack)} is damaged: {what}. `tamis doctor RUN --repair` keeps the parts that it finds there, "
        "`tamis score` makes the others again",
        what,
    )


def _marker(pack: Path, name: str) -> Path:
    return pack.with_name(f"{pack.stem}-{name}{GONE}")


def located(path: Path) -> Place | None:
    """Returns where the bytes of a part lie, by its path; None where it is not there.

    Raises:
        DamageError: a pack of its folder is damaged.
    """
    # A part that is being packed is a file, then both, then in the pack: looked for in this order, it is always found.
    try:
        return Place(path, 0, path.stat().st_size, {})
    except (FileNotFoundError, NotADirectoryError):
        if mirror.fetched(path):
            return Place(path, 0, path.stat().st_size, {})
        return packed_in(path.parent).get(path.name)


def exists(path: Path) -> bool:
    """Tells whether a part is there, by its path."""
    return mirror.listed(path) or located(path) is not None


def opened(path: Path, open_it: Callable[[Place], T]) -> T:
    """Calls `open_it` with the place of a part, and once more where it was packed between looking and opening.

    Raises:
        FileNotFoundError: the part is not there.
    """
    for _ in range(_TRIES):
        place = located(path)
        if place is None:
            break
        try:
            return open_it(place)
        except FileNotFoundError:
            continue
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))


def part_names(folder: Path, ending: str) -> set[str]:
    """Returns the shards that have a part in a folder, however they lie: a listing, and the list of each pack.

    Raises:
        DamageError: a pack is damaged.
    """
    if not folder.is_dir():
        return set()
    # First the files: a part that is packed meanwhile is then in one of the two.
    found = {
        entry.name.removesuffix(ending)
        for entry in os.scandir(folder)
        if entry.name.endswith(ending) and not entry.name.startswith(".") and entry.name != "scorer.json"
    }
    found |= {name.removesuffix(ending) for name in mirror.names_in(folder) if name.endswith(ending)}
    return found | {name.removesuffix(ending) for name in packed_in(folder) if name.endswith(ending)}


def packed_in(folder: Path) -> Mapping[str, Place]:
    """Returns the parts that lie in the packs of a folder, by file name, without those that have left them.

    Raises:
        DamageError: a pack is damaged.
    """
    key = os.fspath(folder)
    mirror.bring_packs(folder / PACKED)
    try:
        changed = os.stat(folder / PACKED).st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return {}
    if key in _listed and _listed[key][0] == changed:
        return _listed[key][1]
    found: dict[str, Place] = {}
    for pack in packs_in(folder):
        try:
            listed = contents(pack)
        except FileNotFoundError:  # put together with others meanwhile: its parts are in the new one
            return packed_in(folder)
        gone = markers(pack)
        if _ALL in gone:
            continue
        found |= {name: place for name, place in listed.items() if name not in gone} if gone else listed
    if time.time_ns() - changed > _SETTLED_NANOSECONDS:
        _listed[key] = (changed, found)
    return found


def markers(pack: Path) -> set[str]:
    """Returns the names of the parts that have left a pack."""
    start, end = f"{pack.stem}-", GONE
    found = (entry.name for entry in os.scandir(pack.parent))
    return {name[len(start) : -len(end)] for name in found if name.startswith(start) and name.endswith(end)}


def is_hidden(pack: Path) -> bool:
    """Tells whether a pack counts as empty: it is being made, or was when its maker was killed."""
    return _marker(pack, _ALL).exists()


def show(pack: Path) -> None:
    """Has a pack of `write_pack` count: what is in it, without what has left it, is what the run holds."""
    unlink(_marker(pack, _ALL))
    to_disk(pack.parent)  # before the files go that it stands for


def remove(path: Path) -> None:
    """Removes a part, however it lies."""
    unlink(path)
    for pack in packs_in(path.parent):
        leave(pack, path.name)


def how_to_remove(path: Path) -> str:
    """Returns what a person does to have a part made anew: "delete ...", or what takes it out of its pack."""
    place = packed_in(path.parent).get(path.name)
    if path.exists() or place is None:
        return f"delete {mirror.named(path)}"
    return f"make the empty file {mirror.named(_marker(place.file, path.name))}, which takes it out of its pack,"


def unlink(path: Path) -> None:
    """Removes the file of a part; in a pack it stays."""
    remove_file(path)


def leave(pack: Path, name: str) -> None:
    """Takes a part out of a pack, if it is in there."""
    if name in contents(pack) and not _marker(pack, name).exists():
        write_json(_marker(pack, name), {}, durable=False)


def write_pack(folder: Path, parts: Sequence[tuple[str, Place]], facts: Mapping[str, Mapping[str, Any]]) -> Path:
    """Writes parts of a folder into a new pack, byte for byte, and returns it. What they are read from stays.

    The pack is hidden until `show`: a part may have left the run before the pack was there to be taken out of. Whoever
    removes one from now on takes it out of this pack as well.

    Args:
        folder: of the parts.
        parts: file names, and where they lie now.
        facts: what the list shall tell of a part beside its place, by file name.

    Raises:
        DiskFullError: no space is left.
        FileNotFoundError: a part is not where it lay.
        RunError: the folder cannot be written to.
    """
    # Never a name that was there before: markers of an older pack of that name would hide parts of this one.
    pack = folder / PACKED / f"{uuid.uuid4().hex[:_DIGITS]}{PACK}"
    listed = _list_of(parts, facts)
    raw = json.dumps({"parts": listed}, ensure_ascii=False).encode()
    length, digest = f"{len(raw):0{_DIGITS}x}".encode(), xxhash.xxh3_64_hexdigest(raw).encode()
    write_json(_marker(pack, _ALL), {})
    try:
        # Durable: what it stands for is about to go.
        with writing(pack, durable=True) as temporary, open(temporary, "wb") as out:
            out.write(_FRONT + length + digest + raw)
            for name, place in parts:
                out.write(b"\0" * (listed[name]["begin"] - out.tell()))
                with open(place.file, "rb") as source:
                    source.seek(place.begin)
                    _copy(source, out, place.size, name)
            out.write(raw + length + digest + _TRAILER)
    except BaseException:
        remove_file(_marker(pack, _ALL))
        raise
    return pack


def _list_of(parts: Sequence[tuple[str, Place]], facts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the list of a pack that has it before its parts too: where they begin depends on how long it is."""
    room = 0
    while True:
        listed: dict[str, Any] = {}
        begin = room
        for name, place in parts:
            listed[name] = {"begin": begin, "size": place.size, "facts": dict(facts.get(name, {}))}
            begin = _aligned(begin + place.size)
        raw = json.dumps({"parts": listed}, ensure_ascii=False).encode()
        needed = _aligned(len(_FRONT) + 2 * _DIGITS + len(raw))
        if needed <= room:
            return listed
        room = needed


def _aligned(size: int) -> int:
    return size + -size % _ALIGNED


def _copy(source: BinaryIO, out: BinaryIO, size: int, name: str) -> None:
    left = size
    while left:
        piece = source.read(min(left, _PIECE))
        if not piece:
            raise DamageError(f"{name} became shorter while it was read: another program writes to the run", "")
        out.write(piece)
        left -= len(piece)


def drop_pack(pack: Path) -> None:
    """Deletes a pack, and the markers of what has left it."""
    gone = markers(pack)
    remove_file(pack)
    for name in gone:
        remove_file(_marker(pack, name))
