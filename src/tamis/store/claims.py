"""Claims: which process works on a shard, and which command prepares a run.

A claim is a small file that names its process and is renewed while the work goes on. A dead process of this machine
loses its claims at once, another machine's after `TAMIS_REMOTE_LEASE` seconds without renewal, by the clock of the disk
or store. Claims save work: if two processes do one shard, they write the same files.
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

from tamis import storage
from tamis.errors import RunError
from tamis.processes import NUMBERED_IN, alive, started
from tamis.remote import limit
from tamis.store import parts

if TYPE_CHECKING:
    from tamis.store.run import Run

log = logging.getLogger(__name__)

CLAIMS = "claims"

#: How long a command waits for a lock, and how long while another prepares the run. Preparing may list a million
#: shards, and all ranks that a scheduler starts take turns at it.
PATIENCE_SECONDS = 2.0
PREPARES = "prepares the run"
PREPARING_SECONDS = 600.0

_RENEWALS = 12  # per lease


@contextmanager
def claimed(run: Path, shard: str) -> Iterator[bool]:
    """Claims a shard while the block runs; yields False if another process has it.

    Raises:
        RunError: the folder cannot be written to.
        DiskFullError: no space is left.
    """
    with _holding(run / CLAIMS / shard, patience=0.0) as acquired:
        if acquired:
            storage.look(run / "index" / f"{shard}.parquet")  # another machine may have replaced it
        yield acquired


@contextmanager
def held(run: Run, shard: str, *, patience: float | None = None) -> Iterator[str]:
    """Claims a shard of a run that was opened earlier, to write a part of it; yields the hash of the shard's uids.

    Args:
        run: as it was opened when the values were computed.
        shard: one of its shards.
        patience: seconds to wait for another process; None: `PATIENCE_SECONDS`.

    Raises:
        RunError: another process keeps it, or the run has other rows there now.
    """
    path = run.path / CLAIMS / shard
    with _holding(path, patience=patience) as acquired:
        if not acquired:
            raise RunError(f"{_in_use(path)}: repeat this when it is done")
        check_same_rows(run, [shard])
        yield run.owner(shard).uids


def check_same_rows(run: Run, shards: Iterable[str]) -> None:
    """Makes sure that shards have the rows they had when the run was opened: values go by row.

    Raises:
        RunError: a shard was indexed again and has others.
    """
    for shard in shards:
        then, path = run.owner(shard), run.index_path(shard)
        now = parts.index_facts(path) if path.is_file() else None
        if now is None or (now.rows, now.uids) != (then.rows, then.uids):
            raise RunError(
                f"the run {run.path} has changed since it was opened here: the shard {shard} has other rows now. "
                "Nothing more is written: open the run again, or repeat the command"
            )


@contextmanager
def locked(folder: Path, *, doing: str = "", patience: float | None = None) -> Iterator[None]:
    """Holds a folder's lock while the block runs.

    Args:
        folder: created if it does not exist.
        doing: what other commands say about this one, `PREPARES` for example.
        patience: seconds to wait for another command; None: `PATIENCE_SECONDS`. The wait is longer if that one
            prepares the run.

    Raises:
        RunError: another process keeps it (the message names it), or the folder cannot be written to.
        DiskFullError: no space is left.
    """
    with _holding(folder / "lock", doing, patience=patience) as acquired:
        if not acquired:
            raise RunError(f"{_in_use(folder / 'lock')}; wait for it, stop it, or use another folder")
        yield


@contextmanager
def _holding(path: Path, doing: str = "", *, patience: float | None) -> Iterator[bool]:
    """Holds a claim, waiting for it if need be; yields False if another process keeps it."""
    if not storage.has_if_absent(path):  # every rank does its own share
        yield True
        return
    patience = PATIENCE_SECONDS if patience is None else patience
    start, warned = time.monotonic(), False
    with storage.explained(path):
        while (content := _take(path, doing)) is None:
            longest = max(patience, PREPARING_SECONDS) if _holder(path).get("doing") == PREPARES else patience
            waited = time.monotonic() - start
            if waited >= longest:
                yield False
                return
            if waited > PATIENCE_SECONDS and not warned:
                log.warning("%s: waiting up to %.0f s", _in_use(path), longest)
                warned = True
            time.sleep(0.05 * storage.seconds_between_writes(path))
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
                storage.remove(path)
        except (OSError, RunError) as error:  # its lease ends
            log.debug("the claim %s could not be released: %s", path, error)


def _renew(path: Path, content: bytes, released: threading.Event) -> None:
    while not released.wait(limit("lease") / _RENEWALS):
        try:
            if _read(path) != content:  # another process took over while this one slept
                return
            storage.put(path, content)
        except (OSError, RunError) as error:  # retried; at worst the shard is done twice
            log.debug("the claim %s could not be renewed: %s", path, error)


def _take(path: Path, doing: str) -> bytes | None:
    """Returns the content of a new claim; None if another process holds it."""
    me = {"process": os.getpid(), "started": started(os.getpid()), "numbers": NUMBERED_IN, "host": socket.gethostname()}
    content = json.dumps({**me, "doing": doing, "id": uuid.uuid4().hex}).encode()
    if storage.put(path, content, if_absent=True):
        return content
    if not _is_free(path, partial(_now, path.parent)):
        return None
    storage.remove(path)
    return content if storage.put(path, content, if_absent=True) else None


def _in_use(path: Path) -> str:
    holder, lock = _holder(path), path.name == "lock"
    place = str(path.parent) if lock else f"the shard {path.name} of {path.parents[1]}"
    doing = f", which {holder['doing']}" if holder.get("doing") else ""
    return (
        f"{place} is in use by process {holder.get('process', '?')} on {holder.get('host', 'another machine')}{doing}"
    )


def takes_over(run: Path) -> bool:
    """Whether a process may do the shards that another one leaves: claims need a store with conditional writes."""
    if storage.has_if_absent(run / CLAIMS):
        return True
    log.warning(
        "%s: this store has no conditional writes that Tamis knows of, so shards cannot be claimed. Ranks of "
        "--engine static do only their own shares; do not start two other commands at once",
        run,
    )
    return False


def being_done(run: Path, shards: Collection[str]) -> set[str]:
    """Returns the shards that a process has claimed."""
    now = cache(partial(_now, run / CLAIMS))
    return {name for name in storage.files(run / CLAIMS) if name in shards and not _is_free(run / CLAIMS / name, now)}


def free_claims(run: Path) -> list[str]:
    """Returns the names of claims whose processes were killed."""
    claims = storage.files(run / CLAIMS)
    return sorted(claims - being_done(run, claims))


def sweep_claims(run: Path) -> None:
    """Removes what killed processes left of claims."""
    storage.sweep(run / CLAIMS)
    for name in free_claims(run):
        storage.remove(run / CLAIMS / name)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _holder(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_read(path) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_free(path: Path, now: Callable[[], float]) -> bool:
    entry, holder = storage.look(path), _holder(path)
    if entry is None:
        return True
    if holder.get("numbers") == NUMBERED_IN:
        process = int(holder.get("process", 0))
        return not alive(process) or started(process) != holder.get("started")
    return now() - entry.changed >= limit("lease")


def _now(folder: Path) -> float:
    """Returns the time of the disk's or store's clock: machines' clocks may differ by minutes."""
    path = folder / f".clock-{uuid.uuid4().hex}"
    storage.put(path, b"now")
    try:
        entry = storage.look(path)
    finally:
        storage.remove(path)
    return time.time() if entry is None else entry.changed
