"""What becomes of a shard when a signal, a worker process or the shard's file goes wrong. The others go on."""

from __future__ import annotations

import errno
import io
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from factories import index_rows, pair, parts_of, write_pool, write_tar
from odd_signals import CALLS, Brightness, Broken, Faulty
from processes import command

import tamis
import tamis.signals
from tamis.errors import RecipeError, RunError, SignalError, StopError
from tamis.run.engines import engine_named
from tamis.run.shard import ShardWorker
from tamis.store import Run, unfinished
from tamis.store.claims import claimed

BAD = "000010003"  # a sample of the second shard


def score(pool: Path, run: Path, *signals: Any, **options: Any) -> Run:
    return tamis.score(pool, run=run, signals=list(signals), quiet=True, **options)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_signal_that_raises_costs_its_shard_alone(workers: int, pool: Path, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    signal = Faulty(key=BAD, unless=str(mended))
    run = score(pool, tmp_path / "run", "caption_length", signal, workers=workers, batch_size=2)
    assert run.shards == ("00000", "00001", "00002")
    assert run.failures == {"00001": "faulty: ZeroDivisionError: a fault of the signal's"}
    assert len(run.to_numpy("words")) == 21  # neither the index nor another signal pays for it
    with pytest.raises(RunError, match=r"the score 'faulty' is not complete: 2 of 3 shards"):
        run.to_numpy("faulty")
    record = json.loads((tmp_path / "run" / "failures" / "00001.json").read_text())
    assert "odd_signals.py" in record["detail"]
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert {(event["shard"], event["event"]) for event in events} == {
        ("00000", "shard done"),
        ("00001", "shard failed"),
        ("00002", "shard done"),
    }
    mended.touch()
    again = score(pool, tmp_path / "run", "caption_length", signal, workers=workers)
    assert again.failures == {}
    assert again.to_numpy("faulty").tolist() == [1.0] * 21


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("leave", "RuntimeError: it raised SystemExit(0), which would have ended the command"),
        ("huge", "ValueError: the column 'faulty' got 1e+300, and float32, in which it is stored, ends at 3.4e+38: "),
        ("long", "ValueError: the column 'faulty' got the whole number 9007199254740993, and float32, in which "),
    ],
)
def test_what_a_signal_may_not_give_costs_its_own_part_alone(
    how: str, error: str, workers: int, pool: Path, tmp_path: Path
) -> None:
    run = score(pool, tmp_path / "run", "caption_length", Faulty(key=BAD, how=how), workers=workers)
    assert list(run.failures) == ["00001"]
    assert run.failures["00001"].startswith(f"faulty: {error}")
    assert len(run.to_numpy("words")) == 21
    assert run.scores["faulty"].shards == {"00000", "00002"}


def test_an_error_of_other_parts_stays_until_these_are_made(pool: Path, tmp_path: Path) -> None:
    run, mended = tmp_path / "run", tmp_path / "mended"
    signal = Faulty(key=BAD, unless=str(mended))
    score(pool, run, signal, batch_size=2)
    # Another command makes all that it wants of the same shard: that is no success of the first one.
    assert list(score(pool, run, "caption_length").failures) == ["00001"]
    record = json.loads((run / "failures" / "00001.json").read_text())
    assert [Path(part).parent.name.partition("-")[0] for part in record["lacking"]] == ["faulty"]
    mended.touch()
    assert score(pool, run, signal).failures == {}


@pytest.mark.parametrize("how", ["made", "given up"])
def test_the_error_of_a_shard_that_lacks_nothing_any_more_goes(how: str, pool: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    signal = Faulty(key=BAD, unless=str(tmp_path / "mended"))
    score(pool, run, "caption_length", signal, batch_size=2)
    record = (run / "failures" / "00001.json").read_bytes()
    if how == "made":  # by a worker that died before it said so, after another had set the shard aside
        (tmp_path / "mended").touch()
        score(pool, run, "caption_length", signal)
        (run / "failures" / "00001.json").write_bytes(record)
    else:
        shutil.rmtree(next(run.glob("scores/faulty-*")))
    assert score(pool, run, "caption_length").failures == {}


def test_a_damaged_index_part_costs_its_shard_alone(pool: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    score(pool, run, "caption_length")
    part = run / "index" / "00001.parquet"
    content = bytearray(part.read_bytes())
    content[4:40] = bytes(36)
    part.write_bytes(content)
    failures = score(pool, run, "caption_length", "image_size").failures
    assert list(failures) == ["00001"]
    assert "00001.parquet is damaged" in failures["00001"]
    assert len(list(run.glob("scores/image_size-*/*.parquet"))) == 2


@pytest.mark.parametrize("workers", [1, 2])
def test_a_claim_that_cannot_be_taken_costs_its_shard_alone(
    workers: int, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamis.run.scoring.sweep_claims", lambda run: (run / "claims" / "00001").mkdir(parents=True))
    done = score(pool, tmp_path / "run", "caption_length", workers=workers)
    assert list(done.failures) == ["00001"]
    assert re.fullmatch(r"its claim cannot be kept: .*Is a directory: .*00001'", done.failures["00001"])
    assert done.shards == ("00000", "00002")


@pytest.mark.parametrize(
    ("how", "reason", "workers"),
    [
        ("short", r"the signal 'faulty' \(odd_signals.Faulty\) gave 6 values for 7 samples in the column 'faulty'", 1),
        ("extra", "emits what it does not declare: unknown column 'fault' \\(did you mean 'faulty'\\?\\)", 1),
        ("words", "the column 'faulty' holds numbers; it gave an array of <U1", 1),
        ("objects", "the column 'faulty' holds numbers; it gave an array of object", 1),
        ("complex", "the column 'faulty' holds numbers; it gave an array of complex64", 1),
        ("masked", "the column 'faulty' is a masked array, whose mask would be lost", 1),
        ("lacking", "declares the column 'faulty' and does not emit it", 1),
        ("list", "must return a mapping of its columns, it returned a list", 1),
        ("short", "gave 6 values for 7 samples", 2),  # the error, whichever it is, comes through the worker's pipe
    ],
)
def test_a_signal_that_breaks_its_promise_stops_the_run_and_costs_no_other_part(
    how: str, reason: str, workers: int, pool: Path, tmp_path: Path
) -> None:
    with pytest.raises(SignalError, match=reason):
        score(pool, tmp_path / "run", "caption_length", Faulty(key=BAD, how=how), workers=workers)
    run = Run(tmp_path / "run")
    # With two workers the other one may be in the middle of the first shard when the run stops.
    whole = {"00000", "00001"} if workers == 1 else {"00001"}
    assert whole <= set(run.shards)
    assert whole <= run.scores["caption_length"].shards
    assert "00001" not in run.scores["faulty"].shards
    mended = score(pool, tmp_path / "run", "caption_length")
    assert len(mended.to_numpy("words")) == 21


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("misspelt", "declares the column 'misspelt' and does not emit it"),
        ("arguments", r"needs\(\) names samples, and the function that load\(\) returns takes images"),
        ("load", r"cannot be loaded \(KeyError: 'no such weight'\)"),
        ("nothing", r"load\(\) must return the function of a batch, it returned None"),
    ],
)
def test_a_signal_that_is_faulty_from_the_start_stops_the_run_before_any_shard(
    how: str, reason: str, pool: Path, tmp_path: Path
) -> None:
    with pytest.raises(SignalError, match=reason):
        score(pool, tmp_path / "run", "caption_length", Broken(how=how))
    assert Run(tmp_path / "run").failures == {}
    assert parts_of(tmp_path / "run") == {}
    assert len(score(pool, tmp_path / "run", "caption_length").to_numpy("words")) == 21


def test_a_class_in_place_of_a_signal_is_told(pool: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"Brightness is a class: make a signal of it, Brightness\(\)"):
        score(pool, tmp_path / "run", Brightness)
    assert not (tmp_path / "run").exists()


def test_two_commands_share_a_run_and_neither_repeats_the_others_shards(pool: Path, tmp_path: Path) -> None:
    write_pool(pool, shards=5, first=3)
    whole = score(pool, tmp_path / "whole", "caption_length", Brightness())
    second: list[Run] = []
    before: list[dict[str, int]] = []

    def join() -> None:  # in the middle of the first one's second shard
        before.append({part: (tmp_path / "run" / part).stat().st_mtime_ns for part in parts_of(tmp_path / "run")})
        elsewhere = tamis.PoolSpec(path=[str(pool / f"0000{n}.tar") for n in (0, 3, 4)])
        second.append(score(elsewhere, tmp_path / "run", "caption_length", Brightness()))

    CALLS.append(join)
    run = score(pool, tmp_path / "run", "caption_length", Brightness(), Faulty(key=BAD, how="call"))
    assert second[0].failures == run.failures == {}
    after = {part: (tmp_path / "run" / part).stat().st_mtime_ns for part in parts_of(tmp_path / "run")}
    assert {part: after[part] for part in before[0]} == before[0]
    assert {name: one for name, one in parts_of(tmp_path / "run").items() if "faulty" not in name} == parts_of(
        whole.path
    )


def test_a_shard_that_another_process_is_at_is_waited_for(pool: Path, tmp_path: Path) -> None:
    score(pool, tmp_path / "run", "caption_length")
    with ExitStack() as stack:
        assert stack.enter_context(claimed(tmp_path / "run", "00001"))
        threading.Timer(1.0, stack.close).start()
        run = score(pool, tmp_path / "run", "caption_length", Brightness())
    assert (run.failures, len(run.to_numpy("brightness"))) == ({}, 21)
    assert list((tmp_path / "run" / "claims").iterdir()) == []


@pytest.mark.parametrize(("how", "reason"), [("kill", "killed by signal 9"), ("exit", "exit code 0")])
def test_a_worker_process_that_dies_costs_its_shard_alone(how: str, reason: str, pool: Path, tmp_path: Path) -> None:
    write_pool(pool, shards=2, first=3)
    mended = tmp_path / "mended"
    signal = Faulty(key=BAD, how=how, unless=str(mended))
    run = score(pool, tmp_path / "run", signal, workers=2)
    assert run.shards == ("00000", "00002", "00003", "00004")
    assert list(run.failures) == ["00001"]
    assert run.failures["00001"].startswith(f"the worker process died ({reason}) while at this shard")
    assert how == "kill" or run.failures["00001"].endswith("; code in it ended the process: look at faulty")
    assert multiprocessing.active_children() == []
    mended.touch()
    again = score(pool, tmp_path / "run", signal, workers=2)
    assert (again.failures, len(again.to_numpy("faulty"))) == ({}, 35)


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_plug_in_that_ends_the_only_worker_costs_its_shard_and_not_the_command(
    how: str, pool: Path, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    signal = Faulty(key=BAD, how=how, unless=str(mended))
    engine = engine_named("local", workers=1)
    run = score(pool, tmp_path / "run", "caption_length", signal, engine=engine)
    assert (list(run.failures), run.shards) == (["00001"], ("00000", "00002"))
    assert run.failures["00001"].startswith("the worker process died")
    assert how == "kill" or run.failures["00001"].endswith("look at faulty")
    mended.touch()
    assert score(pool, tmp_path / "run", "caption_length", signal, engine=engine).failures == {}
    assert parts_of(tmp_path / "run") == parts_of(score(pool, tmp_path / "whole", "caption_length", signal).path)


def test_a_script_without_a_guard_is_told_so_and_loses_no_shard(pool: Path, tmp_path: Path) -> None:
    call = (
        f"tamis.score({str(pool)!r}, run={str(tmp_path / 'run')!r}, signals=['caption_length'], workers=2, quiet=True)"
    )
    for guard, fine in (("", False), ("if __name__ == '__main__': ", True)):
        (tmp_path / "script.py").write_text(f"import tamis\n{guard}{call}\n")
        done = subprocess.run(
            [sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, timeout=120, check=False
        )
        assert (done.returncode == 0) == fine, done.stderr
        assert ("put the call under `if __name__ == '__main__':`" in done.stderr) != fine
        assert Run(tmp_path / "run").failures == {}
    assert len(Run(tmp_path / "run")) == 21


def test_a_dead_worker_costs_no_score_that_was_there_before(pool: Path, tmp_path: Path) -> None:
    score(pool, tmp_path / "run", Brightness())
    before = parts_of(tmp_path / "run")
    times = {part: (tmp_path / "run" / part).stat().st_mtime_ns for part in before}
    mended = tmp_path / "mended"
    signal = Faulty(key=BAD, how="kill", unless=str(mended))
    assert list(score(pool, tmp_path / "run", Brightness(), signal, workers=2).failures) == ["00001"]
    mended.touch()
    assert score(pool, tmp_path / "run", Brightness(), signal, workers=2).failures == {}
    assert {part: (tmp_path / "run" / part).stat().st_mtime_ns for part in before} == times


def test_a_shard_that_goes_missing_is_reported_and_its_rows_stay(pool: Path, tmp_path: Path) -> None:
    score(pool, tmp_path / "run", "caption_length")
    (pool / "00001.tar").rename(tmp_path / "away.tar")
    os.symlink(tmp_path / "nowhere.tar", pool / "00001.tar")
    run = score(pool, tmp_path / "run", "caption_length", Brightness())
    assert len(run) == 21
    assert "No such file" in run.failures["00001"]
    with pytest.raises(
        RunError, match=r"the score 'brightness' is not complete: 2 of 3 shards are done \(00001 is not\)"
    ):
        run.to_numpy("brightness")


def replace_second(pool: Path, samples: list[tuple[str, dict[str, bytes]]]) -> None:
    write_tar(pool / "00001.tar", samples)


@pytest.mark.parametrize("rows", [4, 7, 9])
def test_a_shard_replaced_by_other_samples_is_never_scored_into_the_old_rows(
    rows: int, pool: Path, tmp_path: Path
) -> None:
    before = score(pool, tmp_path / "run", "caption_length", Brightness())
    old = before.to_numpy("brightness")
    replace_second(pool, [(f"other{row}", pair(500 + row)) for row in range(rows)])
    run = score(pool, tmp_path / "run", "caption_length", Brightness(), Brightness(scale=2.0))
    assert list(run.failures) == ["00001"]
    assert "the shard 00001 now has another key in row 0 ('other0', was '000010000')" in run.failures["00001"]
    assert "Put the old one back, or delete" in run.failures["00001"]
    np.testing.assert_array_equal(run.to_numpy("brightness"), old)
    # What the message advises works, and no part of the old rows is left beside the new ones.
    (tmp_path / "run" / "index" / "00001.parquet").unlink()
    mended = score(pool, tmp_path / "run", "caption_length", Brightness(), Brightness(scale=2.0))
    assert mended.failures == {}
    assert mended.sizes == (7, rows, 7)
    double = next(label for label in mended.scores if label.startswith("brightness_"))
    np.testing.assert_allclose(mended.to_numpy(f"{double}.brightness"), 2 * mended.to_numpy("brightness"), rtol=1e-6)
    fresh = score(pool, tmp_path / "fresh", "caption_length", Brightness())
    np.testing.assert_array_equal(mended.to_numpy("brightness"), fresh.to_numpy("brightness"))
    np.testing.assert_array_equal(mended.to_numpy("words"), fresh.to_numpy("words"))


def test_a_shard_that_lost_or_gained_samples_at_its_end_is_noticed(pool: Path, tmp_path: Path) -> None:
    same = [(f"00001{row:04d}", pair(1000 + row)) for row in range(8)]
    for count, found in ((8, "more samples than its index, 7"), (6, "6 samples, its index 7")):
        replace_second(pool, same[:7])
        score(pool, tmp_path / f"run{count}", "caption_length")
        replace_second(pool, same[:count])
        for _ in range(2):
            run = score(pool, tmp_path / f"run{count}", "caption_length", Brightness())
            assert f"the shard 00001 now has {found}" in run.failures["00001"]
        replace_second(pool, same[:7])
        assert score(pool, tmp_path / f"run{count}", "caption_length", Brightness()).failures == {}


def test_a_shard_that_was_copied_is_the_same_shard(pool: Path, tmp_path: Path) -> None:
    score(pool, tmp_path / "run", "caption_length")
    for path in pool.iterdir():
        os.utime(path, (1, 1))
    run = score(pool, tmp_path / "run", "caption_length", Brightness())
    assert (run.failures, len(run.to_numpy("brightness"))) == ({}, 21)


def test_rows_before_a_cut_get_scores_that_are_added_later(pool: Path, tmp_path: Path) -> None:
    path = pool / "00001.tar"
    path.write_bytes(path.read_bytes()[:8000])
    first = score(pool, tmp_path / "run", "caption_length")
    size = len(index_rows(first, "00001"))
    failures = first.failures
    run = score(pool, tmp_path / "run", "caption_length", Brightness())
    assert run.failures == failures
    assert len(run.to_numpy("brightness")) == 14 + size


@pytest.mark.parametrize("part", ["index", "scores"])
def test_a_damaged_part_says_what_to_do_and_that_helps(part: str, pool: Path, tmp_path: Path) -> None:
    run = score(pool, tmp_path / "run", "caption_length")
    words = run.to_numpy("words")
    folder = tmp_path / "run" / "index" if part == "index" else run.scores["caption_length"].folder
    path = folder / "00001.parquet"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(RunError) as error:
        tamis.open_run(tmp_path / "run").to_numpy("words")
    assert str(path) in str(error.value)
    assert "delete it and repeat `tamis score`" in str(error.value)
    path.unlink()
    np.testing.assert_array_equal(score(pool, tmp_path / "run", "caption_length").to_numpy("words"), words)


def test_a_part_of_another_length_than_the_index_is_an_error(pool: Path, tmp_path: Path) -> None:
    run = score(pool, tmp_path / "run", "caption_length")
    path = run.scores["caption_length"].folder / "00001.parquet"
    pq.write_table(pq.read_table(path).slice(0, 5), path)
    with pytest.raises(RunError, match="it has no checksums"):
        tamis.open_run(tmp_path / "run").to_numpy("words")


def test_a_cut_shard_keeps_its_rows_while_its_file_cannot_be_reached(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=2)
    whole = (pool / "00001.tar").read_bytes()
    (pool / "00001.tar").write_bytes(whole[: len(whole) // 2])
    run = tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    rows = len(run)
    assert 7 < rows < 14
    (pool / "00001.tar").rename(tmp_path / "away.tar")
    (pool / "00001.tar").symlink_to(tmp_path / "nowhere.tar")
    again = tamis.score(
        tamis.PoolSpec(path=(str(pool / "00000.tar"),)), run=tmp_path / "run", signals=["caption_length"], quiet=True
    )
    assert len(again) == rows


def test_a_kill_while_the_parts_of_a_cut_shard_are_written_does_not_hide_the_cut(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = sorted(pool.glob("*.tar"))[1]
    path.write_bytes(path.read_bytes()[:-20_000])
    plain = ShardWorker._write

    def write(self: ShardWorker, task: Any, *rest: Any) -> None:
        plain(self, task, *rest)
        if task.shard.name == path.stem:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ShardWorker, "_write", write)
        with pytest.raises(KeyboardInterrupt):
            score(pool, tmp_path / "run", "caption_length")
    assert list(Run(tmp_path / "run", partial=True).failures) == [path.stem]
    assert list(score(pool, tmp_path / "run", "caption_length").failures) == [path.stem]


class Disk(io.FileIO):
    """A file of a disk that fails beyond some byte."""

    good: int

    def readinto(self, buffer: Any) -> int | None:
        if self.tell() >= self.good:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().readinto(memoryview(buffer)[: self.good - self.tell()])


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "csv"])
@pytest.mark.parametrize("share", [0.15, 0.62, 0.95])
def test_a_disk_that_fails_in_the_middle_of_a_shard_costs_no_row(
    ending: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is the shard taken for one that ends there, nor is what is kept of it a sample that is half read."""
    path = tmp_path / f"0.{ending}"
    if ending.startswith("tar"):
        write_tar(path, [(f"{row}", pair(row)) for row in range(9)], "w:gz" if ending.endswith("gz") else "w")
    else:
        (tmp_path / "a.jpg").write_bytes(pair(0)["jpg"])
        table = pa.table({"image": ["a.jpg"] * 900, "caption": [f"a cat {row}" for row in range(900)]})
        pyarrow.csv.write_csv(table, path)
    scores = ("caption_length", "image_size")
    whole = score(path, tmp_path / "whole", *scores, batch_size=1)

    def opened(url: str) -> io.BufferedReader:
        disk = Disk(url)
        disk.good = int(share * os.path.getsize(url))
        return io.BufferedReader(disk, 512)

    with monkeypatch.context() as patch:
        patch.setattr(f"tamis.pool.{'tar' if ending.startswith('tar') else 'rows'}.open_file", opened)
        patch.setattr(unfinished, "EVERY_SECONDS", 0.0)
        failed = score(path, tmp_path / "run", *scores, batch_size=1)
        assert "Input/output error" in failed.failures["0"]
        assert len(failed) == 0
    again = score(path, tmp_path / "run", *scores, batch_size=1)
    assert again.failures == {}
    assert again.statuses == whole.statuses
    assert parts_of(again.path) == parts_of(whole.path)


def test_an_image_of_a_table_that_the_disk_does_not_give_costs_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "0.csv").write_text("image,caption\na.jpg,a cat\nnone.jpg,a dog\n")
    (tmp_path / "a.jpg").write_bytes(pair(0)["jpg"])

    def lost(path: str, limit: int) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr("tamis.pool.table._read_image", lost)
        failed = score(tmp_path / "0.csv", tmp_path / "run", "caption_length")
        assert "the image 'a.jpg' cannot be read: [Errno 116]" in failed.failures["0"]
        assert len(failed) == 0
    again = score(tmp_path / "0.csv", tmp_path / "run", "caption_length")
    assert again.statuses == {"ok": 1, "image_missing": 1}


def test_the_record_of_a_shard_that_was_deleted_on_purpose_goes(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=2)
    (pool / "00001.tar").write_bytes(b"no tar at all")
    assert list(tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True).failures) == ["00001"]
    (pool / "00001.tar").unlink()
    assert tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True).failures == {}


def test_too_many_failed_shards_end_the_run_and_few_do_not(pool: Path, tmp_path: Path) -> None:
    (pool / "00001.tar").write_bytes(b"no tar at all" * 100)
    run = score(pool, tmp_path / "run", "caption_length", max_error_rate=0.34)
    assert (list(run.failures), run.shards) == (["00001"], ("00000", "00002"))
    with pytest.raises(StopError, match=r"1 of 3 shards failed, more than --max-error-rate 0.33 allows.* 00001: "):
        score(pool, tmp_path / "other", "caption_length", max_error_rate=0.33)
    assert Run(tmp_path / "other").shards == ("00000",)
    with pytest.raises(ValueError, match="a share of the shards, from 0 to 1, got 5"):
        score(pool, tmp_path / "run", "caption_length", max_error_rate=5)


def test_the_command_ends_well_where_no_more_shards_failed_than_may(pool: Path, tmp_path: Path) -> None:
    (pool / "00001.tar").write_bytes(b"no tar at all" * 100)
    arguments = ["score", pool, "--run", tmp_path / "run", "--signals", "caption_length", "-q"]
    assert [command(*arguments).returncode, command(*arguments, "--max-error-rate", "0.5").returncode] == [1, 0]
    assert command(*arguments, "--max-error-rate", "0.1").returncode == 2


def test_a_tar_without_samples_is_a_shard_of_no_rows(tmp_path: Path) -> None:
    folder = write_pool(tmp_path / "pool", shards=1, rows=2)
    (folder / "empty.tar").write_bytes(bytes(1024))
    run = score(folder, tmp_path / "run", tamis.signals.ImageHash())
    assert run.failures == {}
    assert len(run) == 2


def test_parts_without_their_description_are_reported(
    pool: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = score(pool, tmp_path / "run", "caption_length")
    (next(run.path.glob("scores/caption_length-*")) / "signal.json").unlink()
    assert Run(run.path).scores == {}
    assert "has parts but no signal.json" in caplog.text
