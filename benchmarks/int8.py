"""`--precision int8` beside float32 on a CPU: how much faster, and what it does to scores.

`--only speed`: a ViT-B/32 image tower and BLIP-base with random weights, as they are loaded, in turn on the same
inputs; medians. `--only layouts`: the same tower in float32, its weights in oneDNN's and in MKL's own layouts,
and a decoder's layers, which few rows go through.
`--only scores`: the lab's CLIP and SIEVE (the lab's captioner, MiniLM) on a lab pool, where who belongs together is
known. `--only texts`, with `--data FOLDER` that holds text/: `norms` on web captions, MiniLM on pairs that people
judged (STS-B's test half), and on captions of photographs beside those that BLIP-2 gave them, right and wrong.

Scores are compared by rank correlation (Spearman), by how much of the best fifth is the same, and by AUC on either
side.
"""

from __future__ import annotations

import argparse
import copy
import csv
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

import tamis
from benchmarks.measure import Case, finish, processor
from benchmarks.sieve import save_checkpoint
from tamis.data import Device
from tamis.lab import make_pool
from tamis.math.statistics import auc
from tamis.models.captioner import FastCaptioner, load_captioner
from tamis.models.nucleus import Sampling
from tamis.models.packed import Linear, for_inference
from tamis.models.texts.regression import load_text_regression
from tamis.models.texts.sentence import load_sentence_encoder
from tamis.signals import ClipScore, Sieve

PRECISIONS = ("float32", "int8")
BEST = 0.2  # of the pairs


def medians(sides: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Returns the processor seconds that each side takes, in turn; other processes do not count."""
    for work in sides.values():
        work()
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, work in sides.items():
            start = time.process_time()
            work()
            taken[name].append(time.process_time() - start)
    return {name: statistics.median(some) for name, some in taken.items()}


def vit() -> Any:
    """Returns an image tower of ViT-B/32's shape with random weights."""
    import torch
    from transformers import CLIPVisionConfig, CLIPVisionModel

    torch.manual_seed(0)
    return CLIPVisionModel(
        CLIPVisionConfig(
            hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12, patch_size=32
        )
    ).eval()


def run_tower(network: Any, images: int) -> Callable[[], Any]:
    """Returns what runs a tower on images of noise."""
    import torch

    pixels = torch.randn(images, 3, 224, 224, generator=torch.Generator().manual_seed(1))

    def work() -> Any:
        with torch.inference_mode():
            return network(pixel_values=pixels).last_hidden_state

    return work


def speed(rounds: int, folder: Path) -> list[Case]:
    """Measures whole networks in both precisions."""
    devices = {name: Device(precision=name) for name in PRECISIONS}  # type: ignore[arg-type]
    towers = {name: run_tower(for_inference(vit(), device), 16) for name, device in devices.items()}
    cases = [_faster("ViT-B/32, image tower, 16 images", medians(towers, rounds))]
    model = save_checkpoint(folder, 224)
    captioners = {name: load_captioner(model, device) for name, device in devices.items()}
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (224, 224, 3), dtype=np.uint8) for _ in range(4)]
    uids = rng.integers(0, 2**63, (4, 2)).astype(np.uint64)
    sampling = Sampling(captions=8, max_tokens=20)

    def encoder(one: Any) -> Callable[[], Any]:
        assert isinstance(one, FastCaptioner)
        return lambda: one.encode(pictures)

    def captions(one: Any) -> Callable[[], Any]:
        return lambda: one(pictures, uids, sampling)

    for what, work in (("image encoder", encoder), ("encoder and 8 captions of 20 tokens each", captions)):
        sides = {name: work(one) for name, one in captioners.items()}
        cases.append(_faster(f"BLIP base, 224 px, {what}, 4 images", medians(sides, max(1, rounds // 2))))
    return cases


def layouts(rounds: int) -> list[Case]:
    """Measures float32 weights in other layouts than torch's own."""
    import torch

    class Mkl:
        def __init__(self, layer: Any, rows: int) -> None:
            self._rows, self._weight, self._bias = rows, layer.weight.detach(), layer.bias.detach()
            self._packed = torch.ops.mkl._mkl_reorder_linear_weight(self._weight, rows)

        def __call__(self, x: torch.Tensor) -> Any:
            return torch.ops.mkl._mkl_linear(x, self._packed, self._weight, self._bias, self._rows)

    class OneDnn:
        def __init__(self, layer: Any, rows: int) -> None:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
            self._bias = layer.bias.detach()

        def __call__(self, x: torch.Tensor) -> Any:
            return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")

    plain, images = vit(), 16
    towers = {"torch's": plain}
    for name, kind in (("oneDNN's", OneDnn), ("MKL's", Mkl)):
        towers[name] = copy.deepcopy(plain)
        for layer in towers[name].modules():
            if type(layer) is torch.nn.Linear:
                layer.forward = kind(layer, images * 50)  # type: ignore[method-assign]
    sides = {name: run_tower(tower, images) for name, tower in towers.items()}
    taken = medians(sides, rounds)
    wanted = sides["torch's"]()
    apart = {name: float((work() - wanted).abs().max()) for name, work in sides.items()}
    return [
        Case(
            f"ViT-B/32, image tower, 16 images, float32 in {name} layout", "s", taken[name], taken["torch's"],
            taken["torch's"] / taken[name], ">= 1.05", {"farthest from torch's": apart[name]},
        )
        for name in taken if name != "torch's"
    ]  # fmt: skip


def few_rows(rounds: int) -> list[Case]:
    """Measures a decoder's layers in float32: BERT-base's, each with weights of its own, and its vocabulary."""
    import torch

    torch.manual_seed(0)
    shapes = [*[(768, 2304), (768, 768), (768, 3072), (3072, 768)] * 12, (768, 30_522)]
    layers = [torch.nn.Linear(*shape) for shape in shapes]
    packed = [Linear(layer) for layer in layers]
    cases = []
    for rows in (64, 128, 256):
        inputs = {width: torch.randn(rows, width) for width in (768, 3072)}

        def through(some: Sequence[Any], inputs: Mapping[int, Any] = inputs) -> list[Any]:
            with torch.inference_mode():
                return [layer(inputs[width]) for layer, (width, _) in zip(some, shapes, strict=True)]

        taken = medians({"ours": partial(through, packed), "torch's": partial(through, layers)}, rounds)
        apart = max(
            float((one - other).abs().max()) for one, other in zip(through(packed), through(layers), strict=True)
        )
        cases.append(
            Case(
                f"a decoder's layers, {rows} rows, float32 in oneDNN's layout", "s", taken["ours"], taken["torch's"],
                taken["torch's"] / taken["ours"], ">= 1.05", {"farthest from torch's": apart},
            )
        )  # fmt: skip
    return cases


def scores(pairs: int, captioned: int) -> list[Case]:
    """Compares CLIP and SIEVE on the lab's world."""
    cases = []
    for count, signal in ((pairs, ClipScore(model="lab/clip")), (captioned, Sieve(captioner="lab/captioner"))):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make_pool(folder / "pool", pairs=count, seed=11, mix="uniform", defects=False)
            pool = tamis.PoolSpec(path=(str(folder / "pool"),), fields=("truth",))
            found = {}
            for precision in PRECISIONS:
                run = tamis.score(
                    pool, run=folder / precision, signals=[signal], precision=precision, workers=1, quiet=True
                )
                found[precision] = run.to_numpy(signal.name)
            truth = np.array([one for shard in run.shards for one in run.index(shard, ["truth"])["truth"].to_pylist()])
            apart = truth == "visual", truth == "mismatched"
            cases.append(_alike(f"{signal.name}, {count:,} lab pairs", found, apart))
    return cases


def texts(data: Path) -> list[Case]:
    """Compares text encoders on real captions."""
    devices = {name: Device(precision=name) for name in PRECISIONS}  # type: ignore[arg-type]
    lines = (data / "text/cc3m_validation.tsv").read_text(encoding="utf-8").splitlines()[:2000]
    captions = [line.split("\t")[0] for line in lines]
    found = {name: load_text_regression("norms", device)(captions) for name, device in devices.items()}
    in_ones = load_text_regression("norms", Device(precision="int8", batch_size=1))(captions[:500])
    moved = np.abs(in_ones - found["int8"][:500])
    batches = {
        "500 in batches of 1 and of 64": f"{moved.max():.4f} apart at most, {np.median(moved):.5f} in the median"
    }
    cases = [_alike(f"norms, {len(captions):,} web captions (CC3M)", found, None, batches)]

    with open(data / "text/flickr8k_blip2_captions.csv", encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    order = np.random.default_rng(0).permutation(len(rows))
    other = np.empty(len(rows), int)
    other[order] = np.roll(order, 1)  # nobody has their own
    cosines = {}
    for name, device in devices.items():
        encode = load_sentence_encoder("minilm", device)
        said, human = encode([row["base_caption"] for row in rows]), encode([row["given_caption"] for row in rows])
        cosines[name] = np.concatenate([(said * human).sum(1), (said * human[other]).sum(1)])
    right = np.arange(2 * len(rows)) < len(rows)
    cases.append(_alike(f"MiniLM, {len(rows):,} captions by BLIP-2 and by people", cosines, (right, ~right)))

    with open(data / "text/stsb/sts-test.csv", encoding="utf-8", newline="") as file:
        judged = [line.rstrip("\n").split("\t") for line in file]
    people = np.array([float(row[4]) for row in judged])
    for name, device in devices.items():
        encode = load_sentence_encoder("minilm", device)
        cosines[name] = (encode([row[5] for row in judged]) * encode([row[6] for row in judged])).sum(1)
    agree = {
        f"Spearman with people, {name}": round(float(spearmanr(people, cosines[name])[0]), 4) for name in PRECISIONS
    }
    cases.append(_alike(f"MiniLM, {len(judged):,} pairs of STS-B", cosines, None, agree))
    return cases


def _alike(
    what: str,
    found: Mapping[str, NDArray[Any]],
    apart: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None,
    settings: Mapping[str, Any] | None = None,
) -> Case:
    """Returns how alike two columns are: the case's figure is the share of the best fifth that is the same."""
    exact, rounded = (np.nan_to_num(found[name].astype(np.float64), nan=-np.inf) for name in PRECISIONS)
    size = round(BEST * len(exact))
    tops = [set(np.argsort(-values, kind="stable")[:size].tolist()) for values in (exact, rounded)]
    both = np.isfinite(exact) & np.isfinite(rounded)
    told: dict[str, Any] = {
        "Spearman": round(float(spearmanr(exact[both], rounded[both])[0]), 4),
        "farthest apart": round(float(np.abs(exact[both] - rounded[both]).max()), 4),
        "median apart": round(float(np.median(np.abs(exact[both] - rounded[both]))), 5),
    }
    if apart is not None:
        for name, values in zip(PRECISIONS, (exact, rounded), strict=True):
            told[f"AUC, {name}"] = round(auc(values[apart[0]], values[apart[1]]), 4)
    overlap = len(tops[0] & tops[1]) / size
    return Case(what, "of the best fifth", overlap, None, None, "-", told | dict(settings or {}))


def _faster(what: str, taken: Mapping[str, float]) -> Case:
    exact, rounded = (taken[name] for name in PRECISIONS)
    return Case(what, "processor s", rounded, exact, exact / rounded, "-", {})


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and pairs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=("speed", "layouts", "scores", "texts"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--data", type=Path, help="folder with the real captions")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    print(f"{processor()}; {asked.threads} threads")
    rounds = 3 if asked.quick else 7
    cases = []
    if asked.only in (None, "speed"):
        with tempfile.TemporaryDirectory() as folder:
            cases += speed(rounds, Path(folder))
    if asked.only in (None, "layouts"):
        cases += layouts(rounds) + few_rows(rounds)
    if asked.only in (None, "scores"):
        cases += scores(*((1000, 200) if asked.quick else (3000, 600)))
    if asked.data and asked.only in (None, "texts"):
        cases += texts(asked.data)
    finish("int8", cases, asked.json)


if __name__ == "__main__":
    main()
