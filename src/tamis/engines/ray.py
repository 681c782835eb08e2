"""The Ray engine: plain actors of Ray Core, one per device, anywhere in a cluster.

The plan is sent once; then only shards, folder names and counts. Actors read the pool and write parts themselves. Ray
restarts an actor that dies, on another node if need be, and repeats its shards once: a shard whose actor died twice is
a failure. Not Ray Data: its checkpoints are sets of ids that are loaded whole, and its pools of GPU actors can stay at
one on a cluster that grows (ray-project/ray#59144).
"""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tamis.core.errors import StopError, TamisError, first_line, require
from tamis.core.files.remote import known_secrets, take_secrets
from tamis.core.files.storage import location
from tamis.core.machine import cores
from tamis.core.processes import in_order
from tamis.engines.engine import EngineProgress
from tamis.engines.local import Workers, decoders, feeders, worker_processes
from tamis.engines.plan import Plan, Task
from tamis.engines.progress import ShardReport, record
from tamis.engines.shard import ShardWorker
from tamis.pools import Shard
from tamis.runs.table import Cluster

log = logging.getLogger(__name__)

#: Most workers of an actor with a GPU, each with one shard: by the CPU time of an image, 32 of them
#: feed it 33,000 images a second.
_MOST_AT_ONCE = 32
_LOOK_SECONDS = 2.0  # between looks at the cluster's size and at the actors' progress
_ANSWER_SECONDS = 0.2  # to wait for the actors' answers
_ROWS_AT_ONCE = 1 << 19  # that a worker reads for `select` in one call, or more
_SILENCE_SECONDS = 60.0  # between two warnings that no actor has started
#: The concurrency group for calls that a busy actor must answer.
_ASIDE = "aside"


@dataclass(frozen=True)
class Ray:
    """Engine: actors of Ray."""

    suffix: ClassVar[str] = ""
    address: str | None = None  # a running cluster ("auto", "ray://host:10001"); None starts Ray here for this run
    # How many actors. None: one per GPU (on a CPU cluster: per `threads` cores), more when nodes join.
    workers: int | None = None
    # True: each actor has a reading and decoding worker for each of its cores, and a process that runs the networks for
    # them (device_process.py). None: if actors have GPUs.
    one_process_per_device: bool | None = None

    @property
    def remote(self) -> bool:
        return self.address is not None

    def speed(self, plan: Plan, tasks: Sequence[Task]) -> float:
        workers = self.workers or (1 if self.address else cores())  # how large a cluster is, is not known yet
        return workers * (_cpus(plan, self.workers, self.address) / cores() if plan.device.kind == "cpu" else 1)

    def __call__(self, plan: Plan, run: Path, tasks: Sequence[Task], progress: EngineProgress) -> Iterator[ShardReport]:
        ray = _ray()
        if not tasks:
            return
        on_cpu = plan.device.kind == "cpu"
        cpus = self.workers * _cpus(plan, self.workers, None) if self.workers and on_cpu else None
        with _connect(ray, self.address, cpus):
            fleet = _Fleet(ray, plan.without_shards(), run.absolute(), self, progress, deque(tasks))
            try:
                yield from fleet.work()
            finally:
                for worker in fleet.actors:
                    ray.kill(worker.actor)

    @contextmanager
    def cluster_reader(self) -> Iterator[Cluster]:
        ray = _ray()
        with _connect(ray, self.address, self.workers):
            yield _Cluster(ray, self.workers)


def _ray() -> Any:
    require("ray", extra="ray")
    return importlib.import_module("ray")


@contextmanager
def _connect(ray: Any, address: str | None, cpus: int | None) -> Iterator[None]:
    """Provides a Ray while the block runs: the caller's, a cluster's, or one that is started here."""
    if ray.is_initialized():
        yield
        return
    settings: dict[str, Any] = {"address": address or "local", "log_to_driver": False, "configure_logging": False}
    before = dict(os.environ)
    if address is None:
        settings["include_dashboard"] = False
        if cpus:
            settings["num_cpus"] = cpus
        # Its processes inherit these: the same imports as this program, and no usage statistics.
        os.environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        ray.init(**settings, logging_level=logging.ERROR)
    except Exception as error:
        where = f"the Ray cluster at {address!r} cannot be reached" if address else "Ray cannot be started here"
        raise StopError(f"{where} ({type(error).__name__}: {error})") from error
    finally:
        for name in ("PYTHONPATH", "RAY_USAGE_STATS_ENABLED"):
            os.environ.pop(name, None)
            os.environ.update({name: before[name]} if name in before else {})
    try:
        yield
    finally:
        ray.shutdown()


@dataclass(frozen=True)
class _Cluster:
    """A table's `Cluster`: tasks on the workers. What they hand to one another is in Ray's object store."""

    ray: Any
    workers: int | None

    def __call__(self, reader: Callable[..., list[Any]], arguments: Iterable[tuple[Any, ...]]) -> Iterator[list[Any]]:
        ray = self.ray
        task, shared = ray.remote(num_cpus=1)(_read_blocks), ray.put(ray.cloudpickle.dumps(reader))
        at_once = self.workers or 2 * int(ray.cluster_resources().get("CPU", 1))
        submit = lambda some: task.remote(shared, known_secrets(), some).future()  # noqa: E731
        try:
            for found in in_order(submit, _by_rows(arguments), at_once):
                yield from found
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, TamisError):
                raise error.cause from error
            if not isinstance(error.cause, ray.exceptions.RayError | MemoryError):
                raise
            advice = "a worker died, probably out of memory: give workers more memory, or take more clusters"
            raise StopError(f"Ray failed: {advice} ({first_line(error.cause)})") from error
        except ray.exceptions.RayError as error:
            raise StopError(f"Ray failed: {error}") from error

    def deal(
        self, work: Callable[..., list[Any]], arguments: Iterable[tuple[Any, ...]], join: Callable[..., Any], parts: int
    ) -> list[_Kept]:
        ray = self.ray
        dealing, joining = ray.remote(num_cpus=1, num_returns=parts)(_deal_blocks), ray.remote(num_cpus=1)(_join)
        reader, joiner = (ray.put(ray.cloudpickle.dumps(each)) for each in (work, join))
        dealt = [dealing.remote(reader, known_secrets(), some) for some in _by_rows(arguments)]
        pieces = zip(*([each] if parts == 1 else each for each in dealt), strict=True)
        return [_Kept(joining.remote(joiner, *some)) for some in pieces]


@dataclass(frozen=True)
class _Kept:
    """Gives what is in Ray's object store, on whichever worker."""

    ref: Any

    def __call__(self) -> Any:
        return _ray().get(self.ref)


def _deal_blocks(reader: bytes, hidden: Mapping[str, str], some: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Returns for each part its pieces of some blocks; of a single part not in a list, as Ray wants it."""
    parts = [list(pieces) for pieces in zip(*(found for (found,) in _read_blocks(reader, hidden, some)), strict=True)]
    return parts[0] if len(parts) == 1 else parts


def _join(join: bytes, *pieces: list[Any]) -> Any:
    return pickle.loads(join)([piece for some in pieces for piece in some])


def _read_blocks(reader: bytes, hidden: Mapping[str, str], some: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    take_secrets(hidden)  # before the run is opened
    read = pickle.loads(reader)
    return [read(*arguments) for arguments in some]


def _by_rows(arguments: Iterable[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    """Yields arguments of blocks that have enough rows together to be worth sending."""
    some: list[tuple[Any, ...]] = []
    for one in arguments:
        some.append(one)
        if some[-1][1].stop - some[0][1].start >= _ROWS_AT_ONCE:
            yield some
            some = []
    if some:
        yield some


def _cpus(plan: Plan, workers: int | None, address: str | None) -> int:
    """Returns how many cores an actor reserves: 1 with a GPU, although its workers use more."""
    if plan.device.kind != "cpu":
        return 1
    return plan.device.threads or (1 if address or not workers else max(1, cores() // workers))


def share_of_node() -> tuple[int, int]:
    """Returns this Ray node's cores per GPU and its number of GPUs, both at least 1.

    A container may see GPUs that Ray does not.
    """
    ray = _ray()
    node = ray.get_runtime_context().get_node_id()
    resources = next(one["Resources"] for one in ray.nodes() if one["NodeID"] == node)
    gpus = max(1, int(resources.get("GPU", 0)))
    return max(1, min(cores(), int(resources.get("CPU", 0))) // gpus), gpus


class Worker:
    """The actor: does shards, one at a time or as many at once as it has workers of its own."""

    def __init__(self, plan: Plan, where: str, threads: int, hidden: Mapping[str, str], shared: bool) -> None:
        take_secrets(hidden)
        run = location(where)
        available, gpus = share_of_node()
        if plan.device.kind == "cpu":
            available = threads
        size = min(feeders(available, gpus), _MOST_AT_ONCE) if shared else 1
        each = max(1, available // size)
        self.plan = plan.on(plan.device.kind.partition(":")[0], (plan.device.threads or each) if size > 1 else threads)
        self.rows: dict[str, int] = {}
        self.processes = ExitStack()  # they end with the actor
        if size == 1:
            self.workers = Workers([ShardWorker(self.plan, run, decoders=available)])
        else:
            processes = worker_processes([self.plan], run, size, decoders(each), shared=True)
            self.workers = self.processes.enter_context(processes)

    def ready(self) -> int:
        """Returns how many shards the actor does at once, when it has started."""
        return self.workers.number

    def progress(self) -> dict[str, int]:
        """Returns the number of finished samples of each current shard."""
        return dict(self.rows)

    def do(self, shard: Shard, folders: Sequence[str], *requested: Any) -> ShardReport | TamisError:
        """Makes the parts of a shard for some folders of the run, of the `requested` rows (see `Task`)."""
        task = Task(shard, tuple(output for output in self.plan.outputs if output.folder in folders), *requested)
        try:
            return self.workers.do(task, partial(self._count, shard.name))
        except TamisError as error:
            return error
        finally:
            self.rows.pop(shard.name, None)

    def _count(self, shard: str, rows: int) -> None:
        self.rows[shard] = self.rows.get(shard, 0) + rows


@dataclass
class _Actor:
    """An actor, as the engine sees it."""

    actor: Any
    starting: Any  # resolves when it has started; None afterwards
    at_once: int = 0
    tasks: dict[Any, Task] = field(default_factory=dict)  # by the reference of their reports


class _Fleet:
    """The actors of one run and the shards that wait for them."""

    def __init__(
        self, ray: Any, plan: Plan, run: Path, engine: Ray, progress: EngineProgress, waiting: deque[Task]
    ) -> None:
        self.ray, self.run, self.engine, self.progress, self.waiting = ray, run, engine, progress, waiting
        on_cpu = plan.device.kind == "cpu"
        self.cpus, self.gpus = _cpus(plan, engine.workers, engine.address), 0 if on_cpu else 1
        shared = not on_cpu if engine.one_process_per_device is None else engine.one_process_per_device
        threads = {"max_concurrency": _MOST_AT_ONCE} if shared else {}  # otherwise networks stay in one thread
        self.kind = ray.remote(concurrency_groups={_ASIDE: 1})(Worker).options(
            max_restarts=-1, max_task_retries=1, num_cpus=self.cpus, num_gpus=self.gpus, **threads
        )
        self.arguments = (ray.put(plan), str(run), self.cpus, known_secrets(), shared)
        self.actors: list[_Actor] = []
        self.counted: dict[str, int] = {}  # samples that `progress` knows of, by unfinished shard
        self.heard_at = time.monotonic()

    def work(self) -> Iterator[ShardReport]:
        """Yields the report of every shard."""
        looked_at = -_LOOK_SECONDS
        while self.waiting or any(one.tasks for one in self.actors):
            if (now := time.monotonic()) - looked_at >= _LOOK_SECONDS:
                looked_at = now
                self._grow()
                self._ask_progress()
            self._assign()
            refs = {ref: one for one in self.actors for ref in ([one.starting] if one.starting else one.tasks)}
            done, _ = self.ray.wait(list(refs), num_returns=1, timeout=_LOOK_SECONDS)
            for ref in done:
                self.heard_at = time.monotonic()
                if ref is refs[ref].starting:
                    self._note_start(refs[ref])
                elif (report := self._report(refs[ref], ref)) is not None:
                    yield report

    def _grow(self) -> None:
        """Adds actors, as many as were asked for or the cluster has devices for."""
        wanted = self.engine.workers
        if wanted is None:
            resources = self.ray.cluster_resources()
            wanted = int(resources.get("GPU", 0) if self.gpus else resources.get("CPU", 1) // self.cpus)
        shards = len(self.waiting) + sum(len(one.tasks) for one in self.actors)
        for _ in range(min(max(1, wanted), shards) - len(self.actors)):
            actor = self.kind.remote(*self.arguments)
            starting = actor.ready.options(max_task_retries=-1, concurrency_group=_ASIDE).remote()
            self.actors.append(_Actor(actor, starting))
        silent = time.monotonic() - self.heard_at >= _SILENCE_SECONDS
        if silent and not any(one.at_once for one in self.actors):
            self.heard_at = time.monotonic()
            log.warning(
                "no worker has started yet: each needs %d CPU and %d GPU, and the cluster has %s",
                self.cpus, self.gpus, self.ray.available_resources(),
            )  # fmt: skip

    def _note_start(self, actor: _Actor) -> None:
        try:
            actor.at_once, actor.starting = self.ray.get(actor.starting), None
        except self.ray.exceptions.RayError as error:
            raise StopError(
                f"a worker cannot start on the Ray cluster: {str(error).strip().splitlines()[-1]}; every node needs "
                "tamis with the same extras, plug-ins as installed packages, and the credentials of the stores of the "
                "pool and the run"
            ) from error

    def _assign(self) -> None:
        """Gives shards to actors, evenly. No actor queues an extra shard, which would be lost if it died."""
        for depth in range(max((one.at_once for one in self.actors), default=0)):
            for one in self.actors:
                if len(one.tasks) == depth < one.at_once and self.waiting:
                    task = self.waiting.popleft()
                    folders = [output.folder for output in task.outputs]
                    ref = one.actor.do.remote(task.shard, folders, task.rows, task.outside)
                    one.tasks[ref] = task

    def _report(self, actor: _Actor, ref: Any) -> ShardReport | None:
        """Takes the result of a shard; None if it has to be tried again."""
        task = actor.tasks.pop(ref)
        try:
            report = self.ray.get(ref)
        except self.ray.exceptions.RayActorError as error:
            if getattr(error, "preempted", False):  # its node was taken away by the cluster
                self.waiting.append(task)
                return None
            report = ShardReport(
                shard=task.shard.name,
                error="two workers died on this shard, probably out of memory: give each worker more memory, or use a "
                "smaller --batch-size",
            )
            record(self.run, task, report)
        except self.ray.exceptions.RayError as error:
            raise StopError(f"Ray failed on shard {task.shard.name}: {error}") from error
        if isinstance(report, TamisError):
            raise report
        self._count(task.shard.name, report.rows)
        self.counted.pop(task.shard.name)
        if report.elsewhere:
            self.waiting.append(task)
            return None
        return report  # type: ignore[no-any-return]

    def _ask_progress(self) -> None:
        """Asks the actors for their progress and passes it on."""
        refs = [one.actor.progress.options(concurrency_group=_ASIDE).remote() for one in self.actors if one.tasks]
        done, _ = self.ray.wait(refs, num_returns=len(refs), timeout=_ANSWER_SECONDS) if refs else ([], [])
        for ref in done:
            with suppress(self.ray.exceptions.RayError):  # it died; its shard will report that
                for shard, rows in self.ray.get(ref).items():
                    self._count(shard, rows)

    def _count(self, shard: str, rows: int) -> None:
        """Passes on how many samples of a shard are done."""
        before = self.counted.get(shard, 0)
        self.progress(shard, max(0, rows - before))
        self.counted[shard] = max(rows, before)
