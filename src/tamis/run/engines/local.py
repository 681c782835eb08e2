"""The local engine: worker processes on this machine, one shard at a time each.

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
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tamis.errors import StopError, TamisError
from tamis.orphans import die_with
from tamis.pool.remote import remember, secrets
from tamis.run.engines.engine import EngineProgress
from tamis.run.failures import ShardReport, record
from tamis.run.plan import Plan, Task
from tamis.run.shard import ShardWorker

#: What a worker says first: its process has come up.
_READY = "ready"


@dataclass(frozen=True)
class Local:
    """Engine: worker processes on this machine.

    Attributes:
        workers: how many; 1 works in this process.
    """

    workers: int = 1

    def __call__(self, plan: Plan, run: Path, tasks: Sequence[Task], progress: EngineProgress) -> Iterator[ShardReport]:
        if self.workers > 1 and len(tasks) > 1:
            yield from _Crew(plan, run, min(self.workers, len(tasks)), progress).do(tasks)
            return
        worker = ShardWorker(plan, run)
        waiting = deque(tasks)
        while waiting:
            task = waiting.popleft()
            report = worker.do(task, partial(progress, task.shard.name))
            if report.elsewhere:
                waiting.append(task)
            else:
                yield report


@dataclass
class _Hand:
    """A worker process and what it is busy with."""

    process: multiprocessing.process.BaseProcess
    pipe: multiprocessing.connection.Connection
    task: Task | None = None
    started: float = 0.0


class _Crew:
    def __init__(self, plan: Plan, run: Path, size: int, progress: EngineProgress) -> None:
        threads = plan.device.threads or max(1, (os.cpu_count() or 1) // size)
        # Workers hear of shards one by one: a list of a million need not travel to each of them.
        pool = replace(plan.pool, shards=())
        self.plan = replace(plan, pool=pool, identities=plan.identities.on(replace(plan.device, threads=threads)))
        self.run, self.size, self.progress = run, size, progress
        self.context = multiprocessing.get_context("spawn")  # fork and threads of torch do not mix
        self.heard = False  # whether any worker ever said anything

    def _hire(self) -> _Hand:
        here, there = self.context.Pipe()
        process = self.context.Process(
            target=_work, args=(there, self.plan, self.run, os.getpid(), secrets()), daemon=True
        )
        process.start()
        there.close()
        return _Hand(process, here)

    def do(self, tasks: Sequence[Task]) -> Iterator[ShardReport]:
        waiting = deque(tasks)
        hands = [self._hire() for _ in range(self.size)]
        try:
            for hand in hands:
                self._give(hand, waiting)
            while any(hand.task for hand in hands):
                busy = {hand.pipe: hand for hand in hands if hand.task}
                for pipe in multiprocessing.connection.wait(list(busy)):
                    hand = busy[pipe]  # type: ignore[index]  # we gave it connections only
                    report = self._hear(hand)
                    if report is None:
                        continue
                    if not hand.process.is_alive() and waiting:
                        hands[hands.index(hand)] = hand = self._hire()
                    if report.elsewhere:
                        assert hand.task is not None
                        waiting.append(hand.task)
                    else:
                        yield report
                    self._give(hand, waiting)
        finally:
            for hand in hands:
                hand.pipe.close()
            for hand in hands:
                hand.process.join(timeout=1)
                if hand.process.is_alive():
                    hand.process.terminate()
                    hand.process.join(timeout=5)

    def _give(self, hand: _Hand, waiting: deque[Task]) -> None:
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
    pipe: multiprocessing.connection.Connection, plan: Plan, run: Path, parent: int, hidden: Mapping[str, str]
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
        worker = ShardWorker(plan, run)
        while True:
            task: Task = pipe.recv()
            try:
                report: Any = worker.do(task, tell)
            except StopError as error:
                report = error
            except TamisError as error:
                report = StopError(str(error))
            pipe.send(report)
    except (EOFError, OSError, KeyboardInterrupt):
        pass  # the parent is gone, or wants us to be
