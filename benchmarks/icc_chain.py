"""ICC's whole chain on the lab's captions: train sba, score both teachers, distil, and tell abstract from concrete.

Captions of the lab are descriptions of scenes and abstract sentences, half and half, none twice. One part trains the
linear layer of `sba`; a second is scored by both teachers and teaches the students; some of these carry labels, which
fit the combination; a third is unseen by everything, and there the teachers (standardised per length by the second
part's numbers), their combination and the students are compared by AUC. Students are made in two stages, as the paper
has it, in one stage, and with Muon in place of AdamW. In two stages the labelled captions are those that the sampler
spreads evenly over the scores of both teachers' students; one stage is also given those, so that only the stages
differ. Everything runs on built-in models. Scoring is resumable: with --folder the same command goes on where it
stopped.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.measure import Case, finish
from tamis import api
from tamis.data import Device
from tamis.evaluate.texts import score_texts
from tamis.math.intervals import bootstrap
from tamis.math.per_length import PerLength
from tamis.math.ranks import auc
from tamis.models.device import device_for
from tamis.models.text_to_image import Drawing
from tamis.pool import PoolSpec
from tamis.signals import Icc, Sba, Vba
from tamis.train.distill import (
    TEACHERS,
    Distillation,
    Distilled,
    caption_length,
    captions_to_label,
    distill,
    distill_teacher,
)
from tamis.train.logistic import Logistic
from tamis.train.sba import SbaTraining, train_sba
from tools.lab_models.vocabulary import corpus

SHARD = 250  # captions; what an interruption costs at most
TARGET = 0.95


def captions_of(count: int, seed: int, taken: set[str]) -> tuple[list[str], list[int]]:
    """Returns so many captions that are not taken yet, half of them abstract, and 1 for each that is concrete."""
    found: dict[str, int] = {}
    halves = {1: count - count // 2, 0: count // 2}
    round_number = 0
    while halves[0] or halves[1]:
        for concrete in (0, 1):
            for text in corpus(2 * count, seed=seed + round_number, abstract_share=1.0 - concrete):
                if halves[concrete] and text not in taken and text not in found:
                    found[text] = concrete
                    halves[concrete] -= 1
        round_number += 1
        if round_number > 50:
            raise SystemExit(f"the lab has not so many different captions as {count:,}")
    taken |= set(found)
    order = np.random.default_rng(seed).permutation(len(found))
    texts = list(found)
    return [texts[n] for n in order], [found[texts[n]] for n in order]


def write_pool(folder: Path, texts: list[str]) -> None:
    """Writes captions as a pool of small tables."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, start in enumerate(range(0, len(texts), SHARD)):
        path = folder / f"{number:05d}.parquet"
        if not path.exists():
            pq.write_table(pa.table({"caption": texts[start : start + SHARD]}), path)


def students_of(
    folder: Path, truth: dict[str, int], labelled: int, of: Distillation, device: Device
) -> dict[str, Distilled]:
    """Returns the students: of two stages, of one, and of two with Muon."""
    run = folder / "run-taught"
    teachers = [str(folder / f"student-{name}") for name in TEACHERS]
    for name, out in zip(TEACHERS, teachers, strict=True):
        distill_teacher(run, name, out=out, device=device, training=of)
    chosen, _ = captions_to_label(run, teachers, device=device, count=labelled)
    rated = folder / "labelled.parquet"
    pq.write_table(pa.table({"caption": chosen, "label": [truth[text] for text in chosen]}), rated)
    return {
        "two stages": distill(run, out=folder / "two", training=of, students=teachers, device=device, labels=rated),
        "one stage": distill(run, out=folder / "one", training=of, stages=1, device=device, labels=rated),
        "two stages, Muon": distill(
            run, out=folder / "muon", training=replace(of, optimiser="muon"), device=device, labels=rated
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the captions")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--folder", type=Path, help="where the chain's files lie; by default a temporary folder")
    parser.add_argument("--text-to-image", default="lab/text-to-image")
    parser.add_argument("--captions", type=int, default=5000, help="that the student learns from")
    parser.add_argument("--unseen", type=int, default=1000)
    parser.add_argument("--labelled", type=int, default=244, help="of the captions; the paper labelled 244")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--guidance", type=float, default=4.0)
    parser.add_argument("--student", default="minilm")
    parser.add_argument("--epochs", type=int, default=3)
    asked = parser.parse_args()
    share = 0.1 if asked.quick else 1.0
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        taken: set[str] = set()
        unseen, truth = captions_of(round(asked.unseen * share), 3, taken)
        taught, labels = captions_of(round(asked.captions * share), 2, taken)
        written, _ = captions_of(round(12_000 * share), 1, taken)
        device = device_for(None, None, None, None)
        seconds: dict[str, float] = {}

        start = time.perf_counter()
        bridge = folder / "sba"
        if not (bridge / "config.json").is_file():
            how = SbaTraining(end="eos", epochs=max(2, round(8 * share)))
            train_sba(
                written, clip="lab/clip", language_model="lab/language-model", out=bridge, device=device, training=how
            )
        seconds["train sba"] = time.perf_counter() - start
        teachers = {
            "vba": Vba(
                text_to_image=asked.text_to_image,
                captioner="lab/captioner",
                encoder="minilm",
                drawing=Drawing(steps=asked.steps, guidance=asked.guidance),
            ),
            "sba": Sba(bridge=str(bridge)),
        }
        runs = {}
        for part, texts in (("taught", taught), ("unseen", unseen)):
            write_pool(folder / part, texts)
            start = time.perf_counter()
            runs[part] = api.score(
                PoolSpec(path=str(folder / part), image="none"),
                run=folder / f"run-{part}",
                scores=list(teachers.values()),
            )
            seconds[f"score {part}"] = time.perf_counter() - start
        start = time.perf_counter()
        done = students_of(
            folder,
            dict(zip(taught, labels, strict=True)),
            round(asked.labelled * max(share, 0.25)),
            Distillation(student=asked.student, epochs=asked.epochs, batch_size=64, learning_rate=2e-4),
            device,
        )
        seconds["distil"] = time.perf_counter() - start

        of_taught, of_unseen = (
            np.clip(np.column_stack([runs[part].to_numpy(name) for name in TEACHERS]).astype(float), 0, 1)
            for part in ("taught", "unseen")
        )
        lengths = [np.array([caption_length(text) for text in texts]) for texts in (taught, unseen)]
        standard = np.column_stack([
            PerLength.of(before, lengths[0]).standardise(after, lengths[1])
            for before, after in zip(of_taught.T, of_unseen.T, strict=True)
        ])  # fmt: skip
        combination: Logistic = done["one stage"].combination
        scores = {
            "vba": standard[:, 0],
            "sba": standard[:, 1],
            "vba, not standardised": of_unseen[:, 0],
            "sba, not standardised": of_unseen[:, 1],
            "combined": combination(standard),
        }
        for name, one in done.items():
            scores[name] = np.array(score_texts(Icc(model=str(one.folder)), unseen, device)["icc"], float)
        concrete = np.array(truth, bool)
        found = {name: bootstrap(auc, score[concrete], score[~concrete]) for name, score in scores.items()}
        best = max(found["vba"].value, found["sba"].value)
        settings = {
            "AUC on unseen captions": {name: str(one) for name, one in found.items()},
            "weights": {
                name: {**dict(zip(TEACHERS, one.combination.weights, strict=True)), "bias": one.combination.bias}
                for name, one in done.items()
            },
            "captions": {"taught": len(taught), "unseen": len(unseen), "labelled": done["two stages"].labelled},
            "seconds": {name: round(one) for name, one in seconds.items()},
            "device": f"{device.kind}, {device.precision}",
        }
        student, one_stage, muon = (found[name].value for name in ("two stages", "one stage", "two stages, Muon"))
        cases = [
            Case(
                "student of two stages, abstract against concrete", "AUC", student, None, None, f">= {TARGET}", settings
            ),
            Case("two stages against one", "AUC", student, one_stage, student / one_stage, ">= 1", {}),
            Case("AdamW against Muon", "AUC", student, muon, student / muon, ">= 1", {}),
            Case("student against the better teacher", "AUC", student, best, student / best, "> 1", {}),
        ]
        finish("icc_chain", cases, asked.json)
        (folder / "chain.json").write_text(json.dumps(settings, indent=2))


if __name__ == "__main__":
    main()
