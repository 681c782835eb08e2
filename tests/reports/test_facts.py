"""The facts next to the page: what any JSON reader gets of them, and that they are the page's."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from factories import pair, write_pool, write_run, write_tar

import tamis
from tamis.core.errors import RunError
from tamis.reports.context import Context
from tamis.reports.page import FINDINGS, SECTIONS, as_json, facts_path, gather, render, write_report
from tamis.reports.page_pairs import Pair
from tamis.runs import Run


def strictly(text: str) -> Any:
    """Reads JSON as the standard has it: without NaN and infinities."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_by_hand() -> None:
    image, other = Pair(row=10, numbers={"x": float("nan")}, thumbnail="data:image/webp;base64,A"), Pair(row=9)
    facts = {"said": {"number": float("inf"), "array": np.array([[1.5, np.nan]]), "pairs": [image, other]},
             "by": {0.5: np.int64(2), 1: True}, "one": image}  # fmt: skip
    read = strictly(as_json(facts))
    assert read | {"pairs": {}} == {
        "kind": "tamis report",
        "format": 5,
        "said": {"number": None, "array": [[1.5, None]], "pairs": [10, 9]},
        "by": {"0.5": 2, "1": True},
        "one": 10,
        "pairs": {},
    }
    assert list(read["pairs"]) == ["9", "10"]
    assert read["pairs"]["10"]["numbers"] == {"x": None}
    assert "thumbnail" not in read["pairs"]["10"]


@pytest.mark.parametrize("text", ["</script><!--", "\ud800 alone", "a\x00b", "\u2028", "😀 שלום", '"\\'])
def test_any_text_can_be_encoded_read_back_and_put_into_a_page(text: str) -> None:
    written = as_json({"said": text, "by": {text: 1}})
    read = strictly(written.encode("utf-8").decode("utf-8"))
    assert read["said"] == text.replace("\ud800", "\ufffd")
    assert list(read["by"]) == [text.replace("\ud800", "\ufffd")]
    assert "<" not in written


@pytest.fixture
def scored(tmp_path: Path) -> tuple[Run, Path]:
    pool = write_pool(tmp_path / "pool", rows=8)
    write_tar(pool / "00003.tar", [("<b>bad", pair(90) | {"jpg": b"none", "txt": "<i>café".encode()})])
    return tamis.score(pool, run=tmp_path / "run", signals=["caption_length", "image_size"], quiet=True), pool


def test_the_facts_are_those_of_the_page_without_its_images(scored: tuple[Run, Path], tmp_path: Path) -> None:
    run, _ = scored
    recipe = {"name": "long", "select": [{"at_least": {"score": "characters", "value": 25}}]}
    subset = tamis.select(run, recipe)
    page = write_report(run, [subset], tmp_path / "out" / "report.html")
    text = (tmp_path / "out" / "report.json").read_text(encoding="utf-8")
    assert sorted(path.name for path in page.parent.iterdir()) == ["report.html", "report.json"]
    assert "data:image" in page.read_text(encoding="utf-8")
    assert "base64" not in text
    facts = strictly(text)
    assert facts["heading"]["rows"] == len(run) == 25
    assert facts["sections"]["pool"]["statuses"] == {"ok": 24, "image_broken": 1}
    reject = facts["sections"]["findings"]["pool"][0]
    assert [facts["pairs"][str(row)]["key"] for row in reject["pairs"]] == ["<b>bad"]
    (gallery,) = facts["sections"]["galleries"]["galleries"]
    assert gallery["subset"] == {
        "place": 0, "label": "long", "colour": "c1", "kept": len(subset), "times": len(subset),
    }  # fmt: skip
    (line,) = gallery["steps"][0]["fallen"][0]["lines"]
    assert [each["score"] for each in line["just_dropped"]] == [
        facts["pairs"][str(each["pair"])]["numbers"]["characters"] for each in line["just_dropped"]
    ]
    assert sum(facts["sections"]["scores"]["distributions"][1]["histogram"]["kept"][0]) == len(subset)


def test_the_same_run_gives_the_same_bytes(scored: tuple[Run, Path], tmp_path: Path) -> None:
    run, _ = scored
    written = []
    for name in ("a.html", "b.html"):
        opened = Run(run.path)
        write_report(opened, [tamis.select(opened, "no-filter")] * 2, tmp_path / name)
        written.append(facts_path(tmp_path / name).read_bytes())
    assert written[0] == written[1]


def test_the_page_and_the_documentation_have_every_section_in_order(scored: tuple[Run, Path]) -> None:
    run, _ = scored
    run.readable_pool = None
    facts = gather(
        Context(
            run,
            [tamis.select(run, {"name": "same", "select": [{"at_least": {"score": "characters", "value": 0}}]})] * 2,
        )
    )
    after = [name for name in SECTIONS if name in facts["sections"]]
    assert list(facts["sections"]) == ["choice", FINDINGS, *after[1:]]
    assert set(SECTIONS) - set(after) == {"mosaic", "look", "bench", "race", "shares", "text"}  # nothing to say
    page = render(facts, now=0)
    assert re.findall(r'<section id="(\w+)"', page) == list(facts["sections"])
    docs = (Path(__file__).parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    for title, _, _ in SECTIONS.values():
        assert f"| {title} |" in docs


def test_a_file_of_another_program_is_not_replaced(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {"x": [1.0, 2.0]})
    theirs = tmp_path / "report.json"
    theirs.write_text('{"mine": 1}')
    with pytest.raises(RunError, match=r"report\.json"):
        write_report(run, [], tmp_path / "report.html")
    assert theirs.read_text() == '{"mine": 1}'
    assert not (tmp_path / "report.html").exists()
    assert facts_path(Path("v1.2")) == Path("v1.2.json")
    assert facts_path(Path("a.b.HTM")) == Path("a.b.json")
