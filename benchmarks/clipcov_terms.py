"""What each term of ClipCov's objective does to the cross-covariance that the objective is derived from.

A lab pool with Zipf classes, scored with lab/clip, classes by zero-shot classification. Beside random shares (the mean
of five) stand the terms alone, which `clipcov` does not offer all, and F_class with the similarity of chosen pairs
weighted as keeping the classes' centres would ask for: more, by the size of the pool through that of the subset. Prints
a table in Markdown.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import tamis
from benchmarks.measure import Case, finish, options
from tamis.data import Device
from tamis.lab import make_pool
from tamis.lab.world import OBJECTS
from tamis.math import clipcov
from tamis.models.class_names import class_vectors, templates_of

Array = np.ndarray[Any, Any]

SHARES = (0.05, 0.10, 0.20, 0.30)
DRAWS = 5
MODEL = "lab/clip"
COLUMNS = ("covariance error", "up to scale", "inside classes", "size", "class centre error")

#: Rows of the table: the terms, "self" and "class" being the two of "cov", and what the similarity of chosen pairs is
#: multiplied by (None: by pool through subset).
WAYS: dict[str, tuple[tuple[str, ...], float | None]] = {
    "F_self (CLIP score)": (("self",), 1.0),
    "F_class": (("class",), 1.0),
    "F_cov": (("self", "class"), 1.0),
    "F_cov + F_inter - F_class_reg": (("self", "class", "class_reg", "inter"), 1.0),
    "F_ClipCov, all terms": (("self", "class", "label", "class_reg", "inter"), 1.0),
    "F_class, similarity of chosen pairs times 1 / share": (("class",), None),
}


def pairs(folder: Path, count: int) -> tuple[Array, Array]:
    """Returns images and captions of a lab pool as lab/clip embeds them: two (n, d) float32."""
    pool = folder / f"terms-pool-{count}"
    if not pool.exists():
        print(f"drawing {count:,} pairs under {pool}", file=sys.stderr)
        make_pool(pool, pairs=count)
    run = tamis.score(
        pool, run=folder / f"terms-run-{count}", scores=[{"clip": {"model": MODEL}}], keep=["embeddings"], quiet=True
    )
    judged = np.flatnonzero(~np.isnan(run.to_numpy("clip")))
    images, texts = (run.table().vectors(f"{side}_embedding", judged).astype(np.float32) for side in ("image", "text"))
    return images, texts


def chosen(images: Array, texts: Array, members: dict[int, Array], labels: Array, way: str, count: int) -> Array:
    """Returns the rows that the greedy algorithm takes with some terms of the objective."""
    terms, factor = WAYS[way]
    factor = sum(map(len, members.values())) / count if factor is None else factor
    means = {k: (images[rows].mean(0), texts[rows].mean(0)) for k, rows in members.items()}
    sizes = [len(rows) for rows in members.values()]
    cross = np.average([2 * image @ text for image, text in means.values()], weights=sizes)
    near = np.average([means[k][1] @ labels[k] for k in members], weights=sizes)
    alpha = clipcov.measured_alpha(float(cross), float(near))
    mean_of_all = [np.sum([each[side] for each in means.values()], axis=0) for side in (0, 1)]
    picks, ties = [], []
    for k, rows in members.items():
        mine, captions = images[rows], texts[rows]
        others = [(mean_of_all[side] - means[k][side]) / (len(members) - 1) for side in (0, 1)]
        asked = tuple(term for term in terms if term in clipcov.TERMS) + (("cov",) if "class" in terms else ())
        gains = np.zeros(len(rows))
        if asked:
            gains = clipcov.modular_gains(
                mine, captions, terms=asked, label=labels[k], alpha=alpha, others=(others[0], others[1])
            )
        own = 2 * clipcov.own_cosines(mine, captions)
        gains += own * (("self" in terms) - ("class" in terms))  # the formula's "cov" holds F_self already
        weight = factor * clipcov.pair_weight(len(rows)) if "class" in terms else 0.0
        picks.append(clipcov.greedy(mine, captions, gains, weight=weight, count=count))
        ties.append(rows[picks[-1].rows].astype(np.uint64))
    which, places, _ = clipcov.merge(picks, ties, count)
    everybody = list(members.values())
    return np.array([everybody[k][picks[k].rows[place]] for k, place in zip(which, places, strict=True)])


def errors(images: Array, texts: Array, kind: Array, rows: Array) -> tuple[float, ...]:
    """Returns the errors of the covariance as it is, up to scale and inside classes, its size, the centres' error."""
    whole, part = clipcov.covariance(images, texts), clipcov.covariance(images[rows], texts[rows])
    return (
        clipcov.covariance_error(whole, part),
        clipcov.covariance_error(whole, part, up_to_scale=True),
        inside_error(images, texts, kind, rows),
        float(np.linalg.norm(part) / np.linalg.norm(whole)),
        centre_error(images, texts, kind, rows),
    )


def inside_error(images: Array, texts: Array, kind: Array, rows: Array) -> float:
    """Returns the root mean square, over pairs, of the error of their class's own covariance, through that of its size.

    Classes of which fewer than two pairs are chosen do not count.
    """
    moved = size = 0.0
    for k in np.unique(kind[rows]):
        part, whole = rows[kind[rows] == k], np.flatnonzero(kind == k)
        if part.size > 1:
            mine, all_ = (clipcov.covariance(images[some], texts[some]) for some in (part, whole))
            moved += whole.size * float(np.sum((mine - all_) ** 2))
            size += whole.size * float(np.sum(all_**2))
    return float(np.sqrt(moved / size)) if size else float("nan")


def centre_error(images: Array, texts: Array, kind: Array, rows: Array) -> float:
    """Returns how far the centres of the classes move, on average over those of which something is chosen."""
    moved = []
    for k in np.unique(kind[rows]):
        part, whole = rows[kind[rows] == k], np.flatnonzero(kind == k)
        centres = [(images[some].mean(0), texts[some].mean(0)) for some in (whole, part)]
        moved.append(clipcov.centre_error(centres[0], centres[1]))
    return float(np.mean(moved))


def main() -> None:
    asked = options(__doc__ or "")
    with tempfile.TemporaryDirectory(dir=asked.folder) as temporary:
        images, texts = pairs(Path(asked.folder or temporary), 1_500 if asked.quick else 12_000)
        labels = class_vectors(MODEL, tuple(OBJECTS), templates_of("photo"), Device())
        kind = (images @ labels.T).argmax(1)
        members = {int(k): np.flatnonzero(kind == k) for k in np.unique(kind)}
        rng = np.random.default_rng(0)
        cases, lines = [], []
        for share in SHARES:
            count = round(share * len(images))
            draws = [errors(images, texts, kind, rng.permutation(len(images))[:count]) for _ in range(DRAWS)]
            found = {"random": tuple(np.mean(draws, axis=0).tolist())}
            for way in WAYS:
                found[way] = errors(images, texts, kind, chosen(images, texts, members, labels, way, count))
            for way, numbers in found.items():
                shown = dict(zip(COLUMNS[1:], numbers[1:], strict=True)) | {"pairs": count}
                cases.append(Case(f"{way} at {100 * share:.0f} %", COLUMNS[0], numbers[0], None, None, "-", shown))
                lines.append(f"| {100 * share:.0f} % | {way} | {' | '.join(f'{each:.3f}' for each in numbers)} |")
        finish("clipcov_terms", cases, asked.json)
        if not asked.json:
            print(f"\n| share | chosen by | {' | '.join(COLUMNS)} |")
            print("|---" * (2 + len(COLUMNS)) + "|")
            print("\n".join(lines))


if __name__ == "__main__":
    main()
