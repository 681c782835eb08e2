"""What is added to a run later: shards of its pool, another pool when asked for, and json fields."""

import json
import logging
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_line import Tamis
from factories import caption, pair, parts_of, write_pool, write_tar
from pool_kinds import write_kind

import tamis as package
from tamis.core.errors import RecipeError, RunError
from tamis.runs import Run

SIGNALS = ("--run", "run", "--signals", "caption_length", "-q")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def pool_of(run: str = "run") -> Any:
    pool = json.loads(Path(run, "run.json").read_text())["pool"]["path"]
    recipe = yaml.safe_load(Path(run, "recipe.yaml").read_text())["pool"]
    assert recipe == pool
    return pool


def test_a_part_of_the_pool_is_scored_and_the_run_keeps_its_pool(tamis: Tamis, tmp_path: Path) -> None:
    pool = str(write_pool(tmp_path / "pool", shards=6, rows=2))
    tamis.ok("score", pool, *SIGNALS)
    done = tamis("score", "pool/{00000..00003}.tar", "--run", "run", "--signals", "image_size", "-q")
    assert (done.code, pool_of()) == (0, [pool])
    assert sorted(Run("run").scores["image_size"].shards) == [f"0000{number}" for number in range(4)]
    done = tamis.ok("score", *shlex.split(Run("run").score_command())[2:], "--signals", "image_size", "-q")
    assert len(Run("run").scores["image_size"].shards) == 6
    # A range that became longer is another pool; a run may be next to its pool's files, in an empty folder.
    (tmp_path / "pool" / "run").mkdir()
    ranged = ("--run", "pool/run", "--signals", "caption_length", "-q")
    assert [tamis("score", f"pool/{{00000..0000{last}}}.tar", *ranged).code for last in (1, 2)] == [0, 2]
    tamis.ok("score", "pool", *ranged, "--grow")
    assert pool_of("pool/run") == [str(tmp_path / "pool" / "{00000..00001}.tar"), pool]
    tamis.ok("score", "pool/**/*.tar", *ranged, "--grow")
    (tmp_path / "pool").rename(tmp_path / "moved")
    assert (tamis("score", "moved", *SIGNALS).code, pool_of()) == (0, [str(tmp_path / "moved")])


def test_another_pool_is_added_when_that_is_asked_for(tamis: Tamis, tmp_path: Path) -> None:
    one, two = str(write_pool(tmp_path / "one", shards=2, rows=2)), str(write_pool(tmp_path / "two", 2, 2, first=1))
    tamis.ok("score", one, *SIGNALS)
    before = files(tmp_path / "run")
    for more in ((), ("--dry-run",)):
        done = tamis("score", two, *SIGNALS, *more)
        assert (done.code, files(tmp_path / "run") == before) == (2, True)
        assert f"run holds another pool ({one}), which lacks 2 of these, the first: " in done.err
        assert "--grow" in done.err
    tamis.ok("score", two, *SIGNALS, "--grow")
    assert pool_of() == [one, two]
    write_pool(tmp_path / "two", 1, 2, first=3)  # each of its places may grow
    tamis.ok("score", two, *SIGNALS)
    assert pool_of() == [one, two]
    tamis.ok("score", *shlex.split(Run("run").score_command())[2:], "--signals", "image_size", "-q")
    assert len(Run("run").scores["image_size"].shards) == 5
    assert len(Run("run")) == 10


def test_a_recipes_pool_is_the_runs_too(tmp_path: Path) -> None:
    for rows, name in enumerate(("one", "two"), 2):
        write_pool(tmp_path / name, shards=1, rows=rows)
    recipe = {"pool": str(tmp_path / "one"), "run": str(tmp_path / "run"), "signals": ["caption_length"], "select": []}
    package.run_recipe(recipe, quiet=True)
    other = {**recipe, "pool": str(tmp_path / "two")}
    for call in (package.plan, package.run_recipe):
        with pytest.raises(RunError, match=r"lacks 1 of these.*--grow"):
            call(recipe=other)  # type: ignore[operator]
    assert package.plan(recipe=other, grow=True).missing[0].shards == 1
    assert len(package.run_recipe(other, grow=True, quiet=True).run) == 5


@pytest.mark.parametrize(
    ("pool", "run"),
    [
        ("pool", "pool"),
        ("pool", "linked"),
        ("linked", "pool"),
        ("pool/{00000..00001}.tar", "pool"),
        ("above/**/*", "above/run"),
        ("above/inner", "above"),
        ("pool", "pool/00000.tar"),
        ("pool", "photos"),
    ],
)
def test_a_run_is_not_made_among_other_files(pool: str, run: str, tamis: Tamis, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", shards=2, rows=2)
    write_pool(tmp_path / "above" / "inner", shards=2, rows=2)
    (tmp_path / "linked").symlink_to("pool")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    before = files(tmp_path)
    for more in (("--dry-run",), ()):
        done = tamis("score", pool, "--run", run, "--signals", "caption_length", "-q", *more)
        assert (done.code, files(tmp_path) == before) == (2, True), done.err
        assert "--run" in done.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["above", "linked", "photos", "pool"]


def fielded(folder: Path, shards: int = 2, rows: int = 3) -> Path:
    """A pool whose json has a source (none in the first row of each shard) and a number."""
    folder.mkdir(exist_ok=True)
    for shard in range(shards):
        samples = []
        for row in range(rows):
            files = pair(10 * shard + row)
            facts = {**json.loads(files.get("json", b"{}")), "number": row}
            facts |= {"source": f"web{row}"} if row else {}
            samples.append((f"{shard:03d}{row:03d}", {**files, "json": json.dumps(facts).encode()}))
        write_tar(folder / f"{shard:05d}.tar", samples)
    return folder


def with_fields(pool: Path, run: Path, *fields: str, signals: tuple[str, ...] = ("caption_length",)) -> Run:
    return package.score(package.PoolSpec(path=str(pool), fields=fields), run=run, signals=signals, quiet=True)


def test_a_field_is_added_to_a_run_later_like_a_score(tmp_path: Path) -> None:
    pool = fielded(tmp_path / "pool")
    with_fields(pool, tmp_path / "run", "number")
    before = parts_of(tmp_path / "run")
    run = with_fields(pool, tmp_path / "run", "source")
    assert run.facts["pool"]["fields"] == ["number"]
    assert run["source"].tolist()[:3] == [None, "web1", "web2"]
    kept = package.select(run, {"select": [{"equals": {"score": "source", "value": "web2", "missing": "drop"}}]})
    assert kept.keep.tolist() == [False, False, True] * 2
    after = parts_of(tmp_path / "run")
    assert {name: after[name] for name in before} == before
    assert package.check(run.path).exit_code == 0


def test_the_fields_of_a_run_need_not_be_named_again_and_new_shards_get_them(tmp_path: Path) -> None:
    pool = fielded(tmp_path / "pool", shards=1)
    with_fields(pool, tmp_path / "run", "number")
    with_fields(pool, tmp_path / "run", "source")
    fielded(pool, shards=2)
    run = with_fields(pool, tmp_path / "run", signals=("image_size",))
    assert run.to_pandas(["number", "source"])[["number", "source"]].to_numpy()[4].tolist() == ["1", "web1"]
    assert run.missing_shards == ()


def test_a_field_that_would_hide_a_score_is_refused(tmp_path: Path) -> None:
    pool = fielded(tmp_path / "pool", shards=1)
    with_fields(pool, tmp_path / "run")
    for name in ("words", "caption_length"):
        with pytest.raises(RunError, match=f"the field '{name}' cannot be added to .*: it would hide a score"):
            with_fields(pool, tmp_path / "run", name)
    with pytest.raises(RecipeError, match="the field 'shorter_side' cannot be added: image_size has a column of"):
        with_fields(pool, tmp_path / "run", "shorter_side", signals=("image_size",))


@contextmanager
def other_path(how: str, pool: Path, folder: Path) -> Iterator[str]:
    """Another path of a pool, by a link, a mount, ..., as one types it."""
    other = folder / "other"
    if how == "mount":
        other.mkdir()
        if subprocess.run(["mount", "--bind", pool, other], capture_output=True, check=False).returncode:
            pytest.skip("folders cannot be mounted here")
    elif how == "above":
        (folder / "linked").symlink_to(folder)
        other = folder / "linked" / "pool"
    elif how == "copy":
        shutil.copytree(pool, other, copy_function=shutil.copyfile)
    elif how == "links":
        other.mkdir()
        for path in pool.iterdir():
            (other / path.name).symlink_to(path)
    else:
        other.symlink_to("pool")
    try:
        yield f"{other}/*{max(path.suffix for path in pool.iterdir())}" if how == "glob" else str(other)
    finally:
        if how == "mount":
            subprocess.run(["umount", "-l", other], check=True)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        *((kind, how) for kind in ("tar", "table") for how in ("link", "mount", "above", "copy", "links", "glob")),
        *(("folder", how) for how in ("link", "mount", "above")),
    ],
)
def test_the_same_files_by_another_path_are_the_same_pool(
    kind: str, how: str, tamis: Tamis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = write_kind(tmp_path / "pool", kind, rows=2)
    tamis.ok("score", pool, *SIGNALS)
    before, urls = parts_of(tmp_path / "run"), Run("run").urls
    with other_path(how, pool, tmp_path) as other:
        for more in (("--signals", "image_size"), ("--grow",)):
            done = tamis.ok("score", other, *SIGNALS, *more)
            assert "the same files by another path" in caplog.text
            assert {name: parts_of(tmp_path / "run")[name] for name in before} == before
            assert (Run("run").urls, pool_of()) == (urls, [str(pool)])
        done = tamis("score", pool, other, "--run", "both", "--signals", "caption_length", "-q")
        if how in ("link", "above", "links"):
            assert (done.code, Run("both").shards) == (0, Run("run").shards)


def test_another_pool_of_the_same_sizes_is_another(tamis: Tamis, tmp_path: Path) -> None:
    one = write_pool(tmp_path / "one", shards=2, rows=2)
    shutil.copytree(one, tmp_path / "two")
    path = tmp_path / "two" / "00000.tar"
    content = path.read_bytes()
    path.write_bytes(content.replace(word := caption(0).encode(), word.swapcase()))
    tamis.ok("score", str(one), *SIGNALS)
    assert tamis("score", "two", *SIGNALS).code == 2
    tamis.ok("score", "two", *SIGNALS, "--grow")
    assert len(Run("run")) == 8
    write_pool(tmp_path / "one", shards=1, rows=3, first=2)  # of a pool by another path, new files are new
    (tmp_path / "linked").symlink_to("one")
    tamis.ok("score", "linked", *SIGNALS)
    assert len(Run("run")) == 11


def test_five_spellings_of_one_pool_are_one_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pool(tmp_path / "pool", shards=2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for spelling in ("pool", "./pool", str(tmp_path / "pool"), f"file://{tmp_path}/pool", "~/pool"):
        run = package.score(spelling, run="run", signals=["caption_length"], quiet=True)
        assert run.shards == ("00000", "00001")
    both = package.PoolSpec(path=("pool", "./pool"))
    assert len(package.score(both, run="run", signals=["caption_length"], quiet=True)) == 14


def test_a_run_finds_its_pool_from_any_folder_and_a_moved_pool_keeps_its_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pool(tmp_path / "pool", shards=1)
    monkeypatch.chdir(tmp_path)
    package.score("pool", run="run", signals=["caption_length"], quiet=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert package.export(package.select("../run", "no-filter"), "webdataset", "out") == 7
    (tmp_path / "pool").rename(tmp_path / "moved")
    run = package.score(tmp_path / "moved", run=tmp_path / "run", signals=["caption_length"], quiet=True)
    assert run.urls == {"00000": str(tmp_path / "moved" / "00000.tar")}


def test_files_that_changed_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "pool" / "0.tar"
    write_tar(path, [("a", pair(1)), ("b", pair(2))])

    def score(signal: str) -> package.Run:
        return package.score(tmp_path / "pool", run=tmp_path / "run", signals=[signal], quiet=True)

    score("caption_length")
    write_tar(path, [("a", pair(1)), ("b", pair(2) | {"txt": b"something else altogether"})])
    with caplog.at_level(logging.WARNING):
        score("caption_length")  # nothing to do, but the files are not those any more
    assert "1 shard of another size or time than when indexed; to read one again" in caplog.text
    assert "another caption in row 1" in score("text_area").failures["0"]
