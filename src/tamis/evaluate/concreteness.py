"""How well a score of texts agrees with people's ratings of how concrete they are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tamis.data import Device, Scorer
from tamis.errors import PoolError, RecipeError
from tamis.evaluate.correlation import Numbers, kendall, pearson, spearman
from tamis.evaluate.texts import score_texts
from tamis.math.intervals import Estimate, bootstrap
from tamis.models.texts.norms import held_out
from tamis.pool.table import choose_column
from tamis.pool.texts import columns_of, read_texts

#: What a column of ratings is called, the likelier first.
RATING_COLUMNS = ("rating", "concreteness", "concreteness_annotation", "Conc.M", "label")

_MANY = 5000  # rows from which the interval rests on fewer draws: it is narrow then


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Correlations of scores with ratings, with 95 % bootstrap intervals over the texts.

    Attributes:
        texts: how many were compared.
        left_out: rows without a rating, or that the scorer does not judge.
        pearson, spearman, kendall: of values, of ranks, and tau-b; NaN, with its interval, where all scores or all
            ratings are the same.
    """

    texts: int
    left_out: int
    pearson: Estimate
    spearman: Estimate
    kendall: Estimate

    def facts(self) -> dict[str, Any]:
        """Returns the numbers as JSON takes them: null for a correlation that there is none of."""
        return {
            name: {key: None if number != number else number for key, number in asdict(one).items()}
            if isinstance(one, Estimate)
            else one
            for name, one in vars(self).items()
        }


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


def agreement(scores: Numbers, ratings: Numbers, *, left_out: int = 0, seed: int = 0) -> Agreement:
    """Returns the correlations of (n,) scores with (n,) ratings, neither with NaN."""
    draws = 1000 if len(scores) < _MANY else 200

    def measured(correlate: Callable[[Numbers, Numbers], float]) -> Estimate:
        value = correlate(scores, ratings)
        if math.isnan(value):
            return Estimate(value, value, value, len(scores))
        between = bootstrap(
            # A draw of which all rows are alike has no correlation; a few texts with few ratings can give one.
            lambda rows: np.nan_to_num(correlate(scores[rows], ratings[rows])),
            np.arange(len(scores)),
            draws=draws,
            seed=seed,
        )
        return Estimate(value, between.low, between.high, len(scores))

    return Agreement(
        texts=len(scores),
        left_out=left_out,
        pearson=measured(pearson),
        spearman=measured(spearman),
        kendall=measured(kendall),
    )
