"""CLIP with a residual network as its image tower (RN50 and larger ones), for which transformers has no class.

Its weights have the names of OpenAI's and open_clip's checkpoints. Importing this file registers it with transformers.

Source: Radford et al. 2021 (arXiv 2103.00020), sections 2.4 and 2.5; names and initial weights as in openai/CLIP
(`model.py`) and mlfoundations/open_clip (`modified_resnet.py`, `transformer.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, AutoModel, CLIPConfig, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.modeling_outputs import BaseModelOutputWithPooling

from tamis.models.reference import default_cleaning

#: The side of an image per side of the last features.
STRIDE = 32


class ClipResNetConfig(CLIPConfig):  # type: ignore[no-untyped-call]
    """`vision_config` has hidden_size (channels of the stem), stages (blocks in each), image_size, and heads."""

    model_type = "clip_resnet"


class _Bottleneck(nn.Module):
    """A residual block, (n, inputs, h, w) to (n, 4 width, h / stride, w / stride). It averages instead of striding."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        nn.init.zeros_(self.bn3.weight)
        self.pool = nn.AvgPool2d(stride) if stride > 1 else nn.Identity()
        self.downsample = nn.Sequential()
        if stride > 1 or inputs != 4 * width:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = functional.relu(self.bn2(self.conv2(y)))
        return functional.relu(self.bn3(self.conv3(self.pool(y))) + self.downsample(self.pool(x)))


def _stage(inputs: int, width: int, blocks: int, stride: int) -> nn.Sequential:
    rest = (_Bottleneck(4 * width, width, 1) for _ in range(blocks - 1))
    return nn.Sequential(_Bottleneck(inputs, width, stride), *rest)


class _AttentionPool(nn.Module):
    """The mean over places attends to itself and to all places: (n, width, side, side) to (n, size)."""

    def __init__(self, side: int, width: int, heads: int, size: int) -> None:
        super().__init__()
        self.heads = heads
        self.positional_embedding = nn.Parameter(torch.randn(side**2 + 1, width) / width**0.5)
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, width) for _ in range(3))
        self.c_proj = nn.Linear(width, size)
        for one in (self.q_proj, self.k_proj, self.v_proj, self.c_proj):
            nn.init.normal_(one.weight, std=width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(2).transpose(1, 2)  # (n, places, width)
        x = torch.cat([x.mean(1, keepdim=True), x], 1) + self.positional_embedding
        q, k, v = (
            layer(read).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (n, heads, places, width of a head)
            for layer, read in ((self.q_proj, x[:, :1]), (self.k_proj, x), (self.v_proj, x))
        )
        rows: Tensor = self.c_proj(functional.scaled_dot_product_attention(q, k, v).flatten(1))
        return rows


class _ResNet(nn.Module):
    """Images (n, 3, side, side) to embeddings (n, size)."""

    def __init__(self, vision: Any, size: int) -> None:
        super().__init__()
        width = vision.hidden_size
        self.conv1, self.bn1 = nn.Conv2d(3, width // 2, 3, 2, padding=1, bias=False), nn.BatchNorm2d(width // 2)
        self.conv2, self.bn2 = nn.Conv2d(width // 2, width // 2, 3, padding=1, bias=False), nn.BatchNorm2d(width // 2)
        self.conv3, self.bn3 = nn.Conv2d(width // 2, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        one, two, three, four = vision.stages
        self.layer1 = _stage(width, width, one, 1)
        self.layer2 = _stage(4 * width, 2 * width, two, 2)
        self.layer3 = _stage(8 * width, 4 * width, three, 2)
        self.layer4 = _stage(16 * width, 8 * width, four, 2)
        side = vision.image_size // STRIDE
        self.attnpool = _AttentionPool(side, 32 * width, vision.num_attention_heads, size)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in ((self.conv1, self.bn1), (self.conv2, self.bn2), (self.conv3, self.bn3)):
            x = functional.relu(norm(conv(x)))
        x = functional.avg_pool2d(x, 2)
        rows: Tensor = self.attnpool(self.layer4(self.layer3(self.layer2(self.layer1(x)))))
        return rows


class _Block(nn.Module):
    """A layer of the text tower."""

    def __init__(self, text: Any) -> None:
        super().__init__()
        width = text.hidden_size
        self.ln_1, self.ln_2 = (nn.LayerNorm(width, text.layer_norm_eps) for _ in range(2))
        self.attn = nn.MultiheadAttention(width, text.num_attention_heads, batch_first=True)
        inner, outer = nn.Linear(width, text.intermediate_size), nn.Linear(text.intermediate_size, width)
        self.mlp = nn.Sequential(OrderedDict(c_fc=inner, gelu=ACT2FN[text.hidden_act], c_proj=outer))
        for weight, times in (
            (self.attn.in_proj_weight, 1),
            (self.attn.out_proj.weight, 2 * text.num_hidden_layers),
            (inner.weight, 2),
            (outer.weight, 2 * text.num_hidden_layers),
        ):
            nn.init.normal_(weight, std=(times * width) ** -0.5)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=mask)[0]
        rows: Tensor = x + self.mlp(self.ln_2(x))
        return rows


class ClipResNet(PreTrainedModel):
    """The two towers, with the methods of a `CLIPModel` that embed."""

    config_class = ClipResNetConfig

    def __init__(self, config: ClipResNetConfig) -> None:
        super().__init__(config)
        text: Any = config.text_config
        width, size = text.hidden_size, int(config.projection_dim or 0)
        self.visual = _ResNet(config.vision_config, size)
        self.transformer: Any = nn.Module()
        self.transformer.resblocks = nn.ModuleList(_Block(text) for _ in range(text.num_hidden_layers))
        self.token_embedding = nn.Embedding(text.vocab_size, width)
        nn.init.normal_(self.token_embedding.weight, std=0.02)
        self.positional_embedding = nn.Parameter(0.01 * torch.randn(text.max_position_embeddings, width))
        self.ln_final = nn.LayerNorm(width, text.layer_norm_eps)
        self.text_projection = nn.Parameter(width**-0.5 * torch.randn(width, size))
        self.logit_scale = nn.Parameter(torch.tensor(float(config.logit_scale_init_value or 0)))
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Keeps the initial weights: transformers would draw all layers alike."""

    def get_image_features(self, pixel_values: Tensor) -> BaseModelOutputWithPooling:
        """Embeds normalised images, (n, 3, side, side): `pooler_output` is (n, projection_dim), not normalised."""
        return BaseModelOutputWithPooling(pooler_output=self.visual(pixel_values))

    def get_text_features(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> BaseModelOutputWithPooling:
        """Embeds texts, (n, length) token ids: `pooler_output` is (n, projection_dim), not normalised.

        The tower is causal and pools at the first end token, so padding behind it needs no mask.
        """
        count, length = input_ids.shape
        x = self.token_embedding(input_ids) + self.positional_embedding[:length]
        mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        for block in self.transformer.resblocks:
            x = block(x, mask)
        end = (input_ids == self.config.text_config.eos_token_id).int().argmax(-1)
        rows = self.ln_final(x[torch.arange(count, device=x.device), end]) @ self.text_projection
        return BaseModelOutputWithPooling(pooler_output=rows)


AutoConfig.register(ClipResNetConfig.model_type, ClipResNetConfig)
AutoModel.register(ClipResNetConfig, ClipResNet)


def open_clip_config(config: ClipResNetConfig, images: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of open_clip_config.json. `images` is the model's preprocessor_config.json.

    A vocabulary that is not CLIP's is read from the model's folder: then open_clip wants the name of a tokenizer.
    """
    vision: Any = config.vision_config
    text: Any = config.text_config
    own = default_cleaning(config.to_dict()) != "openai"
    words = {"hf_tokenizer_name": ".", "pool_type": "eos", "eos_id": text.eos_token_id} if own else {}
    stages, width = list(vision.stages), vision.hidden_size
    image = {"image_size": vision.image_size, "layers": stages, "width": width, "patch_size": None}
    image["head_width"] = 32 * width // vision.num_attention_heads
    sizes = {"width": text.hidden_size, "heads": text.num_attention_heads, "layers": text.num_hidden_layers}
    sizes |= {"context_length": text.max_position_embeddings, "vocab_size": text.vocab_size}
    model = {"embed_dim": config.projection_dim, "quick_gelu": text.hidden_act == "quick_gelu"}
    resize = "shortest" if images["do_center_crop"] else "squash"
    filters = {2: "bilinear", 3: "bicubic"}[images["resample"]]
    looks = {"mean": list(images["image_mean"]), "std": list(images["image_std"])}
    return {
        "model_cfg": {**model, "vision_cfg": image, "text_cfg": {**sizes, **words}},
        "preprocess_cfg": {**looks, "interpolation": filters, "resize_mode": resize},
    }
