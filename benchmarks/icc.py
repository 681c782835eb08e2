"""ICC: captions per second of the student's shape, next to transformers' `pipeline`.

DistilRoBERTa's shape (6 layers, 768 wide) with random weights and a byte-level tokenizer. `--data` is a folder with
real captions (laion_alt_text_10000.parquet, captions_val2017.json, cc3m_validation.tsv), shuffled together as in a
pool; by default captions are the lab's. The pipeline takes batches of 64 in the order of the pool, in our precision.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.measure import Case, benchmark, in_turn, versus
from tamis.models.device import device_for
from tamis.models.texts.regression import load_text_regression
from tools.lab_models.vocabulary import corpus

VOCABULARY = 50_265


def captions_of(folder: str | None) -> list[str]:
    """Returns the captions of the three sources, shuffled, or without a folder distinct ones of the lab."""
    if folder is None:
        return list(dict.fromkeys(corpus(50_000, seed=0)))
    root = Path(folder)
    texts = pq.read_table(root / "laion_alt_text_10000.parquet", columns=["TEXT"])["TEXT"].to_pylist()
    texts += [row["caption"] for row in json.loads((root / "captions_val2017.json").read_text())["annotations"]]
    texts += [line.split("\t")[0] for line in (root / "cc3m_validation.tsv").read_text(encoding="utf-8").splitlines()]
    texts = [text.strip() for text in texts if text and text.strip()]
    return [texts[n] for n in np.random.default_rng(0).permutation(len(texts))]


def save_student(folder: Path, captions: Sequence[str]) -> str:
    """Saves a DistilRoBERTa of random weights with a byte-level tokenizer that these captions trained."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForSequenceClassification

    torch.manual_seed(0)
    config = RobertaConfig(
        vocab_size=VOCABULARY, num_hidden_layers=6, max_position_embeddings=514, type_vocab_size=1, num_labels=1,
        problem_type="regression",
    )  # fmt: skip
    RobertaForSequenceClassification(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(captions, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>",
        cls_token="<s>", sep_token="</s>", model_max_length=512,
    ).save_pretrained(folder)  # fmt: skip
    return str(folder)


def student(root: Path, given: Any) -> list[Case]:
    import torch
    from transformers import pipeline

    captions = captions_of(given.data)[: given.captions or (2000 if given.quick else None)]
    device = device_for(None, None, None, None)
    model = save_student(root / "student", captions)
    ours = load_text_regression(model, device)
    kind = torch.bfloat16 if device.precision == "bf16" else torch.float32
    plain = pipeline(
        "text-classification", model=model, dtype=kind, device=device.kind, function_to_apply="none", batch_size=64
    )
    few = captions[:256]
    scores = [np.array([row["score"] for row in plain(few, truncation=True)]), ours(few)]
    spent = in_turn(
        1 if given.quick else 3, pipeline=lambda: plain(captions, truncation=True), ours=lambda: ours(captions)
    )
    return [
        versus(
            "next to the pipeline in our precision", spent["ours"], spent["pipeline"], target=">= 2",
            count=len(captions), unit="captions/s", precision=device.precision, captions=len(captions),
            largest_difference=float(np.abs(scores[0] - scores[1]).max()),
        ),
    ]  # fmt: skip


if __name__ == "__main__":
    benchmark(__doc__, {"student": student}, data=None, captions=0)
