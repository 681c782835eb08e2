"""`look` in the browser: serves the explorer of a pool's run at once, and measures the pool behind it."""

from __future__ import annotations

import importlib.util
import logging
import os
import shlex
import sys
import threading
import webbrowser
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from tamis.commands.look import MEASURED, cheap_signals, proposals
from tamis.commands.score import Scoring, open_for, with_signals
from tamis.commands.select import select
from tamis.core.errors import TamisError
from tamis.core.files.checked import read_record
from tamis.core.files.find import run_name
from tamis.core.files.storage import files, location
from tamis.engines.first_shards import FirstShards, draw_order
from tamis.pools import PoolSpec
from tamis.recipes.recipe import PathLike, Recipe, load
from tamis.runs import Run

log = logging.getLogger(__name__)


def page_instead(environment: dict[str, str] | os._Environ[str] = os.environ) -> str:
    """Returns why this machine cannot show the explorer, so that `look` writes a page; "" if it can."""
    if importlib.util.find_spec("uvicorn") is None or importlib.util.find_spec("starlette") is None:
        return "the explorer opens at once with: pip install 'tamis[explore]'"
    try:
        webbrowser.get()
        if sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"} & environment.keys():
            return ""
    except webbrowser.Error as error:
        log.debug("no browser: %s", error)
    return "no browser can be opened here: --no-browser serves the explorer and prints its address"


class PoolMeasuring:
    """Scores the cheap signals of a pool into its run, whole shards at a time, in a thread that waits for processes.

    A run that has all shards of the pool is left as it is.
    """

    def __init__(
        self, pool: PathLike | PoolSpec, run: PathLike, *, pairs: int, shards: int | None, seed: int,
        on_end: Callable[[PoolMeasuring], None],
    ) -> None:  # fmt: skip
        self.path, self.pool = location(run), open_for(pool, location(run))
        self._each, self._error, self._on_end = pairs, "", on_end
        self.engine = FirstShards(pairs=pairs, shards=shards, seed=seed)
        before = Run(self.path, partial=True) if (self.path / "run.json").is_file() else None
        self.complete = (
            before is not None and not before.missing_shards
            and all(group.shards.issuperset(before.shards) for group in before.scores.values())
        )  # fmt: skip
        written = self.path / "recipe.yaml"  # goes on to name its signals
        recipe = load(written) if written.is_file() else Recipe()
        known = {signal for _, signal in recipe.signals}
        cheap = load({"signals": cheap_signals(self.pool)}).signals
        recipe = with_signals(recipe, [signal for _, signal in cheap if signal not in known])
        self._entries = [entry for entry in recipe.signals if entry[1] in {signal for _, signal in cheap}]
        self._scoring = Scoring(self.pool, self.path, recipe, engine=self.engine, quiet=True, device="cpu")
        self._thread: threading.Thread | None = None  # None: not begun

    @property
    def order(self) -> list[str]:
        """The names of the shards, in the order in which they are measured."""
        return sorted((shard.name for shard in self.pool.shards), key=lambda name: draw_order(name, self.engine.seed))

    def start(self) -> None:
        """Starts measuring, unless there is nothing to do."""
        if not self.complete:
            self._thread = threading.Thread(target=self._measure, name="tamis look", daemon=True)
            self._thread.start()

    @property
    def _busy(self) -> bool:
        return not self.complete and (self._thread is None or self._thread.is_alive())

    def _measure(self) -> None:
        try:
            self._scoring.score(self._entries)
        except KeyboardInterrupt:
            return
        except TamisError as error:
            self._error = str(error)
        except Exception as error:  # the page shows it
            log.warning("the pool cannot be measured", exc_info=True)
            self._error = f"{type(error).__name__}: {error}"
        self._on_end(self)

    def more(self) -> None:
        """Measures as many pairs more."""
        self.engine.pairs, self.engine.shards = max(self.engine.pairs, self.engine.scored) + self._each, None
        if not self._busy:
            self.start()

    def stop(self) -> None:
        """Ends the measuring; finished shards, and the rows of begun ones, stay."""
        self.engine.stop()
        if self._thread is not None:
            self._thread.join(10)

    def _indexed(self) -> set[str]:
        return files(self.path / "index", ".parquet")

    def ready(self) -> Collection[str]:
        """Returns the shards that have their index and every cheap score."""
        found = self._indexed()
        for _, signal in () if self.complete else self._entries:
            found &= files(self.path / "scores" / self._scoring.identities.stem(signal), ".parquet")
        return found

    @property
    def failures(self) -> dict[str, str]:
        """The shards that could not be read, with the reason."""
        return Run(self.path, partial=True).failures if (self.path / "run.json").is_file() else {}

    def progress(self) -> dict[str, Any]:
        """Returns what the page shows of the measuring; numbers of pairs are those that status.json has."""
        status, failures, ready = {}, self.failures, len(self.ready())
        if (self.path / "status.json").is_file() and not self.complete:
            status = read_record(self.path / "status.json")
        pairs = status.get("pairs") or {"done": 0, "total": None}
        goal = min(self.engine.pairs, pairs["total"] or self.engine.pairs)
        busy, rate = self._busy, status.get("rate") or 0
        over = "done" if self.complete or ready + len(failures) >= len(self.pool.shards) else "enough"
        return {
            "state": "failed" if self._error else over if not busy else "measuring" if rate else "reading",
            "error": self._error,
            "failures": failures,
            "shards": len(self.pool.shards),
            "pairs": len(Run(self.path, partial=True)) if self.complete else pairs["done"],
            "of": goal,
            "rate": rate,
            "left": max(0.0, (goal - pairs["done"]) / rate) if rate and busy else None,
            "command": Run(self.path, partial=True).completing_command() if (self.path / "run.json").is_file() else "",
        }


def explore_pool(
    pool: PathLike | PoolSpec,
    *,
    run: PathLike | None = None,
    pairs: int = 20_000,
    shards: int | None = None,
    seed: int = 0,
    port: int = 0,
    on_end: Callable[[PoolMeasuring], None] = lambda measuring: None,
) -> tuple[Any, PoolMeasuring]:
    """Opens a pool in a local web page at once, and scores the cheap signals of some whole shards behind it.

    Everything measured is in the pool's run, which `tamis score` and `tamis run` continue.

    Args:
        pool: folder, glob, brace range, file or fsspec URL; or a `PoolSpec`.
        run: the run folder, new or not; None: `runs/` and the pool's name, as for `tamis run`.
        pairs, shards: after so many pairs or shards no further shard is begun, until the page asks for more.
        seed: of the random order of the shards.
        port: on the loopback interface; 0 for any free one.
        on_end: called whenever the measuring has ended.

    Returns:
        The server (see `tamis.explore`), and what measures. Call `stop()` of the second at the end.

    Raises:
        PoolError: there is no pool.
        RunError: the run belongs to another pool, or the port is taken.
        DependencyError: the extra `explore` is not installed.
    """
    from tamis.reports.explore.cached_run import CachedRun
    from tamis.reports.explore.growing import GrowingPages
    from tamis.reports.explore.image_cache import Images
    from tamis.reports.explore.pages import Pages
    from tamis.reports.explore.queries import Explorer
    from tamis.reports.explore.server import Server

    spec = pool if isinstance(pool, PoolSpec) else PoolSpec(path=os.fspath(pool))
    folder = Path(f"runs/{run_name(spec.paths[0])}") if run is None else run
    measuring = PoolMeasuring(spec, folder, pairs=pairs, shards=shards, seed=seed, on_end=on_end)
    own = "" if run is None else f" --run {shlex.quote(str(run))}"  # a command continues this run
    choose = partial(select, any_model=True, partial=True)

    def propose(explorer: Explorer) -> list[dict[str, Any]]:
        names = [name for name in MEASURED if set(load(name).reads) <= set(explorer.run.columns)]
        subsets = [explorer.choose(dict(load(name).text)) for name in names]
        return [
            {"recipe": each.recipe, "why": each.why, "keeps": each.keeps, "command": f"{each.commands[0]}{own}"}
            for each in proposals(explorer.run, subsets, spec)
        ]

    def open_pages(ready: Collection[str]) -> Pages:
        opened = CachedRun(measuring.path, partial=True, shards=ready)
        opened.pool = measuring.pool
        return Pages(Explorer(opened, (), choose, propose), Images(opened))

    pages = GrowingPages(measuring, open_pages)
    server = Server(pages, port=port)

    def work() -> None:
        if not measuring.ready():
            pages.read_first(measuring.pool, measuring.order)
        measuring.start()

    threading.Thread(target=work, name="tamis first pairs", daemon=True).start()
    return server, measuring
