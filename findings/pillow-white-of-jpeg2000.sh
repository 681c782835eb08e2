#!/usr/bin/env bash
# Pillow 13.0.0, with files written by imagecodecs 2026.3.6 (OpenJPEG).
# We expected white in a colour JPEG 2000 of 12 or 16 bits to be white in the 8 bits that Pillow makes of it.
# It is black: Pillow rounds to the nearest of 8 bits, and 65,535 becomes 256, which is kept as 0. Grey and the middle of
# the range are right, and 16-bit colour of PNG is cut, not rounded.
# It hurts everyone who scores or trains on scans and satellite images in this format: what is overexposed is black.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" --quiet --disable-pip-version-check install pillow==13.0.0 imagecodecs==2026.3.6 numpy

cat > "$work/read.py" <<'PYTHON'
import io

import imagecodecs
import numpy as np
from PIL import Image

for bits in (12, 16):
    for name, value in (("middle", 2 ** (bits - 1)), ("white", 2**bits - 1)):
        colour = np.full((8, 8, 3), value, np.uint16)
        data = imagecodecs.jpeg2k_encode(colour, bitspersample=bits, reversible=True, codecformat="jp2")
        assert (imagecodecs.jpeg2k_decode(data) == value).all()  # the file itself is right
        pixel = Image.open(io.BytesIO(data)).getpixel((3, 3))
        print(f"{bits} bits, {name} ({value}): Pillow reads {pixel}")
        assert pixel == ((0, 0, 0) if name == "white" else (128, 128, 128))
PYTHON
"$work/venv/bin/python" "$work/read.py"
