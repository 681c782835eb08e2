"""Kinds of models that tests try with tiny checkpoints of the real classes; docs/models.md shows them as tables.

A test of each table makes it from here: `TAMIS_WRITE=1 pytest tests/models/test_towers.py` writes it.
"""

from __future__ import annotations

from typing import NamedTuple


class Known(NamedTuple):
    """A row: the `model_type`, a checkpoint that people use, and what was compared with the library's own call."""

    kind: str
    checkpoint: str
    tried: str


_BOTH = "image and text embeddings"

#: Towers that embed images and captions: `clip` and every signal with a CLIP as a setting.
TOWERS = (
    Known("clip", "openai/clip-vit-base-patch32", _BOTH),
    Known("clipseg", "CIDAS/clipseg-rd64-refined", _BOTH),
    Known("metaclip_2", "facebook/metaclip-2-worldwide-huge-quickgelu", _BOTH),
    Known("siglip", "google/siglip-base-patch16-224", _BOTH),
    Known("siglip", "google/siglip2-base-patch16-224", f"{_BOTH}, in lower case"),
    Known("siglip2", "google/siglip2-base-patch16-naflex", f"{_BOTH}, images in their own shape"),
    Known("align", "kakaobrain/align-base", _BOTH),
    Known("altclip", "BAAI/AltCLIP", _BOTH),
    Known("chinese_clip", "OFA-Sys/chinese-clip-vit-base-patch16", _BOTH),
    Known("vision-text-dual-encoder", "clip-italian/clip-italian", _BOTH),
)

#: Networks that score an image and a caption together: `itm`.
MATCHERS = (
    Known("blip", "Salesforce/blip-itm-base-coco", "probability of a match"),
    Known("blip-2", "Salesforce/blip2-itm-vit-g", "probability of a match"),
)


#: Sentence encoders: `encoder` of `sieve` and `class_similarity`. The library runs those with other modules.
ENCODERS = (
    Known("bert", "intfloat/e5-base-v2", "mean, with prompts"),
    Known("bert", "sentence-transformers/LaBSE", "first token, a dense layer"),
    Known("qwen3", "Qwen/Qwen3-Embedding-0.6B", "last token, with prompts"),
    Known("t5", "sentence-transformers/sentence-t5-base", "mean, by the library"),
    Known("t5", "hkunlp/instructor-base", "mean without the prompt's tokens, by the library"),
    Known("-", "sentence-transformers/static-similarity-mrl-multilingual-v1", "`StaticEmbedding`, by the library"),
)


def table(rows: tuple[Known, ...], library: str = "transformers") -> str:
    """Returns the Markdown of a table."""
    lines = [f"| `{kind}` | `{checkpoint}` | {tried} |" for kind, checkpoint, tried in rows]
    return "\n".join([f"| `model_type` | for example | compared with `{library}` |", "|---|---|---|", *lines])
