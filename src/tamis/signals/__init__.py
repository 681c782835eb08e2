"""Scorers: one file per method. `SCORERS` is the list of them all."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tamis.errors import RecipeError, unknown
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
from tamis.signals.image_size import ImageSizes
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
        ImageSizes,
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

#: Where other packages register scorers: `[project.entry-points."tamis.scorers"] name = "module:Class"`.
ENTRY_POINTS = "tamis.scorers"


log = logging.getLogger(__name__)


def scorers() -> dict[str, type[Any]]:
    """Returns all scorers by name: ours, and those that installed packages register; ours win a clash.

    One that cannot be imported is left out, and the log says so.
    """
    found: dict[str, type[Any]] = {}
    for name in _registered():
        try:
            found[name] = scorer_class(name)
        except RecipeError as error:
            log.warning("%s", error)
    return found | dict(SCORERS)


def scorer_class(name: str) -> type[Any]:
    """Returns one scorer, and imports no other package than the one it comes from.

    Raises:
        RecipeError: there is none of that name, or its package cannot be imported.
    """
    if name in SCORERS:
        return SCORERS[name]
    registered = _registered()
    if name not in registered:
        raise RecipeError(unknown("scorer", name, {*SCORERS, *registered}))
    entry = registered[name]
    try:
        found: type[Any] = entry.load()
    except Exception as error:  # somebody else's module: anything can happen while it is imported
        package = entry.dist.name if entry.dist is not None else entry.module
        raise RecipeError(
            f"the scorer {name!r} of the package {package!r} cannot be loaded ({type(error).__name__}: {error}): "
            "repair or uninstall that package"
        ) from error
    return found


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


def _registered() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


__all__ = [
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
    "ImageSizes",
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
