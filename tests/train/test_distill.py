"""`tamis train sba` and `tamis train icc`: the signals load what they write, and it learned what it should."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import WORDS, caption, score_batch, write_run
from tiny_models import regression_folder

from tamis.core.errors import ModelError, PoolError, RunError
from tamis.core.math import statistics
from tamis.core.math.statistics import bootstrap
from tamis.core.types import Device, Sample
from tamis.models.texts.regression import load_text_regression
from tamis.signals import Sba
from tamis.train import icc
from tamis.train.icc import (
    Distillation,
    SbaTraining,
    captions_to_label,
    combination_of,
    distill,
    distill_teacher,
    is_held_out,
    read_teachers,
    standardise,
    train_sba,
)
from tamis.train.loop import Settings, fit

DEVICE = Device(batch_size=8)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals of 20 draws: 1,000 take longer than these trainings."""
    monkeypatch.setattr(
        statistics, "bootstrap", lambda *given, draws, **named: bootstrap(*given, draws=min(draws, 20), **named)
    )


def texts(count: int) -> list[str]:
    """Distinct captions of 3 to 9 words."""
    found: dict[str, None] = {}
    seed = 0
    while len(found) < count:
        found[caption(seed)] = None
        seed += 1
    return list(found)


def teach(folder: Path, count: int = 400) -> tuple[Path, Path, list[str]]:
    """Writes teachers' scores by which captions with a dog are concrete, and labels for some."""
    rng = np.random.default_rng(0)
    captions = texts(count)
    dog = np.array(["dog" in text for text in captions], float)
    lengths = np.array([len(text.split()) for text in captions])
    noise = rng.normal(0, 0.1, (2, count))
    vba = np.clip(0.3 + 0.3 * dog + noise[0], 0, 1)
    sba = np.clip(0.9 - 0.06 * lengths + 0.2 * dog + noise[1], 0, 1)
    scores, labels = folder / "scores.parquet", folder / "labels.csv"
    pq.write_table(pa.table({"caption": captions, "vba": vba, "sba": sba}), scores)
    labels.write_text("caption,label\n" + "".join(f"{captions[n]},{int(dog[n])}\n" for n in range(80)))
    return scores, labels, captions


def test_training_sba_learns_and_writes_what_the_signal_loads(
    tmp_path: Path, clip_model: str, llama_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    captions = [caption(seed) for seed in range(60)]
    training = SbaTraining(epochs=20, batch_size=16, learning_rate=2e-2, end="eos")

    def trained(name: str, captions: list[str]) -> list[float]:
        return train_sba(
            captions, clip=clip_model, language_model=llama_model, out=tmp_path / name, device=DEVICE, training=training
        )

    asked: list[Settings] = []

    def noted(network: Any, loss: Any, batches: Any, settings: Settings, **also: Any) -> list[float]:
        asked.append(settings)
        return fit(network, loss, batches, settings, **also)

    monkeypatch.setattr(icc, "fit", noted)
    losses = trained("one", [*captions, captions[0]])
    assert (asked[0].betas, asked[0].weight_decay) == (icc.BETAS, 0.0)
    assert len(losses) == 20 * 4
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.1
    assert trained("two", captions) == losses
    model = "model.safetensors"
    assert (tmp_path / "one" / model).read_bytes() == (tmp_path / "two" / model).read_bytes()
    assert json.loads((tmp_path / "one" / "config.json").read_text())["training"]["captions"] == 60
    sample = Sample(uid=(0, 0), key="0", caption=captions[0])
    assert 0 <= score_batch(Sba(bridge=str(tmp_path / "one"), beams=2, max_tokens=8), [sample])["sba"][0] <= 1
    with pytest.raises(RunError, match="not empty"):
        trained("one", captions)
    with pytest.raises(PoolError, match="no captions"):
        trained("new", [])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", [SbaTraining, Distillation])
def test_settings_out_of_range_are_refused(kind: Any) -> None:
    for name, value in (("epochs", 0), ("warmup", 1.5), ("learning_rate", 0.0), ("batch_size", 0)):
        with pytest.raises(ValueError, match=name):
            kind(**{name: value})


def test_the_chain_from_scores_to_a_checkpoint_that_icc_loads(tmp_path: Path) -> None:
    scores, labels, captions = teach(tmp_path)
    fresh = str(regression_folder(tmp_path / "fresh", spread=0.05))
    training = Distillation(student=fresh, epochs=30, batch_size=32, learning_rate=3e-3)
    done = distill(scores, out=tmp_path / "student", device=DEVICE, labels=labels, training=training, stages=1)
    assert (done.labelled, done.captions + done.held_out) == (80, 320)
    assert done.held_out == is_held_out(captions[80:]).sum()
    assert all(weight > 0 for weight in done.combination.weights)
    assert done.with_target.spearman.value > 0.3
    assert set(done.with_labels) == {"vba", "sba", "combined", "student"}
    assert done.with_labels["combined"].spearman.value > done.with_labels["sba"].spearman.value
    found = load_text_regression(str(tmp_path / "student"), DEVICE)(captions)
    dog = np.array(["dog" in text for text in captions])
    assert found[dog].mean() > found[~dog].mean() + 0.1
    facts = json.loads((tmp_path / "student" / "distillation.log").read_text())
    assert facts["weights"]["vba"] == pytest.approx(done.combination.weights[0])


def test_two_stages_are_a_student_of_each_teacher_then_the_regression_then_the_final_student(tmp_path: Path) -> None:
    """Step by step with the commands' own functions, and in one call, it is the same."""
    scores, labels, captions = teach(tmp_path, 240)
    fresh = str(regression_folder(tmp_path / "fresh", spread=0.05))
    training = Distillation(student=fresh, epochs=3, batch_size=32, learning_rate=3e-3)
    students = [str(tmp_path / name) for name in ("vba", "sba")]
    for name, folder in zip(("vba", "sba"), students, strict=True):
        found = distill_teacher(scores, name, out=folder, device=DEVICE, training=training)
        assert found.texts == is_held_out(captions).sum()
    more: Any = {"device": DEVICE, "labels": labels, "training": training}
    stepwise = distill(scores, out=tmp_path / "stepwise", students=students, **more)
    done = distill(scores, out=tmp_path / "student", **more)
    assert (done.stages, done.labelled) == (2, 80)
    assert (done.combination, done.with_target) == (stepwise.combination, stepwise.with_target)
    # The regression sees the students' scores, and no teacher's.
    labelled = sorted(captions[:80])
    values = np.array(["dog" in text for text in labelled], float)
    seen = np.column_stack([load_text_regression(folder, DEVICE)(labelled) for folder in students]).astype(float)
    assert done.combination.weights == pytest.approx(combination_of(seen, values).weights, rel=1e-3)


def test_captions_to_label_are_spread_evenly_whatever_their_order(tmp_path: Path) -> None:
    scores, _, captions = teach(tmp_path, 120)
    students = [str(regression_folder(tmp_path / name, spread=0.05)) for name in ("vba", "sba")]
    chosen, seen = captions_to_label(scores, students, device=DEVICE, count=20)
    assert len(set(chosen)) == 20
    assert set(chosen) <= set(captions)
    assert seen[:, 0] == pytest.approx(load_text_regression(students[0], DEVICE)(chosen), abs=1e-5)
    table = pq.read_table(scores)
    pq.write_table(table.take(np.random.default_rng(0).permutation(len(table))), scores)
    assert captions_to_label(scores, students, device=DEVICE, count=20)[0] == chosen
    assert captions_to_label(scores, students, device=DEVICE, count=20, seed=1)[0] != chosen
    with pytest.raises(ValueError, match="got 1"):
        captions_to_label(scores, students[:1], device=DEVICE)


def test_weights_need_no_labels_and_long_captions_are_cut(tmp_path: Path, regression_model: str) -> None:
    captions = [f"{text} {' red' * 80 if n % 3 == 0 else ''}" for n, text in enumerate(texts(60))]
    scores = tmp_path / "scores.csv"
    rows = [f"{text},{n % 7 / 7},{n % 5 / 5}\n" for n, text in enumerate(captions)]
    scores.write_text("caption,vba,sba\n" + "".join(rows))
    training = Distillation(student=regression_model, epochs=1, batch_size=32)  # it has room for 39 tokens, below 64
    done = distill(scores, out=tmp_path / "s", device=DEVICE, weights=[2.0, 1.0, -1.5], training=training, stages=1)
    assert done.captions + done.held_out == 60
    assert (done.combination.weights, done.combination.bias) == ((2.0, 1.0), -1.5)
    assert done.with_labels == {}


def test_scores_come_from_a_table_or_a_run_and_repeated_captions_are_averaged(tmp_path: Path) -> None:
    table = tmp_path / "scores.csv"
    table.write_text("caption,vba,sba\na dog,0.2,0.4\na cat,0.5,\na dog,0.4,0.8\n")
    captions, scores = read_teachers(table)
    assert captions == ["a dog"]
    assert scores.tolist() == [[pytest.approx(0.3), pytest.approx(0.6)]]
    run = write_run(tmp_path / "run", {"vba": [0.1, 0.2, np.nan], "sba": [0.3, 0.4, 0.5]})
    captions, scores = read_teachers(run.path)
    assert len(captions) == 2
    assert sorted(scores[:, 0].tolist()) == pytest.approx([0.1, 0.2])
    table.write_text("caption,vba,sba\na dog,,0.4\n")
    with pytest.raises(PoolError, match="no caption that both teachers"):
        read_teachers(table)


def test_standardised_scores_do_not_depend_on_length_and_negative_ones_count_as_0() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 5, 2000)
    raw = np.column_stack([rng.random(2000) / lengths, rng.random(2000) - 0.2])
    found, norms = standardise(raw, lengths)
    assert [one.starts for one in norms] == [(1, 2, 3, 4)] * 2
    for length in range(1, 5):
        logits = np.log(found[lengths == length, 0] / (1 - found[lengths == length, 0]))
        assert logits.mean() == pytest.approx(0, abs=1e-9)
        assert logits.std() == pytest.approx(1)


def test_the_combination_follows_labels_above_and_below_their_median() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random((200, 2))
    found = combination_of(scores, scores[:, 0] + 0.01 * rng.random(200))
    assert found.weights[0] > 5 * abs(found.weights[1])
    # Labels on the median count for neither side, but where a side would be empty they form it.
    few = np.array([[0.0], [0.9], [0.1], [0.8], [1.0]])
    labels = np.array([0.0, 1, 1, 2, 3])
    assert combination_of(few, labels) == combination_of(few[[0, 3, 4]], np.array([0.0, 1, 1]))
    assert combination_of(few[:3], np.array([0.0, 1, 1])) == combination_of(few[:3], np.array([0.0, 2, 3]) > 0)
    with pytest.raises(PoolError, match="all 2 labels are 1"):
        combination_of(few[:2], np.ones(2))
    # The optimum of the penalised likelihood: its gradient is 0.
    x, y = scores, scores[:, 0] > 0.5
    fitted = combination_of(x, y.astype(float), ridge=1e-2)
    error = fitted(x) - y
    assert x.T @ error / len(y) + 1e-2 * np.array(fitted.weights) == pytest.approx(0, abs=1e-6)
    assert error.mean() == pytest.approx(0, abs=1e-6)


def test_what_cannot_be_distilled_is_refused(tmp_path: Path, regression_model: str, clip_model: str) -> None:
    scores, labels, _ = teach(tmp_path, 100)
    strange, few = tmp_path / "strange.csv", tmp_path / "few.csv"
    strange.write_text("caption,label\nnobody wrote this,1\n")
    few.write_text(f"caption,vba,sba\n{WORDS[1]},0.4,0.5\n")
    small, clip = Distillation(student=regression_model, epochs=1), Distillation(student=clip_model)
    both = [regression_model] * 2
    for more, kind, message in (
        ({}, ValueError, "combine"),
        ({"weights": [1.0]}, ValueError, "3 finite weights"),
        ({"weights": [1.0, float("nan"), 0]}, ValueError, "3 finite weights"),
        ({"labels": labels, "stages": 1, "students": both}, ValueError, "stages"),
        ({"labels": labels, "students": both[:1]}, ValueError, "2 students"),
        ({"labels": labels, "stages": 3}, ValueError, "stages"),
        ({"labels": strange, "training": small}, PoolError, "none of the captions"),
        ({"weights": [1, 1, 0], "training": clip}, ModelError, "'clip' model"),
        ({"scores": few, "weights": [1, 1, 0], "training": small}, PoolError, "too few"),
    ):
        with pytest.raises(kind, match=message):
            distill(**{"scores": scores, "out": tmp_path / "s", "device": DEVICE, **more})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean 'vba'"):
        distill_teacher(scores, "vab", out=tmp_path / "s", device=DEVICE)
    with pytest.raises(ValueError, match="unknown optimiser"):
        Distillation(optimiser="adam")  # type: ignore[arg-type]
    assert not (tmp_path / "s").exists()
