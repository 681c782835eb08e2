"""A small Ray cluster on this machine, for tests."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Ray takes its settings from the environment when it is imported.
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex * 2}

_PATIENCE_SECONDS = 120.0


@contextmanager
def cluster() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Gives the address of a Ray of two cores, whose actors import what the tests import, and its process.

    It is told of two GPUs, which nothing looks at: actors that want one are given it.
    """
    folder = tempfile.mkdtemp(prefix="ray")  # not pytest's: sockets have short paths
    for _ in range(5):  # Ray gives its processes 30 s to come up, too short on a machine that does other work
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        process = _start(address, folder)
        if _is_up(process, folder):
            break
        process.kill()
        process.wait()
    try:
        yield address, process
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _start(address: str, folder: str) -> subprocess.Popen[bytes]:
    arguments = ["start", "--head", "--block", "--num-cpus=2", "--num-gpus=2", "--include-dashboard=false"]
    arguments += ["--node-ip-address=127.0.0.1", f"--port={address.partition(':')[2]}", f"--temp-dir={folder}"]
    environment = {**os.environ, **SETTINGS, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    environment["RAY_agent_register_timeout_ms"] = "250000"
    with open(f"{folder}/head.log", "wb") as log:
        command = [sys.executable, "-m", "ray.scripts.scripts", *arguments]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def _is_up(process: subprocess.Popen[bytes], folder: str) -> bool:
    end = time.monotonic() + _PATIENCE_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if b"Ray runtime started" in Path(f"{folder}/head.log").read_bytes():
            return True
        time.sleep(0.2)
    return False


def disconnect(process: int) -> int:
    """Breaks this process's TCP connections with another one of this machine, and returns how many there were."""
    ours, theirs = _connections(os.getpid()), _connections(process)
    common = [one for (here, there), one in ours.items() if (there, here) in theirs]
    for one in common:
        with socket.socket(fileno=os.dup(one)) as end:
            end.shutdown(socket.SHUT_RDWR)
    return len(common)


def _connections(process: int) -> dict[tuple[str, str], int]:
    """Returns the TCP connections of a process, as Linux's /proc tells: both ends' addresses, to the descriptor."""
    sockets = {}
    for entry in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):
            sockets[os.readlink(entry)] = int(entry.name)
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process}/net/{table}").read_text(encoding="ascii").splitlines()[1:]:
            words = line.split()
            # An address ends with its IPv4 part, 8 digits, and the port, in both tables.
            here, there = (word[-13:] for word in words[1:3])
            if (number := f"socket:[{words[9]}]") in sockets:
                found[here, there] = sockets[number]
    return found
