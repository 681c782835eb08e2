"""Signals. `SIGNALS` lists them; methods that belong together share a file."""

from __future__ import annotations

from itertools import chain
from typing import Any

from tamis.data import Signal
from tamis.derived import DERIVED
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


def signal_class(name: str) -> type[Any]:
    """Returns the signal or derived signal of a name, importing only its package; RecipeError if there is none."""
    return DERIVED[name] if name in DERIVED else SIGNALS.named(name, DERIVED)


def signal_of_column(column: str) -> type[Any] | None:
    """Returns the built-in signal, or derived one, that emits a column (NAME, or LABEL.NAME); None if there is none."""
    name, every = column.rpartition(".")[2], chain(SIGNALS.values(), DERIVED.values())
    makers = (cls for cls in every if isinstance(cls.columns, tuple))  # others depend on settings
    return next((cls for cls in makers if name in {one.name for one in cls.columns}), None)


def __getattr__(name: str) -> Any:
    return SIGNALS.attribute(name)


__all__ = ["SIGNALS", "signal_of_column", "signal_class", "signals", *SIGNALS.exported]
