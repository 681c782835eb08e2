"""Tokenizers for converted checkpoints, most of which bring none: from a folder, or from CLIP's list of merges."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path
from typing import Any

from tamis.errors import ModelError
from tamis.models.hub import cached
from tamis.models.loading import load_tokenizer_in, one_sentence
from tamis.models.reference import resolve

#: CLIP's list of merges as OpenAI published it. The packages `open_clip` and `clip` carry it.
_MERGES = "bpe_simple_vocab_16e6.txt.gz"

#: How many of its merges CLIP uses: 49,408 tokens less 256 bytes, the same at a word's end, and two signs.
_USED = 49_408 - 2 * 256 - 2

#: A checkpoint with CLIP's tokenizer, for where it is in the hub's cache.
_CLIP = "openai/clip-vit-base-patch32"


def blip_tokenizer(name: str | None) -> Any:
    """Returns BERT's tokenizer (minilm's unless named) with BLIP's signs: [DEC] begins a caption, [ENC] a query."""
    tokenizer = load_tokenizer_in(_folder(name or "minilm"))
    # The sentence encoder's cuts and pads its texts.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    if "[DEC]" not in tokenizer.get_vocab():
        tokenizer.add_special_tokens({"bos_token": "[DEC]"})
        tokenizer.add_tokens(["[ENC]"], special_tokens=True)
    tokenizer.bos_token = "[DEC]"
    if tokenizer.sep_token_id is None or tokenizer.pad_token_id is None:
        raise ModelError(f"the tokenizer {name} has no [SEP] or no [PAD], with which BLIP ends and pads captions")
    return tokenizer


def clip_tokenizer(name: str | None, folder: Path, *, own: bool) -> Any:
    """Returns an open_clip checkpoint's tokenizer: the named one, else its folder's, else (unless `own`) CLIP's."""
    if name is not None and Path(name).expanduser().is_file():
        return _from_merges(Path(name).expanduser())
    if name is not None or _has_tokenizer(folder):
        return load_tokenizer_in(_folder(name) if name is not None else folder)
    if not own:
        for package in ("open_clip", "clip"):
            spec = importlib.util.find_spec(package)  # without importing it
            for home in (spec and spec.submodule_search_locations) or []:
                if (Path(home) / _MERGES).is_file():
                    return _from_merges(Path(home) / _MERGES)
        if (place := cached(_CLIP)) is not None:
            return load_tokenizer_in(place)
    raise ModelError(
        f"it brings no tokenizer, and {'it needs one of its own' if own else 'CLIP has none on this machine'}: name a "
        f"folder with --tokenizer, or for CLIP the file {_MERGES} of the open_clip or clip package"
    )


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json", "vocab.txt"))


def _folder(name: str) -> Path:
    path = Path(name).expanduser()
    return path if _has_tokenizer(path) else resolve(name).path


def _from_merges(path: Path) -> Any:
    """Returns CLIP's tokenizer from its merges: OpenAI's list, or the merges.txt of a transformers folder.

    Source: Radford et al. 2021, CLIP (arXiv 2103.00020), section 2.4; github.com/openai/CLIP has the order of tokens.
    """
    from transformers import CLIPTokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    with one_sentence("the list of merges", path):
        data = path.read_bytes()
        lines = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8").split("\n")
        merges = [(left, right) for left, right in (line.split() for line in lines[1:] if line)][:_USED]
    # A letter for each byte, in the order of CLIP's vocabulary.
    signs = list(bytes_to_unicode().values())  # type: ignore[no-untyped-call]
    words = [*signs, *(f"{sign}</w>" for sign in signs), *(left + right for left, right in merges)]
    vocabulary = {word: number for number, word in enumerate([*words, "<|startoftext|>", "<|endoftext|>"])}
    return CLIPTokenizer(vocab=vocabulary, merges=merges)  # type: ignore[arg-type]  # pairs, as its backend takes
