"""The Ray engine: plain actors of Ray Core, one per device, anywhere in a cluster.

What travels is the plan, once; then names of shards one way and counts the other. Actors read the pool and write parts
themselves, also of a run at a URL, and nothing is gathered here. Ray restarts an
actor that dies, on another node if need be; it repeats no work by itself: we do. What an actor was at when it died is
then done on an actor that has nothing else, and a shard at which two actors died so is a failure with its name. An
actor that only cannot be reached is waited for. Not Ray Data: its checkpoints are sets of ids that are loaded whole,
and its pools of GPU actors can stay at one on a cluster that grows (ray-project/ray#59144).
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar

from tamis.errors import DependencyError, StopError, needs_extra
from tamis.models.device import cores
from tamis.pool import Shard
from tamis.remote import remember, secrets
from tamis.run.engines.engine import EngineProgress, answer, placed
from tamis.run.engines.local import Crew, at_device, feeders
from tamis.run.failures import ShardReport, record
from tamis.run.plan import Plan, Task
from tamis.run.shard import ShardWorker
from tamis.storage import location

log = logging.getLogger(__name__)

#: Shards that an actor with a GPU may be at at once, one for each of its workers: with two shards two cores would feed
#: the GPU, and a core reads and decodes 1,044 images a second (`benchmarks/feed.py`); so many feed it 33,000. Any other
#: actor is at one. Every actor is given one more, so that none of its workers waits.
_MOST_AT_ONCE = 32
#: How often actors are asked how far they are, and the cluster how large it is.
_LOOK_SECONDS = 1.0
_GROW_SECONDS = 10.0
#: An actor that cannot be reached for so long counts as dead: as a claim does that nobody renews.
_UNREACHED_SECONDS = 60.0
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
        served: in each actor as many workers as its machine has cores for it read and decode, and a process at the
            device runs the networks for them (`tamis.run.device_process`). None: where actors have GPUs.
    """

    suffix: ClassVar[str] = ""
    address: str | None = None
    workers: int | None = None
    deaths: int = 2
    served: bool | None = None

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


def node() -> tuple[int, int]:
    """Returns how many cores and GPUs its actors share, on the node that this is called on; at least one of each.

    Ray knows: it gives actors the GPUs that its node was started with, where the system may tell a pod of its whole
    machine's, and no more cores than the node was said to have. An actor with a GPU reserves one core, and is fed by
    its share of all.
    """
    ray = _ray()
    ident = ray.get_runtime_context().get_node_id()
    has = next(one["Resources"] for one in ray.nodes() if one["NodeID"] == ident)
    return max(1, min(cores(), int(has.get("CPU", 0)))), max(1, int(has.get("GPU", 0)))


class Worker:
    """Lives in an actor: does shards, one after the other or as many at once as it has workers of its own."""

    def __init__(self, plan: Plan, where: str, threads: int, hidden: Mapping[str, str], served: bool) -> None:
        remember(hidden)
        run = location(where)
        here, gpus = node()
        mine = max(1, here // gpus) if plan.device.kind != "cpu" else threads
        self.plan, self.rows = plan, dict[str, int]()
        device = plan.device.kind.partition(":")[0]
        at_once = min(feeders(mine, gpus), _MOST_AT_ONCE) if served else 1
        self.free: SimpleQueue[Crew | ShardWorker] = SimpleQueue()
        self.at_once, self.life = at_once, uuid.uuid4().hex
        self.processes = ExitStack()  # they end with the actor, however it ends
        if at_once > 1:
            at = at_device(placed(plan, device, threads), self.processes)
            for _ in range(at_once):
                self.free.put(Crew(plan, run, [device], 1, max(1, mine // at_once), self._count, [at]))
        else:
            self.free.put(ShardWorker(placed(plan, device, threads), run, decoders=mine))

    def ready(self) -> tuple[int, str]:
        """Answers when the actor has come up: how many shards it does at once, and a name that it has until it dies."""
        return self.at_once, self.life

    def far(self) -> dict[str, int]:
        """Returns how many samples are done of the shards that it is at."""
        return dict(self.rows)

    def do(self, shard: Shard, folders: Sequence[str]) -> ShardReport | StopError:
        """Makes the parts of a shard that lie in some folders of the run."""
        outputs = tuple(output for output in self.plan.outputs if output.folder in folders)
        task = Task(shard, outputs)
        worker = self.free.get()
        self.rows[shard.name] = 0
        try:
            if isinstance(worker, ShardWorker):
                return answer(worker, task, partial(self._count, shard.name))
            return next(worker.do([task], patient=False))
        except StopError as error:
            return error
        finally:
            self.free.put(worker)
            self.rows.pop(shard.name, None)

    def _count(self, shard: str, rows: int) -> None:
        self.rows[shard] = self.rows.get(shard, 0) + rows


@dataclass
class _Hand:
    """An actor and what it has been given, the shards that it is at first."""

    actor: Any
    coming: Any  # resolves when it is ready to work; None afterwards
    given: deque[tuple[Any, Task]] = field(default_factory=deque)
    at_once: int = 1  # shards that it does
    life: str = ""  # another one after it has died
    unsure: list[Task] = field(default_factory=list)  # what it was at when it could not be reached, till more is known
    unreached: float = 0.0  # since when
    tries: bool = False  # it is at a shard of `_Fleet.alone`, and is given nothing else
    asked: Any = None  # how far it is
    told: dict[str, int] = field(default_factory=dict)  # what `progress` has heard


@dataclass
class _Fleet:
    """The actors of one run and the shards that wait for them.

    Attributes:
        waiting: shards that anybody may do, the next one first.
        alone: shards that an actor was at when it died: each is given to an actor that has nothing else.
        deaths: how many actors have died at a shard while they were at no other.
    """

    ray: Any
    plan: Plan
    run: Path
    engine: Ray
    progress: EngineProgress
    waiting: deque[Task]
    hands: list[_Hand] = field(default_factory=list)
    alone: deque[Task] = field(default_factory=deque)
    deaths: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        device = self.plan.device
        self.cpus = _cpus(self.plan, self.engine.workers, self.engine.address)
        self.needs = {"num_cpus": self.cpus, "num_gpus": 0 if device.kind == "cpu" else 1}
        self.served = device.kind != "cpu" if self.engine.served is None else self.engine.served
        threads = {"max_concurrency": _MOST_AT_ONCE} if self.served else {}  # else networks stay in one thread
        self.kind = self.ray.remote(concurrency_groups={_ASIDE: 1})(Worker).options(
            max_restarts=-1, max_task_retries=0, **self.needs, **threads
        )
        self.plan_ref = self.ray.put(self.plan)
        self.looked = self.grown = self.heard = time.monotonic()

    def work(self) -> Iterator[ShardReport]:
        """Yields what became of every shard."""
        self._grow()
        while self.waiting or self.alone or any(hand.given or hand.unsure for hand in self.hands):
            self._give()
            self._tend()
            yield from self._give_up()
            watched = {one: hand for hand in self.hands for one in ([hand.coming] if hand.coming else _refs(hand))}
            done, _ = self.ray.wait(list(watched), num_returns=1, timeout=_LOOK_SECONDS)
            for one in done:
                hand = watched[one]
                self.heard = time.monotonic()
                if hand.coming is not None:
                    yield from self._welcome(hand)
                else:
                    yield from self._take(hand, one)

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
        busy = sum(len(hand.given) + len(hand.unsure) for hand in self.hands)
        for _ in range(min(max(1, wanted), len(self.waiting) + len(self.alone) + busy) - len(self.hands)):
            actor = self.kind.remote(self.plan_ref, str(self.run), self.cpus, secrets(), self.served)
            self.hands.append(_Hand(actor, _coming(actor)))

    def _give(self) -> None:
        """Gives shards to the actors that are up: as many as they do at once, then one to wait if there is plenty."""
        up = [hand for hand in self.hands if hand.coming is None]
        for hand in up:
            if not hand.given:
                hand.tries = bool(self.alone)
                if hand.tries:
                    self._hand_over(hand, self.alone.popleft())
        up = [hand for hand in up if not hand.tries]
        for depth in range(1 + max([hand.at_once for hand in up], default=0)):
            for hand in up:
                plenty = depth < hand.at_once or (depth == hand.at_once and len(self.waiting) > len(up))
                if len(hand.given) == depth and self.waiting and plenty:
                    self._hand_over(hand, self.waiting.popleft())

    def _hand_over(self, hand: _Hand, task: Task) -> None:
        folders = [output.folder for output in task.outputs]
        hand.given.append((hand.actor.do.remote(task.shard, folders), task))

    def _take(self, hand: _Hand, ref: Any) -> Iterator[ShardReport]:
        """Takes the answer for a shard of an actor, or learns that the actor has died or cannot be reached."""
        task = next(task for one, task in hand.given if one == ref)
        try:
            report = self.ray.get(ref)
        except self.ray.exceptions.RayActorError as error:
            yield from self._lost(hand, error)
            return
        except self.ray.exceptions.RayError as error:
            raise StopError(f"Ray gave no answer for the shard {task.shard.name}: {error}") from error
        hand.given.remove((ref, task))
        if isinstance(report, StopError):
            raise report
        self.progress(task.shard.name, max(0, report.rows - hand.told.pop(task.shard.name, 0)))
        if report.elsewhere:
            self.waiting.append(task)
        else:
            yield report

    def _lost(self, hand: _Hand, error: Exception) -> Iterator[ShardReport]:
        """Takes from an actor what it had: it has died, or cannot be reached and may be at it still."""
        log.debug("an actor is lost: %s", error)
        for ref in [one for one in _refs(hand) if self._answered(one)]:
            yield from self._take(hand, ref)  # done before, and not looked at yet: what it was at comes after that
        tasks = [task for _, task in hand.given]
        hand.given.clear()
        hand.told.clear()
        hand.asked, hand.coming = None, _coming(hand.actor)
        if isinstance(error, self.ray.exceptions.ActorUnavailableError):
            hand.unsure, hand.unreached = tasks, time.monotonic()
        elif getattr(error, "preempted", False):  # a node that is taken away on purpose says nothing of its shards
            self._give_back(tasks)
        else:
            yield from self._died(hand, tasks)

    def _died(self, hand: _Hand, tasks: Sequence[Task]) -> Iterator[ShardReport]:
        """Says which shards an actor may have died of: the first that it had, or all, where it does several at once."""
        at = tasks if hand.at_once > 1 else tasks[:1]
        self._give_back(tasks[len(at) :])
        for task in at:
            self.deaths[task.shard.name] += len(at) == 1
            if self.deaths[task.shard.name] >= self.engine.deaths:
                yield self._set_aside(task)
            else:
                self.alone.append(task)

    def _give_back(self, tasks: Sequence[Task]) -> None:
        """Puts shards that an actor had, and did not die of, in front of those that wait."""
        self.waiting.extendleft(reversed(tasks))

    def _give_up(self) -> Iterator[ShardReport]:
        """Takes actors for dead that could not be reached for long."""
        for hand in self.hands:
            if hand.unsure and time.monotonic() - hand.unreached >= _UNREACHED_SECONDS:
                tasks, hand.unsure = hand.unsure, []
                yield from self._died(hand, tasks)

    def _answered(self, ref: Any) -> bool:
        """Tells whether an actor has answered for a shard, before it died or while it lived."""
        if not self.ray.wait([ref], timeout=0)[0]:
            return False
        try:
            self.ray.get(ref)
        except self.ray.exceptions.RayError:
            return False
        return True

    def _set_aside(self, task: Task) -> ShardReport:
        report = ShardReport(
            shard=task.shard.name,
            error=f"{self.engine.deaths} workers died one after another at this shard, it is set aside; the system "
            "running out of memory is the usual reason: give each worker more of it, or a smaller --batch-size",
        )
        record(self.run, task, report)
        return report

    def _welcome(self, hand: _Hand) -> Iterator[ShardReport]:
        """Takes an actor that has come up, or can be reached again, into work; one that cannot come up ends the run."""
        try:
            at_once, life = self.ray.get(hand.coming)
        except self.ray.exceptions.ActorUnavailableError:
            hand.coming = _coming(hand.actor)
            return
        except self.ray.exceptions.RayError as error:
            raise StopError(
                f"a worker cannot start on the Ray cluster: {str(error).strip().splitlines()[-1]}; every node needs "
                "tamis with the same extras, scorers of your own as an installed package, and the credentials of the "
                "stores that the pool and the run lie in"
            ) from error
        tasks, hand.unsure = hand.unsure, []
        if life == hand.life:  # it may be at them still, or have done them: then it says so at once
            self._give_back(tasks)
        elif tasks:
            yield from self._died(hand, tasks)
        hand.coming, hand.at_once, hand.life = None, at_once, life

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
                far = self.ray.get(asked)
            except self.ray.exceptions.RayError:  # it has died: heard of by its shard
                return
            given = {task.shard.name for _, task in hand.given}
            for shard, rows in far.items():
                if shard in given:
                    self.progress(shard, max(0, rows - hand.told.get(shard, 0)))
                    hand.told[shard] = max(rows, hand.told.get(shard, 0))
        if hand.given:
            hand.asked = hand.actor.far.options(concurrency_group=_ASIDE).remote()


def _coming(actor: Any) -> Any:
    """Returns what resolves when an actor is up, also if it dies and is restarted before, or cannot be reached.

    Ray asks again by itself, and waits in between. Also an actor that is at a shard answers.
    """
    return actor.ready.options(max_task_retries=-1, concurrency_group=_ASIDE).remote()


def _refs(hand: _Hand) -> list[Any]:
    return [ref for ref, _ in hand.given]
