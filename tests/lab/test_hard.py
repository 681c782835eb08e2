"""The hard kinds: what each caption gets wrong, leaves out or blurs can be checked against the scene."""

from __future__ import annotations

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
import pytest
from PIL import Image

from tamis.lab import make_pool, make_sample
from tamis.lab.hard import HARD_KINDS
from tamis.lab.samples import LabSample, _kind, _rng, own_shares
from tamis.lab.world import COUNTS, GROUPS, NEAR_COLOURS, OBJECTS

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


def members_of(tar_file: Path) -> dict[str, list[bytes]]:
    """The bytes of a shard's members by ending, in order."""
    found: dict[str, list[bytes]] = {"jpg": [], "json": [], "txt": []}
    with tarfile.open(tar_file) as tar:
        for member in tar:
            file = tar.extractfile(member)
            assert file is not None
            found[member.name.partition(".")[2]].append(file.read())
    return found


@pytest.mark.parametrize(("mix", "defects"), BEFORE)
def test_every_mix_draws_the_same_bytes_as_ever(tmp_path: Path, mix: Any, defects: bool) -> None:
    make_pool(tmp_path, pairs=80, seed=5, mix=mix, defects=defects, shard_size=80)
    members = members_of(tmp_path / "00000.tar")
    facts = hashlib.sha256()
    for text in members["json"]:
        fact = json.loads(text)
        assert fact.pop("sha256")
        facts.update(json.dumps(fact).encode())
    assert facts.hexdigest()[:16] == BEFORE[mix, defects][0]
    if (PIL.__version__, np.__version__) == DRAWN_WITH:
        assert hashlib.sha256(b"".join(members["jpg"])).hexdigest()[:16] == BEFORE[mix, defects][1]


@pytest.mark.parametrize("kind", WRONG)
def test_the_caption_gives_exactly_one_attribute_wrongly(kind: Any) -> None:
    attribute = {"wrong_colour": ["colour"], "wrong_count": ["count"], "wrong_relation": ["relation"]}
    fields = ("subject", "colour", "place", "count", "relation", "other", "other_colour")
    for sample in made(kind):
        scene, described = sample.scene, sample.described
        assert described is not None
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
    seen = set()
    for sample in made("wrong_count"):
        count, caption = sample.details["said"], sample.caption.lower()
        assert isinstance(count, int)
        assert any(phrase in caption for phrase in COUNTS[count])
        assert not any(phrase in caption for phrase in COUNTS[sample.scene.count])
        seen.add((sample.scene.count, count))
    assert seen == {(2, 3), (3, 2), (3, 4), (4, 3)}
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
        assert sample.described is not None
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
    shares = own_shares(asked)
    assert shares == {"visual": 0.5, "tiny": 0.25, "wrong_colour": 0.25}
    odds = tuple(shares.items())
    counts = Counter(_kind(_rng(0, index), odds) for index in range(4000))
    assert set(counts) == set(shares)
    for kind, share in shares.items():
        assert abs(counts[kind] - 4000 * share) <= 4.5 * math.sqrt(4000 * share * (1 - share))
    first = make_pool(tmp_path / "first", pairs=30, shares=asked, defects=True)
    turned = make_pool(tmp_path / "turned", pairs=30, shares=dict(reversed(asked.items())), defects=False)
    assert first.kinds == turned.kinds
    assert (first.out / "00000.tar").read_bytes() == (turned.out / "00000.tar").read_bytes()


def test_copies_of_hard_pairs_keep_their_caption_and_their_truth() -> None:
    shares: Any = {"half_described": 1, "vague": 1, "near_duplicate": 1, "exact_duplicate": 1}
    made = [make_sample(index, seed=1, mix="hard", shares=shares) for index in range(60)]
    copies = [sample for sample in made if sample.source is not None]
    assert len(copies) > 20
    for copy in copies:
        assert copy.source is not None
        original = made[copy.source]
        assert original.kind in ("half_described", "vague", "visual")
        assert copy.details == original.details
        if original.kind != "visual":
            assert copy.caption == original.caption
        with Image.open(io.BytesIO(copy.image)) as picture:
            assert picture.size == original.size
