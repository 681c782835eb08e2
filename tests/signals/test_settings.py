"""Settings that make no sense, or that another setting leaves without effect, are errors that name them."""

from collections.abc import Callable
from typing import Any

import pytest

from tamis.models.text_to_image import Drawing
from tamis.signals import (
    ClassMentions,
    ClassSimilarity,
    ClipScore,
    ClipStroop,
    CRho,
    CSsft,
    Head,
    Sba,
    Sieve,
    Tmars,
    Vba,
    ZeroShotClass,
)
from tamis.signals.features.text_boxes import RecognisedText, TextBoxes

FROM_FILE = {"captions_from": "captions.csv"}
CLASSES: dict[str, Any] = {"classes": "birds", "classes_from": "x.txt"}


@pytest.mark.parametrize(
    ("make", "names"),
    [
        # without effect
        (lambda: Sieve(**FROM_FILE, mask_text=True, fit="crop"), "mask_text=True, fit='crop'"),
        (lambda: Sieve(**FROM_FILE, captioner="lab/captioner"), "captioner='lab/captioner'"),
        (lambda: Tmars(model="x", fill="inside_mean", ring=8), "fill: inside_mean.*ring=8"),
        *((lambda cls=cls: cls(**CLASSES), "classes='birds'") for cls in (ClassMentions, ClassSimilarity)),
        (lambda: ZeroShotClass(model="x", **CLASSES), "classes='birds'"),
        (lambda: Sieve(fit="corp"), "'corp'"),  # passed on; tests/recipes has the others
        (
            lambda: ZeroShotClass(model="x", embedding="l14_img", embeddings_from="x.parquet"),
            "embeddings_from.*embedding='l14_img'",
        ),
        (lambda: Head(weights="x", of="y", embeddings_from="x.parquet"), "embeddings_from"),
        (lambda: ClipScore(model="x", embeddings_from="x.parquet"), "one of the two"),
        # out of range
        (lambda: Tmars(model="x", ring=0), "ring.* got 0"),
        (lambda: TextBoxes(threshold=50), "threshold.* got 50"),
        (lambda: RecognisedText(confidence=50), "confidence"),
        (lambda: Vba(beams=0), "beams"),
        (lambda: Drawing(guidance=0.5), "guidance"),
        (lambda: Sba(bridge="x", no_repeat=-1), "no_repeat"),
        (lambda: CSsft(folder="x", epochs=0), "epochs.* got 0"),
        # meaningless
        (lambda: CRho(clean="./mine", pool="./mine"), r"\./mine"),
        (lambda: CRho(clean="c_rho/pool", pool="c_rho/clean"), "swapped"),
        (lambda: ClipStroop(prompts=("I see it",)), "I see it"),
    ],
)
def test_bad_settings_are_errors_that_name_them(make: Callable[[], Any], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        make()


def test_captions_from_a_file_need_no_captioner() -> None:
    assert Sieve(**FROM_FILE).captioner is None
    assert Sieve(**FROM_FILE, captioner=None) == Sieve(**FROM_FILE)
