"""What a shard's reader already knows: captions, pixels, sizes. And functions for rows that lack a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Floats
from tamis.core.errors import check_words
from tamis.core.types import Device, Node, Sample, Samples

T = TypeVar("T")


def of_present(
    items: Sequence[Any], compute: Callable[[Any], Floats], shape: tuple[int, ...] = (), dtype: Any = np.float32
) -> Floats:
    """Applies a function to all items except None, at once; returns (n, *shape), NaN for None.

    An item that occurs several times (the pixels of an image with several captions) is computed once.
    """
    results = np.full((len(items), *shape), np.nan, dtype)
    present = [n for n, item in enumerate(items) if item is not None]
    if present:
        found = each_present(items, compute)
        results[present] = [found[n] for n in present]
    return results


def each_present(items: Sequence[Any], compute: Callable[[list[Any]], Iterable[T]]) -> list[T | None]:
    """Applies a function to all items except None, at once, and once to each; returns n results, None for None."""
    own = {id(item): item for item in items if item is not None}
    results = dict(zip(own, compute(list(own.values())), strict=True))
    return [None if item is None else results[id(item)] for item in items]


def of_distinct(texts: Sequence[str | None], compute: Callable[[list[str]], Iterable[T]], missing: T) -> list[T]:
    """Applies a function to the distinct texts, sorted; returns a result for every text, `missing` for None."""
    distinct = sorted({text for text in texts if text is not None})
    results = dict(zip(distinct, compute(distinct), strict=True)) if distinct else {}
    return [missing if text is None else results[text] for text in texts]


class _SampleFeature(Node):
    """A feature that needs nothing but the samples: an attribute of each, if there is no other `load`."""

    host: ClassVar[bool] = True
    _attribute: ClassVar[str]

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        return lambda *, samples: [getattr(sample, self._attribute) for sample in samples]


@dataclass(frozen=True, kw_only=True)
class Captions(_SampleFeature):
    """The captions of a batch: n texts, None for a missing or invalid one."""

    name: ClassVar[str] = "captions"
    in_index: ClassVar[bool] = True
    _attribute: ClassVar[str] = "caption"


@dataclass(frozen=True, kw_only=True)
class DecodedImages(_SampleFeature):
    """The images of a batch: n arrays (height, width, 3) of uint8 RGB, upright; None if one does not decode."""

    name: ClassVar[str] = "decoded_images"
    _attribute: ClassVar[str] = "pixels"


@dataclass(frozen=True, kw_only=True)
class HiddenContents(_SampleFeature):
    """The opacity (height, width) of images that are a single colour once transparency is ignored, else None."""

    name: ClassVar[str] = "hidden_contents"
    _attribute: ClassVar[str] = "hidden"


@dataclass(frozen=True, kw_only=True)
class Transparencies(_SampleFeature):
    """The mean transparency of each image, in [0, 1]: 0 for files without an alpha channel."""

    name: ClassVar[str] = "transparencies"
    _attribute: ClassVar[str] = "transparent"


@dataclass(frozen=True, kw_only=True)
class Dimensions(_SampleFeature):
    """Width and height of each image of a batch in pixels: (n, 2) int64, 0 if unknown.

    Attributes:
        of: "original": the image on the web if the sample's json has its size, else the stored one (DataComp's rule);
            "stored": the stored file.
    """

    name: ClassVar[str] = "dimensions"
    in_index: ClassVar[bool] = True
    of: Literal["original", "stored"] = "original"

    def __post_init__(self) -> None:
        check_words(self)

    def load(self, device: Device) -> Callable[..., Any]:
        def sizes(*, samples: Sequence[Sample]) -> NDArray[np.int64]:
            rows = [
                (sample.original_width, sample.original_height)
                if self.of == "original" and sample.original_width and sample.original_height
                else (sample.width, sample.height)
                for sample in samples
            ]
            return np.array(rows, np.int64).reshape(-1, 2)

        return sizes
