"""Converts checkpoints to folders of safetensors that transformers, and so every signal, can load.

It reads four layouts: open_clip, BLIP's own .pth files, pickled weights of transformers, and heads on embeddings.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import re
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tamis.core.errors import ModelError, TamisError, first_line, require
from tamis.core.files.storage import write_json
from tamis.core.files.targets import check_new_folder, new_folder
from tamis.models.heads import linear_layers
from tamis.models.layouts import Activation, Conversion, ResizeMode, Tensors, from_blip, from_open_clip, layout_of
from tamis.models.loading import RESNET, is_pooler, load_tokenizer_in, load_whole, one_sentence, quiet
from tamis.models.reference import PATTERNS, PICKLES, complete, hub_copy, is_hub_id, object_in, resolve, with_pickles

#: Keys under which training checkpoints keep the weights.
_STATES = ("state_dict", "model", "model_state_dict")

#: Layout -> the settings that it uses.
_SETTINGS = {
    "BLIP": ("head_width", "tokenizer"),
    "open_clip": ("config", "tokenizer", "activation", "resize_mode", "head_width"),
}

#: CLIP's list of merges as OpenAI published it. The packages `open_clip` and `clip` carry it.
_MERGES = "bpe_simple_vocab_16e6.txt.gz"

#: How many merges CLIP uses: its 49,408 tokens also include 256 bytes, 256 bytes at a word's end, and two marks.
_USED = 49_408 - 2 * 256 - 2

#: We take CLIP's tokenizer from this checkpoint if it is in the hub's cache.
_CLIP = "openai/clip-vit-base-patch32"


@dataclass(frozen=True)
class Converted:
    """The layout of the source ("BLIP", "open_clip", "transformers", "a head"), the number of parameters, and notes."""

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
    resize_mode: ResizeMode | None = None,
    head_width: int | None = None,
) -> Converted:
    """Writes a checkpoint (a file, a folder or a Hugging Face id) as a new folder that transformers can load.

    The settings are the options of `tamis convert`. After an error, no folder is left.
    """
    require("torch", "transformers", "safetensors", extra="clip")
    from safetensors.torch import save_file

    check_new_folder(out)
    files = _files_of(source)
    folder, kind, tensors = files[0].parent, "transformers", Tensors()
    if not files[0].name.startswith("pytorch_model") or not (folder / "config.json").is_file():
        tensors = _tensors_in(files[0])
        kind = layout_of(tensors, files[0].name)
    settings: dict[str, Any] = {"config": config, "tokenizer": tokenizer, "activation": activation}
    settings |= {"resize_mode": resize_mode, "head_width": head_width}
    for name, value in settings.items():
        if value is not None and name not in _SETTINGS.get(kind, ()):
            option = f"--{name.replace('_', '-')}"
            raise ModelError(f"{source} has {kind}'s layout, for which {option} has no effect: leave it out")
    with new_folder(out) as temporary:
        if kind == "transformers":
            made = _repack(files, temporary, source)
        elif kind == "a head":
            linear_layers({name: one.float().numpy() for name, one in tensors.items()}, files[0])  # checks them
            save_file({name: one.contiguous() for name, one in tensors.items()}, temporary / "model.safetensors")
            made = Converted(kind, sum(one.numel() for one in tensors.values()))
        else:
            file = config or folder / "open_clip_config.json"
            facts = object_in(file) if config or file.is_file() else {}
            try:
                if kind == "BLIP":
                    words = blip_tokenizer(tokenizer)
                    conversion = from_blip(tensors, words, head_width)
                else:
                    text = facts.get("model_cfg", facts).get("text_cfg") or {}
                    words = clip_tokenizer(tokenizer, folder, own=bool(text.get("hf_tokenizer_name")))
                    if resize_mode is not None:
                        cfg = {**(facts.get("preprocess_cfg") or {}), "resize_mode": resize_mode}
                        facts = {"model_cfg": facts.get("model_cfg", facts), "preprocess_cfg": cfg}
                    conversion = from_open_clip(tensors, words, facts, activation, head_width)
                _save(conversion, words, temporary)
            except Exception as error:  # torch and transformers raise errors of many types over odd sizes
                if isinstance(error, MemoryError | OSError | TamisError) and not isinstance(error, ModelError):
                    raise
                said = error if isinstance(error, ModelError) else first_line(error)
                raise ModelError(f"{files[0].name} cannot be converted: {said}") from error
            made = Converted(kind, sum(one.numel() for one in conversion.tensors.values()), conversion.notes)
        _write_card(temporary, source, files, made)
    return made


def _files_of(source: str) -> list[Path]:
    """Returns a checkpoint's weight files; there can be several only for pickles of transformers."""
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
    files = named[-1:] or files  # all hold the same weights; .safetensors sorts after .bin
    if len(files) != 1:
        some = ", ".join(file.name for file in files[:5]) or "none"
        raise ModelError(f"{source} should hold one file of weights; there are {len(files)} ({some}): name the file")
    return files


def _tensors_in(path: Path) -> Tensors:
    """Returns a checkpoint's tensors by name, without the prefixes of wrappers. From pickles it reads only tensors."""
    import torch
    from safetensors.torch import load_file

    try:
        with one_sentence("the checkpoint", path):
            if path.suffix == ".safetensors":
                state: Any = load_file(path)
            else:
                mapped = zipfile.is_zipfile(path) or None
                state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except ModelError as error:
        if name := re.search(r"GLOBAL ([\w.]+)", str(error.__cause__)):
            raise ModelError(f"{path} holds {name[1]}, which could run code: refused") from error
        raise
    if isinstance(state, dict):
        state = next((state[name] for name in _STATES if isinstance(state.get(name), dict)), state)
    items = state.items() if isinstance(state, dict) else ()
    tensors = {name: one for name, one in items if isinstance(name, str) and isinstance(one, torch.Tensor)}
    if not tensors:
        raise ModelError(f"{path} holds no state dict, but a {type(state).__name__} without tensors by name")
    return Tensors({re.sub(r"^(module\.|_orig_mod\.)+", "", name): one for name, one in tensors.items()})


def _save(conversion: Conversion, tokenizer: Any, folder: Path) -> None:
    """Writes a model, its tokenizer and its preprocessing; ModelError unless its class has exactly these weights."""
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
    missing = [name for name, one in model.state_dict().items() if one.is_meta]
    for what, names in (("lacks the weight", missing), ("has the foreign weight", report.unexpected_keys)):
        if names:
            raise ModelError(f"as {conversion.cls.__name__} it {what} {', '.join(names[:3])}")
    tokenizer.model_max_length = conversion.length
    tokenizer.init_kwargs["text"] = conversion.text  # see `reference.cleaning_of`
    save_model(model, tokenizer, conversion.preprocessing, folder)


def save_model(model: Any, tokenizer: Any, preprocessing: Mapping[str, Any], folder: Path) -> None:
    """Writes a model with its tokenizer and preprocessing; open_clip reads the folder too if it is a `ClipResNet`."""
    with quiet():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_json(folder / "preprocessor_config.json", preprocessing)
    if model.config.model_type == RESNET:
        from tamis.models.clip_resnet import open_clip_config

        write_json(folder / "open_clip_config.json", open_clip_config(model.config, preprocessing))


def _repack(pickles: list[Path], folder: Path, source: str) -> Converted:
    """Copies a folder of transformers, with safetensors instead of pickles."""
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
    """Writes a README that says where the model came from. It does not change the model's digest."""
    lines = [f"# {Path(source).name}", "", f"Made by `tamis convert` from a checkpoint in {made.kind}'s layout.", ""]
    for file in files:
        with file.open("rb") as stream:
            lines.append(f"- {file.name}, SHA-256 {hashlib.file_digest(stream, 'sha256').hexdigest()}")
    lines += [f"- {note}" for note in made.notes]
    (folder / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


# ---- tokenizers: most checkpoints come without one


def blip_tokenizer(name: str | None) -> Any:
    """Returns BERT's tokenizer (by default minilm's) with BLIP's tokens: [DEC] begins a caption, [ENC] a query."""
    tokenizer = load_tokenizer_in(_tokenizer_folder(name or "minilm"))
    # minilm's would cut and pad texts.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    if "[DEC]" not in tokenizer.get_vocab():
        tokenizer.add_special_tokens({"bos_token": "[DEC]"})
        tokenizer.add_tokens(["[ENC]"], special_tokens=True)
    tokenizer.bos_token = "[DEC]"
    if tokenizer.sep_token_id is None or tokenizer.pad_token_id is None:
        raise ModelError(f"the tokenizer {name} lacks [SEP] or [PAD]; BLIP ends and pads captions with them")
    return tokenizer


def clip_tokenizer(name: str | None, folder: Path, *, own: bool) -> Any:
    """Returns the named tokenizer, else the folder's, else CLIP's unless the model has its `own`."""
    if name is not None and Path(name).expanduser().is_file():
        return _from_merges(Path(name).expanduser())
    if name is not None or _has_tokenizer(folder):
        return load_tokenizer_in(_tokenizer_folder(name) if name is not None else folder)
    if not own:
        for package in ("open_clip", "clip"):
            spec = importlib.util.find_spec(package)  # without importing it
            for home in (spec and spec.submodule_search_locations) or []:
                if (Path(home) / _MERGES).is_file():
                    return _from_merges(Path(home) / _MERGES)
        if (clip := hub_copy(_CLIP)) is not None:
            return load_tokenizer_in(clip)
    raise ModelError(f"it comes without a tokenizer: name a folder with --tokenizer, or for CLIP the file {_MERGES}")


def _has_tokenizer(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("tokenizer.json", "vocab.json", "vocab.txt"))


def _tokenizer_folder(name: str) -> Path:
    path = Path(name).expanduser()
    return path if _has_tokenizer(path) else resolve(name).path


def _from_merges(path: Path) -> Any:
    """Returns CLIP's tokenizer from its merges: OpenAI's list, or the merges.txt of a transformers folder.

    Source: Radford et al. 2021 (arXiv 2103.00020), section 2.4; github.com/openai/CLIP has the order of tokens.
    """
    from transformers import CLIPTokenizer
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    with one_sentence("the list of merges", path):
        data = path.read_bytes()
        lines = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8").split("\n")
        merges = [(left, right) for left, right in (line.split() for line in lines[1:] if line)][:_USED]
    # One letter for each byte, in the order of CLIP's vocabulary.
    signs = list(bytes_to_unicode().values())  # type: ignore[no-untyped-call]
    words = [*signs, *(f"{sign}</w>" for sign in signs), *(left + right for left, right in merges)]
    vocabulary = {word: number for number, word in enumerate([*words, "<|startoftext|>", "<|endoftext|>"])}
    return CLIPTokenizer(vocab=vocabulary, merges=merges)  # type: ignore[arg-type]  # pairs, as its backend takes
