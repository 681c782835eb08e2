"""The race of `tamis choose` on drawn scores: who leaves, who is set aside for cost, what is said and written."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from factories import write_run

from tamis.core.errors import RunError, StopError
from tamis.core.math.race import dunnett_bound
from tamis.recipes.recipe import load
from tamis.runs import Run
from tamis.runs.subset import Subset
from tamis.train.evaluate.cells import CellResult
from tamis.train.evaluate.choose import Race, _agreement, race, scoring_costs
from tamis.train.scales import Training, at_scale

TRAINING = at_scale("lab", samples=9_600, seed=5)  # the rounds see 1,200, 2,400, 4,800 and 9,600 samples
ARMS = {"no-filter": 12, "random@0.5": 6, "good@0.5": 6, "good@0.2": 2, "bad@0.5": 6}  # {name: pairs kept}
BEST = {"good@0.5": 1.0, "good@0.2": 0.999}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return write_run(tmp_path_factory.mktemp("choose") / "run", {"truth": ["visual"] * 12})


@pytest.fixture(scope="module")
def subsets(run: Run) -> list[Subset]:
    """An arm each, of different pairs."""
    keeps = {name: np.roll(np.arange(12) < kept, number) for number, (name, kept) in enumerate(ARMS.items())}
    return [Subset(run=run, keep=keep, recipe={"name": name}) for name, keep in keeps.items()]


@dataclass
class Drawn:
    """A trainer whose models have the score that `level` says, and a noise that differs between arms and seeds.

    A training takes a second per 100 samples, and its evaluation two.
    """

    level: Callable[[str, int], float]
    failing: Mapping[str, str] = field(default_factory=dict)  # {arm: reason}
    noise: float = 0.001
    workers: int = 1
    slow: float = 1.0  # factor on the seconds of rounds after the first
    captioner: bool = False
    counted: Any = (SimpleNamespace(name="found"),)
    trained: list[tuple[str, int, int]] = field(default_factory=list)  # arm, samples, seed
    calls: int = 0

    def identity(self, subset: Subset, training: Training) -> str:
        return np.packbits(subset.keep).tobytes().hex()

    def train(self, wanted: Mapping[Any, tuple[Subset, Training]]) -> tuple[dict[Any, CellResult], dict[Any, str]]:
        self.calls += 1
        done, problems = {}, {}
        for key, (subset, training) in wanted.items():
            cell = (subset.name, training.samples, training.seed)
            if subset.name in self.failing:
                problems[key] = self.failing[subset.name]
                continue
            self.trained += [cell] if cell not in self.trained else []
            noise = self.noise * math.sin(
                7 * [*ARMS, "random-2k"].index(subset.name) + 3 * training.seed + training.seed**2
            )
            score = self.level(subset.name, training.samples) + noise
            seconds = training.samples / 100 * (self.slow if training.samples > 1_200 else 1)
            done[key] = CellResult(
                scores={"found": score if self.captioner else 0.5},
                likelihoods={} if self.captioner else {"found": score - 9},
                samples=training.steps * training.batch, training_seconds=seconds, evaluation_seconds=2.0,
            )  # fmt: skip
        return done, problems


def by_name(arm: str, samples: int) -> float:
    return BEST.get(arm, 0.0)


def random_too(arm: str, samples: int) -> float:
    return float(arm in (*BEST, "random-2k"))


def raced(subsets: list[Subset], trainer: Drawn, **settings: Any) -> Race:
    return race(subsets, trainer, TRAINING, **settings)  # type: ignore[arg-type]


def states(done: Race) -> dict[str, str]:
    return {arm.name: arm.state for arm in done.arms}


def test_arms_that_are_worse_leave_and_the_answer_is_what_remains(subsets: list[Subset]) -> None:
    trainer = Drawn(by_name)
    done = raced(subsets, trainer)
    assert states(done) == {
        "good@0.5": "best", "good@0.2": "not told apart",
        "no-filter": "excluded", "random@0.5": "excluded", "bad@0.5": "excluded",
    }  # fmt: skip
    assert [arm.name for arm in done.answer] == ["good@0.5", "good@0.2"]
    assert {arm.name: arm.left for arm in done.arms} == {
        "good@0.5": None, "good@0.2": None, "no-filter": 2, "random@0.5": 2, "bad@0.5": 2,
    }  # fmt: skip
    last = [sum(arm.scores[2]) for arm in done.arms if arm.left]
    assert last == sorted(last, reverse=True)  # of those that left together the best first
    assert done.beats_random
    assert (done.lengths, done.seeds, done.done) == ((1_200, 2_400, 4_800, 9_600), (2, 2, 3, 4), 4)
    assert done.margins[0] == math.inf
    seeds = {
        samples: sorted({seed for _, length, seed in trainer.trained if length == samples}) for samples in done.lengths
    }
    assert seeds == {1_200: [5, 6], 2_400: [7, 8], 4_800: [9, 10, 11], 9_600: [12, 13, 14, 15]}  # fresh, and shared
    assert {arm for arm, samples, _ in trainer.trained if samples > 2_400} == {"good@0.5", "good@0.2"}
    assert done.seconds == pytest.approx(5 * 2 * (12 + 2) + 5 * 2 * (24 + 2) + 2 * 3 * (48 + 2) + 2 * 4 * (96 + 2))
    best = done.arms[0]
    assert list(best.scores) == [1, 2, 3, 4]
    assert best.scores[2] == pytest.approx([-8, -8], abs=0.01)
    assert best.accuracies[4] == [0.5] * 4
    # Batches of 256: 5, 10, 19 and 38 steps; the arm keeps six pairs.
    assert best.epochs == {n: pytest.approx(steps * 256 / 6) for n, steps in enumerate((5, 10, 19, 38), start=1)}


def test_epochs_say_how_often_a_pair_is_seen_with_its_copies(subsets: list[Subset]) -> None:
    plain, *others = subsets
    done = raced([replace(plain, times=plain.keep.astype(np.uint16) * 3), *others], Drawn(by_name))
    arm = next(arm for arm in done.arms if arm.name == plain.name)
    assert arm.epochs[1] == pytest.approx(5 * 256 / plain.kept)


def test_the_verdict_says_what_stays_who_left_and_what_the_next_experiment_could_show(subsets: list[Subset]) -> None:
    done = raced(subsets, Drawn(by_name), scoring={"good@0.5": 70.0, "good@0.2": 60.0, "no-filter": 0.0})
    lines = done.verdict()
    assert lines[0] == (
        "best at 9,600 samples, if orders change no faster later than between the first two lengths: good@0.5"
    )
    assert lines[1] == "not told apart from it: good@0.2"
    assert lines[2].startswith("excluded after 2,400 samples: ")
    assert "where cost decides: good@0.2, whose scores cost least" in lines
    assert done.cheapest is not None
    assert not any("beat" in line for line in lines)
    # 2 arms, 12 more seeds of 98 seconds: the seconds of the race per sample seen are shared by all lengths.
    seen = 5 * 2 * 1_200 + 5 * 2 * 2_400 + 2 * 3 * 4_800 + 2 * 4 * 9_600
    minutes = done.seconds / seen * 2 * 12 * 9_600 / 60
    shown = dunnett_bound(1, 15, 0.05) * done.errors[-1] * math.sqrt(2 * 4 / 16)
    assert lines[-1] == (
        f"next: 12 more seeds of these 2 arms at 9,600 samples, {minutes:.0f} min, would tell {shown:.4f} apart"
    )
    table = done.rows_of_table()
    assert [row["state"] for row in table[:3]] == ["best", "not told apart", "excluded, round 2"]
    assert (table[0]["scoring"], table[-1]["scoring"]) == ("70 s", "–")
    assert (table[2]["4,800"], table[0]["accuracy"], table[0]["share"]) == ("", "0.500", "50.0 %")


def test_nothing_beats_random_is_an_answer(subsets: list[Subset]) -> None:
    done = raced(subsets, Drawn(lambda arm, samples: 0.0))
    assert len(done.answer) == 5
    assert not done.beats_random
    assert f"nothing here is shown to beat {' or '.join(done.unbeaten)}" in done.verdict()
    assert sorted(done.unbeaten) == ["no-filter", "random@0.5"]
    assert done.cheapest is None  # no cost is known


def test_the_verdict_names_only_what_is_not_beaten(subsets: list[Subset]) -> None:
    done = raced(subsets, Drawn(lambda arm, samples: -9.0 if arm == "random@0.5" else 0.0))
    assert done.unbeaten == ["no-filter"]
    assert not done.beats_random
    assert "nothing here is shown to beat no-filter" in done.verdict()


def test_a_number_of_random_pairs_is_no_filter_either(subsets: list[Subset]) -> None:
    counted = replace(subsets[3], recipe={"name": "random-2k"})  # not told apart from the best
    assert not raced([*subsets[:3], counted, subsets[4]], Drawn(random_too)).beats_random


def test_scores_without_noise_promise_nothing_of_more_seeds(subsets: list[Subset]) -> None:
    done = raced(subsets, Drawn(lambda arm, samples: 0.0, noise=0.0))
    assert done.verdict()[-1] == (
        "next: seeds make no difference to these scores; take a larger --samples, or other --tasks"
    )


def test_a_recipe_that_reads_scores_without_its_signals_has_no_known_cost(run: Run) -> None:
    last = {"select": [{"at_least": {"score": "caption_length.words", "value": 3}}]}
    recipes = [load({"name": "free", **last}), load({"name": "own", "signals": ["caption_length"], **last})]
    assert scoring_costs(run, [*recipes, load("random")]) == {"random": 0}
    (run.path / "events.jsonl").write_text('{"took": {"caption_length": 2.5}}\n')
    assert scoring_costs(run, [*recipes, load("random")]) == {"own": 2.5, "random": 0}
    (run.path / "events.jsonl").unlink()


def test_one_arm_left_ends_the_race(subsets: list[Subset]) -> None:
    done = raced(subsets, Drawn(lambda arm, samples: float(arm == "good@0.5")))
    assert (done.done, [arm.name for arm in done.answer]) == (2, ["good@0.5"])
    assert not any(line.startswith("next") for line in done.verdict())


def test_a_later_larger_drift_brings_arms_back_and_is_said(subsets: list[Subset]) -> None:
    def level(arm: str, samples: int) -> float:
        at_first = {"bad@0.5": -0.1}.get(arm, 0.0)
        turned = {"good@0.5": 3.0, "no-filter": -3.0}.get(arm, 0.0)
        return at_first + (turned if samples > 2_400 else 0)

    trainer = Drawn(level, noise=0.0005)
    done = raced(subsets, trainer)
    assert done.raised == (3,)
    assert ("bad@0.5", 4_800, 9) not in trainer.trained
    assert ("bad@0.5", 9_600, 12) in trainer.trained  # it left after round 2, and is back
    assert any("changed faster in round 3" in line for line in done.verdict())


def test_arms_that_the_budget_cannot_carry_are_set_aside_and_stay_in_the_answer(subsets: list[Subset]) -> None:
    flat = Drawn(lambda arm, samples: 0.001 * list(ARMS).index(arm), noise=0.01)
    # Round 1 takes 5 arms x 2 seeds x 14 s = 140 s; 3 arms of round 2 would take 156, 4 arms 208.
    done = raced(subsets, flat, budget=140.0 + 160)
    assert done.done == 2
    aside = {arm.name for arm in done.arms if arm.state == "set aside"}
    assert len(aside) == 2
    assert {arm for arm, samples, _ in flat.trained if samples == 2_400} == set(ARMS) - aside
    assert len(done.answer) == 5
    assert done.arms[0].state == "best"
    line = next(line for line in done.verdict() if line.startswith("set aside"))
    assert line.startswith("set aside for cost, so they may be the best: ")
    assert set(line.partition(": ")[2].split(", ")) == aside
    assert done.verdict()[-1].endswith("repeat the command with a larger --budget")
    assert done.seconds <= 300
    # The worst of round 1 are set aside, and they do not come back.
    means = {arm.name: np.mean(arm.scores[1]) for arm in done.arms}
    assert aside == set(sorted(means, key=means.__getitem__)[:2])


def test_a_budget_for_less_than_the_first_round_takes_the_first_arms(subsets: list[Subset]) -> None:
    trainer = Drawn(by_name)
    done = raced(subsets, trainer, budget=90.0)  # 90 / (2 * 14) arms: that of the training tried first counts too
    assert {arm for arm, _, _ in trainer.trained} == set(list(ARMS)[:3])
    assert [name for name, state in states(done).items() if state == "set aside"] == ["good@0.2", "bad@0.5"]
    assert done.verdict()[0] == "highest so far, after 1,200 samples: good@0.5"  # no drift is known yet
    # What was set aside lacks round 1 too: 2 arms x 2 x 1,200 and 5 arms x (2 x 2,400 + 3 x 4,800 + 4 x 9,600).
    minutes = done.seconds / (3 * 2 * 1_200) * (2 * 2_400 + 5 * 57_600) / 60
    assert f"next: the rounds that these 5 arms lack, {minutes:.0f} min: " in done.verdict()[-1]
    with pytest.raises(StopError, match="too small for two arms"):
        raced(subsets, Drawn(by_name), budget=20.0)
    twice = raced(subsets, Drawn(by_name, workers=2), budget=90.0)  # of the clock: two workers do twice as much
    assert "set aside" not in states(twice).values()


def test_arms_that_were_set_aside_do_not_come_back(subsets: list[Subset]) -> None:
    levels = dict(zip(ARMS, (0.0, 0.0, 0.5, 0.5, 1.0), strict=True))
    # Three of round 2's arms should take 2 x 24.5 s each; they take far less, so the budget would last for all.
    trainer = Drawn(lambda arm, samples: levels[arm], slow=0.01)
    done = raced(subsets, trainer, budget=140.0 + 160)
    assert list(states(done).values()).count("set aside") == 2
    assert [arm.name for arm in done.answer if arm.state == "best"] == ["bad@0.5"]
    assert (done.done, len(done.answer)) == (2, 3)
    assert done.verdict()[-1].startswith("next: the rounds that these 3 arms lack, ")


def test_a_budget_that_is_overdrawn_ends_the_race(subsets: list[Subset]) -> None:
    trainer = Drawn(lambda arm, samples: 0.0, slow=40)  # later rounds take far longer than the first promised
    done = raced(subsets, trainer, budget=600.0)
    assert done.seconds > 600
    assert done.done == 2


def test_the_same_race_is_run_again_under_a_budget(subsets: list[Subset]) -> None:
    """What was trained counts with the seconds it took then: a race that resumes decides alike."""
    done = [raced(subsets, Drawn(by_name), budget=400.0) for _ in range(2)]
    assert done[0] == done[1]


def test_a_failing_arm_is_named_and_the_others_race_on(subsets: list[Subset]) -> None:
    for budget in (None, 10_000.0):
        done = raced(subsets, Drawn(by_name, failing={"no-filter": "its disk is full"}), budget=budget)
        assert dict(done.failed) == {"no-filter": "its disk is full"}
        assert (done.arms[0].name, states(done)["no-filter"]) == ("good@0.5", "failed")
        assert "no result: no-filter" in done.verdict()
    with pytest.raises(StopError, match="every training failed, the first because: gone"):
        raced(subsets, Drawn(by_name, failing=dict.fromkeys(ARMS, "gone")))


def test_an_arm_that_fails_later_is_not_in_the_answer(subsets: list[Subset]) -> None:
    trainer = Drawn(by_name)

    def level(arm: str, samples: int) -> float:
        trainer.failing = {"good@0.5": "gone"} if samples == 2_400 else trainer.failing
        return by_name(arm, samples)

    trainer.level = level
    done = raced(subsets, trainer)
    assert states(done)["good@0.5"] == "failed"
    assert [arm.name for arm in done.answer] == ["good@0.2"]


def test_an_arm_without_a_pair_to_train_on_has_no_result_and_the_others_race(
    subsets: list[Subset], monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = Drawn.identity

    def fails(self: Drawn, subset: Subset, training: Training) -> str:
        if subset.name == "bad@0.5":
            raise RunError("it has no pair")
        return identity(self, subset, training)

    monkeypatch.setattr(Drawn, "identity", fails)
    done = raced(subsets, Drawn(by_name))
    assert done.failed == {"bad@0.5": "it has no pair"}
    assert states(done)["bad@0.5"] == "failed"
    assert done.arms[0].name == "good@0.5"
    with pytest.raises(StopError, match="a race needs two arms: it has no pair"):
        raced([one for one in subsets if one.name in ("bad@0.5", "good@0.5")], Drawn(by_name))


def test_arms_of_the_same_pairs_race_once_and_are_named(subsets: list[Subset]) -> None:
    twin = replace(subsets[2], recipe={"name": "twin"})
    trainer = Drawn(by_name)
    done = raced([*subsets, twin], trainer)
    assert "twin" not in {arm for arm, _, _ in trainer.trained}
    assert next(arm for arm in done.arms if arm.name == "good@0.5").same == ("twin",)
    assert done.rows_of_table()[0]["arm"] == "good@0.5 = twin"
    with pytest.raises(StopError, match="all keep the same pairs"):
        raced([subsets[2], twin], Drawn(by_name))


def test_a_captioner_is_ranked_by_cider(subsets: list[Subset]) -> None:
    done = raced(subsets, Drawn(by_name, captioner=True))
    assert done.arms[0].scores == done.arms[0].accuracies
    assert done.arms[0].scores[4] == pytest.approx([1, 1, 1, 1], abs=0.01)


def test_the_facts_are_json_and_say_what_the_race_says(subsets: list[Subset]) -> None:
    done = raced(subsets, Drawn(by_name))
    facts = json.loads(json.dumps(done.facts(), allow_nan=False))
    assert (facts["kind"], facts["format"], facts["answer"]) == ("tamis choose", 1, ["good@0.5", "good@0.2"])
    assert facts["margins"] == [None, *done.margins[1:]]
    assert facts["verdict"] == done.verdict()
    assert facts["arms"][0]["scores"] == {str(number): list(row) for number, row in done.arms[0].scores.items()}
    assert facts["training"]["model"] == TRAINING.model
    assert facts["check"] is None


def test_the_agreement_with_another_model_by_hand(subsets: list[Subset]) -> None:
    done = raced(subsets, Drawn(lambda arm, samples: 0.5 * list(ARMS).index(arm)))
    other = raced(subsets, Drawn(lambda arm, samples: {"bad@0.5": 1.9}.get(arm, 0.5 * list(ARMS).index(arm))))
    check = _agreement(done, other)
    # Ranks of no-filter, random, good@0.5, good@0.2, bad: 1 2 3 4 5 and 1 2 3 4 5 (1.9 > 1.5): all agree.
    assert check.correlation == pytest.approx(1)
    other = raced(subsets, Drawn(lambda arm, samples: {"bad@0.5": -1.0}.get(arm, 0.5 * list(ARMS).index(arm))))
    check = _agreement(done, other)
    # 1 2 3 4 5 and 2 3 4 5 1: d^2 sums to 4 + 16 = 20, 1 - 6 * 20 / 120 = 0.
    assert check.correlation == pytest.approx(0)
    assert check.shared == ()
    assert check.verdict() == [
        f"with {TRAINING.model}: best good@0.2; rank correlation with the above 0.00; the answers have no arm in common"
    ]
    lost = _agreement(done, raced(subsets, Drawn(by_name, failing={"no-filter": "gone"})))
    assert lost.verdict()[0].endswith("; no result: no-filter")
    alike = _agreement(done, raced(subsets, Drawn(lambda arm, samples: 0.0, noise=0.0)))
    assert alike.correlation is None  # scores that are all equal have no order
    json.dumps(replace(done, check=alike).facts(), allow_nan=False)


def test_a_round_too_short_for_a_batch_is_refused(subsets: list[Subset], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the first of 9 rounds would see 37 samples, fewer than a batch of"):
        raced(subsets, Drawn(by_name), rounds=9)
