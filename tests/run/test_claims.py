"""Who writes: a worker that is stopped, one whose claim was removed, one whose parent has died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from factories import parts_of, write_pool

import tamis
from tamis.errors import RunError
from tamis.run.shard import ShardWorker
from tamis.store import atomic, lock
from tamis.store.atomic import MACHINE, sweep, write_json
from tamis.store.lock import LEASE_SECONDS, claimed, locked, sweep_claims, unclaimed
from tamis.store.manifest import forget
from tamis.store.targets import new_folder

SCORE = "import sys, tamis; tamis.score(sys.argv[1], run=sys.argv[2], scores=['caption_length'], quiet=True)"

#: Stops itself when the second shard's index is written, right before that is renamed into its place.
STOPS = f"""
import os, signal
from tamis.store import atomic, lock
rename = os.replace
def stopping(source, target):
    if str(target).endswith("index/00001.parquet"):
        os.kill(os.getpid(), signal.SIGSTOP)
    rename(source, target)
atomic.os.replace = stopping
{SCORE}
"""


def until(true: Callable[[], bool]) -> None:
    """Waits; pytest's timeout ends this if it never comes."""
    while not true():
        time.sleep(0.05)


def stopped(process: subprocess.Popen[bytes]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_shard_of_a_stopped_process_is_not_taken_over(pool: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = subprocess.Popen([sys.executable, "-c", STOPS, str(pool), str(run)])
    second = None
    try:
        until(lambda: stopped(first))
        second = subprocess.Popen([sys.executable, "-c", SCORE, str(pool), str(run)])
        until(lambda: (run / "index" / "00002.parquet").exists())
        time.sleep(1.0)
        assert second.poll() is None  # it waits for the one shard that is left
        assert not (run / "index" / "00001.parquet").exists()
        os.kill(first.pid, signal.SIGCONT)
        assert (first.wait(), second.wait()) == (0, 0)
    finally:
        for process in (first, second):
            if process is not None and process.poll() is None:
                process.kill()
    tamis.score(pool, run=tmp_path / "whole", scores=["caption_length"], quiet=True)
    assert parts_of(run) == parts_of(tmp_path / "whole")
    assert tamis.check(run).exit_code == 0


def test_who_has_lost_its_claim_writes_and_removes_nothing_more(tmp_path: Path) -> None:
    with claimed(tmp_path, "a") as mine:
        assert mine
        write_json(tmp_path / "before.json", 1)
        (tmp_path / "claims" / "a").unlink()
        with claimed(tmp_path, "a") as others:  # what another process would do now
            assert others
        with claimed(tmp_path, "a") as others:
            assert others
        (tmp_path / "claims" / "a").touch()
        with pytest.raises(RunError, match="was removed or replaced while this process held it"):
            write_json(tmp_path / "after.json", 1)
        with pytest.raises(RunError, match="was removed or replaced"):
            forget(tmp_path, ["a"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["before.json", "claims"]
    assert (tmp_path / "claims" / "a").exists()  # not ours: whoever made it removes it
    write_json(tmp_path / "after.json", 1)


def test_a_shard_that_was_taken_over_is_left_to_who_has_it(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain, times = ShardWorker._do, []

    def do(self: ShardWorker, task: Any, *rest: Any) -> Any:
        if task.shard.name == "00001" and not times:
            times.append(1)
            claim = self.run / "claims" / "00001"
            claim.write_text("another-machine 77 token\n")  # which is gone a moment later
            os.utime(claim, (1, 1))
        return plain(self, task, *rest)

    monkeypatch.setattr(ShardWorker, "_do", do)
    done = tamis.score(pool, run=tmp_path / "run", scores=["caption_length"], quiet=True)
    assert "another one may be at the shard, so nothing more of it is written here" in caplog.text
    assert done.failures == {}
    assert len(done.shards) == len(list(pool.iterdir()))


def test_a_claim_that_is_held_is_not_swept(tmp_path: Path) -> None:
    with claimed(tmp_path, "a"):
        sweep_claims(tmp_path)
        assert (tmp_path / "claims" / "a").exists()
    assert not (tmp_path / "claims" / "a").exists()


def claim_of_another_machine(run: Path, shard: str, seconds_ago: float) -> Path:
    path = run / "claims" / shard
    path.parent.mkdir(exist_ok=True)
    path.write_text("another-machine 77 abcdef\n")
    os.utime(path, (time.time() - seconds_ago,) * 2)
    return path


def test_who_has_lost_its_claim_does_not_renew_that_of_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_RENEW_SECONDS", 0.02)
    with claimed(tmp_path, "a") as mine:
        assert mine
        path = tmp_path / "claims" / "a"
        os.utime(path, (1.0, 1.0))
        until(lambda: path.stat().st_mtime > 1)  # its own it does
        path.unlink()
        other = claim_of_another_machine(tmp_path, "a", 30).stat().st_mtime_ns
        time.sleep(0.2)
        assert path.stat().st_mtime_ns == other


def test_the_claim_of_another_machine_stands_while_it_is_renewed(tmp_path: Path) -> None:
    path = claim_of_another_machine(tmp_path, "a", 5)
    with claimed(tmp_path, "a") as mine:
        assert not mine
    sweep_claims(tmp_path)
    assert path.read_text() == "another-machine 77 abcdef\n"
    assert not unclaimed(tmp_path, "a")
    os.utime(path, (time.time() - LEASE_SECONDS - 5,) * 2)
    assert unclaimed(tmp_path, "a")
    with claimed(tmp_path, "a") as mine:
        assert mine
        assert path.read_text().startswith(MACHINE)
    assert [entry.name for entry in tmp_path.rglob("*")] == ["claims"]


def test_a_claim_of_a_dead_process_of_this_machine_is_free_at_once(tmp_path: Path) -> None:
    path = claim_of_another_machine(tmp_path, "a", 0)
    path.write_text(f"{MACHINE} 77 abcdef\n")
    with claimed(tmp_path, "a") as mine:
        assert mine


def test_who_was_taken_over_by_another_machine_writes_nothing_more(tmp_path: Path) -> None:
    with claimed(tmp_path, "a") as mine:
        assert mine
        path = claim_of_another_machine(tmp_path, "a", 0)  # after this process slept for a minute, say
        with pytest.raises(RunError, match="was removed or replaced while this process held it"):
            write_json(tmp_path / "after.json", 1)
    assert path.read_text() == "another-machine 77 abcdef\n"  # not ours to remove


def test_a_claim_is_renewed_while_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.store.lock._RENEW_SECONDS", 0.01)
    with claimed(tmp_path, "a"):
        path = tmp_path / "claims" / "a"
        os.utime(path, (1e9, 1e9))
        until(lambda: path.stat().st_mtime > 1e9)


def test_a_file_system_without_locks_has_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.store.lock._taken", lambda handle: None)
    monkeypatch.setattr("tamis.store.lock._AGREE_SECONDS", 0.0)
    with claimed(tmp_path, "a") as mine, claimed(tmp_path, "a") as another:
        assert (mine, another) == (True, False)
    with claimed(tmp_path, "a") as mine:
        assert mine


PARENT = """
import sys
sys.path.insert(0, sys.argv[3])
import tamis
from odd_scorers import Faulty
if __name__ == "__main__":
    tamis.score(sys.argv[1], run=sys.argv[2], scores=[Faulty(key="000010003", how="sleep")], workers=2, quiet=True)
"""


def descendants(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                state, above = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if int(above) == parent and state != "Z":
                found.append(int(entry.name))
    return found


def working(process: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_die_with_their_parent(pool: Path, tmp_path: Path) -> None:
    write_pool(pool, shards=2, first=3)
    (tmp_path / "parent.py").write_text(PARENT)
    here = str(Path(__file__).parent.parent)
    arguments = [sys.executable, str(tmp_path / "parent.py"), str(pool), str(tmp_path / "run"), here]
    parent = subprocess.Popen(arguments)
    try:
        until(lambda: (tmp_path / "run" / "claims" / "00001").exists() and not any_parts_missing(tmp_path / "run"))
        children = descendants(parent.pid)
        assert len(children) >= 2
    finally:
        parent.kill()
        parent.wait()
    end = time.monotonic() + 5
    while any(map(working, children)) and time.monotonic() < end:
        time.sleep(0.05)
    assert [child for child in children if working(child)] == []
    run = tamis.score(pool, run=tmp_path / "run", scores=["caption_length"], quiet=True)
    assert len(run) == 35


def any_parts_missing(run: Path) -> bool:
    return len(list((run / "index").glob("*.parquet"))) < 4


def test_who_has_lost_the_folders_lock_replaces_and_removes_nothing_more(tmp_path: Path) -> None:
    folder, model = tmp_path / "run", tmp_path / "model"
    leftover = folder / ".a.json.abcdef01.tmp"
    with locked(folder):
        write_json(folder / "before.json", 1)
        leftover.touch()
        (folder / "lock").unlink()
        says = r"the lock .* was removed or replaced while this process held it"
        with locked(folder), pytest.raises(RunError, match=says):  # the inner lock is what another process would take
            write_json(folder / "after.json", 1)
        with pytest.raises(RunError, match="was removed or replaced"), new_folder(model) as temporary:
            (temporary / "config.json").write_text("new")
        with pytest.raises(RunError, match="was removed or replaced"):
            sweep(folder)
    assert sorted(path.name for path in folder.iterdir()) == [".a.json.abcdef01.tmp", "before.json", "lock"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    sweep(folder)
    assert not leftover.exists()


def test_a_claim_within_a_lock_looks_at_both(tmp_path: Path) -> None:
    with locked(tmp_path), claimed(tmp_path, "a"):
        (tmp_path / "lock").unlink()
        with pytest.raises(RunError, match="the lock"):
            write_json(tmp_path / "after.json", 1)
    with locked(tmp_path), claimed(tmp_path, "a"):
        (tmp_path / "claims" / "a").unlink()
        with pytest.raises(RunError, match="the claim"):
            write_json(tmp_path / "after.json", 1)
    assert not (tmp_path / "after.json").exists()


def test_what_a_killed_process_left_of_a_folder_goes_and_nothing_else_does(tmp_path: Path) -> None:
    living = atomic.temporary_name(tmp_path / "model")
    dead = Path(str(living).replace(f"-{os.getpid()}-", "-999999999-"))
    others = [Path(str(dead).replace(".model.", ".other.")), tmp_path / ".model.notes.tmp", tmp_path / ".model.tmp"]
    for path in (living, dead, *others):
        path.mkdir()
        (path / "model.safetensors").write_bytes(b"half")
    file = Path(str(dead)[:-5] + "f.tmp")
    file.write_bytes(b"no folder")
    with new_folder(tmp_path / "model") as temporary:
        (temporary / "config.json").write_text("new")
        (temporary / "model.safetensors").touch(0o600)  # as safetensors writes it
    assert (tmp_path / "model" / "config.json").read_text() == "new"
    usual, private = ((tmp_path / "model" / name).stat().st_mode for name in ("config.json", "model.safetensors"))
    assert usual == private
    assert not dead.exists()
    assert all(path.exists() for path in (living, *others, file))
    sweep(tmp_path)  # of files: it stumbles over no folder
    assert not file.exists()
    assert all(path.exists() for path in (living, *others))


CELLS = """
import sys, os, time
from pathlib import Path
from collections import deque
from tamis.evaluate import cells

def slow(cell):
    (Path(sys.argv[1]) / f"{os.getpid()}.began").touch()
    time.sleep(600)

cells.carry_out = slow
if __name__ == "__main__":
    cells._in_processes(deque(["a", "b"]), 2, {}, print)
"""

POOLS = """
import sys, os, time
from pathlib import Path
from tamis.lab import pool

def slow(number, **settings):
    (Path(sys.argv[1]) / f"{os.getpid()}.began").touch()
    time.sleep(600)

pool._write_shard = slow
if __name__ == "__main__":
    pool.make_pool(Path(sys.argv[1]) / "pool", pairs=4, shard_size=2, workers=2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("script", [CELLS, POOLS], ids=["a bench", "a lab pool"])
def test_other_workers_die_with_their_parent_too(script: str, tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(script)
    parent = subprocess.Popen([sys.executable, str(tmp_path / "parent.py"), str(tmp_path)])
    try:
        until(lambda: len(list(tmp_path.glob("*.began"))) == 2)
        children = [int(path.stem) for path in tmp_path.glob("*.began")]
    finally:
        parent.kill()
        parent.wait()
    end = time.monotonic() + 5
    while any(map(working, children)) and time.monotonic() < end:
        time.sleep(0.05)
    assert [child for child in children if working(child)] == []
