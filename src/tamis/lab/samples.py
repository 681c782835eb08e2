"""One sample of a lab pool: a pair whose true kind is known, as a pure function of (seed, index).

The five main kinds are those of the pilot study in T-MARS (Maini et al. 2023, section 3), in its shares; the
defects are what else goes wrong in pools from the web, and the hard kinds what is hard to tell from a good pair.
No sample depends on another having been made before it: a duplicate makes its original again. That lets shards be
made in any order by any number of processes.
"""

import hashlib
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from PIL import Image

from tamis.errors import unknown
from tamis.lab.captions import abstract_caption, describe
from tamis.lab.drawing import DrawnObject, develop, draw_objects, draw_place, render_with_boxes
from tamis.lab.foreign import foreign_caption
from tamis.lab.hard import HARD_KINDS, Detail, HardKind, say, scene_for
from tamis.lab.large_text import paint_large_text, paint_watermark
from tamis.lab.painted_text import PaintedText, Quad, Where, paint_text
from tamis.lab.scenes import Scene, sample_scene, zipf_weights
from tamis.lab.world import COLOURS, COUNTS, OBJECTS, STAMPS

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
# Of all samples, in equal parts. High enough that a demo's pool of a thousand pairs has some of each.
DEFECT_SHARE = 0.12
# Of the samples of the mix `hard` that have no defect, in equal parts; the rest are the main kinds in LAION's shares,
# so that what is known of those holds for them. A sixteenth for each hard kind is 250 of 4,000 pairs, enough for an AUC
# to some three points. Equal, so that no kind has more for what some filter does to it.
HARD_SHARE = 0.5

_Odds = tuple[tuple[Kind, float], ...]  # probabilities that sum to 1
_NOUN_PHRASE_WORDS = frozenset({"a", "an", *COLOURS, *(choices[0] for choices in COUNTS.values())})


@dataclass(frozen=True, kw_only=True)
class LabSample:
    """A pair with everything that is true about it."""

    index: int  # its number in the pool
    kind: Kind
    image: bytes  # the file's bytes (JPEG)
    caption: str
    scene: Scene  # what is drawn; for tiny and cut-off images what would be
    described: Scene | None  # the scene that the caption is about; None where it is about none (abstract, empty)
    lines: tuple[str, ...] = ()  # the words painted on the image, line by line; empty for none
    quads: tuple[Quad, ...] = ()  # the four corners of each painted line, in pixels of the stored image
    #: what is drawn and where, from the back to the front, in pixels; only for images that are stored as they were
    #: drawn (not cropped, stretched or shrunk)
    objects: tuple[DrawnObject, ...] = ()
    size: tuple[int, int]  # width and height of the stored image
    original_size: tuple[int, int]  # width and height the image claims to have had on the web
    source: int | None = None  # for duplicates, the index of the original
    #: of the hard kinds, what else is true: see `tamis.lab.hard.say`, `paint_large_text`, `paint_watermark`
    details: Mapping[str, Detail] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The words painted on the image; "" for none."""
        return " ".join(self.lines)


def kind_shares(mix: Mix, *, defects: bool) -> dict[Kind, float]:
    """Probability of each kind; sums to 1.

    `laion` has the five main kinds as LAION has them, `uniform` in equal shares; half of `hard` is as `laion`, the
    other half are the eight hard kinds in equal shares.
    """
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
    """Probability of each kind that somebody gave a share; sums to 1, in an order that is not theirs."""
    for kind, share in shares.items():
        if kind not in KINDS:
            raise ValueError(unknown("kind", kind, KINDS))
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
    """Make the sample with this number.

    Args:
        index, seed: name the sample; the same two give the same sample.
        mix, defects: the pool it belongs to: how often each kind and each object class occurs.
        image_size: pixels a side.
        kind: make one of this kind, whatever the pool's shares say.
        shares: how often each kind occurs, in place of what `mix` and `defects` say of it; see `own_shares`.

    Cost: 5 ms at 128 pixels on one CPU core.
    """
    rng = _rng(seed, index)
    odds = _odds(mix, defects) if shares is None else tuple(own_shares(shares).items())
    drawn = _kind(rng, odds)
    kind = drawn if kind is None else kind
    if kind in ("near_duplicate", "exact_duplicate"):
        source = _source(index, rng, seed=seed, odds=odds)
        if source is not None:
            original = make_sample(source, seed=seed, mix=mix, defects=defects, image_size=image_size, shares=shares)
            if kind == "exact_duplicate":
                return replace(original, index=index, kind=kind, source=source)
            return _near_duplicate(original, index, rng)
        kind = "visual"  # nothing before it to repeat

    weights = _class_weights(mix)
    if kind in HARD_KINDS:
        return _hard_sample(index, kind, rng, weights=weights, image_size=image_size)
    scene = sample_scene(rng, weights)
    if kind == "not_english":
        # Those tables have singular nouns only.
        scene = replace(scene, count=1)
    described: Scene | None = scene
    if kind in ("mismatched", "text_only"):
        described = sample_scene(rng, weights, unlike=scene)
    elif kind in ("abstract", "empty_caption"):
        described = None
    if described is None:
        caption = abstract_caption(rng) if kind == "abstract" else ("", " ", "\n", "  \t")[int(rng.integers(4))]
    else:
        caption = foreign_caption(scene, rng) if kind == "not_english" else describe(described, rng)

    objects: tuple[DrawnObject, ...] = ()
    if kind == "odd_aspect":
        picture = _banner(scene, image_size, rng)
    else:
        picture, objects = render_with_boxes(scene, image_size, rng)
    painted = PaintedText(picture, (), ())
    if kind == "visual_random_text":
        stamp = STAMPS[int(rng.integers(len(STAMPS)))]
        painted = paint_text(picture, stamp, rng, where=_beside(scene, rng))
    elif kind == "visual_text":
        painted = paint_text(picture, _keywords(caption, scene, rng), rng, where=_beside(scene, rng))
    elif kind == "text_only":
        painted = paint_text(picture, caption, rng, most_lines=5)
    picture = painted.image

    original_size = _plausible_size(rng)
    if kind == "tiny":
        side = int(rng.integers(8, 41))
        picture = picture.resize((side, side), Image.Resampling.LANCZOS)
        original_size = picture.size
    elif kind == "odd_aspect":
        original_size = picture.size
    data = _jpeg(picture, int(rng.integers(86, 96)))
    if kind == "truncated":
        data = data[: int(len(data) * rng.uniform(0.3, 0.75))]
    return LabSample(
        index=index,
        kind=kind,
        image=data,
        caption=caption,
        scene=scene,
        described=described,
        lines=painted.lines,
        quads=painted.quads,
        objects=() if kind == "tiny" else objects,
        size=picture.size,
        original_size=original_size,
    )


def _hard_sample(
    index: int, kind: HardKind, rng: np.random.Generator, *, weights: Mapping[str, float], image_size: int
) -> LabSample:
    scene = scene_for(kind, rng, weights)
    said = say(kind, scene, rng, weights)
    picture, objects = render_with_boxes(scene, image_size, rng)
    painted, details = PaintedText(picture, (), ()), dict(said.details)
    if kind == "large_text":
        assert said.described is not None
        noun = OBJECTS[said.described.subject]
        word = noun.one if said.described.count == 1 else noun.many
        painted, how = paint_large_text(picture, word, rng)
        details |= how
    elif kind == "watermark":
        painted, how = paint_watermark(picture, rng)
        details |= how
    original_size = _plausible_size(rng)
    return LabSample(
        index=index,
        kind=kind,
        image=_jpeg(painted.image, int(rng.integers(86, 96))),
        caption=said.caption,
        scene=scene,
        described=said.described,
        lines=painted.lines,
        quads=painted.quads,
        objects=objects,
        size=painted.image.size,
        original_size=original_size,
        details=details,
    )


def sample_uid(seed: int, index: int) -> str:
    """The sample's own 32 hex digits; duplicates differ in it."""
    return hashlib.blake2b(f"tamis lab {seed} {index}".encode(), digest_size=16).hexdigest()


def _rng(seed: int, index: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence([seed, index]))


@lru_cache(maxsize=4)
def _odds(mix: Mix, defects: bool) -> _Odds:
    return tuple(kind_shares(mix, defects=defects).items())


@lru_cache(maxsize=3)
def _class_weights(mix: Mix) -> dict[str, float]:
    return zipf_weights(0.0 if mix == "uniform" else 1.0)


def _kind(rng: np.random.Generator, odds: _Odds) -> Kind:
    """The first draw of every sample: a duplicate asks for the kind of another without making it."""
    point = rng.random()
    for kind, share in odds:
        point -= share
        if point < 0:
            return kind
    return odds[-1][0]  # rounding left the point at the very end


def _source(index: int, rng: np.random.Generator, *, seed: int, odds: _Odds) -> int | None:
    """An earlier sample without a defect; None where fifty draws find none, as at the beginning of a pool."""
    for _ in range(50 if index else 0):
        source = int(rng.integers(index))
        if _kind(_rng(seed, source), odds) not in DEFECT_KINDS:
            return source
    return None


def _near_duplicate(original: LabSample, index: int, rng: np.random.Generator) -> LabSample:
    """The original, a little cropped, made brighter or darker, compressed again; perhaps reworded."""
    picture = Image.open(io.BytesIO(original.image)).convert("RGB")
    w, h = picture.size
    left, top, right, bottom = (float(v) for v in rng.uniform(0, 0.03, size=4))
    box = (left * w, top * h, w * (1 - right), h * (1 - bottom))
    picture = picture.resize((w, h), Image.Resampling.BICUBIC, box=box)
    gain = float(rng.uniform(0.88, 0.97) if rng.random() < 0.5 else rng.uniform(1.03, 1.1))
    picture = picture.point([min(255, round(i * gain)) for i in range(256)] * 3)

    def moved(x: float, y: float) -> tuple[float, float]:
        u, v = (x - box[0]) * w / (box[2] - box[0]), (y - box[1]) * h / (box[3] - box[1])
        return round(min(max(u, 0), w), 1), round(min(max(v, 0), h), 1)

    caption = original.caption
    # What a hard kind's caption says and leaves out is its point.
    if original.described is not None and original.kind in MAIN_KINDS and rng.random() < 0.5:
        caption = describe(original.described, rng)
    return replace(
        original,
        index=index,
        kind="near_duplicate",
        image=_jpeg(picture, int(rng.integers(60, 86))),
        caption=caption,
        quads=tuple((moved(*a), moved(*b), moved(*c), moved(*d)) for a, b, c, d in original.quads),
        objects=(),
        original_size=_plausible_size(rng),
        source=original.index,
    )


def _keywords(caption: str, scene: Scene, rng: np.random.Generator) -> str:
    """A short caption as it is, of a longer one its subject: "two red apples", "red apples" or "apples"."""
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
    """Where writing hides least of the subject."""
    if scene.relation == "above":
        return "bottom"
    if scene.relation in ("below", "in front of"):
        return "top"
    return "top" if rng.random() < 0.65 else "bottom"


def _banner(scene: Scene, size: int, rng: np.random.Generator) -> Image.Image:
    """The scene in the middle of a strip 4 to 8 times as long as wide, its place mirrored outwards."""
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
    """A size as images on the web have it: shorter side 300 to 800, shape from square to 16:9."""
    short = int(rng.integers(300, 801))
    long = round(short * (1.0, 1.25, 4 / 3, 1.5, 16 / 9)[int(rng.integers(5))])
    return (long, short) if rng.random() < 0.7 else (short, long)


def _jpeg(picture: Image.Image, quality: int) -> bytes:
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=quality)
    return out.getvalue()
