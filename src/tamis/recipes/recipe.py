"""Recipes: YAML files that say what to score, what to keep and what to write.

Checked before any work. Errors suggest the nearest key or say what was expected.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from tamis.core.errors import RecipeError, brief, unknown_message
from tamis.core.files.find import describe_bytes, expand_braces, is_remote
from tamis.core.files.remote import keep_secrets
from tamis.core.ids import as_json_value
from tamis.core.records import build, errors_at
from tamis.core.types import KEEP_WORDS, Signal
from tamis.core.types import settings as settings_of
from tamis.pools.source import PoolSpec
from tamis.recipes.derived import DERIVED, Derived
from tamis.recipes.names import shipped_name, shipped_names, split_count
from tamis.signals import SIGNALS

if TYPE_CHECKING:
    from tamis.exports import Exporter
    from tamis.recipes.steps import Step


#: The top-level keys of a recipe.
KEYS = (
    *("name", "about", "source", "pool", "run", "signals", "any_model"),
    *("keep", "columns", "select", "export", "report"),
)


_MOST_BYTES = 256 << 10  # the longest shipped recipe has 3 kB


# Decimal numbers alone: YAML 1.1 also reads 010, 0x1F, 1_000 and 1:30 as numbers.
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,30})$")


_FLOAT = re.compile(
    r"[-+]?((0|[1-9][0-9]{0,30})(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$"
)


_UNNAMED = "recipe"  # the name of a mapping


_DEEPEST = 20  # levels of --set: no recipe has more


_WITH_URLS = ("pool", "run", "signals")  # keys whose URLs may hold secrets


_GROUPS = ("all_of", "any_of", "none_of")


PathLike = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A checked recipe."""

    name: str = "recipe"  # the key `name`, else the file's stem
    about: str = ""
    source: str = ""  # where the rule comes from
    pool: PoolSpec | None = None  # None if given on the command line; same for `run`
    run: str | None = None
    signals: tuple[tuple[str, Signal], ...] = ()  # label ("" for none) and signal
    derived: tuple[tuple[str, Derived], ...] = ()  # the same for derived signals, in their order
    within: Mapping[tuple[str, Signal], Any] = field(default_factory=dict)  # entry of `signals` -> rows to score
    #: Entry, of recipes in groups too -> words in its settings; of these, a model must be the one that scored the run.
    named: Mapping[tuple[str, Signal | Derived], frozenset[str]] = field(default_factory=dict, repr=False)  # secrets
    keep: tuple[str, ...] = ()  # features to store
    columns: Mapping[str, str] = field(default_factory=dict)  # alias -> column of the run
    steps: tuple[Step, ...] = ()  # the selectors in order
    selects: bool = False  # has a `select` key, even an empty one
    exports: tuple[tuple[Exporter, Path], ...] = ()
    report: str | None = None  # the report's path
    text: Mapping[str, Any] = field(default_factory=dict)  # as resolved, for recipe.yaml; URLs without secrets

    @property
    def reads(self) -> list[str]:
        """Columns that the steps read; aliases are not replaced."""
        return sorted({name for step in self.steps for name in step.reads})

    @property
    def entries(self) -> tuple[tuple[str, Signal | Derived], ...]:
        """Labels and signals of both kinds."""
        return (*self.signals, *self.derived)

    def resolve_aliases(self, names: Iterable[str]) -> set[str]:
        """Returns names of columns, with the recipe's aliases replaced."""
        return {self.columns.get(name, name) for name in names}


def names_of_columns(label: str, signal: Signal | Derived) -> set[str]:
    """Returns the names that recipes may call a signal's columns."""
    return {name for one in signal.columns for name in (one.name, f"{label or signal.name}.{one.name}")}


#: A shipped recipe's name, a file, a mapping of the same form, or a loaded recipe.
RecipeLike = PathLike | Mapping[str, Any] | Recipe


def load(recipe: RecipeLike, settings: Sequence[str] = (), *, signals: Sequence[str] = ()) -> Recipe:
    """Reads and checks a recipe. A recipe that is already loaded is returned unchanged.

    Args:
        recipe: a shipped recipe's name, a file, or a mapping of the same form.
        settings: overrides as the command line writes them: "select.0.top_fraction.fraction=0.3".
        signals: signals to add before the overrides; those that the recipe already has without a label are skipped.

    Raises:
        RecipeError: there is no such recipe, or an entry is wrong; the message says which.
    """
    if isinstance(recipe, Recipe):
        return recipe
    data, name = _raw(recipe)
    if signals:
        already = _list(data.get("signals"), f"recipe {name!r}, signals")
        there: set[Any] = set()
        for entry in already:  # a faulty one is reported when the recipe is parsed
            named = entry.items() if isinstance(entry, Mapping) else [(str(entry), None)]
            there |= {signal for signal, its in named if not (isinstance(its, Mapping) and its.get("label"))}
        data["signals"] = [*already, *(signal for signal in dict.fromkeys(signals) if signal not in there)]
    made = [assignment(setting) for setting in settings]
    for (path, value), setting in zip(made, settings, strict=True):
        if path.split(".")[0] not in KEYS and (full := _full_path(path, data)):
            raise RecipeError(f"--set {brief(setting)}: write --set {full}={setting.partition('=')[2]}")
        data = put(data, path.split(".", _DEEPEST), value, setting)
    # A model that someone types is meant, even where the recipe takes any.
    typed = () if "any_model" in dict(made) else (value for path, value in made if path.startswith("signals."))
    above = () if isinstance(recipe, Mapping) else (_identity(os.fspath(recipe)),)
    return _parse(data, name, above, _words(list(typed)))


def _full_path(path: str, data: Mapping[str, Any]) -> str:
    """Returns "signals.clip.model" for "clip.model", and for "model" if the recipe has clip; "" for none."""
    from tamis.recipes.steps import SELECTORS

    head = path.split(".")[0]
    for key, known in {"signals": ChainMap(SIGNALS, DERIVED), "select": SELECTORS}.items():  # type: ignore[arg-type]
        entries = data[key] if isinstance(data.get(key), list) else []
        names = [next(iter(entry), "") if isinstance(entry, Mapping) else str(entry) for entry in entries]
        having = [f"{name}." for name in names if name in known and head in known[name].__dataclass_fields__]
        if head in known or having:
            return f"{key}.{'' if head in known else having[0]}{path}"
    return ""


def usual(signal: str, setting: str) -> dict[Any, list[str]]:
    """Returns value -> recipes: what shipped recipes give a setting; the commonest value, the shortest recipe first."""
    words: dict[Any, list[str]] = {}
    signals = {name: _raw(name)[0].get("signals") or [] for name in shipped_names()}
    for name, entries in sorted(signals.items(), key=lambda item: len(item[1])):
        for entry in entries:
            settings = entry.get(signal) if isinstance(entry, dict) else None
            value = settings.get(setting) if isinstance(settings, dict) else None
            if isinstance(value, str | int | float):
                words.setdefault(value, []).append(name)
    return dict(sorted(words.items(), key=lambda item: -len(item[1])))


def _identity(recipe: str) -> str:
    """Returns the shipped name or the absolute path, to find recipes that name themselves."""
    return shipped_name(recipe) or str(Path(recipe).resolve())


def _raw(recipe: PathLike | Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    if isinstance(recipe, Mapping):
        return dict(recipe), _UNNAMED
    text = os.fspath(recipe)
    if name := shipped_name(text):
        # A best share is one by any model. A threshold is made for its model: such a recipe says any_model: false.
        base, count = split_count(name)
        data = _yaml((files("tamis.recipes.shipped") / f"{base}.yaml").read_bytes(), base)
        data = {**data, "any_model": data.get("any_model", True)}
        return data if count is None else _with_count(data, name, base, count), name
    path = Path(text)
    if not os.path.isfile(text):
        if path.suffix in (".yaml", ".yml"):
            raise RecipeError(f"there is no recipe file {text!r}")
        base, _, number = text.rpartition("-")
        if number[:1].isdigit() and base in shipped_names():
            raise RecipeError(f"{base} takes a number of pairs from 1k to 9999M, such as {base}-100k, got {number!r}")
        raise RecipeError(f"{unknown_message('recipe', text, shipped_names())}; a file of your own ends in .yaml")
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise RecipeError(f"the recipe {text!r} cannot be read: {error.strerror}") from error
    if len(content) > _MOST_BYTES:
        raise RecipeError(f"the recipe {text!r} has more than {_MOST_BYTES:,} bytes")
    return _yaml(content, text), path.stem


def _with_count(data: Mapping[str, Any], name: str, base: str, count: int) -> dict[str, Any]:
    """Returns a recipe that keeps a number of pairs: the last step's best, or a random part if that has no share."""
    steps = list(data["select"])
    step, settings = next(iter(steps[-1].items())) if steps else ("", None)
    about = f"As {base}, but {count:,} pairs"
    if isinstance(settings, dict) and "fraction" in settings:
        rest = {key: value for key, value in settings.items() if key not in ("fraction", "of")}
        steps[-1] = {"top_n" if step == "top_fraction" else step: {**rest, "n": count}}
        about += " in each epoch" * ("epochs" in rest)
    else:
        steps.append({"random_fraction": {"n": count}})
        about += ", drawn at random from what it keeps"
    return {**data, "name": name, "about": f"{about}.", "select": steps}


def at_share(recipe: Recipe, share: float) -> Recipe | None:
    """Returns a recipe whose last step keeps another share of the pool, clip@0.2 of clip-50; None without a share.

    The fraction of `semdedup` is one of its candidates alone, so it is no share.
    """
    last = vars(recipe.steps[-1]) if recipe.steps else {}
    if last.get("fraction") is None or "of" not in last:
        return None
    *others, entry = recipe.text["select"]
    ((step, settings),) = entry.items()
    entry = {step: {**settings, "fraction": share, "of": "pool"}}
    name = recipe.name.removesuffix(f"-{100 * last['fraction']:.3g}")
    made = load({**recipe.text, "name": f"{name}@{share:g}", "select": [*others, entry]})
    return dataclasses.replace(made, named=recipe.named)  # with the models that someone typed


class _Loader(yaml.SafeLoader):
    """YAML without aliases, repeated keys and dates, and with decimal numbers only: anything else is a word."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
            raise RecipeError(f"line {line}: aliases (*name) are not supported: write out what it stands for")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise RecipeError(f"line {key_node.start_mark.line + 1}: duplicate key {brief(key)}")
            seen.add(key)
        return super().construct_mapping(node, deep)


_TAG = "tag:yaml.org,2002:"


_Loader.yaml_implicit_resolvers = {
    first: [rule for rule in rules if rule[0] in (f"{_TAG}null", f"{_TAG}bool")]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


_Loader.add_implicit_resolver(f"{_TAG}int", _INTEGER, list("-+0123456789"))


_Loader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+.0123456789"))


_Loader.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(_TAG) in ("null", "bool", "int", "float", "str", "seq", "map")
}


def _read_yaml(content: str | bytes) -> Any:
    """Returns the content of YAML; raises RecipeError with the line of an error."""
    try:
        return yaml.load(content, _Loader)
    except RecipeError:
        raise
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        raise RecipeError(f"{where}{error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise RecipeError(str(error).partition("\n")[0]) from error
    except RecursionError as error:
        raise RecipeError("it is nested too deeply") from error
    except Exception as error:  # a value that does not fit its tag may raise any exception
        raise RecipeError(f"a value is not what its tag says ({type(error).__name__})") from error


def _yaml(content: bytes, name: str) -> dict[str, Any]:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecipeError(f"the recipe {name!r} is not UTF-8: it holds {describe_bytes(content)}") from error
    with errors_at(f"the recipe {name!r} is not valid YAML"):
        data = _read_yaml(text)
    if not isinstance(data, dict):
        raise RecipeError(f"the recipe {name!r} holds {brief(data)}, expected keys such as 'select:' and 'signals:'")
    return data


def assignment(setting: str) -> tuple[str, Any]:
    """Returns name and value of what `--set` takes: "name=value", the value in YAML; else raises RecipeError."""
    name, sign, value = setting.partition("=")
    if not sign or not name.strip():
        raise RecipeError(f"--set takes name=value, got {brief(setting)}")
    with errors_at(f"--set {brief(setting)}: the value is not YAML"):
        return name.strip(), _read_yaml(value)


def put(data: Any, path: Sequence[str], value: Any, setting: str) -> Any:
    """Returns data with a value set at a path. A list's entry is found by number, or by its name if that is unique."""
    if not path:
        return value
    head, *rest = path
    if not isinstance(data, list):
        data = {} if data is None else data
        if not isinstance(data, dict):
            raise RecipeError(f"--set {brief(setting)}: {head!r} is in {brief(data)}, not a mapping")
        return {**data, head: put(data.get(head), rest, value, setting)}
    copy = list(data)
    if head.isdecimal() and len(head) < 10 and int(head) < len(data):
        entry = data[int(head)]
        copy[int(head)] = put({entry: {}} if isinstance(entry, str) and rest else entry, rest, value, setting)
        return copy
    places = [n for n, entry in enumerate(data) if entry == head or (isinstance(entry, dict) and head in entry)]
    if len(places) != 1:
        names = ", ".join(str(name) for entry in data for name in (entry if isinstance(entry, dict) else [entry]))
        what = f"no entry is called {head!r}; entries: {names or 'none'}"
        what = f"{len(places)} entries are called {head!r}: use a number" if places else what
        raise RecipeError(f"--set {brief(setting)}: {what}")
    entry = data[places[0]]
    copy[places[0]] = put(entry if isinstance(entry, dict) else {entry: {}}, path, value, setting)
    return copy


def _parse(data: Mapping[str, Any], name: str, above: tuple[str, ...], typed: frozenset[str] = frozenset()) -> Recipe:
    where = "recipe" if name == _UNNAMED else f"recipe {name!r}"
    for key in data:
        if key not in KEYS:
            raise RecipeError(f"{where}: {unknown_message('key', str(key), KEYS)}")
    # The short keys first: they are checked before anything is built.
    if data.get("name") is not None:
        name = _word(data["name"], f"{where}, name")
        if not name or name.startswith(".") or set(name) & set("/\\\0"):
            raise RecipeError(f"{where}: the name {brief(name)} is not a valid file name (no /, no \\, no dot first)")
    kinds = ["none"] if data.get("keep") == "none" else _list(data.get("keep"), f"{where}, keep")
    keep = tuple(str(kind) for kind in kinds)
    for kind in keep:
        if kind not in KEEP_WORDS:
            raise RecipeError(f"{where}, keep: {unknown_message('thing to keep', kind, KEEP_WORDS)}")
    columns = data.get("columns") or {}
    if not isinstance(columns, dict):
        raise RecipeError(f"{where}, columns: expected 'name: column' lines, got {brief(columns)}")
    # Then the lists, entry by entry, so that a message says which entry is wrong.
    steps = _list(data.get("select"), f"{where}, select")
    signals = _list(data.get("signals"), f"{where}, signals")
    exports = _list(data.get("export"), f"{where}, export")
    entries = [signal_from(entry, f"{where}, signals[{n}]") for n, entry in enumerate(signals)]
    made, derived = by_kind(entries)
    within = {one: rows for one, entry in zip(entries, signals, strict=True) if (rows := _within(entry, one, where))}
    written = tuple(_export(entry, f"{where}, export[{n}]") for n, entry in enumerate(exports))
    if not isinstance(any_model := data.get("any_model") or False, bool):
        raise RecipeError(f"{where}, any_model: expected true or false, got {brief(any_model)}")
    # Recipes that a group names bring the models that they name, and theirs must be the ones that scored the run too.
    inner: list[Recipe] = []
    chosen = tuple(_step(step, f"{where}, select[{n}]", above, inner) for n, step in enumerate(steps))
    named = {entry: words for part in inner for entry, words in part.named.items()}
    named |= {entry: _words(_recipe_entry(raw, False)) for entry, raw in zip(entries, signals, strict=True)}
    if written and "select" not in data:
        raise RecipeError(f"{where} says what to export and not what to keep: add 'select: []' for every pair")
    return Recipe(
        name=name,
        about=str(data.get("about") or "").strip(),
        source=str(data.get("source") or "").strip(),
        pool=_pool(data["pool"], f"{where}, pool") if data.get("pool") is not None else None,
        run=_path(data.get("run"), f"{where}, run"),
        signals=made,
        derived=derived,
        within=within,
        named={entry: typed if any_model else words for entry, words in named.items()},
        keep=keep,
        columns={str(short): str(column) for short, column in columns.items()},
        steps=chosen,
        selects="select" in data,
        exports=written,
        report=_path(data.get("report"), f"{where}, report"),
        text={key: _recipe_entry(value, key in _WITH_URLS) for key, value in data.items()},
    )


def _words(value: Any) -> frozenset[str]:
    """Returns the strings in a value of YAML, without keys."""
    if isinstance(value, Mapping | list):
        return frozenset().union(*map(_words, value.values() if isinstance(value, Mapping) else value))
    return frozenset([value] if isinstance(value, str) else [])


def _recipe_entry(value: Any, with_urls: bool) -> Any:
    """Returns a part of a recipe as a file holds it: objects as their settings, URLs without secrets."""
    if isinstance(value, Signal | Derived):
        value = {value.name: settings_of(value)}
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = settings_of(value)
    if isinstance(value, Mapping):
        return {key: _recipe_entry(inner, with_urls) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_recipe_entry(one, with_urls) for one in value]
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif isinstance(value, np.generic):
        value = value.item()
    if with_urls and isinstance(value, str) and is_remote(value):
        return keep_secrets(value, expand_braces)
    return as_json_value(value)


def _word(value: Any, where: str) -> str:
    """Returns a name or a path; a number is one too."""
    if isinstance(value, str | int | float | os.PathLike) and not isinstance(value, bool):
        return str(value)
    raise RecipeError(f"{where}: expected text, got {brief(value)}")


def _path(value: Any, where: str) -> str | None:
    """Returns a path with ~ expanded, as a shell would; None for none."""
    return None if value is None else os.path.expanduser(_word(value, where))


def _list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise RecipeError(f"{where}: expected a list (lines that begin with '- '), got {brief(value)}")
    return value


def _pool(value: Any, where: str) -> PoolSpec:
    if isinstance(value, str | list):
        value = {"path": value}
    if not isinstance(value, dict):
        raise RecipeError(f"{where}: expected a path or settings, got {brief(value)}")
    spec: PoolSpec = build(PoolSpec, value, where)
    return spec


def _single(entry: Any, where: str, what: str) -> tuple[str, dict[str, Any]]:
    """Returns name and settings of an entry: a name, or a mapping of one name to its settings."""
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, dict) and len(entry) == 1:
        ((name, settings),) = entry.items()
        if isinstance(settings, dict | None):
            return str(name), settings or {}
        raise RecipeError(f"{where}: the settings of {brief(name)} must be 'name: value' lines, got {brief(settings)}")
    got = f"{len(entry)} names ({', '.join(map(brief, entry))})" if isinstance(entry, dict) else brief(entry)
    raise RecipeError(f"{where}: expected one {what} with its settings, got {got}")


def by_kind(entries: Iterable[tuple[str, Any]]) -> list[tuple[tuple[str, Any], ...]]:
    """Returns labelled signals, and labelled derived ones."""
    every = list(entries)
    return [tuple(one for one in every if isinstance(one[1], kind)) for kind in (Signal, Derived)]


def signal_class(name: str) -> type[Any]:
    """Returns the signal or derived signal of a name, importing only its package; RecipeError if there is none."""
    return DERIVED[name] if name in DERIVED else SIGNALS.named(name, DERIVED)


def signal_from(entry: Any, where: str = "signals") -> tuple[str, Any]:
    """Makes a label ("" for none) and a signal, or a derived one, from a recipe's entry.

    The entry is a name, or one name with settings and `label`.
    """
    if isinstance(entry, Signal | Derived):
        return "", entry
    if isinstance(entry, type) and issubclass(entry, Signal | Derived):
        raise RecipeError(f"{where}: {entry.__name__} is a class: make a signal of it, {entry.__name__}()")
    if not isinstance(entry, str | dict):
        raise RecipeError(f"{where}: expected a signal's name, a mapping or a signal, got {brief(entry)}")
    name, settings = _single(entry, where, "signal")
    with errors_at(where):
        cls = signal_class(name)
    label = str(settings.get("label", ""))
    if label and not label.isidentifier():
        raise RecipeError(f"{where}: the label {brief(label)} must be a word of letters, digits and _")
    rest = {key: value for key, value in settings.items() if key not in ("label", "within")}
    return label, build(cls, rest, f"{where}, {name}", extra=("label", "within"), example=_for_example)


def _within(entry: Any, made: tuple[str, Any], where: str) -> str:
    """Returns the subset, or the recipe, to whose rows a recipe's entry limits a signal; "" for all rows."""
    settings = (next(iter(entry.values())) if isinstance(entry, dict) else None) or {}
    if (name := settings.get("within")) is None:
        return ""
    if isinstance(made[1], Derived):
        raise RecipeError(f"{where}: {made[1].name} is worked out from columns of all rows: 'within' limits no model")
    return _path(name, f"{where}, {made[1].name}, within") or ""


def _step(entry: Any, where: str, above: tuple[str, ...], recipes: list[Recipe]) -> Step:
    """Returns a step; adds the recipes that a group names to `recipes`."""
    from tamis.recipes.steps import SELECTORS, selector_class

    if isinstance(entry, dict) and len(entry) == 1 and (name := next(iter(entry))) in _GROUPS:
        parts = [
            _part(part, f"{where}, {name}[{n}]", above, recipes) for n, part in enumerate(_list(entry[name], where))
        ]
        if not parts:
            raise RecipeError(f"{where}: {name} needs at least one recipe or step")
        made: Step = SELECTORS[name](parts=tuple(part for _, part in parts), labels=tuple(label for label, _ in parts))
        return made
    if isinstance(entry, dict) and list(entry) == ["tagged"] and not isinstance(entry["tagged"], dict | None):
        entry = {"tagged": {"tags": entry["tagged"]}}  # the short form: `tagged: blurry`
    name, settings = _single(entry, where, "step")
    with errors_at(where):
        cls = selector_class(name)
    step: Step = build(cls, settings, f"{where}, {name}", example=_for_example)
    with errors_at(f"{where}, {name}"):
        _ = step.reads  # parses the score expression
    return step


def _part(entry: Any, where: str, above: tuple[str, ...], recipes: list[Recipe]) -> tuple[str, tuple[Step, ...]]:
    """Reads one part of all_of, any_of, none_of: a recipe's name, a step, or a list of steps."""
    if not isinstance(entry, str):
        entries = entry if isinstance(entry, list) else [entry]
        return "", tuple(_step(step, f"{where}[{n}]", above, recipes) for n, step in enumerate(entries))
    identity = _identity(entry) if len(entry) < 4096 else entry
    if identity in above:
        raise RecipeError(f"{where}: the recipe {entry!r} names itself ({' > '.join([*above, identity])})")
    inner = _parse(*_raw(entry), (*above, identity))
    if not inner.selects:
        raise RecipeError(f"{where}: the recipe {entry!r} has no 'select', so it says nothing about what to keep")
    if inner.columns:
        raise RecipeError(f"{where}: the recipe {entry!r} has 'columns'; give them in the recipe that names it")
    recipes.append(inner)
    return inner.name, inner.steps


def _export(entry: Any, where: str) -> tuple[Exporter, Path]:
    from tamis.exports import exporter_class

    if not isinstance(entry, dict) or len(entry) != 1:
        raise RecipeError(f"{where}: expected one format with its path, such as 'npy: subset.npy', got {brief(entry)}")
    ((name, settings),) = entry.items()
    with errors_at(where):
        cls = exporter_class(str(name))
    if isinstance(settings, str):
        settings = {"out": settings}
    if not isinstance(settings, dict) or settings.get("out") is None:
        raise RecipeError(f"{where}, {name}: expected a path, or settings with 'out: PATH', got {brief(settings)}")
    made = build(cls, {key: value for key, value in settings.items() if key != "out"}, where, extra=("out",))
    return made, Path(_path(settings["out"], f"{where}, {name}, out") or "")


def _for_example(cls: type[Any], setting: str) -> str:
    """Returns a shipped recipe's value for a signal's missing setting, as advice; "" if no recipe sets it."""
    examples = usual(cls.name, setting) if issubclass(cls, Signal | Derived) else {}
    if not examples:
        return ""
    from tamis.core.hub import stand_in  # few need it

    (value, names), path = next(iter(examples.items())), f"--set signals.{cls.name}.{setting}"
    built_in = stand_in(str(value))
    more = f" Built in, for the lab's drawn world only: {path}={built_in}" if built_in else ""
    return f". As the recipe {names[0]!r} has it: {path}={value}.{more}"
