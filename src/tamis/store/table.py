"""The table that selectors read: a run's columns, block by block."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from tamis.arrays import U64, Floats, Mask
from tamis.errors import RunError
from tamis.processes import in_order

T = TypeVar("T")

#: Blocks read at once. Arrow and NumPy release the GIL while they work.
_THREADS = min(4, os.cpu_count() or 1)

_CHUNK = 1 << 16


#: Calls a function with each tuple of arguments and yields the results in order.
Spread = Callable[[Callable[..., list[Any]], Iterable[tuple[Any, ...]]], Iterator[list[Any]]]


#: A number, alone or on the first line of a text, as models answer that are asked for a score and why.
_NUMBER = r"^\s*\+?(?P<number>-?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(?:\n|$)"

#: Texts that stand for no value.
_NO_VALUE = (*pa_csv.ConvertOptions().null_values, "None", "inf", "-inf", "Infinity", "-Infinity")


def as_numbers(values: Any) -> Floats:
    """Returns a column's values as numbers, (n,): of words those that are numbers, as float64, NaN for the others."""
    if isinstance(values, np.ndarray):
        return values
    texts = values.cast(pa.string()) if pa.types.is_dictionary(values.type) else values
    try:
        numbers = texts.cast(pa.float64())
    except pa.ArrowInvalid:
        numbers = pc.struct_field(pc.extract_regex(texts, _NUMBER), "number").cast(pa.float64())
    found = numbers.to_numpy(zero_copy_only=False)
    return np.where(np.abs(found) <= np.finfo(np.float32).max, found, np.nan)  # what reads them may have float32


def are_numbers(values: Any) -> bool | None:
    """Whether each of some words is a number or says that there is none; None if no word is a number."""
    there = ~np.isnan(as_numbers(values))
    others = pc.utf8_trim_whitespace(values.cast(pa.string()).filter(pa.array(~there))).drop_null()
    if len(others.filter(pc.invert(pc.is_in(others, value_set=pa.array(_NO_VALUE))))):
        return False
    return bool(there.any()) or None


class Masks(Protocol):
    """Gives a mask of some rows, (n,) bool, for a slice of all."""

    def __getitem__(self, rows: slice, /) -> Mask: ...


@dataclass(frozen=True, eq=False)
class Table:
    """Columns by name over blocks of rows (one block per shard).

    A column holds numbers (float32, NaN for null), words, or vectors: stored embeddings, (rows, d) float16 and mapped
    into memory, NaN in rows without one.

    Attributes:
        sizes: rows per block.
        read: returns columns of a block, by name.
        read_uids: returns the halves of the uids of a block.
        kind: returns "number", "word" or "vector": what a column holds.
        about: returns the description of a column's signal or embeddings, with its settings and models.
        side_file: returns a side file of a column's signal, by column and file name; None if there is none.
        numeric: whether a column can be read as numbers, as a field of the pool that holds numbers can.
        asked: returns the rows that a column's signal was asked to judge, (rows,) bool; None: all.
        spread: does `scan`'s work on a cluster; None: threads do it.
        again: opens the same table in another process, where all rows are candidates.
        only: the candidates, the rows that earlier steps left: a mask of the table, or what gives one for a slice of
            rows; None: all.
    """

    sizes: Sequence[int]
    read: Callable[[int, Sequence[str]], dict[str, Any]]
    read_uids: Callable[[int], tuple[U64, U64]]
    kind: Callable[[str], str]
    only: Mask | Masks | None = None
    about: Callable[[str], Mapping[str, Any]] = lambda name: {}
    side_file: Callable[[str, str], Any] = lambda name, file: None
    numeric: Callable[[str], bool] = lambda name: False
    asked: Callable[[str], Mask | None] = lambda name: None
    spread: Spread | None = None
    again: Callable[[], Table] | None = None

    def __reduce__(self) -> Any:
        return (self.again, ()) if self.again else super().__reduce__()

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(blocks + 1,) the first row of each block, and the number of rows."""
        return np.concatenate([[0], np.cumsum(self.sizes, dtype=np.int64)])

    @classmethod
    def of(
        cls,
        columns: Mapping[str, Any],
        *,
        uids: tuple[U64, U64] | None = None,
        block: int = 1 << 20,
        side_files: Mapping[tuple[str, str], Any] | None = None,
    ) -> Table:
        """Returns a table of arrays in memory: floats with NaN for null, lists of words, or (rows, d) vectors.

        Args:
            columns: by name.
            uids: halves of each row's id; None: its number.
            block: rows per block.
            side_files: by column and file name.
        """
        beside = side_files or {}
        rows = len(next(iter(columns.values()))) if columns else len(uids[0]) if uids else 0
        cuts = list(range(0, rows, block))
        high, low = uids or (np.zeros(rows, np.uint64), np.arange(rows, dtype=np.uint64))
        data = {name: value if isinstance(value, np.ndarray) else pa.array(value) for name, value in columns.items()}
        return cls(
            [min(block, rows - cut) for cut in cuts],
            lambda number, names: {name: data[name][cuts[number] : cuts[number] + block] for name in names},
            lambda number: (high[cuts[number] : cuts[number] + block], low[cuts[number] : cuts[number] + block]),
            lambda name: {1: "number", 2: "vector"}[data[name].ndim] if isinstance(data[name], np.ndarray) else "word",
            side_file=lambda name, file: beside.get((name, file)),
        )

    def __len__(self) -> int:
        return int(self.starts[-1])

    def among(self, candidates: Mask | Masks | None) -> Table:
        """Returns the same table with other candidates; None: all rows."""
        return replace(self, only=candidates)

    def check_asked(self, names: Sequence[str], reader: str) -> None:
        """Raises RunError if a column that a reader needs in full covers some rows only."""
        for name in names:
            if (asked := self.asked(name)) is not None:
                lacking = int(np.count_nonzero(~asked))
                what = f"{reader} reads {name!r}, which nobody asked for in {lacking:,} of {len(self):,} rows"
                raise RunError(f"{what}: score it in full first, without 'within'")

    def part(self, blocks: Sequence[int]) -> Table:
        """Returns the table of some of the blocks, with all of their rows as candidates."""
        return replace(
            self,
            sizes=[self.sizes[block] for block in blocks],
            read=lambda number, names: self.read(blocks[number], names),
            read_uids=lambda number: self.read_uids(blocks[number]),
            only=None,
        )

    def candidates(self, rows: slice = slice(None)) -> Mask:
        """Returns the candidates among a slice of the rows, by default of all: (n,) bool."""
        return np.ones(len(range(len(self))[rows]), bool) if self.only is None else self.only[rows]

    def block_uids(self, rows: slice) -> tuple[U64, U64]:
        """Returns the uids of rows of one block."""
        block = int(np.searchsorted(self.starts[:-1], rows.start, side="right")) - 1
        part = slice(rows.start - self.starts[block], rows.stop - self.starts[block])
        high, low = self.read_uids(block)
        return high[part], low[part]

    def map(self, names: Sequence[str], work: Callable[[slice, dict[str, Any]], T]) -> Iterator[T]:
        """Calls `work(rows, columns)` for every block, some at once, and yields the results in order.

        Args:
            names: the columns to read.
            work: gets the slice of the table's rows that the block holds, and its columns; must not touch other rows.
        """
        look = _Look(self, names, lambda rows, columns, _: work(rows, columns))
        for (found,) in _by_threads(look, ((block, rows, None) for block, rows in enumerate(self.row_ranges()))):
            yield found

    def scan(
        self,
        names: Sequence[str],
        work: Callable[[slice, dict[str, Any], Mask], T],
        *,
        in_chunks: bool = False,
        every: int = 1,
    ) -> Iterator[T]:
        """Calls `work(rows, columns, candidates)` for every block, on a cluster if `spread` is one; else as `map`.

        Args:
            names: the columns to read; without any the work is done here.
            work: gets the slice of the table's rows, their columns and which of them are candidates, (n,) bool. It
                must change nothing and refer to nothing large but this table, of which it may read the uids.
            in_chunks: calls it for chunks of a block, which stay in the processor's cache.
            every: reads only each block with a number that this divides.
        """
        spread = self.spread if self.spread and names else _by_threads
        places = itertools.islice(enumerate(self.row_ranges()), None, None, every)
        looks = ((block, rows, None if self.only is None else self.only[rows]) for block, rows in places)
        yield from itertools.chain.from_iterable(spread(_Look(self, names, work, in_chunks), looks))

    def row_ranges(self) -> Iterator[slice]:
        """Yields the slice of the table's rows that each block holds."""
        yield from (slice(start, stop) for start, stop in itertools.pairwise(self.starts.tolist()))

    def blocks_of(self, rows: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
        """Yields each block that holds some of the ascending `rows`, and the slice of `rows` that it holds."""
        edges = np.searchsorted(rows, self.starts).tolist()
        for block, (first, last) in enumerate(itertools.pairwise(edges)):
            if first < last:
                yield block, slice(first, last)

    def uids(self, rows: NDArray[np.int64]) -> tuple[U64, U64]:
        """Returns the uids of some rows, in the order asked for, reading only the blocks that hold them."""
        high, low = np.empty(rows.size, np.uint64), np.empty(rows.size, np.uint64)
        if (rows[1:] < rows[:-1]).any():
            order = np.argsort(rows, kind="stable")
            high[order], low[order] = self.uids(rows[order])
            return high, low

        def fill(some: tuple[int, slice]) -> None:
            block, part = some
            here = rows[part] - self.starts[block]
            block_high, block_low = self.read_uids(block)
            high[part], low[part] = block_high[here], block_low[here]

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(fill, self.blocks_of(rows)))
        return high, low

    def vectors(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
        """Returns the vectors or numbers of some rows, in the order asked for: (n, d) or (n,), as they are stored.

        Args:
            name: a column of vectors or numbers.
            rows: (n,) row numbers, in any order. Each block is read once.
        """
        if not rows.size:
            first = as_numbers(self.read(0, [name])[name]) if self.sizes else np.empty((0, 0), np.float16)
            return cast(NDArray[np.floating[Any]], first[:0])
        order = np.argsort(rows, kind="stable")
        ascending = rows[order]
        start, _ = next(self.blocks_of(ascending))
        first = as_numbers(self.read(start, [name])[name])
        out: NDArray[np.floating[Any]] = np.empty((rows.size, *first.shape[1:]), first.dtype)

        def fill(some: tuple[int, slice]) -> None:
            block, part = some
            found = first if block == start else as_numbers(self.read(block, [name])[name])
            out[order[part]] = found[ascending[part] - self.starts[block]]

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(fill, self.blocks_of(ascending)))
        return out


@dataclass(frozen=True)
class _Look:
    """Reads a block and calls `work` for it, or for its chunks. It can be pickled if `work` can."""

    table: Table
    names: Sequence[str]
    work: Callable[[slice, dict[str, Any], Any], Any]
    in_chunks: bool = False

    def __call__(self, block: int, rows: slice, candidates: Mask | None) -> list[Any]:
        columns, n = self.table.read(block, self.names), rows.stop - rows.start
        if candidates is None:
            candidates = np.ones(n, bool)
        if not self.in_chunks or n <= _CHUNK:
            return [self.work(rows, columns, candidates)]
        return [
            self.work(
                slice(rows.start + part.start, rows.start + part.stop),
                {name: values[part] for name, values in columns.items()},
                candidates[part],
            )
            for part in (slice(start, min(start + _CHUNK, n)) for start in range(0, n, _CHUNK))
        ]


def _by_threads(work: Callable[..., T], arguments: Iterable[tuple[Any, ...]]) -> Iterator[T]:
    if _THREADS == 1:
        yield from itertools.starmap(work, arguments)
        return
    with ThreadPoolExecutor(_THREADS) as pool:
        yield from in_order(lambda some: pool.submit(work, *some), arguments, 4 * _THREADS)
