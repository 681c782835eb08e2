"""The data types of the code: samples, columns, nodes.

A *node* is a frozen dataclass of settings that computes something for a batch. It names the nodes it needs; equal
nodes are computed once. *Features* are nodes whose value other nodes use (pixels, embeddings, text boxes). *Signals*
are nodes whose value is named columns.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, cached_property, partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args, get_type_hints

from tamis.core.arrays import Pixels
from tamis.core.compute import Device as Device
from tamis.core.errors import unknown_message
from tamis.core.ids import image_xxh3


class SampleStatus(NamedTuple):
    """What can be read of a sample.

    Attributes:
        about: its meaning, for pages.
        one, several: the words of `counted`.
        no_image: words in place of the image; "" if the image can be read.
        usable: whether image and caption can both be read, whatever else is wrong.
    """

    about: str
    one: str
    several: str
    no_image: str = ""
    usable: bool = False

    def counted(self, rows: int) -> str:
        """Returns the words that follow the number `rows`: "empty captions"."""
        return self.one if rows == 1 else self.several


#: Sample statuses in the index: "ok", or the first problem found.
STATUSES: Mapping[str, SampleStatus] = {
    "ok": SampleStatus("image and caption can be read", "readable pair", "readable pairs", usable=True),
    "image_missing": SampleStatus("the sample has no image file", "missing image", "missing images", "no image"),
    "image_broken": SampleStatus(
        "the image bytes cannot be decoded (truncated, no image, or a format that no trainer reads)",
        "broken image", "broken images", "not decodable",
    ),
    "image_too_large": SampleStatus(
        "the image has more pixels or bytes than the pool's limit (a decompression bomb)",
        "image that is too large", "images that are too large", "the image is too large",
    ),
    "image_refused": SampleStatus(
        "not decoded: a JPEG of so many scans that it takes minutes, or 32-bit pixels of unknown range",
        "image that is not decoded", "images that are not decoded", "the image is not decoded",
    ),
    "caption_missing": SampleStatus(
        "there is no caption, or it is too large or not text", "missing caption", "missing captions"
    ),
    "caption_empty": SampleStatus("the caption contains only white space", "empty caption", "empty captions"),
    "caption_not_utf8": SampleStatus(
        "the caption is not valid UTF-8", "caption that is not UTF-8", "captions that are not UTF-8"
    ),
    "json_broken": SampleStatus(
        "the sample's json cannot be read; its image and caption are still scored",
        "broken json", "broken jsons", usable=True,
    ),
    "duplicate_key": SampleStatus(
        "an earlier sample of the shard has the same key; this one is still scored",
        "repeated key", "repeated keys", usable=True,
    ),
    "shard_cut": SampleStatus(
        "the shard ends in the middle of this sample", "pair cut short", "pairs cut short", "the file could not be read"
    ),
}  # fmt: skip

#: The statuses of pairs whose image and caption can be read.
USABLE = frozenset(name for name, status in STATUSES.items() if status.usable)

#: "drop" shows the colours under transparency, as `convert("RGB")` and so trainers' loaders do (most programs write
#: black there); "white" puts the image on white, as a page shows it.
Transparency = Literal["drop", "white"]

#: The field of the index with the orientation by which an image was turned, because its file has lost it.
ORIENTATION = "exif_orientation"

#: EXIF's orientations in the words of exifread, and so of img2dataset.
EXIF_WORDS: Mapping[str, int] = {
    "Horizontal (normal)": 1,
    "Mirrored horizontal": 2,
    "Rotated 180": 3,
    "Mirrored vertical": 4,
    "Mirrored horizontal then rotated 90 CCW": 5,
    "Rotated 90 CW": 6,
    "Mirrored horizontal then rotated 90 CW": 7,
    "Rotated 90 CCW": 8,
}


def short_reason(reason: str) -> str:
    """Returns a reason as runs store it: 200 characters. It may quote a cell of megabytes."""
    return reason if len(reason) <= 200 else f"{reason[:197]}..."


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a sample: its extension, and its byte range in the (uncompressed) tar."""

    ext: str
    offset: int
    size: int


@dataclass(slots=True, kw_only=True)
class Sample:
    """One image-text pair as it was read.

    Attributes:
        uid: halves of the 128-bit id.
        key: the sample's name in its shard.
        caption: None if it is missing, empty, too large or not UTF-8.
        shown_caption: a display-safe caption.
        no_caption: why there is no caption; None if there is one.
        image: the image file's bytes; None if there is no image, or nothing needs it.
        pixels: (height, width, 3) RGB, decoded once, EXIF applied; None if the image cannot be decoded or nothing needs
            the pixels.
        hidden: (height, width) opacity of an image that is a single colour once transparency is ignored, e.g. black
            line art on a transparent background; None for other images, and if the pool setting puts images on white.
        transparent: mean transparency of the stored image, in [0, 1].
        width, height: size of the stored image after EXIF rotation; 0 if unknown.
        original_width, original_height: from the sample's json; 0 if it has none.
        given: other values that came with the sample (precomputed scores, embeddings, json fields).
        status, reason: see `STATUSES`; the reason is None if and only if the status is "ok".
    """

    uid: tuple[int, int]
    key: str
    caption: str | None = None
    shown_caption: str | None = None
    no_caption: str | None = None
    image: bytes | None = None
    pixels: Pixels | None = None
    hidden: Pixels | None = None
    transparent: float = 0.0
    width: int = 0
    height: int = 0
    original_width: int = 0
    original_height: int = 0
    image_bytes: int = 0
    members: tuple[Member, ...] = ()
    given: dict[str, Any] = field(default_factory=dict)
    status: str = "ok"
    reason: str | None = None

    def mark(self, status: str, reason: str) -> None:
        """Records a problem, unless an earlier one is recorded."""
        if status not in STATUSES:
            raise ValueError(f"{status!r} is not a status; known: {', '.join(STATUSES)}")
        if self.status == "ok":
            self.status, self.reason = status, short_reason(reason)


class IndexColumn(NamedTuple):
    """A column of the index, which every run has.

    Attributes:
        type: its Arrow type: pyarrow's alias, "word" for a dictionary of strings, or "members".
        value: a sample's value; None is stored as null.
        kind: what recipes read it as; None: they cannot. Of a number that is null, a sample read back has 0.
        unit, about: what a number measures, and its words on pages.
        required: no value is null.
    """

    type: str
    value: Callable[[Sample], Any]
    kind: Literal["number", "word"] | None = None
    unit: str = ""
    about: str = ""
    required: bool = False


_BEFORE = "pixels, before it was resized"

#: The columns of the index by name.
INDEX: Mapping[str, IndexColumn] = {
    "uid_hi": IndexColumn("uint64", lambda one: one.uid[0], required=True),
    "uid_lo": IndexColumn("uint64", lambda one: one.uid[1], required=True),
    "key": IndexColumn("string", lambda one: one.key, "word", required=True),
    "caption": IndexColumn("string", lambda one: one.shown_caption),
    "caption_judged": IndexColumn("bool", lambda one: one.caption is not None, required=True),
    "width": IndexColumn("int32", lambda one: one.width or None, "number", "pixels", "pixels"),
    "height": IndexColumn("int32", lambda one: one.height or None, "number", "pixels", "pixels"),
    "original_width": IndexColumn("int32", lambda one: one.original_width or None, "number", "pixels", _BEFORE),
    "original_height": IndexColumn("int32", lambda one: one.original_height or None, "number", "pixels", _BEFORE),
    "image_bytes": IndexColumn("int64", lambda one: one.image_bytes, "number", "bytes", "of the file"),
    "image_xxh3": IndexColumn("uint64", lambda one: None if one.image is None else image_xxh3(one.image), "word"),
    "members": IndexColumn(
        "members", lambda one: [{"ext": part.ext, "offset": part.offset, "size": part.size} for part in one.members]
    ),
    "status": IndexColumn("word", lambda one: one.status, "word", required=True),
    "reason": IndexColumn("string", lambda one: one.reason),
}

#: The columns of the index that recipes may use like scores. The pool's json fields are words too.
INDEX_NUMBERS = tuple(name for name, column in INDEX.items() if column.kind == "number")
INDEX_WORDS = tuple(name for name, column in INDEX.items() if column.kind == "word")

#: Columns of every run's index or tables. A pool's fields may not have these names: a field would hide the column.
RESERVED = frozenset(("uid", "shard", *INDEX))


#: Units of numbers that are not amounts: a yes or no, a place on a map, the number of a cluster.
NO_AMOUNTS = frozenset(("0 or 1", "position", "number of a cluster"))


@dataclass(frozen=True, slots=True)
class Column:
    """One named result of a signal.

    Attributes:
        name: its name in recipes and tables.
        unit: what a value measures ("cosine", "share", "words", "pixels").
        better: which values a curator usually keeps. Only for display: no comparison depends on it.
        kind: "number" is stored as float32, "word" as a dictionary-coded string. "vector": a stored embedding, which
            selectors can read; no signal emits one.
        about: one sentence, for lists and the report.
        beside: the column of the signal that is shown next to this one to explain its values; "" for none.
    """

    name: str
    unit: str
    better: Literal["high", "low", "neither"]
    _: KW_ONLY
    kind: Literal["number", "word", "vector"] = "number"
    about: str = ""
    beside: str = ""

    @property
    def is_score(self) -> bool:
        """Whether values are amounts, so that a histogram and a threshold mean something."""
        return self.kind == "number" and self.unit not in NO_AMOUNTS


@dataclass(frozen=True)
class _Contents:
    """Marks a setting that names a model or a file: fingerprints depend on its contents, not on its name."""

    of: Literal["model", "file", "parser"]


#: Metadata of a setting that came after the first runs: runs do not record it while it is None.
LATER: Mapping[str, bool] = {"later": True}

#: Side files of a signal: the names of its classes, and the (k, d) float32 unit rows that embed them.
CLASS_NAMES, CLASS_VECTORS = "class_names.json", "class_vectors.npy"

#: The features that a run can store (`stored_as`).
KEEPS = ("embeddings", "captions", "texts")

#: What `keep` may say: none of them, not even the embeddings that a CLIP's run stores otherwise.
KEEP_WORDS = (*KEEPS, "none")

#: A reference to a model: a Hugging Face id, a local folder, or a built-in name.
ModelRef = Annotated[str, _Contents("model")]

#: The same, or None.
OptionalModelRef = Annotated[str | None, _Contents("model")]

#: A spaCy pipeline: an installed package, or a folder.
ParserRef = Annotated[str, _Contents("parser")]

#: The path of a file, or of a folder of files, that a node reads.
FileRef = Annotated[str, _Contents("file")]

#: The same, or None.
OptionalFileRef = Annotated[str | None, _Contents("file")]


def check_class_attributes(cls: type, known: Mapping[str, type | None]) -> None:
    """Raises TypeError for a misspelt class attribute of a plug-in, or one of another type (None: any type).

    Settings have annotations, constants are in capitals or begin with "_"; any other value must be a known attribute.
    """
    hints = vars(cls).get("__annotations__", {})
    fields = {name for name, hint in hints.items() if not str(hint).startswith(("ClassVar", "typing.ClassVar"))}
    for name, value in vars(cls).items():
        plain = not (callable(value) or isinstance(value, property | classmethod | staticmethod | cached_property))
        if name.startswith("_") or name.isupper() or name in fields or not plain:
            continue
        if name not in known:
            raise TypeError(
                f"{cls.__qualname__}: {unknown_message('class attribute', name, known)}; settings need annotations"
            )
        wanted = known[name]
        if wanted is not None and type(value) is not wanted:
            raise TypeError(f"{cls.__qualname__}: {name} must be a {wanted.__name__}, got {value!r}")


#: The class attributes of nodes.
_OF_NODES: Mapping[str, type | None] = {
    "name": str,
    "version": int,
    "columns": tuple,
    "host": bool,
    "in_index": bool,
    "reads_texts": bool,
    "stored_as": None,
}


class Node(ABC):
    """Base class of features and signals, which are frozen dataclasses of settings.

    Attributes:
        name: its name in folders, recipes and fingerprints.
        version: raise it when the same settings give other numbers.
        host: whether it runs in the reading threads, alongside the model. It must then not use torch.
        in_index: whether it uses only the index, so that no shard is read again.
        reads_texts: False if its models get no texts: then how these clean texts is not part of its fingerprint.
        stored_as: how a run can store its value (see `KEEPS`); None: it cannot.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    host: ClassVar[bool] = False
    in_index: ClassVar[bool] = False
    reads_texts: ClassVar[bool] = True
    stored_as: ClassVar[str | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_class_attributes(cls, _OF_NODES)
        if cls.stored_as not in (None, *KEEPS):
            raise TypeError(f"{cls.__qualname__}: {unknown_message('stored feature', str(cls.stored_as), KEEPS)}")

    @abstractmethod
    def needs(self) -> Mapping[str, Node]:
        """Returns {argument of the function that `load` returns: the node that computes it}."""

    @abstractmethod
    def load(self, device: Device) -> Callable[..., Any]:
        """Loads heavy things, such as a model, and returns the function that computes one batch."""

    def arithmetic(self, device: Device) -> str:
        """Returns a word for how a device computes, for fingerprints: equal words mean equal results.

        A GPU adds in another order than a CPU, and its float32 convolutions use TF32: embeddings differ in their last
        bits, sampled captions in whole words.
        """
        kind = device.kind.partition(":")[0]
        return device.precision if kind == "cpu" else f"{device.precision} on {kind}"


class Signal(Node):
    """A node that turns a batch into columns: a mapping of column name to (n,) values.

    Numbers are NaN, and words None, for samples that are not scored. Numbers are stored as float32: overflow is an
    error, and below 1e-45 they become 0. The mapping may also hold "reason": a list of n sentences or None, for
    samples that can be read but not scored by this signal.

    Attributes:
        columns: all that it emits.
    """

    columns: ClassVar[tuple[Column, ...]]

    def side_files(self, device: Device) -> Mapping[str, Any]:
        """Returns files to store once, next to the parts of all shards: {name: content} (runs/parts.py)."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Samples(Node):
    """The root of every graph: the batch itself, a list of `Sample`."""

    name: ClassVar[str] = "samples"
    host: ClassVar[bool] = True

    def needs(self) -> Mapping[str, Node]:
        return {}

    def load(self, device: Device) -> Callable[..., Any]:
        raise AssertionError("the samples are given, never computed")


#: A node's type hints, cached, including the `Annotated` markers.
_hints: Callable[[type[Any]], dict[str, Any]] = cache(partial(get_type_hints, include_extras=True))  # type: ignore[assignment]


def references(node: Any, to: Literal["model", "file", "parser"]) -> dict[str, str]:
    """Returns {setting: reference} of a node's settings (a dataclass) that name models, files or spaCy pipelines."""
    hints = _hints(type(node))
    kinds = {name: (hints[name], *get_args(hints[name])) for name in settings(node)}  # a union's, too
    marked = [name for name, some in kinds.items() if any(_Contents(to) in _metadata(one) for one in some)]
    return {name: value for name in marked if isinstance(value := getattr(node, name), str)}


def _metadata(hint: Any) -> tuple[Any, ...]:
    return getattr(hint, "__metadata__", ())


def settings(node: Any, *, recorded: bool = False) -> dict[str, Any]:
    """Returns the settings of a node (a dataclass) as JSON and recipes hold them, with records as nested mappings.

    `recorded`: only those that a run records. Settings that change no result, which a record lists as `execution`, are
    not, nor those marked `LATER` that are None.
    """
    plain: dict[str, Any] = {}
    for setting in dataclasses.fields(node):
        value = getattr(node, setting.name)
        later = setting.metadata == LATER and value is None
        if recorded and (later or setting.name in getattr(node, "execution", ())):
            continue
        if dataclasses.is_dataclass(value):
            value = settings(value, recorded=recorded)
        plain[setting.name] = list(value) if isinstance(value, tuple) else value
    return plain


def flat(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Returns nested settings on one level: {"boxes": {"side": 320}} as {"boxes.side": 320}."""
    values: dict[str, Any] = {}
    for name, value in settings.items():
        values |= flat(value, f"{before}{name}.") if isinstance(value, Mapping) else {f"{before}{name}": value}
    return values
