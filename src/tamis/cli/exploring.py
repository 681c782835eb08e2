"""`tamis explore`: the page on which one looks at a run."""

from __future__ import annotations

from typing import Annotated

import typer

from tamis.cli.options import Partial, RunPath, Subsets
from tamis.cli.printing import say


def explore(
    run: RunPath,
    subsets: Subsets = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Of this machine; 0 takes a free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address and open nothing.")] = False,
    partial: Partial = False,
) -> None:
    """Open a page on which one looks at a run: move a cut, see what falls, label pairs, compare recipes.

    It serves this machine only, to whoever has the address that it prints; Ctrl-C ends it.

    Example: tamis explore runs/mine basic.parquet
    """
    from tamis import api

    server = api.explore(run, subsets or [], port=port, partial=partial)
    print(server.address, flush=True)
    say("Ctrl-C ends it")
    if not no_browser:
        server.open_browser()
    server.serve()
