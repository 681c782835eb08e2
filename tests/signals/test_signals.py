"""The scorers' values by hand. What all of them promise is in test_contracts.py, CLIP's numbers in test_clip.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import drawn_text, pair, plain_image, score_batch, write_tar
from PIL import Image, ImageDraw, ImageFont

import tamis
from tamis.data import Sample
from tamis.features.text_boxes import TextBoxes
from tamis.signals import CaptionLength, ImageSize, Language, TextArea

NAN = np.nan


def sample(caption: str | None = None, pixels: Any = None, **sizes: int) -> Sample:
    return Sample(uid=(0, 0), key="k", caption=caption, pixels=pixels, **sizes)


# ---- caption_length


@pytest.mark.parametrize(
    ("caption", "words", "characters"),
    [
        ("a red boat", 3, 10),
        ("IMG_2041.jpg", 1, 12),
        (" two\twords \n", 2, 12),
        ("non\u00a0breaking", 2, 12),  # str.split takes it for a space, as DataComp's rule does
        ("日本語のタイトル", 1, 8),
        ("e\u0301", 1, 2),  # code points, not what one sees
        ("👩‍👩‍👧", 1, 5),
    ],
)
def test_words_and_characters_by_hand(caption: str, words: int, characters: int) -> None:
    found = score_batch(CaptionLength(), [sample(caption)])
    assert (found["words"].tolist(), found["characters"].tolist()) == ([words], [characters])
    assert found["words"].dtype == np.float32


def test_no_caption_has_no_length() -> None:
    found = score_batch(CaptionLength(), [sample(None), sample("x")])
    np.testing.assert_array_equal(found["words"], [NAN, 1])
    np.testing.assert_array_equal(found["characters"], [NAN, 1])


# ---- image_size


@pytest.mark.parametrize(
    ("sizes", "of", "shorter", "ratio"),
    [
        ({"width": 300, "height": 200}, "original", 200, 1.5),
        ({"width": 100, "height": 400}, "original", 100, 4.0),
        ({"width": 7, "height": 7}, "stored", 7, 1.0),
        ({"width": 300, "height": 200, "original_width": 900, "original_height": 300}, "original", 300, 3.0),
        ({"width": 300, "height": 200, "original_width": 900, "original_height": 300}, "stored", 200, 1.5),
        ({"width": 300, "height": 200, "original_width": 900}, "original", 200, 1.5),  # half a size is none
        ({"original_width": 900, "original_height": 300}, "original", 300, 3.0),  # broken, but its json knows
        ({"original_width": 900, "original_height": 300}, "stored", NAN, NAN),
        ({}, "original", NAN, NAN),
    ],
)
def test_sizes_by_hand(sizes: dict[str, int], of: Any, shorter: float, ratio: float) -> None:
    found = score_batch(ImageSize(of=of), [sample(**sizes)])
    np.testing.assert_array_equal(found["shorter_side"], [shorter])
    np.testing.assert_array_equal(found["aspect_ratio"], [ratio])


def test_a_ratio_just_past_three_is_past_three() -> None:
    found = score_batch(ImageSize(), [sample(width=60_002, height=20_000), sample(width=60_000, height=20_000)])
    assert (found["aspect_ratio"] <= np.float32(3)).tolist() == [False, True]


def test_broken_images_in_a_pool_have_the_size_their_json_gives(tmp_path: Path) -> None:
    samples = [("a", pair(0)), ("b", pair(1) | {"jpg": b"no image"}), ("c", {"jpg": b"no image", "txt": b"a dog"})]
    write_tar(tmp_path / "pool" / "0.tar", samples)
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", scores=["image_size"], quiet=True)
    np.testing.assert_array_equal(run.to_numpy("shorter_side"), [320, 320, NAN])
    np.testing.assert_array_equal(run.to_numpy("aspect_ratio"), [1.5, 1.5, NAN])


# ---- language


def test_languages_of_plain_sentences() -> None:
    captions = {
        "en": "A small red boat lies on the beach next to two wooden houses.",
        "de": "Ein kleines rotes Boot liegt am Strand neben zwei Häusern aus Holz.",
        "fr": "Un petit bateau rouge sur la plage à côté de deux maisons en bois.",
        "es": "Un pequeño barco rojo está en la playa junto a dos casas de madera.",
        "ja": "浜辺に赤い小さな船があり、その隣に木の家が二軒あります。",
        "ru": "Маленькая красная лодка лежит на берегу рядом с двумя деревянными домами.",
    }
    found = score_batch(Language(), [sample(text) for text in captions.values()])
    assert found["top_language"] == list(captions)
    assert found["english"][0] > 0.8
    assert (found["english"][1:] < 0.1).all()
    assert found["english"].dtype == np.float32


def test_newlines_and_capitals_are_the_captions_own() -> None:
    one, two = "A small red boat\non the beach", "A small red boat on the beach"
    found = score_batch(Language(), [sample(one), sample(two), sample(one.replace("\n", "\r\n"))])
    assert found["english"][0] == pytest.approx(found["english"][1], abs=1e-6)
    assert found["top_language"] == ["en"] * 3


@pytest.mark.parametrize("caption", ["1234", "...", "🙂", "\u200b", "a" * 100_000, "x\0y"])
def test_what_is_no_language_gets_some_answer(caption: str) -> None:
    found = score_batch(Language(), [sample(caption)])
    assert 0 <= found["english"][0] <= 1
    assert isinstance(found["top_language"][0], str)


def test_no_caption_has_no_language() -> None:
    found = score_batch(Language(), [sample(None), sample("a red boat on the beach"), sample(None)])
    np.testing.assert_array_equal(np.isnan(found["english"]), [True, False, True])
    assert found["top_language"] == [None, "en", None]


def test_english_is_the_probability_of_english_whatever_is_on_top() -> None:
    mixed = "Das rote Boot: the small red boat on the beach mit zwei Häusern"
    found = score_batch(Language(), [sample(mixed)])
    assert 0 < found["english"][0] < 1


# ---- text_area


def test_painted_text_is_found_and_plain_images_have_none() -> None:
    images = [drawn_text("SUMMER SALE"), *map(plain_image, range(4)), np.full((64, 64, 3), 255, np.uint8)]
    area = score_batch(TextArea(), [sample(pixels=image) for image in images])["text_area"]
    left, top, right, bottom = ImageDraw.Draw(Image.new("RGB", (1, 1))).textbbox(
        (0, 0), "SUMMER SALE", ImageFont.load_default(40)
    )
    share = (right - left) * (bottom - top) / (320 * 160)
    assert share < area[0] < 2.5 * share
    assert area[1:].tolist() == [0] * 5


def test_more_text_covers_more() -> None:
    area = score_batch(TextArea(), [sample(pixels=drawn_text("SALE", font=size)) for size in (24, 48, 96)])["text_area"]
    assert 0.005 < area[0] < area[1] < area[2] <= 1


def test_images_of_other_sizes_in_one_batch_keep_their_places() -> None:
    texts = [drawn_text("SUMMER SALE"), drawn_text("BIG SALE", (500, 200))]
    images = [texts[0], plain_image(0, (50, 300)), None, texts[1], plain_image(1, (31, 33))]
    together = score_batch(TextArea(), [sample(pixels=image) for image in images])["text_area"]
    alone = [float(score_batch(TextArea(), [sample(pixels=image)])["text_area"][0]) for image in images]
    np.testing.assert_allclose(together, alone, atol=0.01)
    assert np.isnan(together).tolist() == [False, False, True, False, False]


def test_a_threshold_that_nothing_passes_finds_nothing() -> None:
    never = TextArea(boxes=TextBoxes(threshold=1.0))
    assert score_batch(never, [sample(pixels=drawn_text("SUMMER SALE"))])["text_area"].tolist() == [0]


@pytest.mark.parametrize("size", [(1, 1), (1, 400), (400, 1), (3, 2000)])
def test_images_of_odd_shapes_are_judged(size: tuple[int, int]) -> None:
    image = np.full((size[1], size[0], 3), 128, np.uint8)
    assert score_batch(TextArea(), [sample(pixels=image)])["text_area"].tolist() == [0]
