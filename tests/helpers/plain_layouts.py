"""BLIP's captioner and open_clip's CLIP written plainly after their papers, with the names of their own checkpoints.

Independent of transformers: what `tamis convert` writes must compute the same. Sources: Dosovitskiy et al. 2021 (ViT),
Devlin et al. 2019 (BERT), Li et al. 2022 (BLIP: cross-attention after each self-attention, tied words), Radford et al.
2021 (CLIP); names and epsilons as in github.com/salesforce/BLIP and github.com/mlfoundations/open_clip.
"""

import math
from typing import Any

import torch
from torch import nn


def attend(query: Any, key: Any, value: Any, heads: int, mask: Any = None) -> Any:
    """Softmax attention, written out: (n, q, w) x (n, k, w) x (n, k, w) to (n, q, w)."""
    n, q, width = query.shape
    per_head = width // heads
    out = torch.empty(n, q, width)
    for head in range(heads):
        part = slice(head * per_head, (head + 1) * per_head)
        scores = query[..., part] @ key[..., part].transpose(1, 2) / math.sqrt(per_head)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        out[..., part] = scores.softmax(-1) @ value[..., part]
    return out


def gelu(x: Any) -> Any:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def quick_gelu(x: Any) -> Any:
    return x * torch.sigmoid(1.702 * x)


def spread(model: nn.Module, seed: int) -> None:
    """Draws all weights large enough that a mistake shows."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, one in model.named_parameters():
            one.copy_(torch.randn(one.shape, generator=draw) * (0.3 if one.ndim > 1 else 0.2))
            if one.ndim == 1 and name.endswith("weight"):
                one.add_(1)


class _Parts(nn.Module):
    """Named parts and parameters, whatever they are."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


class _VitBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = _Parts(qkv=nn.Linear(width, 3 * width), proj=nn.Linear(width, width))
        self.mlp = _Parts(fc1=nn.Linear(width, 2 * width), fc2=nn.Linear(2 * width, width))

    def forward(self, x: Any) -> Any:
        x = x + self.attn.proj(attend(*self.attn.qkv(self.norm1(x)).chunk(3, -1), self.heads))
        return x + self.mlp.fc2(gelu(self.mlp.fc1(self.norm2(x))))


class _Vit(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, side: int, patch: int) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, (side // patch) ** 2 + 1, width))
        self.patch_embed = _Parts(proj=nn.Conv2d(3, width, patch, patch))
        self.blocks = nn.ModuleList(_VitBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, pixels: Any) -> Any:
        x = self.patch_embed.proj(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def _attention(width: int, read: int) -> nn.Module:
    own = _Parts(query=nn.Linear(width, width), key=nn.Linear(read, width), value=nn.Linear(read, width))
    return nn.ModuleDict({"self": own, "output": _out(width, width)})


def _out(read: int, width: int) -> nn.Module:
    return _Parts(dense=nn.Linear(read, width), LayerNorm=nn.LayerNorm(width, eps=1e-12))


class _BertLayer(nn.Module):
    def __init__(self, width: int, image_width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention = _attention(width, width)
        self.crossattention = _attention(width, image_width)
        self.intermediate = _Parts(dense=nn.Linear(width, 2 * width))
        self.output = _out(2 * width, width)

    def _look(self, attention: Any, x: Any, read: Any, mask: Any) -> Any:
        own, out = attention["self"], attention["output"]
        seen = attend(own.query(x), own.key(read), own.value(read), self.heads, mask)
        return out.LayerNorm(out.dense(seen) + x)

    def forward(self, x: Any, image: Any) -> Any:
        length = x.shape[1]
        x = self._look(self.attention, x, x, torch.ones(length, length).tril().bool())
        x = self._look(self.crossattention, x, image, None)
        return self.output.LayerNorm(self.output.dense(gelu(self.intermediate.dense(x))) + x)


class PlainBlip(nn.Module):
    """The captioner: pixels and tokens to logits."""

    def __init__(self, words: int) -> None:
        super().__init__()
        width, image_width, per_head = 32, 24, 8
        self.visual_encoder = _Vit(image_width, image_width // per_head, layers=2, side=32, patch=8)
        embeddings = _Parts(
            word_embeddings=nn.Embedding(words, width),
            position_embeddings=nn.Embedding(24, width),
            LayerNorm=nn.LayerNorm(width, eps=1e-12),
        )
        embeddings.register_buffer("position_ids", torch.arange(24)[None])
        layers = nn.ModuleList(_BertLayer(width, image_width, width // per_head) for _ in range(2))
        transform = _Parts(dense=nn.Linear(width, width), LayerNorm=nn.LayerNorm(width, eps=1e-12))
        decoder = nn.Linear(width, words)
        decoder.weight = embeddings.word_embeddings.weight
        predictions = _Parts(transform=transform, decoder=decoder, bias=decoder.bias)
        bert = _Parts(embeddings=embeddings, encoder=_Parts(layer=layers))
        self.text_decoder = _Parts(bert=bert, cls=_Parts(predictions=predictions))
        spread(self, seed=5)

    def forward(self, pixels: Any, tokens: Any) -> Any:
        image, bert = self.visual_encoder(pixels), self.text_decoder.bert
        places = torch.arange(tokens.shape[1])
        x = bert.embeddings.word_embeddings(tokens) + bert.embeddings.position_embeddings(places)
        x = bert.embeddings.LayerNorm(x)
        for layer in bert.encoder.layer:
            x = layer(x, image)
        head = self.text_decoder.cls.predictions
        return head.decoder(head.transform.LayerNorm(gelu(head.transform.dense(x))))


class _ClipBlock(nn.Module):
    def __init__(self, width: int, heads: int, activation: Any) -> None:
        super().__init__()
        self.heads, self.activation = heads, activation
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = _Parts(
            in_proj_weight=nn.Parameter(torch.zeros(3 * width, width)),
            in_proj_bias=nn.Parameter(torch.zeros(3 * width)),
            out_proj=nn.Linear(width, width),
        )
        self.mlp = _Parts(c_fc=nn.Linear(width, 4 * width), c_proj=nn.Linear(4 * width, width))

    def forward(self, x: Any, mask: Any = None) -> Any:
        three = (self.ln_1(x) @ self.attn.in_proj_weight.T + self.attn.in_proj_bias).chunk(3, -1)
        x = x + self.attn.out_proj(attend(*three, self.heads, mask))
        return x + self.mlp.c_proj(self.activation(self.mlp.c_fc(self.ln_2(x))))


def _resblocks(width: int, heads: int, layers: int, activation: Any) -> nn.Module:
    return _Parts(resblocks=nn.ModuleList(_ClipBlock(width, heads, activation) for _ in range(layers)))


class PlainOpenClip(nn.Module):
    """The two towers: pixels to embeddings, tokens to embeddings, both to logits."""

    def __init__(self, words: int, *, activation: Any = gelu) -> None:
        super().__init__()
        width, image_width, per_head = 32, 40, 8
        self.visual = _Parts(
            class_embedding=nn.Parameter(torch.zeros(image_width)),
            positional_embedding=nn.Parameter(torch.zeros(17, image_width)),
            conv1=nn.Conv2d(3, image_width, 8, 8, bias=False),
            ln_pre=nn.LayerNorm(image_width),
            transformer=_resblocks(image_width, image_width // per_head, 2, activation),
            ln_post=nn.LayerNorm(image_width),
            proj=nn.Parameter(torch.zeros(image_width, 16)),
        )
        self.transformer = _resblocks(width, width // per_head, 3, activation)
        self.token_embedding = nn.Embedding(words, width)
        self.positional_embedding = nn.Parameter(torch.zeros(12, width))
        self.ln_final = nn.LayerNorm(width)
        self.text_projection = nn.Parameter(torch.zeros(width, 16))
        self.logit_scale = nn.Parameter(torch.zeros(()))
        spread(self, seed=6)
        with torch.no_grad():
            self.logit_scale.fill_(2.5)

    def images(self, pixels: Any) -> Any:
        tower = self.visual
        x = tower.conv1(pixels).flatten(2).transpose(1, 2)
        x = torch.cat([tower.class_embedding.expand(len(x), 1, -1), x], 1) + tower.positional_embedding
        x = tower.ln_pre(x)
        for block in tower.transformer.resblocks:
            x = block(x)
        return tower.ln_post(x[:, 0]) @ tower.proj

    def texts(self, tokens: Any, at: Any = None) -> Any:
        """Tokens are padded with zeros to the whole length, as open_clip's tokenizer does. `at`: else the largest."""
        length = tokens.shape[1]
        x = self.token_embedding(tokens) + self.positional_embedding[:length]
        for block in self.transformer.resblocks:
            x = block(x, torch.ones(length, length).tril().bool())
        x = self.ln_final(x)
        return x[torch.arange(len(x)), tokens.argmax(-1) if at is None else at] @ self.text_projection

    def forward(self, pixels: Any, tokens: Any) -> Any:
        images, texts = self.images(pixels), self.texts(tokens)
        images, texts = (x / x.norm(dim=-1, keepdim=True) for x in (images, texts))
        return self.logit_scale.exp() * images @ texts.T


# CLIP's residual network, by the names of its published checkpoints (Radford et al. 2021, section 2.4).


def resnet_shapes(width: int, stages: tuple[int, ...], side: int, size: int) -> dict[str, tuple[int, ...]]:
    """The shape of each published weight of an image tower, without "visual."."""
    shapes: dict[str, tuple[int, ...]] = {}

    def conv(name: str, norm: str, made: int, read: int, side: int) -> None:
        shapes[f"{name}.weight"] = (made, read, side, side)
        shapes.update({f"{norm}.{part}": (made,) for part in ("weight", "bias", "running_mean", "running_var")})
        shapes[f"{norm}.num_batches_tracked"] = ()

    conv("conv1", "bn1", width // 2, 3, 3)
    conv("conv2", "bn2", width // 2, width // 2, 3)
    conv("conv3", "bn3", width, width // 2, 3)
    read = width
    for stage, blocks in enumerate(stages):
        inner = width * 2**stage
        for block in range(blocks):
            at = f"layer{stage + 1}.{block}"
            conv(f"{at}.conv1", f"{at}.bn1", inner, read, 1)
            conv(f"{at}.conv2", f"{at}.bn2", inner, inner, 3)
            conv(f"{at}.conv3", f"{at}.bn3", 4 * inner, inner, 1)
            if block == 0:
                conv(f"{at}.downsample.0", f"{at}.downsample.1", 4 * inner, read, 1)
            read = 4 * inner
    shapes["attnpool.positional_embedding"] = ((side // 32) ** 2 + 1, read)
    for name, made in (("q_proj", read), ("k_proj", read), ("v_proj", read), ("c_proj", size)):
        shapes |= {f"attnpool.{name}.weight": (made, read), f"attnpool.{name}.bias": (made,)}
    return shapes


def convolve(x: Any, weight: Any, stride: int = 1) -> Any:
    """A convolution, padded with zeros to keep the size, as a sum over the places of its kernel."""
    side, (height, width) = weight.shape[-1], x.shape[-2:]
    padded = torch.zeros(*x.shape[:2], height + side - 1, width + side - 1)
    padded[..., side // 2 : side // 2 + height, side // 2 : side // 2 + width] = x
    total = 0
    for down in range(side):
        for right in range(side):
            moved = padded[..., down : down + height : stride, right : right + width : stride]
            total = total + torch.einsum("nchw,oc->nohw", moved, weight[:, :, down, right])
    return total


def averaged(x: Any) -> Any:
    """The mean of each 2 x 2 places."""
    return (x[..., ::2, ::2] + x[..., 1::2, ::2] + x[..., ::2, 1::2] + x[..., 1::2, 1::2]) / 4


def plain_resnet(weights: Any, pixels: Any, heads: int) -> Any:
    """Images to embeddings, (n, size), with the stored statistics. The weights have the names of `resnet_shapes`."""

    def norm(x: Any, name: str) -> Any:
        mean, variance, times, plus = (
            weights[f"{name}.{part}"].view(1, -1, 1, 1) for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / torch.sqrt(variance + 1e-5) * times + plus

    def relu(x: Any) -> Any:
        return x * (x > 0)

    x = relu(norm(convolve(pixels, weights["conv1.weight"], stride=2), "bn1"))
    for number in (2, 3):
        x = relu(norm(convolve(x, weights[f"conv{number}.weight"]), f"bn{number}"))
    x = averaged(x)
    for stage in (1, 2, 3, 4):
        block = 0
        while f"layer{stage}.{block}.conv1.weight" in weights:
            at, halved = f"layer{stage}.{block}", stage > 1 and block == 0
            y = relu(norm(convolve(x, weights[f"{at}.conv1.weight"]), f"{at}.bn1"))
            y = relu(norm(convolve(y, weights[f"{at}.conv2.weight"]), f"{at}.bn2"))
            if halved:
                x, y = averaged(x), averaged(y)
            y = norm(convolve(y, weights[f"{at}.conv3.weight"]), f"{at}.bn3")
            if block == 0:
                x = norm(convolve(x, weights[f"{at}.downsample.0.weight"]), f"{at}.downsample.1")
            x, block = relu(x + y), block + 1
    places = x.flatten(2).transpose(1, 2)
    places = torch.cat([places.mean(1, keepdim=True), places], 1) + weights["attnpool.positional_embedding"]
    q, k, v = (
        places @ weights[f"attnpool.{name}_proj.weight"].T + weights[f"attnpool.{name}_proj.bias"] for name in "qkv"
    )
    pooled = attend(q, k, v, heads)[:, 0]
    return pooled @ weights["attnpool.c_proj.weight"].T + weights["attnpool.c_proj.bias"]
