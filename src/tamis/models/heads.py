"""Heads on embeddings: small networks that predict something from a vector, such as how people rate an image.

A head is a stack of linear layers in a safetensors or npz file (or in a folder that `tamis convert` wrote), or any
network in an ONNX file.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tamis.arrays import Float32s
from tamis.data import Device
from tamis.errors import ModelError, brief, first_line, unknown_message
from tamis.models.loading import one_sentence
from tamis.models.ocr import load_network
from tamis.models.reference import resolve, shapes_in

#: What stands between two layers. "auto": what the file says, else what its names say; see `functions_between`.
Activation = Literal["auto", "none", "relu", "gelu", "silu", "tanh"]

_PARTS = {"weight": "weight", "coef_": "weight", "kernel": "kernel", "kernel:0": "kernel"}  # torch, scikit-learn, Keras
_PARTS |= {"bias": "bias", "intercept_": "bias", "bias:0": "bias"}

#: The improved aesthetic predictor has dropout between its layers and no activation. (Schuhmann's code of 2022.)
_AESTHETIC = {"layers.0": 1024, "layers.2": 128, "layers.4": 64, "layers.6": 16, "layers.7": 1}

_LARGEST = 1 << 30  # bytes of an unpacked npz

#: A function of (n, d) float32 rows to (n, k).
Network = Callable[[Float32s], Float32s]


class Layer(NamedTuple):
    """A linear layer: its name in the file, weight (outputs, inputs) and bias (outputs,), float32."""

    name: str
    weight: Float32s
    bias: Float32s


class Head(NamedTuple):
    """A head; its inputs if known; the name or the digest of the embeddings' model if its file has one."""

    network: Network
    width: int | None
    model: str | None
    path: Path

    def for_width(self, width: int) -> Network:
        """Returns the network, tried on rows of d = `width` numbers; ModelError if it takes others."""
        if self.width not in (None, width):
            raise ModelError(f"{self.path} takes embeddings of {self.width} numbers, and these have {width}")
        wrong: Exception | None = None
        for network in (self.network, self._singly):  # some ONNX files take one row at a time
            try:
                shape = network(np.zeros((2, width), np.float32)).shape
            except Exception as error:  # of the ONNX libraries
                wrong = error
                continue
            if len(shape) == 2 and shape[0] == 2:
                return network
            raise ModelError(f"{self.path} gives an array of {shape} for 2 rows, expected (2, outputs)")
        assert wrong is not None
        raise ModelError(f"{self.path} does not take embeddings of {width} numbers: {first_line(wrong)}") from wrong

    def _singly(self, rows: Float32s) -> Float32s:
        return np.concatenate([self.network(row[None]) for row in rows])


def load_head(weights: str, activation: Activation, device: Device) -> Head:
    """Loads a head; ModelError if the file is damaged or no stack of linear layers. It runs on the CPU in float32."""
    path = resolve(weights).path
    if path.suffix == ".onnx":
        if activation != "auto":
            raise ModelError(f"{path} holds its own activations: leave out activation: {activation}")
        return Head(
            load_network(str(path), dataclasses.replace(device, kind="cpu", precision="float32")), None, None, path
        )
    tensors, about = _read(path / "model.safetensors" if path.is_dir() else path)
    layers = linear_layers(tensors, path)
    own = about.get("activation", "auto")
    if own not in ("auto", *_FUNCTIONS):
        raise ModelError(f"{path}: {unknown_message('activation', own, _FUNCTIONS)}")
    between = functions_between(layers, own if activation == "auto" else activation, path)

    def stack(rows: Float32s) -> Float32s:
        for n, (_, weight, bias) in enumerate(layers):
            rows = rows @ weight.T + bias
            if n < len(between):
                rows = between[n](rows)
        return rows

    return Head(stack, layers[0].weight.shape[1], about.get("model"), path)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the arrays of a safetensors or npz file, and the texts next to them."""
    if path.suffix not in (".safetensors", ".npz"):
        raise ModelError(
            f"{path} is not a safetensors, npz or ONNX file: `tamis convert` makes the first of a .pth; export others "
            "to ONNX"
        )
    with one_sentence("the head", path):
        if path.suffix == ".npz":
            if sum(file.file_size for file in zipfile.ZipFile(path).infolist()) > _LARGEST:
                raise ModelError(f"{path} is too large for a head")
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            texts = {name: str(value) for name, value in arrays.items() if value.dtype.kind == "U"}
            return {name: value for name, value in arrays.items() if name not in texts}, texts
        from safetensors import safe_open

        shapes_in(path)
        with safe_open(path, "pt") as file:  # torch's, since NumPy has no bfloat16
            return {name: file.get_tensor(name).float().numpy() for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def linear_layers(tensors: Mapping[str, Any], path: Path) -> list[Layer]:
    """Returns the linear layers of a head in their order; ModelError if the tensors are anything else."""
    parts: dict[str, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"(?:(.*)[./])?([^./]+)", name)
        part = _PARTS.get(match[2]) if match else None
        if match is None or part is None:
            raise ModelError(f"{path} holds {brief(name)}, which is no part of a linear layer: export the head to ONNX")
        parts.setdefault(match[1] or "", {})[part] = np.asarray(tensor, np.float32)
    layers: list[Layer] = []
    for name in sorted(
        parts, key=lambda name: [int(one) if one.isdecimal() else one for one in re.split(r"(\d+)", name)]
    ):
        found = parts[name]
        weight = found["kernel"].T if "kernel" in found else np.atleast_2d(found.get("weight", np.empty(0)))
        bias = found.get("bias", np.zeros(len(weight), np.float32)).reshape(-1)
        if weight.ndim != 2 or weight.shape[1] == 0 or bias.shape != weight.shape[:1]:
            raise ModelError(f"{path}: {name or 'its weight'} is not a linear layer: export the head to ONNX")
        if layers and weight.shape[1] != len(layers[-1].bias):
            raise ModelError(
                f"{path}: {name} takes {weight.shape[1]} numbers and {layers[-1].name} gives {len(layers[-1].bias)}: "
                "it is no stack of linear layers; export the head to ONNX"
            )
        layers.append(Layer(name, np.ascontiguousarray(weight, np.float32), bias.astype(np.float32)))
    if not layers:
        raise ModelError(f"{path} holds no layer")
    return layers


def _natural(name: str) -> list[Any]:
    """Returns a key that sorts "layers.10" after "layers.9"."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _gelu(x: Any) -> Any:
    import torch

    return torch.nn.functional.gelu(torch.from_numpy(x)).numpy()


_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "none": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": _gelu,
    "silu": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
}


def functions_between(layers: Sequence[Layer], activation: str, path: Path) -> list[Callable[[Any], Any]]:
    """Returns the function after each layer but the last.

    With "auto" it is ReLU, but nothing in the improved aesthetic predictor and nothing between layers whose numbers
    follow each other (`layers.15` and `layers.16` of a Sequential: there is no room for a function). ModelError if all
    do: then names say nothing.
    """
    if activation != "auto":
        return [_FUNCTIONS[activation]] * (len(layers) - 1)
    if {layer.name: len(layer.bias) for layer in layers} == _AESTHETIC:
        return [_FUNCTIONS["none"]] * (len(layers) - 1)
    numbers = [re.fullmatch(r"(?:.*\.)?(\d+)", layer.name) for layer in layers]
    gaps = [int(b[1]) - int(a[1]) if a and b else 2 for a, b in itertools.pairwise(numbers)]
    if gaps and max(gaps) == 1:
        raise ModelError(f"{path} does not say what is between its layers: set activation to {', '.join(_FUNCTIONS)}")
    return [_FUNCTIONS["none" if gap == 1 else "relu"] for gap in gaps]


def sigmoid(x: Any) -> Any:
    """Returns 1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))
