"""What `tamis score` costs: reading and decoding, CLIP end to end, two workers, a finished run again, `--lazy`.

`feed`: two trivial signals with one worker, next to tarfile and Pillow in a bare loop, and next to webdataset. Each
side has a process of its own and does one shard before the clock starts. CPU seconds count, as other work may share
the machine. The same images in shards a tenth as large show what a shard costs.

`fresh`: whole commands, Python's start included: the same signals of 1,500 images, next to the bare loop in a process
of its own; of 60; and `tamis select` of those, next to `import pyarrow.parquet`.

`clip`: next to the bare model of ViT-B/32's shape, which gets images and captions as ready tensors and writes nothing.
Same random weights, precision, threads and batch size. Loading and starting are left out.

`workers`: two processes that read and decode for one device, next to one process on one core that does everything. The
model costs nothing. Starting is left out: figures are differences between a long and a short pool.

`again`: a finished run by the same command, next to the first time.

`lazy`: `tamis run --lazy` with thresholds on three signals, next to the full run: the same pairs, fewer CPU seconds.
Models are the lab's, also for `--pool`; loading them for each pass over the pool weighs much on small pools.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

import tamis
from benchmarks.loops import bare_loop, warmed, with_webdataset
from benchmarks.measure import Case, Spent, benchmark, child, in_turn, spend, versus
from tamis.core.types import Column, Device, Node, Sample, Signal
from tamis.models.clip import load_clip, load_tokenizer
from tamis.models.device import device_for
from tamis.models.preprocess import load_preprocess
from tamis.pools import open_pool
from tamis.pools.images import decode
from tamis.signals import ClipScore
from tamis.signals.features.sources import DecodedImages
from tamis_lab.pool import make_pool

TRIVIAL = ["caption_length", "image_size"]


def pool_of(root: Path, pairs: int, copies: int) -> Path:
    """Draws one shard and copies it, as drawing takes thirty times as long as decoding."""
    drawn, pool = root / f"drawn-{pairs}", root / f"pool-{pairs}-{copies}"
    if not drawn.is_dir():
        make_pool(drawn, pairs=pairs, shard_size=pairs, image_size=224, defects=False)
    if not pool.is_dir():
        pool.mkdir()
        for number in range(copies):
            shutil.copy(drawn / "00000.tar", pool / f"{number:05}.tar")
    return pool


def with_tamis(pool: str, run: str) -> Spent:
    def work(shards: list[str]) -> int:
        shutil.rmtree(run, ignore_errors=True)
        spec = tamis.PoolSpec(path=tuple(shards))
        return len(tamis.score(spec, run=run, signals=TRIVIAL, quiet=True, device="cpu", workers=1))

    return warmed(work, pool)


def feed(root: Path, given: Any) -> list[Case]:
    images = 2_000 if given.quick else 8_000
    pool, small = pool_of(root, 1_000, images // 1_000), pool_of(root, 100, images // 100)
    spent = in_turn(
        3 if given.quick else 5,
        bare=lambda: child(bare_loop, pool),
        webdataset=lambda: child(with_webdataset, pool),
        ours=lambda: child(with_tamis, pool, root / "run"),
        small=lambda: child(with_tamis, small, root / "run"),
    )
    assert {each.result for side in spent.values() for each in side} == {images}
    by_cpu = partial(versus, ours=spent["ours"], by="cpu_seconds", count=images, unit="images per CPU second")
    extra = statistics.median(each.cpu_seconds for each in spent["small"])
    extra -= statistics.median(each.cpu_seconds for each in spent["ours"])
    return [
        by_cpu("two trivial signals, next to tarfile and Pillow", theirs=spent["bare"], target=">= 0.9"),
        by_cpu("two trivial signals, next to webdataset", theirs=spent["webdataset"], target=">= 0.9"),
        Case("a shard, whatever it holds", "ms of CPU", 1000 * extra / (images / 100 - images / 1_000)),
    ]


def fresh(root: Path, given: Any) -> list[Case]:
    large, small = pool_of(root, 500, 3), pool_of(root, 60, 1)

    def python(*words: str | Path) -> None:
        # An installed package has its bytecode.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, env=environment)
        if done.returncode:
            raise SystemExit(done.stderr)

    def score(pool: Path) -> None:
        shutil.rmtree(root / "run", ignore_errors=True)
        python("-m", "tamis", "score", pool, "--run", root / "run", "--signals", ",".join(TRIVIAL))

    code = "import glob, sys; from benchmarks.loops import decode_all; decode_all(glob.glob(sys.argv[1] + '/*.tar'))"
    spent = in_turn(
        3 if given.quick else 9,
        bare=lambda: python("-c", code, large),
        ours=lambda: score(large),
        few=lambda: score(small),
        pyarrow=lambda: python("-c", "import pyarrow.parquet"),
        select=lambda: python("-m", "tamis", "select", root / "run", "--recipe", "no-filter", "--overwrite"),
    )
    seconds = statistics.median(each.seconds for each in spent["few"])
    return [
        versus("a fresh run of 1,500 images, next to tarfile and Pillow", spent["ours"], spent["bare"],
               by="cpu_seconds", count=1_500, unit="images per CPU second", target=">= 0.9"),
        Case("a run of 60 pairs", "seconds", seconds, target="<= 0.6"),
        versus("`tamis select` of 60 pairs, next to `import pyarrow.parquet`", spent["select"], spent["pyarrow"],
               by="cpu_seconds", unit="CPU seconds", target=">= 0.5"),
    ]  # fmt: skip


# ---- CLIP


def save_clip(folder: Path, captions: list[str]) -> str:
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


def pool_with(root: Path, pool: str | None, pairs: int, *, shard_size: int) -> tuple[tamis.PoolSpec, list[Sample]]:
    """Returns whole shards of a pool with at least so many pairs, and what is in them; without a pool a drawn one."""
    if pool is None:
        make_pool(root / "drawn", pairs=pairs, shard_size=shard_size, image_size=224, defects=False)
    shards, samples = [], []
    for shard in open_pool(pool or root / "drawn").shards:
        shards.append(shard.url)
        samples += list(shard.samples())
        if len(samples) >= pairs:
            break
    return tamis.PoolSpec(path=tuple(shards)), samples


def bare_model(model: str, samples: list[Sample], device: Device) -> Spent:
    """Measures the model over tensors that are ready."""
    import torch

    clip = load_clip(model, device)
    network: Any = clip._model
    preprocess, tokenize = load_preprocess(model), load_tokenizer(model)
    ready = []
    for start in range(0, len(samples), device.batch_size):
        batch = samples[start : start + device.batch_size]
        images = [preprocess.normalise(preprocess.resize(decode(one.image or b"", max_pixels=10**8))) for one in batch]
        ids = tokenize([one.caption or "" for one in batch])
        padded = [row + [1] * (max(map(len, ids)) - len(row)) for row in ids]
        pixels = torch.from_numpy(np.stack(images)).to(clip.device, clip.dtype)
        ready.append((pixels, torch.tensor(padded, device=clip.device)))

    def work() -> None:
        with torch.inference_mode():
            for pixels, ids in ready:
                image = network.get_image_features(pixel_values=pixels).pooler_output
                text = network.get_text_features(input_ids=ids).pooler_output
                (torch.nn.functional.normalize(image) * torch.nn.functional.normalize(text)).sum(1).float().cpu()

    return spend(work)


def clip(root: Path, given: Any) -> list[Case]:
    spec, samples = pool_with(root, given.pool, given.pairs or (250 if given.quick else 3000), shard_size=250)
    model = save_clip(root / "clip", [sample.caption or "" for sample in samples])
    device = device_for(None, None, None, None)
    bare_model(model, samples[:128], device)  # loads and warms up

    def ours() -> None:
        shutil.rmtree(root / "run", ignore_errors=True)
        run = tamis.score(spec, run=root / "run", signals=[ClipScore(model=model)], quiet=True)
        assert int(np.isfinite(run.to_numpy("clip")).sum()) == len(samples), "every pair must have a score"

    spent = in_turn(2, bare=lambda: bare_model(model, samples, device), ours=ours)
    return [
        versus(
            "CLIP ViT-B/32 end to end, next to the bare model", spent["ours"], spent["bare"], target=">= 0.85",
            count=len(samples), unit="images/s", precision=device.precision, batch=device.batch_size,
        )
    ]  # fmt: skip


# ---- several processes


@dataclass(frozen=True, kw_only=True)
class Free(Signal):
    """A model that costs nothing: decoded images travel to its process, and it looks at none of them."""

    name: ClassVar[str] = "free"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = (Column(name="free", unit="", better="neither"),)

    def needs(self) -> Mapping[str, Node]:
        return {"images": DecodedImages()}

    def load(self, device: Device) -> Callable[..., Any]:
        def nothing(*, images: Sequence[Any]) -> dict[str, Any]:
            return {"free": np.zeros(len(images), np.float32)}

        return nothing


def with_workers(pool: str, run: str, served: bool) -> Spent:
    from tamis.engines.local import Local

    if not served:
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # one core, and threads for one
    shutil.rmtree(run, ignore_errors=True)
    engine = Local(2, one_process_per_device=True) if served else Local(1)
    signals = [*TRIVIAL, Free()]
    return spend(lambda: len(tamis.score(pool, run=run, signals=signals, quiet=True, device="cpu", engine=engine)))


def workers(root: Path, given: Any) -> list[Case]:
    pools = [pool_of(root, 1_000, shards) for shards in ((2, 6) if given.quick else (4, 20))]

    def marginal(served: bool) -> Spent:
        short, long = (child(with_workers, pool, root / "run", served) for pool in pools)
        images, cpu = long.result - short.result, long.cpu_seconds - short.cpu_seconds
        return Spent((long.seconds - short.seconds) / images, cpu / images, long.peak_bytes)

    rounds = 3 if given.quick else 5
    spent = in_turn(rounds, alone=lambda: marginal(False), served=lambda: marginal(True))
    return [
        versus("two workers feed one device, next to one process", spent["served"], spent["alone"], by="cpu_seconds",
               count=1, unit="images per CPU second", target=">= 0.85")
    ]  # fmt: skip


# ---- whole commands


def command(*arguments: str | Path) -> None:
    run = subprocess.run([sys.executable, "-m", "tamis", *map(str, arguments), "-q"], capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(run.stderr)


def again(root: Path, given: Any) -> list[Case]:
    shards = 200 if given.quick else 1_000
    make_pool(root / "pool", pairs=2 * shards, shard_size=2, defects=False)
    words = ("score", root / "pool", "--run", root / "run", "--signals", ",".join(TRIVIAL))
    first, *later = [spend(lambda: command(*words)) for _ in range(4)]
    return [
        versus(f"a finished run of {shards} shards again, next to the first time", later, [first] * 3, by="cpu_seconds")
    ]


def lazy(root: Path, given: Any) -> list[Case]:
    pool = given.pool or root / "pool"
    if not given.pool:
        make_pool(root / "pool", pairs=given.pairs or (1_000 if given.quick else 2_000))
    captions = {"captioner": "lab/captioner", "encoder": "minilm"}
    models = {"clip": {"model": "lab/clip"}, "tmars": {"model": "lab/clip"}, "sieve": captions}
    recipe: dict[str, Any] = {"name": "lazy", "signals": [{name: models[name]} for name in models], "select": []}
    (root / "signals.yaml").write_text(json.dumps(recipe))
    full = spend(lambda: command("score", pool, "--run", root / "full", "--recipe", root / "signals.yaml"))
    run = tamis.open_run(root / "full")
    for name, share in (("sieve", 0.5), ("tmars", 0.5), ("clip", 0.3)):
        value = float(np.nanquantile(run[name], 1 - share))
        recipe["select"].append({"at_least": {"score": name, "value": value, "missing": "drop"}})
    (root / "lazy.yaml").write_text(json.dumps(recipe))
    words = ("run", pool, "--recipe", root / "lazy.yaml", "--run", root / "run", "--lazy")
    spent = spend(lambda: command(*words))
    lazily, everything = (tamis.select(each, recipe).to_numpy() for each in (root / "run", run))
    assert len(lazily)
    assert np.array_equal(lazily, everything)
    settings: dict[str, Any] = {"pairs": len(run), "kept": len(lazily)}
    return [versus("--lazy, next to the full run", [spent], [full], by="cpu_seconds", unit="CPU seconds", **settings)]


if __name__ == "__main__":
    parts = {"feed": feed, "fresh": fresh, "clip": clip, "workers": workers, "again": again, "lazy": lazy}
    benchmark(__doc__, parts, pool=None, pairs=0)
