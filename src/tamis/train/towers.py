"""Builds the model to train, from a configuration or a checkpoint.

It is a `CLIPModel` of transformers, our `ClipResNet`, or a `VisionTextDualEncoderModel`: an image tower, from scratch
or pretrained, with a pretrained text encoder.
"""

from __future__ import annotations

import copy
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tamis.core.errors import ModelError, unknown_message
from tamis.core.files.storage import explain_errors, to_disk
from tamis.core.files.targets import readable_as_usual
from tamis.models.clip import DUAL, take_embedding
from tamis.models.convert import convert, save_model
from tamis.models.loading import (
    RESNET,
    cleaner,
    is_pooler,
    load_tokenizer_in,
    load_whole,
    longest_text,
    model_type,
    pad_tokens,
    transformer_folder,
)
from tamis.models.preprocess import Preprocess, image_processor, load_preprocess, preprocess_of
from tamis.models.reference import OPENAI_WORDS, default_cleaning, object_in, resolve, shapes_in
from tamis.train.loop import ALONE, ProcessGroup
from tamis.train.losses import backward, contrastive_loss, loss_over_processes
from tamis.train.scales import ARCHITECTURES, Architecture, CaptionTraining, ClipTraining, Training, takes_text

if TYPE_CHECKING:
    import torch

#: A piece of a batch (see `step.Prepared`), and what runs a block in the training's precision.
Piece = tuple["torch.Tensor", ...]
Cast = Callable[[], AbstractContextManager[None]]

#: The logit scale is at most 100 (Radford et al. 2021, section 2.5).
_LARGEST_SCALE = math.log(100)

#: Text encoders with BERT's layers: `take_mean` can add a layer to them.
_LIKE_BERT = ("bert", "roberta", "xlm-roberta", "camembert")

#: `model_type` of checkpoints with two towers that can be trained.
_WHOLE = ("clip", RESNET, DUAL)

#: Pretrained image towers to which a text encoder can be joined, and the size of the embeddings (transformers' own).
_IMAGE_TOWERS, _JOINED = ("vit", "swin", "dinov2"), 512

_MEAN_OVER_OWN = 1000.0  # see `take_mean`: large enough that a token's own state no longer counts

_PREPROCESSING = "preprocessor_config.json"

_BOS, _EOS = "<|startoftext|>", "<|endoftext|>"


@dataclass(frozen=True, kw_only=True)
class Towers:
    """A CLIP in training with its tokenizer and preprocessing; `captioner.Captioning` is a captioner."""

    model: Any  # a CLIPModel, ClipResNet or VisionTextDualEncoderModel
    tokenizer: Any
    side: int  # image side in pixels
    steps: Preprocess
    preprocessing: Mapping[str, Any]  # `steps` as the content of preprocessor_config.json
    length: int  # largest number of tokens of a caption

    @property
    def device(self) -> torch.device:
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def scale(self) -> float | None:
        """The factor of the cosines, for the log; None if the model has none."""
        return math.exp(float(self.model.logit_scale.detach()))

    def after_step(self) -> None:
        """Keeps the scale within its bounds."""
        import torch

        with torch.no_grad():
            self.model.logit_scale.clamp_(0, _LARGEST_SCALE)

    def gradients(
        self, pieces: Sequence[Piece], usable: torch.Tensor, cast: Cast, *, local: bool = True,
        processes: ProcessGroup = ALONE,
    ) -> torch.Tensor:  # fmt: skip
        """Adds the gradients of a batch in pieces and returns this process's loss; see `losses.loss_over_processes`."""
        loss = partial(
            loss_over_processes, scale=self.model.logit_scale.exp(), usable=usable, local=local, processes=processes
        )
        return backward(self.embed, pieces, loss, cast, device=self.device)

    def loss(self, pieces: Sequence[Piece], usable: torch.Tensor, cast: Cast) -> torch.Tensor:
        """The loss of a batch without gradients."""
        import torch

        with cast():
            embedded = [self.embed(piece) for piece in pieces]
        images, texts = (torch.cat(rows)[usable] for rows in zip(*embedded, strict=True))
        return contrastive_loss(images, texts, self.model.logit_scale.detach().exp())

    def embed(self, piece: Piece) -> tuple[torch.Tensor, torch.Tensor]:
        """Embeds a piece of a batch (see `step.Prepared`): images and texts, (b, d) each."""
        pixels, *text = (one.to(self.device, non_blocking=True) for one in piece)
        images = self.images(pixels)
        return images, self.texts(*text) if len(text) == 2 else self.model.text_projection(text[0])

    def pixels(self, images: torch.Tensor) -> torch.Tensor:
        """The model's input, (b, 3, side, side) float32, of (b, side, side, 3) uint8 on the device."""
        import torch

        values = images.permute(0, 3, 1, 2).float()
        mean, std = (
            torch.tensor(three, device=images.device).view(1, 3, 1, 1) for three in (self.steps.mean, self.steps.std)
        )
        return (values * self.steps.scale - mean) / std

    def images(self, pixels: torch.Tensor) -> torch.Tensor:
        """Embeds images, (b, side, side, 3) uint8 on the device: (b, d), not normalised."""
        rows: torch.Tensor = take_embedding(self.model.get_image_features(pixel_values=self.pixels(pixels)))
        return rows

    def tokens(self, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and mask, (b, longest) each, on the CPU."""
        clean = cleaner(default_cleaning(self.model.config.to_dict(), self.tokenizer.init_kwargs.get("text")))
        rows = self.tokenizer([clean(one) for one in captions], truncation=True, max_length=self.length)["input_ids"]
        return pad_tokens(rows, self.tokenizer.pad_token_id, "cpu")

    def texts(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Embeds captions: (b, d), not normalised."""
        rows: torch.Tensor = take_embedding(self.model.get_text_features(input_ids=ids, attention_mask=mask))
        return rows

    def states(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The text tower's output before the projection: (b, width)."""
        rows: torch.Tensor = self.model.text_model(input_ids=ids, attention_mask=mask).pooler_output
        return rows

    def save(self, folder: Path) -> None:
        """Writes model, tokenizer and preprocessing, config.json last: a folder with that file is complete."""
        temporary = folder / ".model.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        with explain_errors(folder / "config.json"):
            temporary.mkdir(parents=True)
            # The tokenizer remembers truncation and padding of earlier calls, and a resumed training makes other calls.
            if (rust := getattr(self.tokenizer, "backend_tokenizer", None)) is not None:
                rust.no_truncation()
                rust.no_padding()
            save_model(self.model, self.tokenizer, self.preprocessing, temporary)
            readable_as_usual(temporary)
            for name in sorted(os.listdir(temporary), key=lambda name: name == "config.json"):
                to_disk(temporary / name)  # the checkpoint is deleted afterwards
                os.replace(temporary / name, folder / name)
            temporary.rmdir()
            to_disk(folder)


def digests(training: Training) -> dict[str, str]:
    """Returns digests of the checkpoints that a training starts from, by the names of their settings."""
    if isinstance(training, CaptionTraining):
        return {name: resolve(getattr(training, name)).digest for name in ("vision", "language")}
    assert isinstance(training, ClipTraining)
    architecture, digests = ARCHITECTURES.get(training.model), {}
    if architecture is None:
        try:
            path, digests["model"] = resolve(training.model, open_clip=True)
        except ModelError as error:
            raise ModelError(f"{error}; {unknown_message('architecture', training.model, ARCHITECTURES)}") from error
        kind = _open_clip_kind(path) or model_type(training.model)
        if kind not in (*_WHOLE, *_IMAGE_TOWERS):
            kinds = ", ".join((*_WHOLE, *_IMAGE_TOWERS))
            raise ModelError(f"{training.model} is a {kind!r} model; only checkpoints of {kinds} can be trained")
        bare = kind in _IMAGE_TOWERS
    else:
        kind, bare = architecture.kind, architecture.text is None
    if training.text and not bare and not takes_text(training.model):
        raise ModelError(f"{training.model} has a text tower of its own: leave --text out")
    if training.freeze_text and kind == RESNET:
        raise ModelError(f"{training.model}: the text tower of a ResNet cannot be frozen: leave --freeze-text out")
    if not training.text and (bare or (training.freeze_text and architecture is not None)):
        what = "has no text tower" if bare else "starts from random weights, so there is nothing to freeze"
        raise ModelError(f"{training.model} {what}: name a pretrained text encoder (--text minilm)")
    return digests | ({"text": resolve(training.text).digest} if training.text else {})


def needs_tokenizer(training: Training) -> bool:
    """Whether the model is a CLIP from scratch, which has no tokenizer yet."""
    return isinstance(training, ClipTraining) and training.model in ARCHITECTURES and not training.text


def learn_tokenizer(captions: Iterable[str], training: ClipTraining, folder: Path) -> None:
    """Learns a tokenizer like CLIP's from captions and saves it: lower-cased, up to 49,408 pieces of words."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    text = ARCHITECTURES[training.model].text
    assert text is not None, "`digests` refuses it"
    with explain_errors(folder):
        clip_tokenizer(captions, text["max_position_embeddings"], words=OPENAI_WORDS).save_pretrained(temporary)
        os.replace(temporary, folder)


def build(training: ClipTraining, *, tokenizer: Path | None = None) -> Towers:
    """Builds the model before its first step, float32 on the CPU. A CLIP from scratch needs a tokenizer's folder."""
    import torch

    digests(training)
    torch.manual_seed(training.seed)
    architecture = ARCHITECTURES.get(training.model)
    if training.text:
        towers = _with_text_encoder(architecture, training.model, training.text)
    elif architecture is None:
        towers = _checkpoint(training.model)
    else:
        assert tokenizer is not None, "a CLIP from scratch needs a tokenizer"
        towers = _from_scratch(architecture, tokenizer)
    if training.freeze_text:
        towers.model.text_model.requires_grad_(False)
    depthwise_in_float32(towers.model)
    return towers


def depthwise_in_float32(model: torch.nn.Module) -> None:
    """Makes depthwise convolutions compute in float32, channels last, on a CPU.

    PyTorch 2.13 has no fast bf16 kernel for their backward pass. This halves the training time of a `convnet`.
    """
    import torch

    class Depthwise(torch.nn.Conv2d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            if input.device.type != "cpu":
                return super().forward(input)
            with torch.autocast("cpu", enabled=False):
                return super().forward(input.float().contiguous(memory_format=torch.channels_last))

    for one in model.modules():
        if type(one) is torch.nn.Conv2d and one.groups == one.in_channels > 1:
            one.__class__ = Depthwise


def needs_whole_batch(model: torch.nn.Module) -> bool:
    """Whether a model normalises over the batch, so that cutting it changes the result."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return any(isinstance(one, _BatchNorm) and one.weight.requires_grad for one in model.modules())


def _checkpoint(model: str) -> Towers:
    import torch
    from transformers import AutoModel

    path = resolve(model, open_clip=True).path
    if _open_clip_kind(path):
        with tempfile.TemporaryDirectory() as folder:
            convert(str(path), Path(folder) / "model")
            return _checkpoint(str(Path(folder) / "model"))
    network = load_whole(AutoModel, path, model, expected="a whole CLIP", dtype=torch.float32)
    tokenizer = load_tokenizer_in(path, network=network)
    length = longest_text(network.config.text_config, tokenizer)
    return Towers(model=network, tokenizer=tokenizer, length=length, **image_settings(model))


def _open_clip_kind(path: Path) -> str | None:
    """The `model_type` that a folder in open_clip's layout gets when it is converted; None for other folders."""
    if (path / "config.json").is_file() or not (path / "open_clip_config.json").is_file():
        return None
    names = {name for file in path.glob("*.safetensors") for name in shapes_in(file)}
    return RESNET if "visual.attnpool.c_proj.weight" in names else "clip"


def image_settings(model: str) -> dict[str, Any]:
    """Returns how a checkpoint prepares images: `side`, `steps` and `preprocessing` of `Towers`."""
    path, steps = resolve(model).path, load_preprocess(model)
    width, height = steps.crop or steps.size or (steps.shorter or 0, steps.shorter or 0)
    if width != height or not width:
        raise ModelError(f"{model} takes images of {width} x {height} pixels; training takes square ones")
    file = next(one for one in (path / _PREPROCESSING, path / "processor_config.json") if one.is_file())
    config = object_in(file)
    return {"side": width, "steps": steps, "preprocessing": config.get("image_processor", config)}


def _fresh(model: Any, tokenizer: Any, length: int, images: int | str) -> Towers:
    """A new model with the preprocessing of a checkpoint, or OpenAI's for a side in pixels."""
    tokenizer.model_max_length = length
    if isinstance(images, str):
        return Towers(model=model, tokenizer=tokenizer, length=length, **image_settings(images))
    looks = image_processor("CLIPImageProcessor", images, crop=True)
    steps = preprocess_of(looks, "the new model")
    return Towers(model=model, tokenizer=tokenizer, side=images, steps=steps, preprocessing=looks, length=length)


def _from_scratch(architecture: Architecture, folder: Path) -> Towers:
    from transformers import CLIPConfig, CLIPModel

    config_of: Any = CLIPConfig
    cls: Any = CLIPModel
    if architecture.kind == RESNET:
        from tamis.models.clip_resnet import ClipResNet, ClipResNetConfig

        config_of, cls = ClipResNetConfig, ClipResNet
    assert architecture.text is not None
    tokenizer = load_tokenizer_in(folder)
    end = tokenizer.eos_token_id
    # transformers pools at the end token, but with eos_token_id 2 (legacy) at the largest id.
    if end == 2 or tokenizer("a").input_ids[-1] != end:
        raise ModelError(f"the tokenizer in {folder} ends texts with {tokenizer.eos_token!r}, unlike a CLIP's")
    marks = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": end,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = config_of(
        text_config={**architecture.text, **marks, "projection_dim": architecture.size},
        vision_config={**architecture.vision, "projection_dim": architecture.size},
        projection_dim=architecture.size,
    )
    return _fresh(cls(config), tokenizer, architecture.text["max_position_embeddings"], architecture.side)


def _with_text_encoder(architecture: Architecture | None, image: str, text: str) -> Towers:
    """An image tower, from scratch or a checkpoint, with a pretrained text encoder."""
    import torch
    from transformers import (
        AutoConfig,
        AutoModel,
        CLIPVisionModel,
        VisionTextDualEncoderConfig,
        VisionTextDualEncoderModel,
    )

    folder = transformer_folder(text)
    encoder = load_whole(AutoModel, folder, text, expected="a text encoder", unneeded=is_pooler, dtype=torch.float32)
    kind = encoder.config.model_type
    if kind not in _LIKE_BERT:
        raise ModelError(f"{text} is a {kind!r} model; a text tower must be one of {', '.join(_LIKE_BERT)}")
    tokenizer = load_tokenizer_in(folder, network=encoder)
    take_mean(encoder)
    # CLIP's 77 tokens hold nearly every caption; a sentence encoder's 512 would let one alt-text slow a whole batch.
    length = min(77, longest_text(encoder.config, tokenizer))
    if architecture is None:  # some checkpoints lack the pooler, which then is random, as transformers makes it
        tower = load_whole(
            AutoModel, resolve(image).path, image, expected="an image tower", unneeded=is_pooler, dtype=torch.float32
        )
        configs = (tower.config, encoder.config)
        config = VisionTextDualEncoderConfig.from_vision_text_configs(*configs, projection_dim=_JOINED)
        model = VisionTextDualEncoderModel(config, vision_model=tower, text_model=encoder)
        return _fresh(model, tokenizer, length, image)
    vision = AutoConfig.for_model(architecture.kind, **architecture.vision)
    if not hasattr(vision, "hidden_size"):
        vision.hidden_size = vision.hidden_sizes[-1]  # VisionTextDualEncoderModel reads this name
    config = VisionTextDualEncoderConfig.from_vision_text_configs(
        vision, encoder.config, projection_dim=architecture.size
    )
    vision = config.vision_config
    plain = vision.model_type == "clip_vision_model"
    auto: Any = AutoModel
    tower = CLIPVisionModel(vision) if plain else auto.from_config(vision, trust_remote_code=False)
    model = VisionTextDualEncoderModel(config, vision_model=tower, text_model=encoder)
    if architecture.kind == "dpt":
        begin_as_mean(model.vision_model)
    return _fresh(model, tokenizer, length, architecture.side)


def begin_as_mean(network: Any) -> None:
    """Initialises a one-layer `DPTModel` on a residual network so that it averages the last feature map.

    The model returns only its first token. With transformers' initialisation hardly anything reaches that token for
    hundreds of steps (3,600 photographs, 15,000 samples: AUC .63 instead of .79). Here the token starts at 0, attends
    to all patches equally (queries of 0) and takes their values unchanged. All weights can still learn.
    """
    import torch

    (layer,) = network.encoder.layer
    attention = layer.attention
    with torch.no_grad():
        for zero in (network.embeddings.cls_token, network.embeddings.position_embeddings):
            zero.zero_()
        for silent in (attention.attention.query, layer.output.dense):
            silent.weight.zero_()
            silent.bias.zero_()
        for through in (attention.attention.value, attention.output.dense, network.pooler.dense):
            torch.nn.init.eye_(through.weight)
            through.bias.zero_()


def take_mean(encoder: Any) -> None:
    """Makes a BERT's pooled output the mean of its tokens' states: adds a layer and changes the pooler.

    Sentence encoders average over all tokens, but transformers' dual encoder takes BERT's pooled output, which sees
    only the first token. The new layer attends to all tokens equally (queries and keys of 0), adds 1,000 times their
    mean to each token's state, normalises, and has no feed-forward network. The pooler returns tanh(x / 4).
    """
    import torch

    layers = encoder.encoder.layer
    layer = copy.deepcopy(layers[-1])
    width = encoder.config.hidden_size
    for name in ("layer_idx", "layer_index"):
        if hasattr(layer.attention.self, name):
            setattr(layer.attention.self, name, len(layers))
    if encoder.pooler is None:
        raise ModelError(f"the text encoder ({encoder.config.model_type}) has no pooler")
    with torch.no_grad():
        for one in layer.modules():
            if isinstance(one, torch.nn.Linear):
                one.weight.zero_()
                one.bias.zero_()
            elif isinstance(one, torch.nn.LayerNorm):
                one.weight.fill_(1)
                one.bias.zero_()
        layer.attention.self.value.weight.copy_(torch.eye(width))
        layer.attention.output.dense.weight.copy_(torch.eye(width) * _MEAN_OVER_OWN)
        encoder.pooler.dense.weight.copy_(torch.eye(width) / 4)
        encoder.pooler.dense.bias.zero_()
    layers.append(layer)
    encoder.config.num_hidden_layers = len(layers)


def clip_tokenizer(texts: Iterable[str], length: int, words: int = 2000) -> Any:
    """A `CLIPTokenizer` of at most `words` words: lower-cased, byte-level pair encoding."""
    from tokenizers import Tokenizer, models, trainers
    from transformers import CLIPTokenizer

    blank = CLIPTokenizer()
    pairs = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    pairs.normalizer = blank.backend_tokenizer.normalizer
    pairs.pre_tokenizer = blank.backend_tokenizer.pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=words,
        initial_alphabet=byte_letters(),
        # Each byte also as the end of a word, so that every word can be encoded.
        special_tokens=[*(f"{letter}</w>" for letter in byte_letters()), _BOS, _EOS],
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    pairs.train_from_iterator(texts, trainer)
    vocabulary, merges = vocabulary_and_merges(pairs)
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=length)


def vocabulary_and_merges(tokenizer: Any) -> tuple[dict[str, int], Any]:
    """Returns token ids and merges of a trained byte-pair tokenizer in the form that transformers takes."""
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def byte_letters() -> list[str]:
    """Returns the letters that byte-level tokenizers use for the 256 bytes."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())
