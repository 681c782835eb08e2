"""CLIP's loss over the pairs of all processes, and its gradient in pieces that fit into memory.

The contrastive loss compares every image of a batch with every text of it, so it does not split into parts as other
losses do: a batch on eight processes, or in eight pieces, is not eight batches of an eighth. Here it stays one batch.

Sources: Radford et al. 2021, "Learning transferable visual models from natural language supervision", figure 3; Gao et
al. 2021, "Scaling deep contrastive learning batch size under memory limited setup" (GradCache); `open_clip`, whose
names "gather with gradient" and "local loss" are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from tamis.train.contrastive import contrastive_loss
from tamis.train.processes import ALONE, Processes

if TYPE_CHECKING:
    import torch

#: Gives the image and the text embeddings, (b, d) each, of a piece of a batch.
Embed = Callable[[Any], "tuple[torch.Tensor, torch.Tensor]"]


def gathered(rows: torch.Tensor, processes: Processes) -> torch.Tensor:
    """Returns the rows of all processes, (n, d) each, under one another: (processes * n, d), in their order.

    The gradient goes back to the process whose row it is, summed over all processes.
    """
    if processes.count == 1:
        return rows
    import torch
    import torch.distributed as dist

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, mine: torch.Tensor) -> torch.Tensor:
            parts = [torch.empty_like(mine) for _ in range(processes.count)]
            dist.all_gather(parts, mine.contiguous())
            return torch.cat(parts)

        @staticmethod
        def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
            # Summed and cut, since gloo does not scatter what it sums; it is a few MB.
            total = gradients[0].contiguous()
            dist.all_reduce(total)
            return total.chunk(processes.count)[processes.rank]

    found: torch.Tensor = Gather.apply(rows)  # type: ignore[no-untyped-call]
    return found


def loss_over_processes(
    images: torch.Tensor,
    texts: torch.Tensor,
    scale: torch.Tensor,
    *,
    usable: torch.Tensor | None = None,
    local: bool = True,
    processes: Processes = ALONE,
) -> torch.Tensor:
    """Returns CLIP's loss of the pairs of all processes.

    Every process gets a share whose mean over the processes is the loss. So are the gradients: averaged over the
    processes, they are those of one process that has all pairs.

    Args:
        images, texts: (n, d) embeddings of this process's pairs, not yet normalised; n is the same everywhere.
        scale: factor of the cosines, the inverse of the temperature.
        usable: (n,) bool: pairs that could be read. The others neither count nor serve as negatives.
        local: each process compares its own images and texts with all ("local loss"): n x N logits instead of N x N,
            and the same gradients. False: each compares all with all.
        processes: who takes part.

    Returns:
        A scalar, float32. NaN where no process has a usable pair.

    Cost: one gathering of 2 n d numbers, and 2 n N d multiplications (2 N N d where not local).
    """
    import torch
    from torch.nn import functional as F

    if processes.count == 1:
        return contrastive_loss(*((images, texts) if usable is None else (images[usable], texts[usable])), scale)
    size = len(images)
    kept = torch.ones(size, dtype=torch.bool, device=images.device) if usable is None else usable
    with torch.autocast(images.device.type, enabled=False):
        all_images = gathered(F.normalize(images.float(), dim=-1), processes)
        all_texts = gathered(F.normalize(texts.float(), dim=-1), processes)
        all_kept = gathered(kept.to(torch.uint8), processes).bool()  # (N,)
        all_images, all_texts = all_images[all_kept], all_texts[all_kept]
        if not local:
            return contrastive_loss(all_images, all_texts, scale)
        place = all_kept.cumsum(0) - 1  # of each pair among those that are left
        mine = slice(processes.rank * size, (processes.rank + 1) * size)
        own = place[mine][kept]
        total = F.cross_entropy(scale * all_images[own] @ all_texts.T, own, reduction="sum")
        total = total + F.cross_entropy(scale * all_texts[own] @ all_images.T, own, reduction="sum")
        return total * processes.count / (2 * len(all_images))


class Contrastive:
    """The loss of a batch and its gradient, in pieces where the batch does not fit.

    In pieces, every piece is embedded without a graph, the loss gives the gradient of each embedding, and every piece
    is embedded again, now with a graph, to carry its embeddings' gradients to the parameters. One piece is in memory
    at a time; loss and gradients are those of the whole batch. Dropout draws the same both times.

    Source: Gao et al. 2021 (GradCache), section 3.2.

    Cost: embedding twice, so a third more than in one piece.
    """

    def __init__(
        self,
        embed: Embed,
        scale: Callable[[], torch.Tensor],
        *,
        local: bool = True,
        processes: Processes = ALONE,
        precision: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Prepares.

        Args:
            embed: embeds a piece.
            scale: gives the factor of the cosines, from its parameter.
            local, processes: of `loss_over_processes`.
            precision: the block in which networks multiply.
        """
        self._embed = embed
        self._scale = scale
        self._local = local
        self._processes = processes
        self._precision = precision
        self._pieces: Sequence[Any] = ()
        self._random: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self._found: list[tuple[torch.Tensor, torch.Tensor]] = []

    def loss(self, pieces: Sequence[Any], usable: torch.Tensor) -> torch.Tensor:
        """Returns the loss of a batch.

        Args:
            pieces: of the batch, as `embed` takes them.
            usable: (n,) bool, see `loss_over_processes`.
        """
        import torch

        self._pieces, self._random, self._found = pieces, [], []
        if len(pieces) == 1:
            images, texts = self._embed(pieces[0])
        else:
            with torch.no_grad():
                for piece in pieces:
                    self._random.append(_random_state(usable.device))
                    self._found.append(self._embed(piece))
            images = torch.cat([images for images, _ in self._found]).requires_grad_()
            texts = torch.cat([texts for _, texts in self._found]).requires_grad_()
            self._found = [(images, texts)]
        return loss_over_processes(
            images, texts, self._scale(), usable=usable, local=self._local, processes=self._processes
        )

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the gradient of the last loss to the parameters', not yet averaged over the processes."""
        import torch

        loss.backward()  # type: ignore[no-untyped-call]
        if len(self._pieces) == 1:
            return
        images, texts = self._found[0]
        start = 0
        for piece, state in zip(self._pieces, self._random, strict=True):
            _draw_again(state, images.device)
            with self._precision():
                again = self._embed(piece)
            stop = start + len(again[0])
            # A frozen tower's embeddings have no graph.
            wanted = [
                (of, whole.grad[start:stop])
                for of, whole in zip(again, (images, texts), strict=True)
                if of.requires_grad and whole.grad is not None
            ]
            torch.autograd.backward([of for of, _ in wanted], [gradient for _, gradient in wanted])
            start = stop
        self._pieces, self._random, self._found = (), [], []


def _random_state(device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    import torch

    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def _draw_again(state: tuple[torch.Tensor, torch.Tensor | None], device: torch.device) -> None:
    import torch

    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)
