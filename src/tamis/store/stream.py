"""Reading samples of a run again, from the pool's own files: for exports, the report and training loops.

A stream walks through an order of row numbers, a window of rows at a time. Threads read what a window needs: byte
ranges of plain tars; compressed tars and tables from their front, once per window at most. Two windows are under way:
one is handed out while the next is read.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
from collections import deque
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Pixels, Rows
from tamis.errors import RunError, SampleError, at_least_one, unknown
from tamis.ids import format_uid
from tamis.pool import Pool, PoolSpec, open_pool
from tamis.pool.files import absolute, expand_braces, is_remote
from tamis.pool.images import Transparency, decode, pixels_in
from tamis.pool.source import Problem
from tamis.store.run import Run
from tamis.store.subset import Subset
from tamis.store.windows import Entry, Windows

log = logging.getLogger(__name__)

#: What can be asked of each sample. The first four come from the run's index, without opening a shard.
FIELDS = ("key", "uid", "status", "caption", "image", "pixels", "files")

_FROM_FILES = frozenset(("image", "pixels", "files"))

#: Columns of the index that a field needs.
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "key": ("key",),
    "uid": ("uid_hi", "uid_lo"),
    "status": ("status",),
    "caption": ("caption", "caption_judged"),
    "image": ("members",),
    "pixels": ("members",),
    "files": ("members",),
}

#: Bytes that a stream holds ready by default.
AHEAD = 128 << 20

#: Default threads that read: a store lets each of them wait.
_THREADS, _REMOTE_THREADS = 4, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSample:
    """One sample as a stream yields it. What was not asked for is None.

    Attributes:
        row: its row number in the run.
        shard, row_in_shard: its shard, and its row number there.
        key: its name in the shard.
        uid: 32 hex digits.
        status: see `tamis.data.STATUSES`.
        caption: None also if there is none that can be judged (missing, empty, not UTF-8).
        image: the bytes of the image file.
        pixels: (height, width, 3) uint8 RGB, upright.
        files: every file by extension, bytes unchanged. Of a table: the image, the caption as txt, the row as json.
        problem: why what was asked for cannot be had; None if it can.
    """

    row: int
    shard: str
    row_in_shard: int
    key: str | None = None
    uid: str | None = None
    status: str | None = None
    caption: str | None = None
    image: bytes | None = None
    pixels: Pixels | None = None
    files: Mapping[str, bytes] | None = None
    problem: Problem | None = None


def samples_of(
    source: Subset | Run,
    pool: Pool | None = None,
    *,
    order: NDArray[np.integer[Any]] | Sequence[int] | None = None,
    fields: Collection[str] = ("caption", "image"),
    errors: Literal["raise", "mark"] = "raise",
    threads: int | None = None,
    ahead: int = AHEAD,
) -> Generator[KeptSample, None, None]:
    """Reads samples of a run from the pool's own files, in any order, each as often as it is named.

    Nothing else is read: byte ranges of plain tars and of objects on a store, single image files of tables. Others are
    read from their front: a compressed tar up to the last row of a window, a Parquet file of image bytes by whole row
    groups. For random orders use tars that are not compressed.

    Several processes share the work by slices of one order, `order=order[rank::world]`: what a stream yields depends on
    its order alone. For pools on a store the processes must be spawned, not forked.

    Memory: at most `ahead` bytes of files wait to be yielded, and as many of pixels; more only if two samples are
    larger than that. In addition: about 100 bytes for each different row (and its caption) up to 512 MiB, 1 byte for
    every row of the run and 8 for every row of the order.

    Args:
        source: a subset, for its kept rows; or a run, of which any row may be named.
        pool: the pool; None: the one that the run was made from.
        order: (n,) row numbers of the run, in any order, with repeats; None: all, in the pool's order.
        fields: what to return of each sample, of `FIELDS`.
        errors: "raise" stops at a sample that cannot be had; "mark" yields it with its `problem`.
        threads: that read, and as many that decode; None: 4, or 16 if the pool is on a store.
        ahead: bytes.

    Yields:
        a `KeptSample` for each row of the order, in that order. Closing the iterator ends its threads.

    Raises:
        ValueError: an unknown field, or an order with rows that are not there or not kept.
        RunError: image files are asked of a pool that has none. While it runs, with errors="raise": a sample cannot
            be read or decoded, is not what it was when it was scored, or its shard is gone; shard and key are named.
    """
    for name in fields:
        if name not in FIELDS:
            raise ValueError(unknown("field", name, FIELDS))
    if errors not in ("raise", "mark"):
        raise ValueError(f"errors must be 'raise' or 'mark', got {errors!r}")
    at_least_one(ahead=ahead, **({} if threads is None else {"threads": threads}))
    run = source if isinstance(source, Run) else source.run
    run.check_complete()
    rows = _ordered(source, order)
    wanted = frozenset(fields)
    if wanted & _FROM_FILES:
        pool = pool_of(run) if pool is None else pool
        if not pool.has_images:
            raise RunError(f"{pool.spec.paths[0]} holds no image files: ask for caption, key, uid or status alone")
    stream = _Stream(run, pool, rows, wanted, threads, ahead)
    return stream.samples(stop=errors == "raise")


#: Environment variable: the pool's URLs as they were given to `tamis score`, with user, password or signature,
#: separated by white space. The run stores them without secrets.
POOL_URLS = "TAMIS_POOL"


def pool_of(run: Run) -> Pool:
    """Opens the pool that a run was made from, its shards under the names that they have in the run.

    Secrets of its URLs are taken from the environment (`POOL_URLS`), and kept in memory alone.

    Raises:
        PoolError: it is not there.
        RunError: the run's manifest does not say what it is.
    """
    settings: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in run.facts["pool"].items()
        if name != "kind" and value is not None
    }
    try:
        spec = PoolSpec(**settings)
    except (TypeError, ValueError) as error:
        raise RunError(f"{run.path / 'run.json'}: the pool's settings cannot be read: {error}") from error
    given = os.environ.get(POOL_URLS, "").split()
    urls = set(run.urls.values()) if given else set()
    for url in given:
        known = absolute(url)  # which keeps its secrets in memory
        if known not in spec.paths and not urls & set(expand_braces(known)):
            log.warning("%s names %s, from which %s was not made", POOL_URLS, known, run.path)
    return open_pool(spec, run.urls)


def _ordered(source: Subset | Run, order: NDArray[np.integer[Any]] | Sequence[int] | None) -> Rows:
    if order is None:
        return np.arange(len(source), dtype=np.int64) if isinstance(source, Run) else source.rows()
    rows = np.asarray(order)
    if rows.size == 0:
        rows = rows.astype(np.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise ValueError(
            f"order must be a list of row numbers, got {rows.dtype} of shape {rows.shape}"
            + ("; np.flatnonzero makes row numbers of a mask" if rows.dtype.kind == "b" else "")
        )
    rows = rows.astype(np.int64, copy=False)
    total = len(source) if isinstance(source, Run) else source.keep.size
    outside = (rows < 0) | (rows >= total)
    if outside.any():
        raise ValueError(f"order names row {rows[outside][0]:,}, the run has the rows 0 to {total - 1:,}")
    if isinstance(source, Subset) and not source.keep[rows].all():
        dropped = rows[~source.keep[rows]]
        raise ValueError(
            f"order names {dropped.size:,} rows that the subset {source.name!r} drops, the first {dropped[0]:,}; "
            "give the run in place of the subset to read any row"
        )
    return rows


class _Stream:
    """The work behind `samples_of`: makes samples of windows, in order."""

    def __init__(
        self, run: Run, pool: Pool | None, order: Rows, fields: frozenset[str], threads: int | None, ahead: int
    ) -> None:
        self._run, self._fields, self._ahead = run, fields, ahead
        self._max_pixels = pool.spec.max_pixels if pool is not None else 0
        self._transparency: Transparency = pool.spec.transparency if pool is not None else "drop"
        far = pool is not None and any(is_remote(shard.url) for shard in pool.shards)
        self._threads = threads or (_REMOTE_THREADS if far else _THREADS)
        columns = dict.fromkeys(column for name in FIELDS if name in fields for column in _COLUMNS[name])
        image = bool(fields & {"image", "pixels"})
        self._windows = Windows(run, pool, order, list(columns), "files" in fields, image, ahead)

    def samples(self, *, stop: bool) -> Generator[KeptSample, None, None]:
        """Yields the samples; with `stop`, a problem ends it."""
        try:
            with _threads(self._threads, "tamis-read") as readers, _threads(self._threads, "tamis-decode") as decoders:
                found = self._read(readers)
                for sample in self._decoded(found, decoders) if "pixels" in self._fields else found:
                    if stop and sample.problem is not None:
                        raise self._error(sample, sample.problem)
                    yield sample
        finally:
            self._windows.close()

    def _error(self, sample: KeptSample, problem: Problem) -> RunError:
        key = self._run.index(sample.shard, ["key"]).column("key")[sample.row_in_shard].as_py()
        if problem.kind in ("absent", "changed", "unread"):
            return RunError(f"{problem} (met at the sample {key!r} of the shard {sample.shard!r})")
        return RunError(f"the sample {key!r} of the shard {sample.shard!r} cannot be read: {problem}")

    def _read(self, executor: ThreadPoolExecutor) -> Iterator[KeptSample]:
        """Yields the samples in order, without pixels: one window is handed out while the next is being read."""
        waiting: deque[tuple[list[int], dict[int, Entry]]] = deque()
        under_way = self._windows.under_way(executor)
        while True:
            waiting.extend(itertools.islice(under_way, 2 - len(waiting)))
            if not waiting:
                return
            rows, entries = waiting[0]
            for row in rows:
                yield self._sample(row, entries[row])
            del rows, entries
            waiting.popleft()

    def _sample(self, row: int, entry: Entry) -> KeptSample:
        fields, index, place = self._fields, entry.index, entry.place
        problem, image = entry.problem, None
        files: Mapping[str, bytes] | None = None
        if entry.answer is not None:
            answer = entry.answer.result()[entry.part]
            if isinstance(answer, Problem):
                problem = answer
            else:
                files = answer
                image = files.get(entry.image.ext) if entry.image is not None else None
                if entry.image is not None and image is None:
                    kind = "image_broken" if entry.image.size else "image_missing"
                    problem = Problem(kind, "there is no image file, or what is there is not an image")
        judged = "caption" in fields and index.value("caption_judged", place)
        return KeptSample(
            row=row,
            shard=entry.source.name,
            row_in_shard=row - entry.source.place.start,
            key=index.value("key", place) if "key" in fields else None,
            uid=format_uid(index.value("uid_hi", place), index.value("uid_lo", place)) if "uid" in fields else None,
            status=index.value("status", place) if "status" in fields else None,
            caption=index.value("caption", place) if judged else None,
            image=image,
            files=files if "files" in fields else None,
            problem=problem,
        )

    def _decoded(self, samples: Iterator[KeptSample], executor: ThreadPoolExecutor) -> Iterator[KeptSample]:
        """Adds the pixels; twice as many images as there are threads are decoded ahead."""
        waiting: deque[tuple[KeptSample, Future[Pixels | Problem] | None, int]] = deque()
        held = 0
        for sample in samples:
            size, decoding = 0, None
            if sample.image is not None:
                size = 3 * pixels_in(sample.image, max_pixels=self._max_pixels)
                while waiting and (held + size > self._ahead or len(waiting) >= 2 * self._threads):
                    held -= waiting[0][2]
                    yield self._with_pixels(*waiting.popleft()[:2])
                decoding = executor.submit(_decode, sample.image, self._max_pixels, self._transparency)
            waiting.append((sample, decoding, size))
            held += size
        while waiting:
            yield self._with_pixels(*waiting.popleft()[:2])

    def _with_pixels(self, sample: KeptSample, decoding: Future[Pixels | Problem] | None) -> KeptSample:
        found = decoding.result() if decoding is not None else None
        return dataclasses.replace(
            sample,
            image=sample.image if "image" in self._fields else None,
            pixels=None if isinstance(found, Problem) else found,
            problem=found if isinstance(found, Problem) else sample.problem,
        )


def _decode(data: bytes, max_pixels: int, transparency: Transparency) -> Pixels | Problem:
    try:
        return decode(data, max_pixels=max_pixels, transparency=transparency)
    except SampleError as error:
        return Problem(error.status, error.reason)


@contextmanager
def _threads(count: int, name: str) -> Iterator[ThreadPoolExecutor]:
    """Threads that end with the block; what they have not begun is cancelled."""
    executor = ThreadPoolExecutor(count, thread_name_prefix=name)
    try:
        yield executor
    finally:
        executor.shutdown(wait=True, cancel_futures=True)
