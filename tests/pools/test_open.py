"""Finding a pool: what a path means, and what is said when nothing is there."""

import gc
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
from factories import image_bytes, write_pool, write_tar

import tamis
from tamis.core.errors import PoolError
from tamis.core.files.find import expand_braces
from tamis.pools import PoolSpec, open_pool


@pytest.mark.parametrize(
    ("pattern", "first", "last", "count"),
    [
        ("a/{00000..00031}.tar", "a/00000.tar", "a/00031.tar", 32),
        ("a/{8..11}.tar", "a/8.tar", "a/11.tar", 4),
        ("a/{08..11}.tar", "a/08.tar", "a/11.tar", 4),
        ("{a,b}/{0..1}.tar", "a/0.tar", "b/1.tar", 4),
        ("a/0.tar", "a/0.tar", "a/0.tar", 1),
    ],
)
def test_brace_ranges_are_spelt_out_as_shells_do(pattern: str, first: str, last: str, count: int) -> None:
    found = expand_braces(pattern)
    assert (found[0], found[-1], len(found)) == (first, last, count)


@pytest.mark.parametrize(
    "pattern",
    ["a{0..999999}{0..999999}", "{" + ",".join("ab" * 1000) + "}{0..9999}", "{1.." + "9" * 5000 + "}", "{1..9999999}"],
)
def test_braces_that_name_too_many_files_are_an_error(pattern: str) -> None:
    with pytest.raises(PoolError, match=r"names? more than 3,000,000 files"):
        expand_braces(pattern)


@pytest.mark.parametrize(
    ("path", "reason", "settings"),
    [
        ("images", "it holds 1 image without captions. A pool is one of three: .*", {}),
        ("images", r"the folder holds no \*\.parquet$", {"format": "datacomp"}),
        ("*.tar", "nothing is there", {}),
        ("pool/{00000..00004}.tar", r"2 of the files that .* names are not there, the first: '.*00003\.tar'", {}),
        ("pool/{00007..00003}.tar", r"the range \{00007\.\.00003\} in .* runs backwards", {}),
        ("pool.zip", r"pool\.zip' is not a pool file\. A pool is one of three: tars .*; a table .*; a folder", {}),
        (("pool", "more.csv"), r"more\.csv' cannot be read together with the webdataset pool", {}),
        ((), "the pool has no path", {}),
        ("", "the pool has no path", {}),
        ("imagse", r"nothing is there \(did you mean 'images'\?\) \(files looked for", {}),
        ("run", "run' is a run folder: name the pool that it scored", {}),
        ("nosuch://bucket/*.tar", r"cannot open 'nosuch://bucket/\*\.tar': .*nosuch", {}),
    ],
)
def test_what_is_no_pool_says_why(
    path: str | tuple[str, ...], reason: str, settings: dict[str, Any], pool: Path, tmp_path: Path
) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(b"")
    (tmp_path / "pool.zip").write_bytes(b"PK")
    (tmp_path / "more.csv").write_text("image,caption\n")
    paths = (path,) if isinstance(path, str) else path
    full = tuple(one if "://" in one or not one else str(tmp_path / one) for one in paths)
    (tmp_path / "run").mkdir()
    for name in ("run.json", "shards.parquet", "events.jsonl"):
        (tmp_path / "run" / name).touch()
    with pytest.raises(PoolError, match=reason):
        open_pool(PoolSpec(path=full, **settings))
    both = open_pool(PoolSpec(path=(str(pool / "00001.tar"), str(pool))))
    assert [shard.name for shard in both.shards] == ["00000", "00001", "00002"]  # no file is read twice


ODD = "odd [1] {x} {0..2}"


@pytest.mark.parametrize("ending", ["", "/*.tar", "/{00000..00002}.tar", "/0000[02].tar", "/**/*.tar"])
def test_signs_of_a_real_folder_are_taken_literally_and_those_behind_it_not(tmp_path: Path, ending: str) -> None:
    write_pool(tmp_path / ODD)
    write_pool(tmp_path / "odd 1 x 0")  # what the signs would mean
    if not ending:
        (tmp_path / ODD / "00000.parquet").write_bytes(b"img2dataset writes one for each tar")
        (tmp_path / ODD / "_tmp.tar").write_bytes(b"hidden")
    shards = open_pool(f"{tmp_path / ODD}{ending}").shards
    assert {Path(shard.url).parent.name for shard in shards} == {ODD}
    numbers = (0, 2) if "[02]" in ending else range(3)
    assert [shard.name for shard in shards] == [f"0000{number}" for number in numbers]
    path = write_tar(tmp_path / "a[1].tar", [])
    assert [shard.url for shard in open_pool(path).shards] == [str(path)]


def test_names_given_in_a_run_stay_when_stems_meet_later(tmp_path: Path) -> None:
    one, two = write_pool(tmp_path / "one", shards=1), write_pool(tmp_path / "two", shards=1, rows=2)
    run = tamis.score(one, run=tmp_path / "run", signals=["caption_length"], quiet=True)
    assert run.shards == ("00000",)
    both = PoolSpec(path=(str(one), str(two)))
    grown = tamis.score(both, run=tmp_path / "run", signals=["caption_length"], grow=True, quiet=True)
    assert grown.shards[0] == "00000"
    assert grown.shards[1].startswith("00000-")
    assert grown.sizes == (7, 2)


def imagefolder(root: Path, *folders: str) -> None:
    """Writes an image and its metadata into each folder, as the Hub's imagefolders have them."""
    for seed, folder in enumerate(folders):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / f"{seed}.jpg").write_bytes(image_bytes(seed))
        (root / folder / "metadata.csv").write_text(f"file_name,text\n{seed}.jpg,caption {seed}\n")


@pytest.mark.parametrize("folders", [(".", "cats", "dogs/old"), ("cats", "dogs/old")])
def test_every_folder_of_an_imagefolder_may_have_its_metadata(folders: Sequence[str], tmp_path: Path) -> None:
    imagefolder(tmp_path, *folders)
    found = [sample for shard in open_pool(str(tmp_path)).shards for sample in shard.samples()]
    assert sorted((sample.caption, sample.status) for sample in found) == [
        (f"caption {seed}", "ok") for seed in range(len(folders))
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # datasets leaves the tables open
        theirs = datasets.load_dataset("imagefolder", data_dir=str(tmp_path), cache_dir=str(tmp_path / "cache"))
        gc.collect()
    assert sorted(theirs["train"]["text"]) == [f"caption {seed}" for seed in range(len(folders))]


def test_two_tables_of_one_name_say_what_to_type(tmp_path: Path) -> None:
    imagefolder(tmp_path, ".")
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "0.jpg", "text": "caption 0"}\n')
    with pytest.raises(PoolError, match=r"metadata\.csv and .*metadata\.jsonl\. If .* name one as the pool"):
        open_pool(str(tmp_path))
    assert len(open_pool(str(tmp_path / "metadata.csv")).shards) == 1
