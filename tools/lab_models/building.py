"""Training, measuring and describing the built-in models: `python -m tools.lab_models`."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tamis.core.errors import ModelError, require, unknown_message
from tamis.core.files.targets import check_new_folder
from tamis.core.types import Device
from tamis.models.device import device_for
from tools.lab_models import captioner, clip, language_model, text_to_image
from tools.lab_models.measuring import MEASURES, Metric

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Build:
    """The recipe of a model."""

    title: str  # in one sentence
    kind: str  # the class that loads it
    train: Callable[..., str]  # writes the folder and returns what was done
    held_out: int  # images, pairs or sentences of each kind that it is measured on


#: In the order of building: text-to-image needs clip and captioner.
BUILDS: Mapping[str, Build] = {
    "clip": Build(
        "A CLIP that knows the lab's drawn world, and reads the words painted on its images.",
        "transformers.CLIPModel", clip.train, 2000,
    ),
    "clip-noisy": Build(
        "A weaker CLIP that learned from pairs as they come: a filter that errs as filters of real pools do.",
        "transformers.CLIPModel", partial(clip.train, course=clip.NOISY), 500,
    ),
    "captioner": Build(
        "A BLIP that describes the lab's images; trained on clean pairs only, so it does not read.",
        "transformers.BlipForConditionalGeneration", captioner.train, 2000,
    ),
    "text-to-image": Build(
        "A latent diffusion model that draws the lab's scenes at 64 pixels from their captions.",
        "diffusers.StableDiffusionPipeline", text_to_image.train, 500,
    ),
    "language-model": Build(
        "A GPT-2 that writes sentences of the lab's world, of things and of ideas.",
        "transformers.GPT2LMHeadModel", language_model.train, 1000,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Built:
    """A model that was built."""

    name: str  # as recipes name it, "lab/clip"
    folder: Path
    seconds: float  # how long training took, the drawing of its examples included
    metrics: Mapping[str, Metric]  # what it can do


def build_models(
    out: str | Path,
    *,
    only: Sequence[str] = (),
    device: str | None = None,
    precision: str | None = None,
    workers: int | None = None,
    effort: float = 1.0,
) -> list[Built]:
    """Trains the built-in models from the lab's world, measures them on what they have not seen, writes their cards.

    The same machine gives the same weights; another one the same metrics within their intervals. A folder appears
    under its name only when its model is complete. A model that is there stays: remove it first.

    Cost: docs/performance.md; 4 GB of memory.
    """
    names = [name.removeprefix("lab/") for name in only] or list(BUILDS)
    for name in names:
        if name not in BUILDS:
            raise ValueError(unknown_message("built-in model", name, BUILDS))
    if not 0 < effort <= 1:
        raise ValueError(f"effort must be above 0 and at most 1, got {effort}")
    require("torch", "transformers", extra="clip")
    out = Path(out)
    for name in names:
        check_new_folder(out / name)
    for needed in ("clip", "captioner") if "text-to-image" in names else ():
        if needed not in names and not (out / needed / "config.json").is_file():
            raise ModelError(f"text-to-image needs lab/clip and lab/captioner, and {out} holds no {needed}: build it")
    workers = workers or os.cpu_count() or 1
    where = device_for(device, precision, None, None)
    return [_build(name, out, where, workers, effort) for name in BUILDS if name in names]


def _build(name: str, out: Path, device: Device, workers: int, effort: float) -> Built:
    recipe = BUILDS[name]
    folder = out / name
    log.info("lab/%s: training on %s in %s", name, device.kind, device.precision)
    # Next to its final place: text-to-image looks for clip next to its own folder.
    unfinished = out / f"{name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    start = time.monotonic()
    done = recipe.train(unfinished, device=device, workers=workers, effort=effort)
    seconds = time.monotonic() - start
    log.info("lab/%s: measuring", name)
    held_out = max(8, round(recipe.held_out * effort))
    beside = {"clip": out / "clip"} if name == "text-to-image" else {}
    metrics = MEASURES[name](unfinished, count=held_out, device=device.kind, workers=workers, **beside)
    library = recipe.kind.partition(".")[0]
    card = _CARD.format(library=library, name=name, title=recipe.title, kind=recipe.kind, done=done, held_out=held_out)
    for metric in metrics.values():
        card += f"| {metric.what} | {metric.found} | {'' if metric.floor is None else f'{metric.floor:g}'} |\n"
    (unfinished / "README.md").write_text(card, encoding="utf-8")
    unfinished.rename(folder)
    return Built(f"lab/{name}", folder, seconds, metrics)


_CARD = """---
license: mit
library_name: {library}
---

# lab/{name}

{title}
It ships with Tamis so that everything runs without a download: demos, tests, measurements. Outside the lab's
world it knows nothing: bring a real checkpoint for real pools.

- Class: `{kind}`, weights in float16, MIT licence.
- Training: {done}
- Data: the lab's drawings and captions (`tamis lab make-pool` draws the same world), no other data and no
  other weights.
- Rebuild, from a checkout: `python -m tools.lab_models --only lab/{name} --out DIR`

Estimate on {held_out:,} unseen examples of each kind, with 95 % intervals:

| what | measured | floor |
|---|---|---|
"""
