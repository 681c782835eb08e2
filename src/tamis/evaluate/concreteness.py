"""How well a score of texts agrees with people's ratings of how concrete they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tamis.data import Device, Scorer
from tamis.errors import PoolError, RecipeError
from tamis.evaluate.texts import score_texts
from tamis.models.texts.norms import held_out
from tamis.pool.rows import choose_column
from tamis.pool.texts import columns_of, read_texts
from tamis.train.agreement import Agreement, agreement

#: What a column of ratings is called, the likelier first.
RATING_COLUMNS = ("rating", "concreteness", "concreteness_annotation", "Conc.M", "label")


def evaluate_concreteness(
    file: str | Path,
    scorer: Scorer,
    device: Device,
    *,
    text: str | None = None,
    rating: str | None = None,
    only_held_out: bool = False,
) -> Agreement:
    """Compares a scorer of captions with ratings.

    Args:
        file: a table of words or captions with ratings; see `read_texts`.
        scorer: its first column of numbers is compared.
        device: where its networks run.
        text, rating: the columns; None takes the first of a usual name.
        only_held_out: of a list of words only the tenth that the built-in `norms` was not fitted on.

    Raises:
        PoolError: the file cannot be read, fewer than three rows remain, or all ratings are the same.
        RecipeError: the scorer looks at images, or gives no number.
    """
    column = next((column.name for column in scorer.columns if column.kind == "number"), None)
    if column is None:
        raise RecipeError(
            f"{scorer.name} gives a text no number that could be compared with ratings: name another scorer"
        )
    chosen = choose_column("rating", rating, RATING_COLUMNS, columns_of(file), str(file))
    found = read_texts(file, text=text, numbers=[chosen])
    ratings = found.numbers[chosen]
    rows = [n for n, one in enumerate(found.texts) if not only_held_out or held_out(one)]
    texts, ratings = [found.texts[n] for n in rows], ratings[rows]
    rated = np.isfinite(ratings)
    scores = np.full(len(texts), np.nan)
    asked = [one for one, has in zip(texts, rated, strict=True) if has]
    if asked:
        scores[rated] = np.array(score_texts(scorer, asked, device)[column], np.float64)
    judged = np.isfinite(scores)
    if judged.sum() < 3:
        raise PoolError(f"{file}: {int(judged.sum())} of {len(texts)} texts have a rating and a score; it takes 3")
    if np.ptp(ratings[judged]) == 0:
        raise PoolError(f"{file}: every rating is {ratings[judged][0]:g}; nothing can go together with that")
    return agreement(scores[judged], ratings[judged], left_out=int((~judged).sum()))
