"""The local engine: worker processes on this machine, each doing one shard at a time.

With more workers than GPUs, the workers read, decode and write, and one process per GPU runs the networks for all of
them (`tamis.run.device`). If a worker dies (out of memory, a crash in a native library), its shard is reported as
failed and a new worker takes its place.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tamis.errors import StopError, TamisError
from tamis.models.device import cores, memory, visible_devices
from tamis.pool.files import is_remote
from tamis.processes import die_with_parent
from tamis.remote import remember, secrets
from tamis.run.failures import ShardReport, record
from tamis.run.plan import Plan, Task
from tamis.run.shard import Progress, ShardWorker

if TYPE_CHECKING:
    from tamis.run.fill import EngineProgress

#: The most memory that a worker which reads and decodes takes: see `tamis.run.shard`.
_WORKER_BYTES = 1 << 30

#: Starting processes takes about a second of a core each, so it pays only for pools of more bytes.
_SMALL_POOL = 200 << 20
_LARGE_SHARD = 50 << 20  # assumed for a shard on a store: asking for its size takes a request

#: More decoding threads do not help: part of their work needs the interpreter's lock.
_MOST_DECODERS = 4


@dataclass(frozen=True)
class Place:
    """Which rank this process is, of those that share a run.

    Attributes:
        rank, world: the rank, from 0, and the number of ranks.
        local: the same among the ranks on this machine, which share its GPUs and cores.
        cores: of each rank; None: an equal share of the machine's.
        own_gpus: whether a rank sees its own GPUs only.
    """

    rank: int = 0
    world: int = 1
    local: tuple[int, int] = (0, 1)
    cores: int | None = None
    own_gpus: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise StopError(
                f"rank {self.rank} of {self.world} ranks is not possible: ranks are counted from 0 to {self.world - 1}"
            )


@dataclass(frozen=True)
class Local:
    """Engine: worker processes on this machine.

    Attributes:
        workers: how many; 1 works in this process. None: one per GPU, or 1.
        place: this rank's place among the ranks here.
        command: a command started it, not a caller of the library. Then
            - `workers` None means one per core, as memory allows, to feed GPUs or if there is only reading to do;
            - plug-ins run in a child process even with one worker, so that their exit does not end the command.
        served: one process per device runs the networks for all workers, instead of each worker. None: for GPUs, if
            there are more workers than GPUs.
    """

    away: ClassVar[bool] = False
    suffix: ClassVar[str] = ""
    workers: int | None = None
    place: Place = Place()
    command: bool = False
    served: bool | None = None

    def __call__(self, plan: Plan, run: Path, tasks: Sequence[Task], progress: EngineProgress) -> Iterator[ShardReport]:
        by_name = {task.shard.name: task for task in tasks}
        waiting = deque(tasks)
        with self.started(plan, run, tasks) as workers:
            for report in execute(waiting, workers, progress):
                if report.elsewhere:
                    waiting.append(by_name[report.shard])
                else:
                    yield report

    @contextmanager
    def started(self, plan: Plan, run: Path, tasks: Sequence[Task]) -> Iterator[Sequence[ShardWorker | WorkerProcess]]:
        """Provides workers that keep their models while the block runs, at most one for each task."""
        number, engines = self.place.local
        visible = visible_devices(plan.device)
        devices = visible if self.place.own_gpus else visible[number::engines] or [visible[number % len(visible)]]
        available = min(cores(), self.place.cores or max(1, cores() // engines))
        size = min(self.workers or self._fitting(plan, devices, available, tasks), max(1, len(tasks)))
        each = max(1, available // size)
        threads = plan.device.threads or (each if size > 1 or engines > 1 else None)
        plans = [plan.on(device, threads) for device in devices]
        if size == 1 and not (self.command and plan.plugins):
            yield [ShardWorker(plans[0], run, decoders=decoders(each))]
            return
        served = (plan.device.kind != "cpu" and size > len(devices)) if self.served is None else self.served
        from tamis.run.device import DeviceProcess

        with ExitStack() as stack:
            addresses = [stack.enter_context(closing(DeviceProcess(one.device))).address for one in plans if served]
            yield [
                stack.enter_context(
                    closing(WorkerProcess(plans[at], run, decoders(each), addresses[at] if served else None))
                )
                for at in (worker % len(plans) for worker in range(size))
            ]

    def _fitting(self, plan: Plan, devices: Sequence[str], available: int, tasks: Sequence[Task]) -> int:
        on_cpu = plan.device.kind == "cpu"
        computes = any(not node.host for node in plan.nodes)
        if not self.command or (on_cpu and computes):  # torch uses all cores by itself
            return len(devices)
        if on_cpu and not _worth_processes(tasks):
            return 1
        return max(len(devices), feeders(available, self.place.local[1]))


def feeders(available: int, engines: int) -> int:
    """Returns how many reading and decoding workers fit on some cores, shared by `engines` ranks."""
    return max(1, min(available, memory() // engines // _WORKER_BYTES))


def decoders(available: int) -> int:
    """Returns the number of decoding threads of a worker with some cores."""
    return max(1, min(available, _MOST_DECODERS))


def _worth_processes(tasks: Sequence[Task]) -> bool:
    left = _SMALL_POOL
    for task in tasks:
        with suppress(OSError):  # the shard's worker will report it
            left -= _LARGE_SHARD if is_remote(task.shard.url) else os.stat(task.shard.url).st_size
        if left < 0:
            return True
    return False


def execute(
    waiting: deque[Task], workers: Sequence[ShardWorker | WorkerProcess], progress: EngineProgress
) -> Iterator[ShardReport]:
    """Does the tasks of a queue until it is empty; the caller may append more after each report.

    One worker works in this thread, and several in a thread each, where they only wait for their process.
    """
    if len(workers) == 1:
        while waiting:
            task = waiting.popleft()
            yield workers[0].do(task, partial(progress, task.shard.name))
        return
    free = list(workers)
    busy: dict[Future[ShardReport], ShardWorker | WorkerProcess] = {}
    threads = ThreadPoolExecutor(len(workers), "tamis-worker")
    try:
        while waiting or busy:
            while waiting and free:
                task, worker = waiting.popleft(), free.pop()
                busy[threads.submit(worker.do, task, partial(progress, task.shard.name))] = worker
            for done in wait(busy, return_when=FIRST_COMPLETED).done:
                free.append(busy.pop(done))
                yield done.result()
    finally:
        threads.shutdown(wait=False)  # closing the workers ends what the threads wait for


class WorkerProcess:
    """A `ShardWorker` in a process of its own, which starts with the first shard and again if it died."""

    def __init__(self, plan: Plan, run: Path, decoders: int, address: str | None = None) -> None:
        """`address` is that of a `DeviceProcess`; None: the worker runs the networks."""
        self._plan, self._run, self._decoders, self._address = plan.without_shards(), run, decoders, address
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._heard = False  # whether it has ever sent anything
        self._closed, self._starting = False, threading.Lock()

    def do(self, task: Task, progress: Progress) -> ShardReport:
        """Makes the missing parts of a shard; see `ShardWorker.do`. If the process dies, the report says so."""
        start = time.perf_counter()
        if self._process is None or not self._process.is_alive():
            self._start()
        assert self._pipe is not None
        with suppress(OSError):  # it died just now, which `recv` notices
            self._pipe.send(task)
        while True:
            try:
                message = self._pipe.recv()
            except (EOFError, OSError):
                if self._closed:
                    raise
                break
            self._heard = True
            if isinstance(message, BaseException):
                raise message
            if isinstance(message, ShardReport):
                return message
            progress(message)
        report = ShardReport(shard=task.shard.name, seconds=time.perf_counter() - start, error=self._death())
        record(self._run, task, report)
        return report

    def close(self) -> None:
        """Ends the process."""
        with self._starting:
            self._closed = True
            if self._process is not None:
                self._process.kill()
                self._process.join()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")  # fork does not work with torch's threads
        with self._starting:
            if self._closed:
                raise StopError("the worker is closed")
            self._pipe, there = context.Pipe()
            arguments = (there, self._plan, self._run, self._decoders, secrets(), self._address)
            self._process = context.Process(target=_work, args=arguments, daemon=True)
            self._process.start()
        there.close()

    def _death(self) -> str:
        assert self._process is not None
        self._process.join(timeout=5)
        code = self._process.exitcode
        if code == 1 and not self._heard:  # Python's exit after an error while importing the script
            raise StopError(
                "the worker processes ended with an error (shown above) while they started: workers > 1 start new "
                "Python processes that import the script: put the call under `if __name__ == '__main__':`, or use "
                "workers=1"
            )
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        hint = f"something called exit(): look at {' and '.join(self._plan.plugins) or 'the libraries'}"
        if code == -signal.SIGKILL:
            hint = "signal 9 usually means that memory ran out: use fewer --workers"
        return f"the worker process died ({how}) while working on this shard; {hint}"


def as_stop(error: TamisError) -> StopError:
    """Returns an error that ends the run, to be raised in another process."""
    return error if isinstance(error, StopError) else StopError(str(error))


def _work(
    pipe: Connection, plan: Plan, run: Path, decoders: int, hidden: Mapping[str, str], address: str | None
) -> None:
    """Runs in a worker process: does tasks until the parent ends it or dies."""
    from tamis.run.device import RemoteExecutor

    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    remember(hidden)
    logging.getLogger("tamis.pool.source").setLevel(logging.ERROR)  # the parent has already given these warnings

    def send(message: Any) -> None:
        try:
            pipe.send(message)
        except OSError:  # the parent is gone: not an error of the shard
            os._exit(1)

    send(0)  # it has started
    executor = RemoteExecutor(address, plan) if address is not None else None
    worker = ShardWorker(plan, run, decoders=decoders, executor=executor)
    with suppress(EOFError, OSError):  # the parent is gone
        while True:
            task = pipe.recv()
            try:
                send(worker.do(task, send))
            except TamisError as error:
                send(as_stop(error))
