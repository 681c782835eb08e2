"""Looks a run through to its last byte: what is damaged, left over or missing.

Nothing is mended by guessing: what is damaged is deleted where that is asked for, and `tamis score` makes it again from
the pool. Looking takes hours in a large run, and nothing is locked meanwhile; before a file is deleted it is looked at
again, under its shard's claim or the run's lock.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import yaml

from tamis.data import KEEPS, Column
from tamis.errors import DamageError, RunError
from tamis.processes import TEMPORARY, in_work
from tamis.store import checked, parts, records
from tamis.store.atomic import read_json, remove_file
from tamis.store.checked import CheckedParquet, damaged
from tamis.store.claims import CLAIMS, PREPARING_SECONDS, claimed, free_claims, locked
from tamis.store.manifest import forget, shards_of
from tamis.store.mirror import named, part_names, run_folder
from tamis.store.records import FEATURE, SCORER, read_checked, read_description
from tamis.store.run import Run, labelled_twice
from tamis.store.side_files import read_side_file
from tamis.store.subset_file import read_subset, rows_of
from tamis.store.targets import OUTPUTS
from tamis.store.unfinished import UNFINISHED

Kind = Literal["damaged", "left over", "missing", "yours"]

#: What each kind of finding means.
MEANING: Mapping[Kind, str] = {
    "damaged": "not as it was written; --delete deletes it, and tamis score makes it again",
    "left over": "of a process that was killed, or of a shard that the run does not list; --delete deletes it",
    "missing": "not made yet; tamis score makes it",
    "yours": "tamis does not delete it; each line says what to do",
}


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
    """What was found in a run.

    Attributes:
        run: its folder.
        shards: how many it lists.
        files: parts that were read to their last byte.
        findings: what is not as it should be.
        command: what completes the run; "" where nothing is missing.
    """

    run: Path
    shards: int
    files: int
    findings: tuple[Finding, ...]
    command: str = ""

    @property
    def exit_code(self) -> int:
        """0: the run is whole. 1: something is left to do."""
        return int(bool(self.command) or any(not found.deleted for found in self.findings))


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
        """Notes a finding, and deletes it where that is asked for.

        Args:
            kind, path, what: of the finding.
            still: tells, once nobody else can write it, whether it is as it was found.
            shard: whose claim is held for deleting it; "": the run's lock.
            delete: deletes it; None: the file at `path`.
        """
        done = False
        if self.delete and kind in ("damaged", "left over"):
            with self._alone(shard) as mine:
                if mine is not False:
                    if not still():  # others have changed it meanwhile
                        return
                    delete() if delete is not None else remove_file(path)
                    done = True
        self.findings.append(Finding(kind, os.path.relpath(path, self.run.path), what, done))

    def _alone(self, shard: str) -> AbstractContextManager[bool | None]:
        if shard:
            return claimed(self.run.path, shard)
        return locked(self.run.path, doing="deletes what is damaged", patience=PREPARING_SECONDS)

    def read(
        self,
        path: Path,
        check: Callable[[], object],
        shard: str = "",
        delete: Callable[[], object] | None = None,
        *,
        kind: Kind = "damaged",
    ) -> bool:
        """Runs a check that raises DamageError; returns whether it found nothing.

        What the system does not let be read may be whole, and is not deleted.
        """
        try:
            check()
        except DamageError as error:
            self.note(kind, path, error.what or str(error), partial(_fails, check), shard, delete)
        except (RunError, OSError) as error:
            self.note("yours", path, f"{error}; mend that (its permissions, the disk), and check again")
        else:
            return True
        return False


def _fails(check: Callable[[], object]) -> bool:
    try:
        check()
    except DamageError:
        return True
    except (RunError, OSError):
        return False
    return False


def check_run(path: str | os.PathLike[str], *, delete: bool = False) -> Checked:
    """Looks a run folder through.

    Args:
        path: the run folder, or its URL: every byte that lies there is then downloaded.
        delete: delete what is damaged or left over, except what another process is at.

    Raises:
        RunError: it is no run folder, its run.json or its list of shards is damaged, or it cannot be written to.
    """
    run = Run(run_folder(path, whole=True), partial=True)
    if delete:
        with locked(run.path, doing="deletes what is damaged"):  # it can be written to
            run = Run(run.path, partial=True)
    work = _Check(run, delete)
    checked.forget_whole()  # bytes may change under a time and a size that stay
    _leftovers(work)
    good = _index(work, run.urls)
    for folder in _part_folders(run.path):
        try:
            _folder(work, folder, good)
        except OSError as error:  # of a listing
            work.note("yours", folder, f"{error}; mend that (its permissions, the disk), and check again")
    _beside(work)
    lacks = any(found.kind in ("missing", "damaged") for found in work.findings)
    return Checked(
        run=run.path,
        shards=len(run.urls),
        files=work.files,
        findings=tuple(work.findings),
        command=run.completing() if lacks else "",
    )


def _part_folders(run: Path) -> list[Path]:
    return [entry for kind in ("scores", *KEEPS) for entry in sorted((run / kind).glob("*")) if entry.is_dir()]


def _leftovers(work: _Check) -> None:
    run = work.run.path
    for folder in (run, run / "failures", run / "subsets", run / "index", *_part_folders(run)):
        for file in sorted(folder.glob(f".*{TEMPORARY}")):
            if not in_work(file):
                work.note("left over", file, "a file that was never finished", partial(os.path.lexists, file))
    for name in free_claims(run):  # whoever takes the claim and leaves it removes its file
        what = "a claim that no process holds"
        work.note("left over", run / CLAIMS / name, what, shard=name, delete=lambda: None)


def _index(work: _Check, listed: Mapping[str, str]) -> set[str]:
    """Looks at the index; returns the shards whose index is good."""
    run, good = work.run, set()
    failures = run.path / "failures"
    for shard in run.foreign:
        _unlisted(work, run.index_path(shard), shard, lambda shard=shard: forget(run.path, [shard]))  # type: ignore[misc]
    for shard in run.missing:
        reason = "not read yet"
        if work.read(failures / f"{shard}.json", partial(_failure, failures / f"{shard}.json"), shard):
            reason = _failure(failures / f"{shard}.json") or reason
        work.note("missing", run.index_path(shard), reason)
    for shard in sorted(set(run.shards) & set(listed)):
        again = partial(forget, run.path, [shard])
        if work.read(run.index_path(shard), partial(_read_index, run.index_path(shard)), shard, again):
            good.add(shard)
            work.files += 1
    return good


def _failure(path: Path) -> str:
    return str(read_checked(path, records.FailureFacts)["error"]) if path.is_file() else ""


def _read_index(path: Path) -> None:
    facts = parts.index_facts(path)
    table = parts.read_columns(path, None, checked.Owner(facts.rows, facts.uids))
    if parts.uids_in(path) != facts.uids:
        raise damaged(path, "its uids are not those that its footer tells of")
    for one in parts.INDEX_FIELDS:
        if one.name not in table.column_names:
            raise damaged(path, f"it has no column {one.name!r}")


def _unlisted(work: _Check, path: Path, shard: str, delete: Callable[[], object] | None = None) -> None:
    def still() -> bool:  # the run may have grown
        return shard not in shards_of(work.run.path)

    work.note("left over", path, "the run does not list this shard", still, shard, delete)


def _folder(work: _Check, folder: Path, good: set[str]) -> None:
    """Looks through the parts of one scorer, or of one stored feature."""
    run, kind = work.run, folder.parent.name
    ending = ".npy" if kind == "embeddings" else ".parquet"
    description = folder / (SCORER if kind == "scores" else FEATURE)
    there = part_names(folder, ending)
    facts = {}
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
            _unlisted(work, path, shard)
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
    for name in sorted({path.name for path in folder.iterdir()} | set(notes)):
        path = folder / name
        if name in known or name.startswith("."):
            continue
        if name in notes and not path.is_file():
            work.note("missing", path, "a side file; tamis score makes it again")
        elif path.suffix in (".npy", ".json") and path.is_file():
            noted = notes.get(name)
            check = partial(read_side_file, path, noted) if noted or path.suffix == ".npy" else partial(read_json, path)
            work.read(path, check)
        else:
            _strange(work, path)


def _strange(work: _Check, path: Path) -> None:
    work.note("yours", path, "tamis wrote no such file and reads none: move it elsewhere, or delete it")


def _beside(work: _Check) -> None:
    """Looks at what lies beside the parts: records, the recipe, subsets, what is kept of unfinished shards."""
    run, path = work.run, work.run.path
    for pattern, record in (
        ("status*.json", records.StatusFacts),
        ("bench.json", records.BenchFile),
        (OUTPUTS, records.OutputsFacts),
        ("failures/*.json", records.FailureFacts),
    ):
        for file in sorted(path.glob(pattern)):
            work.read(file, partial(read_checked, file, record))
    for file in sorted((path / "failures").glob("*.json")):
        if file.stem not in run.urls:
            _unlisted(work, file, file.stem)
    for file in sorted(path.glob("events*.jsonl")):
        work.read(file, lambda file=file: list(records.read_lines(file, records.EventFacts)), kind="yours")  # type: ignore[misc]
    work.read(path / "recipe.yaml", partial(_read_recipe, path / "recipe.yaml"), kind="yours")
    for file in sorted((path / "subsets").glob("[!.]*.parquet")):
        command = shlex.join(["tamis", "select", str(path), "--recipe", file.stem, "--out", str(file)])
        try:
            table, facts, _ = read_subset(file)
            list(rows_of(file, table, facts))
        except RunError as error:
            work.note("yours", file, f"{error}: {command} (with the recipe's file, where it is one of your own)")
    for folder in sorted((path / UNFINISHED).glob("*")):
        for file in sorted(folder.glob("[!.]*.parquet")):
            if folder.name not in run.urls:
                _unlisted(work, file, folder.name)
            else:
                work.read(file, lambda file=file: CheckedParquet(file).read(None), folder.name)  # type: ignore[misc]


def _read_recipe(path: Path) -> None:
    again = "repeat `tamis score` with the recipe's own file, or the same --scores: it is written again"
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        raise DamageError("", f"it cannot be read ({str(error).partition(chr(10))[0][:200]}); {again}") from error
    if not isinstance(found, dict):
        raise DamageError("", f"it holds no recipe but {type(found).__name__}; {again}")


def lines(found: Checked) -> Iterator[str]:
    """Yields what was found as lines for a terminal, then what to do."""
    for kind, meaning in MEANING.items():
        some = [each for each in found.findings if each.kind == kind]
        if some:
            yield f"{kind}: {len(some):,} ({meaning})"
            yield from (f"  {each.path}: {each.what}{' [deleted]' if each.deleted else ''}" for each in some)
    name = named(found.run)
    whole = f"{name}: {found.shards:,} shards, {found.files:,} parts read to their last byte"
    yield f"{whole}; everything is as it should be" if not found.findings else whole
    if any(each.kind in ("damaged", "left over") and not each.deleted for each in found.findings):
        yield f"next: tamis check {name} --delete"
    if found.command:
        yield f"to complete it: {found.command}"
