"""Checks that an exporter keeps its promises."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path

from tamis.choosing import select
from tamis.errors import TamisError
from tamis.exporters.exporter import Exporter
from tamis.scoring import score
from tamis.store.stream import pool_of
from tamis.store.subset import Subset
from tamis.testing import pairs
from tamis.testing.records import check_record


def check_exporter(exporter: Exporter) -> None:
    """Checks an exporter on subsets of a drawn pool: the same subset makes the same bytes, and nothing else is touched.

    Args:
        exporter: what to check.

    Raises:
        AssertionError: a promise is broken; the message says which.
        DependencyError: a package that it needs is not installed.
    """
    title = check_record(exporter)
    assert isinstance(exporter, Exporter), f"{title} does not derive from tamis.exporters.Exporter"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_pool(folder / "pool")
        run = score(folder / "pool", run=folder / "run", signals=["caption_length"], quiet=True)
        before = _bytes(folder)

        def write(subset: Subset, out: Path) -> int:
            return exporter.write(subset, out, *((pool_of(subset.run),) if exporter.needs_pool else ()))

        for share in (0, 1, 0.5):
            what = f"a subset of {8 * share:g} of 8 pairs"
            subset = select(run, {"name": "chosen", "select": [{"random_fraction": {"fraction": share}}]})
            one, two = folder / f"one {share}" / "out", folder / f"two {share}" / "out"
            for out in (one, two, two):  # the second time over what is there
                out.parent.mkdir(exist_ok=True)
                written = write(subset, out)
                assert type(written) is int, f"{title}: write() returns {written!r} for {what}, not a number of pairs"
                entries = sorted(path.name for path in out.parent.iterdir())
                assert entries == ["out"], (
                    f"{title} must write `out` for {what} and nothing next to it, wrote {entries}"
                )
                assert _bytes(out) == _bytes(one), f"{title} writes {what} differently at another path or a second time"
        after = {path: data for path, data in _bytes(folder).items() if path.startswith(("pool/", "run/"))}
        changed = {path for path in after.keys() | before.keys() if after.get(path) != before.get(path)}
        assert not changed, f"{title} changes {', '.join(sorted(changed))}, which is not its output"
        (folder / "file").write_text("not a folder")
        try:
            write(subset, folder / "file" / "out")
        except TamisError:
            return
        except OSError as error:
            what = f"{type(error).__name__}, which users see as a traceback: write with tamis.storage.writing"
            raise AssertionError(f"{title} raises {what}") from error
        raise AssertionError(f"{title} raises nothing for a path below a file")


def _write_pool(folder: Path) -> None:
    """Writes two shards of four good pairs."""
    folder.mkdir()
    for shard in range(2):
        with tarfile.open(folder / f"{shard:05d}.tar", "w") as tar:
            for seed in range(4 * shard, 4 * shard + 4):
                for ext, data in pairs.files(seed).items():
                    info = tarfile.TarInfo(f"{seed:09d}.{ext}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def _bytes(place: Path) -> dict[str, bytes]:
    """Returns the bytes of a file, or of all files of a folder, by their path in it."""
    if place.is_file():
        return {"": place.read_bytes()}
    return {str(path.relative_to(place)): path.read_bytes() for path in sorted(place.rglob("*")) if path.is_file()}
