"""What `tamis select --dry-run` says that a choice needs, next to what it takes."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Tamis
from factories import write_run

import tamis as package
from tamis.commands.select import needs
from tamis.core.errors import DiskFullError
from tamis.core.files import scratch
from tamis.runs import Run

ROWS = 900
STEPS: list[Any] = [
    {"semdedup": {"epsilon": 0.1, "clusters": 3}},
    {"density": {"fraction": 0.5, "clusters": 3}},
    {"d2": {"score": "a", "fraction": 0.5, "clusters": 3}},
    {"image_based": {"reference": "given.npy", "clusters": 3}},
    {"clipcov": {"fraction": 0.5, "per": "word", "terms": ["cov", "class_reg", "inter"]}},
    {"sample": {"score": "a", "fraction": 1.0}},
    {"balance": {"entries": "word", "tail": 0.2}},
    {"top_fraction": {"score": "a", "fraction": 0.5, "per": "word"}},
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(ROWS, 64)).astype(np.float32)
    np.save("given.npy", vectors[:9])
    columns = {"a": rng.random(ROWS), "word": rng.choice(["one", "two"], ROWS).tolist()}
    return write_run(Path("run"), columns, embeddings={"image_embedding": vectors, "text_embedding": vectors})


@pytest.mark.skipif(importlib.util.find_spec("faiss") is None, reason="clusters need faiss")
@pytest.mark.parametrize("step", STEPS, ids=lambda step: next(iter(step)))
def test_the_space_is_what_a_choice_takes_at_the_most(run: Run, step: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, make = list[int](), scratch.temporary_file

    def watched(size: int) -> Any:
        sizes.append(size)
        return make(size)

    monkeypatch.setattr(scratch, "IN_MEMORY", 1)
    monkeypatch.setattr("tamis.commands.needs.IN_MEMORY", 1)
    (said,) = needs(run, {"select": [step]})
    monkeypatch.setattr(scratch, "temporary_file", watched)
    package.select(run, {"select": [step]})
    assert sum(sizes) <= said.scratch <= 1.6 * sum(sizes)
    assert said.seconds >= 0


def test_the_order_of_epochs_is_in_memory(run: Run) -> None:
    once, thrice = (
        needs(run, {"select": [{"sample": {"score": "a", "fraction": 2.0, "epochs": epochs}}]})[0] for epochs in (1, 3)
    )
    assert thrice.memory - once.memory >= 3 * 8 * 2 * ROWS
    assert thrice.passes == once.passes + 4
    assert thrice.seconds == pytest.approx(2 * once.seconds)


def test_the_command_prints_a_table_or_json_and_writes_nothing(run: Run, tamis: Tamis) -> None:
    Path("one.yaml").write_text(json.dumps({"name": "one", "select": [{"any_of": [[STEPS[4]], [STEPS[5]]]}]}))
    done = tamis("select", run.path, "--recipe", "one.yaml", "--dry-run")
    assert [line.partition(":")[0].partition(" by ")[0] for line in done.out.splitlines()[1:4]] == [
        "ClipCov",
        "1 copies per row of the survivors",
        "any of",
    ]
    assert "GiB of memory and 0.0 GB of scratch space" in done.err
    found = json.loads(tamis("select", run.path, "--recipe", "one.yaml", "--dry-run", "--json").out)
    assert [each["readings"] for each in found] == [5, 0, 0]
    assert not (run.path / "subsets").exists()


def test_a_disk_without_the_space_stops_a_choice_before_its_work(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.commands.needs.IN_MEMORY", 1)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 100}))
    with pytest.raises(DiskFullError, match=r"1e-07 GB free, and 0\.00026\d GB are needed for a while"):
        package.select(run, {"select": [STEPS[4]]})
