"""Search by stored embeddings (nearest to words, to a pair, to an uploaded image), and a map of them."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tamis.arrays import Float32s, Float64s, Mask, Rows
from tamis.data import Device, Node
from tamis.errors import RecipeError, SampleError
from tamis.features.embeddings import ImageEmbedding, TextEmbedding
from tamis.features.sources import Captions, DecodedImages
from tamis.graph import Executor
from tamis.ids import scramble
from tamis.models.reference import is_here, resolve
from tamis.pool.images import decode
from tamis.pool.source import PoolSpec
from tamis.reporting.pairs import smallest
from tamis.storage import files
from tamis.store.run import Run

log = logging.getLogger(__name__)

#: Maximum number of rows that a search lists, and that a map shows.
NEAREST, SAMPLE = 2_000, 200_000

#: Maximum bytes of an uploaded image, and number of uploaded images whose embeddings are kept.
LARGEST, _IMAGES = 16 << 20, 64

#: Rows whose embeddings are multiplied at once.
_CHUNK = 1 << 15


class Projection(NamedTuple):
    """A map of embeddings: their first two principal components. Of the `of` rows with one, it shows `rows` (n,)."""

    rows: Rows
    points: Float64s  # (n, 2)
    explained: tuple[float, float]  # share of the variance along each axis
    of: int


class Near:
    """Search in a run's stored embeddings, block by block, without an index.

    `image`: name of the run's image embeddings; None if it stores none.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        stored = [name for name in run.embeddings if name.startswith("image_embedding-")]
        whole = [name for name in stored if set(run.shards) <= files(run.embeddings[name], ".npy")]
        self.image: str | None = whole[0] if whole else None
        self._projections: dict[str, Projection] = {}
        self._images: dict[str, Float32s] = {}
        self._executor: Executor | None = None
        self._guard, self._encoding = threading.Lock(), threading.Lock()

    def _name(self) -> str:
        if self.image is None:
            raise RecipeError(
                "the run stores no embeddings of its images: score it with `--keep embeddings` and a signal that makes "
                "them, such as clip"
            )
        return self.image

    def to_text(self, text: str) -> Rows:
        """Returns the rows whose images are nearest to a text, by the model that embedded them; the nearest first."""
        name = self._name()
        return self._nearest(name, self._embedded(name, TextEmbedding, Captions(), text))[0]

    def warm(self) -> None:
        """Loads the encoder of searches by words, unless it would have to be downloaded."""
        try:
            name = self._name()
            if is_here(self._run.table().about(name)["settings"]["model"]):
                self._embedded(name, TextEmbedding, Captions(), "warm")
        except Exception as error:  # a model may raise anything; the search will report it
            log.info("the encoder of searches was not loaded: %s", error)

    def add_image(self, data: bytes) -> str:
        """Embeds an image file as the pool's images were, and returns its key for `to_image`."""
        name = self._name()
        if len(data) > LARGEST:
            raise RecipeError(f"the image has {len(data):,} bytes, at most {LARGEST:,} are allowed: make it smaller")
        pool = self._run.facts["pool"]
        limits = {key: pool.get(key, getattr(PoolSpec, key)) for key in ("max_pixels", "transparency")}
        try:
            pixels = decode(data, **limits)
        except SampleError as error:
            raise RecipeError(f"the image cannot be used: {error.reason}") from error
        vector = self._embedded(name, ImageEmbedding, DecodedImages(), pixels)
        key = hashlib.sha256(data).hexdigest()[:24]
        with self._guard:
            self._images[key] = vector
            if len(self._images) > _IMAGES:
                del self._images[next(iter(self._images))]
        return key

    def to_image(self, key: str) -> Rows:
        """Returns the rows whose images are nearest to an uploaded image; the nearest first."""
        vector = self._images.get(key)
        if vector is None:
            raise RecipeError("the image that was searched by is no longer here: choose it again")
        return self._nearest(self._name(), vector)[0]

    def _embedded(self, name: str, kind: type[TextEmbedding | ImageEmbedding], source: Node, one: Any) -> Float32s:
        """Embeds one text or image with the model that made the stored embeddings."""
        about = self._run.table().about(name)
        if "model" not in about["settings"]:
            raise RecipeError(
                f"the run's {name} were made elsewhere, by a model that is not known here: search by a pair instead"
            )
        node = kind(model=about["settings"]["model"])
        with self._encoding:
            if self._executor is None:
                known, now = about.get("models", {}).get(node.model), resolve(node.model).digest
                if known not in (None, now):
                    raise RecipeError(
                        f"{node.model} is no longer the model that made the run's {name}: its files have changed"
                    )
                self._executor = Executor(Device(precision=about.get("precision", "float32")))
            vector = self._executor.run([node], {source: [one]})[node][0]
        return np.asarray(vector, np.float32)

    def neighbours(self, row: int, most: int = NEAREST) -> tuple[Rows, Float32s]:
        """Returns the rows whose images are nearest to the image of a row, itself first, and their cosines."""
        name = self._name()
        vector = np.asarray(self._run.table().vectors(name, np.array([row]))[0], np.float32)
        if np.isnan(vector).any():
            return np.array([row], np.int64), np.ones(1, np.float32)
        return self._nearest(name, vector, most)

    def _nearest(self, name: str, vector: Float32s, most: int = NEAREST) -> tuple[Rows, Float32s]:
        """Returns the rows with the largest products with a vector, and these; ties by scrambled uid."""
        table = self._run.table()
        cosines = np.full(len(table), -np.inf, np.float32)

        def work(place: slice, columns: dict[str, Any]) -> None:
            rows = columns[name]
            for start in range(0, len(rows), _CHUNK):
                product = np.asarray(rows[start : start + _CHUNK], np.float32) @ vector
                here = slice(place.start + start, place.start + start + product.size)
                cosines[here] = np.nan_to_num(product, nan=-np.inf)

        list(table.map([name], work))
        there = np.flatnonzero(np.isfinite(cosines))
        order = smallest(there, -cosines[there], lambda tied: scramble(*table.uids(tied)), most)
        return order, cosines[order]

    def projection(self, name: str) -> Projection:
        """Returns a map of stored embeddings: their first two principal components, of at most `SAMPLE` rows."""
        with self._guard:
            if name not in self._projections:
                self._projections[name] = self._project(name)
            return self._projections[name]

    def _project(self, name: str) -> Projection:
        table = self._run.table()
        if table.kind(name) != "vector":
            raise RecipeError(f"the column {name!r} holds {table.kind(name)}s, a map shows embeddings")
        there = np.zeros(len(table), bool)

        def look(place: slice, columns: dict[str, Any]) -> None:
            there[place] = ~np.isnan(columns[name][:, 0])

        list(table.map([name], look))
        rows = np.flatnonzero(there)
        if rows.size < 3:
            raise RecipeError(f"{rows.size} rows have {name!r}: a map needs three")
        if rows.size > SAMPLE:
            low = scramble(*table.uids(rows))
            rows = np.sort(rows[np.argpartition(low, SAMPLE)[:SAMPLE]])
        points, shares = components(lambda some: np.asarray(table.vectors(name, some), np.float32), rows)
        return Projection(rows, points, shares, int(there.sum()))

    def inside(self, name: str, points: Sequence[tuple[float, float]]) -> Rows:
        """Returns the rows of a map that are inside a polygon."""
        found = self.projection(name)
        return found.rows[inside_polygon(found.points, points)]


def components(read: Callable[[Rows], Float32s], rows: Rows) -> tuple[Float64s, tuple[float, float]]:
    """Returns the first two principal components of rows' vectors, scaled to [-1, 1], and their shares of the variance.

    `read` returns the vectors of ascending rows; it is called twice per chunk. Memory: d x d numbers. Signs make the
    largest weight of each component positive. Source: Pearson 1901.
    """
    total: Any = 0
    square: Any = 0
    chunks = [rows[start : start + _CHUNK] for start in range(0, rows.size, _CHUNK)]
    for chunk in chunks:
        vectors = read(chunk)
        total = vectors.sum(axis=0, dtype=np.float64) + total
        square = (vectors.T @ vectors).astype(np.float64) + square
    mean = total / rows.size
    values, axes = np.linalg.eigh(square / rows.size - np.outer(mean, mean))
    axes = axes[:, [-1, -2]]
    axes = axes * np.sign(axes[np.abs(axes).argmax(axis=0), [0, 1]])
    points = np.concatenate([(read(chunk) - mean) @ axes for chunk in chunks])
    reach = np.abs(points).max(axis=0)
    whole = max(float(values.clip(0).sum()), 1e-12)
    return points / np.where(reach > 0, reach, 1), (float(values[-1]) / whole, float(values[-2]) / whole)


def inside_polygon(points: Float64s, polygon: Sequence[tuple[float, float]]) -> Mask:
    """Returns which points are inside a polygon: a ray to the right crosses it an odd number of times."""
    found = np.zeros(len(points), bool)
    corners = np.asarray(polygon, np.float64).reshape(-1, 2)
    x, y = points[:, 0], points[:, 1]
    for (x1, y1), (x2, y2) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if y1 != y2:
            crosses = (y1 > y) != (y2 > y)
            found ^= crosses & (x < (x2 - x1) * (y - y1) / (y2 - y1) + x1)
    return found
