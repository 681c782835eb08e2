"""`torchrun ... tamis train clip`, as people type it: killed half-way, and begun again."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from factories import pair, write_tar
from tiny_models import clip_folder

import tamis

STEPS = 150


def losses(out: Path) -> list[float]:
    file = out / "training" / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.is_file() else []
    return [json.loads(line)["loss"] for line in lines if line.endswith("}")]


def torchrun(run: Path, model: Path, out: Path) -> subprocess.Popen[bytes]:
    """Starts two processes that train 150 steps of 8 pairs; their output goes to a file next to the folder."""
    with open(out.with_suffix(".log"), "wb") as said:
        return subprocess.Popen(
            [
                sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tamis",
                "train", "clip", str(run), "--model", str(model), "--out", str(out), "--samples", str(8 * STEPS),
                "--train-batch", "8", "--warmup", "2", "--save-every", "10", "--report-every", "1",
                "--device", "cpu", "--precision", "float32", "--threads", "1",
            ],
            env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=said, close_fds=True,
        )  # fmt: skip


def kill_all(out: Path) -> None:
    """Kills torchrun and the processes it has started, which are in sessions of their own."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended meanwhile
        if os.fsencode(out) in words:
            os.kill(int(entry.parent.name), signal.SIGKILL)


@pytest.mark.attack
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes by Linux's /proc")
@pytest.mark.timeout(300)
def test_a_torchrun_that_was_killed_goes_on_to_the_same_losses(tmp_path: Path) -> None:
    write_tar(tmp_path / "pool" / "00000.tar", [(f"{row:04d}", pair(row)) for row in range(16)])
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=["caption_length"], quiet=True).path
    model = clip_folder(tmp_path / "clip")
    whole = torchrun(run, model, tmp_path / "whole")
    assert whole.wait() == 0, (tmp_path / "whole.log").read_text()
    killed = torchrun(run, model, tmp_path / "killed")
    while killed.poll() is None and len(losses(tmp_path / "killed")) < 25:
        time.sleep(0.01)
    assert killed.poll() is None, "it ended before it could be killed"
    kill_all(tmp_path / "killed")
    killed.wait()
    assert 25 <= len(losses(tmp_path / "killed")) < STEPS
    again = torchrun(run, model, tmp_path / "killed")
    assert again.wait() == 0, (tmp_path / "killed.log").read_text()
    assert len(losses(tmp_path / "whole")) == STEPS
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")
