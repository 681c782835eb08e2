"""Scorers: one file per method. `SCORERS` is the list of them all."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from tamis.signals.caption_length import CaptionLength
from tamis.signals.clip import ClipScore
from tamis.signals.image_size import ImageSizes
from tamis.signals.language import Language
from tamis.signals.text_area import TextArea

#: The scorers that come with Tamis, by the name that recipes use.
SCORERS: Mapping[str, type[Any]] = {cls.name: cls for cls in (CaptionLength, ImageSizes, Language, ClipScore, TextArea)}

#: Where other packages register scorers: `[project.entry-points."tamis.scorers"] name = "module:Class"`.
ENTRY_POINTS = "tamis.scorers"


def scorers() -> dict[str, type[Any]]:
    """Returns all scorers by name: ours, and those that installed packages register; ours win a clash."""
    return {entry.name: entry.load() for entry in entry_points(group=ENTRY_POINTS)} | dict(SCORERS)


__all__ = ["SCORERS", "CaptionLength", "ClipScore", "ImageSizes", "Language", "TextArea", "scorers"]
