"""`tamis train sba`: the linear layer from CLIP's text space to one soft token of a language model."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np

from tamis.data import Device
from tamis.errors import PoolError, at_least_one, check_words, require
from tamis.models.reference import resolve
from tamis.models.texts.soft_token import Bridge, End, Reader
from tamis.store.targets import check_new_folder, new_folder
from tamis.train.loop import Settings, fit

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class SbaTraining:
    """The settings of the layer's training; the paper's numbers (appendix A.7)."""

    epochs: Annotated[int, "Number of epochs."] = 2
    batch_size: Annotated[int, "Captions in a batch of training."] = 128
    learning_rate: Annotated[float, "AdamW's peak learning rate."] = 2e-3
    warmup: float = 0.03  # share of the steps over which the rate rises; it then falls to 0 along a half cosine
    end: Annotated[End, "The end of a caption: newline (as released), or eos for models of single sentences."] = (
        "newline"
    )
    seed: Annotated[int, "Seed of the initial weights and the order of the captions."] = 0

    def __post_init__(self) -> None:
        at_least_one(epochs=self.epochs, batch_size=self.batch_size)
        check_rate(self.learning_rate, self.warmup)
        check_words(self)


def check_rate(learning_rate: float, warmup: float) -> None:
    """Raises ValueError for values out of range."""
    if not learning_rate > 0:
        raise ValueError(f"learning_rate must be above 0, got {learning_rate}")
    if not 0 <= warmup < 1:
        raise ValueError(f"warmup is a share of the steps, in [0, 1), got {warmup}")


def shuffled(count: int, batch: int, seed: int) -> Iterator[np.ndarray]:
    """Yields the rows of endless batches; each epoch has another order."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(count)
        yield from (order[start : start + batch] for start in range(0, count, batch))


def train_sba(
    captions: Sequence[str],
    *,
    clip: str,
    language_model: str,
    out: str | Path,
    device: Device,
    training: SbaTraining | None = None,
) -> list[float]:
    """Trains the layer and writes its folder, which the signal `sba` takes as its bridge. Returns each step's loss.

    CLIP's vectors are computed once for every distinct caption. Gradients go through the frozen language model.

    Source: Yanuka et al. 2024 (ICC), section 2 and appendix A.7.
    """
    require("torch", "transformers", extra="clip")
    import torch

    from tamis.models.clip import load_clip, load_tokenizer

    check_new_folder(Path(out))
    training = training or SbaTraining()
    if device.precision == "int8":
        raise ValueError("int8 is for networks that only run: train in float32 or bf16")
    distinct = sorted(set(captions))
    if not distinct:
        raise PoolError("there are no captions to train on")
    torch.manual_seed(training.seed)
    reader = Reader(language_model, device, training.end)
    tower, tokenize = load_clip(clip, device), load_tokenizer(clip)
    embedded = torch.from_numpy(tower.texts(tokenize(distinct))).to(reader.device)  # (n, d)
    tokens = reader.tokens(distinct)
    layer = torch.nn.Linear(embedded.shape[1], reader.width).to(reader.device)

    def loss(rows: np.ndarray) -> torch.Tensor:
        return reader.loss(layer(embedded[rows]), [tokens[row] for row in rows])

    steps = math.ceil(len(distinct) / training.batch_size) * training.epochs
    warmup = max(1, round(training.warmup * steps))
    settings = Settings(steps=steps, learning_rate=training.learning_rate, weight_decay=0.0, warmup=warmup, floor=0.0)
    log.info("%d captions, %d batches of %d", len(distinct), steps, training.batch_size)
    losses = fit(layer, loss, shuffled(len(distinct), training.batch_size, training.seed), settings)
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
        bridge.save(folder, {**asdict(training), "captions": len(distinct), "steps": steps, "last_loss": last})
    return losses
