"""Reasons to drop pairs in a curator's words: "6 with a tiny image" instead of "shorter_side below 200"."""

from __future__ import annotations

import re

_NAME = r"(?:[\w-]+\.)?"

#: What a reason says, to what its pairs are called.
_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        # The most probable language is often wrong: no claim of what the caption is in.
        (rf"{_NAME}top_language is not en", "with a top language other than English"),
        (rf"{_NAME}top_language is not (.+)", r"with a top language other than \1"),
        (rf"in none of {_NAME}english >= .+, {_NAME}words <= .+", "probably not in English"),
        (rf"{_NAME}status is not .+", "not readable"),
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
)


def in_words(reason: str) -> str:
    """Returns what pairs that fell by a reason are called, behind their number; the reason itself of an unknown one."""
    for pattern, words in _RULES:
        found = pattern.fullmatch(reason)
        if found is not None:
            return found.expand(words)
    return reason
