"""Checks of what scorers, selectors and exporters promise, one line each in a test of your package:

def test_it_keeps_its_promises():
    check_scorer(Shouting())

A broken promise is an AssertionError with the values.
"""

from tamis.testing.exporters import check_exporter
from tamis.testing.scorers import check_scorer
from tamis.testing.selectors import check_selector

__all__ = ["check_exporter", "check_scorer", "check_selector"]
