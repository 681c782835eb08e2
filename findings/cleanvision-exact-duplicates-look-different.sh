#!/usr/bin/env bash
# cleanvision 0.3.7 with Pillow 13.0.0.
# We expected "exact duplicates" to be images that look the same: a PNG saved twice is found, at whatever compression.
# It hashes the stored samples only. Two palette images with the same indices count as exact duplicates, whatever colours the
# palettes hold, and so do images of one colour with the same number of pixels, whatever their sizes.
# It hurts whoever deletes exact duplicates from a pool with charts, icons or GIFs: recoloured ones go, without a warning.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" --quiet --disable-pip-version-check install cleanvision==0.3.7 pillow==13.0.0 numpy==2.4.6

"$work/venv/bin/python" - "$work" > "$work/out" 2> "$work/err" <<'PYTHON' || { cat "$work/out" "$work/err"; exit 1; }
import sys
from pathlib import Path

import numpy as np
from cleanvision import Imagelab
from PIL import Image

images = Path(sys.argv[1]) / "images"
images.mkdir()
squares = (np.add.outer(np.arange(240), np.arange(240)) // 20 % 4).astype(np.uint8)
palettes = {
    "red": [200, 30, 30, 230, 120, 20, 250, 220, 80, 90, 10, 10],
    "blue": [20, 40, 200, 20, 150, 220, 120, 230, 210, 10, 10, 80],
}
for name, colours in palettes.items():
    image = Image.frombytes("P", (240, 240), squares.tobytes())
    image.putpalette(colours)
    image.save(images / f"{name}.png")
Image.new("RGB", (100, 200), "grey").save(images / "tall.png")
Image.new("RGB", (200, 100), "grey").save(images / "wide.png")
noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (240, 240, 3), dtype=np.uint8))
noise.save(images / "noise.png")
noise.save(images / "again.png", compress_level=1)

lab = Imagelab(data_path=str(images))
lab.find_issues({"exact_duplicates": {}}, n_jobs=1)
sets = sorted(sorted(Path(name).stem for name in each) for each in lab.info["exact_duplicates"]["sets"])
print("sets of exact duplicates:", sets)
assert sets == [["again", "noise"], ["blue", "red"], ["tall", "wide"]], sets
PYTHON
grep "sets of exact" "$work/out"
