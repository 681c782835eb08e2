"""Runs at URLs: a folder on this machine's disk that mirrors the run, in which everything works as in any run folder.

The store is the truth, the mirror a cache that may be deleted while no command runs. What is written is put up before
it gets its name here; what is removed goes there first. So the mirror never has what the store lacks, and what it has
and the store lacks was removed by somebody else. A command first lists the store, drops what is there no more or is
another one by now, and brings down what is small; parts are brought down when somebody asks for them. What
is no file of a run is left alone, here and there: a run may share a bucket with a pool.

Mirrors lie in TAMIS_CACHE (else XDG_CACHE_HOME/tamis, else ~/.cache/tamis). A path in there is known for one of a
mirror by its beginning, in every process, so no process can write to the mirror alone by mistake.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import xxhash

from tamis.data import KEEPS
from tamis.errors import RunError
from tamis.processes import TEMPORARY, in_work, temporary_name
from tamis.storage import Entry, Remote, check_url
from tamis.store.atomic import explained, lost_slash, read_json, write_json

log = logging.getLogger(__name__)

#: Where claims lie, which are asked for at the store alone.
_CLAIMS = "claims"

# What the mirror notes of itself; hidden, so that nobody takes it for a part of the run.
_OWN = ".mirror"
_ABOUT, _TAGS = f"{_OWN}/about.json", f"{_OWN}/tags.jsonl"

_UNFINISHED = "unfinished"

# Where the files of a run lie, and what they are called that lie in none of its folders. Nothing else is brought down:
# a run may be looked for in a bucket that holds terabytes of something else.
FOLDERS = ("index", "scores", *KEEPS, "failures", "subsets", _UNFINISHED)
_AT_TOP = re.compile(r"(run|bench|report)\.json|shards\.parquet|recipe\.yaml|report\.html|(status|events)[^/]*\.jsonl?")

# Written again and again while a run is at work: put up now and then, by `put_log`.
_LOGS = re.compile(r"(status|events)[^/]*\.jsonl?")

_AT_ONCE = 16  # requests

# A listing is believed for so many times as long as it took: one of a million objects takes a minute.
_BELIEVED = 3.0

# File systems round times, and two clocks of one machine may differ a little.
_ROUNDED_SECONDS = 2.0

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|[A-Za-z0-9+.-]+::")


class Mirror:
    """The folder on this disk of a run at a URL.

    Attributes:
        folder: on this disk.
        url: of the run, without secrets.
        objects: the run's, at the store.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        about = read_json(folder / _ABOUT)
        self.url = str(about["url"])
        self.objects = Remote(self.url)
        self._entries: dict[str, Entry | None] = {}
        self._whole = False  # whether `_entries` has all there are
        self._lock, self._looking = threading.RLock(), threading.RLock()
        self._believed = 0.0  # until when, by the monotonic clock
        self._tags: dict[str, str] = {}
        self._tags_read = 0
        self._noted_since: set[str] = set()  # the last listing began

    def name(self, path: Path) -> str:
        """Returns the name of a path's object."""
        return path.relative_to(self.folder).as_posix()

    # ---- what is there ----

    def look(self, *, anew: bool = False) -> None:
        """Lists the store, drops what is not as it is there, and brings down what is small.

        Args:
            anew: list it though that was done a moment ago.
        """
        with self._looking:
            start = time.monotonic()
            if start < self._believed and not anew:
                return
            self._read_tags()
            began = time.time()
            with self._lock:
                self._noted_since.clear()
            found = self._listed(skip=(_CLAIMS, _UNFINISHED))
            with self._lock:
                self._entries, self._whole = {}, True
                self._know(found)
            self._drop_stale(began - _ROUNDED_SECONDS)
            if "run.json" in found:
                for folder in {os.path.dirname(name) for name in found}:
                    with explained(self.folder / folder):
                        (self.folder / folder).mkdir(parents=True, exist_ok=True)
                self.bring(name for name in found if not _waits(name))
            end = time.monotonic()
            self._believed = end + _BELIEVED * (end - start)

    def _know(self, found: Mapping[str, Entry | None]) -> None:
        """Takes over what was heard of some objects."""
        with self._lock:
            self._entries.update(found)

    def _listed(self, skip: tuple[str, ...]) -> dict[str, Entry]:
        """Lists the run's objects; what lies beside them, and what cannot lie beside others on a disk, is left out."""
        found = self.objects.list("", skip=skip)
        found = {name: entry for name, entry in found.items() if not _own(name) and _of_a_run(name)}
        folders = {os.path.dirname(name) for name in found}
        return {name: entry for name, entry in found.items() if name not in folders}

    def _drop_stale(self, began: float) -> None:
        """Drops files that are not as the listing says, but for those that have come since it began.

        Small ones are replaced instead: other processes of this machine may be about to read them.
        """
        tags = self._read_tags()
        kept = {"", *(os.path.dirname(name) for name in self._entries)}
        kept |= {os.path.dirname(folder) for folder in kept}
        emptied, changed = [], []
        for folder, folders, files in os.walk(self.folder):
            inner = os.path.relpath(folder, self.folder)
            inner = "" if inner == "." else f"{inner}/"
            if not inner:
                folders[:] = [one for one in folders if one in FOLDERS and one != _UNFINISHED]
            elif inner.count("/") > 1 and inner[:-1] not in kept and _older(folder, began):
                emptied.append(folder)
            for name in (f"{inner}{file}" for file in files):
                if name.endswith(TEMPORARY) and not in_work(self.folder / name):  # of one that was killed as it fetched
                    (self.folder / name).unlink(missing_ok=True)
                if not _own(name) and _of_a_run(name) and self._is_stale(name, tags, began):
                    if self._entries.get(name) is not None and not _waits(name):
                        changed.append(name)
                    else:
                        (self.folder / name).unlink(missing_ok=True)
        for folder in reversed(emptied):
            with suppress(OSError):  # something has come meanwhile
                os.rmdir(folder)
        self._fetch_all(changed)

    def _is_stale(self, name: str, tags: Mapping[str, str], began: float) -> bool:
        """Tells whether a file is another one than the listing says, and was so when that began.

        Who makes a file has put it up before, and notes it right after: what was noted before the listing began, and is
        not in there, is no more. Only of what is not noted the file system's time has to tell.
        """
        entry = self._entries.get(name)
        log = _LOGS.fullmatch(name) is not None
        if log and entry is None and "run.json" in self._entries:  # not put up yet
            return False
        try:
            facts = os.stat(self.folder / name)
        except FileNotFoundError:
            return False
        if entry is not None and tags.get(name) == entry.tag and (log or facts.st_size == entry.size):
            return False
        if name in tags and not log:
            return name not in self._noted_since
        return facts.st_ctime < began or facts.st_ctime > time.time() + _ROUNDED_SECONDS  # a clock was set back

    def entry(self, name: str) -> Entry | None:
        """Returns what was last heard of an object; None where there is none."""
        with self._lock:
            if name in self._entries or self._whole:
                return self._entries.get(name)
        self.look(anew=True)
        return self._entries.get(name)

    def names(self, folder: str) -> list[str]:
        """Returns the file names of a folder, as the last listing has them."""
        if not self._whole:
            self.look(anew=True)
        start = f"{folder}/"
        with self._lock:
            return [
                name[len(start) :]
                for name, entry in self._entries.items()
                if entry is not None and name.startswith(start) and "/" not in name[len(start) :]
            ]

    def freshen(self, shard: str) -> None:
        """Looks at the store how the files of one shard are now, drops what is not so here, and brings what was kept.

        For who has just claimed it: another machine may have been at it.
        """
        paths = [path for kind in ("scores", *KEEPS) for path in (self.folder / kind).glob("*") if path.is_dir()]
        folders = [self.name(path) for path in paths]
        names = [f"failures/{shard}.json", f"index/{shard}.parquet"]
        other = []
        for folder in folders:
            right, wrong = (".npy", ".parquet") if folder.startswith("embeddings/") else (".parquet", ".npy")
            names.append(f"{folder}/{shard}{right}")
            other.append(f"{folder}/{shard}{wrong}")
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            kept = pool.submit(self.objects.list, f"{_UNFINISHED}/{shard}")
            found = dict(zip(names, pool.map(self.objects.look, names), strict=True))
        names += [self.name(path) for path in (self.folder / _UNFINISHED / shard).glob("[!.]*")]
        self._know({**dict.fromkeys([*names, *other, f"index/{shard}.npy"]), **found, **kept.result()})
        tags = self._read_tags()
        for name in names:
            entry = self._entries.get(name)
            if entry is None or tags.get(name) != entry.tag:
                (self.folder / name).unlink(missing_ok=True)
        self.bring([*kept.result(), names[0]])

    # ---- bringing down ----

    def bring(self, names: Iterable[str]) -> None:
        """Brings down those of some objects that are not here, several at a time."""
        self._fetch_all([name for name in names if self._entries.get(name) and not (self.folder / name).exists()])

    def _fetch_all(self, names: Sequence[str]) -> None:
        if len(names) < 2:
            for name in names:
                self.fetch(name)
            return
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for _ in pool.map(self.fetch, names):
                pass

    def bring_listed(self) -> None:
        """Brings down all that was listed and is not here."""
        with self._lock:
            names = list(self._entries)
        self.bring(names)

    def fetch(self, name: str) -> bool:
        """Brings down an object; False where it has gone since it was listed."""
        from tamis.remote import RemoteGoneError

        entry = self.entry(name)
        if entry is None:
            return False
        path = self.folder / name
        temporary = temporary_name(path)
        with explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.objects.fetch(name, entry, temporary)
                os.replace(temporary, path)
            except RemoteGoneError:
                self._know({name: None})
                path.unlink(missing_ok=True)
                return False
            finally:
                temporary.unlink(missing_ok=True)
        self._note(name, entry)
        return True

    def bring_all(self) -> None:
        """Brings down everything, also what is here: for who wants to see every byte that the store has.

        Not logs that are here: a command of this machine may be writing them.
        """
        self.look(anew=True)
        self._know(self._listed(skip=(_CLAIMS,)))
        with self._lock:
            names = [name for name, entry in self._entries.items() if entry]
        self._fetch_all([name for name in names if not (_LOGS.fullmatch(name) and (self.folder / name).exists())])

    # ---- putting up ----

    def put(self, source: Path, name: str) -> Entry:
        """Puts a file up as an object."""
        return self.objects.upload(name, source)

    def placed(self, name: str, entry: Entry) -> None:
        """Notes that a file here is an object's."""
        self._know({name: entry})
        self._note(name, entry)

    def take_down(self, name: str) -> None:
        """Removes an object."""
        if name.startswith(f"{_UNFINISHED}/") or self.entry(name) is not None:  # no listing has what is unfinished
            self.objects.remove(name)
        self._know({name: None})

    # ---- which version a file here is of ----

    def _note(self, name: str, entry: Entry) -> None:
        line = json.dumps([name, entry.tag], ensure_ascii=False) + "\n"
        with explained(self.folder / _TAGS):
            handle = os.open(self.folder / _TAGS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(handle, line.encode())  # whole, beside other processes' lines
            finally:
                os.close(handle)

    def _read_tags(self) -> dict[str, str]:
        """Returns the tag of each file's object as it was brought down, or put up, by any process of this machine."""
        with self._lock:
            try:
                with open(self.folder / _TAGS, "rb") as file:
                    file.seek(self._tags_read)
                    added = file.read()
            except FileNotFoundError:
                return self._tags
            whole = added[: added.rfind(b"\n") + 1]
            self._tags_read += len(whole)
            for line in whole.splitlines():
                try:
                    name, tag = json.loads(line)
                except ValueError:  # of a machine that went down: the file is brought down anew
                    continue
                self._tags[name] = tag
                self._noted_since.add(name)
            return self._tags


def _own(name: str) -> bool:
    """Tells whether a file is of this machine alone: locks and claims, what is unfinished, what a mirror notes."""
    return name == "lock" or name.startswith((".", f"{_CLAIMS}/")) or os.path.basename(name).startswith(".")


def _of_a_run(name: str) -> bool:
    """Tells whether a file is a run's, by its name."""
    kind, inside, _ = name.partition("/")
    return kind in FOLDERS if inside else _AT_TOP.fullmatch(name) is not None


def _older(folder: str, than: float) -> bool:
    try:
        return os.stat(folder).st_ctime < than
    except FileNotFoundError:
        return False


def _waits(name: str) -> bool:
    """Tells whether an object is brought down only when it is asked for: the part of a shard."""
    kind, *rest = name.split("/")
    if kind not in ("index", "scores", *KEEPS):
        return False
    inside = rest if kind == "index" else rest[1:]
    return len(inside) == 1 and name.endswith(".npy" if kind == "embeddings" else ".parquet")


# ---- from a path to its mirror ---------------------------------------------------------------------------------------

_known: dict[str, Mirror] = {}
_roots: dict[str, str] = {}


def _root() -> str:
    """Returns the folder of all mirrors."""
    given = os.environ.get("TAMIS_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "tamis")
    if given not in _roots:
        _roots[given] = os.path.join(os.path.realpath(os.path.expanduser(given)), "runs", "")
    return _roots[given]


def mirror_of(path: Path) -> Mirror | None:
    """Returns the mirror that a path lies in; None for every other path.

    Raises:
        RunError: it lies where mirrors are, and in none.
    """
    text, root = os.fspath(path), _root()
    if not text.startswith(root):
        return None
    folder = root + text[len(root) :].partition(os.sep)[0]
    if folder not in _known:
        if not os.path.isfile(os.path.join(folder, _ABOUT)):
            if os.path.dirname(text) == os.path.join(folder, _OWN):  # it is being made
                return None
            # Nothing that is written there would be put up.
            raise RunError(f"{folder} mirrors no run any more: leave mirrors alone while a command works in them")
        _known[folder] = Mirror(Path(folder))
    return _known[folder]


def is_url(run: str | os.PathLike[str]) -> bool:
    """Tells whether a run is named by a URL of a store."""
    return _URL.match(os.fspath(run)) is not None and not os.fspath(run).startswith(("file://", "local://"))


def run_folder(run: str | os.PathLike[str], *, whole: bool = False) -> Path:
    """Returns the folder of a run that a command was given: the path, or the mirror of the URL, as the store is now.

    Args:
        run: a path or a URL.
        whole: bring every object down anew: for who looks at every byte.

    Raises:
        RunError: no run can lie at such a URL, the store does not answer, or TAMIS_CACHE is no whole path.
        DependencyError: the package for the store is not installed.
    """
    from tamis.remote import redacted

    text = os.fspath(run)
    if not is_url(text):
        path = Path(text.partition("://")[2] if text.startswith(("file://", "local://")) else text).expanduser()
        if lost_slash(text):
            shown = redacted(text.replace(":/", "://", 1)).replace("://", ":/", 1)
            raise RunError(f"{shown}: a Path has one slash where a URL has two; give the URL as a text")
        if (path / _ABOUT).is_file():
            path = path.resolve()
            if mirror_of(path) is None:
                raise RunError(f"{path} mirrors the run {read_json(path / _ABOUT)['url']}: name that URL")
        found = mirror_of(path)
        if found is None or found.folder != path:
            return path
    else:
        found = _made(text)
    if whole:
        found.bring_all()
    else:
        found.look()
    return found.folder


def _made(url: str) -> Mirror:
    """Returns the mirror of a URL, new or not."""
    from tamis.remote import hide, public, redacted

    url = url.rstrip("/")
    check_url(redacted(public(url)))
    cache = os.environ.get("TAMIS_CACHE") or os.environ.get("XDG_CACHE_HOME") or "~"
    if not os.path.isabs(os.path.expanduser(cache)):
        raise RunError(
            f"TAMIS_CACHE (or XDG_CACHE_HOME) is {cache!r}, expected a whole path: processes that start in another "
            "folder would not know the mirror"
        )
    known = hide(url, lambda one: [one])
    last = re.sub(r"[^\w.-]", "-", known.rpartition("/")[2])[:40]
    folder = Path(f"{_root()}{last}-{xxhash.xxh3_64_hexdigest(known.encode())}")
    if not (folder / _ABOUT).is_file():
        write_json(folder / _ABOUT, {"url": known})
        log.info("%s is mirrored in %s", known, folder)
    found = mirror_of(folder)
    assert found is not None, "it was made"
    return found


def is_run(url: str | os.PathLike[str]) -> bool:
    """Tells whether a run lies at a URL; False for a path, and for a URL at which no run can lie.

    Raises:
        RunError: the store does not answer.
    """
    from tamis.remote import hide, public

    text = os.fspath(url).rstrip("/")
    if not is_url(text):
        return False
    try:
        check_url(public(text))
    except RunError:
        return False
    return Remote(hide(text, lambda one: [one])).look("run.json") is not None


def named(path: Path) -> str:
    """Returns what a run, or a file of it, is called: the URL where it lies at one, else its path."""
    found = mirror_of(path)
    if found is None:
        return os.fspath(path)
    return found.url if found.folder == path else f"{found.url}/{found.name(path)}"


# ---- what `tamis.store` asks of each path ----------------------------------------------------------------------------


@contextmanager
def put_up(source: Path, path: Path) -> Iterator[None]:
    """Puts a file up as the object of a path, if that lies in a mirror; the block then gives it that name here."""
    found = mirror_of(path)
    name = "" if found is None else found.name(path)
    if found is None or _own(name) or _LOGS.fullmatch(name):
        yield
        return
    entry = found.put(source, name)
    yield
    found.placed(name, entry)


def put_log(path: Path) -> None:
    """Puts up a file that is written again and again: status.json, events.jsonl."""
    found = mirror_of(path)
    if found is not None and path.is_file():
        name = found.name(path)
        found.placed(name, found.put(path, name))


def take_down(path: Path) -> None:
    """Removes the object of a path, if that lies in a mirror."""
    found = mirror_of(path)
    if found is not None and not path.name.endswith(TEMPORARY):
        found.take_down(found.name(path))


def listed(path: Path) -> bool:
    """Tells whether a part that is not here lies at the store."""
    found = mirror_of(path)
    return found is not None and found.entry(found.name(path)) is not None


def exists(path: Path) -> bool:
    """Tells whether a part is there: on the disk, or at the store of its run."""
    return path.exists() or listed(path)


def local(path: Path) -> Path:
    """Returns the path of a part, brought down from the store of its run where it was not here."""
    if not path.exists():
        fetched(path)
    return path


def part_names(folder: Path, ending: str) -> set[str]:
    """Returns the shards that have a part in a folder."""
    here = (entry.name for entry in os.scandir(folder)) if folder.is_dir() else ()
    names = [*(name for name in here if not name.startswith(".")), *names_in(folder)]
    return {name.removesuffix(ending) for name in names if name.endswith(ending) and name != "scorer.json"}


def fetched(path: Path) -> bool:
    """Brings down the part of a path, if it lies in a mirror and at the store; tells whether it is here now."""
    found = mirror_of(path)
    if found is None or found.entry(name := found.name(path)) is None:
        return False
    if not found.fetch(name):  # removed since the store was listed
        found.look(anew=True)
        return found.fetch(name)
    return True


def names_in(folder: Path) -> Sequence[str]:
    """Returns the file names that lie at the store in a folder of a mirror."""
    found = mirror_of(folder)
    return () if found is None else found.names(found.name(folder))


def bring(paths: Iterable[Path]) -> None:
    """Brings down those of some parts of one run that lie at its store and not here, several at a time."""
    found: Mirror | None = None
    names = []
    for path in paths:
        found = found or mirror_of(path)
        if found is None:
            return
        names.append(found.name(path))
    if found is not None:
        found.bring(names)


def bring_everything(run: Path) -> None:
    """Brings down all that lies at the store of a run and not here, if that lies in a mirror."""
    found = mirror_of(run)
    if found is not None:
        found.look(anew=True)
        found.bring_listed()


def look_again(run: Path, *, anew: bool = False) -> None:
    """Lists the store of a run anew, if that lies in a mirror: other machines may have been at work."""
    found = mirror_of(run)
    if found is not None:
        found.look(anew=anew)
