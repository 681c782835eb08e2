"""Checks of what signals, selectors and exporters promise, one line each in a test of your package:

def test_it_keeps_its_promises():
    check_signal(Shouting())

A broken promise is an AssertionError with the values.
"""

from tamis_lab.testing.checks import check_exporter, check_selector, check_signal

__all__ = ["check_exporter", "check_selector", "check_signal"]
