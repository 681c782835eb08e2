"""One shard: read once, decoded once, every missing part made from that.

Reading, decoding, resizing and tokenising run in threads beside the model, a few batches ahead; the nodes that need
the model's device run in the caller's thread.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tamis.data import KEEPS, Floats, Node, Sample, Samples, Scorer, topological
from tamis.errors import ShardError, StopError
from tamis.features.sources import DecodedImages
from tamis.pool import Shard
from tamis.pool.images import fill_pixels
from tamis.run.plan import Output, Plan, Task
from tamis.store import parts
from tamis.store.atomic import read_json, write_json
from tamis.store.manifest import forget
from tamis.store.side_files import write_side_files

log = logging.getLogger(__name__)


_AHEAD = 2  # batches that wait for the model
_DECODE_THREADS = 4
_TOGETHER = 8  # images decoded at once; with the limit on pixels this bounds memory
_BATCH_BYTES = 256 << 20  # decoded images of a batch; larger ones make smaller batches


@dataclass(kw_only=True)
class ShardReport:
    """What became of a shard.

    Attributes:
        rows: samples read.
        statuses: how many rows have which status.
        seconds: time it took.
        read: whether the shard's file was read, to its end.
        cut: why the file could not be read to its end, though rows before that are kept.
        error: what went wrong; None where nothing did. Rows read before are kept, where there were any.
        detail: the traceback of an error that we did not expect.
    """

    shard: str
    rows: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    read: bool = False
    cut: str | None = None
    error: str | None = None
    detail: str | None = None


Progress = Callable[[int], None]


class Worker:
    """Does shards, one after the other, with models loaded once."""

    def __init__(self, plan: Plan, run: Path) -> None:
        self.plan = plan
        self.run = run
        self._loaded: dict[Node, Callable[..., Any]] = {}
        self._loading = threading.Lock()

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
        start = time.perf_counter()
        report = ShardReport(shard=task.shard.name)
        try:
            self._do(task, progress, report)
        except StopError:
            raise
        except ShardError as error:
            report.error = str(error)
        except Exception as error:
            report.error = f"{type(error).__name__}: {error}"
            report.detail = traceback.format_exc()
        report.seconds = time.perf_counter() - start
        path = failure_path(self.run, report.shard)
        if not report.read and report.cut is None and path.exists():
            report.cut = read_json(path).get("cut")  # nobody has looked at the file's end since
            report.error = report.error or report.cut
        if report.error is not None:
            write_failure(self.run, task.shard, report)
        else:
            path.unlink(missing_ok=True)
        return report

    def _do(self, task: Task, progress: Progress, report: ShardReport) -> None:
        shard = task.shard.name
        stored = self._stored(shard, task)
        wanted = [output.node for output in task.outputs if output.node is not None]
        nodes = _needed(wanted, stored)
        making_index = any(output.kind == "index" for output in task.outputs)
        reads_shard = making_index or any(
            Samples() in node.needs().values() and not getattr(node, "in_index", False) for node in nodes
        )
        decodes = making_index or DecodedImages() in nodes
        index = parts.IndexRows(self.plan.pool.spec.fields)
        scores: dict[Output, _ScoreRows] = {
            output: _ScoreRows(output.node) for output in task.outputs if isinstance(output.node, Scorer)
        }
        features: dict[Output, list[Any]] = {output: [] for output in task.outputs if output.kind in KEEPS}
        # The stamp is taken before reading: a file that changes meanwhile is noticed later.
        stamp = _stamp(task) if making_index else ""
        ending = _Ending()
        source = self._read(task, decodes, ending) if reads_shard else self._from_index(shard)
        if reads_shard and not making_index:
            source = self._as_indexed(shard, source)
        host = [node for node in nodes if getattr(node, "host", False)]
        for values, samples in _ahead(source, lambda batch, row: self._host(batch, row, host, stored)):
            self._compute(nodes, values)
            for sample in samples:
                if making_index:
                    index.add(sample)
                report.statuses[sample.status] += 1
            for rows in scores.values():
                rows.add(values[rows.node], samples)
            for output, kept in features.items():
                assert output.node is not None
                kept.append(values[output.node])
            report.rows += len(samples)
            progress(len(samples))
        if not making_index:
            self._check_rows(shard, report.rows, ending)
        if ending.error is not None and report.rows == 0:
            raise ending.error  # nothing could be read: no parts, so that the next run tries again
        if making_index:
            forget(self.run, [shard])  # parts of rows that were indexed before would stand beside the wrong rows
        for output in task.outputs:
            path = output.path(self.run, shard)
            if output.kind == "index":
                index.write(path, source=task.shard.url, stamp=stamp)
            elif output.kind == "scores":
                write_side_files(path.parent, scores[output].node, self.plan.device)
                scores[output].write(path)
            elif output.kind in ("captions", "texts"):
                parts.write_texts(path, [row for batch in features[output] for row in batch])
            else:
                parts.write_rows(path, features[output] or [self._empty(output)])
        if ending.error is not None:
            report.cut = str(ending.error)
            raise ending.error
        report.read = reads_shard

    def _empty(self, output: Output) -> Floats:
        assert output.node is not None
        values: dict[Node, Any] = {Samples(): []}
        self._compute(topological([output.node]), values)
        rows: Floats = values[output.node]
        return rows

    def _stored(self, shard: str, task: Task) -> dict[Node, Any]:
        """Returns the features of the shard that are on disk already: they need not be made again."""
        if any(output.kind == "index" for output in task.outputs):
            return {}  # rows may have changed
        missing = {output.folder for output in task.outputs}
        found = {}
        for node, output in self.plan.storable.items():
            path = output.path(self.run, shard)
            if output.folder not in missing and path.exists():
                found[node] = parts.read_rows(path) if output.kind == "embeddings" else parts.read_texts(path)
        return found

    def _check_rows(self, shard: str, rows: int, ending: _Ending) -> None:
        indexed, _, _ = parts.index_facts(self._index_path(shard))
        if rows < indexed and ending.error is not None:
            raise ending.error
        if rows != indexed:
            raise self._changed(shard, f"{rows:,} samples, its index {indexed:,}")

    def _as_indexed(self, shard: str, batches: Iterator[list[Sample]]) -> Iterator[list[Sample]]:
        """Passes batches on as long as they are the samples of the index: else scores would stand in wrong rows."""
        index = parts.read_columns(
            self._index_path(shard), ["uid_hi", "uid_lo", "key", "image_bytes", "caption"]
        ).to_pylist()
        start = 0
        for batch in batches:
            for number, sample in enumerate(batch, start):
                if number >= len(index):
                    raise self._changed(shard, f"more samples than its index, {len(index):,}")
                was = index[number]
                now = {
                    "uid_hi": sample.uid[0],
                    "uid_lo": sample.uid[1],
                    "key": sample.key,
                    "image_bytes": sample.image_bytes,
                    "caption": sample.shown_caption,
                }
                if now != was:
                    what = next(
                        name for name in ("key", "caption", "image_bytes", "uid_hi", "uid_lo") if now[name] != was[name]
                    )
                    raise self._changed(
                        shard,
                        f"another {what} in row {number:,} ({str(now[what])[:60]!r}, was {str(was[what])[:60]!r})",
                    )
            start += len(batch)
            yield batch

    def _index_path(self, shard: str) -> Path:
        return self.run / "index" / f"{shard}.parquet"

    def _changed(self, shard: str, how: str) -> ShardError:
        return ShardError(
            f"the shard {shard} now has {how}: the file has changed. Put the old one back, or delete "
            f"{self._index_path(shard)} to index and score it anew"
        )

    def _read(self, task: Task, decodes: bool, ending: _Ending) -> Iterator[list[Sample]]:
        """Yields batches of decoded samples; what ends the shard early is left in `ending`."""
        limit, size = self.plan.pool.spec.max_pixels, self.plan.device.batch_size
        has_images = self.plan.pool.has_images
        if not decodes or not has_images:
            size = max(1024, size)  # as from the index: captions are short, and sorting them by length pays
        with ThreadPoolExecutor(_DECODE_THREADS) as pool:
            batch: list[Sample] = []
            held = 0
            for some in _chunks(_until_error(task.shard.samples(), ending), _TOGETHER):
                if decodes and has_images:
                    list(pool.map(lambda sample: fill_pixels(sample, max_pixels=limit), some))
                batch += some
                held += sum(sample.pixels.nbytes for sample in some if sample.pixels is not None)
                while len(batch) >= size:
                    yield batch[:size]
                    batch = batch[size:]
                    held = sum(sample.pixels.nbytes for sample in batch if sample.pixels is not None)
                if held >= _BATCH_BYTES:
                    yield batch
                    batch, held = [], 0
            if batch:
                yield batch

    def _from_index(self, shard: str) -> Iterator[list[Sample]]:
        samples = parts.read_samples(self._index_path(shard), self.plan.pool.spec.fields)
        yield from _chunks(iter(samples), max(1024, self.plan.device.batch_size))

    def _host(self, batch: list[Sample], row: int, host: Sequence[Node], stored: dict[Node, Any]) -> dict[Node, Any]:
        values: dict[Node, Any] = {Samples(): batch}
        for node, rows in stored.items():
            some = rows[row : row + len(batch)]
            values[node] = some if isinstance(some, list) else np.asarray(some)
        for node in host:  # one that waits for the model's results is computed with them
            if all(needed in values for needed in node.needs().values()):
                self._compute([node], values)
        return values

    def _compute(self, nodes: Sequence[Node], values: dict[Node, Any]) -> None:
        for node in nodes:
            if node in values:
                continue
            inputs = {argument: values[needed] for argument, needed in node.needs().items()}
            values[node] = self._load(node)(**inputs)

    def _load(self, node: Node) -> Callable[..., Any]:
        with self._loading:  # the reading thread and the model's may meet at a node
            if node not in self._loaded:
                self._loaded[node] = node.load(self.plan.device)
            return self._loaded[node]


class _ScoreRows:
    """Gathers one scorer's columns over a shard."""

    def __init__(self, scorer: Scorer) -> None:
        self.node = scorer
        self._values: dict[str, list[Any]] = {column.name: [] for column in scorer.columns}
        self._reasons: list[str | None] = []

    def add(self, values: dict[str, Any], samples: Sequence[Sample]) -> None:
        given = values.get("reason", [None] * len(samples))
        extra = set(values) - set(self._values) - {"reason"}
        if extra:
            raise AssertionError(f"{self.node.name} emits {sorted(extra)[0]!r}, which it does not declare")
        judged = np.ones(len(samples), bool)
        for column in self.node.columns:
            found = values[column.name]
            if len(found) != len(samples):
                raise AssertionError(f"{self.node.name} gave {len(found)} values for {len(samples)} samples")
            self._values[column.name].append(found)
            lacking = [value is None for value in found] if column.kind == "word" else np.isnan(found)
            judged &= ~np.asarray(lacking, bool)
        for sample, reason, complete in zip(samples, given, judged, strict=True):
            self._reasons.append(None if complete else reason or sample.reason or "the scorer gave no value")

    def write(self, path: Path) -> None:
        values: dict[str, Any] = {}
        for column in self.node.columns:
            pieces = self._values[column.name]
            if column.kind == "word":
                values[column.name] = [word for piece in pieces for word in piece]
            else:
                values[column.name] = np.concatenate(pieces) if pieces else np.empty(0, np.float32)
        parts.write_scores(path, self.node.columns, values, self._reasons)


@dataclass
class _Ending:
    error: ShardError | None = None


def _until_error(samples: Iterator[Sample], ending: _Ending) -> Iterator[Sample]:
    try:
        yield from samples
    except ShardError as error:
        ending.error = error


def _chunks(samples: Iterator[Sample], size: int) -> Iterator[list[Sample]]:
    chunk: list[Sample] = []
    for sample in samples:
        chunk.append(sample)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _stamp(task: Task) -> str:
    try:
        return task.shard.stamp()
    except Exception as error:
        raise ShardError(f"{task.shard.url}: cannot be read: {type(error).__name__}: {error}") from error


def _needed(wanted: Sequence[Node], stored: dict[Node, Any]) -> list[Node]:
    """Returns what must be computed for the wanted nodes, in order, given what is on disk."""
    ordered: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node in ordered or node in stored or node == Samples():
            return
        for needed in node.needs().values():
            visit(needed)
        ordered[node] = None

    for node in wanted:
        visit(node)
    return list(ordered)


_Values = dict[Node, Any]
_Prepare = Callable[[list[Sample], int], _Values]


def _ahead(batches: Iterator[list[Sample]], prepare: _Prepare) -> Iterator[tuple[_Values, list[Sample]]]:
    """Yields prepared batches, made a few ahead in a thread of their own; its errors are raised here."""
    waiting: queue.Queue[tuple[_Values, list[Sample]] | BaseException | None] = queue.Queue(_AHEAD)
    stop = threading.Event()

    def put(item: tuple[_Values, list[Sample]] | BaseException | None) -> bool:
        while not stop.is_set():
            try:
                waiting.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def produce() -> None:
        row = 0
        try:
            for batch in batches:
                if not put((prepare(batch, row), batch)):
                    return
                row += len(batch)
            put(None)
        except BaseException as error:  # handed over, not lost in the thread
            put(error)

    thread = threading.Thread(target=produce, name="tamis-reader", daemon=True)
    thread.start()
    try:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            values, batch = item
            yield values, batch
    finally:
        stop.set()
        thread.join()


def failure_path(run: Path, shard: str) -> Path:
    """Returns the file that says what is wrong with a shard, there or not."""
    return run / "failures" / f"{shard}.json"


def write_failure(run: Path, shard: Shard, report: ShardReport) -> None:
    """Writes what is wrong with a shard, and with which version of its file."""
    try:
        stamp = shard.stamp()
    except Exception:  # the file may be gone, which the error says already
        stamp = ""
    write_json(
        failure_path(run, shard.name),
        {
            "shard": shard.name,
            "url": shard.url,
            "error": report.error,
            "detail": report.detail,
            "cut": report.cut,
            "stamp": stamp,
            "rows": report.rows,
        },
    )


def dump(report: ShardReport) -> str:
    """Returns a report as a line of events.jsonl."""
    return json.dumps(
        {
            "event": "shard failed" if report.error else "shard done",
            "shard": report.shard,
            "rows": report.rows,
            "statuses": dict(report.statuses),
            "seconds": round(report.seconds, 3),
            "error": report.error,
            "detail": report.detail,
        },
        ensure_ascii=False,
    )
