"""Files by name below a folder of a disk or a URL of a store: list, look, read, put, remove.

A file is there whole or not at all. With `if_absent` one of several writers succeeds. Requests to a store are repeated
as `tamis.remote` says; what was uploaded is looked at, and uploaded again where its size is not the file's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from tamis.errors import DependencyError, RunError
from tamis.processes import temporary_name

T = TypeVar("T")

#: Stores whose libraries create an object by one request that fails where there is one: S3 (If-None-Match, since 2024)
#: and Google's. Of others fsspec looks first and writes then, which two may do at once.
CONDITIONAL = ("s3", "s3a", "gs", "gcs")

_TAGS = ("ETag", "etag", "md5Hash")
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")

_LONGEST_LISTING = 20.0  # times the stall time

_PIECE = 8 << 20
_SMALL = 1 << 12  # by one request: S3's library asks for the size of what it shall read to the end


@dataclass(frozen=True, slots=True)
class Entry:
    """What a disk or store says of a file.

    Attributes:
        size: in bytes.
        tag: what tells its content from what stood there before.
        changed: when it was written, in seconds of its own clock; NaN where a store does not say.
    """

    size: int
    tag: str
    changed: float


def stays_inside(name: str) -> bool:
    """Tells whether the name of an object, taken as a path, stays in the folder that it is put into."""
    return "\0" not in name and not {"", ".", ".."} & set(name.split("/"))


class Disk:
    """The files of a folder."""

    exclusive = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def list(self, folder: str) -> dict[str, Entry]:
        """Returns the files of a folder, by their path from here; not those whose names begin with a dot."""
        place = self.folder / folder
        names = [f"{folder}/{name}" for name in os.listdir(place) if not name.startswith(".")] if place.is_dir() else []
        return {name: entry for name in sorted(names) if (entry := self.look(name)) is not None}

    def look(self, name: str) -> Entry | None:
        """Returns what the disk says of a file; None where there is none."""
        try:
            facts = os.stat(self.folder / name)
        except FileNotFoundError:
            return None
        return Entry(facts.st_size, f"{facts.st_ino:x}-{facts.st_mtime_ns:x}", facts.st_mtime)

    def read(self, name: str) -> bytes | None:
        """Returns a file's bytes; None where there is none."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes, *, if_absent: bool = False) -> bool:
        """Writes a small file; False where `if_absent` and there is one."""
        path = self.folder / name
        temporary = temporary_name(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(data)
            if if_absent:
                os.link(temporary, path)  # atomic, also on NFS and Lustre
            else:
                os.replace(temporary, path)
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        return True

    def remove(self, name: str) -> None:
        """Removes a file, there or not."""
        (self.folder / name).unlink(missing_ok=True)


class Remote:
    """The objects below a URL, by their path from there."""

    def __init__(self, url: str) -> None:
        """Args:
        url: without its secrets, which `tamis.remote` keeps.
        """
        self.url = url

    @cached_property
    def _store(self) -> tuple[Any, str]:
        from tamis.remote import store_of

        try:
            fs, inner = store_of(self.url)
        except (ImportError, ValueError) as error:  # of a kind that needs a package, or is unknown
            raise DependencyError(f"{self.url} cannot be opened: {error}") from error
        return fs, inner.rstrip("/")

    def _ask(self, name: str, question: Callable[[Any, str], T]) -> T:
        """Asks for an object, past what fsspec remembers of listings.

        Raises:
            FileNotFoundError: there is none.
            RunError: the store does not answer, or refuses.
        """
        from tamis.remote import RemoteError, RemoteGoneError, ask

        fs, inner = self._store
        url = f"{self.url}/{name}" if name else self.url

        def asked() -> T:
            fs.invalidate_cache()
            return question(fs, f"{inner}/{name}" if name else inner)

        try:
            return ask(url, asked)
        except RemoteGoneError:
            raise
        except RemoteError as error:
            raise RunError(
                f"the run's store failed, {url}: {error}. What is complete stays there; repeat the command"
            ) from error

    def list(self, folder: str, *, skip: tuple[str, ...] = ()) -> dict[str, Entry]:
        """Returns the objects of a folder, and of those in it. A folder that is not there has none.

        On S3 that is one listing of all that begins alike, elsewhere one of each folder; fsspec's own search would pass
        over folders that cannot be listed, and a part of a list is no list.

        Names that would lead out of a folder on a disk are no names of ours: they are left out.

        Args:
            folder: "" for everything.
            skip: folders that are left out.
        """
        if self._lists_all:
            found = self._beginning(f"{folder}/" if folder else "", skip)
        else:
            found = self._folder_by_folder(folder, skip)
        return {name: entry for name, entry in found.items() if stays_inside(name)}

    def _folder_by_folder(self, folder: str, skip: tuple[str, ...]) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        left = [folder]
        while left:
            here = left.pop()
            try:
                listed = self._ask(here, lambda fs, path: fs.ls(path, detail=True))
            except FileNotFoundError:
                continue
            start = len(self._store[1]) + 1
            for info in listed:
                name = info["name"].rstrip("/")[start:]
                if info["type"] == "directory":
                    left += [name] if name not in (here, *skip) else []
                elif name and name != here:
                    found[name] = _entry(info)
        return found

    @property
    def _lists_all(self) -> bool:
        return self.url.startswith(("s3://", "s3a://"))

    def _beginning(self, start: str, skip: tuple[str, ...] = ()) -> dict[str, Entry]:
        """Returns the objects whose names begin so."""
        from fsspec.asyn import sync

        from tamis.remote import patience

        def question(fs: Any, path: str) -> dict[str, Any]:
            # A page that comes byte by byte would never end: no library bounds the whole of it.
            timeout = _LONGEST_LISTING * patience().stall
            found: dict[str, Any] = sync(fs.loop, fs._find, path, prefix=start, detail=True, timeout=timeout)
            return found

        try:
            listed = self._ask("", question)
        except FileNotFoundError:  # nor is the bucket there
            return {}
        outer = len(self._store[1]) + 1
        found = {name[outer:]: _entry(info) for name, info in listed.items() if info["type"] == "file"}
        left_out = tuple(f"{folder}/" for folder in skip)
        return {name: entry for name, entry in found.items() if name and not name.startswith(left_out)}

    def look(self, name: str) -> Entry | None:
        """Returns what the store says of an object now; None where there is none."""
        if self._lists_all:  # one request, where asking for one that is not there takes two
            return self._beginning(name).get(name)
        try:
            info = self._ask(name, lambda fs, path: fs.info(path))
        except FileNotFoundError:
            return None
        return None if info["type"] == "directory" else _entry(info)

    def fetch(self, name: str, entry: Entry, to: Path) -> None:
        """Writes an object's bytes to a file.

        Raises:
            FileNotFoundError: it is gone.
        """
        if entry.size > 4 * _PIECE:
            self._fetch_pieces(name, entry, to)
            return

        def question(fs: Any, path: str) -> bytes:
            data: bytes = fs.cat_file(path)
            if len(data) != entry.size and len(data) != (size := fs.info(path)["size"]):
                raise EOFError(f"{len(data):,} bytes came, it has {size:,}")
            return data

        to.write_bytes(self._ask(name, question))

    def _fetch_pieces(self, name: str, entry: Entry, to: Path) -> None:
        with open(to, "wb") as out:
            for start in range(0, entry.size, _PIECE):
                end = min(start + _PIECE, entry.size)

                def question(fs: Any, path: str, start: int = start, end: int = end) -> bytes:
                    data: bytes = fs.cat_file(path, start=start, end=end)
                    if len(data) != end - start:
                        raise EOFError(f"{len(data):,} bytes came, {end - start:,} were asked for")
                    return data

                out.write(self._ask(name, question))
        now = self.look(name)  # its time may be told to the second, or more exactly
        if now is None or (now.size, now.tag) != (entry.size, entry.tag):
            raise RunError(f"{self.url}/{name} has changed while it was read: repeat the command")

    def upload(self, name: str, file: Path) -> Entry:
        """Uploads a file in place of what was there; returns what the store says of it."""

        def question(fs: Any, path: str) -> Entry:
            size = file.stat().st_size  # at each try: a log may have grown
            fs.put_file(os.fspath(file), path)
            fs.invalidate_cache()
            found = _entry(fs.info(path))
            if found.size != size:
                raise EOFError(f"{found.size:,} bytes of {size:,} arrived")
            return found

        return self._written(name, question)

    def _written(self, name: str, question: Callable[[Any, str], T]) -> T:
        try:
            return self._ask(name, question)
        except FileNotFoundError as error:  # of the bucket: names need not be there
            raise RunError(
                f"{self.url} cannot be written to: {error}; make the bucket first, or mend the URL"
            ) from error

    def read(self, name: str) -> bytes | None:
        """Returns the first bytes of a small object that is not empty; None where there is none."""
        try:
            return self._ask(name, lambda fs, path: bytes(fs.cat_file(path, start=0, end=_SMALL)))
        except FileNotFoundError:
            return None

    @property
    def exclusive(self) -> bool:
        """Whether `put` knows `if_absent`: its library has a request that never replaces an object."""
        return self.url.partition("://")[0] in CONDITIONAL

    def put(self, name: str, data: bytes, *, if_absent: bool = False) -> bool:
        """Writes a small object; False where `if_absent` and there is another."""
        from tamis.remote import exists_already

        def question(fs: Any, path: str) -> bool:
            try:
                fs.pipe_file(path, data, **({"mode": "create"} if if_absent else {}))
            except Exception as error:
                if not exists_already(error):
                    raise
                return False
            return True

        return self._written(name, question) or self.read(name) == data  # the answer may have been lost

    def remove(self, name: str) -> None:
        """Removes an object, there or not."""
        with suppress(FileNotFoundError):
            self._ask(name, lambda fs, path: fs.rm_file(path))


def check_url(url: str) -> None:
    """Makes sure that a run can lie at a URL of this kind.

    Raises:
        RunError: nothing can be written there, or nothing stays there.
    """
    kind = url.partition("://")[0]
    if "::" in url:
        raise RunError(f"{url}: a run cannot lie behind a chain of URLs; name the store itself")
    if kind in ("http", "https", "memory", "data", "zip", "tar"):
        raise RunError(
            f"{url}: a run cannot lie at {kind}://, where nothing can be written that others read; take s3://, gs:// "
            "or another store, or a path"
        )


def _entry(info: dict[str, Any]) -> Entry:
    changed = math.nan
    for key in _TIMES:
        value = info.get(key)
        if isinstance(value, str) and value:
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            value = value.timestamp()
        if isinstance(value, int | float):
            changed = float(value)
            break
    size = int(info["size"])
    tag = next((str(info[key]).strip('"') for key in _TAGS if info.get(key)), f"{size}-{info.get('modify', changed)}")
    return Entry(size, tag, changed)
