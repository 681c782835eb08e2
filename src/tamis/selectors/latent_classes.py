"""Classes of rows for selectors: which class each row is in, and work on the embeddings of one class after another."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tamis.arrays import Float32s, Float64s, Rows
from tamis.errors import RecipeError, RunError
from tamis.math.clipcov import covariance_of_sums
from tamis.math.similarity import unit_rows
from tamis.selectors.vectors import BLOCK, gathered, present
from tamis.store.table import Table

T = TypeVar("T")
U = TypeVar("U")

#: Classes worked on at once. The choices of a class depend on nothing but the class.
WORKERS = min(4, os.cpu_count() or 1)


def classes_of(
    step: str, table: Table, column: str, needed: Sequence[str], known: Sequence[str] | None = None
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Returns the number of each living row's class, -1 where it has none or lacks a vector, and the classes' names.

    Args:
        step: who asks.
        table: whose rows.
        column: of words, or of numbers: each is the word that it is written with (that of a cluster, say).
        needed: columns of vectors.
        known: all words in the order of their numbers; None: those that the column holds, sorted.

    Raises:
        RecipeError: the column holds neither words nor numbers.
        RunError: it holds a word that is not among those that are known.
    """
    if table.kind(column) not in ("word", "number"):
        raise RecipeError(f"{step}: per takes a column of words or numbers, {column!r} holds {table.kind(column)}s")
    alive = table.living()

    def coded(place: slice, columns: dict[str, Any]) -> tuple[slice, list[str | None], NDArray[np.int64]]:
        words, codes = _coded(columns[column])
        there = alive[place].copy()
        for name in needed:
            there &= present(columns[name])
        return place, words, np.where(there, codes, -1)

    found = list(table.map([column, *needed], coded))
    names = tuple(known or sorted({word for _, words, _ in found for word in words if word is not None}))
    numbers: dict[str | None, int] = {word: number for number, word in enumerate(names)}
    held = {word for _, words, codes in found for word in (words[code] for code in np.unique(codes[codes >= 0]))}
    strange = sorted(word for word in held if word is not None and word not in numbers)
    if strange:
        raise RunError(
            f"{step}: the column {column!r} holds {strange[0]!r}, which is not among the {len(names):,} names "
            "of classes that are kept beside it: it was not made with those. `tamis check RUN` finds what is damaged"
        )
    labels = np.full(len(table), -1, np.int32)
    for place, words, codes in found:
        labels[place] = np.array([*(numbers.get(word, -1) for word in words), -1], np.int32)[codes]
    return labels, names


def _coded(values: Any) -> tuple[list[str | None], NDArray[np.int64]]:
    """Returns the distinct words of a column's block, and which of them each row has, -1 for none."""
    if isinstance(values, np.ndarray):
        distinct, codes = np.unique(values + 0, return_inverse=True)  # + 0: no negative zero
        return [None if np.isnan(value) else written(value) for value in distinct], codes.reshape(-1)
    words = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    return words.dictionary.to_pylist(), words.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)


def written(value: np.floating[Any]) -> str:
    """Returns a number with the fewest digits that tell it from every other of its precision: 1000001, 0.1."""
    return np.format_float_positional(value, trim="-")


def unit_vectors(stored: Sequence[Any]) -> tuple[Float32s, Float32s]:
    """Returns images and captions as unit rows: their similarity is the cosine, whatever lengths are stored."""
    images, texts = stored
    return unit_rows(images), unit_rows(texts)


class Products:
    """The sums of v t', of v and of t over rows that come block by block: what a covariance is made of."""

    def __init__(self, d: int) -> None:
        self.products: Float64s = np.zeros((d, d))
        self.image_sum: Float64s = np.zeros(d)
        self.text_sum: Float64s = np.zeros(d)
        self.rows = 0

    def add(self, images: Float32s, texts: Float32s) -> None:
        """Adds the unit rows of one block."""
        self.products += images.T @ texts
        self.image_sum += images.sum(0, np.float64)
        self.text_sum += texts.sum(0, np.float64)
        self.rows += len(images)

    def add_stored(self, stored: Iterable[Sequence[Any]]) -> None:
        """Adds rows as they are stored, in blocks of some thousand: many small classes cost one product."""
        waiting: list[list[Any]] = []
        rows = 0
        for sides in stored:
            for start in range(0, len(sides[0]), BLOCK):
                waiting.append([each[start : start + BLOCK] for each in sides])
                rows += len(waiting[-1][0])
                if rows >= BLOCK:
                    self.add(*unit_vectors([np.concatenate(side) for side in zip(*waiting, strict=True)]))
                    waiting, rows = [], 0
        if waiting:
            self.add(*unit_vectors([np.concatenate(side) for side in zip(*waiting, strict=True)]))

    def covariance(self) -> Float64s:
        """Returns the cross-covariance of what was added: (d, d); zeros where nothing was."""
        if not self.rows:
            return np.zeros_like(self.products)
        return covariance_of_sums(self.products, self.image_sum, self.text_sum, self.rows)


def by_class(
    table: Table,
    names: tuple[str, str],
    order: Rows,
    starts: Rows,
    work: Callable[[int, slice, Float32s, Float32s], T],
    products: Products | None = None,
) -> Iterator[tuple[int, T]]:
    """Calls `work(class, place in the order, images, texts)` for every class that has rows, some at once, in order.

    Args:
        table: where the rows lie.
        names: columns of images and captions; they come as float32 unit rows.
        order: (n,) row numbers, those of one class together.
        starts: (classes + 1,) where each class begins in `order`.
        work: what to do; its results are held for a few classes only.
        products: gets all rows too.
    """

    def one(item: tuple[int, slice, list[Any]]) -> tuple[int, T]:
        k, place, stored = item
        return k, work(k, place, *unit_vectors(stored))

    for group in gathered(table, names, order, starts):
        if products is not None:
            products.add_stored(stored for _, _, stored in group)
        sizes = np.array([place.stop - place.start for _, place, _ in group], float)
        # One class that has most of the work is done best by BLAS's threads, many classes by one thread each.
        if WORKERS == 1 or sizes.max(initial=0) ** 2 * WORKERS > (sizes**2).sum():
            yield from map(one, group)
        else:
            yield from _parallel(one, group)


def element(arrays: Sequence[NDArray[Any]], which: Rows, places: Rows) -> NDArray[Any]:
    """Returns element `places[i]` of array `which[i]`."""
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in arrays])])[:-1].astype(np.int64)
    taken: NDArray[Any] = np.concatenate(arrays)[offsets[which] + places]
    return taken


def _parallel(work: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
    """Calls `work` for each item, `WORKERS` at once, and yields the results in order; few of them wait at a time.

    BLAS has one thread for each meanwhile: threads within threads take turns on the same cores, for twice the time.
    """
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(WORKERS) as pool:
        waiting: deque[Future[U]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * WORKERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
