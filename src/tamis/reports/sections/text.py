"""Written text: pairs whose CLIP match was mostly text, before and after T-MARS painted the text over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from tamis.core.arrays import Pixels
from tamis.core.errors import ModelError, TamisError
from tamis.core.types import Device
from tamis.reports.context import Context, Facts
from tamis.reports.distributions import whole_column
from tamis.reports.page_pairs import Painter, first_by
from tamis.runs.run import ScoreSet
from tamis.signals.features.sources import DecodedImages
from tamis.signals.features.text_boxes import MaskedImages, TextBoxes
from tamis.signals.graph import Executor, Identities

#: Number of pairs shown.
MOST = 8

#: Columns shown next to the loss.
_BESIDE = frozenset({"clip", "tmars", "text_match"})

_OUTLINE = (230, 30, 120)
_OUTLINE_SHARE = 1 / 110  # of the longer side


def gather(context: Context) -> Facts | None:
    """Finds the pairs that lose most CLIP cosine without their text; None without T-MARS scores, or without text.

    `problem`: why images cannot be painted here, or "".
    """
    for name in context.numbers:
        inner, group, _ = context.run.columns[name]
        if inner == "clip_drop" and group is not None and group.facts["name"] == "tmars":
            drop = whole_column(context.table, name)
            rows = first_by(-drop, MOST, drop > 0)
            if not rows.size:
                return None
            problem = ""
            try:
                context.painter = painter(group)
            except (TamisError, TypeError) as error:
                problem = str(error)
            beside = [number for number in context.numbers if number.rpartition(".")[2] in _BESIDE]
            pairs = [context.pair(row, painted=True) for row in rows.tolist()]
            return {"column": name, "beside": beside, "pairs": pairs, "problem": problem}
    return None


def painter(group: ScoreSet) -> Painter:
    """Returns a function that outlines and paints over text as the run's T-MARS did; raises if that is not possible."""
    settings: Mapping[str, Any] = group.facts["settings"]
    boxes = TextBoxes.class_of(settings["boxes"])(**settings["boxes"])
    node = MaskedImages(boxes=boxes, fill=settings["fill"], ring=settings["ring"])
    device = Device(precision=group.facts["precision"])
    if Identities(device).fingerprint(boxes) != group.facts["identity"]["needs"]["boxes"]:
        raise ModelError("the text was found by another detector, by other weights, or on another runtime")
    executor = Executor(device)
    for each in (boxes, node):
        executor.load(each)  # reports what is missing before an image is read

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
