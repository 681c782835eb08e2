"""The report: one page of HTML that says what a pool is like, what each recipe keeps of it, and what it drops.

`page.py` puts it together from a module in `sections/` and a template per section; `context.py` has what they share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from tamis import __version__
from tamis.errors import RunError
from tamis.reporting.context import Context
from tamis.reporting.page import BEGINS, GENERATOR, as_json, gather, render
from tamis.storage import writing
from tamis.store import Run
from tamis.store.subset import Subset, partial_facts
from tamis.store.targets import check_ending, check_target

__all__ = ["check_page", "facts_path", "write_report"]


def write_report(run: Run, subsets: Sequence[Subset], out: Path, *, overwrite: bool = False) -> Path:
    """Writes the report of a run and of subsets of it: a single file that loads nothing and runs no script.

    The same facts go into a JSON file next to it, without the images: `report.html` gets `report.json`.
    Images come from the run's pool. Returns the path of the page.

    Raises:
        RunError: a subset belongs to another run, a file of the run is damaged, or the page cannot be written.
    """
    check_page(out, overwrite=overwrite, read=run.pool_files)
    for subset in subsets:
        if subset.run.path.resolve() != run.path.resolve():
            raise RunError(f"the subset {subset.name!r} is of {subset.run.path}, not of {run.path}: select it again")
    facts = gather(Context(run, subsets))
    partly = partial_facts(run)  # comes first in the file if shards are missing
    text = as_json({**({"partial": partly} if partly else {}), "tamis": __version__, **facts})
    with writing(facts_path(out)) as aside, writing(out) as temporary:
        aside.write_text(text, encoding="utf-8")
        temporary.write_text(render(facts), encoding="utf-8")
    return out


def facts_path(page: Path) -> Path:
    """Returns the path of the JSON file of a page: report.json for report.html."""
    if page.suffix.lower() in (".html", ".htm"):
        return page.with_suffix(".json")
    return page.with_name(f"{page.name}.json")


def check_page(page: Path, *, overwrite: bool = False, read: Iterable[str] = ()) -> None:
    """Checks the page's file ending, and that neither it nor its JSON file replaces a file of another program."""
    check_ending(page, "html", "htm")
    kinds = {page: ("page", GENERATOR), facts_path(page): ("facts file of a page", BEGINS)}
    for path, (what, begins) in kinds.items():
        ours = partial(_begins, text=begins)
        check_target(path, what=what, ours=ours, overwrite=overwrite, read=read, of_runs="")


def _begins(path: Path, text: str) -> bool:
    try:
        with path.open("rb") as file:
            return text.encode() in file.read(1024)
    except OSError:
        return False
