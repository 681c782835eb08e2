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
from tamis.core.ids import scramble
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
        super_batch: pairs that compete.
        fraction: the share of them to keep; the paper keeps 4,096 of 20,480. One step of training takes as many.
        target: t; None: what a super-batch keeps, over the number of its concepts, at least 1.
        epochs: how often every pair competes, each time with others.
        released: as the released code decides: t is at most 10, a concept that has reached its t counts -0.5, one
            that has 10 picks rules its other pairs out, F is counted in the super-batch.
        seed: another seed draws other super-batches.
        missing: what to do with pairs whose concepts are not known.

    Cost: 25 µs per pair and epoch. Memory: 40 bytes per pair, and its concepts.
    Source: Ghosh et al. 2025, CABS (arXiv 2511.20643), equations of diversity and frequency maximisation; and
        bethgelab/cabs at 222b2c2. It fills a batch that is too small at random, we in the order of the super-batch.
    """

    name: ClassVar[str] = "cabs"
    words = ("concepts",)
    rule: Literal["dm", "fm"] = "dm"
    concepts: str = "concepts"
    super_batch: int = 20_480
    fraction: float = 0.2
    target: int | None = None
    epochs: int = 1
    released: bool = False
    seed: int = 0
    missing: IfMissing = "error"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(super_batch=self.super_batch, epochs=self.epochs, target=self.target or 1)
        if self.epochs > np.iinfo(np.uint16).max:
            raise ValueError(f"epochs must be at most {np.iinfo(np.uint16).max:,}, got {self.epochs:,}")
        check_fraction(self.fraction)
        if self.rule == "fm":
            check_effect(self, "target", "released", because="frequency maximisation has no targets")

    @property
    def described(self) -> str:
        often = f", {self.epochs} epochs" if self.epochs > 1 else ""
        return f"CABS-{self.rule.upper()} by {self.concepts}: {self.fraction:g} of every {self.super_batch:,}{often}"

    def fit(self, table: Table) -> Rule:
        self.check_columns(table)
        order = self.order(table)
        times = np.bincount(order, minlength=len(table)).astype(np.uint16)
        joined = {"times": times} if self.epochs > 1 else {}

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
            facts={"picks": int(order.size), "batch": round_half_up(self.fraction, self.super_batch)},
            joined=(lambda keep: joined) if joined else None,
        )

    def order(self, table: Table) -> Rows:
        """Returns the picked rows: super-batch after super-batch, in each as they are picked.

        Raises RecipeError if the column is JSON that holds no list of texts.
        """
        rows, ends, ids, count = self._read(table)
        keep, picks = round_half_up(self.fraction, self.super_batch), []
        frequency = np.bincount(ids, minlength=count)
        high, low = table.uids(rows)
        for epoch in range(self.epochs):
            shuffled = np.argsort(scramble(high, low, self.seed + epoch), kind="stable")
            for start in range(0, rows.size, self.super_batch):
                some = shuffled[start : start + self.super_batch]
                own = [ids[ends[place] : ends[place + 1]] for place in some.tolist()]
                most = keep if some.size == self.super_batch else round_half_up(self.fraction, some.size)
                picks.append(rows[some[self._pick(own, most, frequency)]])
        return np.concatenate([np.zeros(0, np.int64), *picks])

    def _pick(self, concepts: Sequence[NDArray[np.int64]], count: int, frequency: NDArray[np.int64]) -> list[int]:
        """Returns the places of `count` picks of a super-batch."""
        if self.rule == "fm":
            return sorted(range(len(concepts)), key=lambda place: -len(concepts[place]))[:count]
        here, numbers = np.unique(np.concatenate(concepts), return_inverse=True)
        parts = np.split(numbers, np.cumsum([len(each) for each in concepts])[:-1])
        target = np.full(here.size, self.target or max(1, count // max(1, here.size)))
        if self.released:
            frequency, target = np.bincount(numbers), np.minimum(target, _MOST)
            target[: count % max(1, here.size)] += count // max(1, here.size) in range(1, _MOST)
        else:
            frequency = frequency[here]
        return diverse_picks(
            [each.tolist() for each in parts], count, target.tolist(), frequency.tolist(), self.released
        )

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
            pairs = np.stack([of_row, names.indices.to_numpy()])[:, pc.not_equal(lists.flatten(), "").to_numpy(False)]
            return span.start + np.flatnonzero(inside), *np.unique(pairs, axis=1), names.dictionary.to_pylist()

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
    had, reached = [0] * len(target), _AT_TARGET if released else 0.0

    def gain(place: int) -> float:
        own = concepts[place]
        if not own or (released and any(had[concept] >= _MOST for concept in own)):
            return -math.inf if released else 0.0
        each = ((target[c] - had[c]) / target[c] + 1 / frequency[c] if had[c] < target[c] else reached for c in own)
        return sum(each) / len(own)

    heap = [(-gain(place), place) for place in range(len(concepts))]
    heapq.heapify(heap)
    picks: list[int] = []
    while heap and len(picks) < count:
        bound, place = heapq.heappop(heap)
        now = -gain(place)
        if now == math.inf:
            continue
        if now > bound:
            heapq.heappush(heap, (now, place))
            continue
        picks.append(place)
        for concept in concepts[place]:
            had[concept] += 1
    if released and len(picks) < count:
        taken = set(picks)
        free = (place for place in range(len(concepts)) if place not in taken)
        picks += [place for place in free if all(had[concept] < _MOST for concept in concepts[place])][
            : count - len(picks)
        ]
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
            return [name.replace("\t", " ") for name in found]
    raise RecipeError(f"cabs: {column} holds {brief(text)}, expected texts between tabs, or a JSON list of texts")
