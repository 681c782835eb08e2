"""`tamis bench`: from a pool or a run to a ranking, and what it refuses before it trains."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from command_line import Tamis
from factories import image_bytes, pair, write_tar
from tiny_models import clip_folder

from tamis.core.errors import RecipeError
from tamis.core.files.checked import with_hash, write_record
from tamis.runs.claims import lock_run
from tamis.train.evaluate import cells
from tamis.train.evaluate.bench import with_settings
from tamis.train.evaluate.utility import PAPER
from tamis_lab import MODEL_SETTINGS

SMALL = ("--samples", "8", "--train-batch", "4", "--seeds", "2", "--workers", "1", "--device", "cpu", "--threads", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clip_folder(tmp_path_factory.mktemp("bench-model") / "clip")


@pytest.fixture
def placed(tmp_path: Path) -> Path:
    """An empty folder with `pool` (eight pairs of two kinds) and `found` (a retrieval task)."""
    samples = [(f"{row:04d}", pair(row, truth=("visual", "mismatched")[row % 2])) for row in range(8)]
    write_tar(tmp_path / "pool" / "0.tar", samples)
    (tmp_path / "found").mkdir()
    for number in range(4):
        (tmp_path / "found" / f"{number}.jpg").write_bytes(image_bytes(900 + number))
        (tmp_path / "found" / f"{number}.txt").write_text(f"picture {number}")
    return tmp_path


def test_a_pool_is_scored_its_subsets_trained_on_and_the_ranking_printed(
    tamis: Tamis, placed: Path, model: Path
) -> None:
    words = ["bench", "pool", "--recipes", "no-filter,random,clip-50", "--tasks", "found", "--out", "bench"]
    words += ["--model", str(model), "--set", f"signals.clip.model={model}", "--field", "truth", *SMALL]
    done = tamis.ok(*words)
    lines = done.out.splitlines()
    assert lines[0].split()[:6] == ["recipe", "kept", "share", "epochs", "score", "gain"]
    assert sorted(line.split()[0] for line in lines[1:4]) == ["clip-50", "no-filter", "random"]
    assert "true kind" in done.out
    assert "shared, of either" in done.out
    assert {path.name for path in (placed / "bench" / "subsets").iterdir()} == {
        "no-filter.parquet", "random.parquet", "clip-50.parquet",
    }  # fmt: skip

    again = tamis(*words, "--json")
    facts = json.loads(again.out)
    assert "seed" not in again.err  # nothing was trained
    assert with_hash(facts) == json.loads((placed / "bench" / "run" / "bench.json").read_text())
    clip = next(one for one in facts["contenders"] if one["name"] == "clip-50")
    assert clip["scoring_seconds"] > 0
    assert clip["kinds"]["visual"][1] == clip["kinds"]["mismatched"][1] == 4
    assert next(one for one in facts["contenders"] if one["name"] == "random")["scoring_seconds"] == 0

    tamis.ok("report", placed / "bench" / "run", "--out", placed / "report.html")
    assert '<section id="bench"' in (placed / "report.html").read_text()


def test_a_run_is_taken_as_it_is(tamis: Tamis, placed: Path, model: Path) -> None:
    tamis.ok("score", "pool", "--run", "run", "--signals", "caption_length", "-q")
    words = ["bench", "run", "--tasks", "found", "--out", "bench", "--model", str(model), *SMALL]
    assert "clip" in tamis.refused(*words, "--recipes", "no-filter,clip-50")
    assert not (placed / "bench" / "models").exists()
    done = tamis.ok(*words, "--recipes", "no-filter,random", "--json")
    assert {one["name"]: one["scoring_seconds"] for one in json.loads(done.out)["contenders"]} == {
        "no-filter": None, "random": None,
    }  # fmt: skip


def test_the_labs_pool_is_drawn_once_and_scored_by_its_own_models(tamis: Tamis, tmp_path: Path, model: Path) -> None:
    words = ["bench", "lab", "--quick", "--recipes", "no-filter,clip-50", "--pairs", "24", "--size", "12"]
    words += ["--out", "bench", "--model", str(model), *SMALL, "--json"]
    done = tamis.ok(*words)
    facts = json.loads(done.out)
    assert facts["rows"] == 24
    assert len(facts["tasks"]) == 5
    assert next(one for one in facts["contenders"] if one["name"] == "clip-50")["kept"] == 12
    assert sum(total for _, total in facts["contenders"][0]["kinds"].values()) == 24
    drawn = (tmp_path / "bench" / "pool-24" / "00000.tar").stat().st_mtime_ns
    assert json.loads(tamis(*words).out) == facts
    assert (tmp_path / "bench" / "pool-24" / "00000.tar").stat().st_mtime_ns == drawn


def test_utility_compares_each_kind_added_to_its_base(
    tamis: Tamis, tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainings are a bench's, and tested there: here each pool scores by its number of pairs."""

    def executed(wanted: Any, workers: int) -> dict[str, str]:
        for cell in wanted:
            score = cell.subset.kept / 100 + cell.training.seed / 1000
            facts = {name: dict.fromkeys(cell.only, score) for name in ("scores", "likelihoods")}
            write_record(cell.path, {**facts, "samples": 256, "training_seconds": 1.0, "evaluation_seconds": 1.0})
        return {}

    monkeypatch.setattr(cells, "execute_all", executed)
    words = ["bench", "lab", "--utility", "--pairs", "60", "--size", "12", "--out", "bench", "--model", str(model)]
    lines = tamis.ok(*words, *SMALL).out.splitlines()
    assert [line.split()[0] for line in lines[1:6]] == [*PAPER]
    assert [line.endswith("same") for line in lines[1:6]] == [False, False, True, True, True]
    assert sum(line.startswith("images") for line in lines[7:]) == 12
    facts = json.loads(tamis(*words, *SMALL, "--json").out)
    assert facts["tasks"] == ["lab-colours", "lab-objects", "lab-places"]
    assert facts["utility"]["visual"] == pytest.approx({"value": 10, "low": 10, "high": 10, "n": 2})
    assert "--recipes" in tamis.refused(*words, *SMALL, "--recipes", "random")


def test_a_setting_goes_to_each_variant_of_a_signal_or_to_one(tmp_path: Path) -> None:
    both = [
        {"clip": {"model": "openai/clip-vit-base-patch32", "label": "a"}},
        {"clip": {"model": "mine", "label": "b"}},
    ]
    recipe = {"name": "two", "signals": both, "select": [{"top_n": {"score": "a.clip - b.clip", "n": 3}}]}

    def models(*settings: str, usual: tuple[str, ...] = ()) -> list[str]:
        (one,) = with_settings([recipe], settings, usual)
        return [signal.model for _, signal in one.signals]

    assert models("signals.clip.model=x") == ["x", "x"]
    assert models("signals.1.clip.model=x") == ["openai/clip-vit-base-patch32", "x"]
    assert models(usual=MODEL_SETTINGS) == ["lab/clip", "mine"]  # the user's own model stays
    recipe["select"] = [{"top_n": {"score": "clip", "n": 3}}]
    (one,) = with_settings([recipe], ["columns.clip=a.clip"], ())
    assert one.columns == {"clip": "a.clip"}
    for wrong in ("signals.2.clip.model=x", "signals.0.sieve.captioner=x", "columns.pac=x"):
        with pytest.raises(RecipeError, match="no recipe of the bench has"):
            with_settings([recipe], [wrong], ())


def test_a_folder_of_other_files_and_one_in_use_are_refused_before_anything_is_written(
    tamis: Tamis, placed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tamis.runs.claims.PATIENCE_SECONDS", 0.0)
    words = ["bench", "pool", "--tasks", "found", "--recipes", "no-filter,random", *SMALL, "--out", "photos"]
    (placed / "photos").mkdir()
    (placed / "photos" / "cat.jpg").touch()
    assert "photos holds other files (cat.jpg, ...) and no bench: name another folder (--out)" in tamis.refused(*words)
    assert [path.name for path in (placed / "photos").rglob("*")] == ["cat.jpg"]
    (placed / "photos" / "cat.jpg").unlink()
    with lock_run(placed / "photos" / "cells"):
        done = tamis(*words)
    assert done.code == 2
    assert "photos/cells is in use by process" in done.err
    assert [path.name for path in (placed / "photos").rglob("*")] == ["cells"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--recipes", "no-filter,clip50"), "did you mean 'clip-50'"),
        (("--recipes", "random", "--set", "select.x=1"), "select.x=1"),
        (("--recipes", "random", "--set", "signals.clip.model=x"), "no recipe of the bench has that signal"),
        (("--recipes", "random", "--out", "pool"), "0.tar"),
        (("--recipes", "random", "--model", "no-such-model"), "no-such-model"),
    ],
)
def test_what_is_wrong_is_reported_before_any_training(
    tamis: Tamis, placed: Path, words: tuple[str, ...], said: str
) -> None:
    assert said in tamis.refused("bench", "pool", "--out", "bench", "--tasks", "found", *SMALL, *words)
    assert not (placed / "bench" / "models").exists()
    assert not (placed / "bench" / "cells").exists()
