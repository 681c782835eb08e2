"""Linear layers for inference: weights are packed once, when the network is loaded.

A layer multiplies with its weights in one of two ways:

- As torch does: on a GPU, and in float32 with many rows, where other layouts (oneDNN's, MKL's) gain too little
  (docs/performance.md).
- Packed in oneDNN's own layout, to avoid repacking on every call: in float32 with few rows, as in decoders, and in
  bf16 on a CPU with bf16 instructions. An activation that follows is computed with the product, and patches are cut
  and multiplied instead of convolved.
"""

from __future__ import annotations

import itertools
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

#: Where transformers' blocks keep a linear layer and the activation that follows it.
_FOLLOWED = (("fc1", "activation_fn"), ("dense", "intermediate_act_fn"))

_NOTHING, _SWISH = ("none", ""), ("swish", "")
#: Activations by their class in transformers -> oneDNN's name and algorithm.
_ACTIVATIONS = {"GELUActivation": ("gelu", "none"), "GELUTanh": ("gelu", "tanh"), "QuickGELUActivation": _SWISH}
_QUICK = 1.702  # QuickGELU(x) = x * sigmoid(1.702 x) = swish(1.702 x) / 1.702

Network = TypeVar("Network", bound="torch.nn.Module")


class Linear:
    """One or several linear layers with the same input as one product. All of them have a bias, or none has.

    `many_rows`: inputs have about 1,000 rows, not about 100. `activation`: oneDNN's name and algorithm of one that
    follows, if the weights are packed.
    """

    def __init__(
        self, *layers: torch.nn.Linear, many_rows: bool = False, activation: tuple[str, str] = _NOTHING
    ) -> None:
        import torch

        weight = torch.cat([layer.weight.detach() for layer in layers])
        biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
        bias = torch.cat(biases) if biases else None
        self.packed = _packs(weight, many_rows)
        self._weight, self._bias, self._activation = weight, bias, activation
        if self.packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        import torch

        if self.packed:
            name, algorithm = self._activation
            found: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, name, [], algorithm)
            return found
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
    followed: dict[Any, tuple[str, str]] = {}
    for block, (first, then) in itertools.product(network.modules(), _FOLLOWED):
        layer, activation = getattr(block, first, None), type(getattr(block, then, None)).__name__
        known = activation in _ACTIVATIONS and (_ACTIVATIONS[activation] != _SWISH or hasattr(block, "fc2"))
        if known and type(layer) is torch.nn.Linear and _packs(layer.weight, many_rows=True):
            followed[layer] = _ACTIVATIONS[activation]
            setattr(block, then, torch.nn.Identity())
            if followed[layer] == _SWISH:
                layer.weight.data *= _QUICK
                layer.bias.data *= _QUICK
                block.fc2.weight.data /= _QUICK  # type: ignore[union-attr, operator]
    # Not subclasses of Linear: torch's own attention, for one, reads their weights.
    for each in network.modules():
        if type(each) is torch.nn.Linear and _packs(each.weight, many_rows=True):
            product = Linear(each, many_rows=True, activation=followed.get(each, _NOTHING))
            each.forward = product  # type: ignore[method-assign, assignment]
            each.weight = torch.nn.Parameter(each.weight.new_empty(0), requires_grad=False)
        elif isinstance(each, torch.nn.Conv2d) and _cuts_patches(each) and _packs(each.weight, many_rows=True):
            each.forward = _multiply_patches(each)  # type: ignore[method-assign, assignment]
    return network


def _cuts_patches(layer: torch.nn.Conv2d) -> bool:
    """Whether a convolution is one of patches that do not overlap."""
    plain = layer.groups == 1 and layer.padding in ((0, 0), "valid") and layer.dilation == (1, 1)
    return plain and layer.stride == layer.kernel_size


def _multiply_patches(layer: torch.nn.Conv2d) -> Callable[[torch.Tensor], torch.Tensor]:
    """Returns a convolution of patches as one product."""
    import torch

    high, wide = layer.kernel_size
    flat = torch.nn.Linear(1, 1, bias=False)
    flat.weight = torch.nn.Parameter(layer.weight.detach().permute(0, 2, 3, 1).flatten(1))  # (d, high * wide * c)
    flat.bias = layer.bias  # type: ignore[assignment]
    product = Linear(flat, many_rows=True)

    def multiply(images: torch.Tensor) -> torch.Tensor:
        n, c, height, width = images.shape
        i, j = height // high, width // wide  # what is left at the edges is in no patch
        rows = images[:, :, : i * high, : j * wide].permute(0, 2, 3, 1).reshape(n, i, high, j, wide, c)
        cut = rows.transpose(2, 3).reshape(n, i, j, high * wide * c)
        return product(cut).permute(0, 3, 1, 2)

    return multiply


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
