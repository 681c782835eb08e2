"""Sentence encoders of the kinds that people have, each against sentence-transformers' own `encode`."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers as library
from tiny_encoders import E5, ENCODERS, bert, encoder_folder, tokenizer

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
def test_texts_longer_than_the_network_are_cut_though_the_folder_allows_them(
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


def test_fingerprints_and_digests_of_before_stay(
    encoder: Any, sentence_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
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
