"""Claims: a process claims a shard while it works on it, and a command locks a run while it prepares it.

A claim is a small file that names its process, which renews it during the work. If a process on this machine dies, its
claims are free at once; claims of another machine are free after `TAMIS_REMOTE_LEASE` seconds without renewal, by the
clock of the disk or store. Claims only save work: two processes on one shard write identical files. On a store without
conditional writes every claim succeeds, so the ranks of `--engine static` do only their own shares.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from tamis.core.errors import RunError
from tamis.core.files import storage
from tamis.core.files.remote import setting
from tamis.core.processes import NUMBERED_IN, alive, start_of
from tamis.runs import parts

if TYPE_CHECKING:
    from tamis.runs.run import Run

log = logging.getLogger(__name__)

CLAIMS = "claims"

#: How long a command waits for a lock; and how long if another command prepares the run, which may list a million
#: shards, and all ranks of a job prepare one after the other.
PATIENCE_SECONDS = 2.0
PREPARES = "prepares the run"
PREPARING_SECONDS = 600.0

_RENEWALS = 12  # per lease


@contextmanager
def claim_shard(run: Path, shard: str) -> Iterator[bool]:
    """Claims a shard while the block runs; yields False if another process has it."""
    with _holding(run / CLAIMS / shard, patience=0.0) as acquired:
        if acquired:
            storage.entry_of(run / "index" / f"{shard}.parquet")  # to see a version from another machine
        yield acquired


@contextmanager
def claim_to_write(run: Run, shard: str, *, patience: float | None = None) -> Iterator[str]:
    """Claims a shard of an open run, to write a part of it; yields the hash of the shard's uids.

    Raises RunError if another process holds it for `patience` seconds, or the shard's rows have changed.
    """
    path = run.path / CLAIMS / shard
    with _holding(path, patience=patience) as acquired:
        if not acquired:
            raise RunError(f"{_in_use(path)}: repeat this when it is done")
        check_same_rows(run, [shard])
        yield run.owner(shard).uids


def check_same_rows(run: Run, shards: Iterable[str]) -> None:
    """Raises RunError if a shard has other rows than when the run was opened: parts match the index by row."""
    for shard in shards:
        then, path = run.owner(shard), run.index_path(shard)
        now = parts.index_facts(path) if path.is_file() else None
        if now is None or (now.rows, now.uids) != (then.rows, then.uids):
            raise RunError(f"{run.path} has changed since it was opened: shard {shard} has other rows: open it again")


@contextmanager
def lock_run(folder: Path, *, doing: str = "", patience: float | None = None) -> Iterator[None]:
    """Holds a folder's lock while the block runs. `doing` is how other commands' messages describe this one.

    Raises RunError if another process holds it for `patience` seconds, or the folder is not writable.
    """
    with _holding(folder / "lock", doing, patience=patience) as acquired:
        if not acquired:
            raise RunError(f"{_in_use(folder / 'lock')}; wait for it, stop it, or use another folder")
        yield


@contextmanager
def _holding(path: Path, doing: str = "", *, patience: float | None) -> Iterator[bool]:
    """Holds a claim while the block runs; yields False if another process still holds it after `patience` seconds."""
    if not storage.can_put_if_absent(path):  # each rank does only its own share
        yield True
        return
    with storage.explain_errors(path):
        content = _wait_for(path, doing, PATIENCE_SECONDS if patience is None else patience)
    if content is None:
        yield False
        return
    released = threading.Event()
    renewal = threading.Thread(target=_renew, args=(path, content, released), name="tamis-claim", daemon=True)
    renewal.start()
    try:
        yield True
    finally:
        released.set()
        renewal.join()
        try:
            if _read(path) == content:
                path.unlink(missing_ok=True)
        except (OSError, RunError) as error:  # it expires
            log.debug("the claim %s could not be released: %s", path, error)


def _wait_for(path: Path, doing: str, patience: float) -> bytes | None:
    """Returns the content of a new claim; None if another process still holds it."""
    start, warned = time.monotonic(), False
    while (content := _take(path, doing)) is None:
        if _read(path) is None:  # released between two looks
            continue
        longest = max(patience, PREPARING_SECONDS) if _holder(path).get("doing") == PREPARES else patience
        waited = time.monotonic() - start
        if waited >= longest:
            return None
        if waited > PATIENCE_SECONDS and not warned:
            log.warning("%s: waiting up to %.0f s", _in_use(path), longest)
            warned = True
        time.sleep(0.05 * storage.seconds_between_writes(path))
    return content


def _take(path: Path, doing: str) -> bytes | None:
    me = {
        "process": (pid := os.getpid()),
        "started": start_of(pid),
        "numbers": NUMBERED_IN,
        "host": socket.gethostname(),
    }
    content = json.dumps({**me, "doing": doing, "id": uuid.uuid4().hex}).encode()
    if storage.put(path, content, if_absent=True):
        return content
    stale = _read(path)
    if stale is None or not _is_free(path, partial(_now, path.parent)):
        return None
    # Of those that see one stale claim, the one with this further claim replaces it, if it is still there.
    turn = path.with_name(f".{path.name}.{xxhash.xxh3_64_hexdigest(stale)}")
    if (mine := _take(turn, doing)) is None:
        return None
    try:
        return content if _read(path) == stale and storage.put(path, content) else None
    finally:
        if _read(turn) == mine:
            turn.unlink(missing_ok=True)


def _renew(path: Path, content: bytes, released: threading.Event) -> None:
    while not released.wait(setting("lease") / _RENEWALS):
        try:
            if _read(path) != content:  # another process took over while this one was suspended
                return
            storage.put(path, content)
        except (OSError, RunError) as error:  # tried again; at worst the shard is done twice
            log.debug("the claim %s could not be renewed: %s", path, error)


def _in_use(path: Path) -> str:
    holder = _holder(path)
    what = path.parent if path.name == "lock" else f"the shard {path.name} of {path.parents[1]}"
    doing = f", which {holder['doing']}" if holder.get("doing") else ""
    return f"{what} is in use by process {holder.get('process', '?')} on {holder.get('host', 'another machine')}{doing}"


def claimed_shards(run: Path, shards: Collection[str]) -> set[str]:
    """Returns the shards that running processes have claimed."""
    now = cache(partial(_now, run / CLAIMS))
    return {name for name in storage.files(run / CLAIMS) if name in shards and not _is_free(run / CLAIMS / name, now)}


def free_claims(run: Path) -> list[str]:
    """Returns the shards whose claims are left over from killed processes."""
    claims = storage.files(run / CLAIMS)
    return sorted(claims - claimed_shards(run, claims))


def sweep_claims(run: Path) -> None:
    """Removes claims, and temporary files of claims, that killed processes left."""
    storage.sweep(run / CLAIMS)
    for name in free_claims(run):
        (run / CLAIMS / name).unlink(missing_ok=True)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _holder(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(_read(path) or b""))
    except (ValueError, TypeError):  # gone or damaged
        return {}


def _is_free(path: Path, now: Callable[[], float]) -> bool:
    entry, holder = storage.entry_of(path), _holder(path)
    if entry is not None and holder.get("numbers") == NUMBERED_IN:
        process = int(holder.get("process", 0))
        return not alive(process) or start_of(process) != holder.get("started")
    return entry is None or now() - entry.changed >= setting("lease")


def _now(folder: Path) -> float:
    """Returns the time of the disk's or store's clock: machines' clocks may differ by minutes."""
    path = folder / f".clock-{uuid.uuid4().hex}"
    storage.put(path, b"now")
    try:
        entry = storage.entry_of(path)
    finally:
        path.unlink(missing_ok=True)
    return time.time() if entry is None else entry.changed
