"""What a tired person types: lists in two options, names with slips, files of a wrong kind, scores that are missing."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from command_line import Tamis
from factories import write_pool

import tamis as package
from tamis import errors


def test_lists_may_be_repeated(tamis: Tamis, tmp_path: Path, clip_model: str) -> None:
    write_pool(tmp_path / "pool", shards=1, rows=3)
    signals = (
        "--signals",
        "caption_length,image_size",
        "--signals",
        "clip",
        "--set",
        f"signals.clip.model={clip_model}",
    )
    done = tamis("score", "pool", "--run", "run", *signals, "--keep", "embeddings", "--keep", "captions,texts", "-q")
    assert done.code == 0, done.err
    run = package.open_run("run")
    assert set(run.scores) == {"caption_length", "image_size", "clip"}
    assert len(run.embeddings) == 2


def test_a_recipe_whose_scores_are_missing_prints_the_line_that_makes_them(
    tamis: Tamis, scored: Path, clip_model: str
) -> None:
    model = ["--set", f"signals.clip.model={clip_model}"]
    done = tamis("select", "run", "--recipe", "clip-30", "--out", "a.parquet", *model)
    assert done.code == 2
    (line,) = re.findall(r"^tamis score .*$", done.err, re.MULTILINE)
    assert f"--signals clip --set signals.clip.model={clip_model}" in line
    assert tamis(*shlex.split(line)[1:], "--quiet").code == 0
    assert tamis("select", "run", "--recipe", "clip-30", "--out", "a.parquet", *model).code == 0
    done = tamis("select", "run", "--recipe", "semdedup", "--out", "b.parquet", *model)
    (line,) = re.findall(r"^tamis score .*$", done.err, re.MULTILINE)
    assert line.endswith("--keep embeddings")
    assert tamis(*shlex.split(line)[1:], "--quiet").code == 0


def test_the_line_says_how_the_pool_was_read_and_which_settings_the_recipe_has(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1, rows=2)
    assert (
        tamis("score", "pool", "--run", "my run", "--transparency", "white", "--signals", "image_size", "-q").code == 0
    )
    done = tamis("select", "my run", "--recipe", "sieve-released", "--out", "a.parquet")
    (line,) = re.findall(r"^tamis score .*$", done.err, re.MULTILINE)
    assert "--run 'my run' --transparency white" in line
    assert "--set signals.sieve.captioner=Salesforce/blip-image-captioning-base" in line
    assert "--set 'signals.sieve.sampling.prompt=a picture of'" in line
    assert "--set signals.sieve.sampling.top_k=50" in line
    assert "--set signals.sieve.captioner=lab/captioner" in done.err


def test_the_hint_for_an_extra_works_from_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = Path(package.__file__).parents[2]
    monkeypatch.chdir(tmp_path)
    assert errors.install("text") == f"pip install -c {root}/constraints.txt -e '{root}[text]'"
    monkeypatch.chdir(root)
    assert errors.install("text") == "pip install -c constraints.txt -e '.[text]'"
    installed = tmp_path / "lib" / "tamis" / "errors.py"
    monkeypatch.setattr(errors, "__file__", str(installed))
    assert errors.install("text") == "pip install 'tamis[text]'"


def test_an_entry_of_a_list_is_shown_in_full(tamis: Tamis) -> None:
    clip = tamis("list", "signals", "clip").out
    assert all(words in clip for words in ("Cost:", "clip: cosine", "Settings: model", "clip-30"))
    assert "epsilon" in tamis("list", "steps", "semdedup").out
    assert "1710" in tamis("list", "models", "openai/clip-vit-large-patch14").out
    assert tamis("list", "signals", "clip", "--json").out.count('"signal"') == 1


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("tamis score pool --signals clip,im", {"clip,image_hash", "clip,image_quality", "clip,image_size"}),
        ("tamis select run --recipe clip-3", {"clip-30", "clip-30-and-text_match"}),
        ("tamis check mi", {"mine.yaml"}),
        ("tamis list si", {"signals"}),
        ("tamis export run a.parquet out --to n", {"npy"}),
    ],
)
def test_the_shell_completes_names(
    tamis: Tamis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, found: set[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("select: []\n")
    monkeypatch.setenv("_TAMIS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert set(tamis().out.split()) == found
