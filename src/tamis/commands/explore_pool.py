"""`look` in the browser: serves the explorer of a pool's run at once, and measures the pool behind it."""

from __future__ import annotations

import importlib.util
import logging
import os
import shlex
import sys
import threading
import webbrowser
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tamis.commands.look import MEASURED, cheap_signals, draw_order, proposals
from tamis.commands.score import Scoring, open_for, with_signals
from tamis.commands.select import select
from tamis.core.errors import RunError, TamisError, first_line
from tamis.core.files.checked import LABEL, read_record
from tamis.core.files.find import run_name
from tamis.core.files.storage import files, location
from tamis.core.machine import cores
from tamis.engines.engine import EngineProgress
from tamis.engines.local import decoders, feeders, worker_processes
from tamis.engines.plan import Plan, Task
from tamis.engines.progress import ShardReport
from tamis.pools import PoolSpec
from tamis.recipes.recipe import PathLike, Recipe, load
from tamis.runs import Run
from tamis.runs.manifest import check_folder, check_pool, read_manifest

if TYPE_CHECKING:
    from tamis.reports.explore.server import Server

log = logging.getLogger(__name__)


def page_instead(environment: Mapping[str, str] = os.environ) -> str:
    """Returns why this machine cannot show the explorer, so that `look` writes a page; "" if it can."""
    if importlib.util.find_spec("uvicorn") is None or importlib.util.find_spec("starlette") is None:
        return "the explorer opens at once with: pip install 'tamis[explore]'"
    with suppress(webbrowser.Error):
        webbrowser.get()
        if sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"} & environment.keys():
            return ""
    return "no browser can be opened here: --no-browser serves the explorer and prints its address"


class PoolMeasuring:
    """Scores the cheap signals of a pool into its run: whole shards in a random order, until `pairs` pairs are scored.

    It is the engine of this scoring. Shards are done by processes, also if there is one: this process has a page to
    serve. A run that has all shards of the pool is left as it is. `on_end` is called whenever the measuring has ended.
    """

    remote, suffix = False, ""

    def __init__(
        self, pool: PoolSpec, run: PathLike, *, pairs: int, shards: int | None, seed: int,
        on_end: Callable[[PoolMeasuring], None],
    ) -> None:  # fmt: skip
        self.path, self.pool = location(run), open_for(pool, location(run))
        check_folder(self.path, self.pool)
        check_pool(self.path, read_manifest(self.path), self.pool)
        self._goal = self._each = pairs
        self._shards, self._seed, self._on_end = shards, seed, on_end
        self._scored, self._begun, self._stopped, self._error = 0, 0, False, ""
        self._thread: threading.Thread | None = None  # None: not begun
        run_ = self._run
        self.complete = (
            run_ is not None and {*run_.urls, *self.order} <= {*run_.shards}
            and all(group.shards.issuperset(run_.shards) for group in run_.scores.values())
        )  # fmt: skip
        written = self.path / "recipe.yaml"  # goes on to name its signals
        cheap = {signal for _, signal in load({"signals": cheap_signals(self.pool)}).signals}
        recipe = load(written) if written.is_file() else Recipe()
        recipe = with_signals(recipe, sorted(cheap - {signal for _, signal in recipe.signals}, key=repr))
        self._entries = [entry for entry in recipe.signals if entry[1] in cheap]
        self._scoring = Scoring(self.pool, self.path, recipe, engine=self, quiet=True, device="cpu")

    @property
    def _run(self) -> Run | None:
        return Run(self.path, partial=True) if (self.path / "run.json").is_file() else None

    @property
    def order(self) -> list[str]:
        """The names of the shards, in the order in which they are measured."""
        return sorted((shard.name for shard in self.pool.shards), key=lambda name: draw_order(name, self._seed))

    # ---- the engine

    def speed(self, plan: Plan, tasks: Sequence[Task]) -> float:
        return float(min(feeders(cores(), 1), len(tasks)))

    def cluster_reader(self) -> AbstractContextManager[None]:
        return nullcontext()

    def __call__(self, plan: Plan, run: Path, tasks: Sequence[Task], progress: EngineProgress) -> Iterator[ShardReport]:
        def count(shard: str, pairs: int) -> None:
            if self._stopped:
                raise KeyboardInterrupt  # the shard keeps its rows so far
            self._scored += pairs
            progress(shard, pairs)

        def wanted() -> Iterator[Task]:
            for task in sorted(tasks, key=lambda task: draw_order(task.shard.name, self._seed)):
                if self._scored >= self._goal or (self._shards is not None and self._begun >= self._shards):
                    return
                self._begun += 1
                yield task

        size = max(1, int(self.speed(plan, tasks)))
        each = decoders(max(1, cores() // size))
        with worker_processes([plan.on("cpu", 1)], run, size, each, shared=False) as workers:
            yield from workers.execute(wanted(), count)

    # ---- the thread

    def start(self) -> None:
        """Starts measuring, unless there is nothing to do."""
        if not self.complete and not self._stopped:
            thread = threading.Thread(target=self._measure, name="tamis look", daemon=True)
            thread.start()
            self._thread = thread  # only now: one that has not started is no more alive than one that ended

    def _measure(self) -> None:
        try:
            self._scoring.score(self._entries)
        except KeyboardInterrupt:
            return
        except Exception as error:  # the page shows it
            self._error = str(error) if isinstance(error, TamisError) else first_line(error)
            log.info("the pool cannot be measured", exc_info=True)
        self._on_end(self)

    def more(self) -> None:
        """Measures as many pairs more."""
        self._goal, self._shards = self._scored + self._each, None
        if self._thread is not None and not self._thread.is_alive():
            self.start()

    def stop(self) -> None:
        """Ends the measuring; finished shards, and the rows of begun ones, stay."""
        self._stopped = True
        if self._thread is not None:
            self._thread.join(10)

    def ready(self) -> Collection[str]:
        """Returns the shards that have their index and every cheap score."""
        found = files(self.path / "index", ".parquet")
        for _, signal in () if self.complete else self._entries:
            found &= files(self.path / "scores" / self._scoring.identities.stem(signal), ".parquet")
        return found

    def progress(self) -> dict[str, Any]:
        """Returns the state, the shards and pairs done, the speed, and the command that scores the rest."""
        run, ready, status = self._run, len(self.ready()), {}
        if (self.path / "status.json").is_file() and not self.complete:
            status = read_record(self.path / "status.json")
        failures = {} if run is None else run.failures  # a run without pairs is false
        pairs = status.get("pairs") or {"done": len(run) if run is not None and self.complete else 0, "total": None}
        goal, rate = min(self._goal, pairs["total"] or self._goal), status.get("rate") or 0
        over = "done" if self.complete or ready + len(failures) >= len(self.pool.shards) else "enough"
        busy = not self.complete and (self._thread is None or self._thread.is_alive())
        return {
            "state": "failed" if self._error else "measuring" if busy else over,
            "error": self._error,
            "failures": failures,
            "ready": ready,
            "shards": len(self.pool.shards),
            "pairs": pairs["done"],
            "of": goal,
            "rate": rate,
            "left": max(0.0, (goal - pairs["done"]) / rate) if rate and busy else None,
            "command": "" if run is None else run.completing_command(),
        }


def explore_pool(
    pool: PathLike | PoolSpec,
    *,
    run: PathLike | None = None,
    pairs: int = 20_000,
    shards: int | None = None,
    seed: int = 0,
    on_end: Callable[[PoolMeasuring], None] = lambda measuring: None,
) -> tuple[Server, PoolMeasuring]:
    """Opens a pool in a local web page at once, and scores the cheap signals of some whole shards behind it.

    Everything measured is in the pool's run, which `tamis score` and `tamis run` continue. After `pairs` pairs or
    `shards` shards no further shard is begun, until the page asks for more. `run`: the folder; None: `runs/` and the
    pool's name. Returns the server (see `tamis.explore`), and what measures, whose `stop()` is to be called at the end.

    Raises:
        PoolError: there is no pool.
        RunError: the run belongs to another pool.
        DependencyError: the extra `explore` is not installed.
    """
    from tamis.reports.explore.cached_run import CachedRun
    from tamis.reports.explore.growing import GrowingPages
    from tamis.reports.explore.image_cache import Images
    from tamis.reports.explore.pages import Pages
    from tamis.reports.explore.queries import Explorer
    from tamis.reports.explore.server import Server

    spec = pool if isinstance(pool, PoolSpec) else PoolSpec(path=os.fspath(pool))
    folder = f"runs/{run_name(spec.paths[0])}" if run is None else run
    measuring = PoolMeasuring(spec, folder, pairs=pairs, shards=shards, seed=seed, on_end=on_end)
    own = "" if run is None else f" --run {shlex.quote(str(run))}"

    def propose(explorer: Explorer) -> list[dict[str, Any]]:
        names = [name for name in MEASURED if set(load(name).reads) <= set(explorer.run.columns)]
        found = proposals(explorer.run, [explorer.choose(dict(load(name).text)) for name in names], spec)
        return [{"recipe": each.recipe, "why": each.why, "keeps": each.keeps, "command": each.commands[0] + own}
                for each in found]  # fmt: skip

    def open_pages(ready: Collection[str]) -> Pages:
        opened = CachedRun(measuring.path, partial=True, shards=ready)
        opened.pool = measuring.pool
        explorer = Explorer(opened, (), partial(select, any_model=True, partial=True), propose)
        if LABEL in opened.scores:
            with suppress(RunError):  # another command is writing: the next tag does it
                explorer.tags.change(np.empty(0, np.int64))  # recipes read tags that all shards have
        return Pages(explorer, Images(opened))

    answers = {"progress": lambda asked: measuring.progress(), "more": lambda asked: measuring.more()}
    pages = GrowingPages(measuring.ready, open_pages, answers)
    server = Server(pages)

    def work() -> None:
        if not measuring.ready():
            pages.read_first(measuring.pool, measuring.order)
        measuring.start()

    threading.Thread(target=work, name="tamis first pairs", daemon=True).start()
    return server, measuring
