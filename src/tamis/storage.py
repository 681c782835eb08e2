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

from tamis.errors import DamageError, DependencyError, DiskFullError, RunError
from tamis.processes import TEMPORARY, in_work, temporary_name
from tamis.remote import RemoteError, RemoteGoneError, ask, exists_already, hide, redacted, secrets, store_of

T = TypeVar("T")

#: Stores where fsspec can create an object only if there is none (If-None-Match). Elsewhere it checks first and then
#: writes, which two processes may do at once.
CONDITIONAL = ("s3", "s3a", "gs", "gcs")

#: errno of a full disk, and of a user's full quota.
FULL = (errno.ENOSPC, errno.EDQUOT)

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|[A-Za-z0-9+.-]+::")
_LOST_SLASH = re.compile(r"^([a-z][a-z0-9+.-]+):/(?=[^/])")  # how `Path` shortens a URL

_TAGS = ("ETag", "etag", "md5Hash")
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")

_PIECE = 8 << 20  # bytes of one request
_AT_ONCE = 16  # requests


@dataclass(frozen=True, slots=True)
class Entry:
    """What a disk or store says about a file.

    Attributes:
        size: bytes.
        tag: differs between versions of the file.
        changed: when it was written, in seconds of the disk's or store's clock; NaN where a store does not say.
    """

    size: int
    tag: str
    changed: float


#: What was last heard of each object, by URL. `open` serves the cached copy of that version without asking.
_known: dict[str, Entry] = {}


class RemotePath(type(Path())):  # type: ignore[misc]
    """A file or folder at a URL, with the methods of `Path` that runs need. Any other use of the disk raises."""

    def __str__(self) -> str:
        return _LOST_SLASH.sub(r"\1://", super().__str__())

    def __fspath__(self) -> str:
        raise RunError(f"{self}: a path on a disk is wanted here, not a URL")

    def _ask(self, question: Callable[[Any, str], T]) -> T:
        """Runs a request, with retries.

        Raises:
            FileNotFoundError: there is no such object.
            RunError: the store does not answer, or refuses.
        """
        known = secrets()
        root = next((one for one in (self, *self.parents) if str(one) in known), self)
        try:
            fs, inner = store_of(str(root))
        except (ImportError, ValueError) as error:  # it needs a package, or nobody knows this kind of URL
            raise DependencyError(f"{self} cannot be opened: {error}") from error
        below = "/".join(self.parts[len(root.parts) :])
        inner = "/".join(filter(None, (inner.rstrip("/"), below)))

        def asked() -> T:
            fs.invalidate_cache()
            return question(fs, inner)

        try:
            return ask(str(self), asked)
        except RemoteGoneError:
            raise
        except RemoteError as error:
            raise RunError(
                f"the run's store failed, {self}: {error}. What is complete stays there; repeat the command"
            ) from error

    def _write(self, question: Callable[[Any, str], T]) -> T:
        try:
            return self._ask(question)
        except FileNotFoundError as error:  # the bucket
            raise RunError(f"{self} cannot be written: {error}; make the bucket first, or correct the URL") from error

    def look(self) -> Entry | None:
        """Returns what the store says now; None if there is no such object."""
        with suppress(FileNotFoundError):
            facts = self._ask(lambda fs, path: fs.info(path))
            if facts["type"] == "file":
                return self._note(_entry(facts))
        _known.pop(str(self), None)
        return None

    def _note(self, entry: Entry) -> Entry:
        before = _known.get(str(self))
        if before is not None and before.tag != entry.tag:
            self._copy(before).unlink(missing_ok=True)
        _known[str(self)] = entry
        return entry

    def exists(self, **_: Any) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self, **_: Any) -> bool:
        return self.look() is not None

    def is_dir(self, **_: Any) -> bool:
        return next(self.iterdir(), None) is not None

    def iterdir(self) -> Iterator[RemotePath]:
        """Lists a folder; one that does not exist is empty."""
        yield from self.children()

    def children(self, kind: str = "") -> list[RemotePath]:
        """Returns the files ("file"), the folders ("directory") or both, sorted by name."""
        try:
            listed, here = self._ask(lambda fs, path: (list(fs.ls(path, detail=True)), path.strip("/")))
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
                child._note(_entry(facts))
            found.append(child)
        return sorted(found)

    def glob(self, pattern: str) -> Iterator[RemotePath]:
        """Yields what matches a pattern of names and "*", folder by folder."""
        first, _, rest = pattern.partition("/")
        for child in self.children("directory" if rest else ""):
            if fnmatchcase(child.name, first):
                yield from child.glob(rest) if rest else (child,)

    def read_bytes(self) -> bytes:
        data: bytes = self._ask(lambda fs, path: _whole(fs.cat_file(path), lambda: fs.info(path)["size"]))
        return data

    def read_text(self, *_: Any, **__: Any) -> str:
        return self.read_bytes().decode()

    def open(self, *_: Any, **__: Any) -> BinaryIO:
        return open(self.local(), "rb")

    def local(self) -> Path:
        """Returns a copy on this disk of the version that was last heard of.

        Raises:
            FileNotFoundError: there is no such object.
        """
        entry = _known.get(str(self)) or self.look()
        while entry is not None:
            copy = self._copy(entry)
            with suppress(FileNotFoundError):
                if copy.stat().st_size == entry.size:
                    return copy
            try:
                return self._download(entry, copy)
            except (FileNotFoundError, RunError):
                before, entry = entry, self.look()
                if entry is None or entry.tag == before.tag:
                    raise
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))

    def _download(self, entry: Entry, copy: Path) -> Path:
        with _scratch(self) as temporary:
            with open(temporary, "wb") as out:
                for start in range(0, entry.size, _PIECE):
                    stop = min(start + _PIECE, entry.size)

                    def question(fs: Any, path: str, start: int = start, stop: int = stop) -> bytes:
                        return _whole(fs.cat_file(path, start=start, end=stop), lambda: stop - start)

                    out.write(self._ask(question))
            if entry.size > _PIECE and ((now := self.look()) is None or now.tag != entry.tag):
                raise RunError(f"{self} has changed while it was read: repeat the command")
            copy.parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary, copy)
        return copy

    def _copy(self, entry: Entry) -> Path:
        version = xxhash.xxh3_128_hexdigest(f"{self} {entry.tag} {entry.size}".encode())
        return _cache() / version[:2] / f"{version}{self.suffix}"

    def forget(self) -> None:
        """Drops the copy on this disk, so that it is downloaded again."""
        if (entry := _known.pop(str(self), None)) or (entry := self.look()):
            self._copy(entry).unlink(missing_ok=True)

    def upload(self, file: Path) -> None:
        """Replaces the object by a file, which becomes the local copy."""

        def question(fs: Any, path: str) -> Entry:
            fs.put_file(os.fspath(file), path)
            fs.invalidate_cache()
            found = _entry(fs.info(path))
            if found.size != file.stat().st_size:
                raise EOFError(f"{found.size:,} bytes of {file.stat().st_size:,} arrived")
            return found

        copy = self._copy(self._note(self._write(question)))
        copy.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, copy)

    def put(self, data: bytes, if_absent: bool) -> bool:
        def question(fs: Any, path: str) -> bool:
            try:
                fs.pipe_file(path, data, **({"mode": "create"} if if_absent else {}))
            except Exception as error:
                if not exists_already(error):
                    raise
                return False
            return True

        _known.pop(str(self), None)
        if self._write(question):
            return True
        with suppress(FileNotFoundError):  # removed meanwhile
            return self.read_bytes() == data  # the answer to an earlier try may have been lost
        return False

    def unlink(self, missing_ok: bool = False) -> None:
        if (entry := _known.pop(str(self), None)) is not None:
            self._copy(entry).unlink(missing_ok=True)
        with suppress(FileNotFoundError):
            self._ask(lambda fs, path: fs.rm_file(path))

    def mkdir(self, *_: Any, **__: Any) -> None:
        """A folder exists while there are objects in it."""

    rmdir = mkdir

    def is_symlink(self) -> bool:
        return False

    def resolve(self, *_: Any) -> RemotePath:
        return self

    absolute = expanduser = resolve


def _whole(data: bytes, size: Callable[[], int]) -> bytes:
    if len(data) != (expected := size()):
        raise EOFError(f"{len(data):,} bytes came, {expected:,} were expected")
    return data


def _entry(facts: dict[str, Any]) -> Entry:
    changed = math.nan
    for key in _TIMES:
        value = facts.get(key)
        if isinstance(value, str) and value:
            value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            value = value.timestamp()
        if isinstance(value, int | float):
            changed = float(value)
            break
    size = int(facts["size"])
    tags = (str(facts[key]).strip('"') for key in _TAGS if facts.get(key))
    return Entry(size, next(tags, f"{size}-{facts.get('modify', changed)}"), changed)


def _cache() -> Path:
    """Returns the folder of local copies."""
    place = os.environ.get("TAMIS_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "tamis")
    return Path(place).expanduser() / "runs"


@contextmanager
def _scratch(path: Path) -> Iterator[Path]:
    folder = _cache() / "unfinished"
    folder.mkdir(parents=True, exist_ok=True)
    _sweep_once(folder)
    temporary = temporary_name(folder / path.name[-100:])
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


# ---- where a run is --------------------------------------------------------------------------------------------------


def location(where: str | os.PathLike[str]) -> Path:
    """Returns the path of what a user named by a path or a URL. Secrets in a URL stay in this process's memory.

    Raises:
        RunError: no run can be at such a URL.
    """
    if isinstance(where, RemotePath):
        return where
    text = os.fspath(where)
    if _URL.match(text) is None or text.startswith(("file://", "local://")):
        path = Path(text.partition("://")[2] if text.startswith(("file://", "local://")) else text).expanduser()
        if lost_slash(path):
            shown = redacted(text.replace(":/", "://", 1)).replace("://", ":/", 1)
            raise RunError(f"{shown}: a Path has one slash where a URL has two; give the URL as a text")
        return path
    url = hide(text.rstrip("/"), lambda one: [one])
    kind = url.partition("://")[0]
    if "::" in url:
        raise RunError(f"{redacted(url)}: a run cannot be behind a chain of URLs; name the store itself")
    if kind in ("http", "https", "memory", "data", "zip", "tar"):
        raise RunError(
            f"{url}: a run cannot be at {kind}://, where nothing can be written that others read; use s3://, gs:// "
            "or another store, or a path"
        )
    return RemotePath(url)


def lost_slash(path: str | os.PathLike[str]) -> bool:
    """Whether a path was a URL before it became a `Path`, which has one slash where a URL has two."""
    return _LOST_SLASH.match(str(path)) is not None and not isinstance(path, RemotePath) and not Path(path).exists()


def check_path(path: Path) -> None:
    """Makes sure that a path on a disk was not a URL: else a folder called "s3:" would be made.

    Raises:
        RunError: it was one.
    """
    if lost_slash(path) and not Path(path.parts[0]).exists():
        raise RunError(
            f"{path}: a path on a disk is wanted here, not the URL of a store: name a path, and copy the file from "
            "or to the store with the store's own tool (aws s3 cp)"
        )


def output_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a file that a command reads or writes next to a run: on a disk, unless it is a run's."""
    return path if isinstance(path, RemotePath) else Path(path).expanduser()


def is_run(where: str | os.PathLike[str]) -> bool:
    """Whether a run is at a path or URL."""
    try:
        folder = location(where)
    except RunError:
        return False
    return (folder / "run.json").is_file()


# ---- reading ---------------------------------------------------------------------------------------------------------


def look(path: Path) -> Entry | None:
    """Returns what the disk or store says about a file now; None if there is none."""
    if isinstance(path, RemotePath):
        return path.look()
    try:
        facts = path.stat()
    except FileNotFoundError:
        return None
    return Entry(facts.st_size, f"{facts.st_ino:x}-{facts.st_mtime_ns:x}", facts.st_mtime)


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


def local(path: Path) -> Path:
    """Returns the path of a file on this disk: the file itself, or the copy of an object."""
    return path.local() if isinstance(path, RemotePath) else path


def prefetch(paths: Iterable[Path]) -> None:
    """Downloads objects, several at once; files on a disk, and objects that do not exist, are skipped."""

    def download(path: RemotePath) -> None:
        with suppress(FileNotFoundError):
            path.local()

    far = [path for path in paths if isinstance(path, RemotePath)]
    if far:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(download, far):
                pass


def read_again(path: Path) -> None:
    """Drops the cached copy of a file, so that the next read sees what the store has now."""
    if isinstance(path, RemotePath):
        path.forget()


def read_json(path: Path) -> Any:
    """Returns what a JSON file of ours holds; `tamis.store.checked` also checks that it is what it should be.

    Raises:
        DamageError: the file is damaged; ours are written whole, so something else did that.
        RunError: it cannot be read.
    """
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
    if isinstance(path, RemotePath):
        with explained(path), _scratch(path) as temporary:
            yield temporary
            path.upload(temporary)
        return
    temporary = temporary_name(path)
    try:
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            if durable:
                to_disk(temporary)
            os.replace(temporary, path)
            if durable:
                to_disk(path.parent)
    finally:
        temporary.unlink(missing_ok=True) if os.path.lexists(temporary) else None


def check_writable(path: Path) -> None:
    """Checks that the folder of a path can be written to, or the one in which it would be made.

    Raises:
        RunError: it cannot, or the path was a URL.
    """
    check_path(path)
    if isinstance(path, RemotePath):
        return
    folder = path.parent
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise RunError(f"cannot write {path}: {folder} is not a folder; choose a folder you can write to")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RunError(f"cannot write {path}: {folder} is read-only; choose a folder you can write to")


def put(path: Path, data: bytes, *, if_absent: bool = False) -> bool:
    """Writes a small file. Returns False if `if_absent` and there is one with other content: one of several wins."""
    if isinstance(path, RemotePath):
        return path.put(data, if_absent)
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


def has_if_absent(path: Path) -> bool:
    """Whether `put` can write only where there is no file: some stores cannot."""
    return not isinstance(path, RemotePath) or str(path).partition("://")[0] in CONDITIONAL


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
    """A file of lines that grows. On a disk each line is appended; an object is uploaded again now and then."""

    def __init__(self, path: Path) -> None:
        self._path, self._lines, self._last = path, b"", time.monotonic()

    def append(self, line: str) -> None:
        data = line.encode() + b"\n"
        if not isinstance(self._path, RemotePath):
            with explained(self._path), open(self._path, "ab") as file:
                file.write(data)
            return
        self._lines += data
        if time.monotonic() - self._last > 15 * seconds_between_writes(self._path):
            self.flush()

    def flush(self) -> None:
        """Uploads what was appended."""
        if self._lines:
            before = self._path.read_bytes() if self._path.is_file() else b""
            put(self._path, before + self._lines)
            self._lines, self._last = b"", time.monotonic()


def sweep(folder: Path, names: Sequence[str] = ("",)) -> None:
    """Deletes temporary files that killed processes left in a folder: all of them, or those of the named files.

    Those of live processes stay: several may work in one run folder.
    """
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


def no_space(folder: Path) -> DiskFullError:
    """Returns the error for a full disk."""
    return DiskFullError(f"no space is left at {folder}; what was complete stays. Free some and repeat the command")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turns the system's errors on writing a path into ours.

    Raises:
        DiskFullError: no space is left.
        RunError: the folder cannot be written to.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise no_space(_cache() if isinstance(path, RemotePath) else path.parent) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise RunError(f"cannot write {path}: {error.strerror}; choose a folder you can write to") from error
        if error.errno == errno.EFBIG:
            raise RunError(
                f"cannot write {path}: the file is larger than its file system, or a limit of this process (ulimit -f) "
                "allows; what was complete stays. Raise the limit, or choose another folder"
            ) from error
        if error.filename is None:  # writes do not name their file
            error.filename = str(path)
        raise


def denied(path: Path, error: BaseException) -> RunError | None:
    """Returns our error if a file could not be read for a reason that says nothing about its content.

    Such a file may be whole: it must not be called damaged, since damaged files are deleted and made again.
    """
    if isinstance(error, OSError) and error.errno and error.errno not in (errno.ENOENT, errno.EISDIR, errno.EINVAL):
        return RunError(f"{path} cannot be read: {os.strerror(error.errno)}")  # pyarrow says more than that
    return None


@contextmanager
def disk_errors() -> Iterator[None]:
    """A block in which a disk's error that safetensors reports becomes an `OSError` again."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
