"""Checks that an exporter keeps its promises."""

from __future__ import annotations

import inspect
import io
import tarfile
import tempfile
from pathlib import Path

import tamis
from tamis.errors import TamisError
from tamis.exporters.exporter import Exporter
from tamis.store.stream import pool_of
from tamis.store.subset import Subset
from tamis.testing import pairs
from tamis.testing.records import check_record, title_of


def check_exporter(exporter: Exporter, *, documented: bool = False) -> None:
    """Checks an exporter on subsets of a drawn pool: the same subset makes the same bytes, and nothing else is touched.

    Args:
        exporter: what to check.
        documented: whether the docstring must begin with "Writes" and tell of the settings.

    Raises:
        AssertionError: a promise is broken; the sentence says how.
        DependencyError: a package that it needs is not here.
    """
    check_record(exporter, documented)
    title = title_of(exporter)
    assert isinstance(exporter, Exporter), f"{title} does not derive from tamis.exporters.Exporter"
    text = inspect.getdoc(type(exporter)) or ""
    assert not documented or text.startswith("Writes "), f"the docstring of {title} must begin with 'Writes '"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for shard in range(2):
            _write_shard(folder / "pool" / f"{shard:05d}.tar", range(4 * shard, 4 * shard + 4))
        run = tamis.score(folder / "pool", run=folder / "run", scores=["caption_length"], quiet=True)
        choices = {
            "every pair": [],
            "half of the pairs": [{"random_fraction": {"fraction": 0.5}}],
            "no pair": [{"top_n": {"score": "words", "n": 0}}],
        }
        subsets = {what: tamis.select(run, {"name": "chosen", "select": steps}) for what, steps in choices.items()}
        before = _bytes(folder)

        def write(subset: Subset, out: Path) -> int:
            return exporter.write(subset, out, *((pool_of(subset.run),) if exporter.needs_pool else ()))

        for what, subset in subsets.items():
            one, two = (folder / f"{what} {number}" / "out" for number in (1, 2))
            for out in (one, two):
                out.parent.mkdir()
                written = write(subset, out)
                counts = type(written) is int and written >= 0
                assert counts, f"{title}: of {what} it returns {written!r}, not how many it has written"
                assert out.exists(), f"{title}: of {what} nothing lies at the place it was given"
                beside = sorted(path.name for path in out.parent.iterdir() if path != out)
                assert not beside, f"{title} leaves {', '.join(beside)} beside what it writes"
            assert _bytes(one) == _bytes(two), f"{title}: {what} is written otherwise at another place"
            assert write(subset, two) == written, f"{title}: {what} has another count when it is written again"
            assert _bytes(one) == _bytes(two), f"{title}: {what} is another when it is written again"
        after = _bytes(folder)
        changed = sorted(name for name in before if before[name] != after.get(name))
        changed += sorted(name for name in after if name not in before and name.startswith(("pool/", "run/")))
        assert not changed, f"{title} changes {', '.join(changed)}, which is not what it writes"
        file = folder / "file"
        file.write_text("no folder")
        try:
            write(subsets["half of the pairs"], file / "out")
        except TamisError:
            return
        except OSError as error:
            raise AssertionError(
                f"{title}: below a file it raises {type(error).__name__}, which a user sees as a traceback: write with "
                "tamis.storage.writing"
            ) from error
        raise AssertionError(f"{title} says nothing of a place that cannot be, below a file")


def _write_shard(path: Path, seeds: range) -> None:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for seed in seeds:
            for ext, data in pairs.files(seed).items():
                info = tarfile.TarInfo(f"{seed:09d}.{ext}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))


def _bytes(place: Path) -> dict[str, bytes]:
    """Returns the bytes of a file, or of all files of a folder, by their path in it."""
    if place.is_file():
        return {"": place.read_bytes()}
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}
