"""T-MARS end to end beside the script that one would write: `python -m benchmarks.tmars [--pool POOL] [--data DATA]`.

The script makes two passes, as the public parts of T-MARS do: rapidocr's detector as it comes, one image after the
other, the text filled with the mean colour of a frame around each box in NumPy; then transformers' CLIP on all masked
images and on all images as they are (for the drop), in batches of the size that suits it best. Ours is one `tamis
score` with the signal `tmars`, in the precision that suits the machine; the script runs in the same precision, which is
the figure to compare, and in float32, as one would write it. Both are warmed up. Same images, same weights (ViT-B/32's
shape, random), one process, in turn. Detection alone is compared too. Loading is outside all figures.

With `--data`, a folder with `icdar2015` and `pools/flickr8k-noisy`, it also prints how many legible words of street
photographs are found, at full size and at a shorter side of 320 pixels, which share of the regions there is text, and
how many photographs of Flickr get a mask.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import tamis
from benchmarks.arithmetic import against_limit, clip_flops, graph_flops
from benchmarks.clip_pipeline import save_checkpoint
from benchmarks.measure import Case, finish, processor
from tamis.arrays import Pixels
from tamis.data import Device
from tamis.errors import SampleError
from tamis.features.text import TextBoxes
from tamis.lab import make_pool
from tamis.models.device import device_for
from tamis.models.ocr import coarse_size
from tamis.models.reference import resolve
from tamis.pool import open_pool
from tamis.pool.images import decode
from tamis.signals import Tmars

#: Batches that the script may take.
_BATCHES = (8, 16, 64)


def stock_detector() -> Any:
    """Returns rapidocr as it comes."""
    from rapidocr import RapidOCR

    logging.getLogger("RapidOCR").setLevel(logging.ERROR)
    engine: Any = RapidOCR()

    def detect(image: Pixels) -> list[Any]:
        found = engine(image[..., ::-1], use_det=True, use_cls=False, use_rec=False)
        return [] if found.boxes is None else list(found.boxes)

    return detect


def two_passes(images: list[bytes], captions: list[str], model: str, detect: Any, *, precision: str, batch: int) -> Any:
    """The script: returns the cosines before and after masking."""
    import torch
    from transformers import AutoTokenizer, CLIPModel

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    clip: Any = _loaded(CLIPModel, model, dtype=dtype)
    tokenizer: Any = _loaded(AutoTokenizer, model)
    pictures = [decode(image, max_pixels=10**8) for image in images]
    masked = []
    for picture in pictures:
        after = picture.copy()
        for box in detect(picture):
            left, top = np.maximum(np.floor(box.min(0)).astype(int), 0)
            right, bottom = np.ceil(box.max(0)).astype(int)
            frame = picture[max(top - 4, 0) : bottom + 4, max(left - 4, 0) : right + 4]
            after[top:bottom, left:right] = frame.reshape(-1, 3).mean(0)
        masked.append(after)
    size = clip.config.vision_config.image_size

    def embed(some: list[Pixels]) -> Any:
        from PIL import Image

        mean = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
        std = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)
        rows = []
        for start in range(0, len(some), batch):
            small = []
            for picture in some[start : start + batch]:
                image = Image.fromarray(picture)
                ratio = size / min(image.size)
                image = image.resize(
                    (max(size, round(image.width * ratio)), max(size, round(image.height * ratio))),
                    Image.Resampling.BICUBIC,
                )
                left, top = (image.width - size) // 2, (image.height - size) // 2
                small.append(np.asarray(image.crop((left, top, left + size, top + size)), np.float32) / 255)
            pixels = torch.from_numpy(((np.stack(small) - mean) / std).transpose(0, 3, 1, 2).copy())
            rows.append(clip.get_image_features(pixel_values=pixels.to(dtype)).pooler_output)
        return torch.nn.functional.normalize(torch.cat(rows))

    with torch.inference_mode():
        texts = []
        for start in range(0, len(captions), batch):
            some = tokenizer(
                captions[start : start + batch], padding="max_length", max_length=77, truncation=True,
                return_tensors="pt",
            )  # fmt: skip
            texts.append(clip.get_text_features(input_ids=some["input_ids"]).pooler_output)
        text = torch.nn.functional.normalize(torch.cat(texts))
        return (embed(pictures) * text).sum(1), (embed(masked) * text).sum(1)


def write_small(pool: str, out: Path, count: int) -> None:
    """Writes the first images of a pool with their shorter side at 224 pixels, as JPEG, to one shard."""
    import io
    import tarfile

    from PIL import Image

    out.mkdir()
    left = count
    with tarfile.open(out / "00000.tar", "w") as tar:
        for one in (one for shard in open_pool(pool).shards for one in shard.samples()):
            try:
                image = Image.fromarray(decode(one.image or b"", max_pixels=10**8))
            except SampleError:
                continue
            ratio = 224 / min(image.size)
            if max(image.size) * ratio > 900 or not one.caption:
                continue
            data = io.BytesIO()
            image.resize((round(image.width * ratio), round(image.height * ratio))).save(data, "JPEG", quality=92)
            for ending, content in (("jpg", data.getvalue()), ("txt", one.caption.encode())):
                member = tarfile.TarInfo(f"{count - left:06d}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            left -= 1
            if not left:
                return


# ---- how much of the text is found


def words_of(path: Path) -> tuple[list[Any], list[Any]]:
    """Returns the quadrilaterals of the legible and of the illegible words in a file of ICDAR 2015."""
    legible: list[Any] = []
    illegible: list[Any] = []
    for line in path.read_text(encoding="utf-8-sig").splitlines():
        fields = line.split(",", 8)
        if len(fields) == 9:
            quad = np.array(fields[:8], np.float32).reshape(4, 2)
            (illegible if fields[8].strip() == "###" else legible).append(quad)
    return legible, illegible


def is_found(word: Any, box: Any) -> bool:
    """Whether a region finds a word: intersection over union of at least 0.5, or nine tenths of the word inside.

    PP-OCR finds lines and ICDAR counts words, so one region may find several.
    """
    import cv2

    both = cv2.intersectConvexConvex(word, box)[0]
    area, other = cv2.contourArea(word), cv2.contourArea(box)
    return bool(both >= 0.5 * (area + other - both) or both >= 0.9 * area)


def is_text(box: Any, words: list[Any]) -> bool:
    """Whether a region finds a word, or at least half of it is words: a line has gaps between them."""
    import cv2

    inside = sum(cv2.intersectConvexConvex(word, box)[0] for word in words)
    return bool(2 * inside >= cv2.contourArea(box)) or any(is_found(word, box) for word in words)


def street(detect: Any, data: Path, shorter: int, count: int) -> tuple[float, float, int]:
    """Returns the share of legible words that are found, that of the regions that are text, and the number of words."""
    from PIL import Image

    found = total = right = regions = 0
    for name in sorted(data.glob("icdar2015/images/*.jpg"))[:count]:
        image = Image.open(name).convert("RGB")
        ratio = min(1.0, shorter / min(image.size))
        if ratio < 1:
            size = (round(image.width * ratio), round(image.height * ratio))
            image = image.resize(size, Image.Resampling.LANCZOS)
        both = words_of(data / f"icdar2015/gts/gt_{name.stem}.txt")
        words, illegible = ([word * np.float32(ratio) for word in some] for some in both)
        boxes = [np.asarray(box, np.float32) for box in detect(np.asarray(image))]
        found += sum(any(is_found(word, box) for box in boxes) for word in words)
        total += len(words)
        right += sum(is_text(box, words + illegible) for box in boxes)
        regions += len(boxes)
    return found / total, right / max(regions, 1), total


def false_masks(detect: Any, data: Path, count: int) -> tuple[int, int]:
    """Returns how many photographs get a mask, of those without painted text; a few show a sign or a shirt."""
    pool = tamis.PoolSpec(path=(str(data / "pools/flickr8k-noisy"),), fields=("truth",))
    samples = [one for shard in open_pool(pool).shards for one in shard.samples()]
    plain = [one for one in samples if one.image and one.given.get("truth") in ("visual", "mismatched")][:count]
    return sum(len(detect(decode(one.image or b"", max_pixels=10**8))) > 0 for one in plain), len(plain)


def quality(data: Path, stock: Any, boxes: Any, count: int) -> list[Case]:
    """Returns the cases of recall, precision and false masks."""

    def ours(image: Pixels) -> list[Any]:
        return list(boxes(images=[image])[0].quads)

    cases = []
    for shorter, target in ((720, ">= 0.81"), (320, ">= 0.70")):
        (found, right, words), (theirs, theirs_right, _) = (
            street(detect, data, shorter, count) for detect in (ours, stock)
        )
        settings = {"photographs": count, "legible words": words}
        for what, share, other, wanted in (
            ("words found in street photographs", found, theirs, target),
            ("regions that are text in street photographs", right, theirs_right, "-"),
        ):
            about = f"{what}, shorter side {shorter}"
            cases.append(Case(about, "share", share, other, share / max(other, 1e-9), wanted, settings))
    (found, photographs), (theirs, _) = (false_masks(detect, data, 6 * count) for detect in (ours, stock))
    about = "photographs without painted text that get a mask"
    settings = {"photographs": photographs}
    cases.append(
        Case(about, "share", found / photographs, theirs / photographs, theirs / max(found, 1), "<= 0.04", settings)
    )
    return cases


_LOADED: dict[Any, Any] = {}


def _loaded(cls: Any, model: str, **how: Any) -> Any:
    key = (cls, model, *how.values())
    if key not in _LOADED:
        _LOADED[key] = cls.from_pretrained(model, **how)
    return _LOADED[key]


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Returns the seconds and the CPU seconds that something takes."""
    began, cpu = time.perf_counter(), sum(os.times()[:4])
    work()
    return time.perf_counter() - began, sum(os.times()[:4]) - cpu


def best_batch(images: list[bytes], captions: list[str], model: str, precision: str) -> int:
    """Returns the batch in which the script's CLIP is fastest on some images, after a warm-up."""
    took = {}
    for batch in (_BATCHES[0], *_BATCHES):  # the first is measured twice: once to warm up
        began = time.perf_counter()
        two_passes(images, captions, model, lambda picture: [], precision=precision, batch=batch)
        took[batch] = time.perf_counter() - began
    return min(took, key=lambda batch: took[batch])


def needed(model: str, images: list[Pixels], captions: list[str], with_text: float) -> tuple[float, float]:
    """Returns the floating-point operations of one image on average: (embedding, detection at its first look).

    An image is embedded once, and once more where it shows text; of captions every distinct one once.
    """
    from transformers import AutoTokenizer, CLIPConfig

    sizes = [coarse_size(image.shape[1], image.shape[0], TextBoxes().side) for image in images]
    network = resolve(TextBoxes().model).path
    detecting = float(np.mean([graph_flops(network, height, width) for width, height in sizes]))
    tokenizer: Any = _loaded(AutoTokenizer, model)
    lengths = [len(ids) for ids in tokenizer(sorted(set(captions)), truncation=True, max_length=77)["input_ids"]]
    config = CLIPConfig.from_pretrained(model)
    words = sum(count * clip_flops(config, length)[1] for length, count in Counter(lengths).items())
    return clip_flops(config, 1)[0] * (1 + with_text) + words / len(images), detecting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="96 images instead of 400")
    parser.add_argument("--images", type=int)
    parser.add_argument(
        "--pool",
        help="real images, made 224 pixels on their shorter side; by default a drawn pool, half with text",
    )
    parser.add_argument("--data", type=Path, help="folder of real photographs, to count found words and false masks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    wanted = asked.images or (96 if asked.quick else 400)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if asked.pool is None:
            make_pool(root / "drawn", pairs=wanted, shard_size=250, image_size=224, defects=False)
        if asked.pool is not None:
            write_small(asked.pool, root / "drawn", wanted)
        found = open_pool(root / "drawn").shards
        shards = [shard.url for shard in found]
        samples = [one for shard in found for one in shard.samples()]
        images = [one.image or b"" for one in samples]
        captions = [one.caption or "" for one in samples]
        model = save_checkpoint(root / "clip", captions)
        device: Device = device_for(None, None, None, None)
        paths = tamis.PoolSpec(path=tuple(shards))
        stock = stock_detector()
        decoded = [decode(image, max_pixels=10**8) for image in images]
        boxes = TextBoxes().load(device)
        boxes(images=decoded[:16])
        ways = list(dict.fromkeys([device.precision, "float32"]))
        batches = {way: best_batch(images[:64], captions[:64], model, way) for way in ways}
        stock(decoded[0])
        steps = range(0, len(decoded), device.batch_size)
        warm = [one for _, one in zip(range(1), shards, strict=False)]
        tamis.score(tamis.PoolSpec(path=tuple(warm)), run=root / "warm", signals=[Tmars(model=model)], quiet=True)
        rounds = []
        for number in range(asked.rounds):
            theirs = [
                timed(lambda way=way: two_passes(images, captions, model, stock, precision=way, batch=batches[way]))
                for way in ways
            ]
            out = root / f"run{number}"
            mine = timed(lambda out=out: tamis.score(paths, run=out, signals=[Tmars(model=model)], quiet=True))
            run = tamis.open_run(out)
            assert int(np.isfinite(run.to_numpy("tmars")).sum()) >= 0.95 * len(samples)
            their_detection = timed(lambda: [stock(picture) for picture in decoded])
            my_detection = timed(lambda: [boxes(images=decoded[n : n + device.batch_size]) for n in steps])
            rounds.append((mine, my_detection, their_detection, *theirs))
        best, cpu = np.array(rounds).min(axis=0).T  # seconds
        mine, my_detection, their_detection, *scripts = best.tolist()
        share = float((run.to_numpy("n_text_boxes") > 0).mean())
        settings = {
            "processor": processor(),
            "images": len(samples),
            "precision": device.precision,
            "images with text": f"{share:.0%}",
            "the script's batches": batches,
            f"order of the next two: ours, our detection, theirs, the script in {' and in '.join(ways)}": "",
            "(seconds, CPU seconds) of each round": [[[round(x, 2) for x in y] for y in one] for one in rounds],
            "CPU ms an image": [round(1000 * float(x) / len(samples), 1) for x in cpu],
        }
        n = len(samples)
        cases = [
            *(
                Case(
                    f"T-MARS, end to end, the script in {way}",
                    "images/s",
                    n / mine,
                    n / script,
                    script / mine,
                    ">= 20 images/s, 8 times" if way == device.precision else "-",
                    settings if way == device.precision else {},
                )
                for way, script in zip(ways, scripts, strict=True)
            ),
            Case(
                "text detection",
                "images/s",
                n / my_detection,
                n / their_detection,
                their_detection / my_detection,
                ">= 10",
                {"shorter side": f"{TextBoxes().side} pixels; stock enlarges it to 736"},
            ),
        ]
        embedding, detecting = needed(model, decoded, captions, share)
        cases.append(
            against_limit("T-MARS", "images/s", n / mine, n / scripts[0], embedding + detecting, device.precision)
        )
        cases.append(against_limit("text detection", "images/s", n / my_detection, None, detecting, device.precision))
        if asked.data is not None:
            cases += quality(asked.data, stock, boxes, 16 if asked.quick else 100)
        finish("tmars", cases, asked.json)


if __name__ == "__main__":
    main()
