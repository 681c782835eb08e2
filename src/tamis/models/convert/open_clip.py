"""open_clip's checkpoints (github.com/mlfoundations/open_clip), OpenAI's names among them, as `CLIPModel`.

What no weight tells (the activation, the heads, what text is pooled by, how images are prepared) stands in
open_clip_config.json. Whatever in it `CLIPModel` cannot express ends in an error that says so: a tower of timm or of
transformers, a ResNet, CoCa, another pooling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tamis.errors import ModelError
from tamis.models.convert.blip import MEAN, STD
from tamis.models.convert.layout import HEAD_WIDTH, Conversion, Weights, heads, side_of

Activation = Literal["gelu", "quick_gelu"]

#: Buffers and plain numbers that some checkpoints keep.
_BESIDE = r"(?:text\.)?(?:attn_mask|input_resolution|context_length|vocab_size)$|logit_bias$"

#: Image towers whose heads are not 64 wide, by the tower's width: ViT-H, ViT-g, ViT-bigG and ViT-e of open_clip.
_WIDE_HEADS = {1280: 80, 1408: 88, 1664: 104, 1792: 112}

_PILLOW = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}

#: Settings of open_clip with the values that `CLIPModel` can express: one of these, and any where None stands.
#: The rest is read below.
_MODEL = {
    "embed_dim": None,
    "vision_cfg": None,
    "text_cfg": None,
    "quick_gelu": None,
    "custom_text": None,
    "init_logit_scale": None,
    "init_logit_bias": None,
    "nonscalar_logit_scale": None,
    "cast_dtype": None,
}
_BOTH: dict[str, tuple[Any, ...] | None] = {
    "layers": None,
    "width": None,
    "mlp_ratio": None,
    "act_kwargs": None,
    "norm_kwargs": None,
    "output_tokens": None,
    "ls_init_value": (None,),
    "block_type": (None, "default"),
    **dict.fromkeys(("qk_norm", "scaled_cosine_attn", "scale_heads"), (False,)),
    **dict.fromkeys(("scale_attn_inner", "scale_attn", "scale_fc"), (False,)),
}
_VISION = _BOTH | {
    "head_width": None,
    "patch_size": None,
    "image_size": None,
    "patch_dropout": None,  # of training
    "attn_pooler_queries": None,
    "attn_pooler_heads": None,
    "final_ln_after_pool": None,  # of one position, before or after: the same
    "pos_embed_type": None,  # learned or not, they are in the file
    "attentional_pool": (False, None),
    "no_ln_pre": (False,),
    "pool_type": ("tok",),
}
_TEXT = _BOTH | {
    "heads": None,
    "context_length": None,
    "vocab_size": None,
    "hf_tokenizer_name": None,
    "tokenizer_mode": None,
    "tokenizer_kwargs": None,
    "pad_id": None,  # hidden from the class position alone, which is refused
    "eos_id": None,
    "final_ln_after_pool": None,
    "embed_cls": (False,),
    "no_causal_mask": (False,),
    "pool_type": ("argmax", "eos"),
    "proj_bias": (False,),
    "proj_type": ("linear",),
}


@dataclass(frozen=True)
class Settings:
    """What open_clip_config.json, or the user, says of a checkpoint.

    Attributes:
        model, vision, text, preprocessing: its parts; empty where there is no such file.
        activation: inside both towers' MLPs; None where nobody said.
        head_width: of towers whose heads the file does not tell.
    """

    model: Mapping[str, Any]
    vision: Mapping[str, Any]
    text: Mapping[str, Any]
    preprocessing: Mapping[str, Any]
    activation: Activation | None
    head_width: int | None

    @property
    def own_tokenizer(self) -> bool:
        """Whether its texts are cut into other tokens than CLIP's."""
        return bool(self.text.get("hf_tokenizer_name") or self.text.get("tokenizer_kwargs"))


def settings_of(config: Mapping[str, Any] | None, activation: Activation | None, head_width: int | None) -> Settings:
    """Returns the settings of a checkpoint: of its open_clip_config.json, or of open_clip's own list of models."""
    config = config or {}
    model = config.get("model_cfg", config)
    parts = (model, model.get("vision_cfg") or {}, model.get("text_cfg") or {}, config.get("preprocess_cfg") or {})
    if model and activation is None:
        activation = "quick_gelu" if model.get("quick_gelu") else "gelu"
    return Settings(*parts, activation, head_width)


def is_open_clip(weights: Weights) -> bool:
    """Tells whether a checkpoint has the names of open_clip, whatever its towers."""
    return any(name.startswith("visual.") for name in weights.shapes)


def convert_open_clip(weights: Weights, tokenizer: Any, settings: Settings) -> Conversion:
    """Returns a CLIP in the layout of transformers.

    Args:
        weights: of the file.
        tokenizer: of its texts.
        settings: what is known beside the weights.

    Raises:
        ModelError: weights are missing or do not fit, its activation is not known, or transformers' CLIP cannot
            express what it does.
    """
    from transformers import CLIPConfig, CLIPModel

    _check(weights, settings)
    at = "text." if "text.token_embedding.weight" in weights.shapes else ""
    vision, vision_sizes = _vision(weights, settings)
    text, text_sizes = _text(weights, at, settings)
    embed = int(vision["visual_projection.weight"].shape[0])
    if text["text_projection.weight"].shape[0] != embed:
        raise ModelError(
            f"{weights.file}: images become {embed} numbers and texts {text['text_projection.weight'].shape[0]}"
        )
    _agrees(weights, settings.model, "embed_dim", embed)
    scale = weights.take("logit_scale", *weights.shapes.get("logit_scale", ())).reshape(())
    weights.nothing_left(_BESIDE)
    _check_tokenizer(weights, settings, tokenizer, text_sizes["vocab_size"])
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    act = _activation(weights, settings)
    config = CLIPConfig(
        vision_config=vision_sizes | {"hidden_act": act, "layer_norm_eps": _epsilon(settings.vision)},
        text_config=text_sizes | ids | {"hidden_act": act, "layer_norm_eps": _epsilon(settings.text)},
        projection_dim=embed,
        logit_scale_init_value=float(scale),
    )
    told = [f"activation {act}"]
    if "logit_bias" in weights.shapes:
        told.append("logit_bias was left out: it moves all logits alike and no cosine")
    tensors = {**vision, **text, "logit_scale": scale}
    preprocessing = _preprocessing(weights.file, settings.preprocessing, vision_sizes["image_size"])
    return Conversion(CLIPModel, config, tensors, preprocessing, text_sizes["max_position_embeddings"], tuple(told))


def _check(weights: Weights, settings: Settings) -> None:
    """Checks that the towers are such as `CLIPModel` has."""
    names = weights.shapes
    other = {
        "an image tower of timm": any(name.startswith("visual.trunk.") for name in names)
        or settings.vision.get("timm_model_name"),
        "a ResNet as image tower": "visual.layer1.0.conv1.weight" in names
        or isinstance(settings.vision.get("layers"), list),
        "a text tower of transformers": any(name.startswith("text.transformer.embeddings.") for name in names)
        or settings.text.get("hf_model_name"),
        "a text decoder (CoCa)": any(name.startswith("text_decoder.") for name in names)
        or settings.model.get("multimodal_cfg"),
    }
    for what, there in other.items():
        if there:
            raise ModelError(f"{weights.file} has {what}, which transformers' CLIP does not: it cannot be converted")
    for part, values, known in (
        ("model_cfg", settings.model, _MODEL),
        ("vision_cfg", settings.vision, _VISION),
        ("text_cfg", settings.text, _TEXT),
    ):
        for name, value in values.items():
            if name.startswith(("timm_", "hf_")) and name != "hf_tokenizer_name":
                continue  # of towers that were refused above
            if name not in known and value:
                raise ModelError(f"{weights.file}: {part} has the setting {name}: {value!r}, which we do not know")
            allowed = known.get(name)
            if allowed is not None and value not in allowed:
                some = " or ".join(repr(one) for one in allowed)
                raise ModelError(
                    f"{weights.file}: {part} has {name}: {value!r}; transformers' CLIP can express {some} only. Look "
                    "for a version of this model that was saved by transformers"
                )


def _activation(weights: Weights, settings: Settings) -> str:
    """Returns transformers' name of the activation, which changes every embedding and which no weight tells."""
    if settings.activation is None:
        raise ModelError(
            f"{weights.file} does not tell its activation: name its open_clip_config.json with --config, or say "
            "--activation gelu (LAION, DataComp) or --activation quick_gelu (OpenAI, DFN, MetaCLIP)"
        )
    if settings.activation == "quick_gelu":
        return "quick_gelu"
    kinds = {
        str((part.get("act_kwargs") or {}).get("approximate", "none")) for part in (settings.vision, settings.text)
    }
    if len(kinds) > 1:
        raise ModelError(f"{weights.file}: its towers have different activations ({', '.join(sorted(kinds))})")
    return "gelu_pytorch_tanh" if kinds == {"tanh"} else "gelu"


def _epsilon(part: Mapping[str, Any]) -> float:
    return float((part.get("norm_kwargs") or {}).get("eps", 1e-5))


def _agrees(weights: Weights, part: Mapping[str, Any], name: str, found: int) -> None:
    said = part.get(name, found)
    if said != found:
        raise ModelError(f"{weights.file}: its weights have {name} {found}, and its configuration says {said}")


def _vision(weights: Weights, settings: Settings) -> tuple[dict[str, Any], dict[str, int]]:
    """Returns the image tower's weights and sizes."""
    width, _, patch, _ = weights.shape("visual.conv1.weight", 4)
    positions = weights.shape("visual.positional_embedding", 2)[0]
    embed = weights.shape("visual.proj", 2)[1]
    side = side_of(weights.file, positions)
    said = settings.vision.get("image_size", side * patch)
    image = said[0] if isinstance(said, list) and len(set(said)) == 1 else said
    if not isinstance(image, int) or image // patch != side:
        raise ModelError(
            f"{weights.file}: {positions} positions of patches of {patch} pixels do not go with image_size {said}"
        )
    _agrees(weights, settings.vision, "width", width)
    _agrees(weights, settings.vision, "patch_size", patch)
    embeddings = "vision_model.embeddings"
    found = {
        f"{embeddings}.class_embedding": weights.take("visual.class_embedding", width),
        f"{embeddings}.patch_embedding.weight": weights.take("visual.conv1.weight", width, 3, patch, patch),
        f"{embeddings}.position_embedding.weight": weights.take("visual.positional_embedding", positions, width),
        **weights.affine("visual.ln_pre", "vision_model.pre_layrnorm", width),
        **weights.affine("visual.ln_post", "vision_model.post_layernorm", width),
        "visual_projection.weight": weights.take("visual.proj", width, embed).T.contiguous(),
    }
    blocks, layers, mlp = _blocks(weights, "visual.transformer", "vision_model.encoder", width, settings.vision)
    per_head = settings.vision.get("head_width") or settings.head_width or _WIDE_HEADS.get(width, HEAD_WIDTH)
    return found | blocks, {
        "hidden_size": width,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads(weights.file, "image", width, per_head),
        "image_size": image,
        "patch_size": patch,
        "projection_dim": embed,
    }


def _text(weights: Weights, at: str, settings: Settings) -> tuple[dict[str, Any], dict[str, int]]:
    """Returns the text tower's weights and sizes; its names begin with `at`."""
    vocabulary, width = weights.shape(f"{at}token_embedding.weight", 2)
    length = weights.shape(f"{at}positional_embedding", 2)[0]
    embed = weights.shape(f"{at}text_projection", 2)[1]
    for name, found in (("width", width), ("context_length", length), ("vocab_size", vocabulary)):
        _agrees(weights, settings.text, name, found)
    embeddings = "text_model.embeddings"
    tensors = {
        f"{embeddings}.token_embedding.weight": weights.take(f"{at}token_embedding.weight", vocabulary, width),
        f"{embeddings}.position_embedding.weight": weights.take(f"{at}positional_embedding", length, width),
        **weights.affine(f"{at}ln_final", "text_model.final_layer_norm", width),
        "text_projection.weight": weights.take(f"{at}text_projection", width, embed).T.contiguous(),
    }
    blocks, layers, mlp = _blocks(weights, f"{at}transformer", "text_model.encoder", width, settings.text)
    said = settings.text.get("heads")
    if said is not None and (type(said) is not int or said < 1):
        raise ModelError(f"{weights.file}: text_cfg has heads = {said!r}, and it must be a whole number of at least 1")
    number = said or heads(weights.file, "text", width, settings.head_width or HEAD_WIDTH)
    return tensors | blocks, {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": number,
        "max_position_embeddings": length,
        "projection_dim": embed,
    }


def _blocks(
    weights: Weights, theirs: str, ours: str, width: int, part: Mapping[str, Any]
) -> tuple[dict[str, Any], int, int]:
    """Returns the weights of a tower's layers, how many there are, and the width inside their MLPs."""
    mlp = weights.shape(f"{theirs}.resblocks.0.mlp.c_fc.weight", 2)[0]
    layers = weights.count(theirs.replace(".", r"\.") + r"\.resblocks\.(\d+)")
    _agrees(weights, part, "layers", layers)
    found: dict[str, Any] = {}
    for number in range(layers):
        block, layer = f"{theirs}.resblocks.{number}", f"{ours}.layers.{number}"
        for name, shape in (("weight", (3 * width, width)), ("bias", (3 * width,))):
            three = weights.take(f"{block}.attn.in_proj_{name}", *shape).chunk(3)
            found |= {
                f"{layer}.self_attn.{one}_proj.{name}": tensor.contiguous()
                for one, tensor in zip("qkv", three, strict=True)
            }
        found |= weights.affine(f"{block}.attn.out_proj", f"{layer}.self_attn.out_proj", width, width)
        found |= weights.affine(f"{block}.ln_1", f"{layer}.layer_norm1", width)
        found |= weights.affine(f"{block}.ln_2", f"{layer}.layer_norm2", width)
        found |= weights.affine(f"{block}.mlp.c_fc", f"{layer}.mlp.fc1", mlp, width)
        found |= weights.affine(f"{block}.mlp.c_proj", f"{layer}.mlp.fc2", width, mlp)
    return found, layers, mlp


def _check_tokenizer(weights: Weights, settings: Settings, tokenizer: Any, vocabulary: int) -> None:
    """Checks that the text's embedding will be read where open_clip reads it: at the end token."""
    end, highest = tokenizer.eos_token_id, max(tokenizer.get_vocab().values())
    if highest >= vocabulary or end is None:
        raise ModelError(
            f"{weights.file} knows {vocabulary:,} tokens, and the tokenizer has one of the number {highest:,}: name "
            "the one that it was trained with by --tokenizer"
        )
    if settings.text.get("pool_type", "argmax") == "argmax" and end != highest:
        raise ModelError(
            f"{weights.file}: texts are pooled at the highest token of each (open_clip's argmax), which with this "
            f"tokenizer is not the end token ({end} of {highest}): name the one that it was trained with by --tokenizer"
        )
    if settings.text.get("pool_type") == "eos" and settings.text.get("eos_id", end) != end:
        raise ModelError(
            f"{weights.file}: texts are pooled at token {settings.text['eos_id']}, and the end token of the tokenizer "
            f"is {end}"
        )


def _preprocessing(file: str, given: Mapping[str, Any], image: int) -> dict[str, Any]:
    mode, fill = given.get("resize_mode") or "shortest", given.get("interpolation") or "bicubic"
    if mode not in ("shortest", "squash") or fill not in _PILLOW:
        raise ModelError(
            f"{file}: images are resized by {mode!r} with {fill!r}; we know shortest and squash, {_PILLOW}"
        )
    square = {"height": image, "width": image}
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": image} if mode == "shortest" else square,
        "resample": _PILLOW[fill],
        "do_center_crop": mode == "shortest",
        "crop_size": square,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(given.get("mean") or MEAN),
        "image_std": list(given.get("std") or STD),
        "do_convert_rgb": True,
    }
