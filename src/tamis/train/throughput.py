"""How well a training uses its hardware: model FLOPs utilisation."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tamis.data import Precision

if TYPE_CHECKING:
    import torch

#: Floating-point operations per second on dense bf16 matrices, as NVIDIA's data sheets give them.
PEAKS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "A10": 125e12,
}


def peak(device: torch.device, precision: Precision) -> float:
    """Returns how many floating-point operations per second a device could do.

    In bf16 on a GPU of `PEAKS` it is the data sheet's number, as MFU is understood (Chowdhery et al. 2022, "PaLM",
    appendix B). Elsewhere (CPUs, float32, other GPUs) it is what a large product of matrices reaches, the best of
    three: so a utilisation there is that of what the hardware does, not of what it is sold as.
    """
    import torch

    if device.type == "cuda" and precision == "bf16":
        name = torch.cuda.get_device_name(device)
        for known, number in PEAKS.items():
            if all(part in name for part in known.split()):
                return number
    return product_rate(device, precision, side=4096 if device.type == "cuda" else 768)


def product_rate(device: torch.device, precision: Precision, *, side: int, rounds: int = 4) -> float:
    """Returns the floating-point operations per second of a product of square matrices, the best of some rounds.

    Args:
        device, precision: where, and in what: float32 unless it is bf16.
        side: of the matrices.
        rounds: products, of which the first warms up.
    """
    import torch

    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    one = torch.ones(side, side, dtype=kind, device=device)
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        float((one @ one)[0, 0])
        best = min(best, time.perf_counter() - start)
    return float(2 * side**3 / best)


def forward_flops(call: Callable[[], Any]) -> int:
    """Returns the floating-point operations of what a call multiplies, without gradients."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counted:
        call()
    return int(counted.get_total_flops())
