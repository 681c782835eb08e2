"""A model's folder: which of its files count, what they say, and the hash of what they hold."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from tamis.errors import ModelError, brief, first_line, require
from tamis.ids import file_digest

#: Files of a hub repository that are used: never pickles, never code. Chat templates change no result here.
PATTERNS = (
    *("*.json", "*.safetensors", "*.txt", "*.model"),
    *("tokenizer.model.*", "bpe.codes", "*.tokenizer", "*.tiktoken", "*.spm"),  # vocabularies
)

#: Suffixes of pickled weights, which `tamis convert` turns into safetensors.
PICKLES = (".bin", ".pt", ".pth", ".ckpt")

#: The folder in which `tamis train` keeps its records next to the model; no part of the model.
TRAINING = "training"

#: Names that transformers and diffusers give the weights.
_WEIGHTS = ("model.safetensors", "diffusion_pytorch_model.safetensors")

#: Files that must hold a JSON object: libraries ignore some damaged ones silently.
_OBJECTS = (
    *("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *("tokenizer_config.json", "scheduler_config.json", "sentence_bert_config.json"),
)


def object_in(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file of a model; ModelError if it holds none."""
    value = _json_in(path)
    if not isinstance(value, dict):
        raise ModelError(f"{path} is damaged: it holds no JSON object. Copy or download the model again")
    return value


def _json_in(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ModelError:
    return ModelError(f"{path} is damaged ({first_line(error)}): copy or download the model again")


def modules_in(folder: Path) -> list[tuple[str, Path]]:
    """Returns class and folder of each module of a sentence-transformers folder, in order."""
    path = folder / "modules.json"
    try:
        return [(str(module["type"]), _inside(folder, module["path"])) for module in _json_in(path)]
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} is damaged: it lists no modules with a type and a path in this folder") from error


def components_in(folder: Path) -> dict[str, tuple[str, str, Path]]:
    """Returns library, class and folder of each component of a diffusers pipeline, by name."""
    path = folder / "model_index.json"
    listed = {name: value for name, value in object_in(path).items() if isinstance(value, list) and value}
    try:
        return {
            name: (str(library), str(kind), _inside(folder, name))
            for name, (library, kind) in listed.items()
            if library is not None  # left out when the pipeline was saved
        }
    except ValueError as error:
        raise ModelError(f"{path} is damaged: its components are no pairs of library and class") from error


def _inside(folder: Path, name: str) -> Path:
    if os.path.isabs(name) or ".." in Path(name).parts:
        raise ValueError(name)
    return folder / name


def complete(folder: Path) -> bool:
    """Whether a folder holds a configuration and every safetensors file that it names, none of them damaged."""
    if not any((folder / name).is_file() for name in ("model_index.json", "config.json")):
        return False
    try:
        loaded_files(folder)
        return not (folder / "model_index.json").is_file() or all(part.is_dir() for part in _parts(folder) or ())
    except ModelError:
        return False


def digest_of(path: Path) -> str:
    """Returns the xxh3-128 of a model's files: their paths in its folder, and their contents.

    Counts exactly the weights that are loaded, and every small file next to them that a library may read.
    ModelError if there are no weights, or pickled ones only, or a file is damaged.
    """
    if path.is_file() and path.suffix in PICKLES and _is_pickle(path):
        raise _no_weights(path, [path.name])
    files = {path.name: path} if path.is_file() else loaded_files(path)
    total = xxhash.xxh3_128()
    for name, file in sorted(files.items(), key=lambda item: Path(item[0])):
        total.update(name.encode() + b"\0")
        total.update(bytes.fromhex(file_digest(file)))
    if path.is_dir() and any(needs_lower_case(part) for part in _parts(path) or ()):
        total.update(b"texts in lower case")  # scores made before that are out of date
    return total.hexdigest()


def needs_lower_case(folder: Path) -> bool:
    """Whether texts must be lower-cased for the model in a folder, whose tokenizer does not do it.

    SigLIP 2 at fixed resolution is a `siglip` with Gemma's tokenizer, which keeps capitals. It was trained without
    them, and transformers lower-cases for the other kind of SigLIP 2 only. sentence-transformers has a setting for it.
    """
    config, tokenizer, sentences = (
        object_in(folder / name) if (folder / name).is_file() else {}
        for name in ("config.json", "tokenizer_config.json", "sentence_bert_config.json")
    )
    if config.get("model_type") == "siglip":
        return tokenizer.get("tokenizer_class") in ("GemmaTokenizer", "GemmaTokenizerFast")
    if sentences.get("do_lower_case") is not True or not (folder / "tokenizer.json").is_file():
        return False
    normalizer = json.dumps(object_in(folder / "tokenizer.json").get("normalizer"))
    return '"Lowercase"' not in normalizer and '"lowercase": true' not in normalizer


def loaded_files(folder: Path) -> dict[str, Path]:
    """Returns the files of a model's folder that count, by their paths in it, after a check of each."""
    parts = _parts(folder)
    if parts is None:  # an unknown layout: all files count
        files = [file for file in folder.rglob("*") if _counts(file) and file.relative_to(folder).parts[0] != TRAINING]
    else:
        small = [file for part in parts for file in part.glob("*") if file.suffix != ".safetensors" and _counts(file)]
        files = [*small, *(file for part in parts for file in _weights_of(part))]
    if not any(file.suffix == ".safetensors" for file in files):
        raise _no_weights(folder, [file.name for file in sorted(folder.rglob("*")) if file.suffix in PICKLES])
    if (folder / "open_clip_config.json").is_file() and not (folder / "config.json").is_file():
        raise ModelError(
            f"{folder} has open_clip's layout: run `tamis convert {folder} OUT` and name the folder OUT as the model"
        )
    for file in files:
        if file.name == "adapter_config.json":  # transformers would load the model that it names
            raise ModelError(f"{file.parent} holds an adapter: merge it into its model (merge_and_unload of peft)")
        if file.suffix == ".safetensors":
            shapes_in(file)
        elif file.name in _OBJECTS:
            object_in(file)
    return {file.relative_to(folder).as_posix(): file for file in files}


def _parts(folder: Path) -> list[Path] | None:
    """Returns the folders that a model is loaded from, itself first; None where its layout is unknown."""
    if (folder / "model_index.json").is_file():
        named = [place for _, _, place in components_in(folder).values()]
    elif (folder / "modules.json").is_file():
        named = [place for _, place in modules_in(folder)]
    elif (folder / "config.json").is_file():
        named = []
    else:
        return None
    return list(dict.fromkeys([folder, *named]))


def _counts(file: Path) -> bool:
    return file.is_file() and any(file.match(pattern) for pattern in PATTERNS)


def _weights_of(part: Path) -> list[Path]:
    """Returns the weights of one folder: the one file, and those that an index names."""
    files = [part / name for name in _WEIGHTS if (part / name).is_file()]
    for index in (part / f"{name}.index.json" for name in _WEIGHTS):
        if not index.is_file():
            continue
        listed = object_in(index).get("weight_map")
        for name in sorted(set(map(str, listed.values() if isinstance(listed, dict) else [None]))):
            if name != os.path.basename(name) or not name.endswith(".safetensors") or not (part / name).is_file():
                raise ModelError(f"{index} names {brief(name)}, which is not a safetensors file next to it")
            files.append(part / name)
    return list(dict.fromkeys(files))


def _is_pickle(path: Path) -> bool:
    """Whether a file is a pickle or torch's archive of one: fastText's files are called .bin as well."""
    with path.open("rb") as file:
        return file.read(2) in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def _no_weights(path: Path, pickles: list[str]) -> ModelError:
    if not pickles:
        return ModelError(f"{path} holds no weights; save the model with save_pretrained (safetensors)")
    return ModelError(
        f"{path} holds only pickled weights ({pickles[0]}), which can run code when opened: run "
        f"`tamis convert {path} OUT`, which reads only tensors from them, and name the folder OUT as the model"
    )


def shapes_in(path: Path) -> Mapping[str, tuple[int, ...]]:
    """Returns the shape of each tensor of a safetensors file; the library checks its header against its length."""
    facts = path.stat()
    return _shapes(path, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=256)
def _shapes(path: Path, size: int, changed: int) -> Mapping[str, tuple[int, ...]]:
    require("safetensors", extra="clip")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, OverflowError) as error:
        raise _damaged(path, error) from error


def arrays_in(path: Path, dimensions: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """Returns the tensors of a safetensors file that have these names, and must have these numbers of dimensions."""
    shapes = shapes_in(path)
    for name, count in dimensions.items():
        if len(shapes.get(name, ())) != count:
            raise ModelError(f"{path} holds no tensor {name} of {count} dimensions: it belongs to another model")
    from safetensors.numpy import load_file

    tensors = load_file(path)
    return {name: np.asarray(tensors[name]) for name in dimensions}
