"""`tamis train c-ssft`: the models of every epoch of a fine-tuning on clean pairs, for the scorer `c_ssft`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tamis.errors import ModelError, RunError
from tamis.pool import Pool
from tamis.store.run import Run
from tamis.store.subset import Subset
from tamis.train.clip import Trained, train_clip, training_rows
from tamis.train.clip_loop import How
from tamis.train.scales import ARCHITECTURES, ClipTraining

#: Steps of warm-up are at most this share of all: a short training should reach its learning rate.
_WARMUP_SHARE = 0.1


def fine_tuning(
    model: str, *, learning_rate: float = 1e-5, batch: int = 1024, warmup: int = 200, seed: int = 0
) -> ClipTraining:
    """Returns C-SSFT's training, its length aside, which is a number of epochs.

    The paper has 5 epochs on CC3M at 1e-5 (Maini et al. 2024, T-MARS, section 4.2) and leaves the rest open. The batch
    and the steps of warm-up are those of its own trainings (section 5.1); the half cosine, the weight decay and the
    crops are what open_clip and `tamis train clip` have by default. It says of the model only that it is a pretrained
    one of OpenCLIP.

    Args:
        model: the checkpoint to begin with.
        learning_rate, batch, warmup, seed: see `ClipTraining`.

    Raises:
        ModelError: the model is an architecture.
        ValueError: a value that makes no sense.
    """
    if model in ARCHITECTURES:
        raise ModelError(
            f"{model} is an architecture without weights: C-SSFT fine-tunes a pretrained CLIP, so name a checkpoint"
        )
    return ClipTraining(model=model, samples=batch, learning_rate=learning_rate, batch=batch, warmup=warmup, seed=seed)


def train_c_ssft(
    source: Subset | Run, *, pool: Pool, out: str | Path, training: ClipTraining, how: How, epochs: int = 5
) -> Trained:
    """Fine-tunes a CLIP and keeps the model of each epoch's end, as `out/epoch-1`, `out/epoch-2`, ...

    The same call again goes on where it stopped, or finds it done.

    Args:
        source: the clean pairs.
        pool: the files that their run was made from.
        out: the folder, for the scorer's `folder`.
        training: see `fine_tuning`.
        how: where, and in which pieces.
        epochs: how many.

    Raises:
        RunError: see `over_epochs`, and as of `train_clip`, as all others.
    """
    training = over_epochs(training, source, epochs)
    return train_clip(source, pool=pool, out=out, training=training, how=replace(how, keep_epochs=True))


def over_epochs(training: ClipTraining, source: Subset | Run, epochs: int) -> ClipTraining:
    """Returns a training that goes so many times through the pairs, its warm-up at most a tenth of the steps.

    Raises:
        RunError: there is nothing to train on, or less than one batch: epochs would have no ends of their own.
        ValueError: epochs is below 1.
    """
    if epochs < 1:
        raise ValueError(f"epochs must be at least 1, got {epochs}")
    rows, _ = training_rows(source)
    if rows.epoch_size < training.batch:
        raise RunError(
            f"{source!r} has {rows.epoch_size:,} pairs to train on, less than one batch of {training.batch:,}: take a "
            f"smaller batch (--train-batch), or more pairs"
        )
    training = replace(training, samples=epochs * rows.epoch_size)
    return replace(training, warmup=min(training.warmup, int(_WARMUP_SHARE * training.steps)))
