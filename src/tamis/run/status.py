"""Progress of a run, read from its files alone."""

from __future__ import annotations

import math
import os
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tamis.processes import NUMBERED_IN, alive
from tamis.run.progress import duration
from tamis.storage import files, location, seconds_between_writes
from tamis.store.checked import read_record
from tamis.store.run import Run

_NODES_SHOWN = 6
_STALE_SECONDS = 30.0  # a living command renews its status every second


def read_status(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the progress of a run.

    Raises:
        RunError: the folder is not a run.
    """
    run = Run(path)
    path = run.path
    commands = [read_record(file) for file in sorted(path.glob("status*.json"))]  # one for each rank
    running = [one for one in commands if one["state"] == "running" and not _is_dead(one, path)]
    latest = max(commands, key=lambda one: float(one["updated"]), default={})
    state = "running" if running else latest.get("state", "unknown")
    total = len(run.urls)
    if run.facts["pool"]["kind"] == "table":
        total = max(total, len(run.shards), latest.get("shards", {}).get("total", 0))
    pairs = [one["pairs"] for one in commands if one.get("pairs") and one["pairs"]["total"]]
    return {
        "run": str(path),
        "state": "died" if state == "running" and not running else state,
        "shards": {"total": total, "indexed": len(run.shards), "failed": len(run.failures)},
        "rows": len(run),
        "statuses": dict(run.statuses),
        "scores": {
            label: {"done": len(group.shards), "folder": group.folder.name} for label, group in run.scores.items()
        },
        "embeddings": {name: len(files(folder, ".npy")) for name, folder in run.embeddings.items()},
        "texts": {name: len(files(folder, ".parquet")) for name, folder in run.texts.items()},
        # Each rank counts what the others do as well.
        "pairs": dict(max(pairs, key=lambda counts: counts["done"])) if pairs else None,
        "took": _took(commands),
        "rate": sum(one.get("rate", 0.0) for one in running) if running else None,
        "eta_seconds": max((one.get("eta_seconds") or 0.0 for one in running), default=0.0) or None,
        "updated": latest.get("updated"),
        "failed": run.failures,
    }


def _took(commands: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns for each node, and for reading, its seconds and the pairs per second of one worker."""
    seconds: Counter[str] = Counter()
    for one in commands:
        seconds.update(one.get("took") or {})
    rows = sum(one.get("rows", 0) for one in commands if one.get("took"))
    return {
        name: {"seconds": round(spent, 3), "rate": round(rows / spent, 2) if spent > 0 and rows else None}
        for name, spent in seconds.most_common()
    }


def _is_dead(status: dict[str, Any], run: Path) -> bool:
    if status.get("host") == socket.gethostname() and status["numbered_in"] == NUMBERED_IN:
        return not alive(int(status["process"]))
    stale = _STALE_SECONDS + 3 * seconds_between_writes(run)
    return time.time() - float(status.get("updated", 0)) > stale


def render_status(status: dict[str, Any]) -> str:
    """Returns a status as lines for a terminal."""
    shards, pairs, seconds = status["shards"], status["pairs"], status["eta_seconds"]
    lines = [f"{status['run']}: {status['state']}"]
    if status["state"] == "died":
        lines[0] += " (the process is gone; run the same `tamis score` command again to continue)"
    lines.append(f"  index      {shards['indexed']}/{shards['total']} shards, {status['rows']:,} pairs")
    lines += [f"  {label:<10} {group['done']}/{shards['total']} shards" for label, group in status["scores"].items()]
    lines += [f"  {name} {n}/{shards['total']} shards" for name, n in (status["embeddings"] | status["texts"]).items()]
    if pairs and status["state"] != "done":
        share, about = math.floor(100 * pairs["done"] / pairs["total"]), "" if pairs["exact"] else "about "
        lines.append(f"  progress   {share} %, {pairs['done']:,} of {about}{pairs['total']:,} pairs")
    if status["rate"]:
        left = "" if seconds is None else f", {duration(seconds)} left"
        lines.append(f"  rate       {status['rate']:,.0f} pairs/s{left}")
    for number, (name, facts) in enumerate(list(status["took"].items())[:_NODES_SHOWN]):
        rate = f", {facts['rate']:,.1f} pairs/s of one worker" if facts["rate"] else ""
        lines.append(f"  {'then' if number else 'slowest':<10} {name}: {duration(facts['seconds'])}{rate}")
    bad = [f"{count:,} {name}" for name, count in sorted(status["statuses"].items()) if name != "ok"]
    lines += [f"  bad rows   {', '.join(bad)}"] if bad else []
    lines += [f"  failed     {name}: {error}" for name, error in status["failed"].items()]
    return "\n".join(lines)


def follow(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yields the status every 2 seconds (20 for a run at a URL) until the run ends, including its final state."""
    while True:
        status = read_status(path)
        yield status
        if status["state"] != "running":
            return
        time.sleep(max(2.0, seconds_between_writes(location(path))))
