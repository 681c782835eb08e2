"""Where and how networks run: what a user asks for (`Compute`), and what that means on this machine (`Device`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict

#: Number format of networks.
Precision = Literal["float32", "bf16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where networks run: `kind` as torch names it ("cpu", "cuda", "cuda:1"), the precision, the threads."""

    kind: str = "cpu"
    precision: Precision = "float32"
    threads: int | None = None
    batch_size: int = 64
    halved: bool = False  # the batch size was halved, because memory ran out


class Compute(TypedDict, total=False):
    """Where and how networks run; what is missing or None is chosen for this machine.

    Attributes:
        device: "cpu", "cuda", "cuda:1"; by default a GPU if there is one.
        precision: "float32" or "bf16"; by default bf16 if the hardware supports it. Part of the fingerprint.
        batch_size: samples per batch; by default 64 on a CPU, 256 on a GPU. Changes results by rounding only.
        threads: for the models of each worker; by default what the cores allow.
    """

    device: Annotated[str | None, "cpu, cuda, cuda:1; by default a GPU if there is one."]
    precision: Annotated[str | None, "float32 or bf16; by default bf16 if the hardware supports it."]
    batch_size: Annotated[int | None, "Samples per batch; by default 64 on a CPU, 256 on a GPU."]
    threads: Annotated[int | None, "Threads for the models of each worker."]
