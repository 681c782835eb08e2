"""Lance datasets, folders `NAME.lance` on a disk, as tables of rows."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from tamis.core.errors import PoolError, require
from tamis.core.files.find import is_remote, stamp

# Memory of a scan: bytes of a batch, and bytes read ahead of it.
_BATCH_BYTES, _AHEAD = 16 << 20, 64 << 20


def lance_schema(url: str) -> pa.Schema:
    """Returns the columns of a dataset."""
    return _dataset(url).schema


def fragment_rows(url: str) -> list[int]:
    """Returns the rows of each fragment, without deleted rows."""
    with _explain_errors(url):
        return [fragment.count_rows() for fragment in _dataset(url).get_fragments()]


def lance_batches(
    url: str, columns: Sequence[str], first: int, rows: int | None, batch: int
) -> Iterator[pa.RecordBatch]:
    """Yields rows from `first` on, without deleted rows, in about a millisecond each; OSError if the dataset is
    damaged.
    """
    with _explain_errors(url):
        dataset = _dataset(url)
        scanner = dataset.scanner(
            columns=[name for name in dict.fromkeys(columns) if name in dataset.schema.names],
            offset=first,
            limit=rows,
            batch_size=batch,
            batch_size_bytes=_BATCH_BYTES,
            io_buffer_size=_AHEAD,
            batch_readahead=2,
            fragment_readahead=1,
            scan_in_order=True,
            blob_handling="all_binary",
        )
        yield from scanner.to_batches()


def _dataset(url: str) -> Any:
    if is_remote(url):
        raise PoolError(f"{url}: a Lance dataset is read from a disk only: copy the folder, or write it as Parquet")
    require("lance", extra="lance")
    return _open(url, stamp(url))


@functools.lru_cache(maxsize=4)
def _open(url: str, stamp: str) -> Any:
    """Returns a version of a dataset; `stamp` changes with each."""
    import lance

    with _explain_errors(url):
        return lance.dataset(url)


@contextmanager
def _explain_errors(url: str) -> Iterator[None]:
    """Turns errors of Lance, some of them panics of its Rust code, into OSError without its source lines."""
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        raise OSError(str(error).partition(", /")[0]) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise OSError(f"{url} is damaged: {error}") from error
