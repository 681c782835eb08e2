"""`look` in the browser, without one: what is measured, where it goes, how it stops and goes on."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from factories import image_bytes, pair, write_pool, write_tar

import tamis
from tamis.commands import explore_pool as module
from tamis.commands.explore_pool import PoolMeasuring, explore_pool, page_instead
from tamis.core.errors import PoolError, RunError
from tamis.pools import open_pool
from tamis.reports.explore.growing import GrowingPages, moved
from tamis.runs import Run

CHEAP = ["caption_length", "language", "image_size", "image_hash", "image_quality"]


def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def measured(pool: Path, run: Path, pairs: int = 1000) -> PoolMeasuring:
    """Measures a pool to its end."""
    ended: list[PoolMeasuring] = []
    server, measuring = explore_pool(pool, run=run, pairs=pairs, on_end=ended.append)
    until(lambda: bool(ended) or measuring.complete)
    server.close()
    return measuring


def parts_of(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(run.glob("*/**/*.parquet"))}


def test_score_continues_what_was_measured_and_a_second_look_opens_it(tmp_path: Path) -> None:
    pool, run = write_pool(tmp_path / "pool", shards=4, rows=5), tmp_path / "run"
    measuring = measured(pool, run, pairs=6)
    done = measuring.progress()
    assert (done["state"], done["shards"], done["failures"]) == ("enough", 4, {})
    assert 2 <= len(measuring.ready()) < 4  # two workers may have begun a third
    assert set(measuring.ready()) == set(measuring.order[: len(measuring.ready())])
    before = parts_of(run)
    tamis.score(pool, run=run, signals=CHEAP, quiet=True)
    after = parts_of(run)
    assert {name: after[name] for name in before} == before
    plain = tamis.score(pool, run=tmp_path / "plain", signals=CHEAP, quiet=True)
    assert {name for name in after if name.startswith("scores/")} == {
        name for name in parts_of(plain.path) if name.startswith("scores/")
    }
    assert tamis.open_run(run).to_numpy("brightness").tolist() == plain.to_numpy("brightness").tolist()

    again = measured(pool, run)
    assert (again.complete, again.progress()["state"], again.progress()["pairs"]) == (True, "done", 20)
    assert parts_of(run) == after


def test_a_second_look_goes_on_and_recipe_yaml_keeps_its_signals(tmp_path: Path) -> None:
    pool, run = write_pool(tmp_path / "pool", shards=4, rows=5), tmp_path / "run"
    tamis.score(pool, run=run, signals=["file_hash"], quiet=True)
    (run / "index" / "00002.parquet").unlink()  # as after an interruption
    measuring = measured(pool, run)
    assert measuring.progress()["state"] == "done"
    assert sorted(measuring.ready()) == ["00000", "00001", "00002", "00003"]
    assert set(tamis.open_run(run).scores) >= {*CHEAP, "file_hash"}
    assert "file_hash" in (run / "recipe.yaml").read_text()


def test_more_is_measured_when_the_page_asks(tmp_path: Path) -> None:
    pool, run = write_pool(tmp_path / "pool", shards=6, rows=5), tmp_path / "run"
    measuring = measured(pool, run, pairs=5)
    first = set(measuring.ready())
    measuring.more()
    until(lambda: measuring.progress()["state"] in ("enough", "done"))
    assert first < set(measuring.ready())


def test_tags_stay_with_their_pairs_while_the_run_grows(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=6, rows=5)
    server, measuring = explore_pool(pool, run=tmp_path / "run", pairs=5)
    until(lambda: measuring.progress()["state"] == "enough")
    before = server.explorer
    before.tags.change(np.array([4]), add=["good"])
    measuring.more()
    until(lambda: len(measuring.ready()) > len(before.run.shards) and measuring.progress()["state"] != "measuring")
    after = server.explorer
    subset = after.choose({"name": "mine", "select": [{"tagged": "good"}]})
    assert np.flatnonzero(subset.keep).tolist() == [moved(before.run, after.run, 4)]
    server.close()


def test_a_broken_shard_is_told_of_and_the_others_are_shown(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=2, rows=4)
    (pool / "00002.tar").write_bytes(b"no tar at all")
    measuring = measured(pool, tmp_path / "run")
    done = measuring.progress()
    assert (done["state"], sorted(measuring.ready()), list(done["failures"])) == ("done", ["00000", "00001"], ["00002"])
    assert "tamis score" in done["command"]


def test_no_pool_is_an_error_and_an_empty_one_has_no_pairs(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match="typo"):
        explore_pool(tmp_path / "typo", run=tmp_path / "run")
    write_tar(tmp_path / "empty" / "00000.tar", [])
    server, measuring = explore_pool(tmp_path / "empty", run=tmp_path / "run")
    until(lambda: measuring.progress()["state"] == "done")
    assert measuring.progress()["pairs"] == 0
    assert server.explorer.found() == {"rows": 0, "findings": [], "proposals": [], "race": ""}
    server.close()


def test_the_first_pairs_are_read_by_the_pools_reader(tmp_path: Path) -> None:
    samples = [("0", pair(0)), ("1", {**pair(1), "jpg": b"no image"}), ("2", {"jpg": image_bytes(2)})]
    write_tar(tmp_path / "00001.tar", samples)
    (tmp_path / "00000.tar").write_bytes(b"no tar at all")
    pages = GrowingPages(list, None, {})  # type: ignore[arg-type]
    pages.read_first(open_pool(str(tmp_path)), ["00000", "00001"])
    cards = pages.answers["first"]({})
    assert [(card["status"], card["no_caption"]) for card in cards] == [
        ("ok", False), ("image_broken", False), ("caption_missing", True),
    ]  # fmt: skip
    assert pages.image("small", 0)[:4] == b"RIFF"
    with pytest.raises(Exception, match="no image"):
        pages.image("small", 1)


def test_rows_keep_their_pair_in_a_run_that_has_grown(tmp_path: Path) -> None:
    run = tamis.score(
        write_pool(tmp_path / "pool", shards=3, rows=4), run=tmp_path / "run", signals=["image_size"], quiet=True
    )
    before, after = Run(run.path, partial=True), Run(run.path)
    vars(before)["shards"] = ("00000", "00002")
    assert [moved(before, after, row) for row in (0, 3, 4, 7)] == [0, 3, 8, 11]
    assert [moved(after, before, row) for row in (0, 5, 11)] == [0, None, 7]


def test_a_machine_without_a_browser_gets_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.sys, "platform", "linux")
    monkeypatch.setattr(module.webbrowser, "get", lambda: None)
    assert "--no-browser serves the explorer" in page_instead({})
    assert page_instead({"DISPLAY": ":0"}) == page_instead({"WAYLAND_DISPLAY": "wayland-0"}) == ""

    def missing() -> None:
        raise module.webbrowser.Error("none")

    monkeypatch.setattr(module.webbrowser, "get", missing)
    assert "no browser can be opened here" in page_instead({"DISPLAY": ":0"})
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    assert "pip install 'tamis[explore]'" in page_instead({"DISPLAY": ":0"})


def test_a_terminal_without_a_browser_gets_the_page_and_a_sentence(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=1, rows=3)
    known = {name: word for name, word in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")}
    words = [sys.executable, "-m", "tamis", "look", str(pool), "--quiet"]
    done = subprocess.run(words, stdout=pty.openpty()[1], stderr=subprocess.PIPE, env=known, cwd=tmp_path, text=True)
    assert (done.returncode, "--no-browser serves the explorer" in done.stderr) == (0, True), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["look.html", "look.json", "pool"]


def test_an_interrupt_keeps_the_finished_shards(tmp_path: Path) -> None:
    pool, run = write_pool(tmp_path / "pool", shards=30, rows=30), tmp_path / "run"
    words = [sys.executable, "-m", "tamis", "look", str(pool), "--run", str(run), "--no-browser"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        assert command.stdout
        assert command.stderr
        assert command.stdout.readline().startswith("http://127.0.0.1:")
        until(lambda: (run / "index").is_dir() and any((run / "index").glob("*.parquet")))
        command.send_signal(signal.SIGINT)
        said = command.stderr.read().splitlines()
        assert command.wait(30) == 130
    assert said[1:] == ["tamis: interrupted; finished parts are kept, and the same command continues"], said
    finished = tamis.open_run(run, partial=True)
    assert 0 < len(finished.shards) < 30
    before = parts_of(run)
    whole = tamis.score(pool, run=run, signals=CHEAP, quiet=True)
    assert {name: data for name, data in parts_of(run).items() if name in before} == before
    assert len(whole) == 900


def test_a_run_of_another_pool_is_neither_shown_nor_changed(tmp_path: Path) -> None:
    write_pool(tmp_path / "other" / "pool", shards=2, rows=4)
    run = tamis.score(tmp_path / "other" / "pool", run=tmp_path / "run", signals=["caption_length"], quiet=True).path
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=r"holds another pool .* with --run"):
        explore_pool(write_pool(tmp_path / "pool", shards=2, rows=9), run=run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"notes\.txt"):
        explore_pool(tmp_path / "pool", run=tmp_path / "mine")


def test_shards_that_a_pool_has_got_are_measured(tmp_path: Path) -> None:
    pool = write_pool(tmp_path / "pool", shards=2, rows=4)
    assert measured(pool, tmp_path / "run").progress()["pairs"] == 8
    assert measured(pool, tmp_path / "run").complete
    write_tar(pool / "00002.tar", [("0", pair(99))])
    assert sorted(measured(pool, tmp_path / "run").ready()) == ["00000", "00001", "00002"]


def test_a_pool_of_broken_shards_says_why(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "00000.tar").write_bytes(b"no tar at all")
    done = measured(tmp_path / "pool", tmp_path / "run").progress()
    assert (done["state"], list(done["failures"])) == ("done", ["00000"])
