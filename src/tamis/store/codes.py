"""The codes of a run's rows inside a Parquet file: bytes between its row groups and its footer.

A Parquet reader follows offsets, so what no offset of the footer leads to is not seen: Bloom filters and page indexes
lie there, and DataFusion's users keep indexes of their own so. Here a block per shard lies there, compressed, and the
footer's metadata tells where: one or two bits per row, and readers of the table meet only the rows that are kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pydantic
import xxhash

from tamis.storage import local
from tamis.store.reasons import Codes

_CODEC = "zstd"


def write_codes(sink: pa.NativeFile, codes: Codes, sizes: Sequence[int]) -> bytes:
    """Writes codes where the file stands, a block per shard, and returns what the footer must hold for `read_codes`.

    Args:
        sink: the file, after the last row group.
        codes: (rows,) uint8 or uint16.
        sizes: the rows of each shard, in the order of the codes.
    """
    codec, digest = pa.Codec(_CODEC), xxhash.xxh3_64()
    begin, start, lengths = sink.tell(), 0, []
    for size in sizes:
        block = codec.compress(np.ascontiguousarray(codes[start : start + size]).data, asbytes=True)
        sink.write(block)
        digest.update(block)
        lengths.append(len(block))
        start += size
    facts = {
        "type": codes.dtype.newbyteorder("<").str,
        "codec": _CODEC,
        "begin": begin,
        "lengths": lengths,
        "xxh3_64": digest.hexdigest(),
    }
    return json.dumps(facts).encode()


def read_codes(path: Path, told: bytes, places: Sequence[slice], out: Codes) -> bool:
    """Reads what `write_codes` wrote.

    Args:
        path: the Parquet file.
        told: what its footer holds.
        places: where each shard's codes go.
        out: (rows,) filled at these places; wide enough.

    Returns:
        False where the bytes are not those that were written: another program has written the table anew, and took
        the footer's text along but not what it leads to.
    """
    try:
        facts = _Told.model_validate_json(told)
    except pydantic.ValidationError:
        return False
    if len(places) != len(facts.lengths) or facts.begin + sum(facts.lengths) > local(path).stat().st_size:
        return False
    with open(local(path), "rb") as file:
        file.seek(facts.begin)
        packed = memoryview(file.read(sum(facts.lengths)))
    if xxhash.xxh3_64_hexdigest(packed) != facts.xxh3_64:
        return False
    codec, kind, start = pa.Codec(facts.codec), np.dtype(facts.type), 0
    for place, length in zip(places, facts.lengths, strict=True):
        if size := (place.stop - place.start) * kind.itemsize:
            try:
                block = codec.decompress(packed[start : start + length], size)
            except (OSError, pa.ArrowException):  # of as many rows of another type
                return False
            out[place] = np.frombuffer(block, kind)
        start += length
    return True


class _Told(pydantic.BaseModel):
    """What a file's footer holds of its codes."""

    model_config = pydantic.ConfigDict(strict=True)

    type: Literal["|u1", "<u2"]
    codec: Literal["zstd"]
    begin: pydantic.NonNegativeInt
    lengths: list[pydantic.NonNegativeInt]
    xxh3_64: str
