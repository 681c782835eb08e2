"""Turns checkpoints in other layouts into folders of safetensors that transformers, and with it every signal, opens.

Three layouts: open_clip's, BLIP's own .pth files, pickled weights of transformers. The folder appears when complete.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tamis.errors import ModelError, require
from tamis.models.convert.layouts import Activation, Conversion, Tensors, from_blip, from_open_clip, layout_of
from tamis.models.convert.tokenizers import blip_tokenizer, clip_tokenizer
from tamis.models.folder import PATTERNS, PICKLES, complete, object_in
from tamis.models.hub import is_hub_id, with_pickles
from tamis.models.loading import is_pooler, load_whole, one_sentence, quiet
from tamis.storage import disk_errors
from tamis.store.targets import check_new_folder, new_folder

#: Names under which a training's checkpoint keeps the weights.
_STATES = ("state_dict", "model", "model_state_dict")

#: Settings that only one layout has, by its name.
_SETTINGS = {"BLIP": ("head_width", "tokenizer"), "open_clip": ("config", "tokenizer", "activation", "head_width")}


@dataclass(frozen=True)
class Converted:
    """What was made: the layout it came from ("BLIP", "open_clip", "transformers"), its size, notes for the user."""

    kind: str
    parameters: int
    notes: tuple[str, ...] = ()


def convert(
    source: str,
    out: Path,
    *,
    config: Path | None = None,
    tokenizer: str | None = None,
    activation: Activation | None = None,
    head_width: int | None = None,
) -> Converted:
    """Writes a checkpoint (a file, a folder or a Hugging Face id) as a new folder of transformers.

    The settings are those of `tamis convert`. Nothing stays in the folder after an error.
    """
    require("torch", "transformers", "safetensors", extra="clip")
    check_new_folder(out)
    files = _files_of(source)
    folder, tensors = files[0].parent, Tensors()
    kind = "transformers"
    if not files[0].name.startswith("pytorch_model") or not (folder / "config.json").is_file():
        tensors = _tensors_in(files[0])
        kind = layout_of(tensors, files[0].name)
    settings = {"config": config, "tokenizer": tokenizer, "activation": activation, "head_width": head_width}
    for name, value in settings.items():
        if value is not None and name not in _SETTINGS.get(kind, ()):
            option = f"--{name.replace('_', '-')}"
            raise ModelError(f"{source} has {kind}'s layout, in which {option} would change nothing: leave it out")
    with new_folder(out) as temporary, disk_errors():
        if kind == "transformers":
            made = _repack(files, temporary, source)
        else:
            file = config or folder / "open_clip_config.json"
            facts = object_in(file) if config or file.is_file() else {}
            try:
                if kind == "BLIP":
                    words = blip_tokenizer(tokenizer)
                    conversion = from_blip(tensors, words, head_width)
                else:
                    text = facts.get("model_cfg", facts).get("text_cfg") or {}
                    own = bool(text.get("hf_tokenizer_name") or text.get("tokenizer_kwargs"))
                    words = clip_tokenizer(tokenizer, folder, own=own)
                    conversion = from_open_clip(tensors, words, facts, activation, head_width)
                _save(conversion, words, temporary)
            except (AttributeError, ModelError, TypeError, ValueError) as error:
                raise ModelError(f"{files[0].name} cannot be converted: {error}") from error
            made = Converted(kind, sum(one.numel() for one in conversion.tensors.values()), conversion.notes)
        _write_card(temporary, source, files, made)
    return made


def _files_of(source: str) -> list[Path]:
    """Returns the files of a checkpoint's weights; several only for pickles of transformers."""
    path = Path(source).expanduser()
    if path.is_file():
        return [path]
    if not path.is_dir() and (not is_hub_id(source) or path.suffix in PICKLES):
        raise ModelError(f"there is no checkpoint {source}: name a file, a folder, or a Hugging Face id (owner/name)")
    folder = path if path.is_dir() else with_pickles(source)
    if complete(folder):
        raise ModelError(f"{source} holds safetensors and a config.json already: name it as the model, as it is")
    pickles = sorted(folder.glob("pytorch_model*.bin")) + sorted(folder.glob("*/pytorch_model*.bin"))
    if (folder / "config.json").is_file() and pickles:
        return pickles
    files = sorted(file for file in folder.iterdir() if file.suffix in (*PICKLES, ".safetensors"))
    named = [file for file in files if file.name.startswith(("open_clip_model.", "open_clip_pytorch_model."))]
    files = named[-1:] or files  # of these the safetensors
    if len(files) != 1:
        some = ", ".join(file.name for file in files[:5]) or "none"
        raise ModelError(f"{source} should hold one file of weights; there are {len(files)} ({some}): name the file")
    return files


def _tensors_in(path: Path) -> Tensors:
    """Returns the tensors of a checkpoint by name, without wrappers' prefixes. Opens nothing else of a pickle."""
    import torch
    from safetensors.torch import load_file

    size, zipped = path.stat().st_size, zipfile.is_zipfile(path)
    try:
        with one_sentence("the checkpoint", path):
            if path.suffix == ".safetensors":
                found: Any = load_file(path)
            else:
                unpacked = sum(one.file_size for one in zipfile.ZipFile(path).infolist()) if zipped else 0
                _check_growth(path, size, unpacked)
                found = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped or None)
    except ModelError as error:
        if name := re.search(r"GLOBAL ([\w.]+)", str(error.__cause__)):
            raise ModelError(f"{path} holds {name[1]}, which could run code: refused") from error
        raise
    if isinstance(found, dict):
        found = next((found[name] for name in _STATES if isinstance(found.get(name), dict)), found)
    items = found.items() if isinstance(found, dict) else ()
    tensors = {name: one for name, one in items if isinstance(name, str) and isinstance(one, torch.Tensor)}
    if not tensors:
        raise ModelError(f"{path} holds no state dict, but a {type(found).__name__} without tensors by name")
    # T5 names its embeddings four times.
    _check_growth(path, 4 * size, sum(one.numel() * one.element_size() for one in tensors.values()))
    return Tensors({re.sub(r"^(module\.|_orig_mod\.)+", "", name): one for name, one in tensors.items()})


def _check_growth(path: Path, most: int, size: int) -> None:
    if size > most:
        raise ModelError(f"{path} has {path.stat().st_size:,} bytes and would become {size:,}: no plain checkpoint")


def _save(conversion: Conversion, tokenizer: Any, folder: Path) -> None:
    """Writes a model, its tokenizer and its preprocessing, if its class has exactly these weights."""
    import torch

    with torch.device("meta"):
        model = conversion.cls(conversion.config)
    kinds = {one.dtype for one in conversion.tensors.values() if one.is_floating_point()}
    tensors = {name: one.float() if len(kinds) > 1 else one for name, one in conversion.tensors.items()}
    try:
        report = model.load_state_dict(tensors, strict=False, assign=True)
    except RuntimeError as error:  # shapes
        raise ModelError(" ".join(str(error).split())) from error
    model.tie_weights()
    missing = [name for name, one in model.named_parameters() if one.is_meta]
    for what, names in (("lacks the weight", missing), ("has the foreign weight", report.unexpected_keys)):
        if names:
            raise ModelError(f"as {conversion.cls.__name__} it {what} {', '.join(names[:3])}")
    tokenizer.model_max_length = conversion.length
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    text = json.dumps(conversion.preprocessing, indent=2) + "\n"
    (folder / "preprocessor_config.json").write_text(text, encoding="utf-8")


def _repack(pickles: list[Path], folder: Path, source: str) -> Converted:
    """Replaces the pickles of a folder of transformers by safetensors of the same tensors; the rest is copied."""
    import huggingface_hub
    import transformers

    home = pickles[0].parent
    for file in {file for pattern in PATTERNS for file in home.rglob(pattern)}:
        if file.is_file() and not file.name.endswith((".safetensors", ".index.json")):
            (folder / file.relative_to(home)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / file.relative_to(home))
    for part in dict.fromkeys(file.parent for file in pickles):
        tensors: dict[str, Any] = {}
        for file in (file for file in pickles if file.parent == part):
            tensors.update(_tensors_in(file))
        (folder / part.relative_to(home)).mkdir(parents=True, exist_ok=True)
        huggingface_hub.save_torch_state_dict(tensors, folder / part.relative_to(home))
    named = object_in(home / "config.json").get("architectures") or ["AutoModel"]
    cls = getattr(transformers, str(named[0]), None)
    if not isinstance(cls, type):
        raise ModelError(f"{source} is a {named[0]}, which transformers {transformers.__version__} does not know")
    model = load_whole(cls, folder, source, expected=f"a {cls.__name__}", unneeded=is_pooler)
    return Converted("transformers", sum(one.numel() for one in model.parameters()))


def _write_card(folder: Path, source: str, files: list[Path], made: Converted) -> None:
    """Writes where the model came from; a README is no part of a model's hash."""
    lines = [f"# {Path(source).name}", "", f"Made by `tamis convert` from a checkpoint in {made.kind}'s layout.", ""]
    for file in files:
        with file.open("rb") as stream:
            lines.append(f"- {file.name}, SHA-256 {hashlib.file_digest(stream, 'sha256').hexdigest()}")
    lines += [f"- {note}" for note in made.notes]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
