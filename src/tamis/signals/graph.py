"""Graphs of nodes: dependency order, fingerprints, the executor, and the checks of what nodes return."""

from __future__ import annotations

import gc
import inspect
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tamis.core.errors import SignalError, StopError, TamisError, brief, unknown_message
from tamis.core.ids import fingerprint, setting_digest
from tamis.core.types import Device, Node, Sample, Samples, Signal, references, settings
from tamis.models.device import halve_batch, memory_ran_out

T = TypeVar("T")


def topological(nodes: Sequence[Node], given: Collection[Node] = ()) -> list[Node]:
    """Returns the nodes and everything they need, each once, in dependency order, skipping those in `given`."""
    ordered: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node in ordered or node in given:
            return
        for needed in node.needs().values():
            visit(needed)
        ordered[node] = None

    for node in nodes:
        visit(node)
    return list(ordered)


def run_on_device(signals: Iterable[Signal]) -> bool:
    """Whether signals, or what they need, run on the device: all but what a reading thread computes (`Node.host`)."""
    return not all(node.host for node in topological([*signals]))


class Identities:
    """Everything that decides each node's results, and the fingerprints of that."""

    def __init__(self, device: Device) -> None:
        self.device = device  # precision, and CPU or GPU, are part of fingerprints (`Node.arithmetic`)
        self._facts: dict[Node, dict[str, Any]] = {}

    def on(self, device: Device) -> Identities:
        """Returns a copy for another device of the same kind and precision."""
        old, new = (f"{one.precision} on {one.kind.partition(':')[0]}" for one in (self.device, device))
        if old != new:
            raise ValueError(f"identities for {old} cannot be reused for {new}")
        moved = Identities(device)
        moved._facts.update(self._facts)
        return moved

    def facts(self, node: Node) -> dict[str, Any]:
        """Returns a node's settings, hashes of its models and files, its arithmetic, and fingerprints of its needs.

        Raises RecipeError or ModelError if a file or model in its settings cannot be read.
        """
        if node not in self._facts:
            self._facts[node] = self._find(node)
        return self._facts[node]

    def fingerprint(self, node: Node) -> str:
        """Returns 16 hex digits that change whenever the node's results would."""
        return fingerprint(self.facts(node))

    def stem(self, node: Node) -> str:
        """Returns the name of the node's folder: `<name>-<fingerprint>`."""
        return f"{node.name}-{self.fingerprint(node)}"

    def _find(self, node: Node) -> dict[str, Any]:
        # Models count by their weights and files by their content, not by path or name.
        named = references(node, "model")
        models = {setting: model_digest(name) for setting, name in named.items()}
        cleaned = {setting: _cleaning(name) for setting, name in named.items() if node.reads_texts}
        named = references(node, "file")
        files = {setting: setting_digest(path, f"{node.name}: {setting}") for setting, path in named.items()}
        parsers = {setting: _parser_digest(name) for setting, name in references(node, "parser").items()}
        facts: dict[str, Any] = {"name": node.name, "version": node.version, "models": models}
        # Texts are named only where they are cleaned: fingerprints of all other models stay as they were.
        cleaned = {setting: kind for setting, kind in cleaned.items() if kind != "hf"}
        found = {"files": files, "parsers": parsers, "texts cleaned": cleaned}
        facts |= {kind: values for kind, values in found.items() if values}
        facts["settings"] = {
            name: value
            for name, value in settings(node, recorded=True).items()
            if name not in {*models, *files, *parsers} and not isinstance(getattr(node, name), Node)  # see "needs"
        }
        if models and not node.host:
            facts["precision"] = node.arithmetic(self.device)
        facts["needs"] = {
            argument: self.fingerprint(needed) for argument, needed in node.needs().items() if needed != Samples()
        }
        return facts


@dataclass(frozen=True)
class NodeFault:
    """In place of a value that a node could not compute. A `SignalError` stops the run, any other only its shard."""

    node: Node
    error: Exception
    trace: str = ""

    def __str__(self) -> str:
        if isinstance(self.error, SignalError):
            return str(self.error)
        return f"{self.node.name}: {type(self.error).__name__}: {self.error}"

    def __reduce__(self) -> tuple[Any, ...]:
        return NodeFault, (self.node, picklable(self.error), self.trace)


def picklable(error: Exception) -> Exception:
    """Returns an error that can be pickled: itself, or a StopError or RuntimeError with the same text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        kind = StopError if isinstance(error, StopError) else RuntimeError
        return kind(f"{type(error).__name__}: {error}")
    return error


Values = dict[Node, Any]


class Executor:
    """Loads nodes once and computes their values, batch after batch. Threads may share an executor.

    It raises SignalError if `load` fails, if its function does not take the arguments named in `needs`, or if columns
    or stored features are missing, extra or of the wrong length or kind. A value too large for its file: ValueError.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}  # spent in `compute`, by node name
        self._functions: dict[Node, Callable[..., Any]] = {}
        self._tried: set[Node] = set()
        self._widths: dict[Node, int] = {}  # of embeddings
        self._loading = threading.RLock()

    def run(self, wanted: Sequence[Node], given: Mapping[Node, Any]) -> Values:
        """Returns the values of nodes and of everything they need, for one batch; those in `given` are not computed."""
        values = dict(given)
        for node in topological(wanted, values):
            values[node] = self._value(node, values)
        return values

    def compute(self, nodes: Sequence[Node], values: Values, faults: dict[Node, NodeFault]) -> None:
        """Computes nodes, given in topological order, into `values`.

        A node that fails gets a `NodeFault`, in `values` and in `faults`, and so do the nodes that need it. Nodes in
        `faults` are not tried again. Raises StopError for errors that are not a node's fault, such as a missing model.
        """
        for node in nodes:
            if node in values:
                continue
            needed = [values.get(one) for one in node.needs().values()]
            fault = faults.get(node) or next((one for one in needed if isinstance(one, NodeFault)), None)
            if fault is None:
                start = time.perf_counter()
                try:
                    values[node] = self._value(node, values)
                    self.seconds[node.name] = self.seconds.get(node.name, 0.0) + time.perf_counter() - start
                    continue
                except SignalError as error:
                    fault = NodeFault(node, error)
                except TamisError:
                    raise
                except Exception as error:
                    fault = NodeFault(node, error, traceback.format_exc())
            values[node] = faults[node] = fault

    def try_empty(self, nodes: Sequence[Node], given: Mapping[Node, Any]) -> None:
        """Loads nodes and tries each on an empty batch, so that a faulty one raises SignalError before any work."""
        if self._tried.issuperset(nodes):  # for an earlier shard
            return
        self._tried.update(nodes)
        values = dict(given)
        for node in nodes:
            if node in values:
                continue
            self.load(node)
            if all(needed in values for needed in node.needs().values()):
                try:
                    values[node] = self._value(node, values)
                except StopError:
                    raise
                except Exception:  # other errors on an empty batch prove nothing
                    continue

    def keep(self, nodes: Collection[Node]) -> None:
        """Drops the functions of all other nodes, and the models that only they hold."""
        self._functions = {node: function for node, function in self._functions.items() if node in nodes}

    def load(self, node: Node) -> Callable[..., Any]:
        """Returns the function of a node; the first call loads it."""
        with self._loading:  # reader and compute thread may load the same node at once
            if node not in self._functions:
                rows = self.device.batch_size  # of some, classes are embedded here
                self._functions[node] = self.with_memory(lambda: self._load(node), node.name, rows)
            return self._functions[node]

    def _load(self, node: Node) -> Callable[..., Any]:
        try:
            function = node.load(self.device)
        except TamisError:
            raise
        except (Exception, SystemExit, GeneratorExit) as error:  # the last two would exit silently
            if isinstance(error, Exception) and memory_ran_out(error):
                raise
            raise SignalError(f"{title(node)} cannot be loaded ({type(error).__name__}: {error})") from error
        if not callable(function):
            raise SignalError(f"{title(node)}: load() must return a function of a batch, it returned {function!r}")
        try:
            signature = inspect.signature(function)
            signature.bind(**dict.fromkeys(node.needs()))
        except TypeError as error:
            takes = ", ".join(signature.parameters) or "nothing"
            raise SignalError(
                f"{title(node)}: needs() names {', '.join(node.needs()) or 'nothing'}, load() takes {takes} ({error})"
            ) from error
        except ValueError:  # a built-in function without a signature
            pass
        return function

    def _value(self, node: Node, values: Mapping[Node, Any]) -> Any:
        inputs = {argument: values[needed] for argument, needed in node.needs().items()}
        try:
            value = self.with_memory(lambda: self.load(node)(**inputs), node.name, _count(values))
        except (SystemExit, GeneratorExit) as error:
            raise RuntimeError(f"it raised {error!r}, which would have ended the command") from error
        if isinstance(node, Signal):
            check_output(node, value, _count(values))
        elif node.stored_as == "embeddings":
            _check_embeddings(node, value, _count(values), self._widths)
        elif node.stored_as is not None:
            _check_texts(node, value, _count(values))
        return value

    def with_memory(self, work: Callable[[], T], what: str, rows: int) -> T:
        """Does the work on a batch of `rows`. If memory runs out, halves the batch size and does it again.

        All models are loaded again, since each knows its batch size. A second time memory runs out is a StopError.
        """
        try:
            return work()
        except Exception as error:
            if not memory_ran_out(error):
                raise
            with self._loading:
                self.device = halve_batch(self.device, rows, what)
                self._functions.clear()
            traceback.clear_frames(error.__traceback__)  # they hold tensors
        from tamis.models.loading import forget_models

        forget_models()
        gc.collect()
        return self.with_memory(work, what, rows)


def execute(nodes: Sequence[Node], samples: Sequence[Sample], device: Device) -> Values:
    """Loads nodes and returns their values for one batch of samples, as `Executor.run` does."""
    return Executor(device).run(nodes, {Samples(): list(samples)})


def title(node: Node) -> str:
    """Returns how messages name a node: "the signal 'clip' (tamis.signals.clip.ClipScore)"."""
    kind = "signal" if isinstance(node, Signal) else "feature"
    return f"the {kind} {node.name!r} ({type(node).__module__}.{type(node).__qualname__})"


def check_output(signal: Signal, found: Any, count: int) -> None:
    """Checks what a signal returned for a batch: its columns by name, and optionally "reason".

    Raises SignalError if columns are missing, extra or of the wrong length or kind. Raises ValueError for a value that
    cannot be stored: another batch may be fine.
    """
    if not isinstance(found, Mapping):
        raise SignalError(f"{title(signal)} must return a mapping of its columns, it returned a {type(found).__name__}")
    kinds = {column.name: column.kind for column in signal.columns}
    for name in kinds:
        if name not in found:
            emits = ", ".join(map(repr, found)) or "nothing"
            raise SignalError(f"{title(signal)} declares the column {name!r} and does not emit it; it emits {emits}")
    for name, values in found.items():
        if name not in kinds and name != "reason":
            raise SignalError(f"{title(signal)} emits an undeclared column: {unknown_message('column', name, kinds)}")
        if values is None and name == "reason":
            continue
        several = hasattr(values, "__len__") and not isinstance(values, str | bytes)  # a str is not a list of values
        if not several or len(values) != count:
            size = f"{len(values)} values" if several else f"a {type(values).__name__}"
            raise SignalError(f"{title(signal)} gave {size} for {count} samples in the column {name!r}")
        if kinds.get(name, "word") == "word":
            _check_words(signal, f"the column {name!r}", values)
        else:
            _check_numbers(signal, f"the column {name!r}", values)


def _check_words(node: Node, where: str, values: Iterable[Any]) -> None:
    for value in values:
        if value is not None and not isinstance(value, str):
            raise SignalError(f"{title(node)}: expected strings in {where}, got {type(value).__name__} {brief(value)}")
        try:
            (value or "").encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{where} got {brief(value)}, a lone surrogate that UTF-8 cannot encode") from error


def _check_numbers(signal: Signal, where: str, values: Any) -> None:
    array = _array(signal, where, values, "biuf")
    if array.ndim != 1:
        raise SignalError(f"{title(signal)}: {where} must be (n,) numbers; it gave an array of {array.shape}")
    _check_range(where, array, np.float32)
    if array.dtype.kind in "iu":  # a rounded integer would be a wrong id or count
        for number in array[np.abs(array) > 2**24].tolist():
            if int(np.float32(number)) != number:
                raise ValueError(f"{where} got the integer {number}, which float32 rounds: return an id as a word")


def _check_embeddings(node: Node, found: Any, count: int, widths: dict[Node, int]) -> None:
    """Checks a batch of (n, d) floats; `widths` keeps the d of each feature."""
    array = _array(node, "its value", found, "f")
    if array.ndim != 2 or len(array) != count:
        raise SignalError(f"{title(node)} must give {count} rows of floats; it gave an array of {array.shape}")
    if count and widths.setdefault(node, array.shape[1]) != array.shape[1]:
        raise SignalError(f"{title(node)}: the embedding width changed from {widths[node]} to {array.shape[1]}")
    _check_range("its value", array, np.float16)


def _check_texts(node: Node, found: Any, count: int) -> None:
    rows = list(found) if isinstance(found, Iterable) else []
    if len(rows) != count or not all(isinstance(texts, list | tuple | None) for texts in rows):
        raise SignalError(f"{title(node)} must give a list of texts, or None, for each of {count} samples")
    for texts in rows:
        _check_words(node, "its value", texts or ())


def _array(node: Node, where: str, values: Any, kinds: str) -> NDArray[Any]:
    if np.ma.isMaskedArray(values) or (isinstance(values, list | tuple) and any(map(np.ma.isMaskedArray, values))):
        raise SignalError(f"{title(node)}: {where} contains a masked array: return NaN instead, values.filled(np.nan)")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise SignalError(f"{title(node)}: expected numbers in {where}, got others ({error})") from error
    if array.dtype.kind not in kinds:
        raise SignalError(f"{title(node)}: expected numbers in {where}, got an array of {array.dtype}")
    return array


def _check_range(where: str, array: NDArray[Any], stored: type[np.floating[Any]]) -> None:
    with np.errstate(over="ignore"):
        lost = np.isinf(array.astype(stored)) & ~np.isinf(array)
    if lost.any():
        raise ValueError(f"{where}: {array[lost][0]:g} overflows {stored.__name__}: return NaN without a score")


def _count(values: Mapping[Node, Any]) -> int:
    root = Samples()
    return len(values[root] if root in values else next(one for one in values.values() if hasattr(one, "__len__")))


def model_digest(reference: str) -> str:
    """Returns the hash of a model's files; see `tamis.models.reference.resolve`."""
    from tamis.models.reference import resolve

    return resolve(reference).digest


def _cleaning(reference: str) -> str:
    from tamis.models.reference import cleaning_of

    return cleaning_of(reference)


def _parser_digest(reference: str) -> str:
    from tamis.models.texts.language import parser_digest

    return parser_digest(reference)
