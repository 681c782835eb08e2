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
from tamis.recipes.recipe import load
from tamis.reports.context import Context
from tamis.reports.traits import ARMS, TRAITS, Findings


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
    kinds = {each["ident"]: each for each in sections_of(run, [])["findings"]["pool"]}
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
    share = f"{100 / 14:.1f} %"
    assert kinds["copies"]["sentence"] == f"1 image ({share}) is a near-copy of another."
    assert kinds["dark"]["sentence"] == f"1 image ({share}) is dark, often as a screenshot in a dark theme."
    assert kinds["elongated"]["sentence"] == f"1 image ({share}) is long and thin."
    assert kinds["dark"]["precision"] == "Of 32 that we checked by eye, 29 were right."
    among = "among photographs, products and logos"
    assert kinds["copies"]["precision"] == f"Of 139 that we checked by eye {among}, 139 were right."
    assert kinds["tiny"]["precision"] is None
    of_each = {"ident", "about", "sentence", "drops", "rule", "harm", "rows", "share", "column", "pairs", "precision"}
    assert all(set(each) == of_each for each in kinds.values())


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
    kinds = {each["ident"]: each for each in sections_of(run, [])["findings"]["pool"]}
    assert sorted(each.caption for each in kinds["language"]["pairs"]) == sorted(
        c for c, is_so in captions.items() if is_so
    )
    assert kinds["language"]["sentence"] == "3 captions (37.5 %) are probably not in English."
    assert [each.caption for each in kinds["short"]["pairs"]] == ["Crème brûlée"]  # the Chinese sentence is not short
    # DataComp's rule takes lid.176 at its word: it drops all but the last.
    rule = {"name": "rule", "select": [{"equals": {"score": "top_language", "value": "en", "missing": "drop"}}]}
    assert np.flatnonzero(tamis.select(run, rule).keep).tolist() == [7]


def test_only_small_images_have_an_odd_size(tmp_path: Path) -> None:
    sides = [1000.0] * 7 + [5000, 9999, 200, 199]
    run = write_run(tmp_path / "run", {"shorter_side": sides, "words": [2.0] + [3.0] * 10})
    kinds = {each["ident"]: each for each in sections_of(run, [])["findings"]["pool"]}
    assert set(kinds) == {"tiny", "short"}
    assert [each.row for each in kinds["tiny"]["pairs"]] == [10]
    assert [each.row for each in kinds["short"]["pairs"]] == [0]  # without languages too


def test_the_most_harmful_come_first_with_the_recipe_whose_steps_drop_most(tmp_path: Path) -> None:
    samples = [(f"{n}", {**pair(n), "txt": b"dog"}) for n in range(6)]
    samples += [("a", {"jpg": b"none", "txt": b"a dog in a park"}), ("b", {**pair(20), "txt": b" "})]
    samples += [(name, {**pair(21), "txt": b"a dog in a park"}) for name in "cd"]
    write_tar(tmp_path / "pool" / "train-0.tar", samples)
    write_tar(tmp_path / "pool" / "val-0.tar", [("e", {**pair(30), "txt": b"three dogs in the park"})])
    run = score(tmp_path / "pool", tmp_path / "run", "caption_length", "image_size", "image_hash", "language")
    found = Findings(Context(run, []))
    by_words = {"name": "two", "select": [{"at_least": {"score": "words", "value": 1, "missing": "drop"}}]}
    said = {each.ident: (each.sentence, each.drops, found.rows(each.ident).tolist()) for each in found.every}
    assert list(said) == ["status-image_broken", "status-caption_empty", "copies", "exact", "splits", "short"]
    assert said["status-image_broken"][:2] == ("The pool has 1 broken image (9.1 %).", "The recipe basic drops it.")
    assert said["status-caption_empty"][2] == [7]
    assert said["exact"][:2] == (
        "1 image (9.1 %) is the same file as another.", "The recipe distinct keeps one of each.")  # fmt: skip
    assert said["exact"][2] == said["copies"][2] or len(said["exact"][2]) == len(said["copies"][2]) == 1
    assert said["splits"] == (
        "1 pair (9.1 %) is of a test or validation split.", "No shipped recipe drops them for that.", [10])  # fmt: skip
    assert said["short"][1:] == ("The recipe basic drops them.", list(range(6)))
    for recipe in (by_words, "basic"):  # the first drops none of these
        again = Findings(Context(run, [tamis.select(run, recipe)])).every
        assert {each.ident: each.drops for each in again}["short"] == "The recipe basic drops them."


def test_folders_of_other_splits_and_copies_of_references_are_found(tmp_path: Path) -> None:
    for n, folder in enumerate(["train", "train", "test"]):
        (tmp_path / "pool" / folder).mkdir(parents=True, exist_ok=True)
        for ending, content in pair(n).items():
            (tmp_path / "pool" / folder / f"{n}.{ending}").write_bytes(content)
    run = score(tmp_path / "pool", tmp_path / "run", "image_hash")
    once = score(tmp_path / "pool" / "test", tmp_path / "tests", "image_hash")
    recipe = {"name": "clean", "select": [{"not_in": {"reference": str(once.path), "missing": "drop"}}]}
    found = Findings(Context(run, [tamis.select(run, recipe)]))
    assert {each.ident: found.rows(each.ident).tolist() for each in found.every} == {
        "references": [0], "splits": [0]}  # fmt: skip


def test_the_documentation_has_the_precision_of_each_finding() -> None:
    page = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    for ident, trait in TRAITS.items():
        if ident.startswith("status-"):
            continue
        row = re.search(rf"^\| {re.escape(trait.says[1])} \|.*$", page, re.MULTILINE)
        assert row, f"docs/report.md has no row for {ident}"
        if trait.judged is not None:
            right, judged = trait.judged
            each = share_interval(right, judged)
            assert f"| {judged} | {right} | {each.value:.2f} ({each.low:.2f} to {each.high:.2f}) |" in row[0]


@pytest.mark.parametrize(
    ("matches", "french", "arms"),
    [
        ([0] * 200, 0, "clip-50"),
        ([0] * 199 + [9], 1, "clip-50"),  # one of 200 is too few for an arm of its own
        ([0] * 198 + [9, 9], 0, "clip-50,tmars,text_match"),
        ([0] * 200, 2, "clip-50,basic-multilingual-safe"),
        (None, 0, "clip-50,tmars,text_match"),  # nothing has looked for text
    ],
)
def test_a_race_is_named_with_the_recipes_for_what_was_found(
    tmp_path: Path, matches: list[int] | None, french: int, arms: str
) -> None:
    columns: dict[str, Any] = {"top_language": ["fr"] * french + ["en"] * (200 - french), "words": [9.0] * 200}
    columns |= {"other_language": [0.9] * french + [0.0] * (200 - french), "characters": [40.0] * 200}
    columns |= {"english": [0.0] * french + [0.9] * (200 - french)}
    columns |= {} if matches is None else {"text_match": [float(shared) for shared in matches]}
    run = write_run(tmp_path / "run", columns)
    command = Findings(Context(run, [])).race("my runs/a")
    assert command == f"tamis choose 'my runs/a' --arms {arms} --shares .1,.2,.3,.5 --budget 4h"


def test_the_recipes_to_race_are_shipped() -> None:
    assert set(ARMS) <= set(TRAITS)
    assert all(load(recipe).selects for recipe in ["clip-50", *(each for several in ARMS.values() for each in several)])
