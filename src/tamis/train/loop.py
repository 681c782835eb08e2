"""The training loop, its optimisers, and the process group of a training under torchrun."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from tamis.core.compute import Precision
from tamis.core.errors import StopError, check_words

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

BatchT = TypeVar("BatchT")


#: The optimisers that `new_optimisers` makes, and the help of options that choose one.
Optimiser = Annotated[Literal["adamw", "muon"], "adamw, or muon for the matrices inside the layers."]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Optimiser and schedule."""

    steps: int  # number of batches
    optimiser: Optimiser = "muon"
    learning_rate: float = 1e-3  # AdamW's peak
    matrix_learning_rate: float = 1e-2  # Muon's peak
    betas: tuple[float, float] = (0.9, 0.98)  # for AdamW
    epsilon: float = 1e-8  # for AdamW
    weight_decay: float = 0.05  # on parameters with two or more dimensions
    warmup: int = 50  # steps of linear rise; then a half cosine, which reaches the floor one step after the last
    floor: float = 0.02  # final learning rate / peak
    clip_norm: float | None = 1.0  # largest norm of the gradients; longer ones are scaled down
    report_every: int | None = 50  # steps between two lines of the log; None: no log

    def __post_init__(self) -> None:
        check_words(self)

    def shorten(self, effort: float) -> Settings:
        """The same settings with this share of the steps, at least two."""
        return replace(self, steps=max(2, round(self.steps * effort)))

    def rate(self, step: int) -> float:
        """Learning rate / peak at a step, counted from 0: in (0, 1]."""
        rising = min(1.0, (step + 1) / max(1, self.warmup))
        done = max(0, step - self.warmup) / max(1, self.steps - self.warmup)
        return rising * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done)))


def fit(
    model: torch.nn.Module,
    loss: Callable[[BatchT], torch.Tensor],
    batches: Iterator[BatchT],
    settings: Settings,
    *,
    precision: Precision = "float32",
    optimisers: Sequence[torch.optim.Optimizer] | None = None,
    after_step: Callable[[int, float], None] | None = None,
    first: int = 0,
) -> list[float]:
    """Trains a model in place, and returns the loss of each step of this call.

    Args:
        model: its parameters with `requires_grad` are trained.
        loss: returns a scalar for a batch. If it set the gradients itself, it returns a scalar without a graph.
        batches: yields at least `settings.steps - first` batches.
        settings: how to optimise.
        precision: "bf16" runs `loss` under autocast; weights, gradients and losses stay float32.
        optimisers: with peak learning rates in their groups; None: new ones as the settings say.
        after_step: called with the number of each finished step, counted from 1, and its loss.
        first: steps done by an earlier call.

    Raises:
        FloatingPointError: a loss is not finite. The model keeps the state after the previous step.
    """
    import torch

    optimisers = new_optimisers(model, settings) if optimisers is None else optimisers
    peaks = [(group, group["lr"]) for optimiser in optimisers for group in optimiser.param_groups]
    device = next(model.parameters()).device.type
    losses: list[float] = []
    start = time.monotonic()
    model.train()
    for step in range(first, settings.steps):
        for group, peak in peaks:
            group["lr"] = peak * settings.rate(step)
        batch = next(batches)
        model.zero_grad(set_to_none=True)
        with autocast(precision, device):
            value = loss(batch)
        if not torch.isfinite(value):
            raise FloatingPointError(f"the loss of step {step + 1} is {value.item()}: lower the learning rate")
        if value.requires_grad:
            value.backward()  # type: ignore[no-untyped-call]
        if settings.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        for optimiser in optimisers:
            optimiser.step()
        losses.append(value.item())
        if after_step is not None:
            after_step(step + 1, losses[-1])
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
def autocast(precision: Precision, device: str) -> Iterator[None]:
    """Runs the block under autocast if the precision is bf16."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if precision != "bf16":
        yield
        return
    # On CPUs the gradient of torch's fused attention is ten times slower in bf16 than in float32 (torch 2.13).
    plain = sdpa_kernel(SDPBackend.MATH) if device == "cpu" else nullcontext()
    with torch.autocast(device, torch.bfloat16), plain:
        yield


def new_optimisers(model: torch.nn.Module, settings: Settings) -> list[torch.optim.Optimizer]:
    """Creates the optimisers of a training, with their peak learning rates.

    "adamw": AdamW for all trained parameters. "muon": Muon for matrices and convolutions inside the layers, with steps
    as long as those of AdamW (`match_rms_adamw`), and AdamW for the other parameters.

    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks"; Liu et al. 2025, "Muon is
    scalable for LLM training", section 2.2.
    """
    import torch

    class Muon(torch.optim.Muon):
        """torch's Muon takes matrices only, so it gets views: the filters of a convolution are rows of a matrix."""

        def __init__(self, weights: Sequence[torch.nn.Parameter]) -> None:
            self.weights = weights
            super().__init__(
                [one.detach().view(len(one), -1) for one in weights],
                lr=settings.matrix_learning_rate,
                weight_decay=settings.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )

        def step(self, closure: None = None) -> None:  # type: ignore[override]
            for matrix, weight in zip(self.param_groups[0]["params"], self.weights, strict=True):
                matrix.grad = None if weight.grad is None else weight.grad.view(len(weight), -1)
            super().step()  # type: ignore[no-untyped-call]

    inside: list[torch.nn.Parameter] = []
    decayed: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, one in model.named_parameters():
        # "encoder.layers.3.mlp.fc1.weight". Skip the first part: in a list of modules it is a number too.
        in_layer = any(part.isdigit() for part in name.split(".")[1:])
        if not one.requires_grad:
            continue
        if settings.optimiser == "muon" and one.ndim in (2, 4) and in_layer and "embedding" not in name:
            inside.append(one)
        else:
            (decayed if one.ndim >= 2 else others).append(one)
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    rate, betas, epsilon = settings.learning_rate, settings.betas, settings.epsilon
    adamw = [torch.optim.AdamW(groups, lr=rate, betas=betas, eps=epsilon)] if groups else []
    return [*adamw, *([Muon(inside)] if inside else [])]


@dataclass(frozen=True, kw_only=True)
class ProcessGroup:
    """The processes that train one model, and the rank of this one."""

    rank: int = 0
    count: int = 1  # on all machines
    local_rank: int = 0  # rank on this machine, and the number of the GPU

    @property
    def first(self) -> bool:
        """Whether this process writes files and logs."""
        return self.rank == 0

    def wait(self) -> None:
        """Waits for all processes."""
        self.total(0)

    def largest(self, number: int) -> int:
        """The largest of all processes' numbers."""
        return int(self._reduced(number, "MAX"))

    def total(self, number: float) -> float:
        """The sum of all processes' numbers."""
        return self._reduced(number, "SUM")

    def _reduced(self, number: float, operation: str) -> float:
        if self.count == 1:
            return number
        import torch
        import torch.distributed as dist

        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        value = torch.tensor(number, dtype=torch.float64, device=device)
        dist.all_reduce(value, getattr(dist.ReduceOp, operation))
        return float(value)

    def average_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Replaces each gradient by its mean over the processes.

        Runs after the backward pass, unlike torch's DDP: a batch in pieces needs it once, after the last piece.
        """
        if self.count == 1:
            return
        import torch.distributed as dist

        gradients = [one.grad for one in parameters if one.grad is not None]
        for work in [dist.all_reduce(one, async_op=True) for one in gradients]:
            work.wait()
        for one in gradients:
            one /= self.count

    def same_start(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copies the first process's tensors to all other processes."""
        if self.count > 1:
            import torch
            import torch.distributed as dist

            with torch.no_grad():
                for one in tensors:
                    dist.broadcast(one, 0)


#: One process alone.
ALONE = ProcessGroup()


@contextmanager
def join_group(device: str) -> Iterator[ProcessGroup]:
    """Joins torchrun's process group, if there is one, while the block runs. Blocks may be nested.

    GPUs use NCCL, CPUs gloo.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield ALONE
        return
    import torch
    import torch.distributed as dist

    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if device != "cpu":
        if local_rank >= torch.cuda.device_count():
            raise StopError(f"process {local_rank} has no GPU, there are {torch.cuda.device_count()}")
        torch.cuda.set_device(local_rank)
    processes = ProcessGroup(rank=int(os.environ["RANK"]), count=count, local_rank=local_rank)
    if dist.is_initialized():
        yield processes
        return
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    try:
        yield processes
    finally:
        dist.destroy_process_group()
