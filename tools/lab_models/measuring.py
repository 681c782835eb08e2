"""Measures the built-in models on unseen images and captions, with 95 % intervals.

The floors are those that the rest of the project relies on; the tests assert them on a smaller sample.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.core.math.regions import fill_around
from tamis.core.math.similarity import unit_rows
from tamis.core.math.statistics import Estimate, auc, bootstrap, share_interval
from tamis.core.types import Device
from tamis.models.clip import Clip, load_clip, load_tokenizer
from tamis.models.loading import load_tokenizer_in, load_whole
from tamis.models.preprocess import load_preprocess
from tamis.models.text_to_image import load_pipeline
from tamis_lab.captions import describe, with_article
from tamis_lab.hard import HARD_KINDS
from tamis_lab.samples import MAIN_KINDS, Kind
from tamis_lab.world import COLOURS, OBJECTS, sample_scene
from tools.lab_models.captioner import load as load_captioner
from tools.lab_models.examples import HELD_OUT_SEED, Examples, draw
from tools.lab_models.vocabulary import corpus

# Of as many sentences 95 % of fresh ones have every three words in a row: the most that a model can reach.
_KNOWN = 120_000

_ZERO_SHOT = f"zero-shot: the best of {len(OBJECTS)} classes is in the picture"
PROMPTS = ("a photo of {}", "a drawing of {}", "{}")


@dataclass(frozen=True)
class Metric:
    """One line of a model's card."""

    what: str
    found: Estimate
    floor: float | None = None  # the least it should be


def measure_clip(folder: Path, *, count: int, device: str = "cpu", workers: int = 1) -> dict[str, Metric]:
    """Measures `lab/clip`."""
    eyes = _Eyes(folder, device)
    visual, text_only, mismatched = (
        draw(count, seed=HELD_OUT_SEED + number, kinds={kind: 1}, workers=workers)
        for number, kind in enumerate[Kind](("visual", "text_only", "mismatched"))
    )
    pictures = eyes.see(visual.images)
    right = _names_an_object(eyes, visual)
    single = np.array([sample.scene.other is None for sample in visual.samples])
    texts = eyes.read(visual.captions)
    matched = (pictures * texts).sum(1)
    others = (pictures * np.roll(texts, 1, axis=0)).sum(1)
    fooled = eyes.score(text_only.images, text_only.captions)
    wrong = eyes.score(mismatched.images, mismatched.captions)
    covered = np.stack([
        fill_around(image, [np.array(quad) for quad in sample.quads])
        for image, sample in zip(text_only.images, text_only.samples, strict=True)
    ])  # fmt: skip
    masked = eyes.score(covered, text_only.captions)
    quarter = float(np.quantile(matched, 0.25))

    def lost(before: NDArray[Any], after: NDArray[Any], none: NDArray[Any]) -> float:
        return float((before.mean() - after.mean()) / (before.mean() - none.mean()))

    numbers = np.arange(count)
    return {
        "zero_shot": Metric(_ZERO_SHOT, _share(right), 0.9),
        "zero_shot_single": Metric("the same where all objects are of one class", _share(right[single])),
        "auc": Metric("AUC of matched against mismatched captions", bootstrap(auc, matched, others), 0.97),
        "auc_kind": Metric("AUC of `visual` against `mismatched` pairs", bootstrap(auc, matched, wrong)),
        "reads": Metric(
            "`text_only` pairs that score at least as `visual` ones do at their 25th percentile",
            _share(fooled >= quarter),
            0.5,
        ),
        "lead_lost": Metric(
            "lead of `text_only` over `mismatched` that is lost when the text is painted over",
            # Paired: the same pairs before and after.
            bootstrap(lambda rows: lost(fooled[rows], masked[rows], wrong), numbers),
            0.5,
        ),
    }


def measure_noisy_clip(folder: Path, *, count: int, device: str = "cpu", workers: int = 1) -> dict[str, Metric]:
    """Measures `lab/clip-noisy`: zero-shot as `measure_clip` does, and `visual` pairs against each kind of noise.

    Its floors say that it filters better than chance does; nothing says how good it is, for it is there to be weak.
    """
    eyes = _Eyes(folder, device)
    visual = draw(count, seed=HELD_OUT_SEED, kinds={"visual": 1}, workers=workers)
    metrics = {"zero_shot": Metric(_ZERO_SHOT, _share(_names_an_object(eyes, visual)), 0.3)}
    matched = eyes.score(visual.images, visual.captions)
    noise: list[Kind] = [kind for kind in (*MAIN_KINDS, *HARD_KINDS) if kind != "visual"]
    for number, kind in enumerate(noise):
        others = draw(count, seed=HELD_OUT_SEED + 10 + number, kinds={kind: 1}, workers=workers)
        found = bootstrap(auc, matched, eyes.score(others.images, others.captions))
        metrics[kind] = Metric(f"AUC of `visual` against `{kind}` pairs", found, 0.8 if kind == "mismatched" else None)
    return metrics


def measure_captioner(folder: Path, *, count: int, device: str = "cpu", workers: int = 1) -> dict[str, Metric]:
    """Measures `lab/captioner` by one nucleus sample (p = 0.9, 5 to 20 tokens) for each `visual` image."""
    held_out = draw(count, seed=HELD_OUT_SEED + 3, kinds={"visual": 1}, workers=workers)
    captions = _captions(folder, held_out, device)
    named = [mentioned(caption) for caption in captions]
    objects, colours, everything = [], [], []
    for mentions, sample in zip(named, held_out.samples, strict=True):
        scene = sample.scene
        truth = {scene.subject: scene.colour} | ({scene.other: scene.other_colour} if scene.other else {})
        objects.append(any(name in truth for name, _ in mentions))
        colours.append(any(truth.get(name) == colour for name, colour in mentions[:1]))
        everything.append(bool(mentions) and all(colour in (None, truth.get(name)) for name, colour in mentions))
    return {
        "object": Metric("nucleus captions that name an object of the picture", _share(objects), 0.85),
        "colour": Metric("nucleus captions that give the first object's colour", _share(colours), 0.8),
        "all_right": Metric("nucleus captions that name nothing wrong", _share(everything)),
    }


def measure_text_to_image(
    folder: Path, clip: Path, *, count: int, device: str = "cpu", workers: int = 1
) -> dict[str, Metric]:
    """Measures `lab/text-to-image` by `lab/clip`: 20 steps, guidance 4, as many captions of scenes as images."""
    import torch
    from diffusers import StableDiffusionPipeline

    rng = np.random.default_rng(HELD_OUT_SEED + 4)
    prompts = [describe(sample_scene(rng), rng) for _ in range(count)]
    pipeline = load_pipeline(StableDiffusionPipeline, folder, str(folder), torch.float32)
    pipeline.to(device).set_progress_bar_config(disable=True)
    drawn = []
    for start in range(0, count, 32):
        noise = torch.Generator().manual_seed(HELD_OUT_SEED + start)
        found = pipeline(prompts[start : start + 32], num_inference_steps=20, guidance_scale=4.0, generator=noise)
        drawn += [np.asarray(image) for image in found.images]
    eyes = _Eyes(clip, device)
    pictures, texts = eyes.see(np.stack(drawn)), eyes.read(prompts)
    own, other = (pictures * texts).sum(1), (pictures * np.roll(texts, 1, axis=0)).sum(1)
    return {"preferred": Metric("pictures nearer to their prompt than to a random one", _share(own > other), 0.9)}


def measure_language_model(folder: Path, *, count: int, device: str = "cpu", workers: int = 1) -> dict[str, Metric]:
    """Measures `lab/language-model` on unseen sentences, half of them abstract."""
    import torch
    from transformers import AutoModelForCausalLM

    tokenizer = load_tokenizer_in(folder)
    expected = "a causal language model"
    model = load_whole(AutoModelForCausalLM, folder, str(folder), expected=expected, dtype=torch.float32).to(device)
    sentences = corpus(count, seed=HELD_OUT_SEED, abstract_share=0.5)
    rng = np.random.default_rng(HELD_OUT_SEED)
    shuffled = [" ".join(rng.permutation(sentence.split())) for sentence in sentences]

    @torch.inference_mode()
    def surprise(sentence: str) -> float:
        end = tokenizer.eos_token_id
        ids = torch.tensor([[end, *tokenizer(sentence)["input_ids"], end]], device=device)
        return float(model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)

    pairs = [(a, b) for a, b in zip(sentences, shuffled, strict=True) if a != b]
    likelier = [surprise(sentence) < surprise(other) for sentence, other in pairs]
    torch.manual_seed(HELD_OUT_SEED)
    start = torch.full((count, 1), tokenizer.eos_token_id, device=device)
    with torch.inference_mode():
        rows = model.generate(start, do_sample=True, top_p=0.9, top_k=0, max_new_tokens=40)
    written = tokenizer.batch_decode(rows, skip_special_tokens=True)
    known = {three for text in corpus(_KNOWN, seed=HELD_OUT_SEED + 1, abstract_share=0.4) for three in _threes(text)}
    return {
        "fluent": Metric("sentences likelier than their words shuffled", _share(likelier), 0.98),
        "written": Metric(
            "its own sentences whose every three words in a row the lab would write",
            _share([bool(threes := _threes(text)) and threes <= known for text in written]),
            0.8,
        ),
    }


MEASURES: Mapping[str, Callable[..., dict[str, Metric]]] = {
    "clip": measure_clip,
    "clip-noisy": measure_noisy_clip,
    "captioner": measure_captioner,
    "text-to-image": measure_text_to_image,
    "language-model": measure_language_model,
}


def mentioned(caption: str) -> list[tuple[str, str | None]]:
    """Returns (object, colour or None) for each object class that a caption names, in order, by the world's tables."""
    words = re.findall(r"[a-z]+", caption.lower())
    names = {noun.one: noun.one for noun in OBJECTS.values()} | {noun.many: noun.one for noun in OBJECTS.values()}
    found: list[tuple[str, str | None]] = []
    for before, word in zip(["", *words], words, strict=False):
        if word in names:
            found.append((names[word], before if before in COLOURS else None))
    return found


class _Eyes:
    """A CLIP checkpoint, loaded by the code that scores pools."""

    def __init__(self, folder: Path, device: str) -> None:
        where = Device(kind=device, batch_size=64)
        self._clip: Clip = load_clip(str(folder), where)
        self._prepare, self._tokenize = load_preprocess(str(folder)), load_tokenizer(str(folder))

    def see(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Returns unit embeddings (n, d) of n images."""
        return unit_rows(self._clip.images([self._prepare.resize(image) for image in images]))

    def read(self, texts: list[str]) -> NDArray[np.float32]:
        """Returns unit embeddings (n, d) of n texts."""
        return unit_rows(self._clip.texts(self._tokenize(texts)))

    def score(self, images: NDArray[np.uint8], texts: list[str]) -> NDArray[np.float32]:
        """Returns the n cosines of images with their captions."""
        scores: NDArray[np.float32] = (self.see(images) * self.read(texts)).sum(1)
        return scores


def _names_an_object(eyes: _Eyes, examples: Examples) -> NDArray[np.bool_]:
    """Returns of which of n images the best class is in it."""
    classes = np.stack([
        unit_rows(eyes.read([prompt.format(with_article(name)) for prompt in PROMPTS]).sum(0, keepdims=True))[0]
        for name in OBJECTS
    ])  # fmt: skip
    best = [list(OBJECTS)[k] for k in (eyes.see(examples.images) @ classes.T).argmax(1)]
    return np.array([name in sample.scene.objects for name, sample in zip(best, examples.samples, strict=True)])


def _captions(folder: Path, examples: Examples, device: str) -> list[str]:
    import torch

    tokenizer = load_tokenizer_in(folder)
    model, pixels = load_captioner(folder, device)
    torch.manual_seed(HELD_OUT_SEED)
    captions: list[str] = []
    for start in range(0, len(examples), 100):
        with torch.inference_mode():
            rows = model.generate(
                pixel_values=pixels(examples.images[start : start + 100]),
                do_sample=True, top_p=0.9, top_k=0, min_length=5, max_length=20,
            )  # fmt: skip
        captions += tokenizer.batch_decode(rows, skip_special_tokens=True)
    return captions


def _threes(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z]+", text.lower())
    return {tuple(words[k : k + 3]) for k in range(len(words) - 2)}


def _share(hits: Any) -> Estimate:
    return share_interval(int(np.sum(hits)), len(hits))
