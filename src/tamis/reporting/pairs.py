"""The pairs that the page shows: what the run says of them, and a small picture of each."""

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
from tamis.pool import Pool
from tamis.store import Run, parts
from tamis.store.stream import samples_of
from tamis.uid import format_uid

log = logging.getLogger(__name__)

#: Longer side of a thumbnail, in pixels.
THUMBNAIL = 160

_QUALITY = 62

#: What the page says instead of a picture, by the kind of problem (`tamis.pool.source.PROBLEMS` and statuses).
NO_PICTURE = {
    "absent": "the pool's files are not here",
    "unread": "the shard's file cannot be read",
    "changed": "changed since it was scored",
    "cut": "the file could not be read",
    "image_missing": "no image",
    "image_too_large": "the image is too large",
    "image_broken": "not decodable",
    "image_refused": "not decodable",
}


@dataclass(kw_only=True)
class Pair:
    """One pair on the page.

    Attributes:
        words: fields and word columns by name; None where the run holds null.
        texts: those of them that hold free text, such as a generated caption.
        numbers: score columns by name; NaN where the run holds null.
        why_null: the scorers' sentences on what they did not judge.
        thumbnail: a data URL, or "".
        no_picture: why there is none.
        painted: data URLs of the picture with its text outlined, and of it with the text painted over; or "".
    """

    row: int
    shard: str
    key: str
    uid: str
    caption: str | None
    status: str
    reason: str | None
    width: int | None
    height: int | None
    words: Mapping[str, str | None] = field(default_factory=dict)
    texts: Sequence[str] = ()
    numbers: Mapping[str, float] = field(default_factory=dict)
    why_null: Sequence[str] = ()
    thumbnail: str = ""
    no_picture: str = ""
    thumbnail_size: tuple[int, int] = (0, 0)
    painted: tuple[str, str] = ("", "")


#: Gives an image with its text outlined, and the same with the text painted over.
Painter = Callable[[Pixels], tuple[Pixels, Pixels]]

_INDEX = ("uid_hi", "uid_lo", "key", "caption", "status", "reason", "width", "height")


def read_pairs(
    run: Run,
    rows: Sequence[int],
    numbers: Sequence[str],
    words: Sequence[str],
    pool: Pool | None,
    *,
    painted: Sequence[int] = (),
    painter: Painter | None = None,
) -> dict[int, Pair]:
    """Reads what the page shows of some rows.

    Args:
        run: the run.
        rows: row numbers of the run, in any order.
        numbers, words: columns to show.
        pool: where the pictures are; None where they cannot be had.
        painted: those of the rows that `painter` shall paint.
        painter: None where nothing is painted.
    """
    table = run.table()
    wanted = np.unique(np.asarray(list(rows), np.int64))
    edges = np.searchsorted(wanted, table.starts)
    found: dict[int, Pair] = {}
    for block, name in enumerate(run.shards):
        here = wanted[edges[block] : edges[block + 1]] - table.starts[block]
        if not here.size:
            continue
        index = run.index(name, _INDEX).take(here).to_pylist()
        columns = table.read(block, [*numbers, *words])
        taken = {column: columns[column][here] for column in numbers}
        said = {column: columns[column].take(here).to_pylist() for column in words}
        pairs = [
            Pair(
                row=int(table.starts[block] + row),
                shard=name,
                key=entry["key"],
                uid=format_uid(entry["uid_hi"], entry["uid_lo"]),
                caption=entry["caption"],
                status=entry["status"],
                reason=entry["reason"],
                width=entry["width"],
                height=entry["height"],
                numbers={column: float(taken[column][place]) for column in numbers},
                words={column: said[column][place] for column in words},
            )
            for place, (row, entry) in enumerate(zip(here, index, strict=True))
        ]
        _explain_nulls(run, name, here, pairs)
        found |= {pair.row: pair for pair in pairs}
    _add_pictures(run, found, pool, painted, painter)
    return found


def _explain_nulls(run: Run, shard: str, rows: Any, pairs: Sequence[Pair]) -> None:
    lacking = [any(np.isnan(value) for value in pair.numbers.values()) for pair in pairs]
    if not any(lacking):
        return
    for group in run.scores.values():
        if shard not in group.shards:
            continue
        said = parts.read_columns(group.folder / f"{shard}.parquet", ["reason"]).column("reason").take(rows)
        for pair, lacks, reason in zip(pairs, lacking, said.to_pylist(), strict=True):
            if lacks and reason and reason != pair.reason:
                pair.why_null = (*pair.why_null, f"{group.label}: {reason}")


def _add_pictures(
    run: Run, pairs: Mapping[int, Pair], pool: Pool | None, painted: Collection[int], painter: Painter | None
) -> None:
    """Fills the pictures of pairs, by row; what cannot be read or painted is left out and said so."""
    if pool is None or not pool.has_images:
        for pair in pairs.values():
            pair.no_picture = NO_PICTURE["absent"] if pool is None else "the pool is metadata only"
        return
    failed: set[str] = set()
    for sample in samples_of(run, pool, order=sorted(pairs), fields={"pixels"}, errors="mark"):
        pair = pairs[sample.row]
        if sample.problem is not None or sample.pixels is None:
            pair.no_picture = NO_PICTURE[sample.problem.kind if sample.problem else "cut"]
            continue
        pair.thumbnail, pair.thumbnail_size = thumbnail(sample.pixels)
        if painter is None or pair.row not in painted or pair.shard in failed:
            continue
        try:
            outlined, masked = painter(sample.pixels)
            pair.painted = (thumbnail(outlined)[0], thumbnail(masked)[0])
        except Exception:  # whatever a model may raise: the page is made without these pictures
            failed.add(pair.shard)
            log.warning("%s: pictures of painted-over text could not be made", pair.shard, exc_info=True)


def thumbnail(pixels: Pixels) -> tuple[str, tuple[int, int]]:
    """Returns a small copy of an image as a data URL, with its width and height.

    The image is encoded anew: nothing of its file itself, metadata included, reaches the page.
    """
    image = Image.fromarray(pixels)
    image.thumbnail((THUMBNAIL, THUMBNAIL), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    kind = "webp" if features.check("webp") else "jpeg"
    image.save(out, kind.upper(), quality=_QUALITY)
    return f"data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode('ascii')}", image.size
