"""What tells pictures on one ground apart, beside a slow obvious way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tamis.math.lightness import lightness_differs, plain

Array = np.ndarray[Any, Any]


def slow(left: Array, right: Array) -> float:
    """Field by field."""
    one, two = (fields.reshape(16, 16).astype(float) for fields in (left, right))
    larger = max(one.std(), two.std())
    one, two = ((each - each.mean()) * min(larger / max(each.std(), 1e-6), 1.25) for each in (one, two))
    worst = 0.0
    for mine, other in ((one, two), (two, one)):
        for y in range(16):
            for x in range(16):
                around = other[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2]
                worst = max(worst, around.min() - mine[y, x], mine[y, x] - around.max())
    return worst


def card(levels: int, at: int = 5) -> Array:
    """White ground with one field of another lightness."""
    fields = np.full((16, 16), 250, np.uint8)
    fields[at, 5] -= levels
    return fields.reshape(-1)


def test_it_is_the_slow_way_and_symmetric() -> None:
    rng = np.random.default_rng(0)
    left, right = (rng.integers(0, 256, (20, 256), dtype=np.uint8) for _ in range(2))
    left[:3], right[2] = 7, 9  # flat ones have no contrast to be raised
    right[5:10] = np.clip(left[5:10] + rng.integers(-3, 4, (5, 256)), 0, 255)
    expected = [slow(*pair) for pair in zip(left, right, strict=True)]
    assert lightness_differs(left, right) == pytest.approx(expected, abs=1e-3)
    assert lightness_differs(right, left) == pytest.approx(expected, abs=1e-3)
    assert lightness_differs(left, left).tolist() == [0.0] * 20
    assert lightness_differs(left[:0], right[:0]).tolist() == []


def test_a_thing_on_white_counts_by_its_lightness_and_may_move_by_a_field() -> None:
    ground = np.stack([card(0)])
    # 40 levels in one field: the mean of 256 falls by 40 / 256; nothing to raise on a flat ground.
    assert lightness_differs(ground, np.stack([card(40)])) == pytest.approx([40 - 40 / 256])
    assert lightness_differs(np.stack([card(40)]), np.stack([card(40, at=6)])).tolist() == [0.0]
    assert lightness_differs(np.stack([card(40)]), np.stack([card(40, at=7)])) == pytest.approx([40])


def test_a_picture_is_plain_where_half_of_it_is_one_level() -> None:
    ramp = np.arange(256, dtype=np.uint8)
    assert plain(np.stack([ramp, card(40)])).tolist() == [False, True]
    for many, said in ((127, False), (128, True)):
        fields = np.concatenate([np.full(many, 128), np.linspace(0, 100, 256 - many)]).astype(np.uint8)
        spread = fields.copy()
        spread[0] = 137  # nine levels from the others
        assert plain(np.stack([fields, spread])).tolist() == [said, False]
