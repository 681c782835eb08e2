"""Files that a recipe names: a pipe, a device or a file that is far too large is refused before it is read."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from factories import score, write_pool

import tamis
from tamis import exports as exporters
from tamis.core.errors import RecipeError, StopError, check_file, read_text
from tamis.exports import Exporter
from tamis.recipes import steps as selectors
from tamis.recipes.steps import steps
from tamis.recipes.steps.outcome import Selection
from tamis.runs import Run
from tamis.runs.subset import Subset
from tamis.runs.table import Table

#: By what makes them: settings that name a file, FILE. Each is of a signal, a derived signal, or a step.
NAMED: Mapping[str, Mapping[str, Any]] = {
    "signals": {
        "zero_shot_class": {"model": "lab/clip", "classes_from": "FILE"},
        "class_mentions": {"classes_from": "FILE"},
        "judge": {"model": "lab/captioner", "aspects_from": "FILE"},
        "sieve": {"captions_from": "FILE"},
        "clip": {"embeddings_from": "FILE"},
        "head": {"of": "lab/clip", "weights": "FILE"},
    },
    "derive": {
        "mix": {"weights": "FILE"},
        "scores_from": {"path": "FILE"},
        "entries": {"entries_from": "FILE"},
        "hash_match": {"md5": "FILE"},
        "norm_sim": {"targets": "FILE"},
        "concept_weight": {"concepts": "FILE"},
        "concepts": {"concepts": "FILE", "at_least": 0.2},
    },
    "select": {"not_in": {"reference": "FILE"}, "image_based": {"reference": "FILE", "clusters": 2}},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("named")
    signals = ("caption_length", "image_hash", "file_hash", {"clip": {"model": "lab/clip"}})
    return score(write_pool(folder / "pool", 1, 3), folder / "run", *signals, keep=["embeddings"])


@pytest.mark.parametrize("file", ["/dev/zero", "pipe.npy", "pipe.csv", "pipe.npz", "pipe.parquet", "pipe"])
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, some in NAMED.items() for name in some])
def test_what_is_no_regular_file_is_refused(kind: str, name: str, file: str, run: Run, tmp_path: Path) -> None:
    path = file
    if not file.startswith("/"):
        os.mkfifo(path := str(tmp_path / file))
    settings = {key: path if value == "FILE" else value for key, value in NAMED[kind][name].items()}
    command: Callable[[], object] = {
        "signals": lambda: score(run.path.parent / "pool", tmp_path / "run", {name: settings}),
        "derive": lambda: tamis.derive(run, [{name: settings}]),
        "select": lambda: tamis.select(run, {"select": [{name: settings}]}),
    }[kind]
    with pytest.raises(StopError) as caught:  # it is not opened, so nothing hangs
        command()
    assert os.path.basename(path) in str(caught.value), caught.value
    assert not (tmp_path / "run" / "index").exists()


def test_a_head_of_zeros_that_unpacks_to_gigabytes_is_refused(run: Run, tmp_path: Path) -> None:
    import zipfile

    path = tmp_path / "head.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("weight.npy", "w") as entry:
        header = {"descr": "<f4", "fortran_order": False, "shape": (1, (1 << 28) + 1)}
        np.lib.format.write_array_header_1_0(entry, header)
        for _ in range(65):
            entry.write(bytes(1 << 24))
    signal = {"head": {"of": "lab/clip", "weights": str(path)}}
    with pytest.raises(StopError, match=r"head\.npz: its arrays take 1,.* bytes, more than the limit of 1,073,741,824"):
        score(run.path.parent / "pool", tmp_path / "run", signal)


def test_a_list_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with open(path := tmp_path / "list.txt", "wb") as file:
        file.truncate(3 << 40)  # without taking any room
    with pytest.raises(ValueError, match=r"list\.txt has 3,298,.* bytes, more than the limit of"):
        read_text(path)
    check_file(path)


@dataclass(frozen=True, kw_only=True)
class FaultyStep:
    """Fails, or returns what is no selection."""

    name: ClassVar[str] = "faulty"
    reads: ClassVar[frozenset[str]] = frozenset({"words"})
    how: str = "raise"

    def select(self, table: Table) -> Any:
        if self.how == "raise":
            raise ZeroDivisionError("division by zero")
        if self.how == "nothing":
            return None
        keep = np.ones(len(table) + (self.how == "long"), bool)
        return Selection(keep, {} if self.how == "uncounted" else {"kept": len(table)}, (~keep).view(np.uint8), ())


@dataclass(frozen=True, kw_only=True)
class FaultyFormat(Exporter):
    """Fails, or does not say what it wrote."""

    name: ClassVar[str] = "faulty"
    how: str = "raise"

    def write(self, subset: Subset, out: Path) -> Any:
        if self.how == "raise":
            raise KeyError("x")

    def wrote(self, out: Path, run: Run | None) -> bool:
        raise IndexError("list index out of range")


@pytest.mark.parametrize("how", ["raise", "nothing", "long", "uncounted"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_step_of_another_package_that_fails_is_named(
    how: str, inside: bool, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(selectors.SELECTORS.built_in, "faulty", "steps:FaultyStep")
    monkeypatch.setattr(steps, "FaultyStep", FaultyStep, raising=False)
    step = {"faulty": {"how": how}}
    with pytest.raises(RecipeError, match=r"the step 'faulty' \(.*test_named_files\) failed: .*uninstall its package"):
        tamis.select(run, {"select": [{"all_of": [step]} if inside else step]})


@pytest.mark.parametrize(("how", "there"), [("raise", False), ("nothing", False), ("raise", True)])
def test_an_export_format_of_another_package_that_fails_is_named(
    how: str, there: bool, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporters.EXPORTERS, "named", lambda name: FaultyFormat)
    monkeypatch.setattr(exporters, "exporter_class", lambda name: FaultyFormat)
    if there:
        (tmp_path / "out").write_text("words")
    subset = tamis.select(run, {"select": []})
    expected = r"the export format 'faulty' \(.*test_named_files\) failed: .*uninstall its package"
    with pytest.raises(RecipeError, match=expected):
        tamis.export(subset, "faulty", tmp_path / "out", how=how)
