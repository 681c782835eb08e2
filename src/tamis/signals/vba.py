"""VBA: how much of a caption a captioner reads from an image drawn from it. One of ICC's two teachers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tamis.arrays import Pixels
from tamis.data import Column, Device, ModelRef, Node, Signal
from tamis.errors import at_least_one
from tamis.features.generated import DrawnImages
from tamis.features.sources import Captions
from tamis.models.text_to_image import Drawing


@dataclass(frozen=True, kw_only=True)
class Vba(Signal):
    """Scores a caption by how much of it a captioner reads back from an image drawn from it.

    High: what the caption says can be drawn and seen. Low: it cannot, or the image shows other details than the caption
    names. `tamis train icc` combines it with `sba`, per length of the caption: see `tamis.math.normalise.PerLength`.

    Attributes:
        text_to_image: the model that draws: a pipeline of diffusers.
        captioner: the model that reads, by beam search: BLIP, BLIP-2, GIT or another image-to-text checkpoint.
        encoder: the model whose token embeddings BERTScore compares.
        layer: of the encoder; None: the one that the `bert-score` package takes, else the last.
        beams: number of beams, of which the best reconstruction counts.
        max_tokens: longest reconstruction, in tokens.
        prompt: what reconstructions begin with (BLIP, BLIP-2 and GIT only); it is removed again. The released code has
            "a photo of".
        drawing: how images are drawn.

    Emits:
        vba: BERTScore F1 of the best reconstruction, at most 1; 0 where the captioner returns nothing. NaN where there
            is no caption, or it has no token.
        vba_caption: the best reconstruction.

    Cost: seconds per caption, with Stable Diffusion 2 and BLIP-2: for training `icc`, which then scores.

    Source: Yanuka et al. 2024 (ICC, arXiv 2403.01306), section 2, appendix A.7 (guidance 9, 20 steps).
    """

    name: ClassVar[str] = "vba"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = (
        Column(
            name="vba",
            unit="BERTScore F1",
            better="high",
            beside="vba_caption",
            about="how much of the caption a captioner reads back from an image drawn from it",
        ),
        Column(name="vba_caption", unit="text", better="neither", kind="word", about="the best reconstruction"),
    )
    text_to_image: ModelRef = "stabilityai/stable-diffusion-2"
    captioner: ModelRef = "Salesforce/blip2-opt-2.7b"
    encoder: ModelRef = "FacebookAI/roberta-large"
    layer: int | None = None
    beams: int = 5
    max_tokens: int = 30
    prompt: str = ""
    drawing: Drawing = Drawing()

    def __post_init__(self) -> None:
        at_least_one(beams=self.beams, max_tokens=self.max_tokens)

    def needs(self) -> Mapping[str, Node]:
        return {"captions": Captions(), "drawn": DrawnImages(model=self.text_to_image, drawing=self.drawing)}

    def load(self, device: Device) -> Callable[..., Any]:
        from tamis.models.captioner import load_beam_captioner
        from tamis.models.texts.sentence import load_token_encoder

        read = load_beam_captioner(self.captioner, device)
        read.check(self.prompt, self.max_tokens)
        encode = load_token_encoder(self.encoder, self.layer, device)

        def score(*, captions: Sequence[str | None], drawn: Sequence[list[Pixels] | None]) -> dict[str, Any]:
            images = {text: some[0] for text, some in zip(captions, drawn, strict=True) if text is not None and some}
            texts = sorted(images)
            generated = read(
                [images[text] for text in texts], prompt=self.prompt, beams=self.beams, max_tokens=self.max_tokens
            )
            best = best_reconstructions(dict(zip(texts, generated, strict=True)), encode)
            rows = [best.get(caption or "", (np.nan, None)) for caption in captions]
            return {
                "vba": np.array([score for score, _ in rows], np.float32),
                "vba_caption": [text for _, text in rows],
            }

        return score


def best_reconstructions(
    generated: Mapping[str, Sequence[str]], encode: Callable[[Sequence[str]], Mapping[str, Any]]
) -> dict[str, tuple[float, str | None]]:
    """Returns the best BERTScore F1 of the reconstructions of each text, and that one; of equal ones the first.

    `encode` gives the `TokenVectors` of texts.
    """
    from tamis.math.bertscore import bertscore

    vectors = encode([*generated, *(other for others in generated.values() for other in others)])
    best: dict[str, tuple[float, str | None]] = {}
    for text, others in generated.items():
        reference, scored = vectors[text], []
        for other in others:
            candidate = vectors[other]
            f1 = bertscore(candidate.vectors, reference.vectors, candidate.counts, reference.counts).f1
            if not np.isnan(f1):
                scored.append((f1, other))
        best[text] = max(scored, key=lambda pair: pair[0]) if scored else (np.nan, None)
    return best
