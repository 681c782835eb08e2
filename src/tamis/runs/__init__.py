"""Reads and writes run folders, on disks or at URLs; `tamis.engines` adds the status, events and failures.

Format: docs/data-format.md.
"""

from tamis.runs.run import Run, ScoreSet, open_run

__all__ = ["Run", "ScoreSet", "open_run"]
