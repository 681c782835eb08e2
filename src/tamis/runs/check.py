"""`tamis check RUN`: reads every byte of a run and reports damaged, left-over and missing files.

Check changes nothing: it says which files to delete, and which command makes them again. It holds no lock, so other
commands may work on the run meanwhile.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import yaml

from tamis.core.errors import DamageError, RunError
from tamis.core.files import checked
from tamis.core.files.checked import CheckedParquet, check_binding, read_lines, read_record
from tamis.core.files.storage import RemotePath, drop_cached, files, folders, read_json
from tamis.core.files.targets import OUTPUTS
from tamis.core.processes import TEMPORARY, in_work
from tamis.runs import parts
from tamis.runs.claims import CLAIMS, free_claims
from tamis.runs.manifest import (
    description_of,
    part_folders,
    read_description,
    read_manifest,
    same_label_error,
    shards_of,
)
from tamis.runs.parts import read_side_file
from tamis.runs.run import Run, completed_by
from tamis.runs.subset import SubsetFile
from tamis.runs.writers import UNFINISHED

Kind = Literal["damaged", "left over", "missing", "yours"]

MEANING: Mapping[Kind, str] = {
    "damaged": "changed since it was written; delete it, so that it can be made again",
    "left over": "from a killed process, or from a shard that the run does not list; delete it",
    "missing": "not made yet, or lost",
    "yours": "each line says what to do",
}


@dataclass(frozen=True)
class Finding:
    """One problem that a check found.

    Attributes:
        kind: see `MEANING`.
        path: the file or folder, relative to the run.
        what: what is wrong, a sentence.
    """

    kind: Kind
    path: str
    what: str


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The result of a check.

    Attributes:
        run: the run's folder.
        shards: number of shards that it lists.
        files: number of parts that were read to their last byte.
        findings: the problems found.
        command: what completes the run: a command, or in words; "" if nothing is missing.
        requested: {label: pairs that a signal was asked to judge} of signals that were not asked for all.
    """

    run: Path
    shards: int
    files: int
    findings: tuple[Finding, ...]
    command: str = ""
    requested: Mapping[str, int] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0: nothing left to do. 1: something is missing, damaged or left over."""
        return int(bool(self.command or self.findings))

    @property
    def to_delete(self) -> tuple[Path, ...]:
        """The damaged and left-over files. What people typed is never among them."""
        return tuple(self.run / each.path for each in self.findings if each.kind in ("damaged", "left over"))


def check(run: str | os.PathLike[str]) -> Checked:
    """Verifies every byte of a run; finds what is damaged, left over or missing.

    Args:
        run: a run folder, or its URL.

    Raises:
        RunError: it is not a run folder, or run.json or the shard list is damaged; neither can be regenerated.
    """
    opened = Run(run, partial=True)
    work = _Check(opened)
    checked.verify_again()  # bytes may change without a change of time and size
    _leftovers(work)
    good = _index(work)
    for folder in part_folders(opened.path):
        try:
            _folder(work, folder, good)
        except OSError as error:
            work.unreadable(folder, error)
    _records(work)
    lacks = {work.remedy(opened.path / each.path) for each in work.findings if each.kind in ("missing", "damaged")}
    command = "; then ".join(words or opened.completing_command() for words in sorted(lacks))
    findings = tuple(work.findings)
    return Checked(
        run=opened.path,
        shards=len(opened.urls),
        files=work.files,
        findings=findings,
        command=command,
        requested=work.requested,
    )


@dataclass
class _Check:
    run: Run
    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    labels: dict[str, Path] = field(default_factory=dict)  # of scores, to their folders
    requested: dict[str, int] = field(default_factory=dict)
    remedies: dict[Path, str] = field(default_factory=dict)  # of folders of parts that tamis score does not make

    def remedy(self, path: Path) -> str:
        """Returns what makes a file or folder again, in words; "" for `tamis score`."""
        return self.remedies.get(path) or self.remedies.get(path.parent, "")

    def note(self, kind: Kind, path: Path, what: str) -> None:
        """Adds a finding."""
        if checked.is_typed(path) and kind in ("damaged", "left over"):
            kind, what = "yours", f"{what}; {checked.TYPED_REMEDY}"
        self.findings.append(Finding(kind, path.relative_to(self.run.path).as_posix(), what))

    def read(self, path: Path, read: Callable[[Path], object], kind: Kind = "damaged") -> bool:
        """Reads a file with a function that raises DamageError; returns whether it is good."""
        drop_cached(path)
        try:
            read(path)
        except DamageError as error:
            self.note(kind, path, error.what or str(error))
        except (RunError, OSError) as error:
            self.unreadable(path, error)
        else:
            return True
        return False

    def unreadable(self, path: Path, error: Exception) -> None:
        """Adds a finding for a file that we may not read. It may be good, so it is not listed for deletion."""
        self.note("yours", path, f"{error}; fix the cause (permissions, disk) and check again")

    def unlisted(self, path: Path, shard: str) -> None:
        """Adds a finding for a file of a shard that the run does not list, unless the run has grown meanwhile."""
        if shard not in shards_of(self.run.path, read_manifest(self.run.path)):
            self.note("left over", path, "the run does not list this shard")


def _leftovers(work: _Check) -> None:
    run = work.run.path
    for folder in (run, run / "failures", run / "subsets", run / "index", *part_folders(run)):
        for file in sorted(folder.glob(f".*{TEMPORARY}")):
            if not in_work(file):
                work.note("left over", file, "an unfinished file")
    for name in free_claims(run):
        work.note("left over", run / CLAIMS / name, "a claim that no process holds")
    for folder in folders(run / UNFINISHED):
        for file in sorted(folder.glob("[!.]*.parquet")):
            if folder.name not in work.run.urls:
                work.unlisted(file, folder.name)
            else:
                work.read(file, lambda path: CheckedParquet(path).verify())


def _index(work: _Check) -> set[str]:
    """Checks the index; returns the shards with a good index."""
    run, good = work.run, set()
    for shard in run.unlisted:
        work.unlisted(run.index_path(shard), shard)
    for shard in run.missing_shards:
        failure = run.path / "failures" / f"{shard}.json"
        known = failure.is_file() and work.read(failure, read_record)
        work.note("missing", run.index_path(shard), str(read_record(failure)["error"]) if known else "not read yet")
    for shard in sorted(set(run.shards) & set(run.urls)):
        if work.read(run.index_path(shard), partial(_verify, owner=None)):
            good.add(shard)
            work.files += 1
    return good


def _verify(path: Path, owner: checked.Owner | None, columns: Collection[str] = ()) -> None:
    """Reads a Parquet part to its last byte."""
    part = CheckedParquet(path)
    check_binding(path, part.facts, owner)
    part.verify(list(columns))


def _folder(work: _Check, folder: Path, good: set[str]) -> None:
    """Checks the parts of one signal or stored feature."""
    run, kind, description = work.run, folder.parent.name, description_of(folder)
    ending = ".npy" if kind == "embeddings" else ".parquet"
    there, facts = files(folder, ending), {}
    if not description.is_file():
        if there:
            work.note("missing", description, "repeat the command that made these parts, or delete the folder")
    elif work.read(description, read_description):
        facts = read_description(description)
        work.remedies[folder] = completed_by(facts)
        other = work.labels.setdefault(facts["label"], folder) if kind == "scores" else folder
        if other != folder:
            work.note("yours", description, same_label_error(facts["label"], other, folder))
    if (facts or there) and (lacking := sorted(good - there)):
        work.note("missing", folder, f"{len(lacking):,} shards, the first {lacking[0]}")
    widths: dict[Path, int] = {}
    some = every = 0

    def read(path: Path) -> None:
        # Without an index the rows are not known, but a part that is cut would stop the command that makes the index.
        owner = parts.index_facts(run.index_path(path.stem)) if path.stem in good else None
        if ending == ".npy":
            widths[path] = parts.read_rows(path, owner).shape[1]
        else:
            _verify(path, owner, [column["name"] for column in facts.get("columns", ())])

    for shard in sorted(there):
        path = folder / f"{shard}{ending}"
        if shard not in run.urls:
            work.unlisted(path, shard)
        elif work.read(path, read):
            work.files += 1
            if facts.get("within") and shard in good:
                requested, rows = parts.requested_in(path), parts.index_facts(run.index_path(shard)).rows
                some += rows if requested is None else requested
                every += rows
    if some < every:
        work.requested[facts["label"]] = some
    for usual, _ in Counter(widths.values()).most_common(1):
        for path in (path for path, width in widths.items() if width != usual):
            work.note("damaged", path, f"it holds {widths[path]} numbers per row, most other shards {usual}")
    _side_files(work, folder, facts.get("side_files", {}), {description.name, *(f"{shard}{ending}" for shard in there)})


def _side_files(work: _Check, folder: Path, notes: Mapping[str, Mapping[str, object]], known: set[str]) -> None:
    for name in sorted((files(folder) | {inner.name for inner in folders(folder)} | set(notes)) - known):
        path, noted = folder / name, notes.get(name)
        if noted and not path.is_file():
            work.note("missing", path, "a side file")
        elif path.suffix in (".npy", ".json") and path.is_file():
            work.read(path, partial(read_side_file, noted=noted) if noted or path.suffix == ".npy" else read_json)
        else:
            work.note("yours", path, "tamis neither writes nor reads such a file: move it elsewhere, or delete it")


def _records(work: _Check) -> None:
    """Checks the JSON files of a run, its recipe and its subsets."""
    run = work.run.path
    results = ("bench.json", "choose.json", "shares.json", "look.json")
    for pattern in ("status*.json", *results, "views.json", OUTPUTS, "failures/*.json"):
        for file in sorted(run.glob(pattern)):
            work.read(file, read_record)
            if file.parent.name == "failures" and file.stem not in work.run.urls:
                work.unlisted(file, file.stem)
    for file in sorted(run.glob("events*.jsonl")):
        work.read(file, lambda path: list(read_lines(path)), kind="yours")
    work.read(run / "recipe.yaml", _read_recipe, kind="yours")
    for file in sorted((run / "subsets").glob("[!.]*.parquet")):
        command = shlex.join(["tamis", "select", str(run), "--recipe", file.stem])
        try:
            list(SubsetFile(file).rows())
        except RunError as error:
            work.note("yours", file, f"{error}: {command} (with your recipe's file, if it is not a shipped recipe)")


def _read_recipe(path: Path) -> None:
    try:
        if not isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict):
            raise ValueError("it holds no recipe")
    except (yaml.YAMLError, ValueError, RecursionError, OSError) as error:
        short = str(error).partition("\n")[0][:200]
        again = "repeat `tamis score` with the recipe's file or the same --signals, which writes it again"
        raise DamageError("", f"it cannot be read ({short}); {again}") from error


def lines(result: Checked) -> Iterator[str]:
    """Yields the lines to print: the findings, then what to do."""
    for kind, meaning in MEANING.items():
        some = [each for each in result.findings if each.kind == kind]
        if some:
            yield f"{kind}: {len(some):,} ({meaning})"
            yield from (f"  {each.path}: {each.what}" for each in some)
    whole = f"{result.run}: {result.shards:,} shards, {result.files:,} parts read to their last byte"
    yield f"{whole}; nothing is damaged, left over or missing" if not result.findings else whole
    if result.to_delete:
        yield "delete these files while no other command works on the run:"
        for path in result.to_delete:
            yield str(path) if isinstance(path, RemotePath) else shlex.join(["rm", "--", str(path)])
    for label, requested in result.requested.items():
        yield f"{label}: {requested:,} pairs are scored, the others were not requested"
    if result.command:
        yield f"to complete it: {result.command}"
