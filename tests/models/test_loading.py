"""Loading: once for the same arguments and weights, in any thread."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from factories import safetensors_bytes

from tamis.core.errors import DependencyError, ModelError, RecipeError
from tamis.core.types import ModelRef, OptionalModelRef
from tamis.models.loading import load_once, one_sentence


def folder(path: Path, weights: bytes = b"weights") -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors").write_bytes(safetensors_bytes(weights))
    return str(path)


def test_changed_weights_are_loaded_again_and_a_copy_is_another_model(tmp_path: Path) -> None:
    @load_once(keep=4)
    def load(model: ModelRef, other: OptionalModelRef = None) -> object:
        return object()

    mine, copy = folder(tmp_path / "mine"), folder(tmp_path / "copy")
    one = load(mine)
    assert load(other=None, model=mine) is one
    assert load(copy) is not one  # its messages name it
    pair = load(mine, copy)
    folder(tmp_path / "copy", b"trained on")
    assert load(mine) is one
    assert load(mine, copy) is not pair


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (KeyError("no such weight"), ModelError),
        (type("PanicException", (BaseException,), {})("index out of bounds"), ModelError),  # of the Rust tokenizers
        (ImportError("no module named timm"), DependencyError),
        (RecipeError("ours"), RecipeError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_every_error_of_a_library_names_the_model(error: BaseException, expected: type[BaseException]) -> None:
    with pytest.raises(expected) as caught, one_sentence("the model", "some/folder"):
        raise error
    if expected in (ModelError, DependencyError):
        assert "some/folder" in str(caught.value)
        assert str(error.args[0]) in str(caught.value)


@pytest.mark.timeout(60)
def test_threads_that_ask_at_once_load_one_model_and_loaders_may_use_others() -> None:
    loads: list[str] = []
    together = threading.Barrier(8)

    @load_once(keep=1)
    def inner() -> object:
        loads.append("inner")
        return object()

    @load_once(keep=1)
    def outer() -> tuple[object]:
        loads.append("outer")
        return (inner(),)

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: (together.wait(), outer())[1], range(8)))
    assert loads == ["outer", "inner"]
    assert len({id(one) for one in found}) == 1
