"""A subset as WebDataset shards: every file of every kept sample, byte for byte."""

from __future__ import annotations

import io
import itertools
import logging
import re
import struct
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tamis.core.arrays import Rows
from tamis.core.errors import RecipeError, SampleError, check_words, plural
from tamis.core.files.storage import write_json, writing
from tamis.exports.shards import ShardsExport, ShardWriter, image_exts, with_fields
from tamis.pools import Pool
from tamis.pools.images import decode, upright_exif
from tamis.pools.tar import walk
from tamis.runs.stream import KeptSample
from tamis.runs.subset import OtherCaptions, Subset, texts_of

log = logging.getLogger(__name__)

_NV_META = (".info.json", "split.yaml", "dataset.yaml")  # JSON is YAML

#: The field of the json for the pool's caption.
ALT_TEXT = "alt_text"

#: open_clip's options at 89fb801 (2026-06-27); its release 3.3 has none of them and reads txt.
JSON_TEXT = "open_clip draws a caption for each sample with --json-text-key '%s' --json-text-key-probs %s"
IN_ORDER = (
    "open_clip keeps the order if shard_size is the batch of one GPU, without --dataset-resampled, and with "
    "OPENCLIP_WDS_SHARD_SHUFFLE_SIZE=1 OPENCLIP_WDS_SAMPLE_SHUFFLE_SIZE=1 in its environment"
)

#: The images that open_clip trains on; it skips samples without one, or without txt (`filter_no_caption_or_no_image`).
OPEN_CLIP = frozenset(("jpg", "jpeg", "png", "webp"))


@dataclass(frozen=True, kw_only=True)
class WebDatasetExport(ShardsExport):
    """Writes shards of complete samples in the subset's order or else the pool's, and reads only bytes of kept samples.

    A shard appears when it is complete, so the same command again writes the missing ones. Files are unchanged, but
    `txt` is the caption that was scored, wherever the pool has it. A sample with a chosen other caption has that in
    place of its alt-text, which moves to the json as `alt_text`. `sizes.json` gives open_clip the number of samples
    per shard that it does not skip. Dots in keys become "_", because webdataset and datasets end a key at a dot; a key
    that occurs twice in an output shard gets "_2". If pairs are kept several times, keys begin with the shard's number
    and "/", so that no two samples have one key.

    Attributes:
        shard_size: samples per shard.
        images: "jpeg" re-encodes images that open_clip skips (GIF, BMP, ...) as JPEG of quality 95: upright, and of an
            animation the first frame. "stored" leaves them as they are.
        weights: writes a pair that is kept k times once, with `weight` k in its json; by default it is k samples.
        json_captions: columns of the run with captions, such as generated_caption. The json has each under its name and
            the pool's as alt_text, in place of fields of these names. open_clip draws one of them for each sample, see
            `JSON_TEXT`; the log has its options.
        energon: also writes what Megatron Energon reads, as `energon prepare` does: an index next to each shard, and
            `.nv-meta` with the sizes, one split (train) and CaptioningSample. Keys then begin with the shard's
            number and "/", because Energon's keys must be unique over all shards.
    """

    name: ClassVar[str] = "webdataset"
    FILE_NAMES: ClassVar[str] = "{number:0{width}d}.tar"
    images: Literal["stored", "jpeg"] = "stored"
    weights: bool = False
    json_captions: tuple[str, ...] = ()
    energon: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_words(self)

    def identity(self, subset: Subset) -> dict[str, Any]:
        chosen: dict[str, Any] = {name: True for name in ("weights", "energon") if getattr(self, name)}
        for name in self.json_captions:  # here, because a wrong one must neither write nor delete anything
            if subset.run.table().kind(name) != "word" or name == ALT_TEXT:
                raise RecipeError(f"json_captions: the column {name!r} of {subset.run.path} holds no captions")
        if self.json_captions:
            chosen["json_captions"] = {name: subset.run.locate(name)[0] for name in self.json_captions}
        jpeg = {"images": self.images} if self.images != "stored" else {}
        return super().identity(subset) | chosen | jpeg

    def order(self, subset: Subset) -> Rows:
        rows = subset.in_order()
        return rows[np.sort(np.unique(rows, return_index=True)[1])] if self.weights else rows

    def files(self, names: Iterable[str]) -> list[str]:
        names = list(names)
        index = [*(f"{name}.idx" for name in names), *(f".nv-meta/{name}" for name in _NV_META)]
        return [*names, "sizes.json", *(index if self.energon else [])]

    def shard_writer(self, subset: Subset) -> ShardWriter:
        pool = subset.run.pool

        weights = (subset.keep if subset.times is None else subset.times) if self.weights else None
        texts = self._texts(subset)

        def write(path: Path, name: str, samples: Iterable[KeptSample]) -> None:
            ready = (_with_texts(_with_caption(sample, pool), sample, texts) for sample in samples)
            ready = (_as_jpeg(sample, pool) for sample in ready) if self.images == "jpeg" else ready
            several = len(subset) > subset.kept and not self.weights
            _write_tar(path, ready, f"{Path(name).stem}/" if self.energon or several else "", weights)

        return write

    def _texts(self, subset: Subset) -> dict[str, OtherCaptions]:
        """Reads `json_captions` of the kept rows."""
        rows = np.flatnonzero(subset.keep)
        return {name: texts_of(subset.run, name, rows) for name in self.json_captions}

    def write(self, subset: Subset, out: Path) -> int:
        count = super().write(subset, out)
        if self.json_captions:
            names = [ALT_TEXT, *dict.fromkeys(self.json_captions)]
            log.info(JSON_TEXT, ";".join(names), " ".join("1" for _ in names))
        if subset.order is not None:
            log.info(IN_ORDER)
        return count

    def finish(self, out: Path, sizes: Mapping[str, int], pool: Pool) -> None:
        shards = {name: _contents(out / name, pool) for name in sizes}
        write_json(out / "sizes.json", {name: shard.trained for name, shard in shards.items()})
        if skipped := sum((shard.skipped for shard in shards.values()), Counter[str]()):
            why = ", ".join(f"{count:,} {what}" for what, count in skipped.most_common())
            hint = "; --set images=jpeg converts images" * (self.images == "stored")
            log.warning("%s: open_clip trains on JPEG, PNG and WebP; sizes.json leaves out %s%s", out, why, hint)
        if self.energon:
            exts = set[str]().union(*(shard.exts for shard in shards.values()))
            converted = ["jpg"] * (self.images == "jpeg")
            _write_energon(out, sizes, shards, list(dict.fromkeys([*converted, *image_exts(exts, pool)])))


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
        log.warning("%s: %s changed, because they have dots or occur twice", path.parent, plural(renamed, "key"))


def _with_caption(sample: KeptSample, pool: Pool) -> KeptSample:
    """Returns a sample with its caption as txt. If another was chosen, the alt-text is in the json."""
    source = "txt" if pool.kind == "table" else (pool.spec.caption or "txt")
    if sample.alt_text is None and source.lower() == "txt" and pool.kind != "table":
        return sample  # byte for byte, even if it is not UTF-8
    files, caption = dict(sample.files or {}), (sample.caption or "").encode()
    if sample.alt_text is not None:
        name = source.removeprefix("json:")
        facts = {ALT_TEXT if name != ALT_TEXT else "alt_text_of_pool": sample.alt_text}
        if name == source:
            files[source.lower()] = caption
        elif pool.spec.captions is None:
            facts[name] = sample.caption or ""
        files = with_fields(files, **facts)
    if sample.caption is not None:
        files["txt"] = caption
    elif len(files) > 1:  # a sample needs a file
        files.pop("txt", None)  # another text, or none: open_clip would train on it
    return replace(sample, files=files)


def _with_texts(sample: KeptSample, stored: KeptSample, texts: Mapping[str, OtherCaptions]) -> KeptSample:
    """Returns a sample with several captions in its json; `stored` is the sample of the pool."""
    if not texts:
        return sample
    found = {name: column.of(stored.row) or "" for name, column in texts.items()}
    alt_text = stored.caption if stored.alt_text is None else stored.alt_text
    return replace(sample, files=with_fields(sample.files or {}, **{ALT_TEXT: alt_text or "", **found}))


def _as_jpeg(sample: KeptSample, pool: Pool) -> KeptSample:
    """Returns a sample with its image as JPEG if open_clip would skip it; unchanged if it does not decode."""
    files = sample.files or {}
    ext = next(iter(image_exts(files, pool)), "jpg")
    if ext in OPEN_CLIP:
        return sample
    try:
        how: dict[str, Any] = {"transparency": pool.spec.transparency, "orientation": sample.orientation}
        pixels = decode(files[ext], max_pixels=pool.spec.max_pixels, **how)
    except SampleError:
        return sample
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=95, exif=upright_exif())
    others = {name: data for name, data in files.items() if name != ext}
    return replace(sample, files={"jpg": out.getvalue()} | others)


def _free_key(key: str, taken: set[str]) -> str:
    *folders, base = key.replace("\\", "/").split("/")
    # A key can be any text of a tar. A path that we write must not leave the folder it is unpacked in.
    safe = [folder for folder in folders if folder not in ("", ".", "..")]
    # datasets ends a key at a folder's dot. Names that begin with two underscores are not read: by webdataset folders
    # like __this__, by datasets all files.
    plain = re.sub("^__+|(?<=/)__+", "_", "/".join([*safe, base or "_"]).replace(".", "_"))
    names = itertools.chain([plain], (f"{plain}_{number}" for number in itertools.count(2)))
    key = next(name for name in names if name not in taken)
    taken.add(key)
    return key


@dataclass
class _Contents:
    """What a shard that we wrote holds."""

    offsets: list[int] = field(default_factory=lambda: [0])  # where each sample starts, and where the last one ends
    exts: set[str] = field(default_factory=set)
    trained: int = 0  # samples that open_clip reads
    skipped: Counter[str] = field(default_factory=Counter)  # others, by reason


def _contents(path: Path, pool: Pool) -> _Contents:
    """Reads the headers of a shard that we wrote. `walk` finds keys as webdataset and Energon do."""
    contents = _Contents()
    for _, members in itertools.groupby(walk(str(path), {}), key=attrgetter("key")):
        files = list(members)
        exts = {file.ext for file in files}
        blocks = -(-(files[-1].offset + files[-1].size) // tarfile.BLOCKSIZE)
        contents.offsets.append(blocks * tarfile.BLOCKSIZE)
        contents.exts |= exts
        if not exts & OPEN_CLIP:
            contents.skipped[f"with {next(iter(image_exts(exts, pool)), 'no image')}"] += 1
        elif "txt" not in exts:
            contents.skipped["without a caption"] += 1
        else:
            contents.trained += 1
    return contents


def _write_energon(out: Path, sizes: Mapping[str, int], shards: Mapping[str, _Contents], images: Sequence[str]) -> None:
    """Writes `.tar.idx` and `.nv-meta` as Energon 7 does (`energon prepare`), without its optional SQLite index."""
    for name, shard in shards.items():
        with writing(out / f"{name}.idx") as temporary:
            temporary.write_bytes(struct.pack(f"<{len(shard.offsets)}Q", *shard.offsets))
    fields = {"image": ",".join(images) or "jpg", "caption": "txt"}
    kind = {"__module__": "megatron.energon", "__class__": "CaptioningSample"}
    parts = {"train": list(sizes), "val": [], "test": []}
    facts = {"shard_counts": sizes}, {"split_parts": parts, "exclude": []}, {"sample_type": kind, "field_map": fields}
    for file, content in zip(_NV_META, facts, strict=True):
        write_json(out / ".nv-meta" / file, content)
