"""Models of the Hugging Face hub: from this machine's cache, else downloaded; without a network, advice what to do."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from tamis.errors import ModelError, first_line, needs_extra
from tamis.models.folder import PATTERNS, PICKLES, complete
from tamis.models.registry import BUILT_IN, COPIES, HUB, job_of

log = logging.getLogger(__name__)

#: A hub that does not answer by then is not there.
_SECONDS = 5.0


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
            folder = Path(
                huggingface_hub.snapshot_download(
                    reference, revision=revision, local_files_only=True, allow_patterns=list(patterns)
                )
            )
        except HFValidationError as error:
            raise ModelError(f"{reference!r} is not a Hugging Face id: {error}") from error
        except LocalEntryNotFoundError:
            continue
        weights = any(file.suffix in (*PICKLES, ".safetensors") for file in folder.rglob("*"))
        if complete(folder) or ("*" in patterns and weights):
            return folder
    return None


def from_hub(reference: str) -> Path:
    """Returns the folder of a hub model, from this machine's cache, else downloaded; ModelError says what to do."""
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
    advice = _advice(reference, hub.HF_HUB_CACHE)
    if hub.HF_HUB_OFFLINE:
        raise ModelError(f"the model {reference!r} is not on this machine, and HF_HUB_OFFLINE is set: {advice}")
    log.info("downloading the model %s", reference)
    try:
        # A download has no timeout of its own, so we ask with one first.
        huggingface_hub.HfApi(endpoint=hub.ENDPOINT).model_info(reference, timeout=_SECONDS)
        return Path(
            huggingface_hub.snapshot_download(
                reference, revision=revision, allow_patterns=patterns, etag_timeout=_SECONDS, max_workers=4
            )
        )
    except Exception as error:  # many libraries: sockets, certificates, proxies, JSON
        status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
        if status in (401, 403, 404):
            what = "check the name, or log in with `hf auth login`"
            if reference in COPIES:
                what = f"its owner withdrew it, {COPIES[reference]} is a copy"
            raise ModelError(
                f"{hub.ENDPOINT} has no model {reference!r} that you may read (HTTP {status}): {what}; "
                f"{_meanwhile(reference)}"
            ) from error
        raise ModelError(
            f"the model {reference!r} is not on this machine and cannot be downloaded from {hub.ENDPOINT} "
            f"({first_line(error)}): {advice}"
        ) from error


def _advice(reference: str, cache: str) -> str:
    """Returns what to do about a hub model that cannot be downloaded."""
    source = COPIES.get(reference, reference)
    known = HUB.get(source)
    folder = source.partition("/")[2]
    command = f"hf download {source} --local-dir {folder}"
    if known and known.revision not in (None, "main"):
        command += f" --revision {known.revision}"
    size = f" (about {known.size_mb:,} MB)" if known and known.size_mb else ""
    pickled = known is not None and known.revision is None
    name = f"run `tamis convert {folder} OUT` and name OUT" if pickled else "name its path"
    return (
        f"where there is a network, run `{command}`{size}, copy the folder {folder} here and {name} as "
        f"the model; or fill this machine's cache at {cache}; {_meanwhile(reference)}"
    )


def _meanwhile(reference: str) -> str:
    """Returns which built-in model could serve instead."""
    job = job_of(reference)
    for name, model in BUILT_IN.items():
        if model.job == job:
            first = "" if model.find() else f", after `{model.remedy}`"
            return f"meanwhile the built-in {name} does the same job{first} ({model.about})"
    return "`tamis list models` shows the built-in models, which need no download"
