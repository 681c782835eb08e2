"""The table that selectors read: a run's columns, block by block."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from tamis.core.arrays import U64, Floats, Mask
from tamis.core.errors import RunError
from tamis.core.machine import cores
from tamis.core.processes import in_order

T = TypeVar("T")

#: Blocks read at once. Arrow and NumPy release the GIL while they work.
_THREADS = min(4, cores())

_CHUNK = 1 << 18


class Cluster(Protocol):
    """Where work is done instead of in this process. What it is given must be picklable, and change nothing."""

    def __call__(self, work: Callable[..., list[Any]], arguments: Iterable[tuple[Any, ...]], /) -> Iterator[list[Any]]:
        """Calls a function with each tuple of arguments, the second a slice; yields the results in order."""

    def deal(
        self, work: Callable[..., list[Any]], arguments: Iterable[tuple[Any, ...]], join: Callable[..., Any], parts: int
    ) -> Sequence[Callable[[], Any]]:
        """Calls a function as above, whose result is a list with a list of so many parts.

        Returns for each part what gives `join(its pieces of all calls)`; it may be an argument of later work.
        """


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
        import pyarrow.compute as pc

        numbers = pc.struct_field(pc.extract_regex(texts, _NUMBER), "number").cast(pa.float64())
    found = numbers.to_numpy(zero_copy_only=False)
    return np.where(np.abs(found) <= np.finfo(np.float32).max, found, np.nan)  # what reads them may have float32


def are_numbers(values: Any) -> bool | None:
    """Whether each of some words is a number or says that there is none; None if no word is a number."""
    import pyarrow.compute as pc

    there = ~np.isnan(as_numbers(values))
    others = pc.utf8_trim_whitespace(values.cast(pa.string()).filter(pa.array(~there))).drop_null()
    if len(others.filter(pc.invert(pc.is_in(others, value_set=pa.array(_NO_VALUE))))):
        return False
    return bool(there.any()) or None


class Masks(Protocol):
    """Gives a mask of some rows, (n,) bool, for a slice of all."""

    def __getitem__(self, rows: slice, /) -> Mask: ...


class Table(ABC):
    """Columns by name over blocks of rows (one block per shard).

    A column holds numbers (float32, NaN for null), words, or vectors: stored embeddings, (rows, d) float16 and mapped
    into memory, NaN in rows without one.

    Attributes:
        sizes: rows per block.
        run_on_cluster: does `scan`'s work on a cluster; None: threads do it.
    """

    sizes: Sequence[int]
    run_on_cluster: Cluster | None = None
    _candidates: Mask | Masks | None = None  # None: all rows

    @abstractmethod
    def read(self, block: int, names: Sequence[str]) -> dict[str, Any]:
        """Returns columns of a block, by name."""

    @abstractmethod
    def read_uids(self, block: int) -> tuple[U64, U64]:
        """Returns the halves of the uids of a block."""

    @abstractmethod
    def kind(self, name: str) -> str:
        """Returns "number", "word" or "vector": what a column holds."""

    def holds(self, name: str, kind: str) -> bool:
        """Whether a column can be read as a kind. A field of the pool that holds numbers can as words and numbers."""
        return self.kind(name) == kind

    def about(self, name: str) -> Mapping[str, Any]:
        """Returns the description of a column's signal or embeddings, with its settings and models."""
        return {}

    def side_file(self, name: str, file: str) -> Any:
        """Returns a side file of a column's signal; None if there is none."""
        return None

    def requested(self, name: str) -> Mask | None:
        """Returns the rows that a column's signal was asked to judge, (rows,) bool; None: all."""
        return None

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(blocks + 1,) the first row of each block, and the number of rows."""
        return np.concatenate([[0], np.cumsum(self.sizes, dtype=np.int64)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    @property
    def candidates(self) -> Mask:
        """(rows,) bool: the rows that earlier steps left."""
        return self.candidates_in(slice(None))

    def candidates_in(self, rows: slice) -> Mask:
        """Returns the candidates among a slice of the rows: (n,) bool."""
        return np.ones(len(range(len(self))[rows]), bool) if self._candidates is None else self._candidates[rows]

    def with_candidates(self, candidates: Mask | Masks | None) -> Self:
        """Returns the same table with other candidates.

        Args:
            candidates: a mask of the table, or what gives one for a slice of rows; None: all rows.
        """
        other = object.__new__(type(self))  # `copy` would open the table again, as another process does
        other.__dict__ |= self.__dict__ | {"_candidates": candidates}
        return other

    def check_requested(self, names: Sequence[str], reader: str) -> None:
        """Raises RunError if a column that a reader needs in full covers some rows only."""
        for name in names:
            if (requested := self.requested(name)) is not None:
                lacking = int(np.count_nonzero(~requested))
                what = f"{reader} reads {name!r}, which nobody asked for in {lacking:,} of {len(self):,} rows"
                raise RunError(f"{what}: score it in full first, without 'within'")

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
        reader = BlockReader(self, names, lambda rows, columns, _: work(rows, columns))
        for (result,) in _by_threads(reader, ((block, rows, None) for block, rows in enumerate(self.row_ranges()))):
            yield result

    def scan(
        self,
        names: Sequence[str],
        work: Callable[[slice, dict[str, Any], Mask], T],
        *,
        in_chunks: bool = False,
        every: int = 1,
    ) -> Iterator[T]:
        """Calls `work(rows, columns, candidates)` for every block, on the cluster if there is one; else as `map`.

        Args:
            names: the columns to read; without any the work is done here.
            work: gets the slice of the table's rows, their columns and which of them are candidates, (n,) bool. It
                must change nothing and refer to nothing large but this table, of which it may read the uids.
            in_chunks: calls it for chunks of a block, which stay in the processor's cache.
            every: reads only each block with a number that this divides.
        """
        execute = (self.run_on_cluster if names else None) or _by_threads
        yield from itertools.chain.from_iterable(
            execute(BlockReader(self, names, work, in_chunks), self.block_arguments(every))
        )

    def block_arguments(self, every: int = 1) -> Iterator[tuple[int, slice, Any]]:
        """Yields what a `BlockReader` is called with, for each block with a number that `every` divides."""
        candidates = self._candidates
        for block, rows in itertools.islice(enumerate(self.row_ranges()), None, None, every):
            yield block, rows, None if candidates is None else candidates[rows]

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
        high, low = self._gather(rows, self.read_uids) if rows.size else np.empty((2, 0), np.uint64)
        return high, low

    def vectors(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.floating[Any]]:
        """Returns the vectors or numbers of some rows, in the order asked for: (n, d) or (n,), as they are stored.

        Args:
            name: a column of vectors or numbers.
            rows: (n,) row numbers, in any order. Each block is read once.
        """

        def read(block: int) -> tuple[NDArray[Any]]:
            return (as_numbers(self.read(block, [name])[name]),)

        if not rows.size:
            return read(0)[0][:0] if self.sizes else np.empty((0, 0), np.float16)
        return self._gather(rows, read)[0]

    def _gather(self, rows: NDArray[np.int64], read: Callable[[int], Sequence[NDArray[Any]]]) -> list[NDArray[Any]]:
        """Returns some rows of the arrays that `read` gives for a block; each block is read once."""
        order = np.argsort(rows, kind="stable") if (rows[1:] < rows[:-1]).any() else None
        ascending = rows if order is None else rows[order]
        start, _ = next(self.blocks_of(ascending))
        first = read(start)
        out: list[NDArray[Any]] = [np.empty((rows.size, *array.shape[1:]), array.dtype) for array in first]

        def fill(some: tuple[int, slice]) -> None:
            block, part = some
            inside, target = ascending[part] - self.starts[block], part if order is None else order[part]
            for filled, array in zip(out, first if block == start else read(block), strict=True):
                filled[target] = array[inside]

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(fill, self.blocks_of(ascending)))
        return out


class MemoryTable(Table):
    """A table of arrays in memory: floats with NaN for null, lists of words, or (rows, d) vectors."""

    def __init__(
        self, columns: Mapping[str, Any], *, uids: tuple[U64, U64] | None = None, block: int = 1 << 20
    ) -> None:
        """Makes a table.

        Args:
            columns: by name.
            uids: halves of each row's id; None: its number.
            block: rows per block.
        """
        rows = len(next(iter(columns.values()))) if columns else len(uids[0]) if uids else 0
        self.sizes = [min(block, rows - start) for start in range(0, rows, block)]
        self._uids = uids or (np.zeros(rows, np.uint64), np.arange(rows, dtype=np.uint64))
        self._columns = {
            name: value if isinstance(value, np.ndarray) else pa.array(value) for name, value in columns.items()
        }

    def read(self, block: int, names: Sequence[str]) -> dict[str, Any]:
        rows = slice(*self.starts[block : block + 2])
        return {name: self._columns[name][rows] for name in names}

    def read_uids(self, block: int) -> tuple[U64, U64]:
        rows = slice(*self.starts[block : block + 2])
        return self._uids[0][rows], self._uids[1][rows]

    def kind(self, name: str) -> str:
        values = self._columns[name]
        return {1: "number", 2: "vector"}[values.ndim] if isinstance(values, np.ndarray) else "word"


@dataclass(frozen=True)
class BlockReader:
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
