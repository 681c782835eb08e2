"""Choosing rows by their scores: cheap, exact, repeatable. Nothing here runs a model."""

from tamis.selectors.outcome import Outcome, Selection, Step, StepCount
from tamis.selectors.steps import (
    SELECTORS,
    AllOf,
    AnyOf,
    AtLeast,
    AtMost,
    Between,
    Equals,
    NoneOf,
    RandomFraction,
    TopFraction,
    TopN,
    run_steps,
)

__all__ = [
    "SELECTORS",
    "AllOf",
    "AnyOf",
    "AtLeast",
    "AtMost",
    "Between",
    "Equals",
    "NoneOf",
    "Outcome",
    "RandomFraction",
    "Selection",
    "Step",
    "StepCount",
    "TopFraction",
    "TopN",
    "run_steps",
]
