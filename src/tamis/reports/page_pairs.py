"""The pairs on the page: how they are picked, their values from the run, and a thumbnail of each image.

Picks depend on uids, never on row order: the same pool gives the same pairs.
"""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray
from PIL import Image, features

from tamis.core.arrays import U64, Float64s, Mask, Pixels, Rows
from tamis.core.ids import format_uid, scramble
from tamis.core.types import STATUSES
from tamis.runs import Run, parts
from tamis.runs.reasons import Cut, blocks
from tamis.runs.stream import samples_of
from tamis.runs.table import Table, as_numbers

K = TypeVar("K")

#: A row and its value of a score.
Scored = tuple[int, float]

#: A group of repeated images: its `size` and its first `rows`, the kept one first.
Group = dict[str, Any]

#: Maximum number of groups of repeated images shown per subset, and of pairs per group.
_GROUPS, _MEMBERS = 8, 4


def scramble_uids(table: Table, seed: int = 0) -> U64:
    """Returns the scrambled uid of every row, (rows,): a random order that does not depend on row order."""
    out = np.empty(len(table), np.uint64)
    for block, span in enumerate(table.row_ranges()):
        out[span] = scramble(*table.read_uids(block), seed)
    return out


def random_order(table: Table, seed: int = 0) -> U64:
    """Returns the scrambled uids, with the row mixed into those that several rows have: these are not neighbours."""
    order = scramble_uids(table, seed)
    ordered = np.sort(order)
    rows = np.flatnonzero(np.isin(order, ordered[1:][ordered[1:] == ordered[:-1]]))
    order[rows] = scramble(order[rows], rows.astype(np.uint64))
    return order


def salted(order: U64, *section: object) -> U64:
    """Returns a random order for one section: any two show different pairs, whatever the order of the rows."""
    return order ^ np.uint64(xxhash.xxh3_64_intdigest(repr(section).encode("utf-8", "replace")))


def first_by(order: NDArray[Any], n: int, among: Mask) -> Rows:
    """Returns the n rows (or fewer) of a mask with the lowest `order`, in that order."""
    best = np.empty(0, np.int64)
    for span in blocks(among.size):
        rows = np.flatnonzero(among[span]) + span.start
        if rows.size > n:
            rows = rows[np.argpartition(order[rows], n)[:n]]
        best = np.concatenate([best, rows])
        best = best[np.argsort(order[best], kind="stable")[:n]]
    return best


def first_of_each(
    table: Table,
    columns: Sequence[str],
    masks: Callable[[slice, Mapping[str, Any]], Mapping[K, Mask]],
    order: U64,
    n: int,
) -> dict[K, tuple[int, list[int]]]:
    """Returns for each kind of rows their number and the first n of them in its salted `order`, in one pass.

    `masks` computes the mask of each kind from a block's rows and `columns`.
    """

    def look(span: slice, values: dict[str, Any]) -> list[tuple[K, int, Rows]]:
        kinds = masks(span, values).items()
        return [
            (kind, int(mask.sum()), first_by(salted(order[span], kind), n, mask) + span.start) for kind, mask in kinds
        ]

    found: dict[K, tuple[int, list[int]]] = {}
    for block in table.map(columns, look):
        for kind, rows, first in block:
            count, best = found.get(kind, (0, []))
            some = np.array([*best, *first.tolist()], np.int64)
            found[kind] = count + rows, some[np.argsort(salted(order[some], kind))][:n].tolist()
    return found


def nearest_to_cut(
    order: U64, values: Float64s, cut: Cut, keep: Mask, fell: Mask, n: int
) -> tuple[list[Scored], list[Scored]]:
    """Returns the n kept and the n dropped (`fell`) pairs closest to a cut, the nearest first.

    Ties go by `order`.
    """
    distance = cut.distance(values)
    inside = _nearest(order, distance, keep & (distance >= 0), n)
    outside = _nearest(order, -distance, fell & (distance <= 0), n)
    return [(row, float(values[row])) for row in inside], [(row, float(values[row])) for row in outside]


def _nearest(order: U64, distance: Float64s, among: Mask, n: int) -> list[int]:
    best = first_by(distance, n, among)
    if not best.size:
        return []
    rows = np.flatnonzero(among & (distance <= distance[best[-1]]))  # includes all ties with the last
    return [int(row) for row in smallest(rows, distance[rows], order.__getitem__, n)]


def smallest(rows: Rows, keys: NDArray[Any], ties: Callable[[Rows], U64], n: int) -> Rows:
    """Returns the n rows with the smallest keys, sorted; ties by the scrambled uids that `ties` returns, NaN last."""
    if rows.size > n:
        limit = np.partition(keys, n - 1)[n - 1]  # NaN sorts last
        near = keys <= limit if limit == limit else np.ones(keys.size, bool)
        rows, keys = rows[near], keys[near]
    return rows[np.lexsort((ties(rows), keys))[:n]]


def current_groups(groups: Iterable[Mapping[str, Any]], table: Table) -> list[Group]:
    """Returns the first groups of repeated images whose pairs are still in the same rows of the run."""
    found = []
    for group in groups:
        rows = np.array(group["rows"][:_MEMBERS], np.int64)
        if rows.size and rows.max() < len(table):
            uids = [format_uid(*halves) for halves in zip(*table.uids(rows), strict=True)]
            if uids == group["uids"][:_MEMBERS]:
                found.append({"size": int(group["size"]), "rows": rows.tolist()})
    return found[:_GROUPS]


log = logging.getLogger(__name__)

#: Least and greatest longer side of an image on the page, in pixels.
SIDES = 160, 512

_QUALITY = 62

#: The image format of the pages.
KIND = "webp" if features.check("webp") else "jpeg"

#: Text in place of an image, by the kind of problem (`tamis.pools.source.SampleFault`).
NO_IMAGE = {
    "absent": "the pool's files are not here",
    "unread": "the shard's file cannot be read",
    "changed": "changed since it was scored",
    "cut": "the file could not be read",
    "hidden": "on a list of hash_match: not shown",
    **{name: status.no_image for name, status in STATUSES.items() if status.no_image},
}

#: Returns an image with its text outlined, and with its text painted over.
Painter = Callable[[Pixels], tuple[Pixels, Pixels]]

_INDEX = ("uid_hi", "uid_lo", "key", "caption", "status", "reason", "width", "height")


@dataclass(kw_only=True)
class Pair:
    """A pair on the page.

    `words` and `numbers` are its columns by name (None or NaN if null), `texts` names free-text columns, `why_null` has
    a sentence per signal without a value, `subsets` per subset "kept" or why it drops the pair. `thumbnail` and
    `painted` (outlined, painted over) are data URLs; if "", `no_image` says why.
    """

    row: int
    shard: str = ""
    key: str = ""
    uid: str = ""
    caption: str | None = None
    status: str = ""
    reason: str | None = None
    width: int | None = None
    height: int | None = None
    words: Mapping[str, str | None] = field(default_factory=dict)
    texts: Sequence[str] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    why_null: Sequence[str] = ()
    subsets: Mapping[str, str] = field(default_factory=dict)
    thumbnail: str = ""
    no_image: str = ""
    thumbnail_size: tuple[int, int] = (0, 0)
    painted: tuple[str, str] = ("", "")


def read_pairs(run: Run, rows: Collection[int], numbers: Sequence[str], words: Sequence[str]) -> dict[int, Pair]:
    """Reads the values of some rows."""
    table = run.table()
    wanted = np.unique(np.asarray(list(rows), np.int64))
    pairs: dict[int, Pair] = {}
    for block, span in table.blocks_of(wanted):
        shard, here = run.shards[block], wanted[span] - table.starts[block]
        columns = table.read(block, [*numbers, *words])
        scores = {name: as_numbers(columns[name])[here].tolist() for name in numbers}
        texts = {name: columns[name].take(here).to_pylist() for name in words}
        entries = run.index(shard, _INDEX).take(here).to_pylist()
        found = [
            Pair(
                row=int(row),
                shard=shard,
                uid=format_uid(entry.pop("uid_hi"), entry.pop("uid_lo")),
                numbers={name: values[number] for name, values in scores.items()},
                words={name: values[number] for name, values in texts.items()},
                **entry,
            )
            for number, (row, entry) in enumerate(zip(wanted[span], entries, strict=True))
        ]
        _explain_nulls(run, shard, here, found)
        for pair in found:
            if run.hidden[pair.row]:
                pair.key, pair.caption, pair.words = "", None, dict.fromkeys(pair.words)
        pairs |= {pair.row: pair for pair in found}
    return pairs


def _explain_nulls(run: Run, shard: str, rows: Any, pairs: Sequence[Pair]) -> None:
    lacking = [any(np.isnan(value) for value in pair.numbers.values()) for pair in pairs]
    if not any(lacking):
        return
    for group in run.scores.values():
        if shard not in group.shards:
            continue
        reasons = parts.read_columns(group.folder / f"{shard}.parquet", ["reason"]).column("reason").take(rows)
        for pair, lacks, reason in zip(pairs, lacking, reasons.to_pylist(), strict=True):
            if lacks and reason and reason != pair.reason:
                pair.why_null = (*pair.why_null, f"{group.label}: {reason}")


def no_images(run: Run) -> str:
    """Returns why no image of a run can be read; "" if its pool is here and has images."""
    pool = run.readable_pool
    return NO_IMAGE["absent"] if pool is None else "" if pool.has_images else "the pool is metadata only"


def add_images(
    run: Run,
    pairs: Mapping[int, Pair],
    *,
    painted: Collection[int] = (),
    painter: Painter | None = None,
    side: int = SIDES[0],
) -> None:
    """Adds thumbnails from the run's pool, or the reason why an image cannot be read.

    `painter` paints over the text of the `painted` rows. `side`: longer side of the images, in pixels.
    """
    if reason := no_images(run):
        for pair in pairs.values():
            pair.no_image = reason
        return
    for sample in samples_of(run, order=sorted(pairs), fields={"pixels"}, errors="mark"):
        pair = pairs[sample.row]
        if sample.problem is not None or sample.pixels is None:
            pair.no_image = NO_IMAGE[sample.problem.kind if sample.problem else "cut"]
            continue
        pair.thumbnail, pair.thumbnail_size = thumbnail(sample.pixels, side)
        if painter is not None and pair.row in painted:
            try:
                outlined, masked = painter(sample.pixels)
                pair.painted = (thumbnail(outlined, side)[0], thumbnail(masked, side)[0])
            except Exception:  # a model may raise anything: the page does without these images
                painter = None
                log.warning("%s: the text could not be painted over", pair.shard, exc_info=True)


def thumbnail(pixels: Pixels, side: int) -> tuple[str, tuple[int, int]]:
    """Returns an image scaled down to `side` pixels as a data URL, and its size."""
    data, size = encode(pixels, side, _QUALITY)
    return f"data:image/{KIND};base64,{base64.b64encode(data).decode('ascii')}", size


def encode(pixels: Pixels, side: int, quality: int) -> tuple[bytes, tuple[int, int]]:
    """Encodes an image as `KIND`, scaled down to `side` pixels on its longer side; returns bytes and size.

    No metadata of the original file is in it.
    """
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, KIND.upper(), quality=quality, method=2)  # half the time of WebP's default, 5 % larger
    return out.getvalue(), image.size
