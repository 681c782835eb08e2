"""Tiny checkpoints with random weights, as the library saves them, of the words of `factories.WORDS`."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from factories import WORDS

#: Sizes, marks and words of every tiny network below.
SIZE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
VOCABULARY = {"vocab_size": len(WORDS) + 4}


def tokenizer_folder(folder: Path, length: int = 16) -> Path:
    """Saves a word-level tokenizer of `WORDS` that transformers' AutoTokenizer loads: <s> words </s>."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<s>", "</s>", "<unk>"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    marks = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks, model_max_length=length).save_pretrained(folder)
    return folder


def _save(model: Any, folder: Path, processor: str, **size: Any) -> Path:
    """Saves a network with the preprocessing of its images, and the tokenizer of `WORDS`."""
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": processor, **size}))
    return tokenizer_folder(folder)


def _spread(model: Any) -> Any:
    """Makes random weights large enough that different inputs give clearly different embeddings."""
    import torch

    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(6)
    return model


def clip_folder(folder: Path, seed: int = 0, size: int = 24) -> Path:
    """Saves a tiny random CLIP checkpoint: 32-pixel images, 16 tokens, `size` dimensions."""
    import torch
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(seed)
    text = SIZE | MARKS | VOCABULARY | {"max_position_embeddings": 16}
    vision = SIZE | {"image_size": 32, "patch_size": 8}
    model = _spread(CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=size)))
    square = {"height": 32, "width": 32}
    return _save(model, folder, "CLIPImageProcessor", size={"shortest_edge": 32}, crop_size=square)


def head_folder(folder: Path) -> Path:
    """Saves a random head on the embeddings of that CLIP, as `tamis convert` writes one: ReLU between two layers."""
    from safetensors.numpy import save_file

    rng = np.random.default_rng(0)
    folder.mkdir()
    sizes = {"0.weight": (8, 24), "0.bias": (8,), "2.weight": (1, 8), "2.bias": (1,)}
    tensors = {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    save_file(tensors, folder / "model.safetensors")
    return folder


def epochs_folder(folder: Path, epochs: int = 2) -> Path:
    """Saves tiny random CLIP checkpoints as `epoch-1`, `epoch-2`, ...: what `tamis train c_ssft` leaves."""
    for number in range(1, epochs + 1):
        clip_folder(folder / f"epoch-{number}", seed=100 + number)
    return folder


def siglip_folder(folder: Path, seed: int = 0) -> Path:
    """Saves a tiny random SigLIP checkpoint: 32-pixel images, 16 tokens, 32 dimensions."""
    import torch
    from transformers import SiglipConfig, SiglipModel

    torch.manual_seed(seed)
    text = SIZE | VOCABULARY | {"max_position_embeddings": 16, "pad_token_id": 0}
    model = SiglipModel(SiglipConfig(text_config=text, vision_config=SIZE | {"image_size": 32, "patch_size": 8}))
    return _save(_spread(model), folder, "SiglipImageProcessor", size={"height": 32, "width": 32})


def captioner_folder(folder: Path, kind: str = "blip", seed: int = 0) -> Path:
    """Saves a tiny random captioner of 32-pixel images: "blip", "blip-2" (with an OPT), "git" or "vit-gpt2"."""
    import torch
    import transformers as hf

    torch.manual_seed(seed)
    vision = SIZE | {"hidden_size": 24, "image_size": 32, "patch_size": 8, "initializer_range": 0.3}
    model: Any
    if kind == "blip":
        text = SIZE | MARKS | VOCABULARY | {"sep_token_id": 2, "encoder_hidden_size": 24, "max_position_embeddings": 24}
        text |= {"projection_dim": 16, "initializer_range": 0.5}
        config = hf.BlipConfig(text_config=text, vision_config=vision, projection_dim=16, image_text_hidden_size=16)
        model = hf.BlipForConditionalGeneration(config)
    elif kind == "blip-2":
        opt = {"model_type": "opt", "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
        # The last number stands for the image, and is no word.
        opt |= MARKS | {"vocab_size": len(WORDS) + 5, "max_position_embeddings": 64, "word_embed_proj_dim": 32}
        config = hf.Blip2Config(
            vision_config=vision,
            qformer_config=SIZE | {"encoder_hidden_size": 24, "vocab_size": 30, "initializer_range": 0.3},
            text_config=opt | {"init_std": 0.5},
            num_query_tokens=4,
            image_token_index=len(WORDS) + 4,
        )
        model = hf.Blip2ForConditionalGeneration(config)
    elif kind == "git":
        sizes = SIZE | MARKS | VOCABULARY | {"max_position_embeddings": 48, "initializer_range": 0.5}
        model = hf.GitForCausalLM(hf.GitConfig(vision_config=vision, **sizes))
    else:
        sizes = MARKS | VOCABULARY | {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24}
        gpt2 = hf.GPT2Config(**sizes, initializer_range=0.5)
        config = hf.VisionEncoderDecoderConfig.from_encoder_decoder_configs(hf.ViTConfig(**vision), gpt2)
        config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 1, 0, 2
        model = hf.VisionEncoderDecoderModel(config)
    return _save(model, folder, "BlipImageProcessor", size={"height": 32, "width": 32})


def regression_folder(folder: Path, kind: str = "roberta", seed: int = 0, labels: int = 1, spread: float = 0.3) -> Path:
    """Saves a tiny random text regression of the words of `WORDS`: "roberta" (as the released ICC) or "bert"."""
    import torch
    import transformers as hf

    torch.manual_seed(seed)
    settings = SIZE | MARKS | VOCABULARY
    settings |= {"max_position_embeddings": 40, "num_labels": labels, "initializer_range": spread}
    model: Any
    if kind == "roberta":
        model = hf.RobertaForSequenceClassification(hf.RobertaConfig(**settings))
    else:
        model = hf.BertForSequenceClassification(hf.BertConfig(**settings))
    model.save_pretrained(folder)
    return tokenizer_folder(folder, length=39)


def sentences_folder(folder: Path, regression: str) -> Path:
    """Saves a sentence-transformers folder around an encoder of texts."""
    shutil.copytree(regression, folder / "0_Transformer")
    modules = [
        {"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder


def dual_folder(folder: Path, regression: str) -> Path:
    """Saves what `tamis train clip` writes of an image tower beside an encoder of texts."""
    import torch
    import transformers as hf

    from tamis.models.preprocess import image_processor

    torch.manual_seed(0)
    shutil.copytree(regression, folder)
    text = hf.AutoModel.from_pretrained(regression)
    vision = hf.CLIPVisionModel(hf.CLIPVisionConfig(**SIZE | {"num_hidden_layers": 1}, image_size=32, patch_size=8))
    config = hf.VisionTextDualEncoderConfig.from_vision_text_configs(vision.config, text.config, projection_dim=8)
    hf.VisionTextDualEncoderModel(config, vision_model=vision, text_model=text).save_pretrained(folder)
    looks = image_processor("CLIPImageProcessor", 32, crop=True, mean=(0.5,) * 3, std=(0.5,) * 3)
    (folder / "preprocessor_config.json").write_text(json.dumps(looks))
    return folder


def diffusion_folder(folder: Path, seed: int = 0) -> Path:
    """Saves a tiny random Stable Diffusion pipeline of 16-pixel images."""
    import diffusers
    import torch
    from transformers import CLIPTextConfig, CLIPTextModel

    from tamis.train.towers import clip_tokenizer

    torch.manual_seed(seed)
    tokenizer = clip_tokenizer(WORDS, 16)
    marks = {name: getattr(tokenizer, name) for name in MARKS}
    text = CLIPTextConfig(**SIZE | marks, vocab_size=len(tokenizer), max_position_embeddings=16)
    diffusers.StableDiffusionPipeline(
        vae=diffusers.AutoencoderKL(
            block_out_channels=(8, 8),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            latent_channels=4,
            norm_num_groups=4,
        ),
        text_encoder=CLIPTextModel(text),
        tokenizer=tokenizer,
        unet=diffusers.UNet2DConditionModel(
            sample_size=8,
            in_channels=4,
            out_channels=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            block_out_channels=(8, 16),
            layers_per_block=1,
            cross_attention_dim=32,
            attention_head_dim=4,
            norm_num_groups=4,
        ),
        scheduler=diffusers.DDIMScheduler(set_alpha_to_one=False, steps_offset=1, clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder)
    return folder


def language_model_folder(folder: Path, seed: int = 0) -> Path:
    """Saves a tiny random Llama of the words of `WORDS`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes = SIZE | MARKS | VOCABULARY | {"num_key_value_heads": 4, "max_position_embeddings": 32}
    LlamaForCausalLM(LlamaConfig(**sizes, initializer_range=0.3)).save_pretrained(folder)
    return tokenizer_folder(folder, length=32)


def bridge_folder(folder: Path, clip: str, language_model: str) -> Path:
    """Saves a random linear layer between a CLIP and a language model of the tiny sizes above."""
    from tamis.models.reference import resolve
    from tamis.models.texts.soft_token import Bridge

    rng = np.random.default_rng(0)
    Bridge(
        weight=rng.normal(0, 0.1, (32, 24)).astype(np.float32),
        bias=rng.normal(0, 0.1, 32).astype(np.float32),
        clip=clip,
        language_model=language_model,
        clip_digest=resolve(clip).digest,
        language_model_digest=resolve(language_model).digest,
        end="eos",
    ).save(folder, {})
    return folder


def spacy_folder(folder: Path) -> Path:
    """Saves a spaCy pipeline whose parser has learned two captions, enough to parse anything somehow."""
    import spacy
    from spacy.training import Example

    nlp = spacy.blank("en")
    nlp.add_pipe("tagger")
    nlp.add_pipe("parser", config={"min_action_freq": 1})  # or rare labels, all of them here, would be dropped
    examples = [
        Example.from_dict(nlp.make_doc(text), {"heads": heads, "deps": deps.split(), "tags": tags.split()})
        for text, heads, deps, tags in (
            ("a dog chases a cat", [1, 2, 2, 4, 2], "det nsubj ROOT det dobj", "DT NN VBZ DT NN"),
            ("two red boat", [2, 2, 2], "nummod amod ROOT", "CD JJ NN"),
        )
    ]
    optimizer = nlp.initialize(lambda: examples)
    for _ in range(20):
        nlp.update(examples, sgd=optimizer)
    nlp.to_disk(folder)
    return folder
