"""Who may write to a run folder: one command at a time to what the run says of itself, one process to each shard.

Both are locks of the kernel, which frees them when a process dies, however it dies. Some shared file systems keep
locks within each machine only (Lustre mounted with `localflock`), or have none. So a claim on a shard is a lease too:
its file names the machine, its time is renewed while the shard is worked on, and another machine leaves it alone until
it has not been renewed for a minute. Of a run at a URL there is a lease at its store as well (`tamis.store.leases`).
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tamis.errors import RunError
from tamis.store.atomic import FULL, MACHINE, STILL_MINE, TEMPORARY, explained, no_space
from tamis.store.mirror import Mirror, look_again, mirror_of, named

if TYPE_CHECKING:
    from tamis.store import leases

log = logging.getLogger(__name__)

#: Commands hold the folder's lock for moments only: so long another one waits for it.
PATIENCE_SECONDS = 2.0

#: What a command does that holds the lock for longer: it may list a million shards, and ranks that a scheduler has
#: started do so one after the other. So long another command waits for those that do it.
PREPARES = "prepares the run"
PREPARING_SECONDS = 600.0

#: Where the processes that are at a shard say so: a file per shard, which goes with them.
CLAIMS = "claims"

#: A claim of another machine that has not been renewed for so long is free. A process on this machine needs no lease:
#: the kernel knows whether it lives.
LEASE_SECONDS = 60.0
_RENEW_SECONDS = 10.0

#: What the lease on the whole run is called, beside those on shards. No name of a shard begins with a dot.
_WHOLE = ".lock"

#: What the system says where a file system has no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
_AGREE_SECONDS = 0.3  # there: so long two that claim a shard at once wait to see who of them wrote last


class ClaimLostError(RunError):
    """Another process has taken over the shard that this one was at: it makes the parts."""


@contextmanager
def locked(
    folder: Path, *, what: str = "run folder", option: str = "--run", doing: str = "", patience: float | None = None
) -> Iterator[None]:
    """Holds the folder's lock while the block runs.

    Should somebody remove the lock's file meanwhile, another process could lock a new one: before anything is renamed
    or removed in the block, it is looked whether the file that is there is the one that is locked.

    Args:
        folder: it is made where it is not there.
        what, option: what the folder is called, and which option names another one, for messages.
        doing: what the lock's file tells others of this command, `PREPARES` for example.
        patience: seconds to wait for another command that holds it; None: `PATIENCE_SECONDS`. One that prepares the run
            is waited for longer.

    Raises:
        RunError: another process keeps it (the message names it), or the folder cannot be written to; or, in the block,
            the lock is no longer the one that is held.
    """
    path = folder / "lock"
    wait = PATIENCE_SECONDS if patience is None else patience
    handle = _opened(folder, what, option)
    try:
        used = f"the {what} {named(folder)} is in use by"
        _take(path, handle, used, wait)
        while not _is_there(path, handle):  # removed between opening and locking: the next process would lock another
            os.close(handle)
            handle = _opened(folder, what, option)
            _take(path, handle, used, wait)
        with explained(path):
            os.ftruncate(handle, 0)
            note = f"process {os.getpid()} on {socket.gethostname()}{f', which {doing}' if doing else ''}\n"
            os.pwrite(handle, note.encode(), 0)
        lost = RunError(
            f"the lock {path} was removed or replaced while this process held it: another one may be at work here, so "
            f"nothing more is written. Repeat the command, and leave {path} alone while one runs"
        )
        with _insisting(lambda: _is_there(path, handle), lost), _locked_at_store(folder, used, doing, wait):
            yield
    finally:
        os.close(handle)


@contextmanager
def _locked_at_store(folder: Path, used: str, doing: str, patience: float) -> Iterator[None]:
    """Holds the lease on a whole run at a URL while the block runs, and looks what other machines have done before."""
    mirror = mirror_of(folder)
    if mirror is None or mirror.folder != folder:
        yield
        return
    from tamis.store import leases

    taken: list[leases.Lease] = []

    def take() -> bool:
        lease = leases.take(mirror, _WHOLE, doing)
        taken.extend([] if lease is None else [lease])
        return bool(taken)

    if leases.hold(mirror):
        _wait_for(take, lambda: leases.holder(mirror, _WHOLE), used, patience, nap=1.0)
    with _leasing(mirror, taken[0] if taken else None):
        look_again(folder, anew=True)
        yield


@contextmanager
def _leasing(mirror: Mirror, lease: leases.Lease | None) -> Iterator[None]:
    """Insists on a lease while the block runs, and gives it back; None where the store has none."""
    if lease is None:
        yield
        return
    try:
        lost = ClaimLostError(
            f"the lease {lease.key} at {mirror.url} was taken over while this process held it: another machine may be "
            "at work here, so nothing more of it is written here"
        )
        with _insisting(lease.stands, lost):
            yield
    finally:
        lease.release()


def _opened(folder: Path, what: str, option: str) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        if error.errno in FULL:
            raise no_space(folder) from error
        raise RunError(
            f"the {what} {folder} cannot be written to: {error.strerror}; choose another with {option}"
        ) from error


@contextmanager
def _insisting(ours: Callable[[], bool], lost: RunError) -> Iterator[None]:
    """Has whoever renames or removes something in the block look first whether what is held is still ours."""
    before, held = STILL_MINE.get(), [True]

    def look() -> None:
        before()
        if held and not ours():
            raise lost

    STILL_MINE.set(look)
    try:
        yield
    finally:
        held.clear()  # for who was given the check and leaves the block elsewhere: in another thread, say
        STILL_MINE.set(before)


def _take(path: Path, handle: int, used: str, patience: float) -> None:
    """Takes the lock of an open file; see `_wait_for`."""
    _wait_for(lambda: _taken(handle) is not False, lambda: _holder(path), used, patience)


def _wait_for(
    take: Callable[[], bool], holder_of: Callable[[], str], used: str, patience: float, nap: float = 0.05
) -> None:
    """Waits until a lock, or a lease, is taken, and says so where that takes time.

    Args:
        take: tries it.
        holder_of: tells who has it.
        used: "the run folder ... is in use by".
        patience: seconds; for one that prepares the run longer.
        nap: seconds between two tries.

    Raises:
        RunError: another process keeps it.
    """
    start, told = time.monotonic(), False
    while not take():
        waited = time.monotonic() - start
        if waited > min(patience, PATIENCE_SECONDS):
            holder = holder_of()
            longest = max(patience, PREPARING_SECONDS) if holder.endswith(PREPARES) else patience
            if waited > longest:
                raise RunError(f"{used} {holder}; wait for it, stop it, or use another folder")
            if not told:
                log.warning("%s %s: waiting for it, %.0f s at most", used, holder, longest)
                told = True
        time.sleep(nap)


def _holder(path: Path) -> str:
    """Returns what a lock's file tells of who holds it; it is opened anew, so that other machines' words are seen."""
    try:
        text = path.read_bytes()[:200].decode("utf-8", "replace").strip()
    except OSError:  # it was removed meanwhile
        text = ""
    return text or "another process"


@contextmanager
def claimed(folder: Path, shard: str) -> Iterator[bool]:
    """Claims a shard of a run while the block runs; gives False where another process has it.

    The kernel keeps the claim for the process that made it, also while that is stopped, until it dies; for other
    machines it lasts until it has not been renewed for `LEASE_SECONDS`. Should somebody remove the claim's file
    meanwhile, or another machine take it over, two processes could be at the shard: before anything is renamed or
    removed in the block, it is looked whether the claim that is there is the one that is held.

    Raises:
        RunError: the folder cannot be written to.
        ClaimLostError: in the block: the claim is no longer the one that is held.
        DiskFullError: no space is left.
    """
    path = folder / CLAIMS / shard
    with explained(path):
        path.parent.mkdir(exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        token = f"{MACHINE} {os.getpid()} {uuid.uuid4().hex}\n".encode()
        if not _claim(path, handle, token):
            yield False
            return

        def ours() -> bool:
            return _is_there(path, handle) and _said(handle) == token

        left = threading.Event()
        renewing = threading.Thread(target=_renew, args=(path, handle, left), name="tamis-claim", daemon=True)
        renewing.start()
        try:
            lost = ClaimLostError(
                f"the claim {path} was removed or replaced while this process held it: another one may be at the "
                "shard, so nothing more of it is written here"
            )
            with _insisting(ours, lost), _claimed_at_store(folder, shard) as mine:
                yield mine
        finally:
            left.set()
            renewing.join()  # it has the handle, whose number another file gets once it is closed
            if ours():
                path.unlink(missing_ok=True)
    finally:
        os.close(handle)


@contextmanager
def _claimed_at_store(folder: Path, shard: str) -> Iterator[bool]:
    """Holds the lease on a shard of a run at a URL while the block runs; gives False where another machine has it.

    What other machines have done of the shard is seen in the block.
    """
    mirror = mirror_of(folder)
    if mirror is None:
        yield True
        return
    from tamis.store import leases

    lease = None
    if leases.hold(mirror):
        lease = leases.take(mirror, shard)
        if lease is None:
            yield False
            return
    with _leasing(mirror, lease):
        if not shard.startswith("."):
            mirror.freshen(shard)
        yield True


def takes_over(folder: Path) -> bool:
    """Tells whether claims on shards can be had, so that one process may do what another one leaves."""
    mirror = mirror_of(folder)
    if mirror is None:
        return True
    from tamis.store import leases

    return leases.hold(mirror)


def _claim(path: Path, handle: int, token: bytes) -> bool:
    locks = _taken(handle)
    # A file that was removed between opening and locking is not a claim: the next process would lock another one.
    if locks is False or not _is_there(path, handle) or _leased(path, handle, locks is not None):
        return False
    with explained(path):
        os.ftruncate(handle, 0)
        os.pwrite(handle, token, 0)
    if locks is None:
        time.sleep(_AGREE_SECONDS)
        return _is_there(path, handle) and _said(handle) == token
    return True


def _said(handle: int) -> bytes:
    return os.pread(handle, 200, 0)


def _leased(path: Path, handle: int, locks: bool) -> bool:
    """Tells whether a claim that no process of this machine holds may be held on another one."""
    holder = _said(handle).decode("ascii", "replace").split(" ")[0]
    if not holder or (locks and holder == MACHINE):
        return False
    return _now(path.parent.parent) - os.fstat(handle).st_mtime < LEASE_SECONDS


def _now(folder: Path) -> float:
    """Returns the time by the clock of who keeps the files: those of two machines may be minutes apart."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock.", suffix=TEMPORARY) as probe:
            return os.fstat(probe.fileno()).st_mtime
    except OSError:  # a folder that may only be read
        return time.time()


def _renew(path: Path, handle: int, left: threading.Event) -> None:
    while not left.wait(_RENEW_SECONDS):
        try:
            os.utime(handle)  # not the path: another machine's claim may lie there by now
        except OSError as error:  # `_insisting` tells before anything is written
            log.debug("the claim %s could not be renewed: %s", path, error)


def unclaimed(folder: Path, shard: str) -> bool:
    """Tells whether nobody holds the claim whose file is there. It changes nothing."""
    path = folder / CLAIMS / shard
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        locks = _taken(handle)
        return locks is not False and not _leased(path, handle, locks is not None)
    finally:
        os.close(handle)


def being_done(folder: Path, shards: Collection[str]) -> set[str]:
    """Returns those of some shards whose claim a process holds."""
    found = {shard for shard in shards if (folder / CLAIMS / shard).exists() and not unclaimed(folder, shard)}
    if (mirror := mirror_of(folder)) is not None:
        from tamis.store import leases

        # A claim of ours that no process holds is of one that has died: so is its lease.
        found |= {one for one in leases.held(mirror) & set(shards) if not (folder / CLAIMS / one).exists()}
    return found


def _is_there(path: Path, handle: int) -> bool:
    """Tells whether an open file is the one that lies at a path. While it is open, no other gets its number."""
    held = os.fstat(handle)
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return (held.st_dev, held.st_ino) == (there.st_dev, there.st_ino)


def sweep_claims(folder: Path) -> None:
    """Removes the claims of processes that were killed."""
    if (folder / CLAIMS).is_dir():
        for name in os.listdir(folder / CLAIMS):
            with claimed(folder, name):
                pass
    if (mirror := mirror_of(folder)) is not None:
        from tamis.store import leases

        leases.sweep(mirror)


def _taken(handle: int) -> bool | None:
    """Takes the lock of a file; False where another process has it, None where the file system has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True
