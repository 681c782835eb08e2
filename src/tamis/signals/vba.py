"""VBA: what a captioner makes of a picture that was drawn from the caption. One of ICC's two teachers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tamis.arrays import Pixels
from tamis.data import Column, Device, ModelRef, Node, Scorer
from tamis.errors import at_least_one
from tamis.features.drawn_images import DrawnImages
from tamis.features.sources import Captions
from tamis.models.text_to_image import Drawing


@dataclass(frozen=True, kw_only=True)
class Vba(Scorer):
    """Scores a caption by how much of it a captioner reads back from a picture drawn from it.

    High: what the caption says can be drawn and seen. Low: it cannot, or the picture shows other details than the
    caption names; `sba` fails in other places, and `tamis train icc` combines the two. It depends on the caption's
    length: see `tamis.math.per_length`.

    Attributes:
        text_to_image: draws: a pipeline of diffusers.
        captioner: reads, by beam search: BLIP, BLIP-2, GIT or another image-to-text checkpoint.
        encoder: whose token embeddings BERTScore compares.
        layer: which layer of it; None: the one that the `bert-score` package takes, else the last.
        beams: beams of the search, of which the best reconstruction counts.
        max_tokens: longest reconstruction.
        prompt: what reconstructions begin with, of BLIP, BLIP-2 and GIT; it is cut off again. The released code has "a
            photo of".
        drawing: how pictures are drawn.

    Emits:
        vba: BERTScore F1 of the best of the reconstructions, at most 1; 0 where the captioner says nothing. NaN where
            there is no caption, or nothing in it that the encoder reads.
        vba_caption: that reconstruction.

    Cost: seconds per caption, with Stable Diffusion 2 and BLIP-2; it is there to teach, `icc` is there to score.

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
            about="what a captioner reads back from a picture drawn of the caption",
        ),
        Column(name="vba_caption", unit="text", better="neither", kind="word", about="what it reads back"),
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
        from tamis.models.texts.token_embeddings import load_token_encoder

        read = load_beam_captioner(self.captioner, device)
        read.check(self.prompt, self.max_tokens)
        encode = load_token_encoder(self.encoder, self.layer, device)

        def score(*, captions: Sequence[str | None], drawn: Sequence[list[Pixels] | None]) -> dict[str, Any]:
            pictures = {text: some[0] for text, some in zip(captions, drawn, strict=True) if text is not None and some}
            texts = sorted(pictures)
            said = read(
                [pictures[text] for text in texts], prompt=self.prompt, beams=self.beams, max_tokens=self.max_tokens
            )
            best = best_reconstructions(dict(zip(texts, said, strict=True)), encode)
            nothing = (np.nan, None)
            found = [best.get(caption, nothing) if caption is not None else nothing for caption in captions]
            return {
                "vba": np.array([number for number, _ in found], np.float32),
                "vba_caption": [text for _, text in found],
            }

        return score


def best_reconstructions(
    said: Mapping[str, Sequence[str]], encode: Callable[[Sequence[str]], Mapping[str, Any]]
) -> dict[str, tuple[float, str | None]]:
    """Returns for each text the best BERTScore F1 of its reconstructions, and which one it is.

    Args:
        said: the reconstructions of each text, the likeliest first; of equals the first counts.
        encode: texts to `TokenVectors`.
    """
    from tamis.math.bertscore import bertscore

    vectors = encode([*said, *(other for others in said.values() for other in others)])
    best: dict[str, tuple[float, str | None]] = {}
    for text, others in said.items():
        one = vectors[text]
        scores = []
        for other in others:
            two = vectors[other]
            scores.append(bertscore(two.vectors, one.vectors, two.counts, one.counts).f1)
        judged = [(score, other) for score, other in zip(scores, others, strict=True) if score == score]
        best[text] = max(judged, key=lambda pair: pair[0]) if judged else (np.nan, None)
    return best
