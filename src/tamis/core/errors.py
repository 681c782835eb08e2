"""Everything that Tamis raises on purpose, sorted by what happens next.

TamisError
├── StopError          the command stops with exit code 2; nothing on disk is half-written
│   ├── PoolError          the pool is missing, or is not what the settings say
│   ├── RecipeError        a recipe, an option or a score expression is wrong
│   ├── RunError           the run folder cannot be used (in use, unwritable, another pool's)
│   │   └── DamageError        a file of the run is damaged; while scoring, only its shard fails
│   ├── ModelError         a model is not on this machine, or is of a kind we cannot load
│   ├── SignalError        a signal or a feature is faulty, so every shard would fail
│   ├── DependencyError    an optional package is not installed
│   └── DiskFullError      the disk of the run folder is full
├── ShardError         this shard failed and is reported; the others go on; exit code 1
│   ├── ScatteredError     files of its samples are not neighbours; it gets no rows
│   └── UnreachedError     its store or disk did not answer; the next command tries it again
└── SampleError        this sample becomes a row with a status and a reason; the shard goes on
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
import os
import reprlib
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints


class TamisError(Exception):
    """Any error that Tamis raises on purpose."""


class StopError(TamisError):
    """The command cannot go on."""


class PoolError(StopError):
    """The pool is missing, or is not what the settings say."""


class RecipeError(StopError):
    """A recipe, an option or a score expression is wrong; found before any work starts."""


class RunError(StopError):
    """The run folder cannot be used."""


class DamageError(RunError):
    """A file of a run is damaged, or belongs to another shard or run; `what` is the bare cause."""

    def __init__(self, message: str, what: str = "") -> None:
        super().__init__(message)
        self.what = what


class ModelError(StopError):
    """A model is not on this machine, or is of a kind that cannot be loaded."""


class SignalError(StopError):
    """A signal, or a feature it needs, is faulty: it cannot be loaded, or emits other columns than it declares."""


class DependencyError(StopError):
    """An optional package is needed and not installed."""


class DiskFullError(StopError):
    """The disk of the run folder is full; complete files stay."""


class ShardError(TamisError):
    """One shard failed. The others go on, and the exit code is 1."""


class ScatteredError(ShardError):
    """The files of a sample are not neighbours in a tar that can only be read from the front."""


class UnreachedError(ShardError):
    """A shard could not be read because its store or disk did not answer; the file itself may be fine."""


class SampleError(TamisError):
    """One sample cannot be scored: a status of `tamis.core.types.STATUSES` and a sentence; the index has both."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def escape_controls(text: str) -> str:
    """Escapes control characters for a terminal: file names and keys may contain them."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else repr(sign)[1:-1] for sign in text)


def brief(value: Any) -> str:
    """Returns a value in the words of a message, shortened: 'text', 0.3, nothing, true, a list (1, 2)."""
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    if isinstance(value, Mapping | list | tuple):
        inside = ", ".join(_BRIEF.repr(one) for one in islice(value, 12) if isinstance(one, str | int | float))
        shown = f"{'settings' if isinstance(value, Mapping) else 'a list'} ({inside})" if value else "an empty list"
        return shown if len(shown) <= _MOST_BRIEF else f"{shown[:_MOST_BRIEF]}..."
    try:
        return _BRIEF.repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a number of thousands of digits"


def plural(value: int, noun: str) -> str:
    """Returns "1 pair", "2,000 pairs"."""
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"


def duration(seconds: float) -> str:
    """Returns seconds in at most two units: 42 s, 3 min 5 s, 2 h 10 min, 3 d 4 h."""
    whole = round(seconds)
    for size, unit, smaller_size, smaller in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller_size} {smaller}"
    return f"{whole} s"


def first_line(error: BaseException) -> str:
    """Returns the first 300 characters of a library's error; its type too if they are not a sentence."""
    text = " ".join(str(error).split())[:300]
    return text if " " in text else f"{type(error).__name__}: {text}" if text else type(error).__name__


_MOST_BRIEF = 1_000  # characters
_MOST_TEXT = 1 << 30  # bytes of a list
_SHORT_LIST, _LONG_LIST = 12, 100  # names
_BRIEF = reprlib.Repr()
_BRIEF.maxstring = _BRIEF.maxother = 200

_KINDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def describe_type(hint: Any) -> str:
    """Returns a setting's type in words: "a number", "a list", "'mean' or 'sum'"."""
    kinds = [one for one in (get_args(hint) or [hint]) if one is not type(None)]
    if get_origin(hint) is Literal:
        kinds = [repr(one) for one in kinds]
    elif get_origin(hint) is Annotated:
        return describe_type(kinds[0])
    elif get_origin(hint) in (Union, UnionType):
        kinds = list(dict.fromkeys(map(describe_type, kinds)))
    else:
        listed = isinstance(origin := get_origin(hint) or hint, type) and issubclass(origin, tuple | list)
        kinds = [_KINDS.get(hint, "a list, such as [a, b]" if listed else "settings, such as {name: value}")]
    return " or ".join(filter(None, [", ".join(kinds[:-1]), kinds[-1]]))


def check_fraction(fraction: float, name: str = "a fraction") -> None:
    """Raises ValueError for a fraction outside [0, 1]; asks whether a percentage was meant."""
    if not 0 <= fraction <= 1:
        meant = f"; did you mean {fraction / 100:g}?" if 1 < fraction <= 100 else ""
        raise ValueError(f"{name} must be between 0 and 1, got {fraction:g}{meant}")


@contextmanager
def naming_faults(kind: str, *things: Any) -> Iterator[None]:
    """Turns errors of other packages' classes, such as selectors, into RecipeErrors that name the package."""
    others = [one for one in things if not type(one).__module__.startswith("tamis.")]
    try:
        yield
    except Exception as error:
        if isinstance(error, TamisError | OSError) or not others:
            raise
        named = " or ".join(f"{one.name!r} ({type(one).__module__})" for one in others)
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise RecipeError(f"the {kind} {named} failed: {what}. Repair or uninstall its package") from error


def check_file(path: str | os.PathLike[str], most: int | None = None) -> None:
    """Raises ValueError unless a path is a regular file of at most so many bytes, OSError if there is none.

    A device or a pipe may never end: call this before anything that a setting names is read.
    """
    facts = os.stat(path)
    if not stat.S_ISREG(facts.st_mode):
        raise ValueError(f"{os.fspath(path)} is not a regular file")
    if most is not None and facts.st_size > most:
        raise ValueError(f"{os.fspath(path)} has {facts.st_size:,} bytes, more than the limit of {most:,}")


def read_text(path: str | os.PathLike[str], errors: str = "strict") -> str:
    """Returns the UTF-8 text of a file that a setting names; raises OSError, or ValueError as `check_file`."""
    file = Path(path).expanduser()
    check_file(file, _MOST_TEXT)
    return file.read_text("utf-8-sig", errors)


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns " (did you mean 'x'?)" for a known name that begins so, else the most similar; "" if none is similar.

    Of names that begin so, those come first whose next character is no letter ("clip": clip-30, then clipcov).
    """
    word, names = name[:200].lower(), {one.lower(): one for one in reversed(list(known))}
    longer = [one for one in names if len(word) > 2 and one.startswith(word)]
    found = sorted(longer, key=lambda one: (one[len(word) : len(word) + 1].isalpha(), len(one), one))
    found = found or difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f" (did you mean {names[found[0]]!r}?)" if found else ""


def unknown_message(kind: str, name: str, known: Iterable[str]) -> str:
    """Returns the "unknown X" message: the nearest known name, and the list if it is short or none is near."""
    names = sorted(known)
    near = nearest(name, names)
    known = [*names[:_LONG_LIST], *([f"and {len(names) - _LONG_LIST:,} more"] if len(names) > _LONG_LIST else [])]
    listed = "" if near and len(names) > _SHORT_LIST else f"; known: {', '.join(known) or 'none'}"
    return f"unknown {kind} {brief(name)}{near}{listed}"


def at_least_one(**settings: int) -> None:
    """Raises ValueError if a setting is below 1."""
    for setting, value in settings.items():
        if value < 1:
            raise ValueError(f"{setting} must be at least 1, got {value}")


#: The types of a record's fields, by name. Cached, because resolving annotations is slow.
# To mypy no class is hashable.
hints_of: Callable[[type[Any]], dict[str, Any]] = functools.cache(get_type_hints)  # type: ignore[assignment]


def check_words(record: Any) -> None:
    """Raises ValueError, with the nearest word, if a Literal setting of a record is not one of the allowed values."""
    hints = hints_of(type(record))
    for setting in dataclasses.fields(record):
        hint, value = hints[setting.name], getattr(record, setting.name)
        if type(None) in get_args(hint):  # a Literal or None
            hint = get_args(hint)[0] if value is not None else None
        if get_origin(hint) is Literal and value not in get_args(hint):
            raise ValueError(unknown_message(setting.name, str(value), get_args(hint)))


def check_effect(record: Any, *names: str, because: str) -> None:
    """Raises ValueError if a named setting differs from its default although another setting makes it meaningless.

    `because` names the other setting and the reason.
    """
    defaults = {setting.name: setting.default for setting in dataclasses.fields(record)}
    given = [f"{name}={getattr(record, name)!r}" for name in names if getattr(record, name) != defaults[name]]
    if given:
        raise ValueError(f"{because}: leave out {', '.join(given)}")


def require(*packages: str, extra: str) -> None:
    """Imports optional packages early: raises DependencyError if one, or what it imports, is not installed."""
    for package in packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise needs_extra(error.name or package, extra) from error


def needs_extra(package: str, extra: str) -> DependencyError:
    """Returns the error for an optional package that is not installed."""
    return DependencyError(f"the package {package!r} is not installed; run: {install(extra)}")


def install(extra: str) -> str:
    """Returns the command that installs an extra, from this checkout or else from PyPI."""
    root = Path(__file__).parents[3]
    if not (root / "pyproject.toml").is_file() or not (root / "constraints.txt").is_file():
        return f"pip install 'tamis[{extra}]'"
    if root == Path.cwd():
        return f"pip install -c constraints.txt -e '.[{extra}]'"
    return f"pip install -c {shlex.quote(str(root / 'constraints.txt'))} -e {shlex.quote(f'{root}[{extra}]')}"
