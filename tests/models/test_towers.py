"""Image-text towers of every kind: the embeddings of the library's own call, through the real command."""

import functools
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_encoders
import tiny_towers
import torch
from command_line import Tamis
from factories import image_bytes, images_of_many_shapes, pair, png, score, write_tar
from PIL import Image

from tamis.core.errors import ModelError
from tamis.core.types import Device
from tamis.models.clip import KINDS, load_clip, load_tokenizer
from tamis.reports.explore.near import Near
from tamis.runs import Run
from tamis.train.evaluate.zero_shot import evaluate_zero_shot
from tamis_lab.tasks import make_tasks


def listed(heading: str) -> list[tuple[str, str]]:
    """The type and an example of each row of a table in docs/models.md."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    section = page.partition(f"# {heading}\n")[2].partition("\n#")[0]
    return re.findall(r"^\| `([\w-]+)` \| `([^`]+/[^`]+)` \|", section, re.MULTILINE)


TOWERS, MATCHERS = listed("Image-text models"), listed("Models that match image and caption")
IMAGES = images_of_many_shapes()
#: Both cases, no caption, 400 words, Chinese and Arabic.
CAPTIONS = [
    "a Red dog",
    "A RED DOG",
    "",
    "dog " * 400,
    "\u4e00\u53ea\u72d7",
    "\u0643\u0644\u0628",
    "two cat, one boat?",
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    def make(checkpoint: str) -> str:
        torch.manual_seed(0)
        kinds = {**tiny_towers.TOWERS, **tiny_towers.MATCHERS}
        return str(kinds[checkpoint](tmp_path_factory.mktemp("towers") / "tiny"))

    return functools.cache(make)


def write_images(to: Path) -> Path:
    names = [f"{n}" for n in range(len(IMAGES))]
    rows = zip(names, IMAGES, CAPTIONS, strict=True)
    samples = [
        (name, pair(n) | {"jpg": png(image), "txt": text.encode()}) for n, (name, image, text) in enumerate(rows)
    ]
    write_tar(to / "0.tar", samples)
    return to


def unit(rows: Sequence[Any]) -> np.ndarray[Any, Any]:
    return torch.nn.functional.normalize(torch.cat(list(rows)), dim=-1).numpy()  # type: ignore[no-any-return]


def library_embeddings(kind: str, folder: str) -> tuple[Any, Any]:
    """The library's own processor and features, one image and one text at a time, as its documentation calls them."""
    import transformers as hf

    processor = hf.AutoProcessor.from_pretrained(folder)
    cls: Any = (
        hf.AutoModel if kind.startswith(("vision-", "clip_resnet")) else hf.AutoModelForZeroShotImageClassification
    )
    model = cls.from_pretrained(folder).eval()
    full: dict[str, Any] = {"padding": "max_length", "truncation": True}
    lengths = {"siglip": full | {"max_length": 16}, "siglip2": full | {"max_length": 64}, "align": full}
    lengths["chinese_clip"] = {"padding": True, "truncation": True, "max_length": 52}
    length = lengths.get(kind, {"padding": True, "truncation": True})
    gemma = type(processor.tokenizer).__name__ == "GemmaTokenizer"
    texts = [text.lower() if gemma else text for text in CAPTIONS if text]
    images, words = [], []
    with torch.no_grad():
        for image in IMAGES:  # the processor itself ignores the number of patches in the folder
            inputs = processor.image_processor(images=Image.fromarray(image), return_tensors="pt")
            images.append(model.get_image_features(**inputs).pooler_output)
        for text in texts:
            inputs = processor(text=[text], return_tensors="pt", **length)
            words.append(model.get_text_features(**inputs).pooler_output)
    return unit(images), unit(words)


@pytest.mark.parametrize(("kind", "checkpoint"), TOWERS)
def test_embeddings_are_the_librarys_own(
    kind: str, checkpoint: str, folder: Callable[[str], str], tamis: Tamis, tmp_path: Path
) -> None:
    pool, model = write_images(tmp_path / "pool"), folder(checkpoint)
    assert json.loads((Path(model) / "config.json").read_text())["model_type"] == kind
    images, texts = library_embeddings(kind, model)
    texts = np.insert(texts, CAPTIONS.index(""), np.nan, axis=0)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"name": "mine", "about": "", "signals": [{"clip": {"model": model}}]}))
    tamis.ok("check", recipe)
    for size in (1, 7):
        run = tmp_path / f"run{size}"
        settings = ["--keep", "embeddings", "--precision", "float32", "--batch-size", size, "--workers", 1]
        tamis.ok("score", pool, "--run", run, "--signals", "clip", "--set", f"signals.clip.model={model}", *settings)
        scored = Run(run)
        for name, expected in (("image_embedding", images), ("text_embedding", texts)):
            stored = np.asarray(scored.embedding(name, "0"), np.float32)
            away = np.abs(stored - expected) - np.abs(expected) * 2**-11  # of which rounding to float16 may take
            assert (np.isnan(away) == np.isnan(expected)).all()
            assert np.nanmax(away) < 1e-5
        cosine = scored.to_numpy("clip")
        np.testing.assert_allclose(cosine, (images * texts).sum(1), rtol=0, atol=2e-3)
        assert np.flatnonzero(np.isnan(cosine)).tolist() == [CAPTIONS.index("")]
    # There is something to compare: other images and other words give other embeddings.
    assert (images[0] * images[1]).sum() < 0.999
    assert (texts[0] * texts[4]).sum() < 0.999


def test_the_states_of_a_frozen_text_tower_change_no_embedding_and_are_made_again_if_damaged(
    folder: Callable[[str], str], tmp_path: Path
) -> None:
    model = folder("clip-italian/clip-italian")
    clip, tokens = load_clip(model, Device(kind="cpu", batch_size=2)), load_tokenizer(model)(["a cat", "", "a cat"])
    plain, states = clip.texts(tokens), tmp_path / "states" / "of-the-task.npy"
    np.testing.assert_allclose(clip.texts(tokens, states=states), plain, atol=1e-6)
    whole = states.read_bytes()
    flipped = whole.replace(whole[200:204], bytes(4), 1)
    for damaged in (b"", whole[:150], flipped):
        states.write_bytes(damaged)
        np.testing.assert_allclose(clip.texts(tokens, states=states), plain, atol=1e-6)
        assert states.read_bytes() == whole


def library_matches(kind: str, folder: str, texts: Sequence[str]) -> list[float]:
    """The library's own probability of each pair, as its documentation computes it."""
    import transformers as hf

    name = "BlipForImageTextRetrieval" if kind == "blip" else "Blip2ForImageTextRetrieval"
    model, processor = getattr(hf, name).from_pretrained(folder).eval(), hf.AutoProcessor.from_pretrained(folder)
    head = {"use_itm_head" if kind == "blip" else "use_image_text_matching_head": True}
    longest = 35 if kind == "blip" else 32
    found = []
    for image, text in zip(IMAGES, texts, strict=True):
        # BLIP-2's processor would cut the places of the image with a long text: a text is cut before.
        tokens = processor.tokenizer(text, truncation=True, max_length=longest)["input_ids"]
        words = processor.tokenizer.decode(tokens, skip_special_tokens=True)
        inputs = processor(images=Image.fromarray(image), text=words, return_tensors="pt")
        assert inputs["input_ids"].shape[1] == len(tokens) + (0 if kind == "blip" else 4)
        with torch.no_grad():
            output = model(**inputs, **head)
        scores = output.itm_score if kind == "blip" else output.logits_per_image
        found.append(float(scores.softmax(-1)[0, 1]))
    return found


@pytest.mark.parametrize(("kind", "checkpoint"), MATCHERS)
def test_probabilities_of_a_match_are_the_librarys_own(
    kind: str, checkpoint: str, folder: Callable[[str], str], tamis: Tamis, tmp_path: Path
) -> None:
    pool, model = write_images(tmp_path / "pool"), folder(checkpoint)
    expected = np.array(library_matches(kind, model, CAPTIONS))
    expected[CAPTIONS.index("")] = np.nan
    settings = ["--set", f"signals.itm.model={model}", "--precision", "float32", "--workers", 1]
    for size in (1, 7):
        run = tmp_path / f"run{size}"
        tamis.ok("score", pool, "--run", run, "--signals", "itm", *settings, "--batch-size", size)
        np.testing.assert_allclose(Run(run).to_numpy("itm"), expected, rtol=0, atol=1e-5)
    # There is something to compare: the same caption in two cases, with other images; and other words.
    assert abs(expected[0] - expected[1]) > 1e-3
    assert abs(expected[4] - expected[5]) > 1e-3


def test_what_cannot_work_is_refused_by_name_before_any_work(
    folder: Callable[[str], str], blip_model: str, clip_model: str, tamis: Tamis, tmp_path: Path
) -> None:
    pool = write_images(tmp_path / "pool")
    other = dict.fromkeys(("tipsv2", "videoprism", "flava"), "take one of clip, clip_resnet, clipseg")
    cases = [
        ("clip", folder(MATCHERS[0][1]), "the signal itm takes"),
        ("itm", blip_model, "no weights for itm"),
    ]
    cases.append(("itm", clip_model, "is a 'clip' model"))
    for kind, words in other.items():
        model = tmp_path / kind
        shutil.copytree(clip_model, model)
        (model / "config.json").write_text(json.dumps({"model_type": kind}))
        cases.append(("clip", str(model), words))
    for signal, model, words in cases:
        run, recipe = tmp_path / "run", tmp_path / "recipe.yaml"
        recipe.write_text(json.dumps({"signals": [{signal: {"model": model}}]}))
        for command in (("check",), ("score", pool, "--run", run, "--recipe")):
            done = tamis(*command, recipe)
            assert done.code != 0
            assert model in done.err
            assert words in done.err
        assert not list(run.glob("scores/*/*.parquet"))


def test_the_tables_in_the_docs_are_what_is_tried() -> None:
    assert {checkpoint for _, checkpoint in TOWERS} == set(tiny_towers.TOWERS)
    assert {checkpoint for _, checkpoint in MATCHERS} == set(tiny_towers.MATCHERS)
    assert {kind for kind, _ in TOWERS} == set(KINDS)
    encoders = {checkpoint for _, checkpoint in listed("Sentence encoders")}
    assert encoders == {name for name in tiny_encoders.ENCODERS if "/" in name}


def test_what_takes_a_clip_takes_every_shape_of_image(
    naflex_model: str, pool: Path, tamis: Tamis, tmp_path: Path
) -> None:
    """NaFlex's images are of many sizes; training takes only what it can save."""
    (tmp_path / "classes.txt").write_text("dog\ncat\n")
    model = {"model": naflex_model}
    signals = [{"clip": model}, {"pac": model}, {"clip_stroop": model}, {"tmars": model}]
    signals.append({"zero_shot_class": model | {"classes_from": str(tmp_path / "classes.txt")}})
    run = score(pool, tmp_path / "run", *signals, keep=["embeddings"])
    for column in ("pac", "clip_stroop", "tmars", "class_cosine"):
        assert np.isfinite(run.to_numpy(column)).all()
    np.testing.assert_allclose(run.to_numpy("tmars"), run.to_numpy("clip"), atol=1e-6)  # nothing is written in them
    near = Near(run)
    image = image_bytes(1000)  # the first image of the second shard
    assert near.to_image(near.add_image(image))[0] == 7
    assert len(near.to_text("a Dog")) == 21
    measured = evaluate_zero_shot(naflex_model, make_tasks(tmp_path / "tasks", size=4), Device(batch_size=3))
    assert measured.rows()[0]["images"] == "4"
    done = tamis(
        "train", "c_ssft", tmp_path / "run", "--train-batch", 4, "--model", naflex_model, "--out", tmp_path / "trained"
    )
    assert done.code == 2
    assert "is a 'siglip2' model; only checkpoints of clip, " in done.err


@pytest.mark.parametrize(
    ("make", "changes", "words"),
    [
        (tiny_towers.naflex, {"patch_size": 16}, "patches of 16 pixels, its image tower takes"),
        (tiny_towers.naflex, {"max_num_patches": 10**9}, "images would become"),
        (tiny_towers.naflex, {"image_processor_type": "SiglipImageProcessor"}, "only NaFlex takes patches"),
        (tiny_towers.align, {"include_top": True}, "only ALIGN's .include_top"),
    ],
)
def test_preprocessing_of_another_model_is_refused(
    make: Callable[[Path], Path], changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    model = make(tmp_path / "tiny")
    path = model / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelError, match=words):
        load_clip(str(model), Device())
