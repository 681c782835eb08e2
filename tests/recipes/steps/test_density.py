"""The steps density and d2 compared with plain references, and what must not matter to them."""

import importlib.util
from typing import Any

import numpy as np
import pytest

from tamis.core.errors import RecipeError
from tamis.core.ids import scramble
from tamis.core.math.pruning import quotas
from tamis.core.math.similarity import unit_rows
from tamis.recipes.steps import D2, Density, SemDeDup, Step, run_steps
from tamis.recipes.steps.clusters import Clusters
from tamis.runs.table import MemoryTable, Table

Array = np.ndarray[Any, Any]

needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="faiss-cpu is not installed")

ROWS, KINDS = 160, 4
UIDS = np.random.default_rng(1).integers(0, 2**64, (2, ROWS), dtype=np.uint64)
LABEL = np.random.default_rng(2).integers(0, KINDS, ROWS).astype(np.int32)
CENTRES = unit_rows(np.eye(KINDS, 8) + 0.3)


def vectors() -> Array:
    """Rows around four centres; the first cluster is the densest, the last the widest."""
    noise = np.random.default_rng(3).normal(size=(ROWS, 8)) * np.array([0.02, 0.1, 0.2, 0.4])[LABEL, None]
    return unit_rows(CENTRES[LABEL] + noise).astype(np.float16)


def table(order: Array | None = None, block: int = 1000, rows: Array | None = None) -> Table:
    order = np.arange(ROWS) if order is None else order
    held = vectors() if rows is None else rows
    score = np.linspace(0.1, 0.4, ROWS, dtype=np.float32)
    columns = {"image_embedding": held[order], "clip": score[order]}
    return MemoryTable(columns, uids=(UIDS[0][order], UIDS[1][order]), block=block)


def given_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps get the clusters that the rows were drawn from."""
    unit = unit_rows(vectors())
    made = Clusters(CENTRES, LABEL, np.einsum("nd,nd->n", unit, CENTRES[LABEL]))
    monkeypatch.setattr("tamis.recipes.steps.clusters.fit", lambda *_, **__: CENTRES)
    monkeypatch.setattr("tamis.recipes.steps.clusters.assign", lambda *_: made)


@pytest.mark.parametrize("keep", ["hard", "easy", "random"])
def test_quotas_follow_the_complexity_of_clusters(keep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Abbas et al. 2024: softmax(d_inter d_intra / tau), then the rows farthest from the centre ("hard")."""
    given_clusters(monkeypatch)
    found = Density(n=60, tau=0.05, balance=0.5, keep=keep).select(table())
    unit, held = unit_rows(vectors()), [np.flatnonzero(kind == LABEL) for kind in range(KINDS)]
    far = [1 - unit[rows] @ CENTRES[kind] for kind, rows in enumerate(held)]
    between = [np.mean([1 - CENTRES[k] @ CENTRES[j] for j in range(KINDS) if j != k]) for k in range(KINDS)]
    shares = np.exp(np.array([d.mean() * b for d, b in zip(far, between, strict=True)]) / 0.05)
    wanted = quotas(shares / shares.sum(), np.bincount(LABEL), 60, 0.5).tolist()
    assert 7 in wanted  # the floor
    for kind, rows in enumerate(held):
        kept = found.keep[rows]
        assert kept.sum() == wanted[kind]
        order = {"hard": np.argsort(-far[kind]), "easy": np.argsort(far[kind])}
        best = order.get(keep, np.argsort(scramble(*UIDS[:, rows])))[: kept.sum()]
        assert sorted(np.flatnonzero(kept)) == sorted(best)
    assert found.counts == {"kept": 60, "above the quota of its cluster": 100, "missing": 0}
    assert found.keep[held[3]].mean() > found.keep[held[0]].mean()


def test_a_small_tau_and_no_balance_leave_a_dense_cluster_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given_clusters(monkeypatch)
    narrow = Density(fraction=0.2, tau=0.001, balance=0).select(table())
    assert narrow.keep[LABEL == 0].sum() == 0
    assert narrow.facts["kept_share_of_clusters"][0] == 0
    equal = Density(n=40, tau=1e6, balance=0).select(table())
    assert {int(equal.keep[kind == LABEL].sum()) for kind in range(KINDS)} == {10}


def test_d2_takes_one_of_each_pair_of_neighbours() -> None:
    """By hand: two pairs at a right angle. s = .9 + .8, .8 + .9, .5 + .4, .4 + .5 (distance 0, so weights 1).

    Of 0 and 1, which tie at 1.7, the first by uid is taken; the other falls to 0. Then one of 2 and 3, at .9.
    """
    rows = np.repeat(np.eye(2, dtype=np.float16), 2, axis=0)
    score = np.array([0.9, 0.8, 0.5, 0.4], np.float32)
    made = MemoryTable({"image_embedding": rows, "clip": score}, uids=(UIDS[0][:4], UIDS[1][:4]))
    first = np.argsort(scramble(*UIDS[:, :4])).tolist()
    found = D2(score="clip", n=2, clusters=1).select(made)
    wanted = {next(n for n in first if n in pair) for pair in ((0, 1), (2, 3))}
    assert {*np.flatnonzero(found.keep).tolist()} == wanted
    assert D2(score="clip", n=2, clusters=1, k=5, gamma=0).select(made).keep.sum() == 2  # fewer neighbours than k


@pytest.mark.parametrize("clusters", [1, pytest.param(5, marks=needs_faiss)])
@pytest.mark.parametrize(
    "make", [lambda c: Density(n=50, clusters=c), lambda c: D2(score="clip", n=50, k=3, clusters=c)]
)
def test_row_order_and_blocks_do_not_matter(make: Any, clusters: int, monkeypatch: pytest.MonkeyPatch) -> None:
    step = make(clusters)
    straight = step.select(table())
    assert straight.keep.sum() == 50
    for block, gather in ((1, 1), (13, 50)):
        monkeypatch.setattr("tamis.runs.regroup._BUCKET", 100 * gather)
        order = np.random.default_rng(block).permutation(ROWS)
        moved = step.select(table(order, block))
        assert moved.keep.tolist() == straight.keep[order].tolist()
        assert moved.facts == straight.facts


def test_they_follow_semdedup_and_count_what_is_missing() -> None:
    broken = vectors()
    broken[5], broken[6, 2], broken[30] = 0, np.nan, broken[31]
    steps: list[Step] = [
        SemDeDup(epsilon=0, clusters=1, missing="drop"),
        Density(fraction=0.5, of="pool", clusters=1),
        D2(score="clip", fraction=0.25, clusters=1),
    ]
    outcome = run_steps(table(rows=broken), steps)
    assert [line["kept"] for line in outcome.funnel] == [157, 80, 20]
    assert outcome.keep.sum() == 20
    none = table(rows=np.full((ROWS, 8), np.nan, np.float16))
    for step in (Density(n=9, missing="drop"), D2(score="clip", n=9, missing="drop")):
        assert step.select(none).counts["missing"] == ROWS
    far, all_others = (D2(score="clip", n=40, clusters=1, k=k).select(table()) for k in (10**30, ROWS - 1))
    assert (far.keep == all_others.keep).all()


def test_extreme_settings_warn_of_nothing() -> None:
    for step in (Density(n=9, clusters=3, tau=1e-320), D2(score="clip", n=9, clusters=3, gamma=1e9)):
        assert step.select(table()).keep.sum() == 9


def test_wrong_settings_are_refused() -> None:
    for make, settings, message in (
        (Density, {}, "density needs n or fraction, got neither"),
        (Density, {"n": 1, "fraction": 0.1}, "got both"),
        (Density, {"n": -1}, "density needs n >= 0"),
        (Density, {"n": 1, "of": "pool"}, "leave out of='pool'"),
        (Density, {"fraction": 30}, "did you mean 0.3"),
        (Density, {"n": 1, "tau": 0}, "tau must be above 0"),
        (Density, {"n": 1, "balance": 2}, "balance must be between 0 and 1"),
        (Density, {"n": 1, "keep": "hardest"}, "did you mean 'hard'"),
        (D2, {"score": "clip", "n": 1, "k": 0}, "k must be at least 1"),
        (D2, {"score": "clip", "n": 1, "gamma": -1}, "gamma must be 0 or more"),
        (D2, {"score": "clip", "n": 1, "gamma": 1e300}, "at most 1e9"),
        (D2, {"score": "clip", "n": 1, "gamma": 2, "mode": "absolute"}, "leave out gamma=2"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**settings)  # type: ignore[operator]
    with pytest.raises(RecipeError, match="'words' holds words, expected numbers"):
        D2(score="words", n=1).select(MemoryTable({"words": ["a"], "image_embedding": np.ones((1, 2), np.float16)}))
