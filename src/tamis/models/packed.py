"""Linear layers for inference: weights are packed or rounded once, when the network is loaded.

A layer multiplies with its weights in one of three ways:

- As torch does: on a GPU, and in float32 with many rows, where other layouts (oneDNN's, MKL's) gain too little
  (docs/performance.md).
- Packed in oneDNN's own layout, to avoid repacking on every call: in float32 with few rows, as in decoders, and in
  bf16 on a CPU with bf16 instructions.
- int8 on a CPU: weights and inputs are rounded to integers, which are multiplied and summed exactly.

**int8.** A weight is w = s_w q, with one scale s_w per output and |q| <= 63; an input is x = s_x p, with one scale s_x
per row (a token or a patch) and |p| <= 127. Each scale is chosen so that the largest number of its row just fits. The
sum of q p over the inputs is exact; the result, s_w s_x times that sum plus the bias, does not depend on the batch.

Weights stop at 63 instead of 127 because processors without VNNI add two products in 16 bits and silently saturate: at
127, sums of random numbers were wrong by up to a fifth of the largest. 255 x 63 x 2 < 2^15, so all processors compute
the same sums, and their scores can be compared. Inputs keep their eighth bit because some numbers of a token are many
times larger than the rest.

Source: Jacob et al. 2018, "Quantization and training of neural networks for efficient integer-arithmetic-only
    inference", section 2 (integers and scales); Dettmers et al. 2022, "LLM.int8()" (a scale for each row of inputs and
    each output).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tamis.data import Device
from tamis.models.device import dtype_of, use_threads
from tamis.models.loading import load_whole

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

#: The largest integers of weights and of inputs.
WEIGHT_LEVELS, INPUT_LEVELS = 63, 127

_ZERO = 128  # added to the integers of inputs: oneDNN multiplies unsigned ones fastest
_ROUND = _ZERO + 0.5  # added before the fraction is cut, to round to the nearest integer above _ZERO
_TINY = 1e-30  # least "largest number" of a row, for rows of zeros
_ROWS = 64  # number of rows for which oneDNN packs weights; any number can be multiplied

Network = TypeVar("Network", bound="torch.nn.Module")


class Linear:
    """One or several linear layers with the same input as one product. All of them have a bias, or none has.

    `many_rows`: inputs have about 1,000 rows, not about 100.
    """

    def __init__(self, *layers: torch.nn.Linear, int8: bool = False, many_rows: bool = False) -> None:
        import torch

        weight = torch.cat([layer.weight.detach() for layer in layers])
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        bias = torch.cat(biases) if biases else None
        self.packed = not int8 and _packs(weight, many_rows)
        if int8:
            self._multiply: Callable[[torch.Tensor], torch.Tensor] = _Int8(weight, bias)
        elif self.packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
            self._multiply = lambda x: torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        else:
            self._multiply = lambda x: torch.nn.functional.linear(x, weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._multiply(x)


def load_for_inference(
    cls: Any, path: Path, model: str, device: Device, *, expected: str, unneeded: Callable[[str], bool] | None = None
) -> Any:
    """Loads a network with `load_whole`, puts it on its device, and packs or rounds its linear layers."""
    use_threads(device)
    network = load_whole(cls, path, model, expected=expected, unneeded=unneeded, dtype=dtype_of(device))
    return for_inference(network.to(device.kind), device)


def for_inference(network: Network, device: Device) -> Network:
    """Packs or rounds the linear layers of a network in place; it can no longer be trained.

    int8 rounds only the repeated layers, inside a `ModuleList`. Layers at the ends (embeddings, projections, heads) are
    little work and matter more: they stay in float32, as do norms, attention and activations.
    """
    import torch

    if device.kind != "cpu":
        return network
    lists = tuple(f"{name}." for name, one in network.named_modules() if isinstance(one, torch.nn.ModuleList))
    # Not subclasses of Linear: torch's own attention, for one, reads their weights.
    for name, layer in network.named_modules():
        int8 = device.precision == "int8" and name.startswith(lists)
        if type(layer) is torch.nn.Linear and (int8 or _packs(layer.weight, many_rows=True)):
            layer.forward = Linear(layer, int8=int8, many_rows=True)  # type: ignore[method-assign, assignment]
            layer.weight = torch.nn.Parameter(layer.weight.new_empty(0), requires_grad=False)
    return network


class _Int8:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        import torch

        self._scales = weight.abs().amax(1).clamp(min=_TINY) / WEIGHT_LEVELS  # (outputs,)
        integers = (weight / self._scales[:, None]).round().to(torch.int8)
        self._bias = weight.new_zeros(len(weight)) if bias is None else bias
        self._zeros = torch.zeros(len(weight), dtype=torch.int64)
        self._fast = multiplies_int8()
        shape = [_ROWS, weight.shape[1]]
        self._weight = torch.ops.onednn.qlinear_prepack(integers, shape) if self._fast else integers

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        import torch

        rows = x.reshape(-1, x.shape[-1])
        if not len(rows):
            return x.new_empty(*x.shape[:-1], len(self._scales))
        largest = torch.maximum(rows.amax(1, keepdim=True), -rows.amin(1, keepdim=True)).clamp_(min=_TINY)
        # Separate steps, because fused ones round differently depending on a row's position.
        integers = (rows * (INPUT_LEVELS / largest)).add_(_ROUND).to(torch.uint8)
        result = torch.addcmul(self._bias, self._sums(integers), largest / INPUT_LEVELS)
        return result.view(*x.shape[:-1], -1)

    def _sums(self, integers: torch.Tensor) -> torch.Tensor:
        """Returns (rows, outputs) float32: the sums of products, times the weights' scales."""
        if self._fast:
            return _product(integers, self._weight, self._scales, self._zeros)
        return ((integers.double() - _ZERO) @ self._weight.double().T).float() * self._scales


def _product(integers: torch.Tensor, packed: Any, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    import torch

    multiply: Callable[..., torch.Tensor] = torch.ops.onednn.qlinear_pointwise
    return multiply(integers, 1.0, _ZERO, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], "")


@cache
def multiplies_int8() -> bool:
    """Whether torch adds up int8 products exactly here, tried with the largest numbers; else float64 does, slower."""
    import torch

    inputs = torch.tensor([255, 1] * 40 + [255] * 80, dtype=torch.uint8).view(2, 80)
    weight = torch.tensor([[WEIGHT_LEVELS] * 80, [-WEIGHT_LEVELS] * 80, [WEIGHT_LEVELS, -WEIGHT_LEVELS] * 40])
    expected = (inputs.long() - _ZERO) @ weight.T
    try:
        packed = torch.ops.onednn.qlinear_prepack(weight.to(torch.int8), [_ROWS, 80])
        result = _product(inputs, packed, torch.ones(3), torch.zeros(3, dtype=torch.int64))
        exact = bool((result == expected).all())
    except (AttributeError, RuntimeError) as error:
        log.info("torch's int8 product: %s", error)
        exact = False
    if not exact:
        log.warning("torch cannot multiply int8 on this processor: computing the same numbers in float64, slowly")
    return exact


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
