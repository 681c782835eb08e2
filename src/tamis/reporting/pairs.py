"""The pairs that the page shows: which, what the run knows of them, and a small copy of each image.

The uids decide which, never row order: the same pool gives the same pairs.
"""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, features

from tamis.arrays import U64, Float64s, Mask, Pixels, Rows
from tamis.ids import format_uid, scramble
from tamis.pool import Pool
from tamis.store import Run, parts
from tamis.store.reasons import Cut, blocks
from tamis.store.stream import samples_of
from tamis.store.table import Table

K = TypeVar("K")

#: A row and its value of a score.
Scored = tuple[int, float]

#: Group of duplicates: its `size` and some of its `rows`; representative first.
Group = dict[str, Any]

#: Groups of repeated images that are shown of a subset, and pairs of each.
_GROUPS, _MEMBERS = 8, 4


def scrambled(table: Table, seed: int = 0) -> U64:
    """Returns the scrambled uid of every row: (rows,), an order that does not depend on that of the rows.

    Use another seed for samples: selectors use seed 0, so the first rows they keep would be biased.
    """
    out = np.empty(len(table), np.uint64)
    for block, place in enumerate(table.row_ranges()):
        out[place] = scramble(*table.read_uids(block), seed)
    return out


def first_by(order: NDArray[Any], n: int, among: Mask) -> Rows:
    """Returns the n rows of lowest order among some, in that order; fewer where there are fewer."""
    best = np.empty(0, np.int64)
    for place in blocks(among.size):
        rows = np.flatnonzero(among[place]) + place.start
        if rows.size > n:
            rows = rows[np.argpartition(order[rows], n)[:n]]
        best = np.concatenate([best, rows])
        best = best[np.argsort(order[best], kind="stable")[:n]]
    return best


def first_of_each(
    table: Table, columns: Sequence[str], masks: Callable[[Mapping[str, Any]], Mapping[K, Mask]], order: U64, n: int
) -> dict[K, tuple[int, list[int]]]:
    """Returns of each kind of rows how many there are, and the n of lowest order, in one pass.

    `masks` gives, of a block's `columns`, the rows of each kind.
    """

    def look(place: slice, values: dict[str, Any]) -> list[tuple[K, int, Rows]]:
        kinds = masks(values).items()
        return [(kind, int(mask.sum()), first_by(order[place], n, mask) + place.start) for kind, mask in kinds]

    found: dict[K, tuple[int, list[int]]] = {}
    for block in table.map(columns, look):
        for kind, rows, first in block:
            count, best = found.get(kind, (0, []))
            found[kind] = count + rows, sorted([*best, *first.tolist()], key=lambda row: int(order[row]))[:n]
    return found


def around(
    table: Table, values: Float64s, cut: Cut, keep: Mask, fell: Mask, n: int
) -> tuple[list[Scored], list[Scored]]:
    """Returns the n pairs closest to a cut, those just kept and those just dropped (`fell`), the nearest first.

    Of equal scores the lower scrambled uid comes first.
    """
    distance = cut.distance(values)
    inside = _nearest(table, distance, keep & (distance >= 0), n)
    outside = _nearest(table, -distance, fell & (distance <= 0), n)
    return [(row, float(values[row])) for row in inside], [(row, float(values[row])) for row in outside]


def _nearest(table: Table, distance: Float64s, among: Mask, n: int) -> list[int]:
    best = first_by(distance, n, among)
    if not best.size:
        return []
    rows = np.flatnonzero(among & (distance <= distance[best[-1]]))  # all that tie with the last one
    ties = scramble(*table.uids(rows))
    return [int(row) for row in rows[np.lexsort((ties, distance[rows]))][:n]]


def shown_groups(groups: Iterable[Mapping[str, Any]], table: Table) -> list[Group]:
    """Returns the first groups of repeated images that the run still has in the same rows."""
    found = []
    for group in groups:
        rows = np.array(group["rows"][:_MEMBERS], np.int64)
        if rows.size and rows.max() < len(table):
            uids = [format_uid(*halves) for halves in zip(*table.uids(rows), strict=True)]
            if uids == group["uids"][:_MEMBERS]:
                found.append({"size": int(group["size"]), "rows": rows.tolist()})
    return found[:_GROUPS]


log = logging.getLogger(__name__)

#: Longer side of a thumbnail, in pixels.
THUMBNAIL = 160

_QUALITY = 62

#: The format in which pages get images.
KIND = "webp" if features.check("webp") else "jpeg"

#: What the page says instead of an image, by the kind of problem (`tamis.pool.source.Problem`).
NO_IMAGE = {
    "absent": "the pool's files are not here",
    "unread": "the shard's file cannot be read",
    "changed": "changed since it was scored",
    "cut": "the file could not be read",
    "image_missing": "no image",
    "image_too_large": "the image is too large",
    "image_broken": "not decodable",
    "image_refused": "not decodable",
}

#: Gives an image with its text outlined, and the same with the text painted over.
Painter = Callable[[Pixels], tuple[Pixels, Pixels]]

_INDEX = ("uid_hi", "uid_lo", "key", "caption", "status", "reason", "width", "height")


@dataclass(kw_only=True)
class Pair:
    """One pair on the page.

    `words` and `numbers` are columns by name (None or NaN if null), `texts` those that hold free text, `why_null` a
    sentence for each signal without a value. `thumbnail` and `painted` (outlined, painted over) are data URLs or "",
    then `no_image` says why.
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
    thumbnail: str = ""
    no_image: str = ""
    thumbnail_size: tuple[int, int] = (0, 0)
    painted: tuple[str, str] = ("", "")


def read_pairs(
    run: Run,
    rows: Collection[int],
    numbers: Sequence[str],
    words: Sequence[str],
    pool: Pool | None,
    *,
    painted: Collection[int] = (),
    painter: Painter | None = None,
) -> dict[int, Pair]:
    """Reads what the page shows of some rows, and their images if there is a pool; `painter` paints those of some."""
    table = run.table()
    wanted = np.unique(np.asarray(list(rows), np.int64))
    pairs: dict[int, Pair] = {}
    for block, place in table.blocks_of(wanted):
        shard, here = run.shards[block], wanted[place] - table.starts[block]
        columns = table.read(block, [*numbers, *words])
        scores = {name: columns[name][here].tolist() for name in numbers}
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
            for number, (row, entry) in enumerate(zip(wanted[place], entries, strict=True))
        ]
        _explain_nulls(run, shard, here, found)
        pairs |= {pair.row: pair for pair in found}
    _add_images(run, pairs, pool, painted, painter)
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


def _add_images(
    run: Run, pairs: Mapping[int, Pair], pool: Pool | None, painted: Collection[int], painter: Painter | None
) -> None:
    """Adds the thumbnails; a pair whose image cannot be read gets the reason instead."""
    if pool is None or not pool.has_images:
        for pair in pairs.values():
            pair.no_image = NO_IMAGE["absent"] if pool is None else "the pool is metadata only"
        return
    for sample in samples_of(run, pool, order=sorted(pairs), fields={"pixels"}, errors="mark"):
        pair = pairs[sample.row]
        if sample.problem is not None or sample.pixels is None:
            pair.no_image = NO_IMAGE[sample.problem.kind if sample.problem else "cut"]
            continue
        pair.thumbnail, pair.thumbnail_size = thumbnail(sample.pixels)
        if painter is not None and pair.row in painted:
            try:
                outlined, masked = painter(sample.pixels)
                pair.painted = (thumbnail(outlined)[0], thumbnail(masked)[0])
            except Exception:  # whatever a model may raise: the page is made without these images
                painter = None
                log.warning("%s: the text could not be painted over", pair.shard, exc_info=True)


def thumbnail(pixels: Pixels) -> tuple[str, tuple[int, int]]:
    """Returns a small copy of an image as a data URL, and its size."""
    data, size = encoded(pixels, THUMBNAIL, _QUALITY)
    return f"data:image/{KIND};base64,{base64.b64encode(data).decode('ascii')}", size


def encoded(pixels: Pixels, side: int, quality: int) -> tuple[bytes, tuple[int, int]]:
    """Returns an image as a file of `KIND`, at most `side` pixels on its longer side, and its size.

    Nothing of the original file's metadata is in it.
    """
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, KIND.upper(), quality=quality)
    return out.getvalue(), image.size
