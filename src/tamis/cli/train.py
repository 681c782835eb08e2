"""`tamis train`: a CLIP on a pool or a subset of it, and the small models that some signals need."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from tamis.cli import options
from tamis.cli.options import Fields, OutFolder, TrainingCompute
from tamis.cli.printing import correlations, follow_the_work, print_json, print_table, say, stopping_at
from tamis.core.errors import StopError

if TYPE_CHECKING:
    from tamis.core.math.statistics import Agreement
    from tamis.runs.run import Run
    from tamis.runs.subset import Subset
    from tamis.train.clip import Trained

_CLIP, _HOW = "tamis.train.scales:ClipTraining", "tamis.train.step:How"
_EVERY_SETTING = (
    "model text freeze_text samples batch:train_batch learning_rate seed warmup beta1 beta2 epsilon weight_decay "
    "clip_norm crop hold_out keep_best"
)
_CAPTIONER = "samples batch:train_batch learning_rate seed warmup weight_decay hold_out keep_best"
_TWICE = "--epochs and --samples both say how long the training is: leave one of them out"
_DISTILLATION = "student epochs batch_size:train_batch learning_rate optimiser seed"

How = Annotated[dict[str, Any], Fields(_HOW, "pieces checkpointing threads:decode_threads")]
HowAndHowOften = Annotated[
    dict[str, Any], Fields(_HOW, "pieces checkpointing threads:decode_threads save_every report_every keep_epochs")
]
CleanRun = Annotated[str, Argument(metavar="CLEAN_RUN", help="The clean set: its run folder, or a pool without a run.")]
CleanSubset = Annotated[Path | None, Option("--subset", metavar="SUBSET", help="A subset of the clean set.")]
_OF_CC3M = 32  # epochs of T-MARS's clean set
CleanEpochs = Annotated[int, Option("--epochs", min=1, help="Epochs of the clean pairs.")]
Text = Annotated[str | None, Option(help="The column of captions.")]


def clip(
    source: Annotated[str, Argument(metavar="RUN", help="The run folder, or a pool without a run.")],
    out: OutFolder,
    training: Annotated[dict[str, Any], Fields(_CLIP, _EVERY_SETTING, optional=True)],
    how: HowAndHowOften,
    compute: TrainingCompute,
    subset: Annotated[Path | None, Option(metavar="SUBSET", help="A subset of the run.")] = None,
    scale: options.Scale = "lab",
    tokenizer: Annotated[str | None, Option(help="Checkpoint with the tokenizer; by default one is learned.")] = None,
    epochs: Annotated[float | None, Option(help="Epochs of the pairs, instead of --samples.")] = None,
    whole_loss: Annotated[bool, Option(help="Each process computes all logits, not only its own rows.")] = False,
    open_clip: Annotated[
        str | None, Option(metavar="SHARDS", help="Print the command that trains the same in open_clip, and end.")
    ] = None,
    processes: Annotated[int, Option(min=1, help="GPUs for the command that --open-clip prints.")] = 1,
    partial: options.Partial = False,
) -> None:
    """Train a CLIP on the pairs of a run or of a subset. The same command again resumes.

    On several GPUs put `torchrun --nproc-per-node 8 -m` in front; all processes share the run folder.

    Example: tamis train clip runs/lab --subset best --scale lab --out my-clip
    """
    from tamis.models.device import device_for
    from tamis.runs import open_run
    from tamis.runs.subset import Subset
    from tamis.train.clip import as_long_as, check_folder, train_clip, training_rows
    from tamis.train.scales import at_scale, open_clip_command
    from tamis.train.step import How

    with _report_errors():
        if epochs is not None and training["samples"] is not None:
            raise ValueError(_TWICE)
        settings = at_scale(scale, **training)
        if open_clip is not None:
            if epochs is not None:  # the run knows the number of pairs
                run = open_run(source, partial=partial)
                rows = training_rows(Subset.load(subset, run) if subset else run)[0]
                settings = as_long_as(settings, rows, epochs)
            elsewhere = device_for(None, compute["precision"] or "bf16", away=True)
            precision, pieces = elsewhere.precision, how["pieces"] or 1
            print(open_clip_command(settings, open_clip, precision=precision, processes=processes, pieces=pieces))
            return
        device = device_for(**compute)
        check_folder(out)
        pairs = _pairs(source, out, subset, partial)
        done = train_clip(
            pairs, out=out, training=settings, epochs=epochs, tokenizer=tokenizer,
            how=How(device=device, local_loss=not whole_loss, **how),
        )  # fmt: skip
    _say_trained(done)
    if _first() and done.samples >= 10 * done.pairs and not settings.hold_out:
        say(f"each pair was seen {done.samples / done.pairs:.0f} times: --hold-out 0.05 shows if the model overfits")


def captioner(
    source: Annotated[str, Argument(metavar="RUN", help="The run folder, or a pool without a run.")],
    out: OutFolder,
    models: Annotated[dict[str, Any], Fields("tamis.train.scales:CaptionTraining", "vision language", optional=True)],
    training: Annotated[dict[str, Any], Fields("tamis.train.scales:Training", _CAPTIONER, optional=True)],
    how: HowAndHowOften,
    compute: TrainingCompute,
    subset: Annotated[Path | None, Option(metavar="SUBSET", help="A subset of the run.")] = None,
    scale: options.Captioner = "icc",
    epochs: Annotated[float | None, Option(help="Epochs of the pairs, instead of --samples.")] = None,
    partial: options.Partial = False,
) -> None:
    """Train a captioner, a vision tower joined with a language model, on a run or a subset. The same command resumes.

    Example: tamis train captioner runs/lab --scale lab --out captioner
    """
    from tamis.models.device import device_for
    from tamis.train.clip import check_folder, train_clip
    from tamis.train.scales import captioner_at_scale
    from tamis.train.step import How

    with _report_errors():
        if epochs is not None and training["samples"] is not None:
            raise ValueError(_TWICE)
        settings = captioner_at_scale(scale, **models, **training)
        check_folder(out)
        method = How(device=device_for(**compute), **how)
        done = train_clip(_pairs(source, out, subset, partial), out=out, training=settings, epochs=epochs, how=method)
    _say_trained(done)


def _first() -> bool:
    """Whether this is the first process that torchrun has started, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def _numbers(weights: str) -> list[float]:
    try:
        return [float(word) for word in options.split(weights)]
    except ValueError:
        raise StopError(f"--weights takes numbers with commas, such as 5,4,-4; got {weights!r}") from None


def _report_errors() -> AbstractContextManager[None]:
    follow_the_work(quiet=not _first())
    return stopping_at(ValueError, FloatingPointError)


def _pairs(source: str, out: Path, subset: Path | None, partial: bool) -> Run | Subset:
    """A run, or a subset of it. A pool without a run is indexed first, next to the model."""
    from tamis.commands.score import score
    from tamis.core.files.storage import is_run
    from tamis.runs import open_run
    from tamis.runs.subset import Subset

    if is_run(source):
        run: Run = open_run(source, partial=partial)
    elif os.environ.get("WORLD_SIZE", "1") != "1":
        raise StopError(f"{source} is not a run folder; several processes need one: tamis score POOL --run RUN")
    else:
        run = score(source, run=out / "training" / "run")
    return Subset.load(subset, run) if subset else run


def _say_trained(done: Trained) -> None:
    if _first():
        say(
            f"wrote {done.folder}: {done.steps:,} steps, {done.samples:,} samples of {done.pairs:,} pairs, "
            f"{done.unreadable:,} unreadable, {done.samples_per_second:,.0f} samples/s, MFU {done.utilisation:.1%}"
        )


def c_ssft(
    clean: CleanRun,
    model: Annotated[str, Option(help="The pretrained CLIP to start from.")],
    out: OutFolder,
    how: How,
    compute: TrainingCompute,
    subset: CleanSubset = None,
    epochs: CleanEpochs = 5,
    rate: Annotated[float, Option("--learning-rate", help="AdamW's peak learning rate.")] = 1e-5,
    batch: Annotated[int, Option("--train-batch", min=2, help="Pairs compared with each other.")] = 1024,
    seed: Annotated[int, Option(min=0, help="Seed of the order and the crops.")] = 0,
    partial: options.Partial = False,
) -> None:
    """Fine-tune a CLIP on a clean set and keep each epoch's model, for the signal `c_ssft`. The same command resumes.

    The paper has 5 epochs on CC3M at 1e-5; for batch and schedule we use those of its other trainings.

    Example: tamis train c_ssft runs/clean --model lab/clip --out c_ssft
    """
    from tamis.models.device import device_for
    from tamis.train.clip import check_folder, fine_tuning, train_c_ssft
    from tamis.train.step import How

    with _report_errors():
        training = fine_tuning(model, learning_rate=rate, batch=batch, seed=seed)
        check_folder(out)
        method = How(device=device_for(**compute), **how)
        pairs = _pairs(clean, out, subset, partial)
        done = train_c_ssft(pairs, out=out, training=training, epochs=epochs, how=method)
    _say_trained(done)
    if _first():
        print(f"- c_ssft: {{folder: {out}, epochs: {epochs}}}")


def c_rho(
    sources: Annotated[
        list[str],
        Argument(metavar="[CLEAN_RUN] POOL_RUN", help="The clean set and the pool to judge: run folders, or pools."),
    ],
    out: OutFolder,
    training: Annotated[dict[str, Any], Fields(_CLIP, "model batch:train_batch learning_rate seed", optional=True)],
    how: How,
    compute: TrainingCompute,
    scale: Annotated[str | None, Option(help=f"Required. {options.SCALES}")] = None,
    pretrained: Annotated[
        str | None, Option(metavar="MODEL", help="A CLIP instead of one trained on a clean set, as ClipCov has it.")
    ] = None,
    subset: CleanSubset = None,
    epochs: CleanEpochs = _OF_CC3M,
    pool_epochs: Annotated[int, Option(min=1, help="Epochs of the pool; ClipCov has 5.")] = 1,
    partial: options.Partial = False,
) -> None:
    """Train a CLIP on a clean set and one on a pool, for the signal `c_rho`. The same command resumes.

    T-MARS has 32 epochs on CC3M and 1 on the pool, and names no model. ClipCov has a pretrained CLIP and 5 epochs.

    Example: tamis train c_rho runs/clean runs/pool --scale lab --out c_rho
    """
    from tamis.models.clip import kind_of
    from tamis.models.device import device_for
    from tamis.models.reference import is_here
    from tamis.signals.clip import CRho
    from tamis.train.clip import CLEAN, POOL, TrainingSet, check_folder, train_c_rho
    from tamis.train.scales import at_scale
    from tamis.train.step import How

    with _report_errors():
        if scale is None:
            raise ValueError(
                "choose the model with --scale: lab is a toy at 64 pixels, for drawn pools; for photographs take small "
                "(ViT-B-32) or a larger one, and a --train-batch of at most the pairs of each set"
            )
        names = [CLEAN, POOL] if pretrained is None else [POOL]
        if len(sources) != len(names):
            raise ValueError(
                f"expected {len(names)} run folders or pools ({' and '.join(names)}), got {len(sources)}: "
                + ("name both, or --pretrained MODEL instead of the first" if pretrained is None else "leave CLEAN out")
            )
        if pretrained is not None:
            if subset is not None or epochs != _OF_CC3M:
                raise ValueError("--subset and --epochs are of the clean set, which --pretrained replaces")
            if is_here(pretrained):  # raises if there is no such model
                kind_of(pretrained)  # raises if it is no CLIP
            CRho(clean=pretrained, pool=str(out / POOL))  # raises if they are the same
        settings = at_scale(scale, **training)
        say(f"scale {scale}: {settings.model}, batch {settings.batch:,}, learning rate {settings.learning_rate:g}")
        method = How(device=device_for(**compute), **how)
        for name in names:
            check_folder(out / name)
        of_each = {CLEAN: (subset, epochs), POOL: (None, pool_epochs)}
        parts = {
            name: TrainingSet(_pairs(source, out / name, of_each[name][0], partial), of_each[name][1])
            for name, source in zip(names, sources, strict=True)
        }
        trained = train_c_rho(parts.get(CLEAN), parts[POOL], out=out, training=settings, how=method)
    for done in trained.values():
        _say_trained(done)
    if _first():
        print(f"- c_rho: {{clean: {pretrained or trained[CLEAN].folder}, pool: {trained[POOL].folder}}}")


def mix(
    target: Annotated[str, Option(metavar="RUN", help="Run with the kind of pairs to look for.")],
    pool: Annotated[str, Option(metavar="RUN", help="Run of the pool to choose from.")],
    columns: Annotated[str, Option(help="Columns of numbers or embeddings, separated by commas.")],
    out: Annotated[Path, Option("--out", "-o", metavar="FILE", help="Weights file to write, YAML.")],
    subset: Annotated[Path | None, Option(metavar="SUBSET", help="A subset of the target run.")] = None,
    rows: Annotated[int, Option(min=100, help="Maximum number of pairs per side, drawn by uid.")] = 50_000,
    seed: Annotated[int, Option(help="Another seed draws other pairs.")] = 0,
    partial: options.Partial = False,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Fit the weights of the derived signal `mix`: which columns tell a target set from the pool. No model runs.

    Example: tamis train mix --target runs/clean --pool runs/mine --columns clip,image_embedding --out mix.yaml
    """
    from dataclasses import asdict

    from tamis.runs import open_run
    from tamis.runs.subset import Subset
    from tamis.train.mix_weights import train_mix

    wanted = open_run(target, partial=partial)
    done = train_mix(
        wanted if subset is None else Subset.load(subset, wanted), open_run(pool, partial=partial),
        options.split(columns), out=options.in_a_folder(out), rows=rows, seed=seed, overwrite=overwrite,
    )  # fmt: skip
    if as_json:
        print_json(asdict(done))
    else:
        print_table([{"column": name, "weight": str(weight)} for name, weight in done.coefficients.items()])
        print(f"AUC {done.auc} on held-out pairs: {done.target:,} of the target, {done.pool:,} of the pool")
    if done.left_out:
        say(f"{done.left_out:,} pairs that lack a value were left out")
    if done.auc.value > 0.98:
        say("an AUC this high often comes from how the two sets were made (size, format, source): look at the weights")
    say(f"wrote {out}; use it as - mix: {{weights: {out}}}")


def sba(
    captions: Annotated[Path, Argument(metavar="CAPTIONS", help="Parquet, CSV, TSV, JSON Lines or lines of text.")],
    clip: Annotated[str, Option(help="The CLIP whose text tower embeds captions.")],
    language_model: Annotated[str, Option(help="The causal language model that writes them.")],
    out: OutFolder,
    training: Annotated[
        dict[str, Any], Fields("tamis.train.icc:SbaTraining", "epochs batch_size:train_batch learning_rate end seed")
    ],
    compute: TrainingCompute,
    text: Text = None,
) -> None:
    """Train the linear layer that the signal `sba` takes as its bridge.

    Example: tamis train sba captions.csv --clip lab/clip --language-model lab/language-model --end eos --out my-sba
    """
    from tamis.models.device import device_for
    from tamis.pools.text_files import read_texts
    from tamis.train.icc import SbaTraining, train_sba

    with _report_errors():
        losses = train_sba(
            read_texts(captions, text=text).texts,
            clip=clip, language_model=language_model, out=out, training=SbaTraining(**training),
            device=device_for(**compute),
        )  # fmt: skip
    say(f"wrote {out} after {len(losses)} batches, the last loss {losses[-1]:.3f}")


def icc(
    scores: Annotated[
        str, Argument(metavar="SCORES", help="A run (folder or URL), or a table, with captions, vba and sba.")
    ],
    out: OutFolder,
    training: Annotated[dict[str, Any], Fields("tamis.train.icc:Distillation", _DISTILLATION)],
    compute: TrainingCompute,
    labels: Annotated[Path | None, Option(help="A table of captions that people labelled.")] = None,
    label: Annotated[str, Option(help="Column of the labels; higher is more concrete.")] = "label",
    text: Text = None,
    weights: Annotated[str | None, Option(help="Instead of labels: weights of vba, of sba, bias: 5,4,-4.")] = None,
    stages: Annotated[
        int, Option(min=1, max=2, help="2 combines students of the teachers, 1 the teachers themselves.")
    ] = 2,
    teacher: Annotated[str | None, Option(help="Train only the student of vba, or of sba.")] = None,
    students: Annotated[
        str | None, Option(metavar="VBA,SBA", help="Students made with --teacher. Default: train both now.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Standardise and combine the teachers' scores, and train a student on them, a model for the signal `icc`.

    Example: tamis train icc runs/teachers --labels labelled.csv --student minilm --out my-icc
    """
    from tamis.models.device import device_for
    from tamis.train.icc import TEACHERS, Distillation, distill, distill_teacher

    device = device_for(**compute)
    with _report_errors():
        settings = Distillation(**training)
        if teacher is not None:
            if labels or weights or students:
                raise ValueError("--teacher trains the student of one teacher: leave labels, weights and students out")
            alone = distill_teacher(scores, teacher, out=out, device=device, text=text, training=settings)
            _print_agreements({f"student, {teacher}": alone}, as_json)
            say(f"wrote {out}")
            return
        done = distill(
            scores, out=out, device=device, labels=labels, label=label, text=text, training=settings,
            weights=None if weights is None else _numbers(weights),
            stages=1 if stages == 1 else 2, students=None if students is None else options.split(students),
        )  # fmt: skip
    found = {"student, combined teachers": done.with_target}
    found |= {f"{name}, labels": agreement for name, agreement in done.with_labels.items()}
    _print_agreements(found, as_json)
    terms = " + ".join(f"{w:.3g} {name}" for w, name in zip(done.combination.weights, TEACHERS, strict=True))
    say(
        f"combined as sigma({terms} + {done.combination.bias:.3g}); the student learned from {done.captions:,} captions"
        f"; wrote {out}"
    )


def icc_labels(
    scores: Annotated[str, Argument(metavar="SCORES", help="Same as for `tamis train icc`.")],
    students: Annotated[str, Option(metavar="VBA,SBA", help="Students made with `tamis train icc --teacher`.")],
    out: Annotated[Path, Option("--out", "-o", metavar="FILE", help="The table to write, a CSV.")],
    compute: TrainingCompute,
    count: Annotated[int, Option(min=1, help="Number of captions.")] = 244,
    text: Text = None,
    seed: Annotated[int, Option(help="Another seed chooses other captions.")] = 0,
) -> None:
    """Choose captions for people to label: spread evenly over the scores of both teachers' students.

    The table has the captions and an empty column `label`, but no scores, which could influence the labels.

    Example: tamis train icc-labels runs/teachers --students vba-student,sba-student --out to-label.csv
    """
    from tamis.core.files.storage import writing
    from tamis.core.files.targets import check_target
    from tamis.models.device import device_for
    from tamis.pools.text_files import write_to_label
    from tamis.train.icc import captions_to_label

    # It may hold people's labels, so it is never replaced.
    check_target(out, what="table to label", ours=lambda path: False, overwrite=False)
    device = device_for(**compute)
    with stopping_at(ValueError):
        chosen, _ = captions_to_label(scores, options.split(students), device=device, count=count, seed=seed, text=text)
        with writing(out) as temporary:
            write_to_label(temporary, chosen)
    say(f"wrote {len(chosen):,} captions to {out}: fill the column label, higher for more concrete")


def _print_agreements(found: dict[str, Agreement], as_json: bool) -> None:
    if as_json:
        print_json({name: agreement.facts() for name, agreement in found.items()})
    else:
        print_table([{"agreement of": name, **correlations(agreement)} for name, agreement in found.items()])
