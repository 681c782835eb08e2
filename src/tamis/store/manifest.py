"""Writing what a run folder says of itself: run.json, scorer.json; and forgetting shards whose files have changed."""

from __future__ import annotations

import glob
import logging
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import yaml
from fsspec.utils import glob_translate

from tamis.data import KEEPS
from tamis.errors import DamageError, RunError
from tamis.fingerprint import fingerprint
from tamis.pool import Pool
from tamis.pool.files import is_remote, literal_end
from tamis.storage import explained, files, remove, sweep, write_json, writing
from tamis.store.records import SCORER, described, description_of, read_description, with_hash
from tamis.store.run import FORMAT, labelled_twice, read_manifest
from tamis.store.shard_list import SHARDS, read_shards, write_shards
from tamis.store.targets import check_own
from tamis.version import VERSION

log = logging.getLogger(__name__)

#: Settings of a pool that decide what its rows are: a run can only go on under the same.
_DECISIVE = ("caption", "image", "image_extensions", "fields", "max_pixels", "max_bytes", "transparency")

#: Files of a run that a glob may list as a pool's.
_LISTABLE = ("run.json", SHARDS, "index/0.parquet", "scores/a/0.parquet")


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


def check_folder(run: Path, pool: Pool) -> None:
    """Checks that a folder may become a run of a pool, or is one: nothing else lies there, nor the pool.

    Raises:
        RunError: the folder is no run and holds files, or is a file; or the pool's files lie in it, or would after.
    """
    name = here = str(run)
    if is_remote(name):  # a run may share a bucket
        folders = {shard.url.rpartition("/")[0] for shard in pool.shards if is_remote(shard.url)}
    else:
        here = os.path.realpath(run)
        if run.exists() and not run.is_dir():
            raise RunError(f"the run folder {run} cannot be written to: it is a file; choose another with --run")
        if run.is_dir():
            check_own(run, what="run", marks=["run.json"], also=["lock", SHARDS, "claims"], option="--run")
        folders = {os.path.dirname(shard.url) for shard in pool.shards if not is_remote(shard.url)}
        folders = {os.path.realpath(folder) for folder in folders}
    mixed = [folder for folder in folders if folder == here or folder.startswith(f"{here}/")]
    if mixed or any(_lists(path, f"{here}/{file}") for path in pool.spec.paths for file in _LISTABLE):
        raise RunError(
            f"the run folder {name} would hold files of the pool, or the pool those of the run: name a folder apart "
            f"from {' '.join(pool.spec.paths)} with --run"
        )


def _lists(pattern: str, file: str) -> bool:
    """Whether a local glob would list a file, with "**" for any folders."""
    end = literal_end(pattern)
    if is_remote(pattern) or end == len(pattern):
        return False
    whole = glob.escape(os.path.realpath(pattern[:end])) + "/" + pattern[end:]
    return fnmatch(file, whole) if "**" in whole else re.match(glob_translate(whole), file) is not None


def check_pool(run: Path, pool: Pool, *, grow: bool = False) -> None:
    """Checks that a pool is the one of a run, grown or not, or a part of it.

    Args:
        run: the run folder, new or not.
        pool: what is to be scored.
        grow: it may be another one, whose shards are added.

    Raises:
        RunError: it has shards that the run lacks, at a place that is not the run's.
    """
    facts = read_manifest(run)
    if facts is None or grow or set(pool.spec.paths) <= set(_places(facts)):
        return
    listed = read_shards(run, facts, just_begun=True)
    new = [shard.name for shard in pool.shards if shard.name not in listed]
    if new:
        raise RunError(
            f"{run} holds the pool {' '.join(_places(facts))} ({len(listed):,} shards). "
            f"{' '.join(pool.spec.paths)} has {len(new):,} shards that it lacks, the first: {new[0]}. `tamis score ... "
            "--grow` (grow=True) adds them to this run; for a run of their own, name another folder with --run"
        )


def _places(facts: Mapping[str, Any]) -> list[str]:
    """Returns where the pool of a run is."""
    path = facts["pool"].get("path") or []
    return [path] if isinstance(path, str) else list(path)


def _with_places(before: Mapping[str, Any], listed: Mapping[str, str], pool: Pool) -> dict[str, Any]:
    """Returns what run.json says of the pool's place: as it did, with a place that brings shards, or the new one.

    The new one alone where the pool was moved: its shards have other urls.
    """
    known = _places(before)
    asked = [path for path in pool.spec.paths if path not in known]
    moved = any(listed.get(shard.name, shard.url) != shard.url for shard in pool.shards)
    grown = any(shard.name not in listed for shard in pool.shards)
    if moved or not known:
        return {}
    if grown and asked:
        return {"path": [*known, *asked]}
    return {"path": before["pool"]["path"], "format": before["pool"].get("format", pool.spec.format)}


def begin(run: Path, pool: Pool, recipe: Mapping[str, Any], fields: Sequence[str] | None = None) -> None:
    """Makes or extends a run folder for a pool; the caller holds its lock, and has called `check_pool`.

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
    facts: dict[str, Any] = {"format": FORMAT, "tamis": VERSION, "created": time.time()}
    if before is not None:
        facts = dict(before)
        old = facts["pool"]
        for key in ("kind", *_DECISIVE):
            was = old.get(key)
            if was != spec[key]:
                raise RunError(
                    f"{run} was made with the pool setting {key} = {was!r}, now it is {spec[key]!r}: its rows "
                    "would be others. Use another run folder, or the old setting"
                )
        listed = read_shards(run, before, just_begun=True)
        spec |= _with_places(before, listed, pool)
        shards = _still_there(run, listed, shards) | shards
    shards = dict(sorted(shards.items()))
    decisive = {key: spec[key] for key in ("kind", *_DECISIVE)}
    found = fingerprint({"pool": decisive, "shards": shards})
    facts = with_hash({**facts, "pool": spec, "pool_fingerprint": found, "shards": write_shards(run, shards)})
    if before != facts:
        write_json(manifest, facts)
    with writing(run / "recipe.yaml") as temporary:
        resolved = {**recipe, "pool": spec["path"]}
        temporary.write_text(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True), encoding="utf-8")


def _still_there(run: Path, listed: Mapping[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """Returns the shards of earlier commands, without those that were never read and whose files have been deleted."""
    indexed = files(run / "index", ".parquet")
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
        right = described(run / folder, {**facts, **beside})
        if there != right:
            write_json(path, right)


def forget(run: Path, shards: Sequence[str]) -> None:
    """Deletes every part of some shards: the index last, so that a kill half-way leaves no part without it."""
    folders = [path for kind in ("scores", *KEEPS) for path in sorted((run / kind).glob("*")) if path.is_dir()]
    for folder in (*folders, run / "index"):
        for shard in shards:
            for ending in (".parquet", ".npy"):
                remove(folder / f"{shard}{ending}")
