"""Pools on disk: layout, truth, shares, and the same bytes for the same seed; what hard kinds get wrong."""

import hashlib
import io
import json
import math
import re
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tamis_lab.hard import HARD_KINDS
from tamis_lab.pool import PoolSummary, make_pool
from tamis_lab.samples import MAIN_KINDS, LabSample, make_sample
from tamis_lab.world import GROUPS, NEAR_COLOURS, OBJECTS

_PAIRS = 700
Sample = dict[str, Any]  # the json, with the members' bytes under "jpg" and "txt"


def _read(pool: Path) -> list[Sample]:
    samples: dict[str, Sample] = {}
    for path in sorted(pool.glob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                key, _, ending = member.name.partition(".")
                file = tar.extractfile(member)
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

    monkeypatch.setattr("tamis_lab.pool.make_sample", fail)
    with pytest.raises(OSError, match="no space left"):
        make_pool(tmp_path, pairs=10)
    assert list(tmp_path.iterdir()) == []


def test_tables_counts_and_json_say_what_the_tars_hold(summary: PoolSummary, samples: list[Sample]) -> None:
    rows = [row for i in range(3) for row in pq.read_table(summary.out / f"0000{i}.parquet").to_pylist()]
    for i, (row, sample) in enumerate(zip(rows, samples, strict=True)):
        assert row == {name: sample[name] for name in row}
        assert (sample["key"], sample["status"]) == (f"{i // 300:05d}{i % 300:04d}", "success")
        assert sample["caption"].encode() == sample["txt"]
        assert sample["sha256"] == hashlib.sha256(sample["jpg"]).hexdigest()
        with Image.open(io.BytesIO(sample["jpg"])) as image:
            assert image.size == (sample["width"], sample["height"])
    assert len({sample["uid"] for sample in samples}) == _PAIRS
    stats = [json.loads((summary.out / f"0000{i}_stats.json").read_text()) for i in range(3)]
    assert [(s["count"], s["successes"]) for s in stats] == [(300, 300), (300, 300), (100, 100)]
    assert {kind: count for kind, count in summary.kinds.items() if count} == Counter(s["truth"] for s in samples)


def test_duplicates_repeat_their_original(samples: list[Sample]) -> None:
    by_key = {sample["key"]: sample for sample in samples}
    for sample in _of(samples, "exact_duplicate", "near_duplicate"):
        original = by_key[sample["duplicate_of"]]
        assert original["key"] < sample["key"]
        assert original["truth"] in MAIN_KINDS
        assert sample["scene"] == original["scene"]
        assert sample["uid"] != original["uid"]
        exact = sample["truth"] == "exact_duplicate"
        assert ((sample["jpg"], sample["txt"]) == (original["jpg"], original["txt"])) == exact
        small = [Image.open(io.BytesIO(s["jpg"])).convert("L").resize((16, 16)).tobytes() for s in (sample, original)]
        assert sum(abs(a - b) for a, b in zip(*small, strict=True)) / 256 < 28
    originals = [sample for sample in samples if sample["duplicate_of"] is None]
    assert len({sample["scene"] for sample in originals}) == len(originals)


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


WRONG = [kind for kind in HARD_KINDS if kind.startswith("wrong_")]

# SHA-256 (first 16 digits) of 80 pairs of seed 5: of everything in their json but the images' hashes, and of the
# images, which also depend on the JPEG encoder.
BEFORE = {
    ("laion", True): ("069b9528d6d2b0a3", "fbdef8f5b052bb0b"),
    ("laion", False): ("0231b8dad6ea6fe6", "1704d03104ccf8bd"),
    ("uniform", True): ("e3487cd0138ecf78", "2fd94c09cb2fdeac"),
    ("hard", True): ("ec3c303b58b952c5", "8f27607e6ab04565"),
}
DRAWN_WITH = ("13.0.0", "2.4.6")  # Pillow, NumPy


def made(kind: Any, count: int = 120) -> list[LabSample]:
    return [make_sample(index, seed=17, mix="hard", kind=kind, image_size=96) for index in range(count)]


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def named(name: str, caption: str) -> bool:
    return bool({OBJECTS[name].one, OBJECTS[name].many} & set(words(caption)))


@pytest.mark.parametrize(("mix", "defects"), BEFORE)
def test_every_mix_draws_the_same_bytes_as_ever(tmp_path: Path, mix: Any, defects: bool) -> None:
    make_pool(tmp_path, pairs=80, seed=5, mix=mix, defects=defects, shard_size=80)
    facts, images = hashlib.sha256(), hashlib.sha256()
    for sample in _read(tmp_path):
        images.update(sample["jpg"])
        fact = {name: value for name, value in sample.items() if name not in ("jpg", "txt", "sha256")}
        facts.update(json.dumps(fact).encode())
    assert facts.hexdigest()[:16] == BEFORE[mix, defects][0]
    if (PIL.__version__, np.__version__) == DRAWN_WITH:
        assert images.hexdigest()[:16] == BEFORE[mix, defects][1]


@pytest.mark.parametrize("kind", WRONG)
def test_the_caption_gives_exactly_one_attribute_wrongly(kind: Any) -> None:
    attribute = {"wrong_colour": ["colour"], "wrong_count": ["count"], "wrong_relation": ["relation"]}
    fields = ("subject", "colour", "place", "count", "relation", "other", "other_colour")
    for sample in made(kind):
        scene, described = sample.scene, sample.described
        assert sample.details["wrong"] == kind.removeprefix("wrong_")
        if described.relation == scene.relation == "in front of" and kind == "wrong_relation":
            # "Behind", by changing places.
            assert (described.subject, described.colour) == (scene.other, scene.other_colour)
            assert (described.other, described.other_colour) == (scene.subject, scene.colour)
            continue
        (wrong,) = (name for name in fields if getattr(scene, name) != getattr(described, name))
        assert wrong in attribute.get(kind, ["subject", "other"])
        values = getattr(scene, wrong), getattr(described, wrong)
        assert (sample.details["shown"], sample.details["said"]) == values


def test_wrong_colours_counts_and_objects_are_near_the_true_ones_and_are_in_the_caption() -> None:
    for sample in made("wrong_colour"):
        said = str(sample.details["said"])
        assert said in NEAR_COLOURS[sample.scene.colour]
        assert said != sample.scene.other_colour
        noun = OBJECTS[sample.scene.subject]
        assert re.search(rf"\b{said} ({noun.one}|{noun.many})\b", sample.caption.lower()), sample.caption
    counts = {(sample.scene.count, sample.details["said"]) for sample in made("wrong_count")}
    assert counts == {(2, 3), (3, 2), (3, 4), (4, 3)}
    for sample in made("wrong_object"):
        shown, said = str(sample.details["shown"]), str(sample.details["said"])
        assert shown in sample.scene.objects
        assert said not in sample.scene.objects
        assert named(said, sample.caption)
        assert not named(shown, sample.caption)
        (group,) = (members for _, _, members in GROUPS.values() if shown in members)
        assert said in group or set(group) <= set(sample.scene.objects)


def test_large_text_is_as_high_as_it_says_and_names_what_the_caption_does_not_the_picture() -> None:
    looks = Counter[Any]()
    heights = []
    assert made("large_text", 1) == made("large_text", 1)
    for sample in made("large_text"):
        assert not set(sample.described.objects) & set(sample.scene.objects)
        look, height = sample.details["look"], sample.details["glyph_height"]
        assert isinstance(height, float)
        for quad in sample.quads:
            assert (quad[2][1] - quad[0][1]) / max(sample.size) == pytest.approx(height, abs=1e-3)
            assert all(0 <= x <= sample.size[0] and 0 <= y <= sample.size[1] for x, y in quad)
        painted = "".join(sample.lines).lower()
        noun = OBJECTS[sample.described.subject]
        written = noun.one if sample.described.count == 1 else noun.many
        assert painted == (written[0] if look == "logo" else written)
        looks[look] += 1
        heights.append(height)
    assert set(looks) == {"title", "poster", "stacked", "logo"}
    assert 0.2 <= min(heights) < 0.3
    assert 0.7 < max(heights) <= 0.9


def test_own_shares_are_kept_exactly_and_in_any_order(tmp_path: Path) -> None:
    asked: Any = {"wrong_colour": 1.0, "tiny": 1, "visual": 2.0, "vague": 0}
    first = make_pool(tmp_path / "first", pairs=100, shares=asked, defects=True, image_size=96)
    turned = dict(reversed(asked.items()))
    turned = make_pool(tmp_path / "turned", pairs=100, shares=turned, defects=False, image_size=96)
    counts = {kind: count for kind, count in first.kinds.items() if count}
    assert set(counts) == {"visual", "tiny", "wrong_colour"}
    assert 35 <= counts["visual"] <= 65  # half of 100, three deviations
    assert first.kinds == turned.kinds
    assert (first.out / "00000.tar").read_bytes() == (turned.out / "00000.tar").read_bytes()
