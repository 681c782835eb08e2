"""How numbers, shares and times are written on the page."""

from __future__ import annotations

import time

NONE = "–"


def count(value: int) -> str:
    """Returns 1234567 as 1,234,567."""
    return f"{value:,}"


def plural(value: int, noun: str) -> str:
    """Returns "1 pair", "2,000 pairs"."""
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"


def share(part: int, whole: int) -> str:
    """Returns a percentage with one digit: never 0 % of some nor 100 % of most; a dash where `whole` is 0."""
    if not whole:
        return NONE
    percent = 100 * part / whole
    if part and percent < 0.05:
        return "<0.1 %"
    if part < whole and percent > 99.95:
        return ">99.9 %"
    return f"{percent:.0f} %" if part in (0, whole) else f"{percent:.1f} %"


def width(part: float, whole: float) -> str:
    """Returns the CSS length of a bar: the percentage that `part` is of `whole`."""
    return f"{100 * part / whole if whole else 0:.2f}%"


def number(value: float, digits: int = 4) -> str:
    """Returns a score with so many digits, whole numbers and thousands without decimals; a dash for NaN."""
    if value != value:
        return NONE
    if abs(value) == float("inf"):
        return "∞" if value > 0 else "−∞"
    if value == round(value) and abs(value) < 1e15:
        text = f"{value + 0.0:,.0f}"
    elif abs(value) >= 1000:
        text = f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.{digits}g}"
    else:
        text = f"{value:.{digits}g}"
    return text.replace("-", "−")


def fixed(value: float, form: str = ".2f") -> str:
    """Returns a number in a format such as "+.3f", with a minus sign; a dash for NaN."""
    return NONE if value != value else f"{value:{form}}".replace("-", "−")


def size(value: float) -> str:
    """Returns bytes as B, kB, MB or GB."""
    if value != value:
        return NONE
    for unit in ("B", "kB", "MB"):
        if abs(value) < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def when(seconds: float) -> str:
    """Returns a time in UTC to the minute."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))


def clip(text: str, length: int) -> str:
    """Returns a text, cut with an ellipsis where it has more characters than that."""
    return text if len(text) <= length else text[: length - 1] + "…"
