"""How well written text is found, covered and read: `python -m benchmarks.written_text [--data FOLDER]`.

Large letters (`--only large`): painted words and single letters by the height of their letters, in several fonts, on
plain grounds and drawings, and the lab's titles, posters and logos: how many are found, with and without the reader.

On the lab's world, where every letter's place is known: painted pixels that are covered, plain drawings that are not
left alone, and what T-MARS, CLIP and Text-Match keep of each kind (the shape of the paper's Table 4).

With `--data`: word boxes of street photographs (`icdar2015`), ours by input side beside rapidocr as it comes, on images
of several sizes; and photographs with text painted on them (`pools/flickr8k-noisy`): how many are found, how many plain
ones are touched, how many pairs Text-Match catches, by side and by threshold. `--only sides` tells what a side costs
beside what it finds, `--only runtimes` whether OpenVINO and ONNX Runtime find the same.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

import tamis
from benchmarks.known_defects import word
from benchmarks.measure import child
from benchmarks.tmars import stock_detector
from tamis.arrays import Pixels
from tamis.data import Device
from tamis.errors import SampleError
from tamis.features.recognised_text import RecognisedText, reading_order
from tamis.features.text_boxes import TextBoxes
from tamis.lab import make_pool
from tamis.math.area import covered_share, quad_mask
from tamis.math.intervals import share
from tamis.models.device import device_for
from tamis.models.ocr.recogniser import load_text_recogniser
from tamis.pool import open_pool
from tamis.pool.images import decode
from tamis.signals import ClipScore, TextMatch, Tmars
from tamis.signals.text_match import letters, longest_match
from tools.lab_models.examples import draw

KINDS = ("visual", "visual_text", "visual_random_text", "text_only", "mismatched")
Detect = Callable[[Pixels], Sequence[NDArray[Any]]]


def detector(device: Device, **settings: Any) -> Detect:
    """Returns our detector of one image."""
    find = TextBoxes(**settings).detector(device)
    return lambda image: list(find([image])[0].quads)


# ---- street photographs


def words_of(path: Path) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    """Returns the legible and the illegible words of a file of ICDAR 2015: quadrilaterals."""
    legible: list[NDArray[np.float32]] = []
    illegible: list[NDArray[np.float32]] = []
    for line in path.read_text(encoding="utf-8-sig").splitlines():
        fields = line.split(",", 8)
        if len(fields) == 9:
            quad = np.array(fields[:8], np.float32).reshape(4, 2)
            (illegible if fields[8].strip() == "###" else legible).append(quad)
    return legible, illegible


def overlap(one: NDArray[Any], other: NDArray[Any]) -> tuple[float, float]:
    """Returns intersection over union of two convex quadrilaterals, and intersection over the first's area."""
    import cv2

    one, other = one.astype(np.float32), other.astype(np.float32)
    both = cv2.intersectConvexConvex(one, other)[0]
    first, second = cv2.contourArea(one), cv2.contourArea(other)
    return both / max(first + second - both, 1e-6), both / max(first, 1e-6)


def found_words(detect: Detect, pictures: Sequence[tuple[Pixels, Any, Any]]) -> tuple[int, int, int, int]:
    """Returns words found, words, detections that are a word, detections that count.

    A line that holds several words counts as finding each word of which it covers nine tenths: PP-OCR finds lines,
    ICDAR counts words. What lies mostly on illegible text does not count.
    """
    hits = total = right = made = 0
    for image, legible, illegible in pictures:
        found = list(detect(image))
        best = [False] * len(legible)
        for box in found:
            covers = [overlap(quad, box) for quad in legible]
            matched = [n for n, (iou, inside) in enumerate(covers) if iou >= 0.5 or inside >= 0.9]
            for n in matched:
                best[n] = True
            if matched:
                right, made = right + 1, made + 1
            elif not any(overlap(box, quad)[1] >= 0.5 for quad in illegible):
                made += 1
        hits, total = hits + sum(best), total + len(legible)
    return hits, total, right, made


def strict_words(detect: Detect, pictures: Sequence[tuple[Pixels, Any, Any]]) -> tuple[int, int]:
    """Returns words of which some detection has an intersection over union of one half, and words."""
    hits = total = 0
    for image, legible, _ in pictures:
        found = list(detect(image))
        hits += sum(any(overlap(quad, box)[0] >= 0.5 for box in found) for quad in legible)
        total += len(legible)
    return hits, total


def streets(data: Path, device: Device, count: int) -> None:
    """Prints recall and precision by size of the image and input side."""
    stock = stock_detector()
    names = sorted(data.glob("icdar2015/images/*.jpg"))[:count]
    print(f"\n{len(names)} street photographs (ICDAR 2015): legible words found, with 95 % intervals")
    print("  image's shorter side | detector | recall, IoU 0.5 | recall, lines count | precision")
    for size in (224, 320, 480, 720):
        pictures = []
        for name in names:
            image = Image.open(name).convert("RGB")
            ratio = min(1.0, size / min(image.size))
            small = image.resize((round(image.width * ratio), round(image.height * ratio)), Image.Resampling.LANCZOS)
            legible, illegible = words_of(data / f"icdar2015/gts/gt_{name.stem}.txt")
            pictures.append((np.asarray(small), [q * ratio for q in legible], [q * ratio for q in illegible]))
        sides = [
            side for side in (224, 320, 384, 416, 480, 640, 736) if side >= min(size, 640) or side == TextBoxes().side
        ]
        tried: dict[str, Detect] = {"rapidocr as it comes": lambda image: [np.asarray(box) for box in stock(image)]}
        tried |= {f"side {side}": detector(device, side=side) for side in sides}
        for name_of, look in tried.items():
            seen = {id(image): list(look(image)) for image, _, _ in pictures}
            detect: Detect = lambda image, seen=seen: seen[id(image)]  # type: ignore[misc]  # noqa: E731
            strict = share(*strict_words(detect, pictures))
            hits, total, right, made = found_words(detect, pictures)
            print(f"  {size} | {name_of} | {strict} | {share(hits, total)} | {share(right, made) if made else '-'}")


def sides(data: Path, device: Device, count: int) -> None:
    """Prints what each side finds in small street photographs and what it costs; for each photograph all in turn."""
    pictures = []
    for name in sorted(data.glob("icdar2015/images/*.jpg"))[:count]:
        image = Image.open(name).convert("RGB")
        ratio = 320 / min(image.size)
        small = image.resize((round(image.width * ratio), round(image.height * ratio)), Image.Resampling.LANCZOS)
        legible, illegible = words_of(data / f"icdar2015/gts/gt_{name.stem}.txt")
        pictures.append((np.asarray(small), [q * ratio for q in legible], [q * ratio for q in illegible]))
    finders = {side: detector(device, side=side) for side in (320, 384, 416, 480)}
    seen: dict[int, dict[int, list[Any]]] = {side: {} for side in finders}
    spent = dict.fromkeys(finders, 0.0)
    for find in finders.values():
        find(pictures[0][0])  # warms up
    for number, (image, _, _) in enumerate(pictures):
        order = list(finders)[number % 4 :] + list(finders)[: number % 4]
        for side in order:
            start = time.process_time()
            seen[side][id(image)] = list(finders[side](image))
            spent[side] += time.process_time() - start
    print(f"\n{len(pictures)} street photographs of 320 pixels on their shorter side (ICDAR 2015)")
    print("  side | recall, lines count | precision | processor seconds a picture | cost beside 320")
    for side in finders:
        detect: Detect = lambda image, found=seen[side]: found[id(image)]  # type: ignore[misc]  # noqa: E731
        hits, total, right, made = found_words(detect, pictures)
        row = f"{share(hits, total)} | {share(right, made)} | {spent[side] / len(pictures):.3f}"
        print(f"  {side} | {row} | {spent[side] / spent[320]:.2f}", flush=True)


# ---- photographs with painted text


def painted(data: Path, device: Device, sides: Sequence[int]) -> None:
    """Prints what is found on photographs, by kind, side and threshold."""
    samples = [
        one for shard in open_pool(tamis.PoolSpec(path=(str(data / "pools/flickr8k-noisy"),), fields=("truth",))).shards
        for one in shard.samples() if one.image and one.given.get("truth") in KINDS
    ]  # fmt: skip
    pictures = [decode(one.image or b"", max_pixels=10**8) for one in samples]
    truth = np.array([one.given["truth"] for one in samples])
    print("\nphotographs (flickr8k-noisy): share with text found; of `visual` and `mismatched` masked above 2 %")
    print("  side threshold | " + " | ".join(KINDS) + " | plain masked > 2 %")
    plain = np.isin(truth, ("visual", "mismatched"))
    for side in sides:
        find = TextBoxes(side=side, threshold=0.5).detector(device)
        regions = [one for start in range(0, len(pictures), 64) for one in find(pictures[start : start + 64])]
        for threshold in (0.5, 0.6, 0.7, 0.75, 0.8, 0.85):
            left = [one.quads[one.confidence >= threshold] for one in regions]
            some = np.array([len(quads) > 0 for quads in left])
            area = np.array([
                covered_share(list(quads), image.shape[1], image.shape[0])
                for quads, image in zip(left, pictures, strict=True)
            ])  # fmt: skip
            row = " | ".join(f"{some[truth == kind].mean():.3f}" for kind in KINDS)
            print(f"  {side} {threshold} | {row} | {(area[plain] > 0.02).mean():.3f}", flush=True)
    texts = RecognisedText().load(device)
    boxes = TextBoxes().load(device)
    found = []
    for start in range(0, len(pictures), 64):
        some_pictures = pictures[start : start + 64]
        found += texts(images=some_pictures, boxes=boxes(images=some_pictures))
    runs = np.array([longest_match(one.caption or "", lines or []) for one, lines in zip(samples, found, strict=True)])
    print("  Text-Match (5 characters) catches:")
    for kind in KINDS:
        here = runs[truth == kind]
        caught = int((here >= 5).sum())
        print(f"    {kind:<20} {caught} of {len(here)}, {share(caught, len(here))}, mean run {here.mean():.1f}")


# ---- runtimes

QUADS = """
import sys
if sys.argv[2] == "onnxruntime":
    sys.modules["openvino"] = None  # as where it is not installed
from benchmarks.measure import self_measured
from benchmarks.written_text import quads_of
self_measured(lambda: {"quads": quads_of(sys.argv[1], sys.argv[3])})
"""
_COMPARED = 48  # images


def quads_of(pool: str, precision: str) -> list[list[list[list[float]]]]:
    """Returns the quadrilaterals found in the first images of a pool that decode."""
    find = TextBoxes().detector(Device(precision="bf16" if precision == "bf16" else "float32", threads=1))
    found: list[list[list[list[float]]]] = []
    for one in (one for shard in open_pool(pool).shards for one in shard.samples() if one.image):
        try:
            found.append(find([decode(one.image or b"", max_pixels=10**8)])[0].quads.tolist())
        except SampleError:
            continue
        if len(found) == _COMPARED:
            break
    return found


def runtimes(data: Path) -> None:
    """Prints in how many images OpenVINO and ONNX Runtime find the same quadrilaterals, to the last bit."""
    for pool in ("web-alt", "flickr8k-noisy"):
        ways = (("onnxruntime", "float32"), ("openvino", "float32"), ("openvino", "bf16"))
        found = []
        for way in ways:
            done = child(QUADS, str(data / "pools" / pool), *way)
            found.append(json.loads(done.output.strip().splitlines()[-1])["quads"])
        print(f"\nfirst {len(found[0])} images of {pool}, {sum(map(len, found[0]))} quadrilaterals by ONNX Runtime")
        for (runtime, precision), quads in zip(ways[1:], found[1:], strict=True):
            same = sum(one == other for one, other in zip(found[0], quads, strict=True))
            print(f"  {runtime} in {precision}: the same in {same} of {len(quads)}")


# ---- large letters

HEIGHTS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
WORDS = (
    *"ABEFGHKMRSW", "GO", "HP", "TV", "OK", "BIG", "Zoo", "SALE", "IKEA", "NIKE", "Hotel", "PIZZA", "Coffee", "GARDEN",
    "Express", "MOUNTAIN", "Photograph", "Manufacturing", "GRAND OPENING SOON", "Internationalisation",
)  # fmt: skip
#: Of those that matplotlib carries; Pillow's own beside them.
FONTS = ("DejaVuSans", "DejaVuSerif-Bold", "DejaVuSansMono", "STIXGeneral", "STIXGeneralBolIta", "cmss10")


def fonts() -> list[Callable[[float], ImageFont.FreeTypeFont]]:
    """Returns functions of a size in pixels."""
    found: list[Any] = [ImageFont.load_default]
    try:
        import matplotlib
    except ImportError:
        print("matplotlib is not here: Pillow's own font alone")
    else:
        folder = Path(matplotlib.get_data_path()) / "fonts/ttf"
        found += [lambda size, name=name: ImageFont.truetype(str(folder / f"{name}.ttf"), size) for name in FONTS]
    return found


def card(
    word: str, height: float, font: Callable[[float], ImageFont.FreeTypeFont], size: tuple[int, int],
    ground: Pixels | None, rng: np.random.Generator,
) -> tuple[Pixels, NDArray[np.float64]] | None:  # fmt: skip
    """Returns a picture of a word whose ink is `height` times the longer side high, and its quad; None if too wide."""
    _, top, _, bottom = font(200).getbbox(word)
    sized = font(200 * height * max(size) / (bottom - top))
    left, top, right, bottom = sized.getbbox(word)
    width, tall = right - left, bottom - top
    if width > 0.97 * size[0] or tall > 0.97 * size[1]:
        return None
    if ground is None:
        dark, light = rng.integers(0, 90, 3), rng.integers(150, 256, 3)
        colours = [dark, light] if rng.random() < 0.5 else [light, dark]
        image = Image.new("RGB", size, tuple(colours[0].tolist()))
    else:
        image = Image.fromarray(ground).resize(size)
        colours = [np.zeros(3, int), np.full(3, 255 if ground.mean() < 128 else 0)]
    x, y = (size[0] - width) * rng.uniform(0.2, 0.8), (size[1] - tall) * rng.uniform(0.2, 0.8)
    ImageDraw.Draw(image).text((x - left, y - top), word, tuple(colours[1].tolist()), sized)
    return np.asarray(image), np.array([(x, y), (x + width, y), (x + width, y + tall), (x, y + tall)])


def large(device: Device, count: int) -> None:
    """Prints how many words are found, by the height of their letters, and how many are read."""
    grounds = draw(40, seed=8103, kinds={"visual": 1}).images
    finders = {"found without reader": TextBoxes(reader=None).detector(device), "found": TextBoxes().detector(device)}
    read = load_text_recogniser("ppocr-rec", device=device)
    print("\nwords by the height of their letters (share of the longer side): covered by four fifths and more")
    print("  picture, ground | height | letters | words | " + " | ".join(finders) + " | read right, of all words")
    for name, size, cards in (("256 x 256", (256, 256), count), ("1024 x 768", (1024, 768), count // 4)):
        totals: dict[tuple[str, str], list[tuple[bool, ...]]] = {}
        for height in HEIGHTS:
            rng = np.random.default_rng(round(1000 * height))
            made = 0
            for n in range(50 * cards):
                word = WORDS[int(rng.integers(len(WORDS)))]
                ground = grounds[int(rng.integers(len(grounds)))] if n % 2 else None
                pick = fonts()[n % len(fonts())]
                drawn = card(word, height, pick, size, ground, rng)
                if drawn is None:
                    continue
                image, quad = drawn
                truth = quad_mask([quad], *size)
                shares = []
                for find in finders.values():
                    (regions,) = find([image])
                    shares.append(float((quad_mask(list(regions.quads), *size) & truth).sum() / truth.sum()))
                lines = read([image], [regions])[0]
                said = letters("".join(lines[k].text for k in reading_order(regions)))
                hit = (*(share_covered >= 0.8 for share_covered in shares), said == letters(word))
                kind = "1" if len(word) == 1 else "2 to 4" if len(word) < 5 else "5 to 20"
                for key in ((f"{height:g}", "all"), ("all", kind), ("all, " + ("drawn" if n % 2 else "plain"), "all")):
                    totals.setdefault(key, []).append(hit)
                made += 1
                if made == cards:
                    break
        for (height_of, kind), hits in sorted(totals.items(), key=lambda item: item[0][0].startswith("all")):
            columns = " | ".join(str(share(sum(column), len(hits))) for column in zip(*hits, strict=True))
            print(f"  {name} | {height_of} | {kind} | {len(hits)} | {columns}", flush=True)


def titles(device: Device, count: int) -> None:
    """Prints how many of the lab's lines of large text are found, by how they look."""
    finders = {"found without reader": TextBoxes(reader=None).detector(device), "found": TextBoxes().detector(device)}
    examples = draw(count, seed=8104, kinds={"large_text": 1}, workers=2)
    found: dict[str, list[tuple[bool, ...]]] = {}
    for image, one in zip(examples.images, examples.samples, strict=True):
        regions = [find([image])[0] for find in finders.values()]
        for quad in one.quads:
            truth = quad_mask([np.array(quad)], image.shape[1], image.shape[0])
            masks = [quad_mask(list(some.quads), image.shape[1], image.shape[0]) for some in regions]
            hit = tuple(bool((mask & truth).sum() >= 0.8 * truth.sum()) for mask in masks)
            found.setdefault(str(one.details.get("look", "?")), []).append(hit)
    print("\nthe lab's large text, by line\n  look | lines | " + " | ".join(finders))
    for look, hits in sorted(found.items()):
        columns = " | ".join(str(share(sum(column), len(hits))) for column in zip(*hits, strict=True))
        print(f"  {look} | {len(hits)} | {columns}")


# ---- the lab


def lab_pixels(device: Device, count: int) -> None:
    """Prints how much of the painted letters is covered, and how many plain drawings are touched."""
    find = TextBoxes().detector(device)
    print("\nlab: painted pixels (the letters' own quadrilaterals) that the found regions cover")
    for kind in ("visual_text", "visual_random_text", "text_only"):
        examples = draw(count, seed=8101, kinds={kind: 1}, workers=2)
        inside = total = seen = 0
        for image, one in zip(examples.images, examples.samples, strict=True):
            height, width = image.shape[:2]
            true = quad_mask([np.array(quad) for quad in one.quads], width, height)
            mine = quad_mask(list(find([image])[0].quads), width, height)
            inside, total, seen = inside + int((true & mine).sum()), total + int(true.sum()), seen + bool(mine.any())
        print(f"  {kind:<20} covered {inside / total:.3f}, images with text found {share(seen, count)}")
    examples = draw(count, seed=8102, kinds={"visual": 1}, workers=2)
    touched = sum(
        covered_share(list(find([image])[0].quads), image.shape[1], image.shape[0]) > 0.02 for image in examples.images
    )
    print(f"  visual drawings masked above 2 %: {share(touched, count)}")


def lab_table(folder: Path, pairs: int) -> None:
    """Prints what each filter keeps of each kind."""
    make_pool(folder / "pool", pairs=pairs, seed=21, mix="laion", defects=False)
    pool = tamis.PoolSpec(path=(str(folder / "pool"),), fields=("truth",))
    scorers: list[Any] = [Tmars(model="lab/clip"), ClipScore(model="lab/clip"), TextMatch()]
    run = tamis.score(pool, run=folder / "run", scores=scorers, quiet=True)
    truth = word(run, "truth")
    kept = {
        "CLIP, 50 %": tamis.select(run, "clip-50").keep,
        "Text-Match": tamis.select(run, "text-match").keep,
        "T-MARS": tamis.select(run, "t-mars").keep,
        "CLIP and Text-Match": tamis.select(run, "clip∩text-match").keep,
    }
    print(f"\nlab, {pairs:,} pairs: share of each kind that is kept, with 95 % intervals")
    print("  kind | pairs | " + " | ".join(kept))
    for kind in [kind for kind in KINDS if (truth == kind).any()]:
        here = truth == kind
        row = " | ".join(str(share(int(keep[here].sum()), int(here.sum()))) for keep in kept.values())
        print(f"  {kind} | {here.sum():,} | {row}")
    print("  all | " + f"{len(truth):,} | " + " | ".join(f"{keep.mean():.3f}" for keep in kept.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer pictures, or one side")
    parser.add_argument("--data", type=Path, help="folder of real data; without it only the lab")
    parser.add_argument("--only", choices=("lab", "large", "titles", "streets", "sides", "painted", "runtimes"))
    asked = parser.parse_args()
    device = device_for(None, None, None, None)
    if asked.only in (None, "lab"):
        with tempfile.TemporaryDirectory() as folder:
            lab_pixels(device, 60 if asked.quick else 300)
            lab_table(Path(folder), 400 if asked.quick else 4000)
    if asked.only in (None, "large"):
        large(device, 12 if asked.quick else 60)
    if asked.only in (None, "large", "titles"):
        titles(device, 24 if asked.quick else 120)
    if asked.data is not None and asked.only in (None, "painted"):
        painted(asked.data, device, (TextBoxes().side,) if asked.quick else (224, 320, 384, 480, 736))
    if asked.data is not None and asked.only in (None, "streets"):
        streets(asked.data, device, 20 if asked.quick else 100)
    if asked.data is not None and asked.only in (None, "runtimes"):
        runtimes(asked.data)
    if asked.data is not None and asked.only in (None, "sides"):
        sides(asked.data, device, 24 if asked.quick else 100)


if __name__ == "__main__":
    main()
