"""What each command prints: transcripts/*.txt, and a new user's path in new_user.md, run again and compared.

A line that begins with "$ " is a command; what follows is its standard output, lines of standard error after "! ", and
the exit code if it is not 0. `TAMIS_WRITE=1 pytest tests/cli/test_transcripts.py` writes them from what is printed now:
look at the difference before you commit it.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import Tamis, everything
from factories import image_bytes, pair, write_pool, write_run, write_tar

import tamis as package
from tamis_lab.pool import make_pool

TRANSCRIPTS = Path(__file__).parent / "transcripts"
PAGE = TRANSCRIPTS / "new_user.md"

#: What differs from one run to the next.
PASSING = (
    (re.compile(r"\b[0-9a-f]{16}\b"), "FINGERPRINT"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?"), "TIME"),
    (re.compile(r"\b\d+(\.\d+)? (ms|s|min|seconds)\b"), "TIME"),
    (re.compile(r"\d+ samples/s, MFU .*"), "SPEED"),
    (re.compile(r"cache at [^\s;]+"), "cache at CACHE"),
    (re.compile(r"known: [^;\n]+?(?=;| in run|$)", re.MULTILINE), "known: ..."),
    (re.compile(r"^(  (slowest|then) |! .* shards · ).*\n", re.MULTILINE), ""),
)


@pytest.fixture
def place(tmp_path: Path) -> None:
    """A folder with the transcripts' recipes, files of wrong kinds, a run of another pool, and three pools:

    good pairs, odd ones, and one with half a shard.
    """
    for recipe in TRANSCRIPTS.glob("*.yaml"):
        shutil.copy(recipe, tmp_path)
    write_pool(tmp_path / "pool")
    odd = [("0", pair(0)), ("1", pair(1) | {"txt": b" "}), ("2", pair(2) | {"jpg": b"none"}), ("3", pair(0))]
    write_tar(tmp_path / "odd" / "00000.tar", [(key, {**files}) for key, files in odd])
    write_pool(tmp_path / "half", shards=2)
    content = (tmp_path / "half" / "00001.tar").read_bytes()
    (tmp_path / "half" / "00001.tar").write_bytes(content[: len(content) // 2])
    write_run(tmp_path / "other", {"a": [1.0, 2.0]}, shards=1)
    package.select(tmp_path / "other", "no-filter").save(tmp_path / "others.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "plain.parquet")
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "latin.yaml").write_bytes(b"about: caf\xe9\nselect: []\n")
    for name, content in (("empty", None), ("newer", '{"format": 99}'), ("damaged", "{")):
        (tmp_path / name).mkdir()
        if content:
            (tmp_path / name / "run.json").write_text(content)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(image_bytes())


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("path", sorted(TRANSCRIPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_a_command_prints_what_its_transcript_shows(path: Path, tamis: Tamis, clip_model: str, tmp_path: Path) -> None:
    expected = path.read_text(encoding="utf-8")
    found = []
    for command in re.findall(r"^\$ tamis (.*)$", expected, re.MULTILINE):
        before = everything(tmp_path)
        done = tamis(*shlex.split(command.replace("MODEL", clip_model)))
        printed = done.out.splitlines() + [f"! {line}" for line in done.err.splitlines()]
        printed += [f"[exit code {done.code}]"] if done.code else []
        text = "".join(f"{line.rstrip()}\n" for line in printed)
        text = text.replace(clip_model, "MODEL").replace(f"{tmp_path}/", "").replace(str(tmp_path), ".")
        for pattern, word in PASSING:
            text = pattern.sub(word, text)
        if done.code == 2:  # an error of the user's changes nothing
            assert everything(tmp_path).items() - before.items() <= {("new/lock", b""), ("run/lock", b"")}, command
            assert before.keys() <= everything(tmp_path).keys(), command
        found.append(f"$ tamis {command}\n{text}")
    if os.environ.get("TAMIS_WRITE"):
        path.write_text("\n".join(found), encoding="utf-8")
        return
    assert "\n".join(found) == expected, "if this is right, TAMIS_WRITE=1 updates it"


def test_the_path_of_a_new_user_is_as_the_page_shows_it(
    tamis: Tamis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's commands run in order on a drawn pool, both streams together, as in a terminal of 80 columns."""
    make_pool(tmp_path / "pool", pairs=200, seed=0, shard_size=50)
    shutil.copytree(tmp_path / "pool", tmp_path / "damaged")
    whole = (tmp_path / "damaged" / "00001.tar").read_bytes()
    (tmp_path / "damaged" / "00001.tar").write_bytes(whole[:100_000])
    (tmp_path / "damaged" / "00002.tar").write_bytes(b"an error page")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(image_bytes())
    (tmp_path / "table.csv").write_text("title,link\na dog,http://example.org/dog.jpg\n")
    monkeypatch.setenv("COLUMNS", "80")

    def again(found: re.Match[str]) -> str:
        done = (printed(shlex.split(command)) for command in re.findall(r"^\$ (.*)$", found[1], re.MULTILINE))
        return f"```console\n{chr(10).join(done)}```\n"

    def printed(words: list[str]) -> str:
        command = f"$ {shlex.join(words)}\n".replace("'", '"')
        if words[1] == "explore" and "--no-browser" in words:
            server = [sys.executable, "-m", *words]
            with subprocess.Popen(
                server, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            ) as run:
                shown = run.stdout.readline() + run.stdout.readline()
                run.send_signal(signal.SIGINT)
            shown = re.sub(r"http://\S+", "http://127.0.0.1:PORT/?key=KEY", shown)
        else:
            monkeypatch.setattr(sys, "stderr", sys.stdout)
            done = tamis(*words[1:])
            shown = done.out + (f"[exit code {done.code}]\n" if done.code else "")
        shown = shown.replace(f"{tmp_path}/", "").replace(str(tmp_path), ".")
        shown = shown.replace("float32 on cpu", "bf16 on cpu")  # which one, the processor decides
        for pattern, word in PASSING[2:5]:
            shown = pattern.sub(word, shown)
        return command + re.sub(r"(?<=pairs) · [\d,]+ pairs/s|; to try things out.*| · slowest: [^·\n]*", "", shown)

    expected = PAGE.read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(re.findall(r"```text\n(.*?)```", expected, re.DOTALL)[0])
    page = re.sub(r"```console\n(.*?)```\n", again, expected, flags=re.DOTALL)
    if os.environ.get("TAMIS_WRITE"):
        PAGE.write_text(page, encoding="utf-8")
        return
    assert page == expected, "if this is right, TAMIS_WRITE=1 updates it"
