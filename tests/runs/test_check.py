"""What `tamis check` says of each file of a run, and what it never says to delete: a part as it was written."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from damage import answer, contents, delete, files_of, unreadable

import tamis
from tamis.core.errors import DamageError, RunError
from tamis.core.files import checked
from tamis.runs import check as module
from tamis.runs import manifest
from tamis.runs.check import Checked
from tamis.runs.manifest import write_shards


def kinds(found: Checked) -> list[tuple[str, str]]:
    return [(each.kind, each.path) for each in found.findings]


DESCRIPTIONS = ("scores/given-0000000000000000/signal.json", "captions/says-2222222222222222/feature.json")


@pytest.mark.parametrize(
    "name",
    [
        DESCRIPTIONS[0],
        "index/00001.parquet",
        "embeddings/image_embedding-1111111111111111/00001.npy",
        "captions/says-2222222222222222",
    ],
)
def test_what_may_not_be_read_is_reported_and_not_called_damaged(name: str, run: Path) -> None:
    before, right = contents(run), answer(run)
    tamis.check(run)  # so that all modules are imported
    with unreadable(run / name, run):
        found = tamis.check(run)
        with pytest.raises(RunError, match="Permission denied") as error:
            answer(run)
    assert (kinds(found), found.to_delete, found.exit_code) == ([("yours", name)], (), 1)
    assert "Permission denied" in found.findings[0].what
    assert (name in str(error.value), isinstance(error.value, DamageError)) == (True, False)
    assert (contents(run), answer(run)) == (before, right)


def test_parts_of_a_shard_with_a_damaged_index_are_looked_at_too(run: Path) -> None:
    """Else the command that makes the index again would stop at them."""
    names = ["index/00001.parquet", "embeddings/image_embedding-1111111111111111/00001.npy"]
    for name in names:
        (run / name).write_bytes(b"junk")
    assert {Path(path) for path in tamis.check(run).to_delete} == {run / name for name in names}


def test_the_files_next_to_the_parts_are_looked_at(run: Path) -> None:
    (run / "events.jsonl").write_text('{"event": "shard", "shard": "00000"}\n{"event": "sha')  # cut by a kill
    rows = pa.table({"row": [0]})
    checked.write_parquet(run / "unfinished/00001/abc-00000.parquet", rows, uids=None, row_group_size=9)
    assert tamis.check(run).exit_code == 0
    content = bytearray((run / "subsets/mine.parquet").read_bytes())
    content[20] ^= 1
    harmed = {
        "subsets/mine.parquet": ("yours", bytes(content)),
        "events.jsonl": ("yours", b'{"a":\n5\n'),
        "recipe.yaml": ("yours", b"a: ["),
        "scores/given-0000000000000000/junk.bin": ("yours", b"x"),
        "unfinished/99999/abc-00000.parquet": ("left over", b"junk"),
        "unfinished/00000/abc-00000.parquet": ("damaged", b"junk"),
    }
    for name, (_, data) in harmed.items():
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_bytes(data)
    found = tamis.check(run)
    assert sorted(kinds(found)) == sorted((kind, name) for name, (kind, _) in harmed.items())
    delete(found)
    assert f"tamis select {run} --recipe mine" in next(each.what for each in found.findings if "subsets" in each.path)
    yours = {name for name, (kind, _) in harmed.items() if kind == "yours"}
    assert {name for name in harmed if (run / name).exists()} == yours
    assert {name for _, name in kinds(tamis.check(run))} == yours


@pytest.mark.parametrize("how", ["lost", "cut"])
def test_whatever_is_harmed_is_found_and_no_whole_part_is_to_be_deleted(how: str, whole: Path, tmp_path: Path) -> None:
    for number, place in enumerate([*files_of(whole), whole / "run.json"]):
        if place.stem in ("00000", "00002"):
            continue  # one file of each kind is enough
        run = Path(shutil.copytree(whole, tmp_path / str(number)))
        path = run / place.relative_to(whole)
        path.unlink() if how == "lost" else os.truncate(path, path.stat().st_size // 2)
        before = contents(run)
        try:
            found = tamis.check(run)
            delete(found)
            codes = {found.exit_code, tamis.check(run).exit_code}
        except RunError:  # of run.json and the list of shards: nothing can be said
            codes = {2} if path.name in ("run.json", "shards.parquet") else {0}
        if path.suffix == ".json" and path.parent != run:
            lost = tamis.check(run)
            assert (kinds(lost), lost.command[:12]) == ([("missing", path.relative_to(run).as_posix())], "tamis score ")
        unknown = how == "lost" and path.parent.name == "subsets"  # no other file says that there was one
        assert codes == ({0} if unknown else {1}) or codes == {2}, (path.name, codes)
        after = contents(run)
        assert all(after.get(name) == content for name, content in before.items() if run / name != path), path.name


def test_a_damaged_derived_part_needs_another_derive(run: Path) -> None:
    signals = [{"vote": {"scores": ["x", "y"]}}]
    (path,) = tamis.derive(run, signals).scores["vote"].folder.glob("00001.parquet")
    path.write_bytes(path.read_bytes()[:-20])
    found = tamis.check(run)
    delete(found)
    assert (kinds(found), found.command) == ([("damaged", str(path.relative_to(run)))], "repeat `tamis derive`")
    assert "tamis score" not in "\n".join(module.lines(found))
    tamis.derive(run, signals)
    assert tamis.check(run).exit_code == 0
    path.unlink()
    (run / "index/00000.parquet").unlink()
    both = tamis.check(run).command
    assert (both.startswith("tamis score "), both.endswith("; then repeat `tamis derive`")) == (True, True)


def test_shards_that_the_run_lists_meanwhile_are_not_foreign(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = {run / name: (run / name).read_bytes() for name in ("run.json", "shards.parquet")}
    shorter = {
        name: url for name, url in manifest.shards_of(run, manifest.read_manifest(run)).items() if name != "00001"
    }
    facts = json.loads(listing[run / "run.json"]) | {"shards": write_shards(run, shorter)}
    (run / "run.json").write_text(json.dumps(checked.with_hash(facts)))
    assert "left over" in {kind for kind, _ in kinds(tamis.check(run))}
    real = module._leftovers

    def growing(work: Any) -> None:
        assert "00001" not in work.run.urls
        for path, content in listing.items():
            path.write_bytes(content)
        real(work)

    monkeypatch.setattr(module, "_leftovers", growing)
    assert tamis.check(run).findings == ()
