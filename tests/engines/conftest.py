"""The images that a run decodes."""

from __future__ import annotations

import pytest

from tamis.engines import shard as reading


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the samples whose images are decoded."""
    keys: list[str] = []
    fill = reading.fill_pixels
    monkeypatch.setattr(reading, "fill_pixels", lambda sample, **how: (keys.append(sample.key), fill(sample, **how)))
    return keys
