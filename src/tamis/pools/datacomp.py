"""DataComp metadata: Parquet of uid, url, text and precomputed CLIP scores, with a sibling npz of CLIP embeddings.

Layout (mlfoundations/datacomp): `<stem>.parquet` and `<stem>.npz` in one folder, rows in the same order; the npz
holds b32_img, b32_txt (n, 512) and l14_img, l14_txt (n, 768), rows of unit length.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tamis.core.arrays import Floats
from tamis.core.errors import PoolError, ShardError, UnreachedError, first_line
from tamis.core.files.find import is_remote, open_file, stamp
from tamis.core.files.remote import is_transient, is_unreached
from tamis.core.types import Column, Device, Node, Sample, Samples, Signal
from tamis.pools.rows import check_texts, choose_column, column_kinds, open_error
from tamis.pools.source import Pool, PoolSpec, SampleReader, rows_of
from tamis.pools.table_shards import RowRange, TableShard, piece_name, row_ranges

SCORES = ("clip_b32_similarity_score", "clip_l14_similarity_score")


@dataclass(frozen=True, kw_only=True)
class DataCompScores(Signal):
    """The CLIP similarities that DataComp publishes with its metadata; no model runs.

    Emits:
        clip_b32_similarity_score, clip_l14_similarity_score: cosine of OpenAI's ViT-B/32 and ViT-L/14, in [-1, 1],
            rounded to float16 by their publishers. NaN where the table holds none.
    """

    name: ClassVar[str] = "datacomp"
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


#: The arrays that DataComp publishes -> their dimensions.
PUBLISHED: Mapping[str, int] = {"b32_img": 512, "b32_txt": 512, "l14_img": 768, "l14_txt": 768}


@dataclass(frozen=True, kw_only=True)
class GivenEmbedding(Node):
    """One array of the npz next to the metadata: (n, d) float16, NaN rows where it holds none.

    Attributes:
        array: b32_img, b32_txt, l14_img or l14_txt.
        size: d.
    """

    host: ClassVar[bool] = True
    stored_as: ClassVar[str] = "embeddings"
    array: str
    size: int

    @property
    def name(self) -> str:  # type: ignore[override]  # each array is a feature named after it
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
class DataCompShard(TableShard):
    """One metadata file with its embeddings, or a range of their rows."""

    batch: ClassVar[int] = 4096
    marks_keys: ClassVar[bool] = False

    def stamp(self) -> str:
        try:
            return f"{super().stamp()} {stamp(self.npz)}"
        except FileNotFoundError:  # the npz is optional; a missing Parquet file raises again here
            return super().stamp()

    @property
    def npz(self) -> str:
        return self.url.removesuffix(".parquet") + ".npz"

    def columns(self) -> list[str]:
        return [*super().columns(), "url", *SCORES]

    def _samples(self) -> Iterator[Sample]:
        number = -1
        for (number, row), embeddings in zip(self.rows(), npz_rows(self.npz, self.range.first), strict=False):
            sample = self.sample(number, row)
            sample.given |= embeddings
            yield sample
        rows = self.range.first + number + 1
        for name, (size, _) in embedding_shapes(self.npz).items() if self.range.rows is None else ():
            if size != rows:
                raise ShardError(f"{self.npz}: {name} has {size:,} rows, {self.url} {rows:,}")

    def sample(self, number: int, row: Mapping[str, Any]) -> Sample:
        key = str(row.get("key") or row.get("uid") or f"{self.range.first + number:09d}")
        url, where = str(row.get("url") or "").encode(), f"column {self.caption!r}"
        blank = Sample(uid=(0, 0), key=key)
        (sample,) = rows_of(blank, row.get(self.caption), where, row, self.spec, image=url)
        sample.width, sample.height = sample.original_width, sample.original_height
        sample.given |= {name: row[name] for name in SCORES if row.get(name) is not None}
        return sample

    def reader(self, *, whole: bool, keep_open: bool) -> SampleReader:
        raise ShardError(f"{self.url} is metadata: there are no image files to copy; export npy, parquet or keys")


def metadata_pool(spec: PoolSpec, stems: Mapping[str, str]) -> Pool:
    """Returns the pool of metadata files (`stems` by URL): a large file is several shards, each a range of its rows."""

    def ranges_in(url: str) -> list[RowRange]:
        try:
            with open_file(url) as raw:
                return row_ranges([pq.read_metadata(raw).num_rows])
        except (OSError, pa.ArrowException) as error:
            if is_unreached(error):
                raise open_error(url, "metadata", error) from error
            return [RowRange()]  # damaged: its shard will report it

    with ThreadPoolExecutor(16) as threads:  # each file takes a request or two on a store
        found = dict(zip(stems, threads.map(ranges_in, stems), strict=True))
    first = next(iter(stems))
    try:
        shapes = embedding_shapes(first.removesuffix(".parquet") + ".npz")
    except ShardError as error:
        if error.__cause__ is not None and is_transient(error.__cause__):
            raise
        raise PoolError(str(error)) from error
    kinds = column_kinds(first)
    caption = choose_column("caption", spec.caption, ("text",), list(kinds), first)
    check_texts(caption, kinds, first)
    shards = tuple(
        DataCompShard(
            name=piece_name(stems[url], ranges, part), url=url, range=part, spec=spec, image=None, caption=caption
        )
        for url, ranges in found.items()
        for part in ranges
    )
    return Pool(
        spec=spec,
        kind="datacomp",
        shards=shards,
        has_images=False,
        signals=(DataCompScores(),) if any(name in kinds for name in SCORES) else (),
        features=tuple(GivenEmbedding(array=name, size=size) for name, (_, size) in shapes.items()),
    )


# ---- the embeddings in an npz, read in blocks of rows: one of half a million rows takes 2.5 GB ----------------------

#: Rows to read at once from each array.
_BLOCK = 1024

_READ_HEADER = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}

# A zip file has a header of 30 bytes before each member; its last four are the lengths of name and extra field.
_LOCAL_HEADER = 30


def npz_rows(url: str, first: int = 0) -> Iterator[Mapping[str, Floats]]:
    """Yields the rows of an npz's arrays from row `first`: (d,) float16 by name; yields {} endlessly without an npz."""
    shapes = embedding_shapes(url)
    with ExitStack() as held, _explain_errors(url):
        arrays = {name: _blocks(held, url, name, first) for name in shapes}
        while True:
            blocks = {name: next(rows, np.empty((0, 0))) for name, rows in arrays.items()}
            for row in range(_BLOCK):
                for name, block in blocks.items():
                    if row >= len(block):
                        raise ShardError(f"{url}: {name} has {shapes[name][0]:,} rows, its Parquet file has more")
                yield {name: block[row] for name, block in blocks.items()}


def _blocks(held: ExitStack, url: str, name: str, first: int) -> Iterator[Floats]:
    raw = held.enter_context(open_file(url))
    archive = held.enter_context(zipfile.ZipFile(raw))
    info = archive.getinfo(f"{name}.npy")
    source: Any = held.enter_context(archive.open(info))
    shape, by_columns, dtype = _READ_HEADER[np.lib.format.read_magic(source)[0]](source)
    if by_columns:  # stored column by column: it must be read whole
        with archive.open(info) as entry:
            whole = np.lib.format.read_array(entry, allow_pickle=False)
        yield from (whole[row : row + _BLOCK].astype(np.float16) for row in range(first, shape[0], _BLOCK))
        return
    size = dtype.itemsize * math.prod(shape[1:])
    start = source.tell() + size * first
    if first and info.compress_type == zipfile.ZIP_STORED:  # seek ourselves: zipfile would read everything before it
        raw.seek(info.header_offset + _LOCAL_HEADER - 4)
        start += info.header_offset + _LOCAL_HEADER + sum(struct.unpack("<HH", raw.read(4)))
        source = raw
    source.seek(start)
    for row in range(first, shape[0], _BLOCK):
        rows = min(_BLOCK, shape[0] - row)
        data = source.read(rows * size)
        if len(data) != rows * size:
            raise ValueError(f"{name} ends before its {shape[0]:,} rows")
        if row + rows == shape[0] and source is not raw:
            source.read(1)  # beyond the last byte, where zipfile compares the checksum
        yield np.frombuffer(data, dtype).reshape(rows, *shape[1:]).astype(np.float16)


def embedding_shapes(url: str) -> dict[str, tuple[int, int]]:
    """Returns rows and width of the arrays in an npz, by their headers; {} if there is no npz."""
    if not is_remote(url) and not os.path.exists(url):
        return {}
    found: dict[str, tuple[int, int]] = {}
    with _explain_errors(url), ExitStack() as held:
        try:
            arrays = np.load(held.enter_context(open_file(url)), allow_pickle=False)
        except FileNotFoundError:
            return {}
        if isinstance(arrays, np.ndarray):
            raise ShardError(f"{url} is one array ({arrays.dtype}, shape {arrays.shape}), not an npz of several")
        held.enter_context(arrays)
        for name in PUBLISHED:
            if name not in arrays:
                continue
            with arrays.zip.open(f"{name}.npy") as entry:
                shape, _, kind = _READ_HEADER[np.lib.format.read_magic(entry)[0]](entry)
            if kind.kind not in "fiu" or len(shape) != 2:
                what = "pickled Python objects" if kind.hasobject else str(kind)
                raise ShardError(f"{url}: {name} holds {what} of shape {shape}, expected (rows, dimensions) of numbers")
            found[name] = shape
    return found


@contextmanager
def _explain_errors(url: str) -> Iterator[None]:
    """Turns any error while an npz is read into a ShardError."""
    try:
        yield
    except ShardError:
        raise
    except Exception as error:  # zip, zlib, header and remote errors alike
        if isinstance(error, ValueError) and "pickled" in str(error):
            raise ShardError(f"{url} is a pickle, or damaged: save the embeddings with numpy.savez") from error
        # If the end cannot be read, zipfile reports 'not a zip'; the real error is its __context__.
        hidden = error.__context__ if isinstance(error, zipfile.BadZipFile) else None
        cause = hidden if isinstance(hidden, OSError) else error
        kind = UnreachedError if is_unreached(cause) else ShardError
        raise kind(f"{url}: the embeddings cannot be read: {first_line(cause)}") from cause
