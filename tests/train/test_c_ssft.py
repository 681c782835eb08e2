"""The trainings of C-SSFT and C-RHO, as Python and as commands: what they write, how they go on, what they refuse."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from factories import write_pool  # noqa: E402
from torch_processes import on_processes  # noqa: E402

import tamis  # noqa: E402
from tamis.data import Device  # noqa: E402
from tamis.errors import ModelError, RunError  # noqa: E402
from tamis.signals import CRho, CSsft  # noqa: E402
from tamis.store import Run  # noqa: E402
from tamis.store.stream import pool_of  # noqa: E402
from tamis.store.subset import Subset  # noqa: E402
from tamis.train.c_rho import Part, train_c_rho  # noqa: E402
from tamis.train.c_ssft import fine_tuning, over_epochs, train_c_ssft  # noqa: E402
from tamis.train.clip import Trained  # noqa: E402
from tamis.train.clip_loop import How, Step  # noqa: E402
from tamis.train.scales import ClipTraining, at_scale  # noqa: E402

CPU = How(device=Device(kind="cpu", threads=1, batch_size=8), report_every=1, save_every=1)


def indexed(folder: Path, shards: int = 2) -> Run:
    write_pool(folder / "pool", shards=shards, rows=8)
    return tamis.score(folder / "pool", run=folder / "run", scores=["caption_length"], quiet=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return indexed(tmp_path_factory.mktemp("c-ssft"))


def fine_tuned(
    run: Run, out: Path, training: ClipTraining, source: Run | Subset | None = None, epochs: int = 3
) -> Trained:
    source = run if source is None else source  # an empty subset counts as false
    return train_c_ssft(source, pool=pool_of(run), out=out, training=training, how=CPU, epochs=epochs)


def two_trained(run: Run, out: Path, training: ClipTraining, epochs: int = 4) -> tuple[Trained, Trained]:
    parts = [Part(source=run, pool=pool_of(run), epochs=number) for number in (epochs, 1)]
    return train_c_rho(*parts, out=out, training=training, how=CPU)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return dict(load_file(folder / "model.safetensors"))


def same(one: Path, two: Path) -> bool:
    other = weights(two)
    return all(torch.equal(values, other[name]) for name, values in weights(one).items())


class Killed(BaseException):
    """What stands for a kill."""


def killed_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the process die in a step, counted over all trainings."""
    plain = Step.backward
    seen: Iterator[int] = iter(range(1, 1000))

    def backward(self: Step, loss: torch.Tensor) -> None:
        if next(seen) == step:
            raise Killed
        plain(self, loss)

    monkeypatch.setattr(Step, "backward", backward)


def test_the_papers_settings_are_the_defaults(run: Run) -> None:
    training = fine_tuning("somewhere/clip")
    assert (training.learning_rate, training.batch, training.warmup) == (1e-5, 1024, 200)
    assert CSsft(folder="x").epochs == 5
    # 16 pairs, 5 epochs, batches of 4: 20 steps, of which a tenth warm up.
    fitted = over_epochs(replace(training, batch=4), run, 5)
    assert (fitted.samples, fitted.steps, fitted.warmup) == (80, 20, 2)
    assert over_epochs(replace(training, batch=4, warmup=1), run, 5).warmup == 1


def test_every_epochs_model_is_kept_and_the_scorer_takes_the_folder(run: Run, tmp_path: Path, clip_model: str) -> None:
    # Batches of 6 end no epoch of 16 pairs on their own.
    done = fine_tuned(run, tmp_path / "out", fine_tuning(clip_model, learning_rate=1e-2, batch=6))
    assert (done.steps, done.pairs) == (8, 16)
    assert sorted(path.name for path in (tmp_path / "out").glob("epoch-*")) == ["epoch-1", "epoch-2", "epoch-3"]
    assert not same(tmp_path / "out" / "epoch-1", tmp_path / "out" / "epoch-2")
    scorer = CSsft(folder=str(tmp_path / "out"), epochs=3)
    scored = tamis.score(pool_of(run).spec, run=tmp_path / "scored", scores=[scorer], quiet=True)
    assert np.isfinite(scored.to_numpy("c_ssft")).all()


def test_a_killed_fine_tuning_goes_on_to_the_same_epochs(
    run: Run, tmp_path: Path, clip_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = fine_tuning(clip_model, learning_rate=1e-2, batch=8)
    fine_tuned(run, tmp_path / "whole", training)
    with monkeypatch.context() as patch:
        killed_at(4, patch)
        with pytest.raises(Killed):
            fine_tuned(run, tmp_path / "killed", training)
    assert (tmp_path / "killed" / "epoch-1").is_dir()
    assert not (tmp_path / "killed" / "epoch-2").exists()
    with pytest.raises(ModelError, match="no whole epoch-2"):
        CSsft(folder=str(tmp_path / "killed"), epochs=3).needs()
    fine_tuned(run, tmp_path / "killed", training)
    for number in (1, 2, 3):
        assert same(tmp_path / "whole" / f"epoch-{number}", tmp_path / "killed" / f"epoch-{number}")


def test_c_rho_trains_the_same_model_twice_for_its_epochs(run: Run, tmp_path: Path, clip_model: str) -> None:
    training = at_scale("lab", model=clip_model, batch=8)
    clean, pool = two_trained(run, tmp_path, training)
    assert (clean.folder, pool.folder) == (tmp_path / "clean", tmp_path / "pool")
    assert (clean.samples, pool.samples) == (64, 16)
    scorer = CRho(clean=str(clean.folder), pool=str(pool.folder))
    scored = tamis.score(pool_of(run).spec, run=tmp_path / "scored", scores=[scorer], quiet=True)
    assert np.isfinite(scored.to_numpy("c_rho")).all()


def test_a_killed_c_rho_goes_on_in_the_training_where_it_stopped(
    run: Run, tmp_path: Path, clip_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = at_scale("lab", model=clip_model, batch=8)
    two_trained(run, tmp_path / "whole", training)
    with monkeypatch.context() as patch:
        killed_at(10, patch)  # eight steps are the clean model's, two the pool's
        with pytest.raises(Killed):
            two_trained(run, tmp_path / "killed", training)
    clean, pool = two_trained(run, tmp_path / "killed", training)
    assert (len(clean.losses), len(pool.losses)) == (0, 1)
    for name in ("clean", "pool"):
        assert same(tmp_path / "whole" / name, tmp_path / "killed" / name)


def both_here(path: str, out: str, training: ClipTraining) -> None:
    two_trained(Run(path), Path(out), training)


def test_two_processes_train_both_models(run: Run, tmp_path: Path, clip_model: str) -> None:
    training = at_scale("lab", model=clip_model, batch=8)
    alone = two_trained(run, tmp_path / "one", training)
    on_processes(2, both_here, str(run.path), str(tmp_path / "two"), training)
    for name, done in zip(("clean", "pool"), alone, strict=True):
        lines = (tmp_path / "two" / name / "training" / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["loss"] for line in lines] == pytest.approx(done.losses, abs=1e-4)


def test_an_empty_subset_is_refused(run: Run, tmp_path: Path, clip_model: str) -> None:
    nothing = Subset(run=run, keep=np.zeros(len(run), bool))
    with pytest.raises(RunError, match="there is nothing to train on"):
        fine_tuned(run, tmp_path / "out", fine_tuning(clip_model, batch=8), nothing)
    assert not (tmp_path / "out").exists()


def test_less_than_a_batch_is_refused_before_the_first_of_two_trainings(
    run: Run, tmp_path: Path, clip_model: str
) -> None:
    with pytest.raises(RunError, match=r"has 16 pairs to train on, less than one batch of 1,024: .*--train-batch"):
        fine_tuned(run, tmp_path / "out", fine_tuning(clip_model))
    small = Subset(run=run, keep=np.arange(len(run)) < 5)
    parts = [Part(source=source, pool=pool_of(run), epochs=1) for source in (run, small)]
    with pytest.raises(RunError, match="5 pairs to train on, less than one batch of 8"):
        train_c_rho(*parts, out=tmp_path / "out", training=at_scale("lab", model=clip_model, batch=8), how=CPU)
    assert not (tmp_path / "out").exists()


def test_faults_of_the_second_training_are_told_before_the_first(run: Run, tmp_path: Path, clip_model: str) -> None:
    training = at_scale("lab", model=clip_model, batch=8)
    out = tmp_path / "out"
    (out / "pool").mkdir(parents=True)
    (out / "pool" / "water.txt").touch()
    with pytest.raises(RunError, match=r"pool holds no training but other files \(water.txt, ...\)"):
        two_trained(run, out, training)
    assert [path.name for path in out.iterdir()] == ["pool"]
    other = indexed(tmp_path, shards=1)
    parts = [Part(source=source, pool=pool_of(source), epochs=1) for source in (run, other)]
    Path(other.urls[other.shards[0]]).unlink()
    with pytest.raises(RunError, match=r"00000.tar"):
        train_c_rho(*parts, out=tmp_path / "two", training=training, how=CPU)
    assert not (tmp_path / "two").exists()


def test_another_pool_training_in_the_folder_is_told_before_the_clean_one_begins(
    run: Run, tmp_path: Path, clip_model: str
) -> None:
    training = at_scale("lab", model=clip_model, batch=8)
    two_trained(run, tmp_path, training, epochs=1)
    shutil.rmtree(tmp_path / "clean")
    with pytest.raises(RunError, match=r"pool holds another training: its learning_rate was 0.002 and is now 0.1"):
        two_trained(run, tmp_path, replace(training, learning_rate=0.1))
    assert not (tmp_path / "clean").exists()


def test_an_architecture_cannot_be_fine_tuned() -> None:
    with pytest.raises(ModelError, match="ViT-B-32 is an architecture without weights"):
        fine_tuning("ViT-B-32")


def test_epochs_are_at_least_one(run: Run) -> None:
    with pytest.raises(ValueError, match="epochs must be at least 1, got 0"):
        over_epochs(ClipTraining(samples=8, batch=8), run, 0)
