"""Windows of a stream: the next rows of an order, and threads that read what is wanted of them.

A window is sorted by shard. One job reads its rows of one shard, neighbours by one request, and compares each sample
with the index.
"""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.arrays import Rows
from tamis.data import Member, Sample
from tamis.errors import TamisError
from tamis.ids import content_uid, format_uid, image_xxh3
from tamis.pool import Pool, Shard
from tamis.pool.files import is_remote
from tamis.pool.source import Problem, SampleFiles, ShardReader, too_many_bytes
from tamis.store import parts
from tamis.store.run import Run

_WINDOW = 2048  # rows, at most
_OPEN = 64  # shards that stay open between windows
_INDEX_BYTES = 512 << 20  # of the index that stay in memory, of the rows that are asked for
_INDEX_THREADS = 4  # Arrow releases the GIL while it works
_PATIENCE = 3  # a shard is given up after this many failed jobs in a row: on a store, each may take minutes

#: Columns of the index that a sample is compared with.
COMPARED = ("uid_hi", "uid_lo", "caption", "image_bytes", "image_xxh3")

_SHOWN = 60  # characters of a caption in a message


class Index:
    """Columns of the index of one shard, of the rows that a stream will need."""

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
    """One shard of the run in a stream."""

    def __init__(self, name: str, shard: Shard | None, place: slice) -> None:
        self.name, self.shard = name, shard
        self.place = place  # its rows in the run
        self.other: bool | None = None  # whether its file has another size or time
        self.failures = 0  # jobs in a row that failed as a whole
        self.lock = threading.Lock()
        self.reader: ShardReader | None = None
        self.users = 0  # jobs that use the reader
        self.last: Future[Any] | None = None  # the job that was planned last


@dataclass(slots=True)
class Entry:
    """One different row of a window: its place in the index, what is wanted of it, and its part of a job's answer."""

    source: Source
    index: Index
    place: int
    image: Member | None = None
    members: Sequence[Member] = ()
    size: int = 0
    problem: Problem | None = None
    answer: Future[Sequence[Mapping[str, bytes] | Problem]] | None = None
    part: int = 0


class Windows:
    """An order of row numbers of a run as windows, each with its jobs under way.

    Two windows together hold at most `ahead` bytes; more only if single samples are larger than half of it.
    """

    def __init__(
        self, run: Run, pool: Pool | None, order: Rows, columns: Sequence[str], files: bool, image: bool, ahead: int
    ) -> None:
        self._run, self._order, self._files, self._image, self._ahead = run, order, files, image, ahead
        self._columns = list(dict.fromkeys([*columns, *(COMPARED if files or image else ())]))
        self._max_bytes = pool.spec.max_bytes if pool is not None else 0
        shards = {shard.name: shard for shard in pool.shards} if pool is not None else {}
        self._starts = np.concatenate([[0], np.cumsum(run.sizes, dtype=np.int64)])
        self._sources = [
            Source(name, shards.get(name), slice(int(start), int(start) + size))
            for name, start, size in zip(run.shards, self._starts, run.sizes, strict=False)
        ]
        self._needed = np.zeros(len(run), bool)
        self._needed[order] = True
        self._ascending = bool((order[1:] >= order[:-1]).all())  # each shard is needed once: nothing is kept
        self._indexes: OrderedDict[int, Index] = OrderedDict()
        self._open: set[Source] = set()

    def close(self) -> None:
        """Closes the shards; no job may be running."""
        for source in self._open:
            if source.reader is not None:
                source.reader.close()

    def under_way(self, executor: ThreadPoolExecutor) -> Iterator[tuple[list[int], dict[int, Entry]]]:
        """Yields windows whose jobs have been handed to the executor: their rows in order, and each different row."""
        first = 0
        while first < self._order.size:
            last = min(first + _WINDOW, self._order.size)
            rows = self._order[first:last]
            blocks = self._blocks(rows)
            indexes = self._load(np.unique(blocks).tolist())
            window: dict[int, Entry] = {}
            size = 0
            for number, (row, block) in enumerate(zip(rows.tolist(), blocks.tolist(), strict=True)):
                if row not in window:
                    entry = self._entry(row, self._sources[block], indexes[block])
                    size += entry.size
                    if size > self._ahead // 2 and number:
                        last = first + number
                        break
                    window[row] = entry
            while last < self._order.size and self._order[last] == self._order[last - 1]:
                last += 1  # repeats cost nothing here, and in the next window another read
            following = {self._sources[block] for block in self._blocks(self._order[last : last + 1])}
            self._submit(executor, window, following)
            yield self._order[first:last].tolist(), window
            first = last

    def _blocks(self, rows: Rows) -> NDArray[np.intp]:
        return np.searchsorted(self._starts, rows, side="right") - 1

    def _load(self, blocks: Sequence[int]) -> dict[int, Index]:
        """Returns the index of some shards, reading what is not in memory."""
        if missing := [block for block in blocks if block not in self._indexes]:
            with ThreadPoolExecutor(_INDEX_THREADS) as executor:
                self._indexes |= dict(zip(missing, executor.map(self._index_of, missing), strict=True))
        found = {block: self._indexes[block] for block in blocks}
        for block in blocks:
            self._indexes.move_to_end(block)
        held = sum(index.nbytes for index in self._indexes.values())
        most = 0 if self._ascending else _INDEX_BYTES
        while held > most and len(self._indexes) > len(blocks):
            held -= self._indexes.popitem(last=False)[1].nbytes
        return found

    def _index_of(self, block: int) -> Index:
        source = self._sources[block]
        return Index(self._run, source.name, np.flatnonzero(self._needed[source.place]), self._columns)

    def _entry(self, row: int, source: Source, index: Index) -> Entry:
        place = int(np.searchsorted(index.rows, row - source.place.start))
        entry = Entry(source, index, place)
        if not self._files and not self._image:
            return entry
        if source.shard is None:
            entry.problem = Problem("absent", f"the pool no longer has the shard {source.name!r}")
            return entry
        members = index.members(place)
        if self._image:
            entry.image = source.shard.image_member(members)
            if entry.image is None:
                entry.problem = Problem("image_missing", "the sample has no image file")
            elif entry.image.size > self._max_bytes:
                reason = f"the image has {too_many_bytes(entry.image.size, self._max_bytes)}"
                entry.image, entry.problem = None, Problem("image_too_large", reason)
        if self._files:
            entry.members = members
        elif entry.image is not None:
            entry.members = [entry.image, *source.shard.text_members(members)]
        entry.size = sum(member.size for member in entry.members)
        return entry

    def _submit(self, executor: ThreadPoolExecutor, window: Mapping[int, Entry], following: set[Source]) -> None:
        """Starts a job for each shard of a window, in the order in which the shards are needed."""
        by_source: dict[Source, list[int]] = {}
        for row, entry in window.items():
            if entry.members:
                by_source.setdefault(entry.source, []).append(row)
        for source, rows in by_source.items():
            rows.sort()
            entries = [window[row] for row in rows]
            numbers = [row - source.place.start for row in rows]
            source.last = executor.submit(self._read, source, numbers, entries, source.last, source not in following)
            for part, entry in enumerate(entries):
                entry.answer, entry.part = source.last, part

    def _read(
        self, source: Source, rows: list[int], entries: list[Entry], before: Future[Any] | None, leaves: bool
    ) -> Sequence[Mapping[str, bytes] | Problem]:
        """Reads some rows of one shard, in a thread; with `leaves`, the next window does not need this shard."""
        assert source.shard is not None  # rows of absent shards are not asked for
        try:
            if (problem := self._refused(source, source.shard)) is None:
                with self._reader(source, source.shard, leaves) as reader:
                    if reader.sequential and before is not None:
                        wait([before])  # it was begun before this one, so it ends
                    answer = reader.read(rows, [entry.members for entry in entries])
                source.failures = 0
                return [self._compared(source, entry, one) for entry, one in zip(entries, answer, strict=True)]
        except Exception as error:
            # Remote stores raise errors of their own.
            if not isinstance(error, (OSError, TamisError, pa.ArrowException)) and not is_remote(source.shard.url):
                raise
            source.failures += 1
            problem = Problem("unread", f"{source.shard.url} cannot be read: {error}")
        return [problem] * len(rows)

    @contextmanager
    def _reader(self, source: Source, shard: Shard, leaves: bool) -> Iterator[ShardReader]:
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

    def _refused(self, source: Source, shard: Shard) -> Problem | None:
        """Returns why a shard is not read any more; looks once whether its file has another size or time."""
        with source.lock:
            if source.failures >= _PATIENCE:
                return Problem("unread", f"{shard.url} could not be read {_PATIENCE} times in a row: given up")
            if source.other is None:
                then = parts.index_facts(self._run.index_path(source.name)).stamp
                source.other = bool(then) and shard.stamp() != then
            return None

    def _compared(self, source: Source, entry: Entry, found: SampleFiles | Problem) -> Mapping[str, bytes] | Problem:
        """Returns the files of a sample if it is what the index says, and what is wrong with it otherwise."""
        if isinstance(found, Problem):
            if found.kind != "cut" or not source.other:  # a file that was cut when it was scored is still the same
                return found
            how = found.reason
        else:
            how = difference(found.sample, {name: entry.index.value(name, entry.place) for name in COMPARED})
            if not how:
                return found.files
        return Problem(
            "changed",
            f"a sample of {source.shard and source.shard.url} has changed since it was scored: {how}; put the old file "
            "back, or score the pool into another run folder",
        )


def difference(now: Sample, was: Mapping[str, Any]) -> str:
    """Returns how a sample read again differs from the index (its columns `COMPARED`); "" if it does not."""
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
