"""Steps and derived signals that read stored embeddings and scores, on 12.8 million rows x 512: time and peak memory.

Growth is in CPU seconds, against a tenth of the rows. Each case runs in a process of its own. The peak counts pages of
embeddings that are mapped into memory, which the system can take back. `clip_loss` and `norm_sim_d` run at settings
that take hours less than the published ones, `not_in` and `norm_sim` with 2,000 references. Images stand for captions
too. `--folder` keeps the data (15 GB) for another call.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.measure import Case, child, finish, options
from benchmarks.runs import write_description, write_manifest, write_rows
from tamis.data import Column
from tamis.derived import DERIVED
from tamis.math.similarity import unit_rows
from tamis.selectors import SELECTORS, run_steps
from tamis.store import open_run
from tamis.store.checked import write_array
from tamis.store.parts import write_scores

PART = 100_000
CENTRES = 2_000
REFERENCES = 2_000
EMBEDDING = "image_embedding"
COLUMNS = (
    *(Column(name, "", "high") for name in ("clip", "generated_clip", "on_list")),
    *(Column(name, "", "neither", kind="word") for name in ("entries", "generated_caption", "top_language")),
)

#: Settings of each case by the name of the step or derived signal; FOLDER is where references and concepts are.
CASES: dict[str, dict[str, Any]] = {
    "clip_loss": {"text": EMBEDDING, "batch": 1024, "repeats": 1},
    "norm_sim": {"targets": "FOLDER/references.npy", "norm": 2},
    "mix": {"terms": {"clip": 0.6, "generated_clip": 0.4}},
    "vote": {"scores": ("clip", "generated_clip")},
    "concept_weight": {"concepts": "FOLDER/concepts.npy"},
    "sample": {"score": "clip", "fraction": 1.0},
    "balance": {"tail": 0.2},
    "density": {"fraction": 0.277, "clusters": 100},
    "d2": {"score": "clip", "fraction": 0.3},
    "norm_sim_d": {"fraction": 0.2, "rounds": 5},
    "choose_caption": {},
    "not_in": {"reference": "FOLDER/references.npy", "embedding": EMBEDDING, "hashes": False},
    "hash_match": {"missing": "drop"},
}


def _words(rng: np.random.Generator, rows: int) -> list[str]:
    """Returns three entries of each of so many captions, few of which are frequent."""
    drawn = (20_000 * rng.random((3, rows)) ** 4).astype(np.int64) + np.arange(0, 60_000, 20_000)[:, None]
    words: list[str] = pc.binary_join_element_wise(
        *(pa.array(some).cast(pa.string()) for some in drawn), "\t"
    ).to_pylist()
    return words


def write_run(folder: Path, rows: int, width: int) -> None:
    """Writes a run of embeddings around centres, with scores and words."""
    if (folder / "run.json").exists():
        return
    rng = np.random.default_rng(1)
    centres = unit_rows(rng.normal(size=(CENTRES, width)))
    scores, names = folder / "scores" / "given-0000000000000000", []
    for start in range(0, rows, PART):
        count, name = min(PART, rows - start), f"{start // PART:05d}"
        kinds = (CENTRES * rng.random(count) ** 2).astype(np.int64)  # some clusters are much larger
        noise = rng.standard_normal((count, width), np.float32) * np.float32(0.9 / np.sqrt(width))
        digest = write_rows(folder, name, rng.integers(0, 2**64, (count, 2), dtype=np.uint64))
        store = folder / "embeddings" / f"{EMBEDDING}-0000000000000000"
        write_array(store / f"{name}.npy", unit_rows(centres[kinds] + noise).astype(np.float16), uids=digest)
        values: dict[str, Any] = {
            "clip": rng.normal(0.25, 0.05, count),
            "generated_clip": rng.normal(0.28, 0.03, count),
            "on_list": (rng.random(count) < 0.001).astype(float),
            "entries": _words(rng, count),
            "generated_caption": ["a picture"] * count,
            "top_language": rng.choice(["en", "de", "fr"], count).tolist(),
        }
        write_scores(scores / f"{name}.parquet", COLUMNS, values, [None] * count, uids=digest)
        names.append(name)
    write_description(scores, "given", COLUMNS)
    near = centres[rng.integers(0, CENTRES, REFERENCES)] + rng.normal(0, 0.9 / np.sqrt(width), (REFERENCES, width))
    np.save(folder / "references.npy", unit_rows(near))
    np.save(folder / "concepts.npy", centres)
    write_manifest(folder, names)


def one(folder: str, name: str, settings: str) -> dict[str, Any]:
    """Computes one derived signal, or applies one step to all rows."""
    table, given = open_run(folder).table(), json.loads(settings.replace("FOLDER", folder))
    given = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    if name in SELECTORS:  # first, as hash_match is both
        return {"rows": len(table), "kept": run_steps(table, [SELECTORS.named(name)(**given)]).funnel[0]["kept"]}
    made = DERIVED.named(name)(**given).compute(table, lambda _, make: make())
    return {"columns": len(made), "rows": len(table)}


CODE = """
import sys
from benchmarks.measure import self_measured
from benchmarks.steps import one
self_measured(lambda: one(*sys.argv[1:]))
"""


def main() -> None:
    known = [name for name in CASES if name in DERIVED or name in SELECTORS]
    asked = options(__doc__ or "", known, rows=12_800_000, width=512)
    most = asked.rows // 100 if asked.quick else asked.rows
    folders = {}
    with tempfile.TemporaryDirectory(dir=asked.folder) as temporary:
        root = Path(asked.folder or temporary)
        for rows in (most // 10, most):
            folders[rows] = root / f"steps-{rows}-{asked.width}"
            print(f"writing {rows:,} rows under {root}", file=sys.stderr)
            write_run(folders[rows], rows, asked.width)
        cases = []
        for name in [asked.only] if asked.only else known:
            done = [child(CODE, str(folder), name, json.dumps(CASES[name])) for folder in folders.values()]
            facts = [json.loads(each.output.strip().splitlines()[-1]) for each in done]
            cpu = [each["cpu_seconds"] for each in facts]
            settings = {
                **{key: facts[1][key] for key in ("rows", "kept", "columns") if key in facts[1]},
                "settings": CASES[name],
                "CPU seconds at a tenth and at all": [round(each, 1) for each in cpu],
                "peak GiB": [round(each.peak_bytes / 2**30, 2) for each in done],
                "growth from a tenth": round(cpu[1] / cpu[0], 1),
            }
            cases.append(Case(name, "seconds", done[1].seconds, None, None, "-", settings))
            print(f"{name}: {done[1].seconds:.1f} s", file=sys.stderr)
        finish("steps", cases, asked.json)


if __name__ == "__main__":
    main()
