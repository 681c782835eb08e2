"""T-MARS and Text-Match: on drawn text with the real detector and recogniser, and by hand."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from factories import drawn_text, score_batch, text_pool

import tamis
from tamis.core.arrays import Pixels
from tamis.core.types import Device, Sample
from tamis.models.ocr import Regions, TextDetector, coarse_size
from tamis.signals import ClipScore, TextArea, TextMatch, Tmars
from tamis.signals.features.text_boxes import ChangedImages, MaskedImages, RecognisedText, TextBoxes, reading_order
from tamis.signals.written_text import UNKNOWN_SCRIPT, letters, longest_match


def sample(number: int, caption: str | None, pixels: Any) -> Sample:
    return Sample(uid=(0, number), key=str(number), caption=caption, pixels=pixels)


def quad(left: float, top: float, right: float, bottom: float) -> list[tuple[float, float]]:
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def regions(*quads: list[tuple[float, float]]) -> Regions:
    return Regions(np.array(quads, np.float32).reshape(-1, 4, 2), np.ones(len(quads), np.float32))


@dataclass(frozen=True, kw_only=True)
class LeftHalf(TextBoxes):
    """Another detector: it takes the left half of every bright image for text."""

    name: ClassVar[str] = "left_half"

    def detector(self, device: Device) -> TextDetector:
        def detect(images: Sequence[Pixels]) -> list[Regions]:
            return [
                regions(quad(0, 0, image.shape[1] / 2, image.shape[0])) if image.mean() > 100 else regions()
                for image in images
            ]

        return detect


def halves(left: int, right: int) -> np.ndarray:
    image = np.full((32, 32, 3), right, np.uint8)
    image[:, :16] = left
    return image


def test_the_score_is_that_of_the_masked_image_by_hand(clip_model: str) -> None:
    bright, dark = halves(250, 120), halves(20, 40)
    noise = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    pairs = [(bright, "a red dog"), (dark, "two cat"), (None, "a boat"), (noise, None), (noise, "the old tree")]
    samples = [sample(n, text, image) for n, (image, text) in enumerate(pairs)]
    found = score_batch(Tmars(model=clip_model, boxes=LeftHalf()), samples)
    before = score_batch(ClipScore(model=clip_model), samples)["clip"]
    covered = [sample(9, "a red dog", halves(120, 120)), sample(8, "the old tree", noise.copy())]
    ring = noise[:, 16:20].reshape(-1, 3).mean(0)  # beside the left half, 4 pixels wide
    covered[1].pixels[:, :16] = np.rint(ring)  # type: ignore[index]
    after = score_batch(ClipScore(model=clip_model), covered)["clip"]
    nan = np.nan
    np.testing.assert_allclose(found["tmars"], [after[0], before[1], nan, nan, after[1]], atol=2e-3)
    np.testing.assert_allclose(found["clip_drop"], before - found["tmars"], atol=1e-6)
    assert found["clip_drop"][1] == 0
    assert score_batch(ChangedImages(masked=MaskedImages(boxes=LeftHalf())), samples[1:3]) == [None, None]
    np.testing.assert_array_equal(found["n_text_boxes"], [1, 0, nan, 1, 1])
    np.testing.assert_array_equal(found["text_area"], [0.5, 0, nan, 0.5, 0.5])


@pytest.mark.parametrize("fill", ["surroundings", "inside_mean", "inpaint"])
def test_every_fill_removes_painted_text(fill: Any) -> None:
    image = drawn_text("GRAND OPENING", size=(300, 150), back=(90, 140, 70), front=(250, 250, 250))
    boxes = TextBoxes()
    node = MaskedImages(boxes=boxes, fill=fill)
    (masked,) = score_batch(node, [sample(0, "x", image)])
    assert (image.max(axis=2) > 200).any()
    assert masked.max() < 250
    (again,) = score_batch(boxes, [sample(0, "x", masked)])
    assert len(again) == 0


def test_one_detection_serves_every_signal_and_embeddings_can_be_kept(
    tmp_path: Path, clip_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = text_pool(tmp_path / "pool", "a red dog", plain=4)
    calls = []
    load = TextBoxes.detector

    def counted(self: TextBoxes, device: Device) -> TextDetector:
        calls.append(self)
        return load(self, device)

    monkeypatch.setattr(TextBoxes, "detector", counted)
    signals = [Tmars(model=clip_model), ClipScore(model=clip_model), TextArea(), TextMatch()]
    run = tamis.score(pool, run=tmp_path / "run", signals=signals, keep=["embeddings", "texts"], quiet=True)
    assert len(calls) == 1
    found = run.to_arrow().to_pydict()
    assert found["text_match"][-1] == len("areddog")
    assert found["image_text"][-1].lower().replace(" ", "") == "areddog"
    assert found["text_match"][:4] == [0, 0, 0, 0]
    assert found["n_text_boxes"][:4] == [0, 0, 0, 0]
    assert run.texts_of("recognised_text", "00000")[:4] == [[], [], [], []]
    kept = run.embedding("masked_embedding", "00000")
    plain = run.embedding("image_embedding", "00000")
    assert np.array_equal(kept[:4], plain[:4])
    assert not np.array_equal(kept[4], plain[4])


@pytest.mark.parametrize("text", ["OPEN", "drink more water every single day", "room x7"])
def test_drawn_text_is_read(text: str) -> None:
    (lines,) = score_batch(RecognisedText(), [sample(0, None, drawn_text(text, size=(60 + 22 * len(text), 120)))])
    assert lines is not None
    assert letters("".join(lines)) == letters(text)


def test_text_on_its_side_is_read_from_the_bottom_up() -> None:
    image = np.ascontiguousarray(np.rot90(drawn_text("VERTICAL", size=(300, 100))))
    assert score_batch(RecognisedText(), [sample(0, None, image)]) == [["VERTICAL"]]


def test_rows_come_from_the_top_and_each_from_the_left() -> None:
    found = regions(quad(60, 2, 90, 12), quad(0, 30, 50, 40), quad(0, 0, 50, 10), quad(60, 27, 90, 36))
    assert reading_order(found) == [2, 0, 1, 3]
    assert reading_order(regions()) == []


@pytest.mark.parametrize(
    ("caption", "lines", "length"),
    [
        ("a red carpet", ["CAR", "PET SHOP"], 3),  # two lines are two words
        ("a red car pet", ["CAR", "PET SHOP"], 6),  # the caption has its gap where the line ends
        ("a red carpet", ["CAR", "PET"], 6),  # whole lines that are one word
        ("hot chocolate", ["NOW", "CHO", "CO", "LATE"], 9),
        ("a concert hall", ["CON-", "CERT HALL"], 11),
        ("a red carpet", ["A RED CAR"], 7),  # within a line white space does not count, as before
        ("I love NY!", ["I", "LOVE", "", "ny"], 7),
        ("one two-three", ["onetwo", "..", "three"], 11),
        ("it says Mark", ["PRESENTS", "MARK"], 4),  # only whole words go on in the next line
        ("大减价今天", ["大减", "价"], 3),  # written without spaces: a line may end anywhere
        ("", ["a"], 0),
        ("a", [], 0),
        ("...", ["...", "-"], 0),
    ],
)
def test_a_run_ends_with_its_line_unless_the_caption_goes_on_there(caption: str, lines: list[str], length: int) -> None:
    assert longest_match(caption, lines) == length


def test_text_match_by_hand() -> None:
    signal = TextMatch()
    match = signal.load(Device())
    found = match(
        captions=["Big SUMMER sale", "a dog", None, "x", "summer-sale now"],
        texts=[["summersale", "now"], [], ["dog"], None, ["SUMMER", "SALE! NOW"]],
        boxes=[regions(quad(0, 0, 9, 9)), regions(), regions(quad(0, 0, 9, 9)), None, regions(quad(0, 0, 9, 9))],
    )
    np.testing.assert_array_equal(found["text_match"], [10, 0, np.nan, np.nan, 13])
    assert found["image_text"] == ["summersale / now", "", "dog", None, "SUMMER / SALE! NOW"]


@pytest.mark.parametrize("caption", ["МИР", "мир вашему дому, ООО", "خبز", "שלום", "ขนมปัง", "रोटी", "평화 시장"])
def test_a_caption_in_a_script_that_the_recogniser_does_not_know_is_missing(caption: str) -> None:
    match = TextMatch().load(Device())
    some = regions(quad(0, 0, 9, 9))
    found = match(captions=[caption] * 3, texts=[["MNP"], [], []], boxes=[some, some, regions()])
    np.testing.assert_array_equal(found["text_match"], [np.nan, np.nan, 0])  # without text there is none to share
    assert found["reason"] == [UNKNOWN_SCRIPT, UNKNOWN_SCRIPT, None]


@pytest.mark.parametrize("caption", ["", "2024", "Čtyři žluté krávy", "和平", "the word Мир", "a β-test"])
def test_a_caption_in_a_known_script_is_judged(caption: str) -> None:
    found = TextMatch().load(Device())(captions=[caption], texts=[["x"]], boxes=[regions(quad(0, 0, 9, 9))])
    assert found["text_match"][0] >= 0
    assert found["reason"] == [None]


def test_no_region_leaves_the_image_and_long_sides_have_a_bound() -> None:
    image = drawn_text("EDGE OF THE IMAGE", size=(260, 40), font=36)
    (found,) = score_batch(TextBoxes(), [sample(0, None, image)])
    assert len(found) >= 1
    assert (found.quads >= 0).all()
    assert (found.quads <= [260, 40]).all()
    assert ((found.confidence > 0.5) & (found.confidence <= 1)).all()
    assert coarse_size(10_000, 100, 320) == (2048, 32)


def test_both_runtimes_find_the_same_quadrilaterals_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """`network_arithmetic` has one word for them, so their scores share a folder."""
    images = [drawn_text("SALE 50 %", size=(300, 90), font=40), drawn_text("open late", size=(200, 200), font=24)]
    found = TextBoxes().load(Device(batch_size=61))(images=images)
    monkeypatch.setitem(sys.modules, "openvino", None)  # as where it is not installed
    other = TextBoxes().load(Device(batch_size=62))(images=images)
    assert [len(regions) for regions in found] == [1, 1]
    for one, two in zip(found, other, strict=True):
        assert np.array_equal(one.quads, two.quads)
