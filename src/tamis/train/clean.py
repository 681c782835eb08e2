"""`tamis train c_ssft` and `tamis train c_rho`: the models whose losses the signals `c_ssft` and `c_rho` compare.

C-SSFT fine-tunes a CLIP on clean pairs and keeps the model of every epoch. C-RHO trains one model on clean pairs, and
the same one on the pool.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tamis.errors import ModelError, RunError, at_least_one
from tamis.pool import Pool
from tamis.store.run import Run
from tamis.store.subset import Subset
from tamis.train.clip import Trained, check_training, train_clip, training_rows
from tamis.train.processes import started
from tamis.train.scales import ARCHITECTURES, ClipTraining
from tamis.train.step import How

#: The folders of C-RHO's two models.
CLEAN, POOL = "clean", "pool"

_WARMUP_SHARE = 0.1  # of the steps, at most: a short training should reach its learning rate


def fine_tuning(
    model: str, *, learning_rate: float = 1e-5, batch: int = 1024, warmup: int = 200, seed: int = 0
) -> ClipTraining:
    """C-SSFT's training, without its length.

    The paper trains 5 epochs on CC3M at 1e-5 from a pretrained OpenCLIP model (Maini et al. 2024, T-MARS, section 4.2)
    and leaves the rest open. Batch and warm-up are those of its other trainings (section 5.1).
    """
    if model in ARCHITECTURES:
        raise ModelError(
            f"{model} is an architecture without weights: C-SSFT fine-tunes a pretrained CLIP, so name a checkpoint"
        )
    return ClipTraining(model=model, samples=batch, learning_rate=learning_rate, batch=batch, warmup=warmup, seed=seed)


def train_c_ssft(
    source: Subset | Run, *, pool: Pool, out: str | Path, training: ClipTraining, how: How, epochs: int = 5
) -> Trained:
    """Fine-tunes a CLIP and keeps the model of each epoch as `out/epoch-1` and so on. The same call again resumes."""
    training = over_epochs(training, source, epochs)
    return train_clip(source, pool=pool, out=out, training=training, how=replace(how, keep_epochs=True))


@dataclass(frozen=True)
class Part:
    """One of C-RHO's two trainings."""

    source: Subset | Run
    pool: Pool
    epochs: int


def train_c_rho(
    clean: Part, pool: Part, *, out: str | Path, training: ClipTraining, how: How
) -> tuple[Trained, Trained]:
    """Trains the same model on clean pairs and on the pool, into `out/clean` and `out/pool`. The same call resumes.

    The paper trains 32 epochs on CC3M and 1 on the pool (Maini et al. 2024, T-MARS, section 4.2 and appendix A.2), and
    leaves open which model and how.
    """
    parts = {CLEAN: clean, POOL: pool}
    trainings = {name: over_epochs(training, part.source, part.epochs) for name, part in parts.items()}
    for name, part in parts.items():  # check both trainings before starting the first
        check_training(part.source, pool=part.pool, out=Path(out) / name, training=trainings[name])
    with started(how.device.kind):
        first, second = (
            train_clip(part.source, pool=part.pool, out=Path(out) / name, training=trainings[name], how=how)
            for name, part in parts.items()
        )
    return first, second


def over_epochs(training: ClipTraining, source: Subset | Run, epochs: int) -> ClipTraining:
    """A training for `epochs` epochs of the pairs, with a warm-up of at most a tenth of the steps."""
    at_least_one(epochs=epochs)
    rows, _ = training_rows(source)
    if rows.epoch_size < training.batch:
        raise RunError(
            f"{source!r} has {rows.epoch_size:,} pairs to train on, less than one batch of {training.batch:,}: use a "
            "smaller batch (--train-batch)"
        )
    training = replace(training, samples=epochs * rows.epoch_size)
    return replace(training, warmup=min(training.warmup, int(_WARMUP_SHARE * training.steps)))
