"""Fills a run: prepares its folder (short, under the folder's lock), then lets an engine make what is missing."""

from __future__ import annotations

import logging
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from tamis.core.errors import PoolError, RunError, StopError, plural
from tamis.core.files.checked import read_record
from tamis.core.files.find import is_remote
from tamis.core.files.storage import files
from tamis.core.types import settings
from tamis.engines.engine import Engine
from tamis.engines.plan import Plan, Task
from tamis.engines.progress import (
    READING,
    Reporter,
    Tally,
    announcement,
    failure_path,
    has_changed,
    list_lacking,
    was_cut,
)
from tamis.engines.shard import reads_files
from tamis.pools import Pool, Shard
from tamis.pools.open import known_pairs
from tamis.pools.source import MissingParts, say_left_out
from tamis.runs import Run, manifest
from tamis.runs.claims import PREPARES, PREPARING_SECONDS, lock_run, sweep_claims
from tamis.signals.graph import Executor, topological

log = logging.getLogger(__name__)

# How many pairs are timed, after how many that only warm up; and how many there must be to score, so that this is at
# most 3 % of the work. A run without networks is short up to many more.
_TIMED, _TIMED_SHARDS, _WARMS_UP, _WORTH_PAIRS, _WORTH_CHEAP_PAIRS = 32, 4, 2, 1_200, 10_000
_TEXT_BYTES = 4 << 10  # of a pair in a tar, next to its image: headers, padding, caption and json


def fill(
    path: Path,
    plan: Plan,
    recipe: Mapping[str, Any],
    engine: Engine,
    *,
    quiet: bool = False,
    max_error_rate: float | None = None,
    forecasts: bool = False,
    spent: tuple[Counter[str], Counter[str]] | None = None,
) -> Run:
    """Creates or extends a run, and makes every part that is missing; see `tamis.score`.

    `recipe` holds the other keys for recipe.yaml, and derived signals. `forecasts`: says first what the signals will
    cost, unless `quiet`. `spent`: the seconds and the pairs of each node in earlier calls of one command, to add to.
    """
    if not files(path / "index", ".parquet"):  # a missing model is an error before anything is written
        _check_first_shard(plan.for_run(path))
    # All ranks start at once and each prepares the run, so they wait for the lock instead of failing.
    with lock_run(path, doing=PREPARES, patience=PREPARING_SECONDS if engine.suffix else None):
        sweep_claims(path)
        plan = plan.for_run(path)
        given = plan.within.given if plan.within else ""
        signals = [recipe_entry(label, signal, given) for label, signal in plan.signals]
        recipe = {
            **recipe,
            "signals": [*signals, *recipe.get("signals", ())],
            "keep": recipe.get("keep", list(plan.keep)),
        }
        facts = manifest.begin(path, plan.facts, plan.pool, recipe, plan.in_index)
        described = {output.folder: plan.describe(output) for output in plan.outputs if output.node is not None}
        manifest.describe(path, described)
        failed, changed = _read_failures(path, plan.pool)
        plan = replace(plan, again=changed if plan.within is None else frozenset())
        tasks = plan.tasks(path)
    before = Run(path, facts=facts, pool=plan.pool)
    if plan.within is None:  # else an earlier pass has done so
        _warn_of_changes(before, plan.pool)
    tally = _tally(before, plan.pool.shards, tasks, failed)
    tally.took, tally.judged = spent or (tally.took, tally.judged)
    with Reporter(path, tally, quiet=quiet, suffix=engine.suffix) as reporter:
        if tasks:
            reporter.say(plan.pool.about)
            reporter.say(plan.about_kept)
        if forecasts and not quiet:
            left = tally.total and tally.total - tally.pairs
            reporter.say(_forecast(plan, path, tasks, engine, left))
        for report in engine(plan, path, tasks, reporter.advance):
            reporter.finish(report)
            if report.error and max_error_rate is not None and len(tally.failed) > max_error_rate * tally.shards:
                lost = f"{len(tally.failed):,} of {tally.shards:,} shards failed, the last {report.shard}"
                raise StopError(f"{lost}: {report.error}; --max-error-rate is {max_error_rate:g}")
        reporter.say(say_left_out(tally.left_out))
    return before.reopen() if tasks else before  # `before` already has its footers cached


def recipe_entry(label: str, signal: Any, within: object) -> dict[str, Any]:
    """Returns an entry of recipe.yaml."""
    limit = {"within": os.fspath(within)} if isinstance(within, str | os.PathLike) and within else {}
    return {signal.name: {**settings(signal), "label": label, **limit}}


def _forecast(plan: Plan, run: Path, tasks: Sequence[Task], engine: Engine, left: int | None) -> str:
    """Returns what the missing parts cost for the pairs that are `left`, or "".

    Some pairs are scored, into a folder that is then deleted. One worker here has the models then.
    """
    worth = _WORTH_CHEAP_PAIRS if all(node.host for node in plan.nodes) else _WORTH_PAIRS
    if not tasks or (left is not None and left < worth) or plan.plugins:  # a plug-in may end its process
        return ""
    most, speed = max(len(task.outputs) for task in tasks), engine.speed(plan, tasks)
    executor = (plan.executor if speed == 1 else None) or Executor(plan.device)
    alike = [task for task in tasks if len(task.outputs) == most]
    task = alike[0]
    try:
        if left is None and _guess_pairs(tasks) < worth:
            return ""
        with time_pairs(replace(plan, executor=executor), [task.shard for task in alike]) as (_, each):
            pass
    except Exception as error:  # whatever it is, the worker of a shard will report it
        log.debug("the cost cannot be measured: %s", error)
        return ""
    indexes = plan.outputs[0] in task.outputs
    stored = [node for node, output in plan.storable.items() if output.path(run, task.shard.name).is_file()]
    nodes = topological([one.node for one in task.outputs if one.node is not None], () if indexes else stored)
    took = {node.name: each.get(node.name, 0.0) for node in nodes}
    if indexes or reads_files(nodes):
        took[READING] = each[READING]
    signals = [(label, signal) for label, signal in plan.signals if signal in nodes]
    pairs = "every 1,000" if left is None else f"{left:,}"
    return announcement(pairs, signals, {name: (left or 1000) / speed * one for name, one in took.items()})


def _guess_pairs(tasks: Sequence[Task]) -> float:
    """Returns about how many pairs shards of unknown size have, by the first ones; 0 if there are few in a shard."""
    some = [sample.image_bytes + _TEXT_BYTES for sample in islice(tasks[0].shard.samples(), _TIMED)]
    urls = [task.shard.url for task in tasks]
    known = all(os.path.isfile(url) for url in urls)  # else a store's, or folders
    size = sum(map(os.path.getsize, urls)) if known else math.inf
    return size / sum(some) * len(some) if len(some) == _TIMED else 0


@contextmanager
def time_pairs(plan: Plan, shards: Sequence[Shard]) -> Iterator[tuple[Run, dict[str, float]]]:
    """Scores a few pairs of some shards; yields a run that is then deleted, and the seconds per pair of each node."""
    from tamis.engines.local import Local

    some = shards[:: -(-len(shards) // _TIMED_SHARDS)]  # neighbours in a pool are often of one kind
    with tempfile.TemporaryDirectory(prefix="tamis-") as folder:
        for pairs in (_WARMS_UP, _TIMED):  # the first batch of a network is slow
            each = -(-pairs // len(some))
            pool = replace(plan.pool, shards=tuple(replace(shard, most=each) for shard in some))
            sample = replace(plan, pool=pool, within=None)
            run = fill(Path(folder) / f"{pairs}", sample, {}, Local(1), quiet=True)
        status = read_record(Path(folder) / f"{pairs}" / "status.json")
        took = {name: seconds / max(status["rows"], 1) for name, seconds in status["took"].items()}
        hosts = sum(took.get(node.name, 0.0) for node in plan.nodes if node.host)  # reading waits for these too
        yield run, {**took, READING: max(0.0, took.get(READING, 0.0) - hosts)}


def _check_first_shard(plan: Plan) -> None:
    """Raises PoolError if no sample of the first shard has what is needed: a setting names a wrong member or column."""
    for shard in plan.pool.shards if plan.required else ():
        absence = MissingParts(plan.required)
        try:
            if not all(absence.add(sample) for sample in shard.samples()):
                return
        except Exception as error:  # a store may raise anything; the shard's worker will report it
            log.debug("%s cannot be checked: %s", shard.url, error)
            return
        if absence.rows:
            remedy = "'caption: WHERE' under 'pool', or --caption"
            if {"image", "size"} & {*absence.reasons}:
                table = plan.pool.kind == "table"
                remedy = "'image: COLUMN' under 'pool', or --image" if table else "--image-extensions"
            raise PoolError(f"{shard.url}: {absence}. Nothing was scored; name the right one with {remedy}")


def _tally(run: Run, shards: Sequence[Shard], tasks: Sequence[Task], failed: Mapping[str, str]) -> Tally:
    """Returns a counter. It takes the sizes of shards from the index, or from files next to the tars."""
    missing = {task.shard.name: task.shard for task in tasks}
    failed = {name: error for name, error in failed.items() if name not in missing}
    done = len(shards) - len(missing) - len(failed)
    if not tasks:
        return Tally(len(shards), done, expected={}, failed=failed)
    if some := {task.shard.name: int(np.count_nonzero(task.rows)) for task in tasks if task.rows is not None}:
        return Tally(len(shards), done, expected=some, failed=failed)  # of the rows asked for
    try:
        indexed = dict(zip(run.shards, run.sizes, strict=True))
    except RunError:  # a damaged part, which its shard's worker will report
        indexed = {}
    sizes = indexed | known_pairs([shard for name, shard in missing.items() if name not in indexed])
    expected = {name: sizes.get(name) for name in missing}
    pairs_done = sum(indexed.get(shard.name, 0) for shard in shards if shard.name not in missing)
    return Tally(len(shards), done, expected=expected, pairs_done=pairs_done, failed=failed)


def _warn_of_changes(run: Run, pool: Pool) -> None:
    """Warns of local files that changed after they were indexed: their scores describe the old content."""
    if not pool.shards or is_remote(pool.shards[0].url):
        return  # asking a store for every file would take too long
    try:
        stamps = dict(zip(run.shards, run.stamps, strict=True))
    except RunError:  # as above
        return
    changed = [shard.name for shard in pool.shards if (old := stamps.get(shard.name)) and has_changed(shard, old)]
    if changed:
        text = "%s of another size or time than when indexed; to read one again, delete %s"
        log.warning(text, plural(len(changed), "shard"), run.index_path(changed[0]))


def _read_failures(path: Path, pool: Pool) -> tuple[dict[str, str], frozenset[str]]:
    """Returns the errors of shards that failed earlier, and those that were cut and whose files have changed since.

    Removes records of shards that left the pool with their file, and of shards whose parts exist.
    """
    shards = {shard.name: shard for shard in pool.shards}
    changed, failed = set(), {}
    for name in sorted(files(path / "failures", ".json")):
        record = {"url": "", **read_record(failure_path(path, name))}
        if name not in shards:
            gone = not is_remote(record["url"]) and not os.path.exists(record["url"])
            if gone and not record.get("cut"):  # else its index lacks rows
                failure_path(path, name).unlink(missing_ok=True)
        elif record.get("lacking") is not None and not record.get("cut") and not list_lacking(path, record):
            failure_path(path, name).unlink(missing_ok=True)  # the parts exist by now
        else:
            failed[name] = record["error"]
            if was_cut(path, shards[name]):
                changed.add(name)
    if changed:
        log.info("%d shards that were cut have changed since: they are read again", len(changed))
    return failed, frozenset(changed)
