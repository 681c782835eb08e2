"""Classes of rows: the class of each row, and work on the embeddings of one class after another."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tamis.arrays import Float32s, Float64s, Rows
from tamis.errors import RunError
from tamis.math.clipcov import covariance_of_sums
from tamis.math.similarity import unit_rows
from tamis.selectors.vectors import BLOCK, embedded, gathered, group_codes
from tamis.store.table import Table

T = TypeVar("T")
U = TypeVar("U")

#: Classes worked on at once. The choices in a class depend only on that class.
WORKERS = min(4, os.cpu_count() or 1)


def classes_of(
    step: str, table: Table, column: str, needed: Sequence[str], known: Sequence[str] | None = None
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """Returns the class of each candidate, -1 if it has none or lacks a vector, and the classes' names.

    A number is named with the fewest digits that identify it (1000001, 0.1). `needed` are columns of vectors, `known`
    all names in the order of their classes (None: those in the column, sorted); another name raises RunError.
    """
    codes, values = group_codes(table, column)
    for name in needed:
        codes[~embedded(table, name)] = -1
    words = [v if isinstance(v, str) else np.format_float_positional(np.float32(v), trim="-") for v in values]
    names = tuple(known or sorted(set(words)))
    numbers = {word: number for number, word in enumerate(names)}
    used = {words[code] for code in np.unique(codes[codes >= 0])}
    if unknown := sorted(used - numbers.keys()):
        raise RunError(
            f"{step}: the column {column!r} holds {unknown[0]!r}, which is not among the {len(names):,} class names "
            "stored with it: this column and the stored class list do not match. `tamis check RUN` finds damaged files"
        )
    return np.array([*(numbers.get(word, -1) for word in words), -1], np.int32)[codes], names


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
        """Adds stored rows in blocks of some thousand, so that many small classes cost one product."""
        waiting: list[list[Any]] = []
        rows = 0

        def flush() -> None:
            images, texts = (unit_rows(np.concatenate(side)) for side in zip(*waiting, strict=True))
            self.add(images, texts)

        for sides in stored:
            for start in range(0, len(sides[0]), BLOCK):
                waiting.append([each[start : start + BLOCK] for each in sides])
                rows += len(waiting[-1][0])
                if rows >= BLOCK:
                    flush()
                    waiting, rows = [], 0
        if waiting:
            flush()

    def covariance(self) -> Float64s:
        """Returns the cross-covariance of what was added: (d, d); zeros if nothing was."""
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
    """Calls `work(class, place in the order, images, texts)` for every class with rows, some at once, in order.

    `names` are columns of images and captions, of which `work` gets float32 unit rows; `order` and `starts` are as for
    `gathered`. Only the results of a few classes are held. All rows are added to `products`.
    """

    def one(item: tuple[int, slice, list[Any]]) -> tuple[int, T]:
        k, place, stored = item
        return k, work(k, place, unit_rows(stored[0]), unit_rows(stored[1]))

    for group in gathered(table, names, order, starts):
        if products is not None:
            products.add_stored(stored for _, _, stored in group)
        sizes = np.array([place.stop - place.start for _, place, _ in group], float)
        # BLAS's own threads are best for one class with most of the work, one thread per class for many classes.
        if WORKERS == 1 or sizes.max(initial=0) ** 2 * WORKERS > (sizes**2).sum():
            yield from map(one, group)
        else:
            yield from _parallel(one, group)


def _parallel(work: Callable[[T], U], items: Iterable[T]) -> Iterator[U]:
    """Calls `work` for each item, `WORKERS` at once, and yields the results in order; few of them wait.

    BLAS gets one thread per item: threads within threads would take twice the time on the same cores.
    """
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(WORKERS) as pool:
        waiting: deque[Future[U]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > 2 * WORKERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
