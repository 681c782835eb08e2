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

_BUCKET = 64 << 20  # bytes of gradients that are averaged together


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Which of how many processes this one is.

    Attributes:
        rank: of this one among all, from 0.
        count: of all, on all machines.
        local_rank: of this one on its machine: the number of its GPU.
    """

    rank: int = 0
    count: int = 1
    local_rank: int = 0

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files and talks."""
        return self.rank == 0

    def wait(self) -> None:
        """Waits until all have come here."""
        if self.count > 1:
            import torch.distributed as dist

            dist.barrier()

    def largest(self, number: int) -> int:
        """Returns the largest of all processes' numbers."""
        if self.count == 1:
            return number
        import torch
        import torch.distributed as dist

        found = torch.tensor(number, device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return int(found)

    def total(self, numbers: torch.Tensor) -> torch.Tensor:
        """Returns the sum of all processes' numbers; the given tensor holds it afterwards."""
        if self.count > 1:
            import torch.distributed as dist

            dist.all_reduce(numbers)
        return numbers

    def average_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Puts the mean of all processes' gradients in the place of each one's.

        Every process must have gradients of the same parameters. Done after the backward pass and not within it, as
        torch's DDP does: the pieces of a batch (`losses.Contrastive`) need it once, after the last.
        """
        if self.count == 1:
            return
        import torch
        import torch.distributed as dist

        for bucket in _buckets([one.grad for one in parameters if one.grad is not None]):
            flat = torch.cat([one.flatten() for one in bucket])
            dist.all_reduce(flat)
            flat /= self.count
            start = 0
            for one in bucket:
                one.copy_(flat[start : start + one.numel()].view_as(one))
                start += one.numel()

    def same_start(self, tensors: Iterable[torch.Tensor]) -> None:
        """Gives every process the first one's numbers."""
        if self.count > 1:
            import torch
            import torch.distributed as dist

            with torch.no_grad():
                for one in tensors:
                    dist.broadcast(one, 0)


#: One process, which needs nobody.
ALONE = Processes()


def _buckets(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yields tensors of one type in groups of at most `_BUCKET` bytes, or one that is larger."""
    for kind in dict.fromkeys(one.dtype for one in tensors):
        bucket: list[torch.Tensor] = []
        size = 0
        for one in tensors:
            if one.dtype != kind:
                continue
            if bucket and size + one.nbytes > _BUCKET:
                yield bucket
                bucket, size = [], 0
            bucket.append(one)
            size += one.nbytes
        yield bucket


@contextmanager
def started(device: str) -> Iterator[Processes]:
    """Joins the other processes that torchrun started, if it did, while the block runs.

    A block within another one uses what that one joined: processes that part cannot be sure to meet again.

    It reads what torchrun sets: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT. GPUs talk by NCCL, CPUs by
    gloo.

    Args:
        device: "cpu", or "cuda" for each process the GPU of its local rank.

    Raises:
        StopError: the others cannot be reached, or there are more processes than GPUs.
    """
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        yield ALONE
        return
    import torch
    import torch.distributed as dist

    found = Processes(rank=int(os.environ["RANK"]), count=count, local_rank=int(os.environ.get("LOCAL_RANK", "0")))
    if device != "cpu":
        if found.local_rank >= torch.cuda.device_count():
            raise StopError(
                f"process {found.local_rank} of this machine has no GPU of its own, there are "
                f"{torch.cuda.device_count()}: start one for each (torchrun --nproc-per-node)"
            )
        torch.cuda.set_device(found.local_rank)
    if dist.is_initialized():
        yield found
        return
    try:
        dist.init_process_group("gloo" if device == "cpu" else "nccl")
    except (RuntimeError, ValueError) as error:
        raise StopError(f"the {count} processes that WORLD_SIZE names do not find each other: {error}") from error
    try:
        yield found
    finally:
        dist.destroy_process_group()
