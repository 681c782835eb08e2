"""The run folder under bad conditions: damaged, newer, in use, unwritable, on a full disk."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow.parquet as pq
import pytest
from factories import pair, parts_of, write_metadata, write_run, write_tar
from processes import command

import tamis
from tamis import processes, storage
from tamis.errors import DamageError, DiskFullError, RunError
from tamis.storage import write_json, writing
from tamis.store import Run
from tamis.store.checked import CheckedParquet
from tamis.store.claims import PREPARES, locked
from tamis.store.parts import read_array, write_array


def test_a_folder_that_is_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"none is not a run folder: it does not exist; make one with `tamis score"):
        tamis.open_run(tmp_path / "none")
    with pytest.raises(RunError, match=r"is not a run folder: it holds no run\.json"):
        tamis.open_run(tmp_path)


def test_another_format_is_refused_before_any_work(pool: Path, tmp_path: Path) -> None:
    run = tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    before = parts_of(tmp_path / "run")
    facts = {**run.facts, "format": 99, "shards": "other"}
    (tmp_path / "run" / "run.json").write_text(json.dumps(facts))
    with pytest.raises(
        RunError, match=r"has the format 99, and this version of tamis reads 1: score the pool into another"
    ):
        tamis.open_run(tmp_path / "run")
    with pytest.raises(
        RunError, match=r"has the format 99, and this version of tamis reads 1: score the pool into another"
    ):
        tamis.score(pool, run=tmp_path / "run", signals=["image_size"], quiet=True)
    assert parts_of(tmp_path / "run") == before
    assert json.loads((tmp_path / "run" / "run.json").read_text()) == facts


@pytest.mark.parametrize("content", ["{half", "[]", "{}", '{"format": "1"}', ""])
def test_a_damaged_manifest_is_an_error_that_names_the_file(content: str, pool: Path, tmp_path: Path) -> None:
    tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    (tmp_path / "run" / "run.json").write_text(content)
    for verb in (
        lambda: tamis.open_run(tmp_path / "run"),
        lambda: tamis.score(pool, run=tmp_path / "run", signals=["image_size"], quiet=True),
    ):
        with pytest.raises(
            RunError, match=r"run\.json is (damaged|not a manifest).*; restore it, or start another run folder"
        ):
            verb()


def test_a_second_process_is_refused_and_told_who_is_first(pool: Path, tmp_path: Path) -> None:
    arguments = ("score", pool, "--run", tmp_path / "run", "--signals", "caption_length", "-q")
    with locked(tmp_path / "run"):
        done = command(*arguments)
        assert done.returncode == 2
        assert f"is in use by process {os.getpid()} on " in done.stderr
        assert "wait for it, stop it, or use another folder" in done.stderr
        assert not (tmp_path / "run" / "run.json").exists()
    assert command(*arguments).returncode == 0


def test_a_command_waits_for_another_that_prepares_the_run_and_says_so(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tamis.store.claims.PATIENCE_SECONDS", 0.1)
    monkeypatch.setattr("tamis.store.claims.PREPARING_SECONDS", 0.3)
    held, stop = threading.Event(), threading.Event()

    def prepare() -> None:  # as a rank does, for longer than the patience with anything else
        with locked(tmp_path / "run", doing=PREPARES):
            held.set()
            stop.wait()

    rank = threading.Thread(target=prepare)
    rank.start()
    held.wait()
    who = f"{tmp_path / 'run'} is in use by process {os.getpid()} on {socket.gethostname()}"
    with pytest.raises(RunError, match=re.escape(f"{who}, which prepares the run; wait for it, stop it")):
        tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    assert caplog.messages[-1] == f"{who}, which prepares the run: waiting up to 0 s"
    monkeypatch.setattr("tamis.store.claims.PREPARING_SECONDS", 60.0)
    threading.Timer(0.3, stop.set).start()
    assert len(tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)) == 21
    rank.join()


def test_readers_do_not_wait_for_the_writer(pool: Path, tmp_path: Path) -> None:
    tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    with locked(tmp_path / "run"):
        assert len(tamis.open_run(tmp_path / "run").to_numpy("words")) == 21
        assert command("status", tmp_path / "run").returncode == 0


def test_an_unwritable_run_folder_stops_before_any_work(pool: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a regular file")
    done = command("score", pool, "--run", tmp_path / "file" / "run", "--signals", "caption_length")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"cannot write {tmp_path / 'file' / 'run'}/lock: Not a directory" in done.stderr
    done = command("score", pool, "--run", tmp_path / "file", "--signals", "caption_length")
    assert done.returncode == 2
    assert f"the run folder {tmp_path / 'file'} cannot be written to: it is a file" in done.stderr
    assert (tmp_path / "file").read_text() == "a regular file"


def test_a_part_folder_that_cannot_be_written_is_an_error_with_its_path(pool: Path, tmp_path: Path) -> None:
    tamis.score(pool, run=tmp_path / "run", signals=["image_size"], quiet=True)
    shutil.rmtree(tmp_path / "run" / "index")
    (tmp_path / "run" / "index").write_text("a regular file")
    done = command("score", pool, "--run", tmp_path / "run", "--signals", "caption_length", "-q")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "run" / "index") in done.stderr


def test_an_error_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("old")
    with pytest.raises(ZeroDivisionError), writing(tmp_path / "a.json") as temporary:  # noqa: PT012
        temporary.write_text("half of the new")
        raise ZeroDivisionError
    assert (tmp_path / "a.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def resize(folder: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)


def check_parts(run: Path) -> None:
    """Reads every part to its end."""
    for part in parts_of(run):
        if part.endswith(".npy"):
            assert np.load(run / part).ndim == 2
        else:
            assert pq.read_table(run / part).num_columns >= 2
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
    assert "no space is left" in done.stderr
    assert "Traceback" not in done.stderr
    check_parts(small_disk / "run")
    resize(small_disk, "4m")
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    tamis.score(pool, run=tmp_path / "whole", signals=["caption_length", "image_size"], quiet=True)
    assert parts_of(small_disk / "run") == parts_of(tmp_path / "whole")


def test_a_disk_that_fills_up_with_embeddings_stops_the_run(tmp_path: Path, small_disk: Path) -> None:
    for name in ("aa", "bb", "cc"):
        write_metadata(tmp_path / "pool" / f"{name}.parquet", rows=10)
    with pytest.raises(DiskFullError, match=r"no space is left at .*embeddings.*what was complete stays"):
        tamis.score(tmp_path / "pool", run=small_disk / "run", quiet=True)
    assert Run(small_disk / "run").failures == {}
    check_parts(small_disk / "run")
    resize(small_disk, "4m")
    run = tamis.score(tmp_path / "pool", run=small_disk / "run", quiet=True)
    tamis.score(tmp_path / "pool", run=tmp_path / "whole", quiet=True)
    assert run.failures == {}
    assert parts_of(small_disk / "run") == parts_of(tmp_path / "whole")


def test_an_empty_run_has_no_rows(tmp_path: Path) -> None:
    write_tar(tmp_path / "pool" / "0.tar", [])
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=["caption_length"], quiet=True)
    assert (len(run), run.shards, run.statuses) == (0, ("0",), {})
    assert run.to_numpy("words").shape == (0,)
    assert run.to_arrow().num_rows == 0


def test_results_come_as_arrow_pandas_and_numpy(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"a": [1.0, float("nan"), 3.0], "word": ["x", None, "y"]}, shards=2)
    table = run.to_arrow()
    assert table.column_names == ["uid", "shard", "key", "caption", "a", "word"]
    assert table["a"].to_pylist() == [1.0, None, 3.0]
    assert table["word"].to_pylist() == ["x", None, "y"]
    assert run.to_pandas(["a"])["a"].isna().tolist() == [False, True, False]
    np.testing.assert_array_equal(run.to_numpy("a"), np.array([1, np.nan, 3], np.float32))


def test_an_unknown_column_names_the_nearest(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"clip": [1.0], "words": [2.0]}, shards=1)
    with pytest.raises(RunError, match=r"unknown score column 'clipp' \(did you mean 'clip'\?\); known: clip, words"):
        run.to_numpy("clipp")


def test_members_of_rows_are_found_in_the_index(pool: Path, tmp_path: Path) -> None:
    run = tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    content = (pool / "00001.tar").read_bytes()
    for row, members in zip((5, 2), run.members("00001", [5, 2]), strict=True):
        found = {part.ext: content[part.offset : part.offset + part.size] for part in members}
        assert found == pair(1000 + row)


@pytest.mark.skipif(not Path("/proc/self/ns/pid").is_symlink(), reason="Linux tells where process numbers count")
def test_temporary_files_of_another_container_are_left_alone(tmp_path: Path) -> None:
    """Its machine's name may be ours, its process numbers are not."""
    mine = processes.temporary_name(tmp_path / "part.parquet")
    name = f"{zlib.crc32(socket.gethostname().encode()):08x}"
    assert name != processes._HOST
    numbered_in = f"{processes.MACHINE} {os.readlink('/proc/self/ns/pid')}"
    assert f"{zlib.crc32(numbered_in.encode()):08x}" == processes._HOST
    theirs = Path(str(mine).replace(f".{processes._HOST}-{os.getpid()}-", f".{name}-999999999-"))
    old = Path(str(theirs).replace("part", "old"))
    for one in (theirs, old):
        one.write_bytes(b"half")
    os.utime(old, (1, 1))
    storage.sweep(tmp_path)
    assert (theirs.exists(), old.exists()) == (True, False)


def test_a_live_processs_temporary_file_is_not_swept(tmp_path: Path) -> None:
    path = tmp_path / "part.parquet"
    mine = processes.temporary_name(path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        other = Path(str(mine).replace(f"-{os.getpid()}-", f"-{living.pid}-"))
        dead = Path(str(mine).replace(f"-{os.getpid()}-", "-999999999-"))
        reused = Path(str(mine).replace(f"-{processes._ME}-", "-00000000-"))  # our number, an earlier process
        far = Path(str(mine).replace(f".{processes._HOST}-", ".00000000-"))  # of another machine
        old = Path(str(far).replace("part", "old"))
        for one in (mine, other, dead, reused, far, old):
            one.write_bytes(b"half")
        os.utime(old, (1, 1))
        storage.sweep(tmp_path)
        assert {one for one in (mine, other, dead, reused, far, old) if one.exists()} == {mine, other, far}
        living.communicate(b"\n")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="Linux tells whether a process has ended")
def test_what_a_process_left_is_swept_before_anybody_asks_how_it_ended(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as killed:
        mine = processes.temporary_name(tmp_path / "part.parquet")
        left = Path(str(mine).replace(f"-{os.getpid()}-", f"-{killed.pid}-"))
        left.write_bytes(b"half")
        killed.kill()
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
        storage.sweep(tmp_path)
        assert not left.exists()


@contextmanager
def as_nobody() -> Iterator[None]:
    """A block in which nothing that only root may read can be opened."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_part_that_may_not_be_read_is_not_called_damaged() -> None:
    with TemporaryDirectory() as place:  # pytest's own folders are closed to others
        folder = Path(place)
        folder.chmod(0o755)
        run = write_run(folder / "run", {"a": [1.0, 2.0]}, shards=1)
        part = next((folder / "run" / "scores").rglob("*.parquet"))
        array = folder / "some.npy"
        write_array(array, np.ones((2, 3), np.float16), uids="0" * 16)
        for path in (part, array):
            path.chmod(0o600)
        for path, read in (
            (part, lambda: run.to_numpy("a")),
            (part, lambda: CheckedParquet(part)),
            (array, lambda: read_array(array)),
        ):
            with as_nobody(), pytest.raises(RunError) as caught:
                read()
            assert str(caught.value) == f"{path} cannot be read: Permission denied"
            assert not isinstance(caught.value, DamageError)


def test_a_file_that_grows_too_large_names_its_path_and_advises_no_deletion(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(RunError) as caught:
            storage.write_json(tmp_path / "large.json", "x" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    says = str(caught.value)
    assert says.startswith(
        f"cannot write {tmp_path / 'large.json'}: the file is larger than its file system, or a limit"
    )
    assert "delete" not in says
    assert list(tmp_path.iterdir()) == []


def test_what_nothing_else_can_make_again_is_on_the_disk_before_it_counts(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A renamed file that was not may be empty after a power cut."""
    synced: set[int] = set()
    sync, move = os.fsync, os.replace

    def noted(handle: int) -> None:
        synced.add(os.fstat(handle).st_ino)
        sync(handle)

    before_renaming: set[str] = set()

    def renamed(source: Path, target: Path) -> None:
        if os.stat(source).st_ino in synced:
            before_renaming.add(Path(target).name)
        move(source, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "replace", renamed)
    run = tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True, workers=1)
    assert before_renaming == {"run.json", "shards.parquet", "signal.json"}  # parts can be made again
    assert run.path.stat().st_ino in synced
    keep = np.ones(len(run), bool)
    subset = tamis.Subset(run=run, keep=keep, recipe={"name": "all"})
    tamis.export(subset, "webdataset", tmp_path / "tars", shard_size=8)
    assert {path.name for path in (tmp_path / "tars").glob("*.tar")} <= before_renaming


def test_a_file_system_that_cannot_wait_for_the_disk_is_written_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(number: int) -> None:
        def fsync(_: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fsync)

    answered(errno.EINVAL)
    write_json(tmp_path / "a.json", [1])
    assert json.loads((tmp_path / "a.json").read_text()) == [1]
    answered(errno.ENOSPC)  # as a network's file system says it, which writes late
    with pytest.raises(DiskFullError):
        write_json(tmp_path / "a.json", [2])
    assert json.loads((tmp_path / "a.json").read_text()) == [1]
