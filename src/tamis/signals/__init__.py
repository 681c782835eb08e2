"""Scorers: one file per method. `SCORERS` is the list of them all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tamis.data import Scorer
from tamis.plugins import Register, undefined
from tamis.signals.ave_clip import AveClip
from tamis.signals.caption_length import CaptionLength
from tamis.signals.class_mentions import ClassMentions
from tamis.signals.class_similarity import ClassSimilarity
from tamis.signals.clip import ClipScore
from tamis.signals.clip_stroop import ClipStroop
from tamis.signals.complexity_action import ComplexityAction
from tamis.signals.icc import Icc
from tamis.signals.image_hash import ImageHash
from tamis.signals.image_size import ImageSizes
from tamis.signals.language import Language
from tamis.signals.pac import Pac
from tamis.signals.sba import Sba
from tamis.signals.sieve import Sieve
from tamis.signals.text_area import TextArea
from tamis.signals.text_match import TextMatch
from tamis.signals.tmars import Tmars
from tamis.signals.vba import Vba

#: The scorers that come with Tamis, by the name that recipes use.
SCORERS: Mapping[str, type[Any]] = {
    cls.name: cls
    for cls in (
        CaptionLength,
        ImageSizes,
        ImageHash,
        Language,
        ClassMentions,
        ClassSimilarity,
        ClipScore,
        TextArea,
        Tmars,
        TextMatch,
        Sieve,
        *(Icc, Vba, Sba, Pac, ClipStroop, AveClip, ComplexityAction),
    )
}


def _wrong(cls: type[Any]) -> str:
    if not issubclass(cls, Scorer):
        return "does not derive from tamis.data.Scorer"
    lacking = [name for name in ("version", "columns") if not hasattr(cls, name)]
    return f"says no {' and no '.join(lacking)}" if lacking else undefined(cls)


#: All scorers: those of `SCORERS`, and those of other packages.
REGISTER = Register(kind="scorer", group="tamis.scorers", ours=SCORERS, wrong=_wrong)

#: All by name, and one of a name: see `Register`.
scorers, scorer_class = REGISTER.all, REGISTER.get

__all__ = [
    "REGISTER",
    "SCORERS",
    "AveClip",
    "CaptionLength",
    "ClassMentions",
    "ClassSimilarity",
    "ClipScore",
    "ClipStroop",
    "ComplexityAction",
    "Icc",
    "ImageHash",
    "ImageSizes",
    "Language",
    "Pac",
    "Sba",
    "Sieve",
    "TextArea",
    "TextMatch",
    "Tmars",
    "Vba",
    "scorer_class",
    "scorers",
]
