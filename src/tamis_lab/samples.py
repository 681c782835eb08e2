"""One sample of a lab pool: a pair whose true kind is known, as a pure function of (seed, index).

The five main kinds and their shares come from the pilot study of T-MARS (Maini et al. 2023, section 3). Defects are
other faults of web pools; hard kinds are hard to tell from good pairs. Samples do not depend on each other (a duplicate
draws its original again), so any number of processes can draw shards in any order.
"""

import hashlib
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

import numpy as np
from PIL import Image

from tamis.core.errors import unknown_message
from tamis_lab.captions import abstract_caption, describe, foreign_caption
from tamis_lab.drawing import DrawnObject, develop, draw_objects, draw_place
from tamis_lab.hard import HARD_KINDS, Detail, HardKind, say, scene_for
from tamis_lab.painted_text import PaintedText, Quad, Where, paint_large_text, paint_text, paint_watermark
from tamis_lab.world import COLOURS, COUNTS, OBJECTS, STAMPS, Scene, pick, pick_weighted, sample_scene, zipf_weights

Mix = Literal["laion", "uniform", "hard"]
Kind = Literal[
    "visual",
    "visual_random_text",
    "visual_text",
    "text_only",
    "mismatched",
    "abstract",
    "near_duplicate",
    "exact_duplicate",
    "not_english",
    "tiny",
    "odd_aspect",
    "truncated",
    "empty_caption",
    HardKind,
]
KINDS: tuple[Kind, ...] = get_args(Kind)

# T-MARS, section 3: S_i, S_irt, S_it, S_t and S_r.
MAIN_KINDS: dict[Kind, float] = {
    "visual": 0.467,
    "visual_random_text": 0.098,
    "visual_text": 0.191,
    "text_only": 0.207,
    "mismatched": 0.037,
}
DEFECT_KINDS: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind not in MAIN_KINDS and kind not in HARD_KINDS)
# Share of samples with a defect, the same for each: a pool of a thousand pairs has some of every kind.
DEFECT_SHARE = 0.12
# Share of hard kinds in the mix `hard` among samples without a defect, the same for each kind. A sixteenth per kind is
# 250 of 4,000 pairs, enough for an AUC within about three points.
HARD_SHARE = 0.5

_NOUN_PHRASE_WORDS = frozenset({"a", "an", *COLOURS, *(choices[0] for choices in COUNTS.values())})


@dataclass(frozen=True, kw_only=True)
class LabSample:
    """A pair and everything that is true about it."""

    index: int  # its number in the pool
    kind: Kind
    image: bytes  # JPEG
    caption: str
    scene: Scene  # what the image shows
    described: Scene | None  # what the caption says; None if it is abstract or empty
    lines: tuple[str, ...] = ()  # the words painted on the image, line by line
    quads: tuple[Quad, ...] = ()  # four corners per painted line, in pixels
    objects: tuple[DrawnObject, ...] = ()  # from back to front; () if the image was cropped or resized
    size: tuple[int, int]  # width and height of the stored image
    original_size: tuple[int, int]  # width and height on the web, as the metadata claims
    source: int | None = None  # index of the original, for duplicates
    #: more facts for hard kinds: see `tamis_lab.hard.say`, `paint_large_text`, `paint_watermark`
    details: Mapping[str, Detail] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The words painted on the image; "" for none."""
        return " ".join(self.lines)


def kind_shares(mix: Mix, *, defects: bool) -> dict[Kind, float]:
    """Returns the probability of each kind in a mix; see `make_pool`."""
    defective = DEFECT_SHARE if defects else 0.0
    main = dict.fromkeys(MAIN_KINDS, 1 / len(MAIN_KINDS)) if mix == "uniform" else MAIN_KINDS
    shares: dict[Kind, float] = {kind: share * (1 - defective) for kind, share in main.items()}
    if mix == "hard":
        shares = {kind: share * (1 - HARD_SHARE) for kind, share in shares.items()}
        shares |= dict.fromkeys(HARD_KINDS, HARD_SHARE * (1 - defective) / len(HARD_KINDS))
    if defects:
        shares |= dict.fromkeys(DEFECT_KINDS, defective / len(DEFECT_KINDS))
    return shares


def own_shares(shares: Mapping[Kind, float]) -> dict[Kind, float]:
    """Normalises shares to probabilities, in the order of `KINDS`."""
    for kind, share in shares.items():
        if kind not in KINDS:
            raise ValueError(unknown_message("kind", kind, KINDS))
        if not (math.isfinite(share) and share >= 0):
            raise ValueError(f"the share of {kind} must be a number from 0, got {share}")
    total = math.fsum(shares.values())
    if total <= 0:
        raise ValueError("shares must give at least one kind a share above 0")
    return {kind: shares[kind] / total for kind in KINDS if shares.get(kind)}


def make_sample(
    index: int,
    *,
    seed: int,
    mix: Mix = "laion",
    defects: bool = True,
    image_size: int = 128,
    kind: Kind | None = None,
    shares: Mapping[Kind, float] | None = None,
) -> LabSample:
    """Draws the sample with this number.

    Args:
        index, seed: they decide everything random.
        mix, defects, shares: as in `make_pool`.
        image_size: side in pixels.
        kind: the sample's kind; None draws one.

    Cost: 5 ms at 128 pixels on one CPU core.
    """
    rng = np.random.default_rng([seed, index])
    odds = kind_shares(mix, defects=defects) if shares is None else own_shares(shares)
    drawn = pick_weighted(rng, odds)  # the first draw: `_source` learns a sample's kind without the rest
    kind = drawn if kind is None else kind
    if kind in ("near_duplicate", "exact_duplicate"):
        source = _source(index, rng, seed=seed, odds=odds)
        if source is not None:
            original = make_sample(source, seed=seed, mix=mix, defects=defects, image_size=image_size, shares=shares)
            if kind == "exact_duplicate":
                return replace(original, index=index, kind=kind, source=source)
            return _near_duplicate(original, index, rng)
        kind = "visual"  # nothing before it to repeat

    scene, described, caption, details = _draw_caption(kind, rng, zipf_weights(0.0 if mix == "uniform" else 1.0))
    objects: tuple[DrawnObject, ...] = ()
    if kind == "odd_aspect":
        image = _banner(scene, image_size, rng)
    else:
        canvas = draw_place(scene.place, image_size, rng)
        objects = draw_objects(canvas, scene, rng)
        image = develop(canvas, rng)
    painted = PaintedText(image, (), ())
    more: dict[str, str | float] = {}
    if kind == "visual_random_text":
        painted = paint_text(image, pick(STAMPS, rng), rng, where=_beside(scene, rng))
    elif kind == "visual_text":
        painted = paint_text(image, _keywords(caption, scene, rng), rng, where=_beside(scene, rng))
    elif kind == "text_only":
        painted = paint_text(image, caption, rng, most_lines=5)
    elif kind == "large_text":
        assert described is not None
        noun = OBJECTS[described.subject]
        painted, more = paint_large_text(image, noun.one if described.count == 1 else noun.many, rng)
    elif kind == "watermark":
        painted, more = paint_watermark(image, rng)
    image = painted.image

    original_size = _plausible_size(rng)
    if kind == "tiny":
        side = int(rng.integers(8, 41))
        image = image.resize((side, side), Image.Resampling.LANCZOS)
        objects = ()
    if kind in ("tiny", "odd_aspect"):
        original_size = image.size
    data = jpeg(image, int(rng.integers(86, 96)))
    if kind == "truncated":
        data = data[: int(len(data) * rng.uniform(0.3, 0.75))]
    return LabSample(
        index=index, kind=kind, image=data, caption=caption, scene=scene, described=described, lines=painted.lines,
        quads=painted.quads, objects=objects, size=image.size, original_size=original_size, details={**details, **more},
    )  # fmt: skip


def _draw_caption(
    kind: Kind, rng: np.random.Generator, weights: Mapping[str, float]
) -> tuple[Scene, Scene | None, str, Mapping[str, Detail]]:
    """Draws (scene, scene that the caption describes, caption, more facts for a hard kind)."""
    if kind in HARD_KINDS:
        scene = scene_for(kind, rng, weights)
        caption, described, details = say(kind, scene, rng, weights)
        return scene, described, caption, details
    scene = sample_scene(rng, weights)
    if kind == "not_english":
        scene = replace(scene, count=1)  # its tables have only singular nouns
        return scene, scene, foreign_caption(scene, rng), {}
    if kind == "abstract":
        return scene, None, abstract_caption(rng), {}
    if kind == "empty_caption":
        return scene, None, ("", " ", "\n", "  \t")[int(rng.integers(4))], {}
    described = sample_scene(rng, weights, unlike=scene) if kind in ("mismatched", "text_only") else scene
    return scene, described, describe(described, rng), {}


def sample_uid(seed: int, index: int) -> str:
    """Returns the sample's uid, 32 hex digits. Duplicates have different ones."""
    return hashlib.blake2b(f"tamis lab {seed} {index}".encode(), digest_size=16).hexdigest()


def _source(index: int, rng: np.random.Generator, *, seed: int, odds: Mapping[Kind, float]) -> int | None:
    """Draws the index of an earlier sample without a defect; None after fifty failures."""
    for _ in range(50 if index else 0):
        source = int(rng.integers(index))
        if pick_weighted(np.random.default_rng([seed, source]), odds) not in DEFECT_KINDS:
            return source
    return None


def _near_duplicate(original: LabSample, index: int, rng: np.random.Generator) -> LabSample:
    """Crops the original slightly, changes its brightness, compresses it again, and perhaps rewords the caption."""
    image = Image.open(io.BytesIO(original.image)).convert("RGB")
    w, h = image.size
    left, top, right, bottom = (float(v) for v in rng.uniform(0, 0.03, size=4))
    box = (left * w, top * h, w * (1 - right), h * (1 - bottom))
    image = image.resize((w, h), Image.Resampling.BICUBIC, box=box)
    gain = float(rng.uniform(0.88, 0.97) if rng.random() < 0.5 else rng.uniform(1.03, 1.1))
    image = image.point([min(255, round(i * gain)) for i in range(256)] * 3)

    def moved(x: float, y: float) -> tuple[float, float]:
        u, v = (x - box[0]) * w / (box[2] - box[0]), (y - box[1]) * h / (box[3] - box[1])
        return round(min(max(u, 0), w), 1), round(min(max(v, 0), h), 1)

    caption = original.caption
    # The captions of hard kinds stay: their wording matters.
    if original.described is not None and original.kind in MAIN_KINDS and rng.random() < 0.5:
        caption = describe(original.described, rng)
    return replace(
        original,
        index=index,
        kind="near_duplicate",
        image=jpeg(image, int(rng.integers(60, 86))),
        caption=caption,
        quads=tuple((moved(*a), moved(*b), moved(*c), moved(*d)) for a, b, c, d in original.quads),
        objects=(),
        original_size=_plausible_size(rng),
        source=original.index,
    )


def _keywords(caption: str, scene: Scene, rng: np.random.Generator) -> str:
    """A short caption, or the subject of a longer one: "two red apples", "red apples" or "apples"."""
    words = caption.rstrip(".").replace(",", "").split()
    if len(caption) <= 24 and rng.random() < 0.4:
        return " ".join(words)
    noun = OBJECTS[scene.subject]
    start = end = next(i for i, word in enumerate(words) if word.lower() in (noun.one, noun.many))
    for _ in range(int(rng.integers(3))):
        if start > 0 and words[start - 1].lower() in _NOUN_PHRASE_WORDS:
            start -= 1
    return " ".join(words[start : end + 1])


def _beside(scene: Scene, rng: np.random.Generator) -> Where:
    """Returns where text hides least of the subject."""
    if scene.relation == "above":
        return "bottom"
    if scene.relation in ("below", "in front of"):
        return "top"
    return "top" if rng.random() < 0.65 else "bottom"


def _banner(scene: Scene, size: int, rng: np.random.Generator) -> Image.Image:
    """Draws a strip 4 to 8 times as long as wide: the scene in the middle, its empty place mirrored outwards."""
    canvas = draw_place(scene.place, size, rng)
    empty = develop(canvas, rng)
    draw_objects(canvas, scene, rng)
    full = develop(canvas, rng)
    side, ratio = (64, 80, 96, 128)[int(rng.integers(4))], int(rng.integers(4, 9))
    upright = rng.random() < 0.35
    long = side * ratio
    strip = Image.new("RGB", (side, long) if upright else (long, side))
    start = (long - side) // 2
    mirror = Image.Transpose.FLIP_TOP_BOTTOM if upright else Image.Transpose.FLIP_LEFT_RIGHT
    for k in range(-(ratio // 2) - 1, ratio // 2 + 2):
        tile = (full if k == 0 else empty).resize((side, side), Image.Resampling.LANCZOS)
        at = start + k * side
        strip.paste(tile.transpose(mirror) if k % 2 else tile, (0, at) if upright else (at, 0))
    return strip


def _plausible_size(rng: np.random.Generator) -> tuple[int, int]:
    """Draws a usual image size: shorter side 300 to 800, from square to 16:9."""
    short = int(rng.integers(300, 801))
    long = round(short * (1.0, 1.25, 4 / 3, 1.5, 16 / 9)[int(rng.integers(5))])
    return (long, short) if rng.random() < 0.7 else (short, long)


def jpeg(image: Image.Image, quality: int) -> bytes:
    """Encodes an image as JPEG."""
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()
