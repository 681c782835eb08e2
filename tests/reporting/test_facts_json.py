"""The facts beside the page: what any JSON reader gets of them, and that they are the page's."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import pair, write_pool, write_run, write_tar

import tamis
from tamis.errors import RunError
from tamis.pool import open_pool
from tamis.reporting import facts_path, write_report
from tamis.reporting.context import Context
from tamis.reporting.facts_json import as_json
from tamis.reporting.page import gather, render
from tamis.reporting.pairs import Pair
from tamis.reporting.sections import SECTIONS
from tamis.store import Run


def strictly(text: str) -> Any:
    """Reads JSON as the standard has it: without NaN and infinities."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def one_pair(row: int, **known: Any) -> Pair:
    fixed: dict[str, Any] = {"shard": "s", "uid": "0" * 32, "caption": None, "status": "ok", "reason": None}
    return Pair(row=row, key=f"k{row}", width=1, height=1, **fixed, **known)


@dataclass(frozen=True)
class Said:
    number: float
    array: Any
    pairs: list[Pair]


def test_by_hand() -> None:
    picture = one_pair(3, numbers={"x": float("nan")}, thumbnail="data:image/webp;base64,AAAA", no_picture="none")
    facts = {"said": Said(float("inf"), np.array([[1.5, np.nan]]), [picture]), "by": {0.5: np.int64(2), 1: True}}
    assert strictly(as_json(facts)) == {
        "kind": "tamis report",
        "format": 2,
        "said": {"number": None, "array": [[1.5, None]], "pairs": [3]},
        "by": {"0.5": 2, "1": True},
        "pairs": {
            "3": {
                "row": 3, "shard": "s", "key": "k3", "uid": "0" * 32, "caption": None, "status": "ok", "reason": None,
                "width": 1, "height": 1, "words": {}, "texts": [], "numbers": {"x": None}, "why_null": [],
            }
        },
    }  # fmt: skip


def test_pairs_stand_once_in_the_order_of_their_rows() -> None:
    text = as_json({"a": [one_pair(10), one_pair(9)], "b": one_pair(10)})
    assert list(strictly(text)["pairs"]) == ["9", "10"]
    assert (strictly(text)["a"], strictly(text)["b"]) == ([10, 9], 10)


@pytest.mark.parametrize("text", ["</script><!--", "\ud800 alone", "a\x00b", "\u2028", "😀 שלום", '"\\'])
def test_any_text_can_be_encoded_read_back_and_put_into_a_page(text: str) -> None:
    written = as_json({"said": text, "by": {text: 1}})
    read = strictly(written.encode("utf-8").decode("utf-8"))
    assert read["said"] == text.replace("\ud800", "\ufffd")
    assert list(read["by"]) == [text.replace("\ud800", "\ufffd")]
    assert "<" not in written


def test_what_json_cannot_hold_is_an_error_and_no_text() -> None:
    with pytest.raises(TypeError, match="this is a set"):
        as_json({"said": {1, 2}})


@pytest.fixture
def scored(tmp_path: Path) -> tuple[Run, Path]:
    pool = write_pool(tmp_path / "pool", rows=8)
    write_tar(pool / "00003.tar", [("<b>bad", pair(90) | {"jpg": b"none", "txt": "<i>café".encode()})])
    return tamis.score(pool, run=tmp_path / "run", scores=["caption_length", "image_size"], quiet=True), pool


def test_the_facts_are_written_beside_the_page_and_hold_no_picture(scored: tuple[Run, Path], tmp_path: Path) -> None:
    run, pool = scored
    recipe = {"name": "long", "select": [{"at_least": {"score": "characters", "value": 25}}]}
    subset = tamis.select(run, recipe)
    page = write_report(run, [subset], tmp_path / "out" / "report.html", open_pool(pool))
    text = (tmp_path / "out" / "report.json").read_text(encoding="utf-8")
    assert sorted(path.name for path in page.parent.iterdir()) == ["report.html", "report.json"]
    assert "data:image" in page.read_text(encoding="utf-8")
    assert "base64" not in text
    facts = strictly(text)
    assert facts["heading"]["rows"] == len(run) == 25
    assert facts["sections"]["pool"]["statuses"] == {"ok": 24, "image_broken": 1}
    (reject,) = facts["sections"]["rejects"]["rejects"]
    assert [facts["pairs"][str(row)]["key"] for row in reject["pairs"]] == ["<b>bad"]
    (gallery,) = facts["sections"]["galleries"]["galleries"]
    assert gallery["subset"] == {"place": 0, "label": "long", "kept": len(subset)}
    (step,) = gallery["steps"]
    (line,) = step["fallen"][0]["lines"]
    assert (step["step"], line["score"], line["marks"]) == ("characters >= 25", "characters", [25.0])
    by_row = {each["pair"]: facts["pairs"][str(each["pair"])] for each in line["just_dropped"]}
    assert [each["score"] for each in line["just_dropped"]] == [
        each["numbers"]["characters"] for each in by_row.values()
    ]
    (funnel,) = facts["sections"]["funnels"]["funnels"]
    assert funnel["lines"][0]["kept"] == len(subset)
    assert sum(facts["sections"]["scores"]["distributions"][1]["histogram"]["kept"][0]) == len(subset)


def test_the_same_run_gives_the_same_bytes(scored: tuple[Run, Path], tmp_path: Path) -> None:
    run, pool = scored
    written = []
    for name in ("a.html", "b.html"):
        opened = Run(run.path)
        subsets = [tamis.select(opened, "no-filter"), tamis.select(opened, "no-filter")]
        write_report(opened, subsets, tmp_path / name, open_pool(pool))
        written.append(facts_path(tmp_path / name).read_bytes())
    assert written[0] == written[1]


def test_the_registry_has_each_section_once_and_the_page_is_in_its_order(
    scored: tuple[Run, Path], tmp_path: Path
) -> None:
    run, _ = scored
    idents = [section.ident for section in SECTIONS]
    assert len(set(idents)) == len(idents)
    assert all(ident.isalpha() for ident in idents)
    facts = gather(Context(run, [tamis.select(run, "no-filter")] * 2, None))
    assert list(facts.sections) == [ident for ident in idents if ident in facts.sections]
    assert set(idents) - set(facts.sections) == {
        "look",
        "bench",
        "repeated",
        "text",
        "medium",
        "words",
    }  # nothing was said of these
    page = render(facts, now=0)
    assert re.findall(r'<section id="(\w+)"', page) == list(facts.sections)
    assert page == render(facts, now=0)


@pytest.mark.parametrize(
    ("page", "facts"),
    [("report.html", "report.json"), ("a.b.HTM", "a.b.json"), ("report", "report.json"), ("v1.2", "v1.2.json"),
     ("report.json", "report.json.json")],
)  # fmt: skip
def test_the_facts_never_have_the_pages_name(page: str, facts: str) -> None:
    assert facts_path(Path("folder") / page) == Path("folder") / facts


def test_a_file_of_somebody_else_is_not_written_over(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [1.0, 2.0]})
    theirs = tmp_path / "report.json"
    theirs.write_text('{"mine": 1}')
    with pytest.raises(RunError, match=r"report.json is there and is no facts file of a page of tamis"):
        write_report(run, [], tmp_path / "report.html", None)
    assert theirs.read_text() == '{"mine": 1}'
    assert not (tmp_path / "report.html").exists()
    theirs.unlink()
    for _ in range(2):  # its own it replaces
        write_report(run, [], tmp_path / "report.html", None, overwrite=True)
    assert strictly(theirs.read_text())["heading"]["rows"] == 2


DOCS = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")


def test_the_documentation_names_every_section_and_its_code_runs(scored: tuple[Run, Path], tmp_path: Path) -> None:
    run, _ = scored
    for section in SECTIONS:
        assert f"| {section.title} |" in DOCS
        assert f"`{section.ident}`" in DOCS
    write_report(run, [tamis.select(run, "no-filter")], tmp_path / "report.html", None)
    (code,) = re.findall(r"^```python\n(.*?)^```", DOCS, re.DOTALL | re.MULTILINE)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("no-filter []\n", "")
