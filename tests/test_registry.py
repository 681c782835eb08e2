"""Signals, selectors and exporters of other packages, installed as packages are: found by their entry points."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from factories import install_package, write_pool
from processes import command

import tamis
from tamis import recipe as recipes
from tamis.catalogue import CATALOGUES
from tamis.errors import RecipeError
from tamis.exporters import EXPORTERS, exporter_class, exporters
from tamis.selectors import SELECTORS, selector_class, selectors
from tamis.signals import SIGNALS, signal_class, signals

#: A package as somebody else writes it: one of each, and things that are none.
PACKAGE = '''
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tamis.data import Column, Signal
from tamis.exporters import Exporter
from tamis.features.sources import Captions
from tamis.selectors.outcome import verdict


@dataclass(frozen=True, kw_only=True)
class Shouting(Signal):
    """Scores a caption by the share of its letters that are capitals."""

    name: ClassVar[str] = "shouting"
    version: ClassVar[int] = 1
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
        alive = table.living()
        return verdict(self, keep & alive, np.zeros(len(table), bool), alive, "too loud")


@dataclass(frozen=True, kw_only=True)
class Lines(Exporter):
    """Writes one line per kept pair, and tells how many shards the pool has."""

    name: ClassVar[str] = "lines"
    needs_pool: ClassVar[bool] = True
    word: str = "row"

    def write(self, subset, out, pool):
        numbers = np.flatnonzero(subset.keep)
        out.write_text("".join(f"{self.word} {n} of {len(pool.shards)} shards\\n" for n in numbers))
        return numbers.size


@dataclass
class Loose:
    name: ClassVar[str] = "loose"


@dataclass(frozen=True)
class Plain:
    name: ClassVar[str] = "plain"


@dataclass(frozen=True)
class Blind(Plain):
    reads = frozenset()


@dataclass(frozen=True)
class Odd(Blind):
    def select(self, table, run):
        return None


@dataclass(frozen=True)
class Half(Signal):
    name: ClassVar[str] = "plain"
    version: ClassVar[int] = 1
    columns: ClassVar[tuple[Column, ...]] = ()

    def needs(self):
        return {}


@dataclass(frozen=True)
class Bare(Signal):
    name: ClassVar[str] = "plain"

    def needs(self):
        return {}

    def load(self, device):
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


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that Python imports from, as site-packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("theirs", None)


def test_another_packages_signal_selector_and_exporter_serve_a_recipe(site: Path, tmp_path: Path) -> None:
    install_package(site, "their-package", GOOD, {"theirs": PACKAGE})
    pool = write_pool(tmp_path / "pool", shards=2, rows=3)
    recipe = {"signals": ["shouting"], "select": [{"quiet": {"limit": 0.1}}]}
    run = tamis.score(pool, run=tmp_path / "run", recipe=recipe, quiet=True)
    assert run.to_numpy("shouting").tolist() == [0.0] * 6
    subset = tamis.select(run, recipe)
    assert (subset.funnel[0]["step"], subset.funnel[0]["kept"]) == ("quiet", 6)
    assert tamis.export(subset, "lines", tmp_path / "lines.txt", word="pair") == 6
    assert (tmp_path / "lines.txt").read_text().splitlines()[5] == "pair 5 of 2 shards"


def test_the_command_line_lists_checks_and_runs_what_another_package_brings(site: Path, tmp_path: Path) -> None:
    install_package(site, "their-package", GOOD, {"theirs": PACKAGE})
    broken = {"tamis.signals": {"lost": "nowhere_at_all:Lost"}, "tamis.selectors": {"quite": "theirs:Object"}}
    install_package(site, "broken-package", broken)
    write_pool(tmp_path / "pool", shards=2, rows=3)
    everything = {
        "pool": str(tmp_path / "pool"),
        "run": str(tmp_path / "run"),
        "signals": ["shouting"],
        "select": [{"quiet": {"limit": 0.1}}],
        "export": [{"lines": {"out": str(tmp_path / "lines.txt"), "word": "pair"}}],
    }
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(yaml.safe_dump(everything))
    env = {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    for what, name, about in (
        ("signals", "shouting", "marks=('!',)"),
        ("steps", "quiet", "limit=0.5"),
        ("exports", "lines", "word=row"),
    ):
        done = command("list", what, env=env)
        assert done.returncode == 0, done.stderr
        assert any(line.startswith(f"{name} ") for line in done.stdout.splitlines())
        assert about in command("list", what, name, env=env).stdout
        assert ("'lost' of the package 'broken-package' cannot be loaded" in done.stderr) == (what == "signals")
        assert ("'quite' of the package 'broken-package' cannot be used" in done.stderr) == (what == "steps")
    done = command("run", recipe, "--quiet", env=env)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "lines.txt").read_text().splitlines()) == 6
    done = command("score", tmp_path / "pool", "--run", tmp_path / "other", "--signals", "lost", env=env)
    assert done.returncode == 2
    assert "the signal 'lost' of the package 'broken-package' cannot be loaded (ModuleNotFoundError" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("where", "code", "message"),
    [
        ("def shares(*, captions):", 1, "shard 00000 failed: shouting: RuntimeError: it raised SystemExit(0)"),
        ("def load(self, device):", 2, "shouting' (theirs.Shouting) cannot be loaded (SystemExit: 0)"),
        ("def needs(self):", 2, ", ended the command: SystemExit(0)"),
        ("def select(self, table):", 2, ", ended the command: SystemExit(0)"),
        ("import numpy as np", 2, "'shouting' of the package 'their-package' cannot be loaded (SystemExit: 0)"),
    ],
)
def test_no_plug_in_ends_a_command_as_if_all_were_done(
    where: str, code: int, message: str, site: Path, tmp_path: Path
) -> None:
    indent = " " * 12 if "shares" in where else " " * 8 if "def" in where else ""
    package = PACKAGE.replace(where, f"{where}\n{indent}raise SystemExit(0)", 1)
    install_package(site, "their-package", GOOD, {"theirs": package})
    recipe = tmp_path / "mine.yaml"
    write_pool(tmp_path / "pool", shards=2, rows=3)
    pool, run = tmp_path / "pool", tmp_path / "run"
    recipe.write_text(f"pool: {pool}\nrun: {run}\nsignals: [shouting, caption_length]\nselect: [quiet]\n")
    env = {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}
    if code == 1:  # nothing to choose by
        done = command("score", pool, "--run", run, "--signals", "shouting,caption_length", "--quiet", env=env)
        assert "0 of 2 shards are complete." in done.stderr
        assert len(tamis.open_run(run).to_numpy("words")) == 6
    else:
        done = command("run", recipe, "--quiet", env=env)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "ended the command" not in message or f"tamis: {site / 'theirs.py'}, line " in done.stderr
    assert "Traceback" not in done.stderr


def test_what_cannot_be_imported_is_in_nobodys_way_and_named_when_asked_for(
    site: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entries = {group: {"broken": "nowhere_at_all:Thing"} for group in GOOD}
    install_package(site, "their-package", GOOD, {"theirs": PACKAGE})
    install_package(site, "broken-package", entries)
    asked: list[tuple[Any, Any, Any, str]] = [
        (signals, signal_class, SIGNALS, "shouting"),
        (selectors, selector_class, SELECTORS, "quiet"),
        (exporters, exporter_class, EXPORTERS, "lines"),
    ]
    for every, one, ours, theirs in asked:
        caplog.clear()
        assert one(theirs).__module__ == "theirs"
        assert one(next(iter(ours))) is next(iter(ours.values()))
        assert caplog.text == ""
        assert list(every()) == sorted({*ours, theirs})
        assert "'broken' of the package 'broken-package' cannot be loaded (ModuleNotFoundError" in caplog.text
        with pytest.raises(
            RecipeError, match=r"'broken' of the package 'broken-package' cannot be loaded .Mod.*repair"
        ):
            one("broken")
        with pytest.raises(RecipeError, match=r"unknown .* 'broke' .did you mean 'broken'."):
            one("broke")
    with pytest.raises(RecipeError, match=r"recipe 'recipe', signals\[0\]: the signal 'broken' of the package"):
        recipes.load({"signals": ["broken"]})
    with pytest.raises(RecipeError, match=r"select\[0\]: the step 'broken' of the package"):
        recipes.load({"select": ["broken"]})
    with pytest.raises(RecipeError, match=r"export\[0\]: the export format 'broken' of the package"):
        recipes.load({"select": [], "export": [{"broken": "x"}]})


def test_no_package_is_imported_for_names_of_ours(site: Path) -> None:
    install_package(site, "their-package", GOOD, {"theirs": "raise RuntimeError('imported')"})
    loaded = recipes.load({"signals": ["caption_length"], "select": [{"top_n": {"score": "words", "n": 1}}]})
    assert loaded.steps[0].name == "top_n"
    assert "theirs" not in sys.modules


def test_a_name_of_ours_stays_ours(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install_package(site, "their-package", {"tamis.exporters": {"npy": "theirs:Lines"}}, {"theirs": PACKAGE})
    assert exporter_class("npy") is EXPORTERS["npy"]
    assert exporters() == dict(EXPORTERS)
    assert "Tamis has its own export format 'npy': that of the package 'their-package' is not used" in caplog.text


def test_two_packages_with_one_name_are_told_and_neither_is_taken(site: Path, caplog: pytest.LogCaptureFixture) -> None:
    install_package(site, "their-package", GOOD, {"theirs": PACKAGE})
    install_package(site, "another-package", {"tamis.signals": {"shouting": "theirs:Shouting"}})
    with pytest.raises(RecipeError, match=r"another-package, their-package each register a signal 'shouting'"):
        signal_class("shouting")
    assert "shouting" not in signals()
    assert "uninstall all but one" in caplog.text


@pytest.mark.parametrize(
    ("group", "name", "place", "reason"),
    [
        ("signals", "plain", "Plain", "theirs:Plain does not derive from tamis.data.Signal"),
        ("signals", "plain", "Half", "theirs:Half does not define load()"),
        ("signals", "plain", "Bare", "theirs:Bare has no version and no columns"),
        ("signals", "loud", "Shouting", "theirs:Shouting has the name 'shouting': entry point and class attribute"),
        ("signals", "x", "Object", "theirs:Object is no class, but Quiet(limit=0.5)"),
        ("signals", "loose", "Loose", "theirs:Loose is no frozen dataclass"),
        ("signals", "x", "Nothing", "cannot be loaded (AttributeError"),
        ("selectors", "plain", "Plain", "theirs:Plain has no reads"),
        ("selectors", "plain", "Blind", "theirs:Blind has no select(table)"),
        ("selectors", "plain", "Odd", "theirs:Odd has a select() that does not take a table alone"),
        ("exporters", "plain", "Plain", "theirs:Plain does not derive from tamis.exporters.Exporter"),
        ("exporters", "plain", "Mute", "theirs:Mute does not define write()"),
    ],
)
def test_a_class_of_the_wrong_kind_is_told_with_its_package(
    site: Path, caplog: pytest.LogCaptureFixture, group: str, name: str, place: str, reason: str
) -> None:
    install_package(site, "their-package", {f"tamis.{group}": {name: f"theirs:{place}"}}, {"theirs": PACKAGE})
    find = {"signals": signal_class, "selectors": selector_class, "exporters": exporter_class}[group]
    with pytest.raises(RecipeError) as error:
        find(name)
    assert f"{name!r} of the package 'their-package' cannot be" in str(error.value)
    assert reason in str(error.value)
    listed = {"signals": "signals", "selectors": "steps", "exporters": "exports"}[group]
    assert name not in [next(iter(row.values())) for row in CATALOGUES[listed]()]
    assert reason in caplog.text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("need_pool = True", "unknown class attribute 'need_pool' (did you mean 'needs_pool'?)"),
        ("needs_pool = 1", "needs_pool must be a bool, got 1"),
        ("out: str = 'x'", "a setting cannot be called out"),
    ],
)
def test_a_faulty_exporter_is_told_where_its_class_is_made(site: Path, body: str, reason: str) -> None:
    write = "" if "def write" in body else "    def write(self, subset, out): ...\n"
    code = f"from tamis.exporters import Exporter\nclass Lines(Exporter):\n    name = 'lines'\n    {body}\n{write}"
    install_package(site, "their-package", {"tamis.exporters": {"lines": "theirs:Lines"}}, {"theirs": code})
    with pytest.raises(RecipeError) as error:
        exporter_class("lines")
    assert "the export format 'lines' of the package 'their-package' cannot be loaded (TypeError" in str(error.value)
    assert reason in str(error.value)
