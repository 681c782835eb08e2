"""`tamis lab`: draws pools and zero-shot tasks whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tamis.cli.options import split
from tamis.cli.printing import counted, say, stop, stopping_at


def make_pool(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the shards.")],
    pairs: Annotated[int, typer.Option(min=1, help="Number of pairs.")] = 2000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes.")] = 0,
    mix: Annotated[
        str, typer.Option(help="laion: kinds in the shares of LAION; uniform: equal shares; hard: half hard kinds.")
    ] = "laion",
    shares: Annotated[
        str | None, typer.Option(metavar="KIND=SHARE,...", help="Shares of kinds, such as visual=0.5,wrong_colour=0.1.")
    ] = None,
    shard_size: Annotated[int, typer.Option(min=1, help="Pairs per shard.")] = 1000,
    workers: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 1,
) -> None:
    """Draw a pool whose truth is known: scenes with captions, painted text, mismatches, duplicates and broken files.

    Example: tamis lab make-pool demo/pool --pairs 2000 --seed 0
    """
    from tamis.lab import make_pool as make

    own: Any = None
    if shares is not None:
        own = {}
        for word in split(shares):
            kind, _, share = (part.strip() for part in word.partition("="))
            try:
                own[kind] = float(share)
            except ValueError:
                stop(f"--shares takes kind=share with commas, such as visual=0.5,text_only=0.5; got {word!r}")
    with stopping_at(ValueError):
        summary = make(out, pairs=pairs, seed=seed, mix=mix, shard_size=shard_size, workers=workers, shares=own)  # type: ignore[arg-type]
    say(f"wrote {pairs:,} pairs to {out}: {counted({kind: count for kind, count in summary.kinds.items() if count})}")


def make_tasks(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the tasks' folders.")],
    size: Annotated[int, typer.Option(min=1, help="Images of each task.")] = 480,
    seed: Annotated[int | None, typer.Option(min=0, help="Another seed draws other images.")] = None,
) -> None:
    """Draw five zero-shot tasks in clip-benchmark's layout: objects, colours, places, reading, retrieval.

    Example: tamis lab make-tasks lab-tasks --size 480
    """
    from tamis.lab.tasks import TASKS_SEED
    from tamis.lab.tasks import make_tasks as make

    make(out, size=size, seed=TASKS_SEED if seed is None else seed)
    say(f"wrote 5 tasks of {size:,} images each to {out}")
