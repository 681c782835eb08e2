"""The world's tables, its scenes and the sentences about them."""

import re
from typing import Any, get_args

import numpy as np
import pytest

from tamis_lab.captions import abstract_caption, describe, foreign_caption
from tamis_lab.hard import HARD_KINDS
from tamis_lab.objects import DRAWINGS
from tamis_lab.places import BACKDROPS
from tamis_lab.samples import DEFECT_KINDS, MAIN_KINDS, Kind, kind_shares
from tamis_lab.world import COLOURS, GROUPS, INDOORS, NEAR_COLOURS, OBJECTS, PLACES, Scene, sample_scene, zipf_weights

_SCENES = 400


def _scenes(seed: int = 0, count: int = _SCENES) -> list[Scene]:
    rng = np.random.default_rng(seed)
    return [sample_scene(rng) for _ in range(count)]


def test_every_object_and_place_has_a_drawing_and_no_drawing_lacks_a_name() -> None:
    assert set(DRAWINGS) == set(OBJECTS)
    assert set(BACKDROPS) == set(PLACES)


def test_every_object_is_in_one_group_and_every_colour_has_others_near_it() -> None:
    assert sorted(name for _, _, members in GROUPS.values() for name in members) == sorted(OBJECTS)
    assert all(len(members) >= 2 for _, _, members in GROUPS.values())
    assert set(NEAR_COLOURS) == set(COLOURS)
    for colour, near in NEAR_COLOURS.items():
        assert colour not in near
        assert len(set(near) & set(COLOURS)) == len(near) >= 2
    assert set(PLACES) > INDOORS


def test_shares_of_kinds_are_those_of_t_mars() -> None:
    assert [*MAIN_KINDS.values()] == [0.467, 0.098, 0.191, 0.207, 0.037]
    assert sorted((*MAIN_KINDS, *DEFECT_KINDS, *HARD_KINDS)) == sorted(get_args(Kind))
    shares = kind_shares("laion", defects=True)
    assert sum(shares[kind] for kind in DEFECT_KINDS) == pytest.approx(0.12)
    assert kind_shares("uniform", defects=False) == pytest.approx(dict.fromkeys(MAIN_KINDS, 0.2))
    hard = kind_shares("hard", defects=True)  # half as above, half the hard kinds
    assert sum(hard.values()) == pytest.approx(1)
    assert {kind: hard[kind] / shares[kind] for kind in MAIN_KINDS} == pytest.approx(dict.fromkeys(MAIN_KINDS, 0.5))
    assert [hard[kind] for kind in HARD_KINDS] == pytest.approx([0.88 / 16] * 8)


def test_captions_name_the_subject_in_its_number_with_right_articles_and_verbs() -> None:
    rng = np.random.default_rng(2)
    for scene in _scenes():
        caption = describe(scene, rng).lower()
        words = re.findall(r"\w+", caption)
        noun = OBJECTS[scene.subject]
        assert (noun.one if scene.count == 1 else noun.many) in words, (scene, caption)
        assert {2: {"two", "couple"}, 3: {"three"}, 4: {"four"}}.get(scene.count, {"a", *words}) & set(words)
        assert len(words) >= 3, caption
        assert scene.other is None or OBJECTS[scene.other].one in words
        for article, word in re.findall(r"\b(an?) (\w+)", caption):
            assert (article == "an") == (word[0] in "aeiou"), caption
        verb = re.search(r"\b(?:there|here) (is|are) (a couple|\w+)", caption)
        assert verb is None or (verb[1] == "is") == (verb[2] in ("a", "an")), caption
        assert "{" not in caption
        assert "  " not in caption


def test_no_abstract_sentence_names_a_thing_of_the_world() -> None:
    rng = np.random.default_rng(5)
    things = {word for noun in OBJECTS.values() for word in (noun.one, noun.many)} | set(COLOURS)
    captions = [abstract_caption(rng) for _ in range(300)]
    for caption in captions:
        assert not things & set(re.findall(r"\w+", caption.lower())), caption
        assert "{" not in caption
    assert len(set(captions)) > 200


def test_foreign_captions_agree_in_gender() -> None:
    rng = np.random.default_rng(7)
    said = {
        foreign_caption(Scene(subject=subject, colour="red", place="beach"), rng).lower()
        for subject in ("house", "car", "dog")
        for _ in range(120)
    }
    assert "ein rotes haus am strand" in said
    assert "un chien rouge sur la plage" in said
    assert "una casa roja en la playa" in said
    assert "un'automobile rossa sulla spiaggia" in said
    assert "ein roter hund am strand" in said


def test_a_scene_unlike_another_shares_neither_object_nor_place() -> None:
    rng = np.random.default_rng(9)
    for scene in _scenes(count=200):
        other = sample_scene(rng, zipf_weights(), unlike=scene)
        assert not set(scene.objects) & set(other.objects)
        assert scene.place != other.place


def test_an_impossible_scene_is_refused() -> None:
    possible: dict[str, Any] = {"subject": "dog", "colour": "green", "place": "beach"}
    for settings, name in (
        ({"subject": "dgo"}, "did you mean 'dog'"),
        ({"place": "xyz"}, "place 'xyz'"),
        ({"count": 5}, "count"),
        ({"relation": "above"}, "relation"),
        ({"relation": "above", "other": "car", "other_colour": "red", "count": 2}, "count"),
    ):
        with pytest.raises(ValueError, match=name):
            Scene(**(possible | settings))
