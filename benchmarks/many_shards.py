"""A run of 128,000 shards, 1.28 billion pairs: plan and status; and choosing from as many rows, extrapolated.

The parts are empty and say that they hold 10,000 rows each: what counts here is what many files cost. Choosing is
measured on 128 million rows in shards of 10,000, and told for 1.28 billion by the number of shards, with the bytes it
reads.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import Case, child, finish, options
from benchmarks.select import COLUMNS, RECIPE, write_run
from tamis.storage import write_json
from tamis.store import checked, parts
from tamis.store.checked import with_hash
from tamis.store.manifest import write_shards

ROWS = 10_000
NAME = "@@@@@@"

STATUS = """
import sys
from pathlib import Path
import time
from benchmarks.measure import self_measured
from tamis.run.progress import read_status, render_status
self_measured(lambda: {"shown": render_status(read_status(Path(sys.argv[1]))), "CPU seconds": time.process_time()})
"""
PLAN = """
import sys
import time
from benchmarks.measure import self_measured
import tamis
def work():
    shown = str(tamis.plan(sys.argv[1], run=sys.argv[2], signals=["caption_length", "language"]))
    return {"shown": shown, "CPU seconds": time.process_time()}
self_measured(work)
"""
SELECT = """
import sys
from benchmarks.many_shards import counted
from benchmarks.measure import self_measured
self_measured(lambda: counted(sys.argv[1]))
"""


def counted(folder: str) -> dict[str, Any]:
    """Selects, and counts the parts that are opened for it and the bytes of their columns."""
    import tamis

    opened, size = 0, 0
    real = checked.CheckedParquet.read

    def read(self: checked.CheckedParquet, names: Any) -> Any:
        nonlocal opened, size
        found = real(self, names)
        opened, size = opened + 1, size + found.nbytes
        return found

    checked.CheckedParquet.read = read  # type: ignore[method-assign]
    kept = len(tamis.select(folder, RECIPE))
    return {"kept": kept, "parts": opened, "bytes": size, "cpu": time.process_time()}


def write_parts(folder: Path, names: list[str], table: pa.Table, *, statuses: bool) -> None:
    """Writes an empty part for each shard that tells of 10,000 rows."""
    facts = {"tamis.source": "x", "tamis.stamp": "0:0", "tamis.status.ok": str(ROWS)} if statuses else {}
    for name in names:
        said = {"tamis.shard": name, "tamis.maker": folder.name, "tamis.rows": str(ROWS), "tamis.uids": "0" * 16}
        schema = table.schema.with_metadata(said | facts)
        path = folder / f"{name}.parquet"
        checked.write_parquet(path, pa.table(table.columns, schema=schema), uids=None, row_group_size=ROWS)


def write_many(root: Path, shards: int) -> tuple[Path, Path]:
    """Writes a pool of empty tars and a run of them: all are indexed, half of them have a score."""
    import tamis

    pool, run = root / "pool", root / "run"
    names = [f"{number:06d}" for number in range(shards)]
    pool.mkdir()
    for name in names:
        (pool / f"{name}.tar").touch()
    tamis.score(pool / f"{names[0]}.tar", run=root / "one", signals=["caption_length"], quiet=True)
    facts = json.loads((root / "one" / "run.json").read_text())
    (made,) = (root / "one" / "scores").iterdir()
    index = pa.table({field.name: pa.array([], field.type) for field in parts.INDEX_FIELDS})
    scores = pa.table(
        {name: pa.array([], pa.float32()) for name in ("characters", "words")} | {"reason": pa.array([], parts.WORDS)}
    )
    write_parts(run / "index", names, index.cast(pa.schema(parts.INDEX_FIELDS)), statuses=True)
    write_parts(run / "scores" / made.name, names[: shards // 2], scores, statuses=False)
    (run / "scores" / made.name / "signal.json").write_bytes((made / "signal.json").read_bytes())
    listed = write_shards(run, {name: str(pool / f"{name}.tar") for name in names})
    write_json(run / "run.json", with_hash({**facts, "shards": listed}))
    return pool, run


def main() -> None:
    asked = options(__doc__ or "")
    shards, measured = (12_800, 100) if asked.quick else (128_000, 12_800)
    cases = []
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        root = Path(folder)
        pool, run = write_many(root, shards)
        target = "< 10 s, 1 GiB" if not asked.quick else "< 1 s, 1 GiB"

        def told(name: str, code: str, *arguments: str) -> dict[str, Any]:
            done = child(code, *arguments)
            facts = json.loads(done.output.strip().splitlines()[-1])
            settings = {"shards": shards, "pairs": shards * ROWS, "peak GiB": round(done.peak_bytes / 2**30, 2)}
            settings |= {key: value for key, value in facts.items() if key not in ("seconds", "peak_bytes", "shown")}
            settings["shown"] = str(facts.get("shown", ""))[:400]
            cases.append(Case(name, "seconds", done.seconds, None, None, target, settings))
            return facts

        told("status", STATUS, str(run))
        told("plan", PLAN, str(pool), str(run))
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        write_run(Path(folder) / "run", measured * ROWS, part=ROWS)
        done = child(SELECT, str(Path(folder) / "run"))
        facts = json.loads(done.output.strip().splitlines()[-1])
        times = 128_000 / measured
        settings = {
            "measured": f"{measured * ROWS:,} rows in {measured:,} shards: {done.seconds:.1f} s",
            "CPU seconds": round(facts["cpu"] * times),
            "columns": ", ".join(COLUMNS),
            "parts opened": round(facts["parts"] * times),
            "GB read": round(facts["bytes"] * times / 1e9, 1),
            "GB of masks and codes": round(128_000 * ROWS * 3 / 1e9, 1),
            "kept": round(facts["kept"] * times),
        }
        extrapolated = Case(
            "select from 1.28 billion rows, extrapolated", "seconds", done.seconds * times, None, None, "-", settings
        )
        cases.append(extrapolated)
    assert np.isfinite([case.ours for case in cases]).all()
    finish("many_shards", cases, asked.json)


if __name__ == "__main__":
    main()
