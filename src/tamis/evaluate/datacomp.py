"""DataComp's 38 tasks: which they are, what counts of each, and how they are averaged.

The table lies beside this file. Source: `tasklist.yml`, `aggregate_scores.py` and `eval_utils/` of
mlfoundations/datacomp (Gadre et al. 2023, appendix on evaluation): 40 tasks are run there, two of which (FairFace,
UTKFace) have no score of their own and are not part of any average.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

#: Groups that are averaged, in the order of DataComp's tables; the average over all 38 comes last.
GROUPS = ("ImageNet", "ImageNet shifts", "VTAB", "Retrieval")

#: Tasks in DataComp's folders that have no score of their own.
WITHOUT_SCORE = ("fairface", "utkface")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One of the 38 tasks.

    Attributes:
        name: as DataComp's tables call it.
        key: as its task list does; "vtab/dtd" lies in `wds_vtab-dtd_test`.
        folders: names of folders that hold it, without `wds_` and `_test`: DataComp's own, and clip-benchmark's.
        size: images; of WinoGAViL instances.
        metric: the one that counts.
        group: one of `GROUPS`, or "" for a task that counts in the average over all only.
        fields: columns of the samples' `.npy` members; empty where they are not looked at.
        worst: metrics that are the accuracy of the worst group: name to the field that forms the groups. A name that
            begins with acc_top5 counts the five best classes.
    """

    name: str
    key: str
    folders: tuple[str, ...]
    size: int
    metric: str
    group: str
    fields: tuple[str, ...]
    worst: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Average:
    """The mean of some tasks' scores.

    Attributes:
        name: of the group. Where tasks are absent it says so: "VTAB: average of the 5 present of 13 tasks".
        value: the mean over the tasks that are present; None where none is.
        tasks: how many were averaged.
        absent: names of the tasks that are not here.
    """

    name: str
    value: float | None
    tasks: int
    absent: tuple[str, ...]


@lru_cache(maxsize=1)
def entries() -> tuple[Entry, ...]:
    """Returns the 38 tasks in the order of DataComp's list."""
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
    """Returns the entry of a task by the name of its folder (without `wds_` and `_test`), None for any other task."""
    return next((entry for entry in entries() if task in entry.folders), None)


def averages(scores: Mapping[str, float]) -> tuple[Average, ...]:
    """Averages scores as DataComp does, over each group and over all.

    A mean over some of a group's tasks is not a score of the group: it is given under a name that says how many there
    are, with the absent ones listed. DataComp gives no number then.

    Args:
        scores: the metric that counts, by DataComp's name; others are not looked at.
    """
    found = [_average(group, [entry.name for entry in entries() if entry.group == group], scores) for group in GROUPS]
    return (*found, _average("all 38", [entry.name for entry in entries()], scores))


def _average(name: str, tasks: list[str], scores: Mapping[str, float]) -> Average:
    present = [scores[task] for task in tasks if task in scores]
    absent = tuple(task for task in tasks if task not in scores)
    there = f"average of the {len(present)} present of" if present else "none here of"
    return Average(
        name=f"{name}: {there} {len(tasks)} {'tasks' if len(tasks) > 1 else 'task'}" if absent else name,
        value=sum(present) / len(present) if present else None,
        tasks=len(present),
        absent=absent,
    )


def _folder(key: str) -> str:
    """Returns what DataComp calls a task's folder, between `wds_` and `_test`."""
    kind, _, rest = key.partition("/")
    return rest if kind in ("fairness", "retrieval", "misc") else key.replace("/", "-")
