"""Loading models: each once, without a network and without anybody's code, whole or not at all."""

from __future__ import annotations

import functools
import inspect
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_type_hints

from tamis.data import ModelRef, OptionalModelRef
from tamis.errors import ModelError, require
from tamis.models.quiet import no_progress_bar, no_warnings
from tamis.models.reference import resolve

log = logging.getLogger(__name__)

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


def from_folder(cls: Any, folder: Path, **settings: Any) -> Any:
    """Returns `cls.from_pretrained(folder)` without a network, and without running code that lies in the folder.

    Every checkpoint, tokenizer and pipeline is opened here: a class of transformers or diffusers.
    """
    return cls.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **settings)


def model_type(model: str) -> Any:
    """Returns the `model_type` of a checkpoint's config.json, None where it names none.

    Raises:
        ModelError: it is not here, or holds no config.json.
        DependencyError: torch or transformers is not installed.
    """
    require("torch", "transformers", extra="clip")
    path = resolve(model).path / "config.json"
    if not path.is_file():
        raise ModelError(f"{model}: the folder holds no config.json, which says what model it is")
    return json.loads(path.read_text(encoding="utf-8")).get("model_type")


def transformer_folder(model: str) -> Path:
    """Returns where the transformer of a checkpoint lies: its folder, or in a sentence-transformers folder its part.

    Raises:
        ModelError: it is not here.
    """
    path = resolve(model).path
    modules = path / "modules.json"
    if modules.is_file():
        path = path / json.loads(modules.read_text(encoding="utf-8"))[0]["path"]
    return path


def load_whole(
    cls: Any, path: Path, model: str, *, expected: str, unneeded: Callable[[str], bool] | None = None, **settings: Any
) -> Any:
    """Returns a network that `from_folder` opens, in evaluation mode.

    Args:
        cls: a class of transformers, or one of its AutoModel classes.
        path: the checkpoint's folder.
        model: what the user called it, for messages.
        expected: what it has to be ("a causal language model"), for messages.
        unneeded: tells of the name of a weight that the checkpoint may lack: what is not used, or is to be trained.
        settings: of `from_pretrained`.

    Raises:
        ModelError: it is of a kind that the class does not load, or lacks weights of this class, which transformers
            would draw at random.
    """
    wrong = f"{model} is a {_kind(path)} model and not {expected}"
    with no_progress_bar(), no_warnings():  # what is missing is told below, and what is too much is of no interest
        try:
            found, report = from_folder(cls, path, use_safetensors=True, output_loading_info=True, **settings)
        except (ValueError, KeyError) as error:  # of AutoModel and AutoConfig: no such kind
            log.info("where it happened:", exc_info=error)
            raise ModelError(f"{wrong}: name a checkpoint of one") from error
    missing = sorted(name for name in report["missing_keys"] if not (unneeded and unneeded(name)))
    if missing:
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ModelError(f"{wrong}: it has no weights for {missing[0]}{more}. Name a checkpoint of one")
    return found.eval()


def is_pooler(name: str) -> bool:
    """Tells whether a weight is of the pooler that BERT-like encoders were pretrained with: many are saved without."""
    return "pooler." in name


def _kind(path: Path) -> str:
    config = path / "config.json"
    kind = json.loads(config.read_text(encoding="utf-8")).get("model_type") if config.is_file() else None
    return f"{kind!r}" if kind else "nameless"
