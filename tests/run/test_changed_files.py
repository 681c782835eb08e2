"""A shard's file is cut, changed, restored, renamed or grown: no score is lost that still holds, and no tag ever."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import image_bytes, pair, parts_of, score, write_pool, write_tar

import tamis
from tamis.explore.columns import HeldRun
from tamis.explore.tags import Tags
from tamis.store import Run, tags
from tamis.store.checked import uids_digest, write_parquet

FIRST = ("caption_length", "image_hash")


def table_pool(folder: Path) -> Path:
    folder.mkdir()
    for shard in range(2):
        rows = [{"image": image_bytes(7 * shard + row), "caption": f"a cat {shard} {row}"} for row in range(7)]
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{shard:05}.parquet")
    return folder


def folder_pool(folder: Path) -> Path:
    folder.mkdir()
    for row in range(7):
        for ending, data in pair(row).items():
            (folder / f"{row:05}.{ending}").write_bytes(data)
    return folder


def tag(run: Path, *rows: int, words: str = "good") -> None:
    Tags(HeldRun(run)).change(np.array(rows, np.int64), add=[words])


def tags_by_uid(run: Path) -> dict[str, str]:
    table = Run(run, partial=True).to_arrow(["tagged"])
    return {uid: text for uid, text in zip(table["uid"].to_pylist(), table["tagged"].to_pylist(), strict=True) if text}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: int(0.6 * path.stat().st_size)])


@pytest.mark.parametrize(
    ("kind", "how"),  # a table without its footer is refused before anything is read
    [*((kind, how) for kind in ("tar", "folder") for how in ("cut", "gone", "damaged")), ("table", "damaged")],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_that_is_changed_and_restored_costs_no_part_and_no_tag(
    kind: str, how: str, workers: int, tmp_path: Path
) -> None:
    pool = {"tar": write_pool, "table": table_pool, "folder": folder_pool}[kind](tmp_path / "pool")
    run = score(pool, tmp_path / "run", *FIRST).path
    tag(run, 0, 3)
    before = {name: (run / name).stat().st_mtime_ns for name in parts_of(run)}
    shutil.copytree(pool, tmp_path / "kept")
    path = sorted(pool.iterdir())[0]
    if how == "cut":
        cut(path)
    elif how == "damaged":
        path.write_bytes(bytes(300) + path.read_bytes()[300:])
    else:
        path.unlink()
        path.symlink_to(tmp_path / "nowhere")
    failed = score(pool, run, "image_quality", workers=workers)
    assert list(failed.failures) == [failed.shards[0]]
    path.unlink()
    shutil.copy(tmp_path / "kept" / path.name, path)  # the bytes, at another time
    restored = score(pool, run, "image_quality", workers=workers)
    assert (restored.failures, restored.scores["image_quality"].shards) == ({}, set(restored.shards))
    assert {name: (run / name).stat().st_mtime_ns for name in before} == before
    assert sorted(restored.scores) == ["caption_length", "image_hash", "image_quality", "label"]
    assert len(tags_by_uid(run)) == 2
    fresh = score(pool, tmp_path / "fresh", *FIRST, "image_quality")
    ours = {name: content for name, content in parts_of(run).items() if name.startswith("scores/image")}
    assert ours.items() <= parts_of(fresh.path).items()


def test_a_limited_score_goes_on_too(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool")
    run = score(pool, tmp_path / "run", *FIRST).path
    subset = tamis.select(run, {"select": [{"at_least": {"score": "words", "value": 0}}]})
    whole = (pool / "00001.tar").read_bytes()
    cut(pool / "00001.tar")
    limited = {"signals": ["image_quality"], "within": subset, "quiet": True}
    assert list(tamis.score(pool, run=run, **limited).failures) == ["00001"]
    (pool / "00001.tar").write_bytes(whole)
    done = tamis.score(pool, run=run, **limited)
    assert (done.failures, sorted(done.scores)) == ({}, ["caption_length", "image_hash", "image_quality"])
    assert len(done.to_arrow()) == 21


def test_a_cut_shard_keeps_its_rows_and_tags_until_its_file_is_whole(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool")
    path = pool / "00001.tar"
    whole = path.read_bytes()
    cut(path)
    run = score(pool, tmp_path / "run", *FIRST).path
    rows = len(Run(run))
    tag(run, 7, 8)
    before = parts_of(run)
    path.write_bytes(whole[:2000])  # cut further: the rows that were read stay
    assert list(score(pool, run, *FIRST).failures) == ["00001"]
    path.unlink()
    path.symlink_to(tmp_path / "nowhere")
    assert list(score(pool, run, *FIRST).failures) == ["00001"]
    assert parts_of(run) == before
    path.unlink()
    path.write_bytes(whole)
    mended = score(pool, run, *FIRST)
    assert (mended.failures, len(mended) > rows) == ({}, True)
    fresh = score(pool, tmp_path / "fresh", *FIRST).to_arrow()
    assert mended.to_arrow(["caption", *Run(tmp_path / "fresh").complete_score_names()]).equals(fresh)
    assert np.flatnonzero(mended["label"] == 1).tolist() == [7, 8]
    assert tamis.check(run).exit_code == 0


def test_tags_follow_their_pairs_when_a_shard_is_read_again_and_wait_for_those_that_are_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where two pairs have one uid, and of a run whose tags an older version wrote."""
    pool, samples = tmp_path / "pool", [(f"{row:05}", pair(row)) for row in (0, 1, 2, 3, 3)]
    write_tar(pool / "00000.tar", samples)
    run = score(pool, tmp_path / "run", "caption_length").path
    tag(run, 0, 4)
    tag(run, 2, words="red car")
    index = run / "index" / "00000.parquet"

    def read_again(*keep: int) -> list[str | None]:
        write_tar(pool / "00000.tar", [samples[row] for row in keep])
        index.unlink()  # as the message about a changed file advises
        return list(score(pool, run, "caption_length")["tagged"])

    assert read_again(4, 2, 1, 0) == [None, "red car", None, "good"]
    assert "1 tagged pairs are not in the shard 00000 now" in caplog.text
    tag(run, 1, words="blurry")
    assert tamis.check(run).exit_code == 0
    assert read_again(3, 1, 4) == [None, None, "good"]
    assert read_again(0, 1, 2, 3, 4) == ["good", None, "blurry,red car", None, "good"]
    part = run / "scores" / tags.FOLDER / "00000.parquet"
    table = pq.read_table(part)
    uids = uids_digest(table["uid_hi"].to_numpy(), table["uid_lo"].to_numpy())
    write_parquet(part, table.drop_columns(["uid_hi", "uid_lo"]), uids=uids, row_group_size=100)
    content = part.read_bytes()
    write_tar(pool / "00000.tar", samples[:4])
    index.unlink()
    failed = score(pool, run, "caption_length")
    assert "nothing says which pairs its tags belong to" in failed.failures["00000"]
    assert part.read_bytes() == content


def test_check_deletes_no_tags(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool")
    run = score(pool, tmp_path / "run", "caption_length").path
    tag(run, 0, 8)
    folder = run / "scores" / tags.FOLDER
    one, other = folder / "00001.parquet", folder / "00000.parquet"
    one.write_bytes(one.read_bytes()[:-9])
    shutil.copy(other, folder / "elsewhere.parquet")
    index = run / "index" / "00000.parquet"
    index.write_bytes(index.read_bytes()[:-9])
    found = {finding.path: finding for finding in tamis.check(run, delete=True).findings}
    for name in (one.name, "elsewhere.parquet"):
        finding = found[f"scores/{tags.FOLDER}/{name}"]
        assert (finding.kind, finding.deleted) == ("yours", False)
        assert "tags that people gave: restore it" in finding.what
    assert one.exists()
    assert not index.exists()
    one.unlink()
    score(pool, run, "caption_length")
    assert tags.absent_of(other) == {}
    assert pq.read_table(other)["tagged"].to_pylist()[0] == "good"
