"""What scorers, selectors and exporters promise, as checks that a package runs on its own, one line in a test each:

def test_it_keeps_its_promises():
    check_scorer(Shouting())

A broken promise is an AssertionError that names it and shows the values. The promises also stand as tuples of
functions of one case, for whoever wants a test per promise.
"""

from tamis.testing.exporters import EXPORTER_PROMISES, ExporterCase, check_exporter, drawn_subsets
from tamis.testing.promises import Promise
from tamis.testing.scorers import SCORER_PROMISES, ScorerCase, check_scorer
from tamis.testing.selectors import SELECTOR_PROMISES, SelectorCase, check_selector

__all__ = [
    "EXPORTER_PROMISES",
    "SCORER_PROMISES",
    "SELECTOR_PROMISES",
    "ExporterCase",
    "Promise",
    "ScorerCase",
    "SelectorCase",
    "check_exporter",
    "check_scorer",
    "check_selector",
    "drawn_subsets",
]
