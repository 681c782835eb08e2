"""A run that is damaged."""

import shutil
from pathlib import Path

import pytest
from damage import small_run


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with every kind of part, for tests that only read it."""
    return small_run(tmp_path_factory.mktemp("whole") / "run").path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "run"))
