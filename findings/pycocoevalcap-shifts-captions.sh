#!/usr/bin/env bash
# pycocoevalcap 1.2, PTBTokenizer (needs Java; tried with OpenJDK 17).
# We expected each caption's words under its own image: the package itself replaces line feeds by blanks.
# Any other separator of lines inside a caption (U+2028, U+2029, a form feed, a vertical tab, a carriage return) begins a new
# line for the tokenizer. Every later caption then counts for the next image, and the last one is lost, without a warning.
# U+0085 and U+001C, at which Python's splitlines cuts, do no harm. Prices change too: a euro becomes "$", a pound "#".
# It hurts whoever scores web captions: one U+2028 in the first reference makes every figure of the set wrong.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" --quiet --disable-pip-version-check install --no-deps pycocoevalcap==1.2

"$work/venv/bin/python" - 2> /dev/null <<'PYTHON'
from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

def tokenized(captions):
    words = PTBTokenizer().tokenize({image: [{"caption": text}] for image, text in enumerate(captions)})
    return [text for texts in words.values() for text in texts]

whole = ["a dog runs", "a red car", "two cats sleep"]
for name in ("\n", " ", "\x85", "\x1c"):
    print(repr(name), found := tokenized([f"a dog{name}runs", *whole[1:]]))
    assert found == whole
for name in ("\r", "\u2028", "\u2029", "\x0b", "\x0c"):
    print(repr(name), found := tokenized([f"a dog{name}runs", *whole[1:]]))
    assert found == ["a dog", "runs", "a red car"]
print(found := tokenized(["a mug for 3 €", "a mug for £ 3"]))
assert found == ["a mug for 3 $", "a mug for # 3"]
PYTHON
