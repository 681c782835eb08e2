"""Views of the explorer that have a name: `views.json` in the run folder, each with the fragment of the page's address.

Several pages may save at once: each reads the file again under the run's lock, changes its own entry and replaces it.
"""

from __future__ import annotations

from tamis.core.errors import RecipeError, RunError
from tamis.core.files.checked import read_record, write_record
from tamis.runs import Run
from tamis.runs.claims import lock_run

#: Maximum number of characters of a name, and of an address (a lasso lists its points).
_NAME, _ADDRESS = 60, 200_000


def read_views(run: Run) -> dict[str, str]:
    """Returns {name: address} of a run's views, in the order of their names; DamageError if the file has changed."""
    path = run.path / "views.json"
    return dict(sorted(read_record(path)["views"].items())) if path.is_file() else {}


def save_view(run: Run, name: str, address: str | None, *, replace: bool = False) -> dict[str, str]:
    """Saves a view, or deletes it if the address is None; returns all views.

    Raises:
        RecipeError: the name is empty, too long, has invisible characters, or is taken (without `replace`).
        RunError: another command holds the run, the run is gone, or its folder is not writable.
    """
    name = name.strip()
    if not name or len(name) > _NAME or not name.isprintable():
        raise RecipeError(f"a view's name has 1 to {_NAME} visible characters, got {name[:100]!r}")
    if address is not None and len(address) > _ADDRESS:
        raise RecipeError(f"the view takes {len(address):,} characters, at most {_ADDRESS:,} can be saved")
    if not (run.path / "run.json").is_file():  # else we would create a folder where the run was
        raise RunError(f"{run.path} is gone: open the run again where it is now")
    with lock_run(run.path, doing="saves a view"):
        views = read_views(run)
        if address is not None and name in views and not replace:
            raise RecipeError(f"there is a view {name!r} already: replace it, or choose another name")
        views = {each: text for each, text in {**views, name: address}.items() if text is not None}
        write_record(run.path / "views.json", {"views": views})
    return read_views(run)
