"""Linear layers for inference: weights are packed once, when the network is loaded.

A layer multiplies with its weights in one of two ways:

- As torch does: on a GPU, and in float32 with many rows, where other layouts (oneDNN's, MKL's) gain too little
  (docs/performance.md).
- Packed in oneDNN's own layout, to avoid repacking on every call: in float32 with few rows, as in decoders, and in
  bf16 on a CPU with bf16 instructions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tamis.core.types import Device
from tamis.models.device import dtype_of, use_threads
from tamis.models.loading import load_whole

if TYPE_CHECKING:
    import torch

_ROWS = 64  # number of rows for which oneDNN packs weights; any number can be multiplied

Network = TypeVar("Network", bound="torch.nn.Module")


class Linear:
    """One or several linear layers with the same input as one product. All of them have a bias, or none has.

    `many_rows`: inputs have about 1,000 rows, not about 100.
    """

    def __init__(self, *layers: torch.nn.Linear, many_rows: bool = False) -> None:
        import torch

        weight = torch.cat([layer.weight.detach() for layer in layers])
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        bias = torch.cat(biases) if biases else None
        self.packed = _packs(weight, many_rows)
        self._weight, self._bias = weight, bias
        if self.packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        import torch

        if self.packed:
            product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return product
        return torch.nn.functional.linear(x, self._weight, self._bias)


def load_for_inference(
    cls: Any, path: Path, model: str, device: Device, *, expected: str, unneeded: Callable[[str], bool] | None = None
) -> Any:
    """Loads a network with `load_whole`, puts it on its device, and packs its linear layers."""
    use_threads(device)
    network = load_whole(cls, path, model, expected=expected, unneeded=unneeded, dtype=dtype_of(device))
    return for_inference(network.to(device.kind), device)


def for_inference(network: Network, device: Device) -> Network:
    """Packs the linear layers of a network in place; it can no longer be trained."""
    import torch

    if device.kind != "cpu":
        return network
    # Not subclasses of Linear: torch's own attention, for one, reads their weights.
    for layer in network.modules():
        if type(layer) is torch.nn.Linear and _packs(layer.weight, many_rows=True):
            layer.forward = Linear(layer, many_rows=True)  # type: ignore[method-assign, assignment]
            layer.weight = torch.nn.Parameter(layer.weight.new_empty(0), requires_grad=False)
    return network


def _packs(weight: torch.Tensor, many_rows: bool) -> bool:
    """Whether packing pays off: bf16 on a CPU with bf16 instructions, or float32 with few rows."""
    import torch

    if weight.device.type != "cpu" or weight.dtype not in (torch.bfloat16, torch.float32):
        return False
    bf16 = weight.dtype == torch.bfloat16
    return (bf16 or not many_rows) and _can_pack(bf16=bf16)


@cache
def _can_pack(*, bf16: bool) -> bool:
    """Whether this torch can pack weights, and multiply bf16 on this processor (AVX2 is not enough)."""
    import torch

    able: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    able = able and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    return able and (not bf16 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported()))
