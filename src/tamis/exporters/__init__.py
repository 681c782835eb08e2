"""Writing subsets: for trainers (npy, Parquet, keys, WebDataset shards), for looking; and what they do not hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tamis.exporters.dropped import DroppedExport
from tamis.exporters.embedding_atlas import EmbeddingAtlasExport
from tamis.exporters.exporter import Exporter
from tamis.exporters.keys import KeysExport
from tamis.exporters.npy import NpyExport
from tamis.exporters.parquet import ParquetExport
from tamis.exporters.webdataset import WebDatasetExport
from tamis.plugins import Register, undefined

#: Every export format by the name that recipes and `--to` use.
EXPORTERS: Mapping[str, type[Any]] = {
    cls.name: cls
    for cls in (NpyExport, ParquetExport, KeysExport, WebDatasetExport, DroppedExport, EmbeddingAtlasExport)
}


def _wrong(cls: type[Any]) -> str:
    return undefined(cls) if issubclass(cls, Exporter) else "does not derive from tamis.exporters.Exporter"


#: All exporters: those of `EXPORTERS`, and those of other packages.
REGISTER = Register(kind="export format", group="tamis.exporters", ours=EXPORTERS, wrong=_wrong)

#: All by name: see `Register`.
exporters = REGISTER.all


def exporter_class(name: str) -> type[Any]:
    """Returns one exporter's class, as `Register.get` does; one of ours also under the hyphens that commands have."""
    plain = name.replace("-", "_")
    return REGISTER.get(plain if plain in EXPORTERS else name)


__all__ = [
    "EXPORTERS",
    "REGISTER",
    "DroppedExport",
    "EmbeddingAtlasExport",
    "Exporter",
    "KeysExport",
    "NpyExport",
    "ParquetExport",
    "WebDatasetExport",
    "exporter_class",
    "exporters",
]
