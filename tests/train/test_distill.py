"""`tamis train sba` and `tamis train icc`: what they write is what the scorers load, and what they say is so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import WORDS, caption, regression_folder, score_batch

torch = pytest.importorskip("torch")

from tamis.data import Device, Sample  # noqa: E402
from tamis.errors import ModelError, PoolError, RunError  # noqa: E402
from tamis.evaluate.texts import score_texts  # noqa: E402
from tamis.math.intervals import bootstrap  # noqa: E402
from tamis.signals import Icc, Sba  # noqa: E402
from tamis.train import agreement  # noqa: E402
from tamis.train.distill import (  # noqa: E402
    Distillation,
    captions_to_label,
    combination_of,
    concrete,
    distill,
    distill_teacher,
    is_held_out,
    read_teachers,
    standardised,
)
from tamis.train.sba import SbaTraining, train_sba  # noqa: E402

DEVICE = Device(batch_size=8)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals of 20 draws: 1,000 take longer than these trainings, and tests/evaluate has them."""
    monkeypatch.setattr(
        agreement, "bootstrap", lambda *given, draws, **named: bootstrap(*given, draws=min(draws, 20), **named)
    )


# ---- train sba


def test_training_sba_lowers_the_loss_and_writes_what_the_scorer_loads(
    tmp_path: Path, clip_model: str, llama_model: str
) -> None:
    captions = [caption(seed) for seed in range(60)]
    how = SbaTraining(epochs=20, batch_size=16, learning_rate=2e-2, end="eos")

    def trained(name: str) -> list[float]:
        return train_sba(
            [*captions, captions[0]], clip=clip_model, language_model=llama_model, out=tmp_path / name,
            device=DEVICE, training=how,
        )  # fmt: skip

    losses = trained("one")
    assert len(losses) == 20 * 4
    assert np.mean(losses[-4:]) < np.mean(losses[:4]) - 0.1
    assert trained("two") == losses
    assert (tmp_path / "one" / "model.safetensors").read_bytes() == (
        tmp_path / "two" / "model.safetensors"
    ).read_bytes()
    facts = json.loads((tmp_path / "one" / "config.json").read_text())
    assert facts["training"]["captions"] == 60
    sample = Sample(uid=(0, 0), key="0", caption=captions[0])
    found = score_batch(Sba(bridge=str(tmp_path / "one"), beams=2, max_tokens=8), [sample])
    assert 0 <= found["sba"][0] <= 1


def test_training_sba_leaves_other_folders_alone_and_needs_captions(
    tmp_path: Path, clip_model: str, llama_model: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    given = {"clip": clip_model, "language_model": llama_model, "device": DEVICE}
    how = SbaTraining(epochs=1, end="eos")
    with pytest.raises(RunError, match=r"is not empty: name a new folder"):
        train_sba(["a dog"], out=tmp_path / "mine", training=how, **given)  # type: ignore[arg-type]
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"
    with pytest.raises(PoolError, match="no captions to train on"):
        train_sba([], out=tmp_path / "new", training=how, **given)  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"warmup": 1.5}, "share of the steps"),
        ({"learning_rate": 0.0}, "above 0"),
    ],
)
def test_bad_settings_of_training_are_errors(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SbaTraining(**settings)  # type: ignore[arg-type]


# ---- distill


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


def test_the_chain_from_scores_to_a_checkpoint_that_icc_loads(tmp_path: Path) -> None:
    scores, labels, captions = teach(tmp_path)
    fresh = str(regression_folder(tmp_path / "fresh", spread=0.05))
    how = Distillation(student=fresh, epochs=30, batch_size=32, learning_rate=3e-3)
    done = distill(scores, out=tmp_path / "student", device=DEVICE, labels=labels, training=how, stages=1)
    assert done.labelled == 80
    assert done.captions + done.held_out == 320
    assert done.held_out == sum(is_held_out(text) for text in captions[80:])
    assert all(weight > 0 for weight in done.combination.weights)
    assert done.with_target.spearman.value > 0.3
    assert set(done.with_labels) == {"vba", "sba", "combined", "student"}
    assert done.with_labels["combined"].spearman.value > done.with_labels["sba"].spearman.value
    found = np.array(score_texts(Icc(model=str(tmp_path / "student")), captions, DEVICE)["icc"])
    dog = np.array(["dog" in text for text in captions])
    assert found[dog].mean() > found[~dog].mean() + 0.1
    facts = json.loads((tmp_path / "student" / "distillation.log").read_text())
    assert facts["weights"]["vba"] == pytest.approx(done.combination.weights[0])


def test_two_stages_are_a_student_of_each_teacher_then_the_regression_then_the_final_student(tmp_path: Path) -> None:
    """Step by step with the commands' own functions, and in one go, it is the same."""
    scores, labels, captions = teach(tmp_path, 240)
    fresh = str(regression_folder(tmp_path / "fresh", spread=0.05))
    how = Distillation(student=fresh, epochs=3, batch_size=32, learning_rate=3e-3)
    students = [str(tmp_path / name) for name in ("vba", "sba")]
    for name, folder in zip(("vba", "sba"), students, strict=True):
        found = distill_teacher(scores, name, out=folder, device=DEVICE, training=how)
        assert found.texts == sum(is_held_out(text) for text in captions)
    given = {"device": DEVICE, "labels": labels, "training": how}
    stepwise = distill(scores, out=tmp_path / "stepwise", students=students, **given)  # type: ignore[arg-type]
    done = distill(scores, out=tmp_path / "student", **given)  # type: ignore[arg-type]
    assert (done.stages, done.labelled) == (2, 80)
    assert done.combination == stepwise.combination
    assert done.with_target == stepwise.with_target

    # The regression sees the students' scores, and no teacher's: as a slow reference, by hand.
    labelled = captions[:80]
    values = np.array(["dog" in text for text in labelled], float)
    seen = np.column_stack([score_texts(Icc(model=folder), labelled, DEVICE)["icc"] for folder in students])
    by_hand = combination_of(seen.astype(float)[np.argsort(labelled)], values[np.argsort(labelled)])
    assert done.combination.weights == pytest.approx(by_hand.weights, rel=1e-3)
    assert json.loads((tmp_path / "student" / "distillation.log").read_text())["stages"] == 2
    found, raw = read_teachers(scores)
    of_teachers, _ = standardised(raw, np.array([len(text.split()) for text in found]))
    rows = [found.index(text) for text in labelled]
    assert done.combination.weights != pytest.approx(combination_of(of_teachers[rows], values).weights, rel=1e-2)


def test_captions_to_label_lie_evenly_over_both_scores_and_show_none(tmp_path: Path) -> None:
    scores, _, captions = teach(tmp_path, 120)
    students = [str(regression_folder(tmp_path / name, spread=0.05)) for name in ("vba", "sba")]
    chosen, seen = captions_to_label(scores, students, device=DEVICE, count=20)
    assert len(set(chosen)) == 20
    assert set(chosen) <= set(captions)
    assert seen[:, 0] == pytest.approx(score_texts(Icc(model=students[0]), chosen, DEVICE)["icc"], abs=1e-5)
    table = pq.read_table(scores)
    pq.write_table(table.take(np.random.default_rng(0).permutation(len(table))), scores)
    assert captions_to_label(scores, students, device=DEVICE, count=20)[0] == chosen
    assert captions_to_label(scores, students, device=DEVICE, count=20, seed=1)[0] != chosen
    with pytest.raises(ValueError, match="expected 2 students, of vba and of sba, got 1"):
        captions_to_label(scores, students[:1], device=DEVICE)


def test_what_contradicts_itself_is_told(tmp_path: Path, regression_model: str) -> None:
    scores, labels, _ = teach(tmp_path, 100)
    both = [regression_model, regression_model]
    with pytest.raises(ValueError, match="students of the teachers are of the first of two stages"):
        distill(scores, out=tmp_path / "s", device=DEVICE, labels=labels, stages=1, students=both)
    with pytest.raises(ValueError, match="expected 2 students"):
        distill(scores, out=tmp_path / "s", device=DEVICE, labels=labels, students=both[:1])
    with pytest.raises(ValueError, match="1 or 2 stages, got 3"):
        distill(scores, out=tmp_path / "s", device=DEVICE, labels=labels, stages=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"unknown teacher 'vab'.*did you mean 'vba'"):
        distill_teacher(scores, "vab", out=tmp_path / "s", device=DEVICE)
    with pytest.raises(ValueError, match="unknown optimiser 'adam'"):
        Distillation(optimiser="adam")  # type: ignore[arg-type]


def test_adamw_with_the_papers_numbers_trains_a_student_unless_muon_is_asked_for(
    tmp_path: Path, regression_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tamis.train.distill as module

    seen: list[object] = []
    real = module.fit

    def watched(*given: object, **named: object) -> list[float]:
        seen.append(named["chosen"])
        return real(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "fit", watched)
    scores, _, _ = teach(tmp_path, 100)
    for optimiser in ("adamw", "muon"):
        how = Distillation(student=regression_model, epochs=1, optimiser=optimiser)  # type: ignore[arg-type]
        distill_teacher(scores, "vba", out=tmp_path / optimiser, device=DEVICE, training=how)
    assert seen[1] is None  # the loop's own choice: Muon
    (adamw,) = seen[0]  # type: ignore[misc]
    assert isinstance(adamw, torch.optim.AdamW)
    assert adamw.defaults["betas"] == (0.9, 0.999)
    assert adamw.defaults["weight_decay"] == 0


def test_given_weights_need_no_labels(tmp_path: Path, regression_model: str) -> None:
    scores, _, _ = teach(tmp_path, 120)
    how = Distillation(student=regression_model, epochs=1, batch_size=32)
    done = distill(scores, out=tmp_path / "s", device=DEVICE, weights=[2.0, 1.0, -1.5], training=how, stages=1)
    assert (done.combination.weights, done.combination.bias) == ((2.0, 1.0), -1.5)
    assert done.with_labels == {}
    with pytest.raises(ValueError, match="say how to combine the teachers"):
        distill(scores, out=tmp_path / "s", device=DEVICE)
    with pytest.raises(ValueError, match="expected 3 weights: of vba, of sba, and the bias"):
        distill(scores, out=tmp_path / "s", device=DEVICE, weights=[1.0])
    with pytest.raises(ValueError, match="weights are numbers, got 1, nan, 0"):
        distill(scores, out=tmp_path / "s", device=DEVICE, weights=[1.0, float("nan"), 0])


def test_captions_longer_than_the_student_reads_are_cut(tmp_path: Path, regression_model: str) -> None:
    captions = [f"{text} {' red' * 80 if n % 3 == 0 else ''}" for n, text in enumerate(texts(60))]
    scores = tmp_path / "scores.csv"
    scores.write_text(
        "caption,vba,sba\n" + "".join(f"{text},{n % 7 / 7},{n % 5 / 5}\n" for n, text in enumerate(captions))
    )
    how = Distillation(student=regression_model, epochs=1, batch_size=32)  # it has room for 39 tokens, below 64
    done = distill(scores, out=tmp_path / "s", device=DEVICE, weights=[2.0, 1.0, -1.5], training=how, stages=1)
    assert done.captions + done.held_out == 60


def test_the_order_of_scores_and_labels_does_not_matter(tmp_path: Path, regression_model: str) -> None:
    """Nor does it which of two labels of one caption stands last: they are averaged."""
    scores, labels, captions = teach(tmp_path, 120)
    labels.write_text(labels.read_text() + f"{captions[0]},3\n{captions[1]},2\n")
    how = Distillation(student=regression_model, epochs=1, batch_size=32)
    done = distill(scores, out=tmp_path / "one", device=DEVICE, labels=labels, training=how, stages=1)
    table = pq.read_table(scores)
    pq.write_table(table.take(np.random.default_rng(0).permutation(len(table))), scores)
    header, *lines = labels.read_text().splitlines()
    labels.write_text("\n".join([header, *reversed(lines)]))
    again = distill(scores, out=tmp_path / "two", device=DEVICE, labels=labels, training=how, stages=1)
    assert again.combination == done.combination
    assert again.with_labels == done.with_labels
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert weights[0] == weights[1]


def test_the_column_of_captions_can_be_named(tmp_path: Path, regression_model: str) -> None:
    scores, labels, _ = teach(tmp_path, 120)
    how = Distillation(student=regression_model, epochs=1, batch_size=32)
    done = distill(scores, out=tmp_path / "one", device=DEVICE, labels=labels, training=how, stages=1)
    table = pq.read_table(scores)
    pq.write_table(table.rename_columns(["words of it", "vba", "sba"]), scores)
    labels.write_text(labels.read_text().replace("caption,label", "words of it,label"))
    with pytest.raises(PoolError, match="no column that looks like the text"):
        distill(scores, out=tmp_path / "two", device=DEVICE, labels=labels, training=how, stages=1)
    again = distill(
        scores, out=tmp_path / "two", device=DEVICE, labels=labels, text="words of it", training=how, stages=1
    )
    assert again.with_target == done.with_target
    assert again.combination == done.combination


def test_a_student_starts_from_a_whole_encoder(tmp_path: Path, regression_model: str) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "torn"
    shutil.copytree(regression_model, folder)
    names = load_file(folder / "model.safetensors")
    save_file(
        {name: value for name, value in names.items() if "layer.1." not in name and "classifier" not in name},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    scores, _, _ = teach(tmp_path, 100)
    with pytest.raises(ModelError, match=r"no weights for roberta\.encoder\.layer\.1\."):
        distill(
            scores, out=tmp_path / "s", device=DEVICE, weights=[1, 1, 0], training=Distillation(student=str(folder))
        )  # fmt: skip
    assert not (tmp_path / "s").exists()


def test_scores_come_from_a_table_or_a_run_and_repeated_captions_are_averaged(tmp_path: Path) -> None:
    from factories import write_run

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


def test_standardised_scores_know_no_length_and_negative_ones_count_as_0() -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 5, 2000)
    raw = np.column_stack([rng.random(2000) / lengths, rng.random(2000) - 0.2])
    found, norms = standardised(raw, lengths)
    assert [one.starts for one in norms] == [(1, 2, 3, 4)] * 2
    for length in range(1, 5):
        logits = np.log(found[lengths == length, 0] / (1 - found[lengths == length, 0]))
        assert logits.mean() == pytest.approx(0, abs=1e-9)
        assert logits.std() == pytest.approx(1)


def test_labels_above_the_median_are_concrete_by_hand() -> None:
    labels = np.array([0.0, 1, 1, 2, 3])
    above, says = concrete(labels)
    assert above.tolist() == [False, False, False, True, True]
    assert says.tolist() == [True, False, False, True, True]
    above, says = concrete(np.array([0.0, 1, 1]))  # the median is the top: it goes to the empty side
    assert above.tolist() == [False, True, True]
    assert says.all()
    above, says = concrete(np.array([0.0, 0, 1]))
    assert above.tolist() == [False, False, True]
    assert says.all()
    with pytest.raises(PoolError, match="all 2 labels are 1"):
        concrete(np.ones(2))


def test_the_combination_follows_the_labels() -> None:
    rng = np.random.default_rng(0)
    scores = rng.random((200, 2))
    found = combination_of(scores, scores[:, 0] + 0.01 * rng.random(200))
    assert found.weights[0] > 5 * abs(found.weights[1])


def test_what_cannot_be_distilled_is_told(tmp_path: Path, regression_model: str, clip_model: str) -> None:
    scores, labels, _ = teach(tmp_path, 100)
    how = Distillation(student=regression_model, epochs=1)
    labels.write_text("caption,label\nnobody wrote this,1\n")
    with pytest.raises(PoolError, match=r"none of the captions in .* has scores in"):
        distill(scores, out=tmp_path / "s", device=DEVICE, labels=labels, training=how)
    with pytest.raises(ModelError, match="'clip' model and not an encoder of texts"):
        distill(
            scores, out=tmp_path / "s", device=DEVICE, weights=[1, 1, 0], training=Distillation(student=clip_model)
        )  # fmt: skip
    table = tmp_path / "few.csv"
    table.write_text(f"caption,vba,sba\n{WORDS[1]},0.4,0.5\n")
    with pytest.raises(PoolError, match="too few to learn from"):
        distill(table, out=tmp_path / "s", device=DEVICE, weights=[1, 1, 0], training=how)
    assert not (tmp_path / "s").exists()
