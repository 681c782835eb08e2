"""Zero-shot evaluation of a CLIP-like model: classification, retrieval and association, task by task.

Each task's result is a JSON file named for what it depends on (model, task, precision), written when the task is done:
the same command goes on where it stopped, and a changed model or task never meets an old number.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Pixels
from tamis.data import Device
from tamis.errors import ModelError, PoolError, RecipeError, SampleError, ShardError, unknown
from tamis.evaluate import datacomp
from tamis.evaluate.tasks import Task, TaskImage, find_tasks
from tamis.fingerprint import LENGTH, fingerprint
from tamis.lab.tasks import SIZE, make_tasks
from tamis.math.classification import f1_macro, group_means, hits, mean_per_class_recall, top_classes
from tamis.math.retrieval import jaccard, recall_at
from tamis.math.similarity import cosines, unit_rows
from tamis.models.clip import Clip, load_clip
from tamis.models.preprocess import Preprocess, load_preprocess
from tamis.models.reference import resolve
from tamis.models.tokens import load_tokenizer
from tamis.pool.images import decode
from tamis.storage import write_json
from tamis.store.records import TaskFile, read_result, with_hash
from tamis.store.targets import check_own, inside

log = logging.getLogger(__name__)

#: What `tasks` is called for the small set that is drawn on the spot.
LAB = "lab"

#: Raised when the same model and task would give other numbers.
VERSION = 1

_MAX_PIXELS = 100_000_000
_SHOWN = 5  # unusable images of a task that are named
_CLASSES_AT_ONCE = 64  # with ImageNet's 80 templates that is 5,120 sentences
_DEEPEST = 5  # of ranked classes

#: The names of results, as patterns.
_RESULTS = f"*-{'[0-9a-f]' * LENGTH}.json"

Vectors = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """What a model scores on a task.

    Attributes:
        task: its name.
        name: DataComp's name for it, or the task's own.
        kind: classification, retrieval or association.
        metric: the metric that counts.
        metrics: all metrics by name, None where one has no value here (acc5 of fewer than five classes).
        images: images that were used.
        unusable: images that could not be used, and count in no metric.
        reasons: of the first few of them, by key.
        classes: how many; 0 where there are none.
        groups: field to group to (accuracy, images): what the metrics of worst groups are the least of.
    """

    task: str
    name: str
    kind: Literal["classification", "retrieval", "association"]
    metric: str
    metrics: Mapping[str, float | None]
    images: int
    unusable: int
    reasons: Mapping[str, str]
    classes: int
    groups: Mapping[str, Mapping[str, tuple[float, int]]]

    @property
    def score(self) -> float | None:
        """The value of the metric that counts; None where it has none."""
        return self.metrics.get(self.metric)


@dataclass(frozen=True, kw_only=True)
class ZeroShot:
    """What a model scores on a set of tasks.

    Attributes:
        model: as it was named.
        digest: of the model's files.
        precision: the networks ran in.
        results: of the tasks that could be run, by name.
        failed: tasks that could not, with why; no average hides them.
        others: folders beside the tasks that are none, with why.
    """

    model: str
    digest: str
    precision: str
    results: tuple[TaskResult, ...]
    failed: Mapping[str, str]
    others: Mapping[str, str]

    @property
    def average(self) -> float | None:
        """The mean of the scores of all tasks here; None where one failed or has no score."""
        scores = [one.score for one in self.results]
        known = [score for score in scores if score is not None]
        return sum(known) / len(known) if known and len(known) == len(scores) and not self.failed else None

    def groups(self) -> tuple[datacomp.Average, ...]:
        """Returns DataComp's averages, with absent tasks listed; () where no task is one of its 38."""
        scores = {one.name: one.score for one in self.results if datacomp.entry_of(one.task) and one.score is not None}
        return datacomp.averages(scores) if scores else ()

    def rows(self) -> list[dict[str, str]]:
        """Returns a table for people: a row for each task, then DataComp's groups, then the average."""
        rows = [
            {
                "task": one.name,
                "metric": one.metric,
                "score": _shown(one.score),
                "images": f"{one.images:,}",
                "unusable": f"{one.unusable:,}" if one.unusable else "",
                "others": _beside(one),
            }
            for one in self.results
        ]
        for group in self.groups():
            rows.append(_average_row(group.name, group.value))
        every = len(self.results) + len(self.failed)
        rows.append(_average_row(f"average of the tasks here ({every})", self.average))
        return rows

    def facts(self) -> dict[str, Any]:
        """Returns everything as JSON takes it."""
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
    tasks: str | Path,
    device: Device,
    *,
    out: str | Path | None = None,
    only: Sequence[str] = (),
    split: str = "test",
    size: int = SIZE,
) -> ZeroShot:
    """Evaluates a model on tasks, one after the other, without training on any.

    Args:
        model: a CLIP or SigLIP checkpoint, or whatever else `load_clip` loads.
        tasks: a task's folder, a folder of tasks, or "lab" for a small set drawn from the lab.
        device: where the networks run. The batch size changes no result.
        out: folder for the results, and for the lab's tasks; what is done there is not done again. None: nothing is
            kept.
        only: names of some of the tasks; all where empty.
        split: of WebDataset tasks.
        size: images of each of the lab's tasks, where they are drawn.

    Raises:
        PoolError: there are no tasks, or one is incomplete in a way that shows before any work.
        RecipeError: a name in `only` is not a task here, or `tasks` is "lab" without a folder to draw it in.
        RunError: `out` holds other files and no results; nothing is written.
        ModelError: the model is not here, or is of another kind.
    """
    if out is not None:
        read = [Path(one) for one in (model, tasks)]
        check_own(Path(out), what="results", marks=[_RESULTS], also=["lab-tasks-*", *inside(Path(out), read)])
    found, others = find_tasks(_drawn(out, size) if str(tasks) == LAB else tasks, split=split)
    if only:
        names = {task.name: task for task in found}
        for name in only:
            if name not in names:
                raise RecipeError(unknown("task", name, names))
        found = [task for task in found if task.name in only]
    digest = resolve(model).digest
    runner: _Runner | None = None
    results: list[TaskResult] = []
    failed: dict[str, str] = {}
    for task in found:
        path = None if out is None else _place(Path(out), task, digest, device)
        if path is not None and path.is_file():
            results.append(_read(path))
            log.info("%s: done before", task.name)
            continue
        runner = runner or _Runner(model, device)
        _tell_of_twins(task)
        try:
            result = runner.run(task)
        except (PoolError, ShardError) as error:
            failed[task.name] = str(error)
            log.warning("%s: %s", task.name, error)
            continue
        if path is not None:
            facts = {"model": model, "digest": digest, "precision": device.precision, **asdict(result)}
            write_json(path, with_hash(facts))
        if result.unusable:
            key, reason = next(iter(result.reasons.items()))
            log.warning("%s: %d images cannot be used; %s: %s", task.name, result.unusable, key, reason)
        log.info("%s: %s %s on %s images", task.name, result.metric, _shown(result.score), f"{result.images:,}")
        results.append(result)
    return ZeroShot(
        model=model, digest=digest, precision=device.precision, results=tuple(results), failed=failed, others=others
    )


def _tell_of_twins(task: Task) -> None:
    """Warns of classes of one name: a model cannot tell them apart, and the first of them is always taken."""
    twins = [name for name, count in Counter(task.classes).items() if count > 1]
    if twins:
        log.warning(
            "%s: several classes are called %s; every image of the later ones counts as wrong: give each a name of "
            "its own",
            task.name, ", ".join(repr(name) for name in twins[:_SHOWN]),
        )  # fmt: skip


class _Runner:
    """A loaded model, and how it is measured on a task of each kind."""

    def __init__(self, model: str, device: Device) -> None:
        self._clip: Clip = load_clip(model, device)
        self._preprocess: Preprocess = load_preprocess(model)
        self._tokenize: Callable[[Sequence[str]], list[list[int]]] = load_tokenizer(model)
        self._batch = device.batch_size
        self._threads = device.threads or min(8, os.cpu_count() or 1)

    def run(self, task: Task) -> TaskResult:
        """Measures the model on a task.

        Raises:
            PoolError: a label has no class, or no image can be used.
            ShardError: a tar cannot be read to its end.
        """
        work = {"classification": self._classify, "retrieval": self._retrieve, "association": self._associate}
        tally = _Tally()
        metrics, groups = work[task.kind](task, tally)
        return TaskResult(
            task=task.name,
            name=task.entry.name if task.entry else task.name,
            kind=task.kind,
            metric=task.metric,
            metrics=metrics,
            images=tally.used,
            unusable=tally.unusable,
            reasons=tally.reasons,
            classes=len(task.classes),
            groups=groups,
        )

    def _classify(self, task: Task, tally: _Tally) -> tuple[dict[str, float | None], dict[str, Any]]:
        classes = self.class_vectors(task)
        labels: list[int] = []
        parts: list[NDArray[np.int64]] = []
        used: list[bool] = []
        for images, vectors in self._embedded(task.source.images(), tally, used):
            for image in images:
                if image.label >= len(task.classes):
                    raise PoolError(
                        f"{task.folder}: {image.key} is of class {image.label}, and {len(task.classes)} classes are "
                        f"named, 0 to {len(task.classes) - 1}: the names are of another task, or incomplete"
                    )
            labels += [image.label for image in images]
            parts.append(top_classes(cosines(vectors, classes), _DEEPEST))
        tally.check(task)
        truth, ranked = np.array(labels, np.int64), np.concatenate(parts)
        best, five = ranked[:, 0], hits(ranked, truth)
        metrics: dict[str, float | None] = {
            "acc1": float((best == truth).mean()),
            "acc5": float(five.mean()) if len(task.classes) >= _DEEPEST else None,
            "mean_per_class_recall": mean_per_class_recall(best, truth),
            "F1-macro_all": f1_macro(best, truth),
        }
        groups: dict[str, Any] = {}
        if task.worst:
            metadata = _metadata(task, len(used))[np.array(used)]
            for name, one in task.worst.items():
                right = five if name.startswith("acc_top5") else best == truth
                means = group_means(right, metadata[:, task.fields.index(one)])
                metrics[name] = min(mean for mean, _ in means.values())
                groups[one] = {str(group): found for group, found in means.items()}
        return metrics, groups

    def _retrieve(self, task: Task, tally: _Tally) -> tuple[dict[str, float | None], dict[str, Any]]:
        parts: list[Vectors] = []
        captions: list[str] = []
        owners: list[int] = []
        for images, vectors in self._embedded(task.source.images(), tally):
            for number, image in enumerate(images, sum(map(len, parts))):
                captions += image.captions
                owners += [number] * len(image.captions)
            parts.append(vectors)
        tally.check(task)
        pictures, texts = np.concatenate(parts), self._texts(captions)
        of_text, of_picture = np.array(owners), np.arange(len(pictures))
        ks = (1, 5, 10)
        to_image = recall_at(texts, pictures, of_text, of_picture, ks)
        to_text = recall_at(pictures, texts, of_picture, of_text, ks)
        metrics: dict[str, float | None] = {f"image_retrieval_recall@{k}": to_image[k] for k in ks}
        metrics |= {f"text_retrieval_recall@{k}": to_text[k] for k in ks}
        metrics["mean_recall@1"] = (to_image[1] + to_text[1]) / 2
        return metrics, {}

    def _associate(self, task: Task, tally: _Tally) -> tuple[dict[str, float | None], dict[str, Any]]:
        instances: dict[int, list[tuple[bool, Vectors]]] = {}
        asked: dict[int, int] = {}
        cues: dict[int, str] = {}

        def counted() -> Iterator[TaskImage]:
            for image in task.source.images():
                asked[image.label] = asked.get(image.label, 0) + 1
                cues[image.label] = _cue(image.captions[0])
                yield image

        for images, vectors in self._embedded(counted(), tally):
            for image, vector in zip(images, vectors, strict=True):
                instances.setdefault(image.label, []).append((image.right, vector))
        tally.check(task)
        whole = {number: one for number, one in sorted(instances.items()) if len(one) == asked[number]}
        if not whole:
            raise PoolError(f"{task.folder}: no instance has all its candidates' images")
        scores, sizes = [], []
        for cue, one in zip(self._texts([cues[number] for number in whole]), whole.values(), strict=True):
            right = np.array([belongs for belongs, _ in one])
            near = cosines(cue[None], np.stack([vector for _, vector in one]))
            chosen = np.zeros(len(one), bool)
            chosen[top_classes(near, int(right.sum()))[0]] = True
            scores.append(jaccard(right, chosen))
            sizes.append(len(one))
        found, many = np.array(scores), np.array(sizes)
        metrics: dict[str, float | None] = {"avg_jaccard_score": float(found.mean())}
        for name, rows in _SIZES.items():
            these = rows(many)
            metrics[f"jaccard_score_{name}"] = float(found[these].mean()) if these.any() else None
        return metrics, {}

    def class_vectors(self, task: Task) -> Vectors:
        """Returns (K, d) unit rows: the mean of the unit vectors of a class's sentences, one for each template.

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
        vectors = unit_rows(self._clip.texts(self._tokenize(texts)))
        if not np.isfinite(vectors).all():
            raise ModelError("the model gives one of the task's texts no direction (NaN or zeros)")
        return vectors

    def _embedded(
        self, images: Iterable[TaskImage], tally: _Tally, used: list[bool] | None = None
    ) -> Iterator[tuple[list[TaskImage], Vectors]]:
        """Yields images that can be used with their unit vectors, some at a time; the others go to the tally.

        Args:
            used: filled with whether each image could be used, in order.
        """
        for chunk in self._prepared(images):
            present = [(image, pixels) for image, pixels in chunk if not isinstance(pixels, str)]
            for image, pixels in chunk:
                tally.add(image.key, pixels if isinstance(pixels, str) else "")
                if used is not None:
                    used.append(not isinstance(pixels, str))
            if present:
                vectors = unit_rows(self._clip.images([pixels for _, pixels in present]))
                if not np.isfinite(vectors).all():
                    raise ModelError(f"the model gives {present[0][0].key} or one after it no direction (NaN or zeros)")
                yield [image for image, _ in present], vectors

    def _prepared(self, images: Iterable[TaskImage]) -> Iterator[list[tuple[TaskImage, Pixels | str]]]:
        """Yields batches of images as the model wants to see them, or why one cannot be seen.

        Decoded in threads, one batch ahead of the model: Pillow lets other threads run meanwhile.
        """
        everything = iter(images)
        waiting: deque[Any] = deque()
        with ThreadPoolExecutor(self._threads) as pool:
            while True:
                batch = list(islice(everything, self._batch))
                if batch:
                    waiting.append((batch, [pool.submit(self._pixels, image) for image in batch]))
                if waiting and (len(waiting) > 1 or not batch):
                    done, futures = waiting.popleft()
                    yield [(image, future.result()) for image, future in zip(done, futures, strict=True)]
                elif not batch:
                    return

    def _pixels(self, image: TaskImage) -> Pixels | str:
        if image.problem or image.image is None:
            return image.problem or "there is no image"
        try:
            return self._preprocess.resize(decode(image.image, max_pixels=_MAX_PIXELS))
        except SampleError as error:
            return error.reason


class _Tally:
    """How many images of a task were used, and why others were not."""

    def __init__(self) -> None:
        self.used = self.unusable = 0
        self.reasons: dict[str, str] = {}

    def add(self, key: str, problem: str) -> None:
        if not problem:
            self.used += 1
            return
        self.unusable += 1
        if len(self.reasons) < _SHOWN:
            self.reasons[key] = problem

    def check(self, task: Task) -> None:
        """Raises PoolError where no image could be used."""
        if not self.used:
            why = "; ".join(f"{key}: {reason}" for key, reason in self.reasons.items()) or "it holds no images"
            raise PoolError(f"{task.folder}: not one image can be used: {why}")


#: WinoGAViL's instances by their number of candidates, as DataComp reports them.
_SIZES: Mapping[str, Callable[[NDArray[Any]], NDArray[np.bool_]]] = {
    "5": lambda many: many == 5,
    "6": lambda many: many == 6,
    "10": lambda many: many == 10,
    "12": lambda many: many == 12,
    "5-6": lambda many: many <= 6,
    "10-12": lambda many: many >= 10,
}


def _cue(word: str) -> str:
    """Returns the sentence of a cue, as WinoGAViL's authors and DataComp write it: "An owl", "A storm"."""
    word = word.lower()
    return f"{'An' if word.startswith(tuple('aeiou')) else 'A'} {word}"


def _metadata(task: Task, images: int) -> NDArray[np.int64]:
    found = task.source.metadata()
    if found.shape != (images, len(task.fields)):
        raise PoolError(
            f"{task.folder}: the .npy members hold {found.shape[-1]} fields, expected {len(task.fields)}: "
            f"{', '.join(task.fields)}"
        )
    return found


def _drawn(out: str | Path | None, size: int) -> Path:
    if out is None:
        raise RecipeError("the lab's tasks are drawn into a folder: name one with out, or draw them with make_tasks")
    return make_tasks(Path(out) / f"lab-tasks-{size}", size=size, again=False)


def _place(out: Path, task: Task, digest: str, device: Device) -> Path:
    what = {"version": VERSION, "model": digest, "task": task.digest, "precision": device.precision}
    return out / f"{task.name}-{fingerprint(what)}.json"


def _read(path: Path) -> TaskResult:
    """Reads a task's result.

    Raises:
        DamageError: it is not what was written.
    """
    facts = read_result(path, TaskFile, of="a task", command="the command")
    names = TaskResult.__dataclass_fields__
    groups = {
        field: {group: (mean, rows) for group, (mean, rows) in means.items()}
        for field, means in facts["groups"].items()
    }
    return TaskResult(**{name: facts[name] for name in names if name != "groups"}, groups=groups)


def _beside(result: TaskResult) -> str:
    """Returns the metrics that a line of a table has room for beside the one that counts."""
    if result.kind == "retrieval":
        ways = (("text to image", "image_retrieval"), ("image to text", "text_retrieval"))
        return ", ".join(
            f"{way} R@1/5/10 {' / '.join(_shown(result.metrics[f'{name}_recall@{k}']) for k in (1, 5, 10))}"
            for way, name in ways
        )
    names = ["acc1", "acc5", "mean_per_class_recall", "avg_jaccard_score", "jaccard_score_5-6", "jaccard_score_10-12"]
    names += [name for name in result.metrics if "worst" in name or name.endswith("_wg")]
    told = {name: result.metrics.get(name) for name in names if name != result.metric}
    return ", ".join(f"{name} {_shown(value)}" for name, value in told.items() if value is not None)


def _average_row(name: str, value: float | None) -> dict[str, str]:
    return {"task": name, "metric": "mean", "score": _shown(value), "images": "", "unusable": "", "others": ""}


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"
