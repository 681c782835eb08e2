"""CLIP's loss over the pairs of all processes, and its gradient in pieces that fit into memory.

The contrastive loss compares every image of a batch with every text. So eight processes, or eight pieces, must compute
the loss of the whole batch; the average of eight small losses is another loss.

Sources: Radford et al. 2021, "Learning transferable visual models from natural language supervision", figure 3; Gao et
al. 2021, "Scaling deep contrastive learning batch size under memory limited setup" (GradCache); open_clip ("gather with
gradient", "local loss").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from tamis.train.loop import ProcessGroup

if TYPE_CHECKING:
    import torch

#: Embeds a piece of a batch: images and texts, (b, d) each.
Embed = Callable[[Any], "tuple[torch.Tensor, torch.Tensor]"]


def contrastive_loss(images: torch.Tensor, texts: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of finding each image's text and each text's image in the batch.

    Source: Radford et al. 2021, figure 3.
    """
    import torch
    from torch.nn import functional as F

    # A bf16 product has 8 bits: times a scale of 100, logits would move in steps of 0.4.
    with torch.autocast(images.device.type, enabled=False):
        logits = scale * F.normalize(images.float(), dim=-1) @ F.normalize(texts.float(), dim=-1).T  # (n, n)
        own = torch.arange(len(logits), device=logits.device)
        return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2


def gather(rows: torch.Tensor, processes: ProcessGroup) -> torch.Tensor:
    """Returns the rows (n, d) of all processes in order of rank, (count * n, d). Gradients are summed over processes.

    We do not use `torch.distributed.nn`: it is deprecated and fails in a second process group.
    """
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
            # gloo has no reduce-scatter, so we reduce everything (a few MB) and keep our part.
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
    usable: torch.Tensor,
    local: bool,
    processes: ProcessGroup,
) -> torch.Tensor:
    """This process's share of CLIP's loss over the pairs of all processes; NaN if none has a usable pair.

    Averaged over the processes, losses and gradients equal what one process with all pairs would compute.

    Args:
        images, texts: (n, d) embeddings of this process's pairs, not normalised; n is the same everywhere.
        scale: factor of the cosines, the inverse of the temperature.
        usable: (n,) bool: pairs that could be read. The others neither count nor serve as negatives.
        local: each process compares its own images and texts with all ("local loss"): n x N logits instead of N x N.
        processes: the process group.
    """
    import torch
    from torch.nn import functional as F

    if processes.count == 1:
        return contrastive_loss(images[usable], texts[usable], scale)
    size = len(images)
    with torch.autocast(images.device.type, enabled=False):
        unit = [F.normalize(one.float(), dim=-1) for one in (images, texts)]
        all_images, all_texts, all_kept = (gather(one, processes) for one in (*unit, usable.to(torch.uint8)))
        all_kept = all_kept.bool()  # (N,)
        all_images, all_texts = all_images[all_kept], all_texts[all_kept]
        if not local:
            return contrastive_loss(all_images, all_texts, scale)
        kept_index = all_kept.cumsum(0) - 1  # numbers the kept pairs
        own = kept_index[processes.rank * size : (processes.rank + 1) * size][usable]
        total = F.cross_entropy(scale * all_images[own] @ all_texts.T, own, reduction="sum")
        total = total + F.cross_entropy(scale * all_texts[own] @ all_images.T, own, reduction="sum")
        return total * processes.count / (2 * len(all_images))


def backward(
    embed: Embed,
    pieces: Sequence[Any],
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
    *,
    device: torch.device | str,
) -> torch.Tensor:
    """Adds a batch's gradients to the parameters' gradients and returns its loss, detached.

    With several pieces, we embed each without a graph, compute the gradient of the loss by every embedding, then embed
    each piece again with a graph and pass these gradients on. Only one piece is in memory at a time. Dropout draws the
    same numbers both times, from the generator of `device`. Several pieces take a third more time than one.

    Source: Gao et al. 2021 (GradCache), section 3.2.
    """
    import torch

    if len(pieces) == 1:
        with autocast():
            value = loss(*embed(pieces[0]))
        value.backward()  # type: ignore[no-untyped-call]
        return value.detach()
    on_gpu = torch.device(device).type == "cuda"
    states, embedded = [], []
    with torch.no_grad(), autocast():
        for piece in pieces:
            states.append((torch.get_rng_state(), torch.cuda.get_rng_state(device) if on_gpu else None))
            embedded.append(embed(piece))
    whole = [torch.cat(rows).requires_grad_() for rows in zip(*embedded, strict=True)]
    with autocast():
        value = loss(*whole)
    value.backward()  # type: ignore[no-untyped-call]
    start = 0
    for piece, (cpu, gpu) in zip(pieces, states, strict=True):
        torch.set_rng_state(cpu)
        if gpu is not None:
            torch.cuda.set_rng_state(gpu, device)
        with autocast():
            again = embed(piece)
        stop = start + len(again[0])
        # The embeddings of a frozen tower have no graph.
        wanted = [
            (rows, one.grad[start:stop])
            for rows, one in zip(again, whole, strict=True)
            if rows.requires_grad and one.grad is not None
        ]
        torch.autograd.backward([rows for rows, _ in wanted], [gradient for _, gradient in wanted])
        start = stop
    return value.detach()
