"""Which share of a pool should a recipe keep? A bracket of shares from models trained on eight of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from tamis.core.compute import Compute
from tamis.core.errors import RecipeError, StopError
from tamis.core.files.checked import write_record
from tamis.core.math.race import parabola_peak, share_bracket, standing
from tamis.recipes.recipe import PathLike, RecipeLike, at_share
from tamis.runs.subset import Subset
from tamis.train.evaluate.bench import (
    CURVES,
    Source,
    bench_folder,
    check_request,
    device_per_worker,
    scored_subsets,
    trainer_for,
    with_settings,
    write_into_run,
)
from tamis.train.evaluate.cells import Trainer
from tamis.train.evaluate.choose import FORMAT, values_of
from tamis.train.evaluate.tasks import Tasks
from tamis.train.scales import Training, at_scale

#: Shares of a curve, evenly spaced in their logarithm; its seeds, and samples at the scale `lab`.
SHARES, SEEDS, SAMPLES = 8, 3, 24_576


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Scores of one recipe over the share of the pool that it keeps."""

    recipe: str
    shares: tuple[float, ...]  # ascending
    kept: tuple[int, ...]  # distinct pairs
    scores: tuple[tuple[float, ...], ...]  # of each share: score of each seed
    accuracies: tuple[tuple[float, ...], ...]
    left: tuple[bool, ...]  # of each share: whether it is worse than the best
    margin: float  # how far below the best a share is worse
    error: float  # standard error of a share's mean
    bracket: tuple[float, float]  # any share in it may be the best
    point: float  # where a parabola through the best share and its neighbours is highest; it has no interval
    training: Training  # with the first seed
    tasks: tuple[str, ...]

    def verdict(self) -> list[str]:
        """The answer in sentences."""
        low, high = self.bracket
        ends = [
            f"the {end} share tried may be the best: a {beyond} one may be better" for end, beyond, lies in
            (("lowest", "lower", not self.left[0]), ("highest", "higher", not self.left[-1] and self.shares[-1] < 1))
            if lies
        ]  # fmt: skip
        return [
            f"{self.recipe}: any share in [{low:.3g}, {high:.3g}] fits; {self.point:.3g} by a parabola, no interval",
            *ends,
        ]

    def rows_of_table(self) -> list[dict[str, str]]:
        """The shares as a table for people."""
        every = zip(self.shares, self.kept, self.scores, self.accuracies, self.left, strict=True)
        return [
            {
                "share": f"{share:.3g}", "kept": f"{kept:,}", "score": f"{np.mean(scores):.4f}",
                "accuracy": f"{np.mean(accuracies):.3f}", "state": "worse" if left else "may be the best",
            }
            for share, kept, scores, accuracies, left in every
        ]  # fmt: skip

    def facts(self) -> dict[str, Any]:
        """Everything for JSON."""
        training = {**asdict(self.training), "model": self.training.model}
        return {**asdict(self), "training": training, "verdict": self.verdict()}


def find_share(
    source: Source,
    recipes: Sequence[RecipeLike],
    *,
    shares: Sequence[float] = (),
    tasks: Tasks,
    out: PathLike,
    run: PathLike | None = None,
    training: Training | None = None,
    settings: Sequence[str] = (),
    defaults: Sequence[str] = (),
    fields: Sequence[str] = (),
    only: Sequence[str] = (),
    workers: int = 1,
    partial: bool = False,
    quiet: bool = False,
    **compute: Unpack[Compute],
) -> list[Curve]:
    """Finds which shares of a pool a recipe should keep: eight from the lowest to the highest one, three seeds each.

    A share leaves if it is worse than the best one by Dunnett's bound at 5 %. The answer is a bracket, from the
    neighbour below the lowest share left to the neighbour above the highest.

    Args:
        recipes: their last steps keep a fraction.
        shares: the lowest and the highest share; empty: 0.05 and 1.
        training: None: the scale `lab` with 24,576 samples.
        source, tasks, out, run, settings, defaults, fields, only, workers, partial, quiet, compute: as `choose`.

    Returns:
        A curve per recipe. Also written to shares.json, in `out` and in the run folder.

    Raises:
        as `choose`; RecipeError: a recipe has no share.
    """
    training = training or at_scale("lab", samples=SAMPLES)
    low, high = min(shares, default=0.05), max(shares, default=1.0)
    tried = [float(f"{share:.3g}") for share in np.geomspace(low, high, SHARES)] if 0 < low < high <= 1 else []
    if len({*tried}) < SHARES:
        raise ValueError(
            f"a curve needs a lowest and a highest share in (0, 1], with room for {SHARES}, got {low:g} and {high:g}"
        )
    folder = Path(out).expanduser()
    base = with_settings(recipes, settings, defaults)
    chosen = [[at_share(recipe, share) for share in tried] for recipe in base]
    for recipe, arms in zip(base, chosen, strict=True):
        if None in arms:
            raise RecipeError(f"the last step of {recipe.name!r} keeps no fraction, so it has no share to find")
    check_request(training, tasks, only, SEEDS)
    subsets, _ = scored_subsets(
        source, [recipe for arms in chosen for recipe in arms if recipe], folder, tasks=tasks, run=run, fields=fields,
        workers=workers, partial=partial, quiet=quiet, compute=compute,
    )  # fmt: skip
    with bench_folder(folder, subsets[0].run.path, tasks):
        trainer = trainer_for(
            training, tasks, folder, device=device_per_worker(compute, workers), only=only, workers=workers
        )
        curves = [
            _curve(recipe.name, tried, subsets[start : start + SHARES], trainer, training)
            for recipe, start in zip(base, range(0, len(subsets), SHARES), strict=True)
        ]
        facts = {"kind": "tamis choose --curve", "format": FORMAT, "curves": [curve.facts() for curve in curves]}
        write_record(folder / CURVES, facts)
    write_into_run(subsets[0].run, CURVES, facts)
    return curves


def _curve(
    name: str, shares: Sequence[float], subsets: Sequence[Subset], trainer: Trainer, training: Training
) -> Curve:
    seeds = range(training.seed, training.seed + SEEDS)
    # Shares of the same pairs are one: equal scores would pass for little noise.
    distinct = {trainer.identity(each, training): place for place, each in reversed([*enumerate(subsets)])}
    if len(distinct) < 2:
        raise StopError(f"a curve needs two subsets, and all shares of {name} keep the same pairs")
    places = sorted(distinct.values())
    shares, subsets = [shares[place] for place in places], [subsets[place] for place in places]
    wanted = {
        (share, seed): (subset, replace(training, seed=seed))
        for seed in seeds for share, subset in zip(shares, subsets, strict=True)
    }  # fmt: skip
    done, problems = trainer.train(wanted)
    if problems:
        (share, _), why = next(iter(problems.items()))
        raise StopError(f"{name} at {share:g}: {why}")
    results = {f"{share:g}": [done[share, seed] for seed in seeds] for share in shares}
    found = standing([values_of(results)], total=1, first=1)
    left = [f"{share:g}" in found.left for share in shares]
    means = [*found.means[0].values()]
    return Curve(
        recipe=name, shares=tuple(shares), kept=tuple(subset.kept for subset in subsets),
        scores=tuple(tuple(each) for each in values_of(results).values()),
        accuracies=tuple(tuple(one.score for one in each) for each in results.values()), left=tuple(left),
        margin=found.margins[0], error=found.errors[0], bracket=share_bracket(shares, left),
        point=parabola_peak(shares, means), training=training, tasks=tuple(task.name for task in trainer.counted),
    )  # fmt: skip
