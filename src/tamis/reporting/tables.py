"""Tables of the page: wide ones scroll by themselves, by keyboard too, and never widen the page."""

from __future__ import annotations

from collections.abc import Sequence

from tamis.reporting.html import Markup, tag

#: Headings whose columns hold numbers, which stand at the right.
_NUMERIC = frozenset({"Pairs", "Share", "Kept", "Least", "5 %", "Median", "95 %", "Most"})


def table(header: Sequence[str], rows: Sequence[Markup], class_: str | None = None) -> Markup:
    """Returns a table of finished rows; a heading of "" is an empty cell."""
    cells = [
        tag("th", text, scope="col", class_="n" if text in _NUMERIC else None) if text else tag("td") for text in header
    ]
    inner = tag("table", tag("thead", tag("tr", cells)), tag("tbody", rows), class_=class_)
    return scrolling(inner, " · ".join(filter(None, header)))


def scrolling(inner: Markup, label: str) -> Markup:
    """Returns a region that scrolls sideways where it has to; `label` is what a screen reader calls it."""
    return tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label=label)
