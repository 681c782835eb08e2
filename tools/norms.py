"""Fits the built-in concreteness model again: `python -m tools.norms --data FOLDER --out DIR`.

It learns from word norms, expression norms and rated captions. `norms_ratings.json` lists which rows of two public
files a language model rated, from 0 (nothing to see) to 3 (a clear scene or thing); fitting needs those files.
"""

from __future__ import annotations

import argparse
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamis.core.arrays import Float64s
from tamis.core.errors import PoolError
from tamis.core.files.targets import check_new_folder, new_folder
from tamis.core.math.statistics import agreement
from tamis.core.types import Device
from tamis.models.device import device_for
from tamis.models.loading import load_tokenizer_in, transformer_folder
from tamis.models.reference import resolve
from tamis.models.texts.regression import (
    FACTS,
    KIND,
    NormsHead,
    WordsHead,
    bound,
    columns_of,
    facts_of,
    is_held_out,
)
from tamis.models.texts.sentence import load_sentence_encoder
from tamis.pools.text_files import read_texts
from tamis.train.loop import Settings, fit

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

#: Path of the word norms in the data folder (Brysbaert, Warriner and Kuperman 2014, "Concreteness ratings for 40
#: thousand generally known English word lemmas").
WORD_NORMS = "brysbaert_concreteness/Concreteness_ratings_Brysbaert_et_al_BRM.txt"

#: The norms of expressions of one to ten words (Muraki, Abdalla, Brysbaert and Pexman 2023, "Concreteness ratings for
#: 62,000 English multiword expressions").
EXPRESSION_NORMS = "multiword_concreteness/ratings.csv"

#: The captions of COCO's val2017 (Chen et al. 2015, "Microsoft COCO captions"), which people wrote of photographs.
DESCRIPTIONS = "captions_val2017.json"

_ENCODER = "minilm"
_HIDDEN, _DROPOUT, _BATCH, _EPOCHS = 128, 0.3, 256, 6
_SCALE = 20.0  # a unit row's numbers are about 0.05; networks start best with numbers of about 1
_RIDGE = 6.0
_FACT_WEIGHT = _NEAR_WEIGHT = 0.1  # weight of standardised columns; embeddings are about 0.05
_WHOLE_WEIGHT = 0.5  # weight of the words' network applied to the whole text
_CENTRES = 256
_FOLDS = 10
_MADE_UP = 1500  # strings without meaning
_ANCHORS, _ANCHOR_WEIGHT = 6000, 0.1  # words and expressions that keep short texts on the captions' scale
_DESCRIPTIONS = 1000  # descriptions of photographs, taken to be concrete
_WORD_TOP = 0.85  # the most concrete word counts less than a described scene, which is 1


def fit_norms(data: Path, out: Path, device: Device) -> dict[str, str]:
    """Fits the head, writes its folder and returns what was measured.

    A tenth of the words and expressions, chosen by a hash, is never fitted on. The captions' figures are
    cross-validated; the head that is written was fitted on all captions.

    Cost: about three minutes on one CPU core, most of it the embeddings of 100,000 words and expressions.
    """
    import torch
    from sklearn.cluster import KMeans

    check_new_folder(out)
    words, norms = _rated(data / WORD_NORMS, "Word", "Conc.M")
    expressions, expression_norms = _rated(data / EXPRESSION_NORMS, "Expression", "Mean_C")
    captions, ratings = _captions(data)
    annotations = json.loads(_file(data, DESCRIPTIONS).read_text(encoding="utf-8"))["annotations"]
    described = [str(row["caption"]).strip() for row in annotations]
    encode, tokenizer = load_sentence_encoder(_ENCODER, device), load_tokenizer_in(transformer_folder(_ENCODER))
    nothing, scenes = made_up(_MADE_UP), described[:_DESCRIPTIONS]
    short = [*words, *expressions, *nothing, *scenes]
    log.info("embedding %d words and expressions, and %d captions", len(short), len(captions))
    embeddings, vectors = encode(short), encode(captions)
    target = np.concatenate([norms, expression_norms, np.zeros(len(nothing)), np.ones(len(scenes))])
    aside = np.array([is_held_out(text) for text in short])
    of_network = ~aside
    of_network[len(short) - len(scenes) :] = False
    torch.manual_seed(0)
    network = _fit_words(embeddings[of_network], target[of_network])

    by_word = {word.lower(): norm for word, norm in zip(words, norms, strict=True) if not is_held_out(word)}
    values = [_norm_of(name, by_word) for name in tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))]
    known = np.array([value is not None for value in values])
    value = np.array([0.0 if value is None else value for value in values], np.float32)
    usual = _usual(described, tokenizer)
    centres = KMeans(_CENTRES, n_init=1, random_state=0).fit(vectors).cluster_centers_.astype(np.float32)

    def columns(texts: list[str], rows: NDArray[np.float32]) -> Float64s:
        facts = facts_of(texts, tokenizer, value, known, usual)
        return columns_of(rows, facts, network.words(rows), centres).astype(np.float64)

    anchors = _anchors(aside, len(nothing) + len(scenes))
    worth = np.where(np.arange(len(short)) < len(short) - len(scenes), _WORD_TOP, 1.0)
    examples = _Examples(
        captions=columns(captions, vectors),
        ratings=ratings,
        anchors=columns([short[n] for n in anchors], embeddings[anchors]),
        targets=(worth * target)[anchors],
        width=vectors.shape[1],
    )
    weight, bias = examples.fit(np.ones(len(ratings), bool))
    unseen = np.flatnonzero(aside[: len(words) + len(expressions)])
    scores = bound(columns([short[n] for n in unseen], embeddings[unseen]) @ weight + bias)
    lengths = np.where(unseen < len(words), 0, [len(short[n].split()) for n in unseen])
    crossed = examples.cross_validated()
    counts = np.array([len(caption.split()) for caption in captions])
    every = np.ones(len(ratings), bool)
    measured: dict[str, str] = {}
    for what, one, other, rows in (
        ("words held out", scores, target[unseen], lengths == 0),
        ("expressions of two words held out", scores, target[unseen], lengths == 2),
        ("expressions of three words and more held out", scores, target[unseen], lengths >= 3),
        ("captions, ten-fold", crossed, ratings, every),
        ("captions of one or two words among them", crossed, ratings, counts <= 2),
        ("captions of 16 words and more among them", crossed, ratings, counts >= 16),
    ):
        if rows.sum() < 2:
            continue
        result = agreement(one[rows], other[rows])
        measured |= {what: f"{result.texts:,}", f"Spearman, {what}": str(result.spearman)}
    head = NormsHead(
        **vars(network),
        piece_value=value,
        piece_known=known,
        piece_described=usual,
        centres=centres,
        weight=weight.astype(np.float32),
        bias=np.array([bias], np.float32),
    )
    with new_folder(out) as folder:
        save_norms(folder, head, _ENCODER, measured)
        table = "".join(f"| {what} | {number} |\n" for what, number in measured.items())
        shipped = (resolve("norms").path / "README.md").read_text(encoding="utf-8")
        card = f"{shipped.partition('| what | measured |')[0]}| what | measured |\n|---|---|\n{table}"
        (folder / "README.md").write_text(card, encoding="utf-8")
    return measured


def made_up(count: int, seed: int = 0) -> list[str]:
    """Strings without meaning: random letters, numbers, codes of products and files."""
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
class _Examples:
    """What the linear layer is fitted on: (n, c) columns of captions, and (m, c) of short texts of little weight.

    `width` is the length of an embedding, which the columns begin with.
    """

    captions: Float64s
    ratings: Float64s
    anchors: Float64s
    targets: Float64s
    width: int

    def fit(self, learned: NDArray[np.bool_]) -> tuple[Float64s, float]:
        """Weights of the columns and the bias by ridge regression on the anchors and the `learned` captions."""
        from sklearn.linear_model import Ridge

        centre, scale = self.captions[learned].mean(0), self._scale(learned)
        rows = (np.vstack([self.captions[learned], self.anchors]) - centre) * scale
        targets = np.concatenate([self.ratings[learned], self.targets])
        counts = np.concatenate([np.ones(int(learned.sum())), np.full(len(self.targets), _ANCHOR_WEIGHT)])
        ridge = Ridge(alpha=_RIDGE, solver="cholesky").fit(rows, targets, sample_weight=counts)
        weight = ridge.coef_ * scale
        return weight, float(ridge.intercept_ - weight @ centre)

    def cross_validated(self) -> Float64s:
        """The score of each caption by a fit that has not seen it."""
        fold = np.random.default_rng(0).permutation(len(self.ratings)) % _FOLDS
        scores = np.empty(len(self.ratings))
        for number in range(_FOLDS):
            inside = fold == number
            weight, bias = self.fit(~inside)
            scores[inside] = bound(self.captions[inside] @ weight + bias)
        return scores

    def _scale(self, learned: NDArray[np.bool_]) -> Float64s:
        """The factor of each column, so that one penalty suits all."""
        rows = self.captions[learned]
        near = slice(self.width, self.width + _CENTRES)
        scale = np.ones(rows.shape[1])
        scale[near] = _NEAR_WEIGHT / rows[:, near].std()
        scale[near.stop :] = _FACT_WEIGHT / (rows[:, near.stop :].std(0) + 1e-6)
        scale[-2:] *= _WHOLE_WEIGHT / _FACT_WEIGHT
        return scale


def _anchors(aside: NDArray[np.bool_], made: int) -> NDArray[np.intp]:
    """Some rows of words and expressions that are not held out, and all of the last `made` rows."""
    free = np.flatnonzero(~aside[: len(aside) - made])
    drawn = np.random.default_rng(0).choice(free, min(_ANCHORS, len(free)), replace=False)
    return np.concatenate([np.sort(drawn), np.arange(len(aside) - made, len(aside))])


def _fit_words(embeddings: NDArray[np.float32], norms: Float64s) -> WordsHead:
    """Fits a network of one hidden layer on centred embeddings of words, expressions and strings without meaning."""
    import torch
    from torch.nn import functional as F

    mean = embeddings.mean(0)
    rows = torch.from_numpy((embeddings - mean) * np.float32(_SCALE))
    targets = torch.from_numpy(norms).float()
    first, last = torch.nn.Linear(rows.shape[1], _HIDDEN), torch.nn.Linear(_HIDDEN, 1)
    network = torch.nn.Sequential(first, torch.nn.ReLU(), torch.nn.Dropout(_DROPOUT), last)

    def batches() -> Iterator[torch.Tensor]:
        draw = torch.Generator().manual_seed(0)
        while True:
            order = torch.randperm(len(rows), generator=draw)
            yield from (order[start : start + _BATCH] for start in range(0, len(order), _BATCH))

    settings = Settings(
        steps=_EPOCHS * (len(rows) // _BATCH), learning_rate=2e-3, weight_decay=0.05, floor=0.0, report_every=500
    )
    fit(network, lambda some: F.mse_loss(network(rows[some])[:, 0], targets[some]), batches(), settings)
    return WordsHead(
        mean=mean,
        hidden_weight=first.weight.detach().numpy() * np.float32(_SCALE),
        hidden_bias=first.bias.detach().numpy(),
        out_weight=last.weight.detach().numpy()[0],
        out_bias=last.bias.detach().numpy(),
    )


def _norm_of(name: str, norms: dict[str, float]) -> float | None:
    """The norm of a vocabulary piece that is a word of the norms, or the plural of one."""
    if name.startswith("##") or is_held_out(name):
        return None
    return norms.get(name, norms.get(name.removesuffix("s")))


def _usual(descriptions: list[str], tokenizer: Any) -> NDArray[np.float32]:
    """(v,) how often descriptions use each piece: logarithms of the counts, from 0 (never) to 1 (the most)."""
    rows = tokenizer(descriptions, add_special_tokens=False)["input_ids"]
    counts = np.bincount(np.concatenate([np.array(row, int) for row in rows]), minlength=len(tokenizer))
    logs = np.log1p(2.0 * counts)
    usual: NDArray[np.float32] = (logs / logs.max()).astype(np.float32)
    return usual


def _rated(path: Path, text: str, number: str) -> tuple[list[str], Float64s]:
    """Texts that have a norm, and their norms moved from 1..5 to 0..1."""
    table = read_texts(path, text=text, numbers=[number])
    rows = np.flatnonzero(np.isfinite(table.numbers[number]))
    return [table.texts[row] for row in rows], (table.numbers[number][rows] - 1) / 4


def _file(data: Path, name: str) -> Path:
    if not (data / name).is_file():
        raise PoolError(f"{data} lacks {name}: name the folder that has it (--data)")
    return data / name


def _captions(data: Path) -> tuple[list[str], Float64s]:
    """The rated captions and their ratings, moved from 0..3 to 0..1."""
    rated = json.loads((Path(__file__).parent / "norms_ratings.json").read_text(encoding="utf-8"))
    captions: list[str] = []
    ratings: list[float] = []
    for name, rows in rated.items():
        path = _file(data, name)
        if name.endswith(".parquet"):
            table = read_texts(path, text="TEXT")
            texts = dict(zip(table.rows.tolist(), table.texts, strict=True))
        else:  # Conceptual Captions' tables have no header
            lines = path.read_text(encoding="utf-8").splitlines()
            texts = {row: line.split("\t")[0].strip() for row, line in enumerate(lines)}
        captions += [texts[int(row)] for row in rows]
        ratings += [rating / 3 for rating in rows.values()]
    return captions, np.array(ratings)


def save_norms(folder: Path, head: NormsHead, encoder: str, measured: dict[str, str]) -> None:
    """Writes config.json, with what was measured, and model.safetensors."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    halves = {name: value for name, value in vars(head).items() if name != "piece_known"}
    tensors: dict[str, NDArray[Any]] = {name: np.ascontiguousarray(value, np.float16) for name, value in halves.items()}
    tensors["piece_known"] = np.packbits(head.piece_known)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "model_type": KIND,
        "encoder": encoder,
        "encoder_digest": resolve(encoder).digest,
        "facts": list(FACTS),
        "measured": measured,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with the word norms and the rated captions")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int)
    asked = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    for what, number in fit_norms(asked.data, asked.out, device_for("cpu", "float32", 256, asked.threads)).items():
        print(f"{what}: {number}")


if __name__ == "__main__":
    main()
