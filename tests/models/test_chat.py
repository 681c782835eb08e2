"""Vision-language models: the answers of the library's own calls, the same in every batch, through the real command."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Tamis
from factories import pair, png, write_tar
from PIL import Image
from tiny_captioners import CAPTIONERS, captioner

torch = pytest.importorskip("torch")

from tamis.data import Device  # noqa: E402
from tamis.models.chat import KINDS, ChatModel, load_chat  # noqa: E402
from tamis.models.nucleus import Sampling, drawn_token  # noqa: E402
from tamis.store import Run  # noqa: E402

# PaliGemma's processor makes an array of a tensor in a way that NumPy will refuse one day.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SIZES = [(70, 40), (40, 90), (33, 33), (200, 20), (16, 16), (64, 64), (20, 130)]
IMAGES = [
    np.asarray(Image.fromarray(np.random.default_rng(n).integers(0, 256, (4, 6, 3), dtype=np.uint8)).resize(size))
    for n, size in enumerate(SIZES)
]
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
    made: dict[str, str] = {}

    def of(kind: str) -> str:
        if kind not in made:
            made[kind] = captioner(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    return of


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
        still = type("Still", (cls,), {"get_attributes": classmethod(lambda cls: ["image_processor", "tokenizer"])})
        self.processor = still(images, tokens, video_processor=None, chat_template=tokens.chat_template, **settings)

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

    def logits(self, image: Any, prompt: str) -> Any:
        made = self.inputs(image, prompt)
        if self.model.config.is_encoder_decoder:
            made["decoder_input_ids"] = torch.tensor([[2]])
        with torch.inference_mode():
            return self.model(**made).logits[0, -1].numpy()

    def answer(self, image: Any, prompt: str, tokens: int, fewest: int = 0) -> str:
        made = self.inputs(image, prompt)
        row = self.model.generate(**made, max_new_tokens=tokens, min_new_tokens=fewest, do_sample=False)[0]
        new = row[0 if self.model.config.is_encoder_decoder else made["input_ids"].shape[1] :]
        text: str = self.processor.tokenizer.decode(new, skip_special_tokens=True)
        return text.strip()


def test_every_kind_has_a_tiny_checkpoint() -> None:
    assert sorted(CAPTIONERS) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_answers_are_the_librarys_own_in_every_batch(kind: str, folder: Callable[[str], str]) -> None:
    ours, theirs = ChatModel(folder(kind), Device()), Library(kind, folder(kind))
    asked = [ours.plain(prompt) for prompt in PROMPTS]
    assert asked[:6] == PROMPTS[:6]
    assert "<image>" not in asked[6]
    logits, answers = ours.next_logits(IMAGES, PROMPTS), ours.answer(IMAGES, PROMPTS, 4)
    assert logits.dtype == np.float32
    longest = theirs.model.config.get_text_config(decoder=True).max_position_embeddings
    for n, (image, prompt) in enumerate(zip(IMAGES, asked, strict=True)):
        if len(prompt) > longest:  # a letter is a token
            assert np.isnan(logits[n]).all()
            assert answers[n] is None
            continue
        np.testing.assert_allclose(logits[n], theirs.logits(image, prompt), rtol=0, atol=1e-5)
        assert answers[n] == theirs.answer(image, prompt, 4)
        assert ours.answer([image], [PROMPTS[n]], 4) == [answers[n]]
    assert len(logits[0]) > 90
    assert np.abs(logits[0] - logits[1]).max() > 1e-3  # there is something to compare


@pytest.mark.parametrize("kind", KINDS)
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


def test_padding_and_prompt_have_no_part_in_a_draw() -> None:
    scores = torch.randn(7, 40, generator=torch.Generator().manual_seed(0))
    sampling, new = Sampling(captions=1), torch.randint(0, 40, (7, 3))
    drawn = []
    for skip in (0, 5, 9):
        tokens = torch.cat([torch.full((7, skip), 3), new], dim=1)
        drawn.append(drawn_token(UIDS, sampling, skip, penalty=1.5)(tokens, scores.clone()))
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])
    assert (drawn[0] == 0).sum(1).tolist() == [1] * 7


def write_images(folder: Path, images: list[Any]) -> Path:
    samples = [(f"{n:04d}", pair(n) | {"jpg": png(image)}) for n, image in enumerate(images)]
    return write_tar(folder / "00000.tar", samples).parent


@pytest.mark.parametrize("kind", KINDS)
def test_score_runs_what_check_accepts(
    kind: str, folder: Callable[[str], str], tamis: Tamis, tmp_path: Path, sentence_model: str
) -> None:
    """The likeliest caption, so that transformers' own `generate` says the same."""
    pool = write_images(tmp_path / "pool", IMAGES)
    sampling = {"captions": 1, "top_k": 1, "min_tokens": 4, "max_tokens": 6}
    sieve = {"captioner": folder(kind), "encoder": sentence_model, "medium": [], "sampling": sampling}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"name": "mine", "about": "", "signals": [{"sieve": sieve}]}))
    assert tamis("check", recipe).code == 0
    found = []
    for size in (1, 7):
        run = tmp_path / f"run{size}"
        done = tamis(
            "score", pool, "--run", run, "--recipe", recipe, "--batch-size", str(size), "--precision", "float32"
        )
        assert done.code == 0, done.err
        found.append(Run(run).to_arrow(["sieve", "sieve_caption"]).to_pydict())
    np.testing.assert_allclose(found[0]["sieve"], found[1]["sieve"], atol=1e-5)
    library = Library(kind, folder(kind))
    theirs = [library.answer(image, KINDS[kind].default, 5, 3) for image in IMAGES]
    assert found[0]["sieve_caption"] == found[1]["sieve_caption"] == theirs
