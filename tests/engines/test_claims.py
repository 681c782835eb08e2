"""Who writes: a worker that is stopped, one whose claim was removed, one whose parent has died."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from factories import parts_of
from processes import family
from xxhash import xxh3_64_hexdigest

import tamis
from tamis.core import processes
from tamis.core.files import storage
from tamis.core.files.remote import setting
from tamis.core.files.storage import sweep
from tamis.core.files.targets import new_folder
from tamis.core.processes import NUMBERED_IN
from tamis.runs import claims
from tamis.runs.claims import claim_shard, claimed_shards, free_claims, lock_run, sweep_claims

SCORE = "import sys, tamis; tamis.score(sys.argv[1], run=sys.argv[2], signals=['caption_length'], quiet=True)"

#: Stops itself when the second shard's index is written, right before that is renamed into its place.
STOPS = f"""
import os, signal
from tamis.core.files import storage
rename = os.replace
def stopping(source, target):
    if str(target).endswith("index/00001.parquet"):
        os.kill(os.getpid(), signal.SIGSTOP)
    rename(source, target)
storage.os.replace = stopping
{SCORE}
"""


def until(true: Callable[[], bool]) -> None:
    """Waits; pytest's timeout ends this if it never comes."""
    while not true():
        time.sleep(0.05)


def state(process: int) -> str:
    """Returns the letter of Linux for what a process is doing; Z where it has ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_shard_of_a_stopped_process_is_not_taken_over(pool: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = subprocess.Popen([sys.executable, "-c", STOPS, str(pool), str(run)])
    try:
        until(lambda: state(first.pid) == "T")
        second = subprocess.Popen([sys.executable, "-c", SCORE, str(pool), str(run)])
        until(lambda: (run / "index" / "00002.parquet").exists())
        time.sleep(1.0)
        assert second.poll() is None  # it waits for the one shard that is left
        assert not (run / "index" / "00001.parquet").exists()
        os.kill(first.pid, signal.SIGCONT)
        assert (first.wait(), second.wait()) == (0, 0)
    finally:
        first.kill()
    tamis.score(pool, run=tmp_path / "whole", signals=["caption_length"], quiet=True)
    assert parts_of(run) == parts_of(tmp_path / "whole")
    assert tamis.check(run).exit_code == 0


def claim_of(run: Path, shard: str, seconds_ago: float = 0, **who: Any) -> Path:
    """Writes the claim of another process, by default of another machine."""
    path = run / "claims" / shard
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"process": 77, "started": "1", "numbers": "another machine", "id": "x"} | who))
    os.utime(path, (time.time() - seconds_ago,) * 2)
    return path


def test_the_claim_of_another_machine_stands_until_its_lease_ends(tmp_path: Path) -> None:
    path = claim_of(tmp_path, "a", 5)
    before = path.read_text()
    with claim_shard(tmp_path, "a") as mine:
        assert not mine
    sweep_claims(tmp_path)
    assert path.read_text() == before
    assert free_claims(tmp_path) == []
    assert claimed_shards(tmp_path, ["a", "b"]) == {"a"}
    os.utime(path, (time.time() - setting("lease") - 5,) * 2)
    assert free_claims(tmp_path) == ["a"]
    assert claimed_shards(tmp_path, ["a"]) == set()
    with claim_shard(tmp_path, "a") as mine:
        assert mine
        assert json.loads(path.read_text())["process"] == os.getpid()
        sweep_claims(tmp_path)
        assert path.exists()
    assert [entry.name for entry in tmp_path.rglob("*")] == ["claims"]
    path.write_text("[")  # one that cannot be read ends with its lease too
    os.utime(path, (1, 1))
    assert free_claims(tmp_path) == ["a"]


def test_the_claim_of_a_dead_process_of_this_machine_is_free_at_once(tmp_path: Path) -> None:
    """Also where another process has its number by now."""
    for process in (999_999_999, os.getpid()):
        claim_of(tmp_path, "a", numbers=NUMBERED_IN, process=process)
        with claim_shard(tmp_path, "a") as mine:
            assert mine


def test_a_claim_is_renewed_while_it_is_held_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAMIS_REMOTE_LEASE", "2")
    with claim_shard(tmp_path, "a"):
        path = tmp_path / "claims" / "a"
        os.utime(path, (1e9, 1e9))
        until(lambda: path.stat().st_mtime > 1e9)
        other = claim_of(tmp_path, "a").read_text()  # of who has taken it over
        time.sleep(0.4)
        assert path.read_text() == other
    assert path.read_text() == other


RUN = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
import tamis
from odd_signals import Faulty
if __name__ == "__main__":
    signals = [Faulty(key=f"0000{shard}0003", how="sleep") for shard in range(2)]
    tamis.score(Path(sys.argv[1]) / "pool", run=Path(sys.argv[1]) / "run", signals=signals, workers=2, quiet=True)
"""

CELLS = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from tamis.train.evaluate import cells

def slow(cell):
    time.sleep(600)

cells.execute = slow
if __name__ == "__main__":
    cells.execute_all([SimpleNamespace(name=name, ident=name, path=Path("none")) for name in "ab"], 2)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("script", [RUN, CELLS], ids=["a run", "a bench"])
def test_workers_die_with_their_parent(script: str, pool: Path, tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(script)
    here = str(Path(__file__).parents[1] / "helpers")
    parent = subprocess.Popen([sys.executable, str(tmp_path / "parent.py"), str(tmp_path), here])
    try:
        until(lambda: len(family(parent.pid)) >= 3)
        until(lambda: script != RUN or (tmp_path / "run" / "claims" / "00001").exists())
        children = family(parent.pid)[1:]
    finally:
        parent.kill()
        parent.wait()
    until(lambda: {state(child) for child in children} == {"Z"})
    if script == RUN:  # whose claims are free at once
        assert len(tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)) == 21


def test_what_a_killed_process_left_of_a_folder_goes_and_nothing_else_does(tmp_path: Path) -> None:
    living = processes.temporary_name(tmp_path / "model")
    dead = Path(str(living).replace(f"-{os.getpid()}-", "-999999999-"))
    others = [Path(str(dead).replace(".model.", ".other.")), tmp_path / ".model.notes.tmp", tmp_path / ".model.tmp"]
    for path in (living, dead, *others):
        path.mkdir()
        (path / "model.safetensors").write_bytes(b"half")
    file = Path(str(dead)[:-5] + "x.tmp")  # another name than any random one
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


def test_of_many_that_find_a_stale_claim_one_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the one that took it over died half-way."""
    path = tmp_path / "claims" / "a"
    real = claims._is_free
    for round_ in range(20):
        gone = json.dumps({"process": 1 << 30, "started": "", "numbers": NUMBERED_IN, "id": str(round_)}).encode()
        storage.put(path, gone)
        if round_ % 2:
            storage.put(path.with_name(f".a.{xxh3_64_hexdigest(gone)}"), gone)
        ready = threading.Barrier(4)

        def together(one: Path, now: Any, ready: threading.Barrier = ready) -> bool:
            free = real(one, now)
            if free and one == path:
                with suppress(threading.BrokenBarrierError):
                    ready.wait(0.3)  # all have seen that it is free
            return free

        monkeypatch.setattr(claims, "_is_free", together)
        with ThreadPoolExecutor(4) as threads:
            taken = list(threads.map(lambda _: claims._take(path, ""), range(4)))
        assert sum(one is not None for one in taken) == 1
        assert path.read_bytes() in taken
        assert [one.name for one in path.parent.iterdir()] == ["a"]
        path.unlink()


def test_a_claim_that_is_released_between_two_looks_is_no_reason_to_give_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with many ranks, one of which prepares after the other."""
    left = 3
    take = claims._take

    def taken(path: Path, doing: str) -> bytes | None:
        nonlocal left
        left -= 1
        return None if left >= 0 else take(path, doing)  # another had it, and has released it

    monkeypatch.setattr(claims, "_take", taken)
    with lock_run(tmp_path, patience=0.0):
        assert (tmp_path / "lock").exists()
