"""DataComp metadata: Parquet of uid, url, text and precomputed CLIP scores, with a sibling npz of CLIP embeddings.

Layout (mlfoundations/datacomp): `<stem>.parquet` and `<stem>.npz` in one folder, rows in the same order; the npz
holds b32_img, b32_txt (n, 512) and l14_img, l14_txt (n, 768), rows of unit length.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tamis.arrays import Floats
from tamis.data import Column, Device, Member, Node, Sample, Samples, Scorer
from tamis.errors import ShardError, UnreachedError
from tamis.pool.files import is_remote, open_file, stamp
from tamis.pool.remote import unreached
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
            width = next((len(row) for row in found if len(row) != self.size), None)
            if width is not None:
                raise ShardError(f"{self.array} has {width} dimensions here, and {self.size} in the pool's first file")
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
            kind = UnreachedError if unreached(error) else ShardError
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
    """Returns the embeddings of an npz that lies beside a metadata file, as float16; {} where there is none.

    Raises:
        ShardError: it cannot be read, or holds something else; the message says what.
    """
    with _opened(url) as arrays:
        shapes = _shapes(url, arrays) if arrays is not None else {}
        return {name: arrays[name].astype(np.float16) for name in shapes}


def embedding_sizes(url: str) -> dict[str, int]:
    """Returns name and width of the arrays in an npz, without reading them; {} where there is no npz.

    Raises:
        ShardError: as of `read_npz`.
    """
    with _opened(url) as arrays:
        return {name: shape[1] for name, shape in _shapes(url, arrays).items()} if arrays is not None else {}


@contextmanager
def _opened(url: str) -> Iterator[Any]:
    """Gives an open npz, or None where there is none; whatever goes wrong in the block is the file's fault."""
    if not is_remote(url) and not os.path.exists(url):
        yield None
        return
    try:
        with ExitStack() as held:
            try:
                raw = held.enter_context(open_file(url))
                arrays = np.load(raw, allow_pickle=False)
            except FileNotFoundError:
                arrays = None
            if isinstance(arrays, np.ndarray):
                raise ShardError(f"{url} is one array ({arrays.dtype}, shape {arrays.shape}) and no npz of several")
            yield held.enter_context(arrays) if arrays is not None else None
    except ShardError:
        raise
    except ValueError as error:
        if "pickled" not in str(error):
            raise _unreadable(url, error) from error
        raise ShardError(
            f"{url} is neither an npz nor an array: it is a pickle, which could run code and is not opened, or "
            "damaged. Save the embeddings with numpy.savez"
        ) from error
    except Exception as error:  # zip, zlib, header and remote errors alike
        raise _unreadable(url, error) from error


def _unreadable(url: str, error: Exception) -> ShardError:
    kind = UnreachedError if unreached(error) else ShardError
    return kind(f"{url}: the embeddings cannot be read: {type(error).__name__}: {error}")


def _shapes(url: str, arrays: Any) -> dict[str, tuple[int, int]]:
    """Returns the shape of each array of embeddings, by the headers alone.

    Raises:
        ShardError: one is no table of numbers.
    """
    read = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
    found = {}
    for name in EMBEDDINGS:
        if name in arrays:
            with arrays.zip.open(f"{name}.npy") as entry:
                shape, _, kind = read[np.lib.format.read_magic(entry)[0]](entry)
            if kind.hasobject:
                raise ShardError(
                    f"{url}: {name} holds pickled Python objects (shape {shape}), which could run code and are not "
                    "opened; embeddings are numbers: save it as an array of float16 or float32"
                )
            if kind.kind not in "fiu" or len(shape) != 2:
                raise ShardError(
                    f"{url}: {name} is {kind} of the shape {shape}; embeddings are numbers (rows, dimensions)"
                )
            found[name] = shape
    return found
