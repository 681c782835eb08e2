"""Heads on embeddings, as people publish them, against torch's own numbers."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Tamis
from factories import score, write_metadata
from safetensors.torch import save_file
from torch.nn import Dropout, Linear, ReLU, Sequential, Sigmoid

from tamis.core.errors import ModelError
from tamis.core.types import Device
from tamis.models.heads import load_head
from tamis.models.reference import resolve
from tamis.signals import Head
from tamis.signals.features.embeddings import ImageEmbedding
from tamis.signals.graph import Identities
from tamis.signals.head import output_of


def layers(*modules: Any) -> Any:
    """A module whose state dict says layers.0.weight and so on."""
    torch.manual_seed(0)
    return torch.nn.ModuleDict({"layers": Sequential(*modules)}).eval()


def aesthetic(width: int) -> Any:
    """The improved aesthetic predictor: no activation at all."""
    sizes = (width, 1024, 128, 64, 16)
    modules = [one for pair in itertools.pairwise(sizes) for one in (Linear(*pair), Dropout(0.2))]
    return layers(*modules[:-1], Linear(16, 1))


def nsfw(width: int) -> Any:
    """LAION's head for H/14: ReLU and dropout, but for its last two layers."""
    return layers(
        Linear(width, 12), ReLU(), Dropout(0.2), Linear(12, 8), ReLU(), Dropout(0.2), Linear(8, 6), Linear(6, 1)
    )


ROWS = torch.nn.functional.normalize(torch.randn(7, 24, generator=torch.Generator().manual_seed(1)), dim=1)


def outputs(path: Path, activation: Any = "auto") -> Any:
    return load_head(str(path), activation, Device())[0](ROWS.numpy())


@pytest.mark.parametrize("make", [aesthetic, nsfw])
def test_a_published_head_becomes_scores(make: Any, clip_model: str, pool: Path, tamis: Tamis, tmp_path: Path) -> None:
    head = make(24)
    torch.save(head.state_dict(), tmp_path / "head.pth")
    with pytest.raises(ModelError, match="tamis convert"):
        load_head(str(tmp_path / "head.pth"), "auto", Device())
    tamis.ok("convert", tmp_path / "head.pth", tmp_path / "head")
    torch.save(torch.nn.LayerNorm(24).state_dict(), tmp_path / "norm.pth")
    assert "no linear layer" in tamis("convert", tmp_path / "norm.pth", tmp_path / "norm").err
    assert not (tmp_path / "norm").exists()
    save_file({f"mlp.{name}": one for name, one in head.state_dict().items()}, tmp_path / "again.safetensors")
    with torch.no_grad():
        for path in ("head", "again.safetensors"):
            np.testing.assert_allclose(outputs(tmp_path / path), head["layers"](ROWS), atol=1e-5)
    for side in ("image", "text"):
        signal = Head(weights=str(tmp_path / "head"), of=clip_model, embedding=f"{side}_embedding")  # type: ignore[arg-type]
        run = score(pool, tmp_path / side, signal, keep=["embeddings"], precision="float32")
        vectors = np.concatenate([run.embedding(f"{side}_embedding", shard) for shard in run.shards])
        values = np.concatenate([run.table().read(n, ["head"])["head"] for n in range(3)])
        with torch.no_grad():
            wanted = head["layers"](torch.from_numpy(vectors).float())[:, 0].numpy()
        np.testing.assert_allclose(values, wanted, atol=1e-5)
        assert np.ptp(values) > 1e-4


def test_by_hand(tmp_path: Path) -> None:
    """Two inputs, a hidden layer of two, one output: relu(3 - 4) = 0 and relu(3 + 4) = 7, times 2, plus 1."""
    arrays = {"0.weight": [[1, -1], [1, 1]], "0.bias": [0, 0], "2.weight": [[5, 2]], "2.bias": [1]}
    np.savez(tmp_path / "head.npz", **{name: np.array(one, np.float32) for name, one in arrays.items()})
    rows = np.array([[3, 4]], np.float32)
    for activation, wanted in (("auto", 15), ("relu", 15), ("none", 10)):
        assert load_head(str(tmp_path / "head.npz"), activation, Device())[0](rows).tolist() == [[wanted]]
    values = np.log(np.array([[1, 2, 5], [800, 1, 1]]))
    np.testing.assert_allclose(output_of(values, "softmax", 2), [5 / 8, 1 / 802], rtol=1e-6)
    np.testing.assert_allclose(output_of(values, "sigmoid", 1), [2 / 3, 1 / 2], rtol=1e-6)
    np.testing.assert_allclose(output_of(values, "identity", 0), [0, np.log(800)], rtol=1e-6)
    assert output_of(np.array([[1e5, -1e5]]), "softmax", 0).tolist() == [1]


def test_other_names_and_what_a_file_says(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(3, 24)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    np.savez(tmp_path / "sklearn.npz", coef_=weight, intercept_=bias)
    np.savez(tmp_path / "keras.npz", **{"dense/kernel:0": weight.T, "dense/bias:0": bias})
    save_file({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)}, tmp_path / "linear.safetensors")
    for name in ("sklearn.npz", "keras.npz", "linear.safetensors"):
        np.testing.assert_allclose(outputs(tmp_path / name), ROWS.numpy() @ weight.T + bias, atol=1e-5)
    head = nsfw(24)
    save_file(head.state_dict(), tmp_path / "named.safetensors", {"activation": "tanh", "model": "openai/clip-b"})
    tanh = [
        one if isinstance(one, Linear) else torch.nn.Tanh() for one in head["layers"] if not isinstance(one, Dropout)
    ]
    with torch.no_grad():
        wanted = Sequential(*tanh[:-1], torch.nn.Tanh(), tanh[-1])(ROWS)
    np.testing.assert_allclose(outputs(tmp_path / "named.safetensors"), wanted, atol=1e-5)


def proto(*fields: tuple[int, int | str | bytes]) -> bytes:
    """One message of protobuf: numbers of fields, and their values."""

    def number(value: int) -> bytes:
        return bytes([value]) if value < 128 else bytes([value % 128 + 128]) + number(value // 128)

    message = b""
    for key, value in fields:
        data = value.encode() if isinstance(value, str) else value
        message += number(key * 8) + number(data) if isinstance(data, int) else b""
        message += number(key * 8 + 2) + number(len(data)) + data if isinstance(data, bytes) else b""
    return message


def onnx(head: Any, rows: int) -> bytes:
    """Linear, ReLU, Linear, Sigmoid as ONNX has them; `rows` 0: any number of rows."""
    state = {name: one.detach().numpy().T for name, one in head.state_dict().items()}
    steps = ["MatMul layers.0.weight", "Add layers.0.bias", "Relu", "MatMul layers.2.weight", "Add layers.2.bias"]
    nodes = []
    for n, (kind, *names) in enumerate(step.split() for step in [*steps, "Sigmoid"]):
        nodes.append(proto((1, f"x{n}"), *((1, name) for name in names), (2, f"x{n + 1}"), (4, kind)))
    weights = [
        proto(*((1, size) for size in one.shape), (2, 1), (8, name), (9, one.tobytes())) for name, one in state.items()
    ]
    first = proto((1, rows) if rows else (2, "n"))
    shapes = [proto((1, first), (1, proto((1, width)))) for width in (24, 1)]
    ends = [proto((1, f"x{6 * n}"), (2, proto((1, proto((1, 1), (2, one)))))) for n, one in enumerate(shapes)]
    every = [*((1, one) for one in nodes), (2, "g"), *((5, one) for one in weights), (11, ends[0]), (12, ends[1])]
    graph = proto(*every)
    return proto((1, 8), (7, graph), (8, proto((1, ""), (2, 17))))


@pytest.mark.parametrize("rows", [0, 1])
def test_onnx(rows: int, tmp_path: Path) -> None:
    head = layers(Linear(24, 8), ReLU(), Linear(8, 1), Sigmoid())
    path = tmp_path / "head.onnx"
    path.write_bytes(onnx(head, rows))
    with torch.no_grad():
        np.testing.assert_allclose(outputs(path), head["layers"](ROWS), atol=1e-5)
    with pytest.raises(ModelError, match="does not take embeddings of 25 numbers"):
        load_head(str(path), "auto", Device())[0](np.zeros((2, 25), np.float32))
    with pytest.raises(ModelError, match="leave out activation: relu"):
        load_head(str(path), "relu", Device())


def test_published_embeddings_without_a_model(tmp_path: Path) -> None:
    arrays = write_metadata(tmp_path / "pool" / "00.parquet")
    head = layers(Linear(768, 2))
    save_file(head.state_dict(), tmp_path / "head.safetensors")
    signal = {"weights": str(tmp_path / "head.safetensors"), "embedding": "l14_txt", "output": "softmax", "position": 1}
    run = score(tmp_path / "pool", tmp_path / "run", {"head": signal | {"label": "watermark"}})
    values = run.table().read(0, ["watermark.head"])["watermark.head"]
    with torch.no_grad():
        wanted = head["layers"](torch.from_numpy(arrays["l14_txt"]).float()).softmax(1)[:, 1]
    np.testing.assert_allclose(values, wanted, atol=1e-5)


def test_a_head_of_another_model_stops_before_work(clip_model: str, pool: Path, tmp_path: Path) -> None:
    path = tmp_path / "head.safetensors"

    def refused(message: str, **settings: Any) -> None:
        with pytest.raises(ModelError, match=message):
            score(pool, tmp_path / "run", Head(weights=str(path), of=clip_model, **settings))
        assert not list((tmp_path / "run").glob("*/*.parquet"))

    save_file(layers(Linear(768, 1)).state_dict(), path)
    refused("takes embeddings of 768 numbers, and these have 24")
    save_file(layers(Linear(24, 2)).state_dict(), path)
    refused("has 2 outputs: set position, from 0 to 1")
    refused("has 2 outputs: set position, from 0 to 1", position=2)
    save_file(layers(Linear(24, 4), Linear(4, 1)).state_dict(), path)
    refused("set activation to none, relu")
    save_file(layers(Linear(24, 4), ReLU(), Linear(5, 1)).state_dict(), path)
    refused(r"layers\.2 is \(1, 5\), no linear layer of 4 inputs")
    save_file(torch.nn.BatchNorm1d(24).state_dict(), path)
    refused("no part of a linear layer: export the head to ONNX")
    save_file(layers(Linear(24, 1)).state_dict(), path, {"model": "openai/clip-vit-large-patch14"})
    refused("was made for embeddings of openai/clip-vit-large-patch14")
    for named in (resolve(clip_model).digest, f"someone/{Path(clip_model).name}"):
        save_file(layers(Linear(24, 1)).state_dict(), path, {"model": named})
        score(pool, tmp_path / "run", Head(weights=str(path), of=clip_model))


def test_two_heads_in_one_run_have_columns_of_their_own(clip_model: str, pool: Path, tmp_path: Path) -> None:
    heads = []
    for n in range(2):
        (tmp_path / f"{n}").mkdir()
        torch.manual_seed(n)
        save_file(Linear(24, 1).state_dict(), tmp_path / f"{n}" / "head.safetensors")
        heads.append(Head(weights=str(tmp_path / f"{n}" / "head.safetensors"), of=clip_model))
    prints = [Identities(Device()).fingerprint(head) for head in heads]
    assert prints[0] != prints[1]
    assert heads[0].needs() == {"rows": ImageEmbedding(model=clip_model)}
    run = score(pool, tmp_path / "run", *heads)
    assert len(run.scores) == 2
    assert "head.head" in run.columns
