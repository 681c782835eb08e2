"""npy, parquet and keys: the files that name pairs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import pair, write_pool, write_run, write_tar
from hypothesis import given
from hypothesis import strategies as st

import tamis
from tamis.errors import RecipeError, RunError
from tamis.exporters.npy import sort_uids
from tamis.store import Run
from tamis.uid import format_uid

NAN = np.nan

#: Halves that meet: equal highs, equal lows, and ends of the range.
UIDS = [(5, 9), (5, 1), (0, 2**64 - 1), (2**64 - 1, 0), (5, 5), (3, 9), (0, 0), (2**64 - 1, 2**64 - 1), (1, 9), (3, 1)]


def subset_of(run: Run, kept: Sequence[int]) -> tamis.Subset:
    keep = np.zeros(len(run), bool)
    keep[list(kept)] = True
    return tamis.Subset(run=run, keep=keep, recipe={"name": "mine"})


def uid_run(folder: Path, uids: Sequence[tuple[int, int]] = UIDS, shards: int = 3) -> Run:
    return write_run(folder, {"a": np.arange(len(uids))}, uids=uids, shards=shards)


def count_in(file: Path, uid: tuple[int, int]) -> int:
    """How often DataComp's resharder would emit a sample of this uid: it searches the mapped file by bisection."""
    subset = np.load(file, mmap_mode="r")
    key = np.array([uid], dtype=np.dtype("u8,u8"))[0]
    return int(np.searchsorted(subset, key, side="right") - np.searchsorted(subset, key, side="left"))


# ---- npy


def test_npy_is_datacomps_subset_file(tmp_path: Path) -> None:
    kept = [0, 1, 2, 4, 7, 9]
    subset = subset_of(uid_run(tmp_path / "run"), kept)
    assert tamis.export(subset, "npy", tmp_path / "subset.npy") == 6
    found = np.load(tmp_path / "subset.npy", allow_pickle=False)
    assert found.dtype == np.dtype([("f0", "<u8"), ("f1", "<u8")])
    assert found.tolist() == sorted(UIDS[row] for row in kept)
    # DataComp's own way to write it, byte for byte.
    np.save(tmp_path / "theirs.npy", np.array(sorted(UIDS[row] for row in kept), np.dtype("u8,u8")))
    assert (tmp_path / "subset.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()


def test_the_resharder_finds_each_kept_uid_once_and_no_other(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    uids = [(int(high), int(low)) for high, low in rng.integers(0, 30, (40, 2))]
    uids = list(dict.fromkeys(uids)) + UIDS[2:4]
    kept = [row for row in range(len(uids)) if rng.random() < 0.5]
    tamis.export(subset_of(uid_run(tmp_path / "run", uids), kept), "npy", tmp_path / "subset.npy")
    counts = [count_in(tmp_path / "subset.npy", uid) for uid in uids]
    assert counts == [int(row in kept) for row in range(len(uids))]


def test_a_uid_that_stands_twice_is_written_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = uid_run(tmp_path / "run", [(1, 2), (3, 4), (1, 2), (1, 2)])
    with caplog.at_level(logging.WARNING):
        assert tamis.export(subset_of(run, [0, 1, 2, 3]), "npy", tmp_path / "subset.npy") == 2
    assert np.load(tmp_path / "subset.npy").tolist() == [(1, 2), (3, 4)]
    assert "2 uids stand more than once" in caplog.text


def test_an_npy_of_nothing_is_an_empty_file_of_the_right_kind(tmp_path: Path) -> None:
    assert tamis.export(subset_of(uid_run(tmp_path / "run"), []), "npy", tmp_path / "subset.npy") == 0
    found = np.load(tmp_path / "subset.npy")
    assert (found.shape, found.dtype) == ((0,), np.dtype("u8,u8"))


def test_writing_in_blocks_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subset = subset_of(uid_run(tmp_path / "run"), range(10))
    tamis.export(subset, "npy", tmp_path / "whole.npy")
    for block in (1, 3, 10):
        monkeypatch.setattr("tamis.exporters.npy._BLOCK", block)
        tamis.export(subset, "npy", tmp_path / "blocks.npy", overwrite=True)
        assert (tmp_path / "blocks.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


half = st.one_of(st.integers(0, 3), st.integers(2**64 - 3, 2**64 - 1))


@given(st.lists(st.tuples(half, half), max_size=30))
def test_uids_sort_as_pairs_do(uids: list[tuple[int, int]]) -> None:
    table = np.array(uids, np.uint64).reshape(-1, 2)
    high, low = sort_uids(table[:, 0], table[:, 1])
    assert list(zip(high.tolist(), low.tolist(), strict=True)) == sorted(uids)
    assert table.tolist() == [list(uid) for uid in uids]


# ---- parquet


def scored_run(folder: Path) -> Run:
    columns = {"clip": [0.1, NAN, 0.3, 0.4, 0.5], "top_language": ["en", None, "de", "en", "fr"]}
    return write_run(folder, columns, uids=UIDS[:5], shards=2)


def test_parquet_holds_ids_and_every_score_of_the_kept_rows(tmp_path: Path) -> None:
    subset = subset_of(scored_run(tmp_path / "run"), [0, 1, 3])
    assert tamis.export(subset, "parquet", tmp_path / "kept.parquet") == 3
    table = pq.read_table(tmp_path / "kept.parquet")
    assert table.schema.names == ["uid", "shard", "key", "clip", "top_language"]
    assert table.schema.field("clip").type == pa.float32()
    assert table.to_pydict() == {
        "uid": [format_uid(*UIDS[row]) for row in (0, 1, 3)],
        "shard": ["00000", "00000", "00001"],
        "key": ["000000000", "000000001", "000000003"],
        "clip": [pytest.approx(0.1), None, pytest.approx(0.4)],
        "top_language": ["en", None, "en"],
    }


def test_parquet_writes_captions_where_asked(tmp_path: Path) -> None:
    subset = subset_of(scored_run(tmp_path / "run"), [4])
    tamis.export(subset, "parquet", tmp_path / "kept.parquet", captions=True)
    table = pq.read_table(tmp_path / "kept.parquet")
    assert table.schema.names == ["uid", "shard", "key", "caption", "clip", "top_language"]
    assert (
        table.column("caption").to_pylist() == subset.run.index("00001", ["caption"]).column("caption")[2:].to_pylist()
    )


def test_a_parquet_of_nothing_has_its_columns(tmp_path: Path) -> None:
    assert tamis.export(subset_of(scored_run(tmp_path / "run"), []), "parquet", tmp_path / "kept.parquet") == 0
    table = pq.read_table(tmp_path / "kept.parquet")
    assert (table.num_rows, table.schema.names) == (0, ["uid", "shard", "key", "clip", "top_language"])


# ---- keys


def test_keys_are_lines_in_the_order_of_the_pool(tmp_path: Path) -> None:
    subset = subset_of(scored_run(tmp_path / "run"), [4, 0, 3])
    assert tamis.export(subset, "keys", tmp_path / "keys.txt") == 3
    assert (tmp_path / "keys.txt").read_text() == "000000000\n000000003\n000000004\n"
    tamis.export(subset, "keys", tmp_path / "keys.txt", shard=True, overwrite=True)
    assert (tmp_path / "keys.txt").read_text() == "00000/000000000\n00001/000000003\n00001/000000004\n"


def test_keys_that_meet_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_pool(tmp_path / "pool" / "a", shards=1, rows=2)
    write_pool(tmp_path / "pool" / "b", shards=1, rows=2)
    run = tamis.score(
        str(tmp_path / "pool" / "*" / "*.tar"), run=tmp_path / "run", scores=["caption_length"], quiet=True
    )
    with caplog.at_level(logging.WARNING):
        assert tamis.export(subset_of(run, range(4)), "keys", tmp_path / "keys.txt") == 4
    assert "2 keys are not unique" in caplog.text
    caplog.clear()
    tamis.export(subset_of(run, range(4)), "keys", tmp_path / "named.txt", shard=True)
    assert caplog.text == ""


def test_a_key_is_one_line_whatever_is_in_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_tar(tmp_path / "pool" / "0.tar", [("a\nb", pair(0)), ("c\rd", pair(1)), ("e", pair(2))])
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", scores=["caption_length"], quiet=True)
    with caplog.at_level(logging.WARNING):
        assert tamis.export(subset_of(run, range(3)), "keys", tmp_path / "keys.txt") == 3
    assert (tmp_path / "keys.txt").read_bytes() == b"a\\nb\nc\\rd\ne\n"
    assert [record.message for record in caplog.records] == [r"2 keys hold line breaks, which are written as \n and \r"]


def test_no_keys_are_an_empty_file(tmp_path: Path) -> None:
    assert tamis.export(subset_of(scored_run(tmp_path / "run"), []), "keys", tmp_path / "keys.txt") == 0
    assert (tmp_path / "keys.txt").read_text() == ""


# ---- all of them


def test_a_shard_without_rows_is_no_obstacle(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"a": [1.0, 2.0], "w": ["x", None]}, shards=4)
    assert 0 in run.sizes
    subset = tamis.select(run, {"select": [{"at_least": {"score": "2*minmax(a)", "value": 1}}]})
    words = tamis.select(run, {"select": [{"equals": {"score": "w", "value": "x", "missing": "drop"}}]})
    assert (subset.keep.tolist(), words.keep.tolist()) == ([False, True], [True, False])
    for format in ("npy", "parquet", "keys"):
        assert tamis.export(subset, format, tmp_path / f"out.{format}") == 1


def test_an_unknown_format_or_setting_is_an_error_that_names_the_nearest(tmp_path: Path) -> None:
    subset = subset_of(scored_run(tmp_path / "run"), [0])
    with pytest.raises(RecipeError, match=r"unknown export format 'nyp' .did you mean 'npy'."):
        tamis.export(subset, "nyp", tmp_path / "x")
    with pytest.raises(RecipeError, match=r"export, parquet: unknown setting 'caption' .did you mean 'captions'."):
        tamis.export(subset, "parquet", tmp_path / "x", caption=True)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("format", ["npy", "parquet", "keys"])
def test_folders_are_made_and_nothing_is_left_beside(tmp_path: Path, format: str) -> None:
    subset = subset_of(scored_run(tmp_path / "run"), [0])
    out = tmp_path / "deep" / "er" / "out"
    tamis.export(subset, format, out)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("format", ["npy", "parquet", "keys"])
def test_a_place_that_cannot_be_written_to_is_an_error_and_keeps_what_is_there(tmp_path: Path, format: str) -> None:
    subset = subset_of(scored_run(tmp_path / "run"), [0])
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunError, match="cannot write"):
        tamis.export(subset, format, tmp_path / "file" / "out")
    assert (tmp_path / "file").read_text() == "mine"
