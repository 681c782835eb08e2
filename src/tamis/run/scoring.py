"""Scoring a pool: prepare (short, under the folder's lock), then an engine, which holds no lock."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tamis.data import settings
from tamis.errors import PoolError, RunError, StopError
from tamis.pool import Pool, Shard
from tamis.pool.counting import pairs_told
from tamis.pool.files import is_remote
from tamis.pool.source import Absence
from tamis.run.engines import Engine
from tamis.run.failures import failure_path, still_lacking
from tamis.run.forecast import Forecast
from tamis.run.plan import Plan, Task
from tamis.run.progress import Reporter
from tamis.storage import files, remove
from tamis.store import Run, manifest
from tamis.store.claims import PREPARES, claimed, locked, sweep_claims
from tamis.store.records import FailureFacts, read_checked

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A run folder that says what it shall hold, and what is left to do.

    Attributes:
        path: the folder.
        plan: what it shall hold.
        tasks: the shards that lack parts.
        failed: shards that failed earlier and have not changed since, with what went wrong.
    """

    path: Path
    plan: Plan
    tasks: Sequence[Task]
    failed: Mapping[str, str]


def prepare(
    path: Path, assemble: Callable[[], Plan], about: Mapping[str, Any], *, patience: float | None = None
) -> Prepared:
    """Makes or extends a run folder: its manifest, the folders of parts, the list of what is missing.

    Args:
        path: the run folder, new or not.
        assemble: returns what it shall hold, given how it is now.
        about: what else stands in the run's recipe.
        patience: seconds to wait for another command that holds the folder's lock; None: a moment. One that prepares
            the run is waited for in any case.

    Raises:
        StopError: a model or a file is not there, the first shard has no image or caption at all, the folder is of
            another pool, or cannot be written to.
    """
    plan = assemble()  # a model that is missing is found here, before anything is made
    if not files(path / "index", ".parquet"):
        _check_first_shard(plan)
    return _prepared(path, assemble, about, patience)


def _check_first_shard(plan: Plan) -> None:
    """Checks that some sample of a pool's first shard has an image and a caption, where they are needed.

    Raises:
        PoolError: none has. A setting of the pool names the wrong member, field or column.
    """
    for shard in plan.pool.shards if plan.needed else ():
        absence = Absence(plan.needed)
        try:
            if not all(absence.add(sample) for sample in shard.samples()):
                return
        except Exception as error:  # whatever a store raises: its worker says what is wrong with this shard
            log.debug("%s cannot be looked at: %s", shard.url, error)
            return
        if absence.rows:
            remedy = "'caption: WHERE' under 'pool', or --caption"
            if "image" in absence.reasons:
                table = plan.pool.kind == "table"
                remedy = "'image: COLUMN' under 'pool', or --image" if table else "'image_extensions' under 'pool'"
            raise PoolError(f"{shard.url}: {absence}. Nothing was scored; name the right one with {remedy}")


def _prepared(path: Path, assemble: Callable[[], Plan], about: Mapping[str, Any], patience: float | None) -> Prepared:
    with locked(path, doing=PREPARES, patience=patience):
        sweep_claims(path)
        plan = assemble()
        manifest.begin(path, plan.pool, _resolved(about, plan), plan.in_index)
        described = {output.folder: plan.describe(output) for output in plan.outputs if output.node is not None}
        manifest.describe(path, described)
        stale, failed = _failed_before(path, plan.pool)
        if stale:
            log.info("%d shards that failed have changed since: they are read anew", len(stale))
            for name in stale:
                with claimed(path, name) as mine:  # one that another process is at is its to bring up to date
                    if mine:
                        manifest.forget(path, [name])
        return Prepared(path=path, plan=plan, tasks=plan.tasks(path), failed=failed)


def carry_out(prepared: Prepared, engine: Engine, *, quiet: bool = False, max_error_rate: float | None = None) -> Run:
    """Has an engine do what is left, shows how far it is, and returns the run.

    Args:
        prepared: what is left.
        engine: who does which shard.
        quiet: shows no progress.
        max_error_rate: the share of the pool's shards that may fail; with more, the work ends.

    Raises:
        StopError: no shard would go better, or more of them failed than may.
    """
    path, tasks, pool = prepared.path, prepared.tasks, prepared.plan.pool
    before = Run(path)
    _warn_of_changes(before, pool)
    todo = {task.shard.name for task in tasks}
    still = {name: error for name, error in prepared.failed.items() if name not in todo}
    done = len(pool.shards) - len(tasks)
    forecast = _forecast(before, pool, tasks)
    reporter = Reporter(path, shards=len(pool.shards), done=done, quiet=quiet, suffix=engine.suffix, forecast=forecast)
    with reporter:
        for name, error in still.items():
            reporter.failed[name] = error
            reporter.done -= 1
        for report in engine(prepared.plan, path, tasks, reporter.advance):
            reporter.finish(report)
            if report.error is not None and max_error_rate is not None:
                _check_rate(reporter.failed, len(pool.shards), max_error_rate)
    return Run(path) if tasks else before  # what it has read of the parts need not be read again


def _forecast(run: Run, pool: Pool, tasks: Sequence[Task]) -> Forecast:
    """Counts the pairs up front: of shards that are indexed by the index, of others as the pool tells."""
    if not tasks:
        return Forecast()
    try:
        indexed = dict(zip(run.shards, run.sizes, strict=True))
    except RunError as error:  # a damaged part costs its shard, in time
        log.debug("the pairs that are indexed cannot be counted: %s", error)
        indexed = {}
    lacking = [task.shard for task in tasks]
    names = {shard.name for shard in lacking}
    told = pairs_told([shard for shard in lacking if shard.name not in indexed])
    done = sum(indexed.get(shard.name, 0) for shard in pool.shards if shard.name not in names)
    return Forecast({name: indexed.get(name, told.get(name)) for name in names}, done=done)


def _check_rate(failed: Mapping[str, str], shards: int, most: float) -> None:
    if len(failed) > most * shards:
        name, error = list(failed.items())[-1]
        raise StopError(
            f"{len(failed):,} of {shards:,} shards failed, more than --max-error-rate {most:g} allows; the last is "
            f"{name}: {error}. What is complete stays: mend what is wrong and repeat the command"
        )


def _warn_of_changes(run: Run, pool: Pool) -> None:
    """Says which local files have changed since they were indexed: their scores are of what stood there then."""
    if not pool.shards or is_remote(pool.shards[0].url):
        return  # asking a store far away for every file takes longer than a finished run may
    try:
        stamps = dict(zip(run.shards, run.stamps, strict=True))
    except RunError as error:  # as above
        log.debug("which files have changed cannot be told: %s", error)
        return
    changed = [
        shard.name for shard in pool.shards if stamps.get(shard.name) and _stamp(shard) not in ("", stamps[shard.name])
    ]
    if changed:
        log.warning(
            "%d files have changed since they were indexed, the first: %s. Their scores stay as they are; delete "
            "%s to read it again",
            len(changed), changed[0], str(run.index_path(changed[0])),
        )  # fmt: skip


def _stamp(shard: Shard) -> str:
    try:
        return shard.stamp()
    except Exception as error:  # whatever the store raises: a file that cannot be reached now has not changed for that
        log.debug("%s cannot be reached: %s", shard.url, error)
        return ""


def _failed_before(path: Path, pool: Pool) -> tuple[list[str], dict[str, str]]:
    """Returns shards that failed in an earlier run: those whose file has changed since, and the errors of the rest.

    A file that cannot be reached now has not changed for that: its shard stays as it is. The record of a shard whose
    file was deleted on purpose goes, and that of one that lacks nothing any more.
    """
    here = {shard.name: shard for shard in pool.shards}
    stale, failed = [], {}
    for name in sorted(files(path / "failures", ".json")):
        record = {"url": "", "stamp": "", **read_checked(failure_path(path, name), FailureFacts)}
        if name not in here:
            if not is_remote(record["url"]) and not os.path.exists(record["url"]):
                remove(failure_path(path, name))
            continue
        if record.get("lacking") is not None and not record.get("cut") and not still_lacking(path, record):
            remove(failure_path(path, name))  # all was made, by another command or before a worker died
            continue
        try:
            stamp = here[name].stamp()
        except Exception as error:  # as above
            log.warning("%s cannot be reached: %s", here[name].url, error)
            stamp = ""
        if stamp and record["stamp"] and stamp != record["stamp"]:
            stale.append(name)
        else:
            failed[name] = record["error"]
    return stale, failed


def _resolved(about: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Returns the recipe as it is carried out, for the run folder, without the pool."""
    return {
        **about,
        "scores": [{scorer.name: {**settings(scorer), "label": label}} for label, scorer in plan.scorers],
        "keep": list(plan.keep),
    }
