"""Model folders that are damaged, or that name files of elsewhere: one sentence that names the file, before any work.

`make attack` damages every file of every kind of folder; this is a part of it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from damage_of_models import CONFIG, JSON, PICTURES, TOKENS, WEIGHTS, WORDS, header_of, with_header
from factories import safetensors_bytes, write_pool
from model_kinds import load_captioner, load_clip, load_drawing, load_regression, load_sentences, load_tokens

import tamis
from tamis.data import Device
from tamis.errors import ModelError
from tamis.models.folder import PATTERNS, loaded_files
from tamis.models.loading import forget_loaded
from tamis.models.reference import resolve
from tamis.models.safetensors_file import shapes_in

pytest.importorskip("transformers")


@pytest.fixture(autouse=True)
def nothing_stays_loaded() -> Iterator[None]:
    yield
    forget_loaded()


def refused(load: Callable[[str], object], folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        load(str(folder))
    return str(caught.value)


# ---- damage


@pytest.mark.parametrize("name", [name for name in WEIGHTS if not name.endswith(("less", "too long", "another shape"))])
def test_damaged_weights_are_named_before_the_run_folder_is_made(name: str, clip_model: str, tmp_path: Path) -> None:
    folder = shutil.copytree(clip_model, tmp_path / "model")
    file = folder / "model.safetensors"
    file.write_bytes(WEIGHTS[name](file.read_bytes()))
    says = refused(lambda one: resolve(one), folder)
    assert says.startswith(f"{file} is no whole safetensors file (")
    assert len(says) < 600


def test_no_shard_is_begun_with_a_damaged_model(clip_model: str, tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool")
    folder = shutil.copytree(clip_model, tmp_path / "model")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ModelError, match="is no whole safetensors file"):
        tamis.score(pool, run=tmp_path / "run", scores=[{"clip": {"model": str(folder)}}], quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "preprocessor_config.json"])
@pytest.mark.parametrize("name", JSON)
def test_a_damaged_configuration_is_named(file: str, name: str, clip_model: str, tmp_path: Path) -> None:
    folder = shutil.copytree(clip_model, tmp_path / "model")
    (folder / file).write_bytes(JSON[name]((folder / file).read_bytes()))
    says = refused(lambda one: resolve(one), folder)
    assert says.startswith(f"{folder / file} is damaged: it ")
    assert len(says) < 600


@pytest.mark.parametrize(
    ("file", "corrupt", "says"),
    [
        ("config.json", CONFIG["width 1000000000"], "they are of different models"),
        (
            "config.json",
            CONFIG["layers 1000000000"],
            "asks for num_hidden_layers = 1,000,000,000, and the weights hold",
        ),
        ("config.json", CONFIG["labels 100000000"], "asks for num_labels = 100,000,000: no model sorts into so many"),
        ("config.json", CONFIG["words 1000000000"], "they are of different models"),
        ("config.json", CONFIG["positions 1000000000"], "they are of different models"),
        ("config.json", CONFIG["text config []"], "config.json"),
        ("config.json", CONFIG["kind []"], "clip takes clip or siglip"),
        ("config.json", CONFIG["heads -4"], "config.json has num_attention_heads = -4, which cannot be negative"),
        ("config.json", CONFIG["width -1"], "size = -1, which cannot be negative"),
        ("config.json", CONFIG["layers 3"], "it has no weights for text_model.encoder.layers.2."),
        ("config.json", CONFIG["words 3"], "the weights do not fit the config.json: text_model.embeddings"),
        ("config.json", CONFIG["image 64"], "vision_model.embeddings.position_embedding.weight is (17, 32) in them"),
        ("preprocessor_config.json", PICTURES["size 1000000000"], "images would become"),
        ("preprocessor_config.json", PICTURES["mean abc"], "what its preprocessor_config.json says of colours"),
        ("preprocessor_config.json", PICTURES["std [0, 0, 0]"], "its preprocessor_config.json divides colours by 0"),
        ("preprocessor_config.json", PICTURES["resample 99"], "is damaged in what it says of sizes or colours"),
        ("tokenizer.json", WORDS["half"], "model/tokenizer.json cannot be loaded"),
        ("tokenizer.json", WORDS["an unknown model"], "model/tokenizer.json cannot be loaded"),
        ("tokenizer.json", WORDS["numbers beyond the model's"], "is of another model: its tokens have numbers up to"),
        ("tokenizer_config.json", TOKENS["longest x"], "model_max_length is no number"),
        ("model.safetensors", WEIGHTS["a tensor less"], "it has no weights for"),
        ("model.safetensors", WEIGHTS["a tensor too long"], "the weights do not fit the config.json"),
    ],
)
def test_what_does_not_belong_together_is_one_sentence(
    file: str, corrupt: Callable[[bytes], bytes], says: str, clip_model: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(clip_model, tmp_path / "model")
    (folder / file).write_bytes(corrupt((folder / file).read_bytes()))
    found = refused(load_clip, folder)
    assert says in found
    assert len(found) < 800


def test_a_pipeline_lacks_no_weights_and_is_no_larger_than_them(diffusion_model: str, tmp_path: Path) -> None:
    """diffusers would draw the missing ones at random, and allocate the large ones."""
    folder = shutil.copytree(diffusion_model, tmp_path / "model")
    file = folder / "unet" / "diffusion_pytorch_model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(WEIGHTS["a tensor less"](whole))
    assert "unet has no weights for " in refused(load_drawing, folder)
    file.write_bytes(whole)
    config = folder / "unet" / "config.json"
    config.write_bytes(CONFIG["width 1000000000"](config.read_bytes()))
    assert "unet" in refused(load_drawing, folder)
    file.write_bytes(whole[:-4])
    assert f"{file} is no whole safetensors file" in refused(load_drawing, folder)


def test_a_damaged_sentence_encoder_is_named(sentence_model: str, tmp_path: Path) -> None:
    folder = shutil.copytree(sentence_model, tmp_path / "model")
    for says, modules in (
        ("lists no modules", {"a": 1}),
        ("lists no modules", [5]),
        (
            "names the folder '../elsewhere', which does not lie in the model's own",
            [{"type": "x", "path": "../elsewhere"}],
        ),
        ("names the folder '/etc', which does not lie", [{"type": "x", "path": "/etc"}]),
        ("names the folder 5, which does not lie", [{"type": "x", "path": 5}]),
    ):
        (folder / "modules.json").write_text(json.dumps(modules))
        assert says in refused(load_sentences, folder)


# ---- which files


def sharded(folder: Path) -> list[Path]:
    """Splits the weights of a folder into two files and an index."""
    file = folder / "model.safetensors"
    header, data = header_of(file.read_bytes())
    file.unlink()
    names = sorted((name for name in header if name != "__metadata__"), key=lambda one: header[one]["data_offsets"])
    half, written, index = len(names) // 2, [], {}
    for number, some in enumerate((names[:half], names[half:]), start=1):
        begin = header[some[0]]["data_offsets"][0]
        end = header[some[-1]]["data_offsets"][1]
        own = {one: header[one] | {"data_offsets": [n - begin for n in header[one]["data_offsets"]]} for one in some}
        path = folder / f"model-0000{number}-of-00002.safetensors"
        path.write_bytes(with_header({"__metadata__": {"format": "pt"}, **own}, data[begin:end]))
        written.append(path)
        index |= dict.fromkeys(some, path.name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return written


def test_weights_in_several_files_are_loaded_and_count(clip_model: str, tmp_path: Path) -> None:
    folder = shutil.copytree(clip_model, tmp_path / "model")
    whole = load_clip(str(folder))
    parts = sharded(folder)
    # Where weights lie in memory decides on some processors how they are summed up: the last bit may differ.
    np.testing.assert_allclose(load_clip(str(folder)), whole, rtol=1e-6)
    before = resolve(str(folder)).digest
    for path in parts:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert resolve(str(folder)).digest != before
        path.write_bytes(content)
    assert resolve(str(folder)).digest == before
    parts[1].unlink()
    assert "names 'model-00002-of-00002.safetensors', which is not there" in refused(load_clip, folder)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("../outside.safetensors", "only safetensors files beside it are opened"),
        ("{outside}", "only safetensors files beside it are opened"),
        ("pytorch_model.bin", "only safetensors files beside it are opened"),
        ("sub/outside.safetensors", "only safetensors files beside it are opened"),
        ("link.safetensors", "is a link that leads out of the model's folder"),
        ("nowhere.safetensors", "which is not there"),
        (5, "it holds no weight_map of names to files"),
    ],
)
def test_an_index_names_only_safetensors_of_its_folder(
    name: str | int, says: str, clip_model: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(clip_model, tmp_path / "model")
    outside = tmp_path / "outside.safetensors"
    (folder / "sub").mkdir()
    shutil.move(folder / "model.safetensors", outside)
    for copy in (folder / "sub" / "outside.safetensors", folder / "pytorch_model.bin"):
        shutil.copy(outside, copy)
    (folder / "link.safetensors").symlink_to(outside)
    named = name.format(outside=outside) if isinstance(name, str) else name
    weights = dict.fromkeys(shapes_in(outside), named)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weights}))
    assert says in refused(load_clip, folder)


def test_links_within_the_folder_and_into_the_hubs_own_store_are_followed(clip_model: str, tmp_path: Path) -> None:
    repository = tmp_path / "models--owner--name"
    (repository / "blobs").mkdir(parents=True)
    folder = shutil.copytree(clip_model, repository / "snapshots" / "0123")
    before = resolve(str(folder)).digest
    shutil.move(folder / "model.safetensors", repository / "blobs" / "abc")
    (folder / "model.safetensors").symlink_to("../../blobs/abc")
    assert resolve(str(folder)).digest == before
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(tmp_path / "elsewhere")
    shutil.copy(repository / "blobs" / "abc", tmp_path / "elsewhere")
    assert "model.safetensors is a link that leads out of the model's folder" in refused(resolve, folder)


FOLDERS = {
    "clip": ("clip_model", load_clip),
    "blip": ("blip_model", load_captioner),
    "regression": ("regression_model", load_regression),
    "sentences": ("sentence_model", load_sentences),
    "pipeline": ("diffusion_model", load_drawing),
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_the_hash_covers_every_file_that_is_opened(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    import sys

    fixture, load = FOLDERS[kind]
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
    assert opened <= set(loaded_files(folder))


@pytest.mark.parametrize("kind", FOLDERS)
def test_each_file_that_counts_changes_the_hash_and_no_other_does(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = shutil.copytree(request.getfixturevalue(FOLDERS[kind][0]), tmp_path / "model")
    before = resolve(str(folder)).digest
    for name, path in loaded_files(folder).items():
        whole = path.read_bytes()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if name.endswith(".safetensors") else whole + b" ")
        assert resolve(str(folder)).digest != before, name
        path.write_bytes(whole)
    assert resolve(str(folder)).digest == before
    # A card, code, a chat template (which nobody here applies), other weights, and what lies deeper.
    for name in ("README.md", "modeling.py", "chat_template.jinja", "model.fp16.safetensors", "onnx/config.json",
                 "checkpoint-5/model.safetensors", "checkpoint-5/config.json", "model.safetensors.old"):  # fmt: skip
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(safetensors_bytes(name.encode()) if name.endswith(".safetensors") else b"{}")
        assert resolve(str(folder)).digest == before, name


def test_every_vocabulary_that_transformers_reads_counts() -> None:
    import ast

    import transformers

    names: set[str] = set()
    for path in Path(transformers.__file__).parent.glob("models/*/tokenization*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VOCAB_FILES_NAMES":
                try:
                    names |= {str(one) for one in ast.literal_eval(node.value).values()}
                except ValueError:  # made of another dictionary
                    continue
    assert len(names) > 10
    assert [name for name in sorted(names) if not any(Path(name).match(pattern) for pattern in PATTERNS)] == []


def test_an_onnx_network_is_one_whole_file(tmp_path: Path) -> None:
    from tamis.models.ocr.onnx_network import load_network

    pytest.importorskip("openvino")
    path = tmp_path / "network.onnx"
    entry = b"\n\x08location\x12\x0d../elsewhere"
    path.write_bytes(b"\x08\x0a" + b"\x6a" + bytes([len(entry)]) + entry)  # protobuf: TensorProto.external_data
    with pytest.raises(ModelError, match=r"network\.onnx has weights in other files"):
        load_network(path, "0", Device())
    for content in (b"", b"no network", resolve("ppocr").path.read_bytes()[:100_000]):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=r"network\.onnx cannot be loaded as an ONNX network"):
            load_network(path, str(len(content)), Device())


@pytest.mark.parametrize(
    ("file", "how", "said"),
    [
        ("unet/config.json", CONFIG["layers -1"], "which cannot be negative"),
        ("unet/config.json", CONFIG["image x"], "is made for images of sample_size = 'x'"),
        ("unet/config.json", CONFIG[f"image {10**9}"], "is made for images of sample_size = 1000000000"),
        (
            "tokenizer/tokenizer.json",
            WORDS["numbers beyond the model's"],
            "is of another model: its tokens have numbers",
        ),
        ("tokenizer/tokenizer_config.json", TOKENS["longest None"], "and the network beside it reads"),
        ("tokenizer/tokenizer_config.json", TOKENS["padding None"], "names no token that texts are filled up with"),
    ],
)
def test_parts_of_a_pipeline_that_do_not_fit_one_another_are_told(
    file: str, how: Callable[[bytes], bytes], said: str, diffusion_model: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(diffusion_model, tmp_path / "model")
    (folder / file).write_bytes(how((folder / file).read_bytes()))
    assert said in refused(load_drawing, folder)


@pytest.mark.parametrize(
    ("layers", "said"), [(-1, "has num_hidden_layers = -1, which cannot be negative"), (0, "asks for 0 layers")]
)
def test_an_encoder_without_layers_is_damaged(layers: int, said: str, regression_model: str, tmp_path: Path) -> None:
    folder = shutil.copytree(regression_model, tmp_path / "model")
    config = folder / "config.json"
    config.write_bytes(CONFIG[f"layers {layers}"](config.read_bytes()))
    assert said in refused(load_tokens, folder)
