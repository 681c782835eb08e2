"""Hostile recipes end in our own error, soon; and no message quotes a file that a recipe names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tamis import recipe
from tamis.errors import RecipeError, brief, unknown
from tamis.models.class_names import class_names, load_nouns, synset_names
from tamis.selectors.expression import parse
from tamis.store.table import Table

SECRET = "hunter2-AKIA1234"


def refused(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError) as error:
        recipe.load(path)
    assert len(str(error.value)) < 2000
    return str(error.value)


def aliases(place: str) -> str:
    """Nine aliases of nine of nine ...: 9^9 values in half a page."""
    lines = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]" for n in range(9)]
    return "\n".join(["select: []", f"{place}:", *("  " + line for line in lines)])


def test_aliases_are_refused_before_anything_is_made_of_them(tmp_path: Path) -> None:
    assert "line 4: aliases (*name) are not supported" in refused(tmp_path, aliases("about"))
    assert "aliases (*name) are not supported" in refused(tmp_path, "select: []\nabout: &a {x: *a}\n")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("!!timestamp never", "could not determine a constructor for the tag 'tag:yaml.org,2002:timestamp'"),
        ("!!bool perhaps", r"a value is not what its tag says \(KeyError\)"),
        ("!!int ''", r"a value is not what its tag says \(IndexError\)"),
        ("!!binary é", "could not determine a constructor"),
        ("!!map [a]", "a value is not what its tag says|expected a mapping"),
        ("\0", "unacceptable character #x0000"),
        ("[" * 50_000, "it is nested too deeply"),
    ],
)
@pytest.mark.timeout(120)
def test_values_that_are_not_what_they_say_end_in_our_own_error(value: str, message: str, tmp_path: Path) -> None:
    found = refused(tmp_path, f"select: []\nabout: {value}\n")
    assert re.search(message, found), found
    if "\0" not in value and len(value) < 1000:
        with pytest.raises(RecipeError):
            recipe.assignment(f"a={value}")


def at_least(value: str) -> recipe.Recipe:
    return recipe.load({"select": [{"at_least": {"score": "clip", "value": 1}}]}, [f"select.at_least.value={value}"])


@pytest.mark.parametrize("text", ["0", "-0.25", "+7", "1000", ".5", "5.", "010.5", "007", "1e-3", "1.5e+3", "1E3"])
def test_numbers_are_decimal(text: str) -> None:
    assert at_least(text).steps[0].value == float(text)  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["1:30", "-1:30.5", "0x1F", "0b1", "2020-01-01", "9" * 10_000, "1" + ":59" * 20_000])
@pytest.mark.timeout(120)
def test_what_yaml_reads_as_another_number_is_a_word(text: str) -> None:
    assert recipe.assignment(f"a={text}") == ("a", text)


def test_limits_may_be_infinite_and_stay_so_in_json() -> None:
    for text, value in ((".inf", float("inf")), ("-.INF", float("-inf"))):
        found = at_least(text)
        stored = json.loads(json.dumps(found.text, allow_nan=False))
        assert found.steps[0].value == recipe.load(stored).steps[0].value == value  # type: ignore[attr-defined]


def test_a_recipe_of_megabytes_is_not_read(tmp_path: Path) -> None:
    assert "has more than 262,144 bytes" in refused(tmp_path, "select: []\nabout: #" + "x" * 3_000_000)


def test_set_does_not_go_down_for_ever() -> None:
    with pytest.raises(RecipeError, match="unknown key 'a'"):
        recipe.load({"select": []}, ["a." * 4999 + "a=1"])
    with pytest.raises(RecipeError, match="no entry is called"):
        recipe.load({"select": ["a"]}, ["select." + "9" * 5000 + "=1"])


def test_a_name_that_is_too_long_for_a_file_is_an_unknown_recipe() -> None:
    with pytest.raises(RecipeError, match="unknown recipe 'xxx"):
        recipe.load({"select": [{"all_of": ["x" * 100_000]}]})


def test_messages_show_the_beginning_of_a_long_value() -> None:
    assert brief("abc") == "'abc'"
    assert len(brief("x" * 10**6)) < 250
    assert len(brief([["x" * 100] * 100] * 100)) < 40_000
    assert brief(10**5000) == "a int"
    assert len(unknown("step", "x" * 10**6, ["a"])) < 300


@pytest.mark.parametrize(
    "text",
    [
        "-" * 5000 + "a",
        "-" * 1990 + "a",
        "(" * 900 + "a" + ")" * 900,
        "+".join(["a"] * 300),
        "rank(" * 90 + "a" + ")" * 90,
    ],
)
@pytest.mark.timeout(120)
def test_deep_expressions_end_in_our_own_error(text: str) -> None:
    with pytest.raises(RecipeError, match=r"characters, at most|nested|in one another") as error:
        parse(text)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize(
    "text", ["minmax(" + "+".join(["a"] * 95) + ")", "minmax(" + "-" * 94 + "a)", "rank(" * 6 + "a" + ")" * 6]
)
def test_what_is_just_deep_enough_is_evaluated(text: str) -> None:
    values = parse(text).values(Table.of({"a": np.array([0.0, 0.5, 1.0])}))
    np.testing.assert_allclose(values, [0.0, 0.5, 1.0])


def test_a_file_of_secrets_is_not_quoted_as_a_list_of_classes(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_text(f"{SECRET}\n")
    with pytest.raises(RecipeError, match=r"line 1 of .* begins with none of WordNet's ids") as error:
        synset_names(str(path))
    assert SECRET not in str(error.value)
    path.write_bytes(b"\xff" + SECRET.encode())
    with pytest.raises(RecipeError, match=r"is no text in UTF-8") as error:
        class_names(str(path))
    assert SECRET not in str(error.value)


def test_a_list_of_one_class_is_not_quoted(tmp_path: Path) -> None:
    from tamis.data import Device
    from tamis.signals.zero_shot_class import ZeroShotClass

    path = tmp_path / "secrets"
    path.write_text(f"{SECRET}\n")
    with pytest.raises(RecipeError, match="has one class, expected two or more") as error:
        ZeroShotClass(model="lab/clip", classes_from=str(path)).side_files(Device())
    assert SECRET not in str(error.value)


def test_a_file_of_secrets_is_not_quoted_as_wordnets(tmp_path: Path) -> None:
    (tmp_path / "index.noun").write_text(f"{SECRET}\n")
    with pytest.raises(RecipeError, match=r"no index\.noun") as error:
        load_nouns(str(tmp_path))
    assert SECRET not in str(error.value)
