"""The head of the page: which run it is of, and how large it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from tamis.reporting.context import Context
from tamis.reporting.formats import plural, share, when
from tamis.reporting.html import Markup, join, tag

#: Paths of the pool that are shown.
_PATHS = 4


@dataclass(frozen=True, kw_only=True)
class HeadingFacts:
    """Which run the page is of.

    Attributes:
        name: the run folder's.
        paths: where the pool lay when it was scored.
        kind: of pool.
        created: when the run was begun, in seconds since 1970.
        tamis: the version that began it.
        readable: rows whose status is `ok`.
    """

    name: str
    paths: Sequence[str]
    kind: str
    created: float
    tamis: str
    rows: int
    readable: int
    shards: int
    subsets: int


def gather(context: Context) -> HeadingFacts:
    """Reads what run.json says of the run."""
    run = context.run
    pool = run.facts["pool"]
    paths = pool["path"] if isinstance(pool["path"], list) else [pool["path"]]
    return HeadingFacts(
        name=PurePath(str(run.path.resolve())).name,
        paths=[str(path) for path in paths],
        kind=str(pool.get("kind", "pool")),
        created=float(run.facts.get("created", 0)),
        tamis=str(run.facts.get("tamis", "?")),
        rows=context.rows,
        readable=context.statuses.get("ok", 0),
        shards=len(run.shards),
        subsets=len(context.subsets),
    )


def draw(facts: HeadingFacts, now: float) -> Markup:
    """Draws the head of the page, with the time at which it is made."""
    tiles = [
        plural(facts.rows, "pair"),
        f"{share(facts.readable, facts.rows)} readable",
        plural(facts.shards, "shard"),
        plural(facts.subsets, "subset"),
    ]
    begun = f"run begun {when(facts.created)} with tamis {facts.tamis}"
    more = " …" if len(facts.paths) > _PATHS else None
    return tag(
        "header",
        tag("p", "Tamis report", class_="overline"),
        tag("h1", tag("bdi", facts.name)),
        tag("p", [join(" ", tag("code", path)) for path in facts.paths[:_PATHS]], more, class_="meta"),
        tag("p", " · ".join([*tiles, facts.kind, begun, f"report of {when(now)}"]), class_="meta"),
    )
