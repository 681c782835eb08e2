"""What scorers, selectors and exporters promise, as checks that a package runs on its own, one line in a test each:

def test_it_keeps_its_promises():
    check_scorer(Shouting())

A broken promise is an AssertionError that says which values break it.
"""

from tamis.testing.exporters import check_exporter
from tamis.testing.scorers import check_scorer
from tamis.testing.selectors import check_selector

__all__ = ["check_exporter", "check_scorer", "check_selector"]
