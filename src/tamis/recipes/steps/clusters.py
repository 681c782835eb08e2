"""Stored embeddings, and their clusters by spherical k-means.

Steps use them (`semdedup`, `clipcov`, and `image_based` here), and `cluster` writes them as columns.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Float32s, Float64s, Floats, Mask, Rows, load_array
from tamis.core.errors import RecipeError, RunError, at_least_one, check_effect, first_line, needs_extra
from tamis.core.files.scratch import filled, stored
from tamis.core.ids import scramble
from tamis.core.math.similarity import unit_rows
from tamis.recipes.steps.best import Best, Ranked, by_row, by_uid
from tamis.recipes.steps.outcome import Blockwise, IfMissing, ReadsPool, Rule, check_missing, rule_by
from tamis.recipes.steps.steps import rows_of
from tamis.runs import Run
from tamis.runs.reasons import Repeats, blocks
from tamis.runs.table import Table

log = logging.getLogger(__name__)

#: Rows per centroid that k-means is trained on, as faiss would sample them; and the minimum in all, so k=1 uses
#: enough rows.
_PER_CENTROID, _AT_LEAST = 256, 1 << 16
_FEWEST, _AT_MOST = 39, 1 << 20


#: Rows per matrix product over a whole column: a block in float32 stays in the cache.
BLOCK = 4096

#: Rows of embeddings that are read at once where any rows may be asked for.
GATHER = 1 << 18


def present(vectors: Floats) -> Mask:
    """Returns which rows of (n, d) are embeddings: (n,) bool.

    A missing one is NaN throughout. One with NaN or infinity somewhere, or only zeros, has no direction and would make
    its whole class or cluster NaN, so it counts as missing too.
    """
    there = np.empty(len(vectors), bool)
    for start in range(0, len(vectors), BLOCK):
        block = vectors[start : start + BLOCK]
        if block.dtype == np.float16:  # the bits without the sign are in the order of the values; infinity is 0x7C00
            largest = (block.view(np.int16) & 0x7FFF).max(1, initial=0)
            there[start : start + BLOCK] = (largest > 0) & (largest < 0x7C00)
        else:
            block = block.astype(np.float32, copy=False)
            squares = np.einsum("nd,nd->n", block, block)
            there[start : start + BLOCK] = np.isfinite(squares) & (squares > 0)
    return there


def has_embedding(table: Table, name: str) -> Any:
    """Returns which candidates have an embedding: (rows,) bool, of many rows in a file (`stored`)."""

    def work(span: slice, columns: dict[str, Any], candidates: Mask) -> tuple[slice, Mask]:
        return span, candidates & present(columns[name])

    return filled(len(table), bool, table.scan([name], work))


def order_by_uid(table: Table, rows: Rows, *, seed: int = 0) -> Rows:
    """Returns ascending row numbers in an order that depends only on their uids and the seed."""
    high, low = table.uids(rows)
    return rows[np.lexsort((low, high, scramble(high, low, seed)))]


def first_by_uid(table: Table, n: int, *, seed: int = 0) -> Rows:
    """Returns the first n candidates, or all, in the order of `order_by_uid`: a sample without a bias."""
    keys, count = by_uid(table, seed), rows_of(table, "survivors")

    def ranked(span: slice, columns: dict[str, Any], candidates: Mask) -> Ranked:
        return keys(span, np.arange(candidates.size)), None, candidates

    best = Best(table, [], ranked, lambda rows: np.minimum(rows, n), count, (by_row,))
    kept = (best.kept(span, *ranked(span, {}, table.candidates_in(span))) for span in table.row_ranges())
    parts = [span.start + np.flatnonzero(some) for span, some in zip(table.row_ranges(), kept, strict=True)]
    return order_by_uid(table, np.concatenate([np.zeros(0, np.int64), *parts]), seed=seed)


def warn_of_single_rows(sizes: NDArray[np.integer[Any]], what: str, advice: str) -> None:
    """Warns if at least half of the groups that have rows, of these sizes, have only one."""
    if (some := sizes[sizes > 0]).size > 1 and np.median(some) <= 1:
        log.warning("%s: half of the %d that have pairs hold a single one; %s", what, some.size, advice)


@dataclass(frozen=True)
class Clusters:
    """The cluster of each row.

    Attributes:
        centroids: (k, d) float32 unit rows.
        label: (rows,) int32, the cluster of each row of the table, -1 if it is not a candidate or has no embedding.
        cosine: (rows,) float32 of the row and its centroid, NaN for rows without a cluster. Both are arrays, or
            `stored` in files.
    """

    centroids: Float32s
    label: Any
    cosine: Any


#: What a step decides from clusters: which rows of a slice stay, a threshold, facts, and copies if there are any.
Chosen = tuple[Callable[[slice], Mask], float | None, dict[str, Any], Repeats | None]


class ClusterStep(ReadsPool, Blockwise):
    """A step that clusters rows by one column of embeddings."""

    vectors = ("embedding",)
    reason: ClassVar[str]  # why rows are dropped
    embedding: str
    clusters: int | None
    seed: int
    missing: str

    def __post_init__(self) -> None:
        at_least_one(clusters=1 if self.clusters is None else self.clusters)
        super().__post_init__()

    def fit(self, table: Table) -> Rule:
        self.check_columns(table)
        there, what = self.usable(table), " and ".join(self._values((*self.scores, *self.vectors)))
        rows, candidates = (rows_of(some, "survivors") for some in (table.with_candidates(there), table))
        check_missing(self, candidates - rows, candidates, what)  # before the work, not after it
        chosen: Chosen = (there.__getitem__, None, {}, None)
        if rows:
            count = min(self.clusters or usual_count(rows), rows)
            clusters = assign(table, self.embedding, there, self.fit_centroids(table, there, count))
            chosen = self.choose(table, clusters)
        kept, cut, facts, repeats = chosen
        lacks = lambda span: ~there[span]  # noqa: E731
        return rule_by(self, kept, lacks, self.reason, cut, what=what, facts=facts, repeats=repeats)

    def usable(self, table: Table) -> Any:
        """Returns which candidates have what the step needs: (rows,) bool, array or `stored`."""
        return has_embedding(table, self.embedding)

    def choose(self, table: Table, clusters: Clusters) -> Chosen:
        """Returns which clustered rows stay, by slices of all rows, the threshold, facts, and copies if known."""
        raise NotImplementedError

    def fit_centroids(self, table: Table, there: Any, count: int) -> Float32s:
        return fit(table, self.embedding, there, count, seed=self.seed)


def usual_count(rows: int) -> int:
    """Returns a number of clusters: one per thousand rows, of more than a million rows their square root."""
    return max(min(rows // 1000, math.isqrt(rows)), 1)


def trained_on(count: int) -> int:
    """Returns the most rows that k-means with so many clusters is trained on."""
    return max(min(count * _PER_CENTROID, _AT_MOST), count * _FEWEST, _AT_LEAST)


def fit(table: Table, name: str, there: Any, count: int, *, seed: int = 0, iterations: int = 20) -> Float32s:
    """Returns the centroids of spherical k-means over the rows that are there: (count, d) float32 unit rows.

    It is trained on 256 rows per centroid, at least 65,536, and of more than a million at least 39 per centroid, as
    faiss asks for; drawn by uid: neither row order nor blocks matter.
    """
    table = table.with_candidates(there)
    if not 1 <= count <= (rows := rows_of(table, "survivors")):
        raise RecipeError(
            f"{count:,} clusters of {rows:,} rows that have {name!r}: ask for fewer clusters than there are rows"
        )
    most = trained_on(count)
    vectors = unit_rows(table.vectors(name, first_by_uid(table, most, seed=seed)))
    if count == 1:
        return unit_rows(vectors.mean(0, dtype=np.float64, keepdims=True))
    try:
        import faiss
    except ImportError as error:
        raise needs_extra("faiss-cpu", "cover") from error
    kmeans = faiss.Kmeans(
        vectors.shape[1],
        count,
        niter=iterations,
        spherical=True,
        seed=seed % (1 << 31),  # faiss takes 31 bits, and reads the clock if it gets a negative number
        min_points_per_centroid=1,
        max_points_per_centroid=most // count + 1,  # all of the sample
    )
    kmeans.train(vectors)
    return unit_rows(np.asarray(kmeans.centroids, np.float32).reshape(count, -1))


def assign(table: Table, name: str, there: Any, centroids: Float32s) -> Clusters:
    """Returns for every row that is there the centroid of largest cosine; ties go to the lower number."""

    def work(span: slice, columns: dict[str, Any], there: Mask) -> tuple[slice, NDArray[np.int32], Float32s]:
        vectors = columns[name]
        check_widths("cluster", {"the centroids": centroids.shape[1], name: vectors.shape[1]})
        label, cosine = np.full(there.size, -1, np.int32), np.full(there.size, np.nan, np.float32)
        for start in range(0, len(vectors), BLOCK):
            rows = start + np.flatnonzero(there[start : start + BLOCK])
            if rows.size:
                some = vectors[rows].astype(np.float32)
                products = some @ centroids.T  # (rows, k)
                label[rows] = best = products.argmax(1)
                length = np.sqrt(np.einsum("nd,nd->n", some, some))  # float16 rows are not quite of length 1
                # Not from `products`, whose last bit depends on the number of rows in the block.
                cosine[rows] = np.einsum("nd,nd->n", some, centroids[best]) / length
        return span, label, cosine

    found = Clusters(centroids, stored(len(table), np.int32), stored(len(table), np.float32))
    for span, label, cosine in table.with_candidates(there).scan([name], work):
        found.label[span], found.cosine[span] = label, cosine
    return found


@dataclass(frozen=True, kw_only=True)
class ImageBased(ClusterStep):
    """Keeps rows in clusters of the pool that hold at least one reference image.

    Attributes:
        reference: embeddings of the reference images by the same model: a run folder that stores them (score a folder
            of images with --keep embeddings), or a .npy file (m, d).
        embedding: a column of stored embeddings (DataComp: l14_img).
        clusters: how many for the pool, at most one per row; None: `usual_count`, one per thousand rows
            or fewer.
            DataComp takes 100,000.
        centroids: instead, a .npy file (k, d) of centroids, such as those that DataComp published for its pools. Rows
            and references go to the centroid of largest inner product, as there.
        seed: another seed gives other clusters.
        missing: what to do with rows without the embedding.

    Cost: k-means, then n k d multiplications for the pool and m k d for the references. Memory: the rows that k-means
        is trained on (256 per cluster); pool and references are read in blocks.

    Source: Gadre et al. 2023, DataComp (arXiv 2304.14108), baseline "image-based". It trains clusters by distance and
        assigns by inner product; here both go by cosine.
    """

    name: ClassVar[str] = "image_based"
    reason: ClassVar[str] = "no reference image in its cluster"
    reference: str
    embedding: str = "image_embedding"
    clusters: int | None = None
    centroids: str | None = None
    seed: int = 0
    missing: IfMissing = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.centroids is not None:
            check_effect(self, "clusters", "seed", because="centroids are given")

    def fit_centroids(self, table: Table, there: Any, count: int) -> Float32s:
        if self.centroids is not None:
            return self._read_centroids(self.centroids)
        return super().fit_centroids(table, there, count)

    def _read_centroids(self, file: str) -> Float32s:
        path = Path(file).expanduser()
        try:
            found = load_array(path, mapped=True) if path.is_file() else None
        except (OSError, ValueError) as error:
            saved = f"np.save(NEW, torch.load({path.name!r}, weights_only=False)) makes one of a pickle you trust"
            why = saved if path.suffix == ".pt" else first_line(error)  # .pt: as DataComp publishes them
            raise RecipeError(f"image_based: centroids: {file} is no .npy file ({why})") from error
        if found is None or found.ndim != 2 or found.dtype.kind != "f" or not np.isfinite(found).all():
            held = "is no file" if found is None else f"holds an array of {found.shape} {found.dtype}"
            raise RecipeError(f"image_based: centroids: {file} {held}, expected a .npy file of finite floats (k, d)")
        return found.astype(np.float32)

    @property
    def described(self) -> str:
        return f"clusters of {self.embedding} that hold an image of {Path(self.reference).name}"

    def check_files(self) -> None:
        """Raises RecipeError if the references or the centroids are missing or hold no embedding."""
        next(reference_vectors(self.reference, self.embedding))
        _ = self._read_centroids(self.centroids) if self.centroids is not None else None

    def fit(self, table: Table) -> Rule:
        next(self._references(table))  # what is wrong with them is reported before the work, not after it
        return super().fit(table)

    def _references(self, table: Table) -> Iterator[Float32s]:
        return reference_vectors(self.reference, self.embedding, table.about(self.embedding).get("models"))

    def choose(self, table: Table, clusters: Clusters) -> Chosen:
        holds, label = np.zeros(len(clusters.centroids) + 1, bool), clusters.label  # the last: rows without a cluster
        sizes = np.sum([np.bincount(label[rows] + 1, minlength=holds.size) for rows in blocks(len(table))], axis=0)
        warn_of_single_rows(
            sizes[1:], "image_based, clusters", "lower `clusters`, or what stays is little more than chance"
        )
        for block in self._references(table):
            check_widths(self.name, {"the references": block.shape[1], self.embedding: clusters.centroids.shape[1]})
            holds[(block @ clusters.centroids.T).argmax(1)] = True  # ties go to the lower number
        if holds[:-1].all():
            log.warning(
                "image_based keeps every image: all of its clusters (%d) hold a reference image; raise `clusters`",
                holds.size - 1,
            )
        facts = {"clusters": holds.size - 1, "clusters_with_reference": int(np.count_nonzero(holds))}
        return lambda rows: holds[label[rows]], None, facts, None


def check_widths(step: str, widths: Mapping[str, int]) -> None:
    """Raises RecipeError if embeddings, named as messages name them, have different numbers of dimensions."""
    if len({*widths.values()}) > 1:
        found = " and ".join(f"{name} ({width})" for name, width in widths.items())
        raise RecipeError(f"{step}: the number of dimensions differs: {found}. Embed them with one model")


def second_moments(vectors: Floats) -> Float64s:
    """Returns the sum of x x^T over rows x: (d, d)."""
    total = np.zeros((vectors.shape[1],) * 2)
    for start in range(0, len(vectors), BLOCK):
        block = vectors[start : start + BLOCK].astype(np.float64)
        total += block.T @ block
    return total


def reference_vectors(
    reference: str, embedding: str, models: Mapping[str, str] | None = None, *, of: str = "image_based"
) -> Iterator[Float32s]:
    """Yields the reference embeddings that are not missing, in blocks (m, d) of float32 unit rows.

    `models` made the pool's: digests of weights by name. `of` is who asks, for messages. Raises RecipeError if the
    place is neither a run folder with that embedding nor a .npy file of rows, another model made them, or every row is
    missing.
    """
    path, empty = Path(reference).expanduser(), True
    for part in _parts(path, embedding, models or {}, of):
        if part.ndim != 2 or part.dtype.kind != "f":
            raise RecipeError(
                f"{of}: {reference} holds an array of {part.shape} {part.dtype}, expected rows of embeddings, "
                "floats (m, d)"
            )
        for start in range(0, len(part), BLOCK):
            with np.errstate(over="ignore"):  # beyond float32's range: infinite, so missing
                block = part[start : start + BLOCK].astype(np.float32, copy=False)
            block = block[present(block)]
            if len(block):
                empty = False
                yield unit_rows(block)
    if empty:
        raise RecipeError(f"{of}: {reference} holds no embedding")


def _parts(path: Path, embedding: str, models: Mapping[str, str], of: str) -> Iterator[Floats]:
    try:
        if not path.is_dir():
            yield load_array(path, mapped=True)
            return
        run = Run(path)
        others: Mapping[str, str] = run.table().about(embedding).get("models") or {}
        if models and others and not {*models.values()} & {*others.values()}:  # weights: one model may have many paths
            raise RecipeError(
                f"{of}: {' and '.join(others)} made the embeddings of {path}, {' and '.join(models)} the "
                "pool's. Embed them with one model"
            )
        for shard in run.shards:
            yield run.embedding(run.vectors.get(embedding, embedding), shard)
    except RunError as error:
        raise RecipeError(f"{of}: {error}") from error
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"{of}: {path} is neither a run folder nor a .npy file of embeddings "
            f"({getattr(error, 'strerror', None) or first_line(error)})"
        ) from error
