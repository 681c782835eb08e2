"""Search by stored embeddings (nearest to words, to a pair, to an uploaded image), and a map of them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from tamis.core.arrays import Float32s, Floats, Mask, Rows
from tamis.core.errors import RecipeError, SampleError, unknown_message
from tamis.core.files.storage import files
from tamis.core.ids import scramble
from tamis.core.types import Device, Node
from tamis.models.reference import is_here, resolve
from tamis.pools.images import decode
from tamis.reports.distributions import whole_column
from tamis.reports.explore.cached_run import CachedRun
from tamis.reports.explore.layout import BOTH, chunks, principal_components, read_unit_rows
from tamis.reports.page_pairs import smallest
from tamis.signals.features.embeddings import ImageEmbedding, TextEmbedding
from tamis.signals.features.sources import Captions, DecodedImages
from tamis.signals.graph import Executor

#: Maximum number of rows that a search lists; that a map of principal components shows, and a stored one.
NEAREST, SAMPLE, MOST = 2_000, 100_000, 5_000_000

_PIECE = 1 << 16  # rows that are multiplied at once

#: Maximum bytes of an uploaded image, and number of uploaded images whose embeddings are kept.
LARGEST, _IMAGES = 16 << 20, 64


class Layout(NamedTuple):
    """Points of a map in random order, so that the first ones are a sample of all."""

    rows: Rows  # (n,)
    points: Float32s  # (n, 2), in [-1, 1]
    explained: tuple[float, ...]  # share of the variance along each axis; () for PaCMAP


class Near:
    """Search in a run's stored embeddings, block by block, without an index.

    `image`: name of the run's image embeddings; None if it stores none.
    """

    def __init__(self, run: CachedRun) -> None:
        self._run = run
        self._whole = [name for name, folder in run.embeddings.items() if set(run.shards) <= files(folder, ".npy")]
        self.image: str | None = next((name for name in self._whole if name.startswith("image_embedding-")), None)
        self.only: Rows | None = None  # maps show no other rows
        self._layouts: dict[str, Layout] = {}
        self._images: dict[str, Float32s] = {}
        self._executor: Executor | None = None
        self._guard, self._encoding = threading.Lock(), threading.Lock()

    def _name(self) -> str:
        if self.image is None:
            raise RecipeError(f"the run stores no embeddings of images. To store them:\n{self._run.embed_command()}")
        return self.image

    def to_text(self, text: str) -> Rows:
        """Returns the rows whose images are nearest to a text, by the model that embedded them; the nearest first."""
        name = self._name()
        return self._nearest(name, self._embed(name, TextEmbedding, Captions(), text))[0]

    def warm(self) -> None:
        """Loads the encoder of searches by words unless it would be downloaded; what fails, a search reports."""
        with suppress(Exception):
            name = self._name()
            if is_here(self._run.table().about(name)["settings"]["model"]):
                self._embed(name, TextEmbedding, Captions(), "warm")

    def add_image(self, data: bytes) -> str:
        """Embeds an image file as the pool's images were, and returns its key for `to_image`."""
        name = self._name()
        if len(data) > LARGEST:
            raise RecipeError(f"the image has {len(data):,} bytes, at most {LARGEST:,} are allowed: make it smaller")
        pool = self._run.facts["pool"]
        try:
            pixels = decode(data, max_pixels=pool["max_pixels"], transparency=pool["transparency"])
        except SampleError as error:
            raise RecipeError(f"the image cannot be used: {error.reason}") from error
        vector = self._embed(name, ImageEmbedding, DecodedImages(), pixels)
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

    def _embed(self, name: str, kind: type[TextEmbedding | ImageEmbedding], source: Node, value: Any) -> Float32s:
        """Embeds value text or image with the model that made the stored embeddings."""
        about = self._run.table().about(name)
        if "model" not in about["settings"]:
            raise RecipeError(f"the run's {name} were made elsewhere, by a model that is not known: search by a pair")
        node = kind(model=about["settings"]["model"])
        with self._encoding:
            if self._executor is None:
                known, now = about.get("models", {}).get(node.model), resolve(node.model).digest
                if known not in (None, now):
                    raise RecipeError(f"{node.model} did not make the run's {name}: its files have changed")
                self._executor = Executor(Device(precision=about.get("precision", "float32")))
            vector = self._executor.run([node], {source: [value]})[node][0]
        return np.asarray(vector, np.float32)

    def neighbours(self, row: int, most: int = NEAREST) -> tuple[Rows, Float32s]:
        """Returns the rows whose images are nearest to the image of a row, itself first, and their cosines."""
        name = self._name()
        vector = np.asarray(self._run.table().vectors(name, np.array([row]))[0], np.float32)
        if np.isnan(vector).any() or self._run.hidden[row]:
            return np.array([row], np.int64), np.ones(1, np.float32)
        return self._nearest(name, vector, most)

    def _nearest(self, name: str, vector: Float32s, most: int = NEAREST) -> tuple[Rows, Float32s]:
        """Returns the rows with the largest products with a vector, and these; ties by scrambled uid."""
        table = self._run.table()

        def multiply(rows: slice, columns: dict[str, Any], candidates: Mask) -> Float32s:
            pieces = np.split(columns[name], range(_PIECE, len(candidates), _PIECE))
            return np.concatenate([np.asarray(piece, np.float32) @ vector for piece in pieces])

        cosines = np.concatenate([np.empty(0, np.float32), *table.scan([name], multiply)])
        there = np.flatnonzero(np.isfinite(cosines) & ~self._run.hidden)
        order = smallest(there, -cosines[there], lambda tied: scramble(*table.uids(tied)), most)
        return order, cosines[order]

    def maps(self) -> dict[str, tuple[str, Sequence[str]]]:
        """Returns {name of a map: its method, and its columns}: first the maps that `tamis map` stored."""
        stored = {
            label: ("PaCMAP", [f"{label}.map_x", f"{label}.map_y"])
            for label, group in self._run.scores.items()
            if group.facts["name"] == "map" and self._run.is_complete(group)
        }
        whole = [each for each in self._run.vectors.items() if each[1] in self._whole]
        shortest = {folder: name for name, folder in sorted(whole, key=lambda each: -len(each[0]))}
        plain = {name: ("PCA", [name]) for name in sorted(shortest.values())}
        return {**stored, **plain, **({"both": ("PCA", BOTH)} if set(BOTH) <= set(plain) else {})}

    def layout(self, name: str) -> Layout:
        """Returns the points of a map: the stored ones, or the principal components of at most `SAMPLE` rows."""
        with self._guard:
            if name not in self._layouts:
                if name not in self.maps():
                    raise RecipeError(unknown_message("map", name, self.maps()))
                method, columns = self.maps()[name]
                self._layouts[name] = self._read_layout(columns) if method == "PaCMAP" else self._project(columns)
            return self._layouts[name]

    def _read_layout(self, columns: Sequence[str]) -> Layout:
        table = self._run.table()
        points = np.stack([whole_column(table, column) for column in columns], axis=1)
        rows = np.arange(len(self._run)) if self.only is None else self.only
        rows = rows[np.isfinite(points[rows, 0])]
        rows = rows[np.argsort(self._run.order[rows])][:MOST]
        return Layout(rows, points[rows], ())

    def _project(self, names: Sequence[str]) -> Layout:
        table = self._run.table()

        def read(rows: Rows) -> Float32s:
            return read_unit_rows(table, names, rows)

        rows = np.arange(len(self._run)) if self.only is None else self.only
        if rows.size > SAMPLE:
            rows = np.sort(np.argpartition(self._run.order, SAMPLE)[:SAMPLE])
        there = [np.isfinite(read(chunk)).all(axis=1) for chunk in chunks(rows)]
        rows = rows[np.concatenate(there)] if there else rows
        if not rows.size:
            raise RecipeError(f"no row has {' and '.join(names)}: there is nothing to show on a map")
        points, _, shares = principal_components(read, rows, 2)
        reach = np.abs(points).max(axis=0)
        places = np.argsort(self._run.order[rows])
        return Layout(
            rows[places], np.float32(1 / np.where(reach > 0, reach, 1)) * points[places], tuple(shares.tolist())
        )

    def inside(self, name: str, points: Sequence[tuple[float, float]]) -> Rows:
        """Returns the rows of a map that are inside a polygon, ascending."""
        found = self.layout(name)
        return np.sort(found.rows[inside_polygon(found.points, points)])


def inside_polygon(points: Floats, polygon: Sequence[tuple[float, float]]) -> Mask:
    """Returns which points are inside a polygon: a ray to the right crosses it an odd number of times."""
    found = np.zeros(len(points), bool)
    corners = np.asarray(polygon, np.float64).reshape(-1, 2)
    if not len(corners):
        return found
    low, high = corners.min(axis=0), corners.max(axis=0)
    near = np.flatnonzero(((points >= low) & (points <= high)).all(axis=1))
    near = near[np.argsort(points[near, 1])]  # so that an edge only looks at points between its ends
    x, y = points[near].astype(np.float64).T
    odd = np.zeros(near.size, bool)
    for (x1, y1), (x2, y2) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        between = slice(*np.searchsorted(y, sorted((y1, y2))))
        odd[between] ^= x[between] < (x2 - x1) * (y[between] - y1) / (y2 - y1) + x1
    found[near] = odd
    return found
