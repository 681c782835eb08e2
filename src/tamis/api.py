"""What the commands do, as functions: plan, score, select, cluster, export, report, and all of a recipe at once.

The one place where the parts meet.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tamis import recipe as recipes
from tamis.data import Device, Scorer, flat
from tamis.data import settings as node_settings
from tamis.errors import PoolError, RecipeError, RunError, ShardError, brief, unknown
from tamis.graph import topological
from tamis.pool import Pool, PoolSpec, open_pool
from tamis.recipe import Recipe
from tamis.storage import check_path, is_run, location, output_path
from tamis.store import Run, open_run
from tamis.store.run import INDEX_NUMBERS, INDEX_WORDS
from tamis.store.targets import are_outputs, check_ending, check_own, check_target, note_outputs

if TYPE_CHECKING:
    from tamis.data import Column
    from tamis.evaluate.bench import Bench
    from tamis.explore.server import Server
    from tamis.exporters import Exporter
    from tamis.first_look import Look
    from tamis.graph import Identities
    from tamis.run.engines import Engine
    from tamis.run.plan import Plan
    from tamis.selectors.clusters import Clusters
    from tamis.store.check import Checked
    from tamis.store.subset import Subset
    from tamis.train.scales import ClipTraining

log = logging.getLogger(__name__)

PathLike = str | os.PathLike[str]
#: Run folders, or runs. (A text is a sequence of texts too: hence no sequence.)
RecipeLike = PathLike | Mapping[str, Any] | Recipe
ScorerLike = str | Scorer | Mapping[str, Any]


def score(
    pool: PathLike | PoolSpec,
    *,
    run: PathLike,
    scores: Sequence[str | Scorer | Mapping[str, Any]] = (),
    recipe: RecipeLike | None = None,
    keep: Sequence[str] = (),
    device: str | None = None,
    precision: str | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    threads: int | None = None,
    engine: Engine | None = None,
    max_error_rate: float | None = None,
    grow: bool = False,
    quiet: bool = False,
) -> Run:
    """Scores every pair of a pool, or goes on where an earlier call stopped: only what is missing is computed.

    Args:
        pool: folder, glob, brace range, file or fsspec URL; or a `PoolSpec`.
        run: the run folder, new or not; a path, or an fsspec URL (docs/pools-on-stores.md).
        scores: scorers by name, as objects, or as recipes write them: `{"clip": {"model": ...}}`.
        recipe: a recipe whose scores (and kept features) are computed too.
        keep: features to store: "embeddings", "captions" (generated ones), "texts" (read in images).
        device: "cpu", "cuda", "cuda:1"; None takes a GPU where there is one.
        precision: "float32", "bf16", or on a CPU "int8" (docs/models.md); None takes bf16 where the hardware
            multiplies it. Part of the fingerprint.
        batch_size: samples per batch; None: 64 on a CPU, 256 on a GPU. Changes no result beyond rounding.
        workers: processes, each at a shard of its own; 1 works in this one. None: one per GPU, 1 where there is none.
            More import the calling script anew: put the call under `if __name__ == "__main__":`.
        threads: for the models of each worker; None: what the cores allow.
        engine: who does which shard (`tamis.run`); None: `workers` processes on this machine.
        max_error_rate: the share of the pool's shards that may fail; with more, the work ends. None: any number may.
        grow: add the shards of another pool to a run; its own pool may grow without. A part of its pool adds none.
        quiet: shows no progress.

    Returns:
        The run, with `failures` for the shards that could not be (wholly) read.

    Raises:
        StopError: nothing could be done, a scorer is faulty, or too many shards failed; see `tamis.errors`. Nothing is
            written where the folder is no run but holds files, or the run is of another pool.
        UnreachedError: a store or disk did not give a table of the pool, which may be whole.
        ValueError: the rate is no share.
    """
    from tamis.graph import Identities
    from tamis.models.device import device_for
    from tamis.run.local import Local
    from tamis.run.scoring import execute, prepare
    from tamis.store import manifest
    from tamis.store.claims import PREPARING_SECONDS

    if max_error_rate is not None and not 0 <= max_error_rate <= 1:
        raise ValueError(f"max_error_rate is a share of the shards, from 0 to 1, got {max_error_rate}")
    engine = engine or Local(workers)
    given = _recipe(recipe) if recipe is not None else Recipe()
    path = location(run)
    opened = open_pool(_with_the_runs_fields(pool, path), manifest.shards_of(path))
    identities = Identities(device_for(device, precision, batch_size, threads, away=engine.away))
    about = {key: value for key, value in given.text.items() if key not in ("pool", "scores", "keep")}
    assemble = partial(
        _assembled, opened, path, scores=scores, recipe=given, keep=keep, identities=identities, grow=grow
    )
    # Ranks are started together, each of them prepares the run, and none shall end for what else holds the lock.
    patience = PREPARING_SECONDS if engine.suffix else None
    prepared = prepare(path, assemble, about, patience=patience)
    return execute(prepared, engine, quiet=quiet, max_error_rate=max_error_rate)


@dataclass(frozen=True)
class Missing:
    """One thing that a run shall hold, and how many shards have yet to get it.

    Attributes:
        kind: "index", "scores", "embeddings", "captions" or "texts".
        label: what recipes call a scorer; "" for everything else.
        folder: where its parts lie, relative to the run folder.
        shards: how many shards lack it.
    """

    kind: str
    label: str
    folder: str
    shards: int


@dataclass(frozen=True)
class Planned:
    """What `score`, or `run_recipe`, would do. As text it is what `--dry-run` prints.

    Attributes:
        kind: of the pool: "webdataset", "table" or "datacomp".
        shards: how many the pool has.
        run: the run folder.
        new: whether it has yet to be made.
        device: where networks would run, in which precision and batches.
        missing: everything that the run shall hold, the index first.
    """

    kind: str
    shards: int
    run: Path
    new: bool
    device: Device
    missing: tuple[Missing, ...]

    def __str__(self) -> str:
        device = self.device
        lines = [
            f"pool      {self.kind}, {self.shards} shards",
            f"run       {self.run}{' (new)' if self.new else ''}",
            f"device    {device.kind}, {device.precision}, batches of {device.batch_size}",
            *(f"{part.kind:<9} {part.folder}: {part.shards} shards to do" for part in self.missing),
        ]
        return "\n".join(lines)


def plan(
    pool: PathLike | PoolSpec | None = None,
    *,
    run: PathLike | None = None,
    scores: Sequence[ScorerLike] = (),
    recipe: RecipeLike | None = None,
    settings: Sequence[str] = (),
    keep: Sequence[str] = (),
    device: str | None = None,
    precision: str | None = None,
    batch_size: int | None = None,
    threads: int | None = None,
    grow: bool = False,
    overwrite: bool = False,
) -> Planned:
    """Tells what would be done, and does nothing: no file is written, no model is loaded.

    `plan(pool, run=...)` tells it of `score` with the same arguments. `plan(recipe=...)`, without a pool, tells it of
    `run_recipe`: of the pool and the run that the recipe names, after the same checks.

    Args:
        pool: as `score` takes it; None: the recipe's.
        run: the run folder, new or not; None only without a pool: the recipe's.
        scores: as `score` takes them.
        recipe: a recipe whose scores (and kept features) are meant too.
        settings: overrides of the recipe, as `--set` takes them.
        keep: features to store.
        device: where networks would run; as `score` takes it.
        precision: as `score` takes it; with `device` part of what tells scores apart.
        batch_size: samples per batch.
        threads: for the models of each worker.
        grow: as `score` takes it.
        overwrite: as `run_recipe` takes it.

    Returns:
        The pool's kind and size, and of everything that the run shall hold how many shards lack it.

    Raises:
        StopError: what `score` or `run_recipe` would stop at before any work.
        ValueError: a pool without a run folder, or a run folder without a pool.
    """
    from tamis.graph import Identities
    from tamis.models.device import device_for
    from tamis.store import manifest

    if (pool is None) != (run is None):
        raise ValueError("plan takes a pool and its run, or neither and a recipe that names both")
    chosen = _recipe(recipe, settings) if recipe is not None else Recipe()
    if pool is None or run is None:
        pool, path = _checked_whole(chosen, recipe, overwrite)
    else:
        path = location(run)
    where = device_for(device, precision, batch_size, threads)
    opened = open_pool(_with_the_runs_fields(pool, path), manifest.shards_of(path))
    whole = _assembled(opened, path, scores=scores, recipe=chosen, keep=keep, identities=Identities(where), grow=grow)
    tasks = whole.tasks(path)
    return Planned(
        kind=opened.kind,
        shards=len(opened.shards),
        run=path,
        new=not (path / "run.json").is_file(),
        device=where,
        missing=tuple(
            Missing(output.kind, output.label, output.folder, sum(output in task.outputs for task in tasks))
            for output in whole.outputs
        ),
    )


def _assembled(
    pool: Pool,
    run: Path,
    *,
    scores: Sequence[ScorerLike],
    recipe: Recipe,
    keep: Sequence[str],
    identities: Identities,
    grow: bool = False,
) -> Plan:
    """Returns the plan of a run: the recipe's scorers and those asked for beside it, labelled as the run has them now.

    It reads the run's files and writes none.

    Raises:
        StopError: a scorer, its model, or a thing to keep is unknown, or does not go with the pool; or the pool cannot
            be scored into this folder.
    """
    from tamis.run.plan import Plan, labelled
    from tamis.store import manifest

    manifest.check_folder(run, pool)
    manifest.check_pool(run, pool, grow=grow)
    asked = [recipes.scorer_from(entry, "scores") for entry in scores]
    entries = list(dict.fromkeys([*recipe.scores, *asked]))
    return Plan(
        pool=pool,
        scorers=tuple(labelled(entries, manifest.labels_of(run), identities)),
        keep=tuple(dict.fromkeys([*recipe.keep, *keep])),
        identities=identities,
        fields=manifest.fields_of(run)[0],
    )


def _with_the_runs_fields(pool: PathLike | PoolSpec, run: Path) -> PoolSpec:
    """Returns how a pool is read: with the json fields that a run has already, whether they are named again or not.

    Raises:
        RunError: a field that is new has the name of something else that the run holds.
    """
    from tamis.store import manifest

    spec = pool if isinstance(pool, PoolSpec) else PoolSpec(path=os.fspath(pool))
    indexed, later = manifest.fields_of(run)
    if indexed is not None and (new := set(spec.fields) - {*indexed, *later}):
        opened = Run(run)
        for name in sorted(new & {*opened.scores, *opened.columns}):
            raise RunError(
                f"the field {name!r} cannot be added to {run}: it has a score of that name, which it would hide"
            )
    return dataclasses.replace(spec, fields=tuple(dict.fromkeys([*(indexed or ()), *later, *spec.fields])))


def select(run: PathLike | Run, recipe: RecipeLike, *, settings: Sequence[str] = (), partial: bool = False) -> Subset:
    """Chooses rows of a run by a recipe. No model runs; the same recipe on the same scores gives the same rows.

    Args:
        run: a run folder.
        recipe: a shipped recipe's name, a file, or a mapping.
        settings: overrides, as `--set` takes them.
        partial: whether to choose from what is there of a run that lacks shards; the subset then says so.

    Returns:
        The subset: its rows, its funnel, and the verbs to save and look at it.

    Raises:
        RecipeError: the recipe is wrong, or meets rows without a score and does not say what to do.
        RunError: the run lacks a column, or shards.
    """
    from tamis.selectors.outcome import run_steps
    from tamis.store.reasons import Verdict
    from tamis.store.subset import Subset, partial_facts

    chosen = recipe if isinstance(recipe, Recipe) else _recipe(recipe, settings)
    if not chosen.selects:
        raise RecipeError(f"the recipe {chosen.name!r} has no 'select': it says nothing about which pairs to keep")
    opened = open_run(run, partial=partial)
    columns = {**_scored_columns(chosen, opened), **chosen.columns}
    _check_there(opened, chosen, columns)
    outcome = run_steps(opened.table(columns), chosen.steps)
    return Subset(
        run=opened,
        keep=outcome.keep,
        recipe={**chosen.text, **({"columns": columns} if columns else {}), "name": chosen.name},
        funnel=[line.as_json() for line in outcome.funnel],
        reads=sorted({columns.get(name, name) for name in chosen.reads}),
        partial=partial_facts(opened),
        verdict=Verdict(names=columns, why=outcome.reasons, dropped_by=outcome.dropped_by, cuts=outcome.cuts),
    )


def _check_there(run: Run, recipe: Recipe, columns: Mapping[str, str]) -> None:
    """Checks that a run has the columns that a recipe reads.

    Raises:
        RunError: it has not; where scorers of the recipe, or of ours, make them, the message ends with the command.
    """
    from tamis.score_command import models_of, score_commands
    from tamis.signals import made_by

    lacking: dict[str, RunError] = {}
    known = {name.rpartition(".")[2] for name in run.columns} | {name.rpartition("-")[0] for name in run.embeddings}
    for column in (columns.get(name, name) for name in recipe.reads):
        try:
            run.locate(column)
        except RunError as error:
            if column in known:  # several are called so: the message names them
                raise
            lacking[column] = error
    if not lacking:
        return
    column, first = next(iter(lacking.items()))
    missing, keep = _makers(recipe, list(lacking))
    if not missing:
        raise RunError(f"{first}{made_by(column)}") from first
    commands = "\n".join(score_commands(run, missing, keep))
    wanted = ", ".join(map(repr, lacking))
    stand_ins = models_of(missing)
    raise RunError(
        f"{first}\n{run.path} lacks what the recipe {recipe.name!r} reads: {wanted}. To score it:\n{commands}"
        + (f"\n{stand_ins}" if stand_ins else "")
    ) from first


def _makers(recipe: Recipe, columns: Sequence[str]) -> tuple[list[tuple[str, Scorer]], list[str]]:
    """Returns which scorers make columns, the recipe's where it has some, and which features have to be kept."""
    from tamis.score_command import maker

    found: list[tuple[str, Scorer]] = []
    vectors = [name for name in columns if name.endswith("_embedding")]
    for column in columns:
        mine = [
            (label, scorer)
            for label, scorer in recipe.scores
            if column in {name for one in scorer.columns for name in (one.name, f"{label or scorer.name}.{one.name}")}
        ]
        known = maker(column) if not mine and column not in vectors else None
        found += mine or ([known] if known else [])
    if vectors:
        found += [entry for entry in recipe.scores if any(node.name in vectors for node in topological([entry[1]]))]
    return list(dict.fromkeys(found)), ["embeddings"] if vectors else []


def cluster(
    run: PathLike | Run,
    *,
    clusters: int | None = None,
    embedding: str = "image_embedding",
    seed: int = 0,
    iterations: int = 20,
    partial: bool = False,
) -> Run:
    """Gives every row of a run the columns `cluster` and `centroid_cosine`, from its stored embeddings.

    Recipes take them like any score: `per: cluster` in top_n and top_fraction, `equals: {score: cluster, value: 7}`.
    The same call again does nothing; after more shards were scored it begins anew, since their rows move the centres.

    Args:
        run: a run folder with stored embeddings (`--keep embeddings`).
        clusters: how many; None: one per thousand rows.
        embedding: which embeddings, by the name of their folder or its part before the fingerprint.
        seed: another seed gives other clusters.
        iterations: of k-means.
        partial: whether to cluster what is there of a run that lacks shards.

    Returns:
        The run, opened anew.

    Raises:
        RunError: the run has no such embeddings, another command keeps it, or it has other rows than when this began.
        RecipeError: the column holds no embeddings, no row has one, or there are fewer rows than clusters.
        DependencyError: faiss is not installed (one cluster needs none).
    """
    from tamis.data import Column
    from tamis.fingerprint import fingerprint
    from tamis.selectors.clusters import assign, fit, usual_count
    from tamis.selectors.vectors import check_vectors, embedded
    from tamis.storage import files
    from tamis.store import manifest
    from tamis.store.checked import write_array
    from tamis.store.claims import PREPARING_SECONDS, check_same_rows, locked
    from tamis.version import VERSION

    opened = open_run(run, partial=partial)
    table = opened.table()
    check_vectors("cluster", table, [embedding])
    folder = opened.locate(embedding)[0]
    there = embedded(table, folder)
    rows = int(there.sum())
    if not rows:
        raise RecipeError(f"no row of {opened.path} has {embedding!r}: nothing can be clustered")
    count = clusters if clusters is not None else usual_count(rows)
    settings: dict[str, Any] = {"clusters": count, "embedding": folder, "seed": seed, "iterations": iterations}
    settings["stamps"] = list(opened.stamps)  # other rows have other clusters
    stem = fingerprint({"name": "cluster", "version": 1, "settings": settings})
    columns = (
        Column(name="cluster", unit="number of a cluster", better="neither", about=f"which of {count:,} clusters"),
        Column(name="centroid_cosine", unit="cosine", better="neither", about="cosine with the cluster's centre"),
    )
    target = f"scores/cluster-{stem}"
    done = set(opened.shards) <= files(opened.path / target, ".parquet")
    found = None
    if not done:
        found = assign(table, folder, there, fit(table, folder, there, count, seed=seed, iterations=iterations))
        check_same_rows(opened, opened.shards)  # that took a while
    # Not before: columns that cannot be made (too many clusters, no faiss) would stand in the run, without values.
    with locked(opened.path, doing="notes its clusters", patience=PREPARING_SECONDS):
        taken = manifest.labels_of(opened.path)
        label = "cluster" if taken.get("cluster", stem) == stem else f"cluster_{stem[:4]}"
        facts = {"name": "cluster", "label": label, "version": 1, "settings": settings, "tamis": VERSION}
        facts["columns"] = [dataclasses.asdict(column) for column in columns]
        manifest.describe(opened.path, {target: facts})  # also where it was lost, and the parts are there
        if found is not None:
            write_array(opened.path / target / "centroids.npy", found.centroids)
    if found is not None:
        for number, shard in enumerate(opened.shards):
            place = slice(int(table.starts[number]), int(table.starts[number + 1]))
            _write_clusters(opened, opened.path / target / f"{shard}.parquet", columns, found, place)
    return Run(opened.path, partial=partial)


def _write_clusters(run: Run, path: Path, columns: Sequence[Column], found: Clusters, place: slice) -> None:
    """Writes the clusters of a shard's rows."""
    from tamis.store import parts
    from tamis.store.claims import PREPARING_SECONDS, held

    numbers = found.label[place]
    label = np.where(numbers >= 0, numbers, np.nan).astype(np.float32)
    values = {"cluster": label, "centroid_cosine": found.cosine[place]}
    reasons = [None if number >= 0 else "the row has no embedding" for number in numbers.tolist()]
    with held(run, path.stem, patience=PREPARING_SECONDS) as uids:
        parts.write_scores(path, columns, values, reasons, uids=uids)


def _scored_columns(chosen: Recipe, run: Run) -> dict[str, str]:
    """Returns which of the run's columns a recipe means by its names: those of scores with the settings it asks for.

    A run may hold one scorer under several settings. Where it holds the scorer under other settings only, one set of
    them is taken and said; several are an error.

    Raises:
        RecipeError: the run has the scorer under several settings, none of them the recipe's.
    """
    meant: dict[str, str] = {}
    for label, scorer in chosen.scores:
        wanted = json.loads(json.dumps(node_settings(scorer)))
        groups = [group for group in run.scores.values() if group.facts["name"] == scorer.name]
        right = [group for group in groups if (group.facts.get("settings") or {}) == wanted]
        for column in scorer.columns:
            for name in {column.name, f"{label or scorer.name}.{column.name}"} & set(chosen.reads) - set(
                chosen.columns
            ):
                if right:
                    meant[name] = f"{right[-1].label}.{column.name}"
                elif len(groups) == 1:
                    meant[name] = f"{groups[0].label}.{column.name}"
                    asked, stored = _differences(wanted, groups[0].facts.get("settings") or {})
                    log.warning(
                        "the recipe %r asks for %s with %s; %s has it with %s, which is used",
                        chosen.name, scorer.name, asked, str(run.path), stored,
                    )  # fmt: skip
                elif groups:
                    raise RecipeError(
                        f"the recipe {chosen.name!r} asks for {scorer.name} with settings that {run.path} does "
                        f"not have; it has {len(groups)} others: choose one with --set columns.{column.name}="
                        f"{groups[0].label}.{column.name}"
                    )
    return meant


def _differences(asked: Mapping[str, Any], stored: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the settings in which two scorers differ, as each has them: ("prompt='a'", "prompt='b'")."""
    one, other = flat(asked), flat(stored)
    names = [name for name in {**one, **other} if name not in one or name not in other or one[name] != other[name]]

    def in_words(values: Mapping[str, Any]) -> str:
        return ", ".join(f"{name}={brief(values[name])}" if name in values else f"{name} not set" for name in names)

    return in_words(one), in_words(other)


def check_columns(recipe: Recipe, run: PathLike | None = None, pool: Pool | None = None) -> None:
    """Checks that a recipe's steps read only what it scores, what the pool brings, or what the run already has.

    Raises:
        RecipeError: a column will not be there; found before any work.
    """
    from tamis.signals import made_by

    known = {*INDEX_NUMBERS, *INDEX_WORDS, *(recipe.pool.fields if recipe.pool else ())}
    if run is not None and ((there := location(run)) / "run.json").is_file():
        opened = Run(there)
        known |= {*opened.columns, *opened.vectors}
    given = tuple((scorer.name, scorer) for scorer in pool.scorers) if pool else ()
    for label, scorer in (*recipe.scores, *given):
        for column in scorer.columns:
            known |= {column.name, f"{label or scorer.name}.{column.name}"}
    stored = list(pool.features) if pool else []
    if "embeddings" in recipe.keep:
        nodes = topological([scorer for _, scorer in recipe.scores])
        stored += [node for node in nodes if node.stored_as == "embeddings"]
    known |= {node.name for node in stored}
    for name in recipe.reads:
        column_name = recipe.columns.get(name, name)
        if column_name.endswith("_embedding") and column_name not in known:
            raise RecipeError(
                f"recipe {recipe.name!r} reads the stored embeddings {column_name!r}, which will not be there: add "
                "'keep: [embeddings]' and a scorer that makes them, such as clip"
            )
        if column_name not in known:
            raise RecipeError(
                f"recipe {recipe.name!r}: {unknown('score column', column_name, known)}; add its scorer under 'scores'"
                f"{made_by(column_name)}"
            )


def check_run(recipe: Recipe, run: PathLike | Run) -> None:
    """Checks that a run has the columns that a recipe's steps read.

    Raises:
        RunError: the folder is not a run, or lacks a column.
    """
    _check_there(open_run(run), recipe, recipe.columns)


def check_files(recipe: Recipe) -> None:
    """Checks that what a recipe's steps read beside the run is there: reference embeddings.

    Raises:
        RecipeError: it is not, or cannot be read.
    """
    from tamis.selectors.outcome import check_files as check_steps

    check_steps(recipe.steps)


def export(subset: Subset, to: str, out: PathLike, *, overwrite: bool = False, **settings: Any) -> int:
    """Writes a subset for a trainer.

    Args:
        subset: what to write.
        to: "npy" (DataComp), "parquet", "keys", "webdataset", "dropped" (the pairs that it drops, and why), or the
            format of an installed package.
        out: the file, or the folder for webdataset.
        overwrite: replace a file that the same format wrote earlier.
        settings: of the format: docs/recipes.md lists them.

    Returns:
        How many pairs were written.

    Raises:
        RecipeError: an unknown format or setting.
        RunError: the place cannot be written to, holds something else, or its name promises another format; or the
            pool's files have changed.
    """
    from tamis.exporters import exporter_class
    from tamis.store.stream import pool_of

    exporter: Exporter = recipes.build(exporter_class(to), settings, f"export, {to}")
    path = Path(out).expanduser()
    _check_export(exporter, path, subset.run, subset.run.urls.values(), overwrite)
    open_run(subset.run)  # its rows are all there, or it was opened to go on without
    pool = (pool_of(subset.run),) if exporter.needs_pool else ()
    return exporter.write(subset, path, *pool)


def _check_export(exporter: Exporter, out: Path, run: Run | None, read: Iterable[str], overwrite: bool) -> None:
    """Checks where an export is to be written; see `check_target` and `check_own` for the arguments.

    Raises:
        RunError: it may not be written there, or its name promises another format.
    """
    from tamis.store.subset import is_subset

    what = f"{exporter.name} export"
    if exporter.ending:
        hint = "for a CSV take to_pandas().to_csv(...) in Python" * (exporter.name == "parquet")
        check_ending(out, exporter.ending, hint=hint)
    elif out.is_dir():
        check_own(out, what=what, marks=["*"] if exporter.wrote(out, run) else [], option="OUT")
        return

    def ours(path: Path) -> bool:  # a subset is no export, whatever another package's exporter says
        return not is_subset(path) and exporter.wrote(path, run)

    check_target(out, what=what, ours=ours, overwrite=overwrite, read=read)


def report(
    run: PathLike | Run,
    subsets: Sequence[Subset] = (),
    *,
    out: PathLike,
    partial: bool = False,
    overwrite: bool = False,
) -> Path:
    """Writes one self-contained HTML page: facts of the pool, funnels, histograms, galleries, overlaps, rejects.

    Args:
        run: a run folder.
        subsets: what was chosen from it; the first few get galleries.
        out: the page.
        partial: whether to report what is there of a run that lacks shards; the page then says so at its top.
        overwrite: replace an earlier page; one in the run folder is replaced anyway.

    Returns:
        The page's path.

    Raises:
        RunError: the run lacks shards, or the page cannot be written.
    """
    from tamis.reporting import check_page, write_report
    from tamis.store.stream import pool_of

    page = output_path(out)
    opened = open_run(run, partial=partial)
    check_page(page, overwrite=overwrite, read=opened.urls.values())
    try:
        pool: Pool | None = pool_of(opened)
    except (PoolError, ShardError) as error:
        log.warning("the pool cannot be read (%s): the report has no pictures", error)
        pool = None
    return write_report(opened, subsets, page, pool, overwrite=overwrite)


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
    """Looks at a pool for the first time: cheap signals of some of its pairs, and a report that proposes recipes.

    No model is fetched and no run folder stays. The pairs are the first rows of shards that are taken at random, so
    that little is read of a large pool.

    Args:
        pool: as `score` takes it.
        out: the page.
        pairs: how many are looked at.
        shards: of how many shards at most.
        seed: another one takes other shards.
        overwrite: replace an earlier page.
        quiet: shows no progress.

    Returns:
        The page, how much was looked at, what it proposes, and shards that could not be read.

    Raises:
        PoolError: nothing is there, or it is no pool.
        RunError: the page cannot be written, or nothing of the pool can be read.
    """
    from tamis.first_look import MEASURED, RESULT, Look, cheap_scorers, facts, proposals, run_name, sampled
    from tamis.graph import Identities
    from tamis.models.device import device_for
    from tamis.reporting import check_page, write_report
    from tamis.run.local import Local
    from tamis.run.scoring import execute, prepare
    from tamis.score_command import hidden_contents
    from tamis.storage import write_json
    from tamis.store.records import with_hash

    page = Path(out).expanduser()
    whole = open_pool(pool if isinstance(pool, PoolSpec) else os.fspath(pool))
    check_page(page, overwrite=overwrite, read=[shard.url for shard in whole.shards])
    some = sampled(whole, pairs=pairs, shards=shards, seed=seed)
    scorers = cheap_scorers(some)
    given = pool if isinstance(pool, PoolSpec) else PoolSpec(path=os.fspath(pool))
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="tamis-look-") as folder:
        path = Path(folder) / run_name(given.paths[0])
        identities = Identities(device_for("cpu", None, None, None))
        assemble = partial(_assembled, some, path, scores=scorers, recipe=Recipe(), keep=(), identities=identities)
        done = open_run(execute(prepare(path, assemble, {}), Local(1), quiet=quiet), partial=True)
        if not len(done):
            why = next(iter(done.failures.values()), "it has no pairs")
            raise RunError(f"nothing of {', '.join(given.paths)} can be read: {why}")
        if hidden := hidden_contents(done):
            log.warning("%s", hidden)
        subsets = [select(done, name) for name in MEASURED if not set(recipes.load(name).reads) - set(done.columns)]
        found = Look(
            page=page, pairs=len(done), shards=len(done.shards), of=len(whole.shards),
            seconds=round(time.perf_counter() - start, 1), proposals=proposals(done, subsets, given),
            failures=dict(done.failures),
        )  # fmt: skip
        write_json(path / RESULT, with_hash(facts(found)))
        write_report(done, subsets, page, some if some.has_images else None, overwrite=overwrite)
    return found


def explore(
    run: PathLike, subsets: Sequence[PathLike | Subset] = (), *, port: int = 0, partial: bool = False
) -> Server:
    """Opens a run for looking at: a local page that chooses rows with `select`, so that both keep the same.

    Args:
        run: a run folder.
        subsets: of the run, to compare; files or subsets.
        port: of loopback; 0 takes a free one.
        partial: whether to show what is there of a run that lacks shards.

    Returns:
        The server: its `address` is what one opens, `serve()` answers until it is interrupted.

    Raises:
        RunError: the run lacks shards, a subset is of another run, or the port is taken.
        DependencyError: the extra `explore` is not installed.
    """
    from tamis.explore.columns import HeldRun
    from tamis.explore.images import Images
    from tamis.explore.pages import Pages
    from tamis.explore.queries import Explorer
    from tamis.explore.server import Server
    from tamis.store.stream import pool_of
    from tamis.store.subset import Subset

    opened = HeldRun(run, partial=partial)
    opened.check_whole()
    chosen = [one if isinstance(one, Subset) else Subset.load(one, opened) for one in subsets]
    for one in chosen:
        if one.run.path.resolve() != opened.path.resolve() or one.keep.size != len(opened):
            raise RunError(
                f"the subset {one.name!r} is of {one.run.path} ({one.keep.size:,} rows), not of "
                f"{opened.path} ({len(opened):,} rows): choose it again from this run with `tamis.select`"
            )
    try:
        pool: Pool | None = pool_of(opened)
    except (PoolError, ShardError) as error:
        log.warning("the pool cannot be read (%s): the page has no pictures", error)
        pool = None
    explorer = Explorer(opened, chosen, lambda held, recipe: select(held, recipe, partial=partial), pool)
    return Server(Pages(explorer, Images(opened, pool)), port=port)


def check(run: PathLike, *, delete: bool = False) -> Checked:
    """Looks a run through: every byte of every part; what is damaged, left over or missing.

    Args:
        run: a run folder, or its URL.
        delete: delete what is damaged or left over, except what another process is at. `score` makes it again.

    Returns:
        What was found, and what to do about it.

    Raises:
        RunError: it is no run folder, or its run.json or list of shards is damaged, which nothing can make again.
    """
    from tamis.store.check import check_run

    return check_run(run, delete=delete)


def bench(
    source: PathLike | PoolSpec | Run,
    recipes: Sequence[RecipeLike],
    *,
    tasks: PathLike,
    out: PathLike,
    run: PathLike | None = None,
    settings: Sequence[str] = (),
    fields: Sequence[str] = (),
    pairs: int = 10_000,
    training: ClipTraining | None = None,
    seeds: int = 3,
    only: Sequence[str] = (),
    size: int = 480,
    workers: int = 1,
    device: str | None = None,
    precision: str | None = None,
    threads: int | None = None,
    keep_models: bool = False,
    partial: bool = False,
    quiet: bool = False,
) -> Bench:
    """Tells which recipe suits a pool: the same small model trained on what each keeps, at equal samples seen.

    Nothing is trained before every recipe is read and its pairs are chosen. What the run lacks is scored first where a
    pool is given. The same call again goes on where it stopped.

    Args:
        source: a run; or a pool (as `score` takes it), which is scored first; or "lab", a pool that is drawn, and
            scored by the built-in models.
        recipes: shipped recipes' names, files, or mappings with a `name`, each of another name.
        tasks: a zero-shot task's folder, a folder of tasks, or "lab" for the small ones that are drawn.
        out: the folder for results; the subsets are written there too.
        run: of a pool, the run folder, new or not; None: `run` in `out`.
        settings: of scorers, for every recipe that has them, as `--set` takes them: "scores.clip.model=lab/clip".
        fields: of a pool, json fields to carry into the index; "truth" tells the true kind of each pair.
        pairs: of the lab's pool.
        training: the model and how it learns; None: the scale `lab`.
        seeds: runs of each recipe, at least 2.
        only: names of the tasks that count; all where empty.
        size: images of each of the lab's tasks, where they are drawn.
        workers: runs at a time, each in a process of its own (and processes that score); 1 works in this one.
        device: as `score` takes it.
        precision: of scoring and training, "float32" or "bf16"; tasks are evaluated in float32.
        threads: of each run; None: the cores by the workers.
        keep_models: whether the trained models stay.
        partial: whether to go on with what is there of a run that lacks shards.
        quiet: shows no progress of scoring.

    Returns:
        The ranking with its intervals, and what else is known of the subsets. It is also written to bench.json, in
        `out` and in the run folder, where the report finds it.

    Raises:
        RecipeError: a recipe is wrong.
        RunError: a recipe keeps nothing that can be trained on, which is found before any training; or `out` is in
            use, or holds something else.
        StopError: nothing could be done; see `tamis.errors`.
    """
    from tamis.evaluate.bench import LAB_MODELS, RESULT, bench_folder, check, compare, lab_pool
    from tamis.evaluate.zero_shot import LAB
    from tamis.models.device import device_for
    from tamis.storage import write_json
    from tamis.store.records import with_hash
    from tamis.train.scales import at_scale

    folder = Path(out).expanduser()
    drawn = isinstance(source, str) and source == LAB
    chosen = _for_bench(recipes, settings, LAB_MODELS if drawn else ())
    training = training or at_scale("lab")
    check(training, tasks, only, seeds)
    each = threads or max(1, (os.cpu_count() or 1) // workers)
    where = device_for(device, precision, None, each, training=True)
    costs: dict[str, float] = {}
    if not drawn and not isinstance(source, PoolSpec | Run):
        there = (Path(source) / "run.json").is_file() or is_run(source)
        source = Run(source) if there else PoolSpec(path=os.fspath(source), fields=tuple(fields))
    if isinstance(source, PoolSpec):
        open_pool(source)  # a mistyped one leaves no folder
    own = None if run is None else location(run)
    read = source.paths if isinstance(source, PoolSpec) else [source.path if isinstance(source, Run) else source]
    with bench_folder(folder, [Path(one) for one in (*read, tasks, *([] if own is None else [own]))]):
        if isinstance(source, Run):
            opened = open_run(source, partial=partial)
        else:
            if not isinstance(source, PoolSpec):
                source = PoolSpec(path=str(lab_pool(folder, pairs, workers)), fields=("truth", *fields))
            opened, costs = _scored_for_bench(
                source, chosen, own or folder / "run", folder / "scoring.json",
                device=device, precision=precision, workers=workers, threads=threads, quiet=quiet,
            )  # fmt: skip
        subsets = [select(opened, recipe, partial=partial) for recipe in chosen]
        for subset in subsets:
            subset.save(folder / "subsets" / f"{subset.name}.parquet", overwrite=True)
        done = compare(
            subsets, tasks=tasks, out=folder, training=training, device=where, seeds=seeds, only=only,
            size=size, workers=workers, scoring=costs, keep_models=keep_models, held=True,
        )  # fmt: skip
    try:
        write_json(opened.path / RESULT, with_hash(done.facts()))
    except RunError as error:
        log.warning("the run's report will not show this bench: %s", error)
    return done


def _for_bench(given: Sequence[RecipeLike], settings: Sequence[str], usual: Sequence[str]) -> list[Recipe]:
    """Reads recipes, each with those settings that concern one of its scorers.

    Args:
        given: the recipes.
        settings: that the user gave.
        usual: settings that they come after, of scorers that the recipes need not have.

    Raises:
        RecipeError: one is wrong or has no `select`, two have one name, or a setting is of no scorer of theirs.
    """
    chosen = [_recipe(recipe) for recipe in given]
    if not chosen:
        raise RecipeError("there is no recipe to compare: name some, such as no-filter,random,clip-50")
    names = [recipe.name for recipe in chosen]
    for recipe in chosen:
        if not recipe.selects:
            raise RecipeError(f"the recipe {recipe.name!r} has no 'select': it says nothing about which pairs to keep")
        if names.count(recipe.name) > 1:
            raise RecipeError(f"two recipes are called {recipe.name!r}: give one another name (its key 'name')")
    mine: list[list[str]] = [[] for _ in chosen]
    for setting in (*usual, *settings):
        path = recipes.assignment(setting)[0].split(".")
        if len(path) < 3 or path[0] != "scores":
            raise RecipeError(f"--set {setting!r}: a bench sets scorers only, as in scores.clip.model=lab/clip")
        for recipe, its in zip(chosen, mine, strict=True):
            its += [setting] if path[1] in {scorer.name for _, scorer in recipe.scores} else []
        if setting not in usual and not any(setting in its for its in mine):
            raise RecipeError(f"--set {setting!r}: no recipe of the bench scores {path[1]!r}")
    return [
        recipes.load({**recipe.text, "name": recipe.name}, its) if its else recipe
        for recipe, its in zip(chosen, mine, strict=True)
    ]


def _scored_for_bench(
    spec: PoolSpec, chosen: Sequence[Recipe], path: Path, noted: Path, **how: Any
) -> tuple[Run, dict[str, float]]:
    """Scores what recipes read, recipe by recipe, so that it is known what each of them costs.

    Returns:
        The run, and for each recipe whose scores were all computed here the seconds that they took. Scores that two
        recipes share count for both.
    """
    from tamis.storage import read_json, write_json
    from tamis.store.records import ScoringStep, check

    pool = open_pool(spec)
    for recipe in chosen:
        check_columns(recipe, path, pool)
        check_files(recipe)
    where = {name: how[name] for name in ("device", "precision", "threads")}
    took: list[dict[str, Any]] = read_json(noted) if noted.is_file() else []
    for group in took:
        check(noted, group, ScoringStep)
    parts: dict[str, set[str]] = {}
    for recipe in chosen:
        planned = plan(spec, run=path, recipe=recipe, **where).missing
        parts[recipe.name] = {part.folder for part in planned if part.kind != "index"}
        if any(part.shards for part in planned):
            before = _seconds_of_events(path)
            score(spec, run=path, recipe=recipe, **how)
            new = sorted(part.folder for part in planned if part.shards and part.kind != "index")
            took.append({"parts": new, "seconds": round(_seconds_of_events(path) - before, 2)})
            write_json(noted, took)
    known = {part for group in took for part in group["parts"]}
    return Run(path), {
        name: sum(group["seconds"] for group in took if needed & set(group["parts"]))
        for name, needed in parts.items()
        if needed <= known
    }


def _seconds_of_events(run: Path) -> float:
    """Returns the seconds that processes spent at a run's shards so far."""
    from tamis.store.records import EventFacts, read_lines

    files = sorted(run.glob("events*.jsonl"))  # each rank of the static engine has its own
    return float(sum(event.get("seconds", 0.0) for path in files for event in read_lines(path, EventFacts)))


@dataclass(frozen=True)
class Exported:
    """One export that was written: its format, where it lies, and how many pairs it has."""

    to: str
    out: Path
    pairs: int


@dataclass(frozen=True)
class RecipeDone:
    """What `run_recipe` did.

    Attributes:
        run: the scored run; its `failures` are the shards that could not be (wholly) read.
        subset: what was chosen; None where the recipe has no `select`.
        exports: what was written for trainers, in the recipe's order.
        report: the page.
    """

    run: Run
    subset: Subset | None
    exports: tuple[Exported, ...]
    report: Path


def run_recipe(
    recipe: RecipeLike,
    *,
    settings: Sequence[str] = (),
    workers: int | None = None,
    device: str | None = None,
    precision: str | None = None,
    batch_size: int | None = None,
    threads: int | None = None,
    engine: Engine | None = None,
    partial: bool = False,
    grow: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    on_result: Callable[[Run | Subset | Exported | Path], object] | None = None,
) -> RecipeDone:
    """Scores, selects, exports and reports, as one recipe says; the same call again goes on where it stopped.

    Where shards cannot be read it ends after scoring, unless it is told to go on without them. The subset is saved as
    `subsets/<recipe>.parquet` in the run folder, the page as `report.html` there where the recipe names no other place.
    Files that an earlier call of this run wrote elsewhere are replaced if nothing has changed them since.

    Args:
        recipe: a file, a mapping, or a recipe that was loaded; it names `pool` and `run`.
        settings: overrides, as `--set` takes them; of a recipe that was loaded already they are not.
        workers: as `score` takes it.
        device: as `score` takes it.
        precision: as `score` takes it.
        batch_size: as `score` takes it.
        threads: as `score` takes it.
        engine: as `score` takes it.
        partial: whether to choose from the rest where shards cannot be read.
        grow: as `score` takes it.
        overwrite: replace files that the same formats wrote earlier.
        quiet: shows no progress.
        on_result: called with each result as soon as it is there: the run, the subset, every export, the page.

    Returns:
        The run, the subset, what was exported, and the page.

    Raises:
        RecipeError: the recipe is wrong, names no pool or no run, or reads what will not be there; before any work.
        RunError: something is where an export or the page goes, before any work; or shards could not be read.
        StopError: nothing could be done; see `tamis.errors`.
    """

    chosen = _recipe(recipe, settings)
    spec, path = _checked_whole(chosen, recipe, overwrite)
    tell = on_result or (lambda result: None)
    done = score(
        spec, run=path, recipe=chosen, device=device, precision=precision, batch_size=batch_size, workers=workers,
        threads=threads, engine=engine, grow=grow, quiet=quiet,
    )  # fmt: skip
    tell(done)
    subset: Subset | None = None
    exports = []
    if chosen.selects:
        subset = select(done, chosen, partial=partial)
        subset.save(done.path / "subsets" / f"{chosen.name}.parquet")
        tell(subset)
        for to, options in chosen.exports:
            rest = {name: value for name, value in options.items() if name != "out"}
            out = Path(options["out"])
            again = overwrite or are_outputs(done.path, [out])
            exported = Exported(to, out, export(subset, to, out, overwrite=again, **rest))
            note_outputs(done.path, [out])
            tell(exported)
            exports.append(exported)
    pages = _pages(chosen.report) if chosen.report else [done.path / "report.html"]
    again = overwrite or are_outputs(done.path, pages)
    page = report(done, [] if subset is None else [subset], out=pages[0], partial=partial, overwrite=again)
    if chosen.report:
        note_outputs(done.path, pages)
    tell(page)
    return RecipeDone(done, subset, tuple(exports), page)


def _pages(page: str) -> list[Path]:
    """Returns the files of a report: the page, and its facts."""
    from tamis.reporting import facts_path

    return [Path(page), facts_path(Path(page))]


def _checked_whole(recipe: Recipe, source: RecipeLike | None, overwrite: bool) -> tuple[PoolSpec, Path]:
    """Returns the pool and the run folder of a recipe that is to be carried out as a whole, or says what it lacks."""
    spec = pool_named(recipe)
    if recipe.run is None:
        raise RecipeError(f"the recipe {recipe.name!r} names no run folder: add 'run: runs/NAME'")
    path = location(recipe.run)
    for place in [*(options["out"] for _, options in recipe.exports), recipe.report or "report.html"]:
        check_path(Path(place))
    pool = open_pool(spec)
    read = [
        *(shard.url for shard in pool.shards),
        *([os.fspath(source)] if isinstance(source, str | os.PathLike) else []),
    ]
    check_outputs(recipe, read=read, overwrite=overwrite)
    check_columns(recipe, path, pool)
    check_files(recipe)
    return spec, path


def check_outputs(recipe: Recipe, *, read: Sequence[str] = (), overwrite: bool = False) -> None:
    """Checks that `run_recipe` may write the exports and the page of a recipe.

    Args:
        recipe: the recipe.
        read: files that it reads beside the pool of its run.
        overwrite: as `run_recipe` takes it.

    Raises:
        RecipeError: two of them have one path.
        RunError: one may not be written.
    """
    from tamis.exporters import exporter_class
    from tamis.reporting import check_page

    run: Run | None = None
    if recipe.run is not None and ((folder := location(recipe.run)) / "run.json").is_file():
        run = Run(folder)
        read = [*read, *run.urls.values()]
    taken: set[str] = set()
    for to, options in recipe.exports:
        out = Path(options["out"])
        if os.path.realpath(out) in taken:
            raise RecipeError(f"the recipe {recipe.name!r} has two exports to {out}: give each a place of its own")
        taken.add(os.path.realpath(out))
        settings = {name: value for name, value in options.items() if name != "out"}
        exporter = recipes.build(exporter_class(to), settings, f"export, {to}")
        _check_export(exporter, out, run, read, overwrite or (run is not None and are_outputs(run.path, [out])))
    if recipe.report:
        pages = _pages(recipe.report)
        check_page(pages[0], overwrite=overwrite or (run is not None and are_outputs(run.path, pages)), read=read)


def _recipe(recipe: RecipeLike, settings: Sequence[str] = ()) -> Recipe:
    return recipe if isinstance(recipe, Recipe) else recipes.load(recipe, settings)


def pool_named(recipe: Recipe) -> PoolSpec:
    """Returns the pool that a recipe names.

    Raises:
        RecipeError: it names none.
    """
    if recipe.pool is None:
        raise RecipeError(f"the recipe {recipe.name!r} names no pool: add 'pool: PATH'")
    return recipe.pool
