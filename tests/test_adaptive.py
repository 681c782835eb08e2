"""`adaptive` SIEVE: what is drawn, what is kept, what goes on, and recipes that have no cut."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import captioner_folder, parts_of

import tamis
from tamis import adaptive
from tamis.errors import RecipeError, RunError
from tamis.explore.columns import HeldRun
from tamis.explore.tags import Tags

pytest.importorskip("scipy")

HOW: Any = {"quiet": True, "precision": "float32"}  # so that captions are the same in every batch


def recipe(captioner: str, *select: Any, **settings: Any) -> dict[str, Any]:
    given = {"captioner": captioner, "sampling": {"captions": 3, "max_tokens": 8}, "adaptive": True, **settings}
    return {"signals": [{"sieve": given}], "select": list(select)}


def test_all_captions_are_drawn_where_they_can_change_what_is_kept(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptive, "_PILOT", (0.05, 4, 2000))
    monkeypatch.setattr(adaptive, "_WRONG", 0.2)
    captioner = str(captioner_folder(tmp_path / "blip"))
    status, top = {"equals": {"score": "status", "value": "ok"}}, {"score": "sieve", "fraction": 0.4, "missing": "drop"}
    chosen = recipe(captioner, status, {"top_fraction": top})
    run = tamis.score(pool, run=tmp_path / "run", recipe=chosen, **HOW)
    plain = recipe(captioner, adaptive=False)["signals"]
    full = tamis.score(pool, run=tmp_path / "full", signals=plain, **HOW)["sieve"]
    one, three, drawn = run["sieve_1.sieve"], run["sieve_3.sieve"], run["captions_drawn"]
    judged = ~np.isnan(one)
    assert (three[judged] >= one[judged] - 1e-4).sum() + np.isnan(three[judged]).sum() == judged.sum()
    np.testing.assert_array_equal(run.asked(run.scores["sieve_3"]), drawn == 3)
    assert 4 <= np.count_nonzero(drawn == 3) < np.count_nonzero(drawn == 1)
    np.testing.assert_allclose(run["sieve"][drawn == 3], full[drawn == 3], atol=1e-4)
    others = drawn == 1
    assert np.ptp(run["sieve"][others & judged] - one[others & judged]) < 1e-6
    subset = tamis.select(run, chosen)
    assert subset.kept == round(0.4 * np.count_nonzero(~np.isnan(drawn)))
    assert subset.keep[others & (one >= subset.funnel[-1]["cut"])].all()
    assert subset.verdict.names.get("sieve", "sieve") == "sieve.sieve"
    before = parts_of(run.path)
    tamis.score(pool, run=run.path, recipe=chosen, **HOW)
    tamis.score(pool, run=run.path, recipe=run.path / "recipe.yaml", **HOW)
    assert parts_of(run.path) == before
    assert [part.shards for part in tamis.plan(pool, run=run.path, recipe=chosen, precision="float32").missing][:2] == [
        0,
        0,
    ]


def test_the_column_is_for_its_cut_and_its_candidates_alone(pool: Path, tmp_path: Path) -> None:
    top = {"top_fraction": {"score": "sieve", "fraction": 0.4, "missing": "drop"}}
    chosen = recipe(str(captioner_folder(tmp_path / "blip")), {"tagged": "mine"}, top)
    run = tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], **HOW)
    Tags(HeldRun(run.path)).change(np.arange(10), add=["mine"])
    run = tamis.score(pool, run=run.path, recipe=chosen, **HOW)
    assert tamis.select(run, chosen).kept == 4
    with pytest.raises(RunError, match=r"'top 2 by sieve' reads sieve.sieve, which is for 'top 40 % of .*' alone"):
        tamis.select(run, {"select": [{"tagged": "mine"}, {"top_n": {"score": "sieve", "n": 2}}]})
    tags = Tags(HeldRun(run.path))
    tags.change(np.arange(5), remove=["mine"])
    tags.change(np.arange(11, 16), add=["mine"])  # as many
    with pytest.raises(RunError, match=r"of other candidates than .* the tags .* give now: repeat `tamis score`"):
        tamis.select(run.path, chosen)
    run = tamis.score(pool, run=run.path, recipe=chosen, **HOW)
    assert set(np.flatnonzero(tamis.select(run, chosen).keep)) <= {*range(5, 10), *range(11, 16)}
    assert len([part for part in parts_of(run.path) if "scores/adaptive-" in part]) == 3  # the other is gone
    shutil.copy(pool / "00000.tar", pool / "00003.tar")
    run = tamis.score(pool, run=run.path, signals=["caption_length"], **HOW)
    Tags(HeldRun(run.path)).change(np.array([22]), add=["mine"])
    with pytest.raises(RunError, match="the score 'sieve' is incomplete: 3 of 4 shards"):
        tamis.select(run.path, chosen)
    run = tamis.score(pool, run=run.path, recipe=chosen, **HOW)
    assert tamis.select(run, chosen).kept == 4


def test_a_threshold_is_the_cut(pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptive, "_PILOT", (0.05, 4, 2000))
    monkeypatch.setattr(adaptive, "_WRONG", 0.0)
    captioner = str(captioner_folder(tmp_path / "blip"))
    low = {"at_least": {"score": "best", "value": 0.1, "missing": "drop"}}
    chosen = {**recipe(captioner, low), "columns": {"best": "sieve"}}
    steps = {key: value for key, value in chosen.items() if key != "signals"}
    run = tamis.score(pool, run=tmp_path / "run", recipe=steps, signals=chosen["signals"], **HOW)
    plain = recipe(captioner, adaptive=False)["signals"]
    full = tamis.score(pool, run=tmp_path / "full", signals=plain, **HOW)["sieve"]
    np.testing.assert_array_equal(tamis.select(run, chosen).keep, full >= np.float32(0.1))
    assert (run["captions_drawn"] == 1).any()


@pytest.mark.parametrize(
    ("select", "settings"),
    [
        ([], {}),
        ([{"top_n": {"score": "sieve", "n": 2}}, {"at_least": {"score": "sieve", "value": 0.1}}], {}),
        ([{"top_n": {"score": "rank(sieve)", "n": 2}}], {}),
        ([{"top_n": {"score": "sieve", "n": 2, "per": "width"}}], {}),
        ([{"all_of": [[{"top_n": {"score": "sieve", "n": 2}}]]}], {}),
        ([{"top_n": {"score": "sieve", "n": 2}}], {"sampling": {"captions": 1}}),
        ([{"top_n": {"score": "sieve", "n": 2}}], {"within": "basic"}),
        ([{"top_n": {"score": "sieve", "n": 2}}], {"adaptive": 3}),
    ],
)
def test_recipes_without_one_cut_are_errors_before_any_work(
    pool: Path, tmp_path: Path, select: list[Any], settings: dict[str, Any]
) -> None:
    with pytest.raises(RecipeError, match="adaptive"):
        tamis.score(pool, run=tmp_path / "run", recipe=recipe("lab/captioner", *select, **settings), **HOW)
    assert not (tmp_path / "run").exists()


def test_a_derived_signal_cannot_read_the_score(pool: Path, tmp_path: Path) -> None:
    chosen = recipe("lab/captioner", {"top_n": {"score": "sieve", "n": 2}})
    chosen["signals"].append({"mix": {"terms": {"sieve": 1}}})
    with pytest.raises(RecipeError, match="mix reads 'sieve' of all rows, so adaptive saves nothing"):
        tamis.score(pool, run=tmp_path / "run", recipe=chosen, **HOW)
    assert not (tmp_path / "run").exists()
