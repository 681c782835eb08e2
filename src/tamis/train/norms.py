"""`tamis train norms`: fits the built-in concreteness model from word norms and rated captions.

The captions' texts are not part of Tamis: `norms_ratings.json` holds which rows of two public files a language model
read and rated, from 0 (nothing to see) to 3 (a scene or thing that everybody would picture alike); fitting needs
the files.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tamis.arrays import Float64s
from tamis.data import Device
from tamis.errors import PoolError, require
from tamis.evaluate.concreteness import agreement
from tamis.models.texts.norms import NormsHead, WordsHead, facts_of, held_out, save_norms, tokenizer_of
from tamis.models.texts.sentence import load_sentence_encoder
from tamis.pool.texts import read_texts
from tamis.store.atomic import replacing_folder
from tamis.train.loop import Settings, fit

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

#: Where a data folder holds the norms (Brysbaert, Warriner and Kuperman 2014, "Concreteness ratings for 40 thousand
#: generally known English word lemmas").
WORD_NORMS = "brysbaert_concreteness/Concreteness_ratings_Brysbaert_et_al_BRM.txt"

_ENCODER = "minilm"
_HIDDEN = 128
_DROPOUT = 0.3
_SCALE = 20.0  # a unit row's numbers are about 0.05; networks begin best with numbers of about 1
_BATCH = 256
_EPOCHS = 12
_RIDGE = 6.0
_FACT_WEIGHT = 0.1  # standardised facts beside numbers of about 0.05
_FOLDS = 10


def fit_norms(data: Path, out: Path, device: Device) -> list[str]:
    """Fits the head, writes its folder and returns what was measured, a line each.

    A tenth of the words, told by a hash, is never fitted on. The captions' figure is that of ten-fold cross-validation;
    the head that is written was fitted on all of them.

    Args:
        data: a folder with the norms (`WORD_NORMS`) and the files that `norms_ratings.json` names.
        out: the folder to write.
        device: where the encoder runs.

    Raises:
        PoolError: a file is not there.
        DependencyError: torch or the encoder's package is not installed.

    Cost: about two minutes on one CPU core, most of it the embeddings of 40,000 words and 30,000 pieces.
    """
    require("torch", "sklearn", extra="sentence")
    import torch

    words, norms = _words(data)
    captions, ratings = _captions(data)
    encode, tokenizer = load_sentence_encoder(_ENCODER, device), tokenizer_of(_ENCODER)
    log.info("embedding %d words and %d captions", len(words), len(captions))
    embeddings = encode(words)
    learned = np.array([not held_out(word) for word in words])
    torch.manual_seed(0)
    of_words = _fit_words(embeddings[learned], norms[learned])

    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    plain = [name.removeprefix("##") for name in names]
    by_word = {word.lower(): norm for word, norm, use in zip(words, norms, learned, strict=True) if use}
    said = of_words.words(encode(plain))
    own = [_norm_of(name, by_word) for name in names]
    known = np.array([norm is not None for norm in own])
    value = np.array([guess if norm is None else norm for guess, norm in zip(said, own, strict=True)], np.float32)
    facts = facts_of(captions, tokenizer, value, known)
    vectors = encode(captions)
    weight, bias = _fit_captions(vectors, facts, ratings)
    head = NormsHead(
        **vars(of_words),
        piece_value=value,
        piece_known=known,
        caption_weight=weight.astype(np.float32),
        caption_bias=np.array([bias], np.float32),
    )
    unseen = agreement(head.words(embeddings[~learned]), norms[~learned])
    crossed = agreement(_cross_validated(vectors, facts, ratings), ratings)
    measured = {
        "words held out": f"{unseen.texts:,}",
        "Spearman on them": str(unseen.spearman),
        "Pearson on them": str(unseen.pearson),
        "captions rated": f"{len(captions):,}",
        "Spearman on them, ten-fold": str(crossed.spearman),
        "Pearson on them, ten-fold": str(crossed.pearson),
    }
    with replacing_folder(out) as folder:
        save_norms(folder, head, _ENCODER, measured)
        (folder / "README.md").write_text(_card(measured), encoding="utf-8")
    return [f"{what}: {number}" for what, number in measured.items()]


def _fit_words(embeddings: NDArray[np.float32], norms: Float64s) -> WordsHead:
    """Fits a network of one hidden layer on centred embeddings."""
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


def _fit_captions(
    vectors: NDArray[np.float32], facts: NDArray[np.float32], ratings: Float64s
) -> tuple[Float64s, float]:
    """Returns weights of [embedding, facts] and the bias, by ridge regression on standardised facts."""
    from sklearn.linear_model import Ridge

    centre, spread = facts.mean(0), facts.std(0) + 1e-6
    given = np.column_stack([vectors, _FACT_WEIGHT * (facts - centre) / spread]).astype(np.float64)
    found = Ridge(alpha=_RIDGE).fit(given, ratings)
    size = vectors.shape[1]
    own = found.coef_.copy()
    own[size:] *= _FACT_WEIGHT / spread
    return own, float(found.intercept_ - own[size:] @ centre)


def _cross_validated(vectors: NDArray[np.float32], facts: NDArray[np.float32], ratings: Float64s) -> Float64s:
    # By hand: the facts are standardised anew in each fold, and the folds are those of the figures on the card.
    fold = np.random.default_rng(0).permutation(len(ratings)) % _FOLDS
    said = np.empty(len(ratings))
    for number in range(_FOLDS):
        inside = fold == number
        weight, bias = _fit_captions(vectors[~inside], facts[~inside], ratings[~inside])
        said[inside] = np.column_stack([vectors[inside], facts[inside]]) @ weight + bias
    return said


def _norm_of(name: str, norms: dict[str, float]) -> float | None:
    """Returns the norm of a piece that is a word of the norms, or the plural of one."""
    if name.startswith("##") or held_out(name):
        return None
    return norms.get(name, norms.get(name.removesuffix("s")))


def _words(data: Path) -> tuple[list[str], Float64s]:
    """Returns the words and their norms, moved from 1..5 to 0..1."""
    found = read_texts(data / WORD_NORMS, text="Word", numbers=["Conc.M"])
    return found.texts, (found.numbers["Conc.M"] - 1) / 4


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
        "- Words, and texts of two words: one hidden layer of 128 on the embedding, fitted on the norms of",
        "  Brysbaert, Warriner and Kuperman (2014), without the tenth that `tamis.models.texts.norms.held_out` names.",
        "- Captions: a ridge regression on the embedding and 14 facts of the words (how concrete by the norms,",
        "  how many are not ordinary words, capitals, digits, punctuation), fitted on captions of LAION-400M and",
        "  Conceptual Captions that a language model read and rated from 0 to 3 before it saw a score. One rater:",
        "  the figure below says how well the head follows that rater, not how well it follows people.",
        "- Neither norms nor captions are part of Tamis. Rebuild: `tamis train norms --data FOLDER --out DIR`",
        "",
        "| what | measured |",
        "|---|---|",
        *(f"| {what} | {number} |" for what, number in measured.items()),
    ]
    return "\n".join(lines) + "\n"
