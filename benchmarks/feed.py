"""How many images per processor second a run reads, decodes and indexes, beside the bare loop that only decodes.

`one`: `tamis score --signals caption_length,image_size` with one worker, beside tarfile and Pillow alone, and beside
webdataset. All sides take turns, each in a process of its own, on tars that lie in the page cache. What counts is
processor seconds (of the process and its children, `getrusage`), since other processes may share the machine; the time
is told too. Every side does one shard before the clock starts: what starting and importing takes is told apart, since
it does not grow with the pool. And the same images in shards a tenth as large: what a shard costs.

`cores`: many processes that read and decode, for one device whose model costs nothing: the processor seconds that an
image takes of theirs and, one after the other, of the process at the device, beside what it takes in one process that
does all. From that, by `modelled`, how the rate grows with cores. Starting is left out by taking the difference between
a long and a short pool.

`ray`: Ray with two actors beside two local workers, in time.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.measure import Case, child, finish, options, processor
from tamis.data import Column, Device, Node, Signal
from tamis.features.sources import DecodedImages
from tamis.lab import make_pool


@dataclass(frozen=True, kw_only=True)
class Free(Signal):
    """A model that costs nothing: it takes the decoded images to the device, and looks at none of them.

    Attributes:
        clock: a file that is told, now and then, the processor seconds that the process with the model has taken for
            each image since the first batch.
    """

    name: ClassVar[str] = "free"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = (Column(name="free", unit="", better="neither"),)
    clock: str

    def needs(self) -> Mapping[str, Node]:
        return {"images": DecodedImages()}

    def load(self, device: Device) -> Callable[..., Any]:
        start, count = 0.0, 0

        def nothing(*, images: Sequence[Any]) -> dict[str, Any]:
            nonlocal start, count
            if images and not start:
                start = time.process_time()
            elif images:
                count += len(images)
            if count % 640 == 0 and count:
                Path(self.clock).write_text(str((time.process_time() - start) / count), encoding="ascii")
            return {"free": np.zeros(len(images), np.float32)}

        return nothing


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
    return len(tamis.score(tamis.PoolSpec(path=tuple(shards)), run=sys.argv[2], signals=signals, quiet=True,
                           device="cpu", workers=1))

if __name__ == "__main__":
    tell(work)
"""
)


WITH_MODEL = (
    CLOCK
    + """
import tamis
from benchmarks.feed import Free
from tamis.run.local import Local
from tamis.run.ray import Ray

if __name__ == "__main__":
    logging.disable(logging.WARNING)
    pool, run, how, workers, clock = sys.argv[1:6]
    if how == "alone":
        os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])  # one core, and threads for one
    engine = {
        "alone": lambda: Local(1),
        "served": lambda: Local(int(workers), served=True),
        "local": lambda: Local(int(workers)),
        "ray": lambda: Ray(workers=int(workers)),
    }[how]()
    free = [Free(clock=clock)] if clock else []
    begin = time.perf_counter()
    done = tamis.score(pool, run=run, signals=["caption_length", "image_size", *free], quiet=True, device="cpu",
                       engine=engine)
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({
        "images": len(done), "engine": own.ru_utime + own.ru_stime, "others": children.ru_utime + children.ru_stime,
        "seconds": time.perf_counter() - begin, "device": float(Path(clock).read_text()) if clock else 0.0,
        "peak_bytes": max(own.ru_maxrss, children.ru_maxrss) * 1024}))
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


def measured(code: str, pool: Path, run: Path, *more: str) -> dict[str, float]:
    """Runs a side in a process of its own; returns what it tells."""
    shutil.rmtree(run, ignore_errors=True)
    facts: dict[str, float] = json.loads(child(code, str(pool), str(run), *more).output.strip().splitlines()[-1])
    return facts


def in_turn(names: Sequence[str], number: int) -> Sequence[str]:
    """Returns who goes when in a round: in the next one the other way round."""
    return names if number % 2 == 0 else names[::-1]


def one(root: Path, copies: int, rounds: int) -> list[Case]:
    """One worker beside the bare loop and beside webdataset, in turn; and with small shards."""
    pools = {"bare": 1_000, "webdataset": 1_000, "ours": 1_000, "small shards": 100}
    sides = {"bare": BARE, "webdataset": WEBDATASET, "ours": OURS, "small shards": OURS}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in in_turn(list(sides), number):
            pool = pool_of(root, pools[name], copies * 1_000 // pools[name])
            found[name].append(measured(sides[name], pool, root / "run"))
    rates = {name: [facts["images"] / facts["cpu"] for facts in some] for name, some in found.items()}
    middle = {name: statistics.median(some) for name, some in rates.items()}
    images = found["ours"][0]["images"]
    settings = {
        "images": int(images),
        "images per processor second, each round": {name: [round(one) for one in some] for name, some in rates.items()},
        "images per second of time, each round": {
            name: [round(facts["images"] / facts["seconds"]) for facts in some] for name, some in found.items()
        },
        "processor seconds of starting, not counted": {
            name: round(statistics.median(facts["start"] for facts in some), 2) for name, some in found.items()
        },
        "processor": processor(),
    }
    cases = [
        Case(
            f"one worker, caption_length and image_size, beside {title}: medians",
            "images/CPU s",
            middle["ours"],
            middle[name],
            middle["ours"] / middle[name],
            ">= 0.8",
            settings if name == "bare" else {},
        )
        for name, title in (("bare", "the bare loop (tarfile, Pillow)"), ("webdataset", "webdataset"))
    ]
    shards = images / 100 - images / 1_000
    each = 1_000 * (images / middle["small shards"] - images / middle["ours"]) / shards
    cases.append(Case("a shard, whatever it holds", "ms of CPU", each, None, None, "-", {}))
    return cases


def marginal(root: Path, how: str, copies: Sequence[int], clock: str) -> dict[str, float]:
    """Returns what an image takes of each kind of process, in seconds, start and end left out."""
    short, long = (measured(WITH_MODEL, pool_of(root, 1_000, count), root / "run", how, "2", clock) for count in copies)
    images = long["images"] - short["images"]
    found = {name: (long[name] - short[name]) / images for name in ("engine", "others", "seconds")}
    return found | {"device": long["device"]}


def modelled(cores: int, *, workers: float, device: float, engine: float) -> float:
    """Returns images per second on so many cores, from the processor seconds that an image takes.

    Workers share the cores with the process at the device and with the engine, which are one process each: neither can
    use more than one core. What several cores share beside (memory's bandwidth, caches) is taken to suffice.
    """
    return min(cores / (workers + device + engine), 1 / max(device, engine, 1e-9))


def cores(root: Path, copies: Sequence[int], rounds: int) -> list[Case]:
    """Processes that read and decode for one device, beside one process that does all."""
    clock = str(root / "clock")
    found: dict[str, list[dict[str, float]]] = {"alone": [], "served": []}
    for number in range(rounds):
        for name in in_turn(list(found), number):
            found[name].append(marginal(root, name, copies, clock))
    middle = {
        name: {part: statistics.median(one[part] for one in some) for part in some[0]} for name, some in found.items()
    }
    alone = middle["alone"]["engine"] + middle["alone"]["others"]
    served = middle["served"]
    parts = {
        "workers": served["others"] - served["device"], "device": served["device"], "engine": max(0.0, served["engine"])
    }  # fmt: skip
    settings = {
        "microseconds of CPU an image, one process": round(1e6 * alone),
        "microseconds of CPU an image, served": {name: round(1e6 * seconds, 1) for name, seconds in parts.items()},
        "each round": {
            name: [{part: round(1e6 * seconds, 1) for part, seconds in one.items()} for one in some]
            for name, some in found.items()
        },
        "processor": processor(),
    }
    return [
        Case(
            f"{count} cores feed one device: " + ("measured, in CPU seconds" if count == 2 else "modelled"),
            "images/s",
            modelled(count, **parts),
            count / alone,
            modelled(count, **parts) * alone / count,
            ">= 0.85",
            settings if count == 2 else {},
        )
        for count in (2, 8, 16, 32)
    ]


def ray(root: Path, copies: Sequence[int], rounds: int) -> list[Case]:
    """Two actors of Ray beside two local workers."""
    found: dict[str, list[float]] = {"local": [], "ray": []}
    for number in range(rounds):
        for name in in_turn(list(found), number):
            found[name].append(1 / marginal(root, name, copies, "")["seconds"])
    middle = {name: statistics.median(some) for name, some in found.items()}
    settings = {"images/s, each round": {name: [round(rate) for rate in some] for name, some in found.items()}}
    ratio = middle["ray"] / middle["local"]
    return [Case("Ray, 2 actors, beside 2 local workers", "images/s", middle["ray"], middle["local"], ratio, ">= 0.9",
                 settings | {"processor": processor()})]  # fmt: skip


def main() -> None:
    asked = options(__doc__ or "", ("one", "cores", "ray"))
    copies, lengths, rounds = (2, (2, 6), 3) if asked.quick else (8, (4, 20), 5)
    parts: dict[str, Callable[[Path], list[Case]]] = {
        "one": lambda root: one(root, copies, rounds),
        "cores": lambda root: cores(root, lengths, rounds),
        "ray": lambda root: ray(root, lengths, rounds),
    }
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(asked.folder or temporary)
        root.mkdir(parents=True, exist_ok=True)
        cases = [case for name, part in parts.items() if asked.only in (None, name) for case in part(root)]
        finish("feed", cases, asked.json)


if __name__ == "__main__":
    main()
