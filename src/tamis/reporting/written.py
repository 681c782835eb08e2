"""Written text: pairs whose match was mostly text, before and after it is painted over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from tamis.arrays import Pixels
from tamis.data import Device
from tamis.errors import ModelError, TamisError
from tamis.features.masked_images import MaskedImages
from tamis.features.sources import DecodedImages
from tamis.features.text_boxes import TextBoxes
from tamis.graph import Executor, Identities
from tamis.store.run import Run, ScoreSet
from tamis.store.table import Table

#: Pairs that are shown.
MOST = 8

_OUTLINE = (230, 30, 120)
_OUTLINE_SHARE = 1 / 110  # of the longer side


@dataclass(frozen=True, kw_only=True)
class Written:
    """Which pairs are shown with their text and without it.

    Attributes:
        rows: with the largest drops first.
        column: the drop's column as the run knows it.
        painter: gives an image with its regions outlined, and the masked one; None where that cannot be done.
        problem: why not; "" where it can.
    """

    rows: tuple[int, ...]
    column: str
    painter: Callable[[Pixels], tuple[Pixels, Pixels]] | None
    problem: str


def written(run: Run, table: Table, numbers: Sequence[str]) -> Written | None:
    """Returns what the report shows of a run's T-MARS scores, or None where it has none, or found no text."""
    for name in numbers:
        _, group, column = run.columns[name]
        if column.name == "clip_drop" and group is not None and group.facts["name"] == "tmars":
            rows = _largest(table, name)
            if not rows:
                return None
            try:
                return Written(rows=rows, column=name, painter=painter(group), problem="")
            except (TamisError, TypeError) as error:
                return Written(rows=rows, column=name, painter=None, problem=str(error))
    return None


def _largest(table: Table, name: str) -> tuple[int, ...]:
    def look(place: slice, columns: dict[str, Any]) -> list[tuple[float, int]]:
        drop = columns[name]
        order = np.argsort(-np.nan_to_num(drop, nan=-np.inf), kind="stable")[:MOST]
        return [(-float(drop[row]), place.start + int(row)) for row in order if drop[row] > 0]

    best = sorted(one for some in table.map([name], look) for one in some)
    return tuple(row for _, row in best[:MOST])


def painter(group: ScoreSet) -> Callable[[Pixels], tuple[Pixels, Pixels]]:
    """Returns what gives an image with its text outlined, and with the text painted over, as a run's T-MARS saw it.

    Raises:
        TamisError: the detector is not here, or is another one than found the text.
    """
    settings: Mapping[str, Any] = group.facts["settings"]
    boxes = TextBoxes.kind_of(settings["boxes"])(**settings["boxes"])
    node = MaskedImages(boxes=boxes, fill=settings["fill"], ring=settings["ring"])
    device = Device(precision=group.facts["precision"])
    if Identities(device).fingerprint(boxes) != group.facts["identity"]["needs"]["boxes"]:
        raise ModelError("the text was found by another detector, by other weights, or on another runtime")
    executor = Executor(device)
    for one in (boxes, node):
        executor.load(one)  # what is lacking is told before a picture is read

    def paint(image: Pixels) -> tuple[Pixels, Pixels]:
        values = executor.run([node], {DecodedImages(): [image]})
        (found,), (masked,) = values[boxes], values[node]
        outlined = Image.fromarray(image)
        draw = ImageDraw.Draw(outlined)
        width = max(1, round(max(outlined.size) * _OUTLINE_SHARE))
        for quad in found.quads:
            corners = [(float(x), float(y)) for x, y in quad]
            draw.line([*corners, corners[0]], fill=_OUTLINE, width=width, joint="curve")
        return np.asarray(outlined), masked

    return paint
