"""Heads on embeddings: small networks that predict something from a vector, such as how people rate an image.

A head is a stack of linear layers in a safetensors or npz file (or in a folder that `tamis convert` wrote), or any
network in an ONNX file. It runs on the CPU in float32.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tamis.core.arrays import Float32s
from tamis.core.errors import ModelError, brief, check_file, first_line, unknown_message
from tamis.core.types import Device
from tamis.models.loading import one_sentence
from tamis.models.ocr import load_network
from tamis.models.reference import resolve, shapes_in

#: What is between two layers. "auto": what the file says, else what its names say; see `functions_between`.
Activation = Literal["auto", "none", "relu", "tanh"]
_FUNCTIONS: Mapping[str, Any] = {"none": lambda x: x, "relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}

_PARTS = {"weight": "weight", "coef_": "weight", "kernel": "kernel", "kernel:0": "kernel"}  # torch, scikit-learn, Keras
_PARTS |= {"bias": "bias", "intercept_": "bias", "bias:0": "bias"}

#: The improved aesthetic predictor has dropout between its layers, and no activation (Schuhmann's code, 2022).
_AESTHETIC = {"layers.0": 1024, "layers.2": 128, "layers.4": 64, "layers.6": 16, "layers.7": 1}

_MOST_BYTES = 1 << 30  # of a head: they have some millions of numbers

#: A function of (n, d) rows to (n, k); ModelError if it takes another d.
Network = Callable[[Float32s], Float32s]

#: Name, weight (outputs, inputs) and bias (outputs,).
Layer = tuple[str, Float32s, Float32s]


def load_head(weights: str, activation: Activation, device: Device) -> tuple[Network, str | None]:
    """Loads a head, with the name or digest of the embeddings' model if its file has one; else ModelError."""
    path = resolve(weights).path
    if path.suffix == ".onnx":
        if activation != "auto":
            raise ModelError(f"{path} holds its own activations: leave out activation: {activation}")
        return _onnx(path, dataclasses.replace(device, kind="cpu", precision="float32")), None
    tensors, about = _read(path / "model.safetensors" if path.is_dir() else path)
    layers = linear_layers(tensors, path)
    named = about.get("activation", "auto") if activation == "auto" else activation
    between = [*functions_between(layers, named, path), _FUNCTIONS["none"]]

    def network(rows: Float32s) -> Float32s:
        if rows.shape[1] != (width := layers[0][1].shape[1]):
            raise ModelError(f"{path} takes embeddings of {width} numbers, and these have {rows.shape[1]}")
        for (_, weight, bias), function in zip(layers, between, strict=True):
            rows = function(rows @ weight.T + bias)
        return rows

    return network, about.get("model")


def _onnx(path: Path, device: Device) -> Network:
    network = load_network(str(path), device)

    def run(rows: Float32s) -> Float32s:
        try:
            return network(rows)
        except Exception as error:
            if len(rows) > 1:  # many files take one row at a time
                return np.concatenate([run(row[None]) for row in rows])
            wrong = f"{path} does not take embeddings of {rows.shape[1]} numbers: {first_line(error)}"
            raise ModelError(wrong) from error

    return run


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns the arrays of a safetensors or npz file, and the metadata of the former."""
    if path.suffix not in (".safetensors", ".npz"):
        raise ModelError(f"{path} is no safetensors, npz or ONNX file: `tamis convert` reads .pth; export others")
    with one_sentence("the head", path):
        check_file(path, _MOST_BYTES)
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                size = sum(entry.file_size for entry in file.zip.infolist())
                if size > _MOST_BYTES:
                    raise ModelError(f"{path}: its arrays take {size:,} bytes, more than the limit of {_MOST_BYTES:,}")
                return {name: file[name] for name in file.files}, {}
        from safetensors import safe_open

        shapes_in(path)
        with safe_open(path, "pt") as file:  # torch's, since NumPy has no bfloat16
            return {name: file.get_tensor(name).float().numpy() for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def linear_layers(tensors: Mapping[str, Any], path: Path) -> list[Layer]:
    """Returns the layers of a head in their order; ModelError if the tensors are anything else."""
    parts: dict[str, dict[str, Any]] = {}
    for tensor in tensors:
        name, _, part = tensor.replace("/", ".").rpartition(".")
        if part not in _PARTS:
            raise ModelError(f"{path} holds {brief(tensor)}, no part of a linear layer: export the head to ONNX")
        parts.setdefault(name, {})[_PARTS[part]] = np.asarray(tensors[tensor], np.float32)
    layers: list[Layer] = []
    numbered = {name: [int(one) if one.isdecimal() else one for one in re.split(r"(\d+)", name)] for name in parts}
    for name in sorted(parts, key=numbered.__getitem__):  # "layers.10" comes after "layers.9"
        found = parts[name]
        weight = found["kernel"].T if "kernel" in found else np.atleast_2d(found.get("weight", np.empty(0)))
        bias = found.get("bias", np.zeros(len(weight), np.float32)).reshape(-1)
        inputs = len(layers[-1][2]) if layers else weight.shape[-1]
        if weight.ndim != 2 or weight.shape[1] != inputs or not inputs or bias.shape != weight.shape[:1]:
            wrong = f"{path}: {name or 'its tensor'} is {weight.shape}, no linear layer of {inputs} inputs"
            raise ModelError(f"{wrong}: it is no stack of layers. Export the head to ONNX")
        layers.append((name, weight, bias))
    if not layers:
        raise ModelError(f"{path} holds no layer")
    return layers


def functions_between(layers: Sequence[Layer], activation: str, path: Path) -> list[Callable[[Any], Any]]:
    """Returns the function after each layer but the last.

    With "auto" it is ReLU, but nothing in the improved aesthetic predictor, and nothing between layers whose numbers
    follow each other (`layers.15` and `layers.16` of a Sequential). ModelError if all do: then names say nothing.
    """
    outputs = {re.sub(r"^.*layers\.", "layers.", name): len(bias) for name, _, bias in layers}
    if activation == "auto" and outputs == _AESTHETIC:
        activation = "none"
    if activation != "auto":
        if activation not in _FUNCTIONS:
            raise ModelError(f"{path}: {unknown_message('activation', activation, _FUNCTIONS)}")
        return [_FUNCTIONS[activation]] * (len(layers) - 1)
    numbers = [re.fullmatch(r"(?:.*\.)?(\d+)", name) for name, *_ in layers]
    follows = [bool(a and b and int(b[1]) == int(a[1]) + 1) for a, b in itertools.pairwise(numbers)]
    if follows and all(follows):
        raise ModelError(f"{path} does not say what is between its layers: set activation to {', '.join(_FUNCTIONS)}")
    return [_FUNCTIONS["none" if one else "relu"] for one in follows]
