"""Model references: a local folder, a built-in name, or a Hugging Face id, resolved to files on this machine.

`trust_remote_code` is never on, and weights are safetensors, ONNX or fastText files, never pickles.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tamis.errors import ModelError, needs_extra, unknown
from tamis.models.folder import digest_of
from tamis.models.hub import from_hub
from tamis.models.registry import BUILT_IN

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model that was found.

    Attributes:
        reference: as the recipe names it.
        path: the file or folder on this machine.
        digest: hash of everything that changes its results: weights, configuration, tokenizer, preprocessing.
    """

    reference: str
    path: Path
    digest: str


def resolve(reference: str) -> Model:
    """Finds a model.

    Args:
        reference: a built-in name, a folder or file, or a Hugging Face id ("owner/name"), tried in this order. A
            folder that is called like a built-in is meant by "./lab/clip"; "lab/..." is never asked of the hub.

    Returns:
        Where it lies and what its hash is. A hub model that is not in the cache yet is downloaded now.

    Raises:
        ModelError: it is not here and cannot be fetched; the message says what to do. Within seconds.
        DependencyError: it is built in, and its package is not installed.
    """
    if reference in BUILT_IN:
        path = _built_in(reference)
        if os.path.exists(reference):
            _tell_of_the_folder(reference)
    elif os.path.exists(os.path.expanduser(reference)):
        path = Path(reference).expanduser().resolve()
    elif reference.startswith("lab/"):
        raise ModelError(
            f"{unknown('built-in model', reference, [name for name in BUILT_IN if name.startswith('lab/')])}; "
            "a folder of that name does not exist, and lab/ is no owner on the hub"
        )
    elif reference.count("/") == 1 and not reference.startswith((".", "~", "/")):
        path = from_hub(reference)
    else:
        raise ModelError(
            f"{unknown('model', reference, BUILT_IN)}; a folder of that name does not exist, "
            "and a Hugging Face id has the form owner/name"
        )
    return Model(reference=reference, path=path, digest=digest_of(path, linked=reference in BUILT_IN))


def _built_in(name: str) -> Path:
    model = BUILT_IN[name]
    path = model.find()
    if path is not None:
        return path
    if model.extra is None:
        raise ModelError(
            f"the built-in model {name!r} is not (or not completely) in this installation: run `{model.remedy}`"
        )
    if importlib.util.find_spec(model.package) is None:
        raise needs_extra(model.package.replace("_", "-"), model.extra)
    raise ModelError(f"the package {model.package!r} holds no {model.file}; this version of it is not supported")


@lru_cache(maxsize=64)  # once per process, not once per use
def _tell_of_the_folder(reference: str) -> None:
    log.warning("%s is the built-in model; for the folder of that name, say ./%s", reference, reference)
