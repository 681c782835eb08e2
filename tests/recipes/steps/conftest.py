"""Makes `interpreter` importable."""

from __future__ import annotations
