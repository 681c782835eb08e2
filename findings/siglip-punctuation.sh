#!/usr/bin/env bash
# transformers 5.3.0 and open_clip_torch 3.3.0.
# We expected SigLIP's tokenizer to read the same words in both: both name the same lines of Google's big_vision as the
# source of `canonicalize`.
# In transformers `SiglipTokenizer` removes underscores as punctuation, so "dog_on_grass" is the one word "dogongrass";
# open_clip (and big_vision) makes spaces of them first, and also unescapes HTML. 118 of 10,000 alt-texts of LAION have one.
# It hurts everyone who scores alt-texts that are names of files with SigLIP, or compares such scores with open_clip's.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
pip() { "$work/venv/bin/pip" --quiet --disable-pip-version-check "$@"; }
pip install transformers==5.3.0 sentencepiece==0.2.1 protobuf==6.33.0 ftfy==6.3.1
pip download --no-deps --dest "$work" open_clip_torch==3.3.0
(cd "$work" && python3 -m zipfile -e open_clip_torch-3.3.0-*.whl wheel)

cat > "$work/read.py" <<'PYTHON'
import ast, html, pathlib, string, sys

import ftfy
from sentencepiece import SentencePieceTrainer
from transformers import SiglipTokenizer

work = pathlib.Path(sys.argv[1])
# Of open_clip's file only the functions that clean a text: the rest needs torch.
tree = ast.parse((work / "wheel/open_clip/tokenizer.py").read_text())
wanted = ("basic_clean", "canonicalize_text", "_clean_canonicalize")
cleaning = ast.Module([node for node in tree.body if getattr(node, "name", "") in wanted], [])
space = {"ftfy": ftfy, "html": html, "string": string}
exec(compile(cleaning, "tokenizer.py", "exec"), space)

SentencePieceTrainer.train(
    sentence_iterator=iter(["a dog on grass", "two cats"] * 20), model_prefix=str(work / "spiece"), vocab_size=30,
    hard_vocab_limit=False, unk_id=2, eos_id=1, pad_id=0, bos_id=-1, minloglevel=2,
)  # fmt: skip
tokenizer = SiglipTokenizer(str(work / "spiece.model"))


def words(text):
    return tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True)


text = "Dog_on_grass"
print("transformers:", words(text))
print("open_clip:   ", space["_clean_canonicalize"](text))
assert words(text) == "dogongrass", "transformers no longer joins the words"
assert space["_clean_canonicalize"](text) == "dog on grass"
assert words("Dog on grass!") == "dog on grass"  # other punctuation is treated alike
PYTHON
"$work/venv/bin/python" "$work/read.py" "$work" 2> /dev/null
