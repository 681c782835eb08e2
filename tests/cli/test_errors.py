"""A user's errors that no transcript shows: in words of libraries or of this machine, or of runs in use."""

import os
import re
import shlex
from pathlib import Path

import pytest
from command_line import Tamis, everything

import tamis as package
from tamis.runs.claims import lock_run


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("select run", "--recipe missing"),
        ("score pool --run new --signals caption_length --workers 0", "workers"),
        ("score pool --run new --signals caption_length --device cuda:7", "cuda:7"),
        ("score pool --run text.txt/new --signals caption_length", "text.txt/new"),
        ("score pool --run new --signals clip --set signals.clip.model=owner/absent", "owner/absent download"),
        ("select run -r latin.yaml -o x", "'latin.yaml' UTF-8"),
        ("select run -r random -o x --set select.random_fraction.fraction=[", "--set YAML"),
        ("export run text.txt x --to npy", "text.txt subset"),
        ("status nowhere --watch", "nowhere"),
    ],
)
def test_a_users_error_names_what_is_wrong_and_changes_nothing(
    tamis: Tamis, scored: Path, tmp_path: Path, command: str, names: str
) -> None:
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "latin.yaml").write_bytes(b"about: caf\xe9\nselect: []\n")
    before = everything(tmp_path)
    done = tamis(*command.split())  # an exception that gets out is the traceback that a user would see
    message = re.sub(r"[│\s]+", " ", done.err)
    assert (done.code, [word for word in names.split() if word not in message]) == (2, []), message
    assert everything(tmp_path) == before


def test_a_run_in_use_is_refused(tamis: Tamis, scored: Path) -> None:
    with lock_run(scored):
        done = tamis("score", "pool", "--run", "run", "--signals", "caption_length")
    assert done.code == 2
    assert f"in use by process {os.getpid()}" in done.err


def test_control_characters_in_file_names_reach_no_terminal(tamis: Tamis, tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "a\x1b[31mred.tar").write_bytes(b"no tar")
    done = tamis("score", "pool", "--run", "run", "--signals", "caption_length", "-q")
    assert done.code == 1
    assert "\x1b" not in done.err
    assert "\\x1b[31mred" in done.err


#: Wrong entries of a recipe, and what their messages say.
WRONG = {
    "- top_fraction: {score: words, fraction: 30}": "fraction must be between 0 and 1, got 30; did you mean 0.3?",
    "- random_fraction: {fraction: 30}": "did you mean 0.3?",
    "- clipcov: {fraction: 30}": "did you mean 0.3?",
    "- semdedup: {fraction: 30}": "did you mean 0.3?",
    "- top_fraction: {score: words, fraction: 30 %}": "fraction: expected a number, got '30 %'; did you mean 0.3?",
    "- top_fraction: {score: words, fraction: {a: 1}}": "fraction: expected a number, got settings ('a')",
    "- top_fraction: {score: words, fraction: }": "fraction: expected a number, got nothing",
    "- at_least: {score: [words], value: 3}": "score: expected text, got a list ('words')",
    "- equals: {score: status, value: {a: 1}}": "value: expected text, a number or a list, such as [a, b], got",
    "- top_n: {score: words, n: 2.5}": "n: expected a whole number, got 2.5",
    "- top_n: {score: words, n: 3, cap: 1}": "cap (rows per group) must be 0 or more and needs per: COLUMN; got cap 1",
    "- semdedup: {epsilon: 0.1, also: [a]}": "also: expected a list, such as [a, b], got a list ('a')",
    "- clipcov: {}": "clipcov needs fraction or n, got neither",
    "- distinct: {distance: far}": "distance: expected a whole number, got 'far'",
    "-": "expected one step with its settings, got nothing",
    "- all_of: {a: 1}": "expected a list (lines that begin with '- '), got settings ('a')",
    "[]\nname: {a: 1}": "name: expected text, got settings ('a')",
    "[]\nreport: [a]": "report: expected text, got a list ('a')",
    "[]\npool: {path: {a: 1}}": "path: expected text or a list, such as [a, b], got settings ('a')",
    "[]\npool: {path: p, max_pixels: big}": "max_pixels: expected a whole number, got 'big'",
    "[]\nsignals: [{clip: {model: 3}}]": "model: expected text, got 3",
    "[]\nsignals: [{sieve: {captioner: lab/captioner, sampling: 3}}]": "sampling: expected settings, such as",
    "[]\nsignals: [{sieve: {captioner: lab/captioner, sampling: {top_p: 30}}}]": "top_p must be between 0 and 1",
}


@pytest.mark.parametrize("entry", WRONG)
def test_a_wrong_entry_of_a_recipe_is_explained_in_words(
    tamis: Tamis, scored: Path, tmp_path: Path, entry: str
) -> None:
    (tmp_path / "mine.yaml").write_text(f"select:\n  {entry}\n" if entry[0] == "-" else f"select: {entry}\n")
    done = tamis("select", "run", "-r", "mine.yaml", "-o", "x.parquet")
    assert (done.code, WRONG[entry] in done.err) == (2, True), done.err
    assert not re.search(r"\{'|\bNone\b|Input should|\bvalid\b|\b(str|int|float|tuple|dict)\b", done.err)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("score", "tamis score: POOL... is missing"),
        ("select run", "tamis select: --recipe is missing"),
        ("look pool --pairs 0", "tamis look: --pairs: expected a whole number of 1 or more, got 0"),
        ("explore run --port 99999", "tamis explore: --port: expected a whole number of at most 65535, got 99999"),
        ("score pool --run r --batch-size many", "tamis score: --batch-size: expected a whole number, got many"),
        ("select run --recpie random", "tamis select: there is no option --recpie (did you mean --recipe?)"),
        ("report run --subset random", "tamis report: there is no option --subset\nHelp"),  # an argument is none
        ("choose run --share .1", "tamis choose: there is no option --share (did you mean --shares?)"),
        ("score pool --signals caption_length --max-error-rate 30", "must be between 0 and 1, got 30; did you"),
        ("score pool --signals Clip", "tamis: unknown signal 'Clip' (did you mean 'clip'?)"),
        ("scor", "tamis: No such command 'scor'. Did you mean 'score'?"),
        ("filter run", "tamis: No such command 'filter': write tamis select RUN --recipe NAME"),
        ("dedup run", "tamis: No such command 'dedup': write tamis select RUN --recipe distinct"),
        ("signals", "tamis: No such command 'signals': write tamis list signals"),
        ("help", "tamis: No such command 'help': write tamis --help"),
        ("select run --recipe clip", "tamis: unknown recipe 'clip' (did you mean 'clip-30'?)"),
        ("score pool --signals text", "tamis: unknown signal 'text' (did you mean 'text_area'?)"),
        ("score pool --signals clip --model x", "there is no option --model: write --set signals.clip.model=NAME"),
        ("score pool --signals clip --gpu", "there is no option --gpu: write --device cuda"),
        ("score pool --signals clip --limit 9", "no option --limit: write tamis look POOL --pairs 100, or name fewer"),
        ("score pool --signals clip --resume", "no option --resume: write nothing; the same command continues"),
        ("score pool --signals clip --out x", "tamis score: there is no option --out"),
        ("select run -r random --fraction .2", "no option --fraction: write --set select.top_fraction.fraction=0.2"),
        ("score pool --signals clip --set clip.model=x", "clip.model=x': write --set signals.clip.model=x"),
        ("select run -r clip-30 --set model=x", "model=x': write --set signals.clip.model=x"),
        ("select run -r clip-30 --set fraction=0.1", "0.1': write --set select.top_fraction.fraction=0.1"),
        ("select run -r random --set select.n=4", "no entry is called 'n'; entries: random_fraction"),
        ("select run -r random --set nothing.n=4", "unknown key 'nothing'"),
        ("select run random", "tamis select: --recipe is missing"),
        ("run pool basic", "tamis run: one word too many: basic; a recipe is named with --recipe"),
        ("export random out.npy", "tamis export: OUT is missing (RUN SUBSET OUT, in this order)"),
        ("export run random out.tar", "writes tars, into a folder: tamis export run random out --to webdataset"),
        ("export run random a/{0..9}.tar", "a folder: tamis export run random a --to webdataset"),
        ("map run", "none in run. To store those of a CLIP:"),
        ("look https://huggingface.co/datasets/a/b-c", "`hf download a/b-c --repo-type dataset --local-dir b-c`"),
        ("look https://hf.co/datasets/a/b/tree/main/x", "is a web page: a dataset of the Hub is downloaded first"),
        ("look owner/data", "there (files looked for: *.tar, *.tar.gz, *.tgz, *.tar.bz2, *.tar.xz, *.parquet, *.csv"),
        ("look owner/data", "or read there as hf://datasets/owner/data"),
    ],
)
def test_a_wrong_option_is_explained_in_words(tamis: Tamis, scored: Path, command: str, message: str) -> None:
    done = tamis(*command.split())
    assert done.code == 2
    assert done.err.startswith(message) or message in done.err.splitlines()[0], done.err


def test_the_command_that_stores_embeddings_is_whole(tamis: Tamis, scored: Path, clip_model: str) -> None:
    line = tamis.refused("map", "run").splitlines()[1]
    start = package.open_run("run").score_command()
    setting = "signals.clip.model=openai/clip-vit-base-patch32"
    assert line == f"{start} --signals clip --set {setting} --keep embeddings"
    model = f"signals.clip.model={clip_model}"
    tamis.ok("score", "pool", "--run", "run", "--signals", "clip", "--set", model, "--keep", "none", "-q")
    line = tamis.refused("map", "run").splitlines()[1]
    assert f"--set {model} --keep embeddings" in line
    tamis.ok(*shlex.split(line)[1:], "-q")
    tamis.ok("map", "run", "--sample", "10")


def test_a_pool_in_place_of_its_run_names_the_run(tamis: Tamis, scored: Path) -> None:
    (scored.parent / "runs").mkdir()
    scored.rename("runs/pool")
    assert "pool is not a run folder: it holds no run.json (did you mean runs/pool?)" in tamis.refused(
        "explore", "pool"
    )
    tamis.ok("select", "runs/pool", "--recipe", "random")
