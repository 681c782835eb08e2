"""Resizes and crops by a model's `preprocessor_config.json`, in Pillow, bit for bit as OpenAI does.

Values stay uint8 until they reach the model's device, which rescales them: that takes a quarter of the memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from tamis.core.arrays import Pixels
from tamis.core.errors import ModelError
from tamis.models.loading import one_sentence
from tamis.models.reference import object_in, resolve

#: CLIP and BLIP were trained with these.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)

#: In pixels. No model takes larger images, and a larger number in a damaged file would fill the memory.
LARGEST_SIDE = 8192

#: `model_type` of the image towers that take only one size.
_OF_ONE_SIZE = (
    *("clip_vision_model", "metaclip_2_vision_model", "altclip_vision_model", "chinese_clip_vision_model"),
    *("siglip_vision_model", "blip_vision_model", "vit"),
)

#: Image processors that `Preprocess` expresses, by the beginnings of their names.
_PROCESSORS = ("CLIP", "ChineseCLIP", "Siglip", "ViT", "Blip", "Bit", "Convnext", "EfficientNet")


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """How images become a model's input.

    Resize the shorter side to `shorter`, or squash the image to `size`; then crop the centre to `crop`. Sizes are
    (width, height); None skips a step. Values become (value * scale - mean) / std. `resample` is Pillow's filter.
    With `patch`, an image is resized in its shape to at most `patches` squares of `patch` pixels instead (NaFlex).
    """

    shorter: int | None
    size: tuple[int, int] | None
    crop: tuple[int, int] | None
    resample: Image.Resampling
    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    patch: int | None = None
    patches: int | None = None

    def with_crop(self) -> Preprocess:
        """Returns preprocessing that crops the centre, as CLIP does, instead of squashing the image."""
        if self.size is None:
            return self
        return replace(self, shorter=min(self.size), size=None, crop=self.size)

    def resize(self, pixels: Pixels) -> Pixels:
        """Returns (height, width, 3) uint8: one image resized and cropped."""
        width, height = target = pixels.shape[1], pixels.shape[0]
        if self.patch is not None and self.patches is not None:
            target = _sides_of_patches(width, height, self.patch, self.patches)
        elif self.size is not None:
            target = self.size
        elif self.shorter is not None:
            # int, not round, as in torchvision and so in OpenAI's code.
            other = int(self.shorter * max(width, height) / min(width, height))
            target = (self.shorter, other) if width <= height else (other, self.shorter)
        if (width, height) != target:
            pixels = np.asarray(Image.fromarray(pixels).resize(target, self.resample))
        size = self.crop or target
        left, top = round((target[0] - size[0]) / 2), round((target[1] - size[1]) / 2)
        if left >= 0 and top >= 0 and left + size[0] <= target[0] and top + size[1] <= target[1]:
            return np.ascontiguousarray(pixels[top : top + size[1], left : left + size[0]])
        # The crop is larger than the image: Pillow fills with black.
        return np.asarray(Image.fromarray(pixels).crop((left, top, left + size[0], top + size[1])))

    def normalise(self, pixels: Pixels) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Returns the model's input, (3, height, width) float32, as its authors compute it."""
        # Divided by 255, as the authors do: multiplying by 1/255 differs in the last bit.
        values = pixels.astype(np.float32) / np.float32(1 / self.scale)
        scaled = (values - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return np.ascontiguousarray(scaled.transpose(2, 0, 1), np.float32)


def _sides_of_patches(width: int, height: int, patch: int, most: int) -> tuple[int, int]:
    """Returns width and height in whole patches, at most `most` of them, by the library's search for the scale."""
    low, high = 1e-6, 100.0
    grid = (1, 1)
    while high - low >= 1e-5:
        scale = (low + high) / 2
        tried = tuple(max(1, math.ceil(side * scale / patch)) for side in (width, height))
        if tried[0] * tried[1] <= most:
            low, grid = scale, (tried[0], tried[1])
        else:
            high = scale
    return grid[0] * patch, grid[1] * patch


def load_preprocess(model: str) -> Preprocess:
    """Returns a checkpoint's preprocessing; ModelError if it is missing or not supported."""
    path = resolve(model).path / "preprocessor_config.json"
    if not path.is_file():
        path = path.with_name("processor_config.json")
    if not path.is_file():
        raise ModelError(f"{model}: the folder holds no preprocessor_config.json, which says how images are resized")
    config = object_in(path)
    with one_sentence("the image processor", path):
        return preprocess_of(config.get("image_processor", config), str(path))


def check_side(preprocess: Preprocess, tower: Any, model: str) -> None:
    """Raises ModelError unless images get the size that an image tower's configuration expects."""
    if preprocess.patch is not None:
        if preprocess.patch != tower.patch_size:
            raise ModelError(f"{model}: patches of {preprocess.patch} pixels, its image tower takes {tower.patch_size}")
        return
    size, side = preprocess.crop or preprocess.size, getattr(tower, "image_size", None)
    one_size = getattr(tower, "model_type", None) in _OF_ONE_SIZE and isinstance(side, int)
    if size is None or (one_size and size != (side, side)):
        made = f"{size[0]} x {size[1]} pixels" if size else "different sizes"
        raise ModelError(f"{model}: its images become {made}, and its image tower takes {side} x {side}")


def image_processor(
    kind: str, side: int, *, crop: bool, mean: Sequence[float] = CLIP_MEAN, std: Sequence[float] = CLIP_STD,
    resample: int = Image.Resampling.BICUBIC,
) -> dict[str, Any]:  # fmt: skip
    """Returns the content of a preprocessor_config.json: resize to `side`, crop the centre or squash, normalise."""
    exact = {"height": side, "width": side}
    return {
        "image_processor_type": kind,
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": side} if crop else exact,
        "resample": int(resample),
        "do_center_crop": crop,
        "crop_size": exact,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
        "image_std": list(std),
    }


def preprocess_of(config: Mapping[str, Any], model: str) -> Preprocess:
    """Reads the settings of a Hugging Face image processor: resize, centre crop, rescale and normalise."""
    kind = str(config.get("image_processor_type", config.get("feature_extractor_type", "CLIPImageProcessor")))
    clip = kind.startswith(("CLIP", "ChineseCLIP"))
    if not kind.startswith(_PROCESSORS):
        raise ModelError(f"{model}: its image processor, {kind}, is not supported; use a CLIP or SigLIP model")
    if kind.startswith("EfficientNet") and (config.get("include_top", True) or config.get("do_normalize", True)):
        raise ModelError(f"{model}: of {kind}, only ALIGN's (include_top and do_normalize false) is supported")
    naflex = kind.startswith("Siglip2")
    squash = {"height": 224, "width": 224}
    size = config.get("size", {"shortest_edge": 224} if clip else squash)
    if isinstance(size, int):
        size = {"shortest_edge": size} if clip else {"height": size, "width": size}
    crop = config.get("crop_size", squash)
    if isinstance(crop, int):
        crop = {"height": crop, "width": crop}
    resize, normalise = config.get("do_resize", True) and not naflex, config.get("do_normalize", True)
    mean = config.get("image_mean", CLIP_MEAN if clip else (0.5, 0.5, 0.5)) if normalise else (0.0, 0.0, 0.0)
    std = config.get("image_std", CLIP_STD if clip else (0.5, 0.5, 0.5)) if normalise else (1.0, 1.0, 1.0)
    if config.get("rescale_offset") is True:  # EfficientNet's values begin at -1
        mean = [one + 1 for one in mean]
    resample = Image.Resampling.BILINEAR if kind.startswith(("Siglip2", "ViT")) else Image.Resampling.BICUBIC
    made = Preprocess(
        shorter=size.get("shortest_edge") if resize else None,
        size=(size["width"], size["height"]) if resize and "height" in size else None,
        crop=(crop["width"], crop["height"]) if config.get("do_center_crop", clip) and not naflex else None,
        resample=Image.Resampling(config.get("resample", resample)),
        scale=config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1.0,
        mean=tuple(mean),
        std=tuple(std),
        patch=config.get("patch_size", 16) if naflex else None,
        patches=config.get("max_num_patches", 256) if naflex else None,
    )
    sides = [made.shorter, *(made.size or ()), *(made.crop or ()), made.patch, made.patches]
    sides = [side for side in sides if side is not None]
    if not all(type(side) is int and 1 <= side <= LARGEST_SIDE for side in sides):
        raise ModelError(f"{model}: images would become {' x '.join(map(str, sides))} pixels, at most {LARGEST_SIDE:,}")
    numbers = (made.scale, *made.mean, *made.std)
    if len(numbers) != 7 or not all(isinstance(one, int | float) for one in numbers) or 0 in (made.scale, *made.std):
        raise ModelError(f"{model}: rescale_factor, image_mean and image_std must be 1, 3 and 3 numbers, no divisor 0")
    return made
