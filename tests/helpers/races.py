"""Results of `tamis choose` from made-up scores, as its own classes write them."""

from collections.abc import Mapping, Sequence

import numpy as np

from tamis.core.files.checked import write_record
from tamis.core.math.race import parabola_peak, share_bracket, standing
from tamis.runs import Run
from tamis.train.evaluate.choose import FORMAT, Arm, Race
from tamis.train.evaluate.shares import Curve
from tamis.train.scales import at_scale


def race_of(quality: Mapping[str, float], *, aside: Sequence[str] = (), done: int = 4) -> Race:
    """A race of arms that are as good as their `quality`; those `aside` race in the first round only."""
    random, seeds = np.random.default_rng(0), (2, 2, 3, 4)
    results: list[dict[str, list[float]]] = []
    left: Mapping[str, int] = {}
    for number in range(done):
        racing = [arm for arm in quality if arm not in left and not (number and arm in aside)]
        results.append({
            arm: (-3.2 + 0.3 * number + quality[arm] + random.normal(0, 0.004, seeds[number])).tolist()
            for arm in racing
        })  # fmt: skip
        found = standing(results, total=len(seeds))
        left = found.left
    order = [*found.remaining, *sorted(left, key=lambda arm: -left[arm])]
    states = {arm: "set aside" if arm in aside else "not told apart" for arm in order}
    states |= dict.fromkeys(left, "excluded") | {order[0]: "best"}
    lengths = [12_288 << number for number in range(len(seeds))]
    arms = [
        Arm(
            name=arm, kept=500, same=("its-twin",) if arm == "tmars@0.3" else (), left=left.get(arm),
            state=states[arm], scoring_seconds=None if "tmars" in arm else 12.0,
            scores={number: each[arm] for number, each in enumerate(results, 1) if arm in each},
            accuracies={number: [0.25, 0.35] for number, each in enumerate(results, 1) if arm in each},
            epochs={number: lengths[number - 1] / 500 for number, each in enumerate(results, 1) if arm in each},
        )
        for arm in order
    ]  # fmt: skip
    return Race(
        arms=tuple(arms), rows=1000, training=at_scale("lab", samples=lengths[-1]), lengths=tuple(lengths),
        seeds=seeds, done=done, tasks=("objects",), errors=found.errors, margins=found.margins,
        drift=found.drift, raised=found.raised, seconds=600.0, workers=2, budget=None, failed={},
    )  # fmt: skip


def curve_of(recipe: str, means: Sequence[float]) -> Curve:
    """A curve of three seeds around the given means, from 5 % to the whole pool."""
    random = np.random.default_rng(1)
    shares = [float(f"{share:.3g}") for share in np.geomspace(0.05, 1, len(means))]
    scores = {
        f"{share:g}": (mean + random.normal(0, 0.01, 3)).tolist() for share, mean in zip(shares, means, strict=True)
    }
    found = standing([scores], total=1, first=1)
    left = [name in found.left for name in scores]
    return Curve(
        recipe=recipe, shares=tuple(shares), kept=tuple(round(1000 * share) for share in shares),
        scores=tuple(tuple(each) for each in scores.values()), accuracies=((0.2, 0.3, 0.4),) * len(shares),
        left=tuple(left), margin=found.margins[0], error=found.errors[0], bracket=share_bracket(shares, left),
        point=parabola_peak(shares, [float(np.mean(each)) for each in scores.values()]),
        training=at_scale("lab", samples=24_576), tasks=("objects",),
    )  # fmt: skip


def write_race(run: Run, race: Race) -> None:
    write_record(run.path / "choose.json", race.facts())


def write_curves(run: Run, *curves: Curve) -> None:
    facts = {"kind": "tamis choose --curve", "format": FORMAT, "curves": [curve.facts() for curve in curves]}
    write_record(run.path / "shares.json", facts)
