"""The report's pairs with written text: which, and with which pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from browser_view import parsed
from factories import text_pool, write_run

import tamis
from tamis.pool import open_pool
from tamis.reporting import write_report
from tamis.reporting.context import Context
from tamis.reporting.sections.written_text import gather

pytest.importorskip("torch")
pytest.importorskip("rapidocr")


def test_the_pairs_that_lose_most_are_shown_outlined_and_painted_over(tmp_path: Path) -> None:
    pool = text_pool(tmp_path / "pool", "a red car", "two green apples")
    scorers = [{"tmars": {"model": "lab/clip"}}, "text_match"]  # it reads: without the text it sees nothing
    run = tamis.score(pool, run=tmp_path / "run", scores=scorers, quiet=True)
    found = gather(Context(run, [], open_pool(str(pool))))
    drop = run.to_numpy("clip_drop")
    assert found is not None
    rows = [pair.row for pair in found.pairs]
    assert rows == [row for row in np.argsort(-drop, kind="stable") if drop[row] > 0]
    assert rows
    assert set(rows) <= {3, 4}
    for pair in found.pairs:
        outlined, masked = pair.painted
        assert outlined != masked != pair.thumbnail
        assert masked.startswith("data:image/")
    page = write_report(run, [], tmp_path / "report.html", open_pool(str(pool))).read_text()
    tags, _, text = parsed(page)
    assert "Written text" in text
    assert page.count("text painted over:") == len(rows)
    assert tags


def test_a_run_without_text_or_without_t_mars_has_no_such_section(tmp_path: Path, clip_model: str) -> None:
    pool = text_pool(tmp_path / "pool")
    run = tamis.score(pool, run=tmp_path / "run", scores=[{"tmars": {"model": clip_model}}], quiet=True)
    assert gather(Context(run, [], open_pool(str(pool)))) is None
    assert gather(Context(write_run(tmp_path / "other", {"clip_drop": [0.1, 0.2]}), [], None)) is None


def test_without_the_pool_the_pairs_are_shown_without_pictures(tmp_path: Path, clip_model: str) -> None:
    pool = text_pool(tmp_path / "pool", "a red dog", plain=0)
    run = tamis.score(pool, run=tmp_path / "run", scores=[{"tmars": {"model": clip_model}}], quiet=True)
    page = write_report(run, [], tmp_path / "report.html", None).read_text()
    assert ("Written text" in page) == (run.to_numpy("clip_drop")[0] > 0)
    assert "painted over:" not in page
