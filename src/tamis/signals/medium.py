"""Medium phrases: words of a text that say what kind of picture it is, not what it shows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

_MEDIA = ("image", "photo", "photograph", "picture", "pic", "snapshot", "illustration", "drawing", "painting", "sketch")
_STOCK = ("image", "photo", "photograph", "picture", "illustration", "vector")


def _tamis() -> tuple[str, ...]:
    """Media with every article, in both numbers, with and without "of"; stock photography's words; what cameras add."""
    of = [f"{article}{medium}{s} of" for medium in _MEDIA for s in ("", "s") for article in ("an ", "a ", "the ", "")]
    kinds = ("stock", "royalty-free", "royalty free", "free stock", "royalty-free stock", "royalty free stock")
    stock = [f"{kind} {medium}{s}" for kind in kinds for medium in _STOCK for s in ("", "s")]
    stocked = [f"{article}{one}" for one in stock for article in ("", "a ", "the ")]
    turned = [f"{medium}{s} stock" for medium in _STOCK for s in ("", "s")]
    return (*of, *(f"{one} of" for one in stocked), *stocked, *turned, "a close-up of", "close-up of", "a close up of")


#: Lists of medium phrases by name, as recipes give them. SIEVE's paper names three phrases and "...": its list here has
#: them with each article. The next two are those of its released code, the longer of which that code never uses. The
#: last is ours: it knows plurals, articles and more media, and takes "stock photo of" whole: the others leave its "of".
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

#: What remains of a text of nothing but medium phrases, and of one that never held a word.
_NOTHING = re.compile(r"[\W_]*")


@dataclass(frozen=True)
class Removed:
    """What the removal of medium phrases did to some texts.

    Attributes:
        texts: how many there were.
        touched: how many lost something.
        emptied: how many lost everything: of them nothing is left to compare.
        characters: how many were lost, white space and punctuation that was mended with them.
        phrases: in how many texts each phrase stood that was removed, the most frequent first.
    """

    texts: int
    touched: int
    emptied: int
    characters: int
    phrases: tuple[tuple[str, int], ...]


def without_medium(phrases: Sequence[str]) -> Callable[[str], str]:
    """Returns a function that removes phrases from a text.

    Phrases are removed where they stand as whole words, whatever their case, the longest first; white space and
    punctuation that the removal leaves at the ends or doubles is mended. A text that loses nothing comes back as it
    is. What holds no letter or digit afterwards is "", and so is what held none before (see `holds_words`).

    Args:
        phrases: what to remove; none leaves every text as it is.

    Source: Mahmoud et al. 2024 (SIEVE), section 3 ("Masking medium words"), M(T). The released code removes them inside
        words too ("photographer" becomes "grapher") and leaves the spaces.
    """
    return _remover(tuple(phrases))


def holds_words(text: str) -> bool:
    """Tells whether a text holds a letter or a digit: "???" and a row of emoji hold none."""
    return not _NOTHING.fullmatch(text)


def removed_by(phrases: Sequence[str], texts: Iterable[str]) -> Removed:
    """Counts what `without_medium` removes of texts.

    Args:
        phrases: what is removed.
        texts: of which.
    """
    remove, pattern = _remover(tuple(phrases)), _pattern(tuple(phrases))
    counts: Counter[str] = Counter()
    number = touched = emptied = characters = 0
    for text in texts:
        number += 1
        found = {" ".join(match.group().casefold().split()) for match in pattern.finditer(text)} if phrases else set()
        if found:
            left = remove(text)
            touched += 1
            emptied += not left
            characters += len(text) - len(left)
            counts.update(found)
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return Removed(number, touched, emptied, characters, tuple(ordered))


@lru_cache(maxsize=16)
def _pattern(phrases: tuple[str, ...]) -> re.Pattern[str]:
    # In their own case and folded: IGNORECASE knows "\u00df" and its capital, folding makes "ss" of them.
    written = {form for phrase in phrases for form in (phrase, phrase.casefold())}
    longest_first = sorted(written, key=lambda phrase: (-len(phrase), phrase))
    words = "|".join(r"\s+".join(re.escape(word) for word in phrase.split()) for phrase in longest_first)
    return re.compile(rf"(?<!\w)(?:{words})(?!\w)", re.IGNORECASE)


@lru_cache(maxsize=16)
def _remover(phrases: tuple[str, ...]) -> Callable[[str], str]:
    if not phrases:
        return lambda text: text
    pattern = _pattern(phrases)

    def remove(text: str) -> str:
        left, removed = pattern.subn(" ", text)
        if not removed:
            return "" if _NOTHING.fullmatch(text) else text
        left = re.sub(r"\s+([,;:!?)\]]|\.(?!\d))|([(\[])\s+", r"\1\2", " ".join(left.split()))
        left = re.sub(r"^(?:[ ,;:!?|]|[-.](?!\d))+", "", left)  # "-20" and ".5" are numbers
        left = re.sub(r"[\s,;:|-]+[.!?]*$", "", left)
        return "" if _NOTHING.fullmatch(left) else left

    return remove
