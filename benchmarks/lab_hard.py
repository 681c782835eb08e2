"""What scores tell apart on the lab's hard pairs: `python -m benchmarks.lab_hard [--quick]`.

Draws a pool of the mix `hard` and prints the AUC of `visual` pairs against every other kind, with 95 % intervals, for
clip and tmars with the strong and the weak built-in CLIP, sieve with one and with four captions, text_match (fewer
characters are better) and icc. 1 puts every visual pair first, 0.5 sees no difference, less prefers the other kind.
Vague, half described and watermarked pairs are right: a high number there says that a filter would lose them.

Some kinds need a scene of some sort (two things, several of one), and scores differ between sorts of scenes. They are
compared with visual pairs of the same sort, so that the caption is what is judged and not the picture.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tamis
from benchmarks.known_defects import word
from benchmarks.measure import Case, finish
from tamis.data import Device
from tamis.lab import make_pool
from tamis.lab.hard import HARD_KINDS
from tamis.lab.samples import MAIN_KINDS
from tamis.math.intervals import Estimate, bootstrap
from tamis.math.ranks import auc
from tamis.models.texts.sentence import load_sentence_encoder
from tamis.signals.medium import MEDIUM_PHRASES, without_medium
from tamis.signals.sieve import alignment
from tamis.store import Run

CAPTIONS = 4
OTHERS = [kind for kind in (*MAIN_KINDS, *HARD_KINDS) if kind != "visual"]
SCORES: list[Any] = [
    {"clip": {"model": "lab/clip", "label": "clip_strong"}},
    {"clip": {"model": "lab/clip-noisy", "label": "clip_noisy"}},
    {"tmars": {"model": "lab/clip", "label": "tmars_strong"}},
    {"tmars": {"model": "lab/clip-noisy", "label": "tmars_noisy"}},
    {"sieve": {"captioner": "lab/captioner", "sampling": {"captions": CAPTIONS}}},
    "text_match",
    {"icc": {"model": "norms"}},
]


def values(run: Run) -> dict[str, NDArray[Any]]:
    """Returns the scores of every row, high for good, by what they are called in the table."""
    captions = word(run, "caption")
    generated = [texts for shard in run.shards for texts in run.texts_of("generated_captions", shard)]
    first = [None if texts is None else texts[:1] for texts in generated]
    encode, mask = load_sentence_encoder("minilm", Device()), without_medium(MEDIUM_PHRASES["paper"])
    return {
        "clip, lab/clip": run.to_numpy("clip_strong.clip"),
        "clip, lab/clip-noisy": run.to_numpy("clip_noisy.clip"),
        "tmars, lab/clip": run.to_numpy("tmars_strong.tmars"),
        "tmars, lab/clip-noisy": run.to_numpy("tmars_noisy.tmars"),
        "sieve, 1 caption": alignment(captions.tolist(), first, encode, mask)["sieve"],
        f"sieve, {CAPTIONS} captions": run.to_numpy("sieve"),
        "text_match": -run.to_numpy("text_match"),
        "icc, norms": run.to_numpy("icc"),
    }


def alike(run: Run, kind: str) -> NDArray[np.bool_]:
    """Returns which rows show a scene of which the kind could be made."""
    relations, counts = word(run, "relation"), word(run, "count").astype(int)
    fits: dict[str, Callable[[str | None, int], bool]] = {
        "wrong_count": lambda relation, count: relation is None and count > 1,
        "wrong_relation": lambda relation, count: relation not in (None, "next to"),
        "half_described": lambda relation, count: relation is not None,
    }
    if kind not in fits:
        return np.ones(len(counts), bool)
    return np.array([fits[kind](relation, count) for relation, count in zip(relations, counts, strict=True)])


def separations(run: Run) -> Mapping[str, Mapping[str, Estimate]]:
    """Returns the AUC of visual pairs against each other kind, by score."""
    truth = word(run, "truth")
    found: dict[str, dict[str, Estimate]] = {}
    for name, scores in values(run).items():
        judged = np.isfinite(scores)
        found[name] = {
            kind: bootstrap(
                auc,
                scores[(truth == "visual") & alike(run, kind) & judged],
                scores[(truth == kind) & judged],
            )
            for kind in OTHERS
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4_000, help="of the pool, a sixteenth of each hard kind")
    parser.add_argument("--quick", action="store_true", help="600 pairs")
    parser.add_argument("--json", action="store_true", help="print the results as one line of JSON at the end")
    asked = parser.parse_args()
    pairs = 600 if asked.quick else asked.pairs
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_pool(folder / "pool", pairs=pairs, seed=31, mix="hard", defects=False)
        pool = tamis.PoolSpec(path=str(folder / "pool"), fields=("truth", "relation", "count"))
        run = tamis.score(pool, run=folder / "run", scores=SCORES, keep=["captions"], quiet=True)
        truth = word(run, "truth")
        found = separations(run)
    print(f"{pairs:,} pairs of the mix hard: AUC of visual against each other kind, with 95 % intervals\n")
    print("| kind | pairs | " + " | ".join(found) + " |")
    print("|" + "---|" * (len(found) + 2))
    for kind in OTHERS:
        row = " | ".join(str(by_kind[kind]) for by_kind in found.values())
        print(f"| {kind} | {(truth == kind).sum():,} | {row} |")
    if asked.json:
        cases = [
            Case(f"{name}, {kind}", "AUC", one.value, None, None, "none", {"low": one.low, "high": one.high})
            for name, by_kind in found.items()
            for kind, one in by_kind.items()
        ]
        finish("lab_hard", cases, True)


if __name__ == "__main__":
    main()
