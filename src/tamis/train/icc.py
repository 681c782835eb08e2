"""`tamis train sba` and `tamis train icc`: ICC's second teacher, and the student that needs only the caption.

ICC has two teachers, VBA and SBA. SBA has one trained part: a linear layer from CLIP's text space to a soft token of a
language model. We standardise the teachers' scores per caption length. In the paper's two stages, a student learns each
teacher, a regression on labels combines the students' scores, and the final student learns the combination. With one
stage the regression combines the teachers' own scores.

Source: Yanuka et al. 2024 (ICC), appendix A.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from tamis.core.arrays import Float64s
from tamis.core.compute import Precision
from tamis.core.errors import PoolError, at_least_one, check_words, require, unknown_message
from tamis.core.files.storage import is_run
from tamis.core.files.targets import check_new_folder, new_folder
from tamis.core.math.normalise import PerLength, inverse_logit
from tamis.core.math.statistics import Agreement, agreement, sample_evenly
from tamis.core.types import Device
from tamis.models.loading import is_pooler, load_tokenizer_in, load_whole, longest_text, pad_tokens, transformer_folder
from tamis.models.reference import resolve
from tamis.models.texts.regression import load_text_regression
from tamis.models.texts.soft_token import Bridge, End, Reader
from tamis.pools.text_files import read_texts
from tamis.runs import open_run
from tamis.train.loop import Optimiser, Settings, fit

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

#: The teachers' columns, in the order of the weights.
TEACHERS = ("vba", "sba")

#: Names of heads in transformers' classes. A student gets a new head.
_HEADS = ("classifier", "pre_classifier", "classification_head", "score", "head", "sequence_summary", "logits_proj")

#: Number of captions that people labelled for the paper.
LABELLED = 244

#: AdamW's betas: the defaults of `transformers`' Trainer, which the paper takes (appendix A.7).
BETAS = (0.9, 0.999)

_HELD_OUT = 10  # one caption in ten is held out to measure the student


@dataclass(frozen=True, kw_only=True)
class SbaTraining:
    """Settings to train SBA's layer. The defaults are the paper's (appendix A.7)."""

    epochs: Annotated[int, "Number of epochs."] = 2
    batch_size: Annotated[int, "Captions in a batch of training."] = 128
    learning_rate: Annotated[float, "AdamW's peak learning rate."] = 2e-3
    warmup: float = 0.03  # share of the steps in which the rate rises; then it falls to 0 along a half cosine
    end: Annotated[End, "The end of a caption: newline (as released), or eos for models of single sentences."] = (
        "newline"
    )
    seed: Annotated[int, "Seed of the initial weights and the order of the captions."] = 0

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """Settings to train a student.

    The paper names the student and the mean squared error, the released code the learning rate. The rest is as for SBA
    (appendix A.7): two epochs, batches of 128, a half cosine after a warm-up of 0.03, and the AdamW of `transformers`'
    Trainer (betas 0.9 and 0.999, no weight decay).
    """

    student: Annotated[str, "The text encoder to start from."] = "distilbert/distilroberta-base"
    epochs: Annotated[int, "Number of epochs."] = 2
    batch_size: Annotated[int, "Captions in a batch of training."] = 128
    learning_rate: Annotated[float, "The peak learning rate."] = 1e-4
    optimiser: Optimiser = "adamw"
    warmup: float = 0.03  # share of the steps in which the rate rises
    max_tokens: int = 64  # training truncates longer captions
    seed: Annotated[int, "Seed of the new head, dropout and the order of the captions."] = 0

    def __post_init__(self) -> None:
        _check(self)
        if self.max_tokens < 4:
            raise ValueError(f"max_tokens must be at least 4, got {self.max_tokens}")


def _check(training: SbaTraining | Distillation) -> None:
    check_words(training)
    at_least_one(epochs=training.epochs, batch_size=training.batch_size)
    if not training.learning_rate > 0:
        raise ValueError(f"learning_rate must be above 0, got {training.learning_rate}")
    if not 0 <= training.warmup < 1:
        raise ValueError(f"warmup is a share of the steps, in [0, 1), got {training.warmup}")


def _fit(
    network: torch.nn.Module, loss: Callable[[NDArray[np.int64]], torch.Tensor], captions: int,
    training: SbaTraining | Distillation, precision: Precision = "float32", **settings: Any,
) -> list[float]:  # fmt: skip
    """Trains on batches of caption numbers, shuffled in each epoch; returns the losses."""
    steps = math.ceil(captions / training.batch_size) * training.epochs
    log.info("%d captions, %d batches of %d", captions, steps, training.batch_size)
    rng = np.random.default_rng(training.seed)
    orders = (rng.permutation(captions) for _ in range(training.epochs))
    starts = range(0, captions, training.batch_size)
    batches = (order[start : start + training.batch_size] for order in orders for start in starts)
    warmup = max(1, round(training.warmup * steps))
    whole = Settings(steps=steps, learning_rate=training.learning_rate, warmup=warmup, floor=0.0, **settings)
    return fit(network, loss, batches, whole, precision=precision)


def train_sba(
    captions: Sequence[str],
    *,
    clip: str,
    language_model: str,
    out: str | Path,
    device: Device,
    training: SbaTraining | None = None,
) -> list[float]:
    """Trains SBA's layer and writes its folder, the `bridge` of the signal `sba`. Returns each step's loss.

    Embeds every distinct caption with CLIP once. Gradients go through the frozen language model.

    Source: Yanuka et al. 2024 (ICC), section 2 and appendix A.7.
    """
    require("torch", "transformers", extra="clip")
    import torch

    from tamis.models.clip import load_clip, load_tokenizer

    check_new_folder(Path(out))
    training = training or SbaTraining()
    distinct = sorted(set(captions))
    if not distinct:
        raise PoolError("there are no captions to train on")
    torch.manual_seed(training.seed)
    reader = Reader(language_model, device, training.end)
    tower, tokenize = load_clip(clip, device), load_tokenizer(clip)
    embedded = torch.from_numpy(tower.texts(tokenize(distinct))).to(reader.device)  # (n, d)
    tokens = reader.tokens(distinct)
    layer = torch.nn.Linear(embedded.shape[1], reader.width).to(reader.device)

    def loss(rows: NDArray[np.int64]) -> torch.Tensor:
        return reader.loss(layer(embedded[rows]), [tokens[row] for row in rows])

    losses = _fit(layer, loss, len(distinct), training, weight_decay=0.0, betas=BETAS)
    bridge = Bridge(
        weight=layer.weight.detach().float().cpu().numpy(),
        bias=layer.bias.detach().float().cpu().numpy(),
        clip=clip,
        language_model=language_model,
        clip_digest=resolve(clip).digest,
        language_model_digest=resolve(language_model).digest,
        end=training.end,
    )
    last = float(np.mean(losses[-20:]))
    with new_folder(Path(out)) as folder:
        bridge.save(folder, {**asdict(training), "captions": len(distinct), "steps": len(losses), "last_loss": last})
    return losses


@dataclass(frozen=True)
class Logistic:
    """sigma(weights . x + bias): (n,) probabilities from (n, k) columns."""

    weights: tuple[float, ...]
    bias: float

    def __call__(self, columns: Float64s) -> Float64s:
        return inverse_logit(columns @ np.array(self.weights) + self.bias)


@dataclass(frozen=True, kw_only=True)
class Distilled:
    """The result of a distillation."""

    folder: Path  # the checkpoint, a model for the signal `icc`
    captions: int  # number of captions that the student learned from
    held_out: int  # number of captions to measure it on
    labelled: int  # number of captions with labels
    stages: int  # see `distill`
    combination: Logistic  # combines the standardised teachers, or their students
    with_target: Agreement  # between the student and the combination, on the held-out captions
    #: agreement with the labels for "vba", "sba" (the teachers, standardised, or their students), "combined" and
    #: "student". The student has not seen the labels; the combination was fitted on them unless weights were given.
    with_labels: Mapping[str, Agreement]


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
    """Trains a student on the combined teachers and writes its checkpoint into a new folder.

    Args:
        scores: a run with the columns `vba` and `sba`, or a table with them and the captions.
        labels: a table of captions with labels (higher is more concrete), on which the combination is fitted. The
            student sees none of these captions.
        label, text: names of the columns with labels and captions.
        weights: instead of labels: weight of vba, weight of sba, bias.
        training: None for the defaults.
        stages: 2 combines students of the teachers, 1 the teachers themselves.
        students: folders of the students of vba and sba, written by `distill_teacher`; None trains both and deletes
            them afterwards.

    Source: Yanuka et al. 2024 (ICC), appendix A.2 (two stages) and A.9 (the combination).
    """
    training = training or Distillation()
    # Whatever can be refused is refused before a model is loaded.
    if labels is None and weights is None:
        raise ValueError("say how to combine the teachers: labels (a table of captions), or weights of vba, sba, bias")
    if weights is not None and (len(weights) != len(TEACHERS) + 1 or not np.isfinite(weights).all()):
        raise ValueError(f"expected {len(TEACHERS) + 1} finite weights: vba, sba, bias; got {list(weights)}")
    if stages not in (1, 2) or (stages == 1 and students is not None):
        raise ValueError(f"stages must be 1 or 2, and students are for two stages; got {stages}")
    _check_students(students)
    check_new_folder(Path(out))
    captions, raw = read_teachers(scores, text=text)
    columns, norms = standardise(raw, caption_lengths(captions))
    rows, values = _match(labels, label, text, captions)
    if weights is None and not len(rows):
        raise PoolError(f"none of the captions in {labels} has scores in {scores}: score them with both teachers")
    # The student learns from neither labelled captions nor those that are held out: both judge it.
    aside = is_held_out(captions)
    learned = ~aside
    learned[rows] = False
    aside[rows] = False
    _check_enough(captions, learned, aside)
    # Two stages: the teachers' own students score the captions, and their scores are combined.
    if stages == 2:
        if students is None:
            columns = _by_new_students(captions, columns, training, device)
        else:
            columns = _scores_of(students, captions, device)
    combination = (
        combination_of(columns[rows], values) if weights is None else Logistic(tuple(weights[:-1]), weights[-1])
    )
    target = combination(columns)
    with new_folder(Path(out)) as folder:
        student = _student(captions, target, learned, folder, training, device)
        with_target = agreement(student(list(itertools.compress(captions, aside))), target[aside])
        with_labels = {}
        if len(rows) > 2:
            by = {**dict(zip(TEACHERS, columns[rows].T, strict=True)), "combined": target[rows]}
            by["student"] = student([captions[n] for n in rows])
            with_labels = {name: agreement(one, values) for name, one in by.items()}
        counts = {"stages": stages, "captions": int(learned.sum()), "held_out": int(aside.sum()), "labelled": len(rows)}
        facts = {
            "training": asdict(training),
            **counts,
            "weights": dict(zip(TEACHERS, combination.weights, strict=True)),
            "bias": combination.bias,
            "length": "words",
            "per_length": {name: asdict(one) for name, one in zip(TEACHERS, norms, strict=True)},
            "with_target": with_target.facts(),
            "with_labels": {name: one.facts() for name, one in with_labels.items()},
        }
        # A .log is not part of the model's hash: measurements change no score.
        (folder / "distillation.log").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return Distilled(
        folder=Path(out), combination=combination, with_target=with_target, with_labels=with_labels, **counts
    )


def distill_teacher(
    scores: str | Path,
    teacher: str,
    *,
    out: str | Path,
    device: Device,
    text: str | None = None,
    training: Distillation | None = None,
) -> Agreement:
    """Trains the student of one teacher (the first of two stages) and writes its checkpoint into a new folder.

    It learns the teacher's standardised scores on all captions except the held-out tenth, labelled or not.

    Source: Yanuka et al. 2024 (ICC), appendix A.2.
    """
    if teacher not in TEACHERS:
        raise ValueError(unknown_message("teacher", teacher, TEACHERS))
    check_new_folder(Path(out))
    captions, raw = read_teachers(scores, text=text)
    target = standardise(raw, caption_lengths(captions))[0][:, TEACHERS.index(teacher)]
    aside = is_held_out(captions)
    _check_enough(captions, ~aside, aside)
    with new_folder(Path(out)) as folder:
        student = _student(captions, target, ~aside, folder, training or Distillation(), device)
        return agreement(student(list(itertools.compress(captions, aside))), target[aside])


def captions_to_label(
    scores: str | Path,
    students: Sequence[str],
    *,
    device: Device,
    count: int = LABELLED,
    seed: int = 0,
    text: str | None = None,
) -> tuple[list[str], Float64s]:
    """Chooses captions for people to label, spread evenly over the scores of both teachers' students.

    Returned with their (count, 2) scores, in random order.

    Source: Yanuka et al. 2024 (ICC), appendix A.2 and A.9: "244 captions, sampled uniformly over VBA and SBA scores".
    """
    _check_students(students)
    captions, _ = read_teachers(scores, text=text)  # distinct, in the order of their texts
    columns = _scores_of(students, captions, device)
    chosen = sample_evenly(columns, count, seed=seed)
    return [captions[n] for n in chosen], columns[chosen]


def read_teachers(path: str | Path, *, text: str | None = None) -> tuple[list[str], Float64s]:
    """Returns a run's or table's distinct captions (column `text`), sorted, and their mean scores, (n, 2)."""
    if Path(path).is_dir() or is_run(path):
        run = open_run(path)
        texts = [text or "" for shard in run.shards for text in run.index(shard, ["caption"])["caption"].to_pylist()]
        columns = np.column_stack([run.to_numpy(name).astype(np.float64) for name in TEACHERS])
    else:
        table = read_texts(path, text=text, numbers=TEACHERS)
        texts = table.texts
        columns = np.column_stack([table.numbers[name] for name in TEACHERS])
    judged = np.isfinite(columns).all(1) & np.array([bool(text.strip()) for text in texts], bool)
    if not judged.any():
        raise PoolError(f"{path} holds no caption that both teachers ({', '.join(TEACHERS)}) have scored")
    distinct, rows = np.unique(np.array(texts, object)[judged], return_inverse=True)
    counts = np.bincount(rows)
    means = [np.bincount(rows, column[judged]) / counts for column in columns.T]
    return distinct.tolist(), np.column_stack(means)


def caption_lengths(captions: Sequence[str]) -> NDArray[np.int64]:
    """Returns the number of words of each caption: scores are standardised per length."""
    return np.array([len(caption.split()) for caption in captions])


def standardise(scores: Float64s, lengths: NDArray[np.int64]) -> tuple[Float64s, list[PerLength]]:
    """Standardises (n, k) scores per length; also returns the norms. Negative scores (BERTScore has some) count as 0.

    Source: Yanuka et al. 2024 (ICC), appendix A.1.
    """
    inside = np.clip(scores, 0, 1)
    norms = [PerLength.of(column, lengths) for column in inside.T]
    return np.column_stack([norm.standardise(one, lengths) for norm, one in zip(norms, inside.T, strict=True)]), norms


def combination_of(scores: Float64s, labels: Float64s, *, ridge: float = 1e-3) -> Logistic:
    """Fits sigma(a vba + b sba + c) to labels binarised at their median.

    Labels equal to the median are left out, unless a side would be empty without them, as with labels of 0 and 1.
    `ridge` penalises squared weights, per caption: teachers that separate the labels would get infinite weights.

    Source: Yanuka et al. 2024 (ICC), appendix A.9.
    """
    require("sklearn", extra="train")
    from sklearn.linear_model import LogisticRegression

    middle = np.median(labels)
    above, below = labels > middle, labels < middle
    above = above if above.any() else labels == middle
    below = below if below.any() else (labels == middle) & ~above
    if not above.any() or not below.any():
        raise PoolError(f"all {len(labels)} labels are {middle:g}: concrete and abstract captions are both needed")
    some = above | below
    fitted = LogisticRegression(C=1 / (ridge * some.sum()), solver="newton-cholesky", tol=1e-10).fit(
        scores[some], above[some]
    )
    return Logistic(tuple(fitted.coef_[0].tolist()), float(fitted.intercept_[0]))


def is_held_out(captions: Sequence[str]) -> NDArray[np.bool_]:
    """Which captions are held out to measure students: a tenth, the same in every pool."""
    return np.array([xxhash.xxh3_64_intdigest(caption.encode()) % _HELD_OUT == 0 for caption in captions])


def _check_students(students: Sequence[str] | None) -> None:
    if students is not None and len(students) != len(TEACHERS):
        raise ValueError(f"expected {len(TEACHERS)} students, of {' and '.join(TEACHERS)}, got {len(students)}")


def _check_enough(captions: Sequence[str], learned: NDArray[np.bool_], aside: NDArray[np.bool_]) -> None:
    if learned.sum() < 2 or aside.sum() < 3:
        raise PoolError(f"{len(captions)} captions are too few: {learned.sum()} to learn, {aside.sum()} to measure")


def _by_new_students(captions: Sequence[str], teachers: Float64s, training: Distillation, device: Device) -> Float64s:
    """Trains a student of each teacher in a temporary folder and returns their scores, (n, 2)."""
    with tempfile.TemporaryDirectory() as temporary:
        learned, scores = ~is_held_out(captions), []
        for name, column in zip(TEACHERS, teachers.T, strict=True):
            scores.append(_student(captions, column, learned, Path(temporary) / name, training, device)(captions))
        return np.column_stack(scores).astype(np.float64)


def _scores_of(students: Sequence[str], captions: Sequence[str], device: Device) -> Float64s:
    return np.column_stack([load_text_regression(one, device)(captions) for one in students]).astype(np.float64)


def _match(
    labels: str | Path | None, label: str, text: str | None, captions: Sequence[str]
) -> tuple[NDArray[np.int64], Float64s]:
    """Returns indices of the labelled captions and their labels; labels of a repeated caption are averaged."""
    if labels is None:
        return np.empty(0, np.int64), np.empty(0)
    table = read_texts(labels, text=text, numbers=[label])
    values: dict[str, list[float]] = {}
    for one, value in zip(table.texts, table.numbers[label].tolist(), strict=True):
        if value == value:
            values.setdefault(one, []).append(value)
    rows = [n for n, caption in enumerate(captions) if caption in values]
    return np.array(rows, np.int64), np.array([np.mean(sorted(values[captions[n]])) for n in rows])


def _student(
    captions: Sequence[str], target: Float64s, learned: NDArray[np.bool_], out: Path, training: Distillation,
    device: Device,
) -> Callable[[Sequence[str]], NDArray[Any]]:  # fmt: skip
    """Trains a student on the `learned` captions, writes its folder, and loads it."""
    require("torch", "transformers", extra="clip")
    import torch
    from torch.nn import functional as F
    from transformers import AutoModelForSequenceClassification

    path = transformer_folder(training.student)
    torch.manual_seed(training.seed)
    model = load_whole(
        AutoModelForSequenceClassification,
        path,
        training.student,
        expected="a text encoder that transformers can put a head on",
        unneeded=lambda name: name.partition(".")[0] in _HEADS or is_pooler(name),
        num_labels=1,
        problem_type="regression",
        dtype=torch.float32,
    ).to(device.kind)
    tokenizer = load_tokenizer_in(path, network=model)
    longest = min(training.max_tokens, longest_text(model.config, tokenizer))
    texts = list(itertools.compress(captions, learned))
    tokens = tokenizer(texts, truncation=True, max_length=longest)["input_ids"]
    targets = torch.from_numpy(target[learned]).float()

    def loss(rows: NDArray[np.int64]) -> torch.Tensor:
        ids, mask = pad_tokens([tokens[n] for n in rows], tokenizer.pad_token_id, device.kind)
        guess = model(input_ids=ids, attention_mask=mask).logits[:, 0].float()
        return F.mse_loss(guess, targets[rows].to(device.kind))

    adamw = training.optimiser == "adamw"
    _fit(
        model, loss, len(tokens), training, device.precision, optimiser=training.optimiser,
        matrix_learning_rate=training.learning_rate,
        betas=BETAS if adamw else (0.9, 0.98),
        weight_decay=0.0 if adamw else 0.01,
    )  # fmt: skip
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return load_text_regression(str(out), device)
