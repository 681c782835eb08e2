"""A run is killed, or its machine fails, however it is carried out; the next command makes it what it would have been.

`make faults` prints a table: fault, what it took until the run was whole again.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import ray_cluster
from factories import index_rows, parts_of, write_pool
from odd_scorers import Hungry
from processes import command

import tamis
from tamis.store import Run

SIGNALS = "caption_length,image_size,language"
SHARDS, ROWS = 24, 20
LOCAL_KILLS = int(os.environ.get("TAMIS_KILLS", "25"))
RAY_KILLS = max(1, LOCAL_KILLS // 5)

pytestmark = [
    pytest.mark.attack,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes by Linux's /proc"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray"),
]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pool(tmp_path_factory.mktemp("faults") / "pool", shards=SHARDS, rows=ROWS)


@pytest.fixture(scope="module")
def undisturbed(pool: Path) -> tuple[dict[str, bytes], float]:
    """The parts, and the seconds that a command takes to make them."""
    run = pool.parent / "undisturbed"
    start = time.monotonic()
    assert command("score", pool, "--run", run, "--signals", SIGNALS, "-q").returncode == 0
    return parts_of(run), time.monotonic() - start


Record = Callable[[str, object], None]


@dataclass(frozen=True)
class Bed:
    """Where a fault is tried: a pool, a run of it that is to be made, and what that should hold in the end.

    Attributes:
        pool, run: their folders.
        parts: what an undisturbed run holds.
        seconds: that one command takes to make it.
        record: takes a line for `make faults`.
    """

    pool: Path
    run: Path
    parts: dict[str, bytes]
    seconds: float
    record: Record

    def scoring(self, *engine: str, **variables: str) -> subprocess.Popen[bytes]:
        """Starts a command that makes the run."""
        words = [sys.executable, "-m", "tamis", "score", str(self.pool), "--run", str(self.run)]
        words += ["--signals", SIGNALS, "-q", *engine]
        return subprocess.Popen(words, env={**os.environ, **variables}, stderr=subprocess.DEVNULL)

    def done(self) -> int:
        """Shards that the run has."""
        return len(list((self.run / "index").glob("[0-9]*.parquet"))) if self.run.is_dir() else 0

    def check_whole(self) -> None:
        opened = Run(self.run)
        assert opened.failures == {}
        assert parts_of(self.run) == self.parts
        uids = Counter((row["uid_hi"], row["uid_lo"]) for row in index_rows(opened))
        assert (len(uids), set(uids.values())) == (SHARDS * ROWS, {1})
        assert list((self.run / "claims").iterdir()) == []
        assert tamis.doctor(self.run).exit_code == 0

    def measured(self, fault: str, what: str, since: float) -> None:
        self.record("measured", f"{fault:70} {what} after {time.monotonic() - since:5.1f} s")

    def recovered(self, fault: str) -> None:
        """Repeats the command, and checks that the run is as if nothing had happened."""
        start = time.monotonic()
        done = command("score", self.pool, "--run", self.run, "--signals", SIGNALS, "-q")
        assert done.returncode == 0, done.stderr
        self.measured(fault, "whole again", start)
        self.check_whole()


@pytest.fixture
def bed(pool: Path, undisturbed: tuple[dict[str, bytes], float], tmp_path: Path, record_property: Record) -> Bed:
    return Bed(pool, tmp_path / "run", *undisturbed, record_property)


def family(parent: int) -> list[int]:
    """A process and all that it has started."""
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
    found = []
    for process in processes:
        try:
            if word in Path(f"/proc/{process}/cmdline").read_bytes():
                found.append(process)
        except OSError:
            continue
    return found


def engines(world: int) -> pytest.MarkDecorator:
    """Two workers of one command, and the first of so many ranks."""
    ranks = ("--engine", "static", "--rank", "0", "--world", str(world))
    return pytest.mark.parametrize("engine", [("--workers", "2"), ranks])


@pytest.mark.parametrize("kill", range(LOCAL_KILLS))
@engines(world=2)
def test_a_local_run_or_a_rank_that_is_killed(engine: tuple[str, ...], kill: int, bed: Bed) -> None:
    draw = random.Random(f"{engine} {kill}")
    process = bed.scoring(*engine)
    time.sleep(draw.uniform(0.2, 1.2) * bed.seconds)
    members = family(process.pid)
    victim = draw.choice(members)
    alive = process.poll() is None
    if alive:
        os.kill(victim, signal.SIGKILL)
    process.wait()
    who = "the command" if victim == process.pid else "a process of it"
    what = f"{who} killed at {bed.done()} of {SHARDS} shards" if alive else "ended before its kill"
    bed.recovered(f"{engine[1]}: {what}")


@pytest.fixture(scope="module")
def variables() -> Iterator[dict[str, str]]:
    """What a command needs for talking to Ray."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'tamis[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ray_cluster.SETTINGS.items():
            patch.setenv(name, value)
        yield ray_cluster.SETTINGS


@pytest.mark.parametrize("kill", range(RAY_KILLS))
def test_a_ray_run_whose_actors_or_driver_are_killed(
    kill: int, bed: Bed, variables: dict[str, str], tmp_path: Path
) -> None:
    with ray_cluster.cluster() as (address, head):
        for victim in ("actor", "driver"):
            draw = random.Random(f"{victim} {kill}")
            own = replace(bed, run=tmp_path / victim)
            process = own.scoring("--engine", "ray", "--address", address, "--workers", "2", **variables)
            while not (own.run / "events.jsonl").exists() and process.poll() is None:
                time.sleep(0.02)
            time.sleep(draw.uniform(0, 0.5) * bed.seconds)
            actors = named(family(head.pid), b"ray::Worker")
            if process.poll() is None and (actors or victim == "driver"):
                os.kill(process.pid if victim == "driver" else draw.choice(actors), signal.SIGKILL)
            assert process.wait() == 0 or victim == "driver"
            engine = ("--engine", "ray", "--address", address) if victim == "driver" else ()
            assert own.scoring(*engine, **variables).wait() == 0
            own.check_whole()


@pytest.mark.parametrize("kill", range(max(1, RAY_KILLS // 5)))
def test_a_ray_run_whose_raylet_is_killed(kill: int, bed: Bed, variables: dict[str, str]) -> None:
    """The only node is gone: the command waits for another one, until it is ended; any engine takes over."""
    with ray_cluster.cluster() as (address, head):
        process = bed.scoring("--engine", "ray", "--address", address, "--workers", "2", **variables)
        while not (bed.run / "events.jsonl").exists() and process.poll() is None:
            time.sleep(0.02)
        for raylet in named(family(head.pid), b"raylet/raylet"):
            os.kill(raylet, signal.SIGKILL)
        time.sleep(2)
        process.kill()
        process.wait()
    assert bed.scoring().wait() == 0
    bed.check_whole()


@pytest.fixture(scope="module")
def faulty_machine(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library that has a command's reads, clock and locks fail."""
    out = tmp_path_factory.mktemp("machine") / "faulty_machine.so"
    source = Path(__file__).with_name("faulty_machine.c")
    if shutil.which("cc") is None or sys.platform != "linux":
        pytest.skip("needs a C compiler, and Linux")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", out, source, "-ldl"], check=True)
    return str(out)


@pytest.mark.parametrize("share", [0.01, 0.1])
@engines(world=1)
def test_reads_that_fail(engine: tuple[str, ...], share: float, bed: Bed, faulty_machine: str, tmp_path: Path) -> None:
    """EIO costs shards; the command that is repeated, on the same machine, does those that failed."""
    log = tmp_path / "log"
    variables = {"LD_PRELOAD": faulty_machine, "FAULTY_FOLDER": str(bed.pool), "FAULTY_LOG": str(log)}
    start, codes = time.monotonic(), []
    while not codes or (codes[-1] and len(codes) < 60):
        codes.append(bed.scoring(*engine, **variables, FAULTY_SHARE=str(int(share * 10_000))).wait())
        assert codes[-1] in (0, 1)
    faults = log.stat().st_size if log.exists() else 0
    bed.measured(f"{share:.0%} of reads fail, {engine[1]}: {faults} did, {len(codes)} commands", "whole", start)
    bed.check_whole()


@pytest.mark.parametrize("killed", [False, True])
def test_reads_that_hang(killed: bool, bed: Bed, faulty_machine: str, tmp_path: Path) -> None:
    """For a second each, they cost time; for ever, as of a mount that is gone, the command is killed and repeated."""
    log = tmp_path / "log"
    hang = {"FAULTY_HANG": "100000" if killed else "1", "FAULTY_SHARE": "500", "FAULTY_LOG": str(log)}
    process = bed.scoring(LD_PRELOAD=faulty_machine, FAULTY_FOLDER=str(bed.pool), **hang)
    if killed:
        while not log.exists() and process.poll() is None:
            time.sleep(0.05)
        time.sleep(0.5 * bed.seconds)
        for one in reversed(family(process.pid)):
            os.kill(one, signal.SIGKILL)
        process.wait()
        bed.recovered("a read hangs for ever, the command is killed")
        return
    assert process.wait() == 0
    bed.record("measured", f"{log.stat().st_size if log.exists() else 0} reads hang for a second: nothing is lost")
    bed.check_whole()


@engines(world=1)
def test_a_clock_that_jumps(engine: tuple[str, ...], bed: Bed, faulty_machine: str) -> None:
    """By up to 12 days to either side, every second and differently in each process; the second command has another."""
    jumps = {"LD_PRELOAD": faulty_machine, "FAULTY_CLOCK": "1000000"}
    process = bed.scoring(*engine, **jumps)
    helper = bed.scoring(**jumps)
    time.sleep(0.7 * bed.seconds)
    if process.poll() is None:
        process.kill()
    process.wait()
    assert helper.wait() == 0
    bed.recovered(f"clocks jump by days, {engine[1]}: two commands, one killed")


@pytest.mark.parametrize("kib", [24, 64, 128, 200])
def test_a_disk_that_is_full(kib: int, bed: Bed, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        own = replace(bed, run=disk / "run")
        full = command("score", own.pool, "--run", own.run, "--signals", SIGNALS, "-q", "--workers", "2")
        assert full.returncode == 2
        assert "no space is left" in full.stderr
        assert "Traceback" not in full.stderr
        fault = f"a disk of {kib} KiB is full at {own.done()} of {SHARDS} shards"
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        own.recovered(fault)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("seed", range(4))
def test_parts_that_were_cut_are_found_and_made_again(seed: int, bed: Bed) -> None:
    draw = random.Random(seed)
    run = shutil.copytree(bed.pool.parent / "undisturbed", bed.run)
    cut = draw.sample(sorted(bed.parts), 6)
    for name in cut:
        whole = bed.parts[name]
        size = draw.choice((0, 4, len(whole) // 2, len(whole) - 1))
        (run / name).write_bytes(draw.choice((whole[:size], bytes(len(whole)), whole[:size].ljust(len(whole), b"\0"))))
    damage = tamis.doctor(run)
    assert damage.exit_code == 1
    text = str(damage)
    assert [name for name in cut if Path(name).name not in text] == []
    assert tamis.doctor(run, repair=True).exit_code in (0, 1)
    bed.recovered(f"{len(cut)} parts cut or zeroed on disk, `tamis doctor --repair`")


def test_engines_that_work_in_one_folder_at_once(bed: Bed, tmp_path: Path) -> None:
    """The local command comes first: ranks wait for the lock of a folder, another local command is told of it."""
    ranks = [("--engine", "static", "--rank", str(rank), "--world", "2") for rank in (0, 1)]
    for killed in (False, True):
        own = replace(bed, run=tmp_path / f"run{killed}")
        first = own.scoring("--workers", "2")
        while first.poll() is None and not (own.run / "events.jsonl").exists():
            time.sleep(0.01)
        others = [own.scoring(*rank) for rank in ranks]
        if killed:
            time.sleep(0.3 * bed.seconds)
            first.kill()
        assert [process.wait() for process in others] == [0, 0]
        assert first.wait() == 0 or killed
        own.check_whole()
        own.recovered(f"local and two ranks in one folder{', one killed' * killed}")


@pytest.mark.parametrize("locks", [True, False])
def test_a_machine_that_is_gone_is_taken_over_by_another(
    locks: bool, bed: Bed, faulty_machine: str, tmp_path: Path
) -> None:
    """Two machines with names, networks and boot ids of their own share a folder, whose locks do not reach across."""
    machines = []
    for rank in (0, 1):
        boot = tmp_path / f"boot{rank}"
        boot.write_text(f"{rank}" * 8 + "-0000-0000-0000-000000000000\n")
        variables = {"LD_PRELOAD": faulty_machine, "FAULTY_LOCKS": "1"} if not locks else {}
        setting = "".join(f"export {name}={value}; " for name, value in variables.items())
        script = f'mount --bind {boot} /proc/sys/kernel/random/boot_id && hostname machine{rank} && {setting}exec "$@"'
        words = [sys.executable, "-m", "tamis", "score", str(bed.pool), "--run", str(bed.run), "--signals", SIGNALS]
        words += ["-q", "--engine", "static", "--rank", str(rank), "--world", "2"]
        own = ["unshare", "--mount", "--uts", "--net", "sh", "-c", script, "machine", *words]
        machines.append(subprocess.Popen(own, stderr=subprocess.PIPE))
        if rank == 0:
            claims = bed.run / "claims"
            while machines[0].poll() is None and not (claims.is_dir() and list(claims.iterdir())):
                time.sleep(0.005)
            machines[0].send_signal(signal.SIGSTOP)  # it is at a shard, whose claim it renews no more
            if machines[0].poll() is not None and b"unshare" in (machines[0].communicate()[1] or b""):
                pytest.skip("namespaces cannot be made here")
    time.sleep(5)
    start = time.monotonic()
    machines[0].kill()
    said = machines[1].communicate()[1]
    assert machines[1].returncode == 0, said
    machines[0].communicate()
    fault = f"one of two machines is gone, a file system {'with' if locks else 'without'} locks"
    bed.measured(fault, "whole again", start)
    bed.recovered(f"{fault}, then a third")


def test_a_worker_that_is_killed_for_its_memory(bed: Bed, tmp_path: Path) -> None:
    """The kernel kills who holds most: here the test does, as soon as a worker holds 900 MiB."""
    mended = tmp_path / "mended"
    code = (
        "import sys, tamis; from odd_scorers import Hungry\n"
        "if __name__ == '__main__':\n"
        "    run = tamis.score(sys.argv[1], run=sys.argv[2], workers=2, quiet=True,\n"
        "                      scores=['caption_length', Hungry(key=sys.argv[3], unless=sys.argv[4])])\n"
        "    sys.exit(len(run.failures))\n"
    )
    script = tmp_path / "hungry.py"
    script.write_text(code)
    key = "000050003"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [sys.executable, str(script), str(bed.pool), str(bed.run), key, str(mended)], env=environment
    )
    kills = 0
    while process.poll() is None:
        for one in family(process.pid)[1:]:
            if resident(one) > 900 << 20:
                os.kill(one, signal.SIGKILL)
                kills += 1
        time.sleep(0.02)
    assert kills >= 1
    assert process.returncode == 1
    assert list(Run(bed.run).failures) == ["00005"]
    mended.touch()
    start = time.monotonic()
    scores = ["caption_length", Hungry(key=key, unless=str(mended))]
    again = tamis.score(bed.pool, run=bed.run, scores=scores, quiet=True)
    bed.measured(f"a worker killed for its memory {kills} times: its shard is set aside", "whole again", start)
    assert again.failures == {}
    assert again.to_numpy("hungry").tolist() == [1.0] * (SHARDS * ROWS)


def resident(process: int) -> int:
    """Returns the bytes of memory that a process holds."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
