"""The step semdedup compared with a loop over pairs, and what must not matter to it."""

import importlib.util
from typing import Any

import numpy as np
import pytest

from tamis.core.errors import RecipeError
from tamis.core.ids import format_uid, scramble
from tamis.core.math.similarity import unit_rows
from tamis.recipes.steps import SemDeDup
from tamis.recipes.steps import clusters as clustering
from tamis.runs.table import MemoryTable, Table

Array = np.ndarray[Any, Any]

needs_faiss = pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="faiss-cpu is not installed")

ROWS = 120


def vectors() -> Array:
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(ROWS, 12)) + 4 * np.eye(12)[rng.integers(0, 4, ROWS)]
    for copy, source in ((10, 3), (40, 3), (41, 3), (77, 20), (99, 98)):
        rows[copy] = rows[source] + 0.02 * rng.normal(size=12)
    rows[60] = rows[61]
    return unit_rows(rows).astype(np.float16)


def uids() -> tuple[Array, Array]:
    high, low = np.random.default_rng(1).integers(0, 2**64, (2, ROWS), dtype=np.uint64)
    return high, low


def table(order: Array | None = None, block: int = 1000, rows: Array | None = None) -> Table:
    order = np.arange(ROWS) if order is None else order
    held = vectors() if rows is None else rows
    high, low = uids()
    return MemoryTable({"image_embedding": held[order]}, uids=(high[order], low[order]), block=block)


def looped(order: list[int], epsilon: float) -> dict[int, int]:
    """The representative of each row, found row by row in an order."""
    rows = unit_rows(vectors())
    head: dict[int, int] = {}
    for place, row in enumerate(order):
        cosines = [float(rows[row] @ rows[other]) for other in order[:place]]
        best = int(np.argmax(cosines)) if cosines else -1
        head[row] = head[order[best]] if cosines and cosines[best] > np.float32(1 - epsilon) else row
    return head


def in_order(keep: str) -> list[int]:
    rows = unit_rows(vectors())
    by_uid = np.argsort(scramble(*uids()))
    if keep == "random":
        return by_uid.tolist()
    centre = unit_rows(rows[by_uid].mean(0, keepdims=True))[0]
    cosine = rows[by_uid] @ centre
    return by_uid[np.argsort(cosine if keep == "hard" else -cosine, kind="stable")].tolist()


@pytest.mark.parametrize(("keep", "epsilon"), [("hard", 0.01), ("hard", 0.2), ("easy", 0.2), ("random", 0.2)])
def test_rows_go_that_come_too_near_to_an_earlier_one(keep: Any, epsilon: float) -> None:
    found = SemDeDup(epsilon=epsilon, clusters=1, keep=keep).select(table())
    head = looped(in_order(keep), epsilon)
    assert np.flatnonzero(found.keep).tolist() == sorted({*head.values()})
    sizes = {row: list(head.values()).count(row) for row in set(head.values())}
    assert found.facts["groups"] == sum(size > 1 for size in sizes.values())
    for group in found.facts["largest_groups"]:
        assert group["size"] == sizes[group["rows"][0]]
        assert {head[row] for row in group["rows"]} == {group["rows"][0]}
        assert group["uids"] == [format_uid(*(half[row] for half in uids())) for row in group["rows"]]
        assert found.keep[group["rows"]].tolist() == [True] + [False] * (len(group["rows"]) - 1)


def test_epsilon_0_drops_equal_rows_and_no_others() -> None:
    rng = np.random.default_rng(8)
    rows = unit_rows(rng.normal(size=(ROWS, 12))).astype(np.float16)
    rows[40:80] = rows[:40]  # rounding makes some of their cosines a little less than 1, some a little more
    rows[80:100, 0] = np.nextafter(rows[:20, 0], np.float16(2))
    rows[80:100, 1:] = rows[:20, 1:]
    found = SemDeDup(epsilon=0, clusters=1, also=(0.01,)).select(table(rows=rows))
    assert found.counts == {"kept": ROWS - 40, "repeats another": 40, "missing": 0}
    assert (found.keep[:40] != found.keep[40:80]).all()
    assert found.keep[80:].all()
    assert found.facts["groups"] == 40
    assert found.facts["kept_share_by_epsilon"]["0.01"] == pytest.approx(1 / 2)  # the twenty near ones go too


def test_one_pass_finds_the_share_that_every_threshold_keeps() -> None:
    found = SemDeDup(epsilon=0.01, also=(0.0001, 0.6, 0.3, 0.3000001), clusters=1).select(table())
    assert found.cut == pytest.approx(0.99)
    shares = found.facts["kept_share_by_epsilon"]
    assert list(shares) == ["0.0001", "0.01", "0.3", "0.3000001", "0.6"]
    for epsilon, share in shares.items():
        alone = SemDeDup(epsilon=float(epsilon), clusters=1).select(table())
        assert share == pytest.approx(alone.counts["kept"] / ROWS)


def test_a_fraction_keeps_those_least_like_one_before_them() -> None:
    for fraction in (0.0, 0.5, 0.951, 1.0):
        found = SemDeDup(fraction=fraction, clusters=1).select(table())
        assert found.counts["kept"] == int(np.floor(fraction * ROWS + 0.5))
    found = SemDeDup(fraction=0.95, clusters=1).select(table())
    assert found.keep.tolist() == SemDeDup(epsilon=0.01, clusters=1).select(table()).keep.tolist()


@pytest.mark.parametrize("clusters", [1, pytest.param(4, marks=needs_faiss)])
@pytest.mark.parametrize("keep", ["hard", "random"])
def test_row_order_and_blocks_do_not_matter(clusters: int, keep: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    step = SemDeDup(epsilon=0.05, clusters=clusters, keep=keep)
    straight = step.select(table())
    for block, gather in ((1, 1), (13, 50)):
        monkeypatch.setattr("tamis.runs.regroup._BUCKET", 100 * gather)
        order = np.random.default_rng(block).permutation(ROWS)
        moved = step.select(table(order, block))
        assert moved.keep.tolist() == straight.keep[order].tolist()
        assert moved.facts["groups"] == straight.facts["groups"]


@needs_faiss
def test_rows_get_the_nearest_of_the_clusters() -> None:
    there, asked = np.ones(ROWS, bool), table()
    centroids = clustering.fit(asked, "image_embedding", there, 4)
    found = clustering.assign(asked, "image_embedding", there, centroids)
    rows = vectors().astype(np.float32)
    assert found.label.tolist() == (rows @ centroids.T).argmax(1).tolist()
    assert found.cosine == pytest.approx((unit_rows(rows) @ centroids.T).max(1), abs=1e-6)
    keep = SemDeDup(epsilon=0.01, clusters=4).select(asked).keep
    assert keep.sum() == ROWS - 6  # copies share their cluster


def test_rows_that_have_no_direction_are_missing_and_hide_no_copies() -> None:
    broken = vectors()
    broken[0], broken[1, 5], broken[2, 7] = 0, np.nan, np.inf
    with pytest.raises(RecipeError, match="3 of 120 rows have no value for 'image_embedding'"):
        SemDeDup(epsilon=0.01, clusters=1).select(table(rows=broken))
    found = SemDeDup(epsilon=0.01, clusters=1, missing="drop").select(table(rows=broken))
    assert found.counts == {"kept": ROWS - 3 - 6, "repeats another": 6, "missing": 3}
    none = SemDeDup(epsilon=0.1, missing="drop").select(table(rows=np.full((ROWS, 3), np.nan, np.float16)))
    assert none.counts == {"kept": 0, "repeats another": 0, "missing": ROWS}


@needs_faiss
def test_there_are_never_more_clusters_than_rows_and_any_seed_repeats() -> None:
    assert SemDeDup(epsilon=0.01, clusters=10**6).select(table()).facts["clusters"] == ROWS
    for seed in (-7, 2**40):
        one, two = (SemDeDup(epsilon=0.05, clusters=4, seed=seed).select(table()).keep.tolist() for _ in range(2))
        assert one == two


def test_wrong_settings_and_columns_are_refused() -> None:
    for settings, said in (
        ({}, "needs epsilon or fraction"),
        ({"epsilon": 3}, "got 3"),
        ({"fraction": 2}, "got 2"),
        ({"epsilon": 0.1, "clusters": 0}, "clusters must be at least 1"),
    ):
        with pytest.raises(ValueError, match=said):
            SemDeDup(**settings)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="'words' holds words"):
        SemDeDup(epsilon=0.1, embedding="words").select(MemoryTable({"words": ["a"]}))
    with pytest.raises(RecipeError, match=r"the centroids \(3\) and .* \(12\)"):
        clustering.assign(table(), "image_embedding", np.ones(ROWS, bool), np.ones((1, 3), np.float32))
