"""Scoring texts without a pool: for measurements, and for teachers of captions that lie in a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tamis.data import Device, Sample, Samples, Scorer
from tamis.errors import RecipeError
from tamis.features.sources import DecodedImages
from tamis.graph import Executor, topological
from tamis.uid import content_uid

_TOGETHER = 4096  # texts that go through the nodes at once


def score_texts(scorer: Scorer, texts: Sequence[str], device: Device) -> dict[str, list[Any]]:
    """Returns the columns of a scorer of captions.

    Args:
        scorer: one that looks at no image.
        texts: n captions.
        device: where its networks run.

    Returns:
        n values for each of the scorer's columns.

    Raises:
        RecipeError: the scorer looks at images.
    """
    if DecodedImages() in topological([scorer]):
        raise RecipeError(f"{scorer.name} looks at images, and there are only texts: name a scorer of captions, as icc")
    executor = Executor(device)
    found: dict[str, list[Any]] = {column.name: [] for column in scorer.columns}
    for batch in _batches(texts):
        columns: Mapping[str, Any] = executor.run([scorer], {Samples(): batch})[scorer]
        for name, rows in found.items():
            rows.extend(list(columns[name]))
    return found


def _batches(texts: Sequence[str]) -> Iterator[list[Sample]]:
    for start in range(0, len(texts), _TOGETHER):
        yield [
            Sample(uid=content_uid(None, text.encode()), key=f"{number:09d}", caption=text, shown_caption=text)
            for number, text in enumerate(texts[start : start + _TOGETHER], start)
        ]
