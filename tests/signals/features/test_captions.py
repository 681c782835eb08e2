"""Captions as a feature: stored and used again, read from a file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import index_rows, pair, text_pool, write_pool, write_tar

import tamis
from tamis.core.errors import RecipeError
from tamis.core.ids import format_uid
from tamis.pools.text_files import read_captions_file
from tamis.runs import Run


@pytest.fixture(scope="module")
def sieve(blip_model: str, clip_model: str) -> dict[str, Any]:
    return {"captioner": blip_model, "encoder": clip_model, "sampling": {"captions": 3, "max_tokens": 10}}


def score(pool: Path, run: Path, settings: dict[str, Any], **options: Any) -> Run:
    return tamis.score(pool, run=run, signals=[{"sieve": settings}], quiet=True, device="cpu", **options)


def columns(run: Run) -> dict[str, list[Any]]:
    found = run.to_arrow().to_pydict()
    numbers = {name: run.to_numpy(name).tolist() for name in ("sieve", "sieve_mean")}
    return {"sieve_caption": found["sieve_caption"], **numbers}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory, sieve: dict[str, Any]) -> Run:
    """A run over what `pool` is, with its captions."""
    folder = tmp_path_factory.mktemp("kept")
    return score(write_pool(folder / "pool"), folder / "run", sieve, keep=["captions"], precision="float32")


def test_stored_captions_follow_the_rows_and_hold_the_nearest(
    pool: Path, tmp_path: Path, sieve: dict[str, Any]
) -> None:
    write_tar(pool / "00003.tar", [("broken", pair(900) | {"jpg": b"no image"}), ("good", pair(901))])
    run = score(pool, tmp_path / "run", sieve, keep=["captions"])
    captions = [texts for shard in run.shards for texts in run.texts_of(next(iter(run.texts)), shard)]
    nearest = columns(run)["sieve_caption"]
    assert len(captions) == len(nearest) == 23
    assert [texts is None for texts in captions] == [False] * 21 + [True, False]
    assert all(len(texts) == 3 and best in texts for texts, best in zip(captions, nearest, strict=True) if texts)
    assert nearest[21] is None
    assert np.isnan(columns(run)["sieve"][21])


def test_stored_captions_are_used_again(
    pool: Path, tmp_path: Path, sieve: dict[str, Any], siglip_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = score(pool, tmp_path / "run", sieve, keep=["captions"])
    from tamis.models import captioner

    def refuse(*_: Any) -> None:
        raise AssertionError("the captioner was loaded")

    monkeypatch.setattr(captioner, "load_captioner", refuse)
    before = set(run.scores)
    other = score(pool, tmp_path / "run", sieve | {"encoder": siglip_model})
    assert before < set(other.scores)


@pytest.mark.parametrize("form", ["uid.parquet", "uid.csv", "key.jsonl"])
def test_captions_from_a_file_score_as_generated_ones(
    form: str, pool: Path, tmp_path: Path, sieve: dict[str, Any], kept: Run
) -> None:
    by, _, kind = form.partition(".")
    (name,) = kept.texts
    captions = [texts for shard in kept.shards for texts in kept.texts_of(name, shard) or []]
    names = [format_uid(row["uid_hi"], row["uid_lo"]) if by == "uid" else row["key"] for row in index_rows(kept)]
    file = tmp_path / f"captions.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({by: names, "captions": captions}), file)
    elif kind == "csv":
        import csv

        with file.open("w", newline="") as out:
            csv.writer(out).writerows(
                [[by, "captions"], *((n, json.dumps(t)) for n, t in zip(names, captions, strict=True))]
            )
    else:  # one caption a line, those of a pair apart
        lines = [{by: n, "caption": texts[k]} for k in range(3) for n, texts in zip(names, captions, strict=True)]
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = {"captions_from": str(file), "encoder": sieve["encoder"]}
    assert columns(score(pool, tmp_path / "given", given, precision="float32")) == columns(kept)


def test_a_pair_that_is_not_in_the_file_is_null(pool: Path, tmp_path: Path, clip_model: str) -> None:
    file = tmp_path / "captions.jsonl"
    file.write_text('{"key": "000000001", "caption": "a red dog"}\n{"key": "000000002", "caption": null}\n')
    found = columns(score(pool, tmp_path / "run", {"captions_from": str(file), "encoder": clip_model}))
    assert found["sieve_caption"][:3] == [None, "a red dog", None]
    assert np.isfinite(found["sieve"]).sum() == 1


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.txt", "uid,caption\n", "must end with one of .parquet, .csv, .tsv, .jsonl"),
        ("c.csv", "id,caption\n1,a dog\n", "needs uid or key, and captions; has id, caption"),
        ("c.parquet", "no parquet", "cannot be read"),
        ("c.csv", 'key,captions\n1,"[""a"""\n', "row 1: captions is not a list of texts"),
        ("c.csv", "uid,caption\nabc,a dog\n", "row 1: the uid does not have 32 hex digits"),
        ("c.jsonl", '{"key": "1", "caption": 3}\n', "row 1: caption is not a list of texts"),
    ],
)
def test_a_bad_file_of_captions_says_what_is_wrong(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(RecipeError, match=message):
        read_captions_file(tmp_path / name)


def test_mask_text_changes_the_captions_of_images_with_text_only(tmp_path: Path, sieve: dict[str, Any]) -> None:
    pool = text_pool(tmp_path / "pool", "GRAND OPENING", plain=4)
    plain = columns(score(pool, tmp_path / "plain", sieve))["sieve_caption"]
    masked = columns(score(pool, tmp_path / "masked", sieve | {"mask_text": True}))["sieve_caption"]
    assert masked[:4] == plain[:4]
    assert masked[4] != plain[4]
