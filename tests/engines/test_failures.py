"""What becomes of a shard when a signal, a worker process or the shard's file goes wrong. The others go on."""

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
import pytest
from factories import pair, parts_of, score, write_pool, write_tar
from odd_signals import Brightness, Broken, Faulty
from processes import command

import tamis
import tamis.signals
from tamis.core.errors import RunError, SignalError, StopError
from tamis.core.files.checked import write_record
from tamis.engines.named import engine_named
from tamis.engines.shard import ShardWorker
from tamis.runs import Run, writers
from tamis.runs.claims import claim_shard

BAD = "000010003"  # a sample of the second shard


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("raise", "ZeroDivisionError"),
        ("leave", r"RuntimeError: .*SystemExit"),
        ("huge", r"ValueError: .*1e\+300"),
        ("long", "ValueError: .*9007199254740993"),
    ],
)
def test_a_signal_that_fails_costs_its_own_part_of_its_shard_alone(
    how: str, error: str, workers: int, pool: Path, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    signal = Faulty(key=BAD, how=how, unless=str(mended))
    run = score(pool, tmp_path / "run", "caption_length", signal, workers=workers, batch_size=2)
    assert re.match(f"faulty: {error}", run.failures["00001"])
    assert (list(run.failures), run.shards) == (["00001"], ("00000", "00001", "00002"))
    assert len(run.to_numpy("words")) == 21  # neither the index nor another signal pays for it
    with pytest.raises(RunError, match="'faulty'"):
        run.to_numpy("faulty")
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert {event["shard"] for event in events if event["event"] == "shard failed"} == {"00001"}
    if how == "raise":
        assert "odd_signals.py" in json.loads((tmp_path / "run" / "failures" / "00001.json").read_text())["detail"]
    mended.touch()
    again = score(pool, tmp_path / "run", "caption_length", signal, workers=workers)
    assert (again.failures, again.to_numpy("faulty").tolist()) == ({}, [1.0] * 21)


def test_an_error_stays_until_the_parts_that_lack_are_made_or_given_up(pool: Path, tmp_path: Path) -> None:
    run, mended = tmp_path / "run", tmp_path / "mended"
    signal = Faulty(key=BAD, unless=str(mended))
    score(pool, run, signal, batch_size=2)
    record = run / "failures" / "00001.json"
    before = record.read_bytes()
    # Another command makes all that it wants of the same shard: no success of the first one.
    assert list(score(pool, run, "caption_length").failures) == ["00001"]
    assert [part.partition("-")[0] for part in json.loads(record.read_text())["lacking"]] == ["scores/faulty"]
    mended.touch()
    assert score(pool, run, signal).failures == {}
    record.write_bytes(before)  # as if the worker that made the part had died before it removed this
    assert score(pool, run, "caption_length").failures == {}
    record.write_bytes(before)
    shutil.rmtree(next(run.glob("scores/faulty-*")))  # given up
    assert score(pool, run, "caption_length").failures == {}


def test_a_claim_that_cannot_be_taken_costs_its_shard_alone(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamis.engines.fill.sweep_claims", lambda run: (run / "claims" / "00001").mkdir(parents=True))
    done = score(pool, tmp_path / "run", "caption_length")
    assert (list(done.failures), done.shards) == (["00001"], ("00000", "00002"))
    assert "Is a directory" in done.failures["00001"]


@pytest.mark.parametrize(
    ("signal", "reason", "workers"),
    [
        (Faulty(key=BAD, how="short"), r"'faulty' \(odd_signals.Faulty\).* 6 .* 7 ", 1),
        (Faulty(key=BAD, how="short"), " 6 .* 7 ", 2),  # the error comes through the worker's pipe
        (Broken(how="misspelt"), "'misspelt'", 1),
        (Broken(how="load"), "KeyError: 'no such weight'", 1),
        (Broken(how="nothing"), r"load\(\).*None", 1),
    ],
)
def test_a_signal_that_breaks_its_promise_stops_the_run_and_costs_no_other_part(
    signal: Any, reason: str, workers: int, pool: Path, tmp_path: Path
) -> None:
    with pytest.raises(SignalError, match=reason):
        score(pool, tmp_path / "run", "caption_length", signal, workers=workers)
    run = Run(tmp_path / "run")
    if isinstance(signal, Broken):  # noticed with an empty batch, before any work
        assert (run.failures, parts_of(run.path)) == ({}, {})
    else:  # with two workers the other one may be in the middle of the first shard when the run stops
        whole = {"00000", "00001"} if workers == 1 else {"00001"}
        assert whole <= set(run.shards) & run.scores["caption_length"].shards
        assert "00001" not in run.scores["faulty"].shards
    assert len(score(pool, tmp_path / "run", "caption_length").to_numpy("words")) == 21


def test_a_shard_that_another_process_is_at_is_waited_for_and_done_if_that_one_failed(
    pool: Path, tmp_path: Path
) -> None:
    score(pool, tmp_path / "run", "caption_length")
    with ExitStack() as stack:
        assert stack.enter_context(claim_shard(tmp_path / "run", "00001"))

        def fail() -> None:
            write_record(tmp_path / "run" / "failures" / "00001.json", {"error": "of another signal", "lacking": []})
            stack.close()

        threading.Timer(1.0, fail).start()
        run = score(pool, tmp_path / "run", "caption_length", Brightness())
    assert (run.failures, len(run.to_numpy("brightness"))) == ({}, 21)
    assert list((tmp_path / "run" / "claims").iterdir()) == []


@pytest.mark.parametrize(
    ("how", "reason"), [("kill", "signal 9"), ("exit", "exit code 0.* faulty"), ("exit 1", "exit code 1.* faulty")]
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_process_that_dies_costs_its_shard_alone(
    workers: int, how: str, reason: str, pool: Path, tmp_path: Path
) -> None:
    """Also of a command with one worker: a plug-in that ends its process does not end the command."""
    score(pool, tmp_path / "run", Brightness())
    times = {part: (tmp_path / "run" / part).stat().st_mtime_ns for part in parts_of(tmp_path / "run")}
    write_pool(pool, shards=2, first=3)
    mended, engine = tmp_path / "mended", engine_named("local", workers=workers)
    signal = Faulty(key=BAD, how=how, unless=str(mended))
    run = score(pool, tmp_path / "run", "caption_length", signal, engine=engine)
    assert (list(run.failures), run.scores["faulty"].shards) == (["00001"], {"00000", "00002", "00003", "00004"})
    assert re.search(reason, run.failures["00001"])
    assert multiprocessing.active_children() == []
    mended.touch()
    again = score(pool, tmp_path / "run", "caption_length", signal, engine=engine)
    assert (again.failures, len(again.to_numpy("faulty"))) == ({}, 35)
    assert {part: (tmp_path / "run" / part).stat().st_mtime_ns for part in times} == times


def test_a_script_without_a_guard_is_told_so_and_loses_no_shard(pool: Path, tmp_path: Path) -> None:
    run, script = tmp_path / "run", tmp_path / "script.py"
    call = f"tamis.score({str(pool)!r}, run={str(run)!r}, signals=['caption_length'], workers=2, quiet=True)"
    for guard in ("", "if __name__ == '__main__': "):
        script.write_text(f"import tamis\n{guard}{call}\n")
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode == 0) == bool(guard), done.stderr
        assert ("`if __name__ == '__main__':`" in done.stderr) != bool(guard)
        assert Run(run).failures == {}
    assert len(Run(run)) == 21


@pytest.mark.parametrize("how", ["4 others", "9 others", "one more", "one less", "gone"])
def test_a_file_that_has_changed_is_never_scored_into_the_old_rows(how: str, pool: Path, tmp_path: Path) -> None:
    path, run = pool / "00001.tar", tmp_path / "run"
    same = [(f"00001{row:04d}", pair(1000 + row)) for row in range(8)]
    for file in pool.iterdir():  # another time alone is no change
        os.utime(file, (1, 1))
    old = score(pool, run, "caption_length", Brightness()).to_numpy("brightness")
    whole, reason = path.read_bytes(), "'other0'.*'000010000'"
    if how.endswith("others"):
        write_tar(path, [(f"other{row}", pair(500 + row)) for row in range(int(how[0]))])
    elif how.startswith("one"):
        write_tar(path, same if how == "one more" else same[:6])
        reason = "more .* 7" if how == "one more" else " 6 .* 7"
    else:
        path.unlink()
        path.symlink_to(tmp_path / "nowhere.tar")
        reason = "No such file"
    signals = ("caption_length", Brightness(), Brightness(scale=2.0))
    for _ in range(2):
        changed = score(pool, run, *signals)
        assert re.search(reason, changed.failures["00001"])
    np.testing.assert_array_equal(changed.to_numpy("brightness"), old)
    double = next(label for label in changed.scores if label.startswith("brightness_"))
    with pytest.raises(RunError, match=rf"'{double}.*00001"):
        changed.to_numpy(f"{double}.brightness")
    if how.endswith("others"):  # what the message advises works, and no part of the old rows is left
        (run / "index" / "00001.parquet").unlink()
    else:
        path.unlink()
        path.write_bytes(whole)
    mended = score(pool, run, *signals)
    assert mended.failures == {}
    assert mended.to_arrow().equals(score(pool, tmp_path / "fresh", *signals).to_arrow())


def test_rows_before_a_cut_get_scores_that_are_added_later_and_stay_when_the_file_is_gone(
    pool: Path, tmp_path: Path
) -> None:
    path = pool / "00001.tar"
    path.write_bytes(path.read_bytes()[:8000])
    first = score(pool, tmp_path / "run", "caption_length")
    run = score(pool, tmp_path / "run", "caption_length", Brightness())
    assert run.failures == first.failures
    assert len(run.to_numpy("brightness")) == len(first) > 14
    path.unlink()
    path.symlink_to(tmp_path / "nowhere.tar")
    part = tamis.PoolSpec(path=(str(pool / "00000.tar"),))
    assert len(score(part, tmp_path / "run", "caption_length")) == len(first)


def test_a_damaged_index_says_what_to_do_and_that_helps(pool: Path, tmp_path: Path) -> None:
    words = score(pool, tmp_path / "run", "caption_length").to_numpy("words")
    path = tmp_path / "run" / "index" / "00001.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:200])
    with pytest.raises(RunError, match=rf"{path}.*`tamis score`"):
        tamis.open_run(tmp_path / "run").to_numpy("words")
    path.write_bytes(content[:4] + bytes(36) + content[40:])
    run = score(pool, tmp_path / "run", "caption_length", "image_size")
    assert list(run.failures) == ["00001"]  # other scores of that shard cannot be made, those of others can
    assert "00001.parquet" in run.failures["00001"]
    assert run.scores["image_size"].shards == {"00000", "00002"}
    path.unlink()
    np.testing.assert_array_equal(score(pool, tmp_path / "run", "caption_length").to_numpy("words"), words)


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
@pytest.mark.parametrize("share", [0.15, 0.95])
def test_a_disk_that_fails_in_the_middle_of_a_shard_costs_no_row(
    ending: str, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is the shard taken for one that ends there, nor is what is kept of it a sample that is half read."""
    path = tmp_path / f"0.{ending}"
    if ending.startswith("tar"):
        write_tar(path, [(f"{row}", pair(row)) for row in range(9)], "w:gz" if ending.endswith("gz") else "w")
    else:
        (tmp_path / "a.jpg").write_bytes(pair(0)["jpg"])
        table = pa.table({"image": ["a.jpg"] * 200, "caption": [f"a cat {row}" for row in range(200)]})
        pyarrow.csv.write_csv(table, path)
    scores = ("caption_length", "image_size")
    whole = score(path, tmp_path / "whole", *scores, batch_size=1)

    def opened(url: str) -> io.BufferedReader:
        disk = Disk(url)
        disk.good = int(share * os.path.getsize(url))
        return io.BufferedReader(disk, 512)

    with monkeypatch.context() as patch:
        patch.setattr(f"tamis.pools.{'tar' if ending.startswith('tar') else 'rows'}.open_file", opened)
        patch.setattr(writers, "EVERY_SECONDS", 0.0)
        failed = score(path, tmp_path / "run", *scores, batch_size=1)
        assert "Input/output error" in failed.failures["0"]
        assert len(failed) == 0
    again = score(path, tmp_path / "run", *scores, batch_size=1)
    assert again.failures == {}
    assert again.statuses == whole.statuses
    assert parts_of(again.path) == parts_of(whole.path)


def test_too_many_failed_shards_end_the_run_and_few_do_not(pool: Path, tmp_path: Path) -> None:
    (pool / "00001.tar").write_bytes(b"no tar at all" * 100)
    run = score(pool, tmp_path / "run", "caption_length", max_error_rate=0.34)
    assert (list(run.failures), run.shards) == (["00001"], ("00000", "00002"))
    with pytest.raises(StopError, match=r"1 of 3 shards.* 00001: .*--max-error-rate"):
        score(pool, tmp_path / "other", "caption_length", max_error_rate=0.33)
    assert Run(tmp_path / "other").shards == ("00000",)
    with pytest.raises(ValueError, match="5"):
        score(pool, tmp_path / "run", "caption_length", max_error_rate=5)
    arguments = ["score", pool, "--run", tmp_path / "run", "--signals", "caption_length", "-q"]
    assert [command(*arguments).returncode, command(*arguments, "--max-error-rate", "0.5").returncode] == [1, 0]
