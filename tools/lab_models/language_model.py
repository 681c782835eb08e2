"""`lab/language-model`: a GPT-2 that writes what people write in the lab's world, of things and of ideas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tamis.core.types import Device
from tamis.train import Settings, fit
from tools.lab_models.examples import TRAINING_SEED
from tools.lab_models.vocabulary import corpus, gpt2_tokenizer, save

if TYPE_CHECKING:
    import torch

LENGTH = 64  # tokens
ABSTRACT_SHARE = 0.4
WRITING = Settings(steps=350, learning_rate=1e-3, matrix_learning_rate=5e-3, warmup=30, report_every=50)
_BATCH = 128


def train(out: Path, *, device: Device, workers: int, effort: float = 1.0) -> str:
    """Trains the model and writes its folder; arguments and result as in `tools.lab_models.clip.train`."""
    import torch

    torch.manual_seed(TRAINING_SEED)
    settings = WRITING.shorten(effort)
    # Every sentence is new: there is nothing to learn by heart.
    sentences = corpus(settings.steps * _BATCH, seed=TRAINING_SEED, abstract_share=ABSTRACT_SHARE)
    tokenizer = gpt2_tokenizer(sentences[:20_000], LENGTH)
    model = new(tokenizer).to(device.kind)
    end = tokenizer.eos_token_id

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for start in range(0, len(sentences), _BATCH):
            rows = tokenizer(sentences[start : start + _BATCH])["input_ids"]
            length = max(map(len, rows)) + 2
            ids = torch.full((len(rows), length), end)
            labels = torch.full((len(rows), length), -100)
            for number, row in enumerate(rows):
                ids[number, 1 : len(row) + 1] = torch.tensor(row)
                labels[number, 1 : len(row) + 2] = torch.tensor([*row, end])
            yield ids.to(device.kind), labels.to(device.kind)

    def loss(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        ids, labels = batch
        found: torch.Tensor = model(input_ids=ids, labels=labels).loss
        return found

    fit(model, loss, batches(), settings, precision=device.precision)
    save(model, tokenizer, out)
    return (
        f"{len(sentences):,} sentences, none twice: {1 - ABSTRACT_SHARE:.0%} descriptions of scenes, "
        f"{ABSTRACT_SHARE:.0%} abstract, each between two end-of-text tokens; {settings.steps:,} batches of {_BATCH}."
    )


def new(tokenizer: Any) -> Any:
    """Returns the untrained `GPT2LMHeadModel`."""
    from transformers import GPT2Config, GPT2LMHeadModel

    end = tokenizer.eos_token_id
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=LENGTH,
            n_embd=192,
            n_layer=4,
            n_head=4,
            bos_token_id=end,
            eos_token_id=end,
            pad_token_id=end,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        )
    )
