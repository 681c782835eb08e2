"""The JSON files of a run: whatever they hold besides what was written ends in our own error, which names the file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from command_line import Tamis
from damage import delete, small_run
from factories import uids_in, write_pool

import tamis as library
from tamis.core.errors import DamageError, RunError
from tamis.core.files.checked import read_record, write_array, write_record
from tamis.core.types import Column
from tamis.runs import Run, manifest, parts
from tamis.runs.manifest import sign_description

RECIPE = {"name": "q", "select": [{"top_fraction": {"score": "clip", "fraction": 0.3}}]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("formats")
    library.score(write_pool(folder / "pool", shards=2), run=folder / "run", signals=["caption_length"], quiet=True)
    return folder / "run"


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


CHANGES: dict[str, Callable[[str], str]] = {
    "a list": lambda text: "[[]]",
    "no facts": lambda text: "{}",
    "cut": lambda text: text[:-20],
    "another letter": lambda text: text.replace('"tamis"', '"tamjs"', 1).replace('"state"', '"stale"', 1),
    "no hash": lambda text: text.replace('"hash"', '"hath"'),
    "not a number": lambda text: text.replace("{", '{"more": NaN, ', 1),
    "no text": lambda text: text.replace("{", '{"more": "\\ud800", ', 1),
    "deep": lambda text: "[" * 100_000,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_record_that_was_changed_is_named_by_every_reader(change: str, run: Path, tamis: Tamis) -> None:
    write_record(run / "failures" / "00000.json", {"error": "it", "tamis": "1"})
    results = [run / name for name in ("bench.json", "choose.json", "shares.json")]
    signal = next(run.glob("scores/*/signal.json"))
    for path in (run / "run.json", signal, run / "status.json", *results, run / "failures/00000.json"):
        if path in results:  # alone: it has too little for a report
            write_record(path, {"kind": "tamis bench", "format": 1, "tamis": "1"})
        whole = path.read_text()
        path.write_text(CHANGES[change](whole))
        with pytest.raises(DamageError, match=path.name):
            read_record(path)
        done = tamis("report", run, "--out", run.parent / "a.html") if path in results else tamis("status", run)
        assert (done.code, path.name in done.err) == (2, True), (path, done)
        checked = tamis("check", run)
        assert (checked.code in (1, 2), path.name in checked.out + checked.err) == (True, True), (path, checked)
        path.unlink() if path in results else path.write_text(whole)


def test_a_score_column_of_words_is_an_error(run: Path) -> None:
    path = next(run.glob("scores/*/00001.parquet"))
    columns = [Column(name=name, unit="", better="high", kind="word") for name in ("words", "characters")]
    values = {column.name: ["a"] * 7 for column in columns}
    parts.write_scores(path, columns, values, [None] * 7, uids=uids_in(run / "index" / "00001.parquet"))
    with pytest.raises(DamageError, match=r"00001\.parquet.*'words'"):
        library.open_run(run).to_numpy("words")


def test_a_signal_s_records_that_the_check_says_to_delete_are_made_again(run: Path, made: Path) -> None:
    path = next(run.glob("scores/*/signal.json"))
    before, there = path.read_text(), sorted(run.glob("scores/*/*.parquet"))
    side = path.parent / "class_vectors.npy"
    write_array(side, np.ones((2, 3), np.float32))
    assert library.check(run).exit_code == 0
    side.write_bytes(side.read_bytes()[:-1])  # NumPy still reads it
    path.write_text("[]")
    found = library.check(run)
    assert {(run / each.path, each.kind) for each in found.findings} == {(path, "damaged"), (side, "damaged")}
    delete(found)
    assert (side.exists(), sorted(run.glob("scores/*/*.parquet"))) == (False, there)
    library.score(made.parent / "pool", run=run, signals=["caption_length"], quiet=True)
    assert path.read_text() == before


@pytest.fixture
def clips(tmp_path: Path) -> tuple[Path, Path]:
    """Writes a run with the scores of two settings of one signal, and returns their folders."""
    run = small_run(tmp_path / "run").path
    column = Column(name="clip", unit="", better="high")
    columns = [{"name": "clip", "unit": "", "better": "high", "kind": "number", "about": ""}]
    places = {"scores/clip-aaaaaaaaaaaaaaaa": "clip", "scores/clip-bbbbbbbbbbbbbbbb": "clip_b"}
    rng = np.random.default_rng(1)
    for place, label in places.items():
        manifest.describe(run, {place: {"name": "clip", "label": label, "columns": columns}})
        opened = Run(run)
        for shard, size in zip(opened.shards, opened.sizes, strict=True):
            uids, values = uids_in(opened.index_path(shard)), {"clip": rng.random(size)}
            parts.write_scores(run / place / f"{shard}.parquet", [column], values, [None] * size, uids=uids)
    one, other = places
    return run / one, run / other


def test_swapped_descriptions_choose_no_other_subset(clips: tuple[Path, Path]) -> None:
    run, before = clips[0].parents[1], library.select(clips[0].parents[1], RECIPE).keep
    one, other = (folder / "signal.json" for folder in clips)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    with pytest.raises(DamageError, match=rf"{clips[1].name}.*{clips[0].name}"):
        library.select(run, RECIPE)
    found = library.check(run)
    assert [(each.kind, run / each.path) for each in found.findings] == [("damaged", one), ("damaged", other)]
    assert found.to_delete == (one, other)
    delete(found)
    assert len(list(run.glob("scores/clip-*/*.parquet"))) == 6
    one.write_bytes(first)
    other.write_bytes(second)
    np.testing.assert_array_equal(library.select(run, RECIPE).keep, before)


def test_two_sets_of_scores_of_one_label_are_refused(clips: tuple[Path, Path]) -> None:
    run = clips[0].parents[1]
    for folder in clips:
        facts = json.loads((folder / "signal.json").read_text())
        (folder / "signal.json").write_text(json.dumps(sign_description(folder, {**facts, "label": "clip"})))
    for ask in (lambda: library.select(run, RECIPE), lambda: manifest.labels_of(run)):
        with pytest.raises(RunError, match=rf"'clip'.*{clips[0].name}.*{clips[1].name}"):
            ask()
    found = library.check(run)
    assert ([each.kind for each in found.findings], found.to_delete) == (["yours"], ())
