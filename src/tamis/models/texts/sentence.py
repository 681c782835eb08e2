"""Text encoders: unit vectors of sentences, whose cosine measures similarity, and vectors of tokens for BERTScore.

Three types of checkpoint encode sentences: sentence-transformers folders (`modules.json`), the text tower of CLIP or
SigLIP, and the text tower of a BLIP retrieval model. The library itself runs folders with modules that we do not know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamis.core.errors import ModelError, require
from tamis.core.math.similarity import unit_rows
from tamis.core.types import Device, ModelRef
from tamis.models.clip import KINDS, load_clip, load_tokenizer
from tamis.models.device import dtype_of, use_threads
from tamis.models.loading import (
    check_config,
    check_tokens,
    each_text,
    is_pooler,
    load_once,
    load_tokenizer_in,
    load_whole,
    longest_text,
    model_type,
    one_sentence,
    quiet,
    transformer_folder,
)
from tamis.models.packed import load_for_inference
from tamis.models.reference import modules_in, object_in, prompts_in, resolve, shapes_in

_BLIP_LENGTH = 35  # tokens, as BLIP was trained for retrieval

#: The modules of sentence-transformers that we run ourselves, in their order.
_MODULES = re.compile("Transformer Pooling( Dense)*( Normalize)?")

#: The name of a class of the library, not of a module or a function in it.
_OF_LIBRARY = re.compile(r"sentence_transformers(\.\w+)*\.[A-Z]\w*")

#: Ends of settings in sentence_bert_config.json that are handed to transformers as they are.
_ELSEWHERE = ("_args", "model_kwargs", "config_kwargs", "processor_kwargs", "_name_or_path")

#: Encoders with a decoder next to them, which `AutoModel` would load too.
_WITH_DECODER = ("t5", "mt5", "umt5")

#: How a plain transformer reads texts, in sentence_bert_config.json since version 6.
_PLAIN = {"method": "forward", "method_output_name": "last_hidden_state"}

#: n texts -> (n, d) float32 unit rows; NaN for a zero vector.
SentenceEncoder = Callable[[Sequence[str]], NDArray[np.float32]]


class SentenceTransformer:
    """A sentence-transformers checkpoint: a transformer, a pooling, sometimes dense layers, a normalisation.

    Each distinct text is encoded once, in batches of similar length.
    """

    def __init__(self, model: str, device: Device) -> None:
        from transformers import AutoModel

        self._device, self._batch = device.kind, device.batch_size
        path = resolve(model).path
        steps = modules_in(path)
        (_, folder), (_, pooling) = steps[:2]
        self._model = load_for_inference(
            AutoModel, folder, model, device, expected="a text encoder", unneeded=is_pooler
        )
        self._tokenizer = load_tokenizer_in(folder, network=self._model)
        self._length = _max_tokens(path, self._tokenizer, self._model.config)
        self._pooling = _pooling(pooling)[0]
        self._dense = [_dense(folder, self._device) for kind, folder in steps if kind.endswith(".Dense")]

    def __call__(self, texts: Sequence[str]) -> NDArray[np.float32]:
        distinct = list(dict.fromkeys(texts))
        if not distinct:
            return np.empty((0, 0), np.float32)
        rows = self._tokenizer(distinct, truncation=True, max_length=self._length)["input_ids"]
        pad = self._tokenizer.pad_token_id
        tokens = {text: tuple(row) or (pad or 0,) for text, row in zip(distinct, rows, strict=True)}  # none for ""
        vectors = each_text(tokens.values(), self._encode, batch=self._batch, pad=pad, device=self._device)
        return unit_rows(np.stack([vectors[tokens[text]] for text in texts]))

    def _encode(self, ids: Any, mask: Any) -> Any:
        states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state.float()  # (b, length, d)
        pooled = _pool(states, mask, self._pooling)
        for dense in self._dense:
            pooled = dense(pooled)
        return pooled.cpu().numpy()


def _pool(states: Any, mask: Any, mode: str) -> Any:
    """Returns one of n texts' (n, length, d) states each, or their mean: (n, d)."""
    if mode == "mean":
        weights = mask[:, :, None].float()
        return (states * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    return states[:, 0] if mode == "cls" else states[range(len(states)), mask.sum(1) - 1]


def _is_ours(steps: Sequence[tuple[str, Path]], prompt: str) -> bool:
    """Whether `SentenceTransformer` can run the modules of a folder with a prompt."""
    kinds = [kind.rpartition(".")[2] for kind, _ in steps]
    if not _MODULES.fullmatch(" ".join(kinds)):
        return False
    config = object_in(steps[0][1] / "config.json")
    if config.get("model_type") in _WITH_DECODER or config.get("is_encoder_decoder") is True:
        return False
    file = steps[0][1] / "sentence_bert_config.json"
    settings = object_in(file) if file.is_file() else {}
    reads = settings.get("modality_config", {"text": _PLAIN})
    if not isinstance(reads, dict) or reads.get("text") != _PLAIN or settings.get("processing_kwargs"):
        return False
    mode, includes_prompt = _pooling(steps[1][1])
    if mode not in ("mean", "cls", "lasttoken") or (prompt and not includes_prompt):
        return False
    layers = [object_in(folder / "config.json") for kind, folder in steps if kind.endswith(".Dense")]
    named = [str(layer.get("activation_function", "torch.nn.Identity")) for layer in layers]
    other = any(name.startswith("torch.nn.") and not name.endswith((".Tanh", ".Identity")) for name in named)
    return not other and not any(layer.get("use_residual") for layer in layers)


def _library_encoder(model: str, path: Path, device: Device, prompt: str) -> SentenceEncoder:
    """Loads a folder with sentence-transformers itself; its own modules alone, and no code or pickle of the folder."""
    require("sentence_transformers", extra="sentence")
    from sentence_transformers import SentenceTransformer as Library

    own = path / "config_sentence_transformers.json"
    kind = object_in(own).get("model_type", "SentenceTransformer") if own.is_file() else "SentenceTransformer"
    steps = modules_in(path)
    inner = [name for name, _ in steps if name.endswith((".Router", ".Asym"))]
    if kind != "SentenceTransformer" or inner:
        raise ModelError(f"{model} is a {inner[0] if inner else kind} of sentence-transformers: not one vector a text")
    for _, folder in steps:
        if (folder / "pytorch_model.bin").is_file() and not (folder / "model.safetensors").is_file():
            raise ModelError(f"{folder} holds pickled weights: run `tamis convert {model} OUT`, and name OUT")
        for file in (*folder.glob("config.json"), *folder.glob("sentence_*_config.json")):
            check_config(file)
            if asked := [key for key in object_in(file) if file.name != "config.json" and key.endswith(_ELSEWHERE)]:
                raise ModelError(f"{file} could load files from elsewhere ({asked[0]}): remove the setting")
    use_threads(device)
    with one_sentence("the sentence encoder", path), quiet():
        network = Library(
            str(path), device=device.kind, trust_remote_code=False, local_files_only=True,
            model_kwargs={"dtype": dtype_of(device), "use_safetensors": True},
        ).eval()  # fmt: skip
        inside = getattr(network, "transformers_model", None)
        if inside is not None:  # the library draws missing weights at random; and it does not mind too long texts
            load_whole(type(inside), steps[0][1], model, expected="a text encoder", unneeded=is_pooler)
            check_tokens(network.tokenizer, inside, steps[0][1])
            longest = longest_text(inside.config, network.tokenizer)
            network.max_seq_length = min(network.max_seq_length or longest, longest)
        network.encode(["a dog", ""], prompt=prompt, show_progress_bar=False)  # a fault of its files shows here

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        if not texts:
            return np.empty((0, 0), np.float32)
        options: dict[str, Any] = {"batch_size": device.batch_size, "show_progress_bar": False}
        rows = network.encode(list(texts), prompt=prompt, convert_to_tensor=True, **options)
        return unit_rows(rows.float().cpu().numpy())

    return encode


def _blip_encoder(model: str, device: Device) -> SentenceEncoder:
    """Loads the text tower of a BLIP retrieval checkpoint with its projection (SIEVE's Table 4)."""
    import torch
    from transformers import BlipForImageTextRetrieval as Kind

    path = resolve(model).path
    network = load_for_inference(Kind, path, model, device, expected="a BLIP retrieval checkpoint")
    tokenizer = load_tokenizer_in(path, network=network)

    def encode(texts: Sequence[str]) -> NDArray[np.float32]:
        parts = []
        with torch.inference_mode():
            for start in range(0, len(texts), device.batch_size):
                batch = tokenizer(
                    list(texts[start : start + device.batch_size]),
                    padding=True, truncation=True, max_length=_BLIP_LENGTH, return_tensors="pt",
                ).to(device.kind)  # fmt: skip
                states = network.text_encoder(batch["input_ids"], batch["attention_mask"]).last_hidden_state
                parts.append(network.text_proj(states[:, 0]).float().cpu().numpy())
        return unit_rows(np.concatenate(parts)) if parts else np.empty((0, 0), np.float32)

    return encode


@load_once(keep=4)
def load_sentence_encoder(model: ModelRef, device: Device, prompt: str | None = None) -> SentenceEncoder:
    """Loads a sentence encoder; ModelError if it is missing, damaged, or not a sentence encoder.

    `prompt` is put before each text; None: the default of the model's folder, or none.
    """
    require("torch", "transformers", extra="sentence")
    path = resolve(model).path
    if (path / "modules.json").is_file():
        start, steps = _default_prompt(path, model) if prompt is None else prompt, modules_in(path)
        if foreign := [kind for kind, _ in steps if not _OF_LIBRARY.fullmatch(kind)]:
            raise ModelError(f"{model}: its module {foreign[0]} is code of its own, which is never run")
        if not _is_ours(steps, start):
            return _library_encoder(model, path, device, start)
        return _with_prompt(SentenceTransformer(model, device), start)
    kind = model_type(model)
    if kind in KINDS:  # the text tower (SIEVE's Table 4)
        clip, tokenize = load_clip(model, device), load_tokenizer(model)
        return _with_prompt(lambda texts: unit_rows(clip.texts(tokenize(texts))), prompt or "")
    if kind == "blip":
        return _with_prompt(_blip_encoder(model, device), prompt or "")
    raise ModelError(f"{model} is no sentence encoder: a sentence-transformers folder, CLIP, SigLIP or BLIP retrieval")


def _with_prompt(encode: SentenceEncoder, prompt: str) -> SentenceEncoder:
    return (lambda texts: encode([prompt + text for text in texts])) if prompt else encode


def _default_prompt(path: Path, model: str) -> str:
    """Returns the prompt that a folder names as its default, else ""; ModelError if it has several and no default, as
    E5's "query: " and "passage: ": then the user must choose.
    """
    prompts, default = prompts_in(path)
    if default is None and len({text for text in prompts.values() if text}) > 1:
        some = ", ".join(f"{text!r} ({name})" for name, text in list(prompts.items())[:8] if text)
        raise ModelError(
            f"{model} was trained on texts with prompts, and names none as its default: set encoder_prompt to {some}, "
            'or to "" for none'
        )
    return prompts.get(default or "", "")


def _max_tokens(path: Path, tokenizer: Any, config: Any) -> int:
    """Returns the model's limit on tokens, or the folder's if that is lower."""
    settings = path / "sentence_bert_config.json"
    limit = object_in(settings).get("max_seq_length") if settings.is_file() else None
    if not isinstance(limit, int | None):
        raise ModelError(f"{settings} is damaged: its max_seq_length is not a number")
    most = longest_text(config, tokenizer)
    return min(limit, most) if limit else most


def _pooling(folder: Path) -> tuple[str, bool]:
    """Returns the mode of a pooling, several joined by "+", and whether it pools the prompt's tokens too."""
    config = object_in(folder / "config.json")
    named = config.get("pooling_mode")  # sentence-transformers 6; earlier versions have a switch for each
    switches = [key.removeprefix("pooling_mode_") for key, on in config.items() if on is True]
    modes = switches if named is None else named if isinstance(named, list) else [named]
    names = [str(mode).removesuffix("_tokens").removesuffix("_token") for mode in modes if mode != "include_prompt"]
    if not names:
        raise ModelError(f"{folder / 'config.json'} is damaged: it names no pooling")
    return "+".join(names), config.get("include_prompt") is not False


def _dense(folder: Path, device: str) -> Callable[[Any], Any]:
    import torch
    from safetensors.torch import load_file

    config, path = object_in(folder / "config.json"), folder / "model.safetensors"
    shapes = {name.removeprefix("linear."): shape for name, shape in shapes_in(path).items()}
    inputs, outputs, bias = config.get("in_features"), config.get("out_features"), config.get("bias", True)
    if shapes != {"weight": (outputs, inputs)} | ({"bias": (outputs,)} if bias else {}):
        raise ModelError(f"{path} does not hold the layer that {folder / 'config.json'} describes")
    name = str(config.get("activation_function", "Identity")).rpartition(".")[2]
    if name not in ("Tanh", "Identity"):
        raise ModelError(f"{folder}: a dense layer with {name} is not supported, only activations of torch.nn")
    layer = torch.nn.Linear(shapes["weight"][1], shapes["weight"][0], bias=bool(bias))
    layer.load_state_dict({key.removeprefix("linear."): value for key, value in load_file(path).items()})
    return torch.nn.Sequential(layer, getattr(torch.nn, name)()).to(device)


# ---- vectors of tokens

#: (architecture, number of layers) -> the layer that agrees best with people, as in the `bert-score` package. Not by
#: name, because a folder can have any name.
BEST_LAYERS: Mapping[tuple[str, int], int] = {
    ("bert", 12): 9,
    ("bert", 24): 18,
    ("roberta", 6): 5,
    ("roberta", 12): 10,
    ("roberta", 24): 17,
    ("distilbert", 6): 5,
    ("deberta", 48): 40,
}


@dataclass(frozen=True)
class TokenVectors:
    """The tokens of one text: vectors (t, d) float32, not normalised; counts (t,) False for special tokens."""

    vectors: NDArray[np.float32]
    counts: NDArray[np.bool_]


class TokenEncoder:
    """One layer of a BERT-like checkpoint or a sentence-transformers folder; layer 0 is its input embeddings.

    The default is the layer in `BEST_LAYERS`, else the last. Raises ModelError if the layer does not exist.
    """

    def __init__(self, model: ModelRef, layer: int | None, device: Device) -> None:
        require("torch", "transformers", extra="clip")
        from transformers import AutoModel

        path, expected = transformer_folder(model), "a BERT-like encoder of texts"
        self._device, self._batch = device.kind, device.batch_size
        self._model = load_for_inference(AutoModel, path, model, device, expected=expected, unneeded=is_pooler)
        config = self._model.config
        body = getattr(self._model, "encoder", getattr(self._model, "transformer", None))
        if body is None or not hasattr(config, "num_hidden_layers") or config.is_encoder_decoder:
            raise ModelError(f"{model} is a {config.model_type!r} model and not {expected}")
        deepest = int(config.num_hidden_layers)
        if deepest < 1:
            raise ModelError(f"{path}: its config.json is damaged: num_hidden_layers is {deepest}")
        self.layer = layer if layer is not None else BEST_LAYERS.get((config.model_type, deepest), deepest)
        if not 0 <= self.layer <= deepest:
            raise ModelError(f"{model} has layers 0 (its input) to {deepest}, got {self.layer}")
        if hasattr(body, "layer"):
            del body.layer[max(1, self.layer) :]  # unused layers
        self._tokenizer = load_tokenizer_in(path, network=self._model)
        # RoBERTa's tokens include the space before a word, so we put a space before the first word too. `bert-score`
        # sets add_prefix_space for that, which transformers 5 ignores: it then cuts first words into pieces, and its
        # numbers differ by some thousandths from ours and the published ones.
        self._prefix = " " if config.model_type == "roberta" else ""
        self._length = longest_text(config, self._tokenizer)

    def __call__(self, texts: Sequence[str]) -> dict[str, TokenVectors]:
        """Returns the token vectors of each distinct text."""
        distinct = sorted(set(texts))
        if not distinct:
            return {}
        tokens = self._tokenizer(
            [self._prefix + text.strip() if text.strip() else "" for text in distinct],
            truncation=True,
            max_length=self._length,
            return_special_tokens_mask=True,
        )
        rows = {text: tuple(ids) for text, ids in zip(distinct, tokens["input_ids"], strict=True)}
        special = dict(zip(rows.values(), tokens["special_tokens_mask"], strict=True))
        pad = self._tokenizer.pad_token_id
        vectors = each_text(special, self._states, batch=self._batch, pad=pad, device=self._device)
        return {
            text: TokenVectors(vectors[row][: len(row)], ~np.array(special[row], bool)) for text, row in rows.items()
        }

    def _states(self, ids: Any, mask: Any) -> Any:
        states = self._model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
        return states[self.layer].float().cpu().numpy()


load_token_encoder = load_once(keep=2)(TokenEncoder)
