"""Looking a run folder through: what is damaged, left over, foreign or missing, and putting right what can be.

Every byte of every part is read. Nothing is ever mended by guessing: what is damaged goes, and `tamis score` makes it
again from the pool.

That takes hours in a large run, and others may work in it meanwhile. So nothing is locked while it is looked, but each
thing that is put right, and it is looked at again under the lock, or under its shard's claim.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic

from tamis.data import KEEPS, Column
from tamis.errors import DamageError, RunError
from tamis.store import formats, mirror, parts, seals
from tamis.store.atomic import TEMPORARY, in_work, read_json, remove_file, write_json
from tamis.store.beside_parts import oddities
from tamis.store.descriptions import FEATURE, SCORER, description_of, read_description
from tamis.store.lock import CLAIMS, PREPARING_SECONDS, claimed, locked, unclaimed
from tamis.store.manifest import forget, shards_of
from tamis.store.mirror import named, part_names, run_folder
from tamis.store.run import FORMAT, Run, labelled_twice, read_manifest
from tamis.store.seals import Owner, SealedParquet
from tamis.store.shard_list import SHARDS, write_shards
from tamis.store.side_files import CLASS_NAMES, CLASS_VECTORS, check_classes, read_side_file
from tamis.store.targets import OUTPUTS
from tamis.store.upgrade import seal_part

Kind = Literal["damage", "leftover", "foreign", "unsealed", "missing", "unread", "yours"]

#: What each kind of finding means, for people.
MEANING: Mapping[str, str] = {
    "damage": "not as it was written: --repair deletes it, tamis score makes it again",
    "leftover": "of a process that was killed: --repair deletes it",
    "foreign": "of a shard or a scorer that the run does not know: --repair deletes it",
    "unsealed": "of an older version, without a seal: --repair checks and seals it",
    "missing": "not made yet: tamis score makes it",
    "unread": "the system does not let it be read, so nobody knows what it holds: --repair leaves it alone",
    "yours": "not for tamis to delete: --repair leaves it alone, and each line says what to do",
}

#: What `--repair` does something about, where it can.
_REPAIRABLE: frozenset[Kind] = frozenset({"damage", "leftover", "foreign", "unsealed"})

#: What the lock tells others.
_DOING = "repairs the run"

#: Arrays that stand beside parts: `tamis.store.side_files`, and the centres of `tamis cluster`.
_ARRAYS = ("class_vectors.npy", "centroids.npy")


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        kind: see `MEANING`.
        path: relative to the run folder.
        what: a sentence.
        repaired: whether it has been put right.
    """

    kind: Kind
    path: str
    what: str
    repaired: bool = False


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was found in a run.

    Attributes:
        run: its folder.
        shards: how many it lists.
        files: parts that were read to their last byte.
        findings: what is not as it should be.
        command: what completes the run; "" where nothing is missing, or nothing can be said.
    """

    run: Path
    shards: int
    files: int
    findings: tuple[Finding, ...]
    command: str = ""

    @property
    def left(self) -> tuple[Finding, ...]:
        """What is still not as it should be."""
        return tuple(found for found in self.findings if not found.repaired)

    @property
    def exit_code(self) -> int:
        """0: the run is whole. 1: something is left to do; `lines` says what does it."""
        return 1 if self.left or self.command else 0


@dataclass
class _Examination:
    """One walk through a run."""

    run: Run
    repair: bool
    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    gone: set[str] = field(default_factory=set)  # shards whose index is not there, or not good
    labels: dict[str, Path] = field(default_factory=dict)  # of scores, to the folders that have them
    bare: bool = False  # whether parts of an older version are left without a seal
    unread: set[str] = field(default_factory=set)  # shards whose index cannot be read: nothing is known of their parts
    _listed: tuple[object, frozenset[str]] | None = None  # the shards that the run lists, and of which version of it

    def tell(
        self,
        kind: Kind,
        path: Path,
        what: str,
        mend: Callable[[], object] | None = None,
        shard: str = "",
        still: Callable[[], bool] | None = None,
    ) -> bool:
        """Notes a finding, and puts it right where that is asked for and nobody is at it.

        Args:
            kind, path, what: of the finding.
            mend: what puts it right; it may return False where it did not.
            shard: whose claim is held for that; "": the folder's lock.
            still: tells, while that is held, whether it is as it was found. If not, nothing is noted: others have
                changed it meanwhile.

        Returns:
            Whether it is right now.
        """
        done = False
        if self.repair and mend is not None:
            with claimed(self.run.path, shard) if shard else self.alone() as mine:
                if mine:
                    if still is not None and not still():
                        return True
                    done = mend() is not False
        self.findings.append(Finding(kind, os.path.relpath(path, self.run.path), what, done))
        return done

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Holds the folder's lock for one thing that is put right."""
        with locked(self.run.path, doing=_DOING, patience=PREPARING_SECONDS):
            yield True

    def remove(
        self, kind: Kind, path: Path, what: str, shard: str = "", still: Callable[[], bool] | None = None
    ) -> None:
        self.tell(kind, path, what, lambda: remove_file(path), shard, still)

    def unlisted(self, shard: str) -> Callable[[], bool]:
        """Returns what tells whether the run still does not list a shard: it may have grown since it was opened."""

        def still() -> bool:
            files = [self.run.path / name for name in ("run.json", SHARDS)]
            version = tuple((file.stat().st_ino, file.stat().st_mtime_ns) for file in files if file.exists())
            if self._listed is None or self._listed[0] != version:
                self._listed = (version, frozenset(shards_of(self.run.path)))
            return shard not in self._listed[1]

        return still

    def denied(self, path: Path, error: RunError | OSError) -> None:
        """Notes what the system does not let be read: it may be whole, so nothing is done about it."""
        self.tell("unread", path, f"{error}; mend that (its permissions, the disk), and look again")


def examine(path: str | os.PathLike[str], *, repair: bool = False) -> Diagnosis:
    """Looks a run folder through.

    Args:
        path: the run folder, or its URL: every byte that lies there is then brought down.
        repair: delete what is damaged, left over or foreign, and seal the parts of older versions. What another process
            is at is left alone.

    Raises:
        RunError: it is no run folder, its run.json or its list of shards is damaged, or it cannot be written to.
    """
    path = run_folder(path, whole=True)
    run = Run(path, partial=True)  # before the lock makes a folder of a slip of the pen
    if repair:
        with locked(path, doing=_DOING):  # it can be written to, and nobody else is about to say what it shall hold
            run = Run(path, partial=True)
    return _examined(run, repair=repair)


def _examined(run: Run, *, repair: bool) -> Diagnosis:
    work = _Examination(run, repair)
    seals.forget_whole()  # bytes may change under a time and a size that stay
    _leftovers(work)
    listed = list(run.urls)  # damage to the list is beyond repair, and ends this
    _index(work)
    for folder in _folders(run.path):
        try:
            _folder(work, folder)
        except OSError as error:  # of a listing; what is wrong with a file is told of the file
            work.denied(folder, error)
    _records(work)
    _beside(work)
    if repair and not run.sealed and not _work_left(work, "damage", "unsealed", "unread", "yours") and not work.bare:
        with work.alone():
            _seal_run(run)
    return Diagnosis(
        run=run.path,
        shards=len(listed),
        files=work.files,
        findings=tuple(work.findings),
        command=run.completing() if any(found.kind in ("missing", "damage") for found in work.findings) else "",
    )


def _work_left(work: _Examination, *kinds: Kind) -> bool:
    """Tells whether findings of some kinds are left as they are."""
    return any(found.kind in kinds and not found.repaired for found in work.findings)


def _folders(path: Path) -> list[Path]:
    return [entry for kind in ("scores", *KEEPS) for entry in sorted((path / kind).glob("*")) if entry.is_dir()]


def _leftovers(work: _Examination) -> None:
    path = work.run.path
    holding = (path / "index", *_folders(path))
    for folder in (path, path / "failures", path / "subsets", *holding):
        try:
            unfinished = sorted(file for file in folder.glob(f".*{TEMPORARY}") if not in_work(file))
        except OSError:  # told of when what lies there is looked at
            continue
        for file in unfinished:
            work.remove("leftover", file, "a file that was never finished")
    for name in sorted(os.listdir(path / CLAIMS)) if (path / CLAIMS).is_dir() else []:
        if unclaimed(path, name):
            work.tell("leftover", path / CLAIMS / name, "a claim that no process holds", _claiming(path, name))


def _fails(check: Callable[[], object]) -> Callable[[], bool]:
    """Returns what tells whether a check still finds damage."""

    def still() -> bool:
        try:
            check()
        except DamageError:
            return True
        except RunError:  # nobody knows any more what it holds
            return False
        return False

    return still


def _claiming(path: Path, shard: str) -> Callable[[], None]:
    def claim() -> None:
        with claimed(path, shard):
            pass  # leaving a claim removes its file

    return claim


def _index(work: _Examination) -> None:
    run = work.run
    for shard in run.foreign:
        forgetting = _forgetting(run, shard)
        what = "the run does not list this shard"
        work.tell("foreign", run.index_path(shard), what, forgetting, shard, work.unlisted(shard))
        work.gone.add(shard)
    for shard in run.missing:
        work.tell("missing", run.index_path(shard), _reason(run, shard))
        work.gone.add(shard)
    for shard in sorted(set(run.shards) - work.gone):
        path = run.index_path(shard)
        try:
            sealed = _read_index(run, shard)
            work.files += 1
        except DamageError as error:
            work.gone.add(shard)
            why = f"{error.what or error}; with it every part of the shard is worth nothing"
            work.tell("damage", path, why, _forgetting(run, shard), shard, _fails(partial(_read_index, run, shard)))
            continue
        except RunError as error:
            work.unread.add(shard)
            work.denied(path, error)
            continue
        if not sealed:
            work.tell("unsealed", path, "no seal", lambda path=path: seal_part(path, parts.uids_in(path)), shard)  # type: ignore[misc]


def _read_index(run: Run, shard: str) -> bool:
    """Reads an index part to its last byte; returns whether it has a seal."""
    path = run.index_path(shard)
    facts = parts.index_facts(path)
    table = parts.read_columns(path, None, Owner(facts.rows, facts.uids, run.sealed))
    if facts.uids and parts.uids_in(path) != facts.uids:
        raise DamageError("", "its uids are not those that its footer tells of")
    lacking = {one.name for one in parts.INDEX_FIELDS} - set(table.column_names)
    if lacking:
        raise DamageError("", f"it has no column {sorted(lacking)[0]!r}")
    return facts.sealed


def _reason(run: Run, shard: str) -> str:
    try:
        return run.failures.get(shard, "not read yet")
    except DamageError:
        return "not read yet"


def _forgetting(run: Run, shard: str) -> Callable[[], None]:
    return lambda: forget(run.path, [shard])


def _sealing(run: Run, made: _Made, shard: str) -> Callable[[], bool]:
    """Returns what gives a part its seal, if it still belongs to the rows that the index has."""

    def seal() -> bool:
        try:
            if not _read_shards_part(run, made, shard):
                seal_part(made.path(shard), parts.uids_of(run.index_path(shard)))
        except RunError:
            return False
        return True

    return seal


def _folder(work: _Examination, folder: Path) -> None:
    """Looks through the parts of one scorer, or of one stored feature."""
    run = work.run
    made = _Made(folder)
    there = part_names(folder, made.ending)
    _described(work, made, bool(there))
    _side_files(work, made)
    lacking = sorted(set(run.urls) - work.gone - there)
    if lacking and (there or made.known):
        work.tell("missing", folder, f"{len(lacking):,} shards, the first {lacking[0]}")
    for shard in sorted(there - work.unread):
        path = made.path(shard)
        if shard not in run.urls:
            work.remove("foreign", path, "the run does not list this shard", shard, work.unlisted(shard))
        elif shard in work.gone:
            if mirror.exists(path):
                still = _fails(partial(_read_index, run, shard))
                work.remove("damage", path, "its shard has no good index", shard, still)
        else:
            _part(work, path, shard, made)
    _widths(work, made)
    for shard in made.bare:
        work.tell("unsealed", made.path(shard), "no seal", _sealing(run, made, shard), shard)


def _widths(work: _Examination, made: _Made) -> None:
    """Looks whether all embeddings of a folder have one width. That of most is the right one; without most, none is."""
    counts = Counter(made.widths.values())
    if len(counts) < 2:
        return
    work.bare |= bool(made.bare)
    made.bare.clear()  # a seal would say that a part belongs there
    usual, often = counts.most_common(1)[0]
    if 2 * often <= counts.total():
        told = ", ".join(f"{width} ({count:,} parts)" for width, count in counts.most_common())
        what = f"its parts differ in numbers a row: {told}. Delete those that do not belong there"
        work.tell("yours", made.folder, what)
        return
    for shard, width in list(made.widths.items()):
        if width != usual:
            what = f"it holds {width} numbers a row, most of its siblings {usual}"

            def still(shard: str = shard, width: int = width) -> bool:
                _read_shards_part(work.run, made, shard)
                return made.widths[shard] == width

            work.remove("damage", made.path(shard), what, shard, still)


@dataclass
class _Made:
    """What lies in a folder of parts.

    Attributes:
        folder: of the parts.
        columns: of scores, where `scorer.json` can be read; () of stored features.
        known: whether the file that describes the folder can be read.
        side_files: what the description notes of the files beside the parts, by name.
        widths: numbers a row of each embeddings part that is whole, by shard.
        bare: shards whose part is whole, and has no seal.
    """

    folder: Path
    columns: tuple[Column, ...] = ()
    known: bool = False
    side_files: Mapping[str, Any] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)
    bare: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.folder.parent.name

    @property
    def ending(self) -> str:
        return ".npy" if self.kind == "embeddings" else ".parquet"

    def path(self, shard: str) -> Path:
        """Returns the part of a shard."""
        return self.folder / f"{shard}{self.ending}"

    @property
    def facts(self) -> Path:
        """The file that describes the folder."""
        return description_of(self.folder)


def _described(work: _Examination, made: _Made, parts_there: bool) -> None:
    """Reads the file that describes a folder. Its parts say themselves whose they are: they outlive it."""
    path = made.facts
    scores = made.kind == "scores"
    if not path.is_file():
        if parts_there:
            work.tell("missing", path, _writing_it(made.folder))
        return
    try:
        read = read_description(path)
        made.columns = tuple(Column(**column) for column in read.get("columns", ())) if scores else ()
        made.known = True
        made.side_files = read.get("side_files", {})
        other = work.labels.setdefault(read["label"], made.folder) if scores else made.folder
        if other != made.folder:
            work.tell("yours", path, labelled_twice(read["label"], other, made.folder))
    except DamageError as error:
        still = _fails(partial(read_description, path))
        work.remove("damage", path, f"{error}; the parts beside it stay", "", still)
    except RunError as error:
        work.denied(path, error)


def _writing_it(folder: Path) -> str:
    """Returns what writes the description of a folder anew, beside its parts."""
    maker = {"cluster": "tamis cluster", "labels": "the next label"}.get(folder.name.rpartition("-")[0], "tamis score")
    return f"{maker} writes it, of the same settings; who does not want these parts any more deletes {folder}"


def _part(work: _Examination, path: Path, shard: str, made: _Made) -> None:
    run = work.run
    try:
        sealed = _read_shards_part(run, made, shard)
        work.files += 1
    except DamageError as error:
        still = _fails(partial(_read_shards_part, run, made, shard))
        work.remove("damage", path, error.what or str(error), shard, still)
        return
    except RunError as error:
        work.denied(path, error)
        return
    if not sealed:
        made.bare.append(shard)


def _read_shards_part(run: Run, made: _Made, shard: str) -> bool:
    """Reads a part to its last byte, as one of the rows that the index has; returns whether it has a seal."""
    facts = parts.index_facts(run.index_path(shard))
    return _read_part(made.path(shard), Owner(facts.rows, facts.uids, run.sealed), made)


def _read_part(path: Path, owner: Owner, made: _Made) -> bool:
    """Reads a part to its last byte; returns whether it has a seal."""
    if made.kind == "embeddings":
        made.widths[path.stem] = parts.read_rows(path, owner).shape[1]
        return parts.is_sealed(path)
    if made.kind != "scores":
        parts.read_text_lists(path, owner)
    table = parts.read_columns(path, None, owner)
    for column in made.columns:
        if column.name not in table.column_names:
            raise DamageError("", f"it has no column {column.name!r}")
        parts.of_kind(path, column.name, table.column(column.name), column.kind)
    return SealedParquet(path).sealed


def _side_files(work: _Examination, made: _Made) -> None:
    folder, notes = made.folder, made.side_files
    sealed, faulty = work.run.sealed, False
    for name in sorted({path.name for path in folder.iterdir()} | set(notes)):
        path = folder / name
        try:
            if name in notes and not path.is_file():
                work.tell("missing", path, "a side file; tamis score makes it again")
                faulty = True
            elif name in notes or name in _ARRAYS:
                _check_side_file(path, notes.get(name), sealed=sealed)
                if path.suffix == ".npy" and not parts.is_sealed(path):
                    work.tell("unsealed", path, "no seal", partial(seal_part, path, ""))
            elif path.suffix == ".json" and name not in (SCORER, FEATURE):
                read_json(path)
        except DamageError as error:
            faulty = True
            described = name in notes or name in _ARRAYS
            check = partial(_check_side_file, path, notes.get(name), sealed=sealed) if described else None
            work.remove("damage", path, error.what or str(error), "", _fails(check or partial(read_json, path)))
        except RunError as error:
            faulty = True
            work.denied(path, error)
    try:
        if made.known and not notes and not faulty:  # else it is known of each whether it is right
            check_classes(folder)
    except DamageError as error:
        both = [folder / name for name in (CLASS_NAMES, CLASS_VECTORS)]
        work.tell("damage", folder, error.what, _removing(*both), "", _fails(partial(check_classes, folder)))


def _check_side_file(path: Path, note: Any, *, sealed: bool) -> None:
    content = read_side_file(path, note)
    if path.suffix == ".npy":
        if sealed and not parts.is_sealed(path):
            raise DamageError("", "it has no seal, as every file of this run has")
        if path.name in _ARRAYS and (content.dtype != np.float32 or content.ndim != 2):
            raise DamageError("", f"it holds {content.dtype} of shape {content.shape}")


def _beside(work: _Examination) -> None:
    try:
        for odd in oddities(work.run):
            work.tell(odd.kind, odd.path, odd.what, odd.mend, odd.shard, odd.still or work.unlisted(odd.shard))
    except OSError as error:  # of a listing: a folder's own is told of above
        if not _work_left(work, "unread"):
            work.denied(work.run.path, error)


def _removing(*paths: Path) -> Callable[[], None]:
    def remove() -> None:
        for path in paths:
            remove_file(path)

    return remove


def _records(work: _Examination) -> None:
    path = work.run.path
    for file in sorted(path.glob("status*.json")):
        _json(work, file, formats.StatusFacts)
    _json(work, path / "bench.json", formats.BenchFile)
    _json(work, path / OUTPUTS, formats.OutputsFacts)
    for file in sorted((path / "failures").glob("*.json")):
        _json(work, file, formats.FailureFacts)
        if file.stem not in work.run.urls and file.exists():
            what = "the run does not list this shard"
            work.remove("foreign", file, what, file.stem, work.unlisted(file.stem))


def _json(work: _Examination, path: Path, record: type[pydantic.BaseModel]) -> None:
    if not path.is_file():
        return
    try:
        formats.read_checked(path, record)
    except DamageError as error:
        work.remove("damage", path, str(error), "", _fails(partial(formats.read_checked, path, record)))
    except RunError as error:
        work.denied(path, error)


def _seal_run(run: Run) -> None:
    """Says in run.json that every part is sealed from now on; the list of shards goes to its own file."""
    facts = read_manifest(run.path)
    assert facts is not None, "it was opened"
    shards = dict(sorted(shards_of(run.path).items()))
    all_sealed = {**facts, "format": FORMAT, "sealed": True, "shards": write_shards(run.path, shards)}
    write_json(run.path / "run.json", formats.sealed(all_sealed))


def lines(found: Diagnosis) -> Iterator[str]:
    """Yields a diagnosis as lines for a terminal: what was found, then what to do."""
    for kind, meaning in MEANING.items():
        some = [each for each in found.findings if each.kind == kind]
        if some:
            yield f"{kind}: {len(some):,} ({meaning})"
            yield from (f"  {each.path}: {each.what}{' [repaired]' if each.repaired else ''}" for each in some)
    name = named(found.run)
    whole = f"{name}: {found.shards:,} shards, {found.files:,} parts read to their last byte"
    yield f"{whole}; everything is as it should be" if not found.findings else whole
    kinds = {each.kind for each in found.left}
    if kinds & _REPAIRABLE:
        yield f"next: tamis doctor {name} --repair"
    if found.command:
        yield f"{'then' if kinds & _REPAIRABLE else 'next'}: {found.command}"
