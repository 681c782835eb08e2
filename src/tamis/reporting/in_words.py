"""Reasons and statuses in a curator's words: "6 with a tiny image" instead of "shorter_side below 200"."""

from __future__ import annotations

import re

_NAME = r"(?:[\w-]+\.)?"

#: A reason, and what pairs dropped by it are called.
_RULES = (
    # The most probable language is often wrong, so this does not claim what the caption is written in.
    (rf"{_NAME}top_language is not en", "with a top language other than English"),
    (rf"{_NAME}top_language is not (.+)", r"with a top language other than \1"),
    (rf"in none of {_NAME}english >= .+, {_NAME}words <= .+", "probably not in English"),
    (rf"{_NAME}status is not .+", "with a missing, empty or broken image or caption"),
    (rf"{_NAME}shorter_side below .+", "with a tiny image"),
    (rf"{_NAME}aspect_ratio above .+", "with an elongated image"),
    (rf"{_NAME}(?:words|characters) below .+", "with a short caption"),
    (rf"{_NAME}text_match above .+", "with the caption written in the image"),
    (r"repeats another", "repeated"),
    (r"no value for (\S+)", r"without a value of \1"),
    (r"no value for .+", "without a value"),
    (r"(.+) (below|above) the cut", r"\2 the cut of \1"),
    (r"(.+) (below|above) (\S+)", r"with \1 \2 \3"),
)

#: What pairs of a status are called, one and several.
_STATUS_WORDS = {
    "image_missing": ("missing image", "missing images"),
    "image_broken": ("broken image", "broken images"),
    "image_too_large": ("image that is too large", "images that are too large"),
    "image_refused": ("image of a kind that no trainer reads", "images of kinds that no trainer reads"),
    "caption_missing": ("missing caption", "missing captions"),
    "caption_empty": ("empty caption", "empty captions"),
    "caption_not_utf8": ("caption that is not UTF-8", "captions that are not UTF-8"),
    "json_broken": ("broken json", "broken jsons"),
    "duplicate_key": ("repeated key", "repeated keys"),
    "shard_cut": ("pair cut short", "pairs cut short"),
}


def in_words(reason: str) -> str:
    """Returns what pairs dropped by a reason are called, after their number; an unknown reason stays as it is."""
    for pattern, words in _RULES:
        match = re.fullmatch(pattern, reason)
        if match is not None:
            return match.expand(words)
    return reason


def status_words(status: str, rows: int) -> str:
    """Returns what so many pairs of a status are called, after their number: "empty captions"."""
    return _STATUS_WORDS.get(status, (status, status))[rows != 1]
