"""The trainings of C-SSFT and C-RHO: what they write, how they resume, what they refuse."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch_processes import on_processes
from trainings import CPU, assert_same_model, make_run, metrics, weights

import tamis
from tamis.core.errors import ModelError, RunError
from tamis.runs import Run
from tamis.runs.subset import Subset
from tamis.signals import CRho, CSsft
from tamis.train.clip import (
    Trained,
    TrainingSet,
    fine_tuning,
    over_epochs,
    train_c_rho,
    train_c_ssft,
)
from tamis.train.scales import ClipTraining, at_scale

HOW = replace(CPU, save_every=1)


def fine_tuned(run: Run, out: Path, training: ClipTraining, source: Run | Subset | None = None) -> Trained:
    source = run if source is None else source  # an empty subset counts as false
    return train_c_ssft(source, out=out, training=training, how=HOW, epochs=3)


def two_trained(run: Run, out: Path, training: ClipTraining, epochs: int = 4) -> list[Trained]:
    parts = [TrainingSet(source=run, epochs=number) for number in (epochs, 1)]
    return list(train_c_rho(*parts, out=out, training=training, how=HOW).values())


def test_every_epochs_model_is_kept_and_the_signal_takes_the_folder(run: Run, tmp_path: Path, clip_model: str) -> None:
    # Batches of 6 end no epoch of 16 pairs on their own.
    done = fine_tuned(run, tmp_path / "out", fine_tuning(clip_model, learning_rate=1e-2, batch=6))
    assert (done.steps, done.pairs) == (8, 16)
    assert sorted(path.name for path in (tmp_path / "out").glob("epoch-*")) == ["epoch-1", "epoch-2", "epoch-3"]
    first, second = (weights(tmp_path / "out" / f"epoch-{number}")["logit_scale"] for number in (1, 2))
    assert first != second
    signal = CSsft(folder=str(tmp_path / "out"), epochs=3)
    scored = tamis.score(run.pool.spec, run=tmp_path / "scored", signals=[signal], quiet=True)
    assert np.isfinite(scored.to_numpy("c_ssft")).all()


def both_here(path: str, out: str, training: ClipTraining) -> None:
    two_trained(Run(path), Path(out), training)


def test_c_rho_trains_a_model_twice_and_resumes_in_either(run: Run, tmp_path: Path, clip_model: str, kill: Any) -> None:
    training = at_scale("lab", model=clip_model, batch=8)
    clean, pool = alone = two_trained(run, tmp_path / "whole", training)
    assert [one.folder.name for one in alone] == ["clean", "pool"]
    assert [one.samples for one in alone] == [64, 16]
    signal = CRho(clean=str(clean.folder), pool=str(pool.folder))
    scored = tamis.score(run.pool.spec, run=tmp_path / "scored", signals=[signal], quiet=True)
    assert np.isfinite(scored.to_numpy("c_rho")).all()
    with kill(10):  # eight steps are the clean model's, two the pool's
        two_trained(run, tmp_path / "killed", training)
    again = two_trained(run, tmp_path / "killed", training)
    assert [len(one.losses) for one in again] == [0, 1]
    on_processes(2, both_here, str(run.path), str(tmp_path / "two"), training)
    for one in alone:
        assert_same_model(one.folder, tmp_path / "killed" / one.folder.name)
        two = metrics(tmp_path / "two" / one.folder.name)
        assert [line["loss"] for line in two] == pytest.approx(one.losses, abs=1e-4)


def test_what_cannot_be_trained_on_is_refused(run: Run, tmp_path: Path, clip_model: str) -> None:
    out = tmp_path / "out"
    with pytest.raises(RunError, match="16 pairs, less than one --train-batch of 1,024"):
        fine_tuned(run, out, fine_tuning(clip_model))
    with pytest.raises(ModelError, match="ViT-B-32 is an architecture"):
        fine_tuning("ViT-B-32")
    with pytest.raises(ValueError, match="epochs"):
        over_epochs(ClipTraining(samples=8, batch=8), run, 0)
    assert not out.exists()


def test_faults_of_the_second_training_stop_before_the_first(run: Run, tmp_path: Path, clip_model: str) -> None:
    training = at_scale("lab", model=clip_model, batch=8)
    small = Subset(run=run, keep=np.arange(len(run)) < 5)
    gone = make_run(tmp_path, shards=1)
    pools = [TrainingSet(source=source, epochs=1) for source in (run, small, gone)]
    Path(gone.pool.shards[0].url).unlink()
    for second, message in ((pools[1], "5 pairs"), (pools[2], r"00000\.tar")):
        with pytest.raises(RunError, match=message):
            train_c_rho(pools[0], second, out=tmp_path / "out", training=training, how=HOW)
        assert not (tmp_path / "out").exists()
    (tmp_path / "out" / "pool").mkdir(parents=True)
    (tmp_path / "out" / "pool" / "water.txt").touch()
    with pytest.raises(RunError, match="other files"):
        two_trained(run, tmp_path / "out", training)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["pool"]
    two_trained(run, tmp_path / "other", training, epochs=1)
    shutil.rmtree(tmp_path / "other" / "clean")
    with pytest.raises(RunError, match="learning_rate"):
        two_trained(run, tmp_path / "other", replace(training, learning_rate=0.1))
    assert not (tmp_path / "other" / "clean").exists()
