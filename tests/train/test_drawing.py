"""What training draws at random, as functions of seed, epoch and pair."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tamis.core.math.sampling import shuffled_copies
from tamis.train.batches import crop_windows


def uids(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.integers(0, 2**63, n).astype(np.uint64), rng.integers(0, 2**63, n).astype(np.uint64)


def test_the_order_is_a_function_of_uid_seed_and_epoch_and_not_of_the_rows_order() -> None:
    high, low = uids(200)
    times = np.ones(200, np.int64)
    places, _ = shuffled_copies(high, low, times, seed=3, epoch=2)
    back = np.random.default_rng(0).permutation(200)
    moved, _ = shuffled_copies(high[back], low[back], times, seed=3, epoch=2)
    assert high[back][moved].tolist() == high[places].tolist()
    others = [shuffled_copies(high, low, times, seed=seed, epoch=epoch)[0] for seed, epoch in ((3, 3), (4, 2))]
    for other in others:
        assert np.mean(other == places) < 0.1


def windows(sizes: np.ndarray, smallest: float = 0.9, epoch: int = 0) -> np.ndarray:
    high, low = uids(len(sizes))
    showing = np.zeros(len(sizes), np.int64)
    return crop_windows(high, low, sizes, seed=0, epoch=epoch, copies=showing, smallest=smallest)


@given(st.integers(1, 3000), st.integers(1, 3000), st.floats(0.05, 1))
def test_windows_lie_within_their_picture(width: int, height: int, smallest: float) -> None:
    left, top, right, bottom = windows(np.array([[width, height]] * 8), smallest).T
    for low, high, size in ((left, right, width), (top, bottom, height)):
        assert ((low >= 0) & (low < high) & (high <= size)).all()


def test_windows_of_square_pictures_keep_the_asked_share_and_ratio() -> None:
    left, top, right, bottom = windows(np.array([[1000, 1000]] * 4000)).T
    area = (right - left) * (bottom - top) / 1e6
    ratio = (right - left) / (bottom - top)
    assert 0.899 < area.min() <= area.max() <= 1
    assert 0.74 < ratio.min() <= ratio.max() < 1.34
    assert (left.min(), right.max()) == (0, 1000)
    # Only windows that fit are taken: at nine tenths of the area and more, ratios near 1.
    assert abs(np.log(ratio)).mean() < 0.06


def test_a_picture_that_no_draw_fits_gives_its_centre() -> None:
    assert windows(np.array([[400, 100]])).tolist() == [[133, 0, 266, 100]]
    assert windows(np.array([[90, 300]])).tolist() == [[0, 90, 90, 210]]
