"""The version of Tamis."""

__version__ = "0.1.0"
