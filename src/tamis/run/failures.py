"""The report of a shard that a worker returns, and the record of an error in the run folder."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tamis.errors import RunError
from tamis.pool import Shard
from tamis.run.plan import Task
from tamis.storage import entry_of, files
from tamis.store.checked import read_record, write_record

log = logging.getLogger(__name__)

#: The name in `took` of the time spent waiting for samples to be read and decoded.
READING = "reading and decoding"


@dataclass(kw_only=True)
class ShardReport:
    """The result of working on a shard."""

    shard: str
    rows: int = 0  # samples read
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    read: bool = False  # the shard's file was read to its end
    cut: str | None = None  # why reading stopped early; earlier rows were kept
    error: str | None = None  # what went wrong; parts that it did not affect are written
    detail: str | None = None  # the traceback of an unexpected error
    elsewhere: bool = False  # another process has the shard, or finished it
    unreached: bool = False  # the store did not answer; do not ask it for the version
    took: dict[str, float] = field(default_factory=dict)  # seconds by node name, and `READING`
    left_out: Counter[str] = field(default_factory=Counter)  # files that are none of the pool's, by kind

    def event(self) -> str:
        """Returns the report as a line of events.jsonl."""
        facts = {
            "event": "shard failed" if self.error else "shard done",
            "shard": self.shard,
            "rows": self.rows,
            "statuses": dict(self.statuses),
            "seconds": round(self.seconds, 3),
            "took": {name: round(seconds, 3) for name, seconds in self.took.items()},
            "error": self.error,
            "detail": self.detail,
        }
        return json.dumps(facts, ensure_ascii=False)


def failure_path(run: Path, shard: str) -> Path:
    """Returns the path of a shard's error record, which need not exist."""
    return run / "failures" / f"{shard}.json"


def recorded(run: Path) -> dict[str, str]:
    """Returns {shard: version tag of its error file}, to notice new errors."""
    entries = {shard: entry_of(failure_path(run, shard)) for shard in files(run / "failures", ".json")}
    return {shard: entry.tag for shard, entry in entries.items() if entry is not None}


def error_of(run: Path, shard: str) -> str | None:
    """Returns the recorded error of a shard; None if it was removed."""
    path = failure_path(run, shard)
    try:
        return str(read_record(path)["error"])
    except RunError:
        if path.is_file():  # damaged
            raise
        return None


def still_lacking(run: Path, facts: Mapping[str, Any]) -> list[str]:
    """Returns the parts in an error record that are still missing. Parts in deleted folders do not count."""
    names: list[str] = facts.get("lacking") or []
    return [name for name in names if (run / name).parent.is_dir() and not (run / name).is_file()]


def cut_before(run: Path, shard: Shard) -> bool:
    """Whether a shard was cut when it was last read, and its file has changed since: its rows are to be read again."""
    path = failure_path(run, shard.name)
    facts = read_record(path) if path.is_file() else {}
    return bool(facts.get("cut")) and has_changed(shard, facts["stamp"])


def has_changed(shard: Shard, stamp: str) -> bool:
    """Whether a shard's file has another version now; a file that cannot be reached now may be the same."""
    try:
        return shard.stamp() not in ("", stamp)
    except Exception as error:  # a store may raise anything
        log.debug("%s cannot be reached: %s", shard.url, error)
        return False


def record(run: Path, task: Task, report: ShardReport) -> None:
    """Writes or removes the error record of a shard. Keeps an earlier command's error while its parts are missing."""
    shard, path = task.shard, failure_path(run, report.shard)
    before = read_record(path) if path.exists() else {}
    if not report.read and report.cut is None:
        report.cut = before.get("cut")  # still unread beyond the cut
        report.error = report.error or report.cut
    others = still_lacking(run, before)
    if report.error is None:
        if not others:
            path.unlink(missing_ok=True)
        return
    stamp = ""
    if not report.unreached:
        with suppress(Exception):  # the file may be gone, which the error already says
            stamp = shard.stamp()
    missing = [part for output in task.outputs if not (part := output.path(run, shard.name)).is_file()]
    facts = {
        "shard": shard.name,
        "url": shard.url,
        "error": report.error,
        "detail": report.detail,
        "cut": report.cut,
        "stamp": stamp,
        "rows": report.rows,
        "lacking": sorted({*others, *(str(part.relative_to(run)) for part in missing)}),
    }
    write_record(path, facts, durable=False)  # if it is lost, the next `tamis score` finds the error again
