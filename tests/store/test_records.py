"""Valid JSON of the wrong shape in any file of a run: our own error, which names the file and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Tamis
from factories import write_pool

import tamis as library
from tamis.errors import RunError

#: What each file of a run could hold besides what it should.
ODD: list[Any] = [5, [], {}, "text", None, [[]], {"kind": "tamis bench", "format": 1, "contenders": []}]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("formats")
    library.score(write_pool(folder / "pool", shards=2), run=folder / "run", scores=["caption_length"], quiet=True)
    return folder / "run"


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    import shutil

    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def every_reader(tamis: Tamis, run: Path) -> list[str]:
    """What each command that reads a run says; none may end in a traceback, which an exception from here would be."""
    recipe = run.parent / "recipe.yaml"
    recipe.write_text(json.dumps({"name": "mine", "select": [{"at_least": {"score": "words", "value": 1}}]}))
    said = []
    for arguments in (
        ("status", run),
        ("select", run, "--recipe", recipe, "--out", run.parent / "a.parquet"),
        ("report", run, "--out", run.parent / "a.html"),
        ("check", run),
    ):
        done = tamis(*arguments)
        assert done.code in (0, 1, 2), (arguments, done.err)
        said.append(done.err + done.out)
    return said


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("name", ["run.json", "scorer.json", "status.json", "bench.json", "failures/00000.json"])
def test_a_file_of_another_shape_is_named(name: str, odd: Any, run: Path, tamis: Tamis) -> None:
    path = next(run.glob("scores/*/scorer.json")) if name == "scorer.json" else run / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(odd))
    assert any(path.name in said for said in every_reader(tamis, run))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("run.json", {"format": "abc"}, r"'format': .*, found 'abc'"),
        ("run.json", {"pool": 5}, r"'pool': .*found 5"),
        ("run.json", {"pool": {"kind": "webdataset", "fields": "url"}}, r"'pool.fields'"),
        ("run.json", {"shards": 7}, r"'shards"),
        ("run.json", {"hash": 5}, r"'hash'"),
        ("scorer.json", {"columns": None}, r"'columns'"),
        ("scorer.json", {"columns": [{"name": "a"}]}, r"'columns.0.unit': field required"),
        ("scorer.json", {"label": 5}, r"'label'"),
        ("status.json", {"process": "abc"}, r"'process': .*, found 'abc'"),
        ("status.json", {"shards": []}, r"'shards'"),
        ("failures/00000.json", {"error": 5}, r"'error'"),
    ],
)
def test_what_was_found_where_is_said(name: str, change: dict[str, Any], message: str, run: Path) -> None:
    from tamis.run.status import read_status

    path = next(run.glob("scores/*/scorer.json")) if name == "scorer.json" else run / name
    path.parent.mkdir(exist_ok=True)
    facts = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**facts, **change}))
    with pytest.raises(RunError, match=rf"{path.name} is damaged: .*{message}.*(restore it)"):
        read_status(run)


def test_events_are_read_line_by_line_and_a_cut_last_line_is_left_out(run: Path) -> None:
    from tamis.store.records import EventFacts, read_lines

    path = run / "events.jsonl"
    whole = list(read_lines(path, EventFacts))
    assert [event["shard"] for event in whole] == ["00000", "00001"]
    path.write_text(path.read_text() + '{"event": "sha')
    assert list(read_lines(path, EventFacts)) == whole
    path.write_text("[1]\n")
    with pytest.raises(RunError, match=r"events\.jsonl is damaged"):
        list(read_lines(path, EventFacts))


def test_a_score_column_of_words_is_told(run: Path) -> None:
    from tamis.data import Column
    from tamis.store.parts import uids_in, write_scores

    path = next(run.glob("scores/*/00001.parquet"))
    group = library.open_run(run).scores["caption_length"]
    columns = [Column(name=column.name, unit="", better="high", kind="word") for column in group.columns]
    values = {column.name: ["a"] * 7 for column in columns}
    write_scores(path, columns, values, [None] * 7, uids=uids_in(run / "index" / "00001.parquet"))
    with pytest.raises(RunError, match=r"00001\.parquet is damaged.*its column 'words' holds string, not numbers"):
        library.open_run(run).to_numpy("words")


def test_a_damaged_record_is_deleted_by_the_check_and_made_again(run: Path, tmp_path: Path, made: Path) -> None:
    path = next(run.glob("scores/*/scorer.json"))
    before = path.read_text()
    parts = sorted(run.glob("scores/*/*.parquet"))
    path.write_text("[]")
    assert library.check(run).exit_code == 1
    repaired = library.check(run, delete=True)
    assert [(found.kind, found.deleted) for found in repaired.findings] == [("damaged", True)]
    assert repaired.exit_code == 1  # `tamis score` has to write it
    again = library.check(run, delete=True)
    assert [(found.kind, found.path) for found in again.findings] == [("missing", str(path.relative_to(run)))]
    assert sorted(run.glob("scores/*/*.parquet")) == parts
    library.score(made.parent / "pool", run=run, scores=["caption_length"], quiet=True)
    assert path.read_text() == before
    assert np.isfinite(library.open_run(run).to_numpy("words")).all()


def test_a_damaged_side_file_is_deleted_by_the_check_alone(run: Path) -> None:
    from tamis.store.checked import write_array

    folder = next(run.glob("scores/*"))
    path = folder / "class_vectors.npy"
    write_array(path, np.ones((2, 3), np.float32))
    assert library.check(run).exit_code == 0
    path.write_bytes(path.read_bytes()[:-1])  # no hash, and whole for NumPy
    assert library.check(run).exit_code == 1
    parts = sorted(folder.glob("*.parquet"))
    library.check(run, delete=True)
    assert not path.exists()
    assert sorted(folder.glob("*.parquet")) == parts
