"""The run folder on disk: the only place that reads and writes it. Format: docs/data-format.md."""

from tamis.store.run import Run, ScoreSet, open_run

__all__ = ["Run", "ScoreSet", "open_run"]
