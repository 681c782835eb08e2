"""Reads samples of a run again from the pool's files: for exports, the report and training loops.

A stream divides an order of row numbers into windows. For each shard in a window, a job in a thread reads its rows:
from plain tars as byte ranges, adjacent ones with one request; from compressed tars and tables from the start, at most
once per window. The job compares each sample with the index. While one window is yielded, the next is read.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.core.arrays import Pixels, Rows
from tamis.core.errors import RunError, SampleError, TamisError, at_least_one, unknown_message
from tamis.core.files.find import is_remote
from tamis.core.ids import format_uid
from tamis.core.types import ORIENTATION, Member
from tamis.pools import Shard
from tamis.pools.images import decode, pixels_in
from tamis.pools.source import SampleFault, SampleFiles, SampleReader, too_many_bytes
from tamis.runs import parts
from tamis.runs.reread import COMPARED, read_again
from tamis.runs.run import Run
from tamis.runs.subset import OtherCaptions, Subset, other_captions

log = logging.getLogger(__name__)

#: Fields of a sample. The first four come from the run's index, without opening a shard.
FIELDS = ("key", "uid", "status", "caption", "image", "pixels", "files")

_FROM_FILES = frozenset(("image", "pixels", "files"))

#: The index columns that each field needs.
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "key": ("key",),
    "uid": ("uid_hi", "uid_lo"),
    "status": ("status",),
    "caption": ("caption", "caption_judged"),
    "image": ("members",),
    "pixels": ("members",),
    "files": ("members",),
}

#: Default bytes that a stream reads ahead.
AHEAD = 128 << 20

#: Default number of reading threads; more for stores, where threads mostly wait.
_THREADS, _REMOTE_THREADS = 4, 16

_WINDOW = 2048  # rows, at most
_OPEN = 64  # shards kept open between windows
_INDEX_BYTES = 512 << 20  # memory for cached index rows
_INDEX_THREADS = 4  # Arrow releases the GIL
_PATIENCE = 3  # failed jobs in a row before a shard is skipped: on a store, each may take minutes


_Samples = Generator["KeptSample", None, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSample:
    """A sample from a stream. Fields that were not requested are None.

    Attributes:
        row: row number in the run.
        shard, row_in_shard: the shard, and the row number in it.
        key: name in the shard.
        uid: 32 hex digits.
        status: see `tamis.core.types.STATUSES`.
        caption: None also if it cannot be judged (missing, empty, not UTF-8). For a subset: the text that was chosen.
        alt_text: if `caption` is another text: the alt-text in the pool, "" without one; None if it is the alt-text.
        image: the bytes of the image file.
        orientation: how to turn `image` upright (`tamis.core.types.EXIF_WORDS`), if its file has lost that, or None.
        pixels: (height, width, 3) uint8 RGB, upright.
        files: {extension: bytes} of all files. For a table: the image, the caption as txt, the row as json.
        problem: why a requested field is missing; None if none is.
    """

    row: int
    shard: str
    row_in_shard: int
    key: str | None = None
    uid: str | None = None
    status: str | None = None
    caption: str | None = None
    alt_text: str | None = None
    image: bytes | None = None
    orientation: str | None = None
    pixels: Pixels | None = None
    files: Mapping[str, bytes] | None = None
    problem: SampleFault | None = None


def samples_of(
    source: Subset | Run,
    *,
    order: NDArray[np.integer[Any]] | Sequence[int] | None = None,
    fields: Collection[str] = ("caption", "image"),
    errors: Literal["raise", "mark"] = "raise",
    threads: int | None = None,
    ahead: int = AHEAD,
) -> Generator[KeptSample, None, None]:
    """Reads samples of a run from the pool's files, in any order; a row listed twice is yielded twice.

    It reads only the bytes it needs: byte ranges of plain tars, on disk or store, and single image files of tables.
    Other files are read from the start: a compressed tar up to the last row of a window, a Parquet file of image bytes
    in whole row groups. For random orders use uncompressed tars.

    Several processes can share the work by slices of one order, `order=order[rank::world]`: a stream depends only on
    its order. For pools on a store and Lance datasets the processes must be spawned, not forked.

    Memory: at most `ahead` bytes of files, and the same again of pixels, unless two samples exceed that. In addition
    about 100 bytes (and the caption) for each different row, up to 512 MiB, 1 byte for every row of the run and 8 for
    every row of the order.

    Args:
        source: a subset, to read kept rows; or a run, to read any row.
        order: (n,) row numbers of the run, in any order, repeats allowed; None: all, in the pool's order.
        fields: the fields to return, from `FIELDS`.
        errors: "raise" stops at a sample that cannot be read; "mark" yields it with its `problem`, and
            hides what `Run.hidden` has: image, caption and key.
        threads: number of threads that read, and the same number that decode; None: 4, or 16 for a pool on a store.
        ahead: bytes to hold ready.

    Yields:
        A `KeptSample` for each row of the order, in that order. Closing the iterator ends its threads.

    Raises:
        ValueError: an unknown field, or a row in the order that does not exist or is not kept.
        RunError: images are requested from a pool without images. With errors="raise", while it runs: a sample cannot
            be read or decoded, has changed since it was scored, or its shard is gone. The message names shard and key.
    """
    for name in fields:
        if name not in FIELDS:
            raise ValueError(unknown_message("field", name, FIELDS))
    if errors not in ("raise", "mark"):
        raise ValueError(f"errors must be 'raise' or 'mark', got {errors!r}")
    at_least_one(ahead=ahead, **({} if threads is None else {"threads": threads}))
    run = source if isinstance(source, Run) else source.run
    run.check_complete()
    rows = _check_order(source, order)
    wanted = frozenset(fields)
    if wanted & _FROM_FILES and not run.pool.has_images:
        raise RunError(f"{run.pool.spec.paths[0]} holds no image files: ask for caption, key, uid or status alone")
    stream = _Stream(run, rows, wanted, threads, ahead, errors == "mark")
    samples = stream.samples(stop=errors == "raise")
    others = other_captions(source) if isinstance(source, Subset) and "caption" in wanted else None
    return _replace_captions(samples, others) if others else samples


def _replace_captions(samples: _Samples, others: OtherCaptions) -> _Samples:
    """Replaces alt-texts by the captions that were chosen instead."""
    with closing(samples):
        for sample in samples:
            hidden = sample.problem is not None and sample.problem.kind == "hidden"
            text = None if hidden else others.of(sample.row)
            yield sample if text is None else replace(sample, caption=text, alt_text=sample.caption or "")


def _check_order(source: Subset | Run, order: NDArray[np.integer[Any]] | Sequence[int] | None) -> Rows:
    if order is None:
        return np.arange(len(source), dtype=np.int64) if isinstance(source, Run) else source.rows()
    rows = np.asarray(order)
    if rows.size == 0:
        rows = rows.astype(np.int64)
    if rows.ndim != 1 or rows.dtype.kind not in "iu":
        raise ValueError(f"order must be row numbers (of a mask: flatnonzero), got {rows.dtype} of shape {rows.shape}")
    rows = rows.astype(np.int64, copy=False)
    total = len(source) if isinstance(source, Run) else source.keep.size
    outside = (rows < 0) | (rows >= total)
    if outside.any():
        raise ValueError(f"order names row {rows[outside][0]:,}, the run has the rows 0 to {total - 1:,}")
    if isinstance(source, Subset) and not source.keep[rows].all():
        dropped = rows[~source.keep[rows]]
        raise ValueError(f"order names {dropped.size:,} rows that {source.name!r} drops, the first {dropped[0]:,}")
    return rows


@dataclass(eq=False)
class _Source:
    """One shard of the run; `shard` is None if the pool no longer has it."""

    name: str
    shard: Shard | None
    span: slice  # its rows in the run
    restamped: bool | None = None  # whether its file has another size or time; None: not checked yet
    failures: int = 0  # jobs in a row that failed entirely
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    reader: SampleReader | None = None
    users: int = 0  # jobs that are using the reader
    last: Future[None] | None = None  # the last job submitted


@dataclass(slots=True)
class _Entry:
    """A row of a window: its facts from the index, the files to read, and the result of the job."""

    row: int
    source: _Source
    facts: Mapping[str, Any]
    image: Member | None = None
    members: Sequence[Member] = ()
    job: Future[None] | None = None
    files: Mapping[str, bytes] = dataclasses.field(default_factory=dict)
    problem: SampleFault | None = None


class _Stream:
    """Reads, compares and decodes for `samples_of`."""

    def __init__(
        self, run: Run, order: Rows, fields: frozenset[str], threads: int | None, ahead: int, hide: bool
    ) -> None:
        self._run, self._order, self._fields, self._ahead = run, order, fields, ahead
        shards = {shard.name: shard for shard in run.pool.shards} if fields & _FROM_FILES else {}
        far = any(is_remote(shard.url) for shard in shards.values())
        self._threads = threads or (_REMOTE_THREADS if far else _THREADS)
        self._files, self._image = "files" in fields, bool(fields & {"image", "pixels"})
        columns = [column for name in FIELDS if name in fields for column in _COLUMNS[name]]
        turned = [ORIENTATION] if ORIENTATION in run.facts["pool"]["fields"] else []
        self._columns = list(dict.fromkeys([*columns, *((*COMPARED, *turned) if fields & _FROM_FILES else ())]))
        self._starts = np.array([span.start for span in run.row_ranges.values()], np.int64)
        self._sources = [_Source(name, shards.get(name), span) for name, span in run.row_ranges.items()]
        self._hidden = run.hidden if hide else None
        self._needed = np.zeros(len(run), bool)
        self._needed[order] = True
        self._ascending = bool((order[1:] >= order[:-1]).all())  # each shard is needed once: cache nothing
        self._indexes: OrderedDict[int, tuple[Rows, pa.Table]] = OrderedDict()  # by shard; only rows that are needed
        self._open: set[_Source] = set()

    def samples(self, *, stop: bool) -> _Samples:
        """Yields the samples; with `stop`, a problem raises."""
        with ExitStack() as stack:
            stack.callback(self._close)
            executors = [ThreadPoolExecutor(self._threads, f"tamis-{name}") for name in ("read", "decode")]
            for executor in executors:
                stack.callback(executor.shutdown, cancel_futures=True)
            samples = self._read_all(executors[0])
            for sample in self._decode(samples, executors[1]) if "pixels" in self._fields else samples:
                if stop and sample.problem is not None:
                    key = self._run.index(sample.shard, ["key"]).column("key")[sample.row_in_shard].as_py()
                    what = f"the sample {key!r} of the shard {sample.shard!r} cannot be read"
                    raise RunError(f"{what}: {sample.problem}")
                yield sample

    def _close(self) -> None:
        for source in self._open:
            if source.reader is not None:
                source.reader.close()

    # ---- windows

    def _read_all(self, executor: ThreadPoolExecutor) -> Iterator[KeptSample]:
        """Yields the samples in order, without pixels, while the next window is being read."""
        for window, _ in itertools.pairwise(itertools.chain(self._windows(executor), [deque[_Entry]()])):
            while window:
                yield self._sample(window.popleft())  # popped, so that its bytes are freed

    def _windows(self, executor: ThreadPoolExecutor) -> Iterator[deque[_Entry]]:
        """Yields windows whose jobs have started. A window holds at most half of `ahead`, or one larger sample."""
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
                last += 1  # a repeated row is read once per window
            following = {self._sources[block] for block in self._blocks(self._order[last : last + 1])}
            self._submit(executor, window.values(), following)
            yield deque(window[row] for row in self._order[first:last].tolist())
            first = last

    def _blocks(self, rows: Rows) -> NDArray[np.intp]:
        return np.searchsorted(self._starts, rows, side="right") - 1

    def _load(self, blocks: Sequence[int]) -> None:
        """Reads the index of shards that are not cached; drops the least recently used ones over the limit."""
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
        rows = np.flatnonzero(self._needed[source.span])
        return rows, self._run.index(source.name, self._columns).take(pa.array(rows))

    def _entry(self, row: int, block: int) -> _Entry:
        source, (rows, table) = self._sources[block], self._indexes[block]
        number = int(np.searchsorted(rows, row - source.span.start))
        entry = _Entry(row, source, {name: table[name][number].as_py() for name in self._columns})
        if self._hidden is not None and self._hidden[row]:
            entry.problem = SampleFault("hidden", "its image is on a list of hash_match")
            entry.facts = {**entry.facts, "key": None, "caption": None}
            return entry
        if not self._files and not self._image:
            return entry
        if source.shard is None:
            entry.problem = SampleFault("absent", f"the pool no longer has the shard {source.name!r}")
            return entry
        members = [Member(**part) for part in entry.facts["members"]]
        if self._image:
            entry.image = source.shard.image_member(members)
            if entry.image is None:
                entry.problem = SampleFault("image_missing", "the sample has no image file")
            elif entry.image.size > (limit := self._run.pool.spec.max_bytes):
                reason = f"the image has {too_many_bytes(entry.image.size, limit)}"
                entry.image, entry.problem = None, SampleFault("image_too_large", reason)
        if self._files:
            entry.members = members
        elif entry.image is not None:
            entry.members = [entry.image, *source.shard.text_members(members)]
        return entry

    def _submit(self, executor: ThreadPoolExecutor, window: Iterable[_Entry], following: set[_Source]) -> None:
        """Starts a job for each shard of a window, in the order in which they are needed."""
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
        """Reads rows of one shard; `leaves` means that the next window does not need this shard.

        It returns nothing: a source keeps its last job, and the job would keep the bytes.
        """
        shard = source.shard
        assert shard is not None  # rows of absent shards are not read
        try:
            if source.failures >= _PATIENCE:
                problem = SampleFault("unread", f"{shard.url} failed {_PATIENCE} times in a row and is skipped")
            else:
                with self._reader(source, shard, leaves) as reader:
                    if reader.sequential and before is not None:
                        wait([before])  # it started earlier, so this cannot deadlock
                    wanted = [(entry.row - source.span.start, entry.members, entry.facts) for entry in entries]
                    answer = read_again(reader, wanted)
                source.failures = 0
                for entry, found in zip(entries, answer, strict=True):
                    self._store(entry, shard, found)
                return
        except Exception as error:
            # Remote stores raise their own types of errors.
            if not isinstance(error, (OSError, TamisError, pa.ArrowException)) and not is_remote(shard.url):
                raise
            source.failures += 1
            problem = SampleFault("unread", f"{shard.url} cannot be read: {error}")
        for entry in entries:
            entry.files, entry.problem = {}, problem

    @contextmanager
    def _reader(self, source: _Source, shard: Shard, leaves: bool) -> Iterator[SampleReader]:
        """Yields a shard's reader; afterwards closes it if no job uses it and the next window does not need it."""
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

    def _store(self, entry: _Entry, shard: Shard, found: SampleFiles | SampleFault) -> None:
        """Stores the files of a sample in its entry, or the problem."""
        source = entry.source
        if not isinstance(found, SampleFault):
            entry.files = found.files
            return
        if found.kind == "cut" and source.restamped is None:  # a file truncated when scored may be unchanged
            then = parts.index_facts(self._run.index_path(source.name)).stamp
            source.restamped = bool(then) and shard.stamp() != then
        if found.kind == "differs" or (found.kind == "cut" and source.restamped):
            what = f"a sample of {shard.url} has changed since it was scored: {found.reason}"
            found = SampleFault("changed", f"{what}; restore the old file, or make another run")
        entry.problem = found

    # ---- samples

    def _sample(self, entry: _Entry) -> KeptSample:
        if entry.job is not None:
            entry.job.result()
        facts, problem = entry.facts, entry.problem
        image = entry.files.get(entry.image.ext) if entry.image is not None else None
        if problem is None and entry.image is not None and image is None:
            kind = "image_broken" if entry.image.size else "image_missing"
            problem = SampleFault(kind, "there is no image file, or it is not an image")
        return KeptSample(
            row=entry.row,
            shard=entry.source.name,
            row_in_shard=entry.row - entry.source.span.start,
            key=facts.get("key"),
            uid=format_uid(facts["uid_hi"], facts["uid_lo"]) if "uid" in self._fields else None,
            status=facts.get("status"),
            caption=facts["caption"] if facts.get("caption_judged") else None,
            image=image,
            orientation=facts.get(ORIENTATION),
            files=entry.files if self._files and entry.files else None,
            problem=problem,
        )

    def _decode(self, samples: Iterator[KeptSample], executor: ThreadPoolExecutor) -> Iterator[KeptSample]:
        """Adds the pixels; decodes up to twice as many images ahead as there are threads."""
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
                problem = SampleFault(error.status, error.reason)
            image = sample.image if "image" in self._fields else None
            return dataclasses.replace(sample, image=image, pixels=pixels, problem=problem)

        spec = self._run.pool.spec
        for sample in samples:
            size, decoding = 0, None
            if sample.image is not None:
                how: dict[str, Any] = {"transparency": spec.transparency, "orientation": sample.orientation}
                size = 3 * pixels_in(sample.image, max_pixels=spec.max_pixels)
                while waiting and (held + size > self._ahead or len(waiting) >= 2 * self._threads):
                    yield first()
                decoding = executor.submit(decode, sample.image, max_pixels=spec.max_pixels, **how)
            waiting.append((sample, decoding, size))
            held += size
        while waiting:
            yield first()
