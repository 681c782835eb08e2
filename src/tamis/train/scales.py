"""Settings to train a CLIP or a captioner: DataComp's scales, small ones of our own, and the architectures."""

from __future__ import annotations

import math
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from tamis.core.compute import Precision
from tamis.core.errors import at_least_one, unknown_message
from tamis.models.loading import RESNET
from tamis.train.loop import Settings

#: The commit of mlfoundations/open_clip (2026, after its release 3.3.0) whose option names `open_clip_command` writes.
OPEN_CLIP = "000ca0a"

_LARGEST = 1e30  # larger settings overflow float32 in AdamW


@dataclass(frozen=True, kw_only=True)
class Training(ABC):
    """The settings that affect the resulting model. `step.How` has the others: device, pieces, logging."""

    samples: Annotated[int, "Pairs seen, repeats counted."]
    batch: Annotated[int, "Pairs in a batch, of all processes together; a CLIP compares them with each other."]
    learning_rate: Annotated[float, "AdamW's peak learning rate; it falls to 0 along a half cosine."] = 5e-4
    warmup: Annotated[int, "Steps over which the learning rate rises."] = 500
    beta1: Annotated[float, "AdamW beta1."] = 0.9
    beta2: Annotated[float, "AdamW beta2."] = 0.98
    epsilon: Annotated[float, "AdamW epsilon."] = 1e-6
    weight_decay: Annotated[float, "Weight decay, on matrices only."] = 0.2
    clip_norm: Annotated[float | None, "Largest norm of the gradients; longer ones are scaled down."] = None
    crop: Annotated[float, "Smallest share of an image that a random crop keeps."] = 0.9
    seed: Annotated[int, "Seed of the initial weights, the order and the crops."] = 0
    hold_out: Annotated[float, "Share of the pairs to hold out: their loss shows overfitting."] = 0.0
    keep_best: Annotated[bool, "Keep the model with the lowest held-out loss, not the last one."] = False

    def __post_init__(self) -> None:
        at_least_one(samples=self.samples)
        for name in ("learning_rate", "epsilon", "clip_norm", "crop"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, got {value}")
        most = dict.fromkeys(("learning_rate", "epsilon", "clip_norm", "weight_decay"), _LARGEST)
        most |= {"beta1": 1 - 1e-9, "beta2": 1 - 1e-9, "crop": 1.0, "hold_out": 0.5, "seed": (1 << 62) - 1}
        for name, largest in most.items():
            value = getattr(self, name)
            if value is not None and not 0 <= value <= largest:
                raise ValueError(f"{name} must be from 0 to {largest:.9g}, got {value}")
        if self.batch < 2 or self.warmup < 0:  # a pair is compared with the others of its batch
            raise ValueError(f"batch must be at least 2 and warmup at least 0, got {self.batch} and {self.warmup}")
        if self.keep_best and not self.hold_out:
            raise ValueError("keep_best needs held-out pairs to choose by: set hold_out (--hold-out 0.05)")

    @property
    @abstractmethod
    def model(self) -> str:
        """What is trained, for messages."""

    @property
    def steps(self) -> int:
        """Batches needed to see all samples."""
        return math.ceil(self.samples / self.batch)

    @property
    def loop(self) -> Settings:
        """How the loop optimises: open_clip's AdamW and schedule. `watch.Watch` writes the log."""
        return Settings(
            steps=self.steps, optimiser="adamw", learning_rate=self.learning_rate, betas=(self.beta1, self.beta2),
            epsilon=self.epsilon, weight_decay=self.weight_decay, warmup=self.warmup, floor=0.0,
            clip_norm=self.clip_norm, report_every=None,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ClipTraining(Training):
    """How to train a CLIP."""

    model: Annotated[str, "An architecture such as ViT-B-32, or a checkpoint to start from."] = "ViT-B-32"
    text: Annotated[str, "A pretrained text encoder in place of the text tower, such as minilm."] = ""
    freeze_text: Annotated[bool, "Train only the projection of the text tower."] = False


@dataclass(frozen=True, kw_only=True)
class CaptionTraining(Training):
    """How to train a captioner: a vision tower and a language model that attends to it.

    The defaults are those of ICC's main experiment. It names checkpoints, batch, rate and a cosine schedule; the rest
    are the defaults of `transformers`' Trainer, and the whole image is shown.

    Source: Yanuka et al. 2024 (ICC), section 3.1 and appendix A.8.
    """

    vision: Annotated[str, "The vision tower: a checkpoint, such as a Swin, a ViT or a CLIP."] = (
        "microsoft/swin-base-patch4-window7-224-in22k"
    )
    language: Annotated[str, "The language model: a checkpoint of a GPT-2 or a BERT."] = "openai-community/gpt2"
    batch: int = 100
    learning_rate: float = 2e-5
    warmup: int = 0
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip_norm: float | None = 1.0
    crop: float = 1.0

    @property
    def model(self) -> str:
        """Both models, for messages."""
        return f"{self.vision} with {self.language}"


#: DataComp's scales (`scale_configs.py`; Gadre et al. 2023, appendix; where it names none, open_clip's beta2 0.98,
#: epsilon 1e-6 and weight decay 0.2), and `lab`: minutes on one core, for small pools such as the lab's.
SCALES: Mapping[str, ClipTraining] = {
    "lab": ClipTraining(
        model="resnet-64", text="minilm", freeze_text=True, samples=92_160, batch=256, learning_rate=2e-3, warmup=30
    ),
    "debug": ClipTraining(samples=128_000, batch=1024, learning_rate=1e-4),
    "small": ClipTraining(samples=12_800_000, batch=4096),
    "medium": ClipTraining(samples=128_000_000, batch=4096),
    "large": ClipTraining(samples=1_280_000_000, batch=8192, model="ViT-B-16"),
    "xlarge": ClipTraining(
        samples=12_800_000_000, batch=90_112, learning_rate=1e-3, warmup=10_000, model="ViT-L-14", beta2=0.95
    ),
}

#: The captioners of `--scale` and `tamis bench --captioner`: ICC's (one pass over the 500,000 pairs of its largest
#: subsets; it does not say how many it trains for), and `lab`: minutes on one core, for the lab's pools.
CAPTIONERS: Mapping[str, CaptionTraining] = {
    "lab": CaptionTraining(
        vision="lab/clip", language="lab/language-model", samples=20_000, learning_rate=1e-3, warmup=20
    ),
    "icc": CaptionTraining(samples=500_000),
}


def captioner_at_scale(scale: str, **overrides: Any) -> CaptionTraining:
    """Returns a captioner's training with some settings changed; None leaves a setting unchanged."""
    if scale not in CAPTIONERS:
        raise ValueError(unknown_message("captioner", scale, CAPTIONERS))
    return replace(CAPTIONERS[scale], **{name: value for name, value in overrides.items() if value is not None})


def takes_text(model: str) -> bool:
    """Whether a model is an image tower to which a text encoder can be joined."""
    return model in ARCHITECTURES and ARCHITECTURES[model].kind != RESNET


def at_scale(scale: str, **overrides: Any) -> ClipTraining:
    """Returns a scale's training with some settings changed; None leaves a setting unchanged.

    Checkpoints and RN50 have text towers of their own, so for them the scale's `text` is dropped.
    """
    if scale not in SCALES:
        raise ValueError(unknown_message("scale", scale, SCALES))
    changes = {name: value for name, value in overrides.items() if value is not None}
    if not takes_text(changes.get("model", "ViT-B-32")):
        changes = {"text": "", "freeze_text": False} | changes
    return replace(SCALES[scale], **changes)


def _tower(width: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_act": "gelu",  # as open_clip trains; OpenAI's own checkpoints have quick_gelu
        **more,
    }


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """A model that can be trained from scratch."""

    kind: str  # the `model_type` of the image tower in transformers
    side: int  # image side in pixels
    vision: Mapping[str, Any]  # configuration of the image tower
    text: Mapping[str, Any] | None  # configuration of the text tower; None: a pretrained one must be named
    size: int  # dimension of the embeddings
    open_clip: str | None = None  # its name in open_clip; None if open_clip lacks it


def _vit(name: str, patch: int, width: int, layers: int, text: int, size: int) -> Architecture:
    return Architecture(
        kind="clip_vision_model",
        side=224,
        vision=_tower(width, layers, width // 64, patch_size=patch, image_size=224),
        text=_tower(text, 12, text // 64, max_position_embeddings=77),
        size=size,
        open_clip=name,
    )


def _resnet(side: int) -> Architecture:
    """A residual network (He et al. 2016, arXiv:1512.03385) of four stages, a basic block each, and an attention pool.

    The ResNet of `transformers` returns (b, c, 1, 1), which its dual encoder cannot project. Its DPT (Ranftl et al.
    2021, arXiv:2103.13413) puts a transformer on a ResNet and returns (b, c). We use one layer of it, see
    `towers.begin_as_mean`.
    """
    widths = [32, 64, 128, 256]  # multiples of 32: bf16 products on CPUs are two thirds faster than with 40, 80, ...
    backbone = {
        "model_type": "resnet",
        "embedding_size": widths[0],
        "hidden_sizes": widths,
        "depths": [1, 1, 1, 1],
        "layer_type": "basic",
        "out_features": ["stage2", "stage3", "stage4"],
    }
    return Architecture(
        kind="dpt",
        side=side,
        vision={
            "is_hybrid": True,
            "backbone_config": backbone,
            "backbone_featmap_shape": [1, widths[-1], side // 32, side // 32],
            "image_size": side,
            "patch_size": 32,
            "hidden_size": widths[-1],
            "intermediate_size": widths[-1],
            "num_hidden_layers": 1,
            "num_attention_heads": 8,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "pooler_output_size": widths[-1],
            "pooler_act": "linear",
        },
        text=None,
        size=128,
    )


#: CLIP's ResNet-50 (Radford et al. 2021, section 2.4 and table 19).
_RN50 = Architecture(
    kind=RESNET,
    side=224,
    vision={"hidden_size": 64, "stages": [3, 4, 6, 3], "image_size": 224, "num_attention_heads": 32},
    text=_tower(512, 12, 8, max_position_embeddings=77),
    size=1024,
    open_clip="RN50",
)

#: open_clip's architectures, with open_clip's names (`model_configs`), and small ones of our own.
ARCHITECTURES: Mapping[str, Architecture] = {
    "ViT-B-32": _vit("ViT-B-32", 32, 768, 12, 512, 512),
    "ViT-B-16": _vit("ViT-B-16", 16, 768, 12, 512, 512),
    "ViT-L-14": _vit("ViT-L-14", 14, 1024, 24, 768, 768),
    "RN50": _RN50,
    "ViT-tiny": Architecture(
        kind="clip_vision_model",
        side=64,
        vision=_tower(192, 4, 4, patch_size=8, image_size=64),
        text=_tower(128, 4, 4, max_position_embeddings=77),
        size=128,
    ),
    "convnet": Architecture(
        kind="convnext",
        side=64,
        vision={
            "hidden_sizes": [32, 64, 128, 256],
            "depths": [1, 2, 2, 1],
            "patch_size": 4,
            # ConvNeXt's 1e-6 suits hundreds of epochs; in a few, blocks would stay near 0.
            "layer_scale_init_value": 0.1,
        },
        text=None,
        size=128,
    ),
    "resnet-64": _resnet(64),
    "resnet-96": _resnet(96),
}


def open_clip_command(
    training: ClipTraining, shards: str, *, precision: Precision, processes: int = 1, pieces: int = 1
) -> str:
    """Returns the open_clip command for the same training on exported shards (`tamis export --to webdataset`).

    The order differs: open_clip draws shards with replacement (`--dataset-resampled`, as DataComp does) and shuffles
    within a buffer.

    Source: open_clip, `open_clip_train/params.py` at `OPEN_CLIP`; DataComp, `train.py`, for the options.
    """
    architecture = ARCHITECTURES.get(training.model)
    if architecture is None or architecture.open_clip is None or training.text:
        named = ", ".join(name for name, one in ARCHITECTURES.items() if one.open_clip)
        raise ValueError(f"open_clip has no model like {training.model} {training.text}; it has {named}")
    if training.hold_out:
        raise ValueError("open_clip holds out no pairs: leave --hold-out out")
    if architecture.kind == RESNET and pieces > 1:
        raise ValueError(f"{training.model} normalises over the batch, which pieces would change: leave --pieces out")
    if training.batch % (processes * pieces):
        raise ValueError(f"a batch of {training.batch} does not divide into {processes} x {pieces} parts")
    epochs = 5 if training.samples >= 5 * training.batch else 1  # DataComp's checkpoints, which open_clip calls epochs
    options: dict[str, str | None] = {
        "train-data": shlex.quote(shards),
        "dataset-type": "webdataset",
        "dataset-resampled": None,
        "train-num-samples": str(math.ceil(training.samples / epochs)),
        "epochs": str(epochs),
        "model": architecture.open_clip,
        "batch-size": str(training.batch // (processes * pieces)),
        "accum-freq": str(pieces),
        "lr": f"{training.learning_rate:.15g}",
        "warmup": str(training.warmup),
        "beta1": f"{training.beta1:.15g}",
        "beta2": f"{training.beta2:.15g}",
        "eps": f"{training.epsilon:.15g}",
        "wd": f"{training.weight_decay:.15g}",
        "precision": {"bf16": "amp_bf16", "float32": "fp32"}[precision],
        "grad-checkpointing": None,
        "local-loss": None,
        "gather-with-grad": None,
        "ddp-static-graph": None,
        "seed": str(training.seed),
        "workers": "4",
    }
    if training.freeze_text:
        # The unlocked group is the projection, which we train too. Without the third option open_clip refuses to lock.
        options |= {"lock-text": None, "lock-text-unlocked-layers": "1", "lock-text-freeze-layer-norm": None}
    if architecture.kind == RESNET and processes > 1:
        options["use-bn-sync"] = None  # normalise over the whole batch, as one process does
    if training.clip_norm is not None:
        options["grad-clip-norm"] = f"{training.clip_norm:.15g}"
    if training.crop != 0.9:  # open_clip's default
        options["aug-cfg"] = shlex.quote(f"scale=({training.crop:.15g}, 1.0)")
    words = [f"--{name}" if value is None else f"--{name} {value}" for name, value in options.items()]
    return " \\\n    ".join([f"torchrun --nproc-per-node {processes} -m open_clip_train.main", *words])
