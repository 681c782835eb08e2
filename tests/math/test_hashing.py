"""Perceptual hashes, and the search for near ones beside all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.math.hashing import distance, image_hash, leaders, near_pairs


def smooth(seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    rng = np.random.default_rng(seed)
    coarse = rng.random((6, 6))
    grid = np.linspace(0, 5, 32)
    low = np.clip(grid.astype(int), 0, 4)
    part = grid - low
    rows = coarse[low] * (1 - part)[:, None] + coarse[low + 1] * part[:, None]
    return np.asarray(rows[:, low] * (1 - part) + rows[:, low + 1] * part)


def bits(one: int, two: int) -> int:
    return bin(one ^ two).count("1")


def test_one_wave_sets_its_own_bit() -> None:
    across = np.cos((np.arange(32) + 0.5) * np.pi * 3 / 32)
    # Row 0, wave 3: the fourth of the 64 bits, counted from the left. It alone is above the median of the others.
    assert image_hash(np.tile(across, (32, 1))) >> 60 & 1 == 1
    assert image_hash(-np.tile(across, (32, 1))) >> 60 & 1 == 0


def test_brightness_and_contrast_change_no_bit() -> None:
    for seed in range(5):
        picture = smooth(seed)
        assert image_hash(0.5 * picture + 30) == image_hash(picture)


def test_small_noise_changes_few_bits_and_another_picture_many() -> None:
    near, far = [], []
    for seed in range(30):
        noise = np.random.default_rng(seed).normal(0, 0.01, (32, 32))
        near.append(bits(image_hash(smooth(seed)), image_hash(smooth(seed) + noise)))
        far.append(bits(image_hash(smooth(seed)), image_hash(smooth(seed + 100))))
    assert max(near) <= 6
    assert np.mean(far) > 20


def test_one_colour_is_zero_and_other_sizes_are_refused() -> None:
    assert image_hash(np.full((32, 32), 7.0)) == 0
    assert image_hash(np.zeros((32, 32))) == 0
    with pytest.raises(ValueError, match="expected a grey picture of 32 x 32, got \\(8, 8\\)"):
        image_hash(np.zeros((8, 8)))


def test_distance_counts_bits() -> None:
    left = np.array([0, 2**64 - 1, 0b1011, 5], np.uint64)
    right = np.array([0, 0, 0b0110, 5 + 2**63], np.uint64)
    assert distance(left, right).tolist() == [0, 64, 3, 1]


@given(st.integers(0, 10**6), st.integers(0, 15))
@settings(max_examples=12, deadline=None)
def test_near_pairs_are_those_of_all_pairs(seed: int, radius: int) -> None:
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 2**64, 12, dtype=np.uint64)
    found = [int(hash_) for hash_ in base]
    for _ in range(40):
        hash_ = int(base[rng.integers(0, 12)])
        for bit in rng.choice(64, rng.integers(0, 18), replace=False):
            hash_ ^= 1 << int(bit)
        found.append(hash_)
    inside = [hash_ ^ int(rng.integers(0, 2**63)) if rng.random() < 0.5 else hash_ ^ 1 for hash_ in found]
    inside[3] = found[8]
    hashes = np.array(list(zip(found, inside, strict=True)), np.uint64)
    pairs = {
        (i, j) for left, right in near_pairs(hashes, radius) for i, j in zip(left.tolist(), right.tolist(), strict=True)
    }
    slow = {
        (min(i, j), max(i, j))
        for i, (whole, _) in enumerate(hashes.tolist())
        for j, others in enumerate(hashes.tolist())
        if i != j and min(bits(whole, other) for other in others) <= radius
    }
    assert pairs == slow


def test_a_radius_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="between 0 and 15 bits of 64, got 16"):
        list(near_pairs(np.zeros((2, 1), np.uint64), 16))


def test_nobody_is_dropped_for_one_that_is_dropped() -> None:
    # 0 - 1 - 2 - 3 in a chain: 1 goes for 0; 2 is near 1 only, which is gone; 3 goes for 2.
    pairs = [(np.array([2, 0]), np.array([3, 1])), (np.array([1, 1]), np.array([2, 2]))]
    assert leaders(iter(pairs), 5).tolist() == [0, 0, 2, 2, 4]
    assert leaders(iter([]), 2).tolist() == [0, 1]
