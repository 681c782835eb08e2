"""The step distinct: one of each group of like images, by their hashes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from copies import hash_columns, recompressed
from factories import image_bytes
from PIL import Image

from tamis.core.errors import RecipeError
from tamis.core.ids import scramble
from tamis.pools.images import decode
from tamis.recipes.steps import AtLeast
from tamis.recipes.steps import Distinct as Step
from tamis.recipes.steps.outcome import run_steps
from tamis.runs.reasons import Verdict
from tamis.runs.table import MemoryTable, Table

Array = np.ndarray[Any, Any]


def Distinct(**settings: Any) -> Step:
    """The step for tables without colours and lightness, unless they are asked for."""
    return Step(**({"colours": None, "lightness": None} | settings))


def hashes() -> list[int]:
    rng = np.random.default_rng(0)
    found = [int(number) for number in rng.integers(0, 2**63, 40)]
    found[5] = found[2]
    found[9] = found[2] ^ 0b11
    found[30] = found[11] ^ (0b111 << 20)
    return found


def table(**more: Any) -> Table:
    columns: dict[str, Any] = {
        "image_hash": [f"{number:016x}" for number in hashes()],
        "clip": np.linspace(0, 1, 40, dtype=np.float32),
    }
    columns |= more
    return MemoryTable(columns, uids=(np.zeros(40, np.uint64), np.arange(40, dtype=np.uint64)), block=7)


def test_one_of_each_group_stays() -> None:
    found = Distinct(distance=3).select(table())
    assert found.counts == {"kept": 37, "repeats another": 3, "missing": 0}
    for group in ((2, 5, 9), (11, 30)):
        first = min(group, key=lambda row: int(scramble(np.zeros(1, np.uint64), np.array([row], np.uint64))[0]))
        assert [row for row in group if found.keep[row]] == [first]
    assert found.facts["groups"] == 2
    assert [group["size"] for group in found.facts["largest_groups"]] == [3, 2]
    assert Distinct(distance=2).select(table()).counts["kept"] == 38


def test_the_best_of_a_group_stays() -> None:
    found = Distinct(distance=3, best="clip").select(table())
    assert np.flatnonzero(~found.keep).tolist() == [2, 5, 11]


def test_the_row_with_a_preferred_tag_stays_whatever_is_best() -> None:
    tags: list[str | None] = [None] * 40
    tags[5], tags[11], tags[20] = "blurry,original", "originals", "original"
    found = Distinct(distance=3, best="clip", prefer="original").select(table(tagged=tags))
    assert np.flatnonzero(~found.keep).tolist() == [2, 9, 11]  # only row 5 has the tag, not row 11


def test_a_tag_that_no_row_has_changes_nothing_and_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    found = Distinct(distance=3, best="clip", prefer="orignal").select(table(tagged=["original"] * 40))
    assert np.flatnonzero(~found.keep).tolist() == [2, 5, 11]
    assert "no pair has the tag 'orignal'" in caplog.text
    with pytest.raises(RecipeError, match="no comma"):
        Distinct(prefer="one,two")


def test_each_dropped_row_names_the_kept_row_that_it_repeats() -> None:
    found = Distinct(distance=3, best="clip").select(table())
    assert found.repeats is not None
    rows, originals = found.repeats
    assert (rows.tolist(), originals.tolist()) == ([2, 5, 11], [9, 9, 30])
    outcome = run_steps(table(), [AtLeast(score="clip", value=0.1), Distinct(distance=3, best="clip")])
    assert {step: rows.tolist() for step, (rows, _) in outcome.repeats.items()} == {2: [5, 11]}
    verdict = Verdict(dropped_by=outcome.dropped_by, repeats=outcome.repeats)
    assert [verdict.original_of(row) for row in (2, 5, 9, 11, 39)] == [None, 9, None, 30, None]


@pytest.mark.parametrize(
    ("settings", "columns", "names"),
    [
        ({"hash": "s"}, {}, "'s' holds numbers"),
        ({"hash": "w"}, {"w": ["hello", "hello"]}, "'hello', expected hex digits"),
        ({"hash": "w"}, {"w": ["0" * 16, "0" * 33]}, "words of 8 and 16 bytes"),
        ({"best": "w"}, {"w": ["a", "b"]}, "'w' holds words, expected numbers"),
        ({}, {"image_hash": ["0" * 16, None]}, "1 of 2 rows have no value for 'image_hash'"),
        (
            {"best": "s", "colours": "image_colours"},
            {"image_colours": ["80", None]},
            "1 of 2 rows have no value for 'image_hash and image_colours and s'",
        ),
        (
            {"colours": "image_colours", "lightness": "image_lightness"},
            {"image_colours": ["80"] * 2, "image_lightness": ["80" * 1024] * 2},
            "'image_colours' holds words of 1 bytes, expected 128",
        ),
        ({"lightness": "image_lightness"}, {"image_lightness": ["8080"] * 2}, "of 2 bytes, expected 1024"),
    ],
)
def test_wrong_columns_are_refused(settings: dict[str, Any], columns: dict[str, Any], names: str) -> None:
    ones = np.ones(2, np.float32)
    whole = {"image_hash": ["00000000000000ff"] * 2, "s": ones, "width": ones, "height": ones}
    with pytest.raises(RecipeError, match=names):
        Distinct(**settings).select(MemoryTable(whole | columns))
    for wrong in ({"distance": 16}, {"tolerance": 256}, {"levels": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Step(**wrong)


def halved(image: Array) -> Array:
    height, width = image.shape[:2]
    return np.asarray(Image.fromarray(image).resize((width // 2, height // 2), Image.Resampling.BICUBIC))


def darker(image: Array) -> Array:
    return np.asarray(image * 0.9, np.uint8)


def cropped_and_overexposed(image: Array) -> Array:
    return np.asarray(np.clip(image[3:-3, 4:-3] * 1.05, 0, 255), np.uint8)


@pytest.mark.parametrize(("change", "lost"), [(recompressed, 0), (halved, 0), (cropped_and_overexposed, 1)])
def test_the_signals_hashes_find_changed_copies_and_nothing_else(change: Callable[[Array], Array], lost: int) -> None:
    images = [decode(image_bytes(seed, (160, 120)), max_pixels=10**6) for seed in range(40)]
    every = [*images, *map(change, images)]
    keep = Step().select(MemoryTable(hash_columns(every))).keep
    assert (keep[:40] | keep[40:]).all()  # one of each stays: no image is taken for another one's copy
    assert int((keep[:40] & keep[40:]).sum()) <= lost


def test_images_of_other_colours_are_not_copies() -> None:
    words = ["00000000000000ff"] * 5 + ["0000000000000000"] * 3
    colours = ["8080", "8090", "8091", "a0a0", "8080", "8080", "8081", "8080"]
    table = MemoryTable({"image_hash": words, "image_colours": colours, "s": np.arange(8, 0, -1).astype(np.float32)})
    found = Step(best="s", lightness=None, tolerance=16).select(table)
    # 8090 is within 16 of 8080, 8091 is not; equal words are one; flat images (hash 0) need equal words.
    assert found.keep.tolist() == [True, False, True, True, False, True, True, False]
    every = Step(best="s", lightness=None, tolerance=255).select(table)
    assert np.flatnonzero(every.keep).tolist() == [0, 5, 6]
    assert Step(best="s", lightness=None, tolerance=0).select(table).counts["kept"] == 6


def on_white(*boxes: tuple[int, int, int, int, int | tuple[int, int, int]]) -> Array:
    """Rectangles on a white image: left, top, right, bottom, colour."""
    image = np.full((256, 256, 3), 255, np.uint8)
    for left, top, right, bottom, colour in boxes:
        image[top:bottom, left:right] = colour
    return image


FRAME = (40, 40, 216, 216, 235)

#: Of each object variants that are different products: all but the last have near hashes.
VARIANTS = {
    "rockers": [on_white(FRAME, *((at, 60, at + 2, 196, 190) for at in ats)) for ats in ([], [128], [99, 157])],
    "greys": [on_white((60, 90, 196, 166, level)) for level in (40, 90, 170)],
    "labels": [
        on_white((90, 20, 166, 240, (60, 90, 40)), (90, 100, 166, 180, 240), *marks)
        for marks in ([(100, 120, 130, 150, 60)], [(126, 120, 156, 150, 60)], [(100, 135, 156, 150, 60)])
    ],
    "colours": [on_white((70, 60, 186, 200, colour)) for colour in ((190, 176, 176), (176, 181, 176), (176, 176, 225))],
}


def cut(image: Array) -> Array:
    return recompressed(image[6:, 4:-3])


@pytest.mark.parametrize("name", VARIANTS)
def test_products_that_differ_in_a_detail_a_grey_or_a_colour_are_not_copies(name: str) -> None:
    images = VARIANTS[name]
    words = MemoryTable(hash_columns(images))
    assert Distinct(distance=15).select(words).counts["kept"] < 3  # their hashes alone take them for copies
    assert Step(distance=15).select(words).counts["kept"] == 3
    for image in images:
        for change in (recompressed, halved, darker, cut):
            assert Step().select(MemoryTable(hash_columns([image, change(image)]))).counts["kept"] == 1, change
    flat = MemoryTable(hash_columns([np.full((40, 40, 3), level, np.uint8) for level in (255, 128, 0, 255)]))
    assert Step(lightness=None).select(flat).counts["kept"] == 1
    assert Step().select(flat).counts["kept"] == 3  # white, grey and black
