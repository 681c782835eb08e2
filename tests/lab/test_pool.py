"""Pools on disk: layout, truth, shares, and the same bytes for the same seed."""

import hashlib
import io
import json
import math
import re
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from tamis.lab import PoolSummary, make_pool, make_sample
from tamis.lab.samples import MAIN_KINDS

_PAIRS = 700
Sample = dict[str, Any]  # the json, with the members' bytes under "jpg" and "txt"


def _read(pool: Path) -> list[Sample]:
    samples: dict[str, Sample] = {}
    for path in sorted(pool.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, ending = member.name.partition(".")
                file = tar.extractfile(member)
                assert file is not None
                data = file.read()
                sample = samples.setdefault(key, {})
                if ending == "json":
                    sample.update(json.loads(data))
                else:
                    sample[ending] = data
    return list(samples.values())


def _digest(pool: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(pool.iterdir())}


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> PoolSummary:
    return make_pool(tmp_path_factory.mktemp("lab") / "pool", pairs=_PAIRS, seed=3, shard_size=300)


@pytest.fixture(scope="module")
def samples(summary: PoolSummary) -> list[Sample]:
    return _read(summary.out)


def _of(samples: list[Sample], *kinds: str) -> list[Sample]:
    found = [sample for sample in samples if sample["truth"] in kinds]
    assert found, f"the test pool has none of {kinds}"
    return found


def test_files_are_those_of_img2dataset(summary: PoolSummary) -> None:
    assert summary.shards == ("00000.tar", "00001.tar", "00002.tar")
    assert sorted(path.name for path in summary.out.iterdir()) == [
        f"0000{i}{end}" for i in range(3) for end in (".parquet", ".tar", "_stats.json")
    ]
    with tarfile.open(summary.out / "00001.tar") as tar:
        members = tar.getmembers()
    assert [m.name for m in members[:6]] == [f"00001000{i}.{end}" for i in (0, 1) for end in ("jpg", "json", "txt")]
    assert {(m.mtime, m.uid, m.gid, m.uname) for m in members} == {(0, 0, 0, "")}


def test_json_has_the_fields_of_img2dataset_and_they_are_true(samples: list[Sample]) -> None:
    assert len(samples) == _PAIRS
    for i, sample in enumerate(samples):
        assert sample["key"] == f"{i // 300:05d}{i % 300:04d}"
        assert sample["caption"].encode() == sample["txt"]
        assert sample["sha256"] == hashlib.sha256(sample["jpg"]).hexdigest()
        assert re.fullmatch(r"[0-9a-f]{32}", sample["uid"])
        assert sample["status"] == "success"
        assert sample["error_message"] is None
        assert sample["url"].startswith("https://")
        with Image.open(io.BytesIO(sample["jpg"])) as image:
            assert image.size == (sample["width"], sample["height"])
    assert len({sample["uid"] for sample in samples}) == _PAIRS


def test_tables_and_counts_say_what_the_tars_say(summary: PoolSummary, samples: list[Sample]) -> None:
    rows = [row for i in range(3) for row in pq.read_table(summary.out / f"0000{i}.parquet").to_pylist()]
    assert [row["uid"] for row in rows] == [sample["uid"] for sample in samples]
    for row, sample in zip(rows, samples, strict=True):
        assert row == {name: sample[name] for name in row}
    stats = [json.loads((summary.out / f"0000{i}_stats.json").read_text()) for i in range(3)]
    assert [s["count"] for s in stats] == [300, 300, 100]
    assert [s["successes"] for s in stats] == [300, 300, 100]
    assert summary.kinds == {**dict.fromkeys(summary.kinds, 0), **Counter(sample["truth"] for sample in samples)}
    assert sum(summary.kinds.values()) == summary.pairs == _PAIRS


def test_the_same_seed_gives_the_same_bytes_with_any_number_of_workers(tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("two", 2)):
        make_pool(tmp_path / name, pairs=30, seed=8, shard_size=10, workers=workers)
    make_pool(tmp_path / "other", pairs=10, seed=9, shard_size=10)
    assert _digest(tmp_path / "one") == _digest(tmp_path / "two")
    make_pool(tmp_path / "one", pairs=30, seed=8, shard_size=10)  # over itself
    assert _digest(tmp_path / "one") == _digest(tmp_path / "two")
    make_pool(tmp_path / "small", pairs=15, seed=8, shard_size=10)
    assert _read(tmp_path / "small") == _read(tmp_path / "one")[:15]
    assert _digest(tmp_path / "one")["00000.tar"] != _digest(tmp_path / "other")["00000.tar"]


def test_a_failure_half_way_leaves_no_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(index: int, **settings: Any) -> Any:
        if index == 5:
            raise OSError("no space left")
        return make_sample(index, **settings)

    monkeypatch.setattr("tamis.lab.pool.make_sample", fail)
    with pytest.raises(OSError, match="no space left"):
        make_pool(tmp_path, pairs=10)
    assert list(tmp_path.iterdir()) == []


def test_painted_text_overlaps_the_caption_or_does_not_as_its_kind_says(samples: list[Sample]) -> None:
    def words(text: str) -> list[str]:
        return re.findall(r"\w+", text.lower())

    for sample in _of(samples, "visual_text"):
        assert set(words(sample["text"])) <= set(words(sample["caption"]))
    for sample in _of(samples, "visual_random_text"):
        assert not set(words(sample["text"])) & set(words(sample["caption"])) - {"a", "of", "the", "on", "in"}
    for sample in _of(samples, "text_only"):
        painted, said = words(sample["text"]), words(sample["caption"])
        assert painted == said[: len(painted)]
        assert len(painted) >= 0.6 * len(said)


def test_exact_duplicates_repeat_bytes_and_caption_but_not_key_or_uid(samples: list[Sample]) -> None:
    by_key = {sample["key"]: sample for sample in samples}
    for sample in _of(samples, "exact_duplicate"):
        original = by_key[sample["duplicate_of"]]
        assert original["key"] < sample["key"]
        assert original["truth"] in MAIN_KINDS
        assert (sample["jpg"], sample["txt"]) == (original["jpg"], original["txt"])
        assert sample["uid"] != original["uid"]
        assert sample["scene"] == original["scene"]


def test_near_duplicates_look_like_their_original_but_are_other_bytes(samples: list[Sample]) -> None:
    by_key = {sample["key"]: sample for sample in samples}
    for sample in _of(samples, "near_duplicate"):
        original = by_key[sample["duplicate_of"]]
        assert original["truth"] in MAIN_KINDS
        assert sample["jpg"] != original["jpg"]
        assert sample["scene"] == original["scene"]
        small = [Image.open(io.BytesIO(s["jpg"])).convert("L").resize((16, 16)).tobytes() for s in (sample, original)]
        assert sum(abs(a - b) for a, b in zip(*small, strict=True)) / 256 < 28
        assert len(sample["text_quads"]) == len(original["text_quads"])
    originals = [sample for sample in samples if sample["duplicate_of"] is None]
    assert len({sample["scene"] for sample in originals}) == len(originals)


def test_broken_sizes_captions_and_files_are_broken_as_promised(samples: list[Sample]) -> None:
    for sample in samples:
        kind = sample["truth"]
        short, long = sorted((sample["original_width"], sample["original_height"]))
        if kind == "tiny":
            assert 8 <= short == long <= 40
            assert (sample["width"], sample["height"]) == (long, long)
        elif kind == "odd_aspect":
            assert long / short > 3
            assert {sample["width"], sample["height"]} == {short, long}
        else:
            assert (sample["width"], sample["height"]) == (128, 128)
            assert short >= 200  # DataComp's basic rule
            assert long / short <= 3
        assert (kind == "empty_caption") == (not sample["caption"].strip())
        image = Image.open(io.BytesIO(sample["jpg"]))
        if kind == "truncated":
            with pytest.raises(OSError, match="truncated"):
                image.load()
        else:
            image.load()
    assert {"tiny", "odd_aspect", "truncated", "empty_caption"} <= {sample["truth"] for sample in samples}


def test_files_of_other_pools_stay(tmp_path: Path) -> None:
    make_pool(tmp_path, pairs=4, seed=1, shard_size=2)
    (tmp_path / "00000.tar").unlink()
    (tmp_path / "00000.parquet").unlink()
    before = _digest(tmp_path)
    for settings in ({"seed": 2}, {"seed": 1, "mix": "uniform"}):
        with pytest.raises(FileExistsError, match="00001"):
            make_pool(tmp_path, pairs=4, shard_size=2, **settings)  # type: ignore[arg-type]
        assert _digest(tmp_path) == before
    with pytest.raises(FileExistsError, match=r"00001\.tar"):
        make_pool(tmp_path, pairs=2, seed=1, shard_size=2)


def test_arguments_out_of_range_are_refused(tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        *({"pairs": 0}, {"seed": -1}, {"mix": "web"}, {"shard_size": 20_000}, {"image_size": 32}, {"workers": 0}),
        *({"shares": {}}, {"shares": {"visual": -0.1}}, {"shares": {"visual": math.nan}}, {"shares": {"color": 1.0}}),
    ]
    for change in changes:
        (name,) = change
        with pytest.raises(ValueError, match=r"share|kind" if name == "shares" else name):
            make_pool(tmp_path / "pool", **{"pairs": 3, **change})
    assert not (tmp_path / "pool").exists()
