"""What random, clip, semdedup and clipcov keep of a pool whose classes and duplicates are known.

Writes a lab pool (Zipf classes, exact and near duplicates), scores it with lab/clip, and for 5, 10, 20 and 30 % prints
the share of classes that a subset covers, the share of duplicates it is rid of, the covariance error (also up to scale)
and how far the centres of the zero-shot classes move. Then how many duplicates `semdedup` and `distinct` drop, and how
many distinct pairs. `--pool` takes another pool whose json has `truth` and a field that duplicates share (`--group`).
The last lines are tables in Markdown; `--plot` writes an SVG.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import tamis
from benchmarks.clipcov_terms import centre_error
from benchmarks.measure import Case, finish
from tamis.lab import make_pool
from tamis.lab.world import OBJECTS
from tamis.math.clipcov import covariance, covariance_error
from tamis.math.order import round_half_up
from tamis.store import Run

Array = np.ndarray[Any, Any]

SHARES = (0.05, 0.10, 0.20, 0.30)
ERRORS = ("covariance error", "covariance error up to scale", "class centre error")
METHODS = ("random", "clip", "clip-half-random", "semdedup", "clipcov", "clipcov-share")
COLOURS = ("#888888", "#c2571a", "#d9a441", "#3b7a57", "#2456a6", "#7a9ad0")
DUPLICATES = ("exact_duplicate", "near_duplicate")


def words(run: Run, name: str) -> list[str]:
    """Returns a word column of every row."""
    table = run.table()
    found: list[str] = []
    for block in range(len(table.sizes)):
        found += [word or "" for word in table.read(block, [name])[name].to_pylist()]
    return found


def groups(run: Run, field: str, truth: Array) -> Array:
    """Returns a number that duplicates share with their original.

    Args:
        run: whose rows.
        field: a json field that they share; "caption" where they share their caption with a visual pair (many other
            captions stand twice without their pictures being copies).
        truth: the kind of each row.
    """
    if field != "caption":
        return np.unique(words(run, field), return_inverse=True)[1]
    captions = [text or "" for shard in run.shards for text in run.index(shard, ["caption"])["caption"].to_pylist()]
    copied = np.isin(truth, ("visual", *DUPLICATES))
    names = [text if same else f"row {row}" for row, (text, same) in enumerate(zip(captions, copied, strict=True))]
    return np.unique(names, return_inverse=True)[1]


def steps(method: str, n: int, rows: int, judged: int, alpha: float | None) -> list[dict[str, Any]]:
    """Returns the recipe of a method that keeps exactly n pairs of so many rows, of which so many can be judged.

    Unreadable pairs go first.
    """
    readable = {"at_least": {"score": "clip", "value": -1, "missing": "drop"}}
    half = {"top_fraction": {"score": "clip", "fraction": 0.5, "of": "pool", "missing": "drop"}}
    clipcov = {"n": n, "alpha": alpha, "double_greedy": False, "missing": "drop"}
    ways: dict[str, list[dict[str, Any]]] = {
        "random": [readable, {"random_fraction": {"fraction": n / judged}}],
        "clip": [{"top_n": {"score": "clip", "n": n, "missing": "drop"}}],
        "clip-half-random": [half, {"random_fraction": {"fraction": n / rows, "of": "pool"}}],
        "semdedup": [readable, {"semdedup": {"fraction": n / judged, "clusters": 1}}],
        "clipcov": [{"clipcov": clipcov}],
        "clipcov-share": [{"clipcov": {**clipcov, "diversity": "share"}}],
    }
    return ways[method]


def rid_of(keep: Array, truth: Array, group: Array, kind: str) -> tuple[int, int]:
    """Returns how many duplicates of a kind there are, and of how many not both they and another of the group stay."""
    rows = np.flatnonzero(truth == kind)
    stay = np.bincount(group[keep], minlength=int(group.max()) + 1)
    return rows.size, int(np.count_nonzero(~keep[rows] | (stay[group[rows]] <= 1)))


def curve(title: str, lines: dict[str, list[float]]) -> str:
    """Returns a plot of one number of each method over the shares, as SVG."""
    colours = dict(zip(METHODS, COLOURS, strict=True))
    top = max(max(values) for values in lines.values()) or 1.0
    parts = [f'<text x="20" y="18" font-size="13">{title}</text>']
    for place, (method, values) in enumerate(lines.items()):
        points = " ".join(
            f"{40 + 300 * share / SHARES[-1]:.1f},{200 - 165 * value / top:.1f}"
            for share, value in zip(SHARES, values, strict=True)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colours[method]}" stroke-width="2"/>')
        parts.append(f'<text x="356" y="{40 + 16 * place}" fill="{colours[method]}" font-size="12">{method}</text>')
    for share in SHARES:
        x = 40 + 300 * share / SHARES[-1]
        parts.append(f'<text x="{x:.1f}" y="218" font-size="11" text-anchor="middle">{100 * share:.0f} %</text>')
    parts.append('<path d="M40 30 V200 H345" fill="none" stroke="#444"/>')
    for y, value in ((40, top), (204, 0.0)):
        parts.append(f'<text x="36" y="{y}" font-size="11" text-anchor="end">{value:.2g}</text>')
    return "".join(parts)


def plot(figures: dict[str, dict[str, list[float]]]) -> str:
    """Returns all curves as an SVG on white, so that it can be read on a dark page too."""
    drawn = {name: lines for name, lines in figures.items() if not np.isnan(lines["clip"]).any()}
    body = "".join(
        f'<g transform="translate({480 * (place % 3)} {230 * (place // 3)})">{curve(name, lines)}</g>'
        for place, (name, lines) in enumerate(drawn.items())
    )
    size = f'width="{480 * min(len(drawn), 3)}" height="{230 * -(-len(drawn) // 3)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
        f'<rect {size} fill="#ffffff"/>{body}</svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller, honest size")
    parser.add_argument("--json", action="store_true", help="print the results as one line of JSON at the end")
    parser.add_argument("--pool", default=None, help="another pool than the lab's")
    parser.add_argument("--group", default="scene", help="the json field that duplicates share, or caption")
    parser.add_argument("--model", default="lab/clip", help="a CLIP checkpoint")
    parser.add_argument("--pairs", type=int, default=None, help="of the lab's pool")
    parser.add_argument("--epsilon", type=float, default=0.08, help="of semdedup, for the table of duplicates")
    parser.add_argument("--distance", type=int, default=8, help="of distinct, for the table of duplicates")
    parser.add_argument("--plot", default=None, help="write the curves here, as SVG")
    parser.add_argument("--folder", default=None, help="where to put the data; a temporary folder by default")
    asked = parser.parse_args()
    pairs = asked.pairs or (1_500 if asked.quick else 12_000)
    with tempfile.TemporaryDirectory(dir=asked.folder) as temporary:
        root = Path(asked.folder or temporary)
        pool = Path(asked.pool) if asked.pool else root / f"cover-pool-{pairs}"
        if not asked.pool and not pool.exists():
            print(f"drawing {pairs:,} pairs under {pool}", file=sys.stderr)
            make_pool(pool, pairs=pairs)
        fields = ("truth", *(() if asked.group == "caption" else (asked.group,)), *(() if asked.pool else ("objects",)))
        names = root / "names.txt"
        names.write_text("".join(f"{name}\n" for name in OBJECTS), encoding="utf-8")
        run = tamis.score(
            tamis.PoolSpec(path=str(pool), fields=fields),
            run=root / f"cover-run-{pool.name}",
            scores=[
                {"clip": {"model": asked.model}},
                {"zero_shot_class": {"model": asked.model, "classes_from": str(names)}},
                "image_hash",
            ],
            keep=["embeddings"],
            quiet=True,
        )
        truth = np.array(words(run, "truth"))
        group = groups(run, asked.group, truth)
        classes = (
            [(json.loads(word) or [""])[0] if word else "" for word in words(run, "objects")]
            if not asked.pool
            else None
        )
        judged = ~np.isnan(run.to_numpy("clip"))
        table = run.table()
        everything = np.flatnonzero(judged)
        held = []
        for side in ("image_embedding", "text_embedding"):
            vectors = table.vectors(side, everything).astype(np.float32)
            held.append(np.zeros((len(run), vectors.shape[1]), np.float32))
            held[-1][everything] = vectors
        images, texts = held
        whole = covariance(images[judged], texts[judged])
        kind = np.unique(words(run, "zero_shot_class"), return_inverse=True)[1][judged]

        cases: list[Case] = []
        figures: dict[str, dict[str, list[float]]] = {
            name: {method: [] for method in METHODS} for name in ("classes covered", "duplicates gone", *ERRORS)
        }
        rows = []
        # The lab's names say nothing of other pictures, and their cosines with captions give no ratio.
        alpha = 0.5 if asked.pool else None
        for share in SHARES:
            for method in METHODS:
                recipe = steps(method, round_half_up(share, len(run)), len(run), int(judged.sum()), alpha)
                keep = tamis.select(run, {"select": recipe}).keep
                gone = [rid_of(keep, truth, group, kind) for kind in DUPLICATES]
                covered = float("nan")
                if classes is not None:
                    named = np.array(classes)
                    there = set(named[judged].tolist()) - {""}
                    covered = len(set(named[keep].tolist()) & there) / len(there)
                part = covariance(images[keep], texts[keep])
                centres = centre_error(images[judged], texts[judged], kind, np.flatnonzero(keep[judged]))
                errors = (covariance_error(whole, part), covariance_error(whole, part, up_to_scale=True), centres)
                rid = sum(count for _, count in gone) / max(sum(size for size, _ in gone), 1)
                for name, value in zip(figures, (covered, rid, *errors), strict=True):
                    figures[name][method].append(value)
                rows.append((share, method, int(keep.sum()), covered, rid, errors))
                settings = {"share": share, "duplicates gone": rid, "kept": int(keep.sum())}
                settings |= dict(zip(ERRORS[1:], errors[1:], strict=True))
                if classes is not None:
                    settings["classes covered"] = covered
                cases.append(Case(f"{method} at {100 * share:.0f} %", ERRORS[0], errors[0], None, None, "-", settings))

        alone = []
        ways: dict[str, dict[str, Any]] = {
            f"semdedup, epsilon {asked.epsilon:g}": {"semdedup": {"epsilon": asked.epsilon, "clusters": 1}},
            f"distinct, {asked.distance} bits": {"distinct": {"distance": asked.distance}},
            "distinct, equal hashes": {"distinct": {"distance": 0}},
        }
        there = judged if asked.pool is None else np.ones(len(run), bool)
        several = np.bincount(group)[group] > 1
        for name, way in ways.items():
            ((step, settings),) = way.items()
            keep = tamis.select(run, {"select": [{step: {**settings, "missing": "drop"}}]}).keep
            gone = [rid_of(keep, truth, group, kind) for kind in DUPLICATES]
            single = ~several & there & judged
            lost = float((single & ~keep).sum() / max(single.sum(), 1))
            exact, near = (count / max(size, 1) for size, count in gone)
            alone.append((name, exact, near, lost))
            shares = {"exact duplicates dropped": exact, "near duplicates dropped": near}
            cases.append(
                Case(
                    name,
                    "share of distinct pairs dropped",
                    lost,
                    None,
                    None,
                    "< 0.02; exact >= 0.95, near >= 0.80",
                    {**shares, **{kind: size for kind, (size, _) in zip(DUPLICATES, gone, strict=True)}},
                )
            )
        finish("lab_cover", cases, False)
        print(f"\n| share | method | pairs | classes covered | duplicates gone | {' | '.join(ERRORS)} |")
        print("|---" * (5 + len(ERRORS)) + "|")
        for share, method, kept, covered, rid, errors in rows:
            shown = "-" if np.isnan(covered) else f"{100 * covered:.0f} %"
            numbers = " | ".join(f"{error:.3f}" for error in errors)
            print(f"| {100 * share:.0f} % | {method} | {kept:,} | {shown} | {100 * rid:.0f} % | {numbers} |")
        print("\n| step | exact duplicates dropped | near duplicates dropped | distinct pairs dropped |")
        print("|---|---|---|---|")
        for name, exact, near, lost in alone:
            print(f"| {name} | {100 * exact:.1f} % | {100 * near:.1f} % | {100 * lost:.2f} % |")
        if asked.plot:
            Path(asked.plot).write_text(plot(figures), encoding="utf-8")
        if asked.json:
            finish("lab_cover", cases, True)


if __name__ == "__main__":
    main()
