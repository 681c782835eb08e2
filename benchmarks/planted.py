"""Test images in the pool: how far they move the accuracy, and whether `not_in` moves it back.

The pool is the lab's with every test image of the lab's five tasks added: half byte for byte, half at three quarters
of their size and saved again. Captions name the class, or are the first of the test's own. Trains on the whole pool, on
the pool without copies by `not_in`, and on the pool without the added images; prints what `tamis bench` prints.
"""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from pathlib import Path

from PIL import Image

import tamis
from benchmarks.measure import options
from tamis.lab import make_pool
from tamis.lab.tasks import make_tasks
from tamis.pool import PoolSpec
from tamis.train.scales import at_scale


def plant(tasks: Path, out: Path) -> None:
    """Writes the test images as pairs whose `truth` is "planted"."""
    out.mkdir()
    with tarfile.open(out / "90000.tar", "w") as tar:

        def add(name: str, data: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))

        for number, shard in enumerate(sorted(tasks.glob("*/test/*.tar"))):
            names = shard.parents[1] / "classnames.txt"
            classes = names.read_text("utf-8").splitlines() if names.is_file() else []
            with tarfile.open(shard) as test:
                files = {member.name: test.extractfile(member).read() for member in test}  # type: ignore[union-attr]
            for place, name in enumerate(sorted(name for name in files if name.endswith(".jpg"))):
                stem, image = name[:-4], files[name]
                caption = (
                    classes[int(files[f"{stem}.cls"])] if classes else files[f"{stem}.txt"].decode().split("\n")[0]
                )
                if place % 2:
                    smaller = Image.open(io.BytesIO(image))
                    smaller = smaller.resize((smaller.width * 3 // 4, smaller.height * 3 // 4))
                    smaller.save(again := io.BytesIO(), "JPEG", quality=75)
                    image = again.getvalue()
                key = f"9{number}{place:06d}"
                add(f"{key}.jpg", image)
                add(f"{key}.txt", caption.encode())
                add(f"{key}.json", json.dumps({"key": key, "truth": "planted"}).encode())


def main() -> None:
    asked = options(__doc__ or "", pairs=3_000, samples=12_288, seeds=2)
    with tempfile.TemporaryDirectory(dir=asked.folder) as temporary:
        folder = Path(asked.folder or temporary) / "planted"
        tasks = folder / "tasks"
        if not tasks.exists():
            make_tasks(tasks, size=48 if asked.quick else 480)
            make_pool(folder / "pool", pairs=asked.pairs)
            plant(tasks, folder / "tests")
        reference = folder / "reference"
        spec = PoolSpec(path=(str(folder / "pool"), str(folder / "tests")), fields=("truth",))
        run = tamis.score(spec, run=folder / "run", signals=["image_hash"], quiet=True)
        tamis.score(f"{tasks}/*/test/*.tar", run=reference, signals=["image_hash"], quiet=True)
        planted = {"equals": {"score": "truth", "value": "planted"}}
        without = {"not_in": {"reference": str(reference), "missing": "drop"}}
        recipes = [
            {
                "name": "clean",
                "select": [{"none_of": [planted, {"equals": {"score": "status", "value": "image_broken"}}]}],
            },
            {"name": "planted", "select": [{"random_fraction": {"fraction": 1.0}}]},
            {"name": "not_in", "select": [without]},
        ]
        done = tamis.bench(
            run, recipes, tasks=tasks, out=folder / "bench", training=at_scale("lab", samples=asked.samples),
            seeds=asked.seeds, quiet=True, threads=1,
        )  # fmt: skip
        for row in (*done.rows_of_table(), *done.rows_of_kinds()):
            print(json.dumps(row))


if __name__ == "__main__":
    main()
