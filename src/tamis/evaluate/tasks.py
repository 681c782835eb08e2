"""Zero-shot tasks on disk: what a folder holds, and its images one after the other.

Layouts, told apart by looking:

- WebDataset as clip-benchmark writes and reads it: `classnames.txt`, `zeroshot_classification_templates.txt` ("{c}" is
  the class's name), `test/nshards.txt`, `test/0.tar ...` with an image and a `.cls` each. With `dataset_type.txt`
  "retrieval" there are captions instead, one a line of a `.txt`. A `.npy` holds metadata for scores by group.
- A folder per class, its images directly in it. The folder's name is the class's.
- Images with a `.txt` of the same name beside each: captions, one a line.
- Tables of Hugging Face `datasets` (`.arrow`, `.parquet`), as DataComp's download leaves them: `image` and `caption`
  for retrieval; `candidates`, `candidate_images`, `cue` and `associations` for WinoGAViL.

Source: `clip_benchmark/datasets/builder.py` of LAION-AI/CLIP_benchmark, `download_evalsets.py` and `eval_utils/` of
mlfoundations/datacomp.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
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
from tamis.errors import PoolError
from tamis.evaluate.datacomp import WITHOUT_SCORE, Entry, entry_of
from tamis.fingerprint import fingerprint
from tamis.pool.files import kind_of, stamp
from tamis.pool.rows import listed_columns
from tamis.pool.source import PoolSpec, Problem
from tamis.pool.tar import TarShard

Kind = Literal["classification", "retrieval", "association"]

#: Extensions of images, in clip-benchmark's order where a sample has several.
IMAGES = ("webp", "png", "jpg", "jpeg")

#: What a class's name is put into where the folder brings no templates: class folders only.
DEFAULT_TEMPLATE = "a photo of a {c}."

CLASS_NAMES = "classnames.txt"
TEMPLATES = "zeroshot_classification_templates.txt"
TYPE = "dataset_type.txt"

#: Names of the columns of the samples' `.npy`, one a line: ours, for groups in tasks that are none of DataComp's.
FIELDS = "metadata_fields.txt"

_TABLES = (".arrow", ".parquet")

_LONGEST_NUMBER = 20  # digits; Python refuses to read one of thousands

_LOOKED_FOR = (
    "a WebDataset task ({split}/*.tar and {split}/nshards.txt), folders of images named for their classes, images with "
    "a .txt of captions beside each, or tables (.arrow, .parquet) with image and caption"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskImage:
    """One image of a task.

    Attributes:
        key: names it in messages.
        image: the file's bytes; None where there are none.
        problem: why it cannot be used; "" where it can as far as is known before decoding.
        label: the number of its class; of association the number of its instance.
        captions: retrieval: its captions; association: the instance's cue.
        right: association: whether it belongs to the cue.
    """

    key: str
    image: bytes | None
    problem: str = ""
    label: int = 0
    captions: tuple[str, ...] = ()
    right: bool = False


class Source(Protocol):
    """Where the images of a task come from."""

    def images(self) -> Iterator[TaskImage]:
        """Yields every image, in the order of the files."""
        ...

    def files(self) -> Iterable[Path]:
        """The files that hold them: a task whose files have another size or time is another task."""
        ...

    def metadata(self) -> NDArray[np.int64]:
        """Returns (images, fields): the `.npy` members, in the order of `images`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task that was found.

    Attributes:
        name: the folder's, without `wds_` and `_test`.
        kind: classification (labels), retrieval (captions), association (which candidates belong to a cue).
        folder: where it lies.
        source: its images.
        classes: names of the K classes in the order of their numbers; empty where there are none.
        templates: sentences with {c} where the class's name goes.
        fields: names of the metadata's columns that are known.
    """

    name: str
    kind: Kind
    folder: Path
    source: Source = field(repr=False)
    classes: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()

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
        """The metric that counts: DataComp's for its tasks, else acc1, mean_recall@1 or avg_jaccard_score."""
        if self.entry is not None:
            return self.entry.metric
        return {"classification": "acc1", "retrieval": "mean_recall@1", "association": "avg_jaccard_score"}[self.kind]

    @cached_property
    def digest(self) -> str:
        """Changes with the names, the templates, and the size or time of any file.

        The bytes of the images are not hashed: ImageNet's alone are 6 GB, which a command that has nothing left to do
        would read for nothing.
        """
        listed = [[str(file.relative_to(self.folder)), stamp(str(file))] for file in self.source.files()]
        settings = {"kind": self.kind, "classes": self.classes, "templates": self.templates, "fields": self.fields}
        return fingerprint({**settings, "files": listed})


def find_tasks(path: str | Path, *, split: str = "test") -> tuple[list[Task], dict[str, str]]:
    """Finds tasks: the folder itself, or the folders in it.

    Args:
        path: of a task, or of a folder of tasks (`hf_cache` in it, where DataComp's download puts tables, included).
        split: which part of WebDataset tasks; also looked for in the names of tables and in class folders.

    Returns:
        The tasks by name, and folders that are none, with why.

    Raises:
        PoolError: there is no such folder, no task in it, or one is incomplete; the message says what was looked for.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise PoolError(f"no tasks at {str(path)!r}: there is no such folder")
    whole = read_task(folder, split=split)
    if whole is not None:
        return [whole], {}
    tasks: dict[str, Task] = {}
    others: dict[str, str] = {}
    for inner in _task_folders(folder):
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
    return [tasks[name] for name in sorted(tasks)], others


def task_name(folder: str, split: str = "test") -> str:
    """Returns a task's name from its folder's: wds_vtab-dtd_test and vtab-dtd, nlphuji___winogavil and winogavil."""
    name = folder.rpartition("___")[2] if "___" in folder else folder
    return name.removeprefix("wds_").removesuffix(f"_{split}")


def read_task(folder: Path, *, split: str = "test") -> Task | None:
    """Returns the task that a folder is, or None where it is of no known layout.

    Raises:
        PoolError: its layout is known, and something that belongs to it is missing.
    """
    inner = folder / split
    if (inner / "nshards.txt").is_file() or any(inner.glob("*.tar")):
        return _wds_task(folder, split)
    if folder.name.startswith("wds_") or (folder / TYPE).is_file():
        there = sorted(one.parent.name for one in folder.glob("*/nshards.txt"))
        raise PoolError(
            f"{folder} has no {split}/nshards.txt and no tars in {split}/"
            + (f"; splits that are there: {', '.join(there)}" if there else "")
        )
    tables = _tables(folder, split)
    if tables:
        return _table_task(folder, split, tables)
    base = inner if inner.is_dir() else folder
    classes = [one for one in _folders(base) if _plain_images(one)]
    if classes:
        return _folder_task(folder, base, split)
    captioned = [one for one in _images(base) if one.with_suffix(".txt").is_file()]
    if captioned:
        source = _CaptionedFiles(tuple(_images(base)))
        return Task(name=task_name(folder.name, split), kind="retrieval", folder=folder, source=source)
    return None


def _wds_task(folder: Path, split: str) -> Task:
    kind = _text(folder / TYPE).strip().lower() if (folder / TYPE).is_file() else "classification"
    if kind not in ("classification", "retrieval"):
        raise PoolError(
            f"{folder / TYPE} says neither classification (as without the file) nor retrieval; tasks here are of these "
            "two"
        )
    tars = sorted((folder / split).glob("*.tar"), key=lambda tar: (len(tar.stem), tar.stem))
    count = folder / split / "nshards.txt"
    if count.is_file():
        text = _text(count).strip()
        if not text.isdecimal() or len(text) > _LONGEST_NUMBER:
            raise PoolError(f"{count} holds {kind_of(text.encode())}, expected the number of tars")
        if int(text) != len(tars):
            raise PoolError(f"{count} says {text} tars, and {len(tars)} are there: fetch the task again")
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
    empty = next((one for one in inside if not _plain_images(one)), None)
    if empty is not None:
        raise PoolError(
            f"{empty} lies between folders named for classes and holds no images ({', '.join(IMAGES)}) directly: fill "
            "it or move it elsewhere"
        )
    names = [one.name.replace("_", " ") for one in inside]
    if (folder / CLASS_NAMES).is_file():
        names = list(_names(folder / CLASS_NAMES))
        if len(names) != len(inside):
            raise PoolError(
                f"{folder / CLASS_NAMES} names {len(names)} classes, and there are {len(inside)} folders of classes: "
                "write one name a line, in the order of the folders' names"
            )
        said = [_plain_name(name) for name in names]
        folders = [_plain_name(one.name) for one in inside]
        if said != folders and sorted(said) == sorted(folders):
            place = next(number for number, name in enumerate(said) if name != folders[number])
            raise PoolError(
                f"{folder / CLASS_NAMES} names the folders of classes in another order than theirs: its line "
                f"{place + 1} is {names[place]!r}, and that folder, of all sorted by name, is {inside[place].name}: "
                "put its lines in that order, or take the file away"
            )
    if len(names) < 2:
        raise PoolError(f"{folder} holds one folder of images, {inside[0].name}: a task has at least two classes")
    templates = _templates(folder / TEMPLATES) if (folder / TEMPLATES).is_file() else (DEFAULT_TEMPLATE,)
    source = _Files(tuple((image, label) for label, one in enumerate(inside) for image in _images(one)))
    return Task(
        name=task_name(folder.name, split),
        kind="classification",
        folder=folder,
        source=source,
        classes=tuple(names),
        templates=templates,
    )


def _plain_name(name: str) -> str:
    """Returns a class's name without what names of folders cannot have or often change."""
    return " ".join(name.replace("_", " ").replace("-", " ").casefold().split())


def _table_task(folder: Path, split: str, tables: Sequence[Path]) -> Task:
    columns = _columns(tables[0])
    kind: Kind
    if {"candidates", "cue", "associations"} <= columns.keys():
        kind, image = "association", _first(columns, ("candidate_images", "candidates_images"), tables[0])
        text = ""
    else:
        kind, image = "retrieval", _first(columns, ("image", "jpg", "img"), tables[0])
        text = _first(columns, ("caption", "captions", "text", "sentences"), tables[0])
    name = task_name(folder.name, split)
    return Task(name=name, kind=kind, folder=folder, source=_Tables(tuple(tables), image, text))


@dataclass(frozen=True)
class _Shards:
    """WebDataset tars; what goes with an image is the member `beside`: cls or txt."""

    tars: tuple[Path, ...]
    beside: Literal["cls", "txt"]

    def files(self) -> Iterable[Path]:
        return self.tars

    def _open(self, images: tuple[str, ...]) -> Iterator[TarShard]:
        for tar in self.tars:
            spec = PoolSpec(path=str(tar), caption=self.beside, image_extensions=images)
            yield TarShard(name=tar.stem, url=str(tar), spec=spec)

    def images(self) -> Iterator[TaskImage]:
        for shard in self._open(IMAGES):
            for sample in _named(shard):
                if sample.status == "shard_cut":
                    continue  # the shard's own error, which says so, comes next
                key = f"{shard.name}.tar: {sample.key}"
                problem = "" if sample.image is not None else sample.reason or "there is no image"
                if self.beside == "cls":
                    label = _label(sample.shown_caption, key, shard.url)
                    yield TaskImage(key=key, image=sample.image, problem=problem, label=label)
                else:
                    captions = _captions(sample.caption)
                    problem = problem or ("" if captions else sample.reason or "there is no caption")
                    yield TaskImage(key=key, image=sample.image, problem=problem, captions=captions)

    def metadata(self) -> NDArray[np.int64]:
        rows: list[NDArray[np.int64]] = []
        for shard in self._open(()):
            members = []
            for sample in _named(shard):
                found = [member for member in sample.members if member.ext == "npy"]
                if not found:
                    raise PoolError(f"{shard.url}: {sample.key} has no .npy member, which says what group it is of")
                members.append(found[:1])
            with closing(shard.reader(whole=True, keep_open=False)) as reader:
                for again in reader.read(range(len(members)), members):
                    if isinstance(again, Problem):
                        raise PoolError(f"{shard.url}: a .npy member cannot be read: {again.reason}")
                    rows.append(_numbers(again.files["npy"], shard.url))
        if len({row.size for row in rows}) > 1:
            raise PoolError(f"{self.tars[0].parent}: the .npy members have different numbers of fields")
        return np.stack(rows) if rows else np.empty((0, 0), np.int64)


def _named(shard: TarShard) -> Iterator[Sample]:
    """Yields the samples of a tar but for hidden files, as macOS puts beside others: WebDataset's readers skip them."""
    for sample in shard.samples():
        name = os.path.basename(sample.key)  # "" of ".DS_Store", and of "inner/._a.jpg" where jpg is not asked for
        if name and not name.startswith("."):
            yield sample


def _numbers(data: bytes, url: str) -> NDArray[np.int64]:
    """Returns what a .npy member holds: whole numbers, few."""
    try:
        found = load_array(io.BytesIO(data))
    except ValueError as error:
        raise PoolError(f"{url}: a .npy member cannot be read: {error}") from error
    if found.dtype.kind not in "iubf":
        raise PoolError(f"{url}: a .npy member holds {found.dtype}, expected numbers that say what group it is of")
    return found.astype(np.int64).ravel()


class _NoMetadata:
    def metadata(self) -> NDArray[np.int64]:
        raise PoolError("only WebDataset tasks have .npy members that say what group an image is of")


@dataclass(frozen=True)
class _Files(_NoMetadata):
    """Image files with the numbers of their classes."""

    labelled: tuple[tuple[Path, int], ...]

    def files(self) -> Iterable[Path]:
        return [path for path, _ in self.labelled]

    def images(self) -> Iterator[TaskImage]:
        for path, label in self.labelled:
            image, problem = _bytes(path)
            yield TaskImage(key=f"{path.parent.name}/{path.name}", image=image, problem=problem, label=label)


@dataclass(frozen=True)
class _CaptionedFiles(_NoMetadata):
    """Image files with a text file of captions beside each."""

    paths: tuple[Path, ...]

    def files(self) -> Iterable[Path]:
        texts = (path.with_suffix(".txt") for path in self.paths)
        return [*self.paths, *(text for text in texts if text.is_file())]

    def images(self) -> Iterator[TaskImage]:
        for path in self.paths:
            image, problem = _bytes(path)
            text = path.with_suffix(".txt")
            captions = _captions(_text(text)) if text.is_file() else ()
            problem = problem or ("" if captions else f"{text.name} beside it is missing or empty")
            yield TaskImage(key=path.name, image=image, problem=problem, captions=captions)


@dataclass(frozen=True)
class _Tables(_NoMetadata):
    """Tables of Hugging Face `datasets`: retrieval where there is a column of texts, else WinoGAViL's instances."""

    tables: tuple[Path, ...]
    image: str
    text: str

    def files(self) -> Iterable[Path]:
        return self.tables

    def images(self) -> Iterator[TaskImage]:
        number = 0
        for table in self.tables:
            for row in _rows(table):
                if self.text:
                    yield self._captioned(row, f"{table.name}: row {number}", table.parent)
                else:
                    yield from self._instance(row, number, table)
                number += 1

    def _captioned(self, row: Mapping[str, Any], key: str, folder: Path) -> TaskImage:
        image, problem = _cell(row[self.image], folder)
        texts = row[self.text]
        given = [texts] if isinstance(texts, str) else [one for one in texts or [] if isinstance(one, str)]
        captions = tuple(one.strip() for one in given if one.strip())
        return TaskImage(
            key=key, image=image, problem=problem or ("" if captions else "there is no caption"), captions=captions
        )

    def _instance(self, row: Mapping[str, Any], number: int, table: Path) -> Iterator[TaskImage]:
        key = f"{table.name}: instance {number}"
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
                key=f"{key}, {name}",
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


def _plain_images(folder: Path) -> bool:
    """Tells whether a folder holds images without captions: a class's, not a retrieval task."""
    images = _images(folder)
    return bool(images) and not any(one.with_suffix(".txt").is_file() for one in images)


def _tables(folder: Path, split: str) -> list[Path]:
    """Returns the tables of a split, or all where no name says one. Those of DataComp's cache lie some folders deep."""
    places = [folder.rglob("*")] if "___" in folder.name else [folder.glob("*"), folder.glob("data/*")]
    files = itertools.chain.from_iterable(places)
    found = sorted(one for one in files if one.suffix in _TABLES and not one.name.startswith("."))
    return [one for one in found if split in one.name] or found


def _columns(table: Path) -> Mapping[str, Any]:
    try:
        if table.suffix == ".parquet":
            schema = pq.read_schema(table)
        else:
            with pa.memory_map(str(table)) as raw:
                schema = pa.ipc.open_stream(raw).schema
    except (OSError, pa.ArrowException) as error:
        raise PoolError(f"{table} cannot be read as a table: {error}") from error
    return {name: schema.field(name).type for name in schema.names}


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


def _first(columns: Mapping[str, Any], names: Sequence[str], table: Path) -> str:
    for name in names:
        if name in columns:
            return name
    raise PoolError(f"{table} has the columns {listed_columns(list(columns))}; looked for {' or '.join(names)}")


def _cell(cell: Any, folder: Path) -> tuple[bytes | None, str]:
    """Returns the bytes of an image in a table: plain, or Hugging Face's record of bytes and path."""
    if isinstance(cell, bytes):
        return cell, ""
    if isinstance(cell, dict):
        if cell.get("bytes"):
            return cell["bytes"], ""
        if cell.get("path"):
            return _bytes(folder / str(cell["path"]))
    return None, "there is no image"


def _bytes(path: Path) -> tuple[bytes | None, str]:
    try:
        return path.read_bytes(), ""
    except OSError as error:
        return None, f"{path} cannot be read: {error.strerror}"


def _label(text: str | None, key: str, url: str) -> int:
    if text is None:
        raise PoolError(f"{url}: {key} has no .cls member, which says what class it is of")
    if not text.strip().isdecimal() or len(text) > _LONGEST_NUMBER:
        what = kind_of(text.encode())
        raise PoolError(f"{url}: the .cls of {key} holds {what}, expected the number of a class, from 0")
    return int(text)


def _captions(text: str | None) -> tuple[str, ...]:
    # Not splitlines: it also cuts at signs within a line, such as form feeds and Unicode's line separator.
    return tuple(line.strip() for line in (text or "").split("\n") if line.strip())


def _names(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        raise PoolError(f"{path.parent} has no {path.name}: write the names of its classes there, one a line, from 0")
    names = tuple(_numbered(path))
    if len(names) < 2:
        raise PoolError(f"{path} names {len(names)} classes: a task has at least two, one a line")
    return names


def _templates(path: Path) -> tuple[str, ...]:
    if not path.is_file():
        raise PoolError(
            f"{path.parent} has no {path.name}: write there, one a line, the sentences that class names are put into, "
            f"as {DEFAULT_TEMPLATE!r}"
        )
    templates = tuple(_lines(path))
    for place, template in enumerate(templates, 1):
        if "{c}" not in template:
            raise PoolError(f"{path}: sentence {place} has no {{c}}, where the class's name goes")
    if not templates:
        raise PoolError(f"{path} is empty: write sentences as {DEFAULT_TEMPLATE!r} there, one a line")
    return templates


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in _text(path).split("\n") if line.strip()]


def _numbered(path: Path) -> list[str]:
    """Returns the lines of a file in which the place of a line is its number."""
    lines = [line.strip() for line in _text(path).rstrip().split("\n")]
    for number, line in enumerate(lines, 1):
        if not line and len(lines) > 1:
            raise PoolError(
                f"{path}: line {number} is empty, and the lines after it would be taken for others: write its name "
                "there, or take it out"
            )
    return [line for line in lines if line]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise PoolError(f"{path} cannot be read as UTF-8 text: {error}") from error
