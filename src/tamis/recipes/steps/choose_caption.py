"""A step that chooses the text of each pair: its alt-text or a generated caption."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tamis.core.arrays import Mask, Rows
from tamis.core.errors import check_effect
from tamis.core.ids import uniforms
from tamis.core.math.order import nth_largest, number_of, round_half_up
from tamis.recipes.steps.outcome import Blockwise, ReadsColumns, Rule
from tamis.recipes.steps.steps import Of, rows_of
from tamis.runs.expression import parse
from tamis.runs.reasons import Codes, DropReason, codes_in
from tamis.runs.table import Table

#: Numbers the draw among those of a uid; the code of rows that carry their other caption.
_MIX, _OTHER = 35, 3


@dataclass(frozen=True, kw_only=True)
class ChooseCaption(ReadsColumns, Blockwise):
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

    Cost: two or three passes over the scores. Memory: 100 MB, and a byte per row (of many rows in a file).
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

    def fit(self, table: Table) -> Rule:
        self.check_columns(table)
        score_of, other_of, cut = parse(self.score).fit(table), parse(self.other).fit(table), self._cut(table)

        def judge(span: slice, columns: dict[str, Any], candidates: Mask) -> tuple[slice, Codes, Rows]:
            exists = pc.greater(pc.utf8_length(columns[self.text].cast(pa.string())), 0).fill_null(False)
            score, other = score_of(columns, candidates.size), other_of(columns, candidates.size)
            other = np.where(exists.to_numpy(zero_copy_only=False), other, np.nan)
            alt, chosen = score >= cut, other >= cut  # False for NaN
            both = np.flatnonzero(candidates & alt & chosen)
            chosen &= ~alt
            if self.mix:
                high, low = (half[both] for half in table.block_uids(span))
                chosen[both] = uniforms(high, low, seed=self.seed, counters=[np.full(both.size, _MIX)]) < self.mix
            codes = np.select([chosen, alt, np.isnan(score) & np.isnan(other)], [_OTHER, 0, 2], 1).astype(np.uint8)
            return span, codes, np.bincount(codes[candidates], minlength=_OTHER + 1)

        known, counts = codes_in(len(table)), np.zeros(_OTHER + 1, np.int64)
        for span, codes, some in table.scan(sorted(self.reads), judge):
            known[span] = codes
            counts += some
        facts = {"threshold": cut if np.isfinite(cut) else None, "alt_texts": int(counts[0])}
        facts |= {"other_captions": int(counts[_OTHER])}
        reasons = ["neither text reaches the threshold", f"no value for {self.score} and {self.other}"]
        return Rule(
            decide=lambda span, columns, candidates: known[span] % _OTHER,
            reasons=[DropReason(text=text) for text in reasons],
            lacking=f"{self.score} and {self.other}",
            facts=facts,
            joined=lambda keep: {"caption": ((known[:] == _OTHER) & keep).view(np.uint8)},
        )

    def _cut(self, table: Table) -> float:
        """Returns the threshold; infinity if no score can reach it."""
        if self.threshold is not None:
            return self.threshold
        n = round_half_up(1 - self.quantile, rows_of(table, self.of))
        cut, found = nth_largest(parse(self.score).keys(table), lambda judged: np.minimum(n, judged), len(table))[:2]
        return float(number_of(cut)[0]) if found[0] else np.inf
