"""Runs of format 1, whose parts have no seals: read with one notice, gone on with, and sealed by doctor."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from damage import answer, part_files, small_run

import tamis
from tamis.errors import RunError
from tamis.store import Run


def as_format_1(folder: Path) -> Path:
    """Makes of a run what an older version would have written."""
    facts = json.loads((folder / "run.json").read_text())
    shards = [{"name": name, "url": url} for name, url in Run(folder).urls.items()]
    del facts["sealed"]
    (folder / "run.json").write_text(json.dumps({**facts, "format": 1, "shards": shards}))
    for path in part_files(folder):
        if path.suffix == ".npy":
            np.save(path, np.load(path))
        else:
            footer = pq.read_metadata(path).metadata or {}
            ours = (b"tamis.source", b"tamis.stamp", b"tamis.status.ok")
            kept = {key: text for key, text in footer.items() if key in ours}
            pq.write_table(pq.read_table(path).replace_schema_metadata(kept), path)
    for path in folder.glob("*/*/*.json"):
        if path.name in ("scorer.json", "feature.json"):
            said = json.loads(path.read_text())
            path.write_text(json.dumps({key: said[key] for key in said.keys() - {"side_files", "maker", "seal"}}))
    (folder / "shards.parquet").unlink()
    return folder


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return as_format_1(small_run(tmp_path / "run").path)


def test_an_older_run_is_read_with_one_notice(old: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    new = small_run(tmp_path / "new").path
    with caplog.at_level(logging.WARNING):
        Run(old).table()
        Run(old).table()
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        f"{old} was begun by an older version of tamis: its parts have no seals, so damage may go unnoticed"
    ]
    urls = Run(old).urls
    assert (set(urls), answer(old) != answer(new)) == (set(Run(new).urls), True)  # pools of their own
    np.testing.assert_array_equal(tamis.open_run(old).to_numpy("y"), tamis.open_run(new).to_numpy("y"))


def test_doctor_seals_an_older_run_and_changes_no_answer(old: Path) -> None:
    before = answer(old)
    found = tamis.doctor(old)
    assert ({each.kind for each in found.findings}, found.exit_code) == ({"unsealed"}, 1)
    assert len(found.findings) == 13
    repaired = tamis.doctor(old, repair=True)
    assert repaired.exit_code == 0
    run = Run(old)
    assert (run.sealed, run.facts["format"], run.facts["shards"]["count"]) == (True, 2, 3)
    assert tamis.doctor(old).findings == ()
    assert answer(old) == before


def test_a_part_of_an_older_run_that_does_not_agree_with_its_index_is_not_sealed(old: Path) -> None:
    path = next(old.glob("scores/*/00001.parquet"))
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(RunError, match=r"00001\.parquet is damaged.*it has 7 rows, the index 8"):
        answer(old)
    repaired = tamis.doctor(old, repair=True)
    assert not path.exists()
    assert {each.kind for each in repaired.left} == set()
    assert {each.kind for each in tamis.doctor(old).findings} == {"missing"}


def test_parts_that_are_added_to_an_older_run_are_sealed_and_the_run_goes_on(pool: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    tamis.score(pool, run=run, scores=["caption_length"], quiet=True)
    as_format_1(run)
    done = tamis.score(pool, run=run, scores=["caption_length", "image_size"], quiet=True)
    assert (done.sealed, done.facts["format"], len(done.to_numpy("shorter_side"))) == (False, 2, 21)
    assert tamis.doctor(run, repair=True).exit_code == 0
    assert Run(run).sealed
