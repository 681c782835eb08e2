"""What became of a shard: the report that a worker hands over, and the record of what went wrong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tamis.errors import RunError
from tamis.run.plan import Task
from tamis.storage import files, look, remove, write_json
from tamis.store.records import FailureFacts, read_checked

#: What reports call the waiting for samples: the shard's file, its store, and the threads that decode.
READING = "reading and decoding"


@dataclass(kw_only=True)
class ShardReport:
    """What became of a shard.

    Attributes:
        rows: samples read.
        statuses: how many rows have which status.
        seconds: time it took.
        read: whether the shard's file was read, to its end.
        cut: why the file could not be read to its end, though rows before that are kept.
        error: what went wrong; None where nothing did. Whatever could be made all the same is there.
        detail: the traceback of an error that we did not expect.
        elsewhere: nothing was done here: another process is at this shard, or has done it.
        took: seconds of each node, by name, and of waiting for samples that were read and decoded (`READING`).
        unreached: its store did not answer; asking it for the file's version would only cost the tries once more.
    """

    shard: str
    rows: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    read: bool = False
    cut: str | None = None
    error: str | None = None
    detail: str | None = None
    elsewhere: bool = False
    unreached: bool = False
    took: dict[str, float] = field(default_factory=dict)


def failure_path(run: Path, shard: str) -> Path:
    """Returns the file that says what is wrong with a shard, there or not."""
    return run / "failures" / f"{shard}.json"


def recorded(run: Path) -> dict[str, str]:
    """Returns the version of each recorded error, by shard."""
    found = {shard: look(failure_path(run, shard)) for shard in files(run / "failures", ".json")}
    return {shard: entry.tag for shard, entry in found.items() if entry is not None}


def error_of(run: Path, shard: str) -> str | None:
    """Returns what is wrong with a shard; None where nothing is, or is no more."""
    path = failure_path(run, shard)
    try:
        return str(read_checked(path, FailureFacts)["error"])
    except RunError:
        if path.is_file():
            raise
        return None


def still_lacking(run: Path, facts: Mapping[str, Any]) -> list[str]:
    """Returns the parts that were not made when an error was recorded, and are not there now.

    Parts of a folder that is gone are asked for by nobody.
    """
    parts = [run / name for name in facts.get("lacking") or ()]
    return [str(part.relative_to(run)) for part in parts if part.parent.is_dir() and not part.is_file()]


def record(run: Path, task: Task, report: ShardReport) -> None:
    """Brings the record of a shard up to date: written where something is wrong with it, removed where nothing is.

    An error of other parts, that another command met with, stays until these are made.
    """
    shard, path = task.shard, failure_path(run, report.shard)
    before = read_checked(path, FailureFacts) if path.exists() else {}
    if not report.read and report.cut is None:
        report.cut = before.get("cut")  # nobody has looked at the file's end since
        report.error = report.error or report.cut
    others = still_lacking(run, before)
    if report.error is None:
        if not others:
            remove(path)
        return
    lacking = [str(output.path(run, shard.name).relative_to(run)) for output in task.outputs]
    try:
        stamp = "" if report.unreached else shard.stamp()
    except Exception:  # the file may be gone, which the error says already
        stamp = ""
    facts = {
        "shard": shard.name,
        "url": shard.url,
        "error": report.error,
        "detail": report.detail,
        "cut": report.cut,
        "stamp": stamp,
        "rows": report.rows,
        "lacking": sorted({*others, *(name for name in lacking if not (run / name).is_file())}),
    }
    write_json(path, facts, durable=False)  # the next `tamis score` finds out again


def event(report: ShardReport) -> str:
    """Returns a report as a line of events.jsonl."""
    return json.dumps(
        {
            "event": "shard failed" if report.error else "shard done",
            "shard": report.shard,
            "rows": report.rows,
            "statuses": dict(report.statuses),
            "seconds": round(report.seconds, 3),
            "took": {name: round(seconds, 3) for name, seconds in report.took.items()},
            "error": report.error,
            "detail": report.detail,
        },
        ensure_ascii=False,
    )
