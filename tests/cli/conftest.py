"""Fixtures that run the command line."""

import contextlib
import shutil
from pathlib import Path

import pytest
from command_line import Tamis
from factories import write_pool

import tamis


@pytest.fixture(scope="session")
def scored_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `pool`, three shards of seven pairs, and `run`, scored from it by its relative path."""
    folder = tmp_path_factory.mktemp("scored")
    write_pool(folder / "pool")
    with contextlib.chdir(folder):
        tamis.score("pool", run="run", signals=["caption_length", "image_size"], quiet=True)
    return folder


@pytest.fixture
def scored(tamis: Tamis, scored_once: Path, tmp_path: Path) -> Path:
    """The folder `run`, scored from `pool`, in the current folder."""
    shutil.copytree(scored_once, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"
