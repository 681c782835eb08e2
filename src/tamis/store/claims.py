"""Claims: which process is at a shard, and which command prepares a run.

A claim is a small file that names its process and is renewed while the work goes on. That of a dead process of this
machine is free at once; another machine's when it was not renewed for `TAMIS_REMOTE_LEASE` seconds by the clock of the
disk or store. Claims save work: two processes at one shard do it twice and write the same files.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

from tamis.errors import RunError
from tamis.processes import NUMBERED_IN, alive, started
from tamis.remote import patience as limits
from tamis.storage import Disk, Remote
from tamis.store.atomic import FULL, explained, no_space, sweep
from tamis.store.mirror import look_again, mirror_of, named

log = logging.getLogger(__name__)

#: The folder of a run where claims lie.
CLAIMS = "claims"

#: How long a command waits for a folder's lock; and for a command that prepares a run: that may list a million shards,
#: and ranks that a scheduler has started do so one after the other.
PATIENCE_SECONDS = 2.0
PREPARES = "prepares the run"
PREPARING_SECONDS = 600.0

_RENEWALS = 12  # in the time after which a claim that is not renewed is free


@contextmanager
def claimed(folder: Path, shard: str) -> Iterator[bool]:
    """Claims a shard of a run while the block runs; gives False where another process has it.

    Of a run at a URL, what other machines have done of the shard is seen in the block.

    Raises:
        RunError: the folder cannot be written to.
        DiskFullError: no space is left.
    """
    mirror = mirror_of(folder)
    with explained(folder / CLAIMS / shard):
        claim = _take(_place(folder), f"{CLAIMS}/{shard}")
    if claim is None:
        yield False
        return
    try:
        if mirror is not None:
            mirror.freshen(shard)
        yield True
    finally:
        claim.release()


@contextmanager
def locked(
    folder: Path, *, what: str = "run folder", option: str = "--run", doing: str = "", patience: float | None = None
) -> Iterator[None]:
    """Holds a folder's lock while the block runs.

    Args:
        folder: it is made where it is not there.
        what, option: what the folder is called, and which option names another one, for messages.
        doing: what others are told of this command, `PREPARES` for example.
        patience: seconds to wait for another command; None: `PATIENCE_SECONDS`. One that prepares the run is waited for
            longer.

    Raises:
        RunError: another process keeps it (the message names it), or the folder cannot be written to.
        DiskFullError: no space is left.
    """
    claim = _wait_for(_place(folder), folder, what, option, doing, PATIENCE_SECONDS if patience is None else patience)
    try:
        if mirror_of(folder) is not None:
            look_again(folder, anew=True)
        yield
    finally:
        claim.release()


def _wait_for(place: Disk | Remote, folder: Path, what: str, option: str, doing: str, patience: float) -> _Claim:
    start, told = time.monotonic(), False
    while True:
        try:
            if (claim := _take(place, "lock", doing)) is not None:
                return claim
        except OSError as error:
            if error.errno in FULL:
                raise no_space(folder) from error
            why = error.strerror or error
            raise RunError(f"the {what} {folder} cannot be written to: {why}; choose another with {option}") from error
        waited = time.monotonic() - start
        if waited > min(patience, PATIENCE_SECONDS):
            holder = _holder(place, "lock")
            doing_it = f", which {holder['doing']}" if holder.get("doing") else ""
            who = f"process {holder.get('process', '?')} on {holder.get('host', 'another machine')}{doing_it}"
            used = f"the {what} {named(folder)} is in use by {who}"
            longest = max(patience, PREPARING_SECONDS) if holder.get("doing") == PREPARES else patience
            if waited > longest:
                raise RunError(f"{used}; wait for it, stop it, or use another folder")
            if not told:
                log.warning("%s: waiting for it, %.0f s at most", used, longest)
                told = True
        time.sleep(0.05 if isinstance(place, Disk) else 1.0)


def takes_over(folder: Path) -> bool:
    """Tells whether claims on shards can be had, so that one process may do what another one leaves."""
    mirror = mirror_of(folder)
    if mirror is None or mirror.objects.exclusive:
        return True
    log.warning(
        "%s: this store cannot say who is at a shard (it has no conditional writes that Tamis knows of). Ranks of "
        "--engine static do their own shares and take over none; let no two other commands work at it at once",
        mirror.url,
    )
    return False


def being_done(folder: Path, shards: Collection[str]) -> set[str]:
    """Returns those of some shards whose claim a process holds."""
    place = _place(folder)
    now = cache(partial(_now, place, CLAIMS))
    return {name for name in _names(place) if name in shards and not _is_free(place, f"{CLAIMS}/{name}", now)}


def free_claims(folder: Path) -> list[str]:
    """Returns the names of claims that no process holds: their processes were killed."""
    place = _place(folder)
    now = cache(partial(_now, place, CLAIMS))
    return [name for name in _names(place) if _is_free(place, f"{CLAIMS}/{name}", now)]


def sweep_claims(folder: Path) -> None:
    """Removes the claims of processes that were killed, and what they left of claims."""
    sweep(folder / CLAIMS)
    for name in free_claims(folder):
        _place(folder).remove(f"{CLAIMS}/{name}")


def _place(folder: Path) -> Disk | Remote:
    """Returns where claims lie: at the run's store if that knows who came first, else on this machine's disk."""
    mirror = mirror_of(folder)
    return mirror.objects if mirror is not None and mirror.objects.exclusive else Disk(folder)


def _names(place: Disk | Remote) -> list[str]:
    names = (name.partition("/")[2] for name in place.list(CLAIMS))
    return [name for name in names if name and not name.startswith(".")]


class _Claim:
    """A claim that this process holds, renewed by a thread of its own."""

    def __init__(self, place: Disk | Remote, name: str, said: bytes) -> None:
        self._place, self._name, self._said = place, name, said
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="tamis-claim", daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        while not self._left.wait(limits().lease / _RENEWALS):
            try:
                if self._place.read(self._name) != self._said:  # taken over while this process slept
                    return
                self._place.put(self._name, self._said)
            except (OSError, RunError) as error:  # tried again; at worst the shard is done twice
                log.debug("the claim %s could not be renewed: %s", self._name, error)

    def release(self) -> None:
        """Gives the claim back, if it is still this process's."""
        self._left.set()
        self._thread.join()
        try:
            if self._place.read(self._name) == self._said:
                self._place.remove(self._name)
        except (OSError, RunError) as error:  # it ends by itself
            log.debug("the claim %s could not be given back: %s", self._name, error)


def _take(place: Disk | Remote, name: str, doing: str = "") -> _Claim | None:
    """Returns a claim of this process's own; None where another process holds it."""
    me = {"process": os.getpid(), "started": started(os.getpid()), "numbers": NUMBERED_IN, "host": socket.gethostname()}
    said = json.dumps({**me, "doing": doing, "id": uuid.uuid4().hex}).encode()
    if place.put(name, said, if_absent=True):
        return _Claim(place, name, said)
    if not _is_free(place, name, partial(_now, place, os.path.dirname(name))):
        return None
    place.remove(name)
    return _Claim(place, name, said) if place.put(name, said, if_absent=True) else None


def _holder(place: Disk | Remote, name: str) -> dict[str, Any]:
    try:
        found = json.loads(place.read(name) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_free(place: Disk | Remote, name: str, now: Callable[[], float]) -> bool:
    entry, holder = place.look(name), _holder(place, name)
    if entry is None:
        return True
    if holder.get("numbers") == NUMBERED_IN:
        process = int(holder.get("process", 0))
        return not alive(process) or started(process) != holder.get("started")
    return now() - entry.changed >= limits().lease


def _now(place: Disk | Remote, folder: str) -> float:
    """Returns the time by the clock of who keeps the files: those of two machines may be minutes apart."""
    name = f"{folder}/.clock-{uuid.uuid4().hex}".lstrip("/")
    place.put(name, b"now")
    try:
        entry = place.look(name)
    finally:
        place.remove(name)
    return time.time() if entry is None else entry.changed
