"""BLIP's own checkpoints (Li et al. 2022, github.com/salesforce/BLIP) as `BlipForConditionalGeneration`.

Names: a ViT as timm has it (`visual_encoder.blocks.0.attn.qkv`) and a BERT with cross-attention as decoder
(`text_decoder.bert...`). What pretraining keeps beside them (a text encoder, momentum copies, queues) is left out: the
captioner of the released code leaves it out as well.
"""

from __future__ import annotations

from typing import Any

from tamis.errors import ModelError
from tamis.models.convert.layout import HEAD_WIDTH, Conversion, Weights, heads, side_of

_BERT, _PREDICTIONS = "text_decoder.bert", "text_decoder.cls.predictions"

#: What pretraining and the other tasks keep beside the captioner, and tables of positions.
_BESIDE = (
    r"(?:visual_encoder_m|text_encoder|text_encoder_m)\.|(?:vision_proj|text_proj|itm_head)(?:_m)?\.|"
    r"(?:image_queue|text_queue|queue_ptr|ptr_queue|idx_queue|temp)$|text_decoder\.bert\.embeddings\.position_ids$|"
    r"text_decoder\.cls\.predictions\.(?:decoder\.weight|bias)$"
)

#: CLIP's, with which BLIP was trained (its transform squashes the whole picture into the square).
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


def is_blip(weights: Weights) -> bool:
    """Tells whether a checkpoint has the names of BLIP, whatever its task."""
    return "visual_encoder.cls_token" in weights.shapes


def convert_blip(weights: Weights, tokenizer: Any, head_width: int | None) -> Conversion:
    """Returns a BLIP captioner in the layout of transformers.

    Args:
        weights: of the file.
        tokenizer: with [DEC], BLIP's sign for the beginning of a caption, and with [SEP].
        head_width: of both towers; 64 in every published BLIP.

    Raises:
        ModelError: weights are missing or do not fit, or it is no captioner.
    """
    from transformers import BlipConfig, BlipForConditionalGeneration

    file = weights.file
    if not any(name.startswith("text_decoder.") for name in weights.shapes):
        raise ModelError(
            f"{file} has no text_decoder: it is a BLIP that captions nothing (retrieval, matching). Take a checkpoint "
            "of pretraining or of captioning"
        )
    vision, width, image, mlp = _vision(weights)
    text, sizes = _text(weights, width)
    if len(tokenizer) != sizes["vocab_size"]:
        raise ModelError(
            f"{file} knows {sizes['vocab_size']:,} tokens and the tokenizer {len(tokenizer):,}: name the one that it "
            "was trained with by --tokenizer"
        )
    weights.nothing_left(_BESIDE)
    per_head = head_width or HEAD_WIDTH
    config = BlipConfig(
        vision_config={
            "hidden_size": width,
            "intermediate_size": mlp,
            "num_hidden_layers": len([name for name in vision if name.endswith(".layer_norm1.weight")]),
            "num_attention_heads": heads(file, "image", width, per_head),
            "image_size": image,
            "patch_size": vision["vision_model.embeddings.patch_embedding.weight"].shape[-1],
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-6,  # of timm's ViT; transformers' own default for BLIP is 1e-5
        },
        text_config={
            **sizes,
            "num_attention_heads": heads(file, "text", sizes["hidden_size"], per_head),
            "hidden_act": "gelu",
            "layer_norm_eps": 1e-12,
            "bos_token_id": tokenizer.bos_token_id,
            "sep_token_id": tokenizer.sep_token_id,
            "eos_token_id": tokenizer.sep_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        },
    )
    preprocessing = {
        "image_processor_type": "BlipImageProcessor",
        "do_resize": True,
        "size": {"height": image, "width": image},
        "resample": 3,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": MEAN,
        "image_std": STD,
    }
    tensors = vision | text
    return Conversion(BlipForConditionalGeneration, config, tensors, preprocessing, sizes["max_position_embeddings"])


def _vision(weights: Weights) -> tuple[dict[str, Any], int, int, int]:
    """Returns the image tower's weights, its width, the side of its images in pixels, and the width inside its MLPs."""
    width, _, patch, _ = weights.shape("visual_encoder.patch_embed.proj.weight", 4)
    positions = weights.shape("visual_encoder.pos_embed", 3)[1]
    mlp = weights.shape("visual_encoder.blocks.0.mlp.fc1.weight", 2)[0]
    image = side_of(weights.file, positions) * patch
    embeddings = "vision_model.embeddings"
    found = {
        f"{embeddings}.class_embedding": weights.take("visual_encoder.cls_token", 1, 1, width),
        f"{embeddings}.position_embedding": weights.take("visual_encoder.pos_embed", 1, positions, width),
        **weights.affine("visual_encoder.patch_embed.proj", f"{embeddings}.patch_embedding", width, 3, patch, patch),
        **weights.affine("visual_encoder.norm", "vision_model.post_layernorm", width),
    }
    for number in range(weights.count(r"visual_encoder\.blocks\.(\d+)")):
        theirs, ours = f"visual_encoder.blocks.{number}", f"vision_model.encoder.layers.{number}"
        found |= weights.affine(f"{theirs}.norm1", f"{ours}.layer_norm1", width)
        found |= weights.affine(f"{theirs}.attn.qkv", f"{ours}.self_attn.qkv", 3 * width, width)
        found |= weights.affine(f"{theirs}.attn.proj", f"{ours}.self_attn.projection", width, width)
        found |= weights.affine(f"{theirs}.norm2", f"{ours}.layer_norm2", width)
        found |= weights.affine(f"{theirs}.mlp.fc1", f"{ours}.mlp.fc1", mlp, width)
        found |= weights.affine(f"{theirs}.mlp.fc2", f"{ours}.mlp.fc2", width, mlp)
    return found, width, image, mlp


def _text(weights: Weights, image_width: int) -> tuple[dict[str, Any], dict[str, int]]:
    """Returns the decoder's weights, whose names transformers has kept, and its sizes."""
    vocabulary, width = weights.shape(f"{_BERT}.embeddings.word_embeddings.weight", 2)
    positions = weights.shape(f"{_BERT}.embeddings.position_embeddings.weight", 2)[0]
    mlp = weights.shape(f"{_BERT}.encoder.layer.0.intermediate.dense.weight", 2)[0]
    layers = weights.count(r"text_decoder\.bert\.encoder\.layer\.(\d+)")

    def affine(name: str, *shape: int) -> dict[str, Any]:
        return weights.affine(name, name, *shape)

    words = f"{_BERT}.embeddings.word_embeddings.weight"
    places = f"{_BERT}.embeddings.position_embeddings.weight"
    found = {
        words: weights.take(words, vocabulary, width),
        places: weights.take(places, positions, width),
        **affine(f"{_BERT}.embeddings.LayerNorm", width),
        **affine(f"{_PREDICTIONS}.transform.dense", width, width),
        **affine(f"{_PREDICTIONS}.transform.LayerNorm", width),
        f"{_PREDICTIONS}.bias": _bias(weights, vocabulary),
    }
    _check_tied(weights, found[words])
    for number in range(layers):
        layer = f"{_BERT}.encoder.layer.{number}"
        for attention, read in (("attention", width), ("crossattention", image_width)):
            found |= affine(f"{layer}.{attention}.self.query", width, width)
            found |= affine(f"{layer}.{attention}.self.key", width, read)
            found |= affine(f"{layer}.{attention}.self.value", width, read)
            found |= affine(f"{layer}.{attention}.output.dense", width, width)
            found |= affine(f"{layer}.{attention}.output.LayerNorm", width)
        found |= affine(f"{layer}.intermediate.dense", mlp, width)
        found |= affine(f"{layer}.output.dense", width, mlp)
        found |= affine(f"{layer}.output.LayerNorm", width)
    sizes = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "encoder_hidden_size": image_width,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "max_position_embeddings": positions,
    }
    return found, sizes


def _bias(weights: Weights, vocabulary: int) -> Any:
    """Returns the bias of the head, which pretraining keeps under two names.

    Tokens were added to the vocabulary after the model was made: the bias that the head adds grew with it, its other
    name kept the size of before.
    """
    used, other = f"{_PREDICTIONS}.decoder.bias", f"{_PREDICTIONS}.bias"
    return weights.take(used if used in weights.shapes else other, vocabulary)


def _check_tied(weights: Weights, words: Any) -> None:
    """Checks that the head is the word embeddings transposed, as BLIP ties them and transformers will."""
    head = f"{_PREDICTIONS}.decoder.weight"
    if head in weights.shapes and not bool((weights.take(head, *words.shape) == words).all()):
        raise ModelError(
            f"{weights.file}: {head} is not the word embeddings, to which BLIP ties it: one of the two would be lost"
        )
