"""`tamis train icc`: from the teachers' scores to a small network that needs the caption alone.

The teachers' scores are standardised per caption length. In two stages, as the paper has it, each of them is taught to
a student of its own, the regression on labels is over these two students' scores, and the combination of both is taught
to the final student. In one stage the regression is over the teachers' own scores.
"""

from __future__ import annotations

import json
import logging
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from tamis.arrays import Float64s
from tamis.data import Device
from tamis.errors import PoolError, at_least_one, check_words, require, unknown
from tamis.math.per_length import PerLength
from tamis.math.spread import spread_over
from tamis.models.loading import is_pooler, load_tokenizer_in, load_whole, transformer_folder
from tamis.models.texts.regression import load_text_regression
from tamis.models.texts.token_batches import longest_text, padded
from tamis.pool.texts import read_texts
from tamis.storage import is_run
from tamis.store import open_run
from tamis.store.targets import check_new_folder, new_folder
from tamis.train.agreement import Agreement, agreement
from tamis.train.logistic import Logistic, fit_logistic
from tamis.train.loop import Settings, fit

if TYPE_CHECKING:
    import torch

    from tamis.train.optimiser import Optimiser

log = logging.getLogger(__name__)

#: The columns of the teachers, in the order in which weights are given.
TEACHERS = ("vba", "sba")

#: How transformers' classes call what stands on the encoder: it is new in a student.
_HEADS = ("classifier", "pre_classifier", "classification_head", "score", "head", "sequence_summary", "logits_proj")

#: How many captions the paper had labelled.
LABELLED = 244

#: What trains a student.
StudentOptimiser = Literal["adamw", "muon"]

_HELD_OUT = 10  # every tenth caption is kept from the student, to measure it


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """How a student is trained.

    The paper names the student and the mean squared error. The rest is that of its SBA (appendix A.7): two epochs in
    batches of 128 along a cosine after a warm-up of 0.03, everything else as the Trainer of `transformers` has it,
    which is AdamW with betas 0.9 and 0.999 and no weight decay. The learning rate is ours.

    Attributes:
        student: what it starts from: an encoder of texts that `transformers` loads, or a sentence-transformers folder.
        epochs: times through the captions.
        batch_size: captions in a batch.
        learning_rate: peak, which falls along a half cosine.
        optimiser: "adamw", or "muon" for the weight matrices inside the layers, with steps of the same size, and AdamW
            for the rest.
        warmup: share of the steps over which it rises.
        max_tokens: longest caption that it learns from, of those that it has room for; what is longer is cut.
        seed: of the new head, dropout and the order of the captions.
    """

    student: str = "distilbert/distilroberta-base"
    epochs: int = 2
    batch_size: int = 128
    learning_rate: float = 1e-4
    optimiser: StudentOptimiser = "adamw"
    warmup: float = 0.03
    max_tokens: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        check_words(self)
        at_least_one(epochs=self.epochs, batch_size=self.batch_size)
        if self.max_tokens < 4:
            raise ValueError(f"max_tokens must be at least 4, got {self.max_tokens}")
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be above 0, got {self.learning_rate}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup is a share of the steps, in [0, 1), got {self.warmup}")


@dataclass(frozen=True, kw_only=True)
class Distilled:
    """What came of it.

    Attributes:
        folder: the checkpoint, which `icc` takes as its model.
        captions, held_out, labelled: how many the student learned from, was measured on, and people had labelled.
        stages: 2 where the regression was over the teachers' students, 1 where it was over the teachers.
        combination: the weights of the standardised teachers, or of their students.
        with_target: the student's agreement with the combination, on the held-out captions.
        with_labels: agreement with the labels of labelled captions, by who scores: "vba", "sba" (standardised, or their
            students), "combined", "student". The final student has not seen them. The combination was
            fitted on them unless its weights were given.
    """

    folder: Path
    captions: int
    held_out: int
    labelled: int
    stages: int
    combination: Logistic
    with_target: Agreement
    with_labels: Mapping[str, Agreement]


def caption_length(caption: str) -> int:
    """Returns how long a caption is for the standardisation: its words."""
    return len(caption.split())


def read_teachers(path: str | Path, *, text: str | None = None) -> tuple[list[str], Float64s]:
    """Reads captions with their teachers' scores from a run folder or a table.

    Args:
        path: the folder or the table.
        text: the table's column of captions; None takes the first of a usual name.

    Returns:
        n distinct captions, and (n, 2) scores in the order of `TEACHERS`, those of a repeated caption averaged.
        Captions that a teacher did not judge are left out.

    Raises:
        RunError, PoolError: it is neither, or lacks a column.
    """
    if Path(path).is_dir() or is_run(path):
        run = open_run(path)
        texts = [text or "" for shard in run.shards for text in run.index(shard, ["caption"])["caption"].to_pylist()]
        columns = np.column_stack([run.to_numpy(name).astype(np.float64) for name in TEACHERS])
    else:
        found = read_texts(path, text=text, numbers=TEACHERS)
        texts = found.texts
        columns = np.column_stack([found.numbers[name] for name in TEACHERS])
    judged = np.isfinite(columns).all(1) & np.array([bool(text.strip()) for text in texts], bool)
    if not judged.any():
        raise PoolError(f"{path} holds no caption that both teachers ({', '.join(TEACHERS)}) have judged")
    distinct = sorted({text for text, good in zip(texts, judged, strict=True) if good})
    place = {text: row for row, text in enumerate(distinct)}
    rows = np.array([place[text] for text, good in zip(texts, judged, strict=True) if good])
    counts = np.bincount(rows, minlength=len(distinct))
    means = [np.bincount(rows, column[judged], len(distinct)) / counts for column in columns.T]
    return distinct, np.column_stack(means)


def standardised(scores: Float64s, lengths: NDArray[np.int64]) -> tuple[Float64s, list[PerLength]]:
    """Returns each teacher's scores standardised per length, and what they were standardised by.

    Args:
        scores: (n, k); below 0, as BERTScore can be, counts as 0.
        lengths: (n,).

    Source: Yanuka et al. 2024 (ICC), appendix A.1.
    """
    inside = np.clip(scores, 0, 1)
    norms = [PerLength.of(column, lengths) for column in inside.T]
    return np.column_stack([of.standardise(one, lengths) for of, one in zip(norms, inside.T, strict=True)]), norms


def concrete(labels: Float64s) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Returns which labels say concrete, and which of them say anything.

    Above the median is concrete, below it abstract, and on it neither; where one side would be empty, as with labels of
    0 and 1, the median itself goes to that side.

    Source: Yanuka et al. 2024 (ICC), appendix A.9.

    Raises:
        PoolError: all labels are the same.
    """
    middle = np.median(labels)
    above, below = labels > middle, labels < middle
    if not above.any():
        above = labels == middle
    elif not below.any():
        below = labels == middle
    if not above.any() or not below.any():
        raise PoolError(f"all {len(labels)} labels are {middle:g}: nothing tells concrete from abstract captions")
    return above, above | below


def combination_of(scores: Float64s, labels: Float64s) -> Logistic:
    """Fits the weights of standardised teachers (n, k) to (n,) labels: sigma(a vba + b sba + c).

    Source: Yanuka et al. 2024 (ICC), appendix A.9.
    """
    is_concrete, says = concrete(labels)
    return fit_logistic(scores[says], is_concrete[says])


def distill(
    scores: str | Path,
    *,
    out: str | Path,
    device: Device,
    labels: str | Path | None = None,
    label: str = "label",
    text: str | None = None,
    weights: Sequence[float] | None = None,
    training: Distillation | None = None,
    stages: Literal[1, 2] = 2,
    students: Sequence[str] | None = None,
) -> Distilled:
    """Trains a student on the combined teachers and writes its checkpoint folder.

    Args:
        scores: a run folder with the columns `vba` and `sba`, or a table with them and the captions.
        out: the folder to write, new or empty.
        device: where to train.
        labels: a table of captions that people labelled, higher being more concrete; the student sees none of them.
        label: its column.
        text: the column of captions, in both tables; None takes the first of a usual name.
        weights: of vba, of sba, and the bias, in place of fitting them to labels.
        training: how every student is trained.
        stages: 2: a student of each teacher first, the combination is of these; 1: the combination is of the teachers.
        students: of vba and of sba, as `distill_teacher` wrote them; None: both are trained now and thrown away after.

    Raises:
        ValueError: neither labels nor weights are given, not three finite weights, or students with one stage.
        PoolError: too few captions, or none of the labelled ones has scores.
        ModelError: a student is not here, or reads no texts.

    Source: Yanuka et al. 2024 (ICC), appendix A.2 (two stages) and A.9 (the combination).
    """
    of = training or Distillation()
    _check_asked(labels, weights, stages, students)
    check_new_folder(Path(out))
    captions, raw = read_teachers(scores, text=text)
    lengths = np.array([caption_length(caption) for caption in captions])
    columns, norms = standardised(raw, lengths)
    rows, values = _labelled(labels, label, text, captions)
    if weights is None and not len(rows):
        raise PoolError(f"none of the captions in {labels} has scores in {scores}: score them by both teachers too")
    aside = np.array([is_held_out(caption) for caption in captions])
    learned = ~aside
    learned[rows] = False
    aside[rows] = False
    if learned.sum() < 2 or aside.sum() < 3:
        raise PoolError(
            f"{len(captions)} captions, {len(rows)} of them labelled, are too few to learn from and measure"
        )
    if stages == 2:
        columns = _by_students(captions, columns, students, of, device)
    combination = (
        combination_of(columns[rows], values) if weights is None else Logistic(tuple(weights[:-1]), weights[-1])
    )
    target = combination(columns)
    with new_folder(Path(out)) as folder:
        _train_student([captions[n] for n in np.flatnonzero(learned)], target[learned], folder, of, device)
        guess = load_text_regression(str(folder), device)
        student = guess([captions[n] for n in np.flatnonzero(aside)])
        with_labels = {}
        if len(rows) > 2:
            said = guess([captions[n] for n in rows])
            by = {**dict(zip(TEACHERS, columns[rows].T, strict=True)), "combined": target[rows], "student": said}
            with_labels = {name: agreement(one, values) for name, one in by.items()}
        done = Distilled(
            folder=Path(out),
            captions=int(learned.sum()),
            held_out=int(aside.sum()),
            labelled=len(rows),
            stages=stages,
            combination=combination,
            with_target=agreement(student, target[aside]),
            with_labels=with_labels,
        )
        _describe(folder, done, of, norms)
    return done


def distill_teacher(
    scores: str | Path,
    teacher: str,
    *,
    out: str | Path,
    device: Device,
    text: str | None = None,
    training: Distillation | None = None,
) -> Agreement:
    """Trains the student of one teacher, the first of the two stages, and writes its checkpoint folder.

    It learns the standardised scores of all captions but the tenth that `is_held_out` names. Labels play no part, so
    captions that will be labelled are among them.

    Args:
        scores: as of `distill`.
        teacher: one of `TEACHERS`.
        out: the folder to write.
        device: where to train.
        text: the column of captions.
        training: how.

    Returns:
        Agreement with the standardised teacher on the captions that were held out.

    Raises:
        ValueError: there is no such teacher.
        PoolError, ModelError: as of `distill`.

    Source: Yanuka et al. 2024 (ICC), appendix A.2.
    """
    if teacher not in TEACHERS:
        raise ValueError(unknown("teacher", teacher, TEACHERS))
    check_new_folder(Path(out))
    captions, raw = read_teachers(scores, text=text)
    columns, _ = standardised(raw, np.array([caption_length(caption) for caption in captions]))
    target = columns[:, TEACHERS.index(teacher)]
    aside = np.array([is_held_out(caption) for caption in captions])
    if aside.sum() < 3 or (~aside).sum() < 2:
        raise PoolError(f"{len(captions)} captions are too few to learn from and measure")
    of = training or Distillation()
    with new_folder(Path(out)) as folder:
        _train_student([captions[n] for n in np.flatnonzero(~aside)], target[~aside], folder, of, device)
        guess = load_text_regression(str(folder), device)([captions[n] for n in np.flatnonzero(aside)])
        return agreement(guess, target[aside])


def captions_to_label(
    scores: str | Path,
    students: Sequence[str],
    *,
    device: Device,
    count: int = LABELLED,
    seed: int = 0,
    text: str | None = None,
) -> tuple[list[str], Float64s]:
    """Chooses the captions that people should label: spread evenly over the scores of both teachers' students.

    Args:
        scores: as of `distill`; its captions are chosen from.
        students: of vba and of sba.
        device: where they run.
        count: how many; all of them where there are not so many.
        seed: other captions for another number. The order of the captions plays no part.
        text: the column of captions.

    Returns:
        The captions in an order that tells nothing, and (count, 2) scores of both students.

    Raises:
        ValueError: not two students.

    Source: Yanuka et al. 2024 (ICC), appendix A.2 and A.9: "244 captions, sampled uniformly over VBA and SBA scores".
    """
    _check_students(students)
    captions, _ = read_teachers(scores, text=text)  # distinct, in the order of their texts
    columns = _scores_of(students, captions, device)
    chosen = spread_over(columns, count, seed=seed)
    return [captions[n] for n in chosen], columns[chosen]


def _by_students(
    captions: Sequence[str], columns: Float64s, students: Sequence[str] | None, of: Distillation, device: Device
) -> Float64s:
    """Returns the scores of both teachers' students, (n, 2), which are trained first where none are given."""
    if students is not None:
        return _scores_of(students, captions, device)
    rows = [n for n, caption in enumerate(captions) if not is_held_out(caption)]
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary) / name for name in TEACHERS]
        for folder, column in zip(folders, columns.T, strict=True):
            _train_student([captions[n] for n in rows], column[rows], folder, of, device)
        return _scores_of([str(folder) for folder in folders], captions, device)


def _scores_of(students: Sequence[str], captions: Sequence[str], device: Device) -> Float64s:
    return np.column_stack([load_text_regression(one, device)(captions) for one in students]).astype(np.float64)


def _check_asked(
    labels: str | Path | None, weights: Sequence[float] | None, stages: int, students: Sequence[str] | None
) -> None:
    if labels is None and weights is None:
        raise ValueError("say how to combine the teachers: labels (a table of captions), or weights of vba, sba, bias")
    if weights is not None and len(weights) != len(TEACHERS) + 1:
        raise ValueError(f"expected {len(TEACHERS) + 1} weights: of {', of '.join(TEACHERS)}, and the bias")
    if weights is not None and not np.isfinite(weights).all():
        raise ValueError(f"weights are numbers, got {', '.join(f'{weight:g}' for weight in weights)}")
    if stages not in (1, 2):
        raise ValueError(f"ICC is distilled in 1 or 2 stages, got {stages}")
    if students is not None and stages == 1:
        raise ValueError("students of the teachers are of the first of two stages: leave them out, or ask for stages=2")
    if students is not None:
        _check_students(students)


def _check_students(students: Sequence[str]) -> None:
    if len(students) != len(TEACHERS):
        raise ValueError(f"expected {len(TEACHERS)} students, of {' and of '.join(TEACHERS)}, got {len(students)}")


def is_held_out(caption: str) -> bool:
    """Tells whether a caption is one of the tenth that a student is measured on, in whatever pool it stands."""
    return xxhash.xxh3_64_intdigest(caption.encode()) % _HELD_OUT == 0


def _labelled(
    labels: str | Path | None, label: str, text: str | None, captions: Sequence[str]
) -> tuple[NDArray[np.int64], Float64s]:
    """Returns the places of the captions that are labelled, and their labels, those of a repeated caption averaged."""
    if labels is None:
        return np.empty(0, np.int64), np.empty(0)
    found = read_texts(labels, text=text, numbers=[label])
    given: dict[str, list[float]] = {}
    for one, value in zip(found.texts, found.numbers[label].tolist(), strict=True):
        if value == value:
            given.setdefault(one, []).append(value)
    rows = [n for n, caption in enumerate(captions) if caption in given]
    return np.array(rows, np.int64), np.array([math.fsum(given[captions[n]]) / len(given[captions[n]]) for n in rows])


def _train_student(captions: Sequence[str], target: Float64s, out: Path, of: Distillation, device: Device) -> None:
    require("torch", "transformers", extra="clip")
    import torch
    from torch.nn import functional as F
    from transformers import AutoModelForSequenceClassification

    path = transformer_folder(of.student)
    torch.manual_seed(of.seed)  # of the head, and of whatever else is drawn
    model = load_whole(
        AutoModelForSequenceClassification,
        path,
        of.student,
        expected="an encoder of texts that transformers can put a head on",
        unneeded=lambda name: name.partition(".")[0] in _HEADS or is_pooler(name),
        num_labels=1,
        problem_type="regression",
        dtype=torch.float32,
    ).to(device.kind)
    tokenizer = load_tokenizer_in(path, network=model)
    most = min(of.max_tokens, longest_text(model.config, tokenizer))
    rows = tokenizer(list(captions), truncation=True, max_length=most)["input_ids"]
    steps = math.ceil(len(rows) / of.batch_size) * of.epochs

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        rng = np.random.default_rng(of.seed)
        while True:
            order = rng.permutation(len(rows))
            for start in range(0, len(order), of.batch_size):
                chosen = order[start : start + of.batch_size]
                ids, mask = padded([rows[n] for n in chosen], tokenizer.pad_token_id, device.kind)
                yield ids, mask, torch.from_numpy(target[chosen]).float().to(device.kind)

    def loss(batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> torch.Tensor:
        ids, mask, wanted = batch
        return F.mse_loss(model(input_ids=ids, attention_mask=mask).logits[:, 0].float(), wanted)

    settings = Settings(
        steps=steps,
        learning_rate=of.learning_rate,
        matrix_learning_rate=of.learning_rate,
        weight_decay=0.0 if of.optimiser == "adamw" else 0.01,
        warmup=max(1, round(of.warmup * steps)),
        floor=0.0,
    )
    log.info("%s: %d captions, %d batches of %d", of.student, len(rows), steps, of.batch_size)
    chosen: list[Optimiser] | None = None
    if of.optimiser == "adamw":
        chosen = [torch.optim.AdamW(model.parameters(), lr=of.learning_rate, betas=(0.9, 0.999), weight_decay=0.0)]
    fit(model, loss, batches(), settings, precision=device.precision, chosen=chosen)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def _describe(folder: Path, done: Distilled, of: Distillation, norms: Sequence[PerLength]) -> None:
    facts = {
        "training": asdict(of),
        "stages": done.stages,
        "captions": done.captions,
        "held_out": done.held_out,
        "labelled": done.labelled,
        "weights": dict(zip(TEACHERS, done.combination.weights, strict=True)),
        "bias": done.combination.bias,
        "length": "words",
        "per_length": {name: asdict(one) for name, one in zip(TEACHERS, norms, strict=True)},
        "with_target": done.with_target.facts(),
        "with_labels": {name: one.facts() for name, one in done.with_labels.items()},
    }
    # Not under a name that counts for the model's hash: what was measured of it changes no score.
    (folder / "distillation.log").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
