"""Writing what a run folder says of itself: run.json, scorer.json; and forgetting shards whose files have changed."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from tamis.data import KEEPS
from tamis.errors import DamageError, RunError
from tamis.fingerprint import fingerprint
from tamis.pool import Pool
from tamis.pool.files import is_remote
from tamis.store.atomic import explained, remove_file, sweep, write_json, writing
from tamis.store.descriptions import SCORER, bound, description_of, read_description
from tamis.store.formats import sealed
from tamis.store.mirror import part_names
from tamis.store.run import FORMAT, labelled_twice, read_manifest
from tamis.store.shard_list import SHARDS, read_shards, write_shards
from tamis.version import VERSION

log = logging.getLogger(__name__)

#: Settings of a pool that decide what its rows are: a run can only go on under the same.
_DECISIVE = ("caption", "image", "image_extensions", "fields", "max_pixels", "max_bytes", "transparency")

#: What runs of older versions do not say, as it was then.
_WAS = {"transparency": "drop"}


def shards_of(run: Path) -> dict[str, str]:
    """Returns the shards that a run lists, urls by name; {} for a new run."""
    facts = read_manifest(run)
    return read_shards(run, facts, just_begun=True) if facts else {}


def labels_of(run: Path) -> dict[str, str]:
    """Returns the labels of a run's scorers, to the fingerprint that each stands for."""
    folder = run / "scores"
    if not folder.is_dir():
        return {}
    found: dict[str, Path] = {}
    for entry in sorted(folder.iterdir()):
        facts = entry / SCORER
        if facts.is_file():
            label = read_description(facts)["label"]
            if label in found:
                raise DamageError(labelled_twice(label, found[label], entry))
            found[label] = entry
    return {label: entry.name.rpartition("-")[2] for label, entry in found.items()}


def fields_of(run: Path) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Returns the json fields that a run has: those of its index (None: there is no run yet), and those added later."""
    facts = read_manifest(run)
    if facts is None:
        return None, ()
    later = []
    for path in sorted((run / "scores").glob("carried_field-*/scorer.json")):
        later.append(str(read_description(path)["label"]))
    return tuple(facts["pool"]["fields"]), tuple(later)


def begin(run: Path, pool: Pool, recipe: Mapping[str, Any], fields: Sequence[str] | None = None) -> None:
    """Makes or extends a run folder for a pool; the caller holds its lock.

    Args:
        run: the folder.
        pool: what is to be scored.
        recipe: what stands in the run's recipe.yaml.
        fields: the json fields that the index holds; None: all that the pool carries.

    Raises:
        RunError: the run was made from a pool that is read otherwise.
    """
    manifest = run / "run.json"
    spec = asdict(pool.spec) | {"kind": pool.kind}
    spec |= {"fields": tuple(fields)} if fields is not None else {}
    spec = {key: list(value) if isinstance(value, tuple) else value for key, value in spec.items()}
    shards = {shard.name: shard.url for shard in pool.shards}
    sweep(run, ("run.json", "recipe.yaml", "status", SHARDS))  # a report may be on its way to the same folder
    sweep(run / "failures")
    before = read_manifest(run)
    facts: dict[str, Any] = {"format": FORMAT, "tamis": VERSION, "created": time.time(), "sealed": True}
    if before is not None:
        facts = {**before, "format": max(FORMAT, before["format"]), "sealed": before.get("sealed", False)}
        old = facts["pool"]
        for key in ("kind", *_DECISIVE):
            was = old.get(key, _WAS.get(key))
            if was != spec[key]:
                raise RunError(
                    f"{run} was made with the pool setting {key} = {was!r}, now it is {spec[key]!r}: its rows "
                    "would be others. Use another run folder, or the old setting"
                )
        shards = _still_there(run, read_shards(run, before, just_begun=True), shards) | shards
    shards = dict(sorted(shards.items()))
    decisive = {key: spec[key] for key in ("kind", *_DECISIVE) if key not in _WAS or spec[key] != _WAS[key]}
    found = fingerprint({"pool": decisive, "shards": shards})
    facts = sealed({**facts, "pool": spec, "pool_fingerprint": found, "shards": write_shards(run, shards)})
    if before != facts:
        write_json(manifest, facts)
    with writing(run / "recipe.yaml") as temporary:
        temporary.write_text(yaml.safe_dump(dict(recipe), sort_keys=False, allow_unicode=True), encoding="utf-8")


def _still_there(run: Path, listed: Mapping[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """Returns the shards of earlier commands, without those that were never read and whose files have been deleted."""
    indexed = part_names(run / "index", ".parquet")
    gone = [
        name
        for name, url in listed.items()
        if name not in here and name not in indexed and not is_remote(url) and not os.path.lexists(url)
    ]
    if gone:
        log.warning(
            "%d shards were never read and their files are gone: the run no longer lists them, the first: %s",
            len(gone), gone[0],
        )  # fmt: skip
    return {name: url for name, url in listed.items() if name not in set(gone)}


def describe(run: Path, folders: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes the scorer.json (or feature.json) of part folders, where it is not as it should be, and sweeps them."""
    for folder in ("index", *folders):
        with explained(run / folder):
            (run / folder).mkdir(parents=True, exist_ok=True)
        sweep(run / folder)
    for folder, facts in folders.items():
        path = description_of(run / folder)
        there = read_description(path) if path.is_file() else {}
        beside = {key: there[key] for key in ("side_files",) if key in there}  # whoever wrote those has noted them
        right = bound(run / folder, {**facts, **beside})
        if there != right:
            write_json(path, right)


def forget(run: Path, shards: Sequence[str]) -> None:
    """Deletes every part of some shards: the index last, so that a kill half-way leaves no part without it."""
    folders = [path for kind in ("scores", *KEEPS) for path in sorted((run / kind).glob("*")) if path.is_dir()]
    for folder in (*folders, run / "index"):
        for shard in shards:
            for ending in (".parquet", ".npy"):
                remove_file(folder / f"{shard}{ending}")
