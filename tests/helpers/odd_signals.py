"""Signals that misbehave. Worker processes import this module by name: see conftest.py."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tamis.core.types import Column, Device, Node, Sample, Samples, Signal
from tamis.signals.features.sources import DecodedImages

#: What a test wants done in the middle of a run, in this process.
CALLS: list[Callable[[], None]] = []


@dataclass(frozen=True, kw_only=True)
class Brightness(Signal):
    """The mean of the pixels: a signal that needs the shard's file, and no model."""

    name: ClassVar[str] = "brightness"
    columns: ClassVar[tuple[Column, ...]] = (Column(name="brightness", unit="level", better="neither"),)
    scale: float = 1.0

    def needs(self) -> Mapping[str, Node]:
        return {"images": DecodedImages()}

    def load(self, device: Device) -> Callable[..., Any]:
        def mean(*, images: Sequence[Any]) -> dict[str, Any]:
            means = [np.nan if image is None else self.scale * image.mean() for image in images]
            return {"brightness": np.array(means, np.float32)}

        return mean


@dataclass(frozen=True, kw_only=True)
class Faulty(Signal):
    """Does something bad when it meets the sample of a key.

    Attributes:
        key: the sample.
        how: "raise", "kill" (the process), "exit" or "exit 1" (the process), "leave" (raises
            SystemExit(0)), "sleep" (for minutes), "short" (a value too few), "huge" (a number), "long" (an integer),
            "lacking" (no column), "call" (the last of `CALLS`).
        unless: a file; where it is there, nothing bad happens.
    """

    name: ClassVar[str] = "faulty"
    columns: ClassVar[tuple[Column, ...]] = (Column(name="faulty", unit="", better="neither"),)
    key: str
    how: str = "raise"
    unless: str = ""

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        def values(*, samples: Sequence[Sample]) -> dict[str, Any]:
            found = np.ones(len(samples), np.float32)
            if self.key in [sample.key for sample in samples] and not (self.unless and os.path.exists(self.unless)):
                match self.how:
                    case "raise":
                        raise ZeroDivisionError("a fault of the signal's")
                    case "kill":
                        os.kill(os.getpid(), signal.SIGKILL)
                    case "exit" | "exit 1":
                        os._exit(int(self.how == "exit 1"))
                    case "leave":
                        raise SystemExit(0)
                    case "sleep":
                        time.sleep(300)
                    case "call":
                        CALLS[-1]()
                    case "short":
                        found = found[:-1]
                    case "huge":
                        found = found * np.float64(1e300)
                    case "long":
                        found = np.full(len(samples), 2**53 + 1)
                    case "lacking":
                        return {}
            return {"faulty": found}

        return values


@dataclass(frozen=True, kw_only=True)
class FaultyBeside(Faulty):
    """The same, in the process that reads and decodes shards."""

    name: ClassVar[str] = "faulty_beside"
    host: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class Keeper(Signal):
    """Keeps the images of the first batch that it sees of each process, and compares their mean at every later one."""

    name: ClassVar[str] = "keeper"
    columns: ClassVar[tuple[Column, ...]] = (Column(name="kept", unit="level", better="neither"),)

    def needs(self) -> Mapping[str, Node]:
        return {"images": DecodedImages()}

    def load(self, device: Device) -> Callable[..., Any]:
        kept: list[Any] = []

        def mean(*, images: Sequence[Any]) -> dict[str, Any]:
            if not kept and images:
                kept.extend((image, float(image.mean())) for image in images)
            same = all(float(image.mean()) == before for image, before in kept)
            return {"kept": np.full(len(images), same, np.float32)}

        return mean


@dataclass(frozen=True, kw_only=True)
class Broken(Signal):
    """A signal that cannot work.

    Attributes:
        how: "misspelt" (its column), "load" (raises), "nothing" (is what load returns).
    """

    name: ClassVar[str] = "broken"
    columns: ClassVar[tuple[Column, ...]] = (Column(name="misspelt", unit="", better="neither"),)
    how: str

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        if self.how == "load":
            raise KeyError("no such weight")
        if self.how == "nothing":
            return None  # type: ignore[return-value]
        return lambda *, samples: {"mispelt": np.ones(len(samples), np.float32)}
