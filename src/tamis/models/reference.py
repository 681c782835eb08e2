"""Model references: a built-in name, a folder or file, or a Hugging Face id, resolved to files on this machine.

Hub models come from this machine's cache, else they are downloaded; without a network, the error says what to do.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tamis.errors import ModelError, first_line, needs_extra, unknown
from tamis.models.folder import PATTERNS, PICKLES, complete, digest_of
from tamis.models.registry import BUILT_IN, COPIES, HUB, stand_in

log = logging.getLogger(__name__)

#: Timeout of the hub's first answer.
_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model on this machine; `digest` covers all that changes its results: weights, configuration, tokenizer."""

    reference: str
    path: Path
    digest: str


def resolve(reference: str) -> Model:
    """Finds a model, and downloads a hub model that is not in the cache yet.

    A reference is a built-in name, a folder or file, or a Hugging Face id ("owner/name"), tried in this order.
    "./lab/clip" means the folder of that name; "lab/..." is never asked of the hub. Raises ModelError, which says what
    to do, or DependencyError where a built-in model's package is not installed.
    """
    local = Path(reference).expanduser()
    if reference in BUILT_IN:
        path = _built_in(reference)
        if local.exists():
            _warn_of_folder(reference)
    elif local.exists():
        path = local.resolve()
    elif is_hub_id(reference) and not reference.startswith("lab/"):
        path = _from_hub(reference)
    else:
        raise ModelError(
            f"{unknown('model', reference, BUILT_IN)}; a folder of that name does not exist, and a Hugging Face id has "
            "the form owner/name (lab/ is not an owner)"
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


# ---- the hub


def is_hub_id(reference: str) -> bool:
    """Whether a reference has the form owner/name."""
    return reference.count("/") == 1 and not reference.startswith((".", "~", "/"))


def cached(reference: str, patterns: Sequence[str] = PATTERNS) -> Path | None:
    """Returns the folder of a hub model in this machine's cache, None where it is not there with all its weights.

    With the patterns ("*",) pickled weights will do.
    """
    try:
        import huggingface_hub
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise needs_extra("huggingface_hub", "clip") from error
    known = HUB.get(reference)
    for revision in dict.fromkeys(["main", (known and known.revision) or "main"]):
        try:
            download = huggingface_hub.snapshot_download
            folder = Path(download(reference, revision=revision, local_files_only=True, allow_patterns=list(patterns)))
        except HFValidationError as error:
            raise ModelError(f"{reference!r} is not a Hugging Face id: {error}") from error
        except LocalEntryNotFoundError:
            continue
        weights = any(file.suffix in (*PICKLES, ".safetensors") for file in folder.rglob("*"))
        if complete(folder) or ("*" in patterns and weights):
            return folder
    return None


def _from_hub(reference: str) -> Path:
    folder = cached(reference)
    if folder is not None:
        return folder
    known = HUB.get(reference)
    revision = known.revision if known else "main"
    folder = _download(reference, revision, [*PATTERNS, "README.md"])  # the card has the licence
    if not complete(folder):
        raise ModelError(
            f"the hub has no complete safetensors of {reference!r} at revision {revision or 'main'}, and pickles "
            f"are refused, since they can run code when opened: run `tamis convert {reference} OUT`, which reads "
            f"only tensors from them, and name the folder OUT as the model; {_meanwhile(reference)}"
        )
    return folder


def with_pickles(reference: str) -> Path:
    """Returns the folder of a hub model in any layout, for `tamis convert`."""
    folder = cached(reference) or cached(reference, ("*",))
    return folder or _download(reference, "main", [*PATTERNS, *(f"*{suffix}" for suffix in PICKLES)])


def _download(reference: str, revision: str | None, patterns: list[str]) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    hub = huggingface_hub.constants
    if hub.HF_HUB_OFFLINE:
        reason = f"the model {reference!r} is not on this machine, and HF_HUB_OFFLINE is set"
        raise ModelError(f"{reason}: {_advice(reference, hub.HF_HUB_CACHE)}")
    log.info("downloading the model %s", reference)
    try:
        # A download has no timeout of its own, so we ask with one first.
        huggingface_hub.HfApi(endpoint=hub.ENDPOINT).model_info(reference, timeout=_SECONDS)
        download = huggingface_hub.snapshot_download
        return Path(
            download(reference, revision=revision, allow_patterns=patterns, etag_timeout=_SECONDS, max_workers=4)
        )
    except Exception as error:  # many libraries: sockets, certificates, proxies, JSON
        status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
        if status in (401, 403, 404):
            copy = COPIES.get(reference)
            remedy = f"{copy} is a copy" if copy else "check the name, or log in with `hf auth login`"
            reason = f"{hub.ENDPOINT} has no model {reference!r} that you may read (HTTP {status})"
            raise ModelError(f"{reason}: {remedy}; {_meanwhile(reference)}") from error
        reason = f"the model {reference!r} is not on this machine and cannot be downloaded from {hub.ENDPOINT}"
        raise ModelError(f"{reason} ({first_line(error)}): {_advice(reference, hub.HF_HUB_CACHE)}") from error


def _advice(reference: str, cache: str) -> str:
    """Returns what to do about a hub model that cannot be downloaded."""
    source = COPIES.get(reference, reference)
    folder, known = source.partition("/")[2], HUB.get(source)
    command, size, name = f"hf download {source} --local-dir {folder}", "", "name its path"
    if known:
        if known.revision not in (None, "main"):
            command += f" --revision {known.revision}"
        if known.revision is None:
            name = f"run `tamis convert {folder} OUT` and name OUT"
        size = f" (about {known.size_mb:,} MB)" if known.size_mb else ""
    return (
        f"where there is a network, run `{command}`{size}, copy the folder {folder} here and {name} as the model; or "
        f"fill this machine's cache at {cache}; {_meanwhile(reference)}"
    )


def _meanwhile(reference: str) -> str:
    """Returns which built-in model could serve instead."""
    name = stand_in(reference)
    if name:
        model = BUILT_IN[name]
        first = "" if model.find() else f", after `{model.remedy}`"
        return f"to try things out, use the built-in {name}{first} ({model.about})"
    return "`tamis list models` shows the built-in models, which need no download"
