"""Telling people how far a run is: live on a terminal, a plain line now and then elsewhere, files for other shells."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from tamis.errors import shown
from tamis.pool.remote import redacted
from tamis.run.failures import ShardReport, event
from tamis.store.atomic import explained, write_json

log = logging.getLogger(__name__)

_STATUS_SECONDS = 1.0  # how often status.json is renewed
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
        console: Console | None = None,
    ) -> None:
        """Args:
        run: the run folder.
        shards: shards of the pool.
        done: how many of them need nothing.
        quiet: shows nothing; files are written all the same.
        suffix: of status.json and events.jsonl, where several commands were started for one run.
        console: where to show; standard error by default.
        """
        self.run, self.shards, self.done, self.quiet = run, shards, done, quiet
        self.suffix = suffix
        self.failed: dict[str, str] = {}
        self.statuses: Counter[str] = Counter()
        self.rows = 0
        self.rows_of_done = 0
        self.done_now = 0
        self.started = time.time()
        self.first_rows: float | None = None
        self._live: Progress | None = None
        self._console = console or Console(stderr=True)
        self._last_status = 0.0
        self._last_line = time.time()
        self._bar: Any = None

    def __enter__(self) -> Self:
        if not self.quiet and self._console.is_terminal and self.done < self.shards:
            self._live = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                MofNCompleteColumn(),
                TextColumn("shards"),
                _Facts(),
                console=self._console,
            )
            self._bar = self._live.add_task("scoring", total=self.shards, completed=self.done, facts="")
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
        if self.first_rows is None:
            # Loading models is not scoring: the rate counts from the end of the first batch.
            self.first_rows = time.time()
            self._rate_base = self.rows
        self._show()

    def finish(self, report: ShardReport) -> None:
        """Counts a shard that is through and writes it to events.jsonl, unless it was done elsewhere."""
        self.statuses += report.statuses
        if report.error is None:
            self.done += 1
            self.done_now += not report.elsewhere
            self.rows_of_done += report.rows
        else:
            self.failed[report.shard] = report.error
            if not self.quiet:
                # A Text, no string: names with brackets or colons in them would be taken for markup or emoji.
                line = Text.assemble((f"shard {shown(report.shard)}:", "red"), f" {shown(report.error)}")
                self._console.print(line, soft_wrap=self._live is None)
        if not report.elsewhere:
            path = self.run / f"events{self.suffix}.jsonl"
            with explained(path), open(path, "a", encoding="utf-8") as events:
                events.write(event(report) + "\n")
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
        """Seconds that are left, if shards to come are like those that are done."""
        left = self.shards - self.done - len(self.failed)
        if left == 0:
            return 0.0
        if not self.rate or not self.done_now:
            return None
        per_shard = self.rows_of_done / self.done_now
        return max(0.0, (left * per_shard - max(0.0, self.rows - self.rows_of_done)) / self.rate)

    def facts(self) -> str:
        """Returns rate, time left and bad rows as a phrase."""
        words = [f"{self.rows:,} pairs"]
        if self.rate:
            words.append(f"{self.rate:,.0f} pairs/s")
        if self.eta is not None:
            words.append(f"{duration(self.eta)} left" if self.eta else f"in {duration(time.time() - self.started)}")
        bad = sum(count for status, count in self.statuses.items() if status != "ok")
        if bad:
            words.append(f"{bad:,} bad rows")
        if self.failed:
            words.append(f"{len(self.failed)} failed")
        return " · ".join(words)

    def _show(self, force: bool = False) -> None:
        now = time.time()
        if self._live is not None:
            self._live.update(self._bar, completed=self.done + len(self.failed), facts=self.facts())
        elif not self.quiet and (force or now - self._last_line >= _LINE_SECONDS):
            self._last_line = now
            line = f"{self.done + len(self.failed)}/{self.shards} shards · {self.facts()}"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)
        if force or now - self._last_status >= _STATUS_SECONDS:
            self._write("running")

    def _write(self, state: str) -> None:
        self._last_status = time.time()
        write_json(
            self.run / f"status{self.suffix}.json",
            {
                "state": state,
                "process": os.getpid(),
                "host": socket.gethostname(),
                "started": self.started,
                "updated": time.time(),
                "shards": {"total": self.shards, "done": self.done, "failed": len(self.failed)},
                "rows": self.rows,
                "rate": round(self.rate, 2),
                "eta_seconds": None if self.eta is None else round(self.eta, 1),
                "statuses": dict(self.statuses),
                "failed": self.failed,
                "command": [redacted(argument) for argument in sys.argv],
            },
        )


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
