"""WordNet's nouns: the first meaning of a word, from WordNet's own files."""

from __future__ import annotations

import zipfile
from functools import lru_cache
from pathlib import Path

from tamis.errors import RecipeError

#: How a noun's ending is taken off, in WordNet's order ("detachment rules" of its program morphy).
_ENDINGS = (
    *(("s", ""), ("ses", "s"), ("ves", "f"), ("xes", "x"), ("zes", "z")),
    *(("ches", "ch"), ("shes", "sh"), ("men", "man"), ("ies", "y")),
)


class Nouns:
    """Nouns and their first meanings.

    Attributes:
        first: lemma to the number of its first synset: the sense that WordNet counted most often.
        irregular: plural to its singulars ("geese" to "goose").

    Source: WordNet 3.0's manual pages wndb(5) for the files and morphy(7) for the endings.
    """

    def __init__(self, first: dict[str, int], irregular: dict[str, tuple[str, ...]]) -> None:
        self.first, self.irregular = first, irregular

    def synset(self, word: str) -> int | None:
        """Returns the number of the first synset of a noun, singular or plural; None for other words.

        The word itself counts before its singular ("glasses" are spectacles), an irregular singular before endings,
        and at most one ending is taken off. This is the first noun that NLTK's `wordnet.synsets` gives.
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
    path = Path(wordnet).expanduser()
    try:
        index, exceptions = (_text(path, name) for name in ("index.noun", "noun.exc"))
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


def _text(path: Path, name: str) -> str | None:
    """Returns what a file in a folder or a zip file holds, None if there is none."""
    if path.is_dir():
        return (path / name).read_text(encoding="utf-8") if (path / name).is_file() else None
    with zipfile.ZipFile(path) as archive:
        inside = [member for member in archive.namelist() if Path(member).name == name]
        return archive.read(inside[-1]).decode("utf-8") if inside else None
