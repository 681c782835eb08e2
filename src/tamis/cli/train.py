"""`tamis train`: a CLIP on a pool or a subset of it, and the small parts that some scorers need."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tamis.cli.evaluate import correlations
from tamis.cli.options import (
    AsJson,
    Checkpointing,
    CleanEpochs,
    CleanRun,
    CleanSubset,
    DecodeThreads,
    Device,
    Epochs,
    FirstSeed,
    OutFolder,
    PairsPerBatch,
    Partial,
    Pieces,
    Precision,
    Threads,
    TrainBatch,
    split,
)
from tamis.cli.printing import follow_the_work, print_json, print_table, say, stop, stopping_at

if TYPE_CHECKING:
    from tamis.store.run import Run
    from tamis.train.agreement import Agreement
    from tamis.train.clip import Trained


def clip(
    source: Annotated[str, typer.Argument(metavar="RUN", help="The run folder, or a pool that has none yet.")],
    out: OutFolder,
    subset: Annotated[Path | None, typer.Option(metavar="FILE", help="A subset of the run; else all pairs.")] = None,
    scale: Annotated[str, typer.Option(help="lab, or DataComp's debug, small, medium, large, xlarge.")] = "lab",
    model: Annotated[str | None, typer.Option(help="ViT-B-32, ..., or a checkpoint to go on from.")] = None,
    text: Annotated[str | None, typer.Option(help="A pretrained encoder of texts as text tower (minilm).")] = None,
    freeze_text: Annotated[bool | None, typer.Option(help="Train only the projection of the text tower.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Checkpoint of the tokenizer; else one is learned.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Pairs seen, repeats counted.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Times through the pairs, in place of --samples.")] = None,
    batch: PairsPerBatch = None,
    rate: Annotated[float | None, typer.Option("--learning-rate", help="AdamW's peak.")] = None,
    warmup: Annotated[int | None, typer.Option(min=0, help="Steps over which it rises.")] = None,
    beta1: Annotated[float | None, typer.Option(help="AdamW's.")] = None,
    beta2: Annotated[float | None, typer.Option(help="AdamW's.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="AdamW's.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of matrices.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="Longest gradient that is not shortened.")] = None,
    crop: Annotated[float | None, typer.Option(help="Smallest share of a picture that a crop keeps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of first weights, order and crops.")] = None,
    hold_out: Annotated[
        float | None, typer.Option(help="Share of the pairs to hold out: their loss says when the model overfits.")
    ] = None,
    keep_best: Annotated[
        bool, typer.Option("--keep-best", help="Keep the model of the lowest held-out loss, not the last one.")
    ] = False,
    pieces: Pieces = None,
    checkpointing: Checkpointing = False,
    whole_loss: Annotated[bool, typer.Option(help="Each process computes all logits, not its own rows alone.")] = False,
    keep_epochs: Annotated[bool, typer.Option(help="Keep the model of each epoch's end.")] = False,
    save_every: Annotated[int | None, typer.Option(min=1, help="Steps between checkpoints.")] = None,
    report_every: Annotated[int | None, typer.Option(min=1, help="Steps between lines of metrics.")] = None,
    decode_threads: DecodeThreads = 2,
    open_clip: Annotated[
        str | None, typer.Option(metavar="SHARDS", help="Print the command that trains the same in open_clip, and end.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="GPUs of that command.")] = 1,
    device: Device = None,
    precision: Precision = None,
    threads: Threads = None,
    partial: Partial = False,
) -> None:
    """Train a CLIP on the pairs of a run or of a subset. The same command again goes on where it stopped.

    On several GPUs the same words follow `torchrun --nproc-per-node 8 -m`; all processes share the run folder.

    Example: tamis train clip runs/lab --subset best.parquet --scale lab --out my-clip
    """
    from tamis.models.device import device_for
    from tamis.store import open_run
    from tamis.store.stream import pool_of
    from tamis.store.subset import Subset
    from tamis.train.clip import as_long_as, check_folder, train_clip, training_rows
    from tamis.train.scales import at_scale, open_clip_command
    from tamis.train.step import How

    if _first():
        follow_the_work()
    given: dict[str, Any] = {
        "model": model, "text": text, "freeze_text": freeze_text, "samples": samples, "batch": batch,
        "learning_rate": rate, "warmup": warmup, "beta1": beta1, "beta2": beta2, "epsilon": epsilon,
        "weight_decay": weight_decay, "clip_norm": clip_norm, "crop": crop, "seed": seed,
        "hold_out": hold_out, "keep_best": keep_best or None,
    }  # fmt: skip
    with stopping_at(ValueError):
        if epochs is not None and samples is not None:
            raise ValueError("--epochs and --samples both say how long the training is: leave one of them out")
        training = at_scale(scale, **given)
        if open_clip is not None:
            if epochs is not None:  # of how many pairs only the run can say
                pairs = open_run(source, partial=partial)
                training = as_long_as(
                    training, training_rows(Subset.load(subset, pairs) if subset else pairs)[0], epochs
                )
            there = device_for(None, precision or "bf16", None, None, away=True, training=True)  # not this machine
            print(
                open_clip_command(
                    training, open_clip, precision=there.precision, processes=processes, pieces=pieces or 1
                )
            )
            return
        where = device_for(device, precision, None, threads, training=True)
        check_folder(out)
        run = _run_of(source, out, partial)
        how = How(
            device=where, pieces=pieces, checkpointing=checkpointing, local_loss=not whole_loss, threads=decode_threads,
            save_every=save_every, report_every=report_every, keep_epochs=keep_epochs,
        )  # fmt: skip
        chosen = Subset.load(subset, run) if subset else run
        done = train_clip(
            chosen, pool=pool_of(run), out=out, training=training, how=how, epochs=epochs, tokenizer=tokenizer
        )
    if _first():
        _tell(done)
        if done.samples >= 10 * done.pairs and not training.hold_out:
            say(
                f"each pair was seen {done.samples / done.pairs:.0f} times: --hold-out 0.05 says whether the model "
                "overfits"
            )


def _first() -> bool:
    """Tells whether this is the first process that torchrun has started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def _run_of(source: str, out: Path, partial: bool) -> Run:
    """Opens a run; a pool that has none is indexed first, beside the model that is to be trained."""
    from tamis.scoring import score
    from tamis.storage import is_run
    from tamis.store import open_run

    if (Path(source).expanduser() / "run.json").is_file() or is_run(source):
        return open_run(source, partial=partial)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        stop(f"{source} is not a run folder; several processes need one: tamis score POOL --run RUN")
    return score(source, run=out / "training" / "run")


def _tell(done: Trained) -> None:
    say(
        f"wrote {done.folder}: {done.steps:,} steps, {done.samples:,} samples of {done.pairs:,} pairs, "
        f"{done.unreadable:,} unreadable, {done.samples_per_second:,.0f} samples/s, MFU {done.utilisation:.1%}"
    )


def c_ssft(
    clean: CleanRun,
    model: Annotated[str, typer.Option(help="The pretrained CLIP to begin with.")],
    out: OutFolder,
    subset: CleanSubset = None,
    epochs: CleanEpochs = 5,
    rate: Annotated[float, typer.Option("--learning-rate", help="AdamW's peak.")] = 1e-5,
    batch: Annotated[int, typer.Option("--train-batch", min=2, help="Pairs compared with each other.")] = 1024,
    seed: FirstSeed = 0,
    pieces: Pieces = None,
    checkpointing: Checkpointing = False,
    decode_threads: DecodeThreads = 2,
    device: Device = None,
    precision: Precision = None,
    threads: Threads = None,
    partial: Partial = False,
) -> None:
    """Fine-tune a CLIP on a clean set and keep each epoch's model, for the scorer `c_ssft`. The same command goes on.

    The paper has 5 epochs on CC3M at 1e-5; batch and schedule, which it leaves open, are those of its other trainings.

    Example: tamis train c-ssft runs/clean --model lab/clip --out c-ssft
    """
    from tamis.models.device import device_for
    from tamis.store.stream import pool_of
    from tamis.store.subset import Subset
    from tamis.train.clean import fine_tuning, train_c_ssft
    from tamis.train.clip import check_folder
    from tamis.train.step import How

    if _first():
        follow_the_work()
    with stopping_at(ValueError):
        training = fine_tuning(model, learning_rate=rate, batch=batch, seed=seed)
        check_folder(out)
        where = device_for(device, precision, None, threads, training=True)
        run = _run_of(clean, out, partial)
        done = train_c_ssft(
            Subset.load(subset, run) if subset else run, pool=pool_of(run), out=out, training=training, epochs=epochs,
            how=How(device=where, pieces=pieces, checkpointing=checkpointing, threads=decode_threads),
        )  # fmt: skip
    if _first():
        _tell(done)
        print(f"- c_ssft: {{folder: {out}, epochs: {epochs}}}")


def c_rho(
    clean: CleanRun,
    pool: Annotated[str, typer.Argument(metavar="POOL_RUN", help="The same of the pool that is to be judged.")],
    out: OutFolder,
    scale: Annotated[str, typer.Option(help="What is trained: lab, or DataComp's debug, small, ...")] = "lab",
    model: Annotated[str | None, typer.Option(help="In place of the scale's: ViT-B-32, ..., a checkpoint.")] = None,
    subset: CleanSubset = None,
    epochs: CleanEpochs = 32,
    pool_epochs: Annotated[int, typer.Option(min=1, help="Times through the pool.")] = 1,
    batch: PairsPerBatch = None,
    rate: Annotated[float | None, typer.Option("--learning-rate", help="AdamW's peak.")] = None,
    pieces: Pieces = None,
    checkpointing: Checkpointing = False,
    decode_threads: DecodeThreads = 2,
    seed: FirstSeed = 0,
    device: Device = None,
    precision: Precision = None,
    threads: Threads = None,
    partial: Partial = False,
) -> None:
    """Train a CLIP on a clean set and one on a pool, for the scorer `c_rho`. The same command goes on.

    The paper has 32 epochs on CC3M and 1 on the pool. It leaves the model and how it learns open: --scale says both.

    Example: tamis train c-rho runs/clean runs/pool --out c-rho
    """
    from tamis.models.device import device_for
    from tamis.store.stream import pool_of
    from tamis.store.subset import Subset
    from tamis.train.clean import CLEAN, POOL, Part, check_folders, train_c_rho
    from tamis.train.scales import at_scale
    from tamis.train.step import How

    if _first():
        follow_the_work()
    with stopping_at(ValueError):
        training = at_scale(scale, model=model, batch=batch, learning_rate=rate, seed=seed)
        where = device_for(device, precision, None, threads, training=True)
        check_folders(out)
        one, other = _run_of(clean, out / CLEAN, partial), _run_of(pool, out / POOL, partial)
        both = train_c_rho(
            Part(source=Subset.load(subset, one) if subset else one, pool=pool_of(one), epochs=epochs),
            Part(source=other, pool=pool_of(other), epochs=pool_epochs),
            out=out, training=training,
            how=How(device=where, pieces=pieces, checkpointing=checkpointing, threads=decode_threads),
        )  # fmt: skip
    if _first():
        for done in both:
            _tell(done)
        print(f"- c_rho: {{clean: {both[0].folder}, pool: {both[1].folder}}}")


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
            device=device_for(device, precision, None, threads, training=True), training=how,
        )  # fmt: skip
    say(f"wrote {out} after {len(losses)} batches, the last loss {losses[-1]:.3f}")


def icc(
    scores: Annotated[
        str, typer.Argument(metavar="SCORES", help="A run (folder or URL), or a table, with captions, vba and sba.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder of the student.")],
    labels: Annotated[Path | None, typer.Option(help="A table of captions that people labelled.")] = None,
    label: Annotated[str, typer.Option(help="Its column; higher is more concrete.")] = "label",
    text: Annotated[str | None, typer.Option(help="The column of captions, in both tables.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="In place of labels: weights of vba, of sba, bias: 5,4,-4.")
    ] = None,
    stages: Annotated[
        int, typer.Option(min=1, max=2, help="2 combines students of the teachers, 1 the teachers themselves.")
    ] = 2,
    teacher: Annotated[str | None, typer.Option(help="Only teach a student vba, or sba: the first stage.")] = None,
    students: Annotated[
        str | None, typer.Option(metavar="VBA,SBA", help="What --teacher wrote; else both are trained now.")
    ] = None,
    student: Annotated[str, typer.Option(help="The encoder to start from.")] = "distilbert/distilroberta-base",
    epochs: Epochs = 2,
    size: TrainBatch = 128,
    rate: Annotated[float, typer.Option("--learning-rate", help="The peak.")] = 1e-4,
    optimiser: Annotated[str, typer.Option(help="adamw, or muon for the matrices inside the layers.")] = "adamw",
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
    from tamis.train.distill import TEACHERS, Distillation, distill, distill_teacher

    follow_the_work()
    try:
        given = None if weights is None else [float(one) for one in split(weights)]
    except ValueError:
        stop(f"--weights takes numbers with commas between them, got {weights!r}")
    where = device_for(device, precision, None, threads, training=True)
    with stopping_at(ValueError, FloatingPointError):
        training = Distillation(
            student=student, epochs=epochs, batch_size=size, learning_rate=rate, seed=seed,
            optimiser=optimiser,  # type: ignore[arg-type]
        )  # fmt: skip
        if teacher is not None:
            if labels or weights or students:
                raise ValueError("--teacher trains the student of one teacher: leave labels, weights and students out")
            alone = distill_teacher(scores, teacher, out=out, device=where, text=text, training=training)
            _print_agreements({f"student, {teacher}": alone}, as_json)
            say(f"wrote {out}")
            return
        done = distill(
            scores, out=out, device=where, labels=labels, label=label, text=text, weights=given, training=training,
            stages=1 if stages == 1 else 2, students=None if students is None else split(students),
        )  # fmt: skip
    found = {"student, combined teachers": done.with_target}
    found |= {f"{name}, labels": one for name, one in done.with_labels.items()}
    _print_agreements(found, as_json)
    terms = " + ".join(f"{w:.3g} {name}" for w, name in zip(done.combination.weights, TEACHERS, strict=True))
    say(
        f"combined as sigma({terms} + {done.combination.bias:.3g}); the student learned from {done.captions:,} captions"
        f"; wrote {out}"
    )


def icc_labels(
    scores: Annotated[str, typer.Argument(metavar="SCORES", help="As of `tamis train icc`.")],
    students: Annotated[str, typer.Option(metavar="VBA,SBA", help="What `tamis train icc --teacher` wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The table to write, a CSV.")],
    count: Annotated[int, typer.Option(min=1, help="How many captions.")] = 244,
    text: Annotated[str | None, typer.Option(help="The column of captions.")] = None,
    seed: Annotated[int, typer.Option(help="Another number, other captions.")] = 0,
    device: Device = None,
    precision: Precision = None,
    threads: Threads = None,
) -> None:
    """Choose captions for people to label: spread evenly over the scores of both teachers' students.

    The table has the captions and an empty column `label`. The scores are not in it: who labels should not see them.

    Example: tamis train icc-labels runs/teachers --students vba-student,sba-student --out to-label.csv
    """
    from tamis.models.device import device_for
    from tamis.pool.texts import write_to_label
    from tamis.storage import writing
    from tamis.store.targets import check_target
    from tamis.train.distill import captions_to_label

    # People write their labels into this table: it is never replaced.
    check_target(out, what="table to label", ours=lambda path: False, overwrite=False)
    with stopping_at(ValueError):
        chosen, _ = captions_to_label(
            scores, split(students), device=device_for(device, precision, None, threads), count=count, seed=seed,
            text=text,
        )  # fmt: skip
        with writing(out) as temporary:
            write_to_label(temporary, chosen)
    say(f"wrote {len(chosen):,} captions to {out}: fill the column label, higher for more concrete")


def _print_agreements(found: dict[str, Agreement], as_json: bool) -> None:
    if as_json:
        print_json({name: one.facts() for name, one in found.items()})
    else:
        print_table([{"agreement of": name, **correlations(one)} for name, one in found.items()])
