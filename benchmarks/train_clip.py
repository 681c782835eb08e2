"""Training a CLIP: samples per second from shards, against the bare forward and backward passes on ready tensors.

The bare loop has the same model, loss, optimiser and batches' sizes and reads nothing: what is lost against it is what
reading, decoding, cropping, tokens, metrics and checkpoints cost. The two take turns; the best turn of each counts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.measure import Case, finish, options
from tamis.data import Device
from tamis.lab import make_pool
from tamis.scoring import score
from tamis.store import Run
from tamis.train.clip import train_clip
from tamis.train.losses import contrastive_loss
from tamis.train.scales import ClipTraining, at_scale
from tamis.train.step import How
from tamis.train.towers import Towers, build


def bare(training: ClipTraining, towers: Towers, captions: list[str], steps: int) -> float:
    """Samples per second of the model alone."""
    optimiser = torch.optim.AdamW(towers.model.parameters(), lr=training.learning_rate)
    towers.model.train().to(memory_format=torch.channels_last)
    pixels = torch.randint(0, 256, (training.batch, towers.side, towers.side, 3), dtype=torch.uint8)
    width = towers.model.text_projection.in_features
    states = torch.randn(training.batch, width)
    tokens = towers.tokens(captions[: training.batch])

    def step() -> None:
        images = towers.images(pixels)
        frozen = training.freeze_text
        texts = towers.model.text_projection(states) if frozen else towers.texts(*tokens)
        optimiser.zero_grad(set_to_none=True)
        contrastive_loss(images, texts, towers.model.logit_scale.exp()).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    step()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return steps * training.batch / (time.perf_counter() - start)


def measured(name: str, training: ClipTraining, run: Run, folder: Path, turns: int, threads: int) -> Case:
    captions = [text for shard in run.shards for text in run.index(shard, ["caption"])["caption"].to_pylist()]
    how = How(device=Device(threads=1), threads=threads)
    ours, base = 0.0, 0.0
    for turn in range(turns):
        out = folder / f"{name}-{turn}"
        done = train_clip(run, out=out, training=training, how=how)
        ours = max(ours, done.samples_per_second)
        tokenizer = out / "training" / "tokenizer"
        towers = build(training, tokenizer=tokenizer if tokenizer.is_dir() else None)
        base = max(base, bare(training, towers, captions, training.steps - 1))
    settings = {"batch": training.batch, "steps": training.steps, "threads that decode": threads, "model threads": 1}
    return Case(name, "samples/s", ours, base, ours / base, ">= 0.85", settings)


def main() -> None:
    asked = options(__doc__ or "")
    torch.set_num_threads(1)
    pairs, steps, turns = (400, 12, 2) if asked.quick else (2000, 40, 3)
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        make_pool(folder / "pool", pairs=pairs, shard_size=200, defects=False)
        run = score(folder / "pool", run=folder / "run", signals=["caption_length"], quiet=True)
        cases = [
            measured(
                "resnet-64, frozen minilm", at_scale("lab", samples=steps * 128, batch=128), run, folder, turns, 2
            ),
            measured(
                "ViT-tiny from scratch", ClipTraining(model="ViT-tiny", samples=steps * 64, batch=64, warmup=5),
                run, folder, turns, 2,
            ),
        ]  # fmt: skip
        finish("train_clip", cases, asked.json)


if __name__ == "__main__":
    sys.exit(main())
