"""Tiny checkpoints of image-text towers, of transformers' own classes, with random weights. Tokens are letters."""

import json
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tiny_captioners import CLIP, SQUARE, VISION, spread
from tiny_models import SIZE, clip_folder, dual_folder, regression_folder, siglip_folder

LETTERS = [*string.ascii_letters, *string.digits, *".,:;!?", *"\u4e00\u53ea\u72d7", *"\u0643\u0644\u0628"]
DRAWN = VISION | {"initializer_range": 0.02}  # else BLIP's image towers begin as zeros
BLIP: dict[str, Any] = {
    "image_processor_type": "BlipImageProcessor",
    "size": SQUARE,
    "image_mean": [0.48, 0.46, 0.41],
    "image_std": [0.27, 0.26, 0.28],
}


def save(folder: Path, model: Any, tokenizer: Any, processor: str, images: Mapping[str, Any], **own: Any) -> Path:
    """Saves a network, spread so that other inputs give clearly other outputs, with its tokenizer and processor.

    `own`: settings of the processor itself.
    """
    spread(model, 4).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    facts = {**images, "processor_class": processor}
    (folder / "preprocessor_config.json").write_text(json.dumps(facts))
    if own:
        (folder / "processor_config.json").write_text(json.dumps({**own, "processor_class": processor}))
    return folder


def bert(length: int, **settings: Any) -> Any:
    """A BERT tokenizer in lower case: ALIGN, Chinese-CLIP, BLIP and BLIP-2."""
    from transformers import BertTokenizer

    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DEC]", "[ENC]"]
    small = [sign for sign in LETTERS if sign == sign.lower()]
    signs = dict.fromkeys([*marks, *small, *(f"##{sign}" for sign in small)])
    return BertTokenizer({sign: n for n, sign in enumerate(signs)}, model_max_length=length, **settings)


def xlm_roberta() -> Any:
    """An XLM-R (or XLM-V) tokenizer: MetaCLIP 2 and AltCLIP."""
    from transformers import XLMRobertaTokenizer

    signs = ["<s>", "<pad>", "</s>", "<unk>", *LETTERS, "\u2581", "<mask>"]
    return XLMRobertaTokenizer([(sign, 0.0 if n < 4 else -2.0) for n, sign in enumerate(signs)], model_max_length=16)


def gemma(length: int) -> Any:
    """A Gemma tokenizer as SigLIP 2 has it: a text, <eos>, and padding on the right."""
    from transformers import GemmaTokenizer

    signs = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "\u2581", *LETTERS]
    return GemmaTokenizer(
        vocab={sign: n for n, sign in enumerate(signs)}, merges=[], add_bos_token=False, add_eos_token=True,
        padding_side="right", model_max_length=length, model_input_names=["input_ids"],
    )  # fmt: skip


def text(tokenizer: Any, positions: int, **settings: Any) -> dict[str, Any]:
    return SIZE | {"vocab_size": len(tokenizer), "max_position_embeddings": positions, "pad_token_id": 0} | settings


def with_processor(folder: Path, processor: str) -> Path:
    """Names the processor of a folder of `factories`, so that the library's AutoProcessor loads it."""
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"processor_class": processor}))
    return folder


def clip(folder: Path) -> Path:
    return with_processor(clip_folder(folder), "CLIPProcessor")


def siglip(folder: Path) -> Path:
    """SigLIP 1, with its tokenizer: pieces of words by SentencePiece, <pad> 0, </s> 1, <unk> 2."""
    from sentencepiece import SentencePieceTrainer
    from transformers import SiglipTokenizer

    siglip_folder(folder)
    for left in folder.glob("*token*"):
        left.unlink()
    texts = ["a red dog", "two cat one boat"] * 20
    SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(folder / "spiece"), vocab_size=20, hard_vocab_limit=False,
        unk_id=2, eos_id=1, pad_id=0, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    (folder / "spiece.vocab").unlink()
    tokenizer = SiglipTokenizer(str(folder / "spiece.model"), model_max_length=16, model_input_names=["input_ids"])
    tokenizer.save_pretrained(folder)
    return with_processor(folder, "SiglipProcessor")


def dual(folder: Path) -> Path:
    return with_processor(
        dual_folder(folder, str(regression_folder(folder.with_name("text")))), "VisionTextDualEncoderProcessor"
    )


def clip_resnet(folder: Path) -> Path:
    """Our own class, which the library knows once its file is imported."""
    import transformers as hf

    from tamis.models.clip_resnet import ClipResNet, ClipResNetConfig

    tokenizer = hf.AutoTokenizer.from_pretrained(clip_folder(folder.with_name("words")))
    marks = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    vision = {"hidden_size": 8, "stages": [1, 1, 2, 1], "image_size": 32, "num_attention_heads": 4}
    config = ClipResNetConfig(text_config=text(tokenizer, 16, **marks), vision_config=vision, projection_dim=24)
    return save(folder, ClipResNet(config), tokenizer, "CLIPProcessor", CLIP)


def clipseg(folder: Path) -> Path:
    """With its decoder of masks, as people have it; images are squashed to another size than the tower's."""
    import transformers as hf

    tokenizer = hf.AutoTokenizer.from_pretrained(clip_folder(folder.with_name("words")))
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = hf.CLIPSegConfig(
        text_config=text(tokenizer, 16, **marks), vision_config=VISION, projection_dim=24, extract_layers=[0, 1],
        reduce_dim=8, decoder_num_attention_heads=2, decoder_intermediate_size=16,
    )  # fmt: skip
    images = {"image_processor_type": "ViTImageProcessor", "size": {"height": 48, "width": 48}}
    return save(folder, hf.CLIPSegForImageSegmentation(config), tokenizer, "CLIPSegProcessor", images)


def metaclip_2(folder: Path) -> Path:
    """Pools a text at its first end token (a causal tower)."""
    import transformers as hf

    tokenizer = xlm_roberta()
    words = text(tokenizer, 16, pad_token_id=1, bos_token_id=0, eos_token_id=2)
    config = hf.MetaClip2Config(text_config=words, vision_config=VISION, projection_dim=24)
    return save(folder, hf.MetaClip2Model(config), tokenizer, "CLIPProcessor", CLIP)


def siglip2(folder: Path) -> Path:
    """At a fixed size SigLIP 2 is a `siglip` checkpoint with Gemma's tokenizer."""
    import transformers as hf

    tokenizer = gemma(16)
    config = hf.SiglipConfig(text_config=text(tokenizer, 16), vision_config=VISION)
    images = {"image_processor_type": "SiglipImageProcessor", "size": SQUARE}
    return save(folder, hf.SiglipModel(config), tokenizer, "SiglipProcessor", images)


def naflex(folder: Path) -> Path:
    """At most 16 patches of 8 pixels, in the shape of the image."""
    import transformers as hf

    tokenizer = gemma(64)
    vision = SIZE | {"num_patches": 16, "patch_size": 8}
    config = hf.Siglip2Config(text_config=text(tokenizer, 64), vision_config=vision)
    images = {"image_processor_type": "Siglip2ImageProcessor", "max_num_patches": 16, "patch_size": 8}
    return save(folder, hf.Siglip2Model(config), tokenizer, "Siglip2Processor", images)


def align(folder: Path) -> Path:
    """An EfficientNet beside a BERT; images become -1 to 1 by a rescaling with an offset."""
    import transformers as hf

    tokenizer = bert(64)
    vision = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 24, "image_size": 32}
    vision |= {"kernel_sizes": [3, 3], "in_channels": [32, 16], "out_channels": [16, 24], "depthwise_padding": []}
    vision |= {"strides": [1, 2], "num_block_repeats": [1, 1], "expand_ratios": [1, 6]}
    config = hf.AlignConfig(text_config=text(tokenizer, 128), vision_config=vision, projection_dim=24)
    images = {"image_processor_type": "EfficientNetImageProcessor", "size": {"height": 40, "width": 40}}
    images |= {"crop_size": SQUARE, "do_center_crop": True, "do_normalize": False, "include_top": False, "resample": 2}
    images |= {"rescale_factor": 1 / 127.5, "rescale_offset": True}
    return save(folder, hf.AlignModel(config), tokenizer, "AlignProcessor", images)


def altclip(folder: Path) -> Path:
    import transformers as hf

    tokenizer = xlm_roberta()
    words = text(tokenizer, 18, pad_token_id=1, project_dim=24)
    config = hf.AltCLIPConfig(text_config=words, vision_config=VISION, projection_dim=24)
    return save(folder, hf.AltCLIPModel(config), tokenizer, "AltCLIPProcessor", CLIP)


def chinese_clip(folder: Path) -> Path:
    """Its tokenizer and its configuration know 512 places, as published; it was trained on 52."""
    import transformers as hf

    tokenizer = bert(512)
    config = hf.ChineseCLIPConfig(text_config=text(tokenizer, 512), vision_config=VISION, projection_dim=24)
    images = CLIP | {"image_processor_type": "ChineseCLIPImageProcessor"}
    return save(folder, hf.ChineseCLIPModel(config), tokenizer, "ChineseCLIPProcessor", images)


def blip(folder: Path) -> Path:
    import transformers as hf

    tokenizer = bert(512)
    words = text(tokenizer, 64, encoder_hidden_size=32, sep_token_id=3, eos_token_id=3, bos_token_id=5)
    config = hf.BlipConfig(text_config=words, vision_config=DRAWN, projection_dim=24, image_text_hidden_size=24)
    return save(folder, hf.BlipForImageTextRetrieval(config), tokenizer, "BlipProcessor", BLIP)


def blip2(folder: Path) -> Path:
    """BERT's tokens after four places for the image, which the network cuts off again."""
    import transformers as hf

    tokenizer = bert(512, padding_side="right")
    qformer = SIZE | {"encoder_hidden_size": 32, "vocab_size": len(tokenizer) + 1, "use_qformer_text_input": True}
    config = hf.Blip2Config(
        vision_config=DRAWN, qformer_config=qformer | {"max_position_embeddings": 64},
        num_query_tokens=4, image_text_hidden_size=24, image_token_index=len(tokenizer),
    )  # fmt: skip
    model = hf.Blip2ForImageTextRetrieval(config)
    return save(folder, model, tokenizer, "Blip2Processor", BLIP, num_query_tokens=4)


#: By the checkpoint that stands for a row of `kinds`.
TOWERS: Mapping[str, Callable[[Path], Path]] = {
    "openai/clip-vit-base-patch32": clip,
    "timm/resnet50_clip.openai": clip_resnet,
    "CIDAS/clipseg-rd64-refined": clipseg,
    "facebook/metaclip-2-worldwide-huge-quickgelu": metaclip_2,
    "google/siglip-base-patch16-224": siglip,
    "google/siglip2-base-patch16-224": siglip2,
    "google/siglip2-base-patch16-naflex": naflex,
    "kakaobrain/align-base": align,
    "BAAI/AltCLIP": altclip,
    "OFA-Sys/chinese-clip-vit-base-patch16": chinese_clip,
    "clip-italian/clip-italian": dual,
}
MATCHERS: Mapping[str, Callable[[Path], Path]] = {
    "Salesforce/blip-itm-base-coco": blip,
    "Salesforce/blip2-itm-vit-g": blip2,
}
