"""How far a run is, told by its files alone: while it runs, when it is done, and when its process has died."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from factories import parts_of
from odd_signals import CALLS, Faulty
from processes import command, die_at_file
from rich.console import Console

import tamis
from tamis import processes
from tamis.pool import open_pool
from tamis.pool.counting import pairs_told
from tamis.run.failures import ShardReport
from tamis.run.progress import Reporter, Tally, duration
from tamis.run.status import read_status, render_status
from tamis.store.records import write_record


def test_a_run_that_runs_says_how_far_it_is(pool: Path, tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []
    shown: list[subprocess.CompletedProcess[str]] = []

    def look() -> None:
        found.append(read_status(tmp_path / "run"))
        shown.append(command("status", tmp_path / "run", "--json"))

    CALLS.append(look)
    signal = Faulty(key="000010003", how="call")
    tamis.score(pool, run=tmp_path / "run", signals=["caption_length", signal], quiet=True)
    assert found[0]["state"] == "running"
    assert found[0]["shards"] == {"total": 3, "indexed": 1, "failed": 0}
    assert found[0]["rows"] == 7
    assert found[0]["statuses"] == {"ok": 7}
    assert {label: group["done"] for label, group in found[0]["scores"].items()} == {"caption_length": 1, "faulty": 1}
    assert shown[0].returncode == 0, shown[0].stderr
    other = json.loads(shown[0].stdout)
    assert {key: other[key] for key in ("state", "shards", "rows", "scores")} == {
        key: found[0][key] for key in ("state", "shards", "rows", "scores")
    }


def test_a_run_that_is_done_says_so(pool: Path, tmp_path: Path) -> None:
    tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    done = command("status", tmp_path / "run")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        f"{tmp_path / 'run'}: done",
        "  index      3/3 shards, 21 pairs",
        "  caption_length 3/3 shards",
    ]
    took = [line.split(":")[0].split(maxsplit=1) for line in lines[3:]]
    assert [head for head, _ in took] == ["slowest", *["then"] * (len(took) - 1)]
    assert {"caption_length", "reading and decoding"} <= {name for _, name in took}
    assert lines[3].endswith(" pairs/s of one worker")


def test_a_run_whose_process_has_died_says_so(pool: Path, tmp_path: Path) -> None:
    arguments = ["score", str(pool), "--run", str(tmp_path / "run"), "--signals", "caption_length", "-q"]
    killed = command(*arguments, before=partial(die_at_file, 6))
    assert killed.returncode == -signal.SIGKILL
    before = parts_of(tmp_path / "run")
    found = read_status(tmp_path / "run")
    assert found["state"] == "died"
    assert found["rate"] is None
    assert 0 < found["shards"]["indexed"] < 3
    done = command("status", tmp_path / "run", "--watch")  # comes back: there is nothing to wait for
    assert done.returncode == 0
    assert "died (the process is gone" in done.stdout
    assert parts_of(tmp_path / "run") == before


def test_a_run_on_another_machine_is_dead_when_its_status_is_old(pool: Path, tmp_path: Path) -> None:
    tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    path = tmp_path / "run" / "status.json"
    facts = json.loads(path.read_text())
    for age, state in ((0, "running"), (3600, "died")):
        write_record(path, {**facts, "state": "running", "host": "elsewhere", "updated": facts["updated"] - age})
        assert read_status(tmp_path / "run")["state"] == state


def test_a_run_in_a_container_beside_this_one_is_not_dead_for_its_number(pool: Path, tmp_path: Path) -> None:
    """Containers may share the machine's name, and not its process numbers."""
    tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    path = tmp_path / "run" / "status.json"
    facts = json.loads(path.read_text()) | {"state": "running", "process": 999_999_999}
    beside = facts | {"numbered_in": f"{processes.MACHINE} pid:[1]"}
    for told, state in ((facts, "died"), (beside, "running")):
        write_record(path, told)
        assert read_status(tmp_path / "run")["state"] == state


def test_failed_shards_are_named_and_change_the_exit_code(pool: Path, tmp_path: Path) -> None:
    (pool / "00001.tar").write_bytes(b"")
    tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    done = command("status", tmp_path / "run")
    assert done.returncode == 1
    assert f"  failed     00001: {pool / '00001.tar'}: the file has no bytes" in done.stdout
    assert read_status(tmp_path / "run")["shards"] == {"total": 3, "indexed": 2, "failed": 1}


def test_a_stopped_run_says_so(pool: Path, tmp_path: Path) -> None:
    CALLS.append(lambda: (_ for _ in ()).throw(tamis.errors.StopError("enough")))
    with pytest.raises(tamis.errors.StopError, match="enough"):
        tamis.score(pool, run=tmp_path / "run", signals=[Faulty(key="000010003", how="call")], quiet=True)
    assert read_status(tmp_path / "run")["state"] == "stopped"


def test_an_interrupted_run_says_so(pool: Path, tmp_path: Path) -> None:
    """In a process of its own: pytest, and its worker, have handlers and threads of theirs."""
    arguments = ["score", str(pool), "--run", str(tmp_path / "run"), "--signals", "caption_length", "-q"]
    done = command(*arguments, before=partial(die_at_file, 6, signal.SIGINT))
    assert done.returncode == 130
    assert "tamis: interrupted" in done.stderr
    assert read_status(tmp_path / "run")["state"] == "interrupted"
    assert 0 < read_status(tmp_path / "run")["shards"]["indexed"] < 3


def test_a_status_of_no_run_is_an_error(tmp_path: Path) -> None:
    done = command("status", tmp_path)
    assert done.returncode == 2
    assert "is not a run folder" in done.stderr


@pytest.mark.parametrize("terminal", [True, False])
def test_an_error_is_shown_as_it_is_written(terminal: bool, tmp_path: Path) -> None:
    shown = io.StringIO()
    console = Console(force_terminal=terminal, file=shown, width=200, color_system=None)
    with Reporter(tmp_path, Tally(1), console=console) as reporter:
        reporter.finish(ShardReport(shard="s", error="no mk[a]/[/b]/x.tar [red]or :smile: \x1b[2Jgone"))
    assert r"shard s: no mk[a]/[/b]/x.tar [red]or :smile: \x1b[2Jgone" in shown.getvalue()
    assert "\x1b[2J" not in shown.getvalue()


def test_progress_beside_a_terminal_is_plain_lines(tmp_path: Path) -> None:
    with open(tmp_path / "out", "w+") as file:
        reporter = Reporter(tmp_path, Tally(2), console=Console(file=file))
        with reporter:
            for name, error in (("a", None), ("b", "it is [bold]broken")):
                reporter.advance(name, 5)
                reporter.finish(ShardReport(shard=name, rows=5, error=error))
        file.seek(0)
        lines = file.read().splitlines()
    assert lines[0] == "shard b: it is [bold]broken"
    assert lines[1].startswith("2/2 shards · 10 pairs")
    assert lines[1].endswith("1 failed")
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "failed"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3725, "1 h 2 min"), (90_000, "1 d 1 h")],
)
def test_times_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_a_status_that_was_never_written_is_unknown(pool: Path, tmp_path: Path) -> None:
    tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    (tmp_path / "run" / "status.json").unlink()
    assert render_status(read_status(tmp_path / "run")).startswith(f"{tmp_path / 'run'}: unknown")


def test_the_tally_takes_the_mean_for_shards_of_unknown_size(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("tamis.run.progress.time.time", lambda: now[0])
    tally = Tally(4, expected={"a": 100, "b": None, "c": 300, "d": None}, pairs_done=50)
    assert (tally.pairs, tally.total, tally.exact) == (50, 50 + 400 + 2 * 200, False)
    tally.advance("a", 10)  # the rate counts from here
    now[0] += 4
    tally.advance("a", 40)
    assert (tally.pairs, tally.rate, tally.seconds_left) == (100, 10, pytest.approx(750 / 10))
    tally.finish(ShardReport(shard="a", rows=90))  # fewer than expected
    tally.finish(ShardReport(shard="b", rows=260))
    assert tally.total == 50 + 90 + 260 + 300 + 220
    tally.finish(ShardReport(shard="c", elsewhere=True))
    assert tally.pairs == 50 + 90 + 260 + 300
    tally.finish(ShardReport(shard="d", rows=100))
    assert (tally.total, tally.seconds_left, tally.exact) == (800, 0.0, True)


def test_without_any_size_the_total_is_unknown_until_the_first_shard_is_done() -> None:
    tally = Tally(2, expected={"a": None, "b": None})
    tally.advance("a", 5)
    assert (tally.total, tally.seconds_left) == (None, None)
    tally.finish(ShardReport(shard="a", rows=7))
    assert tally.total == 14


def test_pairs_are_counted_up_front_by_what_lies_beside_the_tars(pool: Path, tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []
    for number in range(3):
        facts = {"count": 9, "successes": 7, "failed_to_download": 2}
        (pool / f"0000{number}_stats.json").write_text(json.dumps(facts))
    CALLS.append(lambda: found.append(read_status(tmp_path / "run")))
    tamis.score(pool, run=tmp_path / "run", signals=[Faulty(key="000010003", how="call")], quiet=True)
    assert found[0]["pairs"] in [{"done": done, "total": 21, "exact": True} for done in (0, 7)]  # written once a second
    assert f" %, {found[0]['pairs']['done']} of 21 pairs" in render_status(found[0])
    (pool / "sizes.json").write_text(json.dumps({"00000.tar": 10, "00001.tar": 20}))
    assert pairs_told(open_pool(pool).shards) == {"00000": 10, "00001": 20}
    (pool / "sizes.json").write_text("[]")
    assert pairs_told(open_pool(pool).shards) == {"00000": 7, "00001": 7, "00002": 7}


def test_another_signal_knows_from_the_index_how_much_there_is_to_do(pool: Path, tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []
    tamis.score(pool, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    CALLS.append(lambda: found.append(read_status(tmp_path / "run")))
    tamis.score(pool, run=tmp_path / "run", signals=[Faulty(key="000010003", how="call")], quiet=True)
    assert found[0]["pairs"]["total"] == 21
    assert "faulty" in read_status(tmp_path / "run")["took"]


def test_the_bar_shows_percent_time_left_and_what_is_slowest(tmp_path: Path) -> None:
    shown = io.StringIO()
    console = Console(force_terminal=True, file=shown, width=200, color_system=None)
    tally = Tally(2, expected={"a": 40, "b": 60})
    with Reporter(tmp_path, tally, console=console) as reporter:
        reporter.advance("a", 10)
        time.sleep(0.25)
        reporter.advance("a", 15)
        reporter.finish(ShardReport(shard="a", rows=40, took={"sieve": 2.0, "clip": 1.0}))
        assert str(tally).startswith("40 of 100 pairs · ")
        assert " left · slowest: sieve" in str(tally)
        reporter._write("running")
        live = json.loads((tmp_path / "status.json").read_text())
    assert live["pairs"] == {"done": 40, "total": 100, "exact": True}
    assert live["took"] == {"sieve": 2.0, "clip": 1.0}
    assert " 40%" in shown.getvalue()
