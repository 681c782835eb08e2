"""The utility study: what is added to what, and the slopes."""

from __future__ import annotations

import numpy as np
import pytest

from tamis.evaluate.utility import PAPER, Pool, pools, utilities


def test_pools_are_a_base_and_a_base_with_more_of_one_kind() -> None:
    truth = np.array([kind for kind in PAPER for _ in range(14)] + [None], object)
    made = {pool.name: pool for pool in pools(truth)}
    assert len(made) == 12  # two bases, two sizes of five kinds
    images = made["images"].rows
    assert images.size == 10  # 1.4 times that is all there are of the rarest kind
    assert {truth[row] for row in images} == {"visual"}
    base = made["images and text"]
    assert base.rows.size == 15
    for pool in made.values():
        assert np.unique(pool.rows).size == pool.rows.size, pool.name
        if pool.kind:
            new = np.setdiff1d(pool.rows, made[pool.base].rows)
            assert {truth[row] for row in new} == {pool.kind}
            assert new.size == pool.added
            assert np.isin(made[pool.base].rows, pool.rows).all()
    assert (made["images + 20% mismatched"].added, made["images + 40% mismatched"].added) == (2, 4)
    few, more = made["images and text + 20% visual"], made["images and text + 40% visual"]
    assert np.isin(few.rows, more.rows).all()


def test_a_utility_is_the_mean_slope_over_the_seeds_by_hand() -> None:
    none = np.empty(0, np.int64)
    made = [Pool(name, name, "", 0, none) for name in ("images", "images and text")]
    for kind, (_, _, base) in PAPER.items():
        made += [Pool(f"{kind} {added}", base, kind, added, none) for added in (500, 1000)]
    scores = {pool.name: {0: 0.5, 1: 0.5} for pool in made}
    scores["text_only 500"], scores["text_only 1000"] = {0: 0.4, 1: 0.45}, {0: 0.3, 1: 0.40}
    scores["visual 500"], scores["visual 1000"] = {0: 0.5, 1: 0.5}, {0: 0.6, 1: 0.6}
    found = utilities(made, scores)
    # Seed 0 falls by .2 per thousand, seed 1 by .1: mean -.15, s = .0707107, half 12.706205 * .05 = .635310.
    assert found["text_only"].value == pytest.approx(-0.15)
    assert (found["text_only"].low, found["text_only"].high) == pytest.approx((-0.785310, 0.485310), abs=1e-6)
    # Least squares through (0, .5), (.5, .5), (1, .6): sum of (x - .5)(y - mean) is .05, of (x - .5)^2 .5.
    assert found["visual"].value == pytest.approx(0.1)
    assert found["mismatched"].value == pytest.approx(0.0)
