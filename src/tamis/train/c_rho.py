"""`tamis train c-rho`: a model of clean pairs and a model that saw the pool once, for the scorer `c_rho`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tamis.pool import Pool
from tamis.store.run import Run
from tamis.store.subset import Subset
from tamis.train.c_ssft import over_epochs
from tamis.train.clip import Trained, check_folder, check_training, train_clip
from tamis.train.clip_loop import How
from tamis.train.processes import started
from tamis.train.scales import ClipTraining

#: The folders of the two.
CLEAN, POOL = "clean", "pool"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One of the two trainings.

    Attributes:
        source: the pairs.
        pool: the files that their run was made from.
        epochs: times through them.
    """

    source: Subset | Run
    pool: Pool
    epochs: int


def check_folders(out: Path) -> None:
    """Makes sure, before anything is written, that the two folders are new, empty, or of trainings of ours.

    Raises:
        RunError: something else is in it.
    """
    out = out.expanduser()
    for name in (CLEAN, POOL):
        check_folder(out / name)


def train_c_rho(
    clean: Part, pool: Part, *, out: str | Path, training: ClipTraining, how: How
) -> tuple[Trained, Trained]:
    """Trains the same model twice, on clean pairs and on the pool, into `out/clean` and `out/pool`.

    The same call again goes on where it stopped, in the second training too, or finds both done. Whether both can be
    carried out, with enough pairs, from the files that are there, into folders that are theirs, is found before the
    first one begins.

    The paper trains for 32 epochs on CC3M and for 1 on the pool, and says neither the model nor how it learns (Maini et
    al. 2024, T-MARS, section 4.2 and appendix A.2): both parts have what `training` says.

    Args:
        clean, pool: what is trained on.
        out: the folder of the two.
        training: the model and how it learns, see `scales.at_scale`; its samples give way to the epochs.
        how: where, and in which pieces.

    Returns:
        What came of the two, the clean one first.

    Raises:
        RunError: see `c_ssft.over_epochs`, and as of `train_clip`, as all others.
    """
    parts = {CLEAN: clean, POOL: pool}
    trainings = {name: over_epochs(training, part.source, part.epochs) for name, part in parts.items()}
    check_folders(Path(out))
    for name, part in parts.items():  # the second one's faults would be found after days of the first
        check_training(part.source, pool=part.pool, out=Path(out) / name, training=trainings[name])
    with started(how.device.kind):
        first, second = (
            train_clip(part.source, pool=part.pool, out=Path(out) / name, training=trainings[name], how=how)
            for name, part in parts.items()
        )
    return first, second
