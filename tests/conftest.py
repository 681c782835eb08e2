"""Fixtures that several folders of tests use."""

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

# No test reaches for a hub; a model that is not here must be an error in seconds.
os.environ["HF_HUB_OFFLINE"] = "1"
# The suite's own processes share the cores: threads of each that wait for the other's only cost time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # else they do so at full speed
sys.path.insert(0, str(Path(__file__).parents[1]))  # for `tools`
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "helpers"))

import factories
import tiny_captioners
import tiny_encoders
import tiny_models
import tiny_towers
from browsing import NO_BROWSER, chromium
from command_line import Done, Tamis
from s3_fixtures import LIBRARIES_WARN, quick, read_models, s3, s3_server

from tamis import cli

__all__ = ["quick", "read_models", "s3", "s3_server"]

# A shell that starts the suite in the background ignores interrupts for it, and some tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The libraries' objects stay for good, and looking at all of them again and again is a third of the suite's time.
gc.set_threshold(10_000, 20, 50)
# What tests write need not outlive a power cut, and many of them wait for the disk half of their time.
os.fsync = lambda fd: None
# How long an example takes says nothing on a machine that does other work too.
settings.register_profile("tamis", deadline=None, max_examples=50)
settings.load_profile("tamis")

#: The encoder of sentences that the library runs.
T5 = "sentence-transformers/sentence-t5-base"

#: The files that take longest, from the longest on. They are begun with: one that begins last is run alone.
LONG = (
    *("train/evaluate/test_bench.py", "reports/explore/test_browser.py", "engines/test_failures.py"),
    *("test_contracts.py", "runs/test_runs_at_urls.py", "lab/test_training_of_built_in_models.py"),
    *("train/test_clip.py", "test_docs.py", "signals/test_tmars.py", "models/test_convert.py"),
    *("engines/test_resume.py", "engines/test_ray.py", "reports/explore/test_tags_in_browser.py", "test_import.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first, leaves the order within each, and ignores what a store's libraries warn of."""
    here = Path(__file__).parent
    place = {here / name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path, len(LONG)))
    for item in items:
        if "s3_server" in getattr(item, "fixturenames", ()):
            for mark in LIBRARIES_WARN:
                item.add_marker(mark)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Undoes what an earlier test did to the number of threads: sums in float32 depend on it in their last bits."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def model(make: Callable[..., Path], *settings: Any, of: Sequence[str] = ()) -> Any:
    """A fixture: the folder of a tiny random checkpoint, made once, perhaps of the models of other fixtures."""

    @pytest.fixture(scope="session")
    def folder(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> str:
        parts = [request.getfixturevalue(name) for name in of]
        return str(make(tmp_path_factory.mktemp("models") / "tiny", *settings, *parts))

    return folder


clip_model = model(tiny_models.clip_folder)
siglip_model = model(tiny_models.siglip_folder)
head_model = model(tiny_models.head_folder)
epochs_model = model(tiny_models.epochs_folder)
blip_model = model(tiny_models.captioner_folder)
itm_model = model(tiny_towers.blip)
naflex_model = model(tiny_towers.naflex)
git_model = model(tiny_models.captioner_folder, "git")
blip2_model = model(tiny_models.captioner_folder, "blip-2")
vit_gpt2_model = model(tiny_models.captioner_folder, "vit-gpt2")  # decoded by transformers' own `generate` alone
llava_model = model(tiny_captioners.chat_folder, "llava")
qwen_vl_model = model(tiny_captioners.chat_folder, "qwen3_vl")
chat_language_model = model(tiny_captioners.chat_language_folder)
regression_model = model(tiny_models.regression_folder)
sentence_model = model(tiny_models.sentences_folder, of=["regression_model"])
sentence_t5_model = model(tiny_encoders.encoder_folder, T5)
dual_model = model(tiny_models.dual_folder, of=["regression_model"])
diffusion_model = model(tiny_models.diffusion_folder)
llama_model = model(tiny_models.language_model_folder)
sba_model = model(tiny_models.bridge_folder, of=["clip_model", "llama_model"])
spacy_model = model(tiny_models.spacy_folder)


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """A pool of three shards of seven good pairs."""
    return factories.write_pool(tmp_path / "pool")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints what tests have measured, as `record_property("measured", line)`: tables of attacks and faults."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    lines = [line for report in reports for name, line in getattr(report, "user_properties", ()) if name == "measured"]
    if lines:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(map(str, lines)))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # the frames of an error may hold mapped files


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser without a window."""
    if NO_BROWSER:
        pytest.skip(NO_BROWSER)
    with chromium() as running:
        yield running


@pytest.fixture
def tamis(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Tamis:
    """Runs the command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["tamis", *map(str, arguments)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return Tamis(run)
