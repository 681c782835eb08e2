"""Text regression: one number per text, by a transformers checkpoint with one logit, or by the built-in `norms`.

`norms` scores how concrete a word or a caption is, with a small head on MiniLM's embeddings. Texts of all lengths share
one scale. A network with one hidden layer, fitted on people's ratings (norms) of words and expressions, scores the
embedding of the whole text; the fewer the words, the more this score counts, and for one word nothing else does. The
other inputs are the embedding itself, its nearness to some centres of captions, and facts about the words: how concrete
they are by the norms, how many are not ordinary words (names, brands, codes), how common their pieces are in
descriptions of photographs, capitals, digits, punctuation. A linear layer sums all inputs, and the logistic function
maps the sum into (0, 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from tamis.core.errors import ModelError
from tamis.core.math.normalise import inverse_logit
from tamis.core.types import Device, ModelRef
from tamis.models.loading import each_text, load_once, load_tokenizer_in, longest_text, model_type, transformer_folder
from tamis.models.packed import load_for_inference
from tamis.models.reference import arrays_in, object_in, resolve
from tamis.models.texts.sentence import load_sentence_encoder

Floats = NDArray[np.float32]

#: A batch has this many times the device's batch size.
_TEXTS_PER_SAMPLE = 4

#: n texts -> (n,) float32 numbers; each depends only on its text.
TextRegression = Callable[[Sequence[str]], Floats]


@load_once(keep=4)
def load_text_regression(model: ModelRef, device: Device) -> TextRegression:
    """Loads `norms`, or a checkpoint with one logit; ModelError if it is missing or has another output."""
    return _norms(model, device) if model_type(model) == KIND else _one_logit(model, device)


def _one_logit(model: str, device: Device) -> TextRegression:
    """Loads a checkpoint of `AutoModelForSequenceClassification` with one logit, which is the number."""
    from transformers import AutoModelForSequenceClassification as Kind

    path, expected = resolve(model).path, "a text regression (sequence classification with one logit)"
    network = load_for_inference(Kind, path, model, device, expected=expected)
    labels = network.config.num_labels
    if labels != 1:
        raise ModelError(f"{model} has {labels} logits: it is a classifier, not {expected} such as moranyanuka/icc")
    tokenizer = load_tokenizer_in(path, network=network)
    length = longest_text(network.config, tokenizer)

    def logit(ids: Any, mask: Any) -> list[float]:
        numbers: list[float] = network(input_ids=ids, attention_mask=mask).logits[:, 0].float().tolist()
        return numbers

    def regression(texts: Sequence[str]) -> Floats:
        distinct = list(dict.fromkeys(texts))
        if not distinct:
            return np.empty(0, np.float32)
        rows = tokenizer(distinct, truncation=True, max_length=length)["input_ids"]
        # Texts that differ only beyond the limit, or in white space, share one row. Texts are small next to images.
        how: dict[str, Any] = {"batch": device.batch_size * _TEXTS_PER_SAMPLE, "device": device.kind}
        scores = each_text(rows, logit, **how, pad=tokenizer.pad_token_id)
        numbers = {text: scores[tuple(row)] for text, row in zip(distinct, rows, strict=True)}
        return np.array([numbers[text] for text in texts], np.float32)

    return regression


# ---- norms

#: `model_type` of a folder with a norms head.
KIND = "tamis-norms"

#: The head's tensors with two dimensions; the others have one.
_MATRICES = ("hidden_weight", "centres")

#: Words of grammar, not content.
FUNCTION_WORDS = frozenset(
    (
        *("a", "an", "the", "of", "in", "on", "at", "to", "for", "and", "or", "with", "by", "from"),
        *("is", "are", "was", "were", "be", "this", "that", "it", "its", "as", "i", "you", "he", "she", "we", "they"),
        *("my", "your", "his", "her", "our", "their"),
    )
)

#: The numbers of `word_facts`, in their order.
FACTS = (
    *("mean", "highest", "lowest", "upper quarter", "lower quarter", "concrete share", "abstract share"),
    *("unknown share", "function share", "digit share", "log words", "capital share", "punctuation share"),
    *("log known words", "one over words", "described"),
)

_CONCRETE, _ABSTRACT = 0.875, 0.375  # 4.5 and 2.5 on the norms' scale of 1 to 5
_UNKNOWN = 0.375  # for captions without a known word
_TOKENS = 256  # MiniLM's limit
_NEARNESS = 4.0  # chosen by cross-validation among 1, 2, 4, 8; the squared distance of centre and caption is about 1
_MIDDLE, _STEEPNESS = 0.45, 6.5  # the logistic function maps 0 to 0.05, 0.45 to one half, 1 to 0.97


@dataclass(frozen=True, kw_only=True)
class WordsHead:
    """The fitted weights for words: a network with one hidden layer of h units.

    `mean` (d,) is the mean of the words' embeddings; `hidden_weight` is (h, d), `out_weight` (h,), `out_bias` (1,).
    """

    mean: Floats
    hidden_weight: Floats
    hidden_bias: Floats
    out_weight: Floats
    out_bias: Floats

    def words(self, embeddings: Floats) -> Floats:
        """Returns the concreteness (n,) of n words from their embeddings (n, d); 0 and 1 end the norms' scale."""
        hidden = np.maximum((embeddings - self.mean) @ self.hidden_weight.T + self.hidden_bias, 0)
        return (hidden @ self.out_weight + self.out_bias).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class NormsHead(WordsHead):
    """The fitted weights for texts of any length; a piece is one of the v in the encoder's vocabulary."""

    piece_value: Floats  # (v,) the norm of each piece that is an ordinary word, else 0
    piece_known: NDArray[np.bool_]  # (v,) whether it is an ordinary word
    piece_described: Floats  # (v,) how often descriptions of photographs use it: 0 never, 1 the most, in logarithms
    centres: Floats  # (m, d) centres of captions' embeddings
    weight: Floats  # (d + m + facts + 2,)
    bias: Floats  # (1,)

    def scores(self, embeddings: Floats, facts: Floats) -> Floats:
        """Returns the concreteness (n,) in (0, 1) of n texts from embeddings (n, d) and `word_facts` (n, 16)."""
        columns = columns_of(embeddings, facts, self.words(embeddings), self.centres)
        # Not a matrix product: its rounding depends on a row's position in the batch.
        return bound((columns * self.weight).sum(axis=1) + self.bias).astype(np.float32)


def columns_of(embeddings: Floats, facts: Floats, whole: Floats, centres: Floats) -> Floats:
    """Returns the inputs (n, d + m + f + 2) of the linear layer for n texts.

    First embeddings (n, d; unit rows), nearness exp(-4 |e - c|^2) to the centres (m, d) and facts (n, f), all times
    (1 - 1 / words); then `whole` (n,), the network's score of the text, clipped to [0, 1]; then that score / words.
    """
    one_over = facts[:, FACTS.index("one over words")]
    squares = (embeddings**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2 * embeddings @ centres.T
    near = np.exp(-_NEARNESS * np.maximum(squares, 0))
    inside = np.clip(whole, 0, 1)
    of_captions = np.column_stack([embeddings, near, facts])
    # For one word only the network's score counts; what we fitted on captions is noise there.
    return np.column_stack([of_captions * (1 - one_over)[:, None], inside, inside * one_over])


def bound(values: NDArray[Any]) -> NDArray[np.float64]:
    """Maps values of about 0 to 1 into the open interval (0, 1), in the same order."""
    return np.asarray(inverse_logit(_STEEPNESS * (np.asarray(values, np.float64) - _MIDDLE)))


def is_held_out(word: str) -> bool:
    """Whether a word or an expression is in the tenth that we never fit on, but measure with."""
    return xxhash.xxh3_64_intdigest(word.strip().casefold().encode()) % 10 == 0


def facts_of(texts: Sequence[str], tokenizer: Any, value: Floats, known: NDArray[Any], described: Floats) -> Floats:
    """Returns `word_facts` of n texts: (n, 16) float32."""
    if not texts:
        return np.empty((0, len(FACTS)), np.float32)
    rows = tokenizer(list(texts), add_special_tokens=False, truncation=True, max_length=_TOKENS)["input_ids"]
    names = {number: tokenizer.convert_ids_to_tokens(number) for number in {one for row in rows for one in row}}
    pieces = [[(number, names[number]) for number in row] for row in rows]
    facts = [word_facts(text, row, value, known, described) for text, row in zip(texts, pieces, strict=True)]
    return np.array(facts, np.float32)


def word_facts(
    text: str, pieces: Sequence[tuple[int, str]], value: Floats, known: NDArray[np.bool_], described: Floats
) -> list[float]:
    """Returns the 16 `FACTS` about the words of a text. A word is known if it is a single piece and an ordinary word.

    `pieces` are (id, name); a name that continues a word begins with "##". The arrays are indexed by id.
    """
    words: list[list[tuple[int, str]]] = []
    for piece in pieces:
        if piece[1].startswith("##") and words:
            words[-1].append(piece)
        else:
            words.append([piece])
    spelt = [word for word in words if word[0][1][0].isalpha()]
    content = [word for word in spelt if len(word) > 1 or word[0][1] not in FUNCTION_WORDS]
    values = [float(value[word[0][0]]) for word in content if len(word) == 1 and known[word[0][0]]]
    norms = np.array(values or [_UNKNOWN])
    one_over = 1 / max(1, len(spelt))
    usual = float(described[[number for number, _ in pieces]].mean()) if pieces else 0.0
    return [
        float(norms.mean()),
        float(norms.max()),
        float(norms.min()),
        float(np.percentile(norms, 75)),
        float(np.percentile(norms, 25)),
        float((norms > _CONCRETE).mean()),
        float((norms < _ABSTRACT).mean()),
        1 - len(values) / len(content) if content else 0.0,
        1 - len(content) / len(spelt) if spelt else 0.0,
        sum(word[0][1][0].isdigit() for word in words) / max(1, len(words)),
        float(np.log1p(len(words))),
        sum(sign.isupper() for sign in text) / max(1, len(text)),
        sum(not sign.isalnum() and not sign.isspace() for sign in text) / max(1, len(text)),
        float(np.log1p(len(values))),
        one_over,
        usual * max(0.0, 1 - 2 * one_over),  # 0 for one or two words, whose norms are better evidence
    ]


def _norms(model: str, device: Device) -> TextRegression:
    """Loads a head that tools/norms.py wrote, and its encoder; ModelError if the head was fitted on another one.
    Numbers are in (0, 1), from abstract to concrete, on one scale for all lengths.
    """
    path = resolve(model).path
    config = object_in(path / "config.json")
    encoder = config.get("encoder")
    if config.get("facts") != list(FACTS) or not isinstance(encoder, str):
        raise ModelError(f"{model} was fitted by another version of Tamis: run `python -m tools.norms` again")
    if resolve(encoder).digest != config.get("encoder_digest"):
        raise ModelError(f"{model} was fitted on another version of {encoder}: run `python -m tools.norms` again")
    dimensions = {field.name: 2 if field.name in _MATRICES else 1 for field in fields(NormsHead)}
    tensors = arrays_in(path / "model.safetensors", dimensions)
    known = np.unpackbits(tensors.pop("piece_known"), count=len(tensors["piece_value"])).astype(bool)
    head = NormsHead(piece_known=known, **{name: value.astype(np.float32) for name, value in tensors.items()})
    encode, tokenizer = load_sentence_encoder(encoder, device), load_tokenizer_in(transformer_folder(encoder))

    def norms(texts: Sequence[str]) -> Floats:
        distinct = list(dict.fromkeys(texts))
        if not distinct:
            return np.empty(0, np.float32)
        facts = facts_of(distinct, tokenizer, head.piece_value, head.piece_known, head.piece_described)
        scores = dict(zip(distinct, head.scores(encode(distinct), facts), strict=True))
        return np.array([scores[text] for text in texts], np.float32)

    return norms
