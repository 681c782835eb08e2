"""DataComp's numbers, the schedule, and what is printed for open_clip."""

import math
import shlex
from dataclasses import replace

import pytest

from tamis.train.scales import SCALES, ClipTraining, at_scale, open_clip_command

#: The options of `open_clip_train/params.py` at the commit `scales.OPEN_CLIP` that a CLIP's training has a use for,
#: and whether a value follows.
OPEN_CLIP_OPTIONS = {
    **dict.fromkeys(
        ("train-data", "train-num-samples", "dataset-type", "model", "batch-size", "epochs", "workers"), True
    ),
    **dict.fromkeys(("lr", "beta1", "beta2", "eps", "wd", "warmup", "precision", "seed", "accum-freq"), True),
    **dict.fromkeys(("grad-clip-norm", "aug-cfg", "image-key", "text-key", "logs", "name", "resume"), True),
    **dict.fromkeys(("dataset-resampled", "grad-checkpointing", "local-loss", "gather-with-grad"), False),
    **dict.fromkeys(("ddp-static-graph", "lock-text", "lock-text-freeze-layer-norm"), False),
    "lock-text-unlocked-layers": True,
}


def test_the_scales_are_datacomps() -> None:
    found = {
        name: (of.samples, of.batch, of.learning_rate, of.warmup, of.model, of.beta2, of.steps)
        for name, of in SCALES.items()
        if name != "lab"
    }
    # Facts: mlfoundations/datacomp, scale_configs.py; the last number is samples / batch.
    assert found == {
        "debug": (128_000, 1024, 1e-4, 500, "ViT-B-32", 0.98, 125),
        "small": (12_800_000, 4096, 5e-4, 500, "ViT-B-32", 0.98, 3125),
        "medium": (128_000_000, 4096, 5e-4, 500, "ViT-B-32", 0.98, 31_250),
        "large": (1_280_000_000, 8192, 5e-4, 500, "ViT-B-16", 0.98, 156_250),
        "xlarge": (12_800_000_000, 90_112, 1e-3, 10_000, "ViT-L-14", 0.95, 142_046),
    }
    assert all((of.beta1, of.epsilon, of.weight_decay, of.crop) == (0.9, 1e-6, 0.2, 0.9) for of in SCALES.values())


def test_every_setting_can_be_changed_and_a_slip_is_told() -> None:
    assert at_scale("small", batch=1024, model=None) == ClipTraining(samples=12_800_000, batch=1024)
    assert at_scale("lab", model="ViT-tiny").text == "minilm"
    assert at_scale("lab", model="my/clip").text == ""
    with pytest.raises(ValueError, match=r"unknown scale 'smal' \(did you mean 'small'\?\)"):
        at_scale("smal")


def test_settings_out_of_range_are_refused() -> None:
    for name, value in (
        *(("batch", 1), ("samples", 0), ("learning_rate", 0.0), ("learning_rate", math.nan), ("beta2", 1.0)),
        *(("warmup", -1), ("weight_decay", math.nan), ("crop", 0.0), ("clip_norm", 0.0), ("epsilon", math.inf)),
        *(("hold_out", 0.6), ("keep_best", True), ("seed", 10**20)),
    ):
        with pytest.raises(ValueError, match=name):
            at_scale("small", **{name: value})


def options_of(command: str) -> dict[str, str | None]:
    """The options of a command for eight GPUs, each of which open_clip knows."""
    words = shlex.split(command.replace("\\\n", ""))
    assert words[:5] == ["torchrun", "--nproc-per-node", "8", "-m", "open_clip_train.main"]
    options: dict[str, str | None] = {}
    rest = iter(words[5:])
    for word in rest:
        name = word.removeprefix("--")
        options[name] = next(rest) if OPEN_CLIP_OPTIONS[name] else None
    return options


@pytest.mark.parametrize("scale", ["small", "xlarge"])
def test_the_open_clip_command_trains_the_same(scale: str) -> None:
    of = replace(SCALES[scale], learning_rate=0.00051234567)
    options = options_of(open_clip_command(of, "shards/{00000..00009}.tar", precision="bf16", processes=8, pieces=2))
    value = {name: text for name, text in options.items() if text is not None}
    assert value["train-data"] == "shards/{00000..00009}.tar"
    assert int(value["batch-size"]) * int(value["accum-freq"]) * 8 == of.batch
    assert int(value["train-num-samples"]) * int(value["epochs"]) == of.samples
    assert (float(value["lr"]), int(value["warmup"]), value["model"]) == (of.learning_rate, of.warmup, of.model)
    assert (float(value["beta2"]), float(value["eps"]), float(value["wd"])) == (of.beta2, 1e-6, 0.2)
    assert {"dataset-resampled", "local-loss", "gather-with-grad"} <= options.keys()
    assert not any(name.startswith("lock-text") for name in options)


def test_a_frozen_text_tower_keeps_its_projection_free_in_open_clip_too() -> None:
    frozen = options_of(open_clip_command(at_scale("small", freeze_text=True), "0.tar", precision="bf16", processes=8))
    # open_clip: the tower's last group is the projection alone, and CLIP's lock asserts that norms are frozen.
    assert frozen["lock-text-unlocked-layers"] == "1"
    assert {"lock-text", "lock-text-freeze-layer-norm"} <= frozen.keys()


def test_paths_reach_open_clip_unchanged_and_what_it_cannot_train_is_refused() -> None:
    shards = "it's here/$HOME/{0..9}.tar"
    options = options_of(open_clip_command(at_scale("small", crop=0.5), shards, precision="float32", processes=8))
    assert (options["train-data"], options["aug-cfg"], options["precision"]) == (shards, "scale=(0.5, 1.0)", "fp32")
    for training, processes in ((SCALES["lab"], 1), (SCALES["small"], 3), (at_scale("small", hold_out=0.1), 1)):
        with pytest.raises(ValueError, match=r"open_clip|4096"):
            open_clip_command(training, "0.tar", precision="bf16", processes=processes)
