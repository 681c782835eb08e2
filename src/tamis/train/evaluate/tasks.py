"""Reads zero-shot tasks from disk; DataComp's 38 tasks (datacomp.csv) with their metrics and averages.

Layouts:

- WebDataset as clip-benchmark writes and reads it: `classnames.txt`, `zeroshot_classification_templates.txt` ("{c}"
  stands for the class name), `test/nshards.txt`, and `test/0.tar ...` with an image and a `.cls` per sample. If
  `dataset_type.txt` says "retrieval", a `.txt` with one caption per line replaces the `.cls`. A `.npy` holds metadata
  for scores by group.
- A folder of images per class, named like the class.
- Images, each with a `.txt` of the same name that has one caption per line.
- Tables of Hugging Face `datasets` (`.arrow`, `.parquet`), as DataComp's download leaves them: `image` and `caption`
  for retrieval; `candidates`, `candidate_images`, `cue` and `associations` for WinoGAViL.

We do not read them with the library `datasets`: it stops at a sample that lacks a member, and decodes images, while we
want the bytes.

Source: `clip_benchmark/datasets/builder.py` of LAION-AI/CLIP_benchmark, `download_evalsets.py` and `eval_utils/` of
mlfoundations/datacomp.
"""

from __future__ import annotations

import csv
import io
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tamis.core.arrays import load_array
from tamis.core.errors import PoolError, RecipeError, unknown_message
from tamis.core.files.find import stamp
from tamis.core.ids import fingerprint
from tamis.core.types import Sample
from tamis.pools.rows import column_kinds, open_error, table_rows
from tamis.pools.source import PoolSpec
from tamis.pools.tar import TarShard

Kind = Literal["classification", "retrieval", "association"]

#: A folder of tasks; or a function that makes it within a folder of results, when the request has been checked.
Tasks = str | os.PathLike[str] | Callable[[Path], Path]

#: Extensions of images. A sample with several uses the first of them, as in clip-benchmark.
IMAGES = ("webp", "png", "jpg", "jpeg")

#: Template for class folders without templates.
DEFAULT_TEMPLATE = "a photo of a {c}."

CLASS_NAMES = "classnames.txt"
TEMPLATES = "zeroshot_classification_templates.txt"
TYPE = "dataset_type.txt"

#: Our own file for tasks that are not DataComp's: column names of the samples' `.npy`, one per line.
FIELDS = "metadata_fields.txt"

_TABLES = (".arrow", ".parquet")
_METRICS: Mapping[Kind, str] = {
    "classification": "acc1",
    "retrieval": "mean_recall@1",
    "association": "avg_jaccard_score",
}
_NO_TASK = (
    "no task: expected WebDataset ({split}/*.tar and {split}/nshards.txt), a folder of images for each class, images "
    "with a .txt of captions each, or tables (.arrow, .parquet) with image and caption"
)

#: Task groups in the order of DataComp's tables.
GROUPS = ("ImageNet", "ImageNet shifts", "VTAB", "Retrieval")

#: DataComp downloads these tasks but computes no score for them.
WITHOUT_SCORE = ("fairface", "utkface")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A DataComp task."""

    name: str  # in DataComp's tables
    folders: tuple[str, ...]  # folder names without `wds_` and `_test`: DataComp's, then clip-benchmark's
    size: int  # number of images, for WinoGAViL of instances
    metric: str  # the metric that counts
    group: str  # a name in `GROUPS`, or "" if the task counts only in the average over all
    fields: tuple[str, ...]  # column names of the samples' `.npy` members
    worst: Mapping[str, str]  # {metric of the worst group: field to group by}; acc_top5... counts the five best classes


@dataclass(frozen=True, kw_only=True)
class Average:
    """The mean of some tasks' scores."""

    name: str  # the group's; if tasks are absent, as in "VTAB: average of the 5 present of 13 tasks"
    value: float | None  # None if all tasks are absent
    tasks: int  # number of tasks that were averaged
    absent: tuple[str, ...]  # names of the other tasks


@lru_cache(maxsize=1)
def entries() -> tuple[Entry, ...]:
    """The 38 tasks in the order of DataComp's list."""
    text = (package_files("tamis.train.evaluate") / "datacomp.csv").read_text(encoding="utf-8")
    found = []
    for row in csv.DictReader(text.splitlines()):
        kind, _, rest = row["key"].partition("/")
        folder = rest if kind in ("fairness", "retrieval", "misc") else row["key"].replace("/", "-")
        found.append(
            Entry(
                name=row["name"], folders=(folder, *row["also"].split()), size=int(row["size"]), metric=row["metric"],
                group=row["group"], fields=tuple(row["fields"].split()),
                worst=dict(one.split(":") for one in row["worst"].split()),
            )
        )  # fmt: skip
    return tuple(found)


def entry_of(task: str) -> Entry | None:
    """Returns the entry for a folder name (without `wds_` and `_test`), None for any other task."""
    return next((entry for entry in entries() if task in entry.folders), None)


def averages(scores: Mapping[str, float]) -> tuple[Average, ...]:
    """Averages scores, {DataComp's name: score}, over each group and over all.

    If tasks are absent, the average's name says how many are present. DataComp reports no number in that case.
    """
    groups = [(group, [entry.name for entry in entries() if entry.group == group]) for group in GROUPS]
    found = []
    for name, tasks in (*groups, ("all 38", [entry.name for entry in entries()])):
        present = [scores[task] for task in tasks if task in scores]
        absent = tuple(task for task in tasks if task not in scores)
        if absent:
            prefix = f"average of the {len(present)} present of" if present else "none present of"
            name = f"{name}: {prefix} {len(tasks)} {'tasks' if len(tasks) > 1 else 'task'}"
        value = sum(present) / len(present) if present else None
        found.append(Average(name=name, value=value, tasks=len(present), absent=absent))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskImage:
    """An image of a task."""

    key: str  # for messages
    image: bytes | None
    problem: str = ""  # why it cannot be used, if known before decoding
    label: int = 0  # number of its class; in association tasks of its instance
    captions: tuple[str, ...] = ()  # retrieval: its captions; association: the instance's cue
    right: bool = False  # association: whether it belongs to the cue
    groups: tuple[int, ...] = ()  # classification: values of the task's `fields`


@dataclass(frozen=True, kw_only=True)
class ZeroShotTask:
    """A task on disk."""

    name: str  # folder name without `wds_` and `_test`
    kind: Kind
    folder: Path
    files: tuple[Path, ...] = field(repr=False)  # files with its images and captions
    images: Callable[[], Iterator[TaskImage]] = field(repr=False)  # yields every image, in the order of the files
    classes: tuple[str, ...] = ()  # class names by number
    templates: tuple[str, ...] = ()  # sentences; {c} stands for the class name
    fields: tuple[str, ...] = ()  # column names of the metadata

    @cached_property
    def entry(self) -> Entry | None:
        """The task in DataComp's table; None for another task."""
        return entry_of(self.name)

    @property
    def worst(self) -> Mapping[str, str]:
        """Metrics of the worst group: {metric: field to group by}."""
        if self.entry is not None:
            return self.entry.worst
        return {f"acc_worst_{one}": one for one in self.fields}

    @property
    def metric(self) -> str:
        """The metric that counts."""
        return self.entry.metric if self.entry is not None else _METRICS[self.kind]

    @cached_property
    def digest(self) -> str:
        """Hash of names, templates, and each file's size and time, but not of the images."""
        listed = [[str(file.relative_to(self.folder)), stamp(str(file))] for file in self.files]
        settings = {"kind": self.kind, "classes": self.classes, "templates": self.templates, "fields": self.fields}
        return fingerprint({**settings, "files": listed})


def find_tasks(
    path: str | os.PathLike[str], *, split: str = "test", only: Sequence[str] = ()
) -> tuple[list[ZeroShotTask], dict[str, str]]:
    """Finds tasks: the folder itself, or the folders in it.

    Args:
        path: a task's folder, or a folder of tasks. There it also looks in `hf_cache`, where DataComp puts tables.
        split: name of the split: a folder in WebDataset tasks and class folders, and in the names of tables.
        only: names of the tasks to return; empty for all.

    Returns:
        The tasks, sorted by name; and {folder that is no task: reason}.

    Raises:
        PoolError: there is no such folder, it holds no task, or a task is incomplete.
        RecipeError: a name in `only` is not a task here.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise PoolError(f"no tasks at {str(path)!r}: there is no such folder")
    whole = read_task(folder, split=split)
    tasks: dict[str, ZeroShotTask] = {whole.name: whole} if whole is not None else {}
    others: dict[str, str] = {}
    for inner in () if tasks else _task_folders(folder):
        name = task_name(inner.name, split)
        if name in WITHOUT_SCORE:
            others[inner.name] = "DataComp runs it without a score of its own"
            continue
        task = read_task(inner, split=split)
        if task is None:
            others[inner.name] = _NO_TASK.format(split=split)
        elif name in tasks:
            raise PoolError(f"{inner} and {tasks[name].folder} both hold the task {name}: keep only one here")
        else:
            tasks[name] = task
    if not tasks:
        raise PoolError(f"{str(path)!r} and its folders hold {_NO_TASK.format(split=split)}")
    for name in only:
        if name not in tasks:
            raise RecipeError(unknown_message("task", name, tasks))
    return [tasks[name] for name in sorted(tasks) if not only or name in only], others


def task_name(folder: str, split: str = "test") -> str:
    """Returns a folder's task name: vtab-dtd for wds_vtab-dtd_test, winogavil for nlphuji___winogavil."""
    return folder.rpartition("___")[2].removeprefix("wds_").removesuffix(f"_{split}")


def read_task(folder: Path, *, split: str = "test") -> ZeroShotTask | None:
    """Reads the task in a folder; None for an unknown layout."""
    inner, name = folder / split, task_name(folder.name, split)
    if (inner / "nshards.txt").is_file() or any(inner.glob("*.tar")):
        return _wds_task(folder, split)
    if folder.name.startswith("wds_") or (folder / TYPE).is_file():
        raise PoolError(f"{folder} has no {split}/nshards.txt and no tars in {split}/")
    if tables := _tables(folder, split):
        return _table_task(folder, name, tables)
    base = inner if inner.is_dir() else folder
    if any(_is_class(one) for one in _folders(base)):
        return _folder_task(folder, name, base)
    images = tuple((one, 0) for one in _images(base))
    texts = tuple(text for one, _ in images if (text := one.with_suffix(".txt")).is_file())
    if not texts:
        return None
    files = (*(one for one, _ in images), *texts)
    return ZeroShotTask(
        name=name, kind="retrieval", folder=folder, files=files, images=partial(_in_files, images, True)
    )


def _wds_task(folder: Path, split: str) -> ZeroShotTask:
    kind = _text(folder / TYPE).strip().lower() if (folder / TYPE).is_file() else "classification"
    if kind not in ("classification", "retrieval"):
        raise PoolError(f"{folder / TYPE} must say classification (the default) or retrieval, not {kind[:40]!r}")
    tars = tuple(sorted((folder / split).glob("*.tar"), key=lambda tar: (len(tar.stem), tar.stem)))
    count = folder / split / "nshards.txt"
    if not tars or (count.is_file() and _text(count).strip() != str(len(tars))):
        raise PoolError(f"{folder / split} has {len(tars)} tars, not as many as nshards.txt says: download it again")
    name = task_name(folder.name, split)
    if kind == "retrieval":
        return ZeroShotTask(
            name=name, kind="retrieval", folder=folder, files=tars, images=partial(_read_captioned_tars, tars)
        )
    entry = entry_of(name)
    fields = entry.fields if entry else tuple(_lines(folder / FIELDS)) if (folder / FIELDS).is_file() else ()
    classes = _names(folder / CLASS_NAMES)
    return ZeroShotTask(
        name=name, kind="classification", folder=folder, files=tars, classes=classes,
        images=partial(_read_labelled_tars, tars, len(classes), fields), templates=_templates(folder / TEMPLATES),
        fields=fields,
    )  # fmt: skip


def _folder_task(folder: Path, name: str, base: Path) -> ZeroShotTask:
    inside = _folders(base)
    for one in inside:
        if not _is_class(one):
            raise PoolError(f"{one} is next to folders of classes and has no images ({', '.join(IMAGES)})")
    path = folder / CLASS_NAMES
    names = _names(path) if path.is_file() else tuple(one.name.replace("_", " ") for one in inside)
    listed, folders = [_plain_name(one) for one in names], [_plain_name(one.name) for one in inside]
    swapped = listed != folders and sorted(listed) == sorted(folders)
    if len(names) != len(inside) or len(names) < 2 or swapped:
        what = f"{len(inside)} folders of images, and {len(names)} names in {CLASS_NAMES}"
        raise PoolError(f"{folder} has {what}: a task has two or more, equally many, in the order of their names")
    images = tuple((image, label) for label, one in enumerate(inside) for image in _images(one))
    return ZeroShotTask(
        name=name, kind="classification", folder=folder, files=tuple(one for one, _ in images),
        images=partial(_in_files, images, False), classes=names,
        templates=_templates(folder / TEMPLATES) if (folder / TEMPLATES).is_file() else (DEFAULT_TEMPLATE,),
    )  # fmt: skip


def _plain_name(name: str) -> str:
    """Removes what folder names cannot have or often change: case, spaces, dashes and underscores."""
    return " ".join(name.replace("_", " ").replace("-", " ").casefold().split())


def _table_task(folder: Path, name: str, tables: tuple[Path, ...]) -> ZeroShotTask:
    columns = list(column_kinds(str(tables[0])))
    if {"candidates", "cue", "associations"} <= set(columns):
        image = _first(columns, ("candidate_images", "candidates_images"), tables[0])
        images = partial(_instances, tables, image)
        return ZeroShotTask(name=name, kind="association", folder=folder, files=tables, images=images)
    image = _first(columns, ("image", "jpg", "img"), tables[0])
    text = _first(columns, ("caption", "captions", "text", "sentences"), tables[0])
    images = partial(_in_tables, tables, image, text)
    return ZeroShotTask(name=name, kind="retrieval", folder=folder, files=tables, images=images)


def _samples(tars: Sequence[Path], member: str) -> Iterator[tuple[Path, str, Sample, str]]:
    """Yields (tar, key for messages, sample, why its image cannot be used or "").

    Skips hidden files, which macOS adds, as WebDataset's readers do.
    """
    for tar in tars:
        spec = PoolSpec(path=str(tar), caption=member, image_extensions=IMAGES)
        for sample in TarShard(name=tar.stem, url=str(tar), spec=spec).samples():
            name = os.path.basename(sample.key)  # "" for ".DS_Store"
            if name and not name.startswith(".") and sample.status != "shard_cut":  # `samples` raises the error next
                problem = "" if sample.image is not None else sample.reason or "there is no image"
                yield tar, f"{tar.name}: {sample.key}", sample, problem


def _read_labelled_tars(tars: Sequence[Path], classes: int, fields: Sequence[str]) -> Iterator[TaskImage]:
    for tar, key, sample, problem in _samples(tars, "cls"):
        label = (sample.shown_caption or "").strip()
        if not label.isdecimal() or len(label) > 9:
            raise PoolError(f"{tar}: the .cls member of {sample.key} must be its class's number, got {label[:40]!r}")
        if int(label) >= classes:
            raise PoolError(f"{tar}: {sample.key} has class {label}, but there are names for {classes} classes")
        groups = _groups(tar, sample, fields) if fields else ()
        yield TaskImage(key=key, image=sample.image, problem=problem, label=int(label), groups=groups)


def _groups(tar: Path, sample: Sample, fields: Sequence[str]) -> tuple[int, ...]:
    """Reads the values in a sample's `.npy`, one per field."""
    member = next((one for one in sample.members if one.ext == "npy"), None)
    try:
        if member is None:
            raise ValueError("there is none")
        with tar.open("rb") as file:
            file.seek(member.offset)
            row = load_array(io.BytesIO(file.read(member.size)))
        if row.dtype.kind not in "iubf":
            raise ValueError(f"it has {row.size} values of {row.dtype}, not group numbers")
        if row.size != len(fields):
            raise ValueError(f"it has {row.size} fields, expected {len(fields)}: {', '.join(fields)}")
    except ValueError as error:
        raise PoolError(f"{tar}: the .npy member of {sample.key} cannot be used: {error}") from error
    return tuple(row.astype(np.int64).ravel().tolist())


def _read_captioned_tars(tars: Sequence[Path]) -> Iterator[TaskImage]:
    for _, key, sample, problem in _samples(tars, "txt"):
        captions = _captions(sample.caption)
        problem = problem or ("" if captions else sample.reason or "there is no caption")
        yield TaskImage(key=key, image=sample.image, problem=problem, captions=captions)


def _in_files(labelled: Sequence[tuple[Path, int]], captioned: bool) -> Iterator[TaskImage]:
    """Yields image files with class numbers, or with the captions in the text file next to each."""
    for path, label in labelled:
        captions: tuple[str, ...] = ()
        key, problem = f"{path.parent.name}/{path.name}", ""
        if captioned:
            text = path.with_suffix(".txt")
            captions = _captions(_text(text)) if text.is_file() else ()
            key, problem = path.name, "" if captions else f"{text.name} is missing or empty"
        image, fault = _bytes(path)
        yield TaskImage(key=key, image=image, problem=fault or problem, label=label, captions=captions)


def _in_tables(tables: Sequence[Path], image: str, text: str) -> Iterator[TaskImage]:
    for number, (table, row) in enumerate(_rows(tables, image, text)):
        data, problem = _cell(row[image], table.parent)
        texts = [row[text]] if isinstance(row[text], str) else row[text] or []
        captions = tuple(one.strip() for one in texts if isinstance(one, str) and one.strip())
        problem = problem or ("" if captions else "there is no caption")
        yield TaskImage(key=f"{table.name}: row {number}", image=data, problem=problem, captions=captions)


def _instances(tables: Sequence[Path], image: str) -> Iterator[TaskImage]:
    """Yields the candidates of all WinoGAViL instances."""
    for number, (table, row) in enumerate(_rows(tables, "candidates", image, "associations", "cue")):
        names, cells = row["candidates"] or [], row[image] or []
        belonging = set(row["associations"] or [])
        fits = len(names) == len(cells) and belonging & set(names) and row["cue"]
        wrong = "" if fits else "its candidates and images differ in number, or none of them belongs to its cue"
        for name, cell in zip(names, cells, strict=False):
            data, problem = _cell(cell, table.parent)
            yield TaskImage(
                key=f"{table.name}: instance {number}, {name}", image=data, problem=wrong or problem, label=number,
                captions=(str(row["cue"]),), right=name in belonging,
            )  # fmt: skip


def _task_folders(folder: Path) -> Iterator[Path]:
    for inner in _folders(folder):
        if inner.name == "hf_cache":
            yield from (one for one in _folders(inner) if "___" in one.name)
        else:
            yield inner


def _folders(folder: Path) -> list[Path]:
    return sorted(one for one in folder.iterdir() if one.is_dir() and not one.name.startswith((".", "_")))


def _images(folder: Path) -> list[Path]:
    return sorted(
        one for one in folder.iterdir() if one.suffix.lower().lstrip(".") in IMAGES and not one.name.startswith(".")
    )


def _is_class(folder: Path) -> bool:
    """Whether a folder holds images without captions: a class, not a retrieval task."""
    images = _images(folder)
    return bool(images) and not any(one.with_suffix(".txt").is_file() for one in images)


def _tables(folder: Path, split: str) -> tuple[Path, ...]:
    """Returns tables with the split in their name, else all. In DataComp's cache they are several folders deep."""
    places = [folder.rglob("*")] if "___" in folder.name else [folder.glob("*"), folder.glob("data/*")]
    files = itertools.chain.from_iterable(places)
    tables = sorted(one for one in files if one.suffix in _TABLES and not one.name.startswith("."))
    return tuple(one for one in tables if split in one.name) or tuple(tables)


def _rows(tables: Sequence[Path], *columns: str) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    for table in tables:
        try:
            yield from ((table, row) for row in table_rows(str(table), columns, batch=16))
        except (OSError, pa.ArrowException) as error:
            raise open_error(str(table), "a table", error) from error


def _first(columns: Sequence[str], names: Sequence[str], table: Path) -> str:
    for name in names:
        if name in columns:
            return name
    raise PoolError(f"{table} has the columns {', '.join(columns)[:300]}; expected {' or '.join(names)}")


def _cell(cell: Any, folder: Path) -> tuple[bytes | None, str]:
    """Returns an image's bytes, or None and the reason. A cell is bytes, or Hugging Face's record of bytes and path."""
    if isinstance(cell, bytes):
        return cell, ""
    if isinstance(cell, dict) and cell.get("bytes"):
        return cell["bytes"], ""
    if isinstance(cell, dict) and cell.get("path"):
        return _bytes(folder / str(cell["path"]))
    return None, "there is no image"


def _bytes(path: Path) -> tuple[bytes | None, str]:
    try:
        return path.read_bytes(), ""
    except OSError as error:
        return None, f"{path} cannot be read: {error.strerror}"


def _captions(text: str | None) -> tuple[str, ...]:
    # Not splitlines: it also splits at form feeds and Unicode's line separator.
    return tuple(line.strip() for line in (text or "").split("\n") if line.strip())


def _names(path: Path) -> tuple[str, ...]:
    names = tuple(_lines(path)) if path.is_file() else ()
    if len(names) < 2:
        raise PoolError(f"{path} must name at least two classes, one per line, in the order of their numbers")
    return names


def _templates(path: Path) -> tuple[str, ...]:
    templates = _captions(_text(path)) if path.is_file() else ()
    if not templates or not all("{c}" in template for template in templates):
        raise PoolError(f"{path} must have a sentence with {{c}} for the class on each line: {DEFAULT_TEMPLATE!r}")
    return templates


def _lines(path: Path) -> list[str]:
    """Reads a file in which line numbers matter, so no line may be empty."""
    lines = [line.strip() for line in _text(path).rstrip().split("\n")]
    if "" in lines:
        raise PoolError(f"{path}: line {lines.index('') + 1} is empty, but line numbers count here")
    return lines


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PoolError(f"{path} cannot be read as UTF-8 text: {error}") from error
