"""npy, parquet and keys: the files that name pairs; and rows that are kept several times, in every format."""

import logging
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import pair, write_run, write_tar

import tamis
from tamis.core.errors import RunError
from tamis.core.ids import SUBSET_DTYPE, format_uid
from tamis.exports.lists import NpyExport
from tamis.runs import Run
from tamis.runs.subset import Subset

NAN = np.nan

#: Halves that meet: equal highs, equal lows, and ends of the range.
UIDS = [(5, 9), (5, 1), (0, 2**64 - 1), (2**64 - 1, 0), (5, 5), (3, 9), (0, 0), (2**64 - 1, 2**64 - 1), (1, 9), (3, 1)]


def subset_of(run: Run, kept: Sequence[int]) -> Subset:
    keep = np.zeros(len(run), bool)
    keep[list(kept)] = True
    return Subset(run=run, keep=keep, recipe={"name": "mine"})


def uid_run(folder: Path, uids: Sequence[tuple[int, int]] = UIDS) -> Run:
    return write_run(folder, {"a": np.arange(len(uids))}, uids=uids, shards=3)


def test_npy_takes_little_more_memory_than_the_uids_and_the_file(tmp_path: Path) -> None:
    rows = 200_000
    uids = np.random.default_rng(0).integers(0, 2**64, (2, rows), np.uint64)
    run: Any = SimpleNamespace(table=lambda: SimpleNamespace(uids=lambda chosen: uids[:, chosen]))
    subset: Any = SimpleNamespace(run=run, keep=np.ones(rows, bool), times=None, order=None)
    tracemalloc.start()
    try:
        assert NpyExport().write(subset, tmp_path / "subset.npy") == rows
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 45 * rows  # 16 bytes each, and 8 for the row numbers or the leading bits
    written = np.load(tmp_path / "subset.npy")
    np.testing.assert_array_equal(written, np.sort(np.rec.fromarrays(uids, SUBSET_DTYPE)))


@pytest.fixture
def scored(tmp_path: Path) -> Run:
    columns = {"clip": [0.1, NAN, 0.3, 0.4, 0.5], "top_language": ["en", None, "de", "en", "fr"]}
    return write_run(tmp_path / "run", columns, uids=UIDS[:5], shards=2)


@pytest.mark.parametrize("kept", [[0, 1, 2, 4, 7, 9], []], ids=["some", "none"])
def test_npy_is_datacomps_file_byte_for_byte(tmp_path: Path, kept: Sequence[int]) -> None:
    assert tamis.export(subset_of(uid_run(tmp_path / "run"), kept), "npy", tmp_path / "subset.npy") == len(kept)
    np.save(tmp_path / "theirs.npy", np.array(sorted(UIDS[row] for row in kept), np.dtype("u8,u8")))
    assert (tmp_path / "subset.npy").read_bytes() == (tmp_path / "theirs.npy").read_bytes()


@pytest.mark.parametrize(("captions", "kept"), [(False, [0, 1, 3]), (True, [])])
def test_parquet_holds_ids_and_scores_of_kept_rows(
    scored: Run, tmp_path: Path, captions: bool, kept: list[int]
) -> None:
    assert tamis.export(subset_of(scored, kept), "parquet", tmp_path / "out", captions=captions) == len(kept)
    table = pq.read_table(tmp_path / "out")
    texts = [text for shard in scored.shards for text in scored.index(shard, ["caption"])["caption"].to_pylist()]
    every = {
        "uid": [format_uid(*uid) for uid in UIDS[:5]],
        "shard": ["00000", "00000", "00001", "00001", "00001"],
        "key": [f"{row:09d}" for row in range(5)],
        **({"caption": texts} if captions else {}),
        "clip": [0.1, None, 0.3, 0.4, 0.5],
        "top_language": ["en", None, "de", "en", "fr"],
    }
    wanted = {name: pa.array([values[row] for row in kept], table.schema.field(name).type)
              for name, values in every.items()}  # fmt: skip
    assert table.to_pydict() == pa.table(wanted).to_pydict()
    assert table.schema.field("clip").type == pa.float32()


def test_keys_are_lines_in_the_order_of_the_pool(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_tar(tmp_path / "pool" / "0.tar", [("a\nb", pair(0)), ("c\rd", pair(1)), ("e", pair(2))])
    write_tar(tmp_path / "pool" / "1.tar", [("e", pair(3)), ("f", pair(4))])
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=["caption_length"], quiet=True)
    subset = subset_of(run, [3, 0, 1, 2])
    for _ in range(2):  # the second time it recognises its own file
        assert tamis.export(subset, "keys", tmp_path / "keys.txt", overwrite=True) == 4
    assert (tmp_path / "keys.txt").read_bytes() == b"a\\nb\nc\\rd\ne\ne\n"
    assert "2 keys hold line breaks" in caplog.text
    assert "1 keys are not unique" in caplog.text
    caplog.clear()
    tamis.export(subset_of(run, [2, 3]), "keys", tmp_path / "named.txt", shard=True)
    assert (tmp_path / "named.txt").read_text() == f"{run.shards[0]}/e\n{run.shards[1]}/e\n"
    assert caplog.text == ""


FORMATS = ("npy", "parquet", "keys")
TWICE = [(5, 9), (5, 1), (0, 3), (5, 9), (2**64 - 1, 0)]  # the first uid is that of two rows


def test_a_row_that_is_kept_k_times_is_written_k_times(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = write_run(tmp_path / "run", {"a": range(5)}, uids=TWICE, shards=2)
    times = np.array([2, 0, 3, 1, 1], np.uint16)
    subset = Subset(run=run, keep=times > 0, times=times)
    with caplog.at_level(logging.WARNING):
        assert tamis.export(subset, "parquet", tmp_path / "parquet") == 7
        assert tamis.export(subset, "keys", tmp_path / "keys") == 7
        assert caplog.text == ""
        # The resharder emits both rows of (5, 9) as often as it stands here.
        assert tamis.export(subset, "npy", tmp_path / "npy") == 6
    assert "1 kept rows have the same uid as another" in caplog.text
    assert pq.read_table(tmp_path / "parquet")["a"].to_pylist() == [0, 0, 2, 2, 2, 3, 4]
    assert (tmp_path / "keys").read_text().split() == [f"{row:09d}" for row in (0, 0, 2, 2, 2, 3, 4)]
    assert np.load(tmp_path / "npy").tolist() == [(0, 3)] * 3 + [(5, 9)] * 2 + [(2**64 - 1, 0)]
    tamis.export(subset_of(run, [0, 2, 3, 4]), "npy", tmp_path / "once")
    assert np.load(tmp_path / "once").tolist() == [(0, 3), (5, 9), (2**64 - 1, 0)]


def test_parquet_says_which_caption_is_chosen(tmp_path: Path) -> None:
    run, caption = write_run(tmp_path / "run", {"a": range(5)}, shards=2), np.array([0, 0, 1, 0, 1], np.uint8)
    subset = Subset(run=run, keep=np.array([1, 0, 1, 1, 1], bool), caption=caption)
    tamis.export(subset, "parquet", tmp_path / "parquet")
    assert pq.read_table(tmp_path / "parquet")["caption"].to_pylist() == [0, 1, 0, 1]


def test_a_shard_without_rows_is_no_obstacle(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"a": [1.0, 2.0], "w": ["x", None]}, shards=4)
    assert 0 in run.sizes
    subset = tamis.select(run, {"select": [{"at_least": {"score": "2*minmax(a)", "value": 1}}]})
    assert subset.keep.tolist() == [False, True]
    for format in (*FORMATS, "dropped"):
        assert tamis.export(subset, format, tmp_path / f"out.{format}") == 1


@pytest.mark.parametrize("format", ["parquet", "dropped"])
def test_a_parquet_file_of_another_format_or_program_is_not_replaced(scored: Run, tmp_path: Path, format: str) -> None:
    subset = tamis.select(scored, {"select": [{"random_fraction": {"fraction": 0.5}}]})
    other = {"parquet": "dropped", "dropped": "parquet"}[format]
    tamis.export(subset, other, tmp_path / "theirs")
    pq.write_table(pa.table({"mine": [1]}), tmp_path / "mine")
    for out in (tmp_path / "theirs", tmp_path / "mine"):
        before = out.read_bytes()
        with pytest.raises(RunError, match=f"was not written by tamis as a {format} export"):
            tamis.export(subset, format, out, overwrite=True)
        assert out.read_bytes() == before


@pytest.mark.parametrize("format", [*FORMATS, "dropped"])
def test_folders_are_made_and_an_unwritable_place_is_an_error(scored: Run, tmp_path: Path, format: str) -> None:
    subset = tamis.select(scored, {"select": [{"random_fraction": {"fraction": 0.5}}]})
    out = tmp_path / "deep" / "er" / "out"
    tamis.export(subset, format, out)
    assert sorted(path.name for path in out.parent.iterdir()) == ["out"]
    before = out.read_bytes()
    with pytest.raises(RunError):
        tamis.export(subset, format, out / "out")
    assert out.read_bytes() == before
