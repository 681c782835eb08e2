"""Signals: one file per method. `SIGNALS` lists them all."""

from __future__ import annotations

from typing import Any

from tamis.data import Signal
from tamis.registry import Register, undefined


def _wrong(cls: type[Any]) -> str:
    if not issubclass(cls, Signal):
        return "does not derive from tamis.data.Signal"
    missing = [name for name in ("version", "columns") if not hasattr(cls, name)]
    return f"has no {' and no '.join(missing)}" if missing else undefined(cls)


#: The built-in signals by their names in recipes; each is imported when it is first used.
SIGNALS = Register(
    "signal",
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
    _wrong,
)

#: All by name, those of other packages included; and the class of one name.
signals, signal_class = SIGNALS.all, SIGNALS.named


def maker_of(column: str) -> type[Any] | None:
    """Returns the built-in signal that emits a column (NAME, or LABEL.NAME); None if there is none."""
    name = column.rpartition(".")[2]
    return next((cls for cls in SIGNALS.values() if name in {one.name for one in cls.columns}), None)


def __getattr__(name: str) -> Any:
    return SIGNALS.attribute(name)


__all__ = [
    "SIGNALS",
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
    "maker_of",
    "signal_class",
    "signals",
]
