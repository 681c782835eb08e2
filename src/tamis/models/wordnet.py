"""WordNet's nouns: which synset a word means first, from WordNet's own files."""

from __future__ import annotations

import io
import zipfile
from functools import lru_cache
from pathlib import Path

from tamis.errors import RecipeError

#: How a noun's ending is taken off, in WordNet's order ("detachment rules" of its program morphy).
_ENDINGS = (
    ("s", ""),
    ("ses", "s"),
    ("ves", "f"),
    ("xes", "x"),
    ("zes", "z"),
    ("ches", "ch"),
    ("shes", "sh"),
    ("men", "man"),
    ("ies", "y"),
)


class Nouns:
    """Nouns and what each means first.

    Attributes:
        first: lemma to the number of its first synset: the sense that WordNet counted most often.
        irregular: plural to its singulars ("geese" to "goose").

    Source: WordNet 3.0's manual pages wndb(5) for the files and morphy(7) for the endings.
    """

    def __init__(self, first: dict[str, int], irregular: dict[str, tuple[str, ...]]) -> None:
        self.first, self.irregular = first, irregular

    def synset(self, word: str) -> int | None:
        """Returns the number of the first synset of a word that is a noun, in whatever number; None without one.

        The word itself counts before its singular ("glasses" are spectacles), an irregular singular before endings,
        and one ending is taken off at most. So this is the first of what NLTK's `wordnet.synsets` gives, wherever that
        is a noun: nouns stand first there.
        """
        word = word.lower()
        forms = self.irregular.get(word)
        if forms is None:
            forms = tuple(word[: -len(old)] + new for old, new in _ENDINGS if word.endswith(old))
        return next((self.first[form] for form in (word, *forms) if form in self.first), None)


@lru_cache(maxsize=2)
def load_nouns(wordnet: str) -> Nouns:
    """Reads WordNet's nouns: 118 thousand of them in 0.2 s.

    Args:
        wordnet: a folder that holds `index.noun` and, for irregular plurals, `noun.exc` (NLTK's corpora/wordnet, or
            the folder "dict" of WordNet), or a zip file of it as NLTK downloads it. ImageNet's ids are WordNet 3.0's.

    Raises:
        RecipeError: there is no `index.noun`, or it is not WordNet's.
    """
    try:
        index, exceptions = _texts(Path(wordnet).expanduser())
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError) as error:
        raise RecipeError(f"WordNet's files cannot be read from {wordnet}: {error}") from error
    if index is None:
        raise RecipeError(
            f"{wordnet} holds no index.noun: name the folder of WordNet's files, such as nltk_data/corpora/wordnet"
        )
    first = {}
    for place, line in enumerate(index.splitlines(), 1):
        if not line or line.startswith(" "):  # the licence
            continue
        fields = line.split()
        # lemma, part of speech, senses, pointers, their symbols, senses, tagged senses, a synset for each sense
        try:
            first[fields[0]] = int(fields[-int(fields[2])])
        except (ValueError, IndexError) as error:
            raise RecipeError(f"line {place} of {wordnet}'s index.noun is not as WordNet writes them") from error
    irregular = {words[0]: tuple(words[1:]) for words in map(str.split, (exceptions or "").splitlines()) if words}
    return Nouns(first, irregular)


def _texts(path: Path) -> tuple[str | None, str | None]:
    """Returns what index.noun and noun.exc hold; None for one that is not there."""
    names = ("index.noun", "noun.exc")
    if path.is_dir():
        files = [path / name for name in names]
        index, exceptions = (file.read_text(encoding="utf-8") if file.is_file() else None for file in files)
        return index, exceptions
    with zipfile.ZipFile(path) as packed:
        inside = {Path(name).name: name for name in packed.namelist()}
        index, exceptions = (
            io.TextIOWrapper(packed.open(inside[name]), encoding="utf-8").read() if name in inside else None
            for name in names
        )
    return index, exceptions
