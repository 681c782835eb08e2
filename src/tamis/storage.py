"""Files of runs, on a disk or at a URL: list, read, open, put and remove.

A folder on a disk is a `Path`, one at an fsspec URL (s3://, gs://) a `RemotePath` with the same methods, so nothing
else tells the two apart. Files appear when they are complete, and replacing one is a single step: readers need no lock.
Storage does not check contents: the file formats do.

`open` at a URL gives a copy on this disk, downloaded once per version (TAMIS_CACHE, else ~/.cache/tamis). The copies
may be deleted at any time.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import xxhash

from tamis.errors import DamageError, DiskFullError, RunError
from tamis.processes import TEMPORARY, in_work, temporary_name
from tamis.remote import RemoteError, RemoteExistsError, RemoteGoneError, ask, fetch, keep_secrets, redacted, version_of

T = TypeVar("T")

#: Stores where fsspec can create an object only if there is none (If-None-Match). Elsewhere it checks first and then
#: writes, which two processes may do at once.
CREATES_ONLY_IF_ABSENT = ("s3", "s3a", "gs", "gcs")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|[A-Za-z0-9+.-]+::")
_LOST_SLASH = re.compile(r"^([a-z][a-z0-9+.-]+):/(?=[^/])")  # how `Path` shortens a URL

_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")

_PIECE = 8 << 20  # bytes of one request
_AT_ONCE = 16  # requests


@dataclass(frozen=True, slots=True)
class Entry:
    """What a disk or store says about a file."""

    size: int
    tag: str  # differs between versions of the file
    changed: float  # seconds of the disk's or store's clock; NaN where a store does not say


#: What was last heard of each object, by URL. `open` serves the cached copy of that version without asking.
_known: dict[str, Entry] = {}


class RemotePath(type(Path())):  # type: ignore[misc]
    """A file or folder at a URL, with the methods of `Path` that runs need. Any other use of the disk raises."""

    def __str__(self) -> str:
        return _LOST_SLASH.sub(r"\1://", super().__str__())

    def __fspath__(self) -> str:
        raise RunError(f"{self}: a path on a disk is wanted here, not a URL")

    def ask(self, request: Callable[[Any, str], T], *, writes: bool = False) -> T:
        """Makes a request, with retries; raises RunError if the store does not answer, or refuses."""

        def fresh(fs: Any, inner: str) -> T:
            fs.invalidate_cache()
            return request(fs, inner)

        with _as_run_error(self, writes):
            return ask(str(self), fresh)

    def exists(self, **_: Any) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self, **_: Any) -> bool:
        return entry_of(self) is not None

    def is_dir(self, **_: Any) -> bool:
        return bool(self.children())

    def children(self, kind: str = "") -> list[RemotePath]:
        """Returns the files ("file"), the folders ("directory") or both, sorted by name."""
        try:
            listed, here = self.ask(lambda fs, path: (list(fs.ls(path, detail=True)), path.strip("/")))
        except FileNotFoundError:
            return []
        found = []
        for facts in listed:
            whole = str(facts["name"]).strip("/")
            name = whole.rpartition("/")[2]
            if whole == here or name in ("", ".", "..") or kind not in ("", facts["type"]):  # no path names "a//b"
                continue
            child = self / name
            if facts["type"] == "file":
                _note(child, facts)
            found.append(child)
        return sorted(found)

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yields what matches a pattern of names and "*", folder by folder."""
        first, _, rest = pattern.partition("/")
        for child in self.children("directory" if rest else ""):
            if fnmatchcase(child.name, first):
                yield from child.glob(rest) if rest else (child,)

    def read_bytes(self) -> bytes:
        def request(fs: Any, path: str) -> bytes:
            data: bytes = fs.cat_file(path)
            _check_size(len(data), fs.info(path)["size"])
            return data

        return self.ask(request)

    def read_text(self, *_: Any, **__: Any) -> str:
        return self.read_bytes().decode()

    def open(self, *_: Any, **__: Any) -> BinaryIO:
        return open(local_copy(self), "rb")

    def unlink(self, missing_ok: bool = False) -> None:
        if (entry := _known.pop(str(self), None)) is not None:
            _copy(self, entry).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            self.ask(lambda fs, path: fs.rm_file(path))

    def mkdir(self, *_: Any, **__: Any) -> None:
        """A folder exists while there are objects in it."""

    rmdir = mkdir

    def is_symlink(self) -> bool:
        return False

    def resolve(self, *_: Any) -> RemotePath:
        return self

    absolute = expanduser = resolve


@contextmanager
def _as_run_error(path: Path, writes: bool = False) -> Iterator[None]:
    """Turns errors of a store into a RunError; that there is no such object, or one already, passes through."""
    try:
        yield
    except RemoteError as error:
        gone = isinstance(error, RemoteGoneError)
        if isinstance(error, RemoteExistsError) or (gone and not writes):
            raise
        advice = "What is complete stays there; repeat the command"
        if gone:
            advice = "Make the bucket first, or correct the URL"
        raise RunError(f"the run's store failed, {path}: {error}. {advice}") from error


def _check_size(size: int, expected: int) -> None:
    if size != expected:
        raise EOFError(f"{size:,} bytes arrived, {expected:,} were expected")


def _note(path: Path, facts: dict[str, Any]) -> Entry:
    """Notes what a store says of an object, and drops the cached copy of an older version."""
    changed = next((facts[key] for key in _TIMES if facts.get(key)), math.nan)
    if isinstance(changed, str):
        changed = datetime.fromisoformat(changed)
    seconds = changed.timestamp() if isinstance(changed, datetime) else float(changed)
    entry = Entry(int(facts["size"]), version_of(facts), seconds)
    before = _known.get(str(path))
    if before is not None and before.tag != entry.tag:
        _copy(path, before).unlink(missing_ok=True)
    _known[str(path)] = entry
    return entry


def _cache() -> Path:
    """Returns the folder of local copies."""
    place = os.environ.get("TAMIS_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "tamis")
    return Path(place).expanduser() / "runs"


def _copy(path: Path, entry: Entry) -> Path:
    version = xxhash.xxh3_128_hexdigest(f"{path} {entry.tag} {entry.size}".encode())
    return _cache() / version[:2] / f"{version}{path.suffix}"


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Gives the name of a temporary file: in the folder of a path, or for an object in the cache."""
    if isinstance(path, RemotePath):
        path = _cache() / "unfinished" / path.name[-100:]
        _sweep_once(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink()


# ---- where a run is --------------------------------------------------------------------------------------------------


def location(where: str | os.PathLike[str]) -> Path:
    """Returns the path of a run that a user named by path or URL, whose secrets stay in memory; raises RunError."""
    if isinstance(where, RemotePath):
        return where
    text = os.fspath(where).removeprefix("file://").removeprefix("local://")
    if _URL.match(text) is None:
        path = Path(text).expanduser()
        check_path(path)
        return path
    url = keep_secrets(text.rstrip("/"), lambda url: [url])
    if "::" in url or url.startswith(("http://", "https://", "memory://", "data://", "zip://", "tar://")):
        raise RunError(
            f"{url}: a run must be where other processes read and write it, and not behind a chain of URLs: use "
            "s3://, gs:// or another store, or a path"
        )
    return RemotePath(url)


def check_path(path: Path) -> None:
    """Raises RunError if a path on a disk was a URL: `Path` takes a slash away, and a folder "s3:" would be made."""
    lost = not isinstance(path, RemotePath) and _LOST_SLASH.match(str(path))
    if lost and not Path(path.parts[0]).exists():
        shown = redacted(str(path).replace(":/", "://", 1)).replace("://", ":/", 1)
        raise RunError(
            f"{shown}: a path on a disk is wanted here, not the URL of a store: copy the file from or to the store "
            "with the store's own tool (aws s3 cp); give the URL of a run as a text, not as a Path"
        )


def output_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a file that a command reads or writes next to a run: on a disk, unless it is a run's."""
    return path if isinstance(path, RemotePath) else Path(path).expanduser()


def is_run(where: str | os.PathLike[str]) -> bool:
    """Whether a run is at a path or URL; raises RunError if the store does not say."""
    try:
        folder = location(where)
    except RunError:  # no run can be there
        return False
    return (folder / "run.json").is_file()


# ---- reading ---------------------------------------------------------------------------------------------------------


def entry_of(path: Path) -> Entry | None:
    """Returns what the disk or store says about a file now; None if there is none."""
    with suppress(FileNotFoundError):
        if not isinstance(path, RemotePath):
            facts = path.stat()
            return Entry(facts.st_size, f"{facts.st_ino:x}-{facts.st_mtime_ns:x}", facts.st_mtime)
        found = path.ask(lambda fs, inner: fs.info(inner))
        if found["type"] == "file":
            return _note(path, found)
    _known.pop(str(path), None)
    return None


def files(folder: Path, ending: str = "") -> set[str]:
    """Returns the names of a folder's files with an ending, without it; hidden files are left out."""
    if isinstance(folder, RemotePath):
        names = [child.name for child in folder.children("file")]
    else:
        names = os.listdir(folder) if folder.is_dir() else []
    return {name.removesuffix(ending) for name in names if name.endswith(ending) and not name.startswith(".")}


def folders(folder: Path) -> list[Path]:
    """Returns the folders in a folder, sorted by name."""
    if isinstance(folder, RemotePath):
        return list(folder.children("directory"))
    return sorted(Path(entry.path) for entry in os.scandir(folder) if entry.is_dir()) if folder.is_dir() else []


def local_copy(path: Path) -> Path:
    """Returns the path of a file on this disk: the file itself, or a copy of the last known version of an object."""
    if not isinstance(path, RemotePath):
        return path
    entry = _known.get(str(path)) or entry_of(path)
    while entry is not None:
        copy = _copy(path, entry)
        with suppress(FileNotFoundError):
            if copy.stat().st_size == entry.size:
                return copy
        try:
            return _download(path, entry, copy)
        except (FileNotFoundError, RunError):
            before, entry = entry, entry_of(path)
            if entry is None or entry.tag == before.tag:
                raise
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _download(path: RemotePath, entry: Entry, copy: Path) -> Path:
    with _temporary(path) as temporary:
        with open(temporary, "wb") as out, _as_run_error(path):
            for start in range(0, entry.size, _PIECE):
                out.write(fetch(str(path), start, min(start + _PIECE, entry.size), whole=True))
        if entry.size > _PIECE and ((now := entry_of(path)) is None or now.tag != entry.tag):
            raise RunError(f"{path} has changed while it was read: repeat the command")
        copy.parent.mkdir(parents=True, exist_ok=True)
        os.replace(temporary, copy)
    return copy


def prefetch(paths: Iterable[Path]) -> None:
    """Downloads objects, several at once; files on a disk, and objects that do not exist, are skipped."""

    def download(path: RemotePath) -> None:
        with suppress(FileNotFoundError):
            local_copy(path)

    if far := [path for path in paths if isinstance(path, RemotePath)]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(download, far))


def drop_cached(path: Path) -> None:
    """Drops the cached copy of a file, so that the next read sees what the store has now."""
    if isinstance(path, RemotePath) and (entry := entry_of(path)):
        _copy(path, entry).unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Returns what a JSON file of ours holds; raises DamageError for another content, RunError if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        what = f"it is not JSON ({error})"
        raise DamageError(f"{path} is damaged: {what}; restore it, or start another run folder", what) from error
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error


# ---- writing ---------------------------------------------------------------------------------------------------------


@contextmanager
def writing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Gives a temporary file to write to. If the block ends well, it becomes `path`, or is uploaded as that object.

    Args:
        path: of the file.
        durable: wait until file and folder are on the disk, so that a power cut leaves the old file or this one and
            none that is empty. It takes milliseconds, on a busy disk more: for files that nothing else can make again.

    Raises:
        DiskFullError: no space is left.
        RunError: the folder cannot be written to, or the store cannot.
    """
    check_path(path)
    with explained_errors(path), _temporary(path) as temporary:
        yield temporary
        if isinstance(path, RemotePath):
            _upload(path, temporary)
            return
        if durable:
            to_disk(temporary)
        os.replace(temporary, path)
        if durable:
            to_disk(path.parent)


def _upload(path: RemotePath, file: Path) -> None:
    """Replaces an object by a file, which becomes the local copy."""

    def request(fs: Any, inner: str) -> dict[str, Any]:
        fs.put_file(os.fspath(file), inner)
        fs.invalidate_cache()
        facts: dict[str, Any] = fs.info(inner)
        _check_size(facts["size"], file.stat().st_size)
        return facts

    copy = _copy(path, _note(path, path.ask(request, writes=True)))
    copy.parent.mkdir(parents=True, exist_ok=True)
    os.replace(file, copy)


def check_writable(path: Path) -> None:
    """Raises RunError if a path cannot be written: its folder, or the one in which that would be made, or a URL."""
    check_path(path)
    if isinstance(path, RemotePath):
        return
    folder = next(one for one in path.absolute().parents if os.path.lexists(one))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        what = "read-only" if folder.is_dir() else "not a folder"
        raise RunError(f"cannot write {path}: {folder} is {what}; choose a folder you can write to")


def put(path: Path, data: bytes, *, if_absent: bool = False) -> bool:
    """Writes a small file. Returns False if `if_absent` and there is one with other content: one of several wins."""
    try:
        if isinstance(path, RemotePath):
            options = {"mode": "create"} if if_absent else {}
            _known.pop(str(path), None)
            path.ask(lambda fs, inner: fs.pipe_file(inner, data, **options), writes=True)
            return True
        with _temporary(path) as temporary:
            temporary.write_bytes(data)
            if if_absent:
                os.link(temporary, path)  # atomic, also on NFS and Lustre
            else:
                os.replace(temporary, path)
    except FileExistsError:
        with suppress(FileNotFoundError):  # removed meanwhile
            return path.read_bytes() == data  # the answer to an earlier try may have been lost
        return False
    return True


def can_put_if_absent(path: Path) -> bool:
    """Whether `put` can write only where there is no file: some stores cannot."""
    return not isinstance(path, RemotePath) or str(path).partition("://")[0] in CREATES_ONLY_IF_ABSENT


def remove(path: Path) -> None:
    """Removes a file if it exists."""
    path.unlink(missing_ok=True)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Writes a JSON file; `durable` as for `writing`."""
    with writing(path, durable=durable) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def seconds_between_writes(path: Path) -> float:
    """Returns how often a file that says how far a command is should be written."""
    return 20.0 if isinstance(path, RemotePath) else 1.0


class Log:
    """A file of lines that grows. On a disk each line is appended; an object is uploaded again every five minutes."""

    def __init__(self, path: Path) -> None:
        self._path, self._lines, self._last = path, b"", time.monotonic()

    def append(self, line: str) -> None:
        self._lines += line.encode() + b"\n"
        if not isinstance(self._path, RemotePath) or time.monotonic() - self._last > 300:
            self.flush()

    def flush(self) -> None:
        """Writes what was appended."""
        if self._lines and isinstance(self._path, RemotePath):
            put(self._path, (self._path.read_bytes() if self._path.is_file() else b"") + self._lines)
        elif self._lines:
            with explained_errors(self._path), open(self._path, "ab") as file:
                file.write(self._lines)
        self._lines, self._last = b"", time.monotonic()


def sweep(folder: Path, names: Sequence[str] = ("",)) -> None:
    """Deletes temporary files that killed processes left in a folder: all of them, or those of the named files."""
    starts = tuple(f".{name}" for name in names)
    if not isinstance(folder, RemotePath) and folder.is_dir():
        for entry in list(os.scandir(folder)):
            ours = entry.name.endswith(TEMPORARY) and entry.name.startswith(starts)
            if ours and not entry.is_dir(follow_symlinks=False) and not in_work(Path(entry.path)):
                Path(entry.path).unlink(missing_ok=True)


_sweep_once = cache(sweep)


def to_disk(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some file systems cannot do that, above all for folders. Errors of those that can must be raised.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


# ---- errors of the disk ----------------------------------------------------------------------------------------------


@contextmanager
def explained_errors(path: Path) -> Iterator[None]:
    """Raises DiskFullError or RunError for the system's errors on writing a path, and for safetensors' own for them."""
    try:
        yield
    except Exception as caught:
        number = re.search(r"os error (\d+)", str(caught)) if type(caught).__name__ == "SafetensorError" else None
        error = OSError(int(number[1]), os.strerror(int(number[1]))) if number else caught
        if not isinstance(error, OSError):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            folder = _cache() if isinstance(path, RemotePath) else path.parent
            raise DiskFullError(
                f"no space is left at {folder}; what was complete stays. Free some and repeat the command"
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EFBIG):
            raise RunError(f"cannot write {path}: {error.strerror}; choose a folder you can write to") from error
        error.filename = error.filename or str(path)  # writes do not name their file
        if error is caught:
            raise
        raise error from caught


def denied(path: Path, error: BaseException) -> RunError | None:
    """Returns our error if a file could not be read, but may be whole: damaged files are deleted and made again."""
    if isinstance(error, OSError) and error.errno and error.errno not in (errno.ENOENT, errno.EISDIR, errno.EINVAL):
        return RunError(f"{path} cannot be read: {os.strerror(error.errno)}")  # pyarrow says more than that
    return None
