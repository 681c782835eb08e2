"""`score` and `plan`: what a pool's run must hold, and computing what is missing."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from tamis.core.compute import Compute
from tamis.core.errors import DependencyError, RecipeError, RunError, check_fraction, plural
from tamis.core.files.storage import location
from tamis.core.html import html_table
from tamis.core.types import Device, Samples, Signal, references
from tamis.engines.plan import Plan, Within
from tamis.models.device import device_for
from tamis.models.reference import is_here
from tamis.pools import Pool, PoolSpec, open_pool
from tamis.pools.open import with_orientation
from tamis.pools.source import IMAGE_EXTENSIONS
from tamis.recipes.derived import Derived
from tamis.recipes.names import is_recipe
from tamis.recipes.recipe import PathLike, Recipe, RecipeLike, by_kind, load, signal_from
from tamis.runs import Run, manifest, open_run, parts
from tamis.signals.graph import Executor, Identities, run_on_device, topological

if TYPE_CHECKING:
    from tamis.engines.engine import Engine
    from tamis.runs.subset import Subset

SignalLike = str | Signal | Derived | Mapping[str, Any]

log = logging.getLogger(__name__)


def score(
    pool: PathLike | PoolSpec,
    *,
    run: PathLike,
    signals: Sequence[SignalLike] = (),
    recipe: RecipeLike | None = None,
    within: PathLike | Subset | None = None,
    keep: Sequence[str] = (),
    workers: int | None = None,
    engine: Engine | None = None,
    max_error_rate: float | None = None,
    grow: bool = False,
    quiet: bool = False,
    **compute: Unpack[Compute],
) -> Run:
    """Scores every pair of a pool. Computes only what is missing, so the same call continues an interrupted one.

    Args:
        pool: folder, glob, brace range, file or fsspec URL; or a `PoolSpec`.
        run: the run folder, new or not; a path, or an fsspec URL (docs/pools-on-stores.md).
        signals: signals by name, as objects, or as recipes write them: `{"clip": {"model": ...}}`.
        recipe: a recipe whose signals (and kept features) are computed too.
        within: score only the rows of a subset of the run, which is a file, a name or an object; or of a recipe that
            chooses by what the run holds. Other rows have no value, with the reason "not asked". A recipe may say it
            of single signals, which are then scored last. A later call computes only what is missing.
        keep: features to store: "embeddings", "captions" (generated ones), "texts" (read in images). By default the
            embeddings of the first CLIP that scores the run, 2 to 3 KB a pair; "none": not even those.
        workers: processes, each doing one shard at a time; 1 works in this one. None: one per GPU, or 1. With more than
            one worker, each imports your script: put the call under `if __name__ == "__main__":`.
        engine: distributes the shards (`tamis.engines`); None: `workers` processes on this machine.
        max_error_rate: stop if more than this fraction of the shards fail. None: never.
        grow: add the shards of another pool to a run. New shards of the run's own pool need no flag.
        quiet: show no progress.
        compute: device, precision, batch_size and threads; see `tamis.core.compute.Compute`.

    Returns:
        The run; its `failures` are the shards that could not be read completely.

    Raises:
        StopError: nothing could be done, a signal is faulty, or too many shards failed (`core.errors`). Nothing is
            written if the folder holds other files than a run, or the run belongs to another pool.
        UnreachedError: a table of the pool could not be fetched; it may be intact.
        ValueError: `max_error_rate` is not in [0, 1].
    """
    if max_error_rate is not None:
        check_fraction(max_error_rate, "max_error_rate")
    chosen = with_signals(Recipe() if recipe is None else load(recipe), signals, keep)
    return Scoring(
        pool, run, chosen, within=within, workers=workers, engine=engine, grow=grow,
        max_error_rate=max_error_rate, quiet=quiet, **compute,
    ).complete(chosen.signals)  # fmt: skip


Entry = tuple[str, Signal]


class Scoring:
    """Scores a recipe's signals into a run, one group after another; see `score` for the settings."""

    def __init__(
        self, pool: PathLike | PoolSpec | Pool, run: PathLike | Run, recipe: Recipe, *,
        within: PathLike | Subset | None = None, workers: int | None = None, engine: Engine | None = None,
        grow: bool = False, max_error_rate: float | None = None, quiet: bool = False, **compute: Unpack[Compute],
    ) -> None:  # fmt: skip
        from tamis.engines.local import Local

        self.recipe, self.engine, self.grow = recipe, engine or Local(workers), grow
        self.path = run.path if isinstance(run, Run) else location(run)
        self.pool = pool if isinstance(pool, Pool) else open_for(pool, run if isinstance(run, Run) else self.path)
        networks = run_on_device(signal for _, signal in recipe.signals)
        self.identities = Identities(device_for(**compute, away=self.engine.remote, networks=networks))
        self.executor = Executor(self.identities.device)  # passes in this process share models
        self.limits = _limits(recipe, within)
        self.spent = Counter[str](), Counter[str]()  # seconds and pairs by node
        self._how: dict[str, Any] = {"quiet": quiet, "max_error_rate": max_error_rate, "spent": self.spent}

    def make_plan(self, entries: Sequence[Entry], rows: Within | None = None) -> Plan:
        """Returns what the run must hold after some signals are scored, of all rows or of some."""
        keep = self.recipe.keep if rows is None else ()
        return Plan(
            pool=self.pool, signals=tuple(dict.fromkeys(entries)), keep=keep, grow=self.grow,
            within=rows, executor=self.executor, identities=self.identities,
        )  # fmt: skip

    def score(self, entries: Sequence[Entry], rows: Within | None = None, *, forecasts: bool = False) -> Run:
        """Scores some signals, of all rows or of some."""
        from tamis.engines.fill import fill, recipe_entry

        others = [entry for entry in self.recipe.entries if entry not in entries]
        about = {key: value for key, value in self.recipe.text.items() if key != "pool"}
        about["signals"] = [recipe_entry(label, signal, self.limits.get((label, signal))) for label, signal in others]
        about["keep"] = list(self.recipe.keep)
        self.executor.keep(topological([signal for _, signal in entries]))
        return fill(self.path, self.make_plan(entries, rows), about, self.engine, forecasts=forecasts, **self._how)

    def complete(self, entries: Sequence[Entry]) -> Run:
        """Scores some of the recipe's signals within their limits, and adds the derived ones."""
        if self.pool.mixed:
            log.warning("%s", self.pool.mixed)
        for limit, some in self._passes(entries):
            rows = None if limit is None else _rows_of(limit, Run(self.path, partial=True))
            done = self.score(some, rows, forecasts=limit is None or isinstance(limit, str))
        if self.recipe.derived and done.missing_shards:
            names = ", ".join(label or signal.name for label, signal in self.recipe.derived)
            log.warning("not computed, because shards are missing: %s", names)
            return done
        return derive(done, self.recipe) if self.recipe.derived else done

    def _passes(self, entries: Sequence[Entry]) -> Iterable[tuple[Any, list[Entry]]]:
        """Returns each limit with its signals; no limit first: recipes choose by what is scored."""
        passes: dict[Any, tuple[Any, list[Entry]]] = {None: (None, [])}
        for entry in entries:
            limit = self.limits.get(entry)
            key = limit if limit is None or isinstance(limit, str) else id(limit)
            passes.setdefault(key, (limit, []))[1].append(entry)
        return passes.values()

    def preview(self) -> Preview:
        """Returns what `complete` would do; reads the run's files, writes none and loads no model."""
        new, shards, outputs = not (self.path / "run.json").is_file(), len(self.pool.shards), dict[str, MissingOutput]()
        about = ""
        for limit, entries in self._passes(self.recipe.signals):
            try:
                rows = None if limit is None else _rows_of(limit, Run(self.path, partial=True))
            except RunError:
                if not new and not is_recipe(limit, self.path):
                    raise
                rows = None  # a recipe may read what this command adds
            plan = self.make_plan(entries, rows).for_run(self.path)
            tasks, about = plan.tasks(self.path), about or plan.about_kept
            for output in plan.outputs:
                lacking = sum(output in task.outputs for task in tasks)
                outputs.setdefault(output.folder, MissingOutput(output.kind, output.label, output.folder, lacking))
        derived = (
            MissingOutput("derived", label or signal.name, signal.name, self._shards_to_derive(signal))
            for label, signal in self.recipe.derived
        )
        return Preview(
            kind=self.pool.kind, shards=shards, run=self.path, new=new, device=self.identities.device,
            missing=(*outputs.values(), *derived), kept=about,
        )  # fmt: skip

    def _shards_to_derive(self, signal: Derived) -> int:
        """Returns how many shards lack a derived signal: all, as long as the run lacks rows or columns."""
        from tamis.commands.select import columns_of_embeddings
        from tamis.recipes.derived.columns import count_lacking

        shards = len(self.pool.shards)
        try:
            run = Run(self.path)
            columns = {**columns_of_embeddings(self.recipe.signals, run), **self.recipe.columns}
            return shards if len(run.shards) < shards else count_lacking(run, signal, columns)
        except RunError:
            return shards


def _limits(recipe: Recipe, within: PathLike | Subset | None) -> dict[Any, Any]:
    """Returns the rows to score of signals that are not scored in full: a subset, its name or file, or a recipe.

    Raises RecipeError if features would be stored of some rows.
    """
    limits: dict[Any, Any] = {entry: rows for entry, rows in recipe.within.items() if entry in recipe.signals}
    if within is not None:
        usual = os.fspath(within) if isinstance(within, str | os.PathLike) else within
        limits = {entry: limits.get(entry, usual) for entry in recipe.signals}
    for entry, rows in limits.items():  # recipe.yaml may be used in another folder
        limits[entry] = os.path.abspath(rows) if isinstance(rows, str) and os.path.isfile(rows) else rows
    full = topological([entry[1] for entry in recipe.signals if entry not in limits])
    for label, signal in limits:
        for node in topological([signal], full):
            if node.stored_as in recipe.keep:
                raise RecipeError(f"{label or signal.name}: leave out 'within' or keep no {node.stored_as}")
    return limits


def _rows_of(within: str | Subset, run: Run) -> Within:
    """Returns the rows of a subset of a run, or of what a recipe chooses from it."""
    from tamis.commands.select import select
    from tamis.runs.subset import Subset

    name = within if isinstance(within, str) else ""
    if isinstance(within, str):
        within = select(run, within) if is_recipe(within, run.path) else Subset.load(within, run)
    if within.run.path.resolve() != run.path.resolve():
        raise RunError(f"the subset {within.name!r} belongs to {within.run.path}, not to {run.path}")
    rows = {shard: np.zeros(size, bool) for shard, size in zip(run.shards, run.sizes, strict=True)}
    rows |= {shard: within.keep[span] for shard, span in within.run.row_ranges.items()}
    return Within(within.name, rows, name)


def derive(run: PathLike | Run, signals: Recipe | Sequence[SignalLike], *, partial: bool = False) -> Run:
    """Adds derived signals to a finished run; no model runs, and the pool is not read.

    What is there already is not computed again; after more shards were scored, it is. An interrupted call goes on.

    Args:
        run: a run folder.
        signals: derived signals by name, as objects, or as recipes write them; or a recipe with derived signals.
        partial: use the finished shards of an incomplete run.

    Raises:
        RecipeError: an unknown signal or setting; a column or a file cannot be used.
        RunError: the run lacks a column or shards, or another command holds it.
    """
    from tamis.commands.select import columns_of_embeddings
    from tamis.recipes.derived.columns import add_derived

    chosen = signals if isinstance(signals, Recipe) else with_signals(Recipe(), signals)
    opened = open_run(run, partial=partial)
    columns = {**columns_of_embeddings(chosen.signals, opened), **chosen.columns}
    return add_derived(opened, chosen.derived, columns=columns, partial=partial)


def with_signals(recipe: Recipe, signals: Sequence[SignalLike], keep: Sequence[str] = ()) -> Recipe:
    """Returns a recipe with further signals of both kinds, and features to keep."""
    entries = dict.fromkeys([*recipe.entries, *(signal_from(entry, "signals") for entry in signals)])
    made, derived = by_kind(entries)
    within = load({"signals": [entry for entry in signals if isinstance(entry, dict)]}).within
    keep = ("none",) if "none" in keep else tuple(dict.fromkeys([*recipe.keep, *keep]))
    return dataclasses.replace(recipe, signals=made, derived=derived, within={**recipe.within, **within}, keep=keep)


def try_signals(signals: Iterable[Signal]) -> Iterator[str]:
    """Loads signals with their models, as `score` does before its first shard, and raises what it would raise.

    Yields what this machine lacks and may still get: models of the hub, packages, files. Such signals are not loaded.
    """
    signals = list(signals)
    executor = Executor(device_for(networks=run_on_device(signals)))
    for signal in signals:
        nodes = topological([signal])
        try:
            models = {name for node in nodes for name in references(node, "model").values()}
            files = {name for node in nodes for name in references(node, "file").values()}
            lacks = [name for name in sorted(models) if not is_here(name)]
            lacks += [name for name in sorted(files) if not Path(name).expanduser().exists()]
            if not lacks:
                executor.try_empty(nodes, {Samples(): []})
        except DependencyError as error:
            lacks = [str(error)]
        yield from (f"{signal.name}: {what}" for what in lacks)


@dataclass(frozen=True)
class MissingOutput:
    """An output of a run, and how many shards lack it."""

    kind: str  # "index", "scores", "embeddings", "captions" or "texts"; "derived" for a derived signal
    label: str  # the signal's name in recipes; "" for anything else
    folder: str  # where its parts are, relative to the run folder
    shards: int


@dataclass(frozen=True)
class Preview:
    """What `score`, or `run_recipe`, would do. As text it is what `--dry-run` prints."""

    kind: str  # the pool's: "webdataset", "table" or "datacomp"
    shards: int  # how many the pool has
    run: Path
    new: bool  # whether the run folder does not exist yet
    device: Device  # where networks would run, in which precision and batches
    missing: tuple[MissingOutput, ...]  # every output of the run, the index first
    lazy: str = ""  # the plan of a lazy run, in words
    kept: str = ""  # what is stored besides without being asked for, in words

    def __str__(self) -> str:
        device = self.device
        lines = [
            f"pool      {self.kind}, {self.shards} shards",
            f"run       {self.run}{' (new)' if self.new else ''}",
            f"device    {device.kind}, {device.precision}, batches of {device.batch_size}",
            *(f"{part.kind:<9} {part.folder}: {part.shards} shards to do" for part in self.missing),
            *filter(None, [self.kept, self.lazy]),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        counts = f"{self.kind} of {self.shards:,} shards, on {self.device.kind}. Shards to do, by output:"
        return html_table(f"Plan of {self.run}", counts, [vars(output) for output in self.missing])


def open_for(pool: PathLike | PoolSpec, run: Path | Run) -> Pool:
    """Opens a pool to score it into a run, which decides what the pool's settings leave open, and adds its fields."""
    spec = pool if isinstance(pool, PoolSpec) else PoolSpec(path=os.fspath(pool))
    path, facts = (run.path, run.facts) if isinstance(run, Run) else (run, manifest.read_manifest(run))
    indexed, later = manifest.fields_of(path, facts)
    was = facts["pool"] if facts else {}
    extensions = spec.image_extensions
    if extensions == IMAGE_EXTENSIONS:
        extensions = tuple(was.get("image_extensions", extensions))  # older runs have fewer by default
    spec = dataclasses.replace(
        spec, split=spec.split or was.get("split"), orientation=spec.orientation or was.get("orientation"),
        image_extensions=extensions, fields=tuple(dict.fromkeys([*(indexed or ()), *later, *spec.fields])),
    )  # fmt: skip
    opened = open_pool(spec, manifest.shards_of(path, facts))
    return opened if facts else with_orientation(opened)


def hidden_contents(run: Run) -> str:
    """Returns a sentence with the number of images that show nothing without their transparency; "" for none."""
    name, group, _ = run.columns.get("content_hidden", ("", None, None))
    if group is None:
        return ""
    images = 0
    for shard in group.shards.intersection(run.shards):
        values = parts.read_columns(group.folder / f"{shard}.parquet", [name], run.owner(shard)).column(name)
        images += int((parts.numbers(values) == 1).sum())
    seen = f"{plural(images, 'image')} {'is' if images == 1 else 'are'} a single colour once transparency is ignored"
    advice = "to score them on white, make another run with --transparency white"
    return f"{seen}, e.g. black line art: {advice}" if images else ""
