"""Compacting puts many files into few, and changes nothing else: not an answer, not what may be done later."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from command_line import Tamis
from damage import answer, flipped, flips, small_run
from factories import pair, parts_of, write_pool, write_tar

import tamis
from tamis.errors import RunError
from tamis.explore.near import Near
from tamis.store import Run, packs, parts
from tamis.store import compact as module
from tamis.store.compact import compact
from tamis.store.lock import claimed
from tamis.store.manifest import forget

SIGNALS = ["caption_length", "image_size"]


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """Four shards of seven pairs, scored."""
    pool = write_pool(tmp_path / "pool", shards=4)
    return tamis.score(pool, run=tmp_path / "run", scores=SIGNALS, quiet=True).path


def unpacked(run: Path) -> set[str]:
    """Names of parts that lie in files of their own; what stands beside parts is no part."""
    return {name for name in parts_of(run) if not name.endswith("class_vectors.npy")}


def contents(run: Path) -> dict[str, bytes]:
    """Every part by its path, with its bytes, however it lies."""
    found = {}
    for folder in (run / "index", *(run / "scores").glob("*")):
        for shard in packs.part_names(folder, ".parquet"):
            place = packs.located(folder / f"{shard}.parquet")
            assert place is not None
            data = place.file.read_bytes()[place.begin : place.begin + place.size]
            found[str((folder / f"{shard}.parquet").relative_to(run))] = data
    return found


def test_every_part_is_there_byte_for_byte_and_every_answer_is_the_same(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run").path
    right, files = answer(run), parts_of(run)
    done = tamis.compact(run)
    assert (done.before, done.after, done.parts, done.left) == (12, 4, 12, 0)
    assert unpacked(run) == set()
    assert answer(run) == right
    assert tamis.doctor(run).exit_code == 0
    for name, data in files.items():
        place = packs.located(run / name)
        assert place is not None
        assert place.file.read_bytes()[place.begin : place.begin + place.size] == data
    assert Near(Run(run)).image == "image_embedding-1111111111111111"  # what the explorer searches
    again = tamis.compact(run)
    assert (again.before, again.after, again.parts) == (4, 4, 0)


def test_the_verbs_write_the_same_bytes_from_a_compacted_run(scored: Path, tmp_path: Path) -> None:
    recipe = {"name": "long", "select": [{"top_fraction": {"score": "words", "fraction": 0.5}}]}

    def written(to: Path) -> dict[str, bytes]:
        subset = tamis.select(scored, recipe)
        subset.save(to / "subset.parquet")
        tamis.export(subset, "npy", to / "uids.npy")
        tamis.export(subset, "dropped", to / "dropped.parquet")
        tamis.export(subset, "webdataset", to / "tars")
        tamis.report(scored, [subset], out=to / "report.html")
        names = ("subset.parquet", "uids.npy", "dropped.parquet", "tars/00000.tar")
        assert (to / "report.html").stat().st_size > 10_000
        return {name: (to / name).read_bytes() for name in names}

    before = written(tmp_path / "before")
    tamis.compact(scored)
    assert written(tmp_path / "after") == before


def test_scoring_goes_on_after_it(scored: Path, tmp_path: Path) -> None:
    before = contents(scored)
    tamis.compact(scored)
    write_pool(tmp_path / "pool", shards=2, first=4)
    tamis.score(tmp_path / "pool", run=scored, scores=[*SIGNALS, "language"], quiet=True)
    assert len(parts_of(scored)) == 6 + 4 + 2  # two new shards of three scorers' index, and a new scorer of four
    now = contents(scored)
    assert {name: now[name] for name in before} == before
    done = tamis.compact(scored)
    assert (done.after, parts_of(scored)) == (4, {})  # the small packs are put together with what is new
    assert contents(scored) == now
    assert len(tamis.open_run(scored)) == 6 * 7
    assert tamis.doctor(scored).exit_code == 0


def test_a_shard_that_is_scored_anew_leaves_its_pack(scored: Path, tmp_path: Path) -> None:
    write_tar(tmp_path / "pool" / "00001.tar", [("new", pair(77))])
    tamis.compact(scored)
    for folder in (scored / "index", *(scored / "scores").glob("*")):
        packs.remove(folder / "00001.parquet")
    assert Run(scored).shards == ("00000", "00002", "00003")
    tamis.score(tmp_path / "pool", run=scored, scores=SIGNALS, quiet=True)
    assert [row["key"] for row in Run(scored).index("00001").to_pylist()] == ["new"]
    now = contents(scored)
    tamis.compact(scored)
    assert contents(scored) == now
    assert not list(scored.rglob("*.gone"))
    assert len(tamis.open_run(scored).to_numpy("words")) == 22


def test_a_changed_file_of_a_packed_shard_is_read_anew_as_the_message_says(
    scored: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tamis.compact(scored)
    write_tar(tmp_path / "pool" / "00001.tar", [("new", pair(77))])
    tamis.score(tmp_path / "pool", run=scored, scores=SIGNALS, quiet=True)
    message = caplog.messages[-1]
    Path(message.partition("make the empty file ")[2].partition(", which")[0]).touch()
    tamis.score(tmp_path / "pool", run=scored, scores=SIGNALS, quiet=True)
    assert [row["key"] for row in Run(scored).index("00001").to_pylist()] == ["new"]
    assert len(tamis.open_run(scored).to_numpy("words")) == 22
    assert tamis.doctor(scored).exit_code == 0


def test_a_pack_is_closed_before_it_gets_too_large(scored: Path) -> None:
    before = contents(scored)
    size = max(len(data) for data in before.values())
    assert compact(scored, pack_bytes=2 * size).after > 3
    assert max(pack.stat().st_size for pack in scored.rglob("*.pack")) < 3 * size
    assert contents(scored) == before
    assert compact(scored).after == 3
    assert contents(scored) == before


KILLED = """
import os, signal, sys
from pathlib import Path
from tamis.store import compact

left = int(sys.argv[2])

def dying(name):
    real = getattr(os, name)
    def call(*arguments, **options):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    setattr(os, name, call)

for name in ("replace", "unlink"):
    dying(name)
compact.compact(Path(sys.argv[1]))
"""


def test_a_kill_half_way_loses_nothing(tmp_path: Path) -> None:
    run = small_run(tmp_path / "run").path
    right = answer(run)
    survived = 0
    for step in itertools.count(1, 9):
        done = subprocess.run([sys.executable, "-c", KILLED, str(run), str(step)], check=False)
        assert answer(run) == right
        tamis.doctor(run, repair=True)
        assert tamis.doctor(run).exit_code == 0
        assert answer(run) == right
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        survived += 1
    assert survived > 2
    assert unpacked(run) == set()


def test_damage_in_a_pack_is_found_and_made_again(scored: Path, tmp_path: Path) -> None:
    tamis.compact(scored)
    right = {name: tamis.open_run(scored).to_numpy(name).tolist() for name in ("words", "shorter_side")}
    for path, byte, bit in flips(sorted(scored.rglob("*.pack")), 25, seed=3):
        whole = flipped(path, byte, bit)
        packs._known.clear()  # another process would read the list anew
        packs._listed.clear()
        try:
            assert {name: tamis.open_run(scored).to_numpy(name).tolist() for name in right} == right
        except RunError:
            assert tamis.doctor(scored).exit_code == 1
        path.write_bytes(whole)
    pack = packs.packs_in(scored / "index")[0]
    flipped(pack, 1000, 1)
    packs._known.clear()
    packs._listed.clear()
    found = tamis.doctor(scored, repair=True)
    assert [finding.kind for finding in found.findings if finding.repaired] == ["damage"]
    tamis.score(tmp_path / "pool", run=scored, scores=SIGNALS, quiet=True)
    assert {name: tamis.open_run(scored).to_numpy(name).tolist() for name in right} == right
    assert tamis.doctor(scored).exit_code == 0


def spoil(pack: Path, spoilt: Callable[[bytes], bytes]) -> None:
    """Damages a pack, as another process would find it."""
    pack.write_bytes(spoilt(pack.read_bytes()))
    packs.forget_lists()


def turned(data: bytes, at: int) -> bytes:
    """A bit of one byte turned."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda data: data[:-40],
        lambda data: turned(data, len(data) - 200),
        lambda data: turned(data, len(data) - 20),
        lambda data: turned(data, 0),
        lambda data: turned(data, 20),
        lambda data: turned(data, 200),
    ],
    ids=["cut", "list behind", "its length", "magic in front", "length in front", "list in front"],
)
def test_one_copy_of_a_packs_list_may_be_damaged(scored: Path, spoilt: Callable[[bytes], bytes]) -> None:
    before = contents(scored)
    tamis.compact(scored)
    for pack in scored.rglob("*.pack"):
        spoil(pack, spoilt)
    assert contents(scored) == before
    assert tamis.open_run(scored).to_numpy("words").shape == (28,)
    found = tamis.doctor(scored)
    assert ([each.kind for each in found.findings], found.exit_code, found.command) == (["spare"] * 3, 1, "")
    repaired = tamis.doctor(scored, repair=True)
    assert ([each.repaired for each in repaired.findings], repaired.exit_code) == ([True] * 3, 0)
    assert tamis.doctor(scored).findings == ()
    assert contents(scored) == before


def test_parts_are_found_in_a_pack_without_a_list(scored: Path) -> None:
    """Both copies damaged, or the one copy that packs of older versions have: what is lost is at most a part."""
    before = contents(scored)
    tamis.compact(scored)
    for pack in scored.rglob("*.pack"):
        spoil(pack, lambda data: turned(turned(data, 200), len(data) - 200))
    with pytest.raises(RunError, match="doctor RUN --repair"):
        tamis.open_run(scored)
    assert [each.kind for each in tamis.doctor(scored).findings] == ["spare"]
    repaired = tamis.doctor(scored, repair=True)
    assert ([each.kind for each in repaired.left], contents(scored)) == ([], before)
    assert tamis.doctor(scored).findings == ()


def test_a_pack_in_which_nothing_can_be_found_goes(scored: Path, tmp_path: Path) -> None:
    tamis.compact(scored)
    spoil(packs.packs_in(scored / "index")[0], lambda data: bytes(len(data)))
    assert [each.kind for each in tamis.doctor(scored).findings] == ["damage"]
    tamis.doctor(scored, repair=True)
    tamis.score(tmp_path / "pool", run=scored, scores=SIGNALS, quiet=True)
    assert tamis.doctor(scored).exit_code == 0


def test_packs_of_older_versions_are_read(scored: Path) -> None:
    """They have no list before their parts, of which the first begins at 0."""
    before = contents(scored)
    tamis.compact(scored)
    for pack in list(scored.rglob("*.pack")):
        places, data, listed = packs.contents(pack), pack.read_bytes(), {}
        older = b""
        for name, place in places.items():
            older += bytes(-len(older) % 64)
            listed[name] = {"begin": len(older), "size": place.size, "facts": dict(place.facts)}
            older += data[place.begin : place.begin + place.size]
        raw = json.dumps({"parts": listed}).encode()
        spoil(pack, lambda _, older=older, raw=raw: older + raw + trailer(raw))  # type: ignore[misc]
    assert contents(scored) == before
    assert tamis.doctor(scored).findings == ()
    spoil(packs.packs_in(scored / "index")[0], lambda data: turned(data, data.rfind(b"stamp")))
    assert tamis.doctor(scored, repair=True).left == ()
    assert contents(scored) == before


def trailer(raw: bytes) -> bytes:
    return f"{len(raw):016x}{xxhash.xxh3_64_hexdigest(raw)}tamis.pack.1\n".encode()


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("function", ["write_pack", "_copy"])
def test_what_is_forgotten_while_it_is_packed_does_not_come_back(
    scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, killed: bool
) -> None:
    """Of what lies in files of their own, and of what lies in packs; also where the process dies with the new pack."""
    tamis.compact(scored)
    write_pool(tmp_path / "pool", shards=2, first=4)
    tamis.score(tmp_path / "pool", run=scored, scores=SIGNALS, quiet=True)
    real = getattr(packs, function)
    with ExitStack() as other:
        for shard in ("00000", "00004"):
            assert other.enter_context(claimed(scored, shard))

        def forgetting(*arguments: Any) -> Any:
            if function == "write_pack" or arguments[-1] == "00005.parquet":  # the last to be copied
                forget(scored, ["00000", "00004"])  # as the process at these shards would do
            return real(*arguments)

        def dying(*arguments: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(packs, function, forgetting)
        if killed:
            monkeypatch.setattr(module, "_leave_what_went", dying)
        with suppress(KeyboardInterrupt):
            tamis.compact(scored)
        monkeypatch.undo()
        assert Run(scored).shards == ("00001", "00002", "00003", "00005")
    tamis.compact(scored)
    assert Run(scored).shards == ("00001", "00002", "00003", "00005")
    assert not list(scored.rglob("*.gone"))
    tamis.score(tmp_path / "pool", run=scored, scores=SIGNALS, quiet=True)
    assert tamis.doctor(scored).exit_code == 0


def test_a_pack_that_is_being_made_is_left_alone_by_doctor(scored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    real = packs.show

    def show(pack: Path) -> None:
        seen.extend(tamis.doctor(scored, repair=True).findings)
        real(pack)

    monkeypatch.setattr(packs, "show", show)
    before = contents(scored)
    tamis.compact(scored)
    assert (seen, contents(scored)) == ([], before)


def test_a_shard_that_is_worked_on_stays_a_file_until_the_next_time(scored: Path) -> None:
    before = contents(scored)
    code = "import sys, time\nfrom pathlib import Path\nfrom tamis.store.lock import claimed\n"
    code += "with claimed(Path(sys.argv[1]), '00002') as mine:\n    print(mine, flush=True)\n    sys.stdin.read()\n"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(scored)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert tamis.compact(scored).left == 3
        assert sorted({Path(name).name for name in parts_of(scored)}) == ["00002.parquet"]
        assert contents(scored) == before
        other.communicate("")
    assert tamis.compact(scored).left == 0
    assert (parts_of(scored), contents(scored)) == ({}, before)


def test_one_compacts_at_a_time_and_older_versions_refuse_what_is_compacted(scored: Path) -> None:
    with claimed(scored, ".compact") as mine:
        assert mine
        with pytest.raises(RunError, match="another process compacts"):
            tamis.compact(scored)
    assert json.loads((scored / "run.json").read_text())["format"] == 2
    tamis.compact(scored)
    assert json.loads((scored / "run.json").read_text())["format"] == 3


def test_what_lies_in_a_file_and_in_a_pack_is_read_from_the_file(scored: Path) -> None:
    tamis.compact(scored)
    path = next((scored / "scores").glob("caption_length-*")) / "00000.parquet"
    run = Run(scored)
    columns = run.scores["caption_length"].columns
    values = {column.name: np.full(7, 3.0, np.float32) for column in columns}
    for round in range(2):
        parts.write_scores(path, columns, values, [None] * 7, uids=run.owner("00000").uids)
        assert Run(scored).to_numpy("words")[:7].tolist() == [3.0] * 7, round
        tamis.compact(scored)
        assert not path.exists()
        assert Run(scored).to_numpy("words")[:7].tolist() == [3.0] * 7


def test_the_command(scored: Path, tamis: Tamis) -> None:
    files = sum(len(names) for _, _, names in os.walk(scored / "index"))
    done = tamis("compact", scored)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{3 * files} files are 3 now: 12 parts, ")
    assert json.loads(tamis("compact", scored, "--json").out)["parts"] == 0
    assert tamis("compact", scored.parent).code == 2
