"""Reads and writes run folders, on disks or at URLs; `tamis.run` adds the status, events and failures.

Format: docs/data-format.md.
"""

from tamis.store.run import Run, ScoreSet, open_run

__all__ = ["Run", "ScoreSet", "open_run"]
