"""Fields of the samples' json that a run gets after its index was made: like scores, and added like them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tamis.data import Column, Device, Node, Sample, Samples, Scorer


@dataclass(frozen=True, kw_only=True)
class CarriedField(Scorer):
    """Takes over one field of the samples' json, or one column of the table, as words; no model runs.

    A run's index is made once. What is asked for later lies beside it, under the field's name, as a score does.

    Attributes:
        field: its name.

    Emits:
        the field, as text; null where the sample has none.

    Cost: reading the shards again, without decoding images.
    """

    name: ClassVar[str] = "carried_field"
    version: ClassVar[int] = 1
    host: ClassVar[bool] = True
    field: str

    @property
    def columns(self) -> tuple[Column, ...]:  # type: ignore[override]  # each field is a column of its own name
        about = f"the field {self.field!r} of the samples' json"
        return (Column(name=self.field, unit="", better="neither", kind="word", about=about),)

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        def words(*, samples: Sequence[Sample]) -> dict[str, list[str | None]]:
            return {self.field: [sample.given.get(self.field) for sample in samples]}

        return words
