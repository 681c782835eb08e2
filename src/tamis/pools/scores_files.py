"""Files of scores made elsewhere: Parquet, CSV, TSV, or a NumPy array of records."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from tamis.core.arrays import U64, load_array
from tamis.core.errors import check_file
from tamis.core.ids import format_uids

_FORMS = (
    "it must be Parquet, CSV or TSV with a column uid or key, a folder of such files, or a .npy array of records: the "
    "uid as two u8, then numbers"
)


def scores_file(path: Path, *, empty: bool = False) -> Any:
    """Returns a file, or a folder of files, as Arrow's table or dataset; the uids and keys of CSV are text.

    `empty`: for the schema only, without the rows of a .npy file. Raises OSError if it cannot be read, ValueError if it
    is something else (pyarrow's errors are of both).
    """
    if path.suffix == ".npy":
        records = load_array(path, mapped=True)
        return _from_records(records[:0] if empty and records.ndim else records)
    if not path.is_dir():
        check_file(path)
    files = [path]
    if path.is_dir():  # img2dataset's has tars and statistics too
        files = sorted(
            one for one in path.glob("[!.]*") if one.suffix in (".parquet", ".csv", ".tsv") and one.is_file()
        )
    endings = {file.suffix for file in files}
    if endings == {".parquet"}:
        schema = None
        with suppress(pa.ArrowInvalid, pa.ArrowTypeError):  # a column may be null in the first file
            schema = pa.unify_schemas(map(pq.read_schema, files), promote_options="permissive")
        return ds.dataset(files, schema=schema, format="parquet")
    if endings not in ({".csv"}, {".tsv"}):
        raise ValueError(_FORMS)
    parsed = pa_csv.ParseOptions(delimiter="," if endings == {".csv"} else "\t")
    kinds: dict[str, Any] = {"uid": pa.string(), "key": pa.string()}
    for _ in range(2):  # a column that begins with 1 may go on with 0.5
        converted = pa_csv.ConvertOptions(column_types=kinds, strings_can_be_null=True)
        found = ds.dataset(files, format=ds.CsvFileFormat(parsed, convert_options=converted))
        kinds |= {one.name: pa.float64() for one in found.schema if pa.types.is_integer(one.type)}
    return found


def _from_records(records: Any) -> pa.Table:
    names = [*(records.dtype.names or ())]
    if records.ndim != 1 or len(names) < 3 or {records.dtype[one].str[1:] for one in names[:2]} != {"u8"}:
        raise ValueError(f"it holds {records.dtype} of shape {records.shape}; {_FORMS}")
    columns = {name: records[name].astype(records.dtype[name].newbyteorder("=")) for name in names[2:]}
    return pa.table({"uid": uid_texts(records[names[0]], records[names[1]]), **columns})


def uid_texts(high: U64, low: U64) -> pa.Array:
    """Returns the 32 hex digits of each uid as Arrow's texts."""
    words = format_uids(high, low)
    starts = np.arange(len(words) + 1, dtype=np.int64) * words.itemsize
    return pa.LargeStringArray.from_buffers(len(words), pa.py_buffer(starts), pa.py_buffer(words))
