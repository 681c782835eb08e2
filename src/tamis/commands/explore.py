"""Serves the explorer of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tamis.commands.report import open_explorer
from tamis.recipes.recipe import PathLike
from tamis.runs import Run

if TYPE_CHECKING:
    from tamis.reports.explore.server import Server
    from tamis.runs.subset import Subset


def explore(
    run: PathLike | Run, subsets: Sequence[PathLike | Subset] = (), *, port: int = 0, partial: bool = False
) -> Server:
    """Opens a run in a local web page. It chooses rows with `select`, so page and command agree.

    Args:
        run: a run folder.
        subsets: subsets of this run to compare, as files, names or objects; or recipes, by name or as .yaml files. The
            page opens with a comparison of the first five, if there are several.
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
    from tamis.reports.explore.image_cache import Images
    from tamis.reports.explore.pages import Pages
    from tamis.reports.explore.server import Server

    explorer, _ = open_explorer(run, subsets, partial=partial)
    return Server(Pages(explorer, Images(explorer.run)), port=port)
