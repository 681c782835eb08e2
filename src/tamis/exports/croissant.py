"""Croissant metadata of an export: its files with hashes, the pool and recipe it comes from, and the funnel.

Source: the Croissant 1.1 specification, docs.mlcommons.org/croissant.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import mimetypes
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from tamis.core.files.storage import write_json
from tamis.core.ids import as_json_value
from tamis.exports.exporter import Exporter
from tamis.runs import Run
from tamis.runs.makers import models_in_words
from tamis.runs.reasons import rows_kept
from tamis.runs.subset import Subset

_TERMS = (
    "citeAs column equivalentProperty extract field fileObject fileProperty fileSet format includes "
    "isLiveDataset jsonPath key md5 parentField path recordSet references regex repeated replace samplingRate "
    "separator source subField transform"
)

_CONTEXT = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    **{term: f"cr:{term}" for term in _TERMS.split()},
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "tamis": {"@id": "https://schema.org/tamis", "@type": "@json"},
}

_PARQUET = "application/x-parquet"


def croissant_path(out: Path) -> Path:
    """Returns where the metadata of an export is: next to it, because readers take every file in a folder of shards."""
    out = Path(os.path.abspath(out))  # "." has no name
    return out.with_name(f"{out.name}.croissant.json")


def read_croissant(path: Path) -> dict[str, Any]:
    """Returns the metadata that we wrote to a path; {} if there is none."""
    try:
        facts = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) and {"@context", "distribution", "tamis"} <= facts.keys() else {}


def write_croissant(exporter: Exporter, subset: Subset, out: Path, pairs: int) -> None:
    """Writes the metadata of an export of so many pairs.

    Keys that someone added to an earlier file (license, citeAs) are kept.

    Cost: reads the export once, for its SHA-256 hashes.
    """
    path, run, out = croissant_path(out), subset.run, Path(os.path.abspath(out))
    found = sorted(file for file in out.rglob("*") if file.is_file()) if out.is_dir() else [out]
    # Hidden files are temporary, or belong to one loader (.nv-meta).
    files = [file for file in found if not any(part.startswith(".") for part in file.relative_to(out).parts)]
    with ThreadPoolExecutor(4) as threads:  # hashing releases the GIL
        distribution = list(threads.map(lambda file: _file_object(file, out.parent), files))
    tables = [file for file in files if file.suffix == ".parquet"]
    if len(tables) > 1:
        parts = {"encodingFormat": _PARQUET, "includes": f"{out.name}/*.parquet"}
        distribution.append(_entity("FileSet", "parquet") | parts)
    settings = {name: value for name, value in dataclasses.asdict(exporter).items() if name != "croissant"}
    steps, notes = subset.funnel, models_in_words(subset.used)
    facts = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": subset.name,
        "description": f"{pairs:,} image-text pairs of a pool of {subset.keep.size:,}, by the recipe {subset.name!r}, "
        f"written by Tamis as {exporter.name}." + "".join(f" {note}." for note in notes),
        "dateCreated": f"{datetime.fromtimestamp(run.facts.get('created', 0), UTC):%Y-%m-%d}",  # of the run
        "isBasedOn": run.facts["pool"]["path"],
        "rai:dataPreprocessingProtocol": [
            *(f"{line['step']}: {rows_kept(line)} of {line['before']:,}" for line in steps),
            *notes,
        ],
        "distribution": distribution,
        "recordSet": _record_sets(tables, distribution, run),
        "tamis": {
            "export": {"to": exporter.name, **settings},
            "pairs": pairs,
            "pool": {"rows": int(subset.keep.size), "fingerprint": run.facts.get("pool_fingerprint")},
            "recipe": dict(subset.recipe),
            "used": list(subset.used),
            "funnel": list(steps),
            **({"partial": dict(subset.partial)} if subset.partial else {}),
        },
    }
    write_json(path, read_croissant(path) | as_json_value(facts))


def _entity(kind: str, name: str) -> dict[str, Any]:
    return {"@type": f"cr:{kind}", "@id": quote(name), "name": name}


def _file_object(file: Path, folder: Path) -> dict[str, Any]:
    with open(file, "rb") as raw:
        digest = hashlib.file_digest(raw, "sha256").hexdigest()
    kind = _PARQUET if file.suffix == ".parquet" else mimetypes.guess_type(file.name)[0]
    relative = file.relative_to(folder).as_posix()
    return _entity("FileObject", relative) | {
        "contentUrl": relative,
        "contentSize": f"{file.stat().st_size} B",
        "encodingFormat": kind or "application/octet-stream",
        "sha256": digest,
    }


def _record_sets(tables: Sequence[Path], distribution: Sequence[dict[str, Any]], run: Run) -> list[dict[str, Any]]:
    """Returns one record set with the columns of the Parquet files; none without such files."""
    if not tables:
        return []
    origin = next(file for file in reversed(distribution) if file["encodingFormat"] == _PARQUET)
    source = {"fileObject" if origin["@type"] == "cr:FileObject" else "fileSet": {"@id": origin["@id"]}}
    known = run.columns
    fields = []
    for column in pq.read_schema(tables[0]):
        about = known[column.name][2].about if column.name in known else ""
        field = _entity("Field", f"pairs/{column.name}") | ({"description": about} if about else {})
        field["source"] = source | {"extract": {"column": column.name}}
        field["dataType"] = "sc:Text"
        if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
            field["dataType"] = "sc:Float" if pa.types.is_floating(column.type) else "sc:Integer"
        elif pa.types.is_struct(column.type):
            field["dataType"] = "sc:ImageObject"
            field["source"]["transform"] = {"jsonPath": "bytes"}
        fields.append(field)
    return [_entity("RecordSet", "pairs") | {"field": fields}]
