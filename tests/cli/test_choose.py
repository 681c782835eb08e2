"""`tamis choose`: from a pool or a run to the arms that may be best, by real trainings of a tiny model."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from command_line import Tamis
from factories import WORDS, pair, write_tar
from tiny_models import clip_folder, tokenizer_folder

import tamis as library
from tamis.core.errors import RecipeError, StopError
from tamis.core.files.checked import with_hash, write_record
from tamis.runs import Run
from tamis.train.evaluate import cells
from tamis.train.scales import CaptionTraining, ClipTraining

LONG = """
name: long-50
about: The pairs with the longest captions.
signals: [caption_length]
select:
  - top_fraction: {score: caption_length.characters, fraction: 0.5}
"""
SMALL = ("--train-batch", "4", "--workers", "1", "--device", "cpu", "--threads", "1")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clip_folder(tmp_path_factory.mktemp("choose-model") / "clip")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `pool` (16 pairs), its `run`, `found` (a retrieval task of five images) and `long.yaml`."""
    folder = tmp_path_factory.mktemp("choose")
    write_tar(folder / "pool" / "0.tar", [(f"{row:04d}", pair(row)) for row in range(16)])
    (folder / "found").mkdir()
    for number in range(5):
        files = pair(5000 + number)
        (folder / "found" / f"{number}.jpg").write_bytes(files["jpg"])
        (folder / "found" / f"{number}.txt").write_bytes(files["txt"])
    (folder / "long.yaml").write_text(LONG)
    (folder / "other.yaml").write_text(LONG.replace("long-50", "long").replace("characters", "words"))
    library.score(folder / "pool", run=folder / "run", signals=["caption_length"], quiet=True)
    return folder


@pytest.fixture
def words(made: Path, model: Path) -> list[str]:
    """A race of two rounds, of 2 and of 4 steps of four pairs."""
    here = ["choose", str(made / "run"), "--arms", str(made / "long.yaml"), "--tasks", str(made / "found")]
    return [*here, "--rounds", "2", "--samples", "16", "--model", str(model), *SMALL]


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The cells that are trained: a recipe, a seed, and the samples that its model sees."""
    names: list[str] = []
    train = cells.train_clip

    def noted(source: Any, **settings: Any) -> Any:
        names.append(f"{source.name}, {settings['training'].seed}, {settings['training'].samples}")
        return train(source, **settings)

    monkeypatch.setattr(cells, "train_clip", noted)
    return names


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Draws scores in place of training: a model is better the more pairs it saw. Counts the models of each recipe."""
    names: Counter[str] = Counter()

    def executed(wanted: Any, workers: int) -> dict[str, str]:
        for cell in {cell.ident: cell for cell in wanted if not cell.path.is_file()}.values():
            names[cell.name.split(",")[0]] += 1
            seed = cell.training.seed
            score = 0.1 * cell.subset.kept + 0.01 * ((seed * 7 + cell.subset.kept * (seed + 1) * 5) % 11) / 11
            facts: dict[str, Any] = {
                "scores": dict.fromkeys(cell.only, 0.5),
                "likelihoods": dict.fromkeys(cell.only, score - 5),
            }
            facts |= {"samples": cell.training.samples, "training_seconds": 1.0, "evaluation_seconds": 0.5}
            write_record(cell.path, facts)
        return {}

    monkeypatch.setattr(cells, "execute_all", executed)
    return names


def test_a_race_is_run_resumed_reported_and_shared_with_bench(
    tamis: Tamis, made: Path, words: list[str], trained: list[str], tmp_path: Path
) -> None:
    words += ["--shares", ".25,.5,1", "--out", "choice"]
    done = tamis.ok(*words)
    # random@1 and long@1 keep what no-filter does.
    names = ["no-filter", "random@0.25", "random@0.5", "long@0.25", "long@0.5"]
    assert trained[:10] == [f"{name}, {seed}, 8" for seed in (0, 1) for name in names]
    assert {line.split(", ", 1)[1] for line in trained[10:]} <= {"2, 16", "3, 16"}
    assert len({line.split(",")[0] for line in trained[10:]}) >= 2
    lines = done.out.splitlines()
    assert lines[0].split()[:4] == ["arm", "kept", "share", "state"]
    assert "no-filter = random@1 = long@1" in done.out
    assert any(line.startswith("best at 16 samples, if orders change no faster later") for line in lines)
    assert not (tmp_path / "choice" / "models").exists() or not list((tmp_path / "choice" / "models").iterdir())

    before = len(trained)
    again = tamis.ok(*words, "--json")
    assert len(trained) == before
    facts = json.loads(again.out)
    assert with_hash(facts) == json.loads((tmp_path / "choice" / "choose.json").read_text())
    assert with_hash(facts) == json.loads((made / "run" / "choose.json").read_text())
    assert facts["verdict"] == lines[-len(facts["verdict"]) :]
    assert facts["lengths"] == [8, 16]
    stored = [json.loads(path.read_text()) for path in (tmp_path / "choice" / "cells").glob("*.json")]
    by_cell = {(cell["name"], cell["training"]["samples"]): cell["likelihoods"]["found"] for cell in stored}
    for arm in facts["arms"]:
        assert arm["scores"]["1"] == [by_cell[f"{arm['name']}, seed {seed}", 8] for seed in (0, 1)]

    bench = ["bench", str(made / "run"), "--recipes", f"no-filter,{made / 'long.yaml'}", "--out", "choice", *SMALL]
    tamis.ok(*bench, *("--tasks", str(made / "found"), "--model", words[words.index("--model") + 1]), "--samples", "8",
             "--seeds", "2")  # fmt: skip
    assert len(trained) == before  # long-50 is long@0.5


def test_a_pool_is_scored_first_and_its_scoring_time_is_known(
    tamis: Tamis, made: Path, words: list[str], drawn: Counter[str], tmp_path: Path
) -> None:
    words[1] = str(made / "pool")
    facts = json.loads(tamis.ok(*words, "--out", "choice", "--json").out)
    assert (tmp_path / "choice" / "run" / "choose.json").is_file()
    costs = {arm["name"]: arm["scoring_seconds"] for arm in facts["arms"]}
    assert (costs["no-filter"], costs["random"]) == (0, 0)
    assert costs["long-50"] == pytest.approx(0, abs=0.1)  # known, of 16 captions
    assert facts["answer"] == ["no-filter"]
    assert not facts["beats_random"]


def test_another_model_checks_the_race(tamis: Tamis, made: Path, words: list[str], drawn: Counter[str]) -> None:
    other = clip_folder(made / "other", seed=1)
    words += ["--shares", ".25,.5", "--out", "choice", "--check", str(other)]
    done = tamis.ok(*words)
    assert drawn["no-filter"] == 2 * (2 + 2)
    assert done.out.splitlines()[-1] == (
        f"with {other}: best no-filter; rank correlation with the above 1.00; both answers have no-filter"
    )
    facts = json.loads(tamis.ok(*words, "--json").out)
    assert facts["check"]["race"]["training"]["model"] == str(other)
    assert facts["check"]["shared"] == ["no-filter"]


def test_a_curve_brackets_the_share(
    tamis: Tamis, made: Path, words: list[str], drawn: Counter[str], tmp_path: Path
) -> None:
    del words[words.index("--rounds") : words.index("--rounds") + 2]
    words += ["--curve", "--shares", ".2,.8", "--out", "choice"]
    done = tamis.ok(*words)
    assert list(drawn.values()) == [3] * 8
    facts = json.loads((tmp_path / "choice" / "shares.json").read_text())
    (curve,) = facts["curves"]
    assert facts["kind"] == "tamis choose --curve"
    assert curve["shares"] == pytest.approx([0.2 * 4 ** (n / 7) for n in range(8)], abs=5e-4)
    assert curve["kept"] == [round(16 * share) for share in curve["shares"]]
    assert curve["left"] == [True] * 7 + [False]
    assert curve["bracket"] == [curve["shares"][6], 0.8]
    assert curve["point"] == 0.8
    assert "long-50: any share in [0.656, 0.8] fits; 0.8 by a parabola, no interval" in done.out
    assert "the highest share tried may be the best: a higher one may be better" in done.out
    assert (made / "run" / "shares.json").read_text() == (tmp_path / "choice" / "shares.json").read_text()
    assert json.loads(tamis.ok(*words, "--json").out)["curves"] == facts["curves"]
    assert list(drawn.values()) == [3] * 8  # nothing is trained twice


def test_shares_that_keep_the_same_pairs_are_one(
    tamis: Tamis, words: list[str], drawn: Counter[str], tmp_path: Path
) -> None:
    words[words.index("--rounds") : words.index("--rounds") + 2] = ["--curve", "--out", "choice"]
    tamis.ok(*words, "--shares", ".15,.3")
    (curve,) = json.loads((tmp_path / "choice" / "shares.json").read_text())["curves"]
    assert (curve["shares"][0], curve["kept"]) == (0.15, [2, 3, 4, 5])
    assert [len(curve[name]) for name in ("shares", "scores", "accuracies", "left")] == [4] * 4
    error = tamis.refused(*words, "--shares", ".13,.14")
    assert "all shares of long-50 keep the same pairs" in error


def test_a_check_that_fails_leaves_the_race(
    tamis: Tamis, made: Path, words: list[str], drawn: Counter[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other, execute_all = clip_folder(made / "broken", seed=2), cells.execute_all

    def executed(wanted: Any, workers: int) -> dict[str, str]:
        broken = {cell.ident: "gone" for cell in wanted if cell.training.model == str(other)}
        return broken or execute_all(wanted, workers)

    monkeypatch.setattr(cells, "execute_all", executed)
    assert "every training failed" in tamis.refused(*words, "--out", "choice", "--check", str(other))
    assert json.loads((tmp_path / "choice" / "choose.json").read_text())["answer"] == ["no-filter"]


def test_a_budget_sets_arms_aside(tamis: Tamis, words: list[str], drawn: Counter[str]) -> None:
    # Round 1 takes 5 arms x 2 seeds x 1.5 s = 15 s of 27. A model of round 2 should take 2.5 s: two arms, two seeds.
    words += ["--shares", ".25,.5", "--out", "choice", "--budget", "0.45m"]
    done = tamis.ok(*words)
    assert "set aside for cost, so they may be the best: " in done.out
    assert "highest so far, after 16 samples: no-filter" in done.out
    assert "best at" not in done.out


def test_a_failing_arm_is_named_and_sets_the_exit_code(
    tamis: Tamis, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train = cells.train_clip

    def broken(source: Any, **settings: Any) -> Any:
        if source.name == "random":
            raise StopError("the pool is gone")
        return train(source, **settings)

    monkeypatch.setattr(cells, "train_clip", broken)
    done = tamis(*words, "--out", "choice")
    assert done.code == 1
    assert "random has no result: the pool is gone" in done.err
    assert "no result: random" in done.out


def test_what_cannot_be_raced_is_refused_before_any_work(
    tamis: Tamis, made: Path, words: list[str], trained: list[str], tmp_path: Path
) -> None:
    words += ["--out", "choice"]
    for more, message in (
        (["--shares", "1.5"], "above 0 and at most 1, got 1.5"),
        (["--shares", ".5,0"], "above 0 and at most 1, got 0"),
        (["--shares", "nan"], "above 0 and at most 1, got nan"),
        (["--shares", ".2,half"], "expected numbers with commas, such as .1,.2,.5, got '.2,half'"),
        (["--rounds", "1"], "--rounds"),
        (["--rounds", "4"], "the first of 4 rounds would see 2 samples, fewer than a batch of 4"),
        (["--budget", "4"], "expected a time such as 4h, 30m or 1.5h"),
        (["--budget", "0h"], "expected a time such as 4h, 30m or 1.5h"),
        (["--budget", "nanh"], "expected a time such as 4h, 30m or 1.5h"),
        (["--arms", "clip-5"], "clip-50"),
        (["--arms", str(made / "other.yaml"), "--shares", ".2"], "two different recipes would race as 'long@0.2'"),
        (["--only", "fuond"], "did you mean 'found'"),
        (["--captioner", "lab"], "leave them out with --captioner"),
        (["--curve"], "--check, --budget and --rounds are for a race: leave them out with --curve"),
        (["--check", ":minilm"], "--check names a model, such as ViT-tiny or ViT-tiny:minilm, got ':minilm'"),
        (["--pairs", "100"], "--pairs is the size of the lab's pool, and has no effect on"),
        (["--field", "truth"], "run is a run already: leave out --run and --field"),
        (["--size", "100"], "--size is that of the lab's tasks, and has no effect on"),
        (["--shares", ".5,.50000001"], "the same in six digits"),
    ):
        assert message in tamis.refused(*words, *more)
        assert not list(tmp_path.iterdir())
    arms = words.index("--arms") + 1
    assert "there is no recipe to race" in tamis.refused(*words[:arms], "", *words[arms + 1 :])
    del words[words.index("--rounds") : words.index("--rounds") + 2]
    for more, message in (
        (["--curve", "--budget", "4h"], "leave them out with --curve"),
        (["--curve", "--shares", ".5"], "a lowest and a highest share"),
        (["--curve", "--shares", ".5,2"], "a lowest and a highest share"),
        (["--curve", "--shares", ".5,.501"], "with room for 8, got 0.5 and 0.501"),
        (["--curve", "--arms", "no-filter"], "keeps no fraction"),
    ):
        assert message in tamis.refused(*words, *more)
        assert not list(tmp_path.iterdir())
    assert trained == []


def test_captioners_race_by_cider(made: Path, model: Path, tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    language = tmp_path / "gpt2"
    GPT2LMHeadModel(
        GPT2Config(vocab_size=len(WORDS) + 4, n_embd=8, n_layer=1, n_head=2, n_positions=16)
    ).save_pretrained(tokenizer_folder(language))
    training = CaptionTraining(vision=str(model), language=str(language), samples=8, batch=4)
    done = library.choose(
        Run(made / "run"), tasks=made / "found", out=tmp_path / "out", training=training, rounds=2, device="cpu"
    )
    assert {arm.name for arm in done.arms} == {"no-filter", "random"}
    assert all(dict(arm.scores) == dict(arm.accuracies) for arm in done.arms)
    stored = [json.loads(path.read_text()) for path in (tmp_path / "out" / "cells").glob("*.json")]
    assert sorted(score for arm in done.arms for row in arm.scores.values() for score in row) == sorted(
        cell["scores"]["found"] for cell in stored
    )


def test_the_library_refuses_what_the_command_does(made: Path, model: Path, tmp_path: Path) -> None:
    training = ClipTraining(model=str(model), samples=16, batch=4)
    for change, kind in (
        ({"rounds": 1}, ValueError),
        ({"budget": 0.0}, ValueError),
        ({"shares": [1.5]}, ValueError),
        ({"recipes": ["no-filter", "no-filter"]}, RecipeError),
    ):
        with pytest.raises(kind):
            library.choose(Run(made / "run"), **{"tasks": made / "found", "out": tmp_path / "out",
                                                 "training": training, **change})  # fmt: skip
    assert not (tmp_path / "out").exists()
