"""A vision-language model's numbers: what it is asked, and how a number is read off its answer."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from chat_server import ChatServer, prompt_of
from factories import pair, score, score_batch, write_tar

import tamis
from tamis.core.errors import ModelError, RecipeError
from tamis.core.types import Device, Sample
from tamis.models.chat import load_chat
from tamis.recipes.recipe import load
from tamis.runs.parts import read_columns
from tamis.signals.graph import Identities
from tamis.signals.judge import Judge, expected_number, read_aspects, written_number
from tamis_lab.testing import pairs

NAMES = ["image_text_matching", "object_detail_fulfillment", "caption_text_quality", "semantic_understanding"]


@pytest.mark.parametrize(
    ("tokens", "number"),
    [
        # 8 or 9, then 5 or 0: 0.3 (85 + 80) + 0.2 (95 + 90) = 49.5 + 37
        ([("8", {"8": 0.6, "9": 0.4}), ("5", {"5": 0.5, "0": 0.5})], 86.5),
        # Numbers of one token each; "I" is none: (0.5 x 85 + 0.3 x 90 + 0.1 x 100) / 0.9
        ([(" 85", {" 85": 0.5, "90": 0.3, "100": 0.1, "I": 0.1}), ("\n", {"\n": 1.0})], 79.5 / 0.9),
        # 10, or 100 with a third digit
        ([("1", {"1": 1.0}), ("0", {"0": 1.0}), ("0", {"0": 0.25, "\n": 0.75})], 32.5),
        # 85, or perhaps 100, which is not 10 and 15
        ([("8", {"8": 0.6, "1": 0.4}), ("5", {"5": 1.0})], 85.0),
        # 7, or 70 with probability 0.1; what is before the number does not matter
        ([("A", {"A": 1.0}), (":", {":": 1.0}), ("\u01207", {"\u01207": 1.0}), (".", {".": 0.9, "0": 0.1})], 13.3),
        # 85, since 850 to 859 are too large; " 5" begins another number
        ([("85", {"85": 1.0}), ("0", {"0": 0.5, " 5": 0.5})], 85.0),
        # 0 and 5; the rest of the probabilities, which is not listed, ends the number
        ([("0", {"0": 0.5}), (" ", {"5": 0.5})], 2.5),
        ([("no", {"no": 0.9, "7": 0.1})], None),
        ([], None),
    ],
)  # fmt: skip
def test_the_expected_number_by_hand(tokens: Sequence[tuple[str, Mapping[str, float]]], number: float | None) -> None:
    assert expected_number(tokens) == pytest.approx(number)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("85", 85), ("85/100", 85), ("Score: 85%.", 85), ("**8.5**", 8.5), ("0 to 3", 0), ("100", 100)),
        *(("From 0-100: 85", 85), ("1234 and 50", 50), ("10,000", None), ("-5", None), ("no", None), ("", None)),
        *(("K2 is 7", 7), ("七十", None), ("٣", None), ("分数：70", 70)),
    ],
)
def test_a_number_in_words(text: str, number: float | None) -> None:
    assert written_number(text) == number


@pytest.mark.parametrize(
    ("tokens", "written", "expected"),
    [
        # 4, or 2: 0.75 x 4 + 0.25 x 2; 7 and 0 are off the scale
        ([("4", {"4": 0.6, "2": 0.2, "7": 0.1, "0": 0.1}), ("\n", {"\n": 1.0})], 4, 3.5),
        ([("4", {"4": 1.0}), ("/", {"/": 1.0}), ("5", {"5": 1.0})], 4, 4),
        ([("1", {"1": 1.0}), ("0", {"0": 1.0})], None, None),  # 10 is not 1
        ([("1", {"1": 1.0}), (".", {".": 1.0}), ("5", {"5": 1.0})], 1.5, 1),  # tokens: whole numbers only
        ([("7", {"7": 1.0})], None, None),
    ],
)
def test_numbers_from_1_to_5_by_hand(
    tokens: Sequence[tuple[str, Mapping[str, float]]], written: float | None, expected: float | None
) -> None:
    assert written_number("".join(token for token, _ in tokens), (1, 5)) == written
    assert expected_number(tokens, (1, 5)) == pytest.approx(expected)


@pytest.mark.parametrize("fixture", ["chat_language_model", "llava_model", "qwen_vl_model"])
def test_a_model_reads_captions_without_an_image_as_the_library_does(
    fixture: str, request: pytest.FixtureRequest
) -> None:
    import transformers as hf

    folder = request.getfixturevalue(fixture)
    texts = ["a Dog", "dog " * 30, "\u4e00\u53ea\u72d7", "a </s>", None]
    (question,) = read_aspects(None, "concreteness.yaml")[0].values()
    samples = [Sample(uid=(0, n), key=str(n), caption=text, shown_caption=text) for n, text in enumerate(texts)]
    found = score_batch(Judge(model=folder, of="caption"), samples)
    written = score_batch(Judge(model=folder, of="caption", number="written"), samples)
    cls: Any = hf.AutoModelForCausalLM if "language" in fixture else hf.AutoModelForImageTextToText
    model, tokenizer = cls.from_pretrained(folder).eval(), hf.AutoTokenizer.from_pretrained(folder)
    for row, text in enumerate(texts[:-1]):
        asked = question.replace("{caption}", str(text).replace("</s>", "< /s>"))
        content = asked if "language" in fixture else [{"type": "text", "text": asked}]
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, return_dict=True, return_tensors="pt"
        )
        with torch.inference_mode():
            made = model.generate(
                **ids, max_new_tokens=16, do_sample=False, output_scores=True, return_dict_in_generate=True
            )
        shares = [step[0].softmax(-1).topk(20) for step in made.scores]
        new = made.sequences[0, ids["input_ids"].shape[1] :].tolist()
        words = tokenizer.convert_ids_to_tokens
        tokens = [
            (word, dict(zip(words(step.indices.tolist()), step.values.tolist(), strict=True)))
            for word, step in zip(words(new), shares, strict=False)
        ]
        for scored, number in (
            (found, expected_number(tokens, (1, 5))),
            (written, written_number(tokenizer.decode(new, skip_special_tokens=True), (1, 5))),
        ):
            value = np.nan if number is None else number
            np.testing.assert_allclose(scored["judge_concreteness"][row], value, rtol=1e-4)
    assert np.isnan(found["judge_concreteness"][-1])


def test_a_model_that_cannot_answer_without_an_image_is_refused(
    blip2_model: str, llama_model: str, clip_model: str
) -> None:
    for model, message in (
        (blip2_model, "answers only about images"),
        (llama_model, "has no chat template"),
        (clip_model, "'clip' model and not a language model"),
    ):
        with pytest.raises(ModelError, match=message):
            Judge(model=model, of="caption").load(Device())


DIGITS = "0123456789"


def by_all_ways(tokens: list[dict[str, float]]) -> float | None:
    """The expected number by going through every way to write one of up to three digits, a token each."""
    start = next((n for n, step in enumerate(tokens) if next(iter(step)) in DIGITS), None)
    if start is None:
        return None
    steps = tokens[start : start + 3]
    size = next((n for n, step in enumerate(steps) if n and next(iter(step)) not in DIGITS), len(steps) - 1) + 1
    shares: dict[str, float] = {}
    for number in (str(n) for n in range(1000)):
        for text in {number, number.zfill(2), number.zfill(3)}:
            # Up to 10 a number may go on; it ends where no digit follows, or where it cannot go on.
            goes_on = all(int(text[:n]) <= 10 for n in range(1, len(text)))
            if len(text) <= size and int(text) <= 100 and goes_on:
                share = math.prod(steps[place].get(digit, 0.0) for place, digit in enumerate(text))
                if len(text) < size and int(text) <= 10:
                    share *= 1 - sum(steps[len(text)].get(digit, 0.0) for digit in DIGITS)
                shares[text] = share
    return sum(int(text) * share for text, share in shares.items()) / sum(shares.values())


def test_a_checkpoint_judges_by_its_answers(llava_model: str) -> None:
    texts = ["a Dog", "A DOG", "dog " * 100, "\u4e00\u53ea\u72d7", "\u0643\u0644\u0628", "a <image></s>", "{aspect} 5"]
    samples = [dataclasses.replace(pairs.good_pairs()[0], caption=text) for text in texts]
    expected, written = Judge(model=llava_model), Judge(model=llava_model, number="written")
    found = score_batch(expected, samples)
    words, (known, _), some = score_batch(written, samples), read_aspects(None), 0
    model = load_chat(llava_model, Device())  # whose answers tests/models compares with the library's own
    for row, (sample, text) in enumerate(zip(samples, texts, strict=True)):
        for name in NAMES:
            assert sample.pixels is not None
            plain = text.replace("<image>", "< image>").replace("</s>", "< /s>")
            (answer,) = model.answer([sample.pixels], [known[name].replace("{caption}", plain)], 16)
            value = by_all_ways([shares for _, shares in answer.tokens or ()])
            some += value is not None
            np.testing.assert_allclose(found[f"judge_{name}"][row], np.nan if value is None else value, rtol=1e-5)
            number = written_number(answer.text)
            np.testing.assert_equal(words[f"judge_{name}"][row], np.float32(np.nan if number is None else number))
            if value is None:
                assert f"{name}: the model answered {answer.text!r}" in found["reason"][row]
    assert some > 7


def test_a_checkpoint_that_cannot_answer_is_said_before_work(clip_model: str, blip_model: str) -> None:
    for model in (clip_model, blip_model):
        with pytest.raises(ModelError, match="types that caption images here"):
            Judge(model=model).load(Device())


def says(body: Mapping[str, Any]) -> str | list[dict[str, float]]:
    """What a model of the tests says: some number for each aspect, words for a caption of "only words"."""
    prompt = prompt_of(body)
    if "only words" in prompt:
        return "I cannot say"
    words = ("fit each", "precisely", "Rate only", "beyond")
    tens = 2 + next((place for place, word in enumerate(words) if word in prompt), 7)
    return [{str(tens): 1.0}, {"0": 0.5, "9": 0.5}, {"\n": 1.0}]


def judge(server: ChatServer, **settings: Any) -> dict[str, Any]:
    return {"judge": {"model": {"url": server.url, "model": "tiny"}} | settings}


def reasons(run: tamis.Run) -> list[str | None]:
    (folder,) = (group.folder for group in run.scores.values())
    tables = [read_columns(folder / f"{shard}.parquet", ["reason"]) for shard in run.shards]
    return [reason for table in tables for reason in table["reason"].to_pylist()]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A shard of pairs: two good ones, a caption that makes the model talk, no image, no caption, odd signs."""
    samples = {
        "one": pair(1),
        "two": pair(2) | {"txt": "A {aspect} of {caption} {} 图像 صورة".encode()},
        "talks": pair(3) | {"txt": b"only words"},
        "broken": pair(4) | {"jpg": b"no image"},
        "empty": pair(5) | {"txt": b""},
    }
    return write_tar(tmp_path / "small" / "00000.tar", samples.items()).parent


def test_a_server_judges_pairs_by_the_four_aspects(small: Path, tmp_path: Path, quick: None) -> None:
    with ChatServer(says) as server:
        run = score(small, tmp_path / "run", judge(server))
        written = score(small, tmp_path / "written", judge(server, number="written", aspects=["caption_text_quality"]))
        asked = server.asked
    found = {name: run.to_numpy(f"judge_{name}") for name in NAMES}
    for tens, name in enumerate(NAMES, 2):
        np.testing.assert_allclose(found[name], [10 * tens + 4.5] * 2 + [np.nan] * 3)
    np.testing.assert_allclose(written.to_numpy("judge_caption_text_quality"), [40] * 2 + [np.nan] * 3)
    assert {name for name in written.score_names() if name.startswith("judge")} == {"judge_caption_text_quality"}
    first, second, talks, *_ = reasons(run)
    assert (first, second) == (None, None)
    assert talks.startswith(f"{NAMES[0]}: the model answered 'I cannot say'; {NAMES[1]}: the model answered")
    assert len(asked) == 12 + 3
    assert all(body["temperature"] == 0 and body["max_tokens"] == 16 for body in asked)
    assert [body.get("top_logprobs") for body in asked] == [20] * 12 + [None] * 3
    assert sum("\n----\nA {aspect} of {caption} {} 图像 صورة\n----\nRate " in prompt_of(body) for body in asked) == 5


def test_a_server_reads_captions_without_images(tmp_path: Path, quick: None) -> None:
    table = tmp_path / "captions.csv"
    table.write_text("caption\na red dog\nonly words\na hope\n")
    with ChatServer(lambda body: "no" if "only words" in prompt_of(body) else [{"4": 0.5, "2": 0.5}]) as server:
        run = score(tamis.PoolSpec(path=str(table), image="none"), tmp_path / "run", judge(server, of="caption"))
        asked = server.asked
    assert run.to_numpy("judge_concreteness").tolist() == pytest.approx([3, np.nan, 3], nan_ok=True)
    assert reasons(run) == [None, "concreteness: the model answered 'no'", None]
    assert {type(body["messages"][0]["content"]) for body in asked} == {str}  # servers of language models take no parts


def test_aspects_of_ones_own(small: Path, tmp_path: Path, quick: None) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("prompt: '{aspect}! {caption}'\naspects: {colour: Is it red, light: How beyond dark}\n")
    with ChatServer(lambda body: "61") as server:
        run = score(small, tmp_path / "run", judge(server, aspects_from=str(file)))
        assert {prompt_of(body).partition("!")[0] for body in server.asked} == {"Is it red", "How beyond dark"}
    assert [name for name in run.score_names() if name.startswith("judge")] == ["judge_colour", "judge_light"]
    assert run.to_numpy("judge_light")[:3].tolist() == [61] * 3


@pytest.mark.parametrize(
    ("settings", "server", "error", "message"),
    [
        ({"aspects": ["matching"]}, {}, RecipeError, "unknown aspect 'matching'.*image_text_matching"),
        ({"aspects_from": "nowhere.yaml"}, {}, RecipeError, "the aspects 'nowhere.yaml' cannot be read"),
        ({"number": "probable"}, {}, RecipeError, "judge, number: expected 'expected' or 'written'"),
        ({"model": {"url": "http://one", "model": "m", "prompt": "What?"}}, {}, RecipeError, "leave out prompt='What"),
        ({"max_tokens": 0}, {}, RecipeError, "max_tokens must be at least 1"),
        (
            {},
            {"logprobs": False},
            ModelError,
            "gives no logprobs for tiny: set number: written",
        ),
    ],
)
def test_what_cannot_be_judged_is_said_before_work(
    settings: dict[str, Any], server: dict[str, Any], error: type[Exception], message: str,
    small: Path, tmp_path: Path, quick: None,
) -> None:  # fmt: skip
    with ChatServer(says, **server) as one, pytest.raises(error, match=message):
        score(small, tmp_path / "run", judge(one, **settings))


@pytest.mark.parametrize(
    "text",
    [
        *("a: [", "- 1", "aspects: {}", "aspects: {A b: x}", "aspects: {a: 1}", "aspects: {a: x}\nprompt: '{caption}'"),
        *(
            f"aspects: {{a: x}}\nprompt: '{{caption}} {{aspect}}'\nscale: {scale}"
            for scale in ("5", "[5, 1]", "[0, 999]")
        ),
        "aspects: {a: x}\nscale: [1, 5]",
    ],
)
def test_a_file_that_holds_no_aspects_is_said_so(text: str, tmp_path: Path) -> None:
    (tmp_path / "aspects.yaml").write_text(text)
    with pytest.raises(RecipeError, match=r"aspects\.yaml"):
        load({"signals": [{"judge": {"model": "m", "aspects_from": str(tmp_path / "aspects.yaml")}}]})


def test_the_fingerprint_holds_what_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"

    def fingerprint(text: str = "aspects: {a: x}", **settings: Any) -> str:
        file.write_text(text)
        model = {"url": "http://one", "model": "m"} | settings.pop("model", {})
        recipe = load({"signals": [{"judge": {"model": model, "aspects_from": str(file)} | settings}]})
        return Identities(Device()).fingerprint(recipe.signals[0][1])

    same = {fingerprint(), fingerprint(model={"url": "http://two", "requests": 3})}
    other = {fingerprint("aspects: {a: y}"), fingerprint("aspects: {a: x}\nprompt: '{aspect} {caption}'"),
             fingerprint(model={"model": "n"}), fingerprint(number="written"), fingerprint(max_tokens=3)}  # fmt: skip
    assert (len(same), len(same | other)) == (1, 6)
    # Another wording gives other numbers: raise the version with it.
    shipped = (Path(tamis.__file__).parent / "signals/judge.yaml").read_bytes()
    assert (Judge.version, xxhash.xxh3_64_hexdigest(shipped)) == (1, "3d441b4127fe5bb5")
    assert json.loads(json.dumps([column.name for column in Judge.columns])) == [f"judge_{name}" for name in NAMES]
