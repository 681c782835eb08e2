#!/usr/bin/env bash
# img2dataset 1.47.0 (opencv-python-headless 4.14.0.94).
# We expected a photo with EXIF orientation 6 to be stored upright, or with its EXIF.
# It is decoded as it lies in the file and encoded again without EXIF; only the text of the json's field `exif` still says
# "Rotated 90 CW". With --disable_all_reencoding the file keeps its EXIF, and the json says the same.
# It hurts everyone who trains on, captions or scores such a pool: phone photos lie on their side. Who turns images by the
# field must leave those alone that still have their own EXIF.
set -euo pipefail
work=$(mktemp -d)
trap 'kill "${server:-0}" 2>/dev/null || true; rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" --quiet --disable-pip-version-check install img2dataset==1.47.0 opencv-python-headless==4.14.0.94 pillow==13.0.0 \
    "setuptools<81"
cd "$work"

venv/bin/python - <<'PYTHON'
from PIL import Image

photo = Image.new("RGB", (600, 400), "white")
photo.paste("black", (0, 0, 300, 400))
exif = photo.getexif()
exif[0x112] = 6
photo.save("photo.jpg", exif=exif)
PYTHON
port=$(venv/bin/python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
venv/bin/python -m http.server "$port" --bind 127.0.0.1 >log 2>&1 &
server=$!
sleep 2
echo "http://127.0.0.1:$port/photo.jpg" >urls.txt
export NO_ALBUMENTATIONS_UPDATE=1
for more in "" "--disable_all_reencoding True"; do
    # shellcheck disable=SC2086
    venv/bin/img2dataset --url_list urls.txt --output_folder "out${more%% *}" --output_format files --resize_mode no \
        --encode_format jpg --processes_count 1 --thread_count 1 $more >>log 2>&1 || { cat log; exit 1; }
done

venv/bin/python - <<'PYTHON'
import json
from pathlib import Path

from PIL import Image

for path in sorted(Path().glob("out*/*/*.jpg")):
    words = json.loads(json.loads(path.with_suffix(".json").read_text())["exif"])["Image Orientation"]
    with Image.open(path) as image:
        own = image.getexif().get(0x112)
        print(f"{path}: {image.width} x {image.height}, EXIF orientation {own}, json: {words}")
        assert (image.size, own, words) == ((600, 400), 6 if "disable" in str(path) else None, "Rotated 90 CW")
PYTHON
