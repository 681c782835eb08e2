"""Fixtures of this folder."""

from __future__ import annotations

from s3_fixtures import quick

__all__ = ["quick"]
