"""Tokenizers of the built-in models, trained on the lab's captions; other text falls apart into bytes or letters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tamis.lab.captions import abstract_caption, describe
from tamis.lab.scenes import sample_scene

_BOS, _EOS = "<|startoftext|>", "<|endoftext|>"


def corpus(count: int, *, seed: int, abstract_share: float = 0.3) -> list[str]:
    """Returns captions of the lab's world, a share of them abstract."""
    rng = np.random.default_rng(seed)
    return [
        abstract_caption(rng) if rng.random() < abstract_share else describe(sample_scene(rng), rng)
        for _ in range(count)
    ]


def clip_tokenizer(texts: Iterable[str], length: int, words: int = 2000) -> Any:
    """Returns a `CLIPTokenizer` of at most so many words: lower-cased, byte-level pair encoding."""
    from tokenizers import Tokenizer, models, trainers
    from transformers import CLIPTokenizer

    blank = CLIPTokenizer()
    pairs = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    pairs.normalizer = blank.backend_tokenizer.normalizer
    pairs.pre_tokenizer = blank.backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=words,
        initial_alphabet=_bytes(),
        special_tokens=[*_ends_of_words(), _BOS, _EOS],
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    pairs.train_from_iterator(texts, trainer)
    vocabulary, merges = _parts(pairs)
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=length)


def _parts(tokenizer: Any) -> tuple[dict[str, int], Any]:
    import json

    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def _bytes() -> list[str]:
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def _ends_of_words() -> list[str]:
    """Each byte also as the last one of a word, or a word the corpus lacks could not be written."""
    return [f"{sign}</w>" for sign in _bytes()]


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
        vocab=pieces.get_vocab(),
        bos_token="[DEC]",
        additional_special_tokens=["[ENC]"],
        model_max_length=length,
    )


def gpt2_tokenizer(texts: Sequence[str], length: int) -> Any:
    """Returns a `GPT2Tokenizer`: byte-level pair encoding that keeps case and spaces."""
    from tokenizers import Tokenizer, models, trainers
    from transformers import GPT2Tokenizer

    blank = GPT2Tokenizer()
    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer = blank.backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=_bytes(), special_tokens=["<|endoftext|>"], show_progress=False
    )
    pairs.train_from_iterator(texts, trainer)
    vocabulary, merges = _parts(pairs)
    return GPT2Tokenizer(vocab=vocabulary, merges=merges, model_max_length=length)
