"""Does all that a recipe says: scores, selects, exports, reports; or says what would be done."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from tamis.commands.export import check_export, write_export
from tamis.commands.report import report
from tamis.commands.score import Preview, Scoring, SignalLike, derive, with_signals
from tamis.commands.select import check_reads, select
from tamis.core.compute import Compute
from tamis.core.errors import RecipeError
from tamis.core.files.storage import check_path
from tamis.core.files.targets import are_outputs, note_outputs
from tamis.pools import PoolSpec
from tamis.recipes.recipe import PathLike, Recipe, RecipeLike, load
from tamis.runs import Run
from tamis.runs.run import run_at

if TYPE_CHECKING:
    from tamis.engines.engine import Engine
    from tamis.runs.subset import Subset


def plan(
    pool: PathLike | PoolSpec | None = None,
    *,
    run: PathLike | None = None,
    signals: Sequence[SignalLike] = (),
    recipe: RecipeLike | None = None,
    settings: Sequence[str] = (),
    within: PathLike | Subset | None = None,
    keep: Sequence[str] = (),
    grow: bool = False,
    overwrite: bool = False,
    lazy: bool = False,
    **compute: Unpack[Compute],
) -> Preview:
    """Returns what would be done, without doing it: no file is written, no model is loaded.

    `plan(pool, run=...)` describes `score` with the same arguments. Without a pool, `plan(recipe=...)` describes
    `run_recipe` and makes the same checks.

    Args:
        pool, run: of `score`; neither: those that the recipe names.
        signals, within, keep: what to score besides the recipe's signals, of which rows, and features to store.
        grow, compute: whether the pool may have new shards; device, precision, batch size and the like.
        recipe: a recipe whose signals (and kept features) are included.
        settings: overrides of the recipe, as `--set` takes them.
        overwrite: whether files that the same formats wrote earlier may be replaced.
        lazy: plan to score expensive signals only where it can matter; this loads models, to score a sample.

    Returns:
        The pool's kind and size, and for every output of the run how many shards lack it.

    Raises:
        StopError: whatever `score` or `run_recipe` would raise before any work.
        ValueError: a pool without a run folder, or a run folder without a pool.
    """
    if (pool is None) != (run is None):
        raise ValueError("plan takes a pool and its run, or neither and a recipe that names both")
    chosen = with_signals(Recipe() if recipe is None else load(recipe, settings), signals, keep)
    if pool is None or run is None:
        scoring = _check_recipe(chosen, recipe, overwrite, within=within, grow=grow, **compute)
    else:
        scoring = Scoring(pool, run, chosen, within=within, grow=grow, **compute)
    found = scoring.preview()
    if lazy:
        from tamis.commands.lazy import plan_lazily

        found = replace(found, lazy=str(plan_lazily(scoring)))
    return found


@dataclass(frozen=True)
class Exported:
    """An export that was written."""

    to: str  # the format
    out: Path
    pairs: int


@dataclass(frozen=True)
class RecipeDone:
    """The results of `run_recipe`."""

    run: Run  # its `failures` are the shards that could not be read completely
    subset: Subset | None  # None if the recipe has no `select`
    exports: tuple[Exported, ...]  # in the recipe's order
    report: Path


def run_recipe(
    recipe: RecipeLike,
    *,
    settings: Sequence[str] = (),
    workers: int | None = None,
    engine: Engine | None = None,
    partial: bool = False,
    grow: bool = False,
    overwrite: bool = False,
    lazy: bool = False,
    quiet: bool = False,
    on_result: Callable[[Run | Subset | Exported | Path | str], object] | None = None,
    **compute: Unpack[Compute],
) -> RecipeDone:
    """Scores, selects, exports and reports by one recipe. The same call continues an interrupted one.

    Stops after scoring if shards cannot be read, unless `partial`. The subset is saved as `subsets/<recipe>.parquet` in
    the run folder, the page as `report.html` there unless the recipe names another path. Exports outside the run folder
    are overwritten if untouched since the last call.

    Args:
        recipe: a file, a mapping, or a loaded recipe; it names `pool` and `run`.
        settings: overrides, as `--set` takes them; ignored for a loaded recipe.
        workers, engine: processes on this machine, or an engine that distributes the shards.
        grow, compute: whether the pool may have new shards; device, precision, batch size and the like.
        partial: choose from the finished shards if others cannot be read.
        overwrite: replace files that the same formats wrote earlier.
        lazy: score expensive signals only for the rows whose score can still matter; the same rows are kept, dropped
            ones may have another reason. It scores a sample first.
        quiet: show no progress.
        on_result: called with each result as soon as it exists: the run, the subset, every export, the page; with
            `lazy` also with two texts, the plan and what it did.

    Raises:
        RecipeError: the recipe is wrong, names no pool or no run, or reads columns that will not exist.
        RunError: before any work: an export or the page cannot be written. Afterwards: shards could not be read.
        StopError: nothing could be done; see `tamis.core.errors`.
    """
    chosen = load(recipe, settings)
    how: dict[str, Any] = {"workers": workers, "engine": engine, "grow": grow, "quiet": quiet, **compute}
    scoring = _check_recipe(chosen, recipe, overwrite, **how)
    report_result = on_result or (lambda result: None)
    if lazy and chosen.selects:
        from tamis.commands.lazy import plan_lazily, score_lazily

        lazily = plan_lazily(scoring)
        report_result(str(lazily))
        started = time.monotonic()
        run, order = score_lazily(scoring, lazily, partial=partial)
        report_result(lazily.describe_result(run, order, time.monotonic() - started))
    else:
        run = scoring.complete(chosen.signals)
    report_result(run)
    if partial and run.missing_shards:
        run = derive(run, chosen, partial=True)
    subset: Subset | None = None
    exports = []
    if chosen.selects:
        subset = select(run, chosen, partial=partial)
        subset.save(overwrite=True)
        report_result(subset)
        for exporter, out in chosen.exports:
            again = overwrite or are_outputs(run.path, [out])
            with note_outputs(run.path, [out]):
                pairs = write_export(exporter, subset, out, overwrite=again, clear=overwrite)
            exports.append(Exported(exporter.name, out, pairs))
            report_result(exports[-1])
    pages = _pages(chosen.report) if chosen.report else [run.path / "report.html"]
    again = overwrite or are_outputs(run.path, pages)
    with note_outputs(run.path, pages):
        page = report(run, [] if subset is None else [subset], out=pages[0], partial=partial, overwrite=again)
    report_result(page)
    return RecipeDone(run, subset, tuple(exports), page)


def _pages(page: str) -> list[Path]:
    """Returns the files of a report: the page, and its facts."""
    from tamis.reports.page import facts_path

    return [Path(page), facts_path(Path(page))]


def _check_recipe(recipe: Recipe, source: RecipeLike | None, overwrite: bool, **how: Any) -> Scoring:
    """Returns what scores a recipe that `run_recipe` can execute; raises if it cannot. `how`: see `Scoring`."""
    from tamis.recipes.steps.outcome import check_files

    if recipe.pool is None:
        raise RecipeError(f"the recipe {recipe.name!r} names no pool: `tamis run POOL --recipe ...`")
    if recipe.run is None:
        raise RecipeError(f"the recipe {recipe.name!r} names no run folder: add 'run: runs/NAME'")
    for out in [*(out for _, out in recipe.exports), Path(recipe.report or "report.html")]:
        check_path(out)
    run = run_at(recipe.run)
    scoring = Scoring(recipe.pool, run or recipe.run, recipe, **how)
    files = [*scoring.pool.files, *([os.fspath(source)] if isinstance(source, str | os.PathLike) else [])]
    check_outputs(recipe, run, read=files, overwrite=overwrite)
    check_reads(recipe, run, scoring.pool)
    check_files(recipe.steps)
    return scoring


def check_outputs(recipe: Recipe, run: Run | None, *, read: Sequence[str] = (), overwrite: bool = False) -> None:
    """Raises RunError if `run_recipe` may not write an export or the page, RecipeError if two have the same path.

    `run` is the recipe's, None if it does not exist yet. `read` names files that the recipe reads, besides its pool.
    """
    from tamis.reports.page import check_page

    if run is not None:
        read = [*read, *run.pool_files]
    taken: set[str] = set()
    for exporter, out in recipe.exports:
        if os.path.realpath(out) in taken:
            raise RecipeError(f"the recipe {recipe.name!r} has two exports to {out}: give each its own path")
        taken.add(os.path.realpath(out))
        check_export(exporter, out, run, read, overwrite or (run is not None and are_outputs(run.path, [out])))
    if recipe.report:
        pages = _pages(recipe.report)
        check_page(pages[0], overwrite=overwrite or (run is not None and are_outputs(run.path, pages)), read=read)
