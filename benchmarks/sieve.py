"""SIEVE's captioning next to transformers' `generate`, and next to the way of SIEVE's released code.

BLIP-base's shape with random weights, so captions run to their full length: 8 of each image, nucleus sampling at
p = 0.9, 20 tokens. All sides share precision, images and process, are warmed up, and take the batch size that suits
them best. The released code has no working cache: every step computes all earlier tokens again. The image encoder
alone is the bound that no captioner can pass.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Case, benchmark, in_turn, spend, versus
from tamis.models.captioner import Captioner, FastCaptioner, load_captioner
from tamis.models.device import device_for
from tamis.models.nucleus import Sampling

CAPTIONS, LENGTH = 8, 20
#: Times the images/s of `generate`, and the share of the encoder's, by image side.
TARGETS = {224: (">= 3", ">= 0.28"), 384: (">= 2.5", ">= 0.60")}


def save_checkpoint(folder: Path, side: int) -> str:
    """Saves a BLIP of the base shape with random weights and a tokenizer of numbered words."""
    import torch
    from transformers import BertTokenizer, BlipConfig, BlipForConditionalGeneration

    torch.manual_seed(0)
    config = BlipConfig(vision_config={"image_size": side}, text_config={"encoder_hidden_size": 768})
    BlipForConditionalGeneration(config).save_pretrained(folder)
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = special + [f"word{n}" for n in range(config.text_config.vocab_size - len(special))]
    BertTokenizer(vocab={word: n for n, word in enumerate(words)}).save_pretrained(folder)
    preprocessor = {"image_processor_type": "BlipImageProcessor", "size": {"height": side, "width": side}}
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    return str(folder)


def captions(root: Path, given: Any) -> list[Case]:
    return [case for side in ([given.side] if given.side else TARGETS) for case in compare(root, side, given)]


def compare(root: Path, side: int, given: Any) -> list[Case]:
    """Measures one image size."""
    import torch

    images, device = 8 if given.quick else 32, device_for(None, None, None, None)
    model = save_checkpoint(root / str(side), side)
    captioner = load_captioner(model, device)
    assert isinstance(captioner, FastCaptioner)
    theirs = Captioner(model, device)  # a model of its own: our captioner changes the layers of its tower
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (side, side, 3), dtype=np.uint8) for _ in range(images)]
    uids = rng.integers(0, 2**63, (images, 2)).astype(np.uint64)
    sampling = Sampling(captions=CAPTIONS, max_tokens=LENGTH)

    def generate(batch: int, count: int = images, **how: Any) -> None:
        with torch.inference_mode():
            for start in range(0, count, batch):
                theirs.model.generate(
                    pixel_values=theirs.pixels(pictures[start : min(start + batch, count)]), do_sample=True,
                    top_p=0.9, min_length=5, max_length=LENGTH, num_return_sequences=CAPTIONS, **how,
                )  # fmt: skip

    def encode() -> None:
        with torch.inference_mode():
            for start in range(0, images, 8):
                captioner.encode(pictures[start : start + 8])

    released = {"use_cache": False, "repetition_penalty": 1.1}
    generate(1, 1)
    encode()
    captioner(pictures, uids, sampling)
    batch = min((4, 8, 16), key=lambda batch: spend(lambda: generate(batch, top_k=0)).seconds)
    spent = in_turn(
        given.rounds,
        generate=lambda: generate(batch, top_k=0),
        ours=lambda: captioner(pictures, uids, sampling),
        encoder=encode,
    )
    faster, share = TARGETS[side]
    rate: dict[str, Any] = {"count": images, "unit": "images/s"}
    cases = [
        versus(f"BLIP base at {side} px, next to generate", spent["ours"], spent["generate"], **rate, target=faster,
               precision=device.precision, batch=batch),
        versus(f"BLIP base at {side} px, next to the encoder", spent["ours"], spent["encoder"], **rate, target=share),
    ]  # fmt: skip
    if given.released:
        few = min(4, images)
        best = min((1, 2, 4), key=lambda batch: spend(lambda: generate(batch, few, **released)).seconds)
        slow = [spend(lambda: generate(best, few, **released))]
        mine = [spend(lambda: captioner(pictures[:few], uids[:few], sampling))]
        name = f"BLIP base at {side} px, next to the released way"
        cases.append(versus(name, mine, slow, count=few, unit="images/s", target=">= 10", batch=best))
    return cases


if __name__ == "__main__":
    benchmark(__doc__, {"captions": captions}, rounds=3, side=0, released=1)
