"""Writing subsets for trainers (npy, Parquet, keys, WebDataset shards), and the list of dropped pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tamis.core.registry import Register, missing_methods

if TYPE_CHECKING:
    from tamis.exports.exporter import Exporter


def _wrong(cls: type[Any]) -> str:
    from tamis.exports.exporter import Exporter

    return missing_methods(cls) if issubclass(cls, Exporter) else "does not derive from tamis.exports.Exporter"


#: Every export format by the name that recipes and `--to` use; each is imported on first use.
EXPORTERS = Register(
    "export format",
    "tamis.exporters",
    "tamis.exports",
    {
        "npy": "lists:NpyExport",
        "parquet": "lists:ParquetExport",
        "keys": "lists:KeysExport",
        "webdataset": "webdataset:WebDatasetExport",
        "huggingface": "huggingface:HuggingFaceExport",
        "dropped": "lists:DroppedExport",
    },
    _wrong,
)

#: Every exporter by name, including other packages'; and one exporter by its name.
exporters, exporter_class = EXPORTERS.all, EXPORTERS.named


def __getattr__(name: str) -> Any:
    if name == "Exporter":
        from tamis.exports import exporter

        return exporter.Exporter
    return EXPORTERS.attribute(name)


__all__ = ["EXPORTERS", "Exporter", "exporter_class", "exporters", *EXPORTERS.exported]
