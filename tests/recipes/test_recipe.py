"""Recipes: the shipped ones against the published rules, what a recipe means, and the ways to get one wrong."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from factories import write_run

import tamis
from tamis.commands import select as choosing
from tamis.core.errors import RecipeError, brief, unknown_message
from tamis.core.types import INDEX_NUMBERS, INDEX_WORDS
from tamis.exports import NpyExport, WebDatasetExport
from tamis.models.nucleus import Sampling
from tamis.recipes import recipe
from tamis.recipes.names import shipped_names
from tamis.recipes.steps import AllOf, AtLeast, Equals, NoneOf
from tamis.runs.expression import parse
from tamis.runs.table import MemoryTable
from tamis.signals import CaptionLength, ClipScore, TextArea
from tamis.signals.classes import class_names, load_nouns, synset_names

NAN = np.nan
RULE = {"at_least": {"score": "a", "value": 1}}


def one(step: Any) -> Any:
    """The one step of a recipe that has just that."""
    (made,) = recipe.load({"select": [step]}).steps
    return made


def refused(data: Any, settings: tuple[str, ...] = ()) -> str:
    """The message of what is wrong with a recipe."""
    with pytest.raises(RecipeError) as error:
        recipe.load(data, settings)
    assert len(str(error.value)) < 2000
    return str(error.value)


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_recipes_load_and_cite_their_source(name: str) -> None:
    loaded = recipe.load(name)
    assert loaded.name == name
    assert loaded.selects
    assert loaded.about
    assert "arXiv" in loaded.source
    emitted = {column.name for _, signal in loaded.entries for column in signal.columns}
    kept = {"image_embedding", "text_embedding"} if "embeddings" in loaded.keep else set()
    assert set(loaded.reads) <= emitted | {*INDEX_NUMBERS, *INDEX_WORDS} | kept
    choosing.check_reads(loaded)


#: Rows at and beside every boundary of DataComp's rules.
ROWS: list[dict[str, Any]] = [
    {"lang": "en", "words": 3, "chars": 6, "w": 200, "h": 200, "clip": 0.28},
    {"lang": "en", "words": 2, "chars": 6, "w": 200, "h": 200, "clip": 0.281},
    {"lang": "en", "words": 3, "chars": 5, "w": 200, "h": 200, "clip": 0.2799},
    {"lang": "en", "words": 3, "chars": 6, "w": 199, "h": 200, "clip": 0.28},
    {"lang": "en", "words": 3, "chars": 6, "w": 200, "h": 600, "clip": 0.28},
    {"lang": "en", "words": 3, "chars": 6, "w": 200, "h": 601, "clip": 0.9},
    {"lang": "en", "words": 9, "chars": 60, "w": 60_002, "h": 20_000, "clip": 0.3},  # aspect 3.0001
    {"lang": "en", "words": 9, "chars": 60, "w": 60_000, "h": 20_000, "clip": 0.1},
    {"lang": "de", "words": 9, "chars": 60, "w": 500, "h": 400, "clip": 0.5},
    {"lang": "", "words": 9, "chars": 60, "w": 500, "h": 400, "clip": 0.28},
    {"lang": None, "words": NAN, "chars": NAN, "w": 500, "h": 400, "clip": NAN},
    {"lang": "en", "words": 4, "chars": 20, "w": NAN, "h": NAN, "clip": NAN},
    {"lang": "en", "words": 4, "chars": 20, "w": 1, "h": 1, "clip": 0.25},
]


def world(folder: Path) -> tuple[tamis.Run, list[dict[str, Any]]]:
    rng = np.random.default_rng(11)
    rows = list(ROWS)
    for _ in range(120):
        words, chars, w, h = rng.integers((1, 3, 150, 150), (6, 10, 500, 700)).tolist()
        lang, clip = ["en", "en", "fr", "nb"][rng.integers(4)], float(np.float16(rng.normal(0.28, 0.03)))
        rows.append({"lang": lang, "words": words, "chars": chars, "w": w, "h": h, "clip": clip})
    sides = [(min(row["w"], row["h"]), max(row["w"], row["h"]) / min(row["w"], row["h"])) for row in rows]
    columns = {
        "top_language": [row["lang"] for row in rows],
        "words": [row["words"] for row in rows],
        "characters": [row["chars"] for row in rows],
        "shorter_side": [side for side, _ in sides],
        "aspect_ratio": [ratio for _, ratio in sides],
        "clip": [row["clip"] for row in rows],
    }
    return write_run(folder, columns, shards=4), rows


def datacomp_basic(row: Mapping[str, Any]) -> bool:
    """baselines/apply_filter.py: fasttext == en, words > 2, characters > 5, min side >= 200, aspect <= 3."""
    return (
        row["lang"] == "en"
        and row["words"] > 2
        and row["chars"] > 5
        and min(row["w"], row["h"]) >= 200
        and max(row["w"], row["h"]) / min(row["w"], row["h"]) <= 3.0
    )


def datacomp_laion(row: Mapping[str, Any]) -> bool:
    """baselines/apply_filter.py, laion2b: similarity >= 0.28 and English; scores are float32 there too."""
    return bool(np.float32(row["clip"]) >= np.float32(0.28)) and row["lang"] == "en"


@pytest.mark.parametrize(
    ("name", "rule", "first"),
    [("basic", datacomp_basic, [0, 4, 7]), ("laion", datacomp_laion, [0, 1, 3, 4, 5, 6])],
    ids=["basic", "laion"],
)
def test_a_shipped_rule_is_datacomps(tmp_path: Path, name: str, rule: Any, first: list[int]) -> None:
    run, rows = world(tmp_path / "run")
    kept = np.flatnonzero(tamis.select(run, name).keep).tolist()
    assert kept == [number for number, row in enumerate(rows) if rule(row)]
    assert [number for number in kept if number < len(ROWS)] == first


def test_no_filter_keeps_every_row_and_random_a_half(tmp_path: Path) -> None:
    run, rows = world(tmp_path / "run")
    assert tamis.select(run, "no-filter").keep.all()
    assert len(tamis.select(run, "random")) == (len(rows) + 1) // 2


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"selct": []}, "'selct' 'select'"),
    ({"select": [{"top_fractoin": {"score": "a", "fraction": 0.1}}]}, "'top_fractoin' 'top_fraction'"),
    ({"select": [{"top_fraction": {"score": "a", "fracton": 0.1}}]}, "'fracton' 'fraction'"),
    ({"select": [{"top_fraction": {"score": "a"}}]}, "'fraction' missing"),
    ({"select": [{"top_fraction": {"score": "a", "fraction": 0.1, "of": "all"}}]}, "of 'survivors' 'pool'"),
    ({"select": [{"at_least": {"score": "a", "value": "high"}}]}, "value number 'high'"),
    ({"select": [{"at_least": {"score": "a", "value": 1, "missing": "dorp"}}]}, "missing 'error' 'drop'"),
    ({"select": [{"at_least": {"score": "minmx(a)", "value": 1}}]}, "select[0] at_least 'minmx'"),
    ({"select": [{"at_least": {"score": 3, "value": 1}}]}, "score text 3"),
    ({"select": [{"at_least": {}, "at_most": {}}]}, "'at_least' 'at_most'"),
    ({"select": [{"at_least": [1, 2]}]}, "'at_least'"),
    ({"pool": 3}, "pool 3"),
    ({"select": [{"equals": {"score": "a+b", "value": "x"}}]}, "equals column"),
    ({"select": [{"equals": {"score": "a", "value": [1, "x"]}}]}, "value 'x'"),
    ({"select": [{"clipcov": {"n": 1, "terms": ["cov"], "alpha": 0.5}}]}, "select[0] clipcov 'label' alpha=0.5"),
    ({"select": ["clipcov"]}, "clipcov fraction n"),
    ({"select": "basic"}, "select list"),
    ({"select": [{"all_of": []}]}, "all_of"),
    ({"select": [{"any_of": ["basik"]}]}, "'basik' 'basic'"),
    ({"signals": ["claption_length"]}, "'claption_length' 'caption_length'"),
    ({"signals": ["clip"]}, "'model' missing"),
    ({"signals": [{"text_area": {"boxes": {"sied": 3}}}]}, "boxes 'sied' 'side'"),
    ({"signals": [{"text_area": {"boxes": {"side": "big"}}}]}, "boxes, side whole number 'big'"),
    ({"signals": [{"clip": {"model": "x", "label": "l-14"}}]}, "'l-14'"),
    ({"keep": ["embedings"]}, "'embedings' 'embeddings'"),
    ({"columns": ["a"]}, "columns"),
    ({"export": [{"webdataset": {"out": "x", "shard_siez": 3}}]}, "'shard_siez' 'shard_size'"),
    ({"export": [{"webdataset": {"shard_size": 3}}]}, "out: PATH"),
    ({"export": [{"npy": "x"}]}, "select: []"),
    ({"export": ["npy"]}, "export[0] npy:"),
    ({"pool": {"path": 3}}, "path 3"),
    ({"pool": {"path": "x", "format": "tar"}}, "format 'webdataset' 'tar'"),
    ({"pool": {"format": "table"}}, "pool 'path' missing"),
    ({"name": "../elsewhere"}, "'../elsewhere'"),
]


@pytest.mark.parametrize(("data", "names"), WRONG, ids=str)
def test_what_is_wrong_is_named_with_its_place(data: dict[str, Any], names: str) -> None:
    message = refused(data)
    assert [word for word in names.split() if word not in message] == [], message


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("select:\n- equals: {score: top_language, value: no}", "value false YAML"),
        ("select:\n- equals: {score: top_language, value: [en, no]}", "YAML"),
        ("select:\n- at_least: {score: a, value: yes}", "value true YAML"),
        ("select:\n- at_least: {score: a, value: 1, missing: no}", "missing false YAML"),
        ("select: []\nselect: []", "line 2: 'select'"),
        ("select:\n- at_least: {score: a, value: 1, value: 2}", "line 2: 'value'"),
        ("select: [", "YAML"),
        ("- basic", "list"),
        ("", "nothing"),
        ("a: !!python/object/apply:os.system [ls]", "YAML"),
        ("select: " + "[" * 50_000, "YAML"),
        ("select: []\nabout: &a {x: *a}", "line 2: aliases"),
        ("select: []\nabout: !!timestamp never", "timestamp"),
        ("select: []\nabout: !!int ''", "YAML"),
        ("select: []\nabout: \0", "#x0000"),
        ("select: []\nabout: #" + "x" * 3_000_000, "262,144"),
        ("select: []\nabout: \udcff", "UTF-8"),
    ],
    ids=lambda text: text[:60],
)
def test_traps_of_yaml_and_hostile_files_are_our_own_errors(tmp_path: Path, text: str, names: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    message = refused(path)
    assert [word for word in names.split() if word not in message] == [], message


@pytest.mark.parametrize("text", ["0", "-0.25", "+7", "1000", ".5", "5.", "010.5", "010", "1e-3", "1.5e+3", "1E3"])
def test_numbers_are_decimal(text: str) -> None:
    found = recipe.load({"select": [RULE]}, [f"select.at_least.value={text}"])
    assert found.steps[0].value == float(text)  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["1:30", "0x1F", "0b1", "2020-01-01", "9" * 10_000, "1" + ":59" * 20_000])
def test_what_yaml_reads_as_another_number_or_a_date_is_a_word(text: str) -> None:
    assert recipe.assignment(f"a={text}") == ("a", text)


def test_limits_may_be_infinite_and_stay_so_in_json() -> None:
    for text, value in ((".inf", float("inf")), ("-.INF", float("-inf"))):
        found = recipe.load({"select": [RULE]}, [f"select.at_least.value={text}"])
        stored = json.loads(json.dumps(found.text, allow_nan=False))
        assert found.steps[0].value == recipe.load(stored).steps[0].value == value  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["-" * 5000 + "a", "(" * 900 + "a" + ")" * 900, "+".join(["a"] * 300)])
def test_deep_expressions_end_in_our_own_error_and_what_is_just_deep_enough_is_evaluated(text: str) -> None:
    with pytest.raises(RecipeError):
        parse(text)
    for good in ("minmax(" + "+".join(["a"] * 95) + ")", "minmax(" + "-" * 94 + "a)", "rank(" * 6 + "a" + ")" * 6):
        values = parse(good).values(MemoryTable({"a": np.array([0.0, 0.5, 1.0])}))
        np.testing.assert_allclose(values, [0.0, 0.5, 1.0])


def test_messages_show_the_beginning_of_a_long_value() -> None:
    assert brief("abc") == "'abc'"
    assert len(brief("x" * 10**6)) < 250
    assert len(brief([["x" * 100] * 100] * 100)) < 40_000
    assert len(unknown_message("step", "x" * 10**6, ["a"])) < 300
    assert unknown_message("tag", "x", [f"t{n:04}" for n in range(5000)]).endswith("t0098, t0099, and 4,900 more")
    assert "'xxx" in refused({"select": [{"all_of": ["x" * 100_000]}]})


def test_a_file_of_secrets_that_a_recipe_names_is_not_quoted(tmp_path: Path) -> None:
    secret = b"hunter2-AKIA1234\n"
    for name, content, read in (
        ("lines", secret, synset_names),
        ("no-text", b"\xff" + secret, class_names),
        ("index.noun", secret, lambda path: load_nouns(str(Path(path).parent))),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(RecipeError) as error:
            read(str(tmp_path / name))
        assert "hunter2" not in str(error.value)


def test_a_missing_recipe_is_named_with_the_nearest(tmp_path: Path) -> None:
    assert "mine.yaml" in refused(tmp_path / "mine.yaml")
    assert "did you mean 'basic'" in refused("basik")
    for count in ("0k", "01k", "1m", "100", "100000M"):
        assert f"from 1k to 9999M, such as basic-100k, got '{count}'" in refused(f"basic-{count}")
    assert "unknown recipe" in refused(tmp_path)
    run = write_run(tmp_path / "run", {"clipp": [0.1, 0.2]}, shards=1)
    with pytest.raises(tamis.runs.run.RunError, match=r"'clip' \(did you mean 'clipp'\?\). To score it"):
        tamis.select(run, "clip-30")


def test_a_recipe_is_called_as_it_says_or_as_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("select: []")
    (tmp_path / "other.yaml").write_text("name: ours\nselect: []")
    (tmp_path / "blank.yaml").write_text("name:\nabout:\nselect: []")
    assert recipe.load(tmp_path / "mine.yaml").name == "mine"
    assert recipe.load(tmp_path / "other.yaml").name == "ours"
    assert (recipe.load(tmp_path / "blank.yaml").name, recipe.load(tmp_path / "blank.yaml").about) == ("blank", "")
    assert recipe.load({"select": []}).name == "recipe"


def test_a_whole_recipe_is_read() -> None:
    loaded = recipe.load(
        yaml.safe_load(
            """
            name: mine
            pool: {path: "pool/{00..03}.tar", caption: "json:long"}
            run: runs/mine
            signals:
              - caption_length
              - clip: {model: some/model, label: l14}
              - text_area: {boxes: {side: 640}}
            keep: [embeddings]
            columns: {alignment: l14.clip}
            select:
              - at_least: {score: alignment, value: 0.2, missing: drop}
              - equals: {score: top_language, value: [en, de]}
            export:
              - npy: subset.npy
              - webdataset: {out: kept, shard_size: 500}
            report: report.html
            """
        )
    )
    assert loaded.pool == tamis.PoolSpec(path="pool/{00..03}.tar", caption="json:long")
    assert recipe.load({"pool": ["a.tar", "b.tar"]}).pool == tamis.PoolSpec(path=("a.tar", "b.tar"))
    assert loaded.run == "runs/mine"
    assert [label for label, _ in loaded.signals] == ["", "l14", ""]
    assert [signal for _, signal in loaded.signals][:2] == [CaptionLength(), ClipScore(model="some/model")]
    area = loaded.signals[2][1]
    assert isinstance(area, TextArea)
    assert area.boxes.side == 640
    assert area.boxes.model == "ppocr"
    assert loaded.steps == (
        AtLeast(score="alignment", value=0.2, missing="drop"),
        Equals(score="top_language", value=("en", "de")),
    )
    webdataset = WebDatasetExport(shard_size=500)
    assert loaded.exports == ((NpyExport(), Path("subset.npy")), (webdataset, Path("kept")))
    assert (loaded.keep, loaded.report, loaded.reads) == (("embeddings",), "report.html", ["alignment", "top_language"])


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("en", "en"), (["en", "de"], ("en", "de")), (3, 3.0), ([1, 2.5], (1.0, 2.5)), ("3", "3"), (["1"], ("1",))],
)
def test_words_stay_words_and_numbers_numbers(value: Any, wanted: Any) -> None:
    found = one({"equals": {"score": "a", "value": value}}).value
    assert found == wanted
    assert type(found) is type(wanted)


def test_objects_are_recorded_as_the_settings_that_they_mean(tmp_path: Path) -> None:
    clip = ClipScore(model="openai/clip-vit-base-patch32")
    data = {
        "run": tmp_path / "run",
        "signals": [clip, {"sieve": {"captioner": "lab/captioner", "sampling": Sampling(captions=3)}}],
        "select": [{"top_fraction": {"score": "clip", "fraction": np.float32(0.5)}}],
    }
    text = recipe.load(data).text
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(text))
    assert text["run"] == str(tmp_path / "run")
    assert json.loads(json.dumps(text)) == text
    same, mine = recipe.load(tmp_path / "mine.yaml"), recipe.load(data)
    assert (same.signals, same.steps) == (mine.signals, mine.steps)


def test_columns_give_names_of_the_run_other_names(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"clip": [0.1, 0.4], "words": [9, 2]}, shards=2)
    rule = {
        "columns": {"mine": "clip", "given.words": "clip"},
        "select": [{"at_least": {"score": "mine", "value": 0.3}}],
    }
    assert tamis.select(run, rule).keep.tolist() == [False, True]
    assert tamis.select(run, rule).reads == ["clip"]
    rule = {"columns": {"words": "clip"}, "select": [{"at_least": {"score": "words + 0*given.words", "value": 0.3}}]}
    assert tamis.select(run, rule).keep.tolist() == [False, True]


@pytest.mark.parametrize(
    "setting",
    [
        "select.1.top_fraction.fraction=0.75",
        "select.top_fraction.fraction=75e-2",
        "select.top_fraction={score: clip, fraction: 0.75}",
        "select=[random_fraction: {fraction: 1}, top_fraction: {score: clip, fraction: 0.75}]",
    ],
)
def test_set_overrides_one_setting_and_the_later_one_wins(setting: str) -> None:
    for before in ((), ("select.top_fraction.fraction=0.1",)):
        assert recipe.load("clip-30", [*before, setting]).steps[1].fraction == 0.75  # type: ignore[attr-defined]
    assert recipe.load("clip-30").steps[1].fraction == 0.3  # type: ignore[attr-defined]


def test_set_reaches_signals_adds_keys_and_leaves_a_mapping_as_it_was() -> None:
    loaded = recipe.load(
        "clip-30",
        ["signals.clip.model=a/b", "run=runs/x", "columns.clip=l14.clip", "select.1.top_fraction.of=survivors"],
    )
    assert loaded.signals == (("", ClipScore(model="a/b")),)
    assert (loaded.run, loaded.columns) == ("runs/x", {"clip": "l14.clip"})
    assert loaded.text["select"][1]["top_fraction"]["of"] == "survivors"
    basic = recipe.load("basic", ["signals.image_size.of=stored"])
    assert [getattr(signal, "of", None) for _, signal in basic.signals] == [None, "stored", None]
    mine = {"select": [{"at_least": {"score": "a", "value": 1}}] * 2}
    assert "'at_least'" in refused(mine, ("select.at_least.value=3",))
    loaded = recipe.load(mine, ["select.1.at_least.value=3"])
    assert [step.value for step in loaded.steps] == [1.0, 3.0]  # type: ignore[attr-defined]
    assert mine == {"select": [RULE] * 2}


@pytest.mark.parametrize(
    ("setting", "names"),
    [
        ("select.top_fraction.fraction", "name=value 'select.top_fraction.fraction'"),
        ("=3", "name=value"),
        ("selct.x=3", "'selct' 'select'"),
        ("select.top_fraction.fracton=3", "'fracton'"),
        ("select.at_least.value=3", "'at_least'"),
        ("select.7.value=3", "'7'"),
        ("select.².value=3", "'²'"),
        ("select." + "9" * 400 + "=1", "no entry"),
        ("name.x=3", "'x' 'clip-30'"),
        ("a." * 4999 + "a=1", "'a'"),
        ("select.top_fraction.fraction=[", "YAML"),
        ("select.top_fraction.fraction={a: 1, a: 2}", "duplicate"),
        ("select.top_fraction.fraction=30", "30"),
    ],
    ids=lambda text: text[:50],
)
def test_wrong_overrides_are_errors(setting: str, names: str) -> None:
    message = refused("clip-30", (setting,))
    assert [word for word in names.split() if word not in message] == [], message


def test_groups_take_recipes_steps_and_lists_of_steps() -> None:
    group = one({"all_of": ["clip-30", RULE, [RULE, {"at_most": {"score": "b", "value": 2}}], {"none_of": ["basic"]}]})
    assert isinstance(group, AllOf)
    assert group.labels == ("clip-30", "", "", "")
    assert [len(part) for part in group.parts] == [2, 1, 2, 1]
    assert isinstance(group.parts[3][0], NoneOf)
    assert {"clip", "a", "b", "top_language"} <= group.reads


def test_the_papers_intersection_is_two_names(tmp_path: Path) -> None:
    run, rows = world(tmp_path / "run")
    both = tamis.select(run, {"select": [{"all_of": ["basic", "clip-50"]}]})
    wanted = tamis.select(run, "basic").keep & tamis.select(run, "clip-50").keep
    assert both.keep.tolist() == wanted.tolist()
    assert 0 < wanted.sum() < len(rows)
    (line,) = both.funnel
    assert set(line["dropped"]) == {"not in basic", "not in clip-50"}


@pytest.mark.parametrize("direct", [True, False])
def test_a_recipe_that_names_itself_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text(f"select:\n- all_of: [{'./a.yaml' if direct else 'b.yaml'}]\n")
    (tmp_path / "b.yaml").write_text(f"select:\n- none_of: [[any_of: [{tmp_path}/a.yaml]]]\n")
    with pytest.raises(RecipeError, match=r"the recipe '.*a\.yaml' names itself"):
        recipe.load("a.yaml")


def test_what_a_recipe_that_is_named_may_say(tmp_path: Path) -> None:
    """Names of its own for columns would be lost among those of the recipe that names it."""
    (tmp_path / "basic.yaml").write_text("select:\n- all_of: [basic, clip-30]\n")
    assert recipe.load(tmp_path / "basic.yaml").steps[0].labels == ("basic", "clip-30")  # type: ignore[attr-defined]
    inner = tmp_path / "inner.yaml"
    inner.write_text("name: my rule\nselect:\n- at_least: {score: a, value: 1}\n")
    assert one({"any_of": [str(inner)]}).labels == ("my rule",)
    inner.write_text("columns: {a: b}\nselect:\n- at_least: {score: a, value: 1}\n")
    assert "'columns'" in refused({"select": [{"all_of": [str(inner)]}]})
    inner.write_text("signals: [caption_length]\n")
    assert "'select'" in refused({"select": [{"all_of": [str(inner)]}]})
    with pytest.raises(RecipeError, match="'select'"):
        tamis.select(write_run(tmp_path / "run", {"a": [1.0]}, shards=1), inner)


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    loaded = recipe.load(
        {
            "run": "~/run",
            "report": "~/report.html",
            "select": [],
            "export": [{"npy": "~/x.npy"}, {"keys": {"out": "~/keys.txt"}}, {"keys": "a~b"}],
        }
    )
    assert (loaded.run, loaded.report) == ("/home/me/run", "/home/me/report.html")
    assert [str(out) for _, out in loaded.exports] == ["/home/me/x.npy", "/home/me/keys.txt", "a~b"]
