"""What SIEVE tells apart: `python -m benchmarks.sieve_alignment [--data FOLDER]`.

On the lab's world, with the built-in captioner and CLIP: AUC of `visual` against `mismatched` pairs for `clip`, `sieve`
and both, by number of captions (the paper's Table 5), and how much the top 10, 20 and 30 % of each overlap (Table 8).

With `--data`: captions that BLIP-2 gave to real photographs (`text/flickr8k_blip2_captions.csv`), against human ones,
right and wrong, through the real sentence encoder; and rank correlation with human judgments of caption and photograph
(`text/flickr8k_crowdflower.tsv`; the captions' texts come from the json of `pools/flickr8k-clean`).
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

import tamis
from benchmarks.known_defects import word
from tamis.data import Device
from tamis.lab import make_pool
from tamis.math.intervals import bootstrap
from tamis.math.ranks import auc
from tamis.models.texts.sentence import load_sentence_encoder
from tamis.pool import open_pool
from tamis.signals import ClipScore, Sieve
from tamis.signals.medium import MEDIUM_PHRASES, without_medium
from tamis.signals.sieve import alignment

COUNTS = (1, 2, 4, 8)


def lab(folder: Path, pairs: int) -> None:
    """Prints the tables of the lab."""
    make_pool(folder / "pool", pairs=pairs, seed=11, mix="uniform", defects=False)
    scorers = [ClipScore(model="lab/clip"), Sieve(captioner="lab/captioner")]
    pool = tamis.PoolSpec(path=(str(folder / "pool"),), fields=("truth",))
    run = tamis.score(pool, run=folder / "run", scores=scorers, keep=["captions"], quiet=True)
    truth = word(run, "truth")
    clip = run.to_numpy("clip")
    captions = [text for shard in run.shards for text in run.index(shard, ["caption"]).column(0).to_pylist()]
    generated = [said for shard in run.shards for said in run.texts_of("generated_captions", shard)]
    encode = load_sentence_encoder("minilm", Device())
    mask = without_medium(MEDIUM_PHRASES["paper"])
    scores: dict[str, NDArray[Any]] = {"clip": clip}
    for count in COUNTS:
        first = [None if said is None else said[:count] for said in generated]
        scores[f"sieve, {count} captions"] = alignment(captions, first, encode, mask)["sieve"]
    sieve = scores[f"sieve, {COUNTS[-1]} captions"]
    scores["sieve + clip, min-max"] = _minmax(sieve) + _minmax(clip)
    scores["sieve + clip, rank"] = _rank(sieve) + _rank(clip)
    print(f"\nlab, {pairs:,} pairs: AUC of visual against mismatched, and against text_only, with 95 % intervals")
    for name, values in scores.items():
        found = [
            bootstrap(auc, values[truth == "visual"], values[truth == other]) for other in ("mismatched", "text_only")
        ]
        print(f"  {name:<24}" + "   ".join(str(one) for one in found))
    print("\nintersection over union of the top shares")
    names = ["clip", f"sieve, {COUNTS[-1]} captions", "sieve + clip, min-max"]
    for share in (0.1, 0.2, 0.3):
        tops = {name: set(np.argsort(-scores[name], kind="stable")[: round(share * pairs)]) for name in names}
        row = [f"{a} | {b}: {len(tops[a] & tops[b]) / len(tops[a] | tops[b]):.2f}" for a, b in _pairs(names)]
        print(f"  top {share:.0%}: " + ", ".join(row))


def photographs(data: Path) -> None:
    """Prints how real captions of real photographs are told apart."""
    with open(data / "text/flickr8k_blip2_captions.csv", encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    encode = load_sentence_encoder("minilm", Device())
    said = [[row["base_caption"]] for row in rows]
    human = [row["given_caption"] for row in rows]
    order = np.random.default_rng(0).permutation(len(rows))
    shift = np.empty(len(rows), int)
    shift[order] = np.roll(order, 1)  # a permutation without a fixed point
    print(f"\n{len(rows):,} photographs with one BLIP-2 caption: AUC of right against wrong human captions")
    for name, phrases in (("paper's phrases removed", MEDIUM_PHRASES["paper"]), ("nothing removed", ())):
        mask = without_medium(phrases)
        right = alignment(human, said, encode, mask)["sieve"]
        wrong = alignment([human[n] for n in shift], said, encode, mask)["sieve"]
        fine = np.isfinite(right) & np.isfinite(wrong)
        print(f"  {name:<26}{bootstrap(auc, right[fine], wrong[fine])}")
    texts = _flickr_texts(data)
    blip = {row["image"]: row["base_caption"] for row in rows}
    judged = []
    for line in (data / "text/flickr8k_crowdflower.tsv").read_text(encoding="utf-8").splitlines():
        image, caption, yes, *_ = line.split("\t")
        if image in blip and caption in texts:
            judged.append((blip[image], texts[caption], float(yes)))
    scores = alignment(
        [text for _, text, _ in judged],
        [[said] for said, _, _ in judged],
        encode,
        without_medium(MEDIUM_PHRASES["paper"]),
    )["sieve"]
    votes = np.array([yes for *_, yes in judged])
    fine = np.isfinite(scores)
    tau = kendalltau(votes[fine], scores[fine], variant="c").statistic
    print(f"  Kendall tau-c with human judgments of {fine.sum():,} pairs: {tau:.3f}")


def _flickr_texts(data: Path) -> dict[str, str]:
    """Returns the human captions by Flickr8k's id, file name # number."""
    texts = {}
    for shard in open_pool(
        tamis.PoolSpec(path=(str(data / "pools/flickr8k-clean"),), fields=("source", "captions"))
    ).shards:
        for sample in shard.samples():
            captions = sample.given["captions"]
            captions = json.loads(captions) if isinstance(captions, str) else captions
            texts |= {f"{sample.given['source']}#{n}": text for n, text in enumerate(captions)}
    return texts


def _minmax(values: NDArray[Any]) -> NDArray[Any]:
    return (values - np.nanmin(values)) / (np.nanmax(values) - np.nanmin(values))


def _rank(values: NDArray[Any]) -> NDArray[Any]:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable") / len(values)


def _pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    return [(a, b) for n, a in enumerate(names) for b in names[n + 1 :]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with the real photographs' captions")
    parser.add_argument("--pairs", type=int, default=10_000, help="of the lab, a fifth of each kind")
    asked = parser.parse_args()
    if asked.data:
        photographs(asked.data)
    if asked.pairs:
        with tempfile.TemporaryDirectory() as folder:
            lab(Path(folder), asked.pairs)


if __name__ == "__main__":
    main()
