"""`select`, the checks that a run has, or will have, the columns that a recipe reads, and how to add what it lacks."""

from __future__ import annotations

import dataclasses
import json
import logging
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tamis.core.errors import RecipeError, RunError, StopError, brief, nearest, unknown_message
from tamis.core.files.scratch import scratch_in, temporary_file, temporary_folder
from tamis.core.hub import stand_in
from tamis.core.ids import as_json_value
from tamis.core.types import INDEX_NUMBERS, INDEX_WORDS, Signal, flat, references, settings
from tamis.models.reference import BUILT_IN
from tamis.pools import Pool
from tamis.recipes.derived import DERIVED, Derived
from tamis.recipes.recipe import PathLike, Recipe, RecipeLike, load, names_of_columns, put, signal_from, usual
from tamis.runs import Run, open_run
from tamis.runs.makers import maker_of
from tamis.runs.manifest import description_of, read_description
from tamis.runs.run import ScoreSet
from tamis.signals import SIGNALS
from tamis.signals.graph import topological

if TYPE_CHECKING:
    from tamis.commands.needs import Needs
    from tamis.engines.engine import Engine
    from tamis.recipes.steps.outcome import Outcome, Unscored
    from tamis.runs.subset import Subset

log = logging.getLogger(__name__)

#: Names of models that were trained on English captions.
_ENGLISH_ONLY = re.compile(r"(?i)openai/clip|laion/CLIP(?!.*xlm)|DataComp|DFN|metaclip-(?!2|.*worldwide)")


def select(
    run: PathLike | Run,
    recipe: RecipeLike,
    *,
    settings: Sequence[str] = (),
    any_model: bool = False,
    partial: bool = False,
    engine: Engine | None = None,
    scratch: PathLike | None = None,
) -> Subset:
    """Chooses rows of a run by a recipe. No model runs; the same recipe on the same scores gives the same rows.

    Args:
        run: a run folder.
        recipe: a shipped recipe's name, a file, or a mapping.
        settings: overrides, as `--set` takes them.
        any_model: choose by the run's scores where the recipe names a model that they are not of.
        partial: choose from the finished shards of an incomplete run; the subset then says so.
        engine: `tamis.engines.ray.Ray(...)`: workers of a cluster read the scores and judge rows by thresholds, best
            shares and values. Otherwise threads of this process do.
        scratch: a folder for temporary files, which large pools need; None: the system's, or TMPDIR.

    Returns:
        The subset: its rows, its funnel, and methods to save and look at it.

    Raises:
        RecipeError: the recipe is wrong, or meets rows without a score and does not say what to do.
        DiskFullError: there is no space for temporary files.
        RunError: the run lacks a column, or shards, or another model than the recipe names made its scores.
    """
    from tamis.commands.needs import space_for
    from tamis.recipes.steps.outcome import captions_from, run_in_any_order
    from tamis.runs.reasons import Verdict
    from tamis.runs.subset import Subset, partial_facts

    chosen = load(recipe, settings)
    if not chosen.selects:
        raise RecipeError(f"the recipe {chosen.name!r} has no 'select': it says nothing about which pairs to keep")
    opened = open_run(run, partial=partial)
    columns = find_columns(chosen, opened, any_model=any_model)
    text = captions_from(chosen.steps)
    with scratch_in(scratch), engine.cluster_reader() if engine else nullcontext() as run_on_cluster:
        table = opened.table(columns)
        table.run_on_cluster = run_on_cluster
        if run_on_cluster is None and (space := space_for(table, chosen.steps)):
            log.info("up to %.1f GB of temporary files in %s", space / 1e9, temporary_folder())
            temporary_file(int(space)).close()  # raises DiskFullError before the work
        outcome = run_in_any_order(table, chosen.steps)
    if (unscored := outcome.unscored) is not None:
        raise RunError(_how_to_score(unscored, columns.get(unscored.column, unscored.column), opened))
    used = makers_of(chosen, opened, columns)
    _warn_of_english_only(chosen, opened, used, outcome)
    recorded = {**chosen.text, **({"signals": list(_fill_in(chosen, opened, used))} if chosen.entries else {})}
    return Subset(
        run=opened,
        keep=outcome.keep,
        recipe={**recorded, **({"columns": columns} if columns else {}), "name": chosen.name},
        funnel=list(outcome.funnel),
        reads=sorted({columns.get(name, name) for name in chosen.reads}),
        times=outcome.times,
        caption=outcome.caption,
        order=outcome.order,
        captions_from=columns.get(text, text),
        partial=partial_facts(opened),
        used=list(used.values()),
        verdict=Verdict(
            names=columns,
            why=outcome.reasons,
            dropped_by=outcome.dropped_by,
            cuts=outcome.cuts,
            repeats=outcome.repeats,
        ),
    )


def needs(
    run: PathLike | Run,
    recipe: RecipeLike,
    *,
    settings: Sequence[str] = (),
    any_model: bool = False,
    partial: bool = False,
) -> list[Needs]:
    """Returns what each step of a recipe needs on this machine; raises what `select` raises before its work."""
    from tamis.commands.needs import needs_of
    from tamis.recipes.steps.outcome import check_columns, check_files

    opened, chosen = open_run(run, partial=partial), load(recipe, settings)
    table = opened.table(find_columns(chosen, opened, any_model=any_model))
    check_files(chosen.steps)
    check_columns(chosen.steps, table)
    return needs_of(table, chosen.steps)


def makers_of(recipe: Recipe, run: Run, columns: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Returns the makers of the columns that a recipe reads, by its names; with `named` where it names other models."""
    found = {}
    for name in recipe.reads:
        if maker := maker_of(run, columns.get(name, name)):
            others = sorted(_find_named_models([*recipe.named.items()], name) - {*maker["models"]})
            found[name] = {**maker, **({"named": others} if others else {})}
    return found


def _find_named_models(named: Sequence[tuple[Any, frozenset[str]]], column: str) -> set[str]:
    """Returns the models that entries of a recipe name for a column or for stored embeddings."""
    models: set[str] = set()
    for place, ((label, signal), words) in enumerate(named):
        makes = column in names_of_columns(label, signal)
        if isinstance(signal, Derived):  # it reads the columns of entries before it
            models |= {model for name in signal.reads if makes for model in _find_named_models(named[:place], name)}
        elif words:
            with suppress(StopError):  # its own folder of models is not here: it names none of them
                nodes = [node for node in topological([signal]) if makes or node.name == column]
                models |= words & {model for node in nodes for model in references(node, "model").values()}
    return models


def scores_of(run: Run, signal: Signal | Derived) -> tuple[list[ScoreSet], list[ScoreSet]]:
    """Returns a run's scores of a signal: those with its settings, and all."""
    groups = [group for group in run.scores.values() if group.facts["name"] == signal.name]
    wanted = as_json_value(settings(signal, recorded=True))
    return [group for group in groups if (group.facts.get("settings") or {}) == wanted], groups


def _fill_in(recipe: Recipe, run: Run, used: Mapping[str, Mapping[str, Any]]) -> Iterator[Any]:
    """Yields a recipe's entries of signals that the run has, with the settings that made its columns.

    `used`: the makers of the columns that steps read, which come first.
    """
    for entry in recipe.text.get("signals") or ():
        name, given = (entry, {}) if isinstance(entry, str) else next(iter(entry.items()))
        made = [maker["settings"] for maker in used.values() if maker["signal"] == name]
        made += [group.facts.get("settings") or {} for group in run.scores.values() if group.facts["name"] == name]
        with suppress(RecipeError):  # a signal of Python code that recipes cannot name
            wanted = as_json_value(settings(signal_from(entry)[1], recorded=True))
            if made and wanted not in made:
                for path, value in flat(made[0]).items():
                    given = given if flat(wanted).get(path) == value else put(given, path.split("."), value, path)
                entry = {name: given}
        if made:
            yield entry


def _warn_of_english_only(recipe: Recipe, run: Run, used: Mapping[str, Mapping[str, Any]], outcome: Outcome) -> None:
    """Warns if scores of a model that reads English only drop far more of the captions in other languages."""
    from tamis.runs.expression import parse

    makers = {name: model for name, one in used.items() for model in one["models"] if _ENGLISH_ONLY.search(model)}
    by_model = {
        code: makers[name]
        for code, reason in enumerate(outcome.reasons, start=1)
        for name in (parse(reason.score).columns if reason.score else ())
        if name in makers
    }
    if not by_model or "top_language" not in run.columns:
        return
    import pyarrow.compute as pc

    def counted(place: slice, columns: dict[str, Any]) -> NDArray[np.int64]:
        """Returns the captions in English and in other languages, all and those that fell by such a model."""
        words = columns["top_language"].cast(pa.string())
        english = pc.equal(words, "en").fill_null(False).to_numpy(zero_copy_only=False)
        others = ~english & pc.is_valid(words).to_numpy(zero_copy_only=False)
        fell = np.isin(outcome.dropped_by[place], list(by_model))
        return np.array([[rows.sum(), (rows & fell).sum()] for rows in (english, others)])

    counts = sum(run.table().map(["top_language"], counted), np.zeros((2, 2), np.int64))
    shares = [fell / max(rows, 1) for rows, fell in counts.tolist()]
    if shares[1] > shares[0] + 0.1:
        log.warning(
            "the recipe %r drops %.0f %% of the captions in other languages and %.0f %% of the English ones by scores "
            "of %s, which reads English only: use a multilingual model, or choose per: top_language",
            recipe.name, 100 * shares[1], 100 * shares[0], " and ".join(sorted(set(by_model.values()))),
        )  # fmt: skip


def find_columns(recipe: Recipe, run: Run, *, any_model: bool = False) -> dict[str, str]:
    """Maps the names that a recipe's steps read to columns of a run, where they differ.

    Raises RunError with the command that makes columns that the run lacks, or has of another model than the recipe
    names; RecipeError if a step cannot use a column.
    """
    from tamis.recipes.steps.outcome import check_columns as check_kinds

    columns = {**columns_of_signals(recipe, run), **columns_of_embeddings(recipe.signals, run), **recipe.columns}
    lacking: dict[str, RunError] = {}
    known = {name.rpartition(".")[2] for name in run.columns} | {name.rpartition("-")[0] for name in run.embeddings}
    for column in (columns.get(name, name) for name in recipe.reads):
        try:
            run.locate(column)
        except RunError as error:
            if column in known:  # several have this name, which the message says
                raise
            lacking[column] = error
    if lacking:
        first = next(iter(lacking.values()))
        raise RunError(_how_to_make(list(lacking), run, recipe) or str(first)) from first
    check_kinds(recipe.steps, run.table(columns))
    for name, maker in makers_of(recipe, run, columns).items():
        if maker.get("named") and maker["models"] and name not in recipe.columns and not any_model:
            makes = [entry for entry, words in recipe.named.items() if words & {*maker["named"]}]
            other, models = (" and ".join(some) for some in (maker["named"], maker["models"]))
            raise RunError(
                f"the recipe {recipe.name!r} names {other}, and {name} of {run.path} was made by {models}. "
                f"To score with the model that it names:\n{_score_commands(run, makes, recipe.keep)[0]}\n"
                "To choose by the scores of the run: `tamis select` with --any-model (in Python any_model=True, in a "
                "recipe any_model: true)"
            )
    return columns


def columns_of_signals(recipe: Recipe, run: Run) -> dict[str, str]:
    """Maps the names that a recipe reads to the run's columns of signals with the settings that the recipe asks for.

    A signal with one set of other settings is used with a warning, unless only models differ (see `find_columns`);
    several of them raise RecipeError.
    """
    columns: dict[str, str] = {}
    for label, signal in recipe.entries:
        same, groups = scores_of(run, signal)
        wanted = settings(signal, recorded=True)
        for column in signal.columns if groups else ():
            names = {column.name, f"{label or signal.name}.{column.name}"} & set(recipe.reads) - set(recipe.columns)
            for name in names:
                if not same and len(groups) > 1:
                    raise RecipeError(
                        f"the recipe {recipe.name!r} asks for {signal.name} with settings that {run.path} does "
                        f"not have; it has {len(groups)} others: choose one with --set columns.{column.name}="
                        f"{groups[0].label}.{column.name}"
                    )
                columns[name] = f"{(same or groups)[-1].label}.{column.name}"
                if not same and any(sides := _differences(wanted, groups[0].facts)):
                    log.warning(
                        "the recipe %r asks for %s with %s; %s has it with %s, which is used",
                        recipe.name, signal.name, sides[0], str(run.path), sides[1],
                    )  # fmt: skip
    return columns


def columns_of_embeddings(signals: Iterable[tuple[str, Signal]], run: Run) -> dict[str, str]:
    """Maps names of embeddings to those that signals of a recipe make, where a run stores several models'."""
    found = {}
    for node in topological([signal for _, signal in signals]):
        if node.stored_as == "embeddings" and node.name not in run.vectors:
            wanted = [node.name, as_json_value(settings(node, recorded=True))]
            for name, folder in run.embeddings.items():
                facts = read_description(description_of(folder))
                if [facts["name"], facts.get("settings") or {}] == wanted:
                    found[node.name] = name
    return found


def _differences(wanted: Mapping[str, Any], stored: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the settings that differ from a description's, without models, on each side: ("side=1", "side=2")."""
    one, other = flat(as_json_value(wanted)), flat(stored.get("settings") or {})
    names = [name for name in {**one, **other} if name not in one or name not in other or one[name] != other[name]]
    names = [name for name in names if other.get(name) not in [*(stored.get("models") or {})]]

    def in_words(values: Mapping[str, Any]) -> str:
        return ", ".join(f"{name}={brief(values[name])}" if name in values else f"{name} not set" for name in names)

    return in_words(one), in_words(other)


def check_reads(recipe: Recipe, run: Run | None = None, pool: Pool | None = None) -> None:
    """Raises RecipeError if a recipe's steps read what it does not score, the pool does not bring and the run lacks."""
    known = {*INDEX_NUMBERS, *INDEX_WORDS, "caption", *(recipe.pool.fields if recipe.pool else ())}
    if run is not None:
        known |= {*run.columns, *run.vectors}
    of_pool = tuple((signal.name, signal) for signal in pool.signals) if pool else ()
    for entry in (*recipe.entries, *of_pool):
        known |= names_of_columns(*entry)
    known |= {node.name for node in (pool.features if pool else ())}
    if "embeddings" in recipe.keep:
        nodes = topological([signal for _, signal in recipe.signals])
        known |= {node.name for node in nodes if node.stored_as == "embeddings"}
    for name in sorted({*recipe.reads, *(name for _, signal in recipe.derived for name in signal.reads)}):
        column_name = recipe.columns.get(name, name)
        if column_name in known:
            continue
        if column_name.endswith("_embedding"):
            raise RecipeError(
                f"recipe {recipe.name!r} reads the stored embeddings {column_name!r}, which will not be there: add "
                "'keep: [embeddings]' and a signal that makes them, such as clip"
            )
        if column_name == "tagged":
            raise RecipeError(f"recipe {recipe.name!r} selects by tags: score, tag with `tamis explore`, then select")
        maker, hint = _signal_of_column(column_name), ""
        if maker:
            hint = f"; the signal {maker.name} makes it: add it under 'signals'"
        elif not nearest(column_name, known):
            hint = f"; if the pool's json or table has it: --set 'pool.fields=[{column_name}]'"
        raise RecipeError(f"recipe {recipe.name!r}: {unknown_message('score column', column_name, known)}{hint}")


# ---- the commands that add what a run lacks, ready to paste


def _how_to_make(columns: Sequence[str], run: Run, recipe: Recipe) -> str:
    """Returns the sentence and the commands that add columns to a run; "" if no signal of ours makes any of them.

    The signals of the recipe that reads the columns come first, with its settings.
    """
    entries: list[tuple[str, Signal | Derived]] = []
    needed = [name for _, signal in recipe.derived for name in sorted(signal.reads) if name not in run.columns]
    vectors = [name for name in [*columns, *needed] if name.endswith("_embedding") and name not in run.vectors]
    for column in columns:
        of_recipe = [entry for entry in recipe.entries if column in names_of_columns(*entry)]
        built_in = _maker(column) if not of_recipe and column not in vectors else None
        entries += of_recipe or ([built_in] if built_in else [])
    if vectors:
        entries += [entry for entry in recipe.signals if any(node.name in vectors for node in topological([entry[1]]))]
    if not entries:
        return ""
    entries = list(dict.fromkeys(entries))
    commands = _score_commands(run, entries, ["embeddings"] if vectors else [])
    named = ", ".join(f"{column!r}{nearest(column, run.columns)}" for column in columns)
    lacks = f"{run.path} lacks what the recipe {recipe.name!r} reads: {named}"
    return "\n".join([f"{lacks}. To score it:", *commands, *_stand_ins(entries)])


def _how_to_score(unscored: Unscored, column: str, run: Run) -> str:
    """Returns a sentence and the command that scores the rows of a column that are not scored yet."""
    group = run.locate(column)[1]
    assert group is not None
    try:
        entry = signal_from({group.facts["name"]: {**group.facts["settings"], "label": group.label}})
    except RecipeError:  # a plug-in that is not installed here
        return f"{unscored}. Drop these rows in an earlier step, or score {group.label} in full"
    return f"{unscored}. Drop these rows in an earlier step, or score them:\n{_score_commands(run, [entry])[0]}"


def _score_commands(run: Run, entries: Sequence[tuple[str, Signal | Derived]], keep: Sequence[str] = ()) -> list[str]:
    """Returns the commands that add labelled signals to a run: one of each kind, unless two have the same name."""
    commands = []
    remaining = sorted(dict.fromkeys(entries), key=lambda entry: isinstance(entry[1], Derived))
    while remaining:
        derived = isinstance(remaining[0][1], Derived)
        alike = [entry for entry in remaining if isinstance(entry[1], Derived) == derived]
        now = list({signal.name: (label, signal) for label, signal in reversed(alike)}.values())[::-1]
        remaining = [entry for entry in remaining if entry not in now]
        start = f"tamis derive {shlex.quote(str(run.path))}" if derived else run.score_command()
        words = [start, "--signals", ",".join(signal.name for _, signal in now)]
        for label, signal in now:
            changed = dict(_list_settings(signal))
            if label not in ("", signal.name):
                changed["label"] = label
            for name, value in changed.items():
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                words += ["--set", shlex.quote(f"signals.{signal.name}.{name}={text}")]
        words += ["--keep", ",".join(keep)] if keep and not derived else []
        commands.append(" ".join(words))
    return commands


def _list_settings(record: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields a signal's models and its settings that are not defaults; names in nested records are dotted."""
    models = references(record, "model") if isinstance(record, Signal) else {}
    for setting in dataclasses.fields(record):
        value = getattr(record, setting.name)
        if dataclasses.is_dataclass(value):
            yield from _list_settings(value, f"{above}{setting.name}.")
        elif (setting.name in models and value not in BUILT_IN) or value != setting.default:
            yield f"{above}{setting.name}", value


def _signal_of_column(column: str) -> type[Any] | None:
    """Returns the built-in signal, or derived one, that emits a column (NAME, or LABEL.NAME); None if there is none."""
    name, every = column.rpartition(".")[2], chain(SIGNALS.values(), DERIVED.values())
    makers = (cls for cls in every if isinstance(cls.columns, tuple))  # others depend on settings
    return next((cls for cls in makers if name in {one.name for one in cls.columns}), None)


def _maker(column: str) -> tuple[str, Signal | Derived] | None:
    """Returns a label and a built-in signal for a column, NAME or LABEL.NAME, with the models of shipped recipes."""
    cls = _signal_of_column(column)
    if cls is None:
        return None
    required = [setting.name for setting in dataclasses.fields(cls) if setting.default is dataclasses.MISSING]
    required += getattr(cls, "ONE_OF", ())[:1]
    values = {setting: next(iter(usual(cls.name, setting)), setting.upper()) for setting in required}
    try:
        return column.rpartition(".")[0], signal_from({cls.name: values})[1]
    except RecipeError:  # the placeholder is not valid for this setting
        return None


def _stand_ins(entries: Sequence[tuple[str, Signal | Derived]]) -> list[str]:
    """Returns a line with the built-in models that can replace the models of signals, if there are any."""
    settings = [
        f"--set signals.{signal.name}.{setting}={built_in}"
        for _, signal in entries
        for setting, model in references(signal, "model").items()
        if (built_in := stand_in(model))
    ]
    return [f"Built-in models, for the lab's drawn world only: {' '.join(dict.fromkeys(settings))}"] if settings else []
