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
from pathlib import Path

import pytest
import ray_cluster
from factories import index_rows, parts_of, write_pool
from odd_scorers import Hungry
from processes import command, family, named

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


def scoring(pool: Path, run: Path, *engine: str, **variables: str) -> subprocess.Popen[bytes]:
    """Starts a command; what it says is told by `said`."""
    arguments = [sys.executable, "-m", "tamis", "score", str(pool), "--run", str(run), "--signals", SIGNALS, "-q"]
    with open(run.with_name(f"{run.name}.said"), "ab") as log:
        return subprocess.Popen([*arguments, *engine], env={**os.environ, **variables}, stderr=log)


def said(run: Path) -> str:
    """Returns what the commands of a run have said so far."""
    return run.with_name(f"{run.name}.said").read_text(errors="replace")


def indexed(run: Path) -> int:
    """Returns how many shards of a run are read."""
    return len(list((run / "index").glob("[0-9]*.parquet"))) if run.is_dir() else 0


def check_whole(run: Path, parts: dict[str, bytes]) -> None:
    opened = Run(run)
    assert opened.failures == {}
    assert parts_of(run) == parts
    uids = Counter((row["uid_hi"], row["uid_lo"]) for row in index_rows(opened))
    assert (len(uids), set(uids.values())) == (SHARDS * ROWS, {1})
    assert list((run / "claims").iterdir()) == []
    assert tamis.doctor(run).exit_code == 0


Record = Callable[[str, object], None]


def recovered(fault: str, pool: Path, run: Path, parts: dict[str, bytes], record: Record) -> None:
    """Repeats the command, and checks that the run is as if nothing had happened."""
    start = time.monotonic()
    done = command("score", pool, "--run", run, "--signals", SIGNALS, "-q")
    assert done.returncode == 0, done.stderr
    record("measured", f"{fault:70} whole again after {time.monotonic() - start:5.1f} s")
    check_whole(run, parts)


@pytest.mark.parametrize("kill", range(LOCAL_KILLS))
@pytest.mark.parametrize("engine", [("--workers", "2"), ("--engine", "static", "--rank", "0", "--world", "2")])
def test_a_local_run_or_a_rank_that_is_killed(
    engine: tuple[str, ...],
    kill: int,
    pool: Path,
    undisturbed: tuple[dict[str, bytes], float],
    tmp_path: Path,
    record_property: Record,
) -> None:
    parts, seconds = undisturbed
    draw = random.Random(f"{engine} {kill}")
    run = tmp_path / "run"
    process = scoring(pool, run, *engine)
    time.sleep(draw.uniform(0.2, 1.2) * seconds)
    members = family(process.pid)
    victim = draw.choice(members)
    alive = process.poll() is None
    if alive:
        os.kill(victim, signal.SIGKILL)
    process.wait()
    who = "the command" if victim == process.pid else "a process of it"
    done = indexed(run)
    fault = (
        f"{engine[1]}: {who} killed at {done} of {SHARDS} shards" if alive else f"{engine[1]}: ended before its kill"
    )
    recovered(fault, pool, run, parts, record_property)


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


def on_ray(pool: Path, run: Path, address: str) -> subprocess.Popen[bytes]:
    return scoring(pool, run, "--engine", "ray", "--address", address, "--workers", "2")


@pytest.mark.parametrize("victim", ["actor", "driver"])
@pytest.mark.parametrize("kill", range(RAY_KILLS))
def test_a_ray_run_whose_actor_or_driver_is_killed(
    kill: int,
    victim: str,
    pool: Path,
    undisturbed: tuple[dict[str, bytes], float],
    cluster: Cluster,
    tmp_path: Path,
    record_property: Record,
) -> None:
    """At a random number of shards, or while the actors come up. The command goes on by itself without an actor."""
    parts, _ = undisturbed
    address, head = cluster
    draw = random.Random(f"{victim} {kill}")
    run = tmp_path / "run"
    moment = draw.randrange(-SHARDS // 6, SHARDS)
    process = on_ray(pool, run, address)

    def actors() -> list[int]:
        return named(family(head.pid), b"ray::Worker")

    while process.poll() is None and not (indexed(run) >= moment and (actors() or victim == "driver")):
        time.sleep(0.01)
    time.sleep(draw.uniform(0, 0.1))
    done, start = indexed(run), time.monotonic()
    victims = [process.pid] if victim == "driver" else actors()
    fault = "Ray: ended before its kill"
    if process.poll() is None and victims:
        os.kill(draw.choice(victims), signal.SIGKILL)
        fault = f"Ray: {victim} killed at {done} of {SHARDS} shards"
    if victim == "driver":
        process.wait()
        process = on_ray(pool, run, address)
    assert process.wait() == 0, said(run)
    record_property("measured", f"{fault:70} whole again after {time.monotonic() - start:5.1f} s")
    assert (Run(run).failures, parts_of(run)) == ({}, parts), said(run)
    recovered(f"{fault}, then once more without Ray", pool, run, parts, record_property)


@pytest.mark.parametrize("kill", range(max(1, RAY_KILLS // 5)))
def test_a_ray_run_whose_raylet_is_killed(
    kill: int,
    pool: Path,
    undisturbed: tuple[dict[str, bytes], float],
    ray_variables: None,
    tmp_path: Path,
    record_property: Record,
) -> None:
    """The only node is gone: the command waits for another one, until it is ended; any engine takes over."""
    parts, _ = undisturbed
    run = tmp_path / "run"
    moment = random.Random(f"raylet {kill}").randrange(SHARDS // 2)
    with ray_cluster.cluster() as (address, head):
        process = on_ray(pool, run, address)
        while process.poll() is None and indexed(run) < moment:
            time.sleep(0.01)
        done = indexed(run)
        for raylet in named(family(head.pid), b"raylet/raylet"):
            os.kill(raylet, signal.SIGKILL)
        time.sleep(2)
        process.kill()
        process.wait()
    recovered(f"Ray: raylet killed at {done} of {SHARDS} shards", pool, run, parts, record_property)


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
@pytest.mark.parametrize("engine", [("--workers", "2"), ("--engine", "static", "--rank", "0", "--world", "1")])
def test_reads_that_fail(
    engine: tuple[str, ...],
    share: float,
    pool: Path,
    undisturbed: tuple[dict[str, bytes], float],
    faulty_machine: str,
    tmp_path: Path,
    record_property: Record,
) -> None:
    """EIO costs shards; the command that is repeated, on the same machine, does those that failed."""
    run, log = tmp_path / "run", tmp_path / "log"
    variables = {"LD_PRELOAD": faulty_machine, "FAULTY_FOLDER": str(pool), "FAULTY_LOG": str(log)}
    start, codes = time.monotonic(), []
    while not codes or (codes[-1] and len(codes) < 60):
        codes.append(scoring(pool, run, *engine, **variables, FAULTY_SHARE=str(int(share * 10_000))).wait())
        assert codes[-1] in (0, 1), said(run)
    faults = log.stat().st_size if log.exists() else 0
    seconds = time.monotonic() - start
    line = f"{share:.0%} of reads fail, {engine[1]}: {faults} did, {len(codes)} commands"
    record_property("measured", f"{line:70} whole after {seconds:5.1f} s")
    check_whole(run, undisturbed[0])


@pytest.mark.parametrize("killed", [False, True])
def test_reads_that_hang(
    killed: bool,
    pool: Path,
    undisturbed: tuple[dict[str, bytes], float],
    faulty_machine: str,
    tmp_path: Path,
    record_property: Record,
) -> None:
    """For a second each, they cost time; for ever, as of a mount that is gone, the command is killed and repeated."""
    parts, seconds = undisturbed
    run, log = tmp_path / "run", tmp_path / "log"
    hang = {"FAULTY_HANG": "100000" if killed else "1", "FAULTY_SHARE": "500", "FAULTY_LOG": str(log)}
    process = scoring(pool, run, LD_PRELOAD=faulty_machine, FAULTY_FOLDER=str(pool), **hang)
    if killed:
        while not log.exists() and process.poll() is None:
            time.sleep(0.05)
        time.sleep(0.5 * seconds)
        for one in reversed(family(process.pid)):
            os.kill(one, signal.SIGKILL)
        process.wait()
        recovered("a read hangs for ever, the command is killed", pool, run, parts, record_property)
        return
    assert process.wait() == 0, said(run)
    record_property("measured", f"{log.stat().st_size if log.exists() else 0} reads hang for a second: nothing is lost")
    check_whole(run, parts)


@pytest.mark.parametrize("engine", [("--workers", "2"), ("--engine", "static", "--rank", "0", "--world", "1")])
def test_a_clock_that_jumps(
    engine: tuple[str, ...],
    pool: Path,
    undisturbed: tuple[dict[str, bytes], float],
    faulty_machine: str,
    tmp_path: Path,
    record_property: Record,
) -> None:
    """By up to 12 days to either side, every second and differently in each process; the second command has another."""
    parts, seconds = undisturbed
    run = tmp_path / "run"
    jumps = {"LD_PRELOAD": faulty_machine, "FAULTY_CLOCK": "1000000"}
    process = scoring(pool, run, *engine, **jumps)
    helper = scoring(pool, run, **jumps)
    time.sleep(0.7 * seconds)
    if process.poll() is None:
        process.kill()
    process.wait()
    assert helper.wait() == 0, said(run)
    recovered(f"clocks jump by days, {engine[1]}: two commands, one killed", pool, run, parts, record_property)


@pytest.mark.parametrize("kib", [24, 64, 128, 200])
def test_a_disk_that_is_full(
    kib: int, pool: Path, undisturbed: tuple[dict[str, bytes], float], tmp_path: Path, record_property: Record
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        full = command("score", pool, "--run", disk / "run", "--signals", SIGNALS, "-q", "--workers", "2")
        assert full.returncode == 2
        assert "no space is left" in full.stderr
        assert "Traceback" not in full.stderr
        done = indexed(disk / "run")
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        fault = f"a disk of {kib} KiB is full at {done} of {SHARDS} shards"
        recovered(fault, pool, disk / "run", undisturbed[0], record_property)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("seed", range(4))
def test_parts_that_were_cut_are_found_and_made_again(
    seed: int, pool: Path, undisturbed: tuple[dict[str, bytes], float], tmp_path: Path, record_property: Record
) -> None:
    draw = random.Random(seed)
    run = shutil.copytree(pool.parent / "undisturbed", tmp_path / "run")
    cut = draw.sample(sorted(undisturbed[0]), 6)
    for name in cut:
        whole = undisturbed[0][name]
        size = draw.choice((0, 4, len(whole) // 2, len(whole) - 1))
        (run / name).write_bytes(draw.choice((whole[:size], bytes(len(whole)), whole[:size].ljust(len(whole), b"\0"))))
    damage = tamis.doctor(run)
    assert damage.exit_code == 1
    text = str(damage)
    assert [name for name in cut if Path(name).name not in text] == []
    assert tamis.doctor(run, repair=True).exit_code in (0, 1)
    recovered(
        f"{len(cut)} parts cut or zeroed on disk, `tamis doctor --repair`", pool, run, undisturbed[0], record_property
    )


@pytest.mark.parametrize("how", ["one after the other", "together", "together, the first killed"])
def test_engines_that_work_in_one_folder_at_once(
    how: str, pool: Path, undisturbed: tuple[dict[str, bytes], float], tmp_path: Path, record_property: Record
) -> None:
    """Each prepares the run, and waits while another one does."""
    run = tmp_path / "run"
    first = scoring(pool, run, "--workers", "2")
    while how == "one after the other" and first.poll() is None and not (run / "events.jsonl").exists():
        time.sleep(0.01)
    others = [scoring(pool, run, "--engine", "static", "--rank", str(rank), "--world", "2") for rank in (0, 1)]
    killed = how.endswith("killed")
    if killed:
        time.sleep(1.3 * undisturbed[1])
        first.kill()
    assert [process.wait() for process in others] == [0, 0], said(run)
    assert first.wait() == 0 or killed, said(run)
    check_whole(run, undisturbed[0])
    recovered(f"local and two ranks in one folder, {how}", pool, run, undisturbed[0], record_property)


@pytest.mark.parametrize("locks", [True, False])
def test_a_machine_that_is_gone_is_taken_over_by_another(
    locks: bool,
    pool: Path,
    undisturbed: tuple[dict[str, bytes], float],
    faulty_machine: str,
    tmp_path: Path,
    record_property: Record,
) -> None:
    """Two machines with names, networks and boot ids of their own share a folder, whose locks do not reach across."""
    parts, _ = undisturbed
    run = tmp_path / "run"
    machines = []
    for rank in (0, 1):
        boot = tmp_path / f"boot{rank}"
        boot.write_text(f"{rank}" * 8 + "-0000-0000-0000-000000000000\n")
        variables = {"LD_PRELOAD": faulty_machine, "FAULTY_LOCKS": "1"} if not locks else {}
        setting = "".join(f"export {name}={value}; " for name, value in variables.items())
        script = f'mount --bind {boot} /proc/sys/kernel/random/boot_id && hostname machine{rank} && {setting}exec "$@"'
        words = [sys.executable, "-m", "tamis", "score", str(pool), "--run", str(run), "--signals", SIGNALS, "-q"]
        words += ["--engine", "static", "--rank", str(rank), "--world", "2"]
        own = ["unshare", "--mount", "--uts", "--net", "sh", "-c", script, "machine", *words]
        machines.append(subprocess.Popen(own, stderr=subprocess.PIPE))
        if rank == 0:
            claims = run / "claims"
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
    record_property("measured", f"{fault:70} whole again after {time.monotonic() - start:5.1f} s")
    recovered(f"{fault}, then a third", pool, run, parts, record_property)


def test_a_worker_that_is_killed_for_its_memory(tmp_path: Path, pool: Path, record_property: Record) -> None:
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
    run, key = tmp_path / "run", "000050003"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, str(script), str(pool), str(run), key, str(mended)], env=environment)
    kills = 0
    while process.poll() is None:
        for one in family(process.pid)[1:]:
            if resident(one) > 900 << 20:
                os.kill(one, signal.SIGKILL)
                kills += 1
        time.sleep(0.02)
    assert kills >= 1
    assert process.returncode == 1
    assert list(Run(run).failures) == ["00005"]
    mended.touch()
    start = time.monotonic()
    again = tamis.score(pool, run=run, scores=["caption_length", Hungry(key=key, unless=str(mended))], quiet=True)
    fault = f"a worker killed for its memory {kills} times: its shard is set aside"
    record_property("measured", f"{fault:70} whole again after {time.monotonic() - start:5.1f} s")
    assert again.failures == {}
    assert again.to_numpy("hungry").tolist() == [1.0] * (SHARDS * ROWS)


def resident(process: int) -> int:
    """Returns the bytes of memory that a process holds."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0
