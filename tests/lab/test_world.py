"""The world's tables, its scenes and the sentences about them; objects, colours and writing as they are drawn."""

import re
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageChops

from tamis_lab.captions import abstract_caption, describe, foreign_caption
from tamis_lab.drawing import draw_objects, draw_place
from tamis_lab.hard import HARD_KINDS
from tamis_lab.objects import DRAWINGS
from tamis_lab.painted_text import paint_text
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


def _changed(before: Image.Image, after: Image.Image, by: int = 24) -> npt.NDArray[np.bool_]:
    """Which pixels differ by more than `by` in some channel."""
    difference: npt.NDArray[np.uint8] = np.asarray(ImageChops.difference(before, after))
    return np.asarray(difference.max(axis=-1) > by)


def _drawn_area(subject: str, colour: str, place: str) -> tuple[npt.NDArray[np.bool_], Image.Image]:
    """Where the object is, and the image, from the same place with and without it (and without noise)."""
    empty = draw_place(place, 128, np.random.default_rng(1))
    full = empty.copy()
    draw_objects(full, Scene(subject=subject, colour=colour, place=place), np.random.default_rng(2))
    small = full.reduce(3)
    return _changed(empty.reduce(3), small), small


@pytest.mark.parametrize("subject", OBJECTS)
def test_every_object_stands_out_in_every_colour(subject: str) -> None:
    places = list(PLACES)
    for i, (colour, rgb) in enumerate(COLOURS.items()):
        where, image = _drawn_area(subject, colour, places[(i + len(subject)) % len(places)])
        assert 0.06 < where.mean() < 0.65, (colour, where.mean())
        # The colour asked for is the nearest of all colours for the largest part of the object.
        names, palette = list(COLOURS), np.array(list(COLOURS.values()))
        pixels = np.asarray(image)[where].astype(int)
        nearest = np.linalg.norm(pixels[:, None] - palette[None], axis=-1).argmin(axis=1)
        shares = np.bincount(nearest, minlength=len(names)) / len(nearest)
        assert shares[names.index(colour)] > 0.2, (colour, rgb, dict(zip(names, shares.round(2), strict=True)))


@pytest.mark.parametrize(
    ("relation", "axis", "sign"), [("left of", 1, -1), ("right of", 1, 1), ("above", 0, -1), ("below", 0, 1)]
)
def test_relations_are_drawn_as_said(relation: str, axis: int, sign: int) -> None:
    for seed in range(8):
        empty = draw_place("desert", 128, np.random.default_rng(seed))
        full = empty.copy()
        scene = Scene(subject="mug", colour="blue", place="desert", relation=relation, other="hat", other_colour="red")
        draw_objects(full, scene, np.random.default_rng(seed))
        pixels = np.asarray(full.reduce(3)).astype(int)
        blue = (pixels[..., 2] > 150) & (pixels[..., 0] < 90)
        red = (pixels[..., 0] > 170) & (pixels[..., 1] < 80)
        distance = np.argwhere(blue).mean(axis=0)[axis] - np.argwhere(red).mean(axis=0)[axis]
        assert sign * distance > 25


def test_painted_text_lies_within_its_quads_and_the_quads_within_the_image() -> None:
    rng = np.random.default_rng(0)
    for i in range(60):
        plain = Image.new("RGB", (128, 128), (128, 128, 128))
        text = ("a photo of two purple elephants next to a red car", "SALE 50% OFF", "owl", "grey cat, library")[i % 4]
        painted = paint_text(plain, text, rng, most_lines=5)
        quads = np.array(painted.quads)
        assert quads.shape[1:] == (4, 2)
        assert quads.min() >= 0
        assert quads.max() <= 128
        assert " ".join(painted.lines).lower().split() == text.lower().split()
        left, top = quads.min(axis=(0, 1))
        right, bottom = quads.max(axis=(0, 1))
        assert bottom - top >= 9
        changed = _changed(plain, painted.image)
        assert changed[int(top) : int(bottom) + 1, int(left) : int(right) + 1].sum() > 40


def test_long_text_is_cut_after_a_whole_word() -> None:
    text = "a very long sentence that goes on and on until nobody can follow it any more at all"
    painted = paint_text(Image.new("RGB", (128, 128)), text, np.random.default_rng(0), most_lines=2)
    assert len(painted.quads) == 2
    assert text.startswith(" ".join(painted.lines))
    assert 3 <= len(" ".join(painted.lines).split()) < len(text.split())


def test_a_word_longer_than_a_line_is_made_smaller_and_not_lost() -> None:
    for seed in range(12):
        painted = paint_text(
            Image.new("RGB", (128, 128)), "www.unusually-long-address.example", np.random.default_rng(seed)
        )
        assert " ".join(painted.lines).lower() == "www.unusually-long-address.example"
        assert np.array(painted.quads).min() > 0
        assert np.array(painted.quads).max() < 128
