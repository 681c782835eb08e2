"""The report page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tamis.pool import Pool
from tamis.store import Run
from tamis.store.subset import Subset


def write_report(run: Run, subsets: Sequence[Subset], out: Path, pool: Pool | None) -> Path:
    raise SystemExit("pending")
