"""Loading without the noise of libraries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def no_progress_bar() -> Iterator[None]:
    """Keeps transformers from drawing a bar of its own into ours."""
    from transformers.utils import logging

    noise: Any = logging
    shown = noise.is_progress_bar_enabled()
    noise.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            noise.enable_progress_bar()


@contextmanager
def no_warnings() -> Iterator[None]:
    """Keeps transformers from logging what we tell in our own words."""
    from transformers.utils import logging

    noise: Any = logging
    before = noise.get_verbosity()
    noise.set_verbosity_error()
    try:
        yield
    finally:
        noise.set_verbosity(before)
