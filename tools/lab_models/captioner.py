"""`lab/captioner`: a BLIP that describes the lab's images. It never saw a written word or a wrong caption."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamis.core.files.storage import write_json
from tamis.core.types import Device
from tamis.models.loading import load_whole
from tamis.models.preprocess import image_processor, load_preprocess
from tamis.train import Settings, fit
from tamis_lab.captions import describe
from tools.lab_models import looking
from tools.lab_models.clip import MEAN, PATCH, STD, VISION, WIDTH, normalise
from tools.lab_models.examples import SIDE, TRAINING_SEED, draw
from tools.lab_models.vocabulary import bert_tokenizer, corpus, save

if TYPE_CHECKING:
    import torch

LENGTH = 40  # tokens
EXAMPLES = 30_000
LOOKING = Settings(steps=2500, learning_rate=1e-3, matrix_learning_rate=1e-2, warmup=100, report_every=250)
TELLING = Settings(steps=550, learning_rate=1e-3, matrix_learning_rate=6e-3, warmup=50, report_every=50)


def train(out: Path, *, device: Device, workers: int, effort: float = 1.0) -> str:
    """Trains the model and writes its folder; arguments and result as in `tools.lab_models.clip.train`."""
    import torch

    torch.manual_seed(TRAINING_SEED)
    rng = np.random.default_rng(TRAINING_SEED + 1)
    # Clean captions only.
    tokenizer = bert_tokenizer(corpus(max(100, round(20_000 * effort)), seed=TRAINING_SEED, abstract_share=0), LENGTH)
    model = new(tokenizer).to(device.kind)
    # Another seed than the CLIP's, so that the two have not learned from the same images.
    examples = draw(max(64, round(EXAMPLES * effort)), seed=TRAINING_SEED + 1, kinds={"visual": 1}, workers=workers)
    heads = looking.lessons(WIDTH).to(device.kind)
    together = torch.nn.ModuleList([model, heads])
    looking.whiten(model.vision_model.embeddings.patch_embedding.weight, examples, normalise)

    def look(batch: looking.Windows) -> torch.Tensor:
        loss: torch.Tensor = heads(encode(model.vision_model, batch), batch)
        return loss

    first = LOOKING.shorten(effort)
    lessons = looking.windows(
        examples, batch=64, patch=PATCH, side=4, text_share=0, rng=rng, normalise=normalise, device=device.kind
    )
    fit(together, look, lessons, first, precision=device.precision)

    def tell(batch: looking.Windows) -> torch.Tensor:
        states = encode(model.vision_model, batch)
        # Another wording each time an image comes up.
        captions = [describe(examples.samples[n].scene, rng) for n in batch.numbers]
        texts = tokenizer(captions, padding=True, return_tensors="pt").to(device.kind)
        ids = texts["input_ids"]
        ids[:, 0] = model.config.text_config.bos_token_id
        labels = ids.masked_fill(texts["attention_mask"] == 0, -100)
        told = model.text_decoder(
            input_ids=ids, attention_mask=texts["attention_mask"], encoder_hidden_states=states, labels=labels
        )
        loss: torch.Tensor = told.loss.mean() + 0.05 * heads(states, batch)
        return loss

    second = TELLING.shorten(effort)
    pictures = looking.windows(
        examples,
        batch=96,
        patch=PATCH,
        side=SIDE // PATCH,
        text_share=0,
        rng=rng,
        normalise=normalise,
        device=device.kind,
    )
    fit(together, tell, pictures, second, precision=device.precision)
    save(model, tokenizer, out)
    looks = image_processor("BlipImageProcessor", SIDE, crop=False, mean=MEAN, std=STD)
    write_json(out / "preprocessor_config.json", looks)
    return (
        f"{len(examples):,} drawn pictures without writing, each with another right wording of its caption every time. "
        f"First {first.steps:,} batches of 64 windows of 64 pixels, each patch told which object and colour lies under "
        f"it; then {second.steps:,} batches of 96 pictures with the language-modelling loss of their captions."
    )


def load(folder: Path, device: str) -> tuple[Any, Callable[[NDArray[np.uint8]], torch.Tensor]]:
    """Returns a trained captioner in float32, and what makes its input (n, 3, side, side) of n images."""
    import torch
    from transformers import BlipForConditionalGeneration

    expected = "a captioner of images"
    model = load_whole(BlipForConditionalGeneration, folder, str(folder), expected=expected, dtype=torch.float32)
    prepare = load_preprocess(str(folder))

    def pixels(images: NDArray[np.uint8]) -> torch.Tensor:
        return torch.from_numpy(np.stack([prepare.normalise(prepare.resize(image)) for image in images])).to(device)

    return model.to(device), pixels


def new(tokenizer: Any) -> Any:
    """Returns the untrained `BlipForConditionalGeneration`."""
    from transformers import BlipConfig, BlipForConditionalGeneration

    sep = tokenizer.sep_token_id
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 160,
        "intermediate_size": 480,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": LENGTH,
        "encoder_hidden_size": WIDTH,
        "projection_dim": 128,
        "bos_token_id": tokenizer.convert_tokens_to_ids("[DEC]"),
        "sep_token_id": sep,
        "eos_token_id": sep,
        "pad_token_id": tokenizer.pad_token_id,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    return BlipForConditionalGeneration(
        BlipConfig(text_config=text, vision_config=VISION, projection_dim=128, image_text_hidden_size=128)
    )


def encode(tower: Any, batch: looking.Windows) -> torch.Tensor:
    """Returns the states (b, 1 + t, d) of a BLIP vision tower on windows, class token first."""
    import torch

    at = tower.embeddings
    patches = at.patch_embedding(batch.pixels).flatten(2).transpose(1, 2)  # (b, t, d)
    places = at.position_embedding[0]
    first = (at.class_embedding[0] + places[:1]).expand(len(patches), 1, -1)
    states = torch.cat([first, patches + places[1:][batch.rows]], dim=1)
    seen: torch.Tensor = tower.post_layernorm(tower.encoder(inputs_embeds=states).last_hidden_state)
    return seen
