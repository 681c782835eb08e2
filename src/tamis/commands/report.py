"""Writes the page about a run and its subsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tamis.core.errors import RunError
from tamis.core.files.storage import output_path
from tamis.recipes.recipe import PathLike
from tamis.runs import Run, open_run

if TYPE_CHECKING:
    from tamis.runs.subset import Subset


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
    from tamis.reports.page import write_report

    opened = open_run(run, partial=partial)
    return write_report(opened, load_subsets(subsets, opened), output_path(out), overwrite=overwrite)


def load_subsets(subsets: Iterable[PathLike | Subset], run: Run) -> list[Subset]:
    """Returns subsets of a run; raises RunError for one of another run, or of other rows."""
    from tamis.runs.subset import Subset

    loaded = [subset if isinstance(subset, Subset) else Subset.load(subset, run) for subset in subsets]
    for subset in loaded:
        if subset.run.path.resolve() != run.path.resolve() or subset.keep.size != len(run):
            what = f"{subset.run.path}, or of other rows, not of {run.path}"
            raise RunError(f"the subset {subset.name!r} is of {what}: select it again")
    return loaded
