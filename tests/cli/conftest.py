"""Fixtures that run the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Tamis
from factories import write_pool


@pytest.fixture
def scored(tamis: Tamis, tmp_path: Path) -> Path:
    """The folder `run`, scored from `pool`: three shards of seven pairs."""
    write_pool(tmp_path / "pool")
    done = tamis("score", "pool", "--run", "run", "--signals", "caption_length,image_size", "--quiet")
    assert done.code == 0, done.err
    return tmp_path / "run"
