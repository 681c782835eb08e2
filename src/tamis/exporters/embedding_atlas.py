"""A subset as the Parquet file that Apple's Embedding Atlas opens: captions, thumbnails, scores, a map."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tamis.arrays import Float64s, Pixels, Rows
from tamis.errors import RunError, at_least_one
from tamis.exporters.exporter import Exporter, is_parquet_of, parquet_schema
from tamis.pool import Pool
from tamis.store import Run
from tamis.store.atomic import writing
from tamis.store.stream import samples_of
from tamis.store.subset import Subset
from tamis.uid import format_uids

log = logging.getLogger(__name__)

_TOGETHER = 1024  # rows whose pictures are in memory at once

_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@dataclass(frozen=True, kw_only=True)
class EmbeddingAtlasExport(Exporter):
    """Writes what Embedding Atlas opens: uid, shard, key, caption, thumbnail, scores, and a map of stored embeddings.

    Where the run has stored embeddings, `projection_x` and `projection_y` are the first two principal components, so
    that the map opens at once: `embedding-atlas FILE --text caption --image image --x projection_x --y projection_y`.
    With `vectors` it can lay out its own map: `embedding-atlas FILE --text caption --vector embedding`. A pair that is
    kept k times has k rows; one without an embedding or a picture has null there, and a map of the tool's own wants
    none such: `--query "SELECT * FROM data WHERE embedding IS NOT NULL"` leaves them out.

    Attributes:
        embedding: which stored embeddings; those of the images where the run has them, unless another name is given.
        vectors: also writes the embeddings, as lists of float32.
        thumbnails: the longer side of the pictures in pixels; None writes none.

    Source: the options are those of embedding-atlas 0.26 (apple.github.io/embedding-atlas/tool.html), which take any
        names of columns; images are Hugging Face's struct of bytes and path.
    """

    name: ClassVar[str] = "embedding_atlas"
    needs_pool: ClassVar[bool] = True
    ending: ClassVar[str] = "parquet"
    embedding: str = "image_embedding"
    vectors: bool = False
    thumbnails: int | None = 128

    def __post_init__(self) -> None:
        if self.thumbnails is not None:
            at_least_one(thumbnails=self.thumbnails)

    def write(self, subset: Subset, out: Path, pool: Pool) -> int:
        """Writes the file, a thousand rows at a time, and returns how many rows it holds.

        Raises:
            RunError: the run has no embeddings of the name that was given.
        """
        run, table = subset.run, subset.run.table()
        if self.embedding not in run.vectors and (self.embedding != "image_embedding" or self.vectors):
            run.locate(self.embedding)  # raises, with the names that there are
        mapped = self.embedding in run.vectors
        centre, axes = _axes(subset, self.embedding) if mapped else (None, None)
        pictures = self._pictures(subset, pool) if self.thumbnails is not None and pool.has_images else None
        names = run.whole_score_names()
        schema = parquet_schema(
            [("uid", pa.string()), ("shard", pa.string()), ("key", pa.string()), ("caption", pa.string())]
            + ([("image", _IMAGE)] if pictures is not None else [])
            + [(name, pa.float32() if table.kind(name) == "number" else pa.string()) for name in names]
            + ([("projection_x", pa.float64()), ("projection_y", pa.float64())] if mapped else [])
            + ([("embedding", pa.list_(pa.float32()))] if self.vectors else []),
            self.name,
        )
        blocks = {shard: block for block, shard in enumerate(run.shards)}
        with writing(out) as temporary, pq.ParquetWriter(temporary, schema, compression="ZSTD") as writer:
            for shard, rows in subset.rows_by_shard():
                index = run.index(shard, ["uid_hi", "uid_lo", "key", "caption"])
                values = table.read(blocks[shard], names)
                vectors = run.embedding(run.vectors[self.embedding], shard) if mapped else None
                for first in range(0, rows.size, _TOGETHER):
                    some = rows[first : first + _TOGETHER]
                    data = _of_index(index, shard, some) | _of_scores(values, some)
                    if pictures is not None:
                        data["image"] = [next(pictures) for _ in some]
                    if vectors is not None and centre is not None and axes is not None:
                        here = np.asarray(vectors[some], np.float64)
                        places = (here - centre) @ axes
                        for axis, name in enumerate(("projection_x", "projection_y")):
                            data[name] = pa.array(places[:, axis], mask=np.isnan(places[:, axis]))
                        if self.vectors:
                            data["embedding"] = [
                                None if np.isnan(row[0]) else row.astype(np.float32).tolist() for row in here
                            ]
                    writer.write_table(pa.table(data, schema=schema))
        return len(subset)

    def wrote(self, out: Path, run: Run | None) -> bool:
        return is_parquet_of(out, self.name)

    def _pictures(self, subset: Subset, pool: Pool) -> Iterator[dict[str, Any] | None]:
        """Yields the thumbnail of each kept row, in order; None where there is no picture."""
        assert self.thumbnails is not None
        for sample in samples_of(subset, pool, fields={"key", "pixels"}, errors="mark"):
            if sample.problem is not None and sample.problem.kind in ("absent", "changed", "unread"):
                raise RunError(f"{sample.problem} (met at the sample {sample.key!r} of the shard {sample.shard!r})")
            if sample.pixels is None:
                yield None
            else:
                yield {"bytes": _thumbnail(sample.pixels, self.thumbnails), "path": None}


def _of_index(index: pa.Table, shard: str, rows: Rows) -> dict[str, Any]:
    here = index.take(pa.array(rows))
    uids = format_uids(here["uid_hi"].to_numpy(), here["uid_lo"].to_numpy())
    return {
        "uid": pa.array(uids).cast(pa.string()),
        "shard": [shard] * rows.size,
        "key": here["key"],
        "caption": here["caption"].cast(pa.string()),
    }


def _of_scores(values: dict[str, Any], rows: Rows) -> dict[str, Any]:
    return {
        name: pa.array(value[rows], mask=np.isnan(value[rows]))
        if isinstance(value, np.ndarray)
        else value.take(pa.array(rows)).cast(pa.string())
        for name, value in values.items()
    }


def _thumbnail(pixels: Pixels, size: int) -> bytes:
    from PIL import Image

    image = Image.fromarray(pixels)
    image.thumbnail((size, size))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=80)
    return out.getvalue()


def _axes(subset: Subset, embedding: str) -> tuple[Float64s, Float64s]:
    """Returns the centre (d,) of the kept rows' embeddings and their first two principal axes (d, 2).

    The sign of an axis is the one that makes its largest number positive, so that the same rows have the same map.
    """
    run = subset.run
    count, total, products = 0, None, None
    for shard, rows in subset.rows_by_shard():
        for first in range(0, rows.size, _TOGETHER):
            vectors = np.asarray(
                run.embedding(run.vectors[embedding], shard)[rows[first : first + _TOGETHER]], np.float64
            )
            vectors = vectors[~np.isnan(vectors[:, 0])]
            count += len(vectors)
            total = vectors.sum(0) + (0 if total is None else total)
            products = vectors.T @ vectors + (0 if products is None else products)
    if total is None or products is None or not count:
        width = run.embedding(run.vectors[embedding], run.shards[0]).shape[1] if run.shards else 1
        return np.zeros(width), np.zeros((width, 2))
    centre = total / count
    _, found = np.linalg.eigh(products / count - np.outer(centre, centre))
    axes = found[:, ::-1][:, :2]
    return centre, axes * np.sign(axes[np.abs(axes).argmax(0), range(axes.shape[1])])
