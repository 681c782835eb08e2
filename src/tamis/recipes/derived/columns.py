"""Adds columns to a run, computed from what it stores."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.core.errors import DamageError, RunError
from tamis.core.files.checked import read_array, write_array
from tamis.core.files.storage import files, remove
from tamis.core.ids import as_json_value, fingerprint
from tamis.core.types import Column, settings
from tamis.core.version import __version__
from tamis.recipes.derived import Derived, Saved
from tamis.runs import Run, manifest, open_run, parts
from tamis.runs.claims import PREPARING_SECONDS, check_same_rows, claim_to_write, lock_run
from tamis.runs.makers import maker_of
from tamis.runs.writers import UNFINISHED

#: {column: (rows,) numbers with NaN, or words with None}, and {side file: array}.
Computed = tuple[Mapping[str, Any], Mapping[str, Any]]


def add_derived(
    run: str | os.PathLike[str] | Run,
    signals: Iterable[tuple[str, Derived]],
    *,
    columns: Mapping[str, str] | None = None,
    partial: bool = False,
) -> Run:
    """Adds labelled signals to a run, one after the other: one may read another's columns. See `tamis.derive`.

    `columns` maps names that the signals read to columns of the run, where they differ.
    """
    opened = open_run(run, partial=partial)
    for label, signal in signals:
        opened = _with_columns_of(signal, label or signal.name, opened, columns or {})
    return opened


def count_lacking(run: Run, signal: Derived, names: Mapping[str, str]) -> int:
    """Returns how many shards of a run lack the columns of a signal; RunError if the run lacks what it reads."""
    stem = _stem(run, signal.name, signal.version, settings(signal, recorded=True), _sources(signal, run, names))
    return len(set(run.shards) - files(run.path / "scores" / f"{signal.name}-{stem}", ".parquet"))


def _sources(signal: Derived, run: Run, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns what the values of a signal depend on besides its settings: columns that it reads, contents of files."""
    table, reads = run.table(names), {}
    for name in sorted(signal.reads):
        inner, group, _ = run.locate(names.get(name, name))
        column = f"{group.folder.name}/{inner}" if group is not None else inner
        reads[name] = [column, table.about(name).get("temperature")]  # which may be noted in the folder later
    return {"reads": reads, "contents": dict(signal.contents())}


def _stem(run: Run, name: str, version: int, settings: Mapping[str, Any], more: Mapping[str, Any]) -> str:
    rows = {**settings, "stamps": list(run.stamps)}  # other rows have other values
    return fingerprint({"name": name, "version": version, "settings": rows, **more})


def _with_columns_of(signal: Derived, label: str, run: Run, names: Mapping[str, str]) -> Run:
    table = run.table(names)
    table.check_requested(sorted(signal.reads), signal.name)
    more = _sources(signal, run, names)

    def compute(saved: Saved) -> Computed:
        made = dict(signal.compute(table, saved))
        return {column.name: made.pop(column.name) for column in signal.columns}, made

    return add_columns(
        run, signal.name, label, settings(signal, recorded=True), signal.columns, compute,
        version=signal.version, more=more, lacking=signal.lacking, reads=[names.get(one, one) for one in signal.reads],
    )[0]  # fmt: skip


def add_columns(
    run: Run,
    name: str,
    label: str,
    settings: Mapping[str, Any],
    columns: Sequence[Column],
    compute: Callable[[Saved], Computed],
    *,
    version: int = 1,
    more: Mapping[str, Any] | None = None,
    lacking: str = "the row has no embedding",
    reads: Iterable[str] = (),
) -> tuple[Run, str]:
    """Adds columns computed from what a run stores; returns the run, opened again, and the label of the columns.

    `compute` is called unless every shard has the columns of these settings. The same columns of fewer rows are
    deleted. The label gets a suffix if other columns have it. `more` is what the values depend on besides settings. The
    models that made the columns `reads` are recorded.
    """
    stem = _stem(run, name, version, settings, more or {})
    target, scratch = run.path / "scores" / f"{name}-{stem}", run.path / UNFINISHED / f"{name}-{stem}"
    made, plain = None, as_json_value(settings)

    def saved(part: str, make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        path = scratch / f"{part}.npy"
        try:
            return read_array(path)
        except (DamageError, RunError, OSError):
            write_array(path, values := make())
            return values

    if not set(run.shards) <= files(target, ".parquet"):
        made = compute(saved)
        check_same_rows(run, run.shards)  # that took a while
    # Only now: what cannot be computed (too many clusters, no faiss) must not leave empty columns in the run.
    with lock_run(run.path, doing=f"notes its columns of {name}", patience=PREPARING_SECONDS):
        for folder, facts in manifest.score_folders(run.path).values():
            if facts["name"] == name and facts.get("settings") == plain and folder != target:
                remove(folder)  # of fewer rows, or from a file that has changed
        label = label if manifest.labels_of(run.path).get(label, stem) == stem else f"{label}_{stem[:4]}"
        facts = {"name": name, "label": label, "version": version, "settings": plain, "tamis": __version__}
        facts |= {"columns": [asdict(column) for column in columns], "derived": True}
        models = [maker_of(run, one).get("models", {}) for one in sorted(reads)]
        facts |= {"models": reduce(or_, models)} if any(models) else {}
        manifest.describe(run.path, {f"scores/{target.name}": facts})  # even if only this file was lost
        for file, array in made[1].items() if made else ():
            write_array(target / file, array)
    if made is None:
        return run.reopen(), label
    for shard, place in run.row_ranges.items():
        some = {column: values[place] for column, values in made[0].items()}
        values = {column: one.to_pylist() if isinstance(one, pa.ChunkedArray) else one for column, one in some.items()}
        first = values[columns[0].name]
        empty = np.isnan(first) if isinstance(first, np.ndarray) else np.array([one is None for one in first], bool)
        reasons = [lacking if lacks else None for lacks in empty.tolist()]
        with claim_to_write(run, shard, patience=PREPARING_SECONDS) as uids:
            parts.write_scores(target / f"{shard}.parquet", columns, values, reasons, uids=uids)
    with suppress(OSError):  # the same command may run elsewhere and write there
        remove(scratch)
    return run.reopen(), label
