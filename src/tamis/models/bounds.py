"""How large a network may be that a configuration describes: no larger than the weights that lie beside it.

A configuration of a few bytes could ask for more memory than there is, before anything of the weights is read.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tamis.errors import ModelError, TamisError

log = logging.getLogger(__name__)

#: Settings that say how often something is repeated, each time with tensors of its own.
_REPEATED = re.compile(r"(^|_)(layers?|depths?|blocks?|experts)$|layers_per_block$")

#: Settings that no network has below 0. Those of markers and windows use -1 for "none".
_COUNTED = re.compile(
    r"(^|_)(heads?|head_dim|channels|position_embeddings|(hidden|intermediate|vocab|patch|image)_size|projection_dim)$"
)

#: Settings for each of which a library writes a list as long as they say.
_LISTED = ("num_labels", "num_classes")
_MOST_LISTED = 1_000_000

#: Quantised weights hold up to 8 numbers in one; buffers (masks, positions) are not among the weights.
_PACKED = 16
_BUFFERS = 1 << 26


def check_counts(file: Path, config: Mapping[str, Any], shapes: Mapping[str, Any]) -> None:
    """Checks how many layers, heads and the like a configuration asks for.

    Args:
        file: the configuration's, for messages.
        config: what it holds.
        shapes: of the tensors that are there.

    Raises:
        ModelError: there cannot be so many.
    """
    for key, value in _numbers(config):
        if value < 0 and (_REPEATED.search(key) or _COUNTED.search(key)):
            raise ModelError(f"{file} has {key} = {value:,}, which cannot be negative: restore the model's own file")
        if _REPEATED.search(key) and value > max(len(shapes), 64):
            raise ModelError(f"{file} asks for {key} = {value:,}, and the weights hold {len(shapes):,} tensors")
        if key in _LISTED and value > _MOST_LISTED:
            raise ModelError(f"{file} asks for {key} = {value:,}: no model sorts into so many")


def check_size(file: Path, outline: Callable[[], Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Checks that a configuration describes no larger a network than its weights can fill.

    Args:
        file: the configuration's, for messages.
        outline: makes the network; called where torch allocates nothing.
        shapes: of the tensors that are there.

    Raises:
        ModelError: it describes a larger one, or none that can be made.
    """
    import math

    import torch

    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        try:
            network = outline()
        except TamisError:
            raise
        except Exception as error:
            if isinstance(error, NotImplementedError | RuntimeError) or "meta" in str(error):
                # It cannot be made without numbers: whoever loads it in earnest says what else is wrong.
                log.debug("%s: no outline of the network", file, exc_info=error)
                return
            log.info("where it happened:", exc_info=error)
            raise ModelError(f"{file} describes no network that can be made: {first_line(error)}") from error
    asked = sum(one.numel() for one in (*network.parameters(), *network.buffers()))
    there = sum(math.prod(shape) for shape in shapes.values())
    if asked > _PACKED * there + _BUFFERS:
        raise ModelError(
            f"{file} describes a network of {asked:,} numbers, and the weights beside it hold {there:,}: they are of "
            "different models"
        )


def first_line(error: BaseException) -> str:
    """Returns the first words of what a library said, which may hold pages of advice of its own."""
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:300]}" if said else type(error).__name__


def _numbers(value: Any, key: str = "") -> Iterator[tuple[str, int]]:
    """Yields each whole number of nested settings, with the name of the setting that it is of."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _numbers(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _numbers(inner, key)
    elif type(value) is int:
        yield key, value
