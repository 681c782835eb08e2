"""`tamis lab`: draws pools and zero-shot tasks whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from tamis.cli.options import split
from tamis.cli.printing import counted, say, stop, stopping_at


def make_pool(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the shards.")],
    pairs: Annotated[int, typer.Option(min=1, help="How many pairs.")] = 2000,
    seed: Annotated[int, typer.Option(help="Another seed makes another pool; the same one the same bytes.")] = 0,
    mix: Annotated[
        str, typer.Option(help="laion: kinds in the shares of LAION; uniform: equal shares; hard: half hard kinds.")
    ] = "laion",
    shares: Annotated[
        str | None,
        typer.Option(metavar="KIND=SHARE,...", help="Own shares of kinds, as visual=0.5,wrong_colour=0.1."),
    ] = None,
    shard_size: Annotated[int, typer.Option(min=1, help="Pairs per shard.")] = 1000,
    workers: Annotated[int, typer.Option(min=1, help="Processes, each at a shard of its own.")] = 1,
) -> None:
    """Draw a pool whose truth is known: scenes with captions, painted text, mismatches, duplicates and broken files.

    Example: tamis lab make-pool demo/pool --pairs 2000 --seed 0
    """
    from tamis.errors import unknown
    from tamis.lab import make_pool as make
    from tamis.lab.samples import Mix

    if mix not in get_args(Mix):
        stop(unknown("mix", mix, get_args(Mix)))
    given: Any = _shares(shares) if shares is not None else None
    with stopping_at(ValueError):
        summary = make(out, pairs=pairs, seed=seed, mix=mix, shard_size=shard_size, workers=workers, shares=given)  # type: ignore[arg-type]
    say(f"wrote {pairs:,} pairs to {out}: {counted({kind: count for kind, count in summary.kinds.items() if count})}")


def _shares(text: str) -> dict[str, float]:
    """Returns the shares of "visual=0.5,text_only=0.5" by kind; what they may be is the lab's to say."""
    shares: dict[str, float] = {}
    for word in split(text):
        kind, _, share = (part.strip() for part in word.partition("="))
        if kind in shares:
            stop(f"--shares gives {kind} two shares: {text!r}")
        try:
            shares[kind] = float(share)
        except ValueError:
            stop(f"--shares takes kind=share, separated by commas, such as visual=0.5,text_only=0.5; got {word!r}")
    return shares


def make_tasks(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the tasks' folders.")],
    size: Annotated[int, typer.Option(min=1, help="Images of each task.")] = 480,
    seed: Annotated[int | None, typer.Option(min=0, help="Another seed draws others.")] = None,
) -> None:
    """Draw five zero-shot tasks in clip-benchmark's layout: objects, colours, places, reading, retrieval.

    Example: tamis lab make-tasks lab-tasks --size 480
    """
    from tamis.lab.tasks import TASKS_SEED
    from tamis.lab.tasks import make_tasks as make

    make(out, size=size, seed=TASKS_SEED if seed is None else seed)
    say(f"wrote 5 tasks of {size:,} images each to {out}")
