"""The model that is trained: two towers of `transformers`, made from a configuration or gone on from a checkpoint.

What is saved loads with stock `transformers`: a `CLIPModel`, or where a pretrained encoder of texts stands beside an
image tower from scratch, a `VisionTextDualEncoderModel`.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from tamis.errors import ModelError, nearest
from tamis.models.clip import DUAL, pooled
from tamis.models.folder import object_in
from tamis.models.loading import from_settings, is_pooler, load_tokenizer_in, load_whole, model_type, transformer_folder
from tamis.models.preprocess import load_preprocess
from tamis.models.quiet import no_progress_bar
from tamis.models.reference import resolve
from tamis.models.texts.token_batches import longest_text, padded
from tamis.storage import disk_errors, explained, to_disk
from tamis.store.targets import readable_as_usual
from tamis.train.scales import ARCHITECTURES, Architecture, ClipTraining

if TYPE_CHECKING:
    import torch

_MEAN = (0.48145466, 0.4578275, 0.40821073)  # OpenAI's
_STD = (0.26862954, 0.26130258, 0.27577711)

#: Encoders of texts whose layers are BERT's, to which a layer that takes the mean can be added.
_LIKE_BERT = ("bert", "roberta", "xlm-roberta", "camembert")

#: How much more than a token's own state the mean of all counts in that layer.
_MEAN_OVER_OWN = 1000.0

_WORDS = 49_408  # of CLIP's vocabulary, its two marks included

_PREPROCESSING = "preprocessor_config.json"


@dataclass(frozen=True, kw_only=True)
class Towers:
    """A model in training, and how images and captions reach it.

    Attributes:
        model: the `CLIPModel` or `VisionTextDualEncoderModel`.
        tokenizer: of its captions.
        side: of its images, in pixels.
        resample: how they are resized.
        scale, mean, std: pixel values become (value * scale - mean) / std, per channel.
        preprocessing: the file that says all this, as it is saved beside the weights.
        length: most tokens of a caption.
    """

    model: Any
    tokenizer: Any
    side: int
    resample: Image.Resampling
    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    preprocessing: str
    length: int

    @property
    def device(self) -> torch.device:
        found: torch.device = self.model.logit_scale.device
        return found

    def images(self, pixels: torch.Tensor) -> torch.Tensor:
        """Embeds pictures, (b, side, side, 3) uint8 on the device: (b, d), not normalised."""
        import torch

        values = pixels.permute(0, 3, 1, 2).float()
        mean, std = (torch.tensor(three, device=pixels.device).view(1, 3, 1, 1) for three in (self.mean, self.std))
        found: torch.Tensor = pooled(self.model.get_image_features(pixel_values=(values * self.scale - mean) / std))
        return found

    def tokens(self, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns ids and mask, (b, longest) each, on the CPU."""
        rows = self.tokenizer(list(captions), truncation=True, max_length=self.length)["input_ids"]
        return padded(rows, self.tokenizer.pad_token_id, "cpu")

    def texts(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Embeds captions: (b, d), not normalised."""
        found: torch.Tensor = pooled(self.model.get_text_features(input_ids=ids, attention_mask=mask))
        return found

    def states(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Returns what the text tower makes of captions before the projection: (b, width)."""
        found: torch.Tensor = self.model.text_model(input_ids=ids, attention_mask=mask).pooler_output
        return found

    def save(self, folder: Path) -> None:
        """Writes the model, its tokenizer and its preprocessing into a folder.

        They are written beside it first and then moved, `config.json` last: a folder with one is whole.

        Raises:
            DiskFullError, RunError: it cannot be written.
        """
        temporary = folder / ".model.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        with explained(folder / "config.json"), disk_errors():
            temporary.mkdir(parents=True)
            try:
                with no_progress_bar():
                    self.model.save_pretrained(temporary)
                # Calls leave their truncation and padding in the tokenizer, and a resumed training makes other calls.
                if (rust := getattr(self.tokenizer, "backend_tokenizer", None)) is not None:
                    rust.no_truncation()
                    rust.no_padding()
                self.tokenizer.save_pretrained(temporary)
                (temporary / _PREPROCESSING).write_text(self.preprocessing, encoding="utf-8")
                readable_as_usual(temporary)
                for name in sorted(os.listdir(temporary), key=lambda name: name == "config.json"):
                    if (temporary / name).is_file():
                        to_disk(temporary / name)  # the checkpoint goes once this is there
                    os.replace(temporary / name, folder / name)
                to_disk(folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)


def pretrained(training: ClipTraining) -> dict[str, str]:
    """Returns the checkpoints that a training starts from, by what they are for, with their digests.

    Raises:
        ModelError: one is not here; an architecture is unknown or lacks a text tower, or a checkpoint is given a
            second one; a text tower from scratch is to be frozen.
    """
    found = ARCHITECTURES.get(training.model)
    if found is None and training.text:
        raise ModelError(f"{training.model} is a checkpoint and brings its text tower: leave --text out")
    if found is not None and found.text is None and not training.text:
        raise ModelError(
            f"{training.model} is an image tower alone: name an encoder of texts to stand beside it (--text minilm), "
            "or another architecture"
        )
    if found is not None and not training.text and training.freeze_text:
        raise ModelError(
            f"{training.model} begins from nothing, and a text tower that knows nothing would be kept as it is: name a "
            "pretrained one (--text minilm), or leave --freeze-text out"
        )
    digests = {"text": resolve(training.text).digest} if training.text else {}
    if found is None:
        try:
            digests["model"] = resolve(training.model).digest
        except ModelError as error:
            known = ", ".join(ARCHITECTURES)
            guess = nearest(training.model, ARCHITECTURES)
            raise ModelError(f"{error}. It is not an architecture either{guess}; known: {known}") from error
    return digests


def needs_tokenizer(training: ClipTraining) -> bool:
    """Tells whether the model is a CLIP from scratch, which brings no tokenizer."""
    return training.model in ARCHITECTURES and not training.text


def learn_tokenizer(captions: Iterable[str], training: ClipTraining, folder: Path) -> None:
    """Learns CLIP's kind of tokenizer from captions and saves it: lower-cased, up to 49,408 pieces of words."""
    from tamis.train.tokenizer import clip_tokenizer

    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    with explained(folder):
        clip_tokenizer(captions, _text_length(ARCHITECTURES[training.model]), words=_WORDS).save_pretrained(temporary)
        os.replace(temporary, folder)


def build(training: ClipTraining, *, tokenizer: Path | None = None) -> Towers:
    """Returns the model at its start, on the CPU, in float32.

    Args:
        training: says which.
        tokenizer: the folder of the one that a CLIP from scratch takes.

    Raises:
        ModelError: a checkpoint is not here or of another kind, see also `pretrained`.
    """
    import torch

    pretrained(training)
    torch.manual_seed(training.seed)
    found = ARCHITECTURES.get(training.model)
    if found is None:
        towers = _checkpoint(training)
    elif training.text:
        towers = _beside_text(found, training.text)
    else:
        assert tokenizer is not None, "a CLIP from scratch is given a tokenizer"
        towers = _from_scratch(found, tokenizer)
    if training.freeze_text:
        towers.model.text_model.requires_grad_(False)
    depthwise_in_float32(towers.model)
    return towers


def depthwise_in_float32(model: torch.nn.Module) -> None:
    """Makes the depthwise convolutions of a model compute in float32 on a CPU, pixel by pixel, channels last.

    Under bf16 autocast their backward pass takes 56 % of all time of a `convnet`'s training (PyTorch 2.13): it has no
    fast bf16 kernel. In float32 with the channels last it is 1.3 to 4.6 times as fast by size, and the training twice.
    Weights, their names and what is saved stay as they are; on a GPU nothing changes.
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


def _checkpoint(training: ClipTraining) -> Towers:
    from transformers import AutoModel

    model = training.model
    path = resolve(model).path
    kind = model_type(model)
    if kind not in ("clip", DUAL):
        raise ModelError(f"{model} is a {kind!r} model; its training goes on for 'clip' and {DUAL!r} checkpoints only")
    import torch

    network = load_whole(AutoModel, path, model, expected="a whole CLIP", dtype=torch.float32)
    tokenizer = load_tokenizer_in(path, network=network)
    said = load_preprocess(model)
    width, height = said.crop or said.size or (said.shorter or 0, said.shorter or 0)
    if width != height or not width:
        raise ModelError(f"{model} takes images of {width} x {height} pixels; training takes square ones")
    file = next(one for one in (path / _PREPROCESSING, path / "processor_config.json") if one.is_file())
    config = object_in(file)
    return Towers(
        model=network, tokenizer=tokenizer, side=width, resample=said.resample, scale=said.scale, mean=said.mean,
        std=said.std, preprocessing=json.dumps(config.get("image_processor", config), indent=2) + "\n",
        length=longest_text(network.config.text_config, tokenizer),
    )  # fmt: skip


def _fresh(model: Any, tokenizer: Any, side: int, length: int) -> Towers:
    """Returns a model from scratch, with OpenAI's preprocessing."""
    tokenizer.model_max_length = length
    return Towers(
        model=model, tokenizer=tokenizer, side=side, resample=Image.Resampling.BICUBIC, scale=1 / 255, mean=_MEAN,
        std=_STD, preprocessing=_preprocessing(side), length=length,
    )  # fmt: skip


def _preprocessing(side: int) -> str:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        write_preprocessing(Path(folder), kind="CLIPImageProcessor", side=side, crop=True, mean=_MEAN, std=_STD)
        return (Path(folder) / _PREPROCESSING).read_text(encoding="utf-8")


def _text_length(found: Architecture) -> int:
    assert found.text is not None, "`pretrained` refuses it"
    return int(found.text["max_position_embeddings"])


def _from_scratch(found: Architecture, folder: Path) -> Towers:
    from transformers import CLIPConfig, CLIPModel

    assert found.text is not None
    tokenizer = load_tokenizer_in(folder)
    if tokenizer.pad_token_id is None or tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer in {folder} lacks a mark for padding or for the end: name another one")
    end = tokenizer.eos_token_id
    # transformers takes the state at the end mark; where its number is 2, that at the highest number, as OpenAI's are.
    if end == 2 or tokenizer("a").input_ids[-1] != end:
        what = "has the number 2, which a CLIPModel takes for another one" if end == 2 else "does not end its texts"
        raise ModelError(
            f"the end mark {tokenizer.eos_token!r} of the tokenizer in {folder} {what}: name a CLIP's tokenizer, or "
            "leave --tokenizer out and one is learned"
        )
    marks = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": end,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = CLIPConfig(
        text_config={**found.text, **marks, "projection_dim": found.size},
        vision_config={**found.vision, "projection_dim": found.size},
        projection_dim=found.size,
    )
    return _fresh(CLIPModel(config), tokenizer, found.side, _text_length(found))


def _beside_text(found: Architecture, text: str) -> Towers:
    """Returns an image tower from scratch beside a pretrained encoder of texts."""
    from transformers import AutoConfig, AutoModel, VisionTextDualEncoderModel

    folder = transformer_folder(text)
    encoder = load_whole(AutoModel, folder, text, expected="an encoder of texts", unneeded=is_pooler)
    kind = encoder.config.model_type
    if kind not in _LIKE_BERT:
        raise ModelError(f"{text} is a {kind!r} model; a text tower beside an image tower is {' or '.join(_LIKE_BERT)}")
    tokenizer = load_tokenizer_in(folder, network=encoder)
    take_mean(encoder)
    vision = AutoConfig.for_model(found.kind, **found.vision)
    if not hasattr(vision, "hidden_size"):
        vision.hidden_size = vision.hidden_sizes[-1]  # what VisionTextDualEncoderModel asks an image tower for
    config = _dual_config(vision, encoder.config, found.size)
    model = VisionTextDualEncoderModel(config, vision_model=_vision(config.vision_config), text_model=encoder)
    if found.kind == "dpt":
        begin_as_mean(model.vision_model)
    # CLIP's 77 tokens hold nearly every caption; a sentence encoder's 512 would let one alt-text slow a whole batch.
    return _fresh(model, tokenizer, found.side, min(77, longest_text(encoder.config, tokenizer)))


def _dual_config(vision: Any, text: Any, size: int) -> Any:
    from transformers import VisionTextDualEncoderConfig

    return VisionTextDualEncoderConfig.from_vision_text_configs(vision, text, projection_dim=size)


def _vision(config: Any) -> Any:
    from transformers import AutoModel, CLIPVisionModel

    return CLIPVisionModel(config) if config.model_type == "clip_vision_model" else from_settings(AutoModel, config)


def begin_as_mean(network: Any) -> None:
    """Makes a `DPTModel` of one layer on a residual network begin as the mean over the places of its last features.

    The first token is all that the model returns. As transformers draws its weights, hardly anything reaches that token
    for hundreds of steps (on 3,600 photographs, 15,000 samples: AUC .63 against .79 with this, and .80 of the
    residual network with plain average pooling). Here it begins at 0, looks at all places alike (queries of 0) and
    takes their values as they are; everything can still be learned.
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


def needs_whole_batch(model: torch.nn.Module) -> bool:
    """Tells whether a model normalises over the batch, so that cutting one up changes what it learns."""
    from torch.nn.modules.batchnorm import _BatchNorm

    return any(isinstance(one, _BatchNorm) and one.weight.requires_grad for one in model.modules())


def take_mean(encoder: Any) -> None:
    """Makes a BERT whose pooled output is the mean of its tokens' states, by a layer more and another pooler.

    Sentence encoders average the states of all tokens; transformers' dual encoder takes BERT's pooled output, which
    looks at the first token alone. The new layer attends to all tokens alike (its queries and keys are 0), so what it
    adds to each token's state is their mean, and it adds it a thousand times; its normalisation then leaves the mean,
    centred and of unit variance, and of the token's own state about a thousandth. It has no feed-forward part. The
    pooler passes on tanh(x / 4) of it. All of this is within the class that stock transformers loads.
    """
    import copy

    import torch

    layers = encoder.encoder.layer
    layer = copy.deepcopy(layers[-1])
    width = encoder.config.hidden_size
    for name in ("layer_idx", "layer_index"):
        if hasattr(layer.attention.self, name):
            setattr(layer.attention.self, name, len(layers))
    if encoder.pooler is None:
        raise ModelError(f"the encoder of texts ({encoder.config.model_type}) has no pooler")
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


def write_preprocessing(
    out: Path, *, kind: str, side: int, crop: bool, mean: Sequence[float], std: Sequence[float]
) -> None:
    """Writes preprocessor_config.json: resize to `side`, crop the centre or squash, scale, normalise."""
    exact = {"height": side, "width": side}
    settings = {
        "image_processor_type": kind,
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": side} if crop else exact,
        "resample": 3,  # bicubic
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
        "image_std": list(std),
    }
    if crop:
        settings |= {"do_center_crop": True, "crop_size": exact}
    (out / "preprocessor_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
