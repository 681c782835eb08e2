"""Sentence encoders: the kinds of checkpoint, each against transformers' own forward or a slow one written out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from factories import caption, sentences_folder

from tamis.core.errors import ModelError
from tamis.core.types import Device
from tamis.models import reference
from tamis.models.reference import resolve
from tamis.models.texts.sentence import load_sentence_encoder

TEXTS = [caption(seed) for seed in range(9)]


def sentence_transformer(folder: Path, encoder: str, pooling: str = "mean_tokens", *, dense: int = 0) -> Path:
    """Saves a tiny sentence-transformers checkpoint that cuts texts at 8 tokens."""
    from safetensors.torch import save_file

    modules = json.loads((sentences_folder(folder, encoder) / "modules.json").read_text())
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8}))
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({f"pooling_mode_{pooling}": True}))
    torch.manual_seed(0)
    for n, width in enumerate((32, 20)[:dense], 2):
        modules.append({"idx": n, "name": str(n), "path": f"{n}_Dense", "type": "sentence_transformers.models.Dense"})
        (folder / f"{n}_Dense").mkdir()
        settings = {"in_features": width, "out_features": width - 12, "activation_function": "torch.nn.Tanh"}
        (folder / f"{n}_Dense" / "config.json").write_text(json.dumps(settings))
        layer = {"linear.weight": torch.randn(width - 12, width), "linear.bias": torch.randn(width - 12)}
        save_file(layer, folder / f"{n}_Dense" / "model.safetensors")
    modules.append({"idx": 9, "name": "9", "path": "9", "type": "sentence_transformers.models.Normalize"})
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


@pytest.mark.parametrize(("pooling", "dense"), [("mean_tokens", 0), ("cls_token", 0), ("mean_tokens", 2)])
def test_sentence_transformers_one_text_at_a_time_by_hand(
    pooling: str, dense: int, regression_model: str, tmp_path: Path
) -> None:
    from safetensors.torch import load_file
    from transformers import AutoModel, AutoTokenizer

    folder = sentence_transformer(tmp_path / "model", regression_model, pooling, dense=dense)
    encode = load_sentence_encoder(str(folder), Device(batch_size=4))
    bert = AutoModel.from_pretrained(folder / "0_Transformer").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "0_Transformer")
    wanted = []
    for text in TEXTS:
        ids = tokenizer(text, truncation=True, max_length=8, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            states = bert(input_ids=ids).last_hidden_state[0]
        vector = states[0] if pooling == "cls_token" else states.mean(0)
        for n in range(dense):
            layer = load_file(folder / f"{n + 2}_Dense" / "model.safetensors")
            vector = torch.tanh(layer["linear.weight"] @ vector + layer["linear.bias"])
        wanted.append((vector / vector.norm()).numpy())
    np.testing.assert_allclose(encode([*TEXTS, TEXTS[0]]), [*wanted, wanted[0]], atol=1e-5)
    assert encode([]).shape[0] == 0


def test_a_checkpoint_that_asks_for_lower_case_gets_it(
    regression_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sentence_transformer(tmp_path / "model", regression_model)
    for file in (folder / "0_Transformer").iterdir():  # in the folder itself, as the library saves it
        file.rename(folder / file.name)
    (folder / "modules.json").write_text((folder / "modules.json").read_text().replace("0_Transformer", ""))
    shouted = [text.upper() for text in TEXTS]
    before = load_sentence_encoder(str(folder), Device())(shouted)
    settings = {"max_seq_length": 8, "do_lower_case": True}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    after = load_sentence_encoder(str(folder), Device())(shouted)
    np.testing.assert_array_equal(after, load_sentence_encoder(str(folder), Device())(TEXTS))
    assert not np.allclose(after, before)
    digest = resolve(str(folder)).digest
    monkeypatch.setattr(reference, "needs_lower_case", lambda _: False)  # as before texts were lower-cased
    assert resolve(str(folder)).digest != digest


def test_the_text_tower_of_a_blip_retrieval_checkpoint(itm_model: str) -> None:
    from transformers import AutoTokenizer, BlipForImageTextRetrieval

    found = load_sentence_encoder(itm_model, Device(batch_size=4))(TEXTS)
    assert found.shape == (9, 24)
    model, tokenizer = (kind.from_pretrained(itm_model) for kind in (BlipForImageTextRetrieval, AutoTokenizer))
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            states = model.text_encoder(tokenizer(text, return_tensors="pt")["input_ids"]).last_hidden_state
            wanted = torch.nn.functional.normalize(model.text_proj(states[0, 0]), dim=0)
        np.testing.assert_allclose(vector, wanted, atol=1e-5)


def test_models_that_encode_no_sentences_are_errors(
    blip_model: str, git_model: str, regression_model: str, tmp_path: Path
) -> None:
    lstm = sentence_transformer(tmp_path / "lstm", regression_model)
    modules = json.loads((lstm / "modules.json").read_text())
    modules[-1]["type"] = "sentence_transformers.models.LSTM"
    (lstm / "modules.json").write_text(json.dumps(modules))
    for model, message in (
        (blip_model, "'blip' model and not a BLIP retrieval checkpoint"),
        (git_model, "no sentence encoder"),
        (lstm, "the sentence encoder in .* cannot be loaded"),
    ):
        with pytest.raises(ModelError, match=message):
            load_sentence_encoder(str(model), Device())
