"""What training draws at random, as functions of seed, epoch and pair."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tamis.train.batches import crop_windows, epoch_order, positions


def uids(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.integers(0, 2**63, n).astype(np.uint64), rng.integers(0, 2**63, n).astype(np.uint64)


def test_an_epoch_shows_each_pair_as_often_as_it_is_kept() -> None:
    high, low = uids(5)
    places, showing = epoch_order(high, low, np.array([1, 0, 3, 2, 1]), seed=0, epoch=0)
    assert Counter(places.tolist()) == {0: 1, 2: 3, 3: 2, 4: 1}
    assert sorted(zip(places.tolist(), showing.tolist(), strict=True)) == [
        (0, 0), (2, 0), (2, 1), (2, 2), (3, 0), (3, 1), (4, 0),
    ]  # fmt: skip


def test_the_order_is_a_function_of_uid_seed_and_epoch_and_not_of_the_rows_order() -> None:
    high, low = uids(200)
    times = np.ones(200, np.int64)
    places, _ = epoch_order(high, low, times, seed=3, epoch=2)
    back = np.random.default_rng(0).permutation(200)
    moved, _ = epoch_order(high[back], low[back], times, seed=3, epoch=2)
    assert high[back][moved].tolist() == high[places].tolist()
    others = [epoch_order(high, low, times, seed=seed, epoch=epoch)[0] for seed, epoch in ((3, 3), (4, 2))]
    for other in others:
        assert np.mean(other == places) < 0.1


def test_positions_fall_into_epochs() -> None:
    assert list(positions(7, 5, 16)) == [(0, 5, 7), (1, 0, 7), (2, 0, 2)]
    assert list(positions(7, 7, 9)) == [(1, 0, 2)]


def windows(sizes: np.ndarray, smallest: float = 0.9, epoch: int = 0) -> np.ndarray:
    high, low = uids(len(sizes))
    showing = np.zeros(len(sizes), np.int64)
    return crop_windows(high, low, sizes, seed=0, epoch=epoch, repeats=showing, smallest=smallest)


@given(st.integers(1, 3000), st.integers(1, 3000), st.floats(0.05, 1))
def test_windows_lie_within_their_picture(width: int, height: int, smallest: float) -> None:
    left, top, right, bottom = windows(np.array([[width, height]] * 8), smallest).T
    assert (left >= 0).all()
    assert (top >= 0).all()
    assert (right <= width).all()
    assert (bottom <= height).all()
    assert (right > left).all()
    assert (bottom > top).all()


def test_windows_of_square_pictures_keep_the_asked_share_and_ratio() -> None:
    left, top, right, bottom = windows(np.array([[1000, 1000]] * 4000)).T
    area = (right - left) * (bottom - top) / 1e6
    ratio = (right - left) / (bottom - top)
    assert area.min() > 0.899
    assert area.max() <= 1
    assert ratio.min() > 0.74
    assert ratio.max() < 1.34
    assert left.min() == 0
    assert right.max() == 1000
    # Only windows that fit are taken: at nine tenths of the area and more, ratios near 1.
    assert abs(np.log(ratio)).mean() < 0.06


def test_a_picture_that_no_draw_fits_gives_its_centre() -> None:
    assert windows(np.array([[400, 100]])).tolist() == [[133, 0, 266, 100]]
    assert windows(np.array([[90, 300]])).tolist() == [[0, 90, 90, 210]]
