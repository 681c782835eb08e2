#!/usr/bin/env bash
# datasets 5.2.0 (the loader "webdataset") and webdataset 1.0.2.
# We expected two readers of one format to find the same samples in a tar.
# webdataset skips members in a folder like __name__ and reads __b.jpg; datasets skips files that begin with "__" or "."
# and reads the folder. Neither says so, so that one tar has 3 samples, of which each reads another 2.
# It hurts everyone whose keys come from file names: sizes and epochs differ by loader, and samples are never trained on.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" --quiet --disable-pip-version-check install datasets==5.2.0 webdataset==1.0.2

HF_HOME="$work/cache" HF_HUB_OFFLINE=1 "$work/venv/bin/python" - "$work" <<'PYTHON'
import io
import sys
import tarfile

import datasets
import webdataset

datasets.disable_progress_bars()
with tarfile.open(f"{sys.argv[1]}/0.tar", "w") as tar:
    for key in ("a", "__b", "__people__/c"):
        for ext in ("txt", "cls"):
            member = tarfile.TarInfo(f"{key}.{ext}")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"1"))
first = [sample["__key__"] for sample in webdataset.WebDataset(f"{sys.argv[1]}/0.tar", shardshuffle=False)]
table = datasets.load_dataset("webdataset", data_files=f"{sys.argv[1]}/0.tar", split="train")
print("webdataset:", first)
print("datasets:  ", list(table["__key__"]))
assert first == ["a", "__b"]
assert list(table["__key__"]) == ["a", "__people__/c"]
PYTHON
