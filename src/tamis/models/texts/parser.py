"""spaCy pipelines: texts to tokens with parts of speech and a dependency tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tamis.errors import DependencyError, ModelError
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
            "complexity_action parses captions with spaCy, which is not installed; run: pip install 'tamis[parse]' "
            f"and python -m spacy download {model}"
        ) from error
    try:
        pipeline = spacy.load(Path(model) if Path(model).is_dir() else model, exclude=["ner"])
    except (OSError, ValueError) as error:
        raise ModelError(
            f"the spaCy pipeline {model!r} is not here ({str(error).splitlines()[0]}): run `python -m spacy download "
            "en_core_web_sm` where there is a network, or name a folder that spaCy saved"
        ) from error
    if "parser" not in pipeline.pipe_names:
        raise ModelError(
            f"the spaCy pipeline {model!r} has the components {', '.join(pipeline.pipe_names) or 'none'}, and no "
            "parser: take one like en_core_web_sm"
        )
    return lambda texts: pipeline.pipe(texts)
