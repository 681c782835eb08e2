"""Text regions: from probability maps by hand, and large letters with the real detector and recogniser."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import pytest
from factories import plain_image, score_batch
from PIL import Image, ImageDraw, ImageFont

from tamis.data import Device, Sample
from tamis.features.text import TextBoxes
from tamis.math.regions import quad_mask
from tamis.models.ocr.detector import Regions, regions_of, small_size
from tamis.models.ocr.recogniser import load_legible

pytest.importorskip("rapidocr")


def card(text: str, height: float, size: tuple[int, int] = (256, 256)) -> tuple[Any, Any]:
    """Returns an image with one word in its middle, its letters `height` times the longer side high, and its quad."""
    letters = ImageFont.load_default(200)
    _, top, _, bottom = letters.getbbox(text)
    font = ImageFont.load_default(round(height * max(size) * 200 / (bottom - top)))
    left, top, right, bottom = font.getbbox(text)
    x, y = (size[0] - right + left) / 2, (size[1] - bottom + top) / 2
    assert min(x, y) >= 0
    image = Image.new("RGB", size, (200, 40, 40))
    ImageDraw.Draw(image).text((x - left, y - top), text, (250, 250, 250), font)
    right, bottom = x + right - left, y + bottom - top
    return np.array(image), np.array([(x, y), (right, y), (right, bottom), (x, bottom)])


def found_in(image: Any, **settings: Any) -> Regions:
    (found,) = score_batch(TextBoxes(**settings), [Sample(uid=(0, 0), key="0", caption=None, pixels=image)])
    return found


def covered(found: Regions, quad: Any, image: Any) -> float:
    """The share of the word that the regions cover."""
    word = quad_mask([quad], image.shape[1], image.shape[0])
    return float((quad_mask(list(found.quads), image.shape[1], image.shape[0]) & word).sum() / word.sum())


# ---- large letters


@pytest.mark.parametrize(
    ("text", "height", "size"),
    [
        ("SALE", 0.3, (256, 256)),
        ("R", 0.8, (256, 256)),
        ("HP", 0.4, (1024, 768)),  # letters that the network only sees in a smaller image
    ],
)
def test_letters_as_high_as_a_title_are_found(text: str, height: float, size: tuple[int, int]) -> None:
    image, quad = card(text, height, size)
    assert covered(found_in(image), quad, image) > 0.8
    assert covered(found_in(image, reader=None), quad, image) < 0.5


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no affinities")
def test_the_thread_that_detects_may_use_every_core() -> None:
    # Bound to the first core, as OpenVINO does by itself, all workers would share that one.
    detect, me = TextBoxes().load(Device(threads=1)), threading.get_native_id()
    before, done = os.sched_getaffinity(me), threading.Event()
    seen: set[frozenset[int]] = set()

    def watch() -> None:
        while not done.wait(0.001):
            seen.add(frozenset(os.sched_getaffinity(me)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(3):
        detect(images=[card("SALE", 0.3)[0]])
    done.set()
    watcher.join()
    assert seen == {frozenset(before)}


def test_large_shapes_are_not_text() -> None:
    things = Image.new("RGB", (256, 256), (90, 140, 70))
    ImageDraw.Draw(things).polygon([(60, 200), (90, 70), (150, 100), (210, 60), (180, 210)], (240, 240, 230))
    images = [np.array(things), plain_image(3, size=(256, 256)), plain_image(4, size=(900, 700))]
    regions = [found_in(image, threshold=0.0, tallest=9.0, reader=None) for image in images]
    assert len(regions[0]) > 0  # the detector takes it for text
    assert [len(found_in(image)) for image in images] == [0, 0, 0]


def test_one_character_must_be_the_same_in_three_crops() -> None:
    image, quad = card("R", 0.6)
    part = np.array([(quad[0] + quad[1]) / 2, quad[1], quad[2], (quad[2] + quad[3]) / 2])  # half of the letter
    legible = load_legible("ppocr-rec", confidence=0.9, device=Device())
    none = Regions(np.zeros((0, 4, 2), np.float32), np.zeros(0, np.float32))
    readable = legible([image, image], [Regions(np.float32([quad, part]), np.ones(2, np.float32)), none])
    assert [some.tolist() for some in readable] == [[True, False], []]


def test_a_title_that_both_passes_find_is_one_region() -> None:
    image, _ = card("HOTEL", 0.16, size=(900, 900))
    assert len(found_in(image)) == 1
    assert small_size(1024, 768) == (288, 224)


# ---- many regions


def words(rows: int, columns: int) -> Any:
    """A map of rows x columns words, each 20 x 6 pixels."""
    probability = np.zeros((rows * 16, columns * 32), np.float32)
    for row in range(rows):
        for column in range(columns):
            probability[row * 16 + 5 : row * 16 + 11, column * 32 + 6 : column * 32 + 26] = 0.9
    return probability


def test_a_page_keeps_all_of_its_words() -> None:
    probability = words(56, 31)
    found, heights = regions_of(probability, 992, 896, threshold=0.5)
    assert len(found) == len(heights) == 56 * 31 == 1736
    assert found.quads[:, :, 1].min() < 16
    assert found.quads[:, :, 1].max() > 880
