"""A run is killed, or its machine fails, however it is carried out; the next command makes it what it would have been.

`make faults` prints a table: fault, what it took until the run was whole again.
"""

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
from processes import command, family, named

import tamis
from tamis.runs import Run

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
class Trial:
    """One run of the pool, to which something happens."""

    pool: Path
    parts: dict[str, bytes]  # of an undisturbed run
    seconds: float  # that a command takes to make them
    run: Path
    record: Record  # keeps a line for the table

    @property
    def words(self) -> list[str]:
        return ["score", str(self.pool), "--run", str(self.run), "--signals", SIGNALS, "-q"]

    def start(self, *engine: str, **variables: str) -> subprocess.Popen[bytes]:
        """Starts a command; `said` is its output."""
        with open(self._log, "ab") as log:
            arguments = [sys.executable, "-m", "tamis", *self.words, *engine]
            return subprocess.Popen(arguments, env={**os.environ, **variables}, stderr=log)

    def start_on_ray(self, address: str) -> subprocess.Popen[bytes]:
        return self.start("--engine", "ray", "--address", address, "--workers", "2")

    @property
    def said(self) -> str:
        """The output of the commands so far."""
        return self._log.read_text(errors="replace")

    @property
    def _log(self) -> Path:
        return self.run.with_name(f"{self.run.name}.said")

    @property
    def indexed(self) -> int:
        """How many shards are read."""
        return len(list((self.run / "index").glob("[0-9]*.parquet"))) if self.run.is_dir() else 0

    def check_complete(self) -> None:
        opened = Run(self.run)
        assert opened.failures == {}
        assert parts_of(self.run) == self.parts
        uids = Counter((row["uid_hi"], row["uid_lo"]) for row in index_rows(opened))
        assert (len(uids), set(uids.values())) == (SHARDS * ROWS, {1})
        assert list((self.run / "claims").iterdir()) == []
        assert tamis.check(self.run).exit_code == 0

    def took(self, fault: str, start: float, what: str = "whole again after") -> None:
        """Keeps the line of a fault, and how long ago it was."""
        self.record("measured", f"{fault:70} {what} {time.monotonic() - start:5.1f} s")

    def recover(self, fault: str) -> None:
        """Repeats the command, and checks that the run is as if nothing had happened."""
        start = time.monotonic()
        done = command(*self.words)
        assert done.returncode == 0, done.stderr
        self.took(fault, start)
        self.check_complete()


@pytest.fixture
def trial(pool: Path, undisturbed: tuple[dict[str, bytes], float], tmp_path: Path, record_property: Record) -> Trial:
    parts, seconds = undisturbed
    return Trial(pool, parts, seconds, tmp_path / "run", record_property)


#: The engines of one machine: workers, and one rank that does all.
WORKERS, RANK = ("--workers", "2"), ("--engine", "static", "--rank", "0", "--world", "1")


@pytest.mark.parametrize("kill", range(LOCAL_KILLS))
@pytest.mark.parametrize("engine", [WORKERS, (*RANK[:-1], "2")])
def test_a_local_run_or_a_rank_that_is_killed(engine: tuple[str, ...], kill: int, trial: Trial) -> None:
    """At a random number of shards, or while the command comes up. A kill that came too late is tried again."""
    draw = random.Random(f"{engine} {kill}")
    alive, fault = False, ""
    while not alive:
        shutil.rmtree(trial.run, ignore_errors=True)
        process = trial.start(*engine)
        moment = draw.randrange(-SHARDS // 6, SHARDS)
        if moment < 0:
            time.sleep(draw.uniform(0, 0.9) * trial.seconds)
        while process.poll() is None and trial.indexed < moment:
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.02))
        members = family(process.pid)
        victim, done = draw.choice(members), trial.indexed
        alive = process.poll() is None
        if alive:
            os.kill(victim, signal.SIGKILL)
            who = "the command" if victim == process.pid else "a process of it"
            fault = f"{engine[1]}: {who} killed at {done} of {SHARDS} shards"
        process.wait()
    trial.recover(fault)


Cluster = tuple[str, subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def ray_variables() -> Iterator[None]:
    """What commands need for talking to Ray."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'tamis[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ray_cluster.SETTINGS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def cluster(ray_variables: None) -> Iterator[Cluster]:
    """The address of a Ray of two cores, and its process."""
    with ray_cluster.cluster() as started:
        yield started


@pytest.mark.parametrize("victim", ["actor", "driver"])
@pytest.mark.parametrize("kill", range(RAY_KILLS))
def test_a_ray_run_whose_actor_or_driver_is_killed(kill: int, victim: str, cluster: Cluster, trial: Trial) -> None:
    """At a random number of shards, or while the actors come up. The command goes on by itself without an actor."""
    address, head = cluster
    draw = random.Random(f"{victim} {kill}")
    moment = draw.randrange(-SHARDS // 6, SHARDS)
    process = trial.start_on_ray(address)

    def actors() -> list[int]:
        return named(family(head.pid), b"ray::Worker")

    while process.poll() is None and not (trial.indexed >= moment and (actors() or victim == "driver")):
        time.sleep(0.01)
    time.sleep(draw.uniform(0, 0.1))
    done, start = trial.indexed, time.monotonic()
    victims = [process.pid] if victim == "driver" else actors()
    fault = "Ray: ended before its kill"
    if process.poll() is None and victims:
        os.kill(draw.choice(victims), signal.SIGKILL)
        fault = f"Ray: {victim} killed at {done} of {SHARDS} shards"
    if victim == "driver":
        process.wait()
        process = trial.start_on_ray(address)
    assert process.wait() == 0, trial.said
    trial.took(fault, start)
    assert (Run(trial.run).failures, parts_of(trial.run)) == ({}, trial.parts), trial.said
    trial.recover(f"{fault}, then once more without Ray")


@pytest.mark.parametrize("kill", range(max(1, RAY_KILLS // 5)))
def test_a_ray_run_whose_raylet_is_killed(kill: int, ray_variables: None, trial: Trial) -> None:
    """The only node is gone: the command waits for another one, until it is ended; any engine takes over."""
    moment = random.Random(f"raylet {kill}").randrange(SHARDS // 2)
    with ray_cluster.cluster() as (address, head):
        process = trial.start_on_ray(address)
        while process.poll() is None and trial.indexed < moment:
            time.sleep(0.01)
        done = trial.indexed
        for raylet in named(family(head.pid), b"raylet/raylet"):
            os.kill(raylet, signal.SIGKILL)
        time.sleep(2)
        process.kill()
        process.wait()
    trial.recover(f"Ray: raylet killed at {done} of {SHARDS} shards")


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
@pytest.mark.parametrize("engine", [WORKERS, RANK])
def test_reads_that_fail(engine: tuple[str, ...], share: float, faulty_machine: str, trial: Trial) -> None:
    """EIO costs shards; the command that is repeated, on the same machine, does those that failed.

    A pool of so few shards takes some fifty reads: it is scored again until one of them has failed.
    """
    log = trial.run.with_name("log")
    variables = {"LD_PRELOAD": faulty_machine, "FAULTY_FOLDER": str(trial.pool), "FAULTY_LOG": str(log)}
    start, codes = time.monotonic(), list[int]()
    while not codes or ((codes[-1] or not log.exists()) and len(codes) < 60):
        if codes and not codes[-1]:
            shutil.rmtree(trial.run)
        codes.append(trial.start(*engine, **variables, FAULTY_SHARE=str(int(share * 10_000))).wait())
        assert codes[-1] in (0, 1), trial.said
    line = f"{share:.0%} of reads fail, {engine[1]}: {log.stat().st_size} did, {len(codes)} commands"
    trial.took(line, start, "whole after")
    trial.check_complete()


def test_a_read_that_hangs_for_ever(faulty_machine: str, trial: Trial) -> None:
    """As of a mount that is gone: the command is killed and repeated."""
    log = trial.run.with_name("log")
    hang = {"FAULTY_HANG": "100000", "FAULTY_SHARE": "3000", "FAULTY_LOG": str(log)}
    process = trial.start(LD_PRELOAD=faulty_machine, FAULTY_FOLDER=str(trial.pool), **hang)
    while not log.exists() and process.poll() is None:
        time.sleep(0.05)
    time.sleep(0.5 * trial.seconds)
    assert process.poll() is None, "it should hang"
    for one in reversed(family(process.pid)):
        os.kill(one, signal.SIGKILL)
    process.wait()
    trial.recover("a read hangs for ever, the command is killed")


@pytest.mark.parametrize("engine", [WORKERS, RANK])
def test_a_clock_that_jumps(engine: tuple[str, ...], faulty_machine: str, trial: Trial) -> None:
    """By up to 12 days to either side, every second and differently in each process; the second command has another."""
    jumps = {"LD_PRELOAD": faulty_machine, "FAULTY_CLOCK": "1000000"}
    process = trial.start(*engine, **jumps)
    helper = trial.start(**jumps)
    time.sleep(0.7 * trial.seconds)
    if process.poll() is None:
        process.kill()
    process.wait()
    assert helper.wait() == 0, trial.said
    trial.recover(f"clocks jump by days, {engine[1]}: two commands, one killed")


@pytest.mark.parametrize("kib", [24, 64, 128, 200])
def test_a_disk_that_is_full(kib: int, trial: Trial, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        trial = replace(trial, run=disk / "run")
        full = command(*trial.words, *WORKERS)
        assert full.returncode == 2
        assert "no space is left" in full.stderr
        assert "Traceback" not in full.stderr
        done = trial.indexed
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        trial.recover(f"a disk of {kib} KiB is full at {done} of {SHARDS} shards")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("seed", range(4))
def test_parts_that_were_cut_are_found_and_made_again(seed: int, trial: Trial) -> None:
    draw = random.Random(seed)
    run = shutil.copytree(trial.pool.parent / "undisturbed", trial.run)
    cut = draw.sample(sorted(trial.parts), 6)
    for name in cut:
        whole = trial.parts[name]
        size = draw.choice((0, 4, len(whole) // 2, len(whole) - 1))
        (run / name).write_bytes(draw.choice((whole[:size], bytes(len(whole)), whole[:size].ljust(len(whole), b"\0"))))
    damage = tamis.check(run)
    assert damage.exit_code == 1
    text = str(damage)
    assert [name for name in cut if Path(name).name not in text] == []
    for path in damage.to_delete:
        path.unlink()
    trial.recover(f"{len(cut)} parts cut or zeroed on disk, then deleted as `tamis check` says")


@pytest.mark.parametrize("how", ["one after the other", "together", "together, the first killed"])
def test_engines_that_work_in_one_folder_at_once(how: str, trial: Trial) -> None:
    """Each prepares the run, and waits while another one does."""
    first = trial.start(*WORKERS)
    while how == "one after the other" and first.poll() is None and not (trial.run / "events.jsonl").exists():
        time.sleep(0.01)
    others = [trial.start("--engine", "static", "--rank", str(rank), "--world", "2") for rank in (0, 1)]
    killed = how.endswith("killed")
    if killed:
        time.sleep(1.3 * trial.seconds)
        first.kill()
    assert [process.wait() for process in others] == [0, 0], trial.said
    assert first.wait() == 0 or killed, trial.said
    trial.check_complete()
    trial.recover(f"local and two ranks in one folder, {how}")


def test_a_machine_that_is_gone_is_taken_over_by_another(trial: Trial, tmp_path: Path) -> None:
    """Two machines with names, networks and boot ids of their own share a folder."""
    machines = []
    for rank in (0, 1):
        boot = tmp_path / f"boot{rank}"
        boot.write_text(f"{rank}" * 8 + "-0000-0000-0000-000000000000\n")
        script = f'mount --bind {boot} /proc/sys/kernel/random/boot_id && hostname machine{rank} && exec "$@"'
        words = [sys.executable, "-m", "tamis", *trial.words]
        words += ["--engine", "static", "--rank", str(rank), "--world", "2"]
        own = ["unshare", "--mount", "--uts", "--net", "sh", "-c", script, "machine", *words]
        machines.append(subprocess.Popen(own, stderr=subprocess.PIPE))
        if rank == 0:
            claims = trial.run / "claims"
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
    fault = "one of two machines is gone"
    trial.took(fault, start)
    trial.recover(f"{fault}, then a third")
