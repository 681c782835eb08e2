"""Tiny checkpoints of sentence encoders, of transformers' own classes, in folders of sentence-transformers."""

import json
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

#: One token each; anything else is <unk>.
SIGNS = [*string.ascii_letters, *string.digits, *" .,:?\n", *"\u4e00\u53ea\u72d7\u5728\u8349", *"\u0643\u0644\u0628"]
MARKS = ["<pad>", "<s>", "</s>", "<unk>"]
SIZE: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZE |= {"vocab_size": len(MARKS) + len(SIGNS), "pad_token_id": 0, "max_position_embeddings": 64}


def tokenizer(frame: str, *, lower: bool = False, side: str = "right") -> Any:
    """Single letters in a frame such as "<s> $A </s>", 64 at most."""
    from tokenizers import Tokenizer, models, normalizers, processors
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE({sign: n for n, sign in enumerate([*MARKS, *SIGNS])}, [], unk_token="<unk>"))
    made.post_processor = processors.TemplateProcessing(single=frame, special_tokens=[("<s>", 1), ("</s>", 2)])
    if lower:
        made.normalizer = normalizers.Lowercase()
    marks = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), MARKS, strict=True))
    return PreTrainedTokenizerFast(tokenizer_object=made, padding_side=side, model_max_length=64, **marks)


def save(folder: Path, model: Any, words: Any, pooling: str, prompts: dict[str, str], **more: Any) -> None:
    """Saves a folder: a transformer at its root, a pooling, perhaps a dense layer of `dense` outputs, a norm."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():  # so that other texts give other vectors
            if weight.ndim > 1:
                weight.copy_(torch.randn_like(weight) * 0.3)
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    dense, activation = more.get("dense", 0), more.get("activation", "Tanh")
    kinds = ["Transformer", "Pooling", *(["Dense"] if dense else []), "Normalize"]
    paths = ["", *(f"{n}_{kind}" for n, kind in enumerate(kinds) if n)]
    for path in paths:
        (folder / path).mkdir(exist_ok=True)
    types = [f"sentence_transformers.models.{kind}" for kind in kinds]
    modules = [{"idx": n, "name": str(n), "path": path, "type": types[n]} for n, path in enumerate(paths)]
    (folder / "modules.json").write_text(json.dumps(modules))
    modes = {
        f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    }
    pooled = {"word_embedding_dimension": 32, **modes, "include_prompt": more.get("include_prompt", True)}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooled))
    own = {"prompts": prompts, "default_prompt_name": more.get("default"), "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(own))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 60} | more.get("settings", {})))
    if dense:
        layer = torch.nn.Linear(32, dense)
        tensors = {f"linear.{name}": value.detach() for name, value in layer.named_parameters()}
        save_file(tensors, folder / "2_Dense" / "model.safetensors")
        sizes = {"in_features": 32, "out_features": dense, "bias": True}
        sizes |= {"activation_function": f"torch.nn.modules.activation.{activation}"}
        (folder / "2_Dense" / "config.json").write_text(json.dumps(sizes))


def qwen3_embedding(folder: Path) -> None:
    """Pools the last token, the end mark that its tokenizer writes, and pads on the left."""
    import transformers as hf

    sizes = SIZE | {"num_key_value_heads": 2, "head_dim": 8}
    prompts = {"query": "Instruct: find it\nQuery:", "document": ""}
    save(folder, hf.Qwen3Model(hf.Qwen3Config(**sizes)), tokenizer("$A </s>", side="left"), "lasttoken", prompts)


def bert(folder: Path, pooling: str = "mean_tokens", prompts: Mapping[str, str] | None = None, **more: Any) -> None:
    import transformers as hf

    words = more.pop("words", None) or tokenizer("<s> $A </s>", lower=True)
    save(folder, hf.BertModel(hf.BertConfig(**SIZE)), words, pooling, dict(prompts or {}), **more)


def t5(folder: Path, **more: Any) -> None:
    """An encoder without its decoder, which `AutoModel` would look for."""
    import transformers as hf

    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": SIZE["vocab_size"]}
    model = hf.T5EncoderModel(hf.T5Config(**sizes))
    save(folder, model, tokenizer("$A </s>"), "mean_tokens", {}, dense=16, activation="GELU", **more)


def static(folder: Path) -> None:
    """A table of tokens' vectors, without a transformer."""
    import numpy as np
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import StaticEmbedding

    words = tokenizer("$A").backend_tokenizer
    vectors = np.random.default_rng(0).normal(size=(SIZE["vocab_size"], 8)).astype(np.float32)
    made = SentenceTransformer(modules=[StaticEmbedding(words, embedding_weights=vectors)], device="cpu")
    made.save_pretrained(str(folder), create_model_card=False)


E5 = {"query": "query: ", "passage": "passage: "}

#: A checkpoint that people use, or a word -> what makes its folder, and whether the library runs it.
ENCODERS: Mapping[str, tuple[Callable[[Path], None], bool]] = {
    "Qwen/Qwen3-Embedding-0.6B": (qwen3_embedding, False),
    "intfloat/e5-base-v2": (lambda folder: bert(folder, prompts=E5), False),
    "sentence-transformers/LaBSE": (lambda folder: bert(folder, "cls_token", dense=16), False),
    "default": (lambda folder: bert(folder, prompts=E5, default="query"), False),
    "sentence-transformers/sentence-t5-base": (t5, True),
    "hkunlp/instructor-base": (lambda folder: t5(folder, include_prompt=False), True),
    "without prompt": (lambda folder: bert(folder, include_prompt=False), True),
    "max": (lambda folder: bert(folder, "max_tokens"), True),
    "16 tokens": (lambda folder: bert(folder, settings={"processing_kwargs": {"text": {"max_length": 16}}}), True),
    "sentence-transformers/static-similarity-mrl-multilingual-v1": (static, True),
}


def encoder_folder(folder: Path, kind: str) -> Path:
    folder.mkdir()
    ENCODERS[kind][0](folder)
    return folder
