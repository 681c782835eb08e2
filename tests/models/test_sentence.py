"""Sentence encoders: against sentence-transformers' own `encode`, and one text at a time by hand."""

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers as library
import torch
from factories import caption
from safetensors.torch import load_file, save_file
from tiny_encoders import E5, ENCODERS, bert, encoder_folder, tokenizer
from tiny_models import sentences_folder
from transformers import AutoModel, AutoTokenizer, BlipForImageTextRetrieval

import tamis
from tamis.core.errors import ModelError
from tamis.core.types import Device
from tamis.models import reference
from tamis.models.reference import resolve
from tamis.models.texts import sentence
from tamis.models.texts.sentence import load_sentence_encoder
from tamis.signals import ClassSimilarity, Sieve
from tamis.signals.graph import Identities

QWEN, E5_BASE, LABSE, T5 = (next(name for name in ENCODERS if part in name) for part in ("Qwen", "e5", "LaBSE", "t5"))
TEXTS = ["a dog", "A Dog", "", "word " * 400, "\u4e00\u53ea\u72d7\u5728\u8349", "\u0643\u0644\u0628", "a dog? a cat: 2"]

CAPTIONS = [caption(seed) for seed in range(9)]


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return functools.cache(lambda kind: encoder_folder(tmp_path_factory.mktemp("encoders") / "tiny", kind))


def theirs(folder: Path, **options: Any) -> Any:
    model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    if model.transformers_model is not None:
        model.max_seq_length = min(model.max_seq_length, 60)
    with np.errstate(invalid="ignore"):
        vectors = model.encode(TEXTS, **options)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("kind", ENCODERS)
def test_as_the_library_encodes(kind: str, encoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, ours = encoder(kind), []
    init = sentence.SentenceTransformer.__init__
    monkeypatch.setattr(
        sentence.SentenceTransformer, "__init__", lambda self, *given: ours.append(1) or init(self, *given)
    )
    for prompt in ("", "query: ") if kind != "default" else (None,):
        wanted = theirs(folder, **({} if prompt is None else {"prompt": prompt}))
        for batch in (1, 7):
            found = load_sentence_encoder(str(folder), Device(batch_size=batch), prompt)([*TEXTS, TEXTS[0]])
            np.testing.assert_allclose(found, [*wanted, wanted[0]], atol=1e-5)
    assert np.abs(wanted[0] - wanted[-1]).max() > 0.01  # texts differ
    assert bool(ours) != ENCODERS[kind][1] or kind == "without prompt"  # that one is ours until it has a prompt


@pytest.mark.parametrize("kind", [QWEN, LABSE])
def test_a_folder_that_the_library_saved_today_encodes_alike(kind: str, encoder: Any, tmp_path: Path) -> None:
    library.SentenceTransformer(str(encoder(kind)), device="cpu").save_pretrained(
        str(tmp_path / "model"), create_model_card=False
    )
    assert "pooling_mode_" not in (tmp_path / "model" / "1_Pooling" / "config.json").read_text()
    found, wanted = (load_sentence_encoder(str(path), Device())(TEXTS) for path in (tmp_path / "model", encoder(kind)))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", ["default", "max"])
def test_texts_longer_than_the_network_are_cut_whatever_the_folder_says(
    kind: str, encoder: Any, tmp_path: Path
) -> None:
    folder = shutil.copytree(encoder(kind), tmp_path / "model")
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 128}')
    tokens = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens | {"model_max_length": 128}))
    network = library.SentenceTransformer(str(folder), device="cpu")
    network.max_seq_length = 64
    wanted = network.encode(TEXTS, normalize_embeddings=True, prompt="")
    np.testing.assert_allclose(load_sentence_encoder(str(folder), Device(), "")(TEXTS), wanted, atol=1e-5)


def test_folders_of_the_library_without_a_network_at_their_root_are_complete(encoder: Any) -> None:
    assert all(reference.complete(encoder(kind)) for kind in ENCODERS)


def test_a_text_of_no_tokens_has_a_vector(tmp_path: Path) -> None:
    bert(tmp_path, words=tokenizer("$A"))
    assert np.isfinite(load_sentence_encoder(str(tmp_path), Device())(["", "a dog"])).all()


def test_prompts_need_a_choice_where_the_folder_names_no_default(encoder: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"set encoder_prompt to 'query: ' \(query\), 'passage: ' \(passage\), or"):
        load_sentence_encoder(str(encoder(E5_BASE)), Device())
    load_sentence_encoder(str(encoder(QWEN)), Device())  # one kind of text has none
    bert(tmp_path, prompts=E5, default="nonesuch")
    with pytest.raises(ModelError, match=r"config_sentence_transformers\.json is damaged"):
        load_sentence_encoder(str(tmp_path), Device())


def test_prompts_through_the_command(encoder: Any, pool: Path, tmp_path: Path) -> None:
    classes = tmp_path / "classes.txt"
    classes.write_text("dog\ncat\n")
    settings = {"encoder": str(encoder(E5_BASE)), "classes_from": str(classes)}
    scores = {}
    for prompt in ("", "query: "):
        signal = {"class_similarity": settings | {"encoder_prompt": prompt}}
        run = tamis.score(pool, run=tmp_path / f"run{len(prompt)}", signals=[signal], quiet=True, precision="float32")
        blocks = [run.table().read(n, ["class_similarity"])["class_similarity"] for n in range(3)]
        scores[prompt] = np.concatenate(blocks)
    encode = load_sentence_encoder(settings["encoder"], Device(), "query: ")
    captions = [row["caption"] for shard in run.shards for row in run.index(shard).to_pylist()]
    np.testing.assert_allclose(scores["query: "], (encode(captions) @ encode(["dog", "cat"]).T).max(1), atol=1e-5)
    assert not np.allclose(scores[""], scores["query: "])
    with pytest.raises(ModelError, match="encoder_prompt"):
        tamis.score(pool, run=tmp_path / "none", signals=[{"class_similarity": settings}], quiet=True)


def test_old_fingerprints_and_digests_stay(encoder: Any, sentence_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    identities = Identities(Device())
    for cls in (Sieve, ClassSimilarity):
        options = {"captions_from": __file__} if cls is Sieve else {}
        facts = [identities.facts(cls(encoder=sentence_model, encoder_prompt=p, **options)) for p in (None, "")]
        assert "encoder_prompt" not in facts[0]["settings"]
        assert facts[1]["settings"]["encoder_prompt"] == ""
    before = {kind: resolve(str(encoder(kind))).digest for kind in (E5_BASE, "default")}
    monkeypatch.setattr(reference, "prompts_in", lambda _: ({}, None))  # as before prompts were used
    assert resolve(str(encoder(E5_BASE))).digest == before[E5_BASE]
    assert resolve(str(encoder("default"))).digest != before["default"]


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("max", {"modules.json": ("sentence_transformers.models.Pooling", "theirs.Pooling")}, "theirs.Pooling is code"),
        ("max", {"modules.json": ("models.Pooling", "util.misc.logging")}, "logging is code of its own"),
        ("max", {"modules.json": ("models.Pooling", "models.Router")}, "Router of sentence-transformers"),
        ("max", {"config_sentence_transformers.json": ("{", '{"model_type": "SparseEncoder", ')}, "SparseEncoder"),
        ("max", {"1_Pooling/config.json": ("true", "false")}, "names no pooling"),
        (T5, {"config.json": ('"num_layers": 2', '"num_layers": 3')}, "no weights for encoder.block.2"),
        (T5, {"config.json": ("{", '{"attn_implementation": "theirs/kernel", ')}, "theirs/kernel"),
        (T5, {"sentence_bert_config.json": ("{", '{"tokenizer_name_or_path": "/etc", ')}, "files from elsewhere"),
        (T5, {"2_Dense/model.safetensors": None}, "tamis convert"),
        (LABSE, {"2_Dense/config.json": ("torch.nn.modules.activation.Tanh", "theirs.Act")}, "Act is not supported"),
    ],
)
def test_folders_that_no_module_of_the_library_reads_are_refused(
    kind: str, change: dict[str, tuple[str, str] | None], message: str, encoder: Any, tmp_path: Path
) -> None:
    folder = shutil.copytree(encoder(kind), tmp_path / "model")
    for name, replaced in change.items():
        if replaced is None:
            (folder / name).rename(folder / name.replace("model.safetensors", "pytorch_model.bin"))
        else:
            text = (folder / name).read_text()
            assert replaced[0] in text
            (folder / name).write_text(text.replace(*replaced, 1))
    json.loads((folder / "config.json").read_text())
    with pytest.raises(ModelError, match=message) as caught:
        load_sentence_encoder(str(folder), Device())
    assert str(folder) in str(caught.value)


def sentence_transformer(folder: Path, encoder: str, pooling: str = "mean_tokens", *, dense: int = 0) -> Path:
    """Saves a tiny sentence-transformers checkpoint that cuts texts at 8 tokens."""
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
def test_one_text_at_a_time_by_hand(pooling: str, dense: int, regression_model: str, tmp_path: Path) -> None:
    folder = sentence_transformer(tmp_path / "model", regression_model, pooling, dense=dense)
    encode = load_sentence_encoder(str(folder), Device(batch_size=4))
    bert = AutoModel.from_pretrained(folder / "0_Transformer").eval()
    tokenizer = AutoTokenizer.from_pretrained(folder / "0_Transformer")
    wanted = []
    for text in CAPTIONS:
        ids = tokenizer(text, truncation=True, max_length=8, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            states = bert(input_ids=ids).last_hidden_state[0]
        vector = states[0] if pooling == "cls_token" else states.mean(0)
        for n in range(dense):
            layer = load_file(folder / f"{n + 2}_Dense" / "model.safetensors")
            vector = torch.tanh(layer["linear.weight"] @ vector + layer["linear.bias"])
        wanted.append((vector / vector.norm()).numpy())
    np.testing.assert_allclose(encode([*CAPTIONS, CAPTIONS[0]]), [*wanted, wanted[0]], atol=1e-5)
    assert encode([]).shape[0] == 0


def test_lower_case_where_it_is_asked_for(
    regression_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sentence_transformer(tmp_path / "model", regression_model)
    for file in (folder / "0_Transformer").iterdir():  # in the folder itself, as the library saves it
        file.rename(folder / file.name)
    (folder / "modules.json").write_text((folder / "modules.json").read_text().replace("0_Transformer", ""))
    shouted = [text.upper() for text in CAPTIONS]
    before = load_sentence_encoder(str(folder), Device())(shouted)
    settings = {"max_seq_length": 8, "do_lower_case": True}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    after = load_sentence_encoder(str(folder), Device())(shouted)
    np.testing.assert_array_equal(after, load_sentence_encoder(str(folder), Device())(CAPTIONS))
    assert not np.allclose(after, before)
    digest = resolve(str(folder)).digest
    monkeypatch.setattr(reference, "needs_lower_case", lambda _: False)  # as before texts were lower-cased
    assert resolve(str(folder)).digest != digest


def test_the_text_tower_of_a_blip_retrieval_checkpoint(itm_model: str) -> None:
    found = load_sentence_encoder(itm_model, Device(batch_size=4))(CAPTIONS)
    assert found.shape == (9, 24)
    model, tokenizer = (kind.from_pretrained(itm_model) for kind in (BlipForImageTextRetrieval, AutoTokenizer))
    for text, vector in zip(CAPTIONS, found, strict=True):
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
