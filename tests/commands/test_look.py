"""The first look: which rows it takes, what it says of them, what it proposes, what it leaves behind."""

import dataclasses
import html
import io
import json
import re
import tempfile
from pathlib import Path

import pytest
from command_line import Tamis
from factories import image_bytes, pair, write_metadata, write_pool, write_tar
from PIL import Image

import tamis as package
from tamis.commands.look import Look, Proposal, run_name, take_sample
from tamis.core.errors import PoolError, RunError
from tamis.pools import open_pool
from tamis.reports.page import environment


def test_it_takes_the_first_rows_of_shards_that_names_and_seed_choose(tmp_path: Path) -> None:
    pool = open_pool(str(write_pool(tmp_path / "pool", shards=9, rows=5)))
    some = take_sample(pool, pairs=6, shards=3)
    assert [len(list(shard.samples())) for shard in some.shards] == [2, 2, 2]
    whole = {shard.name: [one.key for one in shard.samples()] for shard in pool.shards}
    assert all([one.key for one in shard.samples()] == whole[shard.name][:2] for shard in some.shards)
    names = [shard.name for shard in some.shards]
    assert names == sorted(names) == [shard.name for shard in take_sample(pool, pairs=6, shards=3).shards]
    assert names != [shard.name for shard in take_sample(pool, pairs=6, shards=3, seed=1).shards]
    assert len(take_sample(pool, pairs=2, shards=20).shards) == 2
    with pytest.raises(ValueError, match="pairs must be at least 1"):
        take_sample(pool, pairs=0, shards=3)


def test_the_page_proposes_recipes_with_what_was_seen(tamis: Tamis, tmp_path: Path) -> None:
    pool = tmp_path / "a pool"
    pool.mkdir()
    large = image_bytes(3, (300, 240))
    samples = [(f"{n:03d}", {**pair(n), "jpg": image_bytes(n, (300, 240))}) for n in range(4)]
    samples += [
        ("004", {**pair(4), "jpg": large}),
        ("005", {**pair(5), "jpg": large}),
        ("006", {**pair(6), "jpg": b""}),
        ("007", {**pair(7), "txt": b" "}),
    ]
    write_tar(pool / "00000.tar", samples)
    done = tamis.ok("look", "a pool", "--quiet")
    assert "8 pairs, the first rows of 1 of 1 shards" in done.err
    assert "Of 8 pairs it drops 1 empty caption, 1 broken image" in done.out
    assert "2 images repeat another of the sample" in done.out
    page = html.unescape(Path("look.html").read_text(encoding="utf-8"))
    assert page.index("Recipes to try") < page.index(">Pool<")
    assert "tamis run 'a pool' --recipe basic" in re.sub("<[^<>]*>", "", page)
    said = json.loads(Path("look.json").read_text())["sections"]["look"]
    assert [one["recipe"] for one in said["proposals"]] == ["basic", "distinct", "clip-30", "tmars", "sieve", "icc"]
    (race,) = said["race"]
    arms = "clip-50,tmars,text_match,distinct"  # no caption is in another language; text was not looked for
    assert race == f"tamis choose 'a pool' --arms {arms} --shares .1,.2,.3,.5 --budget 4h"
    assert race in re.sub("<[^<>]*>", "", page)
    value, low, high = said["proposals"][1]["share"]
    assert low < value < high
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a pool", "look.html", "look.json"]


def test_a_recipe_that_drops_one_of_many_does_not_keep_all(tmp_path: Path) -> None:
    one = Proposal(recipe="basic", why="", share=(1_999 / 2_000, 0.997, 1.0), commands=("tamis run pool",))
    found = Look(page=tmp_path, pairs=2_000, shards=1, of=1, seconds=1.0, proposals=(one,), failures={})
    page = environment().get_template("look.html").render(facts=dataclasses.asdict(found))
    for said in (page, found._repr_html_()):
        assert ">99.9 %" in html.unescape(said)


def test_other_captions_of_an_image_are_not_called_repeated_images(tamis: Tamis, tmp_path: Path) -> None:
    write_tar(tmp_path / "pool" / "0.tar", [("0", pair(0) | {"txt": b"a dog\na cat\na fox"})])
    done = tamis("look", "pool", "--captions", "each", "--out", "look.html")
    assert "Keeps one caption of each image: it drops 2 pairs with the image of another." in done.out


def test_drawings_on_transparent_grounds_are_told_apart_and_counted(
    tamis: Tamis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As they are converted, all of them are black."""
    pool = tmp_path / "pool"
    pool.mkdir()

    def drawing(*boxes: tuple[int, int, int, int], size: int = 240) -> bytes:
        image = Image.new("RGBA", (240, 240), (0, 0, 0, 0))
        for box in boxes:
            image.paste((0, 0, 0, 255), box)
        out = io.BytesIO()
        image.resize((size, size)).save(out, "PNG")
        return out.getvalue()

    house, tree = [(60, 100, 180, 200), (100, 40, 140, 100)], [(110, 120, 130, 220), (60, 20, 180, 120)]
    files = [drawing(*house), drawing(*tree), drawing(*house), drawing(*house, size=120)]
    write_tar(pool / "00000.tar", [(str(n), {"txt": b"a drawing", "png": data}) for n, data in enumerate(files)])
    told = "4 images are a single colour once transparency is ignored, e.g. black line art"
    tamis.ok("look", "pool", "--quiet")
    assert f"{told}: to score them on white, make another run with --transparency white" in caplog.text
    page = html.unescape(Path("look.html").read_text())
    assert "4 images (100 %) are a single colour once transparency is ignored." in page
    assert "tamis score --transparency white shows it on white" in page
    done = tamis("score", "pool", "--run", "run", "--recipe", "distinct", "-q")
    assert told in done.err
    run = package.open_run("run")
    assert run.to_numpy("content_hidden").tolist() == [1, 1, 1, 1]
    assert sorted(package.select(run, "distinct").keep.tolist()) == [False, False, True, True]
    done = tamis("score", "pool", "--run", "white", "--transparency", "white", "--recipe", "distinct", "-q")
    assert "transparency, as" not in done.err
    assert package.open_run("white").to_numpy("content_hidden").tolist() == [0, 0, 0, 0]


def test_metadata_is_looked_at_without_pictures(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    write_metadata(tmp_path / "meta" / "aa.parquet")
    found = package.look(str(tmp_path / "meta"), out=tmp_path / "page.html", quiet=True)
    assert ([one.recipe for one in found.proposals], found.race) == ([], ())


def test_what_cannot_be_looked_at_leaves_no_page(tmp_path: Path) -> None:
    write_tar(tmp_path / "empty" / "00000.tar", [])
    for pool, error in (("typo", PoolError), ("empty", RunError)):
        with pytest.raises(error, match=pool):
            package.look(tmp_path / pool, out=tmp_path / "page.html", quiet=True)
    assert not (tmp_path / "page.html").exists()


def test_a_pool_of_broken_shards_has_a_page_that_lists_them_and_exit_code_1(tmp_path: Path, tamis: Tamis) -> None:
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "00000.tar").write_bytes(b"no tar at all")
    done = tamis("look", "pool", "--quiet")
    assert (done.code, "pool/00000.tar: this is not a tar file" in done.err) == (1, True), done.err
    assert "this is not a tar file" in Path("look.html").read_text(encoding="utf-8")
    write_pool(tmp_path / "more", shards=1, rows=3)
    (tmp_path / "more" / "00000.tar").rename(tmp_path / "pool" / "00001.tar")
    done = tamis("look", "pool", "--quiet", "--overwrite")
    assert (done.code, "next: tamis run pool --recipe basic" in done.err) == (1, True), done.err


def test_the_endings_of_images_are_named_with_commas(tmp_path: Path, tamis: Tamis) -> None:
    write_tar(
        tmp_path / "pool" / "0.tar",
        [(f"{n}", {"bmp": image_bytes(n), "pic": image_bytes(n + 1), "txt": b"a"}) for n in range(2)],
    )
    done = tamis("look", "pool", "--image-extensions", "pic,bmp", "--quiet")
    assert (done.code, "tamis run pool --image-extensions pic,bmp --recipe" in done.err) == (0, True), done.err
    tamis.ok("run", "pool", "--image-extensions", "pic,bmp", "--recipe", "basic", "-q", "--run", "run")
    assert package.open_run("run").facts["pool"]["image_extensions"] == ["pic", "bmp"]


def test_a_table_is_read_by_the_columns_that_are_named(tmp_path: Path, tamis: Tamis) -> None:
    """The error names `--image`: look must have it, and its commands must read the pool as it was looked at."""
    Path("t.csv").write_text("words,pic\na dog,x.jpg\na cat,y.jpg\n", encoding="utf-8")
    (tmp_path / "x.jpg").write_bytes(image_bytes(1))
    assert "--image" in tamis("look", "t.csv").err
    done = tamis.ok("look", "t.csv", "--caption", "words", "--image", "pic", "--max-pixels", "1000000", "--quiet")
    page = html.unescape(re.sub("<[^<>]*>", "", Path("look.html").read_text(encoding="utf-8")))
    assert "tamis run t.csv --caption words --image pic --max-pixels 1000000 --recipe" in page
    scoring = "tamis score t.csv --caption words --image pic --max-pixels 1000000 --recipe clip-50"
    assert f"{scoring}\ntamis choose runs/t.csv --arms clip-50," in page  # choose has no options of pools
    assert "1 missing image" in done.out


@pytest.mark.parametrize(
    "given", ["..", "/", "a/..", "{}..", "*", "a/{}", "pools/mine", "s3://bucket/mine/{a/0,b/1}.tar"]
)
def test_a_page_is_called_by_the_pools_folder_and_leads_to_no_other(given: str, tmp_path: Path) -> None:
    assert (tmp_path / run_name(given)).resolve().parent == tmp_path.resolve()
    assert (run_name(given) == "mine") == ("mine" in given)


def test_the_folder_above_may_be_the_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_pool(tmp_path / "pool", shards=1, rows=3)
    for folder in ("pool/inside", "temporary"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "pool" / "inside")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    found = package.look("..", out=tmp_path / "look.html", quiet=True)
    assert (found.pairs, found.shards, found.of) == (3, 1, 1)
    assert list((tmp_path / "temporary").iterdir()) == []


def test_captions_alone_are_a_pool_for_which_no_recipe_is_proposed(tamis: Tamis, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("caption\n" + "a red car\n" * 5)
    assert "its columns: caption." in tamis("look", "t.csv").err
    done = tamis("look", "t.csv", "--image", "none", "--quiet")
    assert (done.code, done.out) == (0, "")
    assert "no shipped recipe fits these pairs: `tamis list recipes` shows what each one needs" in done.err
