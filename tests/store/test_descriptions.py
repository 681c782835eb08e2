"""scorer.json and feature.json are bound to their folder and sealed: no other one, and no changed one, is believed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from damage import small_run
from factories import write_pool

import tamis
from tamis.data import Column
from tamis.errors import DamageError, RunError
from tamis.store import Run, manifest, parts
from tamis.store.descriptions import read_description

RECIPE = {"name": "q", "select": [{"top_fraction": {"score": "clip", "fraction": 0.3}}]}


def two_clips(folder: Path) -> tuple[Path, Path]:
    """Writes a run with the scores of two settings of one scorer, and returns their folders."""
    run = small_run(folder).path
    column = Column(name="clip", unit="", better="high")
    described = [{"name": "clip", "unit": "", "better": "high", "kind": "number", "about": ""}]
    rng = np.random.default_rng(1)
    places = []
    for label, letter in (("clip", "a"), ("clip_b", "b")):
        place = f"scores/clip-{letter * 16}"
        manifest.describe(run, {place: {"name": "clip", "label": label, "columns": described}})
        opened = Run(run)
        for shard, size in zip(opened.shards, opened.sizes, strict=True):
            values = {"clip": rng.random(size)}
            uids = parts.uids_of(opened.index_path(shard))
            parts.write_scores(run / place / f"{shard}.parquet", [column], values, [None] * size, uids=uids)
        places.append(run / place)
    return places[0], places[1]


@pytest.fixture
def clips(tmp_path: Path) -> tuple[Path, Path]:
    return two_clips(tmp_path / "run")


def test_swapped_descriptions_choose_no_other_subset(clips: tuple[Path, Path]) -> None:
    run, before = clips[0].parents[1], tamis.select(clips[0].parents[1], RECIPE).keep
    assert tamis.doctor(run).exit_code == 0
    one, other = (folder / "scorer.json" for folder in clips)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    with pytest.raises(DamageError, match=rf"it was written for {clips[1].name}, and lies in {clips[0].name}"):
        tamis.select(run, RECIPE)
    found = tamis.doctor(run)
    assert [(each.kind, each.path) for each in found.findings] == [
        ("damage", str(path.relative_to(run))) for path in (one, other)
    ]
    tamis.doctor(run, repair=True)
    assert not one.exists()
    assert len(list(run.glob("scores/clip-*/*.parquet"))) == 6
    one.write_bytes(first)
    other.write_bytes(second)
    np.testing.assert_array_equal(tamis.select(run, RECIPE).keep, before)


def test_a_label_that_stands_twice_is_refused(clips: tuple[Path, Path]) -> None:
    run = clips[0].parents[1]
    for folder in clips:  # as older versions wrote it: bound to nothing
        facts = json.loads((folder / "scorer.json").read_text())
        older = {key: value for key, value in facts.items() if key not in ("maker", "seal")}
        (folder / "scorer.json").write_text(json.dumps({**older, "label": "clip"}))
    for ask in (lambda: tamis.select(run, RECIPE), lambda: manifest.labels_of(run)):
        with pytest.raises(RunError, match=rf"are called 'clip', .*{clips[0].name} and .*{clips[1].name}, and nobody"):
            ask()
    found = tamis.doctor(run, repair=True)
    assert [(each.kind, each.repaired) for each in found.findings] == [("yours", False)]
    assert found.exit_code == 1


CHANGES: dict[str, Callable[[str], str]] = {
    "another label": lambda text: text.replace('"given"', '"gjven"', 2),
    "another direction": lambda text: text.replace('"high"', '"low"'),
    "no seal": lambda text: text.replace('"seal"', '"sebl"'),
    "another seal": lambda text: text.replace('"seal": "', '"seal": "0'),
    "no maker": lambda text: text.replace('"maker"', '"makes"'),
    "not a number": lambda text: text.replace('"name": "given"', '"name": "given", "more": NaN'),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_description_that_says_something_else_is_damaged(change: str, tmp_path: Path) -> None:
    run = small_run(tmp_path / "run").path
    path = next(run.glob("scores/*/scorer.json"))
    path.write_text(CHANGES[change](path.read_text()))
    with pytest.raises(DamageError, match=r"what it says is not what was written|it has lost its seal"):
        _ = Run(run).scores
    assert [each.kind for each in tamis.doctor(run).findings] == ["damage"]


def test_the_fingerprint_of_an_older_description_is_compared(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=1, rows=3)
    run = tamis.score(pool, run=tmp_path / "run", scores=["caption_length", "image_size"], quiet=True)
    for group in run.scores.values():
        older = {key: value for key, value in group.facts.items() if key not in ("maker", "seal")}
        (group.folder / "scorer.json").write_text(json.dumps(older))
        assert read_description(group.folder / "scorer.json") == older
    one, other = (group.folder for group in run.scores.values())
    shutil.copyfile(one / "scorer.json", other / "scorer.json")
    with pytest.raises(DamageError, match=rf"it was written for {one.name}, and lies in {other.name}"):
        read_description(other / "scorer.json")
    (other / "scorer.json").unlink()
    tamis.score(pool, run=run.path, scores=["caption_length", "image_size"], quiet=True)
    assert {read_description(group.folder / "scorer.json")["maker"] for group in Run(run.path).scores.values()} == {
        one.name,
        other.name,
    }
    assert tamis.doctor(run.path).exit_code == 0
