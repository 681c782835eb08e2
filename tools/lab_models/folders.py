"""Writing a trained model as the folder that Hugging Face's own classes write and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def save(model: Any, tokenizer: Any, out: Path) -> None:
    """Writes config, weights in float16 and tokenizer. The model itself is float16 afterwards."""
    out.mkdir(parents=True, exist_ok=True)
    model.half().save_pretrained(out)
    if tokenizer is not None:
        tokenizer.save_pretrained(out)
