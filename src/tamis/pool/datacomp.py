"""DataComp metadata: Parquet of uid, url, text and precomputed CLIP scores, with a sibling npz of CLIP embeddings.

Layout (mlfoundations/datacomp): `<stem>.parquet` and `<stem>.npz` in one folder, rows in the same order; the npz
holds b32_img, b32_txt (n, 512) and l14_img, l14_txt (n, 768), rows of unit length.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tamis.arrays import Floats
from tamis.data import Column, Device, Member, Node, Sample, Samples, Scorer
from tamis.errors import ShardError, UnreachedError
from tamis.pool.files import is_remote, open_file, stamp
from tamis.pool.remote import RemoteError
from tamis.pool.source import PoolSpec, ShardReader, bounded, set_caption, set_identity, whole_number
from tamis.pool.table import parquet_rows

SCORES = ("clip_b32_similarity_score", "clip_l14_similarity_score")
EMBEDDINGS = ("b32_img", "b32_txt", "l14_img", "l14_txt")


@dataclass(frozen=True, kw_only=True)
class DataCompScores(Scorer):
    """Takes over the CLIP similarities that DataComp publishes with its metadata; no model runs.

    Emits:
        clip_b32_similarity_score, clip_l14_similarity_score: cosine of OpenAI's ViT-B/32 and ViT-L/14, in [-1, 1],
            rounded to float16 by their publishers. NaN where the table holds none.
    """

    name: ClassVar[str] = "datacomp"
    version: ClassVar[int] = 1
    host: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = tuple(
        Column(name=name, unit="cosine", better="high", about="as published in DataComp's metadata") for name in SCORES
    )

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        def scores(*, samples: Sequence[Sample]) -> dict[str, Floats]:
            return {
                name: np.array([sample.given.get(name, np.nan) for sample in samples], np.float32) for name in SCORES
            }

        return scores


@dataclass(frozen=True, kw_only=True)
class GivenEmbedding(Node):
    """Takes over one array of the npz beside the metadata: (n, d) float16, NaN rows where it holds none.

    Attributes:
        array: b32_img, b32_txt, l14_img or l14_txt.
        size: d.
    """

    version: ClassVar[int] = 1
    host: ClassVar[bool] = True
    stored_as: ClassVar[str] = "embeddings"
    array: str
    size: int

    @property
    def name(self) -> str:  # type: ignore[override]  # each array is a feature of its own name
        return self.array

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        missing = np.full(self.size, np.nan, np.float16)

        def rows(*, samples: Sequence[Sample]) -> Floats:
            found = [sample.given.get(self.array, missing) for sample in samples]
            return np.stack(found) if found else np.empty((0, self.size), np.float16)

        return rows


@dataclass(frozen=True, kw_only=True)
class DataCompShard:
    """One metadata file with its embeddings."""

    name: str
    url: str
    spec: PoolSpec

    def stamp(self) -> str:
        try:
            return f"{stamp(self.url)} {stamp(self.npz)}"
        except FileNotFoundError:  # there need be no npz; without the Parquet file this raises again
            return stamp(self.url)

    @property
    def npz(self) -> str:
        return self.url.removesuffix(".parquet") + ".npz"

    def samples(self) -> Iterator[Sample]:
        return bounded(self._samples(), self.url)

    def _samples(self) -> Iterator[Sample]:
        arrays = read_npz(self.npz)
        columns = ["uid", "key", "url", self.spec.caption or "text", "original_width", "original_height"]
        columns += [*SCORES, *self.spec.fields]
        number = -1
        try:
            with open_file(self.url) as raw:
                for number, row in enumerate(parquet_rows(raw, columns, batch=8192)):
                    yield self._sample(number, row, arrays)
        except (OSError, pa.ArrowException) as error:
            kind = UnreachedError if isinstance(error, RemoteError) else ShardError
            raise kind(f"{self.url}: cannot be read further: {error}") from error
        for name, array in arrays.items():
            if len(array) != number + 1:
                raise ShardError(f"{self.npz}: {name} has {len(array):,} rows, {self.url} {number + 1:,}")

    def _sample(self, number: int, row: Mapping[str, Any], arrays: Mapping[str, Floats]) -> Sample:
        sample = Sample(uid=(0, 0), key=str(row.get("key") or row.get("uid") or f"{number:09d}"))
        caption = row.get(self.spec.caption or "text")
        set_caption(sample, caption, f"value in the column {self.spec.caption or 'text'!r}")
        url = str(row.get("url") or "").encode()
        set_identity(sample, dict(row), url, (sample.shown_caption or "").encode(), self.spec.fields)
        sample.width = whole_number(row.get("original_width"))
        sample.height = whole_number(row.get("original_height"))
        for name in SCORES:
            if row.get(name) is not None:
                sample.given[name] = row[name]
        for name, array in arrays.items():
            if number >= len(array):
                raise ShardError(f"{self.npz}: {name} has {len(array):,} rows, {self.url} has more")
            sample.given[name] = array[number]
        return sample

    def image_member(self, members: Sequence[Member]) -> Member | None:
        return None

    def holds(self, keys: Sequence[str], members: Sequence[Sequence[Member]]) -> bool:
        return True

    def reader(self, *, whole: bool, keep_open: bool) -> ShardReader:
        raise ShardError(f"{self.url} is metadata: there are no image files to copy; export npy, parquet or keys")


def read_npz(url: str) -> dict[str, Floats]:
    """Returns the embeddings of an npz that lies beside a metadata file, as float16; {} where there is none."""
    if not is_remote(url) and not os.path.exists(url):
        return {}
    try:
        with open_file(url) as raw, np.load(raw, allow_pickle=False) as arrays:
            return {name: arrays[name].astype(np.float16) for name in EMBEDDINGS if name in arrays}
    except FileNotFoundError:
        return {}
    except Exception as error:  # zip, zlib, header and remote errors alike
        kind = UnreachedError if isinstance(error, RemoteError) else ShardError
        raise kind(f"{url}: the embeddings cannot be read: {type(error).__name__}: {error}") from error


def embedding_sizes(url: str) -> dict[str, int]:
    """Returns name and width of the arrays in an npz, without reading them; {} where there is no npz."""
    if not is_remote(url) and not os.path.exists(url):
        return {}
    try:
        with open_file(url) as raw, np.load(raw, allow_pickle=False) as arrays:
            sizes = {}
            for name in EMBEDDINGS:
                if name in arrays:
                    with arrays.zip.open(f"{name}.npy") as entry:
                        version = np.lib.format.read_magic(entry)
                        read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
                        shape, _, _ = read[version[0]](entry)
                        sizes[name] = shape[1]
            return sizes
    except FileNotFoundError:
        return {}
    except Exception as error:
        raise ShardError(f"{url}: the embeddings cannot be read: {type(error).__name__}: {error}") from error
