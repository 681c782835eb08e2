"""Commands that evaluate: `tamis bench` and `tamis choose` rank recipes, `tamis evaluate` measures models and texts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from tamis.cli import options
from tamis.cli.printing import correlations, exit_if, follow_the_work, print_json, print_table, say, stopping_at
from tamis.core.errors import StopError

if TYPE_CHECKING:
    from tamis.train.evaluate.tasks import Tasks

_USUAL_RECIPES = "no-filter,random,clip-50,tmars"
_RECIPES = Option(
    help=f"Names or .yaml files with commas; repeatable. Default: {_USUAL_RECIPES}.",
    autocompletion=options.completion("recipes"),
)
_SIGNAL_SETTING = Option(
    "--set", metavar="signals.A.B=VALUE", help="Setting of a signal, for every recipe that has it."
)
_ARMS = Option(
    help="Recipes that race: names or .yaml files with commas; repeatable. Default: clip-50,tmars.",
    autocompletion=options.completion("recipes"),
)
_RESULTS = Option("--out", "-o", metavar="DIR", help="Folder for the results; a repeated command resumes.")

_Source = Annotated[str, Argument(metavar="RUN|POOL|lab", help="A run, a pool, or lab for a drawn pool.")]
_BenchRun = Annotated[
    str | None, Option("--run", metavar="RUN", help="Run folder or URL for a pool. Default: DIR/run.")
]
_BenchField = Annotated[
    list[str] | None, Option("--field", help="If the source is a pool: json field to store; lab pools have truth.")
]
_Model = Annotated[str | None, Option("--model", help="Another architecture, or a checkpoint to start from.")]
_TrainBatch = Annotated[int | None, Option("--train-batch", min=2, help="Pairs compared with each other.")]
_Captioner = Annotated[
    str | None, Option("--captioner", help="Train this captioner, lab or icc, not a CLIP; the score is its CIDEr.")
]
_LabPairs = Annotated[int | None, Option("--pairs", min=1, help="Pairs of the lab's pool.")]
_LabSize = Annotated[int | None, Option("--size", min=1, help="Images of each of the lab's tasks.")]
_BenchWorkers = Annotated[int, Option("--workers", min=1, help="Models to train at once.")]


def bench(
    source: _Source,
    out: Annotated[Path, _RESULTS],
    compute: options.TrainingCompute,
    recipes: Annotated[list[str] | None, _RECIPES] = None,
    tasks: options.Tasks = "lab",
    only: options.OnlyTasks = None,
    run: _BenchRun = None,
    settings: Annotated[list[str] | None, _SIGNAL_SETTING] = None,
    field: _BenchField = None,
    seeds: Annotated[int, Option(min=2, help="Models trained on each subset; at least 3 for a fair answer.")] = 3,
    scale: options.Scale = "lab",
    samples: Annotated[int | None, Option(min=1, help="Pairs that each model sees, repeats counted.")] = None,
    model: _Model = None,
    batch: _TrainBatch = None,
    captioner: _Captioner = None,
    pairs: _LabPairs = None,
    size: _LabSize = None,
    quick: Annotated[bool, Option("--quick", help="The smallest useful size: 10 minutes on 2 idle cores.")] = False,
    utility: Annotated[
        bool, Option("--utility", help="Instead of recipes: what one more pair of each true kind is worth (T-MARS).")
    ] = False,
    workers: _BenchWorkers = 2,
    keep_models: Annotated[bool, Option("--keep-models", help="Keep the trained models.")] = False,
    partial: options.Partial = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Rank recipes by models trained on what each keeps: equal samples seen, several seeds, 95 % intervals.

    Missing scores are computed first. The same command again resumes.

    Example: tamis bench runs/mine --recipes no-filter,clip-50,tmars --tasks evalsets --out bench
    """
    from dataclasses import asdict

    import tamis
    from tamis.train.evaluate.utility import TASKS, rows_of_utilities, utilities, variants
    from tamis.train.scales import at_scale, captioner_at_scale
    from tamis_lab import MODEL_SETTINGS

    follow_the_work(quiet=quiet)
    if utility and (recipes or settings or captioner):
        raise StopError("--utility compares kinds of pairs by a CLIP: leave --recipes, --set and --captioner out")
    # Pairs of the lab's pool, samples that each model sees, images of each of the lab's tasks; see docs/bench.md.
    usual_pairs, usual_samples, usual_size = (2_000, 12_288, 240) if quick else (10_000, None, 480)
    if utility:
        usual_pairs, usual_samples, usual_size = (10_000, 12_288, 480) if quick else (40_000, 46_080, 480)
        only = only or (list(TASKS) if tasks == "lab" else None)
    _check_sizes(source, tasks, pairs, size)
    drawn = _drawn_pool(pairs or usual_pairs, workers, uniform=utility) if source == "lab" else None
    with stopping_at(ValueError):
        changes = {"samples": samples or usual_samples, "batch": batch}
        if captioner is not None and (model, scale) != (None, "lab"):
            raise ValueError("--scale and --model are a CLIP's: leave them out with --captioner")
        training = captioner_at_scale(captioner, **changes) if captioner else at_scale(scale, model=model, **changes)
        names = options.split(recipes or _USUAL_RECIPES)
        found = tamis.bench(
            drawn or source, variants if utility else names,
            tasks=_tasks(tasks, size or usual_size), out=out, run=run, settings=settings or [],
            defaults=MODEL_SETTINGS if drawn else (), fields=[*(["truth"] if drawn else []), *(field or [])],
            training=training, seeds=seeds, only=options.split(only), workers=workers, keep_models=keep_models,
            partial=partial, quiet=quiet, **compute,
        )  # fmt: skip
    slopes = utilities(found) if utility else {}
    if as_json:
        worth = {"utility": {kind: one and asdict(one) for kind, one in slopes.items()}}
        print_json({**found.facts(), **(worth if utility else {})})
    elif utility:
        print_table(rows_of_utilities(slopes))
        print()
        print_table(found.rows_of_table())
    else:
        print_table(found.rows_of_table())
        for sentence in found.verdict():
            print(sentence)
        for rows in (found.rows_of_kinds(), found.rows_of_overlap()):
            if rows:
                print()
                print_table(rows)
    for name, why in found.failed.items():
        say(f"{name} has no result: {why}")
    exit_if(found.failed)


def choose(
    source: _Source,
    compute: options.TrainingCompute,
    out: Annotated[Path, _RESULTS] = Path("bench"),
    arms: Annotated[list[str] | None, _ARMS] = None,
    shares: Annotated[
        list[str] | None, Option(help="Shares of the pool, such as .1,.2,.5, that each recipe keeps. Default: its own.")
    ] = None,
    curve: Annotated[
        bool, Option("--curve", help="Instead of a race: eight shares of each arm, from the lowest to the highest.")
    ] = False,
    tasks: options.Tasks = "lab",
    only: options.OnlyTasks = None,
    budget: Annotated[
        float | None,
        Option(parser=options.hours, metavar="TIME", help="Time for training, such as 4h or 30m. Default: no limit."),
    ] = None,
    rounds: Annotated[
        int | None,
        Option(min=2, help="Rounds; each trains twice as long as the one before. Default: 4, with --quick 2."),
    ] = None,
    check: Annotated[
        str | None, Option(metavar="MODEL[:TEXT]", help="Race again with this model, and print how far both agree.")
    ] = None,
    run: _BenchRun = None,
    settings: Annotated[list[str] | None, _SIGNAL_SETTING] = None,
    field: _BenchField = None,
    scale: options.Scale = "lab",
    samples: Annotated[
        int | None, Option(min=1, help="Pairs that each model of the last round sees, repeats counted.")
    ] = None,
    model: _Model = None,
    batch: _TrainBatch = None,
    captioner: _Captioner = None,
    pairs: _LabPairs = None,
    size: _LabSize = None,
    quick: Annotated[bool, Option("--quick", help="The smallest useful size: 15 minutes on 2 idle cores.")] = False,
    workers: _BenchWorkers = 2,
    partial: options.Partial = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Choose a recipe and its share for a pool: a race of small models, whose answer is a set with its error.

    Each round trains a model on every arm left, twice as long as before, and drops arms that are worse beyond noise and
    drift. `no-filter` and `random` race too. The same command again resumes; `tamis bench` shares the trainings.

    Example: tamis choose runs/mine --arms clip-50 --shares .1,.3,.5 --tasks evalsets --budget 4h
    """
    import tamis
    from tamis.train.evaluate.choose import QUICK, SAMPLES
    from tamis.train.evaluate.shares import SAMPLES as CURVE_SAMPLES
    from tamis.train.evaluate.shares import find_share
    from tamis.train.scales import at_scale, captioner_at_scale
    from tamis_lab import MODEL_SETTINGS

    follow_the_work(quiet=quiet)
    usual_pairs, usual_size = (2_000, 240) if quick else (10_000, 480)
    _check_sizes(source, tasks, pairs, size)
    drawn = _drawn_pool(pairs or usual_pairs, workers, uniform=False) if source == "lab" else None
    with stopping_at(ValueError):
        usual_samples = CURVE_SAMPLES if curve else SAMPLES
        usual = None if captioner or scale != "lab" else QUICK if quick else usual_samples
        changes = {"samples": samples or usual, "batch": batch}
        if captioner is not None and (model, scale, check) != (None, "lab", None):
            raise ValueError("--scale, --model and --check are a CLIP's: leave them out with --captioner")
        training = captioner_at_scale(captioner, **changes) if captioner else at_scale(scale, model=model, **changes)
        other, _, text = (check or "").partition(":")
        if check is not None and not other:
            raise ValueError(f"--check names a model, such as ViT-tiny or ViT-tiny:minilm, got {check!r}")
        names = options.split(arms or "clip-50,tmars")
        if not names:
            raise ValueError("there is no recipe to race: name some, such as clip-50,tmars")
        numbers = options.numbers(shares)
        asked: dict[str, Any] = {
            "tasks": _tasks(tasks, size or usual_size), "out": out, "run": run, "settings": settings or [],
            "defaults": MODEL_SETTINGS if drawn else (), "fields": [*(["truth"] if drawn else []), *(field or [])],
            "training": training, "only": options.split(only), "workers": workers, "partial": partial, "quiet": quiet,
            **compute,
        }  # fmt: skip
        if curve:
            if check or budget or rounds:
                raise ValueError("--check, --budget and --rounds are for a race: leave them out with --curve")
            curves = find_share(drawn or source, names, shares=numbers, **asked)
            if as_json:
                print_json({"curves": [one.facts() for one in curves]})
                return
            for one in curves:
                print_table(one.rows_of_table())
                print("\n".join(one.verdict()))
            return
        found = tamis.choose(
            drawn or source, names, shares=numbers, budget=budget, rounds=rounds or (2 if quick else 4),
            check=at_scale(scale, model=other, text=text or None, **changes) if check else None, **asked,
        )  # fmt: skip
    if as_json:
        print_json(found.facts())
    else:
        print_table(found.rows_of_table())
        print("\n".join(found.verdict()))
    for name, why in found.failed.items():
        say(f"{name} has no result: {why}")
    exit_if(found.failed)


def _check_sizes(source: str, tasks: str, pairs: int | None, size: int | None) -> None:
    """Raises StopError if a size is asked for of a pool, or of tasks, that the lab does not draw."""
    if pairs and source != "lab":
        raise StopError(f"--pairs is the size of the lab's pool, and has no effect on {source}: leave it out")
    if size and tasks != "lab":
        raise StopError(f"--size is that of the lab's tasks, and has no effect on {tasks}: leave it out")


def _drawn_pool(pairs: int, workers: int, *, uniform: bool) -> Callable[[Path], Path]:
    """Returns a function that draws a lab pool within a bench's folder; `uniform`: as many pairs of each main kind."""
    from tamis_lab.pool import make_pool

    def draw(folder: Path) -> Path:
        return make_pool(
            folder / f"pool-{pairs}{'-uniform' if uniform else ''}", pairs=pairs, workers=workers, again=False,
            mix="uniform" if uniform else "laion", defects=not uniform,
        ).out  # fmt: skip

    return draw


def _tasks(tasks: str, size: int) -> Tasks:
    """Returns a function that draws the lab's tasks within a folder of results if `tasks` is "lab"."""
    from tamis_lab.tasks import make_tasks

    if tasks != "lab":
        return tasks
    return lambda folder: make_tasks(folder / f"lab-tasks-{size}", size=size, again=False)


def zero_shot(
    model: Annotated[str, Argument(metavar="MODEL", help="A CLIP or SigLIP: hub id, folder, or built-in name.")],
    tasks: options.Tasks,
    *,
    out: Annotated[Path, _RESULTS] = Path("zero-shot"),
    only: options.OnlyTasks = None,
    which: Annotated[str, Option("--split", help="Which split of WebDataset tasks.")] = "test",
    size: Annotated[int, Option(min=1, help="Images of each of the lab's tasks.")] = 480,
    compute: Annotated[dict[str, Any], options.Fields("tamis.core.compute:Compute", "device threads batch_size")],
    precision: Annotated[str, Option(help="float32, as DataComp evaluates, or bf16.")] = "float32",
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure a model on tasks it was not trained for: classification, retrieval, WinoGAViL; DataComp's averages.

    Example: tamis evaluate zero-shot lab/clip --tasks lab
    """
    from tamis.models.device import device_for
    from tamis.train.evaluate.zero_shot import evaluate_zero_shot

    follow_the_work(quiet=quiet)
    where = device_for(**compute, precision=precision)
    found = evaluate_zero_shot(model, _tasks(tasks, size), where, out=out, only=options.split(only), split=which)
    for name, reason in found.others.items():
        say(f"skipped {name}: {reason}")
    if as_json:
        print_json(found.facts())
    else:
        print_table(found.rows())
        for group in found.groups()[-1:]:  # the last group is all 38 tasks and covers the others
            if group.absent:
                say(f"DataComp's tasks that are not here: {', '.join(group.absent)}")
    if found.failed:  # each was logged when it happened
        say(f"{len(found.failed)} tasks could not be run: {', '.join(found.failed)}")
    exit_if(found.failed)


def captions(
    model: Annotated[str, Argument(metavar="MODEL", help="A captioner: BLIP, BLIP-2, GIT, or of `train captioner`.")],
    data: Annotated[str, Argument(metavar="TASKS|POOL|lab", help="Retrieval tasks, lab for drawn ones; or a pool.")],
    *,
    references: Annotated[
        str | None, Option(metavar="FIELD", help="The pool's json field or column with the captions of an image.")
    ] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="JSON file to write, with every caption.")] = None,
    only: options.OnlyTasks = None,
    beams: Annotated[int, Option(min=1, help="Beams of the search.")] = 5,
    encoder: Annotated[str | None, Option(help="Text encoder for BERTScore, such as FacebookAI/roberta-large.")] = None,
    compute: Annotated[dict[str, Any], options.Fields("tamis.core.compute:Compute", "device threads batch_size")],
    as_json: options.AsJson = False,
) -> None:
    """Caption images and compare with people's captions: BLEU-4, METEOR, ROUGE-L, CIDEr, SPICE, BERTScore.

    Example: tamis evaluate captions lab/captioner lab
    """
    from dataclasses import asdict

    from tamis.core.files.storage import write_json
    from tamis.core.files.targets import check_target
    from tamis.models.device import device_for
    from tamis.train.evaluate.captions import evaluate_captions

    if out is not None:
        check_target(options.in_a_folder(out), what="file of captions", ours=lambda path: False, overwrite=False)
    device = device_for(**compute, precision="float32")
    with TemporaryDirectory() as folder:
        tasks = _tasks(data, 480)
        found = evaluate_captions(
            model, tasks(Path(folder)) if callable(tasks) else tasks, device, references=references,
            only=options.split(only), beams=beams, encoder=encoder,
        )  # fmt: skip
    facts = {"model": model, "beams": beams, "tasks": [asdict(one) for one in found]}
    if out is not None:
        write_json(out, facts)
    if as_json:
        print_json(facts)
    else:
        print_table([one.row() for one in found])
    for name, reason in found[0].missing.items():
        say(f"{name} {reason}")
    for one in found:
        for key, reason in one.reasons.items():
            say(f"{one.task}: {key} cannot be used: {reason}")


def concreteness(
    file: Annotated[Path, Argument(metavar="FILE", help="A table of words or captions with ratings.")],
    compute: options.Compute,
    model: Annotated[str | None, Option(help="The signal's model; for icc: norms, a folder, a hub id.")] = None,
    signal: Annotated[str, Option(help="The signal of captions.")] = "icc",
    settings: Annotated[
        list[str] | None, Option("--set", metavar="A=VALUE", help="Another setting of the signal.")
    ] = None,
    text: Annotated[str | None, Option(help="The column of texts.")] = None,
    rating: Annotated[str | None, Option(help="The column of ratings.")] = None,
    held_out: Annotated[
        bool, Option("--held-out", help="Use only the 10 % of words held out from norms' training.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Correlate a score of texts with people's ratings: Pearson, Spearman, Kendall's tau-b, with 95 % intervals.

    Example: tamis evaluate concreteness ratings.csv --model norms
    """
    from tamis.models.device import device_for
    from tamis.recipes.recipe import signal_from
    from tamis.train.evaluate.concreteness import evaluate_concreteness

    signal_settings = options.parse_assignments(settings) | ({} if model is None else {"model": model})
    _, chosen = signal_from({signal: signal_settings}, "--signal")
    where = device_for(**compute)
    found = evaluate_concreteness(file, chosen, where, text=text, rating=rating, only_held_out=held_out)
    if as_json:
        print_json(found.facts())
        return
    print_table([{"signal": signal, "texts": f"{found.texts:,}", **correlations(found)}])
    if found.left_out:
        say(f"{found.left_out:,} rows have no rating or no score and were left out")
