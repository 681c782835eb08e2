#!/usr/bin/env bash
# rapidocr 3.7.0, 3.8.4 and 3.9.0.
# We expected the weights inside the package to change with a major release, and the names of the files to be stable.
# The minor release 3.9 replaces PP-OCRv4 by PP-OCRv6, and 3.8 gives the same bytes another name. The same call on the same
# image returns other text, with no warning.
# It hurts everyone who compares or reuses texts and boxes made by "rapidocr>=3", or who finds the weights by name.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip() { "$work/venv/bin/pip" --quiet --disable-pip-version-check "$@"; }
# rapidocr's own requirements, with an OpenCV that needs no display
pip install onnxruntime==1.23.2 pillow==12.0.0 opencv-python-headless==4.12.0.88 pyclipper==1.3.0.post6 shapely==2.1.2 \
    omegaconf==2.3.0 pyyaml six tqdm requests colorlog
for version in 3.7.0 3.8.4 3.9.0; do
    pip install --no-deps --target "$work/$version" "rapidocr==$version"
done

cat > "$work/read.py" <<'PYTHON'
import hashlib, json, logging, pathlib, sys

import numpy as np
import rapidocr
from PIL import Image, ImageDraw, ImageFont

image = Image.new("RGB", (640, 120), "white")
ImageDraw.Draw(image).text((30, 25), "Straße München", "black", ImageFont.load_default(60))
engine = rapidocr.RapidOCR()
logging.disable()
files = sorted(pathlib.Path(rapidocr.__file__).parent.glob("models/*_det_*.onnx"))
hashes = {file.name: hashlib.sha256(file.read_bytes()).hexdigest()[:12] for file in files}
print(json.dumps([hashes, list(engine(np.asarray(image)).txts)]))
PYTHON

for version in 3.7.0 3.8.4 3.9.0; do
    PYTHONPATH="$work/$version" "$work/venv/bin/python" "$work/read.py" 2> /dev/null | tail -1 > "$work/$version.json"
done
python3 - "$work" <<'PYTHON'
import json, sys

seen = {}
for version in ("3.7.0", "3.8.4", "3.9.0"):
    weights, texts = json.load(open(f"{sys.argv[1]}/{version}.json"))
    ((name, digest),) = weights.items()
    seen[version] = (name, digest, " ".join(texts))
    print(version, *seen[version])
old, renamed, new = seen.values()
assert old[1] == renamed[1] and old[0] != renamed[0], "3.8 no longer renames the same weights"
assert old[1] != new[1], "the minor release has the same weights"
assert old[2] == renamed[2] != new[2], "both versions read the same text"
PYTHON
