"""Perceptual hashes, the search for near ones compared with all pairs, and the comparison of thumbnails."""

import io
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from tamis.core.arrays import Mask, Rows
from tamis.core.math import copies
from tamis.core.math.copies import Thumbnails, _place, are_copies, image_hash, leaders
from tamis.signals.image_hash import colours_of, lightness_of

Array = np.ndarray[Any, Any]


def smooth(seed: int) -> Array:
    rng = np.random.default_rng(seed)
    coarse = rng.random((6, 6))
    grid = np.linspace(0, 5, 32)
    low = np.clip(grid.astype(int), 0, 4)
    part = grid - low
    rows = coarse[low] * (1 - part)[:, None] + coarse[low + 1] * part[:, None]
    return np.asarray(rows[:, low] * (1 - part) + rows[:, low + 1] * part)


def bits(one: int, two: int) -> int:
    return bin(one ^ two).count("1")


def test_one_wave_sets_its_own_bit() -> None:
    across = np.cos((np.arange(32) + 0.5) * np.pi * 3 / 32)
    # Row 0, wave 3: the fourth of the 64 bits, counted from the left. It alone is above the median of the others.
    assert image_hash(np.tile(across, (32, 1))) >> 60 & 1 == 1
    assert image_hash(-np.tile(across, (32, 1))) >> 60 & 1 == 0


def test_brightness_and_small_noise_change_few_bits_and_another_image_many() -> None:
    near, far = [], []
    for seed in range(30):
        image, noise = smooth(seed), np.random.default_rng(seed).normal(0, 0.01, (32, 32))
        assert image_hash(0.5 * image + 30) == image_hash(image)
        near.append(bits(image_hash(image), image_hash(image + noise)))
        far.append(bits(image_hash(image), image_hash(smooth(seed + 100))))
    assert max(near) <= 6
    assert np.mean(far) > 20
    for number, image in enumerate(few_waves()):
        noise = np.random.default_rng(number).normal(0, 0.3, (32, 32))  # as recompression leaves it
        assert bits(image_hash(image), image_hash(image + noise)) <= 2


def test_only_one_colour_is_zero_and_other_sizes_are_errors() -> None:
    assert image_hash(np.full((32, 32), 7.0)) == image_hash(np.zeros((32, 32))) == 0
    assert min(image_hash(image) for image in few_waves()) > 0  # a rising gradient has no positive wave
    with pytest.raises(ValueError, match=r"32 x 32, got \(8, 8\)"):
        image_hash(np.zeros((8, 8)))


def few_waves() -> list[Array]:
    """Gradients, stripes, flags and sums of a function of the row and one of the column: most waves are 0."""
    across, down = np.meshgrid(np.arange(32.0), np.arange(32.0))
    rises = [across, -across, across + down, across - down, across**2 / 32, np.sqrt(down) + across / 8]
    waves = [np.sin(across / 3) + np.cos(down / 4), np.sin(across / 5) + np.sin(down / 5)]
    stripes = [20 * (np.floor(way / wide) % 3) for wide in (3, 4, 5, 11) for way in (across, down)]
    cross = 20.0 * ((abs(across - 12) < 2.5) | (abs(down - 16) < 2.5))
    return [30 + 5 * image for image in (*rises, *waves, *stripes, cross)]


def test_images_of_few_waves_have_one_hash_on_every_kernel_of_the_blas() -> None:
    code = "import test_copies as t; print([t.image_hash(each) for each in t.few_waves()])"
    places = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    outputs = set()
    for kernel in ("Haswell", "Nehalem", "Prescott", "SkylakeX"):
        known = os.environ | {"OPENBLAS_CORETYPE": kernel, "PYTHONPATH": places}
        done = subprocess.run([sys.executable, "-c", code], env=known, capture_output=True, text=True, check=False)
        if done.returncode >= 0:  # else this processor lacks an instruction of the kernel
            outputs.add(done.stdout or done.stderr)
    assert outputs == {f"{[image_hash(each) for each in few_waves()]}\n"}


def slow_leaders(hashes: list[list[int]], radius: int, same: Callable[[int, int], bool]) -> list[int]:
    """One row after the other: it repeats the first kept one near it as a whole, else near its inside."""
    head: list[int] = []
    for row, mine in enumerate(hashes):
        kept = [other for other in range(row) if head[other] == other and same(other, row)]
        whole = (other for other in kept if min(bits(hashes[other][0], its) for its in mine) <= radius)
        inside = (other for other in kept if min(bits(mine[0], its) for its in hashes[other]) <= radius)
        head.append(next(whole, next(inside, row)))
    return head


@given(st.integers(0, 10**6), st.integers(0, 15), st.sampled_from([4, 6, 9]), st.sampled_from([3, 1024]))
@settings(max_examples=10, deadline=None)
def test_leaders_are_those_of_all_pairs(seed: int, radius: int, bands: int, together: int) -> None:
    if bands == 4 and radius > 8:
        radius -= 8  # thousands of look-ups for each row
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 2**64, 12, dtype=np.uint64)
    found = [int(hash_) for hash_ in base]
    for _ in range(60):
        hash_ = int(base[rng.integers(0, 12)])
        for bit in rng.choice(64, rng.integers(0, 18), replace=False):
            hash_ ^= 1 << int(bit)
        found.append(hash_)
    inside = [hash_ ^ int(rng.integers(0, 2**63)) if rng.random() < 0.5 else hash_ ^ 1 for hash_ in found]
    inside[3] = found[8]
    rows = [list(pair) for pair in zip(found, inside, strict=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "_bands", lambda *_: copies._cut(bands))
        patch.setattr(copies, "_ROWS", together)
        patch.setattr(copies, "_PAIRS", 20)
        patch.setattr(copies, "_HASHES", 7)
        hashes = np.array(rows, np.uint64)
        assert leaders(hashes, radius).tolist() == slow_leaders(rows, radius, lambda *_: True)
        kind = rng.integers(0, 2, len(rows))
        alike = leaders(hashes, radius, lambda left, right: kind[left] == kind[right])
        assert alike.tolist() == slow_leaders(rows, radius, lambda left, right: bool(kind[left] == kind[right]))


def test_any_number_of_rows_is_cut_into_bands_that_find_everything() -> None:
    with pytest.raises(ValueError, match="from 0 to 15 bits of 64, got 16"):
        leaders(np.zeros((1, 1), np.uint64), 16)
    for n in (1, 100, 10**4, 10**6, 10**8):
        for radius in range(16):
            bands = copies._bands(radius, n)
            assert [first for first, _ in bands] == np.cumsum([0, *(width for _, width in bands[:-1])]).tolist()
            assert sum(width for _, width in bands) == 64
            # Fewest differing bits that every band misses: one more than it looks for.
            assert sum((radius - number) // len(bands) + 1 for number in range(len(bands))) == radius + 1
    assert len(copies._bands(8, 10**6)) < len(copies._bands(8, 100))


def test_copies_are_compared_with_the_kept_one_only() -> None:
    """12,000 near copies of one image, no two with equal hashes: 72 million pairs are near."""
    rng = np.random.default_rng(0)
    flips = np.array([sum(1 << int(bit) for bit in rng.choice(64, 3, replace=False)) for _ in range(12_000)], np.uint64)
    hashes = np.concatenate([rng.integers(0, 2**64, 500, dtype=np.uint64), np.uint64(0xF0F0F0F0F0F0F0F0) ^ flips])
    asked = 0

    def counted(left: Rows, right: Rows) -> Mask:
        nonlocal asked
        asked += left.size
        return np.ones(left.size, bool)

    head = leaders(hashes[:, None], 8, counted)
    assert head.tolist() == [*range(500), *[500] * 12_000]
    assert asked < 12_100  # each once, and the pairs of other images whose hashes happen to be near


def photograph(seed: int) -> Array:
    """An image with detail everywhere, of 300 x 300 pixels."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 240, (10, 10), dtype=np.uint8))
    return np.asarray(coarse.resize((300, 300), Image.Resampling.BICUBIC))


def thumbnail(grey: Array) -> Array:
    return np.asarray(Image.fromarray(grey).resize((32, 32), Image.Resampling.BICUBIC))


def thumbnails(*light: Array, colours: Array | None = None, side: float = 256) -> Thumbnails:
    hues = np.full((len(light), 128), 128, np.uint8) if colours is None else colours
    return Thumbnails(np.stack(light).reshape(len(light), 1024), hues, np.full(len(light), side, np.float32))


def same(one: Thumbnails, two: Thumbnails) -> list[bool]:
    return are_copies(one, two, levels=3, tolerance=3).tolist()


def test_a_cropped_copy_is_aligned_and_found() -> None:
    # Columns 12 to 285 and rows 6 to 300: the middle is moved by (12 - 15) / 300 to the left, the width is 273 of 300.
    for seed in range(5):
        whole = photograph(seed)
        part = np.asarray(np.clip(whole[6:, 12:285] * 0.95, 0, 255), np.uint8)
        place = _place(*(thumbnail(each).astype(np.float32)[None] for each in (part, whole)))
        assert place[0] == pytest.approx([-3 / 300, -27 / 300, 6 / 300, -6 / 300, 0.95], abs=0.01)
        assert same(thumbnails(thumbnail(part)), thumbnails(thumbnail(whole))) == [True]
        assert same(thumbnails(thumbnail(whole)), thumbnails(thumbnail(part))) == [True]
    assert same(thumbnails(thumbnail(photograph(0))), thumbnails(thumbnail(photograph(1)))) == [False]


def test_two_fields_have_to_differ_by_more_than_the_levels_and_more_than_their_surroundings() -> None:
    for slope, wanted in ((1, [True, True, False, False]), (0, [True, False, False, False])):  # 0: a drawing
        ground = np.tile(200 - slope * np.arange(32), (32, 1)).T.astype(np.uint8)
        ground[:, :4] = 20  # so that it can be aligned
        found = []
        for fields, levels in ((20, 3), (1, 9), (2, 9), (20, 9)):
            other = ground.copy()
            other[6 : 6 + fields, 20] -= levels
            found += same(thumbnails(ground), thumbnails(other))
        assert found == wanted
    edge = ground.copy()
    edge[:, 4] -= 9  # next to a step of 180 levels
    assert same(thumbnails(ground), thumbnails(edge)) == [True]


def chart(size: tuple[int, int] = (480, 360), **other: Any) -> Image.Image:
    """Draws a line chart; `other` replaces its title, label, legend or seed, or adds a ribbon."""
    given = {
        "title": "loss of each model",
        "label": "time in hours",
        "legend": "proposed",
        "seed": 0,
        "ribbon": 0,
    } | other
    image = Image.new("RGB", size, "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(13)
    draw.rectangle((50, 30, 460, 315), outline="black")
    for tick in range(5):
        draw.text((22, 300 - 62 * tick), f"0.{tick}", "black", font)
        draw.text((60 + 90 * tick, 320), str(tick), "black", font)
    draw.text((180, 10), given["title"], "black", font)
    draw.text((200, 338), given["label"], "black", font)
    draw.text((360, 45), given["legend"], "black", font)
    heights = 170 + np.random.default_rng(given["seed"]).normal(0, 22, 41).cumsum().clip(-120, 120)
    points = [(50 + 10 * step, float(height)) for step, height in enumerate(heights)]
    if given["ribbon"]:
        outline = [(x, y - 14) for x, y in points] + [(x, y + 14) for x, y in reversed(points)]
        draw.polygon(outline, fill=(190, 210, 235))
    draw.line(points, (30, 90, 180), 2)
    return image


def of_image(image: Image.Image) -> Thumbnails:
    colours = np.frombuffer(bytes.fromhex(colours_of(np.asarray(image))), np.uint8)[None]
    light = np.frombuffer(bytes.fromhex(lightness_of(np.asarray(image))), np.uint8)[None]
    return Thumbnails(light, colours, np.array([min(image.size)], np.float32))


def saved(image: Image.Image, quality: int) -> Image.Image:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return Image.open(out).convert("RGB")


@pytest.mark.parametrize(
    "other",
    [
        {"title": "error by size"},
        {"label": "year of data"},
        {"legend": "baseline"},
        {"seed": 1},
        {"ribbon": True},
    ],
    ids=str,
)
def test_charts_on_the_same_axes_that_show_something_else_are_no_copies(other: dict[str, Any]) -> None:
    first = of_image(chart())
    for changed in (chart(**other), saved(chart(**other), 75)):
        assert same(first, of_image(changed)) == [False]
        assert same(of_image(changed), first) == [False]


@pytest.mark.parametrize(
    "copy",
    [
        lambda image: saved(image, 40),
        lambda image: image.resize((240, 180), Image.Resampling.LANCZOS),
        lambda image: saved(image.resize((700, 525), Image.Resampling.BICUBIC), 80),
        lambda image: image.crop((4, 3, 476, 357)),
        lambda image: saved(image.point(lambda level: int(level * 0.95)), 90),
    ],
    ids=["recompressed", "half", "larger", "cropped", "darker"],
)
def test_copies_of_a_chart_are_found(copy: Callable[[Image.Image], Image.Image]) -> None:
    for options in ({}, {"ribbon": True, "seed": 3}):
        assert same(of_image(chart(**options)), of_image(copy(chart(**options)))) == [True]


def test_colours_alone_tell_images_apart() -> None:
    light = thumbnail(photograph(0))
    colours = np.full((1, 128), 128, np.uint8)
    colours[0, 54:58] += 8
    assert same(thumbnails(light), thumbnails(light, colours=colours)) == [False]
