"""Choosing rows by their scores: cheap, exact, repeatable. Nothing here runs a model."""

from tamis.selectors.clipcov import ClipCov
from tamis.selectors.distinct import Distinct
from tamis.selectors.image_based import ImageBased
from tamis.selectors.outcome import Outcome, Selection, Step, StepCount, run_steps
from tamis.selectors.semdedup import SemDeDup
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
)

__all__ = [
    "SELECTORS",
    "AllOf",
    "AnyOf",
    "AtLeast",
    "AtMost",
    "Between",
    "ClipCov",
    "Distinct",
    "Equals",
    "ImageBased",
    "NoneOf",
    "Outcome",
    "RandomFraction",
    "Selection",
    "SemDeDup",
    "Step",
    "StepCount",
    "TopFraction",
    "TopN",
    "run_steps",
]
