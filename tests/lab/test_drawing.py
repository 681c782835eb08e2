"""What is drawn: objects, colours and writing."""

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageChops

from tamis_lab.drawing import draw_objects, draw_place
from tamis_lab.painted_text import paint_text
from tamis_lab.world import COLOURS, OBJECTS, PLACES, Scene


def _changed(before: Image.Image, after: Image.Image, by: int = 24) -> npt.NDArray[np.bool_]:
    """Which pixels differ by more than `by` in some channel."""
    difference: npt.NDArray[np.uint8] = np.asarray(ImageChops.difference(before, after))
    return np.asarray(difference.max(axis=-1) > by)


def _drawn_area(subject: str, colour: str, place: str) -> tuple[npt.NDArray[np.bool_], Image.Image]:
    """Where the object is, and the image, from the same place with and without it (and without noise)."""
    empty = draw_place(place, 128, np.random.default_rng(1))
    full = empty.copy()
    draw_objects(full, Scene(subject=subject, colour=colour, place=place), np.random.default_rng(2))
    small = full.reduce(3)
    return _changed(empty.reduce(3), small), small


@pytest.mark.parametrize("subject", OBJECTS)
def test_every_object_stands_out_in_every_colour(subject: str) -> None:
    places = list(PLACES)
    for i, (colour, rgb) in enumerate(COLOURS.items()):
        where, image = _drawn_area(subject, colour, places[(i + len(subject)) % len(places)])
        assert 0.06 < where.mean() < 0.65, (colour, where.mean())
        # The colour asked for is the nearest of all colours for the largest part of the object.
        names, palette = list(COLOURS), np.array(list(COLOURS.values()))
        pixels = np.asarray(image)[where].astype(int)
        nearest = np.linalg.norm(pixels[:, None] - palette[None], axis=-1).argmin(axis=1)
        shares = np.bincount(nearest, minlength=len(names)) / len(nearest)
        assert shares[names.index(colour)] > 0.2, (colour, rgb, dict(zip(names, shares.round(2), strict=True)))


@pytest.mark.parametrize(
    ("relation", "axis", "sign"), [("left of", 1, -1), ("right of", 1, 1), ("above", 0, -1), ("below", 0, 1)]
)
def test_relations_are_drawn_as_said(relation: str, axis: int, sign: int) -> None:
    for seed in range(8):
        empty = draw_place("desert", 128, np.random.default_rng(seed))
        full = empty.copy()
        scene = Scene(subject="mug", colour="blue", place="desert", relation=relation, other="hat", other_colour="red")
        draw_objects(full, scene, np.random.default_rng(seed))
        pixels = np.asarray(full.reduce(3)).astype(int)
        blue = (pixels[..., 2] > 150) & (pixels[..., 0] < 90)
        red = (pixels[..., 0] > 170) & (pixels[..., 1] < 80)
        distance = np.argwhere(blue).mean(axis=0)[axis] - np.argwhere(red).mean(axis=0)[axis]
        assert sign * distance > 25


def test_painted_text_lies_within_its_quads_and_the_quads_within_the_image() -> None:
    rng = np.random.default_rng(0)
    for i in range(60):
        plain = Image.new("RGB", (128, 128), (128, 128, 128))
        text = ("a photo of two purple elephants next to a red car", "SALE 50% OFF", "owl", "grey cat, library")[i % 4]
        painted = paint_text(plain, text, rng, most_lines=5)
        quads = np.array(painted.quads)
        assert quads.shape[1:] == (4, 2)
        assert quads.min() >= 0
        assert quads.max() <= 128
        assert " ".join(painted.lines).lower().split() == text.lower().split()
        left, top = quads.min(axis=(0, 1))
        right, bottom = quads.max(axis=(0, 1))
        assert bottom - top >= 9
        changed = _changed(plain, painted.image)
        assert changed[int(top) : int(bottom) + 1, int(left) : int(right) + 1].sum() > 40


def test_long_text_is_cut_after_a_whole_word() -> None:
    text = "a very long sentence that goes on and on until nobody can follow it any more at all"
    painted = paint_text(Image.new("RGB", (128, 128)), text, np.random.default_rng(0), most_lines=2)
    assert len(painted.quads) == 2
    assert text.startswith(" ".join(painted.lines))
    assert 3 <= len(" ".join(painted.lines).split()) < len(text.split())


def test_a_word_longer_than_a_line_is_made_smaller_and_not_lost() -> None:
    for seed in range(12):
        painted = paint_text(
            Image.new("RGB", (128, 128)), "www.unusually-long-address.example", np.random.default_rng(seed)
        )
        assert " ".join(painted.lines).lower() == "www.unusually-long-address.example"
        assert np.array(painted.quads).min() > 0
        assert np.array(painted.quads).max() < 128
