"""ICC: any text regression as in transformers itself, and the built-in norms on words and captions."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from factories import caption, safetensors_bytes
from tiny_models import regression_folder

from tamis.core.errors import ModelError
from tamis.core.types import Device
from tamis.models.texts.regression import FACTS, TextRegression, load_text_regression, word_facts

TEXTS = [caption(seed) for seed in range(40)] + ["a red dog", "tree " * 100, "", "  a  red dog", "nothing known here"]


@pytest.mark.parametrize("kind", ["roberta", "bert"])
def test_scores_are_those_of_one_text_at_a_time_through_transformers(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = regression_folder(tmp_path / "model", kind)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    scores = load_text_regression(str(folder), Device(batch_size=2))(TEXTS)
    assert (scores.dtype, scores.shape) == (np.float32, (len(TEXTS),))
    for text, score in zip(TEXTS, scores, strict=True):
        tokens = tokenizer(text, return_tensors="pt", truncation=True, max_length=39)
        with torch.inference_mode():
            assert score == pytest.approx(float(model(**tokens).logits), abs=2e-5)
    assert np.ptp(scores) > 0.1
    coarse = load_text_regression(str(folder), Device(precision="bf16"))(TEXTS)
    assert coarse == pytest.approx(scores, abs=0.05 * float(np.ptp(scores)) + 0.02)


def test_each_distinct_text_is_computed_once(regression_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import RobertaForSequenceClassification

    regress = load_text_regression(regression_model, Device(batch_size=4))
    sizes: list[int] = []
    forward = RobertaForSequenceClassification.forward

    def counting(network: Any, **inputs: Any) -> Any:
        sizes.append(len(inputs["input_ids"]))
        return forward(network, **inputs)

    monkeypatch.setattr(RobertaForSequenceClassification, "forward", counting)
    scores = regress(["a dog", "a cat", "a dog", "a dog ", "a cat"])
    assert sum(sizes) == 2
    assert scores[0] == scores[2] == scores[3]
    assert scores[1] == scores[4] != scores[0]
    assert regress([]).shape == (0,)


def test_models_without_a_number_are_errors(
    tmp_path: Path, llama_model: str, sba_model: str, regression_model: str
) -> None:
    from safetensors.torch import load_file, save_file

    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "model.safetensors").write_bytes(safetensors_bytes())
    headless = shutil.copytree(regression_model, tmp_path / "headless")  # not given a random head
    weights = load_file(headless / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.startswith("classifier.")}
    save_file(kept, headless / "model.safetensors", {"format": "pt"})
    for model, message in (
        (regression_folder(tmp_path / "classes", labels=3), "has 3 logits"),
        (sba_model, "'tamis-soft-token' model and not a text regression"),
        (llama_model, r"'llama' model and not a text regression.*score\.weight"),
        (tmp_path / "bare", r"no config\.json"),
        (headless, r"classifier\.dense\.bias and 3 others"),
    ):
        with pytest.raises(ModelError, match=message):
            load_text_regression(str(model), Device())


@pytest.fixture(scope="module")
def norms() -> TextRegression:
    return load_text_regression("norms", Device(batch_size=4))


def test_the_built_in_norms_give_these_numbers(norms: TextRegression) -> None:
    texts = ["table", "vague hope", "a brown horse stands in a field", "ZX-4410B REV2, 2019!", "Doggy hope, 3", ""]
    assert norms(texts) == pytest.approx([0.8781, 0.1024, 0.9256, 0.0135, 0.1079, 0.4101], abs=1e-3)


def test_word_facts_by_hand() -> None:
    # a Red dog ##gy hope , 3
    pieces = [(0, "a"), (1, "red"), (2, "dog"), (3, "##gy"), (4, "hope"), (5, ","), (6, "3")]
    value = np.array([0.1, 0.8, 0.95, 0.5, 0.3, 0.0, 0.0], np.float32)
    known = np.array([True, True, True, False, True, False, False])
    described = np.array([1.0, 0.8, 0.9, 0.2, 0.1, 0.7, 0.5], np.float32)
    facts = dict(zip(FACTS, word_facts("a Red doggy hope, 3", pieces, value, known, described), strict=True))
    expected = {
        "mean": 0.55,  # of red and hope; doggy is two pieces, "a" is a function word
        "highest": 0.8,
        "lowest": 0.3,
        "concrete share": 0,
        "abstract share": 1 / 2,
        "unknown share": 1 / 3,
        "function share": 1 / 4,
        "digit share": 1 / 6,
        "log words": np.log(7),
        "capital share": 1 / 19,
        "punctuation share": 1 / 19,
        "log known words": np.log(3),
        "one over words": 1 / 4,  # a, red, doggy, hope
        "described": 0.6 / 2,  # the mean of all pieces, times 1 - 2 / 4
    }
    assert {name: facts[name] for name in expected} == pytest.approx(expected)
    two = word_facts("Red hope", [pieces[1], pieces[4]], value, known, described)
    assert two[FACTS.index("described")] == 0  # does not count for two words
    assert np.isfinite(word_facts("", [], value[:0], known[:0], described[:0])).all()
