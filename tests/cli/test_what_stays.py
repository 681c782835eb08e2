"""What is at a target stays: every command that writes outside a run, at every kind of target."""

import os
import shutil
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from command_line import Tamis
from factories import pair, write_pool, write_tar

from tamis import exports as exporters
from tamis.core.files.storage import writing
from tamis.exports import Exporter
from tamis.runs.subset import Subset

SCORE = ("--run", "run", "--signals", "caption_length", "-q")

#: Every command that writes a file or a folder, but for the target.
WRITERS: Mapping[str, tuple[str, ...]] = {
    "npy": ("export", "run", "half", "TARGET", "--to", "npy"),
    "parquet": ("export", "run", "half", "TARGET", "--to", "parquet"),
    "keys": ("export", "run", "half", "TARGET", "--to", "keys"),
    "dropped": ("export", "run", "half", "TARGET", "--to", "dropped"),
    "webdataset": ("export", "run", "half", "TARGET", "--to", "webdataset"),
    "another package's": ("export", "run", "half", "TARGET", "--to", "careless"),
    "select": ("select", "run", "--recipe", "no-filter", "--out", "TARGET"),
    "report": ("report", "run", "half", "--out", "TARGET"),
    "look": ("look", "pool", "--out", "TARGET", "-q"),
}


@dataclass(frozen=True, kw_only=True)
class Careless(Exporter):
    """Writes one word, and calls every file its own."""

    name: ClassVar[str] = "careless"

    def write(self, subset: Subset, out: Path) -> int:
        with writing(out) as temporary:
            temporary.write_text("words")
        return 0

    def wrote(self, out: Path, run: Any) -> bool:
        return True


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


#: What is at the target that is no file of the command's own: it makes it, or returns the path of what is there.
OTHERS: Mapping[str, Callable[[Path], Any]] = {
    "a shard of the pool": lambda path: Path("pool/00000.tgz"),
    "a hard link to a shard": lambda path: os.link("pool/00000.tgz", path),
    "a link to a shard": lambda path: path.symlink_to(Path("pool/00000.tgz").absolute()),
    "a part of the run": lambda path: Path("run/index/00000.parquet"),
    "a link to a part": lambda path: path.symlink_to(Path("run/index/00000.parquet").absolute()),
    "a new name among the parts": lambda path: Path("run/index/00009.parquet"),
    "a part of another run": lambda path: Path("other/index/00000.parquet"),
    "what says what the run is": lambda path: Path("run/run.json"),
    "a link to the folder of a run": lambda path: path.symlink_to(Path("run/index").absolute()),
    "somebody's text": lambda path: path.write_text("my thesis"),
    "a link to somebody's text": lambda path: path.symlink_to(Path("recipe.yaml").absolute()),
    "the recipe": lambda path: Path("recipe.yaml"),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a pipe": os.mkfifo,
    "a socket": a_socket,
    "a folder with somebody's files": lambda path: shutil.copytree("pool", path),
}
#: What a command may replace, since it is of its own kind. Nobody can help those who call every file their own.
OWN = {"select": ["the subset"], "another package's": ["somebody's text", "the recipe"]}


def everything() -> dict[str, Any]:
    """Returns what is in the current folder: kind and content of every file, where every link leads."""
    found: dict[str, Any] = {}
    for path in sorted(Path().rglob("*")):
        mode = path.lstat().st_mode
        content = os.readlink(path) if stat.S_ISLNK(mode) else path.read_bytes() if stat.S_ISREG(mode) else None
        found[str(path)] = (stat.S_IFMT(mode), content)
    return found


@pytest.fixture
def place(tamis: Tamis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder: a pool whose names promise no format, a run of it, another run, a subset and a recipe."""
    monkeypatch.setattr("tamis.exports.lists.Careless", Careless, raising=False)
    monkeypatch.setitem(exporters.EXPORTERS.built_in, "careless", "lists:Careless")
    for number in range(2):
        write_tar(
            Path(f"pool/{number:05}.tgz"), [(f"{number}{row}", pair(10 * number + row)) for row in range(3)], "w:gz"
        )
    tamis.ok("score", "pool", *SCORE)
    shutil.copytree("run", "other")
    Path("recipe.yaml").write_text("signals: [caption_length]\n")
    tamis.ok("select", "run", "--recipe", "random", "--out", "half")
    return tmp_path


@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_that_is_at_a_target_is_replaced(writer: str, place: Path, tamis: Tamis) -> None:
    silent = []
    for name, make in {**OTHERS, "the subset": lambda path: Path("half")}.items():
        if name in OWN.get(writer, ()):
            continue
        made = make(Path("target"))
        target = Path("target") if os.path.lexists("target") else made
        before = everything()
        words = [str(target) if word == "TARGET" else word for word in WRITERS[writer]]
        done = tamis(*words, "--overwrite")
        if done.code != 2 or everything() != before:
            silent.append((name, done.code, done.err))
        if target == Path("target"):
            shutil.rmtree(target) if target.is_dir() and not target.is_symlink() else target.unlink()
    assert silent == []


@pytest.mark.parametrize("writer", [name for name in WRITERS if name != "webdataset"])
def test_its_own_file_is_replaced_when_that_is_asked_for(writer: str, place: Path, tamis: Tamis) -> None:
    words = ["target" if word == "TARGET" else word for word in WRITERS[writer]]
    tamis.ok(*words)
    assert Path("target").is_file()
    before = everything()
    done = tamis(*words)
    assert (done.code, everything()) == (2, before)
    assert "target exists: choose another name, or replace it with --overwrite (overwrite=True)" in done.err
    Path("link").symlink_to("target")
    done = tamis(*[word.replace("target", "link") for word in words], "--overwrite")
    assert (done.code, "link is a link to target" in done.err) == (2, True)
    inode = Path("target").stat().st_ino
    done = tamis(*words, "--overwrite")
    assert (done.code, Path("target").stat().st_ino != inode) == (0, True), done.err


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_reported_before_any_work(writer: str, place: Path, tamis: Tamis) -> None:
    Path("closed").mkdir(mode=0o500)
    done = tamis(*["closed/target" if word == "TARGET" else word for word in WRITERS[writer]])
    assert (done.code, "closed is read-only" in done.err) == (2, True)


def test_a_table_that_we_wrote_is_a_pool_too(tamis: Tamis, tmp_path: Path) -> None:
    """Its kind does not protect it then."""
    write_pool(tmp_path / "first", shards=1)
    tamis.ok("score", "first", *SCORE)
    tamis.ok("select", "run", "-r", "no-filter", "-o", "all.parquet")
    table = ("table.parquet", "--to", "parquet")
    tamis.ok("export", "run", "all.parquet", *table, "--croissant", "--set", "captions=true")
    assert Path("table.parquet.croissant.json").is_file()
    words = ("score", "table.parquet", "--image", "none", "--run", "again", "--signals", "caption_length", "-q")
    tamis.ok(*words)
    tamis.ok("select", "again", "-r", "no-filter", "-o", "again.parquet")
    before = everything()
    done = tamis("export", "again", "again.parquet", *table, "--overwrite")
    assert (done.code, everything() == before) == (2, True)
    assert "which this command reads" in done.err


def write_recipe(**more: Any) -> None:
    recipe = {"pool": "pool", "run": "run", "signals": ["caption_length"], "select": [], "report": "page.html", **more}
    Path("recipe.yaml").write_text(yaml.safe_dump({"export": [{"npy": "a.npy"}, {"keys": "keys"}], **recipe}))


@pytest.mark.parametrize("target", ["a.npy", "keys", "page.html", "page.json"])
def test_a_recipe_is_refused_before_it_is_scored(target: str, tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    write_recipe()
    Path(target).write_text("mine")
    before = everything()
    for command in (("run",), ("run", "--overwrite"), ("run", "--dry-run"), ("check",)):
        done = tamis(*command, "recipe.yaml")
        assert (done.code, f"{target} exists and was not" in done.err, everything() == before) == (2, True, True)


def test_a_recipe_may_write_again_what_it_wrote(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    write_recipe()
    for shards in (1, 1, 2):  # its pool grows
        write_pool(tmp_path / "pool", shards=shards)
        tamis.ok("run", "recipe.yaml", "-q")
        assert len(Path("keys").read_text().splitlines()) == 7 * shards
    tamis.ok("check", "run")
    other = tmp_path / "other.parquet"
    tamis.ok("select", "run", "-r", "random", "-o", str(other))
    tamis.ok("export", "run", str(other), "keys", "--to", "keys", "--overwrite")
    before = everything()
    done = tamis("run", "recipe.yaml", "-q")  # somebody wrote it since
    assert (done.code, "keys exists: choose another name" in done.err, everything() == before) == (2, True, True)
    tamis.ok("run", "recipe.yaml", "-q", "--overwrite")
    tamis.ok("run", "recipe.yaml", "-q")


def test_two_exports_of_a_recipe_need_two_places(tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=1)
    write_recipe(export=[{"keys": "keys"}, {"keys": {"out": "./keys", "shard": True}}])
    assert "has two exports to keys" in tamis.refused("run", "recipe.yaml")
    assert not Path("run").exists()


def test_a_runs_own_pages_and_subsets_are_written_again(tamis: Tamis, scored: Path) -> None:
    Path("run/subsets").mkdir()
    for _ in range(2):
        tamis.ok("select", "run", "-r", "no-filter", "-o", "run/subsets/all.parquet")
        tamis.ok("report", "run", "run/subsets/all.parquet", "-o", "run/report.html")
    Path("run/notes.html").write_text("mine")
    for page in ("run/notes.html", "run/bench.html", "run/index/a.html", "run/status"):
        assert tamis("report", "run", "-o", page, "--overwrite").code == 2
    assert Path("run/notes.html").read_text() == "mine"
