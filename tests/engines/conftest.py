"""The images that a run decodes, and a run that is interrupted."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from tamis.core.types import Sample
from tamis.engines import shard as reading
from tamis.runs import writers


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys of the samples whose images are decoded."""
    keys: list[str] = []
    fill = reading.fill_pixels
    monkeypatch.setattr(reading, "fill_pixels", lambda sample, **how: (keys.append(sample.key), fill(sample, **how)))
    return keys


@pytest.fixture
def interrupted_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], AbstractContextManager[None]]:
    """A block in which every batch is kept, and which is interrupted after the n-th."""

    @contextmanager
    def block(left: int) -> Iterator[None]:
        add = writers.Unfinished.add

        def counted(self: writers.Unfinished, samples: list[Sample]) -> None:
            nonlocal left
            add(self, samples)
            left -= 1
            if left == 0:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(writers, "EVERY_SECONDS", 0.0)
            patch.setattr(writers.Unfinished, "add", counted)
            with pytest.raises(KeyboardInterrupt):
                yield

    return block
