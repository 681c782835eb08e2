"""ClipCov: the subset that together keeps the cross-covariance of the pool's images and captions."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import U64, Float32s, Float64s, Floats, Mask, Rows
from tamis.core.errors import RecipeError, RunError, check_effect
from tamis.core.files.scratch import put, stored
from tamis.core.ids import scramble
from tamis.core.math import clipcov
from tamis.core.math.clipcov import PARTS, TERMS, Picks
from tamis.core.math.similarity import unit_rows
from tamis.core.types import CLASS_NAMES, CLASS_VECTORS
from tamis.recipes.steps.clusters import BLOCK, check_widths, present, warn_of_single_rows
from tamis.recipes.steps.outcome import Blockwise, IfMissing, ReadsPool, Rule, check_missing, rule_by
from tamis.recipes.steps.steps import Of, budget_of, check_budget, groups_of, rows_of
from tamis.runs.regroup import Groups, Records, regroup
from tamis.runs.table import Table

log = logging.getLogger(__name__)

#: The column of classes that comes with embeddings of their names.
ZERO_SHOT = "zero_shot_class"

#: The floor of gains is estimated from one row in this many, of pools with at least so many rows for each.
_STRIDE, _LARGE = 10, 2_000

#: Rows whose unit rows are summed at once: they stay in the cache.
_FEW = 512

#: The covariance errors in the facts are of at most so many rows: in larger pools and subsets they are estimates.
_SAMPLE = 1 << 18


@dataclass(frozen=True, kw_only=True)
class ClipCov(ReadsPool, Blockwise):
    """Keeps the pairs that together preserve the cross-covariance of images and captions, class by latent class.

    A pair is worth what it adds to the chosen pairs: it is near many pairs of its class, its caption is near its
    image and its class's name, and it is unlike what is chosen. The greedy choice in each class is exact, classes are
    merged by gain, and double greedy drops what does not help.

    Attributes:
        fraction: the budget as a share of `of`, in [0, 1]; or
        n: the budget in pairs.
        of: "survivors": a share of the candidates; "pool": of all rows.
        image, text: columns of stored embeddings of one model (DataComp: l14_img and l14_txt).
        per: a column of words or numbers (`cluster`) that are the latent classes. The term "label" needs embeddings of
            their names, which only the signal `zero_shot_class` keeps: leave it out with other columns.
        terms: which terms of the objective count (Table 3 of the paper): cov, label, class_reg, inter. "cov" is "class"
            (how central a pair is in its class and how unlike the choice) and "self" (the cosine of its image and
            caption), which can be named separately.
        alpha: weight of "label"; None: mean cross-modal similarity (definition 4.1) of two pairs of a class, divided by
            the mean similarity of a caption and its class's name. The paper finds about 1/2.
        inter: how the similarities to the other classes add up: "mean", the average that the paper speaks of, or
            "sum", equation 34 as printed, which outweighs the other terms if there are many classes.
        diversity: how much the similarity to chosen pairs counts against a pair: "paper", as in equation 28; "share":
            divided by the chosen fraction. The centres of the classes move less, but a smaller choice is not a prefix
            of a larger one.
        double_greedy: drop what lowers the objective; the subset may come out below its budget.
        missing: what to do with rows that lack an embedding, or a class.

    Cost: O(n d), without a matrix of similarities; docs/performance.md.

    Source: Joshi et al. 2024, "Data-efficient contrastive language-image pretraining" (AISTATS, arXiv 2403.12267),
        equations 23 to 36 and algorithm 1.
    """

    name: ClassVar[str] = "clipcov"
    vectors, groups = ("image", "text"), ("per",)
    fraction: float | None = None
    n: int | None = None
    of: Of = "survivors"
    image: str = "image_embedding"
    text: str = "text_embedding"
    per: str = ZERO_SHOT
    terms: tuple[str, ...] = TERMS
    alpha: float | None = None
    inter: Literal["mean", "sum"] = "mean"
    diversity: Literal["paper", "share"] = "paper"
    double_greedy: bool = True
    missing: IfMissing = "error"

    def __post_init__(self) -> None:
        check_budget(self)
        super().__post_init__()
        if self.alpha is not None and not math.isfinite(self.alpha):
            raise ValueError(f"alpha is a number, got {self.alpha}")
        if (wrong := [term for term in self.terms if term not in TERMS + PARTS]) or not self.terms:
            got = f"got {wrong[0]!r}" if wrong else "got none"
            raise ValueError(f"terms are some of {', '.join(TERMS)}, or class or self instead of cov; {got}")
        if "cov" in self.terms and set(PARTS) & set(self.terms):
            raise ValueError(f"'cov' is class and self together: write one or the other, got {', '.join(self.terms)}")
        if "label" in self.terms and self.per.rpartition(".")[2] != ZERO_SHOT:
            raise ValueError(
                f"the term 'label' compares captions with class names, whose embeddings only the signal {ZERO_SHOT} "
                f"keeps: with per: {self.per} leave it out (terms: [cov, class_reg, inter])"
            )
        for term, setting in (("label", "alpha"), ("inter", "inter")):
            if term not in self.terms:
                check_effect(self, setting, because=f"the terms are {', '.join(self.terms)}, without {term!r}")
        if not {"cov", "class"} & set(self.terms):
            check_effect(self, "diversity", because=f"no term of {', '.join(self.terms)} compares chosen pairs")

    @property
    def described(self) -> str:
        budget = f"{self.n:,} pairs" if self.fraction is None else f"{100 * self.fraction:g} % of the {self.of}"
        terms = "" if set(self.terms) == set(TERMS) else f" ({', '.join(self.terms)} only)"
        diversity = ", diversity by share" if self.diversity == "share" else ""
        return f"ClipCov: {budget} by classes of {self.per}{terms}{diversity}"

    @property
    def _pair(self) -> tuple[str, str]:
        return self.image, self.text

    @property
    def _needed(self) -> str:
        return f"{self.image} and {self.text} and {self.per}"

    def fit(self, table: Table) -> Rule:
        ranking = self.rank(table)
        keep = stored(len(table), bool)
        put(keep, ranking.rows[ranking.stays], True)
        cut, lacks = float(ranking.gains.min()) if len(ranking.gains) else None, lambda span: ranking.labels[span] < 0
        return rule_by(self, keep.__getitem__, lacks, "adds less", cut, what=self._needed, facts=ranking.facts)

    def rank(self, table: Table) -> Ranking:
        """Returns the choice as a ranking with gains: the ranking for a smaller budget is a prefix of it.

        With `diversity: share` it is not a prefix, because the objective depends on the budget.

        Raises:
            RecipeError: the embeddings are missing or do not fit one another, or rows lack them or a class.
        """
        self.check_columns(table)
        vectors = self._class_vectors(table) if "label" in self.terms else None
        self._check_sizes(table, vectors)
        labels, names, sizes = classes_of(table, self.per, self._pair, table.side_file(self.per, CLASS_NAMES))
        candidates = rows_of(table, "survivors")
        check_missing(self, candidates - sizes.sum(), candidates, self._needed)  # before the work, not after it
        most = min(budget_of(self, table), int(sizes.sum()))
        if most == 0:
            return Ranking(np.empty(0, np.int64), np.empty(0), np.empty(0, bool), labels)
        dealt = regroup(table, self._pair, labels, len(names))
        return _Work(self, table, dealt, names, vectors, most).ranking(labels)

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
        none = np.empty(0, np.int64)
        sizes = {name: table.vectors(name, none).shape[1] for name in self._pair if len(table)}
        sizes |= {} if names is None or not len(table) else {"the class names": names.shape[1]}
        check_widths(self.name, sizes)


@dataclass(frozen=True)
class Ranking:
    """The pairs that ClipCov takes, best first.

    Attributes:
        rows: (m,) row numbers of the table in the order in which they were taken.
        gains: (m,) by how much each raised the objective.
        stays: (m,) bool: False where double greedy dropped the pair again.
        labels: (rows,) int32, the class of each candidate, -1 without an embedding or class; an array, or `stored`.
        facts: sizes of the classes and their numbers of taken pairs, objective, alpha, covariance error, and error of
            the class centres.
    """

    rows: Rows
    gains: Float64s
    stays: NDArray[np.bool_]
    labels: Any
    facts: dict[str, Any] = field(default_factory=dict)


def classes_of(
    table: Table, column: str, needed: Sequence[str], listed: Sequence[str] | None = None
) -> tuple[Any, tuple[str, ...], Rows]:
    """Returns the class of each candidate, -1 if it has none or lacks a vector, the classes' names, and their sizes.

    A number is named with the fewest digits that identify it (1000001, 0.1). `needed` are columns of vectors, `listed`
    all names in the order of their classes (None: the names in the column, sorted); another name raises RunError.
    """
    values, _, codes_of = groups_of(table, column)
    words = [v if isinstance(v, str) else np.format_float_positional(np.float32(v), trim="-") for v in values]
    names = tuple(listed or sorted(set(words)))
    numbers = {word: number for number, word in enumerate(names)}
    known = np.array([*(numbers.get(word, len(names)) for word in words), -1], np.int32)
    missed: set[str] = set()

    def work(span: slice, columns: dict[str, Any], candidates: Mask) -> tuple[slice, NDArray[np.int32], Rows]:
        there = np.logical_and.reduce([candidates, *(present(columns[name]) for name in needed)])
        codes = codes_of(columns[column])
        found = np.where(there, known[codes], np.int32(-1))
        return span, found, np.unique(codes[found == len(names)])

    labels, sizes = stored(len(table), np.int32), np.zeros(len(names) + 1, np.int64)
    for span, found, unknown in table.scan(sorted({column, *needed}), work):
        labels[span] = found
        sizes += np.bincount(found[found >= 0], minlength=sizes.size)
        missed.update(words[code] for code in unknown.tolist())
    if missed:
        raise RunError(
            f"clipcov: the column {column!r} holds {min(missed)!r}, which is not among the {len(names):,} class names "
            "stored with it: this column and the stored class list do not match. `tamis check RUN` finds damaged files"
        )
    return labels, names, sizes[:-1]


def _sums(step: ClipCov, stride: int, k: int, places: slice, rows: Records, _: None) -> Any:
    """Returns the class, the sums of the unit rows of its images and of its captions, and row numbers of a sample."""

    def total(side: Floats) -> Float64s:
        some = [unit_rows(side[at : at + _FEW]).sum(0, np.float64) for at in range(0, len(side), _FEW)]
        return np.asarray(np.sum(some, axis=0), np.float64)

    sample = rows["row"][-places.start % stride :: stride].copy()  # or all of the rows would stay in memory
    return k, (total(rows["vectors"][step.image]), total(rows["vectors"][step.text])), sample


@dataclass(frozen=True)
class _Class:
    """What the choices in a class depend on besides its rows: the weight of the similarity of chosen pairs, name and
    alpha, sums of the other classes' means, and its own sums and size.
    """

    weight: float
    label: Float32s | None
    alpha: float
    others: tuple[Float64s, Float64s]
    whole: tuple[Float64s, Float64s, int]


@dataclass(frozen=True)
class _Choices:
    """The choices in class k, best first: places in the class, gains, modular gains, row numbers, scrambled uids."""

    k: int
    picks: Picks
    modular: Float64s
    rows: Rows
    ties: U64


def _pick(
    step: ClipCov, count: int, floor: float, each: int, k: int, places: slice, rows: Records, given: _Class
) -> _Choices:
    """Returns a class's choices with gains >= `floor`. Every `each`-th row takes part, and counts so many times."""
    rows = rows[::each]
    images, texts = (unit_rows(rows["vectors"][name]) for name in (step.image, step.text))
    modular = clipcov.modular_gains(
        images, texts, terms=step.terms, label=given.label, alpha=given.alpha, others=given.others, whole=given.whole
    )
    picks = clipcov.greedy(images, texts, modular, weight=each * given.weight, count=count, floor=floor)
    row, high, low = (rows[name][picks.rows] for name in ("row", "high", "low"))
    return _Choices(k, picks, modular[picks.rows], row, scramble(high, low))


def _drop_again(step: ClipCov, k: int, places: slice, rows: Records, given: tuple[_Class, Rows, Float64s]) -> Any:
    """Returns the class, which of its choices stay, the objective before and after, and the error of its centre."""
    known, chosen, gains = given
    images, texts = (unit_rows(rows["vectors"][name][chosen]) for name in (step.image, step.text))
    weight, every, stay = known.weight, np.arange(len(gains)), np.ones(len(gains), bool)
    if step.double_greedy:
        stay = clipcov.double_greedy(images, texts, gains, weight=weight, chosen=every)
    before, after = (
        clipcov.objective(images, texts, gains, weight=weight, chosen=some) for some in (every, every[stay])
    )
    error = None
    if count := int(np.count_nonzero(stay)):
        image_sum, text_sum, size = known.whole
        part = images[stay].sum(0, np.float64) / count, texts[stay].sum(0, np.float64) / count
        error = clipcov.centre_error((image_sum / size, text_sum / size), part)
    return k, stay, before, after, error


class _Work:
    """One selection. The embeddings are read class by class; of each class only sums are kept."""

    def __init__(
        self, step: ClipCov, table: Table, dealt: Groups, names: Sequence[str], vectors: Float32s | None, budget: int
    ) -> None:
        """`dealt` are the rows by class, `vectors` the embeddings of the classes' names."""
        self.step, self.table, self.dealt, self.names, self.budget = step, table, dealt, names, budget
        self.sizes = np.diff(dealt.starts)
        advice = "take a shorter list of classes, or clusters (per: cluster, terms: [cov, class_reg, inter])"
        warn_of_single_rows(self.sizes, f"clipcov, classes of {step.per}", advice)
        found = list(dealt.scan(partial(_sums, step, max(-(-len(dealt) // _SAMPLE), 1))))
        sums = {k: each for k, each, _ in found}
        self.sample = np.concatenate([rows for *_, rows in found])
        self.alpha = self._alpha(sums, vectors) if vectors is not None else 0.0
        means = np.zeros((2, len(names), len(next(iter(sums.values()))[0])))  # of images and captions
        for k, (image_sum, text_sum) in sums.items():
            means[:, k] = image_sum / self.sizes[k], text_sum / self.sizes[k]
        # For each class: the sums (or means) of the mean images and captions of the other classes.
        scale = 1.0 if step.inter == "sum" else 1 / max(len(sums) - 1, 1)
        others = [(each.sum(0) - each) * scale for each in means]
        share = budget / len(dealt) if step.diversity == "share" else 1.0
        self.classes = {
            k: _Class(
                clipcov.pair_weight(int(self.sizes[k]), step.terms, share=share),
                None if vectors is None else vectors[k],
                self.alpha,
                (others[0][k], others[1][k]),
                (*each, int(self.sizes[k])),
            )
            for k, each in sums.items()
        }

    def ranking(self, labels: Any) -> Ranking:
        """Returns the choice."""
        for margin in (1.12, 1.6, math.inf):  # the floor of gains was too high if too few pairs reach it
            found = self._picks(self.budget, self._floor(margin * self.budget))
            if sum(len(each.rows) for each in found) >= self.budget:
                break
        order = clipcov.merge([each.picks for each in found], [each.ties for each in found], self.budget)
        kind = np.repeat([each.k for each in found], [len(each.rows) for each in found])[order]
        rows, inside, gains, modular = (
            np.concatenate(parts)[order]
            for parts in zip(
                *((each.rows, each.picks.rows, each.picks.gains, each.modular) for each in found), strict=True
            )
        )
        stays, facts = self._double_greedy(kind, rows, inside, modular)
        return Ranking(rows, gains, stays, labels, facts)

    def _alpha(self, sums: dict[int, tuple[Float64s, Float64s]], vectors: Float32s) -> float:
        """Returns the weight of "label": average cross-modal similarity divided by average similarity in text.

        Each pair has the same weight (definition 4.1); the paper's footnote finds a ratio of about 1/2.
        """
        if self.step.alpha is not None:
            return self.step.alpha
        sizes = [int(self.sizes[k]) for k in sums]
        pairs, labels = [], []
        for (k, (image_sum, text_sum)), size in zip(sums.items(), sizes, strict=True):
            pairs.append(2 * float(image_sum @ text_sum) / size**2)
            labels.append(float(text_sum @ vectors[k]) / size)
        cross, text = (float(np.average(each, weights=sizes)) for each in (pairs, labels))
        if not text > 0:
            raise RecipeError(
                f"clipcov: captions have a mean cosine of {text:.3g} with their labels: set alpha yourself"
            )
        if cross < 0:  # an encoder whose images and captions are far apart
            log.warning(
                "clipcov: alpha is %.3g, so the term 'label' keeps captions away from their class's name; "
                "give alpha, or leave the term out",
                cross / text,
            )
        return cross / text

    def _picks(self, count: int, floor: float, each: int = 1) -> list[_Choices]:
        """Returns the choices of every class: see `_pick`."""
        return list(self.dealt.scan(partial(_pick, self.step, count, floor, each), self.classes))

    def _floor(self, count: float, stride: int = _STRIDE) -> float:
        """Returns a lower bound on useful gains, so that each class can stop early. A wrong one costs only time.

        It is the last gain in a choice of about `count` pairs, estimated from one row in `stride`, whose floor is
        estimated from fewer.
        """
        if len(self.dealt) < stride * _LARGE or count > len(self.dealt) // 2:
            return -math.inf
        few = int(count / stride) + 1
        floor = self._floor(1.5 * count, stride * _STRIDE)
        found = self._picks(few, floor, stride)
        gains = np.concatenate([np.minimum.accumulate(each.picks.gains) for each in found])
        return float(np.sort(gains)[::-1][:few][-1]) if gains.size >= few else floor

    def _covariance(self, rows: Rows) -> Float64s:
        """Returns the cross-covariance of rows, class after class: of at most `_SAMPLE`, as many of each class's."""
        some = rows[:: max(-(-rows.size // _SAMPLE), 1)]
        stored = [self.table.vectors(name, some) for name in (self.step.image, self.step.text)]
        d = stored[0].shape[1]
        products, sums = np.zeros((d, d)), np.zeros((2, d))
        for start in range(0, some.size, BLOCK):
            images, texts = (unit_rows(side[start : start + BLOCK]) for side in stored)
            products += images.T @ texts
            sums += images.sum(0, np.float64), texts.sum(0, np.float64)
        return clipcov.covariance(products, sums[0], sums[1], some.size)

    def _double_greedy(self, kind: Rows, rows: Rows, inside: Rows, modular: Float64s) -> tuple[Mask, dict[str, Any]]:
        """Returns which choices stay, (m,) bool, and the facts; the arguments are of each choice: its class, row, place
        in the class, and modular gain.
        """
        in_classes = np.argsort(kind, kind="stable")
        starts = np.searchsorted(kind[in_classes], np.arange(len(self.names) + 1)).tolist()
        # Each class decides alone, with its means fixed, so its vectors are read once.
        own = {k: in_classes[starts[k] : starts[k + 1]] for k in self.classes if starts[k] < starts[k + 1]}
        given = {k: (self.classes[k], inside[some], modular[some]) for k, some in own.items()}
        stays, errors = np.ones(len(rows), bool), []
        before = after = 0.0
        for k, stay, was, now, error in self.dealt.scan(partial(_drop_again, self.step), given):
            stays[own[k]] = stay
            before, after = before + was, after + now
            errors += [error] if error is not None else []
        if dropped := int(np.count_nonzero(~stays)):
            log.warning(
                "clipcov: double greedy dropped %d of %d pairs of the budget; 'double_greedy: false' keeps them all",
                dropped,
                len(rows),
            )
        # The whole pool and the subset, through one pass each: how far the cross-covariances are apart.
        whole, part = map(self._covariance, (self.sample, rows[in_classes][stays[in_classes]]))
        taken = np.bincount(kind[stays], minlength=len(self.names))
        largest_first = np.argsort(-self.sizes, kind="stable")[: np.count_nonzero(self.sizes)].tolist()
        return stays, {
            "classes": [
                {"class": self.names[k], "pairs": int(self.sizes[k]), "kept": int(taken[k])} for k in largest_first
            ],
            "classes_covered": int(np.count_nonzero(taken)),
            "objective_greedy": before,
            "objective": after,
            "dropped_by_double_greedy": dropped,
            **({"alpha": self.alpha} if "label" in self.step.terms else {}),
            "covariance_error": clipcov.covariance_error(whole, part),
            "covariance_error_up_to_scale": clipcov.covariance_error(whole, part, up_to_scale=True),
            **({"class_centre_error": float(np.mean(errors))} if errors else {}),
        }
