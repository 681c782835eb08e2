"""A small run."""

import pytest
from factories import write_run

from tamis.runs import Run


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of four pairs without images, for tests that only read it."""
    run = write_run(tmp_path_factory.mktemp("small") / "run", {"x": [1.0, 2.0, 3.0, 4.0]})
    run.readable_pool = None
    return run
