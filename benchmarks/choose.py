"""How often the race of `tamis choose` finds the best arm, at what cost: on an oracle of real models, and simulated.

`oracle` trains every arm with every seed at every length on the lab, and appends a row per model to a table; it goes on
where it stopped. `races` draws races from the table, also from one whose arms do not differ; `repeats` asks whether a
law of repeated data ranks its arms better than the length before; `gains` prints by how much its arms beat no filter
and a random share, and the least gain that would have been seen. `simulate` draws worlds of arms whose differences are
known; `curves` does so for the shares of one recipe.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

import tamis
from benchmarks.measure import Case
from tamis.cli.printing import print_table
from tamis.core.math.race import share_bracket, standing
from tamis.core.math.statistics import Estimate, detectable_difference, mean_interval, share_interval
from tamis.models.device import device_for
from tamis.recipes.recipe import Recipe, at_share, load
from tamis.runs.run import Run
from tamis.train.clip import TrainingSet, fine_tuning, train_c_rho, train_c_ssft
from tamis.train.evaluate.cells import Trainer, counted_tasks
from tamis.train.scales import at_scale
from tamis.train.step import How
from tamis_lab.pool import make_pool
from tamis_lab.tasks import make_tasks
from tamis_lab.world import OBJECTS

TABLE = Path(__file__).with_name("choose_oracle.csv")
PAIRS, IMAGES = 5_000, 240
LENGTHS = (12_288, 24_576, 49_152)
ARMS: tuple[tuple[str, float | None], ...] = (
    ("no-filter", None), ("random", 0.3), ("clip-50", 0.3), ("clip-50", 0.5), ("tmars", 0.3), ("tmars", 0.5),
    ("sieve+clip", 0.3), ("text_match", None), ("c_rho", 0.5), ("c_ssft", 0.75), ("clipcov", 0.3),
    ("tmars-and-c_rho", None),
)  # fmt: skip


def scored(root: Path) -> Run:
    """Draws the pool, trains the models of C-SSFT and C-RHO on other, clean drawings, and scores everything."""
    make_pool(root / "pool", pairs=PAIRS, again=False)
    make_pool(root / "clean", pairs=600, seed=122, shares={"visual": 1}, again=False)
    (root / "objects.txt").write_text("\n".join(OBJECTS))
    pool = tamis.PoolSpec(path=str(root / "pool"), fields=("truth",))
    clip = {"model": "lab/clip"}
    names = {"model": "lab/clip", "classes_from": str(root / "objects.txt"), "templates": "scenes"}
    signals: list[Any] = [{"clip": clip}, {"tmars": clip}, "text_match", {"zero_shot_class": names}]
    signals += [{"sieve": {"captioner": "lab/captioner"}}]
    exact: Any = {"device": "cpu", "precision": "float32"}  # the same arms on every machine
    run = tamis.score(pool, run=root / "run", signals=signals, keep=["embeddings"], **exact)
    clean = tamis.score(root / "clean", run=root / "clean-run", **exact)
    how = How(device=device_for(**exact))
    if not (root / "c_ssft").exists():
        train_c_ssft(clean, out=root / "c_ssft", training=fine_tuning("lab/clip", batch=64), how=how)
    if not (root / "c_rho").exists():
        train_c_rho(TrainingSet(clean, 32), TrainingSet(run, 1), out=root / "c_rho", training=at_scale("lab"), how=how)
    rho = {name: str(root / "c_rho" / name) for name in ("clean", "pool")}
    return tamis.score(
        pool, run=root / "run", signals=[{"c_ssft": {"folder": str(root / "c_ssft")}}, {"c_rho": rho}], **exact
    )  # fmt: skip


def arms(run: Run) -> list[tamis.Subset]:
    recipes: list[Recipe] = []
    for name, share in ARMS:
        recipe = load(name)
        recipes.append(recipe if share is None else at_share(recipe, share) or recipe)
    return [tamis.select(run, recipe, any_model=True) for recipe in recipes]


def oracle(root: Path, seeds: Iterable[int], lengths: Iterable[int], precision: str) -> None:
    """Trains what the table lacks; one cell after the other, in this process."""
    run = scored(root)
    tasks = make_tasks(root / f"tasks-{IMAGES}", size=IMAGES, again=False)
    subsets, training, device = arms(run), at_scale("lab"), device_for("cpu", precision, None, None)
    device = replace(device, threads=1)
    counted = counted_tasks(training, tasks, ())
    trainer = Trainer(tasks=tasks, counted=counted, device=device, folder=root / "cells", workers=1)
    for samples in lengths:
        for seed in seeds:
            for subset in subsets:
                done = {(row["arm"], int(row["samples"]), int(row["seed"])) for row in rows()}
                if (subset.name, samples, seed) in done:
                    continue
                key = (subset.name, samples, seed)
                found, failed = trainer.train({key: (subset, replace(training, samples=samples, seed=seed))})
                if failed:
                    raise SystemExit(str(failed))
                one = found[key]
                add(
                    {"arm": subset.name, "kept": subset.kept, "samples": samples, "seed": seed}
                    | {f"accuracy {name}": round(value, 5) for name, value in sorted(one.scores.items())}
                    | {f"nats {name}": round(value, 5) for name, value in sorted(one.likelihoods.items())}
                    | {"seconds": round(one.training_seconds + one.evaluation_seconds, 2)}
                )


def rows() -> list[dict[str, str]]:
    if not TABLE.is_file():
        return []
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def add(row: dict[str, Any]) -> None:
    new = not TABLE.is_file()
    with TABLE.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)


#: Of the simulated worlds, in nats: standard deviations of the effect that a seed has on all arms, and of a model's
#: noise in each round; by how much arms differ, those of their levels, and of their drift from round 1 to round 2.
SHARED, NOISE = 0.02, (0.02, 0.018, 0.016, 0.014)
DIFFERENCES = {"large": (0.1, 0.01), "small": (0.03, 0.02)}

#: Seeds of each round, as `tamis choose` has them, and the samples of its models, in those of the first round's.
SEEDS, SAMPLES = (2, 2, 3, 4), (1, 2, 4, 8)
ORACLE_SEEDS = 6

#: How an arm's distance from its first level grows with the round, from 0.
SHAPES: Mapping[str, Callable[[int], float]] = {
    "parallel": lambda r: 0.0,
    "linear drift": lambda r: float(r),
    "saturating": lambda r: 2 * (1 - 0.5**r),
    "crossing that grows": lambda r: float(r**2),  # the rule expects no more than linear drift
}
EQUAL = "all equal"

Round = dict[str, list[float]]
Draw = Callable[[int, Sequence[str]], Round]  # the scores of a round (from 0) and its arms


@dataclass(frozen=True)
class Finish:
    """How a race ended."""

    answer: list[str]
    trained: list[tuple[int, str]]  # round and arm of each group of trainings

    def cost(self, of: Callable[[int, str], float]) -> float:
        return sum(of(number, arm) for number, arm in self.trained)


def run_race(arms: Sequence[str], draw: Draw, total: int) -> Finish:
    """Runs a race by the rule, as `train.evaluate.choose` does without a budget."""
    rounds: list[Round] = []
    trained: list[tuple[int, str]] = []
    racing = list(arms)
    for number in range(total):
        if len(racing) < 2:
            break
        rounds.append(draw(number, racing))
        trained += [(number, arm) for arm in racing]
        racing = standing(rounds, total=total).remaining
    return Finish(racing, trained)


def simulate(races: int) -> list[Case]:
    """Worlds of arms whose means are known: is the best arm of the last round in the answer, of how many, at what cost?

    The oracle has six seeds of all arms at all lengths; the full race drops no arm.
    """
    worlds = [(size, shape) for size in DIFFERENCES for shape in SHAPES] + [("none", EQUAL)]
    table, cases = [], []
    for count in (6, 12, 20):
        names = [f"{arm:02d}" for arm in range(count)]
        for size, shape in worlds:
            ends = []
            for number in range(races):
                rng = np.random.default_rng([count, worlds.index((size, shape)), number])
                means = world(rng, count, size, shape)
                ends.append((run_race(names, drawer(rng, means), len(SEEDS)), f"{int(means[-1].argmax()):02d}"))
            found = share_interval(sum(best in end.answer for end, best in ends), races)
            single = share_interval(sum(len(end.answer) == 1 for end, _ in ends), races)
            cost = np.mean([end.cost(lambda number, _: SEEDS[number] * SAMPLES[number]) for end, _ in ends]) / count
            row = {
                "arms": count, "differences": size, "shape": shape,
                "best in answer": "-" if shape == EQUAL else interval(found),
                "arms in answer": f"{np.mean([len(end.answer) for end, _ in ends]):.1f}",
                "cost of oracle": f"{100 * cost / (ORACLE_SEEDS * sum(SAMPLES)):.0f} %",
                "cost of full race": f"{100 * cost / sum(np.multiply(SEEDS, SAMPLES)):.0f} %",
                "single winner": interval(single),
            }  # fmt: skip
            table.append(row)
            what = "a single winner" if shape == EQUAL else "the best arm in the answer"
            share, target = (single, "<= 0.05") if shape == EQUAL else (found, ">= 0.95")
            case = f"{what}: {count} arms, {size} differences, {shape}"
            cases.append(Case(case, "share", share.value, target=target, settings=row))
    print_table(table)
    return cases


def world(rng: np.random.Generator, arms: int, size: str, shape: str) -> list[NDArray[np.float64]]:
    """The true means of the arms in each round."""
    if shape == EQUAL:
        return [np.zeros(arms)] * len(SEEDS)
    level, slope = (rng.normal(0, deviation, arms) for deviation in DIFFERENCES[size])
    return [level + slope * SHAPES[shape](number) for number in range(len(SEEDS))]


def drawer(rng: np.random.Generator, means: Sequence[NDArray[np.float64]]) -> Draw:
    def draw(number: int, racing: Sequence[str]) -> Round:
        seeds = SEEDS[number]
        shared = rng.normal(0, SHARED, seeds)
        return {
            arm: (means[number][int(arm)] + shared + rng.normal(0, NOISE[number], seeds)).tolist() for arm in racing
        }

    return draw


@dataclass(frozen=True)
class Oracle:
    """The table of trained models: scores of (arms, seeds) at each length."""

    arms: list[str]
    lengths: list[int]
    scores: list[NDArray[np.float64]]  # per length: the mean over the tasks of a model's nats, or accuracies

    @classmethod
    def read(cls, what: str = "nats") -> Oracle:
        """Reads the table; of each length the seeds that all arms have. `what`: nats or accuracy."""
        cells = {(row["arm"], int(row["samples"]), int(row["seed"])): row for row in rows()}
        if not cells:
            raise SystemExit(f"there is no {TABLE}: train it with `python -m benchmarks.choose oracle`")
        arms = [*dict.fromkeys(arm for arm, _, _ in cells)]
        every = sorted({samples for _, samples, _ in cells})
        whole = {
            samples: [
                seed for seed in sorted({seed for _, _, seed in cells})
                if all((arm, samples, seed) in cells for arm in arms)
            ]
            for samples in every
        }  # fmt: skip
        lengths = [samples for samples, seeds in whole.items() if len(seeds) >= 3]
        for samples in every:
            print(f"{samples:,} samples: {len(whole[samples])} seeds of all {len(arms)} arms")
        if len(lengths) < 2:
            raise SystemExit("races need two lengths or more, each with three seeds of all arms")

        def table(value: Callable[[dict[str, str]], float], samples: int) -> NDArray[np.float64]:
            return np.array([[value(cells[arm, samples, seed]) for seed in whole[samples]] for arm in arms])

        def score(row: dict[str, str]) -> float:
            return float(np.mean([float(text) for name, text in row.items() if name.startswith(f"{what} ")]))

        return cls(arms, lengths, [table(score, samples) for samples in lengths])

    def race(self, rng: np.random.Generator) -> Finish:
        """A race whose rounds are the lengths, with seeds drawn without replacement."""

        def draw(number: int, racing: Sequence[str]) -> Round:
            scores = self.scores[number]
            seeds = rng.choice(scores.shape[1], min(SEEDS[number], scores.shape[1]), replace=False)
            return {arm: scores[self.arms.index(arm), seeds].tolist() for arm in racing}

        return run_race(self.arms, draw, len(self.lengths))

    def alike(self, rng: np.random.Generator) -> Oracle:
        """The same noise, and no difference between arms: residuals of arms and seeds, shuffled at each length."""
        shuffled = []
        for scores in self.scores:
            seed_means = scores.mean(0)
            residuals = scores - scores.mean(1, keepdims=True) - seed_means + scores.mean()
            shuffled.append(seed_means + rng.permutation(residuals.ravel()).reshape(scores.shape))
        return replace(self, scores=shuffled)

    def price(self, number: int, arm: str) -> float:
        """The samples that a round's models of an arm see; what else a model takes is little, and alike."""
        return float(SEEDS[number] * self.lengths[number])


def draw_races(races: int) -> list[Case]:
    """Races drawn from the oracle's table, and from one whose arms are all alike."""
    oracle = Oracle.read()
    means = dict(zip(oracle.arms, oracle.scores[-1].mean(1).tolist(), strict=True))
    best = max(means, key=means.__getitem__)
    ends = [oracle.race(np.random.default_rng(number)) for number in range(races)]
    spent = sum(scores.size * samples for scores, samples in zip(oracle.scores, oracle.lengths, strict=True))
    hours = sum(float(row["seconds"]) for row in rows()) / 3600
    costs = [end.cost(oracle.price) / spent for end in ends]
    often = Counter(arm for end in ends for arm in end.answer)
    found = share_interval(often[best], races)
    random = [oracle.alike(rng).race(rng) for rng in map(np.random.default_rng, range(10_000, 10_000 + 8 * races))]
    single = share_interval(sum(len(end.answer) == 1 for end in random), len(random))
    facts = {
        "races": f"{races} from {hours:.1f} hours of models on a core; {len(random)} of arms that are alike",
        "best arm in the answer": interval(found), "mean cost, of the oracle's": f"{100 * np.mean(costs):.1f} %",
        "mean arms in the answer": f"{np.mean([len(end.answer) for end in ends]):.1f}",
        "a single winner": interval(share_interval(sum(len(end.answer) == 1 for end in ends), races)),
        "a single winner of arms that are alike": interval(single),
        "mean arms in the answer of arms that are alike": f"{np.mean([len(end.answer) for end in random]):.1f}",
    }  # fmt: skip
    for name, text in facts.items():
        print(f"{name}: {text}")
    last = f"mean at {oracle.lengths[-1]:,} samples"
    print_table([
        {"arm": arm, last: f"{mean:.4f}", "in the answer": f"{100 * often[arm] / races:.0f} %"}
        for arm, mean in sorted(means.items(), key=lambda item: -item[1])
    ])  # fmt: skip
    return [
        Case("best arm in the answer", "share", found.value, target=">= 0.95", settings=facts),
        Case("cost, of the oracle's", "share", float(np.mean(costs)), target="<= 0.25"),
        Case("a single winner of arms that are alike", "share", single.value, target="<= 0.05"),
    ]


def repeats(races: int) -> list[Case]:
    """Who ranks the last length better from two seeds of the earlier ones: a law of repeated data, or the last of them?

    Shares of pairs of arms that are in the order of the last length's means over all seeds.
    """
    oracle = Oracle.read()
    kept = {row["arm"]: float(row["kept"]) for row in rows()}
    pairs, lengths = np.array([kept[arm] for arm in oracle.arms]), np.array(oracle.lengths, np.float64)
    truth = oracle.scores[-1].mean(1)
    right: dict[str, list[float]] = {"law": [], "plain": []}
    for number in range(races):
        rng = np.random.default_rng(number)
        seen = [scores[:, rng.choice(scores.shape[1], 2, replace=False)].mean(1) for scores in oracle.scores[:-1]]
        predicted = -law_of_repeats(-np.array(seen).T, lengths[:-1], pairs)(lengths[-1])
        for name, ranked in (("law", predicted), ("plain", seen[-1])):
            right[name].append(pairs_in_order(ranked, truth))
    means = {name: float(np.mean(each)) for name, each in right.items()}
    better = float(np.mean(np.array(right["law"]) > np.array(right["plain"])))
    print(f"pairs of arms in order: {means['law']:.3f} by the law, {means['plain']:.3f} by the length before")
    print(f"the law is better in {100 * better:.0f} % of {races} draws")
    return [Case("pairs in order by the law of repeats", "share", means["law"], means["plain"])]


def gains(_: int) -> list[Case]:
    """By how much arms beat no filter and a random share, with Student's intervals over the seeds.

    The least gain is the smallest that would have been seen in four of five such tables.
    """
    for what in ("nats", "accuracy"):
        oracle = Oracle.read(what)
        for samples, scores in zip(oracle.lengths, oracle.scores, strict=True):
            rows = []
            for arm, own in zip(oracle.arms, scores, strict=True):
                row = {"arm": arm, what: f"{own.mean():.3f}"}
                for name, other in (("no filter", "no-filter"), ("random", "random@0.3")):
                    found = mean_interval((own - scores[oracle.arms.index(other)]).tolist())
                    gain = f"{found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
                    row[f"over {name}"] = "" if arm == other else gain
                    row[f"least over {name}"] = "" if arm == other else f"{detectable_difference([found]):.3f}"
                rows.append((own.mean(), row))
            print(f"\n{samples:,} samples, {scores.shape[1]} seeds")
            print_table([row for _, row in sorted(rows, key=lambda each: -each[0])])
    return []


def pairs_in_order(ranked: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    one, other = np.triu_indices(truth.size, 1)
    return float(np.mean(np.sign(ranked[one] - ranked[other]) == np.sign(truth[one] - truth[other])))


def law_of_repeats(
    losses: NDArray[np.float64], samples: NDArray[np.float64], pairs: NDArray[np.float64]
) -> Callable[[float], NDArray[np.float64]]:
    """Fits a * prod_j (n_j / n_(j-1))^(-b 2^(-(j-1) / tau)) + d, where n_j pairs are seen after epoch j, to losses.

    losses (arms, lengths), samples (lengths,), pairs of each arm (arms,); a, tau and d are common, b is each arm's own,
    since two lengths determine no more. Returns a function of the samples.

    Source: Goyal et al. 2024, "Scaling laws for data filtering" (arXiv:2404.07177), equations 3 to 5.
    """

    def gained(half_life: float, seen: float) -> NDArray[np.float64]:
        """The sum over epochs of log(n_j / n_(j-1)) times what repetition leaves of it, (arms,)."""
        sums = []
        for own in pairs:
            ends = np.minimum(own * np.arange(1, math.ceil(seen / own) + 1), seen)
            sums.append((np.diff(np.log([1.0, *ends])) * 0.5 ** (np.arange(ends.size) / half_life)).sum())
        return np.array(sums)

    def predict(found: NDArray[np.float64], seen: float) -> NDArray[np.float64]:
        return np.asarray(np.exp(found[0] - found[3:] * gained(math.exp(found[1]), seen)) + math.exp(found[2]))

    def off(found: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate([predict(found, seen) - losses[:, place] for place, seen in enumerate(samples)])

    lowest = math.log(losses.min())
    begin = [math.log(losses.max()), math.log(5), lowest - 1.4, *np.full(len(pairs), 0.05)]
    bounds = [-5.0, -2.0, -12.0, *np.zeros(len(pairs))], [8.0, 8.0, lowest, *np.ones(len(pairs))]
    fitted = optimize.least_squares(off, begin, bounds=bounds).x
    return lambda seen: predict(fitted, seen)


CURVE_SHARES, CURVE_SEEDS, CURVE_NOISE = np.geomspace(0.05, 1, 8), 3, 0.01

#: Curves over x = log(share / the best share), in units of the whole range of log shares; times 0.1 to 0.6 nats.
CURVE_SHAPES: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "symmetric": lambda x: -(x**2),
    "asymmetric": lambda x: np.where(x < 0, -6 * x**2, -0.3 * x),  # a small subset repeats, a large one is only noisier
    "plateau": lambda x: -6 * np.maximum(np.abs(x) - 0.25, 0) ** 2 - 0.01 * np.abs(x),
    "monotone": lambda x: x,
}


def curves(races: int) -> list[Case]:
    """Is the best share in the bracket, and in the 95 % interval of a quadratic's peak (delta method)?

    Widths are parts of the whole range of log shares.
    """
    table, cases = [], []
    x, whole = np.log(CURVE_SHARES), math.log(CURVE_SHARES[-1] / CURVE_SHARES[0])
    for shape, curve in CURVE_SHAPES.items():
        ours, theirs = [], []
        for number in range(races):
            rng = np.random.default_rng([[*CURVE_SHAPES].index(shape), number])
            best = x[-1] if shape == "monotone" else x[0] + whole * rng.uniform(0.25, 0.75)
            means = rng.uniform(0.1, 0.6) * curve((x - best) / whole)
            scores = means[:, None] + rng.normal(0, SHARED, CURVE_SEEDS) + rng.normal(0, CURVE_NOISE, (8, CURVE_SEEDS))
            named = {str(place): row.tolist() for place, row in enumerate(scores)}
            found = standing([named], total=1, first=1)
            bracket = share_bracket(CURVE_SHARES.tolist(), [str(place) in found.left for place in range(8)])
            for ends, into in ((np.log(bracket), ours), (quadratic_interval(x, scores), theirs)):
                into.append((ends[0] - 1e-9 <= best <= ends[1] + 1e-9, (ends[1] - ends[0]) / whole))
        shares = [share_interval(sum(inside for inside, _ in side), races) for side in (ours, theirs)]
        widths = [float(np.mean([width for _, width in side])) for side in (ours, theirs)]
        row = {
            "shape": shape, "bracket": interval(shares[0]), "its width": f"{widths[0]:.2f}",
            "quadratic": interval(shares[1]), "that width": f"{widths[1]:.2f}",
        }  # fmt: skip
        table.append(row)
        cases.append(Case(f"{shape} curve", "share", shares[0].value, shares[1].value, target=">= 0.95", settings=row))
    print_table(table)
    return cases


def quadratic_interval(x: NDArray[np.float64], scores: NDArray[np.float64]) -> tuple[float, float]:
    """The 95 % interval of where a quadratic in x, with an effect of each seed, is highest, within the range of x.

    The whole range if it has no highest place.
    """
    arms, seeds = scores.shape
    centred = (scores - scores.mean(0)).ravel()
    design = np.repeat(np.stack([np.ones(arms), x, x**2], axis=1), seeds, axis=0)
    (_, slope, bend), *_ = np.linalg.lstsq(design, centred, rcond=None)
    if bend >= 0:
        return float(x[0]), float(x[-1])
    freedom = arms * seeds - 3 - (seeds - 1)
    rest = centred - design @ np.linalg.lstsq(design, centred, rcond=None)[0]
    covariance = float(rest @ rest) / freedom * np.linalg.inv(design.T @ design)
    gradient = np.array([0, -1 / (2 * bend), slope / (2 * bend**2)])
    half = float(stats.t.ppf(0.975, freedom) * math.sqrt(gradient @ covariance @ gradient))
    peak = -slope / (2 * bend)
    low, high = np.clip([peak - half, peak + half], x[0], x[-1])
    return float(low), float(high)


def interval(found: Estimate) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


#: Parts that draw races, with their usual number.
PARTS: Mapping[str, tuple[Callable[[int], list[Case]], int]] = {
    "simulate": (simulate, 400), "races": (draw_races, 50), "repeats": (repeats, 50), "gains": (gains, 0),
    "curves": (curves, 400),
}  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["oracle", *PARTS])
    parser.add_argument("--out", type=Path, default=Path("choose-oracle"), help="the oracle's folder")
    parser.add_argument("--seeds", type=numbers, default=list(range(ORACLE_SEEDS)), help="the oracle's")
    parser.add_argument("--lengths", type=numbers, default=list(LENGTHS), help="the oracle's")
    parser.add_argument("--races", type=int, help="races, or curves, of each kind; default: 400, of the table 50")
    parser.add_argument("--quick", action="store_true", help="a tenth of the races")
    parser.add_argument("--json", action="store_true", help="print the results as one line of JSON at the end")
    given = parser.parse_args()
    if given.part == "oracle":
        oracle(given.out, given.seeds, given.lengths, "float32")
    else:
        part, usual = PARTS[given.part]
        cases = part(given.races or usual // (10 if given.quick else 1))
        if given.json:
            print(json.dumps({"name": f"choose {given.part}", "cases": [asdict(case) for case in cases]}))
