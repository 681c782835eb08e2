"""Packs: many parts of one folder in one file, byte for byte as they were written, so that a run has few files.

The path of a part is its name: `index/00000.parquet` names the part of the shard 00000 whether it lies there as a file
or in a pack, `index/packed/<word>.pack`. `located` is the one way from the name to the bytes. A file wins over a pack:
what is written anew counts at once. Packs never change: a part leaves one by a marker beside it, `<word>-<part>.gone`;
the next `tamis compact` leaves it out.

A pack is its parts one after the other, each at a multiple of 64 bytes, then a list of them as JSON, then the list's
length (16 hex digits), its xxh3-64 (16 hex digits) and `tamis.pack.1` with a line feed. The parts keep their own seals.
"""

from __future__ import annotations

import errno
import json
import os
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
from tamis.store.atomic import denied, remove_file, write_json, writing

T = TypeVar("T")

#: The folder beside the parts where packs lie.
PACKED = "packed"

PACK, GONE = ".pack", ".gone"

_TRAILER = b"tamis.pack.1\n"
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
    end = os.fstat(file.fileno()).st_size - len(_TRAILER) - 2 * _DIGITS
    file.seek(max(0, end))
    tail = file.read()
    if end < 0 or not tail.endswith(_TRAILER):
        raise _damaged(pack, "it is not a pack, or is cut off")
    try:
        size = int(tail[:_DIGITS], 16)
        file.seek(end - size)
        raw = file.read(size)
        if size > end or xxhash.xxh3_64_hexdigest(raw).encode() != tail[_DIGITS : 2 * _DIGITS]:
            raise _damaged(pack, "its list is not what was written")
        listed = _List.model_validate_json(raw)
    except (ValueError, OSError) as error:
        raise _damaged(pack, f"its list cannot be read ({str(error)[:200]})") from error
    return {name: Place(pack, one.begin, one.size, one.facts) for name, one in listed.parts.items()}


def _damaged(pack: Path, what: str) -> DamageError:
    return DamageError(
        f"{pack} is damaged: {what}. `tamis doctor RUN --repair` deletes it, `tamis score` makes its parts again", what
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
        found |= {name: place for name, place in listed.items() if name not in gone} if gone else listed
    if time.time_ns() - changed > _SETTLED_NANOSECONDS:
        _listed[key] = (changed, found)
    return found


def markers(pack: Path) -> set[str]:
    """Returns the names of the parts that have left a pack."""
    start, end = f"{pack.stem}-", GONE
    found = (entry.name for entry in os.scandir(pack.parent))
    return {name[len(start) : -len(end)] for name in found if name.startswith(start) and name.endswith(end)}


def remove(path: Path) -> None:
    """Removes a part, however it lies."""
    unlink(path)
    for pack in packs_in(path.parent):
        leave(pack, path.name)


def how_to_remove(path: Path) -> str:
    """Returns what a person does to have a part made anew: "delete ...", or what takes it out of its pack."""
    place = packed_in(path.parent).get(path.name)
    if path.exists() or place is None:
        return f"delete {path}"
    return f"make the empty file {_marker(place.file, path.name)}, which takes it out of its pack,"


def unlink(path: Path) -> None:
    """Removes the file of a part; in a pack it stays."""
    remove_file(path)


def leave(pack: Path, name: str) -> None:
    """Takes a part out of a pack, if it is in there."""
    if name in contents(pack) and not _marker(pack, name).exists():
        write_json(_marker(pack, name), {}, durable=False)


def write_pack(folder: Path, parts: Sequence[tuple[str, Place]], facts: Mapping[str, Mapping[str, Any]]) -> Path:
    """Writes parts of a folder into a new pack, byte for byte, and returns it. What they are read from stays.

    Args:
        folder: of the parts.
        parts: file names, and where they lie now.
        facts: what the list shall tell of a part beside its place, by file name.

    Raises:
        DiskFullError: no space is left.
        RunError: the folder cannot be written to.
    """
    listed: dict[str, Any] = {}
    # Never a name that was there before: markers of an older pack of that name would hide parts of this one.
    pack = folder / PACKED / f"{uuid.uuid4().hex[:_DIGITS]}{PACK}"
    with writing(pack, durable=True) as temporary, open(temporary, "wb") as out:  # what it stands for is about to go
        for name, place in parts:
            out.write(b"\0" * (-out.tell() % _ALIGNED))
            listed[name] = {"begin": out.tell(), "size": place.size, "facts": dict(facts.get(name, {}))}
            with open(place.file, "rb") as source:
                source.seek(place.begin)
                _copy(source, out, place.size, name)
        raw = json.dumps({"parts": listed}, ensure_ascii=False).encode()
        out.write(raw + f"{len(raw):0{_DIGITS}x}".encode() + xxhash.xxh3_64_hexdigest(raw).encode() + _TRAILER)
    return pack


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
