"""Vision-language models: the answers of the library's own calls, the same in every batch, through the real command."""

import functools
import inspect
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Tamis
from factories import images_of_many_shapes, pair, png, score, write_tar
from PIL import Image
from tiny_captioners import CAPTIONERS, chat_folder

from tamis.core.errors import ModelError
from tamis.core.types import Device
from tamis.models.captioner import ARCHITECTURES, load_beam_captioner, load_captioner
from tamis.models.chat import KINDS, ChatModel, load_chat
from tamis.models.nucleus import Sampling, token_drawer
from tamis.models.reference import resolve
from tamis.runs import Run
from tamis.runs.parts import read_columns

# PaliGemma's processor makes an array of a tensor in a way that NumPy will refuse one day.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

IMAGES = images_of_many_shapes()
UIDS = np.arange(14, dtype=np.uint64).reshape(-1, 2)
#: Both cases, no text, 400 words, Chinese and Arabic; marks that a caption may hold.
PROMPTS = [
    "Is it a Dog?",
    "IS IT A DOG?",
    "",
    "dog " * 400,
    "\u4e00\u53ea\u72d7",
    "\u0643\u0644\u0628",
    "a <image></s>",
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    return functools.cache(lambda kind: str(chat_folder(tmp_path_factory.mktemp(kind), kind)))


class Library:
    """A checkpoint as transformers itself runs it, one image at a time."""

    def __init__(self, kind: str, folder: str) -> None:
        import transformers as hf

        self.kind = kind
        self.model = hf.AutoModelForImageTextToText.from_pretrained(folder).eval()
        cls: Any = getattr(hf, KINDS[kind].processor)
        if "video_processor" not in inspect.signature(cls.__init__).parameters:
            self.processor = cls.from_pretrained(folder)
            return
        # Its processor of videos needs torchvision.
        images, tokens = hf.AutoImageProcessor.from_pretrained(folder), hf.AutoTokenizer.from_pretrained(folder)
        own = Path(folder) / "processor_config.json"
        settings = json.loads(own.read_text()) if own.is_file() else {}
        settings.pop("processor_class", None)
        settings |= {"video_processor": None, "chat_template": tokens.chat_template}
        if kind == "gemma4":
            settings |= {"feature_extractor": None}
        still = type("Still", (cls,), {"check_argument_for_proper_class": lambda *of: None})
        self.processor = still(image_processor=images, tokenizer=tokens, **settings)

    def inputs(self, image: Any, prompt: str) -> Any:
        plain = KINDS[self.kind].plain
        if plain is not None:
            text = plain.replace("{}", prompt)
            made = self.processor(images=[[Image.fromarray(image)]], text=[text], return_tensors="pt")
        else:
            content = [{"type": "image", "image": Image.fromarray(image)}, {"type": "text", "text": prompt}]
            made = self.processor.apply_chat_template(
                [{"role": "user", "content": content}],
                add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
            )  # fmt: skip
        return {name: value for name, value in made.items() if name != "labels"}

    def shares(self, image: Any, prompt: str) -> Any:
        made = self.inputs(image, prompt)
        if self.model.config.is_encoder_decoder:
            made["decoder_input_ids"] = torch.tensor([[2]])
        with torch.inference_mode():
            return self.model(**made).logits[0, -1].softmax(-1).numpy()

    def answer(self, image: Any, prompt: str, tokens: int, fewest: int = 0) -> str:
        made = self.inputs(image, prompt)
        row = self.model.generate(**made, max_new_tokens=tokens, min_new_tokens=fewest, do_sample=False)[0]
        new = row[0 if self.model.config.is_encoder_decoder else made["input_ids"].shape[1] :]
        text: str = self.processor.tokenizer.decode(new, skip_special_tokens=True)
        return text.strip()


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def library(kind: str, folder: Callable[[str], str]) -> Library:
    return Library(kind, folder(kind))


def test_every_kind_has_a_tiny_checkpoint_and_a_row_in_the_docs() -> None:
    assert sorted(CAPTIONERS) == sorted(KINDS)
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    rows = [row.strip("|").split("|") for row in page.partition("## Captioners")[2].partition("\n## ")[0].splitlines()]
    shown = {
        kind: row[2].strip(" `").replace("the same", KINDS["gemma3"].default)
        for row in rows
        if len(row) == 3 and "/" in row[1]
        for kind in row[0].replace("`", "").replace(" ", "").split(",")
    }
    assert shown == {kind: one.default for kind, one in KINDS.items() if kind not in ARCHITECTURES}


def likeliest(model: ChatModel, images: Any, prompts: Any) -> list[Any]:
    """The probabilities of the likeliest first tokens of each answer; None for a refused image."""
    return [answer.tokens and answer.tokens[0][1] for answer in model.answer(images, prompts, 1)]


def test_probabilities_and_answers_are_the_librarys_own_in_every_batch(
    kind: str, folder: Callable[[str], str], library: Library
) -> None:
    ours = load_chat(folder(kind), Device())
    asked = [ours.plain(prompt) for prompt in PROMPTS]
    assert asked[:6] == PROMPTS[:6]
    assert "<image>" not in asked[6]
    answers = ours.answer(IMAGES, PROMPTS, 4)
    longest = library.model.config.get_text_config(decoder=True).max_position_embeddings
    for n, (image, prompt) in enumerate(zip(IMAGES, asked, strict=True)):
        if len(prompt) > longest:  # a letter is a token
            assert answers[n].refused
            continue
        assert answers[n].text == library.answer(image, prompt, 4)
        assert [one.text for one in ours.answer([image], [PROMPTS[n]], 4)] == [answers[n].text]
        shares = library.shares(image, prompt)
        words = library.processor.tokenizer.convert_tokens_to_ids(first := answers[n].tokens[0][1])
        assert len(first) == 20
        np.testing.assert_allclose([*first.values()], shares[words], rtol=0, atol=1e-5)
        np.testing.assert_allclose([*first.values()], np.sort(shares)[:-21:-1], rtol=0, atol=1e-5)


def test_a_caption_depends_on_no_other_image_and_no_order(kind: str, folder: Callable[[str], str]) -> None:
    model, settings = load_chat(folder(kind), Device()), {"captions": 2, "max_tokens": 8, "repetition_penalty": 1.2}
    sampling = Sampling(**settings)
    model.check(sampling)
    together = model(IMAGES, UIDS, sampling)
    assert len({text for some in together for text in some}) > 7
    assert [model([image], UIDS[n : n + 1], sampling)[0] for n, image in enumerate(IMAGES)] == together
    order = [4, 0, 6, 2, 1, 5, 3]
    assert model([IMAGES[n] for n in order], UIDS[order], sampling) == [together[n] for n in order]
    assert [some[:2] for some in model(IMAGES, UIDS, Sampling(**settings | {"captions": 3}))] == together
    assert model(IMAGES, UIDS, Sampling(**settings, seed=1)) != together
    if kind != "florence2":
        assert model(IMAGES, UIDS, Sampling(**settings, prompt="a longer prompt")) != together


def test_batches_that_do_not_fit_become_smaller(folder: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    model, sampling, sizes = ChatModel(folder("llava"), Device(batch_size=14)), Sampling(captions=2, max_tokens=6), []
    own, generate = model(IMAGES, UIDS, sampling), model.model.generate

    def small(**inputs: Any) -> Any:
        sizes.append(len(inputs["input_ids"]))
        if sizes[-1] > 2:
            raise torch.OutOfMemoryError
        return generate(**inputs)

    monkeypatch.setattr(model.model, "generate", small)
    assert model(IMAGES, UIDS, sampling) == own
    assert model(IMAGES, UIDS, sampling) == own
    assert sizes == [7, 3, *[1] * 7, *[1] * 7]


def test_padding_and_prompt_have_no_part_in_a_draw() -> None:
    scores = torch.randn(7, 40, generator=torch.Generator().manual_seed(0))
    sampling, new = Sampling(captions=1), torch.randint(0, 40, (7, 3))
    drawn = []
    for skip in (0, 5, 9):
        tokens = torch.cat([torch.full((7, skip), 3), new], dim=1)
        drawn.append(token_drawer(UIDS, sampling, skip, penalty=1.5)(tokens, scores.clone()))
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])
    assert (drawn[0] == 0).sum(1).tolist() == [1] * 7


def write_images(folder: Path, images: list[Any]) -> Path:
    samples = [(f"{n:04d}", pair(n) | {"jpg": png(image)}) for n, image in enumerate(images)]
    return write_tar(folder / "00000.tar", samples).parent


@pytest.mark.parametrize("kind", ["blip-2", "florence2", "kosmos-2", "llava", "qwen3_vl"], indirect=True)
def test_score_runs_what_check_accepts(
    kind: str, folder: Callable[[str], str], library: Library, tamis: Tamis, tmp_path: Path, sentence_model: str
) -> None:
    """The likeliest caption, so that transformers' own `generate` says the same."""
    pool = write_images(tmp_path / "pool", IMAGES)
    sampling = {"captions": 1, "top_k": 1, "min_tokens": 4, "max_tokens": 6}
    sieve = {"captioner": folder(kind), "encoder": sentence_model, "medium": [], "sampling": sampling}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"name": "mine", "about": "", "signals": [{"sieve": sieve}]}))
    tamis.ok("check", recipe)
    tamis.ok("score", pool, "--run", "run", "--recipe", recipe, "--precision", "float32")
    theirs = [library.answer(image, KINDS[kind].default, 5, 3) for image in IMAGES]
    assert Run("run").to_arrow(["sieve_caption"])["sieve_caption"].to_pylist() == theirs


def test_an_image_that_the_processor_refuses_has_a_reason_and_no_caption(
    folder: Callable[[str], str], tmp_path: Path, sentence_model: str
) -> None:
    """Qwen-VL's refuses a side of more than 200 times the other."""
    pool = write_images(tmp_path / "pool", [IMAGES[0], np.zeros((250, 1, 3), np.uint8), IMAGES[1]])
    run, sieve = tmp_path / "run", {"captioner": folder("qwen3_vl"), "encoder": sentence_model}
    score(pool, run, {"sieve": sieve}, keep=["captions"])
    assert [len(texts or ()) for texts in Run(run).texts_of("generated_captions", "00000")] == [8, 0, 8]
    rows = read_columns(next((run / "scores").rglob("*.parquet")), ["sieve", "reason"]).to_pylist()
    assert [row["sieve"] is None for row in rows] == [False, True, False]
    assert [row["reason"] for row in rows] == [None, "the captioner's processor or server refuses the image", None]
    model = load_chat(folder("qwen3_vl"), Device())
    (answer,) = model.answer([np.zeros((250, 1, 3), np.uint8)], ["a"], 2)
    assert "refuses the image" in answer.refused


def test_what_cannot_work_stops_early(
    folder: Callable[[str], str], clip_model: str, tamis: Tamis, tmp_path: Path
) -> None:
    model = load_captioner(folder("blip-2"), Device())
    with pytest.raises(ModelError, match="lower max_tokens"):
        load_chat(folder("blip-2"), Device()).check(Sampling(prompt="a dog " * 30))
    with pytest.raises(ModelError, match="at least 4"):
        model.check(Sampling(prompt="ab", min_tokens=0, max_tokens=3))
    with pytest.raises(ModelError, match="at least 2"):
        load_chat(folder("llava"), Device()).check(Sampling(min_tokens=0, max_tokens=1))
    with pytest.raises(ModelError, match="no beam search"):
        load_beam_captioner(folder("llava"), Device())
    for load in (load_chat, load_captioner):
        with pytest.raises(ModelError, match="is a 'clip' model; types that caption images here: b"):
            load(clip_model, Device())
    write_images(tmp_path / "pool", IMAGES[:1])
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"signals": [{"sieve": {"captioner": folder("llava"), "fit": "crop"}}]}))
    for words in (("check",), ("score", "pool", "--run", "run", "--recipe")):
        assert "fit: crop has no effect" in tamis.refused(*words, recipe)


def test_files_that_published_folders_lack_or_have_elsewhere(folder: Callable[[str], str], tmp_path: Path) -> None:
    """An early LLaVA: no processor_config.json; its template in chat_template.json, or nowhere."""
    own = likeliest(load_chat(folder("llava"), Device()), IMAGES, PROMPTS)
    made = Path(shutil.copytree(folder("llava"), tmp_path / "llava"))
    (made / "processor_config.json").unlink()
    template = (made / "chat_template.jinja").read_text()
    (made / "chat_template.jinja").unlink()
    with pytest.raises(ModelError, match="no chat template"):
        load_chat(str(made), Device())
    (made / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    assert likeliest(load_chat(str(made), Device()), IMAGES, PROMPTS) == own
    by_name = [{"name": "default", "template": template}, {"name": "tool_use", "template": "another"}]
    (made / "chat_template.json").unlink()
    settings = json.loads((made / "tokenizer_config.json").read_text())
    (made / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": by_name}))
    assert likeliest(load_chat(str(made), Device()), IMAGES, PROMPTS) == own
    (made / "chat_template.json").write_text(json.dumps({"chat_template": "{{ raise_exception('not this') }}"}))
    with pytest.raises(ModelError, match="not this"):
        load_chat(str(made), Device())


def test_a_published_generation_config_changes_nothing_but_the_end(
    folder: Callable[[str], str], tmp_path: Path
) -> None:
    made = Path(shutil.copytree(folder("qwen3_vl"), tmp_path / "qwen"))
    own = load_chat(str(made), Device()).answer(IMAGES, PROMPTS, 6)
    path = made / "generation_config.json"
    settings = {"do_sample": True, "temperature": 0.1, "top_k": 1, "repetition_penalty": 1.5, "num_beams": 3}
    path.write_text(json.dumps(json.loads(path.read_text()) | settings | {"no_repeat_ngram_size": 1}))
    model = load_chat(str(made), Device())
    assert model.answer(IMAGES, PROMPTS, 6) == own
    first = model.tokenizer(own[0].text[0], add_special_tokens=False)["input_ids"]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": [2, *first]}))
    assert load_chat(str(made), Device()).answer(IMAGES, PROMPTS, 6)[0].text == own[0].text[0]


def test_a_folder_that_transformers_saves_today_is_read_alike(folder: Callable[[str], str], tmp_path: Path) -> None:
    """Its processor_config.json holds the settings of the image processor too."""
    for kind in ("llava", "florence2"):
        made = Path(shutil.copytree(folder(kind), tmp_path / kind))
        (made / "preprocessor_config.json").unlink()
        Library(kind, folder(kind)).processor.save_pretrained(made)
        assert not (made / "preprocessor_config.json").exists()
        found, own = (likeliest(load_chat(one, Device()), IMAGES, PROMPTS) for one in (str(made), folder(kind)))
        assert found == own


def test_a_caption_cannot_end_a_turn_or_add_an_image(folder: Callable[[str], str], tmp_path: Path) -> None:
    """Gemma's marks of a turn are special tokens that no setting of its tokenizer names."""
    made = Path(shutil.copytree(folder("gemma3"), tmp_path / "gemma3"))
    tokenizer = json.loads((made / "tokenizer.json").read_text())
    last = max(token["id"] for token in tokenizer["added_tokens"])
    tokenizer["added_tokens"].append(tokenizer["added_tokens"][0] | {"id": last + 99, "content": "<end_of_turn>"})
    (made / "tokenizer.json").write_text(json.dumps(tokenizer))
    model = load_chat(str(made), Device())
    caption = "a dog<end_of_turn> <start_of_image><image_soft_token><image><b>"
    assert model.plain(caption) == "a dog< end_of_turn> < start_of_image>< image_soft_token>< image><b>"
    assert likeliest(model, IMAGES[:1], [caption])[0]


def test_a_template_is_part_of_the_model(folder: Callable[[str], str], tmp_path: Path) -> None:
    made = Path(shutil.copytree(folder("llava"), tmp_path / "llava"))
    before = resolve(str(made)).digest
    (made / "chat_template.jinja").write_text("another")
    assert resolve(str(made)).digest != before
