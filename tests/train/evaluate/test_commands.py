"""`tamis evaluate concreteness`, `tamis train sba` and `tamis train icc` from a shell."""

import json
from pathlib import Path

import pytest
from command_line import Tamis
from factories import caption


def rated(folder: Path) -> Path:
    path = folder / "rated.csv"
    texts = list(dict.fromkeys(caption(seed) for seed in range(20)))
    path.write_text("caption,rating\n" + "".join(f"{text},{len(text.split())}\n" for text in texts) + "one more,\n")
    return path


def test_evaluating_prints_three_correlations_with_intervals(tamis: Tamis, tmp_path: Path) -> None:
    path = rated(tmp_path)
    done = tamis.ok("evaluate", "concreteness", path, "--signal", "caption_length")
    assert done.out.count("1.000 [1.000, 1.000]") == 3
    assert "1 rows have no rating or no score" in done.err
    facts = json.loads(tamis("evaluate", "concreteness", path, "--signal", "caption_length", "--json").out)
    assert facts["left_out"] == 1
    assert facts["spearman"]["value"] == pytest.approx(1)


def test_training_scoring_and_distilling_in_a_row(
    tamis: Tamis, tmp_path: Path, clip_model: str, llama_model: str, regression_model: str
) -> None:
    captions = list(dict.fromkeys(caption(seed) for seed in range(150)))[:100]
    table = tmp_path / "captions.csv"
    table.write_text("caption\n" + "".join(f"{text}\n" for text in captions))
    done = tamis.ok(
        *("train", "sba", table, "--clip", clip_model, "--language-model", llama_model),
        *("--epochs", "1", "--end", "eos", "--out", tmp_path / "sba"),
    )
    assert "wrote" in done.err
    run = tmp_path / "run"
    recipe = tmp_path / "teachers.yaml"
    recipe.write_text(f"signals:\n  - sba: {{bridge: {tmp_path / 'sba'}, beams: 2, max_tokens: 6, encoder: minilm}}\n")
    done = tamis.ok("score", table, "--image", "none", "--run", run, "--recipe", recipe, "--quiet")
    from tamis.runs import open_run

    opened = open_run(run)
    assert set(opened.statuses) == {"ok"}
    assert len(opened) == 100
    scores = tmp_path / "scores.csv"
    sba = opened.to_numpy("sba")
    kept = opened.index(opened.shards[0], ["caption"])["caption"].to_pylist()
    scores.write_text("caption,vba,sba\n" + "".join(f"{t},{s / 2},{s}\n" for t, s in zip(kept, sba, strict=True)))
    done = tamis.ok(
        *("train", "icc", scores, "--weights", "2,1,-1", "--student", regression_model, "--epochs", "1"),
        *("--out", tmp_path / "student", "--json"),
    )
    assert "student, combined teachers" in json.loads(done.out)
    assert (tmp_path / "student" / "model.safetensors").is_file()
    students = f"{regression_model},{tmp_path / 'student'}"
    listed = tmp_path / "to-label.csv"
    done = tamis.ok("train", "icc-labels", scores, "--students", students, "--count", "9", "--out", listed)
    again = tamis("train", "icc-labels", scores, "--students", students, "--count", "9", "--out", listed)
    assert (again.code, "to-label.csv" in again.err) == (2, True)
    header, *lines = listed.read_text().splitlines()
    assert header == "caption,label"
    assert len(lines) == 9
    assert all(line.endswith(",") and line[:-1].strip('"') in kept for line in lines)
    message = tamis.refused("train", "icc", scores, "--teacher", "vba", "--labels", listed, "--out", tmp_path / "other")
    assert "--teacher trains the student of one teacher" in message
    assert "say how to combine the teachers" in tamis.refused("train", "icc", scores, "--out", tmp_path / "other")
