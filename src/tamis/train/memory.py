"""How many pieces a batch is cut into so that a training stays within the free memory.

A step on a few pairs is measured, and from it what a piece of any size takes.
"""

from __future__ import annotations

import logging
import math
import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tamis.errors import StopError
from tamis.models.device import free_memory
from tamis.train.clip_loop import Task, embedding
from tamis.train.loop import multiplying
from tamis.train.losses import Contrastive
from tamis.train.towers import Towers, needs_whole_batch

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

_SHARE = 0.8  # of the free memory may be used
_MEASURED = 16  # pairs in the measured step, at most
#: On a CPU a step of ViT-B-32 took 1.12 times what its tensors do: kernels and the allocator need some too.
_BESIDE_TENSORS = 1.25
#: What a piece may take on a CPU: larger ones are no faster (ViT-B-32: 16 pairs as 64), and others need memory too.
_ENOUGH_ON_A_CPU = 2 << 30
_READ_AHEAD = 7  # batches of pictures that are decoded, waiting or in use at a time
_PICTURE = 1 << 20  # bytes of a decoded picture that is kept: 600 x 600 pixels
_LOGITS = 6  # matrices of the loss that are as large as its logits
_CAPTIONS = 10_000  # of which the longest stands for all

GIB = 2**30


def choose_pieces(task: Task, towers: Towers, *, cached: bool) -> int:
    """Returns how many pieces each process's part of a batch is cut into, and logs why.

    Args:
        task, towers: the training, its model on its device and without gradients.
        cached: whether the states of a frozen text tower are read from a file.

    Raises:
        StopError: one pair does not fit, or the batch does not and must not be cut.
    """
    of, how, mine = task.training, task.how, task.training.batch // task.processes.count
    free = free_memory(how.device.kind) // how.trainings
    if how.device.kind == "cpu":  # torchrun says how many processes share this machine
        free //= int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    usable = int(_SHARE * free)
    fixed = _fixed(task, towers)
    room = usable - fixed
    pair = _per_pair(task, towers, cached, room) if room > 0 else 0
    needs = (
        f"a pair takes {_gib(pair)}, gradients, AdamW and what is read ahead {_gib(fixed)}; {_gib(usable)} may be "
        f"used, {_SHARE:.0%} of what is free"
    )
    if room <= 0:
        needs = f"without any pair it takes {_gib(fixed)}; {_gib(usable)} may be used, {_SHARE:.0%} of what is free"
    if room <= 0 or room < pair:
        raise StopError(
            f"{of.model} does not fit into memory: {needs}. Free memory, or take a smaller model or batch "
            "(--train-batch)"
        )
    fitting, whole = room // pair, needs_whole_batch(towers.model)
    if how.device.kind == "cpu" and not whole:
        fitting = min(fitting, max(1, _ENOUGH_ON_A_CPU // pair))
    if fitting >= mine:
        log.info("a batch of %d is computed in one piece: %s", mine, needs)
        return 1
    if whole:
        raise StopError(
            f"a batch of {mine} does not fit into memory: {needs}. {of.model} normalises over the whole batch, so it "
            f"cannot be cut into pieces: take at most {fitting} (--train-batch), or convnet"
        )
    pieces = math.ceil(mine / fitting)
    log.info("a batch of %d is cut into %d pieces of at most %d: %s", mine, pieces, math.ceil(mine / pieces), needs)
    return pieces


def _fixed(task: Task, towers: Towers) -> int:
    """Returns the bytes that do not depend on the pieces: gradients, AdamW's two moments, the loss, pictures."""
    mine = task.training.batch // task.processes.count
    trained = sum(one.nbytes for one in towers.model.parameters() if one.requires_grad)
    fixed: int = 3 * trained + 4 * _LOGITS * mine * task.training.batch
    if task.how.device.kind == "cpu":
        fixed += min(task.how.cache, task.rows.rows.size * _PICTURE) + _READ_AHEAD * mine * 3 * towers.side**2
    return fixed


def _per_pair(task: Task, towers: Towers, cached: bool, room: int) -> int:
    """Returns the bytes that a pair of a batch takes, by a step on one pair and, where that fits, on some more."""
    import torch

    model = towers.model
    kept = {name: one.clone() for name, one in model.named_buffers()}  # batch normalisation counts what it sees
    captions = list(task.captions(0, _CAPTIONS))
    ids, mask = towers.tokens(captions)
    longest = int(mask.sum(1).argmax())
    contrastive = Contrastive(
        embedding(task, towers, cached=cached),
        lambda: model.logit_scale.exp(),
        precision=partial(multiplying, task.how.device.precision, towers.device.type),
    )

    def step(count: int) -> None:
        pixels = torch.zeros(count, towers.side, towers.side, 3, dtype=torch.uint8)
        text: Sequence[torch.Tensor] = [one[[longest] * count] for one in (ids, mask)]
        if cached:
            text = [torch.zeros(count, model.text_projection.in_features)]
        with multiplying(task.how.device.precision, towers.device.type):
            loss = contrastive.loss([(pixels, *text)], torch.ones(count, dtype=torch.bool, device=towers.device))
        contrastive.backward(loss)

    was_training = model.training
    model.train()
    step(2)  # of one pair, batch normalisation cannot tell a variance; gradients are there afterwards
    found = peak_bytes(lambda: step(2)) / 2
    count = min(_MEASURED, task.training.batch // task.processes.count)
    if count * found < room:
        found = peak_bytes(lambda: step(count)) / count
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, one in model.named_buffers():
            one.copy_(kept[name])
    model.train(was_training)
    return math.ceil(_BESIDE_TENSORS * found)


def peak_bytes(call: Callable[[], Any]) -> int:
    """Returns how many bytes of tensors that a call makes are there at once, on the way back too."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
        now: int = 0
        top: int = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = {id(one.untyped_storage()) for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
            made = function(*args, **(kwargs or {}))
            for one in tree_leaves(made):
                if isinstance(one, torch.Tensor):
                    storage = one.untyped_storage()
                    if id(storage) not in given and storage not in known:
                        known.add(storage)
                        weakref.finalize(storage, self.gone, storage.nbytes())
                        self.now += storage.nbytes()
                        self.top = max(self.top, self.now)
            return made

        def gone(self, size: int) -> None:
            self.now -= size

    known: weakref.WeakSet[Any] = weakref.WeakSet()
    counted = Counting()  # type: ignore[no-untyped-call]
    with counted:
        call()
    return counted.top


def _gib(size: float) -> str:
    return f"{size / GIB:.3g} GiB"
