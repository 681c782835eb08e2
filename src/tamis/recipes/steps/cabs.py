"""CABS: batches that are composed by the concepts of their images, chosen before training."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tamis.core.arrays import Mask, Rows
from tamis.core.errors import RecipeError, at_least_one, brief, check_effect, check_fraction
from tamis.core.ids import scramble, seed_of_epoch
from tamis.core.math.order import round_half_up
from tamis.recipes.steps.outcome import Blockwise, IfMissing, ReadsColumns, Rule
from tamis.runs.reasons import Codes, DropReason
from tamis.runs.table import Table

_MOST = 10  # of the released code: once so many picks of a batch have a concept, no other pick has it

_AT_TARGET = -0.5  # of the released code: the gain of a concept that has reached its target


@dataclass(frozen=True, kw_only=True)
class Cabs(ReadsColumns, Blockwise):
    """Keeps batches that are composed by concepts (CABS): of each super-batch of random pairs those that fit together.

    The candidates in a random order are cut into super-batches, and a share of each is kept. Over several epochs pairs
    are kept as often as they are picked.

    Attributes:
        rule: "dm" (diversity maximisation, for classification): greedily the pair whose concepts the batch lacks most,
            by the mean of (t - n) / t + 1 / F over its concepts with n < t. n is how many picks have a concept, t how
            many should, F how many pairs of the pool have it. "fm" (frequency maximisation, for retrieval): the pairs
            with most concepts.
        concepts: a column of concepts separated by tabs, from the derived signal `concepts`, or as JSON lists.
        super_batch: pairs that compete; None: all pairs at once.
        share: how much of them to keep; the paper keeps 4,096 of 20,480. One step of training takes as many.
        target: t; None: what a super-batch keeps, over the number of its concepts, at least 1.
        epochs: how often every pair competes, each time with others.
        released: as the released code decides: t is at most 10, a concept that has reached its t counts -0.5, one
            that has 10 picks rules its other pairs out, F is counted in the super-batch; with both rules a concept that
            a pair's list repeats counts each time, such as each box of DataConcept-128M's classes.
        seed: another seed draws other super-batches.
        missing: what to do with pairs whose concepts are not known.

    Cost: with three concepts each 7 µs per pair; dm 16 µs more per pair and epoch. Memory: 200 bytes per pair.
    Source: Ghosh et al. 2025, CABS (arXiv 2511.20643), equations of diversity and frequency maximisation; and
        bethgelab/cabs at 222b2c2. It fills a batch that is too small at random, we in the order of the super-batch.
    """

    name: ClassVar[str] = "cabs"
    words = ("concepts",)
    rule: Literal["dm", "fm"] = "dm"
    concepts: str = "concepts"
    super_batch: int | None = 20_480
    share: float = 0.2
    target: int | None = None
    epochs: int = 1
    released: bool = False
    seed: int = 0
    missing: IfMissing = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        optional = {name: value for name in ("super_batch", "target") if (value := getattr(self, name)) is not None}
        at_least_one(epochs=self.epochs, **optional)
        if self.epochs > np.iinfo(np.uint16).max:
            raise ValueError(f"epochs must be at most {np.iinfo(np.uint16).max:,}, got {self.epochs:,}")
        check_fraction(self.share, "share")
        if self.rule == "fm":
            check_effect(self, "target", because="frequency maximisation has no targets")

    @property
    def described(self) -> str:
        often = f", {self.epochs} epochs" if self.epochs > 1 else ""
        among = f"every {self.super_batch:,}" if self.super_batch else "all pairs"
        return f"CABS-{self.rule.upper()} by {self.concepts}: {self.share:g} of {among}{often}"

    def fit(self, table: Table) -> Rule:
        self.check_columns(table)
        order = self.order(table)
        times = np.bincount(order, minlength=len(table)).astype(np.uint16)
        joined = {"times": times if self.epochs > 1 else None, "order": order}

        def decide(span: slice, read: dict[str, Any], candidates: Mask) -> Codes:
            lacking = read[self.concepts].is_null().to_numpy(zero_copy_only=False)
            return np.where(times[span] > 0, 0, np.where(lacking, 2, 1)).astype(np.uint8)

        return Rule(
            columns=[self.concepts],
            decide=decide,
            reasons=[
                DropReason(text="others fit their batch better"),
                DropReason(text=f"no value for {self.concepts}"),
            ],
            lacking=self.concepts,
            facts={"picks": int(order.size)},
            joined=lambda keep: joined,
        )

    def order(self, table: Table) -> Rows:
        """Returns the picked rows: super-batch after super-batch, in each as they are picked.

        Raises RecipeError if the column is JSON that holds no list of texts.
        """
        rows, ends, ids, count = self._read(table)
        size, picks = max(1, min(self.super_batch or rows.size, rows.size)), [np.zeros(0, np.int64)]
        frequency = np.bincount(ids, minlength=count)
        high, low = table.uids(rows)
        waiting = np.zeros(0, np.int64)  # of earlier epochs: too few for a super-batch, they are the first of the next
        for epoch in range(self.epochs):
            shuffled = np.argsort(scramble(high, low, seed_of_epoch(self.seed, epoch)), kind="stable")
            first = shuffled[~np.isin(shuffled, waiting)][: size - waiting.size]  # no pair twice in a super-batch
            waiting = np.concatenate([waiting, first, shuffled[~np.isin(shuffled, first)]])
            whole = waiting.size if epoch + 1 == self.epochs else waiting.size // size * size
            for start in range(0, whole, size):
                some = waiting[start : min(start + size, whole)]
                lengths = ends[some + 1] - ends[some]
                places = np.repeat(ends[some] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
                picks.append(rows[some[self._pick(ids[places], lengths, frequency)]])
            waiting = waiting[whole:]
        return np.concatenate(picks)

    def _pick(self, ids: Rows, lengths: Rows, frequency: NDArray[np.int64]) -> Rows:
        """Returns which samples of a super-batch to keep: `lengths` of the concepts `ids` belong to each sample."""
        count = round_half_up(self.share, lengths.size)
        if self.rule == "fm":
            return np.argsort(-lengths, kind="stable")[:count]
        here, numbers = np.unique(ids, return_inverse=True)
        target = np.full(here.size, self.target or max(1, count // max(1, here.size)))
        if self.released:
            once = np.unique(np.repeat(np.arange(lengths.size), lengths) * max(1, here.size) + numbers)
            frequency, target = np.bincount(once % max(1, here.size)), np.minimum(target, _MOST)
            if self.target is None:  # what the division leaves goes to the first concepts
                target[: count % max(1, here.size)] += count // max(1, here.size) in range(1, _MOST)
        else:
            frequency = frequency[here]
        flat, ends = numbers.tolist(), np.cumsum(lengths).tolist()
        concepts = [flat[start:end] for start, end in zip([0, *ends], ends, strict=False)]
        return np.array(diverse_picks(concepts, count, target.tolist(), frequency.tolist(), self.released), np.int64)

    def _read(self, table: Table) -> tuple[Rows, Rows, NDArray[np.int64], int]:
        """Returns rows with known concepts, (n + 1,) where the concepts of each begin, those, and how many there are.

        Concepts are numbered in the order of their names.
        """

        def split(span: slice, read: dict[str, Any]) -> tuple[Rows, Rows, Rows, list[str]]:
            words = read[self.concepts].cast(pa.string())
            inside = table.candidates_in(span) & words.is_valid().to_numpy(zero_copy_only=False)
            lists = pc.split_pattern(_as_tabs(words.filter(pa.array(inside)), self.concepts), "\t")
            of_row = np.repeat(np.arange(len(lists)), pc.list_value_length(lists).to_numpy())
            names = lists.flatten().dictionary_encode()
            pairs = of_row * max(1, len(names.dictionary)) + names.indices.to_numpy()
            pairs = pairs[pc.not_equal(lists.flatten(), "").to_numpy(False)]
            pairs = np.sort(pairs) if self.released else np.unique(pairs)
            of_row, codes = np.divmod(pairs, max(1, len(names.dictionary)))
            return span.start + np.flatnonzero(inside), of_row, codes, names.dictionary.to_pylist()

        blocks = [*table.map([self.concepts], split)]
        names = sorted({name for *_, own in blocks for name in own} - {""})
        numbers = {name: number for number, name in enumerate(names)} | {"": -1}
        rows, lengths, ids = [np.zeros(0, np.int64)], [np.zeros(1, np.int64)], [np.zeros(0, np.int64)]
        for found, of_row, codes, own in blocks:
            known = np.array([numbers[name] for name in own], np.int64)[codes]
            ids.append(known[np.lexsort((known, of_row))])
            lengths.append(np.bincount(of_row, minlength=found.size))
            rows.append(found)
        return np.concatenate(rows), np.cumsum(np.concatenate(lengths)), np.concatenate(ids), len(names)


def diverse_picks(
    concepts: Sequence[Sequence[int]],
    count: int,
    target: Sequence[int],
    frequency: Sequence[int],
    released: bool = False,
) -> list[int]:
    """Returns the places of up to `count` samples, each the one that a batch lacks most; of equals the first.

    A sample's gain is the mean over its concepts c of (target[c] - n[c]) / target[c] + 1 / frequency[c] where n[c], the
    picks that have c, is below target[c], else 0. No pick raises a gain, so a gain that was computed earlier bounds it:
    we look at the largest bound again until it is exact. `released`: see `Cabs`.

    Cost: a heap operation and a gain per look; with three concepts per sample about three looks per pick.
    """
    had, at_target = [0] * len(target), _AT_TARGET if released else 0.0
    worth = [1 + 1 / each for each in frequency]  # what another pick with a concept gains
    none = -math.inf if released else 0.0

    def gain(place: int) -> float:
        own = concepts[place]
        return sum([worth[concept] for concept in own]) / len(own) if own else none

    heap = [(-gain(place), place) for place in range(len(concepts))]
    heapq.heapify(heap)
    picks: list[int] = []
    while heap and len(picks) < count:
        bound, place = heap[0]
        now = -gain(place)
        if now > bound:
            heapq.heapreplace(heap, (now, place))
            continue
        heapq.heappop(heap)
        if now == math.inf:
            break
        picks.append(place)
        for c in concepts[place]:
            had[c] += 1
            worth[c] = (target[c] - had[c]) / target[c] + 1 / frequency[c] if had[c] < target[c] else at_target
            if released and had[c] >= _MOST:
                worth[c] = -math.inf
    if released and len(picks) < count:
        taken = set(picks)
        free = (place for place in range(len(concepts)) if place not in taken)
        picks += [place for place in free if all(had[c] < _MOST for c in concepts[place])][: count - len(picks)]
    return picks


def _as_tabs(words: Any, column: str) -> Any:
    """Returns texts whose concepts are separated by tabs: JSON lists, as pools have them, are joined."""
    if not pc.any(pc.starts_with(words, "[")).as_py():
        return words
    return pa.array(["\t".join(_list_in(text, column)) if text[:1] == "[" else text for text in words.to_pylist()])


def _list_in(text: str, column: str) -> list[str]:
    """Returns the texts of a JSON list, tabs in them replaced."""
    with suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(text), list) and all(isinstance(name, str) for name in found):
            escaped = (name.encode("utf-8", "backslashreplace").decode() for name in found)  # no lone surrogates
            return [name.replace("\t", " ") for name in escaped]
    raise RecipeError(f"cabs: {column} holds {brief(text)}, expected texts between tabs, or a JSON list of texts")
