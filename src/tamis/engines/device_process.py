"""One process per device that runs the networks for many workers.

A worker reads, decodes, computes the nodes that need no device, and writes the parts. For all other nodes it asks the
device's process, batch by batch: arrays travel through shared memory, everything else through a socket. So a GPU holds
its models once, however many workers feed it. Threads of one process could not: the work around libjpeg holds the
interpreter lock.

The process computes one batch at a time and announces each to its sender. If it dies, the shard of that batch fails;
all other workers ask the process that replaces it.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import numpy as np

from tamis.core.errors import ShardError, SignalError
from tamis.core.files.remote import known_secrets, take_secrets
from tamis.core.processes import die_with_parent
from tamis.core.types import Device, Node
from tamis.engines.plan import Plan
from tamis.signals.graph import Executor, NodeFault, Values, picklable

#: Sent before a batch is computed.
_BEGUN = b"begun"

#: How long a worker waits for the process to restart, which is quick: models load on first use.
_RESTART_SECONDS = 60.0
_RETRY_SECONDS = 0.1

#: A worker gives up after this many deaths of the process during other workers' batches.
_MOST_DEATHS = 100


class DeviceProcess:
    """Runs a device's process and restarts it when it dies. Workers connect to the socket at `address`."""

    def __init__(self, device: Device) -> None:
        # The address of a socket is limited to about a hundred characters.
        short = len(tempfile.gettempdir()) < 60
        self._folder = tempfile.TemporaryDirectory(prefix="tamis-", dir=None if short else "/tmp")
        self.address = os.path.join(self._folder.name, "device")
        self._device, self._closed, self._starting = device, False, threading.Lock()
        self._start()
        self._watcher = threading.Thread(target=self._watch, name="tamis-device", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        """Ends the process."""
        with self._starting:
            self._closed = True
            self._process.kill()  # it writes nothing
        self._watcher.join()
        self._folder.cleanup()

    def _start(self) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.address)
        arguments = (self.address, self._device, known_secrets())
        self._process = multiprocessing.get_context("spawn").Process(target=_serve, args=arguments, daemon=True)
        self._process.start()

    def _watch(self) -> None:
        while True:
            self._process.join()
            with self._starting:
                if self._closed:
                    return
                self._start()


class RemoteExecutor(Executor):
    """Computes the nodes that need no device here, and the others in the device's process.

    `seconds` counts this worker's batches, wherever they ran.
    """

    def __init__(self, address: str, plan: Plan) -> None:
        super().__init__(plan.device)
        self._address = address
        self._wanted = frozenset(output.node for output in plan.outputs)  # other values are not sent back
        self._connection: Connection | None = None
        self._memory: mmap.mmap | None = None

    def compute(self, nodes: Sequence[Node], values: Values, faults: dict[Node, NodeFault]) -> None:
        """Adds the values that a part needs; raises ShardError if the process dies at this batch, or stays dead."""
        for node in nodes:
            if node.host and all(needed in values for needed in node.needs().values()):
                super().compute([node], values, faults)
        remote = [node for node in nodes if node not in values]
        if remote:
            inputs = {needed for node in remote for needed in node.needs().values() if needed in values}
            failed = {node: faults[node] for node in remote if node in faults}
            made, new = self._request(remote, {node: values[node] for node in inputs}, failed)
            values.update(made)
            faults.update(new)

    def try_empty(self, nodes: Sequence[Node], given: Mapping[Node, Any]) -> None:
        """Loads nodes and tries them on an empty batch, as `Executor.try_empty` does."""
        if self._tried.issuperset(nodes):
            return
        faults: dict[Node, NodeFault] = {}
        self.compute(nodes, dict(given), faults)
        self._tried.update(nodes)
        for fault in faults.values():  # other errors on an empty batch prove nothing
            if isinstance(fault.error, SignalError):
                raise fault.error

    def _request(self, nodes: Sequence[Node], values: Values, failed: dict[Node, NodeFault]) -> tuple[Values, Values]:
        arrays: list[pickle.PickleBuffer] = []
        wanted = [node for node in nodes if node in self._wanted]
        request = pickle.dumps((nodes, values, failed, wanted), 5, buffer_callback=arrays.append)
        for _ in range(_MOST_DEATHS):
            begun = False
            try:
                connection = self._connect()
                self._send(connection, request, [array.raw() for array in arrays])
                begun = connection.recv_bytes() == _BEGUN
                made, new, took = pickle.loads(connection.recv_bytes())
            except (EOFError, OSError) as error:
                self._connection = self._memory = None
                if begun:
                    raise ShardError("the device's process died at this shard: use a smaller --batch-size") from error
                continue  # it died while computing another worker's batch
            if isinstance(made, BaseException):
                raise made
            for name, seconds in took.items():
                self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            return made, new
        raise ShardError(f"the device's process died {_MOST_DEATHS} times before it computed a batch of this shard")

    def _connect(self) -> Connection:
        end = time.monotonic() + _RESTART_SECONDS
        while self._connection is None:
            try:
                self._connection = Client(self._address)
            except OSError as error:
                if time.monotonic() > end:
                    raise ShardError(f"the device's process died and was not restarted ({error})") from error
                time.sleep(_RETRY_SECONDS)
        return self._connection

    def _send(self, connection: Connection, request: bytes, arrays: Sequence[memoryview]) -> None:
        """Copies arrays to the shared memory, which grows with them, and sends the request."""
        sizes = [array.nbytes for array in arrays]
        handle = None
        if self._memory is None or len(self._memory) < sum(sizes):
            handle, self._memory = _shared_memory(max(sum(sizes) * 5 // 4, 1 << 20))
        start = 0
        for array, size in zip(arrays, sizes, strict=True):
            self._memory[start : start + size] = array
            start += size
        connection.send((handle is not None, sizes))
        if handle is not None:
            send_handle(connection, handle, os.getpid())
            os.close(handle)
        connection.send_bytes(request)


def _shared_memory(size: int) -> tuple[int, mmap.mmap]:
    """Returns shared memory: its descriptor, to be sent, and the mapping. Not `multiprocessing.shared_memory`:
    containers often have only 64 MB of /dev/shm, and a process that exceeds it is killed (SIGBUS).
    """
    if hasattr(os, "memfd_create"):
        handle = os.memfd_create("tamis")
    else:  # not Linux
        with tempfile.TemporaryFile() as file:
            handle = os.dup(file.fileno())
    os.ftruncate(handle, size)
    return handle, mmap.mmap(handle, size)


def _serve(address: str, device: Device, hidden: Mapping[str, str]) -> None:
    """Runs in the device's process: answers each worker in a thread, one batch at a time."""
    die_with_parent()
    take_secrets(hidden)
    executor, turn = Executor(device), threading.Lock()
    with suppress(KeyboardInterrupt), Listener(address, backlog=128) as listener:
        while True:
            with suppress(EOFError, OSError):  # a worker died while it connected
                connection = listener.accept()
                threading.Thread(target=_answer, args=(connection, executor, turn), daemon=True).start()


def _answer(connection: Connection, executor: Executor, turn: threading.Lock) -> None:
    """Answers one worker until it disconnects."""
    memory: Any = b""
    with suppress(EOFError, OSError), connection:
        while True:
            replaced, sizes = connection.recv()
            if replaced:
                handle = recv_handle(connection)
                memory = mmap.mmap(handle, 0)
                os.close(handle)
            request = connection.recv_bytes()
            arrays, start = [], 0
            for size in sizes:
                # A copy: a node may keep its input, and the next batch overwrites the shared memory.
                arrays.append(np.frombuffer(memory, np.uint8, size, start).copy() if size else b"")
                start += size
            with turn:
                connection.send_bytes(_BEGUN)
                reply = _reply(executor, request, arrays)
            connection.send_bytes(reply)


def _reply(executor: Executor, request: bytes, arrays: Sequence[Any]) -> bytes:
    """Returns values, faults and seconds by node, or the error, pickled."""
    try:
        nodes, values, faults, wanted = pickle.loads(request, buffers=arrays)
        failed, before = set(faults), dict(executor.seconds)
        executor.compute(nodes, values, faults)
        made = {node: values[node] for node in nodes if node in wanted or isinstance(values[node], NodeFault)}
        new = {node: fault for node, fault in faults.items() if node not in failed}
        took = {name: total - before.get(name, 0.0) for name, total in executor.seconds.items()}
        return pickle.dumps((made, new, took), 5)
    except Exception as error:
        return pickle.dumps((picklable(error), {}, {}))
