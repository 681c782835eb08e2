#!/usr/bin/env bash
# datasets 5.2.0, load_dataset("imagefolder").
# We expected a folder of images without folders for splits to be one split with all images and their captions.
# One image whose file name has a word such as "train", "test" or "val" between dashes, dots, underscores, blanks or digits
# makes the whole dataset that split: the other images are left out, and so is metadata.csv, without a warning.
# It hurts whoever publishes or trains on photographs under their own names: steam-train-1.jpg becomes the only pair.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" --quiet --disable-pip-version-check install datasets==5.2.0 Pillow==12.0.0

HF_HOME="$work/cache" "$work/venv/bin/python" - "$work" <<'PYTHON'
import sys
from pathlib import Path

import datasets
from PIL import Image

datasets.disable_progress_bars()
for name, other in (("steam-engine-1", "all"), ("steam-train-1", "one")):
    folder = Path(sys.argv[1]) / other
    folder.mkdir()
    for image in ("cat", "dog", name):
        Image.new("RGB", (8, 8)).save(folder / f"{image}.jpg")
    lines = [f"{image}.jpg,a picture of a {image}" for image in ("cat", "dog", name)]
    (folder / "metadata.csv").write_text("\n".join(["file_name,text", *lines]) + "\n")
    found = datasets.load_dataset("imagefolder", data_dir=str(folder))
    print({split: (one.num_rows, one.column_names) for split, one in found.items()}, "with", name)
    expected = (3, ["image", "text"]) if other == "all" else (1, ["image"])
    assert (found["train"].num_rows, found["train"].column_names) == expected
PYTHON
