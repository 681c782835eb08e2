"""How many images per processor second a run reads, decodes and indexes, beside the bare loop that only decodes.

`one`: `tamis score --signals caption_length,image_size` with one worker, beside tarfile and Pillow alone, and beside
webdataset. All sides take turns, each in a process of its own, on tars that lie in the page cache. What counts is
processor seconds (of the process and its children, `getrusage`), since other processes may share the machine; the time
is told too. Every side does one shard before the clock starts: what starting and importing takes is told apart, since it
does not grow with the pool.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import tempfile
from pathlib import Path

from benchmarks.measure import Case, child, finish, options, processor
from tamis.lab import make_pool

#: What every side starts with: the processor seconds of this process and of its children that have ended.
CLOCK = """
import io, json, logging, os, resource, sys, tarfile, time, warnings
from pathlib import Path

def used():
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime

def tell(work):
    work(shards[:1])  # whatever is imported at first use
    started, before, begin = used(), used(), time.perf_counter()
    images = work(shards)
    print(json.dumps({
        "images": images, "cpu": used() - before, "seconds": time.perf_counter() - begin, "start": started,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))

warnings.simplefilter("ignore", ResourceWarning)
shards = sorted(str(path) for path in Path(sys.argv[1]).glob("*.tar"))
"""

BARE = (
    CLOCK
    + """
from PIL import Image

def work(shards):
    images = 0
    for shard in shards:
        with tarfile.open(shard, "r|") as tar:
            for member in tar:
                data = tar.extractfile(member).read()
                if member.name.endswith(".jpg"):
                    images += Image.open(io.BytesIO(data)).convert("RGB").size[0] > 0
    return images

tell(work)
"""
)

WEBDATASET = (
    CLOCK
    + """
import webdataset

def work(shards):
    samples = webdataset.WebDataset(shards, shardshuffle=False).decode("pil")
    return sum(sample["jpg"].mode == "RGB" for sample in samples)

tell(work)
"""
)

OURS = (
    CLOCK
    + """
import shutil
import tamis

logging.disable(logging.WARNING)

def work(shards):
    shutil.rmtree(sys.argv[2], ignore_errors=True)
    signals = ["caption_length", "image_size"]
    return len(tamis.score(tamis.PoolSpec(path=tuple(shards)), run=sys.argv[2], scores=signals, quiet=True,
                           device="cpu", workers=1))

if __name__ == "__main__":
    tell(work)
"""
)


def pool_of(root: Path, pairs: int, copies: int) -> Path:
    """Draws a shard of pairs and lays down copies of it: drawing takes thirty times as long as decoding."""
    drawn = root / f"drawn-{pairs}"
    if not drawn.is_dir():
        make_pool(drawn, pairs=pairs, shard_size=pairs, image_size=224, defects=False)
    pool = root / f"pool-{pairs}-{copies}"
    if not pool.is_dir():
        pool.mkdir()
        for number in range(copies):
            shutil.copy(drawn / "00000.tar", pool / f"{number:05}.tar")
    return pool


def measured(code: str, pool: Path, run: Path) -> dict[str, float]:
    """Runs a side in a process of its own; returns images, processor seconds and time."""
    facts: dict[str, float] = json.loads(child(code, str(pool), str(run)).output.strip().splitlines()[-1])
    return facts


def one(root: Path, pairs: int, copies: int, rounds: int) -> list[Case]:
    """One worker beside the bare loop and beside webdataset, in turn."""
    pool = pool_of(root, pairs, copies)
    sides = {"bare": BARE, "webdataset": WEBDATASET, "ours": OURS}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number in range(rounds):
        order = list(sides) if number % 2 == 0 else list(reversed(sides))
        for name in order:
            found[name].append(measured(sides[name], pool, root / "run"))
    rates = {name: [facts["images"] / facts["cpu"] for facts in some] for name, some in found.items()}
    settings = {
        "images": int(found["ours"][0]["images"]),
        "bytes of an image, mean": round(sum(path.stat().st_size for path in pool.glob("*.tar")) / pairs / copies),
        "images per processor second, each round": {
            name: [round(rate) for rate in some] for name, some in rates.items()
        },
        "images per second of time, each round": {
            name: [round(facts["images"] / facts["seconds"]) for facts in some] for name, some in found.items()
        },
        "processor seconds of starting, not counted": {
            name: round(statistics.median(facts["start"] for facts in some), 2) for name, some in found.items()
        },
        "processor": processor(),
    }
    return [
        Case(
            f"one worker, caption_length and image_size, beside {title}",
            "images/CPU s",
            max(rates["ours"]),
            max(rates[name]),
            max(rates["ours"]) / max(rates[name]),
            ">= 0.8",
            settings if name == "bare" else {},
        )
        for name, title in (("bare", "the bare loop (tarfile, Pillow)"), ("webdataset", "webdataset"))
    ]


def main() -> None:
    asked = options(__doc__ or "")
    pairs, copies, rounds = (1_000, 2, 3) if asked.quick else (1_000, 8, 5)
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(asked.folder or temporary)
        root.mkdir(parents=True, exist_ok=True)
        cases = one(root, pairs, copies, rounds)
        finish("feed", cases, asked.json)


if __name__ == "__main__":
    main()
