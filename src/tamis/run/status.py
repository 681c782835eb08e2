"""How far a run is, from its files alone."""

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
from tamis.store.records import StatusFacts, read_checked
from tamis.store.run import Run

_NODES_SHOWN = 6

_STALE_SECONDS = 30.0  # a run that lives renews its status every second


def read_status(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns what a run folder says of its progress.

    Raises:
        RunError: the folder is not a run.
    """
    run = Run(path)
    path = run.path
    told = [read_checked(file, StatusFacts) for file in sorted(path.glob("status*.json"))]  # each rank has its own
    running = [one for one in told if one["state"] == "running" and not _is_dead(one, path)]
    live = max(told, key=lambda one: float(one["updated"]), default={})
    state = "running" if running else live.get("state", "unknown")
    if state == "running" and not running:
        state = "died"
    total = len(run.urls)
    if run.facts["pool"]["kind"] == "table":
        total = max(total, len(run.shards), live.get("shards", {}).get("total", 0))
    return {
        "run": str(path),
        "state": state,
        "shards": {"total": total, "indexed": len(run.shards), "failed": len(run.failures)},
        "rows": len(run),
        "statuses": dict(run.statuses),
        "scores": {
            label: {"done": len(group.shards), "folder": group.folder.name} for label, group in run.scores.items()
        },
        "embeddings": {name: len(files(folder, ".npy")) for name, folder in run.embeddings.items()},
        "texts": {name: len(files(folder, ".parquet")) for name, folder in run.texts.items()},
        "pairs": _pairs(told),
        "took": _took(told),
        "rate": sum(one.get("rate", 0.0) for one in running) if running else None,
        "eta_seconds": max((one.get("eta_seconds") or 0.0 for one in running), default=0.0) or None,
        "updated": live.get("updated"),
        "failed": run.failures,
    }


def _pairs(told: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Returns how many pairs are done and how many there are: each rank counts what the others do as well."""
    known = [one["pairs"] for one in told if one.get("pairs") and one["pairs"]["total"]]
    return dict(max(known, key=lambda pairs: pairs["done"])) if known else None


def _took(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns of each node, and of reading, the seconds it took, and pairs per second of one worker."""
    seconds: Counter[str] = Counter()
    for one in told:
        seconds.update(one.get("took") or {})
    rows = sum(one.get("rows", 0) for one in told if one.get("took"))
    return {
        name: {"seconds": round(spent, 3), "rate": round(rows / spent, 2) if spent > 0 and rows else None}
        for name, spent in seconds.most_common()
    }


def _is_dead(live: dict[str, Any], run: Path) -> bool:
    here = live.get("host") == socket.gethostname()
    if here and live["numbered_in"] == NUMBERED_IN:
        return not alive(int(live["process"]))
    stale = _STALE_SECONDS + 3 * seconds_between_writes(run)
    return time.time() - float(live.get("updated", 0)) > stale


def render_status(found: dict[str, Any]) -> str:
    """Returns a status as lines for a terminal."""
    shards = found["shards"]
    lines = [f"{found['run']}: {found['state']}"]
    if found["state"] == "died":
        lines[0] += " (the process is gone; the same `tamis score` command goes on where it stopped)"
    lines.append(f"  index      {shards['indexed']}/{shards['total']} shards, {found['rows']:,} pairs")
    for label, group in found["scores"].items():
        lines.append(f"  {label:<10} {group['done']}/{shards['total']} shards")
    for name, done in (found["embeddings"] | found["texts"]).items():
        lines.append(f"  {name} {done}/{shards['total']} shards")
    pairs = found["pairs"]
    if pairs and found["state"] != "done":
        about = "" if pairs["exact"] else "about "
        share = math.floor(100 * pairs["done"] / pairs["total"])
        lines.append(f"  progress   {share} %, {pairs['done']:,} of {about}{pairs['total']:,} pairs")
    if found["rate"]:
        left = "" if found["eta_seconds"] is None else f", {duration(found['eta_seconds'])} left"
        lines.append(f"  rate       {found['rate']:,.0f} pairs/s{left}")
    for number, (name, facts) in enumerate(list(found["took"].items())[:_NODES_SHOWN]):
        head = "slowest" if not number else "then"
        rate = f", {facts['rate']:,.1f} pairs/s of one worker" if facts["rate"] else ""
        lines.append(f"  {head:<10} {name}: {duration(facts['seconds'])}{rate}")
    bad = {status: count for status, count in found["statuses"].items() if status != "ok"}
    if bad:
        lines.append(f"  bad rows   {', '.join(f'{count:,} {status}' for status, count in sorted(bad.items()))}")
    for name, error in found["failed"].items():
        lines.append(f"  failed     {name}: {error}")
    return "\n".join(lines)


def follow(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yields a run's status every 2 seconds (of a run at a URL 20) until the run ends, its last state included."""
    nap = max(2.0, seconds_between_writes(location(path)))
    while True:
        found = read_status(path)
        yield found
        if found["state"] != "running":
            return
        time.sleep(nap)
