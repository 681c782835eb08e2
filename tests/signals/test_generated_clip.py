"""The cosine of generated captions, and the caption that a pair carries from there to exports and training."""

import json
import re
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from factories import pair, write_tar

import tamis
from tamis.core.errors import RecipeError, RunError
from tamis.core.math.similarity import rowwise_dot
from tamis.core.types import Device
from tamis.models.clip import load_clip, load_tokenizer
from tamis.recipes.recipe import load
from tamis.runs import Run
from tamis.runs.stream import samples_of
from tamis.runs.subset import Subset, captions_of
from tamis.signals.clip import first_sentence
from tamis.train.batches import Batches
from tamis.train.clip import training_rows

TEXTS = {
    "0": ["dog", "a cat near a house", "a tree"],
    "1": ["a red boat. It is on a beach."],
    "2": [],
    "3": ["a green tree", "a green tree"],
}


@pytest.fixture
def scored(tmp_path: Path, clip_model: str) -> Callable[..., Run]:
    def score(**settings: Any) -> Run:
        samples = [(str(n), pair(n)) for n in range(5)]
        del samples[3][1]["txt"]  # it has no alt-text
        write_tar(tmp_path / "pool" / "00000.tar", samples)
        file = tmp_path / "captions.jsonl"
        file.write_text("".join(json.dumps({"key": key, "captions": texts}) + "\n" for key, texts in TEXTS.items()))
        signals = [
            {"clip": {"model": clip_model}},
            {"generated_clip": {"model": clip_model, "captions_from": str(file), **settings}},
        ]
        return tamis.score(
            tmp_path / "pool",
            run=tmp_path / "run",
            signals=signals,
            keep=["embeddings"],
            quiet=True,
            device="cpu",
            precision="float32",  # what a processor does with bf16 is another test
        )

    return score


def test_the_best_cosine_and_its_caption_equal_a_plain_loop(scored: Callable[..., Run], clip_model: str) -> None:
    run = scored()
    clip, tokenize = load_clip(clip_model, Device(kind="cpu")), load_tokenizer(clip_model)
    images = run.embedding("image_embedding", run.shards[0])
    scores = run.to_numpy("generated_clip")
    captions = run.to_arrow(["generated_caption"])["generated_caption"].to_pylist()
    for row in (0, 1, 3):
        texts = TEXTS[str(row)]
        vectors = clip.texts(tokenize(texts))
        vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
        cosines = rowwise_dot(np.repeat(images[row : row + 1], len(texts), 0), vectors)
        assert abs(scores[row] - cosines.max()) < 2e-3
        assert captions[row] == texts[int(cosines.argmax())]
    assert np.isnan(scores[[2, 4]]).all()
    assert captions[2] is captions[4] is None


def test_only_the_first_sentence_is_judged_and_kept_if_asked(scored: Callable[..., Run]) -> None:
    assert scored(first_sentence=True).to_arrow(["generated_caption"])["generated_caption"][1].as_py() == "a red boat."


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("A dog runs. It is brown.", "A dog runs."),
        (" Is it? Yes!", "Is it?"),
        ("J. Smith in Paris. He waves.", "J. Smith in Paris."),
        ("approx. two dogs", "approx. two dogs"),
        ("a 3.5 m boat", "a 3.5 m boat"),
        ("\u4e00\u53ea\u72d7\u3002\u5b83\u5f88\u5927\u3002", "\u4e00\u53ea\u72d7\u3002"),
        ("no end", "no end"),
        ("", ""),
    ],
)
def test_where_a_first_sentence_ends(text: str, first: str) -> None:
    assert first_sentence(text) == first


@pytest.fixture
def subset(scored: Callable[..., Run], tmp_path: Path) -> Subset:
    """Rows 0, 1 and 3 carry their generated captions, 2 and 4 have none and keep the alt-text."""
    step = {"score": "clip", "other": "generated_clip", "threshold": -1, "mix": 1}
    found = tamis.select(scored(), {"name": "mine", "select": [{"any_of": [{"choose_caption": step}]}]})
    found.save(tmp_path / "mine.parquet")
    return Subset.load(tmp_path / "mine.parquet", found.run)


def texts_of(subset: Subset) -> list[str | None]:
    """The captions by rows, from what is known here."""
    carried = subset.to_arrow(["generated_caption"])["generated_caption"].to_pylist()
    return [text or caption for text, caption in zip(carried, [pair(n)["txt"].decode() for n in range(5)], strict=True)]


def test_a_saved_subset_gives_the_chosen_texts_to_streams_and_tables(subset: Subset) -> None:
    assert subset.caption is not None
    assert (subset.caption.tolist(), subset.captions_from) == ([1, 1, 0, 1, 0], "generated_caption")
    texts = texts_of(subset)
    assert subset.to_arrow(["caption"])["caption"].to_pylist() == texts
    alt = [pair(n)["txt"].decode() for n in range(5)]
    backwards = list(samples_of(subset, order=[4, 3, 0, 3], fields=["caption"]))
    assert [one.caption for one in backwards] == [texts[4], texts[3], texts[0], texts[3]]
    assert [one.alt_text for one in backwards] == [None, "", alt[0], ""]
    assert [one.caption for one in samples_of(subset.run, fields=["caption"])] == [*alt[:3], None, alt[4]]


def test_exports_write_the_chosen_text_and_keep_the_alt_text(subset: Subset, tmp_path: Path) -> None:
    texts = texts_of(subset)
    tamis.export(subset, "webdataset", tmp_path / "tars")
    with tarfile.open(tmp_path / "tars" / "00000.tar") as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    assert [files[f"{n}.txt"].decode() for n in range(5)] == texts
    before = [json.loads(pair(n)["json"]) for n in range(5)]
    alt = {0: pair(0)["txt"].decode(), 1: pair(1)["txt"].decode(), 3: ""}
    for row in range(5):
        assert json.loads(files[f"{row}.json"]) == before[row] | ({"alt_text": alt[row]} if row in alt else {})
        assert files[f"{row}.jpg"] == pair(row)["jpg"]
    tamis.export(subset, "parquet", tmp_path / "pairs.parquet", captions=True)
    tamis.export(subset, "huggingface", tmp_path / "hub")
    for path in (tmp_path / "pairs.parquet", tmp_path / "hub" / "train-00000-of-00001.parquet"):
        table = pq.read_table(path)
        assert table["caption"].to_pylist() == texts
        assert table["alt_text"].to_pylist() == [None if n == 3 else pair(n)["txt"].decode() for n in range(5)]
    with pytest.raises(RunError, match="holds another export"):  # the same rows with their alt-texts are another one
        tamis.export(replace(subset, caption=None), "webdataset", tmp_path / "tars")


def test_an_export_writes_several_captions_to_the_json_for_open_clip_to_draw_from(
    subset: Subset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    tamis.export(subset, "webdataset", tmp_path / "tars", json_captions=["generated_caption"])
    assert "--json-text-key 'alt_text;generated_caption' --json-text-key-probs 1 1" in caplog.text
    generated = subset.run.to_arrow(["generated_caption"])["generated_caption"].to_pylist()
    with tarfile.open(tmp_path / "tars" / "00000.tar") as tar:
        for row, text in enumerate(texts_of(subset)):
            found = json.loads(tar.extractfile(f"{row}.json").read())  # type: ignore[union-attr]
            alt_text = "" if row == 3 else pair(row)["txt"].decode()
            assert found == json.loads(pair(row)["json"]) | {
                "alt_text": alt_text,
                "generated_caption": generated[row] or "",
            }
            assert tar.extractfile(f"{row}.txt").read().decode() == text  # type: ignore[union-attr]
    with pytest.raises(RecipeError, match=r"the column 'clip' of .* holds no captions"):
        tamis.export(subset, "webdataset", tmp_path / "none", json_captions=["clip"])
    with pytest.raises(RecipeError, match="holds no captions"):
        tamis.export(subset, "webdataset", tmp_path / "tars", json_captions=["clip"], overwrite=True)
    assert (tmp_path / "tars" / "00000.tar").is_file()
    with pytest.raises(RunError, match="unknown score column 'generated_captio'"):
        tamis.export(subset, "webdataset", tmp_path / "none", json_captions=["generated_captio"])
    assert not (tmp_path / "none").exists()  # so that the corrected command can write there


def test_the_report_compares_the_diversity_of_both_texts(subset: Subset, tmp_path: Path) -> None:
    tamis.report(subset.run, subsets=[subset], out=tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    # Row 3 has no alt-text to compare with.
    assert re.search(
        r"Share of distinct trigrams in 2 pairs with a chosen caption: [01]\.\d\d in their alt-texts", page
    )


def test_a_caption_in_the_json_is_replaced_there(tmp_path: Path) -> None:
    write_tar(tmp_path / "pool" / "00000.tar", [("0", {"jpg": pair(0)["jpg"], "json": b'{"alt_text": "old", "a": 1}'})])
    file = tmp_path / "captions.csv"
    file.write_text("key,caption\n0,new\n")
    pool = tamis.PoolSpec(path=str(tmp_path / "pool"), caption="json:alt_text")
    run = tamis.score(pool, run=tmp_path / "run", signals=["caption_length", "language"], quiet=True)
    subset = Subset(run=run, keep=np.ones(1, bool), caption=np.ones(1, np.uint8), captions_from="language.top_language")
    language = run.to_arrow(["top_language"])["top_language"][0].as_py()
    tamis.export(subset, "webdataset", tmp_path / "out")
    with tarfile.open(tmp_path / "out" / "00000.tar") as tar:
        found = json.loads(tar.extractfile("0.json").read())  # type: ignore[union-attr]
        assert tar.getnames() == ["0.jpg", "0.json", "0.txt"]
        assert tar.extractfile("0.txt").read().decode() == language  # type: ignore[union-attr]
    assert found == {"alt_text": language, "alt_text_of_pool": "old", "a": 1}


def test_training_reads_the_chosen_texts_and_pairs_without_an_alt_text(subset: Subset) -> None:
    run, texts = subset.run, texts_of(subset)
    rows, left_out = training_rows(subset)
    assert (rows.rows.tolist(), left_out) == ([0, 1, 2, 3, 4], 0)
    assert list(captions_of(run, rows.rows, rows.others)) == texts
    assert training_rows(run)[1] == 1
    batches = Batches(run=run, rows=rows.only(rows.rows > 0), batch=4, side=32, smallest=0.9)
    (batch,) = batches(0, 1, lambda batch: batch)
    assert sorted(batch.captions) == sorted(texts[1:])
    assert batch.usable.all()
    plain = training_rows(replace(subset, caption=None))[0]
    assert (plain.others.digest, len(rows.others.digest)) == (b"", 16)


def test_subsets_combine_their_captions_and_say_what_is_missing(subset: Subset) -> None:
    both = replace(subset, caption=None, captions_from="") & subset
    assert both.caption is not None
    assert (both.caption.tolist(), both.captions_from) == ([1, 1, 0, 1, 0], subset.captions_from)
    with pytest.raises(ValueError, match=r"other captions from different columns: \['generated_caption', 'x'\]"):
        replace(subset, captions_from="x") | subset
    with pytest.raises(RunError, match="set captions_from to their column"):
        next(samples_of(replace(subset, captions_from="")))
    with pytest.raises(RunError, match="generated_capton"):
        next(samples_of(replace(subset, captions_from="generated_capton")))


def test_the_recipe_asks_for_both_scores_and_bad_settings_are_refused() -> None:
    recipe = load("choose-caption")
    assert {"clip", "generated_clip", "generated_caption", "status"} == set(recipe.reads)
    for settings, message in (
        ({"captioner": None}, "set captioner, or captions_from"),
        ({"captions_from": "x.csv", "sampling": {"captions": 2}}, "no captioner runs: leave out sampling"),
        ({"first_sentences": True}, "first_sentence"),
    ):
        with pytest.raises(RecipeError, match=message):
            load({"signals": [{"generated_clip": {"model": "lab/clip", **settings}}]})
