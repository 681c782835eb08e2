"""Logistic regression: by hand, at its optimum, and where it cannot be fitted."""

from __future__ import annotations

import numpy as np
import pytest

from tamis.train.logistic import Logistic, fit_logistic


def test_one_binary_column_by_hand() -> None:
    # Of four rows with 0 one is True, of four with 1 three are: the odds are 1/3 and 3.
    columns = np.array([[0.0]] * 4 + [[1.0]] * 4)
    labels = np.array([True, False, False, False, True, True, True, False])
    found = fit_logistic(columns, labels, ridge=0)
    assert found.bias == pytest.approx(np.log(1 / 3), abs=1e-6)
    assert found.weights == pytest.approx((2 * np.log(3),), abs=1e-6)
    assert found(columns)[[0, -1]].tolist() == pytest.approx([0.25, 0.75])


def test_no_other_weights_are_more_likely() -> None:
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(300, 2))
    labels = columns[:, 0] + 0.5 * columns[:, 1] + rng.logistic(size=300) > 0.3

    def loss(model: Logistic) -> float:
        chance = model(columns)
        penalty = 0.5 * 1e-3 * 300 * sum(weight**2 for weight in model.weights)
        return float(-np.log(np.where(labels, chance, 1 - chance)).sum() + penalty)

    best = fit_logistic(columns, labels)
    for nudge in np.eye(3) * 1e-2:
        for sign in (1, -1):
            weights = tuple(np.array(best.weights) + sign * nudge[:2])
            assert loss(Logistic(weights, best.bias + sign * nudge[2])) > loss(best)


def test_columns_that_tell_everything_apart_get_finite_weights() -> None:
    columns = np.array([[0.0], [0.1], [0.9], [1.0]])
    found = fit_logistic(columns, np.array([False, False, True, True]))
    assert np.isfinite([*found.weights, found.bias]).all()
    assert (np.diff(found(columns)) > 0).all()


def test_a_row_with_a_missing_value_has_no_probability() -> None:
    assert np.isnan(Logistic((1.0, 2.0), 0.0)(np.array([[0.5, np.nan], [0.5, 0.5]]))).tolist() == [True, False]


def test_labels_that_are_all_the_same_and_shapes_that_differ_are_errors() -> None:
    with pytest.raises(ValueError, match="all 3 labels are the same"):
        fit_logistic(np.ones((3, 1)), np.ones(3, bool))
    with pytest.raises(ValueError, match="expected columns"):
        fit_logistic(np.ones((3, 1)), np.ones(2, bool))
