"""Medium phrases: words that say what kind of image it is ("a photo of"), not what it shows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

_MEDIA = ("image", "photo", "photograph", "picture", "pic", "snapshot", "illustration", "drawing", "painting", "sketch")
_STOCK = ("image", "photo", "photograph", "picture", "illustration", "vector")


def _tamis() -> tuple[str, ...]:
    """Media with every article and number, with and without "of"; words of stock photography; close-ups."""
    of = [f"{article}{medium}{s} of" for medium in _MEDIA for s in ("", "s") for article in ("an ", "a ", "the ", "")]
    kinds = ("stock", "royalty-free", "royalty free", "free stock", "royalty-free stock", "royalty free stock")
    stock = [f"{kind} {medium}{s}" for kind in kinds for medium in _STOCK for s in ("", "s")]
    stocked = [f"{article}{one}" for one in stock for article in ("", "a ", "the ")]
    turned = [f"{medium}{s} stock" for medium in _STOCK for s in ("", "s")]
    return (*of, *(f"{one} of" for one in stocked), *stocked, *turned, "a close-up of", "close-up of", "a close up of")


#: Lists of medium phrases, by their names in recipes. SIEVE's paper names three phrases and "...": "paper" has them
#: with each article. "released" and "released-long" are from its code, which never uses the longer one. "tamis" is
#: ours: it has plurals, articles and more media, and removes "stock photo of" completely, where others leave "of".
MEDIUM_PHRASES: Mapping[str, tuple[str, ...]] = {
    "paper": (
        *(f"{article}{medium} of" for medium in ("image", "picture", "photo") for article in ("an ", "a ", "the ", "")),
        "stock photo",
        "photo stock",
    ),
    "released": ("an image of", "a photo of", "stock photo", "photo stock", "a photo", "an image", "image", "photo"),
    "released-long": (
        *("an image of", "a photo of", "an icon of", "an illustration of", "a template of", "a thumbnail of"),
        *("a vector of", "photo stock", "stock photo", "a photo", "an image", "an icon", "an illustration"),
        *("a template", "a thumbnail", "image", "photo", "icon", "illustration", "template", "vector", "thumbnail"),
        *("free", "print", "sale", "quot", "png", "jpeg", "jpg"),
    ),
    "tamis": _tamis(),
}

#: A text without a letter or a digit.
_NOTHING = re.compile(r"[\W_]*")


def without_medium(phrases: Sequence[str]) -> Callable[[str], str]:
    """Returns a function that removes phrases from a text.

    Phrases are removed as whole words in any case, the longest first; white space and punctuation that the removal
    leaves at the ends or doubles go too. A text that loses nothing is returned unchanged, but a text without a letter
    or a digit, before or after, becomes "".

    Args:
        phrases: what to remove; without any, every text is returned unchanged.

    Source: Mahmoud et al. 2024 (SIEVE), section 3 ("Masking medium words"), M(T). The released code removes them inside
        words too ("photographer" becomes "grapher") and leaves the spaces.
    """
    phrases = tuple(phrases)
    if not phrases:
        return lambda text: text
    pattern = _pattern(phrases)

    def remove(text: str) -> str:
        rest, removed = pattern.subn(" ", text)
        if not removed:
            return text if holds_words(text) else ""
        rest = re.sub(r"\s+([,;:!?)\]]|\.(?!\d))|([(\[])\s+", r"\1\2", " ".join(rest.split()))
        rest = re.sub(r"^(?:[ ,;:!?|]|[-.](?!\d))+", "", rest)  # "-20" and ".5" are numbers
        rest = re.sub(r"[\s,;:|-]+[.!?]*$", "", rest)
        return rest if holds_words(rest) else ""

    return remove


def holds_words(text: str) -> bool:
    """Whether a text has a letter or a digit: "???" and a row of emoji have none."""
    return not _NOTHING.fullmatch(text)


def removed_by(phrases: Sequence[str], texts: Iterable[str]) -> dict[str, Any]:
    """Counts what `without_medium(phrases)` removes from texts.

    Returns:
        The number of `texts`, of those that lost something (`touched`) and everything (`emptied`), the `characters`
        lost with white space and punctuation, and the `phrases` with how many texts held each, the most frequent first.
    """
    remove, pattern = without_medium(phrases), _pattern(tuple(phrases))
    counts: Counter[str] = Counter()
    number = touched = emptied = characters = 0
    for text in texts:
        number += 1
        matches = {" ".join(match.group().casefold().split()) for match in pattern.finditer(text)} if phrases else set()
        if matches:
            rest = remove(text)
            touched += 1
            emptied += not rest
            characters += len(text) - len(rest)
            counts.update(matches)
    ordered = tuple(sorted(counts.items(), key=lambda one: (-one[1], one[0])))
    return {"texts": number, "touched": touched, "emptied": emptied, "characters": characters, "phrases": ordered}


@lru_cache(maxsize=16)
def _pattern(phrases: tuple[str, ...]) -> re.Pattern[str]:
    # In their own case and folded: IGNORECASE matches "\u00df" and its capital, folding makes "ss" of them.
    written = {form for phrase in phrases for form in (phrase, phrase.casefold())}
    longest_first = sorted(written, key=lambda phrase: (-len(phrase), phrase))
    words = "|".join(r"\s+".join(re.escape(word) for word in phrase.split()) for phrase in longest_first)
    return re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE)
