"""Zero-shot evaluation of a CLIP-like model: classification, retrieval and association, task by task.

Each task's result is a JSON file with the fingerprint of model, task and precision in its name. So the same command
resumes, and a changed model or task never reuses an old result.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Pixels
from tamis.core.errors import ModelError, PoolError, SampleError, ShardError, require
from tamis.core.files.checked import read_record, write_record
from tamis.core.files.targets import check_own
from tamis.core.ids import LENGTH, fingerprint
from tamis.core.machine import cores
from tamis.core.math.likelihood import Questions, best_log_likelihood
from tamis.core.math.similarity import cosines, unit_rows
from tamis.core.math.statistics import group_means, recall_at, top_classes
from tamis.core.processes import prefetch_items
from tamis.core.types import Device
from tamis.models.clip import load_clip, load_tokenizer
from tamis.models.preprocess import load_preprocess
from tamis.models.reference import cleaning_of, resolve
from tamis.pools.images import decode
from tamis.signals.graph import Executor
from tamis.train.evaluate.tasks import Average, TaskImage, Tasks, ZeroShotTask, averages, entry_of, find_tasks

log = logging.getLogger(__name__)

#: Increase it when the same model and task would give other numbers.
VERSION = 2

#: The continuous metric of every task.
LIKELIHOOD = "log_likelihood"

_MAX_PIXELS = 100_000_000
_SHOWN = 5  # name at most so many unusable images of a task
_IMAGES_AT_ONCE = 4096  # rank classes for so many images at once
_CLASSES_AT_ONCE = 64  # 5,120 sentences with ImageNet's 80 templates
_DEEPEST = 5  # rank only the best five classes

#: Pattern of the results' file names.
_RESULTS = f"*-{'[0-9a-f]' * LENGTH}.json"

#: DataComp's groups of WinoGAViL instances: {name: smallest and largest number of candidates}.
_SIZES = {"5": (5, 5), "6": (6, 6), "10": (10, 10), "12": (12, 12), "5-6": (0, 6), "10-12": (10, 99)}

Vectors = NDArray[np.float32]
Metrics = dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The scores of a model on a task."""

    task: str
    name: str  # DataComp's name, or the task's own
    kind: Literal["classification", "retrieval", "association"]
    metric: str  # the metric that counts
    metrics: Mapping[str, float | None]  # {name: value}; None if undefined (acc5 with fewer than five classes)
    images: int  # number of images that were used
    unusable: int  # number of images that could not be used
    reasons: Mapping[str, str]  # {key: reason} for the first few unusable images
    classes: int  # 0 if there are none
    #: {field: {group: (accuracy, images)}}: the metric of the worst group is the smallest accuracy
    groups: Mapping[str, Mapping[str, tuple[float, int]]]

    @property
    def score(self) -> float | None:
        """The value of the metric that counts; None if undefined."""
        return self.metrics.get(self.metric)

    @property
    def log_likelihood(self) -> float:
        """The mean log-probability of the right answers; see `core.math.likelihood`."""
        return float(self.metrics[LIKELIHOOD] or 0.0)

    def row(self) -> dict[str, str]:
        """A row of the printed table."""
        if self.kind == "retrieval":
            ways = (("text to image", "image_retrieval"), ("image to text", "text_retrieval"))
            others = [
                f"{way} R@1/5/10 {' / '.join(_format(self.metrics[f'{name}_recall@{k}']) for k in (1, 5, 10))}"
                for way, name in ways
            ]
        else:
            names = ["acc1", "acc5", "mean_per_class_recall"]
            names += ["avg_jaccard_score", "jaccard_score_5-6", "jaccard_score_10-12"]
            names += [name for name in self.metrics if "worst" in name or name.endswith("_wg")]
            values = {name: self.metrics.get(name) for name in names if name != self.metric}
            others = [f"{name} {_format(value)}" for name, value in values.items() if value is not None]
        return _row(
            self.name, self.metric, self.score, f"{self.images:,}",
            f"{self.unusable:,}" if self.unusable else "", ", ".join(others),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ZeroShot:
    """The scores of a model on a set of tasks."""

    model: str  # as the caller named it
    digest: str  # hash of the model's files
    precision: str
    results: tuple[TaskResult, ...]  # sorted by name
    failed: Mapping[str, str]  # {task that could not be run: reason}
    others: Mapping[str, str]  # {folder that is no task: reason}

    @property
    def average(self) -> float | None:
        """Mean score over all tasks here; None if a task failed or has no score."""
        scores = [one.score for one in self.results if one.score is not None]
        return sum(scores) / len(scores) if scores and len(scores) == len(self.results) and not self.failed else None

    def groups(self) -> tuple[Average, ...]:
        """DataComp's averages, which list absent tasks; () without any DataComp task."""
        scores = {one.name: one.score for one in self.results if entry_of(one.task) and one.score is not None}
        return averages(scores) if scores else ()

    def rows(self) -> list[dict[str, str]]:
        """A table to print: a row per task, then DataComp's groups, then the average."""
        every = len(self.results) + len(self.failed)
        averages = [(group.name, group.value) for group in self.groups()]
        averages.append((f"average of the tasks here ({every})", self.average))
        return [*(one.row() for one in self.results), *(_row(name, "mean", value) for name, value in averages)]

    def facts(self) -> dict[str, Any]:
        """Everything for JSON."""
        return {
            "model": self.model,
            "digest": self.digest,
            "precision": self.precision,
            "tasks": [{**asdict(one), "score": one.score} for one in self.results],
            "failed": dict(self.failed),
            "not_tasks": dict(self.others),
            "datacomp": [asdict(group) for group in self.groups()],
            "average": self.average,
        }


def evaluate_zero_shot(
    model: str,
    tasks: Tasks,
    device: Device,
    *,
    out: str | Path | None = None,
    only: Sequence[str] = (),
    split: str = "test",
    text_states: Path | None = None,
) -> ZeroShot:
    """Evaluates a model on tasks without training on them.

    Args:
        model: a CLIP or SigLIP checkpoint, or another model that `load_clip` loads.
        tasks: a task's folder, a folder of tasks, or a function that makes them in `out`.
        device: where the networks run. The batch size changes no result.
        out: folder for the results; reuses finished ones. None writes no files.
        only: names of the tasks to run; empty for all.
        split: name of the split of WebDataset tasks.
        text_states: of a dual encoder, a folder for what its text tower makes of the tasks' texts, which all models
            with the same frozen tower share.

    Raises:
        PoolError: there are no tasks, or a task is incomplete.
        RecipeError: a name in `only` is not a task here.
        ValueError: `tasks` is a function, and `out` is None.
        RunError: `out` holds other files and no results.
        ModelError: the model is missing, or is not a CLIP or SigLIP.
        DependencyError: scikit-learn is not installed.
    """
    require("sklearn", extra="evaluate")
    if out is not None:
        read = [Path(one) for one in (model, tasks) if not callable(one)]
        check_own(Path(out), what="results", marks=[_RESULTS], also=["lab-tasks-*"], read=read)
    if callable(tasks):
        if out is None:
            raise ValueError("a function that makes tasks needs a folder: name it with out")
        tasks = tasks(Path(out))
    chosen, others = find_tasks(tasks, split=split, only=only)
    digest, cleaning = resolve(model).digest, cleaning_of(model)
    runner: _Runner | None = None
    results: list[TaskResult] = []
    failed: dict[str, str] = {}
    for task in chosen:
        what = {"version": VERSION, "model": digest, "task": task.digest, "precision": device.precision}
        what |= {} if cleaning == "hf" else {"texts cleaned": cleaning}
        path = None if out is None else Path(out) / f"{task.name}-{fingerprint(what)}.json"
        if path is not None and path.is_file():
            results.append(_read(path))
            log.info("%s: done before", task.name)
            continue
        runner = runner or _Runner(model, device, text_states)
        try:
            result = runner.run(task)
        except (PoolError, ShardError) as error:
            failed[task.name] = str(error)
            log.warning("%s: %s", task.name, error)
            continue
        if path is not None:
            facts = {"model": model, "digest": digest, "precision": device.precision, **asdict(result)}
            write_record(path, facts)
        if result.unusable:
            key, reason = next(iter(result.reasons.items()))
            log.warning("%s: %d images cannot be used; %s: %s", task.name, result.unusable, key, reason)
        log.info("%s: %s %s on %s images", task.name, result.metric, _format(result.score), f"{result.images:,}")
        results.append(result)
    return ZeroShot(
        model=model, digest=digest, precision=device.precision, results=tuple(results), failed=failed, others=others
    )


@dataclass(kw_only=True)
class _Embedded:
    """A task's usable images with their embeddings, and why the others are unusable."""

    images: list[TaskImage]  # without their bytes
    vectors: Vectors  # (n, d) unit rows
    unusable: int
    reasons: dict[str, str]  # {key: reason} for the first few
    incomplete: set[int]  # labels of unusable images


class _Runner:
    """A loaded model, and how to measure it on each kind of task."""

    def __init__(self, model: str, device: Device, text_states: Path | None) -> None:
        self._model, self._executor, self._states = model, Executor(device), text_states
        self._preprocess = load_preprocess(model)
        self._tokenize = load_tokenizer(model)
        self._batch = device.batch_size
        self._threads = device.threads or min(8, cores())

    def run(self, task: ZeroShotTask) -> TaskResult:
        """Measures the model on a task; see `Executor.with_memory`."""
        return self._executor.with_memory(lambda: self._run(task), task.name, self._batch)

    def _run(self, task: ZeroShotTask) -> TaskResult:
        self._clip = load_clip(self._model, self._executor.device)
        measure = {"classification": self._classify, "retrieval": self._retrieve, "association": self._associate}
        if absent := sorted({*task.worst.values()} - {*task.fields}):
            raise PoolError(f"{task.folder}: {task.metric} needs .npy members with {', '.join(absent)} in its tars")
        embedded = self._embedded(task)
        metrics, groups = measure[task.kind](task, embedded)
        return TaskResult(
            task=task.name, name=task.entry.name if task.entry else task.name, kind=task.kind, metric=task.metric,
            metrics=metrics, images=len(embedded.images), unusable=embedded.unusable, reasons=embedded.reasons,
            classes=len(task.classes), groups=groups,
        )  # fmt: skip

    def _classify(self, task: ZeroShotTask, embedded: _Embedded) -> tuple[Metrics, dict[str, Any]]:
        from sklearn.metrics import f1_score, recall_score

        classes = self._class_vectors(task)
        truth = np.array([image.label for image in embedded.images], np.int64)
        starts = range(0, len(truth), _IMAGES_AT_ONCE)
        blocks = [embedded.vectors[start : start + _IMAGES_AT_ONCE] for start in starts]
        ranked = np.concatenate([top_classes(cosines(block, classes), _DEEPEST) for block in blocks])
        best, five = ranked[:, 0], (ranked == truth[:, None]).any(1)
        # Only classes with an image count, as in WILDS (Koh et al. 2021), from which DataComp takes iWildCam's F1.
        macro: dict[str, Any] = {"average": "macro", "labels": np.unique(truth), "zero_division": 0}
        metrics: Metrics = {
            "acc1": float((best == truth).mean()),
            "acc5": float(five.mean()) if len(task.classes) >= _DEEPEST else None,
            "mean_per_class_recall": float(recall_score(truth, best, **macro)),
            "F1-macro_all": float(f1_score(truth, best, **macro)),
            LIKELIHOOD: best_log_likelihood(
                [Questions(embedded.vectors, classes, truth, np.arange(len(task.classes)))]
            ),
        }
        groups: dict[str, Any] = {}
        for name, field in task.worst.items():
            right = five if name.startswith("acc_top5") else best == truth
            column = task.fields.index(field)
            means = group_means(right, np.array([image.groups[column] for image in embedded.images]))
            metrics[name] = min(mean for mean, _ in means.values())
            groups[field] = {str(group): one for group, one in means.items()}
        return metrics, groups

    def _retrieve(self, task: ZeroShotTask, embedded: _Embedded) -> tuple[Metrics, dict[str, Any]]:
        captions = [caption for image in embedded.images for caption in image.captions]
        of_image = np.arange(len(embedded.images))
        of_text = np.repeat(of_image, [len(image.captions) for image in embedded.images])
        texts, ks = self._texts(captions), (1, 5, 10)
        to_image = recall_at(texts, embedded.vectors, of_text, of_image, ks)
        to_text = recall_at(embedded.vectors, texts, of_image, of_text, ks)
        metrics: Metrics = {f"image_retrieval_recall@{k}": to_image[k] for k in ks}
        metrics |= {f"text_retrieval_recall@{k}": to_text[k] for k in ks}
        metrics["mean_recall@1"] = (to_image[1] + to_text[1]) / 2
        images = embedded.vectors
        ways = [Questions(texts, images, of_text, of_image), Questions(images, texts, of_image, of_text)]
        metrics[LIKELIHOOD] = best_log_likelihood(ways)
        return metrics, {}

    def _associate(self, task: ZeroShotTask, embedded: _Embedded) -> tuple[Metrics, dict[str, Any]]:
        instances: dict[int, list[int]] = {}  # {instance: its images}
        for number, image in enumerate(embedded.images):
            if image.label not in embedded.incomplete:
                instances.setdefault(image.label, []).append(number)
        if not instances:
            raise PoolError(f"{task.folder}: no instance has all its candidates' images")
        cues = self._texts([_cue(embedded.images[numbers[0]].captions[0]) for numbers in instances.values()])
        scores, sizes, questions = [], [], []
        for cue, numbers in zip(cues, instances.values(), strict=True):
            right = np.array([embedded.images[number].right for number in numbers])
            chosen = np.zeros(len(numbers), bool)
            chosen[top_classes(cosines(cue[None], embedded.vectors[numbers]), int(right.sum()))[0]] = True
            scores.append((right & chosen).sum() / (right | chosen).sum())  # Jaccard 1912
            questions.append(Questions(cue[None], embedded.vectors[numbers], np.ones(1, np.int64), right.astype(int)))
            sizes.append(len(numbers))
        jaccard, many = np.array(scores), np.array(sizes)
        metrics: Metrics = {
            "avg_jaccard_score": float(jaccard.mean()), LIKELIHOOD: best_log_likelihood(questions)
        }  # fmt: skip
        for name, (low, high) in _SIZES.items():
            some = (many >= low) & (many <= high)
            metrics[f"jaccard_score_{name}"] = float(jaccard[some].mean()) if some.any() else None
        return metrics, {}

    def _class_vectors(self, task: ZeroShotTask) -> Vectors:
        """Embeds the classes, (K, d) unit rows: per class the mean of its sentences' unit vectors.

        Source: Radford et al. 2021 (CLIP), section 3.1.4; `zero_shot_classifier` of clip-benchmark.
        """
        parts = []
        for start in range(0, len(task.classes), _CLASSES_AT_ONCE):
            names = task.classes[start : start + _CLASSES_AT_ONCE]
            sentences = [template.replace("{c}", name) for name in names for template in task.templates]
            rows = self._texts(sentences).reshape(len(names), len(task.templates), -1)  # (k, templates, d)
            parts.append(unit_rows(rows.mean(1)))
        return np.concatenate(parts)

    def _texts(self, texts: Sequence[str]) -> Vectors:
        tokens = self._tokenize(texts)
        states = self._states and self._states / f"{fingerprint({'tokens': tokens})}.npy"
        return _normalise(self._clip.texts(tokens, states=states), "one of the task's texts")

    def _embedded(self, task: ZeroShotTask) -> _Embedded:
        """Embeds a task's images; PoolError if all are unusable."""
        embedded = _Embedded(images=[], vectors=np.empty((0, 0), np.float32), unusable=0, reasons={}, incomplete=set())
        parts = []
        for batch in self._prepared(task.images()):
            present = [(image, pixels) for image, pixels in batch if not isinstance(pixels, str)]
            for image, reason in batch:
                if isinstance(reason, str):
                    embedded.unusable += 1
                    embedded.incomplete.add(image.label)
                    if len(embedded.reasons) < _SHOWN:
                        embedded.reasons[image.key] = reason
            if present:
                rows = self._clip.images([pixels for _, pixels in present])
                parts.append(_normalise(rows, f"{present[0][0].key} or one after it"))
                embedded.images += [replace(image, image=None) for image, _ in present]
        if not parts:
            why = "; ".join(f"{key}: {reason}" for key, reason in embedded.reasons.items()) or "it holds no images"
            raise PoolError(f"{task.folder}: no image can be used: {why}")
        embedded.vectors = np.concatenate(parts)
        return embedded

    def _prepared(self, images: Iterable[TaskImage]) -> Iterator[list[tuple[TaskImage, Pixels | str]]]:
        """Yields batches of images with pixels or the reason why not. Threads decode one batch ahead of the model."""

        def decoded() -> Iterator[list[tuple[TaskImage, Pixels | str]]]:
            everything = iter(images)
            with ThreadPoolExecutor(self._threads) as threads:
                while batch := list(islice(everything, self._batch)):
                    yield list(zip(batch, threads.map(self._pixels, batch), strict=True))

        return prefetch_items(decoded, depth=1)

    def _pixels(self, image: TaskImage) -> Pixels | str:
        if image.problem or image.image is None:
            return image.problem or "there is no image"
        try:
            return self._preprocess.resize(decode(image.image, max_pixels=_MAX_PIXELS))
        except SampleError as error:
            return error.reason


def _normalise(rows: Vectors, what: str) -> Vectors:
    """Normalises rows; ModelError if one is NaN or zero."""
    unit = unit_rows(rows)
    if not np.isfinite(unit).all():
        raise ModelError(f"the model's embedding of {what} is NaN or zero")
    return unit


def _cue(word: str) -> str:
    """Adds the article as WinoGAViL and DataComp do: "An owl", "A storm"."""
    word = word.lower()
    return f"{'An' if word.startswith(tuple('aeiou')) else 'A'} {word}"


def _read(path: Path) -> TaskResult:
    """Reads a task's result."""
    facts = read_record(path, "delete it and repeat the command")
    groups = {
        field: {group: (mean, rows) for group, (mean, rows) in means.items()}
        for field, means in facts["groups"].items()
    }
    names = TaskResult.__dataclass_fields__
    return TaskResult(**{name: facts[name] for name in names if name != "groups"}, groups=groups)


def _row(
    task: str, metric: str, score: float | None, images: str = "", unusable: str = "", others: str = ""
) -> dict[str, str]:
    shown = _format(score)
    return {"task": task, "metric": metric, "score": shown, "images": images, "unusable": unusable, "others": others}


def _format(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
