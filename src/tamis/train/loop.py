"""The training loop: it knows optimisation and nothing of what is trained."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from tamis.data import Precision

if TYPE_CHECKING:
    import torch

    from tamis.train.optimiser import Optimiser

log = logging.getLogger(__name__)

Batch = TypeVar("Batch")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to optimise; what is optimised is passed to `fit`.

    Attributes:
        steps: how many batches.
        learning_rate: peak for embeddings, heads, biases and norms, which AdamW trains.
        matrix_learning_rate: peak for the weight matrices inside the layers, which Muon trains.
        weight_decay: of everything with two or more dimensions.
        warmup: steps over which the rates rise linearly to their peak; after it they fall along a half cosine, which
            would reach the floor at the step after the last.
        floor: share of the peak at which they end.
        clip_norm: longest gradient that is not shortened; infinite to shorten none.
        report_every: steps between two lines of the log; None writes none.
    """

    steps: int
    learning_rate: float = 1e-3
    matrix_learning_rate: float = 1e-2
    weight_decay: float = 0.05
    warmup: int = 50
    floor: float = 0.02
    clip_norm: float = 1.0
    report_every: int | None = 50

    def shortened(self, effort: float) -> Settings:
        """Returns the same settings with a share of the steps, at least two."""
        return replace(self, steps=max(2, round(self.steps * effort)))

    def rate(self, step: int) -> float:
        """Returns the share of the peak rates at a step, counted from 0: in (0, 1]."""
        rising = min(1.0, (step + 1) / max(1, self.warmup))
        fallen = max(0, step - self.warmup) / max(1, self.steps - self.warmup)
        falling = 0.5 * (1 + math.cos(math.pi * fallen))
        return rising * (self.floor + (1 - self.floor) * falling)


def fit(
    model: torch.nn.Module,
    loss: Callable[[Batch], torch.Tensor],
    batches: Iterator[Batch],
    settings: Settings,
    *,
    precision: Precision = "float32",
    after_step: Callable[[int], None] | None = None,
    chosen: Sequence[Optimiser] | None = None,
    backward: Callable[[torch.Tensor], None] | None = None,
    first: int = 0,
) -> list[float]:
    """Trains a model in place.

    Args:
        model: holds every parameter that is trained; those with `requires_grad=False` stay as they are.
        loss: gives a scalar for a batch; it calls the model as it likes.
        batches: yields at least `settings.steps` batches, already on the model's device.
        settings: how to optimise.
        precision: "bf16" lets torch multiply matrices in bfloat16 where it holds that to be safe (autocast); weights,
            gradients and losses stay float32.
        after_step: called with the number of each finished step, counted from 1: to evaluate, save or constrain.
        chosen: the optimisers, their groups at their peak rates; None: Muon and AdamW, by the settings' rates.
        backward: puts the gradients of the last loss into the parameters; None: the loss's own.
        first: steps that were done before: a training that goes on.

    Returns:
        The loss of each step that was done now.

    Raises:
        FloatingPointError: a loss is not finite; nothing later than the step before it is in the model.
    """
    import torch

    from tamis.train.optimiser import optimisers

    chosen = optimisers(model, settings, precision) if chosen is None else chosen
    peaks = [[group["lr"] for group in optimiser.param_groups] for optimiser in chosen]
    where = next(model.parameters()).device.type
    losses: list[float] = []
    start = time.monotonic()
    model.train()
    for step in range(first, settings.steps):
        rate = settings.rate(step)
        for optimiser, of_groups in zip(chosen, peaks, strict=True):
            for group, peak in zip(optimiser.param_groups, of_groups, strict=True):
                group["lr"] = peak * rate
        batch = next(batches)
        with multiplying(precision, where):
            value = loss(batch)
        if not torch.isfinite(value):
            raise FloatingPointError(
                f"the loss of step {step + 1} is {value.item()}: lower the learning rates "
                f"({', '.join(f'{peak:g}' for peak in dict.fromkeys(peak for of in peaks for peak in of))})"
            )
        model.zero_grad(set_to_none=True)
        if backward is None:
            value.backward()  # type: ignore[no-untyped-call]
        else:
            backward(value)
        if settings.clip_norm < math.inf:
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        for optimiser in chosen:
            optimiser.step()
        losses.append(value.item())
        if after_step is not None:
            after_step(step + 1)
        every = settings.report_every
        if every is not None and ((step + 1) % every == 0 or step + 1 == settings.steps):
            recent = losses[-(step % every + 1) :]
            log.info(
                "step %d of %d: mean loss of the last %d steps %.3f, %.0f s",
                step + 1, settings.steps, len(recent), sum(recent) / len(recent), time.monotonic() - start,
            )  # fmt: skip
    model.eval()
    return losses


@contextmanager
def multiplying(precision: Precision, device: str) -> Iterator[None]:
    """The block in which networks multiply in a precision: autocast where it is bf16.

    Raises:
        ValueError: the precision is int8, in which networks run and are not trained.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if precision == "int8":
        raise ValueError("int8 is for networks that only run: train in float32 or bf16")
    if precision == "float32":
        yield
        return
    # The gradient of torch's fused attention takes ten times as long in bf16 as in float32 on CPUs (torch 2.13).
    plain = sdpa_kernel(SDPBackend.MATH) if device == "cpu" else nullcontext()
    with torch.autocast(device, torch.bfloat16), plain:
        yield
