"""The processes that train one model together, as torchrun starts them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tamis.errors import StopError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Which of how many processes this one is."""

    rank: int = 0
    count: int = 1  # on all machines
    local_rank: int = 0  # number of this process on its machine, and of its GPU

    @property
    def first(self) -> bool:
        """Whether this process writes files and logs."""
        return self.rank == 0

    def wait(self) -> None:
        """Waits for all processes."""
        if self.count > 1:
            import torch.distributed as dist

            dist.barrier()

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
        """Copies the first process's numbers to every other process."""
        if self.count > 1:
            import torch
            import torch.distributed as dist

            with torch.no_grad():
                for one in tensors:
                    dist.broadcast(one, 0)


#: One process alone.
ALONE = Processes()


@contextmanager
def started(device: str) -> Iterator[Processes]:
    """Joins the process group of torchrun's environment, if there is one, while the block runs; blocks may be nested.

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
            raise StopError(
                f"process {local_rank} of this machine has no GPU, there are {torch.cuda.device_count()}: start one "
                "process for each (torchrun --nproc-per-node)"
            )
        torch.cuda.set_device(local_rank)
    processes = Processes(rank=int(os.environ["RANK"]), count=count, local_rank=local_rank)
    if dist.is_initialized():
        yield processes
        return
    dist.init_process_group("gloo" if device == "cpu" else "nccl")
    try:
        yield processes
    finally:
        dist.destroy_process_group()
