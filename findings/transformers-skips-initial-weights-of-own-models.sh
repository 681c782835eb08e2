#!/usr/bin/env bash
# transformers 5.24.0, a PreTrainedModel defined outside the package.
# We expected `_init_weights` to be called for every module, as it is for the package's own models.
# A module that has no parameter of its own, only children with parameters, is left out without a message: a loop over a
# block's layers there (scaled by depth, say) never runs. One scalar parameter in the block, and it is called.
# It hurts whoever trains a model of their own from scratch: its blocks keep the weights of plain layers.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" --quiet --disable-pip-version-check install torch==2.13.0 transformers==5.24.0

"$work/venv/bin/python" - <<'PYTHON'
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

class BlockWithScale(Block):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

class Model(PreTrainedModel):
    config_class = PretrainedConfig

    def __init__(self, config):
        super().__init__(config)
        self.plain, self.scaled = Block(), BlockWithScale()
        self.asked = []
        self.post_init()

    def _init_weights(self, module):
        self.asked.append(type(module).__name__)
        if isinstance(module, Block):
            nn.init.zeros_(module.fc.weight)

model = Model(PretrainedConfig())
zero = [not block.fc.weight.any().item() for block in (model.plain, model.scaled)]
print("asked for", sorted(model.asked), "- zero:", dict(zip(("Block", "BlockWithScale"), zero)))
assert "Block" not in model.asked and "BlockWithScale" in model.asked
assert zero == [False, True]
PYTHON
