"""The rows of a table dealt into groups, group after group: more rows than memory holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from threading import Lock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from tamis.core.arrays import Float64s, Rows
from tamis.core.files.scratch import stored
from tamis.core.ids import scramble
from tamis.core.machine import cores
from tamis.runs.reasons import blocks
from tamis.runs.table import BlockReader, Table

T = TypeVar("T")

#: Bytes of the groups that are read together; a larger group is read alone.
_BUCKET = 1 << 27

#: Groups worked on at once.
_THREADS = min(4, cores())

#: The rows of a group, a structured array with the fields `row`, `high` and `low` (the halves of the uid), `group`,
#: `score`, and `vectors`, in which each column of vectors is a field.
Records = NDArray[Any]


@dataclass(frozen=True)
class Groups:
    """Rows by group, and in each group by scrambled uid.

    Attributes:
        starts: (groups + 1,) int64, the place of each group's first row if one group comes after another.
    """

    starts: Rows
    _edges: Rows  # the groups of bucket b are those from _edges[b] to _edges[b + 1]
    _buckets: Sequence[Callable[[], Records]]
    _table: Table

    def __len__(self) -> int:
        return int(self.starts[-1])

    def scan(
        self, work: Callable[[int, slice, Records, Any], T], given: Mapping[int, Any] | None = None
    ) -> Iterator[T]:
        """Calls `work(group, places, records, given)` for every group with rows, and yields the results in order.

        Args:
            work: gets the group's number, the places of its rows, and the rows; as in `Table.scan` it changes nothing.
            given: what else it gets, by group. Only these groups are read then.
        """
        arguments = []
        for (first, last), bucket in zip(pairwise(self._edges.tolist()), self._buckets, strict=True):
            some = [group for group in range(first, last) if self.starts[group] < self.starts[group + 1]]
            some = [group for group in some if given is None or group in given]
            places = slice(int(self.starts[first]), int(self.starts[last]))
            if some:
                edges = [(group, *self.starts[group : group + 2].tolist()) for group in some]
                arguments.append((bucket, places, (edges, given and [given[group] for group in some])))
        for found in (self._table.run_on_cluster or _one_by_one)(partial(_work_on, work), arguments):
            yield from found


def regroup(
    table: Table,
    names: Sequence[str],
    label: Any,
    groups: int,
    *,
    seed: int = 0,
    score: tuple[Sequence[str], Callable[[Mapping[str, Any], int], Float64s]] | None = None,
) -> Groups:
    """Deals rows into groups: a pass counts them, another writes each to its group's place.

    Args:
        table: the pool's rows.
        names: columns of vectors, which the records have as they are stored.
        label: (rows,) int32, array or `stored`: the group of each row, -1 for none.
        groups: their number.
        seed: of the order in a group.
        score: columns, and what gives the field `score` from them and a number of rows.

    Cost: reads the vectors once, and writes and sorts them by buckets of whole groups, 128 MiB or a group. Scratch: 28
        bytes per row and its vectors, in a temporary file (on a cluster: in its object store).
    """
    counts = np.zeros(groups, np.int64)
    for rows in blocks(len(table)):
        some = label[rows]
        counts += np.bincount(some[some >= 0], minlength=groups)
    starts = np.concatenate([[0], np.cumsum(counts)])
    vectors = [(name, table.vectors(name, np.empty(0, np.int64))) for name in dict.fromkeys(names)]
    fields: list[Any] = [("row", "i8"), ("high", "u8"), ("low", "u8"), ("group", "i4")]
    fields += [("score", "f8")] if score else []
    kind = np.dtype([*fields, ("vectors", [(name, some.dtype, some.shape[1:]) for name, some in vectors])])
    most = _BUCKET if table.run_on_cluster is None else 8 * _BUCKET  # parts below 100 kB fill Ray's driver
    edges = [0]
    for group, end in enumerate(starts[1:].tolist()):
        if (end - starts[edges[-1]]) * kind.itemsize > most and group > edges[-1]:
            edges.append(group)
    edges.append(groups)
    bucket_of = np.repeat(np.arange(len(edges) - 1, dtype=np.int32), np.diff(edges))

    def deal(span: slice, columns: dict[str, Any], labels: Any) -> list[Records]:
        inside = np.flatnonzero(labels >= 0)
        inside = inside[np.argsort(bucket_of[labels[inside]], kind="stable")]
        found = np.empty(inside.size, kind)
        high, low = table.block_uids(span)
        found["row"], found["high"], found["low"] = span.start + inside, high[inside], low[inside]
        found["group"] = labels[inside]
        if score:
            found["score"] = score[1](columns, labels.size)[inside]
        for name in names:
            found["vectors"][name] = columns[name][inside]
        ends = np.searchsorted(bucket_of[found["group"]], np.arange(len(edges)))
        return [found[first:last] for first, last in pairwise(ends.tolist())]

    known, reads = table.with_candidates(label), sorted({*names, *(score[0] if score else ())})
    sort = partial(_sorted, seed)
    if table.run_on_cluster is not None:
        reader = BlockReader(known, reads, deal)
        dealt = table.run_on_cluster.deal(reader, known.block_arguments(), sort, len(edges) - 1)
        return Groups(starts, np.array(edges), dealt, table)
    file, filled, lock = stored(int(starts[-1]), kind), starts[edges[:-1]], Lock()

    def write(span: slice, columns: dict[str, Any], labels: Any) -> None:
        for bucket, part in enumerate(deal(span, columns, labels)):
            with lock:
                at = int(filled[bucket])
                filled[bucket] += part.size
            file[at : at + part.size] = part

    for _ in known.scan(reads, write):
        pass
    buckets = list[Callable[[], Records]]()
    for first, last in pairwise(starts[edges].tolist()):
        file[first:last] = sort([file[first:last]])
        buckets.append(partial(file.__getitem__, slice(first, last)))
    return Groups(starts, np.array(edges), buckets, table)


def _sorted(seed: int, parts: Sequence[Records]) -> Records:
    """Returns the records of a bucket by group, scrambled uid, uid and row."""
    records = parts[0] if len(parts) == 1 else np.concatenate(parts)
    tie = scramble(records["high"], records["low"], seed)
    order = np.argsort(tie)
    order = order[np.argsort(records["group"][order], kind="stable")]
    if (tie[order[1:]] == tie[order[:-1]]).any():  # copies of a uid, in whatever order
        order = np.lexsort((records["row"], records["low"], records["high"], tie, records["group"]))
    return records[order]


def _one_by_one(work: Callable[..., list[T]], arguments: Sequence[tuple[Any, ...]]) -> Iterator[list[T]]:
    for some in arguments:
        yield work(*some)


def _work_on(
    work: Callable[[int, slice, Records, Any], T], bucket: Callable[[], Records], places: slice, some: tuple[Any, Any]
) -> list[T]:
    """Calls `work` for groups of a bucket."""
    records, (edges, given) = bucket(), some

    def one(group: int, start: int, stop: int, more: Any) -> T:
        return work(group, slice(start, stop), records[start - places.start : stop - places.start], more)

    arguments = [(*edge, more) for edge, more in zip(edges, given or [None] * len(edges), strict=True)]
    sizes = np.array([stop - start for _, start, stop in edges], float)
    # BLAS's own threads are best for one group with most of the work, one thread per group for many groups.
    if _THREADS == 1 or sizes.max() ** 2 * _THREADS > (sizes**2).sum():
        return [one(*each) for each in arguments]
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(one, *zip(*arguments, strict=True)))
