"""The signal hash_match: images on lists are found, dropped, and shown nowhere."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from factories import image_bytes, write_tar

import tamis
from tamis.core.errors import RecipeError
from tamis.recipes.derived.hash_match import HashMatch
from tamis.runs.table import MemoryTable


def test_an_image_on_a_list_is_dropped_and_shown_by_its_uid_alone(tmp_path: Path) -> None:
    (tmp_path / "pool").mkdir()
    files = [image_bytes(seed=seed) for seed in range(4)]
    for number, file in enumerate(files):
        (tmp_path / "pool" / f"{number}.jpg").write_bytes(file)
        (tmp_path / "pool" / f"{number}.txt").write_text(f"caption {number}")
    (tmp_path / "list.txt").write_text(f"# unlawful\n{hashlib.sha256(files[2]).hexdigest().upper()}  a name\n")
    run = tamis.score(tmp_path / "pool", run=tmp_path / "run", signals=["file_hash"])
    assert not run.hidden.any()
    recipe = {"signals": [{"hash_match": {"sha256": str(tmp_path / "list.txt")}}], "select": [{"hash_match": {}}]}
    run = tamis.derive(run, recipe["signals"])
    (row,) = np.flatnonzero(run.hidden)
    subset = tamis.select(run, recipe)
    assert subset.keep.tolist() == [n != row for n in range(4)]
    from tamis.reports.page_pairs import add_images, read_pairs
    from tamis.runs.stream import samples_of

    pairs = read_pairs(run, range(4), [], ["image_md5"])
    add_images(run, pairs)
    assert [pair.caption is None for pair in pairs.values()] == run.hidden.tolist()
    assert [not pair.thumbnail for pair in pairs.values()] == run.hidden.tolist()
    assert (pairs[row].key, pairs[row].words) == ("", {"image_md5": None})
    assert pairs[row].uid
    sample = list(samples_of(run, fields={"pixels", "caption", "key"}, errors="mark"))[row]
    assert (sample.pixels, sample.caption, sample.key) == (None, None, None)
    shown = tamis.show(subset, dropped=True)
    assert "caption 2" not in str(shown)
    assert "on a list of hashes" in str(shown)


def test_a_hidden_pair_is_found_by_no_search_and_counted_in_no_list(tmp_path: Path) -> None:
    from tamis.reports.explore.cached_run import CachedRun, View
    from tamis.reports.explore.queries import Explorer

    files = [image_bytes(seed=seed) for seed in range(4)]
    samples = [
        (f"key{n}", {"jpg": file, "txt": f"secret{n} words".encode(), "json": b"{}"}) for n, file in enumerate(files)
    ]
    write_tar(tmp_path / "pool.tar", samples)
    (tmp_path / "list.txt").write_text(hashlib.sha256(files[2]).hexdigest())
    run = tamis.score(tmp_path / "pool.tar", run=tmp_path / "run", signals=["file_hash", "image_hash"])
    run = tamis.derive(run, [{"hash_match": {"sha256": str(tmp_path / "list.txt")}}])
    (row,) = np.flatnonzero(run.hidden)
    explorer, every = Explorer(CachedRun(run.path), (), tamis.select), {"name": "every", "select": []}
    for column in ("caption", "key", "image_sha256", "image_md5", "image_hash"):
        secret = run[column][row]
        assert secret
        assert not explorer.word_counts(column, str(secret), every)["words"], column
        assert explorer.word_counts(column, "", every)["different"] == 3
        assert explorer.view(View(words=((column, str(secret)),)), every)[1] == 0
    assert explorer.view(View(captions=("secret2",)), every)[1] == 0
    assert explorer.view(View(captions=("secret",)), every)[1] == 3
    assert explorer.word_counts("status", "", every)["words"][0]["pool"] == 4
    choice = {
        "name": "hashes",
        "select": [{"equals": {"score": "image_sha256", "value": str(run["image_sha256"][row])}}],
    }
    assert explorer.choose(choice).keep.tolist() == tamis.select(run, choice).keep.tolist() == run.hidden.tolist()
    page = tamis.report(run, [tamis.select(run, every)], out=tmp_path / "report.html")
    assert "secret2" not in page.read_text() + page.with_suffix(".json").read_text()


def test_a_list_without_a_hash_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "list").write_text("# nothing yet\n")
    step, table = HashMatch(md5=str(tmp_path / "list")), MemoryTable({"image_md5": ["a" * 32]})
    assert step.compute(table, lambda _, make: make())["on_list"].tolist() == [0]
    assert "has no hashes" in caplog.text


def test_a_perceptual_hash_may_differ_by_some_bits(tmp_path: Path) -> None:
    (tmp_path / "list").write_text("00ff00ff00ff00ff\n", "utf-8-sig")
    (tmp_path / "md5").write_text("f" * 32)
    words = ["00ff00ff00ff00f0", "00ff00ff00ff0f0f", None, "00ff00ff00ff0f0f"]
    table = MemoryTable({"image_hash": words, "image_md5": ["a" * 32, "a" * 32, None, "F" * 32]}, block=3)
    found = HashMatch(phash=str(tmp_path / "list"), md5=str(tmp_path / "md5")).compute(table, lambda _, make: make())
    np.testing.assert_array_equal(found["on_list"], np.array([1, 0, np.nan, 1], np.float32))
    with pytest.raises(RecipeError, match=r"list, line 1: '00ff00ff00ff00ff' is not a hash of 32 hex digits"):
        HashMatch(md5=str(tmp_path / "list")).compute(table, lambda _, make: make())
