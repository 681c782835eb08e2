"""Scorers: one file per method. `SCORERS` is the list of them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tamis.data import Scorer
from tamis.plugins import Register, undefined
from tamis.signals.ave_clip import AveClip
from tamis.signals.c_rho import CRho
from tamis.signals.c_ssft import CSsft
from tamis.signals.caption_length import CaptionLength
from tamis.signals.class_mentions import ClassMentions
from tamis.signals.class_similarity import ClassSimilarity
from tamis.signals.clip import ClipScore
from tamis.signals.clip_stroop import ClipStroop
from tamis.signals.complexity_action import ComplexityAction
from tamis.signals.icc import Icc
from tamis.signals.image_hash import ImageHash
from tamis.signals.image_size import ImageSize
from tamis.signals.language import Language
from tamis.signals.pac import Pac
from tamis.signals.sba import Sba
from tamis.signals.sieve import Sieve
from tamis.signals.text_area import TextArea
from tamis.signals.text_match import TextMatch
from tamis.signals.tmars import Tmars
from tamis.signals.vba import Vba
from tamis.signals.zero_shot_class import ZeroShotClass

#: The scorers that come with Tamis, by the name that recipes use.
SCORERS: Mapping[str, type[Any]] = {
    cls.name: cls
    for cls in (
        CaptionLength,
        ImageSize,
        ImageHash,
        Language,
        ClassMentions,
        ClassSimilarity,
        ZeroShotClass,
        ClipScore,
        TextArea,
        Tmars,
        TextMatch,
        Sieve,
        *(CSsft, CRho),
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


def made_by(column: str) -> str:
    """Returns how to get a column that a run lacks, to follow the sentence that says so; "" for one that is not ours.

    Args:
        column: its name, or a label and its name with a dot between them.
    """
    label, _, name = column.rpartition(".")
    for cls in SCORERS.values():
        if name in {found.name for found in cls.columns}:
            needed = [setting.name for setting in dataclasses.fields(cls) if setting.default is dataclasses.MISSING]
            given = [f"{setting}={setting.upper()}" for setting in needed]
            given += [f"label={label}"] if label not in ("", cls.name) else []
            settings = "".join(f" --set scores.{cls.name}.{each}" for each in given)
            return (
                f". The scorer {cls.name} makes it: add it to the recipe's 'scores' and score with the recipe, or run "
                f"`tamis score POOL --run RUN --signals {cls.name}{settings}`"
            )
    return ""


#: All by name, and one of a name: see `Register`.
scorers, scorer_class = REGISTER.all, REGISTER.get

__all__ = [
    "REGISTER",
    "SCORERS",
    "AveClip",
    "CRho",
    "CSsft",
    "CaptionLength",
    "ClassMentions",
    "ClassSimilarity",
    "ClipScore",
    "ClipStroop",
    "ComplexityAction",
    "Icc",
    "ImageHash",
    "ImageSize",
    "Language",
    "Pac",
    "Sba",
    "Sieve",
    "TextArea",
    "TextMatch",
    "Tmars",
    "Vba",
    "ZeroShotClass",
    "made_by",
    "scorer_class",
    "scorers",
]
