"""Loading models: each once, without a network and without anybody's code, whole or not at all."""

from __future__ import annotations

import functools
import inspect
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_type_hints

from tamis.data import ModelRef, OptionalModelRef
from tamis.errors import DependencyError, ModelError, TamisError, brief, require
from tamis.models.bounds import check_counts, check_size, first_line
from tamis.models.folder import check_part, modules_in, needs_lower_case, object_in, weights_of
from tamis.models.quiet import no_progress_bar, no_warnings
from tamis.models.reference import resolve

log = logging.getLogger(__name__)

#: What the tokenizers of Rust raise where they should not have got to: no `Exception`, so that nobody catches it.
_PANIC = "PanicException"

#: What transformers says of a kind of model that a class, or this version of it, does not load.
_UNKNOWN = re.compile(r"nrecognized (configuration|model)|does not recognize this architecture|[Mm]odel type should")

#: The names of tokenizers in transformers.
_TOKENIZER = re.compile(r"^\w*(Tokenizer\w*|Backend)$")

#: A text is a start, an end, and something between them.
_SHORTEST = 3

P = ParamSpec("P")
T = TypeVar("T")

#: What was loaded: of each loader the arguments, with the hashes of the models among them, to what it returned.
_LOADED: dict[Callable[..., Any], OrderedDict[tuple[Any, ...], Any]] = {}

#: Held while a model is loaded. One for all: transformers changes the process' state while it loads, so that two
#: threads must not. It can be taken again, since some loaders use others.
_LOADING = threading.RLock()


def loaded_once(keep: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Makes a loader return what it returned before for the same arguments, in whatever thread.

    Arguments that are annotated as models (`ModelRef`, `OptionalModelRef`) also count by their contents: weights that
    have changed are loaded anew.

    Args:
        keep: how many of its models stay loaded; the one that was not asked for the longest goes first.
    """

    def decorate(load: Callable[P, T]) -> Callable[P, T]:
        signature = inspect.signature(load)
        kept = _LOADED.setdefault(load, OrderedDict())

        @functools.wraps(load)
        def loaded(*args: P.args, **kwargs: P.kwargs) -> T:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            hints = get_type_hints(load, include_extras=True)
            named = [name for name in given.arguments if hints[name] in (ModelRef, OptionalModelRef)]
            models = [given.arguments[name] for name in named if given.arguments[name] is not None]
            key = (*given.arguments.values(), *(resolve(model).digest for model in models))
            with _LOADING:
                if key not in kept:
                    kept[key] = load(*args, **kwargs)
                kept.move_to_end(key)
                while len(kept) > keep:
                    kept.popitem(last=False)
                found: T = kept[key]
                return found

        return loaded

    return decorate


def forget_loaded() -> None:
    """Lets go of every model that `loaded_once` keeps."""
    with _LOADING:
        for kept in _LOADED.values():
            kept.clear()


def model_type(model: str) -> str | None:
    """Returns the `model_type` of a checkpoint's config.json, None where it names none.

    Raises:
        ModelError: it is not here, or holds no config.json.
        DependencyError: torch or transformers is not installed.
    """
    require("torch", "transformers", extra="clip")
    path = resolve(model).path / "config.json"
    if not path.is_file():
        raise ModelError(f"{model}: the folder holds no config.json, which says what model it is")
    return kind_of(object_in(path))


def kind_of(config: Mapping[str, Any]) -> str | None:
    """Returns the `model_type` of a configuration, None where it names none."""
    kind = config.get("model_type")
    return kind if isinstance(kind, str) else None


def transformer_folder(model: str) -> Path:
    """Returns where the transformer of a checkpoint lies: its folder, or in a sentence-transformers folder its part.

    Raises:
        ModelError: it is not here, or damaged.
    """
    path = resolve(model).path
    modules = modules_in(path) if (path / "modules.json").is_file() else []
    return modules[0][1] if modules else path


def load_tokenizer_in(folder: Path, *, cls: Any = None, network: Any = None) -> Any:
    """Returns the tokenizer of a folder, lower-casing where the model needs it.

    Args:
        folder: which holds it.
        cls: the class of transformers that loads it; None: whichever its files name.
        network: which is to read its tokens; None: it is not known yet.

    Raises:
        ModelError: there is none, a file of it is damaged, or it is another network's.
        DependencyError: transformers, or a package that it asks for, is not installed.
    """
    require("transformers", extra="clip")
    from transformers import AutoTokenizer

    check_part(folder)
    for name in ("tokenizer_config.json", "config.json"):
        _check_class(folder / name)
    found = _from_pretrained(cls or AutoTokenizer, folder, "tokenizer")
    if needs_lower_case(folder):
        from tokenizers import normalizers

        own = found.backend_tokenizer.normalizer
        found.backend_tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *([own] if own else [])])
    for name in ("model_max_length", "pad_token_id"):
        value = getattr(found, name, None)
        if not isinstance(value, int | float | None):
            raise ModelError(f"{folder / 'tokenizer_config.json'} is damaged: its {name} is no number")
    if found.model_max_length < _SHORTEST:
        raise ModelError(
            f"{folder / 'tokenizer_config.json'} leaves room for {found.model_max_length} tokens (model_max_length): a "
            "text has a start, an end, and something between them"
        )
    if network is not None:
        check_tokens(found, network, folder)
    return found


def load_whole(
    cls: Any, path: Path, model: str, *, expected: str, unneeded: Callable[[str], bool] | None = None, **settings: Any
) -> Any:
    """Returns a network of transformers, in evaluation mode, with all of its weights from safetensors.

    Args:
        cls: a class of transformers, or one of its AutoModel classes.
        path: the checkpoint's folder.
        model: what the user called it, for messages.
        expected: what it has to be ("a causal language model"), for messages.
        unneeded: tells of the name of a weight that the checkpoint may lack: what is not used, or is to be trained.
        settings: of `from_pretrained`.

    Raises:
        ModelError: it is damaged, of a kind that the class does not load, lacks weights of this class, which
            transformers would draw at random, or its configuration and its weights do not belong together.
    """
    check_part(path)
    config = object_in(path / "config.json")
    shapes = weights_of(path)
    if not shapes:
        raise ModelError(f"{path} holds no weights called model.safetensors: save the model with save_pretrained")
    check_counts(path / "config.json", config, shapes)
    wrong = f"{model} is a {_named(config)} model and not {expected}"
    with no_progress_bar(), no_warnings():  # what is missing is told below, and what is too much is of no interest
        try:
            check_size(path / "config.json", lambda: _outline(cls, path), shapes)
            found, report = _from_pretrained(
                cls, path, "model", use_safetensors=True, output_loading_info=True, ignore_mismatched_sizes=True,
                **settings,
            )  # fmt: skip
        except _Unknown as error:
            log.info("where it happened:", exc_info=error)
            raise ModelError(f"{wrong}: name a checkpoint of one") from error
    missing = sorted(name for name in report["missing_keys"] if not (unneeded and unneeded(name)))
    if missing:
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ModelError(f"{wrong}: it has no weights for {missing[0]}{more}. Name a checkpoint of one")
    for name, stored, asked in sorted(report["mismatched_keys"], key=lambda one: str(one[0])):
        raise ModelError(
            f"{path}: the weights do not fit the config.json: {name} is {tuple(stored)} in them, and it asks for "
            f"{tuple(asked)}. They are of different models"
        )
    return found.eval()


def from_settings(cls: Any, config: Any) -> Any:
    """Returns `cls.from_config(config)`, without running code that the configuration names."""
    if isinstance(config, Mapping):  # of diffusers, which knows its own classes only
        return cls.from_config(config)
    return cls.from_config(config, trust_remote_code=False)


def load_component(cls: Any, folder: Path, what: str, **settings: Any) -> Any:
    """Returns `cls.from_pretrained(folder)` of a class of diffusers whose files have been looked at.

    Raises:
        ModelError: it cannot be loaded.
    """
    try:
        return _from_pretrained(cls, folder, what, use_safetensors=True, **settings)
    except _Unknown as error:
        raise ModelError(str(error)) from error


class _Unknown(ModelError):
    """A class that does not load this kind of checkpoint."""


def _from_pretrained(cls: Any, folder: Path, what: str, **settings: Any) -> Any:
    """Returns `cls.from_pretrained(folder)` without a network, and without running code that lies in the folder.

    Every checkpoint, tokenizer and pipeline is opened here: whatever the libraries raise, and however deep in them,
    becomes one sentence that names the folder.

    Raises:
        ModelError: they raise something; `_Unknown` where they do not know the kind.
        DependencyError: they ask for a package.
    """
    try:
        return cls.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **settings)
    except (KeyboardInterrupt, SystemExit, MemoryError, TamisError):
        raise
    except ImportError as error:
        raise DependencyError(f"the {what} in {folder} needs a package that is missing: {first_line(error)}") from error
    except BaseException as error:  # a panic of Rust is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        log.info("where it happened:", exc_info=error)
        kind = _Unknown if what != "tokenizer" and _UNKNOWN.search(str(error)) else ModelError
        raise kind(f"the {what} in {_damaged_file(folder, what)} cannot be loaded: {first_line(error)}") from error


def _outline(cls: Any, path: Path) -> Any:
    """Returns the network that a configuration describes, without numbers in it."""
    from transformers import AutoConfig

    own = getattr(cls, "config_class", None)
    config = _from_pretrained(own or AutoConfig, path, "configuration")
    try:
        return from_settings(cls, config) if own is None else cls(config)
    except ValueError as error:
        if _UNKNOWN.search(str(error)):
            raise _Unknown(str(error)) from error
        raise


def _check_class(path: Path) -> None:
    """Checks that a configuration names a tokenizer as its tokenizer: transformers would load a network, or a pickle.

    Raises:
        ModelError: it names something else.
    """
    named = object_in(path).get("tokenizer_class") if path.is_file() else None
    if named is not None and not (isinstance(named, str) and _TOKENIZER.search(named)):
        raise ModelError(f"{path} names {brief(named)} as its tokenizer_class, which is no tokenizer of transformers")


def check_tokens(tokenizer: Any, network: Any, folder: Path) -> None:
    """Checks that a network has an embedding for every token: one that has none would fail batch after batch.

    Raises:
        ModelError: it has not.
    """
    known = getattr(network.config.get_text_config(), "vocab_size", None)
    if not isinstance(known, int):
        return
    try:
        own = set(tokenizer.get_vocab()) - set(tokenizer.get_added_vocab())  # some add tokens that nothing needs
        numbers = [*tokenizer.convert_tokens_to_ids(list(own)), *tokenizer("a dog")["input_ids"]]
        numbers += [number for number in (tokenizer.pad_token_id,) if number is not None]
        highest = max(numbers, default=0)
    except Exception as error:
        raise ModelError(f"the tokenizer in {folder} does not work: {first_line(error)}") from error
    if highest >= known:
        raise ModelError(
            f"the tokenizer in {folder} is of another model: its tokens have numbers up to {highest:,}, and the "
            f"network knows {known:,} tokens"
        )


def _damaged_file(folder: Path, what: str) -> Path:
    """Returns the file that is to blame, where it can be told, else the folder."""
    if what == "configuration":
        return folder / "config.json"
    path = folder / "tokenizer.json"
    if what != "tokenizer" or not path.is_file():
        return folder
    import tokenizers

    try:
        tokenizers.Tokenizer.from_file(str(path))
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        return path
    return folder


def is_pooler(name: str) -> bool:
    """Tells whether a weight is of the pooler that BERT-like encoders were pretrained with: many are saved without."""
    return "pooler." in name


def _named(config: Mapping[str, Any]) -> str:
    kind = kind_of(config)
    return f"{kind!r}" if kind else "nameless"
