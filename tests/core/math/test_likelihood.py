"""The log-likelihood of right answers: in loops, by hand, and what does not matter."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tamis.core.math.likelihood import Questions, best_log_likelihood, mean_log_probability
from tamis.core.math.similarity import unit_rows


def drawn(seed: int, *, queries: int = 12, gallery: int = 9, answers: int = 5, width: int = 6) -> Questions:
    """Random rows, near one of some directions each; several rows of the gallery may be right, at least one is."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(answers, width))
    of_gallery = np.concatenate([np.arange(answers), rng.integers(0, answers, gallery - answers)])
    of_queries = rng.integers(0, answers, queries)
    return Questions(
        unit_rows(centres[of_queries] + rng.normal(size=(queries, width))),
        unit_rows(centres[of_gallery] + rng.normal(size=(gallery, width))),
        of_queries, of_gallery,
    )  # fmt: skip


def plain(parts: Sequence[Questions], scale: float) -> float:
    """The definition, one number after the other."""
    means = []
    for part in parts:
        logs = []
        for query, answer in zip(part.queries.tolist(), part.query_ids.tolist(), strict=True):
            right = everything = 0.0
            for row, number in zip(part.gallery.tolist(), part.gallery_ids.tolist(), strict=True):
                weight = math.exp(scale * sum(x * y for x, y in zip(query, row, strict=True)))
                everything += weight
                right += weight if number == answer else 0.0
            logs.append(math.log(right / everything))
        means.append(sum(logs) / len(logs))
    return sum(means) / len(means)


@pytest.mark.parametrize("scale", [0.1, 3.0, 60.0])
def test_it_is_its_definition(scale: float) -> None:
    one, other = drawn(1), drawn(2, queries=5, gallery=7, answers=7)
    assert mean_log_probability([one], scale) == pytest.approx(plain([one], scale), rel=1e-5)
    assert mean_log_probability([one, other], scale) == pytest.approx(plain([one, other], scale), rel=1e-5)


def test_two_queries_by_hand() -> None:
    # Cosines of the queries (1, 0) and (0, 1) with the gallery (1, 0), (0, 1), (-1, 0): 1, 0, -1 and 0, 1, 0.
    # At scale log 2 the weights are 2, 1, 1/2 and 1, 2, 1. The first query's answers are rows 0 and 2: 2.5 of 3.5;
    # the second's is row 1: 2 of 4.
    part = Questions(
        np.eye(2, dtype=np.float32), np.array([[1, 0], [0, 1], [-1, 0]], np.float32),
        np.array([7, 3]), np.array([7, 3, 7]),
    )  # fmt: skip
    expected = (math.log(2.5 / 3.5) + math.log(0.5)) / 2
    assert mean_log_probability([part], math.log(2)) == pytest.approx(expected)
    # Parts count alike, whatever their sizes: the second query alone, log .5, and both.
    alone = replace(part, queries=part.queries[1:], query_ids=part.query_ids[1:])
    assert mean_log_probability([part, alone], math.log(2)) == pytest.approx((expected + math.log(0.5)) / 2)
    # A model that is always right gets almost 0 at a large scale.
    sure = replace(part, gallery_ids=np.array([7, 3, 1]))
    assert best_log_likelihood([sure]) == pytest.approx(0, abs=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6))
def test_the_best_scale_is_as_good_as_any_of_a_grid(seed: int) -> None:
    parts = [drawn(seed), drawn(seed + 1, queries=4)]
    grid = [mean_log_probability(parts, scale) for scale in np.geomspace(0.1, 1000, 60)]
    assert best_log_likelihood(parts) >= max(grid) - 1e-3


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.booleans())
def test_no_model_is_worse_than_chance_or_better_than_certain(seed: int, wrong: bool) -> None:
    part = drawn(seed, gallery=5)  # one right row each
    if wrong:  # each query is nearest to another's answer
        part = replace(part, query_ids=(part.query_ids + 1) % 5)
    assert math.log(1 / 5) - 1e-9 <= best_log_likelihood([part]) <= 0


def test_a_model_that_is_always_wrong_is_at_chance() -> None:
    wrong = Questions(np.eye(4, dtype=np.float32), np.eye(4, dtype=np.float32), np.arange(4), np.array([1, 2, 3, 0]))
    assert best_log_likelihood([wrong]) == pytest.approx(math.log(1 / 4))


def test_a_model_that_sees_no_difference_is_at_chance() -> None:
    same = np.tile(np.array([[0.6, 0.8]], np.float32), (6, 1))
    part = Questions(same, same, np.arange(6), np.arange(6) // 2 * 2)  # three queries have two right rows, three none
    seen = replace(part, queries=same[::2], query_ids=np.array([0, 2, 4]))
    assert best_log_likelihood([seen]) == pytest.approx(math.log(2 / 6))


def test_the_order_of_queries_and_of_the_gallery_does_not_matter() -> None:
    part = drawn(5, queries=40, gallery=30)
    rng = np.random.default_rng(0)
    rows, columns = rng.permutation(40), rng.permutation(30)
    turned = Questions(
        part.queries[rows], part.gallery[columns], part.query_ids[rows], part.gallery_ids[columns]
    )  # fmt: skip
    assert best_log_likelihood([turned]) == pytest.approx(best_log_likelihood([part]), abs=1e-6)


def test_more_queries_than_a_block_have_the_mean_of_all() -> None:
    part = drawn(6, queries=2_500)
    parts = [
        replace(part, queries=part.queries[rows], query_ids=part.query_ids[rows])
        for rows in (slice(0, 1_000), slice(1_000, 2_500))
    ]
    means = [mean_log_probability([one], 7.0) for one in parts]
    assert mean_log_probability([part], 7.0) == pytest.approx((1_000 * means[0] + 1_500 * means[1]) / 2_500)
