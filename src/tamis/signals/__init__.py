"""Scorers: one file per method. `SCORERS` is the list of them all."""

from __future__ import annotations

import dataclasses
from typing import Any

from tamis.data import Scorer
from tamis.registry import Classes, Register, undefined

#: The scorers that come with Tamis, by the name that recipes use; each is imported when it is asked for.
SCORERS = Classes(
    "tamis.signals",
    {
        "caption_length": "caption_length:CaptionLength",
        "image_size": "image_size:ImageSize",
        "image_hash": "image_hash:ImageHash",
        "language": "language:Language",
        "class_mentions": "class_mentions:ClassMentions",
        "class_similarity": "class_similarity:ClassSimilarity",
        "zero_shot_class": "zero_shot_class:ZeroShotClass",
        "clip": "clip:ClipScore",
        "text_area": "text_area:TextArea",
        "tmars": "tmars:Tmars",
        "text_match": "text_match:TextMatch",
        "sieve": "sieve:Sieve",
        "c_ssft": "c_ssft:CSsft",
        "c_rho": "c_rho:CRho",
        "icc": "icc:Icc",
        "vba": "vba:Vba",
        "sba": "sba:Sba",
        "pac": "pac:Pac",
        "clip_stroop": "clip_stroop:ClipStroop",
        "ave_clip": "ave_clip:AveClip",
        "complexity_action": "complexity_action:ComplexityAction",
    },
)


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


def __getattr__(name: str) -> Any:
    return SCORERS.attribute(name)


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
