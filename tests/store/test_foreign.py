"""Folders that hold somebody else's files are left as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tamis.errors import RunError
from tamis.store.atomic import writing
from tamis.store.foreign import check_own


def check(folder: Path) -> None:
    check_own(folder, what="training", marks=["kept/*.json"], also=["lock", "kept"])


def test_a_folder_is_new_or_empty_or_carries_a_mark(tmp_path: Path) -> None:
    check(tmp_path / "new")
    check(tmp_path)
    (tmp_path / "lock").touch()
    (tmp_path / "kept").mkdir()
    with writing(tmp_path / "first.json") as temporary:
        temporary.touch()
    (tmp_path / "first.json").rename(tmp_path / temporary.name)  # as a command that was killed leaves it
    check(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(RunError, match=r"holds no training but other files \(notes.txt, \.\.\.\): name another folder"):
        check(tmp_path)
    (tmp_path / "kept" / "1.json").touch()
    check(tmp_path)
    assert not (tmp_path / "new").exists()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        RunError, match=r"file cannot be written into \(Not a directory\): name another folder \(--out\)"
    ):
        check(tmp_path / "file")
