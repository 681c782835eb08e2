"""Signals that look for a list of classes in captions."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tamis.core.errors import RecipeError
from tamis.core.types import Device
from tamis.models.texts.sentence import load_sentence_encoder
from tamis.signals import ClassMentions, ClassSimilarity
from tamis.signals.classes import class_synonyms, class_vectors, finder, load_nouns


def mentions(captions: list[str | None], **settings: Any) -> dict[str, Any]:
    found: dict[str, Any] = ClassMentions(**settings).load(Device())(captions=captions)
    return found


def test_names_count_as_whole_words_in_any_case_and_number() -> None:
    find = finder([("fire truck",), ("truck", "lorry"), ("ox",), ("bus",)])
    assert list(find("A red Fire Truck behind two trucks")) == ["fire truck", "truck"]
    assert list(find("LORRY; buses, oxs")) == ["truck", "bus", "ox"]
    assert list(find("trucking along a boxer")) == []
    assert list(find("the fire-truck")) == ["fire truck"]
    assert list(find("fire")) == []
    nested = finder([("crane",), ("crane fly",), ("crane fly larva",)])  # of names that begin alike the longest counts
    assert list(nested("a crane fly larva, a crane fly and a crane")) == ["crane fly larva", "crane fly", "crane"]


def test_classes_are_counted_once_and_the_first_is_named() -> None:
    found = mentions(["a goldfish and a tench and a goldfish", "nothing here", None, "Ice cream"])
    assert found["class_mentions"][:2].tolist() == [2, 0]
    assert np.isnan(found["class_mentions"][2])
    assert found["mentioned_class"] == ["goldfish", "", None, "ice cream"]


def test_a_list_of_synsets_can_be_given(tmp_path: Path) -> None:
    names = tmp_path / "names.tsv"
    names.write_text("n00000001\tcat, house cat\nn00000002 dog,, hound \n\nn3\tboat\n")
    assert class_synonyms(str(names)) == (("cat", "house cat"), ("dog", "hound"), ("boat",))
    assert mentions(["two hounds"], classes_from=str(names))["mentioned_class"] == ["dog"]


#: Lines of WordNet 3.0's index.noun as they are: lemma, part of speech, senses, pointers, their symbols, senses, tagged
#: senses, then the synset of each sense, the most frequent first. Two lines of the licence stand before them.
INDEX = """  1 This software and database is being provided to you, the LICENSEE, by
  2 Princeton University under the following license.  By obtaining, using
bus n 4 7 @ ~ #m #p %p + - 4 1 02924116 05730591 02924713 02924554
crane n 5 4 @ ~ #m + 5 0 10914447 10914331 09295455 03126707 02012849
dog n 7 5 @ ~ #m #p %p 7 1 02084071 10114209 10023039 09886220 07676602 03901548 02710044
fireman n 4 3 @ ~ #m 4 1 00432587 10659042 10518194 10091651
glass n 7 6 @ ~ #s #p %p + 7 4 14881303 03438257 13767239 03333129 03754295 03688832 03438661
glasses n 1 5 @ ~ #p %p ; 1 1 04272054
goose n 3 6 @ ~ #m #p %p + 3 1 01855672 10157744 07646821
"""


def wordnet(folder: Path, *, packed: bool = False) -> str:
    """Writes a few lines of WordNet's files, as a folder or as the zip that NLTK downloads."""
    if packed:
        with zipfile.ZipFile(folder / "wordnet.zip", "w") as made:
            made.writestr("wordnet/index.noun", INDEX)
            made.writestr("wordnet/noun.exc", "geese goose\n")
        return str(folder / "wordnet.zip")
    (folder / "wordnet").mkdir()
    (folder / "wordnet" / "index.noun").write_text(INDEX)
    (folder / "wordnet" / "noun.exc").write_text("geese goose\n")
    return str(folder / "wordnet")


@pytest.mark.parametrize("packed", [False, True])
def test_a_words_first_synset_is_that_of_wordnet(tmp_path: Path, packed: bool) -> None:
    first_synset = load_nouns(wordnet(tmp_path, packed=packed))
    synsets = {"dog": 2084071, "Dogs": 2084071, "geese": 1855672, "buses": 2924116, "firemen": 432587}
    assert {word: first_synset(word) for word in synsets} == synsets
    assert first_synset("glasses") == 4272054  # spectacles: the word itself comes before its singular
    assert first_synset("glass") == 14881303
    assert [first_synset(word) for word in ("dog,", "gooses", "dogss", "s", "", "日本")] == [None, 1855672, *[None] * 4]


def test_with_wordnet_a_caption_counts_by_the_first_meaning_of_its_words(tmp_path: Path) -> None:
    ids = tmp_path / "ids.txt"
    # The bird that is called crane is the word's last sense; "dog" has its name behind the id, "goose" a bare number.
    ids.write_text("n02084071 dog, domestic dog\n1855672\n\nn02012849\tcrane\nn02924116\n")
    captions = ["two dogs and a Dog", "a crane on a lake", "geese, geese buses", "dog.", None]
    found = mentions(captions, classes_from=str(ids), wordnet=wordnet(tmp_path))
    assert found["class_mentions"][:4].tolist() == [1, 0, 2, 0]
    assert np.isnan(found["class_mentions"][4])
    assert found["mentioned_class"] == ["dog", "", "n01855672", "", None]


def test_bad_lists_and_folders_are_errors(tmp_path: Path) -> None:
    ids, words, empty = (tmp_path / name for name in ("ids.txt", "words.txt", "empty.txt"))
    ids.write_text("n02084071\nn01855672\n")
    words.write_text("n02084071\ndog\n")
    empty.write_text("\n")
    good, odd = wordnet(tmp_path), tmp_path / "odd"
    odd.mkdir()
    (odd / "index.noun").write_text("dog\tn\tmany\n")
    with pytest.raises(ValueError, match="wordnet needs classes_from"):
        ClassMentions(wordnet=str(tmp_path))
    for listed, folder, message in (
        (tmp_path / "other.txt", None, "unknown list of classes"),
        (ids, None, "has no class names"),
        (ids, str(tmp_path), r"no readable index\.noun"),
        (words, good, "line 2 of .* must begin with an id"),
        (ids, str(ids), r"ids\.txt holds no readable index\.noun"),
        (ids, str(odd), r"no readable index\.noun"),
        (empty, good, "no ids"),
    ):
        with pytest.raises(RecipeError, match=message):
            mentions(["a"], classes_from=str(listed), wordnet=folder)


def test_class_similarity_is_the_best_cosine_with_a_name(clip_model: str, tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("dog\ncat\nboat\n")
    captions = ["two dog near the house", None, "cat", "cat"]
    signal = ClassSimilarity(encoder=clip_model, classes_from=str(names))
    found = signal.load(Device())(captions=captions)
    encode = load_sentence_encoder(clip_model, Device())
    vectors = encode(["dog", "cat", "boat"])
    assert class_vectors(clip_model, ("dog", "cat", "boat"), ("{}",), Device()) == pytest.approx(vectors, abs=1e-5)
    slow = encode(["two dog near the house", "cat"]) @ vectors.T
    assert found["class_similarity"][[0, 2]] == pytest.approx(slow.max(1), abs=1e-5)
    assert found["class_similarity"][2] == pytest.approx(1, abs=1e-5)
    assert found["nearest_class"][1:] == [None, "cat", "cat"]
    assert np.isnan(found["class_similarity"][1])
    with pytest.raises(ValueError, match="unknown templates 'nam'"):
        ClassSimilarity(templates="nam")
