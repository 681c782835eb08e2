"""The progress of a run, read from its files alone: while it runs, when it is done, after its process died."""

import io
import json
import re
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from factories import parts_of, score
from odd_signals import CALLS, Faulty
from processes import command, die_at_file
from rich.console import Console

import tamis
from tamis.core.files.checked import read_record, write_record
from tamis.engines import progress
from tamis.engines.progress import Reporter, ShardReport, Tally, duration, read_status, render_status
from tamis.pools import open_pool
from tamis.pools.open import known_pairs


def test_a_run_that_runs_says_how_far_it_is(pool: Path, tmp_path: Path) -> None:
    """Its pairs are known up front from files next to the tars, those of another signal from the index."""
    for number in range(3):
        (pool / f"0000{number}_stats.json").write_text(json.dumps({"count": 9, "successes": 7}))
    found: list[dict[str, Any]] = []
    CALLS.append(lambda: found.append(read_status(tmp_path / "run")))
    signal = Faulty(key="000010003", how="call")
    run = score(pool, tmp_path / "run", "caption_length", signal)
    (status,) = found
    assert (status["state"], status["rows"], status["statuses"]) == ("running", 7, {"ok": 7})
    assert status["shards"] == {"total": 3, "indexed": 1, "failed": 0}
    assert {label: group["done"] for label, group in status["scores"].items()} == {"caption_length": 1, "faulty": 1}
    assert status["pairs"] in [{"done": done, "total": 21, "exact": True} for done in (0, 7)]  # written once a second
    assert f" %, {status['pairs']['done']} of 21 pairs" in render_status(status)
    shutil.rmtree(run.scores["faulty"].folder)
    for path in pool.glob("*.json"):
        path.unlink()
    score(pool, tmp_path / "run", signal)
    assert found[1]["pairs"]["total"] == 21
    shown = json.loads(command("status", tmp_path / "run", "--json").stdout)
    assert (shown["state"], "faulty" in shown["took"]) == ("done", True)


def test_a_command_renews_its_status_while_a_batch_takes_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine would take it for dead."""
    monkeypatch.setattr(progress, "_RENEW_SECONDS", 0.01)
    with Reporter(tmp_path, Tally(1, expected={}), quiet=True):
        first = read_record(tmp_path / "status.json")["updated"]
        while read_record(tmp_path / "status.json")["updated"] == first:
            time.sleep(0.01)
    assert read_record(tmp_path / "status.json")["state"] == "done"


def test_sizes_of_shards_are_read_from_files_next_to_them(pool: Path) -> None:
    for number in range(3):
        (pool / f"0000{number}_stats.json").write_text(json.dumps({"successes": 7}))
    for sizes, counts in (({"00000.tar": 10, "00001.tar": 20}, [10, 20]), ([], [7, 7, 7])):
        (pool / "sizes.json").write_text(json.dumps(sizes))
        assert list(known_pairs(open_pool(pool).shards).values()) == counts


def test_a_run_that_is_done_says_so_and_names_what_failed(pool: Path, tmp_path: Path) -> None:
    (pool / "00001.tar").write_bytes(b"")
    score(pool, tmp_path / "run", "caption_length")
    done = command("status", tmp_path / "run")
    lines = done.stdout.splitlines()
    assert (done.returncode, lines[0]) == (1, f"{tmp_path / 'run'}: failed")
    assert lines[1:3] == ["  index      2/3 shards, 14 pairs", "  caption_length 2/3 shards"]
    assert [line.endswith(" pairs/s of one worker") for line in lines if "slowest" in line] == [True]
    assert f"00001: {pool / '00001.tar'}" in lines[-1]
    (tmp_path / "run" / "status.json").unlink()
    assert render_status(read_status(tmp_path / "run")).startswith(f"{tmp_path / 'run'}: unknown")


@pytest.mark.parametrize(
    ("number", "code", "state"), [(signal.SIGKILL, -signal.SIGKILL, "died"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_run_whose_process_has_ended_says_so(number: int, code: int, state: str, pool: Path, tmp_path: Path) -> None:
    """In a process of its own: pytest, and its worker, have handlers and threads of theirs."""
    arguments = ["score", str(pool), "--run", str(tmp_path / "run"), "--signals", "caption_length", "-q"]
    assert command(*arguments, before=partial(die_at_file, 6, number)).returncode == code
    before, found = parts_of(tmp_path / "run"), read_status(tmp_path / "run")
    assert (found["state"], found["rate"], 0 < found["shards"]["indexed"] < 3) == (state, None, True)
    done = command("status", tmp_path / "run", "--watch")  # comes back: there is nothing to wait for
    assert (done.returncode, f": {state}" in done.stdout) == (0, True)
    assert parts_of(tmp_path / "run") == before


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"host": "elsewhere"}, "running"),
        ({"host": "elsewhere", "updated": 0}, "died"),
        ({"process": 999_999_999}, "died"),
        # Containers may share the machine's name, and not its process numbers.
        ({"process": 999_999_999, "numbered_in": "another"}, "running"),
    ],
)
def test_a_command_is_dead_when_its_process_is_or_elsewhere_when_its_status_is_old(
    changes: dict[str, Any], state: str, pool: Path, tmp_path: Path
) -> None:
    def stop() -> None:
        raise tamis.core.errors.StopError("enough")

    CALLS.append(stop)
    with pytest.raises(tamis.core.errors.StopError, match="enough"):
        score(pool, tmp_path / "run", Faulty(key="000010003", how="call"))
    assert read_status(tmp_path / "run")["state"] == "stopped"
    path = tmp_path / "run" / "status.json"
    write_record(path, {**json.loads(path.read_text()), "state": "running", **changes})
    assert read_status(tmp_path / "run")["state"] == state


def test_one_pair_is_not_pairs() -> None:
    tally = Tally(1, expected={"a": 1})
    tally.advance("a", 1)
    assert " of 1 pair" in tally.line()
    tally.finish(ShardReport(shard="a", rows=1))
    assert tally.line().endswith(" · 1 pair")
    assert "pairs" not in tally.line()


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_a_bar_or_plain_lines_and_errors_are_shown_as_written(terminal: bool, tmp_path: Path) -> None:
    shown = io.StringIO()
    console = Console(force_terminal=terminal, file=shown, width=200, color_system=None)
    tally = Tally(2, expected={"a": 40, "b": 60})
    with Reporter(tmp_path, tally, console=console) as reporter:
        reporter.advance("a", 10)
        time.sleep(0.25)
        reporter.advance("a", 15)
        reporter.finish(ShardReport(shard="a", rows=40, took={"sieve": 2.0, "clip": 1.0}))
        assert " left · 40 of 100 pairs · " in tally.line()
        assert tally.line().endswith("slowest: sieve")
        reporter._write("running")
        live = json.loads((tmp_path / "status.json").read_text())
        reporter.finish(ShardReport(shard="b", rows=5, error="no mk[a]/[/b]/x.tar [red]or :smile: \x1b[2Jgone"))
    assert live["pairs"] == {"done": 40, "total": 100, "exact": True}
    assert live["took"] == {"sieve": 2.0, "clip": 1.0}
    assert r"shard b failed: no mk[a]/[/b]/x.tar [red]or :smile: \x1b[2Jgone" in shown.getvalue()
    assert "\x1b[2J" not in shown.getvalue()
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "failed"
    if terminal:
        assert " 10%" in shown.getvalue()
    else:
        last = shown.getvalue().splitlines()[-1]
        assert re.match(r"2/2 shards · in \d+ s · 1 failed · 25 pairs", last), last


@pytest.mark.parametrize("width", [40, 80])
def test_progress_fits_the_terminal(width: int, tmp_path: Path) -> None:
    shown = io.StringIO()
    console = Console(force_terminal=True, file=shown, width=width, color_system=None)
    tally = Tally(1234, expected={f"{number:05}": 10_000 for number in range(1234)}, failed={"x": "broken"})
    with Reporter(tmp_path, tally, console=console) as reporter:
        for shard in ("00000", "00001"):
            reporter.advance(shard, 4000)
            time.sleep(0.25)
            reporter.finish(ShardReport(shard=shard, rows=10_000, took={"reading and decoding": 2.0}))
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue()))
    assert max(map(len, lines)) <= width
    assert any("1/1234 shards" in line or "2/1234 shards" in line for line in lines)
    assert any(" left · 1 failed" in line for line in lines) == (width == 80)


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3725, "1 h 2 min"), (90_000, "1 d 1 h")]
)
def test_times_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_the_tally_takes_the_mean_for_shards_of_unknown_size(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("tamis.engines.progress.time.time", lambda: now[0])
    tally = Tally(4, expected={"a": 100, "b": None, "c": 300, "d": None}, pairs_done=50)
    assert tally.as_json()["pairs"] == {"done": 50, "total": 50 + 400 + 2 * 200, "exact": False}
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
    assert (tally.as_json()["pairs"], tally.seconds_left) == ({"done": 800, "total": 800, "exact": True}, 0.0)
    unknown = Tally(2, expected={"a": None, "b": None})
    unknown.advance("a", 5)
    assert (unknown.total, unknown.seconds_left) == (None, None)
    unknown.finish(ShardReport(shard="a", rows=7))
    assert unknown.total == 14
