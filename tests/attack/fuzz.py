"""Fuzzes a reader with atheris: `python tests/attack/fuzz.py tar --seconds 600`.

Readers: those of `targets.py`: tar, image, table, npz, json, recipe, expression, subset. An input that
ends in anything but a value or one of our own errors, in more than 1.5 GiB or in more than 30 seconds, is written to
tests/attack/found/READER, where `test_fuzz.py` tries it in every run of the suite from then on. atheris comes with
`pip install tamis[attack]`; it has wheels for Linux.
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
    from targets import TARGETS, mended, seeds


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

        def mutated(data: bytes, most: int, seed: int) -> bytes:
            changed: bytes = atheris.Mutate(data, most)
            return mended(given.reader, changed) if seed % 4 else changed  # a wrong checksum is an attack as well

        custom = {"custom_mutator": mutated} if given.reader in ("tar", "image") else {}
        atheris.Setup([sys.argv[0], *flags, corpus, str(found)], TARGETS[given.reader], **custom)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
