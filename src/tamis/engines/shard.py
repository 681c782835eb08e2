"""One shard: read once, decoded once, and every missing part made from that.

`BatchReader` yields decoded batches, and `_prepare_ahead` keeps a few ready. `ShardWorker` computes nodes and writes
parts; nodes that use the model's device run in the caller's thread.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tamis.core.arrays import Mask, Rows
from tamis.core.errors import (
    DamageError,
    ScatteredError,
    ShardError,
    SignalError,
    StopError,
    UnreachedError,
    first_line,
)
from tamis.core.files.remote import is_unreached
from tamis.core.ids import image_xxh3, json_digest
from tamis.core.processes import prefetch_items
from tamis.core.types import Node, Sample, Samples, Signal
from tamis.engines.plan import Output, Plan, Task
from tamis.engines.progress import READING, ShardReport, record, was_cut
from tamis.pools.images import fill_pixels, group_by_bytes, hide_warnings
from tamis.pools.source import MissingParts, SampleFault
from tamis.runs import parts, tags
from tamis.runs.claims import claim_shard
from tamis.runs.manifest import forget
from tamis.runs.parts import write_side_files
from tamis.runs.reread import read_images_again
from tamis.runs.writers import IndexWriter, PartWriter, RowsWriter, ScoreWriter, TextsWriter, Unfinished, drop_unneeded
from tamis.signals.features.sources import DecodedImages
from tamis.signals.graph import Executor, NodeFault, Values, topological

Writers = dict[Output, PartWriter]
Progress = Callable[[int], None]  # gets the number of samples of every finished batch

#: Seconds before retrying a claimed shard.
_WAIT_SECONDS = 0.2

#: Smaller shards are not judged: having no captions may be chance.
_ENOUGH_TO_JUDGE = 20

_AHEAD = 2  # most batches that are ready for the model
_TOGETHER = 32  # images per group to decode, or two per thread if that is more
_TOGETHER_BYTES = 128 << 20  # most bytes of a group, read and decoded; a larger image is decoded alone
_BATCH_BYTES = 256 << 20  # most bytes of a batch, read and decoded; large images make smaller batches
_HELD_BYTES = 384 << 20  # most bytes of all batches that wait, and of the one in use
_CAPTIONS = 1024  # samples of a batch without images: captions are short, and sorting them by length pays


class ShardWorker:
    """Does shards one after the other, with models loaded once. Any number of processes may work in one run."""

    def __init__(self, plan: Plan, run: Path, *, decoders: int = 4, executor: Executor | None = None) -> None:
        """`decoders` is a number of threads; without an `executor` the worker computes nodes with its own models."""
        self.plan, self.run, self.decoders = plan, run, decoders
        self.executor = executor or plan.executor or Executor(plan.device)

    def do(self, task: Task, progress: Progress) -> ShardReport:
        """Makes the missing parts of a shard and reports its errors. Raises StopError if all would fail alike."""
        start, before = time.perf_counter(), dict(self.executor.seconds)
        report = ShardReport(shard=task.shard.name)
        broken: SignalError | None = None
        try:
            with claim_shard(self.run, task.shard.name) as acquired:
                if not acquired:
                    time.sleep(_WAIT_SECONDS)
                    report.elsewhere = True
                    return report
                broken = self._make_missing(task, progress, report)
                report.seconds = time.perf_counter() - start
                for name, total in self.executor.seconds.items():
                    if (seconds := total - before.get(name, 0.0)) > 0:
                        report.took[name] = seconds
                record(self.run, task, report)
        except OSError as error:  # writing the claim failed; the shard's own errors are in the report
            report.error = f"its claim cannot be kept: {error}"
            record(self.run, task, report)
        if broken is not None:
            raise broken
        return report

    def _make_missing(self, task: Task, progress: Progress, report: ShardReport) -> SignalError | None:
        """Makes the parts still missing; reports errors, and returns the error of a signal that broke a promise."""
        try:
            missing = self._find_missing(task)
            # Their side files may still be missing.
            for output in set(task.outputs).difference(*(some.outputs for some in missing)):
                write_side_files(self.run / output.folder, output.node, self.plan.device)
            broken = [self._make(some, progress, report) for some in missing]
            drop_unneeded(self.run, task.shard.name)
            return next(filter(None, broken), None)
        except (ShardError, DamageError) as error:  # parts of other shards may be fine
            report.error = str(error)
            report.unreached = isinstance(error, UnreachedError)
        except StopError:
            raise
        except Exception as error:
            report.error = f"{type(error).__name__}: {error}"
            report.detail = traceback.format_exc()
        return None

    def _find_missing(self, task: Task) -> list[Task]:
        """Returns what is still missing of a task, by rows: another process may have made some since the plan."""
        paths = {output: output.path(self.run, task.shard.name) for output in task.outputs}
        for output, path in paths.items():
            if output.kind == "index" and (not path.is_file() or was_cut(self.run, task.shard)):
                return [task]
        missing: dict[bytes | None, Task] = {}
        for output, path in paths.items():
            rows = task.rows
            if path.is_file():
                done = parts.covered_rows(path) if output.kind == "scores" else None
                if done is None or not (rows := ~done if rows is None else rows & ~done).any():
                    continue
            key = None if rows is None else rows.tobytes()
            before = missing.get(key)
            missing[key] = replace(task, outputs=(*(before.outputs if before else ()), output), rows=rows)
        return list(missing.values())

    def _make(self, task: Task, progress: Progress, report: ShardReport) -> SignalError | None:
        # What is stored already, what is to be computed of it, and whether the file must be read for that.
        stored = self._read_stored(task)
        empty: Values = {Samples(): [], **{node: rows[:0] for node, rows in stored.items()}}
        nobody = task.rows is not None and not task.rows.any()
        nodes = [] if nobody else topological([one.node for one in task.outputs if one.node is not None], empty)
        self.executor.try_empty(nodes, empty)
        making_index = any(output.kind == "index" for output in task.outputs)
        reads_file = making_index or reads_files(nodes)
        # The stamp is taken before reading, so that a change in the middle is noticed later.
        stamp = _stamp(task) if making_index else parts.index_facts(self._index_path(task)).stamp
        writers = {output: self._writer(output, task, stamp) for output in task.outputs}
        # Rows of an interrupted attempt are taken over, and reading begins behind them.
        kept = self._open_unfinished(task, stamp, stored, writers)
        before, done = report.rows, len(kept.uids)
        report.rows, report.statuses = before + done, report.statuses + kept.statuses
        reader = BatchReader(self.plan, task, self._index_path(task), self.decoders, kept)
        if making_index:
            # The index says of every image whether it decodes, whichever signals run first. A header does not tell.
            batches = reader.from_file(decodes=True, keeps_pixels=reads_files(nodes))
        else:
            batches = reader.as_indexed(decodes=DecodedImages() in nodes) if reads_file else reader.from_index()
            reads_file = reads_file and task.rows is None  # else it is not read to its end
        faults: dict[Node, NodeFault] = {}
        prepare = self._make_prepare([node for node in nodes if node.host], stored, faults, done)
        try:
            for values, samples in _prepare_ahead(batches, prepare, report):
                self.executor.compute(nodes, values, faults)
                _add(writers, values, samples)
                if not faults:  # do not save rows with a fault: a retry must recompute them
                    kept.add(samples)
                report.statuses.update(sample.status for sample in samples)
                report.rows += len(samples)
                progress(len(samples))
        except DamageError:  # saved rows or a stored feature do not match this file
            kept.drop()
            raise
        # Nothing came of it: an error is raised before a part says that the shard is done.
        ending = reader.ending
        again = making_index and self._index_path(task).is_file()
        no_parts = report.rows == before or again or isinstance(ending, UnreachedError | ScatteredError)
        if ending is not None and no_parts:
            raise ending  # so that the next run tries again: the file may be fine, or the rows are halves of samples
        if report.rows == before and not nobody:
            self.executor.compute(nodes, empty, faults)
            _add(writers, empty, [])
        if ending is not None:
            report.cut = report.error = str(ending)
            record(self.run, task, report)  # before the parts: a kill in between would hide that rows are missing
        self._write(task, writers, faults)
        kept.drop()
        if ending is not None:
            raise ending
        report.read = reads_file
        if making_index:
            report.left_out = task.shard.left_out
        return _report_faults(faults, report)

    def _open_unfinished(self, task: Task, stamp: str, stored: dict[Node, Any], writers: Writers) -> Unfinished:
        what = {  # saved rows can be used if these are the same
            "outputs": [output.folder for output in task.outputs],
            "given": sorted(self.plan.storable[node].folder for node in stored),
            "batch_size": self.plan.device.batch_size,
        }
        if task.rows is not None:
            what["rows"] = json_digest(np.flatnonzero(task.rows).tolist())
        by_path = {output.path(self.run, task.shard.name): writer for output, writer in writers.items()}
        return Unfinished(self.run, task.shard.name, stamp, what, by_path)

    def _make_prepare(
        self, host: Sequence[Node], stored: dict[Node, Any], faults: dict[Node, NodeFault], row: int
    ) -> Callable[[list[Sample]], Values]:
        """Returns a function that computes the host nodes of a batch; batches come in order from `row`."""

        def prepare(batch: list[Sample]) -> Values:
            nonlocal row
            values: Values = {Samples(): batch}
            for node, rows in stored.items():
                stored_rows = rows[row : row + len(batch)]
                values[node] = stored_rows if isinstance(stored_rows, list) else np.asarray(stored_rows)
            row += len(batch)
            for node in host:  # a node that needs the model's results is computed later
                if all(needed in values for needed in node.needs().values()):
                    self.executor.compute([node], values, faults)
            return values

        return prepare

    def _writer(self, output: Output, task: Task, stamp: str) -> PartWriter:
        if output.kind == "index":
            return IndexWriter(self.plan.in_index, source=task.shard.url, stamp=stamp)
        if output.kind == "scores":
            assert isinstance(output.node, Signal)
            return ScoreWriter(output.node, task.rows, task.outside)
        return RowsWriter() if output.kind == "embeddings" else TextsWriter()

    def _read_stored(self, task: Task) -> dict[Node, Any]:
        """Returns the shard's features that are on disk and need not be computed."""
        if any(output.kind == "index" for output in task.outputs):
            return {}  # rows may have changed
        missing = {output.folder for output in task.outputs}
        owner = parts.index_facts(self._index_path(task))
        features: dict[Node, Any] = {}
        for node, output in self.plan.storable.items():
            path = output.path(self.run, task.shard.name)
            if output.folder not in missing and path.is_file():
                read = parts.read_rows if output.kind == "embeddings" else parts.read_text_lists
                features[node] = read(path, owner)
        if task.rows is not None:
            rows = np.flatnonzero(task.rows)
            for node, found in features.items():
                features[node] = [found[row] for row in rows.tolist()] if isinstance(found, list) else found[rows]
        return features

    def _write(self, task: Task, writers: Writers, faults: dict[Node, NodeFault]) -> None:
        for output, writer in writers.items():  # the index is the first
            path = output.path(self.run, task.shard.name)
            if isinstance(writer, IndexWriter) and not writer.has_rows_of(path):
                tags.carry(self.run, task.shard.name, parts.uids_of(writer.table()))
                forget(self.run, [task.shard.name])  # parts of the old rows
            if output.node not in faults:
                write_side_files(path.parent, output.node, self.plan.device)
                writer.write(path, "" if output.kind == "index" else parts.index_facts(self._index_path(task)).uids)

    def _index_path(self, task: Task) -> Path:
        return self.run / "index" / f"{task.shard.name}.parquet"


def reads_files(nodes: Sequence[Node]) -> bool:
    """Whether nodes need something of the samples that the index does not hold."""
    return any(Samples() in node.needs().values() and not node.in_index for node in nodes)


def _add(writers: Writers, values: Values, samples: Sequence[Sample]) -> None:
    for output, writer in writers.items():
        value = values[output.node] if output.node is not None else None
        if not isinstance(value, NodeFault):
            writer.add(value, samples)


def _report_faults(faults: dict[Node, NodeFault], report: ShardReport) -> SignalError | None:
    """Puts the nodes that failed into the report; returns the first broken promise."""
    distinct = list({str(fault): fault for fault in faults.values()}.values())
    if distinct:
        report.error = "; ".join(map(str, distinct))
        report.detail = "\n".join(fault.trace for fault in distinct if fault.trace) or None
    return next((fault.error for fault in distinct if isinstance(fault.error, SignalError)), None)


def _stamp(task: Task) -> str:
    try:
        return task.shard.stamp()
    except Exception as error:
        kind = UnreachedError if is_unreached(error) else ShardError
        raise kind(f"{task.shard.url}: cannot be read: {first_line(error)}") from error


class BatchReader:
    """Reads one shard, from its file or from its index, in batches.

    With `task.rows`, only those. Rows in `kept` are neither decoded nor yielded. `ending`: why the file could not be
    read to its end.
    """

    def __init__(self, plan: Plan, task: Task, index: Path, decoders: int, kept: Unfinished) -> None:
        self.plan, self.shard, self.index, self.decoders, self.kept = plan, task.shard, index, decoders, kept
        self.rows: Mask | None = task.rows
        self.ending: ShardError | None = None
        self._before: list[Sample] = []  # the last of the group before

    def from_file(self, *, decodes: bool, keeps_pixels: bool = True) -> Iterator[list[Sample]]:
        """Yields batches of samples; with `keeps_pixels` False, only sizes and errors of images matter."""
        decodes = decodes and self.plan.pool.has_images
        size = self.plan.device.batch_size if decodes else max(_CAPTIONS, self.plan.device.batch_size)
        limits = {"size": _TOGETHER_BYTES, "max_pixels": self.plan.pool.spec.max_pixels}
        with ExitStack() as stack:
            threads = None
            if decodes and self.decoders > 1:  # with one thread, passing samples to it would cost more than it gains
                threads = stack.enter_context(ThreadPoolExecutor(self.decoders, "tamis-decode"))
            batch: list[Sample] = []
            held = 0
            for group, weight in group_by_bytes(self._samples(), max(_TOGETHER, 2 * self.decoders), **limits):
                if batch and held + weight > _BATCH_BYTES:
                    yield batch
                    batch, held = [], 0
                if decodes:
                    self._decode(group, threads, keeps_pixels)
                batch += group
                held += _weigh(group)
                while len(batch) >= size:
                    yield batch[:size]
                    batch = batch[size:]
                    held = _weigh(batch)
                if held >= _BATCH_BYTES:
                    yield batch
                    batch, held = [], 0
            if batch:
                yield batch

    def _decode(self, samples: list[Sample], threads: ThreadPoolExecutor | None, keeps_pixels: bool) -> None:
        spec = self.plan.pool.spec
        how: dict[str, Any] = {"transparency": spec.transparency, "keeps_pixels": keeps_pixels}

        def fill(some: list[Sample]) -> None:
            for sample in some:
                fill_pixels(sample, max_pixels=spec.max_pixels, **how)

        repeats = [
            (one, next_) for one, next_ in pairwise([*self._before, *samples]) if next_.image is one.image is not None
        ]
        self._before = samples[-1:]
        skipped = {id(sample) for _, sample in repeats}
        own = [sample for sample in samples if id(sample) not in skipped]
        with hide_warnings(spec.max_pixels):
            if threads is None or len(own) <= 1:
                fill(own)
            else:
                count = min(self.decoders, len(own))
                list(threads.map(fill, [own[first::count] for first in range(count)]))
            for one, sample in repeats:  # other captions of its image
                sample.pixels, sample.hidden, sample.transparent = one.pixels, one.hidden, one.transparent
                sample.width, sample.height = one.width, one.height
                if not sample.width:
                    fill([sample])  # it fails again, and marks this sample too

    def as_indexed(self, *, decodes: bool) -> Iterator[list[Sample]]:
        """Yields batches from the file; raises ShardError at a sample that is not in its row of the index."""
        if self.rows is not None:
            yield from self.from_file(decodes=decodes)
            return
        names = ["uid_hi", "uid_lo", "key", "image_bytes", "image_xxh3", "caption"]
        rows = parts.read_columns(self.index, names).to_pylist()
        start = len(self.kept.uids)
        for batch in self.from_file(decodes=decodes):
            for number, sample in enumerate(batch, start):
                if number >= len(rows):
                    raise self._error_of_change(f"more samples than its index, {len(rows):,}")
                self._compare(number, sample, rows[number])
            start += len(batch)
            yield batch
        if start < len(rows) and self.ending is not None:
            raise self.ending
        if start != len(rows):
            raise self._error_of_change(f"{start:,} samples, its index {len(rows):,}")

    def from_index(self) -> Iterator[list[Sample]]:
        """Yields batches of samples from the index: all but the image."""
        samples = iter(self._read_index())
        while batch := list(islice(samples, max(_CAPTIONS, self.plan.device.batch_size))):
            yield batch

    def _read_index(self) -> list[Sample]:
        """Returns the samples to do from the index, without their images."""
        samples = parts.read_samples(self.index, self.plan.pool.spec.fields)
        if self.rows is not None:
            samples = [samples[row] for row in np.flatnonzero(self.rows).tolist()]
        for number, sample in enumerate(samples[: len(self.kept.uids)]):
            self.kept.check(number, sample)
        return samples[len(self.kept.uids) :]

    def _samples(self) -> Iterator[Sample]:
        if self.rows is None:
            yield from self._read_until_error()
            return
        samples, rows = self._read_index(), np.flatnonzero(self.rows)[len(self.kept.uids) :]
        if self.plan.pool.has_images:
            yield from self._read_images(samples, rows)
        else:
            yield from samples

    def _read_images(self, samples: Sequence[Sample], rows: Rows) -> Iterator[Sample]:
        """Yields samples with the bytes of their images, and reads no others of the file."""
        image, digest = None, None  # of the last: the next may be another caption of it
        for sample, row, (was, found) in zip(
            samples, rows.tolist(), read_images_again(self.shard, self.index, rows), strict=True
        ):
            if found is not None:
                if isinstance(found, SampleFault) or found.sample.image is None:
                    how = found.reason if isinstance(found, SampleFault) else "it has no image"
                    raise self._error_of_change(f"another sample in row {row:,}: {how}")
                image, digest = image if digest == was["image_xxh3"] else found.sample.image, was["image_xxh3"]
                sample.image, sample.given = image, {**found.sample.given, **sample.given}
            yield sample

    def _compare(self, number: int, sample: Sample, was: dict[str, Any]) -> None:
        now = {
            "key": sample.key,
            "caption": sample.shown_caption,
            "image_bytes": sample.image_bytes,
            "image_xxh3": was["image_xxh3"] if sample.image is None else image_xxh3(sample.image),
            "uid_hi": sample.uid[0],
            "uid_lo": sample.uid[1],
        }
        if now != was:
            name = next(name for name in now if now[name] != was[name])
            new, old = (repr(str(row[name])[:60]) for row in (now, was))
            raise self._error_of_change(f"another {name} in row {number:,} ({new}, was {old})")

    def _error_of_change(self, how: str) -> ShardError:
        name = self.shard.name
        return ShardError(f"the shard {name} now has {how}: restore its file, or delete {self.index} to read it again")

    def _read_until_error(self) -> Iterator[Sample]:
        absence, done = MissingParts(self.plan.required), len(self.kept.uids)  # `absence` fills up as samples pass
        try:
            for number, sample in enumerate(self.shard.samples()):
                absence.add(sample)
                if number < done:
                    self.kept.check(number, sample)
                else:
                    yield sample
            if absence.reasons and absence.rows >= _ENOUGH_TO_JUDGE:
                raise ShardError(f"{self.shard.url}: {absence}")
        except ShardError as error:
            self.ending = error


def _prepare_ahead(
    batches: Iterator[list[Sample]], prepare: Callable[[list[Sample]], Values], report: ShardReport
) -> Iterator[tuple[Values, list[Sample]]]:
    """Yields batches that a thread prepares, a few ahead, with their samples; reports the time spent waiting."""
    made = prefetch_items(
        lambda: ((prepare(batch), batch) for batch in batches),
        depth=_AHEAD,
        weigh=lambda made: _weigh(made[1]),
        most=_HELD_BYTES,
    )
    while True:
        start = time.perf_counter()
        batch = next(made, None)
        report.took[READING] = report.took.get(READING, 0.0) + time.perf_counter() - start
        if batch is None:
            return
        yield batch
        del batch  # free its memory before waiting for the next


def _weigh(samples: list[Sample]) -> int:
    """Returns the size of the samples' images in bytes, as read and as decoded; one of several captions counts once."""
    read = {id(sample.image): len(sample.image) for sample in samples if sample.image is not None}
    decoded = {id(sample.pixels): sample.pixels.nbytes for sample in samples if sample.pixels is not None}
    return sum(read.values()) + sum(decoded.values())
