"""Runs every benchmark in turn: `python -m benchmarks.all [--quick]`."""

from __future__ import annotations

import subprocess
import sys

NAMES = ("select", "export", "stream", "feed", "resume", "many_shards", "clip_pipeline", "clipcov", "semdedup", "icc")


def main() -> None:
    for name in NAMES:
        print(f"\n{name}", flush=True)
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}", *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
