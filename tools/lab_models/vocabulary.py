"""Tokenizers of the built-in models, trained on the lab's captions; other text falls apart into bytes or letters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tamis.train.towers import byte_letters, vocabulary_and_merges
from tamis_lab.captions import abstract_caption, describe
from tamis_lab.world import sample_scene


def corpus(count: int, *, seed: int, abstract_share: float = 0.3) -> list[str]:
    """Returns captions of the lab's world, a share of them abstract."""
    rng = np.random.default_rng(seed)
    return [
        abstract_caption(rng) if rng.random() < abstract_share else describe(sample_scene(rng), rng)
        for _ in range(count)
    ]


def bert_tokenizer(texts: Sequence[str], length: int) -> Any:
    """Returns a `BertTokenizer` as BLIP's: lower-cased word pieces, with the marks of its decoder and encoder."""
    from tokenizers import Tokenizer, models, trainers
    from transformers import BertTokenizer

    blank = BertTokenizer()
    pieces = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    pieces.normalizer = blank.backend_tokenizer.normalizer
    pieces.pre_tokenizer = blank.backend_tokenizer.pre_tokenizer
    signs = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]", "[ENC]"]
    trainer = trainers.WordPieceTrainer(
        vocab_size=1200,
        initial_alphabet=signs,
        special_tokens=[*marks, *(f"##{sign}" for sign in signs)],
        show_progress=False,
    )
    pieces.train_from_iterator(texts, trainer)
    return BertTokenizer(
        vocab=pieces.get_vocab(), bos_token="[DEC]", additional_special_tokens=["[ENC]"], model_max_length=length
    )


def gpt2_tokenizer(texts: Sequence[str], length: int) -> Any:
    """Returns a `GPT2Tokenizer`: byte-level pair encoding that keeps case and spaces."""
    from tokenizers import Tokenizer, models, trainers
    from transformers import GPT2Tokenizer

    blank = GPT2Tokenizer()
    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer = blank.backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=byte_letters(), special_tokens=["<|endoftext|>"], show_progress=False
    )
    pairs.train_from_iterator(texts, trainer)
    vocabulary, merges = vocabulary_and_merges(pairs)
    return GPT2Tokenizer(vocab=vocabulary, merges=merges, model_max_length=length)


def save(model: Any, tokenizer: Any, out: Path) -> None:
    """Writes config, weights in float16 and tokenizer. The model itself is float16 afterwards."""
    out.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(out)
    if tokenizer is not None:
        tokenizer.save_pretrained(out)
