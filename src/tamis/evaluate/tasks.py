"""Zero-shot tasks on disk: what a folder holds, and its images one after the other.

Layouts:

- WebDataset as clip-benchmark writes and reads it: `classnames.txt`, `zeroshot_classification_templates.txt` ("{c}" is
  the class's name), `test/nshards.txt`, `test/0.tar ...` with an image and a `.cls` each. With `dataset_type.txt`
  "retrieval" there are captions instead, one a line of a `.txt`. A `.npy` holds metadata for scores by group.
- A folder per class with its images directly in it. The folder's name is the class's.
- Images, each with a `.txt` of the same name: captions, one a line.
- Tables of Hugging Face `datasets` (`.arrow`, `.parquet`), as DataComp's download leaves them: `image` and `caption`
  for retrieval; `candidates`, `candidate_images`, `cue` and `associations` for WinoGAViL.

`datasets` does not read them for us: it stops at a sample that lacks a member, and decodes what we want as bytes.

Source: `clip_benchmark/datasets/builder.py` of LAION-AI/CLIP_benchmark, `download_evalsets.py` and `eval_utils/` of
mlfoundations/datacomp.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tamis.arrays import load_array
from tamis.data import Sample
from tamis.errors import PoolError, RecipeError, unknown
from tamis.evaluate.datacomp import WITHOUT_SCORE, Entry, entry_of
from tamis.fingerprint import fingerprint
from tamis.pool.files import stamp
from tamis.pool.source import PoolSpec
from tamis.pool.tar import TarShard

Kind = Literal["classification", "retrieval", "association"]

#: Extensions of images, in clip-benchmark's order where a sample has several.
IMAGES = ("webp", "png", "jpg", "jpeg")

#: Used for class folders without templates.
DEFAULT_TEMPLATE = "a photo of a {c}."

CLASS_NAMES = "classnames.txt"
TEMPLATES = "zeroshot_classification_templates.txt"
TYPE = "dataset_type.txt"

#: Names of the columns of the samples' `.npy`, one a line: ours, for groups in tasks that are not DataComp's.
FIELDS = "metadata_fields.txt"

_TABLES = (".arrow", ".parquet")
_METRICS: Mapping[Kind, str] = {
    "classification": "acc1",
    "retrieval": "mean_recall@1",
    "association": "avg_jaccard_score",
}
_LOOKED_FOR = (
    "a WebDataset task ({split}/*.tar and {split}/nshards.txt), folders of images named for their classes, images with "
    "a .txt of captions each, or tables (.arrow, .parquet) with image and caption"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskImage:
    """One image of a task."""

    key: str  # names it in messages
    image: bytes | None
    problem: str = ""  # why it cannot be used, as far as is known before decoding
    label: int = 0  # number of its class; of association the number of its instance
    captions: tuple[str, ...] = ()  # retrieval: its captions; association: the instance's cue
    right: bool = False  # association: whether it belongs to the cue


class Source(Protocol):
    """Where the images of a task come from."""

    def images(self) -> Iterator[TaskImage]:
        """Yields every image, in the order of the files."""
        ...

    def files(self) -> Iterable[Path]:
        """The files that hold them."""
        ...


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task that was found."""

    name: str  # the folder's, without `wds_` and `_test`
    kind: Kind
    folder: Path
    source: Source = field(repr=False)
    classes: tuple[str, ...] = ()  # in the order of their numbers
    templates: tuple[str, ...] = ()  # sentences with {c} for the class's name
    fields: tuple[str, ...] = ()  # known columns of the metadata

    @cached_property
    def entry(self) -> Entry | None:
        """The task in DataComp's table; None for any other."""
        return entry_of(self.name)

    @property
    def worst(self) -> Mapping[str, str]:
        """Metrics that are the accuracy of the worst group, to the field that forms the groups."""
        if self.entry is not None:
            return self.entry.worst
        return {f"acc_worst_{one}": one for one in self.fields}

    @property
    def metric(self) -> str:
        """The metric that counts."""
        return self.entry.metric if self.entry is not None else _METRICS[self.kind]

    @cached_property
    def digest(self) -> str:
        """Changes with the names, the templates, and the size or time of any file; images are not hashed."""
        listed = [[str(file.relative_to(self.folder)), stamp(str(file))] for file in self.source.files()]
        settings = {"kind": self.kind, "classes": self.classes, "templates": self.templates, "fields": self.fields}
        return fingerprint({**settings, "files": listed})

    def metadata(self) -> NDArray[np.int64]:
        """(images, fields): the `.npy` members, in the order of the images."""
        if not isinstance(self.source, _Shards):
            raise PoolError("only WebDataset tasks have .npy members that say which group an image is in")
        return self.source.metadata()


def find_tasks(path: str | Path, *, split: str = "test", only: Sequence[str] = ()) -> tuple[list[Task], dict[str, str]]:
    """Finds tasks: the folder itself, or the folders in it.

    Args:
        path: of a task, or of a folder of tasks (`hf_cache` in it, where DataComp's download puts tables, included).
        split: which part of WebDataset tasks; also looked for in the names of tables and in class folders.
        only: names of the tasks to return; all where empty.

    Returns:
        The tasks by name, and folders that are no tasks, with the reason.

    Raises:
        PoolError: there is no such folder, no task in it, or one is incomplete; the message says what was looked for.
        RecipeError: a name in `only` is not a task here.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise PoolError(f"no tasks at {str(path)!r}: there is no such folder")
    whole = read_task(folder, split=split)
    tasks: dict[str, Task] = {whole.name: whole} if whole is not None else {}
    others: dict[str, str] = {}
    for inner in () if tasks else _task_folders(folder):
        name = task_name(inner.name, split)
        if name in WITHOUT_SCORE:
            others[inner.name] = "DataComp runs it without a score of its own"
            continue
        task = read_task(inner, split=split)
        if task is None:
            others[inner.name] = "no task: not " + _LOOKED_FOR.format(split=split)
        elif name in tasks:
            raise PoolError(f"{inner} and {tasks[name].folder} both hold the task {name}: keep one of them here")
        else:
            tasks[name] = task
    if not tasks:
        raise PoolError(
            f"no task at {str(path)!r}: neither it nor a folder in it is " + _LOOKED_FOR.format(split=split)
        )
    for name in only:
        if name not in tasks:
            raise RecipeError(unknown("task", name, tasks))
    return [tasks[name] for name in sorted(tasks) if not only or name in only], others


def task_name(folder: str, split: str = "test") -> str:
    """A task's name from its folder's: wds_vtab-dtd_test and vtab-dtd, nlphuji___winogavil and winogavil."""
    name = folder.rpartition("___")[2] if "___" in folder else folder
    return name.removeprefix("wds_").removesuffix(f"_{split}")


def read_task(folder: Path, *, split: str = "test") -> Task | None:
    """The task that a folder is, or None where it is of no known layout."""
    inner = folder / split
    if (inner / "nshards.txt").is_file() or any(inner.glob("*.tar")):
        return _wds_task(folder, split)
    if folder.name.startswith("wds_") or (folder / TYPE).is_file():
        there = sorted(one.parent.name for one in folder.glob("*/nshards.txt"))
        splits = f"; it has the splits {', '.join(there)}" if there else ""
        raise PoolError(f"{folder} has no {split}/nshards.txt and no tars in {split}/{splits}")
    tables = _tables(folder, split)
    if tables:
        return _table_task(folder, split, tables)
    base = inner if inner.is_dir() else folder
    if any(_is_class(one) for one in _folders(base)):
        return _folder_task(folder, base, split)
    images = tuple((one, 0) for one in _images(base))
    if any(one.with_suffix(".txt").is_file() for one, _ in images):
        source = _Files(images, captioned=True)
        return Task(name=task_name(folder.name, split), kind="retrieval", folder=folder, source=source)
    return None


def _wds_task(folder: Path, split: str) -> Task:
    kind = _text(folder / TYPE).strip().lower() if (folder / TYPE).is_file() else "classification"
    if kind not in ("classification", "retrieval"):
        raise PoolError(f"{folder / TYPE} must say classification (the default) or retrieval, not {kind[:40]!r}")
    tars = sorted((folder / split).glob("*.tar"), key=lambda tar: (len(tar.stem), tar.stem))
    count = folder / split / "nshards.txt"
    if count.is_file() and (text := _text(count).strip()[:40]) != str(len(tars)):
        raise PoolError(f"{count} says {text!r}, and there are {len(tars)} tars: download the task again")
    if not tars:
        raise PoolError(f"{folder / split} holds no tars")
    name = task_name(folder.name, split)
    if kind == "retrieval":
        return Task(name=name, kind="retrieval", folder=folder, source=_Shards(tuple(tars), "txt"))
    entry = entry_of(name)
    fields = entry.fields if entry else tuple(_numbered(folder / FIELDS)) if (folder / FIELDS).is_file() else ()
    return Task(
        name=name,
        kind="classification",
        folder=folder,
        source=_Shards(tuple(tars), "cls"),
        classes=_names(folder / CLASS_NAMES),
        templates=_templates(folder / TEMPLATES),
        fields=fields,
    )


def _folder_task(folder: Path, base: Path, split: str) -> Task:
    inside = _folders(base)
    empty = next((one for one in inside if not _is_class(one)), None)
    if empty is not None:
        raise PoolError(
            f"{empty} is among folders named for classes and has no images ({', '.join(IMAGES)}) directly in it: add "
            "some or move it elsewhere"
        )
    names = [one.name.replace("_", " ") for one in inside]
    path = folder / CLASS_NAMES
    if path.is_file():
        names = list(_names(path))
        folders = [_plain_name(one.name) for one in inside]
        plain = [_plain_name(name) for name in names]
        if len(names) != len(inside) or (plain != folders and sorted(plain) == sorted(folders)):
            raise PoolError(
                f"{path} names {len(names)} classes, not one for each of the {len(inside)} folders in the order of "
                f"their names ({inside[0].name}, ...): sort its lines so, or delete the file"
            )
    if len(names) < 2:
        raise PoolError(f"{folder} has one folder of images, {inside[0].name}: a task has at least two classes")
    return Task(
        name=task_name(folder.name, split),
        kind="classification",
        folder=folder,
        source=_Files(tuple((image, label) for label, one in enumerate(inside) for image in _images(one))),
        classes=tuple(names),
        templates=_templates(folder / TEMPLATES) if (folder / TEMPLATES).is_file() else (DEFAULT_TEMPLATE,),
    )


def _plain_name(name: str) -> str:
    """A class's name without what names of folders cannot have or often change."""
    return " ".join(name.replace("_", " ").replace("-", " ").casefold().split())


def _table_task(folder: Path, split: str, tables: Sequence[Path]) -> Task:
    columns = _columns(tables[0])
    kind: Kind = "retrieval"
    text = ""
    if {"candidates", "cue", "associations"} <= set(columns):
        kind, image = "association", _first(columns, ("candidate_images", "candidates_images"), tables[0])
    else:
        image = _first(columns, ("image", "jpg", "img"), tables[0])
        text = _first(columns, ("caption", "captions", "text", "sentences"), tables[0])
    name = task_name(folder.name, split)
    return Task(name=name, kind=kind, folder=folder, source=_Tables(tuple(tables), image, text))


@dataclass(frozen=True)
class _Shards:
    """WebDataset tars; `member` is what goes with an image: cls or txt."""

    tars: tuple[Path, ...]
    member: Literal["cls", "txt"]

    def files(self) -> Iterable[Path]:
        return self.tars

    def images(self) -> Iterator[TaskImage]:
        for shard, sample in self._samples(IMAGES):
            key = f"{shard.name}.tar: {sample.key}"
            problem = "" if sample.image is not None else sample.reason or "there is no image"
            if self.member == "cls":
                label = (sample.shown_caption or "").strip()
                if not label.isdecimal() or len(label) > 9:
                    raise PoolError(
                        f"{shard.url}: the .cls member of {sample.key} must be the number of its class, from 0, and is "
                        f"{label[:40]!r}"
                    )
                yield TaskImage(key=key, image=sample.image, problem=problem, label=int(label))
            else:
                captions = _captions(sample.caption)
                problem = problem or ("" if captions else sample.reason or "there is no caption")
                yield TaskImage(key=key, image=sample.image, problem=problem, captions=captions)

    def metadata(self) -> NDArray[np.int64]:
        rows: list[NDArray[np.int64]] = []
        for shard, sample in self._samples(()):
            member = next((one for one in sample.members if one.ext == "npy"), None)
            if member is None:
                raise PoolError(f"{shard.url}: {sample.key} has no .npy member, which says which group it is in")
            with open(shard.url, "rb") as file:
                file.seek(member.offset)
                data = file.read(member.size)
            try:
                row = load_array(io.BytesIO(data))
            except ValueError as error:
                raise PoolError(f"{shard.url}: the .npy member of {sample.key} cannot be read: {error}") from error
            if row.dtype.kind not in "iubf" or (rows and row.size != rows[0].size):
                raise PoolError(
                    f"{shard.url}: the .npy member of {sample.key} is {row.size} values of {row.dtype}; expected the "
                    "numbers of its groups, as many as of other images"
                )
            rows.append(row.astype(np.int64).ravel())
        return np.stack(rows) if rows else np.empty((0, 0), np.int64)

    def _samples(self, images: tuple[str, ...]) -> Iterator[tuple[TarShard, Sample]]:
        """Yields the samples of all tars without hidden files, as macOS adds them: WebDataset's readers skip them."""
        for tar in self.tars:
            spec = PoolSpec(path=str(tar), caption=self.member, image_extensions=images)
            shard = TarShard(name=tar.stem, url=str(tar), spec=spec)
            for sample in shard.samples():
                name = os.path.basename(sample.key)  # "" of ".DS_Store"
                if name and not name.startswith(".") and sample.status != "shard_cut":  # the shard's own error is next
                    yield shard, sample


@dataclass(frozen=True)
class _Files:
    """Image files with the numbers of their classes, or with a text file of captions each."""

    labelled: tuple[tuple[Path, int], ...]
    captioned: bool = False

    def files(self) -> Iterable[Path]:
        paths = [path for path, _ in self.labelled]
        texts = [path.with_suffix(".txt") for path in paths] if self.captioned else []
        return [*paths, *(text for text in texts if text.is_file())]

    def images(self) -> Iterator[TaskImage]:
        for path, label in self.labelled:
            image, problem = _bytes(path)
            key = path.name if self.captioned else f"{path.parent.name}/{path.name}"
            captions: tuple[str, ...] = ()
            if self.captioned:
                text = path.with_suffix(".txt")
                captions = _captions(_text(text)) if text.is_file() else ()
                problem = problem or ("" if captions else f"{text.name} is missing or empty")
            yield TaskImage(key=key, image=image, problem=problem, label=label, captions=captions)


@dataclass(frozen=True)
class _Tables:
    """Tables of Hugging Face `datasets`: retrieval where there is a column of texts, else WinoGAViL's instances."""

    tables: tuple[Path, ...]
    image: str
    text: str

    def files(self) -> Iterable[Path]:
        return self.tables

    def images(self) -> Iterator[TaskImage]:
        rows = ((table, row) for table in self.tables for row in _rows(table))
        for number, (table, row) in enumerate(rows):
            if not self.text:
                yield from self._instance(row, number, table)
                continue
            image, problem = _cell(row[self.image], table.parent)
            texts = [row[self.text]] if isinstance(row[self.text], str) else row[self.text] or []
            captions = tuple(one.strip() for one in texts if isinstance(one, str) and one.strip())
            problem = problem or ("" if captions else "there is no caption")
            yield TaskImage(key=f"{table.name}: row {number}", image=image, problem=problem, captions=captions)

    def _instance(self, row: Mapping[str, Any], number: int, table: Path) -> Iterator[TaskImage]:
        names, cells = row["candidates"] or [], row[self.image] or []
        belonging = set(row["associations"] or [])
        wrong = ""
        if len(names) != len(cells):
            wrong = f"it has {len(names)} candidates and {len(cells)} images"
        elif not belonging & set(names) or not row["cue"]:
            wrong = "none of its candidates belongs to its cue"
        for name, cell in zip(names, cells, strict=False):
            image, problem = _cell(cell, table.parent)
            yield TaskImage(
                key=f"{table.name}: instance {number}, {name}",
                image=image,
                problem=wrong or problem,
                label=number,
                captions=(str(row["cue"]),),
                right=name in belonging,
            )


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


def _tables(folder: Path, split: str) -> list[Path]:
    """The tables of a split, or all where no name has it. Those of DataComp's cache are some folders deep."""
    places = [folder.rglob("*")] if "___" in folder.name else [folder.glob("*"), folder.glob("data/*")]
    files = itertools.chain.from_iterable(places)
    tables = sorted(one for one in files if one.suffix in _TABLES and not one.name.startswith("."))
    return [one for one in tables if split in one.name] or tables


def _columns(table: Path) -> list[str]:
    try:
        if table.suffix == ".parquet":
            return list(pq.read_schema(table).names)
        with pa.memory_map(str(table)) as raw:
            return list(pa.ipc.open_stream(raw).schema.names)
    except (OSError, pa.ArrowException) as error:
        raise PoolError(f"{table} cannot be read as a table: {error}") from error


def _rows(table: Path) -> Iterator[Mapping[str, Any]]:
    try:
        if table.suffix == ".parquet":
            for batch in pq.ParquetFile(table).iter_batches(batch_size=16):
                yield from batch.to_pylist()
            return
        with pa.memory_map(str(table)) as raw:
            for batch in pa.ipc.open_stream(raw):
                for start in range(0, batch.num_rows, 16):  # one batch may be a thousand images
                    yield from batch.slice(start, 16).to_pylist()
    except (OSError, pa.ArrowException) as error:
        raise PoolError(f"{table} cannot be read further: {error}") from error


def _first(columns: Sequence[str], names: Sequence[str], table: Path) -> str:
    for name in names:
        if name in columns:
            return name
    raise PoolError(f"{table} has the columns {', '.join(columns)[:300]}; looked for {' or '.join(names)}")


def _cell(cell: Any, folder: Path) -> tuple[bytes | None, str]:
    """The bytes of an image in a table, plain or Hugging Face's record of bytes and path, or why there are none."""
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
    # Not splitlines: it also cuts within a line, at form feeds and Unicode's line separator.
    return tuple(line.strip() for line in (text or "").split("\n") if line.strip())


def _names(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        raise PoolError(f"{path.parent} has no {path.name}: write the names of its classes there, one a line, from 0")
    names = tuple(_numbered(path))
    if len(names) < 2:
        raise PoolError(f"{path} names {len(names)} classes: a task has at least two, one a line")
    return names


def _templates(path: Path) -> tuple[str, ...]:
    templates = _captions(_text(path)) if path.is_file() else ()
    if not templates or not all("{c}" in template for template in templates):
        raise PoolError(
            f"{path} is missing, empty, or has a line without {{c}}: write the sentences that class names are put into "
            f"there, one a line, as {DEFAULT_TEMPLATE!r}"
        )
    return templates


def _numbered(path: Path) -> list[str]:
    """The lines of a file in which the place of a line is its number."""
    lines = [line.strip() for line in _text(path).rstrip().split("\n")]
    if "" in lines and len(lines) > 1:
        raise PoolError(
            f"{path}: line {lines.index('') + 1} is empty, and every line's number counts: write its name there, or "
            "delete the line"
        )
    return [line for line in lines if line]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PoolError(f"{path} cannot be read as UTF-8 text: {error}") from error
