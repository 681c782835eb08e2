"""The run folder under bad conditions: newer, in use, unwritable, on a full disk."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from factories import pair, parts_of, write_metadata, write_run, write_tar
from processes import command
from safetensors import SafetensorError

import tamis
from tamis.core import processes
from tamis.core.errors import DiskFullError, RunError
from tamis.core.files import storage
from tamis.core.files.storage import write_json, writing
from tamis.runs import Run
from tamis.runs.claims import PREPARES, lock_run


def score(pool: Path, run: Path) -> Run:
    return tamis.score(pool, run=run, signals=["caption_length"], quiet=True)


def test_another_format_is_refused_before_any_work(pool: Path, tmp_path: Path) -> None:
    facts = json.dumps({**score(pool, tmp_path / "run").facts, "format": 99, "shards": "other"})
    before = parts_of(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text(facts)
    for use in (lambda: tamis.open_run(tmp_path / "run"), lambda: score(pool, tmp_path / "run")):
        with pytest.raises(RunError, match="format 99"):
            use()
    assert (parts_of(tmp_path / "run"), (tmp_path / "run" / "run.json").read_text()) == (before, facts)


def test_a_second_process_is_refused_with_the_name_of_the_first_but_may_read(pool: Path, tmp_path: Path) -> None:
    arguments = ("score", pool, "--run", tmp_path / "run", "--signals", "caption_length", "-q")
    with lock_run(tmp_path / "run"):
        done = command(*arguments)
        assert (done.returncode, f"process {os.getpid()} on " in done.stderr) == (2, True)
        assert not (tmp_path / "run" / "run.json").exists()
    assert command(*arguments).returncode == 0
    with lock_run(tmp_path / "run"):
        assert len(tamis.open_run(tmp_path / "run").to_numpy("words")) == 21
        assert command("status", tmp_path / "run").returncode == 0


def test_a_command_waits_longer_for_another_that_prepares_the_run_and_says_so(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tamis.runs.claims.PATIENCE_SECONDS", 0.1)
    held, stop = threading.Event(), threading.Event()

    def prepare() -> None:
        with lock_run(tmp_path / "run", doing=PREPARES):
            held.set()
            stop.wait()

    rank = threading.Thread(target=prepare)
    rank.start()
    held.wait()
    threading.Timer(0.5, stop.set).start()
    assert len(score(pool, tmp_path / "run")) == 21
    assert f"process {os.getpid()} on " in caplog.messages[-1]
    rank.join()


@pytest.mark.parametrize("name", ["run/lock", "run/index"])
def test_a_folder_that_cannot_be_written_is_an_error_with_its_path(name: str, pool: Path, tmp_path: Path) -> None:
    file = tmp_path / "run" if name == "run/lock" else tmp_path / name
    if file.name == "index":
        shutil.rmtree(score(pool, tmp_path / "run").path / "index")
    file.write_text("a regular file")
    done = command("score", pool, "--run", tmp_path / "run", "--signals", "caption_length,image_size", "-q")
    assert (done.returncode, done.stderr.count("\n"), str(file) in done.stderr) == (2, 1, True)
    assert file.read_text() == "a regular file"


def resize(folder: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


def check_parts(run: Path) -> None:
    """Reads every part to its end."""
    for part in parts_of(run):
        rows = np.load(run / part).ndim if part.endswith(".npy") else pq.read_table(run / part).num_columns
        assert rows >= 2
    assert [path for path in run.rglob("*") if path.name.endswith(".tmp")] == []


@pytest.mark.parametrize(
    "free", [0, 12, 32, 60, *(pytest.param(free, marks=pytest.mark.attack) for free in (4, 8, 16, 24, 48))]
)
def test_a_full_disk_stops_the_run_and_the_same_command_goes_on(
    free: int, pool: Path, tmp_path: Path, small_disk: Path
) -> None:
    """With so many KiB free, the disk fills up at one file or another."""
    write_tar(pool / "00003.tar", [(f"{row:05d}", pair(row)) for row in range(60)])
    (small_disk / "ballast").write_bytes(bytes((64 - free) * 1024))
    arguments = ("score", pool, "--run", small_disk / "run", "--signals", "caption_length,image_size", "-q")
    done = command(*arguments)
    assert done.returncode == 2, done.stderr
    assert ("no space is left" in done.stderr, "Traceback" in done.stderr) == (True, False)
    check_parts(small_disk / "run")
    resize(small_disk, "4m")
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    tamis.score(pool, run=tmp_path / "whole", signals=["caption_length", "image_size"], quiet=True)
    assert parts_of(small_disk / "run") == parts_of(tmp_path / "whole")


def test_results_come_as_arrow_pandas_and_numpy_also_of_an_empty_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"a": [1.0, float("nan"), 3.0], "word": ["x", None, "y"]}, shards=2)
    table = run.to_arrow()
    assert table.column_names == ["uid", "shard", "key", "caption", "a", "word"]
    assert (table["a"].to_pylist(), table["word"].to_pylist()) == ([1.0, None, 3.0], ["x", None, "y"])
    assert run.to_pandas(["a"])["a"].isna().tolist() == [False, True, False]
    np.testing.assert_array_equal(run.to_numpy("a"), np.array([1, np.nan, 3], np.float32))
    write_tar(tmp_path / "pool" / "0.tar", [])
    empty = score(tmp_path / "pool", tmp_path / "empty")
    assert (len(empty), empty.shards, empty.statuses, empty.to_arrow().num_rows) == (0, ("0",), {}, 0)
    assert empty.to_numpy("words").shape == (0,)


def test_a_live_process_s_temporary_file_is_not_swept_and_that_of_a_killed_one_is_at_once(tmp_path: Path) -> None:
    mine = processes.temporary_name(tmp_path / "part.parquet")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        other = Path(str(mine).replace(f"-{os.getpid()}-", f"-{child.pid}-"))
        dead = Path(str(mine).replace(f"-{os.getpid()}-", "-999999999-"))
        reused = Path(str(mine).replace(f"-{processes._ME}-", "-00000000-"))  # our number, an earlier process
        far = Path(str(mine).replace(f".{processes._HOST}-", ".00000000-"))  # of another machine
        old = Path(str(far).replace("part", "old"))
        for one in (mine, other, dead, reused, far, old):
            one.write_bytes(b"half")
        os.utime(old, (1, 1))
        storage.sweep(tmp_path)
        assert set(tmp_path.iterdir()) == {mine, other, far}
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie still has its number
        storage.sweep(tmp_path)
        assert set(tmp_path.iterdir()) == ({mine, far} if sys.platform == "linux" else {mine, other, far})


def test_what_nothing_else_can_make_again_is_on_the_disk_before_it_counts(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renamed file that was not synced may be empty after a power cut."""
    synced: set[int] = set()
    before_renaming: set[str] = set()
    sync, move = os.fsync, os.replace

    def noted(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        sync(handle)

    def renamed(source: Path, target: Path) -> None:
        if os.stat(source).st_ino in synced:
            before_renaming.add(Path(target).name)
        move(source, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", renamed)
    run = tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True, workers=1)
    assert before_renaming == {"run.json", "shards.parquet", "signal.json"}  # parts can be made again
    assert run.path.stat().st_ino in synced
    tamis.export(tamis.select(run, "no-filter"), "webdataset", tmp_path / "tars", shard_size=8)
    assert {path.name for path in (tmp_path / "tars").glob("*.tar")} <= before_renaming


@pytest.mark.parametrize(("number", "expected"), [(errno.EINVAL, "new"), (errno.ENOSPC, "old")])
def test_a_file_system_without_fsync_is_written_to_and_a_full_one_keeps_the_old_file(
    number: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(_: int) -> None:
        raise OSError(number, os.strerror(number))

    write_json(tmp_path / "a.json", "old")
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(DiskFullError) if number == errno.ENOSPC else nullcontext():
        write_json(tmp_path / "a.json", "new")
    assert json.loads((tmp_path / "a.json").read_text()) == expected


def test_safetensors_says_of_a_full_disk_what_the_disk_says(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError), writing(tmp_path / "model.safetensors"):
        raise SafetensorError("IoError: No space left on device (os error 28)")
    with pytest.raises(SafetensorError), writing(tmp_path / "model.safetensors"):
        raise SafetensorError("a header of no file")


def test_a_disk_that_fills_up_with_embeddings_stops_the_run(tmp_path: Path, small_disk: Path) -> None:
    for name in ("aa", "bb", "cc"):
        write_metadata(tmp_path / "pool" / f"{name}.parquet", rows=10)
    with pytest.raises(DiskFullError, match="embeddings"):
        tamis.score(tmp_path / "pool", run=small_disk / "run", quiet=True)
    assert Run(small_disk / "run").failures == {}
    check_parts(small_disk / "run")
    resize(small_disk, "4m")
    assert tamis.score(tmp_path / "pool", run=small_disk / "run", quiet=True).failures == {}
    tamis.score(tmp_path / "pool", run=tmp_path / "whole", quiet=True)
    assert parts_of(small_disk / "run") == parts_of(tmp_path / "whole")
