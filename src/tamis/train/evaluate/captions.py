"""Evaluates a captioner by the captions that people wrote: BLEU-4, METEOR, ROUGE-L, CIDEr, SPICE and BERTScore.

The numbers are those of `pycocoevalcap`, COCO's own evaluation, on the words that `words_of` returns. Its CIDEr is
CIDEr-D (Vedantam et al. 2015, section 6). Papers print them times 100.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from tamis.core.arrays import Pixels
from tamis.core.errors import PoolError, SampleError, at_least_one, first_line, require
from tamis.core.math.statistics import mean_interval
from tamis.core.math.texts import bertscore
from tamis.core.types import Device
from tamis.models.captioner import load_beam_captioner
from tamis.models.texts.sentence import load_token_encoder
from tamis.pools.images import decode
from tamis.pools.open import open_pool
from tamis.pools.source import PoolSpec
from tamis.train.evaluate.tasks import TaskImage, ZeroShotTask, find_tasks

#: Every metric, in the order of the table.
METRICS = ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr", "SPICE", "BERTScore")

_MAX_PIXELS = 100_000_000
_SHOWN = 5  # name at most so many unusable images

_NO_JAVA = "needs Java, which is not installed"
_NO_PARSER = (
    "needs CoreNLP 3.6.0, which Tamis does not download: python -m pycocoevalcap.spice.get_stanford_models does"
)
_NO_ENCODER = "needs a text encoder: name one with --encoder, such as FacebookAI/roberta-large or minilm"

_ENDING = r"n't|'(?:s|m|d|ll|re|ve)\b"
_WORD = re.compile(
    rf"""\d+(?:[.,:/]\d+)+(?!\w)  # 11:44, 6,000
    | (?:[^\W\d_]\.){{2,}} | [^\W\d_]\.(?=\s\w) | (?:mr|mrs|ms|dr|st|ave|blvd|rd|vs|jr|ft)\.(?!\w)  # t.v., st.
    | can(?=not\b) | {_ENDING} | [^\W_]+?(?=n't\b)
    | [^\W_]+(?:[-.&'/@_][^\W_]+?)*(?={_ENDING}) | [^\W_]+(?:[-.&'/@_][^\W_]+)*
    | -{{2,}} | \.{{2,}} | \S""",
    re.VERBOSE,
)
_PUNCTUATION = {*"'`.?!,:-;\"“”‘—–…"}
_SIGNS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-", "£": "#", "€": "$"}


def words_of(text: str) -> str:
    """Returns the words that the metrics compare: in lower case, separated by spaces, without punctuation.

    They are those of COCO's tokenizer, a Java program, for 99.9 % of 46,847 captions (COCO, Conceptual Captions,
    Flickr8k). The others have smileys, fractions or rare abbreviations. Brackets become words, as there.
    """
    words = _WORD.findall(text.lower().replace("’", "'"))
    return " ".join(
        _SIGNS.get(word, word) for word in words if word not in _PUNCTUATION and word[:2] not in ("..", "--")
    )


@dataclass(frozen=True, kw_only=True)
class CaptionScores:
    """How similar captions are to those that people wrote of the same images."""

    metrics: Mapping[str, float]  # {name: value over all images}
    intervals: Mapping[str, tuple[float, float]]  # 95 %, over the images, of metrics that are means over them
    missing: Mapping[str, str]  # {metric: why it was not computed}


def score_captions(
    captions: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    metrics: Sequence[str] = METRICS,
    encode: Callable[[Sequence[str]], Mapping[str, Any]] | None = None,
) -> CaptionScores:
    """Compares one caption of each of n images with one or more references.

    CIDEr weighs words by how few of the n images have them in their references, so it is 0 for one image. `encode`
    returns the `TokenVectors` of texts, for BERTScore (F1 with the best reference). METEOR and SPICE run Java.

    Raises ValueError if the numbers of captions and references differ, or if an image has none.
    """
    require("pycocoevalcap.cider.cider", "scipy", extra="captions")
    if len(captions) != len(references) or not captions or not all(references):
        raise ValueError(f"expected references for each of {len(captions)} captions, got {sum(map(bool, references))}")
    ours = {number: [words_of(text)] for number, text in enumerate(captions)}
    theirs = {number: [*map(words_of, texts)] for number, texts in enumerate(references)}
    values: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    missing = {name: reason for name in metrics if (reason := _unavailable(name, encode is None))}
    for name in metrics:
        each: list[float] = []
        if name == "BERTScore" and encode is not None:
            each = _best_f1(captions, references, encode)
            values[name] = sum(each) / len(each)
        elif name not in missing:
            try:
                values[name], each = _measure(name, theirs, ours)
            except (OSError, ValueError, subprocess.SubprocessError) as error:  # Java has no memory, the disk is full
                missing[name] = f"Java failed: {error}"
        known = [value for value in each if value == value]
        if len(known) > 1:
            mean = mean_interval(known)
            intervals[name] = (mean.low, mean.high)
    return CaptionScores(metrics=values, intervals=intervals, missing=missing)


def _unavailable(metric: str, no_encoder: bool) -> str:
    """Returns why a metric cannot be computed here, or ""."""
    if metric == "BERTScore" and no_encoder:
        return _NO_ENCODER
    if metric in ("METEOR", "SPICE") and shutil.which("java") is None:
        return _NO_JAVA
    if metric == "SPICE":  # the package would download 400 MB without asking
        spec = importlib.util.find_spec("pycocoevalcap.spice")
        folders = [Path(one) for one in (spec and spec.submodule_search_locations) or ()]
        return "" if any((one / "lib/stanford-corenlp-3.6.0-models.jar").is_file() for one in folders) else _NO_PARSER
    return ""


def _measure(metric: str, theirs: Any, ours: Any) -> tuple[float, list[float]]:
    """Returns the package's value, and the values of the images that it is the mean of, if it is a mean."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.spice.spice import Spice

    if metric == "BLEU-4":
        return float(Bleu(4).compute_score(theirs, ours, verbose=0)[0][-1]), []
    if metric == "METEOR":
        return _meteor(theirs, ours), []
    if metric == "CIDEr" and not any(itertools.chain.from_iterable(theirs.values())):
        return 0.0, [0.0] * len(ours)  # the package fails if no reference has a word
    value, each = {"ROUGE-L": Rouge, "CIDEr": Cider, "SPICE": Spice}[metric]().compute_score(theirs, ours)
    return float(value), [float(one["All"]["f"] if metric == "SPICE" else one) for one in each]


def _meteor(theirs: Any, ours: Any) -> float:
    """Returns METEOR; OSError with Java's words if it fails."""
    from pycocoevalcap.meteor.meteor import Meteor

    scorer = Meteor()
    java = scorer.meteor_p
    try:
        return float(scorer.compute_score(theirs, ours)[0])
    except (OSError, ValueError) as error:
        java.kill()
        said = java.stderr.read().decode(errors="replace").strip()
        raise OSError(first_line(OSError(said) if said else error)) from error
    finally:
        if scorer.lock.locked():  # after an error the package's destructor would wait for it forever
            scorer.lock.release()
        for pipe in (java.stdin, java.stdout, java.stderr):  # the package leaves them open
            with contextlib.suppress(OSError):
                pipe.close()


def _best_f1(
    captions: Sequence[str], references: Sequence[Sequence[str]], encode: Callable[[Sequence[str]], Mapping[str, Any]]
) -> list[float]:
    """Returns the F1 of each caption with the reference that fits best; an undefined one is 0, as in `bert-score`."""
    vectors = encode([*captions, *itertools.chain.from_iterable(references)])
    best = []
    for caption, texts in zip(captions, references, strict=True):
        own, others = vectors[caption], [vectors[text] for text in texts]
        scores = [bertscore(own.vectors, one.vectors, own.counts, one.counts)[2] for one in others]
        best.append(max(np.nan_to_num(scores).tolist()))
    return best


@dataclass(frozen=True, kw_only=True)
class CaptionResult(CaptionScores):
    """A captioner's captions of a set of images, and their scores."""

    task: str
    unusable: int  # number of images that could not be used
    reasons: Mapping[str, str]  # {key: reason} for the first few of them
    captions: Sequence[tuple[str, str]] = field(repr=False)  # (key of an image, caption)

    def row(self) -> dict[str, str]:
        """A row of the printed table."""
        shown = {name: f"{value:.4f}" for name, value in self.metrics.items()}
        for name, (low, high) in self.intervals.items():
            shown[name] += f" [{low:.4f}, {high:.4f}]"
        return {"task": self.task, "images": f"{len(self.captions):,}", "unusable": f"{self.unusable:,}", **shown}


def evaluate_captions(
    model: str,
    data: str | PathLike[str],
    device: Device,
    *,
    references: str | None = None,
    only: Sequence[str] = (),
    split: str = "test",
    beams: int = 5,
    max_tokens: int = 30,
    encoder: str | None = None,
    metrics: Sequence[str] = METRICS,
) -> list[CaptionResult]:
    """Captions images by beam search and compares the captions with those that people wrote.

    Args:
        model: a captioner with a beam search: BLIP, BLIP-2, GIT or a vision-encoder-decoder model.
        data: retrieval tasks as `evaluate_zero_shot` reads them; or with `references` a pool.
        device: where the networks run.
        references: json field or table column of the pool with the captions of an image, a list or one.
        only, split: names of the tasks, empty for all; name of the split of WebDataset tasks.
        beams, max_tokens: of the search; the paper on ICC names neither. A model may take fewer tokens.
        encoder: text encoder for BERTScore; None leaves it out.
        metrics: names in `METRICS`.

    Raises:
        PoolError: there are no such images, or none that can be used.
        ModelError: a model is missing, or cannot do what is asked.
        DependencyError: pycocoevalcap is not installed.
    """
    require("pycocoevalcap.cider.cider", "scipy", extra="captions")
    at_least_one(beams=beams, max_tokens=max_tokens)
    if references is None:
        try:
            sets = {task.name: task.images for task in caption_tasks(data, only, split)}
        except PoolError as error:
            raise PoolError(f"{error}. For a pool, name the field of its captions: --references") from error
    elif only:
        raise PoolError(f"{str(data)!r} is a pool (--references), which has no tasks: leave --only out")
    else:
        sets = {Path(data).name: partial(_pool_images, data, references)}
    caption = load_beam_captioner(model, device)
    max_tokens = min(max_tokens, caption.most_tokens(""))
    encode = load_token_encoder(encoder, None, device) if encoder else None
    results = []
    for name, images in sets.items():
        captions: list[tuple[str, str]] = []
        wanted: list[Sequence[str]] = []
        reasons: list[tuple[str, str]] = []
        usable = _decoded(images(), reasons)
        while batch := list(itertools.islice(usable, device.batch_size)):
            texts = caption([pixels for _, pixels in batch], prompt="", beams=beams, max_tokens=max_tokens)
            captions += [(image.key, best) for (image, _), (best, *_) in zip(batch, texts, strict=True)]
            wanted += [image.captions for image, _ in batch]
        if not captions:
            raise PoolError(f"{name}: none of {len(reasons)} images can be used: {dict(reasons[:1])}")
        scores = score_captions([text for _, text in captions], wanted, metrics=metrics, encode=encode)
        results.append(
            CaptionResult(
                **vars(scores), task=name, unusable=len(reasons), reasons=dict(reasons[:_SHOWN]), captions=captions
            )
        )
    return results


def caption_tasks(data: str | PathLike[str], only: Sequence[str] = (), split: str = "test") -> list[ZeroShotTask]:
    """Returns the tasks whose images have captions; raises PoolError if there is none."""
    tasks = [task for task in find_tasks(data, split=split, only=only)[0] if task.kind == "retrieval"]
    if not tasks:
        raise PoolError(f"{str(data)!r} holds no images with captions (a retrieval task)")
    return tasks


def _pool_images(pool: str | PathLike[str], column: str) -> Iterator[TaskImage]:
    """Yields the images of a pool with the captions in a json field or column."""
    for shard in open_pool(PoolSpec(path=str(pool), fields=(column,))).shards:
        for sample in shard.samples():
            captions = tuple(one.strip() for one in _texts_in(sample.given.get(column, "")) if one.strip())
            problem = sample.reason or ("" if captions else f"the field {column!r} holds no caption")
            yield TaskImage(key=sample.key, image=sample.image, problem=problem, captions=captions)


def _texts_in(value: str) -> list[str]:
    """Returns the texts of a stored field: of a JSON list, or the value itself, which may begin with a bracket too."""
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(texts := json.loads(value), list):
            return [one for one in texts if isinstance(one, str)]
    return [value]


def _decoded(images: Iterator[TaskImage], reasons: list[tuple[str, str]]) -> Iterator[tuple[TaskImage, Pixels]]:
    """Yields the images that can be used, and notes why others cannot."""
    for image in images:
        try:
            if image.problem or image.image is None:
                raise SampleError("image_broken", image.problem or "there is no image")
            yield image, decode(image.image, max_pixels=_MAX_PIXELS)
        except SampleError as error:
            reasons.append((image.key, str(error)))
