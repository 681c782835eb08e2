"""Files of embeddings made elsewhere: Parquet with lists of numbers, or a folder of memory-mapped arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from tamis.arrays import Float32s, Floats, Mask, load_array
from tamis.data import Sample
from tamis.errors import RecipeError
from tamis.ids import SUBSET_DTYPE, file_digest, parse_uid
from tamis.math.similarity import unit_rows

Side = Literal["image", "text"]
SIDES: tuple[Side, ...] = ("image", "text")

#: Embeddings from Parquet are held in memory by every worker; a folder of arrays has no limit.
_MOST_BYTES = 4 << 30

_ROWS = 65_536  # rows of Parquet that are converted at once
_UID = "S16"  # 16 bytes, most significant first: the uid, or the xxh3-128 of a key

_FORMS = (
    "it must be a Parquet file (or a folder of them) with uid or key, and image and text as lists of numbers; or a "
    "folder with image.npy and text.npy, and uid.npy (as `tamis export npy` writes), uid.txt or key.txt"
)


class Vectors:
    """Embeddings by uid or key.

    `sides` holds (m, d) arrays of any float type, "image" and "text" or one of them; `ids` the pair of each row, as
    `_UID`. Raises RecipeError if a pair has two rows or the widths differ.
    """

    def __init__(
        self, path: Path, by: Literal["uid", "key"], ids: NDArray[np.bytes_], sides: dict[Side, Floats], *, unit: bool
    ) -> None:
        self.by, self._sides, self._unit = by, sides, unit
        self._order = np.argsort(ids, kind="stable")
        self._ids = ids[self._order]
        twice = np.flatnonzero(self._ids[1:] == self._ids[:-1])
        if twice.size:
            rows = sorted(int(self._order[twice[0] + one]) + 1 for one in (0, 1))
            raise _refused(path, f"rows {rows[0]:,} and {rows[1]:,} have the same {by}")
        self.size, *others = [array.shape[1] for array in sides.values()]
        if others not in ([], [self.size]):
            raise _refused(path, f"image has {self.size} dimensions and text {others[0]}: one model makes both")

    def rows(self, side: Side, samples: Sequence[Sample]) -> Floats:
        """Returns (n, d) float16 unit rows; NaN for a pair without a usable vector (none, zeros, NaN or infinity)."""
        found = np.full((len(samples), self.size), np.nan, np.float16)
        if not samples or side not in self._sides or not len(self._ids):
            return found
        if self.by == "uid":
            ids = np.array([sample.uid for sample in samples], np.uint64).astype(">u8").view(_UID).ravel()
        else:
            ids = _hashed([sample.key for sample in samples])
        places = np.searchsorted(self._ids, ids).clip(max=len(self._ids) - 1)
        there: Mask = self._ids[places] == ids
        taken = self._sides[side][self._order[places[there]]]
        found[there] = taken if self._unit else unit_rows(taken)
        return found


def load_vectors(path: Path) -> Vectors:
    """Reads embeddings made elsewhere, once per process; RecipeError if the file is damaged or of another form."""
    return _load(path, file_digest(path))


@lru_cache(2)
def _load(path: Path, digest: str) -> Vectors:
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    try:
        if files and all(file.suffix == ".parquet" for file in files):
            return _from_parquet(path, files)
        if path.is_dir():
            return _from_arrays(path)
    except (OSError, TypeError, ValueError, pa.ArrowException) as error:
        raise _refused(path, f"it cannot be read ({type(error).__name__}: {error})") from error
    raise _refused(path, _FORMS)


def _refused(path: Path, reason: str) -> RecipeError:
    return RecipeError(f"embeddings_from: {path}: {reason}")


def _from_arrays(path: Path) -> Vectors:
    sides = {side: load_array(file, mapped=True) for side in SIDES if (file := path / f"{side}.npy").is_file()}
    names = [name for name in ("uid.npy", "uid.txt", "key.txt") if (path / name).is_file()]
    if not sides or len(names) != 1:
        raise _refused(path, _FORMS)
    by: Literal["uid", "key"] = "key" if names == ["key.txt"] else "uid"
    if names == ["uid.npy"]:
        halves = load_array(path / "uid.npy").astype(SUBSET_DTYPE, casting="equiv").view("<u8").reshape(-1, 2)
        ids = halves.astype(">u8").view(_UID).ravel()
    else:
        ids = _ids(path, by, (path / names[0]).read_text("utf-8").removesuffix("\n").split("\n"), 0)
    for side, array in sides.items():
        if array.ndim != 2 or array.dtype.kind != "f" or len(array) != len(ids):
            expected = f"floats of shape ({len(ids)}, d), a row for each of {names[0]}"
            raise _refused(path, f"{side}.npy holds {array.dtype} of shape {array.shape}, expected {expected}")
    return Vectors(path, by, ids, sides, unit=False)


def _from_parquet(path: Path, files: Sequence[Path]) -> Vectors:
    ids: list[NDArray[np.bytes_]] = []
    parts: dict[Side, list[Floats]] = {side: [] for side in SIDES}
    columns, rows, held = set(pq.read_schema(files[0]).names), 0, 0
    by: Literal["uid", "key"] = "uid" if "uid" in columns else "key"
    sides = [side for side in SIDES if side in columns]
    if by not in columns or not sides:
        raise _refused(path, _FORMS)
    for file in files:
        for batch in pq.ParquetFile(file).iter_batches(_ROWS, columns=[by, *sides]):
            ids.append(_ids(path, by, batch.column(by).to_pylist(), rows))
            for side in sides:
                width = parts[side][0].shape[1] if parts[side] else None
                parts[side].append(unit_rows(_matrix(path, side, batch.column(side), width, rows)).astype(np.float16))
                held += parts[side][-1].nbytes
            rows += len(batch)
            if held > _MOST_BYTES:
                raise _refused(
                    path,
                    f"its vectors take more than {_MOST_BYTES >> 30} GiB of memory in each worker: write them as a "
                    "folder of image.npy, text.npy and uid.npy, which are memory-mapped",
                )
    if not rows:
        raise _refused(path, "it has no rows")
    whole: dict[Side, Floats] = {side: np.concatenate(parts[side]) for side in sides}
    return Vectors(path, by, np.concatenate(ids), whole, unit=True)


def _matrix(path: Path, side: Side, column: Any, width: int | None, first: int) -> Float32s:
    """Returns lists of numbers as (n, d) float32, NaN for null; `width` is that of earlier rows."""
    if pa.types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    lists = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    if not lists or not pa.types.is_floating(column.type.value_type):
        raise _refused(path, f"the column {side!r} holds {column.type}, not lists of floats")
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), -1))
    there = lengths >= 0
    width = width or (int(lengths[there][0]) if there.any() else 0)
    if not width:
        raise _refused(path, f"the column {side!r} has no vector in its first {len(column):,} rows")
    wrong = np.flatnonzero(there & (lengths != width))
    if wrong.size:
        what = f"row {first + int(wrong[0]) + 1:,} has {lengths[wrong[0]]} numbers in {side!r}"
        raise _refused(path, f"{what}, others have {width}")
    matrix = np.full((len(column), width), np.nan, np.float32)
    matrix[there] = pc.list_flatten(column).to_numpy(zero_copy_only=False).reshape(-1, width)
    return matrix


def _ids(path: Path, by: str, texts: Sequence[Any], first: int) -> NDArray[np.bytes_]:
    for number, text in enumerate(texts, first + 1):
        if not isinstance(text, str) or (by == "uid" and parse_uid(text) is None):
            expected = "32 hex digits" if by == "uid" else "text"
            raise _refused(path, f"row {number:,}: its {by} is not {expected}")
    return np.frombuffer(bytes.fromhex("".join(texts)), _UID) if by == "uid" else _hashed(texts)


def _hashed(keys: Sequence[str]) -> NDArray[np.bytes_]:
    return np.frombuffer(b"".join(xxhash.xxh3_128_digest(key.encode()) for key in keys), _UID)
