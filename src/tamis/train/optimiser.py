"""Which parameters are trained how: Muon for the matrices inside the layers, AdamW for the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from tamis.train.loop import Settings


class Optimiser(Protocol):
    """What the loop needs of an optimiser; torch's own have it."""

    param_groups: list[dict[str, Any]]

    def step(self) -> Any:
        """Changes the parameters by their gradients."""


class Muon:
    """Gradient descent whose step on a matrix is its momentum with all singular values set to about 1.

    Small transformers trained for a few hundred steps get further with it than with AdamW. torch's own
    `torch.optim.Muon` iterates in bfloat16, which is a hundred times slower than float32 on CPUs without such units.

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks" (the coefficients of the
    Newton-Schulz iteration); Liu et al. 2025, "Muon is scalable for LLM training", section 2.2 (the factor
    0.2 sqrt(max(rows, columns)), which makes a step as large as AdamW's).
    """

    def __init__(
        self, matrices: Sequence[torch.Tensor], *, lr: float, weight_decay: float, momentum: float = 0.95
    ) -> None:
        self.param_groups: list[dict[str, Any]] = [
            {"params": list(matrices), "lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        ]
        self._momenta: dict[torch.Tensor, torch.Tensor] = {}

    def step(self) -> None:
        """Takes one step; a matrix without a gradient stays as it is."""
        import torch

        with torch.no_grad():
            for group in self.param_groups:
                for matrix in group["params"]:
                    if matrix.grad is None:
                        continue
                    momentum = self._momenta.setdefault(matrix, torch.zeros_like(matrix))
                    momentum.lerp_(matrix.grad, 1 - group["momentum"])
                    ahead = matrix.grad.lerp(momentum, group["momentum"])  # Nesterov's
                    matrix.mul_(1 - group["lr"] * group["weight_decay"])
                    matrix.add_(orthogonalised(ahead), alpha=-group["lr"] * 0.2 * max(matrix.shape) ** 0.5)


def orthogonalised(matrix: torch.Tensor) -> torch.Tensor:
    """Returns the matrix with its singular values moved to about 1 (0.7 to 1.2), by five Newton-Schulz iterations.

    Args:
        matrix: (rows, columns), float32.
    """
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    found: torch.Tensor = x.T if tall else x
    return found


def optimisers(model: torch.nn.Module, settings: Settings) -> list[Optimiser]:
    """Returns the optimisers that together train every parameter of the model that wants a gradient."""
    import torch

    matrices, others, plain = [], [], []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        # "encoder.layers.3.mlp.fc1.weight"; the first part may be the number that a list of modules gives.
        inside = any(part.isdigit() for part in name.split(".")[1:])
        if parameter.ndim == 2 and inside and "embedding" not in name:
            matrices.append(parameter)
        elif parameter.ndim >= 2:
            others.append(parameter)
        else:
            plain.append(parameter)
    groups = [
        {"params": others, "weight_decay": settings.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    chosen: list[Optimiser] = []
    if others or plain:
        rest = [group for group in groups if group["params"]]
        chosen.append(torch.optim.AdamW(rest, lr=settings.learning_rate, betas=(0.9, 0.98)))
    if matrices:
        chosen.append(Muon(matrices, lr=settings.matrix_learning_rate, weight_decay=settings.weight_decay))
    return chosen
