"""Model references: a built-in name, a folder or file, or a Hugging Face id, resolved to files on this machine."""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tamis.errors import ModelError, needs_extra, unknown
from tamis.models.folder import digest_of
from tamis.models.hub import from_hub, is_hub_id
from tamis.models.registry import BUILT_IN

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model on this machine.

    Attributes:
        reference: as the recipe names it.
        path: its file or folder.
        digest: hash of everything that changes its results: weights, configuration, tokenizer, preprocessing.
    """

    reference: str
    path: Path
    digest: str


def resolve(reference: str) -> Model:
    """Finds a model, and downloads a hub model that is not in the cache yet.

    Args:
        reference: a built-in name, a folder or file, or a Hugging Face id ("owner/name"), tried in this order.
            "./lab/clip" means the folder of that name; "lab/..." is never asked of the hub.

    Raises:
        ModelError: it is not here and cannot be downloaded; the message says what to do.
        DependencyError: it is built in, and its package is not installed.
    """
    local = Path(reference).expanduser()
    if reference in BUILT_IN:
        path = _built_in(reference)
        if local.exists():
            _warn_of_folder(reference)
    elif local.exists():
        path = local.resolve()
    elif reference.startswith("lab/"):
        built_in = unknown("built-in model", reference, [name for name in BUILT_IN if name.startswith("lab/")])
        raise ModelError(f"{built_in}; a folder of that name does not exist, and lab/ is no owner on the hub")
    elif is_hub_id(reference):
        path = from_hub(reference)
    else:
        raise ModelError(
            f"{unknown('model', reference, BUILT_IN)}; a folder of that name does not exist, "
            "and a Hugging Face id has the form owner/name"
        )
    return Model(reference=reference, path=path, digest=digest_of(path))


def _built_in(name: str) -> Path:
    model = BUILT_IN[name]
    path = model.find()
    if path is not None:
        return path
    if model.extra is None:
        raise ModelError(f"the built-in model {name!r} is missing or incomplete here: run `{model.remedy}`")
    if importlib.util.find_spec(model.package) is None:
        raise needs_extra(model.package.replace("_", "-"), model.extra)
    raise ModelError(f"the package {model.package!r} holds no {model.file}; this version of it is not supported")


@lru_cache(maxsize=64)  # once per process
def _warn_of_folder(reference: str) -> None:
    log.warning("%s is the built-in model; for the folder of that name, say ./%s", reference, reference)
