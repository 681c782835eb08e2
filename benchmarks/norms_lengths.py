"""Which lengths of captions stand at the top: the share of each in the best 5, 10 and 20 % beside its share of all.

A score on one scale for all lengths puts short captions at the top no more often than they are concrete; LAION's of one
or two words are mostly names, codes and brands. --data names the folder with LAION's alt-texts and Conceptual Captions'
validation set, --model what is measured. Without the folder the lab's captions are taken, which hardly has short ones.
Where the folder holds people's norms of expressions too, agreement with them is told for each length, on those that
nothing was fitted on.

--rated names a folder with the captions whose ratings `caption_ratings.json` holds by the hash of their text (LAION's
alt-texts, Conceptual Captions' validation set and COCO's captions as files, Flickr8k and pairs of the web as tars). A
language model rated them from 0 to 3 for this purpose, blind; `norms` was not fitted on them. Their agreement is told
by length and by source, with the mean of the scores beside the mean of the ratings.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import xxhash

from benchmarks.measure import Case, finish
from tamis.evaluate.concreteness import agreement
from tamis.models.device import device_for
from tamis.models.texts.norms import held_out
from tamis.models.texts.regression import load_text_regression
from tamis.pool.texts import read_texts
from tools.norms import EXPRESSION_NORMS
from tools.lab_models.vocabulary import corpus

LENGTHS = ((1, 1), (2, 2), (3, 4), (5, 7), (8, 12), (13, 20), (21, 10_000))
RATED_LENGTHS = ((1, 5), (6, 15), (16, 25), (26, 10_000), (1, 15), (16, 10_000), (1, 10_000))
SHARES = (0.05, 0.1, 0.2)
MEANINGLESS = ("asdkjh qwe", "12345", "tp-link-powerline-kit", "ZX-4410B", "IMG_2034", "xkqzt", "DSC00017.jpg")


def pools_of(folder: Path | None, most: int) -> dict[str, list[str]]:
    """Returns the captions of each pool, the first `most` of them."""
    if folder is None:
        return {"the lab": list(corpus(min(most, 5000), seed=0))}
    laion = pq.read_table(folder / "laion_alt_text_10000.parquet", columns=["TEXT"])["TEXT"].to_pylist()
    lines = (folder / "cc3m_validation.tsv").read_text(encoding="utf-8").splitlines()
    pools = {"LAION": laion, "CC3M": [line.split("\t")[0] for line in lines]}
    return {name: [text.strip() for text in texts if text and text.strip()][:most] for name, texts in pools.items()}


def shares(captions: Sequence[str], scores: Any) -> dict[str, list[float]]:
    """Returns for each group of lengths its share of all captions and of the best of `SHARES`."""
    words = np.array([len(caption.split()) for caption in captions])
    order = np.argsort(-scores, kind="stable")
    table: dict[str, list[float]] = {}
    for least, most in LENGTHS:
        inside = (words >= least) & (words <= most)
        best = [float(inside[order[: round(share * len(order))]].mean()) for share in SHARES]
        name = str(least) if least == most else f"{least} to {most}" if most < 10_000 else f"{least} and more"
        table[name] = [float(inside.mean()), *best]
    return table


def people_by_length(score: Callable[[Sequence[str]], Any], folder: Path) -> Case:
    """Compares scores with people's ratings of the expressions that are held out, by the number of words."""
    found = read_texts(folder / EXPRESSION_NORMS, text="Expression", numbers=["Mean_C"])
    ratings = found.numbers["Mean_C"]
    words = np.array([len(text.split()) for text in found.texts])
    unseen = np.array([held_out(text) for text in found.texts]) & np.isfinite(ratings)
    agreed: dict[str, str] = {}
    for name, group in {
        "1": words == 1, "2": words == 2, "3": words == 3, "4": words == 4, "5 and more": words >= 5,
    }.items():  # fmt: skip
        rows = np.flatnonzero(unseen & group)
        scores = score([found.texts[row] for row in rows])
        agreed[name] = f"{agreement(scores, ratings[rows]).spearman}, {len(rows):,} expressions"
    rows = np.flatnonzero(unseen)
    whole = agreement(score([found.texts[row] for row in rows]), ratings[rows]).spearman
    return Case(
        "unseen expressions, agreement with people", "Spearman", whole.value, None, None, "-", {"words": agreed}
    )


def captions_in(folder: Path) -> dict[str, tuple[str, str]]:
    """Returns source and text of each caption below a folder, by the hash of the text."""
    found: dict[str, tuple[str, str]] = {}

    def add(source: str, texts: Sequence[str | None]) -> None:
        for text in filter(None, ((one or "").strip() for one in texts)):
            found.setdefault(xxhash.xxh3_64_hexdigest(text.encode()), (source, text))

    for name, texts in pools_of(next(folder.rglob("laion_alt_text_10000.parquet")).parent, 10**9).items():
        add(name, texts)
    rows = json.loads(next(folder.rglob("captions_val2017.json")).read_text(encoding="utf-8"))["annotations"]
    add("COCO", [row["caption"] for row in rows])
    for path in sorted(folder.rglob("*.tar")):
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name.endswith((".txt", ".json")):
                    content = tar.extractfile(member).read().decode("utf-8", "replace")  # type: ignore[union-attr]
                    ours = member.name.endswith(".txt")
                    add(path.parent.name, [content] if ours else json.loads(content).get("captions", []))
    return found


def rated_by_length(score: Callable[[Sequence[str]], Any], folder: Path) -> list[Case]:
    """Compares scores with the ratings of captions that `norms` was not fitted on, by length and by source."""
    ratings = json.loads((Path(__file__).parent / "caption_ratings.json").read_text(encoding="utf-8"))
    there = captions_in(folder)
    chosen = [(*there[key], rating / 3) for key, rating in ratings.items() if key in there]
    sources, texts, wanted = (np.array(column) for column in zip(*chosen, strict=True))
    scores, words = np.array(score(texts.tolist()), np.float64), np.array([len(text.split()) for text in texts])
    groups = {f"{least} to {most} words": (words >= least) & (words <= most) for least, most in RATED_LENGTHS}
    groups |= {f"{name}, 16 words and more": (sources == name) & (words >= 16) for name in dict.fromkeys(sources)}
    cases = []
    for name, rows in groups.items():
        agreed = agreement(scores[rows], wanted[rows]).spearman
        settings = {
            "captions": int(rows.sum()), "Spearman": str(agreed),
            "mean score, mean rating": [round(float(one[rows].mean()), 3) for one in (scores, wanted)],
        }  # fmt: skip
        cases.append(Case(f"rated captions, {name}", "Spearman", agreed.value, None, None, "-", settings))
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with the two files of captions; without it the lab's")
    parser.add_argument("--rated", type=Path, help="folder with the captions of caption_ratings.json, anywhere below")
    parser.add_argument("--model", default="norms")
    parser.add_argument("--quick", action="store_true", help="2,000 captions of each pool")
    parser.add_argument("--captions", type=int, help="how many of each pool; by default all")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    score = load_text_regression(asked.model, device_for(None, None, None, None))
    cases = []
    for name, captions in pools_of(asked.data, asked.captions or (2000 if asked.quick else 10**9)).items():
        scores = score(captions)
        table = shares(captions, scores)
        settings: dict[str, Any] = {
            "captions": len(captions),
            "model": asked.model,
            "range of scores": [round(float(scores.min()), 3), round(float(scores.max()), 3)],
            "words: share of all, of the best 5, 10, 20 %": {
                words: " ".join(f"{100 * one:.1f}" for one in row) for words, row in table.items()
            },
        }
        short = [table["1"][place] + table["2"][place] for place in range(2)]
        cases.append(
            Case(f"{name}: captions of one or two words in the best 5 %, beside all", "share", short[1], short[0],
                 None, "no more than in all", settings)
        )  # fmt: skip
    nothing = {text: round(float(one), 3) for text, one in zip(MEANINGLESS, score(list(MEANINGLESS)), strict=True)}
    cases.append(
        Case("strings that mean nothing, the highest score", "", max(nothing.values()), None, None, "< 0.4",
             {"scores": nothing})
    )  # fmt: skip
    if asked.data is not None and (asked.data / EXPRESSION_NORMS).is_file():
        cases.append(people_by_length(score, asked.data))
    if asked.rated is not None:
        cases += rated_by_length(score, asked.rated)
    finish("norms_lengths", cases, asked.json)


if __name__ == "__main__":
    main()
