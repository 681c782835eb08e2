"""Several captions of one image: lists in tables, lines of a `.txt`, lists in a json."""

import csv
import io
import json
import re
import signal
import tarfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import webdataset
import yaml
from command_line import Tamis
from factories import image_bytes, index_rows, pair, parts_of, score, write_metadata, write_pool, write_tar
from PIL import Image
from processes import command, die_at_file

import tamis as package
from tamis.core.errors import PoolError, RecipeError, RunError
from tamis.core.ids import SUBSET_DTYPE, content_uid, fingerprint, format_uid, parse_uid
from tamis.engines import shard as reading
from tamis.pools import PoolSpec, open_pool
from tamis.pools.source import MOST_CAPTIONS
from tamis.runs import Run
from tamis.runs.stream import samples_of
from tamis.signals import ClipScore, image_quality
from tamis.signals.features import embeddings

DOGS, CATS = ["a dog", "two dogs on a beach", "dogs"], ["猫 \u0642\u0637\u0629 two", "a cat"]
LISTS: list[list[str | None]] = [[*DOGS], [None, CATS[0], " ", CATS[1], ""], [], [None]]


def tar_of_lines(folder: Path, mode: str = "w") -> None:
    texts = ["\n".join(one or "" for one in some).encode() for some in LISTS]
    ending = "tar" if mode == "w" else "tar.gz"
    files = [{"jpg": image_bytes(seed), "txt": text.replace(b"\n", b"\r\n")} for seed, text in enumerate(texts)]
    write_tar(folder / f"0.{ending}", [(str(seed), one) for seed, one in enumerate(files)], mode)


def tar_of_json(folder: Path) -> None:
    files = [{"jpg": image_bytes(n), "json": json.dumps({"captions": some}).encode()} for n, some in enumerate(LISTS)]
    write_tar(folder / "0.tar", [(str(seed), one) for seed, one in enumerate(files)])


def parquet(folder: Path) -> None:  # COCO's and Flickr's on the Hub
    images = [{"bytes": image_bytes(seed), "path": f"{seed}.jpg"} for seed in range(4)]
    pq.write_table(pa.table({"image": images, "captions": LISTS, "key": list("0123")}), folder / "0.parquet")


def lance_dataset(folder: Path) -> None:
    import lance

    cells = [image_bytes(seed) for seed in range(4)]
    lance.write_dataset(pa.table({"image": cells, "captions": LISTS, "key": list("0123")}), folder / "0.lance")


def images(folder: Path) -> list[str]:
    for seed in range(4):
        (folder / f"{seed}.jpg").write_bytes(image_bytes(seed))
    return [f"{seed}.jpg" for seed in range(4)]


def jsonl(folder: Path) -> None:
    rows = [
        {"image": name, "sentences": some, "key": name[0]} for name, some in zip(images(folder), LISTS, strict=True)
    ]
    (folder / "0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def flickr_csv(folder: Path) -> None:  # its captions are JSON
    with (folder / "0.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["raw", "filename", "key"])
        rows.writerows([json.dumps(some), name, name[0]] for name, some in zip(images(folder), LISTS, strict=True))


FORMS: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "lines": (tar_of_lines, {}),
    "compressed": (partial(tar_of_lines, mode="w:gz"), {}),
    "json": (tar_of_json, {"caption": "json:captions"}),
    "parquet": (parquet, {}),
    "lance": (lance_dataset, {}),
    "jsonl": (jsonl, {}),
    "csv": (flickr_csv, {"caption": "raw"}),
}


def pool_of(folder: Path, form: str, **settings: Any) -> PoolSpec:
    write, own = FORMS[form]
    (folder / "pool").mkdir(exist_ok=True)
    write(folder / "pool")
    return PoolSpec(path=str(folder / "pool"), **own, **settings)


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_same_rows_and_every_reader_the_rows_own_caption(form: str, tmp_path: Path) -> None:
    chosen = {"first": [DOGS[0], CATS[0]], "longest": [DOGS[1], CATS[0]], "each": [*DOGS, *CATS]}
    spec = pool_of(tmp_path, form)
    for how, texts in chosen.items():
        run = score(replace(spec, captions=how), tmp_path / how, "caption_length", "image_size")
        rows = index_rows(run)
        assert [row["caption"] for row in rows if row["caption_judged"]] == texts
        assert [row["status"] for row in rows][:-2] == ["ok"] * len(texts)
        assert {row["status"] for row in rows[-2:]} <= {"caption_missing", "caption_empty"}
        keys = ["0-0", "0-1", "0-2", "1-0", "1-1", "2-0", "3-0"] if how == "each" else list("0123")
        assert [row["key"] for row in rows] == keys
        seeds = [0, 0, 0, 1, 1] if how == "each" else [0, 1]
        wanted = [content_uid(image_bytes(seed), text.encode()) for seed, text in zip(seeds, texts, strict=True)]
        assert [(row["uid_hi"], row["uid_lo"]) for row in rows][: len(texts)] == wanted
        order = [len(texts) - 1, 0, len(texts) - 1, *range(len(texts))]
        for fields in (("caption", "image"), ("caption", "image", "files")):
            found = list(samples_of(run, order=order, fields=fields))
            assert [one.caption for one in found] == [texts[row] for row in order]
            assert [one.image for one in found] == [image_bytes(seeds[row]) for row in order]
        assert [one.files["txt"].decode() for one in found if one.files] == [texts[row] for row in order]


def test_without_the_setting_a_list_gives_its_first_and_lines_are_one_caption(tmp_path: Path) -> None:
    lines = score(pool_of(tmp_path, "lines"), tmp_path / "lines", "caption_length")
    whole = "\r\n".join(DOGS)
    assert next(row["caption"] for row in index_rows(lines)) == whole
    facts = json.loads((tmp_path / "lines" / "run.json").read_text())
    names = ("kind", "caption", "image", "image_extensions", "fields", "max_pixels", "max_bytes", "transparency")
    pool = {name: facts["pool"][name] for name in names}
    assert facts["pool_fingerprint"] == fingerprint({"pool": pool, "shards": lines.urls})  # as before the setting
    assert "captions" not in facts["pool"]
    with pytest.raises(RunError, match=r"made with another pool setting \(captions: nothing then, 'first' now\)"):
        score(PoolSpec(path=str(tmp_path / "pool"), captions="first"), tmp_path / "lines", "caption_length")
    (tmp_path / "tables").mkdir()
    table = open_pool(pool_of(tmp_path / "tables", "parquet")).shards[0]
    assert [sample.caption for sample in table.samples()] == [DOGS[0], None, None, None]


def read_back(folder: Path) -> list[dict[str, Any]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        urls = sorted(map(str, folder.glob("*.tar")))
        return list(webdataset.WebDataset(urls, shardshuffle=False))


def test_from_score_to_exports_and_back_with_uids_of_the_pool(tamis: Tamis, tmp_path: Path) -> None:
    """The best caption of each image, as trainers read it; the exported tars are a pool of the same uids."""
    files = [pair(seed) | {"txt": "\n".join(some).encode()} for seed, some in enumerate((DOGS, CATS, ["a dog"]))]
    write_tar(tmp_path / "pool" / "0.tar", [(str(seed), one) for seed, one in enumerate(files)])
    tamis.ok("score", "pool", "--run", "run", "--captions", "each", "--signals", "caption_length", "-q")
    run = Run("run")
    assert "--captions each" in run.score_command()
    own = [json.loads(one["json"])["uid"] for one in files]
    assert list(run["sample_uid"]) == [own[0]] * 3 + [own[1]] * 2 + [own[2]]
    texts = [*DOGS, *CATS, "a dog"]
    uids = [
        format_uid(*content_uid(given.encode(), text.encode()))
        for given, text in zip(run["sample_uid"], texts, strict=True)
    ]
    assert run.to_arrow()["uid"].to_pylist() == uids
    recipe = {"select": [{"top_n": {"score": "characters", "n": 1, "per": "image_xxh3", "missing": "drop"}}]}
    Path("best.yaml").write_text(yaml.safe_dump(recipe))
    tamis.ok("select", "run", "--recipe", "best.yaml", "--out", "best.parquet")
    for kind, out in (("webdataset", "tars"), ("parquet", "best-scores.parquet"), ("npy", "best.npy")):
        assert tamis("export", "run", "best.parquet", out, "--to", kind).code == 0, kind
    kept = [1, 3, 5]
    back = read_back(tmp_path / "tars")
    assert [one["__key__"] for one in back] == ["0-1", "1-0", "2-0"]
    assert [one["txt"].decode() for one in back] == [texts[row] for row in kept]
    assert [one["jpg"] for one in back] == [one["jpg"] for one in files]
    assert pq.read_table("best-scores.parquet")["uid"].to_pylist() == [uids[row] for row in kept]
    halves = sorted(parse_uid(uids[row]) or (0, 0) for row in kept)
    assert np.load("best.npy").tolist() == np.array(halves, SUBSET_DTYPE).tolist()
    again = score(tmp_path / "tars", tmp_path / "again", "caption_length", workers=1)
    assert again.to_arrow()["uid"].to_pylist() == [uids[row] for row in kept]


def test_a_table_that_gives_uids_is_exported_with_the_rows_own(tmp_path: Path) -> None:
    uids = [f"{seed:032x}" for seed in range(4)]
    images = [{"bytes": image_bytes(seed), "path": None} for seed in range(4)]
    pq.write_table(pa.table({"image": images, "captions": LISTS, "uid": uids}), tmp_path / "p.parquet")
    run = score(PoolSpec(path=str(tmp_path / "p.parquet"), captions="each"), tmp_path / "run", "caption_length")
    assert list(run["sample_uid"]) == [uids[seed] for seed in (0, 0, 0, 1, 1, 2, 3)]
    assert package.export(package.select(run, {"select": []}), "webdataset", tmp_path / "out") == 7
    again = score(tmp_path / "out", tmp_path / "again", "caption_length")
    assert again.to_arrow()["uid"].to_pylist() == run.to_arrow()["uid"].to_pylist()
    given = [json.loads(one["json"])["sample_uid"] for one in read_back(tmp_path / "out")]
    assert given == list(run["sample_uid"])


def test_changed_lines_are_noticed_and_others_are_not(tmp_path: Path) -> None:
    spec = pool_of(tmp_path, "lines", captions="each")
    run = score(spec, tmp_path / "run", "caption_length")
    path = tmp_path / "pool" / "0.tar"
    path.write_bytes(path.read_bytes().replace(b"a dog\r\n", b"a fox\r\n"))
    found = list(samples_of(run, order=[0, 1, 3], errors="mark"))
    assert "its caption is 'a fox', was 'a dog'" in str(found[0].problem)
    assert [one.problem for one in found[1:]] == [None, None]
    with pytest.raises(RunError, match="has changed since it was scored"):
        package.export(package.select(run, {"select": []}), "webdataset", tmp_path / "out")


@pytest.mark.parametrize("form", ["lines", "parquet"])
def test_a_killed_run_goes_on_and_a_grown_pool_adds_its_rows(form: str, tmp_path: Path) -> None:
    spec = pool_of(tmp_path, form, captions="each")
    assert len(score(spec, tmp_path / "whole", "caption_length", "image_size")) == 7
    arguments = ["score", str(spec.path), "--captions", "each", "--signals", "caption_length,image_size", "-q"]
    killed = command(*arguments, "--run", tmp_path / "run", before=partial(die_at_file, 3))
    assert killed.returncode == -signal.SIGKILL
    assert command(*arguments, "--run", tmp_path / "run").returncode == 0
    assert parts_of(tmp_path / "run") == parts_of(tmp_path / "whole")
    (first,) = (tmp_path / "pool").glob("0.*")
    first.with_name(first.name.replace("0", "1", 1)).write_bytes(first.read_bytes())
    grown = score(spec, tmp_path / "whole", "caption_length", "image_size", "language")  # of old rows from the index
    assert grown.sizes == (7, 7)
    hashes = score(spec, tmp_path / "whole", "image_hash")  # reads the files again
    assert hashes["image_hash"][0] == hashes["image_hash"][9] is not None


def test_a_thousand_captions_of_an_image_and_one_more_and_the_same_twice(tmp_path: Path) -> None:
    """Beyond the limit an image is one row with a reason; a repeated caption is two rows of one uid."""
    texts = [f"caption {number}" for number in range(MOST_CAPTIONS)]
    rows = [texts, [*texts, "one more"], ["a dog", "a cat", "a dog"]]
    data = [{"bytes": image_bytes(seed), "path": None} for seed in range(3)]
    pq.write_table(pa.table({"image": data, "caption": rows}), tmp_path / "p.parquet")
    spec = PoolSpec(path=str(tmp_path / "p.parquet"), captions="each")
    run = score(spec, tmp_path / "run", "caption_length")
    found = index_rows(run)
    assert len(found) == MOST_CAPTIONS + 1 + 3
    assert len({row["key"] for row in found}) == len(found)
    assert found[MOST_CAPTIONS]["reason"].endswith("holds more captions than the limit of 1,000")
    uids = run.to_arrow()["uid"].to_pylist()
    assert (uids[-3] == uids[-1], len(set(uids))) == (True, len(uids) - 1)
    back = list(samples_of(run, fields=("caption", "files")))
    assert [one.caption for one in back] == [*texts, None, *rows[2]]
    assert package.select(
        run, {"select": [{"top_n": {"score": "words", "n": 1, "per": "image_xxh3", "missing": "drop"}}]}
    )
    assert package.export(package.select(run, {"select": []}), "webdataset", tmp_path / "out") == len(found)
    with tarfile.open(tmp_path / "out" / "00000.tar") as tar:
        assert len(set(tar.getnames())) == 3 * len(found) - 1  # no caption, no txt


def test_a_table_of_a_row_per_caption_is_the_same_pool_as_one_of_lists(tmp_path: Path) -> None:
    """The same uids, and the same step finds the best caption of each image."""
    lists = score(pool_of(tmp_path, "jsonl", captions="each"), tmp_path / "lists", "caption_length")
    texts = [(seed, text) for seed, some in enumerate((DOGS, CATS)) for text in some]
    lines = [json.dumps({"image": f"{seed}.jpg", "caption": text}) for seed, text in texts]
    (tmp_path / "pool" / "flat.jsonl").write_text("\n".join(lines))
    flat = score(tmp_path / "pool" / "flat.jsonl", tmp_path / "flat", "caption_length")
    step = {"top_n": {"score": "characters", "n": 1, "per": "image_xxh3", "missing": "drop"}}
    kept = [package.select(run, {"select": [step]}) for run in (lists, flat)]
    assert [run.to_arrow()["uid"].to_pylist()[:5] for run in (lists, flat)] == 2 * [flat.to_arrow()["uid"].to_pylist()]
    assert [subset.rows().tolist() for subset in kept] == [[1, 3], [1, 3]]


def test_what_is_no_text_in_a_list_is_a_row_with_a_reason(tmp_path: Path) -> None:
    lines = [
        {"caption": ["dogs"]},
        {"caption": ["a dog", 7]},
        {"caption": [7, "a cat"]},
        {"caption": [{"from": "human"}] * 3},
        {"caption": 7},
    ]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def rows(how: str) -> list[tuple[str | None, str | None]]:
        spec = PoolSpec(path=str(tmp_path / "p.jsonl"), image="none", captions=how)
        return [(sample.caption, sample.no_caption) for sample in open_pool(spec).shards[0].samples()]

    number, thing = ((None, f"the column 'caption' holds {what}, expected text") for what in ("a number", "an object"))
    assert rows("each") == [("dogs", None), ("a dog", None), number, number, ("a cat", None), thing, number]
    assert rows("first") == [("dogs", None), ("a dog", None), ("a cat", None), thing, number]
    mixed = json.dumps({"captions": ["a dog", 7, ["a cat"], {"en": "a fox"}, "a \ud800"]}).encode()
    write_tar(tmp_path / "pool" / "0.tar", [("0", {"jpg": image_bytes(0), "json": mixed})])
    spec = PoolSpec(path=str(tmp_path / "pool"), caption="json:captions", captions="each")
    run = score(spec, tmp_path / "run", "caption_length")
    assert [row["status"] for row in index_rows(run)] == ["ok", *["caption_missing"] * 3, "caption_not_utf8"]
    read_again = list(samples_of(run, order=[4, 3, 2, 1, 0], fields=("caption", "files")))  # none has changed
    assert [one.caption for one in read_again] == [*[None] * 4, "a dog"]


def test_an_image_is_decoded_once_and_each_of_its_captions_is_told_that_it_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []
    fill = reading.fill_pixels
    monkeypatch.setattr(reading, "fill_pixels", lambda sample, **how: (keys.append(sample.key), fill(sample, **how)))
    broken = image_bytes(5)[:300]
    files = [{"jpg": image, "txt": b"a\nb\nc"} for image in (image_bytes(1), broken, image_bytes(2))]
    write_tar(tmp_path / "pool" / "0.tar", [(str(number), one) for number, one in enumerate(files)])
    spec = PoolSpec(path=str(tmp_path / "pool"), captions="each")
    for size in (2, 64):
        keys.clear()
        run = score(spec, tmp_path / f"run{size}", "image_hash", "image_size", batch_size=size)
        assert sorted(keys) == ["0-0", "1-0", "1-1", "1-2", "2-0"]
        rows = index_rows(run)
        assert [row["status"] for row in rows] == ["ok"] * 3 + ["image_broken"] * 3 + ["ok"] * 3
        assert [row["width"] for row in rows] == [48] * 3 + [None] * 3 + [48] * 3
        hashes = list(run["image_hash"])
        assert hashes[0] == hashes[1] == hashes[2] != hashes[6] == hashes[7] == hashes[8]


def test_the_captions_of_a_large_image_share_a_batch_its_pixels_and_its_transparency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []
    quality = image_quality.quality
    monkeypatch.setattr(image_quality, "quality", lambda image: (measured.append(1), quality(image))[1])
    monkeypatch.setattr(reading, "_BATCH_BYTES", 4 * 48 * 32 * 3)  # about three images
    sheet, data = Image.new("RGBA", (48, 32), (0, 0, 0, 51)), io.BytesIO()  # a fifth opaque
    sheet.save(data, "PNG")
    images = [image_bytes(0), image_bytes(1), data.getvalue()]
    samples = [(str(number), {"jpg": image, "txt": b"a\nb\nc\nd\ne"}) for number, image in enumerate(images)]
    write_tar(tmp_path / "pool" / "0.tar", samples)
    run = score(PoolSpec(path=str(tmp_path / "pool"), captions="each"), tmp_path / "run", "image_quality", workers=1)
    assert len(measured) == 3
    assert [len(set(run["sharpness"][first : first + 5])) for first in (0, 5, 10)] == [1, 1, 1]
    np.testing.assert_allclose(run["transparent"], [0] * 10 + [0.8] * 5, atol=1e-6)
    assert not np.signbit(run["entropy"]).any()


def test_the_captions_of_an_image_cost_one_image_and_score_as_pairs_of_their_own(
    tmp_path: Path, clip_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[tuple[int, int]] = []
    of_present = embeddings.of_present

    def counting(items: Any, compute: Any, *rest: Any) -> Any:
        return of_present(items, lambda own: (counted.append((len(items), len(own))), compute(own))[1], *rest)

    monkeypatch.setattr(embeddings, "of_present", counting)
    each = score(pool_of(tmp_path, "lines", captions="each"), tmp_path / "each", ClipScore(model=clip_model))
    assert counted == [(7, 4), (7, 5)]  # images, captions
    pairs = [(seed, text) for seed, some in enumerate((DOGS, CATS)) for text in some]
    files = [{"jpg": image_bytes(seed), "txt": text.encode()} for seed, text in pairs]
    write_tar(tmp_path / "flat" / "0.tar", [(str(number), one) for number, one in enumerate(files)])
    flat = score(tmp_path / "flat", tmp_path / "run", ClipScore(model=clip_model))
    np.testing.assert_allclose(each["clip"][:5], flat["clip"], atol=1e-5)


REFUSED: Sequence[tuple[dict[str, Any], str]] = [
    ({"captions": "best"}, r"captions: each.*'- top_n: \{score: clip, n: 1, per: image_xxh3, missing: drop\}'"),
    ({"captions": "longst"}, "'longst'.*longest"),
    ({"captions": "all"}, "each, first, longest"),
    ({"captions": ["first"]}, "captions"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_words_that_are_none_are_refused_and_best_shows_its_step(
    settings: dict[str, Any], message: str, tamis: Tamis, tmp_path: Path
) -> None:
    write_pool(tmp_path / "pool", shards=1, rows=2)
    recipe = {"pool": {"path": "pool", **settings}, "signals": ["caption_length"], "run": "run"}
    Path("r.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(RecipeError, match=message):
        package.plan(recipe=recipe)
    commands = [["check", "r.yaml"]]
    if isinstance(word := settings["captions"], str):
        commands.append(["score", "pool", "--run", "run", "--captions", word, "--signals", "caption_length"])
    for words in commands:
        done = tamis(*words)
        assert done.code == 2
        assert re.search(message, done.err)
    assert not Path("run").exists()


def test_metadata_and_conversations_are_refused(tmp_path: Path) -> None:
    write_metadata(tmp_path / "datacomp" / "0.parquet")
    with pytest.raises(PoolError, match="DataComp's metadata, with one caption for each image"):
        open_pool(PoolSpec(path=str(tmp_path / "datacomp"), captions="each"))
    turns = [[{"user": "what is it?", "assistant": "a dog"}]]
    for name in ("texts", "conversations"):
        pq.write_table(pa.table({"image": ["0.jpg"], name: turns}), tmp_path / f"{name}.parquet")
        for caption, message in ((None, "no column that looks like the caption"), (name, "columns of text")):
            with pytest.raises(PoolError, match=message):
                open_pool(PoolSpec(path=str(tmp_path / f"{name}.parquet"), captions="each", caption=caption))
