"""What the processor's arithmetic allows: how fast it multiplies, and how many multiplications the work needs.

The limit of a benchmark is the rate at which one large product of matrices runs here, in the same precision and on the
same threads, over the floating-point operations that the work cannot do without (a multiplication and an addition are
two). Operations are counted on transformers' own modules without data (torch's "meta" device), those of the text
detector on its graph. Norms, activations, sampling, decoding and memory cost nothing in it, so no program reaches it.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Case, processor
from tamis.compute import Precision
from tamis.train.step import forward_flops, product_rate

_SIDE = 2048  # of the matrices that are multiplied: large enough to be at the top rate, small enough for a second


@cache
def peak(precision: Precision) -> float:
    """Returns the floating-point operations per second of a product of large matrices on this processor."""
    import torch

    return product_rate(torch.device("cpu"), precision, side=_SIDE, rounds=6)


def counted(work: Any, *inputs: Any, **named: Any) -> int:
    """Returns the floating-point operations of one call of a module that lies on the device "meta"."""
    return forward_flops(partial(work, *inputs, **named))


def captioner_flops(side: int, *, captions: int, tokens: int) -> tuple[int, int]:
    """Returns what one image costs BLIP-base: (the image encoder, everything).

    The image is encoded once, its keys and values are projected once, the start token is one row, and every later token
    is a row for each caption; the last token is drawn and not read.

    Args:
        side: of the image in pixels.
        captions: of an image, that differ from their first word on.
        tokens: of a caption, the start token included.
    """
    import torch
    from transformers import BlipConfig, BlipForConditionalGeneration

    with torch.device("meta"):
        config = BlipConfig(
            vision_config={"image_size": side}, text_config={"encoder_hidden_size": 768},
            attn_implementation="eager",
        )  # fmt: skip
        blip: Any = BlipForConditionalGeneration(config).eval()
        encoder = counted(blip.vision_model, torch.empty(1, 3, side, side))
        seen = (side // config.vision_config.patch_size) ** 2 + 1

        def read(rows: int, length: int) -> int:
            return counted(
                blip.text_decoder,
                torch.zeros(rows, length, dtype=torch.long),
                encoder_hidden_states=torch.empty(rows, seen, 768),
            )

        text = config.text_config
        projected = text.num_hidden_layers * 2 * 2 * seen * 768 * text.hidden_size  # keys and values of one copy
        # The copy that the start token's row projects is the one that is needed.
        return encoder, encoder + read(1, 1) + read(captions, tokens - 2) - captions * projected


def clip_flops(config: Any, words: int) -> tuple[int, int]:
    """Returns what CLIP costs: (one image, one caption of so many tokens)."""
    import torch
    from transformers import CLIPModel

    with torch.device("meta"):
        clip: Any = CLIPModel._from_config(config, attn_implementation="eager").eval()
        side = config.vision_config.image_size
        image = counted(clip.vision_model, torch.empty(1, 3, side, side))
        return image, counted(clip.text_model, torch.zeros(1, words, dtype=torch.long))


def encoder_flops(config: Any, words: int) -> int:
    """Returns what a text classifier of transformers costs for one text of so many tokens."""
    import torch
    from transformers import AutoModelForSequenceClassification

    with torch.device("meta"):
        model: Any = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").eval()
        return counted(model, torch.ones(1, words, dtype=torch.long))


@cache
def graph_flops(network: Path, height: int, width: int) -> int:
    """Returns what the convolutions of an ONNX network cost on one image (1, 3, height, width); needs openvino."""
    import openvino

    model = openvino.Core().read_model(str(network))
    model.reshape([1, 3, height, width])
    total = 0
    for step in model.get_ops():
        kind = step.get_type_name()
        if "Convolution" not in kind:
            continue
        kernel, result = step.input(1).get_shape(), step.output(0).get_shape()
        # What one place of the result sums up: each kernel's numbers but the axis (or axes, in groups) of channels out.
        if "Backprop" in kind:
            places, each = np.prod(step.input(0).get_shape()[2:]), np.prod(kernel)
        else:
            places, each = np.prod(result[2:]), np.prod(kernel)
        total += 2 * int(places) * int(each)
    return total


def against_limit(name: str, unit: str, ours: float, theirs: float | None, flops: float, precision: Precision) -> Case:
    """Returns the case that sets a rate beside the processor's limit.

    Args:
        ours, theirs: images or captions per second.
        flops: floating-point operations that one of them needs.
    """
    top = peak(precision)
    settings: dict[str, Any] = {
        "GFLOP each": round(flops / 1e9, 2),
        f"GFLOP/s of a large product in {precision}": round(top / 1e9),
        "processor": processor(),
    }
    if theirs:
        settings["the baseline's share of the limit"] = f"{theirs * flops / top:.0%}"
        settings["the largest ratio that this arithmetic allows"] = round(top / flops / theirs, 2)
    return Case(f"{name}, share of the processor's limit", unit, ours, top / flops, ours * flops / top, "-", settings)
