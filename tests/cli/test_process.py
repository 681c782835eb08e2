"""The command line as a process: installed, interrupted, piped."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from tamis.recipes.names import shipped_names


def test_the_installed_command_works(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "tamis"
    done = subprocess.run([command, "list", "recipes", "--json"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0
    assert [row["recipe"] for row in json.loads(done.stdout)] == shipped_names()


def test_an_interrupt_ends_with_130_and_a_word(tmp_path: Path) -> None:
    code = (
        "import time\nimport tamis.engines.progress as status\nfrom tamis.cli import main\n"
        "def follow(path):\n    print('at work', flush=True)\n    time.sleep(60)\n"
        "    yield {}\nstatus.follow = follow\nmain()\n"
    )
    command = [sys.executable, "-c", code, "status", "run", "--watch"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "at work\n"
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert running.returncode == 130
    assert "tamis: interrupted" in err
    assert "Traceback" not in err


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from tamis.cli import main; main()", "list", "signals", "--json"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    running.stdout.close()
    err = running.stderr.read()
    running.stderr.close()
    running.wait(30)
    assert "Traceback" not in err
    assert "Exception ignored" not in err
