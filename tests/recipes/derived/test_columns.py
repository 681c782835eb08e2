"""Derived signals in commands: computed after the pass, listed by a dry run, and again when rows were added."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from command_line import Tamis
from factories import pair, write_metadata, write_tar

import tamis as library
from tamis.runs import Run

RECIPE = {
    "signals": ["caption_length", {"vote": {"scores": ["words", "characters"], "quantile": 0.5}}],
    "select": [{"at_least": {"score": "votes", "value": 2}}],
}


def test_a_recipe_is_scored_derived_and_selected_and_again_when_the_pool_grows(tamis: Tamis, tmp_path: Path) -> None:
    for shard in range(3):
        write_tar(tmp_path / f"{shard:05d}.tar", [(f"{row}", pair(row)) for row in range(4 * shard, 4 * shard + 4)])
    Path("votes.yaml").write_text(json.dumps(RECIPE))
    first = ["{00000..00001}.tar", "--run", "run", "--device", "cpu"]
    dry = tamis("score", *first, "--recipe", "votes.yaml", "--dry-run")
    assert "derived   vote: 2 shards to do" in dry.out
    assert tamis("run", *first, "--recipe", "votes.yaml").code == 0
    run = Run("run")
    words, characters = run["words"], run["characters"]
    expected = (words > np.median(words)) + 1.0 * (characters > np.median(characters))
    np.testing.assert_array_equal(run["votes"], expected)
    assert "derived   vote: 0 shards to do" in tamis("score", *first, "--recipe", "votes.yaml", "--dry-run").out

    assert tamis("score", "00002.tar", "--run", "run", "--signals", "caption_length", "--grow").code == 0
    stale = tamis("select", "run", "--recipe", "votes.yaml", "--out", "out.parquet")
    assert stale.code == 2
    assert "2 of 3 shards have it (00002 has not); repeat `tamis derive` first" in stale.err
    assert tamis("derive", "run", "--recipe", "votes.yaml").code == 0
    words = Run("run")["words"]
    assert words.size == 12
    assert (Run("run")["votes"] >= (words > np.median(words))).all()
    assert len(list(Path("run/scores").glob("vote-*"))) == 1
    assert tamis("select", "run", "--recipe", "votes.yaml", "--out", "out.parquet").code == 0


def test_shards_without_rows_take_no_values_of_others(tmp_path: Path) -> None:
    arrays = [
        write_metadata(tmp_path / "m" / f"{shard:08d}.parquet", rows, seed=shard)
        for shard, rows in enumerate((0, 5, 0))
    ]
    run = library.score(tmp_path / "m", run=tmp_path / "run", signals=["caption_length"])
    np.save(tmp_path / "targets.npy", arrays[1]["l14_img"])
    names, target = {"image": "l14_img", "text": "l14_txt"}, str(tmp_path / "targets.npy")
    signals = [{"norm_sim": {"targets": target, "embedding": "l14_img"}}, {"clip_loss": names}]
    frame = library.derive(run, signals).to_pandas()
    np.testing.assert_allclose(frame["norm_sim"], np.ones(5), rtol=1e-3)
    assert frame["clip_loss"].notna().all()


def test_a_derivation_ends_well_while_another_writes_its_unfinished_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_metadata(tmp_path / "m" / "00000000.parquet")
    run = library.score(tmp_path / "m", run=tmp_path / "run", signals=["caption_length"])
    monkeypatch.setattr(Path, "rmdir", Mock(side_effect=OSError(39, "Directory not empty")))
    derived = library.derive(run, [{"clip_loss": {"image": "l14_img", "text": "l14_txt"}}])
    assert not np.isnan(derived["clip_loss"]).any()
