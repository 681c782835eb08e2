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

from tamis.core.arrays import Float32s, Floats, Mask, load_array
from tamis.core.errors import RecipeError, first_line
from tamis.core.ids import SUBSET_DTYPE, file_digest, parse_uid
from tamis.core.math.similarity import unit_rows
from tamis.core.types import Sample

Side = Literal["image", "text"]
SIDES: tuple[Side, ...] = ("image", "text")

#: Embeddings from Parquet are held in memory by every worker; a folder of arrays has no limit.
_MOST_BYTES = 4 << 30

_UID = "S16"  # 16 bytes, most significant first: the uid, or the xxh3-128 of a key

_FORMS = (
    "it must be a Parquet file with uid or key, and image and text as lists of numbers; or a folder with image.npy, "
    "text.npy and uid.npy (as `tamis export npy` writes)"
)


class Vectors:
    """Embeddings by uid or key.

    `sides` holds (m, d) arrays of any float type, "image" and "text" or one of them; `ids` the pair of each row, as
    `_UID`. Raises RecipeError if a pair has two rows or the widths differ.
    """

    def __init__(self, path: Path, by: str, ids: NDArray[np.bytes_], sides: dict[Side, Floats]) -> None:
        self.by, self._sides = by, sides
        self._order = np.argsort(ids, kind="stable")
        self._ids = ids[self._order]
        if not len(ids):
            raise _refusal(path, "it has no rows")
        twice = np.flatnonzero(self._ids[1:] == self._ids[:-1])
        if twice.size:
            rows = sorted(int(self._order[twice[0] + one]) + 1 for one in (0, 1))
            raise _refusal(path, f"rows {rows[0]:,} and {rows[1]:,} have the same {by}")
        self.size, *others = [array.shape[1] for array in sides.values()]
        if others not in ([], [self.size]):
            raise _refusal(path, f"image has {self.size} dimensions and text {others[0]}: one model makes both")

    def rows(self, side: Side, samples: Sequence[Sample]) -> Floats:
        """Returns (n, d) float16 unit rows; NaN for a pair without a usable vector (none, zeros, NaN or infinity)."""
        found = np.full((len(samples), self.size), np.nan, np.float16)
        if not samples or side not in self._sides:
            return found
        if self.by == "uid":
            ids = np.array([sample.uid for sample in samples], np.uint64).astype(">u8").view(_UID).ravel()
        else:
            ids = _hash([sample.key for sample in samples])
        places = np.searchsorted(self._ids, ids).clip(max=len(self._ids) - 1)
        there: Mask = self._ids[places] == ids
        found[there] = unit_rows(self._sides[side][self._order[places[there]]])
        return found


def load_vectors(path: Path) -> Vectors:
    """Reads embeddings made elsewhere, once per process; RecipeError if the file is damaged or of another form."""
    return _load(path, file_digest(path))


@lru_cache(2)
def _load(path: Path, digest: str) -> Vectors:
    try:
        if path.is_dir():
            return _from_arrays(path)
        if path.suffix == ".parquet":
            return _from_parquet(path)
    except (OSError, TypeError, ValueError, pa.ArrowException) as error:
        raise _refusal(path, f"it cannot be read ({first_line(error)})") from error
    raise _refusal(path, _FORMS)


def _refusal(path: Path, reason: str) -> RecipeError:
    return RecipeError(f"embeddings_from: {path}: {reason}")


def _from_arrays(path: Path) -> Vectors:
    sides = {side: load_array(file, mapped=True) for side in SIDES if (file := path / f"{side}.npy").is_file()}
    if not sides or not (path / "uid.npy").is_file():
        raise _refusal(path, _FORMS)
    halves = load_array(path / "uid.npy").astype(SUBSET_DTYPE, casting="equiv").view("<u8").reshape(-1, 2)
    ids = halves.astype(">u8").view(_UID).ravel()
    for side, array in sides.items():
        if array.ndim != 2 or array.dtype.kind != "f" or len(array) != len(ids):
            expected = f"floats of shape ({len(ids)}, d), a row for each of uid.npy"
            raise _refusal(path, f"{side}.npy holds {array.dtype} of shape {array.shape}, expected {expected}")
    return Vectors(path, "uid", ids, sides)


def _from_parquet(path: Path) -> Vectors:
    file = pq.ParquetFile(path)
    by = "uid" if "uid" in file.schema_arrow.names else "key"
    sides = [side for side in SIDES if side in file.schema_arrow.names]
    if by not in file.schema_arrow.names or not sides:
        raise _refusal(path, _FORMS)
    groups = [file.metadata.row_group(n) for n in range(file.num_row_groups)]
    columns = [group.column(n) for group in groups for n in range(group.num_columns)]
    if 4 * sum(one.num_values for one in columns if one.path_in_schema.split(".")[0] in sides) > _MOST_BYTES:
        raise _refusal(
            path, f"its vectors take more than {_MOST_BYTES >> 30} GiB: write a folder of .npy files instead"
        )
    table = file.read(columns=[by, *sides])
    ids = table[by].to_pylist()
    for number, one in enumerate(ids, 1):
        if not isinstance(one, str) or (by == "uid" and parse_uid(one) is None):
            expected = "32 hex digits" if by == "uid" else "text"
            raise _refusal(path, f"row {number:,}: its {by} is not {expected}")
    numbers = np.frombuffer(bytes.fromhex("".join(ids)), _UID) if by == "uid" else _hash(ids)
    return Vectors(path, by, numbers, {side: _matrix(path, side, table[side]) for side in sides})


def _matrix(path: Path, side: Side, column: Any) -> Float32s:
    """Returns lists of numbers as (n, d) float32, NaN for null."""
    kinds = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_kind(column.type) for is_kind in kinds) or not pa.types.is_floating(column.type.value_type):
        raise _refusal(path, f"the column {side!r} holds {column.type}, not lists of floats")
    column = column.cast(pa.large_list(pa.float32())).combine_chunks()
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0))
    width = int(lengths.max(initial=0))
    if not width:
        raise _refusal(path, f"the column {side!r} has no vector")
    wrong = np.flatnonzero((lengths != 0) & (lengths != width))
    if wrong.size:
        what = f"row {int(wrong[0]) + 1:,} has {lengths[wrong[0]]} numbers in {side!r}"
        raise _refusal(path, f"{what}, others have {width}")
    matrix = np.full((len(column), width), np.nan, np.float32)
    matrix[lengths != 0] = pc.list_flatten(column).to_numpy(zero_copy_only=False).reshape(-1, width)
    return matrix


def _hash(keys: Sequence[str]) -> NDArray[np.bytes_]:
    return np.frombuffer(b"".join(xxhash.xxh3_128_digest(key.encode()) for key in keys), _UID)
