"""Fuzzes a reader with atheris: `python tests/attack/fuzz.py tar --seconds 600`.

Readers: tar, image, table, recipe, expression. An input that ends in anything but a value or one of our own errors, in
more than 1.5 GiB or in more than 30 seconds, is written to tests/attack/found/READER, where `test_fuzz.py` tries it in
every run of the suite from then on. atheris comes with `pip install tamis[attack]`; it has wheels for Linux.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
import tempfile
from pathlib import Path

import atheris

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

with atheris.instrument_imports(include=["tamis"]):
    from targets import TARGETS, seeds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("reader", choices=sorted(TARGETS))
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    found = HERE / "found" / given.reader
    found.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tamis-corpus-") as corpus:
        for data in seeds(given.reader):
            (Path(corpus) / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
        settings = {
            "max_total_time": given.seconds,
            "seed": given.seed,
            "timeout": 30,
            "rss_limit_mb": 1536,
            "max_len": 20_000,
            "artifact_prefix": f"{found}/",
            "print_final_stats": 1,
        }
        flags = [f"-{name}={value}" for name, value in settings.items()]
        atheris.Setup([sys.argv[0], *flags, corpus, str(found)], TARGETS[given.reader])
        atheris.Fuzz()


if __name__ == "__main__":
    main()
