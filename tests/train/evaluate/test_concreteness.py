"""Agreement with people's ratings: from files of several kinds, with intervals, and what is left out."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import WORDS

from tamis.core.errors import PoolError, RecipeError
from tamis.core.types import Column, Device
from tamis.models.texts.regression import is_held_out
from tamis.pools.text_files import read_texts
from tamis.signals import CaptionLength, TextArea
from tamis.train.evaluate.concreteness import evaluate_concreteness

TEXTS = [" ".join(WORDS[: n + 1]) for n in range(12)]
RATINGS = [float(n) for n in range(12)]


def write(folder: Path, kind: str) -> Path:
    """Writes texts with ratings; the first row has no rating, and the last no text."""
    path = folder / f"rated.{kind}"
    rows = [("no rating", None), *zip(TEXTS, RATINGS, strict=True), (None, 3.0)]
    if kind == "parquet":
        pq.write_table(pa.table({"text": [row[0] for row in rows], "rating": [row[1] for row in rows]}), path)
    elif kind == "jsonl":
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
    unseen = sum(is_held_out(word) for word in words)
    assert 10 < unseen < 60
    path = tmp_path / "words.tsv"
    path.write_text("Word\tConc.M\n" + "".join(f"{word}\t{n % 5}\n" for n, word in enumerate(words)))
    found = evaluate_concreteness(path, CaptionLength(), Device(), only_held_out=True)
    assert found.texts == unseen
    assert is_held_out("Word1 ") == is_held_out("word1")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,number\na,1\n", "rating"),
        ("a.csv", "words,rating\na,1\n", "text"),
        ("a.csv", "text,rating\na,1\nb,x\n", "1 of 2 texts"),
        ("a.xlsx", "", "parquet"),
        ("nothing/a.tsv", None, "a.tsv"),
    ],
)
def test_files_that_cannot_be_compared_are_told(name: str, content: str | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(PoolError, match=message):
        evaluate_concreteness(tmp_path / name, CaptionLength(), Device())


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
        with pytest.raises(PoolError, match=r"'text' holds .*; columns of text: title"):
            read_texts(path)
    path = tmp_path / "rated.jsonl"
    path.write_text('{"text": "a dog"}\n{"text": {"en": "a cat"}}\n{"text": ["two boats"]}\n')
    assert read_texts(path).texts == ["a dog", "two boats"]


def test_signals_of_words_and_of_images_have_nothing_to_compare(tmp_path: Path) -> None:
    class FirstWord(CaptionLength):
        columns = (Column(name="first_word", unit="text", better="neither", kind="word"),)

    for signal in (FirstWord(), TextArea()):
        with pytest.raises(RecipeError, match=signal.name):
            evaluate_concreteness(write(tmp_path, "csv"), signal, Device())
