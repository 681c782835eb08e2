"""Scores a pool to export it, and reads exported shards back as the webdataset library gives them."""

import gc
import warnings
from pathlib import Path
from typing import Any

import webdataset

import tamis

Files = dict[str, bytes]


def scored(pool: Path | tamis.PoolSpec, folder: Path, **options: Any) -> tamis.Run:
    return tamis.score(pool, run=folder, signals=["caption_length"], quiet=True, **options)


def read_back(out: Path, names: str = "*.tar") -> list[tuple[str, Files]]:
    """Every sample of an exported folder as the webdataset library gives it."""
    urls = sorted(str(path) for path in out.glob(names))
    if not urls:
        return []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # webdataset leaves its files to the garbage collector
        gc.freeze()  # which need not look at the libraries that other tests have loaded
        samples = list(webdataset.WebDataset(urls, shardshuffle=False))
        gc.collect()
        gc.unfreeze()
    return [
        (sample["__key__"], {ext: data for ext, data in sample.items() if not ext.startswith("__")})
        for sample in samples
    ]
