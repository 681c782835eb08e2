"""Repeating a finished command, and memory while a pool grows.

A run of 1,000 shards that is complete: the same command again, as a whole process. And the peak memory of scoring a
pool and one ten times as large.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Case, child, finish, options
from tamis.lab import make_pool

SCORE = """
import sys
import tamis
from benchmarks.measure import self_measured
if __name__ == "__main__":
    self_measured(lambda: {"rows": len(tamis.score(
        sys.argv[1], run=sys.argv[2], signals=["caption_length", "image_size", "language"], quiet=True))})
"""


def main() -> None:
    asked = options(__doc__ or "")
    shards, small = (200, 1_000) if asked.quick else (1_000, 2_000)
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        root = Path(folder)
        make_pool(root / "many", pairs=shards * 2, shard_size=2, defects=False)
        signals = "caption_length,image_size,language"
        command = [sys.executable, "-m", "tamis", "score", str(root / "many"), "--run", str(root / "run"), "-q"]
        seconds = []
        for _ in range(4):
            start = time.perf_counter()
            subprocess.run([*command, "--signals", signals], check=True, capture_output=True)
            seconds.append(time.perf_counter() - start)
        cases = [
            Case(
                f"finished run of {shards} shards, again",
                "seconds",
                min(seconds[1:]),
                seconds[0],
                seconds[0] / min(seconds[1:]),
                "< 2 s",
                {"baseline": "the first run"},
            )
        ]
        make_pool(root / "small", pairs=small, shard_size=500, defects=False)
        make_pool(root / "large", pairs=small * 10, shard_size=500, defects=False)
        one = child(SCORE, str(root / "small"), str(root / "run-small"))
        ten = child(SCORE, str(root / "large"), str(root / "run-large"))
        settings = {"pairs": small, "ten times": small * 10}
        ours, base = ten.peak_bytes / 2**20, one.peak_bytes / 2**20
        cases.append(Case("peak memory, pool ten times as large", "MiB", ours, base, base / ours, "about 1", settings))
        finish("resume", cases, asked.json)


if __name__ == "__main__":
    main()
