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
from typing import Annotated, Any, ClassVar, Literal, get_args, get_type_hints

from tamis.core.arrays import Pixels
from tamis.core.compute import Device as Device
from tamis.core.errors import unknown_message

#: Sample statuses in the index, with their meanings: "ok", or the first problem found.
STATUSES: Mapping[str, str] = {
    "ok": "image and caption can be read",
    "image_missing": "the sample has no image file",
    "image_broken": "the image bytes cannot be decoded (truncated, no image, or a format that no trainer reads)",
    "image_too_large": "the image has more pixels or bytes than the pool's limit (a decompression bomb)",
    "image_refused": "not decoded: a JPEG of so many scans that it takes minutes, or 32-bit pixels of unknown range",
    "caption_missing": "there is no caption, or it is too large or not text",
    "caption_empty": "the caption contains only white space",
    "caption_not_utf8": "the caption is not valid UTF-8",
    "json_broken": "the sample's json cannot be read; its image and caption are still scored",
    "duplicate_key": "an earlier sample of the shard has the same key; this one is still scored",
    "shard_cut": "the shard ends in the middle of this sample",
}

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
        """Returns files to store once, next to the parts of all shards: {name: content} (store/parts.py)."""
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
