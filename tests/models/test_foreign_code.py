"""A model folder's own Python is never run, whatever is on standard input; files of models are opened in one place."""

from __future__ import annotations

import ast
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from factories import safetensors_bytes
from model_kinds import KINDS, load_clip, load_drawing

import tamis
from tamis.errors import DependencyError, ModelError
from tamis.models.loading import forget_loaded, load_tokenizer_in

transformers = pytest.importorskip("transformers")

ROOT = Path(tamis.__file__).parent

#: Classes of transformers that a configuration may name code for.
CLASSES = (
    *("AutoConfig", "AutoModel", "AutoModelForCausalLM", "AutoModelForSequenceClassification"),
    *("AutoModelForImageTextToText", "AutoProcessor", "AutoImageProcessor", "AutoFeatureExtractor"),
)


@pytest.fixture(autouse=True)
def nothing_stays_loaded() -> Iterator[None]:
    yield
    forget_loaded()


@pytest.fixture(params=["closed", "yes", "terminal"])
def standard_input(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing, "y" again and again, or a terminal on which somebody types that."""
    if request.param == "closed":
        stream = io.StringIO()
        stream.close()
        monkeypatch.setattr("sys.stdin", stream)
        yield
        return
    ours, theirs = os.openpty() if request.param == "terminal" else reversed(os.pipe())
    os.write(ours, b"y\n" * 50)
    with open(theirs, encoding="utf-8", closefd=True) as stream:
        monkeypatch.setattr("sys.stdin", stream)
        yield
    os.close(ours)


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
    """Returns a copy of a fixture's folder with code planted in it; it writes `ran` beside the copy."""
    made: dict[str, Path] = {}

    def get(name: str) -> Path:
        if name not in made:
            place = tmp_path_factory.mktemp("planted")
            made[name] = shutil.copytree(request.getfixturevalue(name), place / "model")
            plant(made[name], place / "ran")
        return made[name]

    return get


@pytest.mark.usefixtures("standard_input")
@pytest.mark.parametrize("kind", KINDS)
def test_the_code_of_a_folder_is_never_run(kind: str, planted: Callable[[str], Path]) -> None:
    fixture, load = KINDS[kind]
    folder = planted(fixture)
    assert load(str(folder)) is not None  # the classes of transformers serve: nothing of the folder's own is needed
    assert not (folder.parent / "ran").exists()


@pytest.mark.usefixtures("standard_input")
@pytest.mark.parametrize("kind", ["clip", "blip", "sentence encoder", "icc student", "teacher's language model"])
def test_a_kind_that_only_the_folder_knows_is_an_error(
    kind: str, planted: Callable[[str], Path], tmp_path: Path
) -> None:
    fixture, load = KINDS[kind]
    folder = shutil.copytree(planted(fixture), tmp_path / "model")
    for name in ("config.json", "tokenizer_config.json"):
        for path in folder.rglob(name):
            found = json.loads(path.read_text())
            if "auto_map" in found:
                path.write_text(json.dumps(found | {"model_type": "theirs", "tokenizer_class": "Theirs"}))
    with pytest.raises(ModelError):
        load(str(folder))
    assert not (planted(fixture).parent / "ran").exists()


@pytest.mark.usefixtures("standard_input")
def test_a_pipeline_whose_components_are_auto_classes_runs_nothing(
    planted: Callable[[str], Path], tmp_path: Path
) -> None:
    """diffusers itself says nothing of code to transformers, which asks on standard input where nobody says no."""
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
    ("change", "says"),
    [
        (
            {"unet": ["theirs", "Theirs"]},
            "takes its unet from 'theirs': only components of diffusers and of transformers",
        ),
        ({"unet": ["os", "system"]}, "takes its unet from 'os'"),
        ({"unet": ["transformers", "pipeline"]}, "is a pipeline of transformers, which is neither a tokenizer nor"),
        ({"unet": ["diffusers", "Theirs"]}, "has no component 'Theirs'"),
        ({"_class_name": ["pipeline", "Theirs"]}, "names no class of diffusers as its _class_name"),
        ({"../../unet": ["diffusers", "UNet2DConditionModel"]}, "names the folder '../../unet', which does not lie"),
        ({"unet": ["diffusers"]}, "a component is no pair of a library and a class"),
    ],
)
def test_a_pipeline_names_only_components_of_the_two_libraries(
    change: dict[str, Any], says: str, planted: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(planted("diffusion_model"), tmp_path / "model")
    index = json.loads((folder / "model_index.json").read_text()) | change
    (folder / "model_index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError) as caught:
        load_drawing(str(folder))
    assert says in str(caught.value)
    assert not (planted("diffusion_model").parent / "ran").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"attn_implementation": "theirs/kernel"}, "asks for 'theirs/kernel', code of the hub"),
        (
            {"text_config": {"_attn_implementation": "theirs/kernel@main"}},
            "asks for 'theirs/kernel@main', code of the hub",
        ),
        ({"transformers_weights": "other.safetensors"}, r"names its weights (transformers_weights)"),
    ],
)
def test_a_configuration_asks_for_no_code_and_no_weights_of_elsewhere(
    change: dict[str, Any], says: str, clip_model: str, tmp_path: Path
) -> None:
    folder = shutil.copytree(clip_model, tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | change))
    with pytest.raises(ModelError) as caught:
        load_clip(str(folder))
    assert says in str(caught.value)


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
@pytest.mark.parametrize("named", ["AutoModel", "RobertaModel", "pipeline", ["AutoModel"]])
def test_a_tokenizers_class_is_a_tokenizer(file: str, named: Any, regression_model: str, tmp_path: Path) -> None:
    """transformers takes any class of its own there, and would open a pickle beside the safetensors with it."""
    folder = shutil.copytree(regression_model, tmp_path / "model")
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": named}))
    with pytest.raises(ModelError, match=r"as its tokenizer_class, which is no tokenizer of transformers"):
        load_tokenizer_in(folder)


def test_adapters_and_distributed_checkpoints_are_refused(clip_model: str, tmp_path: Path) -> None:
    folder = shutil.copytree(clip_model, tmp_path / "model")
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/elsewhere"}))
    with pytest.raises(ModelError, match="holds an adapter"):
        load_clip(str(folder))
    (folder / "adapter_config.json").unlink()
    (folder / "shard-00000-model-00001-of-00001.safetensors").write_bytes(safetensors_bytes())
    with pytest.raises(ModelError, match="is a distributed checkpoint"):
        load_clip(str(folder))


def test_the_plant_bears_fruit_where_nobody_says_no(
    planted: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the tests above would see code that runs: transformers, told to trust, runs it."""
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
    "from_pretrained": {"models/loading.py"},
    "from_config": {"models/loading.py"},
    "from_single_file": set(),
    "from_pipe": set(),
    "load_lora_weights": set(),
    "load_textual_inversion": set(),
    "load_adapter": set(),
    "load_model": set(),
    "trust_remote_code": {"models/loading.py"},
    "torch.load": {"models/convert/unpickle.py"},
    "torch.jit.load": set(),
    "torch.hub.load": set(),
    "pickle.load": set(),
    # Of what they have pickled themselves, to see that it goes from process to process.
    "pickle.loads": {
        "run/device_process.py",  # what our own processes send each other
        "testing/records.py",
        "testing/scorers.py",
        "testing/selectors.py",
    },
    "joblib.load": set(),
    "dill.load": set(),
    "transformers.pipeline": set(),
    "apply_chat_template": set(),  # chat templates are no part of a model's hash, since nobody applies one
    "snapshot_download": {"models/hub.py"},
    "hf_hub_download": set(),
    "spacy.load": {"models/texts/parser.py"},
}


def called(node: ast.AST) -> Iterator[str]:
    """Yields what a node may call: a dotted name, its last part, a keyword, an imported name."""
    if isinstance(node, ast.Attribute):
        yield node.attr
        yield ast.unparse(node)
    elif isinstance(node, ast.keyword) and node.arg:
        yield node.arg
    elif isinstance(node, ast.ImportFrom):
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "methodcaller"):
        yield from (word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str))


def test_models_are_opened_in_one_place_only() -> None:
    places: dict[str, set[str]] = {name: set() for name in OPENERS}
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name in called(node):
                if name in places:
                    places[name].add(path.relative_to(ROOT).as_posix())
    assert places == OPENERS


def test_the_loader_always_says_no_to_code_and_to_the_network() -> None:
    tree = ast.parse((ROOT / "models" / "loading.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    opened = [node for node in calls if node.func.attr == "from_pretrained"]  # type: ignore[attr-defined]
    assert len(opened) == 1
    words = {word.arg: ast.unparse(word.value) for word in opened[0].keywords if word.arg}
    assert words == {"local_files_only": "True", "trust_remote_code": "False"}
    weights = [node for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "use_safetensors"]
    assert [ast.unparse(one.value) for one in weights] == ["True", "True"]


def test_an_import_that_is_missing_is_named(clip_model: str, tmp_path: Path) -> None:
    folder = shutil.copytree(clip_model, tmp_path / "model")
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"no such model")
    with pytest.raises((ModelError, DependencyError)):
        load_clip(str(folder))
