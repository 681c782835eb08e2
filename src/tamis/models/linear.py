"""Linear layers of networks that only run: laid out or rounded once, when the network is loaded.

Three ways to multiply with a layer's weights, by the device's precision:

- float32 with many rows, and whatever runs on a GPU: as torch does it. In a tower's layers other layouts (oneDNN's,
  MKL's) give less than a second way must give to be worth it (docs/performance.md).
- float32 with few rows, as decoders have, and bf16 on a CPU that multiplies it: in oneDNN's own layout. Else every
  weight would be brought into some layout at every call, which takes the longer the fewer rows are multiplied with it.
- int8 on a CPU: weights and inputs are rounded to whole numbers, and these multiplied and added up exactly.

**int8.** A weight is w = s_w q, with one scale s_w for each output of a layer and |q| <= 63; an input x = s_x p, with
one scale s_x for each row (a token, or a patch) and |p| <= 127. Scales make the largest number of their row fit. The
sum of q p over the inputs is exact; the result, s_w s_x times it plus the bias, depends on nothing else in the batch.

Why weights stop at 63 and not at 127: processors without VNNI add two products in 16 bits and cut what does not fit,
without a word; at 127 sums of random numbers came out wrong by up to a fifth of the largest. 255 x 63 x 2 < 2^15, so
every processor adds up the same numbers, and scores of one can be compared with those of another. Of the two, inputs
need their eighth bit more: some of a token's numbers are many times larger than the rest.

Source: Jacob et al. 2018, "Quantization and training of neural networks for efficient integer-arithmetic-only
    inference", section 2 (whole numbers and scales); Dettmers et al. 2022, "LLM.int8()" (a scale for each row of inputs
    and each output).
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from tamis.data import Device

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

#: The largest whole number of a weight, and of an input.
WEIGHT_LEVELS, INPUT_LEVELS = 63, 127

#: What an input's whole number is stored above, since oneDNN multiplies unsigned ones fastest.
_ZERO = 128

#: Added to a number before its fraction is cut: then it is the nearest whole one, above `_ZERO`.
_UP = _ZERO + 0.5

#: The smallest "largest number" of a row: one of zeros has no scale otherwise.
_TINY = 1e-30

#: For how many rows oneDNN lays weights out; any number of them can be multiplied.
_ROWS = 64

Network = TypeVar("Network", bound="torch.nn.Module")


class Linear:
    """One or several linear layers with the same input, multiplied together, for networks that are not trained."""

    def __init__(self, *layers: torch.nn.Linear, rounded: bool = False, many_rows: bool = False) -> None:
        """Lays the weights out.

        Args:
            layers: of one width of input, all with a bias or all without.
            rounded: to int8, from float32 on a CPU.
            many_rows: that some 1,000 rows of input will come at once, and not some 100.
        """
        import torch

        weight = torch.cat([layer.weight.detach() for layer in layers])
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        bias = torch.cat(biases) if biases else None
        if rounded:
            self._multiply: Any = _Rounded(weight, bias)
        elif _packs(weight, many_rows):
            self._multiply = _Packed(weight, bias)
        else:
            self._multiply = _Plain(weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Returns (..., outputs) of an input (..., inputs), in the input's type."""
        found: torch.Tensor = self._multiply(x)
        return found


def for_inference(network: Network, device: Device) -> Network:
    """Makes the linear layers of a network fast, which must never be trained again.

    In int8 only those in its repeated layers (a `ModuleList`) are rounded. What stands at the ends (embeddings,
    projections into a shared space, heads that give a score) is little work and decides much: it stays in float32, as
    do norms, attention and activations.

    Args:
        network: on its device; its layers are changed in place, and let go of the weights that they no longer need.
        device: where and in which precision.

    Returns:
        The network.
    """
    import torch

    if device.kind != "cpu":
        return network
    lists = tuple(f"{name}." for name, one in network.named_modules() if isinstance(one, torch.nn.ModuleList))
    # Not what derives from Linear: others read the weights of those, attention of torch's own for one.
    for name, layer in network.named_modules():
        rounded = device.precision == "int8" and name.startswith(lists)
        if type(layer) is torch.nn.Linear and (rounded or _packs(layer.weight, many_rows=True)):
            layer.forward = Linear(layer, rounded=rounded, many_rows=True)  # type: ignore[method-assign, assignment]
            layer.weight = torch.nn.Parameter(layer.weight.new_empty(0), requires_grad=False)
    return network


class _Plain:
    """As torch multiplies."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        from torch.nn import functional as F

        return F.linear(x, self._weight, self._bias)


class _Packed:
    """Weights in oneDNN's own layout."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        import torch

        self._weight, self._bias = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS), bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        import torch

        found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return found


class _Rounded:
    """Whole numbers."""

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
        # In steps that round one by one: where a product and a sum are rounded together, it depends on the row's place.
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
    """Returns whether this build of torch, on this processor, adds up products of whole numbers without an error.

    It is tried with the largest ones, which is where processors cut. Where it is not so, the same sums are made in
    float64, slower than float32.
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
        log.warning("this build of torch does not multiply int8 here: the same numbers are made in float64, slowly")
    return exact


def _packs(weight: torch.Tensor, many_rows: bool) -> bool:
    """Tells whether weights are worth laying out: bf16, on a CPU that multiplies it, or float32 for few rows."""
    import torch

    if weight.device.type != "cpu" or not _lays_out():
        return False
    if weight.dtype == torch.bfloat16:
        return _multiplies_bf16()
    return weight.dtype == torch.float32 and not many_rows


@cache
def _lays_out() -> bool:
    """Returns whether this build of torch can bring weights into oneDNN's own layout."""
    import torch

    able: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return able and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


@cache
def _multiplies_bf16() -> bool:
    """Returns whether this build of torch, on this processor, multiplies with bf16 weights in oneDNN's own layout."""
    import torch

    able: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # not with AVX2 alone
    return able
