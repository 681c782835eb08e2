"""A subset as WebDataset shards: every file of every kept sample, byte for byte."""

from __future__ import annotations

import io
import itertools
import logging
import struct
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Rows
from tamis.exporters.shards import ShardsExport, ShardWriter, image_exts, with_fields
from tamis.pool import Pool
from tamis.storage import write_json, writing
from tamis.store.stream import KeptSample
from tamis.store.subset import Subset

log = logging.getLogger(__name__)

_NV_META = (".info.json", "split.yaml", "dataset.yaml")  # JSON is YAML


@dataclass(frozen=True, kw_only=True)
class WebDatasetExport(ShardsExport):
    """Writes shards of complete samples in the order of the pool, and reads only the bytes of kept samples.

    A shard appears when it is complete, so the same command again writes the missing ones. `sizes.json` gives
    open_clip the number of samples per shard. Dots in keys become "_", because webdataset ends the key at the first
    dot; a key that occurs twice in an output shard gets "_2". If pairs are kept several times, keys begin with the
    shard's number and "/", so that no two samples have one key. A sample with a chosen other caption has it in place
    of its alt-text, which moves to the json as `alt_text`.

    Attributes:
        shard_size: samples per shard.
        weights: writes a pair that is kept k times once, with `weight` k in its json; by default it is k samples.
        energon: also writes what Megatron Energon reads, as `energon prepare` does: an index next to each shard, and
            `.nv-meta` with the sizes, one split (train) and CaptioningSample. Keys then begin with the shard's
            number and "/", because Energon's keys must be unique over all shards.
    """

    name: ClassVar[str] = "webdataset"
    FILE_NAMES: ClassVar[str] = "{number:0{width}d}.tar"
    weights: bool = False
    energon: bool = False

    def identity(self, subset: Subset) -> dict[str, Any]:
        chosen = {name: True for name in ("weights", "energon") if getattr(self, name)}
        return super().identity(subset) | chosen

    def order(self, rows: Rows) -> Rows:
        return np.unique(rows) if self.weights else rows

    def files(self, names: Iterable[str]) -> list[str]:
        names = list(names)
        index = [*(f"{name}.idx" for name in names), *(f".nv-meta/{name}" for name in _NV_META)]
        return [*names, "sizes.json", *(index if self.energon else [])]

    def shard_writer(self, subset: Subset, pool: Pool) -> ShardWriter:
        weights = (subset.keep if subset.times is None else subset.times) if self.weights else None

        def write(path: Path, name: str, samples: Iterable[KeptSample]) -> None:
            carried = (_carrying(sample, *_caption_place(pool)) for sample in samples)
            several = subset.times is not None and not self.weights
            _write_tar(path, carried, f"{Path(name).stem}/" if self.energon or several else "", weights)

        return write

    def finish(self, out: Path, sizes: Mapping[str, int], pool: Pool) -> None:
        write_json(out / "sizes.json", sizes)
        if self.energon:
            _write_energon(out, sizes, pool)


def _write_tar(path: Path, samples: Iterable[KeptSample], prefix: str, weights: NDArray[Any] | None) -> None:
    taken: set[str] = set()
    renamed = 0
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for sample in samples:
            assert sample.key is not None, "the key was asked for"
            assert sample.files is not None, "the files were asked for, and errors raise"
            key = _free_key(sample.key, taken)
            renamed += key != sample.key
            files = sample.files if weights is None else with_fields(sample.files, weight=int(weights[sample.row]))
            for ext, data in files.items():
                info = tarfile.TarInfo(f"{prefix}{key}.{ext}")
                info.size = len(data)  # owner, time and mode stay fixed: the same subset makes the same bytes
                tar.addfile(info, io.BytesIO(data))
    if renamed:
        log.warning("%s: %d keys were changed, because they have dots or occur twice", path.parent, renamed)


def _caption_place(pool: Pool) -> tuple[str, str]:
    """Returns the extension of the captions' files, and their field if they are in the json."""
    caption = "txt" if pool.kind == "table" else pool.spec.caption or "txt"
    field = caption.removeprefix("json:")
    if field == caption:
        return caption.lower(), ""
    return ("json", field) if pool.spec.captions is None else ("txt", "")  # one of several captions is a file


def _carrying(sample: KeptSample, ext: str, field: str) -> KeptSample:
    """Returns a sample with its chosen caption in its files, and its alt-text in the json."""
    if sample.alt_text is None:
        return sample
    alt = "alt_text" if field != "alt_text" else "alt_text_of_pool"
    facts = {alt: sample.alt_text} | ({field: sample.caption} if field else {})
    files = with_fields(sample.files or {}, **facts)
    return replace(sample, files=files if field else files | {ext: (sample.caption or "").encode()})


def _free_key(key: str, taken: set[str]) -> str:
    *folders, base = key.replace("\\", "/").split("/")
    # A key can be any text of a tar. A path that we write must not leave the folder it is unpacked in.
    safe = [folder for folder in folders if folder not in ("", ".", "..")]
    plain = "/".join([*safe, base.replace(".", "_") or "_"])
    names = itertools.chain([plain], (f"{plain}_{number}" for number in itertools.count(2)))
    key = next(name for name in names if name not in taken)
    taken.add(key)
    return key


def _write_energon(out: Path, sizes: Mapping[str, int], pool: Pool) -> None:
    """Writes `.tar.idx` and `.nv-meta` as Energon 7 does (`energon prepare`), without its optional SQLite index."""
    exts: set[str] = set()
    for name in sizes:
        offsets: list[int] = []
        last = ""
        with tarfile.open(out / name) as tar:
            for member in tar:
                key, _, ext = member.name.partition(".")
                exts.add(ext)
                if key != last:
                    offsets.append(member.offset)
                last = key
            offsets.append(tar.offset)  # where the last sample ends
        with writing(out / f"{name}.idx") as temporary:
            temporary.write_bytes(struct.pack(f"<{len(offsets)}Q", *offsets))
    place, field = _caption_place(pool)
    caption = f"json[{field}]" if field else place
    fields = {"image": ",".join(image_exts(exts, pool)) or "jpg", "caption": caption}
    kind = {"__module__": "megatron.energon", "__class__": "CaptioningSample"}
    parts = {"train": list(sizes), "val": [], "test": []}
    facts = {"shard_counts": sizes}, {"split_parts": parts, "exclude": []}, {"sample_type": kind, "field_map": fields}
    for file, content in zip(_NV_META, facts, strict=True):
        write_json(out / ".nv-meta" / file, content)
