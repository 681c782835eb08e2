"""CLIP and SigLIP towers: images and token ids to embeddings.

Three things make it fast: each distinct caption is embedded once; captions run in batches of similar length (a causal
text tower never sees what follows the end token, so padding changes nothing); images are normalised on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Pixels
from tamis.data import Device, ModelRef
from tamis.errors import ModelError
from tamis.models.device import dtype_of
from tamis.models.loading import by_length, load_tokenizer_in, loaded_once, model_type, padded
from tamis.models.packed import load_for_inference
from tamis.models.preprocess import check_side, load_preprocess
from tamis.models.reference import object_in, resolve

#: `model_type` of an image tower with a separate text encoder, which `tamis train clip` can save.
DUAL = "vision-text-dual-encoder"

#: Each `model_type` that we load.
KINDS = ("clip", "siglip", DUAL)


class Clip:
    """The two towers of a checkpoint, on a device."""

    def __init__(self, model: ModelRef, device: Device) -> None:
        """Loads a checkpoint; ModelError if it is missing or has another `model_type`."""
        kind = model_type(model)
        if kind not in KINDS:
            raise ModelError(f"{model} is a {kind!r} model; clip takes {' or '.join(KINDS)} checkpoints")
        import torch
        from transformers import AutoModel

        path = resolve(model).path
        self._torch, self._batch = torch, device.batch_size
        self.device, self.dtype = device.kind, dtype_of(device)
        self._model = load_for_inference(AutoModel, path, model, device, expected="a whole CLIP or SigLIP")
        config, preprocess = self._model.config, load_preprocess(model)
        check_side(preprocess, config.vision_config, model)
        scale = torch.tensor([preprocess.scale] * 3) / torch.tensor(preprocess.std)
        shift = torch.tensor(preprocess.mean) / torch.tensor(preprocess.std)
        self._scale, self._shift = (one.view(1, 3, 1, 1).to(self.device) for one in (scale, shift))
        self._pad = load_tokenizer_in(path, network=self._model).pad_token_id
        # SigLIP was trained on texts padded to full length, and its tower attends to the padding.
        self._fixed_length = context_length(model) if kind == "siglip" else None
        self._masked = kind == DUAL  # its text tower is not causal, so padding must be masked
        projected = 0 if kind == "siglip" else getattr(config, "projection_dim", 0)
        self.size: int = int(projected or config.vision_config.hidden_size)

    def images(self, images: Sequence[Pixels]) -> NDArray[np.float32]:
        """Embeds n arrays (side, side, 3) of uint8, resized as the checkpoint says: (n, d), not normalised."""
        torch = self._torch
        parts = []
        with torch.inference_mode():
            for start in range(0, len(images), self._batch):
                stack = torch.from_numpy(np.stack(images[start : start + self._batch]))
                pixels = stack.to(self.device, non_blocking=True).permute(0, 3, 1, 2).float()  # (b, 3, h, w)
                pixels = pixels.mul_(self._scale).sub_(self._shift).to(self.dtype)
                features = self._model.get_image_features(pixel_values=pixels)
                parts.append(pooled(features).float().cpu().numpy())
        return np.concatenate(parts) if parts else np.empty((0, self.size), np.float32)

    def texts(self, tokens: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        """Embeds n lists of token ids from `load_tokenizer`: (n, d), not normalised."""
        rows: dict[tuple[int, ...], NDArray[np.float32]] = {}
        with self._torch.inference_mode():
            distinct = dict.fromkeys(tuple(ids) for ids in tokens)
            for chunk in by_length(sorted(distinct, key=len), self._batch):
                ids, mask = padded(chunk, self._pad, self.device, length=self._fixed_length)
                masked = {"attention_mask": mask} if self._masked else {}
                features = pooled(self._model.get_text_features(input_ids=ids, **masked)).float().cpu().numpy()
                rows.update(zip(chunk, features, strict=True))
        return np.stack([rows[tuple(ids)] for ids in tokens]) if tokens else np.empty((0, self.size), np.float32)


def pooled(output: Any) -> Any:
    """Returns the projected embedding; transformers wraps it in an output object since version 5."""
    return output if hasattr(output, "float") else output.pooler_output


load_clip = loaded_once(keep=4)(Clip)


def context_length(model: str) -> int:
    """Returns how many tokens a checkpoint's text tower takes."""
    path = resolve(model).path / "config.json"
    config = object_in(path)
    text = config.get("text_config") or {}
    default = 64 if config.get("model_type") == "siglip" else 77
    most = text.get("max_position_embeddings", default) if isinstance(text, dict) else None
    if type(most) is not int or most < 1:
        raise ModelError(f"{path} is damaged: text_config.max_position_embeddings is not a number of tokens")
    return most


def load_tokenizer(model: str) -> Callable[[Sequence[str]], list[list[int]]]:
    """Returns a function of n texts to n lists of token ids, special tokens included, cut at the context length."""
    tokenizer = load_tokenizer_in(resolve(model).path)
    # A text tower from another model may take more tokens than it was trained on together with the image tower.
    length = min(context_length(model), tokenizer.model_max_length)

    def tokenize(texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        ids: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=length)["input_ids"]
        return ids

    return tokenize
