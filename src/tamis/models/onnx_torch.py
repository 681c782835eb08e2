"""Networks in ONNX files as torch modules: they run where torch runs, and in its batches.

The operators are those of PP-OCR's detector and recogniser, as ONNX's operator set 11 defines them
(github.com/onnx/onnx, docs/Operators.md).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from tamis.core.errors import ModelError, require
from tamis.core.types import Device

log = logging.getLogger(__name__)


class UnknownOperator(ModelError):
    """A network has an operator, or a setting of one, that is not translated here."""


def load_on_device(path: Path, device: Device) -> Callable[[NDArray[np.float32]], NDArray[np.float32]] | None:
    """Loads a network as a function from one float32 array to its output; None if it has an unknown operator.

    It computes in float32 without TF32. On a CPU its numbers are those of ONNX Runtime to 1e-5.
    """
    try:
        network = OnnxNetwork(path).to(device.kind)
    except UnknownOperator as error:
        log.warning("%s: the network stays on the CPU", error)
        return None

    def run(batch: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            found: NDArray[np.float32] = network(torch.from_numpy(batch).to(device.kind)).cpu().numpy()
        return found

    return run


class OnnxNetwork(nn.Module):
    """A network with one input and one output. Its weights are buffers; shapes and other integers stay on the CPU.

    Raises UnknownOperator for a network that needs more than `_OPERATORS`.
    """

    def __init__(self, path: Path) -> None:
        require("onnx", extra="text")
        import onnx

        super().__init__()
        graph = onnx.load(str(path)).graph
        self._integers: dict[str, Tensor] = {}
        self._buffers_of: dict[str, str] = {}  # name in the file, which may have dots -> name of the buffer
        for number, stored in enumerate(graph.initializer):
            value = torch.from_numpy(onnx.numpy_helper.to_array(stored).copy())
            if value.is_floating_point():
                self._buffers_of[stored.name] = f"weight{number}"
                self.register_buffer(f"weight{number}", value)
            else:
                self._integers[stored.name] = value
        constants = self._integers.keys() | self._buffers_of.keys()
        self._entry = next(value.name for value in graph.input if value.name not in constants)
        self._steps: list[tuple[Callable[..., Tensor], list[str], str, dict[str, Any]]] = []
        same: dict[str, str] = {}  # output of an identity -> its input
        for node in graph.node:
            inputs = [same.get(name, name) for name in node.input]
            settings = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
            if node.op_type == "Identity":
                same[node.output[0]] = inputs[0]
            elif node.op_type in _OPERATORS and _is_known(node.op_type, settings):
                self._steps.append((_OPERATORS[node.op_type], inputs, node.output[0], settings))
            else:
                raise UnknownOperator(f"{path} has the operator {node.op_type} with {settings}, unknown here")
        self._exit = same.get(graph.output[0].name, graph.output[0].name)
        last = {name: number for number, (_, inputs, _, _) in enumerate(self._steps) for name in inputs}
        self._finished: list[list[str]] = [[] for _ in self._steps]  # values that no later step reads
        for name in last.keys() - constants - {self._exit, ""}:
            self._finished[last[name]].append(name)

    def forward(self, batch: Tensor) -> Tensor:
        """Returns the network's output for its input."""
        values: dict[str, Tensor | None] = {"": None, self._entry: batch, **self._integers}
        values |= {name: self.get_buffer(buffer) for name, buffer in self._buffers_of.items()}
        for (operator, inputs, output, settings), finished in zip(self._steps, self._finished, strict=True):
            values[output] = operator(*(values[name] for name in inputs), **settings)
            for name in finished:
                del values[name]
        found = values[self._exit]
        assert found is not None
        return found


def _is_known(operator: str, settings: dict[str, Any]) -> bool:
    """Whether an operator is translated with these settings."""
    if operator == "Resize":
        nearest = {"mode": b"nearest", "coordinate_transformation_mode": b"asymmetric", "nearest_mode": b"floor"}
        return settings == nearest
    padded = any(settings.get("pads", ()))
    if operator in ("ConvTranspose", "AveragePool") and padded:
        return False
    return settings.get("auto_pad", b"NOTSET") in (b"NOTSET", b"SAME_UPPER")


def _pad(values: Tensor, kernel: Sequence[int], settings: dict[str, Any], fill: float = 0.0) -> Tensor:
    """Pads height and width. SAME_UPPER: ceil(size / stride) entries come out, and an odd one is added at the end."""
    top, left, bottom, right = settings.get("pads", (0, 0, 0, 0))
    if settings.get("auto_pad") == b"SAME_UPPER":
        both = zip(values.shape[2:], kernel, settings.get("strides", (1, 1)), strict=True)
        down, across = (max(0, (-(-size // stride) - 1) * stride + side - size) for size, side, stride in both)
        top, left, bottom, right = down // 2, across // 2, down - down // 2, across - across // 2
    pads = (left, right, top, bottom)
    return functional.pad(values, pads, value=fill) if any(pads) else values


def _conv(values: Tensor, weight: Tensor, bias: Tensor | None = None, **settings: Any) -> Tensor:
    values = _pad(values, weight.shape[2:], settings)
    stride, dilation = settings.get("strides", [1, 1]), settings.get("dilations", [1, 1])
    return functional.conv2d(values, weight, bias, stride, dilation=dilation, groups=settings.get("group", 1))


def _conv_transpose(values: Tensor, weight: Tensor, bias: Tensor | None = None, **settings: Any) -> Tensor:
    stride, dilation = settings.get("strides", [1, 1]), settings.get("dilations", [1, 1])
    return functional.conv_transpose2d(values, weight, bias, stride, groups=settings.get("group", 1), dilation=dilation)


def _max_pool(values: Tensor, **settings: Any) -> Tensor:
    values = _pad(values, settings["kernel_shape"], settings, -torch.inf)
    stride = settings.get("strides", [1, 1])
    return functional.max_pool2d(values, settings["kernel_shape"], stride, ceil_mode=bool(settings.get("ceil_mode")))


def _average_pool(values: Tensor, **settings: Any) -> Tensor:
    stride = settings.get("strides", [1, 1])
    return functional.avg_pool2d(values, settings["kernel_shape"], stride, ceil_mode=bool(settings.get("ceil_mode")))


def _reshape(values: Tensor, shape: Tensor) -> Tensor:
    return values.reshape([size or values.shape[axis] for axis, size in enumerate(shape.tolist())])


def _slice(values: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Any = None) -> Tensor:
    parts = [slice(None)] * values.ndim
    for place in range(len(starts)):
        step = None if steps is None else int(steps[place])
        parts[place if axes is None else int(axes[place])] = slice(int(starts[place]), int(ends[place]), step)
    return values[tuple(parts)]


def _unsqueeze(values: Tensor, *, axes: Sequence[int]) -> Tensor:
    for axis in sorted(axes):
        values = values.unsqueeze(axis)
    return values


_OPERATORS: dict[str, Callable[..., Tensor]] = {
    "Add": torch.add,
    "AveragePool": _average_pool,
    "BatchNormalization": lambda values, scale, shift, mean, variance, *, epsilon=1e-5, momentum=0.9: (
        functional.batch_norm(values, mean, variance, scale, shift, eps=epsilon)
    ),
    "Concat": lambda *values, axis: torch.cat(values, axis),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Div": torch.div,
    "Erf": torch.erf,
    "GlobalAveragePool": lambda values: values.mean((2, 3), keepdim=True),
    "HardSigmoid": lambda values, *, alpha=0.2, beta=0.5: (alpha * values + beta).clamp(0, 1),
    "MatMul": torch.matmul,
    "MaxPool": _max_pool,
    "Mul": torch.mul,
    "Pow": torch.pow,
    "ReduceMean": lambda values, *, axes, keepdims=1: values.mean(axes, keepdim=bool(keepdims)),
    "Relu": torch.relu,
    "Reshape": _reshape,
    "Resize": lambda values, _, scales, **nearest: functional.interpolate(values, scale_factor=scales.tolist()[2:]),
    "Shape": lambda values: torch.tensor(values.shape),
    "Sigmoid": torch.sigmoid,
    "Slice": _slice,
    "Softmax": lambda values, *, axis=-1: values.softmax(axis),
    "Sqrt": torch.sqrt,
    "Squeeze": lambda values, *, axes: values.squeeze(tuple(axes)),
    "Sub": torch.sub,
    "Transpose": lambda values, *, perm: values.permute(*perm),
    "Unsqueeze": _unsqueeze,
}
