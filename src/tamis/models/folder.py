"""The files of a model on this machine: which of them count, whether all are there, and the hash of what they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import xxhash

from tamis.errors import ModelError
from tamis.fingerprint import file_digest

#: What of a hub repository is used: never pickles, never code.
PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model")

#: Endings of pickled weights: they can run code when opened, so they are converted once, and never loaded.
PICKLES = (".bin", ".pt", ".pth", ".ckpt")

#: What a training of ours keeps beside its model, in a folder of this name: how it went, not what the model is.
TRAINING = "training"


def complete(folder: Path) -> bool:
    """Tells whether a folder holds a configuration and every safetensors file that it speaks of.

    A `diffusers` pipeline also has a sub-folder for each part that its model_index.json names.
    """
    try:
        parts = _json(folder / "model_index.json") if (folder / "model_index.json").is_file() else {}
        if not parts and not (folder / "config.json").is_file():
            return False
        named = [name for name, value in parts.items() if isinstance(value, list) and value and value[0]]
        shards = [
            index.parent / name
            for index in folder.rglob("*.safetensors.index.json")
            for name in _json(index)["weight_map"].values()
        ]
    except (ValueError, KeyError, AttributeError):  # half a file, or something else's
        return False
    return (
        all((folder / name).is_dir() for name in named)
        and all(shard.is_file() for shard in set(shards))
        and any(file.is_file() for file in folder.rglob("*.safetensors"))
    )


def digest_of(path: Path) -> str:
    """Returns the xxh3-128 of a model's files: their paths in its folder, and their contents.

    Raises:
        ModelError: it has no weights, or only such as have to be converted first.
    """
    if path.is_file():
        if path.suffix in PICKLES and _is_pickle(path):
            raise ModelError(_pickled(path, path.name))
        files = {path.name: path}
    else:
        files = {
            file.relative_to(path).as_posix(): file
            for file in sorted(path.rglob("*"))
            if file.is_file()
            and any(file.match(pattern) for pattern in PATTERNS)
            and file.relative_to(path).parts[0] != TRAINING
        }
        if not any(file.suffix == ".safetensors" for file in files.values()):
            pickles = [file.name for file in sorted(path.rglob("*")) if file.suffix in PICKLES]
            if pickles:
                raise ModelError(_pickled(path, pickles[0]))
            raise ModelError(f"{path} holds no weights; save the model with save_pretrained (safetensors)")
        if (path / "open_clip_config.json").is_file() and not (path / "config.json").is_file():
            raise ModelError(
                f"{path} is in open_clip's layout, which is not loaded as it is: run `tamis convert {path} OUT` and "
                "name the folder OUT as the model"
            )
    total = xxhash.xxh3_128()
    for name, file in files.items():
        total.update(name.encode() + b"\0")
        total.update(bytes.fromhex(file_digest(file)))
    return total.hexdigest()


def _is_pickle(path: Path) -> bool:
    """Tells a pickle, or torch's archive of one, from other files of its ending: fastText's are .bin as well."""
    with path.open("rb") as file:
        return file.read(2) in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def _pickled(path: Path, name: str) -> str:
    return (
        f"{path} holds only pickled weights ({name}), which can run code when opened: run `tamis convert {path} OUT`, "
        "which reads nothing but tensors from them, and name the folder OUT as the model"
    )


def _json(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object")
    return found
