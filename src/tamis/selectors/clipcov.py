"""ClipCov: the subset that together keeps the cross-covariance of the pool's images and captions."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Float32s, Float64s, Mask, Rows
from tamis.errors import RecipeError, check_words, without_effect
from tamis.ids import scramble
from tamis.math import clipcov
from tamis.math.clipcov import TERMS, Picks, check_terms
from tamis.math.order import round_half_up
from tamis.selectors.latent_classes import Products, by_class, classes_of
from tamis.selectors.outcome import Selection, check_kind, check_missing, verdict
from tamis.selectors.steps import check_fraction
from tamis.selectors.vectors import by_uid
from tamis.store.parts import CLASS_NAMES, CLASS_VECTORS
from tamis.store.table import Table

T = TypeVar("T")

#: From a class's number and unit embeddings to the modular gains of its pairs.
Modular = Callable[[int, Float32s, Float32s], Float64s]

log = logging.getLogger(__name__)

#: The column of classes that comes with embeddings of their names.
ZERO_SHOT = "zero_shot_class"

#: Sampling used only to speed up the floor estimate: at least this many rows, at most one in this many.
_SAMPLE, _STRIDE = 20_000, 10


@dataclass(frozen=True, kw_only=True)
class ClipCov:
    """Keeps the pairs that together preserve the cross-covariance of images and captions, class by latent class.

    A pair is worth what it adds to those already chosen: it is near many pairs of its class, its caption is near its
    image and its class's name, and it is unlike what is chosen. The greedy choice in each class is exact, classes are
    merged by gain, and double greedy drops what does not help.

    Attributes:
        fraction: the budget as a share of `of`, in [0, 1]; or
        n: the budget in pairs.
        of: whose share: "survivors", the candidates, or "pool", all rows.
        image, text: columns of stored embeddings of one model (DataComp: l14_img and l14_txt).
        per: a column of words or numbers (`cluster`) that are the latent classes. The term "label" needs embeddings of
            their names, which only the signal `zero_shot_class` keeps: leave it out with other columns.
        terms: which terms of the objective count (Table 3 of the paper): cov, label, class_reg, inter. "cov" is "class"
            (how central a pair is in its class and how unlike the choice) and "self" (the cosine of its image and
            caption), which can be named apart.
        alpha: weight of "label"; None: the ratio of average cross-modal similarity to that of captions with labels.
        inter: how the similarities to the other classes add up: "mean", the average that the paper speaks of, or
            "sum", equation 34 as printed, which outweighs the other terms where there are many classes.
        diversity: how much the similarity of chosen pairs counts against a pair: "paper", as in equation 23, or
            "share", that divided by the share which is chosen of all rows. It keeps the classes' centres better, but a
            smaller choice is not a prefix of a larger one.
        double_greedy: drop what lowers the objective; the subset may come out below its budget.
        missing: what to do with rows that lack an embedding, or a class.

    Cost: O(n d), without a matrix of similarities; docs/performance.md.

    Source: Joshi et al. 2024, "Data-efficient contrastive language-image pretraining" (AISTATS, arXiv 2403.12267),
        equations 23 to 36 and algorithm 1.
    """

    name: ClassVar[str] = "clipcov"
    fraction: float | None = None
    n: int | None = None
    of: Literal["survivors", "pool"] = "survivors"
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
        if (self.fraction is None) == (self.n is None):
            raise ValueError(f"clipcov needs fraction or n, got fraction {self.fraction} and n {self.n}")
        if self.fraction is not None:
            check_fraction(self.fraction)
        if self.n is not None:
            if self.n < 0:
                raise ValueError(f"clipcov needs n >= 0, got {self.n}")
            without_effect(self, "of", because="n is an absolute count, so `of` has no effect")
        check_words(self)
        if self.alpha is not None and not math.isfinite(self.alpha):
            raise ValueError(f"alpha is a number, got {self.alpha}")
        check_terms(self.terms)
        if "label" in self.terms and self.per.rpartition(".")[2] != ZERO_SHOT:
            raise ValueError(
                f"the term 'label' compares captions with class names, whose embeddings only the signal {ZERO_SHOT} "
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
        budget = f"{self.n:,} pairs" if self.fraction is None else f"{100 * self.fraction:g} % of the {self.of}"
        terms = "" if set(self.terms) == set(TERMS) else f" ({', '.join(self.terms)} only)"
        diversity = ", diversity by share" if self.diversity == "share" else ""
        return f"ClipCov: {budget} by classes of {self.per}{terms}{diversity}"

    @property
    def _needed(self) -> str:
        return f"{self.image} and {self.text} and {self.per}"

    def check_columns(self, table: Table) -> None:
        """Raises RecipeError if images and captions are no embeddings, or classes are."""
        for name in (self.image, self.text):
            check_kind(self.name, table, name, "vector")
        check_kind(self.name, table, self.per, "word", "number")

    def select(self, table: Table) -> Selection:
        ranking = self.rank(table)
        keep = np.zeros(len(table), bool)
        keep[ranking.rows[ranking.stays]] = True
        cut = float(ranking.gains.min()) if len(ranking.gains) else None
        alive, what = table.living(), self._needed
        return verdict(self, keep, ranking.missing, alive, "adds less", cut, what=what, facts=ranking.facts)

    def rank(self, table: Table) -> Ranking:
        """Returns the choice as a ranking with gains: the choice of a smaller budget is a prefix of it.

        With `diversity: share` it is not a prefix, because the objective depends on the budget.

        Raises:
            RecipeError: the embeddings are missing or do not fit one another, or rows lack them or a class.
        """
        self.check_columns(table)
        alive = table.living()
        vectors = self._class_vectors(table) if "label" in self.terms else None
        self._check_sizes(table, vectors)
        known = table.side_file(self.per, CLASS_NAMES)
        labels, names = classes_of(self.name, table, self.per, (self.image, self.text), known)
        missing = alive & (labels < 0)
        check_missing(self, missing, alive, self._needed)  # before the work, not after it
        rows = np.flatnonzero(labels >= 0)
        budget = self.n
        if budget is None:
            of = alive.size if self.of == "pool" else int(np.count_nonzero(alive))
            budget = round_half_up(self.fraction or 0.0, of)
        budget = min(budget, rows.size)
        if budget == 0:
            return Ranking(np.empty(0, np.int64), np.empty(0), np.empty(0, bool), missing)
        order = by_uid(table, rows, groups=labels[rows])
        starts = np.searchsorted(labels[order], np.arange(len(names) + 1)).astype(np.int64)
        return _Work(self, table, order, starts, names, vectors, budget).ranking(missing)

    def _class_vectors(self, table: Table) -> Float32s:
        """Returns the embeddings of the class names: (k, d) unit rows. They must be by the captions' model."""
        vectors: Float32s | None = table.side_file(self.per, CLASS_VECTORS)
        if vectors is None:
            raise RecipeError(
                f"clipcov: the run has no embeddings of the class names of {self.per!r}, with which the term 'label' "
                f"compares captions: score {ZERO_SHOT} again, or leave the term out (terms: [cov, class_reg, inter])"
            )
        names, texts = (table.about(column).get("models") or {} for column in (self.per, self.text))
        if names and texts and not {*names.values()} & {*texts.values()}:  # weights: one model may have many paths
            raise RecipeError(
                f"clipcov: {' and '.join(names)} embedded the class names of {self.per!r}, {' and '.join(texts)} the "
                f"captions of {self.text!r}, and the term 'label' compares the two: score {ZERO_SHOT} with the "
                "captions' model, or leave the term out (terms: [cov, class_reg, inter])"
            )
        return vectors

    def _check_sizes(self, table: Table, names: Float32s | None) -> None:
        """Raises RecipeError if images, captions and class names have embeddings of different sizes."""
        first = np.flatnonzero(table.living())[:1]
        if not first.size:
            return
        sizes = {name: table.vectors(name, first).shape[1] for name in (self.image, self.text)}
        sizes |= {} if names is None else {"the class names": names.shape[1]}
        if len(set(sizes.values())) > 1:
            raise RecipeError(
                "clipcov: embeddings of one model have one number of dimensions, got "
                + ", ".join(f"{name}: {size}" for name, size in sizes.items())
            )


@dataclass(frozen=True)
class Ranking:
    """What ClipCov takes, best first.

    Attributes:
        rows: (m,) row numbers of the table in the order in which they were taken.
        gains: (m,) by how much each raised the objective.
        stays: (m,) bool: False where double greedy dropped it again.
        missing: (rows,) bool: rows without an embedding or class.
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

    size: int
    image_sum: Float64s
    text_sum: Float64s
    cross_modal: float  # mean of sim(i, j) over its pairs
    text: float  # mean of <t_i, y_k>

    @property
    def centre(self) -> tuple[Float64s, Float64s]:
        """Its mean image and mean caption."""
        return self.image_sum / self.size, self.text_sum / self.size


@dataclass
class _Work:
    """One selection: classes with their rows, read group by group."""

    step: ClipCov
    table: Table
    order: Rows
    starts: Rows
    names: Sequence[str]
    vectors: Float32s | None
    budget: int

    def ranking(self, missing: Mask) -> Ranking:
        whole = Products(int(self.table.vectors(self.step.image, self.order[:1]).shape[1]))
        classes = dict(self._classes(self._sum, products=whole))
        alpha = self._alpha(list(classes.values()))
        picks, gained = self._greedy(self._modular(classes, alpha), classes)
        taken = {k: self.order[self.starts[k] + each.rows] for k, each in picks.items()}
        ties = [scramble(*self.table.uids(rows)) for rows in taken.values()]
        order = clipcov.merge(list(picks.values()), ties, self.budget)
        kind = np.repeat(np.array(list(picks), np.int64), [len(rows) for rows in taken.values()])[order]
        rows, modular = (np.concatenate(list(each.values()))[order] for each in (taken, gained))
        gains = np.concatenate([each.gains for each in picks.values()])[order]
        stays, facts = self._double_greedy(kind, rows, modular, classes, alpha, whole.covariance())
        return Ranking(rows, gains, stays, missing, facts)

    def _classes(
        self,
        work: Callable[[int, slice, Float32s, Float32s], T],
        order: Rows | None = None,
        starts: Rows | None = None,
        products: Products | None = None,
    ) -> Iterator[tuple[int, T]]:
        """Calls `work(class, slice of the order, images, texts)` for every class that has rows, some at once."""
        order = self.order if order is None else order
        starts = self.starts if starts is None else starts
        return by_class(self.table, (self.step.image, self.step.text), order, starts, work, products)

    def _weight(self, size: int) -> float:
        """Returns the factor of the similarity of chosen pairs in a class."""
        share = self.budget / self.order.size if self.step.diversity == "share" else 1.0
        return clipcov.pair_weight(size, self.step.terms, share=share)

    def _sum(self, k: int, place: slice, images: Float32s, texts: Float32s) -> _Class:
        image_sum, text_sum = images.sum(0, np.float64), texts.sum(0, np.float64)
        size = len(images)
        text = 0.0 if self.vectors is None else float(text_sum @ self.vectors[k]) / size
        return _Class(size, image_sum, text_sum, 2 * float(image_sum @ text_sum) / size**2, text)

    def _alpha(self, classes: Sequence[_Class]) -> float:
        if "label" not in self.step.terms:
            return 0.0
        if self.step.alpha is not None:
            return self.step.alpha
        weights = [each.size for each in classes]
        cross = float(np.average([each.cross_modal for each in classes], weights=weights))
        text = float(np.average([each.text for each in classes], weights=weights))
        try:
            alpha = clipcov.measured_alpha(cross, text)
        except ValueError as error:
            raise RecipeError(f"clipcov: {error}") from error
        if alpha < 0:  # an encoder whose images and captions are far apart
            log.warning(
                "clipcov: alpha is %.3g, so the term 'label' keeps captions away from their class's name; "
                "give alpha, or leave the term out",
                alpha,
            )
        return alpha

    def _modular(self, classes: dict[int, _Class], alpha: float) -> Modular:
        """Returns the function that gives what each pair of a class is worth, whatever else is chosen."""
        d = len(next(iter(classes.values())).image_sum)
        images, texts = np.zeros((len(self.names), d)), np.zeros((len(self.names), d))
        for k, each in classes.items():
            images[k], texts[k] = each.centre
        # Of every class the sums (or means) over the other classes of their mean images and captions.
        scale = 1.0 if self.step.inter == "sum" else 1 / max(len(classes) - 1, 1)
        other_images, other_texts = (images.sum(0) - images) * scale, (texts.sum(0) - texts) * scale

        def modular(k: int, images: Float32s, texts: Float32s) -> Float64s:
            return clipcov.modular_gains(
                images,
                texts,
                terms=self.step.terms,
                label=None if self.vectors is None else self.vectors[k],
                alpha=alpha,
                others=(other_images[k], other_texts[k]),
                sums=(classes[k].image_sum, classes[k].text_sum),
                size=classes[k].size,
            )

        return modular

    def _greedy(self, modular: Modular, classes: dict[int, _Class]) -> tuple[dict[int, Picks], dict[int, Float64s]]:
        """Returns each class's choices down to a gain that `budget` choices reach, and their modular gains."""
        budget = self.budget
        floor = self._floor(modular, classes, budget)
        while True:

            def work(k: int, place: slice, images: Float32s, texts: Float32s, floor: float = floor) -> Any:
                gains = modular(k, images, texts)
                weight = self._weight(len(images))
                picks = clipcov.greedy(images, texts, gains, weight=weight, count=budget, floor=floor)
                return picks, gains[picks.rows]

            found = dict(self._classes(work))
            picks, gained = ({k: both[side] for k, both in found.items()} for side in (0, 1))
            reached = sum(len(each.rows) for each in picks.values())
            if reached >= budget or floor == -np.inf:
                return picks, gained
            # The floor was too high. Estimate a lower one; drop the floor if it cannot go lower.
            wider = int(budget * (2 - reached / budget)) + budget // 20
            lower = self._floor(modular, classes, wider)
            floor = lower if lower < floor else -np.inf

    def _floor(self, modular: Modular, classes: dict[int, _Class], budget: int) -> float:
        """Returns a gain that a little more than `budget` choices are likely to reach, from a share of the rows."""
        if budget > self.order.size // 2:
            return -np.inf
        stride = min(max(self.order.size // _SAMPLE, 1), _STRIDE)
        picked = [np.arange(a, b, stride) for a, b in zip(self.starts[:-1], self.starts[1:], strict=True)]
        starts = np.concatenate([[0], np.cumsum([len(each) for each in picked])]).astype(np.int64)

        def work(k: int, place: slice, images: Float32s, texts: Float32s) -> tuple[Float64s, Float64s]:
            weight = self._weight(classes[k].size)
            image, text = (mean.astype(np.float32) for mean in classes[k].centre)
            # One sampled row stands for several, and so does one choice.
            slope = stride * weight * (images @ text + texts @ image)
            base = modular(k, images, texts) - weight * clipcov.own_cosines(images, texts)
            return base, slope.astype(np.float64)

        found = [each for _, each in self._classes(work, self.order[np.concatenate(picked)], starts)]
        count = int(1.12 * budget / stride) + 20 // stride + 1
        return clipcov.floor_for([base for base, _ in found], [slope for _, slope in found], count)

    def _double_greedy(
        self, kind: Rows, rows: Rows, modular: Float64s, classes: dict[int, _Class], alpha: float, whole: Float64s
    ) -> tuple[NDArray[np.bool_], dict[str, Any]]:
        """Returns which choices stay, (m,) bool, and facts about them.

        `kind`, `rows` and `modular` are the class, row and modular gain of each choice, `whole` all rows' covariance.
        """
        in_classes = np.argsort(kind, kind="stable")
        starts = np.searchsorted(kind[in_classes], np.arange(len(self.names) + 1)).astype(np.int64)

        def work(k: int, place: slice, images: Float32s, texts: Float32s) -> Any:
            gains = modular[in_classes[place]]
            chosen = np.arange(len(gains))
            weight = self._weight(classes[k].size)
            stay = np.ones(len(gains), bool)
            if self.step.double_greedy:
                stay = clipcov.double_greedy(images, texts, gains, weight=weight, chosen=chosen)
            before = clipcov.objective(images, texts, gains, weight=weight, chosen=chosen)
            after = before
            if not stay.all():
                after = clipcov.objective(images, texts, gains, weight=weight, chosen=chosen[stay])
            error = None
            if count := int(np.count_nonzero(stay)):
                part = images[stay].sum(0, np.float64) / count, texts[stay].sum(0, np.float64) / count
                error = clipcov.centre_error(classes[k].centre, part)
            return place, stay, before, after, error

        stays = np.ones(len(rows), bool)
        before = after = 0.0
        errors = []
        for _, (place, stay, was, now, error) in self._classes(work, rows[in_classes], starts):
            stays[in_classes[place]] = stay
            before, after = before + was, after + now
            errors += [error] if error is not None else []
        if dropped := int(np.count_nonzero(~stays)):
            log.warning(
                "clipcov: double greedy dropped %d of %d pairs of the budget; 'double_greedy: false' keeps them all",
                dropped,
                len(rows),
            )
        products = Products(len(whole))
        kept = rows[in_classes][stays[in_classes]]
        products.add_stored([[self.table.vectors(name, kept) for name in (self.step.image, self.step.text)]])
        covariance = products.covariance()
        facts = {
            **self._counts(kind[stays]),
            "objective_greedy": before,
            "objective": after,
            "dropped_by_double_greedy": dropped,
            **({"alpha": alpha} if "label" in self.step.terms else {}),
            "covariance_error": clipcov.covariance_error(whole, covariance),
            "covariance_error_up_to_scale": clipcov.covariance_error(whole, covariance, up_to_scale=True),
        }
        return stays, facts | ({"class_centre_error": float(np.mean(errors))} if errors else {})

    def _counts(self, kind: Rows) -> dict[str, Any]:
        """Returns the pairs of each class and how many of them stay, the largest class first."""
        taken, sizes = np.bincount(kind, minlength=len(self.names)), np.diff(self.starts)
        held = np.flatnonzero(sizes)
        held = held[np.lexsort((held, -sizes[held]))].tolist()
        classes = [{"class": self.names[k], "pairs": int(sizes[k]), "kept": int(taken[k])} for k in held]
        return {"classes": classes, "classes_covered": int(np.count_nonzero(taken))}
