"""What every exporter promises."""

from __future__ import annotations

import inspect
import io
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tamis import api
from tamis.errors import TamisError
from tamis.exporters import Exporter
from tamis.store.stream import pool_of
from tamis.store.subset import Subset
from tamis.testing import pairs, promises
from tamis.testing.promises import RECORD_PROMISES, Broken, Promise, docstring, expect, name_is_a_word, title

#: Of the drawn pool.
_SHARDS, _ROWS = 2, 4

#: What is chosen of it, as recipes write it.
_CHOICES: Mapping[str, list[Any]] = {
    "every pair": [],
    "half of the pairs": [{"random_fraction": {"fraction": 0.5}}],
    "no pair": [{"top_n": {"score": "words", "n": 0}}],
}


@dataclass(frozen=True, kw_only=True)
class ExporterCase:
    """An exporter, and what its promises are checked with.

    Attributes:
        record: the exporter.
        subsets: of `drawn_subsets`, by what they hold.
        folder: where those lie, and what is exported.
        documented: whether the docstring must tell of settings, as those of Tamis do.
    """

    record: Exporter
    subsets: Mapping[str, Subset]
    folder: Path
    documented: bool = False

    @property
    def title(self) -> str:
        """What messages call it."""
        return title("exporter", self.record)

    def write(self, subset: Subset, out: Path) -> int:
        """Exports a subset as `tamis.export` does."""
        pool = (pool_of(subset.run),) if self.record.needs_pool else ()
        return self.record.write(subset, out, *pool)

    def place(self, name: str) -> Path:
        """Returns a path to write to, in a new folder of its own."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        return folder / name


def drawn_subsets(folder: Path) -> dict[str, Subset]:
    """Returns subsets of a drawn pool of two shards, by what they hold.

    Args:
        folder: gets the pool and a run of it, as `pool` and `run`.
    """
    pool = folder / "pool"
    pool.mkdir()
    for shard in range(_SHARDS):
        _write_shard(pool / f"{shard:05d}.tar", range(shard * _ROWS, (shard + 1) * _ROWS))
    run = api.score(pool, run=folder / "run", scores=["caption_length"], quiet=True)
    return {name: api.select(run, {"name": "chosen", "select": steps}) for name, steps in _CHOICES.items()}


def _write_shard(path: Path, seeds: range) -> None:
    with tarfile.open(path, "w") as tar:
        for seed in seeds:
            for ext, data in pairs.files(seed).items():
                info = tarfile.TarInfo(f"{seed:09d}.{ext}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def it_declares_itself(case: ExporterCase) -> None:
    """It derives from `Exporter`, and has a name for recipes and `--to`."""
    expect(isinstance(case.record, Exporter), "it does not derive from tamis.exporters.Exporter")
    name_is_a_word(case.record.name, "its name")


def it_writes_and_counts(case: ExporterCase) -> None:
    """Whatever is kept, something lies where it was told to write, and it says how many pairs it has written."""
    for what, subset in case.subsets.items():
        out = case.place("out")
        written = case.write(subset, out)
        expect(type(written) is int and written >= 0, f"of {what} it returns {written!r}, not how many it has written")
        expect(out.exists(), f"of {what} nothing lies at the place it was given")


def the_same_subset_makes_the_same_bytes(case: ExporterCase) -> None:
    """Here or elsewhere, at once or again over what is there."""
    subset = case.subsets["half of the pairs"]
    one, two = case.place("out"), case.place("out")
    first, second = case.write(subset, one), case.write(subset, two)
    _expect_same(_bytes(one), _bytes(two), "at another place")
    third = case.write(subset, one)
    _expect_same(_bytes(two), _bytes(one), "written again")
    expect(first == second == third, f"it says it has written {first}, {second} and {third} pairs")


def nothing_else_is_touched(case: ExporterCase) -> None:
    """Run and pool stay as they are, and no other file lies beside what it writes."""
    subset = case.subsets["half of the pairs"]
    before = {part: _bytes(case.folder / part) for part in ("pool", "run")}
    out = case.place("out")
    case.write(subset, out)
    beside = sorted(path.name for path in out.parent.iterdir() if path != out)
    expect(not beside, f"it leaves {', '.join(beside)} beside what it writes")
    for part, was in before.items():
        _expect_same(was, _bytes(case.folder / part), f"in the {part}, after an export,")


def a_place_that_cannot_be_written_is_told(case: ExporterCase) -> None:
    """It raises one of `tamis.errors`: `tamis.store.atomic.writing` turns the system's errors into those."""
    file = case.place("file")
    file.write_text("no folder")
    try:
        case.write(case.subsets["half of the pairs"], file / "out")
    except TamisError:
        return
    except OSError as error:
        raise Broken(
            f"below a file it raises {type(error).__name__}, which a user sees as a traceback: write with "
            "tamis.store.atomic.writing"
        ) from error
    raise Broken(f"it says nothing of a place that cannot be, {file.name}/out below a file")


def its_docstring_tells_its_settings(case: ExporterCase) -> None:
    """It begins with "Writes"."""
    if case.documented:
        text = docstring(case)
        expect(text.startswith("Writes "), "its docstring must begin with 'Writes '")


#: What every exporter promises; each is called with an `ExporterCase`.
EXPORTER_PROMISES: tuple[Promise[ExporterCase], ...] = tuple(
    Promise(check)
    for check in (
        it_declares_itself,
        *RECORD_PROMISES,
        promises.its_settings_stand_in_a_recipe,
        nothing_else_is_touched,  # before other exports may have touched it
        it_writes_and_counts,
        the_same_subset_makes_the_same_bytes,
        a_place_that_cannot_be_written_is_told,
        its_docstring_tells_its_settings,
    )
)


def check_exporter(exporter: Exporter, *, documented: bool = False) -> None:
    """Checks all that an exporter promises, on subsets of a drawn pool in a temporary folder.

    Args:
        exporter: what to check.
        documented: see `ExporterCase`.

    Raises:
        AssertionError: a promise is broken; the sentence says which, and with which values.
        DependencyError: a package that it needs is not here.
    """
    if inspect.isclass(exporter):
        raise TypeError(f"check_exporter takes an exporter, not its class: {exporter.__name__}()")
    with tempfile.TemporaryDirectory() as folder:
        subsets = drawn_subsets(Path(folder))
        case = ExporterCase(record=exporter, subsets=subsets, folder=Path(folder), documented=documented)
        for promise in EXPORTER_PROMISES:
            promise(case)


def _bytes(place: Path) -> dict[str, bytes]:
    """Returns the bytes of a file, or of all files of a folder, by their path in it."""
    if place.is_file():
        return {place.name: place.read_bytes()}
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}


def _expect_same(one: Mapping[str, bytes], two: Mapping[str, bytes], how: str) -> None:
    other = sorted(name for name in {*one, *two} if one.get(name) != two.get(name))
    expect(not other, f"{how} {', '.join(other)} is another")
