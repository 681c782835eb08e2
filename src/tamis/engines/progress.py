"""Progress of a run: reports of shards, records of errors, one counter, status.json; what `tamis status` reads."""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.table import Column
from rich.text import Text

from tamis.core.errors import RunError, escape_controls, plural
from tamis.core.errors import duration as duration
from tamis.core.files.checked import read_record, write_record
from tamis.core.files.remote import redact
from tamis.core.files.storage import Log, entry_of, files, location, seconds_between_writes
from tamis.core.processes import NUMBERED_IN, alive
from tamis.core.types import Signal
from tamis.engines.plan import Task
from tamis.pools import Shard
from tamis.runs.run import Run
from tamis.signals.graph import topological

log = logging.getLogger(__name__)

_LINE_SECONDS = 10.0  # between two plain lines
_SHORTEST_SECONDS = 0.2  # before that, no rate is shown
_RENEW_SECONDS = 15.0  # most seconds between two writes of the status, also during a long batch
_STALE_SECONDS = 2 * _RENEW_SECONDS
_NODES_SHOWN = 6
_WORTH_SECONDS, _SIGNALS_SHOWN = 20.0, 4  # how long a run must be to be announced, and how many signals that names
_BAR = 10
_BEFORE_FACTS = len("* scoring ") + _BAR + len(" 100% ")  # columns of the live line before its words


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


def failure_tags(run: Path) -> dict[str, str]:
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


def list_lacking(run: Path, facts: Mapping[str, Any]) -> list[str]:
    """Returns the parts in an error record that are still missing. Parts in deleted folders do not count."""
    names: list[str] = facts.get("lacking") or []
    return [name for name in names if (run / name).parent.is_dir() and not (run / name).is_file()]


def was_cut(run: Path, shard: Shard) -> bool:
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
    others = list_lacking(run, before)
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


class Tally:
    """Counts shards and pairs, and estimates the time left."""

    def __init__(
        self,
        shards: int,
        done: int = 0,
        *,
        expected: Mapping[str, int | None],
        pairs_done: int = 0,
        failed: Mapping[str, str] | None = None,
    ) -> None:
        """`expected`: pairs of each shard to do, None if unknown; `pairs_done`: pairs of all other shards."""
        self.shards, self.done = shards, done  # in the pool; complete, also by earlier commands
        self.failed = dict(failed or {})  # the error of each failed shard
        self.rows = 0  # pairs that this command has scored
        self.statuses: Counter[str] = Counter()
        self.took: Counter[str] = Counter()  # seconds by node name
        self.judged: Counter[str] = Counter()  # pairs by node name
        self.left_out: Counter[str] = Counter()  # files that are none of the pool's, by kind
        self.started = time.time()
        self._pairs_done = pairs_done
        self._expected = dict(expected)  # unfinished shards only
        sizes = [pairs for pairs in expected.values() if pairs is not None]
        self._expected_pairs = sum(sizes)
        self._unknown = len(expected) - len(sizes)
        self._sample = (len(sizes), sum(sizes))  # shards of known size, and their pairs: for the mean
        self._current: dict[str, int] = {}  # pairs done in unfinished shards
        self._first: tuple[float, int, int] | None = None  # time, rows and pairs after the first batch

    def advance(self, shard: str, pairs: int) -> None:
        """Counts pairs of an unfinished shard."""
        self.rows += pairs
        self._current[shard] = self._current.get(shard, 0) + pairs
        if self._first is None:  # loading the models does not count for the rate
            self._first = (time.time(), self.rows, self.pairs)

    def finish(self, report: ShardReport) -> None:
        """Counts a finished or failed shard."""
        self.statuses += report.statuses
        self.left_out += report.left_out
        self.took.update(report.took)
        self.judged.update(dict.fromkeys(report.took, report.rows))
        if report.error is None:
            self.done += 1
        else:
            self.failed[report.shard] = report.error
        self._current.pop(report.shard, None)
        expected, pairs = self._expected.pop(report.shard, None), report.rows
        if report.elsewhere:
            pairs = round(self._mean or 0) if expected is None else expected
        elif expected is None:
            self._sample = (self._sample[0] + 1, self._sample[1] + pairs)
        self._pairs_done += pairs
        self._expected_pairs -= expected or 0
        if expected is None:
            self._unknown = max(0, self._unknown - 1)

    @property
    def pairs(self) -> int:
        """Pairs done, including those of unfinished shards."""
        return self._pairs_done + sum(self._current.values())

    @property
    def _mean(self) -> float | None:
        shards, pairs = self._sample
        return pairs / shards if shards else None

    @property
    def total(self) -> int | None:
        """Pairs of the whole pool; None while no shard's size is known."""
        mean = self._mean
        if self._unknown and mean is None:
            return None
        return max(self._pairs_done + self._expected_pairs + round(self._unknown * (mean or 0)), self.pairs)

    def _speeds(self) -> tuple[float, float]:
        """Returns rows and pairs per second since the first batch; zeros while that is too short."""
        if self._first is None or (seconds := time.time() - self._first[0]) <= _SHORTEST_SECONDS:
            return 0.0, 0.0
        return (self.rows - self._first[1]) / seconds, (self.pairs - self._first[2]) / seconds

    @property
    def rate(self) -> float:
        """Pairs per second that this command scores; 0 while unknown."""
        return self._speeds()[0]

    @property
    def seconds_left(self) -> float | None:
        """Seconds until all pairs are done, at the speed since the first batch; None while unknown."""
        if not self._expected:
            return 0.0
        total, speed = self.total, self._speeds()[1]
        return (total - self.pairs) / speed if speed and total is not None else None

    def line(self, width: int = 1000) -> str:
        """Shards, time left, errors, pairs and rate on one line: what fits into `width` characters, in this order."""
        total, left = self.total, self.seconds_left
        pairs = plural(self.rows, "pair")
        if left != 0.0 and total:
            pairs = f"{self.pairs:,} of {'about ' if self._unknown else ''}{plural(total, 'pair')}"
        words = [f"{self.done + len(self.failed)}/{self.shards} shards"]
        if left is not None:
            words.append(f"{duration(left)} left" if left else f"in {duration(time.time() - self.started)}")
        bad = sum(count for status, count in self.statuses.items() if status != "ok")
        words += [f"{len(self.failed)} failed"] if self.failed else []
        words += [pairs, *([f"{self.rate:,.0f} pairs/s"] if self.rate else [])]
        words += [f"{bad:,} bad rows"] if bad else []
        words += [f"slowest: {max(self.took, key=self.took.__getitem__)}"] if self.took else []
        while len(words) > 1 and len(" · ".join(words)) > width:
            words.pop()
        return " · ".join(words)

    def as_json(self) -> dict[str, Any]:
        """Returns the numbers for status.json."""
        left = self.seconds_left
        return {
            "started": self.started,
            "updated": time.time(),
            "shards": {"total": self.shards, "done": self.done, "failed": len(self.failed)},
            "rows": self.rows,
            "pairs": {"done": self.pairs, "total": self.total, "exact": not self._unknown},
            "took": {name: round(seconds, 3) for name, seconds in self.took.items()},
            "judged": dict(self.judged),
            "rate": round(self.rate, 2),
            "eta_seconds": None if left is None else round(left, 1),
            "statuses": dict(self.statuses),
            "failed": self.failed,
        }


class Reporter:
    """Shows a tally and writes status.json and events.jsonl. A context manager around the work."""

    def __init__(
        self, run: Path, tally: Tally, *, quiet: bool = False, suffix: str = "", console: Console | None = None
    ) -> None:
        """`suffix` ends the files' names if several commands do one run; `console` is stderr by default."""
        self.run, self.tally, self.quiet, self.suffix = run, tally, quiet, suffix
        self._console = console or Console(stderr=True)
        self._live: Progress | None = None
        self._status_at = 0.0
        self._events = Log(run / f"events{suffix}.jsonl")
        self._line_at = time.time()
        self._counting = threading.Lock()
        self._ended = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="tamis-status", daemon=True)

    def __enter__(self) -> Self:
        if not self.quiet and self._console.is_terminal and self.tally.done < self.tally.shards:
            bar = (TextColumn("scoring"), BarColumn(bar_width=_BAR), TaskProgressColumn())
            facts = TextColumn("{task.fields[facts]}", markup=False, table_column=Column(no_wrap=True))
            self._live = Progress(SpinnerColumn(), *bar, facts, console=self._console)
            self._live.add_task("scoring", total=None, facts="")
            self._live.start()
        self._write("running")
        self._renewal.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._ended.set()
        self._renewal.join()
        if self._live is not None:
            self._live.stop()
        state = "failed" if self.tally.failed else "done"
        if error is not None:
            state = "interrupted" if isinstance(error, KeyboardInterrupt) else "stopped"
        try:
            self._write(state)
        except Exception as second:  # a full disk has been reported already
            log.debug("status.json could not be written: %s", second)

    def say(self, text: str) -> None:
        """Prints a line, if there is one, unless `quiet`."""
        if text and not self.quiet:
            self._console.print(Text(escape_controls(text)), soft_wrap=True)

    def advance(self, shard: str, count: int) -> None:
        """Counts pairs that are done; called from any thread."""
        with self._counting:
            self.tally.advance(shard, count)
            self._show()

    def finish(self, report: ShardReport) -> None:
        """Counts a shard, and writes it to events.jsonl unless another command did it."""
        with self._counting:
            self.tally.finish(report)
            if report.error is not None and not self.quiet:
                # A Text: in a string, brackets and colons of file names would count as markup or emoji.
                line = Text.assemble(
                    (f"shard {escape_controls(report.shard)} failed:", "red"), f" {escape_controls(report.error)}"
                )
                self._console.print(line, soft_wrap=self._live is None)
            if not report.elsewhere:
                self._events.append(report.event())
            self._show(force=self.tally.done + len(self.tally.failed) == self.tally.shards)

    def _show(self, force: bool = False) -> None:
        now, tally = time.time(), self.tally
        total, unfinished = tally.total, tally.seconds_left != 0.0
        if self._live is not None:
            total = total if unfinished else tally.pairs
            facts = tally.line(self._console.width - _BEFORE_FACTS)
            self._live.update(self._live.task_ids[0], total=total, completed=tally.pairs, facts=facts)
        elif not self.quiet and (force or now - self._line_at >= _LINE_SECONDS):
            self._line_at = now
            share = f"{math.floor(100 * tally.pairs / total)} % · " if total and unfinished else ""
            self._console.print(f"{share}{tally.line()}", highlight=False, markup=False, soft_wrap=True)
        if force or now - self._status_at >= seconds_between_writes(self.run):
            self._write("running")

    def _renew(self) -> None:
        """Updates the status so that other machines see that this command is alive."""
        while not self._ended.wait(_RENEW_SECONDS):
            with self._counting:
                try:
                    if time.time() - self._status_at >= _RENEW_SECONDS:
                        self._write("running")
                except (OSError, RunError) as error:
                    log.debug("status.json could not be renewed: %s", error)

    def _write(self, state: str) -> None:
        self._status_at = time.time()
        facts = {
            "state": state,
            "process": os.getpid(),
            "host": socket.gethostname(),
            "numbered_in": NUMBERED_IN,
            **self.tally.as_json(),
            "command": [redact(argument) for argument in sys.argv],
        }
        write_record(self.run / f"status{self.suffix}.json", facts, durable=False)
        if state != "running":
            self._events.flush()


def announcement(pairs: str, signals: Sequence[tuple[str, Signal]], took: Mapping[str, float]) -> str:
    """Returns what a run will cost, and what to leave out to make it short; "" if it is short.

    `took`: the seconds of reading and of each node; what several signals need counts for each in equal parts.
    """
    needs = {label: {node.name for node in topological([signal])} for label, signal in signals}
    users = {name: frozenset(label for label in needs if name in needs[label]) for name in took}

    def total(without: Collection[str]) -> float:
        return sum(one for name, one in took.items() if not users[name] or users[name].difference(without))

    whole = total(())
    if whole < _WORTH_SECONDS:
        return ""
    costs = {label: sum(took[name] / len(users[name]) for name in took if label in users[name]) for label in needs}
    costs["reading"] = sum(took[name] for name in took if not users[name])
    slowest = sorted((label for label in costs if costs[label] >= 1), key=lambda label: -costs[label])[:_SIGNALS_SHOWN]
    text = f"about {duration(whole)} for {pairs} pairs: "
    text += ", ".join(f"{label} {duration(costs[label])}" for label in slowest)
    # The slow one may be a feature: then all signals that need it must go.
    sets = [some for some in users.values() if 0 < len(some) < len(needs) and total(some) <= whole / 2]
    if sets:
        least = min(sets, key=lambda some: (len(some), total(some)))
        what, it = " and ".join(sorted(least)), "it" if len(least) == 1 else "them"
        text += f". Without {what} it takes {duration(total(least))}; the same command adds {it} later"
    return text


def read_status(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the progress of a run, from its files alone. Raises RunError if the folder is not a run."""
    run = Run(path)
    path = run.path
    commands = [read_record(file) for file in sorted(path.glob("status*.json"))]  # one for each rank
    running = [command for command in commands if command["state"] == "running" and not _is_dead(command, path)]
    latest = max(commands, key=lambda command: float(command["updated"]), default={})
    state = "running" if running else latest.get("state", "unknown")
    total = len(run.urls)
    if run.facts["pool"]["kind"] == "table":
        total = max(total, len(run.shards), latest.get("shards", {}).get("total", 0))
    pairs = [command["pairs"] for command in commands if command["pairs"]["total"]]
    return {
        "run": str(path),
        "state": "died" if state == "running" and not running else state,
        "shards": {"total": total, "indexed": len(run.shards), "failed": len(run.failures)},
        "rows": len(run),
        "statuses": dict(run.statuses),
        "scores": {
            label: {"done": len(group.shards), "folder": group.folder.name, "requested": group.requested}
            for label, group in run.scores.items()
        },
        "embeddings": {name: len(files(folder, ".npy")) for name, folder in run.embeddings.items()},
        "texts": {name: len(files(folder, ".parquet")) for name, folder in run.texts.items()},
        # Each rank also counts what others do.
        "pairs": dict(max(pairs, key=lambda counts: counts["done"])) if pairs else None,
        "took": _took(commands),
        "rate": sum(command["rate"] for command in running) if running else None,
        "eta_seconds": max((command["eta_seconds"] or 0.0 for command in running), default=0.0) or None,
        "updated": latest.get("updated"),
        "failed": run.failures,
    }


def _took(commands: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns for each node, and for reading, its seconds and the pairs per second of one worker."""
    seconds, rows = Counter[str](), Counter[str]()
    for command in commands:
        seconds.update(command["took"])
        rows.update(command["judged"])
    return {
        name: {"seconds": round(spent, 3), "rate": round(rows[name] / spent, 2) if spent > 0 and rows[name] else None}
        for name, spent in seconds.most_common()
    }


def _is_dead(status: Mapping[str, Any], run: Path) -> bool:
    if status["host"] == socket.gethostname() and status["numbered_in"] == NUMBERED_IN:
        return not alive(int(status["process"]))
    return time.time() - float(status["updated"]) > _STALE_SECONDS + 3 * seconds_between_writes(run)


def render_status(status: Mapping[str, Any]) -> str:
    """Returns a status as lines for a terminal."""
    shards, pairs, seconds = status["shards"], status["pairs"], status["eta_seconds"]
    lines = [f"{status['run']}: {status['state']}"]
    if status["state"] == "died":
        lines[0] += " (the process is gone; run the same `tamis score` command again to continue)"
    lines.append(f"  index      {shards['indexed']}/{shards['total']} shards, {plural(status['rows'], 'pair')}")
    for label, group in status["scores"].items():
        some = "" if group["requested"] is None else f", {plural(group['requested'], 'pair')} requested"
        lines.append(f"  {label:<10} {group['done']}/{shards['total']} shards{some}")
    lines += [f"  {name} {n}/{shards['total']} shards" for name, n in (status["embeddings"] | status["texts"]).items()]
    if pairs and status["state"] != "done":
        share, about = math.floor(100 * pairs["done"] / pairs["total"]), "" if pairs["exact"] else "about "
        lines.append(f"  progress   {share} %, {pairs['done']:,} of {about}{plural(pairs['total'], 'pair')}")
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
