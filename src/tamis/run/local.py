"""The local engine: worker processes on this machine, each doing one shard at a time.

With more workers than GPUs, the workers read, decode and write, and one process per GPU runs the networks for all of
them (`tamis.run.device`). If a worker dies (out of memory, a crash in a native library), its shard is reported as
failed and a new worker takes its place.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tamis.errors import StopError, TamisError
from tamis.models.device import cores, memory, visible_devices
from tamis.pool.files import is_remote
from tamis.processes import die_with
from tamis.remote import remember, secrets
from tamis.run.failures import ShardReport, record
from tamis.run.plan import Plan, Task
from tamis.run.shard import ShardWorker

if TYPE_CHECKING:
    from tamis.run.device import DeviceProcess
    from tamis.run.engines import EngineProgress

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
        with self.started(plan, run, tasks, progress) as workers:
            for report in workers.do(waiting):
                if report.elsewhere:
                    waiting.append(by_name[report.shard])
                else:
                    yield report

    @contextmanager
    def started(
        self, plan: Plan, run: Path, tasks: Sequence[Task], progress: EngineProgress
    ) -> Iterator[InProcess | WorkerProcesses]:
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
            yield InProcess(ShardWorker(plans[0], run, decoders=decoders(each)), progress)
            return
        served = (plan.device.kind != "cpu" and size > len(devices)) if self.served is None else self.served
        from tamis.run.device import DeviceProcess

        with ExitStack() as stack:
            at_devices = [stack.enter_context(closing(DeviceProcess(one.device))) for one in plans if served]
            workers = WorkerProcesses(plans, run, size, decoders(each), progress, at_devices)
            yield stack.enter_context(closing(workers))

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


class InProcess:
    """One worker, in this process."""

    def __init__(self, worker: ShardWorker, progress: EngineProgress) -> None:
        self._worker, self._progress = worker, progress

    def do(self, waiting: deque[Task]) -> Iterator[ShardReport]:
        """Does the tasks of a queue until it is empty; see `WorkerProcesses.do`."""
        while waiting:
            task = waiting.popleft()
            yield self._worker.do(task, partial(self._progress, task.shard.name))


@dataclass
class _Worker:
    """A worker process and its current task."""

    process: multiprocessing.process.BaseProcess
    pipe: multiprocessing.connection.Connection
    task: Task | None = None
    started: float = 0.0


class WorkerProcesses:
    """Worker processes, each doing one shard at a time. They start with the first task."""

    def __init__(
        self,
        plans: Sequence[Plan],
        run: Path,
        size: int,
        decoders: int,
        progress: EngineProgress,
        at_devices: Sequence[DeviceProcess] = (),
    ) -> None:
        """Args:
        plans: one for each device that the workers share.
        run: the run folder.
        size: number of workers.
        decoders: decoding threads of each.
        progress: called with a shard's name and a number of its samples that are done.
        at_devices: processes that run the networks, one for each device; none: each worker runs them.
        """
        self.plans = [plan.without_shards() for plan in plans]
        self.run, self.size, self.decoders, self.progress = run, size, decoders, progress
        self.at_devices = at_devices
        self.workers: list[_Worker] = []
        self.heard = False  # whether any worker has ever sent anything

    def do(self, waiting: deque[Task]) -> Iterator[ShardReport]:
        """Does the tasks of a queue until it is empty. The caller may append more after each report.

        A shard that another process is working on comes back at once, with `ShardReport.elsewhere`.
        """
        if waiting and not self.workers:
            self.workers = [self._start(number) for number in range(self.size)]
        for number in range(len(self.workers)):
            self._assign(number, waiting)
        while busy := {worker.pipe: number for number, worker in enumerate(self.workers) if worker.task}:
            ended = {device.sentinel: device for device in self.at_devices}
            for ready in multiprocessing.connection.wait([*busy, *ended]):
                if isinstance(ready, int):
                    ended[ready].restart()
                elif (report := self._receive(self.workers[busy[ready]])) is not None:  # type: ignore[index]
                    yield report
                    self._assign(busy[ready], waiting)  # type: ignore[index]

    def close(self) -> None:
        """Ends the processes."""
        for worker in self.workers:
            worker.pipe.close()
        for worker in self.workers:
            worker.process.join(timeout=1)
            worker.process.kill()
            worker.process.join()

    def _start(self, number: int) -> _Worker:
        # Not fork, which does not work with torch's threads.
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        place = number % len(self.plans)
        address = self.at_devices[place].address if self.at_devices else None
        arguments = (there, self.plans[place], self.run, os.getpid(), self.decoders, secrets(), address)
        process = context.Process(target=_work, args=arguments, daemon=True)
        process.start()
        there.close()
        return _Worker(process, here)

    def _assign(self, number: int, waiting: deque[Task]) -> None:
        if not waiting:
            return
        if not self.workers[number].process.is_alive():
            self.workers[number].pipe.close()
            self.workers[number] = self._start(number)
        worker = self.workers[number]
        worker.task, worker.started = waiting.popleft(), time.perf_counter()
        with suppress(OSError):  # it died just now, which `_receive` will notice
            worker.pipe.send(worker.task)

    def _receive(self, worker: _Worker) -> ShardReport | None:
        """Takes one message; returns a report if the shard is finished."""
        assert worker.task is not None
        task = worker.task
        try:
            message: Any = worker.pipe.recv()
            self.heard = True
        except (EOFError, OSError):
            message = self._death(worker, task)
        if isinstance(message, BaseException):
            raise message
        if isinstance(message, ShardReport):
            worker.task = None
            return message
        self.progress(task.shard.name, message)
        return None

    def _death(self, worker: _Worker, task: Task) -> ShardReport:
        worker.process.join(timeout=5)
        code = worker.process.exitcode
        if code == 1 and not self.heard:  # Python's exit after an error while importing the script
            raise StopError(
                "the worker processes ended with an error (shown above) while they started: workers > 1 start new "
                "Python processes that import the script: put the call under `if __name__ == '__main__':`, or use "
                "workers=1"
            )
        how, hint = f"exit code {code}", ""
        if code is not None and code < 0:
            how = f"killed by signal {-code}"
            hint = "; signal 9 usually means that memory ran out: use fewer --workers" if code == -9 else ""
        elif code is not None:
            hint = f"; something called exit(): look at {' and '.join(self.plans[0].plugins) or 'the libraries'}"
        report = ShardReport(
            shard=task.shard.name,
            error=f"the worker process died ({how}) while working on this shard{hint}",
            seconds=time.perf_counter() - worker.started,
        )
        record(self.run, task, report)
        return report


def _outcome(worker: ShardWorker, task: Task, progress: Callable[[int], None]) -> ShardReport | StopError:
    try:
        return worker.do(task, progress)
    except TamisError as error:
        return as_stop(error)


def as_stop(error: TamisError) -> StopError:
    """Returns an error that ends the run, to be raised in another process."""
    return error if isinstance(error, StopError) else StopError(str(error))


def _work(
    pipe: multiprocessing.connection.Connection,
    plan: Plan,
    run: Path,
    parent: int,
    decoders: int,
    hidden: Mapping[str, str],
    address: str | None,
) -> None:
    """Runs in a worker process: does tasks until the pipe closes or the parent dies."""
    from tamis.run.device import RemoteExecutor

    die_with(parent)
    remember(hidden)
    logging.getLogger("tamis.pool.source").setLevel(logging.ERROR)  # the parent has already given these warnings

    def progress(count: int) -> None:
        try:
            pipe.send(count)
        except OSError:  # the parent is gone: not an error of the shard
            os._exit(1)

    try:
        pipe.send(0)  # it has started
        executor = RemoteExecutor(address, plan) if address is not None else None
        worker = ShardWorker(plan, run, decoders=decoders, executor=executor)
        while True:
            pipe.send(_outcome(worker, pipe.recv(), progress))
    except (EOFError, OSError, KeyboardInterrupt):
        pass  # the parent is gone or wants this process to end
