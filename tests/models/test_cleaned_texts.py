"""Texts are cleaned before a CLIP's tokenizer as its authors cleaned them, and fingerprints say so."""

import gzip
import html
import json
import os
import tarfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import pair, score, write_tar
from tiny_models import clip_folder, siglip_folder

from tamis.core.errors import DependencyError, ModelError
from tamis.core.types import Device
from tamis.models.clip import load_tokenizer
from tamis.models.convert import clip_tokenizer
from tamis.models.loading import cleaner
from tamis.models.reference import Cleaning, cleaning_of
from tamis.signals.clip import ClipScore
from tamis.signals.features.embeddings import ImageEmbedding, PromptedTextEmbedding, TextEmbedding
from tamis.signals.graph import Identities, topological
from tamis.signals.head import Head
from tamis.train.scales import ClipTraining
from tamis.train.towers import build

#: Real captions next to the project; not part of it.
DATA = Path(os.environ.get("TAMIS_SHARED") or Path(__file__).parents[3] / "shared") / "data"


@pytest.mark.parametrize(
    ("text", "openai", "whitespace", "canonicalize"),
    [
        ("Cats &amp;amp; Dogs", "cats & dogs", "Cats & Dogs", "cats dogs"),  # escaped twice
        ("&lt;b&gt;Caf\u00e9&lt;/b&gt;", "<b>caf\u00e9</b>", "<b>Caf\u00e9</b>", "bcaf\u00e9b"),
        ("sch\u00c3\u00b6n\u200b  \n Tag\t", "sch\u00f6n\u200b tag", "sch\u00f6n\u200b Tag", "sch\u00f6n\u200b tag"),
        ("l\u2019\u00e9t\u00e9 \ufb01n", "l'\u00e9t\u00e9 fin", "l'\u00e9t\u00e9 fin", "l\u00e9t\u00e9 fin"),
        ("a_red__dog, 5.5", "a_red__dog, 5.5", "a_red__dog, 5.5", "a red dog 55"),
        ("\u039f\u0394\u039f\u03a3 \u0130", "\u03bf\u03b4\u03bf\u03c2 i\u0307", "\u039f\u0394\u039f\u03a3 \u0130",
         "\u03bf\u03b4\u03bf\u03c2 i\u0307"),
        ("", "", "", ""),
    ],
)  # fmt: skip
def test_a_text_is_cleaned_as_by_hand(text: str, openai: str, whitespace: str, canonicalize: str) -> None:
    assert cleaner("openai")(text) == openai
    assert cleaner("whitespace")(text) == whitespace
    assert cleaner("canonicalize")(text) == canonicalize
    assert cleaner("hf")(text) == text


def says(folder: Path, name: str, **settings: Any) -> None:
    """Changes settings in a JSON file of a folder; names with two underscores are nested."""
    path = folder / name
    content = json.loads(path.read_text())
    for key, value in settings.items():
        part, _, key = key.rpartition("__")
        (content[part] if part else content)[key] = value
    path.write_text(json.dumps(content))


@pytest.fixture
def openai(tmp_path: Path) -> Path:
    """A tiny random CLIP that says it has OpenAI's vocabulary, with a tokenizer of letters like CLIP's."""
    from transformers import CLIPConfig, CLIPModel

    merges = tmp_path / "merges.txt"
    merges.write_text("#version: 0.2\nc a\nca t\n")
    folder = clip_folder(tmp_path / "openai")
    config = json.loads((folder / "config.json").read_text())
    text = config["text_config"] | {"vocab_size": 49_408, "eos_token_id": 2, "bos_token_id": 0}
    CLIPModel(CLIPConfig(**config | {"text_config": text})).save_pretrained(folder)
    (folder / "tokenizer.json").unlink()
    tokenizer = clip_tokenizer(str(merges), folder, own=False)
    tokenizer.model_max_length = 16
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({}, "openai"),
        ({"text_config__eos_token_id": 49_407}, "openai"),
        ({"model_type": "clipseg"}, "openai"),
        ({"text_config__vocab_size": 49_407}, "hf"),
        ({"text_config__eos_token_id": 257}, "hf"),  # learned by `tamis train clip` from a million captions
        ({"model_type": "altclip"}, "hf"),
        ({"text_config": ["damaged"]}, "openai"),  # loading the model reports it
    ],
)
def test_openais_vocabulary_means_openais_cleaning(settings: dict[str, Any], kind: Cleaning, openai: Path) -> None:
    says(openai, "config.json", **settings)
    assert cleaning_of(str(openai)) == kind
    says(openai, "tokenizer_config.json", text="whitespace")
    assert cleaning_of(str(openai)) == "whitespace"


def test_other_models_read_texts_as_transformers_does(tmp_path: Path) -> None:
    for folder in (clip_folder(tmp_path / "clip"), siglip_folder(tmp_path / "siglip")):
        assert cleaning_of(str(folder)) == "hf"
    says(tmp_path / "clip", "tokenizer_config.json", text="opneai")
    with pytest.raises(ModelError, match="unknown text 'opneai'"):
        cleaning_of(str(tmp_path / "clip"))
    with pytest.raises(ValueError, match="unknown text 'opneai'"):
        ClipScore(model="lab/clip", text="opneai")  # type: ignore[arg-type]


def test_scores_of_escaped_captions_are_those_of_the_plain_ones(openai: Path, tmp_path: Path) -> None:
    texts = ["cats &amp;amp; dogs", "cats & dogs"]
    image = pair(0)["jpg"]
    write_tar(tmp_path / "pool" / "0.tar", [(str(n), {"jpg": image, "txt": t.encode()}) for n, t in enumerate(texts)])
    scores = {}
    for text in (None, "openai", "hf"):
        run = score(tmp_path / "pool", tmp_path / f"run-{text}", ClipScore(model=str(openai), text=text))  # type: ignore[arg-type]
        scores[text] = run.table().read(0, ["clip"])["clip"]
    assert scores[None][0] == scores[None][1]
    np.testing.assert_array_equal(scores[None], scores["openai"])
    assert scores["hf"][1] == pytest.approx(scores[None][1], abs=0.002)  # another batch
    assert abs(scores["hf"][0] - scores["hf"][1]) > 0.005


def test_fingerprints_of_texts_say_how_they_were_cleaned_and_others_stay(openai: Path, head_model: str) -> None:
    text, prompted = TextEmbedding(model=str(openai)), PromptedTextEmbedding(model=str(openai), prompt="a ")
    image = ImageEmbedding(model=str(openai))
    before = Identities(Device())
    facts = [json.dumps(before.facts(node), default=str) for node in text.needs().values()]
    assert all('"texts cleaned": {"model": "openai"}' in fact for fact in facts)
    assert before.facts(ClipScore(model=str(openai)))["texts cleaned"] == {"model": "openai"}
    assert before.facts(prompted)["texts cleaned"] == {"model": "openai"}
    head = Head(weights=head_model, of=str(openai))
    assert not any("texts cleaned" in before.facts(node) for node in topological([image, head]))
    assert before.fingerprint(text) != before.fingerprint(TextEmbedding(model=str(openai), text="hf"))
    lab = before.facts(TextEmbedding(model="lab/clip").needs()["tokens"])
    assert "texts cleaned" not in lab
    assert "text" not in lab["settings"]  # as in runs of before


def test_training_cleans_as_scoring_does(openai: Path, tmp_path: Path) -> None:
    says(openai, "tokenizer_config.json", text="openai")
    towers = build(ClipTraining(model=str(openai), samples=8, batch=4))
    texts = ["Cat &amp;amp; \u2019", "cat"]
    ids, mask = towers.tokens(texts)
    rows = [row[: int(many.sum())].tolist() for row, many in zip(ids, mask, strict=True)]
    assert rows == load_tokenizer(str(openai))(texts) != load_tokenizer(str(openai), "hf")(texts)
    towers.save(tmp_path / "trained")
    assert json.loads((tmp_path / "trained" / "tokenizer_config.json").read_text())["text"] == "openai"


def test_without_ftfy_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ftfy", None)
    with pytest.raises(DependencyError, match=r"'ftfy' is not installed; run: pip install .*clip"):
        cleaner("openai")


def plain_ids(texts: list[str], vocabulary: Path) -> list[list[int]]:
    """OpenAI's tokenizer, slowly: the pair of pieces whose merge comes first, until there is none."""
    import ftfy
    import regex
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    lines = gzip.decompress(vocabulary.read_bytes()).decode().split("\n")[1 : 49_152 - 256 - 2 + 1]
    ranks = {tuple(line.split()): rank for rank, line in enumerate(lines)}
    signs = bytes_to_unicode()  # type: ignore[no-untyped-call]
    pieces = [*signs.values(), *(sign + "</w>" for sign in signs.values()), *map("".join, ranks)]
    number = {piece: n for n, piece in enumerate(pieces)}
    words = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+", regex.IGNORECASE)
    rows = []
    for text in texts:
        text = html.unescape(html.unescape(ftfy.fix_text(text))).strip()
        row = [49_406]
        for word in words.findall(" ".join(text.split()).strip().lower()):
            parts = [signs[byte] for byte in word.encode()]
            parts[-1] += "</w>"
            while len(parts) > 1:
                rank, at = min((ranks.get(both, len(ranks)), n) for n, both in enumerate(pairwise(parts)))
                if rank == len(ranks):
                    break
                parts[at : at + 2] = [parts[at] + parts[at + 1]]
            row += [number[part] for part in parts]
        rows.append([*row[:76], 49_407])
    return rows


def alt_texts() -> tuple[list[str], list[str]]:
    """10,000 captions of LAION and 1,550 alt-texts of repositories."""
    import pyarrow.parquet as pq

    laion = pq.read_table(DATA / "text" / "laion_alt_text_10000.parquet").column("TEXT").to_pylist()
    web = []
    for tar in sorted((DATA / "pools" / "web-alt").glob("*.tar")):
        with tarfile.open(tar) as members:
            web += [members.extractfile(one).read().decode() for one in members if one.name.endswith(".txt")]  # type: ignore[union-attr]
    return laion, web


@pytest.mark.skipif(not DATA.is_dir(), reason=f"there are no real captions in {DATA}")
def test_ids_of_real_captions_are_open_clips(openai: Path) -> None:
    vocabulary = DATA / "text" / "bpe_simple_vocab_16e6.txt.gz"
    says(openai, "config.json", text_config__max_position_embeddings=77)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (openai / name).unlink()
    tokenizer = clip_tokenizer(str(vocabulary), openai, own=False)
    tokenizer.model_max_length = 77
    tokenizer.save_pretrained(openai)
    for texts, odd in zip(alt_texts(), (28, 56), strict=True):
        expected = plain_ids(texts, vocabulary)
        assert load_tokenizer(str(openai))(texts) == expected
        plain = load_tokenizer(str(openai), "hf")(texts)
        assert sum(one != other for one, other in zip(plain, expected, strict=True)) == odd
