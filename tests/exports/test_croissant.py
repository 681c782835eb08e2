"""Croissant metadata next to exports, validated by mlcroissant."""

import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import write_pool

import tamis
from tamis.core.errors import RunError


@pytest.fixture
def subset(tmp_path: Path) -> tamis.Subset:
    run = tamis.score(write_pool(tmp_path / "pool"), run=tmp_path / "run", signals=["caption_length"], quiet=True)
    steps = [{"top_fraction": {"score": "words", "fraction": 0.5}}, {"at_most": {"score": "words + 0", "value": 1e300}}]
    return tamis.select(run, {"name": "half", "select": steps})


def described(out: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(out.with_name(f"{out.name}.croissant.json").read_text())
    return facts


FORMATS: list[tuple[str, str, dict[str, Any]]] = [
    ("npy", "my half (v2).npy", {}),
    ("keys", "keys", {}),
    ("dropped", "dropped.parquet", {}),
    ("parquet", "half.parquet", {"captions": True}),
    ("webdataset", "shards", {"shard_size": 4, "energon": True}),
    ("huggingface", "many", {"shard_size": 4}),
    ("huggingface", "one", {}),
]


@pytest.mark.parametrize(("format", "name", "settings"), FORMATS, ids=lambda value: value if type(value) is str else "")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlcroissant_finds_no_fault_in_what_describes_an_export(
    format: str, name: str, settings: dict[str, Any], subset: tamis.Subset, tmp_path: Path
) -> None:
    import mlcroissant as croissant

    out = tmp_path / "out" / name
    tamis.export(subset, format, out, **settings, croissant=True)
    logging.disable(logging.WARNING)  # it logs its own warnings
    try:
        issues = croissant.Dataset(jsonld=str(out.with_name(f"{name}.croissant.json"))).metadata.issues.report()
    finally:
        logging.disable(logging.NOTSET)
    # What only the publisher knows.
    assert sorted(re.findall(r"/(\w+)\" is recommended", issues)) == ["citeAs", "datePublished", "license", "version"]
    assert issues.count("\n  -") == 4, issues


def test_it_names_files_with_hashes_pool_recipe_and_funnel(subset: tamis.Subset, tmp_path: Path) -> None:
    for place in ("one", "two"):
        tamis.export(subset, "huggingface", tmp_path / place / "many", shard_size=4, croissant=True)
        tamis.export(subset, "webdataset", tmp_path / place / "plain")
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["many", "many.croissant.json", "plain"]
    facts = described(tmp_path / "one" / "many")
    assert facts == described(tmp_path / "two" / "many")
    files = {one["contentUrl"]: one["sha256"] for one in facts["distribution"] if one["@type"] == "cr:FileObject"}
    there = {path.name: path.read_bytes() for path in (tmp_path / "one" / "many").iterdir()}
    assert files == {f"many/{name}": hashlib.sha256(data).hexdigest() for name, data in there.items()}
    assert facts["isBasedOn"] == [str(tmp_path / "pool")]
    assert facts["tamis"]["export"] == {"to": "huggingface", "shard_size": 4}
    assert facts["tamis"]["recipe"] == subset.recipe
    assert [line["kept"] for line in facts["tamis"]["funnel"]] == [line["kept"] for line in subset.funnel]
    assert facts["rai:dataPreprocessingProtocol"][0] == "top 50 % of the survivors by words: 11 of 21"
    (records,) = facts["recordSet"]
    types = {field["source"]["extract"]["column"]: field["dataType"] for field in records["field"]}
    wanted = {"image": "sc:ImageObject", "uid": "sc:Text", "caption": "sc:Text", "words": "sc:Float"}
    assert {name: types[name] for name in wanted} == wanted


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_mlcroissant_reads_the_records_of_a_parquet_file(subset: tamis.Subset, tmp_path: Path) -> None:
    import mlcroissant as croissant

    tamis.export(subset, "huggingface", tmp_path / "one", croissant=True)
    rows = list(croissant.Dataset(jsonld=str(tmp_path / "one.croissant.json")).records("pairs"))
    captions = [row["pairs/caption"].decode() for row in rows]
    assert captions == subset.to_arrow(["caption"])["caption"].to_pylist()
    assert {row["pairs/image"].mode for row in rows} == {"RGB"}
    np.testing.assert_array_equal([row["pairs/words"] for row in rows], subset["words"])


def test_what_a_publisher_adds_is_kept_and_another_file_is_not_replaced(
    subset: tamis.Subset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, path = tmp_path / "half.npy", tmp_path / "half.npy.croissant.json"
    tamis.export(subset, "npy", out, croissant=True)
    facts = described(out)
    path.write_text(json.dumps({**facts, "license": "CC-BY-4.0", "distribution": []}))
    tamis.export(subset, "npy", out, overwrite=True, croissant=True)
    assert described(out) == facts | {"license": "CC-BY-4.0"}
    path.write_text("{}")
    with pytest.raises(RunError, match=r"half\.npy\.croissant\.json exists and was not.*'croissant' it is not written"):
        tamis.export(subset, "npy", out, overwrite=True, croissant=True)
    assert path.read_text() == "{}"
    tamis.export(subset, "npy", out, overwrite=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    tamis.export(subset, "webdataset", ".", croissant=True)
    assert described(tmp_path / "here")["distribution"][0]["contentUrl"] == "here/00000.tar"


def test_it_counts_the_pairs_that_the_export_holds(subset: tamis.Subset, tmp_path: Path) -> None:
    written = {
        kind: tamis.export(subset, kind, tmp_path / f"half.{kind}.parquet", croissant=True)
        for kind in ("parquet", "dropped")
    }
    assert written["dropped"] == 21 - written["parquet"] > 0
    for kind, pairs in written.items():
        facts = described(tmp_path / f"half.{kind}.parquet")
        assert (facts["tamis"]["pairs"], facts["description"].split()[0]) == (pairs, str(pairs))


def test_what_json_cannot_hold_is_null(subset: tamis.Subset, tmp_path: Path) -> None:
    odd = tamis.Subset(run=subset.run, keep=subset.keep, funnel=[{"step": "a", "before": 2, "kept": 1, "cut": np.nan}])
    tamis.export(odd, "npy", tmp_path / "a.npy", croissant=True)
    assert described(tmp_path / "a.npy")["tamis"]["funnel"] == [{"step": "a", "before": 2, "kept": 1, "cut": None}]
