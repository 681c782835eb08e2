"""One pair as a card: picture, caption, score, reason, and everything else behind a click."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tamis.reporting.formats import NONE, count, number
from tamis.reporting.html import Child, Markup, join, tag
from tamis.reporting.pairs import Pair

#: Of a caption, so much is shown at once, and so much at all.
CLAMP = 140
CAPTION_MOST = 8_000

#: The columns that say what a painted-over text was worth.
_WORDS_BESIDE_TEXT = frozenset({"image_text"})
_NUMBERS_BESIDE_TEXT = frozenset({"clip", "tmars", "text_match"})


def cards(drawn: Sequence[Markup], class_: str = "") -> Markup:
    """Returns cards as a list that fills the width."""
    return tag("ul", [tag("li", one) for one in drawn], class_=f"cards {class_}".rstrip())


def card(
    pair: Pair,
    *,
    first: Sequence[str] = (),
    score: float | None = None,
    why: str | None = None,
    stays: str | None = None,
) -> Markup:
    """Returns the card of one pair.

    Args:
        pair: the pair.
        first: columns to show at once; the others are behind a click.
        score: its value where the strip is sorted by one.
        why: the reason it was dropped, or what is wrong with it.
        stays: what to say of a pair that is kept.
    """
    shown = {name: value for name, value in pair.numbers.items() if name in first}
    words = {name: value for name, value in pair.words.items() if name in first}
    return tag(
        "article",
        tag("div", _picture(pair), tag("b", number(score, 5)) if score is not None else None, class_="picture"),
        caption(pair.caption),
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
    words = {name: value for name, value in pair.words.items() if name.rpartition(".")[2] in _WORDS_BESIDE_TEXT}
    shown = {name: value for name, value in pair.numbers.items() if name.rpartition(".")[2] in _NUMBERS_BESIDE_TEXT}
    return tag(
        "article",
        tag("div", pictures, tag("b", number(pair.numbers[column], 5)), class_="picture two"),
        caption(pair.caption),
        _values(shown, words) if shown or words else None,
        _details(pair, None),
        class_="pair",
    )


def _picture(pair: Pair, url: str = "", what: str = "") -> Markup:
    url = url or pair.thumbnail
    if not url:
        return tag("span", pair.no_picture or "no picture", class_="nothing")
    width, height = pair.thumbnail_size
    words = " ".join((pair.caption or "").split())
    alt = words if len(words) <= CLAMP else words[: CLAMP - 1] + "…"
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


def caption(text: str | None) -> Markup:
    """Returns a caption in its own direction; of a long one the beginning, with the rest behind a click."""
    if text is None:
        return tag("p", "no caption", class_="caption none")
    if not text.strip():
        return tag("p", "empty caption", class_="caption none")
    if len(text) <= CLAMP:
        return tag("p", text, class_="caption", dir="auto")
    whole = text[:CAPTION_MOST]
    more = f"… and {count(len(text) - CAPTION_MOST)} more characters" if len(text) > CAPTION_MOST else None
    return tag(
        "details",
        tag("summary", tag("span", text[: CLAMP - 20].rstrip() + "…", dir="auto")),
        tag("p", whole, dir="auto"),
        tag("p", more, class_="quiet") if more else None,
        class_="caption",
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
    names = [("key", pair.key), ("shard", pair.shard), ("uid", pair.uid), ("size", size), ("status", pair.status)]
    notes = [note for note in (pair.reason, *pair.why_null) if note and note != why]
    return tag(
        "details",
        tag("summary", "All values"),
        _values(pair.numbers, pair.words),
        tag("dl", join([_entry(name, value) for name, value in names]), class_="values"),
        [tag("p", note, class_="why") for note in notes],
        class_="more",
    )
