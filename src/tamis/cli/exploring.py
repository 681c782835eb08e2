"""`tamis look` and `tamis explore`: a first page about a pool, and the interactive page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tamis.cli.options import (
    AsJson,
    Overwrite,
    Partial,
    PoolSettings,
    Quiet,
    RunPath,
    Subsets,
    in_a_folder,
)
from tamis.cli.printing import print_json, print_table, say


def look(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="Folder, glob, brace range, file or fsspec URL.")],
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("look.html"),
    pairs: Annotated[int, typer.Option(min=1, help="Pairs to sample.")] = 2000,
    shards: Annotated[int, typer.Option(min=1, help="Most shards to sample from.")] = 20,
    seed: Annotated[int, typer.Option(help="Another seed takes other shards.")] = 0,
    reading: PoolSettings,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Look at a pool for the first time: cheap signals of some of its pairs, and a report that proposes recipes.

    It reads the first rows of random shards, downloads no model and keeps no run folder.

    Example: tamis look pool --out look.html
    """
    from dataclasses import asdict

    import tamis
    from tamis import recipe as recipes
    from tamis.pool import PoolSpec

    spec = recipes.build(PoolSpec, {**reading, "path": pool}, "look")
    found = tamis.look(
        spec, out=in_a_folder(out), pairs=pairs, shards=shards, seed=seed, overwrite=overwrite, quiet=quiet
    )
    if as_json:
        print_json({**asdict(found), "page": str(found.page)})
    else:
        rows = [
            {"recipe": one.recipe, "kept": f"{one.share[0]:.0%}" if one.share else "", "why": one.why}
            for one in found.proposals
        ]
        print_table(rows)
    say(
        f"{found.pairs:,} pairs, the first rows of {found.shards:,} of {found.of:,} shards, in {found.seconds:,.0f} s; "
        f"wrote {found.page}"
    )
    for name, error in found.failures.items():
        say(f"shard {name} failed: {error}")
    if found.failures:
        raise typer.Exit(1)


def explore(
    run: RunPath,
    subsets: Subsets = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address, but open no browser.")] = False,
    partial: Partial = False,
) -> None:
    """Explore a run in the browser: move a threshold, see which pairs go, label pairs, compare recipes.

    Only this machine can open the page, with the address that the command prints. Ctrl-C stops it.

    Example: tamis explore runs/mine basic.parquet
    """
    from tamis import api

    server = api.explore(run, subsets or [], port=port, partial=partial)
    print(server.address, flush=True)
    say("Ctrl-C stops it")
    if not no_browser:
        server.open_browser()
    server.serve()
