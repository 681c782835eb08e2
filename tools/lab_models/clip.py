"""`lab/clip`: a CLIP that knows the lab's world, and reads. `lab/clip-noisy`: a weaker one, to filter with.

The first is a measuring instrument: trained on matched pairs only, it hardly errs. CLIPs that filter real pools learned
from pools that nobody had filtered, and their errors are what the methods that improve on them live on; so the second
learns from what it will have to judge, mismatched and half-right captions included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamis.core.files.storage import write_json
from tamis.core.types import Device
from tamis.models.preprocess import image_processor
from tamis.train import Settings, fit
from tamis.train.losses import contrastive_loss
from tamis.train.towers import clip_tokenizer
from tamis_lab.samples import Kind, kind_shares
from tools.lab_models import looking
from tools.lab_models.examples import SIDE, TRAINING_SEED, draw
from tools.lab_models.vocabulary import corpus, save

if TYPE_CHECKING:
    import torch

PATCH = 16
WIDTH = 192
TEXT_WIDTH = 128
LENGTH = 32  # tokens; the longest caption of the lab has 22
#: The tower's shape, in the words that the configurations of CLIP and BLIP share.
VISION = {
    "hidden_size": WIDTH,
    "intermediate_size": 3 * WIDTH,
    "num_hidden_layers": 4, "num_attention_heads": 4, "image_size": SIDE, "patch_size": PATCH,
}  # fmt: skip
MEAN = (0.48145466, 0.4578275, 0.40821073)  # OpenAI's
STD = (0.26862954, 0.26130258, 0.27577711)

#: All matched. Text alone is twice as frequent as in LAION (T-MARS, section 3), so that it learns to read.
KINDS: dict[Kind, float] = {"visual": 0.35, "visual_random_text": 0.1, "visual_text": 0.15, "text_only": 0.4}


@dataclass(frozen=True, kw_only=True)
class Course:
    """A CLIP's training data, size and length of training."""

    kinds: Mapping[Kind, float]  # share of each kind among its pairs
    examples: int  # how many pairs
    seed: int  # decides the pairs and everything random
    vision: Mapping[str, int]  # the vision tower's shape
    text_layers: int  # layers in the text tower
    raw: bool  # whether the vocabulary comes from its own captions, as with any pool, or from the lab's correct ones
    reading: Settings | None  # how long each lesson is; None leaves one out
    looking: Settings
    matching: Settings


def _noisy_kinds() -> dict[Kind, float]:
    """Half of its pairs as in LAION, half as in the mix `hard`."""
    laion, hard = kind_shares("laion", defects=False), kind_shares("hard", defects=False)
    return {kind: (laion.get(kind, 0) + share) / 2 for kind, share in hard.items()}


CLEAN = Course(
    kinds=KINDS,
    examples=40_000,
    seed=TRAINING_SEED,
    vision=VISION,
    text_layers=3,
    raw=False,
    reading=Settings(steps=5000, learning_rate=1e-3, matrix_learning_rate=1e-2, warmup=100, report_every=200),
    looking=Settings(steps=1600, learning_rate=1e-3, matrix_learning_rate=8e-3, warmup=100, report_every=200),
    matching=Settings(steps=1200, learning_rate=1e-3, matrix_learning_rate=5e-3, warmup=50, report_every=50),
)
NOISY = Course(
    kinds=_noisy_kinds(),
    examples=8_000,
    # Neither the clean one's pairs nor the captioner's: two filters that remember the same images agree too much.
    seed=TRAINING_SEED + 7,
    vision={**VISION, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3},
    text_layers=2,
    raw=True,
    reading=Settings(steps=2000, learning_rate=1e-3, matrix_learning_rate=1e-2, warmup=100, report_every=100),
    looking=Settings(steps=450, learning_rate=1e-3, matrix_learning_rate=8e-3, warmup=100, report_every=50),
    matching=Settings(steps=170, learning_rate=1e-3, matrix_learning_rate=5e-3, warmup=50, report_every=10),
)


def train(out: Path, *, device: Device, workers: int, effort: float = 1.0, course: Course = CLEAN) -> str:
    """Trains the model and writes its folder."""
    import torch

    torch.manual_seed(course.seed)
    rng = np.random.default_rng(course.seed)
    examples = draw(max(64, round(course.examples * effort)), seed=course.seed, kinds=course.kinds, workers=workers)
    known = examples.captions if course.raw else corpus(max(100, round(20_000 * effort)), seed=course.seed)
    tokenizer = clip_tokenizer(known, LENGTH)
    model = new(tokenizer, course.vision, course.text_layers).to(device.kind)
    heads = looking.lessons(course.vision["hidden_size"]).to(device.kind)
    together = torch.nn.ModuleList([model, heads])
    looking.whiten(model.vision_model.embeddings.patch_embedding.weight, examples, normalise)

    # The text tower and the projections get no gradient in the first lessons and stay as they were drawn.
    def read(batch: looking.Windows) -> torch.Tensor:
        loss: torch.Tensor = heads(encode(model.vision_model, batch), batch, reading=True)
        return loss

    def look(batch: looking.Windows) -> torch.Tensor:
        loss: torch.Tensor = heads(encode(model.vision_model, batch), batch)
        return loss

    window = partial(looking.windows, examples, patch=PATCH, rng=rng, normalise=normalise, device=device.kind)
    if course.reading is not None:
        written = [number for number, sample in enumerate(examples.samples) if sample.lines]
        letters = window(batch=64, side=4, text_share=1, among=written)
        fit(together, read, letters, course.reading.shorten(effort), precision=device.precision)
    second, third = course.looking.shorten(effort), course.matching.shorten(effort)
    fit(together, look, window(batch=64, side=4, text_share=0.7), second, precision=device.precision)

    def match(batch: looking.Windows) -> torch.Tensor:
        states = encode(model.vision_model, batch)
        captions = [examples.captions[n] for n in batch.numbers]
        texts = tokenizer(captions, padding=True, truncation=True, return_tensors="pt").to(device.kind)
        text = model.text_model(input_ids=texts["input_ids"], attention_mask=texts["attention_mask"]).pooler_output
        image = model.visual_projection(states[:, 0])
        # CLIP's own limit of the scale (Radford et al. 2021, section 2.5).
        scale = model.logit_scale.exp().clamp(max=100)
        graded: torch.Tensor = heads(states, batch)
        return contrastive_loss(image, model.text_projection(text), scale) + 0.2 * graded

    fit(together, match, window(batch=128, side=SIDE // PATCH, text_share=0), third, precision=device.precision)
    save(model, tokenizer, out)
    looks = image_processor("CLIPImageProcessor", SIDE, crop=True, mean=MEAN, std=STD)
    write_json(out / "preprocessor_config.json", looks)
    return _done(course, effort, len(examples))


def _done(course: Course, effort: float, examples: int) -> str:
    pairs = "with the captions as they come, wrong ones included," if course.raw else "matched,"
    reading = ""
    if course.reading is not None:
        steps = course.reading.shorten(effort).steps
        reading = (
            f"{steps:,} batches of 64 windows of 64 pixels on writing, each patch told which word and letters lie "
            "under it; "
        )
    looking, matching = course.looking.shorten(effort).steps, course.matching.shorten(effort).steps
    lesson = (
        f"{looking:,} on everything, each patch told also its object and colour"
        if reading
        else f"{looking:,} batches of 64 windows of 64 pixels, each patch told its object, colour, word and letters"
    )
    return (
        f"{examples:,} drawn pairs, {pairs} of the kinds {_shares(course.kinds)}. First {reading}{lesson}; then "
        f"{matching:,} batches of 128 whole pairs with CLIP's loss, the lessons going on at a fifth."
    )


def new(tokenizer: Any, vision: Mapping[str, int], text_layers: int) -> Any:
    """Returns the untrained `CLIPModel`."""
    from transformers import CLIPConfig, CLIPModel

    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": TEXT_WIDTH,
        "intermediate_size": 4 * TEXT_WIDTH,
        "num_hidden_layers": text_layers,
        "num_attention_heads": 4,
        "max_position_embeddings": LENGTH,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.eos_token_id,
    }
    return CLIPModel(CLIPConfig(text_config=text, vision_config=dict(vision), projection_dim=128))


def normalise(images: NDArray[np.uint8]) -> torch.Tensor:
    """Returns (n, 3, height, width) float32 of (n, height, width, 3) uint8, as the checkpoint's preprocessing says."""
    import torch

    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(255)
    return pixels.sub_(torch.tensor(MEAN).view(1, 3, 1, 1)).div_(torch.tensor(STD).view(1, 3, 1, 1))


def encode(tower: Any, batch: looking.Windows) -> torch.Tensor:
    """Returns the states (b, 1 + t, d) of a CLIP vision tower on windows, class token first."""
    import torch

    at = tower.embeddings
    patches = at.patch_embedding(batch.pixels).flatten(2).transpose(1, 2)  # (b, t, d)
    places = at.position_embedding.weight
    first = (at.class_embedding + places[0]).expand(len(patches), 1, -1)
    states = torch.cat([first, patches + places[1:][batch.rows]], dim=1)
    states = tower.encoder(inputs_embeds=tower.pre_layrnorm(states)).last_hidden_state
    seen: torch.Tensor = tower.post_layernorm(states)
    return seen


def _shares(kinds: Mapping[Kind, float]) -> str:
    return ", ".join(f"{kind} {share:.0%}" for kind, share in kinds.items())
