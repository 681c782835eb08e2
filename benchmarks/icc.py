"""ICC: captions per second of the student's shape, ours beside transformers' pipeline.

DistilRoBERTa's shape (6 layers, 768 wide) with random weights and a byte-level tokenizer, on real captions: LAION's
alt-texts, COCO's and Conceptual Captions', shuffled together as they would stand in a pool (about 50,000; --data names
the folder that has them), or without that folder on distinct captions of the lab. The pipeline takes batches of 64 in
the order of the pool, in float32 and in our precision. The paper measured 45 captions per second on an A6000, one
caption at a time; ours is measured that way too.

`--standardise` measures instead, on the same captions, what standardisation per length leaves of the dependence on
length: Spearman between score and length, and the largest distance of a length's distribution from the logit-normal
(Kolmogorov-Smirnov), for scores of the built-in `norms`.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.arithmetic import against_limit, encoder_flops
from benchmarks.measure import Case, finish
from tamis.data import Device
from tamis.math.normalise import LEAST, PerLength, inverse_logit
from tamis.math.statistics import spearman
from tamis.models.device import device_for
from tamis.models.texts.regression import load_text_regression
from tamis.train.icc import caption_lengths
from tools.lab_models.vocabulary import corpus

PAPER = 45.0  # captions per second, batch of one, A6000 (section 4)
VOCABULARY = 50_265
LAB_CAPTIONS = 50_000  # before those that repeat are left out
TARGETS = {"float32": (">= 5", 5.0), "same precision": (">= 2", 2.0)}


def captions_of(folder: Path | None) -> list[str]:
    """Returns the captions of the three sources, shuffled, or without a folder distinct ones of the lab."""
    if folder is None:
        return list(dict.fromkeys(corpus(LAB_CAPTIONS, seed=0)))
    laion = pq.read_table(folder / "laion_alt_text_10000.parquet", columns=["TEXT"])["TEXT"].to_pylist()
    coco = [row["caption"] for row in json.loads((folder / "captions_val2017.json").read_text())["annotations"]]
    lines = (folder / "cc3m_validation.tsv").read_text(encoding="utf-8").splitlines()
    texts = [
        text.strip() for text in [*laion, *coco, *(line.split("\t")[0] for line in lines)] if text and text.strip()
    ]
    order = np.random.default_rng(0).permutation(len(texts))
    return [texts[n] for n in order]


def save_student(folder: Path, captions: Sequence[str]) -> str:
    """Saves a DistilRoBERTa of random weights with a byte-level tokenizer that these captions trained."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForSequenceClassification

    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=VOCABULARY, num_hidden_layers=6, max_position_embeddings=514, type_vocab_size=1, num_labels=1,
        problem_type="regression",
    )  # fmt: skip
    RobertaForSequenceClassification(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(captions, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
        cls_token="<s>", sep_token="</s>", model_max_length=512,
    ).save_pretrained(folder)  # fmt: skip
    return str(folder)


def rate(work: Callable[[], Any], captions: int) -> float:
    """Returns captions per second."""
    start = time.perf_counter()
    work()
    return captions / (time.perf_counter() - start)


def speed(captions: list[str], source: str, device: Device, rounds: int, alone: int) -> list[Case]:
    """Measures ours and the pipeline in turn."""
    import torch
    from transformers import pipeline

    with tempfile.TemporaryDirectory() as temporary:
        model = save_student(Path(temporary), captions)
        ours = load_text_regression(model, device)
        precise = torch.bfloat16 if device.precision == "bf16" else torch.float32
        plain = {
            name: pipeline(
                "text-classification", model=model, dtype=kind, device=device.kind, function_to_apply="none",
                batch_size=64,
            )
            for name, kind in (("float32", torch.float32), ("same precision", precise))
        }  # fmt: skip
        some = captions[:256]
        mine, theirs = ours(some), np.array([row["score"] for row in plain["same precision"](some, truncation=True)])
        found: list[dict[str, float]] = []
        for _ in range(rounds):
            row = {"ours": rate(lambda: ours(captions), len(captions))}
            for name, run in plain.items():
                row[name] = rate(lambda run=run: run(captions, truncation=True), len(captions))  # type: ignore[misc]
            found.append(row)
        one = load_text_regression(model, Device(kind=device.kind, precision=device.precision, batch_size=1))
        single = rate(lambda: [one([caption]) for caption in captions[:alone]], alone)
        tokenizer, config = plain["float32"].tokenizer, plain["float32"].model.config
        lengths = Counter(len(ids) for ids in tokenizer(captions, truncation=True)["input_ids"])
    needed = sum(count * encoder_flops(config, length) for length, count in lengths.items()) / len(captions)
    best = {name: max(row[name] for row in found) for name in found[0]}
    settings = {
        "captions": len(captions),
        "captions of": source,
        "distinct": len(set(captions)),
        "mean words": round(float(np.mean(caption_lengths(captions))), 1),
        "our precision": device.precision,
        "device": device.kind,
        "largest difference of a score": float(np.abs(mine - theirs).max()),
        "captions/s per round": [{name: round(value, 1) for name, value in row.items()} for row in found],
        "ours, one caption at a time": round(single, 1),
    }
    cases = [
        Case(
            f"against the pipeline in {name}" if name == "float32" else "against the pipeline in our precision",
            "captions/s", best["ours"], best[name], best["ours"] / best[name], target, settings if n == 0 else {},
        )
        for n, (name, (target, _)) in enumerate(TARGETS.items())
    ]  # fmt: skip
    ratio = best["ours"] / PAPER
    return [
        *cases,
        against_limit("ICC", "captions/s", best["ours"], best["same precision"], needed, device.precision),
        Case("against the paper's, batch of one on an A6000", "captions/s", best["ours"], PAPER, ratio, ">= 8"),
    ]


def standardisation(captions: list[str], source: str, device: Device) -> list[Case]:
    """Measures what standardisation leaves of the dependence on length."""
    raw = load_text_regression("norms", device)(captions).astype(np.float64)
    lengths = caption_lengths(captions)
    # Scores around [0, 1] brought inside it, and made to depend on length as reconstructions do.
    before = inverse_logit(4 * (raw - np.median(raw)) - 0.08 * lengths)
    norms = PerLength.of(before, lengths)
    after = norms.standardise(before, lengths)
    groups = np.searchsorted(np.array(norms.starts), lengths, side="right") - 1
    distances = [
        distance(np.log(after[groups == group] / (1 - after[groups == group])))
        for group in range(len(norms.starts))
        if (groups == group).sum() >= LEAST
    ]
    settings = {
        "captions": len(captions),
        "captions of": source,
        "groups of lengths": len(norms.starts),
        "largest distance of one group": round(max(distances), 3),
        "mean distance": round(float(np.mean(distances)), 3),
    }
    left = abs(spearman(after, lengths))
    return [
        Case("|Spearman| of score and length, after against before", "", left, abs(spearman(before, lengths)), None,
             "<= 0.02", settings),
        Case("distance of all scores from the logit-normal (KS)", "",
             distance(np.log(after / (1 - after))), distance(np.log(before / (1 - before))), None, "small", {}),
    ]  # fmt: skip


def distance(values: Any) -> float:
    """Returns Kolmogorov and Smirnov's largest distance of (n,) values from the standard normal distribution."""
    ordered = np.sort(values)
    normal = np.array([0.5 * (1 + math.erf(value / math.sqrt(2))) for value in ordered])
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max(np.abs(normal - steps[1:]).max(), np.abs(normal - steps[:-1]).max()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with the three files of captions; without it the lab's")
    parser.add_argument("--quick", action="store_true", help="2,000 captions and one round")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--standardise", action="store_true", help="measure standardisation, not speed")
    parser.add_argument("--captions", type=int, help="how many; by default all")
    parser.add_argument("--rounds", type=int, help="3 by default, with --quick 1")
    asked = parser.parse_args()
    captions = captions_of(asked.data)
    source = "LAION, COCO, Conceptual Captions" if asked.data else "the lab"
    if asked.captions or asked.quick:
        captions = captions[: asked.captions or 2000]
    device = device_for(None, None, None, None)
    if asked.standardise:
        finish("icc_standardise", standardisation(captions, source, device), asked.json)
    else:
        rounds = asked.rounds or (1 if asked.quick else 3)
        finish("icc", speed(captions, source, device, rounds, alone=50 if asked.quick else 500), asked.json)


if __name__ == "__main__":
    main()
