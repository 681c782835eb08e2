"""`tamis check RUN`: reads every byte of a run and says what is damaged, left over or missing.

Nothing is repaired by guessing: damaged files are deleted if asked, and `tamis score` makes them again from the pool.
Reading takes hours in a large run, and nothing is locked meanwhile. Before a file is deleted it is checked again, under
its shard's claim or the run's lock.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import yaml

from tamis.data import KEEPS, Column
from tamis.errors import DamageError, RunError
from tamis.processes import TEMPORARY, in_work
from tamis.storage import files, folders, read_again, read_json, remove
from tamis.store import checked, parts
from tamis.store.checked import CheckedParquet, damaged
from tamis.store.claims import CLAIMS, PREPARING_SECONDS, claimed, free_claims, locked
from tamis.store.manifest import forget, shards_of
from tamis.store.records import FEATURE, SIGNAL, read_description, read_lines, read_record
from tamis.store.run import Run, labelled_twice
from tamis.store.side_files import read_side_file
from tamis.store.subset_file import read_subset, rows_of
from tamis.store.targets import OUTPUTS
from tamis.store.unfinished import UNFINISHED

Kind = Literal["damaged", "left over", "missing", "yours"]

MEANING: Mapping[Kind, str] = {
    "damaged": "not as it was written; --delete deletes it, and tamis score makes it again",
    "left over": "of a process that was killed, or of a shard that the run does not list; --delete deletes it",
    "missing": "not made yet; tamis score makes it",
    "yours": "tamis does not delete it; each line says what to do",
}

_RESTORE = "correct that (its permissions, the disk), and check again"
_LOCK = "deletes what is damaged"


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        kind: see `MEANING`.
        path: of the file or folder, relative to the run.
        what: a sentence.
        deleted: whether it was deleted.
    """

    kind: Kind
    path: str
    what: str
    deleted: bool = False


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The result of a check.

    Attributes:
        run: the run's folder.
        shards: how many it lists.
        files: parts that were read to their last byte.
        findings: what is not as it should be.
        command: completes the run; "" if nothing is missing.
    """

    run: Path
    shards: int
    files: int
    findings: tuple[Finding, ...]
    command: str = ""

    @property
    def exit_code(self) -> int:
        """0: the run is whole. 1: something is left to do."""
        return int(bool(self.command) or any(not finding.deleted for finding in self.findings))


@dataclass
class _Check:
    run: Run
    delete: bool
    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    labels: dict[str, Path] = field(default_factory=dict)  # of scores, to their folders

    def note(
        self,
        kind: Kind,
        path: Path,
        what: str,
        still: Callable[[], bool] = lambda: True,
        shard: str = "",
        delete: Callable[[], object] | None = None,
    ) -> None:
        """Notes a finding, and deletes the file if asked.

        Args:
            kind, path, what: of the finding.
            still: checks again, now that no other process can write the file.
            shard: whose claim protects it; "": the run's lock does.
            delete: deletes it; None: the file at `path`.
        """
        deleted = False
        if self.delete and kind in ("damaged", "left over"):
            alone = locked(self.run.path, doing=_LOCK, patience=PREPARING_SECONDS)
            with claimed(self.run.path, shard) if shard else alone as acquired:
                if acquired is not False:
                    if not still():
                        return
                    delete() if delete is not None else remove(path)
                    deleted = True
        self.findings.append(Finding(kind, path.relative_to(self.run.path).as_posix(), what, deleted))

    def read(self, path: Path, read: Callable[[], object], shard: str = "", **how: Any) -> bool:
        """Reads a file by a function that raises DamageError; returns whether it is good.

        A file that the system does not let us read may be good, and is not deleted.
        """
        kind = how.pop("kind", "damaged")
        read_again(path)
        try:
            read()
        except DamageError as error:
            self.note(kind, path, error.what or str(error), partial(_fails, read), shard, **how)
        except (RunError, OSError) as error:
            self.note("yours", path, f"{error}; {_RESTORE}")
        else:
            return True
        return False

    def unlisted(self, path: Path, shard: str, delete: Callable[[], object] | None = None) -> None:
        """Notes a file of a shard that the run does not list; the run may have grown when it is deleted."""
        still = lambda: shard not in shards_of(self.run.path)  # noqa: E731
        self.note("left over", path, "the run does not list this shard", still, shard, delete)


def _fails(read: Callable[[], object]) -> bool:
    try:
        read()
    except DamageError:
        return True
    except (RunError, OSError):
        return False
    return False


def check_run(path: str | os.PathLike[str], *, delete: bool = False) -> Checked:
    """Checks a run.

    Args:
        path: the run folder, or its URL: every byte is then downloaded.
        delete: delete what is damaged or left over, unless another process works on it.

    Raises:
        RunError: it is no run folder, its run.json or its list of shards is damaged, or it cannot be written to.
    """
    run = Run(path, partial=True)
    if delete:
        with locked(run.path, doing=_LOCK):  # it can be written to
            run = Run(run.path, partial=True)
    work = _Check(run, delete)
    checked.verify_again()  # bytes may change though time and size stay
    _leftovers(work)
    good = _index(work)
    for folder in _part_folders(run.path):
        try:
            _folder(work, folder, good)
        except OSError as error:  # it cannot be listed
            work.note("yours", folder, f"{error}; {_RESTORE}")
    _records(work)
    _subsets(work)
    lacks = any(finding.kind in ("missing", "damaged") for finding in work.findings)
    return Checked(
        run=run.path,
        shards=len(run.urls),
        files=work.files,
        findings=tuple(work.findings),
        command=run.completing() if lacks else "",
    )


def _part_folders(run: Path) -> list[Path]:
    return [folder for kind in ("scores", *KEEPS) for folder in folders(run / kind)]


def _leftovers(work: _Check) -> None:
    run = work.run.path
    for folder in (run, run / "failures", run / "subsets", run / "index", *_part_folders(run)):
        for file in sorted(folder.glob(f".*{TEMPORARY}")):
            if not in_work(file):
                work.note("left over", file, "a file that was never finished", file.exists)
    for name in free_claims(run):  # claiming it removes the file
        work.note("left over", run / CLAIMS / name, "a claim that no process holds", shard=name, delete=lambda: None)
    for folder in folders(run / UNFINISHED):
        for file in sorted(folder.glob("[!.]*.parquet")):
            if folder.name not in work.run.urls:
                work.unlisted(file, folder.name)
            else:
                work.read(file, lambda file=file: CheckedParquet(file).read(None), folder.name)  # type: ignore[misc]


def _index(work: _Check) -> set[str]:
    """Checks the index; returns the shards whose index is good."""
    run, good = work.run, set()
    for shard in run.foreign:
        work.unlisted(run.index_path(shard), shard, partial(forget, run.path, [shard]))
    for shard in run.missing:
        failure = run.path / "failures" / f"{shard}.json"
        reason = "not read yet"
        if failure.is_file() and work.read(failure, partial(read_record, failure), shard):
            reason = str(read_record(failure)["error"])
        work.note("missing", run.index_path(shard), reason)
    for shard in sorted(set(run.shards) & set(run.urls)):
        again = partial(forget, run.path, [shard])
        if work.read(run.index_path(shard), partial(_read_index, run.index_path(shard)), shard, delete=again):
            good.add(shard)
            work.files += 1
    return good


def _read_index(path: Path) -> None:
    facts = parts.index_facts(path)
    table = parts.read_columns(path, None, checked.Owner(facts.rows, facts.uids))
    if parts.uids_in(path) != facts.uids:
        raise damaged(path, "its uids are not those that its footer says")
    for one in parts.INDEX_FIELDS:
        if one.name not in table.column_names:
            raise damaged(path, f"it has no column {one.name!r}")


def _folder(work: _Check, folder: Path, good: set[str]) -> None:
    """Checks the parts of one signal, or of one stored feature."""
    run, kind = work.run, folder.parent.name
    ending = ".npy" if kind == "embeddings" else ".parquet"
    description = folder / (SIGNAL if kind == "scores" else FEATURE)
    there, facts = files(folder, ending), {}
    if not description.is_file():
        if there:
            work.note("missing", description, "repeat the command that made these parts, or delete the folder")
    elif work.read(description, partial(read_description, description)):
        facts = read_description(description)
        other = work.labels.setdefault(facts["label"], folder) if kind == "scores" else folder
        if other != folder:
            work.note("yours", description, labelled_twice(facts["label"], other, folder))
    columns = tuple(Column(**column) for column in facts.get("columns", ()))
    if (facts or there) and (lacking := sorted(good - there)):
        work.note("missing", folder, f"{len(lacking):,} shards, the first {lacking[0]}")
    widths: dict[Path, int] = {}
    for shard in sorted(there):
        path = folder / f"{shard}{ending}"
        if shard not in run.urls:
            work.unlisted(path, shard)
        elif shard in good and work.read(path, partial(_read_part, run, path, columns), shard):
            work.files += 1
            if ending == ".npy":
                widths[path] = _read_part(run, path, columns)
    usual = max(widths.values(), key=list(widths.values()).count, default=0)
    for path, width in widths.items():
        if width != usual:
            work.note("damaged", path, f"it holds {width} numbers a row, most of its siblings {usual}", shard=path.stem)
    _side_files(work, folder, facts.get("side_files", {}), {description.name, *(f"{one}{ending}" for one in there)})


def _read_part(run: Run, path: Path, columns: tuple[Column, ...]) -> int:
    """Reads a part to its last byte; returns how many numbers or columns a row has."""
    facts = parts.index_facts(run.index_path(path.stem))
    owner = checked.Owner(facts.rows, facts.uids)
    if path.suffix == ".npy":
        return int(parts.read_rows(path, owner).shape[1])
    if path.parent.parent.name != "scores":
        parts.read_text_lists(path, owner)
    table = parts.read_columns(path, None, owner)
    for column in columns:
        if column.name not in table.column_names:
            raise damaged(path, f"it has no column {column.name!r}")
        parts.of_kind(path, column.name, table.column(column.name), column.kind)
    return int(table.num_columns)


def _side_files(work: _Check, folder: Path, notes: Mapping[str, Mapping[str, object]], known: set[str]) -> None:
    for name in sorted((files(folder) | {one.name for one in folders(folder)} | set(notes)) - known):
        path = folder / name
        if name in notes and not path.is_file():
            work.note("missing", path, "a side file; tamis score makes it again")
        elif path.suffix in (".npy", ".json") and path.is_file():
            noted = notes.get(name)
            read = partial(read_side_file, path, noted) if noted or path.suffix == ".npy" else partial(read_json, path)
            work.read(path, read)
        else:
            work.note("yours", path, "tamis wrote no such file and reads none: move it elsewhere, or delete it")


def _records(work: _Check) -> None:
    run = work.run.path
    for pattern in ("status*.json", "bench.json", "look.json", OUTPUTS, "failures/*.json"):
        for file in sorted(run.glob(pattern)):
            work.read(file, partial(read_record, file))
            if file.parent.name == "failures" and file.stem not in work.run.urls:
                work.unlisted(file, file.stem)
    for file in sorted(run.glob("events*.jsonl")):
        work.read(file, lambda file=file: list(read_lines(file)), kind="yours")  # type: ignore[misc]
    work.read(run / "recipe.yaml", partial(_read_recipe, run / "recipe.yaml"), kind="yours")


def _read_recipe(path: Path) -> None:
    again = "repeat `tamis score` with the recipe's own file, or the same --scores: it is written again"
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        raise DamageError("", f"it cannot be read ({str(error).partition(chr(10))[0][:200]}); {again}") from error
    if not isinstance(recipe, dict):
        raise DamageError("", f"it holds no recipe but {type(recipe).__name__}; {again}")


def _subsets(work: _Check) -> None:
    for file in sorted((work.run.path / "subsets").glob("[!.]*.parquet")):
        command = shlex.join(["tamis", "select", str(work.run.path), "--recipe", file.stem, "--out", str(file)])
        try:
            table, facts, _ = read_subset(file)
            list(rows_of(file, table, facts))
        except RunError as error:
            work.note("yours", file, f"{error}: {command} (with the recipe's file, if it is one of your own)")


def lines(result: Checked) -> Iterator[str]:
    """Yields the findings as lines for a terminal, then what to do."""
    for kind, meaning in MEANING.items():
        some = [each for each in result.findings if each.kind == kind]
        if some:
            yield f"{kind}: {len(some):,} ({meaning})"
            yield from (f"  {each.path}: {each.what}{' [deleted]' if each.deleted else ''}" for each in some)
    whole = f"{result.run}: {result.shards:,} shards, {result.files:,} parts read to their last byte"
    yield f"{whole}; nothing is damaged, left over or missing" if not result.findings else whole
    if any(each.kind in ("damaged", "left over") and not each.deleted for each in result.findings):
        yield f"next: tamis check {result.run} --delete"
    if result.command:
        yield f"to complete it: {result.command}"
