"""Tags: words that people give to pairs. What a tag may be, and the step that selects by tags."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tamis.errors import RecipeError, unknown_message
from tamis.selectors.outcome import Selection, verdict
from tamis.store.table import Table

#: The column of tags: a row's tags, sorted and joined; null without a tag.
TAGS, SEPARATOR = "tags", ","

#: Two tags that exclude each other. The column `label` has them as 1 and 0.
GOOD, BAD = "good", "bad"

#: Maximum characters of a tag.
LONGEST_TAG = 60

_JOINERS = "\u200c\u200d"  # within words of Persian and within emoji


def tags_in(text: str | None) -> list[str]:
    """Returns the tags of a cell of the column."""
    return text.split(SEPARATOR) if text else []


def checked_tag(text: Any) -> str:
    """Returns a tag without surrounding and repeated spaces, in Unicode's composed form (NFC).

    Raises:
        RecipeError: it is no text, empty or too long, or has a comma or an invisible character.
    """
    tag = " ".join(unicodedata.normalize("NFC", text).split()) if isinstance(text, str) else ""
    if not tag.strip(_JOINERS) or len(tag) > LONGEST_TAG:
        raise RecipeError(f"a tag has 1 to {LONGEST_TAG} characters, got {str(text)[: 2 * LONGEST_TAG]!r}")
    if SEPARATOR in tag or any(unicodedata.category(one) in ("Cc", "Cf", "Cs") for one in tag if one not in _JOINERS):
        raise RecipeError(f"a tag has no comma and no invisible characters, got {tag!r}")
    return tag


@dataclass(frozen=True, kw_only=True)
class Tagged:
    """Keeps rows that have at least one of some tags, which people gave in `tamis explore`.

    In recipes: `tagged: blurry` or `tagged: [blurry, text]`.

    Attributes:
        tags: the tag or tags.
    """

    name: ClassVar[str] = "tagged"
    reads: ClassVar[frozenset[str]] = frozenset({TAGS})
    tags: str | tuple[str, ...]

    def __post_init__(self) -> None:
        if not self._wanted:
            raise ValueError("tagged needs at least one tag, got an empty list")

    @property
    def _wanted(self) -> list[str]:
        return [checked_tag(tag) for tag in ([self.tags] if isinstance(self.tags, str) else self.tags)]

    @property
    def _listed(self) -> str:
        return " or ".join(self._wanted)

    @property
    def described(self) -> str:
        return f"tagged {self._listed}"

    def select(self, table: Table) -> Selection:
        """Decides about the candidates.

        Raises:
            RecipeError: no row of the table has one of the tags; the nearest that there is is named.
        """
        keep, known, wanted = np.zeros(len(table), bool), {GOOD, BAD}, set(self._wanted)

        def work(place: slice, columns: dict[str, Any]) -> None:
            words = columns[TAGS]
            if isinstance(words, np.ndarray):  # the column `label` of a run whose pairs were labelled, never tagged
                words = pa.array(np.where(words == 1, GOOD, BAD), pa.string(), mask=np.isnan(words))
            words = words if pa.types.is_dictionary(words.type) else words.dictionary_encode()
            sets = [tags_in(text) for text in words.dictionary.to_pylist()]
            known.update(*sets)
            has = np.array([*(not wanted.isdisjoint(tags) for tags in sets), False])
            keep[place] = has[words.indices.fill_null(-1).to_numpy(zero_copy_only=False)]

        list(table.map([TAGS], work))
        for tag in sorted(wanted - known):
            raise RecipeError(f"tagged: {unknown_message('tag', tag, known)}")
        return verdict(self, keep, np.zeros(0, bool), table.candidates(), f"not tagged {self._listed}")
