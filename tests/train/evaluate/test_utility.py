"""T-MARS's utility study: the pools that are made of a run, and the slopes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import write_run

from tamis.core.errors import RunError
from tamis.runs import Run
from tamis.train.evaluate.bench import Bench, summarise
from tamis.train.evaluate.cells import CellResult
from tamis.train.evaluate.utility import PAPER, rows_of_utilities, utilities, variants
from tamis.train.scales import at_scale


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A hundred pairs, 14 of each kind of the paper and 30 of another; of them 10 are the smallest base."""
    kinds = [kind for kind in PAPER for _ in range(14)] + ["tiny"] * 30
    np.random.default_rng(1).shuffle(kinds)
    return write_run(tmp_path_factory.mktemp("utility") / "run", {"truth": kinds})


def benched(run: Run, scores: dict[str, dict[int, float]]) -> Bench:
    """A bench in which each pool has these scores by seed; .5 by default."""
    subsets, usual = variants(run), {0: 0.5, 1: 0.5}
    results = {
        (one.name, seed): CellResult(
            scores={"objects": score},
            likelihoods={"objects": -1.0},
            samples=100,
            training_seconds=1.0,
            evaluation_seconds=0.5,
        )
        for one in subsets
        for seed, score in scores.get(one.name, usual).items()
    }
    return summarise(subsets, results, at_scale("lab"), [0, 1], ["objects"], {}, {})


def test_each_kind_is_added_to_its_base(run: Run) -> None:
    truth: Any = run.to_numpy("truth")
    found = {one.name: one.keep for one in variants(run)}
    assert len(found) == 2 + 5 * 2
    counts = {name: {kind: int((truth[keep] == kind).sum()) for kind in {*truth[keep]}} for name, keep in found.items()}
    assert counts["images"] == {"visual": 10}
    assert counts["images and text"] == {"visual": 10, "text_only": 5}
    assert counts["images + 20% text_only"] == {"visual": 10, "text_only": 2}
    assert counts["images + 40% mismatched"] == {"visual": 10, "mismatched": 4}
    assert counts["images and text + 40% visual"] == {"visual": 14, "text_only": 5}
    assert not (found["images + 20% mismatched"] & ~found["images + 40% mismatched"]).any()


def test_a_utility_is_the_mean_slope_over_the_seeds_by_hand(run: Run) -> None:
    scores = {
        "images + 20% text_only": {0: 0.4, 1: 0.45}, "images + 40% text_only": {0: 0.3, 1: 0.40},
        "images and text + 40% visual": {0: 0.6, 1: 0.6}, "images + 40% mismatched": {1: 0.6},
    }  # fmt: skip
    slopes = utilities(benched(run, scores))
    # Two pairs more are .002 thousand. Seed 0 falls by 50 per thousand, seed 1 by 25: mean -37.5, s = 17.67767,
    # half 12.706205 * 12.5 = 158.82756.
    text = slopes["text_only"]
    assert text is not None
    assert (text.value, text.low, text.high) == pytest.approx((-37.5, -196.32756, 121.32756), abs=1e-4)
    # Least squares through (0, .5), (.002, .5), (.004, .6): sum of (x - .002)(y - mean) is .0002, of (x - .002)^2 8e-6.
    visual = slopes["visual"]
    assert visual is not None
    assert visual.value == pytest.approx(25)
    assert slopes["mismatched"] is None  # one common seed
    rows = {row["kind"]: row for row in rows_of_utilities(slopes)}
    assert rows["visual"]["sign"] == "same"
    assert rows["text_only"]["sign"] == rows["mismatched"]["sign"] == "not significant"
    assert (rows["text_only"]["T-MARS"], rows["text_only"]["per million"]) == ("S_t", "-0.89")


def test_a_run_without_the_kinds_is_refused(tmp_path: Path) -> None:
    kinds = [kind for kind in PAPER for _ in range(4 if kind == "visual_text" else 9)]
    few = write_run(tmp_path / "few", {"truth": kinds})
    with pytest.raises(RunError, match="4 pairs whose 'truth' is 'visual_text'"):
        variants(few)
    with pytest.raises(RunError, match="0 pairs whose 'truth' is 'text_only'"):
        variants(write_run(tmp_path / "none", {"words": [1.0] * 9}))
