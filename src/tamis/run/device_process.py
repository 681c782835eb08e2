"""One process at a device, for many workers that read and decode: they feed it, and it runs the networks.

A worker does its shard as ever: it reads, decodes, computes what runs beside the model, and writes the parts. For the
nodes that need the device it asks the process that has it, batch by batch: arrays go through memory that both have
mapped, all else through a socket. So a GPU has its models once, however many workers it takes to feed it, and they
share what grows with the images (tar, JSON, JPEG, Parquet).

The process computes one batch at a time and says whose before it begins: should it die, the shard of that batch fails,
and the other workers ask its successor.
"""

from __future__ import annotations

import mmap
import multiprocessing
import multiprocessing.connection
import multiprocessing.reduction
import os
import pickle
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.data import Device, Node
from tamis.errors import ShardError, StopError
from tamis.graph import Executor, Fault, Values
from tamis.processes import die_with
from tamis.remote import remember
from tamis.run.plan import Plan

#: Before a batch is computed, so that whoever sent it knows that it was at it when the process died.
_BEGUN = b"begun"

#: Arrays of fewer bytes go with the message.
_SMALL = 4 << 10

#: So long a worker looks for the process again after it has died: its successor answers before it has loaded anything.
_COMES_BACK_SECONDS = 60.0

_LOOK_SECONDS = 0.1

#: After so many deaths of it at batches of others a worker gives up.
_DEATHS = 100

#: What is said of a request's memory when it is done: that nothing looks at it any more, or that something does.
_FREE, _KEPT = b"free", b"kept"


class DeviceProcess:
    """The process that has a device, as the engine sees it: it is started, looked after, and ended.

    Attributes:
        address: where workers ask it.
    """

    def __init__(self, context: SpawnContext, device: Device, hidden: Mapping[str, str]) -> None:
        self.device, self.hidden, self._context = device, hidden, context
        # The address of a socket has a hundred characters at most; nobody else can look into this folder.
        short = len(tempfile.gettempdir()) < 60
        self._folder = tempfile.TemporaryDirectory(prefix="tamis-", dir=None if short else "/tmp")
        self.address = os.path.join(self._folder.name, "device")
        self._renewing = threading.Lock()  # several threads may wait for workers
        self._process = self._start()

    @property
    def sentinel(self) -> int:
        """Becomes ready when the process has ended."""
        return self._process.sentinel

    def renew(self) -> None:
        """Starts the process anew if it has died."""
        with self._renewing:
            if not self._process.is_alive():
                self._process.join()
                self._process = self._start()

    def close(self) -> None:
        """Ends the process."""
        self._process.terminate()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(timeout=5)
        self._folder.cleanup()

    def _start(self) -> BaseProcess:
        with suppress(FileNotFoundError):
            os.unlink(self.address)
        process = self._context.Process(
            target=_serve, args=(self.address, self.device, os.getpid(), self.hidden), daemon=True
        )
        process.start()
        return process


class AtDevice:
    """Computes nodes as `Executor` does: those that run beside the model here, the others at the device's process.

    Args:
        address: of that process.
        plan: the values that its parts are made of come back; others stay there.

    Attributes:
        seconds: that nodes have taken for this one's batches, here or there, by their names.
    """

    def __init__(self, address: str, plan: Plan) -> None:
        self._address, self._outputs = address, frozenset(output.node for output in plan.outputs)
        self._here = Executor(plan.device)
        self.seconds = self._here.seconds
        self._tried: set[Node] = set()
        self._connection: multiprocessing.connection.Connection | None = None
        self._memory: _Memory | None = None

    def compute(self, nodes: Sequence[Node], values: Values, faults: dict[Node, Fault]) -> None:
        """Adds the values of nodes to those of a batch: as `Executor.compute`, but for values that no part holds.

        Raises:
            ShardError: the process died while it was at this batch, or does not come back.
        """
        for node in nodes:
            if node.host and all(needed in values for needed in node.needs().values()):
                self._here.compute([node], values, faults)
        there = [node for node in nodes if node not in values]
        if there:
            needed = {one for node in there for one in node.needs().values()}
            given = {node: value for node, value in values.items() if node in needed}
            made, found = self._ask("compute", there, given, {node: faults[node] for node in there if node in faults})
            values.update(made)
            faults.update(found)

    def try_empty(self, nodes: Sequence[Node], given: Mapping[Node, Any]) -> None:
        """Has nodes loaded, and tried on a batch without samples: as `Executor.try_empty`."""
        if not self._tried.issuperset(nodes):
            self._ask("try_empty", list(nodes), dict(given), {})
            self._tried.update(nodes)

    def _ask(
        self, what: str, nodes: Sequence[Node], given: Values, faults: Mapping[Node, Fault]
    ) -> tuple[Values, Mapping[Node, Fault]]:
        wanted = [node for node in nodes if node in self._outputs]
        given = {node: _plain(value) for node, value in given.items()}
        known = {node: _plain(fault) for node, fault in faults.items()}
        arrays: list[pickle.PickleBuffer] = []
        request = pickle.dumps((what, nodes, given, known, wanted), 5, buffer_callback=_large(arrays))
        for _ in range(_DEATHS):
            begun = False
            try:
                connection, memory = self._connected()
                memory.send(connection, request, arrays)
                begun = connection.recv_bytes() == _BEGUN
                made, found, took = pickle.loads(connection.recv_bytes())
                if connection.recv_bytes() == _KEPT:
                    memory.leave()
            except (EOFError, OSError) as error:
                self._disconnect()
                if begun:
                    raise ShardError(
                        "the process at the device died while it computed a batch of this shard; the system or the "
                        "device running out of memory is the usual reason: take a smaller --batch-size"
                    ) from error
                continue  # it died at another's batch, or before it took this one
            if isinstance(made, BaseException):
                raise made
            for name, seconds in took.items():
                self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            return made, found
        raise ShardError(f"the process at the device died {_DEATHS} times before it came to a batch of this shard")

    def _connected(self) -> tuple[multiprocessing.connection.Connection, _Memory]:
        end = time.monotonic() + _COMES_BACK_SECONDS
        while self._connection is None or self._memory is None:
            try:
                self._connection, self._memory = multiprocessing.connection.Client(self._address), _Memory()
            except OSError as error:
                if time.monotonic() > end:
                    raise ShardError(
                        f"the process at the device does not answer ({error}): it died, and was not started anew "
                        f"within {_COMES_BACK_SECONDS:.0f} s"
                    ) from error
                time.sleep(_LOOK_SECONDS)
        return self._connection, self._memory

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = self._memory = None


def _large(arrays: list[pickle.PickleBuffer]) -> Callable[[pickle.PickleBuffer], bool]:
    """Returns what pickle asks of each array: whether it goes with the message. Those that do not are added."""

    def goes_along(array: pickle.PickleBuffer) -> bool:
        with array.raw() as plain:
            size = plain.nbytes
        if size >= _SMALL:
            arrays.append(array)
        return size < _SMALL

    return goes_along


class _Memory:
    """Memory that a worker shares with the process at the device: it holds the arrays of one request."""

    def __init__(self) -> None:
        self._map: mmap.mmap | None = None

    def leave(self) -> None:
        """Takes other memory for the next request: something at the device still looks at this."""
        self._map = None

    def send(
        self, connection: multiprocessing.connection.Connection, request: bytes, arrays: Sequence[pickle.PickleBuffer]
    ) -> None:
        """Sends a request: its arrays' places, other memory where this is too small, the rest."""
        places: list[tuple[int, int, bool]] = []
        end = 0
        for array in arrays:
            with array.raw() as plain:
                places.append((end, plain.nbytes, memoryview(array).readonly))
                end += -(-plain.nbytes // 64) * 64
        handle = None
        if end and (self._map is None or len(self._map) < end):
            size = -(-max(end * 5 // 4, 1 << 20) // mmap.PAGESIZE) * mmap.PAGESIZE
            handle = _nameless_file(size)
            self._map = mmap.mmap(handle, size)
        for array, (start, size, _) in zip(arrays, places, strict=True):
            assert self._map is not None, "there are arrays, so there is memory"
            with array.raw() as plain:
                self._map[start : start + size] = plain
        connection.send_bytes(pickle.dumps((handle is not None, places)))
        if handle is not None:
            multiprocessing.reduction.send_handle(connection, handle, os.getpid())
            os.close(handle)
        connection.send_bytes(request)


def _nameless_file(size: int) -> int:
    """Returns an open file in memory that goes with the last process that has it. /dev/shm is small in containers."""
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("tamis")
    else:  # not Linux
        handle, path = tempfile.mkstemp(prefix="tamis-")
        os.unlink(path)
    os.ftruncate(handle, size)
    return handle


def _serve(address: str, device: Device, parent: int, hidden: Mapping[str, str]) -> None:
    """The process at the device: answers each worker in a thread of its own, one batch at a time."""
    die_with(parent)
    remember(hidden)
    executor, turn = Executor(device), threading.Lock()
    with suppress(KeyboardInterrupt), multiprocessing.connection.Listener(address, backlog=128) as listener:
        while True:
            try:
                connection = listener.accept()
            except (EOFError, OSError):
                continue  # a worker that died while it came
            threading.Thread(target=_answer, args=(connection, executor, turn), daemon=True).start()


def _answer(connection: Any, executor: Executor, turn: threading.Lock) -> None:
    """Answers one worker until it goes."""
    shared: mmap.mmap | None = None
    with suppress(EOFError, OSError), connection:
        while True:
            anew, places = pickle.loads(connection.recv_bytes())
            if anew:
                shared = _mapped(multiprocessing.reduction.recv_handle(connection))
            request = connection.recv_bytes()
            # All arrays of the request are parts of this one: it lives as long as anything looks at one of them.
            memory = np.empty(0, np.uint8) if shared is None else np.frombuffer(shared, np.uint8)
            watched = weakref.ref(memory)
            with turn:
                connection.send_bytes(_BEGUN)
                reply = _done(executor, request, [_part(memory, *place) for place in places])
            del memory
            connection.send_bytes(reply)
            # A node that keeps what it was given would see the next batch in its place.
            connection.send_bytes(_FREE if watched() is None else _KEPT)


def _mapped(handle: int) -> mmap.mmap:
    shared = mmap.mmap(handle, 0)
    os.close(handle)
    return shared


def _part(memory: NDArray[np.uint8], start: int, size: int, readonly: bool) -> NDArray[np.uint8]:
    part = memory[start : start + size]
    part.flags.writeable = not readonly
    return part


def _done(executor: Executor, request: bytes, arrays: Sequence[NDArray[np.uint8]]) -> bytes:
    """Does what a request asks; returns values, faults and seconds by node as they are sent, or what was raised."""
    try:
        what, nodes, values, faults, wanted = pickle.loads(request, buffers=arrays)
        if what == "try_empty":
            executor.try_empty(nodes, values)
            return pickle.dumps(({}, {}, {}))
        before, so_far = set(faults), dict(executor.seconds)
        executor.compute(nodes, values, faults)
        new = {node: _plain(fault) for node, fault in faults.items() if node not in before}
        made = {node: _plain(values[node]) for node in nodes if node in wanted or isinstance(values[node], Fault)}
        took = {name: total - so_far.get(name, 0.0) for name, total in executor.seconds.items()}
        return pickle.dumps((made, new, took), 5)
    except Exception as error:
        return pickle.dumps((_carried(error), {}, {}))


def _plain(value: Any) -> Any:
    """Returns a value as it can be sent: a fault with an error that reaches the other process."""
    return Fault(value.node, _carried(value.error), value.trace) if isinstance(value, Fault) else value


def _carried(error: Any) -> Any:
    """Returns an error that reaches the other process: itself, or one of ours that says the same."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        kind = StopError if isinstance(error, StopError) else RuntimeError
        return kind(f"{type(error).__name__}: {error}")
    return error
