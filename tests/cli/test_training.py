"""`tamis train c_ssft`, `train c_rho`, the command for open_clip and `evaluate zero-shot` as they are typed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from command_line import Tamis

import tamis as library

pytest.importorskip("torch")
pytest.importorskip("transformers")


def scored_by(line: str, run: Path) -> np.ndarray[Any, Any]:
    """The scores by what a command printed for a recipe."""
    (signal,) = yaml.safe_load(line)
    (name,) = signal
    return library.score("pool", run=run, signals=[signal], quiet=True).to_numpy(name)


def test_c_rho_trains_on_a_subset_and_on_a_pool_that_has_no_run(
    tamis: Tamis, scored: Path, tmp_path: Path, clip_model: str
) -> None:
    library.select(library.open_run(scored), {"select": [{"top_n": {"score": "words", "n": 9}}]}).save("best.parquet")
    same = ("--scale", "lab", "--model", clip_model, "--train-batch", "8")
    done = tamis.ok(
        "train", "c_rho", scored, "pool", "--out", "mine", "--subset", "best.parquet", "--epochs", "3", *same
    )
    assert f"scale lab: {clip_model}, batch 8, learning rate 0.002" in done.err
    assert done.out == "- c_rho: {clean: mine/clean, pool: mine/pool}\n"
    assert "wrote mine/clean: 4 steps, 32 samples of 9 pairs" in done.err
    assert "wrote mine/pool: 3 steps, 24 samples of 21 pairs" in done.err
    assert np.isfinite(scored_by(done.out, scored)).all()
    pool = ("pool", "--pretrained", clip_model, "--pool-epochs", "2")  # as ClipCov has it: the clean model is given
    done = tamis.ok("train", "c_rho", *pool, "--out", "other", *same)
    assert done.out == f"- c_rho: {{clean: {clip_model}, pool: other/pool}}\n"
    assert "wrote other/pool: 6 steps, 48 samples of 21 pairs" in done.err
    assert [path.name for path in Path("other").iterdir()] == ["pool"]
    again = tamis("train", "c_rho", "pool", "--pretrained", "other/pool", "--out", "other", *same)
    assert (again.code, "the same model" in again.err) == (2, True)
    assert np.isfinite(scored_by(done.out, scored)).all()


def test_the_command_for_open_clip_sees_as_many_epochs_as_asked(tamis: Tamis, scored: Path, tmp_path: Path) -> None:
    library.select(library.open_run(scored), {"select": [{"top_n": {"score": "words", "n": 9}}]}).save("best.parquet")
    command = ("train", "clip", scored, "--scale", "small", "--train-batch", "8", "--open-clip", "0.tar")
    for more, samples in (
        ((), 12_800_000),
        (("--epochs", "10"), 210),
        (("--epochs", "10", "--subset", "best.parquet"), 90),
    ):
        done = tamis.ok(*command, *more, "--out", "unused")
        words = done.out.split()
        of = {name: int(words[words.index(name) + 1]) for name in ("--train-num-samples", "--epochs")}
        assert of["--train-num-samples"] * of["--epochs"] == samples
    assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("c_ssft run --model MODEL", "batch 1,024"),
        ("c_ssft lost --model MODEL", "lost"),
        ("c_rho run run --scale huge", "'huge'"),
        ("c_rho run run --model MODEL", "--scale small"),
        ("c_rho run --scale lab", "expected 2 got 1"),
        ("c_rho run run --scale lab --pretrained MODEL", "expected 1 got 2"),
        ("c_rho run --scale lab --pretrained lab/clap", "lab/clip"),
        ("c_rho run --scale lab --pretrained lab/clip --epochs 3", "clean set, which --pretrained replaces"),
        ("c_rho run --scale lab --pretrained lab/clip --subset best.parquet", "clean set, which --pretrained replaces"),
        ("c_rho run --scale lab --pretrained lab/language-model", "embeddings of images and captions take one of"),
        ("c_rho run run --scale lab --learning-rate 0", "learning_rate"),
        ("c_rho pool pool --scale lab --model MODEL --train-batch 8", "mine/clean cat.jpg"),  # that model comes first
    ],
)
def test_what_cannot_be_trained_ends_the_command_before_any_training(
    tamis: Tamis, scored: Path, tmp_path: Path, clip_model: str, words: str, names: str
) -> None:
    if "cat.jpg" in names:
        (tmp_path / "mine" / "clean").mkdir(parents=True)
        (tmp_path / "mine" / "clean" / "cat.jpg").touch()
    done = tamis("train", *words.replace("MODEL", clip_model).split(), "--out", "mine")
    assert (done.code, [name for name in names.split() if name not in done.err]) == (2, []), done.err
    assert not list((tmp_path / "mine").rglob("*.json"))


def test_the_labs_tasks_are_drawn_and_a_model_is_measured_on_them(tamis: Tamis, clip_model: str) -> None:
    drawn = tamis("lab", "make-tasks", "tasks", "--size", "12")
    assert drawn.code == 0
    assert "wrote 5 tasks of 12 images each" in drawn.err
    arguments = ("evaluate", "zero-shot", clip_model, "--tasks", "tasks", "--out", "out")
    done = tamis.ok(*arguments, "--json")
    found = json.loads(done.out)
    assert len(found["tasks"]) == 5
    table = tamis(*arguments, "-q")
    assert table.code == 0
    assert "acc1" in table.out
