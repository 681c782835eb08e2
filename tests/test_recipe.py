"""Recipes: the shipped ones against the published rules, and every way to get one wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from factories import write_run

import tamis
from tamis import recipe
from tamis.errors import RecipeError
from tamis.selectors import AllOf, AtLeast, Equals, NoneOf, TopFraction
from tamis.signals import CaptionLength, ClipScore, TextArea
from tamis.store.run import INDEX_NUMBERS, INDEX_WORDS

NAN = np.nan


def one(step: Any) -> Any:
    """The one step of a recipe that has just that."""
    (made,) = recipe.load({"select": [step]}).steps
    return made


# ---- the shipped recipes


@pytest.mark.parametrize("name", recipe.shipped())
def test_shipped_recipes_load_and_cite_their_source(name: str) -> None:
    loaded = recipe.load(name)
    assert loaded.name == name
    assert loaded.selects
    assert loaded.about
    assert "arXiv" in loaded.source
    emitted = {column.name for _, signal in loaded.signals for column in signal.columns}
    kept = {"image_embedding", "text_embedding"} if "embeddings" in loaded.keep else set()
    assert set(loaded.reads) <= emitted | {*INDEX_NUMBERS, *INDEX_WORDS} | kept


def test_the_shipped_recipes_are_these() -> None:
    assert {"basic", "clip-30", "clip-50", "laion", "no-filter", "random"} <= set(recipe.shipped())


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
        rows.append(
            {
                "lang": ["en", "en", "fr", "nb"][rng.integers(4)],
                "words": int(rng.integers(1, 6)),
                "chars": int(rng.integers(3, 10)),
                "w": int(rng.integers(150, 500)),
                "h": int(rng.integers(150, 700)),
                "clip": float(np.float16(rng.normal(0.28, 0.03))),
            }
        )
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


def test_basic_is_datacomps_basic_rule(tmp_path: Path) -> None:
    run, rows = world(tmp_path / "run")
    kept = np.flatnonzero(tamis.select(run, "basic").keep).tolist()
    assert kept == [number for number, row in enumerate(rows) if datacomp_basic(row)]
    assert [number for number in kept if number < len(ROWS)] == [0, 4, 7]


def test_laion_is_laions_rule(tmp_path: Path) -> None:
    run, rows = world(tmp_path / "run")
    kept = np.flatnonzero(tamis.select(run, "laion").keep).tolist()
    assert kept == [number for number, row in enumerate(rows) if datacomp_laion(row)]
    assert [number for number in kept if number < len(ROWS)] == [0, 1, 3, 4, 5, 6]


@pytest.mark.parametrize(("name", "fraction"), [("clip-30", 0.3), ("clip-50", 0.5)])
def test_clip_keeps_the_rounded_share_of_the_pool_and_the_best_of_it(
    tmp_path: Path, name: str, fraction: float
) -> None:
    run, rows = world(tmp_path / "run")
    subset = tamis.select(run, name)
    assert len(subset) == int(fraction * len(rows) + 0.5)
    scores = np.array([row["clip"] for row in rows], np.float32)
    dropped = scores[~subset.keep]
    assert scores[subset.keep].min() >= np.nanmax(dropped)
    # DataComp keeps the tied rows too (`>=`): ours are a part of its.
    threshold = np.sort(scores[~np.isnan(scores)])[::-1][int(fraction * len(rows))]
    assert set(np.flatnonzero(subset.keep)) <= set(np.flatnonzero(scores >= threshold)) | set(
        np.flatnonzero(scores == scores[subset.keep].min())
    )


def test_no_filter_keeps_every_row_and_random_a_half(tmp_path: Path) -> None:
    run, rows = world(tmp_path / "run")
    assert tamis.select(run, "no-filter").keep.all()
    assert len(tamis.select(run, "random")) == (len(rows) + 1) // 2
    third = tamis.select(run, "random", settings=["select.random_fraction.fraction=0.25"])
    assert len(third) == int(0.25 * len(rows) + 0.5)


def test_a_recipe_needs_the_columns_that_it_reads(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"clipp": [0.1, 0.2]}, shards=1)
    with pytest.raises(tamis.store.run.RunError, match=r"unknown score column 'clip'.*did you mean 'clipp'"):
        tamis.select(run, "clip-30")


# ---- errors name the nearest


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"selct": []}, "unknown key 'selct' .did you mean 'select'."),
        (
            {"select": [{"top_fractoin": {"score": "a", "fraction": 0.1}}]},
            "unknown step 'top_fractoin' .*'top_fraction'",
        ),
        ({"select": [{"top_fraction": {"score": "a", "fracton": 0.1}}]}, "unknown setting 'fracton' .*'fraction'"),
        ({"select": [{"top_fraction": {"score": "a"}}]}, "the setting 'fraction' is missing"),
        ({"select": [{"at_least": {"score": "a", "value": "high"}}]}, r"value: .*valid number.*got 'high'"),
        ({"select": [{"at_least": {"score": 3, "value": 1}}]}, "score: .*valid string, got 3"),
        ({"select": [{"at_least": {"score": "a", "value": None}}]}, "value: .*valid number, got None"),
        (
            {"select": [{"at_least": {"score": "minmx(a)", "value": 1}}]},
            "select.0., at_least: unknown function 'minmx'",
        ),
        ({"select": [{"at_least": {"score": "a", "value": 1, "missing": "dorp"}}]}, "missing: .*'error' or 'drop'"),
        ({"select": [{"top_fraction": {"score": "a", "fraction": 30}}]}, "between 0 and 1, got 30"),
        ({"select": [{"top_fraction": {"score": "a", "fraction": 1.0000001}}]}, "got 1.0000001"),
        ({"name": "red, unable to/x"}, "the name 'red, unable to/x' is not a valid file name"),
        ({"select": [{"top_fraction": {"score": "a", "fraction": 0.1, "of": "all"}}]}, "of: .*'survivors' or 'pool'"),
        ({"select": [{"top_n": {"score": "a", "n": 2.5}}]}, r"n: .*integer.*got 2\.5"),
        ({"select": [{"between": {"score": "a", "low": 2, "high": 1}}]}, "between needs low <= high"),
        ({"select": [{"equals": {"score": "a+b", "value": "x"}}]}, "equals looks at one column"),
        ({"select": [{"equals": {"score": "a", "value": []}}]}, "equals needs at least one value"),
        ({"select": [{"equals": {"score": "a", "value": {}}}]}, r"value: expected str \| float \|.*, got \{\}"),
        ({"select": [{"equals": {"score": "a", "value": [1, "x"]}}]}, r"value: expected .*, got \[1, 'x'\]"),
        ({"pool": {"path": 3}}, r"path: expected str \| tuple.*, got 3"),
        ({"pool": {"path": "x", "max_pixels": "many"}}, "max_pixels: .*integer.*got 'many'"),
        ({"select": [{"at_least": {"score": "a", "value": NAN}}]}, "at_least needs a number, got nan"),
        ({"select": [{"at_least": [1, 2]}]}, "the settings of 'at_least' must be 'key: value' pairs"),
        (
            {"select": [{"at_least": {}, "at_most": {}}]},
            r"expected one step with its settings, got 2 names \('at_least', 'at_most'\)$",
        ),
        ({"select": {"at_least": {}}}, "select: expected a list .lines that begin with '- '."),
        ({"select": "basic"}, "select: expected a list"),
        ({"select": [3]}, r"select\[0\]: expected one step with its settings, got 3"),
        ({"select": [{"all_of": []}]}, "all_of needs at least one recipe or step"),
        ({"select": [{"all_of": "basic"}]}, "all_of: expected a list|expected a list"),
        ({"select": [{"any_of": ["basik"]}]}, "unknown recipe 'basik' .did you mean 'basic'."),
        ({"select": [{"none_of": [{"at_last": {"score": "a", "value": 1}}]}]}, "unknown step 'at_last' .*'at_least'"),
        ({"signals": ["claption_length"]}, "unknown signal 'claption_length' .did you mean 'caption_length'."),
        (
            {"signals": [{"clip": {"modle": "x"}}]},
            "unknown setting 'modle' .did you mean 'model'..; known: model, label",
        ),
        ({"signals": ["clip"]}, "the setting 'model' is missing"),
        ({"signals": [{"clip": {"model": 3}}]}, "model: .*valid string, got 3"),
        ({"signals": [{"image_size": {"of": "web"}}]}, "of: .*'original' or 'stored', got 'web'"),
        ({"signals": [{"text_area": {"boxes": {"sied": 3}}}]}, "boxes: unknown setting 'sied' .did you mean 'side'."),
        ({"signals": [{"text_area": {"boxes": {"side": "big"}}}]}, r"boxes\.side: .*integer.*got 'big'"),
        ({"signals": [{"text_area": {"boxes": 3}}]}, "boxes: .*got 3"),
        ({"signals": [{"clip": {"model": "x", "label": "l-14"}}]}, "the label 'l-14' must be a word of letters"),
        ({"signals": [{"clip": {"model": "x", "lable": "l14"}}]}, "unknown setting 'lable' .did you mean 'label'."),
        ({"signals": "clip"}, "signals: expected a list"),
        ({"signals": [["clip"]]}, "expected a signal's name, a mapping or a signal"),
        ({"keep": ["embedings"]}, "unknown thing to keep 'embedings' .did you mean 'embeddings'."),
        ({"keep": "embeddings"}, "keep: expected a list"),
        ({"columns": ["a"]}, "columns: expected 'name: column' lines"),
        ({"export": [{"nyp": "x"}]}, "unknown export format 'nyp' .did you mean 'npy'."),
        ({"export": [{"webdataset": {"out": "x", "shard_siez": 3}}]}, "unknown setting 'shard_siez' .*'shard_size'"),
        ({"export": [{"webdataset": {"out": "x", "shard_size": 0}}]}, "shard_size must be at least 1, got 0"),
        ({"export": [{"webdataset": {"shard_size": 3}}]}, "expected a path, or settings with 'out: PATH'"),
        ({"export": [{"npy": "x"}]}, "says what to export and not what to keep: add 'select: \\[\\]' for every pair"),
        ({"export": ["npy"]}, "expected one format with its path, such as 'npy: subset.npy'"),
        ({"pool": 3}, "pool: expected a path or settings, got 3"),
        ({"pool": {"path": "x", "captoin": "txt"}}, "pool: unknown setting 'captoin' .did you mean 'caption'."),
        ({"pool": {"format": "table"}}, "pool: the setting 'path' is missing"),
        ({"pool": {"path": "x", "format": "tar"}}, "format: .*'webdataset'.*got 'tar'"),
        ({"name": "../elsewhere"}, "the name '../elsewhere' is not a valid file name"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named_with_its_place(data: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=f"(?s){message}"):
        recipe.load(data)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("select:\n- equals: {score: top_language, value: no}", "value: got false; YAML reads yes, no, on and off so"),
        ("select:\n- equals: {score: top_language, value: [en, no]}", "YAML reads yes, no, on and off so"),
        ("select:\n- at_least: {score: a, value: yes}", "value: got true; YAML reads"),
        ("select:\n- at_least: {score: a, value: 1, missing: no}", "missing: got false; YAML reads"),
        ("select:\n- top_n: {score: a, n: on}", "n: got true; YAML reads"),
        ("select: []\nselect: []", "line 2: duplicate key 'select'"),
        ("select:\n- at_least: {score: a, value: 1, value: 2}", "line 2: duplicate key 'value'"),
        ("select: [", "is not valid YAML"),
        ("? [a]\n: b", "is not valid YAML"),
        ("- basic", "holds a list, expected keys such as signals and select"),
        ("", "holds a NoneType, expected keys"),
        ("just words", "holds a str, expected keys"),
        ("a: !!python/object/apply:os.system [ls]", "is not valid YAML"),
        ("select: " + "[" * 3000, "is not valid YAML"),
    ],
)
def test_yaml_traps_are_errors(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=message):
        recipe.load(path)


def test_a_date_is_the_words_it_was_written_as(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("about: 2024-02-03\nsource: 2024-13-45\nselect: []\n")
    loaded = recipe.load(path)
    assert (loaded.about, loaded.source) == ("2024-02-03", "2024-13-45")
    run = write_run(tmp_path / "run", {"a": [1.0]}, shards=1)
    tamis.select(run, path).save(tmp_path / "subset.parquet")  # the recipe goes into it as JSON
    assert tamis.Subset.load(tmp_path / "subset.parquet", run).recipe["about"] == "2024-02-03"


# ---- finding recipes


def test_a_missing_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"there is no recipe file '.*mine\.yaml'"):
        recipe.load(tmp_path / "mine.yaml")
    with pytest.raises(RecipeError, match=r"unknown recipe 'basik' .did you mean 'basic'..; .*ends in \.yaml"):
        recipe.load("basik")
    with pytest.raises(RecipeError, match="unknown recipe"):
        recipe.load(tmp_path)


def test_a_file_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00select")
    with pytest.raises(RecipeError, match="cannot be read"):
        recipe.load(path)


def test_a_recipe_is_called_as_it_says_or_as_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("select: []")
    (tmp_path / "other.yaml").write_text("name: ours\nselect: []")
    (tmp_path / "blank.yaml").write_text("name:\nabout:\nselect: []")
    assert recipe.load(tmp_path / "mine.yaml").name == "mine"
    assert recipe.load(tmp_path / "other.yaml").name == "ours"
    assert (recipe.load(tmp_path / "blank.yaml").name, recipe.load(tmp_path / "blank.yaml").about) == ("blank", "")
    assert recipe.load({"select": []}).name == "recipe"


# ---- what a recipe means


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
    assert loaded.exports == (("npy", {"out": "subset.npy"}), ("webdataset", {"out": "kept", "shard_size": 500}))
    assert (loaded.keep, loaded.report, loaded.reads) == (("embeddings",), "report.html", ["alignment", "top_language"])


def test_several_pool_paths_are_a_list() -> None:
    assert recipe.load({"pool": ["a.tar", "b.tar"]}).pool == tamis.PoolSpec(path=("a.tar", "b.tar"))


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("en", "en"), (["en", "de"], ("en", "de")), (3, 3.0), ([1, 2.5], (1.0, 2.5)), ("3", "3"), (["1"], ("1",))],
)
def test_words_stay_words_and_numbers_numbers(value: Any, wanted: Any) -> None:
    found = one({"equals": {"score": "a", "value": value}}).value
    assert found == wanted
    assert type(found) is type(wanted)


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


# ---- overrides


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ("select.1.top_fraction.fraction=0.3", 0.3),
        ("select.top_fraction.fraction=0.3", 0.3),
        ("select.top_fraction.fraction=3e-1", 0.3),
        ("select.top_fraction={score: clip, fraction: 0.75}", 0.75),
        ("select=[random_fraction: {fraction: 1}, top_fraction: {score: clip, fraction: 1}]", 1.0),
    ],
)
def test_set_overrides_one_setting(setting: str, wanted: float) -> None:
    _, step = recipe.load("clip-30", [setting]).steps
    assert isinstance(step, TopFraction)
    assert step.fraction == wanted


def test_set_reaches_signals_and_adds_keys() -> None:
    loaded = recipe.load(
        "clip-30",
        ["signals.clip.model=a/b", "run=runs/x", "columns.clip=l14.clip", "select.1.top_fraction.of=survivors"],
    )
    assert loaded.signals == (("", ClipScore(model="a/b")),)
    assert loaded.run == "runs/x"
    assert loaded.columns == {"clip": "l14.clip"}
    assert loaded.text["select"][1:] == [
        {"top_fraction": {"score": "clip", "fraction": 0.3, "of": "survivors", "missing": "drop"}}
    ]
    basic = recipe.load("basic", ["signals.image_size.of=stored"])
    assert [getattr(signal, "of", None) for _, signal in basic.signals] == [None, "stored", None]


def test_later_overrides_win_and_the_shipped_recipe_stays_as_it_is() -> None:
    settings = ["select.top_fraction.fraction=0.1", "select.top_fraction.fraction=0.2"]
    assert recipe.load("clip-30", settings).steps[1].fraction == 0.2  # type: ignore[attr-defined]
    assert recipe.load("clip-30").steps[1].fraction == 0.3  # type: ignore[attr-defined]
    mine = {"select": [{"top_n": {"score": "a", "n": 1}}]}
    recipe.load(mine, ["select.top_n.n=5"])
    recipe.load(mine, ["select.0.top_n.n=5"])
    assert mine == {"select": [{"top_n": {"score": "a", "n": 1}}]}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("select.top_fraction.fraction", "--set takes name=value, got 'select.top_fraction.fraction'"),
        ("=3", "--set takes name=value"),
        ("selct.x=3", "unknown key 'selct' .did you mean 'select'."),
        ("select.top_fraction.fracton=3", "unknown setting 'fracton'"),
        ("select.at_least.value=3", "no entry is called 'at_least'"),
        ("select.7.value=3", "no entry is called '7'"),
        ("select.².value=3", "no entry is called '²'"),
        ("name.x=3", "'x' is below 'clip-30', which holds nothing"),
        ("select.top_fraction.fraction=[", "the value is not YAML"),
        ("select.top_fraction.fraction={a: 1, a: 2}", "duplicate key"),
        ("select.top_fraction.fraction=30", "between 0 and 1"),
    ],
)
def test_wrong_overrides_are_errors(setting: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        recipe.load("clip-30", [setting])


def test_two_steps_of_one_name_are_told_apart_by_number() -> None:
    with pytest.raises(RecipeError, match="2 entries are called 'at_least': use a number"):
        recipe.load({"select": [{"at_least": {"score": "a", "value": 1}}] * 2}, ["select.at_least.value=3"])
    loaded = recipe.load({"select": [{"at_least": {"score": "a", "value": 1}}] * 2}, ["select.1.at_least.value=3"])
    assert [step.value for step in loaded.steps] == [1.0, 3.0]  # type: ignore[attr-defined]


# ---- recipes that name recipes


def test_groups_take_recipes_steps_and_lists_of_steps() -> None:
    rule = {"at_least": {"score": "a", "value": 1}}
    group = one({"all_of": ["clip-30", rule, [rule, {"at_most": {"score": "b", "value": 2}}], {"none_of": ["basic"]}]})
    assert isinstance(group, AllOf)
    assert group.labels == ("clip-30", "", "", "")
    assert [len(part) for part in group.parts] == [2, 1, 2, 1]
    assert isinstance(group.parts[3][0], NoneOf)
    assert {"clip", "a", "b", "top_language"} <= group.reads


def test_a_named_file_is_called_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text("name: my rule\nselect:\n- at_least: {score: a, value: 1}\n")
    group = one({"any_of": [str(tmp_path / "inner.yaml")]})
    assert group.labels == ("my rule",)


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


def test_a_file_may_have_the_name_of_the_recipe_that_it_builds_on(tmp_path: Path) -> None:
    (tmp_path / "basic.yaml").write_text("select:\n- all_of: [basic, clip-30]\n")
    assert recipe.load(tmp_path / "basic.yaml").steps[0].labels == ("basic", "clip-30")  # type: ignore[attr-defined]


def test_a_named_recipe_must_say_what_to_keep(tmp_path: Path) -> None:
    (tmp_path / "scores.yaml").write_text("signals: [caption_length]\n")
    with pytest.raises(RecipeError, match="has no 'select'"):
        one({"all_of": [str(tmp_path / "scores.yaml")]})


def test_a_named_recipe_cannot_rename_columns(tmp_path: Path) -> None:
    """Its names would be lost among those of the recipe that names it."""
    (tmp_path / "inner.yaml").write_text("columns: {a: b}\nselect:\n- at_least: {score: a, value: 1}\n")
    with pytest.raises(RecipeError, match="has 'columns'; give them in the recipe that names it"):
        one({"all_of": [str(tmp_path / "inner.yaml")]})


def test_a_recipe_without_select_chooses_nothing_and_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"a": [1.0]}, shards=1)
    with pytest.raises(RecipeError, match="has no 'select'"):
        tamis.select(run, {"signals": ["caption_length"]})


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
    assert [settings["out"] for _, settings in loaded.exports] == ["/home/me/x.npy", "/home/me/keys.txt", "a~b"]


# ---- recipes of the papers, on scores made by hand


def drawn(folder: Path, names: str, rows: int = 4000) -> tuple[tamis.Run, dict[str, np.ndarray[Any, Any]]]:
    rng = np.random.default_rng(4)
    columns = {name: rng.normal(0.3, 0.1, rows).astype(np.float32) for name in names.split()}
    return write_run(folder, {name: list(map(float, values)) for name, values in columns.items()}), columns


@pytest.mark.parametrize(("threshold", "least"), [(0.55, 0.003), (0.7, 0.003), (0.55, 0.01), (9.0, 0.01)])
def test_cits_threshold_keeps_at_least_its_smallest_share(tmp_path: Path, threshold: float, least: float) -> None:
    """As in facebookresearch/CiT: above the threshold, or where that is a smaller share, the nearest."""
    run, columns = drawn(tmp_path / "run", "class_similarity")
    score = columns["class_similarity"]
    changes = [f"select.any_of.0.at_least.value={threshold}", f"select.any_of.1.top_fraction.fraction={least}"]
    kept = tamis.select(run, recipe.load("cit-threshold", changes)).keep
    above = score >= np.float32(threshold)
    expected = above if above.mean() >= least else score >= np.sort(score)[-round(least * len(score))]
    np.testing.assert_array_equal(kept, expected)
    assert 0 < kept.sum() < 100
    above_all, nearest = recipe.load("cit-threshold").text["select"][1]["any_of"]
    assert (above_all[0]["at_least"]["value"], nearest[0]["top_fraction"]["fraction"]) == (0.55, 0.003)  # YFCC15M's


@pytest.mark.parametrize("name", ["icc-100k", "icc-200k", "icc-500k"])
def test_the_most_concrete_captions_are_chosen_on_top_of_clip(tmp_path: Path, name: str) -> None:
    run, columns = drawn(tmp_path / "run", "clip icc")
    loaded = recipe.load(name)
    assert loaded.steps[-1].n == int(name[4:-1]) * 1000  # type: ignore[attr-defined]
    kept = tamis.select(run, recipe.load(name, ["select.top_n.n=50"])).keep
    better = columns["clip"] >= np.sort(columns["clip"])[-1200]
    expected = better & (columns["icc"] >= np.sort(columns["icc"][better])[-50])
    np.testing.assert_array_equal(kept, expected)


@pytest.mark.parametrize(("name", "share"), [("clip-30∩text_match", 0.3), ("clip∩text_match", 0.5)])
def test_text_match_goes_with_thirty_percent_and_with_fifty(tmp_path: Path, name: str, share: float) -> None:
    run, columns = drawn(tmp_path / "run", "clip text_match")
    kept = tamis.select(run, recipe.load(name)).keep
    # Drawn around 0.3, no image spells five letters of its caption.
    np.testing.assert_array_equal(kept, columns["clip"] >= np.sort(columns["clip"])[-round(share * len(kept))])


def test_sieve_with_clip_meets_imagenet() -> None:
    loaded = recipe.load("sieve+clip∩imagenet", ["select.all_of.1.image_based.reference=elsewhere"])
    fused, near = loaded.steps[1].parts  # type: ignore[attr-defined]
    assert fused == recipe.load("sieve+clip").steps
    assert near[-1].reference == "elsewhere"
    assert loaded.keep == ("embeddings",) or list(loaded.keep) == ["embeddings"]
