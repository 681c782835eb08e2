"""Public functions that span several packages; `tamis/__init__.py` says where the others are."""

from __future__ import annotations

import logging
import operator
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial as partial_of
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from tamis.choosing import check_reads, select
from tamis.compute import Compute
from tamis.errors import RecipeError, RunError, naming_faults
from tamis.pool import PoolSpec
from tamis.recipe import PathLike, Recipe, RecipeLike, build, load
from tamis.scoring import Preview, Scoring, SignalLike, derive, with_signals
from tamis.storage import check_path, output_path
from tamis.store import Run, open_run
from tamis.store.run import run_at
from tamis.store.targets import are_outputs, check_ending, check_own, check_target, note_outputs

if TYPE_CHECKING:
    from tamis.explore.server import Server
    from tamis.exporters import Exporter
    from tamis.run.engine import Engine
    from tamis.store.subset import Subset

log = logging.getLogger(__name__)


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
        pool, run, signals, within, keep, grow, compute: as `score` takes them; without a pool, the recipe's pool and
            run.
        recipe: a recipe whose signals (and kept features) are included.
        settings: overrides of the recipe, as `--set` takes them.
        overwrite: as `run_recipe` takes it.
        lazy: the same; this loads models, to score a sample.

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
        from tamis.lazy import plan_lazily

        found = replace(found, lazy=str(plan_lazily(scoring)))
    return found


def export(subset: Subset, to: str, out: PathLike, *, overwrite: bool = False, **settings: Any) -> int:
    """Writes a subset for a trainer, and returns the number of pairs written.

    Args:
        subset: what to write.
        to: "npy" (DataComp), "parquet", "keys", "webdataset", "huggingface", "dropped" (the dropped pairs, with
            reasons), or the format that an installed plug-in registers.
        out: the file, or the folder for webdataset and huggingface.
        overwrite: replace what the same format wrote there for another subset. The same subset's shards are kept.
        settings: the format's own, listed in docs/recipes.md; `croissant=True` also writes metadata next to `out`.

    Raises:
        RecipeError: an unknown format or setting.
        RunError: `out` cannot be written to, contains something else, or has another format's extension; or the
            pool's files have changed.
    """
    from tamis.exporters import exporter_class

    exporter: Exporter = build(exporter_class(to), settings, f"export, {to}")
    return _write_export(exporter, subset, Path(out).expanduser(), overwrite=overwrite, clear=overwrite)


def _write_export(exporter: Exporter, subset: Subset, out: Path, *, overwrite: bool, clear: bool) -> int:
    _check_export(exporter, out, subset.run, subset.run.pool_files, overwrite)
    open_run(subset.run)  # raises if the run is incomplete and was not opened as partial
    with naming_faults("export format", exporter):
        if clear:
            exporter.clear(out, subset)
        pairs = operator.index(exporter.write(subset, out))
    if exporter.croissant:
        from tamis.exporters.croissant import write_croissant

        write_croissant(exporter, subset, out, pairs)
    return pairs


def _check_export(exporter: Exporter, out: Path, run: Run | None, read: Iterable[str], overwrite: bool) -> None:
    """Raises RunError if an export may not be written to a path; see `check_target` and `check_own`."""
    from tamis.exporters.croissant import croissant_path, earlier
    from tamis.store.subset import is_subset

    what = f"{exporter.name} export"
    if exporter.ending:
        hint = "for a CSV take to_pandas().to_csv(...) in Python" * (exporter.name == "parquet")
        check_ending(out, exporter.ending, hint=hint)

    def ours(path: Path) -> bool:  # a subset is not an export, even if another package's exporter claims it
        with naming_faults("export format", exporter):
            return not is_subset(path) and exporter.wrote(path, run)

    if not exporter.ending and out.is_dir():
        check_own(out, what=what, marks=["*"] if exporter.wrote(out, run) else [], option="OUT")
        whole = os.path.realpath(out)
        if overwrite and (inside := [one for one in read if f"{os.path.realpath(one)}/".startswith(f"{whole}/")]):
            raise RunError(f"{out} holds {inside[0]}, which this command reads: choose another folder")
    else:
        check_target(out, what=what, ours=ours, overwrite=overwrite, read=read)
    if exporter.croissant:
        facts = croissant_path(out)
        try:
            check_target(facts, what="description", ours=lambda path: bool(earlier(path)), overwrite=True, read=read)
        except RunError as error:
            raise RunError(f"{error}. Without the export's setting 'croissant' it is not written") from None


def report(
    run: PathLike | Run,
    subsets: Sequence[PathLike | Subset] = (),
    *,
    out: PathLike,
    partial: bool = False,
    overwrite: bool = False,
) -> Path:
    """Writes one self-contained HTML page: facts of the pool, funnels, histograms, galleries, overlaps, rejects.

    Args:
        run: a run folder.
        subsets: subsets of this run, as files or objects; the first few get galleries.
        out: the page.
        partial: report the finished shards of an incomplete run; the page then says so at its top.
        overwrite: replace an earlier page; one in the run folder is replaced anyway.

    Raises:
        RunError: the run lacks shards, or the page cannot be written.
    """
    from tamis.reporting.page import check_page, write_report

    page = output_path(out)
    opened = open_run(run, partial=partial)
    check_page(page, overwrite=overwrite, read=opened.pool_files)
    return write_report(opened, _loaded(subsets, opened), page, overwrite=overwrite)


def _loaded(subsets: Iterable[PathLike | Subset], run: Run) -> list[Subset]:
    from tamis.store.subset import Subset

    return [one if isinstance(one, Subset) else Subset.load(one, run) for one in subsets]


def explore(
    run: PathLike | Run, subsets: Sequence[PathLike | Subset] = (), *, port: int = 0, partial: bool = False
) -> Server:
    """Opens a run in a local web page. It chooses rows with `select`, so page and command agree.

    Args:
        run: a run folder.
        subsets: subsets of this run to compare, as files or objects.
        port: on the loopback interface; 0 for any free one.
        partial: show the finished shards of an incomplete run.

    Returns:
        The server. As the last line of a cell of a notebook it starts, and the page is below the cell; elsewhere call
        `start()`, or `serve()`, which answers until it is interrupted, and open its `address`. `selected` holds the
        uids of the pairs that are tagged, or inside the lasso, in the page; `close()` stops it.

    Raises:
        RunError: the run lacks shards, a subset belongs to another run, or the port is taken.
        DependencyError: the extra `explore` is not installed.
    """
    from tamis.explore.columns import CachedRun
    from tamis.explore.images import Images
    from tamis.explore.pages import Pages
    from tamis.explore.queries import Explorer
    from tamis.explore.server import Server

    opened = CachedRun(run.path if isinstance(run, Run) else run, partial=partial)
    opened.check_complete()
    chosen = _loaded(subsets, opened)
    for one in chosen:
        if one.run.path.resolve() != opened.path.resolve() or one.keep.size != len(opened):
            raise RunError(f"the subset {one.name!r} is of {one.run.path}, or of other rows: choose it again")
    choose = partial_of(select, any_model=True, partial=partial)  # the page says which models it chose by
    explorer = Explorer(opened, chosen, choose)
    return Server(Pages(explorer, Images(opened)), port=port)


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
        workers, engine, grow, compute: as `score` takes them.
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
        StopError: nothing could be done; see `tamis.errors`.
    """
    chosen = load(recipe, settings)
    how: dict[str, Any] = {"workers": workers, "engine": engine, "grow": grow, "quiet": quiet, **compute}
    scoring = _check_recipe(chosen, recipe, overwrite, **how)
    report_result = on_result or (lambda result: None)
    if lazy and chosen.selects:
        from tamis.lazy import plan_lazily, score_lazily

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
        subset.save(run.path / "subsets" / f"{chosen.name}.parquet")
        report_result(subset)
        for exporter, out in chosen.exports:
            again = overwrite or are_outputs(run.path, [out])
            with note_outputs(run.path, [out]):
                pairs = _write_export(exporter, subset, out, overwrite=again, clear=overwrite)
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
    from tamis.reporting.page import facts_path

    return [Path(page), facts_path(Path(page))]


def _check_recipe(recipe: Recipe, source: RecipeLike | None, overwrite: bool, **how: Any) -> Scoring:
    """Returns what scores a recipe that `run_recipe` can execute; raises if it cannot. `how`: see `Scoring`."""
    from tamis.selectors.outcome import check_files

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
    from tamis.reporting.page import check_page

    if run is not None:
        read = [*read, *run.pool_files]
    taken: set[str] = set()
    for exporter, out in recipe.exports:
        if os.path.realpath(out) in taken:
            raise RecipeError(f"the recipe {recipe.name!r} has two exports to {out}: give each its own path")
        taken.add(os.path.realpath(out))
        _check_export(exporter, out, run, read, overwrite or (run is not None and are_outputs(run.path, [out])))
    if recipe.report:
        pages = _pages(recipe.report)
        check_page(pages[0], overwrite=overwrite or (run is not None and are_outputs(run.path, pages)), read=read)
