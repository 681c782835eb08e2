#!/usr/bin/env bash
# cld3-py 3.1.0 (the module gcld3).
# We expected text without a word to be "und", the detector's name for unknown, or at least not to be reliable.
# With min_num_bytes=0, as DataComp's laion2b filter makes it, digits, emoji and the empty text are Japanese: probability
# 0.784, is_reliable true.
# It hurts everyone who counts languages of alt-texts, or keeps Japanese by is_reliable: product numbers become Japanese.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" --quiet --disable-pip-version-check install cld3-py==3.1.0

"$work/venv/bin/python" - <<'PYTHON'
import gcld3

detector = gcld3.NNetLanguageIdentifier(min_num_bytes=0, max_num_bytes=1000)
for text in ["", "2041 - 7", "😀😀", "a red boat on the beach"]:
    found = detector.FindLanguage(text=text)
    print(f"{text!r}: {found.language}, {found.probability:.3f}, reliable: {found.is_reliable}")
    wordless = not any(map(str.isalpha, text))
    assert (found.language, found.is_reliable) == ("ja" if wordless else "en", True)
PYTHON
