"""The best places of a long array, as a plain sort finds them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.core.files.scratch import StoredRows
from tamis.core.math import order
from tamis.recipes.steps import best
from tamis.recipes.steps.best import PLACES, first_places
from tamis.runs import reasons


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=40), st.integers(0, 45), st.sampled_from([1, 7])
)
def test_of_equal_keys_the_lowest_tie_goes_first_then_the_first_place(
    pairs: list[tuple[int, int]], n: int, held: int
) -> None:
    found = StoredRows(len(pairs), PLACES)
    found[:] = np.array([(row, key, tie) for row, (key, tie) in enumerate(pairs)], PLACES)
    ranked = sorted(range(len(pairs)), key=lambda place: (-pairs[place][0], pairs[place][1], place))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "HELD", held)
        patch.setattr(best, "blocks", lambda rows: reasons.blocks(rows, 3))
        cut, kept = first_places(found, n)
        chosen = [place for rows in reasons.blocks(len(pairs), 4) for place in rows.start + np.flatnonzero(kept(rows))]
    assert chosen == sorted(ranked[:n])
    if n and pairs:
        assert cut.tolist() == [pairs[ranked[:n][-1]][0]]
