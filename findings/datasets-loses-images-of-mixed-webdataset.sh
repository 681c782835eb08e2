#!/usr/bin/env bash
# datasets 5.2.0 (the loader "webdataset") and webdataset 1.0.2.
# We expected both to read the images of a tar whose samples are .jpg, .png and .JPG, or datasets to raise, as it does
# if the first five samples have different files.
# datasets makes columns of the files that the first five samples have: if these are .jpg, a later .png or .JPG is
# dropped and the image is None, without a message. webdataset reads all of them, and lower-cases extensions.
# It hurts everyone who opens tars of mixed formats (as crawlers that keep the original bytes write them) with datasets.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" --quiet --disable-pip-version-check install datasets==5.2.0 webdataset==1.0.2 pillow==12.0.0

HF_HOME="$work/cache" HF_HUB_OFFLINE=1 "$work/venv/bin/python" - "$work" <<'PYTHON'
import io
import sys
import tarfile

import datasets
import webdataset
from PIL import Image

datasets.disable_progress_bars()
exts = ["jpg"] * 5 + ["png", "JPG"]
with tarfile.open(f"{sys.argv[1]}/0.tar", "w") as tar:
    for number, ext in enumerate(exts):
        image = io.BytesIO()
        Image.new("RGB", (32, 32), (30 * number, 90, 160)).save(image, "PNG" if ext == "png" else "JPEG")
        for name, data in ((ext, image.getvalue()), ("txt", b"a caption")):
            member = tarfile.TarInfo(f"{number:04d}.{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
samples = list(webdataset.WebDataset(f"{sys.argv[1]}/0.tar", shardshuffle=False))
print("webdataset:", [sorted({"jpg", "png"} & sample.keys()) for sample in samples])
table = datasets.load_dataset("webdataset", data_files=f"{sys.argv[1]}/0.tar", split="train")
images = [row["jpg"] is not None for row in table]
print("datasets:  ", table.column_names, images)
assert all({"jpg", "png"} & sample.keys() for sample in samples)
assert images == [True] * 5 + [False] * 2
PYTHON
