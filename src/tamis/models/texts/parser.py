"""spaCy pipelines: texts to tokens with parts of speech and a dependency tree."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tamis.errors import DependencyError, ModelError, brief, first_line, install
from tamis.fingerprint import tree_digest
from tamis.models.loading import loaded_once

#: Names of layers whose weights another library reads: of torch's by a `torch.load` of pickles that we do not call.
_OF_OTHERS = re.compile(r"torch|mxnet|tensorflow|transformer", re.IGNORECASE)


T = TypeVar("T")


class Parser(Protocol):
    """Parses texts; returns of each what `read` makes of its tokens, as spaCy has them.

    Nothing of a token may be kept: the words that the pipeline did not know are forgotten when all texts are read, or
    their number would grow with the pool.
    """

    def __call__(self, texts: Sequence[str], read: Callable[[list[Any]], T]) -> list[T]: ...


@loaded_once(keep=1)
def load_parser(model: str) -> Parser:
    """Returns a function of texts to what is read of their parses, in order.

    Args:
        model: an installed spaCy package ("en_core_web_sm") or a folder that spaCy saved. Its components are spaCy's
            own: a folder's code is never run, and one that asks for layers of torch is refused.

    Raises:
        DependencyError: spaCy is not installed.
        ModelError: the pipeline is not here, is damaged, names what is not spaCy's own, or parses no dependencies.
    """
    try:
        import spacy
    except ImportError as error:
        raise DependencyError(
            f"complexity_action parses captions with spaCy, which is not installed; run: {install('parse')} "
            f"and python -m spacy download {model}"
        ) from error
    folder = Path(model) if Path(model).is_dir() else None
    if folder is None:
        parser_digest(model)  # it says whether there is such a package
    try:
        if folder is not None:
            _check_own(folder)
        pipeline = spacy.load(folder or model, exclude=["ner"])
    except ModelError:
        raise
    except Exception as error:  # of spaCy, thinc, srsly, NumPy or confection: whatever a damaged file leads to
        raise ModelError(
            f"the spaCy pipeline {model!r} cannot be loaded, a file of it is damaged or of another version of spaCy "
            f"({first_line(error)}): save or download it again, or name another one"
        ) from error
    if "parser" not in pipeline.pipe_names:
        raise ModelError(
            f"the spaCy pipeline {model!r} has the components {', '.join(pipeline.pipe_names) or 'none'}, and no "
            "parser: take one like en_core_web_sm"
        )

    def parse(texts: Sequence[str], read: Callable[[list[Any]], T]) -> list[T]:
        with pipeline.memory_zone():
            return [read(list(parsed)) for parsed in pipeline.pipe(texts)]

    return parse


def _check_own(folder: Path) -> None:
    """Makes sure that a folder's configuration names nothing but spaCy's own layers, and no other pipeline.

    Raises:
        ModelError: it names other ones.
        Exception: the configuration is damaged, or is not there: whatever spaCy raises then.
    """
    from spacy.util import load_config

    # Interpolated: a name may be put together from variables of the file.
    config = load_config(folder / "config.cfg", interpolate=True)
    for key, value in _settings(config):
        if key.startswith("@") and _OF_OTHERS.search(str(value)):
            raise ModelError(
                f"{folder / 'config.cfg'} asks for {brief(value)}: its weights would be unpickled by another library, "
                "which can run code. Take a pipeline of spaCy's own layers, like en_core_web_sm"
            )
    for name, component in config.get("components", {}).items():
        if "source" in component:
            raise ModelError(
                f"{folder / 'config.cfg'} takes its component {brief(name)} from another pipeline, "
                f"{brief(component['source'])}: save the pipeline whole"
            )


def _settings(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields each setting of a configuration, with its name."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _settings(value)
        else:
            yield name, value


def parser_digest(model: str) -> str:
    """Returns the hash of all files of a pipeline, without loading it.

    Args:
        model: an installed package, or a folder.

    Raises:
        ModelError: it is not here.
    """
    if Path(model).is_dir():
        return tree_digest(Path(model))
    try:
        spec = importlib.util.find_spec(model) if model.isidentifier() else None
    except (ImportError, ValueError):
        spec = None
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not folders:
        raise _not_here(model, "there is no such package and no such folder")
    return tree_digest(Path(folders[0]))


def _not_here(model: str, why: str) -> ModelError:
    return ModelError(
        f"the spaCy pipeline {model!r} is not here ({why}): run `python -m spacy download en_core_web_sm` where there "
        "is a network, or name a folder that spaCy saved"
    )
