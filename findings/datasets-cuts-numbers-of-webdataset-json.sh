#!/usr/bin/env bash
# datasets 5.2.0, the loader "webdataset".
# We expected 0.75 in a sample's json to be 0.75, or an error where it does not fit the column.
# The loader takes types from the first five samples. If they write a score as 1 or 0 (as json.dumps does for whole
# numbers), the column is int64, and 0.75 of a later sample becomes 0 without a message.
# It hurts everyone who filters a pool by scores in its json (NSFW, watermark, similarity): most of them become 0.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" --quiet --disable-pip-version-check install datasets==5.2.0

HF_HOME="$work/cache" HF_HUB_OFFLINE=1 "$work/venv/bin/python" - "$work" <<'PYTHON'
import io
import json
import sys
import tarfile

import datasets

datasets.disable_progress_bars()
scores = [0, 1, 0, 0, 1, 0.75, 0.25]
with tarfile.open(f"{sys.argv[1]}/0.tar", "w") as tar:
    for number, score in enumerate(scores):
        for ext, data in (("txt", b"a caption"), ("json", json.dumps({"punsafe": score}).encode())):
            member = tarfile.TarInfo(f"{number:04d}.{ext}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
table = datasets.load_dataset("webdataset", data_files=f"{sys.argv[1]}/0.tar", split="train")
found = [row["json"]["punsafe"] for row in table]
print("written:", scores)
print("read:   ", found, "as", table.features["json"]["punsafe"].dtype)
assert found == [0, 1, 0, 0, 1, 0, 0]
PYTHON
