"""A race of `tamis choose` on photographs with planted defects: do the arms leave that keep the defects?

The pool has 1,200 photographs, and `truth` names their defects. The scores are those of a small CLIP trained on 2,500
other, clean ones; models are judged on 500 more, with five captions each.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from pathlib import Path
from typing import Any

import tamis
from tamis.cli.printing import print_table
from tamis.models.device import device_for
from tamis.pools.open import open_pool
from tamis.train.clip import train_clip
from tamis.train.scales import at_scale
from tamis.train.step import How
from tamis_lab.pool import add_member

#: What the arms of known defects keep, next to recipes that do not know them.
TRUTHS = {
    "clean": ["visual"],
    "defects": [
        "mismatched", "text_only", "visual_text", "visual_random_text", "abstract", "near_duplicate",
        "not_english", "exact_duplicate",
    ],
    "mismatched-and-text": ["mismatched", "text_only", "visual_random_text"],
}  # fmt: skip
RECIPES = ("clip-50", "tmars", "text_match", "basic", "distinct")


def make_task(tars: list[str], out: Path) -> None:
    """Writes a retrieval task in the layout of CLIP benchmark: images and all their captions."""
    folder = out / "wds_photos" / "test"
    if (folder / "nshards.txt").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    pool = open_pool(tamis.PoolSpec(path=tuple(tars), fields=("captions",)))
    with tarfile.open(folder / "0.tar", "w") as task:
        for number, sample in enumerate(sample for shard in pool.shards for sample in shard.samples()):
            captions = json.loads(sample.given["captions"])
            add_member(task, f"s{number:05d}.jpg", sample.image)
            add_member(task, f"s{number:05d}.txt", "\n".join(captions).encode())
    (out / "wds_photos" / "dataset_type.txt").write_text("retrieval\n")
    (folder / "nshards.txt").write_text("1\n")


def main(data: Path, out: Path, samples: int, rounds: int, workers: int) -> None:
    clean = sorted(map(str, (data / "pools/flickr8k-clean").glob("*.tar")))
    make_task(clean[-2:], out / "tasks")
    exact: dict[str, Any] = {"device": "cpu", "precision": "float32"}  # the same arms on every machine
    others = tamis.score(tamis.PoolSpec(path=tuple(clean[:10])), run=out / "clean-run", **exact)
    if not (out / "clip" / "config.json").exists():
        how = How(device=device_for(**exact))
        train_clip(others, out=out / "clip", training=at_scale("lab", samples=49_152), how=how)
    clip = {"model": str(out / "clip")}
    signals: list[Any] = [{"clip": clip}, {"tmars": clip}]
    signals += ["text_match", "language", "caption_length", "image_size", "image_hash"]
    pool = tamis.PoolSpec(path=str(data / "pools/flickr8k-noisy"), fields=("truth",))
    run = tamis.score(pool, run=out / "run", signals=signals, **exact)
    known = [{"name": name, "select": [{"equals": {"score": "truth", "value": TRUTHS[name]}}]} for name in TRUTHS]
    race = tamis.choose(
        run, [*known, *RECIPES], shares=[0.3, 0.6], tasks=str(out / "tasks"), out=out / "bench", rounds=rounds,
        training=at_scale("lab", samples=samples), workers=workers, threads=1, **exact,
    )  # fmt: skip
    print_table(race.rows_of_table())
    print("\n".join(race.verdict()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="has pools/flickr8k-clean and pools/flickr8k-noisy")
    parser.add_argument("--out", type=Path, default=Path("choose-photos"))
    parser.add_argument("--samples", type=int, default=12_288, help="of the last round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    main(given.data, given.out, given.samples, given.rounds, given.workers)
