"""ClipCov: the subset that together keeps the cross-covariance of the pool's images and captions."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Float32s, Float64s, Mask, Rows
from tamis.errors import RecipeError, without_effect
from tamis.math import clipcov
from tamis.math.clipcov import TERMS, Picks, check_terms
from tamis.selectors.budget import Budgeted
from tamis.selectors.latent_classes import Products, by_class, classes_of, element
from tamis.selectors.outcome import Selection, verdict
from tamis.selectors.vectors import by_uid, check_sizes, check_vectors
from tamis.store.side_files import CLASS_NAMES, CLASS_VECTORS
from tamis.store.table import Table
from tamis.uid import scramble

T = TypeVar("T")

log = logging.getLogger(__name__)

#: The column of classes that comes with embeddings of their names.
ZERO_SHOT = "zero_shot_class"

#: What recipes that ask for class names here are told.
_MOVED = (
    f"is a setting of the scorer {ZERO_SHOT} now, since no step runs a model: write '- {ZERO_SHOT}: {{model: MODEL, "
    "classes_from: FILE}' under 'scores', repeat `tamis score` with the recipe (where embeddings are stored, only the "
    "class names are embedded), and leave 'classes', 'templates' and 'model' out of the step"
)

#: Rows looked at to guess which gains are within reach, at least, and one in so many of more; no choice depends on it.
_SAMPLE, _STRIDE = 20_000, 10


@dataclass(frozen=True, kw_only=True)
class ClipCov(Budgeted):
    """Keeps the pairs that together preserve the cross-covariance of images and captions, class by latent class.

    A pair is worth what it adds to those that are chosen already: it lies near many pairs of its class (and near its
    class's name, and its caption near its image) and is unlike what is chosen. Latent classes are those that the
    scorer `zero_shot_class` found, or the values of another column. Each class is gone through greedily and exactly,
    classes are merged by gain, and double greedy drops what does not help.

    Attributes:
        fraction: the budget as a share of `of`, in [0, 1]; or
        n: the budget in pairs.
        of: whose share: "survivors", the rows in question, or "pool", all rows.
        image, text: columns of stored embeddings of one model (DataComp: l14_img and l14_txt).
        per: a column of words (or numbers: `cluster`) that are the latent classes. The term "label" needs embeddings of
            their names, which only the scorer `zero_shot_class` keeps: leave it out with other columns.
        terms: which terms of the objective count (Table 3 of the paper): cov, label, class_reg, inter. "cov" is "class"
            and "self" together, which can be named apart: how central a pair is in its class and how unlike the
            choice, and the cosine of its image and caption.
        alpha: weight of "label"; None: the ratio of average cross-modal similarity to that of captions with labels.
        inter: how the similarities to the other classes add up: "mean", the average that the paper speaks of, or
            "sum", equation 34 as printed, which outweighs the other terms where there are many classes.
        diversity: how much the similarity of chosen pairs counts against a pair: "paper", as in equation 23, or
            "share", that divided by the share which is chosen of all rows. It keeps the classes' centres better, and
            the objective depends on the budget then: a smaller choice is no beginning of a larger one.
        double_greedy: drops what lowers the objective afterwards; the subset may come out below its budget.
        missing: what to do with rows that lack an embedding, or a class.

    Cost: docs/performance.md; O(n d), no matrix of similarities.

    Source: Joshi et al. 2024, "Data-efficient contrastive language-image pretraining" (AISTATS, arXiv 2403.12267),
        equations 23 to 36 and algorithm 1.
    """

    name: ClassVar[str] = "clipcov"
    moved: ClassVar[Mapping[str, str]] = dict.fromkeys(("classes", "templates", "model"), _MOVED)
    image: str = "image_embedding"
    text: str = "text_embedding"
    per: str = ZERO_SHOT
    terms: tuple[str, ...] = TERMS
    alpha: float | None = None
    inter: Literal["mean", "sum"] = "mean"
    diversity: Literal["paper", "share"] = "paper"
    double_greedy: bool = True
    missing: Literal["error", "drop"] = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha is not None and not math.isfinite(self.alpha):
            raise ValueError(f"alpha is a number, got {self.alpha}")
        check_terms(self.terms)
        if "label" in self.terms and self.per.rpartition(".")[2] != ZERO_SHOT:
            raise ValueError(
                f"the term 'label' compares captions with class names, whose embeddings only the scorer {ZERO_SHOT} "
                f"keeps: with per: {self.per} leave it out (terms: [cov, class_reg, inter])"
            )
        for term, setting in (("label", "alpha"), ("inter", "inter")):
            if term not in self.terms:
                without_effect(self, setting, because=f"the terms are {', '.join(self.terms)}, without {term!r}")
        if not {"cov", "class"} & set(self.terms):
            without_effect(self, "diversity", because=f"no term of {', '.join(self.terms)} compares chosen pairs")

    @property
    def reads(self) -> frozenset[str]:
        return frozenset({self.image, self.text, self.per})

    @property
    def described(self) -> str:
        """The step in one line of the funnel."""
        terms = "" if set(self.terms) == set(TERMS) else f" ({', '.join(self.terms)} only)"
        diversity = ", diversity by share" if self.diversity == "share" else ""
        return f"ClipCov: {self.budget_in_words} by classes of {self.per}{terms}{diversity}"

    @property
    def _needed(self) -> str:
        return f"{self.image} and {self.text} and {self.per}"

    def select(self, table: Table) -> Selection:
        found = self.rank(table)
        keep = np.zeros(len(table), bool)
        keep[found.rows[found.stays]] = True
        facts = found.facts if len(found.rows) else {}
        cut = float(found.gains.min()) if len(found.gains) else None
        return verdict(
            self,
            keep,
            found.missing,
            table.living(),
            "adds less",
            cut,
            what=self._needed,
            facts=facts,
        )

    def rank(self, table: Table) -> Ranking:
        """Returns the choice as a ranking with gains: the choice of a smaller budget is a beginning of it.

        Not so with `diversity: share`, whose objective depends on the budget.

        Raises:
            RecipeError: the embeddings are missing or do not fit one another, or rows lack them or a class.
        """
        check_vectors(self.name, table, [self.image, self.text])
        alive = table.living()
        labels, names, vectors = self._latent_classes(table)
        missing = alive & (labels < 0)
        if missing.any() and self.missing == "error":  # said before the work, not after it
            verdict(self, ~missing & alive, missing, alive, "", what=self._needed)
        rows = np.flatnonzero(labels >= 0)
        budget = min(self.budget(alive), rows.size)
        order = by_uid(table, rows, groups=labels[rows])
        starts = np.searchsorted(labels[order], np.arange(len(names) + 1)).astype(np.int64)
        if budget == 0:
            return Ranking(np.empty(0, np.int64), np.empty(0), np.empty(0, bool), missing)
        return _Work(self, table, order, starts, names, vectors, budget).ranking(budget, missing)

    def _latent_classes(self, table: Table) -> tuple[NDArray[np.int32], tuple[str, ...], Float32s | None]:
        """Returns the class of each row (-1: none), the classes' names, and the names' embeddings."""
        vectors = self._class_vectors(table) if "label" in self.terms else None
        check_sizes(self.name, table, self.image, self.text, vectors)
        known = table.side_file(self.per, CLASS_NAMES)
        labels, names = classes_of(self.name, table, self.per, (self.image, self.text), known)
        return labels, names, vectors

    def _class_vectors(self, table: Table) -> Float32s:
        """Returns the embeddings of the class names: (k, d) unit rows.

        Raises:
            RecipeError: the run holds none, or another model made them than the captions' embeddings.
        """
        vectors: Float32s | None = table.side_file(self.per, CLASS_VECTORS)
        if vectors is None:
            raise RecipeError(
                f"clipcov: the run holds no embeddings of the class names of {self.per!r}, with which the term 'label' "
                f"compares captions: repeat `tamis score` with the scorer {ZERO_SHOT}, or leave the term out (terms: "
                "[cov, class_reg, inter])"
            )
        names, texts = (table.about(column).get("models") or {} for column in (self.per, self.text))
        if names and texts and not {*names.values()} & {*texts.values()}:  # weights: the same lie under many paths
            raise RecipeError(
                f"clipcov: {' and '.join(names)} embedded the class names of {self.per!r}, {' and '.join(texts)} the "
                f"captions of {self.text!r}, and the term 'label' compares the two: score {ZERO_SHOT} with the "
                "captions' model, or leave the term out (terms: [cov, class_reg, inter])"
            )
        return vectors


@dataclass(frozen=True)
class Ranking:
    """What ClipCov takes, best first.

    Attributes:
        rows: (m,) row numbers of the table in the order in which they were taken.
        gains: (m,) by how much each raised the objective.
        stays: (m,) bool: False where double greedy dropped it again.
        missing: (rows,) bool: rows that could not be judged.
        facts: classes with sizes and how many were taken, objective, alpha, errors of the covariance and of the
            classes' centres.
    """

    rows: Rows
    gains: Float64s
    stays: NDArray[np.bool_]
    missing: Mask
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Class:
    """What is kept of a class between two readings of its embeddings."""

    image_sum: Float64s
    text_sum: Float64s
    cross_modal: float = 0.0  # mean of sim(i, j) over its pairs
    text: float = 0.0  # mean of <t_i, y_k>


@dataclass(frozen=True)
class _Kept:
    """What double greedy leaves.

    Attributes:
        stays: (m,) bool, which choices.
        before, after: the objective of all choices and of those that stay.
        covariance: (d, d) of those that stay; zeros where there are none.
        centre_errors: of each class of which something stays.
    """

    stays: NDArray[np.bool_]
    before: float
    after: float
    covariance: Float64s
    centre_errors: Sequence[float]


class _Work:
    """One selection: classes with their rows, read group by group."""

    def __init__(
        self,
        step: ClipCov,
        table: Table,
        order: Rows,
        starts: Rows,
        names: Sequence[str],
        vectors: Float32s | None,
        budget: int,
    ) -> None:
        self.step, self.table, self.order, self.starts = step, table, order, starts
        self.names, self.vectors = names, vectors
        self.sizes = np.diff(starts)
        self.share = budget / order.size if step.diversity == "share" else 1.0

    def ranking(self, budget: int, missing: Mask) -> Ranking:
        whole, classes = self._sums()
        alpha = self._alpha(classes)
        others = self._others(classes)

        def modular(k: int, images: Float32s, texts: Float32s) -> Float64s:
            return clipcov.modular_gains(
                images,
                texts,
                terms=self.step.terms,
                label=None if self.vectors is None else self.vectors[k],
                alpha=alpha,
                others=(others[0][k], others[1][k]),
                sums=(classes[k].image_sum, classes[k].text_sum),
                size=int(self.sizes[k]),
            )

        picks, gained = self._greedy(modular, classes, budget)
        tie = [self._ties(k, each.rows) for k, each in picks.items()]
        kinds = list(picks)
        which, places, gains = clipcov.merge([picks[k] for k in kinds], tie, budget)
        kind = np.array(kinds, np.int64)[which] if len(which) else which
        inside = element([picks[k].rows for k in kinds], which, places)
        rows = self.order[self.starts[kind] + inside]
        values = element([gained[k] for k in kinds], which, places)
        kept = self._double_greedy(kind, rows, values, classes)
        fallen = int(np.count_nonzero(~kept.stays))
        if fallen:
            log.warning(
                "clipcov: double greedy dropped %s of the %s pairs that the budget allows, and %s stay; "
                "'double_greedy: false' in the step keeps them all",
                f"{fallen:,}",
                f"{len(rows):,}",
                f"{len(rows) - fallen:,}",
            )
        facts = self._facts(kind, kept, alpha)
        facts["covariance_error"] = clipcov.covariance_error(whole, kept.covariance)
        facts["covariance_error_up_to_scale"] = clipcov.covariance_error(whole, kept.covariance, up_to_scale=True)
        if kept.centre_errors:
            facts["class_centre_error"] = float(np.mean(kept.centre_errors))
        return Ranking(rows, gains, kept.stays, missing, facts)

    def _classes(
        self,
        work: Callable[[int, slice, Float32s, Float32s], T],
        order: Rows | None = None,
        starts: Rows | None = None,
        products: Products | None = None,
    ) -> Iterator[tuple[int, T]]:
        """Calls `work(class, place in the order, images, texts)` for every class that has rows, some at once."""
        order = self.order if order is None else order
        starts = self.starts if starts is None else starts
        return by_class(self.table, (self.step.image, self.step.text), order, starts, work, products)

    def _weight(self, k: int) -> float:
        """Returns what stands before the similarity of chosen pairs of a class."""
        return clipcov.pair_weight(int(self.sizes[k]), self.step.terms, share=self.share)

    def _sums(self) -> tuple[Float64s, dict[int, _Class]]:
        """Returns the cross-covariance of all rows, and sums and averages of each class."""

        def work(k: int, place: slice, images: Float32s, texts: Float32s) -> _Class:
            image_sum, text_sum = images.sum(0, np.float64), texts.sum(0, np.float64)
            size = len(images)
            made = _Class(image_sum, text_sum, 2 * float(image_sum @ text_sum) / size**2)
            if self.vectors is not None:
                made.text = float(text_sum @ self.vectors[k]) / size
            return made

        products = Products(self._width())
        classes = dict(self._classes(work, products=products))
        return products.covariance(), classes

    def _width(self) -> int:
        """Returns the size of an embedding."""
        return int(self.table.vectors(self.step.image, self.order[:1]).shape[1])

    def _alpha(self, classes: dict[int, _Class]) -> float:
        if "label" not in self.step.terms:
            return 0.0
        if self.step.alpha is not None:
            return self.step.alpha
        weights = [self.sizes[k] for k in classes]
        cross = float(np.average([each.cross_modal for each in classes.values()], weights=weights))
        text = float(np.average([each.text for each in classes.values()], weights=weights))
        try:
            alpha = clipcov.measured_alpha(cross, text)
        except ValueError as error:
            raise RecipeError(f"clipcov: {error}") from error
        if alpha < 0:  # encoders whose images and captions lie apart
            log.warning(
                "clipcov: pairs of one class have a mean cross-modal similarity of %.3g, so alpha is %.3g and the term "
                "'label' keeps captions away from their class's name; give alpha, or leave the term out",
                cross,
                alpha,
            )
        return alpha

    def _others(self, classes: dict[int, _Class]) -> tuple[Float64s, Float64s]:
        """Returns for every class the sums (or means) over the other classes of their mean images and texts."""
        d = len(next(iter(classes.values())).image_sum)
        images, texts = np.zeros((len(self.names), d)), np.zeros((len(self.names), d))
        for k, each in classes.items():
            images[k], texts[k] = each.image_sum / self.sizes[k], each.text_sum / self.sizes[k]
        scale = 1.0 if self.step.inter == "sum" else 1 / max(len(classes) - 1, 1)
        return (images.sum(0) - images) * scale, (texts.sum(0) - texts) * scale

    def _greedy(
        self, modular: Callable[[int, Float32s, Float32s], Float64s], classes: dict[int, _Class], budget: int
    ) -> tuple[dict[int, Picks], dict[int, Float64s]]:
        """Returns each class's choices down to a gain that `budget` choices reach, and their modular gains."""
        floor = self._floor(modular, classes, budget)
        while True:

            def work(k: int, place: slice, images: Float32s, texts: Float32s, floor: float = floor) -> Any:
                gains = modular(k, images, texts)
                found = clipcov.greedy(images, texts, gains, weight=self._weight(k), count=budget, floor=floor)
                return found, gains[found.rows]

            picks: dict[int, Picks] = {}
            gained: dict[int, Float64s] = {}
            for k, (found, values) in self._classes(work):
                picks[k], gained[k] = found, values
            reached = sum(len(each.rows) for each in picks.values())
            if reached >= budget or floor == -np.inf:
                return picks, gained
            # The guess was too high: a wider one, and where that is no lower, none.
            wider = int(budget * (2 - reached / budget)) + budget // 20
            lower = self._floor(modular, classes, wider)
            floor = lower if lower < floor else -np.inf

    def _floor(
        self, modular: Callable[[int, Float32s, Float32s], Float64s], classes: dict[int, _Class], budget: int
    ) -> float:
        """Returns a gain that a little more than `budget` choices are likely to reach, from a share of the rows."""
        if budget > self.order.size // 2:
            return -np.inf
        stride = min(max(self.order.size // _SAMPLE, 1), _STRIDE)
        picked = [np.arange(a, b, stride) for a, b in zip(self.starts[:-1], self.starts[1:], strict=True)]
        starts = np.concatenate([[0], np.cumsum([len(each) for each in picked])]).astype(np.int64)

        def work(k: int, place: slice, images: Float32s, texts: Float32s) -> tuple[Float64s, Float64s]:
            weight = self._weight(k)
            mean_image, mean_text = classes[k].image_sum / self.sizes[k], classes[k].text_sum / self.sizes[k]
            # One sampled row stands for several: so does one choice.
            slope = stride * weight * (images @ mean_text.astype(np.float32) + texts @ mean_image.astype(np.float32))
            base = modular(k, images, texts) - weight * clipcov.own_cosines(images, texts)
            return base, slope.astype(np.float64)

        found = [each for _, each in self._classes(work, self.order[np.concatenate(picked)], starts)]
        return clipcov.floor_for(
            [a for a, _ in found], [b for _, b in found], int(1.12 * budget / stride) + 20 // stride + 1
        )

    def _ties(self, k: int, rows: Rows) -> NDArray[np.uint64]:
        """Returns scrambled uids of some rows of a class."""
        return scramble(*self.table.uids(self.order[self.starts[k] + rows]))

    def _double_greedy(self, kind: Rows, rows: Rows, modular: Float64s, classes: dict[int, _Class]) -> _Kept:
        """Returns which choices stay, and what is told of them."""
        in_classes = np.argsort(kind, kind="stable")
        starts = np.searchsorted(kind[in_classes], np.arange(len(self.names) + 1)).astype(np.int64)

        def work(k: int, place: slice, images: Float32s, texts: Float32s) -> Any:
            mine = modular[in_classes[place]]
            chosen = np.arange(len(mine))
            weight = self._weight(k)
            stay = np.ones(len(mine), bool)
            if self.step.double_greedy:
                stay = clipcov.double_greedy(images, texts, mine, weight=weight, chosen=chosen)
            before = clipcov.objective(images, texts, mine, weight=weight, chosen=chosen)
            after = clipcov.objective(images, texts, mine, weight=weight, chosen=chosen[stay])
            images, texts = images[stay], texts[stay]
            return place, stay, before, after, (images.sum(0, np.float64), texts.sum(0, np.float64))

        stays = np.ones(len(rows), bool)
        before = after = 0.0
        centre_errors = []
        for k, (place, stay, was, now, sums) in self._classes(work, rows[in_classes], starts):
            stays[in_classes[place]] = stay
            before, after = before + was, after + now
            if stay.any():
                whole = (classes[k].image_sum / self.sizes[k], classes[k].text_sum / self.sizes[k])
                part = (sums[0] / np.count_nonzero(stay), sums[1] / np.count_nonzero(stay))
                centre_errors.append(clipcov.centre_error(whole, part))
        products = Products(self._width())
        kept = rows[in_classes][stays[in_classes]]
        products.add_stored([[self.table.vectors(name, kept) for name in (self.step.image, self.step.text)]])
        return _Kept(stays, before, after, products.covariance(), centre_errors)

    def _facts(self, kind: Rows, kept: _Kept, alpha: float) -> dict[str, Any]:
        taken = np.bincount(kind[kept.stays], minlength=len(self.names))
        held = np.flatnonzero(self.sizes)
        held = held[np.lexsort((held, -self.sizes[held]))]
        return {
            "classes": [
                {"class": self.names[k], "pairs": int(self.sizes[k]), "kept": int(taken[k])} for k in held.tolist()
            ],
            "classes_covered": int(np.count_nonzero(taken)),
            "objective_greedy": kept.before,
            "objective": kept.after,
            "dropped_by_double_greedy": int(np.count_nonzero(~kept.stays)),
            **({"alpha": alpha} if "label" in self.step.terms else {}),
        }
