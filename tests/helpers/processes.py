"""Commands in processes of their own that start at once: forked off a process that has imported what they need.

A fresh interpreter spends seconds on imports before it does what a test is about. Where the interpreter itself, or what
it imports, is what a test is about (tests/test_import.py, tests/cli/test_process.py), it starts one.
"""

import functools
import multiprocessing
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from multiprocessing.context import ForkServerContext
from pathlib import Path

import PIL

import tamis

#: Imported once for all of these processes, as this package is. Packages that are not installed are left out.
_IMPORTED = (
    "pandas",  # pyarrow asks for it
    "pyarrow.parquet",
    *(f"PIL.{name}" for name in PIL._plugins),
    "torch",
    "torch._dynamo",  # every optimiser asks for it
    "transformers",
    "transformers.models.clip.modeling_clip",
)


@functools.cache
def forking() -> ForkServerContext:
    """The context of multiprocessing whose processes start at once."""
    context = multiprocessing.get_context("forkserver")
    ours = [module.name for module in pkgutil.walk_packages(tamis.__path__, "tamis.")]
    context.set_forkserver_preload([name for name in (*_IMPORTED, *ours) if name != "tamis.__main__"])
    return context


def command(
    *arguments: str | Path, env: Mapping[str, str] | None = None, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `tamis` in a process of its own: see `program`."""
    return program("tamis", *arguments, env=env, before=before)


def program(
    module: str, *arguments: str | Path, env: Mapping[str, str] | None = None, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a module as `python -m` does, in a process of its own, in this one's folder and environment.

    `before`: what the process does first; a function of a module, or a partial of one.
    """
    words = [module, *map(str, arguments)]
    with tempfile.TemporaryDirectory() as folder:
        given = (words, {**os.environ, **(env or {})}, os.getcwd(), folder, before)
        process = forking().Process(target=_run, args=given)
        process.start()
        try:
            process.join()  # pytest's timeout ends this if it never comes
        finally:
            process.kill()
        out, err = ((Path(folder) / name).read_text(encoding="utf-8") for name in ("out", "err"))
        return subprocess.CompletedProcess(words, process.exitcode, out, err)


def python(
    code: str, *arguments: str | Path, env: Mapping[str, str] | None = None, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs code as `python -c` does, in a process of its own: see `program`."""
    return program("-c", code, *arguments, env=env, before=before)


def _run(
    words: list[str], environment: dict[str, str], place: str, folder: str, before: Callable[[], None] | None
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(place)
    multiprocessing.set_start_method(None, force=True)  # the platform's own, as an interpreter that starts has
    for number, name in ((1, "out"), (2, "err")):
        with open(Path(folder) / name, "wb") as file:
            os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, "utf-8", closefd=False) for number in (1, 2))
    # Packages that a test has written: an interpreter finds them when it starts.
    added = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.path[:0] = added
    module, *arguments = words
    if before is not None:
        before()
    if module == "-c":
        sys.argv = ["-c", *arguments[1:]]
        exec(compile(arguments[0], "<string>", "exec", dont_inherit=True), vars(sys.modules["__main__"]))
    else:
        sys.argv = words
        runpy.run_module(module, run_name="__main__")


def die_at_file(left: int, how: signal.Signals = signal.SIGKILL) -> None:
    """Has this process killed, or sends it another signal, just before its n-th file would get its name.

    The status of a run does not count: it is written by the clock, more often on a machine that is busy.
    """
    real = os.replace

    def replace(source: str | Path, target: str | Path) -> None:
        nonlocal left
        left -= os.path.basename(target) != "status.json"
        if left == -1:
            left -= 1
            os.kill(os.getpid(), how)
        real(source, target)

    os.replace = replace  # type: ignore[assignment]


def die_after(seconds: float) -> None:
    """Has this process killed after some time."""
    killer = threading.Timer(seconds, os.kill, [os.getpid(), signal.SIGKILL])
    killer.daemon = True
    killer.start()


def family(parent: int) -> list[int]:
    """Returns a process and all that it has started, by Linux's /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            above = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(above, []).append(int(entry.parent.name))
    found = [parent]
    for process in found:
        found += children.get(process, [])
    return found


def named(processes: list[int], word: bytes) -> list[int]:
    """Returns those of some processes that have a word in their command line."""
    found = []
    for process in processes:
        try:
            if word in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
        except OSError:
            continue
    return found
