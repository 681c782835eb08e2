"""CABS: the greedy choice by hand and against a slow one, super-batches, epochs, and how concepts are read."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.core.errors import RecipeError
from tamis.core.ids import scramble, seed_of_epoch
from tamis.recipes.steps import Cabs
from tamis.recipes.steps.cabs import diverse_picks
from tamis.recipes.steps.outcome import run_steps
from tamis.runs.table import MemoryTable


def slowly(concepts: list[list[int]], count: int, target: list[int], frequency: list[int], released: bool) -> list[int]:
    """Computes all gains again for each pick, straight from the formulas."""
    had, picks = [0] * len(target), list[int]()

    def gain(place: int) -> float:
        own = concepts[place]
        if released and (not own or max(had[c] for c in own) >= 10):
            return float("-inf")
        total = 0.0
        for c in own:
            total += (target[c] - had[c]) / target[c] + 1 / frequency[c] if had[c] < target[c] else -0.5 * released
        return total / len(own) if own else 0.0

    while len(picks) < count:
        gains = {place: gain(place) for place in range(len(concepts)) if place not in picks}
        best = max(gains, key=lambda place: (gains[place], -place), default=None)
        if best is None or gains[best] == float("-inf"):
            break
        picks.append(best)
        for c in concepts[best]:
            had[c] += 1
    if released:
        free = [place for place in range(len(concepts)) if place not in picks]
        picks += [place for place in free if all(had[c] < 10 for c in concepts[place])][: count - len(picks)]
    return picks


def test_the_greedy_choice_by_hand() -> None:
    """Dogs 0, cats 1; t is 1 and F is 3 and 1. First gains: dog 1 + 1/3, cat 1 + 1 = 2, both (4/3 + 2) / 2 = 5/3.

    The cat is first. Then both is worth (4/3 + 0) / 2 = 2/3, less than a dog, 4/3. Then nothing is worth anything.
    """
    concepts = [[0], [0, 1], [0], [1]]
    assert diverse_picks(concepts, 2, [1, 1], [3, 1]) == [3, 0]
    assert diverse_picks(concepts, 4, [1, 1], [3, 1]) == [3, 0, 1, 2]
    assert diverse_picks(concepts, 9, [1, 1], [3, 1]) == [3, 0, 1, 2]
    assert diverse_picks([[], [0]], 2, [1], [1]) == [1, 0]  # without a concept: no gain


@given(
    concepts=st.lists(st.lists(st.integers(0, 5), max_size=3, unique=True), max_size=40),
    target=st.lists(st.integers(1, 4), min_size=6, max_size=6), count=st.integers(0, 45), released=st.booleans(),
)  # fmt: skip
def test_the_greedy_choice_is_the_slow_one(
    concepts: list[list[int]], target: list[int], count: int, released: bool
) -> None:
    frequency = [max(1, sum(concept in own for own in concepts)) for concept in range(6)]
    arguments = (concepts, count, target, frequency, released)
    assert diverse_picks(*arguments) == slowly(*arguments)


def table_of(names: list[Any], block: int = 1 << 20, column: str = "concepts") -> MemoryTable:
    return MemoryTable({column: names}, block=block)


def drawn(rows: int) -> list[Any]:
    rng = np.random.default_rng(3)
    named = [[f"c{number}" for number in rng.choice(12, rng.integers(0, 4), replace=False)] for _ in range(rows)]
    return ["\t".join(each) for each in named]


@pytest.mark.parametrize("released", [False, True])
def test_each_super_batch_keeps_its_share_in_the_order_of_the_picks(released: bool) -> None:
    names = drawn(230)
    step = Cabs(super_batch=100, share=0.2, released=released, seed=5)
    orders = [step.order(table_of(names, block)) for block in (7, 100, 1 << 20)]
    assert [order.tolist() for order in orders] == [orders[0].tolist()] * 3
    table = table_of(names)
    shuffled = np.argsort(scramble(*table.uids(np.arange(230)), 5), kind="stable")
    numbers = {
        name: number for number, name in enumerate(sorted({n for each in names for n in each.split("\t")} - {""}))
    }
    expected: list[int] = []
    for start, count in ((0, 20), (100, 20), (200, 6)):  # the last super-batch has 30 pairs
        some = shuffled[start : start + 100]
        own = [sorted(numbers[name] for name in names[row].split("\t") if name) for row in some]
        inside = [sum(number in each for each in own) for number in range(12)]
        whole = [sum(name in each.split("\t") for each in names) for name in numbers]
        base, rest = divmod(count, 12)
        plain = [max(1, base)] * 12
        target = [max(1, min(10, base + (number < rest))) for number in range(12)] if released else plain
        expected += some[slowly(own, count, target, inside if released else whole, released)].tolist()
    assert orders[0].tolist() == expected
    found = step.select(table)
    assert np.flatnonzero(found.keep).tolist() == sorted(expected)
    assert found.times is None
    assert found.facts == {"picks": 46}


def test_a_target_of_ones_own_is_that_of_every_concept_in_the_released_rule_too() -> None:
    """Of 4 a and 4 b five are kept: with t 2 the fifth has no concept below its t, so the first in order is next."""
    names = ["a"] * 4 + ["b"] * 4
    table = table_of(names)
    shuffled = np.argsort(scramble(*table.uids(np.arange(8)), 0), kind="stable").tolist()
    own = [[0 if names[row] == "a" else 1] for row in shuffled]
    for share, count in ((0.625, 5), (0.875, 7)):
        order = Cabs(share=share, target=2, released=True).order(table).tolist()
        assert order == [shuffled[place] for place in slowly(own, count, [2, 2], [4, 4], True)]
        assert order != [shuffled[place] for place in slowly(own, count, [3, 2], [4, 4], True)]


def test_frequency_maximisation_keeps_pairs_with_most_concepts() -> None:
    names = ["a", "a\tb\tc", "", "a\ta\ta\ta", "b\tc", "a\tb\tc\td"]
    order = Cabs(rule="fm", super_batch=6, share=0.5).order(table_of(names))
    assert order.tolist() == [5, 1, 4]
    with pytest.raises(ValueError, match="no targets"):
        Cabs(rule="fm", target=3)


def test_the_released_rules_count_each_time_that_a_list_has_a_concept() -> None:
    """As DataConcept-128M's classes, which have one for each box: the released code makes no sets of them."""
    rng = np.random.default_rng(5)
    lists = [[f"c{number}" for number in rng.choice(4, rng.integers(0, 6))] for _ in range(60)]
    table = table_of([json.dumps(each) for each in lists])
    shuffled = np.argsort(scramble(*table.uids(np.arange(60)), 0), kind="stable").tolist()
    own = [sorted(int(name[1:]) for name in lists[row]) for row in shuffled]
    inside = [sum(number in each for each in own) for number in range(4)]
    picks = slowly(own, 12, [3] * 4, inside, True)
    assert Cabs(released=True).order(table).tolist() == [shuffled[place] for place in picks]
    longest = sorted(shuffled, key=lambda row: -len(lists[row]))[:12]
    assert Cabs(rule="fm", released=True).order(table).tolist() == longest
    most = sorted(shuffled, key=lambda row: -len({*lists[row]}))[:12]
    assert Cabs(rule="fm").order(table).tolist() == most


def test_epochs_compete_anew_and_pairs_are_kept_as_often_as_they_are_picked() -> None:
    table = table_of(drawn(200))
    step = Cabs(super_batch=50, share=0.4, epochs=3)
    order = step.order(table)
    alone = [Cabs(super_batch=50, share=0.4, seed=seed_of_epoch(0, epoch)).order(table) for epoch in range(3)]
    assert order.tolist() == np.concatenate(alone).tolist()
    found = run_steps(table, [step])
    assert found.times is not None
    assert found.times.tolist() == np.bincount(order, minlength=200).tolist()
    assert found.funnel[0]["times"] == 240
    assert set(found.times.tolist()) == {0, 1, 2, 3}


def test_only_candidates_compete_and_unknown_concepts_are_dropped_if_that_is_said() -> None:
    names = ["a", None, "b", "a"]
    with pytest.raises(RecipeError, match="1 of 4 rows have no value for 'concepts'"):
        Cabs(share=1.0).select(table_of(names))
    found = Cabs(share=1.0, missing="drop").select(table_of(names))
    assert (found.keep.tolist(), found.counts["missing"]) == ([True, False, True, True], 1)
    some = table_of(names).with_candidates(np.array([True, True, False, False]))
    assert Cabs(share=1.0, missing="drop").select(some).keep.tolist() == [True, False, False, False]
    none = table_of(names).with_candidates(np.zeros(4, bool))
    assert Cabs().select(none).keep.tolist() == [False] * 4


def test_json_lists_of_pools_are_read_as_tabs_are() -> None:
    tabs, lists = ["dog\tcat", "", "cat", "[x]"], ['["dog", "cat", "dog"]', "[]", '["cat"]', "[x]"]
    step = Cabs(super_batch=4, share=0.5, concepts="classes")
    assert (
        step.order(table_of(tabs[:3], column="classes")).tolist()
        == step.order(table_of(lists[:3], column="classes")).tolist()
    )
    for wrong in ("[1]", '[["a"]]'):
        with pytest.raises(RecipeError, match="a JSON list of texts"):
            step.select(table_of([wrong], column="classes"))
    with pytest.raises(RecipeError, match="a JSON list of texts"):
        step.select(table_of(lists, column="classes"))
    halves = ['["\\ud83d"]', '["\\ud83d", "\\udc15"]']  # of a pair of surrogates, which UTF-8 cannot encode
    assert Cabs(rule="fm", share=0.5).order(table_of(halves)).tolist() == [1]


def test_settings_below_one_are_errors() -> None:
    for setting in ("super_batch", "target", "epochs"):
        with pytest.raises(ValueError, match=f"{setting} must be at least 1, got 0"):
            Cabs(**{setting: 0})


def test_what_is_left_of_an_epoch_is_the_first_of_the_next_and_no_super_batch_has_a_pair_twice() -> None:
    table = table_of(drawn(230))
    order = Cabs(super_batch=100, share=1.0, epochs=3).order(table)
    assert np.bincount(order, minlength=230).tolist() == [3] * 230
    batches = [order[start : start + 100] for start in range(0, 690, 100)]
    assert [np.unique(batch).size for batch in batches] == [100] * 6 + [90]
    last = np.argsort(scramble(*table.uids(np.arange(230)), 0), kind="stable")[200:]
    assert {*last.tolist()} <= {*batches[2].tolist()}
    small = Cabs(share=0.5, epochs=3).order(table)  # a pool that is smaller than a super-batch
    assert [np.unique(small[start : start + 115]).size for start in (0, 115, 230)] == [115] * 3
