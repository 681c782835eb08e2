"""Writes the page about a run and its subsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial as partial_of
from pathlib import Path
from typing import TYPE_CHECKING

from tamis.commands.select import select
from tamis.core.errors import RunError
from tamis.core.files.storage import output_path
from tamis.recipes.names import is_recipe
from tamis.recipes.recipe import PathLike
from tamis.runs import Run, open_run

if TYPE_CHECKING:
    from tamis.reports.explore.queries import Explorer
    from tamis.runs.subset import Subset


def report(
    run: PathLike | Run,
    subsets: Sequence[PathLike | Subset] = (),
    *,
    out: PathLike,
    title: str = "",
    chosen: str | None = None,
    interactive: bool = False,
    pairs: int = 5000,
    partial: bool = False,
    overwrite: bool = False,
) -> Path:
    """Writes one self-contained HTML page: facts of the pool, funnels, histograms, galleries, overlaps, rejects.

    Args:
        run: a run folder.
        subsets: subsets of this run, as files or objects; the first few get galleries.
        out: the page.
        title: of the page, in place of the run's name.
        chosen: name of the subset that its first page, which prints on one sheet, is about; the first if None.
        interactive: write the explorer instead, with sliders, filters and map, for drawn pairs of the run.
        pairs: how many to draw for it (100 or more): half at random, half near the subsets' cuts and disagreements.
        partial: report the finished shards of an incomplete run; the page then says so at its top.
        overwrite: replace an earlier page; one in the run folder is replaced anyway.

    Raises:
        RunError: the run lacks shards or has no pair to show, or the page cannot be written.
    """
    if interactive:
        from tamis.reports.explore.static import write_static

        if title or chosen is not None:
            raise ValueError("title and chosen are of the page, not of the explorer: leave them out with interactive")
        explorer, loaded = open_explorer(run, subsets, partial=partial)
        return write_static(explorer, loaded, output_path(out), pairs=pairs, overwrite=overwrite)

    from tamis.reports.page import write_report

    opened = open_run(run, partial=partial)
    return write_report(
        opened, load_subsets(subsets, opened), output_path(out), title=title, chosen=chosen, overwrite=overwrite
    )


def open_explorer(
    run: PathLike | Run, subsets: Sequence[PathLike | Subset], *, partial: bool
) -> tuple[Explorer, list[Subset]]:
    """Returns what answers about a run, and its subsets; the answers choose rows with `select`."""
    from tamis.reports.explore.cached_run import CachedRun
    from tamis.reports.explore.queries import Explorer

    if isinstance(run, Run):
        partial = partial or run.partial
        run = run.path
    opened = CachedRun(run, partial=partial)
    opened.check_complete()
    choose = partial_of(select, any_model=True, partial=partial)  # the page says which models it chose by
    given = [choose(opened, str(each)) if _names_recipe(each, opened) else each for each in subsets]
    loaded = load_subsets(given, opened)
    return Explorer(opened, loaded, choose), loaded


def _names_recipe(given: PathLike | Subset, run: Run) -> bool:
    """Whether it names a recipe, and no file that has a shipped recipe's name."""
    if not isinstance(given, str | Path):
        return False
    path = Path(given)
    return is_recipe(str(path), run.path) and (path.suffix in (".yaml", ".yml") or not path.exists())


def load_subsets(subsets: Iterable[PathLike | Subset], run: Run) -> list[Subset]:
    """Returns subsets of a run; raises RunError for one of another run, or of other rows."""
    from tamis.runs.subset import Subset

    loaded = [subset if isinstance(subset, Subset) else Subset.load(subset, run) for subset in subsets]
    for subset in loaded:
        if subset.run.path.resolve() != run.path.resolve() or subset.keep.size != len(run):
            what = f"{subset.run.path}, or of other rows, not of {run.path}"
            raise RunError(f"the subset {subset.name!r} is of {what}: select it again")
    return loaded
