"""What a tired person types: lists in two options, names with slips, files of a wrong kind, scores that are missing."""

import json
import re
import shlex
from pathlib import Path

import pytest
from command_line import Tamis, everything
from factories import write_pool

import tamis as package
from tamis.core import errors
from tamis.recipes.names import shipped_names
from tamis.recipes.recipe import load


def test_lists_may_be_repeated(tamis: Tamis, tmp_path: Path, clip_model: str) -> None:
    write_pool(tmp_path / "pool", shards=1, rows=3)
    signals = ("--signals", "caption_length,image_size", "--signals", "clip")
    model = ("--set", f"signals.clip.model={clip_model}")
    tamis.ok(
        "score", "pool", "--run", "run", *signals, *model, "--keep", "embeddings", "--keep", "captions,texts", "-q"
    )
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
    tamis.ok(*shlex.split(line)[1:], "--keep", "none", "--quiet")
    tamis.ok("select", "run", "--recipe", "clip-30", "--out", "a.parquet", *model)
    done = tamis("select", "run", "--recipe", "semdedup", "--out", "b.parquet", *model)
    (line,) = re.findall(r"^tamis score .*$", done.err, re.MULTILINE)
    assert line.endswith("--keep embeddings")
    tamis.ok(*shlex.split(line)[1:], "--quiet")


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
    assert "As pac, but 100,000 pairs." in tamis("list", "recipes", "pac-100k").out
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


@pytest.mark.parametrize("what", ["signals", "recipes", "models", "steps", "exports"])
def test_lists_are_tables_or_json_and_a_table_fits_80_columns_and_cuts_no_word(
    tamis: Tamis, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    table, data = tamis("list", what), tamis("list", what, "--json")
    assert (table.code, table.err, data.code, data.err) == (0, "", 0, "")
    rows = json.loads(data.out)
    assert len(rows) >= 2
    for row in rows:
        assert str(next(iter(row.values()))) in table.out
        if what == "models":
            assert row["size_mb"] is None or row["size_mb"] > 0
        else:
            assert all(isinstance(value, str) and value for key, value in row.items() if key != "settings")
    monkeypatch.setenv("COLUMNS", "80")
    narrow = tamis("list", what).out
    assert max(map(len, narrow.splitlines())) <= 80
    assert set(narrow.split()) == set(table.out.split())
    if what == "recipes":
        assert narrow.split()[:4] == ["recipe", "paper", "needs", "keeps"]
        assert re.search(r"^clip-30 +DataComp 2023 +clip \(1.7 GB\) +top 30 % of", narrow, re.MULTILINE)
    if what == "models":
        assert re.search(r"^minilm +sentence encoder +92 +Apache-2.0 +no *$", table.out, re.MULTILINE)
        assert len(re.findall(r"^model +job +MB +licence", table.out, re.MULTILINE)) >= 3  # a table of each kind


def test_recipes_have_names_that_type_easily_and_their_older_names_work(tamis: Tamis, scored: Path) -> None:
    assert all(name.isascii() for name in shipped_names())
    assert load("tmars∩c_rho") == load("tmars-and-c_rho")
    steps = [load({"select": [{"all_of": [name]}]}).steps for name in ("image∩clip", "image-and-clip")]
    assert steps[0] == steps[1]
    assert "name: icc-and-tmars" in tamis("list", "recipes", "icc∩tmars").out
    assert "the recipe 'icc-and-tmars' reads" in tamis("select", "run", "-r", "icc∩tmars", "-o", "x.parquet").err


def test_a_pool_and_a_recipe_need_no_other_word(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool")
    (tmp_path / "mine.yaml").write_text("signals: [caption_length]\nselect: [{top_n: {score: words, n: 5}}]\n")
    done = tamis.ok("run", "pool", "--recipe", "mine.yaml", "-q", "--caption", "txt")
    assert done.err.endswith("tamis explore runs/pool mine\nexport them:   tamis export runs/pool mine mine.npy\n")
    tamis.ok("export", "runs/pool", "mine", "mine.npy")
    tamis.ok("export", "runs/pool", "mine", "shards")
    assert {path.name for path in (tmp_path / "shards").iterdir()} >= {"00000.tar", "sizes.json"}
    tamis.ok("export", "runs/pool", "mine", "mine")
    assert tamis("report", "runs/pool", "mine").code == 0  # the subset, not the folder of that name
    tamis.ok("score", "pool", "--signals", "image_size", "--caption", "txt", "-q")
    assert set(package.open_run("runs/pool").scores) == {"caption_length", "image_size"}
    assert "name one with --to" in tamis("export", "runs/pool", "mine", "mine.jpg").err
    assert "tamis run pool --recipe basic" in tamis("run", "pool").err
    assert "goes with a pool and --recipe" in tamis("run", "mine.yaml", "--caption", "txt").err


def test_overwrite_replaces_the_export_in_a_folder_and_nothing_else(tamis: Tamis, scored: Path, tmp_path: Path) -> None:
    for recipe in ("random", "no-filter"):
        tamis.ok("select", "run", "-r", recipe, "-o", f"{recipe}.parquet")
    export = ("--to", "webdataset", "--set", "shard_size=4")
    tamis.ok("export", "run", "no-filter.parquet", "out", *export)
    (tmp_path / "out" / "2024-notes.txt").write_text("mine")
    before = everything(tmp_path / "out")
    assert "or --overwrite" in tamis.refused("export", "run", "random.parquet", "out", *export)
    assert tamis("export", "run", "no-filter.parquet", "out", *export).code == 0  # the same again changes nothing
    assert everything(tmp_path / "out") == before
    tamis.ok("export", "run", "random.parquet", "out", *export, "--overwrite")
    after = everything(tmp_path / "out")
    assert sorted(after) == ["00000.tar", "00001.tar", "00002.tar", "2024-notes.txt", "export.json", "sizes.json"]
    assert sum(json.loads(after["sizes.json"]).values()) == 11


@pytest.mark.parametrize("group", ["", "lab"])
def test_a_group_alone_prints_its_help_and_could_not_do_anything(tamis: Tamis, group: str) -> None:
    done = tamis(*group.split())
    assert (done.code, done.err) == (2, "")
    assert done.out == tamis(*group.split(), "--help").out


def test_what_stands_before_a_command_changes_nothing_and_a_wrong_name_is_compared_with_all(tamis: Tamis) -> None:
    """The command that is named is the only one that is made."""
    assert tamis("-v", "lab", "make-pool", "--help").out == tamis("lab", "make-pool", "--help").out != ""
    for wrong, meant in (("slect", "select"), ("lab make-tools", "make-pool")):
        assert f"'{meant}'" in tamis.refused(*wrong.split())


def test_the_version_goes_to_stdout(tamis: Tamis) -> None:
    done = tamis("--version")
    assert (done.code, done.out, done.err) == (0, f"{package.__version__}\n", "")
