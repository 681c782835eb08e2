"""The report: one page of HTML that says what a pool is like, what each recipe keeps of it, and what it drops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tamis.errors import RunError
from tamis.pool import Pool
from tamis.reporting.facts import gather
from tamis.reporting.page import render
from tamis.store import Run
from tamis.store.atomic import writing
from tamis.store.subset import Subset

__all__ = ["write_report"]


def write_report(run: Run, subsets: Sequence[Subset], out: Path, pool: Pool | None) -> Path:
    """Writes the report of a run and of subsets of it: a single file that loads nothing and runs no script.

    Args:
        run: a run.
        subsets: what was chosen from it.
        out: the page.
        pool: where pictures come from; None: the page has none.

    Returns:
        `out`.

    Raises:
        RunError: a subset is another run's, a part of the run is damaged, or the page cannot be written.
    """
    for subset in subsets:
        if subset.run.path.resolve() != run.path.resolve():
            raise RunError(
                f"the subset {subset.name!r} was chosen from {subset.run.path}, and the report is of {run.path}: "
                "select from that run again"
            )
    page = render(gather(run, subsets, pool), _recipe(run))
    with writing(out) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return out


def _recipe(run: Run) -> str:
    try:
        return (run.path / "recipe.yaml").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
