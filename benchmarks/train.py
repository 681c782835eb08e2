"""What `tamis train clip --scale lab` costs: next to a bare loop that has all images decoded in memory and crops them.

The bare loop has the same network from the same weights, precision, threads, batch, loss and optimiser, and reads,
decodes, checks and saves nothing; a second one does not even crop, and has one batch as tensors. Left out are both
first steps, and the last checkpoint: a training of the usual length has one in fifty steps.
"""

from __future__ import annotations

import json
import shutil
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import tamis
from benchmarks.measure import Case, Spent, benchmark, in_turn, versus
from tamis.core.types import Device
from tamis.models.device import device_for
from tamis.train.clip import train_clip
from tamis.train.scales import at_scale
from tamis.train.step import How
from tamis_lab.pool import make_pool


def bare(model_folder: Path, steps: int, batch: int, device: Device, captions: list[str], crops: bool) -> Spent:
    import torch
    from torch.nn import functional as F
    from transformers import AutoModel, AutoTokenizer

    model: Any = AutoModel.from_pretrained(model_folder).to(memory_format=torch.channels_last)
    words = AutoTokenizer.from_pretrained(model_folder)(
        captions[:batch], return_tensors="pt", padding=True, truncation=True, max_length=64
    )
    with torch.inference_mode():
        states = model.text_model(words["input_ids"], attention_mask=words["attention_mask"]).pooler_output
    states, side = states.clone(), model.config.vision_config.image_size
    rng = np.random.default_rng(0)
    decoded = [Image.fromarray(one) for one in rng.integers(0, 256, (batch, 2 * side, 2 * side, 3), np.uint8)]

    def cropped() -> torch.Tensor:
        boxes = [(left, top, 2 * side + left - 6, 2 * side + top - 6) for left, top in rng.integers(0, 7, (batch, 2))]
        resized = [one.crop(box).resize((side, side)) for one, box in zip(decoded, boxes, strict=True)]
        return torch.from_numpy(np.stack([np.asarray(one) for one in resized]))

    images = cropped()
    model.text_model.requires_grad_(False)
    trained = [one for one in model.parameters() if one.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2)
    model.train()
    own, start = torch.arange(batch), 0.0
    for step in range(steps):
        if step == 1:
            start = time.perf_counter()
        images = cropped() if crops else images
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16) if device.precision == "bf16" else nullcontext():
            pixels = (images.permute(0, 3, 1, 2).float() / 255 - 0.45) / 0.27
            seen = model.get_image_features(pixel_values=pixels).pooler_output
            read = model.text_projection(states)
        logits = model.logit_scale.exp() * F.normalize(seen.float()) @ F.normalize(read.float()).T
        loss = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        loss.item()
    return Spent(time.perf_counter() - start, 0.0, 0)


def clip(root: Path, given: Any) -> list[Case]:
    pool, run_folder, out = root / "pool", root / "run", root / "model"
    if not pool.is_dir():
        make_pool(pool, pairs=1_000, defects=False)
    run = tamis.score(pool, run=run_folder, signals=["caption_length"], quiet=True)
    training = at_scale("lab", samples=256 * (8 if given.quick else 20))

    def ours(device: Device) -> Spent:
        shutil.rmtree(out, ignore_errors=True)
        train_clip(run, out=out, training=training, how=How(device=device, report_every=1))
        lines = (out / "training" / "metrics.jsonl").read_text().splitlines()[1:]
        return Spent(sum(training.batch / json.loads(line)["samples_per_second"] for line in lines), 0.0, 0)

    ours(device_for())  # loads, warms up, and leaves the model
    captions = [text or "a picture" for text in run.to_arrow(["caption"])["caption"].to_pylist()]
    kept = root / "weights"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(out, kept)
    cases = []
    for device in dict.fromkeys([device_for(precision="float32"), device_for()]):
        spent = in_turn(
            3,
            ours=partial(ours, device),
            crops=partial(bare, kept, training.steps, training.batch, device, captions, True),
            tensors=partial(bare, kept, training.steps, training.batch, device, captions, False),
        )
        for name, target in (("crops", ">= 0.97"), ("tensors", "-")):
            cases.append(
                versus(f"`train clip --scale lab`, next to a bare loop over {name}", spent["ours"], spent[name],
                       target=target, count=(training.steps - 1) * training.batch, unit="samples/s",
                       precision=device.precision)
            )  # fmt: skip
    return cases


if __name__ == "__main__":
    benchmark(__doc__, {"clip": clip}, pool=None)
