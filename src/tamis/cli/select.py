"""Commands that read scores and run no model: select, cluster, map, export, audit, overlap, report."""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from tamis.cli import options
from tamis.cli.printing import follow_the_work, offer, partly, print_funnel, print_json, print_table, say
from tamis.core.errors import RecipeError, StopError, duration

#: Format of an export without `--to`, by the ending of its path.
_BY_ENDING = {".npy": "npy", ".parquet": "parquet", ".txt": "keys", "": "webdataset"}

_FORMAT = Option(
    help="A format of `tamis list exports`. Default: by the ending of OUT: .npy, .parquet, .txt (keys), none "
    "(webdataset).",
    autocompletion=options.completion("exports"),
)


#: Number of groups that `tamis audit` prints.
_MOST_GROUPS = 40


def select(
    run: options.RunPath,
    recipe: Annotated[str, options.ONE_RECIPE],
    out: Annotated[
        Path | None, Option("--out", "-o", help="Write this file. Default: into the run, by the recipe's name.")
    ] = None,
    settings: options.RecipeSettings = None,
    any_model: Annotated[
        bool, Option("--any-model", help="Choose by the run's scores where the recipe names another model.")
    ] = False,
    partial: options.Partial = False,
    engine: Annotated[str, Option(help="What reads the scores: local (threads) or ray.")] = "local",
    address: options.Address = None,
    scratch: Annotated[
        Path | None, Option(help="Folder for temporary files. Default: TMPDIR, or the system's.")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print what each step needs, and stop.")] = False,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
) -> None:
    """Choose rows of a run by a recipe. No model runs.

    Example: tamis select runs/mine --recipe basic
    """
    import tamis
    from tamis.runs.subset import check_place

    if dry_run:  # of this machine alone: what a cluster takes depends on its workers
        print_needs(run, recipe, as_json, settings=settings or [], any_model=any_model, partial=partial)
        return
    if out is not None:
        check_place(options.in_a_folder(out).expanduser(), overwrite=overwrite)
    who = None
    if (engine, address) != ("local", None):
        from tamis.engines.named import engine_named

        who = engine_named(engine, address=address)
    subset = tamis.select(
        run, recipe, settings=settings or [], any_model=any_model, partial=partial, engine=who, scratch=scratch
    )
    written = subset.save(out, overwrite=overwrite)
    if as_json:
        lacks = {"partial": subset.partial} if subset.partial else {}
        counts = {"kept": subset.kept} if subset.times is None else {"kept": subset.kept, "times": len(subset)}
        about = {**lacks, "name": subset.name, "pool": subset.keep.size}
        print_json({**about, **counts, "funnel": list(subset.funnel), "used": list(subset.used)})
    else:
        print_funnel(subset)
    say(f"wrote {written}")
    if out is None:
        offer(subset)


def print_needs(run: str, recipe: str, as_json: bool, **how: Any) -> None:
    """Prints what choosing needs, step by step and in all."""
    from tamis.commands.select import needs

    found = needs(run, recipe, **how)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    print_table(
        [
            {
                "step": each.step,
                "passes": each.passes,
                "embeddings read": each.readings or "",
                "memory, GiB": f"{each.memory / 2**30:.1f}",
                "scratch, GB": f"{each.scratch / 1e9:.1f}",
                "about": duration(each.seconds),
            }
            for each in found
        ]
    )
    most, space = (max((getattr(each, what) for each in found), default=0) for what in ("memory", "scratch"))
    say(
        f"about {duration(sum(each.seconds for each in found))}, {most / 2**30 + 0.3:.1f} GiB of memory and "
        f"{space / 1e9:.1f} GB of scratch space, if no step drops a row"
    )


def derive(
    run: options.RunPath,
    signals: Annotated[
        list[str] | None, Option(help="Derived signals, separated by commas: clip_loss,norm_sim; may be repeated.")
    ] = None,
    recipe: Annotated[str | None, options.ONE_RECIPE] = None,
    settings: options.RecipeSettings = None,
    partial: options.Partial = False,
) -> None:
    """Add derived signals to a finished run: columns computed from stored ones. No model runs.

    Example: tamis derive runs/mine --signals clip_loss
    """
    import tamis
    from tamis.recipes.recipe import load

    names = options.split(signals)
    chosen = load({} if recipe is None else recipe, settings or [], signals=names)
    if named := [signal.name for _, signal in chosen.signals if signal.name in names]:
        raise StopError(f"{named[0]} is not a derived signal: add it with `tamis score`")
    if not chosen.derived:
        raise StopError("name derived signals: --signals clip_loss, or a --recipe with some; see `tamis list signals`")
    done = tamis.derive(run, chosen, partial=partial)
    columns = [f"{label or signal.name}.{column.name}" for label, signal in chosen.derived for column in signal.columns]
    say(f"{len(done):,} rows have the columns {', '.join(columns)}")


def cluster(
    run: options.RunPath,
    clusters: Annotated[
        int | None,
        Option(min=1, help="Number of clusters. Default: one per thousand rows; above a million, the square root."),
    ] = None,
    embedding: Annotated[str, Option(help="Stored embeddings to cluster.")] = "image_embedding",
    seed: Annotated[int, Option(help="Another seed gives other clusters.")] = 0,
    partial: options.Partial = False,
) -> None:
    """Cluster stored embeddings and add the columns cluster and centroid_cosine. No model runs.

    Example: tamis cluster runs/mine --clusters 500
    """
    from tamis.recipes.derived.cluster_columns import add_clusters

    done, label = add_clusters(run, clusters=clusters, embedding=embedding, seed=seed, partial=partial)
    say(f"{len(done):,} rows have the columns {label}.cluster and {label}.centroid_cosine")


def map_embeddings(
    run: options.RunPath,
    of: Annotated[str, Option(help="image, text, both, or the name of stored embeddings.")] = "image",
    sample: Annotated[int, Option(min=10, help="Maximum number of pairs for PaCMAP; it adds the others.")] = 100_000,
    seed: Annotated[int, Option(help="Another seed gives another map.")] = 0,
) -> None:
    """Lay out stored embeddings as the explorer's map: adds the columns map_x and map_y. No model runs.

    Example: tamis map runs/mine
    """
    import tamis

    done = tamis.map_embeddings(run, of=of, sample=sample, seed=seed)
    say(f"{len(done):,} rows have the columns map_x and map_y; tamis explore shows them")


def export(
    run: options.RunPath,
    subset: options.OneSubset,
    out: Annotated[Path, Argument(metavar="OUT", help="File to write; a folder for webdataset and huggingface.")],
    to: Annotated[str | None, _FORMAT] = None,
    settings: Annotated[list[str] | None, Option("--set", metavar="A=VALUE", help="A setting of the format.")] = None,
    croissant: Annotated[bool, Option("--croissant", help="Also write Croissant metadata.")] = False,
    partial: options.Partial = False,
    overwrite: options.Overwrite = False,
) -> None:
    """Write a subset for a trainer, or the pairs that it drops.

    Example: tamis export runs/mine basic subset.npy
    """
    import tamis
    from tamis.runs import open_run
    from tamis.runs.subset import Subset

    to = to or _BY_ENDING.get(out.suffix.lower())
    if to is None:
        if ".tar" in out.name:
            folder = out.parent / re.split(r"[.{]", out.name)[0]
            command = shlex.join(["tamis", "export", run, str(subset), str(folder), "--to", "webdataset"])
            raise StopError(f"the format webdataset writes tars, into a folder: {command}")
        raise StopError(f"no format has the ending {out.suffix!r}: name one with --to, such as --to npy")
    format_settings = options.parse_assignments(settings) | ({"croissant": True} if croissant else {})
    options.in_a_folder(out)
    follow_the_work()
    chosen = Subset.load(subset, open_run(run, partial=partial))
    if sentence := partly(chosen):
        say(sentence)
    written = tamis.export(chosen, to, out, overwrite=overwrite, **format_settings)
    say(f"wrote {written:,} pairs to {out}")


def audit(
    run: options.RunPath,
    subset: options.OneSubset,
    by: Annotated[
        list[str] | None, Option(help="Columns (a,b). Default: fields, languages, classes, script, cluster.")
    ] = None,
    partial: options.Partial = False,
    as_json: options.AsJson = False,
) -> None:
    """Show how often a subset keeps each group of pairs (language, domain, class), and which groups shrink.

    Example: tamis audit runs/mine basic --by top_language
    """
    from dataclasses import asdict

    from tamis.runs import open_run
    from tamis.runs.audit import LEAST, RATE, SHRUNK
    from tamis.runs.subset import Subset

    groups = Subset.load(subset, open_run(run, partial=partial)).audit(options.split(by))
    if as_json:
        print_json([{**asdict(group), "shrinks": group.shrinks} for group in groups])
        return
    print_table([group.cells() for group in groups[:_MOST_GROUPS]])
    shrunk = sum(group.shrinks for group in groups)
    say(
        f"{shrunk:,} of {len(groups):,} groups of at least {LEAST} pairs shrink: below {SHRUNK} of their share of the "
        f"pool, at a {100 * RATE:g} % false discovery rate"
        + (f"; the first {_MOST_GROUPS} are shown, --json has all" if len(groups) > _MOST_GROUPS else "")
    )


def overlap(
    run: options.RunPath,
    reference: Annotated[str, Argument(metavar="REFERENCE", help="A run, a list of hashes, or a .npy file.")],
    out: Annotated[Path | None, Option("--out", "-o", help="Write the pairs to this Parquet file.")] = None,
    settings: Annotated[
        list[str] | None, Option("--set", metavar="A=VALUE", help="A setting of the step not_in, such as caption=same.")
    ] = None,
    planted: Annotated[int, Option(min=0, help="Changed images to look for, to measure recall; 0: none.")] = 300,
    partial: options.Partial = False,
    overwrite: options.Overwrite = False,
) -> None:
    """Find copies of images of a test set or another pool, and measure the recall. No model runs.

    Example: tamis overlap runs/mine runs/coco-test --out copies.parquet
    """
    import tamis
    from tamis.core.files.checked import footer_entry, write_parquet
    from tamis.core.files.targets import check_target
    from tamis.runs import open_run

    opened, mark = open_run(run, partial=partial), "tamis.overlap"
    if out is not None:
        read = [reference, *opened.pool_files]
        ours = lambda path: footer_entry(path, mark) is not None  # noqa: E731
        check_target(options.in_a_folder(out), what="table of copies", ours=ours, overwrite=overwrite, read=read)
    of_step = options.parse_assignments(settings)
    if others := sorted({"run", "reference", "planted", "partial"} & of_step.keys()):
        raise RecipeError(f"overlap: --set takes settings of the step not_in, not {others[0]}")
    done = tamis.overlap(opened, reference, planted=planted, partial=partial, **of_step)
    unsure = done.pairs["verdict"].to_pylist().count("borderline")
    say(
        f"{done.copies:,} of {done.rows:,} rows are copies of {done.found:,} of {done.references:,} references; "
        f"{unsure:,} borderline pairs are for you to judge. The step not_in drops the copies"
    )
    if done.recall:
        print_table([{"of your images": name, "found": str(recall)} for name, recall in done.recall.items()])
    if out is not None:
        write_parquet(out, done.pairs, uids=None, facts={mark: "1"}, row_group_size=1 << 20)
        say(f"wrote {out}")


def report(
    run: options.RunPath,
    subsets: options.Subsets = None,
    out: Annotated[
        Path | None, Option("--out", "-o", help="The page. Default: report.html, or report-interactive.html.")
    ] = None,
    interactive: Annotated[bool, Option("--interactive", help="Write the explorer, without a server.")] = False,
    pairs: Annotated[int, Option(min=100, help="With --interactive: number of pairs to draw.")] = 5000,
    title: Annotated[str, Option(help="Title of the page. Default: the run's name.")] = "",
    chosen: Annotated[str | None, Option(help="Subset that the first page is about. Default: the first.")] = None,
    partial: options.Partial = False,
    overwrite: options.Overwrite = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Write one self-contained HTML page about a run and its subsets.

    With --interactive it is the explorer for drawn pairs, with sliders, filters and map, to hand over as one file.

    Example: tamis report runs/mine basic clip-30 --out report.html
    """
    import tamis

    out = out or Path("report-interactive.html" if interactive else "report.html")
    options.in_a_folder(out)
    follow_the_work(quiet=quiet or not interactive)
    page = tamis.report(
        run, subsets or [], out=out, title=title, chosen=chosen, interactive=interactive, pairs=pairs,
        partial=partial, overwrite=overwrite,
    )  # fmt: skip
    if as_json:
        print_json({"page": str(page), "bytes": page.stat().st_size})
    say(f"wrote {page}")
