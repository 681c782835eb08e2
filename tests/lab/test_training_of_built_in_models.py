"""The built-in models' training, tried with the fewest steps it takes, and its lessons and measures by hand."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from safetensors import safe_open

from tamis.models.reference import resolve
from tools.lab_models import measuring
from tools.lab_models.building import BUILDS, Built, build_models

LEAST = 0.0001  # an effort that leaves two steps of every training, and 64 examples


@pytest.fixture(scope="module", autouse=True)
def few_known_sentences() -> Iterator[None]:
    """What untrained models write is compared with a hundredth of the sentences that trained ones are measured on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "_KNOWN", 1200)
        yield


@pytest.fixture(
    scope="module",
    params=[
        # clip-noisy is trained as clip is; text-to-image takes as long as the three, and the shipped one is looked at.
        pytest.param(["clip", "captioner", "language-model"], id="three"),
        pytest.param(list(BUILDS), id="all", marks=pytest.mark.attack),
    ],
)
def built(
    tmp_path_factory: pytest.TempPathFactory, few_known_sentences: None, request: pytest.FixtureRequest
) -> list[Built]:
    """The models, trained for two steps."""
    return build_models(tmp_path_factory.mktemp("models"), only=request.param, effort=LEAST, workers=1)


def test_every_model_becomes_a_folder_that_its_own_class_loads(built: list[Built]) -> None:
    import diffusers
    import transformers

    assert len(built) >= 3
    for one in built:
        library, _, kind = BUILDS[one.folder.name].kind.partition(".")
        cls: Any = getattr({"transformers": transformers, "diffusers": diffusers}[library], kind)
        assert type(cls.from_pretrained(one.folder, local_files_only=True)).__name__ == kind
        assert resolve(str(one.folder)).digest
        for file in one.folder.rglob("*.safetensors"):
            with safe_open(file, "pt") as weights:
                kinds = Counter(str(weights.get_tensor(name).dtype) for name in weights.keys())  # noqa: SIM118
            assert set(kinds) == {"torch.float16"}, file
        assert not list(one.folder.parent.glob("*.unfinished"))
        card = (one.folder / "README.md").read_text()
        assert f"python -m tools.lab_models --only {one.name}" in card
        assert one.metrics
        assert all(str(metric.found) in card for metric in one.metrics.values())


def test_the_same_seeds_give_the_same_weights(built: list[Built], tmp_path: Path) -> None:
    (again,) = build_models(tmp_path, only=["lab/language-model"], effort=LEAST, workers=1)
    (first,) = (one for one in built if one.name == again.name)
    assert resolve(str(again.folder)).digest == resolve(str(first.folder)).digest
    assert again.metrics == first.metrics


def test_an_unknown_name_and_a_senseless_effort_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'captioner'"):
        build_models(tmp_path, only=["lab/captoner"])
    with pytest.raises(ValueError, match="effort must be above 0"):
        build_models(tmp_path, effort=0)
