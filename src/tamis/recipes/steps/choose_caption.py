"""A step that chooses the text of each pair: its alt-text or a generated caption."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.core.arrays import Float64s
from tamis.core.errors import check_effect
from tamis.core.ids import uniforms
from tamis.core.math.order import round_half_up
from tamis.recipes.steps.outcome import Drops, ReadsColumns, Selection
from tamis.recipes.steps.steps import Of, rows_of
from tamis.runs.expression import parse
from tamis.runs.table import Table

#: Numbers the draw among those of a uid.
_MIX = 35


@dataclass(frozen=True, kw_only=True)
class ChooseCaption(ReadsColumns):
    """Keeps the alt-text where it matches the image, else the other caption if that does, else drops the pair.

    A text without a score does not reach the threshold; rows without both scores are dropped and counted as missing.
    Generated captions bring back images whose alt-text is poor. They are plainer and less diverse than alt-texts, so
    good alt-texts stay. Exports, training and the bench use the chosen texts.

    Attributes:
        score: an expression: how well the alt-text matches.
        other: an expression on the same scale: how well the other caption matches.
        text: the column with the other caption.
        quantile: the threshold is this quantile of the alt-texts' scores: at 0.7, the best 30 % reach it.
        threshold: the threshold itself, instead of a quantile.
        of: with `quantile`: the best 30 % are of the whole pool, scored or not, or of the candidates.
        mix: probability of the other caption where both texts reach the threshold; drawn by uid.
        seed: another seed draws others.

    Cost: one selection of the k-th largest score; 20 bytes per row of memory.
    Source: Nguyen et al. 2023, "Improving multimodal datasets with image captioning" (NeurIPS, arXiv 2307.10350),
        section 4: alt-texts of the top 30 %, and BLIP-2's captions filtered by the same threshold.
    """

    name: ClassVar[str] = "choose_caption"
    scores, words = ("score", "other"), ("text",)
    score: str = "clip"
    other: str = "generated_clip"
    text: str = "generated_caption"
    quantile: float = 0.7
    threshold: float | None = None
    of: Of = "pool"
    mix: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("quantile", "mix"):
            if not 0 <= (value := getattr(self, name)) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {value}")
        super().__post_init__()
        if self.threshold is not None:
            if np.isnan(self.threshold):
                raise ValueError("threshold needs a number, got nan")
            check_effect(self, "quantile", "of", because="threshold is set")
        if not self.mix:
            check_effect(self, "seed", because="with mix: 0 nothing is drawn")

    @property
    def described(self) -> str:
        share = f"the top {100 - 100 * self.quantile:g} % of the {self.of} by {self.score}"
        return f"alt-text or {self.text}, at least {share if self.threshold is None else f'{self.threshold:g}'}"

    def select(self, table: Table) -> Selection:
        self.check_columns(table)
        candidates, exists = table.candidates, np.zeros(len(table), bool)
        for span, texts in table.map([self.text], lambda span, columns: (span, columns[self.text])):
            exists[span] = pc.greater(pc.utf8_length(texts.cast(pa.string())), 0).fill_null(False).to_numpy(False)
        score, other = parse(self.score).values(table), np.where(exists, parse(self.other).values(table), np.nan)
        cut = self._cut(table, score)
        alt, reaches = (values >= cut for values in (score, other))  # False for NaN
        missing = np.isnan(score) & np.isnan(other) & candidates
        chosen = candidates & reaches & ~alt
        both = np.flatnonzero(candidates & alt & reaches) if self.mix else np.zeros(0, np.int64)
        draws = uniforms(*table.uids(both), seed=self.seed, counters=[np.full(both.size, _MIX)])
        chosen[both[draws < self.mix]] = True
        facts = {
            "threshold": cut if np.isfinite(cut) else None,
            "alt_texts": int(np.count_nonzero(candidates & alt & ~chosen)),
            "other_captions": int(np.count_nonzero(chosen)),
        }
        drops = Drops(candidates)
        drops.drop(missing, f"no value for {self.score} and {self.other}", counted="missing")
        drops.drop(alt | reaches, "neither text reaches the threshold", others=True)
        found = drops.selection(facts=facts)
        return replace(found, caption=chosen.astype(np.uint8))

    def _cut(self, table: Table, score: Float64s) -> float:
        """Returns the threshold; infinity if no score can reach it."""
        if self.threshold is not None:
            return self.threshold
        judged = score[table.candidates & ~np.isnan(score)]
        n = min(round_half_up(1 - self.quantile, rows_of(table, self.of)), judged.size)
        return float(np.partition(judged, judged.size - n)[judged.size - n]) if n else np.inf
