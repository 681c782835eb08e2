"""Loads models with transformers: each once, offline, with all of its weights, and without running a folder's code.

Errors of libraries become one sentence that names the model: see `one_sentence`.
"""

from __future__ import annotations

import functools
import html
import inspect
import logging
import re
import string
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, get_type_hints

from tamis.core.errors import DependencyError, ModelError, TamisError, first_line, install, require
from tamis.core.types import ModelRef, OptionalModelRef
from tamis.models.reference import Cleaning, modules_in, needs_lower_case, object_in, resolve

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

#: How transformers reports a model type that a class, or the installed version, cannot load.
_UNKNOWN = re.compile(r"nrecognized (configuration|model)|does not recognize this architecture|[Mm]odel type should")

#: `model_type` of CLIPs with a residual network, whose class is ours: see `clip_resnet`.
RESNET = "clip_resnet"

#: Settings that count something, and their limit: a larger number, from a damaged file, would fill the memory.
_COUNTS = re.compile(
    r"(?<!vision_feature_)(layers?|depths?|blocks?|layers_per_block|heads?|head_dim|channels|positions|position_embeddings|num_labels"
    r"|(hidden|intermediate|vocab|patch|image)_size|projection_dim)$"
)
_MOST = 1 << 24

#: Tokens of the shortest text: a start, an end, and something between them.
_SHORTEST = 3

P = ParamSpec("P")
T = TypeVar("T")

#: One function per loader, which empties its cache.
_FORGET: list[Callable[[], None]] = []

#: Held while a model is loaded, because transformers changes global state. Loaders may call other loaders.
_LOADING = threading.RLock()


def load_once(keep: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Caches the last `keep` models of a loader (a function or a class), by its arguments.

    Arguments annotated `ModelRef` or `OptionalModelRef` also count by their digests: changed weights are loaded again.
    """

    def decorate(load: Callable[P, T]) -> Callable[P, T]:
        signature, annotated = inspect.signature(load), cast(Any, load)
        kept = functools.lru_cache(keep)(lambda digests, *values: annotated(*values))
        _FORGET.append(kept.cache_clear)

        @functools.wraps(load)
        def loaded(*args: P.args, **kwargs: P.kwargs) -> T:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            hints = get_type_hints(annotated.__init__ if isinstance(load, type) else load, include_extras=True)
            models = [value for name, value in bound.arguments.items() if hints[name] in (ModelRef, OptionalModelRef)]
            digests = tuple(resolve(model).digest for model in models if model is not None)
            with _LOADING:
                return cast(T, kept(digests, *bound.arguments.values()))

        return loaded

    return decorate


def forget_models() -> None:
    """Drops every model that `load_once` has cached."""
    with _LOADING:
        for forget in _FORGET:
            forget()


@contextmanager
def one_sentence(what: str, model: str | Path) -> Iterator[None]:
    """Turns any error of a library inside the block into a ModelError: "WHAT in MODEL cannot be loaded: ..."."""
    try:
        yield
    except (MemoryError, TamisError):
        raise
    except ImportError as error:
        missing = f"{what} in {model} needs a package that is missing: {first_line(error)}"
        raise DependencyError(f"{missing}; run: {install('clip')}") from error
    except BaseException as error:
        # The Rust tokenizers panic with an exception that is not an `Exception`.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        log.info("where it happened:", exc_info=error)
        raise ModelError(f"{what} in {model} cannot be loaded: {first_line(error)}") from error


@contextmanager
def without_array_warning() -> Iterator[None]:
    """Hides NumPy's warning about tensors that become arrays: transformers' processors and models make some."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="__array__ implementation", category=DeprecationWarning)
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Silences progress bars and warnings of transformers and diffusers, and one warning of NumPy."""
    from transformers.utils import logging

    noises: list[Any] = [logging]
    if "diffusers" in sys.modules:
        noises.append(sys.modules["diffusers"].utils.logging)
    before = [(noise, noise.get_verbosity(), noise.is_progress_bar_enabled()) for noise in noises]
    for noise in noises:
        noise.disable_progress_bar()
        noise.set_verbosity_error()
    try:
        with without_array_warning():
            yield
    finally:
        for noise, verbosity, shown in before:
            noise.set_verbosity(verbosity)
            if shown:
                noise.enable_progress_bar()


def model_type(model: str) -> str | None:
    """Returns the `model_type` in a checkpoint's config.json, or None."""
    require("torch", "transformers", extra="clip")
    path = resolve(model).path / "config.json"
    if not path.is_file():
        raise ModelError(f"{model}: the folder holds no config.json, which says what model it is")
    kind = object_in(path).get("model_type")
    return kind if isinstance(kind, str) else None


def transformer_folder(model: str) -> Path:
    """Returns the folder of a checkpoint's transformer: the first module of a sentence-transformers folder."""
    path = resolve(model).path
    modules = modules_in(path) if (path / "modules.json").is_file() else []
    return modules[0][1] if modules else path


def load_whole(
    cls: Any, path: Path, model: str, *, expected: str, unneeded: Callable[[str], bool] | None = None, **settings: Any
) -> Any:
    """Returns a network of transformers or diffusers in evaluation mode; ModelError unless it has all of its weights.

    `model` and `expected` ("a causal language model") are for messages. `unneeded` names weights that may be missing.
    """
    config = object_in(path / "config.json")
    check_config(path / "config.json")
    if config.get("model_type") == RESNET:
        import tamis.models.clip_resnet  # noqa: F401  # registers it
    wrong = f"{model} is a {config.get('model_type') or config.get('_class_name')!r} model and not {expected}"
    try:
        # The libraries only log missing weights and draw them at random, so we check the report.
        with one_sentence("the model", path), quiet():
            network, report = cls.from_pretrained(
                path, local_files_only=True, trust_remote_code=False, use_safetensors=True,
                output_loading_info=True, ignore_mismatched_sizes=True, **settings,
            )  # fmt: skip
    except ModelError as error:
        if _UNKNOWN.search(str(error.__cause__)):
            raise ModelError(f"{wrong}: name a checkpoint of one") from error
        raise
    missing = sorted(name for name in report["missing_keys"] if not (unneeded and unneeded(name)))
    if missing:
        more = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ModelError(f"{wrong}: it has no weights for {missing[0]}{more} in {path}")
    for name, stored, asked in sorted(report["mismatched_keys"], key=lambda one: str(one[0])):
        raise ModelError(f"{path}: weights and config.json do not fit: {name} is {tuple(stored)}, not {tuple(asked)}")
    return network.eval()


def load_config(folder: Path) -> Any:
    """Returns the configuration of a checkpoint of transformers; ModelError if it is damaged, or of an unknown type."""
    from transformers import AutoConfig

    check_config(folder / "config.json")
    with one_sentence("the configuration", folder):
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def check_config(path: Path) -> None:
    """Rejects impossible counts, and settings that make the libraries load weights or code from elsewhere."""
    for key, value in settings_in(object_in(path)):
        if type(value) is int and _COUNTS.search(key) and not 0 <= value <= _MOST:
            raise ModelError(f"{path} has {key} = {value}, which is not between 0 and {_MOST:,}")
        code = key.endswith(("attn_implementation", "experts_implementation")) and "/" in str(value)
        if code or (key == "transformers_weights" and value is not None):
            raise ModelError(f"{path} asks for code or weights from elsewhere ({key} = {value!r}): remove the setting")


def settings_in(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (name, value) for each plain value in nested settings."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from settings_in(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from settings_in(inner, key)
    else:
        yield key, value


def load_tokenizer_in(folder: Path, *, cls: Any = None, network: Any = None) -> Any:
    """Returns the tokenizer of a folder; it lower-cases if the model needs that.

    `cls` overrides the class that its files name. With `network`, ModelError unless that network knows every token.
    """
    require("transformers", extra="clip")
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    with one_sentence("the tokenizer", folder):
        tokenizer = (cls or AutoTokenizer).from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise ModelError(f"{folder}: its tokenizer_class, {type(tokenizer).__name__}, is not a tokenizer")
        if not tokenizer.model_max_length >= _SHORTEST:
            raise ModelError(f"{folder}: model_max_length = {tokenizer.model_max_length} leaves no room for a text")
        if needs_lower_case(folder):
            from tokenizers import normalizers

            backend: Any = tokenizer.backend_tokenizer
            own = [backend.normalizer] if backend.normalizer else []
            backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *own])
        if network is not None:
            check_tokens(tokenizer, network, folder)
    return tokenizer


def check_tokens(tokenizer: Any, network: Any, folder: Path, config: Any = None) -> None:
    """Raises ModelError unless a network has an embedding for every token: otherwise batch after batch would fail.

    `config`: that of the network's text side, where transformers does not know which it is.
    """
    known = getattr(config or network.config.get_text_config(), "vocab_size", None)
    own = set(tokenizer.get_vocab()) - set(tokenizer.get_added_vocab())  # some tokenizers add unused tokens
    numbers = [*tokenizer.convert_tokens_to_ids(list(own)), *tokenizer("a dog")["input_ids"]]
    highest = max([*numbers, tokenizer.pad_token_id or 0])
    if isinstance(known, int) and highest >= known:
        raise ModelError(f"the tokenizer in {folder} has {highest + 1:,} tokens, the network knows {known:,}")


def is_pooler(name: str) -> bool:
    """Whether a weight belongs to BERT's pooler, which many checkpoints leave out."""
    return "pooler." in name


# ---- texts as token ids

#: The first token's position in these models is the id of the padding token plus 1.
SHIFTED = ("roberta", "xlm-roberta", "camembert", "altclip_text_model")


_PUNCTUATION = str.maketrans("", "", string.punctuation)


def cleaner(kind: Cleaning) -> Callable[[str], str]:
    """Returns the function that cleans a text before it is tokenized; "hf" leaves texts as they are.

    "openai": repairs encodings (ftfy), unescapes HTML twice, joins white space and lower-cases, as OpenAI's and
    open_clip's code does; "whitespace" keeps capitals, "canonicalize" drops punctuation (open_clip's `clean`).

    Source: github.com/openai/CLIP, simple_tokenizer.py; open_clip 3.3, tokenizer.py; big_vision for `canonicalize`.
    """
    if kind == "hf":
        return str  # a str stays as it is
    require("ftfy", extra="clip")
    from ftfy import fix_text

    def clean(text: str) -> str:
        text = html.unescape(html.unescape(fix_text(text)))
        if kind == "canonicalize":
            text = text.replace("_", " ").translate(_PUNCTUATION)
        text = " ".join(text.split())
        return text if kind == "whitespace" else text.lower()

    return clean


def each_text(
    tokens: Iterable[Sequence[int]],
    work: Callable[[torch.Tensor, torch.Tensor], Iterable[T]],
    *,
    batch: int,
    pad: int | None,
    device: torch.device | str,
    length: int | None = None,
) -> dict[tuple[int, ...], T]:
    """Returns what `work` makes of each distinct text, by its tokens. It gets their ids and mask (`pad_tokens`).

    Texts of similar length run together. A chunk has at most `batch` texts. It ends earlier if the next text is over a
    quarter longer than its first, but not below an eighth of `batch`, because small chunks use the hardware badly.
    """
    import torch

    results: dict[tuple[int, ...], T] = {}
    chunk: list[tuple[int, ...]] = []
    with torch.inference_mode():
        for ids in [*sorted({tuple(row) for row in tokens}, key=lambda row: (len(row), row)), ()]:
            longer = chunk and len(ids) > 1.25 * len(chunk[0]) and len(chunk) >= batch // 8
            if chunk and (longer or len(chunk) == batch or not ids):
                results.update(zip(chunk, work(*pad_tokens(chunk, pad, device, length=length)), strict=True))
                chunk = []
            chunk.append(ids)
    return results


def pad_tokens(
    rows: Sequence[Sequence[int]], pad: int | None, device: torch.device | str, *, length: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pads n lists of token ids on the right: returns ids and mask on a device, both (n, length) int64.

    `pad` None means 0, which the mask hides; `length` None means the longest row.
    """
    import torch

    longest = length or max(map(len, rows))
    ids = torch.tensor([[*row, *([pad or 0] * (longest - len(row)))] for row in rows], dtype=torch.long)
    mask = (torch.arange(longest) < torch.tensor([len(row) for row in rows])[:, None]).long()
    return ids.to(device), mask.to(device)


def longest_text(config: Any, tokenizer: Any) -> int:
    """Returns an encoder's limit in tokens, including special tokens; 512 if neither file has one."""
    positions = int(getattr(config, "max_position_embeddings", 0) or 0)
    if positions and config.model_type in SHIFTED:  # RoBERTa cannot use two of its 514 positions
        positions -= int(config.pad_token_id) + 1
    # A tokenizer without a limit has 10**30 here.
    return min((most for most in (positions, int(tokenizer.model_max_length)) if 0 < most < 10**9), default=512)
