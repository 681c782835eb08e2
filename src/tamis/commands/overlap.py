"""`overlap`: which rows of a run are copies of reference images, and the measured recall."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image, ImageEnhance

from tamis.commands.select import find_columns
from tamis.core.errors import PoolError, RunError, ShardError
from tamis.core.ids import format_uids
from tamis.core.math.statistics import Estimate, share_interval
from tamis.core.records import build
from tamis.recipes.recipe import PathLike, Recipe
from tamis.recipes.steps.clusters import order_by_uid
from tamis.recipes.steps.distinct import decode
from tamis.recipes.steps.not_in import NotIn, References, thumbnails
from tamis.runs import Run, open_run
from tamis.runs.stream import samples_of
from tamis.runs.table import MemoryTable
from tamis.signals.image_hash import colours_of, hashes_of, lightness_of


def _save(image: Image.Image) -> Image.Image:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=50)
    return Image.open(out).convert("RGB")


def _crop(image: Image.Image) -> Image.Image:
    wide, high = image.size
    return image.crop((round(0.04 * wide), round(0.04 * high), round(0.96 * wide), round(0.96 * high)))


#: Changes of images whose recall is measured.
CHANGES: Mapping[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG, quality 50": _save,
    "half the size": lambda image: image.resize((max(image.width // 2, 1), max(image.height // 2, 1))),
    "4 % cropped off each side": _crop,
    "10 % brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.1),
    "grey": lambda image: image.convert("L").convert("RGB"),
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
}


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """What a run has in common with references.

    Attributes:
        rows, references: how many there are, with those that have no hash or embedding to compare.
        copies: rows that are copies; `found`: references that have one.
        pairs: a row per pair of copies, or borderline pair, for people to judge: uid, reference (its uid or number),
            verdict ("copy" or "borderline"), by ("bits" or "cosine"), value.
        recall: share of changed images that are found, by change, with Wilson's interval; {} if none could be tried.
    """

    rows: int
    references: int
    copies: int
    found: int
    pairs: pa.Table
    recall: Mapping[str, Estimate]


def overlap(
    run: PathLike | Run, reference: PathLike, *, planted: int = 300, partial: bool = False, **settings: Any
) -> Overlap:
    """Finds copies of reference images in a run, by the step `not_in`, and measures the recall.

    For the recall, images of the run's own pool are changed in six ways and looked for among the unchanged ones.

    Args:
        run: a run with image_hash, or with the embedding that is compared.
        reference: another run, a list of image hashes, or a .npy file of hashes or embeddings.
        planted: number of images to change, drawn by uid; 0 skips the measurement.
        partial: look at the finished shards of an incomplete run.
        settings: of `not_in`: distance, embedding, cosine, caption and others.

    Raises:
        RecipeError: the references or a setting cannot be used.
        RunError: the run lacks a column or shards.
    """
    opened = open_run(run, partial=partial)
    step: NotIn = build(NotIn, {"reference": str(reference), **settings}, "overlap")
    table = opened.table(find_columns(Recipe(name="overlap", steps=(step,)), opened))
    references = step.references(table)
    found, _ = step.find(table, references)
    copies = found[found["copy"]]
    names = np.asarray(references.names)[found["reference"]]
    pairs = pa.table({
        "uid": pa.array([uid.decode() for uid in format_uids(*table.uids(found["row"]))], pa.string()),
        "reference": pa.array([one.decode() if isinstance(one, bytes) else str(one) for one in names], pa.string()),
        "verdict": pa.array(np.where(found["copy"], "copy", "borderline"), pa.string()),
        "by": pa.array(np.where(found["by_cosine"], "cosine", "bits"), pa.string()),
        "value": found["value"].astype(np.float32),
    })  # fmt: skip
    return Overlap(
        rows=len(table), references=len(references.names), copies=np.unique(copies["row"]).size,
        found=np.unique(copies["reference"]).size, pairs=pairs,
        recall=_recall(step, opened, planted) if planted and step.hashes else {},
    )  # fmt: skip


def _recall(step: NotIn, run: Run, planted: int) -> dict[str, Estimate]:
    """Changes images of the run in six ways and looks for each among the unchanged ones, by their hashes."""
    rows = np.sort(order_by_uid(run.table(), np.arange(len(run)))[:planted])
    try:
        samples = samples_of(run, order=rows, fields={"pixels"}, errors="mark")
        images = [sample.pixels for sample in samples if sample.pixels is not None]
    except (PoolError, ShardError, RunError):  # the pool is gone, or has no images
        return {}
    if not images:
        return {}
    plain = _hash(images)
    columns = {name: pa.array(value) if isinstance(value, list) else value for name, value in plain.items()}
    hashes = decode(columns["image_hash"], "image_hash")[0].view(">u8").astype(np.uint64)
    among = References(range(len(images)), hashes=hashes, images=thumbnails(columns))
    alone = NotIn(reference="", distance=step.distance, levels=step.levels, tolerance=step.tolerance)
    found = {}
    for name, change in CHANGES.items():
        changed = [np.asarray(change(Image.fromarray(image))) for image in images]
        pairs, _ = alone.find(MemoryTable(_hash(changed)), among)
        right = pairs["copy"] & (pairs["row"] == pairs["reference"])
        found[name] = share_interval(int(np.count_nonzero(right)), len(images))
    return found


def _hash(images: Sequence[NDArray[np.uint8]]) -> dict[str, Any]:
    """Returns the columns of `image_hash` and the sizes of images."""
    sizes = np.array([image.shape[:2] for image in images], np.float32)
    return {
        "image_hash": [hashes_of(one) for one in images],
        "image_colours": [colours_of(one) for one in images],
        "image_lightness": [lightness_of(one) for one in images],
        "height": sizes[:, 0],
        "width": sizes[:, 1],
    }
