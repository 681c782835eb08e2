"""scorer.json and feature.json are bound to their folder and hashed: no other one, and no changed one, is believed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from damage import small_run

import tamis
from tamis.data import Column
from tamis.errors import DamageError, RunError
from tamis.store import Run, manifest, parts
from tamis.store.records import described

RECIPE = {"name": "q", "select": [{"top_fraction": {"score": "clip", "fraction": 0.3}}]}


def two_clips(folder: Path) -> tuple[Path, Path]:
    """Writes a run with the scores of two settings of one scorer, and returns their folders."""
    run = small_run(folder).path
    column = Column(name="clip", unit="", better="high")
    columns = [{"name": "clip", "unit": "", "better": "high", "kind": "number", "about": ""}]
    rng = np.random.default_rng(1)
    places = []
    for label, letter in (("clip", "a"), ("clip_b", "b")):
        place = f"scores/clip-{letter * 16}"
        manifest.describe(run, {place: {"name": "clip", "label": label, "columns": columns}})
        opened = Run(run)
        for shard, size in zip(opened.shards, opened.sizes, strict=True):
            values = {"clip": rng.random(size)}
            uids = parts.uids_in(opened.index_path(shard))
            parts.write_scores(run / place / f"{shard}.parquet", [column], values, [None] * size, uids=uids)
        places.append(run / place)
    return places[0], places[1]


@pytest.fixture
def clips(tmp_path: Path) -> tuple[Path, Path]:
    return two_clips(tmp_path / "run")


def test_swapped_descriptions_choose_no_other_subset(clips: tuple[Path, Path]) -> None:
    run, before = clips[0].parents[1], tamis.select(clips[0].parents[1], RECIPE).keep
    assert tamis.check(run).exit_code == 0
    one, other = (folder / "scorer.json" for folder in clips)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    with pytest.raises(DamageError, match=rf"it was written for {clips[1].name}, and lies in {clips[0].name}"):
        tamis.select(run, RECIPE)
    found = tamis.check(run)
    assert [(each.kind, each.path) for each in found.findings] == [
        ("damaged", str(path.relative_to(run))) for path in (one, other)
    ]
    tamis.check(run, delete=True)
    assert not one.exists()
    assert len(list(run.glob("scores/clip-*/*.parquet"))) == 6
    one.write_bytes(first)
    other.write_bytes(second)
    np.testing.assert_array_equal(tamis.select(run, RECIPE).keep, before)


def test_a_label_that_stands_twice_is_refused(clips: tuple[Path, Path]) -> None:
    run = clips[0].parents[1]
    for folder in clips:
        facts = json.loads((folder / "scorer.json").read_text())
        (folder / "scorer.json").write_text(json.dumps(described(folder, {**facts, "label": "clip"})))
    for ask in (lambda: tamis.select(run, RECIPE), lambda: manifest.labels_of(run)):
        with pytest.raises(RunError, match=rf"are called 'clip', .*{clips[0].name} and .*{clips[1].name}, and nobody"):
            ask()
    found = tamis.check(run, delete=True)
    assert [(each.kind, each.deleted) for each in found.findings] == [("yours", False)]
    assert found.exit_code == 1


CHANGES: dict[str, Callable[[str], str]] = {
    "another label": lambda text: text.replace('"given"', '"gjven"', 2),
    "another direction": lambda text: text.replace('"high"', '"low"'),
    "no hash": lambda text: text.replace('"hash"', '"hath"'),
    "another hash": lambda text: text.replace('"hash": "', '"hash": "0'),
    "no maker": lambda text: text.replace('"maker"', '"makes"'),
    "not a number": lambda text: text.replace('"name": "given"', '"name": "given", "more": NaN'),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_description_that_says_something_else_is_damaged(change: str, tmp_path: Path) -> None:
    run = small_run(tmp_path / "run").path
    path = next(run.glob("scores/*/scorer.json"))
    path.write_text(CHANGES[change](path.read_text()))
    with pytest.raises(DamageError, match=r"what it says is not what was written|field required"):
        _ = Run(run).scores
    assert [each.kind for each in tamis.check(run).findings] == ["damaged"]
