"""Model folders that are damaged: one sentence that names the model, before any work.

`make attack` damages every file of every kind of folder; this is a part of it.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from damage_of_models import BROKEN_WEIGHTS, CORRUPTIONS, JSON
from factories import safetensors_bytes
from model_kinds import KINDS, load_clip
from safetensors.numpy import load_file, save_file

from tamis.core.errors import ModelError
from tamis.core.types import Device
from tamis.models.reference import check_files, resolve

#: One of `KINDS` for each layout of a folder.
FOLDERS = ("clip", "llava", "sentence encoder", "pipeline")


def refused(load: Callable[[str], object], folder: Path) -> str:
    """Returns the message about a model, which names its folder and is short."""
    with pytest.raises(ModelError) as caught:
        load(str(folder))
    assert str(folder) in str(caught.value)
    assert len(str(caught.value)) < 700
    return str(caught.value)


def damaged(folder: Path, file: str, name: str) -> Path:
    """Damages one file of a folder."""
    path = folder / file
    path.write_bytes((CORRUPTIONS.get(path.name) or CORRUPTIONS[path.suffix])[name](path.read_bytes()))
    return folder


@pytest.mark.parametrize(
    ("file", "name"),
    [*(("model.safetensors", name) for name in BROKEN_WEIGHTS), *(("config.json", name) for name in JSON)],
)
def test_an_unreadable_file_is_named_with_the_model(file: str, name: str, clip_model: str, tmp_path: Path) -> None:
    folder = damaged(shutil.copytree(clip_model, tmp_path / "model"), file, name)
    assert f"{folder / file} is damaged" in refused(resolve, folder)


@pytest.mark.parametrize(
    ("kind", "file", "name", "says"),
    [
        ("clip", "config.json", "width 1000000000", "hidden_size = 1000000000"),
        ("clip", "config.json", "heads -4", "config.json has num_attention_heads = -4"),
        ("clip", "config.json", "layers 3", "it has no weights for text_model.encoder.layers.2."),
        ("clip", "config.json", "words 3", "weights and config.json do not fit: text_model.embeddings"),
        ("clip", "preprocessor_config.json", "size 1000000000", "1000000000"),
        ("clip", "preprocessor_config.json", "mean abc", "image_mean"),
        ("clip", "tokenizer.json", "half", "the tokenizer in"),
        ("clip", "tokenizer_config.json", "class AutoModel", "tokenizer_class"),
        ("blip", "generation_config.json", "half", "generation_config.json is damaged"),
        ("pipeline", "model_index.json", "half", "model_index.json is damaged"),
        ("pipeline", "unet/diffusion_pytorch_model.safetensors", "a tensor less", "its unet"),
        ("pipeline", "tokenizer/tokenizer.json", "numbers beyond the model's", "tokens, the network knows"),
    ],
)
def test_what_does_not_belong_together_is_one_sentence(
    kind: str, file: str, name: str, says: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    fixture, load = KINDS[kind]
    folder = shutil.copytree(request.getfixturevalue(fixture), tmp_path / "model")
    assert says in refused(load, damaged(folder, file, name))


def sharded(clip_model: str, folder: Path) -> Path:
    """Copies a model with its weights in two files and an index."""
    shutil.copytree(clip_model, folder)
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    shards = {name: f"model-0000{n % 2 + 1}-of-00002.safetensors" for n, name in enumerate(sorted(whole))}
    for shard in set(shards.values()):
        save_file({name: whole[name] for name in whole if shards[name] == shard}, folder / shard, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    return folder


def test_weights_in_several_files_are_one_model_whose_hash_has_all_of_them(clip_model: str, tmp_path: Path) -> None:
    folder = sharded(clip_model, tmp_path / "model")
    # Where weights are in memory decides on some processors how they are summed: the last bit may differ.
    np.testing.assert_allclose(load_clip(str(folder)), load_clip(clip_model), rtol=1e-6)
    before = resolve(str(folder)).digest
    for path in sorted(folder.glob("*.safetensors")):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert resolve(str(folder)).digest != before
        path.write_bytes(content)
    assert resolve(str(folder)).digest == before


@pytest.mark.parametrize("name", ["../outside.safetensors", "pytorch_model.bin", 5])
def test_an_index_names_only_safetensors_of_its_folder(name: str | int, clip_model: str, tmp_path: Path) -> None:
    folder = sharded(clip_model, tmp_path / "model")
    shutil.copy(folder / "model-00001-of-00002.safetensors", tmp_path / "outside.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    assert "which is not a safetensors file next to it" in refused(load_clip, folder)


@pytest.mark.parametrize("kind", FOLDERS)
def test_the_hash_covers_every_file_that_is_opened(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    fixture, load = KINDS[kind]
    folder = shutil.copytree(request.getfixturevalue(fixture), tmp_path / "model")
    opened: set[str] = set()
    watching = [True]

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
            path = os.fsdecode(arguments[0])
            if path.startswith(f"{folder}/"):
                opened.add(os.path.relpath(path, folder))

    sys.addaudithook(watch)
    try:
        load(str(folder))
    finally:
        watching.clear()
    assert opened
    assert opened <= set(check_files(folder))


@pytest.mark.parametrize("kind", FOLDERS)
def test_only_files_that_count_change_the_hash(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder = shutil.copytree(request.getfixturevalue(KINDS[kind][0]), tmp_path / "model")
    before = resolve(str(folder)).digest
    for name, path in check_files(folder).items():
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if name.endswith(".safetensors") else whole + b" ")
        assert resolve(str(folder)).digest != before, name
        path.write_bytes(whole)
    unused = [] if "chat_template.jinja" in check_files(folder) else ["chat_template.jinja"]
    # A card, code, the chat template of a model that does not answer, other weights, and deeper files.
    for name in ("README.md", "modeling.py", *unused, "model.fp16.safetensors", "onnx/config.json",
                 "checkpoint-5/model.safetensors", "checkpoint-5/config.json", "model.safetensors.old"):  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(safetensors_bytes(name.encode()) if name.endswith(".safetensors") else b"{}")
        assert resolve(str(folder)).digest == before, name


def test_an_onnx_network_is_one_whole_file(tmp_path: Path) -> None:
    from tamis.models.ocr import load_network

    path = tmp_path / "network.onnx"
    entry = b"\n\x08location\x12\x0d../elsewhere"
    path.write_bytes(b"\x08\x0a" + b"\x6a" + bytes([len(entry)]) + entry)  # protobuf: TensorProto.external_data
    with pytest.raises(ModelError, match=r"network\.onnx has weights in other files"):
        load_network(str(path), Device())
    for content in (b"", b"no network", resolve("ppocr").path.read_bytes()[:100_000]):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"network\.onnx"):
            load_network(str(path), Device())
