"""Trains the built-in models again: `python -m tools.lab_models --out models --only lab/language-model`."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path

from tools.lab_models.building import BUILDS, build_models


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains the built-in models, measures them and writes their cards.")
    parser.add_argument("--out", type=Path, default=Path("models"), help="folder for the models' folders")
    parser.add_argument("--only", action="append", default=[], choices=[f"lab/{name}" for name in BUILDS])
    parser.add_argument("--device", help="cpu, cuda or cuda:1; a GPU where there is one if not given")
    parser.add_argument("--precision", help="float32 or bf16; bf16 where the hardware multiplies it if not given")
    parser.add_argument("--workers", type=int, help="processes that draw; one per core if not given")
    parser.add_argument("--effort", type=float, default=1.0, help="share of the training; below 1 only to try the code")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for built in build_models(**vars(given)):
        print(f"{built.name}: trained in {built.seconds:.0f} s")
        for metric in built.metrics.values():
            floor = "" if metric.floor is None else f", at least {metric.floor:g} is asked"
            print(f"  {metric.what}: {metric.found}{floor}")


if __name__ == "__main__":
    main()
