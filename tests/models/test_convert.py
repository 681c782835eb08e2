"""`tamis convert`: the same logits as the source's own layout computes, and nothing half-written where it fails."""

import gzip
import hashlib
import json
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Tamis
from factories import plain_image
from plain_layouts import PlainBlip, PlainOpenClip, gelu, quick_gelu
from safetensors.torch import load_file, save_file
from tiny_models import clip_folder, tokenizer_folder
from transformers import AutoTokenizer

from tamis.core.errors import ModelError, TamisError
from tamis.core.types import Device
from tamis.models.captioner import load_beam_captioner
from tamis.models.clip import load_clip, load_tokenizer
from tamis.models.convert import blip_tokenizer, clip_tokenizer, convert
from tamis.models.preprocess import load_preprocess
from tamis.models.reference import cleaning_of, resolve

WORDS = ["a", "red", "dog", "cat", "boat", "on", "grass", "two", "house", "old"]
SIGNS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
CPU = Device()
#: 256 bytes, the same at a word's end, six merges, two signs.
CLIP_WORDS = 520

Wrap = Callable[[Mapping[str, Any]], Any]


@pytest.fixture
def bert(tmp_path: Path) -> str:
    """The folder of a tiny tokenizer of BERT's kind."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate([*SIGNS, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(tmp_path / "bert")
    return str(tmp_path / "bert")


@pytest.fixture
def merges(tmp_path: Path) -> str:
    """A short list of merges, laid out as OpenAI's."""
    merges = ["d o", "do g</w>", "c a", "ca t</w>", "r e", "re d</w>"]
    path = tmp_path / "bpe_simple_vocab_16e6.txt.gz"
    path.write_bytes(gzip.compress("\n".join(["#version: 0.2", *merges, ""]).encode()))
    return str(path)


IMAGES = [plain_image(seed, size=(32, 32)) for seed in range(3)]


def pixels() -> torch.Tensor:
    """The images, normalised as for CLIP."""
    mean = np.array([0.48145466, 0.4578275, 0.40821073])
    std = np.array([0.26862954, 0.26130258, 0.27577711])
    return torch.tensor((np.stack(IMAGES) / 255 - mean) / std).permute(0, 3, 1, 2).float()


@pytest.fixture
def blip() -> PlainBlip:
    return PlainBlip(len(SIGNS) + len(WORDS) + 2).eval()


def saved(state: Mapping[str, Any], path: Path) -> Path:
    """Writes a state dict as safetensors: what is mapped does not depend on how it was packed."""
    save_file({name: one.clone().contiguous() for name, one in state.items()}, path)
    return path


def pretraining(state: Mapping[str, Any]) -> dict[str, Any]:
    """What BLIP's pretraining saves: other networks, queues, an optimiser, and a bias that did not grow."""
    short = {"text_decoder.cls.predictions.bias": torch.zeros(len(SIGNS) + len(WORDS))}
    others = {
        "visual_encoder_m.norm.weight": torch.ones(24),
        "text_encoder.embeddings.LayerNorm.weight": torch.ones(32),
        "vision_proj.weight": torch.ones(4, 24),
        "itm_head.bias": torch.ones(2),
        "image_queue": torch.ones(4, 8),
        "queue_ptr": torch.zeros(1, dtype=torch.long),
        "temp": torch.tensor(0.07),
    }
    return {"model": {**state, **short, **others}, "epoch": 3, "config": {"vit": "base"}, "optimizer": {"state": {}}}


def test_a_converted_blip_has_the_logits_of_its_own_layout(blip: PlainBlip, bert: str, tmp_path: Path) -> None:
    torch.save(pretraining(blip.state_dict()), tmp_path / "model_base_14M.pth")
    made = convert(str(tmp_path / "model_base_14M.pth"), tmp_path / "out", tokenizer=bert, head_width=8)
    assert made.kind == "BLIP"
    assert load_preprocess(str(tmp_path / "out")).size == (32, 32)
    captioner = load_beam_captioner(str(tmp_path / "out"), CPU)
    assert captioner.tokenizer("a red dog", add_special_tokens=False)["input_ids"] == [4, 5, 6]
    assert captioner.tokenizer.decode([14, 4, 5, 6, 3, 0], skip_special_tokens=True) == "a red dog"
    tokens = torch.randint(0, len(SIGNS) + len(WORDS) + 2, (3, 7), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = blip(pixels(), tokens)
        found = captioner.model(pixel_values=pixels(), input_ids=tokens).logits
    assert float(expected.abs().max()) > 5
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_bert_with_blips_two_signs_comes_with_minilm() -> None:
    """As BLIP makes it of bert-base-uncased: 30,522 words, [DEC], [ENC]; numbers as the published list has them."""
    tokenizer = blip_tokenizer(None)
    assert len(tokenizer) == 30_524
    assert tokenizer("a picture of ")["input_ids"] == [101, 1037, 3861, 1997, 102]
    assert (tokenizer.bos_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id) == (30_522, 102, 0)
    assert len(tokenizer("dog " * 300)["input_ids"]) == 302  # the sentence encoder cuts at 128
    assert tokenizer.decode([30_522, 1037, 3899, 102], skip_special_tokens=True) == "a dog"


def training(state: Mapping[str, Any]) -> dict[str, Any]:
    """What open_clip's training saves."""
    optimiser = {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    weights = {f"module.{name}": one for name, one in state.items()}
    return {"epoch": 1, "name": "run", "state_dict": weights, "optimizer": optimiser, "scaler": {"scale": 65536.0}}


def custom_text(state: Mapping[str, Any]) -> dict[str, Any]:
    """The text tower apart, as open_clip's `custom_text` names it; a bias of SigLIP's loss."""
    own = ("visual.", "logit_scale")
    named = {name if name.startswith(own) else f"text.{name}": one for name, one in state.items()}
    return {**named, "logit_bias": torch.tensor(-10.0)}


def openai(state: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {"input_resolution": 32, "context_length": 12, "vocab_size": CLIP_WORDS}
    return {**state, **{name: torch.tensor(number) for name, number in numbers.items()}}


def check_clip(plain: PlainOpenClip, out: Path) -> None:
    """Compares logits, on texts of several lengths."""
    model = load_clip(str(out), CPU)
    tokens = load_tokenizer(str(out))(["a dog", "red cat, dog!", "cat"])
    assert [row[0] for row in tokens] == [CLIP_WORDS - 2] * 3
    assert [row[-1] for row in tokens] == [CLIP_WORDS - 1] * 3
    with torch.inference_mode():
        rows = torch.tensor([row + [0] * (12 - len(row)) for row in tokens])
        expected = plain(pixels(), rows).numpy()
        scale = float(model._model.logit_scale.exp())
    images, texts = model.images(IMAGES), model.texts(tokens)
    images, texts = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (images, texts))
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(scale * images @ texts.T, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("wrap", "activation"), [(training, "gelu"), (custom_text, "quick_gelu"), (openai, "quick_gelu")]
)
def test_a_converted_open_clip_has_its_own_logits(wrap: Wrap, activation: Any, merges: str, tmp_path: Path) -> None:
    plain = PlainOpenClip(CLIP_WORDS, activation={"gelu": gelu, "quick_gelu": quick_gelu}[activation]).eval()
    torch.save(wrap(plain.state_dict()), tmp_path / "epoch_1.pt")
    own: dict[str, Any] = {"tokenizer": merges, "activation": activation, "head_width": 8, "resize_mode": "shortest"}
    made = convert(str(tmp_path / "epoch_1.pt"), tmp_path / "out", **own)
    assert made.kind == "open_clip"
    assert any("logit_bias" in note for note in made.notes) == (wrap is custom_text)
    check_clip(plain, tmp_path / "out")


def settings(**changes: Any) -> dict[str, Any]:
    """An open_clip_config.json for the plain model; settings of the parts by `vision__width=1`."""
    model: dict[str, Any] = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "layers": 2, "width": 40, "head_width": 8, "patch_size": 8},
        "text_cfg": {"context_length": 12, "vocab_size": CLIP_WORDS, "width": 32, "heads": 4, "layers": 3},
    }
    preprocess = {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.3, 0.25], "interpolation": "bicubic"}
    for name, value in changes.items():
        part, _, key = name.rpartition("__")
        ({"": model, "preprocess": preprocess}.get(part) or model[f"{part}_cfg"])[key] = value
    return {"model_cfg": model, "preprocess_cfg": preprocess}


def open_clip_folder(folder: Path, plain: PlainOpenClip, merges: str, **changes: Any) -> Path:
    folder.mkdir()
    saved(plain.state_dict(), folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps(settings(**changes)))
    if merges:
        clip_tokenizer(merges, folder, own=False).save_pretrained(folder)
    return folder


def test_a_folder_of_open_clip_is_converted_by_what_its_configuration_says(merges: str, tmp_path: Path) -> None:
    plain = PlainOpenClip(CLIP_WORDS, activation=quick_gelu).eval()
    folder = open_clip_folder(tmp_path / "source", plain, merges, quick_gelu=True)
    convert(str(folder), tmp_path / "out")
    preprocess = load_preprocess(str(tmp_path / "out"))
    assert (preprocess.shorter, preprocess.size, preprocess.crop) == (32, None, (32, 32))
    assert (preprocess.mean, preprocess.std) == ((0.5, 0.4, 0.3), (0.2, 0.3, 0.25))
    # The comparison is made with CLIP's own mean and deviation.
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": settings(quick_gelu=True)["model_cfg"]}))
    convert(str(folder), tmp_path / "again", resize_mode="shortest")
    check_clip(plain, tmp_path / "again")


def test_what_an_architecture_file_does_not_say_of_images_is_asked_for(merges: str, tmp_path: Path) -> None:
    """The pretrained tag decides how images are resized: the architecture ViT-H-14-378 is squashed for DFN5B alone."""
    folder = open_clip_folder(tmp_path / "source", PlainOpenClip(CLIP_WORDS), merges)
    config, whole = folder / "open_clip_config.json", settings()
    config.write_text(json.dumps(whole["model_cfg"]))
    said = refused(folder, tmp_path / "out")
    assert "how it resizes images is unknown: --resize-mode shortest (OpenAI, LAION, MetaCLIP) or squash (DFN5B" in said
    made = convert(str(folder), tmp_path / "squash", resize_mode="squash")
    assert "images squashed to 32 x 32" in made.notes
    preprocess = load_preprocess(str(tmp_path / "squash"))
    assert (preprocess.size, preprocess.crop, preprocess.mean[0]) == ((32, 32), None, 0.48145466)
    config.write_text(
        json.dumps(whole["model_cfg"] | {"preprocess_cfg": {"std": [1, 1, 1], "interpolation": "random"}})
    )
    made = convert(str(folder), tmp_path / "shortest")
    assert "images cropped to 32 x 32" in made.notes  # as open_clip reads it
    preprocess = load_preprocess(str(tmp_path / "shortest"))
    assert (preprocess.crop, preprocess.std, int(preprocess.resample)) == ((32, 32), (1, 1, 1), 3)


@pytest.mark.parametrize(
    ("changes", "text", "as_if"),
    [
        ({}, "openai", "cat_dog, &"),
        ({"text__tokenizer_kwargs": {"clean": "canonicalize"}}, "canonicalize", "cat dog"),
        ({"text__tokenizer_kwargs": {"clean": "lower", "strip_sep_token": False}}, "openai", "cat_dog, &"),
        ({"text__hf_tokenizer_name": "owner/name"}, "whitespace", "cat_dog, &"),
    ],
)
def test_how_open_clip_cleans_texts_is_kept_and_done(
    changes: dict[str, Any], text: str, as_if: str, merges: str, tmp_path: Path
) -> None:
    convert(str(open_clip_folder(tmp_path / "source", PlainOpenClip(CLIP_WORDS), merges, **changes)), tmp_path / "out")
    assert cleaning_of(str(tmp_path / "out")) == text
    tokenize = load_tokenizer(str(tmp_path / "out"))
    assert tokenize(["Cat_dog, &amp;amp;"]) == load_tokenizer(str(tmp_path / "out"), "hf")([as_if])


def test_a_text_that_ends_with_token_2_is_pooled_there(tmp_path: Path) -> None:
    """MetaCLIP 2. A `CLIPModel` would pool at the largest token, because OpenAI's folders call their last token 2."""
    tokenizer_folder(tmp_path / "words")
    words = AutoTokenizer.from_pretrained(tmp_path / "words")
    assert words.eos_token_id == 2 < max(words.get_vocab().values())
    plain = PlainOpenClip(len(words)).eval()
    own = {"text__vocab_size": len(words), "text__pool_type": "eos", "text__eos_id": 2}
    folder = open_clip_folder(tmp_path / "source", plain, "", **own, text__hf_tokenizer_name="facebook/xlm-v-base")
    convert(str(folder), tmp_path / "out", tokenizer=str(tmp_path / "words"))
    rows = load_tokenizer(str(tmp_path / "out"))(["a dog", "red cat"])
    ids = torch.tensor(rows)
    with torch.inference_mode():
        expected = plain.texts(ids, at=(ids == 2).int().argmax(-1)).numpy()
    np.testing.assert_allclose(load_clip(str(tmp_path / "out"), CPU).texts(rows), expected, atol=1e-5, rtol=1e-5)


def test_settings_that_transformers_can_express_are_kept(merges: str, tmp_path: Path) -> None:
    plain = PlainOpenClip(CLIP_WORDS)
    changes = {
        "vision__norm_kwargs": {"eps": 1e-6},
        "vision__act_kwargs": {"approximate": "tanh"},
        "text__act_kwargs": {"approximate": "tanh"},
        "text__pool_type": "eos",
        "text__eos_id": CLIP_WORDS - 1,
        "preprocess__resize_mode": "squash",
        "preprocess__interpolation": "bilinear",
    }
    convert(str(open_clip_folder(tmp_path / "source", plain, merges, **changes)), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    vision, text = config["vision_config"], config["text_config"]
    assert (vision["layer_norm_eps"], text["layer_norm_eps"]) == (1e-6, 1e-5)
    assert vision["hidden_act"] == text["hidden_act"] == "gelu_pytorch_tanh"
    preprocess = load_preprocess(str(tmp_path / "out"))
    assert (preprocess.size, preprocess.crop, int(preprocess.resample)) == ((32, 32), None, 2)


def test_heads_that_a_configuration_leaves_out_are_open_clips_default(
    merges: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8 heads for texts of any width, and 64 numbers per head for images, also in the wide towers that we know."""
    folder = open_clip_folder(tmp_path / "source", PlainOpenClip(CLIP_WORDS), merges)
    whole = settings()
    del whole["model_cfg"]["text_cfg"]["heads"]
    (folder / "open_clip_config.json").write_text(json.dumps(whole))
    convert(str(folder), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["text_config"]["num_attention_heads"] == 8
    convert(str(folder), tmp_path / "given", head_width=16)
    assert json.loads((tmp_path / "given" / "config.json").read_text())["text_config"]["num_attention_heads"] == 2
    del whole["model_cfg"]["vision_cfg"]["head_width"]
    (folder / "open_clip_config.json").write_text(json.dumps(whole))
    monkeypatch.setattr("tamis.models.layouts._WIDE_HEADS", {40: 8})
    assert "a tower is 40 wide, which head_width = 64 does not divide" in refused(folder, tmp_path / "wide")


def test_clips_tokens_are_cut_and_numbered_as_openais(merges: str) -> None:
    """By hand: the byte's letters in OpenAI's order ("!" is 0), the end of a word 256 above, merges from 512 on."""
    tokenizer = clip_tokenizer(merges, Path(), own=False)
    assert tokenizer("A dog!")["input_ids"] == [518, ord("a") - ord("!") + 256, 513, 256, 519]
    assert tokenizer("RED\n  reds")["input_ids"] == [518, 517, 516, ord("d") - ord("!"), ord("s") - ord("!") + 256, 519]
    assert tokenizer("é")["input_ids"] == [518, 127, 358, 519]  # C3 A9: the 128th and, at the end, the 103rd letter
    assert len(tokenizer) == CLIP_WORDS


def pickled_folder(folder: Path) -> Path:
    """Replaces the safetensors of a tiny CLIP by pickles."""
    folder = clip_folder(folder)
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    for n in range(2):
        torch.save({key: state[key] for key in sorted(state)[n::2]}, folder / f"pytorch_model-0000{n}-of-00002.bin")
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {}}))
    (folder / "optimizer.pt").write_bytes(b"not asked for")
    return folder


def test_a_pickled_folder_of_transformers_becomes_safetensors_of_the_same_model(tmp_path: Path) -> None:
    safe, old = clip_folder(tmp_path / "safe"), pickled_folder(tmp_path / "old")
    with pytest.raises(ModelError, match=rf"only pickled weights .*`tamis convert {old} OUT`"):
        load_clip(str(old), CPU)
    assert convert(str(old), tmp_path / "out").kind == "transformers"
    assert (
        f"SHA-256 {hashlib.sha256(next(old.glob('*.bin')).read_bytes()).hexdigest()}"
        in (tmp_path / "out" / "README.md").read_text()
    )
    made, wanted = ({path.name for path in folder.iterdir()} for folder in (tmp_path / "out", safe))
    assert made == {*wanted, "README.md"}
    made, wanted = load_file(tmp_path / "out" / "model.safetensors"), load_file(safe / "model.safetensors")
    assert made.keys() == wanted.keys()
    assert all(torch.equal(made[name], wanted[name]) for name in wanted)
    assert load_clip(str(tmp_path / "out"), CPU).size == 24


def test_repositories_in_the_cache_are_converted(merges: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    for name in ("pickled", "open_clip"):
        repository = tmp_path / "cache" / f"models--owner--{name}"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text("0" * 40)
        (repository / "snapshots").mkdir()
        folder = repository / "snapshots" / ("0" * 40)
        if name == "pickled":
            pickled_folder(folder)
        else:
            open_clip_folder(folder, PlainOpenClip(CLIP_WORDS), merges)
        with pytest.raises(ModelError):
            resolve(f"owner/{name}")
        convert(f"owner/{name}", tmp_path / name)
        assert load_clip(str(tmp_path / name), CPU).size in (16, 24)
    assert "'owner/other' is not on this machine" in refused("owner/other", tmp_path / "none")


class _Evil:
    """A pickle of it runs a command when it is opened."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def refused(source: Path | str, out: Path, **more: Any) -> str:
    """Returns what is said of a checkpoint that is not converted, and checks that nothing stays of it."""
    before = set(out.parent.rglob("*"))
    with pytest.raises(TamisError) as caught:
        convert(str(source), out, **more)
    assert set(out.parent.rglob("*")) == before
    assert len(str(caught.value)) < 600
    return str(caught.value)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_that_runs_something_is_not_run(legacy: bool, blip: PlainBlip, tmp_path: Path) -> None:
    marker, path = tmp_path / "ran", tmp_path / "evil.pth"
    state = {"model": blip.state_dict(), "more": _Evil(marker)}
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    assert "evil.pth holds posix.mkdir, which could run code: refused" in refused(path, tmp_path / "out")
    path.write_bytes(pickle.dumps(_Evil(marker)))  # no file of torch.save at all
    assert "evil.pth" in refused(path, tmp_path / "out")
    assert not marker.exists()


def test_files_that_are_no_checkpoints_are_named(tmp_path: Path) -> None:
    out, path = tmp_path / "out", tmp_path / "x.pth"
    path.write_bytes(b"a text, by accident")
    assert "x.pth cannot be loaded" in refused(path, out)
    for content, says in (([1, 2], "no state dict, but a list"), ({"a": torch.ones(9)}, "has neither BLIP's nor open")):
        torch.save(content, path)
        assert says in refused(path, out)
    assert "there is no checkpoint nowhere.pth" in refused("nowhere.pth", out)
    (tmp_path / "empty").mkdir()
    assert "should hold one file of weights; there are 0 (none)" in refused(tmp_path / "empty", out)
    assert "holds safetensors and a config.json already" in refused(clip_folder(tmp_path / "clip"), out)


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        ("blip", {"head_width": None}, "a tower is 24 wide, which head_width = 64 does not divide"),
        ("blip", {"tokenizer": None}, "it knows 16 tokens, the tokenizer 30,524"),
        ("blip", {"activation": "gelu"}, "has BLIP's layout, for which --activation has no effect"),
        ("blip", {"resize_mode": "squash"}, "has BLIP's layout, for which --resize-mode has no effect"),
        ("clip", {"resize_mode": None}, "how it resizes images is unknown"),
        ("clip", {"activation": None}, "its activation is unknown: --config, or"),
        ("clip", {"tokenizer": None}, "it comes without a tokenizer"),
        ("clip", {"tokenizer": "other"}, "--tokenizer ends with 2"),
        ("trunk", {}, "has the foreign weight"),
    ],
)
def test_settings_that_a_layout_needs_or_does_not_have_are_named(
    kind: str, settings: dict[str, Any], says: str, blip: PlainBlip, bert: str, merges: str,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    tokenizer_folder(tmp_path / "other")
    plain: Any = blip if kind == "blip" else PlainOpenClip(CLIP_WORDS)
    more = {"visual.trunk.norm.weight": torch.ones(40)} if kind == "trunk" else {}
    file = saved(plain.state_dict() | more, tmp_path / "c.safetensors")
    clip = {"tokenizer": merges, "activation": "gelu", "resize_mode": "squash"}
    own = {"tokenizer": bert} if kind == "blip" else clip
    assert says in refused(file, tmp_path / "out", **(own | {"head_width": 8} | settings))


LAYER = "text_decoder.bert.encoder.layer.1"
HEAD = "text_decoder.cls.predictions.decoder.weight"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({f"{LAYER}.crossattention.self.key.weight": None}, f"{LAYER}.crossattention.self.key.weight"),
        ({"visual_encoder.pos_embed": torch.zeros(1, 19, 24)}, "19 positions are not 1 plus a square of patches"),
        ({HEAD: torch.zeros(16, 32)}, "must equal the word embeddings"),
        ({"text_decoder": None}, "it has no text_decoder, so it cannot caption"),
    ],
)
def test_weights_of_blip_that_are_missing_foreign_or_of_another_size_are_named(
    changes: dict[str, Any], says: str, blip: PlainBlip, bert: str, tmp_path: Path
) -> None:
    gone = tuple(name for name, one in changes.items() if one is None)
    state = {name: one for name, one in (blip.state_dict() | changes).items() if not name.startswith(gone or "-")}
    found = refused(saved(state, tmp_path / "b.safetensors"), tmp_path / "out", tokenizer=bert, head_width=8)
    assert found.startswith("b.safetensors cannot be converted")
    assert says in found


INSTEAD = "which transformers' CLIP cannot express: embed with open_clip, and score by clip: {embeddings_from: FILE}"


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"vision__pool_type": "avg"}, "pool_type"),
        ({"text__pool_type": "eos", "text__eos_id": 7}, "token 7"),
        ({"text__act_kwargs": {"approximate": "tanh"}}, "different activations (none, tanh)"),
        ({"vision__image_size": [32, 48]}, "image_size = [32, 48]"),
        ({"vision__new_trick": 2}, "new_trick = 2"),
        ({"embed_dim": 12}, "embed_dim = 16, and the configuration says 12"),
        ({"preprocess__resize_mode": "longest"}, "resize_mode = 'longest'"),
        ({"preprocess__interpolation": "lanczos"}, "interpolation = 'lanczos'"),
        ({"preprocess__mode": "L"}, "mode = 'L'"),
        ({"text__tokenizer_kwargs": {"strip_sep_token": True}}, f"strip_sep_token = True, {INSTEAD}"),
        ({"text__tokenizer_kwargs": {"clean": "whitespace"}}, "clean = 'whitespace'"),
        ({"text__tokenizer_kwargs": {"clean": "none"}}, "clean = 'none'"),
        ({"vision__block_type": "custom"}, "block_type = 'custom'"),
        ({"text__embed_cls": True}, "embed_cls = True"),
        ({"text__proj_type": "none"}, "proj_type = 'none'"),
        ({"multimodal_cfg": {"width": 8}}, "multimodal_cfg"),
    ],
)
def test_what_transformers_clip_cannot_express_is_named(changes: Any, names: str, merges: str, tmp_path: Path) -> None:
    folder = open_clip_folder(tmp_path / "source", PlainOpenClip(CLIP_WORDS), merges, **changes)
    assert names in refused(folder, tmp_path / "out")


def test_the_command_says_what_it_made(tamis: Tamis, blip: PlainBlip, bert: str, tmp_path: Path) -> None:
    torch.save({"model": blip.state_dict()}, tmp_path / "b.pth")
    done = tamis("convert", tmp_path / "b.pth", "out", "--tokenizer", bert, "--head-width", "8")
    assert (done.code, done.out) == (0, "")
    count = sum(one.numel() for one in blip.parameters())
    assert done.err == f"wrote out: {count:,} parameters, from BLIP's layout. Name out as the model\n"
    again = tamis("convert", tmp_path / "b.pth", "out", "--tokenizer", bert)
    assert (again.code, again.err) == (2, "tamis: out is not empty: name a new folder, or remove it\n")
    wrong = tamis("convert", tmp_path / "b.pth", "other", "--activation", "quickgelu")
    assert (wrong.code, "(did you mean 'quick_gelu'?)" in wrong.err) == (2, True)


def test_models_that_must_be_converted_first_say_so(merges: str, tmp_path: Path) -> None:
    folder = open_clip_folder(tmp_path / "source", PlainOpenClip(CLIP_WORDS), merges)
    with pytest.raises(ModelError, match=rf"`tamis convert {folder} OUT`"):
        resolve(str(folder))
    (tmp_path / "lid.176.bin").write_bytes(b"\xba\x16\x4f\x2f" + bytes(100))  # fastText's are .bin too
    assert len(resolve(str(tmp_path / "lid.176.bin")).digest) == 32
