"""`tamis train`: a CLIP on a pool or a subset of it, and the small parts that some signals need."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tamis.cli.evaluate import correlations
from tamis.cli.options import (
    AsJson,
    CleanEpochs,
    CleanRun,
    CleanSubset,
    Device,
    Fields,
    OutFolder,
    Partial,
    Precision,
    Threads,
    split,
)
from tamis.cli.printing import follow_the_work, print_json, print_table, say, stop, stopping_at

if TYPE_CHECKING:
    from tamis.store.run import Run
    from tamis.train.agreement import Agreement
    from tamis.train.clip import Trained

_CLIP, _STEP = "tamis.train.scales:ClipTraining", "tamis.train.step:How"

_MODEL = {"model": "An architecture such as ViT-B-32, or a checkpoint to start from; else the scale's."}
_LEARNING = {
    "batch": "Pairs compared with each other.",
    "learning_rate": "AdamW's peak.",
    "seed": "Of first weights, order and crops.",
}
_PLACE = {
    "pieces": "Pieces that each process's batch is cut into; else as free memory allows.",
    "checkpointing": "Recompute layers in the backward pass: less memory, slower.",
    "threads": "Threads that decode, per process.",
}

How = Annotated[dict[str, Any], Fields(_STEP, _PLACE, renamed={"threads": "decode_threads"})]


def clip(
    source: Annotated[str, typer.Argument(metavar="RUN", help="The run folder, or a pool that has none yet.")],
    out: OutFolder,
    training: Annotated[
        dict[str, Any],
        Fields(
            _CLIP,
            {
                **_MODEL,
                "text": "A pretrained text encoder as text tower (minilm).",
                "freeze_text": "Train only the projection of the text tower.",
                "samples": "Pairs seen, repeats counted.",
                **_LEARNING,
                "warmup": "Steps over which the learning rate rises.",
                "beta1": "AdamW's.",
                "beta2": "AdamW's.",
                "epsilon": "AdamW's.",
                "weight_decay": "Of matrices.",
                "clip_norm": "Longer gradients are shortened to this norm.",
                "crop": "Smallest share of an image that a crop keeps.",
                "hold_out": "Share of the pairs to hold out: their loss shows when the model overfits.",
                "keep_best": "Keep the model of the lowest held-out loss, not the last one.",
            },
            optional=True,
            renamed={"batch": "train_batch"},
        ),
    ],
    how: Annotated[
        dict[str, Any],
        Fields(
            _STEP,
            {
                **_PLACE,
                "save_every": "Steps between checkpoints.",
                "report_every": "Steps between lines of metrics.",
                "keep_epochs": "Keep the model of each epoch's end.",
            },
            renamed={"threads": "decode_threads"},
        ),
    ],
    subset: Annotated[Path | None, typer.Option(metavar="FILE", help="A subset of the run; else all pairs.")] = None,
    scale: Annotated[str, typer.Option(help="lab, or DataComp's debug, small, medium, large, xlarge.")] = "lab",
    tokenizer: Annotated[str | None, typer.Option(help="Checkpoint of the tokenizer; else one is learned.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Times through the pairs, instead of --samples.")] = None,
    whole_loss: Annotated[bool, typer.Option(help="Each process computes all logits, not only its own rows.")] = False,
    open_clip: Annotated[
        str | None, typer.Option(metavar="SHARDS", help="Print the command that trains the same in open_clip, and end.")
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="GPUs of that command.")] = 1,
    device: Device = None,
    precision: Precision = None,
    threads: Threads = None,
    partial: Partial = False,
) -> None:
    """Train a CLIP on the pairs of a run or of a subset. The same command again continues where it stopped.

    On several GPUs put `torchrun --nproc-per-node 8 -m` before the same words; all processes share the run folder.

    Example: tamis train clip runs/lab --subset best.parquet --scale lab --out my-clip
    """
    from tamis.models.device import device_for
    from tamis.store import open_run
    from tamis.store.subset import Subset
    from tamis.train.clip import as_long_as, check_folder, train_clip, training_rows
    from tamis.train.scales import at_scale, open_clip_command
    from tamis.train.step import How

    if _first():
        follow_the_work()
    with stopping_at(ValueError):
        if epochs is not None and training["samples"] is not None:
            raise ValueError("--epochs and --samples both say how long the training is: leave one of them out")
        settings = at_scale(scale, **{**training, "keep_best": training["keep_best"] or None})
        if open_clip is not None:
            if epochs is not None:  # the run knows the number of pairs
                pairs = open_run(source, partial=partial)
                rows = training_rows(Subset.load(subset, pairs) if subset else pairs)[0]
                settings = as_long_as(settings, rows, epochs)
            elsewhere = device_for(None, precision or "bf16", None, None, away=True, training=True)
            pieces = how["pieces"] or 1
            print(
                open_clip_command(
                    settings, open_clip, precision=elsewhere.precision, processes=processes, pieces=pieces
                )
            )
            return
        where = device_for(device, precision, None, threads, training=True)
        check_folder(out)
        run, chosen = _pairs(source, out, subset, partial)
        done = train_clip(
            chosen, pool=_pool(run), out=out, training=settings, epochs=epochs, tokenizer=tokenizer,
            how=How(device=where, local_loss=not whole_loss, **how),
        )  # fmt: skip
    if _first():
        _say_trained(done)
        if done.samples >= 10 * done.pairs and not settings.hold_out:
            times = done.samples / done.pairs
            say(f"each pair was seen {times:.0f} times: --hold-out 0.05 shows whether the model overfits")


def _first() -> bool:
    """Whether this is the first process that torchrun has started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def _pool(run: Run) -> Any:
    from tamis.store.stream import pool_of

    return pool_of(run)


def _pairs(source: str, out: Path, subset: Path | None, partial: bool) -> tuple[Run, Any]:
    """Opens a run and a subset of it. A pool without a run is indexed first, next to the model."""
    from tamis.scoring import score
    from tamis.storage import is_run
    from tamis.store import open_run
    from tamis.store.subset import Subset

    if (Path(source).expanduser() / "run.json").is_file() or is_run(source):
        run = open_run(source, partial=partial)
    elif os.environ.get("WORLD_SIZE", "1") != "1":
        stop(f"{source} is not a run folder; several processes need one: tamis score POOL --run RUN")
    else:
        run = score(source, run=out / "training" / "run")
    return run, Subset.load(subset, run) if subset else run


def _say_trained(done: Trained) -> None:
    say(
        f"wrote {done.folder}: {done.steps:,} steps, {done.samples:,} samples of {done.pairs:,} pairs, "
        f"{done.unreadable:,} unreadable, {done.samples_per_second:,.0f} samples/s, MFU {done.utilisation:.1%}"
    )


def c_ssft(
    clean: CleanRun,
    model: Annotated[str, typer.Option(help="The pretrained CLIP to begin with.")],
    out: OutFolder,
    how: How,
    subset: CleanSubset = None,
    epochs: CleanEpochs = 5,
    rate: Annotated[float, typer.Option("--learning-rate", help="AdamW's peak.")] = 1e-5,
    batch: Annotated[int, typer.Option("--train-batch", min=2, help="Pairs compared with each other.")] = 1024,
    seed: Annotated[int, typer.Option(min=0, help="Of first weights, order and crops.")] = 0,
    device: Device = None,
    precision: Precision = None,
    threads: Threads = None,
    partial: Partial = False,
) -> None:
    """Fine-tune a CLIP on a clean set and keep each epoch's model, for the signal `c_ssft`. The same command continues.

    The paper has 5 epochs on CC3M at 1e-5; it does not give batch and schedule, which are those of its other trainings.

    Example: tamis train c_ssft runs/clean --model lab/clip --out c_ssft
    """
    from tamis.models.device import device_for
    from tamis.train.clean import fine_tuning, train_c_ssft
    from tamis.train.clip import check_folder
    from tamis.train.step import How

    if _first():
        follow_the_work()
    with stopping_at(ValueError):
        training = fine_tuning(model, learning_rate=rate, batch=batch, seed=seed)
        check_folder(out)
        where = device_for(device, precision, None, threads, training=True)
        run, chosen = _pairs(clean, out, subset, partial)
        done = train_c_ssft(
            chosen, pool=_pool(run), out=out, training=training, epochs=epochs, how=How(device=where, **how)
        )
    if _first():
        _say_trained(done)
        print(f"- c_ssft: {{folder: {out}, epochs: {epochs}}}")


def c_rho(
    clean: CleanRun,
    pool: Annotated[str, typer.Argument(metavar="POOL_RUN", help="The same of the pool that is to be judged.")],
    out: OutFolder,
    training: Annotated[
        dict[str, Any], Fields(_CLIP, {**_MODEL, **_LEARNING}, optional=True, renamed={"batch": "train_batch"})
    ],
    how: How,
    scale: Annotated[str, typer.Option(help="What is trained: lab, or DataComp's debug, small, ...")] = "lab",
    subset: CleanSubset = None,
    epochs: CleanEpochs = 32,
    pool_epochs: Annotated[int, typer.Option(min=1, help="Times through the pool.")] = 1,
    device: Device = None,
    precision: Precision = None,
    threads: Threads = None,
    partial: Partial = False,
) -> None:
    """Train a CLIP on a clean set and one on a pool, for the signal `c_rho`. The same command continues.

    The paper has 32 epochs on CC3M and 1 on the pool. It does not give the model and how it learns: --scale does.

    Example: tamis train c_rho runs/clean runs/pool --out c_rho
    """
    from tamis.models.device import device_for
    from tamis.train.clean import CLEAN, POOL, Part, check_folders, train_c_rho
    from tamis.train.scales import at_scale
    from tamis.train.step import How

    if _first():
        follow_the_work()
    with stopping_at(ValueError):
        settings = at_scale(scale, **training)
        where = device_for(device, precision, None, threads, training=True)
        check_folders(out)
        one, of_one = _pairs(clean, out / CLEAN, subset, partial)
        other, of_other = _pairs(pool, out / POOL, None, partial)
        both = train_c_rho(
            Part(source=of_one, pool=_pool(one), epochs=epochs),
            Part(source=of_other, pool=_pool(other), epochs=pool_epochs),
            out=out, training=settings, how=How(device=where, **how),
        )  # fmt: skip
    if _first():
        for done in both:
            _say_trained(done)
        print(f"- c_rho: {{clean: {both[0].folder}, pool: {both[1].folder}}}")


def sba(
    captions: Annotated[
        Path, typer.Argument(metavar="CAPTIONS", help="Parquet, CSV, TSV, JSON Lines or lines of text.")
    ],
    clip: Annotated[str, typer.Option(help="The CLIP whose text tower reads.")],
    language_model: Annotated[str, typer.Option(help="The causal language model that writes.")],
    out: OutFolder,
    training: Annotated[
        dict[str, Any],
        Fields(
            "tamis.train.sba:SbaTraining",
            {
                "epochs": "Times through the captions.",
                "batch_size": "Captions in a batch of training.",
                "learning_rate": "AdamW's peak.",
                "end": "How a caption ends: newline (as released) or eos.",
                "seed": "Of the first weights and the order of captions.",
            },
            renamed={"batch_size": "train_batch"},
        ),
    ],
    text: Annotated[str | None, typer.Option(help="The column of captions.")] = None,
    device: Device = None,
    precision: Precision = None,
    threads: Threads = None,
) -> None:
    """Train the linear layer that the signal `sba` takes as its bridge.

    Example: tamis train sba captions.csv --clip lab/clip --language-model lab/language-model --end eos --out my-sba
    """
    from tamis.models.device import device_for
    from tamis.pool.texts import read_texts
    from tamis.train.sba import SbaTraining, train_sba

    follow_the_work()
    with stopping_at(ValueError, FloatingPointError):
        settings = SbaTraining(**training)
        losses = train_sba(
            read_texts(captions, text=text).texts,
            clip=clip, language_model=language_model, out=out,
            device=device_for(device, precision, None, threads, training=True), training=settings,
        )  # fmt: skip
    say(f"wrote {out} after {len(losses)} batches, the last loss {losses[-1]:.3f}")


def icc(
    scores: Annotated[
        str, typer.Argument(metavar="SCORES", help="A run (folder or URL), or a table, with captions, vba and sba.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder of the student.")],
    training: Annotated[
        dict[str, Any],
        Fields(
            "tamis.train.distill:Distillation",
            {
                "student": "The encoder to start from.",
                "epochs": "Times through the captions.",
                "batch_size": "Captions in a batch of training.",
                "learning_rate": "The peak.",
                "optimiser": "adamw, or muon for the matrices inside the layers.",
                "seed": "Of the new head and the order of captions.",
            },
            renamed={"batch_size": "train_batch"},
        ),
    ],
    labels: Annotated[Path | None, typer.Option(help="A table of captions that people labelled.")] = None,
    label: Annotated[str, typer.Option(help="Its column; higher is more concrete.")] = "label",
    text: Annotated[str | None, typer.Option(help="The column of captions, in both tables.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="Instead of labels: weights of vba, of sba, bias: 5,4,-4.")
    ] = None,
    stages: Annotated[
        int, typer.Option(min=1, max=2, help="2 combines students of the teachers, 1 the teachers themselves.")
    ] = 2,
    teacher: Annotated[str | None, typer.Option(help="Only teach a student vba, or sba: the first stage.")] = None,
    students: Annotated[
        str | None, typer.Option(metavar="VBA,SBA", help="What --teacher wrote; else both are trained now.")
    ] = None,
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
        numbers = None if weights is None else [float(one) for one in split(weights)]
    except ValueError:
        stop(f"--weights takes numbers with commas between them, got {weights!r}")
    where = device_for(device, precision, None, threads, training=True)
    with stopping_at(ValueError, FloatingPointError):
        settings = Distillation(**training)
        if teacher is not None:
            if labels or weights or students:
                raise ValueError("--teacher trains the student of one teacher: leave labels, weights and students out")
            alone = distill_teacher(scores, teacher, out=out, device=where, text=text, training=settings)
            _print_agreements({f"student, {teacher}": alone}, as_json)
            say(f"wrote {out}")
            return
        done = distill(
            scores, out=out, device=where, labels=labels, label=label, text=text, weights=numbers, training=settings,
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
