"""MetaCLIP's balance, by hand and against draws entry by entry."""

import numpy as np
import pytest

from tamis.core.math.balance import effective_number, keep_chances, tail_limit, tail_share


def test_the_tail_by_hand() -> None:
    """Counts 1, 2, 3, 4 of 10 matches: cumulative shares .1, .3, .6, 1 (MetaCLIP 2, the threshold of a language)."""
    counts = np.array([4, 1, 0, 3, 2])
    assert [tail_limit(counts, share) for share in (0, 0.1, 0.29, 0.5, 1)] == [1, 1, 2, 3, 4]
    assert [tail_share(counts, t) for t in (1, 2, 3, 5)] == pytest.approx([0, 0.1, 0.3, 1])
    nothing = np.zeros(0, np.int64)
    assert (tail_limit(nothing, 0.3), tail_share(nothing, 5), effective_number(nothing)) == (1, 0, 0)
    assert effective_number(np.array([7, 7, 0, 7])) == pytest.approx(3)
    assert effective_number(np.array([5])) == 1


def test_the_chance_is_that_of_one_draw_per_entry() -> None:
    """Chances 1, .5, .2: entries (1, 2) keep 1 - .5 * .8 = .6. MetaCLIP 1 draws for each entry: the same law."""
    chance, ids, lengths = np.array([1, 0.5, 0.2]), np.array([1, 2, 2, 0, 2]), np.array([2, 0, 1, 2, 0])
    kept = keep_chances(ids, lengths, chance)
    assert kept.tolist() == pytest.approx([0.6, 0, 0.2, 1, 0])
    rng = np.random.default_rng(0)
    drawn = (rng.random((20_000, 2)) < chance[[1, 2]]).any(axis=1)
    assert drawn.mean() == pytest.approx(kept[0], abs=0.015)
    assert keep_chances(ids[:0], np.zeros(3, int), chance).tolist() == [0, 0, 0]
