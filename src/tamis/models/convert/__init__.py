"""Checkpoints in other layouts become folders that transformers, and with it every scorer, can open.

BLIP's own .pth files, open_clip's checkpoints, and pickles of transformers' own layout. A pickle is opened once, in a
process that ends with it (`unpickle`); all else reads safetensors. The folder is there whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tamis.errors import ModelError, require
from tamis.models.convert.blip import convert_blip, is_blip
from tamis.models.convert.layout import Conversion, Weights, opened
from tamis.models.convert.open_clip import Activation, convert_open_clip, is_open_clip, settings_of
from tamis.models.convert.source import Checkpoint, find, pickles_of
from tamis.models.convert.tokenizer import blip_tokenizer, clip_tokenizer
from tamis.models.convert.unpickle import to_safetensors
from tamis.models.folder import PATTERNS, object_in
from tamis.models.loading import is_pooler, load_whole
from tamis.models.quiet import no_progress_bar
from tamis.storage import disk_errors
from tamis.store.targets import check_new_folder, new_folder

log = logging.getLogger(__name__)

#: Settings that only one layout has, by its name.
_ONLY = {"BLIP": ("head_width", "tokenizer"), "open_clip": ("config", "tokenizer", "activation", "head_width")}


@dataclass(frozen=True)
class Converted:
    """What was made.

    Attributes:
        kind: the layout that it came from: "BLIP", "open_clip" or "transformers".
        parameters: how many numbers the model has.
        told: what a person should know of it.
    """

    kind: str
    parameters: int
    told: tuple[str, ...]


def convert(
    source: str,
    out: Path,
    *,
    config: Path | None = None,
    tokenizer: str | None = None,
    activation: Activation | None = None,
    head_width: int | None = None,
) -> Converted:
    """Writes a checkpoint as a folder of transformers.

    Args:
        source: BLIP's .pth, open_clip's checkpoint (or its folder with open_clip_config.json), a folder of transformers
            with pickled weights, or the Hugging Face id of any of these.
        out: a new folder, or an empty one.
        config: open_clip's configuration, where it does not lie beside the weights.
        tokenizer: a folder, a model or CLIP's list of merges, where another than the layout's own is meant.
        activation: of an open_clip checkpoint without configuration.
        head_width: how wide the attention heads are, where nothing tells; 64 unless said otherwise.

    Raises:
        ModelError: it cannot be read, is of another architecture, or lacks what has to be known.
        RunError: the folder is not empty or cannot be written to.
        DiskFullError: no space is left. Nothing of the folder stays.
    """
    require("torch", "transformers", "safetensors", extra="clip")
    check_new_folder(out)
    found = find(source, config)
    given = {"config": config, "tokenizer": tokenizer, "activation": activation, "head_width": head_width}
    with new_folder(out) as temporary, disk_errors():
        if found.is_transformers:
            _refuse_unused("transformers", source, given)
            result = _same_names(found.folder, temporary, source)
        else:
            with _weights(found.weights, temporary) as weights:
                kind = _kind(weights)
                _refuse_unused(kind, source, given)
                own = settings_of(found.config, activation, head_width)
                if kind == "BLIP":
                    words = blip_tokenizer(tokenizer)
                    conversion = convert_blip(weights, words, head_width)
                else:
                    words = clip_tokenizer(tokenizer, found.folder, own=own.own_tokenizer)
                    conversion = convert_open_clip(weights, words, own)
                _save(conversion, words, temporary)
            result = Converted(kind, sum(one.numel() for one in conversion.tensors.values()), conversion.told)
        _card(temporary, source, found, result)
    return result


def _refuse_unused(kind: str, source: str, given: dict[str, Any]) -> None:
    """Checks that every setting that was given has an effect."""
    unused = [name for name, value in given.items() if value is not None and name not in _ONLY.get(kind, ())]
    if unused:
        names = " and ".join(f"--{name.replace('_', '-')}" for name in unused)
        raise ModelError(f"{source} has {kind}'s layout, in which {names} would change nothing: leave it out")


@contextmanager
def _weights(file: Path, temporary: Path) -> Iterator[Weights]:
    """Opens a checkpoint's weights; those of a pickle through a file that is gone afterwards."""
    if file.suffix == ".safetensors":
        with opened(file, file.name) as weights:
            yield weights
        return
    staged = temporary / "source.safetensors"
    to_safetensors(file, staged)
    try:
        with opened(staged, file.name) as weights:
            yield weights
    finally:
        staged.unlink(missing_ok=True)


def _kind(weights: Weights) -> str:
    if is_blip(weights):
        return "BLIP"
    if is_open_clip(weights):
        return "open_clip"
    some = ", ".join(sorted(weights.shapes)[:3])
    raise ModelError(
        f"{weights.file} has neither BLIP's nor open_clip's layout: its weights are called {some}, ... A file of "
        "transformers' own layout is converted with its folder, which holds the config.json"
    )


def _save(conversion: Conversion, tokenizer: Any, folder: Path) -> None:
    """Writes a model, its tokenizer and its preprocessing.

    Raises:
        ModelError: the weights are not those of the class: a fault of ours, or a release of transformers that names
            them otherwise.
    """
    import torch

    with torch.device("meta"):
        model = conversion.cls(conversion.config)
    kinds = {one.dtype for one in conversion.tensors.values() if one.is_floating_point()}
    tensors = {name: one.float() if len(kinds) > 1 else one for name, one in conversion.tensors.items()}
    try:
        report = model.load_state_dict(tensors, strict=False, assign=True)
    except RuntimeError as error:
        raise ModelError(f"the weights do not fit {conversion.cls.__name__}: {error}") from error
    model.tie_weights()
    bare = [name for name, one in model.named_parameters() if one.is_meta]
    if report.unexpected_keys or bare:
        raise ModelError(f"{conversion.cls.__name__} of this transformers has other weights: {bare or report}")
    tokenizer.model_max_length = conversion.length
    with no_progress_bar():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    text = json.dumps(conversion.preprocessing, indent=2) + "\n"
    (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")


def _same_names(source: Path, folder: Path, name: str) -> Converted:
    """Replaces the pickles of a folder of transformers by safetensors of the same tensors; the rest is copied.

    Raises:
        ModelError: a file is damaged, or the model that its configuration names has other weights.
    """
    import transformers

    for pattern in PATTERNS:
        for file in source.rglob(pattern):
            if file.is_file() and not file.name.endswith((".bin.index.json", ".safetensors", ".index.json")):
                _copy(file, folder / file.relative_to(source))
    for file in pickles_of(source):
        target = folder / file.relative_to(source).with_name(_safe_name(file.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        to_safetensors(file, target)
    for file in source.rglob("*.bin.index.json"):
        index = object_in(file)
        index.setdefault("metadata", {})  # transformers asks for it
        index["weight_map"] = {key: _safe_name(shard) for key, shard in index["weight_map"].items()}
        target = folder / file.relative_to(source).with_name(
            _safe_name(file.name.removesuffix(".index.json")) + ".index.json"
        )
        target.write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    named = object_in(source / "config.json").get("architectures") or []
    cls = getattr(transformers, str(named[0]), None) if named else transformers.AutoModel
    if not (isinstance(cls, type) and (cls is transformers.AutoModel or issubclass(cls, transformers.PreTrainedModel))):
        raise ModelError(f"{name} is a {named[0]}, which transformers {transformers.__version__} does not know")
    model = load_whole(cls, folder, name, expected=f"a {cls.__name__}", unneeded=is_pooler)
    return Converted("transformers", sum(one.numel() for one in model.parameters()), ())


def _safe_name(name: str) -> str:
    """Returns what transformers calls the safetensors of a pickle: pytorch_model-00001-of-2.bin, model-00001-of-2..."""
    stem = name.removesuffix(".bin")
    return (stem if stem.startswith("diffusion_") else stem.replace("pytorch_model", "model")) + ".safetensors"


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _card(folder: Path, source: str, found: Checkpoint, result: Converted) -> None:
    """Writes where the model came from; a README is no part of a model's hash."""
    files = pickles_of(found.folder) if found.is_transformers else [found.weights]
    lines = [f"# {Path(source).name}", "", f"Made by `tamis convert` from a checkpoint in {result.kind}'s layout.", ""]
    for file in files:
        with file.open("rb") as stream:
            lines.append(f"- {file.name}, SHA-256 {hashlib.file_digest(stream, 'sha256').hexdigest()}")
    lines += [f"- {told}" for told in result.told]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
