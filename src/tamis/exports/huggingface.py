"""A subset as Parquet files of a Hugging Face dataset, with the images in them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from xxhash import xxh3_128_hexdigest

from tamis.core.errors import SampleError
from tamis.exports.lists import pair_columns
from tamis.exports.shards import ShardsExport, ShardWriter, image_exts
from tamis.pools import Pool
from tamis.pools.images import turn_file
from tamis.runs.stream import KeptSample
from tamis.runs.subset import Subset
from tamis.runs.tags import TAGS

#: `datasets` decodes a column as images only if its type is exactly this.
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])

_METADATA = {"huggingface": json.dumps({"info": {"features": {"image": {"_type": "Image"}}}})}

# The Hub's viewer reads row groups of at most 100 MB and, for search and filters, page indexes.
_GROUP_BYTES, _GROUP_ROWS = 64 << 20, 1_000


@dataclass(frozen=True, kw_only=True)
class HuggingFaceExport(ShardsExport):
    """Writes Parquet files with image, uid, shard, key, caption and all scores, for `datasets.load_dataset(FOLDER)`.

    With chosen captions there is a column alt_text too. Image files are stored byte for byte, unless the pool's
    setting `orientation` turns them. A pair without an image file has null. A pair that is kept k times has k rows.
    A file appears when it is complete, so the same command again writes the missing ones.

    Attributes:
        shard_size: pairs per file.
    """

    name: ClassVar[str] = "huggingface"
    MANIFEST: ClassVar[str] = "_export.json"  # readers of a folder of Parquet files skip names like this
    FILE_NAMES: ClassVar[str] = "train-{number:0{width}d}-of-{count:0{width}d}.parquet"
    LEAST_FILES: ClassVar[int] = 1  # without a file, `load_dataset` would read the manifest as the dataset

    def identity(self, subset: Subset) -> dict[str, Any]:
        run = subset.run
        scores = sorted(group.folder.name for group in run.scores.values() if run.is_complete(group))
        found = super().identity(subset) | {"scores": scores}
        if TAGS in run.columns and run.is_complete(run.columns[TAGS][1]):  # tags change, scores do not
            tags = "\n".join(tags or "" for tags in subset[TAGS].tolist())
            found["tags"] = xxh3_128_hexdigest(tags.encode())
        return found

    def shard_writer(self, subset: Subset) -> ShardWriter:
        pool = subset.run.pool

        fields, columns = pair_columns(subset, captions=True)
        schema = pa.schema([("image", _IMAGE), *fields], metadata=_METADATA)

        def table(shard: str, samples: list[KeptSample]) -> pa.Table:
            images = pa.array([_image(sample, pool) for sample in samples], _IMAGE)
            rows = np.array([sample.row_in_shard for sample in samples])
            return pa.table({"image": images, **columns(shard, rows)}, schema=schema)

        def write(path: Path, name: str, samples: Iterable[KeptSample]) -> None:
            with pq.ParquetWriter(path, schema, write_page_index=True) as writer:
                for group in _row_groups(samples):
                    by_shard = itertools.groupby(group, key=lambda sample: sample.shard)
                    writer.write_table(pa.concat_tables([table(shard, list(some)) for shard, some in by_shard]))

        return write


def _row_groups(samples: Iterable[KeptSample]) -> Iterator[list[KeptSample]]:
    group: list[KeptSample] = []
    held = 0
    for sample in samples:
        size = sum(map(len, (sample.files or {}).values()))
        if group and (held + size > _GROUP_BYTES or len(group) == _GROUP_ROWS):
            yield group
            group, held = [], 0
        group.append(sample)
        held += size
    if group:
        yield group


def _image(sample: KeptSample, pool: Pool) -> dict[str, bytes | str] | None:
    assert sample.files is not None, "the files were asked for, and errors raise"
    ext = next(iter(image_exts(sample.files, pool)), None)
    if ext is None:
        return None
    # A key can be any text. A program that unpacks the images by their paths must not leave its folder.
    name = (sample.key or "").replace("\\", "/").rpartition("/")[2]
    data = sample.files[ext]
    if sample.orientation is not None:
        with suppress(SampleError):  # what cannot be decoded stays
            data, ext = turn_file(data, sample.orientation, max_pixels=pool.spec.max_pixels)
    return {"bytes": data, "path": f"{name}.{ext}"}
