"""Fixtures of this folder: stores on this machine, and the images that a run decodes."""

from __future__ import annotations

import pytest
from s3_fixtures import quick, read_models, s3, s3_server

from tamis.engines import shard as reading

__all__ = ["quick", "read_models", "s3", "s3_server"]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the samples whose images are decoded."""
    keys: list[str] = []
    fill = reading.fill_pixels
    monkeypatch.setattr(reading, "fill_pixels", lambda sample, **how: (keys.append(sample.key), fill(sample, **how)))
    return keys
