"""The Ray engine: plain actors of Ray Core, one per device, anywhere in a cluster.

What travels is the plan, once; then names of shards one way and counts the other. Actors read the pool and write
parts themselves, and nothing is gathered here. Ray restarts an actor that dies, on another node if need be; it repeats
no work by itself: we do, and a shard at which several actors have died is set aside and named. Not Ray Data: its
checkpoints are sets of ids that are loaded whole, and its pools of GPU actors can stay at one on a cluster that grows
(ray-project/ray#59144).
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from tamis.errors import DependencyError, StopError, needs_extra
from tamis.models.device import cores, gpus_of_machine
from tamis.pool import Shard
from tamis.pool.remote import remember, secrets
from tamis.run.engines.engine import EngineProgress, answer, placed
from tamis.run.failures import ShardReport, record
from tamis.run.plan import Plan, Task
from tamis.run.shard import ShardWorker

log = logging.getLogger(__name__)

#: Shards that an actor has been given: the one that it is at, and one that waits, so that it never does.
_IN_FLIGHT = 2
#: How often actors are asked how far they are, and the cluster how large it is.
_LOOK_SECONDS = 1.0
_GROW_SECONDS = 10.0
#: After so long without any actor that works, and again after so long, people are told.
_SILENCE_SECONDS = 60.0
#: For questions that are answered while a shard is being done.
_ASIDE = "aside"


@dataclass(frozen=True)
class Ray:
    """Engine: actors of Ray.

    Attributes:
        address: of a running cluster ("auto", "ray://host:10001"); None starts Ray on this machine for this run.
        workers: how many actors; None: one per GPU of the cluster, or per `threads` cores where there is none, also of
            nodes that join later.
        deaths: a shard at which so many actors have died is set aside.
    """

    suffix: ClassVar[str] = ""
    address: str | None = None
    workers: int | None = None
    deaths: int = 2

    @property
    def away(self) -> bool:
        return self.address is not None

    def __call__(self, plan: Plan, run: Path, tasks: Sequence[Task], progress: EngineProgress) -> Iterator[ShardReport]:
        ray = _ray()
        if not tasks:
            return
        # Actors hear of shards one by one: a list of a million need not travel to each of them.
        bare = replace(plan, pool=replace(plan.pool, shards=()))
        with _connected(ray, self.address, plan, self.workers):
            fleet = _Fleet(ray, bare, run.absolute(), self, progress, deque(tasks))
            try:
                yield from fleet.work()
            finally:
                fleet.dismiss()


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise (
            needs_extra("ray", "ray")
            if error.name == "ray"
            else DependencyError(f"ray cannot be imported ({error}); run: pip install 'tamis[ray]'")
        ) from error


@contextmanager
def _connected(ray: Any, address: str | None, plan: Plan, workers: int | None) -> Iterator[None]:
    """A block in which Ray is there: the one that the caller's program has, a cluster, or one of our own."""
    if ray.is_initialized():
        yield
        return
    settings: dict[str, Any] = {
        "address": address or "local",
        "log_to_driver": False,
        "configure_logging": False,
        "logging_level": logging.ERROR,
    }
    kept = {name: os.environ.get(name) for name in ("PYTHONPATH", "RAY_USAGE_STATS_ENABLED")}
    if address is None:
        settings["include_dashboard"] = False
        if workers and plan.device.kind == "cpu":
            settings["num_cpus"] = workers * _cpus(plan, workers, None)
        # Its processes inherit these: they import what this program imports, and tell nobody that they run.
        os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        ray.init(**settings)
    except Exception as error:
        where = f"the Ray cluster at {address!r} cannot be reached" if address else "Ray cannot be started here"
        raise StopError(f"{where} ({type(error).__name__}: {error})") from error
    finally:
        if address is None:
            for name, value in kept.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
    try:
        yield
    finally:
        ray.shutdown()


def _cpus(plan: Plan, workers: int | None, address: str | None) -> int:
    """Returns how many cores an actor takes."""
    if plan.device.kind != "cpu":
        return 1
    return plan.device.threads or (1 if address or not workers else max(1, cores() // workers))


class Worker:
    """Lives in an actor: does shards, one after the other, with models loaded once."""

    def __init__(self, plan: Plan, run: Path, threads: int, hidden: Mapping[str, str]) -> None:
        remember(hidden)
        gpu = plan.device.kind != "cpu"
        decoders = max(2, cores() // max(1, gpus_of_machine()) if gpu else threads)
        self.plan = plan
        self.worker = ShardWorker(placed(plan, plan.device.kind.partition(":")[0], threads), run, decoders=decoders)
        self.at, self.rows = "", 0

    def ready(self) -> None:
        """Answers when the actor has come up."""

    def far(self) -> tuple[str, int]:
        """Returns the shard that it is at, and how many of its samples are done."""
        return self.at, self.rows

    def do(self, shard: Shard, folders: Sequence[str]) -> ShardReport | StopError:
        """Makes the parts of a shard that lie in some folders of the run."""
        self.at, self.rows = shard.name, 0
        outputs = tuple(output for output in self.plan.outputs if output.folder in folders)
        return answer(self.worker, Task(shard, outputs), self._count)

    def _count(self, rows: int) -> None:
        self.rows += rows


@dataclass
class _Hand:
    """An actor and what it has been given, the shard that it is at first."""

    actor: Any
    coming: Any  # resolves when it is ready to work; None afterwards
    given: deque[tuple[Any, Task]] = field(default_factory=deque)
    asked: Any = None  # how far it is
    told: dict[str, int] = field(default_factory=dict)  # what `progress` has heard


@dataclass
class _Fleet:
    """The actors of one run and the shards that wait for them."""

    ray: Any
    plan: Plan
    run: Path
    engine: Ray
    progress: EngineProgress
    waiting: deque[Task]
    hands: list[_Hand] = field(default_factory=list)
    deaths: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        device = self.plan.device
        self.cpus = _cpus(self.plan, self.engine.workers, self.engine.address)
        self.needs = {"num_cpus": self.cpus, "num_gpus": 0 if device.kind == "cpu" else 1}
        self.kind = self.ray.remote(concurrency_groups={_ASIDE: 1})(Worker).options(
            max_restarts=-1, max_task_retries=0, **self.needs
        )
        self.plan_ref = self.ray.put(self.plan)
        self.looked = self.grown = self.heard = time.monotonic()

    def work(self) -> Iterator[ShardReport]:
        """Yields what became of every shard."""
        self._grow()
        while self.waiting or any(hand.given for hand in self.hands):
            self._give()
            self._tend()
            watched = [hand.coming or hand.given[0][0] for hand in self.hands if hand.coming or hand.given]
            done, _ = self.ray.wait(watched, num_returns=1, timeout=_LOOK_SECONDS)
            for hand in [hand for hand in self.hands if done and done[0] in (hand.coming, *map(_first, hand.given))]:
                self.heard = time.monotonic()
                if hand.coming is not None:
                    self._welcome(hand)
                else:
                    yield from self._take(hand)

    def dismiss(self) -> None:
        """Ends the actors, whatever they are at."""
        for hand in self.hands:
            self.ray.kill(hand.actor)

    def _grow(self) -> None:
        """Asks for actors, up to as many as were wanted, or as the cluster has devices for now."""
        self.grown = time.monotonic()
        wanted = self.engine.workers
        if wanted is None:
            there = self.ray.cluster_resources()
            gpu = self.needs["num_gpus"]
            wanted = int(there.get("GPU", 0)) if gpu else int(there.get("CPU", 1) // self.cpus)
        busy = sum(len(hand.given) for hand in self.hands)
        for _ in range(min(max(1, wanted), len(self.waiting) + busy) - len(self.hands)):
            actor = self.kind.remote(self.plan_ref, self.run, self.cpus, secrets())
            self.hands.append(_Hand(actor, _coming(actor)))

    def _give(self) -> None:
        """Gives shards to the actors that are up: one to each, then one to wait, while there is plenty."""
        up = [hand for hand in self.hands if hand.coming is None]
        for depth in range(_IN_FLIGHT):
            for hand in up:
                plenty = depth == 0 or len(self.waiting) > len(up)
                if len(hand.given) == depth and self.waiting and plenty:
                    task = self.waiting.popleft()
                    folders = [output.folder for output in task.outputs]
                    hand.given.append((hand.actor.do.remote(task.shard, folders), task))

    def _take(self, hand: _Hand) -> Iterator[ShardReport]:
        """Takes the answer for the first shard of an actor, or learns that the actor has died."""
        ref, task = hand.given[0]
        try:
            report = self.ray.get(ref)
        except self.ray.exceptions.RayActorError as error:
            yield from self._lost(hand, error)
            return
        except self.ray.exceptions.RayError as error:
            raise StopError(f"Ray gave no answer for the shard {task.shard.name}: {error}") from error
        hand.given.popleft()
        if isinstance(report, StopError):
            raise report
        self.progress(task.shard.name, max(0, report.rows - hand.told.pop(task.shard.name, 0)))
        if report.elsewhere:
            self.waiting.append(task)
        else:
            yield report

    def _lost(self, hand: _Hand, error: Exception) -> Iterator[ShardReport]:
        """Gives back what an actor had that has died: the first is what it was at."""
        tasks = [task for _, task in hand.given]
        hand.given.clear()
        hand.told.clear()
        hand.asked, hand.coming = None, _coming(hand.actor)
        log.debug("an actor has died: %s", error)
        guilty = tasks[0].shard
        # A node that is taken away on purpose says nothing of the shard; nor does a connection that is lost.
        if not getattr(error, "preempted", False):
            self.deaths[guilty.name] += 1
        if self.deaths[guilty.name] >= self.engine.deaths:
            tasks = tasks[1:]
            report = ShardReport(
                shard=guilty.name,
                error=f"{self.engine.deaths} workers died one after another at this shard, it is set aside; the system "
                "running out of memory is the usual reason: give each worker more of it, or a smaller --batch-size",
            )
            record(self.run, guilty, report)
            yield report
        self.waiting.extendleft(reversed(tasks))

    def _welcome(self, hand: _Hand) -> None:
        """Takes an actor that has come up into work; one that cannot come up ends the run."""
        try:
            self.ray.get(hand.coming)
        except self.ray.exceptions.ActorUnavailableError:
            hand.coming = _coming(hand.actor)
            return
        except self.ray.exceptions.RayError as error:
            raise StopError(
                f"a worker cannot start on the Ray cluster: {str(error).strip().splitlines()[-1]}; every node needs "
                "tamis with the same extras, and scorers of your own as an installed package"
            ) from error
        hand.coming = None

    def _tend(self) -> None:
        """Now and then: asks how far the actors are, lets the fleet grow, tells of a cluster without room."""
        now = time.monotonic()
        if now - self.grown >= _GROW_SECONDS:
            self._grow()
        if now - self.looked >= max(_LOOK_SECONDS, len(self.hands) / 100):
            self.looked = now
            for hand in self.hands:
                self._ask(hand)
        if now - self.heard >= _SILENCE_SECONDS and not any(hand.given for hand in self.hands):
            self.heard = now
            log.warning(
                "no worker has started yet: the cluster has %s, and each worker needs %d CPU and %d GPU",
                {name: count for name, count in self.ray.available_resources().items() if name in ("CPU", "GPU")},
                self.needs["num_cpus"], self.needs["num_gpus"],
            )  # fmt: skip

    def _ask(self, hand: _Hand) -> None:
        if hand.asked is not None:
            if not self.ray.wait([hand.asked], timeout=0)[0]:
                return
            asked, hand.asked = hand.asked, None
            try:
                shard, rows = self.ray.get(asked)
            except self.ray.exceptions.RayError:  # it has died: heard of by its shard
                return
            if hand.given and hand.given[0][1].shard.name == shard:
                self.progress(shard, max(0, rows - hand.told.get(shard, 0)))
                hand.told[shard] = max(rows, hand.told.get(shard, 0))
        if hand.given:
            hand.asked = hand.actor.far.options(concurrency_group=_ASIDE).remote()


def _coming(actor: Any) -> Any:
    """Returns what resolves when an actor is up, also if it dies and is restarted before."""
    return actor.ready.options(max_task_retries=-1).remote()


def _first(given: tuple[Any, Task]) -> Any:
    return given[0]
