"""Writing a trained model as the folder that Hugging Face's own classes write and read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def save(model: Any, tokenizer: Any, out: Path) -> None:
    """Writes config, weights in float16 and tokenizer. The model itself is float16 afterwards."""
    out.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(out)
    if tokenizer is not None:
        tokenizer.save_pretrained(out)


def write_preprocessing(
    out: Path, *, kind: str, side: int, crop: bool, mean: Sequence[float], std: Sequence[float]
) -> None:
    """Writes preprocessor_config.json: resize to `side`, crop the centre or squash, scale, normalise."""
    exact = {"height": side, "width": side}
    settings = {
        "image_processor_type": kind,
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": side} if crop else exact,
        "resample": 3,  # bicubic
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
        "image_std": list(std),
    }
    if crop:
        settings |= {"do_center_crop": True, "crop_size": exact}
    (out / "preprocessor_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
