"""DataComp's 38 tasks (datacomp.csv), their metrics and averages.

Source: `tasklist.yml`, `aggregate_scores.py` and `eval_utils/` of mlfoundations/datacomp (Gadre et al. 2023, appendix
on evaluation). It runs 40 tasks, of which FairFace and UTKFace are in no average.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

#: Groups of tasks, in the order of DataComp's tables.
GROUPS = ("ImageNet", "ImageNet shifts", "VTAB", "Retrieval")

#: Tasks in DataComp's folders that have no score of their own.
WITHOUT_SCORE = ("fairface", "utkface")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One of the 38 tasks."""

    name: str  # in DataComp's tables
    key: str  # in its task list; "vtab/dtd" is in `wds_vtab-dtd_test`
    folders: tuple[str, ...]  # names without `wds_` and `_test`: DataComp's own, and clip-benchmark's
    size: int  # images; of WinoGAViL instances
    metric: str  # that counts
    group: str  # one of `GROUPS`, or "" for a task that counts in the average over all only
    fields: tuple[str, ...]  # columns of the samples' `.npy` members
    #: metrics of worst groups, to the field that forms the groups; acc_top5... counts the five best classes
    worst: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Average:
    """The mean of some tasks' scores."""

    name: str  # of the group; where tasks are absent "VTAB: average of the 5 present of 13 tasks"
    value: float | None  # over the tasks that are present; None if none is
    tasks: int  # that were averaged
    absent: tuple[str, ...]


@lru_cache(maxsize=1)
def entries() -> tuple[Entry, ...]:
    """The 38 tasks in the order of DataComp's list."""
    text = (files("tamis.evaluate") / "datacomp.csv").read_text(encoding="utf-8")
    return tuple(
        Entry(
            name=row["name"],
            key=row["key"],
            folders=(_folder(row["key"]), *row["also"].split()),
            size=int(row["size"]),
            metric=row["metric"],
            group=row["group"],
            fields=tuple(row["fields"].split()),
            worst=dict(one.split(":") for one in row["worst"].split()),
        )
        for row in csv.DictReader(text.splitlines())
    )


def entry_of(task: str) -> Entry | None:
    """The entry of a task by the name of its folder (without `wds_` and `_test`), None for any other task."""
    return next((entry for entry in entries() if task in entry.folders), None)


def averages(scores: Mapping[str, float]) -> tuple[Average, ...]:
    """Averages scores (the metric that counts, by DataComp's name) over each group and over all.

    If tasks are absent, the average's name says how many are present; DataComp reports no number in that case.
    """
    groups = [(group, [entry.name for entry in entries() if entry.group == group]) for group in GROUPS]
    return tuple(_average(name, tasks, scores) for name, tasks in (*groups, ("all 38", [e.name for e in entries()])))


def _average(name: str, tasks: list[str], scores: Mapping[str, float]) -> Average:
    present = [scores[task] for task in tasks if task in scores]
    absent = tuple(task for task in tasks if task not in scores)
    prefix = f"average of the {len(present)} present of" if present else "none present of"
    return Average(
        name=f"{name}: {prefix} {len(tasks)} {'tasks' if len(tasks) > 1 else 'task'}" if absent else name,
        value=sum(present) / len(present) if present else None,
        tasks=len(present),
        absent=absent,
    )


def _folder(key: str) -> str:
    """The name of a task's folder in DataComp, between `wds_` and `_test`."""
    kind, _, rest = key.partition("/")
    return rest if kind in ("fairness", "retrieval", "misc") else key.replace("/", "-")
