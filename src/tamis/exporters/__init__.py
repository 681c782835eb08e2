"""Writing subsets for trainers (npy, Parquet, keys, WebDataset shards), and the list of dropped pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tamis.registry import Classes, Register, undefined

if TYPE_CHECKING:
    from tamis.exporters.exporter import Exporter

#: Every export format by the name that recipes and `--to` use; each is imported on first use.
EXPORTERS = Classes(
    "tamis.exporters",
    {
        "npy": "lists:NpyExport",
        "parquet": "lists:ParquetExport",
        "keys": "lists:KeysExport",
        "webdataset": "webdataset:WebDatasetExport",
        "dropped": "lists:DroppedExport",
    },
)


def _wrong(cls: type[Any]) -> str:
    from tamis.exporters.exporter import Exporter

    return undefined(cls) if issubclass(cls, Exporter) else "does not derive from tamis.exporters.Exporter"


#: All exporters: those of `EXPORTERS` and of other packages.
REGISTER = Register(kind="export format", group="tamis.exporters", ours=EXPORTERS, wrong=_wrong)

#: All by name, and the class of one name: see `Register`.
exporters, exporter_class = REGISTER.all, REGISTER.get


def __getattr__(name: str) -> Any:
    if name == "Exporter":
        from tamis.exporters import exporter

        return exporter.Exporter
    return EXPORTERS.attribute(name)


__all__ = ["EXPORTERS", "REGISTER", "Exporter", "exporter_class", "exporters", *EXPORTERS.class_names]
