"""A model folder's own Python is never run, whatever is on standard input; files of models are opened in one place."""

import ast
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from model_kinds import KINDS, load_clip, load_drawing

import tamis
from tamis.core.errors import ModelError

ROOT = Path(tamis.__file__).parent

#: Classes of transformers that a configuration may name code for.
CLASSES = (
    *("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification"),
    *("AutoModelForImageTextToText", "AutoProcessor", "AutoImageProcessor", "AutoFeatureExtractor"),
)


@pytest.fixture(autouse=True)
def eager_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard input answers every question with "y"."""
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 50))


def plant(folder: Path, marker: Path) -> Path:
    """Has every configuration of a folder, and of those below, name Python that writes a file when it is imported."""
    for part in {path.parent for path in folder.rglob("*.json")}:
        code = f"open({str(marker)!r}, 'w').close()\nfrom transformers import *\nclass Theirs: pass\n"
        (part / "theirs.py").write_text(code)
        (part / "pipeline.py").write_text(code)
        (part / "custom_generate").mkdir(exist_ok=True)
        (part / "custom_generate" / "generate.py").write_text(code)
        named: dict[str, Any] = dict.fromkeys(CLASSES, "theirs.Theirs")
        for name in ("config.json", "preprocessor_config.json", "processor_config.json"):
            found = json.loads((part / name).read_text()) if (part / name).is_file() else {}
            if found or name == "processor_config.json":
                (part / name).write_text(json.dumps(found | {"auto_map": named, "custom_pipelines": named}))
        tokens = part / "tokenizer_config.json"
        if tokens.is_file():
            found = json.loads(tokens.read_text()) | {"auto_map": {"AutoTokenizer": ["theirs.Theirs", "theirs.Theirs"]}}
            tokens.write_text(json.dumps(found))
    return folder


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """Returns a copy of a fixture's folder with code planted in it; it writes `ran` next to the copy."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            place = tmp_path_factory.mktemp("planted")
            made[name] = shutil.copytree(request.getfixturevalue(name), place / "model")
            plant(made[name], place / "ran")
        return made[name]

    return get


@pytest.mark.parametrize("kind", KINDS)
def test_the_code_of_a_folder_is_never_run(kind: str, planted: Callable[[str], Path]) -> None:
    fixture, load = KINDS[kind]
    folder = planted(fixture)
    if kind == "sentence encoder of the library":
        with pytest.raises(ModelError, match="contains custom code"):
            load(str(folder))
    else:
        assert load(str(folder)) is not None  # the classes of transformers serve: nothing of the folder's own is needed
    assert not (folder.parent / "ran").exists()


def test_a_pipeline_of_auto_classes_runs_nothing(planted: Callable[[str], Path], tmp_path: Path) -> None:
    """diffusers itself does not forbid code, and transformers would then ask on standard input."""
    folder = shutil.copytree(planted("diffusion_model"), tmp_path / "model")
    index = json.loads((folder / "model_index.json").read_text())
    index |= {"text_encoder": ["transformers", "AutoModel"], "tokenizer": ["transformers", "AutoTokenizer"]}
    (folder / "model_index.json").write_text(json.dumps(index))
    for name in ("text_encoder/config.json", "tokenizer/tokenizer_config.json"):
        path = folder / name
        path.write_text(
            json.dumps(json.loads(path.read_text()) | {"model_type": "theirs", "tokenizer_class": "Theirs"})
        )
    with pytest.raises(ModelError):
        load_drawing(str(folder))
    assert not (planted("diffusion_model").parent / "ran").exists()


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"unet": ["theirs", "Theirs"]}, "theirs.Theirs"),
        ({"unet": ["transformers", "pipeline"]}, "transformers.pipeline"),
        ({"../../unet": ["diffusers", "UNet2DConditionModel"]}, "model_index.json is damaged"),
    ],
)
def test_a_pipeline_names_only_components_of_the_two_libraries(
    change: dict[str, Any], names: str, planted: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(planted("diffusion_model"), tmp_path / "model")
    index = json.loads((folder / "model_index.json").read_text()) | change
    (folder / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError) as caught:
        load_drawing(str(folder))
    assert names in str(caught.value)
    assert not (planted("diffusion_model").parent / "ran").exists()


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"attn_implementation": "theirs/kernel"}),
        ("config.json", {"text_config": {"_attn_implementation": "theirs/kernel@main"}}),
        ("config.json", {"transformers_weights": "other.safetensors"}),
        ("tokenizer_config.json", {"tokenizer_class": "CLIPModel"}),
        ("adapter_config.json", {"base_model_name_or_path": "/elsewhere"}),
    ],
)
def test_a_configuration_asks_for_no_code_and_no_other_weights(
    file: str, change: dict[str, Any], clip_model: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(clip_model, tmp_path / "model")
    found = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
    (folder / file).write_text(json.dumps(found | change))
    with pytest.raises(ModelError) as caught:
        load_clip(str(folder))
    assert str(folder) in str(caught.value)


def test_the_planted_code_runs_where_transformers_is_told_to_trust_it(
    planted: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above would notice code that runs."""
    from transformers import AutoTokenizer, dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = shutil.copytree(planted("clip_model"), tmp_path / "model")
    for path in folder.glob("*.json"):
        path.write_text(path.read_text().replace(str(planted("clip_model").parent), str(tmp_path)))
    (folder / "theirs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\nclass Theirs: pass\n")
    with pytest.raises(AttributeError):  # it is no tokenizer
        AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert (tmp_path / "ran").exists()


#: What opens a file of a model, or may run code of it, and the modules that may call it.
OPENERS = {
    "from_pretrained": {"models/chat.py", "models/loading.py", "models/text_to_image.py"},
    "from_single_file": set(),
    "load_lora_weights": set(),
    "torch.load": {"models/convert.py"},
    "torch.jit.load": set(),
    "torch.hub.load": set(),
    "pickle.load": set(),
    "joblib.load": set(),
    "transformers.pipeline": set(),
    "apply_chat_template": {"models/chat.py"},  # of no other model is the template part of the hash
    "snapshot_download": {"models/reference.py"},
    "hf_hub_download": set(),
    "spacy.load": {"models/texts/language.py"},
}

#: What each of these calls must say.
WORDS = {"trust_remote_code": {"False"}, "weights_only": {"True"}, "use_safetensors": {"True"}}


def test_models_are_opened_in_few_places_that_say_no_to_code() -> None:
    places: dict[str, set[str]] = {name: set() for name in OPENERS}
    words: dict[str, set[str]] = {name: set() for name in WORDS}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                for name in {node.attr, ast.unparse(node)} & places.keys():
                    places[name].add(path.relative_to(ROOT).as_posix())
            elif isinstance(node, ast.keyword) and node.arg in words:
                words[node.arg].add(ast.unparse(node.value))
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                options = {word.arg: ast.unparse(word.value) for word in node.keywords}
                if node.func.attr == "from_pretrained":
                    assert options["local_files_only"] == "True"
    assert places == OPENERS
    assert words == WORDS
