"""`mix`: a weighted sum of standardised columns, with weights from a recipe or from `tamis train mix`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any, ClassVar

import numpy as np
import pydantic
import yaml
from numpy.typing import NDArray

from tamis.core.arrays import Float64s
from tamis.core.errors import RecipeError, first_line, read_text
from tamis.core.files.scratch import stored
from tamis.core.math.normalise import Moments
from tamis.core.types import Column, OptionalFileRef
from tamis.recipes.derived import Derived, Saved
from tamis.recipes.steps.clusters import BLOCK
from tamis.recipes.steps.outcome import check_kind
from tamis.runs.table import Table, as_numbers

_strict = pydantic.with_config(pydantic.ConfigDict(extra="forbid", allow_inf_nan=False))


@_strict
@dataclass(frozen=True, kw_only=True)
class Term:
    """weight * (value - mean) / deviation of a column; for an embedding lists of each, and the sum over dimensions."""

    weight: float | tuple[float, ...]
    mean: float | tuple[float, ...] = 0.0
    deviation: float | tuple[float, ...] = 1.0  # where it is 0, the value is constant and adds nothing
    models: tuple[str, ...] = ()  # digests of the weights that made an embedding; () for any

    @np.errstate(invalid="ignore")  # an infinite value times 0
    def of(self, values: NDArray[np.floating[Any]]) -> Float64s:
        """Returns the term of (n,) numbers or (n, d) embeddings: (n,) float64, NaN where a value is missing."""
        weight, mean, deviation = np.broadcast_arrays(*map(np.atleast_1d, (self.weight, self.mean, self.deviation)))
        factors = np.divide(weight, deviation, out=np.zeros(weight.shape), where=deviation > 0)
        out = np.empty(len(values))
        for start in range(0, len(values), BLOCK):
            rows = values[start : start + BLOCK].astype(np.float64)
            out[start : start + BLOCK] = (rows.reshape(len(rows), -1) - mean) @ factors
        return out


@_strict
@dataclass(frozen=True, kw_only=True)
class Weights:
    """A weights file: the terms by column, the bias, and how they were fitted."""

    terms: dict[str, Term]
    bias: float = 0.0
    fitted: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Mix(Derived):
    """Adds standardised columns: Σ weight (value - mean) / deviation + bias.

    With the weights of `tamis train mix` it is the log-odds that a pair belongs to the target rather than to the pool,
    if both were equally large. That is likeness to the target, not necessarily quality.

    Attributes:
        terms: {column of numbers: weight}. Mean and deviation are the pool's; `moments.npy` (terms, 2) has them.
        weights: instead of terms, a weights file. It has the means and deviations too, so they are the same for every
            pool. Its columns may be embeddings.

    Emits:
        mix: unbounded. NaN where a column has no finite value.

    Cost: reads the columns twice (with a file once); n d multiplications for an embedding. 4 bytes per row are stored.

    Source: Shechter and Carmon 2025 (FLYT, arXiv 2503.08805): M-FLYT is such a sum of 12 scores. Its weights were
        learned by training a CLIP; ours are set, or fitted to tell two sets apart.
    """

    name: ClassVar[str] = "mix"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("mix", "weighted sum", "high", about="weighted sum of standardised columns"),
    )
    lacking: ClassVar[str] = "a column of the mix has no value"
    terms: dict[str, float] | None = None
    weights: OptionalFileRef = None

    def __post_init__(self) -> None:
        if bool(self.terms) == (self.weights is not None):
            raise ValueError("mix takes either terms, such as {clip: 0.6, text_match: -0.4}, or weights: FILE")
        if any(not np.isfinite(weight) for weight in (self.terms or {}).values()):
            raise ValueError("the weights of mix must be finite numbers")

    def __hash__(self) -> int:  # a dict has none
        return hash((self.weights, *(self.terms or {}).items()))

    @cached_property
    def given(self) -> Weights:
        """The content of the file; RecipeError if it is not a weights file."""
        try:
            content = yaml.safe_load(read_text(str(self.weights)))
            weights: Weights = pydantic.TypeAdapter(Weights).validate_python(content)
        except (OSError, ValueError, yaml.YAMLError) as error:
            what, _, _ = first_line(error).partition(" For further information")  # pydantic's link
            raise RecipeError(f"mix: {self.weights} is not a weights file of `tamis train mix` ({what})") from error
        return weights

    @property
    def reads(self) -> frozenset[str]:
        return frozenset(self.given.terms if self.terms is None else self.terms)

    def compute(self, table: Table, saved: Saved) -> Mapping[str, NDArray[Any]]:
        if self.terms is None:
            weights, beside = self.given, {}
        else:
            pool = [_moments(table, name) for name in self.terms]
            means, deviations = [one.mean for one in pool], [one.deviation * (one.high > one.low) for one in pool]
            parts = zip(self.terms.items(), means, deviations, strict=True)
            weights = Weights(terms={name: Term(weight=w, mean=m, deviation=d) for (name, w), m, d in parts})
            beside = {"moments.npy": np.array([means, deviations]).T}
        for name, term in weights.terms.items():
            check_kind("mix", table, name, "vector" if isinstance(term.weight, tuple) else "number")
            models = {*(table.about(name).get("models") or {}).values()} if term.models else set()
            width = table.vectors(name, np.arange(min(len(table), 1))).size or np.size(term.weight)
            if width != np.size(term.weight) or (models and not models & {*term.models}):
                raise RecipeError(f"mix: {self.weights} was fitted on {name!r} of another model: use that one")
        out, seen = stored(len(table), np.float32), set[str]()

        def add(place: slice, columns: dict[str, Any]) -> tuple[slice, Float64s]:
            total = np.full(place.stop - place.start, weights.bias)
            for name, term in weights.terms.items():
                total += (part := term.of(as_numbers(columns[name])))
                seen.update([name] if np.isfinite(part).any() else [])
            return place, np.where(np.isfinite(total), total, np.nan)

        for place, some in table.map(sorted(weights.terms), add):
            out[place] = some
        for name in sorted(weights.terms.keys() - seen):
            raise RecipeError(f"mix: no row has a finite value of {name!r}")
        return {"mix": out, **beside}


def _moments(table: Table, name: str) -> Moments:
    check_kind("mix", table, name, "number")
    blocks = table.map([name], lambda _, columns: Moments.of(as_numbers(columns[name]).astype(np.float64)))
    return reduce(Moments.merge, blocks, Moments())
