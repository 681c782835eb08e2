"""One pool however it is spelt, and the scores that a recipe means where a run holds several."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from factories import clip_folder, pair, write_pool, write_tar

import tamis
from tamis.core.errors import RecipeError
from tamis.signals import ClipScore


def test_five_spellings_of_one_pool_are_one_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pool(tmp_path / "pool", shards=2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for spelling in ("pool", "./pool", str(tmp_path / "pool"), f"file://{tmp_path}/pool", "~/pool"):
        run = tamis.score(spelling, run="run", signals=["caption_length"], quiet=True)
        assert run.shards == ("00000", "00001")
    both = tamis.PoolSpec(path=("pool", "./pool"))
    assert len(tamis.score(both, run="run", signals=["caption_length"], quiet=True)) == 14


def test_a_run_finds_its_pool_from_any_folder_and_a_moved_pool_keeps_its_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pool(tmp_path / "pool", shards=1)
    monkeypatch.chdir(tmp_path)
    tamis.score("pool", run="run", signals=["caption_length"], quiet=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert tamis.export(tamis.select("../run", "no-filter"), "webdataset", "out") == 7
    (tmp_path / "pool").rename(tmp_path / "moved")
    run = tamis.score(tmp_path / "moved", run=tmp_path / "run", signals=["caption_length"], quiet=True)
    assert run.urls == {"00000": str(tmp_path / "moved" / "00000.tar")}


def test_a_recipe_selects_by_the_settings_it_scores_with(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=2)
    one, two = (str(clip_folder(tmp_path / name, seed)) for name, seed in (("one", 1), ("two", 2)))
    run = tamis.score(pool, run=tmp_path / "run", signals=[ClipScore(model=one), ClipScore(model=two)], quiet=True)
    best = {"select": [{"top_n": {"score": "clip", "n": 3}}]}
    labels = {group.facts["settings"]["model"]: label for label, group in run.scores.items()}
    for model in (one, two):
        chosen = tamis.select(run, {**best, "signals": [{"clip": {"model": model}}]})
        assert chosen.reads == [f"{labels[model]}.clip"]
        scores = run.to_numpy(f"{labels[model]}.clip")
        assert sorted(scores[chosen.keep]) == sorted(scores)[-3:]
    with pytest.raises(RecipeError, match=r"others: choose one with --set columns\.clip="):
        tamis.select(run, {**best, "signals": [{"clip": {"model": "owner/other"}}]})


def test_files_that_changed_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "pool" / "0.tar"
    write_tar(path, [("a", pair(1)), ("b", pair(2))])

    def score(signal: str) -> tamis.Run:
        return tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=[signal], quiet=True)

    score("caption_length")
    write_tar(path, [("a", pair(1)), ("b", pair(2) | {"txt": b"something else altogether"})])
    with caplog.at_level(logging.WARNING):
        score("caption_length")  # nothing to do, but the files are not those any more
    assert "1 shard of another size or time than when indexed; to read one again" in caplog.text
    assert "another caption in row 1" in score("text_area").failures["0"]
