"""Image quality: hand-worked images, and a plain reference pixel by pixel."""

import math
from collections import Counter
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tamis
from tamis.core.arrays import Pixels
from tamis.signals.image_quality import quality, variance


def flat(red: int, green: int, blue: int, side: int = 8) -> Pixels:
    return np.full((side, side, 3), (red, green, blue), np.uint8)


def test_hand_worked() -> None:
    assert quality(flat(0, 0, 0)) == {
        "brightness": 0, "darkest": 0, "brightest": 0, "contrast": 0, "sharpness": 0, "sharpest": 0, "entropy": 0,
        "one_colour": 1, "grey": 1,
    }  # fmt: skip
    assert quality(flat(255, 255, 255))["brightness"] == pytest.approx(1)
    red = quality(flat(255, 0, 0))
    assert red["brightness"] == pytest.approx(math.sqrt(0.241))
    assert red["grey"] == 0

    board = np.zeros((8, 8, 3), np.uint8)
    board[::2, ::2] = board[1::2, 1::2] = 255
    found = quality(board)
    assert found["contrast"] == 0.5
    assert found["entropy"] == 1
    assert found["one_colour"] == 0.5
    assert found["sharpness"] == (4 * 255) ** 2  # every pixel is 4 x 255 from its neighbours, half of them above
    assert found["sharpest"] == 4  # 4 x 255, as a share of the range from 0 to 255

    assert quality(flat(10, 18, 10))["grey"] == 1
    assert quality(flat(10, 19, 10))["grey"] == 0
    assert quality(flat(9, 9, 9, side=2))["sharpness"] == 0
    assert variance(np.array([1, 0, 1])) == 1  # of 0 and 2


@pytest.mark.parametrize("seed", range(3))
def test_equals_a_plain_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    image = (rng.integers(0, 256, (7, 11, 3)) // rng.choice([1, 60])).astype(np.uint8)
    light = np.asarray(Image.fromarray(image).convert("L")).astype(float)
    bright = sorted(
        math.sqrt(0.241 * r * r + 0.691 * g * g + 0.068 * b * b) / 255 for r, g, b in image.reshape(-1, 3).astype(float)
    )
    inside = [
        light[y - 1, x] + light[y + 1, x] + light[y, x - 1] + light[y, x + 1] - 4 * light[y, x]
        for y in range(1, 6)
        for x in range(1, 10)
    ]
    colours = Counter(tuple(channel // 16 for channel in pixel) for pixel in image.reshape(-1, 3).tolist())
    shares = [count / 77 for count in Counter(light.ravel().tolist()).values()]
    expected = {
        "brightness": sum(bright) / 77,
        "darkest": np.percentile(bright, 5),
        "brightest": np.percentile(bright, 99),
        "contrast": light.std() / 255,
        "sharpness": np.var(inside),
        "sharpest": np.percentile(np.abs(inside), 99.9, method="inverted_cdf")
        / max(np.subtract(*np.percentile(light, (99, 1), method="inverted_cdf")), 1),
        "entropy": -sum(share * math.log2(share) for share in shares),
        "one_colour": max(colours.values()) / 77,
        "grey": sum(max(pixel) - min(pixel) <= 8 for pixel in image.reshape(-1, 3).tolist()) / 77,
    }
    assert quality(image) == pytest.approx(expected, rel=1e-6)


def test_a_blurred_and_a_larger_photograph(tmp_path: Path) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 48, 3)).astype(np.uint8))
    sharp, blurred = noise.resize((768, 1024), Image.Resampling.NEAREST), noise.resize((768, 1024))
    sharp.putalpha(51)  # a fifth opaque
    (tmp_path / "pool").mkdir()
    for name, image in {"a.png": sharp, "b.jpg": blurred, "c.png": sharp.convert("RGB"), "d.jpg": None}.items():
        buffer = BytesIO()
        if image:
            image.save(buffer, "PNG" if name.endswith("png") else "JPEG")
        (tmp_path / "pool" / name).write_bytes(buffer.getvalue())
    (tmp_path / "pool" / "pairs.csv").write_text("image,caption\na.png,a\nb.jpg,b\nc.png,c\nd.jpg,d\n")

    run = tamis.score(tmp_path / "pool" / "pairs.csv", run=tmp_path / "run", signals=["image_quality"], quiet=True)

    alpha, blur, opaque, broken = run.to_numpy("sharpness")
    assert opaque == alpha > 5 * blur
    assert np.isnan(broken)
    np.testing.assert_allclose(run.to_numpy("transparent"), [0.8, 0, 0, np.nan], atol=1e-6)
