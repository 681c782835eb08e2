"""A table whose columns are drawn as they are read, for pools that no disk here could hold.

Every value is a function of the row's number, so blocks, single rows and other processes all see the same pool.

Images lie around 2,000 centres of very different size; captions lie around the same centres. An embedding is its
centre, plus a row of a large bank of noise, plus a row of a small one: 134 million sums, of which copies share neither
centre nor both rows by chance. Drawing new noise for each row would take ten times as long. One image in fifty is a
copy of the image of the row before it: the same embedding and thumbnails, a hash with one other bit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.runs import Array
from tamis.core.types import CLASS_NAMES, CLASS_VECTORS
from tamis.runs.table import Table

BLOCK_ROWS = 100_000
CENTRES = 2_000
NOISE = 0.9  # length of an embedding's distance from its centre, which has length 1

#: Rows of the large and of the small bank of noise, and the large one's share of the variance. A row of the large bank
#: alone does not make two images of one centre near duplicates: their cosine is 0.91.
_LARGE, _SMALL, _LARGE_SHARE = 1 << 15, 1 << 12, 0.8
#: Rows that are summed at once: they stay in the processor's cache.
_FEW = 1 << 9
_COPIES = 50  # one row in so many
_THUMBNAILS = 1 << 13
_ENTRIES = 20_000  # of each of the three entries of a caption
_LANGUAGES = ("en", "de", "fr")

NUMBERS = ("clip", "generated_clip", "on_list", "width", "height")
VECTORS = ("image_embedding", "text_embedding")
WORDS = (
    "entries", "caption", "generated_caption", "top_language", "zero_shot_class",
    "image_hash", "image_colours", "image_lightness",
)  # fmt: skip

#: What a draw is for: draws for different purposes are independent.
_UID_HIGH, _UID_LOW, _PLACE, _TEXT, _SCORE, _LIST, _WORDS, _HASH, _CROPS, _COPY, _LOOKS = range(0, 1100, 100)


class DrawnTable(Table):
    """So many rows with embeddings of so many numbers.

    Vectors and uids of single rows are drawn without the rest of their block, as a run maps embeddings into memory.
    `drawing` has the CPU seconds of each call in this process that drew something.
    """

    drawing: ClassVar[list[float]] = []

    def __init__(self, rows: int, width: int) -> None:
        self.rows, self.width = rows, width

    def __reduce__(self) -> Any:
        return DrawnTable, (self.rows, self.width)

    @cached_property
    def sizes(self) -> Sequence[int]:  # type: ignore[override]
        return [min(BLOCK_ROWS, self.rows - start) for start in range(0, self.rows, BLOCK_ROWS)]

    def kind(self, name: str) -> str:
        kinds = dict.fromkeys(NUMBERS, "number") | dict.fromkeys(VECTORS, "vector") | dict.fromkeys(WORDS, "word")
        return kinds[name]

    def read(self, block: int, names: Sequence[str]) -> dict[str, Any]:
        with self._timed():
            rows = self._rows_of(block)
            return {name: _column(name, rows, self.width) for name in names}

    def read_uids(self, block: int) -> tuple[Array, Array]:
        return self.uids(self._rows_of(block))

    def uids(self, rows: Array) -> tuple[Array, Array]:
        with self._timed():
            return draw(rows, _UID_HIGH), draw(rows, _UID_LOW)

    def block_uids(self, rows: slice) -> tuple[Array, Array]:
        return self.uids(np.arange(rows.start, rows.stop))

    def vectors(self, name: str, rows: Array) -> Array:
        with self._timed():
            values: Array = _column(name, rows, self.width)
            return values

    def side_file(self, name: str, file: str) -> Any:
        files = {CLASS_NAMES: _class_names(), CLASS_VECTORS: banks(self.width).centres}
        return files[file] if name == "zero_shot_class" else None

    @contextmanager
    def _timed(self) -> Iterator[None]:
        start = time.thread_time()
        yield
        self.drawing.append(time.thread_time() - start)

    def _rows_of(self, block: int) -> Array:
        start = block * BLOCK_ROWS
        return np.arange(start, start + self.sizes[block])


class Banks(NamedTuple):
    """What embeddings are sums of: unit rows, and two kinds of noise; float32 (n, width)."""

    centres: Array
    large: Array
    small: Array


@lru_cache(maxsize=1)
def banks(width: int) -> Banks:
    """Returns the banks for embeddings of so many numbers."""
    rng = np.random.default_rng(1)
    centres = rng.standard_normal((CENTRES, width), np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    large, small = (
        rng.standard_normal((rows, width), np.float32) * np.float32(NOISE * np.sqrt(share / width))
        for rows, share in ((_LARGE, _LARGE_SHARE), (_SMALL, 1 - _LARGE_SHARE))
    )
    return Banks(centres, large, small)


def draw(rows: Array, purpose: int) -> Array:
    """Returns a random uint64 for each row number: (n,)."""
    # The finaliser of splitmix64; numbers of different purposes are far apart.
    with np.errstate(over="ignore"):
        x = (rows.astype(np.uint64) + np.uint64(purpose << 40)) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def _uniform(rows: Array, purpose: int) -> Array:
    """Returns two random numbers for each row: (2, n) float32 in (0, 1]."""
    halves = draw(rows, purpose).view(np.uint32).reshape(-1, 2).T
    numbers: Array = (halves.astype(np.float32) + np.float32(1)) * np.float32(2**-32)
    return numbers


def _normal(rows: Array, purpose: int, mean: float, deviation: float) -> Array:
    one, other = _uniform(rows, purpose)  # Box and Muller
    normal: Array = np.sqrt(-2 * np.log(one)) * np.cos(np.float32(2 * np.pi) * other)
    return np.float32(mean) + np.float32(deviation) * normal


def _copied(rows: Array) -> Array:
    """Returns which rows show the image of the row before: (n,) bool."""
    copied: Array = (draw(rows, _COPY) % np.uint64(_COPIES) == 0) & (rows > 0)
    return copied


def _centre_of(rows: Array) -> Array:
    """Returns the number of each row's centre; the largest has 2.2 % of all rows."""
    return (CENTRES * ((draw(rows, _PLACE) >> np.uint64(11)) * 2.0**-53) ** 2).astype(np.int64)


def _embeddings(rows: Array, purpose: int, width: int) -> Array:
    """Returns (n, width) float16 unit rows around the rows' centres, with noise of one purpose."""
    bank, out = banks(width), np.empty((rows.size, width), np.uint16)
    centre, noise = _centre_of(rows), draw(rows, purpose)
    large = (noise % np.uint64(_LARGE)).astype(np.int64)
    small = ((noise >> np.uint64(32)) % np.uint64(_SMALL)).astype(np.int64)
    buffers = np.empty((2, _FEW, width), np.float32)
    for start in range(0, rows.size, _FEW):
        some = slice(start, start + _FEW)
        total, part = buffers[:, : len(out[some])]
        np.take(bank.centres, centre[some], 0, total, "clip")
        total += np.take(bank.large, large[some], 0, part, "clip")
        total += np.take(bank.small, small[some], 0, part, "clip")
        # NumPy's conversion to float16 takes as long as all the rest, so we shift the bits. The factor 2^-112 turns
        # the exponent of float32 into that of float16; the sign is copied, lower bits are cut off.
        total *= (np.float32(2.0**-112) / np.sqrt(np.einsum("nd,nd->n", total, total)))[:, None]
        np.right_shift(total.view(np.uint32), 13, out=out[some], casting="unsafe")
        out[some] |= total.view(np.uint16)[:, 1::2] & np.uint16(0x8000)  # the upper half; little-endian
    return out.view(np.float16)


@lru_cache(maxsize=1)
def _class_names() -> list[str]:
    return [f"class {number}" for number in range(CENTRES)]


@lru_cache(maxsize=1)
def _entry_words() -> pa.Array:
    return pa.array([f"word{number}" for number in range(3 * _ENTRIES)])


def _joined_entries(rows: Array, separator: str) -> pa.Array:
    """Returns three words of each caption, few of which are frequent."""
    draws = np.concatenate([_uniform(rows, _WORDS), _uniform(rows, _WORDS + 1)[:1]])
    numbers = np.minimum(_ENTRIES * draws**4, _ENTRIES - 1).astype(np.int32)
    words = [_entry_words().take(pa.array(each + _ENTRIES * place)) for place, each in enumerate(numbers)]
    return pc.binary_join_element_wise(*words, separator)


def _hashes(rows: Array) -> Array:
    """Returns hashes of each image and of two crops of it, which differ in 8 bits: (n, 3) uint64."""
    copied = _copied(rows)
    shown = rows - copied
    whole = draw(shown, _HASH)
    crops = [np.bitwise_and.reduce([draw(shown, _CROPS + 10 * crop + part) for part in range(3)]) for crop in (0, 1)]
    bit = np.where(copied, np.uint64(1) << (draw(rows, _CROPS + 50) % np.uint64(64)), np.uint64(0))
    return np.stack([whole ^ bit, *(whole ^ crop for crop in crops)], axis=1)


def in_hex(hashes: Array) -> pa.Array:
    """Returns (n, m) hashes as `image_hash` emits them: m times 16 hex digits, separated by spaces."""
    n, m = hashes.shape
    letters = np.full((n, m, 17), ord(" "), np.uint8)
    letters[..., :16] = np.frombuffer(hashes.astype(">u8").tobytes().hex().encode(), np.uint8).reshape(n, m, 16)
    text = np.ascontiguousarray(letters.reshape(n, -1)[:, :-1])
    ends = np.arange(n + 1, dtype=np.int32) * text.shape[1]
    return pa.StringArray.from_buffers(n, pa.py_buffer(ends), pa.py_buffer(text))


@lru_cache(maxsize=2)
def _thumbnails(cells: int) -> pa.Array:
    rng = np.random.default_rng(cells)
    return pa.array([rng.bytes(cells).hex() for _ in range(_THUMBNAILS)])


def _some_of(words: Any, numbers: Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(numbers.astype(np.int32)), words)


def _looks(rows: Array, cells: int) -> pa.Array:
    return _some_of(_thumbnails(cells), draw(rows - _copied(rows), _LOOKS + cells) % np.uint64(_THUMBNAILS))


def _column(name: str, rows: Array, width: int) -> Any:
    """Returns a column of some rows."""
    match name:
        case "image_embedding":
            copied = _copied(rows)
            return _embeddings(rows - copied, _PLACE + 1, width)
        case "text_embedding":
            return _embeddings(rows, _TEXT, width)
        case "clip":
            return _normal(rows, _SCORE, 0.25, 0.05)
        case "generated_clip":
            return _normal(rows, _SCORE + 1, 0.28, 0.03)
        case "on_list":
            return (draw(rows, _LIST) < np.uint64(2**64 // 1000)).astype(np.float32)
        case "width" | "height":
            return np.full(rows.size, 640 if name == "width" else 480, np.float32)
        case "entries":
            return _joined_entries(rows, "\t")
        case "caption":
            return _joined_entries(rows, " ")
        case "generated_caption":
            return _some_of(pa.array(["a picture"]), np.zeros(rows.size))
        case "top_language":
            return _some_of(pa.array(_LANGUAGES), draw(rows, _WORDS + 2) % np.uint64(len(_LANGUAGES)))
        case "zero_shot_class":
            return _some_of(pa.array(_class_names()), _centre_of(rows))
        case "image_hash":
            return in_hex(_hashes(rows))
        case "image_colours":
            return _looks(rows, 128)
        case "image_lightness":
            return _looks(rows, 1024)
    raise KeyError(name)
