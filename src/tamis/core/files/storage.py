"""Files of runs, on a disk or at a URL: list, read, open, put and remove.

A local folder is a `Path`, a folder at an fsspec URL (s3://, gs://) a `RemotePath` with the same methods, so no other
module distinguishes them. Files appear only when complete and are replaced atomically, so readers need no lock.
Storage does not check contents: the file formats do.

Opening an object opens a local copy, downloaded once per version (to TAMIS_CACHE, else ~/.cache/tamis). The copies may
be deleted at any time.
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

from tamis.core.errors import DamageError, DiskFullError, RunError
from tamis.core.files.remote import (
    RemoteError,
    RemoteExistsError,
    RemoteGoneError,
    ask,
    fetch,
    keep_secrets,
    redact,
    version_of,
)
from tamis.core.processes import TEMPORARY, in_work, temporary_name

T = TypeVar("T")

#: Stores where fsspec can create an object only if there is none (If-None-Match). Elsewhere it checks and then writes:
#: two processes may do so at once.
CREATES_ONLY_IF_ABSENT = ("s3", "s3a", "gs", "gcs")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|[A-Za-z0-9+.-]+::")
_LOST_SLASH = re.compile(r"^([a-z][a-z0-9+.-]+):/(?=[^/])")  # how `Path` shortens a URL

_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")

_PIECE = 8 << 20  # bytes of one request
_AT_ONCE = 16  # requests


@dataclass(frozen=True, slots=True)
class Entry:
    """Size, version and time of a file."""

    size: int
    tag: str  # differs between versions of the file
    changed: float  # seconds by the disk's or store's clock; NaN if a store gives no time


#: The last known version of each object, by URL. `open` uses the cached copy of that version without a request.
_known: dict[str, Entry] = {}


class RemotePath(type(Path())):  # type: ignore[misc]
    """A file or folder at a URL, with the methods of `Path` that runs need; as a local path it raises RunError."""

    def __str__(self) -> str:
        return _LOST_SLASH.sub(r"\1://", super().__str__())

    def __fspath__(self) -> str:
        raise RunError(f"{self}: this needs a local path, not a URL")

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
        """Does nothing: on a store a folder exists only through its objects."""

    rmdir = mkdir

    def is_symlink(self) -> bool:
        return False

    def resolve(self, *_: Any) -> RemotePath:
        return self

    absolute = expanduser = resolve


@contextmanager
def _as_run_error(path: Path, writes: bool = False) -> Iterator[None]:
    """Turns store errors into RunError. "Not found" (when reading) and "already exists" pass through."""
    try:
        yield
    except RemoteError as error:
        gone = isinstance(error, RemoteGoneError)
        if isinstance(error, RemoteExistsError) or (gone and not writes):
            raise
        advice = "Finished files are kept; repeat the command"
        if gone:
            advice = "Create the bucket first, or correct the URL"
        raise RunError(f"the run's store failed, {path}: {error}. {advice}") from error


def _check_size(size: int, expected: int) -> None:
    if size != expected:
        raise EOFError(f"got {size:,} bytes, expected {expected:,}")


def _note(path: Path, facts: dict[str, Any]) -> Entry:
    """Records the version of an object, and deletes the cached copy of an older one."""
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
    folder = os.environ.get("TAMIS_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "tamis")
    return Path(folder).expanduser() / "runs"


def _copy(path: Path, entry: Entry) -> Path:
    version = xxhash.xxh3_128_hexdigest(f"{path} {entry.tag} {entry.size}".encode())
    return _cache() / version[:2] / f"{version}{path.suffix}"


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """Yields the name of a temporary file: in the folder of the path, or in the cache for an object."""
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
    """Returns the path of a run from what the user typed, or raises RunError. A URL's secrets stay in memory."""
    if isinstance(where, RemotePath):
        return where
    text = os.fspath(where).removeprefix("file://").removeprefix("local://")
    if _URL.match(text) is None:
        path = Path(text).expanduser()
        check_path(path)
        return path
    url = keep_secrets(text.rstrip("/"), lambda url: [url])
    if "::" in url or url.startswith(("http://", "https://", "memory://", "data://", "zip://", "tar://")):
        raise RunError(f"{url}: a run needs a path, or a store such as s3:// or gs://, and no chained URL")
    return RemotePath(url)


def check_path(path: Path) -> None:
    """Rejects `Path("s3://b")`: pathlib drops a slash, and we would create a folder named "s3:"."""
    lost = not isinstance(path, RemotePath) and _LOST_SLASH.match(str(path))
    if lost and not Path(path.parts[0]).exists():
        shown = redact(str(path).replace(":/", "://", 1)).replace("://", ":/", 1)
        raise RunError(f"{shown}: this needs a local path, not a URL. For a run, pass the URL as text, no Path")


def output_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path of an input or output: local, or the RemotePath of a file inside a run at a URL."""
    return path if isinstance(path, RemotePath) else Path(path).expanduser()


def is_run(where: str | os.PathLike[str]) -> bool:
    """Whether a path or URL holds a run; raises RunError if the store does not answer."""
    try:
        folder = location(where)
    except RunError:  # a run cannot have such a path
        return False
    return (folder / "run.json").is_file()


# ---- reading ---------------------------------------------------------------------------------------------------------


def entry_of(path: Path) -> Entry | None:
    """Returns size, version and time of a file as they are now; None if it does not exist."""
    with suppress(FileNotFoundError):
        if not isinstance(path, RemotePath):
            stat = path.stat()
            return Entry(stat.st_size, f"{stat.st_ino:x}-{stat.st_mtime_ns:x}", stat.st_mtime)
        facts = path.ask(lambda fs, inner: fs.info(inner))
        if facts["type"] == "file":
            return _note(path, facts)
    _known.pop(str(path), None)
    return None


def files(folder: Path, ending: str = "") -> set[str]:
    """Returns the names of the files in a folder that have an ending, without that ending. Skips hidden files."""
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
    """Returns a local file: the file itself, or the cached copy of an object's last known version."""
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
            raise RunError(f"{path} changed while it was read: repeat the command")
        copy.parent.mkdir(parents=True, exist_ok=True)
        os.replace(temporary, copy)
    return copy


def prefetch(paths: Iterable[Path]) -> None:
    """Downloads objects, several at once. Skips local files, and objects that do not exist."""

    def download(path: RemotePath) -> None:
        with suppress(FileNotFoundError):
            local_copy(path)

    if remote := [path for path in paths if isinstance(path, RemotePath)]:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(download, remote))


def drop_cached(path: Path) -> None:
    """Deletes the cached copy of an object, so that the next read downloads it again."""
    if isinstance(path, RemotePath) and (entry := entry_of(path)):
        _copy(path, entry).unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Returns the content of a JSON file; raises DamageError if it is not JSON, RunError if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        what = f"it is not JSON ({error})"
        raise DamageError(f"{path} is damaged: {what}; restore it, or start another run folder", what) from error
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error


# ---- writing ---------------------------------------------------------------------------------------------------------


#: Called with each local path that `writing` has written, and the temporary file that is about to get this name.
watchers: list[Callable[[Path, Path], None]] = []


@contextmanager
def writing(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yields a temporary file to write to. After the block it becomes `path`, or is uploaded as that object.

    With `durable`, fsync of file and folder: after a power cut the old or the new file exists, never an empty one. It
    takes milliseconds, on a busy disk more: use it for files that cannot be regenerated. Raises DiskFullError if no
    space is left, RunError if the folder or store is not writable.
    """
    check_path(path)
    with explain_errors(path), _temporary(path) as temporary:
        yield temporary
        if isinstance(path, RemotePath):
            _upload(path, temporary)
            return
        if durable:
            to_disk(temporary)
        for watcher in watchers:
            watcher(path, temporary)
        os.replace(temporary, path)
        if durable:
            to_disk(path.parent)


def _upload(path: RemotePath, file: Path) -> None:
    """Uploads a file, then keeps it as the cached copy."""

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
    """Raises RunError if a file cannot be created here: its nearest existing folder is read-only or not a folder."""
    check_path(path)
    if isinstance(path, RemotePath):
        return
    folder = next(one for one in path.absolute().parents if os.path.lexists(one))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        what = "read-only" if folder.is_dir() else "not a folder"
        raise RunError(f"cannot write {path}: {folder} is {what}; choose a folder you can write to")


def put(path: Path, data: bytes, *, if_absent: bool = False) -> bool:
    """Writes a small file. With `if_absent`, returns False if another process has created it with other content."""
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
            return path.read_bytes() == data  # an earlier try may have written it although its response was lost
        return False
    return True


def can_put_if_absent(path: Path) -> bool:
    """Whether `put(if_absent=True)` is atomic here."""
    return not isinstance(path, RemotePath) or str(path).partition("://")[0] in CREATES_ONLY_IF_ABSENT


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Writes a JSON file; `durable` as for `writing`."""
    with writing(path, durable=durable) as temporary:
        temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def seconds_between_writes(path: Path) -> float:
    """Returns the seconds between two updates of a progress file."""
    return 20.0 if isinstance(path, RemotePath) else 1.0


class Log:
    """A growing file of lines. A local file gets each line at once; an object is uploaded again every five minutes."""

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
            with explain_errors(self._path), open(self._path, "ab") as file:
                file.write(self._lines)
        self._lines, self._last = b"", time.monotonic()


def remove(folder: Path) -> None:
    """Deletes a folder of files; one that is not there is fine."""
    for path in folder.glob("*"):
        path.unlink(missing_ok=True)
    if not isinstance(folder, RemotePath) and folder.is_dir():
        folder.rmdir()


def sweep(folder: Path, names: Sequence[str] = ("",)) -> None:
    """Deletes temporary files that killed processes left in a folder, for all files or only for the named ones."""
    starts = tuple(f".{name}" for name in names)
    if not isinstance(folder, RemotePath) and folder.is_dir():
        for entry in list(os.scandir(folder)):
            ours = entry.name.endswith(TEMPORARY) and entry.name.startswith(starts)
            if ours and not entry.is_dir(follow_symlinks=False) and not in_work(Path(entry.path)):
                Path(entry.path).unlink(missing_ok=True)


_sweep_once = cache(sweep)


def to_disk(path: Path) -> None:
    """Waits until a file, or the list of names in a folder, is on the disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some file systems do not support fsync, mostly for folders. Real failures must be raised.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


# ---- errors of the disk ----------------------------------------------------------------------------------------------


@contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """Turns OS errors while writing, also those wrapped by safetensors, into DiskFullError or RunError."""
    try:
        yield
    except Exception as caught:
        number = re.search(r"os error (\d+)", str(caught)) if type(caught).__name__ == "SafetensorError" else None
        error = OSError(int(number[1]), os.strerror(int(number[1]))) if number else caught
        if not isinstance(error, OSError):
            raise
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            folder = _cache() if isinstance(path, RemotePath) else path.parent
            raise DiskFullError(f"no space is left at {folder}. Finished files are kept: repeat the command") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EFBIG):
            raise RunError(f"cannot write {path}: {error.strerror}; choose a folder you can write to") from error
        error.filename = error.filename or str(path)  # a failed write does not name its file
        if error is caught:
            raise
        raise error from caught


def access_error(path: Path, error: BaseException) -> RunError | None:
    """Returns a RunError for read failures that do not mean damage, so that the file is not deleted."""
    if isinstance(error, OSError) and error.errno and error.errno not in (errno.ENOENT, errno.EISDIR, errno.EINVAL):
        return RunError(f"{path} cannot be read: {os.strerror(error.errno)}")  # pyarrow's own text is longer
    return None
