"""Windows of a stream: which shards a run of row numbers needs, what is asked of each, and threads that read it.

A window holds the next rows of an order. Sorted by shard and cut into jobs it is read by several threads at once,
neighbours by one request. `stream.samples_of` hands the windows out.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.arrays import Rows
from tamis.data import Member
from tamis.errors import TamisError
from tamis.pool import Pool, Shard
from tamis.pool.files import is_remote
from tamis.pool.source import Problem, SampleFiles, ShardReader, too_many_bytes
from tamis.store import parts
from tamis.store.run import Run
from tamis.store.unchanged import COMPARED, changed, difference

#: Rows of a window, at most.
_WINDOW = 2048

#: What one request asks for, at most: several run at once, and the first is soon there.
_JOB_ROWS = 32
_JOB_BYTES = 4 << 20

#: Shards that stay open between windows.
_OPEN = 64

#: Bytes of the index, of the rows that are asked for, that stay in memory; what is beyond is read again when needed.
_INDEX_BYTES = 512 << 20

#: Threads that read the index: Arrow leaves the interpreter while it works.
_INDEX_THREADS = 4

#: A shard of which so many requests in a row failed as a whole is not tried further: far away, each may take minutes.
_PATIENCE = 3


@dataclass(frozen=True, slots=True)
class Want:
    """What is read from the shards: every file of a sample, its image, both or neither."""

    files: bool
    image: bool

    @property
    def anything(self) -> bool:
        return self.files or self.image


class Index:
    """What a stream needs of the index of one shard, of the rows that it will come to."""

    def __init__(self, run: Run, shard: str, rows: Rows, columns: Sequence[str]) -> None:
        table = run.index(shard, columns).take(pa.array(rows))
        self.rows = rows
        self._columns = {name: table.column(name) for name in columns if name != "members"}
        self.nbytes = rows.nbytes + sum(column.nbytes for column in self._columns.values())
        if "members" in columns:
            column = table.column("members")
            lists = [chunk.flatten() for chunk in column.chunks]
            self._ends = np.concatenate([[0], np.cumsum(pc.list_value_length(column).to_numpy())]).astype(np.int64)
            self._exts = [sys.intern(ext) for some in lists for ext in some.field("ext").to_pylist()]
            self._offsets, self._sizes = (
                np.concatenate([some.field(name).to_numpy() for some in lists]) if lists else np.empty(0, np.int64)
                for name in ("offset", "size")
            )
            self.nbytes += self._ends.nbytes + 8 * len(self._exts) + self._offsets.nbytes + self._sizes.nbytes

    def value(self, name: str, place: int) -> Any:
        return self._columns[name][place].as_py()

    def members(self, place: int) -> list[Member]:
        return [
            Member(self._exts[number], int(self._offsets[number]), int(self._sizes[number]))
            for number in range(self._ends[place], self._ends[place + 1])
        ]


class Source:
    """One shard of the run in a stream: where it is, whether its size or time has changed, and what of it is open."""

    def __init__(self, name: str, shard: Shard | None, place: slice) -> None:
        self.name, self.shard, self.place = name, shard, place
        self.problem = None if shard is not None else Problem("absent", f"the pool no longer has the shard {name!r}")
        self.other: bool | None = None  # whether its file has another size or time; None: nobody has looked
        self.failures = 0
        self.lock = threading.Lock()
        self.reader: ShardReader | None = None
        self.users = 0
        self.last = threading.Event()  # set once the job that was planned last for this shard has ended
        self.last.set()


@dataclass(slots=True)
class Job:
    """One request: some rows of one shard, ascending.

    Attributes:
        known: what the index says of them: where in it.
        after: set when the job before it, of the same shard, has ended.
        ended: set when it has ended itself.
        leaves: the order goes on in another shard after this job's window.
    """

    source: Source
    rows: list[int]
    members: list[Sequence[Member]]
    known: list[tuple[Index, int]]
    after: threading.Event
    ended: threading.Event = field(default_factory=threading.Event)
    leaves: bool = False
    answer: Future[Sequence[Mapping[str, bytes] | Problem]] | None = None


@dataclass(slots=True)
class Entry:
    """One different row of a window: where its index is, what is wanted of it, and which job reads that."""

    source: Source
    index: Index
    place: int
    image: Member | None = None
    members: Sequence[Member] = ()
    size: int = 0
    problem: Problem | None = None
    job: Job | None = None
    part: int = 0


class Readers:
    """Open shards: those used last stay open, up to `_OPEN`, those in use in any case."""

    def __init__(self, *, whole: bool, keep_open: bool) -> None:
        self._whole, self._keep_open = whole, keep_open
        self._lock = threading.Lock()
        self._used: OrderedDict[str, Source] = OrderedDict()

    @contextmanager
    def use(self, source: Source) -> Iterator[ShardReader]:
        assert source.shard is not None  # rows of absent shards are not asked for
        with source.lock:
            if source.reader is None:
                source.reader = source.shard.reader(whole=self._whole, keep_open=self._keep_open)
            reader = source.reader
            source.users += 1
        try:
            yield reader
        finally:
            with source.lock:
                source.users -= 1
            with self._lock:
                self._used[source.name] = source
                self._used.move_to_end(source.name)
                oldest = list(self._used.values())[: max(0, len(self._used) - _OPEN)]
            for one in oldest:
                self.drop(one)

    def drop(self, source: Source) -> None:
        """Closes a shard, unless somebody reads it."""
        with source.lock:
            if source.users or source.reader is None:
                return
            source.reader.close()
            source.reader = None
        with self._lock:
            self._used.pop(source.name, None)

    def close(self) -> None:
        for source in list(self._used.values()):
            self.drop(source)


class Windows:
    """An order of rows as windows, each with what is read of it under way.

    Args:
        run: the run.
        pool: its pool; None where nothing is wanted of it.
        order: (n,) row numbers of the run, in any order, with repeats.
        columns: of the index, which `Entry.index` then has.
        want: what is read from the shards.
        ahead: bytes that two windows may hold together; more only where single samples are larger than half of it.
    """

    def __init__(
        self, run: Run, pool: Pool | None, order: Rows, columns: Sequence[str], want: Want, ahead: int
    ) -> None:
        self._run, self._order, self._want, self._ahead = run, order, want, ahead
        self._columns = list(dict.fromkeys([*columns, *(COMPARED if want.anything else ())]))
        self._max_bytes = pool.spec.max_bytes if pool is not None else 0
        shards = {shard.name: shard for shard in pool.shards} if pool is not None else {}
        self._starts = np.concatenate([[0], np.cumsum(run.sizes, dtype=np.int64)])
        self._sources = [
            Source(name, shards.get(name), slice(int(start), int(start) + size))
            for name, start, size in zip(run.shards, self._starts, run.sizes, strict=False)
        ]
        self._needed = np.zeros(len(run), bool)
        self._needed[order] = True
        # In the pool's order each shard is come to once: there is nothing to keep open, and no index to keep.
        ascending = bool((order[1:] >= order[:-1]).all())
        self._index_bytes = 0 if ascending else _INDEX_BYTES
        self._indexes: OrderedDict[int, Index] = OrderedDict()
        self._readers = Readers(whole=want.files, keep_open=not ascending)

    def close(self) -> None:
        """Closes the shards; no job may be running."""
        self._readers.close()

    def under_way(self, executor: ThreadPoolExecutor) -> Iterator[tuple[list[int], dict[int, Entry]]]:
        """Yields windows whose jobs have been handed to the executor: their rows in order, and each different row."""
        first = 0
        while first < self._order.size:
            last = min(first + _WINDOW, self._order.size)
            rows = self._order[first:last]
            blocks = np.unique(self._blocks(rows)).tolist()
            indexes = self._load(blocks)
            window: dict[int, Entry] = {}
            size = 0
            for number, (row, block) in enumerate(zip(rows.tolist(), self._blocks(rows).tolist(), strict=True)):
                if row not in window:
                    entry = self._entry(row, self._sources[block], indexes[block])
                    size += entry.size
                    if size > self._ahead // 2 and number:
                        last = first + number
                        break
                    window[row] = entry
            while last < self._order.size and self._order[last] == self._order[last - 1]:
                last += 1  # repeats cost nothing here, and in the next window a reading of their own
            following = self._blocks(self._order[last : last + 1]).tolist()
            for job in _jobs(window, {self._sources[block] for block in following}):
                job.answer = executor.submit(self._read, job)
            yield self._order[first:last].tolist(), window
            first = last

    def _blocks(self, rows: Rows) -> NDArray[np.intp]:
        return np.searchsorted(self._starts, rows, side="right") - 1

    def _load(self, blocks: Sequence[int]) -> dict[int, Index]:
        """Returns the index of some shards, reading what is not in memory."""
        missing = [block for block in blocks if block not in self._indexes]
        if len(missing) > 1:
            with ThreadPoolExecutor(_INDEX_THREADS) as executor:
                self._indexes |= dict(zip(missing, executor.map(self._index_of, missing), strict=True))
        elif missing:
            self._indexes[missing[0]] = self._index_of(missing[0])
        found = {block: self._indexes[block] for block in blocks}
        for block in blocks:
            self._indexes.move_to_end(block)
        held = sum(index.nbytes for index in self._indexes.values())
        while held > self._index_bytes and len(self._indexes) > len(blocks):
            held -= self._indexes.popitem(last=False)[1].nbytes
        return found

    def _index_of(self, block: int) -> Index:
        source = self._sources[block]
        return Index(self._run, source.name, np.flatnonzero(self._needed[source.place]), self._columns)

    def _entry(self, row: int, source: Source, index: Index) -> Entry:
        place = int(np.searchsorted(index.rows, row - source.place.start))
        entry = Entry(source, index, place)
        if not self._want.anything or source.shard is None:
            entry.problem = source.problem if self._want.anything else None
            return entry
        members = index.members(place)
        if self._want.image:
            entry.image = source.shard.image_member(members)
            if entry.image is None:
                entry.problem = Problem("image_missing", "the sample has no image file")
            elif entry.image.size > self._max_bytes:
                reason = f"the image has {too_many_bytes(entry.image.size, self._max_bytes)}"
                entry.image, entry.problem = None, Problem("image_too_large", reason)
        if self._want.files:
            entry.members = members
        elif entry.image is not None:
            entry.members = [entry.image, *source.shard.text_members(members)]
        entry.size = sum(member.size for member in entry.members)
        return entry

    def _read(self, job: Job) -> Sequence[Mapping[str, bytes] | Problem]:
        """Does one job, in a thread."""
        source = job.source
        try:
            if (problem := self._refused(source)) is None:
                with self._readers.use(source) as reader:
                    if reader.sequential:
                        job.after.wait()  # it was begun before this one, so it ends
                    answer = reader.read(job.rows, job.members)
                source.failures = 0
                if reader.sequential and job.leaves:
                    self._readers.drop(source)  # it may hold what it has unpacked, and will begin anew
                return [self._compared(source, *known, one) for known, one in zip(job.known, answer, strict=True)]
        except Exception as error:
            if source.shard is None or not _of_a_file(error, source.shard.url):
                raise
            source.failures += 1
            problem = Problem("unread", f"{source.shard.url} cannot be read: {error}")
        finally:
            job.ended.set()
        return [problem] * len(job.rows)

    def _refused(self, source: Source) -> Problem | None:
        """Returns why a shard is not read; whether its file has another size or time is looked at once."""
        assert source.shard is not None  # rows of absent shards are in no job
        with source.lock:
            if source.failures >= _PATIENCE:
                return Problem("unread", f"{source.shard.url} could not be read {_PATIENCE} times in a row: given up")
            if source.other is None:
                then = parts.index_facts(self._run.index_path(source.name)).stamp
                source.other = bool(then) and source.shard.stamp() != then
            return None

    def _compared(
        self, source: Source, index: Index, place: int, found: SampleFiles | Problem
    ) -> Mapping[str, bytes] | Problem:
        """Returns the files of a sample if it is what the index says, and what is wrong with it otherwise."""
        assert source.shard is not None  # it was read
        url = source.shard.url
        if isinstance(found, Problem):
            # A file that was cut when it was scored is still the same.
            return changed(url, found.reason) if found.kind == "cut" and source.other else found
        how = difference(found.sample, {name: index.value(name, place) for name in COMPARED})
        return changed(url, how) if how else found.files


def _of_a_file(error: Exception, url: str) -> bool:
    """Tells whether an error is of a file that cannot be read; remote stores raise errors of their own making."""
    return isinstance(error, (OSError, TamisError, pa.ArrowException)) or is_remote(url)


def _jobs(window: Mapping[int, Entry], following: set[Source]) -> list[Job]:
    """Cuts what a window reads into jobs: shards in the order in which they are come to, rows of each ascending."""
    by_source: dict[Source, list[int]] = {}
    for row, entry in window.items():
        if entry.members:
            by_source.setdefault(entry.source, []).append(row)
    jobs: list[Job] = []
    for source, rows in by_source.items():
        job: Job | None = None
        size = 0
        for row in sorted(rows):
            entry = window[row]
            size += entry.size
            if job is None or len(job.rows) == _JOB_ROWS or size > _JOB_BYTES:
                job = Job(source=source, rows=[], members=[], known=[], after=source.last)
                source.last, size = job.ended, entry.size
                jobs.append(job)
            entry.job, entry.part = job, len(job.rows)
            job.rows.append(row - source.place.start)
            job.members.append(entry.members)
            job.known.append((entry.index, entry.place))
        assert job is not None  # each of these shards has a row at least
        job.leaves = source not in following
    return jobs
