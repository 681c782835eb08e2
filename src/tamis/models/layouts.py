"""Turns checkpoints in the layout of open_clip (also used by OpenAI) or BLIP into models of transformers.

A table rewrites the weights' names; sizes come from their shapes. The weights do not show activation, heads, pooling
and preprocessing: these come from open_clip_config.json or the user. A setting that `CLIPModel` cannot express is an
error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from tamis.core.errors import ModelError
from tamis.models.preprocess import CLIP_MEAN, CLIP_STD, image_processor
from tamis.models.reference import Cleaning

Activation = Literal["gelu", "quick_gelu"]

#: open_clip's modes that transformers' CLIP has: the shorter side, then a crop of the centre; or a square of the whole.
ResizeMode = Literal["shortest", "squash"]

#: The width of a head in nearly every published transformer, and by a tower's width in open_clip's wide image towers
#: (ViT-H, ViT-g, ViT-bigG, ViT-e).
_HEAD_WIDTH = 64
_WIDE_HEADS = {1280: 80, 1408: 88, 1664: 104, 1792: 112}

#: Pillow's numbers of open_clip's filters; it draws one at random in training only.
_FILTERS = {"bilinear": 2, "bicubic": 3, "random": 3}

_VISION, _TEXT = "vision_model.encoder.layers", "text_model.encoder.layers"
_RESIDUAL = ("visual.layer1.", "visual.attnpool.")  # only a residual network has these
_POOL = "visual.attnpool.positional_embedding"
_WORDS, _PREDICTIONS = "text_decoder.bert.embeddings.word_embeddings.weight", "text_decoder.cls.predictions"

#: (pattern, transformers' name), applied one after the other: first open_clip's names, then BLIP's.
_NAMES = (
    (r"^text\.(?=token_embedding|positional_embedding|transformer|ln_final|text_projection|attn_mask)", ""),
    (r"^visual\.class_embedding$", "vision_model.embeddings.class_embedding"),
    (r"^visual\.conv1\.", "vision_model.embeddings.patch_embedding."),
    (r"^visual\.positional_embedding$", "vision_model.embeddings.position_embedding.weight"),
    (r"^visual\.ln_pre\.", "vision_model.pre_layrnorm."),
    (r"^visual\.ln_post\.", "vision_model.post_layernorm."),
    (r"^visual\.proj$", "visual_projection.weight"),
    (r"^token_embedding\.", "text_model.embeddings.token_embedding."),
    (r"^positional_embedding$", "text_model.embeddings.position_embedding.weight"),
    (r"^ln_final\.", "text_model.final_layer_norm."),
    (r"^text_projection$", "text_projection.weight"),
    (r"^visual\.transformer\.resblocks\.", f"{_VISION}."),
    (r"^transformer\.resblocks\.", f"{_TEXT}."),
    (r"(layers\.\d+)\.ln_([12])\.", r"\1.layer_norm\2."),
    (r"(layers\.\d+)\.attn\.(in_proj|out_proj)", r"\1.self_attn.\2"),
    (r"(layers\.\d+)\.mlp\.c_fc\.", r"\1.mlp.fc1."),
    (r"(layers\.\d+)\.mlp\.c_proj\.", r"\1.mlp.fc2."),
    (r"^visual_encoder\.cls_token$", "vision_model.embeddings.class_embedding"),
    (r"^visual_encoder\.pos_embed$", "vision_model.embeddings.position_embedding"),
    (r"^visual_encoder\.patch_embed\.proj\.", "vision_model.embeddings.patch_embedding."),
    (r"^visual_encoder\.norm\.", "vision_model.post_layernorm."),
    (r"^visual_encoder\.blocks\.", f"{_VISION}."),
    (r"(layers\.\d+)\.norm([12])\.", r"\1.layer_norm\2."),
    (r"(layers\.\d+)\.attn\.qkv\.", r"\1.self_attn.qkv."),
    (r"(layers\.\d+)\.attn\.proj\.", r"\1.self_attn.projection."),
)

#: Weights to drop: buffers, plain numbers, and the other networks of BLIP's pretraining.
_LEFT_OUT = re.compile(
    r"(attn_mask|input_resolution|context_length|vocab_size|logit_bias)$|"
    r"(visual_encoder_m|text_encoder|text_encoder_m)\.|(vision_proj|text_proj|itm_head)(_m)?\.|"
    r"(image_queue|text_queue|queue_ptr|ptr_queue|idx_queue|temp)$|text_decoder\.bert\.embeddings\.position_ids$"
)

#: Settings of open_clip that the weights show too, that only training uses, or that we read below.
_KNOWN = (
    *("embed_dim", "vision_cfg", "text_cfg", "quick_gelu", "custom_text", "init_logit_scale", "init_logit_bias"),
    *("nonscalar_logit_scale", "cast_dtype", "width", "mlp_ratio", "act_kwargs", "norm_kwargs", "output_tokens"),
    *("head_width", "patch_size", "image_size", "patch_dropout", "attn_pooler_queries", "attn_pooler_heads"),
    *("final_ln_after_pool", "pos_embed_type", "heads", "context_length", "vocab_size", "hf_tokenizer_name"),
    *("tokenizer_kwargs", "pad_id", "eos_id", "preprocess_cfg"),
)

#: More settings, with the values that `CLIPModel` can express. All other settings must be off.
_EXPRESSIBLE: Mapping[str, tuple[Any, ...]] = {
    "block_type": (None, "default"),
    "pool_type": ("tok", "argmax", "eos"),
    "proj_type": ("linear",),
    "clean": ("lower", "whitespace", "canonicalize"),  # of tokenizer_kwargs
}


class Tensors(dict[str, Any]):
    """The weights of a checkpoint by name."""

    def __missing__(self, name: str) -> Any:
        raise ModelError(f"it lacks the weight {name}")


class Conversion(NamedTuple):
    """A checkpoint in transformers' layout; `length` is the longest text in tokens, `text` how texts are cleaned."""

    cls: Any
    config: Any
    tensors: Mapping[str, Any]
    preprocessing: Mapping[str, Any]
    length: int
    notes: tuple[str, ...] = ()
    text: Cleaning = "hf"


def layout_of(tensors: Mapping[str, Any], file: str) -> str:
    """Returns "BLIP", "open_clip", or "a head": linear layers on an embedding."""
    if "visual_encoder.cls_token" in tensors:
        return "BLIP"
    if any(name.startswith("visual.") for name in tensors):
        return "open_clip"
    if all(name.endswith(("weight", "bias")) and one.ndim <= 2 for name, one in tensors.items()) and len(tensors) < 40:
        return "a head"
    some = ", ".join(sorted(tensors)[:3])
    raise ModelError(f"{file} has neither BLIP's nor open_clip's layout (of transformers' name the folder): {some}")


def from_open_clip(
    tensors: Tensors, tokenizer: Any, config: Mapping[str, Any], activation: Activation | None, head_width: int | None
) -> Conversion:
    """Returns a `CLIPModel`, `MetaClip2Model` or, with a residual network, `ClipResNet`.

    `config` is open_clip_config.json, open_clip's model_config, or {}.
    """
    from transformers import CLIPConfig, CLIPModel, MetaClip2Config, MetaClip2Model

    model = config.get("model_cfg", config)
    vision, text = model.get("vision_cfg") or {}, model.get("text_cfg") or {}
    resnet = any(name.startswith(_RESIDUAL) for name in tensors)
    _check_settings(model, vision, text, text.get("tokenizer_kwargs") or {}, resnet=resnet)
    act, clean = _activation(model, vision, text, activation), _cleaning(text)
    # Their names become ours; q, k and v are one matrix there; projections are transposed.
    weights = _rename(tensors)
    for name in [name for name in weights if ".in_proj_" in name]:
        for one, part in zip("qkv", weights.pop(name).chunk(3), strict=True):
            weights[name.replace("in_proj_", f"{one}_proj.")] = part.contiguous()
    for name in ("text_projection.weight",) if resnet else ("visual_projection.weight", "text_projection.weight"):
        weights[name] = weights[name].T.contiguous()
    weights["logit_scale"] = weights["logit_scale"].reshape(())
    # The weights tell the sizes; the configuration, where there is one, must agree.
    per_head = vision.get("head_width") or head_width
    if resnet:
        vision_sizes, patch = _residual(tensors, per_head or _HEAD_WIDTH), 32
        side = _side(tensors[_POOL].shape[0])
    else:
        width, _, patch, _ = weights["vision_model.embeddings.patch_embedding.weight"].shape
        # What a configuration leaves out has open_clip's default: 64 for each of the image's heads, 8 heads for texts.
        per_head = per_head or (not model and _WIDE_HEADS.get(width)) or _HEAD_WIDTH
        vision_sizes = _tower(weights, _VISION, "mlp.fc1", per_head)
        side = _side(weights["vision_model.embeddings.position_embedding.weight"].shape[0])
    vocabulary = weights["text_model.embeddings.token_embedding.weight"].shape[0]
    length = weights["text_model.embeddings.position_embedding.weight"].shape[0]
    embed = weights["text_projection.weight"].shape[0]
    image = vision.get("image_size", side * patch)
    image = image[0] if isinstance(image, list) and len(set(image)) == 1 else image
    # The first convolution of a residual network rounds up: 95 pixels become 3 places, where 64 become 2.
    if not isinstance(image, int) or {image // patch, (image + resnet) // patch} != {side}:
        raise ModelError(f"{side} x {side} patches of {patch} pixels do not go with image_size = {image}")
    _check_tokenizer(tokenizer, vocabulary, text)
    heads = text.get("heads") or (8 if model and not head_width else None)
    both = {"projection_dim": embed, "hidden_act": act}
    vision_sizes |= both
    text_sizes = _tower(weights, _TEXT, "mlp.fc1", head_width or _HEAD_WIDTH, heads) | both
    for part, sizes in ((vision, vision_sizes), (text, text_sizes)):
        _agree(part, width=sizes["hidden_size"], layers=sizes.get("stages", sizes.get("num_hidden_layers")))
        sizes["layer_norm_eps"] = float((part.get("norm_kwargs") or {}).get("eps", 1e-5))
    _agree(model | vision | text, embed_dim=embed, context_length=length, vocab_size=vocabulary)
    # A `CLIPModel` with the end token 2 would take the largest token of a text to be its end.
    kinds: tuple[Any, Any] = (CLIPModel, CLIPConfig)
    if tokenizer.eos_token_id == 2:
        kinds = (MetaClip2Model, MetaClip2Config)
    if resnet:
        from tamis.models.clip_resnet import ClipResNet, ClipResNetConfig

        kinds = (ClipResNet, ClipResNetConfig)
        weights = Tensors(_rename(tensors, _NAMES[:1]) | {"logit_scale": weights["logit_scale"]})
    else:
        _agree(vision, patch_size=patch)
    clip = kinds[1](
        vision_config=vision_sizes | {"image_size": image, "patch_size": patch},
        text_config=text_sizes
        | {"vocab_size": vocabulary, "max_position_embeddings": length}
        | {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
        projection_dim=embed,
        logit_scale_init_value=float(weights["logit_scale"]),
    )
    # How images are resized is in no weight, and a wrong guess costs accuracy without a word.
    if not config.get("preprocess_cfg"):
        option = "--resize-mode shortest (OpenAI, LAION, MetaCLIP) or squash (DFN5B, MetaCLIP 2 at 378)"
        more = "preprocess_cfg in --config, for another mean, std or interpolation than OpenAI's"
        raise ModelError(f"how it resizes images is unknown: {option}, or {more}")
    images = _images("CLIPImageProcessor", image, config["preprocess_cfg"])
    how = "cropped" if images["do_center_crop"] else "squashed"
    notes: tuple[str, ...] = (f"activation {act}", f"images {how} to {image} x {image}", f"texts cleaned by {clean}")
    if "logit_bias" in tensors:
        notes += ("logit_bias was left out: it shifts all logits equally and changes no cosine",)
    return Conversion(kinds[0], clip, weights, images, length, notes, clean)


def from_blip(tensors: Tensors, tokenizer: Any, head_width: int | None) -> Conversion:
    """Returns a `BlipForConditionalGeneration` from a checkpoint of pretraining or captioning."""
    import torch
    from transformers import BlipConfig, BlipForConditionalGeneration

    if not any(name.startswith("text_decoder.") for name in tensors):
        raise ModelError("it has no text_decoder, so it cannot caption: use a checkpoint of pretraining or captioning")
    weights = _rename(tensors)
    words = weights[_WORDS]
    if not torch.equal(weights.pop(f"{_PREDICTIONS}.decoder.weight", words), words):
        raise ModelError(f"{_PREDICTIONS}.decoder.weight must equal the word embeddings, because BLIP ties them")
    if f"{_PREDICTIONS}.decoder.bias" in weights:  # `predictions.bias` did not grow when [DEC] and [ENC] were added
        weights[f"{_PREDICTIONS}.bias"] = weights.pop(f"{_PREDICTIONS}.decoder.bias")
    if len(tokenizer) != len(words):
        raise ModelError(f"it knows {len(words):,} tokens, the tokenizer {len(tokenizer):,}: name its own --tokenizer")
    width, _, patch, _ = weights["vision_model.embeddings.patch_embedding.weight"].shape
    image = _side(weights["vision_model.embeddings.position_embedding"].shape[1]) * patch
    length = weights["text_decoder.bert.embeddings.position_embeddings.weight"].shape[0]
    per_head = head_width or _HEAD_WIDTH
    # timm's ViT uses this epsilon; transformers' default for BLIP is 1e-5.
    vision = {"image_size": image, "patch_size": patch, "layer_norm_eps": 1e-6}
    text = {
        "vocab_size": len(words),
        "encoder_hidden_size": width,
        "max_position_embeddings": length,
        "bos_token_id": tokenizer.bos_token_id,
        "sep_token_id": tokenizer.sep_token_id,
        "eos_token_id": tokenizer.sep_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = BlipConfig(
        vision_config=_tower(weights, _VISION, "mlp.fc1", per_head) | vision,
        text_config=_tower(weights, "text_decoder.bert.encoder.layer", "intermediate.dense", per_head) | text,
    )
    images = _images("BlipImageProcessor", image, {"resize_mode": "squash"})
    return Conversion(BlipForConditionalGeneration, config, weights, images, length)


def _rename(tensors: Tensors, names: Sequence[tuple[str, str]] = _NAMES) -> Tensors:
    weights = Tensors()
    for old, tensor in tensors.items():
        name = old
        for pattern, target in names:
            name = re.sub(pattern, target, name)
        if not _LEFT_OUT.match(name):
            weights[name] = tensor
    return weights


def _tower(tensors: Tensors, layers: str, inner: str, head_width: int, heads: int | None = None) -> dict[str, Any]:
    """Returns a tower's sizes; `inner` is the first matrix of its MLPs."""
    numbers = {int(match[1]) for name in tensors if (match := re.match(rf"{re.escape(layers)}\.(\d+)\.", name))}
    wide, width = tensors[f"{layers}.0.{inner}.weight"].shape
    return {
        "hidden_size": width,
        "intermediate_size": wide,
        "num_hidden_layers": 1 + max(numbers),
        "num_attention_heads": _heads(width, head_width, heads),
    }


def _heads(width: int, head_width: Any, heads: Any = None) -> int:
    name, value = ("head_width", head_width) if heads is None else ("heads", heads)
    if type(value) is not int or value < 1 or width % value:
        raise ModelError(f"a tower is {width} wide, which {name} = {value} does not divide: give its --head-width")
    return value if name == "heads" else width // value


def _residual(tensors: Tensors, head_width: int) -> dict[str, Any]:
    """Returns the sizes of a residual network."""
    blocks = [{name.split(".")[2] for name in tensors if name.startswith(f"visual.layer{n}.")} for n in range(1, 5)]
    return {
        "hidden_size": 2 * tensors["visual.conv1.weight"].shape[0],
        "stages": [len(numbers) for numbers in blocks],
        "num_attention_heads": _heads(tensors[_POOL].shape[1], head_width),
    }


def _side(positions: int) -> int:
    """Returns the number of patches per side; the positions are a square of patches, and one for the class."""
    side = math.isqrt(max(positions - 1, 0))
    if side < 1 or side * side != positions - 1:
        raise ModelError(f"{positions} positions are not 1 plus a square of patches; only square images are supported")
    return side


def _agree(settings: Mapping[str, Any], **sizes: Any) -> None:
    for name, size in sizes.items():
        if settings.get(name, size) != size:
            raise ModelError(f"the weights have {name} = {size}, and the configuration says {settings[name]}")


def _check_settings(*parts: Mapping[str, Any], resnet: bool) -> None:
    for name, value in (item for part in parts for item in part.items()):
        off = not value or name in _KNOWN or (name == "layers" and (resnet or type(value) is int))
        if value not in _EXPRESSIBLE[name] if name in _EXPRESSIBLE else not off:
            raise _inexpressible(name, value)


def _inexpressible(name: str, value: Any) -> ModelError:
    found = f"the configuration has {name} = {value!r}, which transformers' CLIP cannot express"
    return ModelError(f"{found}: embed with open_clip, and score by clip: {{embeddings_from: FILE}}")


def _cleaning(text: Mapping[str, Any]) -> Cleaning:
    """Returns how open_clip's tokenizer cleans texts."""
    other = bool(text.get("hf_tokenizer_name"))
    clean: Any = (text.get("tokenizer_kwargs") or {}).get("clean", "whitespace" if other else "lower")
    if clean == "whitespace" and not other:  # it would keep capitals, and CLIP's tokenizer does not
        raise _inexpressible("clean", clean)
    return "openai" if clean == "lower" else clean


def _activation(
    model: Mapping[str, Any], vision: Mapping[str, Any], text: Mapping[str, Any], activation: Activation | None
) -> str:
    """Returns transformers' name of the activation: it changes every embedding, and the weights do not show it."""
    if activation is None and not model:
        raise ModelError("its activation is unknown: --config, or --activation gelu (LAION) or quick_gelu (OpenAI)")
    if activation == "quick_gelu" or (activation is None and model.get("quick_gelu")):
        return "quick_gelu"
    kinds = {str((part.get("act_kwargs") or {}).get("approximate", "none")) for part in (vision, text)}
    if len(kinds) > 1:
        raise ModelError(f"its towers have different activations ({', '.join(sorted(kinds))})")
    return "gelu_pytorch_tanh" if kinds == {"tanh"} else "gelu"


def _check_tokenizer(tokenizer: Any, vocabulary: int, text: Mapping[str, Any]) -> None:
    """Checks that `CLIPModel` will pool a text where open_clip does: at the end token."""
    end, highest = tokenizer.eos_token_id, max(tokenizer.get_vocab().values())
    pooled = text.get("eos_id", end) if text.get("pool_type") == "eos" else highest  # the argmax of the tokens
    if highest >= vocabulary or pooled != end:
        raise ModelError(f"it pools a text at token {pooled} of {vocabulary:,}, the --tokenizer ends with {end}")


def _images(kind: str, image: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of preprocessor_config.json, from open_clip's preprocess_cfg."""
    default = {"resize_mode": "shortest", "interpolation": "bicubic", "mode": "RGB", "mean": CLIP_MEAN, "std": CLIP_STD}
    settings = default | {name: value for name, value in settings.items() if value is not None}
    for name, known in (("resize_mode", get_args(ResizeMode)), ("interpolation", _FILTERS), ("mode", ("RGB",))):
        if settings[name] not in known:
            raise _inexpressible(name, settings[name])
    crop, resample = settings["resize_mode"] == "shortest", _FILTERS[settings["interpolation"]]
    return image_processor(kind, image, crop=crop, mean=settings["mean"], std=settings["std"], resample=resample)
