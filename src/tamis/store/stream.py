"""Reading samples of a run again, from the pool's own files: for exports, the report and training loops.

A stream takes an order of row numbers window by window. For each shard of a window, a job in a thread reads its rows:
byte ranges of plain tars, neighbours by one request; compressed tars and tables from their front, once per window at
most. It compares each sample with the index. Two windows are under way: one is handed out while the next is read.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.arrays import Pixels, Rows
from tamis.data import Member, Sample
from tamis.errors import RunError, SampleError, TamisError, at_least_one, unknown_message
from tamis.ids import content_uid, format_uid, image_xxh3
from tamis.pool import Pool, PoolSpec, Shard, open_pool
from tamis.pool.files import absolute, expand_braces, is_remote
from tamis.pool.images import decode, pixels_in
from tamis.pool.source import Problem, SampleFiles, SampleReader, too_many_bytes
from tamis.store import parts
from tamis.store.run import Run
from tamis.store.subset import Subset

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

#: Columns of the index that a sample is compared with.
_COMPARED = ("uid_hi", "uid_lo", "caption", "image_bytes", "image_xxh3")

#: Default threads that read: a store lets each of them wait.
_THREADS, _REMOTE_THREADS = 4, 16

_WINDOW = 2048  # rows, at most
_OPEN = 64  # shards that stay open between windows
_INDEX_BYTES = 512 << 20  # of the index that stay in memory, of the rows that are asked for
_INDEX_THREADS = 4  # Arrow releases the GIL while it works
_PATIENCE = 3  # a shard is given up after this many failed jobs in a row: on a store, each may take minutes
_SHOWN = 60  # characters of a caption in a message


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
            raise ValueError(unknown_message("field", name, FIELDS))
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


@dataclass(eq=False)
class _Source:
    """One shard of the run; `shard` is None if the pool no longer has it."""

    name: str
    shard: Shard | None
    place: slice  # its rows in the run
    restamped: bool | None = None  # whether its file has another size or time; None: not looked at
    failures: int = 0  # jobs in a row that failed as a whole
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    reader: SampleReader | None = None
    users: int = 0  # jobs that use the reader
    last: Future[None] | None = None  # the job that was planned last


@dataclass(slots=True)
class _Entry:
    """One different row of a window: what the index says of it, what is read of it, and what the job found."""

    row: int
    source: _Source
    facts: Mapping[str, Any]
    image: Member | None = None
    members: Sequence[Member] = ()
    job: Future[None] | None = None
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    problem: Problem | None = None


class _Stream:
    """The work behind `samples_of`."""

    def __init__(
        self, run: Run, pool: Pool | None, order: Rows, fields: frozenset[str], threads: int | None, ahead: int
    ) -> None:
        self._run, self._pool, self._order, self._fields, self._ahead = run, pool, order, fields, ahead
        shards = {shard.name: shard for shard in pool.shards} if pool is not None else {}
        far = any(is_remote(shard.url) for shard in shards.values())
        self._threads = threads or (_REMOTE_THREADS if far else _THREADS)
        self._files, self._image = "files" in fields, bool(fields & {"image", "pixels"})
        columns = [column for name in FIELDS if name in fields for column in _COLUMNS[name]]
        self._columns = list(dict.fromkeys([*columns, *(_COMPARED if fields & _FROM_FILES else ())]))
        self._starts = np.array([place.start for place in run.row_ranges.values()], np.int64)
        self._sources = [_Source(name, shards.get(name), place) for name, place in run.row_ranges.items()]
        self._needed = np.zeros(len(run), bool)
        self._needed[order] = True
        self._ascending = bool((order[1:] >= order[:-1]).all())  # each shard is needed once: nothing is kept
        self._indexes: OrderedDict[int, tuple[Rows, pa.Table]] = OrderedDict()  # by shard, of the rows needed
        self._open: set[_Source] = set()

    def samples(self, *, stop: bool) -> Generator[KeptSample, None, None]:
        """Yields the samples; with `stop`, a problem ends it."""
        with ExitStack() as stack:
            stack.callback(self._close)
            executors = [ThreadPoolExecutor(self._threads, f"tamis-{name}") for name in ("read", "decode")]
            for executor in executors:
                stack.callback(executor.shutdown, cancel_futures=True)
            samples = self._read_all(executors[0])
            for sample in self._decoded(samples, executors[1]) if "pixels" in self._fields else samples:
                if stop and sample.problem is not None:
                    raise self._error(sample, sample.problem)
                yield sample

    def _close(self) -> None:
        for source in self._open:
            if source.reader is not None:
                source.reader.close()

    def _error(self, sample: KeptSample, problem: Problem) -> RunError:
        key = self._run.index(sample.shard, ["key"]).column("key")[sample.row_in_shard].as_py()
        return RunError(f"the sample {key!r} of the shard {sample.shard!r} cannot be read: {problem}")

    # ---- windows

    def _read_all(self, executor: ThreadPoolExecutor) -> Iterator[KeptSample]:
        """Yields the samples in order, without pixels: one window is handed out while the next is being read."""
        for window, _ in itertools.pairwise(itertools.chain(self._windows(executor), [deque[_Entry]()])):
            while window:
                yield self._sample(window.popleft())  # which frees its bytes

    def _windows(self, executor: ThreadPoolExecutor) -> Iterator[deque[_Entry]]:
        """Yields windows whose jobs have begun. One holds at most half of `ahead`, or a single larger sample."""
        first = 0
        while first < self._order.size:
            last = min(first + _WINDOW, self._order.size)
            rows, blocks = self._order[first:last], self._blocks(self._order[first:last])
            self._load(np.unique(blocks).tolist())
            window: dict[int, _Entry] = {}
            size = 0
            for number, (row, block) in enumerate(zip(rows.tolist(), blocks.tolist(), strict=True)):
                if row not in window:
                    entry = self._entry(row, block)
                    size += sum(member.size for member in entry.members)
                    if size > self._ahead // 2 and number:
                        last = first + number
                        break
                    window[row] = entry
            while last < self._order.size and self._order[last] == self._order[last - 1]:
                last += 1  # repeats cost nothing here, and in the next window another read
            following = {self._sources[block] for block in self._blocks(self._order[last : last + 1])}
            self._submit(executor, window.values(), following)
            yield deque(window[row] for row in self._order[first:last].tolist())
            first = last

    def _blocks(self, rows: Rows) -> NDArray[np.intp]:
        return np.searchsorted(self._starts, rows, side="right") - 1

    def _load(self, blocks: Sequence[int]) -> None:
        """Reads the index of some shards that is not in memory; lets go of the longest unused beyond the limit."""
        if missing := [block for block in blocks if block not in self._indexes]:
            with ThreadPoolExecutor(_INDEX_THREADS) as executor:
                self._indexes |= dict(zip(missing, executor.map(self._index_of, missing), strict=True))
        for block in blocks:
            self._indexes.move_to_end(block)
        held = sum(table.nbytes for _, table in self._indexes.values())
        while held > (0 if self._ascending else _INDEX_BYTES) and len(self._indexes) > len(blocks):
            held -= self._indexes.popitem(last=False)[1][1].nbytes

    def _index_of(self, block: int) -> tuple[Rows, pa.Table]:
        source = self._sources[block]
        rows = np.flatnonzero(self._needed[source.place])
        return rows, self._run.index(source.name, self._columns).take(pa.array(rows))

    def _entry(self, row: int, block: int) -> _Entry:
        source, (rows, table) = self._sources[block], self._indexes[block]
        place = int(np.searchsorted(rows, row - source.place.start))
        entry = _Entry(row, source, {name: table[name][place].as_py() for name in self._columns})
        if not self._files and not self._image:
            return entry
        if source.shard is None:
            entry.problem = Problem("absent", f"the pool no longer has the shard {source.name!r}")
            return entry
        assert self._pool is not None
        members = [Member(**part) for part in entry.facts["members"]]
        if self._image:
            entry.image = source.shard.image_member(members)
            if entry.image is None:
                entry.problem = Problem("image_missing", "the sample has no image file")
            elif entry.image.size > (limit := self._pool.spec.max_bytes):
                reason = f"the image has {too_many_bytes(entry.image.size, limit)}"
                entry.image, entry.problem = None, Problem("image_too_large", reason)
        if self._files:
            entry.members = members
        elif entry.image is not None:
            entry.members = [entry.image, *source.shard.text_members(members)]
        return entry

    def _submit(self, executor: ThreadPoolExecutor, window: Iterable[_Entry], following: set[_Source]) -> None:
        """Starts a job for each shard of a window, in the order in which the shards are needed."""
        by_source: dict[_Source, list[_Entry]] = {}
        for entry in window:
            if entry.members:
                by_source.setdefault(entry.source, []).append(entry)
        for source, entries in by_source.items():
            entries.sort(key=lambda entry: entry.row)
            source.last = executor.submit(self._read, source, entries, source.last, source not in following)
            for entry in entries:
                entry.job = source.last

    # ---- jobs, in threads

    def _read(self, source: _Source, entries: list[_Entry], before: Future[None] | None, leaves: bool) -> None:
        """Reads some rows of one shard; with `leaves`, the next window does not need this shard.

        It returns nothing: a source keeps its last job, which would keep the bytes.
        """
        shard = source.shard
        assert shard is not None  # rows of absent shards are not asked for
        try:
            if source.failures >= _PATIENCE:
                problem = Problem("unread", f"{shard.url} could not be read {_PATIENCE} times in a row: given up")
            else:
                with self._reader(source, shard, leaves) as reader:
                    if reader.sequential and before is not None:
                        wait([before])  # it was begun before this one, so it ends
                    rows = [entry.row - source.place.start for entry in entries]
                    answer = reader.read(rows, [entry.members for entry in entries])
                source.failures = 0
                for entry, found in zip(entries, answer, strict=True):
                    self._compare(entry, shard, found)
                return
        except Exception as error:
            # Remote stores raise errors of their own.
            if not isinstance(error, (OSError, TamisError, pa.ArrowException)) and not is_remote(shard.url):
                raise
            source.failures += 1
            problem = Problem("unread", f"{shard.url} cannot be read: {error}")
        for entry in entries:
            entry.files, entry.problem = {}, problem

    @contextmanager
    def _reader(self, source: _Source, shard: Shard, leaves: bool) -> Iterator[SampleReader]:
        """Opens a shard, unless it is open; closes it if nobody uses it and it will not be needed soon."""
        with source.lock:
            if source.reader is None:
                source.reader = shard.reader(whole=self._files, keep_open=not self._ascending)
                self._open.add(source)
            reader = source.reader
            source.users += 1
        try:
            yield reader
        finally:
            with source.lock:
                source.users -= 1
                done = leaves and (reader.sequential or self._ascending)
                if not source.users and (done or len(self._open) > _OPEN):
                    reader.close()
                    source.reader = None
                    self._open.discard(source)

    def _compare(self, entry: _Entry, shard: Shard, found: SampleFiles | Problem) -> None:
        """Takes the files of a sample if it is what the index says, and notes what is wrong with it otherwise."""
        source = entry.source
        if isinstance(found, Problem):
            if found.kind == "cut" and source.restamped is None:
                then = parts.index_facts(self._run.index_path(source.name)).stamp
                source.restamped = bool(then) and shard.stamp() != then
            if found.kind != "cut" or not source.restamped:  # a file that was cut when it was scored is still the same
                entry.problem = found
                return
            how = found.reason
        elif not (how := _difference(found.sample, entry.facts)):
            entry.files = found.files
            return
        entry.problem = Problem(
            "changed",
            f"a sample of {shard.url} has changed since it was scored: {how}; put the old file back, or score the "
            "pool into another run folder",
        )

    # ---- samples

    def _sample(self, entry: _Entry) -> KeptSample:
        if entry.job is not None:
            entry.job.result()
        facts, problem = entry.facts, entry.problem
        image = entry.files.get(entry.image.ext) if entry.image is not None else None
        if problem is None and entry.image is not None and image is None:
            kind = "image_broken" if entry.image.size else "image_missing"
            problem = Problem(kind, "there is no image file, or what is there is not an image")
        return KeptSample(
            row=entry.row,
            shard=entry.source.name,
            row_in_shard=entry.row - entry.source.place.start,
            key=facts.get("key"),
            uid=format_uid(facts["uid_hi"], facts["uid_lo"]) if "uid" in self._fields else None,
            status=facts.get("status"),
            caption=facts["caption"] if facts.get("caption_judged") else None,
            image=image,
            files=entry.files if self._files and entry.files else None,
            problem=problem,
        )

    def _decoded(self, samples: Iterator[KeptSample], executor: ThreadPoolExecutor) -> Iterator[KeptSample]:
        """Adds the pixels; twice as many images as there are threads are decoded ahead."""
        waiting: deque[tuple[KeptSample, Future[Pixels] | None, int]] = deque()
        held = 0

        def first() -> KeptSample:
            nonlocal held
            sample, decoding, size = waiting.popleft()
            held -= size
            pixels, problem = None, sample.problem
            try:
                pixels = decoding.result() if decoding is not None else None
            except SampleError as error:
                problem = Problem(error.status, error.reason)
            image = sample.image if "image" in self._fields else None
            return dataclasses.replace(sample, image=image, pixels=pixels, problem=problem)

        for sample in samples:
            size, decoding = 0, None
            if sample.image is not None:
                assert self._pool is not None
                max_pixels, transparency = self._pool.spec.max_pixels, self._pool.spec.transparency
                size = 3 * pixels_in(sample.image, max_pixels=max_pixels)
                while waiting and (held + size > self._ahead or len(waiting) >= 2 * self._threads):
                    yield first()
                decoding = executor.submit(decode, sample.image, max_pixels=max_pixels, transparency=transparency)
            waiting.append((sample, decoding, size))
            held += size
        while waiting:
            yield first()


def _difference(now: Sample, was: Mapping[str, Any]) -> str:
    """Returns how a sample read again differs from the index (its columns `_COMPARED`); "" if it does not."""
    caption, uid = was["caption"], (was["uid_hi"], was["uid_lo"])
    if now.shown_caption != caption:
        return f"its caption is {_shown(now.shown_caption)}, was {_shown(caption)}"
    if was["image_bytes"] and now.image_bytes != was["image_bytes"]:
        return f"its image has {now.image_bytes:,} bytes, had {was['image_bytes']:,}"
    if was["image_xxh3"] is not None and now.image is not None and image_xxh3(now.image) != was["image_xxh3"]:
        return "its image is another of as many bytes"
    # An image that could not be read when it was scored has left no trace in the uid.
    if now.uid != uid and uid != content_uid(None, (caption or "").encode()):
        return f"its image, or a uid given with it, is another (uid {format_uid(*now.uid)}, was {format_uid(*uid)})"
    return ""


def _shown(caption: str | None) -> str:
    return "none" if caption is None else repr(caption[:_SHOWN])
