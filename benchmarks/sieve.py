"""Captioning for SIEVE: ours beside transformers' `generate` and beside the way of SIEVE's released code.

BLIP-base's shape with random weights, so that captions run to their full length, 8 of each image, nucleus sampling at
p = 0.9, 20 tokens. All sides share weights, images and process; each is warmed up, takes the batch size that suits it
best, and they run in turn. `generate` decodes with `num_return_sequences=8` in our precision. The released way has no
working cache: every step goes through the whole beginning again, and projects the keys and values of eight copies. It
is measured in our precision, which is the figure to compare, and in float32, as it was released.
The image encoder alone is the bound that no captioner can pass; the processor's arithmetic sets another.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.arithmetic import against_limit, captioner_flops
from benchmarks.measure import Case, finish
from tamis.data import Device
from tamis.models.captioner import Captioner, FastCaptioner, load_captioner
from tamis.models.device import device_for
from tamis.models.nucleus import Sampling

CAPTIONS = 8
LENGTH = 20
#: Times the image/s of `generate`, of the released way, and the share of the encoder's, by image side.
TARGETS = {224: (3.0, 10.0, 0.28), 384: (2.5, 10.0, 0.60)}


def save_checkpoint(folder: Path, side: int) -> str:
    """Saves a BLIP of the base shape with random weights and a tokenizer of numbered words."""
    import torch
    from transformers import BertTokenizer, BlipConfig, BlipForConditionalGeneration

    torch.manual_seed(0)
    config = BlipConfig(vision_config={"image_size": side}, text_config={"encoder_hidden_size": 768})
    BlipForConditionalGeneration(config).save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [
        f"word{n}" for n in range(config.text_config.vocab_size - 5)
    ]
    BertTokenizer(vocab={word: n for n, word in enumerate(words)}).save_pretrained(folder)
    preprocessor = {"image_processor_type": "BlipImageProcessor", "size": {"height": side, "width": side}}
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return str(folder)


def rate(work: Callable[[], Any], images: int) -> float:
    """Returns images per second."""
    start = time.perf_counter()
    work()
    return images / (time.perf_counter() - start)


def released_rate(captioner: Captioner, pictures: list[Any]) -> tuple[float, int]:
    """Returns images per second of the released way after a warm-up, and which batch of 1, 2 and 4 suits it best."""
    import torch

    def work(batch: int, count: int) -> None:
        for start in range(0, count, batch):
            captioner.model.generate(
                pixel_values=captioner.pixels(pictures[start : start + batch]), use_cache=False,
                repetition_penalty=1.1, do_sample=True, top_p=0.9, min_length=5, max_length=LENGTH,
                num_return_sequences=CAPTIONS,
            )  # fmt: skip

    with torch.inference_mode():
        work(1, 1)
        found = {batch: rate(lambda batch=batch: work(batch, 4), 4) for batch in (1, 2, 4)}
    best = max(found, key=lambda batch: found[batch])
    return found[best], best


def compare(model: str, side: int, device: Device, *, images: int, rounds: int, released: bool) -> list[Case]:
    """Measures one image size."""
    import torch

    captioner = load_captioner(model, device)
    assert isinstance(captioner, FastCaptioner)
    theirs = Captioner(model, device)  # a model of its own, for our captioner lays the layers of its tower out
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (side, side, 3), dtype=np.uint8) for _ in range(images)]
    uids = rng.integers(0, 2**63, (images, 2)).astype(np.uint64)
    sampling = Sampling(captions=CAPTIONS, max_tokens=LENGTH)

    def ours() -> None:
        captioner(pictures, uids, sampling)

    def generate(batch: int) -> None:
        for start in range(0, images, batch):
            theirs.model.generate(
                pixel_values=theirs.pixels(pictures[start : start + batch]),
                do_sample=True, top_p=0.9, top_k=0, min_length=5, max_length=LENGTH, num_return_sequences=CAPTIONS,
            )  # fmt: skip

    def encoder() -> None:
        for start in range(0, images, 8):
            captioner.encode(pictures[start : start + 8])

    with torch.inference_mode():
        some = {batch: rate(lambda batch=batch: generate(batch), images) for batch in (1, 4, 8, 16) if batch <= images}
        best = max(some, key=lambda batch: some[batch])
        encoder()
        ours()
        found = [
            (rate(ours, images), rate(lambda: generate(best), images), rate(encoder, images)) for _ in range(rounds)
        ]
    mine, slow, alone = (max(column) for column in zip(*found, strict=True))
    by_generate, by_released, by_encoder = TARGETS[side]
    settings = {
        "images": images,
        "precision": device.precision,
        "generate's batch": best,
        "images/s per round (ours, generate, encoder alone)": [tuple(round(x, 2) for x in row) for row in found],
    }
    name = f"BLIP base, {side} px"
    cases = [
        Case(f"{name}, against generate", "images/s", mine, slow, mine / slow, f">= {by_generate}", settings),
        Case(f"{name}, share of the encoder alone", "images/s", mine, alone, mine / alone, f">= {by_encoder}", {}),
    ]
    encoding, whole = captioner_flops(side, captions=CAPTIONS, tokens=LENGTH)
    cases.append(against_limit(name, "images/s", mine, slow, whole, device.precision))
    cases.append(against_limit(f"{name}, encoder alone", "images/s", alone, None, encoding, device.precision))
    if released:
        sides = {f"in {device.precision}, as ours": theirs}
        if device.precision != "float32":
            sides["in float32, as released"] = Captioner(model, replace(device, precision="float32"))
        for way, side_by in sides.items():
            slow, batch = released_rate(side_by, pictures)
            cases.append(
                Case(
                    f"{name}, against the released way {way}",
                    "images/s",
                    mine,
                    slow,
                    mine / slow,
                    f">= {by_released}" if side_by is theirs else "-",
                    {"its batch": batch},
                )
            )
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="8 images instead of 32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", type=int, choices=list(TARGETS), action="append", help="default: both")
    parser.add_argument("--no-released", action="store_true", help="leave the slowest side out")
    asked = parser.parse_args()
    device = device_for(None, None, None, None)
    cases = []
    for side in asked.side or list(TARGETS):
        with tempfile.TemporaryDirectory() as folder:
            cases += compare(
                save_checkpoint(Path(folder), side), side, device,
                images=8 if asked.quick else 32, rounds=asked.rounds, released=not asked.no_released,
            )  # fmt: skip
    finish("sieve", cases, asked.json)


if __name__ == "__main__":
    main()
