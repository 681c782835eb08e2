"""Linear layers of networks that only run: laid out or rounded once, when the network is loaded.

Three ways to multiply with a layer's weights:

- plain: as torch does it. For float32 with many rows, where other layouts gain little, and for everything on a GPU.
- packed: in oneDNN's own layout. For float32 with few rows, as decoders have, and for bf16 on a CPU with bf16
  instructions. Otherwise every call would reorder every weight, which matters more the fewer rows it multiplies.
- rounded, int8 on a CPU: weights and inputs are rounded to whole numbers, and their products added up exactly.

**int8.** A weight is w = s_w q, with one scale s_w for each output of a layer and |q| <= 63; an input x = s_x p, with
one scale s_x for each row (a token or a patch) and |p| <= 127. Scales make the largest number of their row fit. The
sum of q p over the inputs is exact; the result, s_w s_x times it plus the bias, depends on nothing else in the batch.

Weights stop at 63 and not at 127 because processors without VNNI add two products in 16 bits and silently saturate: at
127, sums of random numbers were wrong by up to a fifth of the largest. 255 x 63 x 2 < 2^15, so every processor computes
the same numbers. Inputs need the eighth bit more: some of a token's numbers are many times larger than the rest.

Source: Jacob et al. 2018, "Quantization and training of neural networks for efficient integer-arithmetic-only
    inference", section 2 (whole numbers and scales); Dettmers et al. 2022, "LLM.int8()" (a scale for each row of inputs
    and each output).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tamis.data import Device

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

#: The largest whole number of a weight, and of an input.
WEIGHT_LEVELS, INPUT_LEVELS = 63, 127

#: Added to an input's whole number, since oneDNN multiplies unsigned numbers fastest.
_ZERO = 128

#: Added to a number before its fraction is cut: this rounds it, and shifts it by `_ZERO`.
_UP = _ZERO + 0.5

#: Lower bound of the largest number of a row: zeros would have no scale otherwise.
_TINY = 1e-30

#: The number of rows that oneDNN lays weights out for; any number can be multiplied.
_ROWS = 64

Network = TypeVar("Network", bound="torch.nn.Module")


class Linear:
    """One or several linear layers with the same input, multiplied together, for networks that are not trained.

    Attributes:
        layout: of the weights: torch's own, oneDNN's, or int8.
    """

    layout: Literal["plain", "packed", "rounded"]

    def __init__(self, *layers: torch.nn.Linear, rounded: bool = False, many_rows: bool = False) -> None:
        """Lays the weights out.

        Args:
            layers: of one width of input, all with a bias or all without.
            rounded: to int8, from float32 on a CPU.
            many_rows: inputs will have some 1,000 rows, not some 100.
        """
        import torch

        weight = torch.cat([layer.weight.detach() for layer in layers])
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        bias = torch.cat(biases) if biases else None
        self.layout = "rounded" if rounded else "packed" if _packs(weight, many_rows) else "plain"
        if self.layout == "rounded":
            self._multiply: Callable[[torch.Tensor], torch.Tensor] = _Rounded(weight, bias)
        elif self.layout == "packed":
            packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
            self._multiply = lambda x: torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")
        else:
            self._multiply = lambda x: torch.nn.functional.linear(x, weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Returns (..., outputs) of an input (..., inputs), in the input's type."""
        return self._multiply(x)


def for_inference(network: Network, device: Device) -> Network:
    """Makes the linear layers of a network fast, in place. It must not be trained again.

    With int8 only those in its repeated layers (a `ModuleList`) are rounded. Embeddings, projections into a shared
    space and heads are little work and matter most: they stay in float32, as do norms, attention and activations.
    """
    import torch

    if device.kind != "cpu":
        return network
    lists = tuple(f"{name}." for name, one in network.named_modules() if isinstance(one, torch.nn.ModuleList))
    # Not subclasses of Linear: other code reads their weights, for example torch's own attention.
    for name, layer in network.named_modules():
        rounded = device.precision == "int8" and name.startswith(lists)
        if type(layer) is torch.nn.Linear and (rounded or _packs(layer.weight, many_rows=True)):
            layer.forward = Linear(layer, rounded=rounded, many_rows=True)  # type: ignore[method-assign, assignment]
            layer.weight = torch.nn.Parameter(layer.weight.new_empty(0), requires_grad=False)
    return network


class _Rounded:
    """Multiplies in int8."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        import torch

        self._scales = weight.abs().amax(1).clamp(min=_TINY) / WEIGHT_LEVELS  # (outputs,)
        whole = (weight / self._scales[:, None]).round().to(torch.int8)
        self._bias = weight.new_zeros(len(weight)) if bias is None else bias
        self._zeros = torch.zeros(len(weight), dtype=torch.int64)
        self._exact = multiplies_int8()
        self._weight = torch.ops.onednn.qlinear_prepack(whole, [_ROWS, weight.shape[1]]) if self._exact else whole

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        import torch

        rows = x.reshape(-1, x.shape[-1])
        if not len(rows):
            return x.new_empty(*x.shape[:-1], len(self._scales))
        largest = torch.maximum(rows.amax(1, keepdim=True), -rows.amin(1, keepdim=True)).clamp_(min=_TINY)
        # Separate steps: whether a product and a sum are fused, and rounded once, can depend on the row's position.
        whole = (rows * (INPUT_LEVELS / largest)).add_(_UP).to(torch.uint8)
        found = torch.addcmul(self._bias, self._sums(whole), largest / INPUT_LEVELS)
        return found.view(*x.shape[:-1], -1)

    def _sums(self, whole: torch.Tensor) -> torch.Tensor:
        """Returns (rows, outputs) float32: the sums of products, times the weights' scales."""
        if self._exact:
            return _product(whole, self._weight, self._scales, self._zeros)
        return ((whole.double() - _ZERO) @ self._weight.double().T).float() * self._scales


def _product(whole: torch.Tensor, packed: Any, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """Multiplies inputs (rows, inputs) of uint8 with packed weights."""
    import torch

    found: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
        whole, 1.0, _ZERO, packed, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return found


@cache
def multiplies_int8() -> bool:
    """Whether torch's int8 product is exact on this processor, tried with the largest numbers.

    If not, the same sums are made in float64, slower than float32.
    """
    import torch

    inputs = torch.tensor([255, 1] * 40 + [255] * 80, dtype=torch.uint8).view(2, 80)
    weight = torch.tensor([[WEIGHT_LEVELS] * 80, [-WEIGHT_LEVELS] * 80, [WEIGHT_LEVELS, -WEIGHT_LEVELS] * 40])
    wanted = (inputs.long() - _ZERO) @ weight.T
    try:
        packed = torch.ops.onednn.qlinear_prepack(weight.to(torch.int8), [_ROWS, 80])
        found = _product(inputs, packed, torch.ones(3), torch.zeros(3, dtype=torch.int64))
        exact = bool((found == wanted).all())
    except (AttributeError, RuntimeError) as error:
        log.info("torch's int8 product: %s", error)
        exact = False
    if not exact:
        log.warning("torch's int8 product is not exact on this processor: using float64, which is slow")
    return exact


def _packs(weight: torch.Tensor, many_rows: bool) -> bool:
    """Whether weights are worth packing: bf16 on a CPU with bf16 instructions, or float32 for few rows."""
    import torch

    if weight.device.type != "cpu" or not _can_pack():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # not with AVX2 alone
    return weight.dtype == torch.float32 and not many_rows


@cache
def _can_pack() -> bool:
    """Whether this build of torch can bring weights into oneDNN's own layout."""
    import torch

    able: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return able and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
