"""Compares a caption signal with people's ratings of concreteness."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tamis.core.errors import PoolError, RecipeError
from tamis.core.ids import content_uid
from tamis.core.math.statistics import Agreement, agreement
from tamis.core.types import Device, Sample, Samples, Signal
from tamis.models.texts.regression import is_held_out
from tamis.pools.rows import choose_column
from tamis.pools.text_files import columns_of, read_texts
from tamis.signals.features.sources import DecodedImages
from tamis.signals.graph import Executor, topological

#: Usual names of a column with ratings.
RATING_COLUMNS = ("rating", "concreteness", "concreteness_annotation", "Conc.M", "label")

_AT_ONCE = 4096  # texts per batch


def evaluate_concreteness(
    file: str | Path,
    signal: Signal,
    device: Device,
    *,
    text: str | None = None,
    rating: str | None = None,
    only_held_out: bool = False,
) -> Agreement:
    """Compares a caption signal with ratings.

    Args:
        file: a table of words or captions with ratings; see `read_texts`.
        signal: its first numeric column is compared.
        text, rating: names of the columns; None: the first with a usual name.
        only_held_out: use only the tenth of the words on which the built-in `norms` was not fitted.

    Raises:
        PoolError: the file cannot be read, or fewer than three rows have a rating and a score.
        RecipeError: the signal looks at images, or gives no number.
    """
    column = next((column.name for column in signal.columns if column.kind == "number"), None)
    if column is None:
        raise RecipeError(f"{signal.name} gives no number to compare with ratings: name another signal")
    if DecodedImages() in topological([signal]):
        raise RecipeError(
            f"{signal.name} needs images: name a signal of captions, such as icc, or judge with of=caption"
        )
    chosen = choose_column("rating", rating, RATING_COLUMNS, columns_of(file), str(file))
    table = read_texts(file, text=text, numbers=[chosen])
    rows = [n for n, one in enumerate(table.texts) if not only_held_out or is_held_out(one)]
    ratings = table.numbers[chosen][rows]
    rated = np.flatnonzero(np.isfinite(ratings))
    scores = np.full(len(rows), np.nan)
    executor = Executor(device)
    for start in range(0, len(rated), _AT_ONCE):
        some = rated[start : start + _AT_ONCE]
        batch = []
        for number in some:
            caption = table.texts[rows[number]]
            uid = content_uid(None, caption.encode())
            batch.append(Sample(uid=uid, key=f"{number:09d}", caption=caption, shown_caption=caption))
        columns = executor.run([signal], {Samples(): batch})[signal]
        scores[some] = np.array(columns[column], np.float64)
    judged = np.isfinite(scores)
    if judged.sum() < 3:
        raise PoolError(f"{file}: {judged.sum()} of {len(rows)} texts have a rating and a score; 3 are needed")
    return agreement(scores[judged], ratings[judged], left_out=int((~judged).sum()))
