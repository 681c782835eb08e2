"""What a finding finds: a hand-made pair on each side of every limit, and the sentence that says so."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser_view import sections_of
from factories import pair, score, write_run, write_tar
from PIL import Image, ImageDraw

import tamis
from tamis.commands.look import cheap_signals
from tamis.core.math.statistics import share_interval
from tamis.pools import open_pool
from tamis.reports.sections.findings import TRAITS


def scene(seed: int, size: tuple[int, int] = (320, 256), *, low: int = 0, high: int = 256) -> Image.Image:
    """Overlapping boxes with sharp edges, in many colours from `low` to `high`."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", size, (low, low, low))
    draw = ImageDraw.Draw(image)
    for _ in range(400):
        left, top = int(rng.integers(-40, size[0])), int(rng.integers(-40, size[1]))
        colour = tuple(int(level) for level in rng.integers(low, high, 3))
        draw.rectangle((left, top, left + int(rng.integers(10, 60)), top + int(rng.integers(10, 60))), fill=colour)
    return image


def on_white(colour: int, width: int) -> Image.Image:
    """A grey band of some pixels on a white image of 320 x 256."""
    image = Image.new("RGB", (320, 256), "white")
    image.paste((colour, colour, colour), (0, 0, width, 256))
    return image


def data(image: Image.Image, quality: int = 95) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()


#: Finding -> images that have it, and images just on the other side of its limit.
IMAGES: dict[str, tuple[list[bytes], list[bytes]]] = {
    "dark": ([data(scene(1, high=60))], [data(scene(2, high=150))]),
    "bright": ([data(on_white(225, 100))], [data(on_white(120, 100))]),
    "plain": ([data(on_white(0, 6))], [data(on_white(0, 40))]),
    "elongated": ([data(scene(6, (1260, 210)))], [data(scene(7, (630, 210)))]),
    "tiny": ([data(scene(8, (300, 199)))], [data(scene(9, (300, 200)))]),
    "size": ([data(scene(10, (1300, 1290)))], [data(scene(11, (1300, 1280)))]),
    "copies": ([data(scene(12), 90), data(scene(12), 50)], [data(scene(13)), data(scene(14))]),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("faults")
    names = [(f"{kind} {side} {n}", image)
             for kind, sides in IMAGES.items() for side, images in zip(("yes", "no"), sides, strict=True)
             for n, image in enumerate(images)]  # fmt: skip
    samples = [(f"{n:03}", {"jpg": image, "txt": f"a scene of boxes, {name}".encode()}) for n, (name, image) in
               enumerate(names)]  # fmt: skip
    write_tar(folder / "pool" / "00000.tar", samples)
    run = score(folder / "pool", folder / "run", *cheap_signals(open_pool(folder / "pool")))
    kinds = {each["ident"]: each for each in sections_of(run, [])["found"]["kinds"]}
    return names, kinds


@pytest.mark.parametrize("kind", IMAGES)
def test_a_fault_of_images_is_found_on_one_side_of_its_limit(found: Any, kind: str) -> None:
    names, kinds = found
    flagged = {names[each.row][0] for each in kinds[kind]["pairs"]}
    wanted = {name for name, _ in names if name.startswith(f"{kind} yes")}
    assert flagged == wanted
    assert kinds[kind]["rows"] == 1  # of two copies, one is not counted
    assert kinds[kind]["share"] == 1 / len(names)


def test_sentences_say_how_many_and_are_right_for_one(found: Any) -> None:
    _, kinds = found
    share = f"{100 / 16:.1f} %"
    assert kinds["copies"]["sentence"] == f"1 image ({share}) is a near-copy of another."
    assert kinds["dark"]["sentence"] == f"1 image ({share}) is dark, often as a screenshot in a dark theme."
    assert kinds["elongated"]["sentence"] == f"1 image ({share}) is long and thin."
    assert kinds["dark"]["precision"] == "Of 32 that we checked by eye, 29 were right."
    among = "among photographs, products and logos"
    assert kinds["copies"]["precision"] == f"Of 139 that we checked by eye {among}, 139 were right."
    assert kinds["tiny"]["precision"] is None
    assert all(set(each) == {"ident", "sentence", "rule", "rows", "share", "column", "pairs", "precision"}
               for each in kinds.values())  # fmt: skip


def test_a_long_foreign_sentence_is_found_and_a_short_foreign_name_is_not(tmp_path: Path) -> None:
    captions = {
        "Ein kleines rotes Boot liegt am Strand neben zwei Häusern": True,
        "Deux enfants jouent au ballon dans la rue": True,
        "两个孩子在公园里踢足球": True,  # no spaces, so it is one word
        "Crème brûlée": False,
        "Café de Flore": False,
        "KIDS SWIMMING GOGGLES PINK AND BLUE": False,  # lid.176 calls it Chinese
        "Osram E14 LED Bulb RGB Dimmable": False,  # and this one Portuguese
        "A small red boat on the beach next to two houses": False,
    }
    samples = [(f"{n}", {**pair(n), "txt": text.encode()}) for n, text in enumerate(captions)]
    write_tar(tmp_path / "pool" / "00000.tar", samples)
    run = score(tmp_path / "pool", tmp_path / "run", "caption_length", "language", "image_size")
    kinds = {each["ident"]: each for each in sections_of(run, [])["found"]["kinds"]}
    assert sorted(each.caption for each in kinds["language"]["pairs"]) == sorted(
        c for c, is_so in captions.items() if is_so
    )
    assert kinds["language"]["sentence"] == "3 captions (37.5 %) are probably not in English."
    assert [each.caption for each in kinds["short"]["pairs"]] == ["Crème brûlée"]  # the Chinese sentence is not short
    # DataComp's rule takes lid.176 at its word: it drops all but the last.
    rule = {"name": "rule", "select": [{"equals": {"score": "top_language", "value": "en", "missing": "drop"}}]}
    assert np.flatnonzero(tamis.select(run, rule).keep).tolist() == [7]


def test_one_large_pool_sets_what_size_is_odd(tmp_path: Path) -> None:
    sides = [1000.0] * 7 + [5000, 5001, 200, 199]
    run = write_run(tmp_path / "run", {"shorter_side": sides, "words": [2.0] + [3.0] * 10})
    kinds = {each["ident"]: each for each in sections_of(run, [])["found"]["kinds"]}
    assert [each.row for each in kinds["size"]["pairs"]] == [8]
    assert [each.row for each in kinds["tiny"]["pairs"]] == [10]
    assert [each.row for each in kinds["short"]["pairs"]] == [0]  # without languages too


def test_the_documentation_has_the_precision_of_each_finding() -> None:
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    for ident, trait in TRAITS.items():
        row = re.search(rf"^\| {re.escape(trait.says[1])} \|.*$", page, re.MULTILINE)
        assert row, f"docs/report.md has no row for {ident}"
        if trait.judged is not None:
            right, judged = trait.judged
            each = share_interval(right, judged)
            assert f"| {judged} | {right} | {each.value:.2f} ({each.low:.2f} to {each.high:.2f}) |" in row[0]
