"""Writing what a run folder says about itself: run.json, signal.json; and deleting the parts of shards."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from tamis import __version__
from tamis.data import KEEPS
from tamis.errors import RunError
from tamis.ids import fingerprint
from tamis.pool import Pool
from tamis.pool.files import is_remote
from tamis.storage import explained, files, folders, remove, sweep, write_json, writing
from tamis.store.records import described, description_of, read_description, with_hash
from tamis.store.run import FORMAT, read_manifest, score_folders
from tamis.store.shard_list import SHARDS, read_shards, write_shards
from tamis.store.targets import check_own, lists

log = logging.getLogger(__name__)

#: Settings of a pool that decide its rows: a run can only continue under the same.
_DECISIVE = ("kind", "caption", "image", "image_extensions", "fields", "max_pixels", "max_bytes", "transparency")

#: Files of a run that a pool's glob might list.
_LISTABLE = ("run.json", SHARDS, "index/0.parquet", "scores/a/0.parquet")


def shards_of(run: Path) -> dict[str, str]:
    """Returns the shards that a run lists, urls by name; {} for a new run."""
    facts = read_manifest(run)
    return read_shards(run, facts, just_begun=True) if facts else {}


def labels_of(run: Path) -> dict[str, str]:
    """Returns the labels of a run's signals, with the fingerprint of each; {} for a new run."""
    found = score_folders(run) if read_manifest(run) else {}
    return {label: folder.name.rpartition("-")[2] for label, (folder, _) in found.items()}


def fields_of(run: Path) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Returns the json fields of a run's index (None: there is no run yet), and those that were added later."""
    facts = read_manifest(run)
    if facts is None:
        return None, ()
    later = sorted((run / "scores").glob("carried_field-*/signal.json"))
    return tuple(facts["pool"]["fields"]), tuple(str(read_description(path)["label"]) for path in later)


def check_folder(run: Path, pool: Pool) -> None:
    """Checks that a folder is a run of a pool or may become one: it has no other files, nor the pool's.

    Raises:
        RunError: the folder is no run and holds files, or is a file; or files of the pool are or would be in it.
    """
    name = here = str(run)
    if is_remote(name):  # a run may share a bucket
        pool_folders = {shard.url.rpartition("/")[0] for shard in pool.shards if is_remote(shard.url)}
    else:
        here = os.path.realpath(run)
        if run.exists() and not run.is_dir():
            raise RunError(f"the run folder {run} cannot be written to: it is a file; choose another with --run")
        if run.is_dir():
            check_own(run, what="run", marks=["run.json"], also=["lock", SHARDS, "claims"], option="--run")
        local = (os.path.dirname(shard.url) for shard in pool.shards if not is_remote(shard.url))
        pool_folders = {os.path.realpath(folder) for folder in set(local)}
    mixed = any(folder == here or folder.startswith(f"{here}/") for folder in pool_folders)
    if mixed or any(lists(path, f"{here}/{file}") for path in pool.spec.paths for file in _LISTABLE):
        raise RunError(
            f"the run folder {name} and the pool overlap: choose one outside {' '.join(pool.spec.paths)} with --run"
        )


def check_pool(run: Path, pool: Pool, *, grow: bool = False) -> None:
    """Checks that a pool is the run's pool, an extension or a part of it.

    Args:
        run: the run folder, new or not.
        pool: what is to be scored.
        grow: another pool is allowed, and its shards are added.

    Raises:
        RunError: it has shards that the run lacks, at another place than the run's pool.
    """
    facts = read_manifest(run)
    if facts is None or grow or set(pool.spec.paths) <= set(_paths(facts)):
        return
    listed = read_shards(run, facts, just_begun=True)
    new = [shard.name for shard in pool.shards if shard.name not in listed]
    if new:
        raise RunError(
            f"{run} holds the pool {' '.join(_paths(facts))} ({len(listed):,} shards). {' '.join(pool.spec.paths)} has "
            f"{len(new):,} shards that it lacks, the first: {new[0]}. `tamis score ... --grow` (grow=True) adds them "
            "to this run; for a run of their own, name another folder with --run"
        )


def _paths(facts: Mapping[str, Any]) -> list[str]:
    """Returns the paths of a run's pool."""
    path = facts["pool"].get("path") or []
    return [path] if isinstance(path, str) else list(path)


def _merged_paths(before: Mapping[str, Any], listed: Mapping[str, str], pool: Pool) -> dict[str, Any]:
    """Returns what run.json says of the pool's paths: as before, with paths that bring new shards.

    Nothing if the pool was moved: its shards have other urls, and the new paths replace the old.
    """
    known = _paths(before)
    if not known or any(listed.get(shard.name, shard.url) != shard.url for shard in pool.shards):
        return {}
    added = [path for path in pool.spec.paths if path not in known]
    if added and any(shard.name not in listed for shard in pool.shards):
        return {"path": [*known, *added]}
    return {"path": before["pool"]["path"], "format": before["pool"].get("format", pool.spec.format)}


def begin(run: Path, pool: Pool, recipe: Mapping[str, Any], fields: Sequence[str] | None = None) -> None:
    """Makes or extends a run folder for a pool; the caller holds its lock, and has called `check_pool`.

    Args:
        run: the folder.
        pool: what is to be scored.
        recipe: the content of the run's recipe.yaml.
        fields: the json fields that the index holds; None: all that the pool carries.

    Raises:
        RunError: the run was made with other settings of the pool that decide its rows.
    """
    spec = asdict(pool.spec) | {"kind": pool.kind}
    spec |= {"fields": tuple(fields)} if fields is not None else {}
    spec = {key: list(value) if isinstance(value, tuple) else value for key, value in spec.items()}
    shards = {shard.name: shard.url for shard in pool.shards}
    sweep(run, ("run.json", "recipe.yaml", "status", SHARDS))  # others may be writing a report to the folder
    sweep(run / "failures")
    before = read_manifest(run)
    facts: dict[str, Any] = before or {"format": FORMAT, "tamis": __version__, "created": time.time()}
    if before is not None:
        for key in _DECISIVE:
            if (was := before["pool"].get(key)) != spec[key]:
                raise RunError(
                    f"{run} was made with the pool setting {key} = {was!r}, now it is {spec[key]!r}: its rows "
                    "would be others. Use another run folder, or the old setting"
                )
        listed = read_shards(run, before, just_begun=True)
        spec |= _merged_paths(before, listed, pool)
        shards = _still_there(run, listed, shards) | shards
    shards = dict(sorted(shards.items()))
    found = fingerprint({"pool": {key: spec[key] for key in _DECISIVE}, "shards": shards})
    facts = with_hash({**facts, "pool": spec, "pool_fingerprint": found, "shards": write_shards(run, shards)})
    if before != facts:
        write_json(run / "run.json", facts)
    with writing(run / "recipe.yaml") as temporary:
        resolved = {**recipe, "pool": spec["path"]}
        temporary.write_text(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _still_there(run: Path, listed: Mapping[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """Returns the shards of earlier commands, without those that were never read and whose files have been deleted."""
    kept = {*here, *files(run / "index", ".parquet")}
    known = {name: url for name, url in listed.items() if name in kept or is_remote(url) or os.path.lexists(url)}
    if len(known) < len(listed):
        log.warning(
            "%d shards were never read and their files are gone: the run no longer lists them", len(listed) - len(known)
        )
    return known


def describe(run: Path, described_folders: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes the signal.json (or feature.json) of part folders where it differs, and sweeps the folders."""
    for name in ("index", *described_folders):
        with explained(run / name):
            (run / name).mkdir(parents=True, exist_ok=True)
        sweep(run / name)
    for name, facts in described_folders.items():
        path = description_of(run / name)
        there = read_description(path) if path.is_file() else {}
        noted = {key: there[key] for key in ("side_files",) if key in there}  # by the worker that wrote them
        right = described(run / name, {**facts, **noted})
        if there != right:
            write_json(path, right)


def forget(run: Path, shards: Sequence[str]) -> None:
    """Deletes every part of some shards: the index last, so that a kill half-way leaves no part without it."""
    for folder in (*(one for kind in ("scores", *KEEPS) for one in folders(run / kind)), run / "index"):
        ending = ".npy" if folder.parent.name == "embeddings" else ".parquet"
        for shard in shards:
            remove(folder / f"{shard}{ending}")
