"""Recipes: YAML files that say what to score, what to keep and what to write.

Everything is checked before any work: unknown keys with the nearest known one, wrong values with what was expected.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import pydantic
import yaml

from tamis.data import KEEPS, Scorer
from tamis.errors import RecipeError, brief, expectation, hints_of, nearest, unknown
from tamis.exporters import exporter_class
from tamis.pool.files import expand_braces, is_remote, kind_of
from tamis.pool.source import PoolSpec
from tamis.remote import hide
from tamis.selectors import SELECTORS, selector_class
from tamis.signals import scorer_class

if TYPE_CHECKING:
    from tamis.selectors import Step

#: What a recipe may hold at its top.
KEYS = ("name", "about", "source", "pool", "run", "scores", "keep", "columns", "select", "export", "report")

# What a recipe holds at most: bytes, and digits of a number. The longest that comes with Tamis has 3 kB.
_MOST_BYTES = 256 << 10
_LONGEST_NUMBER = 100
# Not octal (010), sexagesimal (1:30), 0x1F, 0b1 or 1_000, which YAML 1.1 reads as numbers too.
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*|[0-9]*\.[0-9]*)(e[-+]?[0-9]+)?|[-+]?\.(inf|nan)", re.IGNORECASE)
_DEEPEST = 100  # levels that --set goes down

#: What checks values against the types of a record's settings, which takes a while to make.
_validator: Callable[[type[Any]], pydantic.TypeAdapter[Any]] = functools.cache(pydantic.TypeAdapter)  # type: ignore[assignment]

_GROUPS = ("all_of", "any_of", "none_of")


PathLike = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A recipe that was read and checked.

    Attributes:
        name: its own, else the file's stem.
        about, source: what it does, and where the rule comes from.
        pool, run: where; None where the command says it.
        scores: label ("" for none of its own) and scorer.
        keep: features to store.
        columns: names that the recipe uses, to names of the run's columns.
        steps: the selectors in order.
        exports: format and settings.
        report: where to write the report.
        text: everything as resolved, for `recipe.yaml` in the run folder: URLs are without their secrets.
    """

    name: str = "recipe"
    about: str = ""
    source: str = ""
    pool: PoolSpec | None = None
    run: str | None = None
    scores: tuple[tuple[str, Scorer], ...] = ()
    keep: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()
    selects: bool = False
    exports: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    report: str | None = None
    text: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reads(self) -> list[str]:
        """The columns that its steps look at, as the recipe names them."""
        return sorted({name for step in self.steps for name in step.reads})


#: A shipped recipe's name, a file, a mapping of the same form, or a loaded recipe.
RecipeLike = PathLike | Mapping[str, Any] | Recipe


def read(recipe: RecipeLike, settings: Sequence[str] = ()) -> Recipe:
    """Returns a recipe; loads it with settings unless it is loaded."""
    return recipe if isinstance(recipe, Recipe) else load(recipe, settings)


def shipped() -> list[str]:
    """Returns the names of the recipes that come with Tamis."""
    return sorted(
        entry.name.removesuffix(".yaml") for entry in files("tamis.recipes").iterdir() if entry.name.endswith(".yaml")
    )


def load(
    recipe: str | os.PathLike[str] | Mapping[str, Any], settings: Sequence[str] = (), *, signals: Sequence[str] = ()
) -> Recipe:
    """Reads a recipe.

    Args:
        recipe: the name of one that ships with Tamis, a file, or a mapping of the same form.
        settings: overrides as the command line writes them: "select.0.top_fraction.fraction=0.3".
        signals: names of scorers to add to its scores, before the overrides, which reach them too. One that the recipe
            scores already, and not under a label, is the recipe's.

    Raises:
        RecipeError: there is none, or something in it is wrong; the message says where.
    """
    data, name = _raw(recipe)
    if signals:
        data = _with_signals(data, signals, f"recipe {name!r}, scores")
    for setting in settings:
        data = _override(data, setting)
    return _parse(data, name, () if isinstance(recipe, Mapping) else (_identity(os.fspath(recipe)),))


def _with_signals(data: Mapping[str, Any], signals: Sequence[str], where: str) -> dict[str, Any]:
    """Returns a recipe's data with scorers added to its scores, each once."""
    scores = _list(data.get("scores"), where)
    there = set()
    for entry in scores:
        if isinstance(entry, str):
            there.add(entry)
        elif isinstance(entry, Mapping):  # whatever else it is, reading the recipe says so
            there |= {name for name, its in entry.items() if not (isinstance(its, Mapping) and its.get("label"))}
    return {**data, "scores": [*scores, *(name for name in dict.fromkeys(signals) if name not in there)]}


def usual(scorer: str, setting: str) -> dict[str, list[str]]:
    """Returns the words that shipped recipes give a setting of a scorer, the commonest first: to the recipes' names."""
    found: dict[str, list[str]] = {}
    for name in shipped():
        for entry in _raw(name)[0].get("scores") or []:
            settings = entry.get(scorer) if isinstance(entry, dict) else None
            value = settings.get(setting) if isinstance(settings, dict) else None
            if isinstance(value, str):
                found.setdefault(value, []).append(name)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _identity(recipe: str) -> str:
    """Returns what tells a recipe from others, however its path is written: to find recipes that name themselves."""
    return recipe if recipe in shipped() else str(Path(recipe).resolve())


def _raw(recipe: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    if isinstance(recipe, Mapping):
        return dict(recipe), "recipe"
    text = os.fspath(recipe)
    if text in shipped():
        content = (files("tamis.recipes") / f"{text}.yaml").read_text(encoding="utf-8")
        return _yaml(content, text), text
    path = Path(text)
    if not _is_file(path):
        if path.suffix in (".yaml", ".yml"):
            raise RecipeError(f"there is no recipe file {text!r}")
        raise RecipeError(f"{unknown('recipe', text, shipped())}; a file of your own ends in .yaml")
    try:
        with path.open("rb") as file:
            found = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise RecipeError(f"the recipe {text!r} cannot be read: {error.strerror}") from error
    if len(found) > _MOST_BYTES:
        raise RecipeError(f"the recipe {text!r} has {path.stat().st_size:,} bytes, at most {_MOST_BYTES:,} are read")
    try:
        return _yaml(found.decode("utf-8"), text), path.stem
    except UnicodeDecodeError as error:
        raise RecipeError(f"the recipe {text!r} cannot be read: it holds {kind_of(found)}, not UTF-8") from error


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long for any file
        return False


class _Loader(yaml.SafeLoader):
    """YAML without aliases, without its silent last-one-wins for repeated keys, and with dates as they were written."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
            raise RecipeError(f"line {line}: an alias (*name) is not read: write out what it stands for")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        if not isinstance(node, yaml.MappingNode):
            raise RecipeError(f"line {node.start_mark.line + 1}: expected 'key: value' lines")
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise RecipeError(f"line {key_node.start_mark.line + 1}: {brief(key)} is not a key")
            if key in seen:
                raise RecipeError(f"line {key_node.start_mark.line + 1}: the key {brief(key)} stands twice")
            seen.add(key)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: Any) -> int | float:
        if len(node.value) > _LONGEST_NUMBER:
            raise RecipeError(f"line {node.start_mark.line + 1}: a number of {len(node.value):,} digits")
        make = self.construct_yaml_int if node.tag.endswith(":int") else self.construct_yaml_float
        number: int | float = make(node)
        if not _DECIMAL.fullmatch(node.value):
            raise RecipeError(
                f"line {node.start_mark.line + 1}: {node.value!r} is not a decimal number (YAML reads it as {number}): "
                "write it as a decimal number, or in quotes if it is a word"
            )
        return number


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in rules if tag != "tag:yaml.org,2002:timestamp"]
    for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
# Sets, bytes, ordered maps and dates are nothing that a recipe holds; their tags are errors.
_KINDS = ("null", "bool", "str", "seq", "map")
_Loader.yaml_constructors = {
    **{f"tag:yaml.org,2002:{kind}": yaml.SafeLoader.yaml_constructors[f"tag:yaml.org,2002:{kind}"] for kind in _KINDS},
    **dict.fromkeys(("tag:yaml.org,2002:int", "tag:yaml.org,2002:float"), _Loader.construct_number),
    None: yaml.SafeLoader.yaml_constructors[None],
}


def _read_yaml(content: str) -> Any:
    """Returns what YAML holds.

    Raises:
        RecipeError: it is none, or more than a recipe can be. The message quotes nothing of it but single signs.
    """
    try:
        return yaml.load(content, _Loader)
    except RecipeError:
        raise
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        where = f"line {place.line + 1}, column {place.column + 1}: " if place is not None else ""
        problem = error.problem or error.context
        raise RecipeError(f"{where}{problem}") from error
    except yaml.YAMLError as error:
        raise RecipeError(str(error).partition("\n")[0]) from error
    except RecursionError as error:
        raise RecipeError("it is nested too deeply") from error
    except Exception as error:  # what a value of a wrong tag raises in Python: KeyError, AttributeError, ...
        raise RecipeError(f"a value is not what its tag says ({type(error).__name__})") from error


def _yaml(content: str, where: str) -> dict[str, Any]:
    try:
        data = _read_yaml(content)
    except RecipeError as error:
        raise RecipeError(f"the recipe {where!r} is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise RecipeError(
            f"the recipe {where!r} holds a {type(data).__name__}, expected keys such as scores and select"
        )
    return data


def _override(data: Any, setting: str) -> Any:
    path, value = assignment(setting)
    if path.count(".") > _DEEPEST:
        raise RecipeError(f"--set {brief(setting)}: nothing in a recipe lies {path.count('.') + 1:,} levels deep")
    return _put(data, path.split("."), value, setting)


def assignment(setting: str) -> tuple[str, Any]:
    """Returns name and value of what `--set` takes: "name=value", the value in YAML.

    Raises:
        RecipeError: it is not one.
    """
    name, sign, value = setting.partition("=")
    if not sign or not name.strip():
        raise RecipeError(f"--set takes name=value, got {brief(setting)}")
    try:
        return name.strip(), _read_yaml(value)
    except RecipeError as error:
        raise RecipeError(f"--set {brief(setting)}: the value is not YAML: {error}") from error


def _put(data: Any, path: Sequence[str], value: Any, setting: str) -> Any:
    if not path:
        return value
    head, *rest = path
    if isinstance(data, list):
        # A list of steps: by number, or by the name of the one step that has it.
        places = [
            place for place, entry in enumerate(data) if entry == head or (isinstance(entry, dict) and head in entry)
        ]
        if head.isdecimal() and len(head) < 10 and int(head) < len(data):
            copy, entry = list(data), data[int(head)]
            copy[int(head)] = _put({entry: {}} if isinstance(entry, str) and rest else entry, rest, value, setting)
            return copy
        if len(places) == 1:
            entry = data[places[0]]
            copy = list(data)
            copy[places[0]] = _put(entry if isinstance(entry, dict) else {entry: {}}, path, value, setting)
            return copy
        what = f"{len(places)} entries are called {head!r}: use a number" if places else f"no entry is called {head!r}"
        raise RecipeError(f"--set {brief(setting)}: {what}")
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise RecipeError(f"--set {brief(setting)}: {head!r} lies below {brief(data)}, which holds nothing")
    return {**data, head: _put(data.get(head), rest, value, setting)}


def _parse(data: Mapping[str, Any], name: str, above: tuple[str, ...]) -> Recipe:
    for key in data:
        if key not in KEYS:
            raise RecipeError(f"recipe {name!r}: {unknown('key', str(key), KEYS)}")
    where = f"recipe {name!r}"
    if data.get("name") is not None:
        name = str(data["name"])
        if not name or name.startswith(".") or set(name) & set("/\\\0"):
            raise RecipeError(f"{where}: the name {brief(name)} must do as a file name: no / or \\, no dot in front")
    keep = tuple(str(kind) for kind in _list(data.get("keep"), f"{where}, keep"))
    for kind in keep:
        if kind not in KEEPS:
            raise RecipeError(f"{where}, keep: {unknown('thing to keep', kind, KEEPS)}")
    steps = _list(data.get("select"), f"{where}, select")
    scores = _list(data.get("scores"), f"{where}, scores")
    exports = _list(data.get("export"), f"{where}, export")
    written = tuple(_export(entry, f"{where}, export[{n}]") for n, entry in enumerate(exports))
    if written and "select" not in data:
        raise RecipeError(f"{where} says what to export and not what to keep: add 'select: []' for every pair")
    return Recipe(
        name=name,
        about=str(data.get("about") or "").strip(),
        source=str(data.get("source") or "").strip(),
        pool=_pool(data["pool"], f"{where}, pool") if data.get("pool") is not None else None,
        run=_place(data["run"]) if data.get("run") is not None else None,
        scores=tuple(scorer_from(entry, f"{where}, scores[{n}]") for n, entry in enumerate(scores)),
        keep=keep,
        columns=_words(data.get("columns"), f"{where}, columns"),
        steps=tuple(_step(step, f"{where}, select[{n}]", above) for n, step in enumerate(steps)),
        selects="select" in data,
        exports=written,
        report=_place(data["report"]) if data.get("report") is not None else None,
        text={key: _shown(value) if key in ("pool", "run") else value for key, value in data.items()},
    )


def _shown(value: Any) -> Any:
    """Returns what a recipe says of its pool or run as files may tell it: secrets of URLs stay in this process."""
    if isinstance(value, dict):
        return {key: _shown(inner) if key == "path" else inner for key, inner in value.items()}
    if isinstance(value, list):
        return [_shown(one) for one in value]
    return hide(value, expand_braces) if isinstance(value, str) and is_remote(value) else value


def _place(path: Any) -> str:
    """Returns a path as a shell would give it: a recipe has none to make ~ the home folder."""
    return os.path.expanduser(str(path))


def _list(value: Any, where: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise RecipeError(f"{where}: expected a list (lines that begin with '- '), got {brief(value)}")
    return value


def _words(value: Any, where: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise RecipeError(f"{where}: expected 'name: column' lines, got {brief(value)}")
    return {str(name): str(column) for name, column in value.items()}


def _pool(value: Any, where: str) -> PoolSpec:
    if isinstance(value, str | list):
        value = {"path": value}
    if not isinstance(value, dict):
        raise RecipeError(f"{where}: expected a path or settings, got {brief(value)}")
    made = build(PoolSpec, value, where)
    assert isinstance(made, PoolSpec)
    return made


def _single(entry: Any, where: str, what: str) -> tuple[str, dict[str, Any]]:
    """Returns name and settings of an entry: `name`, or a mapping of one name to its settings."""
    if isinstance(entry, str):
        return entry, {}
    if isinstance(entry, dict) and len(entry) == 1:
        ((name, settings),) = entry.items()
        if settings is None:
            settings = {}
        if isinstance(settings, dict):
            return str(name), settings
        raise RecipeError(f"{where}: the settings of {brief(name)} must be 'key: value' pairs, got {brief(settings)}")
    found = f"{len(entry)} names ({', '.join(map(brief, entry))})" if isinstance(entry, dict) else brief(entry)
    raise RecipeError(f"{where}: expected one {what} with its settings, got {found}")


def scorer_from(entry: Any, where: str = "scores") -> tuple[str, Scorer]:
    """Makes a scorer of a recipe's entry: a name, or one name with settings; `label` names its columns' group.

    Returns:
        The label ("" for none) and the scorer.
    """
    if not isinstance(entry, str | dict):
        if isinstance(entry, Scorer):
            return "", entry
        if isinstance(entry, type) and issubclass(entry, Scorer):
            raise RecipeError(f"{where}: {entry.__name__} is a class: make a scorer of it, {entry.__name__}()")
        raise RecipeError(f"{where}: expected a scorer's name, a mapping or a scorer, got {brief(entry)}")
    name, settings = _single(entry, where, "scorer")
    cls = _class(scorer_class, name, where)
    rest = {key: value for key, value in settings.items() if key != "label"}
    label = str(settings.get("label", ""))
    if label and not label.isidentifier():
        raise RecipeError(f"{where}: the label {brief(label)} must be a word of letters, digits and _")
    return label, build(cls, rest, f"{where}, {name}", extra=("label",))


def _class(find: Callable[[str], type[Any]], name: str, where: str) -> type[Any]:
    """Returns a class by its name in a recipe, whoever brings it."""
    try:
        return find(name)
    except RecipeError as error:
        raise RecipeError(f"{where}: {error}") from error


def _step(entry: Any, where: str, above: tuple[str, ...]) -> Step:
    name, settings = _group(entry, where)
    if name in _GROUPS:
        parts = [_part(part, f"{where}, {name}[{n}]", above) for n, part in enumerate(_list(settings, where))]
        if not parts:
            raise RecipeError(f"{where}: {name} needs at least one recipe or step")
        made: Step = SELECTORS[name](parts=tuple(part for _, part in parts), labels=tuple(label for label, _ in parts))
        return made
    step: Step = build(_class(selector_class, name, where), settings, f"{where}, {name}")
    try:
        _ = step.reads  # parses the score expression
    except RecipeError as error:
        raise RecipeError(f"{where}, {name}: {error}") from error
    return step


def _group(entry: Any, where: str) -> tuple[str, Any]:
    if isinstance(entry, dict) and len(entry) == 1 and next(iter(entry)) in _GROUPS:
        return next(iter(entry.items()))
    return _single(entry, where, "step")


def _part(entry: Any, where: str, above: tuple[str, ...]) -> tuple[str, tuple[Step, ...]]:
    """Reads one part of all_of, any_of, none_of: a recipe's name, a step, or a list of steps."""
    if isinstance(entry, str):
        me = _identity(entry)
        if me in above:
            raise RecipeError(f"{where}: the recipe {entry!r} names itself ({' > '.join([*above, me])})")
        data, name = _named(entry, where)
        inner = _parse(data, name, (*above, me))
        if not inner.selects:
            raise RecipeError(f"{where}: the recipe {entry!r} has no 'select', so it says nothing about what to keep")
        if inner.columns:
            raise RecipeError(f"{where}: the recipe {entry!r} has 'columns'; give them in the recipe that names it")
        return inner.name, inner.steps
    entries = entry if isinstance(entry, list) else [entry]
    return "", tuple(_step(step, f"{where}[{n}]", above) for n, step in enumerate(entries))


def _named(entry: str, where: str) -> tuple[dict[str, Any], str]:
    """Reads a recipe that another names. Of a file that is none the message quotes nothing: it may hold secrets."""
    try:
        data, name = _raw(entry)
    except RecipeError as error:
        if entry in shipped() or not _is_file(Path(entry)):
            raise
        raise RecipeError(_no_recipe(entry, where)) from error
    if not all(isinstance(key, str) and key in KEYS for key in data):
        raise RecipeError(_no_recipe(entry, where))
    return data, name


def _no_recipe(path: str, where: str) -> str:
    facts = Path(path).stat()
    return f"{where}: the file {path!r} ({facts.st_size:,} bytes) is no recipe; `tamis check {path}` says why"


def _export(entry: Any, where: str) -> tuple[str, dict[str, Any]]:
    if not isinstance(entry, dict) or len(entry) != 1:
        raise RecipeError(f"{where}: expected one format with its path, such as 'npy: subset.npy', got {brief(entry)}")
    ((name, settings),) = entry.items()
    cls = _class(exporter_class, str(name), where)
    if isinstance(settings, str):
        settings = {"out": settings}
    if not isinstance(settings, dict) or "out" not in settings:
        raise RecipeError(f"{where}, {name}: expected a path, or settings with 'out: PATH', got {brief(settings)}")
    made = build(cls, {key: value for key, value in settings.items() if key != "out"}, where, extra=("out",))
    return str(name), {"out": _place(settings["out"]), **dataclasses.asdict(made)}


def build(cls: type[Any], settings: Mapping[str, Any], where: str, extra: Sequence[str] = ()) -> Any:
    """Makes a settings record of a mapping.

    Args:
        cls: a dataclass.
        settings: its fields; missing ones keep their defaults.
        where: for messages.
        extra: keys that are allowed elsewhere, for messages.

    Raises:
        RecipeError: an unknown key (with the nearest), a missing one, or a value of the wrong kind.
    """
    settings = {name: _of_its_kind(cls, name, value, where) for name, value in settings.items()}
    _check_keys(cls, settings, where, extra)
    try:
        return _validator(cls).validate_python(dict(settings))
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        if len({found["loc"] for found in error.errors() if found["loc"][:1] == first["loc"][:1]}) > 1:
            name = first["loc"][0]  # a setting of several kinds: pydantic tells of each what it lacks
            wanted = next((setting.type for setting in dataclasses.fields(cls) if setting.name == name), None)
            if get_origin(hints_of(cls).get(str(name))) in (Union, types.UnionType):
                raise RecipeError(f"{where}, {name}: expected {wanted}, got {brief(settings[str(name)])}") from error
        place = ".".join(str(part) for part in first["loc"])
        if first["type"] in ("missing", "missing_keyword_only_argument", "missing_argument"):
            raise RecipeError(f"{where}: the setting {place!r} is missing{_for_example(cls, place)}") from error
        message = expectation(first["msg"])
        found = "" if first["type"] == "value_error" else f", got {brief(first['input'])}"
        raise RecipeError(f"{where}{f', {place}' if place else ''}: {message}{found}") from error
    except RecipeError as error:  # a record's own check, such as of a score expression
        raise RecipeError(f"{where}: {error}") from error


def _for_example(cls: type[Any], setting: str) -> str:
    """Returns what a setting that is missing may be, to follow the sentence that says so: for models of scorers."""
    if not issubclass(cls, Scorer):
        return ""
    known = usual(cls.name, setting)
    if not known:
        return ""
    value, names = next(iter(known.items()))
    path = f"--set scores.{cls.name}.{setting}"
    from tamis.models.registry import stand_in

    built_in = stand_in(value)
    more = f" Built in, for the lab's drawn world only: {path}={built_in}" if built_in else ""
    return f". As the recipe {names[0]!r} has it: {path}={value}.{more}"


def _of_its_kind(cls: type[Any], name: str, value: Any, where: str) -> Any:
    """Returns a setting that is a record, made as the kind that it names, where there are several of that record."""
    kind_of = getattr(hints_of(cls).get(name), "kind_of", None)
    if kind_of is None or not isinstance(value, Mapping):
        return value
    try:
        kind = kind_of(value)
    except ValueError as error:
        raise RecipeError(f"{where}, {name}: {error}") from error
    return value if kind is hints_of(cls)[name] else build(kind, value, f"{where}, {name}")


def _check_keys(cls: type[Any], settings: Mapping[str, Any], where: str, extra: Sequence[str]) -> None:
    hints = hints_of(cls)
    names = [setting.name for setting in dataclasses.fields(cls) if setting.init]
    for key, value in settings.items():
        if key not in names:
            for name in names:  # one that stood here once, or that a reader would look for here
                inner = dataclasses.fields(hints[name]) if dataclasses.is_dataclass(hints[name]) else ()
                if key in {one.name for one in inner}:
                    raise RecipeError(f"{where}: {key!r} stands in {name!r}: write {name}: {{{key}: {brief(value)}}}")
            known = ", ".join([*names, *extra]) or "none"
            raise RecipeError(
                f"{where}: unknown setting {brief(key)}{nearest(str(key)[:100], [*names, *extra])}; known: {known}"
            )
        hint = hints[key]
        if dataclasses.is_dataclass(hint) and isinstance(value, Mapping):
            _check_keys(hint, value, f"{where}, {key}", ())  # type: ignore[arg-type]  # a class, not an instance
        words = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, bool)]
        if words and bool not in _kinds(hint):
            found = str(words[0]).lower()
            raise RecipeError(
                f"{where}, {key}: got {found}; YAML reads yes, no, on and off so: put quotes around a word"
            )


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
