"""The derived signal `entries`: matching, entries from the pool, and from the command line."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Tamis
from factories import pair, write_tar

from tamis.core.errors import RecipeError
from tamis.recipes.derived import Entries
from tamis.runs import Run
from tamis.runs.subset import Subset
from tamis.runs.table import MemoryTable

pytest.importorskip("ahocorasick")


def make(name: str, made: Any) -> Any:
    """Keeps nothing."""
    return made()


def matched(captions: list[str | None], entries: str, folder: Path, **table: int) -> list[str | None]:
    path = folder / "entries.txt"
    path.write_text(entries, encoding="utf-8")
    found = Entries(entries_from=str(path)).compute(MemoryTable({"caption": captions}, **table), make)
    words: list[str | None] = found["entries"].to_pylist()
    counts = [len(text.split("\t")) if text else 0 if text is not None else np.nan for text in words]
    np.testing.assert_array_equal(found["n_entries"], counts)
    return words


def as_metaclip(caption: str, entries: str) -> list[str]:
    """MetaCLIP's substr_matching, entry by entry: the caption is spaced, the entries are only padded."""
    spaced = re.sub("[\t\n\r]", " ", re.sub("([,.;:?!`])", r" \1 ", f" {caption} "))
    return [entry for entry in entries.split("\n") if entry == entry.strip() != "" and f" {entry} " in spaced]


def test_entries_match_whole_words_between_spaces_and_punctuation(tmp_path: Path) -> None:
    """MetaCLIP's rules: padded text, spaces around , . ; : ? ! `, its own case, a set of entries per text."""
    captions = ["dog,cat and dog", "hotdog dogs", "Dog\tin New York!", None, "", "St. Louis: the U.S.", "New\nYork dog"]
    entries = "dog\ncat\nNew York\nYork\nSt. Louis\nU.S.\n!\nU . S\n\n dog \n"
    found = matched(captions, entries, tmp_path)
    assert found == ["dog\tcat", "", "New York\tYork\t!", None, "", "U . S", "New York\tYork\tdog"]
    for caption, theirs in zip(captions, found, strict=True):
        assert theirs is None or set(theirs.split("\t")) - {""} == set(as_metaclip(caption or "", entries))
    assert matched(captions, json.dumps(["dog", "New York"]), tmp_path, block=2)[2] == "New York"


def test_scripts_without_spaces_match_anywhere(tmp_path: Path) -> None:
    found = matched(["一只黑猫在车里", "แมวดำ", "猫 cat", "黑 猫cat"], "黑猫\nแมว\n猫\ncat\n", tmp_path)
    assert found == ["黑猫\t猫", "แมว", "猫\tcat", "猫"]


def plain_pairs(captions: list[str], least: int, association: float) -> set[str]:
    words = [re.sub(r"([,.;:?!`])", r" \1 ", text).split(" ") for text in captions]
    flat = [word for each in words for word in each if word]
    frequent = {word for word in flat if flat.count(word) >= least and re.search(r"[^\W\d_]", word)}
    follow = [pair for each in words for pair in itertools.pairwise(each) if set(pair) <= frequent]
    return frequent | {
        f"{one} {two}"
        for one, two in follow
        if (count := follow.count((one, two))) >= least
        and count * len(flat) >= association * flat.count(one) * flat.count(two)
    }


@pytest.mark.parametrize("pairs", [3, 1 << 24])
def test_the_pools_own_entries_are_those_of_a_plain_count(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tamis.recipes.derived.entries._PAIRS", pairs)
    rng = np.random.default_rng(1)
    captions = [" ".join(rng.choice(["red", "dog", "a", "cat,", "1", "x"], 5)) for _ in range(40)]
    captions += ["new york city"] * 6
    found = Entries(least=6, association=2.0).compute(MemoryTable({"caption": captions}, block=9), make)
    names = {entry for text in found["entries"].to_pylist() for entry in text.split("\t") if entry}
    assert names == plain_pairs(captions, 6, 2.0)
    assert {"new york", "york city"} < names
    assert "cat ," not in names


def test_words_of_wordnet_are_added(tmp_path: Path) -> None:
    (tmp_path / "index.noun").write_text("  1 licence\nfire_engine n 1 0\ndog n 1 0\n")
    found = Entries(least=9, wordnet=str(tmp_path)).compute(MemoryTable({"caption": ["a fire engine", "a dog"]}), make)
    assert found["entries"].to_pylist() == ["fire engine", "dog"]


def test_a_pool_is_balanced_from_the_command_line(tamis: Tamis, tmp_path: Path) -> None:
    texts = ["a dog"] * 30 + ["a rare zebra", "nothing on the list"]
    samples = [(f"{n:04d}", pair(n) | {"txt": text.encode()}) for n, text in enumerate(texts)]
    write_tar(tmp_path / "pool" / "00000.tar", samples)
    tamis("score", "pool", "--run", "run", "--signals", "caption_length", "-q")
    Path("list.txt").write_text("dog\nzebra\n")
    Path("r.yaml").write_text("signals: [entries: {entries_from: list.txt}]\nselect: [balance: {t: 5}]\n")
    lacking = tamis("select", "run", "-r", "r.yaml", "-o", "s.parquet")
    command = "tamis derive run --signals entries --set signals.entries.entries_from=list.txt"
    assert (lacking.code, command in lacking.err.replace("\n", " ")) == (2, True)
    tamis.ok(*command.split()[1:])
    tamis.ok("select", "run", "-r", "r.yaml", "-o", "s.parquet")
    subset = Subset.load("s.parquet", Run("run"))
    kept = subset.run["entries"][subset.keep].tolist()
    assert (kept.count("zebra"), kept.count(""), 1 <= kept.count("dog") <= 12) == (1, 0, True)
    assert subset.funnel[0]["facts"]["curve"][-1] == {"rank": 2, "entry": "zebra", "pairs": 1, "kept": 1}
    tamis.ok("report", "run", "s.parquet", "-o", "r.html")
    assert "2 entries from the most frequent" in Path("r.html").read_text()


def test_files_that_hold_no_entries_are_named(tmp_path: Path) -> None:
    table = MemoryTable({"caption": ["a dog"]})
    kind = "must be UTF-8 text with"
    for content, message in (
        (b"[1]", kind),
        (b'{"a": 1}', f"{kind}.*object"),
        (b"\xff", kind),
        (b"\n", "has no entries"),
    ):
        (path := tmp_path / "bad").write_bytes(content)
        with pytest.raises(RecipeError, match=message):
            Entries(entries_from=str(path)).compute(table, make)
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecipeError, match=r"empty has no files index\.noun"):
        Entries(wordnet=str(tmp_path / "empty")).compute(table, make)
    with pytest.raises(RecipeError, match="the pool has no entries: lower least"):
        Entries().compute(table, make)
