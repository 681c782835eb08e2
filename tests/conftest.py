"""Fixtures that several folders of tests use."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# No test reaches for a hub; a model that is not here must be an error in seconds.
os.environ["HF_HUB_OFFLINE"] = "1"
# The suite's own processes share the cores: threads of each that wait for the other's only cost time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # else they do so at full speed
sys.path.insert(0, str(Path(__file__).parents[1]))  # for `tools`
sys.path.insert(0, str(Path(__file__).parent))

from command_line import Done, Tamis
from factories import (
    bridge_folder,
    captioner_folder,
    clip_folder,
    diffusion_folder,
    dual_folder,
    epochs_folder,
    language_model_folder,
    regression_folder,
    sentences_folder,
    siglip_folder,
    write_pool,
)

from tamis import cli

# A shell that starts the suite in the background ignores interrupts for it, and some tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
# The libraries' objects stay for good, and looking at all of them again and again is a third of the suite's time.
gc.set_threshold(10_000, 20, 50)
# What tests write need not outlive a power cut, and many of them wait for the disk half of their time.
os.fsync = lambda fd: None
# How long an example takes says nothing on a machine that does other work too.
settings.register_profile("tamis", deadline=None, max_examples=50)
settings.load_profile("tamis")


#: The files that take longest, from the longest on. They are begun with: one that begins last is run alone.
LONG = (
    "evaluate/test_bench.py",
    "explore/test_browser.py",
    "run/test_failures.py",
    "test_contracts.py",
    "store/test_runs_at_urls.py",
    "lab/test_training_of_built_in_models.py",
    "train/test_clip.py",
    "test_docs.py",
    "signals/test_tmars.py",
    "models/test_convert.py",
    "run/test_resume.py",
    "run/test_ray.py",
    "test_import.py",
    "evaluate/test_zero_shot.py",
    "lab/test_built_in_models.py",
    "pool/test_faults.py",
    "lab/test_hard.py",
    "features/test_captions.py",
    "models/test_text_detector.py",
    "train/test_distill.py",
    "signals/test_teachers.py",
    "run/test_device_process.py",
    "models/test_nucleus.py",
    "lab/test_pool.py",
    "cli/test_bench.py",
    "cli/test_errors.py",
    "evaluate/test_concreteness.py",
    "run/test_engines.py",
    "run/test_claims.py",
    "signals/test_c_ssft.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first, and leaves the order within each."""
    here = Path(__file__).parent
    place = {here / name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path, len(LONG)))


@pytest.fixture(scope="session")
def clip_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny random CLIP checkpoint."""
    return str(clip_folder(tmp_path_factory.mktemp("models") / "tiny-clip"))


@pytest.fixture(scope="session")
def siglip_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny random SigLIP checkpoint."""
    return str(siglip_folder(tmp_path_factory.mktemp("models") / "tiny-siglip"))


@pytest.fixture(scope="session")
def epochs_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of two tiny random CLIP checkpoints, as the epochs of a fine-tuning."""
    return str(epochs_folder(tmp_path_factory.mktemp("models") / "tiny-epochs"))


@pytest.fixture(scope="session")
def blip_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny random BLIP captioner."""
    return str(captioner_folder(tmp_path_factory.mktemp("models") / "tiny-blip"))


@pytest.fixture(scope="session")
def git_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny random GIT captioner."""
    return str(captioner_folder(tmp_path_factory.mktemp("models") / "tiny-git", "git"))


@pytest.fixture(scope="session")
def blip2_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny random BLIP-2 with an OPT, as the one that ICC's authors took."""
    return str(captioner_folder(tmp_path_factory.mktemp("models") / "tiny-blip-2", "blip-2"))


@pytest.fixture(scope="session")
def vit_gpt2_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny random captioner that only transformers' own `generate` decodes."""
    return str(captioner_folder(tmp_path_factory.mktemp("models") / "tiny-vit-gpt2", "vit-gpt2"))


@pytest.fixture(scope="session")
def regression_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny random text regression, a RoBERTa as the released ICC."""
    return str(regression_folder(tmp_path_factory.mktemp("models") / "tiny-regression"))


@pytest.fixture(scope="session")
def sentence_model(tmp_path_factory: pytest.TempPathFactory, regression_model: str) -> str:
    """A sentence-transformers folder around the tiny RoBERTa."""
    return str(sentences_folder(tmp_path_factory.mktemp("models") / "tiny-sentences", regression_model))


@pytest.fixture(scope="session")
def dual_model(tmp_path_factory: pytest.TempPathFactory, regression_model: str) -> str:
    """The folder of a tiny image tower beside the tiny RoBERTa."""
    return str(dual_folder(tmp_path_factory.mktemp("models") / "tiny-dual", regression_model))


@pytest.fixture(scope="session")
def diffusion_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny random Stable Diffusion pipeline."""
    pytest.importorskip("diffusers")
    return str(diffusion_folder(tmp_path_factory.mktemp("models") / "tiny-diffusion"))


@pytest.fixture(scope="session")
def llama_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a tiny random Llama."""
    return str(language_model_folder(tmp_path_factory.mktemp("models") / "tiny-llama"))


@pytest.fixture(scope="session")
def sba_model(tmp_path_factory: pytest.TempPathFactory, clip_model: str, llama_model: str) -> str:
    """The folder of a random linear layer between the tiny CLIP and the tiny Llama."""
    return str(bridge_folder(tmp_path_factory.mktemp("models") / "tiny-sba", clip_model, llama_model))


@pytest.fixture(scope="session")
def spacy_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a spaCy pipeline that parses everything alike; skips where spaCy is not installed."""
    from factories import spacy_folder

    pytest.importorskip("spacy", reason="spaCy is not installed: pip install spacy")
    return str(spacy_folder(tmp_path_factory.mktemp("models") / "tiny-spacy"))


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """A pool of three shards of seven good pairs."""
    return write_pool(tmp_path / "pool")


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

    return run
