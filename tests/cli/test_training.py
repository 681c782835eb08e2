"""`tamis train c_ssft`, `tamis train c_rho` and the command for open_clip as they are typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import Tamis, everything

import tamis as library

pytest.importorskip("torch")
pytest.importorskip("transformers")


def scored_by(line: str, run: Path) -> np.ndarray[Any, Any]:
    """The scores by what a command printed for a recipe."""
    (signal,) = yaml.safe_load(line)
    (name,) = signal
    return library.score("pool", run=run, signals=[signal], quiet=True).to_numpy(name)


def test_c_ssft_prints_what_a_recipe_takes_and_finds_itself_done(
    tamis: Tamis, scored: Path, tmp_path: Path, clip_model: str
) -> None:
    command = ("train", "c_ssft", scored, "--model", clip_model, "--out", "mine", "--epochs", "2", "--train-batch", "8")
    done = tamis(*command)
    assert done.code == 0, done.err
    assert done.out == "- c_ssft: {folder: mine, epochs: 2}\n"
    assert "wrote mine: 6 steps, 48 samples of 21 pairs" in done.err
    before = everything(tmp_path / "mine")
    again = tamis(*command)
    assert (again.code, again.out) == (0, done.out)
    assert everything(tmp_path / "mine") == before
    assert np.isfinite(scored_by(done.out, scored)).all()


def test_c_rho_trains_on_a_subset_and_on_a_pool_that_has_no_run(
    tamis: Tamis, scored: Path, tmp_path: Path, clip_model: str
) -> None:
    library.select(library.open_run(scored), {"select": [{"top_n": {"score": "words", "n": 9}}]}).save("best.parquet")
    settings = ("--subset", "best.parquet", "--model", clip_model, "--train-batch", "8", "--epochs", "3")
    done = tamis("train", "c_rho", scored, "pool", "--out", "mine", *settings)
    assert done.code == 0, done.err
    assert done.out == "- c_rho: {clean: mine/clean, pool: mine/pool}\n"
    assert "wrote mine/clean: 4 steps, 32 samples of 9 pairs" in done.err
    assert "wrote mine/pool: 3 steps, 24 samples of 21 pairs" in done.err
    assert np.isfinite(scored_by(done.out, scored)).all()


def test_the_command_for_open_clip_sees_as_many_epochs_as_asked(tamis: Tamis, scored: Path, tmp_path: Path) -> None:
    library.select(library.open_run(scored), {"select": [{"top_n": {"score": "words", "n": 9}}]}).save("best.parquet")
    command = ("train", "clip", scored, "--scale", "small", "--train-batch", "8", "--open-clip", "0.tar")
    for more, samples in (
        ((), 12_800_000),
        (("--epochs", "10"), 210),
        (("--epochs", "10", "--subset", "best.parquet"), 90),
    ):
        done = tamis(*command, *more, "--out", "unused")
        assert done.code == 0, done.err
        words = done.out.split()
        of = {name: int(words[words.index(name) + 1]) for name in ("--train-num-samples", "--epochs")}
        assert of["--train-num-samples"] * of["--epochs"] == samples
    assert not (tmp_path / "unused").exists()
    for words, message in (
        (("--epochs", "0"), "epochs must be above 0 and finite, got 0"),
        (("--epochs", "2", "--samples", "9"), "--epochs and --samples both say how long the training is"),
    ):
        none = tamis(*command, *words, "--out", "unused")
        assert none.code == 2
        assert message in none.err


@pytest.mark.parametrize("command", ["clip", "c_ssft", "c_rho"])
def test_a_folder_of_other_files_is_refused_before_anything_is_written(
    tamis: Tamis, scored: Path, tmp_path: Path, clip_model: str, command: str
) -> None:
    folder = Path("photos/clean" if command == "c_rho" else "photos")  # the model of the clean pairs comes first
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / "cat.jpg").touch()
    sources = ("pool", "pool") if command == "c_rho" else ("pool",)
    done = tamis("train", command, *sources, "--model", clip_model, "--train-batch", "8", "--out", "photos")
    assert done.code == 2
    assert f"{folder} holds no training but other files (cat.jpg, ...): name another folder (--out)" in done.err
    assert [path.name for path in (tmp_path / folder).rglob("*")] == ["cat.jpg"]


def test_what_cannot_be_trained_ends_the_commands(tamis: Tamis, scored: Path, tmp_path: Path, clip_model: str) -> None:
    for arguments, message in (
        (("c_ssft", scored, "--model", "ViT-B-32"), "an architecture without weights"),
        (("c_ssft", scored, "--model", clip_model), "less than one batch of 1,024"),
        (("c_ssft", scored, "--model", "./lost", "--train-batch", "8"), "a folder of that name does not exist"),
        (("c_ssft", "lost", "--model", clip_model), "lost"),
        (("c_rho", scored, scored, "--scale", "huge"), "unknown scale 'huge'"),
        (("c_rho", scored, scored, "--learning-rate", "0"), "learning_rate must be above 0"),
    ):
        done = tamis("train", *arguments, "--out", "mine")
        assert done.code == 2, done.err
        assert message in done.err
        assert not (tmp_path / "mine" / "config.json").exists()
