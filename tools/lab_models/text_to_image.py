"""`lab/text-to-image`: a Stable Diffusion pipeline that draws the lab's scenes from their captions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamis.core.types import Device
from tamis.models.loading import load_tokenizer_in, load_whole
from tamis.train import Settings, fit
from tamis_lab.captions import describe
from tools.lab_models.captioner import load as load_captioner
from tools.lab_models.examples import TRAINING_SEED, draw

if TYPE_CHECKING:
    import torch

SIDE = 64  # image side in pixels: half the lab's, for a quarter of the cost
CHANNELS = 6  # per code, in 32 x 32 codes; with fewer numbers lab/clip no longer recognises the decoded image
EXAMPLES = 20_000
CODING = Settings(
    steps=900, learning_rate=1e-3, matrix_learning_rate=4e-3, weight_decay=0.01, warmup=30, report_every=100
)
DRAWING = Settings(steps=3000, learning_rate=2e-3, matrix_learning_rate=8e-3, warmup=100, report_every=100)
_MIDDLE = 128  # channels of the denoiser's middle, which has 8 x 8 places
_CODED, _DRAWN = 32, 16  # images in a batch of each; the denoiser gains more from steps than from large batches
_CENTRED = 0.02  # how much the means of the codes' channels count next to the image
_LOUDNESS = 0.5  # deviation of all codes relative to the noise's: more of the steps decide forms, fewer the grain
_ALIGNED = 1.0  # how much it counts that the denoiser's middle sees in noise what the captioner sees in the image
_UNPROMPTED = 0.1  # share of images drawn without their prompt, for classifier-free guidance


def train(out: Path, *, device: Device, workers: int, effort: float = 1.0) -> str:
    """Trains the pipeline and writes its folder; arguments and result as in `tools.lab_models.clip.train`.

    Next to `out` there must be the folders `clip`, whose frozen text tower reads the prompts, and `captioner`, whose
    image tower guides the training of the denoiser.

    Source of the latter: Yu et al. 2025, "Representation alignment for generation" (arXiv 2410.06940), equation 8.
    """
    import torch
    from diffusers import AutoencoderTiny, DDIMScheduler, StableDiffusionPipeline
    from torch.nn import functional as F
    from transformers import CLIPTextModel, CLIPTokenizer

    torch.manual_seed(TRAINING_SEED)
    rng = np.random.default_rng(TRAINING_SEED + 2)
    examples = draw(max(64, round(EXAMPLES * effort)), seed=TRAINING_SEED + 2, kinds={"visual": 1}, workers=workers)
    halves = [
        F.avg_pool2d(torch.from_numpy(examples.images[k : k + 1000]).permute(0, 3, 1, 2).float(), 2)
        for k in range(0, len(examples), 1000)
    ]
    pictures = torch.cat(halves).div_(127.5).sub_(1)  # (n, 3, 64, 64), in [-1, 1]

    def batches() -> Iterator[torch.Tensor]:
        while True:
            yield pictures[rng.integers(0, len(examples), _CODED)].to(device.kind)

    coder = AutoencoderTiny(
        encoder_block_out_channels=(32, 32),
        decoder_block_out_channels=(32, 32),
        num_encoder_blocks=(0, 1),
        num_decoder_blocks=(2, 0),
        latent_channels=CHANNELS,
    ).to(device.kind)

    def code(wanted: torch.Tensor) -> torch.Tensor:
        codes = coder.encode(wanted).latents
        # Noise lies around 0, and so must every channel. How wide each is stays its own: what matters most is widest.
        off: torch.Tensor = codes.float().mean((0, 2, 3)).square().mean()
        loss: torch.Tensor = F.l1_loss(coder.decode(codes).sample.float(), wanted)
        return loss + _CENTRED * off

    first = CODING.shorten(effort)
    fit(coder, code, batches(), first, precision=device.precision)
    with torch.no_grad():
        codes = torch.cat(
            [coder.encode(pictures[k : k + 64].to(device.kind)).latents for k in range(0, len(pictures), 64)]
        )
    scale = _LOUDNESS / codes.std()
    coder.register_to_config(scaling_factor=float(scale))
    codes = codes * scale

    clip = out.parent / "clip"
    tokenizer = load_tokenizer_in(clip, cls=CLIPTokenizer)
    reader = load_whole(CLIPTextModel, clip, "lab/clip", expected="a CLIP", dtype=torch.float32).to(device.kind)
    unet = new(reader.config.hidden_size).to(device.kind)
    seen = _seen(out.parent / "captioner", examples.images, device)  # (n, 64, d)
    towards = torch.nn.Sequential(
        torch.nn.Linear(_MIDDLE, 2 * _MIDDLE), torch.nn.SiLU(), torch.nn.Linear(2 * _MIDDLE, seen.shape[2])
    ).to(device.kind)
    # Training includes pure noise, with which drawing starts. If a trace of the image were left in it, the model would
    # read the brightness from it, and drawing would start with a brightness that no prompt asked for (Lin et al. 2024,
    # "Common diffusion noise schedules and sample steps are flawed").
    scheduler = DDIMScheduler(
        beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012, clip_sample=False,
        prediction_type="v_prediction", rescale_betas_zero_snr=True, timestep_spacing="trailing", steps_offset=1,
    )  # fmt: skip

    def noisy() -> Iterator[tuple[torch.Tensor, ...]]:
        while True:
            chosen = rng.integers(0, len(examples), _DRAWN)
            prompts = ["" if rng.random() < _UNPROMPTED else describe(examples.samples[n].scene, rng) for n in chosen]
            ids = tokenizer(prompts, padding="max_length", truncation=True, return_tensors="pt")["input_ids"]
            with torch.no_grad():
                states = reader(input_ids=ids.to(device.kind)).last_hidden_state  # (b, 32, d)
            noise = torch.randn(_DRAWN, *codes.shape[1:]).to(device.kind)
            steps = torch.from_numpy(rng.integers(0, scheduler.config.num_train_timesteps, _DRAWN)).to(device.kind)
            velocity = scheduler.get_velocity(codes[chosen], noise, steps)
            there = seen[chosen].to(device.kind).float()
            yield scheduler.add_noise(codes[chosen], noise, steps), steps, states, velocity, there

    middle: list[torch.Tensor] = []
    watch = unet.mid_block.register_forward_hook(lambda _block, _given, found: middle.append(found))

    def denoise(batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        given, steps, states, velocity, there = batch
        found = unet(given, steps, encoder_hidden_states=states).sample.float()
        places = towards(middle.pop().flatten(2).transpose(1, 2)).float()  # (b, 64, d), row by row as patches are
        likeness = F.cosine_similarity(places, there, dim=2).mean()
        return F.mse_loss(found, velocity) + _ALIGNED * (1 - likeness)

    second = DRAWING.shorten(effort)
    fit(torch.nn.ModuleList([unet, towards]), denoise, noisy(), second, precision=device.precision)
    watch.remove()
    pipeline = StableDiffusionPipeline(
        vae=coder, text_encoder=reader, tokenizer=tokenizer, unet=unet, scheduler=scheduler,
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    shutil.rmtree(out, ignore_errors=True)
    pipeline.to(dtype=torch.float16).save_pretrained(out)
    return (
        f"{len(examples):,} drawn pictures without writing, at {SIDE} pixels. First {first.steps:,} batches of "
        f"{_CODED} for the auto-encoder; then {second.steps:,} of {_DRAWN} for the denoiser, with the frozen text "
        "tower of lab/clip, one prompt in ten left out, and its middle drawn towards what lab/captioner sees."
    )


def new(text_width: int) -> Any:
    """Returns the untrained denoiser."""
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=SIDE // 2,
        in_channels=CHANNELS,
        out_channels=CHANNELS,
        # Attention where it is cheap: among 8 x 8 places.
        down_block_types=("DownBlock2D", "DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        block_out_channels=(32, 64, _MIDDLE),
        layers_per_block=1,
        cross_attention_dim=text_width,
        attention_head_dim=4,
        norm_num_groups=16,
    )


def _seen(captioner: Path, images: NDArray[np.uint8], device: Device) -> torch.Tensor:
    """Returns what the captioner's image tower says of each patch of n images: (n, 64, d) float16, on the CPU."""
    import torch

    model, pixels = load_captioner(captioner, device.kind)
    found = []
    for start in range(0, len(images), 256):
        with torch.inference_mode():
            states = model.vision_model(pixel_values=pixels(images[start : start + 256])).last_hidden_state
        found.append(states[:, 1:].half().cpu())  # without the class token
    return torch.cat(found)
