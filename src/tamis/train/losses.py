"""CLIP's loss over the pairs of all processes, and its gradient in pieces that fit into memory.

The contrastive loss compares every image of a batch with every text of it, so it does not split into parts as other
losses do: a batch on eight processes, or in eight pieces, is not eight batches of an eighth. Here it stays one batch.

Sources: Radford et al. 2021, "Learning transferable visual models from natural language supervision", figure 3; Gao et
al. 2021, "Scaling deep contrastive learning batch size under memory limited setup" (GradCache); `open_clip`, whose
names "gather with gradient" and "local loss" are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from tamis.train.processes import ALONE, Processes

if TYPE_CHECKING:
    import torch

#: Returns the image and the text embeddings, (b, d) each, of a piece of a batch.
Embed = Callable[[Any], "tuple[torch.Tensor, torch.Tensor]"]


def contrastive_loss(images: torch.Tensor, texts: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The mean of the cross-entropies of finding each image's text and each text's image in the batch.

    Source: Radford et al. 2021, figure 3.
    """
    import torch
    from torch.nn import functional as F

    # Eight bits of a bf16 product, times a scale of 100, would be steps of 0.4 in the logits.
    with torch.autocast(images.device.type, enabled=False):
        logits = scale * F.normalize(images.float(), dim=-1) @ F.normalize(texts.float(), dim=-1).T  # (n, n)
        own = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


def gathered(rows: torch.Tensor, processes: Processes) -> torch.Tensor:
    """The rows (n, d) of all processes in their order: (processes * n, d).

    The gradient goes back to the process whose row it is, summed over all processes.
    """
    if processes.count == 1:
        return rows
    import torch
    import torch.distributed as dist

    class Gather(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, own: torch.Tensor) -> torch.Tensor:
            parts = [torch.empty_like(own) for _ in range(processes.count)]
            dist.all_gather(parts, own.contiguous())
            return torch.cat(parts)

        @staticmethod
        def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
            # Summed and cut, since gloo cannot reduce and scatter; it is a few MB.
            total = gradients[0].contiguous()
            dist.all_reduce(total)
            return total.chunk(processes.count)[processes.rank]

    everyone: torch.Tensor = Gather.apply(rows)  # type: ignore[no-untyped-call]
    return everyone


def loss_over_processes(
    images: torch.Tensor,
    texts: torch.Tensor,
    scale: torch.Tensor,
    *,
    usable: torch.Tensor | None = None,
    local: bool = True,
    processes: Processes = ALONE,
) -> torch.Tensor:
    """CLIP's loss of the pairs of all processes.

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
        place = all_kept.cumsum(0) - 1  # of each pair among those that are kept
        own = place[processes.rank * size : (processes.rank + 1) * size][kept]
        total = F.cross_entropy(scale * all_images[own] @ all_texts.T, own, reduction="sum")
        total = total + F.cross_entropy(scale * all_texts[own] @ all_images.T, own, reduction="sum")
        return total * processes.count / (2 * len(all_images))


def backward(
    embed: Embed,
    pieces: Sequence[Any],
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> torch.Tensor:
    """Adds a batch's gradients to the parameters' and returns its loss, without a graph.

    In several pieces, every piece is embedded without a graph, the loss gives the gradient of each embedding, and every
    piece is embedded again, now with a graph, to carry its embeddings' gradients to the parameters. One piece is in
    memory at a time; loss and gradients are those of the whole batch. Dropout draws the same both times.

    Args:
        embed: embeds a piece.
        pieces: of the batch, as `embed` takes them.
        loss: of all image and text embeddings, (n, d) each.
        autocast: the context in which networks run.

    Cost: embedding twice, so a third more than in one piece.

    Source: Gao et al. 2021 (GradCache), section 3.2.
    """
    import torch

    if len(pieces) == 1:
        with autocast():
            value = loss(*embed(pieces[0]))
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()
    states, embedded = [], []
    with torch.no_grad(), autocast():
        for piece in pieces:
            states.append(_random_state())
            embedded.append(embed(piece))
    images = torch.cat([images for images, _ in embedded]).requires_grad_()
    texts = torch.cat([texts for _, texts in embedded]).requires_grad_()
    with autocast():
        value = loss(images, texts)
    value.backward()  # type: ignore[no-untyped-call]
    start = 0
    for piece, state in zip(pieces, states, strict=True):
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1])
        with autocast():
            again = embed(piece)
        stop = start + len(again[0])
        # A frozen tower's embeddings have no graph.
        wanted = [
            (rows, whole.grad[start:stop])
            for rows, whole in zip(again, (images, texts), strict=True)
            if rows.requires_grad and whole.grad is not None
        ]
        torch.autograd.backward([rows for rows, _ in wanted], [gradient for _, gradient in wanted])
        start = stop
    return value.detach()


def _random_state() -> tuple[torch.Tensor, torch.Tensor | None]:
    import torch

    return torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_available() else None
