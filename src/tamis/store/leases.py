"""Who is at a shard of a run at a URL: leases, in place of the locks that stores do not have.

A lease is an object that only one can create: `claims/<name>.001`, with its owner's word in it. The owner writes it
again and again. Where it has not been written for `Patience.lease` seconds by the store's own clock, whoever creates
the next number, `claims/<name>.002`, has taken it over: the highest number counts. Before an owner puts something up or
removes it, it looks whether its object still is the highest; one that slept while it was taken over stops there.

Machines' clocks are never compared: the store's is read from an object that is written for that. A lease of the same
mirror is free at once, since processes of one machine have the kernel's locks between them, and who asks here has that.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
import time
import uuid
from dataclasses import dataclass, field

from tamis.errors import RunError
from tamis.remote import RemoteError, patience
from tamis.store.atomic import writing
from tamis.store.mirror import LEASES, Mirror
from tamis.store.objects import Entry

log = logging.getLogger(__name__)

# So old the store's last word may be for something to be put up without asking: parts of a shard follow each other.
_FRESH_SECONDS = 2.0

_NUMBERED = re.compile(r"(.+)\.(\d{3,})")
_CLOCK = ".clock"


@dataclass
class Lease:
    """A lease that this process has.

    Attributes:
        mirror: of the run.
        name: of the shard, or what else is leased.
        number: of its object.
        token: what stands in it.
    """

    mirror: Mirror
    name: str
    number: int
    token: bytes
    _left: threading.Event = field(default_factory=threading.Event)
    _busy: threading.Lock = field(
        default_factory=threading.Lock
    )  # else a renewal on its way brings back what is removed
    _seen: float = 0.0  # when it was last seen to stand, by `_clock`

    @property
    def key(self) -> str:
        return _key(self.name, self.number)

    def keep(self, seen: float) -> None:
        """Renews the lease from now on, in a thread, until it is released.

        Args:
            seen: when it was asked whether it stands, by `_clock`.
        """
        self._seen = seen
        threading.Thread(target=self._renew, name="tamis-lease", daemon=True).start()

    def _renew(self) -> None:
        while not self._left.wait(patience().lease / 4):
            try:
                with self._busy:
                    if self._left.is_set() or not self._asked():
                        return
                    self.mirror.objects.write(self.key, self.token)
            except RunError as error:  # `stands` is asked before anything is written
                log.debug("the lease on %s could not be renewed: %s", self.name, error)

    def stands(self) -> bool:
        """Tells whether the lease is still held."""
        return _clock() - self._seen < _FRESH_SECONDS or self._asked()

    def _asked(self) -> bool:
        start = _clock()  # who sleeps between the answer and the next line has seen nothing of what comes meanwhile
        if max(_numbers(self.mirror, self.name), default=0) != self.number:
            return False
        if self.mirror.objects.read(self.key) != self.token:
            return False
        self._seen = start
        return True

    def release(self) -> None:
        """Gives the lease back, and removes those that it was taken over from: the highest number goes last."""
        self._left.set()
        try:
            with self._busy:
                # Seen so lately, it cannot have been taken over: there is nothing to ask.
                if _clock() - self._seen < patience().lease / 2 or self._asked():
                    for number in range(1, self.number + 1):
                        self.mirror.objects.remove(_key(self.name, number))
        except RunError as error:  # it ends by itself
            log.warning("the lease on %s could not be given back, and ends by itself: %s", self.name, error)


def hold(mirror: Mirror) -> bool:
    """Tells whether leases can be had at a run's store: whether it creates an object only where there is none.

    It is tried once for each mirror.
    """
    noted = mirror.folder / ".mirror" / "leases"
    if noted.is_file() and (said := noted.read_text(encoding="ascii")) in ("yes", "no"):
        return said == "yes"
    answer = mirror.objects.conditional and _tried(mirror)
    if not answer:
        log.warning(
            "%s: this store cannot say who is at a shard (it has no conditional writes that Tamis knows of). Ranks of "
            "--engine static do their own shares and take over none; let no two other commands work at it at once",
            mirror.url,
        )
    with writing(noted) as temporary:
        temporary.write_text("yes" if answer else "no", encoding="ascii")
    return answer


def _tried(mirror: Mirror) -> bool:
    name = f"{LEASES}/.try-{uuid.uuid4().hex}"
    try:
        return mirror.objects.create(name, b"one") and not mirror.objects.create(name, b"two")
    except RunError as error:
        if isinstance(error.__cause__, RemoteError) and error.__cause__.passing:  # it says nothing of conditions
            raise
        mirror.objects.write(name, b"three")  # where that fails too, it is not the condition that the store refuses
        log.info("%s refuses conditional writes: %s", mirror.url, error)
        return False
    finally:
        mirror.objects.remove(name)


def take(mirror: Mirror, name: str, doing: str = "") -> Lease | None:
    """Returns a lease, or None where another machine has it. This machine's processes have agreed before who asks.

    Args:
        mirror: of the run; its store has leases (`hold`).
        name: of the shard.
        doing: what the lease tells others of this command.

    Raises:
        RunError: the store fails.
    """
    note = f"process {os.getpid()} on {socket.gethostname()}{f', which {doing}' if doing else ''}"
    lease = Lease(mirror, name, 1, f"{mirror.ident} {uuid.uuid4().hex} {note}\n".encode())
    if _created(lease):
        return lease
    there = _numbers(mirror, name)
    highest = max(there, default=0)
    if highest:
        said = mirror.objects.read(_key(name, highest))
        if said is None:  # given back meanwhile: all who wait try 1, and the next number would be a second lease
            highest = 0
        elif not _free(mirror, said, there[highest]):
            return None
    lease.number = highest + 1
    return lease if _created(lease) else None


def _created(lease: Lease) -> bool:
    """Creates a lease's object, and renews it from then on, if no other has that number or a higher one."""
    start = _clock()
    if not lease.mirror.objects.create(lease.key, lease.token):
        return False
    if max(_numbers(lease.mirror, lease.name), default=0) != lease.number:
        lease.mirror.objects.remove(lease.key)
        return False
    lease.keep(start)
    return True


def holder(mirror: Mirror, name: str) -> str:
    """Returns what a lease tells of who has it; "another process" where it tells nothing."""
    highest = max(_numbers(mirror, name), default=0)
    words = (mirror.objects.read(_key(name, highest)) or b"").decode("utf-8", "replace").split(maxsplit=2)
    return words[2].strip() if len(words) == 3 else "another process"


def held(mirror: Mirror) -> set[str]:
    """Returns what other machines have leases on, that have not ended."""
    now = None
    found = set()
    for name, entry in _all(mirror).items():
        if match := _NUMBERED.fullmatch(name):
            now = _now(mirror) if now is None else now
            if now - entry.changed < patience().lease:
                found.add(match[1])
    return found


def sweep(mirror: Mirror) -> None:
    """Removes leases that have ended, and what was left of asking for the time."""
    now = None
    for name, entry in _all(mirror).items():
        now = _now(mirror) if now is None else now
        if now - entry.changed >= patience().lease:
            mirror.objects.remove(f"{LEASES}/{name}")


def _key(name: str, number: int) -> str:
    return f"{LEASES}/{name}.{number:03}"


def _all(mirror: Mirror) -> dict[str, Entry]:
    start = len(LEASES) + 1
    return {name[start:]: entry for name, entry in mirror.objects.below(LEASES).items()}


def _numbers(mirror: Mirror, name: str) -> dict[int, Entry]:
    found = {}
    for one, entry in _all(mirror).items():
        match = _NUMBERED.fullmatch(one)
        if match is not None and match[1] == name:
            found[int(match[2])] = entry
    return found


def _free(mirror: Mirror, said: bytes, entry: Entry) -> bool:
    return said.startswith(f"{mirror.ident} ".encode()) or _now(mirror) - entry.changed >= patience().lease


def _clock() -> float:
    """Returns seconds of a clock that nobody sets, and that goes on while the machine sleeps, where there is one."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


#: The store's time minus that clock, by the run's URL, and when it was asked for.
_offsets: dict[str, tuple[float, float]] = {}
_OFFSET_SECONDS = 600.0


def _now(mirror: Mirror) -> float:
    """Returns the time by the store's clock."""
    offset, asked = _offsets.get(mirror.url, (0.0, -_OFFSET_SECONDS))
    if _clock() - asked >= _OFFSET_SECONDS:
        name = f"{LEASES}/{_CLOCK}-{uuid.uuid4().hex}"
        try:
            mirror.objects.write(name, b"")
            entry = mirror.objects.look(name)
        finally:
            mirror.objects.remove(name)
        asked = _clock()
        offset = (entry.changed if entry else time.time()) - asked
        _offsets[mirror.url] = (offset, asked)
    return _clock() + offset
