"""A captioner's weights, tokenizer and pixels, which every way of decoding shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tamis.arrays import Pixels
from tamis.data import Device
from tamis.models.captioners import architecture_of
from tamis.models.device import dtype_of, use_threads
from tamis.models.loading import load_tokenizer_in, load_whole
from tamis.models.preprocess import check_side, load_preprocess
from tamis.models.reference import resolve


class LoadedCaptioner:
    """A checkpoint on its device.

    Attributes:
        name: what the user called it, for messages.
        architecture: what is particular to its kind.
        model, tokenizer: of transformers.
        preprocess: how its images are resized.
    """

    def __init__(self, model: str, device: Device) -> None:
        """Loads a checkpoint.

        Raises:
            ModelError: it is not here, or captions no images.
            DependencyError: torch or transformers is not installed.
        """
        self.architecture = architecture_of(model)
        import torch

        path = resolve(model).path
        self.name = model
        self.device = torch.device(device.kind)
        self.dtype = dtype_of(device)
        self.batch = device.batch_size
        use_threads(device)
        cls = self.architecture.cls()
        self.model = load_whole(cls, path, model, expected="a captioner of images", dtype=self.dtype).to(self.device)
        self.tokenizer: Any = load_tokenizer_in(path, network=self.model)
        self.preprocess = load_preprocess(model)
        config = self.model.config
        check_side(self.preprocess, getattr(config, "vision_config", None) or getattr(config, "encoder", None), model)
        self._mean = torch.tensor(self.preprocess.mean).view(1, 3, 1, 1).to(self.device)
        self._std = torch.tensor(self.preprocess.std).view(1, 3, 1, 1).to(self.device)

    def pixels(self, images: Sequence[Pixels]) -> Any:
        """Returns (n, 3, height, width), normalised, in the model's precision."""
        import torch

        stack = torch.from_numpy(np.stack(images)).to(self.device, non_blocking=True).permute(0, 3, 1, 2)
        return stack.float().mul_(self.preprocess.scale).sub_(self._mean).div_(self._std).to(self.dtype)

    def texts(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """Returns n texts without special tokens."""
        found: list[str] = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [text.strip() for text in found]
