"""The local engine: worker processes on this machine, one shard at a time each.

Where there are more workers than GPUs they read, decode and write, and a process at each GPU runs the networks for them
(`tamis.run.device_process`). Processes hand over paths and counts only. One that dies (out of memory, a crash in a
native library) costs its shard, which is reported; a new process takes its place.
"""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.connection
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from tamis.errors import StopError
from tamis.graph import topological
from tamis.models.device import cores, memory, visible_devices
from tamis.pool.files import is_remote, size_of
from tamis.processes import die_with
from tamis.remote import remember, secrets
from tamis.run.engines.engine import EngineProgress, answer, placed
from tamis.run.failures import ShardReport, record
from tamis.run.plan import Plan, Task
from tamis.run.shard import ShardWorker

if TYPE_CHECKING:
    from tamis.run.device_process import DeviceProcess

#: How processes begin: fork and threads of torch do not mix.
_START: Literal["spawn"] = "spawn"

#: What a worker says first: its process has come up.
_READY = "ready"

#: What a worker that reads and decodes may take at its height: see `tamis.run.reading`.
_WORKER_BYTES = 1 << 30

#: What is read and decoded in a few seconds: for less no processes are started by themselves.
_SMALL_POOL = 200 << 20
_LARGE_SHARD = 50 << 20  # one on a store, which is not asked for its size

#: Threads of one process that decode: what they do beside Pillow needs the interpreter, one thread at a time.
_MOST_DECODERS = 4


@dataclass(frozen=True)
class Local:
    """Engine: worker processes on this machine.

    Attributes:
        workers: how many; 1 works in this process. None: one per GPU, or one where there is none.
        neighbours: which of so many engines on this machine this one is, counted from 0: they share its GPUs and cores.
        fills: with `workers` None, takes one per core, as far as memory allows, where more of them make a run faster:
            where they feed GPUs, and where there is nothing to do but to read and decode.
        served: a process for each device runs the networks for all workers; False: each worker has the models by
            itself. None: for GPUs, where there are more workers.
        cores, own_gpus: as of `tamis.run.engines.static.Place`.
    """

    away: ClassVar[bool] = False
    suffix: ClassVar[str] = ""
    workers: int | None = None
    neighbours: tuple[int, int] = (0, 1)
    fills: bool = False
    served: bool | None = None
    cores: int | None = None
    own_gpus: bool = False

    def __call__(self, plan: Plan, run: Path, tasks: Sequence[Task], progress: EngineProgress) -> Iterator[ShardReport]:
        with self.at_work(plan, run, progress, tasks) as workers:
            yield from workers.do(tasks)

    @contextmanager
    def at_work(self, plan: Plan, run: Path, progress: EngineProgress, tasks: Sequence[Task]) -> Iterator[Workers]:
        """Gives workers that stay, with their models, while the block runs.

        Args:
            plan: what the run shall hold.
            run: its folder.
            progress: called with a shard's name and a number of its samples that are done.
            tasks: what there is to do; a worker for each of them is the most that could help.
        """
        number, engines = self.neighbours
        seen = visible_devices(plan.device)
        devices = seen if self.own_gpus else seen[number::engines] or [seen[number % len(seen)]]
        here = cores()
        mine = here if self.cores is not None and here <= self.cores else max(1, here // engines)
        size = min(self.workers or self._fitting(plan, devices, mine, tasks), max(1, len(tasks)))
        served = self.served
        if served is None:
            served = plan.device.kind != "cpu" and size > len(devices)
        if size > 1:
            with ExitStack() as stack:
                at = [at_device(placed(plan, device, plan.device.threads), stack) for device in devices if served]
                yield stack.enter_context(closing(Crew(plan, run, devices, size, mine, progress, at)))
            return
        threads = plan.device.threads or (mine if engines > 1 else None)
        yield _Alone(ShardWorker(placed(plan, devices[0], threads), run, decoders=_decoders(mine)), progress)

    def _fitting(self, plan: Plan, devices: Sequence[str], cores: int, tasks: Sequence[Task]) -> int:
        """Returns how many workers make the most of this machine."""
        on_cpu = plan.device.kind == "cpu"
        nodes = topological([output.node for output in plan.outputs if output.node is not None])
        computes = any(not node.host for node in nodes)
        if not self.fills or (on_cpu and computes):  # torch uses all cores by itself
            return len(devices)
        if on_cpu and not _worth_processes(tasks):
            return 1
        return max(len(devices), feeders(cores, self.neighbours[1]))


def feeders(cores: int, neighbours: int) -> int:
    """Returns how many workers that read and decode fit on some cores, on a machine with so many engines."""
    return max(1, min(cores, memory() // neighbours // _WORKER_BYTES))


def _worth_processes(tasks: Sequence[Task]) -> bool:
    """Tells whether shards hold so much that starting processes, about a second of a core each, pays."""
    left = _SMALL_POOL
    for task in tasks:
        left -= _LARGE_SHARD if is_remote(task.shard.url) else size_of(task.shard.url)
        if left < 0:
            return True
    return False


def at_device(plan: Plan, stack: ExitStack) -> DeviceProcess:
    """Starts the process that has a plan's device; the stack ends it."""
    from tamis.run.device_process import DeviceProcess

    process = DeviceProcess(multiprocessing.get_context(_START), plan.device, secrets())
    stack.callback(process.close)
    return process


class Workers(Protocol):
    """Those who do shards."""

    def do(self, tasks: Sequence[Task], *, patient: bool = True) -> Iterator[ShardReport]:
        """Does tasks, in any order.

        Args:
            tasks: the shards and what they lack.
            patient: waits for those that another process is at; else they come back with `ShardReport.elsewhere`.
        """
        ...


@dataclass
class _Alone:
    """One worker, in this process."""

    worker: ShardWorker
    progress: EngineProgress

    def do(self, tasks: Sequence[Task], *, patient: bool = True) -> Iterator[ShardReport]:
        waiting = deque(tasks)
        while waiting:
            task = waiting.popleft()
            report = self.worker.do(task, partial(self.progress, task.shard.name))
            if report.elsewhere and patient:
                waiting.append(task)
            else:
                yield report


def _decoders(cores_of_worker: int) -> int:
    """Returns how many threads decode for a worker: as many as help, for the interpreter's lock holds more of them up.

    With one, the thread that reads decodes: handing over to another costs a tenth of what decoding takes.
    """
    return max(1, min(cores_of_worker, _MOST_DECODERS))


@dataclass
class _Hand:
    """A worker process and what it is busy with."""

    process: multiprocessing.process.BaseProcess
    pipe: multiprocessing.connection.Connection
    place: int  # which of the crew it is: it decides the device
    task: Task | None = None
    started: float = 0.0


class Crew:
    """Worker processes, each at a shard of its own."""

    def __init__(
        self,
        plan: Plan,
        run: Path,
        devices: Sequence[str],
        size: int,
        cores: int,
        progress: EngineProgress,
        at_devices: Sequence[DeviceProcess] = (),
    ) -> None:
        """Args:
        plan, run: as of an engine.
        devices: that the workers share.
        size: how many workers.
        cores: of this machine that are theirs.
        progress: called with a shard's name and a number of its samples that are done.
        at_devices: the processes that run the networks for them, one for each device; none: each worker does.
        """
        each = max(1, cores // size)
        # Workers hear of shards one by one: a list of a million need not travel to each of them.
        bare = replace(plan, pool=replace(plan.pool, shards=()))
        self.plans = [placed(bare, device, plan.device.threads or each) for device in devices]
        self.decoders = _decoders(each)
        self.run, self.size, self.progress = run, size, progress
        self.hands: list[_Hand] = []
        self.at_devices = at_devices
        self.context = multiprocessing.get_context(_START)
        self.heard = False  # whether any worker ever said anything
        self.unsaid: set[str] = set()  # shards that were made when their worker died, and are looked at again

    def _hire(self, place: int) -> _Hand:
        here, there = self.context.Pipe()
        plan = self.plans[place % len(self.plans)]
        address = self.at_devices[place % len(self.plans)].address if self.at_devices else None
        arguments = (there, plan, self.run, os.getpid(), self.decoders, secrets(), address)
        process = self.context.Process(target=_work, args=arguments, daemon=True)
        process.start()
        there.close()
        return _Hand(process, here, place)

    def do(self, tasks: Sequence[Task], *, patient: bool = True) -> Iterator[ShardReport]:

        waiting = deque(tasks)
        if not self.hands:
            self.hands = [self._hire(place) for place in range(self.size)]
        for hand in self.hands:
            self._give(hand, waiting)
        while any(hand.task for hand in self.hands):
            busy: dict[Any, _Hand] = {hand.pipe: hand for hand in self.hands if hand.task}
            ended: dict[Any, DeviceProcess] = {one.sentinel: one for one in self.at_devices}
            for ready in multiprocessing.connection.wait([*busy, *ended]):
                if ready in ended:
                    ended[ready].renew()
                    continue
                hand = busy[ready]
                report = self._hear(hand)
                if report is None:
                    continue
                task, hand.task = hand.task, None
                if report.elsewhere and patient:
                    assert task is not None
                    waiting.append(task)
                else:
                    yield report
                self._give(hand, waiting)

    def close(self) -> None:
        """Ends the processes."""
        for hand in self.hands:
            hand.pipe.close()
        for hand in self.hands:
            hand.process.join(timeout=1)
            if hand.process.is_alive():
                hand.process.terminate()
                hand.process.join(timeout=5)

    def _give(self, hand: _Hand, waiting: deque[Task]) -> None:
        if waiting and not hand.process.is_alive():
            hand.pipe.close()
            self.hands[hand.place] = hand = self._hire(hand.place)
        hand.task = waiting.popleft() if waiting else None
        if hand.task is not None:
            hand.started = time.perf_counter()
            with suppress(OSError):  # it died before it was given the task: heard of in `_hear`
                hand.pipe.send(hand.task)

    def _hear(self, hand: _Hand) -> ShardReport | None:
        """Takes one message; returns a report when a shard is through."""
        assert hand.task is not None
        try:
            message: Any = hand.pipe.recv()
        except (EOFError, OSError):
            hand.process.join(timeout=5)
            return self._died(hand)
        self.heard = True
        if message == _READY:
            return None
        if isinstance(message, int):
            self.progress(hand.task.shard.name, message)
            return None
        if isinstance(message, BaseException):
            raise message
        assert isinstance(message, ShardReport)
        return message

    def _died(self, hand: _Hand) -> ShardReport:
        assert hand.task is not None
        code = hand.process.exitcode
        if code == 1 and not self.heard:
            # Python's own exit after an error: the workers came no further than importing the script.
            raise StopError(
                "the worker processes ended with an error (shown above) while they started: workers > 1 start new "
                "Python processes that import the script: put the call under `if __name__ == '__main__':`, or use "
                "workers=1"
            )
        killed = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        hint = "; signal 9 is usually the system running out of memory: use fewer --workers" if code == -9 else ""
        if code is not None and code >= 0:
            nodes = {output.node for output in hand.task.outputs if output.node is not None}
            theirs = sorted(node.name for node in nodes if not type(node).__module__.startswith("tamis."))
            hint = f"; code in it ended the process: look at {' and '.join(theirs) or 'the libraries in use'}"
        shard = hand.task.shard
        made = all(output.path(self.run, shard.name).is_file() for output in hand.task.outputs)
        if made and shard.name not in self.unsaid:
            # It had done all and said nothing yet: another worker finds that out, and no error stays behind. Who dies
            # of what lies beside the parts dies again.
            self.unsaid.add(shard.name)
            return ShardReport(shard=shard.name, elsewhere=True)
        report = ShardReport(
            shard=shard.name,
            error=f"the worker process died ({killed}) while at this shard{hint}",
            seconds=time.perf_counter() - hand.started,
        )
        record(self.run, hand.task, report)
        return report


def _work(
    pipe: multiprocessing.connection.Connection,
    plan: Plan,
    run: Path,
    parent: int,
    decoders: int,
    hidden: Mapping[str, str],
    address: str | None,
) -> None:
    """A worker process: takes tasks until the pipe closes, or its parent dies.

    Args:
        address: of the process at its device; None: it has the models by itself.
    """
    from tamis.run.device_process import AtDevice

    die_with(parent)
    remember(hidden)
    logging.getLogger("tamis.pool.source").setLevel(logging.ERROR)  # the parent, which looks first, has warned of lists

    def tell(count: int) -> None:
        try:
            pipe.send(count)
        except OSError:  # the parent is gone: this is no fault of the shard, and nobody waits for it
            os._exit(1)

    try:
        pipe.send(_READY)
        executor = AtDevice(address, plan) if address is not None else None
        worker = ShardWorker(plan, run, decoders=decoders, executor=executor)
        while True:
            task: Task = pipe.recv()
            pipe.send(answer(worker, task, tell))
    except (EOFError, OSError, KeyboardInterrupt):
        pass  # the parent is gone, or wants us to be
