"""A kill in a step of a training."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

Kill = Callable[[int], AbstractContextManager[None]]


class Killed(BaseException):
    """Stands for a kill."""


@pytest.fixture
def kill() -> Kill:
    """`with kill(6): ...` dies in the sixth step, counted over all trainings, before anything of it is written."""
    from tamis.train.step import TrainingStep

    @contextmanager
    def in_step(number: int) -> Iterator[None]:
        plain, seen = TrainingStep.__call__, itertools.count(1)

        def call(self: TrainingStep, batch: Any) -> Any:
            if next(seen) == number:
                raise Killed
            return plain(self, batch)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TrainingStep, "__call__", call)
            with pytest.raises(Killed):
                yield

    return in_step
