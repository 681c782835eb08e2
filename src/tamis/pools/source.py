"""What all pools have in common: a list of shards, each a stream of samples."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import re
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from tamis.core.errors import SampleError, ShardError, check_words, plural, unknown_message
from tamis.core.files.find import Format, stamp
from tamis.core.ids import content_uid, format_uid, parse_uid
from tamis.core.types import EXIF_WORDS, ORIENTATION, Member, Node, Sample, Signal, Transparency

log = logging.getLogger(__name__)

IMAGE_EXTENSIONS = ("jpg", "jpeg", "png", "webp", "gif", "jfif", "jpe", "bmp", "tif", "tiff", "avif")

#: Most bytes of a caption or json; guards against decompression bombs.
MAX_TEXT_BYTES = 16 << 20

#: Ways to take several captions of one image, and most captions of an image that `each` makes rows of.
CAPTIONS, MOST_CAPTIONS = ("first", "longest", "each"), 1_000

#: The field of the sample's json in which img2dataset keeps the EXIF of the original, as JSON.
EXIF = "exif"

#: The field that holds a sample's own uid under `captions: each`, where each row has another.
SAMPLE_UID = "sample_uid"

_LINE = re.compile(rb"[^\r\n]+")

# The texts of a shard may take this many bytes, plus more for each row: its index is built in memory.
_TEXTS, _TEXTS_PER_ROW = 128 << 20, 16 << 10

#: The end of a shard's name if it is a range of a table's rows, or of a folder's pairs: its first row, and for a folder
#: a hash of its first key.
ROWS_SUFFIX = re.compile(r"-rows\d{9,}(-[0-9a-f]{12})?$")


_OPTIONS = (
    *("format", "caption", "captions", "image", "image_extensions", "split"),
    *("max_pixels", "transparency", "orientation"),
)


@dataclass(frozen=True, kw_only=True)
class PoolSpec:
    """Where a pool is and how to read it. All settings but `path` can change what a run holds.

    Attributes:
        path: a folder, a file, a glob, a brace range or an fsspec URL; or several of these. Signs in a local path, or
            in its leading folders, are taken literally if that path exists.
        format: "auto" finds out whether the pool is WebDataset tars, tables (Arrow and Lance too), DataComp metadata or
            a folder of images with a caption next to each.
        caption: which text is the caption. For tars and folders a file's extension ("txt") or a field of the sample's
            json ("json:long_caption"); for tables a column. None: "txt", or the first field or column of a usual name.
        captions: where an image has several captions (a list, or lines of a member): "first" or "longest" (in
            characters) is the caption, "each" makes a row of each (at most 1,000 for an image). None: the first of a
            list, and a member with all its lines.
        image: tables only: the column of image paths or bytes. None: the first column of a usual name. "none": the
            table holds captions alone.
        image_extensions: tars and folders: the extensions of images; the first that a sample has is its image.
        split: take only the files of a split, which their names say: "train", "validation" or "test".
        fields: fields of the sample's json, or columns of the table ("*": all), to carry into the index, as text; where
            all values are numbers, recipes, report and explorer use them like scores.
        max_pixels: images with more pixels are not decoded, and reported as decompression bombs.
        transparency: "drop" ignores transparency, as trainers' loaders do, so that black drawings on a transparent
            background turn all black; "white" puts images on white.
        orientation: "json" turns images upright that img2dataset stored without their EXIF, by the field `exif` of the
            sample's json; "none" leaves them. None: "json" if the first samples have that field. Files with an
            orientation of their own are turned by that.
        max_bytes: larger tar members and table images are reported, not read. Captions and json are never read beyond
            16 MiB.

    Raises:
        ValueError: a limit is below 1, or a word is unknown.
    """

    path: str | tuple[str, ...]
    format: Format = "auto"
    caption: str | None = None
    captions: str | None = None  # one of `CAPTIONS`; no Literal, so that `best` gets its own message
    image: str | None = None
    image_extensions: tuple[str, ...] = IMAGE_EXTENSIONS
    split: str | None = None
    fields: tuple[str, ...] = ()
    max_pixels: int = 100_000_000
    max_bytes: int = 256 << 20
    transparency: Transparency = "drop"
    orientation: Literal["json", "none"] | None = None

    def __post_init__(self) -> None:
        for name, value in (("max_pixels", self.max_pixels), ("max_bytes", self.max_bytes)):
            if value < 1:
                raise ValueError(f"{name} is {value}, expected 1 or more")
        check_words(self)
        if self.captions == "best":
            step = "'- top_n: {score: clip, n: 1, per: image_xxh3, missing: drop}'"
            raise ValueError(f"captions: best needs scores: set 'captions: each', and under 'select' {step}")
        if self.captions not in (None, *CAPTIONS):
            raise ValueError(unknown_message("captions", str(self.captions), CAPTIONS))
        own = {SAMPLE_UID: self.captions == "each", ORIENTATION: self.orientation == "json"}
        fields = dict.fromkeys([*self.fields, *(name for name, needed in own.items() if needed)])
        object.__setattr__(self, "fields", tuple(fields))
        if self.orientation is None and ORIENTATION in fields:  # a run's
            object.__setattr__(self, "orientation", "json")

    @property
    def paths(self) -> tuple[str, ...]:
        """The path or paths, always as a tuple."""
        return (self.path,) if isinstance(self.path, str) else self.path


def say_left_out(counts: Mapping[str, int]) -> str:
    """Returns a sentence about the files that a pool leaves out, by kind; "" for none."""
    return "left out: " + ", ".join(plural(count, kind) for kind, count in counts.items()) if counts else ""


def pool_options(settings: Mapping[str, Any]) -> list[str]:
    """Returns the options of `tamis score` for settings of a `PoolSpec` that are not the default."""
    usual, words = vars(PoolSpec(path="")), []
    for name in _OPTIONS:
        value, default = (
            ",".join(one) if isinstance(one, list | tuple) else one for one in (settings.get(name), usual[name])
        )
        if value not in (None, default) and (name, value) != ("orientation", "json"):  # found again, or the run's
            words += [f"--{name.replace('_', '-')}", str(value)]
    return words


def too_many_bytes(size: int, limit: int) -> str:
    """Returns the reason why a file is too large to read."""
    return f"{size:,} bytes, more than the limit of {limit:,}"


@dataclass(frozen=True, slots=True)
class SampleFault:
    """Why a sample, or one of its files, cannot be read again.

    Attributes:
        kind: "absent" (the pool has no such shard), "unread" (its file cannot be read), "changed" (the sample
            differs from the one that was scored), "cut" (its bytes cannot be read), "hidden" (on a list), or a
            status without an image (`STATUSES`).
        reason: a sentence for a person.
    """

    kind: str
    reason: str

    def __str__(self) -> str:
        return self.reason


class SampleFiles(NamedTuple):
    """A sample as the shard has it now, and the bytes of its files by extension."""

    sample: Sample
    files: Mapping[str, bytes]


class SampleReader(Protocol):
    """A shard that is open for reading single samples again. Several threads may use it at once."""

    sequential: bool  # seeking back reads again from the start

    def read(
        self, rows: Sequence[int], members: Sequence[Sequence[Member]], captions: Sequence[str | None]
    ) -> Sequence[SampleFiles | SampleFault]:
        """Returns samples in the order of `rows`, with the original bytes of their `members`.

        `captions`: the row's caption in the index, which says which of several captions of a sample it has.
        """

    def close(self) -> None:
        """Closes the file."""


@dataclass(frozen=True, kw_only=True)
class Shard(ABC):
    """A file of a pool, or a range of its rows: the unit of work and of resuming.

    Attributes:
        name: unique in the pool; parts of a run are named after it.
        url: path or URL of the file.
        most: only this many of its first samples are read; None: all.
        left_out: how many files the last reading left out, by kind ("hidden file").
    """

    marks_keys: ClassVar[bool] = True  # whether samples of one key are marked

    name: str
    url: str
    spec: PoolSpec
    most: int | None = None
    left_out: Counter[str] = field(default_factory=Counter, init=False, compare=False, repr=False)

    def stamp(self) -> str:
        """Returns size and time of the file (or a store's version tag), which change with its content."""
        return stamp(self.url)

    def samples(self) -> Iterator[Sample]:
        """Yields every sample in order, with its image's bytes, not decoded; marks repeated keys. ShardError: the file
        cannot be read further, or the texts of the shard would not fit into memory.
        """
        held = 0
        seen: set[str] = set()
        for rows, sample in enumerate(itertools.islice(self._samples(), self.most), 1):
            texts = (sample.key, sample.shown_caption, sample.reason, *sample.given.values())
            held += sum(sys.getsizeof(text) for text in texts if isinstance(text, str))
            held += sum(len(member.ext) for member in sample.members)
            if held > _TEXTS + _TEXTS_PER_ROW * rows:
                raise ShardError(f"{self.url}: the texts of its first {rows:,} samples take {held:,} bytes: too many")
            if self.marks_keys:
                if sample.key in seen:
                    reason = f"an earlier sample of this shard has the key {sample.key[:200]!r} too"
                    sample.mark("duplicate_key", reason)
                seen.add(sample.key)
            yield sample

    @abstractmethod
    def _samples(self) -> Iterator[Sample]:
        """Yields the samples as the file has them."""

    def image_member(self, members: Sequence[Member]) -> Member | None:
        """Returns the member that is the sample's image, or None. `members` come from the index."""
        return None

    def text_members(self, members: Sequence[Member]) -> Sequence[Member]:
        """Returns the members that hold caption and uid, to check that a sample is unchanged; tables have none."""
        return ()

    @abstractmethod
    def reader(self, *, whole: bool, keep_open: bool) -> SampleReader:
        """Opens the shard for reading single samples again."""


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The shards of a pool, and what came with it.

    Attributes:
        kind: "webdataset", "table", "datacomp" or "folder".
        has_images: False for captions or metadata alone.
        signals: scores that came with the pool (DataComp's CLIP similarities).
        features: embeddings that came with the pool.
        about: one sentence: what was found at the path, and where its images and captions are.
        mixed: a sentence if the files are of several splits.
    """

    spec: PoolSpec
    kind: str
    shards: tuple[Shard, ...]
    has_images: bool = True
    signals: tuple[Signal, ...] = ()
    features: tuple[Node, ...] = ()
    about: str = ""
    mixed: str = ""

    @property
    def files(self) -> list[str]:
        """The files of the pool, and the paths (files, folders, globs) that it was opened with."""
        return [*(shard.url for shard in self.shards), *self.spec.paths]


@dataclass
class MissingParts:
    """Tracks which required part (image, caption) no sample has had yet: a pool setting may name the wrong one."""

    needed: Sequence[str]  # "image", "size" (of an image, or in the json), "caption"
    rows: int = 0
    reasons: dict[str, str] = field(default_factory=dict)  # why the first sample lacks it

    def add(self, sample: Sample) -> bool:
        """Takes the next sample; returns whether anything is still missing. A damaged image counts as present."""
        gone = ("image", *(["size"] if not sample.original_width else []))
        lacks = dict.fromkeys(gone, sample.reason or "") if sample.status == "image_missing" else {}
        if sample.no_caption is not None and sample.status != "shard_cut":
            lacks["caption"] = sample.no_caption
        found = lacks if self.rows == 0 else self.reasons
        self.reasons = {what: found[what] for what in self.needed if what in found and what in lacks}
        self.rows += 1
        return bool(self.reasons)

    def __str__(self) -> str:
        what = {"caption": "a caption"}
        found = {what.get(one, "an image"): why for one, why in self.reasons.items()}
        return "; ".join(f"none of its {self.rows:,} samples has {one}: {why}" for one, why in found.items())


def read_json(sample: Sample, raw: bytes | None) -> dict[str, Any]:
    """Returns the sample's json as a mapping; marks the sample and returns {} if it is not one."""
    if raw is None:
        return {}
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        sample.mark("json_broken", f"the json cannot be read: {error}")
        return {}
    if not isinstance(value, dict):
        sample.mark("json_broken", f"the json holds a {type(value).__name__}, expected an object")
        return {}
    return value


def rows_of(
    sample: Sample,
    value: Any,
    where: str,
    meta: Mapping[str, Any],
    spec: PoolSpec,
    *,
    image: bytes | None,
    absent: str | None = None,
    only: Sequence[str | None] = (),
) -> Iterator[Sample]:
    """Yields the rows of a sample: one, or with `captions: each` one for each caption.

    `sample` has everything but caption, uid and fields. `value`, called `where`, is the cell, field or file with the
    caption or captions; `absent` says why it is None. `meta` is the sample's json or table row; the uid depends on
    `image`. `only`: of several rows, those with these captions (None: with none); if none has them, all.
    """
    each = spec.captions == "each"
    values = [first_of(value, where)] if spec.captions is None else _chosen(value, spec.captions)
    if len(values) > MOST_CAPTIONS:
        absent = f"the {where} holds more captions than the limit of {MOST_CAPTIONS:,}"
        values = [None]
    if each and only:
        values = [one for one in values if (_as_shown(one) if isinstance(one, str | bytes) else None) in only] or values
    for number, one in enumerate(values):
        row = replace(sample, key=f"{sample.key}-{number}", given={}) if each else sample
        set_caption(row, one, where, absent)
        text = None if row.shown_caption is None else row.shown_caption.encode()
        set_identity(row, meta, image, one if isinstance(value, bytes) and one is value else text, spec.fields)
        if each and (given := parse_uid(meta.get("uid"))):
            row.given[SAMPLE_UID] = format_uid(*given)
            row.uid = content_uid(row.given[SAMPLE_UID].encode(), text)
        yield row


def own_texts(files: dict[str, bytes], row: Sample, spec: PoolSpec, ext: str) -> None:
    """Replaces a sample's texts by those of one row: its caption in `ext`, and with `captions: each` its uid."""
    if spec.captions is not None and row.shown_caption is not None:
        files[ext] = row.shown_caption.encode()
    if spec.captions == "each" and "json" in files and (given := row.given.get(SAMPLE_UID)):
        files["json"] = json_bytes(read_json(row, files["json"]) | {"uid": format_uid(*row.uid), SAMPLE_UID: given})


def json_bytes(value: Any) -> bytes:
    """Returns JSON in UTF-8; a lone surrogate becomes the escape that JSON has for it."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace")


def _chosen(value: Any, how: str) -> list[Any]:
    """Returns the captions to use, at least one: those with text of a list, of a JSON list, or of a file's lines."""
    found = _json_list(value) if isinstance(value, str) else value
    if not isinstance(found, list | bytes):
        return [value]
    # Lines one by one: a file of 16 MiB may have as many.
    entries = found if isinstance(found, list) else (line.group() for line in _LINE.finditer(found))
    full = (one for one in entries if one is not None and not (isinstance(one, str | bytes) and not one.strip()))
    if how == "each":  # what is no text is a row with a reason
        chosen = list(itertools.islice(full, MOST_CAPTIONS + 1))
        if not any(isinstance(one, str | bytes) for one in chosen):
            chosen = chosen[:1]
    else:
        texts = (one for one in full if isinstance(one, str | bytes))
        chosen = list(itertools.islice(texts, 1) if how == "first" else _longest(texts))
    return chosen or ((found[:1] or [None]) if isinstance(found, list) else [value])


def _longest(texts: Iterator[str | bytes]) -> list[str | bytes]:
    longest = max(texts, key=lambda one: len(_as_shown(one)), default=None)
    return [] if longest is None else [longest]


def _json_list(text: str) -> Any:
    """Returns the texts of a JSON list, as CSV files of Flickr30k have it; None for any other text."""
    try:
        found = json.loads(text) if text.startswith("[") else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) and all(isinstance(one, str | None) for one in found) else None


def set_caption(sample: Sample, value: Any, where: str, absent: str | None = None) -> None:
    """Sets the caption of a sample from a cell, field or file, or marks the sample with what is wrong."""
    try:
        raw = text_in(value, where)
        if raw is None:
            raise SampleError("caption_missing", absent or f"there is no text in the {where}")
    except SampleError as error:
        sample.no_caption = error.reason
        sample.mark(error.status, error.reason)
        return
    text = sample.shown_caption = _as_shown(raw)
    try:
        _as_bytes(raw).decode("utf-8")
    except UnicodeDecodeError as error:
        sample.mark("caption_not_utf8", f"the caption is not valid UTF-8 at byte {error.start}")
        return
    if not text.strip():
        sample.mark("caption_empty", f"the caption has {len(text)} characters, all white space")
        return
    sample.caption = text


def _as_shown(text: str | bytes) -> str:
    return _as_bytes(text).decode("utf-8", "replace")


def _as_bytes(text: str | bytes) -> bytes:
    if isinstance(text, bytes):
        return text
    try:  # lone surrogates are bytes that surrogateescape let through, or json escapes
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def first_of(value: Any, where: str) -> Any:
    """Returns the first entry of a list, with a warning, or None if it is empty; any other value as it is."""
    if not isinstance(value, list):
        return value
    _warn_of_lists(where)
    return value[0] if value else None


def text_in(value: Any, where: str) -> str | bytes | None:
    """Returns the text in a cell or field, None without one; SampleError for anything else."""
    if value is None or isinstance(value, str | bytes):
        return value
    raise SampleError("caption_missing", f"the {where} holds {json_type_name(value)}, expected text")


def json_type_name(value: Any) -> str:
    """Returns the type of a JSON value as words for messages."""
    if isinstance(value, list):
        return "a list of texts" if all(isinstance(one, str | None) for one in value) else "a list"
    kinds = {bool: "true or false", int: "a number", float: "a number", dict: "an object", str: "text"}
    return kinds.get(type(value), f"a {type(value).__name__}")


@functools.cache  # once per process, not once per caption
def _warn_of_lists(where: str) -> None:
    log.warning("the %s holds lists of captions: only the first of each is used (pool setting 'captions')", where)


def set_identity(
    sample: Sample, meta: Mapping[str, Any], image: bytes | None, caption: bytes | None, fields: Sequence[str]
) -> None:
    """Sets uid, original size and fields of a sample from its json or its table row."""
    sample.uid = parse_uid(meta.get("uid")) or content_uid(image, caption)
    sample.original_width = whole_number(meta.get("original_width"))
    sample.original_height = whole_number(meta.get("original_height"))
    for name in fields:
        value = meta.get(name)
        if name == ORIENTATION:
            from tamis.pools.images import orientation_left  # needs Pillow, which reading a run does not

            value = orientation_left(meta.get(EXIF), image)
        if value is not None:
            known = isinstance(value, int | float | list | dict)  # not a table's dates and decimals
            sample.given[name] = utf8(json.dumps(value, ensure_ascii=False, default=str) if known else str(value))
    if EXIF_WORDS.get(sample.given.get(ORIENTATION, ""), 1) >= 5:  # by a quarter
        sample.original_width, sample.original_height = sample.original_height, sample.original_width


def utf8(text: str) -> str:
    """Returns text that UTF-8 can encode: lone surrogates (from json, or from bytes that are not UTF-8) as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def whole_number(value: Any) -> int:
    """Returns a positive whole number as it is, and 0 for anything else."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 < value < 2**31 else 0  # True is an int for isinstance
