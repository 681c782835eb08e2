"""The local engine: worker processes on this machine, each doing one shard at a time.

With more workers than GPUs, the workers read, decode and write, and one process per GPU runs the networks for all of
them (device_process.py). If a worker dies (out of memory, a crash in a native library), its shard is reported as
failed and a new worker takes its place.

A scheduler may start several ranks on one run folder. They send each other nothing: each does its own share of the
shards first, then helps with what is left. Claims (runs/claims.py) keep two ranks from doing one shard, and free the
shards of dead ranks.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar

import xxhash

from tamis.core.errors import StopError, TamisError
from tamis.core.files.find import is_remote
from tamis.core.files.remote import known_secrets, take_secrets
from tamis.core.files.storage import can_put_if_absent
from tamis.core.machine import cores, memory
from tamis.core.processes import die_with_parent
from tamis.engines.device_process import DeviceProcess, RemoteExecutor
from tamis.engines.engine import EngineProgress
from tamis.engines.plan import Plan, Task
from tamis.engines.progress import ShardReport, error_of, failure_tags, record
from tamis.engines.shard import Progress, ShardWorker
from tamis.models.device import visible_devices
from tamis.runs.claims import CLAIMS, claimed_shards

#: The most memory that a worker which reads and decodes takes: see `tamis.engines.shard`.
_WORKER_BYTES = 1 << 30

#: Starting processes takes about a second of a core each, so it pays only for pools of more bytes.
_SMALL_POOL = 200 << 20
_LARGE_SHARD = 50 << 20  # assumed for a shard of a folder, or on a store, where asking for its size takes a request

#: More decoding threads do not help: part of their work needs the interpreter's lock.
_MOST_DECODERS = 4

#: Seconds between folder listings once only other processes have work; grows by half each time.
_LOOK_SECONDS = 0.5
_LONGEST_LOOK_SECONDS = 60.0

#: A rank that helps others tries at least so many of their shards per round, and looks at so many claims to find them.
_HELPS_WITH, _LOOKS_AT = 16, 256

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rank:
    """One of the processes that share a run."""

    number: int = 0
    world: int = 1
    local: tuple[int, int] = (0, 1)  # number and world among the ranks of this machine, which share its GPUs and cores
    cores: int | None = None  # for each rank; None: an equal share of the machine's
    own_gpus: bool = False  # a rank sees its own GPUs only

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.world:
            raise StopError(f"rank {self.number} of {self.world} is not possible: ranks are 0 to {self.world - 1}")


def rank_of(environment: Mapping[str, str] = os.environ, *, rank: int | None = None, world: int | None = None) -> Rank:
    """Returns which rank this process is: from the options, else from torchrun's or Slurm's variables.

    In a Slurm array: rank = array task x processes per task + process.

    Raises:
        StopError: nothing gives the rank, or the numbers make no sense.
    """
    if rank is not None and world is not None:
        return Rank(rank, world)
    if rank is not None or world is not None:
        raise StopError("--rank and --world belong together: --rank 0 --world 8 is the first of eight ranks")

    def number(name: str, default: int | None = None) -> int:
        # SLURM_TASKS_PER_NODE looks like "4(x2),3": the first machine stands for all.
        value = re.match(r"\d+(?![^(,])", environment.get(name, ""))
        if value is None and default is None:
            raise StopError(f"the variable {name} must be a whole number, it is {environment.get(name)!r}")
        return int(value[0]) if value else int(default or 0)

    ours = None
    if {"RANK", "WORLD_SIZE"} <= environment.keys():
        ours = Rank(number("RANK"), number("WORLD_SIZE"), (number("LOCAL_RANK", 0), number("LOCAL_WORLD_SIZE", 1)))
    elif {"SLURM_PROCID", "SLURM_NTASKS"} <= environment.keys():
        local = number("SLURM_LOCALID", 0)
        tasks = number("SLURM_STEP_TASKS_PER_NODE", 0) or number("SLURM_TASKS_PER_NODE", 1)
        ours = Rank(
            number("SLURM_PROCID"),
            number("SLURM_NTASKS"),
            (local, max(tasks, local + 1)),
            cores=number("SLURM_CPUS_PER_TASK", 0) or None,
            own_gpus="SLURM_GPUS_PER_TASK" in environment,
        )
    if "SLURM_ARRAY_TASK_ID" in environment:
        ours = ours or Rank()
        step = max(1, number("SLURM_ARRAY_TASK_STEP"))
        task = (number("SLURM_ARRAY_TASK_ID") - number("SLURM_ARRAY_TASK_MIN")) // step
        rank, world = task * ours.world + ours.number, number("SLURM_ARRAY_TASK_COUNT") * ours.world
        return replace(ours, number=rank, world=world)
    if ours is None:
        raise StopError("which rank is this process? Start it with srun or torchrun, or use --rank 0 --world 8")
    return ours


@dataclass(frozen=True)
class Local:
    """Engine: worker processes on this machine, for one command or for one rank of several."""

    remote: ClassVar[bool] = False
    workers: int | None = None  # 1 works in this process. None: one per GPU, or 1
    rank: Rank | None = None  # which rank this is; None: there are no others
    # Started by the command line. Then `workers` None means one per core (memory permitting) when feeding GPUs or only
    # reading, and plug-ins always run in a child process, so that their exit does not end the command.
    command: bool = False
    # True: one process per device runs the networks for all workers. None: if there are more workers than GPUs.
    one_process_per_device: bool | None = None

    @property
    def suffix(self) -> str:
        return "" if self.rank is None else f"-rank{self.rank.number}"

    def cluster_reader(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __call__(self, plan: Plan, run: Path, tasks: Sequence[Task], progress: EngineProgress) -> Iterator[ShardReport]:
        rank = self.rank or Rank()
        own = {shard.name for shard in plan.pool.shards[rank.number :: rank.world]}
        failed_before = failure_tags(run)
        pending = {task.shard.name for task in tasks}
        batch = [task for task in tasks if task.shard.name in own]
        wait = _LOOK_SECONDS
        with self._start_workers(plan, run, tasks) as workers:
            while True:
                for report in workers.execute(batch, progress):
                    if not report.elsewhere:
                        pending.discard(report.shard)
                        yield report
                if not pending:
                    return
                if not can_put_if_absent(run / CLAIMS):
                    log.warning("%s: no conditional writes: each rank does its own share, run no other command", run)
                    return
                missing = {task.shard.name: task for task in plan.tasks(run) if task.shard.name in pending}
                # Only ranks share a plan, so only their errors count here.
                now = failure_tags(run) if self.rank is not None else {}
                failed = {name for name, tag in now.items() if tag != failed_before.get(name)}
                for name in sorted(pending & failed | pending - missing.keys()):  # finished by others
                    pending.discard(name)
                    missing.pop(name, None)
                    yield ShardReport(shard=name, elsewhere=True, error=error_of(run, name) if name in failed else None)
                # Each rank helps in its own order, so that ranks seldom want the same shard.
                order = sorted(missing, key=lambda name: xxhash.xxh64_digest(f"{rank.number}/{name}".encode()))
                some = order[:_LOOKS_AT]
                busy = claimed_shards(run, some)
                batch = [missing[name] for name in some if name not in busy][: max(_HELPS_WITH, workers.number)]
                if batch:
                    wait = _LOOK_SECONDS
                elif pending:
                    time.sleep(wait)
                    wait = min(wait * 1.5, _LONGEST_LOOK_SECONDS)

    def speed(self, plan: Plan, tasks: Sequence[Task]) -> float:
        rank, (devices, available, size) = self.rank or Rank(), self._sizes(plan, tasks)
        if plan.device.kind == "cpu" and not all(node.host for node in plan.nodes):
            return rank.world / rank.local[1]  # one worker's networks take all cores of a machine
        return min(size, available if plan.device.kind == "cpu" else len(devices)) * rank.world

    def _sizes(self, plan: Plan, tasks: Sequence[Task]) -> tuple[list[str], int, int]:
        """Returns the devices, the cores and the number of workers."""
        rank = self.rank or Rank()
        number, engines = rank.local
        visible = visible_devices(plan.device)
        devices = visible if rank.own_gpus else visible[number::engines] or [visible[number % len(visible)]]
        available = min(cores(), rank.cores or max(1, cores() // engines))
        size = min(self.workers or self._count_workers(plan, devices, available, tasks), max(1, len(tasks)))
        return devices, available, size

    @contextmanager
    def _start_workers(self, plan: Plan, run: Path, tasks: Sequence[Task]) -> Iterator[Workers]:
        """Provides workers that keep their models while the block runs, at most one for each task."""
        engines, (devices, available, size) = (self.rank or Rank()).local[1], self._sizes(plan, tasks)
        each = max(1, available // size)
        threads = plan.device.threads or (each if size > 1 or engines > 1 else None)
        plans = [plan.on(device, threads) for device in devices]
        if size == 1 and not (self.command and plan.plugins):
            yield Workers([ShardWorker(plans[0], run, decoders=decoders(each))])
            return
        shared = self.one_process_per_device
        shared = (plan.device.kind != "cpu" and size > len(devices)) if shared is None else shared
        with worker_processes(plans, run, size, decoders(each), shared=shared) as workers:
            yield workers

    def _count_workers(self, plan: Plan, devices: Sequence[str], available: int, tasks: Sequence[Task]) -> int:
        on_cpu = plan.device.kind == "cpu"
        computes = any(not node.host for node in plan.nodes)
        if not self.command or (on_cpu and computes):  # torch uses all cores by itself
            return len(devices)
        if on_cpu and not _worth_processes(tasks):
            return 1
        return max(len(devices), feeders(available, (self.rank or Rank()).local[1]))


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
            large = is_remote(task.shard.url) or os.path.isdir(task.shard.url)
            left -= _LARGE_SHARD if large else os.stat(task.shard.url).st_size
        if left < 0:
            return True
    return False


class Workers:
    """The workers of one engine or actor; each does one shard at a time."""

    def __init__(self, workers: Sequence[ShardWorker | WorkerProcess]) -> None:
        self._free: SimpleQueue[ShardWorker | WorkerProcess] = SimpleQueue()
        for worker in workers:
            self._free.put(worker)
        self.number = len(workers)

    def do(self, task: Task, progress: Progress) -> ShardReport:
        """Has a free worker make the missing parts of a shard; see `ShardWorker.do`."""
        worker = self._free.get()
        try:
            return worker.do(task, progress)
        finally:
            self._free.put(worker)

    def execute(self, tasks: Iterable[Task], progress: EngineProgress) -> Iterator[ShardReport]:
        """Does tasks, taken as workers are free. One worker runs in this thread, several in one each, waiting."""
        if self.number == 1:
            for task in tasks:
                yield self.do(task, partial(progress, task.shard.name))
            return
        threads = ThreadPoolExecutor(self.number, "tamis-worker")
        jobs = (threads.submit(self.do, task, partial(progress, task.shard.name)) for task in tasks)
        busy = set(islice(jobs, self.number))
        try:
            while busy:
                done, busy = futures.wait(busy, return_when=futures.FIRST_COMPLETED)
                yield from (job.result() for job in done)
                busy |= set(islice(jobs, len(done)))
        finally:
            threads.shutdown(wait=False)  # the threads end when the workers are closed


@contextmanager
def worker_processes(plans: Sequence[Plan], run: Path, size: int, decoders: int, *, shared: bool) -> Iterator[Workers]:
    """Provides workers for the devices of some plans; if `shared`, one more process per device runs their networks."""
    with ExitStack() as stack:
        addresses = [stack.enter_context(closing(DeviceProcess(plan.device))).address for plan in plans if shared]
        workers = []
        for number in range(size):
            at = number % len(plans)
            worker = WorkerProcess(plans[at], run, decoders, addresses[at] if shared else None)
            workers.append(stack.enter_context(closing(worker)))
        yield Workers(workers)


class WorkerProcess:
    """A `ShardWorker` in its own process, which starts with the first shard and restarts if it died."""

    def __init__(self, plan: Plan, run: Path, decoders: int, address: str | None = None) -> None:
        """`address`: the socket of a `DeviceProcess`; None: the worker runs the networks itself."""
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
        with suppress(OSError):  # it has just died; `recv` reports it
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
        report = ShardReport(shard=task.shard.name, seconds=time.perf_counter() - start, error=self._describe_death())
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
            arguments = (there, self._plan, self._run, self._decoders, known_secrets(), self._address)
            self._process = context.Process(target=_work, args=arguments, daemon=True)
            self._process.start()
        there.close()

    def _describe_death(self) -> str:
        assert self._process is not None
        self._process.join(timeout=5)
        code = self._process.exitcode
        if code == 1 and not self._heard:  # Python's exit after an error while importing the script
            raise StopError("the workers did not start (see above): a script needs `if __name__ == '__main__':`")
        how = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        hint = f"something called exit(): look at {' and '.join(self._plan.plugins) or 'the libraries'}"
        if code == -signal.SIGKILL:
            hint = "signal 9 usually means that memory ran out: use fewer --workers"
        return f"the worker process died ({how}) while working on this shard; {hint}"


def _work(
    pipe: Connection, plan: Plan, run: Path, decoders: int, hidden: Mapping[str, str], address: str | None
) -> None:
    """Runs in a worker process: does tasks until the parent ends it or dies."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends this process
    take_secrets(hidden)
    logging.getLogger("tamis.pools.source").setLevel(logging.ERROR)  # the parent has already logged these warnings

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
                send(error)
