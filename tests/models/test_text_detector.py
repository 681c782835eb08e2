"""Text regions: from maps by hand, large letters with the real detector and recogniser, and FAST."""

import os
import threading
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from factories import plain_image, score_batch
from PIL import Image, ImageDraw, ImageFont

from tamis.core.errors import ModelError, RecipeError
from tamis.core.math.regions import quad_mask
from tamis.core.types import Device, Sample, settings
from tamis.models import ocr
from tamis.models.ocr import Regions, fast_quads, load_legible, small_size
from tamis.models.reference import resolve
from tamis.recipes.recipe import load
from tamis.signals import TextArea
from tamis.signals.features.text_boxes import FastBoxes, TextBoxes


def in_the_middle(text: str, font: Any, size: tuple[int, int], ground: Any, ink: Any) -> tuple[Any, Any]:
    """Returns an image with one word in its middle, and the word's quad."""
    left, top, right, bottom = font.getbbox(text)
    x, y = (size[0] - right + left) / 2, (size[1] - bottom + top) / 2
    assert min(x, y) >= 0
    image = Image.new("RGB", size, ground)
    ImageDraw.Draw(image).text((x - left, y - top), text, ink, font)
    right, bottom = x + right - left, y + bottom - top
    return np.array(image), np.array([(x, y), (right, y), (right, bottom), (x, bottom)])


def card(text: str, height: float, size: tuple[int, int] = (256, 256)) -> tuple[Any, Any]:
    """Letters `height` times the longer side high."""
    _, top, _, bottom = ImageFont.load_default(200).getbbox(text)
    font = ImageFont.load_default(round(height * max(size) * 200 / (bottom - top)))
    return in_the_middle(text, font, size, (200, 40, 40), (250, 250, 250))


def found_in(image: Any, **settings: Any) -> Regions:
    (found,) = score_batch(TextBoxes(**settings), [Sample(uid=(0, 0), key="0", caption=None, pixels=image)])
    return found


def covered_rows(found: Regions, quad: Any, image: Any) -> float:
    """The share of the word that the regions cover."""
    word = quad_mask([quad], image.shape[1], image.shape[0])
    return float((quad_mask(list(found.quads), image.shape[1], image.shape[0]) & word).sum() / word.sum())


def test_small_text_is_enlarged_where_it_is_and_the_result_is_each_images_own() -> None:
    font, greys = ImageFont.load_default(8), ((230, 230, 225), (60, 60, 60))
    small, quad = in_the_middle("a wall of notices", font, (400, 260), *greys)
    large = card("SALE", 0.3)[0]
    found = found_in(small)
    assert len(found) == 1
    assert covered_rows(found, quad, small) > 0.9
    assert cv2.contourArea(found.quads[0]) < 4 * cv2.contourArea(quad.astype(np.float32))
    detect = TextBoxes().load(Device())
    for again in (detect(images=[large, small, large])[1], detect(images=[small])[0]):
        np.testing.assert_array_equal(again.quads, detect(images=[small, large])[0].quads)


def test_the_finer_look_takes_the_part_with_unsure_responses() -> None:
    response = np.zeros((224, 320), np.float32)
    response[20:40, 30:90] = 0.9  # a sure region
    sure = Regions(np.array([[(20, 10), (100, 10), (100, 50), (20, 50)]], np.float32), np.ones(1, np.float32))
    assert ocr.crop_of(response, sure, 320, 224, 2.0) is None
    response[150:154, 200:230] = 0.3
    assert ocr.crop_of(response, sure, 320, 224, 2.0) is None  # too weak for a reason
    response[150:154, 200:230] = 0.6
    assert ocr.crop_of(response, sure, 320, 224, 2.0) == (183, 120, 247, 184)  # 128 / 2 pixels
    twice = Regions(2 * sure.quads, sure.confidence)
    assert ocr.crop_of(response, twice, 640, 448, 1.0) == (366, 240, 494, 368)  # in the image's pixels
    response[:, 5] = 0.02
    assert ocr.crop_of(response, sure, 320, 224, 2.0) == (0, 0, 288, 224)
    assert [ocr.fine_zoom(*size, 736) for size in ((320, 224), (1280, 720), (2048, 100))] == [2.25, 0, 0]


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
    assert covered_rows(found_in(image), quad, image) > 0.8
    assert covered_rows(found_in(image, reader=None), quad, image) < 0.5


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


#: Words in scripts that PP-OCR's recognisers read and do not read, in a font that matplotlib carries.
_WORDS = ("SALE", "МИР", "ДЕНЬ", "ЦЕНЫ", "Хлеб", "ΦΩΣ", "Ζωή", "שלום", "לחם")


@pytest.mark.parametrize("size", [(256, 256), (400, 300), (900, 180)])
def test_a_large_word_is_text_in_every_script(size: tuple[int, int]) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    path = Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans-Bold.ttf"
    for word in _WORDS:
        left, top, right, bottom = ImageFont.truetype(path, 200).getbbox(word)
        scale = 0.8 * min(size[0] / (right - left), size[1] / (bottom - top))
        font = ImageFont.truetype(path, int(200 * scale))
        image, quad = in_the_middle(word, font, size, (240, 235, 220), (20, 60, 120))
        assert covered_rows(found_in(image), quad, image) > 0.7, word


def strokes(*lines: Any, width: int = 12, ink: Any = (10, 10, 10)) -> Any:
    """A region of 96 x 96 pixels with the lines drawn in it."""
    image = Image.new("RGB", (96, 96), (240, 240, 240))
    for line in lines:
        ImageDraw.Draw(image).line(line, ink, width)
    return np.array(image)


def test_writing_has_thin_strokes_of_one_colour_and_width() -> None:
    region = np.array([(0, 0), (96, 0), (96, 96), (0, 96)], np.float32)
    bars = ([(20, 12), (20, 84)], [(48, 12), (48, 84)], [(76, 12), (76, 84)])
    written = strokes(*bars)
    assert ocr.is_drawn(written, region)
    assert ocr.is_drawn(255 - written, region)
    assert ocr.is_drawn(np.array(Image.fromarray(written).rotate(90)), region)
    assert not ocr.is_drawn(strokes([(48, 12), (48, 84)], width=40), region)  # as thick as a thing
    assert not ocr.is_drawn(np.minimum(written, strokes([(20, 48), (76, 48)], width=70)), region)  # and of two widths
    assert not ocr.is_drawn(strokes(*([(x, 0), (x, 96)] for x in (10, 30, 50, 70, 90)), width=8), region)  # goes on
    ramp = np.linspace(0.1, 1, 96)[:, None, None]
    assert not ocr.is_drawn((written * ramp).astype(np.uint8), region)  # of many tones
    for plain in (np.full((96, 96, 3), 77, np.uint8), written[:1, :1]):
        assert not ocr.is_drawn(plain, region)
    assert not ocr.is_drawn(written, region * np.float32([1, 0.001]))


@pytest.mark.parametrize("aspect", [3, 5])
def test_a_thing_as_high_as_a_wide_image_is_not_text(aspect: int) -> None:
    image = Image.new("RGB", (150 * aspect, 150), (90, 140, 70))
    thing = [(60, 130), (90, 20), (150, 50), (210, 10), (180, 140)]
    ImageDraw.Draw(image).polygon([(x + 40, y) for x, y in thing], (240, 240, 230))
    assert len(found_in(np.array(image), tallest=9.0)) > 0
    assert len(found_in(np.array(image))) == 0


def test_a_title_that_both_passes_find_is_one_region() -> None:
    image, _ = card("HOTEL", 0.16, size=(900, 900))
    assert len(found_in(image)) == 1
    assert small_size(1024, 768) == (160, 128)


def test_the_rewritten_head_gives_the_same_map() -> None:
    import openvino

    core, path = openvino.Core(), resolve("ppocr").path
    plain = core.read_model(path)
    small = ocr._with_small_head(core.read_model(path))
    image = card("SALE", 0.3, (96, 64))[0].transpose(2, 0, 1)[None].astype(np.float32) / 127.5 - 1
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    before, after = (core.compile_model(one, "CPU", settings)(image)[0] for one in (plain, small))
    assert "ConvolutionBackpropData" not in {step.get_type_name() for step in small.get_ops()}
    assert before.max() > 0.5
    np.testing.assert_allclose(after, before, atol=1e-6)
    assert ocr._with_small_head(small) is small  # another network stays as it is


def slow_quads(logits: Any, side: int, threshold: float, area: int, pooling: int) -> list[tuple[int, float, list[int]]]:
    """What fast_head.py and generate_bbox.py do, with torch's pooling: pixels, confidence, bounds of each region."""
    import torch

    def grown(values: Any) -> Any:
        half = torch.nn.functional.interpolate(torch.tensor(values)[None, None], size=(side // 2, side // 2))
        spread = torch.nn.functional.max_pool2d(half, pooling // 2 + 1, stride=1, padding=(pooling // 2) // 2)
        return torch.nn.functional.interpolate(spread, size=(side, side))[0, 0].numpy()

    _, cores = cv2.connectedComponents((logits > 0).astype(np.uint8))
    labels, probability = grown(cores.astype(np.float32)), 1 / (1 + np.exp(-grown(logits).astype(np.float64)))
    found = []
    for label in range(1, cores.max() + 1):
        inside = labels == label
        if inside.sum() < area or probability[inside].mean() < threshold:
            continue
        ys, xs = np.nonzero(inside)
        found.append((int(inside.sum()), float(probability[inside].mean()), [xs.min(), ys.min(), xs.max(), ys.max()]))
    return found


@pytest.mark.parametrize("pooling", [1, 7, 9])
@pytest.mark.parametrize("seed", range(2))
def test_regions_are_those_of_the_slow_reference(seed: int, pooling: int) -> None:
    rng = np.random.default_rng(seed)
    logits = cv2.resize(rng.normal(-0.6, 2, (9, 9)).astype(np.float32), (32, 32), interpolation=cv2.INTER_CUBIC)
    expected = slow_quads(logits, 128, 0.6, 40, pooling)
    quads, confidence = fast_quads(logits, 128, 0.6, 40, pooling)
    assert len(expected) >= 2
    np.testing.assert_allclose(confidence, [sure for _, sure, _ in expected], rtol=1e-5)
    for quad, (pixels, _, (left, top, right, bottom)) in zip(quads, expected, strict=True):
        hull = cv2.contourArea(quad)
        assert hull <= (right - left + 1) * (bottom - top + 1)  # no larger than the upright one
        assert hull >= 0.6 * pixels
        centre = quad.mean(axis=0)
        assert left <= centre[0] <= right
        assert top <= centre[1] <= bottom


def dark_is_text(batch: Any) -> Any:
    """A network of FAST's shape: means of 4 x 4 pixels; the darker, the higher the first of its channels."""
    _, _, height, width = batch.shape
    means = batch.reshape(1, 3, height // 4, 4, width // 4, 4).mean((3, 5))  # (1, 3, h, w)
    maps = np.zeros((1, 5, height // 4, width // 4), np.float32)
    maps[:, 0] = -2 * means.sum(1)
    return maps


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file that loads as `dark_is_text`."""
    monkeypatch.setattr(ocr, "load_network", lambda model, _: resolve(model) and dark_is_text)
    (tmp_path / "fast.onnx").write_bytes(b"a network")
    return str(tmp_path / "fast.onnx")


def sign(width: int, height: int, box: tuple[int, int, int, int]) -> Any:
    image = np.full((height, width, 3), 250, np.uint8)
    left, top, right, bottom = box
    image[top:bottom, left:right] = 5
    return image


def test_text_is_found_in_place_for_every_shape_of_the_image(model: str) -> None:
    boxes = FastBoxes(model=model, side=128, area=80)
    images = [sign(200, 100, (40, 30, 120, 60)), sign(60, 240, (10, 160, 50, 190)), sign(64, 64, (0, 0, 0, 0))]
    samples = [Sample(uid=(0, n), key=str(n), pixels=image) for n, image in enumerate(images)]
    wide, high, empty = score_batch(boxes, samples)
    for found, (left, top, right, bottom), slack in ((wide, (40, 30, 120, 60), 9), (high, (10, 160, 50, 190), 11)):
        assert len(found) == 1
        low, most = found.quads[0].min(axis=0), found.quads[0].max(axis=0)
        np.testing.assert_allclose([*low, *most], [left, top, right, bottom], atol=slack)
        assert (low >= 0).all()
        assert 0.85 <= found.confidence[0] <= 1
    assert len(empty) == 0
    assert score_batch(boxes, [Sample(uid=(0, 1), key="x", pixels=None)]) == [None]
    (none,) = score_batch(FastBoxes(model=boxes.model, side=128, area=80, tallest=0.05), samples[:1])
    assert len(none) == 0


def test_recipes_name_it_by_detects(model: str) -> None:
    loaded = load({"signals": [{"text_area": {"boxes": {"detects": "fast", "model": model, "side": 64, "area": 20}}}]})
    ((_, signal),) = loaded.signals
    assert signal == TextArea(boxes=FastBoxes(model=model, side=64, area=20))
    assert settings(signal)["boxes"]["detects"] == "fast"
    found = score_batch(signal, [Sample(uid=(0, 1), key="x", pixels=sign(64, 64, (16, 16, 48, 32)))])
    assert 0.1 < found["text_area"][0] < 0.5
    kind = type(signal.boxes).class_of(settings(signal)["boxes"])  # as the report reads them back
    assert kind(**settings(signal)["boxes"]) == signal.boxes
    with pytest.raises(RecipeError, match=r"text_area, boxes: unknown detector 'fats' \(did you mean 'fast'\?\)"):
        load({"signals": [{"text_area": {"boxes": {"detects": "fats"}}}]})
    with pytest.raises(RecipeError, match=r"unknown setting 'arae' \(did you mean 'area'\?\)"):
        load({"signals": [{"text_area": {"boxes": {"detects": "fast", "arae": 3}}}]})


def test_bad_settings_and_networks_are_errors(model: str) -> None:
    for wrong in ({"area": -1}, {"pooling": 0}, {"side": 4}, {"threshold": 2.0}):
        with pytest.raises(ValueError, match=r"must be|threshold is a probability"):
            FastBoxes(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"fast_tiny_tt_512_finetune_ic17mlt\.onnx"):
        FastBoxes().load(Device())


def test_one_character_must_be_the_same_in_three_crops() -> None:
    image, quad = card("R", 0.6)
    part = np.array([(quad[0] + quad[1]) / 2, quad[1], quad[2], (quad[2] + quad[3]) / 2])  # half of the letter
    legible = load_legible("ppocr-rec", confidence=0.9, device=Device())
    none = Regions(np.zeros((0, 4, 2), np.float32), np.zeros(0, np.float32))
    readable = legible([image, image], [Regions(np.float32([quad, part]), np.ones(2, np.float32)), none])
    assert [some.tolist() for some in readable] == [[True, False], []]


def test_titles_that_are_drawn_or_that_lines_cover_are_not_read() -> None:
    image, quad = card("AB", 0.4)
    asked: list[Any] = []

    def legible(images: Any, regions: Any) -> Any:
        asked.extend(quad for some in regions for quad in some.quads)
        return [np.zeros(len(some), bool) for some in regions]

    how: dict[str, Any] = {"side": 736, "threshold": 0.5, "tallest": 0.2}
    found = ocr.load_text_detector("ppocr", **how, legible=legible, device=Device())([image])[0]
    assert covered_rows(found, quad, image) > 0.8
    assert not any(ocr.is_drawn(image, one) for one in asked)
