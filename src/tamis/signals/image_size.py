"""Size and shape of an image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Floats
from tamis.data import Column, Device, Node, Signal
from tamis.features.sources import Dimensions


@dataclass(frozen=True, kw_only=True)
class ImageSize(Signal):
    """Measures the shorter side and the aspect ratio of an image.

    Small images are icons, long ones are banners. DataComp's basic rule keeps shorter sides of at least 200 pixels
    and aspect ratios of at most 3, both of the image on the web.

    Attributes:
        of: "original": the size in the sample's json (`original_width`, `original_height`) if it is there, else the
            stored one; "stored": of the stored file.

    Emits:
        shorter_side: in pixels.
        aspect_ratio: longer side / shorter side, at least 1.
        Both NaN where neither size is known.

    Cost: nothing beyond decoding.
    """

    name: ClassVar[str] = "image_size"
    version: ClassVar[int] = 1
    host: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (
        Column(name="shorter_side", unit="pixels", better="high", about="shorter side of the image"),
        Column(name="aspect_ratio", unit="ratio", better="low", about="longer side / shorter side"),
    )
    of: Literal["original", "stored"] = "original"

    def __post_init__(self) -> None:
        Dimensions(of=self.of)  # checks the setting

    def needs(self) -> Mapping[str, Node]:
        return {"sizes": Dimensions(of=self.of)}

    def load(self, device: Device) -> Callable[..., Any]:
        def measure(*, sizes: NDArray[np.int64]) -> dict[str, Floats]:
            known = (sizes > 0).all(axis=1)
            shorter = np.where(known, sizes.min(axis=1, initial=2**31), np.nan)
            longer = np.where(known, sizes.max(axis=1, initial=0), np.nan)
            return {"shorter_side": shorter.astype(np.float32), "aspect_ratio": (longer / shorter).astype(np.float32)}

        return measure
