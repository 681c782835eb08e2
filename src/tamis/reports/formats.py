"""Formats numbers, shares, times, reasons, statuses and the names of subsets for the page."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from zlib import crc32

from tamis.core.errors import duration as duration
from tamis.core.types import EXIF_WORDS
from tamis.recipes.names import shipped_names
from tamis.recipes.recipe import load
from tamis.runs.subset import Subset

NONE = "–"


def share(part: float, whole: float) -> str:
    """Returns a percentage: never rounds a nonzero share to 0 % or a partial one to 100 %; a dash if `whole` is 0."""
    if not whole:
        return NONE
    percent = 100 * part / whole
    if part and percent < 0.05:
        return "<0.1 %"
    if part < whole and percent >= 99.95:
        return ">99.9 %"
    return f"{percent:.0f} %" if part in (0, whole) else f"{percent:.1f} %"


def width(part: float, whole: float) -> str:
    """Returns the CSS length of a bar: the percentage that `part` is of `whole`."""
    return f"{100 * part / whole if whole else 0:.2f}%"


def number(value: float, digits: int = 4) -> str:
    """Returns a score with `digits` digits, integers and thousands without decimals; a dash for NaN."""
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
    """Returns a text of at most `length` characters; a longer one ends with an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


_NAME = r"(?:[\w-]+\.)?"

#: Pattern of a reason -> words to follow a number: "6 with a tiny image", not "6 shorter_side below 200".
_RULES = (
    # The most probable language is often wrong, so this does not claim what the caption is written in.
    (rf"{_NAME}top_language is not en", "not English by DataComp's rule"),
    (rf"{_NAME}top_language is not (.+)", r"with a top language other than \1"),
    (rf"in none of {_NAME}english >= .+, {_NAME}words <= .+", "probably not in English"),
    (rf"{_NAME}status is not .+|not readable", "with a missing, empty or broken image or caption"),
    (rf"{_NAME}shorter_side below (?!the cut).+", "with a tiny image"),
    (rf"{_NAME}aspect_ratio above (?!the cut).+", "with a long and thin image"),
    (rf"{_NAME}(?:words|characters) below (?!the cut).+", "with a short caption"),
    (rf"{_NAME}text_match above (?!the cut).+", "with the caption written in the image"),
    (r"repeats another", "repeated"),
    (r"no value for (\S+)", r"without a value of \1"),
    (r"no value for .+", "without a value"),
    (r"(.+) (below|above) the cut", r"\2 the cut of \1"),
    (r"(.+) (below|above) (\S+)", r"with \1 \2 \3"),
)


def in_words(reason: str) -> str:
    """Returns a reason in words that follow a number: "with a tiny image"; an unknown reason is unchanged."""
    for pattern, words in _RULES:
        match = re.fullmatch(pattern, reason)
        if match is not None:
            return match.expand(words)
    return reason


#: Number of hues for subsets in colours.css, which colour-blind readers can tell apart, and of their patterns.
_HUES, _PATTERNS = 8, 3

#: Maximum number of changed settings in a label, and of characters of each value.
_NAMED, _VALUE = 2, 24


def names_of(subsets: Sequence[Subset]) -> list[dict[str, Any]]:
    """Returns `place`, `label`, `colour`, `kept` rows and `times` with repeats of each subset.

    A repeated label gets a number.
    """
    seen: Counter[str] = Counter()
    names: list[dict[str, Any]] = []
    for position, subset in enumerate(subsets):
        label = f"{subset.name}{_changes(subset, subsets)}"
        seen[label] += 1
        label = label if seen[label] == 1 else f"{label} ({seen[label]})"
        names.append({"place": position, "label": label, "kept": subset.kept, "times": len(subset)})
    stored = subsets[0].run.subset_names if subsets else []
    known = colours(stored, [each["label"] for each in names])
    return [{**each, "colour": known[each["label"]]} for each in names]


def colours(*groups: Iterable[str]) -> dict[str, str]:
    """Returns the CSS classes of each name's colour: "c3", or "c3 t2" for the third hue in the second pattern.

    The hue follows from the name; if an earlier name has it, the next free one is taken, and a free pattern from the
    ninth name on. Groups choose in turn, the names in a group by alphabet, so that their order does not matter.
    """
    found: dict[str, str] = {}
    for name in dict.fromkeys(name for group in groups for name in sorted(group)):
        first, pattern = crc32(name.encode()) % _HUES, len(found) // _HUES % _PATTERNS
        slots = [f"c{(first + step) % _HUES + 1}" + (f" t{pattern + 1}" if pattern else "") for step in range(_HUES)]
        found[name] = next((slot for slot in slots if slot not in found.values()), slots[0])
    return found


def colour(subset: Mapping[str, Any]) -> str:
    """Returns the CSS classes of a subset's colour."""
    return str(subset["colour"])


def _changes(subset: Subset, others: Sequence[Subset]) -> str:
    """Returns ", fraction 0.2" if a recipe differs from the shipped one, or from others of its name; else ""."""
    is_shipped = subset.name in shipped_names()
    same = [other.recipe for other in others if other.name == subset.name]
    known = [load(subset.name).text] if is_shipped else same
    if any(_steps(each) != _steps(subset.recipe) for each in known):
        return ", other steps" if is_shipped else ""
    settings, usual = _settings(subset.recipe), [_settings(each) for each in known]
    changed = [path for path in settings if any(path not in each or each[path] != settings[path] for each in usual)]
    named = [f", {path[-1].replace('_', ' ')} {clip(_as_text(settings[path]), _VALUE)}" for path in changed[:_NAMED]]
    return "".join(named) + (f", {len(changed) - _NAMED} more" if len(changed) > _NAMED else "")


def _steps(recipe: Mapping[str, Any]) -> list[str]:
    return [next(iter(step), "") if isinstance(step, Mapping) else str(step) for step in recipe.get("select") or []]


def _settings(recipe: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    """Returns the values in a recipe's steps by their paths."""

    def walk(value: Any, path: tuple[str, ...]) -> dict[tuple[str, ...], Any]:
        if isinstance(value, Mapping):
            inner = value.items()
        elif isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value):
            inner = dict(enumerate(value)).items()
        else:
            return {path: value}
        return {position: leaf for key, each in inner for position, leaf in walk(each, (*path, str(key))).items()}

    return walk(recipe.get("select") or {}, ())


def _as_text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


# How to draw an upright image as it is stored, by its orientation in EXIF.
_AS_STORED = {
    2: "scaleX(-1)",
    3: "rotate(180deg)",
    4: "scaleY(-1)",
    5: "matrix(0, 1, 1, 0, 0, 0)",
    6: "rotate(-90deg)",
    7: "matrix(0, -1, -1, 0, 0, 0)",
    8: "rotate(90deg)",
}


def as_stored(orientation: str | None) -> str:
    """Returns the CSS transformation that undoes the turning of an image by its orientation, in `EXIF_WORDS`."""
    return _AS_STORED.get(EXIF_WORDS.get(orientation or "", 1), "none")
