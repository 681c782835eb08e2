"""Image-text towers (CLIP, SigLIP and others of `KINDS`): images and token ids to embeddings.

Four things make it fast: each distinct caption is embedded once; captions run in batches of similar length (a causal
text tower never sees what follows the end token, so padding changes nothing); images are normalised on the device; the
last block of an image tower computes only the token that is the embedding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Pixels
from tamis.core.errors import DamageError, ModelError
from tamis.core.files.checked import Owner, read_array, write_array
from tamis.core.types import Device, ModelRef
from tamis.models.device import dtype_of, each_core
from tamis.models.loading import RESNET, SHIFTED, cleaner, each_text, load_once, load_tokenizer_in, model_type
from tamis.models.packed import load_for_inference
from tamis.models.preprocess import check_side, load_preprocess
from tamis.models.reference import Cleaning, cleaning_of, object_in, resolve

#: `model_type` of an image tower with a separate text encoder, which `tamis train clip` can save.
DUAL = "vision-text-dual-encoder"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How checkpoints of one `model_type` take texts and images. Each embeds by transformers' `get_*_features`.

    Texts are padded on the right. `masked`: the text tower reads both ways, so padding is masked. `full`: it was
    trained on texts padded to full length, without a mask. `longest`: tokens of a text in training, if its positions
    allow more. `patches`: images keep their shape, and the tower takes patches. `first`: the embedding of an image is
    that of its first token, and blocks return a tensor; those of clipseg, altclip and chinese_clip return a tuple in
    transformers 5.0. `width`: the setting with the size of an embedding; None: the width of the image tower. Lower
    case: the tokenizer's, or `reference.needs_lower_case`.
    """

    first: bool = False
    masked: bool = False
    full: bool = False
    longest: int | None = None
    patches: bool = False
    width: str | None = "projection_dim"


#: Each `model_type` that we load. How images are prepared depends on the image processor: see `preprocess`.
KINDS: Mapping[str, Kind] = {
    "clip": Kind(first=True),
    RESNET: Kind(),
    "clipseg": Kind(),
    "metaclip_2": Kind(first=True),
    "siglip": Kind(full=True, width=None),  # SigLIP 2 at a fixed size is one too
    "siglip2": Kind(full=True, width=None, patches=True),  # NaFlex
    "align": Kind(masked=True, longest=64),
    "altclip": Kind(masked=True, longest=77),
    "chinese_clip": Kind(masked=True, longest=52),
    DUAL: Kind(masked=True),
}


def kind_of(model: str) -> Kind:
    """Returns how a checkpoint takes texts and images; ModelError if it is none of `KINDS`."""
    kind = model_type(model) or ""
    if kind in KINDS:
        return KINDS[kind]
    reason = f"{model} is a {kind!r} model; embeddings of images and captions take one of {', '.join(KINDS)}"
    matches = "; the signal itm takes BLIP's and BLIP-2's retrieval checkpoints"
    raise ModelError(reason + (matches if kind in ("blip", "blip-2") else ""))


def temperature_of(model: ModelRef) -> float | None:
    """Returns what a checkpoint divides cosines by, exp(-logit_scale); None if its safetensors hold no such number."""
    from safetensors import safe_open

    for file in sorted(resolve(model).path.glob("*.safetensors")):
        with safe_open(file, "np") as tensors:
            if "logit_scale" in tensors.keys():  # noqa: SIM118  # it is no mapping
                bf16 = tensors.get_slice("logit_scale").get_dtype() == "BF16"  # NumPy has no such numbers
                with safe_open(file, "pt" if bf16 else "np") as readable:
                    return math.exp(-float(readable.get_tensor("logit_scale").item()))
    return None


class Clip:
    """The two towers of a checkpoint, on a device."""

    def __init__(self, model: ModelRef, device: Device) -> None:
        """Loads a checkpoint; ModelError if it is missing or has another `model_type`."""
        self._kind = kind_of(model)
        import torch
        from transformers import AutoModel

        path = resolve(model).path
        self._torch, self._batch = torch, device.batch_size
        self.device, self.dtype = device.kind, dtype_of(device)
        self._model = load_for_inference(AutoModel, path, model, device, expected="a whole CLIP or SigLIP")
        if self._kind.first:
            compute_first_token(self._model.vision_model.encoder.layers[-1])
        config, preprocess = self._model.config, load_preprocess(model)
        if self._kind.patches != (preprocess.patch is not None):
            raise ModelError(f"{model}: its preprocessor_config.json is another model's: only NaFlex takes patches")
        check_side(preprocess, config.vision_config, model)
        scale = torch.tensor([preprocess.scale] * 3) / torch.tensor(preprocess.std)
        shift = torch.tensor(preprocess.mean) / torch.tensor(preprocess.std)
        self._scale, self._shift = (one.view(1, 3, 1, 1).to(self.device) for one in (scale, shift))
        self._pad = load_tokenizer_in(path, network=self._model).pad_token_id
        self._patch, self._most = preprocess.patch, preprocess.patches
        self._fixed_length = context_length(model) if self._kind.full else None
        projected = getattr(config, self._kind.width, 0) if self._kind.width else 0
        self.size: int = int(projected or config.vision_config.hidden_size)

    def images(self, images: Sequence[Pixels]) -> NDArray[np.float32]:
        """Embeds n arrays (height, width, 3) of uint8, resized as the checkpoint says: (n, d), not normalised."""
        parts = each_core(images, self._embed, self._batch, self.device, least=8)
        return np.concatenate(parts) if parts else np.empty((0, self.size), np.float32)

    def _embed(self, images: Sequence[Pixels]) -> NDArray[np.float32]:
        """Embeds one batch of images."""
        torch = self._torch
        with torch.inference_mode():
            if self._kind.patches:
                inputs = self._patches(images)
            else:
                stack = torch.from_numpy(np.stack(images))
                pixels = stack.to(self.device, non_blocking=True).permute(0, 3, 1, 2).float()  # (b, 3, h, w)
                inputs = {"pixel_values": pixels.mul_(self._scale).sub_(self._shift).to(self.dtype)}
            found: NDArray[np.float32] = take_embedding(self._model.get_image_features(**inputs)).float().cpu().numpy()
            return found

    def _patches(self, images: Sequence[Pixels]) -> dict[str, Any]:
        """Cuts n images into patches, with zeros up to the largest number: every batch has the same shape."""
        torch, side, most = self._torch, self._patch or 1, self._most or 1
        shapes = [(image.shape[0] // side, image.shape[1] // side) for image in images]
        stack = np.zeros((len(images), most, side * side, 3), np.uint8)
        mask = np.zeros((len(images), most), np.int32)
        for row, (image, (high, wide)) in enumerate(zip(images, shapes, strict=True)):
            cut = image.reshape(high, side, wide, side, 3).swapaxes(1, 2)
            stack[row, : high * wide] = cut.reshape(high * wide, side * side, 3)
            mask[row, : high * wide] = 1
        present = torch.from_numpy(mask).to(self.device)
        pixels = torch.from_numpy(stack).to(self.device).float()
        pixels = pixels.mul_(self._scale.view(3)).sub_(self._shift.view(3)).mul_(present[:, :, None, None])
        return {
            "pixel_values": pixels.flatten(2).to(self.dtype),
            "pixel_attention_mask": present,
            "spatial_shapes": torch.tensor(shapes, device=self.device),
        }

    def texts(self, tokens: Sequence[Sequence[int]], *, states: Path | None = None) -> NDArray[np.float32]:
        """Embeds n lists of token ids from `load_tokenizer`: (n, d), not normalised.

        `states`, of a dual encoder: the file with what its text tower makes of these lists before the projection, (n,
        width); written if it is missing or damaged. Models with one frozen tower share it.
        """
        if not tokens:
            return np.empty((0, self.size), np.float32)
        if states is None:
            return self._each_text(tokens, self._model.get_text_features)
        try:
            found = np.array(read_array(states, Owner(len(tokens), "")))
        except DamageError:
            found = self._each_text(tokens, self._model.text_model)
            write_array(states, found)
        with self._torch.inference_mode():
            rows = self._torch.from_numpy(found).to(self.device, self.dtype)
            projected: NDArray[np.float32] = self._model.text_projection(rows).float().cpu().numpy()
            return projected

    def _each_text(self, tokens: Sequence[Sequence[int]], network: Callable[..., Any]) -> NDArray[np.float32]:
        def embed(ids: Any, mask: Any) -> Any:
            masked = {"attention_mask": mask} if self._kind.masked else {}
            return take_embedding(network(input_ids=ids, **masked)).float().cpu().numpy()

        how: dict[str, Any] = {"batch": self._batch, "pad": self._pad, "device": self.device}
        rows = each_text(tokens, embed, **how, length=self._fixed_length)
        return np.stack([rows[tuple(ids)] for ids in tokens])


def compute_first_token(layer: Any) -> None:
    """Makes a block of an image tower return its first token alone: (n, 1, d) of (n, tokens, d)."""
    from torch.nn.functional import scaled_dot_product_attention

    attention = layer.self_attn

    def forward(hidden: Any, *_: Any, **__: Any) -> Any:
        normed, first = layer.layer_norm1(hidden), hidden[:, :1]
        pairs = ((attention.q_proj, normed[:, :1]), (attention.k_proj, normed), (attention.v_proj, normed))
        heads = (project(rows).unflatten(2, (attention.num_heads, -1)).transpose(1, 2) for project, rows in pairs)
        first = first + attention.out_proj(scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return first + layer.mlp(layer.layer_norm2(first))

    layer.forward = forward


def take_embedding(output: Any) -> Any:
    """Returns the projected embedding; transformers wraps it in an output object since version 5."""
    return output if hasattr(output, "float") else output.pooler_output


load_clip = load_once(keep=4)(Clip)


def context_length(model: str) -> int:
    """Returns how many tokens a checkpoint's text tower takes."""
    kind, path = kind_of(model), resolve(model).path / "config.json"
    text = object_in(path).get("text_config") or {}
    most = text.get("max_position_embeddings", 64 if kind.full else 77) if isinstance(text, dict) else None
    if type(most) is not int or most < 1:
        raise ModelError(f"{path} is damaged: text_config.max_position_embeddings is not a number of tokens")
    if text.get("model_type") in SHIFTED:  # positions are counted from the padding token's number plus 1
        pad = text.get("pad_token_id", 1)
        most = max(1, most - 1 - (pad if type(pad) is int else 1))
    return min(most, kind.longest or most)


def load_tokenizer(model: str, text: Cleaning | None = None) -> Callable[[Sequence[str]], list[list[int]]]:
    """Returns a function of n texts to n lists of token ids, special tokens included, cut at the context length.

    `text`: how texts are cleaned first; None: as the checkpoint's were (`cleaning_of`).
    """
    tokenizer, clean = load_tokenizer_in(resolve(model).path), cleaner(text or cleaning_of(model))
    # A text tower from another model may take more tokens than it was trained on together with the image tower.
    length = min(context_length(model), tokenizer.model_max_length)

    def tokenize(texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        ids: list[list[int]] = tokenizer([clean(one) for one in texts], truncation=True, max_length=length)["input_ids"]
        return ids

    return tokenize
