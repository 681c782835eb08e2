"""The report: one page of HTML that says what a pool is like, what each recipe keeps of it, and what it drops.

`sections/` holds a file per section of the page, `context.py` what several of them share. What the page says is
written beside it as JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tamis.errors import RunError
from tamis.pool import Pool
from tamis.reporting.context import Context
from tamis.reporting.facts_json import BEGINS, as_json
from tamis.reporting.page import gather, render
from tamis.store import Run
from tamis.store.atomic import writing
from tamis.store.mirror import named
from tamis.store.subset import Subset, partial_facts
from tamis.version import VERSION

__all__ = ["facts_path", "write_report"]


def write_report(run: Run, subsets: Sequence[Subset], out: Path, pool: Pool | None) -> Path:
    """Writes the report of a run and of subsets of it: a single file that loads nothing and runs no script.

    What it says is written beside it as JSON, without pictures: `report.html` gets `report.json`.

    Args:
        run: a run.
        subsets: what was chosen from it.
        out: the page.
        pool: where pictures come from; None: the page has none.

    Returns:
        `out`.

    Raises:
        RunError: a subset is another run's, a part of the run is damaged, the page cannot be written, or another
            file has the name that the facts get.
    """
    for subset in subsets:
        if subset.run.path.resolve() != run.path.resolve():
            raise RunError(
                f"the subset {subset.name!r} was chosen from {named(subset.run.path)}, and the report is of "
                f"{named(run.path)}: select from that run again"
            )
    beside = facts_path(out)
    if beside.exists() and not _is_ours(beside):
        raise RunError(
            f"{beside} is there and holds no facts of a report, which get this name beside {out.name}: give the page "
            "another name, or move that file"
        )
    facts = gather(Context(run, subsets, pool))
    lacks = partial_facts(run)  # on the first line, where there is anything to say
    said = {
        **({"partial": lacks} if lacks else {}),
        "tamis": VERSION,
        "heading": facts.heading,
        "notes": facts.notes,
        "sections": facts.sections,
    }
    with writing(beside) as aside, writing(out) as temporary:  # where the page cannot be written, there are no facts
        aside.write_text(as_json(said), encoding="utf-8")
        temporary.write_text(render(facts), encoding="utf-8")
    return out


def facts_path(page: Path) -> Path:
    """Returns where the facts of a page are written: report.html gets report.json."""
    if page.suffix.lower() in (".html", ".htm"):
        return page.with_suffix(".json")
    return page.with_name(f"{page.name}.json")


def _is_ours(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(BEGINS)) == BEGINS.encode()
    except OSError:
        return False
