"""Writing subsets for trainers (DataComp's npy, Parquet, key lists, WebDataset shards), and what they do not hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tamis.exporters.dropped import DroppedExport
from tamis.exporters.keys import KeysExport
from tamis.exporters.npy import NpyExport
from tamis.exporters.parquet import ParquetExport
from tamis.exporters.webdataset import WebDatasetExport

#: Every export format by the name that recipes and `--to` use.
EXPORTERS: Mapping[str, type[Any]] = {
    cls.name: cls for cls in (NpyExport, ParquetExport, KeysExport, WebDatasetExport, DroppedExport)
}

__all__ = ["EXPORTERS", "DroppedExport", "KeysExport", "NpyExport", "ParquetExport", "WebDatasetExport"]
