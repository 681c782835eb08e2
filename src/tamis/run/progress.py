"""Telling people how far a run is: live on a terminal, a plain line now and then elsewhere, files for other shells."""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskProgressColumn, TextColumn
from rich.text import Text

from tamis.errors import shown
from tamis.processes import NUMBERED_IN
from tamis.remote import redacted
from tamis.run.failures import ShardReport, event
from tamis.run.forecast import Forecast
from tamis.storage import Log, seconds_between_writes, write_json

log = logging.getLogger(__name__)

_LINE_SECONDS = 10.0  # how often a plain line is printed


class _Facts(ProgressColumn):
    """The words behind the bar."""

    def render(self, task: Task) -> Text:
        return Text(task.fields.get("facts", ""))


class Reporter:
    """Counts what is done and shows it. A context manager around a run."""

    def __init__(
        self,
        run: Path,
        *,
        shards: int,
        done: int,
        quiet: bool = False,
        suffix: str = "",
        forecast: Forecast | None = None,
        console: Console | None = None,
    ) -> None:
        """Args:
        run: the run folder.
        shards: shards of the pool.
        done: how many of them need nothing.
        quiet: shows nothing; files are written all the same.
        suffix: of status.json and events.jsonl, where several commands were started for one run.
        forecast: of the pairs; None: nobody has counted any.
        console: where to show; standard error by default.
        """
        self.run, self.shards, self.done, self.quiet = run, shards, done, quiet
        self.suffix = suffix
        self.forecast = forecast or Forecast()
        self.took: Counter[str] = Counter()
        self.failed: dict[str, str] = {}
        self.statuses: Counter[str] = Counter()
        self.rows = 0
        self.started = time.time()
        self.first_rows: float | None = None
        self._live: Progress | None = None
        self._console = console or Console(stderr=True)
        self._last_status = 0.0
        self._events = Log(run / f"events{suffix}.jsonl")
        self._last_line = time.time()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if not self.quiet and self._console.is_terminal and self.done < self.shards:
            self._live = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TaskProgressColumn(),
                _Facts(),
                console=self._console,
            )
            self._bar = self._live.add_task("scoring", total=None, facts="")
            self._live.start()
        self._write("running")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        state = "failed" if self.failed else "done"
        if error is not None:
            state = "interrupted" if isinstance(error, KeyboardInterrupt) else "stopped"
        try:
            self._write(state)
        except Exception as second:  # a full disk has been reported already
            log.debug("status.json could not be written: %s", second)

    def advance(self, shard: str, count: int) -> None:
        """Counts samples that are done."""
        self.rows += count
        self.forecast.advance(shard, count)
        if self.first_rows is None:
            # Loading models is not scoring: the rate counts from the end of the first batch.
            self.first_rows = time.time()
            self._rate_base = self.rows
        self._show()

    def finish(self, report: ShardReport) -> None:
        """Counts a shard that is through and writes it to events.jsonl, unless it was done elsewhere."""
        self.statuses += report.statuses
        self.took.update(report.took)
        self.forecast.finish(report.shard, report.rows, elsewhere=report.elsewhere)
        if report.error is None:
            self.done += 1
        else:
            self.failed[report.shard] = report.error
            if not self.quiet:
                # A Text, no string: names with brackets or colons in them would be taken for markup or emoji.
                line = Text.assemble((f"shard {shown(report.shard)}:", "red"), f" {shown(report.error)}")
                self._console.print(line, soft_wrap=self._live is None)
        if not report.elsewhere:
            self._events.append(event(report))
        self._show(force=self.done + len(self.failed) == self.shards)

    @property
    def rate(self) -> float:
        """Samples per second since the first batch; 0 while that is not known."""
        if self.first_rows is None:
            return 0.0
        seconds = time.time() - self.first_rows
        return (self.rows - self._rate_base) / seconds if seconds > 0.2 else 0.0

    @property
    def eta(self) -> float | None:
        """Seconds that are left, if pairs to come are like those that are done."""
        return self.forecast.seconds_left

    def facts(self) -> str:
        """Returns rate, time left and bad rows as a phrase."""
        total = self.forecast.total
        words = [f"{self.rows:,} pairs"]
        if self.eta != 0.0 and total:
            words = [f"{self.forecast.so_far:,} of {'' if self.forecast.exact else 'about '}{total:,} pairs"]
        if self.rate:
            words.append(f"{self.rate:,.0f} pairs/s")
        if self.eta is not None:
            words.append(f"{duration(self.eta)} left" if self.eta else f"in {duration(time.time() - self.started)}")
        bad = sum(count for status, count in self.statuses.items() if status != "ok")
        if bad:
            words.append(f"{bad:,} bad rows")
        if self.failed:
            words.append(f"{len(self.failed)} failed")
        if (name := slowest(self.took)) is not None:
            words.append(f"slowest: {name}")
        return " · ".join(words)

    def _show(self, force: bool = False) -> None:
        now = time.time()
        if self._live is not None:
            shards = f"{self.done + len(self.failed)}/{self.shards} shards"
            total = self.forecast.total if self.eta != 0.0 else self.forecast.so_far
            self._live.update(
                self._bar, total=total, completed=self.forecast.so_far, facts=f"{shards} · {self.facts()}"
            )
        elif not self.quiet and (force or now - self._last_line >= _LINE_SECONDS):
            self._last_line = now
            line = f"{self.done + len(self.failed)}/{self.shards} shards · {share_done(self.forecast)}{self.facts()}"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        if force or now - self._last_status >= seconds_between_writes(self.run):
            self._write("running")

    def _write(self, state: str) -> None:
        self._last_status = time.time()
        write_json(
            self.run / f"status{self.suffix}.json",
            {
                "state": state,
                "process": os.getpid(),
                "host": socket.gethostname(),
                "numbered_in": NUMBERED_IN,
                "started": self.started,
                "updated": time.time(),
                "shards": {"total": self.shards, "done": self.done, "failed": len(self.failed)},
                "rows": self.rows,
                "pairs": {"done": self.forecast.so_far, "total": self.forecast.total, "exact": self.forecast.exact},
                "took": {name: round(seconds, 3) for name, seconds in self.took.items()},
                "rate": round(self.rate, 2),
                "eta_seconds": None if self.eta is None else round(self.eta, 1),
                "statuses": dict(self.statuses),
                "failed": self.failed,
                "command": [redacted(argument) for argument in sys.argv],
            },
            durable=False,
        )
        if state != "running":
            self._events.flush()


def slowest(took: Mapping[str, float]) -> str | None:
    """Returns what took most of the time: a node's name, or `READING`; None where nothing is known yet."""
    return max(took, key=lambda name: took[name], default=None)


def share_done(forecast: Forecast) -> str:
    """Returns how much of all pairs is done, as a phrase to put before others; "" where that is not known."""
    total = forecast.total
    return f"{math.floor(100 * forecast.so_far / total)} % · " if total and forecast.seconds_left != 0.0 else ""


def duration(seconds: float) -> str:
    """Returns seconds as people say them: 42 s, 3 min 5 s, 2 h 10 min, 3 d 4 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"
