"""Zero-shot evaluation: counted by hand from the model's embeddings, and what a user meets on the way."""

import json
import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import WORDS, image_bytes

from tamis.core.errors import DamageError, ModelError, PoolError, RecipeError
from tamis.core.types import Device
from tamis.models.clip import load_clip, load_tokenizer
from tamis.models.preprocess import load_preprocess
from tamis.pools.images import decode
from tamis.train.evaluate.tasks import read_task
from tamis.train.evaluate.zero_shot import ZeroShot, evaluate_zero_shot

WriteTask = Callable[..., Path]
Labelled = Callable[..., list[dict[str, bytes]]]

CLASSES = ("dog", "cat", "red boat", "old tree", "small house", "beach")
CPU = Device(threads=1)


class Plain:
    """A checkpoint's embeddings, one image and one text at a time, and a ranking in loops."""

    def __init__(self, model: str) -> None:
        self.clip, self.tokens, self.preprocess = load_clip(model, CPU), load_tokenizer(model), load_preprocess(model)

    def image(self, data: bytes) -> np.ndarray:
        return unit(self.clip.images([self.preprocess.resize(decode(data, max_pixels=10**8))])[0])

    def text(self, text: str) -> np.ndarray:
        return unit(self.clip.texts(self.tokens([text]))[0])

    def scores(self, data: bytes, classes: tuple[str, ...], templates: tuple[str, ...]) -> list[float]:
        """The cosine with each class."""
        scores = []
        for name in classes:
            mean = np.mean([self.text(template.replace("{c}", name)) for template in templates], axis=0)
            scores.append(float(self.image(data) @ mean / np.sqrt(mean @ mean)))
        return scores


def unit(row: np.ndarray) -> np.ndarray:
    return row.astype(float) / np.linalg.norm(row.astype(float))


def log_likelihood(parts: list[list[tuple[list[float], list[bool]]]]) -> float:
    """The best over a fine grid of scales; of each query its cosines, and which of them are right."""
    best = -math.inf
    for scale in [0.0, *np.geomspace(0.1, 1000, 2000)]:
        means = []
        for part in parts:
            logs = []
            for cosines, right in part:
                weights = np.exp(scale * (np.array(cosines) - max(cosines)))
                logs.append(math.log(max(weights[np.array(right)].sum(), 1e-300) / weights.sum()))
            means.append(sum(logs) / len(logs))
        best = max(best, sum(means) / len(means))
    return best


@pytest.fixture
def plain(clip_model: str) -> Plain:
    return Plain(clip_model)


def only_result(found: ZeroShot) -> Any:
    (result,) = found.results
    return result


def test_classification_is_what_counting_gives(
    tmp_path: Path, write_task: WriteTask, labelled: Labelled, clip_model: str, plain: Plain
) -> None:
    samples = labelled(24, classes=6, fields=1)
    folder = write_task(tmp_path / "wds_mine", samples, classes=CLASSES, tars=2)
    (folder / "metadata_fields.txt").write_text("region\n")
    task = read_task(folder)
    assert task is not None
    result = only_result(evaluate_zero_shot(clip_model, folder, CPU))

    truth, ranked, region, cosines = [], [], [], []
    for place, files in enumerate(samples):
        truth.append(place % 6)
        region.append(place // 2 % 3)
        cosines.append(scores := plain.scores(next(iter(files.values())), task.classes, task.templates))
        ranked.append(sorted(range(6), key=lambda n, scores=scores: -scores[n]))
    right = [ranking[0] == label for ranking, label in zip(ranked, truth, strict=True)]
    assert 0 < sum(right) < 24, "the drawn images should not all be right or wrong: nothing would be tested"
    assert result.metrics["acc1"] == pytest.approx(sum(right) / 24)
    assert result.metrics["acc5"] == pytest.approx(
        sum(label in ranking[:5] for ranking, label in zip(ranked, truth, strict=True)) / 24
    )
    recalls = [sum(right[place] for place in range(24) if truth[place] == label) / 4 for label in range(6)]
    assert result.metrics["mean_per_class_recall"] == pytest.approx(sum(recalls) / 6)
    shares = {group: [right[place] for place in range(24) if region[place] == group] for group in range(3)}
    assert result.metrics["acc_worst_region"] == pytest.approx(min(sum(some) / len(some) for some in shares.values()))
    assert result.groups["region"] == {
        str(group): (pytest.approx(sum(some) / len(some)), len(some)) for group, some in shares.items()
    }
    from sklearn import metrics

    best = [ranking[0] for ranking in ranked]
    f1 = metrics.f1_score(truth, best, average="macro", labels=list(range(6)), zero_division=0)
    assert result.metrics["F1-macro_all"] == pytest.approx(f1)
    answers = [[label == number for number in range(6)] for label in truth]
    likely = log_likelihood([list(zip(cosines, answers, strict=True))])
    assert result.log_likelihood == result.metrics["log_likelihood"] == pytest.approx(likely, abs=1e-4)
    assert (result.score, result.images, result.unusable, result.classes) == (result.metrics["acc1"], 24, 0, 6)


def test_retrieval_is_what_counting_gives(tmp_path: Path, write_task: WriteTask, clip_model: str, plain: Plain) -> None:
    rng = np.random.default_rng(0)
    captions: list[list[str]] = []
    seen: set[bytes] = set()
    for number in range(14):
        captions.append([])
        while len(captions[-1]) < number % 3 + 1:
            caption = " ".join(rng.choice(WORDS, 5))
            vector = plain.text(caption).round(3).tobytes()  # the tiny random model takes some captions for one
            if vector not in seen:
                seen.add(vector)
                captions[-1].append(caption)
    samples = [{"jpg": image_bytes(n), "txt": "\n".join(some).encode()} for n, some in enumerate(captions)]
    folder = write_task(tmp_path / "wds_mine", samples, classes=None, templates=None, kind="retrieval")
    result = only_result(evaluate_zero_shot(clip_model, folder, CPU))
    pictures = [plain.image(files["jpg"]) for files in samples]
    texts = [(owner, plain.text(caption)) for owner, some in enumerate(captions) for caption in some]
    for k in (1, 5, 10):
        found = 0
        for owner, text in texts:
            nearest = sorted(range(14), key=lambda n, text=text: -float(pictures[n] @ text))
            found += owner in nearest[:k]
        assert result.metrics[f"image_retrieval_recall@{k}"] == pytest.approx(found / len(texts))
        found = 0
        for number, picture in enumerate(pictures):
            owners = [owner for owner, text in sorted(texts, key=lambda one, p=picture: -float(p @ one[1]))]
            found += number in owners[:k]
        assert result.metrics[f"text_retrieval_recall@{k}"] == pytest.approx(found / 14)
    others = evaluate_zero_shot(clip_model, folder, CPU).rows()[0]["others"]
    assert others.startswith(f"text to image R@1/5/10 {result.metrics['image_retrieval_recall@1']:.4f} / ")
    ways = (result.metrics["image_retrieval_recall@1"], result.metrics["text_retrieval_recall@1"])
    assert result.score == pytest.approx(sum(ways) / 2)
    of_texts = [
        ([float(picture @ text) for picture in pictures], [n == owner for n in range(14)]) for owner, text in texts
    ]
    of_images = [
        ([float(picture @ text) for _, text in texts], [owner == number for owner, _ in texts])
        for number, picture in enumerate(pictures)
    ]
    assert result.log_likelihood == pytest.approx(log_likelihood([of_texts, of_images]), abs=1e-4)


def winogavil(folder: Path, instances: int, spoilt: int | None = None) -> list[tuple[str, list[bytes], list[bool]]]:
    """Writes instances of 5, 6, 10 and 12 candidates; one may have an image that cannot be decoded."""
    rng = np.random.default_rng(1)
    rows = []
    for number in range(instances):
        many = (5, 6, 10, 12)[number % 4]
        right = [bool(place in rng.choice(many, 2 + number % 2, replace=False)) for place in range(many)]
        right[0] = True
        rows.append((WORDS[number], [image_bytes(100 * number + place) for place in range(many)], right))
    place = folder / "hf_cache" / "nlphuji___winogavil"
    place.mkdir(parents=True)
    names = [[f"thing {n}" for n in range(len(images))] for _, images, _ in rows]
    cells = [[{"bytes": image, "path": None} for image in images] for _, images, _ in rows]
    if spoilt is not None:
        cells[spoilt][1]["bytes"] = b"no image"
    table = pa.table({
        "candidates": names,
        "candidate_images": cells,
        "cue": [cue for cue, *_ in rows],
        "associations": [
            [name for name, belongs in zip(some, right, strict=True) if belongs]
            for some, (*_, right) in zip(names, rows, strict=True)
        ],
    })  # fmt: skip
    pq.write_table(table, place / "test.parquet")
    return rows


def test_association_is_what_counting_gives(tmp_path: Path, clip_model: str, plain: Plain) -> None:
    rows = winogavil(tmp_path, 9, spoilt=4)
    result = only_result(evaluate_zero_shot(clip_model, tmp_path, CPU))
    scores: dict[int, list[float]] = {}
    questions = []
    for cue, images, right in (row for number, row in enumerate(rows) if number != 4):
        text = plain.text(f"{'An' if cue[0] in 'aeiou' else 'A'} {cue}")
        cosines = [float(plain.image(image) @ text) for image in images]
        questions.append([(cosines, right)])
        order = sorted(range(len(images)), key=lambda n, cosines=cosines: -cosines[n])
        chosen = set(order[: sum(right)])
        truth = {place for place, belongs in enumerate(right) if belongs}
        scores.setdefault(len(images), []).append(len(chosen & truth) / len(chosen | truth))
    every = [score for some in scores.values() for score in some]
    assert result.log_likelihood == pytest.approx(log_likelihood(questions), abs=1e-4)
    assert result.metrics["avg_jaccard_score"] == pytest.approx(np.mean(every))
    assert result.metrics["jaccard_score_5"] == pytest.approx(np.mean(scores[5]))
    assert result.metrics["jaccard_score_5-6"] == pytest.approx(np.mean(scores[5] + scores[6]))
    assert result.score == result.metrics["jaccard_score_10-12"] == pytest.approx(np.mean(scores[10] + scores[12]))
    assert (result.name, result.unusable) == ("WinoGAViL", 1)
    assert "instance 4, thing 1" in next(iter(result.reasons))


def test_worst_groups_are_of_its_fields(
    tmp_path: Path, write_task: WriteTask, labelled: Labelled, clip_model: str
) -> None:
    write_task(tmp_path / "wds_dollar_street_test", labelled(12, classes=6, fields=3), classes=CLASSES)
    write_task(tmp_path / "wds_wilds-fmow_test", labelled(12, fields=3))
    found = evaluate_zero_shot(clip_model, tmp_path, CPU)
    street, fmow = found.results
    assert (street.metric, fmow.metric) == ("acc_top5_wg", "acc_worst_region")
    assert street.metrics["acc5"] == pytest.approx(
        np.average([mean for mean, _ in street.groups["income_ds"].values()])
    )
    assert street.score == min(mean for mean, _ in street.groups["income_ds"].values())
    assert fmow.score == fmow.metrics["acc_worst_year"] == min(mean for mean, _ in fmow.groups["region"].values())


@pytest.mark.parametrize("batch", [1, 64])
def test_neither_the_batch_size_nor_the_order_matters(
    batch: int, tmp_path: Path, write_task: WriteTask, labelled: Labelled, clip_model: str
) -> None:
    samples = labelled(20)
    folder = write_task(tmp_path / "wds_mine", samples)
    other = write_task(tmp_path / "wds_turned", samples[::-1], tars=3)
    expected = only_result(evaluate_zero_shot(clip_model, folder, CPU))
    device = Device(threads=2, batch_size=batch)
    for tasks in (folder, other):
        result = only_result(evaluate_zero_shot(clip_model, tasks, device))
        # The likelihood is a mean over images, whose rounding depends on their order; the others are counts.
        assert result.log_likelihood == pytest.approx(expected.log_likelihood, abs=1e-6)
        metrics = {**result.metrics, "log_likelihood": expected.log_likelihood}
        assert replace(result, metrics=metrics, task=expected.task, name=expected.name) == expected


def test_a_gpu_whose_memory_runs_out_once_gives_the_result_of_a_cpu(
    tmp_path: Path, write_task: WriteTask, labelled: Labelled, clip_model: str
) -> None:
    from pretended_gpu import on_gpu

    folder = write_task(tmp_path / "wds_mine", labelled(20))
    with on_gpu() as gpus:
        gpus.full = 1
        found = only_result(evaluate_zero_shot(clip_model, folder, Device(kind="cuda:1", threads=2, batch_size=8)))
    assert gpus.full == 0
    assert found == only_result(evaluate_zero_shot(clip_model, folder, CPU))


def test_broken_images_are_counted_and_told(
    tmp_path: Path, write_task: WriteTask, labelled: Labelled, clip_model: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = labelled(9, fields=1)
    bad = [{"jpg": image_bytes(50)[:200], "cls": b"1", "npy": good[0]["npy"]}, {"cls": b"2", "npy": good[0]["npy"]}]
    without = write_task(tmp_path / "a" / "wds_mine", good)
    folder = write_task(tmp_path / "b" / "wds_mine", [*good[:4], *bad, *good[4:]])
    for one in (without, folder):
        (one / "metadata_fields.txt").write_text("region\n")
    expected = only_result(evaluate_zero_shot(clip_model, without, CPU))
    result = only_result(evaluate_zero_shot(clip_model, folder, CPU))
    assert result.metrics == expected.metrics
    assert result.groups == expected.groups
    assert (result.images, result.unusable) == (9, 2)
    assert list(result.reasons) == ["0.tar: s0000004", "0.tar: s0000005"]
    assert "no member is an image" in result.reasons["0.tar: s0000005"]
    assert "mine: 2 images cannot be used; 0.tar: s0000004: " in caplog.text


def test_the_same_command_goes_on_where_it_stopped(
    tmp_path: Path,
    write_task: WriteTask,
    labelled: Labelled,
    clip_model: str,
    siglip_model: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO)
    write_task(tmp_path / "tasks" / "wds_a", labelled(6))
    second = write_task(tmp_path / "tasks" / "wds_b", labelled(6))
    evaluate_zero_shot(clip_model, tmp_path / "tasks", CPU, out=tmp_path / "out", only=["a"])
    kept = list((tmp_path / "out").iterdir())
    assert len(kept) == 1
    found = evaluate_zero_shot(clip_model, tmp_path / "tasks", CPU, out=tmp_path / "out")
    assert "a: done before" in caplog.messages
    assert [result.task for result in found.results] == ["a", "b"]
    monkeypatch.setattr("tamis.train.evaluate.zero_shot.load_clip", None)  # nothing is left to do: no model is loaded
    assert evaluate_zero_shot(clip_model, tmp_path / "tasks", CPU, out=tmp_path / "out") == found
    monkeypatch.undo()
    (second / "classnames.txt").write_text("hound\nowl\nship\n")
    caplog.clear()
    evaluate_zero_shot(clip_model, tmp_path / "tasks", CPU, out=tmp_path / "out")
    assert [message for message in caplog.messages if "done before" in message] == ["a: done before"]
    evaluate_zero_shot(siglip_model, tmp_path / "tasks", CPU, out=tmp_path / "out", only=["a"])
    assert len(list((tmp_path / "out").glob("a-*.json"))) == 2  # another model's results are not taken
    facts = json.loads(kept[0].read_text())
    assert (facts["model"], facts["task"], facts["precision"]) == (clip_model, "a", "float32")
    kept[0].write_text("{}")
    with pytest.raises(DamageError, match="delete it and repeat the command"):
        evaluate_zero_shot(clip_model, tmp_path / "tasks", CPU, out=tmp_path / "out", only=["a"])


def test_a_task_that_cannot_be_run_hides_behind_no_average(
    tmp_path: Path, write_task: WriteTask, labelled: Labelled, clip_model: str
) -> None:
    write_task(tmp_path / "wds_mnist_test", labelled(6))
    write_task(tmp_path / "wds_fewer", labelled(6), classes=("dog", "cat"))
    write_task(tmp_path / "wds_none", [])
    write_task(tmp_path / "wds_spoilt", [{"jpg": b"no image", "cls": b"0"}])
    found = evaluate_zero_shot(clip_model, tmp_path, CPU, out=tmp_path / "out")
    assert [result.name for result in found.results] == ["MNIST"]
    assert "class 2" in found.failed["fewer"]
    assert "no image can be used" in found.failed["none"]
    assert "0.tar: s0000000" in found.failed["spoilt"]
    assert found.average is None
    rows = found.rows()
    assert rows[-1]["task"] == "average of the tasks here (4)"
    assert rows[-1]["score"] == "–"
    overall = next(group for group in found.groups() if group.name.startswith("all 38"))
    assert overall.name == "all 38: average of the 1 present of 38 tasks"
    facts = json.loads(json.dumps(found.facts()))
    assert set(facts["failed"]) == {"fewer", "none", "spoilt"}
    assert len(facts["datacomp"][-1]["absent"]) == 37


def test_what_cannot_be_evaluated_is_refused(
    tmp_path: Path, write_task: WriteTask, labelled: Labelled, clip_model: str
) -> None:
    write_task(tmp_path / "tasks" / "wds_pets", labelled(3))
    write_task(tmp_path / "tasks" / "wds_geode_test", labelled(4, fields=3))
    for model, tasks, only, kind in (
        (clip_model, tmp_path / "tasks", ["pet"], RecipeError),
        (clip_model, lambda folder: folder, [], ValueError),  # without a folder to make them in
        (str(tmp_path / "none"), tmp_path / "tasks", [], ModelError),
        (clip_model, tmp_path / "none", [], PoolError),
    ):
        with pytest.raises(kind):
            evaluate_zero_shot(model, tasks, CPU, only=only)
    found = evaluate_zero_shot(clip_model, tmp_path / "tasks", CPU)
    assert "3 fields, expected 2: region, country" in found.failed["geode"]
    for name in ("bag", "chair"):  # the same task as folders of images has no groups
        (tmp_path / "folders" / "geode" / name).mkdir(parents=True)
        (tmp_path / "folders" / "geode" / name / "0.jpg").write_bytes(image_bytes(0))
    found = evaluate_zero_shot(clip_model, tmp_path / "folders", CPU)
    assert "acc_wg needs .npy members with region" in found.failed["geode"]
