"""Every registered signal, selector and exporter passes the checks of `tamis_lab.testing`.

A class without an example here fails.
"""

import dataclasses
import inspect
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_server import ChatServer, caption_of

from tamis.core.types import Device, Samples, Signal
from tamis.exports import EXPORTERS, Exporter
from tamis.models.chat_client import Server
from tamis.models.nucleus import Sampling
from tamis.models.text_to_image import Drawing
from tamis.recipes import steps as sel
from tamis.recipes.steps import SELECTORS, Step
from tamis.recipes.steps.outcome import describe
from tamis.runs.parts import read_side_file, write_side_files
from tamis.signals import SIGNALS
from tamis.signals.features.text_boxes import RecognisedText, TextBoxes
from tamis.signals.graph import Executor
from tamis_lab.testing import check_exporter, check_selector, check_signal, pairs

#: Names of classes, of words that the small checkpoints know.
CLASSES = Path(tempfile.mkdtemp()) / "classes.txt"
CLASSES.write_text("dog\ncat\nboat\nhouse, home\ntree\n")

#: Settings with which each signal can be made here; CLIP is a fixture in place of the reference.
SIGNAL_EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "caption_length": [{}],
    "image_size": [{}, {"of": "stored"}],
    "file_hash": [{}],
    "image_hash": [{}],
    "image_quality": [{}],
    "language": [{}, {"model": "cld3"}],
    "class_mentions": [{}],
    "class_similarity": [{"encoder": "clip_model"}],
    "zero_shot_class": [
        # "dog." is no word of the checkpoint: every class lies where the others lie, and the first one wins.
        {"model": "clip_model", "classes_from": str(CLASSES)},
        {"model": "siglip_model", "classes_from": str(CLASSES), "templates": ("{}", "a {} near a house")},
    ],
    "clip": [{"model": "clip_model"}, {"model": "siglip_model"}],
    "generated_clip": [
        {"model": "clip_model", "captioner": "blip_model", "sampling": Sampling(captions=3)},
        {"model": "siglip_model", "captioner": "git_model", "first_sentence": True},
    ],
    "text_area": [{}],
    "head": [{"weights": "head_model", "of": "clip_model"}],
    # The text of small pictures is found without making them larger; `text_area` does make them so.
    "tmars": [
        {"model": "clip_model", "boxes": TextBoxes(side=160)},
        {"model": "siglip_model", "fill": "inpaint", "boxes": TextBoxes(side=160)},
    ],
    "text_match": [{"text": RecognisedText(boxes=TextBoxes(side=160))}],
    "sieve": [
        {"captioner": "blip_model", "sampling": Sampling(captions=3)},
        # Seed 0 draws two captions whose similarities tie to 3e-8 in this tiny encoder: rounding says which is nearest.
        {"captioner": "git_model", "encoder": "clip_model", "sampling": Sampling(seed=1)},
    ],
    "judge": [
        {"model": "llava_model"},
        {"model": "served_model", "number": "written"},
        {"model": "chat_language_model", "of": "caption"},
    ],
    "c_ssft": [{"folder": "epochs_model", "epochs": 2}],
    "c_rho": [{"clean": "clip_model", "pool": "siglip_model"}],
    "icc": [{"model": "regression_model"}, {"model": "norms"}],
    "vba": [
        {
            "text_to_image": "diffusion_model",
            "captioner": captioner,
            "encoder": "regression_model",
            "beams": 2,
            "max_tokens": 6,
            "drawing": Drawing(steps=2),
        }
        for captioner in ("blip_model", "blip2_model")
    ],
    "sba": [
        {"bridge": "sba_model", "beams": 2, "max_tokens": 6, **way} for way in ({}, {"encoder": "regression_model"})
    ],
    "pac": [{"model": "clip_model"}],
    "itm": [{"model": "itm_model"}],
    "clip_stroop": [{"model": "clip_model"}, {"model": "siglip_model", "prompts": ("a [*]",)}],
    "ave_clip": [
        {"model": "clip_model", "text_to_image": "diffusion_model", "pictures": 2, "drawing": Drawing(steps=2)}
    ],
    "complexity_action": [{"parser": "spacy_model"}],
}

#: How far two runs of one signal over other batches may lie apart: 0 unless a network computes it.
TOLERANCE = {
    **dict.fromkeys(("icc", "sba", "clip_stroop", "itm"), 1e-4),
    **dict.fromkeys(("clip", "class_similarity", "zero_shot_class", "sieve", "c_ssft", "head", "generated_clip"), 2e-3),
    **dict.fromkeys(("c_rho", "pac", "judge"), 4e-3),
    **dict.fromkeys(("text_area", "tmars", "vba", "ave_clip"), 0.01),
}

#: What a signal, or one column of it, looks at: with the image broken, or the caption missing, it must be missing.
LOOKS_AT = {
    **{key: {"image"} for key in ("image_size", "text_area", "image_hash", "image_quality", "zero_shot_class", "head")},
    "file_hash": set(),
    **{key: {"image"} for key in ("generated_clip", "generated_caption")},
    **{key: {"image"} for key in ("n_text_boxes", "image_text")},
    **{key: {"caption"} for key in ("caption_length", "language", "class_mentions", "class_similarity", "icc", "vba")},
    **{key: {"caption"} for key in ("sba", "clip_stroop", "ave_clip", "complexity_action")},
    **{key: {"image", "caption"} for key in ("clip", "tmars", "text_match", "sieve", "c_ssft", "c_rho", "pac", "itm")},
    "judge": {"image", "caption"},
    "judge_concreteness": {"caption"},
}

#: Embeddings of reference images.
REFERENCE = Path(tempfile.mkdtemp()) / "reference.npy"
np.save(REFERENCE, np.ones((2, 3), np.float16))

SELECTOR_EXAMPLES: dict[str, list[Step]] = {
    "at_least": [
        sel.AtLeast(score="a", value=0.4, missing="drop"),
        sel.AtLeast(score="a + b", value=0.4, missing="drop"),
    ],
    "at_most": [sel.AtMost(score="a", value=0.4, missing="drop")],
    "between": [sel.Between(score="minmax(b)", low=0.2, high=0.7, missing="drop")],
    "top_fraction": [
        sel.TopFraction(score="a", fraction=0.29, missing="drop"),
        sel.TopFraction(score="rank(a) - zscore(b)", fraction=0.5, of="pool", missing="drop"),
        sel.TopFraction(score="b", fraction=0.4, per="a", missing="drop"),
    ],
    "top_n": [
        sel.TopN(score="a", n=5, missing="drop"),
        sel.TopN(score="a", n=2, per="w", missing="drop"),
        sel.TopN(score="a", n=9, per="w", cap=3, missing="drop"),
    ],
    "equals": [
        sel.Equals(score="w", value=("en", "fr"), missing="drop"),
        sel.Equals(score="a", value=0.5, missing="drop"),
    ],
    "tagged": [sel.Tagged(tags="good"), sel.Tagged(tags=("bad", "good"))],
    "random_fraction": [sel.RandomFraction(fraction=0.3, seed=8)],
    "sample": [
        sel.Sample(score="a", n=40, missing="drop"),
        sel.Sample(score="a", n=30, epochs=2, missing="drop"),
        sel.Sample(score="a + b", fraction=1.3, of="pool", cap="hard", limit=7, std=None, missing="drop"),
    ],
    "choose_caption": [
        sel.ChooseCaption(score="a", other="b", text="w"),
        sel.ChooseCaption(score="a", other="b", text="w", threshold=0.3, mix=0.5),
    ],
    "balance": [
        sel.Balance(t=2, entries="w", missing="drop"),
        sel.Balance(tail=0.4, entries="tagged", per="w", of="pool", seed=3, missing="drop"),
    ],
    "clipcov": [
        sel.ClipCov(n=6, image="i", text="t", per="w", terms=("cov", "class_reg", "inter"), missing="drop"),
        sel.ClipCov(fraction=0.3, of="pool", image="i", text="t", per="w", terms=("cov",), missing="drop"),
        sel.ClipCov(n=5, image="i", text="t", per="w", terms=("class", "inter"), diversity="share", missing="drop"),
    ],
    "cabs": [
        sel.Cabs(super_batch=6, share=0.5, concepts="w", missing="drop"),
        sel.Cabs(super_batch=6, share=0.5, concepts="tagged", epochs=2, released=True, missing="drop"),
        sel.Cabs(rule="fm", super_batch=7, concepts="w", seed=3, missing="drop"),
    ],
    "norm_sim_d": [sel.NormSimD(fraction=0.3, rounds=4, embedding="i", missing="drop")],
    "semdedup": [
        sel.SemDeDup(epsilon=0.3, embedding="i", clusters=1, missing="drop"),
        sel.SemDeDup(fraction=0.5, embedding="t", clusters=1, keep="random", missing="drop"),
    ],
    "density": [
        sel.Density(n=7, embedding="i", clusters=1, missing="drop"),
        sel.Density(fraction=0.4, of="pool", embedding="t", clusters=1, keep="random", missing="drop"),
    ],
    "d2": [
        sel.D2(score="a", fraction=0.4, embedding="i", clusters=1, k=3, missing="drop"),
        sel.D2(score="a + b", n=6, embedding="t", clusters=1, mode="absolute", missing="drop"),
    ],
    "image_based": [sel.ImageBased(reference=str(REFERENCE), embedding="i", clusters=1, missing="drop")],
    "distinct": [
        sel.Distinct(hash="h", distance=3, colours=None, lightness=None, missing="drop"),
        sel.Distinct(hash="h", distance=9, colours="c", lightness="l", best="a + b", missing="drop"),
    ],
    "not_in": [sel.NotIn(reference=str(REFERENCE), hashes=False, embedding="i", missing="drop")],
    "hash_match": [sel.HashMatch(missing="drop")],
    "all_of": [
        sel.AllOf(
            parts=((sel.TopN(score="a", n=9, missing="drop"),), (sel.Equals(score="w", value="en", missing="drop"),))
        )
    ],
    "any_of": [sel.AnyOf(parts=((sel.TopN(score="b", n=2, missing="drop"),), (sel.RandomFraction(fraction=0.1),)))],
    "none_of": [sel.NoneOf(parts=((sel.TopN(score="b", n=2, missing="drop"),), (sel.RandomFraction(fraction=0.1),)))],
}

#: Settings with which each exporter can be made.
EXPORTER_EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "npy": [{}],
    "parquet": [{}, {"captions": True}],
    "keys": [{}, {"shard": True}],
    "webdataset": [{}, {"shard_size": 3}, {"shard_size": 3, "energon": True, "weights": True}],
    "huggingface": [{"shard_size": 3}],
    "dropped": [{}],
}


def columns() -> Mapping[str, Any]:
    """What the examples of selectors read: ties and NaN, words, vectors of which two are equal, hashes."""
    rng = np.random.default_rng(2)
    count = 23
    a = rng.choice(np.array([0.1, 0.5, 0.5, 0.9, np.nan], np.float32), count)
    b = rng.normal(size=count).astype(np.float32)
    b[3] = np.nan
    w = [[None, "en", "en", "de", "fr"][n] for n in rng.integers(0, 5, count)]
    i, t = (np.round(rng.normal(size=(count, 3)), 1).astype(np.float16) for _ in range(2))
    i[5] = i[6]
    i[4], t[4] = np.nan, np.nan
    h = [f"{1 << int(bit):016x}" for bit in rng.integers(0, 6, count)]
    h[:4] = [None, "ffffffffffffffff", "fffffffffffffff0", None]
    light = [bytes([250] * 800 + [40 + 60 * (row % 2)] * 224).hex() for row in range(count)]
    return {
        "a": a,
        "b": b,
        "w": w,
        "tagged": [{"en": "bad,blurry", "de": "good"}.get(word) for word in w],
        "i": i,
        "t": t,
        "h": h,
        "on_list": np.where(np.isnan(a), np.nan, a > 0.8).astype(np.float32),
        "c": [f"{row % 3:02x}40" * 64 for row in range(count)],
        "l": light,
        "width": np.full(count, 300, np.float32),
        "height": np.full(count, 200, np.float32),
    }


signal_cases = pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name, examples in SIGNAL_EXAMPLES.items() for n in range(len(examples))]
)
selector_cases = pytest.mark.parametrize(
    "step", [step for steps in SELECTOR_EXAMPLES.values() for step in steps], ids=describe
)
exporter_cases = pytest.mark.parametrize(
    "exporter", [EXPORTERS[name](**one) for name, some in EXPORTER_EXAMPLES.items() for one in some], ids=repr
)


def test_every_registered_class_has_an_example() -> None:
    for register in (SIGNALS, SELECTORS, EXPORTERS):
        assert {name: cls.name for name, cls in register.items()} == {name: name for name in register}
    assert set(SIGNAL_EXAMPLES) == set(SIGNALS)
    assert set(SELECTOR_EXAMPLES) == set(SELECTORS)
    assert set(EXPORTER_EXAMPLES) == set(EXPORTERS)
    for name, steps in SELECTOR_EXAMPLES.items():
        assert {type(step) for step in steps} == {SELECTORS[name]}


@pytest.mark.parametrize(
    ("register", "first"),
    [(SIGNALS, ""), (SELECTORS, ("Keeps ", "Drops ")), (EXPORTERS, "Writes ")],
    ids=["", "keeps", "writes"],
)
def test_docstrings_say_what_a_class_does_and_what_its_settings_mean(
    register: Mapping[str, Any], first: str | tuple[str, ...]
) -> None:
    for name, cls in register.items():
        text = inspect.getdoc(cls) or ""
        assert text.startswith(first), name
        settings, emits = text.partition("Attributes:")[2], text.partition("Emits:")[2]
        own = [setting for setting in dataclasses.fields(cls) if setting.name != "croissant"]
        for setting in own if register is not SELECTORS else ():
            assert re.search(rf"\b{setting.name}\b[\w, ]*:", settings), (name, setting.name)
        if register is SIGNALS:
            assert "NaN" in text, name
            assert "Cost:" in text, name
            for column in cls.columns:
                assert f"{column.name}:" in emits, (name, column.name)
                assert column.unit, (name, column.name)
                assert column.about, (name, column.name)


@pytest.fixture(scope="module")
def served_model() -> Iterator[Server]:
    """A model behind a server, which says a number that depends on image and caption."""
    with ChatServer(lambda body: f"{len(caption_of(body)) % 50 + 20}/100") as server:
        yield Server(url=server.url, model="tiny")


@pytest.fixture
def signal(name: str, number: int, request: pytest.FixtureRequest) -> Signal:
    options = dict(SIGNAL_EXAMPLES[name][number])
    for setting, value in options.items():
        if isinstance(value, str) and value.endswith("_model"):
            options[setting] = request.getfixturevalue(value)
    made: Signal = SIGNALS[name](**options)
    return made


@signal_cases
def test_signal(signal: Signal) -> None:
    looks_at = {column.name: LOOKS_AT.get(column.name, LOOKS_AT[signal.name]) for column in signal.columns}
    device = Device(batch_size=4, threads=1)
    tolerance = TOLERANCE.get(signal.name, 0)
    check_signal(signal, looks_at=looks_at, tolerance=tolerance, device=device)


@pytest.mark.attack
@pytest.mark.parametrize("text", ["x", "a dog chases a cat. ", "ß漢🜁\n"], ids=["letters", "words", "symbols"])
@pytest.mark.parametrize(
    ("name", "number"),
    [(name, n) for name, some in SIGNAL_EXAMPLES.items() for n in range(len(some)) if "caption" in LOOKS_AT[name]],
)
def test_a_caption_of_two_million_characters_costs_no_other_pair_its_score(signal: Signal, text: str) -> None:
    executor = Executor(Device(batch_size=4, threads=1))
    short, long = pairs.good_pairs()[:2]
    long.caption = (text * 2_000_000)[:2_000_000]
    alone, both = (executor.run([signal], {Samples(): some})[signal] for some in ([short], [long, short]))
    for column in signal.columns:
        values = both[column.name]
        assert len(values) == 2
        if column.kind == "number":
            np.testing.assert_allclose(values[1:], alone[column.name], atol=TOLERANCE.get(signal.name, 0))
        else:
            assert values[1] == alone[column.name][0]


@signal_cases
def test_what_a_signal_keeps_beside_its_parts_comes_back_as_it_was(signal: Signal, tmp_path: Path) -> None:
    write_side_files(tmp_path, signal, Device(batch_size=4))
    kept = signal.side_files(Device(batch_size=4))
    assert {path.name for path in tmp_path.iterdir()} == set(kept)
    for name, content in kept.items():
        found = read_side_file(tmp_path / name)
        np.testing.assert_array_equal(found, content)
        assert not isinstance(content, np.ndarray) or found.dtype == content.dtype


@selector_cases
def test_selector(step: Step) -> None:
    check_selector(step, columns=columns())


@exporter_cases
def test_exporter(exporter: Exporter) -> None:
    check_exporter(exporter)
