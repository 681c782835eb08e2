"""`tamis train`: the small parts that some scorers need."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tamis.cli.evaluate import correlations
from tamis.cli.options import AsJson, Device, Epochs, OutFolder, Precision, Threads, TrainBatch, split
from tamis.cli.printing import follow_the_work, print_json, print_table, say, stop, stopping_at


def sba(
    captions: Annotated[
        Path, typer.Argument(metavar="CAPTIONS", help="Parquet, CSV, TSV, JSON Lines or lines of text.")
    ],
    clip: Annotated[str, typer.Option(help="The CLIP whose text tower reads.")],
    language_model: Annotated[str, typer.Option(help="The causal language model that writes.")],
    out: OutFolder,
    text: Annotated[str | None, typer.Option(help="The column of captions.")] = None,
    epochs: Epochs = 2,
    size: TrainBatch = 128,
    rate: Annotated[float, typer.Option("--learning-rate", help="AdamW's peak.")] = 2e-3,
    end: Annotated[str, typer.Option(help="How a caption ends: newline (as released) or eos.")] = "newline",
    seed: Annotated[int, typer.Option(help="Of the first weights and the order of captions.")] = 0,
    device: Device = None,
    precision: Precision = None,
    threads: Threads = None,
) -> None:
    """Train the linear layer that the scorer `sba` takes as its bridge.

    Example: tamis train sba captions.csv --clip lab/clip --language-model lab/language-model --end eos --out my-sba
    """
    from tamis.errors import unknown
    from tamis.models.device import device_for
    from tamis.pool.texts import read_texts
    from tamis.train.sba import SbaTraining, train_sba

    if end not in ("newline", "eos"):
        stop(unknown("end", end, ("newline", "eos")))
    follow_the_work()
    with stopping_at(ValueError, FloatingPointError):
        how = SbaTraining(epochs=epochs, batch_size=size, learning_rate=rate, end=end, seed=seed)  # type: ignore[arg-type]
        losses = train_sba(
            read_texts(captions, text=text).texts,
            clip=clip, language_model=language_model, out=out,
            device=device_for(device, precision, None, threads), training=how,
        )  # fmt: skip
    say(f"wrote {out} after {len(losses)} batches, the last loss {losses[-1]:.3f}")


def norms(
    data: Annotated[Path, typer.Option(metavar="FOLDER", help="Holds the word norms and the rated files of captions.")],
    out: OutFolder,
    threads: Threads = None,
) -> None:
    """Fit the built-in concreteness model `norms` again: a head on MiniLM, from word norms and rated captions.

    Example: tamis train norms --data data/text --out my-norms
    """
    from tamis.models.device import device_for
    from tamis.train.norms import fit_norms

    follow_the_work()
    for line in fit_norms(data, out, device_for("cpu", "float32", 256, threads)):
        print(line)
    say(f"wrote {out}")


def icc(
    scores: Annotated[Path, typer.Argument(metavar="SCORES", help="A run, or a table, with captions, vba and sba.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder of the student.")],
    labels: Annotated[Path | None, typer.Option(help="A table of captions that people labelled.")] = None,
    label: Annotated[str, typer.Option(help="Its column; higher is more concrete.")] = "label",
    text: Annotated[str | None, typer.Option(help="The column of captions, in both tables.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="In place of labels: weights of vba, of sba, bias: 5,4,-4.")
    ] = None,
    student: Annotated[str, typer.Option(help="The encoder to start from.")] = "distilbert/distilroberta-base",
    epochs: Epochs = 2,
    size: TrainBatch = 128,
    rate: Annotated[float, typer.Option("--learning-rate", help="The peak.")] = 1e-4,
    seed: Annotated[int, typer.Option(help="Of the new head and the order of captions.")] = 0,
    device: Device = None,
    precision: Precision = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Standardise and combine the teachers' scores, and teach them to a student that `icc` takes as its model.

    Example: tamis train icc runs/teachers --labels labelled.csv --student minilm --out my-icc
    """
    from tamis.models.device import device_for
    from tamis.train.distill import TEACHERS, Distillation, distill

    follow_the_work()
    try:
        given = None if weights is None else [float(one) for one in split(weights)]
    except ValueError:
        stop(f"--weights takes numbers with commas between them, got {weights!r}")
    with stopping_at(ValueError, FloatingPointError):
        done = distill(
            scores, out=out, device=device_for(device, precision, None, threads), labels=labels, label=label,
            text=text, weights=given,
            training=Distillation(student=student, epochs=epochs, batch_size=size, learning_rate=rate, seed=seed),
        )  # fmt: skip
    found = {"student, combined teachers": done.with_target}
    found |= {f"{name}, labels": one for name, one in done.with_labels.items()}
    if as_json:
        print_json({name: one.facts() for name, one in found.items()})
    else:
        print_table([{"agreement of": name, **correlations(one)} for name, one in found.items()])
    terms = " + ".join(f"{w:.3g} {name}" for w, name in zip(done.combination.weights, TEACHERS, strict=True))
    say(
        f"combined as sigma({terms} + {done.combination.bias:.3g}); the student learned from {done.captions:,} captions"
        f"; wrote {out}"
    )
