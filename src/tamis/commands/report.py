"""Writes the page about a run and its subsets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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
    from tamis.reports.page import check_page, write_report

    page = output_path(out)
    opened = open_run(run, partial=partial)
    check_page(page, overwrite=overwrite, read=opened.pool_files)
    return write_report(opened, load_subsets(subsets, opened), page, overwrite=overwrite)


def load_subsets(subsets: Iterable[PathLike | Subset], run: Run) -> list[Subset]:
    from tamis.runs.subset import Subset

    return [one if isinstance(one, Subset) else Subset.load(one, run) for one in subsets]
