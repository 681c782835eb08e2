"""What a run will cost, said before its first shard: some pairs are timed, and their models are loaded once."""

import io
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from factories import parts_of
from rich.console import Console

import tamis
from tamis.core.types import Device
from tamis.engines import fill, progress
from tamis.engines.local import Local
from tamis.engines.plan import Plan
from tamis.engines.progress import announcement
from tamis.pools import open_pool
from tamis.signals import CaptionLength, TextArea, TextMatch
from tamis.signals.graph import Executor, Identities

SIGNALS: list[tuple[str, Any]] = [("words", CaptionLength()), ("area", TextArea()), ("match", TextMatch())]


def test_a_feature_counts_in_equal_parts_and_what_needs_the_slow_one_is_left_out_together() -> None:
    """By hand: reading takes 10 s, the boxes 100 s, reading their text 30 s, the match itself 2 s."""
    took = {"reading": 10.0, "text_boxes": 100.0, "recognised_text": 30.0, "text_match": 2.0}
    assert announcement("1,000", SIGNALS, took) == (
        "about 2 min 22 s for 1,000 pairs: match 1 min 22 s, area 50 s, reading 10 s. Without area and match it takes "
        "10 s; the same command adds them later"
    )
    alone = announcement("1,000", SIGNALS[:2], {"reading": 10.0, "text_boxes": 100.0})
    assert alone.endswith("area 1 min 40 s, reading 10 s. Without area it takes 10 s; the same command adds it later")
    assert announcement("9", SIGNALS[1:], took).endswith("area 50 s, reading 10 s")  # nothing would be left
    assert announcement("9", SIGNALS, {name: one / 10 for name, one in took.items()}) == ""  # 14 s


@pytest.mark.parametrize(("workers", "speed"), [(1, 1), (3, 2)])
def test_what_was_measured_counts_for_the_pairs_that_are_left_and_for_the_workers(
    workers: int, speed: int, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamis.engines.local.cores", lambda: 2)
    plan = Plan(pool=open_pool(pool), signals=tuple(SIGNALS[:1]), identities=Identities(Device()))
    tasks, engine = plan.tasks(tmp_path / "run"), Local(workers)
    assert engine.speed(plan, tasks) == speed
    times = {"reading and decoding": 11.0, "captions": 1.0, "caption_length": 7.0, "gone": 9.0}
    monkeypatch.setattr(fill, "read_record", lambda path: {"rows": 10, "took": times})
    monkeypatch.setattr(fill, "fill", lambda *_, **__: None)
    found: list[tuple[str, dict[str, float]]] = []
    monkeypatch.setattr(fill, "announcement", lambda pairs, _, took, *__: found.append((pairs, took)) or "said")
    monkeypatch.setattr(fill, "_WORTH_CHEAP_PAIRS", 500)
    assert fill._forecast(plan, tmp_path / "run", tasks, engine, None) == ""  # 7 pairs in the shard
    monkeypatch.setattr(fill, "_TIMED", 6)
    assert 10 <= fill._guess_pairs(tasks) <= 40  # of 21
    assert fill._forecast(plan, tmp_path / "run", tasks, engine, None) == ""
    monkeypatch.setattr(fill, "_guess_pairs", lambda _: 500)
    for left in (None, 600):
        assert fill._forecast(plan, tmp_path / "run", tasks, engine, left) == "said"
    (every, first), (pairs, took) = found
    assert (every, pairs) == ("every 1,000", "600")
    assert took == {name: pytest.approx(0.6 * one) for name, one in first.items()}
    expected = {"reading and decoding": 180 / speed, "captions": 60 / speed, "caption_length": 420 / speed}
    assert {name: one for name, one in took.items() if one} == pytest.approx(expected)
    assert fill._forecast(plan, tmp_path / "run", tasks, engine, 499) == ""


def test_a_worker_on_another_device_does_not_share_the_models(pool: Path) -> None:
    device = Device(kind="cuda", threads=2)
    plan = Plan(pool=open_pool(pool), signals=(), identities=Identities(device), executor=Executor(device))
    assert [plan.on(kind, 2).executor is plan.executor for kind in ("cuda", "cuda:0", "cuda:1")] == [True, True, False]
    assert plan.on("cuda", None).executor is plan.without_shards().executor is None


@pytest.mark.parametrize("workers", [1, 2])
def test_it_is_said_first_costs_no_second_load_and_changes_no_result(
    workers: int, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fill, "_WORTH_PAIRS", 1)
    monkeypatch.setattr(fill, "_WORTH_CHEAP_PAIRS", 1)
    monkeypatch.setattr(progress, "_WORTH_SECONDS", 0.0)
    shown = io.StringIO()
    monkeypatch.setattr("tamis.engines.progress.Console", lambda **_: Console(file=shown, width=1000))
    loads: Counter[str] = Counter()
    load = Executor._load
    monkeypatch.setattr(Executor, "_load", lambda self, node: (loads.update([node.name]), load(self, node))[1])
    (pool / "sizes.json").write_text(json.dumps({f"0000{number}.tar": 7 for number in range(3)}))
    names = ["caption_length", "image_hash"]
    tamis.score(pool, run=tmp_path / "a", signals=names, engine=Local(workers))
    said = shown.getvalue().splitlines()
    assert said[0] == f"3 tars, the first {pool / '00000.tar'}; captions: txt"
    assert re.match(r"about \d+ s for 21 pairs: ", said[1])
    assert set(loads.values()) == {1}
    tamis.score(pool, run=tmp_path / "b", signals=names, quiet=True)
    assert shown.getvalue().splitlines() == said
    assert parts_of(tmp_path / "a") == parts_of(tmp_path / "b")
    shown.truncate(0)
    tamis.score(pool, run=tmp_path / "a", signals=[*names, "image_size"])  # of stored rows, no image is read
    assert re.search(r"about \d+ s for 21 pairs", shown.getvalue())
