"""One GPU: CLIP, T-MARS, SIEVE, ICC and a training on it, in at most eight minutes with 16 cores.

`python -m benchmarks.gpu` needs the extras and one GPU; `--device cpu --pairs 200` tries the script without one. Each
method scores a drawn pool from its tars to its parts on disk, with one process for the GPU and one reader per core.
A line has

- the pairs per second, next to what others publish for one GPU (docs/performance.md has the sources),
- `difference`: the largest distance of a score from the CPU's, both in float32 without TF32,
- `share of bf16`: the networks' floating-point operations in this time, of the card's rate by its data sheet, or of a
  large product's,
- `GPU busy` and `cores busy`: which of the two waited. nvidia-smi says in which share of the time a kernel ran.

Weights are random, of the published shapes; the detector of text and the sentence encoder are the packaged ones.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import tamis
from benchmarks.icc import save_student
from benchmarks.measure import Case, benchmark, spend
from benchmarks.score import pool_of, save_clip
from benchmarks.sieve import save_checkpoint
from tamis.core.machine import cores
from tamis.core.types import Device, Sample, Signal
from tamis.models.device import device_for
from tamis.pools import open_pool
from tamis.pools.images import fill_pixels
from tamis.signals import ClipScore, Icc, Sieve, Tmars
from tamis.signals.graph import execute
from tamis.train.clip import train_clip
from tamis.train.scales import ClipTraining
from tamis.train.step import How, peak_rate

#: Pairs to score with each method, so that all take about as long.
PAIRS = {"clip": 60_000, "tmars": 10_000, "sieve": 4_000, "icc": 60_000, "train": 60_000}

_COMPARED, _COUNTED = 32, 64  # pairs scored on both devices, and whose operations are counted


@contextmanager
def watched(device: Device) -> Iterator[list[float]]:
    """Notes once a second which share of the time the GPU is busy."""
    busy: list[float] = []
    if device.kind == "cpu" or shutil.which("nvidia-smi") is None:
        yield busy
        return
    command = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--loop=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = process.stdout
        thread = threading.Thread(target=lambda: busy.extend(float(line) for line in lines), daemon=True)
        thread.start()
        yield busy
        process.terminate()
        thread.join()


def operations(work: Callable[[], Any]) -> int:
    """Returns the floating-point operations of some work by torch's counter."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def difference(signal: Signal, samples: list[Sample], device: Device) -> float:
    """Returns the largest distance of a score on the device from the CPU's, in float32."""
    few = samples[:_COMPARED]
    kinds = (Device(kind=kind, precision="float32", batch_size=_COMPARED) for kind in ("cpu", device.kind))
    ours, theirs = (execute([signal], few, kind)[signal] for kind in kinds)
    name = signal.columns[0].name
    return float(np.nanmax(np.abs(ours[name] - theirs[name])))


def scored(
    root: Path, given: Any, name: str, make: Callable[[list[str]], Signal], published: float | None = None
) -> list[Case]:
    """Scores a pool with one signal."""
    pairs = given.pairs or PAIRS[name]
    pool = pool_of(root, min(pairs, 1_000), max(1, pairs // 1_000))
    samples = list(next(iter(open_pool(pool).shards)).samples())[: max(_COMPARED, _COUNTED)]
    for sample in samples:
        fill_pixels(sample, max_pixels=10**8)
    device = device_for(given.device)
    signal = make([sample.caption or "" for sample in samples])
    away = difference(signal, samples, device)
    some = samples[:_COUNTED]
    each = operations(lambda: execute([signal], some, device)) / len(some)
    with watched(device) as busy:
        spent = spend(
            lambda: len(tamis.score(pool, run=root / "run", signals=[signal], quiet=True, device=given.device,
                                    workers=given.workers or cores()))
        )  # fmt: skip
    rate = spent.result / spent.seconds
    return [_case(name, rate, published, device, busy, spent.cpu_seconds / spent.seconds, each, difference=away)]


def _case(
    name: str, rate: float, published: float | None, device: Device, busy: list[float], used: float, each: float,
    **more: Any,
) -> Case:  # fmt: skip
    """`used`: cores, on average; `each`: floating-point operations per pair."""
    import torch

    settings = {
        "device": torch.cuda.get_device_name() if device.kind != "cpu" else "cpu",
        "precision": device.precision,
        "share of bf16": round(each * rate / peak_rate(torch.device(device.kind), "bf16"), 3),
        "GPU busy": round(sum(busy) / len(busy) / 100, 2) if busy else "unknown",
        "cores busy": f"{used:.1f} of {cores()}",
    }
    return Case(name, "pairs/s", rate, published, published and rate / published, settings=settings | more)


def clip(root: Path, given: Any) -> list[Case]:
    return scored(root, given, "clip", lambda texts: ClipScore(model=save_clip(root / "clip", texts)), 2500)


def tmars(root: Path, given: Any) -> list[Case]:
    return scored(root, given, "tmars", lambda texts: Tmars(model=save_clip(root / "clip", texts)), 60)


def sieve(root: Path, given: Any) -> list[Case]:
    return scored(root, given, "sieve", lambda _: Sieve(captioner=save_checkpoint(root / "blip", 224)))


def icc(root: Path, given: Any) -> list[Case]:
    return scored(root, given, "icc", lambda texts: Icc(model=save_student(root / "icc", texts)))


def train(root: Path, given: Any) -> list[Case]:
    import torch

    pairs = given.pairs or PAIRS["train"]
    device = device_for(given.device)
    run = tamis.score(pool_of(root, min(pairs, 1_000), max(1, pairs // 1_000)), run=root / "run",
                      signals=["caption_length"], quiet=True, device="cpu")  # fmt: skip
    training = ClipTraining(samples=pairs, batch=min(1024, pairs), warmup=1)
    how = How(device=device, threads=cores())
    with watched(device) as busy:
        spent = spend(lambda: train_clip(run, out=root / "trained", training=training, how=how))
    done, peak = spent.result, peak_rate(torch.device(device.kind), device.precision)
    rate, used = done.samples_per_second, spent.cpu_seconds / spent.seconds
    each = done.utilisation * peak / rate
    return [_case("train", rate, None, device, busy, used, each, loss=round(done.losses[-1], 3))]


if __name__ == "__main__":
    parts = {"clip": clip, "tmars": tmars, "sieve": sieve, "icc": icc, "train": train}
    benchmark(__doc__, parts, device=None, pairs=0, workers=0)
