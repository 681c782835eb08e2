"""Writes a subset for a trainer."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tamis.core.errors import RunError, naming_faults
from tamis.core.files.targets import check_ending, check_own, check_target
from tamis.core.records import build
from tamis.recipes.recipe import PathLike
from tamis.runs import Run, open_run

if TYPE_CHECKING:
    from tamis.exports import Exporter
    from tamis.runs.subset import Subset


def export(subset: Subset, to: str, out: PathLike, *, overwrite: bool = False, **settings: Any) -> int:
    """Writes a subset for a trainer, and returns the number of pairs written.

    Args:
        subset: what to write.
        to: a format of `tamis list exports`, such as "npy" (DataComp) or "webdataset".
        out: the file, or the folder for webdataset and huggingface.
        overwrite: replace what the same format wrote there for another subset. The same subset's shards are kept.
        settings: the format's own, listed in docs/recipes.md; `croissant=True` also writes metadata next to `out`.

    Raises:
        RecipeError: an unknown format or setting.
        RunError: `out` cannot be written to, contains something else, or has another format's extension; or the
            pool's files have changed.
    """
    from tamis.exports import exporter_class

    exporter: Exporter = build(exporter_class(to), settings, f"export, {to}")
    return write_export(exporter, subset, Path(out).expanduser(), overwrite=overwrite, clear=overwrite)


def write_export(exporter: Exporter, subset: Subset, out: Path, *, overwrite: bool, clear: bool) -> int:
    """Writes a subset with an exporter; `clear` takes away first what the same format wrote there."""
    check_export(exporter, out, subset.run, subset.run.pool_files, overwrite)
    open_run(subset.run)  # raises if the run is incomplete and was not opened as partial
    with naming_faults("export format", exporter):
        if clear:
            exporter.clear(out, subset)
        pairs = operator.index(exporter.write(subset, out))
    if exporter.croissant:
        from tamis.exports.croissant import write_croissant

        write_croissant(exporter, subset, out, pairs)
    return pairs


def check_export(exporter: Exporter, out: Path, run: Run | None, read: Iterable[str], overwrite: bool) -> None:
    """Raises RunError if an export may not be written to a path; see `check_target` and `check_own`."""
    from tamis.exports.croissant import croissant_path, read_croissant
    from tamis.runs.subset import is_subset

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
        if overwrite and (inside := [path for path in read if f"{os.path.realpath(path)}/".startswith(f"{whole}/")]):
            raise RunError(f"{out} holds {inside[0]}, which this command reads: choose another folder")
    else:
        check_target(out, what=what, ours=ours, overwrite=overwrite, read=read)
    if exporter.croissant:
        path = croissant_path(out)
        try:
            check_target(
                path, what="description", ours=lambda path: bool(read_croissant(path)), overwrite=True, read=read
            )
        except RunError as error:
            raise RunError(f"{error}. Without the export's setting 'croissant' it is not written") from None
