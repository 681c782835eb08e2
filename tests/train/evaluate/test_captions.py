"""Scores of captions: equal to the package's, by hand, of pools and tasks, and what is missing without Java."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from command_line import Tamis
from factories import caption, pair, write_tar
from tiny_models import captioner_folder

from tamis.core.errors import PoolError
from tamis.core.types import Device
from tamis.train.evaluate import captions
from tamis.train.evaluate.captions import METRICS, evaluate_captions, score_captions, words_of

JAVA = shutil.which("java") is not None

#: A caption and references, with what tokenizers split differently.
TEXTS = [
    (
        "A man's dog can't catch the well-known ball .",
        ["the dog doesn't catch it", "A dog, a ball; and (maybe) a man!"],
    ),
    ("two  people\u2028on a T.V. show at 11:44", ["Two people on TV", 'people watching "the show" at 11:44 pm...']),
    ("a red kite over Main St.", ["A red-and-blue kite is flying over Main St.", "they're flying a kite"]),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(captioner_folder(tmp_path_factory.mktemp("captioner"), "vit-gpt2"))


@pytest.fixture
def found(tmp_path: Path) -> Path:
    """A retrieval task of three images, one of them broken."""
    folder = tmp_path / "found"
    folder.mkdir()
    for number in range(3):
        files = pair(5000 + number)
        (folder / f"{number}.jpg").write_bytes(files["jpg"] if number else b"no image")
        (folder / f"{number}.txt").write_text(f"{caption(number)}\n{caption(number + 9)}\n")
    return folder


def test_words_by_hand() -> None:
    words = words_of("A man's dog can't cross Main St. (at 11:44), cannot run -- so well-known...")
    assert words == "a man 's dog ca n't cross main st. -lrb- at 11:44 -rrb- can not run so well-known"
    assert words_of(' "U.S.A." costs $6,000; \n ... ') == "u.s.a. costs $ 6,000"
    assert (words_of(""), words_of("?!"), words_of("гора  у моря")) == ("", "", "гора у моря")


def test_scores_by_hand() -> None:
    references = [["A red dog runs."], ["two old boats sail"]]
    same = score_captions(["a red dog runs", "two old boats sail"], references, metrics=["BLEU-4", "ROUGE-L", "CIDEr"])
    assert same.metrics["BLEU-4"] == pytest.approx(1)
    assert same.metrics["ROUGE-L"] == pytest.approx(1)
    assert same.metrics["CIDEr"] == pytest.approx(10)  # 10 times the mean of four cosines of 1
    other = score_captions(["a dog runs", "boats"], [["a dog sits", "x"], ["sheep"]], metrics=["ROUGE-L", "CIDEr"])
    assert other.metrics["ROUGE-L"] == pytest.approx(2 / 3 / 2)  # two of three words in order, and nothing
    assert score_captions(["", "a dog"], [["a cat"], ["?!"]], metrics=["ROUGE-L", "CIDEr"]).metrics["CIDEr"] == 0
    low, high = other.intervals["ROUGE-L"]
    assert (low + high) / 2 == pytest.approx(1 / 3)
    assert high - low == pytest.approx(2 * 12.7062 * np.std([2 / 3, 0], ddof=1) / 2**0.5, rel=1e-4)


@pytest.mark.skipif(not JAVA, reason="COCO's tokenizer is a Java program")
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_numbers_are_those_of_the_package_with_its_own_tokenizer() -> None:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.meteor.meteor import Meteor
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    tokenize = PTBTokenizer().tokenize
    plain = {n: [" ".join(text.split())] for n, (text, _) in enumerate(TEXTS)}
    ours = tokenize({n: [{"caption": text} for text in texts] for n, texts in plain.items()})
    theirs = tokenize({n: [{"caption": text} for text in texts] for n, (_, texts) in enumerate(TEXTS)})
    assert [words_of(text) for text, _ in TEXTS] == [one for (one,) in ours.values()]
    found = score_captions([text for text, _ in TEXTS], [texts for _, texts in TEXTS])
    wanted = {"BLEU-4": Bleu(4).compute_score(theirs, ours, verbose=0)[0][3]}
    kinds: dict[str, Any] = {"METEOR": Meteor, "ROUGE-L": Rouge, "CIDEr": Cider}
    wanted |= {name: kind().compute_score(theirs, ours)[0] for name, kind in kinds.items()}
    assert {name: found.metrics[name] for name in wanted} == wanted


def test_bertscore_takes_the_best_reference() -> None:
    axes = {word: np.eye(4)[n] for n, word in enumerate("abcd")}

    def encode(texts: Any) -> dict[str, Any]:
        return {
            text: SimpleNamespace(vectors=np.array([axes[word] for word in text]), counts=np.ones(len(text), bool))
            for text in texts
        }

    found = score_captions(["ab", "c"], [["cd", "ac"], ["d"]], encode=encode, metrics=["BERTScore"])
    # "ac": half of each text is found in the other; the second image shares nothing, which is 0 in bert-score too.
    assert found.metrics["BERTScore"] == pytest.approx(0.25)


def test_what_cannot_be_computed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = score_captions(["a dog", "a cat"], [["a dog"], ["a cat"]])
    assert list(found.metrics) == ["BLEU-4", "ROUGE-L", "CIDEr"]
    assert "Java" in found.missing["METEOR"]
    assert "--encoder" in found.missing["BERTScore"]
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/false")
    assert "does not download" in score_captions(["a"], [["a"]], metrics=["SPICE"]).missing["SPICE"]
    monkeypatch.setattr(captions, "_measure", Mock(side_effect=OSError("no memory")))
    assert score_captions(["a"], [["a"]], metrics=["METEOR"]).missing == {"METEOR": "Java failed: no memory"}
    with pytest.raises(ValueError, match="expected references for each of 2 captions, got 1"):
        score_captions(["a", "b"], [["a"], []])


def test_captions_and_references_without_words() -> None:
    names = ["BLEU-4", "ROUGE-L", "CIDEr"]
    found = score_captions(["a dog", ""], [["?!", ""], ["..."]], metrics=names)
    assert (found.metrics["CIDEr"], found.intervals["CIDEr"], found.missing) == (0, (0, 0), {})
    some = score_captions(["?!", "a dog runs fast"], [["a cat"], ["", "a dog runs fast"]], metrics=names)
    assert some.metrics["ROUGE-L"] == pytest.approx(1 / 2)
    assert some.metrics["CIDEr"] == pytest.approx(10 / 2 / 2)  # the mean over both references, and over both images


@pytest.mark.parametrize("does", ["echo Could not reserve memory >&2; exit 1", "sleep 1", "read line; echo 1 2"])
def test_a_failing_java_is_reported(does: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java"
    java.write_text(f"#!/bin/sh\n{does}\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    said = score_captions(["a dog", "a cat"], [["a dog"], ["a cat"]], metrics=["METEOR", "CIDEr"])
    assert list(said.metrics) == ["CIDEr"]
    assert said.missing["METEOR"].startswith("Java failed: Could not reserve" if "echo C" in does else "Java failed: ")


def test_a_task_is_captioned_in_any_batches_and_broken_images_are_counted(model: str, found: Path) -> None:
    (one,) = evaluate_captions(model, found, Device(), beams=2, metrics=METRICS[2:4])
    assert (one.task, one.unusable, list(one.reasons)) == ("found", 1, ["0.jpg"])
    assert [key for key, _ in one.captions] == ["1.jpg", "2.jpg"]
    assert set(one.metrics) == {"ROUGE-L", "CIDEr"}
    assert evaluate_captions(model, found, Device(batch_size=1), beams=2, metrics=METRICS[2:4]) == [one]
    for path in found.glob("*.jpg"):
        path.write_bytes(b"no image")
    with pytest.raises(PoolError, match="none of 3 images can be used"):
        evaluate_captions(model, found, Device())


def test_a_pool_has_the_captions_in_a_field(tamis: Tamis, model: str, found: Path, tmp_path: Path) -> None:
    texts: list[Any] = [[caption(1), caption(10), 3], "[photo] of a dog"]  # the second is no list
    (found / "2.txt").write_text("[photo] of a dog")
    samples = [(str(n), pair(5000 + n, captions=texts[n - 1])) for n in (1, 2)]
    write_tar(tmp_path / "pool" / "0.tar", [*samples, ("3", pair(5003, captions=[]))])
    out = tmp_path / "found.json"
    done = tamis.ok("evaluate", "captions", model, tmp_path / "pool", "--references", "captions", "--out", out)
    assert "3 cannot be used: the field 'captions' holds no caption" in done.err
    facts = json.loads(out.read_text())["tasks"][0]
    (task,) = evaluate_captions(model, found, Device(batch_size=8), metrics=["CIDEr"])
    assert facts["metrics"]["CIDEr"] == pytest.approx(task.metrics["CIDEr"])
    assert [text for _, text in facts["captions"]] == [text for _, text in task.captions]
    assert tamis("evaluate", "captions", model, tmp_path / "pool", "--out", out).code == 2  # it exists
    done = tamis("evaluate", "captions", model, tmp_path / "pool")
    assert (done.code, "--references" in done.err) == (2, True)
    done = tamis("evaluate", "captions", model, tmp_path / "pool", "--references", "captions", "--only", "pool")
    assert (done.code, "leave --only out" in done.err) == (2, True)
