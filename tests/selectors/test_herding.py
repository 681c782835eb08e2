"""The step herding beside the mathematics it stands on, and what must not matter to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tamis.errors import RecipeError
from tamis.math.clipcov import covariance, covariance_error
from tamis.math.herding import turns
from tamis.math.similarity import unit_rows
from tamis.selectors import Herding, run_steps
from tamis.store.table import Table
from tamis.uid import scramble

Array = np.ndarray[Any, Any]

ROWS, CLASSES, D = 120, 4, 10


def columns() -> dict[str, Any]:
    rng = np.random.default_rng(4)
    centres = rng.normal(size=(CLASSES, D)) + 0.5
    kind = np.minimum(rng.geometric(0.5, ROWS) - 1, CLASSES - 1)
    middle = centres[kind] + 0.5 * rng.normal(size=(ROWS, D))
    sides = (unit_rows(middle + 0.5 * rng.normal(size=(ROWS, D))).astype(np.float16) for _ in range(2))
    return dict(zip(("image_embedding", "text_embedding"), sides, strict=True)) | {"kind": [f"c{k}" for k in kind]}


def uids() -> tuple[Array, Array]:
    high, low = np.random.default_rng(5).integers(0, 2**64, (2, ROWS), dtype=np.uint64)
    return high, low


def table(order: Array | None = None, block: int = 1000, **changed: Any) -> Table:
    held, (high, low) = columns() | changed, uids()
    order = np.arange(ROWS) if order is None else order
    moved = {
        name: value[order] if isinstance(value, np.ndarray) else [value[row] for row in order]
        for name, value in held.items()
    }
    return Table.of(moved, uids=(high[order], low[order]), block=block)


def brute(count: int, target: Array, candidates: Array) -> list[int]:
    """At every choice the pair whose addition brings the mean of v t' nearest to the target's covariance."""
    held = columns()
    images, texts = (unit_rows(held[f"{side}_embedding"]).astype(np.float64) for side in ("image", "text"))
    images, texts = images - images[target].mean(0), texts - texts[target].mean(0)
    aim = images[target].T @ texts[target] / len(target)
    ties = scramble(*uids())
    left = sorted(candidates.tolist(), key=lambda row: ties[row])
    chosen: list[int] = []
    for _ in range(count):
        norms = [np.linalg.norm(aim - images[[*chosen, row]].T @ texts[[*chosen, row]] / (len(chosen) + 1))
                 for row in left]  # fmt: skip
        chosen.append(left.pop(int(np.argmin(norms))))
    return chosen


def test_the_choice_is_the_brute_force_one() -> None:
    everything = np.arange(ROWS)
    assert Herding(n=30).rank(table()).rows.tolist() == brute(30, everything, everything)


def test_the_covariance_is_that_of_the_pool_or_of_the_rows_in_question() -> None:
    half = np.flatnonzero(np.arange(ROWS) % 2)
    alive = np.isin(np.arange(ROWS), half)
    of_pool = Herding(n=20).rank(table().among(alive)).rows.tolist()
    assert of_pool == brute(20, np.arange(ROWS), half)
    of_survivors = Herding(n=20, target="survivors").rank(table().among(alive)).rows.tolist()
    assert of_survivors == brute(20, half, half)
    assert of_pool != of_survivors


def test_each_class_keeps_its_own_part_of_the_covariance_in_proportion() -> None:
    kinds = np.array(columns()["kind"])
    found = Herding(n=40, per="kind").rank(table())
    names = sorted(set(kinds))
    sizes = np.array([np.count_nonzero(kinds == name) for name in names])
    turn = turns(sizes, sizes, 40)
    assert [str(kinds[row]) for row in found.rows] == [names[k] for k in turn]
    assert {line["class"]: line["kept"] for line in found.facts["classes"]} == dict(
        zip(names, np.bincount(turn).tolist(), strict=True)
    )
    # One class: the definition, around the centres of the whole pool.
    held = columns()
    images, texts = (unit_rows(held[f"{side}_embedding"]).astype(np.float64) for side in ("image", "text"))
    images, texts = images - images.mean(0), texts - texts.mean(0)
    mine = np.flatnonzero(kinds == names[0])
    aim = images[mine].T @ texts[mine] / mine.size
    norms = [float(np.linalg.norm(aim - np.outer(images[row], texts[row]))) for row in mine]
    assert next(int(row) for row in found.rows if kinds[row] == names[0]) == mine[int(np.argmin(norms))]


def test_a_class_without_pairs_to_choose_leaves_its_turns_to_others() -> None:
    kinds = np.array(columns()["kind"])
    alive = kinds != "c0"
    found = Herding(n=30, per="kind").rank(table().among(alive))
    assert len(found.rows) == 30
    assert not (kinds[found.rows] == "c0").any()
    lines = {line["class"]: line for line in found.facts["classes"]}
    assert lines["c0"] == {"class": "c0", "pairs": int((~alive).sum()), "kept": 0}


@pytest.mark.parametrize("per", [None, "kind"])
def test_smaller_budgets_are_beginnings(per: str | None) -> None:
    whole = Herding(n=ROWS, per=per).rank(table())
    assert sorted(whole.rows.tolist()) == list(range(ROWS))
    for n in (0, 1, 37):
        fewer = Herding(n=n, per=per).rank(table())
        assert fewer.rows.tolist() == whole.rows[:n].tolist()
        assert fewer.gains.tolist() == whole.gains[:n].tolist()


@pytest.mark.parametrize("block", [1, 7, 50])
@pytest.mark.parametrize("per", [None, "kind"])
def test_row_order_block_size_and_workers_do_not_matter(
    block: int, per: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = Herding(n=50, per=per).rank(table())
    order = np.random.default_rng(block).permutation(ROWS)
    for workers, gather in ((1, 1), (3, 60)):
        monkeypatch.setattr("tamis.selectors.latent_classes.WORKERS", workers)
        monkeypatch.setattr("tamis.selectors.vectors.GATHER", gather)
        moved = Herding(n=50, per=per).rank(table(order, block))
        assert order[moved.rows].tolist() == straight.rows.tolist()
        assert moved.gains.tolist() == straight.gains.tolist()


def test_the_length_of_stored_rows_does_not_matter() -> None:
    held = columns()
    longer = held["image_embedding"].copy()
    longer[::3] *= 4  # exact in float16
    straight = Herding(n=40, per="kind").rank(table())
    assert Herding(n=40, per="kind").rank(table(image_embedding=longer)).rows.tolist() == straight.rows.tolist()


def test_it_is_nearer_to_the_covariance_than_random_shares_and_says_how_near() -> None:
    held = columns()
    images, texts = (unit_rows(held[f"{side}_embedding"]) for side in ("image", "text"))
    whole = covariance(images, texts)
    rng = np.random.default_rng(6)
    drawn = [rng.permutation(ROWS)[:30] for _ in range(20)]
    random = [covariance_error(whole, covariance(images[rows], texts[rows])) for rows in drawn]
    found = Herding(n=30).rank(table())
    error = covariance_error(whole, covariance(images[found.rows], texts[found.rows]))
    assert error < 0.75 * min(random)
    assert error < 0.5 * np.mean(random)
    assert found.facts["covariance_error"] == pytest.approx(error, abs=1e-4)
    about = (images - images.mean(0))[found.rows].T @ (texts - texts.mean(0))[found.rows] / 30
    assert found.facts["herding_error"] == pytest.approx(covariance_error(whole, about), abs=1e-4)
    assert "classes" not in found.facts


def test_budgets_and_missing_rows() -> None:
    alive = np.zeros(ROWS, bool)
    alive[:61] = True
    assert Herding(fraction=0.25).select(table().among(alive)).counts == {"kept": 15, "adds less": 46, "missing": 0}
    assert Herding(fraction=0.25, of="pool").select(table().among(alive)).counts["kept"] == 30
    assert Herding(n=10**6).select(table().among(alive)).counts["kept"] == 61
    lost = columns()["image_embedding"].copy()
    lost[[3, 50]], lost[70], lost[80] = np.nan, 0, np.inf
    with pytest.raises(RecipeError, match="4 of 120 rows have no value for 'image_embedding and text_embedding'"):
        Herding(n=5).select(table(image_embedding=lost))
    found = Herding(n=40, missing="drop").select(table(image_embedding=lost))
    assert found.counts == {"kept": 40, "adds less": 76, "missing": 4}
    # A row that is not in question and has no embedding is no matter.
    alive[3:] = False
    assert Herding(n=2).select(table(image_embedding=lost).among(alive)).counts["kept"] == 2
    nothing = Herding(n=5).select(table().among(np.zeros(ROWS, bool)))
    assert nothing.counts == {"kept": 0, "adds less": 0, "missing": 0}
    assert nothing.facts == {}


def test_a_very_long_choice_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    Herding(n=5).select(table())
    assert not caplog.text
    monkeypatch.setattr("tamis.selectors.herding._MANY", 1e3)
    Herding(n=5).select(table())
    assert "'tamis cluster RUN' and 'per: cluster' in the step" in caplog.text


def test_the_funnel_names_it() -> None:
    line = run_steps(table(), [Herding(fraction=0.1, of="pool", per="kind")]).funnel[0].as_json()
    assert line["step"] == "Covariance herding: 10 % of the pool by classes of kind"
    assert Herding(n=1200).described == "Covariance herding: 1,200 pairs"


def test_wrong_settings_say_what_is_right() -> None:
    for settings in ({}, {"n": 1, "fraction": 0.5}):
        with pytest.raises(ValueError, match="herding needs fraction or n"):
            Herding(**settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        Herding(fraction=1.5)
    with pytest.raises(ValueError, match="n >= 0, got -1"):
        Herding(n=-1)
    with pytest.raises(RecipeError, match="'kind' is a column of words"):
        Herding(n=1, image="kind").select(table())
    with pytest.raises(RecipeError, match=r"herding: per takes a column of words or numbers, 'image_embedding' holds"):
        Herding(n=1, per="image_embedding").select(table())
    with pytest.raises(RecipeError, match="herding: image_embedding has 10 dimensions, text_embedding 4: they must"):
        Herding(n=1).select(table(text_embedding=columns()["text_embedding"][:, :4]))
