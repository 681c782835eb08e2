"""Signals. `SIGNALS` lists them; methods that belong together share a file."""

from __future__ import annotations

from typing import Any

from tamis.core.registry import Register, missing_methods
from tamis.core.types import Signal


def _wrong(cls: type[Any]) -> str:
    if not issubclass(cls, Signal):
        return "does not derive from tamis.core.types.Signal"
    return missing_methods(cls) if hasattr(cls, "columns") else "has no columns"


#: The built-in signals by their names in recipes; each is imported when it is first used.
SIGNALS = Register(
    "signal",
    "tamis.signals",
    "tamis.signals",
    {
        "caption_length": "basic:CaptionLength",
        "image_size": "basic:ImageSize",
        "file_hash": "file_hash:FileHash",
        "image_hash": "image_hash:ImageHash",
        "image_quality": "image_quality:ImageQuality",
        "language": "basic:Language",
        "class_mentions": "classes:ClassMentions",
        "class_similarity": "classes:ClassSimilarity",
        "zero_shot_class": "classes:ZeroShotClass",
        "clip": "clip:ClipScore",
        "generated_clip": "clip:GeneratedClip",
        "itm": "clip:Itm",
        "head": "head:Head",
        "text_area": "written_text:TextArea",
        "tmars": "written_text:Tmars",
        "text_match": "written_text:TextMatch",
        "sieve": "sieve:Sieve",
        "judge": "judge:Judge",
        "c_ssft": "clip:CSsft",
        "c_rho": "clip:CRho",
        "icc": "concreteness:Icc",
        "vba": "concreteness:Vba",
        "sba": "concreteness:Sba",
        "pac": "clip:Pac",
        "clip_stroop": "concreteness:ClipStroop",
        "ave_clip": "concreteness:AveClip",
        "complexity_action": "complexity_action:ComplexityAction",
    },
    _wrong,
)

#: All signals by name, including other packages', without derived ones.
signals = SIGNALS.all


def __getattr__(name: str) -> Any:
    return SIGNALS.attribute(name)


__all__ = ["SIGNALS", "signals", *SIGNALS.exported]
