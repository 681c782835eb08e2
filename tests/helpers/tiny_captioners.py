"""Tiny checkpoints of vision-language models, of transformers' own classes, with random weights.

Tokens are single letters, so that a text comes back from its tokens as it was; images are cut to at most 64 pixels.
"""

import json
import string
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tiny_models import SIZE

#: One token each; anything else is <unk>.
LETTERS = [
    *string.ascii_letters,
    *string.digits,
    *" .,:;!?'\"\n<>|/_-",
    *"\u4e00\u53ea\u72d7\u5728\u8349\u5730\u4e0a",
    *"\u0643\u0644\u0628",
]
MARKS = ["<pad>", "<s>", "</s>", "<unk>"]
IDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
VISION: dict[str, Any] = SIZE | {"image_size": 32, "patch_size": 8}
#: Of a decoder: grouped keys and values, room for a prompt and an image.
TEXT: dict[str, Any] = SIZE | {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 1024}
SQUARE: dict[str, Any] = {"height": 32, "width": 32}
CLIP: dict[str, Any] = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 32}}
CLIP |= {"crop_size": SQUARE}


def letters(
    named: Mapping[str, str] | None = None, *, begins: bool = False, ends: bool = False, **settings: Any
) -> Any:
    """A tokenizer of single letters; `named` are more special tokens: `image_token` and so on.

    `begins`: <s> before a text; `ends`: and </s> after it. Chat templates write <s> themselves.
    """
    from tokenizers import Tokenizer, decoders, models, processors
    from transformers import PreTrainedTokenizerFast

    signs = [*MARKS, *(named or {}).values(), *LETTERS]
    tokenizer = Tokenizer(models.BPE({sign: n for n, sign in enumerate(signs)}, [], unk_token="<unk>"))
    tokenizer.decoder = decoders.Fuse()
    if ends or begins:
        frame = "<s> $A </s>" if ends else "<s> $A"
        special = [("<s>", 1), ("</s>", 2)]
        tokenizer.post_processor = processors.TemplateProcessing(single=frame, special_tokens=special)
    marks = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), MARKS, strict=True))
    named = dict(named or {})
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **marks, extra_special_tokens=named, **{"padding_side": "left"} | settings
    )


def chat(image: str) -> str:
    """A chat template that writes `image` where an image stands."""
    return (
        "<s>{% for message in messages %}{{ message.role }}: {% for part in message.content %}"
        f"{{% if part.type == 'image' %}}{image}{{% else %}}{{{{ part.text }}}}{{% endif %}}{{% endfor %}}"
        "\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )


def spread(model: Any, factor: float = 12.0) -> Any:
    """Makes random weights large enough that different inputs give different outputs; some begin as zeros."""
    import torch

    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1 and not weight.any():
                weight.normal_(0, 0.1)
            elif weight.ndim > 1 and weight.std() < 0.3:
                weight.mul_(factor)
    return model


def save(folder: Path, cls: str, config: Any, tokenizer: Any, images: dict[str, Any], processor: Any = None) -> None:
    """Saves a random network of a class with its tokenizer and the settings of its image processor.

    `processor`: its class and its own settings, in processor_config.json.
    """
    import torch
    import transformers

    torch.manual_seed(0)
    spread(getattr(transformers, cls)(config)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    if processor:
        (folder / "processor_config.json").write_text(json.dumps(processor))


QWEN = {
    "vision_start_token": "<|vision_start|>", "vision_end_token": "<|vision_end|>",
    "image_token": "<|image_pad|>", "video_token": "<|video_pad|>",
}  # fmt: skip


QWEN3 = {"num_position_embeddings": 36}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}


def _qwen(folder: Path, kind: str, patch: int, more: Mapping[str, Any] | None = None, **vision: Any) -> None:
    import transformers as hf

    tokenizer = letters(QWEN, begins=True, chat_template=chat("<|vision_start|><|image_pad|><|vision_end|>"))
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    text = TEXT | IDS | {"vocab_size": len(tokenizer), "rope_parameters": rope} | dict(more or {})
    vision |= {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "patch_size": patch}
    tokens = {f"{name}_id": tokenizer.convert_tokens_to_ids(sign) for name, sign in QWEN.items()}
    made = getattr(hf, f"{kind}Config")(text_config=text, vision_config=vision | {"out_hidden_size": 32}, **tokens)
    images = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": f"{kind}Processor"}
    images |= {"patch_size": patch, "merge_size": 2, "temporal_patch_size": 2}
    images |= {"size": {"shortest_edge": (2 * patch) ** 2, "longest_edge": (6 * patch) ** 2}}
    save(folder, f"{kind}ForConditionalGeneration", made, tokenizer, images)


def qwen2_vl(folder: Path) -> None:
    _qwen(folder, "Qwen2VL", 14, embed_dim=32, mlp_ratio=2)


def qwen2_5_vl(folder: Path) -> None:
    _qwen(folder, "Qwen2_5_VL", 14, fullatt_block_indexes=[1], window_size=56)


def qwen3_vl(folder: Path, kind: str = "Qwen3VL") -> None:
    _qwen(folder, kind, 16, MOE if kind.endswith("Moe") else None, **QWEN3, deepstack_visual_indexes=[0])


def qwen3_5(folder: Path, kind: str = "Qwen3_5") -> None:
    """A layer with linear attention and one with full attention."""
    sizes = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}
    sizes |= {"linear_num_value_heads": 4, "layer_types": ["linear_attention", "full_attention"]}
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    _qwen(folder, kind, 16, sizes | {"rope_parameters": rope} | (MOE if kind.endswith("Moe") else {}), **QWEN3)


def _llava(folder: Path, kind: str, images: dict[str, Any], **more: Any) -> None:
    import transformers as hf

    tokenizer = letters({"image_token": "<image>"}, begins=True, chat_template=chat("<image>\n"))
    vision = {"model_type": "clip_vision_model", **VISION}
    text = {"model_type": "llama", **TEXT, **IDS, "vocab_size": len(tokenizer)}
    image = tokenizer.convert_tokens_to_ids("<image>")
    config = getattr(hf, f"{kind}Config")(vision_config=vision, text_config=text, image_token_index=image, **more)
    own = {"patch_size": 8, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
    own |= {"processor_class": f"{kind}Processor"}
    save(folder, f"{kind}ForConditionalGeneration", config, tokenizer, images, own)


def llava(folder: Path) -> None:
    """With `vision_feature_layer: -2`, as all of them have it."""
    _llava(folder, "Llava", CLIP, image_seq_length=16)


def llava_next(folder: Path) -> None:
    grid = [[32, 64], [64, 32], [64, 64]]
    images = CLIP | {"image_processor_type": "LlavaNextImageProcessor", "image_grid_pinpoints": grid}
    _llava(folder, "LlavaNext", images, image_grid_pinpoints=grid)


def llava_onevision(folder: Path) -> None:
    import transformers as hf

    named = {"image_token": "<image>", "video_token": "<video>"}
    tokenizer = letters(named, begins=True, chat_template=chat("<image>\n"))
    index = {f"{name}_index": tokenizer.convert_tokens_to_ids(sign) for name, sign in named.items()}
    grid, strategy = [[32, 64], [64, 32], [64, 64]], {"vision_feature_select_strategy": "full"}
    config = hf.LlavaOnevisionConfig(
        vision_config={"model_type": "siglip_vision_model", **VISION, "vision_use_head": False},
        text_config={"model_type": "qwen2", **TEXT, **IDS, "vocab_size": len(tokenizer)},
        image_grid_pinpoints=grid, vision_feature_layer=-1, tie_word_embeddings=False, **index, **strategy,
    )  # fmt: skip
    images = {"image_processor_type": "LlavaOnevisionImageProcessor", "size": SQUARE, "image_grid_pinpoints": grid}
    own = {"num_image_tokens": 16, "processor_class": "LlavaOnevisionProcessor", **strategy}
    save(folder, "LlavaOnevisionForConditionalGeneration", config, tokenizer, images, own)


def paligemma(folder: Path) -> None:
    import transformers as hf

    tokenizer = letters({"image_token": "<image>"}, model_max_length=512)
    images = {"image_processor_type": "SiglipImageProcessor", "size": SQUARE, "image_seq_length": 16}
    images |= {"processor_class": "PaliGemmaProcessor"}
    known = len(tokenizer) + 1024 + 128  # the places and segments that its processor adds
    vision = {"model_type": "siglip_vision_model", **VISION, "projection_dim": 32}
    text = {"model_type": "gemma", **TEXT, **IDS, "vocab_size": known}
    config = hf.PaliGemmaConfig(
        vision_config=vision, text_config=text, projection_dim=32, hidden_size=32, vocab_size=known,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"), tie_word_embeddings=False,
    )  # fmt: skip
    save(folder, "PaliGemmaForConditionalGeneration", config, tokenizer, images)


def florence2(folder: Path) -> None:
    """A BART beside a DaViT; 32 pixels become 4 x 4 states, and one of their mean."""
    import transformers as hf

    tokenizer = letters({"image_token": "<image>"}, ends=True, padding_side="right", model_max_length=128)
    vision = {"embed_dim": [16, 32], "depths": [1, 1], "num_heads": [2, 4], "num_groups": [2, 4], "window_size": 4}
    vision |= {"patch_size": [7, 3], "patch_stride": [4, 2], "patch_padding": [3, 1], "patch_prenorm": [False, True]}
    text = {"model_type": "bart", "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": len(tokenizer)}
    text |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
    text |= {**IDS, "max_position_embeddings": 256, "decoder_start_token_id": 2, "forced_eos_token_id": 2}
    image = tokenizer.convert_tokens_to_ids("<image>")
    config = hf.Florence2Config(
        vision_config=vision | {"projection_dim": 32},
        text_config=text,
        image_token_id=image,
        tie_word_embeddings=False,
        **IDS,
    )
    images = CLIP | {"size": SQUARE, "do_center_crop": False, "image_seq_length": 17}
    images |= {"processor_class": "Florence2Processor"}
    save(folder, "Florence2ForConditionalGeneration", config, tokenizer, images)


def idefics2(folder: Path) -> None:
    import transformers as hf

    signs = ["<fake_token_around_image>", "<image>", "<end_of_utterance>"]
    named = {f"s{n}_token": sign for n, sign in enumerate(signs)}
    tokenizer = letters(named, begins=True, chat_template=chat("<image>"))
    latents = {"resampler_n_latents": 4, "resampler_depth": 1, "resampler_n_heads": 4, "resampler_head_dim": 8}
    config = hf.Idefics2Config(
        vision_config=VISION, perceiver_config=latents | {"num_key_value_heads": 2}, tie_word_embeddings=False,
        text_config={"model_type": "mistral", **TEXT, **IDS, "vocab_size": len(tokenizer)},
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    images = {"image_processor_type": "Idefics2ImageProcessor", "size": {"shortest_edge": 16, "longest_edge": 32}}
    own = {"image_seq_len": 4, "processor_class": "Idefics2Processor"}
    save(folder, "Idefics2ForConditionalGeneration", config, tokenizer, images | {"do_image_splitting": False}, own)


def _idefics(folder: Path, kind: str) -> None:
    import transformers as hf

    signs = ["<fake_token_around_image>", "<image>", "<end_of_utterance>", "<global-img>"]
    signs += [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    tokenizer = letters(
        {f"s{n}_token": sign for n, sign in enumerate(signs)}, begins=True, chat_template=chat("<image>")
    )
    text = {"model_type": "llama", **TEXT, **IDS, "vocab_size": len(tokenizer)}
    config = getattr(hf, f"{kind}Config")(
        vision_config=VISION, text_config=text, scale_factor=2, pad_token_id=0,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    images = {"image_processor_type": f"{kind}ImageProcessor", "size": {"longest_edge": 64}}
    images |= {"max_image_size": {"longest_edge": 32}, "processor_class": f"{kind}Processor"}
    own = {"image_seq_len": 4, "processor_class": f"{kind}Processor"}
    save(folder, f"{kind}ForConditionalGeneration", config, tokenizer, images, own)


def idefics3(folder: Path) -> None:
    _idefics(folder, "Idefics3")


def smolvlm(folder: Path) -> None:
    _idefics(folder, "SmolVLM")


def internvl(folder: Path) -> None:
    import transformers as hf

    named = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    tokenizer = letters(named | {"video_token": "<video>"}, begins=True, chat_template=chat("<IMG_CONTEXT>\n"))
    vision = SIZE | {"image_size": [32, 32], "patch_size": [8, 8]}
    text = {"model_type": "qwen2", **TEXT, **IDS, "vocab_size": len(tokenizer)}
    config = hf.InternVLConfig(
        vision_config=vision, text_config=text, image_seq_length=4, tie_word_embeddings=False,
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
    )  # fmt: skip
    images = {"image_processor_type": "GotOcr2ImageProcessor", "size": SQUARE, "crop_to_patches": True}
    images |= {"min_patches": 1, "max_patches": 4, "processor_class": "InternVLProcessor"}
    own = {"image_seq_length": 4, "processor_class": "InternVLProcessor"}
    save(folder, "InternVLForConditionalGeneration", config, tokenizer, images, own)


def gemma3(folder: Path) -> None:
    import transformers as hf

    named = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
    tokenizer = letters(named, begins=True, chat_template=chat("<start_of_image>"))
    index = {f"{name}_index": tokenizer.convert_tokens_to_ids(sign) for name, sign in named.items()}
    text = TEXT | IDS | {"vocab_size": len(tokenizer), "sliding_window": 64, "query_pre_attn_scalar": 8}
    config = hf.Gemma3Config(
        vision_config={"model_type": "siglip_vision_model", **VISION},
        text_config=text, mm_tokens_per_image=4, tie_word_embeddings=False, **index,
    )  # fmt: skip
    images = {"image_processor_type": "Gemma3ImageProcessor", "size": SQUARE, "processor_class": "Gemma3Processor"}
    own = {"image_seq_length": 4, "processor_class": "Gemma3Processor"}
    save(folder, "Gemma3ForConditionalGeneration", config, tokenizer, images, own)


def gemma4(folder: Path) -> None:
    import transformers as hf

    signs = {"boi": "<|image>", "eoi": "<image|>", "image": "<|image|>"}
    signs |= {"audio": "<|audio|>", "boa": "<|audio>", "eoa": "<audio|>"}
    named = {f"{name}_token": sign for name, sign in signs.items()}
    tokenizer = letters(named, begins=True, chat_template=chat("<|image|>"))
    known = len(tokenizer) + 1  # its processor adds a mark for videos
    text = TEXT | IDS | {"vocab_size": known, "vocab_size_per_layer_input": known, "hidden_size_per_layer_input": 0}
    text |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64, "global_head_dim": 8}
    vision = SIZE | {"patch_size": 4, "num_key_value_heads": 4, "head_dim": 8, "pooling_kernel_size": 2}
    config = hf.Gemma4Config(
        text_config=text | {"num_global_key_value_heads": 2}, audio_config=None, tie_word_embeddings=False,
        vision_config=vision | {"position_embedding_size": 64, "default_output_length": 16},
        image_token_id=tokenizer.convert_tokens_to_ids("<|image|>"),
    )  # fmt: skip
    images = {"image_processor_type": "Gemma4ImageProcessor", "patch_size": 4, "max_soft_tokens": 70}
    own = {"image_seq_length": 70, "processor_class": "Gemma4Processor"}
    save(folder, "Gemma4ForConditionalGeneration", config, tokenizer, images | {"pooling_kernel_size": 2}, own)


def blip2(folder: Path) -> None:
    import transformers as hf

    tokenizer = letters(begins=True, model_max_length=64)  # its processor fails on an `image_token` of the tokenizer
    text = {"model_type": "opt", "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text |= IDS | {"vocab_size": len(tokenizer) + 1, "max_position_embeddings": 128, "word_embed_proj_dim": 32}
    config = hf.Blip2Config(
        vision_config=SIZE | {"image_size": 32, "patch_size": 8, "initializer_range": 0.1},
        qformer_config=SIZE | {"encoder_hidden_size": 32, "vocab_size": 30},
        text_config=text, num_query_tokens=4, image_token_index=len(tokenizer),
    )  # fmt: skip
    images = {"image_processor_type": "BlipImageProcessor", "size": SQUARE, "processor_class": "Blip2Processor"}
    images |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    own = {"num_query_tokens": 4, "processor_class": "Blip2Processor"}
    save(folder, "Blip2ForConditionalGeneration", config, tokenizer, images, own)


def kosmos2(folder: Path) -> None:
    """Its processor adds 11 marks and the places of patches; an image is 64 tokens whatever the queries say."""
    import transformers as hf

    tokenizer = letters(model_max_length=512)
    known = len(tokenizer) + 11 + 4
    text = {"vocab_size": known, "embed_dim": 32, "layers": 2, "ffn_dim": 64, "attention_heads": 4, **IDS}
    config = hf.Kosmos2Config(
        vision_config=VISION,
        text_config=text | {"max_position_embeddings": 512}, latent_query_num=64, tie_word_embeddings=False,
    )  # fmt: skip
    own = {"num_patch_index_tokens": 4, "processor_class": "Kosmos2Processor"}
    save(folder, "Kosmos2ForConditionalGeneration", config, tokenizer, CLIP, own)


#: `model_type` -> what saves a tiny checkpoint of it in a folder.
CAPTIONERS: Mapping[str, Callable[[Path], None]] = {
    "blip-2": blip2,
    "florence2": florence2,
    "gemma3": gemma3,
    "gemma4": gemma4,
    "idefics2": idefics2,
    "idefics3": idefics3,
    "internvl": internvl,
    "kosmos-2": kosmos2,
    "llava": llava,
    "llava_next": llava_next,
    "llava_onevision": llava_onevision,
    "paligemma": paligemma,
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "qwen3_vl_moe": partial(qwen3_vl, kind="Qwen3VLMoe"),
    "qwen3_5": qwen3_5,
    "qwen3_5_moe": partial(qwen3_5, kind="Qwen3_5Moe"),
    "smolvlm": smolvlm,
}


def chat_language_folder(folder: Path) -> Path:
    """Saves a tiny random Llama with a chat template, which takes a message as one text."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    template = "<s>{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant: "
    tokenizer = letters(begins=True, chat_template=template)
    spread(hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, **IDS, vocab_size=len(tokenizer)))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def chat_folder(folder: Path, kind: str) -> Path:
    """Saves a tiny random checkpoint of a kind."""
    folder.mkdir(parents=True, exist_ok=True)
    CAPTIONERS[kind](folder)
    return folder
