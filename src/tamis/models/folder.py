"""The files of a model on this machine: which are loaded, whether they are whole, and the hash of what they hold.

A model folder may come from anybody. Nothing in it makes us open a file outside of it, a pickle, or Python code: what
names such a thing is refused here, before a library looks at it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import xxhash

from tamis.errors import ModelError, brief
from tamis.fingerprint import file_digest
from tamis.models.safetensors_file import shapes_in

#: What tokenizers call their vocabularies, beside *.json, *.txt and *.model.
_VOCABULARIES = ("tokenizer.model.*", "bpe.codes", "*.tokenizer", "*.tiktoken", "*.spm")

#: What of a hub repository is used: never pickles, never code. Chat templates are not: nobody here applies one, so that
#: they change no result.
PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model", *_VOCABULARIES)

#: Endings of pickled weights: they can run code when opened, so they are converted once, and never loaded.
PICKLES = (".bin", ".pt", ".pth", ".ckpt")

#: What a training of ours keeps beside its model, in a folder of this name: how it went, not what the model is.
TRAINING = "training"

#: What transformers and diffusers call a part's weights.
_WEIGHTS = ("model.safetensors", "diffusion_pytorch_model.safetensors")

#: How the index of weights in several files ends.
_INDEX = ".safetensors.index.json"

#: Files of which libraries expect an object of JSON; tokenizer.json and vocabularies are looked at when loaded.
_OBJECTS = (
    *("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "model_index.json"),
    *("scheduler_config.json", "sentence_bert_config.json"),
)

#: A configuration is a few thousand bytes, the index of the largest model a few million.
_MOST_JSON_BYTES = 64 << 20

#: One process' share of a distributed checkpoint, which transformers opens before anything else.
_SHARE = re.compile(r"shard-\d+-model-\d+-of-\d+\.safetensors")


def object_in(path: Path) -> dict[str, Any]:
    """Returns what a JSON file of a model holds.

    Raises:
        ModelError: it cannot be read, or holds no JSON object; with its path, and nothing of what it holds.
    """
    found = _json_in(path)
    if not isinstance(found, dict):
        raise ModelError(f"{path} is damaged: it holds a {_KINDS[type(found)]} where a JSON object belongs. {_AGAIN}")
    return found


def modules_in(folder: Path) -> list[tuple[str, Path]]:
    """Returns class and folder of each module of a sentence-transformers folder, in order.

    Raises:
        ModelError: its modules.json is damaged, or names a folder outside of it.
    """
    path = folder / "modules.json"
    found = _json_in(path)
    try:
        return [(str(module["type"]), _within(folder, module["path"], path)) for module in found]
    except (KeyError, TypeError) as error:
        raise ModelError(f"{path} is damaged: it lists no modules, each with type and path. {_AGAIN}") from error


def components_in(folder: Path) -> dict[str, tuple[str, str, Path]]:
    """Returns library, class and folder of each component of a diffusers pipeline, by name; without those it lacks.

    Raises:
        ModelError: its model_index.json is damaged, names a folder outside of it, or Python code.
    """
    path = folder / "model_index.json"
    index = object_in(path)
    if not isinstance(index.get("_class_name"), str):
        raise ModelError(f"{path} names no class of diffusers as its _class_name: a folder's own code is never run")
    listed = {name: value for name, value in index.items() if isinstance(value, list) and value[:1] not in ([], [None])}
    found = {}
    for name, value in listed.items():
        if not (len(value) == 2 and all(isinstance(one, str) for one in value)):
            raise ModelError(f"{path} is damaged: a component is no pair of a library and a class. {_AGAIN}")
        found[name] = (value[0], value[1], _within(folder, name, path))
    return found


def complete(folder: Path) -> bool:
    """Tells whether a folder holds a configuration and every safetensors file that it speaks of.

    A `diffusers` pipeline also has a sub-folder for each part that its model_index.json names.
    """
    if not any((folder / name).is_file() for name in ("model_index.json", "config.json")):
        return False
    try:
        parts = _parts(folder) or [folder]
        if (folder / "config.json").is_file():
            object_in(folder / "config.json")
        weights = [file for part in parts for file in _weights_of(part)]
    except ModelError:  # half a file, or something else's
        return False
    if (folder / "model_index.json").is_file() and not all(part.is_dir() for part in parts):
        return False
    return bool(weights) or any(file.is_file() for file in folder.rglob("*.safetensors"))


def digest_of(path: Path, *, linked: bool = False) -> str:
    """Returns the xxh3-128 of a model's files: their paths in its folder, and their contents.

    Of weights exactly those that are loaded count. Of the small files beside them all do that a library may read: to
    leave one out that it does read would pass off other scores as these, to take in one that it does not costs a
    repetition.

    Args:
        path: a file or a folder.
        linked: whether weights may be links that lead out of the folder, as some installers make them.

    Raises:
        ModelError: it has no weights, only such as have to be converted first, or they are damaged or elsewhere.
    """
    if path.is_file():
        if path.suffix in PICKLES and _is_pickle(path):
            raise ModelError(_pickled(path, path.name))
        files = {path.name: path}
    else:
        files = loaded_files(path)
        if not linked:
            for file in files.values():
                _check_place(file, path)
    total = xxhash.xxh3_128()
    for name, file in sorted(files.items(), key=lambda item: Path(item[0])):
        total.update(name.encode() + b"\0")
        total.update(bytes.fromhex(file_digest(file)))
    if path.is_dir() and any(needs_lower_case(part) for part in _parts(path) or ()):
        total.update(b"texts in lower case")  # what was scored before they were is out of date
    return total.hexdigest()


def needs_lower_case(folder: Path) -> bool:
    """Whether texts must be lower-cased for the model in a folder, whose tokenizer does not do it.

    SigLIP 2 at fixed resolution is a `siglip` with Gemma's tokenizer, which keeps capitals; it was trained without
    them, and `Siglip2Tokenizer` of transformers lower-cases for the other kind of SigLIP 2 only. sentence-transformers
    has a setting for it.
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
    """Returns the files of a model's folder that count, by their paths in it, after a look at each.

    Raises:
        ModelError: it has no weights, only such as have to be converted first, or a file is damaged or not allowed.
    """
    parts = _parts(folder)
    if parts is None:  # no layout that we know: whatever lies in it
        files = [file for file in folder.rglob("*") if _counts(file) and file.relative_to(folder).parts[0] != TRAINING]
    else:
        files = [file for part in parts for file in _small_files(part)]
        files += [file for part in parts for file in _weights_of(part)]
    if not any(file.suffix == ".safetensors" for file in files):
        raise _no_weights(folder)
    if (folder / "open_clip_config.json").is_file() and not (folder / "config.json").is_file():
        raise ModelError(
            f"{folder} is in open_clip's layout, which is not loaded as it is: run `tamis convert {folder} OUT` and "
            "name the folder OUT as the model"
        )
    for part in parts or ():
        check_part(part)
    for file in files:
        if file.suffix == ".safetensors":
            with _readable(file):
                shapes_in(file)
    return {file.relative_to(folder).as_posix(): file for file in files}


def check_part(part: Path) -> None:
    """Looks at what one folder of a model says of itself, before a library acts on it.

    Raises:
        ModelError: a file is damaged, or asks for files or code from elsewhere.
    """
    for name in _OBJECTS:
        if (part / name).is_file():
            _check_object(part / name)
    if (part / "adapter_config.json").is_file():
        raise ModelError(
            f"{part} holds an adapter (adapter_config.json), which is opened together with another model: merge the "
            "two (merge_and_unload of peft), and name the folder that this saves"
        )
    share = next((name for name in _names(part) if _SHARE.fullmatch(name)), None)
    if share:
        raise ModelError(f"{part} is a distributed checkpoint ({share}): save the model whole, with save_pretrained")


def weights_of(part: Path) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each tensor that is loaded from one folder of a model.

    Raises:
        ModelError: a file is damaged, or lies elsewhere.
    """
    return {name: shape for file in _weights_of(part) for name, shape in shapes_in(file).items()}


def _parts(folder: Path) -> list[Path] | None:
    """Returns the folders that a model is loaded from, itself the first; None where its layout is unknown."""
    named: Sequence[Path]
    if (folder / "model_index.json").is_file():
        named = [place for _, _, place in components_in(folder).values()]
    elif (folder / "modules.json").is_file():
        named = [place for _, place in modules_in(folder)]
    elif (folder / "config.json").is_file():
        named = []
    else:
        return None
    return list(dict.fromkeys([folder, *named]))


def _names(part: Path) -> list[str]:
    return sorted(os.listdir(part)) if part.is_dir() else []


def _counts(file: Path) -> bool:
    return file.is_file() and any(file.match(pattern) for pattern in PATTERNS)


def _small_files(part: Path) -> Iterator[Path]:
    for name in _names(part):
        if not name.endswith(".safetensors") and _counts(part / name):
            yield part / name


def _weights_of(part: Path) -> list[Path]:
    """Returns the weights of one folder: the one file, and those of its indexes.

    Raises:
        ModelError: an index names something else than a safetensors file of this folder that is there.
    """
    names = _names(part)
    found = dict.fromkeys(part / name for name in _WEIGHTS if name in names)
    for name in names:
        if name.endswith(_INDEX) and name.removesuffix(".index.json") in _WEIGHTS:
            found |= dict.fromkeys(_listed(part / name))
    return list(found)


def _listed(index: Path) -> list[Path]:
    listed = object_in(index).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise ModelError(f"{index} is damaged: it holds no weight_map of names to files. {_AGAIN}")
    found = []
    for name in sorted(set(listed.values())):
        if name != os.path.basename(name) or not name.endswith(".safetensors"):
            raise ModelError(
                f"{index} names {brief(name)} as weights: only safetensors files beside it are opened. "
                "`tamis convert` makes them of pickles"
            )
        if not (index.parent / name).is_file():
            raise ModelError(f"{index} names {brief(name)}, which is not there. {_AGAIN}")
        found.append(index.parent / name)
    return found


def _within(folder: Path, name: Any, said_by: Path) -> Path:
    """Returns a sub-folder that a file names.

    Raises:
        ModelError: it is not below the folder.
    """
    if not isinstance(name, str) or os.path.isabs(name) or ".." in Path(name).parts or "\0" in name:
        raise ModelError(f"{said_by} names the folder {brief(name)}, which does not lie in the model's own")
    return folder / name


def _check_place(file: Path, folder: Path) -> None:
    """Checks that weights lie in the model's folder.

    Raises:
        ModelError: they are a link to another place than the hub cache's own store.
    """
    if file.suffix != ".safetensors":
        return
    real, home = file.resolve(), folder.resolve()
    allowed = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
    if not any(real.is_relative_to(place.resolve()) for place in allowed):
        raise ModelError(f"{file} is a link that leads out of the model's folder: put the file itself there")


def _check_object(path: Path) -> None:
    facts = path.stat()
    _checked(path, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=256)
def _checked(path: Path, size: int, changed: int) -> None:
    found = object_in(path)
    if path.name == "config.json":
        for key, value in _settings(found):
            if key in ("attn_implementation", "_attn_implementation", "experts_implementation") and "/" in str(value):
                raise ModelError(f"{path} asks for {brief(value)}, code of the hub, as its {key}: take that out of it")
            if key == "transformers_weights" and value is not None:
                raise ModelError(f"{path} names its weights ({key}): call them model.safetensors, and take that out")


def _settings(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields each key and value of nested objects."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key, inner
            yield from _settings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _settings(inner)


_KINDS = {list: "list", str: "text", int: "number", float: "number", bool: "yes or no", type(None): "null"}
_AGAIN = "Copy or fetch the model again"


def _json_in(path: Path) -> Any:
    with _readable(path):
        if path.stat().st_size > _MOST_JSON_BYTES:
            raise ModelError(f"{path} has {path.stat().st_size:,} bytes, more than a file of its name ever needs")
        raw = path.read_bytes()
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        where = f" ({error})" if isinstance(error, json.JSONDecodeError) else ""
        raise ModelError(f"{path} is damaged: it is no JSON{where}. {_AGAIN}") from error


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error


def _is_pickle(path: Path) -> bool:
    """Tells a pickle, or torch's archive of one, from other files of its ending: fastText's are .bin as well."""
    with path.open("rb") as file:
        return file.read(2) in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def _no_weights(folder: Path) -> ModelError:
    pickles = [file.name for file in sorted(folder.rglob("*")) if file.suffix in PICKLES]
    if pickles:
        return ModelError(_pickled(folder, pickles[0]))
    return ModelError(f"{folder} holds no weights; save the model with save_pretrained (safetensors)")


def _pickled(path: Path, name: str) -> str:
    return (
        f"{path} holds only pickled weights ({name}), which can run code when opened: run `tamis convert {path} OUT`, "
        "which reads nothing but tensors from them, and name the folder OUT as the model"
    )
