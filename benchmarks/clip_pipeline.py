"""`tamis score` end to end beside the bare model on ready tensors, ViT-B/32-shaped, random weights.

The bare model gets everything for free: images decoded, resized and normalised, captions tokenised and padded to the
longest of their batch, all in memory; nothing is written. Both sides use the same weights, precision, threads and batch
size, in one process, in turn. Start-up and loading are outside both figures (the last line gives the whole command's).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import tamis
from benchmarks.measure import Case, finish
from tamis.data import Device, Sample
from tamis.lab import make_pool
from tamis.models.clip import load_clip, load_tokenizer
from tamis.models.device import device_for
from tamis.models.preprocess import load_preprocess
from tamis.pool import open_pool
from tamis.pool.images import decode
from tamis.signals import ClipScore


def save_checkpoint(folder: Path, captions: list[str]) -> str:
    """Saves a CLIP of ViT-B/32's shape with random weights and a BPE tokenizer learned from the captions."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = CLIPConfig()
    config.text_config.bos_token_id, config.text_config.eos_token_id = 0, 1
    CLIPModel(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["<s>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(captions, trainers.BpeTrainer(vocab_size=8000, special_tokens=special))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "CLIPImageProcessor"}))
    return str(folder)


def bare(model: str, samples: list[Sample], device: Device) -> float:
    """Returns seconds of the bare model over ready tensors."""
    import torch

    clip = load_clip(model, device)
    network: Any = clip._model
    preprocess, tokenize = load_preprocess(model), load_tokenizer(model)
    tokens = tokenize([sample.caption or "" for sample in samples])
    ready = []
    for start in range(0, len(samples), device.batch_size):
        some = samples[start : start + device.batch_size]
        images = [preprocess.normalise(preprocess.resize(decode(one.image or b"", max_pixels=10**8))) for one in some]
        ids = tokens[start : start + device.batch_size]
        longest = max(len(row) for row in ids)
        padded = [row + [1] * (longest - len(row)) for row in ids]
        pixels = torch.from_numpy(np.stack(images)).to(clip.device, clip.dtype)
        ready.append((pixels, torch.tensor(padded, device=clip.device)))
    began = time.perf_counter()
    with torch.inference_mode():
        for pixels, ids in ready:
            image = network.get_image_features(pixel_values=pixels).pooler_output
            text = network.get_text_features(input_ids=ids).pooler_output
            (torch.nn.functional.normalize(image) * torch.nn.functional.normalize(text)).sum(1).float().cpu()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="600 pairs instead of 3,000")
    parser.add_argument("--pairs", type=int, help="how many pairs, rounded up to whole shards")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pool", help="shards of real photographs; by default a drawn pool of 224 pixels")
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    wanted = asked.pairs or (600 if asked.quick else 3000)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if asked.pool is None:
            make_pool(root / "drawn", pairs=wanted, shard_size=250, image_size=224, defects=False)
        source = open_pool(asked.pool or root / "drawn")
        shards = []
        count = 0
        for shard in source.shards:  # whole shards, so that both sides see the same pairs
            rows = sum(1 for _ in shard.samples())
            shards.append(shard)
            count += rows
            if count >= wanted:
                break
        samples = [sample for shard in shards for sample in shard.samples()]
        paths = tamis.PoolSpec(path=tuple(shard.url for shard in shards))
        model = save_checkpoint(root / "clip", [sample.caption or "" for sample in samples])
        device = device_for(None, None, None, None)
        bare(model, list(islice(samples, 128)), device)  # loads and warms up
        rounds = []
        for number in range(asked.rounds):
            theirs = bare(model, samples, device)
            began = time.perf_counter()
            run = tamis.score(paths, run=root / f"run{number}", signals=[ClipScore(model=model)], quiet=True)
            mine = time.perf_counter() - began
            assert int(np.isfinite(run.to_numpy("clip")).sum()) == len(samples), "every pair must have been scored"
            rounds.append((mine, theirs))
        began = time.perf_counter()
        command = [sys.executable, "-m", "tamis", "score", *paths.paths, "--run", str(root / "command")]
        subprocess.run(
            [*command, "--signals", "clip", "--set", f"signals.clip.model={model}", "-q"],
            check=True,
            capture_output=True,
        )
        whole = time.perf_counter() - began
        mine, theirs = min(one for one, _ in rounds), min(one for _, one in rounds)
        settings = {
            "pairs": len(samples),
            "precision": device.precision,
            "batch": device.batch_size,
            "seconds per round (ours, bare)": [(round(a, 2), round(b, 2)) for a, b in rounds],
            "whole command with start-up and loading, images/s": round(len(samples) / whole, 1),
        }
        case = Case(
            "ViT-B/32, end to end",
            "images/s",
            len(samples) / mine,
            len(samples) / theirs,
            theirs / mine,
            ">= 0.85",
            settings,
        )
        finish("clip_pipeline", [case], asked.json)


if __name__ == "__main__":
    main()
