"""What `tamis doctor` says of each file of a run; and what `--repair` must never take: a part as it was written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from damage import contents, small_run, unreadable

import tamis
from tamis.store.doctor import Diagnosis


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("doctor") / "run").path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    return folder


def kinds(found: Diagnosis) -> list[tuple[str, str]]:
    return [(each.kind, each.path) for each in found.findings]


DESCRIPTIONS = ("scores/given-0000000000000000/scorer.json", "captions/says-2222222222222222/feature.json")


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_parts_outlive_the_file_that_describes_them(name: str, run: Path) -> None:
    before = contents(run)
    (run / name).write_bytes((run / name).read_bytes()[:-20])
    assert kinds(tamis.doctor(run, repair=True)) == [("damage", name)]
    for _ in range(2):
        lost = tamis.doctor(run, repair=True)
        assert kinds(lost) == [("missing", name)]
        assert lost.exit_code == 1
        assert lost.command.startswith("tamis score ")
    assert contents(run) == before


@pytest.mark.parametrize(
    "name",
    [
        *DESCRIPTIONS,
        "index/00001.parquet",
        "scores/given-0000000000000000/00001.parquet",
        "embeddings/image_embedding-1111111111111111/00001.npy",
        "captions/says-2222222222222222/00001.parquet",
        "captions/says-2222222222222222",
    ],
)
def test_what_may_not_be_read_is_told_and_left_alone(name: str, run: Path) -> None:
    before = contents(run)
    tamis.doctor(run, repair=True)  # whatever is imported, is
    with unreadable(run / name, run):
        found = tamis.doctor(run, repair=True)
    assert (kinds(found), found.exit_code) == ([("unread", name)], 1)
    assert "Permission denied" in found.findings[0].what
    assert contents(run) == before
    assert tamis.doctor(run).exit_code == 0
