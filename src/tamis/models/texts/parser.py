"""spaCy pipelines: texts to tokens with parts of speech and a dependency tree."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tamis.errors import DependencyError, ModelError, install
from tamis.fingerprint import tree_digest
from tamis.models.loading import loaded_once


@loaded_once(keep=1)
def load_parser(model: str) -> Callable[[Sequence[str]], Iterator[Any]]:
    """Returns a function of texts to their parses, in order: iterables of tokens, as spaCy has them.

    Args:
        model: an installed spaCy package ("en_core_web_sm") or a folder that spaCy saved. Its components are spaCy's
            own: a folder's code is never run.

    Raises:
        DependencyError: spaCy is not installed.
        ModelError: the pipeline is not here, or parses no dependencies.
    """
    try:
        import spacy
    except ImportError as error:
        raise DependencyError(
            f"complexity_action parses captions with spaCy, which is not installed; run: {install('parse')} "
            f"and python -m spacy download {model}"
        ) from error
    try:
        pipeline = spacy.load(Path(model) if Path(model).is_dir() else model, exclude=["ner"])
    except (OSError, ValueError) as error:
        raise _not_here(model, str(error).splitlines()[0]) from error
    if "parser" not in pipeline.pipe_names:
        raise ModelError(
            f"the spaCy pipeline {model!r} has the components {', '.join(pipeline.pipe_names) or 'none'}, and no "
            "parser: take one like en_core_web_sm"
        )
    return lambda texts: pipeline.pipe(texts)


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
