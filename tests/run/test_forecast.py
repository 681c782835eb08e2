"""What a run will cost, said before its first shard: some pairs are timed, and their models are loaded once."""

from __future__ import annotations

import io
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from factories import parts_of, write_pool
from rich.console import Console

import tamis
from tamis.data import Device, Node
from tamis.features.sources import Captions, DecodedImages
from tamis.graph import Executor, Identities, topological
from tamis.pool import open_pool
from tamis.pool.open import guessed_pairs
from tamis.run import fill, forecast
from tamis.run.forecast import Share, announcement
from tamis.run.local import Local
from tamis.run.plan import Plan
from tamis.run.shard import ShardWorker
from tamis.signals import CaptionLength, ImageHash, ImageSize, TextArea, TextMatch

SIGNALS: list[tuple[str, Any]] = [("words", CaptionLength()), ("area", TextArea()), ("match", TextMatch())]


def test_a_feature_counts_in_equal_parts_and_what_needs_the_slow_one_is_left_out_together() -> None:
    """By hand: reading takes 10 s, the boxes 100 s, reading their text 30 s, the match itself 2 s."""
    seconds = {"reading": 10.0, "text_boxes": 100.0, "recognised_text": 30.0, "text_match": 2.0}
    assert announcement(SIGNALS, 1000, seconds) == (
        "about 2 min 22 s for 1,000 pairs: match 1 min 22 s, area 50 s, reading 10 s. Without area and match it takes "
        "10 s; the same command adds them later"
    )
    alone = announcement(SIGNALS[:2], 1000, {"reading": 10.0, "text_boxes": 100.0})
    assert alone.endswith("area 1 min 40 s, reading 10 s. Without area it takes 10 s; the same command adds it later")
    assert announcement(SIGNALS[1:], 1000, seconds).endswith("area 50 s, reading 10 s")  # nothing would be left
    assert announcement(SIGNALS, 1000, seconds, ["reading"], overlap=True).startswith("about 2 min 12 s")
    assert announcement(SIGNALS, 100, {name: one / 10 for name, one in seconds.items()}) == ""  # 14 s


def test_what_is_measured_counts_for_the_pairs_that_are_left_and_for_the_workers(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that goes on by a second whenever a node looks at it: a batch of 7 pairs takes each of the nodes one."""
    ticks = itertools.count()
    monkeypatch.setattr("tamis.graph.time.perf_counter", lambda: float(next(ticks)))
    monkeypatch.setattr(fill, "_WORTH_PAIRS", 1)
    found: list[dict[str, float]] = []
    monkeypatch.setattr(fill, "announcement", lambda _, pairs, seconds, *__, **___: found.append({**seconds}) or "")
@pytest.mark.parametrize("workers", [1, 2])
def test_it_is_said_first_costs_no_second_load_and_changes_no_result(
    workers: int, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fill, "WORTH_PAIRS", 1)
    monkeypatch.setattr(forecast, "_WORTH_SECONDS", 0.0)
    shown = io.StringIO()
    monkeypatch.setattr("tamis.run.progress.Console", lambda **_: Console(file=shown, width=1000))
    loads: Counter[str] = Counter()
    load = Executor._load
    monkeypatch.setattr(Executor, "_load", lambda self, node: (loads.update([node.name]), load(self, node))[1])
    (pool / "sizes.json").write_text(json.dumps({f"0000{number}.tar": 7 for number in range(3)}))
    names = ["caption_length", "image_hash"]
    tamis.score(pool, run=tmp_path / "a", signals=names, engine=Local(workers))
    said = shown.getvalue().splitlines()
    assert said[0] == f"3 tars, the first {pool / '00000.tar'}, captions in .txt members"
    assert said[1].startswith("about 0 s for 21 pairs: ")
    assert set(loads.values()) == {1}
    tamis.score(pool, run=tmp_path / "b", signals=names, quiet=True)
    assert shown.getvalue().splitlines() == said
    assert parts_of(tmp_path / "a") == parts_of(tmp_path / "b")
    shown.truncate(0)
    tamis.score(pool, run=tmp_path / "a", signals=[*names, "image_size"])  # of stored rows, no image is read
    assert "about 0 s for 21 pairs" in shown.getvalue()


def test_shards_of_unknown_size_are_guessed_by_their_bytes(tmp_path: Path) -> None:
    tars = open_pool(write_pool(tmp_path / "tars", shards=3, rows=60))
    assert guessed_pairs(tars.shards) == pytest.approx(180, rel=0.1)
    (tmp_path / "a.csv").write_text("image,caption\n" + "a.jpg,a cat on a mat\n" * 500)
    assert guessed_pairs(open_pool(tmp_path / "a.csv").shards) == pytest.approx(500, rel=0.1)
    assert guessed_pairs([]) == 0


def test_workers_share_what_they_can(pool: Path, tmp_path: Path) -> None:
    plan = Plan(pool=open_pool(pool), signals=(("hash", ImageHash()),), identities=Identities(Device()))
    tasks = plan.tasks(tmp_path / "run")
    assert Local(1).share(plan, tasks) == Share(1, 1, overlap=False)
    assert Local(8).share(plan, tasks[:1]).workers == 1  # one shard is one worker's
    assert (Local(1).in_process(plan, tasks), Local(2).in_process(plan, tasks)) == (True, False)
