"""Covariance herding: the subset whose cross-covariance of images and captions is nearest to the pool's."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Float32s, Float64s, Mask, Rows
from tamis.math.clipcov import Picks, covariance_error
from tamis.math.herding import along, herd, turns
from tamis.selectors.budget import Budgeted
from tamis.selectors.latent_classes import Products, by_class, classes_of, element
from tamis.selectors.outcome import Selection, verdict
from tamis.selectors.vectors import by_uid, check_sizes, check_vectors, embedded
from tamis.store.table import Table

log = logging.getLogger(__name__)

#: Multiplications after which a choice takes tens of minutes on two cores, and one is told how it takes fewer.
_MANY = 1e14


@dataclass(frozen=True, kw_only=True)
class Herding(Budgeted):
    """Keeps the pairs whose cross-covariance of images and captions comes nearest to that of the pool.

    Pairs are taken one after another, each the one that brings the covariance of the choice nearest to the pool's, in
    the Frobenius norm. What is chosen is spread as the pool is: neither the best pairs nor the most central ones, and
    wrong pairs are kept as often as the covariance holds them. Put a step before it that drops those, such as the top
    half by CLIP.

    Attributes:
        fraction: the budget as a share of `of`, in [0, 1]; or
        n: the budget in pairs.
        of: whose share: "survivors", the rows in question, or "pool", all rows.
        image, text: columns of stored embeddings of one model (DataComp: l14_img and l14_txt).
        per: a column of words or numbers (`cluster`, `zero_shot_class`) in whose classes pairs are chosen apart, each
            class for its own part of the covariance and in proportion to its size; None: all pairs together, exactly,
            which takes 2 x rows x choices x d multiplications. Classes are for speed.
        target: whose covariance is kept: "pool", that of all rows that have embeddings, or "survivors", that of the
            rows in question.
        missing: what to do with rows that lack an embedding, or a class.

    A smaller budget is a beginning of a larger one.

    Cost: docs/performance.md; memory O(n d) for the largest class.

    Source: see `tamis.math.herding`.
    """

    name: ClassVar[str] = "herding"
    image: str = "image_embedding"
    text: str = "text_embedding"
    per: str | None = None
    target: Literal["pool", "survivors"] = "pool"
    missing: Literal["error", "drop"] = "error"

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self.image, self.text} | ({self.per} if self.per is not None else set()))

    @property
    def described(self) -> str:
        """The step in one line of the funnel."""
        classes = f" by classes of {self.per}" if self.per is not None else ""
        return f"Covariance herding: {self.budget_in_words}{classes}"

    @property
    def _needed(self) -> str:
        return " and ".join([self.image, self.text, *([self.per] if self.per is not None else [])])

    def select(self, table: Table) -> Selection:
        found = self.rank(table)
        keep = np.zeros(len(table), bool)
        keep[found.rows] = True
        alive = table.living()
        return verdict(self, keep, found.missing, alive, "adds less", what=self._needed, facts=found.facts)

    def rank(self, table: Table) -> Herd:
        """Returns the choice in its order: the choice of a smaller budget is a beginning of it.

        Raises:
            RecipeError: the embeddings are missing or do not fit one another, or rows lack them or a class.
        """
        check_vectors(self.name, table, [self.image, self.text])
        check_sizes(self.name, table, self.image, self.text)
        alive = table.living()
        labels, names = self._classes(table.among(None) if self.target == "pool" else table)
        missing = alive & (labels < 0)
        if missing.any() and self.missing == "error":  # said before the work, not after it
            verdict(self, ~missing & alive, missing, alive, "", what=self._needed)
        there = np.flatnonzero(labels >= 0)
        budget = min(self.budget(alive), int(np.count_nonzero(alive & (labels >= 0))))
        if budget == 0:
            return Herd(np.empty(0, np.int64), np.empty(0), missing)
        order = by_uid(table, there, groups=labels[there])
        starts = np.searchsorted(labels[order], np.arange(len(names) + 1)).astype(np.int64)
        rows, gains, facts = _Work(self, table, order, starts, names).choose(budget)
        return Herd(rows, gains, missing, facts)

    def _classes(self, table: Table) -> tuple[NDArray[np.int32], tuple[str, ...]]:
        """Returns the class of each living row, -1 where it has none or lacks an embedding, and the names."""
        if self.per is not None:
            return classes_of(self.name, table, self.per, (self.image, self.text))
        there = embedded(table, self.image) & embedded(table, self.text)
        return np.where(there, 0, -1).astype(np.int32), ("all",)


@dataclass(frozen=True)
class Herd:
    """What herding takes, in its order.

    Attributes:
        rows: (m,) row numbers of the table in the order in which they were taken.
        gains: (m,) the criterion at which each was taken, in its class.
        missing: (rows,) bool: rows that could not be judged.
        facts: classes with sizes and how many were taken, errors of the covariance.
    """

    rows: Rows
    gains: Float64s
    missing: Mask
    facts: dict[str, Any] = field(default_factory=dict)


class _Work:
    """One selection: classes with their rows, read group by group."""

    def __init__(self, step: Herding, table: Table, order: Rows, starts: Rows, names: Sequence[str]) -> None:
        self.step, self.table, self.order, self.starts, self.names = step, table, order, starts, names
        self.columns = (step.image, step.text)
        self.alive = table.living()[order]
        self.sizes = np.diff(starts)

    def choose(self, budget: int) -> tuple[Rows, Float64s, dict[str, Any]]:
        """Returns the rows in the order of their choice, the criteria, and what is told of them."""
        candidates = np.diff(np.concatenate([[0], np.cumsum(self.alive)])[self.starts])
        turn = turns(self.sizes, candidates, budget)
        budgets = np.bincount(turn, minlength=len(self.names))
        centres = self._centres()
        self._warn(float((budgets * candidates).sum()) * 2 * len(centres[0]))
        total = np.zeros((len(centres[0]), len(centres[0])))

        def work(k: int, place: slice, images: Float32s, texts: Float32s) -> tuple[Rows, Picks, Float32s]:
            images -= centres[0]
            texts -= centres[1]
            own = images.T @ texts  # the class's part of the covariance, times its size
            inside = np.flatnonzero(self.alive[place])
            images, texts = images[inside], texts[inside]
            aim = along(images, texts, own / len(self.alive[place]))
            return inside, herd(images, texts, aim, count=int(budgets[k])), own

        rows: list[Rows] = [np.empty(0, np.int64)] * len(self.names)
        gains: list[Float64s] = [np.empty(0)] * len(self.names)
        for k, (inside, picks, own) in by_class(self.table, self.columns, self.order, self.starts, work):
            total += own
            rows[k], gains[k] = self.order[self.starts[k] + inside[picks.rows]], picks.gains
        place = _occurrence(turn)
        chosen = element(rows, turn, place).astype(np.int64)
        return chosen, element(gains, turn, place), self._facts(chosen, budgets, total / self.order.size, centres)

    def _centres(self) -> tuple[Float32s, Float32s]:
        """Returns the mean image and the mean caption of the target's unit rows."""

        def work(k: int, place: slice, images: Float32s, texts: Float32s) -> tuple[Float64s, Float64s]:
            return images.sum(0, np.float64), texts.sum(0, np.float64)

        found = [sums for _, sums in by_class(self.table, self.columns, self.order, self.starts, work)]
        means = (np.sum(side, axis=0) / self.order.size for side in zip(*found, strict=True))
        images, texts = (mean.astype(np.float32) for mean in means)
        return images, texts

    def _warn(self, multiplications: float) -> None:
        if multiplications > _MANY:
            log.warning(
                "herding: %.0e multiplications, tens of minutes on two cores or more; smaller classes take fewer: "
                "'tamis cluster RUN' and 'per: cluster' in the step",
                multiplications,
            )

    def _facts(
        self, chosen: Rows, budgets: Rows, whole: Float64s, centres: tuple[Float32s, Float32s]
    ) -> dict[str, Any]:
        part = Products(len(whole))
        part.add_stored([[self.table.vectors(name, chosen) for name in self.columns]])
        means = (part.image_sum / part.rows, part.text_sum / part.rows)
        # Around the centres of the target: what herding descends.
        moved = np.outer(means[0] - centres[0], means[1] - centres[1])
        about = part.covariance() + moved
        held = np.flatnonzero(self.sizes)
        held = held[np.lexsort((held, -self.sizes[held]))]
        classes = [
            {"class": self.names[k], "pairs": int(self.sizes[k]), "kept": int(budgets[k])} for k in held.tolist()
        ]
        return {
            **({"classes": classes} if self.step.per is not None else {}),
            "herding_error": covariance_error(whole, about),
            "covariance_error": covariance_error(whole, part.covariance()),
            "covariance_error_up_to_scale": covariance_error(whole, part.covariance(), up_to_scale=True),
        }


def _occurrence(values: Rows) -> Rows:
    """Returns how often each value stood before: 0 at its first place."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    first = np.searchsorted(ordered, ordered)
    found = np.empty(values.size, np.int64)
    found[order] = np.arange(values.size) - first
    return found
