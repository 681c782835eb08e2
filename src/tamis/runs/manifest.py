"""Reads and writes the descriptions in a run folder: run.json, shards.parquet, signal.json and feature.json.

The list of shards is a separate file, since a pool may have a million. run.json holds their number and the hash of the
list, so that files of two runs cannot be mixed. docs/data-format.md lists the keys of the JSON files.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import xxhash
import yaml

from tamis.core.errors import DamageError, RunError, brief
from tamis.core.files.checked import CheckedParquet, damage_error, is_typed, read_record, with_hash, write_parquet
from tamis.core.files.find import is_remote, stamp
from tamis.core.files.storage import (
    drop_cached,
    explain_errors,
    files,
    folders,
    read_json,
    sweep,
    write_json,
    writing,
)
from tamis.core.files.targets import check_own, lists
from tamis.core.ids import fingerprint
from tamis.core.types import KEEPS
from tamis.core.version import __version__

if TYPE_CHECKING:
    from tamis.pools import Pool

log = logging.getLogger(__name__)

#: Version of the folder's layout. Readers refuse any other.
FORMAT = 1

SHARDS = "shards.parquet"

#: The file that describes a folder of scores, or of stored features.
SIGNAL, FEATURE = "signal.json", "feature.json"

#: Pool settings that decide which rows there are: they cannot change in a run.
_DECISIVE = (
    *("kind", "caption", "captions", "image", "image_extensions", "split"),
    *("fields", "max_pixels", "max_bytes", "transparency", "orientation"),
)

#: Files of a run that a pool's glob might list.
_LISTABLE = ("run.json", SHARDS, "index/0.parquet", "scores/a/0.parquet")

_SHARDS_SCHEMA = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("name", "url")])


# ---- run.json and the list of shards


def read_manifest(run: Path) -> dict[str, Any] | None:
    """Returns the content of `run.json`, None if there is none; RunError if it is damaged or of another format."""
    path = run / "run.json"
    if not path.is_file():
        return None
    facts = read_json(path)
    if isinstance(facts, dict) and isinstance(found := facts.get("format"), int) and found != FORMAT:
        raise RunError(f"{run} has format {found}, this version reads format {FORMAT}: use another run folder")
    return read_record(path)


def shards_of(run: Path, facts: Mapping[str, Any] | None) -> dict[str, str]:
    """Returns the shards that a run lists, as {name: url}; {} for a new run. A renamed file has its new url."""
    listed = read_shards(run, facts, just_begun=True) if facts else {}
    return listed | _find_renamed(run, listed)


def _find_renamed(run: Path, listed: Mapping[str, str]) -> dict[str, str]:
    """Returns {name: url} of the shards whose file has another name in its folder now, with its size and time."""
    there: set[str] = set()
    for folder in {os.path.dirname(url) for url in listed.values() if not is_remote(url)}:
        with suppress(OSError):  # the pool was moved
            there.update(f"{folder}/{name}" for name in os.listdir(folder))
    gone, new = [name for name, url in listed.items() if url not in there], there.difference(listed.values())
    stamps: dict[str, list[str]] = {}
    for name in gone if new else ():
        index = run / "index" / f"{name}.parquet"
        if not is_remote(listed[name]) and index.is_file():
            stamps.setdefault(CheckedParquet(index).facts.get("tamis.stamp", ""), []).append(name)
    return {name: url for url in sorted(new) if stamps and os.path.isfile(url) for name in stamps.get(stamp(url), ())}


def read_shards(run: Path, facts: Mapping[str, Any], *, just_begun: bool = False) -> dict[str, str]:
    """Returns {name: url} of the shards; raises DamageError if the list is missing, damaged or another run's.

    With `just_begun` the list may differ from run.json: a command killed between writing the two leaves a list with
    more shards, and the next `tamis score` writes both.
    """
    path = run / SHARDS
    if not path.is_file():
        raise DamageError(f"{path}, the list of the run's shards, is missing: restore it, or start another run folder")
    shards = _read_list(path)
    if not just_begun and _digest(shards) != facts["shards"]["digest"]:
        time.sleep(1.0)  # another command may be between writing the list and run.json
        shards = _read_list(path)
        if _digest(shards) != read_record(run / "run.json")["shards"]["digest"]:
            what = "it does not match run.json"
            raise damage_error(path, what, "repeat `tamis score`, which writes both, or restore it")
    return shards


def write_shards(run: Path, shards: Mapping[str, str], before: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Writes the list {name: url} if it changed; returns its entry in run.json."""
    if shards != before:
        table = pa.table([pa.array(shards.keys()), pa.array(shards.values())], schema=_SHARDS_SCHEMA)
        how: dict[str, Any] = {"row_group_size": 1 << 20, "compression": "ZSTD", "use_dictionary": False}
        write_parquet(run / SHARDS, table, uids=None, durable=True, **how)
    return {"count": len(shards), "digest": _digest(shards)}


def _read_list(path: Path) -> dict[str, str]:
    drop_cached(path)
    table = CheckedParquet(path).read(["name", "url"])
    return dict(zip(table.column("name").to_pylist(), table.column("url").to_pylist(), strict=True))


def _digest(shards: Mapping[str, str]) -> str:
    return xxhash.xxh3_64_hexdigest("\n".join(itertools.chain(*shards.items())).encode())


# ---- the descriptions of parts


def part_folders(run: Path) -> list[Path]:
    """Returns the folders of all scores and stored features."""
    return [folder for kind in ("scores", *KEEPS) for folder in folders(run / kind)]


def description_of(folder: Path) -> Path:
    """Returns the file that describes a folder of parts."""
    return folder / (SIGNAL if folder.parent.name == "scores" else FEATURE)


def sign_description(folder: Path, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of a description file: facts with its folder's name and a hash."""
    return with_hash({**facts, "maker": folder.name})


def read_description(path: Path) -> dict[str, Any]:
    """Returns a folder's description from its file; raises DamageError if it is damaged or another folder's."""
    facts = read_record(path)
    if facts.get("maker") != path.parent.name:
        raise damage_error(path, f"it was written for {facts.get('maker')}, not for {path.parent.name}")
    return facts


def describe(run: Path, described_folders: Mapping[str, Mapping[str, Any]]) -> None:
    """Makes part folders, deletes temporary files in them, and writes each signal.json or feature.json that changed."""
    for name in ("index", *described_folders):
        with explain_errors(run / name):
            (run / name).mkdir(parents=True, exist_ok=True)
        sweep(run / name)
    for name, facts in described_folders.items():
        path = description_of(run / name)
        old = read_description(path) if path.is_file() else {}
        kept = ("side_files", "within")  # from workers, or an earlier command
        noted = {key: old[key] for key in kept if key in old}
        if old != (new := sign_description(run / name, {**facts, **noted})):
            write_json(path, new)


def score_folders(run: Path) -> dict[str, tuple[Path, dict[str, Any]]]:
    """Returns {label: (folder of its scores, their description)}; raises DamageError if two share a label."""
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for folder in folders(run / "scores"):
        if (folder / SIGNAL).is_file():
            facts = read_description(folder / SIGNAL)
            if facts["label"] in found:
                raise DamageError(same_label_error(facts["label"], found[facts["label"]][0], folder))
            found[facts["label"]] = folder, facts
    return found


def same_label_error(label: str, one: Path, other: Path) -> str:
    return f"two sets of scores are called {label!r}, {one} and {other}: move one of them out of the run"


def labels_of(run: Path) -> dict[str, str]:
    """Returns {label: fingerprint} of a run's signals; {} for a new run."""
    return {label: folder.name.rpartition("-")[2] for label, (folder, _) in score_folders(run).items()}


def fields_of(run: Path, facts: Mapping[str, Any] | None) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Returns the json fields in a run's index (None for a new run), and those added later."""
    if facts is None:
        return None, ()
    later = sorted((run / "scores").glob(f"carried_field-*/{SIGNAL}"))
    return tuple(facts["pool"]["fields"]), tuple(str(read_description(path)["label"]) for path in later)


# ---- making or extending a run


def check_folder(run: Path, pool: Pool) -> None:
    """Raises RunError if a folder cannot be a run: it contains other files, or overlaps with the pool."""
    name = here = str(run)
    urls = {shard.url for shard in pool.shards}
    if is_remote(name):  # a run may share a bucket
        pool_folders = {url.rpartition("/")[0] for url in urls if is_remote(url)}
    else:
        here = os.path.realpath(run)
        if run.exists() and not run.is_dir():
            raise RunError(f"the run folder {run} cannot be written to: it is a file; choose another with --run")
        if run.is_dir():
            check_own(run, what="run", marks=["run.json"], also=["lock", SHARDS, "claims"], option="--run")
        local = {os.path.dirname(url) for url in urls if not is_remote(url)}
        pool_folders = {os.path.realpath(folder) for folder in local}
        roots = {os.path.realpath(path) for path in pool.spec.paths if os.path.isdir(path)}
        if any(here.startswith(f"{root}/") for root in roots - pool_folders):  # folders in them belong to the pool too
            pool_folders.add(here)
    mixed = any(folder == here or folder.startswith(f"{here}/") for folder in pool_folders)
    if mixed or any(lists(path, f"{here}/{file}") for path in pool.spec.paths for file in _LISTABLE):
        raise RunError(f"the run folder {name} and the pool overlap: use a --run outside {' '.join(pool.spec.paths)}")


def check_pool(run: Path, facts: Mapping[str, Any] | None, pool: Pool, *, grow: bool = False) -> None:
    """Raises RunError if a pool has new paths and shards that the run lacks, unless `grow` allows to add them."""
    if facts is None or grow or set(pool.spec.paths) <= set(pool_paths(facts)):
        return
    listed = read_shards(run, facts, just_begun=True)
    new = [shard.name for shard in pool.shards if shard.name not in listed]
    if new:
        lacks = f"which lacks {len(new):,} of these, the first: {new[0]}"
        raise RunError(
            f"{run} holds another pool ({' '.join(pool_paths(facts))}), {lacks}. "
            "Name another folder with --run, or add them with --grow"
        )


def pool_paths(facts: Mapping[str, Any]) -> list[str]:
    """Returns the paths (files, folders, globs) of a run's pool, from its run.json."""
    path = facts["pool"].get("path") or []
    return [path] if isinstance(path, str) else list(path)


def begin(
    run: Path,
    before: Mapping[str, Any] | None,
    pool: Pool,
    recipe: Mapping[str, Any],
    fields: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Makes or extends a run folder for a pool; returns the content of run.json, which is `before` as yet.

    The caller holds the lock and has called `check_pool`.

    `fields`: the json fields to store in the index; None: all fields of the pool.
    """
    spec = asdict(pool.spec) | {"kind": pool.kind} | ({} if fields is None else {"fields": tuple(fields)})
    spec = {key: list(value) if isinstance(value, tuple) else value for key, value in spec.items()}
    for name, unset in {"captions": None, "split": None, "orientation": "none"}.items():
        if spec[name] in (None, unset):  # left out, so that fingerprints of older runs stay
            del spec[name]
    shards = {shard.name: shard.url for shard in pool.shards}
    for folder in (run, run / "failures", run / "subsets"):
        sweep(folder)
    listed = None
    facts: Mapping[str, Any] = before or {"format": FORMAT, "tamis": __version__, "created": time.time()}
    if before is not None:
        for key in _DECISIVE:
            if (was := before["pool"].get(key)) != (now := spec.get(key)):
                how = f"{key}: {brief(was)} then, {brief(now)} now"
                raise RunError(f"{run} was made with another pool setting ({how}): use another run folder")
        listed = read_shards(run, before, just_begun=True)
        spec |= _merged_paths(before, listed, pool)
        shards = _still_there(run, listed, shards) | shards
    shards = dict(sorted(shards.items()))
    found = fingerprint({"pool": {key: spec[key] for key in _DECISIVE if key in spec}, "shards": shards})
    made = with_hash({**facts, "pool": spec, "pool_fingerprint": found, "shards": write_shards(run, shards, listed)})
    if before != made:
        write_json(run / "run.json", made)
    with writing(run / "recipe.yaml") as temporary:
        resolved = {**recipe, "pool": spec["path"]}
        temporary.write_text(yaml.safe_dump(resolved, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return made


def _merged_paths(before: Mapping[str, Any], listed: Mapping[str, str], pool: Pool) -> dict[str, Any]:
    """Returns the pool's paths for run.json: as before, and added paths that bring new shards.

    Returns {} if the pool was moved (known shards have other urls): the new paths then replace the old.
    """
    old = pool_paths(before)
    if not old or any(listed.get(shard.name, shard.url) != shard.url for shard in pool.shards):
        return {}
    added = [path for path in pool.spec.paths if path not in old]
    if added and any(shard.name not in listed for shard in pool.shards):
        return {"path": [*old, *added]}
    return {"path": before["pool"]["path"], "format": before["pool"].get("format", pool.spec.format)}


def _still_there(run: Path, listed: Mapping[str, str], here: Mapping[str, str]) -> dict[str, str]:
    """Returns the shards listed before, except those that were never read and whose file is gone."""
    kept = {*here, *files(run / "index", ".parquet")}
    found = {name: url for name, url in listed.items() if name in kept or is_remote(url) or os.path.lexists(url)}
    if len(found) < len(listed):
        log.warning("the run no longer lists %d shards, never read: their files are gone", len(listed) - len(found))
    return found


def forget(run: Path, shards: Sequence[str]) -> None:
    """Deletes the parts of some shards but for people's tags, the index last: after a kill no part lacks its index."""
    for folder in (*part_folders(run), run / "index"):
        ending = ".npy" if folder.parent.name == "embeddings" else ".parquet"
        for path in (folder / f"{shard}{ending}" for shard in shards):
            if not is_typed(path):
                path.unlink(missing_ok=True)
