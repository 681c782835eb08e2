"""Which pairs the page without a server gets, what is in its file, and when it is written."""

import base64
import json
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explored_page import HOSTILE
from factories import write_run

import tamis
from tamis.commands.report import open_explorer
from tamis.core.errors import RunError
from tamis.core.ids import content_uid
from tamis.reports.explore import static
from tamis.reports.explore.cached_run import CachedRun
from tamis.runs.subset import Subset

ROWS = 3_000


@pytest.fixture(scope="module")
def columns() -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {"a": random.random(ROWS), "b": random.random(ROWS)}


def opened(folder: Path, columns: dict[str, Any], order: Any = None) -> tuple[CachedRun, list[Subset]]:
    """A run with its rows in an order, and two subsets that disagree on few pairs."""
    order = np.arange(ROWS) if order is None else order
    uids = [content_uid(b"image", str(row).encode()) for row in order]
    run = write_run(folder, {name: values[order] for name, values in columns.items()}, uids=uids)
    steps = {"half": {"at_least": {"score": "a", "value": 0.5}}, "less": {"at_least": {"score": "a", "value": 0.52}}}
    cached = CachedRun(run.path)
    return cached, [tamis.select(cached, {"name": name, "select": [step]}) for name, step in steps.items()]


def test_the_draw_depends_on_uids_alone_and_has_enough_on_both_sides(columns: Any, tmp_path: Path) -> None:
    run, subsets = opened(tmp_path / "run", columns)
    rows, strata, sizes = static.draw(run, subsets, 400)
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert 390 <= rows.size <= 400
    assert sizes.sum() == ROWS
    a = columns["a"].astype(np.float32)[rows]
    disagree = (a >= np.float32(0.5)) & (a < np.float32(0.52))
    assert np.count_nonzero(disagree) > 50 > 400 * 0.02  # of all pairs, 2 %
    for pattern, keeps in enumerate([(False, False), (True, False), (False, True), (True, True)]):
        here = np.logical_and.reduce([subset.keep[rows] == keep for subset, keep in zip(subsets, keeps, strict=True)])
        np.testing.assert_array_equal(here, strata >> 1 == pattern)
    shuffled = np.random.default_rng(2).permutation(ROWS)
    other, its = opened(tmp_path / "other", columns, shuffled)
    assert sorted(shuffled[static.draw(other, its, 400)[0]].tolist()) == rows.tolist()
    assert static.draw(run, subsets, ROWS)[0].tolist() == list(range(ROWS))


def test_weighted_counts_are_right_on_average(columns: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, subsets = opened(tmp_path / "run", columns)
    far, counts = columns["b"] > 0.8, []
    for seed in range(60):
        monkeypatch.setattr(static, "_SEED", 1_000 + seed)
        rows, strata, sizes = static.draw(run, subsets, 300)
        drawn = np.bincount(strata, minlength=sizes.size)
        counts.append(sum(sizes[stratum] / drawn[stratum] for stratum in strata[far[rows]]))
    assert abs(np.mean(counts) - far.sum()) < 3 * np.std(counts) / 60**0.5


def test_half_is_drawn_in_proportion_and_half_from_the_strata_that_matter() -> None:
    # 204 less one for each stratum is 200: 100 by size (90, 8, 1, 1), 50 from each that matters, at most what it has.
    sizes, matter = np.array([900, 80, 10, 10]), np.array([False, False, True, True])
    take = static.allot(sizes, matter, 204)
    # 90, 8, 10, 10 leave 82 of 200, which go by what is left: 810 of 882 and 72 of 882.
    assert take.tolist() == [int(np.ceil(90 + 82 * 810 / 882)), int(np.ceil(8 + 82 * 72 / 882)), 10, 10]
    assert take.sum() <= 204
    assert static.allot(sizes, matter, 1000).tolist() == sizes.tolist()


def test_infinite_scores_are_far_from_a_cut_and_repeats_are_counted(columns: Any, tmp_path: Path) -> None:
    a = np.where(columns["b"] < 0.96, np.inf, columns["a"])
    run = CachedRun(write_run(tmp_path / "run", {"a": a}).path)
    half = tamis.select(run, {"name": "half", "select": [{"at_least": {"score": "a", "value": 0.5}}]})
    subset = replace(half, times=half.keep.astype(np.uint16) * 3)
    rows = static.draw(run, [subset], 400)[0]
    assert 390 <= rows.size <= 400
    explorer, _ = open_explorer(run, [subset], partial=False)
    often = static._subset(explorer, 0, subset, rows)["often"]
    assert np.frombuffer(base64.b64decode(often), np.uint32).tolist() == (3 * half.keep[rows]).tolist()


def test_hidden_pairs_are_never_drawn(columns: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, subsets = opened(tmp_path / "run", columns)
    hidden = np.arange(ROWS) % 3 == 0
    monkeypatch.setattr(CachedRun, "hidden", hidden)
    rows, _, sizes = static.draw(run, subsets, 2_500)
    assert not hidden[rows].any()
    assert rows.size == sizes.sum() == np.count_nonzero(~hidden)
    monkeypatch.setattr(CachedRun, "hidden", np.ones(ROWS, bool))
    with pytest.raises(RunError, match="no pair to show"):
        tamis.report(run.path, out=tmp_path / "page.html", interactive=True)


#: Requests of the explorer whose controls the page without a server hides, or never shows.
SERVERS_OWN = {
    "copies", "delete_view", "first", "heat", "more", "refresh", "save", "save_view", "suggestions", "views", "warm",
}  # fmt: skip


def test_the_page_answers_every_request_but_those_of_hidden_controls() -> None:
    web = {entry.name: entry.read_text("utf-8") for entry in (files("tamis.reports.explore") / "web").iterdir()}
    answers = re.search(r"const ANSWERS = \{\n(.*?)\n\};", web.pop("static.js"), re.DOTALL)
    assert answers
    answered = set(re.findall(r"^  (\w+):|[ ,](\w+)(?=,)", answers[1], re.MULTILINE))
    requests = {name for text in web.values() for name in re.findall(r'\bask\("(\w+)"', text)}
    assert requests - {name for both in answered for name in both} == SERVERS_OWN


def test_what_the_page_stores_stays_inside_its_element(mixed_run: Path, tmp_path: Path) -> None:
    page = tamis.report(mixed_run, out=tmp_path / "page.html", interactive=True).read_text(encoding="utf-8")
    (stored,) = re.findall(r'<script type="application/json" id="stored">(.*?)</script>', page)
    pairs = json.loads(stored)["pairs"]
    assert [pair["caption"] for pair in pairs[: len(HOSTILE) - 1]] == HOSTILE[:-1]
    assert "<" not in stored
    assert stored.isascii()
    assert len(pairs[len(HOSTILE) - 1]["caption"]) < pairs[len(HOSTILE) - 1]["caption_length"] == len(HOSTILE[-1])
    assert page.count("</script>") == page.count("<script ") == 3 + len(pairs) // 50  # facts, images, the page's own


def test_a_page_is_written_whole_or_not_at_all(
    mixed_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tamis: Any
) -> None:
    out = tmp_path / "report-interactive.html"
    shown = tamis.ok("report", mixed_run, "--interactive", "--json")
    assert json.loads(shown.out) == {"page": out.name, "bytes": out.stat().st_size}
    assert "read the images of 60 pairs" in caplog.messages
    before = out.read_bytes()
    assert "--overwrite" in tamis.refused("report", mixed_run, "--interactive")

    def stop(*about: Any) -> Any:
        yield ["AAAA"]
        raise OSError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(static, "_images", stop)
        assert tamis("report", mixed_run, "--interactive", "--overwrite").code != 0
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    tamis.ok("report", mixed_run, "--interactive", "--overwrite", "--quiet")
    assert out.read_bytes() == before  # the same run gives the same bytes
