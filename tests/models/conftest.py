"""No model stays loaded from one test to the next."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tamis.models.loading import forget_loaded


@pytest.fixture(autouse=True)
def nothing_stays_loaded(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if request.path.stem in ("test_damaged_models", "test_foreign_code", "test_loading", "test_parser"):
        forget_loaded()
