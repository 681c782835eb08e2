"""Tokenizers for converted checkpoints, most of which bring none: from a folder, or from CLIP's list of merges."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from typing import Any

from tamis.errors import ModelError
from tamis.models.hub import cached
from tamis.models.loading import load_tokenizer_in
from tamis.models.reference import resolve

#: CLIP's list of merges as OpenAI published it. The packages `open_clip` and `clip` carry it.
MERGES = "bpe_simple_vocab_16e6.txt.gz"

#: How many of its merges CLIP uses: 49,408 tokens less 256 bytes, the same at a word's end, and two signs.
_USED = 49_408 - 2 * 256 - 2

#: A checkpoint whose tokenizer is CLIP's, where it is in the hub's cache.
_CLIP = "openai/clip-vit-base-patch32"

_FILES = ("tokenizer.json", "vocab.json", "vocab.txt")


def blip_tokenizer(given: str | None) -> Any:
    """Returns BERT's tokenizer with BLIP's two signs: [DEC] begins a caption, [ENC] a text that is compared.

    Args:
        given: another tokenizer than that of `minilm`, which is BERT's (uncased).

    Raises:
        ModelError, DependencyError: it is not here.
    """
    tokenizer = load_tokenizer_in(_folder(given or "minilm"))
    # Of the sentence encoder, which cuts and pads its texts.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    if "[DEC]" not in tokenizer.get_vocab():
        tokenizer.add_special_tokens({"bos_token": "[DEC]"})
        tokenizer.add_tokens(["[ENC]"], special_tokens=True)
    tokenizer.bos_token = "[DEC]"
    if tokenizer.sep_token_id is None or tokenizer.pad_token_id is None:
        raise ModelError(f"the tokenizer {given} has no [SEP] or no [PAD], with which BLIP ends and pads captions")
    return tokenizer


def clip_tokenizer(given: str | None, beside: Path, *, own: bool) -> Any:
    """Returns the tokenizer of an open_clip checkpoint.

    Args:
        given: what the user named: a folder, a model, or a list of merges.
        beside: the checkpoint's folder, whose tokenizer is the next choice.
        own: whether it is known not to be CLIP's, which is the last choice.

    Raises:
        ModelError: there is none.
    """
    if given is not None and Path(given).expanduser().is_file():
        return _from_merges(Path(given).expanduser())
    if given is not None:
        return load_tokenizer_in(_folder(given))
    if any((beside / name).is_file() for name in _FILES):
        return load_tokenizer_in(beside)
    if own:
        raise ModelError(
            "this checkpoint cuts its texts in a way of its own (hf_tokenizer_name or tokenizer_kwargs): name the "
            "folder of its tokenizer with --tokenizer"
        )
    for package in ("open_clip", "clip"):
        spec = importlib.util.find_spec(package)  # found, not imported
        for place in (spec and spec.submodule_search_locations) or []:
            if (Path(place) / MERGES).is_file():
                return _from_merges(Path(place) / MERGES)
    found = cached(_CLIP)
    if found is not None:
        return load_tokenizer_in(found)
    raise ModelError(
        "the checkpoint brings no tokenizer, and CLIP's is not on this machine: name one with --tokenizer, the folder "
        f"of any transformers CLIP or the file {MERGES} of the open_clip or clip package"
    )


def _folder(name: str) -> Path:
    path = Path(name).expanduser()
    return path if any((path / file).is_file() for file in _FILES) else resolve(name).path


def _from_merges(path: Path) -> Any:
    """Returns CLIP's tokenizer from its merges: OpenAI's list, or the merges.txt of a transformers folder.

    Source: Radford et al. 2021, CLIP (arXiv 2103.00020), section 2.4; github.com/openai/CLIP has the order of tokens.
    """
    from transformers import CLIPTokenizer

    data = path.read_bytes()
    try:
        lines = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8").split("\n")
        merges = [(left, right) for left, right in (line.split() for line in lines[1:] if line)][:_USED]
    except (OSError, EOFError, ValueError) as error:
        raise ModelError(f"{path} is no list of CLIP's merges: {error}") from error
    signs = _byte_signs()
    words = [*signs, *(f"{sign}</w>" for sign in signs), *(left + right for left, right in merges)]
    vocabulary = {word: number for number, word in enumerate([*words, "<|startoftext|>", "<|endoftext|>"])}
    return CLIPTokenizer(vocab=vocabulary, merges=merges)  # type: ignore[arg-type]  # pairs, as its backend takes


def _byte_signs() -> list[str]:
    """Returns the letter that stands for each byte, in the order of CLIP's vocabulary.

    Bytes that print stand for themselves and come first; the others get letters from 256 on.
    """
    printing = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    return [chr(byte) for byte in printing] + [chr(256 + number) for number in range(256 - len(printing))]
