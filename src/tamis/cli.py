"""The command line: it only translates. Results go to standard output, everything else to standard error.

Exit codes: 0 done; 1 done, but shards failed; 2 the command could not be carried out; 130 interrupted.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from tamis.errors import StopError, TamisError, shown
from tamis.version import VERSION

if TYPE_CHECKING:
    from tamis.evaluate.concreteness import Agreement
    from tamis.pool import PoolSpec
    from tamis.recipe import Recipe
    from tamis.store import Run
    from tamis.store.subset import Subset

app = typer.Typer(
    name="tamis",
    help="Score every image-text pair of a pool once; choose training subsets as often as you like.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
lab = typer.Typer(help="The lab: a small drawn world whose truth is known.", no_args_is_help=True)
app.add_typer(lab, name="lab")
train = typer.Typer(help="Train the small parts that some scorers need.", no_args_is_help=True)
app.add_typer(train, name="train")
icc = typer.Typer(help="ICC: from the two teachers' scores to a model of one's own.", no_args_is_help=True)
app.add_typer(icc, name="icc")
evaluate = typer.Typer(help="Compare scores with what people say.", no_args_is_help=True)
app.add_typer(evaluate, name="evaluate")

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The run folder.")]
PoolPath = Annotated[
    list[str],
    typer.Argument(metavar="POOL...", help="Folder, glob, brace range, file or fsspec URL; several if you like."),
]
RunOption = Annotated[Path | None, typer.Option("--run", help="The run folder, new or not.")]
RecipeOption = Annotated[str | None, typer.Option("--recipe", "-r", help="A shipped recipe's name, or a .yaml file.")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="A.B=VALUE", help="Override one setting of the recipe; may be repeated."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; by default a GPU where there is one.")]
Precision = Annotated[
    str | None, typer.Option(help="float32 or bf16; by default bf16 where the hardware multiplies it.")
]
BatchSize = Annotated[int | None, typer.Option(min=1, help="Samples per batch; by default 64 on a CPU, 256 on a GPU.")]
Workers = Annotated[int, typer.Option(min=1, help="Processes, each at a shard of its own.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads for the models of each worker.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(VERSION)
        raise typer.Exit


@app.callback()
def _start(
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say more about what is done.")] = False,
    version: Annotated[
        # Eager: it needs no command after it.
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(message)s", stream=sys.stderr)


@app.command()
def score(
    pool: PoolPath,
    run: Annotated[Path, typer.Option("--run", help="The run folder, new or not.")],
    recipe: RecipeOption = None,
    signals: Annotated[str | None, typer.Option(help="Scorers, separated by commas: caption_length,language.")] = None,
    settings: SetOption = None,
    keep: Annotated[str | None, typer.Option(help="Features to store: embeddings, captions, texts.")] = None,
    caption: Annotated[
        str | None, typer.Option(help="Where the caption is: txt, json:FIELD, or a table's column.")
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="Tables: the column of image paths or bytes; none: captions alone.")
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="Json field to carry into the index; may be repeated.")
    ] = None,
    format: Annotated[str, typer.Option(help="auto, webdataset, table or datacomp.")] = "auto",
    max_pixels: Annotated[int, typer.Option(help="Images of more pixels are reported, not decoded.")] = 100_000_000,
    device: Device = None,
    precision: Precision = None,
    batch_size: BatchSize = None,
    workers: Workers = 1,
    threads: Threads = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and stop.")] = False,
    quiet: Quiet = False,
) -> None:
    """Score a pool. The same command again goes on where it stopped; new scorers are added to what is there.

    Example: tamis score "pool/{00000..00031}.tar" --run runs/mine --signals caption_length,language
    """
    from tamis import recipe as recipes

    if recipe is None and signals is None:
        _stop("say what to score: --signals caption_length,language or --recipe NAME; see `tamis list signals`")
    data: dict[str, Any] = {"scores": _split(signals)} if recipe is None else {}
    chosen = recipes.load(recipe if recipe is not None else data, settings or [])
    spec = recipes.build(
        _pool_spec(),
        {
            "path": tuple(pool) if len(pool) > 1 else pool[0],
            "format": format,
            "caption": caption,
            "image": image,
            "fields": tuple(field or ()),
            "max_pixels": max_pixels,
        },
        "score",
    )
    _score(
        chosen,
        spec,
        run,
        extra=_split(signals) if recipe is not None else [],
        keep=_split(keep),
        device=device,
        precision=precision,
        batch_size=batch_size,
        workers=workers,
        threads=threads,
        dry_run=dry_run,
        quiet=quiet,
    )


def _pool_spec() -> type[PoolSpec]:
    from tamis.pool import PoolSpec

    return PoolSpec


def _score(chosen: Recipe, spec: PoolSpec, run: Path, *, extra: list[str], dry_run: bool, **options: Any) -> Run:
    from tamis import api
    from tamis.models.device import device_for

    if dry_run:
        _print_plan(chosen, spec, run, extra, options)
        raise typer.Exit
    options["keep"] = options["keep"] or ()
    done = api.score(spec, run=run, recipe=chosen, scores=extra, **options)
    failures = done.failures
    where = device_for(options["device"], options["precision"], options["batch_size"], options["threads"])
    _say(
        f"{len(done):,} pairs in {len(done.shards)} shards, {where.precision} on {where.kind}: {_counts(done.statuses)}"
    )
    if failures:
        for name, error in failures.items():
            _say(f"shard {name} failed: {error}")
        _say("the rest is complete; mend or replace what failed and repeat the command")
        raise typer.Exit(1)
    return done


def _print_plan(chosen: Recipe, spec: PoolSpec, run: Path, extra: list[str], options: dict[str, Any]) -> None:
    from tamis import recipe as recipes
    from tamis.models.device import device_for
    from tamis.pool import open_pool
    from tamis.run.plan import Plan, labelled
    from tamis.store import manifest

    where = device_for(options["device"], options["precision"], options["batch_size"], options["threads"])
    pool = open_pool(spec, manifest.shard_names_of(run))
    entries = [*chosen.scores, *(recipes.scorer_from(entry) for entry in extra)]
    scorers = labelled([pair if pair[0] else pair[1] for pair in entries], manifest.labels_of(run), where)
    plan = Plan(pool=pool, scorers=tuple(scorers), keep=tuple(chosen.keep) + tuple(options["keep"]), device=where)
    tasks = plan.tasks(run)
    print(f"pool      {pool.kind}, {len(pool.shards)} shards")
    print(f"run       {run}{'' if run.exists() else ' (new)'}")
    print(f"device    {where.kind}, {where.precision}, batches of {where.batch_size}")
    for output in plan.outputs:
        missing = sum(output in task.outputs for task in tasks)
        print(f"{'scores' if output.kind == 'scores' else output.kind:<10}{output.folder}: {missing} shards to do")


@app.command()
def select(
    run: RunPath,
    recipe: Annotated[str, typer.Option("--recipe", "-r", help="A shipped recipe's name, or a .yaml file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The subset file to write.")],
    settings: SetOption = None,
    as_json: AsJson = False,
) -> None:
    """Choose rows of a run by a recipe. No model runs.

    Example: tamis select runs/mine --recipe basic --out basic.parquet
    """
    from tamis import api

    subset = api.select(run, recipe, settings=settings or [])
    subset.save(out)
    _print_funnel(subset, as_json)
    _say(f"wrote {out}")


@app.command()
def cluster(
    run: RunPath,
    clusters: Annotated[
        int | None, typer.Option(min=1, help="How many clusters; by default one per thousand rows.")
    ] = None,
    embedding: Annotated[str, typer.Option(help="Which stored embeddings.")] = "image_embedding",
    seed: Annotated[int, typer.Option(help="Another seed gives other clusters.")] = 0,
) -> None:
    """Give every row a cluster of its embeddings, as columns that recipes use: per: cluster. No model runs.

    Example: tamis cluster runs/mine --clusters 500
    """
    from tamis import api

    done = api.cluster(run, clusters=clusters, embedding=embedding, seed=seed)
    label = max((label for label in done.scores if label.startswith("cluster")), default="cluster")
    _say(f"{len(done):,} rows have the columns {label}.cluster and {label}.centroid_cosine")


@app.command()
def export(
    run: RunPath,
    subset: Annotated[Path, typer.Argument(metavar="SUBSET", help="A subset file that `tamis select` wrote.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write; a folder for webdataset.")],
    to: Annotated[str, typer.Option(help="npy, webdataset, parquet or keys; or dropped: what is not kept, and why.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A=VALUE", help="A setting of the format.")
    ] = None,
) -> None:
    """Write a subset for a trainer, or the pairs that it drops.

    Example: tamis export runs/mine basic.parquet subset.npy --to npy
    """
    from tamis import api
    from tamis import recipe as recipes
    from tamis.store import open_run
    from tamis.store.subset import Subset

    options = dict(recipes.assignment(setting) for setting in settings or [])
    written = api.export(Subset.load(subset, open_run(run)), to, out, **options)
    _say(f"wrote {written:,} pairs to {out}")


@app.command()
def report(
    run: RunPath,
    subsets: Annotated[list[Path] | None, typer.Argument(metavar="[SUBSET]...", help="Subset files.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one self-contained HTML page about a run and its subsets.

    Example: tamis report runs/mine basic.parquet clip-30.parquet --out report.html
    """
    from tamis import api
    from tamis.store import open_run
    from tamis.store.subset import Subset

    opened = open_run(run)
    page = api.report(opened, [Subset.load(path, opened) for path in subsets or []], out=out)
    _say(f"wrote {page}")


@app.command(name="run")
def run_recipe(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe file with pool and run.")],
    settings: SetOption = None,
    device: Device = None,
    precision: Precision = None,
    batch_size: BatchSize = None,
    workers: Workers = 1,
    threads: Threads = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and stop.")] = False,
    quiet: Quiet = False,
) -> None:
    """Score, select, export and report, as one recipe says.

    Example: tamis run recipe.yaml --set select.top_fraction.fraction=0.3
    """
    from tamis import api
    from tamis import recipe as recipes
    from tamis.pool import open_pool

    chosen = recipes.load(recipe, settings or [])
    spec = api.pool_named(chosen)
    if chosen.run is None:
        _stop(f"the recipe {chosen.name!r} names no run folder: add 'run: runs/NAME'")
    api.check_columns(chosen, chosen.run, open_pool(spec))
    api.check_files(chosen)
    failed = False
    try:
        done = _score(
            chosen,
            spec,
            Path(chosen.run),
            extra=[],
            keep=[],
            device=device,
            precision=precision,
            batch_size=batch_size,
            workers=workers,
            threads=threads,
            dry_run=dry_run,
            quiet=quiet,
        )
    except typer.Exit as error:
        if error.exit_code != 1:
            raise
        from tamis.store import open_run

        done, failed = open_run(chosen.run), True  # what could be read is chosen from all the same
    subsets: list[Subset] = []
    if chosen.selects:
        subset = api.select(done, chosen)
        subset.save(Path(chosen.run) / "subsets" / f"{chosen.name}.parquet")
        _print_funnel(subset, as_json=False)
        subsets.append(subset)
        for name, options in chosen.exports:
            rest = {key: value for key, value in options.items() if key != "out"}
            written = api.export(subset, name, options["out"], **rest)
            _say(f"wrote {written:,} pairs to {options['out']}")
    page = api.report(done, subsets, out=chosen.report or Path(chosen.run) / "report.html")
    _say(f"wrote {page}")
    if failed:
        raise typer.Exit(1)


@app.command()
def status(
    run: RunPath,
    watch: Annotated[bool, typer.Option("--watch", help="Show again every 2 seconds, until the run ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Tell how far a run is, by reading its files only: works from any shell, while it runs and after.

    Example: tamis status runs/mine --watch
    """
    from tamis.run.status import follow, read_status, render_status

    if watch:
        _watch(follow(run))
        return
    found = read_status(run)
    print(json.dumps(found, indent=2, ensure_ascii=False) if as_json else render_status(found))
    if found["failed"]:
        raise typer.Exit(1)


@app.command(name="list")
def list_things(
    what: Annotated[str, typer.Argument(metavar="signals|recipes|models|steps|exports", help="What to list.")],
    as_json: AsJson = False,
) -> None:
    """List signals, recipes, models, selection steps or export formats, with their settings.

    Example: tamis list signals
    """
    from tamis.catalogue import CATALOGUES, model_tables
    from tamis.errors import unknown

    if what not in CATALOGUES:
        _stop(unknown("list", what, CATALOGUES))
    rows = CATALOGUES[what]()
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    if what != "models":
        _print_table(rows)
        return
    for heading, part in model_tables(rows):
        print(heading)
        if part:
            _print_table(part)
            print()


@app.command()
def check(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name, or a .yaml file.")],
    settings: SetOption = None,
    run: RunOption = None,
) -> None:
    """Check a recipe without doing anything; with --run also whether the run has the columns it reads.

    Example: tamis check recipe.yaml
    """
    from tamis import api
    from tamis import recipe as recipes
    from tamis.errors import RecipeError
    from tamis.selectors.steps import describe
    from tamis.store import open_run

    chosen = recipes.load(recipe, settings or [])
    if chosen.scores:
        api.check_columns(chosen, run)
    if run is not None:
        opened = open_run(run)
        for name in chosen.reads:
            opened.locate(chosen.columns.get(name, name))
    print(f"{chosen.name}: {chosen.about or 'no description'}")
    for label, scorer in chosen.scores:
        print(f"  score   {label or scorer.name}")
    for step in chosen.steps:
        print(f"  select  {describe(step)}")
    for name, options in chosen.exports:
        print(f"  export  {name} to {options['out']}")
    try:
        api.check_files(chosen)
    except RecipeError as error:  # it may be made, or named with --set, before the recipe runs
        print(f"  not there yet: {error}")
    _say("the recipe is good")


@lab.command(name="make-pool")
def make_pool(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder for the shards.")],
    pairs: Annotated[int, typer.Option(min=1, help="How many pairs.")] = 2000,
    seed: Annotated[int, typer.Option(help="Another seed makes another pool; the same one the same bytes.")] = 0,
    mix: Annotated[str, typer.Option(help="laion: kinds in the shares of LAION; uniform: equal shares.")] = "laion",
    shard_size: Annotated[int, typer.Option(min=1, help="Pairs per shard.")] = 1000,
    workers: Workers = 1,
) -> None:
    """Draw a pool whose truth is known: scenes with captions, painted text, mismatches, duplicates and broken files.

    Example: tamis lab make-pool demo/pool --pairs 2000 --seed 0
    """
    from tamis.errors import unknown
    from tamis.lab import make_pool as make

    if mix not in ("laion", "uniform"):
        _stop(unknown("mix", mix, ("laion", "uniform")))
    summary = make(out, pairs=pairs, seed=seed, mix=mix, shard_size=shard_size, workers=workers)  # type: ignore[arg-type]
    _say(f"wrote {pairs:,} pairs to {out}: {_counts(summary.kinds)}")


@lab.command(name="build-models")
def build_models(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the models' folders.")] = Path("models"),
    only: Annotated[str | None, typer.Option(help="Some of them: lab/clip,lab/captioner,...; else all.")] = None,
    device: Device = None,
    precision: Precision = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that draw; one per core if not given.")] = None,
    effort: Annotated[float, typer.Option(help="Share of the training; below 1 only to try the command.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Train the built-in models again from the lab's world, measure them and write their cards.

    Example: tamis lab build-models --out models --only lab/language-model
    """
    from tamis.lab.models.building import build_models as build

    if as_json is False:
        logging.getLogger("tamis").setLevel(logging.INFO)
    try:
        built = build(out, only=_split(only), device=device, precision=precision, workers=workers, effort=effort)
    except ValueError as error:
        _stop(str(error))
    rows = [
        {
            "model": one.name,
            "measured": metric.what,
            "value": metric.found.value,
            "low": metric.found.low,
            "high": metric.found.high,
            "floor": metric.floor,
            "seconds": round(one.seconds),
        }
        for one in built
        for metric in one.metrics.values()
    ]
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    _print_table(
        [
            {
                "model": row["model"],
                "measured": row["measured"],
                "95 % interval": f"{row['value']:.3f} [{row['low']:.3f}, {row['high']:.3f}]",
                "floor": "" if row["floor"] is None else f"{row['floor']:g}",
                "training": f"{row['seconds']} s",
            }
            for row in rows
        ]
    )


@train.command(name="sba")
def train_sba(
    captions: Annotated[
        Path, typer.Argument(metavar="CAPTIONS", help="Parquet, CSV, TSV, JSON Lines or lines of text.")
    ],
    clip: Annotated[str, typer.Option(help="The CLIP whose text tower reads.")],
    language_model: Annotated[str, typer.Option(help="The causal language model that writes.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to write.")],
    text: Annotated[str | None, typer.Option(help="The column of captions.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="Times through the captions.")] = 2,
    size: Annotated[int, typer.Option("--train-batch", min=1, help="Captions in a batch of training.")] = 128,
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
    from tamis.train.sba import SbaTraining
    from tamis.train.sba import train_sba as work

    if end not in ("newline", "eos"):
        _stop(unknown("end", end, ("newline", "eos")))
    logging.getLogger("tamis").setLevel(logging.INFO)
    try:
        how = SbaTraining(epochs=epochs, batch_size=size, learning_rate=rate, end=end, seed=seed)  # type: ignore[arg-type]
        losses = work(
            read_texts(captions, text=text).texts,
            clip=clip, language_model=language_model, out=out,
            device=device_for(device, precision, None, threads), training=how,
        )  # fmt: skip
    except (ValueError, FloatingPointError) as error:
        _stop(str(error))
    _say(f"wrote {out} after {len(losses)} batches, the last loss {losses[-1]:.3f}")


@train.command(name="norms")
def train_norms(
    data: Annotated[Path, typer.Option(metavar="FOLDER", help="Holds the word norms and the rated files of captions.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder to write.")],
    threads: Threads = None,
) -> None:
    """Fit the built-in concreteness model `norms` again: a head on MiniLM, from word norms and rated captions.

    Example: tamis train norms --data data/text --out my-norms
    """
    from tamis.models.device import device_for
    from tamis.train.norms import fit_norms

    logging.getLogger("tamis").setLevel(logging.INFO)
    for line in fit_norms(data, out, device_for("cpu", "float32", 256, threads)):
        print(line)
    _say(f"wrote {out}")


@icc.command(name="distill")
def icc_distill(
    scores: Annotated[Path, typer.Argument(metavar="SCORES", help="A run, or a table, with captions, vba and sba.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder of the student.")],
    labels: Annotated[Path | None, typer.Option(help="A table of captions that people labelled.")] = None,
    label: Annotated[str, typer.Option(help="Its column; higher is more concrete.")] = "label",
    text: Annotated[str | None, typer.Option(help="The column of captions, in both tables.")] = None,
    weights: Annotated[
        str | None, typer.Option(help="In place of labels: weights of vba, of sba, bias: 5,4,-4.")
    ] = None,
    student: Annotated[str, typer.Option(help="The encoder to start from.")] = "distilbert/distilroberta-base",
    epochs: Annotated[int, typer.Option(min=1, help="Times through the captions.")] = 2,
    size: Annotated[int, typer.Option("--train-batch", min=1, help="Captions in a batch of training.")] = 128,
    rate: Annotated[float, typer.Option("--learning-rate", help="The peak.")] = 1e-4,
    seed: Annotated[int, typer.Option(help="Of the new head and the order of captions.")] = 0,
    device: Device = None,
    precision: Precision = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Standardise and combine the teachers' scores, and teach them to a student that `icc` takes as its model.

    Example: tamis icc distill runs/teachers --labels labelled.csv --student minilm --out my-icc
    """
    from tamis.models.device import device_for
    from tamis.train.distill import TEACHERS, Distillation
    from tamis.train.distill import distill as work

    logging.getLogger("tamis").setLevel(logging.INFO)
    try:
        given = None if weights is None else [float(one) for one in _split(weights)]
    except ValueError:
        _stop(f"--weights takes numbers with commas between them, got {weights!r}")
    try:
        done = work(
            scores, out=out, device=device_for(device, precision, None, threads), labels=labels, label=label,
            text=text, weights=given,
            training=Distillation(student=student, epochs=epochs, batch_size=size, learning_rate=rate, seed=seed),
        )  # fmt: skip
    except (ValueError, FloatingPointError) as error:
        _stop(str(error))
    found = {"student, combined teachers": done.with_target}
    found |= {f"{name}, labels": one for name, one in done.with_labels.items()}
    if as_json:
        print(json.dumps({name: one.facts() for name, one in found.items()}, indent=2))
    else:
        _print_table([{"agreement of": name, **_correlations(one)} for name, one in found.items()])
    terms = " + ".join(f"{w:.3g} {name}" for w, name in zip(done.combination.weights, TEACHERS, strict=True))
    _say(
        f"combined as sigma({terms} + {done.combination.bias:.3g}); the student learned from {done.captions:,} captions"
        f"; wrote {out}"
    )


@evaluate.command(name="concreteness")
def evaluate_concreteness(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A table of words or captions with ratings.")],
    model: Annotated[str | None, typer.Option(help="The scorer's model; of icc: norms, a folder, a hub id.")] = None,
    signal: Annotated[str, typer.Option(help="The scorer of captions.")] = "icc",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="A=VALUE", help="Another setting of the scorer.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="The column of texts.")] = None,
    rating: Annotated[str | None, typer.Option(help="The column of ratings.")] = None,
    held_out: Annotated[
        bool, typer.Option("--held-out", help="Of a list of words only the tenth that norms was not fitted on.")
    ] = False,
    device: Device = None,
    precision: Precision = None,
    batch_size: BatchSize = None,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Correlate a score of texts with people's ratings: Pearson, Spearman, Kendall's tau-b, with 95 % intervals.

    Example: tamis evaluate concreteness ratings.csv --model norms
    """
    from tamis import recipe as recipes
    from tamis.evaluate.concreteness import evaluate_concreteness as work
    from tamis.models.device import device_for

    options = dict(recipes.assignment(setting) for setting in settings or [])
    if model is not None:
        options["model"] = model
    _, scorer = recipes.scorer_from({signal: options}, "--signal")
    found = work(
        file, scorer, device_for(device, precision, batch_size, threads),
        text=text, rating=rating, only_held_out=held_out,
    )  # fmt: skip
    if as_json:
        print(json.dumps(found.facts(), indent=2))
        return
    _print_table([{"scorer": signal, "texts": f"{found.texts:,}", **_correlations(found)}])
    if found.left_out:
        _say(f"{found.left_out:,} rows have no rating or no score and were left out")


def _correlations(found: Agreement) -> dict[str, str]:
    return {"pearson": str(found.pearson), "spearman": str(found.spearman), "kendall tau-b": str(found.kendall)}


def _split(text: str | None) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()] if text else []


def _watch(statuses: Iterator[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from tamis.run.status import render_status

    console = Console()
    if not console.is_terminal:
        for found in statuses:
            print(render_status(found), flush=True)
        return
    with Live(console=console, refresh_per_second=4) as live:
        for found in statuses:
            live.update(Text(render_status(found)))


def _say(text: str) -> None:
    print(shown(text), file=sys.stderr)


def _stop(text: str) -> NoReturn:
    _say(f"tamis: {text}")
    raise typer.Exit(2)


def _counts(counts: Any) -> str:
    ordered = sorted(dict(counts).items(), key=lambda item: -item[1])
    return ", ".join(f"{count:,} {name}" for name, count in ordered) or "none"


def _print_funnel(subset: Subset, as_json: bool) -> None:
    if as_json:
        facts = {"name": subset.name, "pool": subset.keep.size, "kept": len(subset), "funnel": list(subset.funnel)}
        print(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    total = int(subset.keep.size)
    rows = [{"step": f"{subset.name}: every pair", "kept": f"{total:,}", "share": "100.0 %", "dropped": ""}]
    for line in subset.funnel:
        share = f"{100 * line['kept'] / total:.1f} %" if total else "-"
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in line["dropped"].items())
        rows.append({"step": line["step"], "kept": f"{line['kept']:,}", "share": share, "dropped": dropped})
    _print_table(rows)


def _print_table(rows: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    if not rows:
        print("nothing")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in rows[0]:
        table.add_column(name, justify="right" if name in ("kept", "share", "MB") else "left", overflow="fold")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=200)  # a file or pipe has no width to wrap at
    console.print(table)


def main() -> None:
    """Runs the command line and turns our errors into one line and an exit code."""
    try:
        app(standalone_mode=True)
    except StopError as error:
        _say(f"tamis: {error}")
        sys.exit(2)
    except TamisError as error:
        _say(f"tamis: {error}")
        sys.exit(1)
    except SystemExit as error:
        if error.code == 130:  # what typer makes of an interrupt
            _say("tamis: interrupted; what is complete stays, the same command goes on")
        raise
    except OSError as error:  # the disk, a permission, a folder where a file should be: not ours to trace
        logging.info("where it happened:", exc_info=error)  # with --verbose
        path = error.filename2 or error.filename
        _say(f"tamis: {error.strerror or error}{f': {path}' if path else ''}")
        sys.exit(2)
