"""A tokenizer like CLIP's, learned from captions. It splits unknown text into bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

_BOS, _EOS = "<|startoftext|>", "<|endoftext|>"


def clip_tokenizer(texts: Iterable[str], length: int, words: int = 2000) -> Any:
    """A `CLIPTokenizer` of at most `words` words: lower-cased, byte-level pair encoding."""
    from tokenizers import Tokenizer, models, trainers
    from transformers import CLIPTokenizer

    blank = CLIPTokenizer()
    pairs = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    pairs.normalizer = blank.backend_tokenizer.normalizer
    pairs.pre_tokenizer = blank.backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=words,
        initial_alphabet=byte_letters(),
        # Also each byte at the end of a word, or unknown words could not be written.
        special_tokens=[*(f"{letter}</w>" for letter in byte_letters()), _BOS, _EOS],
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    pairs.train_from_iterator(texts, trainer)
    vocabulary, merges = vocabulary_and_merges(pairs)
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=length)


def vocabulary_and_merges(tokenizer: Any) -> tuple[dict[str, int], Any]:
    """The token ids and the merges of a trained byte-pair tokenizer, as transformers takes them."""
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def byte_letters() -> list[str]:
    """The letters that stand for the 256 bytes."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())
