#!/usr/bin/env bash
# transformers 5.3.0 and open_clip_torch 3.3.0, the tokenizer of OpenAI's CLIP in both.
# We expected a caption's characters to be text, or the same marks to be special in both.
# "<|endoftext|>" inside a caption is the end token in transformers (and in OpenAI's code) and plain text in open_clip,
# where "<end_of_text>" is the end token instead. CLIP pools at the first end token, so the rest of the caption is not read.
# It hurts everyone who scores captions that a language model wrote: such marks leak into them, and a caption that begins
# with one has the embedding of an empty text.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip() { "$work/venv/bin/pip" --quiet --disable-pip-version-check "$@"; }
pip install transformers==5.3.0 ftfy==6.3.1 regex==2025.11.3 numpy==2.3.5
pip download --no-deps --dest "$work" open_clip_torch==3.3.0
(cd "$work" && python3 -m zipfile -e open_clip_torch-3.3.0-*.whl wheel)

cat > "$work/read.py" <<'PYTHON'
import gzip, html, pathlib, sys

import ftfy
import regex
from transformers import CLIPTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

folder = pathlib.Path(sys.argv[1]) / "wheel/open_clip"
# open_clip's class as it is; torch, which only its __call__ uses, stays out.
source = (folder / "tokenizer.py").read_text()
start, end = source.index("@lru_cache()\ndef default_bpe"), source.index("\n_tokenizer = ")
code = "from __future__ import annotations\n" + source[start:end].replace("default_bpe(),", "None,")
space = {"gzip": gzip, "html": html, "ftfy": ftfy, "re": regex, "DEFAULT_CONTEXT_LENGTH": 77}
exec("import os, string\nfrom functools import lru_cache", space)
exec(compile(code, "tokenizer.py", "exec"), space)
vocabulary = str(folder / "bpe_simple_vocab_16e6.txt.gz")
theirs = space["SimpleTokenizer"](bpe_path=vocabulary)

lines = gzip.open(vocabulary).read().decode().split("\n")[1 : 49152 - 256 - 2 + 1]
merges = [tuple(line.split()) for line in lines]
signs = list(bytes_to_unicode().values())
pieces = [*signs, *(sign + "</w>" for sign in signs), *map("".join, merges), "<|startoftext|>", "<|endoftext|>"]
tokenizer = CLIPTokenizer(vocab={piece: number for number, piece in enumerate(pieces)}, merges=merges)

END = 49407
for text in ("a red dog", "<|endoftext|> a red dog", "<end_of_text> a red dog"):
    hf, oc = tokenizer(text)["input_ids"][1:-1], theirs.encode(text)
    print(f"{text!r:28} transformers {hf}  open_clip {oc}")
    assert (hf[0] == END) == text.startswith("<|"), "transformers reads it otherwise now"
    assert (oc[0] == END) == text.startswith("<e"), "open_clip reads it otherwise now"
PYTHON
"$work/venv/bin/python" "$work/read.py" "$work" 2> /dev/null
