"""One pair as a card: the picture, below it caption, generated captions and read text, a few values, the reason.

Texts have three lines; the rest of them, and all other values, stand behind a click.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tamis.reporting.formats import NONE, count, number
from tamis.reporting.html import Child, Markup, join, tag
from tamis.reporting.pairs import Pair

#: A text that is longer may have more than three lines, and can be unfolded; so much of it is on the page at all.
CLAMP = 64
TEXT_MOST = 8_000

#: Characters of a picture's text for who cannot see it.
_ALT = 140

#: The columns that say what a painted-over text was worth.
_NUMBERS_BESIDE_TEXT = frozenset({"clip", "tmars", "text_match"})


def cards(drawn: Sequence[Markup], class_: str = "") -> Markup:
    """Returns cards as a list that fills the width."""
    return tag("ul", [tag("li", one) for one in drawn], class_=f"cards {class_}".rstrip())


def card(
    pair: Pair,
    *,
    first: Sequence[str] = (),
    score: float | None = None,
    mark: str | None = None,
    why: str | None = None,
    stays: str | None = None,
) -> Markup:
    """Returns the card of one pair.

    Args:
        pair: the pair.
        first: columns to show at once; the others are behind a click.
        score: its value where the strip is sorted by one.
        mark: what else stands on the picture, such as the percentile.
        why: the reason it was dropped, or what is wrong with it.
        stays: what to say of a pair that is kept.
    """
    said = " · ".join(filter(None, (mark, number(score, 5) if score is not None else None)))
    shown = {name: value for name, value in pair.numbers.items() if name in first}
    words = {name: value for name, value in pair.words.items() if name in first and name not in pair.texts}
    return tag(
        "article",
        tag("div", _picture(pair), tag("b", said) if said else None, class_="picture"),
        texts(pair),
        tag("p", why, class_="why") if why else None,
        tag("p", stays, class_="why stays") if stays else None,
        _values(shown, words) if shown or words else None,
        _details(pair, why),
        class_="pair",
    )


def painted_card(pair: Pair, column: str) -> Markup:
    """Returns the card of a pair with its picture twice: its text outlined, its text painted over.

    Args:
        pair: the pair; without painted pictures its plain one is shown.
        column: whose value stands on the picture; the other columns of its kind stand below.
    """
    outlined, masked = pair.painted
    pictures = (
        [_picture(pair, outlined, "text outlined"), _picture(pair, masked, "text painted over")]
        if outlined and masked
        else [_picture(pair)]
    )
    shown = {name: value for name, value in pair.numbers.items() if name.rpartition(".")[2] in _NUMBERS_BESIDE_TEXT}
    return tag(
        "article",
        tag("div", pictures, tag("b", number(pair.numbers[column], 5)), class_="picture two"),
        texts(pair),
        _values(shown, {}) if shown else None,
        _details(pair, None),
        class_="pair",
    )


def _picture(pair: Pair, url: str = "", what: str = "") -> Markup:
    url = url or pair.thumbnail
    if not url:
        return tag("span", pair.no_picture or "no picture", class_="nothing")
    width, height = pair.thumbnail_size
    words = " ".join((pair.caption or "").split())
    alt = words if len(words) <= _ALT else words[: _ALT - 1] + "…"
    name = f"Image of the pair {pair.key}{f', {what}' if what else ''}"
    return tag(
        "img",
        src=url,
        alt=f"{name}: {alt}" if alt else name,
        width=width,
        height=height,
        loading="lazy",
        decoding="async",
    )


def texts(pair: Pair) -> Markup:
    """Returns a pair's caption, then every other text that the run has of it under its column's name."""
    caption = pair.caption
    if caption is None or not caption.strip():
        first = tag("p", "no caption" if caption is None else "empty caption", class_="caption none")
    else:
        first = clamped(caption, "caption")
    others = [
        clamped(value, "text", name.rpartition(".")[2].replace("_", " "))
        for name in pair.texts
        if (value := pair.words.get(name)) and value.strip()
    ]
    return join(first, others)


def clamped(words: str, class_: str, label: str | None = None) -> Markup:
    """Returns a text in its own direction, three lines of it at once; of a longer one the rest is behind a click.

    Args:
        words: the text.
        class_: of the element.
        label: what stands before it.
    """
    head = tag("b", label) if label else None
    if len(words) <= CLAMP and words.count("\n") < 3:
        return tag("p", head, tag("span", words, dir="auto"), class_=class_)
    more = f"… and {count(len(words) - TEXT_MOST)} more characters" if len(words) > TEXT_MOST else None
    return tag(
        "details",
        tag("summary", head, tag("span", words[:TEXT_MOST], dir="auto")),
        tag("p", more, class_="quiet") if more else None,
        class_=f"{class_} folded",
    )


def _values(numbers: Mapping[str, float], words: Mapping[str, str | None]) -> Markup:
    said: list[Child] = [_entry(name, number(value)) for name, value in numbers.items()]
    said += [_entry(name, NONE if value is None else value) for name, value in words.items()]
    return tag("dl", said, class_="values")


def _entry(name: str, value: str) -> Markup:
    clipped = value if len(value) <= 300 else value[:299] + "…"
    return tag("div", tag("dt", name), tag("dd", tag("bdi", clipped)))


def _details(pair: Pair, why: str | None) -> Markup:
    size = f"{count(pair.width)} × {count(pair.height)}" if pair.width and pair.height else NONE
    names = [("key", pair.key), ("shard", pair.shard), ("size", size), ("status", pair.status)]
    words = {name: value for name, value in pair.words.items() if name not in pair.texts}
    notes = [note for note in (pair.reason, *pair.why_null) if note and note != why]
    return tag(
        "details",
        tag("summary", "All values"),
        _values(pair.numbers, words),
        tag("dl", join([_entry(name, value) for name, value in names]), class_="values"),
        [tag("p", note, class_="why") for note in notes],
        class_="more",
    )
