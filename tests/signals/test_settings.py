"""Settings that another setting leaves without effect, and words that are none of the known ones, are errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tamis.features.embeddings import ModelPixels
from tamis.features.generated_captions import GeneratedCaptions
from tamis.features.masked_images import MaskedImages
from tamis.features.sources import Dimensions
from tamis.models.nucleus import Sampling
from tamis.signals import ClassMentions, ClassSimilarity, ImageSize, Sieve, Tmars, ZeroShotClass


def test_settings_of_a_captioner_that_does_not_run_are_named_with_their_values() -> None:
    with pytest.raises(ValueError, match="no captioner runs: leave out") as caught:
        Sieve(captions_from="captions.csv", mask_text=True, fit="crop", sampling=Sampling(captions=2))
    message = str(caught.value)
    assert "mask_text=True" in message
    assert "fit='crop'" in message
    assert "sampling=Sampling(captions=2, " in message
    with pytest.raises(ValueError, match=r"no captioner runs: leave out captioner='lab/captioner'"):
        Sieve(captions_from="captions.csv", captioner="lab/captioner")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: MaskedImages(fill="inside_mean", ring=8), "fill: inside_mean.*ring=8"),
        (lambda: Tmars(model="lab/clip", fill="inside_mean", ring=8), "fill: inside_mean.*ring=8"),
        (lambda: ClassMentions(classes="birds", classes_from="x.txt"), "classes_from gives.*classes='birds'"),
        (lambda: ClassSimilarity(classes="birds", classes_from="x.txt"), "classes_from gives.*classes='birds'"),
        (
            lambda: ZeroShotClass(model="lab/clip", classes="birds", classes_from="x.txt"),
            "classes_from gives.*leave out classes='birds'",
        ),
    ],
)
def test_what_another_setting_leaves_without_effect_is_an_error(make: Callable[[], Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelPixels(model="lab/clip", fit="corp"), "unknown fit 'corp' (did you mean 'crop'?)"),
        (lambda: GeneratedCaptions(model="lab/captioner", fit="corp"), "unknown fit 'corp'"),
        (lambda: Sieve(fit="corp"), "unknown fit 'corp'"),
        (lambda: Dimensions(of="orignal"), "unknown of 'orignal' (did you mean 'original'?)"),
        (lambda: ImageSize(of="orignal"), "unknown of 'orignal'"),
        (lambda: ZeroShotClass(model="lab/clip", embedding="b32"), "unknown embedding 'b32'"),
    ],
)
def test_a_misspelt_word_is_no_silent_default_in_python_either(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()
