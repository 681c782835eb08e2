"""A shard's file is cut, changed, restored, renamed or grown: no score is lost that still holds, and no tag ever."""

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from factories import pair, parts_of, score, write_pool, write_tar
from pool_kinds import write_kind

import tamis
from tamis.core.files.find import stamp
from tamis.core.ids import format_uid
from tamis.engines.named import engine_named
from tamis.reports.explore.cached_run import CachedRun
from tamis.reports.explore.tagging import Tags
from tamis.runs import Run, parts, tags

FIRST = ("caption_length", "image_hash")


def tag(run: Path, *rows: int, words: str = "good") -> None:
    Tags(CachedRun(run)).change(np.array(rows, np.int64), add=[words])


def tags_by_uid(run: Path) -> dict[str, str]:
    """The tags of all rows, also while other shards have no tags yet."""
    opened, found = Run(run, partial=True), {}
    for shard in opened.shards:
        part = run / "scores" / tags.FOLDER / f"{shard}.parquet"
        if part.is_file():
            words = parts.read_columns(part, ["tagged"], opened.owner(shard))["tagged"].to_pylist()
            uids = zip(
                *(half.tolist() for half in parts.uids_of(opened.index(shard, ["uid_hi", "uid_lo"]))), strict=True
            )
            found |= {format_uid(*uid): text for uid, text in zip(uids, words, strict=True) if text}
    return found


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
    pool = write_kind(tmp_path / "pool", kind)
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


@pytest.mark.parametrize("how", [{}, {"engine": engine_named("static", rank=1, world=2)}, {"workers": 2}])
def test_a_cut_shard_keeps_its_rows_and_tags_until_its_file_is_whole(how: dict[str, Any], tmp_path: Path) -> None:
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
    score(pool, run, *FIRST)  # of a pool without this file: that it was cut is not forgotten
    assert list(Run(run).failures) == ["00001"]
    path.write_bytes(whole)
    mended = score(pool, run, *FIRST, **how)
    assert (mended.failures, len(mended) > rows) == ({}, True)
    fresh = score(pool, tmp_path / "fresh", *FIRST).to_arrow()
    assert mended.to_arrow(["caption", *Run(tmp_path / "fresh").complete_score_names()]).equals(fresh)
    assert np.flatnonzero(mended["label"] == 1).tolist() == [7, 8]
    assert tamis.check(run).exit_code == 0


def test_tags_follow_their_pairs_when_a_shard_is_read_again_and_wait_for_those_that_are_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where two pairs have one uid."""
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
    assert "the shard 00000 lacks 1 tagged pair now" in caplog.text
    tag(run, 1, words="blurry")
    assert tamis.check(run).exit_code == 0
    assert read_again(3, 1, 4) == [None, None, "good"]
    assert read_again(0, 1, 2, 3, 4) == ["good", None, "blurry,red car", None, "good"]


def test_a_renamed_file_is_the_shard_that_it_was(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool")
    run = score(pool, tmp_path / "run", *FIRST).path
    tag(run, 0, 8)
    before = parts_of(run)
    (pool / "00001.tar").rename(pool / "renamed.tar")
    renamed = score(pool, run, *FIRST, "image_quality")
    assert (renamed.shards, renamed.failures) == (("00000", "00001", "00002"), {})
    assert renamed.urls["00001"] == str(pool / "renamed.tar")
    assert {name: data for name, data in parts_of(run).items() if name in before} == before
    assert tamis.check(run).exit_code == 0


def test_check_says_to_delete_no_tags(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool")
    run = score(pool, tmp_path / "run", "caption_length").path
    tag(run, 0, 8)
    folder = run / "scores" / tags.FOLDER
    one, other = folder / "00001.parquet", folder / "00000.parquet"
    one.write_bytes(one.read_bytes()[:-9])
    shutil.copy(other, folder / "elsewhere.parquet")
    index = run / "index" / "00000.parquet"
    index.write_bytes(index.read_bytes()[:-9])
    checked = tamis.check(run)
    found = {finding.path: finding for finding in checked.findings}
    for name in (one.name, "elsewhere.parquet"):
        finding = found[f"scores/{tags.FOLDER}/{name}"]
        assert finding.kind == "yours"
        assert "tags or views that people made: restore it" in finding.what
    assert checked.to_delete == (index,)
    index.unlink()
    one.unlink()
    score(pool, run, "caption_length")
    assert tags.absent_of(other) == {}
    assert pq.read_table(other)["tagged"].to_pylist()[0] == "good"


def rounds_of_changes(seed: int, rounds: int, folder: Path) -> None:
    """Cuts, restores, changes, renames, grows and shrinks shards in turn, tags pairs between, and looks at the tags."""
    draw, pool, run = random.Random(seed), folder / "pool", folder / "run"
    names = [f"{shard:05}" for shard in range(3)]
    samples = {name: [(f"{name}-{row}", pair(100 * int(name) + row)) for row in range(6)] for name in names}
    files = {name: write_tar(pool / f"{name}.tar", some) for name, some in samples.items()}
    given: dict[str, set[str]] = {}
    lacking = set[str]()  # shards whose file is cut or gone
    score(pool, run, "caption_length")

    def look() -> None:
        """Scores, has shards with other rows read again as the message advises, and compares the tags of all rows."""
        for _ in range(2):
            done = score(pool, run, "caption_length", draw.choice(FIRST))
            for name in names:
                index = run / "index" / f"{name}.parquet"
                keys = pq.read_table(index)["key"].to_pylist() if index.is_file() else []
                if name not in lacking and keys != [key for key, _ in samples[name]]:
                    assert name not in done.failures or "to read it again" in done.failures[name]
                    index.unlink(missing_ok=True)
        assert set(score(pool, run, "caption_length").shards) <= set(names)
        there = set(Run(run, partial=True).to_arrow([])["uid"].to_pylist())
        assert tags_by_uid(run) == {uid: ",".join(sorted(some)) for uid, some in given.items() if uid in there}

    for round_ in range(rounds):
        name = draw.choice(names)
        how = draw.choice(["cut", "restored", "renamed", "grown", "shrunk", "mixed", "gone"])
        index = run / "index" / f"{name}.parquet"
        if how == "renamed" and name not in lacking and parts.index_facts(index).stamp == stamp(str(files[name])):
            files[name] = files[name].rename(pool / f"{how}-{round_}.tar")
            look()
        samples[name] += [(f"{how}-{round_}", pair(1000 + round_))] * (how == "grown")
        draw.shuffle(samples[name]) if how == "mixed" else None
        dropped = samples[name].pop(0) if how == "shrunk" else None
        if how != "renamed":
            write_tar(files[name], samples[name])
            lacking.discard(name)
        if how == "cut":
            cut(files[name])
        elif how == "gone":
            files[name].unlink()
        lacking |= {name} if how in ("cut", "gone") else set()
        look()
        opened = CachedRun(run, partial=True)
        row = draw.randrange(len(opened))
        word = draw.choice(["good", "red car", "blurry"])
        Tags(opened).change(np.array([row]), add=[word])
        given.setdefault(opened.to_arrow([])["uid"][row].as_py(), set()).add(word)
        if dropped:  # its tags come back with it
            samples[name].append(dropped)
            write_tar(files[name], samples[name])
            look()
    for name in names:
        write_tar(files[name], samples[name])
    lacking.clear()
    look()
    assert tags_by_uid(run) == {uid: ",".join(sorted(some)) for uid, some in given.items()}
    assert len(given) > rounds // 3
    assert tamis.check(run).exit_code == 0


def test_tags_outlive_some_rounds_of_changes(tmp_path: Path) -> None:
    rounds_of_changes(0, 8, tmp_path)


@pytest.mark.attack
@pytest.mark.timeout(3600)
def test_tags_outlive_many_rounds_of_changes(tmp_path: Path) -> None:
    rounds_of_changes(1, 50, tmp_path)
