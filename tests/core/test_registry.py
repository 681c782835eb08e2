"""Signals, selectors and exporters of other packages, installed as packages are: found by their entry points."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from factories import write_pool
from packages import install_package
from processes import command

import tamis
from tamis.cli.catalogue import CATALOGUES
from tamis.core.errors import RecipeError
from tamis.exports import EXPORTERS, exporter_class, exporters
from tamis.recipes.recipe import load, signal_class
from tamis.recipes.steps import selector_class, selectors
from tamis.signals import signals

#: A package as somebody else writes it: one of each, and things that are none.
PACKAGE = '''
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tamis.core.types import Column, Signal
from tamis.exports import Exporter
from tamis.signals.features.sources import Captions
from tamis.recipes.steps.outcome import verdict


@dataclass(frozen=True, kw_only=True)
class Shouting(Signal):
    """Scores a caption by the share of its letters that are capitals."""

    name: ClassVar[str] = "shouting"
    host: ClassVar[bool] = True
    columns: ClassVar[tuple[Column, ...]] = (Column(name="shouting", unit="share", better="low"),)
    marks: tuple[str, ...] = field(default_factory=lambda: ("!",))

    def needs(self):
        return {"captions": Captions()}

    def load(self, device):
        def shares(*, captions):
            letters = [[sign for sign in caption or "" if sign.isalpha()] for caption in captions]
            shares = [np.mean([sign.isupper() for sign in some]) if some else np.nan for some in letters]
            return {"shouting": np.array(shares, np.float32)}

        return shares


@dataclass(frozen=True, kw_only=True)
class Quiet:
    """Keeps rows that shout no more than a limit."""

    name: ClassVar[str] = "quiet"
    limit: float = 0.5

    @property
    def reads(self):
        return frozenset({"shouting"})

    def select(self, table):
        keep = np.zeros(len(table), bool)

        def judge(place, columns):
            keep[place] = columns["shouting"] <= self.limit

        for _ in table.map(["shouting"], judge):
            pass
        candidates = table.candidates
        return verdict(self, keep & candidates, np.zeros(len(table), bool), candidates, "too loud")


@dataclass(frozen=True, kw_only=True)
class Lines(Exporter):
    """Writes one line per kept pair, and tells how many shards the pool has."""

    name: ClassVar[str] = "lines"
    word: str = "row"

    def write(self, subset, out):
        numbers = np.flatnonzero(subset.keep)
        out.write_text("".join(f"{self.word} {n} of {len(subset.run.pool.shards)} shards\\n" for n in numbers))
        return numbers.size


@dataclass
class Loose:
    name: ClassVar[str] = "plain"


@dataclass(frozen=True)
class Plain:
    name: ClassVar[str] = "plain"


@dataclass(frozen=True)
class Half(Signal):
    name: ClassVar[str] = "plain"

    def needs(self):
        return {}


@dataclass(frozen=True)
class Odd(Plain):
    reads = frozenset()

    def select(self, table, run):
        return None


@dataclass(frozen=True)
class Mute(Exporter):
    name: ClassVar[str] = "plain"


Object = Quiet()
'''

GOOD = {
    "tamis.signals": {"shouting": "theirs:Shouting"},
    "tamis.selectors": {"quiet": "theirs:Quiet"},
    "tamis.exporters": {"lines": "theirs:Lines"},
}


#: How one is found by name, how all are, the word in recipes, and the name of theirs, by kind.
KINDS: dict[str, tuple[Any, Any, str, str]] = {
    "signals": (signal_class, signals, "signals", "shouting"),
    "selectors": (selector_class, selectors, "steps", "quiet"),
    "exporters": (exporter_class, exporters, "exports", "lines"),
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that Python imports from, as site-packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("theirs", None)


def environment(site: Path) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}


def test_what_another_package_brings_is_listed_and_serves_a_recipe(site: Path, tmp_path: Path) -> None:
    install_package(site, "their-package", GOOD, {"theirs": PACKAGE})
    broken = {"tamis.signals": {"lost": "nowhere_at_all:Lost"}, "tamis.selectors": {"quite": "theirs:Object"}}
    install_package(site, "broken-package", broken)
    pool = write_pool(tmp_path / "pool", shards=2, rows=3)
    everything = {
        "pool": str(pool),
        "run": str(tmp_path / "run"),
        "signals": ["shouting"],
        "select": [{"quiet": {"limit": 0.1}}],
        "export": [{"lines": {"out": str(tmp_path / "lines.txt"), "word": "pair"}}],
    }
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(yaml.safe_dump(everything))
    env = environment(site)
    done = command("run", recipe, "--quiet", env=env)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "lines.txt").read_text().splitlines()[5] == "pair 5 of 2 shards"
    run = tamis.open_run(tmp_path / "run")
    assert run.to_numpy("shouting").tolist() == [0.0] * 6
    subset = tamis.Subset.load(run.path / "subsets" / "mine.parquet", run)
    assert (subset.funnel[0]["step"], subset.funnel[0]["kept"]) == ("quiet", 6)
    for what, name, setting, unusable in (
        ("signals", "shouting", "marks=['!']", "'lost' of the package 'broken-package'"),
        ("steps", "quiet", "limit=0.5", "'quite' of the package 'broken-package'"),
        ("exports", "lines", "word=row", ""),
    ):
        done = command("list", what, env=env)
        assert (done.returncode, f"\n{name} " in done.stdout, unusable in done.stderr) == (0, True, True), done.stderr
        assert setting in command("list", what, name, env=env).stdout
    done = command("score", pool, "--run", tmp_path / "other", "--signals", "lost", env=env)
    assert (done.returncode, "ModuleNotFoundError" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


@pytest.mark.parametrize(
    ("where", "code", "message"),
    [
        ("def shares(*, captions):", 1, "shard 00000 failed: shouting"),
        ("def load(self, device):", 2, "'shouting'"),
        ("def needs(self):", 2, "theirs.py, line "),
        ("def select(self, table):", 2, "theirs.py, line "),
        ("import numpy as np", 2, "'shouting' of the package 'their-package'"),
    ],
)
def test_no_plug_in_ends_a_command_as_if_done(where: str, code: int, message: str, site: Path, tmp_path: Path) -> None:
    indent = " " * 12 if "shares" in where else " " * 8 if "def" in where else ""
    package = PACKAGE.replace(where, f"{where}\n{indent}raise SystemExit(0)", 1)
    install_package(site, "their-package", GOOD, {"theirs": package})
    pool, run = write_pool(tmp_path / "pool", shards=2, rows=3), tmp_path / "run"
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(f"pool: {pool}\nrun: {run}\nsignals: [shouting, caption_length]\nselect: [quiet]\n")
    words = ["score", pool, "--run", run, "--recipe", recipe] if code == 1 else ["run", recipe]
    done = command(*words, "--quiet", env=environment(site))
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "SystemExit" in done.stderr
    assert "Traceback" not in done.stderr
    if code == 1:
        assert len(tamis.open_run(run).to_numpy("words")) == 6  # the other signal is there


def test_what_cannot_be_imported_is_named_when_asked_for(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install_package(site, "their-package", GOOD, {"theirs": PACKAGE})
    install_package(site, "broken-package", {group: {"broken": "nowhere_at_all:Thing"} for group in GOOD})
    for one, every, _, theirs in KINDS.values():
        caplog.clear()
        assert one(theirs).__module__ == "theirs"
        assert caplog.text == ""
        assert theirs in every()
        assert "broken" not in every()
        assert "'broken' of the package 'broken-package'" in caplog.text
        with pytest.raises(RecipeError, match="did you mean 'broken'"):
            one("broke")
    for key, entry in (("signals", "broken"), ("select", "broken"), ("export", {"broken": "x"})):
        with pytest.raises(RecipeError, match=rf"{key}\[0\].*'broken' of the package 'broken-package'"):
            load({"select": [], key: [entry]})


def test_no_package_is_imported_for_names_of_ours(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    groups = GOOD | {"tamis.exporters": {"npy": "theirs:Lines"}}
    install_package(site, "their-package", groups, {"theirs": "raise RuntimeError('imported')"})
    load({"signals": ["caption_length"], "select": [{"top_n": {"score": "words", "n": 1}}]})
    assert exporter_class("npy") is EXPORTERS["npy"]
    assert "theirs" not in sys.modules
    assert exporters() == dict(EXPORTERS)
    assert "'npy'" in caplog.text


@pytest.mark.parametrize(
    ("kind", "name", "place", "reason"),
    [
        ("signals", "plain", "Plain", "tamis.core.types.Signal"),
        ("signals", "plain", "Half", "columns"),
        ("signals", "loud", "Shouting", "'shouting'"),
        ("signals", "x", "Object", "Quiet(limit=0.5)"),
        ("signals", "plain", "Loose", "frozen dataclass"),
        ("selectors", "plain", "Plain", "reads"),
        ("selectors", "plain", "Odd", "select()"),
        ("exporters", "plain", "Plain", "tamis.exports.Exporter"),
        ("exporters", "plain", "Mute", "write()"),
    ],
)
def test_a_class_of_the_wrong_kind_is_named_with_its_package(
    site: Path, caplog: pytest.LogCaptureFixture, kind: str, name: str, place: str, reason: str
) -> None:
    install_package(site, "their-package", {f"tamis.{kind}": {name: f"theirs:{place}"}}, {"theirs": PACKAGE})
    one, _, listed, _ = KINDS[kind]
    with pytest.raises(RecipeError) as error:
        one(name)
    assert f"{name!r} of the package 'their-package'" in str(error.value)
    assert reason in str(error.value)
    assert name not in [next(iter(row.values())) for row in CATALOGUES[listed]()]
    assert reason in caplog.text


def test_two_packages_of_one_name_are_named_and_neither_is_taken(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install_package(site, "their-package", GOOD, {"theirs": PACKAGE})
    install_package(site, "another-package", {"tamis.signals": {"shouting": "theirs:Shouting"}})
    with pytest.raises(RecipeError, match="another-package, their-package"):
        signal_class("shouting")
    assert "shouting" not in signals()
    assert "another-package, their-package" in caplog.text


@pytest.mark.parametrize(
    ("body", "names"),
    [("endings = 'txt'", "'endings' 'ending'"), ("ending = 1", "ending str"), ("out: str = 'x'", "out")],
)
def test_a_faulty_exporter_is_reported_where_its_class_is_made(site: Path, body: str, names: str) -> None:
    write = "" if "def write" in body else "    def write(self, subset, out): ...\n"
    code = f"from tamis.exports import Exporter\nclass Lines(Exporter):\n    name = 'lines'\n    {body}\n{write}"
    install_package(site, "their-package", {"tamis.exporters": {"lines": "theirs:Lines"}}, {"theirs": code})
    with pytest.raises(RecipeError) as error:
        exporter_class("lines")
    expected = f"'lines' 'their-package' TypeError {names}".split()
    assert [word for word in expected if word not in str(error.value)] == []
