"""Columns that are worked out from what a run stores: clusters, positions on a map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from tamis import __version__
from tamis.arrays import Float32s, Floats
from tamis.data import Column
from tamis.ids import fingerprint
from tamis.storage import files
from tamis.store import manifest, parts
from tamis.store.checked import write_array
from tamis.store.claims import PREPARING_SECONDS, check_same_rows, held, locked
from tamis.store.run import Run


def add_columns(
    run: Run,
    name: str,
    settings: Mapping[str, Any],
    columns: Sequence[Column],
    compute: Callable[[], tuple[Mapping[str, Float32s], Mapping[str, Floats]]],
    *,
    label: str,
) -> tuple[Run, str]:
    """Adds number columns to every row of a run; returns the run, opened again, and the label of the columns.

    The same settings again do nothing. After more shards were scored the columns are computed again, since other rows
    change them.

    Args:
        run: an open run.
        name: what made the columns.
        settings: with the shards' stamps, they identify the columns.
        columns: the new columns.
        compute: returns {column: (rows,) float32, NaN where a row has no embedding} and {file: array} of side files.
        label: the label, with four characters of the fingerprint appended if other columns have it.
    """
    settings = {**settings, "stamps": list(run.stamps)}  # other rows have other values
    stem = fingerprint({"name": name, "version": 1, "settings": settings})
    target = run.path / "scores" / f"{name}-{stem}"
    values: Mapping[str, Float32s] | None = None
    arrays: Mapping[str, Floats] = {}
    if not set(run.shards) <= files(target, ".parquet"):
        values, arrays = compute()
        check_same_rows(run, run.shards)  # that took a while
    # Only now: columns that cannot be made (too many clusters, no faiss) must not leave empty ones in the run.
    with locked(run.path, doing=f"adds the columns of {name}", patience=PREPARING_SECONDS):
        labels = manifest.labels_of(run.path)
        label = label if labels.get(label, stem) == stem else f"{label}_{stem[:4]}"
        facts = {"name": name, "label": label, "version": 1, "settings": settings, "tamis": __version__}
        facts["columns"] = [asdict(column) for column in columns]
        manifest.describe(run.path, {f"scores/{target.name}": facts})  # even if only this file was lost
        for file, array in arrays.items():
            write_array(target / file, array)
    if values is not None:
        for shard, place in run.row_ranges.items():
            here = {column.name: values[column.name][place] for column in columns}
            lacking = np.isnan(here[columns[0].name]).tolist()
            reasons = ["the row has no embedding" if lacks else None for lacks in lacking]
            with held(run, shard, patience=PREPARING_SECONDS) as uids:
                parts.write_scores(target / f"{shard}.parquet", columns, here, reasons, uids=uids)
    return Run(run.path, partial=run.partial), label
