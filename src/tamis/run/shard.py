"""One shard: read once, decoded once, every missing part made from that.

Reading, decoding, resizing and tokenising run in threads beside the model, a few batches ahead; the nodes that need
the model's device run in the caller's thread.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tamis.data import Node, Sample, Samples, Scorer
from tamis.errors import DamageError, ScorerError, ShardError, StopError, UnreachedError
from tamis.features.sources import DecodedImages
from tamis.graph import Executor, Fault, Values, topological
from tamis.remote import unreached
from tamis.run.failures import READING, ShardReport, record
from tamis.run.plan import Output, Plan, Task
from tamis.run.reading import ShardReader, ahead
from tamis.store import parts
from tamis.store.checked import Owner
from tamis.store.claims import claimed
from tamis.store.manifest import forget
from tamis.store.side_files import write_side_files
from tamis.store.unfinished import Unfinished, drop_unneeded
from tamis.store.writers import IndexWriter, PartWriter, RowsWriter, ScoreWriter, TextsWriter

if TYPE_CHECKING:
    from tamis.run.device_process import AtDevice

log = logging.getLogger(__name__)

T = TypeVar("T")

Progress = Callable[[int], None]

#: Before a shard that another process is at is looked for again.
_POLITE_SECONDS = 0.2


class ShardWorker:
    """Does shards, one after the other, with models loaded once. Any number of processes may work in one run."""

    def __init__(
        self, plan: Plan, run: Path, *, decoders: int = 4, executor: Executor | AtDevice | None = None
    ) -> None:
        """Args:
        plan: what the run shall hold, and on which device.
        run: its folder.
        decoders: threads that decode images.
        executor: computes the nodes; None: this process does, with models of its own.
        """
        self.plan = plan
        self.run = run
        self.decoders = decoders
        self.executor = executor or Executor(plan.device)

    def do(self, task: Task, progress: Progress) -> ShardReport:
        """Makes the missing parts of a shard.

        Args:
            task: the shard and what it lacks.
            progress: called with the number of samples of every batch that is done.

        Returns:
            What became of it. Whatever goes wrong with the shard is in there.

        Raises:
            StopError: what went wrong is not the shard's: no other shard would go better.
        """
        start, took = time.perf_counter(), dict(self.executor.seconds)
        report = ShardReport(shard=task.shard.name)
        faulty: ScorerError | None = None
        try:
            with claimed(self.run, task.shard.name) as mine:
                if not mine:
                    time.sleep(_POLITE_SECONDS)
                    report.elsewhere = True
                    return report
                faulty = self._make(task, progress, report)
                report.seconds = time.perf_counter() - start
                for name, total in self.executor.seconds.items():
                    if (seconds := total - took.get(name, 0.0)) > 0:
                        report.took[name] = seconds
                record(self.run, task, report)
        except OSError as error:  # the claim's file: what is of the shard is in the report already
            report.error = f"its claim cannot be kept: {error}"
            record(self.run, task, report)
        if faulty is not None:
            raise faulty
        return report

    def _make(self, task: Task, progress: Progress, report: ShardReport) -> ScorerError | None:
        """Makes what is left of a shard that is claimed; puts what goes wrong with it into the report.

        Returns:
            The fault of a scorer that breaks its promise.
        """
        # Another process may have made some since the plan; what is there is not made again.
        left = [output for output in task.outputs if not output.path(self.run, task.shard.name).is_file()]
        if any(output.kind == "index" for output in left):
            left = list(task.outputs)
        try:
            for output in set(task.outputs) - set(left):  # its part is there: its side files may not be
                if isinstance(output.node, Scorer):
                    write_side_files(self.run / output.folder, output.node, self.plan.device)
            if left:
                return self._do(replace(task, outputs=tuple(left)), progress, report)
            drop_unneeded(self.run, task.shard.name)
        except (ShardError, DamageError) as error:  # another shard's parts may be whole
            report.error = str(error)
            report.unreached = isinstance(error, UnreachedError)
        except StopError:
            raise
        except Exception as error:
            report.error = f"{type(error).__name__}: {error}"
            report.detail = traceback.format_exc()
        return None

    def _do(self, task: Task, progress: Progress, report: ShardReport) -> ScorerError | None:
        """Does the work; returns the fault of a scorer that breaks its promise, once all else of the shard is made."""
        stored = self._stored(task)
        wanted = [output.node for output in task.outputs if output.node is not None]
        nodes = topological(wanted, {Samples(): [], **stored})
        given = {node: rows[:0] for node, rows in stored.items()}
        self.executor.try_empty(nodes, {Samples(): [], **given})
        index = next((output for output in task.outputs if output.kind == "index"), None)
        reads_file = index is not None or _looks_at_files(nodes)
        # The stamp is taken before reading: a file that changes meanwhile is noticed later.
        stamp = _stamp(task) if index is not None else parts.index_facts(self._index_path(task)).stamp
        writers = {output: self._writer(output, task, stamp) for output in task.outputs}
        made = {output.path(self.run, task.shard.name): writer for output, writer in writers.items()}
        kept = Unfinished(self.run, task.shard.name, stamp, self._what(task, stored), made)
        reader = self._reader(task, kept)
        report.rows, report.statuses = len(kept.uids), Counter(kept.statuses)
        faults: dict[Node, Fault] = {}
        batches = self._batches(reader, index is not None, nodes)
        preparing = _Preparing(self.executor, [node for node in nodes if node.host], stored, faults, report.rows)
        try:
            for values, samples in _timed(ahead(batches, preparing), report):
                self.executor.compute(nodes, values, faults)
                _add(writers, values, samples)
                if not faults:  # what fails may be mended before the next try, and is not done then
                    kept.add(samples)
                for sample in samples:
                    report.statuses[sample.status] += 1
                report.rows += len(samples)
                progress(len(samples))
        except DamageError:  # what was kept, or a part that was read, is not of this file: no try would go better
            kept.drop()
            raise
        if reader.ending is not None and (report.rows == 0 or isinstance(reader.ending, UnreachedError)):
            # No parts, so that the next run tries again: nothing could be read, or a store did not answer, whose file
            # may be whole.
            raise reader.ending
        if report.rows == 0:
            empty: Values = {Samples(): [], **given}
            self.executor.compute(nodes, empty, faults)
            _add(writers, empty, [])
        if reader.ending is not None:
            report.cut = report.error = str(reader.ending)
            record(self.run, task, report)  # before the parts: a kill in between would hide that rows are missing
        self._write(task, writers, faults)
        kept.drop()
        if reader.ending is not None:
            raise reader.ending
        report.read = reads_file
        return _tell(faults, report)

    def _what(self, task: Task, stored: dict[Node, Any]) -> dict[str, Any]:
        """Returns what decides the rows that are made of a shard's file, and the batches that they are made in."""
        outputs = [output.folder for output in task.outputs]
        given = sorted(self.plan.storable[node].folder for node in stored)
        return {"outputs": outputs, "given": given, "batch_size": self.plan.device.batch_size}

    def _reader(self, task: Task, kept: Unfinished) -> ShardReader:
        pool = self.plan.pool
        return ShardReader(
            shard=task.shard,
            spec=pool.spec,
            index=self._index_path(task),
            batch_size=self.plan.device.batch_size,
            has_images=pool.has_images,
            decoders=self.decoders,
            needed=self.plan.needed,
            skip=kept,
        )

    def _batches(self, reader: ShardReader, making_index: bool, nodes: Sequence[Node]) -> Iterator[list[Sample]]:
        looks = _looks_at_files(nodes)
        if making_index:
            return reader.from_file(decodes=True, keeps_pixels=looks)
        return reader.as_indexed(decodes=DecodedImages() in nodes) if looks else reader.from_index()

    def _writer(self, output: Output, task: Task, stamp: str) -> PartWriter:
        if output.kind == "index":
            return IndexWriter(self.plan.in_index, source=task.shard.url, stamp=stamp)
        if output.kind == "scores":
            assert isinstance(output.node, Scorer)
            return ScoreWriter(output.node)
        return RowsWriter() if output.kind == "embeddings" else TextsWriter()

    def _stored(self, task: Task) -> dict[Node, Any]:
        """Returns the features of the shard that are on disk already: they need not be made again."""
        if any(output.kind == "index" for output in task.outputs):
            return {}  # rows may have changed
        missing = {output.folder for output in task.outputs}
        owner = self._owner(self._index_path(task))
        found: dict[Node, Any] = {}
        for node, output in self.plan.storable.items():
            path = output.path(self.run, task.shard.name)
            if output.folder not in missing and path.is_file():
                read = parts.read_rows if output.kind == "embeddings" else parts.read_text_lists
                found[node] = read(path, owner)
        return found

    def _owner(self, index: Path) -> Owner:
        facts = parts.index_facts(index)
        return Owner(facts.rows, facts.uids)

    def _write(self, task: Task, writers: dict[Output, PartWriter], faults: dict[Node, Fault]) -> None:
        for output, writer in writers.items():  # the index is the first
            path = output.path(self.run, task.shard.name)
            if isinstance(writer, IndexWriter):
                if writer.is_written(path):
                    continue
                forget(self.run, [task.shard.name])  # parts of other rows would stand beside these
            if output.node not in faults:
                if isinstance(output.node, Scorer):
                    write_side_files(path.parent, output.node, self.plan.device)
                writer.write(path, "" if output.kind == "index" else parts.index_facts(self._index_path(task)).uids)

    def _index_path(self, task: Task) -> Path:
        return self.run / "index" / f"{task.shard.name}.parquet"


class _Preparing:
    """Computes what runs beside the model, for one batch after the other."""

    def __init__(
        self,
        executor: Executor | AtDevice,
        host: Sequence[Node],
        stored: dict[Node, Any],
        faults: dict[Node, Fault],
        row: int,
    ) -> None:
        self.executor, self.host, self.stored, self.faults = executor, host, stored, faults
        self.row = row

    def __call__(self, batch: list[Sample]) -> Values:
        values: Values = {Samples(): batch}
        for node, rows in self.stored.items():
            some = rows[self.row : self.row + len(batch)]
            values[node] = some if isinstance(some, list) else np.asarray(some)
        self.row += len(batch)
        for node in self.host:  # one that waits for the model's results is computed with them
            if all(needed in values for needed in node.needs().values()):
                self.executor.compute([node], values, self.faults)
        return values


def _looks_at_files(nodes: Sequence[Node]) -> bool:
    """Tells whether nodes look at more of samples than the index holds."""
    return any(Samples() in node.needs().values() and not node.in_index for node in nodes)


def _add(writers: dict[Output, PartWriter], values: Values, samples: Sequence[Sample]) -> None:
    for output, writer in writers.items():
        value = values[output.node] if output.node is not None else None
        if not isinstance(value, Fault):
            writer.add(value, samples)


def _tell(faults: dict[Node, Fault], report: ShardReport) -> ScorerError | None:
    """Puts the nodes that failed into the report; returns the first that broke a promise."""
    own = list({str(fault): fault for fault in faults.values()}.values())
    if own:
        report.error = "; ".join(map(str, own))
        report.detail = "\n".join(fault.trace for fault in own if fault.trace) or None
    return next((fault.error for fault in own if isinstance(fault.error, ScorerError)), None)


def _timed(batches: Iterator[T], report: ShardReport) -> Iterator[T]:
    """Yields batches, and adds the time that they were waited for to a report."""
    while True:
        start = time.perf_counter()
        batch = next(batches, None)
        report.took[READING] = report.took.get(READING, 0.0) + time.perf_counter() - start
        if batch is None:
            return
        yield batch


def _stamp(task: Task) -> str:
    try:
        return task.shard.stamp()
    except Exception as error:
        kind = UnreachedError if unreached(error) else ShardError
        raise kind(f"{task.shard.url}: cannot be read: {type(error).__name__}: {error}") from error
