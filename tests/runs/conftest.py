"""Fixtures of this folder: stores on this machine."""

from __future__ import annotations

from s3_fixtures import quick, read_models, s3, s3_server

__all__ = ["quick", "read_models", "s3", "s3_server"]
