"""What one more pair of each kind is worth, after the utility study of T-MARS.

A base pool gets 20 and 40 % more pairs of one kind at a time; the same model is trained on each, always with as many
samples seen. The utility of a kind is the slope of accuracy over pairs added: of pairs that hurt it is negative. As in
the paper, kinds that show nothing of their caption are added to images alone, and kinds that do to images and a third
of text-only pairs, without which a model has no reason to read. Unlike the paper's, pairs of two kinds are not variants
of one picture: each row of the run is a pair of its own.

Source: Maini et al. 2024, T-MARS (arXiv 2307.03132), section 6, figure 3 and appendix C.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamis.math.intervals import Estimate, mean

#: Of each kind: the paper's name for it and its utility, accuracy per million samples; then what it is added to.
PAPER: Mapping[str, tuple[str, float, str]] = {
    "text_only": ("S_t", -0.89, "images"),
    "mismatched": ("S_r", -0.80, "images"),
    "visual_text": ("S_it", 0.27, "images and text"),
    "visual_random_text": ("S_irt", 0.24, "images and text"),
    "visual": ("S_i", 0.23, "images and text"),
}
ADDED = (0.2, 0.4)  # of the base's images
TEXT = 0.5  # text-only pairs in the second base, for each image: 180,000 and 90,000 in the paper
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Pool:
    """A base, or a base with more pairs of one kind.

    Attributes:
        name: of the pool.
        base: which of the two.
        kind: what was added; "" for nothing.
        added: how many pairs of it.
        rows: of the run.
    """

    name: str
    base: str
    kind: str
    added: int
    rows: Rows


def pools(truth: NDArray[np.object_]) -> list[Pool]:
    """Returns the two bases, and what each kind makes of its own; smaller additions are parts of larger ones.

    Args:
        truth: (rows,) the true kind of each row; no kind of `PAPER` may be absent.
    """
    of = {kind: np.flatnonzero(truth == kind) for kind in PAPER}
    images = int(min(rows.size for rows in of.values()) / (1 + ADDED[-1]))
    texts = round(TEXT * images)
    bases = {"images": of["visual"][:images]}
    bases["images and text"] = np.concatenate([bases["images"], of["text_only"][:texts]])
    found = [Pool(name, name, "", 0, rows) for name, rows in bases.items()]
    for kind, (_, _, base) in PAPER.items():
        taken = images if kind == "visual" else 0
        for share in ADDED:
            added = of[kind][taken : taken + round(share * images)]
            name = f"{base} + {share:.0%} {kind}"
            found.append(Pool(name, base, kind, added.size, np.concatenate([bases[base], added])))
    return found


def utilities(made: Sequence[Pool], scores: Mapping[str, Mapping[int, float]]) -> dict[str, Estimate]:
    """Returns of each kind the slope of accuracy over pairs added, per thousand: the mean of least-squares slopes.

    Args:
        made: the pools.
        scores: of each pool by seed.
    """
    found = {}
    for kind, (_, _, base) in PAPER.items():
        line = [pool for pool in made if pool.base == base and pool.kind in ("", kind)]
        seeds = set.intersection(*(set(scores[pool.name]) for pool in line))
        x = np.array([pool.added / 1000 for pool in line])
        slopes = [float(np.polyfit(x, [scores[pool.name][seed] for pool in line], 1)[0]) for seed in sorted(seeds)]
        found[kind] = mean(slopes)
    return found
