"""The local engine: worker processes on this machine, one shard at a time each, one per GPU where there are GPUs.

Processes hand over paths and counts only. One that dies (out of memory, a crash in a native library) costs its shard,
which is reported; a new process takes its place.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tamis.errors import StopError
from tamis.models.device import cores, visible_devices
from tamis.orphans import die_with
from tamis.pool.remote import remember, secrets
from tamis.run.engines.engine import EngineProgress, answer, placed
from tamis.run.failures import ShardReport, record
from tamis.run.plan import Plan, Task
from tamis.run.shard import ShardWorker

#: What a worker says first: its process has come up.
_READY = "ready"


@dataclass(frozen=True)
class Local:
    """Engine: worker processes on this machine.

    Attributes:
        workers: how many; 1 works in this process. None: one per GPU, or one where there is none.
        neighbours: which of so many engines on this machine this one is, counted from 0: they share its GPUs and cores.
    """

    away: ClassVar[bool] = False
    suffix: ClassVar[str] = ""
    workers: int | None = None
    neighbours: tuple[int, int] = (0, 1)

    def __call__(self, plan: Plan, run: Path, tasks: Sequence[Task], progress: EngineProgress) -> Iterator[ShardReport]:
        with self.at_work(plan, run, progress, most=len(tasks)) as workers:
            yield from workers.do(tasks)

    @contextmanager
    def at_work(self, plan: Plan, run: Path, progress: EngineProgress, *, most: int) -> Iterator[Workers]:
        """Gives workers that stay, with their models, while the block runs.

        Args:
            plan: what the run shall hold.
            run: its folder.
            progress: called with a shard's name and a number of its samples that are done.
            most: how many workers could have something to do at a time.
        """
        number, engines = self.neighbours
        seen = visible_devices(plan.device)
        devices = seen[number::engines] or [seen[number % len(seen)]]
        size = min(self.workers or len(devices), max(1, most))
        mine = max(1, cores() // engines)
        if size > 1:
            with closing(_Crew(plan, run, devices, size, mine, progress)) as crew:
                yield crew
            return
        threads = plan.device.threads or (mine if engines > 1 else None)
        yield _Alone(ShardWorker(placed(plan, devices[0], threads), run, decoders=_decoders(mine)), progress)


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
    """Returns how many threads decode for a worker: one at least beside the one that reads."""
    return max(2, min(cores_of_worker, 32))


@dataclass
class _Hand:
    """A worker process and what it is busy with."""

    process: multiprocessing.process.BaseProcess
    pipe: multiprocessing.connection.Connection
    place: int  # which of the crew it is: it decides the device
    task: Task | None = None
    started: float = 0.0


class _Crew:
    def __init__(
        self, plan: Plan, run: Path, devices: Sequence[str], size: int, cores: int, progress: EngineProgress
    ) -> None:
        each = max(1, cores // size)
        # Workers hear of shards one by one: a list of a million need not travel to each of them.
        bare = replace(plan, pool=replace(plan.pool, shards=()))
        self.plans = [placed(bare, device, plan.device.threads or each) for device in devices]
        self.decoders = _decoders(each)
        self.run, self.size, self.progress = run, size, progress
        self.hands: list[_Hand] = []
        self.context = multiprocessing.get_context("spawn")  # fork and threads of torch do not mix
        self.heard = False  # whether any worker ever said anything

    def _hire(self, place: int) -> _Hand:
        here, there = self.context.Pipe()
        plan = self.plans[place % len(self.plans)]
        arguments = (there, plan, self.run, os.getpid(), self.decoders, secrets())
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
            busy = {hand.pipe: hand for hand in self.hands if hand.task}
            for pipe in multiprocessing.connection.wait(list(busy)):
                hand = busy[pipe]  # type: ignore[index]  # we gave it connections only
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
        shard = hand.task.shard
        report = ShardReport(
            shard=shard.name,
            error=f"the worker process died ({killed}) while at this shard{hint}",
            seconds=time.perf_counter() - hand.started,
        )
        record(self.run, shard, report)
        return report


def _work(
    pipe: multiprocessing.connection.Connection,
    plan: Plan,
    run: Path,
    parent: int,
    decoders: int,
    hidden: Mapping[str, str],
) -> None:
    """A worker process: takes tasks until the pipe closes, or its parent dies."""
    die_with(parent)
    remember(hidden)

    def tell(count: int) -> None:
        try:
            pipe.send(count)
        except OSError:  # the parent is gone: this is no fault of the shard, and nobody waits for it
            os._exit(1)

    try:
        pipe.send(_READY)
        worker = ShardWorker(plan, run, decoders=decoders)
        while True:
            task: Task = pipe.recv()
            pipe.send(answer(worker, task, tell))
    except (EOFError, OSError, KeyboardInterrupt):
        pass  # the parent is gone, or wants us to be
