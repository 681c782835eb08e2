"""`tamis train norms`: fits the built-in concreteness model from norms of words and expressions and rated captions.

The captions' texts are not part of Tamis: `norms_ratings.json` holds which rows of two public files a language model
read and rated, from 0 (nothing to see) to 3 (a scene or thing that everybody would picture alike); fitting needs
the files.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Float64s
from tamis.data import Device
from tamis.errors import PoolError, require
from tamis.models.texts.norms import (
    NormsHead,
    WordsHead,
    bounded,
    columns_of,
    facts_of,
    held_out,
    save_norms,
    tokenizer_of,
)
from tamis.models.texts.sentence import load_sentence_encoder
from tamis.pool.texts import read_texts
from tamis.store.targets import check_new_folder, new_folder
from tamis.train.agreement import Agreement, agreement
from tamis.train.loop import Settings, fit

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

#: Where a data folder holds the norms (Brysbaert, Warriner and Kuperman 2014, "Concreteness ratings for 40 thousand
#: generally known English word lemmas").
WORD_NORMS = "brysbaert_concreteness/Concreteness_ratings_Brysbaert_et_al_BRM.txt"

#: The norms of expressions of one to ten words (Muraki, Abdalla, Brysbaert and Pexman 2023, "Concreteness ratings for
#: 62,000 English multiword expressions").
EXPRESSION_NORMS = "multiword_concreteness/ratings.csv"

#: The captions of COCO's val2017 (Chen et al. 2015, "Microsoft COCO captions"), which people wrote of photographs.
DESCRIPTIONS = "captions_val2017.json"

_ENCODER = "minilm"
_HIDDEN = 128
_DROPOUT = 0.3
_SCALE = 20.0  # a unit row's numbers are about 0.05; networks begin best with numbers of about 1
_BATCH = 256
_EPOCHS = 6
_RIDGE = 6.0
_FACT_WEIGHT = 0.1  # standardised columns beside numbers of about 0.05
_NEAR_WEIGHT = 0.1
_WHOLE_WEIGHT = 0.5  # what the words' network says may count for much
_CENTRES = 256
_FOLDS = 10
_MADE_UP = 1500  # strings that mean nothing
_BESIDE = 6000  # words and expressions that keep short texts on the captions' scale
_BESIDE_WEIGHT = 0.1  # of each of them, beside 1 of a rated caption
_DESCRIPTIONS = 1000  # of photographs, by people who looked at them
_WORD_TOP = 0.85  # of 1: what the most concrete word is worth among captions, of which a scene is more


def fit_norms(data: Path, out: Path, device: Device) -> list[str]:
    """Fits the head, writes its folder and returns what was measured, a line each.

    A tenth of the words and expressions, told by a hash, is never fitted on. The captions' figure is that of ten-fold
    cross-validation; the head that is written was fitted on all of them.

    Args:
        data: a folder with the norms (`WORD_NORMS`, `EXPRESSION_NORMS`), `DESCRIPTIONS`, and the files that
            `norms_ratings.json` names.
        out: the folder to write.
        device: where the encoder runs.

    Raises:
        PoolError: a file is not there.
        DependencyError: torch or the encoder's package is not installed.

    Cost: about three minutes on one CPU core, most of it the embeddings of 100,000 words and expressions.
    """
    require("torch", "sklearn", extra="sentence")
    import torch
    from sklearn.cluster import KMeans

    check_new_folder(out)
    words, norms = _words(data)
    by_word = {word.lower(): norm for word, norm in zip(words, norms, strict=True) if not held_out(word)}
    expressions, of_expressions = _expressions(data)
    captions, ratings = _captions(data)
    encode, tokenizer = load_sentence_encoder(_ENCODER, device), tokenizer_of(_ENCODER)
    nothing = made_up(_MADE_UP)
    described = _descriptions(data)
    scenes = described[:_DESCRIPTIONS]
    short = [*words, *expressions, *nothing, *scenes]
    log.info("embedding %d words and expressions, and %d captions", len(short), len(captions))
    embeddings, vectors = encode(short), encode(captions)
    wanted = np.concatenate([norms, of_expressions, np.zeros(len(nothing)), np.ones(len(scenes))])
    aside = np.array([held_out(text) for text in short])
    of_network = ~aside
    of_network[len(short) - len(scenes) :] = False
    torch.manual_seed(0)
    of_words = _fit_words(embeddings[of_network], wanted[of_network])

    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    own = [_norm_of(name, by_word) for name in names]
    known = np.array([norm is not None for norm in own])
    value = np.array([0.0 if norm is None else norm for norm in own], np.float32)
    usual = _usual(described, tokenizer)
    centres = KMeans(_CENTRES, n_init=1, random_state=0).fit(vectors).cluster_centers_.astype(np.float32)

    def columns(texts: list[str], rows: NDArray[np.float32]) -> Float64s:
        facts = facts_of(texts, tokenizer, value, known, usual)
        return columns_of(rows, facts, of_words.words(rows), centres).astype(np.float64)

    beside = _chosen_beside(aside, len(nothing) + len(scenes))
    worth = np.where(np.arange(len(short)) < len(short) - len(scenes), _WORD_TOP, 1.0)
    given = _Given(
        captions=columns(captions, vectors),
        ratings=ratings,
        beside=columns([short[n] for n in beside], embeddings[beside]),
        wanted=(worth * wanted)[beside],
        width=vectors.shape[1],
    )
    weight, bias = given.fit(np.ones(len(ratings), bool))
    head = NormsHead(
        **vars(of_words),
        piece_value=value,
        piece_known=known,
        piece_described=usual,
        centres=centres,
        weight=weight.astype(np.float32),
        bias=np.array([bias], np.float32),
    )
    unseen = np.flatnonzero(aside[: len(words) + len(expressions)])
    found = bounded(columns([short[n] for n in unseen], embeddings[unseen]) @ weight + bias)
    lengths = np.where(unseen < len(words), 0, [len(short[n].split()) for n in unseen])
    measured: dict[str, str] = {}
    for what, rows in (
        ("words held out", lengths == 0),
        ("expressions of two words held out", lengths == 2),
        ("expressions of three words and more held out", lengths >= 3),
    ):
        measured |= _told(what, agreement(found[rows], wanted[unseen][rows]))
    crossed = given.cross_validated()
    measured |= _told("captions, ten-fold", agreement(crossed, ratings))
    counts = np.array([len(caption.split()) for caption in captions])
    for what, rows in (("one or two words", counts <= 2), ("16 words and more", counts >= 16)):
        measured |= _told(f"captions of {what} among them", agreement(crossed[rows], ratings[rows]))
    with new_folder(out) as folder:
        save_norms(folder, head, _ENCODER, measured)
        (folder / "README.md").write_text(_card(measured), encoding="utf-8")
    return [f"{what}: {number}" for what, number in measured.items()]


def made_up(count: int, seed: int = 0) -> list[str]:
    """Returns strings that nobody can picture: letters at random, numbers, codes of products and files."""
    rng = np.random.default_rng(seed)
    letters, digits = "abcdefghijklmnopqrstuvwxyz", "0123456789"

    def run(signs: str, least: int, most: int) -> str:
        return "".join(rng.choice(list(signs), int(rng.integers(least, most + 1))).tolist())

    kinds = (
        lambda: " ".join(run(letters, 3, 9) for _ in range(int(rng.integers(1, 4)))),
        lambda: run(digits, 1, 9),
        lambda: f"{run(letters, 2, 4).upper()}-{run(digits, 2, 5)}{run(letters, 0, 2)}",
        lambda: f"{['IMG', 'DSC', 'image', 'screenshot', 'P'][int(rng.integers(5))]}_{run(digits, 3, 6)}",
        lambda: f"{run(letters, 3, 6)}-{run(letters, 3, 6)}-{run(digits, 2, 4)}.jpg",
    )
    return [kinds[number % len(kinds)]() for number in range(count)]


@dataclass(frozen=True)
class _Given:
    """What the linear layer is fitted on.

    Attributes:
        captions, ratings: (n, c) columns and (n,) ratings in [0, 1], each of weight 1.
        beside, wanted: (m, c) and (m,) of words, expressions, strings that mean nothing, and descriptions.
        width: of an embedding.
    """

    captions: Float64s
    ratings: Float64s
    beside: Float64s
    wanted: Float64s
    width: int

    def fit(self, learned: NDArray[np.bool_]) -> tuple[Float64s, float]:
        """Returns weights of the columns and the bias, by ridge regression; `learned` says which captions count."""
        from sklearn.linear_model import Ridge

        centre, scale = self.captions[learned].mean(0), self._scale(learned)
        given = (np.vstack([self.captions[learned], self.beside]) - centre) * scale
        wanted = np.concatenate([self.ratings[learned], self.wanted])
        counts = np.concatenate([np.ones(int(learned.sum())), np.full(len(self.wanted), _BESIDE_WEIGHT)])
        found = Ridge(alpha=_RIDGE, solver="cholesky").fit(given, wanted, sample_weight=counts)
        own = found.coef_ * scale
        return own, float(found.intercept_ - own @ centre)

    def cross_validated(self) -> Float64s:
        """Returns what is said of each caption by a fit that has not seen it; the scales are measured in each fold."""
        fold = np.random.default_rng(0).permutation(len(self.ratings)) % _FOLDS
        said = np.empty(len(self.ratings))
        for number in range(_FOLDS):
            inside = fold == number
            weight, bias = self.fit(~inside)
            said[inside] = bounded(self.captions[inside] @ weight + bias)
        return said

    def _scale(self, learned: NDArray[np.bool_]) -> Float64s:
        """Returns what each column is multiplied by, so that one penalty suits all."""
        rows = self.captions[learned]
        near = slice(self.width, self.width + _CENTRES)
        scale = np.ones(rows.shape[1])
        scale[near] = _NEAR_WEIGHT / rows[:, near].std()
        scale[near.stop :] = _FACT_WEIGHT / (rows[:, near.stop :].std(0) + 1e-6)
        scale[-2:] *= _WHOLE_WEIGHT / _FACT_WEIGHT
        return scale


def _chosen_beside(aside: NDArray[np.bool_], made: int) -> NDArray[np.intp]:
    """Returns rows of words and expressions that are not held out, and all of the last `made` rows."""
    free = np.flatnonzero(~aside[: len(aside) - made])
    drawn = np.random.default_rng(0).choice(free, min(_BESIDE, len(free)), replace=False)
    return np.concatenate([np.sort(drawn), np.arange(len(aside) - made, len(aside))])


def _told(what: str, one: Agreement) -> dict[str, str]:
    return {what: f"{one.texts:,}", f"Spearman, {what}": str(one.spearman)}


def _fit_words(embeddings: NDArray[np.float32], norms: Float64s) -> WordsHead:
    """Fits a network of one hidden layer on centred embeddings of words, expressions and strings that mean nothing."""
    import torch
    from torch.nn import functional as F

    mean = embeddings.mean(0)
    given = torch.from_numpy((embeddings - mean) * np.float32(_SCALE))
    wanted = torch.from_numpy(norms).float()
    first, last = torch.nn.Linear(given.shape[1], _HIDDEN), torch.nn.Linear(_HIDDEN, 1)
    network = torch.nn.Sequential(first, torch.nn.ReLU(), torch.nn.Dropout(_DROPOUT), last)

    def batches() -> Iterator[torch.Tensor]:
        draw = torch.Generator().manual_seed(0)
        while True:
            order = torch.randperm(len(given), generator=draw)
            yield from (order[start : start + _BATCH] for start in range(0, len(order), _BATCH))

    settings = Settings(
        steps=_EPOCHS * (len(given) // _BATCH),
        learning_rate=2e-3, weight_decay=0.05, floor=0.0, report_every=500,
    )  # fmt: skip
    fit(network, lambda rows: F.mse_loss(network(given[rows])[:, 0], wanted[rows]), batches(), settings)
    return WordsHead(
        mean=mean,
        hidden_weight=first.weight.detach().numpy() * np.float32(_SCALE),
        hidden_bias=first.bias.detach().numpy(),
        out_weight=last.weight.detach().numpy()[0],
        out_bias=last.bias.detach().numpy(),
    )


def _norm_of(name: str, norms: dict[str, float]) -> float | None:
    """Returns the norm of a piece that is a word of the norms, or the plural of one."""
    if name.startswith("##") or held_out(name):
        return None
    return norms.get(name, norms.get(name.removesuffix("s")))


def _usual(descriptions: list[str], tokenizer: Any) -> NDArray[np.float32]:
    """Returns (v,) how often descriptions use each piece: logarithms of the counts, from 0 (never) to 1 (the most)."""
    rows = tokenizer(descriptions, add_special_tokens=False)["input_ids"]
    counts = np.bincount(np.concatenate([np.array(row, int) for row in rows]), minlength=len(tokenizer))
    logs = np.log1p(2.0 * counts)
    usual: NDArray[np.float32] = (logs / logs.max()).astype(np.float32)
    return usual


def _words(data: Path) -> tuple[list[str], Float64s]:
    """Returns the words and their norms, moved from 1..5 to 0..1."""
    found = read_texts(data / WORD_NORMS, text="Word", numbers=["Conc.M"])
    return found.texts, (found.numbers["Conc.M"] - 1) / 4


def _expressions(data: Path) -> tuple[list[str], Float64s]:
    """Returns the expressions that enough people knew and their norms, moved from 1..5 to 0..1."""
    found = read_texts(data / EXPRESSION_NORMS, text="Expression", numbers=["Mean_C"])
    rated = np.isfinite(found.numbers["Mean_C"])
    texts = [text for text, has in zip(found.texts, rated, strict=True) if has]
    return texts, (found.numbers["Mean_C"][rated] - 1) / 4


def _descriptions(data: Path) -> list[str]:
    """Returns the sentences in which people described COCO's photographs."""
    path = data / DESCRIPTIONS
    if not path.is_file():
        raise PoolError(f"{data} lacks {DESCRIPTIONS}, the captions of COCO: name the folder that has it")
    rows = json.loads(path.read_text(encoding="utf-8"))["annotations"]
    return [str(row["caption"]).strip() for row in rows]


def _captions(data: Path) -> tuple[list[str], Float64s]:
    """Returns the rated captions and their ratings, moved from 0..3 to 0..1."""
    rated = json.loads((files("tamis.train") / "norms_ratings.json").read_text(encoding="utf-8"))
    captions: list[str] = []
    ratings: list[float] = []
    for name, rows in rated.items():
        path = data / name
        if not path.is_file():
            raise PoolError(f"{data} lacks {name}, which has {len(rows)} rated captions: name the folder that has it")
        if name.endswith(".parquet"):
            found = read_texts(path, text="TEXT")
            texts = dict(zip(found.rows.tolist(), found.texts, strict=True))
        else:  # Conceptual Captions' tables have no header
            lines = path.read_text(encoding="utf-8").splitlines()
            texts = {row: line.split("\t")[0].strip() for row, line in enumerate(lines)}
        captions += [texts[int(row)] for row in rows]
        ratings += [rating / 3 for rating in rows.values()]
    return captions, np.array(ratings)


def _card(measured: dict[str, str]) -> str:
    lines = [
        "---",
        "license: mit",
        "---",
        "",
        "# norms",
        "",
        "How visually concrete a word or a caption is, by a small head on the sentence encoder `minilm`.",
        "It is there so that `icc` runs without a download. It knows English, and captions as they stand beside",
        "pictures on the web; the released ICC (`moranyanuka/icc`) is better.",
        "",
        "- Texts of all lengths have one scale, within (0, 1). Rated by whom:",
        "- Words: the norms of Brysbaert, Warriner and Kuperman (2014); expressions of one to ten words: those of",
        "  Muraki, Abdalla, Brysbaert and Pexman (2023). Both are people's. A network of one hidden layer on the",
        "  embedding was fitted on them, without the tenth that `tamis.models.texts.norms.held_out` names.",
        "- Strings that mean nothing (letters at random, numbers, codes of products and files): rated by nobody, 0 by",
        "  construction.",
        "- A thousand captions that people wrote of COCO's photographs: rated by nobody, 1 by construction.",
        "- Captions of LAION-400M and Conceptual Captions: read and rated from 0 to 3 by a language model, in several",
        "  sittings, before it saw a score. No person rated them, and it is one rater: the figures of captions say how",
        "  well the head follows that rater, not how well it follows people.",
        "  529 of them, most with 16 words or more, were rated in a later sitting and are stored 0.4 higher: on 170",
        "  captions that were rated in both, the later sitting was that much stricter.",
        "- A ridge regression on captions, and with little weight on some words, expressions and strings, sees the",
        "  embedding, its nearness to 256 centres of captions, 16 facts of the words (how concrete by the norms, how",
        "  many are not ordinary words, how usual they are in COCO's captions, capitals, digits, punctuation), and",
        "  what the network says of the whole text.",
        "- Neither norms nor captions are part of Tamis. Rebuild: `tamis train norms --data FOLDER --out DIR`",
        "",
        "| what | measured |",
        "|---|---|",
        *(f"| {what} | {number} |" for what, number in measured.items()),
    ]
    return "\n".join(lines) + "\n"
