"""The pairs that the page shows: what the run knows of them, and a small copy of each image."""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image, features

from tamis.arrays import Pixels
from tamis.ids import format_uid
from tamis.pool import Pool
from tamis.store import Run, parts
from tamis.store.stream import samples_of

log = logging.getLogger(__name__)

#: Longer side of a thumbnail, in pixels.
THUMBNAIL = 160

_QUALITY = 62

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
    """Returns a small copy of an image as a data URL, and its size. Nothing of the file's metadata is in it."""
    image = Image.fromarray(pixels)
    image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    kind = "webp" if features.check("webp") else "jpeg"
    image.save(out, kind.upper(), quality=_QUALITY)
    return f"data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode('ascii')}", image.size
