"""Pairs that are not trained on: their loss says from when on a model overfits, and which of its states is best."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tamis.errors import RunError, StopError
from tamis.train.batches import Batches, TrainingRows
from tamis.train.clip_loop import Preparation, Task, embedding
from tamis.train.contrastive import contrastive_loss
from tamis.train.drawing import held_out
from tamis.train.loop import multiplying
from tamis.train.towers import Towers

log = logging.getLogger(__name__)

_CHECKS = 50  # in a training
_RISING = 0.1  # share of the steps for which the loss must have been above its lowest before that is reported


def split(rows: TrainingRows, share: float) -> tuple[TrainingRows, TrainingRows | None]:
    """Returns the pairs to train on and those held out, chosen by their uids; all pairs and None where the share is 0.

    Raises:
        RunError: one of the two has fewer than two pairs.
    """
    if not share:
        return rows, None
    aside = held_out(rows.high, rows.low, share)
    if min(aside.sum(), (~aside).sum()) < 2:
        raise RunError(
            f"holding out {share:g} of {aside.size} pairs leaves {int((~aside).sum())} to train on and "
            f"{int(aside.sum())} to measure: both need two or more; take another share (--hold-out)"
        )
    parts = [
        TrainingRows(rows=rows.rows[some], times=rows.times[some], high=rows.high[some], low=rows.low[some])
        for some in (~aside, aside)
    ]
    return parts[0], replace(parts[1], times=np.ones_like(parts[1].times))


class HeldOut:
    """The loss of the pairs that are held out: where it is due, what it was, and where it was lowest.

    Attributes:
        last: the loss at the last check, None before the first.
    """

    def __init__(self, task: Task, towers: Towers, facts: Mapping[str, Any]) -> None:
        """Prepares.

        Args:
            task, towers: the training, with pairs held out.
            facts: of the checkpoint that it goes on from.
        """
        assert task.held is not None
        self._task = task
        self._towers = towers
        self._embed = embedding(task, towers, cached=False)
        batches = Batches(
            run=task.run, pool=task.pool, rows=task.held, batch=min(task.held.epoch_size, task.training.batch),
            side=towers.side, smallest=1.0, resample=towers.resample, threads=task.how.threads, cache=0,
        )  # fmt: skip
        (self._batch,) = batches(0, 1, Preparation(task, towers, None))
        if not self._batch.usable.any():
            raise StopError(f"none of the {len(self._batch.usable)} images that are held out can be read")
        self._every = max(1, task.training.steps // _CHECKS)
        self._best = float(facts.get("best", math.inf))
        self._best_step = int(facts.get("best_step", 0))
        self._best_training = float(facts.get("best_training", math.inf))
        self._warned = False
        self.last: float | None = facts.get("held_out_loss")

    def facts(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps of it."""
        return {
            "best": self._best,
            "best_step": self._best_step,
            "best_training": self._best_training,
            "held_out_loss": self.last,
        }

    def is_due(self, step: int) -> bool:
        """Whether the loss is measured after a step, counted from 1."""
        return step % self._every == 0 or step == self._task.training.steps

    def check(self, step: int, training_loss: float) -> bool:
        """Measures the loss, warns once where it rises while the training's falls, and says whether it is the lowest.

        Args:
            step: the one that is done.
            training_loss: the mean of the steps since the last check.
        """
        self.last = self.loss()
        if self.last < self._best:
            self._best, self._best_step, self._best_training = self.last, step, training_loss
            return True
        late = step - self._best_step >= _RISING * self._task.training.steps
        if late and training_loss < self._best_training and not self._warned:
            self._warned = True
            of = self._task.training
            log.warning(
                "the model overfits: since step %d the training loss fell from %.3f to %.3f and the held-out loss rose "
                "from %.3f to %.3f%s",
                self._best_step, self._best_training, training_loss, self._best, self.last,
                "" if of.keep_best else f"; train for {self._best_step * of.batch:,} samples, or take --keep-best",
            )  # fmt: skip
        return False

    def loss(self) -> float:
        """Returns CLIP's loss of the pairs that are held out, compared with each other."""
        import torch

        self._towers.model.eval()
        with torch.no_grad(), multiplying(self._task.how.device.precision, self._towers.device.type):
            pieces = [self._embed(piece) for piece in self._batch.pieces]
        self._towers.model.train()
        kept = self._batch.usable.to(self._towers.device)
        images, texts = (torch.cat([piece[number] for piece in pieces])[kept] for number in (0, 1))
        return float(contrastive_loss(images, texts, self._towers.model.logit_scale.detach().exp()))

    def say_which(self) -> None:
        """Logs which step's model is kept."""
        log.info("kept the model of step %d, whose held-out loss of %.3f is the lowest", self._best_step, self._best)
