"""Captions that a model gives to the images."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from tamis.data import Device, FileRef, ModelRef, Node, Pixels, Sample, Samples
from tamis.errors import RecipeError
from tamis.features.embeddings import ModelPixels
from tamis.features.sources import DecodedImages
from tamis.models.captioners.sampling import Sampling
from tamis.uid import format_uid, parse_uid


@dataclass(frozen=True, kw_only=True)
class GeneratedCaptions(Node):
    """Captions of each image, drawn by nucleus sampling: n lists of texts, None where it does not decode.

    A caption depends on the image, the pair's uid and these settings alone.

    Attributes:
        model: a BLIP, GIT or other image-to-text checkpoint.
        sampling: how many, and how they are drawn.
        of: which images: as decoded, or with their text painted over.
        fit: how images are made to fit the model; see `ModelPixels`.

    Cost: docs/performance.md.
    """

    name: ClassVar[str] = "generated_captions"
    version: ClassVar[int] = 1
    stored_as: ClassVar[str] = "captions"
    model: ModelRef
    sampling: Sampling = Sampling()
    of: Node = DecodedImages()
    fit: Literal["model", "crop"] = "model"

    def __post_init__(self) -> None:
        if not self.sampling.top_p:  # captions that are all the same are one
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.sampling.top_p}")

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples(), "pixels": ModelPixels(model=self.model, of=self.of, fit=self.fit)}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.captioners.sampled import load_captioner

        captioner = load_captioner(self.model, device)
        captioner.check(self.sampling)

        def captions(*, samples: Sequence[Sample], pixels: Sequence[Pixels | None]) -> list[list[str] | None]:
            present = [n for n, image in enumerate(pixels) if image is not None]
            found: list[list[str] | None] = [None] * len(pixels)
            if present:
                uids = np.array([samples[n].uid for n in present], np.uint64)
                images = [image for image in pixels if image is not None]
                for n, said in zip(present, captioner(images, uids, self.sampling), strict=True):
                    found[n] = said
            return found

        return captions


@dataclass(frozen=True, kw_only=True)
class GivenCaptions(Node):
    """Captions that were made elsewhere: n lists of texts, None for a pair that the file lacks.

    Attributes:
        file: Parquet, CSV or JSON Lines with a column `uid` (32 hex digits) or `key`, and a column `captions` (a list
            of texts, in CSV as JSON) or `caption` (one text; rows of one pair follow one another or not). Pairs of
            several shards that have one key share its captions: use uids where keys repeat.
    """

    name: ClassVar[str] = "given_captions"
    version: ClassVar[int] = 1
    host: ClassVar[bool] = True
    in_index: ClassVar[bool] = True
    file: FileRef

    def needs(self) -> Mapping[str, Node]:
        return {"samples": Samples()}

    def load(self, device: Device) -> Callable[..., Any]:
        by, known = read_captions_file(Path(self.file).expanduser())

        def captions(*, samples: Sequence[Sample]) -> list[list[str] | None]:
            names = (format_uid(*sample.uid) if by == "uid" else sample.key for sample in samples)
            return [known.get(name) for name in names]

        return captions


def read_captions_file(path: Path) -> tuple[Literal["uid", "key"], dict[str, list[str]]]:
    """Reads captions made elsewhere.

    Returns:
        By what they are known, and the captions of each uid (lower case) or key.

    Raises:
        RecipeError: the file is not there, is of another kind, or lacks a column; the message says which it has.
    """
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    # As text, or a key of digits would lose its leading zeros.
    as_text = dict.fromkeys(("uid", "key", "captions", "caption"), pa.string())
    quoted = pyarrow.csv.ParseOptions(newlines_in_values=True)
    options = pyarrow.csv.ConvertOptions(
        column_types=as_text, strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    readers: dict[str, Callable[[Path], pa.Table]] = {
        ".parquet": pyarrow.parquet.read_table,
        ".csv": lambda path: pyarrow.csv.read_csv(path, parse_options=quoted, convert_options=options),
        ".jsonl": pyarrow.json.read_json,
    }
    if path.suffix not in readers:
        raise RecipeError(f"captions_from: {path} is none of {', '.join(readers)}")
    try:
        table = readers[path.suffix](path)
    except (OSError, pa.ArrowException) as error:
        raise RecipeError(f"captions_from: {path} cannot be read: {error}") from error
    by: Literal["uid", "key"] = "uid" if "uid" in table.column_names else "key"
    what = "captions" if "captions" in table.column_names else "caption"
    for name in (by, what):
        if name not in table.column_names:
            raise RecipeError(
                f"captions_from: {path} has the columns {', '.join(table.column_names)}; it needs uid or key, and "
                "captions (lists) or caption"
            )
    if pa.types.is_integer(table.schema.field(by).type):
        raise RecipeError(f"captions_from: {path}: the column {by} holds numbers; write it as text, zeros in front too")
    found: dict[str, list[str]] = {}
    for number, row in enumerate(table.select([by, what]).to_pylist(), 1):
        name = str(row[by])
        texts = _texts(row[what] if what == "captions" else [row[what]])
        if texts is None:
            raise RecipeError(f"captions_from: {path}, row {number} ({name}): {row[what]!r} is not a list of texts")
        if by == "uid" and parse_uid(name.lower()) is None:
            raise RecipeError(f"captions_from: {path}, row {number}: {name!r} is no uid of 32 hex digits")
        found.setdefault(name.lower() if by == "uid" else name, []).extend(text for text in texts if text)
    return by, found


def _texts(value: Any) -> list[str | None] | None:
    """Returns a list of texts, given as such or as JSON; None where it is neither."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if value is None:
        return []
    return value if isinstance(value, list) and all(text is None or isinstance(text, str) for text in value) else None
